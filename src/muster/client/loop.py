"""The background thread behind the blocking faces, and the bridge over which their calls go.

Theory. A blocking call is a coroutine in the loop's thread and a wait in the caller's. While it waits, the caller also
runs what the coroutine wants run in the caller's thread (`in_caller`): the user's callbacks.

What ends the wait early, such as Ctrl-C, may be raised between any two instructions of the caller's thread, also right
after a queue has given up its item or a function its result. So nothing is kept in the caller's thread alone. What has
become of a call stands in its `Call`, written by the loop's thread; the queue that the caller waits at only says "look
again", and losing such a word loses nothing. A caller that is interrupted notes `abandoned`, has the coroutine
cancelled and goes: it waits for nothing, so it cannot hang. Whether the call came to a result all the same is looked at
in the loop's thread, by a face that cares (`Consumer`, about records), before its next call.
"""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

from muster.errors import ClosedError, IllegalStateError, KafkaTimeoutError

T = TypeVar("T")

_UserCall = tuple[Callable[..., Any], tuple[Any, ...], "asyncio.Future[None]"]

_FORKED = "this client was started before the process forked: make a new one in the child process"


class _Mailbox:
    """What the loop's thread has for a caller that waits."""

    __slots__ = ("__weakref__", "user_calls", "words")

    def __init__(self) -> None:
        self.user_calls: deque[_UserCall] = deque()
        self.words: SimpleQueue[None] = SimpleQueue()
        """One "look again" for each change."""


_mailbox: ContextVar[_Mailbox] = ContextVar("muster_mailbox")
"""Of the call that the running task belongs to."""


class Call(Generic[T]):
    """One call on its way. Only the caller's thread writes `returned` and `abandoned`, only the loop's the others."""

    __slots__ = ("abandoned", "gave", "mailbox", "over", "returned", "task", "work")

    def __init__(self, work: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self.work: Callable[[], Coroutine[Any, Any, T]] | None = work
        self.task: asyncio.Task[T] | None = None
        self.over = False
        self.gave = False
        """Whether it is over and has a result."""
        self.mailbox = _Mailbox()
        self.returned = False
        """The caller has the result."""
        self.abandoned = False
        """The caller has gone without it."""

    def begin(self, context: Context, calls: set[Call[Any]]) -> None:
        """Start the coroutine, in the loop's thread."""
        if self.abandoned or self.work is None:
            self.end(calls)
            return
        work, self.work = self.work, None
        self.task = asyncio.get_running_loop().create_task(work(), context=context)
        self.task.add_done_callback(lambda task: self.end(calls, task))

    def end(self, calls: set[Call[Any]], task: asyncio.Task[T] | None = None) -> None:
        """Nothing more comes of it."""
        calls.discard(self)
        work, self.work = self.work, None
        if work is not None:
            work().close()  # nor will anything: Python must not complain that it was never awaited
        self.gave = task is not None and not task.cancelled() and task.exception() is None
        self.over = True
        self.mailbox.words.put(None)

    def cancel(self, calls: set[Call[Any]]) -> None:
        """Have the coroutine end, in the loop's thread."""
        if self.task is not None:
            self.task.cancel()
        elif not self.over:
            self.end(calls)

    def result(self) -> T:
        """What the coroutine returned or raised. It is not kept: tables may be large."""
        task, self.task = self.task, None
        if task is None or task.cancelled():
            raise ClosedError("the client was closed during the call")
        return task.result()


class LoopThread:
    """Runs coroutines of one client in a daemon thread and waits for them in the caller's.

    Sockets and threads do not survive a fork in a usable way: a child process that inherits a started LoopThread gets
    an IllegalStateError and has to make a client of its own. One that was not started yet works in the child.
    """

    def __init__(self, name: str = "muster-client") -> None:
        self._name = name
        self._lock = threading.RLock()
        """Held while the thread is started. The same thread may take it again: it may have been interrupted with it."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._calls: set[Call[Any]] = set()
        """Those that are under way: they are told when the loop ends."""
        self._running = False
        self._closed = False
        self.forked = False
        """Whether this is a copy in a child process of a thread that the parent had started."""
        _all.add(self)

    def run(self, work: Coroutine[Any, Any, T], timeout_ms: float | None = None) -> T:
        """Run a coroutine in the loop's thread and return what it returns.

        Whatever ends the wait early (the timeout, Ctrl-C) cancels the coroutine.

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
        return self.perform(Call(lambda: work), timeout_ms)

    def call(self, function: Callable[..., Coroutine[Any, Any, T]], *arguments: Any, **named: Any) -> T:
        """`run` of the coroutine that a function makes, there."""
        return self.perform(Call(partial(function, *arguments, **named)))

    def perform(self, call: Call[T], timeout_ms: float | None = None) -> T:
        """Have a call done, and return or raise what comes of it."""
        try:
            loop = self._started()
            if self.is_current():
                raise IllegalStateError("a blocking call from a callback of the same client would wait for itself")
            context = copy_context()
            context.run(_mailbox.set, call.mailbox)
            self._calls.add(call)
            _call_soon(loop, call.begin, context, self._calls)
            _wait(call, loop, None if timeout_ms is None else timeout_ms / 1000)
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
        """Have a function called in the loop's thread, without waiting for it."""
        _call_soon(self._started(), function, *arguments)

    @property
    def ended(self) -> bool:
        """Whether `close` has been called and there is no thread any more."""
        return self._closed and (self._thread is None or self.forked or not self._thread.is_alive())

    def close(self, timeout_ms: float = 10_000) -> None:
        """Stop the loop, cancelling what still runs in it, and wait for the thread to end. Safe to call twice."""
        self._closed = True
        thread, loop = self._thread, self._loop
        if thread is None or loop is None or self.forked or not thread.is_alive():
            return
        try:
            loop.call_soon_threadsafe(loop.stop)
        except RuntimeError:
            return  # it has ended meanwhile
        if thread is not threading.current_thread():
            thread.join(timeout_ms / 1000)

    def _cancel(self, call: Call[Any]) -> None:
        loop = self._loop
        if loop is not None and not call.over and not self.forked:
            try:
                loop.call_soon_threadsafe(call.cancel, self._calls)
            except RuntimeError:
                return  # the loop has ended, and the call with it

    def _started(self) -> asyncio.AbstractEventLoop:
        if self.forked:
            raise IllegalStateError(_FORKED)
        if self._closed:
            raise ClosedError("the client is closed")
        if not self._running:
            with self._lock:
                self._start()
        assert self._loop is not None
        return self._loop

    def _start(self) -> None:
        """Step by step, as each may be the last that an interrupt lets be done."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
        if self._thread is None:
            self._thread = threading.Thread(target=_serve, args=(self._loop, self._calls), name=self._name, daemon=True)
        if self._thread.ident is None:
            self._thread.start()
        self._running = True

    def _after_fork(self) -> None:
        if self._loop is not None:
            self.forked = True
        self._lock = threading.RLock()


async def in_caller(function: Callable[..., Any], *arguments: Any) -> None:
    """Have a function run in the thread that waits for the running task, and wait for it in turn."""
    answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    mailbox = _mailbox.get()
    mailbox.user_calls.append((function, arguments, answer))
    mailbox.words.put(None)
    await answer


def _wait(call: Call[Any], loop: asyncio.AbstractEventLoop, timeout_s: float | None) -> None:
    """Wait in the caller's thread until a call is over. Raises Empty when nothing is heard of it for `timeout_s`."""
    mailbox = call.mailbox
    while not call.over:
        if mailbox.user_calls:
            _run_user_call(mailbox.user_calls.popleft(), loop)
        else:
            mailbox.words.get(timeout=timeout_s)


def _run_user_call(call: _UserCall, loop: asyncio.AbstractEventLoop) -> None:
    function, arguments, answer = call
    error: Exception | None = None
    try:
        result = function(*arguments)
        if asyncio.iscoroutine(result):
            result.close()
            raise IllegalStateError("callbacks of a blocking client are plain functions, not coroutines")
    except Exception as raised:
        error = raised
    try:
        loop.call_soon_threadsafe(_settle, answer, error)
    except RuntimeError:
        return  # the client was closed by the user's function; so is the call over


def _settle(answer: asyncio.Future[None], error: Exception | None) -> None:
    if answer.done():
        return
    if error is not None:
        answer.set_exception(error)
    else:
        answer.set_result(None)


def _call_soon(loop: asyncio.AbstractEventLoop, function: Callable[..., object], *arguments: Any) -> None:
    try:
        loop.call_soon_threadsafe(function, *arguments)
    except RuntimeError:
        if not loop.is_closed():
            raise
        raise ClosedError("the client is closed") from None


def _serve(loop: asyncio.AbstractEventLoop, calls: set[Call[Any]]) -> None:
    """What the thread does. It knows nothing of its LoopThread, so that a client that nobody has any more can go."""
    if loop.is_running():
        return  # an interrupt had the thread started twice
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        while tasks := asyncio.all_tasks(loop):  # a call that came with the end may begin a task now
            for task in tasks:
                task.cancel()
            loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()
        # A call that came before the loop was closed is in `calls`; one that comes now finds the loop closed.
        for call in list(calls):
            call.end(calls)


_all: weakref.WeakSet[LoopThread] = weakref.WeakSet()


def _after_fork() -> None:
    for thread in list(_all):
        thread._after_fork()


os.register_at_fork(after_in_child=_after_fork)
