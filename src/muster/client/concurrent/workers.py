"""Workers that handle records: asyncio tasks, threads, or threads with a process each (`processes.py`).

An engine starts a job with `start`, and `on_end` is called in its event loop when the job has ended. Each job ends
once, and never inside `start`.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from queue import SimpleQueue
from types import CoroutineType
from typing import Any, Protocol

from muster.client.concurrent.outcomes import (
    Outcome,
    UnreadableRecordError,
    WorkerStartError,
    check_returned,
)
from muster.client.core.concurrent.rules import HandlerFailure
from muster.client.core.concurrent.work import Job
from muster.client.serde import Deserializers
from muster.errors import ConfigError, RecordDeserializationError
from muster.model import ConsumerRecord

log = logging.getLogger("muster.client.concurrent")

Handler = Callable[[ConsumerRecord], Any]
OnEnd = Callable[[Job, Outcome], None]

_CLOSE_S = 5.0
"""How long shutdown waits for threads whose handlers were abandoned."""


def with_deserializers(handler: Handler, deserializers: Deserializers) -> Handler:
    """The handler, called with the deserialized record. Waiting records are still bytes: they are deserialized right
    before the handler is called.
    """
    if not deserializers:
        return handler

    def handle(record: ConsumerRecord) -> Any:
        try:
            record = deserializers.read(record)
        except RecordDeserializationError as error:
            raise UnreadableRecordError(error) from error
        return handler(record)

    return handle


class Workers(Protocol):
    """What an engine needs from workers."""

    def start(self, job: Job) -> None:
        """Start a job."""

    def cancel(self, jobs: Iterable[Job]) -> None:
        """End these jobs as soon as possible."""

    def close(self) -> None:
        """No more jobs will come."""


class TaskWorkers:
    """A task in the running event loop for each job."""

    def __init__(self, handler: Handler, on_end: OnEnd) -> None:
        self._handler = handler
        self._on_end = on_end
        self._jobs: dict[asyncio.Task[Any], Job] = {}

    def start(self, job: Job) -> None:
        loop = asyncio.get_running_loop()
        try:
            work = self._handler(job.record)
        except BaseException as error:
            loop.call_soon(self._on_end, job, error)
            return
        if type(work) is not CoroutineType:
            if not inspect.isawaitable(work):
                text = "AsyncConcurrentConsumer takes an async function as handler; ConcurrentConsumer takes others"
                loop.call_soon(self._on_end, job, ConfigError(text))
                return
            work = _awaited(work)
        task = loop.create_task(work, name="muster-handler")
        self._jobs[task] = job
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        job = self._jobs.pop(task)
        self._on_end(job, asyncio.CancelledError() if task.cancelled() else task.exception() or _returned(task))

    def cancel(self, jobs: Iterable[Job]) -> None:
        gone = set(jobs)
        for task, job in self._jobs.items():
            if job in gone:
                task.cancel()

    def close(self) -> None:
        if self._jobs:
            log.warning("%d handlers are still running although they were cancelled", len(self._jobs))


async def _awaited(work: Any) -> Any:
    return await work


def _returned(task: asyncio.Task[Any]) -> ConfigError | None:
    result = task.result()
    if result is not None:
        try:
            check_returned(result)
        except ConfigError as error:
            return error
    return None


class HandlerCall(Protocol):
    """How one thread handles a record."""

    def __call__(self, record: ConsumerRecord) -> HandlerFailure | None:
        """Handle a record. Raises, or returns a failure, if that failed."""

    def kill(self, record: ConsumerRecord) -> None:
        """End the handling of this record if that is possible and still needed. Called from another thread."""

    def close(self) -> None:
        """No more jobs will come."""


class ThreadWorkers:
    """Threads that take jobs from a queue. They are daemons: a handler that never ends does not keep the program
    alive."""

    def __init__(self, size: int, make_call: Callable[[], HandlerCall], on_end: OnEnd) -> None:
        self._size = size
        self._make_call = make_call
        self._on_end = on_end
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._under_way = 0
        self._threads: list[threading.Thread] = []
        self._start_error: RuntimeError | None = None
        """Why no further thread could be started."""
        self._running: dict[Job, HandlerCall] = {}
        self._unwanted: set[Job] = set()
        """Jobs that were cancelled and may not have started yet."""
        self._ended: deque[tuple[Job, Outcome]] = deque()
        self._collect_scheduled = False
        """Whether the event loop is about to collect ended jobs."""

    def start(self, job: Job) -> None:
        self._under_way += 1
        loop = asyncio.get_running_loop()
        if len(self._threads) < min(self._under_way, self._size):
            self._start_thread(loop)
        if self._threads:
            self._jobs.put(job)
        else:
            self._under_way -= 1
            loop.call_soon(self._on_end, job, WorkerStartError(f"no thread could be started: {self._start_error}"))

    def _start_thread(self, loop: asyncio.AbstractEventLoop) -> None:
        name = f"muster-handler-{len(self._threads) + 1}"
        thread = threading.Thread(target=self._work, args=(loop,), name=name, daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # the system allows no more threads
            self._size, self._start_error = len(self._threads), error
            log.warning("only %d handlers run at a time: %s", self._size, error)
        else:
            self._threads.append(thread)

    def _work(self, loop: asyncio.AbstractEventLoop) -> None:
        call = self._make_call()
        while (job := self._jobs.get()) is not None:
            outcome: Outcome
            self._running[job] = call  # before the check; `cancel` checks `_running` last, so that one of them notices
            try:
                outcome = asyncio.CancelledError() if job in self._unwanted else call(job.record)
            except BaseException as error:
                outcome = error
            del self._running[job]
            self._ended.append((job, outcome))
            del job, outcome
            if not self._collect_scheduled:
                self._collect_scheduled = True
                with suppress(RuntimeError):  # the loop is closed, the run has ended
                    loop.call_soon_threadsafe(self._collect)
        call.close()

    def _collect(self) -> None:
        self._collect_scheduled = False  # before the loop: whatever is appended from now on is reported again
        while self._ended:
            job, outcome = self._ended.popleft()
            self._under_way -= 1
            self._unwanted.discard(job)
            self._on_end(job, outcome)

    def cancel(self, jobs: Iterable[Job]) -> None:
        for job in jobs:
            self._unwanted.add(job)
            call = self._running.get(job)
            if call is not None:
                call.kill(job.record)

    def close(self) -> None:
        for _ in self._threads:
            self._jobs.put(None)
        deadline = time.monotonic() + _CLOSE_S
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        left = sum(thread.is_alive() for thread in self._threads)
        if left:
            log.warning("%d handlers are still running in their threads, and are left to finish", left)


class DirectCall:
    """Handles records in the thread itself."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler

    def __call__(self, record: ConsumerRecord) -> None:
        result = self._handler(record)
        if result is not None:
            check_returned(result)

    def kill(self, record: ConsumerRecord) -> None:
        """A thread cannot be stopped from outside."""

    def close(self) -> None:
        """There is nothing to close."""
