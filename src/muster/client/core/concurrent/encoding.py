"""Which records behind the committed offset are done, as text in the metadata of the commit.

Theory. A commit says one thing: all before this offset is done. Where records are handled side by side, some behind it
are done as well. What is done there is written beside the offset, and the member that has the partition next passes it
over.

    offset                            end
      |  ■ ■ □ ■ □ □ ■ ■ ■ ... □ ■ ■  |        □ done   ■ not done: a hole

The text is a sign and a version, then base64 of

    kind        1 byte      how the holes are written: BITS, GAPS, or BITS_DEFLATED
    checksum    4 bytes     CRC-32 of topic, partition, offset and all that follows
    epoch + 1   varint      the newest leader epoch of records that are done here, -1 if it is not known
    count       varint      end - offset
    holes                   BITS: a bit for each offset, set where there is a hole. GAPS: for each hole a varint, how
                            far it is behind the one before

and the shortest of the kinds is taken. The broker counts characters (`offset.metadata.max.bytes`, 4096), and base64 is
of one byte each.

Metadata is believed only if the checksum is right, which names topic, partition and offset: metadata of another
program, metadata that was cut, and metadata that a tool copied to another offset (a group reset with its metadata
kept, MirrorMaker's translated offsets) say nothing. Then records are handled again; none is passed over.

`Space` says how much fits. Each offset up to `window` behind the committed one costs a bit at most, and each hole
`_GAP_BYTES` at most, however far behind. A record that is started within these bounds can always be told
(`progress.may_start`), because holes become fewer from then on, and the committed offset only moves up.
"""

from __future__ import annotations

import binascii
import zlib
from base64 import b64decode, b64encode
from collections.abc import Sequence
from typing import NamedTuple

from muster.model import NO_LEADER_EPOCH, TopicPartition

SIGN = "muster1 "
"""With the version of the layout. A program that does not know it ignores the rest."""

DEFAULT_LIMIT = 4096
"""Kafka's `offset.metadata.max.bytes`."""

_BITS, _GAPS, _BITS_DEFLATED = b"\1", b"\2", b"\3"
_HEAD_BYTES = 1 + 4 + 5 + 6
"""Kind, checksum, and the two varints at their longest."""
_GAP_BYTES = 6
"""A gap up to 2**42 records."""
_MOST_BITS = 1 << 17
"""Further apart, holes are told by their gaps alone."""
_LONGEST = 1 << 40
"""No metadata that tells of more offsets than this is believed."""


class Done(NamedTuple):
    """What is done behind a committed offset: all up to `end` but the holes, which are in order."""

    end: int
    holes: tuple[int, ...] = ()
    epoch: int = NO_LEADER_EPOCH


class Space(NamedTuple):
    """What certainly fits into metadata: `window` offsets, or `holes` holes."""

    window: int
    holes: int


def space(limit: int = DEFAULT_LIMIT) -> Space:
    """How much metadata of so many characters can say. Nothing at all if there is hardly room."""
    room = max(0, (limit - len(SIGN)) // 4 * 3 - _HEAD_BYTES)
    return Space(room * 8, room // _GAP_BYTES)


def encode(partition: TopicPartition, offset: int, done: Done, limit: int = DEFAULT_LIMIT) -> str:
    """The metadata for a commit. If not all fits, it tells of the records up to some offset; "" if nothing does."""
    while done.end > offset:
        text = _encode(partition, offset, done)
        if len(text) <= limit:
            return text
        done = _less(offset, done)
    return ""


def decode(partition: TopicPartition, offset: int, metadata: str) -> Done | None:
    """What the metadata of a commit says; None if it is not ours, or not whole."""
    if not metadata.startswith(SIGN):
        return None
    try:
        body = b64decode(metadata[len(SIGN) :], validate=True)
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
    if count <= _MOST_BITS:
        bits = _bits(offset, count, done.holes)
        deflated = zlib.compress(bits, 9, wbits=-15)
        kind, payload = min(((kind, payload), (_BITS, bits), (_BITS_DEFLATED, deflated)), key=lambda each: len(each[1]))
    told = _varint(done.epoch + 1) + _varint(count) + payload
    checksum = _checksum(partition, offset, kind, told).to_bytes(4, "big")
    return SIGN + b64encode(kind + checksum + told).decode()


def _less(offset: int, done: Done) -> Done:
    """Of fewer offsets: the first half of the holes; without holes, which take up nothing, it cannot be told at all."""
    if len(done.holes) < 2:
        return done._replace(end=offset)
    end = done.holes[len(done.holes) // 2]
    return done._replace(end=end, holes=done.holes[: len(done.holes) // 2])


def _checksum(partition: TopicPartition, offset: int, kind: bytes, told: bytes) -> int:
    return zlib.crc32(told, zlib.crc32(kind + f"{partition.partition} {offset} {partition.topic}".encode()))


def _gaps(offset: int, holes: Sequence[int]) -> bytes:
    found, before = bytearray(), offset - 1
    for hole in holes:
        found += _varint(hole - before - 1)
        before = hole
    return bytes(found)


def _bits(offset: int, count: int, holes: Sequence[int]) -> bytes:
    bits = bytearray((count + 7) // 8)
    for hole in holes:
        place = hole - offset
        bits[place >> 3] |= 1 << (place & 7)
    return bytes(bits)


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


# --- reading ---------------------------------------------------------------------------------------------------------


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while data[at] & 0x80:
        value |= (data[at] & 0x7F) << shift
        shift += 7
        at += 1
    value |= data[at] << shift
    if value > _LONGEST:
        raise ValueError("no partition has so many records that wait")
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
        raise ValueError("a hole behind the end")
    return tuple(_places(payload, offset))


def _places(bits: bytes, offset: int) -> list[int]:
    found: list[int] = []
    for place, byte in enumerate(bits):
        if byte:
            found += [offset + 8 * place + bit for bit in range(8) if byte >> bit & 1]
    return found


def _read_gaps(payload: bytes, offset: int, count: int) -> tuple[int, ...]:
    holes, hole, at = [], offset - 1, 0
    while at < len(payload):
        gap, at = _read_varint(payload, at)
        hole += gap + 1
        if hole >= offset + count:
            raise ValueError("a hole behind the end")
        holes.append(hole)
    return tuple(holes)
