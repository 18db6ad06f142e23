"""The member as Spark calls it, in virtual time: what a batch reads, when it is committed, and what holds up whom."""

from __future__ import annotations

import logging

import pytest

from muster.errors import ConfigError, ErrorCode, KafkaError, KafkaTimeoutError
from muster.model import TopicPartition
from muster.protocol.messages import ListOffsetsRequest, OffsetCommitRequest, OffsetFetchRequest
from muster.spark.bounds import HELD_UP_MS
from muster.spark.fetch import DataLossError
from muster.spark.member import CHECKPOINT_EVERY_MS, COMMIT_WAIT_MS
from muster.spark.offsets import from_json
from muster.spark.query_core import DRAIN_MARGIN_MS, MISSING_TOPIC_MS
from muster.spark.word import tell
from tests.support.queries import audit, grid
from tests.support.spark_world import told

P0, P1, P2 = (TopicPartition("t", number) for number in range(3))


def begin_batch(world, *queries):
    """Trigger until each of these has a batch under way."""
    world.until(
        lambda: all(query.running is not None for query in queries),
        lambda: [query.trigger() for query in queries if query.running is None],
    )


def read_all(world, count, *queries):
    """Trigger those that have not ended until so many records are in the sinks."""
    running = [query.run for query in queries if not query.ended]
    world.until(lambda: sum(len(query.sink()) for query in queries) >= count, *running)


def drive(world, *queries):
    """One second, with batches as they come."""
    for query in queries:
        query.run()
    world.run(1_000)


# --- batches and commits ----------------------------------------------------------------------------------------------


def test_a_batch_is_committed_when_spark_asks_for_the_next(worlds):
    world = worlds(2)
    world.produce(50, partitions=(0, 1))
    query = world.query(maxOffsetsPerTrigger=70)
    begin_batch(world, query)
    world.run(20_000)
    assert world.committed() == {0: 0, 1: 0}  # where it starts, under its name
    query.finish()
    assert query.trigger()
    assert world.committed() == {0: 35, 1: 35}
    query.finish()
    assert query.run() == 0
    assert world.committed() == {0: 50, 1: 50}
    assert audit(grid(100, 2), query.sink()) == (set(), {})


@pytest.mark.parametrize("how", ["commit", "word", "stop", "checkpoint"])
def test_the_last_batch_is_committed_however_its_end_is_heard_of(worlds, how):
    world = worlds()
    world.produce(10)
    query = world.query()
    begin_batch(world, query)
    end = query.offset(0)
    query.finish()
    if how == "commit":
        query.member.finished(end)
        assert world.committed() == {0: 10}  # before the call returns
    elif how == "word":
        assert tell(end)
        world.run(100)
        assert world.committed() == {0: 10}
    query.stop()
    assert world.committed() == {0: 10}


def test_a_batch_that_is_not_done_is_committed_by_nothing(worlds):
    world = worlds()
    world.produce(30)
    query = world.query(maxOffsetsPerTrigger=10)
    begin_batch(world, query)
    first = query.offset(0)
    query.finish()
    assert query.trigger()
    query.member.finished(first)
    assert tell(first)
    world.run(1_000)
    query.stop()
    assert world.committed() == {0: 10}
    query.stop()  # twice


def test_a_query_that_ends_in_a_batch_does_not_wait_for_its_word_for_long(worlds):
    world = worlds()
    world.produce(10)
    query = world.query()
    begin_batch(world, query)
    begun = world.clock.now
    query.stop()
    assert world.clock.now - begun < 5_000
    again = world.query()
    assert again.recover()
    again.finish()
    assert again.run() == 0
    assert world.committed() == {0: 10}
    assert audit(grid(10, 1), again.sink()) == (set(), {})


def test_the_next_batch_waits_for_the_commit_of_the_last_but_not_for_ever(worlds):
    """A crash right after would else leave a batch in doubt that another member reads again."""
    world = worlds()
    world.produce(30)
    query = world.query(maxOffsetsPerTrigger=10)
    begin_batch(world, query)
    query.finish()
    world.cluster.brokers.coordinators.hold_syncs(True)
    world.cluster.brokers.freeze(1)
    world.clock.call_later(2_000, world.cluster.brokers.thaw, 1)
    world.cluster.brokers.coordinators.hold_syncs(False)
    begun = world.clock.now
    assert query.trigger()
    assert world.clock.now - begun >= 2_000
    assert world.committed() == {0: 10}
    query.finish()
    world.cluster.brokers.freeze(1)
    begun = world.clock.now
    query.trigger()
    assert world.clock.now - begun >= COMMIT_WAIT_MS
    world.cluster.brokers.thaw(1)
    read_all(world, 30, query)
    assert audit(grid(30, 1), query.sink()) == (set(), {})


def test_a_query_leaves_its_group_at_the_end(worlds):
    world = worlds()
    world.produce(10)
    query = world.query()
    read_all(world, 10, query)
    assert [len(group.members) for group in world.cluster.describe()] == [1]
    query.stop()
    assert [len(group.members) for group in world.cluster.describe()] == [0]


def test_claims_that_spark_did_not_take_up_are_made_again(worlds):
    world = worlds()
    world.produce(10)
    query = world.query(mode="assign")
    start = query.offset(-1)
    first = query.member.latest(start, None)
    world.produce(5)
    world.run(1_000)
    second = query.member.latest(start, None)
    assert [from_json(end).claims[P0].end for end in (first, second)] == [10, 15]
    assert query.member.planned(second) == {P0: (0, 15)}


def test_the_limit_is_shared_and_every_partition_comes_by_turns(worlds):
    world = worlds(3)
    world.produce(3, partitions=(0, 1, 2))
    query = world.query(maxOffsetsPerTrigger=1)
    begin_batch(world, query)
    query.finish()
    while query.trigger():
        query.finish()
    sizes = [sum(end - start for start, end in query.claims(batch).values()) for batch in query.log("commits")]
    assert sizes == [1] * 9
    assert {next(iter(query.claims(batch))) for batch in range(3)} == {0, 1, 2}


def test_ends_are_asked_for_at_a_trigger_and_not_at_each_of_a_burst(worlds):
    world = worlds()
    world.produce(10)
    query = world.query()
    read_all(world, 10, query)
    before = query.count(ListOffsetsRequest)
    for _ in range(10):
        query.trigger()
    assert query.count(ListOffsetsRequest) <= before + 1
    world.run(60_000)
    assert query.count(ListOffsetsRequest) <= before + 1  # nor while Spark does not ask
    world.produce(5)
    assert query.trigger()


def test_progress_says_how_far_reading_is_behind(worlds):
    world = worlds(2)
    world.produce(50, partitions=(0, 1))
    query = world.query(maxOffsetsPerTrigger=20)
    begin_batch(world, query)
    query.finish()
    assert query.trigger()
    assert query.member.progress() == {
        "ends": {"t": {"0": 50, "1": 50}},
        "lag": {"t": {"0": 40, "1": 40}},
        "totalLag": 80,
    }


# --- Trigger.AvailableNow and Trigger.Once ----------------------------------------------------------------------------


def test_available_now_reads_what_was_there_and_ends(worlds):
    world = worlds(2)
    world.produce(30, partitions=(0, 1))
    query = world.query(maxOffsetsPerTrigger=25)
    query.member.prepare_available_now()
    world.produce(30, partitions=(0, 1))
    assert query.run() == 3
    assert audit(grid(60, 2), query.sink()) == (set(), {})
    query.stop()
    assert world.committed() == {0: 30, 1: 30}


def test_available_now_leaves_partitions_that_came_later(worlds):
    world = worlds(1)
    world.produce(10)
    query = world.query()
    query.member.prepare_available_now()
    world.cluster.brokers.topics.grow("t", 2)
    world.produce(10, partitions=(1,))
    world.run(5_000)
    query.run()
    assert query.sink() == [(0, offset) for offset in range(10)]


def test_once_waits_for_a_rebalance_to_end_rather_than_end_the_query(worlds):
    world = worlds(2)
    world.produce(10, partitions=(0, 1))
    first = world.query(name="first", assignor="range")
    begin_batch(world, first)
    world.produce(10, partitions=(0, 1))
    world.clock.call_later(8_000, first.finish)
    second = world.query(name="second", assignor="range")
    second.member.prepare_available_now()
    assert second.run() == 1
    (mine,) = second.owned
    assert second.sink() == [(mine.partition, offset) for offset in range(10, 20)]


@pytest.mark.parametrize("wrong", ["leaderless", "group"])
def test_a_last_answer_that_cannot_be_given_is_an_error(worlds, wrong):
    """To say that there is nothing to read would end the query in good order, with records unread."""
    world = worlds(2)
    world.produce(10, partitions=(0, 1))
    query = world.query(join_timeout="20s")
    query.member.prepare_available_now()
    if wrong == "leaderless":
        world.leaderless.add(P1)
    else:
        world.cluster.brokers.coordinators.fail_appends(True)
    with pytest.raises(KafkaTimeoutError, match=r"join\.timeout"):
        query.run()
    world.leaderless.clear()
    world.cluster.brokers.coordinators.fail_appends(False)
    assert query.sink() == []


# --- leaders that are away --------------------------------------------------------------------------------------------


def test_a_leaderless_partition_holds_up_itself_only_and_goes_on_where_it_was(worlds, caplog):
    caplog.set_level(logging.INFO, "muster.spark")
    world = worlds(2)
    query = world.query()
    world.produce(10, partitions=(0, 1))
    read_all(world, 20, query)
    world.leaderless.add(P1)
    world.produce(10, partitions=(0, 1))
    took = world.until(lambda: len(query.sink()) >= 30, query.run)
    assert took < HELD_UP_MS + 2_000
    world.until(lambda: bool(told(caplog)), query.run)
    assert [text.split(". ")[0] for text in told(caplog)] == ["t-1 has no leader"]
    for _ in range(60):
        drive(world, query)
    assert len(told(caplog)) == 1
    assert {partition for partition, _ in query.sink()[20:]} == {0}
    world.leaderless.clear()
    read_all(world, 40, query)
    assert audit(grid(40, 2), query.sink()) == (set(), {})
    assert "t-1 can be read again" in told(caplog, logging.INFO)
    drive(world, query)
    assert world.committed() == {0: 20, 1: 20}


def test_a_query_begins_though_a_partition_has_no_leader(worlds):
    world = worlds(2)
    world.produce(10, partitions=(0, 1))
    world.leaderless.add(P1)
    query = world.query(mode="assign", groupId=None)
    took = world.until(lambda: len(query.sink()) == 10, query.run)
    assert took < 15_000
    world.leaderless.clear()
    read_all(world, 20, query)
    assert audit(grid(20, 2), query.sink()) == (set(), {})


def test_a_frozen_broker_is_waited_for_and_nothing_is_passed_over(worlds):
    world = worlds(2, nodes=2)
    world.produce(10, partitions=(0, 1))
    query = world.query(kafka_request_timeout_ms=3_000)
    read_all(world, 20, query)
    world.cluster.brokers.freeze(2)
    world.produce(10, partitions=(0, 1))
    read_all(world, 30, query)
    world.cluster.brokers.thaw(2)
    read_all(world, 40, query)
    assert audit(grid(40, 2), query.sink()) == (set(), {})


# --- topics -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("group", [True, False])
def test_partitions_that_are_added_are_read_from_their_start(worlds, group):
    how = {"startingOffsets": "latest"} | ({} if group else {"mode": "assign", "groupId": None})
    world = worlds(1)
    world.produce(10)
    query = world.query(**how)
    world.until(lambda: query.settled, query.run)
    query.run()
    world.cluster.brokers.topics.grow("t", 2)
    world.produce(10, partitions=(0, 1))
    read_all(world, 20, query)
    query.stop()
    world.cluster.brokers.topics.grow("t", 3)
    world.produce(10, partitions=(0, 1, 2))
    again = world.query(**how)
    read_all(world, 50, again)
    expected = {(0, offset) for offset in range(10, 30)} | {(1, n) for n in range(20)} | {(2, n) for n in range(10)}
    assert audit(expected, again.sink()) == (set(), {})


@pytest.mark.parametrize("running", [True, False])
@pytest.mark.parametrize("new", [3, 30])
def test_a_topic_created_again(worlds, caplog, running, new):
    world = worlds()
    world.produce(10)
    query = world.query(failOnDataLoss="false")
    read_all(world, 10, query)
    if not running:
        query.stop()
    world.remake("t")
    world.produce(new)
    if not running:
        query = world.query(failOnDataLoss="false")
    read_all(world, 10 + new, query)
    assert query.sink()[10:] == [(0, offset) for offset in range(new)]
    assert sum("was deleted and created again" in text for text in told(caplog)) == 1
    drive(world, query)
    assert world.committed() == {0: new}


@pytest.mark.parametrize("available_now", [True, False])
def test_a_topic_created_again_ends_a_query_and_changes_nothing(worlds, available_now):
    world = worlds()
    world.produce(10)
    query = world.query()
    read_all(world, 10, query)
    query.stop()
    before = query.log("offsets")
    world.remake("t")
    world.produce(30)
    for _ in range(2):
        query = world.query()
        if available_now:
            query.member.prepare_available_now()
        with pytest.raises(DataLossError, match="was deleted and created again"):
            world.until(lambda: False, query.trigger)
        query.stop()
    assert query.log("offsets") == before


def test_a_deleted_topic_holds_up_neither_others_nor_their_commits(worlds, caplog):
    world = worlds(t=1, u=1)
    world.produce(10)
    world.produce(10, "u")
    query = world.query("t,u")
    read_all(world, 20, query)
    world.produce(5, "u")
    begin_batch(world, query)
    world.cluster.brokers.delete_topic("u")
    world.run(3_000)
    query.finish()
    world.produce(10)
    read_all(world, 35, query)
    begun = world.clock.now
    query.run()
    assert world.clock.now - begun < COMMIT_WAIT_MS
    assert world.committed() == {0: 20}
    world.until(lambda: any("u does not exist" in text for text in told(caplog)), query.run)
    assert not any("could not be committed" in text for text in told(caplog))


def test_a_topic_that_does_not_exist_is_waited_for_so_long(worlds, caplog):
    world = worlds(t=1)
    query = world.query("t,u", kafka_metadata_max_age_ms=300_000)
    begun = world.clock.now
    with pytest.raises(KafkaError, match="topic u does not exist: create it") as raised:
        world.until(lambda: False, query.trigger)
    assert raised.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert MISSING_TOPIC_MS <= world.clock.now - begun < MISSING_TOPIC_MS + 2_000
    assert [text for text in told(caplog) if "u does not exist" in text] == [
        "topic u does not exist; it is waited for, for 10 s"
    ]


def test_a_topic_that_comes_in_time_is_read(worlds):
    world = worlds(t=1)
    query = world.query("t,u")
    world.clock.call_later(5_000, world.cluster.brokers.topics.grow, "u", 1)
    world.until(lambda: query.settled, query.run)
    world.produce(10, "u")
    read_all(world, 10, query)


def test_a_named_partition_has_to_exist(worlds):
    world = worlds(1)
    query = world.query(subscribe=None, groupId=None, assign='{"t":[0,7]}')
    with pytest.raises(ConfigError, match="assign names t-7, which does not exist"):
        world.until(lambda: False, query.trigger)


def test_a_pattern_finds_topics_and_those_that_come(worlds):
    world = worlds(t1=1, t2=1, other=1, t22=1)
    query = world.query(subscribe=None, subscribePattern="t.", mode="assign", groupId=None)
    for topic in ("t1", "t2", "t22", "other"):
        world.produce(5, topic)
    read_all(world, 10, query)
    world.cluster.brokers.topics.grow("t3", 1)
    world.produce(5, "t3")
    read_all(world, 15, query)
    assert [p.topic for p in query.owned] == ["t1", "t2", "t3"]


# --- where reading begins ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("group", [True, False])
@pytest.mark.parametrize(
    ("starting", "begins"),
    [
        ("earliest", [4, 4]),
        ("latest", [20, 20]),
        ('{"t":{"0":0,"1":7}}', [4, 7]),
        ('{"t":{"0":-1,"1":-2}}', [20, 4]),
        ('{"t":{"1":12}}', [4, 12]),
    ],
)
def test_where_a_query_begins(worlds, group, starting, begins):
    world = worlds(2)
    world.produce(20, partitions=(0, 1))
    for partition in (P0, P1):
        world.cluster.brokers.topics.logs[partition].delete_before(4)
    how = {} if group else {"mode": "assign", "groupId": None}
    query = world.query(startingOffsets=starting, failOnDataLoss="false", **how)
    world.until(lambda: query.settled and len(query.member._claims.positions()) == 2, query.run)
    world.produce(5, partitions=(0, 1))
    expected = {(n, offset) for n, begin in enumerate(begins) for offset in range(begin, 25)}
    read_all(world, len(expected), query)
    drive(world, query)
    assert audit(expected, query.sink()) == (set(), {})


def test_an_offset_of_zero_is_an_offset(worlds):
    world = worlds()
    world.produce(20)
    query = world.query(startingOffsets='{"t":{"0":0}}')
    read_all(world, 20, query)
    asked = [
        p.timestamp for r in query.sent if isinstance(r, ListOffsetsRequest) for t in r.topics for p in t.partitions
    ]
    assert set(asked) == {-1, -2}


def test_latest_stays_where_it_was_over_a_restart_before_the_first_record(worlds):
    for how in ({}, {"mode": "assign", "groupId": None}):
        world = worlds()
        world.produce(10)
        query = world.query(startingOffsets="latest", **how)
        world.until(lambda q=query: q.settled, query.run)
        query.run()
        query.stop()
        world.produce(5)
        again = world.query(startingOffsets="latest", **how)
        read_all(world, 5, again)
        assert again.sink() == [(0, offset) for offset in range(10, 15)]


# --- positions that mean nothing --------------------------------------------------------------------------------------


@pytest.mark.parametrize("fails", ["true", "false"])
@pytest.mark.parametrize("wrong", ["beyond", "truncated", "retention"])
def test_a_position_outside_of_the_log(worlds, caplog, fails, wrong):
    world = worlds()
    world.produce(10)
    world.produce(10)
    query = world.query(failOnDataLoss=fails)
    read_all(world, 20, query)
    query.stop()
    log = world.cluster.brokers.topics.logs[P0]
    if wrong == "truncated":
        world.cluster.brokers.truncate(P0, 10)
    elif wrong == "beyond":
        world.set_group({P0: 50})
    else:
        world.cluster.brokers.asked.unsure.add(P0)
        world.produce(20)
        log.delete_before(30)
    again = world.query(failOnDataLoss=fails)
    if fails == "true":
        before = world.committed()
        with pytest.raises(DataLossError, match=r"t-0 ends at|of t-0 are gone"):
            world.until(lambda: False, again.trigger)
        again.stop()
        assert (again.log("offsets"), world.committed()) == (query.log("offsets"), before)
        return
    read_all(world, 20 + log.log_end_offset - log.log_start_offset, again)
    assert again.sink()[20:] == [(0, offset) for offset in range(log.log_start_offset, log.log_end_offset)]
    assert len(told(caplog)) == 1
    drive(world, again)
    assert world.committed() == {0: log.log_end_offset}


# --- restarts ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("finished", [True, False])
@pytest.mark.parametrize("batches", [0, 1, 2])
def test_a_crash_reads_nothing_twice_into_the_sink(worlds, finished, batches):
    world = worlds(2)
    world.produce(30, partitions=(0, 1))
    query = world.query(maxOffsetsPerTrigger=15)
    begin_batch(world, query)
    for _ in range(batches):
        query.finish()
        assert query.trigger()
    before = query.sink()
    if finished:
        query.finish()
    query.crash()
    again = world.query(maxOffsetsPerTrigger=15)
    assert again.recover() != finished
    assert again.sink() == before
    if not finished:
        again.finish()
    read_all(world, 60, again)
    drive(world, again)
    assert audit(grid(60, 2), again.sink()) == (set(), {})
    assert world.committed() == {0: 30, 1: 30}


@pytest.mark.parametrize(
    ("resume", "offset", "note", "read_again"),
    [
        ("max", 5, "", 15),
        ("max", 15, "", 5),
        ("max", 30, "", 0),
        ("group", 15, "", 5),
        ("checkpoint", 15, "", 0),
        ("checkpoint", 5, "", 0),
    ],
)
def test_an_operator_sets_the_group_to_another_offset(worlds, resume, offset, note, read_again):
    world = worlds()
    world.produce(20)
    query = world.query(maxOffsetsPerTrigger=10, resume=resume)
    read_all(world, 20, query)
    query.stop()
    world.produce(20)
    world.set_group({P0: offset}, note)
    again = world.query(maxOffsetsPerTrigger=10, resume=resume)
    skipped = max(0, offset - 20) if resume != "checkpoint" else 0
    read_all(world, 40 - skipped + read_again, again)
    drive(world, again)
    missing, twice = audit(grid(40, 1), again.sink())
    assert (len(missing), len(twice)) == (skipped, read_again)
    assert world.committed() == {0: 40}


def test_a_trimmed_replay_reads_what_is_owned_and_not_committed(worlds):
    world = worlds(2)
    world.produce(20, partitions=(0, 1))
    query = world.query(replay="trim")
    begin_batch(world, query)
    query.stop()
    world.set_group({P0: 12})
    again = world.query(replay="trim")
    assert again.recover()
    assert sorted(again.sink()) == [(0, n) for n in range(12, 20)] + [(1, n) for n in range(20)]
    again.finish()
    assert again.run() == 0
    assert world.committed() == {0: 20, 1: 20}


def test_a_static_member_keeps_its_partitions_over_a_restart(worlds, tmp_path):
    world = worlds(2)
    world.produce(10, partitions=(0, 1))
    how = {"group_instance_id": "query"}
    query = world.query(**how)
    read_all(world, 20, query)
    generation = query.member._core.generation
    assert query.member._config.group_instance_id.startswith("spark-")
    query.stop()
    again = world.query(**how)
    world.produce(10, partitions=(0, 1))
    read_all(world, 40, again)
    assert again.member._core.generation == generation
    assert again.member._config.group_instance_id == query.member._config.group_instance_id


# --- rebalances -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("assignor", ["cooperative-sticky", "range"])
def test_two_queries_share_and_take_over(worlds, assignor):
    world = worlds(4)
    every = range(4)
    world.produce(10, partitions=every)
    first = world.query(name="first", assignor=assignor)
    read_all(world, 40, first)
    second = world.query(name="second", assignor=assignor)
    world.until(lambda: len(first.owned) == len(second.owned) == 2, first.run, second.run)
    world.produce(10, partitions=every)
    read_all(world, 80, first, second)
    assert second.sink()
    second.stop()
    world.produce(10, partitions=every)
    read_all(world, 120, first, second)
    assert audit(grid(120, 4), first.sink(), second.sink()) == (set(), {})
    drive(world, first)
    assert world.committed() == dict.fromkeys(every, 30)


@pytest.mark.parametrize("assignor", ["cooperative-sticky", "range"])
def test_a_running_batch_is_finished_and_committed_before_its_partitions_go(worlds, assignor):
    world = worlds(2)
    world.produce(10, partitions=(0, 1))
    first = world.query(name="first", assignor=assignor)
    begin_batch(world, first)
    second = world.query(name="second", assignor=assignor, join_timeout="1s")
    world.until(lambda: first.draining, second.trigger)
    for _ in range(20):
        assert not second.trigger()
        world.run(1_000)
    assert (len(first.owned), second.owned, first.settled) == (2, [], False)
    first.finish()
    world.until(lambda: len(second.owned) == 1, first.run, second.run)
    world.produce(10, partitions=(0, 1))
    read_all(world, 40, first, second)
    assert audit(grid(40, 2), first.sink(), second.sink()) == (set(), {})


def test_no_batch_begins_while_partitions_are_given_up(worlds):
    world = worlds(2)
    world.produce(10, partitions=(0, 1))
    first = world.query(name="first")
    begin_batch(world, first)
    second = world.query(name="second")
    world.until(lambda: first.draining, second.trigger)
    world.produce(10, partitions=(0, 1))
    end = first.offset(0)
    world.cluster.brokers.coordinators.fail_appends(True)  # so that the drain does not end at once
    first.finish()
    assert not first.trigger()
    assert first.offset(0) is not end
    world.cluster.brokers.coordinators.fail_appends(False)
    read_all(world, 40, first, second)
    assert audit(grid(40, 2), first.sink(), second.sink()) == (set(), {})


def test_a_drain_looks_into_sparks_commit_log(worlds):
    """Spark's trigger interval is an hour, and its word does not arrive: the other member is not to wait for it."""
    world = worlds(2)
    world.produce(10, partitions=(0, 1))
    first = world.query(name="first")
    begin_batch(world, first)
    second = world.query(name="second")
    world.until(lambda: first.draining, second.trigger)
    first.finish()
    took = world.until(lambda: len(second.owned) == 1, every_ms=10)
    assert took <= CHECKPOINT_EVERY_MS + 1_000


@pytest.mark.parametrize(
    ("drain", "poll_ms", "gives_up_after"),
    [("3s", 300_000, 3_000), ("60s", 20_000, 20_000 - DRAIN_MARGIN_MS), ("60s", 8_000, 4_000)],
)
def test_a_drain_ends_at_its_deadline_and_before_the_broker_gives_the_member_up(
    worlds, caplog, drain, poll_ms, gives_up_after
):
    world = worlds(2)
    world.produce(10, partitions=(0, 1))
    first = world.query(name="first", drain_timeout=drain, kafka_max_poll_interval_ms=poll_ms)
    begin_batch(world, first)
    generation = first.member._core.generation
    other = world.consumer(max_poll_interval_ms=poll_ms)
    world.until(lambda: first.draining, every_ms=10)
    took = world.until(lambda: not first.draining, every_ms=10)
    assert gives_up_after <= took < gives_up_after + 500
    assert any("while a batch still reads them" in text for text in told(caplog))
    world.until(lambda: len(other.held) == 1)
    assert first.member._core.generation > generation >= 0
    assert len(first.owned) == 1
    (lost,) = other.held
    first.finish()
    world.until(lambda: world.cluster.lag() == 0, first.run)
    missing, twice = audit(grid(20, 2), first.sink(), [(lost.partition, n) for n in range(10)])
    assert (missing, len(twice)) == (set(), 10)


def test_what_is_lost_in_a_batch_is_not_committed_over_its_next_owner(worlds):
    """The member's network is cut: it is expelled, another reads on and commits; then it hears of it."""
    world = worlds(2)
    world.produce(10, partitions=(0, 1))
    first = world.query(name="first")
    begin_batch(world, first)
    world.cluster.network.cut("first", 1)
    other = world.consumer()
    world.until(lambda: len(other.held) == 2)
    world.until(lambda: world.cluster.lag() == 0)
    world.produce(10, partitions=(0, 1))
    world.until(lambda: world.cluster.lag() == 0)
    first.finish()
    world.cluster.network.heal("first")
    world.until(lambda: len(other.held) == 1 and len(first.owned) == 1, first.run)
    drive(world, first)
    assert world.committed() == {0: 20, 1: 20}
    world.produce(5, partitions=(0, 1))
    world.until(lambda: world.cluster.lag() == 0, first.run)
    (mine,) = first.owned
    assert [pair for pair in first.sink() if pair[1] >= 10] == [(mine.partition, offset) for offset in range(20, 25)]


def test_what_is_lost_in_a_drain_is_not_answered_for(worlds):
    """The member drains, and is cut off until the group has expelled it: the revocation is not there to be answered."""
    world = worlds(2)
    world.produce(10, partitions=(0, 1))
    first = world.query(name="first", kafka_max_poll_interval_ms=20_000, drain_timeout="14s")
    begin_batch(world, first)
    other = world.consumer(max_poll_interval_ms=20_000)
    world.until(lambda: first.draining, every_ms=10)
    world.cluster.network.cut("first", 1)
    world.until(lambda: len(other.held) == 2)
    world.cluster.network.heal("first")
    world.until(lambda: not first.draining)
    first.finish()
    world.until(lambda: len(other.held) == 1 and len(first.owned) == 1 and first.settled, first.run)
    assert first.member._loop.error is None
    world.produce(10, partitions=(0, 1))
    world.until(lambda: world.cluster.lag() == 0, first.run)


def test_a_partition_that_comes_back_is_committed_under_its_new_ownership(worlds):
    world = worlds(2)
    first = world.query(name="first")
    world.produce(10, partitions=(0, 1))
    read_all(world, 20, first)
    for _ in range(3):
        second = world.query(name="second")
        world.until(lambda s=second: len(first.owned) == len(s.owned) == 1, first.run, second.run)
        second.stop()
        world.until(lambda: len(first.owned) == 2 and first.settled, first.run)
        world.produce(5, partitions=(0, 1))
        world.until(lambda: world.cluster.lag() == 0, first.run)
    assert audit(grid(50, 2), first.sink(), second.sink()) == (set(), {})


def test_a_member_without_partitions_is_idle_and_takes_over(worlds):
    world = worlds(1)
    first = world.query(name="first")
    world.produce(10)
    read_all(world, 10, first)
    second = world.query(name="second")
    world.until(lambda: second.settled, first.run, second.run)
    assert second.owned == []
    first.stop()
    world.produce(10)
    read_all(world, 20, first, second)
    assert audit(grid(20, 1), first.sink(), second.sink()) == (set(), {})


# --- commits that fail ------------------------------------------------------------------------------------------------


def test_commits_that_fail_are_told_once_hold_up_nobody_and_are_made_when_they_can_be(worlds, caplog):
    caplog.set_level(logging.INFO, "muster.spark")
    world = worlds()
    other = world.consumer()
    world.until(lambda: len(other.held) == 1)
    query = world.query(mode="assign", maxOffsetsPerTrigger=1)
    world.until(lambda: query.settled, query.run)
    world.produce(10)
    begun = world.clock.now
    read_all(world, 10, query)
    assert world.clock.now - begun < 10 * COMMIT_WAIT_MS
    for _ in range(20):
        drive(world, query)
    assert sum("could not be committed" in text for text in told(caplog)) == 1
    assert query.count(OffsetCommitRequest) < 25  # a little later each time
    other.close()
    world.until(lambda: not world.cluster.alive)
    world.until(lambda: query.member._core.all_committed, query.run)
    assert "offsets of group group are committed again" in told(caplog, logging.INFO)
    world.produce(1)
    read_all(world, 11, query)
    drive(world, query)
    assert world.committed() == {0: 11}


def test_without_a_group_nothing_is_committed_and_the_checkpoint_knows(worlds):
    world = worlds(2)
    world.produce(10, partitions=(0, 1))
    how = {"mode": "assign", "groupId": None, "maxOffsetsPerTrigger": 7}
    query = world.query(**how)
    begin_batch(world, query)
    query.finish()
    assert query.trigger()
    query.finish()
    query.crash()
    again = world.query(**how)
    read_all(world, 20, again)
    assert audit(grid(20, 2), again.sink()) == (set(), {})
    assert query.count(OffsetCommitRequest) == again.count(OffsetCommitRequest) == 0
    assert again.count(OffsetFetchRequest) == 0
    assert world.committed() == {0: -1, 1: -1}
