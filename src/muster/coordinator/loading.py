"""Reading a shard back from its log, a piece at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic

from muster.coordinator.home import GroupLog, S
from muster.errors import CorruptRecordError
from muster.protocol.primitives import Buffer
from muster.protocol.record_batch import check_batch, iter_headers, read_tuples

READ_BYTES = 4 * 1024 * 1024
MAX_BATCH_BYTES = 16 * 1024 * 1024
"""A batch that would be larger when decompressed is not the coordinator's, and is passed over."""


class Loading(Generic[S]):
    """A fresh shard, and how far its log has been applied to it.

    What cannot be understood is passed over and counted: a record that somebody else wrote, or that the disk has
    spoiled, must not take away the other groups of the partition. Batches of transactions are passed over too: nothing
    here writes them, and whether they were committed is not tracked.

    Args:
        shift: milliseconds to add to the rules' time to have the time of day, which the records tell.
    """

    def __init__(self, partition: int, log: GroupLog, shard: S, shift: int = 0) -> None:
        self.partition = partition
        self.log = log
        self.shard = shard
        self._shift = -shift
        self.passed_over = 0
        self.first_passed_over = ""
        self._records = self._read_all()

    def step(self, records: int) -> bool:
        """Apply so many records, or what is left. Whether the log's end was reached. Raises what the log raises."""
        return not all(next(self._records, False) for _ in range(records))

    def _read_all(self) -> Iterator[bool]:
        """Apply one record for each item."""
        log = self.log
        offset = log.log_start_offset
        while offset < log.high_watermark:
            read = log.read(offset, READ_BYTES)
            if read.next_offset <= offset:
                return
            yield from self._batches(read.data, offset)
            offset = read.next_offset

    def _batches(self, data: Buffer, offset: int) -> Iterator[bool]:
        try:
            for position, header in iter_headers(data):
                offset = header.base_offset
                if header.is_control or header.is_transactional:
                    continue
                try:
                    check_batch(data, position, header)
                    records = read_tuples(data, position, header, MAX_BATCH_BYTES)
                except CorruptRecordError as error:
                    self._pass_over(offset, error)
                    continue
                for offset, _, key, value, _ in records:
                    self._apply(offset, key, value)
                    yield True
        except CorruptRecordError as error:
            self._pass_over(offset, error)  # a header: where the next batch begins nobody knows

    def _apply(self, offset: int, key: bytes | None, value: bytes | None) -> None:
        try:
            self.shard.replay(key, value, self._shift)
        except Exception as error:
            self._pass_over(offset, error)

    def _pass_over(self, offset: int, error: Exception) -> None:
        self.passed_over += 1
        self.first_passed_over = self.first_passed_over or f"at offset {offset}: {error}"
