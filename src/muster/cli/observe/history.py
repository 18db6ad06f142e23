"""`muster history`: the Spark job that writes the history of consumer groups as Parquet, once or continuously."""

from __future__ import annotations

import argparse
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from muster.cli.common import add_connection, check_groups, pairs, reaching, spark_options
from muster.cli.logs import set_up_log
from muster.cli.observe.spark_tools import QUIET, check_master, spark_tools
from muster.cli.times import duration_ms
from muster.clock import wall_clock_ms
from muster.errors import ConfigError, MusterError

_LONGEST_MS = 10_000 * 86_400_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `muster history`."""
    parser.add_argument(
        "--out", required=True, metavar="DIR", help="folder for the tables; the next run continues there"
    )
    parser.add_argument(
        "--follow", action="store_true", help="keep running until stopped (default: write the current history and stop)"
    )
    parser.add_argument("--every", default="60s", metavar="TIME", help="with --follow: how often to read (default 60s)")
    parser.add_argument("--group", action="append", default=[], metavar="GROUP", help="only this group (repeatable)")
    parser.add_argument("--since", metavar="TIME", help="only the last TIME, for example 2h or 7d")
    parser.add_argument("--master", default="local[*]", metavar="URL", help="Spark's master (default local[*])")
    parser.add_argument(
        "--spark", action="append", default=[], metavar="KEY=VALUE", help="a Spark setting, by its name (repeatable)"
    )
    add_connection(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run the job. Ctrl-C and SIGTERM stop it cleanly; the next run continues where this one stopped."""
    set_up_log(arguments)
    every_s = _milliseconds(arguments.every, "--every") / 1_000
    since_ms = 0
    if arguments.since is not None:
        since_ms = wall_clock_ms() - _milliseconds(arguments.since, "--since")
    options = spark_options(arguments)
    settings = QUIET | pairs(arguments.spark, "--spark")
    check_master(arguments.master, ", or use muster.spark.history.tables in your own session")
    check_groups(arguments.group)
    if not arguments.out:
        raise ConfigError("--out is empty: name a folder")
    how = {"groups": arguments.group, "every_s": every_s, "once": not arguments.follow, "since_ms": since_ms}
    with _Stop() as stop:  # from the start, since creating a session takes seconds
        try:
            _run(arguments, settings, how, options, stop)
        except (MusterError, _Stopped):
            if not stop.requested:
                raise
            # Service managers signal all processes, so Spark's may end before this one has stopped them.
    return 0


def _run(
    arguments: argparse.Namespace, settings: dict[str, str], how: dict[str, Any], options: dict[str, Any], stop: _Stop
) -> None:
    history, session, with_short_errors = spark_tools()
    with stop.at_once(), reaching(arguments.bootstrap):
        limits = history.check(arguments.bootstrap, **options)
    with ThreadPoolExecutor(1) as elsewhere:
        # In the main thread Spark would handle Ctrl-C itself, and raise KeyboardInterrupt in whatever code is running.
        spark = elsewhere.submit(
            with_short_errors, lambda: session("muster history", arguments.master, **settings)
        ).result()
    try:
        if not stop.requested:
            where = arguments.bootstrap, arguments.out

            def write() -> None:
                with history.alone(spark, arguments.out):
                    _wait(history.follow(spark, *where, limits=limits, **how, **options), stop)

            with_short_errors(write)
        if not stop.requested:
            for name, rows in with_short_errors(lambda: _sizes(history.read(spark, arguments.out))).items():
                print(f"{name}: {rows}")
    finally:
        with_short_errors(spark.stop)


class _Stopped(KeyboardInterrupt):
    """A signal arrived when nothing had to be shut down first."""


class _Stop:
    """Whether a signal has requested a stop. Spark stops its own processes."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._at_once = False
        self._before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    @property
    def requested(self) -> bool:
        return self._event.is_set()

    def __enter__(self) -> _Stop:
        for number in self._before:
            signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *_error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Within this block a signal raises _Stopped: otherwise Ctrl-C would wait for an unreachable cluster."""
        self._at_once = True
        try:
            if self.requested:
                raise _Stopped
            yield
        finally:
            self._at_once = False

    def _on_signal(self, *_signal: object) -> None:
        self._event.set()
        if self._at_once:
            raise _Stopped


def _wait(query: Any, stop: _Stop) -> None:
    while not stop.requested:
        try:
            if query.awaitTermination(1):
                return
        except Exception:
            if not stop.requested:
                raise
            # A terminal's Ctrl-C reaches the source's Python process too, and may end the query before it is stopped.
    query.stop()


def _sizes(tables: Any) -> dict[str, int]:
    names = ("generations", "rebalances", "notes", "lag", "findings")
    return {name: getattr(tables, name).count() for name in names}


def _milliseconds(text: str, option: str) -> int:
    try:
        found = duration_ms(text.strip(), option)
    except ConfigError:
        found = 0
    if not 0 < found <= _LONGEST_MS:
        raise ConfigError(f"{option} {text!r}: expected a duration such as 30s, 2h or 7d")
    return found
