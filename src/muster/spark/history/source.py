"""The data source of `muster.spark.history`: reads `__consumer_offsets` as `format("muster")` does, and decodes it.

It has the options of the muster source and returns rows of PACKED (packed.py). Records are decoded in the task that
fetches them: moving each to the JVM and back to Python would cost more than decoding it.

In a stream, its offset is the muster source's with additions (`events`: events.py):

    {"history": 5, "until": 1763830000000, "at": {"0": 1763830000000, …}, "events": {…}, "read": {…the source's…}}

A batch in which `until` grows has a tick for each bucket of every log partition, and possibly nothing else. `at` has a
time for each log partition, 0 if it was never known: by the end of this batch, everything written to the partition
before that time has been read. So time advances for a group about which nothing more is written, and a replayed batch
closes the same rows. It does not advance for a partition that has not been read to its end, has no leader, or has an
open transaction, after which nothing is read; the states of its groups are emitted nevertheless.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

from muster.client.plain.cluster import Cluster, connect
from muster.client.plain.fetch import DataLossError, FetchSettings
from muster.clock import wall_clock_ms
from muster.errors import ConfigError, KafkaConnectionError
from muster.history.engine import span
from muster.history.entries.decode import decode
from muster.history.sources.folder import FolderTopic
from muster.history.sources.raw_records import DECODER_COLUMNS, EVENTS_TOPIC, to_raw
from muster.history.sources.reader_warnings import ReaderWarnings
from muster.history.tables import RAW
from muster.protocol.api import LATEST_TIMESTAMP
from muster.spark.history import events
from muster.spark.history.packed import IN_EVENTS_ONLY, PACKED_DDL, pack, pack_events, tick_rows
from muster.spark.offsets import from_json
from muster.spark.source.options import COMMITS_TOPIC, SourceOptions, parse_options
from muster.spark.source.ranges import read_range
from muster.spark.source.source import BatchReader
from muster.spark.source.stream import StreamReader

log = logging.getLogger("muster.spark.history")

NAME = "muster-history"

FORMAT = 6
"""The format of the offsets, and of the state that Spark keeps with them."""

TICK_MS, CLOCK_MS, GROUPS = "history.tick.ms", "history.clock.ms", "history.groups"
EVENTS_ONLY = "history.events.only"
FOLDER = "history.folder"

TICK_DEFAULT_MS = 60_000

PartitionEnds = dict[int, int]
"""The ends of log partitions."""

SKEW_MS = 30_000
"""How slow a broker's clock may be, plus how long a record may take to become readable."""

COLUMNS = ("partition", *DECODER_COLUMNS)

_FIXED = {"subscribe": COMMITS_TOPIC, "mode": "assign", "columns": ",".join(COLUMNS)}
_FIXED_EVENTS_ONLY = _FIXED | {"subscribe": EVENTS_TOPIC}
"""For a cluster that keeps its groups in ZooKeeper: its brokers' events are all there is."""
EVENTS_ONLY_PARTITION = 0
"""The log partition of groups that are not in any log."""
_DEFAULTS = {"startingoffsets": "earliest", "isolationlevel": "read_committed"}
"""A commit in a transaction counts once the transaction is committed."""


@dataclass(frozen=True, slots=True)
class HistoryOptions:
    """The options of the history alone."""

    tick_ms: int = TICK_DEFAULT_MS
    """How often time advances for groups about which nothing is written."""
    clock_ms: int | None = None
    """The current time, for a topic from another time; None: this machine's clock."""
    groups: frozenset[str] = frozenset()
    """Empty: all."""
    is_events_only: bool = False
    """Whether the groups are not in any log, but brokers have reported events about them."""

    @property
    def topic(self) -> str:
        """The topic that is read."""
        return EVENTS_TOPIC if self.is_events_only else COMMITS_TOPIC

    def packed(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Its records, packed."""
        return packed_events_only(batches, self.groups) if self.is_events_only else packed_fetched(batches, self.groups)


def parse_history_options(given: Mapping[str, str], *, streaming: bool) -> tuple[SourceOptions, HistoryOptions]:
    """The options of the muster source, and the history's own.

    Raises:
        ConfigError: as `parse_options`.
    """
    options = {name.lower(): value for name, value in given.items()}
    tick, clock, groups, events_only = (options.pop(name, None) for name in (TICK_MS, CLOCK_MS, GROUPS, EVENTS_ONLY))
    fixed = _FIXED if events_only is None else _FIXED_EVENTS_ONLY
    for name in _FIXED:
        if name in options:
            raise ConfigError(f"{name} cannot be set: the history reads {COMMITS_TOPIC} as a whole")
    source = parse_options(_DEFAULTS | options | fixed, streaming=streaming)
    return source, HistoryOptions(
        TICK_DEFAULT_MS if tick is None else int(tick),
        None if clock is None else int(clock),
        _groups_in(groups),
        events_only is not None,
    )


def groups_option(groups: Iterable[str]) -> dict[str, str]:
    """The option that selects these groups; an empty list selects all.

    Raises:
        ConfigError: a single name is given instead of a list.
    """
    if isinstance(groups, str):
        raise ConfigError(f"groups is {groups!r}; it must be a list of names")
    return {GROUPS: json.dumps(sorted(groups))}


def _groups_in(option: str | None) -> frozenset[str]:
    return frozenset(json.loads(option or "[]"))


class HistoryDataSource(DataSource):  # type: ignore[misc]
    """The data source: options in, readers of packed rows out."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        return PACKED_DDL

    def reader(self, schema: StructType) -> DataSourceReader:
        folder = self.options.get(FOLDER)
        if folder is not None:
            return FolderReader(folder, _groups_in(self.options.get(GROUPS)))
        return PackedBatchReader(*parse_history_options(self.options, streaming=False))

    def streamReader(self, schema: StructType) -> PackedStreamReader:  # noqa: N802 - Spark's name
        return PackedStreamReader(*parse_history_options(self.options, streaming=True))


class PackedBatchReader(BatchReader):
    """Reads the records that exist now."""

    def __init__(self, options: SourceOptions, history: HistoryOptions) -> None:
        super().__init__(options)
        self._history = history

    def partitions(self) -> Sequence[InputPartition]:
        found = super().partitions()
        if self._history.is_events_only:
            return found
        return [*found, *events.tasks_of(events.next_ranges(_cluster(self._settings), {}))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, events.EventsTask):
            return events.read_events(self._settings, partition, self._history.groups)
        return self._history.packed(super().read(partition))


_ALL = -1
"""Used as a log partition if there is none: all events of the brokers."""


class FolderTask(InputPartition):  # type: ignore[misc]
    """The segments of one log partition."""

    def __init__(self, log_partition: int) -> None:
        self.log_partition = log_partition


class FolderReader(DataSourceReader):  # type: ignore[misc]
    """Reads a folder of segment files, a task for each log partition: all workers must find it under its path."""

    def __init__(self, folder: str, groups: frozenset[str]) -> None:
        self._folder, self._groups = Path(folder), groups

    def partitions(self) -> Sequence[InputPartition]:
        topic = self._topic(self._folder)
        if not topic.records:
            return [FolderTask(_ALL)]
        return [FolderTask(partition) for partition in topic.records]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, FolderTask)
        if partition.log_partition == _ALL:
            events_topic = self._topic(self._folder, EVENTS_TOPIC)
            for index in events_topic.records:
                yield from packed_events_only(events_topic.read(index), self._groups)
            return
        own = self._folder / f"{COMMITS_TOPIC}-{partition.log_partition}"
        topic = self._topic(own if own.is_dir() else self._folder)
        seen: set[str] = set()
        yield from packed_decoded(topic.read(partition.log_partition), self._groups, seen)
        events_topic = self._topic(self._folder, EVENTS_TOPIC)
        for index in events_topic.records if seen else ():
            yield from events.in_folder(events_topic.read(index), partition.log_partition, frozenset(seen))

    def _topic(self, folder: Path, name: str = COMMITS_TOPIC) -> FolderTopic:
        warnings = ReaderWarnings()
        topic = FolderTopic([folder], name, warnings)
        for warning in warnings.sentences():
            log.warning("%s", warning)
        return topic


class TickTask(InputPartition):  # type: ignore[misc]
    """States up to which time each log partition has been read, for its buckets."""

    def __init__(self, read_to_ms: Mapping[int, int], look_ms: int) -> None:
        self.read_to_ms, self.look_ms = dict(read_to_ms), look_ms


class PackedStreamReader(StreamReader):
    """Reads continuously, and lets time advance."""

    def __init__(self, options: SourceOptions, history: HistoryOptions) -> None:
        super().__init__(options)
        self._history = history
        self._stop_at: tuple[int, PartitionEnds] | None = None

    # --- Spark's names -----------------------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return _offset(0, {}, {}, super().initialOffset())

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._stop_at = self._now_ms(), _ends(_cluster(self._settings), self._history.topic)
        super().prepareForTriggerAvailableNow()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        _check(start)
        before, until = start["read"], start["until"]
        try:
            cluster = _cluster(self._settings)
            now_ms, ends = self._stop_at or self._time_and_ends(cluster, until)
            events_read = {} if self._history.is_events_only else events.next_ranges(cluster, start["events"])
        except KafkaConnectionError:
            if self._stop_at is not None:
                raise
            return start  # rather than continue without the brokers' events
        try:
            read = super().latestOffset(before, limit)
        except DataLossError as error:
            raise DataLossError(  # without its advice, which does not apply here
                f"{error.what}, or the folder has the history of another cluster: the job cannot "
                "continue there, so start in another folder"
            ) from None
        return batch_end(
            start, None if read is before else read, events_read, ends, now_ms, is_last=self._stop_at is not None
        )

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        _check(end)
        if start == end:
            return []
        found = [*super().partitions(start["read"], end["read"]), *events.tasks_of(end["events"])]
        if end["until"] == start["until"]:
            return found
        return [*found, TickTask({int(partition): time for partition, time in end["at"].items()}, end["until"])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, TickTask):
            return iter([tick_rows(partition.read_to_ms, partition.look_ms)])
        if isinstance(partition, events.EventsTask):
            return events.read_events(self._settings, partition, self._history.groups)
        return self._history.packed(read_range(self._settings, partition))

    def commit(self, end: dict[str, Any]) -> None:
        super().commit(end["read"])

    # --- time --------------------------------------------------------------------------------------------------------

    def _time_and_ends(self, cluster: Cluster, until_ms: int) -> tuple[int, PartitionEnds]:
        """The time, and where the log partitions end now if a tick is due."""
        now_ms = self._now_ms()
        return now_ms, _ends(cluster, self._history.topic) if now_ms >= until_ms + self._history.tick_ms else {}

    def _now_ms(self) -> int:
        """The time before which nothing more will be written to a partition that has been read to its end."""
        clock_ms = self._history.clock_ms
        return wall_clock_ms() - SKEW_MS if clock_ms is None else clock_ms


def batch_end(
    start: dict[str, Any],
    read: dict[str, Any] | None,
    events_read: events.EventRanges,
    ends: PartitionEnds,
    now_ms: int,
    *,
    is_last: bool,
) -> dict[str, Any]:
    """The offset at which a batch ends; `start` itself for no batch.

    `read` is the source's own new offset, None if it stays. `ends` are those of the log partitions at
    `now_ms`, empty if time does not advance. `is_last`: it advances once, at the very end.
    """
    until, now = start["until"], start["read"] if read is None else read
    positions = {place.partition: claim.end for place, claim in from_json(now).finished().items()}
    reached = {partition for partition, end in ends.items() if positions.get(partition, -1) >= end}
    is_due = until < now_ms and (read is None or reached == ends.keys()) if is_last else bool(reached)
    if is_due:
        known = dict.fromkeys(map(str, sorted(positions)), 0) | start["at"]
        return _offset(now_ms, known | {str(partition): now_ms for partition in reached}, events_read, now)
    return start if read is None else _offset(until, start["at"], events_read, now)


def _ends(cluster: Cluster, topic: str) -> PartitionEnds:
    """The ends of all log partitions with a leader, regardless of open transactions."""
    led = cluster.led([topic])
    found = cluster.list_offsets(dict.fromkeys(led, LATEST_TIMESTAMP)) if led else {}
    return {place.partition: end for place, end in found.items()}


def _offset(
    until_ms: int, at: Mapping[str, int], events_read: events.EventRanges, read: dict[str, Any]
) -> dict[str, Any]:
    return {"history": FORMAT, "until": until_ms, "at": dict(at), "events": events_read, "read": read}


def _check(offset: Mapping[str, Any]) -> None:
    if offset.get("history") != FORMAT:
        raise ConfigError(
            "the checkpoint was written by another version of muster in another format: continue "
            "with that version, or start in another folder"
        )


def _cluster(settings: FetchSettings) -> Cluster:
    return connect(settings.client)


def packed_events_only(batches: Iterator[pa.RecordBatch], groups: frozenset[str]) -> Iterator[pa.RecordBatch]:
    """Packed events of groups that are not in any log; each batch is of one partition."""

    def place_of(group: str) -> int | None:
        return EVENTS_ONLY_PARTITION if not groups or group in groups else None

    for batch in batches:
        if batch.num_rows:
            raw = batch if batch.schema.equals(RAW) else to_raw(batch, int(batch.column("partition")[0].as_py()))
            yield pack_events(raw, place_of, IN_EVENTS_ONLY)


def packed_fetched(batches: Iterator[pa.RecordBatch], groups: frozenset[str]) -> Iterator[pa.RecordBatch]:
    """Fetched records, decoded and packed."""
    return packed_decoded(
        (to_raw(batch, int(batch.column("partition")[0].as_py())) for batch in batches if len(batch)), groups
    )


def packed_decoded(
    batches: Iterator[pa.RecordBatch], groups: frozenset[str], seen: set[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """Records of schema RAW, decoded and packed; each batch is of one partition. `seen` collects the groups' names."""
    for batch in batches:
        if batch.num_rows:
            found = decode(batch)
            if seen is not None:
                names = {str(name) for name in pc.unique(found.entries.column("group")).to_pylist()}
                seen |= names & groups if groups else names
            partition, times = int(batch.column("partition")[0].as_py()), batch.column("timestamp_ms").to_numpy()
            yield pack(found.entries, found.counts, partition, groups, span(times))
