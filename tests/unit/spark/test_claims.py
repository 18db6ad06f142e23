"""A query's part in its group, by the rules at the head of claims.py: no Spark, no network, no clock."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.model import TopicPartition
from muster.spark.claims import BatchState, QueryClaims, Replay, Resume, resume_position
from muster.spark.offsets import (
    INITIAL,
    Claim,
    OffsetFormatError,
    QueryOffset,
    from_json,
    to_json,
)

P0, P1, P2 = (TopicPartition("flights", partition) for partition in range(3))
START = to_json(INITIAL)
FAR = 10**9


class Query:
    """One run of a query: what Spark and the group do to its claims, in their words."""

    def __init__(self, start=START, **how):
        self.claims = QueryClaims(**how)
        self.offset = start
        self.ends = {}

    def gains(self, committed):
        self.claims.assigned(committed)
        for partition, offset in committed.items():
            self.claims.committed(partition, offset)
        return self

    def loses(self, *partitions):
        self.claims.revoked(partitions)
        return self

    def asks(self, limit=None, **ends):
        """Spark asks for the latest offset; what is claimed, None where it got its own offset back."""
        self.ends |= {TopicPartition("flights", int(name[1:])): end for name, end in ends.items()}
        self.end = self.claims.latest(self.offset, self.ends, limit, generation=1)
        if self.end is self.offset:
            return None
        assert json.loads(json.dumps(self.end)) == self.end
        return ranges(from_json(self.end).claims)

    def plans(self):
        return ranges(self.claims.planned(json.loads(json.dumps(self.end))))

    def commits(self):
        """The group acknowledges everything that is to be committed."""
        sent = {p: (o.offset, self.claims.epoch(p)) for p, o in self.claims.to_commit().items()}
        for partition, (offset, epoch) in sent.items():
            self.claims.acknowledged(partition, offset, epoch)
        return {partition.partition: offset for partition, (offset, _) in sent.items()}

    def is_done(self):
        """Spark has the batch in its commit log and asks for what comes next."""
        self.offset = json.loads(json.dumps(self.end))
        self.claims.begin_from(self.offset)
        return self

    def batch(self, limit=None, **ends):
        claimed = self.asks(limit, **ends)
        assert self.plans() == claimed
        self.is_done()
        return claimed


def ranges(claims):
    return {partition.partition: tuple(claim) for partition, claim in claims.items()}


# --- rule 8 -----------------------------------------------------------------------------------------------------------

DONE = Claim(100, 200)


@pytest.mark.parametrize(
    ("committed", "done", "by_max", "by_group", "by_checkpoint"),
    [
        (None, None, None, None, None),
        (50, None, 50, 50, 50),
        (None, DONE, 200, 200, 200),
        (99, DONE, 99, 99, 200),
        (0, DONE, 0, 0, 200),
        (100, DONE, 200, 100, 200),
        (150, DONE, 200, 150, 200),
        (200, DONE, 200, 200, 200),
        (201, DONE, 201, 201, 200),
    ],
)
def test_where_a_partition_starts(committed, done, by_max, by_group, by_checkpoint):
    found = [resume_position(committed, done, resume) for resume in (Resume.MAX, Resume.GROUP, Resume.CHECKPOINT)]
    assert found == [by_max, by_group, by_checkpoint]


# --- offsets ----------------------------------------------------------------------------------------------------------


def test_an_offset_has_one_text():
    offset = QueryOffset(3, {P2: Claim(1, 2), P0: Claim(5, 9)}, 7, {P1: Claim(0, 4)})
    text = json.dumps(to_json(offset))
    assert text == (
        '{"v": 1, "seq": 3, "gen": 7, "claims": {"flights": {"0": [5, 9], "2": [1, 2]}}, '
        '"uncommitted": {"flights": {"1": [0, 4]}}}'
    )
    assert from_json(json.loads(text)) == offset
    assert json.dumps(START) == '{"v": 1, "seq": 0, "claims": {}}'


@pytest.mark.parametrize(
    "stored",
    [
        {},
        {"v": 2, "seq": 1, "claims": {}},
        {"v": 1, "claims": {}},
        {"v": 1, "seq": 1, "claims": {"t": {"0": [5]}}},
        {"v": 1, "seq": 1, "claims": {"t": {"0": [5, 4]}}},
        {"v": 1, "seq": 1, "claims": {"t": {"x": [4, 5]}}},
        {"v": 1, "seq": 1, "claims": [1]},
    ],
)
def test_a_foreign_offset_is_refused(stored):
    with pytest.raises(OffsetFormatError, match="checkpoint"):
        from_json(stored)


# --- batches ----------------------------------------------------------------------------------------------------------


def test_a_batch_reads_on_from_the_committed_offset_and_is_committed_when_done():
    query = Query().gains({P0: 10, P1: 0})
    assert query.asks(p0=15, p1=0) == {0: (10, 15)}
    assert query.plans() == {0: (10, 15)}
    assert query.commits() == {}
    assert query.is_done().commits() == {0: 15}
    assert query.asks() is None
    assert query.asks(p0=16) == {0: (15, 16)}


def test_without_news_or_partitions_spark_gets_its_own_offset_back():
    query = Query()
    assert query.asks(p0=100) is None
    query.gains({P0: 100})
    assert query.asks() is None


def test_a_claim_that_was_never_planned_is_made_again():
    query = Query().gains({P0: 0})
    first = query.asks(p0=5)
    assert first == {0: (0, 5)}
    assert query.asks(p0=8) == {0: (0, 8)}
    assert query.end["seq"] == 1


def test_a_batch_planned_twice_reads_the_same():
    query = Query().gains({P0: 0})
    query.asks(p0=5)
    assert query.plans() == query.plans() == {0: (0, 5)}
    query.loses(P0)
    assert query.plans() == {0: (0, 5)}


def test_commit_says_again_what_is_known():
    query = Query().gains({P0: 0})
    query.asks(p0=5)
    query.plans()
    query.claims.finished(query.end)
    assert query.commits() == {0: 5}
    query.claims.finished(query.end)
    assert query.is_done().commits() == {}
    assert query.claims.batch_state is BatchState.NONE


def test_the_commit_carries_the_query_and_the_batch():
    query = Query(note="spark:q1").gains({P0: 0})
    query.batch(p0=5)
    assert query.claims.to_commit()[P0].metadata == "spark:q1/1"


def test_the_limit_is_shared():
    query = Query().gains({P0: 0, P1: 0})
    assert query.batch(limit=10, p0=30, p1=10) == {0: (0, 8), 1: (0, 2)}
    assert query.batch(limit=10) == {0: (8, 15), 1: (2, 5)}


def test_a_partition_without_a_committed_offset_waits_for_the_reset_and_records_it():
    query = Query().gains({P0: None})
    assert query.asks(p0=9) is None
    assert query.claims.without_start() == [P0]
    query.claims.reset(P0, 4)
    assert query.commits() == {0: 4}
    assert query.asks() == {0: (4, 9)}


def test_a_partition_whose_commit_is_not_known_yet_is_not_read():
    query = Query()
    query.claims.assigned([P0])
    assert query.asks(p0=9) is None
    assert query.claims.unresolved() == [P0]
    assert query.commits() == {}


# --- giving partitions up ---------------------------------------------------------------------------------------------


def test_a_drain_waits_for_the_batch_and_its_commit():
    query = Query().gains({P0: 0, P1: 0})
    query.asks(p0=5, p1=5)
    query.plans()
    query.claims.drain([P1], deadline=1000)
    assert not query.claims.may_give_up(999)
    query.is_done()
    assert not query.claims.may_give_up(999)
    assert query.asks(p0=9, p1=9) is None
    assert query.commits() == {0: 5, 1: 5}
    assert query.claims.may_give_up(999)
    query.loses(P1)
    assert query.asks() == {0: (5, 9)}


def test_a_drain_does_not_wait_for_a_batch_that_reads_others():
    query = Query().gains({P0: 0, P1: 0})
    query.asks(p0=5)
    query.plans()
    query.claims.drain([P1], deadline=1000)
    assert query.claims.may_give_up(1)


def test_a_claim_that_spark_may_still_plan_holds_up_the_drain():
    query = Query().gains({P0: 0})
    query.asks(p0=5)
    query.claims.drain([P0], deadline=1000)
    assert not query.claims.may_give_up(1)
    assert query.asks() is None
    assert query.claims.may_give_up(1)


def test_past_its_deadline_the_partition_goes_and_the_batch_is_an_orphan():
    query = Query().gains({P0: 0, P1: 0})
    query.asks(p0=5, p1=5)
    query.plans()
    query.claims.drain([P1], deadline=1000)
    assert query.claims.may_give_up(1000)
    query.loses(P1).is_done()
    assert query.commits() == {0: 5}


def test_a_partition_lost_and_regained_during_the_batch_is_resolved_anew():
    query = Query().gains({P0: 0})
    query.asks(p0=5)
    query.plans()
    query.loses(P0).gains({P0: 7})
    query.is_done()
    assert query.commits() == {}
    assert query.asks(p0=9) == {0: (7, 9)}


def test_an_orphan_that_comes_back_is_not_read_again():
    query = Query().gains({P0: 0})
    query.asks(p0=5)
    query.plans()
    query.loses(P0).is_done()
    query.gains({P0: 3})
    assert query.commits() == {0: 5}
    assert query.asks(p0=9) == {0: (5, 9)}


def test_an_acknowledgement_of_an_earlier_ownership_counts_for_nothing():
    query = Query().gains({P0: 0})
    query.batch(p0=5)
    sent = query.claims.epoch(P0)
    query.loses(P0).gains({P0: 0})
    query.claims.acknowledged(P0, 5, sent)
    assert query.commits() == {0: 5}


def test_a_partition_that_was_committed_follows_the_group_when_it_comes_back():
    query = Query().gains({P0: 0})
    query.batch(p0=50)
    query.commits()
    query.loses(P0).gains({P0: 20})
    assert query.asks() == {0: (20, 50)}


# --- restarts ---------------------------------------------------------------------------------------------------------


def finished_run(**how):
    """A run whose batch [10, 60) of P0 is done; the group has not heard of it."""
    query = Query(**how).gains({P0: 10})
    query.batch(p0=60)
    return query


@pytest.mark.parametrize(
    ("committed", "next_start", "repaired"),
    [(10, 60, {0: 60}), (None, 60, {0: 60}), (60, 60, {}), (30, 60, {0: 60}), (80, 80, {}), (5, 5, {})],
)
def test_after_a_restart_the_checkpoint_and_the_group_are_joined(committed, next_start, repaired):
    again = Query(finished_run().offset)
    assert again.asks() is None
    again.gains({P0: committed})
    assert again.commits() == repaired
    assert again.asks(p0=100) == {0: (next_start, 100)}
    assert again.end["seq"] == 2


@pytest.mark.parametrize("committed", [10, 60, 80, 5])
def test_it_is_the_same_when_the_group_is_joined_before_spark_asks(committed):
    after, before = Query(finished_run().offset), Query(finished_run().offset)
    after.asks()
    assert after.gains({P0: committed}).asks(p0=100) == before.gains({P0: committed}).asks(p0=100)


def test_a_group_that_was_set_back_is_obeyed_to_the_end():
    again = Query(finished_run().offset)
    again.asks()
    again.gains({P0: 5})
    assert again.batch(limit=10, p0=100) == {0: (5, 15)}
    again.commits()
    last = Query(again.offset)
    last.asks()
    last.gains({P0: 15})
    assert last.asks(p0=100) == {0: (15, 100)}


def test_a_planned_batch_is_replayed_whole_whatever_the_group_looks_like():
    query = Query().gains({P0: 10, P1: 0})
    query.asks(p0=60, p1=7)
    again = Query()
    again.end = query.end
    assert again.plans() == {0: (10, 60), 1: (0, 7)}
    again.gains({P0: 40})
    assert again.plans() == {0: (10, 60), 1: (0, 7)}
    assert again.commits() == {}
    again.is_done()
    assert again.commits() == {0: 60}
    assert again.asks(p0=61, p1=9) == {0: (60, 61)}


def test_a_trimmed_replay_reads_what_is_owned_and_not_committed():
    query = Query().gains({P0: 10, P1: 0, P2: 0})
    query.asks(p0=60, p1=7, p2=5)
    again = Query(replay=Replay.TRIM)
    again.end = query.end
    again.plans()
    assert again.claims.to_trim()
    again.gains({P0: 40, P2: 5})
    again.claims.trim()
    assert not again.claims.to_trim()
    assert again.plans() == again.plans() == {0: (40, 60)}
    again.is_done()
    assert again.commits() == {0: 60}
    again.gains({P1: 3})
    assert again.asks(p1=7) == {1: (3, 7)}


def test_after_a_trimmed_replay_another_restart_believes_the_group():
    query = Query().gains({P0: 0})
    query.asks(p0=100)
    again = Query(replay=Replay.TRIM)
    again.end = query.end
    again.plans()
    again.claims.trim()
    assert again.plans() == {}
    again.is_done()
    last = Query(again.offset, replay=Replay.TRIM)
    last.asks()
    last.gains({P0: 50})
    assert last.asks(p0=100) == {0: (50, 100)}


def test_what_was_never_acknowledged_is_carried_over_batches_and_restarts():
    query = Query().gains({P0: 0, P1: 0})
    query.batch(p0=10)
    query.batch(p1=5)
    query.batch(p0=20)
    assert from_json(query.offset).uncommitted == {P0: Claim(0, 10), P1: Claim(0, 5)}
    again = Query(query.offset)
    again.asks()
    again.gains({P0: 0, P1: 0})
    assert again.commits() == {0: 20, 1: 5}
    assert again.batch(p0=21, p1=6) == {0: (20, 21), 1: (5, 6)}
    assert "uncommitted" not in again.offset


# --- properties -------------------------------------------------------------------------------------------------------


class World:
    """One partition, a query that is killed at any moment, another member, a log that grows; what was read by whom."""

    def __init__(self):
        self.log_end = 0
        self.committed = None
        self.other = None  # where the other member stands, if it owns the partition
        self.spark_log, self.commit_log = [], []  # Spark's offset log and commit log: JSON
        self.sink = {}  # batch -> offsets written by it: the sink is idempotent by batch
        self.others_read = []
        self.start_query()

    def start_query(self):
        self.claims = QueryClaims()
        self.owns = False
        self.running = None
        if len(self.spark_log) > len(self.commit_log):
            self.running = len(self.spark_log) - 1
            self.read(self.claims.planned(json.loads(self.spark_log[-1])))

    def read(self, claims):
        self.sink[self.running] = [o for claim in claims.values() for o in range(claim.start, claim.end)]

    def produce(self):
        self.log_end += 3

    def trigger(self):
        if self.running is not None:
            return
        start = json.loads(self.spark_log[-1]) if self.spark_log else json.loads(json.dumps(START))
        end = self.claims.latest(start, {P0: self.log_end}, 4)
        if end is not start:
            self.running = len(self.spark_log)
            self.spark_log.append(json.dumps(end))
            self.read(self.claims.planned(json.loads(self.spark_log[-1])))

    def finish(self):
        if self.running is not None:
            self.commit_log.append(self.running)
            self.running = None

    def idle_trigger(self):
        if self.running is None and self.spark_log:
            self.claims.begin_from(json.loads(self.spark_log[-1]))

    def commit(self):
        for partition, offset in self.claims.to_commit().items():
            assert self.committed is None or offset.offset >= self.committed, "a commit went back"
            self.committed = offset.offset
            self.claims.acknowledged(partition, offset.offset, self.claims.epoch(partition))

    def gain(self):
        if not self.owns and self.other is None:
            self.owns = True
            self.claims.assigned([P0])
            self.claims.committed(P0, self.committed)
            if self.claims.without_start():
                self.claims.reset(P0, 0)

    def hand_over(self):
        """A drain in good order."""
        if self.owns:
            self.claims.drain([P0], FAR)
            if self.claims.may_give_up(0):
                self.lose()
            else:
                self.claims.drain([], 0)
                self.claims.revoked([])

    def lose(self):
        if self.owns:
            self.owns = False
            self.claims.revoked([P0])

    def other_takes(self):
        if not self.owns and self.other is None:
            self.other = self.committed or 0

    def other_reads(self):
        if self.other is not None and self.other < self.log_end:
            self.others_read.append(self.other)
            self.other += 1
            self.committed = self.other

    def other_leaves(self):
        self.other = None

    def crash(self):
        self.start_query()

    def settle(self):
        """Everything runs to its end in good order."""
        self.other_leaves()
        self.gain()
        for _ in range(200):
            self.finish()
            self.idle_trigger()
            self.commit()
            self.gain()
            self.trigger()


ACTIONS = [
    "produce", "trigger", "finish", "idle_trigger", "commit", "gain", "hand_over", "lose",
    "other_takes", "other_reads", "other_leaves", "crash",
]  # fmt: skip


@settings(max_examples=500, deadline=None)
@given(st.lists(st.sampled_from(ACTIONS), max_size=60))
def test_nothing_is_lost_and_the_query_reads_nothing_twice(actions):
    world = World()
    for action in actions:
        getattr(world, action)()
    world.settle()
    mine = [offset for batch in world.sink.values() for offset in batch]
    assert set(mine) | set(world.others_read) == set(range(world.log_end)), "lost"
    assert len(mine) == len(set(mine)), "the query read a record in two batches"


ORDERLY = [action for action in ACTIONS if action not in ("lose", "crash")]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(ORDERLY), max_size=60))
def test_in_good_order_the_group_reads_everything_once(actions):
    world = World()
    for action in actions:
        getattr(world, action)()
    world.settle()
    mine = [offset for batch in world.sink.values() for offset in batch]
    assert sorted(mine + world.others_read) == list(range(world.log_end))
