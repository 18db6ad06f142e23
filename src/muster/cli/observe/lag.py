"""`muster lag`: the lag of groups, as a table, once or repeatedly, or as metrics for Prometheus."""

from __future__ import annotations

import argparse
import json
import logging
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from muster.cli.common import (
    add_connection,
    add_timeout,
    client_settings,
    print_json,
    reaching,
)
from muster.cli.logs import set_up_log
from muster.cli.times import positive_ms
from muster.client.admin.admin import Admin
from muster.client.config import AdminConfig, ClientConfig
from muster.errors import ConfigError, MusterError
from muster.history.lag.groups import GroupLag, LagSnapshot, PartitionLag, as_json, families
from muster.history.sources.cluster_lag import LagWatch
from muster.metrics import exposition
from muster.metrics.exposition import Page, check_port, text_page

log = logging.getLogger("muster.lag")

_HEADS = ("GROUP", "STATE", "TOPIC", "PARTITION", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG", "SECONDS", "CLIENT-ID")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `muster lag`."""
    parser.add_argument("--group", action="append", default=[], metavar="GROUP", help="only this group (repeatable)")
    parser.add_argument("--follow", action="store_true", help="repeat until Ctrl-C")
    parser.add_argument("--json", action="store_true", help="print JSON; with --follow one object per line")
    parser.add_argument(
        "--metrics-port", type=int, metavar="PORT", help="serve /metrics for Prometheus; 0 picks a free port"
    )
    parser.add_argument(
        "--metrics-host", default="127.0.0.1", metavar="HOST", help="address to serve metrics on (default 127.0.0.1)"
    )
    parser.add_argument(
        "--interval", type=positive_ms, default=15_000, metavar="TIME", help="time between two readings (default 15s)"
    )
    add_connection(parser)
    add_timeout(parser)


def run(arguments: argparse.Namespace) -> int:
    """Read the lag, and print or serve it."""
    if arguments.metrics_port is not None:
        if arguments.follow or arguments.json:
            raise ConfigError("lag: --metrics-port prints nothing: omit --follow and --json")
        check_port(arguments.metrics_port)
        exposition.check_installed()
    set_up_log(arguments)
    settings = {"default.api.timeout.ms": arguments.timeout_ms} | client_settings(arguments, AdminConfig)
    config = AdminConfig.of(settings)
    with Admin(settings) as admin:
        watch = LagWatch(admin, arguments.group, config.narrowed(ClientConfig))
        if arguments.metrics_port is not None:
            return _serve(watch, arguments)
        if arguments.follow:
            return _follow(watch, arguments)
        with reaching(arguments.bootstrap):
            return _show(watch.poll(), arguments)


# --- printed ---------------------------------------------------------------------------------------------------------


def _show(snapshot: LagSnapshot, arguments: argparse.Namespace) -> int:
    if arguments.json:
        print_json(as_json(snapshot))
    else:
        for line in table(snapshot):
            print(line)
    print(end="", flush=True)
    for remark in snapshot.remarks:
        print(f"muster: {remark}", file=sys.stderr, flush=True)
    missing = set(arguments.group) - {group.group for group in snapshot.groups}
    return 1 if missing or snapshot.brokers_away else 0


def _follow(watch: LagWatch, arguments: argparse.Namespace) -> int:
    """Repeat until Ctrl-C. Of consecutive failures only the first is reported."""
    readings = _Readings(arguments.interval)
    with reaching(arguments.bootstrap):
        snapshot: LagSnapshot | None = watch.poll()
    while True:
        begun = time.monotonic()
        if snapshot is not None:
            text = json.dumps(as_json(snapshot)) if arguments.json else "\n".join([*table(snapshot), ""])
            print(text, flush=True)
        time.sleep(max(0.0, begun + arguments.interval / 1_000 - time.monotonic()))
        snapshot = readings.poll(watch)


def table(snapshot: LagSnapshot) -> list[str]:
    """A line for each partition of each group; a group without partitions gets one line too."""
    rows: list[tuple[str, ...]] = [_HEADS]
    for group in snapshot.groups:
        rows += [_row(group, part) for part in group.partitions] or [(group.group, group.state, *["-"] * 7)]
    widths = [max(len(row[index]) for row in rows) for index in range(len(_HEADS))]
    numbers = range(3, 8)
    return [
        "  ".join(
            cell.rjust(width) if index in numbers else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _row(group: GroupLag, part: PartitionLag) -> tuple[str, ...]:
    cells = (part.partition, part.committed_offset, part.log_end_offset, part.lag)
    seconds = None if part.seconds is None else f"{part.seconds:.1f}"
    return (group.group, group.state, part.topic, *map(_text, (*cells, seconds, part.client_id)))


def _text(value: object) -> str:
    return "-" if value is None else str(value)


# --- served ----------------------------------------------------------------------------------------------------------


class _Readings:
    """Readings that may fail: the first failure is logged, and the first success after it."""

    def __init__(self, interval_ms: int) -> None:
        self.count = 0
        self.why = ""
        self._interval_ms = interval_ms

    def poll(self, watch: LagWatch) -> LagSnapshot | None:
        """One reading; None if it failed."""
        try:
            found = watch.poll()
        except MusterError as error:
            self.count, self.why = self.count + 1, str(error)
            if self.count == 1:
                log.warning("cannot read the lag of groups: %s; retrying every %g s", error, self._interval_ms / 1_000)
            return None
        if self.count:
            log.warning("reading the lag of groups again")
        self.count = 0
        return found


class LagExporter:
    """The last reading, as pages. Readings and pages run in different threads."""

    def __init__(self, watch: LagWatch, interval_ms: int) -> None:
        self._watch = watch
        self._interval_s = interval_ms / 1_000
        self._readings = _Readings(interval_ms)
        self._snapshot: LagSnapshot | None = None
        self._reported: set[str] = set()

    def metrics(self, accept: str) -> Page:
        """`/metrics`."""
        return exposition.page(families(self._snapshot, failures=self._readings.count), accept)

    def health(self, accept: str) -> Page:
        """`/healthz`: this process is healthy even while the cluster is not."""
        if self._snapshot is None:
            return text_page(
                200, f"the cluster does not answer: {self._readings.why or 'no request has been sent yet'}"
            )
        return text_page(200, "serving")

    def work(self, stopped: threading.Event) -> None:
        """Read the lag repeatedly."""
        while not stopped.is_set():
            begun = time.monotonic()
            self._snapshot = found = self._readings.poll(self._watch)
            for remark in () if found is None else found.remarks:
                if remark not in self._reported:
                    self._reported.add(remark)
                    log.warning("%s", remark)
            stopped.wait(max(0.0, begun + self._interval_s - time.monotonic()))


class _StopError(Exception):
    """A signal requested a stop."""


@contextmanager
def _until_signal() -> Iterator[None]:
    """SIGINT or SIGTERM leaves the block, even from within a blocking call."""

    def stop(number: int, frame: FrameType | None) -> None:
        for each in before:
            signal.signal(each, signal.SIG_IGN)
        raise _StopError

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    except _StopError:
        pass
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _serve(watch: LagWatch, arguments: argparse.Namespace) -> int:
    from muster.metrics.port import MetricsPort  # imported here: printing needs no server

    exporter = LagExporter(watch, arguments.interval)
    port = MetricsPort(
        arguments.metrics_host, arguments.metrics_port, {"/metrics": exporter.metrics, "/healthz": exporter.health}
    )
    port.start()
    try:
        with _until_signal():
            print(f"serving the lag of groups at {arguments.bootstrap} on http://{port.address}/metrics", flush=True)
            exporter.work(threading.Event())
    finally:
        port.stop()
    return 0
