"""Message sets, the format of records before Kafka 0.11 (magic 0 and 1): read, and converted to record batches.

A fetch from an old broker, or from a log that an old producer wrote, returns message sets. They are converted to record
batches of magic 2 as soon as they arrive, so that everything downstream (objects, Arrow columns, Spark) knows one
format. An entry of a set:

    offset int64 | size int32 | crc uint32 | magic int8 | attributes int8 | [timestamp int64, magic 1] | key | value

Key and value are int32 lengths with their bytes, -1 is null. `size` counts the bytes after it; the CRC-32 covers those
from the magic on. Attributes: the codec (none, gzip, snappy, lz4), and from magic 1 on bit 3, LogAppendTime.

A compressed message is a wrapper: its value holds a set of the same magic. In magic 0 the offsets inside are absolute.
In magic 1 they count from 0 and the wrapper has the last one's absolute offset, so brokers assign offsets without
recompressing (KIP-31); with LogAppendTime all of them have the wrapper's time (KIP-32). Wrappers do not nest.

LZ4 frames in magic 0 have a wrong header checksum: it also covers the four bytes of the frame's magic number
(KAFKA-3160). Readers of that time accept both.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple
from zlib import crc32

from muster.errors import CorruptRecordError
from muster.protocol.records.compression import MAX_DECOMPRESSED_SIZE, Buffer, Compression, decompress
from muster.protocol.records.record_batch import LOG_OVERHEAD, MAGIC, NO_TIMESTAMP, BatchBuilder

_ENTRY = struct.Struct(">qiIbb")
_MAGIC_AT = 16
_CRC_START = 16
_LENGTH = struct.Struct(">i")
_TIMESTAMP = struct.Struct(">q")

_CODEC_MASK = 0x07
_LOG_APPEND_FLAG = 0x08
_SMALLEST = (14, 22)
"""The minimum `size` by magic: an entry with neither key nor value."""

_OLD_CODECS = (Compression.NONE, Compression.GZIP, Compression.SNAPPY, Compression.LZ4)

_FARTHEST = (1 << 31) - 1
"""The maximum distance from a batch's first offset to its last, an int32 in its header."""

_LZ4_MAGIC = b"\x04\x22\x4d\x18"


class LegacyMessage(NamedTuple):
    """One message of a set, with its absolute offset."""

    offset: int
    timestamp: int
    """In milliseconds; -1 in magic 0, which has none."""
    key: bytes | None
    value: bytes | None
    log_append_time: bool = False


class _Entry(NamedTuple):
    magic: int
    attributes: int
    message: LegacyMessage


def to_batches(records: Buffer, max_size: int = MAX_DECOMPRESSED_SIZE) -> tuple[bytes, CorruptRecordError | None]:
    """The records of a fetch, each message set as record batches; record batches stay as they are.

    A last entry that is cut off is left out. The second result is the error that ended the reading, if any.
    """
    made: list[Buffer] = []
    position, view, last = 0, memoryview(records), -1
    try:
        while (size := _whole(view, position)) is not None:
            if view[position + _MAGIC_AT] >= MAGIC:
                made.append(view[position : position + size])
            else:
                messages = _messages(view[position : position + size], max_size)
                last = _check_offsets(last, messages)
                made += _batches(messages)
            position += size
    except CorruptRecordError as error:
        return b"".join(made), error
    return b"".join(made), None


def _whole(view: memoryview, position: int) -> int | None:
    """The size of the entry or batch at `position`, None if it is incomplete."""
    if len(view) - position <= _MAGIC_AT:
        return None
    length: int = _LENGTH.unpack_from(view, position + 8)[0]
    if length < _SMALLEST[0]:
        raise CorruptRecordError(f"a message cannot have a size of {length} bytes")
    size = length + LOG_OVERHEAD
    return size if size <= len(view) - position else None


def _messages(entry: memoryview, max_size: int) -> list[LegacyMessage]:
    """The messages of one entry: itself, or what it wraps."""
    outer = _read(entry)
    codec = outer.attributes & _CODEC_MASK
    if not codec:
        return [outer.message]
    wrapped = list(_inner(outer, codec, max_size))
    if any(inner.attributes & _CODEC_MASK or inner.magic != outer.magic for inner in wrapped):
        raise _corrupt(outer, "holds a compressed message, or one of another magic")
    if not wrapped:
        raise _corrupt(outer, "is empty")
    messages = [inner.message for inner in wrapped]
    if outer.magic:
        first = outer.message.offset - messages[-1].offset
        messages = [message._replace(offset=first + message.offset) for message in messages]
    if outer.message.log_append_time:
        time = outer.message.timestamp
        messages = [message._replace(timestamp=time, log_append_time=True) for message in messages]
    return messages


def _check_offsets(last: int, messages: list[LegacyMessage]) -> int:
    """Check that offsets increase, which the CRC does not cover; returns the last one."""
    for message in messages:
        if message.offset <= last:
            raise CorruptRecordError(f"a message has offset {message.offset}, after one with {last}")
        last = message.offset
    return last


def _inner(outer: _Entry, codec: int, max_size: int) -> Iterator[_Entry]:
    if codec >= len(_OLD_CODECS):
        raise _corrupt(outer, f"has the unknown compression type {codec}")
    if outer.message.value is None:
        raise _corrupt(outer, "has no value")
    packed = outer.message.value
    if outer.magic == 0 and _OLD_CODECS[codec] is Compression.LZ4:
        packed = _with_right_checksum(packed)
    data = memoryview(decompress(_OLD_CODECS[codec], packed, max_size))
    position = 0
    while position < len(data):
        size = _whole(data, position)
        if size is None:
            raise _corrupt(outer, "ends within a message")
        yield _read(data[position : position + size])
        position += size


def _read(entry: memoryview) -> _Entry:
    """One whole entry, which `_whole` has measured."""
    offset, size, crc, magic, attributes = _ENTRY.unpack_from(entry)
    if magic not in (0, 1):
        raise CorruptRecordError(f"the message at offset {offset} has magic {magic}")
    computed = crc32(entry[_CRC_START:])
    if computed != crc:
        raise CorruptRecordError(f"corrupt message at offset {offset}: stored crc {crc}, computed crc {computed}")
    if size < _SMALLEST[magic]:
        raise CorruptRecordError(f"the message at offset {offset} is cut off")
    timestamp, position = NO_TIMESTAMP, _ENTRY.size
    if magic:
        (timestamp,) = _TIMESTAMP.unpack_from(entry, position)
        position += _TIMESTAMP.size
    key, position = _bytes(entry, position, offset)
    value, position = _bytes(entry, position, offset)
    if position != len(entry):
        raise CorruptRecordError(f"the message at offset {offset} has bytes after its value")
    log_append = bool(magic and attributes & _LOG_APPEND_FLAG)
    return _Entry(magic, attributes, LegacyMessage(offset, timestamp, key, value, log_append))


def _bytes(entry: memoryview, position: int, offset: int) -> tuple[bytes | None, int]:
    if len(entry) - position < _LENGTH.size:
        raise CorruptRecordError(f"the message at offset {offset} is cut off")
    (length,) = _LENGTH.unpack_from(entry, position)
    position += _LENGTH.size
    if length == -1:
        return None, position
    if not 0 <= length <= len(entry) - position:
        raise CorruptRecordError(f"the message at offset {offset} has a field of {length} bytes")
    return bytes(entry[position : position + length]), position + length


def _corrupt(outer: _Entry, what: str) -> CorruptRecordError:
    return CorruptRecordError(f"the compressed message at offset {outer.message.offset} {what}")


def _batches(messages: list[LegacyMessage]) -> Iterator[bytearray]:
    """Batches of these messages: one, unless the broker's time (LogAppendTime) differs between them, which a batch
    has only once, or their offsets are too far apart for a batch."""
    run: list[LegacyMessage] = []
    for message in messages:
        if run and (_time_of_all(run[0]) != _time_of_all(message) or message.offset - run[0].offset > _FARTHEST):
            yield _batch(run)
            run = []
        run.append(message)
    yield _batch(run)


def _time_of_all(message: LegacyMessage) -> int | None:
    return message.timestamp if message.log_append_time else None


def _batch(messages: list[LegacyMessage]) -> bytearray:
    first = messages[0].offset
    builder = BatchBuilder()
    for message in messages:
        builder.append_at(message.offset - first, message.timestamp, message.key, message.value)
    return builder.build(base_offset=first, log_append_time=_time_of_all(messages[0]))


# ------------------------------------------------------------------------------------------------- LZ4 of magic 0


def _with_right_checksum(frame: bytes) -> bytes:
    """The frame with the correct header checksum."""
    if len(frame) < 7 or frame[:4] != _LZ4_MAGIC:
        return frame
    end = 6 + (8 if frame[4] & 0x08 else 0)
    if len(frame) <= end:
        return frame
    return b"".join((frame[:end], bytes(((_xxh32(frame[4:end]) >> 8) & 0xFF,)), frame[end + 1 :]))


_PRIME_1, _PRIME_2, _PRIME_3, _PRIME_4, _PRIME_5 = 2654435761, 2246822519, 3266489917, 668265263, 374761393
_U32 = 0xFFFFFFFF


def _xxh32(data: bytes) -> int:
    """xxHash32 with seed 0, for fewer than 16 bytes: a frame's header is always that short."""
    value = (_PRIME_5 + len(data)) & _U32
    whole = len(data) & ~3
    for (word,) in struct.iter_unpack("<I", data[:whole]):
        value = (value + word * _PRIME_3) & _U32
        value = (_rotated(value, 17) * _PRIME_4) & _U32
    for byte in data[whole:]:
        value = (value + byte * _PRIME_5) & _U32
        value = (_rotated(value, 11) * _PRIME_1) & _U32
    value = ((value ^ value >> 15) * _PRIME_2) & _U32
    value = ((value ^ value >> 13) * _PRIME_3) & _U32
    return value ^ value >> 16


def _rotated(value: int, bits: int) -> int:
    return (value << bits | value >> (32 - bits)) & _U32
