"""A coordinator's shards on the event loop: its turns, in each of which all records are written together, and the timer
for its deadlines."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from muster.broker.clock import SteadyClock
from muster.coordinator.shards.shards import Shards

LOAD_BEFORE_START_S = 1.0
"""How long the start waits for shards to load."""


class ShardsOnLoop:
    """Runs the shards that a subclass sets on the running loop. `on_written` is called after records
    were appended."""

    def __init__(self, clock: SteadyClock, on_written: Callable[[], None]) -> None:
        self._shards: Shards[Any]
        self._loop = asyncio.get_running_loop()
        self._clock = clock
        self._on_written = on_written
        self._deadline: asyncio.TimerHandle | None = None
        self._deadline_at: int | None = None
        self._arming = False
        self._flush_due = False

    def _load_at_once(self) -> None:
        """At the start: what loads quickly is loaded before the first request, the rest between requests."""
        until = time.monotonic() + LOAD_BEFORE_START_S
        while self._shards.is_loading and time.monotonic() < until:
            self._shards.load_a_piece()
        self._arm_deadline()

    def _stop(self) -> None:
        """Stop the deadlines; write the pending records."""
        if self._deadline is not None:
            self._deadline.cancel()
        self._flush()

    def _load_later(self, load: Callable[[], None]) -> None:
        """Read a piece of the store in the next turn of the loop, so that requests are served in between."""
        self._loop.call_soon(load)

    def _schedule_flush(self) -> None:
        """The coordinator has records: write all those of this turn of the loop together."""
        if not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_due = False
        self._shards.flush()
        self._on_written()

    def _arm_deadline(self) -> None:
        """Set the timer for the earliest deadline."""
        due = self._shards.next_deadline()
        if due == self._deadline_at:
            return
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        self._deadline_at = due
        if due is not None:
            self._deadline = self._loop.call_later(max(due - self._clock(), 0) / 1000 + 0.001, self._on_deadline)

    def _deadline_moved(self) -> None:
        """There is an earlier deadline: set the timer once in this turn of the loop, after all its reads."""
        if not self._arming:
            self._arming = True
            self._loop.call_soon(self._arm_moved)

    def _arm_moved(self) -> None:
        self._arming = False
        self._arm_deadline()

    def skip(self, ms: int) -> None:
        """Let that much time pass at once for all shards, and do what is due then: for tests."""
        self._clock.skip(ms)
        if self._deadline is not None:
            self._deadline.cancel()
        self._on_deadline()

    def _on_deadline(self) -> None:
        self._deadline = self._deadline_at = None
        self._shards.on_deadlines(self._clock())
        self._arm_deadline()
