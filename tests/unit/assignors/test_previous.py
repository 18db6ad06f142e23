"""The user data of sticky: written, read back, read along with other members', and data that is not valid."""

from __future__ import annotations

import pytest
from hypothesis import example
from hypothesis import given as drawn
from hypothesis import strategies as st

from muster.assignors.layout import Layout
from muster.assignors.previous import PreviousReader, encode_previous_assignment
from muster.model import UNKNOWN_GENERATION_ID, TopicPartition
from tests.support.groups import partitions, previous

TOPICS = {"a": 3, "bé": 1, "c" * 249: 2**31, "d" * 300: 5}
ROWS = st.lists(st.builds(TopicPartition, st.sampled_from([*TOPICS, "gone"]), st.integers(0, 4)), max_size=6)
NOTHING: tuple[int, list[TopicPartition]] = (UNKNOWN_GENERATION_ID, [])


def plainly(data: bytes) -> tuple[int, list[TopicPartition]]:
    """Both versions, read field by field as Kafka's schema has them."""
    at = 0

    def field(size: int) -> bytes:
        nonlocal at
        if not 0 <= size <= len(data) - at:
            raise ValueError
        at += size
        return data[at - size : at]

    def number(size: int) -> int:
        return int.from_bytes(field(size), signed=True)

    def length(size: int) -> range:
        found = number(size)
        if not 0 <= found <= len(data):
            raise ValueError
        return range(found)

    found: list[TopicPartition] = []
    try:
        for _ in length(4):
            topic = field(number(2)).decode(errors="replace")
            found += [TopicPartition(topic, number(4)) for _ in length(4)]
    except ValueError:
        return NOTHING
    return number(4) if len(data) - at >= 4 else UNKNOWN_GENERATION_ID, found


@drawn(
    rows=st.lists(st.builds(TopicPartition, st.sampled_from(["a", "bé", "c" * 249]), st.integers(0, 2**31 - 1))),
    generation=st.integers(-1, 2**31 - 1),
)
def test_user_data_comes_back_as_it_was(rows, generation):
    data = encode_previous_assignment(rows, generation)
    ((found, claimed),) = previous(data, topics={row.topic for row in rows})
    assert found == generation
    assert sorted(claimed) == sorted(rows)


@drawn(
    reported=st.lists(
        st.tuples(
            st.lists(st.sampled_from([*TOPICS, "gone"]), max_size=3),
            st.integers(-1, 5),
            st.integers(-1, 9),
            st.integers(0, 12).flatmap(lambda cut: st.tuples(st.just(cut), st.integers(-1, 400), st.integers(0, 255))),
        ),
        max_size=40,
    )
)
@example([(["a", "gone", "bé"], number, number, (0, -1, 0)) for number in range(-1, 6)])
@example([(["a", "a"], number, 1, (4, 9, number)) for number in range(6)])
def test_each_of_many_is_read_as_if_it_were_alone(reported):
    # Few topics and sizes: most have the same shape as an earlier one, and some only almost.
    layout = Layout(TOPICS, [list(TOPICS)])
    reader = PreviousReader(layout)
    spans = layout.spans()
    for topics, first, generation, (cut, at, byte) in reported:
        raw = bytearray(
            encode_previous_assignment([TopicPartition(t, first + n) for n, t in enumerate(topics)], generation)
        )
        if 0 <= at < len(raw):
            raw[at] = byte
        data = bytes(raw[: len(raw) - cut])
        expected_generation, said = plainly(data)
        claimed = [
            spans[row.topic][0] + row.partition
            for row in said
            if row.topic in spans and 0 <= row.partition < spans[row.topic][1]
        ]
        assert reader.read(data) == (expected_generation, claimed)


def test_user_data_of_version_0_has_no_generation():
    data = encode_previous_assignment(partitions("t:0-1"), 5)[:-4]
    assert previous(data, data, topics=["t"]) == [(UNKNOWN_GENERATION_ID, partitions("t:0-1"))] * 2


def test_a_topic_without_partitions_at_the_very_end_is_no_harm():
    data = b"\0\0\0\2\0\1t\0\0\0\1\0\0\0\0\0\1t\0\0\0\0"
    assert previous(data, data, topics=["t"]) == [(UNKNOWN_GENERATION_ID, partitions("t:0"))] * 2


@drawn(data=st.binary(max_size=60))
def test_garbage_is_read_as_kafka_reads_it(data):
    generation_id, said = plainly(data)
    topics = {row.topic for row in said}
    expected = generation_id, [row for row in said if row.partition >= 0]
    assert previous(data, data, topics=sorted(topics)) == [expected] * 2


@pytest.mark.parametrize(
    "data",
    [b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\0\0\0\1\xff\xff\0\0\0\0", b"\0\0\0\1\0\1t\x7f\xff\xff\xff", b"\0\0"],
    ids=["negative topics", "too many topics", "negative length", "too many partitions", "cut short"],
)
def test_impossible_user_data_is_not_a_claim(data):
    for padded in (data, data + b"\xff" * 8):
        assert previous(padded, topics=["t"]) == [NOTHING]


@drawn(cut=st.integers(1, 27))
def test_truncated_user_data_is_not_a_claim(cut):
    data = encode_previous_assignment(partitions("topic:0-3 u:1"), 5)
    assert previous(data[:cut], topics=["topic", "u"]) == [NOTHING]
