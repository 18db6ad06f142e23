"""Writes the streaming engine's output as Parquet, each row once, whatever is killed.

    DIR/generations/day=2026-11-22/batch=17/part-….parquet     and rebalances, notes, lag, counts
    DIR/open/generations/part-….parquet                        rows that are open now: replaced at each reading
    DIR/findings/part-….parquet                                the current findings: likewise

A batch that runs again (after a kill) has the same rows, and replaces the folders that it wrote before:
`batch=N` holds nothing else. The day of lag rows is that of the batch's tick, which is replayed too, so they go
into the same folders.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import date, timedelta
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType
from pyspark.storagelevel import StorageLevel

from muster.client.plain.fetch import FetchSettings
from muster.clock import wall_clock_ms
from muster.history.model import Limits
from muster.spark.history.compaction import OLD, Compaction, away, replace
from muster.spark.history.folding import GROUPED_DDL, OPEN, SCHEMAS, STATUSES, TIMELINE, find, pack_groups, unpack
from muster.spark.history.hadoop_folder import HadoopFolder
from muster.spark.history.lags import MOST_COUNTED, MOST_LOOKUPS, behind, count, over_time, split
from muster.spark.stopping import stoppable

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

FINAL = ("generations", "rebalances", "notes", "lag", "counts")
OPEN_TABLES = ("generations", "rebalances", "notes")

_FILE_BYTES = 64 << 20
_STORAGE = StorageLevel.MEMORY_AND_DISK
_DAY_MS = 24 * 3_600_000
_FINDINGS_DAYS = 2
"""How many days findings look back, today included."""

_LAST = {"generations": "ended_ms", "rebalances": "at_ms", "notes": "at_ms", "lag": "at_ms"}


def schema_of(name: str) -> StructType:
    """A table's schema for Spark."""
    return from_arrow_schema(SCHEMAS[name])


def written(spark: SparkSession, out: str, name: str) -> DataFrame:
    """A table of the folder: final rows, and those open now."""
    schema = schema_of(name)
    frame = _parquet(spark, f"{out}/{name}", schema)
    for found in _away(spark, out, name):
        frame = frame.unionByName(_parquet(spark, found, schema))
    return frame.unionByName(_parquet(spark, f"{out}/{OPEN}{name}", schema)) if name in OPEN_TABLES else frame


def _away(spark: SparkSession, out: str, name: str) -> list[str]:
    """Days that are moved away and not replaced yet."""
    if is_remote(spark):
        return []
    place = HadoopFolder(spark, out)
    return [place.full(f"{OLD}/{found}") for found in away(place) if found.startswith(f"{name}/")]


def _parquet(spark: SparkSession, path: str, schema: StructType) -> DataFrame:
    try:
        found = spark.read.schema(schema).option("basePath", re.sub("/day=[^/]*$", "", path)).parquet(path)
        return found.select(schema.fieldNames())
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        return spark.createDataFrame([], schema)  # nothing has been written yet


def lag_frame(
    output: DataFrame, settings: FetchSettings, limits: Limits, at_ms: int | None, tick_ms: int | None
) -> DataFrame:
    """The lag of the groups whose state is in the output (lags.py)."""
    spread = tasks(output.sparkSession)
    return (
        output.where(f.col("name") == STATUSES)
        .select("data")
        .mapInArrow(behind(settings, limits, at_ms, tick_ms), schema_of("lag"))
        .repartition(spread)
        .mapInArrow(count(settings, -(-MOST_COUNTED // spread)), schema_of("lag"))
    )


def lag_over_time_frame(output: DataFrame, settings: FetchSettings, at_ms: int | None) -> DataFrame:
    """The lag of the groups over time (lags.py)."""
    spread = tasks(output.sparkSession)
    past = output.where(f.col("name") == TIMELINE)
    longest = past.agg(f.max("at_ms").alias("step_ms"))
    return (
        past.select("data")
        .crossJoin(longest)
        .mapInArrow(split, "data binary")
        .repartition(spread)
        .mapInArrow(over_time(settings, at_ms, MOST_LOOKUPS // spread), schema_of("lag"))
    )


def findings_frame(
    tables: Mapping[str, DataFrame], limits: Limits, now_ms: int | None, settings: FetchSettings
) -> DataFrame:
    """The findings about the groups in these tables."""
    packed = [frame.mapInArrow(pack_groups(name), GROUPED_DDL) for name, frame in tables.items()]
    return (
        reduce(lambda one, other: one.union(other), packed)
        .repartition("group")
        .select("name", "data")
        .mapInArrow(find(limits, now_ms, settings), schema_of("findings"))
    )


def tasks(spark: SparkSession) -> int:
    """The number of tasks for the work: a few per core, so that one large group delays little."""
    if is_remote(spark):  # it has no context to ask
        cores = int(spark.range(1_000).select(f.spark_partition_id()).distinct().count())
    else:
        cores = int(spark.sparkContext.defaultParallelism)
    return max(4, 2 * cores)


def is_remote(spark: SparkSession) -> bool:
    """Whether it is a session of Spark Connect."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


class Sink:
    """Takes the batches of one query."""

    def __init__(
        self,
        out: str,
        limits: Limits,
        settings: FetchSettings,
        since_ms: int = 0,
        clock_ms: int | None = None,
    ) -> None:
        self._out = out.rstrip("/")
        self._limits = limits
        self._settings = settings
        self._since_ms = since_ms
        self._clock_ms = clock_ms
        self._compaction: Compaction | None = None
        self._has_open = set(OPEN_TABLES)
        """Tables that may have open rows in the folder."""

    @stoppable
    def write(self, output: DataFrame, batch: int) -> None:
        """For foreachBatch."""
        self._compact(output.sparkSession, batch)
        output = output.persist(_STORAGE)
        try:
            sizes = output.groupBy("name").agg(f.sum(f.length("data")), f.max("at_ms")).collect()
            found = {name: (size, at_ms) for name, size, at_ms in sizes}
            for name in FINAL:
                if name in found:
                    frame = output.where(f.col("name") == name).select("data").mapInArrow(unpack, schema_of(name))
                    self._write(name, frame, batch, found[name][0])
            if STATUSES in found:
                self._write_states(output, batch, found)
        finally:
            output.unpersist()

    def _compact(self, spark: SparkSession, batch: int) -> None:
        if self._compaction is None:
            schemas = {name: schema_of(name) for name in FINAL}
            self._compaction = Compaction(spark, self._place(spark), schemas)
        self._compaction.run(batch, day(self._now_ms()))

    def _place(self, spark: SparkSession) -> HadoopFolder:
        return HadoopFolder(spark, self._out)

    def _now_ms(self) -> int:
        return wall_clock_ms() if self._clock_ms is None else self._clock_ms

    def _write_states(self, output: DataFrame, batch: int, sizes: Mapping[str, tuple[int, int]]) -> None:
        size, tick_ms = sizes[STATUSES]
        for name in OPEN_TABLES:
            if OPEN + name in sizes:
                self._has_open.add(name)
            elif name not in self._has_open:
                continue  # unchanged
            else:
                self._has_open.discard(name)
            frame = output.where(f.col("name") == OPEN + name).select("data").mapInArrow(unpack, schema_of(name))
            replace(self._place(output.sparkSession), OPEN + name, self._recent(name, frame).coalesce(_files(size)))
        now_ms = self._now_ms()
        lag = lag_frame(output, self._settings, self._limits, self._clock_ms, tick_ms).persist(_STORAGE)
        try:
            self._write("lag", lag, batch, size)
            self._write_findings(output.sparkSession, now_ms, lag)
        finally:
            lag.unpersist()

    def _write_findings(self, spark: SparkSession, now_ms: int, lag: DataFrame) -> None:
        since = day(now_ms) - timedelta(days=_FINDINGS_DAYS - 1)
        parts = {name: written(spark, self._out, name).where(f.col("day") >= since) for name in OPEN_TABLES}
        found = findings_frame(parts | {"lag": lag}, self._limits, now_ms, self._settings)
        replace(self._place(spark), "findings", found.coalesce(1))

    def _write(self, name: str, frame: DataFrame, batch: int, size: int) -> None:
        (
            self._recent(name, frame)
            .withColumn("batch", f.lit(batch))
            .coalesce(_files(size))
            .write.mode("overwrite")
            .option("partitionOverwriteMode", "dynamic")
            .partitionBy("day", "batch")
            .parquet(f"{self._out}/{name}")
        )

    def _recent(self, name: str, frame: DataFrame) -> DataFrame:
        if not self._since_ms or name not in _LAST:
            return frame
        last: Column = f.col(_LAST[name])
        return frame.where(last.isNull() | (last >= self._since_ms))


def day(ms: int) -> date:
    """The day of a time, in UTC."""
    return date(1970, 1, 1) + timedelta(days=ms // _DAY_MS)


def _files(size: int) -> int:
    return 1 + size // _FILE_BYTES
