"""Compaction: only the last record of each key stays. Offsets never change; dropped records leave gaps.

    sealed segments:   | cleaned before | dirty: written since |   active segment (never touched)

1. Read the dirty part and note the last offset of each key.
2. Read everything from the start and copy it, without records whose key comes again later, records without a key, and
   tombstones (records without a value) whose time is over. Small neighbouring segments become one.
3. Exchange new segments for old. A group of neighbours is exchanged before the next group is read, the oldest first, so
   that no tombstone is gone before the records that it deletes.

Only synced segments take part: otherwise a power cut could take back the newer value for which an older one was
dropped.

A tombstone stays for `delete_retention_ms` after compaction has first met it, so that a consumer that is still reading
learns that the key is gone. The end of that time is written into the batch itself, as its delete horizon (KIP-534). A
batch that loses records keeps its base offset, its last offset and its sequences. The last batch of an idempotent
producer stays even when empty, so that the producer's state can be built from the log (as in Kafka's Cleaner).

Step 3 must survive a crash or a power cut at any point:

- The new segment is written and synced as `X.log.cleaned`.
- It is renamed to `X.log.swap`. Once the folder is synced, the new segment counts.
- The indexes of the old segments are deleted, and their files except the one named X. The folder is synced again, so
  that no old segment can come back beside `X.log`.
- The rename to `X.log` replaces the last old file. It is final once the folder is synced a third time.

`finish_swaps` continues where a crash stopped. A reader that has mapped an old segment keeps it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from muster.log.config import MAX_OFFSETS_OF_A_SEGMENT, LogConfig
from muster.log.files import DISK, Files
from muster.log.segment import Segment, segment_name
from muster.protocol.records.record_batch import BatchBuilder, BatchHeader, Record, read_header, read_records

KEY_MEMORY = 128 * 1024 * 1024
"""Roughly the bytes of keys that one run takes in (Kafka's log.cleaner.dedupe.buffer.size); the next run does the
rest."""

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
class Run:
    """The replacements, each made when it is asked for, and where the dirty part begins after all of them."""

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
    last_offsets: Mapping[int, int],
    *,
    files: Files = DISK,
    breathe: Callable[[], None] = lambda: None,
) -> Run | None:
    """The compacted form of `sealed`. None if nothing is dirty. Raises OSError, CorruptRecordError.

    `last_offsets` has the last offset of each idempotent producer. `breathe` is called between batches; it may wait,
    and raise CompactionStopped."""
    sealed = _old_enough(sealed, config, now)
    keys = _read_keys(sealed, cleaned_to, breathe)
    if keys is None:
        return None
    statistics = Statistics()
    cleaner = _Cleaner(keys, config, now, last_offsets, statistics, files, breathe)
    groups = _groups([s for s in sealed if s.base_offset < keys.end_offset], config)
    return Run((Replacement(cleaner.rewrite(group), group) for group in groups), keys.end_offset, statistics)


def _old_enough(sealed: list[Segment], config: LogConfig, now: int) -> list[Segment]:
    """The segments of which every record is at least `min_compaction_lag_ms` old."""
    if config.min_compaction_lag_ms <= 0:
        return sealed
    for at, segment in enumerate(sealed):
        if segment.max_timestamp > now - config.min_compaction_lag_ms:
            return sealed[:at]
    return sealed


def _read_keys(sealed: list[Segment], cleaned_to: int, breathe: Callable[[], None]) -> _KeyMap | None:
    offsets: dict[bytes, int] = {}
    end_offset, memory = -1, 0
    for segment in sealed:
        if segment.next_offset <= cleaned_to:
            continue
        if end_offset >= 0 and memory > KEY_MEMORY:
            break
        for _, header, batch in _batches(segment):
            breathe()
            if header.last_offset < cleaned_to or header.is_control:
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
    """Neighbours that fit into one segment together, by size and by what the indexes can hold."""
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
        last_offsets: Mapping[int, int],
        statistics: Statistics,
        files: Files,
        breathe: Callable[[], None],
    ) -> None:
        self._files = files
        self._breathe = breathe
        self._keys = keys
        self._config = config
        self._now = now
        self._last_offsets = last_offsets
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
        if header.is_control:
            return batch
        records = read_records(batch, 0, header)
        horizon = header.delete_horizon_ms
        kept = [record for record in records if self._stays(record, horizon)]
        self._statistics.records_before += len(records)
        self._statistics.records_after += len(kept)
        set_horizon = horizon is None and any(record.value is None for record in kept)
        if len(kept) == len(records) and not set_horizon and records:
            return batch
        if not kept and self._last_offsets.get(header.producer_id) != header.last_offset:
            return None
        return self._rebuild(header, kept, self._now + self._config.delete_retention_ms if set_horizon else horizon)

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
            leader_epoch=header.partition_leader_epoch,
            last_offset_delta=header.last_offset_delta,
            log_append_time=header.max_timestamp if header.timestamp_type else None,
            delete_horizon=horizon is not None,
        )


# ------------------------------------------------------------------------------------------------- the exchange


def decide(replacement: Replacement) -> None:
    """Make the new segment count, also after a crash. Raises OSError; then the old ones still count."""
    new = replacement.new
    try:
        decided = new.path.with_suffix(".swap")
        new.files.replace(new.path, decided)
        new.path = decided
        new.files.sync_folder(decided.parent)
    except OSError:
        discard(new)
        raise


def finish(replacement: Replacement) -> None:
    """Removes the old segments and gives the new one its name. To be called again if it raises OSError."""
    new = replacement.new
    if new.path.suffix == ".swap":
        _exchange(new.files, new.path, [old.base_offset for old in replacement.old])
        new.path = new.path.with_suffix("")
    new.save_indexes(sync=True)
    # Without it a `.swap` of this run could come back beside one of the next run, which includes this run's result.
    new.files.sync_folder(new.path.parent)


def discard(new: Segment) -> None:
    """Forgets a new segment that is not wanted any more. A file that cannot be removed goes at the next start."""
    new.close()
    with contextlib.suppress(OSError):
        new.files.unlink_if_there(new.path)


def _exchange(files: Files, decided: Path, old_bases: list[int]) -> None:
    directory, base = decided.parent, int(decided.name[:20])
    for old in {base, *old_bases}:
        for suffix in (".index", ".timeindex"):
            files.unlink_if_there(directory / segment_name(old, suffix))
    for old in sorted(old_bases):  # the oldest first: a tombstone must not go before the records that it deletes
        if old != base:
            files.unlink_if_there(directory / segment_name(old, ".log"))
    files.sync_folder(directory)
    files.replace(decided, directory / segment_name(base, ".log"))


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
    """The offset after the last batch of a segment that was written and synced whole."""
    segment = Segment(path.parent, int(path.name[:20]), 0)
    segment.path = path
    segment.size = path.stat().st_size
    end = segment.base_offset + 1
    for _, header in segment.headers():
        end = header.next_offset
    segment.close()
    return end
