"""muster's consumer and producer beside the other clients for Python, on one topic of one broker, in turn.

    python -m benchmarks clients [--only consume produce] [--brokers kafka muster] [--sizes 100 1000] [--rounds 2]

Every run is a process of its own that works for `--seconds`; what counts are the medians, and the ratios to aiokafka,
the fastest of the others that is written for asyncio, and to confluent-kafka, whose work is done in C.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import NamedTuple

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks import report
from benchmarks.client_runs import CONSUMERS, PRODUCERS, Run
from benchmarks.servers import Kafka, Muster, Server
from benchmarks.wire import BenchmarkError
from muster import __version__

PARTITIONS = 4
BYTES_TO_READ = 90_000_000
RUN_TIMEOUT_S = 120
SERVERS: dict[str, type[Server]] = {"kafka": Kafka, "muster": Muster}
CLIENTS = {"consume": list(CONSUMERS), "produce": list(PRODUCERS)}
BESIDE = ("aiokafka", "confluent-kafka")

Figures = dict[str, float]


class Case(NamedTuple):
    """One line of the table is one client in one of these."""

    what: str
    broker: str
    size: int


Results = dict[Case, dict[str, list[Figures]]]


def main() -> int:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(CLIENTS), default=list(CLIENTS))
    parser.add_argument("--brokers", nargs="+", choices=list(SERVERS), default=list(SERVERS))
    parser.add_argument("--clients", nargs="+", default=None, metavar="CLIENT", help="some of them")
    parser.add_argument("--sizes", nargs="+", type=int, default=[100, 1_000], help="bytes of a record's value")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=0.8, help="of each run")
    arguments = parser.parse_args()
    results: Results = {}
    with tempfile.TemporaryDirectory(prefix="muster-bench-") as folder, contextlib.suppress(KeyboardInterrupt):
        for name in arguments.brokers:
            with _running(SERVERS[name], Path(folder) / name) as bootstrap:
                for size in arguments.sizes:
                    _measure(results, name, bootstrap, size, arguments)
    print(f"\n{table(results)}\n\n{report.machine()}; all figures: {_save(results, arguments.seconds)}")
    return 0


@contextlib.contextmanager
def _running(kind: type[Server], folder: Path) -> Iterator[str]:
    server = kind(folder)
    server.prepare()
    server.start()
    try:
        yield "{}:{}".format(*server.address)
    finally:
        server.stop()


def _measure(results: Results, broker: str, bootstrap: str, size: int, arguments: argparse.Namespace) -> None:
    read_from, write_to = f"read-{size}", f"write-{size}"
    records = BYTES_TO_READ // (size + 20)
    _create(bootstrap, (read_from, write_to))
    _fill(bootstrap, read_from, records, size)  # which warms the broker up, too
    for what in arguments.only:
        clients = [name for name in CLIENTS[what] if arguments.clients is None or name in arguments.clients]
        found = results.setdefault(Case(what, broker, size), {name: [] for name in clients})
        topic = read_from if what == "consume" else write_to
        for _, name in itertools.product(range(arguments.rounds), clients):
            run = Run(what, name, bootstrap, topic, PARTITIONS, records, size, arguments.seconds)
            figures = _run(run)
            found[name].append(figures)
            told = "{records_per_s:,.0f} records/s, {cpu_us:.2f} µs of CPU each".format(**figures)
            print(f"{what} {size} B from {broker}: {name:16} {told}", flush=True)


def _run(run: Run) -> Figures:
    command = [sys.executable, "-m", "benchmarks.client_runs", json.dumps(asdict(run))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_TIMEOUT_S, check=False)
    if done.returncode:
        raise BenchmarkError(f"{run.client} could not {run.what}:\n{done.stderr[-2000:]}")
    figures: Figures = json.loads(done.stdout)
    return figures


def _create(bootstrap: str, topics: Sequence[str]) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for outcome in admin.create_topics([NewTopic(topic, PARTITIONS, 1) for topic in topics]).values():
        outcome.result(60)


def _fill(bootstrap: str, topic: str, records: int, size: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20, "batch.size": 16 << 10})
    value = bytes(size)
    for number in range(records):
        while True:
            try:
                producer.produce(topic, value, b"%08d" % number, number % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.05)
    if producer.flush(60):
        raise BenchmarkError("the broker did not take the records that are to be read")


def middle(figures: Sequence[Figures]) -> Figures:
    """The medians of several runs."""
    return {name: median(run[name] for run in figures) for name in figures[0]}


HEAD = (
    "",
    "broker",
    "record",
    "client",
    "records/s",
    "CPU µs each",
    *(f"× {other}" for other in BESIDE),
    "CPU × aiokafka",
)


def table(results: Results) -> str:
    """One line for each client, with how many times as fast it is as two others."""
    rows: list[tuple[str, ...]] = [HEAD]
    for case, by_client in results.items():
        medians = {client: middle(runs) for client, runs in by_client.items() if runs}
        for client, figures in medians.items():
            rate = figures["records_per_s"]
            ratios = [f"{rate / medians[o]['records_per_s']:.2f}" if o in medians else "-" for o in BESIDE]
            beside = medians.get("aiokafka")
            ratios.append(f"{figures['cpu_us'] / beside['cpu_us']:.2f}" if beside else "-")
            rows.append(
                (case.what, case.broker, f"{case.size} B", client, f"{rate:,.0f}", f"{figures['cpu_us']:.2f}", *ratios)
            )
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEAD))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column < 4 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )


def _save(results: Results, seconds: float) -> Path:
    report.RESULTS.mkdir(exist_ok=True)
    path = report.RESULTS / time.strftime("clients-%Y%m%d-%H%M%S.json")
    runs = [{**case._asdict(), "runs": by_client} for case, by_client in results.items()]
    told = {"muster": __version__, "machine": report.machine(), "seconds": seconds, "cases": runs}
    path.write_text(json.dumps(told, indent=1) + "\n")
    return path


if __name__ == "__main__":
    sys.exit(main())
