"""The member as Spark calls it: restarts, other members, and partitions that are given up or lost."""

from __future__ import annotations

import pytest

from muster.client.core.group.member_state import MemberState
from muster.model import TopicPartition
from muster.spark.source.member import CHECKPOINT_EVERY_MS, LAST_COMMIT_MS
from muster.spark.source.query_core import DRAIN_MARGIN_MS
from tests.support.queries import audit, grid
from tests.support.spark_world import SparkWorld, begin_batch, drive, read_all, reported

P0, P1, P2 = (TopicPartition("t", number) for number in range(3))


# --- restarts ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("finished", [True, False])
@pytest.mark.parametrize("batches", [0, 1, 2])
def test_a_crash_reads_nothing_twice_into_the_sink(worlds, finished, batches):
    world = worlds(2, records=30)
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
    world = worlds(records=20)
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
    world = worlds(2, records=20)
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
    world = worlds(2, records=10)
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


@pytest.mark.parametrize(
    ("assignor", "server_assigned"), [("cooperative-sticky", None), ("range", None), ("range", ".*")]
)
def test_two_queries_share_and_take_over(worlds, monkeypatch, assignor, server_assigned):
    monkeypatch.setattr(SparkWorld, "server_assigned_groups", server_assigned)
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
    world = worlds(2, records=10)
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


@pytest.mark.parametrize("state", [MemberState.PREPARING_REBALANCE, MemberState.COMPLETING_REBALANCE])
def test_a_query_that_is_stopped_in_a_rebalance_commits_what_is_done_after_it(worlds, state):
    """Its commit is refused while the member rejoins: without another attempt, the batch would be read again."""
    world = worlds(records=10)
    first = world.query(name="first")
    begin_batch(world, first)
    first.finish()  # the commit log knows; the member learns of it when it is stopped
    second = world.consumer()
    world.until(lambda: first.member._core.consumer.member_state is state, every_ms=1)
    assert world.committed() == {0: 0}
    first.stop()
    assert world.committed() == {0: 10}
    world.until(lambda: len(second.held) == 1)
    world.produce(5)
    world.until(lambda: world.cluster.lag() == 0)


def test_a_query_that_is_stopped_does_not_wait_for_a_commit_that_does_not_come(worlds):
    world = worlds(records=10)
    first = world.query(name="first")
    begin_batch(world, first)
    world.cluster.brokers.coordinators.fail_appends(True)
    first.finish()
    began = first.member._now()
    first.stop()
    assert first.member._now() - began < LAST_COMMIT_MS
    assert world.committed() == {0: 0}


def test_no_batch_begins_while_partitions_are_given_up(worlds):
    world = worlds(2, records=10)
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
    """Spark's trigger interval is an hour, and its message does not arrive: the other member should not have to wait
    for it."""
    world = worlds(2, records=10)
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
    world = worlds(2, records=10)
    first = world.query(name="first", drain_timeout=drain, kafka_max_poll_interval_ms=poll_ms)
    begin_batch(world, first)
    generation = first.member._core.generation
    other = world.consumer(max_poll_interval_ms=poll_ms)
    world.until(lambda: first.draining, every_ms=10)
    took = world.until(lambda: not first.draining, every_ms=10)
    assert gives_up_after <= took < gives_up_after + 500
    assert any("while a batch still reads them" in text for text in reported(caplog))
    world.until(lambda: len(other.held) == 1)
    assert first.member._core.generation > generation >= 0
    assert len(first.owned) == 1
    (lost,) = other.held
    first.finish()
    world.until(lambda: world.cluster.lag() == 0, first.run)
    missing, twice = audit(grid(20, 2), first.sink(), [(lost.partition, n) for n in range(10)])
    assert (missing, len(twice)) == (set(), 10)


def test_what_is_lost_in_a_batch_is_not_committed_over_its_next_owner(worlds):
    """The member's network is cut: it is expelled, another continues reading and commits; then it learns of it."""
    world = worlds(2, records=10)
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
    """The member drains, and is cut off until the group has expelled it: there is no revocation left to answer."""
    world = worlds(2, records=10)
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
