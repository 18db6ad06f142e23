"""Writing to Kafka from Spark: the sink and Spark's own connector, in one run, in turn.

    python -m benchmarks.spark_sink --records 2000000

Each writes the same generated rows (key of 11 bytes, value of 100) to a topic of eight partitions of a real broker,
from one session. What a record costs is the difference between a write of all and of a tenth. "plain" is as people
first write it, "tuned" gives the connector the batches that ours has by itself (`batch.size`, `linger.ms`).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import tempfile
import uuid
from pathlib import Path
from statistics import median
from typing import Any

from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks import report
from benchmarks.spark_source import CORES, QUIET, clocked, connector_jars
from muster.spark import session
from tests.support import peers

PARTITIONS = 8
SHORT = 10
TUNED = {"kafka.batch.size": str(128 * 1024), "kafka.linger.ms": "20"}
CASES: dict[str, tuple[str, dict[str, str], dict[str, str]]] = {
    "plain": ("100 B, by key", {}, {}),
    "tuned": ("100 B, by key, the connector tuned", {}, TUNED),
    "lz4": ("100 B, by key, lz4, the connector tuned", {"kafka.compression.type": "lz4"}, TUNED),
}
FORMATS = ("muster", "kafka")
HEAD = ("", "muster", "connector", "faster by", "CPU of a record", "the connector's")


def main() -> int:
    """Run the cases and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cases", nargs="*", choices=CASES, default=list(CASES))
    arguments = parser.parse_args()
    with contextlib.ExitStack() as held:
        folder = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="muster-bench-")))
        bootstrap = held.enter_context(peers.KafkaBroker(folder / "kafka", heap="1g")).bootstrap
        spark = session("muster benchmark", f"local[{CORES}]", **QUIET, **{"spark.jars": ",".join(connector_jars())})
        held.callback(spark.stop)
        results = []
        for name in arguments.cases:
            results.append(measure(spark, bootstrap, name, arguments.records, arguments.rounds))
            print(json.dumps(results[-1]), flush=True)
    print(report.plain_table(HEAD, [cells(found) for found in results], (0,)))
    path = report.save_as("spark-sink", {"records": arguments.records, "rounds": arguments.rounds, "cases": results})
    print(f"\n{report.machine()}; all figures: {path}")
    return 0


def measure(spark: Any, bootstrap: str, name: str, records: int, rounds: int) -> dict[str, Any]:
    """One case: both in turn, a tenth of the rows and all; the first short write is not counted."""
    label, both, tuned = CASES[name]
    taken: dict[tuple[str, int], list[tuple[float, float]]] = {}
    sizes = (records // SHORT, records)
    for size, counts in [(sizes[0], False), *[(size, True) for _ in range(rounds) for size in sizes]]:
        for kind in FORMATS:
            topic = new_topic(bootstrap)
            options = {
                "kafka.bootstrap.servers": bootstrap,
                "topic": topic,
                **both,
                **(tuned if kind == "kafka" else {}),
            }
            rows = spark.range(0, size, 1, CORES).selectExpr(
                "format_string('k%010d', id) as key",
                "rpad(cast(id as string), 100, sha2(cast(id as string), 256)) as value",
            )
            with clocked() as spent:
                rows.write.format(kind).options(**options).mode("append").save()
            drop_topic(bootstrap, topic)
            if counts:
                taken.setdefault((kind, size), []).append((spent[0], spent[1]))
    found: dict[str, Any] = {"case": name, "label": label, "records": records}
    for kind in FORMATS:
        few, all_of = ([median(part) for part in zip(*taken[kind, size], strict=True)] for size in sizes)
        each = [(whole - part) / (sizes[1] - sizes[0]) for part, whole in zip(few, all_of, strict=True)]
        found[kind] = {"us": each[0] * 1e6, "cpu_us": each[1] * 1e6, "wall_s": all_of[0], "cpu_s": all_of[1]}
    found["ratio"] = round(found["kafka"]["us"] / found["muster"]["us"], 2)
    return found


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
    """A row of the table."""
    rates = [f"{1 / found[kind]['us']:.2f} M/s" for kind in FORMATS]
    return (found["label"], *rates, f"{found['ratio']:.2f}×", *(f"{found[kind]['cpu_us']:.2f} µs" for kind in FORMATS))


if __name__ == "__main__":
    raise SystemExit(main())
