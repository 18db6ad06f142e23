"""The member as Spark calls it: leaders that are unavailable, topics that are deleted and created, where reading begins
and continues."""

from __future__ import annotations

import logging

import pytest

from muster.client.plain.fetch import DataLossError
from muster.errors import ConfigError, ErrorCode, KafkaError
from muster.model import TopicPartition
from muster.protocol.messages import ListOffsetsRequest, OffsetCommitRequest, OffsetFetchRequest
from muster.spark.source.bounds import HELD_UP_MS
from muster.spark.source.member import COMMIT_WAIT_MS
from muster.spark.source.query_core import MISSING_TOPIC_MS
from tests.support.queries import audit, grid
from tests.support.spark_world import begin_batch, drive, read_all, reported

P0, P1, P2 = (TopicPartition("t", number) for number in range(3))


# --- leaders that are unavailable
# --------------------------------------------------------------------------------------------


def test_a_leaderless_partition_holds_up_itself_only_and_continues_where_it_was(worlds, caplog):
    caplog.set_level(logging.INFO, "muster.spark")
    world = worlds(2)
    query = world.query()
    world.produce(10, partitions=(0, 1))
    read_all(world, 20, query)
    world.leaderless.add(P1)
    world.produce(10, partitions=(0, 1))
    took = world.until(lambda: len(query.sink()) >= 30, query.run)
    assert took < HELD_UP_MS + 2_000
    world.until(lambda: bool(reported(caplog)), query.run)
    assert [text.split(". ")[0] for text in reported(caplog)] == ["t-1 has no leader"]
    for _ in range(60):
        drive(world, query)
    assert len(reported(caplog)) == 1
    assert {partition for partition, _ in query.sink()[20:]} == {0}
    world.leaderless.clear()
    read_all(world, 40, query)
    assert audit(grid(40, 2), query.sink()) == (set(), {})
    assert "t-1 can be read again" in reported(caplog, logging.INFO)
    drive(world, query)
    assert world.committed() == {0: 20, 1: 20}


def test_a_query_begins_though_a_partition_has_no_leader(worlds):
    world = worlds(2, records=10)
    world.leaderless.add(P1)
    query = world.query(mode="assign", groupId=None)
    took = world.until(lambda: len(query.sink()) == 10, query.run)
    assert took < 15_000
    world.leaderless.clear()
    read_all(world, 20, query)
    assert audit(grid(20, 2), query.sink()) == (set(), {})


def test_a_frozen_broker_is_waited_for_and_nothing_is_skipped(worlds):
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
    world = worlds(1, records=10)
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
    world = worlds(records=10)
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
    assert sum("was deleted and recreated" in text for text in reported(caplog)) == 1
    drive(world, query)
    assert world.committed() == {0: new}


@pytest.mark.parametrize("name", ["q", "another"])
@pytest.mark.parametrize("by_name", [True, False])
def test_a_position_committed_in_the_former_topic_hides_nothing_of_the_new_one(worlds, name, by_name):
    """The query finishes a batch, and is killed, before it has noticed. Brokers accept its commit if it uses names."""
    world = worlds(versions={OffsetCommitRequest: 9, OffsetFetchRequest: 9} if by_name else None)
    world.produce(10)
    query = world.query(kafka_metadata_max_age_ms=300_000, failOnDataLoss="false")
    begin_batch(world, query)
    world.remake("t")
    world.produce(30)
    query.finish()
    query.member.finished(query.offset(0))
    assert world.committed() == ({0: 10} if by_name else {0: -1})
    query.crash()
    again = world.query(name=name, failOnDataLoss="false")
    read_all(world, 30 if name == "another" else 40, again)
    assert again.sink()[-30:] == [(0, offset) for offset in range(30)]


@pytest.mark.parametrize("available_now", [True, False])
def test_a_topic_created_again_ends_a_query_and_changes_nothing(worlds, available_now):
    world = worlds(records=10)
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
        with pytest.raises(DataLossError, match="was deleted and recreated") as lost:
            world.until(lambda: False, query.trigger)
        assert str(lost.value).endswith("Set failOnDataLoss to false to continue without what is gone")
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
    world.until(lambda: any("u does not exist" in text for text in reported(caplog)), query.run)
    assert not any("could not commit offsets" in text for text in reported(caplog))


def test_a_topic_that_does_not_exist_is_waited_for_so_long(worlds, caplog):
    world = worlds(t=1)
    query = world.query("t,u", kafka_metadata_max_age_ms=300_000)
    begun = world.clock.now
    with pytest.raises(KafkaError, match="topic u does not exist: create it") as raised:
        world.until(lambda: False, query.trigger)
    assert raised.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert MISSING_TOPIC_MS <= world.clock.now - begun < MISSING_TOPIC_MS + 2_000
    assert [text for text in reported(caplog) if "u does not exist" in text] == [
        "topic u does not exist; waiting for it for 10 s"
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
    world = worlds(2, records=20)
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
    world = worlds(records=20)
    query = world.query(startingOffsets='{"t":{"0":0}}')
    read_all(world, 20, query)
    asked = [
        p.timestamp for r in query.sent if isinstance(r, ListOffsetsRequest) for t in r.topics for p in t.partitions
    ]
    assert set(asked) == {-1, -2}


def test_latest_stays_where_it_was_over_a_restart_before_the_first_record(worlds):
    for how in ({}, {"mode": "assign", "groupId": None}):
        world = worlds(records=10)
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
    world = worlds(records=10)
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
        with pytest.raises(DataLossError, match=r"t-0 ends at|of t-0 are gone") as lost:
            world.until(lambda: False, again.trigger)
        assert ("lengthen the topic's retention" in str(lost.value)) == (wrong not in ("truncated", "beyond"))
        again.stop()
        assert (again.log("offsets"), world.committed()) == (query.log("offsets"), before)
        return
    read_all(world, 20 + log.log_end_offset - log.log_start_offset, again)
    assert again.sink()[20:] == [(0, offset) for offset in range(log.log_start_offset, log.log_end_offset)]
    assert len(reported(caplog)) == 1
    drive(world, again)
    assert world.committed() == {0: log.log_end_offset}
