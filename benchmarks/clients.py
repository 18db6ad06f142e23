"""muster's consumer and producer compared with other Python clients, on one topic of one broker, in turn.

    python -m benchmarks clients [--only consume produce] [--brokers kafka muster] [--sizes 100 1000] [--rounds 3]
                              [--write-docs]

Every run is a separate process that warms up and then works for `--seconds`, the clients in turn. The results are the
medians, and the ratio of other clients' CPU per record to muster's: of aiokafka, the fastest other client for asyncio,
and of confluent-kafka, which is written in C. CPU is that of the client's whole process; unlike the rates it hardly
depends on other work on the machine.
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
from collections.abc import Callable, Iterator, Sequence
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
BYTES_TO_READ = 180_000_000
RUN_TIMEOUT_S = 120
SERVERS: dict[str, type[Server]] = {"kafka": Kafka, "muster": Muster}
CLIENTS = {"consume": list(CONSUMERS), "produce": list(PRODUCERS)}
BROKER_NAMES = {"kafka": "Apache Kafka", "muster": "muster"}

Figures = dict[str, float]


class Case(NamedTuple):
    """Each line of the table is one client in one of these cases."""

    what: str
    broker: str
    size: int


Results = dict[Case, dict[str, list[Figures]]]
Medians = dict[Case, dict[str, Figures]]


class Goal(NamedTuple):
    """The minimum ratio of another client's CPU per record to this client's."""

    what: str
    client: str
    beside: str
    times: float

    def reached(self, medians: dict[str, Figures]) -> float | None:
        """The ratio; None if either was not measured."""
        ours, theirs = medians.get(self.client), medians.get(self.beside)
        return theirs["cpu_us"] / ours["cpu_us"] if ours and theirs else None


GOALS = (
    Goal("consume", "muster", "aiokafka", 1.5),
    Goal("consume", "muster async", "aiokafka", 1.5),
    Goal("consume", "muster to Arrow", "confluent-kafka", 4),
    Goal("produce", "muster", "aiokafka", 1),
    Goal("produce", "muster async", "aiokafka", 1),
)


def main() -> int:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(CLIENTS), default=list(CLIENTS))
    parser.add_argument("--brokers", nargs="+", choices=list(SERVERS), default=list(SERVERS))
    parser.add_argument("--clients", nargs="+", default=None, metavar="CLIENT", help="some of them")
    parser.add_argument("--sizes", nargs="+", type=int, default=[100, 1_000], help="bytes of a record's value")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.8, help="of each run")
    parser.add_argument("--write-docs", action="store_true", help="put the tables into docs/reference/performance.md")
    arguments = parser.parse_args()
    results: Results = {}
    with tempfile.TemporaryDirectory(prefix="muster-bench-") as folder, contextlib.suppress(KeyboardInterrupt):
        for name in arguments.brokers:
            with _running(SERVERS[name], Path(folder) / name) as bootstrap:
                for size in arguments.sizes:
                    _measure(results, name, bootstrap, size, arguments)
    medians = {case: {name: middle(runs) for name, runs in found.items() if runs} for case, found in results.items()}
    tables = [rates(medians), cpu(medians), goals(medians)]
    shown = "\n\n".join(_plain(table) for table in tables)
    print(f"\n{shown}\n\n{report.machine()}; all figures: {_save(results, arguments.seconds)}")
    if arguments.write_docs:
        note = f"Medians of {arguments.rounds} runs of {arguments.seconds:g} s on {report.machine()}."
        report.put_on_page("clients", "\n\n".join([note, *map(_markdown, tables)]))
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
    _fill(bootstrap, read_from, records, size)  # this also warms up the broker
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
        raise BenchmarkError("the broker did not accept the records to read")


def middle(figures: Sequence[Figures]) -> Figures:
    """The medians of several runs."""
    return {name: median(run[name] for run in figures) for name in figures[0]}


Table = list[tuple[str, ...]]


def rates(medians: Medians) -> Table:
    """Records per second."""
    return _figures(medians, "records/s", lambda figures: f"{figures['records_per_s']:,.0f}")


def cpu(medians: Medians) -> Table:
    """CPU for a record."""
    return _figures(medians, "CPU µs for a record", lambda figures: f"{figures['cpu_us']:.2f}")


def _figures(medians: Medians, title: str, shown: Callable[[Figures], str]) -> Table:
    """A line for each case, a column for each client."""
    names = list(dict.fromkeys(name for found in medians.values() for name in found))
    rows: Table = [(title, *names)]
    for case, found in medians.items():
        cells = [shown(found[name]) if name in found else "" for name in names]
        rows.append((f"{_told(case)}, {BROKER_NAMES[case.broker]}", *cells))
    return rows


def goals(medians: Medians) -> Table:
    """A line for each goal, a column for each of its cases."""
    rows: Table = []
    for goal in GOALS:
        cases = [case for case in medians if case.what == goal.what]
        found = [goal.reached(medians[case]) for case in cases]
        if any(found):
            cells = "; ".join(
                f"{times:.2f} ({case.size} B, {BROKER_NAMES[case.broker]})"
                for case, times in zip(cases, found, strict=True)
                if times
            )
            rows.append((f"{goal.what}: {goal.beside} ÷ {goal.client}", f"≥ {goal.times:g}", cells))
    return [("CPU of another ÷ muster's", "goal", "measured"), *rows]


def _told(case: Case) -> str:
    return f"{case.what} {case.size} B"


def _plain(table: Table) -> str:
    widths = [max(len(row[column]) for row in table) for column in range(len(table[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table
    )


def _markdown(table: Table) -> str:
    head, *rows = table
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, ("---",) * len(head), *rows))


def _save(results: Results, seconds: float) -> Path:
    report.RESULTS.mkdir(exist_ok=True)
    path = report.RESULTS / time.strftime("clients-%Y%m%d-%H%M%S.json")
    runs = [{**case._asdict(), "runs": by_client} for case, by_client in results.items()]
    told = {"muster": __version__, "machine": report.machine(), "seconds": seconds, "cases": runs}
    path.write_text(json.dumps(told, indent=1) + "\n")
    return path


if __name__ == "__main__":
    sys.exit(main())
