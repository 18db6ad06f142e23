"""A coordinator on the event loop: its slots, the timer for its deadlines, and its turns, each of which writes all
records together."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from muster.broker.clock import SteadyClock
from muster.broker.groups.coordination import Coordination
from muster.broker.topics.catalogue import Topic
from muster.clock import wall_clock_ms
from muster.coordinator.shards.shards import ShardHost, Shards
from muster.model import Node

LOAD_BEFORE_START_S = 1.0
"""How long the start waits for shards to load."""


class ShardsOnLoop:
    """Runs a subclass's shards on the running loop, in the slots that `coordination` gives this broker. `on_written` is
    called after records were appended."""

    def __init__(self, clock: SteadyClock, coordination: Coordination, on_written: Callable[[], None]) -> None:
        self.serving = False
        """Whether the coordinator serves: what it needs, such as its topic, exists."""
        self._shards: Shards[Any]
        self._coordination = coordination
        self._loop = asyncio.get_running_loop()
        self._clock = clock
        self._on_written = on_written
        self._deadline: asyncio.TimerHandle | None = None
        self._deadline_at: int | None = None
        self._arming = False
        self._flush_due = False

    def _host(self, on_event: Callable[[Any], None]) -> ShardHost:
        """What the shards need."""
        return ShardHost(
            self._clock, on_event, self._schedule_flush, self._deadline_moved, self._load_later, wall_clock_ms
        )

    def start(self) -> None:
        """Serve the slots of this broker. Shards that load quickly are loaded before the first request, the rest
        between requests."""
        self._coordination.start(self)
        until = time.monotonic() + LOAD_BEFORE_START_S
        while self._shards.is_loading and time.monotonic() < until:
            self._shards.load_next_piece()
        self._arm_deadline()

    def stop(self) -> None:
        """Stop the deadlines; write the pending records."""
        self._coordination.stop()
        if self._deadline is not None:
            self._deadline.cancel()
        self._flush()

    def ensure(self) -> bool:
        """Create what the coordinator needs, before the first request. Returns whether it exists; without it the
        coordinator refuses all requests."""
        return self._coordination.ensure()

    def coordinator(self, name: str) -> Node | None:
        """The broker that coordinates a group or a transactional id, None while none does."""
        return self._coordination.coordinator(name)

    # ------------------------------------------------------------------------------------- slots (coordination.Slots)

    def serve(self, slots: int) -> None:
        """See `Slots.serve`."""
        self._shards.slot_count = slots
        self._shards.take_none()
        self.serving = True

    def serve_all(self, slots: int, written: list[int], epoch: int) -> None:
        """See `Slots.serve_all`."""
        self._shards.slot_count = slots
        self._shards.load_all(written, epoch)
        self.serving = True

    def lead(self, slot: int, epoch: int) -> None:
        """See `Slots.lead`."""
        self._shards.load(slot, epoch)

    def resign(self, slot: int, epoch: int | None = None) -> None:
        """See `Slots.resign`."""
        self._shards.unload(slot, epoch)

    def is_rebalancing(self, slot: int) -> bool:
        """See `Slots.is_rebalancing`: by default, no state would be lost."""
        return False

    def release_durable(self) -> None:
        """See `Slots.release_durable`."""
        self._shards.release_durable()
        self._deadline_moved()

    def leave(self) -> None:
        """See `Slots.leave`; waiting requests are answered with NOT_COORDINATOR."""
        self.serving = False
        self._shards.unload_all()

    def topic_created(self, topic: Topic) -> None:
        """A standalone broker has created a topic."""
        self._coordination.topic_created(topic)

    def topic_deleted(self, name: str) -> None:
        """A topic is being deleted; its logs still exist."""
        self._coordination.topic_deleted(name)

    # ------------------------------------------------------------------------------------- turns of the loop

    def _load_later(self, load: Callable[[], None]) -> None:
        """Read a piece of the store in the next turn of the loop, so that requests are served in between."""
        self._loop.call_soon(load)

    def _schedule_flush(self) -> None:
        """The coordinator has records: write all records of this turn of the loop together."""
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
        """Skip that much time for all shards, and do what is due then: for tests."""
        self._clock.skip(ms)
        if self._deadline is not None:
            self._deadline.cancel()
        self._on_deadline()

    def _on_deadline(self) -> None:
        self._deadline = self._deadline_at = None
        self._shards.on_deadlines(self._clock())
        self._arm_deadline()
