"""`decode=json` beside Spark's `from_json`, and what `columns` leaves out, in one session, on one broker, in turn.

    python -m benchmarks json [--records 1000000] [--rounds 3] [--cases flat nested …] [--bootstrap HOST:PORT]

Each case is a topic of documents, and four queries that throw their rows away: the documents as they are ("raw"), their
fields by `decode=json`, by `from_json` over the same source, and by `from_json` over Spark's own connector, as people
have it. Each reads a tenth of the records and all of them, in turn, and what a record costs is the difference. What is
beyond "raw" is the part that decodes. The cases `columns` read topics of 100 bytes with ever fewer columns.

Figures are medians of the rounds, and the least and the most of them. CPU is that of the JVM and all Python workers:
where other work shares the machine it is the figure to trust.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import json
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from pyspark.sql import functions as f

from benchmarks import report, spark_data
from benchmarks.spark_data import PARTITIONS, Topic
from benchmarks.spark_source import CORES, QUIET, SHORT, TUNED, clocked, connector_jars
from muster.spark import session
from tests.support import peers

Query = Callable[[Any, dict[str, str]], Any]
"""Makes a frame of a session and of what every reader is told."""

FLAT = "id BIGINT, carrier STRING, delay INT, distance DOUBLE, cancelled BOOLEAN, at TIMESTAMP"
NESTED = (
    "id BIGINT, flight STRUCT<carrier: STRING, number: INT, from: STRUCT<code: STRING, lat: DOUBLE>>, "
    "legs ARRAY<STRUCT<minutes: INT, late: BOOLEAN>>, tags ARRAY<STRING>"
)
TYPES = (
    "id BIGINT, fare DECIMAL(12,2), weight FLOAT, class TINYINT, token BINARY, day STRUCT<date: DATE, seen: TIMESTAMP>"
)
MAPS = f"{TYPES}, extra MAP<STRING,STRING>"


def flat(at: int) -> dict[str, Any]:
    """A document of plain fields."""
    return {
        "id": at,
        "carrier": ("UA", "B6", "DL", "AA")[at % 4],
        "delay": at % 700 - 40,
        "distance": at % 4_000 + at % 7 / 8,
        "cancelled": at % 50 == 0,
        "at": f"2013-{at % 12 + 1:02}-{at % 28 + 1:02}T{at % 24:02}:{at % 60:02}:00Z",
    }


def nested(at: int) -> dict[str, Any]:
    """A document of structs and arrays."""
    origin = {"code": ("EWR", "JFK", "LGA")[at % 3], "lat": 40 + at % 100 / 128}
    legs = [{"minutes": at % 300 + leg, "late": leg == 1} for leg in range(2)]
    return {
        "id": at,
        "flight": {"carrier": "UA", "number": at % 9_000, "from": origin},
        "legs": legs,
        "tags": ["a", "b"],
    }


def types(at: int) -> dict[str, Any]:
    """A document of what needs more than a look."""
    return {
        "id": at,
        "fare": f"{at % 100_000}.{at % 100:02}",
        "weight": at % 1_000 / 16,
        "class": at % 100,
        "token": base64.b64encode(b"%018d" % at).decode(),
        "day": {"date": f"2013-{at % 12 + 1:02}-{at % 28 + 1:02}", "seen": "2013-02-03T04:05:06Z"},
    }


def maps(at: int) -> dict[str, Any]:
    """The same with a map."""
    return {**types(at), "extra": {"gate": f"C{at % 90}", "tail": f"N{at % 5_000}"}}


DOCUMENTS: dict[str, tuple[str, str, Callable[[int], dict[str, Any]]]] = {
    "flat": ("six plain fields", FLAT, flat),
    "nested": ("structs and arrays", NESTED, nested),
    "types": ("decimal, float, byte, binary, nested date", TYPES, types),
    "maps": ("the same and a map", MAPS, maps),
}
READERS = ("raw", "muster", "from_json", "connector")
COLUMNS = ("key,value,topic,partition,offset,timestamp,timestampType", "key,value", "value", "offset")


def main() -> int:
    """Run the cases and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cases", nargs="*", choices=[*DOCUMENTS, "columns"], default=[*DOCUMENTS, "columns"])
    parser.add_argument("--bootstrap", help="a broker that is running already")
    parser.add_argument("--write-docs", action="store_true", help="put the tables into docs/performance.md")
    arguments = parser.parse_args()
    with contextlib.ExitStack() as held:
        folder = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="muster-bench-")))
        bootstrap = arguments.bootstrap
        if bootstrap is None:
            bootstrap = held.enter_context(peers.KafkaBroker(folder / "kafka", heap="1g")).bootstrap
        spark = session("muster benchmark", f"local[{CORES}]", **QUIET, **{"spark.jars": ",".join(connector_jars())})
        held.callback(spark.stop)
        results = []
        for name in arguments.cases:
            results.append(run(spark, bootstrap, name, arguments.records, arguments.rounds))
            print(json.dumps(results[-1]), flush=True)
    tables = tables_of(results)
    print("\n\n".join(report.plain_table(head, rows, (0,)) for head, rows in tables))
    path = report.save_as("spark-json", {"records": arguments.records, "rounds": arguments.rounds, "cases": results})
    print(f"\n{report.machine()}; all figures: {path}")
    if arguments.write_docs:
        note = f"{arguments.records:,} records, medians of {arguments.rounds} rounds, on {report.machine()}."
        shown = [report.markdown_table(head, rows, (0,)) for head, rows in tables]
        report.put_on_page("spark-json", "\n\n".join([note, *shown]))
    return 0


def run(spark: Any, bootstrap: str, name: str, records: int, rounds: int) -> dict[str, Any]:
    """One case: its topic, and its queries in turn."""
    if name == "columns":
        topic = spark_data.fill(bootstrap, 100, "none", records)
        queries: Mapping[str, Query] = {columns: _columns(columns) for columns in COLUMNS}
        label = "100 B"
    else:
        label, schema, document = DOCUMENTS[name]
        topic = spark_data.fill_with(bootstrap, lambda at: json.dumps(document(at)).encode(), "none", records)
        queries = {reader: _reader(reader, schema) for reader in READERS}
    figures = measure(spark, bootstrap, topic, queries, rounds)
    spark_data.drop(bootstrap, topic)
    return {"case": name, "label": label, "records": topic.records, "figures": figures}


def _columns(columns: str) -> Query:
    return lambda spark, given: (
        spark.read.format("muster").options(**given, columns=columns, maxPartitions=CORES).load()
    )


def _reader(reader: str, schema: str) -> Query:
    def make(spark: Any, given: dict[str, str]) -> Any:
        if reader == "muster":
            given = {**given, "decode": "json", "decode.schema": schema, "timeZone": "UTC"}
            return spark.read.format("muster").options(**given, maxPartitions=CORES).load()
        if reader == "connector":
            frame = spark.read.format("kafka").options(**given, **TUNED).load()
        else:
            frame = spark.read.format("muster").options(**given, columns="value", maxPartitions=CORES).load()
        if reader == "raw":
            return frame
        return frame.select(f.from_json(f.col("value").cast("string"), schema).alias("j")).select("j.*")

    return make


class Figure(NamedTuple):
    """What a record costs, in microseconds: of each round."""

    us: list[float]
    cpu_us: list[float]


def measure(
    spark: Any, bootstrap: str, topic: Topic, queries: Mapping[str, Query], rounds: int
) -> dict[str, dict[str, list[float]]]:
    """All queries in turn: a tenth of the records and all; the first turn is not counted."""
    found = {name: Figure([], []) for name in queries}
    few = topic.of_each // SHORT
    more = (topic.of_each - few) * PARTITIONS
    for turn in range(rounds + 1):
        for name, query in queries.items():
            spent = []
            for of_each in (few, topic.of_each):
                starts = {topic.name: {str(index): topic.of_each - of_each for index in range(PARTITIONS)}}
                given = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic.name}
                given["startingOffsets"] = json.dumps(starts)
                with clocked() as taken:
                    query(spark, given).write.format("noop").mode("overwrite").save()
                spent.append(taken)
            if turn:
                for figures, less, whole in zip(found[name], *spent, strict=True):
                    figures.append((whole - less) / more * 1e6)
    return {name: figure._asdict() for name, figure in found.items()}


DECODING_HEAD = (
    "documents",
    "decode=json",
    "from_json",
    "the connector and from_json",
    "CPU of a record",
    "from_json's",
    "the connector's",
    "the part that decodes",
    "from_json's",
    "cheaper by",
)
COLUMNS_HEAD = ("columns", "rows a second", "CPU of a row")


def tables_of(results: list[dict[str, Any]]) -> list[tuple[tuple[str, ...], list[tuple[str, ...]]]]:
    """The heads and the rows of the tables."""
    decoded = [decoding_cells(found) for found in results if found["case"] != "columns"]
    narrowed = [cells for found in results if found["case"] == "columns" for cells in columns_cells(found)]
    tables = [(DECODING_HEAD, decoded), (COLUMNS_HEAD, narrowed)]
    return [(head, rows) for head, rows in tables if rows]


def decoding_cells(found: dict[str, Any]) -> tuple[str, ...]:
    """A row: rates, CPU of a record, and that of the part that decodes, with its ratio of each round."""
    figures = found["figures"]
    alone = {
        reader: [all_of - raw for all_of, raw in zip(figures[reader]["cpu_us"], figures["raw"]["cpu_us"], strict=True)]
        for reader in ("muster", "from_json")
    }
    return (
        found["label"],
        *(_rate(figures[reader]) for reader in READERS[1:]),
        *(_us(figures[reader]["cpu_us"]) for reader in READERS[1:]),
        *(_us(alone[reader]) for reader in ("muster", "from_json")),
        report.spread([theirs / mine for mine, theirs in zip(alone["muster"], alone["from_json"], strict=True)]),
    )


def columns_cells(found: dict[str, Any]) -> list[tuple[str, ...]]:
    """A row for each choice of columns."""
    return [(name, _rate(figures), _us(figures["cpu_us"])) for name, figures in found["figures"].items()]


def _rate(figures: dict[str, list[float]]) -> str:
    return f"{1 / median(figures['us']):.2f} M/s"


def _us(figures: list[float]) -> str:
    return f"{median(figures):.2f} µs"


if __name__ == "__main__":
    raise SystemExit(main())
