"""Record batches of magic 2 (KIP-98): read, check, build.

A batch is a header of 61 bytes, then its records, compressed as one piece or not at all:

    base_offset int64 | batch_length int32 | partition_leader_epoch int32 | magic int8 | crc uint32
    | attributes int16 | last_offset_delta int32 | base_timestamp int64 | max_timestamp int64
    | producer_id int64 | producer_epoch int16 | base_sequence int32 | record_count int32 | records

`batch_length` counts the bytes after it. The CRC-32C covers the bytes after it, from the attributes on. Base offset,
length and leader epoch are not covered, so a broker assigns a batch its offsets by patching twelve bytes, without
reading its records. Broker and log treat batches as opaque bytes with a header; only clients and the log's compaction
decode records.

The older formats, magic 0 and 1, have their magic at the same position. Kafka's brokers no longer write or accept them,
and neither does muster: they raise UnsupportedMagicError. `message_set.py` converts those that a client fetches.

A record's numbers are zigzag varints; its timestamp and offset are relative to the batch's. With LogAppendTime every
record has the batch's max_timestamp. A batch that compaction has cleaned keeps its base and last offset even if records
are gone, may be empty, and may carry a delete horizon in place of its base timestamp (KIP-534).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import NamedTuple, TypeVar

from crc32c import crc32c

from muster.errors import CorruptRecordError
from muster.model import headers_on_demand
from muster.protocol.records.compression import MAX_DECOMPRESSED_SIZE, Buffer, Compression, compress, decompress
from muster.protocol.records.record_decode import Decoded, RecordHeaders, decode_records
from muster.protocol.records.varints import varint

HEADER_SIZE = 61
LOG_OVERHEAD = 12
"""Bytes of a batch that its own `batch_length` does not count."""

MAGIC = 2
NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1
NO_TIMESTAMP = -1

_CRC_POSITION = 17
_CRC_START = 21
_MAGIC_POSITION = 16
_HEADER = struct.Struct(">qiibIhiqqqhii")
PREFIX = struct.Struct(">qii")
"""The fields that place a batch in the log: base offset, batch length, leader epoch."""

_OFFSET_AND_LENGTH = struct.Struct(">qi")
_LENGTH = struct.Struct(">i")
_LENGTH_POSITION = 8
_CRC = struct.Struct(">I")
_AFTER_CRC = struct.Struct(">hiqqqhii")
_PRODUCER = struct.Struct(">qhi")
_PRODUCER_POSITION = 43

COMPRESSION_MASK = 0x07
TIMESTAMP_TYPE_FLAG = 0x08
TRANSACTIONAL_FLAG = 0x10
CONTROL_FLAG = 0x20
_DELETE_HORIZON_FLAG = 0x40
_KNOWN_ATTRIBUTES = COMPRESSION_MASK | TRANSACTIONAL_FLAG | CONTROL_FLAG | _DELETE_HORIZON_FLAG

_MIN_RECORD_SIZE = 7

_CODECS = tuple(Compression)

_COUNTS = tuple(varint(number) for number in range(4_096))
_ONE_BYTE = 64
"""Numbers below this take one byte, the others in _COUNTS take two."""


class UnsupportedMagicError(CorruptRecordError):
    """A message of magic 0 or 1, or of an unknown one. Brokers answer INVALID_RECORD."""


class BatchHeader(NamedTuple):
    """The fixed part of a batch, with Kafka's names. Timestamps are milliseconds since the epoch."""

    base_offset: int
    batch_length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size(self) -> int:
        """Bytes of the whole batch, header included."""
        return self.batch_length + LOG_OVERHEAD

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def last_sequence(self) -> int:
        """Sequence of the last record; sequences wrap from 2^31 - 1 to 0."""
        if self.base_sequence == NO_SEQUENCE:
            return NO_SEQUENCE
        return (self.base_sequence + self.last_offset_delta) & 0x7FFFFFFF

    @property
    def compression(self) -> Compression:
        """The codec. Raises CorruptRecordError for a number without a codec."""
        codec = self.attributes & COMPRESSION_MASK
        if codec >= len(_CODECS):
            raise CorruptRecordError(f"unknown compression type {codec} in the batch at offset {self.base_offset}")
        return _CODECS[codec]

    @property
    def timestamp_type(self) -> int:
        """0 is CreateTime, 1 LogAppendTime."""
        return 1 if self.attributes & TIMESTAMP_TYPE_FLAG else 0

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL_FLAG)

    @property
    def is_control(self) -> bool:
        """Whether the batch holds transaction markers or other records that no application sees."""
        return bool(self.attributes & CONTROL_FLAG)

    @property
    def has_producer_id(self) -> bool:
        return self.producer_id > NO_PRODUCER_ID

    @property
    def delete_horizon_ms(self) -> int | None:
        """When compaction may drop the tombstones of this batch (KIP-534); None if it has not been set."""
        return self.base_timestamp if self.attributes & _DELETE_HORIZON_FLAG else None


_header_of = tuple.__new__  # does the same as `BatchHeader._make`, in half the time

RecordFields = tuple[int, bytes | None, bytes | None, RecordHeaders]
"""timestamp, key, value, headers: a record as a producer gives it."""

RecordTuple = tuple[int, int, bytes | None, bytes | None, RecordHeaders]
"""offset, timestamp, key, value, headers."""


R = TypeVar("R", bound=Decoded)


@headers_on_demand
@dataclass(slots=True)
class Record:
    """One record. `offset` is absolute when read, and ignored when a batch is built."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: RecordHeaders = field(default_factory=list)


# ------------------------------------------------------------------------------------------------- headers and CRC


def read_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """The header at `position`. Raises CorruptRecordError if it is cut off or cannot be one, and its subclass
    UnsupportedMagicError for magic 0 and 1. The batch's bytes need not be there: only `check_batch` looks at them."""
    header = unpack_header(buffer, position)
    if (
        header.batch_length < HEADER_SIZE - LOG_OVERHEAD
        or header.record_count < 0
        or header.last_offset_delta < 0
        or header.base_offset < 0
    ):
        raise CorruptRecordError(f"invalid batch header: {header}")
    return header


def unpack_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """Like `read_header`, without checking whether the header makes sense."""
    try:
        header = _header_of(BatchHeader, _HEADER.unpack_from(buffer, position))
    except struct.error:
        if len(buffer) - position > _MAGIC_POSITION and buffer[position + _MAGIC_POSITION] != MAGIC:
            raise _wrong_magic(buffer[position + _MAGIC_POSITION]) from None
        raise CorruptRecordError(f"a batch header is cut off: {max(len(buffer) - position, 0)} bytes") from None
    if header.magic != MAGIC:
        raise _wrong_magic(header.magic)
    return header


def _wrong_magic(magic: int) -> CorruptRecordError:
    if magic in (0, 1):
        return UnsupportedMagicError(
            f"a message set of magic {magic}: only record batches of magic 2 are supported (Kafka 0.11 and newer)"
        )
    return UnsupportedMagicError(f"a record batch of unknown magic {magic}")


def iter_headers(buffer: Buffer, position: int = 0) -> Iterator[tuple[int, BatchHeader]]:
    """Position and header of each whole batch. A last one that is cut off ends the iteration (a fetch may end in one);
    a header that makes no sense raises CorruptRecordError."""
    while (header := next_header(buffer, position)) is not None:
        yield position, header
        position += header.batch_length + LOG_OVERHEAD


def next_header(buffer: Buffer, position: int) -> BatchHeader | None:
    """The header at `position`; None if the batch is not complete. Raises as `iter_headers` does."""
    left = len(buffer) - position
    if left <= _MAGIC_POSITION:
        return None
    length: int = _LENGTH.unpack_from(buffer, position + _LENGTH_POSITION)[0]
    if length >= 0 and left < length + LOG_OVERHEAD:
        return None
    return read_header(buffer, position)


def check_batch(buffer: Buffer, position: int, header: BatchHeader) -> None:
    """Check that the batch is complete and its CRC-32C is right. Raises CorruptRecordError. Copies nothing."""
    end = position + header.batch_length + LOG_OVERHEAD
    if end > len(buffer):
        raise CorruptRecordError(f"a batch of {header.size} bytes is truncated: {len(buffer) - position} are present")
    computed = crc_of(memoryview(buffer), position, end)
    if computed != header.crc:
        raise CorruptRecordError(
            f"corrupt batch at offset {header.base_offset}: stored crc {header.crc}, computed crc {computed}"
        )


def crc_of(view: memoryview, position: int, end: int) -> int:
    """The correct CRC-32C of the batch from `position` to `end`."""
    return crc32c(view[position + _CRC_START : end])


def set_times(buffer: bytearray | memoryview, position: int, header: BatchHeader, latest: int, append: bool) -> None:
    """Make `latest` the batch's largest timestamp (with `append`, LogAppendTime, every record's), and compute the CRC
    again, in place. Kafka's brokers also clear unknown attributes in that case."""
    attributes = header.attributes & _KNOWN_ATTRIBUTES | (TIMESTAMP_TYPE_FLAG if append else 0)
    struct.pack_into(">hiqq", buffer, position + _CRC_START, attributes, *header[6:8], latest)
    set_crc(buffer, position, position + header.size)


def set_producer(
    buffer: bytearray | memoryview, position: int, producer_id: int, producer_epoch: int, base_sequence: int
) -> None:
    """Give a batch a different producer and sequence, and compute the CRC again, in place."""
    end = position + _OFFSET_AND_LENGTH.unpack_from(buffer, position)[1] + LOG_OVERHEAD
    _PRODUCER.pack_into(buffer, position + _PRODUCER_POSITION, producer_id, producer_epoch, base_sequence)
    set_crc(buffer, position, end)


def set_crc(buffer: bytearray | memoryview, position: int, end: int) -> None:
    """Compute the CRC of the batch from `position` to `end` again, in place."""
    _CRC.pack_into(buffer, position + _CRC_POSITION, crc_of(memoryview(buffer), position, end))


# ------------------------------------------------------------------------------------------------- reading records


def read_records(
    buffer: Buffer, position: int = 0, header: BatchHeader | None = None, max_size: int = MAX_DECOMPRESSED_SIZE
) -> list[Record]:
    """The records of one batch, decompressed (to at most `max_size` bytes). The CRC is not checked again.

    Raises CorruptRecordError if they are not what the header says."""
    return read_as(Record, buffer, position, header, max_size)


def read_as(
    kind: type[R],
    buffer: Buffer,
    position: int = 0,
    header: BatchHeader | None = None,
    max_size: int = MAX_DECOMPRESSED_SIZE,
) -> list[R]:
    """Like `read_records`, as objects of another class, created without its `__init__`, with the attributes of a
    `Record`."""
    header = header or read_header(buffer, position)
    data = record_bytes(buffer, position, header, max_size)
    if header.record_count * _MIN_RECORD_SIZE > len(data):
        raise CorruptRecordError(f"{header.record_count} records do not fit in {len(data)} bytes")
    records: list[R] = list(map(kind.__new__, repeat(kind, header.record_count)))
    try:
        decode_records(data, header, records)
    except IndexError:
        text = f"a record of the batch at offset {header.base_offset} is cut off: a field extends beyond the end"
        raise CorruptRecordError(text) from None
    return records


def read_tuples(
    buffer: Buffer, position: int = 0, header: BatchHeader | None = None, max_size: int = MAX_DECOMPRESSED_SIZE
) -> list[RecordTuple]:
    """Like `read_records`, as plain tuples (offset, timestamp, key, value, headers)."""
    records = read_records(buffer, position, header, max_size)
    return [(found.offset, found.timestamp, found.key, found.value, found.headers) for found in records]


def record_bytes(buffer: Buffer, position: int, header: BatchHeader, max_size: int = MAX_DECOMPRESSED_SIZE) -> bytes:
    """The records of one batch as they are encoded, decompressed. Raises CorruptRecordError."""
    end = position + header.batch_length + LOG_OVERHEAD
    if end > len(buffer):
        raise CorruptRecordError(f"a batch of {header.size} bytes is truncated: {len(buffer) - position} are present")
    return decompress(header.compression, memoryview(buffer)[position + HEADER_SIZE : end], max_size)


# ------------------------------------------------------------------------------------------------- building


class BatchBuilder:
    """Collects records and builds one batch from them.

    `size` is exact for the batch without compression, so a producer knows when the next record would not fit. The
    base timestamp is the first record's, unless one is given (compaction puts a delete horizon there)."""

    __slots__ = ("_base_timestamp", "_last_delta", "_max_timestamp", "_parts", "count", "size")

    def __init__(self, base_timestamp: int | None = None) -> None:
        self.count = 0
        self.size = HEADER_SIZE
        self._parts: list[bytes | memoryview] = []
        self._base_timestamp = base_timestamp
        self._max_timestamp = NO_TIMESTAMP
        self._last_delta = -1

    def append(
        self,
        timestamp: int,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes | None]] = (),
    ) -> int:
        """Add a record and return its offset relative to the batch's base."""
        delta = self._last_delta + 1
        self.append_at(delta, timestamp, key, value, headers)
        return delta

    def append_at(
        self,
        offset_delta: int,
        timestamp: int,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes | None]] = (),
    ) -> None:
        """Add a record at a given relative offset: compaction leaves gaps."""
        if offset_delta <= self._last_delta:
            raise ValueError(f"relative offset {offset_delta} does not follow {self._last_delta}")
        base_timestamp = self._base_timestamp
        if base_timestamp is None:
            base_timestamp = self._base_timestamp = timestamp
        if timestamp > self._max_timestamp:
            self._max_timestamp = timestamp
        # A producer's hot path: small numbers are encoded without a call, and the value is not copied until the batch
        # is built.
        counts, limit = _COUNTS, len(_COUNTS)
        head = b"\0\0" if timestamp == base_timestamp else b"\0" + varint(timestamp - base_timestamp)
        head += counts[offset_delta] if offset_delta < limit else varint(offset_delta)
        head += b"\x01" if key is None else varint(len(key)) + key
        if value is None:
            head += b"\x01"
            value = b""
        else:
            head += counts[len(value)] if len(value) < limit else varint(len(value))
        tail = _encode_headers(headers) if headers else b"\0"
        size = len(head) + len(value) + len(tail)
        length = counts[size] if size < limit else varint(size)
        self._parts += (length, head, value, tail)
        self.size += len(length) + size
        self._last_delta = offset_delta
        self.count += 1

    def append_encoded(self, timestamp: int, head: bytes, ends: Sequence[bytes], size: int = 0) -> None:
        """Add records whose key, value and headers are already encoded, each with its length in front: `head`, with
        which all begin, then one of `ends`. `size` is the length of every end, if all have the same."""
        base_timestamp = self._base_timestamp
        if base_timestamp is None:
            base_timestamp = self._base_timestamp = timestamp
        if timestamp > self._max_timestamp:
            self._max_timestamp = timestamp
        start = b"\0\0" if timestamp == base_timestamp else b"\0" + varint(timestamp - base_timestamp)
        delta, parts, counts, limit = self._last_delta, self._parts, _COUNTS, len(_COUNTS)
        last = self._last_delta = delta + len(ends)
        self.count += last - delta
        fixed = len(start) + len(head)
        if size and (last < _ONE_BYTE or (delta >= _ONE_BYTE - 1 and last < limit)):
            # All have the same form: in this range an offset takes as many bytes as the one before it.
            length = fixed + size + (1 if last < _ONE_BYTE else 2)
            counted = counts[length] if length < limit else varint(length)
            records = [counted + start, b"", head, b""] * (last - delta)
            records[1::4] = counts[delta + 1 : last + 1]
            records[3::4] = ends
            parts += records
            self.size += (len(counted) + length) * (last - delta)
            return
        for end in ends:
            delta += 1
            place = counts[delta] if delta < limit else varint(delta)
            length = fixed + len(place) + len(end)
            counted = counts[length] if length < limit else varint(length)
            parts += (counted + start, place, head, end)
            self.size += len(counted) + length

    def append_packed(self, timestamp: int, records: memoryview, count: int) -> None:
        """Add completely encoded records, one after another, all with this timestamp and with offsets from 0 on. They
        must be the first. The memory is not copied before the batch is built."""
        if self.count:
            raise ValueError("packed records must be the first of their batch")
        self._base_timestamp = self._max_timestamp = timestamp
        self._parts.append(records)
        self.size += len(records)
        self._last_delta = count - 1
        self.count = count

    def keep_timestamp(self, timestamp: int) -> None:
        """Make `timestamp` the batch's base and largest time, for a batch that has no records left."""
        self._base_timestamp = self._max_timestamp = timestamp

    def build(
        self,
        *,
        base_offset: int = 0,
        compression: Compression = Compression.NONE,
        level: int | None = None,
        producer_id: int = NO_PRODUCER_ID,
        producer_epoch: int = NO_PRODUCER_EPOCH,
        base_sequence: int = NO_SEQUENCE,
        transactional: bool = False,
        control: bool = False,
        leader_epoch: int = -1,
        last_offset_delta: int | None = None,
        log_append_time: int | None = None,
        delete_horizon: bool = False,
    ) -> bytearray:
        """The batch's bytes. The last three arguments are for compaction, which keeps the values of the old batch; with
        `delete_horizon` the base timestamp that the builder was given is marked as a delete horizon.

        Raises ValueError if there is no record and no `last_offset_delta`."""
        if last_offset_delta is None:
            if not self.count:
                raise ValueError("a batch needs at least one record")
            last_offset_delta = self._last_delta
        compression = compression if self.count else Compression.NONE
        attributes = compression | (TRANSACTIONAL_FLAG if transactional else 0) | (CONTROL_FLAG if control else 0)
        base_timestamp = NO_TIMESTAMP if self._base_timestamp is None else self._base_timestamp
        max_timestamp = self._max_timestamp
        if log_append_time is not None:
            attributes |= TIMESTAMP_TYPE_FLAG
            max_timestamp = log_append_time
        if delete_horizon:
            attributes |= _DELETE_HORIZON_FLAG
        parts: Sequence[bytes | memoryview] = self._parts
        if compression:
            parts = [compress(compression, b"".join(self._parts), level)]
        batch = bytearray().join((bytes(HEADER_SIZE), *parts))
        fields = (attributes, last_offset_delta, base_timestamp, max_timestamp)
        _AFTER_CRC.pack_into(batch, _CRC_START, *fields, producer_id, producer_epoch, base_sequence, self.count)
        PREFIX.pack_into(batch, 0, base_offset, len(batch) - LOG_OVERHEAD, leader_epoch)
        batch[_MAGIC_POSITION] = MAGIC
        _CRC.pack_into(batch, _CRC_POSITION, crc32c(memoryview(batch)[_CRC_START:]))
        return batch


_RECORD_OVERHEAD = 21
_HEADER_OVERHEAD = 10


def record_size(key: bytes | None, value: bytes | None, headers: Sequence[tuple[str, bytes | None]]) -> int:
    """An upper bound of a record's bytes within a batch, before compression."""
    size = _RECORD_OVERHEAD + (len(key) if key else 0) + (len(value) if value else 0)
    for name, content in headers:
        size += _HEADER_OVERHEAD + len(name.encode()) + (len(content) if content else 0)
    return size


def _encode_headers(headers: Sequence[tuple[str, bytes | None]]) -> bytes:
    parts = [varint(len(headers))]
    for key, value in headers:
        name = key.encode()
        parts += (varint(len(name)), name)
        parts.append(b"\x01" if value is None else varint(len(value)) + value)
    return b"".join(parts)
