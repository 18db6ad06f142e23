"""Whatever happens to a query, its group and its topic, in whatever order: nothing is skipped silently.

A world of one topic, one query that is killed at any moment, another member, an operator. Logs grow, lose their tail or
their beginning, are deleted and created again. The group takes commits by the topic's name, as older brokers
do: those of a query that has not noticed a new topic too. Records are numbers of their own: what was read is known
exactly.
"""

import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from muster.model import TopicPartition
from muster.spark.offsets import INITIAL, TopicState, from_json, to_json
from muster.spark.source.bounds import PositionValidity, judge
from muster.spark.source.claims import BatchState, QueryClaims
from tests.support.scale import examples

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
    def __init__(self, starting="earliest", *, fails=False):
        self.starting = starting
        self.fails = fails  # failOnDataLoss
        self.count = 0
        self.topic = self.noticed = self.began = 1
        self.logs = {P0: Log(), P1: Log()}
        self.committed = {}  # partition -> (offset, note)
        self.foreign = 0  # commits by others
        self.other = {}
        self.terms = {}  # partition -> how often the query has gained or lost it: the group's fence
        self.checkpoint = 1
        self.spark_log, self.commit_log = [], []  # Spark's offset log and commit log: JSON
        self.sink = {}  # checkpoint and batch -> records written by it: the sink is idempotent by batch
        self.others_read = []
        self.reported = []
        self.skipped = set()  # because the operator wanted it, or before the query began
        self.resets = []  # those of `set_to`: partition, offset, and how many batches were done
        self.runs = 0
        self.start_query()

    # --- the query ---------------------------------------------------------------------------------------------------

    def start_query(self):
        self.runs += 1
        latest = self.starting == "latest"
        self.claims = QueryClaims(name=f"run{self.runs}", records_first=latest, fails_on_loss=self.fails)
        self.sent = []
        self.running = None
        if len(self.spark_log) > len(self.commit_log):
            self.running = len(self.spark_log) - 1
            self.read()
        self.notice()

    def read(self):
        """Plan the batch and run its tasks; every repetition reads the same."""
        end = json.loads(self.spark_log[-1])
        then = from_json(end).topics.get("t")
        records = []
        for partition, claim in self.claims.planned(end).items():
            log = self.logs.get(partition)
            if log is None or (then is not None and then.id != f"id{self.topic}"):
                self.reported.append("another topic")
                continue
            if claim.start < log.start or claim.end > log.end:
                self.reported.append("not there")
            records += log.between(*claim)
        if self.ended:
            return
        batch = self.checkpoint, self.running
        before = self.sink.get(batch)
        assert before is None or before == records or self.reported, "a batch changed without a word"
        self.sink[batch] = records

    @property
    def ended(self):
        """Whether a loss has ended the query."""
        return self.fails and bool(self.reported)

    def notice(self):
        """The metadata is refreshed."""
        self.noticed = self.topic
        self.claims.seen({"t": TopicState(f"id{self.topic}", len(self.logs))} if self.logs else {})
        self.look_up()

    def notice_late(self):
        """The metadata is from a broker that does not know yet that the topic was created again."""
        if self.topic > 1:
            self.noticed = self.topic - 1
            self.claims.seen({"t": TopicState(f"id{self.noticed}", 2)})
            self.look_up()

    def look_up(self):
        self.reported += self.claims.take_losses()
        for partition in self.claims.unresolved():
            self.claims.committed(partition, *self.committed.get(partition, (None,)))
        for partition in self.claims.without_start():
            log = self.logs.get(partition)
            if log is None:
                continue
            latest = self.starting == "latest" and not self.claims.is_new(partition)
            if latest and self.noticed == self.topic:
                assert (self.topic, partition == P2) == (self.began, False), "what came later is read from its start"
                assert partition not in self.committed, "the group has read something of a topic of that name"
                self.skipped.update(log.records)
            self.claims.reset(partition, log.end if latest else log.start)

    def judge(self):
        for partition, position in self.claims.positions().items():
            log = self.logs.get(partition)
            if log is not None and judge(position, log.start, log.end) is not PositionValidity.GOOD:
                self.claims.lost(partition, log.start, f"{partition} at {position}")
        self.reported += self.claims.take_losses()

    def trigger(self):
        if self.running is not None or self.ended:
            return
        start = json.loads(self.spark_log[-1]) if self.spark_log else to_json(INITIAL)
        if not self.spark_log and not self.claims.started:
            self.began = self.noticed
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
        if self.running is not None and not self.ended:
            self.commit_log.append(self.running)
            self.running = None

    def hear(self):
        """The query learns that its last batch is done, before Spark asks for the next."""
        if self.running is None and self.spark_log:
            self.claims.finished(json.loads(self.spark_log[-1]))

    def idle_trigger(self):
        if self.running is None and self.spark_log:
            self.claims.begin_from(json.loads(self.spark_log[-1]))
            self.look_up()

    def send_commit(self):
        """A commit is sent."""
        offsets = self.claims.to_commit().items()
        self.sent.append({p: (offset, self.claims.epoch(p), self.terms[p]) for p, offset in offsets})

    def commit_arrives(self, *, acknowledged=True):
        """The oldest sent commit arrives in the group, and counts if the query has had the partitions all the time
        since."""
        for partition, (offset, epoch, term) in (self.sent.pop(0) if self.sent else {}).items():
            if partition in self.logs and term == self.terms[partition]:
                self.committed[partition] = offset.offset, offset.metadata
                if acknowledged:
                    self.claims.acknowledged(partition, offset.offset, epoch)

    def commit(self, *, acknowledged=True):
        self.send_commit()
        while self.sent:
            self.commit_arrives(acknowledged=acknowledged)

    def commit_unheard(self):
        """The group accepts a commit; the answer is lost."""
        self.commit(acknowledged=False)

    def crash(self):
        self.lose()
        self.start_query()

    def new_checkpoint(self):
        """The query is started again with a new checkpoint: the group says where it continues."""
        self.checkpoint += 1
        self.spark_log, self.commit_log = [], []
        self.foreign += 1
        self.crash()

    def put_up_with_losses(self):
        """A query that has ended because of a loss is started again with `failOnDataLoss=false`."""
        if self.ended:
            self.fails = False
            self.crash()

    # --- the group ---------------------------------------------------------------------------------------------------

    def free(self):
        return [p for p in self.logs if p not in self.other and self.claims.epoch(p) is None]

    def fence(self, partitions):
        self.terms |= {partition: self.terms.get(partition, 0) + 1 for partition in partitions}
        return partitions

    def gain(self):
        self.gain_unheard()
        self.look_up()

    def gain_unheard(self):
        """The group's offsets have not been looked up yet."""
        self.claims.assigned(self.fence(self.free()))

    def gain_one(self):
        self.claims.assigned(self.fence(self.free()[:1]))
        self.look_up()

    def hand_over(self):
        """A drain that completes."""
        self.claims.drain(self.claims.owned(), FAR)
        self.claims.revoked(self.fence(self.claims.owned() if self.claims.may_give_up(0) else []))

    def lose(self):
        self.claims.revoked(self.fence(self.claims.owned()))

    def lose_one(self):
        self.claims.revoked(self.fence(self.claims.owned()[:1]))

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

    # --- the topic and the operator -----------------------------------------------------------------

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

    def delete_group(self):
        """An operator deletes it, or its offsets expire."""
        if not self.claims.owned() and not self.other:
            self.committed = {}
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
        missing = [partition for partition in (P0, P1, P2) if partition not in self.logs]
        if self.logs and missing:
            self.logs[missing[0]] = Log()

    def recreate(self):
        """The group's offsets are deleted with the topic, as in Kafka. The query may learn of it late."""
        self.create(self.logs or (P0, P1))
        self.committed = {}

    def recreate_smaller(self):
        self.create([P0])
        self.committed = {}

    def recreate_with_offsets(self):
        """The group's coordinator moves meanwhile, so the query's commits survive. So would others', but theirs do not
        say which topic they are about: they are left out."""
        self.create(self.logs or (P0, P1))
        self.committed = {partition: found for partition, found in self.committed.items() if found[1]}

    def create(self, partitions):
        self.topic += 1
        self.logs = {partition: Log() for partition in partitions}
        self.other = {partition: 0 for partition in self.other if partition in self.logs}

    def delete(self):
        self.logs, self.committed, self.other = {}, {}, {}

    def delete_records(self):
        for log in self.logs.values():
            log.start, log.records = log.start + len(log.records[:2]), log.records[2:]

    def cut_off(self):
        """Logs lose their tail, and are checked before they have grown again: afterwards nothing would show it."""
        if self.running is None and set(self.claims.positions()) == set(self.logs):
            for log in self.logs.values():
                log.records = log.records[:-2]
            self.idle_trigger()
            self.judge()
            self.commit()

    # --- the end -----------------------------------------------------------------------------------------------------

    def settle(self, triggers=300):
        """Everything is completed in an orderly way."""
        self.put_up_with_losses()
        self.other_leaves()
        self.notice()
        self.gain()
        for _ in range(triggers):
            self.put_up_with_losses()
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
ROUGH = ["lose", "crash", "send_commit", "commit_arrives", "commit_unheard", "gain_unheard"]
OPERATOR = ["set_back", "set_to_earliest", "set_to_latest", "delete_group", "new_checkpoint", "put_up_with_losses"]
RECREATED = ["recreate", "recreate_smaller", "recreate_with_offsets", "delete", "notice", "notice_late"]
TOPIC = ["grow", *RECREATED, "delete_records", "cut_off"]


def play(actions, **how):
    world = World(**how)
    for action in actions:
        getattr(world, action)()
    world.settle()
    return world


def histories(*actions):
    """Sequences of a few kinds of actions each: a bug that takes four of them in order is rare among thirty."""
    few = st.lists(st.sampled_from(actions), min_size=1, max_size=12, unique=True)
    return few.flatmap(lambda some: st.lists(st.sampled_from(some), max_size=60))


@settings(max_examples=examples(400), deadline=None)
@given(histories(*ORDERLY, *ROUGH, *OPERATOR, *TOPIC), st.booleans())
def test_nothing_that_is_there_is_skipped_whatever_comes(actions, fails):
    world = play(actions, fails=fails)
    assert world.unread() == set()
    if not world.foreign and not world.reported:
        assert len(world.mine()) == len(set(world.mine())), "the query read a record in two batches"


@settings(max_examples=examples(300), deadline=None)
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
    assert not world.reported


@settings(max_examples=examples(300), deadline=None)
@given(histories(*ORDERLY, *ROUGH))
def test_without_commits_by_others_the_query_reads_nothing_twice(actions):
    world = play([action for action in actions if action != "other_reads"])
    assert world.unread() == set()
    assert len(world.mine()) == len(set(world.mine()))
    assert not world.reported


@settings(max_examples=examples(300), deadline=None)
@given(histories(*ORDERLY))
def test_without_faults_the_group_reads_everything_once(actions):
    world = play(actions)
    assert sorted(world.mine() + world.others_read) == list(range(world.count))
    assert not world.reported


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
    """The number of batches, from this batch number on, in which the sink has the record."""
    (record,) = world.logs[partition].between(offset, offset + 1)
    return sum(record in records for (_, batch), records in world.sink.items() if batch >= first)


@settings(max_examples=examples(500), deadline=None)
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


# --- topics that are created again ------------------------------------------------------------------------------------

READ = ("gain", "commit", "produce", "trigger", "finish", "trigger")
AFTERWARDS = [*QUERY, *ROUGH, "gain", "lose_one", "hand_over", "notice", "notice_late", "put_up_with_losses"]


@settings(max_examples=examples(500), deadline=None)
@given(
    histories(*ORDERLY, *ROUGH),
    st.sampled_from(["recreate", "recreate_smaller", "recreate_with_offsets"]),
    st.integers(2, 9),
    histories(*AFTERWARDS),
    st.booleans(),
)
def test_a_topic_that_is_created_again_is_always_reported_and_read_whole(before, recreate, records, afterwards, fails):
    world = play([*READ, *before, recreate, *["produce"] * records, *afterwards], fails=fails)
    assert world.reported
    assert world.unread() == set()


@settings(max_examples=examples(500), deadline=None)
@given(
    st.sampled_from([("set_to_latest", "gain"), ("gain", "commit", "trigger", "finish", "idle_trigger")]),
    st.sampled_from(["recreate", "recreate_smaller", "recreate_with_offsets"]),
    histories(*AFTERWARDS, "new_checkpoint"),
    st.sampled_from(["earliest", "latest"]),
)
@example(("set_to_latest", "gain"), "recreate", ["commit_unheard", "lose"], "earliest")
def test_a_commit_about_a_former_topic_hides_nothing_of_the_new_one(before, recreate, afterwards, starting):
    """Whichever notices it: the query itself, its next run, or a query with a new checkpoint."""
    world = World(starting)
    for action in ("trigger", "produce", *before, recreate, "produce", "produce", *afterwards):
        getattr(world, action)()
    world.settle(20)
    assert world.unread() == set()
