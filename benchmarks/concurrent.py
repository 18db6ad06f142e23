"""Concurrent consumers compared with one record at a time and with Confluent's parallel consumer, on one Apache Kafka.

    python -m benchmarks concurrent [--concurrency 100] [--handlers 1 10 100] [--rounds 3] [--ways WAY …] [--write-docs]

Every handler sleeps for 1, 10 or 100 ms. All ways keep each of the 10,000 keys in order, commit once a second, and read
the same topic of 4 partitions from its beginning, each in its own group, in turn. The measured time is from a tenth of
the records to the last.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import uuid
from dataclasses import asdict
from pathlib import Path
from statistics import median

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks import report
from benchmarks.concurrent_runs import WAYS, Run
from benchmarks.servers import Kafka
from benchmarks.wire import BenchmarkError
from tests.support import peers

PARTITIONS, KEYS, BYTES = 4, 10_000, 100
TOPIC = "handled"
PARALLEL, PARALLEL_VERSION = "Confluent's parallel consumer", "0.5.3.3"
MOST = 60_000
"""Records in the topic."""
JAVA = Path(__file__).resolve().parent / "java" / "ParallelBench.java"
RUN_TIMEOUT_S = 300
SECONDS = 6.0
"""The shortest time that a run could take."""

Figures = dict[str, float]


def main() -> int:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--concurrency", type=int, default=100)
    parser.add_argument("--handlers", nargs="+", type=int, default=[1, 10, 100], help="milliseconds")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ways", nargs="+", default=[*WAYS, PARALLEL], choices=[*WAYS, PARALLEL])
    parser.add_argument("--write-docs", action="store_true", help="put the table into docs/reference/performance.md")
    arguments = parser.parse_args()
    found: dict[int, dict[str, list[Figures]]] = {}
    before = os.getloadavg()
    with tempfile.TemporaryDirectory(prefix="muster-bench-") as folder:
        server = Kafka(Path(folder) / "kafka")
        server.prepare()
        server.start()
        try:
            bootstrap = "{}:{}".format(*server.address)
            _fill(bootstrap)
            for milliseconds in arguments.handlers:
                found[milliseconds] = {way: [] for way in arguments.ways}
                for _ in range(arguments.rounds):
                    for way in arguments.ways:
                        run = _run_of(way, bootstrap, arguments.concurrency, milliseconds)
                        figures = _parallel(run) if way == PARALLEL else _ours(run)
                        figures["rate"] = (run.records - run.warm_up) / figures["seconds"]
                        figures["cpu_us"] = figures["cpu_s"] / (run.records - run.warm_up) * 1e6
                        found[milliseconds][way].append(figures)
                        told = "{rate:,.0f} records/s, {cpu_us:.0f} µs of CPU each".format(**figures)
                        print(f"{milliseconds} ms, {way}: {told}", flush=True)
        finally:
            server.stop()
    table = _table(found)
    load = f"Load averages before and after, on 2 processors: {before[0]:.1f} and {os.getloadavg()[0]:.1f}."
    note = f"{arguments.concurrency} at a time; medians of {arguments.rounds} runs on {report.machine()}. {load}"
    print(f"\n{table}\n\n{note}")
    if arguments.write_docs:
        report.put_on_page("concurrent", f"{note}\n\n{table}")
    return 0


def _run_of(way: str, bootstrap: str, concurrency: int, milliseconds: int) -> Run:
    """The number of records that can be handled in the intended time of a run."""
    at_once = 1 if way == "one at a time" else concurrency
    records = int(min(MOST, max(50, SECONDS * 1000 / milliseconds * at_once)))
    return Run(way, bootstrap, f"g-{uuid.uuid4().hex[:8]}", TOPIC, concurrency, milliseconds, records // 10, records)


def _ours(run: Run) -> Figures:
    return _done([sys.executable, "-m", "benchmarks.concurrent_runs", json.dumps(asdict(run))], run)


def _parallel(run: Run) -> Figures:
    jars = peers.fetched_jars("parallel", PARALLEL_VERSION)
    java = peers.require("Java 17 or newer", peers.find_java(), "Debian: apt-get install openjdk-17-jre-headless")
    numbers = map(str, (run.concurrency, run.sleep_ms, run.warm_up, run.records))
    return _done([java, "-Xmx1g", "-cp", f"{jars}/*", str(JAVA), run.bootstrap, run.group, run.topic, *numbers], run)


def _done(command: list[str], run: Run) -> Figures:
    done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_TIMEOUT_S, check=False)
    if done.returncode or not done.stdout.strip():
        raise BenchmarkError(f"{run.way} did not end well:\n{done.stderr[-2000:]}")
    figures: Figures = json.loads(done.stdout.splitlines()[-1])
    return figures


def _fill(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    [made] = admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)]).values()
    made.result(60)
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20, "queue.buffering.max.messages": MOST * 2})
    for number in range(MOST):
        producer.produce(TOPIC, bytes(BYTES), b"%d" % (number % KEYS))
    if producer.flush(60):
        raise BenchmarkError("the broker did not accept the records to handle")


def _table(found: dict[int, dict[str, list[Figures]]]) -> str:
    """A line for each handler: records per second, the ratio to one at a time, CPU; and muster's ratio to the parallel
    consumer."""
    ways = list(dict.fromkeys(way for runs in found.values() for way in runs))
    head = ["handler", *(f"{way}, records/s" for way in ways), "muster ÷ parallel consumer", "µs of CPU for a record"]
    rows = [head, ["---"] * len(head)]
    for milliseconds, runs in found.items():
        rates = {way: median(each["rate"] for each in runs[way]) for way in ways}
        cpus = {way: median(each["cpu_us"] for each in runs[way]) for way in ways}
        ratio = ""
        if PARALLEL in rates:
            ours = [(way, rates[way] / rates[PARALLEL]) for way in ("muster threads", "muster async") if way in rates]
            ratio = ", ".join(f"{way.removeprefix('muster ')} {times:.2f}" for way, times in ours)
        cpu = ", ".join(f"{way.removeprefix('muster ')} {value:.0f}" for way, value in cpus.items())
        rows.append([f"{milliseconds} ms", *(f"{rates[way]:,.0f}" for way in ways), ratio, cpu])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


if __name__ == "__main__":
    sys.exit(main())
