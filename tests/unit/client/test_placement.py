"""How records get their partitions, and what waits until it can be placed: order, deadlines, and which partitions are
drawn."""

from collections import Counter

import pytest

from muster.client.core.sends import AnySend, FailureKind
from muster.errors import ErrorCode
from muster.protocol.messages import InitProducerIdRequest
from tests.support.producer_harness import TOPIC, ProducerHarness


def test_a_record_does_not_overtake_one_that_still_waits_aside():
    """The topic is now known, but the first record is placed only at the next poll."""
    p = ProducerHarness(topic_exists=False)
    p.give(b"first", partition=0)
    p.turn()
    p.topic_exists = True
    while p.metadata.partition_count(TOPIC) is None:
        p.now += 100
        for send in p.metadata.poll(p.now):
            p._take(send)
    p.give(b"second", partition=0)
    (request,) = p.turn()
    assert request.values == [b"first", b"second"]


def test_partitions_of_two_topics_are_distinguished():
    p = ProducerHarness(version=12, others=("trains",))
    for topic in (TOPIC, "trains"):
        p.give(b"for " + topic.encode(), partition=0, topic=topic)
    found = {batch.partition.topic: batch.values for request in p.turn() for batch in request.batches}
    assert found == {TOPIC: [b"for flights"], "trains": [b"for trains"]}


def test_one_that_waits_for_its_partition_holds_up_those_after_it():
    p = ProducerHarness()
    p.give(b"first", partition=1)
    p.turn()
    p.hold(b"second", partition=0)
    p.leaders = [1, 1]
    (request,) = p.tick(500)
    assert set(request.values) == {b"first", b"second"}


def test_the_first_to_run_out_of_time_is_reported_in_time():
    p = ProducerHarness(topic_exists=False, settings={"max_block_ms": 5_000})
    p.give(b"a", topic="early")
    p.tick(1_000)
    p.give(b"b", topic="late")
    p.turn()
    assert p.core.next_deadline(p.now) == p.now + 4_000
    p.tick(4_000)
    assert set(p.done) == {b"a"}
    assert p.core.next_deadline(p.now) == p.now + 1_000
    p.tick(1_000)
    assert set(p.done) == {b"a", b"b"}
    assert p.core.next_deadline(p.now) is None


def test_nothing_is_due_once_what_waited_is_placed():
    p = ProducerHarness(topic_exists=False)
    p.give(b"a", partition=0)
    p.tick(100)
    p.topic_exists = True
    for request in p.tick(2_000):
        p.answer(request)
    p.turn()
    assert p.core.next_deadline(p.now) is None


def test_a_topic_is_idle_from_its_last_record_on():
    p = ProducerHarness(settings={"metadata_max_idle_ms": 60_000})
    p.answer(p.put(b"a"))
    p.tick(50_000)
    p.answer(p.put(b"b"))
    p.tick(59_000)
    assert p.metadata.interest == frozenset({TOPIC})
    p.tick(1_001)
    assert p.metadata.interest == frozenset()


def test_a_topic_that_records_wait_for_is_not_idle():
    p = ProducerHarness(topic_exists=False, settings={"metadata_max_idle_ms": 1_000, "max_block_ms": 30_000})
    p.give(b"a", partition=0)
    p.tick(5_000)
    assert p.metadata.interest == frozenset({TOPIC})


def test_a_topic_whose_records_linger_is_not_idle():
    p = ProducerHarness(settings={"metadata_max_idle_ms": 1_000, "linger_ms": 10_000})
    p.give(b"a", partition=0)
    p.tick(9_000)
    assert p.metadata.interest == frozenset({TOPIC})
    (request,) = p.tick(1_500)
    p.answer(request)
    p.tick(2_100)
    assert p.metadata.interest == frozenset()


def test_records_without_keys_leave_a_partition_that_is_gone():
    """The topic was created again with fewer partitions."""
    p = ProducerHarness(leaders=[1, 1, 1])
    used = set()
    for number in range(30):
        p.give(b"%02d" % number * 9_000)
        for request in p.turn():
            used |= {batch.partition.partition for batch in request.batches}
            p.answer(request)
        if used == {0, 1, 2} and p.core._placement._sticky[TOPIC].partition:
            break
    p.leaders = [1]
    p.metadata.request_update(p.now)
    p.tick(1_000)
    p.give(b"last")
    (request,) = p.turn()
    assert [batch.partition.partition for batch in request.batches] == [0]


def drawn(adaptive, *, waiting=0, stalled=(), leaders=(1, 2), patience_ms=1_000):
    """How often each of two partitions is drawn while this many batches wait for the first."""
    settings = {
        "partitioner_adaptive_partitioning_enable": adaptive,
        "partitioner_availability_timeout_ms": patience_ms,
        "enable_idempotence": False,
        "batch_size": 100,
    }
    p = ProducerHarness(leaders=list(leaders), settings=settings)
    p.turn()
    p.metadata.add_interest([TOPIC])
    p.turn()
    placement, counts = p.core._placement, Counter[int | None]()
    for _ in range(waiting):
        p.give(b"x" * 200, partition=0)
    for node_id, since in stalled:
        placement.stalled_since[node_id] = p.now - since
    sticky = placement._sticky_of(TOPIC, p.now)
    for _ in range(400):
        placement._switch(sticky, TOPIC, p.now)
        counts[sticky.partition] += 1
    return counts


def test_the_longer_queue_is_drawn_less_often():
    assert drawn(True, waiting=9)[0] < 80
    assert drawn(True, waiting=0)[0] > 120


def test_all_are_drawn_alike_where_nothing_is_to_be_minded():
    assert drawn(False, waiting=9)[0] > 120
    assert drawn(False, waiting=0, stalled=[(1, 5_000)])[0] > 120


@pytest.mark.parametrize(("since", "left_alone"), [(1_000, False), (1_001, True)])
def test_a_stalled_broker_is_left_alone_once_its_time_is_over(since, left_alone):
    assert (drawn(True, waiting=0, stalled=[(1, since)])[0] == 0) is left_alone


def test_brokers_are_left_alone_only_if_that_is_wanted():
    assert drawn(True, stalled=[(1, 5_000)], patience_ms=0)[0] > 120


def test_partitions_without_a_leader_are_drawn_only_where_none_has_one():
    assert set(drawn(True, leaders=(1, None, 1))) == {0, 2}
    assert set(drawn(False, leaders=(1, None, 1))) == {0, 2}
    assert set(drawn(True, leaders=(None, None))) == {0, 1}


def test_where_all_brokers_are_stalled_any_will_do():
    assert len(drawn(True, waiting=0, stalled=[(1, 5_000), (2, 5_000)])) == 2


def test_a_partitioner_is_given_all_partitions_where_none_has_a_leader():
    asked = []

    def choose(key, partitions, available):
        asked.append((partitions, available))
        return available[0]

    p = ProducerHarness(leaders=[None, None], partitioner=choose)
    p.give(b"a", b"k")
    p.turn()
    assert asked == [([0, 1], [0, 1])]


# --- one broker's requests -------------------------------------------------------------------------------------------


def test_no_partition_is_starved_by_another():
    """Each request can hold one batch; both partitions have more than that waiting."""
    settings = {
        "enable_idempotence": False,
        "max_in_flight_requests_per_connection": 1,
        "max_request_size": 1_100,
        "batch_size": 500,
    }
    p = ProducerHarness(leaders=[1, 1], settings=settings)
    for number in range(6):
        for partition in (0, 1):
            p.give(b"%d%d" % (partition, number) + b"x" * 800, partition=partition)
    p.turn()
    served = []
    while p.open:
        served.append(p.open[0].batches[0].partition.partition)
        p.answer(p.open[0])
        p.turn()
    assert all(abs(served[:end].count(0) - served[:end].count(1)) <= 1 for end in range(len(served)))


def test_a_batch_that_alone_is_larger_than_a_request_goes_alone():
    p = ProducerHarness(leaders=[1, 1], settings={"max_request_size": 1_000, "enable_idempotence": False})
    p.give(b"x" * 900, partition=0)
    p.give(b"y" * 900, partition=1)
    assert [len(request.batches) for request in p.turn()] == [1, 1]


@pytest.mark.parametrize("code", [ErrorCode.NONE, ErrorCode.REQUEST_TIMED_OUT])
def test_an_answer_that_comes_after_its_batch_was_given_up_changes_nothing(code):
    p = ProducerHarness.warmed(settings={"delivery_timeout_ms": 31_000})
    request = p.put(b"a")
    p.tick(31_000)
    assert set(p.done) == {b"a"}
    p.answer(request, code)
    assert p.tick(1_000) == []
    assert p.core.buffered_bytes == 0


def test_no_answer_after_its_batch_was_given_up_changes_nothing():
    for kind in (FailureKind.DISCONNECTED, FailureKind.UNREACHABLE):
        p = ProducerHarness.warmed(settings={"delivery_timeout_ms": 31_000})
        request = p.put(b"a")
        p.tick(31_000)
        p.fail(request, kind)
        assert p.tick(1_000) == []
        assert p.core.buffered_bytes == 0


# --- when to look again ----------------------------------------------------------------------------------------------


def test_a_batch_that_lingers_is_looked_at_when_its_time_is_over():
    p = ProducerHarness(settings={"linger_ms": 5_000})
    p.hold(b"a")
    p.turn()
    assert p.core.next_deadline(p.now) == p.now + 5_000


def test_a_batch_that_was_refused_is_looked_at_after_its_backoff():
    p = ProducerHarness()
    p.answer(p.put(b"a"), ErrorCode.NOT_ENOUGH_REPLICAS)
    p.turn()
    deadline = p.core.next_deadline(p.now)
    assert deadline is not None
    assert 80 <= deadline - p.now <= 120


def test_a_producer_id_that_was_refused_is_asked_for_after_a_backoff_and_once_at_a_time():
    p = ProducerHarness(producer_ids=[ErrorCode.COORDINATOR_NOT_AVAILABLE, (7, 0)])
    p.give(b"a", partition=0)
    asked: list[AnySend] = []
    while not any(send.request_type is InitProducerIdRequest for send in asked):
        p.now += 100
        for send in p.metadata.poll(p.now):
            p._take(send)
        asked = p.core.poll(p.now)
    assert p.core.poll(p.now) == [], "one is under way"
    p._take(asked[0])
    assert p.core.poll(p.now) == []
    deadline = p.core.next_deadline(p.now)
    assert deadline is not None
    assert 80 <= deadline - p.now <= 120
    p.now = deadline
    (request,) = p.turn()
    assert request.batches[0].header.producer_id == 7
