"""When records are on disk: one thread syncs the logs; the loop then answers the requests that wait for the sync.

With `--fsync always` a sync begins as soon as a request waits for it; all appends that arrive while it runs share the
next sync (group commit). With `interval` there is a sync every second, and no request waits for it; with `never`
nothing is synced.

Retention and compaction have a thread of their own, so that no sync waits for them. It works in short turns and rests
for as long as it worked, because Python runs one thread at a time, and the loop has to answer requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, Protocol

from muster.clock import wall_clock_ms
from muster.log import CompactionStopped, FlushResult, FsyncPolicy, LogStore, PartitionLog

log = logging.getLogger("muster.broker")

INTERVAL_S = 1.0
RETRY_S = 0.1
"""Seconds after which a sync that found no file descriptor is tried again."""

CLEANING_MS = 15_000
"""How often to check logs for compaction."""
LEAST_S = 0.001

WORK_S = REST_S = 0.005


class Waiting(Protocol):
    """Waits until a record is durable, or never will be."""

    @property
    def over(self) -> bool:
        """Whether the record is durable, or never will be."""


class AppendWait(NamedTuple):
    """An append that must be durable before it is acknowledged."""

    log: PartitionLog
    end: int

    @property
    def over(self) -> bool:
        """Whether the records are durable, or never will be."""
        return self.log.high_watermark >= self.end or self.log.failed is not None or self.log.closed


class Durability:
    """Syncs the store's logs. `on_flushed` is called in the loop after each sync; `on_failed` with the reason when a
    sync has failed: records written since the last successful sync may be lost."""

    def __init__(
        self,
        store: LogStore,
        policy: FsyncPolicy,
        on_flushed: Callable[[], None],
        on_failed: Callable[[str], None] = lambda reason: None,
    ) -> None:
        self._store = store
        self._policy = policy
        self._on_flushed = on_flushed
        self._on_failed = on_failed
        self._waiting: list[tuple[Sequence[Waiting], Callable[[], None]]] = []
        self._wanted = asyncio.Event()
        self._advanced: set[PartitionLog] = set()
        """The logs that were synced since new ones were last noted."""
        self._noting = asyncio.Event()
        self._disk_thread = ThreadPoolExecutor(1, "muster-disk")
        self._keeper = ThreadPoolExecutor(1, "muster-keeper")
        self._stopping = threading.Event()
        self._rested_at = 0.0
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, housekeeping_ms: int, cleaning_ms: Callable[[], int] = lambda: CLEANING_MS) -> None:
        """Start. Housekeeping runs every `housekeeping_ms`, compaction every `cleaning_ms()`, which may change."""
        loop = asyncio.get_running_loop()
        if self._policy is not FsyncPolicy.NEVER:
            self._tasks.append(loop.create_task(self._sync()))
            self._tasks.append(loop.create_task(self._note_new()))
        self._tasks.append(loop.create_task(self._keep("retention", self._store.housekeeping, lambda: housekeeping_ms)))
        self._tasks.append(loop.create_task(self._keep("compaction", self._store.clean, cleaning_ms)))

    async def stop(self) -> None:
        """Stop. A running sync is waited for, a running compaction is cancelled."""
        self._stopping.set()
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._keeper, lambda: None)
        await loop.run_in_executor(self._disk_thread, self._store.flush)
        self._keeper.shutdown()
        self._disk_thread.shutdown()
        self._settle()

    def wait(self, what: Sequence[Waiting], done: Callable[[], None]) -> None:
        """Call `done` when every wait in `what` has ended."""
        self._waiting.append((what, done))
        self._wanted.set()

    def want(self) -> None:
        """Request a sync, if the policy makes requests wait for syncs."""
        self._wanted.set()

    async def _sync(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            if self._policy is FsyncPolicy.ALWAYS:
                await self._wanted.wait()
                self._wanted.clear()
            else:
                await asyncio.sleep(INTERVAL_S)
            flushed = FlushResult()
            try:
                flushed = await loop.run_in_executor(self._disk_thread, self._store.flush)
            except Exception:
                log.exception("the logs could not be synced")
            else:
                self._report_failures(flushed, loop)
            self._settle()
            self._call_back(self._on_flushed)
            if flushed.advanced:
                self._advanced.update(flushed.advanced)
                self._noting.set()

    async def _note_new(self) -> None:
        """Add new logs to the checkpoints soon after their first sync, those of several syncs together, because the
        checkpoint of all logs is written each time."""
        loop = asyncio.get_running_loop()
        while True:
            await self._noting.wait()
            self._noting.clear()
            advanced, self._advanced = self._advanced, set()
            try:
                await loop.run_in_executor(self._disk_thread, self._store.checkpoint_new, advanced)
            except OSError:
                pass  # the disk is full: housekeeping reports it
            except Exception:
                log.exception("new logs could not be added to the checkpoints")
            await asyncio.sleep(INTERVAL_S)

    def _report_failures(self, flushed: FlushResult, loop: asyncio.AbstractEventLoop) -> None:
        for one in flushed.failed:
            reason = str(one.failed)
            self._call_back(lambda reason=reason: self._on_failed(reason))  # type: ignore[misc]
        if self._store.dirty():
            loop.call_later(RETRY_S, self._wanted.set)

    def _settle(self) -> None:
        waiting, self._waiting = self._waiting, []
        for what, done in waiting:
            if all(one.over for one in what):
                self._call_back(done)
            else:
                self._waiting.append((what, done))

    def _call_back(self, done: Callable[[], None]) -> None:
        """Call `done`. If it raises, that is logged: other waits must still be notified."""
        try:
            done()
        except Exception:
            log.exception("a request that waited for a sync could not be answered")

    async def _keep(
        self, what: str, work: Callable[[int, Callable[[], None]], None], every_ms: Callable[[], int]
    ) -> None:
        loop = asyncio.get_running_loop()
        while True:
            every_s = max(every_ms() / 1000, LEAST_S)
            await asyncio.sleep(every_s)
            try:
                await loop.run_in_executor(self._keeper, work, wall_clock_ms(), self._breathe)
            except CompactionStopped:
                return
            except OSError as error:
                log.error("%s failed: %s; trying again in %.0f s", what, error, every_s)
            except Exception:
                log.exception("%s failed; trying again in %.0f s", what, every_s)

    def _breathe(self) -> None:
        """Pause for a moment; long work calls it between small pieces."""
        if self._stopping.is_set():
            raise CompactionStopped
        if time.monotonic() - self._rested_at > WORK_S:
            time.sleep(REST_S)
            self._rested_at = time.monotonic()
