"""How long the assignors take, names included, beside Apache Kafka's own in the same run.

    python benchmarks/assignors.py [--sizes 100x1000 1000x10000] [--assignors sticky] [--seconds 3]
    MUSTER_KAFKA_CLASSPATH='/path/to/kafka/libs/*' python benchmarks/assignors.py

The grid is that of Kafka's ClientSideAssignorBenchmark: fresh groups, groups that one member has just left, equal and
mixed subscriptions (every second member wants 90 % of the 100 topics). Medians in milliseconds; only `assign` is
timed. With the class path set (a JDK is needed), Kafka runs each cell right after ours, on a JVM warmed by the same
work, and the ratio is its time to ours: more than 1 means that ours is faster.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import time
from pathlib import Path
from statistics import median

from muster.assignors import BUILTIN, Assignor, MemberAssignment, MemberSubscription

TOPICS = 100
SIZES = ("100x1000", "1000x10000", "2000x100000")
Medians = tuple[float, float]


def wanted(topics: list[str], member: int, mixed: bool) -> list[str]:
    """The topics of one member."""
    return topics[: len(topics) * 9 // 10] if mixed and member % 2 else topics


def timed(
    assignor: Assignor, counts: dict[str, int], members: dict[str, MemberSubscription]
) -> tuple[float, dict[str, MemberAssignment]]:
    """Milliseconds and result of one assignment."""
    start = time.perf_counter()
    assigned = assignor.assign(counts, members)
    return (time.perf_counter() - start) * 1e3, assigned


def measure(name: str, members: int, partitions: int, mixed: bool, seconds: float) -> Medians:
    """Our medians: fresh, and after the first member left."""
    topics = [f"topic-{number:06d}" for number in range(TOPICS)]
    counts = dict.fromkeys(topics, partitions // TOPICS)
    ids = [f"member-{number:06d}" for number in range(members)]
    fresh: list[float] = []
    left: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(fresh) < 3:
        group = {ids[m]: MemberSubscription(wanted(topics, m, mixed)) for m in range(members)}
        took, assigned = timed(BUILTIN[name](), counts, group)
        fresh.append(took)
        group = {}
        for m in range(1, members):
            member = BUILTIN[name]()
            member.on_assignment(assigned[ids[m]], 1)
            owned = assigned[ids[m]].partitions if name == "cooperative-sticky" else []
            topics_of = wanted(topics, m, mixed)
            group[ids[m]] = MemberSubscription(topics_of, owned, 1, user_data=member.subscription_user_data(topics_of))
        left.append(timed(BUILTIN[name](), counts, group)[0])
    return median(fresh), median(left)


def measure_kafka(classpath: str, name: str, members: int, partitions: int, mixed: bool, seconds: float) -> Medians:
    """Kafka's medians for the same cell."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else "java"
    source = Path(__file__).parent / "java" / "AssignorBench.java"
    quiet = f"-Dlog4j2.configurationFile={Path(__file__).parent / 'java' / 'log4j2.xml'}"
    cell = [name, str(members), str(partitions), str(TOPICS), "mixed" if mixed else "equal", str(round(seconds))]
    done = subprocess.run(
        [java, "-Xmx4g", quiet, "-cp", classpath, str(source), *cell], stdout=subprocess.PIPE, text=True, check=True
    )
    fresh, left = done.stdout.split()
    return float(fresh), float(left)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", default=SIZES, metavar="MEMBERSxPARTITIONS")
    parser.add_argument("--assignors", nargs="+", default=list(BUILTIN), choices=list(BUILTIN))
    parser.add_argument("--subscriptions", nargs="+", default=["equal", "mixed"], choices=["equal", "mixed"])
    parser.add_argument("--seconds", type=float, default=3.0, help="for each cell and side")
    options = parser.parse_args()
    classpath = os.environ.get("MUSTER_KAFKA_CLASSPATH")
    print("| assignor | members x partitions | subscriptions | fresh / one left, ms | Kafka, ms | ratio |")
    print("|---|---|---|---|---|---|")
    for size in options.sizes:
        members, partitions = map(int, size.split("x"))
        for name in options.assignors:
            for kind in options.subscriptions:
                cell = (name, members, partitions, kind == "mixed", options.seconds)
                ours = measure(*cell)
                row = f"| {name} | {size} | {kind} | {ours[0]:.2f} / {ours[1]:.2f} |"
                if classpath:
                    theirs = measure_kafka(classpath, *cell)
                    row += (
                        f" {theirs[0]:.2f} / {theirs[1]:.2f} | {theirs[0] / ours[0]:.1f} / {theirs[1] / ours[1]:.1f} |"
                    )
                else:
                    row += " - | - |"
                print(row, flush=True)


if __name__ == "__main__":
    main()
