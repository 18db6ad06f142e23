"""An event loop of asyncio whose time is a number, and whose threads do their work at once at some moment of that
time."""

from __future__ import annotations

import asyncio
import contextlib
from asyncio import events
from collections.abc import Callable
from math import ceil
from typing import Any


class _NoSockets:
    """Replaces the loop's selector: nothing ever comes from outside."""

    def select(self, timeout: float | None) -> list[Any]:
        """Does not wait: the world decides the time."""
        return []


class VirtualLoop(asyncio.BaseEventLoop):
    """A loop that runs one turn at a time, on request.

    Args:
        now: milliseconds since the beginning.
        work_ms: how long the next work of a thread takes.
    """

    def __init__(self, now: Callable[[], int], work_ms: Callable[[], int] = lambda: 0) -> None:
        super().__init__()
        self._selector = _NoSockets()
        self._clock_resolution = 1e-6
        self._now_ms = now
        self._work_ms = work_ms
        self.name = ""
        self.is_frozen = False
        """The process is suspended (SIGSTOP): no turn is taken."""
        self.thawed_at = 0
        """When it was last resumed."""
        self.dial: Callable[[Callable[[], Any], str, int], Any]
        """Makes a connection to an address; raises OSError."""
        self.on_end: list[Callable[[], None]] = []
        """Called when the process is killed."""

    def time(self) -> float:
        """Seconds since the beginning."""
        return self._now_ms() / 1000

    def _process_events(self, event_list: list[Any]) -> None:
        assert not event_list

    def _write_to_self(self) -> None:
        pass

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        """The work is done in one step in this thread, some time later."""
        future = self.create_future()
        self.call_later(self._work_ms() / 1000, self._work, future, func, args)
        return future

    @staticmethod
    def _work(future: asyncio.Future[Any], func: Callable[..., Any], args: tuple[Any, ...]) -> None:
        if future.cancelled():
            return
        try:
            result = func(*args)
        except Exception as error:
            future.set_exception(error)
        else:
            future.set_result(result)

    async def create_connection(
        self, protocol_factory: Callable[[], Any], host: Any = None, port: Any = None, **_: Any
    ) -> Any:
        """Like asyncio's, to an address of the world."""
        return self.dial(protocol_factory, host, port)

    def thaw(self) -> None:
        """The process resumes (SIGCONT): what became due meanwhile runs at once."""
        if self.is_frozen:
            self.is_frozen, self.thawed_at = False, self._now_ms()

    def kill(self) -> None:
        """kill -9."""
        for end in self.on_end:
            end()
        self.drop()

    def next_due(self) -> int | None:
        """The time at which there is something to do, in milliseconds; None if there never will be."""
        if self.is_frozen:
            return None
        if self._ready:  # type: ignore[attr-defined]
            return self._now_ms()
        scheduled = self._scheduled  # type: ignore[attr-defined]
        return ceil(scheduled[0].when() * 1000 - 1e-3) if scheduled else None

    def turn(self) -> None:
        """Do what is due now. Raises exceptions that end a program: see `Killed`."""
        self.inside(self._run_once)  # type: ignore[attr-defined]

    def inside(self, work: Callable[[], Any]) -> Any:
        """Do some work as if in a turn of this loop."""
        before = events._get_running_loop()
        events._set_running_loop(self)
        try:
            return work()
        finally:
            events._set_running_loop(before)

    def drop(self) -> None:
        """Forget everything: the program is dead."""
        self.set_exception_handler(lambda _loop, _context: None)
        for task in asyncio.all_tasks(self):
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            with contextlib.suppress(RuntimeError):
                task.get_coro().close()
        self.close()
