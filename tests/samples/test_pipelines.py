"""The pipelines of examples/pipelines, run as they are on one broker: each writes the results that its page
describes."""

from __future__ import annotations

import contextlib
import json
import shlex
import sqlite3
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyarrow import dataset

from tests.samples.test_samples import AT_ONCE, EXAMPLES, Place, serve
from tests.support.peers import missing
from tests.support.postgres import HOW, find_postgres

pytestmark = pytest.mark.slow(200)

PIPELINES = EXAMPLES / "pipelines"

RUNNER = """
import runpy, sys, threading, time
from pyspark.sql import SparkSession

def stop_at_rest():
    "End queries that would run forever, once they have read everything."
    while True:
        time.sleep(0.2)
        spark = SparkSession.getActiveSession() or SparkSession._instantiatedSession
        for query in spark.streams.active if spark else ():
            status, progress = query.status, query.lastProgress
            if endless and progress and not status["isTriggerActive"] and not status["isDataAvailable"]:
                query.stop()

endless = False
threading.Thread(target=stop_at_rest, daemon=True).start()
for line in SCRIPTS:
    name, *sys.argv[1:] = line
    endless = name in ("backfill.py", "shared_group.py")
    runpy.run_path(f"{folder}/{name}", run_name="__main__")
"""

ORDERS: list[tuple[str, Any]] = [
    ("o1", {"order_id": "o1", "customer": "ada", "amount": 120.0, "at": "2026-11-01T10:10:00Z"}),
    ("o2", {"order_id": "o2", "customer": "bob", "amount": 30.0, "at": "2026-11-01T10:50:00Z"}),
    ("o3", {"order_id": "o3", "customer": "ada", "amount": 5.5, "at": "2026-11-01T10:59:00Z"}),
    ("o4", {"order_id": "o4", "customer": "cy", "amount": -1.0, "at": "2026-11-01T11:00:00Z"}),
    ("o5", "{not json"),
]
CUSTOMERS: list[tuple[str, Any]] = [
    ("ada", {"name": "Ada", "country": "GB"}),
    ("bob", {"name": "Bob", "country": "US"}),
    ("ada", {"name": "Ada L.", "country": "GB"}),
]
PAYMENTS: list[tuple[str, Any]] = [
    ("o1", {"paid_order": "o1", "paid": 120.0, "paid_at": "2026-11-01T12:00:00Z"}),
    ("o2", {"paid_order": "o2", "paid": 30.0, "paid_at": "2026-11-03T12:00:00Z"}),
    ("o3", {"paid_order": "o3", "paid": 5.5, "paid_at": "2026-11-02T09:00:00Z"}),
]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with contextlib.closing(Place(tmp_path)) as place:
        serve(place, *AT_ONCE)
        for topic in (
            "orders",
            "payments",
            "customers",
            "large-orders",
            "orders-enriched",
            "orders-good",
            "orders-dead",
        ):
            place.run(f"muster topics create {topic} --partitions 2")
        produce(place, "orders", ORDERS)
        produce(place, "customers", CUSTOMERS)
        produce(place, "payments", PAYMENTS)
        yield place


def produce(place: Place, topic: str, records: Iterable[tuple[str, Any]]) -> None:
    lines = [f"{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in records]
    place.run(f"printf '%s\\n' {shlex.join(lines)} | muster produce {topic} --key-separator =")


def run(place: Place, *scripts: list[str]) -> str:
    text = RUNNER.replace("SCRIPTS", repr(list(scripts)))
    (place.folder / "runner.py").write_text(f"folder = {str(PIPELINES)!r}\n{text}")
    command = f"{sys.executable} runner.py"
    try:
        return place.run(command)
    except AssertionError as failed:
        # Spark waits only ten seconds for its first worker; on a machine that starts many processes it may be late.
        if "Timed out while waiting for the Python worker to connect back" not in str(failed):
            raise
    return place.run(command)


def read(place: Place, topic: str) -> list[str]:
    reported = place.run(f"muster consume {topic} --from-beginning --timeout-ms 1000 2>/dev/null || true")
    return sorted(reported.splitlines())


def test_pipelines(place: Place, java: str, request: pytest.FixtureRequest) -> None:
    everything = {each.name for each in PIPELINES.glob("*.py")}
    database = None
    if find_postgres():
        database = place.environment["ORDERS_DATABASE"] = request.getfixturevalue("postgres").database()
    else:
        everything.remove("postgres.py")
    shares = [["stream_join.py", "0/2"], ["stream_join.py", "1/2"]]
    begun = [["backfill.py", "2026-01-01T00:00:00Z"], ["shared_group.py", "north"], *shares]
    others = [[name] for name in sorted(everything) if name not in {script[0] for script in begun}]
    run(place, *begun, *others)

    assert [json.loads(value)["order_id"] for value in read(place, "large-orders")] == ["o1"]
    assert revenue(place) == [("ada", "2026-11-01 10:00:00", 2, 125.5), ("bob", "2026-11-01 10:00:00", 1, 30.0)]
    assert paid(place) == {"o1", "o3"}
    enriched = {
        each["order_id"]: each.get("name")
        for each in map(json.loads, read(place, "orders-enriched"))
        if "order_id" in each
    }
    assert enriched == {"o1": "Ada L.", "o2": "Bob", "o3": "Ada L.", "o4": None}
    assert len(read(place, "orders-good")) == 3
    assert "{not json" in read(place, "orders-dead")
    assert len(read(place, "orders-dead")) == 2
    assert table(place, "orders-archive").num_rows == 5
    assert table(place, "audit/team=north").num_rows == 5
    assert "orders-archive" in place.run("muster groups list")
    assert database is None or orders_in(database) == [("o1", 120.0), ("o2", 30.0), ("o3", 5.5), ("o4", -1.0)]

    # More orders, for pipelines whose results must then hold both.
    new = {"order_id": "o6", "customer": "ada", "amount": 200.0, "at": "2026-11-01T10:20:00Z"}
    changed = {"order_id": "o4", "customer": "cy", "amount": 1.0, "at": "2026-11-01T11:00:00Z"}
    nobodys = {"order_id": "o7", "amount": 3.0, "at": "2026-11-01T10:20:00Z"}
    produce(place, "orders", [("o6", new), ("o4", changed), ("o7", nobodys)])
    again = [["topic_to_topic.py"], ["windows.py"], *([["postgres.py"]] if database else [])]
    run(place, begun[0], *again)
    assert [json.loads(value)["order_id"] for value in read(place, "large-orders")] == ["o1", "o6"]
    assert revenue(place)[0] == ("ada", "2026-11-01 10:00:00", 3, 325.5)
    assert table(place, "orders-archive").num_rows == 8
    if database is None:
        missing("PostgreSQL", HOW)  # all others are correct
    assert orders_in(database) == [("o1", 120.0), ("o2", 30.0), ("o3", 5.5), ("o4", 1.0), ("o6", 200.0), ("o7", 3.0)]


def orders_in(address: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(address) as database:
        return database.execute("select order_id, amount from orders order by 1").fetchall()


def revenue(place: Place) -> list[tuple[Any, ...]]:
    with contextlib.closing(sqlite3.connect(place.folder / "revenue.sqlite")) as database:
        return database.execute("select * from revenue where customer in ('ada', 'bob') order by 1").fetchall()


def table(place: Place, folder: str) -> Any:
    return dataset.dataset(place.folder / folder, format="parquet", exclude_invalid_files=True).to_table()


def paid(place: Place) -> set[str]:
    return {
        order
        for part in (place.folder / "paid-orders").iterdir()
        for order in table(place, f"paid-orders/{part.name}").column("order_id").to_pylist()
    }
