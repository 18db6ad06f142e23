"""The producer's rules, against scripted brokers and a clock that the test moves."""

from collections import Counter

import pytest

from muster.client.core.sends import Failure, FailureKind
from muster.errors import ErrorCode, KafkaError, KafkaTimeoutError, MusterError, UnsupportedVersionError
from muster.model import Node, TopicPartition
from muster.protocol.messages import BatchIndexAndErrorMessage
from muster.protocol.records.compression import Compression
from muster.protocol.records.record_batch import NO_PRODUCER_ID, NO_SEQUENCE
from tests.support.producer_harness import TOPIC, ProducerHarness

ZERO = TopicPartition(TOPIC, 0)


def producer(**settings):
    return ProducerHarness(settings=settings)


def numbered(count, start=0):
    return [b"%d" % number for number in range(start, start + count)]


# --- batches ---------------------------------------------------------------------------------------------------------


def test_a_record_goes_out_and_is_acknowledged():
    p = producer()
    request = p.put(b"a")
    assert request.node_id == 1
    assert request.values == [b"a"]
    assert p.core.buffered_bytes > 0
    p.answer(request, base_offset=7)
    assert p.offsets() == {b"a": 7}
    assert p.core.buffered_bytes == 0


def test_records_linger_for_company():
    p = producer(linger_ms=50)
    p.hold(b"a")
    p.tick(49)
    p.hold(b"b")
    (request,) = p.tick(1)
    assert request.values == [b"a", b"b"]


def test_a_full_batch_does_not_linger():
    p = producer(linger_ms=1000, batch_size=220)
    p.warm()
    values = [b"x" * 50 + b"%d" % n for n in range(5)]
    p.add(*values)
    assert [request.values for request in p.open] == [values[:2], values[2:4]]
    assert all(batch.size <= 220 for request in p.open for batch in request.batches)
    assert p.tick(1000)[0].values == values[4:]


def test_a_record_larger_than_a_batch_has_one_of_its_own():
    p = producer(batch_size=100)
    p.warm()
    p.add(b"a", b"b" * 500, b"c")
    assert [request.values for request in p.open] == [[b"a"], [b"b" * 500], [b"c"]]


def test_a_flush_ends_the_lingering_and_waits_for_what_was_there():
    p = producer(linger_ms=10_000)
    p.hold(b"a")
    done = p.core.begin_flush()
    (request,) = p.turn()
    assert not done()
    p.core.end_flush()
    p.hold(b"later")
    p.answer(request)
    assert done()


def test_one_request_carries_a_batch_for_each_partition_up_to_its_size():
    p = ProducerHarness(leaders=[1, 1, 1, 2], settings={"max_request_size": 400, "linger_ms": 5})
    for number in range(4):
        p.give(b"%d" % number + b"x" * 100, partition=number)
    p.tick(10)
    assert sorted((r.node_id, len(r.batches)) for r in p.open) == [(1, 1), (1, 2), (2, 1)]


def test_room_is_freed_with_the_answer_and_short_room_ends_the_lingering():
    p = producer(linger_ms=10_000, buffer_memory=200)
    p.hold(b"x" * 100)
    assert not p.core.has_room(100)
    p.core.room_wanted = True
    (request,) = p.turn()
    p.answer(request)
    assert p.core.has_room(100)


@pytest.mark.parametrize(
    ("settings", "name"), [({"max_request_size": 100}, "max_request_size"), ({"buffer_memory": 100}, "buffer_memory")]
)
def test_a_record_that_can_never_be_sent_is_refused(settings, name):
    error = producer(**settings).core.check_size("flights", 100)
    assert error.code is ErrorCode.MESSAGE_TOO_LARGE
    assert error.message == f"the record for topic flights takes 161 bytes; {name} of this producer allows 100"


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_batches_are_compressed(codec):
    p = producer(compression_type=codec, linger_ms=10)
    p.hold(*[b"same " * 10 + b"%d" % n for n in range(50)])
    (request,) = p.tick(10)
    assert request.batches[0].header.compression is Compression[codec.upper()]
    assert len(request.values) == 50


def test_a_batch_that_cannot_be_encoded_fails_alone():
    p = producer(compression_type="gzip")
    p.core._level = "none that a codec knows"
    p.hold(b"a")
    assert "cannot be encoded" in str(p.error(b"a"))
    p.core._level = 1
    request = p.put(b"b")
    assert request.batches[0].header.base_sequence == 0
    p.answer(request)
    assert p.offsets() == {b"b": 0}


def test_what_compresses_well_fills_larger_batches():
    p = producer(compression_type="zstd", linger_ms=100, batch_size=2000, max_in_flight_requests_per_connection=1)
    counts = []
    for turn in range(150):
        for number in range(100):
            p.give(b"the same text in every one of them %d.%d" % (turn, number), partition=0)
        p.turn()
        while p.open:
            counts.append(len(p.open[0].values))
            p.answer(p.open[0])
            p.turn()
    assert counts[-2] > 2 * counts[0]


# --- where records go ------------------------------------------------------------------------------------------------


def test_keys_choose_partitions_and_records_without_stick():
    p = ProducerHarness(leaders=[1] * 8)
    p.give(b"a", key=b"N14228")
    p.give(b"b", key=b"foobar")
    p.give(b"c", key=b"N14228")
    (request,) = p.turn()
    assert {batch.partition.partition: batch.values for batch in request.batches} == {0: [b"a", b"c"], 6: [b"b"]}
    p.answer(request)
    for value in numbered(20):
        p.give(value)
    (request,) = p.turn()
    assert [batch.values for batch in request.batches] == [numbered(20)]


def test_records_without_keys_move_on_after_a_batch():
    p = ProducerHarness(leaders=[1] * 8, settings={"batch_size": 500, "linger_ms": 1000})
    for value in numbered(400):
        p.give(value)
    p.tick(1000)
    counts: Counter[TopicPartition] = Counter()
    while p.open:
        counts.update({batch.partition: len(batch.values) for batch in p.open[0].batches})
        p.answer(p.open[0])
        p.tick(1000)
    assert counts.total() == 400
    assert len(counts) > 4


def test_keys_may_be_ignored():
    p = ProducerHarness(leaders=[1] * 8, settings={"partitioner_ignore_keys": True})
    for value in numbered(20):
        p.give(value, key=value)
    (request,) = p.turn()
    assert len(request.batches) == 1


def test_records_without_keys_avoid_partitions_without_a_leader():
    p = ProducerHarness(leaders=[None, 1, None], settings={"batch_size": 100})
    for value in numbered(50):
        p.give(value)
    p.turn()
    assert {batch.partition.partition for request in p.open for batch in request.batches} == {1}


def test_a_partitioner_of_the_users_own():
    asked = []

    def choose(key, partitions, available):
        asked.append((key, partitions, available))
        return 2

    p = ProducerHarness(leaders=[1, None, 1], partitioner=choose)
    p.give(b"a", key=b"k")
    (request,) = p.turn()
    assert request.batches[0].partition.partition == 2
    assert asked == [(b"k", [0, 1, 2], [0, 2])]


def test_a_partitioner_that_fails_fails_its_record_only():
    def choose(key, partitions, available):
        if key == b"bad":
            raise RuntimeError("no idea")
        return 7 if key == b"far" else 0

    p = ProducerHarness(partitioner=choose)
    p.give(b"parked", key=b"bad")
    p.give(b"far", key=b"far")
    p.give(b"good", key=b"ok")
    (request,) = p.turn()
    assert request.values == [b"good"]
    assert "no idea" in str(p.error(b"parked"))
    assert "partition 7" in str(p.error(b"far"))
    with pytest.raises(RuntimeError, match="no idea"):
        p.give(b"now", key=b"bad")


# --- unknown topics --------------------------------------------------------------------------------------------------


def test_records_wait_for_their_topic_in_order():
    p = ProducerHarness(topic_exists=False)
    for value in numbered(3):
        p.give(value, partition=0)
    p.tick(500)
    assert p.metadata_requests > 2, "it is asked for again and again"
    assert not p.open
    p.topic_exists = True
    (request,) = p.tick(2000)
    assert request.values == numbered(3)


def test_an_unknown_topic_fails_after_max_block_ms():
    p = ProducerHarness(topic_exists=False, settings={"max_block_ms": 5000})
    p.give(b"a")
    p.tick(4999)
    assert not p.done
    p.tick(1)
    assert isinstance(p.error(b"a"), KafkaTimeoutError)
    assert "UNKNOWN_TOPIC_OR_PARTITION" in str(p.error(b"a"))


def test_the_reason_of_an_unreachable_cluster_is_reported():
    p = ProducerHarness(settings={"max_block_ms": 5000})
    p.metadata_broken = Failure(FailureKind.UNREACHABLE, "refused by 10.0.0.1")
    p.give(b"a")
    p.tick(5000)
    assert "refused by 10.0.0.1" in str(p.error(b"a"))


@pytest.mark.parametrize("code", [ErrorCode.INVALID_TOPIC_EXCEPTION, ErrorCode.TOPIC_AUTHORIZATION_FAILED])
def test_a_topic_that_cannot_be_fails_at_once(code):
    p = ProducerHarness(topic_exists=False, topic_error=code)
    p.give(b"a")
    p.turn()
    error = p.error(b"a")
    assert isinstance(error, KafkaError)
    assert error.code is code


def test_a_partition_that_is_not_there_yet_is_waited_for():
    p = ProducerHarness(settings={"max_block_ms": 5000})
    p.give(b"one", partition=1)
    p.give(b"nine", partition=9)
    p.tick(1000)
    p.leaders = [1, 1]
    (request,) = p.tick(1000)
    assert request.values == [b"one"]
    p.tick(4000)
    assert "no partition 9" in str(p.error(b"nine"))


# --- retries ---------------------------------------------------------------------------------------------------------


def test_a_retriable_error_is_tried_again_after_the_backoff():
    p = producer()
    p.answer(p.put(b"a"), ErrorCode.NOT_ENOUGH_REPLICAS)
    p.tick(79)
    assert not p.open
    (request,) = p.tick(42)
    p.answer(request, base_offset=3)
    assert p.offsets() == {b"a": 3}
    assert p.core.metrics.retries == 1


@pytest.mark.parametrize("kind", [FailureKind.DISCONNECTED, FailureKind.TIMEOUT, FailureKind.GARBLED])
def test_no_answer_is_tried_again_with_the_same_sequence(kind):
    p = producer()
    first = p.put(b"a")
    p.fail(first, kind)
    (second,) = p.tick(150)
    assert second.batches[0].header == first.batches[0].header


def test_an_unreachable_broker_costs_no_attempt():
    p = producer(retries=1)
    p.fail(p.put(b"a"), FailureKind.UNREACHABLE)
    for _ in range(5):
        (request,) = p.tick(150)
        p.fail(request, FailureKind.UNREACHABLE)
    (request,) = p.tick(150)
    p.answer(request)
    assert p.offsets() == {b"a": 0}


def test_a_broker_that_is_too_old_is_final():
    p = producer()
    p.fail(p.put(b"a"), FailureKind.UNSUPPORTED_VERSION)
    assert isinstance(p.error(b"a"), UnsupportedVersionError)
    assert p.error(b"a").fatal


def test_an_error_that_ends_an_idempotent_producer_says_so():
    p = ProducerHarness()
    p.answer(p.put(b"a"), ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    assert p.error(b"a").fatal
    assert p.core.fatal is p.error(b"a")


def test_an_error_that_time_does_not_heal_fails_the_batch():
    p = producer()
    p.answer(p.put(b"a", b"b"), ErrorCode.INVALID_REQUEST, error_message="no")
    assert p.error(b"a").code is ErrorCode.INVALID_REQUEST
    assert "no" in str(p.error(b"b"))


def test_retries_can_be_used_up():
    p = producer(retries=2, enable_idempotence=True)
    p.answer(p.put(b"a"), ErrorCode.REQUEST_TIMED_OUT)
    for _ in range(2):
        (request,) = p.tick(150)
        p.answer(request, ErrorCode.REQUEST_TIMED_OUT)
    assert p.error(b"a").code is ErrorCode.REQUEST_TIMED_OUT


def test_delivery_timeout_ends_it_wherever_the_batch_is():
    p = ProducerHarness(leaders=[1, None], settings={"delivery_timeout_ms": 30_000, "request_timeout_ms": 10_000})
    under_way = p.put(b"under way")
    p.hold(b"waits", partition=1)
    p.tick(29_999)
    assert not p.done
    p.tick(1)
    assert isinstance(p.error(b"under way"), KafkaTimeoutError)
    assert isinstance(p.error(b"waits"), KafkaTimeoutError)
    p.answer(under_way)
    assert p.core.buffered_bytes == 0


def test_record_errors_are_distinguished():
    p = producer(linger_ms=5)
    p.hold(*numbered(3))
    (request,) = p.tick(5)
    errors = [BatchIndexAndErrorMessage(1, "has no key")]
    p.answer(request, ErrorCode.INVALID_RECORD, record_errors=errors, error_message="one is bad")
    assert "has no key" in str(p.error(b"1"))
    assert "one is bad" in str(p.error(b"0"))


def test_log_append_time_is_reported():
    p = producer()
    p.answer(p.put(b"a"), log_append_time_ms=99)
    assert p.done[b"a"].timestamp == 99


# --- leaders ---------------------------------------------------------------------------------------------------------


def test_a_partition_without_a_leader_waits_and_asks():
    p = ProducerHarness(leaders=[None])
    p.hold(b"a")
    p.leaders = [1]
    (request,) = p.tick(1000)
    p.answer(request)
    assert p.offsets() == {b"a": 0}


def test_a_leader_that_moved_is_looked_up():
    p = producer()
    request = p.put(b"a")
    p.leaders, p.leader_epoch = [2], 6
    p.answer(request, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    (request,) = p.tick(200)
    if request.node_id == 1:  # the metadata's backoff may end after the batch's
        p.answer(request, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        (request,) = p.tick(200)
    assert request.node_id == 2


def test_a_leader_hint_is_followed_at_once():
    """KIP-951: the answer names the new leader, and its address."""
    p = producer()
    request = p.put(b"a")
    more, endpoints = p.hint(3, 9999)
    before = p.metadata_requests
    p.answer_each(request, [p.part(request.batches[0], ErrorCode.NOT_LEADER_OR_FOLLOWER, **more)], endpoints)
    sends = p.core.poll(p.now)
    assert [send.node_id for send in sends] == [3], "without waiting for the backoff, or for metadata"
    assert p.metadata.brokers[3].port == 9999
    assert p.metadata_requests == before
    assert p.core.metrics.leader_hints == 1


def test_an_old_hint_is_not_followed():
    p = producer()
    request = p.put(b"a")
    p.leader_epoch -= 1
    more, endpoints = p.hint(3, 9999)
    p.leader_epoch += 1
    p.answer_each(request, [p.part(request.batches[0], ErrorCode.NOT_LEADER_OR_FOLLOWER, **more)], endpoints)
    assert p.metadata.leader(ZERO) == 1


# --- versions --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(3, 14))
def test_every_version_of_produce(version):
    p = ProducerHarness(version=version)
    request = p.put(b"a")
    assert request.version == version
    p.answer(request, base_offset=1)
    assert p.offsets() == {b"a": 1}


# --- without idempotence ---------------------------------------------------------------------------------------------


def test_acks_0_has_no_answer_and_no_offset():
    p = producer(acks=0)
    request = p.put(b"a")
    assert request.acks == 0
    assert request.batches[0].header.producer_id == NO_PRODUCER_ID
    assert request.batches[0].header.base_sequence == NO_SEQUENCE
    request.send.on_reply(request.send.request_type.RESPONSE(), p.now)
    p.turn()
    assert p.offsets() == {b"a": -1}


def test_order_without_idempotence_and_one_request_in_flight():
    p = producer(enable_idempotence=False, max_in_flight_requests_per_connection=1)
    first = p.put(b"a")
    p.hold(b"b")
    p.answer(first, ErrorCode.NOT_ENOUGH_REPLICAS)
    p.turn()
    assert not p.open, "b must not overtake a"
    (again,) = p.tick(150)
    assert again.values == [b"a"]


def test_requests_that_fail_together_come_back_in_order():
    p = producer(enable_idempotence=False)
    requests = [p.put(value) for value in numbered(3)]
    for request in requests:
        p.fail(request)
    p.tick(300)
    assert [request.values for request in p.open] == [[b"0"], [b"1"], [b"2"]]


# --- too large -------------------------------------------------------------------------------------------------------


def test_a_batch_that_is_too_large_is_split_until_it_fits():
    p = producer(linger_ms=5)
    p.hold(*numbered(8))
    (request,) = p.tick(5)
    limit, offset = 3, 0
    flushed = p.core.begin_flush()
    sizes = []
    while p.open:
        request = p.open[0]
        sizes.append(len(request.values))
        if len(request.values) > limit:
            p.answer(request, ErrorCode.MESSAGE_TOO_LARGE)
            assert not flushed()
        else:
            p.answer(request, base_offset=offset)
            offset += len(request.values)
        p.turn()
    assert flushed()
    assert p.offsets() == {value: n for n, value in enumerate(numbered(8))}
    assert sizes[0] == 8
    assert p.core.buffered_bytes == 0


@pytest.mark.parametrize(
    ("code", "setting"),
    [(ErrorCode.MESSAGE_TOO_LARGE, "max.message.bytes"), (ErrorCode.RECORD_LIST_TOO_LARGE, "segment.bytes")],
)
@pytest.mark.parametrize("said", [None, "the broker's own words"])
def test_a_single_record_that_is_too_large_fails_with_its_size_and_the_setting(code, setting, said):
    p = producer()
    request = p.put(b"a")
    size = request.batches[0].size
    p.answer(request, code, error_message=said)
    error = p.error(b"a")
    assert error.code is code
    assert error.message.startswith(
        f"the record for {request.batches[0].partition} takes {size} bytes, more than the topic's {setting} "
    )
    assert said is None or error.message.endswith(f": {said}")


# --- the end ---------------------------------------------------------------------------------------------------------


def test_close_fails_what_is_left():
    p = ProducerHarness(leaders=[1, None])
    request = p.put(b"a")
    p.hold(b"b", partition=1)
    p.give(b"c", topic="unknown")
    p.core.close()
    p._collect()
    assert set(p.done) == {b"a", b"b", b"c"}
    assert all(outcome.error is not None for outcome in p.done.values())
    p.answer(request)
    assert p.core.buffered_bytes == 0


def test_no_producer_id_is_fetched_before_it_is_needed():
    p = producer()
    assert len(p.producer_ids) == 99
    p.put(b"a")
    assert len(p.producer_ids) == 98


def test_a_refused_producer_id_is_fatal():
    p = ProducerHarness(producer_ids=[ErrorCode.CLUSTER_AUTHORIZATION_FAILED])
    p.hold(b"a")
    assert isinstance(p.core.fatal, MusterError)
    assert p.error(b"a") is p.core.fatal


def test_a_broker_that_takes_nothing_for_a_while_gets_no_new_records_until_it_does():
    """KIP-794. The time starts when it was first ready to be sent to, however often that was checked."""
    settings = {
        "enable_idempotence": False,
        "max_in_flight_requests_per_connection": 2,
        "partitioner_availability_timeout_ms": 1_000,
        "batch_size": 100,
    }
    p = ProducerHarness(leaders=[1, 2], settings=settings)
    parked = [p.put(b"a", partition=0), p.put(b"b", partition=0)]
    p.hold(b"c", partition=0)

    def chosen():
        found = set()
        for number in range(20):
            p.give(b"%02d" % number * 50)
            for request in p.turn():
                found |= {batch.partition.partition for batch in request.batches}
                p.answer(request)
        p.done.clear()
        return found

    for _ in range(3):
        p.tick(400)
    assert chosen() == {1}
    for request in parked:
        p.answer(request)
    [request] = p.turn()
    assert request.values == [b"c"], "nothing was given to it meanwhile"
    p.answer(request)
    assert chosen() == {0, 1}


def test_a_batch_for_a_new_leader_waits_for_the_one_that_is_under_way_to_the_former():
    """With one request in flight at a time: two brokers would be asked at once, and the order lost."""
    p = ProducerHarness(leaders=[1], settings={"max_in_flight_requests_per_connection": 1, "enable_idempotence": False})
    first = p.put(b"a")
    assert p.metadata.update_leader(ZERO, 2, 50, Node(2, "two", 9092))
    p.hold(b"b")
    p.fail(first, FailureKind.DISCONNECTED)
    (again,) = p.tick(2_000)
    assert again.values == [b"a"]
    p.answer(again)
    assert [request.values for request in p.turn()] == [[b"b"]]
