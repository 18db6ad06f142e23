"""Sinks for `foreachBatch` that write each result once, although Spark may run a batch twice.

    windows.writeStream.outputMode("update").foreachBatch(into_database(connect, "delays", ["origin", "day"]))

After a crash between a sink's write and its own commit of the batch, Spark runs the batch again, with the same records
and the same batch number. So a sink must recognize that number:

- `into_database` writes a batch's rows and its number in one transaction. A batch whose number is already there is
skipped. This holds for upserts and plain inserts alike: each batch is in the table once.
- `into_parquet` writes a folder for each batch, which a second run replaces. A row is current if no later batch has its
  key (`latest`); accumulated folders are merged from time to time.
- `into_topic` writes a compacted topic: a key's last record is current. A second run writes the same records again, and
  a consumer may see a value twice. Order holds within a key, so the last record is correct.

A batch must have one row for each key: which of several is kept is undefined.

Batch numbers belong to a query's checkpoint. A query with a new checkpoint starts at 0 again, under another query ID:
`into_database` tells queries apart by that ID; a folder of `into_parquet` belongs to one query and refuses any other.
"""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC
from functools import reduce
from itertools import islice
from operator import or_
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from pyspark.errors import PySparkException
from pyspark.sql import functions as f
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    DecimalType,
    NumericType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from muster.errors import ConfigError, MusterError
from muster.spark.history.hadoop_folder import HadoopFolder
from muster.spark.stopping import stoppable

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

Write: TypeAlias = "Callable[[DataFrame, int], None]"
"""The function that `foreachBatch` accepts."""

Converter: TypeAlias = "Callable[[Any], Any]"

LEDGER = "muster_batches"
"""The table in which `into_database` keeps the number of each query's last batch."""

MERGE_AT = 50
"""How many batch folders accumulate before they are merged."""

_ROWS_AT_ONCE = 1_000


class Cursor(Protocol):
    """The part of a DB-API cursor that is used."""

    rowcount: int

    def execute(self, statement: str, values: Any = ..., /) -> Any: ...

    def executemany(self, statement: str, values: Any, /) -> Any: ...


class DatabaseConnection(Protocol):
    """The part of a DB-API connection that is used."""

    def cursor(self) -> Any: ...

    def commit(self) -> Any: ...

    def rollback(self) -> Any: ...

    def close(self) -> Any: ...


# ------------------------------------------------------------------------------------------------------------ databases


def into_database(
    connect: Callable[[], DatabaseConnection], table: str, keys: Sequence[str] = (), *, query: str | None = None
) -> Write:
    """Upsert the rows of each batch into a table by the columns `keys`; without keys, insert them.

    For databases with `INSERT … ON CONFLICT`, such as SQLite and PostgreSQL, through any DB-API module. The table
    must exist, with the columns of the rows and, for upserts, a primary key or unique index on `keys`. The
    rows pass through the driver while the transaction is open, so this is for results, not for raw records by the
    million. Timestamps are written in UTC, to SQLite as text; use `timestamptz` in PostgreSQL.

    Args:
        connect: opens a connection; called for each batch, in the driver.
        query: names the query if Spark cannot be asked for its ID (Spark Connect); it must stay the same across
            restarts and change with the checkpoint.

    Raises, in the batch:
        ConfigError: the rows lack a key column, a row has null in one, the query's id is not known, or the connection
            commits each statement separately.
    """
    _check_list(keys)

    @stoppable
    def write(rows: DataFrame, batch: int) -> None:
        columns = rows.columns
        _check_keys(keys, columns)
        name = query or _query_id(rows, "into_database")
        with contextlib.closing(connect()) as connection:
            cursor = connection.cursor()
            mark = _mark(connection)
            _check_transactions(connection)
            _ensure_ledger(connection, cursor)
            cursor.execute(_NOTE.replace("?", mark), (name, table, batch))
            if cursor.rowcount < 0:
                raise ConfigError(f"{_module(connection)} does not report how many rows a statement changed")
            if cursor.rowcount == 0:
                return  # the batch is in the table already: Spark runs it a second time
            statement = insert(table, columns, keys, mark)
            convert = _converters(rows.schema, as_text=_module(connection) == "sqlite3")
            for some in _chunks(_values(rows, keys, convert)):
                cursor.executemany(statement, some)
            connection.commit()

    return write


_LEDGER_TABLE = (
    f"CREATE TABLE IF NOT EXISTS {LEDGER} (query VARCHAR(200) NOT NULL, target VARCHAR(200) NOT NULL, "
    "batch BIGINT NOT NULL, PRIMARY KEY (query, target))"
)
_NOTE = (
    f"INSERT INTO {LEDGER} (query, target, batch) VALUES (?, ?, ?) ON CONFLICT (query, target) "
    f"DO UPDATE SET batch = excluded.batch WHERE {LEDGER}.batch < excluded.batch"
)


def _ensure_ledger(connection: DatabaseConnection, cursor: Cursor) -> None:
    """Create the table of batches if it does not exist. It is looked up first: an account that may not create a
    table may still write to one. If two transactions create it at the same time, PostgreSQL refuses one."""
    if _has_ledger(connection, cursor):
        return
    try:
        cursor.execute(_LEDGER_TABLE)
        connection.commit()
    except Exception:  # each module has its own errors
        connection.rollback()
        if not _has_ledger(connection, cursor):
            raise


def _has_ledger(connection: DatabaseConnection, cursor: Cursor) -> bool:
    try:
        cursor.execute(f"SELECT batch FROM {LEDGER} WHERE 1 = 0")
    except Exception:
        connection.rollback()
        return False
    return True


def insert(table: str, columns: Sequence[str], keys: Sequence[str], mark: str) -> str:
    """The statement that writes a row; `mark` is the placeholder for a value."""

    def quoted(name: str) -> str:
        return _quoted(name).replace("%", "%%") if "%" in mark else _quoted(name)

    names = ", ".join(map(quoted, columns))
    statement = f"INSERT INTO {quoted(table)} ({names}) VALUES ({', '.join([mark] * len(columns))})"
    if not keys:
        return statement
    rest = [quoted(column) for column in columns if column not in keys]
    change = f"UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in rest)}" if rest else "NOTHING"
    return f"{statement} ON CONFLICT ({', '.join(map(quoted, keys))}) DO {change}"


def _quoted(name: str) -> str:
    """A quoted SQL name; the parts of `schema.table` are quoted separately."""
    return ".".join('"' + part.replace('"', '""') + '"' for part in name.split("."))


def _check_keys(keys: Sequence[str], columns: Sequence[str]) -> None:
    if missing := [key for key in keys if key not in columns]:
        raise ConfigError(
            f"keys names {missing[0]!r}, which is not a column of the rows; they have {', '.join(columns)}"
        )


def _check_list(keys: Sequence[str], least: int = 0) -> None:
    if isinstance(keys, str):
        raise ConfigError(f"keys is {keys!r}; it must be a list of columns, such as [{keys!r}]")
    if len(keys) < least:
        raise ConfigError("keys is empty; name the columns that identify a row")


def _query_id(rows: DataFrame, sink: str) -> str:
    try:
        found = rows.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
    except PySparkException:  # Spark Connect
        found = None
    if not found:
        raise ConfigError(f"Spark does not say which query this is: name it with {sink}(…, query=…)")
    return str(found)


_MARKS = {"qmark": "?", "format": "%s", "pyformat": "%s"}


def _module(connection: DatabaseConnection) -> str:
    """The DB-API module of the connection's class, or of a class that it inherits from."""
    names = [each.__module__.partition(".")[0] for each in type(connection).__mro__]
    return next((name for name in names if hasattr(sys.modules.get(name), "paramstyle")), names[0])


def _mark(connection: DatabaseConnection) -> str:
    """The placeholder of the connection's module."""
    style = getattr(sys.modules[_module(connection)], "paramstyle", "qmark")
    if style not in _MARKS:
        raise ConfigError(f"{_module(connection)} has the paramstyle {style}; supported are {', '.join(_MARKS)}")
    return _MARKS[style]


def _check_transactions(connection: DatabaseConnection) -> None:
    """A batch's number must not be durable before its rows are."""
    autocommit = getattr(connection, "autocommit", None)
    legacy = _module(connection) == "sqlite3" and getattr(connection, "isolation_level", "") is None
    if autocommit is True or (legacy and autocommit is not False):
        raise ConfigError("the connection is in autocommit mode: open it without autocommit")


def _values(rows: DataFrame, keys: Sequence[str], convert: Sequence[Converter]) -> Iterator[tuple[Any, ...]]:
    """The rows as the database expects them."""
    places = [rows.columns.index(key) for key in keys]
    for row in rows.toLocalIterator(prefetchPartitions=True):
        if (null := next((place for place in places if row[place] is None), None)) is not None:
            raise ConfigError(
                f"a row has null in {rows.columns[null]!r}, which keys names: a unique index never matches null, "
                "so each batch would insert the row again; leave such rows out, or give them a value (coalesce)"
            )
        yield tuple(value if value is None else each(value) for each, value in zip(convert, row, strict=True))


def _converters(schema: StructType, *, as_text: bool) -> list[Converter]:
    """For each column a function that converts Spark's values for the database. Spark passes timestamps in the driver's
    time zone, in which one hour a year occurs twice. With `as_text`, types that SQLite lacks become text: times sort
    as text, decimals in a column of the type NUMERIC."""
    return [_converter(field.dataType, as_text) for field in schema.fields]


def _converter(kind: DataType, as_text: bool) -> Converter:
    if isinstance(kind, TimestampType):
        return (lambda value: value.astimezone(UTC).replace(tzinfo=None).isoformat(" ")) if as_text else _in_utc
    if isinstance(kind, TimestampNTZType) and as_text:
        return lambda value: value.isoformat(" ")
    plain = isinstance(kind, (NumericType, StringType, BinaryType, BooleanType)) and not isinstance(kind, DecimalType)
    return str if as_text and not plain else _unchanged


def _in_utc(value: Any) -> Any:
    return value.astimezone(UTC)


def _unchanged(value: Any) -> Any:
    return value


def _chunks(rows: Iterator[tuple[Any, ...]]) -> Iterator[list[tuple[Any, ...]]]:
    while some := list(islice(rows, _ROWS_AT_ONCE)):
        yield some


# -------------------------------------------------------------------------------------------------------------- Parquet

_BATCH = re.compile(r"batch=(\d+)")
_MERGED = re.compile(r"merged=(\d+)")
_DONE = "_SUCCESS"
_OWNER = "_query"
_NUMBER, _ROW = "_muster_batch", "_muster_row"
"""Columns in addition to those of the rows."""


def into_parquet(folder: str, keys: Sequence[str], *, merge_at: int = MERGE_AT, query: str | None = None) -> Write:
    """Upsert the rows of each batch into a folder of Parquet files by the columns `keys`; read it with `latest`.

    `folder/batch=N` has batch N. When there are `merge_at` such folders, they are merged into `folder/merged=N`, which
    has each key's last row of batches 0 to N. Readers see whole batches only. The files of merged batches stay
    until the next merge, so that readers in progress can finish.

    Args:
        query: as for `into_database`.

    Raises, in the batch:
        ConfigError: the rows lack a key column, or another query has written to the folder.
    """
    _check_list(keys, 1)

    @stoppable
    def write(rows: DataFrame, batch: int) -> None:
        _check_keys(keys, rows.columns)
        target = HadoopFolder(rows.sparkSession, folder)
        _claim(target, folder, query or _query_id(rows, "into_parquet"))
        merged, batches = _parts(target)
        if len(batches) >= merge_at and batches[-1] < batch:
            _merge(rows.sparkSession, target, keys, merged, batches)
        if merged is None or batch > merged:
            _write_part(rows, target, f"batch={batch}")

    return write


def _write_part(rows: DataFrame, target: HadoopFolder, name: str) -> None:
    rows.write.mode("overwrite").parquet(target.full(name))
    if not target.exists(f"{name}/{_DONE}"):  # Hadoop can be configured not to write it
        target.write(f"{name}/{_DONE}", "")


def _claim(target: HadoopFolder, folder: str, query: str) -> None:
    """Check that the folder is this query's: another query numbers its batches from 0, and they would seem old."""
    found = target.read(_OWNER)
    if not found and not any(map(_BATCH.fullmatch, target.listed(""))):
        target.write(_OWNER, query)
    elif found != query:
        owner = f"query {found}" if found else "another query"
        raise ConfigError(
            f"{folder} belongs to {owner}, and this is query {query}, whose batches are numbered from 0 again: "
            "name another folder, or use that query's checkpoint"
        )


def latest(spark: SparkSession, folder: str, keys: Sequence[str]) -> DataFrame:
    """The table that `into_parquet` writes: the last row of each key.

    Raises:
        MusterError: nothing has been written there.
    """
    target = HadoopFolder(spark, folder)
    merged, batches = _parts(target)
    if merged is None and not batches:
        raise MusterError(f"{folder} has no batches written by into_parquet")
    return _last(spark, target, keys, merged, batches)


def _parts(target: HadoopFolder) -> tuple[int | None, list[int]]:
    """The batch up to which the table is merged, and the batches since; complete ones only."""
    whole = [name for name in target.listed("") if target.exists(f"{name}/{_DONE}")]
    merged = max((int(found[1]) for name in whole if (found := _MERGED.fullmatch(name))), default=None)
    batches = sorted(int(found[1]) for name in whole if (found := _BATCH.fullmatch(name)))
    return merged, [batch for batch in batches if merged is None or batch > merged]


def _last(
    spark: SparkSession, target: HadoopFolder, keys: Sequence[str], merged: int | None, batches: Sequence[int]
) -> DataFrame:
    parts = [(f"batch={batch}", batch) for batch in batches]
    if merged is not None:
        parts.insert(0, (f"merged={merged}", merged))
    frames = [spark.read.parquet(target.full(name)).withColumn(_NUMBER, f.lit(batch)) for name, batch in parts]
    rows = frames[0]
    for frame in frames[1:]:
        rows = rows.unionByName(frame, allowMissingColumns=True)
    rest = [column for column in rows.columns if column not in (*keys, _NUMBER)]
    newest = f.max_by(f.struct(*map(_column, rest)) if rest else f.lit(True), _NUMBER).alias(_ROW)
    found = rows.groupBy(*map(_column, keys)).agg(newest)
    return found.select(*map(_column, keys), *(f.col(_ROW)[column].alias(column) for column in rest))


def _column(name: str) -> Column:
    """A column by its name, which may have dots."""
    return f.col("`" + name.replace("`", "``") + "`")


def _merge(
    spark: SparkSession, target: HadoopFolder, keys: Sequence[str], merged: int | None, batches: Sequence[int]
) -> None:
    """Merge these batches, and delete what the previous merge has merged."""
    name = f"merged={batches[-1]}"
    _write_part(_last(spark, target, keys, merged, batches), target, name)
    for name in target.listed(""):
        old_merge, old_batch = _MERGED.fullmatch(name), _BATCH.fullmatch(name)
        is_old_merge = old_merge is not None and merged is not None and int(old_merge[1]) < merged
        if is_old_merge or (old_batch is not None and merged is not None and int(old_batch[1]) <= merged):
            target.delete(name)


# --------------------------------------------------------------------------------------------------------------- topics


_AS_JSON = {
    "timeZone": "UTC",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
"""Spark writes milliseconds, in the session's time zone: two times would be one key, and one time several."""


def into_topic(topic: str, keys: Sequence[str], **options: str) -> Write:
    """Write the rows of each batch to a compacted topic: `keys` as JSON become the record's key, the rest its value.

    `options` are the sink's, such as `{"kafka.bootstrap.servers": "localhost:9092"}`. A row whose other
    columns are all null deletes its key. Timestamps are written in UTC, to the microsecond.

    Raises, in the batch:
        ConfigError: the rows lack a key column, or have no other column.
    """
    _check_list(keys, 1)

    @stoppable
    def write(rows: DataFrame, batch: int) -> None:
        _check_keys(keys, rows.columns)
        rest = [column for column in rows.columns if column not in keys]
        if not rest:
            raise ConfigError(
                "the rows have no columns besides keys, and a record without a value would delete its key"
            )
        has_value = reduce(or_, (_column(name).isNotNull() for name in rest), f.lit(False))
        key, value = (f.struct(*map(_column, names)) for names in (keys, rest))
        records = rows.select(
            f.to_json(key, _AS_JSON).alias("key"),
            f.when(has_value, f.to_json(value, {**_AS_JSON, "ignoreNullFields": "false"})).alias("value"),
        )
        records.write.format("muster").mode("append").options(**options, topic=topic).save()

    return write
