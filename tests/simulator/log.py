"""A partition's log in memory, which can fail and change like a real one."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from random import Random
from typing import Any, NamedTuple

from muster.errors import ErrorCode, KafkaError
from muster.log.producers.producer_state import PartitionProducers
from muster.protocol.records.compression import Compression
from muster.protocol.records.record_batch import BatchBuilder, iter_headers, read_header, read_tuples
from tests.support.memory_log import assign_offset


class LogRead(NamedTuple):
    """Whole batches, and the offset after them."""

    data: bytes
    next_offset: int


class LogAppend(NamedTuple):
    """The end offset of an append."""

    last_offset: int


class SimLog:
    """Record batches of one partition.

    With `lazy` an append is durable only after `sync`, as with `--fsync always`; otherwise at once. While `held` is set
    a sync does not complete. `fails` makes every append fail, like a full disk; `fail_sync` breaks the log until it is
    opened again. `crash` removes what a crash may remove.
    """

    def __init__(self, *, lazy: bool = False) -> None:
        self.lazy = lazy
        self.fails = False
        self.held = False
        self.failed: Exception | None = None
        self.log_start_offset = 0
        self.log_starts = [0]
        """All the start offsets that the log has had."""
        self.log_end_offset = 0
        self.producers = PartitionProducers()
        self._synced = 0
        self._bases: list[int] = []
        self._batches: list[bytes] = []
        self._records: list[int] = []
        """The offsets with a record, in order: compaction leaves gaps."""
        self._epochs: list[tuple[int, int]] = []
        """The leaders' epochs, each with the offset at which it begins."""

    @property
    def high_watermark(self) -> int:
        """Records before it survive a crash."""
        return self._synced if self.lazy else self.log_end_offset

    def append(self, batches: bytearray, *, now: int, leader_epoch: int = 0, origin: Any = "") -> LogAppend:
        """Add batches; their offsets are set. Raises KafkaError while `fails` is set, or once a sync has failed."""
        if self.fails or self.failed is not None:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "the disk is gone")
        if not self._epochs or self._epochs[-1][0] < leader_epoch:
            self._epochs.append((leader_epoch, self.log_end_offset))
        for position, header in iter_headers(batches):
            base = self.log_end_offset
            assign_offset(batches, position, base, leader_epoch)
            self._bases.append(base)
            self._batches.append(bytes(batches[position : position + header.size]))
            if header.has_producer_id:
                self.producers.note(header._replace(base_offset=base))
            self.log_end_offset = base + header.last_offset_delta + 1
            if header.record_count == header.last_offset_delta + 1:
                self._records += range(base, self.log_end_offset)
            else:
                self._records += [fields[0] for fields in read_tuples(batches, position)]
        return LogAppend(self.log_end_offset - 1)

    def write(
        self,
        count: int,
        now: int,
        *,
        leader_epoch: int = 0,
        compression: Compression = Compression.NONE,
        gaps: Random | None = None,
    ) -> None:
        """Append this many small records as one batch; with `gaps` some are missing, as after compaction."""
        batch = BatchBuilder()
        for delta in range(count):
            if gaps is None or gaps.randrange(3):
                batch.append_at(delta, now, None, b"%d" % (self.log_end_offset + delta))
        if not batch.count:
            batch.keep_timestamp(now)
        built = batch.build(compression=compression, last_offset_delta=count - 1)
        self.append(built, now=now, leader_epoch=leader_epoch)

    def read(self, offset: int, max_bytes: int) -> LogRead:
        """Whole batches, starting with the one that holds `offset`; at least one if there is any."""
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

    def next_record(self, offset: int) -> int:
        """The first offset from `offset` on with a current or former record; the log's end if there is none."""
        at = bisect_left(self._records, offset)
        return self._records[at] if at < len(self._records) else max(offset, self.log_end_offset)

    def end_of_epoch(self, leader_epoch: int) -> tuple[int, int]:
        """The last epoch up to this one in which anything was written, and where it ends; both -1 if there is none."""
        earlier = [epoch for epoch, _ in self._epochs if epoch <= leader_epoch]
        if not earlier:
            return -1, -1
        return earlier[-1], next((begin for epoch, begin in self._epochs if epoch > leader_epoch), self.log_end_offset)

    # --- durability --------------------------------------------------------------------------------------------------

    def sync(self) -> None:
        """Make everything that was appended durable, unless the sync hangs or the log is broken."""
        if not self.held and self.failed is None:
            self._synced = self.log_end_offset

    def fail_sync(self) -> None:
        """A sync fails: it is unknown how much of the rest is on disk, and no more appends are accepted."""
        self.failed = OSError("the sync has failed")

    def reopen(self, rng: Random) -> None:
        """What is found on disk now is everything, and is durable."""
        self.crash(rng)
        self.failed = None

    def crash(self, rng: Random) -> int:
        """Lose some of the batches that were not durable yet, from the end, or none. Returns how many of them are
        kept."""
        first = bisect_right(self._bases, self.high_watermark - 1)
        kept = rng.randint(0, len(self._bases) - first)
        if first + kept < len(self._bases):
            self._cut(first + kept)
        self._synced = self.log_end_offset
        self.held = False
        return kept

    # --- what happens to records -------------------------------------------------------------------------------------

    def delete_before(self, offset: int) -> None:
        """Retention: the log starts at `offset` from now on."""
        self.log_start_offset = max(self.log_start_offset, min(offset, self.log_end_offset))
        self.log_starts.append(self.log_start_offset)

    def truncate(self, offset: int) -> None:
        """Lose all batches that extend beyond `offset`, as when a follower that lags becomes the leader."""
        at = bisect_right(self._bases, max(offset, self.log_start_offset)) - 1
        if at >= 0 and self._bases[at] >= self.log_start_offset:
            self._cut(at)
            self._synced = min(self._synced, self.log_end_offset)

    def _cut(self, at: int) -> None:
        self.log_end_offset = self._bases[at]
        del self._bases[at:], self._batches[at:]
        del self._records[bisect_left(self._records, self.log_end_offset) :]
        self._epochs = [(epoch, begin) for epoch, begin in self._epochs if begin < self.log_end_offset]
        self.producers = PartitionProducers()
        for batch in self._batches:
            header = read_header(batch)
            if header.has_producer_id:
                self.producers.note(header)
