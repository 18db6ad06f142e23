"""Transactions for tests of the log: batches to write, and the state that a log should have, found by reading all of
it."""

from __future__ import annotations

from dataclasses import dataclass, field

from muster.log import PartitionLog
from muster.log.producers.transactions import OngoingTransaction
from muster.log.segments.aborted_index import AbortedTxn
from muster.protocol.api import READ_COMMITTED
from muster.protocol.records.aborted import AbortedTransactions
from muster.protocol.records.control_records import TxnMarker, read_marker
from muster.protocol.records.record_batch import iter_headers, read_records
from tests.support.logs import NOW, Row, batch


def sent(
    producer_id: int, epoch: int, sequence: int, *records: tuple[bytes | None, bytes | None], time: int = NOW
) -> bytearray:
    """A transactional batch, as a producer sends it."""
    numbers = {"producer_id": producer_id, "producer_epoch": epoch, "base_sequence": sequence}
    return batch(*(records or [(b"k", b"v")]), timestamp=time, transactional=True, **numbers)


def begin(log: PartitionLog, producer_id: int, *records: tuple[bytes | None, bytes | None], epoch: int = 0) -> int:
    """Writes a batch of a transaction, verified if it is the first one; returns its offset."""
    entry = log.producers.producers.get(producer_id)
    is_known = entry is not None and entry.epoch == epoch and bool(entry.batches)
    sequence = entry.batches[-1].last_sequence + 1 if is_known and entry is not None else 0
    guard = log.begin_verification(producer_id, epoch, sequence, tv2=False, now=NOW)
    return log.append(sent(producer_id, epoch, sequence, *records), now=NOW, guard=guard).base_offset


def end(log: PartitionLog, producer_id: int, *, commit: bool, epoch: int = 0, version: int = 0, now: int = NOW) -> int:
    """Writes a marker; returns its offset."""
    result = log.append_marker(TxnMarker(producer_id, epoch, commit, 0, version), now=now)
    assert not result.error, result
    return result.base_offset


def read_committed(log: PartitionLog, offset: int | None = None, max_bytes: int = 300) -> list[Row]:
    """(offset, key, value) of the records that a reader of committed records gets from `offset` (default: the start)
    on."""
    offset = log.log_start_offset if offset is None else offset
    start, found = offset, []
    while offset < log.last_stable_offset:
        result = log.read(offset, max_bytes, isolation_level=READ_COMMITTED)
        assert result.aborted is not None
        if not result.data:
            break
        assert result.next_offset <= result.last_stable_offset
        dropped = AbortedTransactions(result.aborted)
        for position, header in iter_headers(result.data):
            if not dropped.drops(result.data, position, header) and not header.is_control:
                records = read_records(result.data, position, header)
                found += [(one.offset, one.key, one.value) for one in records if one.offset >= start]
        offset = result.next_offset
    return found


@dataclass
class Rebuilt:
    """The state according to a log's batches, in the plainest form: nothing is looked up, nothing is left out."""

    epochs: dict[int, int] = field(default_factory=dict)
    coordinators: dict[int, int] = field(default_factory=dict)
    times: dict[int, int] = field(default_factory=dict)
    open: dict[int, int] = field(default_factory=dict)
    """First offset of each producer's open transaction."""
    decided: list[tuple[int, int]] = field(default_factory=list)
    """First offset and marker of each transaction that has ended."""
    aborted: list[AbortedTxn] = field(default_factory=list)

    def stable_end(self, high_watermark: int, log_start: int) -> int:
        unstable = [*self.open.values(), *(first for first, marker in self.decided if marker >= high_watermark)]
        return max(min([high_watermark, *unstable]), log_start)

    def overlapping(self, start: int, end: int) -> list[tuple[int, int]]:
        return [txn[:2] for txn in self.aborted if txn.last_offset >= start and txn.first_offset < end]


def rebuilt(log: PartitionLog) -> Rebuilt:
    """The state according to the batches in the segments."""
    found = Rebuilt()
    for segment in log.segments:
        for position, header in segment.headers():
            pid = header.producer_id
            if pid < 0:
                continue
            found.epochs[pid], found.times[pid] = header.producer_epoch, header.max_timestamp
            if not header.is_control:
                if header.is_transactional:
                    found.open.setdefault(pid, header.base_offset)
                continue
            marker = read_marker(segment.view(position, position + header.size), 0, header)
            if marker is None:
                continue
            found.coordinators[pid] = marker.coordinator_epoch
            first = found.open.pop(pid, None)
            if first is None:
                continue
            found.decided.append((first, header.base_offset))
            if not marker.committed:
                stable = min(found.open.values(), default=header.base_offset + 1)
                found.aborted.append(AbortedTxn(pid, first, header.base_offset, stable))
    return found


def check_rebuilt(log: PartitionLog) -> None:
    """Check that the state of the log matches its batches. Not for logs whose first segments are gone or compacted."""
    expected = rebuilt(log)
    producers = log.producers.producers
    known = {pid: entry for pid, entry in producers.items() if pid in expected.epochs}
    assert {pid: entry.epoch for pid, entry in known.items()} == {pid: expected.epochs[pid] for pid in known}
    assert {pid: entry.coordinator_epoch for pid, entry in known.items() if entry.coordinator_epoch >= 0} == {
        pid: epoch for pid, epoch in expected.coordinators.items() if pid in known
    }
    assert {pid: entry.last_timestamp for pid, entry in known.items()} == {pid: expected.times[pid] for pid in known}
    assert [entry for segment in log.segments for entry in segment.aborted] == expected.aborted
    assert {one.producer_id: one.first_offset for one in log.open_transactions()} == expected.open
    assert log.open_transactions() == sorted(log.open_transactions(), key=lambda one: one.first_offset)
    assert log.last_stable_offset == expected.stable_end(log.high_watermark, log.log_start_offset)


def open_firsts(found: list[OngoingTransaction]) -> list[tuple[int, int]]:
    """Producer id and first offset of each transaction."""
    return [(one.producer_id, one.first_offset) for one in found]
