"""How long the assignors take, compared with Apache Kafka's own in the same run, in turn.

    python -m benchmarks assignors [--sizes 100x1000 1000x10000] [--assignors sticky] [--seconds 3] [--without-kafka]

The grid is that of Kafka's ClientSideAssignorBenchmark: fresh groups, groups that one member has just left, equal and
mixed subscriptions (every second member wants 90 % of the 100 topics). Medians in milliseconds, fresh / one left:

inside   only for the sticky ones: settling the members' claims and assigning, on integers
leader   all of `assign`: what a leader needs in order to send each member its topics and numbers
named    `assign`, and all partitions of all members as TopicPartition
Kafka    the same assignor of Kafka's client, which returns TopicPartition
uniform  the broker's assignor of KIP-848, whose input and result are sets of numbers by topic

Kafka's run on a JVM that has been warmed up with the same work for twice the measured time; they need a JDK and Maven,
or the jars that the tests have fetched. The number in brackets after a figure is its ratio to muster's: to `named` for
Kafka's, to `leader` for uniform.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import pytest

from muster.assignors import BUILTIN, MemberAssignment, MemberSubscription
from muster.assignors.layout import Layout
from muster.assignors.sticky import StickyAssignor, share
from tests.support import peers

TOPICS = 100
SIZES = ("100x1000", "1000x10000", "2000x100000")
TURNS = 3
JAVA = Path(__file__).parent / "java"
Assigned = dict[str, MemberAssignment]
Times = dict[str, list[float]]
"""Milliseconds by what was measured, such as "inside fresh"."""


class Cell:
    """One group of the grid."""

    def __init__(self, size: str, kind: str) -> None:
        self.members, self.partitions = map(int, size.split("x"))
        self.kind = kind
        self.topics = [f"topic-{number:06d}" for number in range(TOPICS)]
        self.counts = dict.fromkeys(self.topics, self.partitions // TOPICS)
        self.ids = [f"member-{number:06d}" for number in range(self.members)]

    def wanted(self, member: int) -> list[str]:
        """The topics of one member."""
        return self.topics[: TOPICS * 9 // 10] if self.kind == "mixed" and member % 2 else self.topics

    def measure(self, name: str, seconds: float, times: Times) -> None:
        """Run muster's assignor for some time, at least once."""
        end = time.perf_counter() + seconds
        while True:
            group = {self.ids[m]: MemberSubscription(self.wanted(m)) for m in range(self.members)}
            group = self._after(name, self._round(name, "fresh", group, times))
            self._round(name, "left", group, times)
            if time.perf_counter() > end:
                return

    def _round(self, name: str, which: str, group: dict[str, MemberSubscription], times: Times) -> Assigned:
        assignor = BUILTIN[name]()
        if isinstance(assignor, StickyAssignor):
            order = sorted(group)
            layout = Layout(self.counts, [group[member].topics for member in order])
            claims = assignor.claims(layout, [group[member] for member in order])
            start = time.perf_counter()
            share(layout, layout.settle(claims), claims)
            times[f"inside {which}"].append((time.perf_counter() - start) * 1e3)
            del layout, claims
        start = time.perf_counter()
        assigned = assignor.assign(self.counts, group)
        times[f"leader {which}"].append((time.perf_counter() - start) * 1e3)
        for given in assigned.values():
            _ = given.partitions
        times[f"named {which}"].append((time.perf_counter() - start) * 1e3)
        return assigned

    def _after(self, name: str, assigned: Assigned) -> dict[str, MemberSubscription]:
        """The subscriptions of all but the first member."""
        group = {}
        for number in range(1, self.members):
            member, given, topics = BUILTIN[name](), assigned[self.ids[number]], self.wanted(number)
            member.on_assignment(given, 1)
            owned = given.partitions if name == "cooperative-sticky" else []
            user_data = member.subscription_user_data(topics)
            group[self.ids[number]] = MemberSubscription(topics, owned, 1, user_data=user_data)
        return group


class Kafka:
    """A JVM that runs Kafka's assignors on one cell."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    @classmethod
    @contextmanager
    def on(cls, cell: Cell) -> Iterator[Kafka]:
        """Start it, and end it when the block ends."""
        java = peers.require("Java 17 or newer", peers.find_java())
        quiet = f"-Dlog4j2.configurationFile={JAVA / 'log4j2.xml'}"
        words = [str(cell.members), str(cell.partitions), str(TOPICS), cell.kind]
        command = [java, "-Xmx3g", quiet, "-cp", peers.kafka_classpath(), str(JAVA / "AssignorBench.java"), *words]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            yield cls(process)
            process.communicate()

    def measure(self, name: str, seconds: float, times: Times) -> None:
        """Run one of Kafka's assignors for some time, at least once."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(name, seconds, file=self._process.stdin, flush=True)
        side = "uniform" if name == "uniform" else "Kafka"
        for which in ("fresh", "left"):
            times[f"{side} {which}"] += map(float, self._process.stdout.readline().split())


def shown(times: Times, what: str, beside: str = "") -> str:
    """Medians of fresh and left, and their ratio to muster's."""
    if not times[f"{what} fresh"]:
        return "-"
    found = [median(times[f"{what} {which}"]) for which in ("fresh", "left")]
    text = " / ".join(f"{each:.2f}" for each in found)
    if beside:
        ours = [median(times[f"{beside} {which}"]) for which in ("fresh", "left")]
        text += f" ({found[0] / ours[0]:.1f} / {found[1] / ours[1]:.1f})"
    return text


def run(cell: Cell, name: str, kafka: Kafka | None, seconds: float) -> Times:
    """All columns of one cell, in turn."""
    times: Times = defaultdict(list)
    if kafka is not None:
        for side in (name, "uniform"):
            kafka.measure(side, 2 * seconds, defaultdict(list))
    for _ in range(TURNS):
        cell.measure(name, seconds / TURNS, times)
        if kafka is not None:
            for side in (name, "uniform"):
                kafka.measure(side, seconds / TURNS, times)
    return times


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", default=SIZES, metavar="MEMBERSxPARTITIONS")
    parser.add_argument("--assignors", nargs="+", default=list(BUILTIN), choices=list(BUILTIN))
    parser.add_argument("--subscriptions", nargs="+", default=["equal", "mixed"], choices=["equal", "mixed"])
    parser.add_argument("--seconds", type=float, default=3.0, help="for each cell and side")
    parser.add_argument("--without-kafka", action="store_true")
    options = parser.parse_args()
    print("| assignor | members x partitions | subscriptions | inside | leader | named | Kafka | uniform |")
    print("|---|---|---|---|---|---|---|---|")
    for size in options.sizes:
        for name in options.assignors:
            for kind in options.subscriptions:
                cell = Cell(size, kind)
                if options.without_kafka:
                    times = run(cell, name, None, options.seconds)
                else:
                    try:
                        with Kafka.on(cell) as kafka:
                            times = run(cell, name, kafka, options.seconds)
                    except (pytest.skip.Exception, pytest.fail.Exception) as error:
                        print(f"benchmarks: {error}; --without-kafka measures only muster's", file=sys.stderr)
                        return 2
                columns = [shown(times, what) for what in ("inside", "leader", "named")]
                columns += [shown(times, "Kafka", "named"), shown(times, "uniform", "leader")]
                print(f"| {name} | {size} | {kind} | {' | '.join(columns)} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
