"""The API of `muster.spark.history`: the history as DataFrames, and as a query that keeps writing it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Self

from pyspark.errors import AnalysisException
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.storagelevel import StorageLevel

from muster.client.admin.admin import Admin
from muster.client.core.admin.admin import TopicDescription
from muster.clock import wall_clock_ms
from muster.errors import ConfigError, ErrorCode, KafkaError, MusterError
from muster.history.model import Limits
from muster.history.sources.cluster_limits import limits_of
from muster.history.sources.raw_records import EVENTS_TOPIC, OFFSETS_TOPIC
from muster.history.tables import ENTRIES
from muster.spark.history.folding import OUTPUT_DDL, SCHEMAS, STATE_DDL, fold_in_order, fold_on, unpack
from muster.spark.history.hadoop_folder import HadoopFolder
from muster.spark.history.packed import IN_ENTRIES
from muster.spark.history.sink import (
    FINAL,
    OPEN_TABLES,
    Sink,
    findings_frame,
    is_remote,
    lag_frame,
    lag_over_time_frame,
    schema_of,
    tasks,
    written,
)
from muster.spark.history.source import (
    CLOCK_MS,
    EVENTS_ONLY,
    FOLDER,
    NAME,
    TICK_MS,
    HistoryDataSource,
    groups_option,
    parse_history_options,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

CHECKPOINT = "_checkpoint"
"""Where a query that writes to a folder keeps its checkpoint; Parquet readers skip such a name."""

EVERY_S = 60.0

_CLUSTER_TIMEOUT_MS = 15_000
"""How long a starting job waits for the cluster."""

_FOR_QUERIES = {"spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS"}
"""Few other programs read INT96, Spark's default."""


@dataclass(frozen=True, slots=True)
class History:
    """The tables of the history (docs/reference/history.md has their columns)."""

    generations: DataFrame
    rebalances: DataFrame
    notes: DataFrame
    lag: DataFrame
    findings: DataFrame
    counts: DataFrame
    lag_over_time: DataFrame
    """In steps over the time that was read; for tables written by `follow`, at each of its readings."""
    kept: tuple[DataFrame, ...] = ()

    def close(self) -> None:
        """Release what is kept in Spark's storage."""
        for frame in self.kept:
            frame.unpersist()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


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
    worker must find under this path. `options` are those of the muster source, with underscores for dots:
    `kafka_request_timeout_ms=60_000`.

    Raises:
        ConfigError: an option is unknown or not valid.
    """
    records = packed(spark, bootstrap, folder, groups, options)
    return records.where(f.col("what") == IN_ENTRIES).select("data").mapInArrow(unpack, from_arrow_schema(ENTRIES))


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
    """The whole current history. It is computed once, when a table is first used, and then kept in
    Spark's storage until `close()`, or the end of a `with`.

    By default `limits` are read from the cluster. `now_ms`: the time at the log's end, for a
    topic from another time. Default: this machine's clock; a folder ends with its last record.

    Raises:
        ConfigError: an option is unknown or not valid.
        KafkaConnectionError: no broker answers.
    """
    records = packed(spark, bootstrap, folder, groups, options)
    limits = limits or (Limits() if bootstrap is None else _limits_of_cluster(spark_options(bootstrap, options)))
    at_ms = wall_clock_ms() if now_ms is None and folder is None else now_ms
    kept = folded(spark, records, limits, at_ms).persist(StorageLevel.MEMORY_AND_DISK)
    found = {name: _table(kept, name) for name in SCHEMAS}
    if bootstrap is None:
        return History(**found, lag_over_time=found["lag"], kept=(kept,))
    source, _ = parse_history_options(spark_options(bootstrap, options), streaming=False)
    settings = source.fetch_settings()
    lag = lag_frame(kept, settings, limits, now_ms, None).persist(StorageLevel.MEMORY_AND_DISK)
    rows = {name: found[name] for name in OPEN_TABLES} | {"lag": lag}
    findings = findings_frame(rows, limits, now_ms, settings)
    past = lag_over_time_frame(kept, settings, now_ms).persist(StorageLevel.MEMORY_AND_DISK)
    return History(**found | {"lag": lag, "findings": findings}, lag_over_time=past, kept=(kept, lag, past))


def check(bootstrap: str, **options: Any) -> Limits:
    """Check that a job can start: its options, and the cluster, whose limits are returned. It needs no session.

    Raises:
        ConfigError: an option is unknown or not valid.
        KafkaConnectionError, KafkaTimeoutError: no broker answers.
        MusterError: there is no history.
    """
    given = spark_options(bootstrap, options)
    parse_history_options(given, streaming=True)
    return _limits_of_cluster(given, _check_has_history)


def alone(spark: SparkSession, out: str) -> AbstractContextManager[None]:
    """A lock on the folder `out`, held while a job writes to it: two jobs would run the same batches.

    Raises, as it is entered:
        ConfigError: another job holds it.
        MusterError: the folder cannot be created.
    """
    return HadoopFolder(spark, out).alone()


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
    """Write the history to the folder `out` as Parquet, continuously. The query can be stopped or killed, and
    restarted.

    Every `every_s` seconds new records are read, final rows are written, each once, and open rows are
    rewritten. `once`: read what is there now, and end. `since_ms`: omit what happened before.

    Raises:
        ConfigError: an option is unknown or not valid, or another version wrote the folder.
        KafkaConnectionError: no broker answers.
        MusterError: the folder cannot be written.
    """
    if is_remote(spark):
        raise ConfigError(
            "follow() does not run over Spark Connect: run `muster history`, or follow() in a session "
            "on the driver; tables(), entries() and read() work here"
        )
    _register(spark)
    given = spark_options(bootstrap, options)
    given |= _what_is_read(given) | _history_options(groups, now_ms) | {TICK_MS: str(int(every_s * 500))}
    source, _ = parse_history_options(given, streaming=True)
    limits = limits or _limits_of_cluster(spark_options(bootstrap, options))
    HadoopFolder(spark, out).claim(None if checkpoint else CHECKPOINT, FINAL)
    output = (
        spark.readStream.format(NAME)
        .options(**given)
        .load()
        .groupBy("log_partition", "slot")
        .applyInPandasWithState(fold_on(limits), OUTPUT_DDL, STATE_DDL, "append", "NoTimeout")
    )
    sink = Sink(out, limits, source.fetch_settings(), since_ms=since_ms, clock_ms=now_ms)
    writer = (
        output.writeStream.queryName(f"history of {','.join(source.bootstrap)}")
        .foreachBatch(sink.write)
        .option("checkpointLocation", checkpoint or f"{out.rstrip('/')}/{CHECKPOINT}")
        .outputMode("append")
    )
    when: dict[str, Any] = {"availableNow": True} if once else {"processingTime": f"{int(every_s * 1000)} milliseconds"}
    with _settings(spark, {"spark.sql.shuffle.partitions": str(tasks(spark)), **_FOR_QUERIES}):
        return writer.trigger(**when).start()


def read(spark: SparkSession, out: str) -> History:
    """The tables that `follow` has written to a folder: final rows, and those open at its last reading."""
    found = {name: written(spark, out.rstrip("/"), name) for name in SCHEMAS}
    return History(**found, lag_over_time=found["lag"])


def spark_options(bootstrap: str | None, options: Mapping[str, Any]) -> dict[str, str]:
    """Options in Spark's form: `kafka_request_timeout_ms` becomes `kafka.request.timeout.ms`."""
    given = {
        name.replace("_", ".") if "_" in name else name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in options.items()
    }
    return given if bootstrap is None else given | {"kafka.bootstrap.servers": bootstrap}


def _check_has_history(admin: Admin) -> None:
    if _is_missing(admin.describe_topics([OFFSETS_TOPIC], raise_errors=False)[OFFSETS_TOPIC]) and not _is_events_only(
        admin
    ):
        raise MusterError(
            f"there is no history yet: no group has committed anything, so {OFFSETS_TOPIC} does not exist"
        )


def _is_events_only(admin: Admin) -> bool:
    """Whether the groups of a cluster are not in any log, but its brokers report events about them."""
    found = admin.describe_topics([OFFSETS_TOPIC, EVENTS_TOPIC], raise_errors=False)
    events = found[EVENTS_TOPIC]
    return _is_missing(found[OFFSETS_TOPIC]) and isinstance(events, TopicDescription) and events.is_internal


def _is_missing(topic: TopicDescription | KafkaError) -> bool:
    return isinstance(topic, KafkaError) and topic.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _what_is_read(options: Mapping[str, str]) -> dict[str, str]:
    """The option for a cluster whose groups are known from events alone."""
    source, _ = parse_history_options(options, streaming=False)
    with Admin(asdict(source.fetch_settings().client), default_api_timeout_ms=_CLUSTER_TIMEOUT_MS) as admin:
        return {EVENTS_ONLY: "true"} if _is_events_only(admin) else {}


def _limits_of_cluster(options: Mapping[str, str], check: Callable[[Admin], None] | None = None) -> Limits:
    """The cluster's timeouts and topic IDs, read once: a topic that is created later appears by its ID, or by the
    name that its group's records suggest."""
    source, _ = parse_history_options(options, streaming=False)
    with Admin(asdict(source.fetch_settings().client), default_api_timeout_ms=_CLUSTER_TIMEOUT_MS) as admin:
        if check is not None:
            check(admin)
        return limits_of(admin)


def folded(spark: SparkSession, records: DataFrame, limits: Limits, now_ms: int | None) -> DataFrame:
    """Fold packed records (`packed`) into packed rows of all tables, and the state of each group."""
    return (
        records.repartition(tasks(spark), "log_partition", "slot")
        .sortWithinPartitions("log_partition", "slot", "log_offset")
        .mapInArrow(fold_in_order(limits, now_ms), OUTPUT_DDL)
    )


def packed(
    spark: SparkSession,
    bootstrap: str | None,
    folder: str | None,
    groups: Iterable[str],
    options: Mapping[str, Any],
) -> DataFrame:
    """The records of a cluster or a folder as rows of PACKED.

    Raises:
        ConfigError: an option is unknown or not valid.
    """
    if (bootstrap is None) == (folder is None):
        raise ConfigError("name either a cluster with bootstrap, or a folder of segment files with folder")
    _register(spark)
    given = spark_options(bootstrap, options) | _history_options(groups, None)
    if folder is not None:
        given |= {FOLDER: folder}
    else:
        given |= _what_is_read(
            spark_options(bootstrap, options)
        )  # fails before Spark does, whose error for a bad option is a page
    return spark.read.format(NAME).options(**given).load()


def _register(spark: SparkSession) -> None:
    """Register the data source, unless the session has it already."""
    try:
        spark.dataSource.register(HistoryDataSource)
    except AnalysisException as error:
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise


@contextmanager
def _settings(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Settings for one query, which takes the session's when it starts."""
    before = {name: spark.conf.get(name) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)


def _history_options(groups: Iterable[str], clock_ms: int | None) -> dict[str, str]:
    found = groups_option(groups)
    return found if clock_ms is None else found | {CLOCK_MS: str(clock_ms)}


def _table(output: DataFrame, name: str) -> DataFrame:
    frame = output.where(f.col("name") == name).select("data").mapInArrow(unpack, schema_of(name))
    if name != "counts":
        return frame
    return frame.groupBy("day", "log_partition", "kind", "version").agg(f.sum("records").alias("records"))
