"""The metrics port of a broker or coordinator: `/metrics` and `/healthz`.

The port has its own threads (`muster.metrics.port`). The counters belong to the event loop, so they are gathered there,
between requests and a slice at a time; the page is rendered in a thread of the port. While the loop does not answer, as
during a long recovery, `/healthz` reports that.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from http import HTTPStatus
from typing import TypeVar

from muster.broker.broker import Broker
from muster.broker.group_server import GroupServer
from muster.coordinator.groups.effects import GroupEvent
from muster.metrics import exposition
from muster.metrics.exposition import Page, text_page
from muster.metrics.families import Family
from muster.metrics.port import MetricsPort

T = TypeVar("T")

PATIENCE_S = 5.0
"""How long to wait for the loop's answer."""


class BusyError(Exception):
    """The loop did not answer."""


class Monitor:
    """Monitors one process from before its start; create it on the process's loop."""

    def __init__(self, shell: GroupServer, host: str, port: int) -> None:
        self._shell = shell
        self._loop = asyncio.get_running_loop()
        self._events: Counter[type[GroupEvent]] = Counter()
        shell.measure = True
        shell.watch_events(self._count)
        self.port = MetricsPort(host, port, {"/metrics": self._metrics, "/healthz": self._health})

    def _count(self, event: GroupEvent) -> None:
        self._events[type(event)] += 1

    # ------------------------------------------------------------------------------------- in the port's threads

    def _metrics(self, accept: str) -> Page:
        try:
            families = self._on_loop(self._gather)
        except BusyError as busy:
            return text_page(HTTPStatus.SERVICE_UNAVAILABLE, str(busy))
        return exposition.page(families, accept)

    def _health(self, accept: str) -> Page:
        try:
            trouble = self._on_loop(self._trouble)
            refusing = 0 if trouble else self._on_loop(self._refusing)
        except BusyError as busy:
            trouble, refusing = str(busy), 0
        if refusing and isinstance(self._shell, Broker):
            trouble = self._shell.probe_disk()
            trouble = f"{trouble} ({refusing} partitions refused records)" if trouble else None
        if trouble:
            return text_page(HTTPStatus.SERVICE_UNAVAILABLE, trouble)
        return text_page(HTTPStatus.OK, "serving")

    def _on_loop(self, work: Callable[[Callable[[T], None]], None]) -> T:
        """Run something on the loop that calls back with its result."""
        future: Future[T] = Future()

        def done(result: T) -> None:
            if not future.cancelled():
                future.set_result(result)

        def begin() -> None:
            try:
                work(done)
            except Exception as error:
                if not future.cancelled():  # the caller has given up waiting
                    future.set_exception(error)

        try:
            self._loop.call_soon_threadsafe(begin)
        except RuntimeError:  # the loop is closed
            raise BusyError("it has stopped") from None
        try:
            return future.result(PATIENCE_S)
        except TimeoutError:
            future.cancel()
            raise BusyError(f"it is busy: no answer within {PATIENCE_S:g} s") from None

    # ------------------------------------------------------------------------------------- in the loop

    def _trouble(self, done: Callable[[str | None], None]) -> None:
        done(self._shell.trouble())

    def _refusing(self, done: Callable[[int], None]) -> None:
        done(len(self._shell.refusing()) if isinstance(self._shell, Broker) else 0)

    def _gather(self, done: Callable[[list[Family]], None]) -> None:
        self._shell.gather_later(dict(self._events), done)


__all__ = ["BusyError", "Monitor"]
