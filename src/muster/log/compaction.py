"""Compaction: only the last record of each key is kept. Offsets never change; dropped records leave gaps.

    sealed segments:   | cleaned before | dirty: written since |   active segment (never touched)

1. Read the dirty part and note the last offset of each key.
2. Read everything from the start and copy it, without records whose key occurs again later, records without a key, and
   tombstones (records without a value) past their time. Small neighbouring segments become one.
3. Replace the old segments with the new ones. A group of neighbours is replaced before the next group is read, the
   oldest first, so that no tombstone is gone before the records that it deletes.

Only synced segments are compacted: otherwise a power cut could undo the newer value for which an older one was dropped.
They must also be before the last stable offset, so that all their transactions are decided.

A tombstone stays for `delete_retention_ms` after compaction first encounters it, so that a consumer that is still
reading learns that the key is gone. The end of that time is written into the batch itself, as its delete horizon
(KIP-534). A batch that loses records keeps its base offset, its last offset and its sequences. The last batch of a
producer stays even when empty, so that the producer's state can be built from the log (as in Kafka's Cleaner); if only
a marker of that producer is left, the markers with its epoch stay.

Records of aborted transactions are dropped in the first run and never replace an older value. A marker stays as long as
a batch of its transaction does. Then it gets a delete horizon, like a tombstone: a consumer that has read the batches
may still have to read the marker. Markers are never matched by key.

Step 3 must survive a crash or a power cut at any point:

- The new segment is written and synced as `X.log.cleaned`.
- It is renamed to `X.log.swap`. Once the folder is synced, the new segment is the valid one.
- The indexes of the old segments are deleted, and their files except the one named X. The folder is synced again, so
  that no old segment can come back alongside `X.log`.
- The rename to `X.log` replaces the last old file. It is final once the folder is synced a third time.

`finish_swaps` continues where a crash stopped. A reader that has mapped an old segment keeps it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from muster.log.config import MAX_OFFSETS_OF_A_SEGMENT, LogConfig
from muster.log.files import DISK, Files
from muster.log.producers.producer_state import LastRecord
from muster.log.segments.aborted_index import AbortedIndex, AbortedTxn
from muster.log.segments.segment import Segment, segment_name
from muster.protocol.records.control_records import read_marker
from muster.protocol.records.record_batch import BatchBuilder, BatchHeader, Record, read_header, read_records

KEY_MEMORY = 128 * 1024 * 1024
"""Roughly the bytes of keys that one run holds (Kafka's log.cleaner.dedupe.buffer.size); the next run does the rest."""

_BYTES_FOR_EACH_KEY = 120


@dataclass(slots=True)
class Statistics:
    """What a run did, in bytes and records."""

    bytes_before: int = 0
    bytes_after: int = 0
    records_before: int = 0
    records_after: int = 0


@dataclass(slots=True)
class Replacement:
    """A new segment, written under its `.cleaned` name, and the segments that it replaces."""

    new: Segment
    old: list[Segment]


@dataclass(slots=True)
class CleaningRun:
    """The replacements, each made on demand, and where the dirty part begins after all of them."""

    replacements: Iterator[Replacement]
    cleaned_to: int
    statistics: Statistics


class CompactionStopped(Exception):  # noqa: N818 - it is not an error
    """The caller has cancelled the compaction."""


class _KeyMap(NamedTuple):
    """The last offset of each key of the dirty part, which was read up to `end_offset`."""

    offsets: dict[bytes, int]
    end_offset: int


def clean(
    sealed: list[Segment],
    config: LogConfig,
    now: int,
    cleaned_to: int,
    producers: Mapping[int, LastRecord],
    aborted: Sequence[AbortedTxn],
    *,
    files: Files = DISK,
    breathe: Callable[[], None] = lambda: None,
) -> CleaningRun | None:
    """The compacted form of `sealed`. None if nothing is dirty. Raises OSError, CorruptRecordError.

    `producers` has what must be kept for each producer, `aborted` the aborted transactions that overlap with `sealed`,
    including those whose markers are later. `breathe` is called between batches; it may wait, and raise
    CompactionStopped."""
    sealed = _old_enough(sealed, config, now)
    keys = _read_keys(sealed, cleaned_to, aborted, breathe)
    if keys is None:
        return None
    statistics = Statistics()
    cleaner = _Cleaner(keys, config, now, producers, aborted, statistics, files, breathe)
    groups = _groups([s for s in sealed if s.base_offset < keys.end_offset], config)
    return CleaningRun((Replacement(cleaner.rewrite(group), group) for group in groups), keys.end_offset, statistics)


def _old_enough(sealed: list[Segment], config: LogConfig, now: int) -> list[Segment]:
    """The segments in which every record is at least `min_compaction_lag_ms` old."""
    if config.min_compaction_lag_ms <= 0:
        return sealed
    for at, segment in enumerate(sealed):
        if segment.max_timestamp > now - config.min_compaction_lag_ms:
            return sealed[:at]
    return sealed


class _Outcomes:
    """The outcomes of transactions, while batches are read in order (Kafka's CleanedTransactionMetadata)."""

    def __init__(self, aborted: Sequence[AbortedTxn]) -> None:
        self._waiting = sorted(aborted, key=lambda entry: entry.first_offset, reverse=True)
        self._aborted: dict[int, AbortedTxn] = {}
        """By producer: aborted transactions whose marker has not been read yet."""
        self._seen: set[int] = set()
        """The producers whose batches were read since their last marker."""

    def is_aborted(self, header: BatchHeader) -> bool:
        """Whether a batch of records belongs to an aborted transaction."""
        if not header.is_transactional:
            return False
        self._catch_up(header)
        self._seen.add(header.producer_id)
        return header.producer_id in self._aborted

    def end(self, header: BatchHeader, batch: memoryview) -> tuple[bool, AbortedTxn | None]:
        """Whether a control batch may be dropped because nothing is left of its transaction; otherwise, the index entry
        of an aborted transaction."""
        self._catch_up(header)
        if read_marker(batch, 0, header) is None:
            return not header.record_count, None
        entry = self._aborted.pop(header.producer_id, None)
        if header.producer_id not in self._seen:
            return True, None
        self._seen.remove(header.producer_id)
        return False, entry

    def _catch_up(self, header: BatchHeader) -> None:
        while self._waiting and self._waiting[-1].first_offset <= header.last_offset:
            entry = self._waiting.pop()
            if entry.last_offset >= header.base_offset:  # otherwise the marker precedes the first batch read
                self._aborted[entry.producer_id] = entry


def _read_keys(
    sealed: list[Segment], cleaned_to: int, aborted: Sequence[AbortedTxn], breathe: Callable[[], None]
) -> _KeyMap | None:
    offsets: dict[bytes, int] = {}
    end_offset, memory = -1, 0
    outcomes = _Outcomes(aborted)
    for segment in sealed:
        if segment.next_offset <= cleaned_to:
            continue
        if end_offset >= 0 and memory > KEY_MEMORY:
            break
        for _, header, batch in _batches(segment):
            breathe()
            if header.is_control:
                outcomes.end(header, batch)
                continue
            if outcomes.is_aborted(header) or header.last_offset < cleaned_to:
                continue
            for record in read_records(batch, 0, header):
                key, offset = record.key, record.offset
                if key is not None and offset >= cleaned_to:
                    memory += 0 if key in offsets else len(key) + _BYTES_FOR_EACH_KEY
                    offsets[key] = offset
        end_offset = segment.next_offset
    return None if end_offset < 0 else _KeyMap(offsets, end_offset)


def _batches(segment: Segment) -> Iterator[tuple[int, BatchHeader, memoryview]]:
    for position, header in segment.headers():
        yield position, header, segment.view(position, position + header.size)


def _groups(sealed: list[Segment], config: LogConfig) -> list[list[Segment]]:
    """Neighbouring segments that fit into one together, by size and by what the indexes can hold."""
    groups: list[list[Segment]] = []
    size = 0
    for segment in sealed:
        fits = (
            groups
            and size + segment.size <= config.segment_bytes
            and segment.next_offset - groups[-1][0].base_offset <= MAX_OFFSETS_OF_A_SEGMENT
        )
        if fits:
            groups[-1].append(segment)
            size += segment.size
        else:
            groups.append([segment])
            size = segment.size
    return groups


class _Cleaner:
    def __init__(
        self,
        keys: _KeyMap,
        config: LogConfig,
        now: int,
        producers: Mapping[int, LastRecord],
        aborted: Sequence[AbortedTxn],
        statistics: Statistics,
        files: Files,
        breathe: Callable[[], None],
    ) -> None:
        self._files = files
        self._breathe = breathe
        self._keys = keys
        self._config = config
        self._now = now
        self._producers = producers
        self._outcomes = _Outcomes(aborted)
        """One for all groups of a run: a transaction may begin in one group and end in another (KAFKA-8351)."""
        self._statistics = statistics

    def rewrite(self, group: list[Segment]) -> Segment:
        first = group[0]
        new = Segment(first.path.parent, first.base_offset, self._now, suffix=".cleaned", files=self._files)
        new.create()
        try:
            for segment in group:
                self._statistics.bytes_before += segment.size
                for _, header, batch in _batches(segment):
                    self._breathe()
                    if header.is_control:
                        kept = self._filter_marker(header, batch, new.aborted)
                    else:
                        kept = self._filter(header, batch)
                    if kept is not None:
                        new.write(kept)
                        new.note(read_header(kept), self._config.index_interval_bytes)
            new.sync()
            new.map_whole()
        except BaseException:
            discard(new)
            raise
        finally:
            new.close_file()
        new.seal()
        new.next_offset = group[-1].next_offset
        new.created_ms = group[-1].created_ms
        self._statistics.bytes_after += new.size
        return new

    def _filter(self, header: BatchHeader, batch: memoryview) -> memoryview | bytearray | None:
        """The batch as it was, or without its dropped records, or None."""
        horizon = header.delete_horizon_ms
        aborted = self._outcomes.is_aborted(header)
        records = [] if aborted else read_records(batch, 0, header)
        kept = [record for record in records if self._stays(record, horizon)]
        self._statistics.records_before += header.record_count
        self._statistics.records_after += len(kept)
        set_horizon = horizon is None and any(record.value is None for record in kept)
        if len(kept) == len(records) and not set_horizon and records:
            return batch
        if not kept and not self._is_last(header):
            return None
        return self._rebuild(header, kept, self._now + self._config.delete_retention_ms if set_horizon else horizon)

    def _filter_marker(
        self, header: BatchHeader, batch: memoryview, index: AbortedIndex
    ) -> memoryview | bytearray | None:
        """Like `_filter`, for a control batch. An aborted transaction with batches left keeps its index entry."""
        may_go, entry = self._outcomes.end(header, batch)
        if entry is not None:
            index.append(entry)
        if not may_go:
            return batch
        horizon = header.delete_horizon_ms
        if not header.record_count or (horizon is not None and horizon <= self._now):
            return self._rebuild(header, [], None) if self._is_last(header) else None
        if horizon is not None:
            return batch
        return self._rebuild(header, read_records(batch, 0, header), self._now + self._config.delete_retention_ms)

    def _is_last(self, header: BatchHeader) -> bool:
        """Whether the state of the batch's producer would be lost with it."""
        last = self._producers.get(header.producer_id) if header.producer_id >= 0 else None
        if last is None:
            return False
        if last.last_offset is not None:
            return header.last_offset == last.last_offset
        return header.is_control and header.producer_epoch == last.epoch

    def _stays(self, record: Record, horizon: int | None) -> bool:
        if record.offset >= self._keys.end_offset:
            return True
        if record.key is None or self._keys.offsets.get(record.key, -1) > record.offset:
            return False
        return record.value is not None or horizon is None or self._now < horizon

    @staticmethod
    def _rebuild(header: BatchHeader, kept: list[Record], horizon: int | None) -> bytearray:
        builder = BatchBuilder(base_timestamp=horizon)
        for record in kept:
            delta = record.offset - header.base_offset
            builder.append_at(delta, record.timestamp, record.key, record.value, record.headers)
        if not kept:
            # Only the header is left: its time must not be lost with the records.
            builder.keep_timestamp(header.max_timestamp)
        return builder.build(
            base_offset=header.base_offset,
            compression=header.compression,
            producer_id=header.producer_id,
            producer_epoch=header.producer_epoch,
            base_sequence=header.base_sequence,
            transactional=header.is_transactional,
            control=header.is_control,
            leader_epoch=header.partition_leader_epoch,
            last_offset_delta=header.last_offset_delta,
            log_append_time=header.max_timestamp if header.timestamp_type else None,
            delete_horizon=horizon is not None,
        )


# ------------------------------------------------------------------------------------------------- the exchange


def commit(replacement: Replacement) -> None:
    """Make the new segment valid, even after a crash. Raises OSError; then the old ones are still valid."""
    new = replacement.new
    try:
        swap = new.path.with_suffix(".swap")
        new.files.replace(new.path, swap)
        new.path = swap
        new.files.sync_folder(swap.parent)
    except OSError:
        discard(new)
        raise


def finish(replacement: Replacement) -> None:
    """Removes the old segments and gives the new one its name. Call it again if it raises OSError."""
    new = replacement.new
    if new.path.suffix == ".swap":
        _exchange(new.files, new.path, [old.base_offset for old in replacement.old])
        new.path = new.path.with_suffix("")
    new.save_indexes(sync=True)
    # Otherwise a `.swap` of this run could come back alongside one of the next run, which includes this run's result.
    new.files.sync_folder(new.path.parent)


def discard(new: Segment) -> None:
    """Discards a new segment that is no longer wanted. A file that cannot be removed is removed at the next start."""
    new.close()
    with contextlib.suppress(OSError):
        new.files.unlink_if_exists(new.path)


def _exchange(files: Files, swap: Path, old_bases: list[int]) -> None:
    directory, base = swap.parent, int(swap.name[:20])
    for old in {base, *old_bases}:
        for suffix in (".index", ".timeindex", ".txnindex"):
            files.unlink_if_exists(directory / segment_name(old, suffix))
    for old in sorted(old_bases):  # the oldest first: a tombstone must not go before the records that it deletes
        if old != base:
            files.unlink_if_exists(directory / segment_name(old, ".log"))
    files.sync_folder(directory)
    files.replace(swap, directory / segment_name(base, ".log"))


def finish_swaps(files: Files, directory: Path, names: list[str]) -> None:
    """Before a folder is loaded: deletes `.cleaned` files, finishes `.swap` files. Raises OSError."""
    for name in names:
        if name.endswith(".cleaned"):
            files.unlink(directory / name)
    for name in sorted(name for name in names if name.endswith(".log.swap")):
        end = _end_of(directory / name)
        base = int(name[:20])
        logs = [int(other[:20]) for other in names if other.endswith(".log")]
        _exchange(files, directory / name, [other for other in logs if base <= other < end])


def _end_of(path: Path) -> int:
    """The offset after the last batch of a segment that was completely written and synced."""
    segment = Segment(path.parent, int(path.name[:20]), 0)
    segment.path = path
    segment.size = path.stat().st_size
    end = segment.base_offset + 1
    for _, header in segment.headers():
        end = header.next_offset
    segment.close()
    return end
