"""Encodes which records after the committed offset are done, as text in the metadata of the commit.

Theory. A commit says one thing: everything before this offset is done. If records are handled concurrently, some
after it are done too. The metadata lists these, and the partition's next owner skips them.

    offset                            end
      |  ■ ■ □ ■ □ □ ■ ■ ■ ... □ ■ ■  |        □ done   ■ not done: a hole

The text is a marker and a version, then base64 of

    kind        1 byte      how the holes are encoded: BITS, GAPS, or BITS_DEFLATED
    checksum    4 bytes     CRC-32 of topic, partition, offset and all that follows
    epoch + 1   varint      the newest leader epoch of these done records, -1 if unknown
    count       varint      end - offset
    holes                   BITS: a bit for each offset, set for each hole. GAPS: for each hole a varint, its
                            distance from the previous one

and the shortest kind is used. The broker counts characters (`offset.metadata.max.bytes`, 4096), and base64 takes
one byte each.

Metadata counts only if its checksum, which covers topic, partition and offset, is right: metadata of another program,
truncated metadata, and metadata that a tool copied to another offset (a group reset that keeps metadata, MirrorMaker's
translated offsets) is ignored. Then records are handled again; none is skipped.

`Capacity` says how much fits. Each offset up to `window` after the committed one costs at most one bit, and each hole
at most `_GAP_BYTES`, however far away. A record that is started within these bounds can always be encoded
(`progress.may_start`), because from then on the number of holes only falls and the committed offset only rises.
"""

from __future__ import annotations

import binascii
import zlib
from base64 import b64decode, b64encode
from collections.abc import Sequence
from typing import NamedTuple

from muster.model import NO_LEADER_EPOCH, TopicPartition
from muster.protocol.primitives import uvarint

MARKER = "muster1 "
"""Includes the version of the layout. A program that does not recognize the marker ignores the rest."""

DEFAULT_LIMIT = 4096
"""Kafka's `offset.metadata.max.bytes`."""

_BITS, _GAPS, _BITS_DEFLATED = b"\1", b"\2", b"\3"
_HEAD_BYTES = 1 + 4 + 5 + 6
"""Kind, checksum, and the two varints at their longest."""
_GAP_BYTES = 6
"""A gap up to 2**42 records."""
_MAX_BITS = 1 << 17
"""Beyond this, holes are encoded only as gaps."""
_MAX_COVERED = 1 << 40
"""Metadata that covers more offsets than this is ignored."""


class Done(NamedTuple):
    """Which records after a committed offset are done: all up to `end` except the holes, which are sorted."""

    end: int
    holes: tuple[int, ...] = ()
    epoch: int = NO_LEADER_EPOCH


class Capacity(NamedTuple):
    """What is certain to fit into metadata: `window` offsets, or `holes` holes."""

    window: int
    holes: int


def capacity(limit: int = DEFAULT_LIMIT) -> Capacity:
    """How much metadata of this many characters can encode; nothing if there is hardly any room."""
    room = max(0, (limit - len(MARKER)) // 4 * 3 - _HEAD_BYTES)
    return Capacity(room * 8, room // _GAP_BYTES)


def encode(partition: TopicPartition, offset: int, done: Done, limit: int = DEFAULT_LIMIT) -> str:
    """The metadata for a commit. If not everything fits, it covers the records up to some offset; "" if nothing
    fits."""
    while done.end > offset:
        text = _encode(partition, offset, done)
        if len(text) <= limit:
            return text
        done = _less(offset, done)
    return ""


def decode(partition: TopicPartition, offset: int, metadata: str) -> Done | None:
    """Decodes the metadata of a commit; None if it is not ours or not intact."""
    if not metadata.startswith(MARKER):
        return None
    try:
        body = b64decode(metadata[len(MARKER) :], validate=True)
        if int.from_bytes(body[1:5], "big") != _checksum(partition, offset, body[:1], body[5:]):
            return None
        epoch, at = _read_varint(body, 5)
        count, at = _read_varint(body, at)
        holes = _read_holes(body[:1], body[at:], offset, count)
    except (binascii.Error, ValueError, IndexError, zlib.error):
        return None
    return Done(offset + count, holes, epoch - 1)


# --- writing ---------------------------------------------------------------------------------------------------------


def _encode(partition: TopicPartition, offset: int, done: Done) -> str:
    count = done.end - offset
    kind, payload = _GAPS, _gaps(offset, done.holes)
    if count <= _MAX_BITS:
        bits = _bits(offset, count, done.holes)
        deflated = zlib.compress(bits, 9, wbits=-15)
        kind, payload = min(((kind, payload), (_BITS, bits), (_BITS_DEFLATED, deflated)), key=lambda each: len(each[1]))
    content = uvarint(done.epoch + 1) + uvarint(count) + payload
    checksum = _checksum(partition, offset, kind, content).to_bytes(4, "big")
    return MARKER + b64encode(kind + checksum + content).decode()


def _less(offset: int, done: Done) -> Done:
    """The part before the middle hole; nothing if there are fewer than two holes, because only holes take up room."""
    if len(done.holes) < 2:
        return done._replace(end=offset)
    end = done.holes[len(done.holes) // 2]
    return done._replace(end=end, holes=done.holes[: len(done.holes) // 2])


def _checksum(partition: TopicPartition, offset: int, kind: bytes, content: bytes) -> int:
    return zlib.crc32(content, zlib.crc32(kind + f"{partition.partition} {offset} {partition.topic}".encode()))


def _gaps(offset: int, holes: Sequence[int]) -> bytes:
    found, before = bytearray(), offset - 1
    for hole in holes:
        found += uvarint(hole - before - 1)
        before = hole
    return bytes(found)


def _bits(offset: int, count: int, holes: Sequence[int]) -> bytes:
    bits = bytearray((count + 7) // 8)
    for hole in holes:
        index = hole - offset
        bits[index >> 3] |= 1 << (index & 7)
    return bytes(bits)


# --- reading ---------------------------------------------------------------------------------------------------------


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while data[at] & 0x80:
        value |= (data[at] & 0x7F) << shift
        shift += 7
        at += 1
    value |= data[at] << shift
    if value > _MAX_COVERED:
        raise ValueError("no partition has this many waiting records")
    return value, at + 1


def _read_holes(kind: bytes, payload: bytes, offset: int, count: int) -> tuple[int, ...]:
    if kind == _GAPS:
        return _read_gaps(payload, offset, count)
    if kind == _BITS_DEFLATED:
        size = (count + 7) // 8
        inflater = zlib.decompressobj(wbits=-15)
        payload = inflater.decompress(payload, size + 1)
    elif kind != _BITS:
        raise ValueError("a kind that this version does not know")
    if len(payload) != (count + 7) // 8:
        raise ValueError("too few bits, or too many")
    number = int.from_bytes(payload, "little")
    if number >> count:
        raise ValueError("a hole after the end")
    return tuple(_set_bits(payload, offset))


def _set_bits(bits: bytes, offset: int) -> list[int]:
    found: list[int] = []
    for index, byte in enumerate(bits):
        if byte:
            found += [offset + 8 * index + bit for bit in range(8) if byte >> bit & 1]
    return found


def _read_gaps(payload: bytes, offset: int, count: int) -> tuple[int, ...]:
    holes, hole, at = [], offset - 1, 0
    while at < len(payload):
        gap, at = _read_varint(payload, at)
        hole += gap + 1
        if hole >= offset + count:
            raise ValueError("a hole after the end")
        holes.append(hole)
    return tuple(holes)
