"""The files in which brokers keep what they know about a partition's producers: `NNN.snapshot`, up to offset NNN.

Source: ProducerSnapshot.json and ProducerStateManager in Apache Kafka 4.2.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

from crc32c import crc32c

from muster.errors import MusterError

_VERSION = struct.Struct(">hI")
_COUNT = struct.Struct(">i")
_ENTRY = struct.Struct(">qhiqiqiq")


class CorruptSnapshotError(MusterError):
    """A producer snapshot that is damaged; the state is built from the log instead."""


class SnapshotEntry(NamedTuple):
    """A producer, and a batch of it that is remembered. If a producer has several entries, the last is the newest."""

    producer_id: int
    epoch: int
    last_sequence: int
    last_offset: int
    """-1: no batch is remembered."""
    offset_delta: int
    timestamp: int
    coordinator_epoch: int
    """The coordinator epoch of its last marker; -1: none."""
    first_offset: int
    """The first offset of its open transaction; negative: none is open."""


def encode_snapshot(entries: Iterable[SnapshotEntry]) -> bytes:
    """A snapshot's bytes."""
    parts = [_ENTRY.pack(*entry) for entry in entries]
    body = b"".join([_COUNT.pack(len(parts)), *parts])
    return _VERSION.pack(1, crc32c(body)) + body


def decode_snapshot(data: bytes) -> list[SnapshotEntry]:
    """The entries of a snapshot.

    Raises:
        CorruptSnapshotError: the bytes are damaged, or of an unknown version.
    """
    try:
        version, crc = _VERSION.unpack_from(data)
        if version != 1:
            raise CorruptSnapshotError(f"a producer snapshot of unknown version {version}")
        if crc32c(data[_VERSION.size :]) != crc:
            raise CorruptSnapshotError("the CRC of a producer snapshot does not match")
        [count] = _COUNT.unpack_from(data, _VERSION.size)
        first = _VERSION.size + _COUNT.size
        return [SnapshotEntry(*_ENTRY.unpack_from(data, first + at * _ENTRY.size)) for at in range(count)]
    except struct.error as error:
        raise CorruptSnapshotError(f"a producer snapshot is cut off: {error}") from None
