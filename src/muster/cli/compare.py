"""`muster compare`: the generations of group coordination, side by side under the same workload."""

from __future__ import annotations

import argparse
import asyncio
from importlib.util import find_spec
from pathlib import Path

from muster.cli.demo import first_error, interruptible
from muster.errors import ConfigError

SCHEMES = ("1", "2", "3")
PEER = "1-kafka"
"""The consumer of Kafka 0.8.2.2, which needs Kafka's brokers."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `muster compare`."""
    parser.add_argument("--quick", action="store_true", help="five members only; takes about two minutes")
    parser.add_argument(
        "--sizes", default="2,5,10,20,50", metavar="N,N…", help="group sizes, in members (default 2,5,10,20,50)"
    )
    parser.add_argument(
        "--schemes", default=",".join(SCHEMES), metavar="N,N…", help=f"schemes to run (default {','.join(SCHEMES)})"
    )
    parser.add_argument(
        "--zookeeper",
        metavar="HOST:PORT[/chroot]",
        help="use this existing ZooKeeper, which nothing else may use during the run",
    )
    parser.add_argument(
        "--kafka",
        metavar="HOST:PORT",
        help="use this existing Kafka cluster on that ZooKeeper instead of muster's brokers",
    )
    parser.add_argument(
        "--out", type=Path, default=Path("compare-out"), metavar="DIR", help="folder for results (default compare-out)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Run the comparison; returns 0 if all checks passed."""
    if find_spec("kazoo") is None:
        raise ConfigError("muster compare needs kazoo: pip install 'muster-kafka[zookeeper]'")
    from rich.console import Console

    from muster.compare import job
    from muster.compare.rules.formulas import Scheme
    from muster.compare.servers import UserServers
    from muster.local.folders import workplace

    schemes = [Scheme(name) for name in _listed("--schemes", arguments.schemes, (*SCHEMES, PEER))]
    if PEER in arguments.schemes and arguments.kafka is None:
        raise ConfigError(f"--schemes {PEER} is the consumer of Kafka 0.8.2.2: name its brokers with --kafka")
    sizes = [job.STORY] if arguments.quick else [_size(text) for text in arguments.sizes.split(",")]
    given = UserServers(arguments.zookeeper, arguments.kafka)
    differing = "1" in schemes and given.zookeeper is None
    wanted = job.ComparisonOptions(arguments.out.resolve(), schemes, sizes, given, differing)
    console = Console()
    with workplace(wanted.out, "muster compare"):
        try:
            results = asyncio.run(interruptible(job.run(wanted, lambda text: print(text, flush=True))))
        except BaseExceptionGroup as group:
            raise first_error(group) from None
        if results is None:
            console.print("Interrupted: everything that was started has been stopped.")
            return 130
        return 0 if job.conclude(results, wanted.out, console) else 1


def _listed(option: str, text: str, known: tuple[str, ...]) -> list[str]:
    names = text.split(",")
    for name in names:
        if name not in known:
            raise ConfigError(f"{option} {name}: must be one of {', '.join(known)}")
    return names


def _size(text: str) -> int:
    if not text.isdecimal() or not 2 <= int(text) <= 200:
        raise ConfigError(f"--sizes {text}: a group size must be 2 to 200")
    return int(text)
