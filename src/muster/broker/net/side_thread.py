"""A thread for work that would block the event loop: it examines costly batches, one by one.

A request's work is a generator that yields after each batch. Batches are taken from the topics in rotation, and within
a topic from its requests in rotation: so a request waits for at most one batch of each other topic, however many
clients write to those topics. A connection has at most one request here, because it waits for the answer. When a
connection has ended, its work is dropped, because abandoned work would pile up. The exception is a request that expects
no answer (acks=0): up to MAX_ORPHANED of those are finished.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from muster.broker.net.calls import Call

log = logging.getLogger("muster.broker")

MAX_ORPHANED = 100

Pieces = Generator[None, None, None]


class SideThreadJob:
    """A request's work: `done` is called in the loop when all of it is done."""

    __slots__ = ("call", "done", "dropped", "orphaned", "pieces", "topic", "unanswered")

    def __init__(self, call: Call, topic: str, pieces: Pieces, done: Callable[[], None], unanswered: bool) -> None:
        self.call = call
        self.topic = topic
        self.pieces = pieces
        self.done = done
        self.unanswered = unanswered
        self.orphaned = self.dropped = False
        """`orphaned`: the connection has ended, and the work continues. `dropped`: the work does not continue."""

    def advance(self) -> bool:
        """Do one piece. Returns whether it was the last."""
        try:
            next(self.pieces)
        except StopIteration:
            return True
        return False


class SideThread:
    """One thread next to the loop. It starts when it is first needed."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "muster-side")
        self._waiting: dict[str, dict[SideThreadJob, None]] = {}
        """By topic; the first job of the first topic runs next."""
        self._running: SideThreadJob | None = None
        self._orphaned = 0
        self._stopped = False

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values())) + (self._running is not None)

    def run(
        self, call: Call, topic: str, pieces: Pieces, done: Callable[[], None], *, unanswered: bool = False
    ) -> None:
        """Do the work of a request, which stays parked, and then call `done` in the loop. An exception in the work is
        logged. `topic`: the first that the request names. `unanswered`: the client expects no answer."""
        job = SideThreadJob(call, topic, pieces, done, unanswered)
        call.on_cancel = partial(self._connection_ended, job)
        self._enqueue(job)
        self._run_next()

    def stop(self) -> None:
        """Stop after the current piece; the rest is dropped, and no callback is called."""
        self._stopped = True
        self._waiting.clear()
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _enqueue(self, job: SideThreadJob) -> None:
        self._waiting.setdefault(job.topic, {})[job] = None

    def _dequeue(self, job: SideThreadJob) -> None:
        jobs = self._waiting.get(job.topic, {})
        jobs.pop(job, None)
        if not jobs:
            self._waiting.pop(job.topic, None)

    def _run_next(self) -> None:
        if self._running is None and self._waiting and not self._stopped:
            topic, jobs = next(iter(self._waiting.items()))
            job = self._running = next(iter(jobs))
            self._waiting[topic] = self._waiting.pop(topic)  # the other topics come first now
            self._dequeue(job)
            future = asyncio.get_running_loop().run_in_executor(self._thread, job.advance)
            future.add_done_callback(partial(self._advanced, job))

    def _advanced(self, job: SideThreadJob, future: asyncio.Future[bool]) -> None:
        self._running = None
        if self._stopped or future.cancelled():
            return
        error = future.exception()
        if error is not None:
            log.error("work in the side thread failed", exc_info=error)
        if error is not None or future.result():
            self._over(job)
            job.done()
        elif not job.dropped:
            self._enqueue(job)
        self._run_next()

    def _connection_ended(self, job: SideThreadJob) -> None:
        if job.unanswered and self._orphaned < MAX_ORPHANED:
            job.orphaned = job.call.keeps_frame = True
            self._orphaned += 1
        else:
            job.dropped = True
            self._dequeue(job)

    def _over(self, job: SideThreadJob) -> None:
        job.call.on_cancel = None
        if job.orphaned:
            self._orphaned -= 1
            job.call.give_frame_back()


def one_by_one(works: Iterable[Callable[[], None]]) -> Pieces:
    """One piece for each of `works`."""
    for work in works:
        work()
        yield
