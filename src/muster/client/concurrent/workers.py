"""What handles records: asyncio tasks, threads, or threads that each have a process.

An engine starts a job with `start`, and is told by `on_end`, in its event loop, when it has ended. Each job ends once,
and never within `start`.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import multiprocessing
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from functools import partial
from multiprocessing import connection
from queue import SimpleQueue
from types import CoroutineType
from typing import Any, Protocol

from muster.client.concurrent.outcomes import (
    Outcome,
    UnreadableRecordError,
    WorkerDiedError,
    WorkerStartError,
    check_returned,
    failure_of,
)
from muster.client.core.concurrent.rules import Failure
from muster.client.core.concurrent.work import Job
from muster.client.serde import Deserializers, GivenDeserializer
from muster.errors import ConfigError, RecordDeserializationError
from muster.model import ConsumerRecord

log = logging.getLogger("muster.client.concurrent")

Handler = Callable[[ConsumerRecord], Any]
OnEnd = Callable[[Job, Outcome], None]

_CLOSE_S = 5.0
"""How long the end waits for threads whose handlers were abandoned."""


def reading(handler: Handler, deserializers: Deserializers) -> Handler:
    """The handler, given what the deserializers make of a record. What waits is bytes: they are called at the last."""
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
    """What an engine needs of them."""

    def start(self, job: Job) -> None:
        """Have a job handled."""

    def cancel(self, jobs: Iterable[Job]) -> None:
        """Have these end as soon as they can."""

    def close(self) -> None:
        """Nothing more comes."""


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
                text = "the handler of an AsyncConcurrentConsumer is an async function; ConcurrentConsumer takes others"
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
            log.warning("%d handlers do not end though they were cancelled", len(self._jobs))


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


class Call(Protocol):
    """How one thread handles a record."""

    def __call__(self, record: ConsumerRecord) -> Failure | None:
        """Handle it. Raises, or returns a failure, if that was in vain."""

    def kill(self) -> None:
        """End the handling that is under way, if that is possible. Called from another thread."""

    def close(self) -> None:
        """Nothing more comes."""


class ThreadWorkers:
    """Threads that take jobs from a queue. They are daemons: one whose handler never ends does not keep the program."""

    def __init__(self, size: int, make_call: Callable[[], Call], on_end: OnEnd) -> None:
        self._size = size
        self._make_call = make_call
        self._on_end = on_end
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._under_way = 0
        self._threads: list[threading.Thread] = []
        self._running: dict[Job, Call] = {}
        self._ended: deque[tuple[Job, Outcome]] = deque()
        self._told = False
        """Whether the event loop is about to look at what has ended."""

    def start(self, job: Job) -> None:
        self._under_way += 1
        if len(self._threads) < min(self._under_way, self._size):
            name = f"muster-handler-{len(self._threads) + 1}"
            thread = threading.Thread(target=self._work, args=(asyncio.get_running_loop(),), name=name, daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # the system has no more
                self._size = len(self._threads)
                log.warning("no more than %d handlers at a time: %s", self._size, error)
                if not self._threads:
                    loop = asyncio.get_running_loop()
                    loop.call_soon(self._on_end, job, WorkerStartError(f"no thread could be started: {error}"))
                    return
            else:
                self._threads.append(thread)
        self._jobs.put(job)

    def _work(self, loop: asyncio.AbstractEventLoop) -> None:
        call = self._make_call()
        while (job := self._jobs.get()) is not None:
            outcome: Outcome
            self._running[job] = call
            try:
                outcome = call(job.record)
            except BaseException as error:
                outcome = error
            del self._running[job]
            self._ended.append((job, outcome))
            del job, outcome
            if not self._told:
                self._told = True
                with suppress(RuntimeError):  # the loop is closed, the run is over
                    loop.call_soon_threadsafe(self._collect)
        call.close()

    def _collect(self) -> None:
        self._told = False  # before looking: what is appended from now on is told anew
        while self._ended:
            job, outcome = self._ended.popleft()
            self._under_way -= 1
            self._on_end(job, outcome)

    def cancel(self, jobs: Iterable[Job]) -> None:
        for job in jobs:
            call = self._running.get(job)
            if call is not None:
                call.kill()

    def close(self) -> None:
        for _ in self._threads:
            self._jobs.put(None)
        deadline = time.monotonic() + _CLOSE_S
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        left = sum(thread.is_alive() for thread in self._threads)
        if left:
            log.warning("%d handlers are still at work in their threads, and are left alone", left)


class DirectCall:
    """Handles records in the thread itself."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler

    def __call__(self, record: ConsumerRecord) -> None:
        result = self._handler(record)
        if result is not None:
            check_returned(result)

    def kill(self) -> None:
        """A thread cannot be ended from outside."""

    def close(self) -> None:
        """There is nothing to close."""


class ProcessCall:
    """Handles records in a process of its own, one at a time: so a process that dies tells which record killed it.

    The process is started anew when it has died. It is spawned, not forked: the parent has threads and connections.
    Deserializers are sent once, when it starts, so that they may keep what they have learned.
    """

    def __init__(self, handler: Handler, *deserializers: GivenDeserializer | None) -> None:
        self._handler = handler
        self._deserializers = deserializers
        self._pool: ProcessPoolExecutor | None = None

    def __call__(self, record: ConsumerRecord) -> Failure | None:
        pool = self._started()
        try:
            return pool.submit(_handle, self._handler, record).result()
        except BrokenProcessPool:
            self._pool = None
            pool.shutdown(wait=False)
            raise WorkerDiedError("the process that handled the record has died") from None

    def _started(self) -> ProcessPoolExecutor:
        if self._pool is None:
            spawn = multiprocessing.get_context("spawn")
            pool = ProcessPoolExecutor(1, mp_context=spawn, initializer=partial(_begin_process, *self._deserializers))
            try:
                pool.submit(os.getpid).result()
            except (BrokenProcessPool, OSError, RuntimeError) as error:
                pool.shutdown(wait=False)
                raise WorkerStartError(
                    "a worker process ended while it started. It imports the main module once more: what is to happen "
                    'in the first process alone belongs behind `if __name__ == "__main__":`'
                ) from error
            self._pool = pool
        return self._pool

    def kill(self) -> None:
        pool = self._pool
        # Python 3.14 has a method for it; before, the pool's own list of its processes is the only way.
        for process in list((getattr(pool, "_processes", None) or {}).values()):
            process.kill()

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()


_deserializers = Deserializers(None, None)
"""In the process: its own."""


def _handle(handler: Handler, record: ConsumerRecord) -> Failure | None:
    """In the process: a failure comes back as words, because not every exception can be pickled, or unpickled."""
    try:
        result = reading(handler, _deserializers)(record)
    except Exception as error:
        return failure_of(error)
    if result is not None:
        check_returned(result)
    return None


def _begin_process(key: GivenDeserializer | None = None, value: GivenDeserializer | None = None) -> None:
    """In the process: the parent decides about Ctrl-C, and without it there is nothing to do."""
    global _deserializers
    _deserializers = Deserializers(key, value)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()


def _end_with(sentinel: int) -> None:
    connection.wait([sentinel])
    os._exit(1)
