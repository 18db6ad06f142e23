"""A partition's log in memory, with the ways in which a real one fails."""

from __future__ import annotations

from bisect import bisect_right
from random import Random
from typing import Any, NamedTuple

from muster.errors import ErrorCode, KafkaError
from muster.protocol.record_batch import BatchBuilder, assign_offset, iter_headers


class LogRead(NamedTuple):
    """Whole batches, and the offset behind them."""

    data: bytes
    next_offset: int


class LogAppend(NamedTuple):
    """Where an append ended."""

    last_offset: int


class SimLog:
    """Record batches of one partition.

    With `lazy` an append is durable only after `sync`, as with `--fsync always`; else at once. `fails` makes every
    append fail, as a disk does that is gone. `crash` takes away what a crash may take away.
    """

    def __init__(self, *, lazy: bool = False) -> None:
        self.lazy = lazy
        self.fails = False
        self.failed: Exception | None = None
        self.log_start_offset = 0
        self.log_end_offset = 0
        self._synced = 0
        self._bases: list[int] = []
        self._batches: list[bytes] = []

    @property
    def high_watermark(self) -> int:
        """Records before it survive a crash."""
        return self._synced if self.lazy else self.log_end_offset

    def append(self, batches: bytearray, *, now: int, leader_epoch: int = 0, origin: Any = "") -> LogAppend:
        """Add batches; their offsets are set. Raises KafkaError while `fails` is set."""
        if self.fails:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "the disk is gone")
        for position, header in iter_headers(batches):
            assign_offset(batches, position, self.log_end_offset, leader_epoch)
            self._bases.append(self.log_end_offset)
            self._batches.append(bytes(batches[position : position + header.size]))
            self.log_end_offset += header.record_count
        return LogAppend(self.log_end_offset - 1)

    def write(self, count: int, now: int) -> None:
        """Append so many small records as one batch."""
        batch = BatchBuilder()
        for number in range(self.log_end_offset, self.log_end_offset + count):
            batch.append(now, None, b"%d" % number)
        self.append(batch.build(), now=now)

    def read(self, offset: int, max_bytes: int) -> LogRead:
        """Whole batches from the one that holds `offset` on, at least one if there is any."""
        if offset >= self.high_watermark:
            return LogRead(b"", offset)
        at = bisect_right(self._bases, offset) - 1
        found: list[bytes] = []
        size = 0
        while at < len(self._bases) and self._bases[at] < self.high_watermark:
            if found and size + len(self._batches[at]) > max_bytes:
                break
            found.append(self._batches[at])
            size += len(self._batches[at])
            at += 1
        return LogRead(b"".join(found), self._bases[at] if at < len(self._bases) else self.log_end_offset)

    def sync(self) -> None:
        """Make all that was appended durable."""
        self._synced = self.log_end_offset

    def crash(self, rng: Random) -> int:
        """Lose some of the batches that were not durable yet, from the end, or none. How many are kept of them."""
        first = bisect_right(self._bases, self.high_watermark - 1)
        kept = rng.randint(0, len(self._bases) - first)
        if first + kept < len(self._bases):
            self.log_end_offset = self._bases[first + kept]
            del self._bases[first + kept :], self._batches[first + kept :]
        self._synced = self.log_end_offset
        return kept
