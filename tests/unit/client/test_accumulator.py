"""Batches while they wait, and the estimates of their compression."""

from collections import deque

import pytest

from muster.client.core.produce.accumulator import Accumulator, CompressionRatio, OutgoingRecord
from muster.model import TopicPartition
from muster.protocol.records.compression import Compression
from muster.protocol.records.record_batch import HEADER_SIZE, read_header, record_size

PLACE = TopicPartition("t", 0)


def record(size):
    value = b"x" * size
    return OutgoingRecord("t", 0, None, value, (), 0, None, record_size(None, value, ()))


def test_bytes_that_may_be_on_their_way_are_left_alone():
    """The socket still holds the previous attempt when the batch gets a new sequence."""
    made = Accumulator(1_000, Compression.NONE)
    made.append(PLACE, record(10), 0)
    batch = made.queues[PLACE][0]
    batch.set_producer(7, 0, 5)
    made.encode(batch, None)
    under_way = batch.encoded
    assert under_way is not None
    batch.set_producer(7, 1, 0)
    assert read_header(under_way).base_sequence == 5
    assert batch.encoded is not None
    assert read_header(batch.encoded).base_sequence == 0


def test_worse_compression_is_expected_at_once_and_better_slowly():
    """Like Java's producer: a batch that turns out too large costs a round trip, one that is too small costs
    nothing."""
    ratio = CompressionRatio()
    seen = []
    for observed in (0.2, 0.2, 1.5, 1.52, 1.0):
        ratio.observe(observed)
        seen.append(round(ratio.ratio, 3))
    assert seen == [0.995, 0.99, 1.5, 1.55, 1.545]


@pytest.mark.parametrize(("ratio", "expected"), [(0.5, 525), (0.99, 1_039), (1.0, 1_000), (1.7, 1_000)])
def test_an_estimate_leaves_a_margin(ratio, expected):
    made = CompressionRatio()
    made.ratio = ratio
    assert made.estimate(1_000) == expected


def test_a_topic_whose_batch_was_too_large_is_considered_incompressible():
    made = Accumulator(1_000, Compression.GZIP)
    for _ in range(150):
        made.append(PLACE, record(900), 0)
        made.encode(made.queues[PLACE].popleft(), None)
    made.append(PLACE, record(900), 0)
    assert made.append(PLACE, record(900), 0) == (False, False), "much more fits once it is compressed"
    made.forget_ratio("t")
    batch = made.queues[PLACE][-1]
    assert made.is_full(batch, deque([batch]))
    assert made.append(PLACE, record(900), 0)[0]


def test_what_compression_does_is_measured_without_the_header():
    """The header is not compressed: counting it would make small batches look incompressible."""
    made = Accumulator(1_000, Compression.GZIP)
    made.append(PLACE, record(900), 0)
    batch = made.queues[PLACE][0]
    plain = batch.size
    made._ratios["t"] = CompressionRatio()
    made._ratios["t"].ratio = 0.0
    made.encode(batch, None)
    assert made._ratios["t"].ratio == max(0.05, (batch.size - HEADER_SIZE) / (plain - HEADER_SIZE))


def test_topics_are_those_that_something_waits_for():
    made = Accumulator(1_000, Compression.NONE)
    made.append(PLACE, record(10), 0)
    assert made.topics() == {"t"}
    made.queues[PLACE].clear()
    assert made.topics() == set()


def test_headers_are_counted_by_their_bytes():
    assert record_size(None, None, [("ü", b"1")]) - record_size(None, None, [("u", b"1")]) == 1
