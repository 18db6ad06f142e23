"""Samples for the lag: where logs begin and end now, and how many records follow a group's committed offset.

Offsets are not records: transaction markers take some, and compaction leaves gaps. So the records after a committed
offset are counted from batch headers, in a bounded number of bytes; if that does not reach the log's end, the lag is
known only in offsets. Nothing is committed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import pyarrow as pa

from muster.arrow import Fetched
from muster.client.admin.admin import Admin
from muster.client.config import ClientConfig
from muster.client.plain.cluster import Cluster, connect, disconnect
from muster.client.plain.fetch import DataLossError, FetchSettings, RangeReader
from muster.errors import CorruptRecordError, KafkaConnectionError, KafkaError, MusterError
from muster.history.lag import first_unread
from muster.history.lag.over_time import CommitTimeline, EndLookups, committed_partitions, lag_over_time, plan_lookups
from muster.history.lag.rows import CommittedOf
from muster.history.model import Lag, LagSample
from muster.history.model import TopicPartition as PlainPartition
from muster.history.sources.live import ReaderConfig
from muster.history.sources.log_ends import OffsetBounds, known_bounds
from muster.history.sources.reader_warnings import ReaderWarnings
from muster.history.sources.threads import each_in_threads
from muster.model import TopicPartition
from muster.protocol.records.compression import Buffer
from muster.protocol.records.record_batch import BatchHeader, check_batch, iter_headers, read_records

COUNT_BYTES = 1 << 20
"""How much of one partition is read for one group."""
FAR_OFFSETS = 100_000
"""A range of more offsets than this is not counted: its end is out of reach."""
FIRST_BYTES = 1 << 16
"""How much is read of such a range, for the age of its first record."""
_MOST_COUNTED = 400
"""The most partitions in which records are counted."""
_WIDTH = 4
_PATIENCE_S = 10.0
_NOTHING = pa.RecordBatch.from_pydict({})


class Counted(NamedTuple):
    """How many records there are, and the timestamp of the first one; None if the count did not get that far."""

    records: int | None
    oldest_ms: int | None


OffsetSpan = tuple[TopicPartition, int, int]
"""A partition and two offsets between which records are counted."""


def lag_samples(
    admin: Admin, config: ReaderConfig, committed: CommittedOf, at_ms: int, warnings: ReaderWarnings
) -> list[LagSample]:
    """A sample for each committed partition."""
    ends = known_bounds(admin, {TopicPartition(*name) for own in committed.values() for name in own}, warnings)
    spans = [
        (group, (place, first_unread(position.offset, ends[place].start), ends[place].end))
        for group, places in sorted(committed.items())
        for place, position in sorted((TopicPartition(*name), position) for name, position in places.items())
        if place in ends
    ]
    behind = list(dict.fromkeys(span for _, span in spans if span[1] < span[2]))
    if len(behind) > _MOST_COUNTED:
        over = len(behind) - _MOST_COUNTED
        warnings.add(f"the lag of {over} partitions is known only in offsets, of which there may be more than records")
    counted = _count_all(count_settings(config.fetching()), behind[:_MOST_COUNTED])
    return [_sample(group, span, ends[span[0]], counted.get(span), at_ms) for group, span in spans]


def count_settings(settings: FetchSettings) -> FetchSettings:
    """The settings for counting the records of a partition."""
    return replace(settings, isolation_level=0, fail_on_data_loss=True, timeout_s=_PATIENCE_S, max_bytes=COUNT_BYTES)


def _sample(group: str, span: OffsetSpan, ends: OffsetBounds, counted: Counted | None, at_ms: int) -> LagSample:
    place, first, end = span
    records, oldest_ms = counted or (0 if first >= end else None, None)
    return LagSample(at_ms, group, place.topic, place.partition, ends.start, ends.end, records, oldest_ms)


def _count_all(settings: FetchSettings, spans: Sequence[OffsetSpan]) -> dict[OffsetSpan, Counted]:
    """Count the records of each, in a few threads. If no broker answers, the rest of a thread's share is left out: one
    timeout is enough."""

    def some(first: int) -> dict[OffsetSpan, Counted]:
        found: dict[OffsetSpan, Counted] = {}
        try:
            for span in spans[first::_WIDTH]:
                found[span] = count_records(settings, *span)
        except KafkaConnectionError:
            pass
        finally:
            disconnect()
        return found

    parts = each_in_threads(some, range(min(_WIDTH, len(spans))), _WIDTH)
    return {span: counted for part in parts for span, counted in part.items()}


def count_records(settings: FetchSettings, place: TopicPartition, start: int, end: int) -> Counted:
    """Count the records of a partition between two offsets, with `count_settings`.

    Raises:
        KafkaConnectionError: no broker answers.
    """
    if end - start > FAR_OFFSETS:
        settings = replace(settings, max_bytes=FIRST_BYTES)
    reader = _Counting(settings, place, start, end)
    counter = reader.counter
    try:
        for _ in reader.batches():
            if counter.size >= settings.max_bytes:
                break
    except KafkaConnectionError:
        raise
    except (DataLossError, CorruptRecordError, KafkaError):
        return Counted(None, counter.oldest_ms)
    return Counted(counter.records if counter.next_offset >= end else None, counter.oldest_ms)


def first_times(client: ClientConfig, spans: Sequence[OffsetSpan]) -> dict[OffsetSpan, int | None]:
    """The timestamp of the first record of each. Partitions whose broker does not answer are left out."""
    settings = replace(count_settings(FetchSettings(client)), max_bytes=FIRST_BYTES)
    return {span: counted.oldest_ms for span, counted in _count_all(settings, spans).items()}


class _Counter:
    """Replaces a decoder: counts the records from an offset on."""

    def __init__(self) -> None:
        self.records = self.size = self.next_offset = 0
        self.oldest_ms: int | None = None

    def decode(self, buffer: Buffer, start: int, end: int, aborted: object = None, check_crcs: bool = True) -> Fetched:
        """Count what was fetched; the returned batch only shows that something arrived."""
        following = start
        for position, header in iter_headers(buffer):
            if header.base_offset >= end:
                following = max(following, end)
                break
            if check_crcs:
                check_batch(buffer, position, header)
            following = max(following, header.next_offset)
            if header.last_offset >= start and header.record_count and not header.is_control:
                self._count(buffer, position, header, start, end)
        self.size += len(buffer)
        self.next_offset = following
        return Fetched(iter([_NOTHING]), following)

    def _count(self, buffer: Buffer, position: int, header: BatchHeader, start: int, end: int) -> None:
        if header.base_offset >= start and header.last_offset < end and self.oldest_ms is not None:
            self.records += header.record_count
            return
        wanted = [record for record in read_records(buffer, position, header) if start <= record.offset < end]
        self.records += len(wanted)
        if wanted and self.oldest_ms is None:
            self.oldest_ms = wanted[0].timestamp if wanted[0].timestamp >= 0 else None


class _Counting(RangeReader):
    """Counts the records of a range instead of decoding them."""

    def __init__(self, settings: FetchSettings, partition: TopicPartition, start: int, end: int) -> None:
        super().__init__(settings, partition, start, end)
        self.counter = _Counter()
        self._decoder = self.counter  # type: ignore[assignment]


# --- over time -------------------------------------------------------------------------------------------------------


def over_time(
    config: ReaderConfig,
    timeline: CommitTimeline,
    until_ms: int,
    samples: Iterable[LagSample],
    warnings: ReaderWarnings,
) -> list[Lag]:
    """The lag at steps of the history."""
    behind = {(each.topic, each.partition): _at_most(each) for each in samples}
    lookups = plan_lookups(committed_partitions(timeline, behind), timeline.times(until_ms))
    if lookups.left_out:
        warnings.add(f"the lag over time of the {lookups.left_out} partitions with the least lag now is left out")
    client = replace(config.fetching().client, request_timeout_ms=int(_PATIENCE_S * 1_000))
    try:
        return lag_over_time(timeline, lookups.times, ends_over_time(connect(client), lookups))
    except MusterError as error:
        warnings.add(f"the lag over time is not known: {error}")
        return []
    finally:
        disconnect()


def _at_most(sample: LagSample) -> int:
    return sample.log_end_offset - sample.log_start_offset if sample.records is None else sample.records


def ends_over_time(cluster: Cluster, lookups: EndLookups) -> dict[PlainPartition, list[int | None]]:
    """Where the logs of these partitions ended at each of these times, for partitions with a leader.

    Raises:
        KafkaError: the offsets cannot be looked up.
    """
    bounds = cluster.bounds({TopicPartition(*name) for name in lookups.places})
    found: dict[PlainPartition, list[int | None]] = {(place.topic, place.partition): [] for place in bounds}
    for at_ms in lookups.times:
        ends = cluster.list_offsets(dict.fromkeys(bounds, at_ms))
        for (place, (start, latest)), own in zip(bounds.items(), found.values(), strict=True):
            end = ends[place] if ends[place] >= 0 else latest
            own.append(None if 0 < start >= end else end)  # before the log's current start nothing is known
    return found
