"""Batches that the producer's core gets whole: sent, numbered, retried and given up like its own."""

from __future__ import annotations

import pytest

from muster.client.core.produce.accumulator import OutgoingBatch
from muster.client.core.sends import FailureKind
from muster.errors import ErrorCode, KafkaError, KafkaTimeoutError
from muster.model import TopicPartition
from muster.protocol.records.record_batch import BatchBuilder
from tests.support.producer_harness import TOPIC, ProducerHarness


class Receipt:
    """Called back once for each record of its batch."""


class Harness(ProducerHarness):
    """Counts the outcome of each batch: how many of its records were acknowledged, and the errors of the others."""

    def __post_init__(self):
        self.outcomes = {}
        super().__post_init__()

    def whole(self, *values, partition=0, topic=TOPIC):
        """Give a batch. Returns its receipt."""
        builder = BatchBuilder()
        for value in values:
            builder.append(self.now, None, value)
        receipt = Receipt()
        self.core.append(OutgoingBatch(topic, partition, builder, self.now, receipt), self.now)
        return receipt

    def _collect(self):
        for completion in self.core.take_events():
            for index, receipt in enumerate(completion.receipts):
                error = completion.record_errors.get(index, completion.error)
                self.outcomes.setdefault(receipt, []).append(error)

    def written(self, receipt):
        assert not any(self.outcomes[receipt])
        return len(self.outcomes[receipt])


def test_it_goes_out_as_it_is_and_nothing_is_added_to_it():
    p = Harness(settings={"linger_ms": 1_000})
    one, other = p.whole(b"a", b"b"), p.whole(b"c")
    p.give(b"alone", partition=0)
    assert p.core.buffered_bytes > 0
    done = p.core.begin_flush()
    while p.turn() or p.open:
        assert not done()
        p.answer(p.open[0])
    assert done()
    assert (p.written(one), p.written(other), p.written(b"alone")) == (2, 1, 1)
    assert p.core.metrics.records_sent == 4
    assert p.core.metrics.batches_sent == 3
    assert p.core.buffered_bytes == 0


def test_it_is_sent_at_once_however_long_records_linger():
    p = Harness(settings={"linger_ms": 10_000})
    p.whole(b"a")
    assert [request.values for request in p.turn()] == [[b"a"]]


def test_one_for_any_partition_follows_the_partitioner_a_batch_at_a_time():
    p = Harness(leaders=[1, 1, 1, 1], settings={"batch_size": 100})
    for number in range(40):
        p.whole(b"%d" % number * 60, partition=None)
    places = set()
    while p.turn() or p.open:
        places |= {batch.partition.partition for batch in p.open[0].batches}
        p.answer(p.open[0])
    assert places == {0, 1, 2, 3}


def test_its_sequences_count_its_records_and_stay_in_retries():
    p = Harness()
    p.warm()
    one, other = p.whole(b"a", b"b", b"c"), p.whole(b"d")
    first, second = p.turn()
    assert [request.batches[0].header.base_sequence for request in (first, second)] == [1, 4]
    p.fail(first, FailureKind.DISCONNECTED)
    p.answer(second, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    for expected in (1, 4):
        [again] = p.tick(200)
        assert again.batches[0].header.base_sequence == expected
        p.answer(again)
    assert (p.written(one), p.written(other)) == (3, 1)


def test_it_is_cut_up_where_the_broker_takes_less():
    p = Harness()
    p.warm()
    receipt = p.whole(*(b"%d" % number * 50 for number in range(8)))
    [request] = p.turn()
    p.answer(request, ErrorCode.MESSAGE_TOO_LARGE)
    values = []
    while p.turn() or p.open:
        values += p.open[0].values
        p.answer(p.open[0])
    assert values == request.values
    assert p.written(receipt) == 8
    assert p.core.metrics.splits == 1


def test_it_waits_for_its_topic_and_is_given_up_with_all_its_records():
    p = Harness(topic_exists=False, settings={"max_block_ms": 500})
    done = p.core.begin_flush()
    receipt = p.whole(b"a", b"b")
    later = p.core.begin_flush()
    p.tick(600)
    assert [type(error) for error in p.outcomes[receipt]] == [KafkaTimeoutError] * 2
    assert done()
    assert later()
    assert p.core.metrics.records_failed == 2
    assert p.core.buffered_bytes == 0


@pytest.mark.parametrize("way", ["refused", "expired"])
def test_its_failure_is_that_of_each_of_its_records(way):
    p = Harness(settings={"delivery_timeout_ms": 30_001})
    receipt = p.whole(b"a", b"b")
    [request] = p.turn()
    if way == "refused":
        p.answer(request, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    else:
        p.tick(30_001)
    [error, again] = p.outcomes[receipt]
    assert error is again
    assert isinstance(error, KafkaError if way == "refused" else KafkaTimeoutError)
    assert p.core.buffered_bytes == 0


def test_records_of_a_topic_that_waits_stay_after_a_batch_for_it():
    p = Harness(leaders=[1], settings={"max_block_ms": 50_000})
    p.topic_exists = False
    p.metadata.topics.clear()
    p.whole(b"first")
    p.give(b"second", partition=0)
    p.turn()
    p.topic_exists = True
    sent: list[bytes | None] = []
    while len(sent) < 2:
        p.tick(200)
        for request in list(p.open):
            sent += request.values
            p.answer(request)
    assert sent == [b"first", b"second"]
    assert TopicPartition(TOPIC, 0) in p.core._accumulator.queues
