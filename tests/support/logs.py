"""Helpers for tests of the log: small batches in, records out."""

from __future__ import annotations

from typing import TypeVar

from muster.log import LogStore, PartitionLog
from muster.protocol.records.record_batch import BatchHeader, check_batch, iter_headers, read_tuples
from tests.support.written import build_batch

NOW = 1_700_000_000_000
Row = tuple[int, bytes | None, bytes | None]
L = TypeVar("L", LogStore, PartitionLog)
_held: list[LogStore | PartitionLog] = []


def held(log: L) -> L:
    """Make a log or a store end with the test (tests/unit/log/conftest.py)."""
    _held.append(log)
    return log


def end_held() -> None:
    """End all of them as if killed."""
    while _held:
        log = _held.pop()
        log.abandon() if isinstance(log, PartitionLog) else log.close(clean=False)


def batch(*records: tuple[bytes | None, bytes | None], timestamp: int = NOW, **options) -> bytearray:
    """One batch of (key, value) records, all with the same time."""
    return build_batch([(timestamp, key, value, []) for key, value in records], **options)


def read_headers(log: PartitionLog, offset: int | None = None, max_bytes: int = 300) -> list[BatchHeader]:
    """All batches from `offset` (default: the start) on, checked, read in small pieces."""
    offset = log.log_start_offset if offset is None else offset
    found = []
    while offset < log.high_watermark:
        result = log.read(offset, max_bytes)
        for position, header in iter_headers(result.data):
            check_batch(result.data, position, header)
            found.append(header)
        assert result.next_offset > offset or not result.data
        if not result.data:
            break
        offset = result.next_offset
    return found


def read_all(log: PartitionLog, offset: int | None = None, max_bytes: int = 300) -> list[Row]:
    """(offset, key, value) of all records from `offset` (default: the start) on."""
    offset = log.log_start_offset if offset is None else offset
    start = offset
    found: list[Row] = []
    while offset < log.high_watermark:
        result = log.read(offset, max_bytes)
        if not result.data:
            break
        for position, header in iter_headers(result.data):
            check_batch(result.data, position, header)
            found += [(at, key, value) for at, _, key, value, _ in read_tuples(result.data, position) if at >= start]
        offset = result.next_offset
    return found
