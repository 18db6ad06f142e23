"""The member as Spark calls it, in virtual time: what a batch reads, when it is committed, and triggers that end."""

from __future__ import annotations

import logging

import pytest

from muster.errors import KafkaTimeoutError
from muster.model import TopicPartition
from muster.protocol.messages import ListOffsetsRequest, OffsetCommitRequest, OffsetFetchRequest
from muster.spark.offsets import from_json
from muster.spark.progress.batch_done import notify
from muster.spark.source.member import COMMIT_WAIT_MS
from tests.support.queries import audit, grid
from tests.support.spark_world import begin_batch, drive, read_all, reported

P0, P1, P2 = (TopicPartition("t", number) for number in range(3))


# --- batches and commits ----------------------------------------------------------------------------------------------


def test_a_batch_is_committed_when_spark_asks_for_the_next(worlds):
    world = worlds(2, records=50)
    query = world.query(maxOffsetsPerTrigger=70)
    begin_batch(world, query)
    world.run(20_000)
    assert world.committed() == {0: 0, 1: 0}  # its start, with its name
    query.finish()
    assert query.trigger()
    assert world.committed() == {0: 35, 1: 35}
    query.finish()
    assert query.run() == 0
    assert world.committed() == {0: 50, 1: 50}
    assert audit(grid(100, 2), query.sink()) == (set(), {})


def test_the_last_batch_that_the_group_has_acknowledged_is_reported(worlds):
    world = worlds(2, records=50)
    query = world.query(maxOffsetsPerTrigger=30)

    def committed():
        return query.member.group_progress().get("committedBatch")

    begin_batch(world, query)
    assert committed() is None
    query.finish()
    assert query.trigger()
    assert committed() == 1
    query.crash()
    again = world.query(maxOffsetsPerTrigger=30)
    assert again.recover()  # batch 2
    again.finish()
    assert again.member.group_progress().get("committedBatch") is None
    world.until(lambda: again.running == 2, again.trigger)
    assert again.member.group_progress()["committedBatch"] == 2


@pytest.mark.parametrize("how", ["commit", "word", "stop", "checkpoint"])
def test_the_last_batch_is_committed_however_its_end_is_noticed(worlds, how):
    world = worlds(records=10)
    query = world.query()
    begin_batch(world, query)
    end = query.offset(0)
    query.finish()
    if how == "commit":
        query.member.finished(end)
        assert world.committed() == {0: 10}  # before the call returns
    elif how == "word":
        assert notify(end)
        world.run(100)
        assert world.committed() == {0: 10}
    query.stop()
    assert world.committed() == {0: 10}


def test_a_batch_that_is_not_done_is_committed_by_nothing(worlds):
    world = worlds(records=30)
    query = world.query(maxOffsetsPerTrigger=10)
    begin_batch(world, query)
    first = query.offset(0)
    query.finish()
    assert query.trigger()
    query.member.finished(first)
    assert notify(first)
    world.run(1_000)
    query.stop()
    assert world.committed() == {0: 10}
    query.stop()  # twice


def test_a_query_that_ends_in_a_batch_does_not_wait_for_its_word_for_long(worlds):
    world = worlds(records=10)
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


def test_the_next_batch_waits_for_the_commit_of_the_last_but_not_forever(worlds):
    """Otherwise a crash right after it would leave a batch in doubt that another member reads again."""
    world = worlds(records=30)
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
    world = worlds(records=10)
    query = world.query()
    read_all(world, 10, query)
    assert [len(group.members) for group in world.cluster.describe()] == [1]
    query.stop()
    assert [len(group.members) for group in world.cluster.describe()] == [0]


def test_claims_that_spark_did_not_take_up_are_made_again(worlds):
    world = worlds(records=10)
    query = world.query(mode="assign")
    start = query.offset(-1)
    first = query.member.latest(start, None)
    world.produce(5)
    world.run(1_000)
    second = query.member.latest(start, None)
    assert [from_json(end).claims[P0].end for end in (first, second)] == [10, 15]
    assert query.member.planned(second) == {P0: (0, 15)}


def test_the_limit_is_shared_and_every_partition_comes_by_turns(worlds):
    world = worlds(3, records=3)
    query = world.query(maxOffsetsPerTrigger=1)
    begin_batch(world, query)
    query.finish()
    while query.trigger():
        query.finish()
    sizes = [sum(end - start for start, end in query.claims(batch).values()) for batch in query.log("commits")]
    assert sizes == [1] * 9
    assert {next(iter(query.claims(batch))) for batch in range(3)} == {0, 1, 2}


def test_ends_are_asked_for_at_a_trigger_and_not_at_each_of_a_burst(worlds):
    world = worlds(records=10)
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
    world = worlds(2, records=50)
    query = world.query(maxOffsetsPerTrigger=20)
    begin_batch(world, query)
    query.finish()
    assert query.trigger()
    assert query.member.unread() == {P0: (10, 50), P1: (10, 50)}
    first = query.member.group_progress()
    known = {"group": world.group, "rebalances": 0, "committedBatch": 1}
    assert first == known | {"generation": first["generation"]}
    query.finish()
    other = world.consumer()
    world.until(lambda: len(other.held) == 1, query.run)
    assert query.member.group_progress()["rebalances"] >= 1
    assert world.query(name="alone", mode="assign", groupId=None).member.group_progress() == {}


# --- Trigger.AvailableNow and Trigger.Once ----------------------------------------------------------------------------


def test_available_now_reads_what_was_there_and_ends(worlds):
    world = worlds(2, records=30)
    query = world.query(maxOffsetsPerTrigger=25)
    query.member.prepare_available_now()
    world.produce(30, partitions=(0, 1))
    assert query.run() == 3
    assert audit(grid(60, 2), query.sink()) == (set(), {})
    query.stop()
    assert world.committed() == {0: 30, 1: 30}


def test_available_now_leaves_partitions_that_came_later(worlds):
    world = worlds(1, records=10)
    query = world.query()
    query.member.prepare_available_now()
    world.cluster.brokers.topics.grow("t", 2)
    world.produce(10, partitions=(1,))
    world.run(5_000)
    query.run()
    assert query.sink() == [(0, offset) for offset in range(10)]


def test_once_waits_for_a_rebalance_to_end_rather_than_end_the_query(worlds):
    world = worlds(2, records=10)
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
    """Reporting that there is nothing to read would end the query without an error, with records unread."""
    world = worlds(2, records=10)
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


# --- commits that fail ------------------------------------------------------------------------------------------------


def test_commits_that_fail_are_reported_once_hold_up_nobody_and_are_made_when_they_can_be(worlds, caplog):
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
    assert sum("could not commit offsets" in text for text in reported(caplog)) == 1
    assert query.count(OffsetCommitRequest) < 25  # with increasing intervals
    assert "committedBatch" not in query.member.group_progress()
    other.close()
    world.until(lambda: not world.cluster.alive)
    world.until(lambda: query.member._core.all_committed, query.run)
    assert "offsets of group group are being committed again" in reported(caplog, logging.INFO)
    world.produce(1)
    read_all(world, 11, query)
    drive(world, query)
    assert world.committed() == {0: 11}
    assert query.member.group_progress()["committedBatch"] == 11


def test_without_a_group_nothing_is_committed_and_the_checkpoint_knows(worlds):
    world = worlds(2, records=10)
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
