"""The background thread of the blocking faces, and the bridge for their calls.

Theory. A blocking call is a coroutine in the loop's thread and a wait in the caller's thread. While the caller waits,
it also runs the user's callbacks, which the coroutine hands to it (`in_caller`).

An exception that ends the wait early, such as Ctrl-C, may be raised between any two instructions of the caller's
thread, even right after an item was taken from a queue or a function has returned. So nothing is kept in the caller's
thread alone. The loop's thread writes the outcome of a call into its `LoopCall`. An item in the queue on which the
caller waits only means "look again", so losing one loses nothing. A caller that is interrupted sets `abandoned`,
requests the cancellation of its coroutine, and leaves without waiting, so it cannot hang. The call may still have
succeeded: a face that needs to know (`Consumer`, about records) checks that in the loop's thread before its next call.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import Context, ContextVar, copy_context
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

from muster.client.net import forks
from muster.errors import ClosedError, IllegalStateError, KafkaTimeoutError

log = logging.getLogger("muster.client")

T = TypeVar("T")

_UserCall = tuple[Callable[..., Any], tuple[Any, ...], "asyncio.Future[None]"]

AT_EXIT_MS = 2_000
"""How long the interpreter waits at shutdown for clients that were not closed."""

_FORKED = "this client was started before the process forked: create a new one in the child process"


class _Mailbox:
    """Messages from the loop's thread to the waiting caller."""

    __slots__ = ("__weakref__", "user_calls", "wakeups")

    def __init__(self) -> None:
        self.user_calls: deque[_UserCall] = deque()
        self.wakeups: SimpleQueue[None] = SimpleQueue()
        """Gets an item for each change, so that the caller looks again."""


_mailbox: ContextVar[_Mailbox] = ContextVar("muster_mailbox")
"""The mailbox of the running task's call."""


class LoopCall(Generic[T]):
    """A call in progress. Only the caller's thread writes `returned` and `abandoned`, the loop's thread the rest."""

    __slots__ = ("abandoned", "ended", "mailbox", "returned", "succeeded", "task", "work")

    def __init__(self, work: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self.work: Callable[[], Coroutine[Any, Any, T]] | None = work
        self.task: asyncio.Task[T] | None = None
        self.ended = False
        self.succeeded = False
        """Whether the call has ended with a result."""
        self.mailbox = _Mailbox()
        self.returned = False
        """The caller has the result."""
        self.abandoned = False
        """The caller has left without the result."""

    def begin(self, context: Context, calls: set[LoopCall[Any]]) -> None:
        """Start the coroutine, in the loop's thread."""
        if self.abandoned or self.work is None:
            self.end(calls)
            return
        work, self.work = self.work, None
        self.task = asyncio.get_running_loop().create_task(work(), context=context)
        self.task.add_done_callback(lambda task: self.end(calls, task))

    def end(self, calls: set[LoopCall[Any]], task: asyncio.Task[T] | None = None) -> None:
        """The call has ended."""
        calls.discard(self)
        work, self.work = self.work, None
        if work is not None:
            work().close()  # it never started: closing it keeps Python from warning that it was never awaited
        self.succeeded = task is not None and not task.cancelled() and task.exception() is None
        if self.abandoned:
            self.task = None  # its traceback would keep the client alive
        self.ended = True
        self.mailbox.wakeups.put(None)

    def cancel(self, calls: set[LoopCall[Any]]) -> None:
        """Cancel the coroutine, in the loop's thread."""
        if self.task is not None:
            self.task.cancel()
        elif not self.ended:
            self.end(calls)

    def result(self) -> T:
        """What the coroutine returned or raised. It is not kept: tables may be large."""
        task, self.task = self.task, None
        if task is None or task.cancelled():
            raise ClosedError("the client was closed during the call")
        return task.result()


class LoopThread:
    """Runs coroutines of one client in a daemon thread and waits for them in the caller's.

    `farewell` runs last in the thread, whether the thread ends by `close`, because the client was dropped (`drop`), or
    at interpreter shutdown. It must not refer to the client, or the client would never be dropped.

    Sockets and threads do not survive a fork. A child process that inherits a started LoopThread gets an
    IllegalStateError and must create its own client. A LoopThread that was not started yet works in the child.
    """

    def __init__(
        self, name: str = "muster-client", farewell: Callable[[], Coroutine[Any, Any, None]] | None = None
    ) -> None:
        self._name = name
        self._farewell = farewell
        self._lock = threading.RLock()
        """Held while the thread is started. It is reentrant: the caller may have been interrupted while holding it."""
        self._served: _Served | None = None
        self._thread: threading.Thread | None = None
        self._running = False
        self.closed = False
        """Whether `close` was called."""
        self._forks = forks.count
        if farewell is not None:
            _with_farewell.add(self)

    def run(self, work: Coroutine[Any, Any, T], timeout_ms: float | None = None) -> T:
        """Run a coroutine in the loop's thread and return what it returns.

        If the wait ends early (by the timeout or Ctrl-C), the coroutine is cancelled.

        Raises:
            KafkaTimeoutError: it took longer than `timeout_ms`.
            ClosedError: `close` was called.
            IllegalStateError: called from the loop's own thread, or in a process forked after the start.
        """
        try:
            self._started()
        except BaseException:
            work.close()
            raise
        return self.perform(LoopCall(lambda: work), timeout_ms)

    def call(self, function: Callable[..., Coroutine[Any, Any, T]], *arguments: Any, **named: Any) -> T:
        """Like `run`, for the coroutine that a function returns; the function is called in the loop's thread."""
        return self.perform(LoopCall(partial(function, *arguments, **named)))

    def perform(self, call: LoopCall[T], timeout_ms: float | None = None) -> T:
        """Run a call, and return its result or raise its error."""
        try:
            served = self._started()
            if self.is_current():
                raise IllegalStateError("a blocking call from a callback of the same client would wait for itself")
            context = copy_context()
            context.run(_mailbox.set, call.mailbox)
            served.calls.add(call)
            served.call_soon(call.begin, context, served.calls)
            _wait(call, served, None if timeout_ms is None else timeout_ms / 1000)
            result = call.result()
            call.returned = True
            return result
        except BaseException as error:
            call.abandoned = True
            self._cancel(call)
            if isinstance(error, Empty):
                raise KafkaTimeoutError(f"the call did not finish within {timeout_ms:g} ms") from None
            raise

    def is_current(self) -> bool:
        """Whether the caller runs in the loop's own thread."""
        return threading.current_thread() is self._thread

    def call_soon(self, function: Callable[..., object], *arguments: Any) -> None:
        """Call a function in the loop's thread, without waiting for it."""
        self._started().call_soon(function, *arguments)

    def call_if_serving(self, function: Callable[..., object], *arguments: Any) -> bool:
        """Like `call_soon`, but without starting the thread. Returns whether there is a loop. Takes no lock."""
        served = self._served
        if served is None or served.loop is None:
            return False
        with suppress(ClosedError):
            served.call_soon(function, *arguments)
        return True

    def close(self, timeout_ms: float = 10_000) -> None:
        """Stop the loop, cancelling what still runs in it, and wait for the thread to end. Safe to call twice."""
        self.closed = True
        thread, served = self._thread, self._served
        if thread is None or served is None or self.forked:
            return
        served.stop()
        if thread is not threading.current_thread() and thread.ident is not None:
            thread.join(timeout_ms / 1000)

    def drop(self) -> None:
        """The client was dropped: stop the thread, without waiting. The garbage collector may call this anywhere."""
        self.closed = True
        if self._served is not None and not self.forked:
            self._served.stop()

    @property
    def is_open(self) -> bool:
        """Whether this process has a thread that was not asked to stop."""
        return self._thread is not None and not self.closed and not self.forked

    @property
    def forked(self) -> bool:
        """Whether this is a forked copy of a thread that the parent process started."""
        return self._forks != forks.count and self._thread is not None

    def _cancel(self, call: LoopCall[Any]) -> None:
        served = self._served
        if served is not None and not call.ended and not self.forked:
            with suppress(ClosedError):
                served.call_soon(call.cancel, served.calls)

    def _started(self) -> _Served:
        if self.forked:
            raise IllegalStateError(_FORKED)
        if self.closed:
            raise ClosedError("the client is closed")
        if not self._running:
            if self._forks != forks.count:
                self._forks, self._lock = forks.count, threading.RLock()
            with self._lock:
                self._start()
        assert self._served is not None
        return self._served

    def _start(self) -> None:
        """Start the thread, in steps that can be repeated: an interrupt may come after any of them."""
        if self._served is None:
            self._served = _Served(self._farewell)
        served = self._served
        if self._thread is None:
            self._thread = threading.Thread(target=served.serve, name=self._name, daemon=True)
        if self._thread.ident is None:
            _start(self._thread)
        while served.loop is None:
            if served.error is not None:
                self._served = self._thread = None
                raise served.error
            served.wakeups.get()
        self._running = True


class _Served:
    """The thread's own state. It does not refer to its LoopThread, so that an unused client can be collected."""

    def __init__(self, farewell: Callable[[], Coroutine[Any, Any, None]] | None) -> None:
        self._farewell = farewell
        self.loop: asyncio.AbstractEventLoop | None = None
        """Created by the thread itself: in the caller's thread an interrupt could come before it is stored."""
        self.error: Exception | None = None
        self.wakeups: SimpleQueue[None] = SimpleQueue()
        """Gets an item when the loop exists or could not be created."""
        self.calls: set[LoopCall[Any]] = set()
        """The calls in progress: they end with the loop."""
        self.stopping = False
        self._ending = False
        self._server: dict[str, int] = {}

    def call_soon(self, function: Callable[..., object], *arguments: Any) -> None:
        """May be called from any thread. Raises ClosedError when the loop has ended."""
        loop = self.loop
        if loop is None:
            raise ClosedError("the client is closed")
        try:
            loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:
            if not loop.is_closed():
                raise
            raise ClosedError("the client is closed") from None

    def stop(self) -> None:
        """Stop the loop. May be called from any thread."""
        self.stopping = True
        if self.loop is not None:
            with suppress(ClosedError):
                self.call_soon(self._stop_running, self.loop)

    def _stop_running(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self._ending:  # a second request to stop must not end the farewell
            loop.stop()

    def serve(self) -> None:
        """The thread's main function."""
        me = threading.get_ident()
        if self._server.setdefault("thread", me) != me:
            return  # an interrupt caused a second start of the thread
        try:
            loop = asyncio.new_event_loop()
        except Exception as error:  # too many open files
            self.error = error
            self.wakeups.put(None)
            return
        asyncio.set_event_loop(loop)
        self.loop = loop
        self.wakeups.put(None)
        try:
            if not self.stopping:
                loop.run_forever()
            self._ending = True
            self._end_tasks(loop)
            if self._farewell is not None:
                loop.run_until_complete(self._say_farewell(self._farewell))
            self._end_tasks(loop)  # a call at the last moment may have started one
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            loop.close()
            # A call that came before the loop was closed is in `calls`; a later one finds the loop closed.
            for call in list(self.calls):
                call.end(self.calls)

    def _end_tasks(self, loop: asyncio.AbstractEventLoop) -> None:
        while tasks := asyncio.all_tasks(loop):
            for task in tasks:
                task.cancel()
            loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))

    async def _say_farewell(self, farewell: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            await farewell()
        except Exception:
            log.exception("a client could not be closed cleanly")
        await asyncio.sleep(0)  # lets the transports close their sockets


async def in_caller(function: Callable[..., Any], *arguments: Any) -> None:
    """Run a function in the thread of the caller that waits for the running task; wait until it returns."""
    answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    mailbox = _mailbox.get()
    mailbox.user_calls.append((function, arguments, answer))
    mailbox.wakeups.put(None)
    await answer


def _start(thread: threading.Thread) -> None:
    """Start a thread.

    While Python waits for it to start, an interrupt may come between two steps of `Condition.wait`, which then raises a
    RuntimeError about a lock.
    """
    try:
        thread.start()
    except RuntimeError as error:
        if isinstance(error.__context__, KeyboardInterrupt):
            raise error.__context__ from None
        raise


def _wait(call: LoopCall[Any], served: _Served, timeout_s: float | None) -> None:
    """Wait in the caller's thread until a call has ended. Raises Empty when nothing arrives for `timeout_s`."""
    mailbox = call.mailbox
    while not call.ended:
        if mailbox.user_calls:
            _run_user_call(mailbox.user_calls.popleft(), served)
        else:
            mailbox.wakeups.get(timeout=timeout_s)


def _run_user_call(call: _UserCall, served: _Served) -> None:
    function, arguments, answer = call
    error: Exception | None = None
    try:
        result = function(*arguments)
        if asyncio.iscoroutine(result):
            result.close()
            raise IllegalStateError("callbacks of a blocking client are plain functions, not coroutines")
    except Exception as raised:
        error = raised
    with suppress(ClosedError):  # the user's function has closed the client: the call has ended
        served.call_soon(_settle, answer, error)


def _settle(answer: asyncio.Future[None], error: Exception | None) -> None:
    if answer.done():
        return
    if error is not None:
        answer.set_exception(error)
    else:
        answer.set_result(None)


_with_farewell: weakref.WeakSet[LoopThread] = weakref.WeakSet()


def _at_exit() -> None:
    """At interpreter shutdown, daemon threads stop wherever they are: end the threads of open clients before that."""
    threads = [thread for thread in list(_with_farewell) if not thread.forked]
    for thread in threads:
        thread.drop()
    deadline = time.monotonic() + AT_EXIT_MS / 1000
    for thread in threads:
        thread.close(max(0, deadline - time.monotonic()) * 1000)


atexit.register(_at_exit)
