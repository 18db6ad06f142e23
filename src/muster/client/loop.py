"""The background thread behind the sync faces: one event loop, started when it is first needed."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError as FutureCancelledError
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any, TypeVar

from muster.errors import ClosedError, IllegalStateError, KafkaTimeoutError

T = TypeVar("T")


class LoopThread:
    """Runs coroutines of one client in a daemon thread and waits for them in the caller's.

    Sockets and threads do not survive a fork in a usable way: a child process that inherits a started LoopThread gets
    an IllegalStateError and has to make a client of its own. One that was not started yet works in the child.
    """

    def __init__(self, name: str = "muster-client") -> None:
        self._name = name
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._pid = 0
        self._closed = False

    def run(self, work: Coroutine[Any, Any, T], timeout_ms: float | None = None) -> T:
        """Run a coroutine in the loop's thread and return what it returns.

        Whatever ends the wait early (the timeout, Ctrl-C) cancels the coroutine.

        Raises:
            KafkaTimeoutError: it took longer than `timeout_ms`.
            ClosedError: `close` was called.
            IllegalStateError: called from the loop's own thread, or in a process forked after the start.
        """
        try:
            loop = self._started()
            if self.is_current():
                raise IllegalStateError("a blocking call from a callback of the same client would wait for itself")
        except BaseException:
            work.close()
            raise
        future = asyncio.run_coroutine_threadsafe(work, loop)
        try:
            return future.result(None if timeout_ms is None else timeout_ms / 1000)
        except FutureTimeoutError:
            if future.done():
                raise
            future.cancel()
            raise KafkaTimeoutError(f"the call did not finish within {timeout_ms:g} ms") from None
        except FutureCancelledError:
            raise ClosedError("the client was closed during the call") from None
        except BaseException:
            future.cancel()
            raise

    def is_current(self) -> bool:
        """Whether the caller runs in the loop's own thread."""
        return threading.current_thread() is self._thread

    def call_soon(self, function: Callable[..., object], *arguments: Any) -> None:
        """Have a function called in the loop's thread, without waiting for it."""
        self._started().call_soon_threadsafe(function, *arguments)

    def close(self, timeout_ms: float = 10_000) -> None:
        """Stop the loop, cancelling what still runs in it, and wait for the thread to end. Safe to call twice."""
        with self._lock:
            self._closed = True
            loop, thread = self._loop, self._thread
            if loop is None or thread is None or self._pid != os.getpid():
                return
        if thread.is_alive():
            loop.call_soon_threadsafe(loop.stop)
            if thread is not threading.current_thread():
                thread.join(timeout_ms / 1000)

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._closed:
                raise ClosedError("the client is closed")
            if self._loop is not None:
                if self._pid != os.getpid():
                    raise IllegalStateError(
                        "this client was started before the process forked: make a new one in the child process"
                    )
                return self._loop
            self._pid = os.getpid()
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=_serve, args=(self._loop,), name=self._name, daemon=True)
            self._thread.start()
            return self._loop


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()
