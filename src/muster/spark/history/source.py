"""The data source behind `muster.spark.history`: reads `__consumer_offsets` as `format("muster")` does, and decodes.

It takes the options of the muster source and hands over rows of PACKED (packed.py). Records are decoded in the task
that fetches them: to have Spark carry each to the JVM and back to Python would cost more than to decode it.

As a stream its offset is that of the muster source with more in it (`events`: events.py):

    {"history": 2, "until": 1763830000000, "at": [0, 1, 2], "events": {…}, "read": {…the muster source's…}}

`until` is a time before which every record of the log partitions `at` has been read by the end of this batch. A batch
in which it grows has a tick for each bucket of these partitions; there may be nothing else in it. So time passes for a
group of which nothing more is written, and a replayed batch closes the same rows. A partition that has not been read to
its end, or whose end is not known, is not among them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

from muster.client.plain.cluster import Cluster, connect
from muster.client.plain.fetch import FetchSettings
from muster.errors import ConfigError, KafkaConnectionError
from muster.history.decode import decode
from muster.history.engine import span
from muster.history.folder import FolderTopic
from muster.history.raw import DECODED, EVENTS_TOPIC, to_raw
from muster.history.remarks import Remarks
from muster.spark.history import events
from muster.spark.history.packed import PACKED_DDL, pack, tick_rows
from muster.spark.options import COMMITS_TOPIC, SourceOptions, parse_options
from muster.spark.ranges import read_range
from muster.spark.source import BatchReader
from muster.spark.stream import StreamReader

log = logging.getLogger("muster.spark.history")

NAME = "muster-history"

FORMAT = 2
"""Of the offsets, and of the state that Spark keeps with them."""

TICK_MS, CLOCK_MS, GROUPS = "history.tick.ms", "history.clock.ms", "history.groups"
FOLDER = "history.folder"

TICK_DEFAULT_MS = 60_000

SKEW_MS = 30_000
"""How far a broker's clock may be behind, and how long a record may take until it can be read."""

COLUMNS = ("partition", *DECODED)

_FIXED = {"subscribe": COMMITS_TOPIC, "mode": "assign", "columns": ",".join(COLUMNS)}
_DEFAULTS = {"startingoffsets": "earliest", "isolationlevel": "read_committed"}
"""A commit in a transaction counts once the transaction is committed."""


@dataclass(frozen=True, slots=True)
class HistoryOptions:
    """What concerns the history alone."""

    tick_ms: int = TICK_DEFAULT_MS
    """How often time passes for groups of which nothing is written."""
    clock_ms: int | None = None
    """What time it is, for a topic of another time; None: this machine's clock says."""
    groups: frozenset[str] = frozenset()
    """Empty: all."""


def take_options(given: Mapping[str, str], *, streaming: bool) -> tuple[SourceOptions, HistoryOptions]:
    """The options of the muster source, and the history's own.

    Raises:
        ConfigError: as `parse_options`.
    """
    options = {name.lower(): value for name, value in given.items()}
    tick, clock, groups = (options.pop(name, None) for name in (TICK_MS, CLOCK_MS, GROUPS))
    for name in _FIXED:
        if name in options:
            raise ConfigError(f"{name} cannot be set: the history reads {COMMITS_TOPIC} as a whole")
    source = parse_options(_DEFAULTS | options | _FIXED, streaming=streaming)
    return source, HistoryOptions(
        TICK_DEFAULT_MS if tick is None else int(tick),
        None if clock is None else int(clock),
        frozenset((groups or "").split("\n")) - {""},
    )


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
            return FolderReader(folder, frozenset((self.options.get(GROUPS) or "").split("\n")) - {""})
        return PackedBatchReader(*take_options(self.options, streaming=False))

    def streamReader(self, schema: StructType) -> PackedStreamReader:  # noqa: N802 - Spark's name
        return PackedStreamReader(*take_options(self.options, streaming=True))


class PackedBatchReader(BatchReader):
    """Reads what is there."""

    def __init__(self, options: SourceOptions, history: HistoryOptions) -> None:
        super().__init__(options)
        self._history = history

    def partitions(self) -> Sequence[InputPartition]:
        found = super().partitions()
        return [*found, *events.tasks_of(events.look(_cluster(self._settings), {}))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, events.EventsTask):
            return events.read_events(self._settings, partition, self._history.groups)
        return fetched(super().read(partition), self._history.groups)


class FolderTask(InputPartition):  # type: ignore[misc]
    """The segments of one log partition."""

    def __init__(self, log_partition: int) -> None:
        self.log_partition = log_partition


class FolderReader(DataSourceReader):  # type: ignore[misc]
    """Reads a folder of segment files, a task for each log partition: all workers have to find it under its path."""

    def __init__(self, folder: str, groups: frozenset[str]) -> None:
        self._folder, self._groups = Path(folder), groups

    def partitions(self) -> Sequence[InputPartition]:
        topic = self._topic(self._folder)
        return [FolderTask(partition) for partition in topic.records]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, FolderTask)
        own = self._folder / f"{COMMITS_TOPIC}-{partition.log_partition}"
        topic = self._topic(own if own.is_dir() else self._folder)
        seen: set[str] = set()
        yield from decoded(topic.read(partition.log_partition), self._groups, seen)
        told = self._topic(self._folder, EVENTS_TOPIC)
        for index in told.records if seen else ():
            yield from events.in_folder(told.read(index), partition.log_partition, frozenset(seen))

    def _topic(self, folder: Path, name: str = COMMITS_TOPIC) -> FolderTopic:
        remarks = Remarks()
        topic = FolderTopic([folder], name, remarks)
        for remark in remarks.sentences():
            log.warning("%s", remark)
        return topic


class TickTask(InputPartition):  # type: ignore[misc]
    """Tells the buckets of log partitions that these have been read up to a time."""

    def __init__(self, log_partitions: Sequence[int], now_ms: int) -> None:
        self.log_partitions, self.now_ms = tuple(log_partitions), now_ms


class PackedStreamReader(StreamReader):
    """Reads on, and lets time pass."""

    def __init__(self, options: SourceOptions, history: HistoryOptions) -> None:
        super().__init__(options)
        self._history = history
        self._stop_at_ms: int | None = None

    # --- Spark's names -----------------------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return _offset(0, [], {}, super().initialOffset())

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._stop_at_ms = self._now_ms()
        super().prepareForTriggerAvailableNow()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        _check(start)
        now_ms = self._now_ms()
        before = start["read"]
        try:
            told = events.look(_cluster(self._settings), start["events"])
        except KafkaConnectionError:
            if self._stop_at_ms is not None:
                raise
            return start  # rather than go on without the brokers' word
        read = super().latestOffset(before, limit)
        at_end = self._active(before).at_end(read)
        if self._stop_at_ms is None:
            due = now_ms >= start["until"] + self._history.tick_ms
        else:  # at the very end
            now_ms = self._stop_at_ms
            due = start["until"] < now_ms and (read is before or all(at_end.values()))
        at = sorted(place.partition for place, there in at_end.items() if there)
        if due and at:
            return _offset(now_ms, at, told, read)
        return start if read is before else _offset(start["until"], [], told, read)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        _check(end)
        if start == end:
            return []
        found = [*super().partitions(start["read"], end["read"]), *events.tasks_of(end["events"])]
        return [*found, TickTask(end["at"], end["until"])] if end["at"] else found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, TickTask):
            return iter([tick_rows(partition.log_partitions, partition.now_ms)])
        if isinstance(partition, events.EventsTask):
            return events.read_events(self._settings, partition, self._history.groups)
        return fetched(read_range(self._settings, partition), self._history.groups)

    def commit(self, end: dict[str, Any]) -> None:
        super().commit(end["read"])

    # --- time --------------------------------------------------------------------------------------------------------

    def _now_ms(self) -> int:
        """Before which time nothing more is going to be written, wherever a partition has been read to its end."""
        clock_ms = self._history.clock_ms
        return time.time_ns() // 1_000_000 - SKEW_MS if clock_ms is None else clock_ms


def _offset(until_ms: int, at: list[int], told: events.Events, read: dict[str, Any]) -> dict[str, Any]:
    return {"history": FORMAT, "until": until_ms, "at": at, "events": told, "read": read}


def _check(offset: Mapping[str, Any]) -> None:
    if offset.get("history") != FORMAT:
        raise ConfigError(
            "the checkpoint was written by another version of muster, which kept other things of each group: go on "
            "with that version, or begin anew in another folder"
        )


def _cluster(settings: FetchSettings) -> Cluster:
    return connect(settings.client)


def fetched(batches: Iterator[pa.RecordBatch], groups: frozenset[str]) -> Iterator[pa.RecordBatch]:
    """Fetched records, decoded and packed."""
    return decoded(
        (to_raw(batch, int(batch.column("partition")[0].as_py())) for batch in batches if len(batch)), groups
    )


def decoded(
    batches: Iterator[pa.RecordBatch], groups: frozenset[str], seen: set[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """Records of schema RAW, decoded and packed; each batch is of one partition. `seen` gets the groups' names."""
    for batch in batches:
        if batch.num_rows:
            found = decode(batch)
            if seen is not None:
                names = {str(name) for name in pc.unique(found.entries.column("group")).to_pylist()}
                seen |= names & groups if groups else names
            partition, times = int(batch.column("partition")[0].as_py()), batch.column("timestamp_ms").to_numpy()
            yield pack(found.entries, found.counts, partition, groups, span(times))
