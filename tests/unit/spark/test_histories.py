"""Whatever happens to a query, its group and its topic, in whatever order: nothing is passed over without a word.

A world of one topic, one query that is killed at any moment, another member, an operator. Logs grow, lose their tail or
their beginning, are deleted and created again. Records are numbers of their own: what was read is known exactly.
"""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.model import TopicPartition
from muster.spark.offsets import INITIAL, Topic, from_json, to_json
from muster.spark.source.bounds import Verdict, judge
from muster.spark.source.claims import BatchState, QueryClaims

pytestmark = pytest.mark.slow

FAR = 10**9
P0, P1, P2 = (TopicPartition("t", partition) for partition in range(3))


class Log:
    """One partition's log: `records[i]` has offset `start + i`."""

    def __init__(self):
        self.start = 0
        self.records = []

    @property
    def end(self):
        return self.start + len(self.records)

    def between(self, start, end):
        return self.records[max(0, start - self.start) : max(0, end - self.start)]


class World:
    def __init__(self, starting="earliest"):
        self.starting = starting
        self.count = 0
        self.topic = 1
        self.logs = {P0: Log(), P1: Log()}
        self.committed = {}  # partition -> (offset, note)
        self.foreign = 0  # commits by others
        self.other = {}
        self.spark_log, self.commit_log = [], []  # Spark's offset log and commit log: JSON
        self.sink = {}  # batch -> records written by it: the sink is idempotent by batch
        self.others_read = []
        self.told = []
        self.skipped = set()  # by the operator's will, or there before the beginning
        self.resets = []  # those of `set_to`: partition, offset, and how many batches were done
        self.runs = 0
        self.start_query()

    # --- the query ---------------------------------------------------------------------------------------------------

    def start_query(self):
        self.runs += 1
        self.claims = QueryClaims(name=f"run{self.runs}", records_first=self.starting == "latest")
        self.running = None
        if len(self.spark_log) > len(self.commit_log):
            self.running = len(self.spark_log) - 1
            self.read()
        self.notice()

    def read(self):
        """Plan the batch and run its tasks, as often as it takes: it is the same each time."""
        end = json.loads(self.spark_log[-1])
        then = from_json(end).topics.get("t")
        records = []
        for partition, claim in self.claims.planned(end).items():
            log = self.logs[partition]
            if then is not None and then.id != f"id{self.topic}":
                self.told.append("another topic")
                continue
            if claim.start < log.start or claim.end > log.end:
                self.told.append("not there")
            records += log.between(*claim)
        before = self.sink.get(self.running)
        assert before is None or before == records or self.told, "a batch changed without a word"
        self.sink[self.running] = records

    def notice(self):
        """The metadata is refreshed."""
        self.claims.seen({"t": Topic(f"id{self.topic}", len(self.logs))})
        self.look_up()

    def look_up(self):
        self.told += self.claims.take_losses()
        for partition in self.claims.unresolved():
            self.claims.committed(partition, *self.committed.get(partition, (None,)))
        for partition in self.claims.without_start():
            log = self.logs[partition]
            latest = self.starting == "latest" and not self.claims.is_new(partition)
            if latest:
                assert (self.topic, partition == P2) == (1, False), "what came later is read from its start"
                self.skipped.update(log.records)
            self.claims.reset(partition, log.end if latest else log.start)

    def judge(self):
        for partition, position in self.claims.positions().items():
            log = self.logs[partition]
            if judge(position, log.start, log.end) is not Verdict.GOOD:
                self.claims.lost(partition, log.start, f"{partition} at {position}")
        self.told += self.claims.take_losses()

    def trigger(self):
        if self.running is not None:
            return
        start = json.loads(self.spark_log[-1]) if self.spark_log else to_json(INITIAL)
        self.claims.begin_from(start)
        self.look_up()
        if self.claims.batch_state is BatchState.NONE:
            self.judge()
        end = self.claims.latest(start, {partition: log.end for partition, log in self.logs.items()}, 4)
        if end is not start:
            self.running = len(self.spark_log)
            self.spark_log.append(json.dumps(end))
            self.read()

    def read_again(self):
        """A task is tried again, or the batch is planned twice."""
        if self.running is not None:
            self.read()

    def finish(self):
        if self.running is not None:
            self.commit_log.append(self.running)
            self.running = None

    def hear(self):
        """The query is told that its last batch is done, before Spark asks for the next."""
        if self.running is None and self.spark_log:
            self.claims.finished(json.loads(self.spark_log[-1]))

    def idle_trigger(self):
        if self.running is None and self.spark_log:
            self.claims.begin_from(json.loads(self.spark_log[-1]))
            self.look_up()

    def commit(self, *, acknowledged=True):
        for partition, offset in self.claims.to_commit().items():
            self.committed[partition] = offset.offset, offset.metadata
            if acknowledged:
                self.claims.acknowledged(partition, offset.offset, self.claims.epoch(partition))

    def commit_unheard(self):
        """The group takes a commit; the answer is lost."""
        self.commit(acknowledged=False)

    def crash(self):
        self.start_query()

    # --- the group ---------------------------------------------------------------------------------------------------

    def free(self):
        return [p for p in self.logs if p not in self.other and self.claims.epoch(p) is None]

    def gain(self):
        gained = self.free()
        self.claims.assigned(gained)
        self.look_up()

    def gain_one(self):
        self.claims.assigned(self.free()[:1])
        self.look_up()

    def hand_over(self):
        """A drain in good order."""
        self.claims.drain(self.claims.owned(), FAR)
        self.claims.revoked(self.claims.owned() if self.claims.may_give_up(0) else [])

    def lose(self):
        self.claims.revoked(self.claims.owned())

    def lose_one(self):
        self.claims.revoked(self.claims.owned()[:1])

    def other_takes(self):
        for partition in self.free():
            self.other[partition] = self.committed.get(partition, (self.logs[partition].start,))[0]

    def other_reads(self):
        for partition, at in self.other.items():
            log = self.logs[partition]
            at = at if log.start <= at <= log.end else log.start
            self.others_read += log.between(at, at + 1)
            self.other[partition] = min(at + 1, log.end)
            self.committed[partition] = self.other[partition], ""
            self.foreign += 1

    def other_leaves(self):
        self.other = {}

    # --- what happens to the topic, and the operator -----------------------------------------------------------------

    def produce(self):
        for log in self.logs.values():
            log.records += range(self.count, self.count + 3)
            self.count += 3

    def set_back(self):
        """`kafka-consumer-groups --reset-offsets`, which wants an empty group."""
        if not self.claims.owned() and not self.other:
            for partition, (offset, _) in self.committed.items():
                self.committed[partition] = max(offset - 2, self.logs[partition].start), ""
                self.foreign += 1

    def set_to_earliest(self):
        if not self.claims.owned() and not self.other:
            self.committed = {partition: (log.start, "") for partition, log in self.logs.items()}
            self.foreign += 1

    def set_to_latest(self):
        if not self.claims.owned() and not self.other:
            for partition, log in self.logs.items():
                self.committed[partition] = log.end, ""
                self.skipped.update(log.records)
            self.foreign += 1

    def set_to(self, offsets):
        """`--to-offset` for each partition, of a group whose only member was killed."""
        for partition, offset in offsets.items():
            self.committed[partition] = offset, ""
            self.resets.append((partition, offset, len(self.commit_log)))

    def grow(self):
        self.logs.setdefault(P2, Log())

    def recreate(self):
        """The group's offsets go with the topic, as Kafka has it. The query may hear of it late."""
        self.topic += 1
        self.logs = {partition: Log() for partition in self.logs}
        self.committed = {}
        self.other = dict.fromkeys(self.other, 0)

    def delete_records(self):
        for log in self.logs.values():
            log.start, log.records = log.start + len(log.records[:2]), log.records[2:]

    def cut_off(self):
        """Logs lose their tail, and are looked at before they have grown again: nothing tells afterwards."""
        if self.running is None and set(self.claims.positions()) == set(self.logs):
            for log in self.logs.values():
                log.records = log.records[:-2]
            self.idle_trigger()
            self.judge()
            self.commit()

    # --- the end -----------------------------------------------------------------------------------------------------

    def settle(self, triggers=300):
        """Everything runs to its end in good order."""
        self.other_leaves()
        self.notice()
        self.gain()
        for _ in range(triggers):
            self.finish()
            self.idle_trigger()
            self.commit()
            self.gain()
            self.trigger()

    def mine(self):
        return [record for batch in self.sink.values() for record in batch]

    def unread(self):
        there = {record for log in self.logs.values() for record in log.records}
        return there - set(self.mine()) - set(self.others_read) - self.skipped


QUERY = ["trigger", "finish", "hear", "idle_trigger", "commit", "read_again"]
ORDERLY = ["produce", *QUERY, "gain", "gain_one", "hand_over", "other_takes", "other_reads", "other_leaves"]
ROUGH = ["lose", "crash", "commit_unheard"]
OPERATOR = ["set_back", "set_to_earliest", "set_to_latest"]
TOPIC = ["grow", "recreate", "notice", "delete_records", "cut_off"]


def play(actions, **how):
    world = World(**how)
    for action in actions:
        getattr(world, action)()
    world.settle()
    return world


def histories(*actions):
    return st.lists(st.sampled_from(actions), max_size=60)


@settings(max_examples=400, deadline=None)
@given(histories(*ORDERLY, *ROUGH, *OPERATOR, *TOPIC))
def test_nothing_that_is_there_is_passed_over_whatever_comes(actions):
    world = play(actions)
    assert world.unread() == set()
    if not world.foreign and not world.told:
        assert len(world.mine()) == len(set(world.mine())), "the query read a record in two batches"


@settings(max_examples=300, deadline=None)
@given(histories(*ORDERLY, *ROUGH, "grow", "notice"))
def test_a_query_that_began_at_the_end_reads_what_came_later(actions):
    world = World("latest")
    world.gain()
    world.trigger()
    world.commit()
    for action in actions:
        getattr(world, action)()
    world.settle()
    assert world.unread() == set()
    assert not world.skipped
    assert not world.told


@settings(max_examples=300, deadline=None)
@given(histories(*ORDERLY, *ROUGH))
def test_without_commits_by_others_the_query_reads_nothing_twice(actions):
    world = play([action for action in actions if action != "other_reads"])
    assert world.unread() == set()
    assert len(world.mine()) == len(set(world.mine()))
    assert not world.told


@settings(max_examples=300, deadline=None)
@given(histories(*ORDERLY))
def test_in_good_order_the_group_reads_everything_once(actions):
    world = play(actions)
    assert sorted(world.mine() + world.others_read) == list(range(world.count))
    assert not world.told


# --- resets between runs that are killed ------------------------------------------------------------------------------

READS = ("trigger", "commit_unheard", "commit", "finish", "hear", "commit", "idle_trigger", "commit")
JOINS_FIRST = ("gain", "commit_unheard", "commit", *READS, *READS, *READS)
ASKS_FIRST = ("trigger", "gain", "commit_unheard", "commit", *READS, *READS, *READS)
LOSES_ONE = ("trigger", "gain", "commit", "lose_one", *READS, *READS, "gain", *READS)

RUNS = st.tuples(
    st.sampled_from([JOINS_FIRST, ASKS_FIRST, LOSES_ONE]).flatmap(
        lambda steps: st.integers(0, len(steps)).map(lambda n: steps[:n])
    ),
    st.dictionaries(st.sampled_from([P0, P1]), st.integers(0, 9), max_size=2),
)
"""A run up to the step after which it is killed; then the operator's reset of some partitions, or of none."""


def batches_with(world, partition, offset, first):
    """In how many batches, from the one with this number on, the sink has the record."""
    (record,) = world.logs[partition].between(offset, offset + 1)
    return sum(record in records for batch, records in world.sink.items() if batch >= first)


@settings(max_examples=500, deadline=None)
@given(st.lists(RUNS, min_size=1, max_size=6))
def test_a_reset_is_obeyed_wherever_the_query_is_killed_around_it(runs):
    world = World()
    for _ in range(3):
        world.produce()
    for steps, offsets in runs:
        for step in steps:
            getattr(world, step)()
        world.crash()
        world.set_to(offsets)
    world.settle(20)
    for partition, log in world.logs.items():
        resets = [(offset, done) for reset, offset, done in world.resets if reset == partition]
        start, done = resets[-1] if resets else (0, 0)
        for offset in range(start, log.end):
            assert batches_with(world, partition, offset, done), f"{partition} {offset} was passed over after a reset"
        for offset in range(log.end):
            wanted = 1 + sum(start <= offset for start, _ in resets)
            assert batches_with(world, partition, offset, 0) <= wanted, f"{partition} {offset} was read once too often"


@settings(max_examples=200, deadline=None)
@given(histories(*ORDERLY, *ROUGH), st.integers(2, 9))
def test_a_topic_that_is_created_again_is_always_told_and_read_whole(actions, records):
    world = World()
    for action in ("gain", "commit", "produce", "trigger", "finish", "trigger", *actions):
        getattr(world, action)()
    world.recreate()
    for _ in range(records):
        world.produce()
    world.settle()
    assert world.told
    assert world.unread() == set()
