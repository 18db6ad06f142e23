"""Writes what the streaming engine tells as Parquet, each row once whatever is killed.

    DIR/generations/day=2026-11-22/batch=17/part-….parquet     and rebalances, notes, lag, counts
    DIR/open/generations/part-….parquet                        what is open now: replaced as a whole
    DIR/findings/part-….parquet                                what there is to say now: replaced as a whole

A batch that is run again (Spark does so after a kill) has the same rows, and replaces the folders that it wrote before:
`batch=N` holds nothing else. The time in rows of the lag is that of the batch's tick, which is replayed too, so they go
into the same folders.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from datetime import date, timedelta
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType
from pyspark.storagelevel import StorageLevel

from muster.errors import MusterError
from muster.history.model import Limits, TopicPartition
from muster.spark.history.buckets import LogBounds
from muster.spark.history.folding import (
    GROUPED_DDL,
    OPEN,
    SCHEMAS,
    STANDS,
    find,
    pack_groups,
    unpack,
    unpack_lag,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

log = logging.getLogger("muster.spark.history")

FINAL = ("generations", "rebalances", "notes", "lag", "counts")
OPEN_TABLES = ("generations", "rebalances", "notes")

_FILE_BYTES = 64 << 20
_DAY_MS = 24 * 3_600_000
_FINDINGS_DAYS = 2
"""How many days findings look back, today included."""

_LAST = {"generations": "ended_ms", "rebalances": "at_ms", "notes": "at_ms", "lag": "at_ms"}


def schema_of(name: str) -> StructType:
    """A table's columns, as Spark names their types."""
    return from_arrow_schema(SCHEMAS[name])


def written(spark: SparkSession, out: str, name: str) -> DataFrame:
    """A table of the folder: final rows, and those that are open now."""
    schema = schema_of(name)
    frame = _parquet(spark, f"{out}/{name}", schema)
    return frame.unionByName(_parquet(spark, f"{out}/{OPEN}{name}", schema)) if name in OPEN_TABLES else frame


def _parquet(spark: SparkSession, path: str, schema: StructType) -> DataFrame:
    try:
        return spark.read.schema(schema).parquet(path).select(schema.fieldNames())
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        return spark.createDataFrame([], schema)  # nothing has been written yet


class Sink:
    """Takes the batches of one query."""

    def __init__(
        self,
        out: str,
        limits: Limits,
        bounds: Callable[[], Mapping[TopicPartition, LogBounds]],
        since_ms: int = 0,
        clock_ms: int | None = None,
    ) -> None:
        self._out = out.rstrip("/")
        self._limits = limits
        self._bounds = bounds
        self._since_ms = since_ms
        self._clock_ms = clock_ms
        self._has_open = set(OPEN_TABLES)
        """Tables of which rows that are open may be there."""

    def write(self, told: DataFrame, batch: int) -> None:
        """For foreachBatch."""
        told = told.persist(StorageLevel.MEMORY_AND_DISK)
        try:
            sizes = told.groupBy("name").agg(f.sum(f.length("data")), f.max("at_ms")).collect()
            there = {name: (size, at_ms) for name, size, at_ms in sizes}
            for name in FINAL:
                if name in there:
                    frame = told.where(f.col("name") == name).select("data").mapInArrow(unpack, schema_of(name))
                    self._write(name, frame, batch, there[name][0])
            if STANDS in there:
                self._write_what_stands(told, batch, there)
        finally:
            told.unpersist()

    def _write_what_stands(self, told: DataFrame, batch: int, there: Mapping[str, tuple[int, int]]) -> None:
        size, tick_ms = there[STANDS]
        for name in OPEN_TABLES:
            if OPEN + name in there:
                self._has_open.add(name)
            elif name not in self._has_open:
                continue  # as it was
            else:
                self._has_open.discard(name)
            frame = told.where(f.col("name") == OPEN + name).select("data").mapInArrow(unpack, schema_of(name))
            frame = self._recent(name, frame).coalesce(_files(size))
            frame.write.mode("overwrite").parquet(f"{self._out}/{OPEN}{name}")
        now_ms = time.time_ns() // 1_000_000 if self._clock_ms is None else self._clock_ms
        lag = self._lag(told, now_ms, tick_ms)
        if lag is not None:
            self._write("lag", lag, batch, size)
        self._write_findings(told.sparkSession, now_ms, lag)

    def _lag(self, told: DataFrame, now_ms: int, tick_ms: int) -> DataFrame | None:
        try:
            bounds = self._bounds()
        except MusterError as error:
            log.warning("no lag this time: where the logs end cannot be had (%s)", error)
            return None
        stands = told.where(f.col("name") == STANDS).select("data")
        return stands.mapInArrow(unpack_lag(self._limits, bounds, now_ms, tick_ms), schema_of("lag"))

    def _write_findings(self, spark: SparkSession, now_ms: int, lag: DataFrame | None) -> None:
        since = date(1970, 1, 1) + timedelta(days=now_ms // _DAY_MS + 1 - _FINDINGS_DAYS)
        parts = {name: written(spark, self._out, name).where(f.col("day") >= since) for name in OPEN_TABLES}
        if lag is not None:
            parts["lag"] = lag
        packed = [frame.mapInArrow(pack_groups(name), GROUPED_DDL) for name, frame in parts.items()]
        found = (
            reduce(lambda one, other: one.union(other), packed)
            .repartition("group")
            .select("name", "data")
            .mapInArrow(find(self._limits, now_ms), schema_of("findings"))
        )
        found.coalesce(1).write.mode("overwrite").parquet(f"{self._out}/findings")

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


def _files(size: int) -> int:
    return 1 + size // _FILE_BYTES
