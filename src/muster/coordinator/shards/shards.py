"""The shards of a coordinator, each in a slot of its store: loaded, asked to decide, written, released, dropped.

The groups' service (runtime.py) knows the requests. This file makes a shard's decisions durable before their answers go
out. It knows nothing of groups: another coordinator, such as that of transactions, can use it as it is. The store keeps
the shards (store.py says what is needed of one, log_store.py is one).

This and runtime.py are the files of this package that use a clock, callbacks and the log's lines. They wait for nothing
and start nothing. They are used from one thread, and no method awaits, so there are no locks; the rules decide a
request completely before the next one.

The life of a request
=====================

The service finds the shard and has it decide (`_settle`); the records go into the shard's open batch. The answers are
parked until the store says that everything decided so far is durable. That includes answers to requests that wrote
nothing: they may tell of records of other requests, which a crash could still take back. `flush` (called once, at the
end of a turn of the event loop) writes each shard's batch, so that all commits of one turn share one write: group
commit. `release_durable` sends the answers whose records are durable, in order; if a write is durable at once, that
happens within `flush`.

The state runs ahead of the store by the writes that are not durable yet. That is safe because no answer goes out before
the store has them. If a write fails, every parked answer becomes an error, the shard is thrown away with all requests
that wait in it, and is read again. Nothing is ever undone piece by piece. The same happens if a rule raises, which none
should.

The life of a shard
===================

A coordinator has a slot from `load` (`load_all`) to `unload`, under an epoch that is newer each time the slot moves.
Its shard is read when it is first needed, some hundred records at a time, so that other requests are served in between
(`later`); meanwhile requests are answered COORDINATOR_LOAD_IN_PROGRESS. If the store fails, the slot is away for a
while: requests are answered NOT_COORDINATOR, and then the shard is read again.

A coordinator that has lost a slot learns it by `unload`, by a `load` under a newer epoch, or from the store, which
fences it. All waiting requests are answered NOT_COORDINATOR, and no answer tells what was not durable. Only a newer
epoch brings the slot back; late news of an older one changes nothing. A load that is given up leaves nothing behind:
its shard, its journal and what the store finds for it later are its own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any, Generic

from muster.coordinator.shards.clocks import NEVER, shift_between
from muster.coordinator.shards.loading import Loading
from muster.coordinator.shards.reply import Reply
from muster.coordinator.shards.served_shard import Answer, Decision, Home, S
from muster.coordinator.shards.store import FencedError, Store
from muster.errors import ErrorCode, MusterError
from muster.protocol.records.record_batch import BatchBuilder

log = logging.getLogger("muster.groups")

MAX_BATCH_BYTES = 1024 * 1024
"""A batch that has grown so large is written before the turn ends."""

LOAD_RECORDS = 256
"""How many records are read at a time: a few milliseconds' worth."""

RELOAD_AFTER_MS = 1_000
"""How long a shard whose store failed stays away before it is read again."""


_BY_SLOT = attrgetter("slot")
_FIRST_ALARM = attrgetter("first_alarm")


class Shards(Generic[S]):
    """The shards of one topic that this broker coordinates; a slot is a partition of it.

    Args:
        topic: the topic's name, for lines of the log; `partitions` tells how many it has.
        new_shard: an empty shard.
        store: where the shards are kept.
        clock: milliseconds since the epoch by a clock that does not jump. Sessions are measured by it.
        on_event: called with each event, for the broker's log and for operators.
        schedule_flush: called when there is something to flush, at most once until `flush` is called. Without it
            every request flushes by itself.
        on_deadline_moved: called when there is an earlier deadline than `next_deadline` last returned.
        later: calls a function in one of the next turns of the event loop. Without it shards are read in one go.
        wall_clock: the time of day, for the times in records; `clock`, if it is not given.
    """

    def __init__(
        self,
        topic: str,
        partitions: Callable[[], int],
        new_shard: Callable[[], S],
        store: Store,
        *,
        clock: Callable[[], int],
        on_event: Callable[[Any], None],
        schedule_flush: Callable[[], None] | None = None,
        on_deadline_moved: Callable[[], None] | None = None,
        later: Callable[[Callable[[], None]], None] | None = None,
        wall_clock: Callable[[], int] | None = None,
    ) -> None:
        self._topic = topic
        self._partitions = partitions
        self._new_shard = new_shard
        self._store = store
        self._clock = clock
        self._wall_clock = wall_clock or clock
        self._on_event = on_event
        self._schedule_flush = schedule_flush
        self._on_deadline_moved = on_deadline_moved
        self._told_deadline = 0
        self._later = later
        self._homes: dict[int, Home[S]] = {}
        self._loading: dict[int, Loading[S]] = {}
        self._away: dict[int, int] = {}  # slots whose store failed, and when to read them again
        self._epochs: dict[int, int] = {}  # the slots that are this coordinator's, with their epochs
        self._lost: dict[int, int] = {}  # the slots that it has lost, with their newest known epochs
        self._unread: set[int] = set()  # slots of which a line said that they cannot be read
        self._dirty: set[Home[S]] = set()
        self._flush_is_due = False
        self._load_is_due = False
        self._state_error: ErrorCode = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS

    # ----------------------------------------------------------------------------------------------- loading, closing

    def load_all(self, slots: Iterable[int] | None = None, epoch: int = 0) -> None:
        """Take all slots of the topic, and begin to read the shards of `slots` (by default of all).

        The others are read when they are first needed. Until this or `load` was called, every request is answered
        COORDINATOR_LOAD_IN_PROGRESS. Sessions of the members found begin when their shard is read.
        """
        everything = range(self._partitions())
        wanted = everything if slots is None else slots
        self._state_error = ErrorCode.NONE
        self._epochs = dict.fromkeys(everything, epoch)
        for slot in wanted:
            self._begin_to_load(slot)
        self.flush()

    def load(self, slot: int, epoch: int) -> bool:
        """Take a slot under an epoch, and begin to read its shard. Returns False if the slot is known to have moved on,
        or the coordinator is closed.

        What is known of the slot under an older epoch is dropped: another coordinator may have changed it in between.
        """
        known = self._epochs.get(slot)
        if known == epoch:
            self._begin_to_load(slot)
        elif self._state_error is ErrorCode.COORDINATOR_NOT_AVAILABLE or epoch <= self._newest_epoch(slot):
            log.info("partition %d of %s is not loaded under epoch %d, which is over", slot, self._topic, epoch)
            return False
        else:
            self._state_error = ErrorCode.NONE
            self._leave(slot)
            self._epochs[slot] = epoch
            self._begin_to_load(slot)
        self.flush()
        return slot in self._epochs

    def unload(self, slot: int, epoch: int | None = None) -> None:
        """Give a slot up: its waiting requests are answered NOT_COORDINATOR. Other slots stay as they are.

        `epoch` is that of the slot's next coordinator, if it is known. If this coordinator has since had the slot under
        that epoch or a newer one, the news came late and nothing happens.
        """
        newest = self._newest_epoch(slot)
        if epoch is None or epoch > newest:
            self._lose(slot, newest if epoch is None else epoch)

    def take_none(self) -> None:
        """Serve without any slot until `load` brings one: other coordinators have them."""
        self._state_error = ErrorCode.NONE

    def _newest_epoch(self, slot: int) -> int:
        return self._epochs.get(slot, self._lost.get(slot, -1))

    def _lose(self, slot: int, newest_epoch: int) -> None:
        """Another coordinator has a slot, or none. It comes back by a newer epoch only."""
        self._epochs.pop(slot, None)
        self._lost[slot] = newest_epoch
        self._leave(slot)

    def _leave(self, slot: int) -> None:
        """Forget what is known of a slot, and answer its waiting requests NOT_COORDINATOR."""
        self._away.pop(slot, None)
        if slot in self._loading:
            self._give_up(slot)
        home = self._homes.get(slot)
        if home is not None:
            self._drop(home, ErrorCode.NOT_COORDINATOR)

    def _give_up(self, slot: int) -> None:
        """Read a shard no more."""
        loading = self._loading.pop(slot)
        loading.journal.close()
        loading.shard.unload(ErrorCode.NOT_COORDINATOR)

    @property
    def is_loading(self) -> bool:
        """Whether there are shards still to be read."""
        return bool(self._loading)

    def _begin_to_load(self, slot: int) -> None:
        """Read a shard, a piece at a time if `later` was given. Does nothing if it is loaded, or being read."""
        if slot in self._homes or slot in self._loading:
            return
        try:
            journal = self._store.load(slot, self._epochs[slot])
        except (MusterError, OSError) as error:
            self._could_not_load(slot, error)
            return
        self._away.pop(slot, None)
        shift = shift_between(self._clock(), self._wall_clock())
        loading = self._loading[slot] = Loading(slot, journal, self._new_shard(), shift)
        if journal.is_empty:
            self._load_some(loading)
        self._load_soon()

    def _load_soon(self) -> None:
        if self._later is None:
            while self.load_a_piece():
                pass
        elif self._loading and not self._load_is_due:
            self._load_is_due = True
            self._later(self._load_next)

    def _load_next(self) -> None:
        self._load_is_due = False
        if self.load_a_piece():
            self._load_soon()

    def load_a_piece(self) -> bool:
        """Read some more of the shards that are being read. Returns False if the store has nothing of any of them yet:
        it has `release_durable` called when it has."""
        return any(self._load_some(loading) for loading in list(self._loading.values()))

    def _load_some(self, loading: Loading[S]) -> bool:
        """Read some of one shard. Returns whether there was something to read."""
        slot = loading.slot
        try:
            went_on = loading.step(LOAD_RECORDS)
        except Exception as error:  # a log that was closed meanwhile has its own ways to fail
            self._give_up(slot)
            self._could_not_load(slot, error)
            return True
        if loading.is_complete:
            del self._loading[slot]
            self._settle_in(loading)
        return went_on

    def _settle_in(self, loading: Loading[S]) -> None:
        """A shard is read completely: it begins to serve."""
        slot = loading.slot
        self._unread.discard(slot)
        if loading.passed_over:
            log.error(
                "partition %d of %s: %d record(s) or batch(es) were passed over because they cannot be understood; %s",
                slot,
                self._topic,
                loading.passed_over,
                f"the first {loading.first_passed_over}",
            )
        home = self._homes[slot] = Home(slot, loading.shard, loading.journal)
        now = self._clock()
        self._settle(home, now, loading.shard.loaded, now)

    def _could_not_load(self, slot: int, error: Exception) -> None:
        """A shard cannot be read: until it can, its groups have no coordinator."""
        if slot not in self._unread:  # one that lasts would fill the log with lines
            self._unread.add(slot)
            log.error("reading partition %d of %s failed: %s", slot, self._topic, error)
        self._is_without(slot, error)

    def _is_without(self, slot: int, error: Exception) -> None:
        """The store failed: try the slot again in a while, or never if another coordinator has it."""
        if isinstance(error, FencedError):
            self._lose(slot, self._epochs[slot])
        else:
            self._go_away(slot)

    def _go_away(self, slot: int) -> None:
        self._away[slot] = self._clock() + RELOAD_AFTER_MS
        self._comes_due(self._away[slot])

    def close(self) -> None:
        """Write what is left, answer waiting requests NOT_COORDINATOR, and serve no more."""
        if self._state_error is ErrorCode.COORDINATOR_NOT_AVAILABLE:
            return
        self.flush()
        self._forget_all(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    def unload_all(self) -> None:
        """The topic was deleted: forget its shards, and answer waiting requests NOT_COORDINATOR. `load_all` begins
        anew, with any epoch."""
        self._forget_all(ErrorCode.NOT_COORDINATOR)

    def _forget_all(self, state_error: ErrorCode) -> None:
        self._state_error = state_error
        self._epochs.clear()
        self._lost.clear()
        for slot in [*self._homes, *self._loading, *self._away]:
            self._leave(slot)

    def _home(self, slot: int) -> Home[S] | ErrorCode:
        """The shard of a slot, or why there is none now."""
        home = self._homes.get(slot)
        if home is not None:
            return home
        if self._state_error is not ErrorCode.NONE:
            return self._state_error
        if slot not in self._epochs or self._away.get(slot, 0) > self._clock():
            return ErrorCode.NOT_COORDINATOR
        self._begin_to_load(slot)
        if slot in self._loading:
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return self._homes.get(slot, ErrorCode.NOT_COORDINATOR)

    # ---------------------------------------------------------------------------------------------- the step, the store

    def _settle(
        self, home: Home[S], now: int, decide: Callable[..., Decision], *arguments: Any
    ) -> Sequence[Answer] | None:
        """Have something decided, and carry it out: records into the open batch, answers behind them, events to
        `on_event`. If that raises, the shard is dropped: returns the callbacks that were called, perhaps not all."""
        try:
            effects = decide(*arguments)
            if effects.records:
                self._write_down(home, effects, now)
        except Exception:
            log.exception("partition %d of %s could not go on", home.slot, self._topic)
            self._go_away(home.slot)
            return self._drop(home, ErrorCode.UNKNOWN_SERVER_ERROR)
        if effects.replies:
            home.answer(effects.replies)
        for event in effects.events:
            self._on_event(event)
        alarm = home.shard.first_alarm
        if alarm < self._told_deadline:
            self._comes_due(alarm)
        if self._dirty and (not self._flush_is_due or home.batch.size >= MAX_BATCH_BYTES):
            self._after_deciding(home)
        return None

    def _write_down(self, home: Home[S], effects: Decision, now: int) -> None:
        if not home.batch.count:
            home.batch_shift = shift_between(now, self._wall_clock())
        at = home.batch_time = now + home.batch_shift
        home.shard.write_down(effects.records, home.batch, at, home.batch_shift)
        self._dirty.add(home)

    def _after_deciding(self, home: Home[S]) -> None:
        if home.batch.size >= MAX_BATCH_BYTES:
            self._write(home)
        elif self._schedule_flush is not None and not self._flush_is_due:
            self._flush_is_due = True
            self._schedule_flush()

    def flush(self) -> None:
        """Write all open batches, and send the answers that the store allows. The journal of a dropped shard accepts
        nothing any more."""
        self._flush_is_due = False
        dirty, self._dirty = self._dirty, set()
        for home in sorted(dirty, key=_BY_SLOT):
            self._write(home)

    def _write(self, home: Home[S]) -> None:
        batch, home.batch = home.batch, BatchBuilder()
        if not batch.count:
            return
        try:
            end = home.journal.write(batch, home.batch_time)
        except Exception as error:
            self._store_failed(home, "writing partition %d of %s failed: %s", error)
        else:
            home.wrote(end)

    def release_durable(self) -> None:
        """The store has made progress by itself: send the answers that it allows, and go on reading shards."""
        for home in list(self._homes.values()):
            if not home.is_durable:
                home.release()
            if not home.is_durable and home.journal.failed is not None:
                self._store_failed(home, "partition %d of %s cannot be synced: %s", home.journal.failed)
        if self._loading:
            self._load_soon()

    def _store_failed(self, home: Home[S], line: str, error: Exception) -> None:
        if self._homes.get(home.slot) is home:  # else it was dropped meanwhile
            log.error(line, home.slot, self._topic, error)
            self._is_without(home.slot, error)
            if home.slot in self._homes:
                self._drop(home, ErrorCode.NOT_COORDINATOR)

    def _drop(self, home: Home[S], error: ErrorCode) -> list[Answer]:
        """Throw a shard away: requests that wait for its store, or for other members, are answered with `error`.
        Returns their callbacks."""
        del self._homes[home.slot]
        home.journal.close()
        replies = [Reply(reply.ticket, home.shard.spoiled(reply.response, error)) for reply in home.take_waiting()]
        replies += home.shard.unload(error).replies
        for reply in replies:
            reply.ticket(reply.response)
        return [reply.ticket for reply in replies]

    # ------------------------------------------------------------------------------------------------ time

    def next_deadline(self) -> int | None:
        """When `on_deadlines` wants to be called next, by `clock`."""
        shards = [home.shard for home in self._homes.values()]
        deadline = NEVER
        while shards:
            first = min(shards, key=_FIRST_ALARM)
            deadline = first.first_alarm
            first.next_deadline()
            if first.first_alarm == deadline:  # else that alarm was overtaken
                break
        self._told_deadline = min(deadline, *self._away.values()) if self._away else deadline
        return None if self._told_deadline == NEVER else self._told_deadline

    def _comes_due(self, at: int) -> None:
        if at < self._told_deadline and self._on_deadline_moved is not None:
            self._told_deadline = at
            self._on_deadline_moved()

    def on_deadlines(self, now: int) -> None:
        """Do all that is due: end sessions and rebalances, expire offsets, read shards again."""
        for home in list(self._homes.values()):
            if home.shard.first_alarm <= now:
                self._settle(home, now, home.shard.on_deadline, now)
        for slot, at in list(self._away.items()):
            if at <= now:
                self._begin_to_load(slot)
        if self._dirty and self._schedule_flush is None:
            self.flush()
