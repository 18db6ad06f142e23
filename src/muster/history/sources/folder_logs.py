"""What a broker's folder shows about the logs that groups read: where they begin and end, and which transactions are
open.

The state of a partition's producers is in its newest producer snapshot, up to the offset in the file's name, and in the
headers of the batches after it. Which transactions the coordinators know is in `__transaction_state`.

A broker's folder has only the partitions of which that broker has a replica. So:

- The ends are the ends of these replicas. One that lags behind, or an older copy, may end before a group's committed
  offset: such a partition is left out.
- A transaction hangs only if its coordinator demonstrably does not know about it: its transactional id is in the
  folder, in a state without this partition; or its producer belongs to no id, and the folder has all of
  `__transaction_state`.
- "Now" is the latest time in the logs, not this machine's clock: a copy is as old as its last record. A file may have
  been copied before a marker that another file already shows; such a transaction was young then, so it does not hang.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from muster.client.core.admin.partitions import ProducerState
from muster.client.core.admin.transactions import TransactionDescription, TransactionListing, hanging_transactions
from muster.errors import ProtocolError, UnsupportedVersionError
from muster.history.model import OpenTransaction
from muster.history.model import TopicPartition as PlainPartition
from muster.history.sources import segments
from muster.history.sources.folder import FolderTopic, partition_files
from muster.history.sources.open_transactions import oldest_of, with_verdict
from muster.history.sources.reader_warnings import ReaderWarnings
from muster.model import TopicPartition
from muster.protocol.records.producer_snapshots import CorruptSnapshotError, decode_snapshot
from muster.protocol.transaction_messages import TransactionLogValue
from muster.protocol.transaction_records import decode_record

TRANSACTIONS_TOPIC = "__transaction_state"
MAX_TIMEOUT_MS = 900_000
"""The default of transaction.max.timeout.ms, which is not in a folder."""


class FolderLog(NamedTuple):
    """One partition's log: its offsets, its open transactions by producer id, and its latest time (-1: none)."""

    start: int
    end: int
    opened: dict[int, segments.OpenedTransaction]
    last_ms: int


def folder_logs(
    paths: Sequence[Path], places: Iterable[PlainPartition], warnings: ReaderWarnings
) -> dict[PlainPartition, FolderLog]:
    """The logs of these partitions, except those that the folders lack."""
    wanted: dict[str, set[int]] = {}
    for topic, partition in places:
        wanted.setdefault(topic, set()).add(partition)
    found: dict[PlainPartition, FolderLog] = {}
    for topic, partitions in sorted(wanted.items()):
        for partition, files in partition_files(paths, topic).items():
            if partition in partitions and files:
                found[topic, partition] = _log(files, warnings)
    return found


def _log(files: Sequence[Path], warnings: ReaderWarnings) -> FolderLog:
    bases = [_offset_in(path) for path in files]
    plan = segments.LogPlan(next_offset=bases[0])
    for snapshot in sorted(files[0].parent.glob("*.snapshot"), reverse=True):
        try:
            plan.open = _opened(snapshot.read_bytes())
            plan.next_offset = max(_offset_in(snapshot), bases[0])
            break
        except (OSError, CorruptSnapshotError, ValueError):
            continue  # use an older snapshot, or walk the whole log
    first = max((number for number, base in enumerate(bases) if base <= plan.next_offset), default=0)
    segments.walk(files[first:], plan, warnings)
    last_ms = max([plan.last_ms, *(each.last_ms for each in plan.open.values())])
    return FolderLog(bases[0], max(plan.next_offset, bases[-1]), plan.open, last_ms)


def _offset_in(path: Path) -> int:
    """The offset in a file's name, 0 if it has another name."""
    return int(path.stem) if path.stem.isdecimal() else 0


def _opened(data: bytes) -> dict[int, segments.OpenedTransaction]:
    newest = {entry.producer_id: entry for entry in decode_snapshot(data)}
    return {
        producer_id: segments.OpenedTransaction(entry.first_offset, entry.epoch, entry.timestamp)
        for producer_id, entry in newest.items()
        if entry.first_offset >= 0
    }


def open_in_folder(
    paths: Sequence[Path], logs: Mapping[PlainPartition, FolderLog], now_ms: int, warnings: ReaderWarnings
) -> dict[PlainPartition, OpenTransaction]:
    """The oldest open transaction of each of these logs, if it has any."""
    logs = {place: log for place, log in logs.items() if log.opened}
    if not logs:
        return {}
    states, is_whole = _states(paths, warnings)
    now_ms = max([now_ms, *(log.last_ms for log in logs.values()), *(state.last_ms for state in states)])
    producers = {TopicPartition(*place): _producers(log) for place, log in logs.items()}
    stable = {TopicPartition(*place): min(each.first for each in log.opened.values()) for place, log in logs.items()}
    first = oldest_of(producers, now_ms)
    described = {each.described.transactional_id: each.described for each in states}
    unknown = hanging_transactions(first.values(), [each.listing for each in states], described)
    if not is_whole:
        unknown = [each for each in unknown if each.transactional_id is not None]
        if any(each.transactional_id is None for each in first.values()):
            warnings.add(
                f"whether some open transactions hang is not known: not all of {TRANSACTIONS_TOPIC} is in the folder"
            )
    return with_verdict(first, stable, unknown, MAX_TIMEOUT_MS)


def _producers(log: FolderLog) -> list[ProducerState]:
    return [
        ProducerState(producer_id, each.epoch, -1, each.last_ms, None, each.first)
        for producer_id, each in log.opened.items()
    ]


# ---------------------------------------------------------------------------------------------- what coordinators know

_STATES_WITH_PARTITIONS = {1: "Ongoing", 2: "PrepareCommit", 3: "PrepareAbort"}
"""In these states, each partition still waits for its marker."""


class _State(NamedTuple):
    listing: TransactionListing
    described: TransactionDescription
    last_ms: int


def _states(paths: Sequence[Path], warnings: ReaderWarnings) -> tuple[list[_State], bool]:
    """What the coordinators in the folder know about each transactional id, and whether the folder has all ids: it does
    if it has partitions 0 to n without a gap, as one of several brokers would not."""
    topic = FolderTopic(paths, TRANSACTIONS_TOPIC, warnings)
    files = {partition for path in paths for partition in partition_files([path], TRANSACTIONS_TOPIC)}
    values: dict[str, TransactionLogValue] = {}
    for key, value in _records(topic):
        try:
            record = decode_record(key, value)
        except (ProtocolError, UnsupportedVersionError) as error:
            warnings.add(f"a record of {TRANSACTIONS_TOPIC} could not be decoded: {error}")
            continue
        if record is None:
            continue
        values.pop(record.key.transactional_id, None)
        if record.value is not None:
            values[record.key.transactional_id] = record.value
    is_whole = len(files) > 1 and files == set(range(len(files)))
    return [_state(name, value) for name, value in values.items()], is_whole


def _records(topic: FolderTopic) -> Iterator[tuple[bytes | None, bytes | None]]:
    for partition in topic.records:
        for batch in topic.read(partition):
            yield from zip(batch.column("key").to_pylist(), batch.column("value").to_pylist(), strict=True)


def _state(name: str, value: TransactionLogValue) -> _State:
    status = _STATES_WITH_PARTITIONS.get(value.transaction_status, "Complete")
    places = [
        TopicPartition(each.topic, partition)
        for each in value.transaction_partitions or ()
        for partition in each.partition_ids
    ]
    start_ms = value.transaction_start_timestamp_ms
    return _State(
        TransactionListing(name, -1, value.producer_id, status),
        TransactionDescription(
            name,
            -1,
            status,
            value.producer_id,
            value.producer_epoch,
            value.transaction_timeout_ms,
            start_ms if start_ms >= 0 else None,
            places,
        ),
        value.transaction_last_update_timestamp_ms,
    )
