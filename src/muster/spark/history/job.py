"""What `muster.spark.history` offers: the history as DataFrames, and as a query that goes on writing it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.errors import AnalysisException
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.storagelevel import StorageLevel

from muster.client.admin import Admin
from muster.client.plain.cluster import connect
from muster.errors import ConfigError
from muster.history.cluster_limits import limits_of
from muster.history.model import Limits, TopicPartition
from muster.history.tables import ENTRIES
from muster.protocol.api import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from muster.spark.history.buckets import LogBounds
from muster.spark.history.folding import SCHEMAS, STATE_DDL, TOLD_DDL, fold_in_order, fold_on, unpack
from muster.spark.history.packed import IN_ENTRIES
from muster.spark.history.sink import Sink, schema_of, written
from muster.spark.history.source import CLOCK_MS, FOLDER, GROUPS, NAME, TICK_MS, HistoryDataSource, take_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

CHECKPOINT = "_checkpoint"
"""Where a query that writes to a folder keeps its checkpoint; readers of Parquet pass over such a name."""

EVERY_S = 60.0

_FOR_QUERIES = {"spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS"}
"""INT96, Spark's default, is read by few others."""


@dataclass(frozen=True, slots=True)
class History:
    """The tables of the history (docs/history.md has their columns)."""

    generations: DataFrame
    rebalances: DataFrame
    notes: DataFrame
    lag: DataFrame
    findings: DataFrame
    counts: DataFrame
    kept: DataFrame | None = None

    def close(self) -> None:
        """Give back what is kept in Spark's storage."""
        if self.kept is not None:
            self.kept.unpersist()


def entries(
    spark: SparkSession,
    *,
    bootstrap: str | None = None,
    folder: str | None = None,
    groups: Iterable[str] = (),
    **options: Any,
) -> DataFrame:
    """Each record of a group, decoded: commits with their columns, others with their bytes (tables.ENTRIES).

    They are read from a cluster, or from a folder with segment files: Kafka's or muster's data directory, which each
    worker has to find under this path. `options` are those of the muster source, with underscores for dots:
    `kafka_security_protocol="SSL"`.

    Raises:
        ConfigError: an option is unknown, or does not fit.
    """
    packed = _packed(spark, bootstrap, folder, groups, options)
    return packed.where(f.col("what") == IN_ENTRIES).select("data").mapInArrow(unpack, from_arrow_schema(ENTRIES))


def tables(
    spark: SparkSession,
    *,
    bootstrap: str | None = None,
    folder: str | None = None,
    groups: Iterable[str] = (),
    limits: Limits | None = None,
    now_ms: int | None = None,
    **options: Any,
) -> History:
    """The whole history that is there now. It is computed once, when a table is first looked at, and then kept in
    Spark's storage until `close()`.

    `limits` are asked of the cluster where they are not given. `now_ms`: what time it is at the log's end, for a
    topic of another time. Else this machine's clock says; a folder ends with its last record.

    Raises:
        ConfigError: an option is unknown, or does not fit.
        KafkaConnectionError: no broker answers.
    """
    packed = _packed(spark, bootstrap, folder, groups, options)
    limits = limits or (Limits() if bootstrap is None else _asked_limits(spark_options(bootstrap, options)))
    bounds = log_bounds(spark_options(bootstrap, options)) if bootstrap is not None else {}
    at_ms = time.time_ns() // 1_000_000 if now_ms is None and folder is None else now_ms
    kept = (
        packed.repartition(_tasks(spark), "log_partition", "slot")
        .sortWithinPartitions("log_partition", "slot", "log_offset")
        .mapInArrow(fold_in_order(limits, at_ms, bounds), TOLD_DDL)
        .persist(StorageLevel.MEMORY_AND_DISK)
    )
    return History(**{name: _table(kept, name) for name in SCHEMAS}, kept=kept)


def follow(
    spark: SparkSession,
    bootstrap: str,
    out: str,
    checkpoint: str | None = None,
    *,
    groups: Iterable[str] = (),
    limits: Limits | None = None,
    every_s: float = EVERY_S,
    once: bool = False,
    since_ms: int = 0,
    now_ms: int | None = None,
    **options: Any,
) -> StreamingQuery:
    """Write the history to the folder `out` as Parquet, and go on. It can be stopped, or killed, and started again.

    Every `every_s` seconds what is new is read, rows that are final are written, each once, and what is open now is
    written anew. `once`: read what is there now, and end. `since_ms`: leave out what happened before.

    Raises:
        ConfigError: an option is unknown, or does not fit.
    """
    _register(spark)
    given = spark_options(bootstrap, options) | _own(groups, now_ms) | {TICK_MS: str(int(every_s * 500))}
    source, _ = take_options(given, streaming=True)
    limits = limits or _asked_limits(spark_options(bootstrap, options))
    told = (
        spark.readStream.format(NAME)
        .options(**given)
        .load()
        .groupBy("log_partition", "slot")
        .applyInPandasWithState(fold_on(limits), TOLD_DDL, STATE_DDL, "append", "NoTimeout")
    )
    sink = Sink(out, limits, lambda: log_bounds(given), since_ms=since_ms, clock_ms=now_ms)
    writer = (
        told.writeStream.queryName(f"history of {','.join(source.bootstrap)}")
        .foreachBatch(sink.write)
        .option("checkpointLocation", checkpoint or f"{out.rstrip('/')}/{CHECKPOINT}")
        .outputMode("append")
    )
    when: dict[str, Any] = {"availableNow": True} if once else {"processingTime": f"{int(every_s * 1000)} milliseconds"}
    with _settings(spark, {"spark.sql.shuffle.partitions": str(_tasks(spark)), **_FOR_QUERIES}):
        return writer.trigger(**when).start()


def read(spark: SparkSession, out: str) -> History:
    """The tables that `follow` has written to a folder: what is final, and what was open when it last looked."""
    return History(**{name: written(spark, out.rstrip("/"), name) for name in SCHEMAS})


def spark_options(bootstrap: str | None, options: Mapping[str, Any]) -> dict[str, str]:
    """Options as Spark takes them: `kafka_security_protocol` is `kafka.security.protocol`."""
    given = {
        name.replace("_", ".") if "_" in name else name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in options.items()
    }
    return given if bootstrap is None else given | {"kafka.bootstrap.servers": bootstrap}


def log_bounds(options: Mapping[str, str]) -> dict[TopicPartition, LogBounds]:
    """Where the logs of all topics begin and end now."""
    source, _ = take_options(options, streaming=False)
    settings = source.fetch_settings()
    cluster = connect(settings.bootstrap, settings.client_id, settings.request_timeout_s)
    from muster.model import TopicPartition as Place

    places = [Place(topic, index) for topic, indexes in cluster.topics().items() for index in indexes]
    starts = cluster.list_offsets(dict.fromkeys(places, EARLIEST_TIMESTAMP))
    ends = cluster.list_offsets(dict.fromkeys(places, LATEST_TIMESTAMP))
    return {(place.topic, place.partition): LogBounds(starts[place], ends[place]) for place in places}


def _asked_limits(options: Mapping[str, str]) -> Limits:
    """What the cluster says of time-outs and topic ids, once: a topic that is created later goes by its id, or by the
    name that its group's records allow."""
    source, _ = take_options(options, streaming=False)
    settings = source.fetch_settings()
    with Admin(bootstrap_servers=list(settings.bootstrap), client_id=settings.client_id) as admin:
        return limits_of(admin)


def _packed(
    spark: SparkSession,
    bootstrap: str | None,
    folder: str | None,
    groups: Iterable[str],
    options: Mapping[str, Any],
) -> DataFrame:
    if (bootstrap is None) == (folder is None):
        raise ConfigError("name a cluster with bootstrap, or a folder of segment files with folder: one of the two")
    _register(spark)
    given = spark_options(bootstrap, options) | _own(groups, None)
    if folder is not None:
        given |= {FOLDER: folder}
    else:
        take_options(given, streaming=False)  # Spark's own error for a bad option is a page
    return spark.read.format(NAME).options(**given).load()


def _register(spark: SparkSession) -> None:
    """Make the data source known. A session of another's knows it already."""
    try:
        spark.dataSource.register(HistoryDataSource)
    except AnalysisException as error:
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise


@contextmanager
def _settings(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Settings for a query alone, which takes the session's as it starts."""
    before = {name: spark.conf.get(name) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)


def _own(groups: Iterable[str], clock_ms: int | None) -> dict[str, str]:
    found = {GROUPS: "\n".join(sorted(groups))}
    return found if clock_ms is None else found | {CLOCK_MS: str(clock_ms)}


def _tasks(spark: SparkSession) -> int:
    """Over how many tasks buckets are spread: a few for each core, so that one large group holds up little."""
    return max(4, 2 * int(spark.sparkContext.defaultParallelism))


def _table(told: DataFrame, name: str) -> DataFrame:
    frame = told.where(f.col("name") == name).select("data").mapInArrow(unpack, schema_of(name))
    if name != "counts":
        return frame
    return frame.groupBy("day", "log_partition", "kind", "version").agg(f.sum("records").alias("records"))
