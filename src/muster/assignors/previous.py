"""The user data of `sticky`: what a member owned last and in which generation, as Kafka's StickyAssignor writes it.

Version 1 is an array of (topic, array of partitions) and the generation; version 0 ends before the generation.

The leader reads one of these for each member, with nearly as many topics in it as the member has partitions. Usually
only the partition numbers differ, since dealing in turn gives many members the same topics. Everything but the numbers
is a *shape*: if one comparison shows that the last shape of the same size and first topic fits, all numbers are read in
one call.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from operator import add, lt
from typing import NamedTuple

from muster.assignors.layout import Claim, Layout
from muster.model import UNKNOWN_GENERATION_ID, TopicPartition

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_PAIR = struct.Struct(">ii")
_MAX_INT16 = 2**15 - 1
_NOWHERE = (0, 0)

_MISSES_FOR_A_SHAPE = 16
"""Making a shape takes as long as reading twice without one; the cost must stay low if none ever fits."""


def encode_previous_assignment(partitions: Iterable[TopicPartition], generation_id: int) -> bytes:
    """Version 1."""
    by_topic: dict[str, list[int]] = {}
    for topic, partition in partitions:
        by_topic.setdefault(topic, []).append(partition)
    out = [_INT32.pack(len(by_topic))]
    for topic, numbers in by_topic.items():
        name = topic.encode()
        out += (_INT16.pack(len(name)), name, struct.pack(f">i{len(numbers)}i", len(numbers), *numbers))
    out.append(_INT32.pack(generation_id))
    return b"".join(out)


class _UserDataShape(NamedTuple):
    """All of some user data but the partition numbers: its `fixed` bytes, and the span of each number's topic."""

    between: struct.Struct
    fixed: tuple[bytes, ...]
    numbers: struct.Struct
    starts: tuple[int, ...]
    counts: tuple[int, ...]
    least: int
    end: int


class PreviousReader:
    """Reads the user data of a group's members into claims of a layout's places."""

    def __init__(self, layout: Layout) -> None:
        self._spans = {topic.encode(): span for topic, span in layout.spans().items()}
        self._shapes: dict[tuple[int, bytes], _UserDataShape] = {}
        self._misses = 0

    def read(self, data: bytes) -> Claim:
        """The claim of one member. Data that cannot be read claims nothing, as in Kafka."""
        if len(data) < 2 * _INT32.size:
            return UNKNOWN_GENERATION_ID, []
        # The size, the number of topics, and the first topic's length and name, which has fewer than 256 bytes.
        key = len(data), data[: 6 + data[5]]
        shape = self._shapes.get(key)
        if shape is not None and shape.between.unpack(data) == shape.fixed:
            return _generation(data, shape.end), _numbered(shape, data)
        try:
            places, end = self._walk(data)
        except (ValueError, IndexError, struct.error):
            return UNKNOWN_GENERATION_ID, []
        if self._misses % _MISSES_FOR_A_SHAPE == 0:
            self._shapes[key] = self._shape(data, end)
        self._misses += 1
        return _generation(data, end), places

    def _walk(self, data: bytes) -> tuple[list[int], int]:
        """The places, and where the topics end.

        Raises:
            ValueError, IndexError, struct.error: the data is something else.
        """
        places: list[int] = []
        span_of, pair, int32 = self._spans.get, _PAIR.unpack_from, _INT32.unpack_from
        padded = data + bytes(_INT32.size)  # a count of 0 may be the last value, with no numbers after it
        (topics,) = int32(data)
        if topics < 0:
            raise ValueError("negative number of topics")
        at = _INT32.size
        for _ in range(topics):
            end = at + 2 + (data[at] << 8 | data[at + 1])
            start, most = span_of(data[at + 2 : end], _NOWHERE)
            count, number = pair(padded, end)
            if count == 1 and 0 <= number < most:  # with many topics and members nearly always
                places.append(start + number)
            else:
                _check_lengths(end - at - 2, count, len(data) - end)
                for each in range(end + 4, end + 4 + 4 * count, 4):
                    (number,) = int32(data, each)
                    if 0 <= number < most:
                        places.append(start + number)
            at = end + 4 + 4 * count
        if at > len(data):
            raise ValueError("cut short")
        return places, at

    def _shape(self, data: bytes, end: int) -> _UserDataShape:
        between, numbers, after = ">", ">", 0
        spans: list[tuple[int, int]] = []
        for name, count, at in _runs(data):
            between += f"{at - after}s{4 * count}x"
            numbers += f"{at - after}x{count}I"
            after = at + 4 * count
            spans += [self._spans.get(name, _NOWHERE)] * count
        fixed = struct.Struct(between + f"{end - after}s{len(data) - end}x")
        starts, counts = tuple(start for start, _ in spans), tuple(count for _, count in spans)
        return _UserDataShape(
            fixed,
            fixed.unpack(data),
            struct.Struct(numbers + f"{len(data) - after}x"),
            starts,
            counts,
            min(counts, default=0),
            end,
        )


def _check_lengths(name: int, count: int, left: int) -> None:
    """Refuse counts that the data cannot hold before anything is built from them: garbage must not allocate memory.

    Raises:
        ValueError: a length is negative, or exceeds what is left after the name.
    """
    if name > _MAX_INT16 or not 0 <= 4 * count <= left - 4:
        raise ValueError("impossible length")


def _runs(data: bytes) -> Iterator[tuple[bytes, int, int]]:
    """For each topic its name, how many numbers follow, and where the first is. The data is known to be valid."""
    (topics,) = _INT32.unpack_from(data)
    at = _INT32.size
    for _ in range(topics):
        end = at + 2 + _INT16.unpack_from(data, at)[0]
        (count,) = _INT32.unpack_from(data, end)
        yield data[at + 2 : end], count, end + 4
        at = end + 4 + 4 * count


def _numbered(shape: _UserDataShape, data: bytes) -> list[int]:
    numbers = shape.numbers.unpack(data)  # unsigned: a negative one is beyond the end of every topic
    if max(numbers, default=0) < shape.least or all(map(lt, numbers, shape.counts)):
        return list(map(add, shape.starts, numbers))
    found = zip(shape.starts, numbers, shape.counts, strict=True)
    return [start + number for start, number, count in found if number < count]


def _generation(data: bytes, end: int) -> int:
    """The generation after the topics, -1 in version 0."""
    if len(data) - end < _INT32.size:
        return UNKNOWN_GENERATION_ID
    return int(_INT32.unpack_from(data, end)[0])
