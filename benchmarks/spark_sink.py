"""Writing to Kafka from Spark: the sink compared with Spark's own connector, in turn.

    python -m benchmarks sink [--records 1000000] [--rounds 3] [--cases plain big …] [--bootstrap HOST:PORT]

Each writes the same generated rows to topics of eight partitions of a real broker, from one session. The cost of a row
is computed from the difference between writing all rows and a tenth. It includes making the rows in Spark, whose cost
is also measured separately ("making"). Except in the case "plain", the connector has the sink's default batch size and
linger time (`batch.size`, `linger.ms`).

Figures are medians of the rounds, ratios with their minimum and maximum; the first turn does not count. CPU is that of
the JVM and all Python workers, without the broker's; on a shared machine it is the reliable figure.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import tempfile
import uuid
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks import report
from benchmarks.spark_source import CORES, QUIET, clocked, connector_jars
from muster.spark import session
from tests.support import peers

PARTITIONS = 8
SHORT = 10
TUNED = {"kafka.batch.size": str(128 * 1024), "kafka.linger.ms": "20"}
NONE: dict[str, str] = {}
KEY = "format_string('k%010d', id) as key"
TEXT = "rpad(cast(id as string), {size}, sha2(cast(id as string), 256)) as value"
HEADERS = "array(named_struct('key', 'trace', 'value', cast(cast(id as string) as binary))) as headers"


class Case(NamedTuple):
    """What is written: columns, options of both, options of the connector, the share of the records."""

    label: str
    columns: tuple[str, ...] = (KEY, TEXT.format(size=100))
    both: dict[str, str] = NONE
    tuned: dict[str, str] = TUNED
    share: float = 1.0


CASES = {
    "plain": Case("100 B, by key, the connector not tuned", tuned={}),
    "tuned": Case("100 B, by key"),
    "keyless": Case("100 B, without a key", (TEXT.format(size=100),)),
    "big": Case("10 KB, by key", (KEY, TEXT.format(size=10_000)), share=0.25),
    "headers": Case("100 B, by key, one header", (KEY, TEXT.format(size=100), HEADERS)),
    "topics": Case("100 B, by key, three topics in a column", (KEY, TEXT.format(size=100), "{topics} as topic")),
    "lz4": Case("100 B, by key, lz4", both={"kafka.compression.type": "lz4"}),
    "zstd": Case("100 B, by key, zstd", both={"kafka.compression.type": "zstd"}),
}
MAKING = "noop"
FORMATS = (MAKING, "muster", "kafka")
HEAD = (
    "",
    "sink",
    "connector",
    "faster by",
    "CPU of a row",
    "the connector's",
    "making the row",
    "cheaper by, without making it",
)


def main() -> int:
    """Run the cases and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cases", nargs="*", choices=CASES, default=list(CASES))
    parser.add_argument("--bootstrap", help="a broker that is already running")
    parser.add_argument("--write-docs", action="store_true", help="put the table into docs/reference/performance.md")
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
            results.append(measure(spark, bootstrap, name, arguments.records, arguments.rounds))
            print(json.dumps(results[-1]), flush=True)
    rows = [cells(found) for found in results]
    print(report.plain_table(HEAD, rows, (0,)))
    path = report.save_as("spark-sink", {"records": arguments.records, "rounds": arguments.rounds, "cases": results})
    print(f"\n{report.machine()}; all figures: {path}")
    if arguments.write_docs:
        note = f"{arguments.records:,} rows (a quarter as many of 10 KB), medians of {arguments.rounds} rounds, on "
        table = report.markdown_table(HEAD, rows, (0,))
        report.put_on_page("spark-sink", f"{note}{report.machine()}.\n\n{table}")
    return 0


def measure(spark: Any, bootstrap: str, name: str, records: int, rounds: int) -> dict[str, Any]:
    """One case: every kind in turn, with a tenth of the rows, then with all; the first turn does not count."""
    case = CASES[name]
    whole = int(records * case.share)
    found: dict[str, dict[str, list[float]]] = {kind: {"us": [], "cpu_us": []} for kind in FORMATS}
    for turn in range(rounds + 1):
        for kind in FORMATS:
            spent = [write(spark, bootstrap, case, kind, count) for count in (whole // SHORT, whole)]
            if turn:
                for figures, few, all_of in zip(found[kind].values(), *spent, strict=True):
                    figures.append((all_of - few) / (whole - whole // SHORT) * 1e6)
    return {"case": name, "label": case.label, "records": whole, "figures": found}


def write(spark: Any, bootstrap: str, case: Case, kind: str, count: int) -> list[float]:
    """Write this many rows; wall and CPU seconds."""
    topics = [new_topic(bootstrap) for _ in range(3)]
    named = ", ".join(f"'{topic}'" for topic in topics)
    columns = [
        column.replace("{topics}", f"element_at(array({named}), cast(id % 3 + 1 as int))") for column in case.columns
    ]
    writer = spark.range(0, count, 1, CORES).selectExpr(*columns).write.format(kind)
    if kind == MAKING:
        writer = writer.mode("overwrite")
    else:
        given = {"kafka.bootstrap.servers": bootstrap, **case.both, **(case.tuned if kind == "kafka" else {})}
        if not any(column.endswith(" as topic") for column in columns):
            given["topic"] = topics[0]
        writer = writer.options(**given).mode("append")
    with clocked() as spent:
        writer.save()
    for topic in topics:
        drop_topic(bootstrap, topic)
    return spent


def new_topic(bootstrap: str) -> str:
    """A topic of its own for each write."""
    name = f"bench-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.create_topics([NewTopic(name, PARTITIONS, 1)]).values():
        future.result(30)
    return name


def drop_topic(bootstrap: str, name: str) -> None:
    """Delete it: all writes together would fill a disk."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.delete_topics([name]).values():
        future.result(30)


def cells(found: dict[str, Any]) -> tuple[str, ...]:
    """A row of the table. The last column compares the cost without making the rows."""
    making, mine, theirs = (found["figures"][kind] for kind in FORMATS)
    rates = [f"{1_000 / median(figures['us']):.0f} k/s" for figures in (mine, theirs)]
    costs = [f"{median(figures['cpu_us']):.2f} µs" for figures in (mine, theirs, making)]
    base = median(making["cpu_us"])
    cheaper = [(dear - base) / (cheap - base) for cheap, dear in zip(mine["cpu_us"], theirs["cpu_us"], strict=True)]
    faster = [dear / cheap for cheap, dear in zip(mine["us"], theirs["us"], strict=True)]
    return (found["label"], *rates, report.spread(faster), *costs, report.spread(cheaper))


if __name__ == "__main__":
    raise SystemExit(main())
