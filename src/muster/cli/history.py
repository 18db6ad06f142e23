"""`muster history`: the Spark job that writes the history of consumer groups as Parquet, once or going on."""

from __future__ import annotations

import argparse
import re
import signal
import threading
import time
from typing import Any

from muster.cli.common import add_connection, pairs, set_up_log
from muster.errors import ConfigError, MusterError

_QUIET = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false", "spark.log.level": "ERROR"}
_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `muster history`."""
    parser.add_argument("--out", required=True, metavar="DIR", help="write tables to this folder, and go on in it")
    parser.add_argument("--follow", action="store_true", help="go on until stopped; else write what is there now")
    parser.add_argument("--every", default="60s", metavar="TIME", help="with --follow: how often to look (default 60s)")
    parser.add_argument("--group", action="append", default=[], metavar="GROUP", help="only this group (repeatable)")
    parser.add_argument("--since", metavar="TIME", help="leave out what happened longer ago, for example 2h or 7d")
    parser.add_argument("--master", default="local[*]", metavar="URL", help="Spark's master (default local[*])")
    parser.add_argument(
        "--spark", action="append", default=[], metavar="KEY=VALUE", help="a setting of Spark, by its name (repeatable)"
    )
    add_connection(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run the job. Ctrl-C and SIGTERM stop it in good order; the next run goes on where this one stopped."""
    set_up_log(arguments)
    every_s = _milliseconds(arguments.every, "--every") / 1_000
    since_ms = 0
    if arguments.since is not None:
        since_ms = time.time_ns() // 1_000_000 - _milliseconds(arguments.since, "--since")
    options = {f"kafka.{name}": value for name, value in pairs(arguments.settings, "-o").items()}
    settings = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"} | pairs(
        arguments.spark, "--spark"
    )
    history, session, said = _spark()
    stop = _Stop()
    spark = session("muster history", arguments.master, **settings)
    try:
        with stop:
            query = said(
                lambda: history.follow(
                    spark,
                    arguments.bootstrap,
                    arguments.out,
                    groups=arguments.group,
                    every_s=every_s,
                    once=not arguments.follow,
                    since_ms=since_ms,
                    **options,
                )
            )
            said(lambda: _wait(query, stop))
        if not stop.asked:
            _summary(history.read(spark, arguments.out))
    finally:
        spark.stop()
    return 0


def _spark() -> tuple[Any, Any, Any]:
    """muster.spark's history, what makes a session, and what makes sentences of errors."""
    try:
        from muster.spark import history, session
        from muster.spark.history.sentences import said
    except ModuleNotFoundError as error:
        raise MusterError(str(error)) from None
    return history, session, said


class _Stop:
    """Whether a signal has asked for the end. Spark's own processes are asked by Spark."""

    def __init__(self) -> None:
        self._event = threading.Event()

    @property
    def asked(self) -> bool:
        return self._event.is_set()

    def __enter__(self) -> None:
        self._before = {number: signal.signal(number, self._ask) for number in (signal.SIGINT, signal.SIGTERM)}

    def __exit__(self, *_error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _ask(self, *_signal: object) -> None:
        self._event.set()


def _wait(query: Any, stop: _Stop) -> None:
    while not stop.asked:
        if query.awaitTermination(1):
            return
    query.stop()


def _summary(tables: Any) -> None:
    for name in ("generations", "rebalances", "notes", "lag", "findings"):
        print(f"{name}: {getattr(tables, name).count()}")


def _milliseconds(text: str, option: str) -> int:
    found = re.fullmatch(r"(\d+)(ms|s|m|h|d)", text.strip())
    if found is None or int(found[1]) == 0:
        raise ConfigError(f"{option} is {text!r}; it should be a time such as 30s, 2h or 7d")
    return int(found[1]) * _UNITS_MS[found[2]]
