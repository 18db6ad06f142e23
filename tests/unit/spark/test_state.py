"""Queries that keep state, in a group and with fixed shares: what is refused, as rules and in virtual time."""

from __future__ import annotations

import re

import pytest

from muster.errors import ConfigError
from muster.model import TopicPartition
from muster.spark.offsets import ALL, Share
from muster.spark.source.member import GOODBYE_MS
from muster.spark.source.options import parse_options
from muster.spark.source.state import MISSING_MS, QueryState, StateError
from tests.support.queries import audit, grid
from tests.support.spark_world import begin_batch, drive, read_all, reported

P0, P1, P2 = (TopicPartition("t", number) for number in range(3))


def never(_topic):
    return False


# --- the rules --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("happens", "says"),
    [
        (lambda kept: kept.assigned([P0, P1], never, 0), None),
        (lambda kept: kept.assigned([P0, P1, P2], never, 0), None),
        (lambda kept: kept.assigned([P0], never, 0), "t-1 now belongs to another member"),
        (lambda kept: kept.assigned([], never, 0), r"t-0 \(and 1 more\) now belongs to another member"),
        (lambda kept: kept.assigned([P0], lambda topic: topic == "t", 0), None),
        (lambda kept: kept.committed(P0, True), None),
        (lambda kept: kept.committed(P2, True), None),
        (lambda kept: kept.committed(P0, False), "t-0 was committed by another client since"),
        (lambda kept: kept.committed(P2, False), "t-2 was read by another member of the group before"),
        (lambda kept: kept.uncommitted(P0), "t-0 no longer has a committed offset"),
        (lambda kept: kept.uncommitted(P2), None),
    ],
)
def test_what_does_not_fit_the_state(happens, says):
    kept = QueryState()
    kept.read([P0, P1])
    happens(kept)
    assert kept.take_broken(MISSING_MS) is None  # as long as the query is not known to keep state
    kept.known = True
    broken = kept.take_broken(MISSING_MS)
    assert (broken is None) == (says is None)
    assert says is None or re.search(says, broken or "")
    assert kept.take_broken(MISSING_MS) is None


def test_a_partition_may_be_missing_for_as_long_as_a_former_process_takes_to_leave():
    assert MISSING_MS > GOODBYE_MS
    kept = QueryState()
    kept.known = True
    kept.read([P0, P1])
    kept.assigned([], never, 1_000)
    kept.assigned([P0], never, 5_000)
    assert kept.take_broken(MISSING_MS + 999) is None
    kept.assigned([P0, P1], never, MISSING_MS + 999)
    assert kept.take_broken(MISSING_MS * 9) is None
    kept.assigned([P0], never, 200_000)
    assert kept.take_broken(200_000 + MISSING_MS - 1) is None
    assert "t-1 now belongs to another member" in (kept.take_broken(200_000 + MISSING_MS) or "")


def test_before_the_first_batch_everything_fits():
    kept = QueryState()
    kept.known = True
    kept.assigned([], never, 0)
    kept.committed(P0, False)
    assert kept.take_broken(MISSING_MS) is None
    assert kept.with_batch([P1, P0]) == (P0, P1)


# --- shares -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shares", [1, 2, 3, 7])
def test_each_partition_is_in_one_share_whatever_is_added(shares):
    partitions = [TopicPartition(topic, number) for topic in ("t", "u") for number in range(5)]
    parts = [Share(number, shares).of(partitions) for number in range(shares)]
    assert sorted(partition for part in parts for partition in part) == sorted(partitions)
    assert all(
        {p.partition for p in part if p.topic == "t"} == {p.partition for p in part if p.topic == "u"} for part in parts
    )


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"share": "2/2"}, "the last is 2/3"),
        ({"share": "0/0"}, "must look like 0/3"),
        ({"share": "-1/2"}, "must look like 0/3"),
        ({"share": "half"}, "must look like 0/3"),
        ({"share": "0/2", "mode": "group", "groupId": "g"}, "a group assigns partitions itself"),
        ({"share": "0/2", "assign": '{"t":[0]}', "subscribe": None}, "share and assign cannot be combined"),
    ],
)
def test_shares_that_are_refused(given, says):
    options = {"bootstrap": "a:1", "subscribe": "t"} | given
    with pytest.raises(ConfigError, match=says):
        parse_options({name: value for name, value in options.items() if value is not None}, streaming=True)


def test_a_share_is_read_without_joining_a_group():
    options = parse_options({"bootstrap": "a:1", "subscribe": "t", "groupId": "g", "share": " 1 / 3 "}, streaming=True)
    assert (options.share, options.grouped, options.commits) == (Share(1, 3), False, True)
    assert parse_options({"bootstrap": "a:1", "subscribe": "t"}, streaming=False).share == ALL


def test_two_shares_read_everything_once_and_commit_to_one_group(worlds):
    world = worlds(3, records=40)
    queries = [world.query(name=f"q{number}", share=f"{number}/2") for number in range(2)]
    read_all(world, 120, *queries)
    assert audit(grid(120, 3), [read for query in queries for read in query.sink()]) == (set(), {})
    assert {partition for partition, _ in queries[1].sink()} == {1}
    assert world.committed() == {0: 40, 1: 40, 2: 40}
    world.cluster.brokers.topics.grow("t", 4)
    world.produce(10, partitions=(3,))
    read_all(world, 130, *queries)
    assert {partition for partition, _ in queries[1].sink()} == {1, 3}
    queries[1].crash()
    world.produce(5, partitions=(1, 3))
    again = world.query(name="q1", share="1/2")
    again.recover() and again.finish()
    read_all(world, 140, queries[0], again)
    assert audit(
        {*grid(120, 3), *((3, n) for n in range(15)), (1, 40), (1, 41), (1, 42), (1, 43), (1, 44)},
        [*queries[0].sink(), *again.sink()],
    ) == (set(), {})


@pytest.mark.parametrize("share", [None, "0/3", "1/2"])
def test_a_checkpoint_keeps_its_share(worlds, share):
    world = worlds(2, records=10)
    query = world.query(share="0/2")
    read_all(world, 10, query)
    query.stop()
    with pytest.raises(ConfigError, match=r"belongs to share 0/2 of the partitions, not to share .*checkpointLocation"):
        world.query(share=share, mode="assign").trigger()


# --- state in a group -------------------------------------------------------------------------------------------------


def with_state(world, **options):
    """A query that has read its first batch, and keeps state."""
    world.produce(10, partitions=(0, 1))
    query = world.query(**options)
    (query.folder / "state").mkdir(exist_ok=True)
    query.member._claims.state.known = query.member._checkpoint.has_state()
    read_all(world, 20, query)
    return query


def ends(world, query):
    with pytest.raises(StateError) as caught:
        world.until(lambda: False, lambda: drive(world, query))
    return str(caught.value)


def test_alone_in_its_group_a_query_with_state_goes_through_everything(worlds):
    world = worlds(2)
    query = with_state(world)
    world.produce(10, partitions=(0, 1))
    read_all(world, 40, query)
    query.stop()
    query = world.query()
    world.cluster.brokers.topics.grow("t", 3)
    world.produce(10, partitions=(0, 1, 2))
    read_all(world, 70, query)
    query.crash()
    query = world.query()
    query.recover() and query.finish()
    world.produce(10, partitions=(0, 1, 2))
    read_all(world, 100, query)
    assert audit(grid(20, 2), [read for read in query.sink() if read[0] < 2 and read[1] < 10]) == (set(), {})
    assert len(query.sink()) == len(set(query.sink())) == 100


def test_another_member_that_joins_ends_a_query_with_state(worlds):
    world = worlds(2)
    query = with_state(world)
    world.consumer()
    message = ends(world, query)
    assert "now belongs to another member of the group" in message
    assert "share" in message


def test_a_query_without_state_continues_alongside_another_member(worlds):
    world = worlds(2, records=10)
    query = world.query()
    read_all(world, 20, query)
    world.consumer()
    for _ in range(30):
        drive(world, query)


def test_what_another_member_read_meanwhile_is_in_no_state(worlds):
    world = worlds(2)
    query = with_state(world)
    query.stop()
    world.produce(10, partitions=(0, 1))
    other = world.consumer()
    world.until(lambda: world.committed() == {0: 20, 1: 20})
    other.close()
    world.run(1_000)
    for _ in range(2):
        query = world.query()
        assert "was committed by another client since the query read it" in ends(world, query)
        query.stop()
        assert world.committed() == {0: 20, 1: 20}


@pytest.mark.parametrize("how", [{}, {"mode": "assign"}, {"share": "0/1"}])
def test_an_operator_that_sets_the_group_back_ends_a_query_with_state(worlds, how):
    world = worlds(2)
    query = with_state(world, **how)
    query.stop()
    world.run(1_000)
    world.set_group({P0: 3})
    for _ in range(2):  # a supervisor starts it again
        query = world.query(**how)
        assert "t-0 was committed by another client" in ends(world, query)
        query.stop()
        world.run(1_000)
        assert world.committed() == {0: 3, 1: 10}


def test_a_reset_is_noticed_by_a_query_that_reads_what_is_there_and_ends(worlds):
    world = worlds(2)
    query = with_state(world, share="0/1")
    query.stop()
    world.set_group({P0: 3})
    query = world.query(share="0/1")
    query.member.prepare_available_now()
    world.run(5_000)
    assert "t-0 was committed by another client" in ends(world, query)


def test_offsets_that_are_gone_end_a_query_with_state(worlds):
    world = worlds(2)
    query = with_state(world)
    world.produce(10, partitions=(1,))
    read_all(world, 30, query)
    query.stop()
    world.delete_group()
    assert "t-0 no longer has a committed offset" in ends(world, world.query())


def test_the_query_s_own_former_process_is_not_another_member(worlds):
    """It is stopped in the middle of a batch, and started again before the stopped process has left the group."""
    world = worlds(2)
    query = with_state(world)
    world.produce(10, partitions=(0, 1))
    begin_batch(world, query)
    again = world.query()
    again.recover()
    again.finish()
    world.run(1_000)
    query.stop()
    read_all(world, 40, again)
    for _ in range(20):
        drive(world, again)
    assert len(again.sink()) == 40


def test_without_fail_on_data_loss_it_is_a_warning(worlds, caplog):
    world = worlds(2)
    query = with_state(world, failOnDataLoss="false")
    query.stop()
    world.run(1_000)
    world.set_group({P0: 3})
    query = world.query(failOnDataLoss="false")
    read_all(world, 27, query)
    assert any(
        "t-0 was committed by another client" in line and "Reading continues" in line for line in reported(caplog)
    )


def test_state_is_known_from_the_word_and_stays_known_by_the_offsets(worlds):
    """A checkpoint on another machine cannot be read: Spark's driver reports the state, and the query's offsets record
    it."""
    world = worlds(2, records=10)
    query = world.query()
    begin_batch(world, query)
    query.member._on_batch_done("", True)
    query.finish()
    world.produce(10, partitions=(0, 1))
    read_all(world, 40, query)
    query.stop()
    again = world.query()
    again.trigger()
    assert again.member._claims.state.known
    world.consumer()
    assert "now belongs to another member" in ends(world, again)
