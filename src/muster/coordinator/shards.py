"""The shards of a coordinator, each over a partition of its log: loaded, asked to decide, written, released, dropped.

What coordinates groups (runtime.py) knows requests; this knows how what a shard decides becomes durable before anybody
hears of it. Another coordinator that keeps its state in a log, such as that of transactions, has the same life.

This and runtime.py are the files of this package that touch the world: a log, a clock, callbacks. They wait for nothing
and start nothing. They are used from one thread, and no method awaits, so there are no locks; each request is handled
to the end of what the rules decide before the next.

The life of a request
=====================

The service finds the shard and has it decide (`_settle`); the records go into the shard's open batch. The answers are
parked until the log says that everything decided so far is durable - also those that wrote nothing, for they may tell
of records that others wrote and a crash could still take back. `flush` (called once, at the end of a turn of the event
loop) writes each shard's batch, so that all commits of one turn share one write: group commit. `release_durable` lets
the answers go whose records lie before the high watermark, in order; by the default fsync policy within `flush`.

The state runs ahead of the log by at most one turn. That is safe because nobody hears of it before the log has it: if
an append fails, every parked answer becomes an error, the shard is thrown away with all who wait in it, and is read
again from the log. Nothing is ever undone piece by piece. A rule that raises, which none should, is met like that too.

The life of a shard
===================

A slot of the topic is empty until it is first needed. Its log is then read, some hundred records at a time so that
others are served in between (`later`); meanwhile who asks is told COORDINATOR_LOAD_IN_PROGRESS. When its log fails
the slot is away for a while, who asks is told NOT_COORDINATOR, and then it is read again.

"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic

from muster.coordinator.effects import Effects, GroupEvent, Reply
from muster.coordinator.group import NEVER
from muster.coordinator.home import Answer, GroupLog, Home, S
from muster.coordinator.loading import Loading
from muster.coordinator.wall_time import shift_between
from muster.errors import ErrorCode, KafkaError, MusterError
from muster.protocol.record_batch import BatchBuilder

log = logging.getLogger("muster.groups")

MAX_BATCH_BYTES = 1024 * 1024
"""A batch that has grown so large is written before the turn ends."""

LOAD_RECORDS = 256
"""How many records are read at a time: a few milliseconds' worth."""

RELOAD_AFTER_MS = 1_000
"""How long a shard whose log failed stays away before it is read again."""


class Shards(Generic[S]):
    """The shards of one topic that this broker coordinates.

    Args:
        topic: the topic's name, for lines of the log; `partitions` tells how many it has.
        new_shard: an empty shard.
        open_log: gives the log of a partition, an empty one if it was never written.
        clock: milliseconds since the epoch by a clock that does not jump. Sessions are measured by it.
        on_event: told of what happens, for the broker's log and for whoever watches.
        schedule_flush: called when there is something to flush, at most once until `flush` is called. Without it
            every request flushes by itself.
        on_deadline_moved: called when a deadline has come nearer than `next_deadline` last told.
        later: calls a function in one of the next turns of the event loop. Without it logs are read in one go.
        wall_clock: the time of day, for what records tell; `clock`, if it is not given.
    """

    def __init__(
        self,
        topic: str,
        partitions: Callable[[], int],
        new_shard: Callable[[], S],
        open_log: Callable[[int], GroupLog],
        *,
        clock: Callable[[], int],
        on_event: Callable[[GroupEvent], None],
        schedule_flush: Callable[[], None] | None = None,
        on_deadline_moved: Callable[[], None] | None = None,
        later: Callable[[Callable[[], None]], None] | None = None,
        wall_clock: Callable[[], int] | None = None,
    ) -> None:
        self._topic = topic
        self._partitions = partitions
        self._new_shard = new_shard
        self._open_log = open_log
        self._clock = clock
        self._wall_clock = wall_clock or clock
        self._on_event = on_event
        self._schedule_flush = schedule_flush
        self._on_deadline_moved = on_deadline_moved
        self._told_deadline = 0
        self._later = later
        self._homes: dict[int, Home[S]] = {}
        self._loading: dict[int, Loading[S]] = {}
        self._away: dict[int, int] = {}  # partitions whose log failed, and when to read them again
        self._dirty: set[Home[S]] = set()
        self._flush_is_due = False
        self._load_is_due = False
        self._state_error: ErrorCode = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS

    # ----------------------------------------------------------------------------------------------- loading, closing

    def load_all(self, partitions: Iterable[int] | None = None) -> None:
        """Begin to read the logs that exist (`partitions`; all, if not given), and to serve.

        The others are opened when a group first needs them. Until this was called every request is answered
        COORDINATOR_LOAD_IN_PROGRESS. Sessions of the members found begin when their log is read.
        """
        wanted = range(self._partitions()) if partitions is None else partitions
        self._state_error = ErrorCode.NONE
        for partition in wanted:
            self._begin_to_load(partition)
        self.flush()

    @property
    def is_loading(self) -> bool:
        """Whether there are logs still to be read."""
        return bool(self._loading)

    def _begin_to_load(self, partition: int) -> None:
        """Read a log, a piece at a time if there is a later. One that is there, or being read, is left alone."""
        if partition in self._homes or partition in self._loading:
            return
        try:
            found = self._open_log(partition)
            if found.high_watermark < found.log_end_offset:
                # The shard was dropped between an append and its sync. What is read now would lack records that a
                # crash would bring back.
                raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the end of the log is not durable")
        except (MusterError, OSError) as error:
            self._could_not_load(partition, error)
            return
        self._away.pop(partition, None)
        shift = shift_between(self._clock(), self._wall_clock())
        self._loading[partition] = Loading(partition, found, self._new_shard(), shift)
        if self._later is None or found.log_start_offset == found.log_end_offset:
            while partition in self._loading:
                self._load_some(self._loading[partition])
        else:
            self._load_soon()

    def _load_soon(self) -> None:
        if self._later is not None and self._loading and not self._load_is_due:
            self._load_is_due = True
            self._later(self._load_next)

    def _load_next(self) -> None:
        self._load_is_due = False
        self.load_a_piece()
        self._load_soon()

    def load_a_piece(self) -> None:
        """Read some more of the logs that are to be read."""
        if self._loading:
            self._load_some(next(iter(self._loading.values())))

    def _load_some(self, loading: Loading[S]) -> None:
        partition = loading.partition
        try:
            if not loading.step(LOAD_RECORDS):
                return
        except Exception as error:  # a log that was closed meanwhile has its own ways to fail
            del self._loading[partition]
            self._could_not_load(partition, error)
            return
        del self._loading[partition]
        if loading.passed_over:
            log.error(
                "partition %d of %s: %d record(s) or batch(es) were passed over because they cannot be understood; %s",
                partition,
                self._topic,
                loading.passed_over,
                f"the first {loading.first_passed_over}",
            )
        home = self._homes[partition] = Home(partition, loading.shard, loading.log)
        now = self._clock()
        self._settle(home, now, loading.shard.loaded, now)

    def _could_not_load(self, partition: int, error: Exception) -> None:
        """A log that cannot be read leaves its groups without a coordinator until it can."""
        log.error("reading partition %d of %s failed: %s", partition, self._topic, error)
        self._go_away(partition)

    def _go_away(self, partition: int) -> None:
        self._away[partition] = self._clock() + RELOAD_AFTER_MS
        self._comes_due(self._away[partition])

    def close(self) -> None:
        """Write what is left, answer whoever waits with NOT_COORDINATOR, and serve no more."""
        if self._state_error is ErrorCode.COORDINATOR_NOT_AVAILABLE:
            return
        self.flush()
        self._forget_all(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    def unload_all(self) -> None:
        """The topic is gone: forget its groups, and send away all who wait. `load_all` begins anew."""
        self._forget_all(ErrorCode.NOT_COORDINATOR)

    def _forget_all(self, state_error: ErrorCode) -> None:
        self._state_error = state_error
        self._loading.clear()
        for home in list(self._homes.values()):
            self._drop(home, ErrorCode.NOT_COORDINATOR)
        self._away.clear()

    def _home(self, partition: int) -> Home[S] | ErrorCode:
        """The shard of a partition, or why there is none now."""
        home = self._homes.get(partition)
        if home is not None:
            return home
        if self._state_error is not ErrorCode.NONE:
            return self._state_error
        if self._away.get(partition, 0) > self._clock():
            return ErrorCode.NOT_COORDINATOR
        self._begin_to_load(partition)
        if partition in self._loading:
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return self._homes.get(partition, ErrorCode.NOT_COORDINATOR)

    # ---------------------------------------------------------------------------------------------- the step, the log

    def _settle(
        self, home: Home[S], now: int, decide: Callable[..., Effects], *arguments: Any
    ) -> Sequence[Answer] | None:
        """Have something decided, and see to it: records into the open batch, answers behind them, events to whoever
        watches. If that raises, the shard is dropped: returns those who were told, which need not be all."""
        try:
            effects = decide(*arguments)
            if effects.records:
                self._write_down(home, effects, now)
        except Exception:
            log.exception("partition %d of %s could not go on", home.partition, self._topic)
            return self._drop(home, ErrorCode.UNKNOWN_SERVER_ERROR)
        home.answer(effects.replies)
        for event in effects.events:
            self._on_event(event)
        if home.shard.first_alarm < self._told_deadline:
            self._comes_due(home.shard.first_alarm)
        if self._dirty:
            self._after_deciding(home)
        return None

    def _write_down(self, home: Home[S], effects: Effects, now: int) -> None:
        batch, shift = home.batch, shift_between(now, self._wall_clock())
        home.shard.write_down(effects.records, batch, now + shift, shift)
        home.batch_time = now + shift
        self._dirty.add(home)

    def _after_deciding(self, home: Home[S]) -> None:
        if home.batch.size >= MAX_BATCH_BYTES:
            self._write(home)
        elif self._schedule_flush is not None and not self._flush_is_due:
            self._flush_is_due = True
            self._schedule_flush()

    def flush(self) -> None:
        """Write all open batches, and answer whoever the log allows to."""
        self._flush_is_due = False
        dirty, self._dirty = self._dirty, set()
        for home in sorted(dirty, key=lambda home: home.partition):
            self._write(home)

    def _write(self, home: Home[S]) -> None:
        batch, home.batch = home.batch, BatchBuilder()
        self._dirty.discard(home)
        if not batch.count:
            return
        try:
            appended = home.log.append(batch.build(), now=home.batch_time, origin="coordinator")
        except Exception as error:
            log.error("writing partition %d of %s failed: %s", home.partition, self._topic, error)
            self._drop(home, ErrorCode.NOT_COORDINATOR)
        else:
            home.wrote(appended.last_offset + 1)

    def release_durable(self) -> None:
        """Answer whoever the logs allow to, after somebody else made them durable."""
        for home in list(self._homes.values()):
            if home.parked:
                home.release()
            if home.parked and home.log.failed is not None:
                log.error("partition %d of %s cannot be synced: %s", home.partition, self._topic, home.log.failed)
                self._drop(home, ErrorCode.NOT_COORDINATOR)

    def _drop(self, home: Home[S], error: ErrorCode) -> list[Answer]:
        """Throw a shard away, to be read again in a while: all who wait for its log, or for other members, are answered
        with `error`. Returns whom that was."""
        del self._homes[home.partition]
        self._dirty.discard(home)
        self._go_away(home.partition)
        replies = [Reply(reply.ticket, home.shard.spoiled(reply.response, error)) for reply in home.take_waiting()]
        replies += home.shard.unload(error).replies
        for reply in replies:
            reply.ticket(reply.response)
        return [reply.ticket for reply in replies]

    # ------------------------------------------------------------------------------------------------ time

    def next_deadline(self) -> int | None:
        """When `on_deadlines` wants to be called next, by `clock`."""
        deadlines = [d for home in self._homes.values() if (d := home.shard.next_deadline()) is not None]
        deadlines += self._away.values()
        self._told_deadline = min(deadlines, default=NEVER)
        return None if self._told_deadline == NEVER else self._told_deadline

    def _comes_due(self, at: int) -> None:
        if at < self._told_deadline and self._on_deadline_moved is not None:
            self._told_deadline = at
            self._on_deadline_moved()

    def on_deadlines(self, now: int) -> None:
        """Do all that is due: sessions and rebalances that end, offsets that expire, shards to be read again."""
        for home in list(self._homes.values()):
            deadline = home.shard.next_deadline()
            if deadline is not None and deadline <= now:
                self._settle(home, now, home.shard.on_deadline, now)
        for partition, at in list(self._away.items()):
            if at <= now:
                self._begin_to_load(partition)
        if self._dirty and self._schedule_flush is None:
            self.flush()
