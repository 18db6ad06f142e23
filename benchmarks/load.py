"""muster and Apache Kafka under the same load, in turn.

Each mode runs on muster, then on Kafka, then on muster again, and so on, so that other work on the machine disturbs
both alike; the results are the medians and their ratio. Kafka is warmed up before each mode, because a JVM is slow in
its first seconds.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import resource
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from benchmarks import report
from benchmarks.modes import MODES, Figures, Options, middle
from benchmarks.servers import Compiled, Kafka, Muster, Server
from benchmarks.wire import BenchmarkError

WARM_UP_S = {"muster": 0.3, "compiled": 0.3, "kafka": 4.0}
FIRST_WARM_UP_S = 8.0
REBALANCE_ROUNDS = 5
"""Rebalances are short: more of them cost little."""

Runs = dict[str, dict[str, list[Figures]]]


def main(arguments: Sequence[str]) -> int:
    """The load benchmark; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__.split("\n\n")[0] if __doc__ else ""
    )
    parser.add_argument("--only", nargs="+", choices=list(MODES), metavar="MODE", help=f"some of {', '.join(MODES)}")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each run (default 2)")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each mode on each server (default 3)")
    parser.add_argument("--without-kafka", action="store_true", help="muster alone")
    parser.add_argument(
        "--compiled", action="store_true", help="muster with compiled modules too (first: `make wheel`)"
    )
    parser.add_argument("--write-docs", action="store_true", help="put the table into docs/reference/performance.md")
    options = parser.parse_args(arguments)
    _allow_many_connections()
    runs: Runs = {}
    with tempfile.TemporaryDirectory(prefix="muster-bench-") as folder, contextlib.suppress(KeyboardInterrupt):
        kinds: list[type[Server]] = [Muster]
        if options.compiled:
            if not Compiled.folder_of_modules.is_dir():
                parser.error(f"there are no compiled modules in {Compiled.folder_of_modules}: run `make wheel`")
            kinds.append(Compiled)
        if not options.without_kafka:
            kinds += _kafka()
        try:
            for mode in options.only or MODES:
                runs[mode] = {}
            _measure(kinds, Path(folder), runs, options.rounds, Options(options.seconds))
        except BenchmarkError as error:
            print(f"benchmarks: {error}", file=sys.stderr)
            return 1
    medians = {
        mode: {server: middle(found) for server, found in by_server.items() if found}
        for mode, by_server in runs.items()
    }
    path = report.save(runs, medians, options.seconds)
    print(f"\n{report.plain(medians)}\n\n{report.machine()}; all figures: {path}")
    if options.write_docs:
        report.write_page(medians, f"Medians of {options.rounds} runs of {options.seconds:g} s on {report.machine()}.")
    return 0


def _kafka() -> list[type[Server]]:
    """Kafka's class, if Kafka is available here."""
    from tests.support import peers

    try:
        peers.kafka_jars()
        peers.require("Java", peers.find_java(), "Kafka runs on it")
    except (pytest.skip.Exception, pytest.fail.Exception) as error:
        print(f"benchmarks: only muster is measured, because {error}", file=sys.stderr)
        return []
    return [Kafka]


def _allow_many_connections() -> None:
    """A group of 1,000 members has 1,000 connections; the servers inherit the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 8_192 if hard == resource.RLIM_INFINITY else min(8_192, hard)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _measure(kinds: Sequence[type[Server]], folder: Path, runs: Runs, rounds: int, options: Options) -> None:
    """First the modes that start servers of their own, then all others on servers that keep running."""
    fresh = [mode for mode in runs if MODES[mode].fresh]
    for kind in kinds if fresh else ():
        with _running([kind], folder / "first"):
            pass  # so that the measured starts find their files compiled and in memory
    for mode, number, kind in itertools.product(fresh, range(rounds), kinds):
        server = kind(folder / f"{mode}-{number}-{kind.name}")
        server.prepare()
        try:
            _note(runs, mode, server, MODES[mode].run(server, options))
        finally:
            server.stop()
    lasting = [mode for mode in runs if not MODES[mode].fresh]
    if lasting:
        with _running(kinds, folder) as servers:
            for server in servers:
                if isinstance(server, Kafka):
                    MODES["heartbeats"].run(server, Options(FIRST_WARM_UP_S))
            for mode in lasting:
                _measure_mode(mode, servers, runs, rounds, options)


def _measure_mode(mode: str, servers: Sequence[Server], runs: Runs, rounds: int, options: Options) -> None:
    run = MODES[mode].run
    for server in servers:
        run(server, Options(WARM_UP_S[server.name]))
    for _ in range(max(rounds, REBALANCE_ROUNDS) if mode.startswith("rebalance") else rounds):
        for server in servers:
            _note(runs, mode, server, run(server, options))


def _note(runs: Runs, mode: str, server: Server, figures: Figures) -> None:
    runs[mode].setdefault(server.name, []).append(figures)
    told = "  ".join(
        f"{name} {value:,.4g}" if value < 100 else f"{name} {value:,.0f}" for name, value in figures.items()
    )
    print(f"{mode:16} {server.name:7} {told}", flush=True)


@contextlib.contextmanager
def _running(kinds: Sequence[type[Server]], folder: Path) -> Iterator[list[Server]]:
    """One server of each kind."""
    servers = [kind(folder / kind.name) for kind in kinds]
    with contextlib.ExitStack() as stack:
        for server in servers:
            server.prepare()
            server.start()
            stack.callback(server.stop)
        yield servers
