"""Results that are written once although Spark runs a batch twice: into databases, Parquet, and a compacted topic."""

from __future__ import annotations

import contextlib
import json
import signal
import sqlite3
import subprocess
import sys
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import partial
from typing import Any

import psycopg
import pytest

from muster.errors import ConfigError, MusterError
from muster.spark.upsert import LEDGER, insert, into_database, into_parquet, into_topic, latest
from tests.support.faces import Cluster, until
from tests.support.killed_upsert import TABLE, write_numbers
from tests.support.queries import grid

pytestmark = [pytest.mark.slow(90), pytest.mark.timeout(600)]

SCHEMA = "origin string, hour int, flights long, mean double"
KEYS = ["origin", "hour"]


@pytest.fixture
def frame(spark):
    return lambda *rows, schema=SCHEMA: spark.createDataFrame(list(rows), schema)


# ------------------------------------------------------------------------------------------------------------ databases


@pytest.fixture(params=["sqlite", "postgres"])
def connect(request, tmp_path):
    """Opens connections to a database of the test's own."""
    if request.param == "sqlite":
        return lambda: sqlite3.connect(tmp_path / "delays.sqlite")
    return partial(psycopg.connect, request.getfixturevalue("postgres").database())


@pytest.fixture
def database(connect):
    def run(*statements):
        with contextlib.closing(connect()) as connection:
            cursor = connection.cursor()
            for statement in statements:
                cursor.execute(statement)
            found = cursor.fetchall() if cursor.description else []
            connection.commit()
            return found

    run("create table delays (origin text, hour int, flights int, mean real, primary key (origin, hour))")
    run("create table log (origin text, hour int, flights int, mean real)")
    return run


sqlite_only = pytest.mark.parametrize("connect", ["sqlite"], indirect=True)
postgres_only = pytest.mark.parametrize("connect", ["postgres"], indirect=True)


def test_the_last_batch_of_a_key_counts_and_a_batch_that_is_run_again_changes_nothing(frame, database, connect):
    write = into_database(connect, "delays", KEYS, query="q")
    write(frame(("JFK", 6, 1, 2.0), ("LGA", 6, 1, None)), 0)
    write(frame(("JFK", 6, 3, 4.0)), 1)
    write(frame(("JFK", 6, 1, 2.0), ("LGA", 6, 1, None)), 0)  # a driver that was frozen, and is outdated by now
    write(frame(("JFK", 6, 9, 9.0)), 1)
    assert database("select * from delays order by origin") == [("JFK", 6, 3, 4.0), ("LGA", 6, 1, None)]
    assert database(f"select * from {LEDGER}") == [("q", "delays", 1)]


def test_rows_without_a_key_are_there_once_too(frame, database, connect):
    write = into_database(connect, "log", query="q")
    for batch in (0, 1, 1, 0, 2):
        write(frame(("JFK", 6, batch, 1.0), ("LGA", 6, batch, 1.0)), batch)
    assert database("select flights, count(*) from log group by 1 order by 1") == [(0, 2), (1, 2), (2, 2)]


def test_a_batch_that_fails_half_way_is_not_there_and_can_be_run_again(frame, database, spark, connect):
    database("create table strict (origin text primary key, hour int not null)")
    write = into_database(connect, "strict", ["origin"], query="q")
    good = [(f"A{number}", number) for number in range(2_500)]
    with pytest.raises((sqlite3.IntegrityError, psycopg.IntegrityError)):
        write(frame(*good, ("B", None), schema="origin string, hour int").coalesce(1), 0)
    assert database("select count(*) from strict", f"select count(*) from {LEDGER}") == [(0,)]
    write(frame(*good, schema="origin string, hour int"), 0)
    assert database("select count(*), sum(hour) from strict") == [(2_500, sum(range(2_500)))]


def test_another_query_counts_its_own_batches(frame, database, connect):
    for query in ("one", "two"):
        into_database(connect, "delays", KEYS, query=query)(frame((query, 1, 1, 1.0)), 0)
    assert database("select origin from delays order by 1") == [("one",), ("two",)]


def test_a_null_in_a_key_is_refused_since_no_index_finds_it_again(frame, database, connect):
    write = into_database(connect, "log", KEYS, query="q")
    database("create unique index places on log (origin, hour)")
    with pytest.raises(ConfigError, match="a row has null in 'hour', which keys names"):
        write(frame(("JFK", 6, 1, 2.0), ("JFK", None, 1, 2.0)), 0)
    assert database("select * from log") == []
    write(frame(("JFK", 6, 1, None)), 0)
    assert database("select * from log") == [("JFK", 6, 1, None)]


@sqlite_only
def test_sqlite_gets_times_and_decimals_as_text(frame, database, connect):
    database("create table times (at text primary key, day text, amount text, raw blob)")
    row = (datetime.fromisoformat("2013-01-02 03:04:05"), date(2013, 1, 2), Decimal("1.50"), bytearray(b"x"))
    schema = "at timestamp, day date, amount decimal(9,2), raw binary"
    into_database(connect, "times", ["at"], query="q")(frame(row, schema=schema), 0)
    assert database("select * from times") == [("2013-01-02 03:04:05", "2013-01-02", "1.50", b"x")]


def test_the_hour_that_is_there_twice_has_two_keys(frame, database, connect, monkeypatch):
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        # SQLite does not have this type, and keeps the text as it is.
        database("create table hours (at timestamptz primary key, flights int)")
        rows = frame((1,), (2,), schema="flights int").selectExpr(
            "timestamp_seconds(1761433200 + 3600 * flights) as at", "flights"
        )
        into_database(connect, "hours", ["at"], query="q")(rows, 0)
    finally:
        monkeypatch.undo()
        time.tzset()
    found = [(in_utc(at), flights) for at, flights in database("select * from hours order by 1")]
    assert found == [("2025-10-26 00:00:00", 1), ("2025-10-26 01:00:00", 2)]


def in_utc(at):
    """A time as SQLite has it."""
    return at if isinstance(at, str) else at.astimezone(UTC).replace(tzinfo=None).isoformat(" ")


def test_a_running_query_is_named_by_its_checkpoint(spark, tmp_path, database, connect):
    (tmp_path / "in").mkdir()
    source = spark.readStream.schema(SCHEMA).json(str(tmp_path / "in"))
    writer = source.writeStream.foreachBatch(into_database(connect, "delays", KEYS))
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    for number in range(2):
        (tmp_path / "in" / f"{number}.json").write_text(
            json.dumps({"origin": "JFK", "hour": number, "flights": 1, "mean": 1.0})
        )
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
    assert database("select hour from delays order by 1") == [(0,), (1,)]
    assert database(f"select * from {LEDGER}") == [(str(query.id), "delays", 1)]


@postgres_only
def test_a_driver_that_is_killed_before_spark_notes_the_batch_leaves_it_there_once(
    spark, shared_muster, tmp_path, database, connect
):
    cluster = Cluster(shared_muster.bootstrap)
    topic = cluster.written(25, partitions=2)
    database(f'create table {TABLE} (partition int, "offset" bigint)')
    run = (cluster.bootstrap, topic, tmp_path / "checkpoint")
    [address] = connect.args
    done = subprocess.run([sys.executable, "-m", "tests.support.killed_upsert", *map(str, run), address], check=False)
    assert done.returncode == -signal.SIGKILL
    assert database(f"select count(*), max(l.batch) from {TABLE}, {LEDGER} l") == [(10, 0)]
    begun, noted = ([int(path.name) for path in (run[-1] / log).glob("[0-9]*")] for log in ("offsets", "commits"))
    assert (begun, noted) == ([0], [])

    write_numbers(spark, *run, connect).wait()
    assert set(database(f"select * from {TABLE}")) == grid(25, 2)
    assert database(f"select count(*), max(l.batch) from {TABLE}, {LEDGER} l") == [(25, 2)]


@postgres_only
def test_of_two_drivers_of_one_query_the_later_waits_and_passes_the_batch_over(frame, database, connect):
    """A driver that Spark's cluster has replaced may still be running."""
    database(f"create table {LEDGER} (query text, target text, batch bigint, primary key (query, target))")
    with contextlib.closing(connect()) as former, ThreadPoolExecutor(1) as later:
        former.execute(f"insert into {LEDGER} values ('q', 'log', 0)")
        former.execute("insert into log values ('JFK', 6, 1, 2.0)")
        written = later.submit(into_database(connect, "log", query="q"), frame(("JFK", 6, 1, 2.0)), 0)
        waits = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
        until(lambda: database(waits) == [(1,)], lambda: time.sleep(0.02))
        former.commit()
        written.result()
    assert database("select * from log") == [("JFK", 6, 1, 2.0)]


@postgres_only
def test_queries_that_begin_at_once_on_a_new_database(frame, database, connect):
    """PostgreSQL refuses one of two transactions that create a table, even if both say IF NOT EXISTS."""
    with contextlib.closing(connect()) as other, ThreadPoolExecutor(1) as later:
        other.execute(f"create table {LEDGER} (query text, target text, batch bigint, primary key (query, target))")
        written = later.submit(into_database(connect, "log", query="q"), frame(("JFK", 6, 1, 2.0)), 0)
        waits = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
        until(lambda: database(waits) == [(1,)], lambda: time.sleep(0.02))
        other.commit()
        written.result()
    assert database("select * from log") == [("JFK", 6, 1, 2.0)]


@postgres_only
@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGKILL])
def test_a_database_that_restarts_in_a_batch_has_it_once(frame, database, connect, postgres, ending):
    """The batch fails, because its connection fails. Spark runs it again when the query is started again."""
    rows = frame(*(("JFK", number, 1, 2.0) for number in range(2_500)))
    write = into_database(connect, "log", query="q")
    with contextlib.closing(connect()) as other, ThreadPoolExecutor(1) as beside:
        other.execute("lock table log in share mode")
        written = beside.submit(write, rows, 0)
        waits = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
        until(lambda: database(waits) == [(1,)], lambda: time.sleep(0.02))
        postgres.kill(ending)
        with pytest.raises(psycopg.OperationalError):
            written.result()
    postgres.start()
    assert database("select count(*) from log") == [(0,)]
    for _ in range(2):
        write(rows, 0)
    assert database("select count(*), count(distinct hour) from log") == [(2_500, 2_500)]


@postgres_only
def test_a_user_that_may_create_no_table_writes_where_the_ledger_is(frame, database, connect):
    user = f"writer_{uuid.uuid4().hex}"
    database(
        f"create table {LEDGER} (query text, target text, batch bigint, primary key (query, target))",
        f"create role {user} login",
        f"grant select, insert, update on log, {LEDGER} to {user}",
    )
    as_user = partial(connect, user=user)
    into_database(as_user, "log", query="q")(frame(("JFK", 6, 1, 2.0)), 0)
    assert database("select * from log") == [("JFK", 6, 1, 2.0)]
    database(f"drop table {LEDGER}")
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        into_database(as_user, "log", query="q")(frame(("JFK", 6, 1, 2.0)), 1)


@postgres_only
def test_postgres_gets_values_with_their_types(frame, database, connect):
    database(
        'create table typed (at timestamptz primary key, "local %" timestamp, day date, amount numeric, raw bytea, '
        "tags text[])"
    )
    at = datetime.fromisoformat("2013-01-02 03:04:05+00:00").astimezone().replace(tzinfo=None)
    row = (at, datetime.fromisoformat("2013-01-02 03:04:05"), date(2013, 1, 2), Decimal("1.50"), bytearray(b"x"), ["a"])
    schema = "at timestamp, `local %` timestamp_ntz, day date, amount decimal(9,2), raw binary, tags array<string>"
    write = into_database(connect, "typed", ["at"], query="q")
    for batch in range(2):
        write(frame(row, schema=schema), batch)
    [(found, *rest)] = database("select * from typed")
    assert found == datetime.fromisoformat("2013-01-02 03:04:05+00:00")
    assert rest == [datetime.fromisoformat("2013-01-02 03:04:05"), date(2013, 1, 2), Decimal("1.50"), b"x", ["a"]]
    with pytest.raises(ConfigError, match="is in autocommit mode"):
        into_database(partial(connect, autocommit=True), "typed", ["at"], query="q")(frame(row, schema=schema), 2)


@sqlite_only
def test_what_is_wrong_is_said(frame, database, connect):
    with pytest.raises(ConfigError, match=r"keys is 'origin'; it must be a list of columns, such as \['origin'\]"):
        into_database(connect, "delays", "origin")
    for make in (lambda keys: into_parquet("t", keys), lambda keys: into_topic("t", keys)):
        with pytest.raises(ConfigError, match="it must be a list of columns"):
            make("origin")
        with pytest.raises(ConfigError, match="keys is empty"):
            make([])
    with pytest.raises(ConfigError, match="no columns besides keys"):
        into_topic("t", ["origin"])(frame(("JFK",), schema="origin string"), 0)
    autocommit = into_database(lambda: sqlite3.connect(":memory:", isolation_level=None), "delays", KEYS, query="q")
    with pytest.raises(ConfigError, match="is in autocommit mode"):
        autocommit(frame(("JFK", 6, 1, 2.0)), 0)
    with pytest.raises(
        ConfigError, match="keys names 'zone', which is not a column of the rows; they have origin, hour"
    ):
        into_database(connect, "delays", ["zone"], query="q")(frame(("JFK", 6, 1, 2.0)), 0)
    with pytest.raises(ConfigError, match="name it with into_database"):
        into_database(connect, "delays", KEYS)(frame(("JFK", 6, 1, 2.0)), 0)


@pytest.mark.parametrize(
    ("keys", "statement"),
    [
        ((), 'INSERT INTO "s"."t" ("a", "b""c") VALUES (?, ?)'),
        (
            ("a",),
            'INSERT INTO "s"."t" ("a", "b""c") VALUES (?, ?) ON CONFLICT ("a") DO UPDATE SET "b""c" = excluded."b""c"',
        ),
        (("a", 'b"c'), 'INSERT INTO "s"."t" ("a", "b""c") VALUES (?, ?) ON CONFLICT ("a", "b""c") DO NOTHING'),
    ],
)
def test_statements(keys, statement):
    assert insert("s.t", ["a", 'b"c'], keys, "?") == statement


def test_a_percent_sign_is_literal_where_values_are_marked_by_one():
    assert insert("t", ["a%"], ["a%"], "%s") == 'INSERT INTO "t" ("a%%") VALUES (%s) ON CONFLICT ("a%%") DO NOTHING'
    assert insert("t", ["a%"], (), "?") == 'INSERT INTO "t" ("a%") VALUES (?)'


# -------------------------------------------------------------------------------------------------------------- Parquet


def rows_of(found):
    return sorted(tuple(row) for row in found.collect())


def test_a_key_has_its_last_row_however_often_a_batch_is_run_and_merged(spark, frame, tmp_path):
    folder = str(tmp_path / "table")
    write = into_parquet(folder, KEYS, merge_at=3, query="q")
    with pytest.raises(MusterError, match="has no batches"):
        latest(spark, folder, KEYS)
    expected: dict[Any, Any] = {}
    for batch in range(9):
        changed = [("JFK", batch % 4, batch, None), (f"A{batch}", 0, batch, float(batch))]
        expected |= {row[:2]: row for row in changed}
        for _ in range(1 + batch % 2):
            write(frame(*changed), batch)
        assert rows_of(latest(spark, folder, KEYS)) == sorted(expected.values())
    assert {path.name for path in (tmp_path / "table").glob("batch=*")} == {f"batch={batch}" for batch in range(3, 9)}


def test_a_batch_that_was_being_written_in_a_crash_is_not_seen(spark, frame, tmp_path):
    folder = str(tmp_path / "table")
    write = into_parquet(folder, KEYS, query="q")
    write(frame(("JFK", 6, 1, 2.0)), 0)
    write(frame(("JFK", 6, 3, 4.0)), 1)
    (tmp_path / "table" / "batch=1" / "_SUCCESS").unlink()
    assert rows_of(latest(spark, folder, KEYS)) == [("JFK", 6, 1, 2.0)]
    write(frame(("JFK", 6, 3, 4.0)), 1)
    assert rows_of(latest(spark, folder, KEYS)) == [("JFK", 6, 3, 4.0)]


def test_a_folder_belongs_to_one_query(frame, tmp_path):
    folder = str(tmp_path / "table")
    into_parquet(folder, KEYS, query="q")(frame(("JFK", 6, 1, 2.0)), 0)
    with pytest.raises(
        ConfigError, match="belongs to query q, and this is query other, whose batches are numbered from 0 again"
    ):
        into_parquet(folder, KEYS, query="other")(frame(("JFK", 6, 1, 2.0)), 0)
    (tmp_path / "table" / "_query").unlink()
    with pytest.raises(ConfigError, match="belongs to another query, and this is query q,"):
        into_parquet(folder, KEYS, query="q")(frame(("JFK", 6, 1, 2.0)), 1)


def test_columns_that_come_later_are_null_before(spark, frame, tmp_path):
    folder = str(tmp_path / "table")
    write = into_parquet(folder, ["origin"], query="q")
    write(frame(("JFK", 1), ("LGA", 1), schema="origin string, a int"), 0)
    write(frame(("JFK", 2, 3), schema="origin string, a int, b int"), 1)
    assert rows_of(latest(spark, folder, ["origin"]).na.fill(0)) == [("JFK", 2, 3), ("LGA", 1, 0)]


def test_columns_have_any_names(spark, frame, tmp_path):
    folder = str(tmp_path / "table")
    write = into_parquet(folder, ["k.1"], merge_at=2, query="q")
    for batch in range(4):
        row = ("JFK", *range(batch, batch + 4))
        write(frame(row, schema="`k.1` string, `v.w` int, `a``b` int, _batch int, _row int"), batch)
        assert rows_of(latest(spark, folder, ["k.1"])) == [row]


def test_a_folder_whose_owner_was_not_written_to_the_end_is_free(spark, frame, tmp_path):
    """As after a crash, or on a full disk."""
    folder = str(tmp_path / "table")
    (tmp_path / "table").mkdir()
    (tmp_path / "table" / "_query").touch()
    into_parquet(folder, KEYS, query="q")(frame(("JFK", 6, 1, 2.0)), 0)
    assert rows_of(latest(spark, folder, KEYS)) == [("JFK", 6, 1, 2.0)]
    with pytest.raises(ConfigError, match="belongs to query q"):
        into_parquet(folder, KEYS, query="other")(frame(("JFK", 6, 1, 2.0)), 0)


def test_batches_are_seen_where_hadoop_marks_none_as_done(spark, frame, tmp_path):
    folder, setting = str(tmp_path / "table"), "mapreduce.fileoutputcommitter.marksuccessfuljobs"
    spark.conf.set(setting, "false")
    try:
        write = into_parquet(folder, ["origin"], merge_at=2, query="q")
        for batch in range(4):
            write(frame((f"A{batch}", batch), schema="origin string, a int"), batch)
    finally:
        spark.conf.unset(setting)
    assert rows_of(latest(spark, folder, ["origin"])) == [(f"A{batch}", batch) for batch in range(4)]


# --------------------------------------------------------------------------------------------------------------- topics


def test_a_compacted_topic_has_keys_values_and_tombstones(spark, frame, cluster):
    topic = cluster.topic(1)
    write = into_topic(topic, KEYS, **{"kafka.bootstrap.servers": cluster.bootstrap})
    write(frame(("JFK", 6, 1, None), ("LGA", 6, None, None)), 0)
    read = spark.read.format("muster").option("bootstrap", cluster.bootstrap).option("subscribe", topic).load()
    found = [(json.loads(row.key), row.value and json.loads(row.value)) for row in read.collect()]
    assert sorted(found, key=str) == [
        ({"origin": "JFK", "hour": 6}, {"flights": 1, "mean": None}),
        ({"origin": "LGA", "hour": 6}, None),
    ]


@pytest.mark.parametrize("cluster", ["muster"], indirect=True)
def test_a_timestamp_is_the_same_key_in_each_time_zone_and_another_one_a_microsecond_later(spark, frame, cluster):
    topic = cluster.topic(1)
    write = into_topic(topic, ["at.utc"], **{"kafka.bootstrap.servers": cluster.bootstrap})
    at = "timestamp_micros(1356998400000000 + micros)"
    try:
        for zone in ("America/New_York", "Asia/Kathmandu"):
            spark.conf.set("spark.sql.session.timeZone", zone)
            rows = frame((1,), (2,), schema="micros int")
            write(rows.selectExpr(f"{at} as `at.utc`", f"{at} as seen", "micros as `n.o`"), 0)
    finally:
        spark.conf.unset("spark.sql.session.timeZone")
    read = spark.read.format("muster").option("bootstrap", cluster.bootstrap).option("subscribe", topic).load()
    found = [(json.loads(row.key), json.loads(row.value)) for row in read.collect()]
    times = [f"2013-01-01T00:00:00.00000{micros}Z" for micros in (1, 2)]
    expected = [({"at.utc": time}, {"seen": time, "n.o": number}) for number, time in enumerate(times, 1)]
    assert sorted(found, key=str) == sorted(2 * expected, key=str)
