"""The filter for batches of aborted transactions, for every reader with read_committed (KIP-98)."""

from __future__ import annotations

from collections.abc import Iterable

from muster.protocol.records.compression import Buffer
from muster.protocol.records.control_records import is_abort_marker
from muster.protocol.records.record_batch import BatchHeader

Aborted = tuple[int, int]
"""One aborted transaction of a response: producer id, first offset."""


class AbortedTransactions:
    """Which transactional batches of one fetch response were aborted (KIP-98).

    The response names the aborted transactions by producer and first offset. A producer's batches from there to its
    abort marker are aborted. It may abort again later, so the marker ends only one entry.
    """

    def __init__(self, aborted: Iterable[Aborted]) -> None:
        self._waiting = sorted(aborted, key=lambda entry: entry[1], reverse=True)
        self._open: set[int] = set()

    def drops(self, buffer: Buffer, position: int, header: BatchHeader) -> bool:
        """Whether the batch must be skipped. Call it once for each batch, in order."""
        if not header.has_producer_id:
            return False
        while self._waiting and self._waiting[-1][1] <= header.last_offset:
            self._open.add(self._waiting.pop()[0])
        if header.is_control:
            if is_abort_marker(buffer, position, header):
                self._open.discard(header.producer_id)
            return True
        return header.is_transactional and header.producer_id in self._open
