"""A coordinator's shards, each in a slot of its store: load, decide, write, release answers, drop.

runtime.py handles the requests of groups, transaction_runtime.py those of transactions. This file makes a shard's
decisions durable before their answers go out, for both. The store keeps the shards (store.py is its interface,
log_store.py an implementation).

Only these three files of the package use a clock, callbacks and logging. They never block, await or start tasks, and
run on one thread, so they need no locks: each request is decided before the next one begins.

The life of a request
=====================

The service finds the shard, which decides (`_settle`); the records go into the shard's open batch. The answers are
parked until the store reports that everything decided so far is durable. That includes answers to requests that wrote
nothing: they may reveal records of other requests, which a crash could still undo. `flush` (called once, at the end of
a turn of the event loop) writes each shard's batch, so that all commits of one turn share one write (group commit).
`release_durable` sends the answers whose records are durable, in order; if a write is durable immediately, that happens
within `flush`.

The state runs ahead of the store by the writes that are not durable yet. That is safe because no answer goes out before
the store has them. If a write fails, every parked answer becomes an error, the shard is thrown away with all requests
that wait in it, and is read again. Nothing is ever undone piece by piece. The same happens if a rule raises an
exception, which it never should.

The life of a shard
===================

A coordinator has a slot from `load` (`load_all`) to `unload`, under an epoch that is newer each time the slot moves.
Its shard is read when it is first needed, a few hundred records at a time, so that other requests are served in between
(`later`); until then requests are answered with COORDINATOR_LOAD_IN_PROGRESS. If the store fails, the slot is
unavailable for a while: requests are answered with NOT_COORDINATOR, then the shard is read again.

A coordinator learns that it has lost a slot from `unload`, from a `load` under a newer epoch, or from the store, which
fences it. All waiting requests are answered with NOT_COORDINATOR, and no answer reveals anything that was not durable.
Only a newer epoch brings the slot back; a late message about an older one has no effect. An abandoned load leaves
nothing
behind: its shard, its journal and what the store later reads for it are discarded.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any, Generic, NamedTuple

from muster.coordinator.shards.clocks import NEVER, shift_between
from muster.coordinator.shards.loading import Loading
from muster.coordinator.shards.served_shard import Answer, Decision, Reply, S, ServedShard
from muster.coordinator.shards.store import PRODUCER_ERRORS, FencedError, Store
from muster.errors import ErrorCode, KafkaError, MusterError
from muster.protocol.group_partitions import group_partition
from muster.protocol.records.record_batch import BatchBuilder

log = logging.getLogger("muster.groups")

MAX_BATCH_BYTES = 1024 * 1024
"""A batch that reaches this size is written before the turn ends."""

LOAD_RECORDS = 512
"""How many records are read at a time: a few milliseconds of work."""

RELOAD_AFTER_MS = 1_000
"""How long a shard whose store failed stays unavailable before it is read again."""


_BY_SLOT = attrgetter("slot")
_FIRST_ALARM = attrgetter("first_alarm")


class ShardHost(NamedTuple):
    """What shards need from the program that they run in."""

    clock: Callable[[], int]
    """Milliseconds since the epoch, from a clock that never jumps: sessions are measured with it."""
    on_event: Callable[[Any], None]
    """Called with each event, for the broker's log and for operators."""
    schedule_flush: Callable[[], None] | None = None
    """Called when there is something to flush, at most once until `flush` is called. Without it every request flushes
    immediately."""
    on_deadline_moved: Callable[[], None] | None = None
    """Called when there is a deadline earlier than the one that `next_deadline` last returned."""
    later: Callable[[Callable[[], None]], None] | None = None
    """Calls a function in one of the next turns of the event loop. Without it each shard is read without
    interruption."""
    wall_clock: Callable[[], int] | None = None
    """The time of day, for the times in records; `clock` by default."""


class Shards(Generic[S]):
    """The shards of one topic that this broker coordinates; a slot is a partition of it.

    Args:
        topic: the topic's name, for log messages.
        slot_count: how many partitions it has.
        new_shard: makes an empty shard.
        store: where the shards are kept.
    """

    def __init__(self, topic: str, slot_count: int, new_shard: Callable[[], S], store: Store, host: ShardHost) -> None:
        self.slot_count = slot_count
        """How many slots there are, including those of other coordinators."""
        self._topic = topic
        self._new_shard = new_shard
        self._store = store
        self._clock, self._on_event, self._schedule_flush, self._on_deadline_moved, self._later, wall_clock = host
        self._wall_clock = wall_clock or host.clock
        self._announced_deadline = 0
        self._served: dict[int, ServedShard[S]] = {}
        self._loading: dict[int, Loading[S]] = {}
        self._unavailable: dict[int, int] = {}  # slots whose store failed, with the time to read them again
        self._epochs: dict[int, int] = {}  # this coordinator's slots, with their epochs
        self._lost: dict[int, int] = {}  # slots that it has lost, with their newest known epochs
        self._unread: set[int] = set()  # slots already logged as unreadable
        self._dirty: set[ServedShard[S]] = set()
        self._flush_is_due = False
        self._load_is_due = False
        self._state_error: ErrorCode = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS

    def partition_for(self, name: str) -> int:
        """The slot that keeps a group or a transactional id: the partition of the topic."""
        return group_partition(name, self.slot_count)

    # ----------------------------------------------------------------------------------------------- loading, closing

    def load_all(self, slots: Iterable[int] | None = None, epoch: int = 0) -> None:
        """Take all slots of the topic, and start reading the shards of `slots` (by default all).

        The others are read when they are first needed. Until this or `load` is called, every request is answered with
        COORDINATOR_LOAD_IN_PROGRESS. Members' sessions start when their shard is loaded.
        """
        everything = range(self.slot_count)
        wanted = everything if slots is None else slots
        self._state_error = ErrorCode.NONE
        self._epochs = dict.fromkeys(everything, epoch)
        for slot in wanted:
            self._begin_to_load(slot)
        self.flush()

    def load(self, slot: int, epoch: int) -> bool:
        """Take a slot under an epoch, and start reading its shard. Returns False if the slot is known to have moved
        since, or the coordinator is closed.

        The slot's state under an older epoch is dropped: another coordinator may have changed it since.
        """
        known = self._epochs.get(slot)
        if known == epoch:
            self._begin_to_load(slot)
        elif self._state_error is ErrorCode.COORDINATOR_NOT_AVAILABLE or epoch <= self._newest_epoch(slot):
            log.info("partition %d of %s not loaded: epoch %d has ended", slot, self._topic, epoch)
            return False
        else:
            self._state_error = ErrorCode.NONE
            self._leave(slot)
            self._epochs[slot] = epoch
            self._begin_to_load(slot)
        self.flush()
        return slot in self._epochs

    def unload(self, slot: int, epoch: int | None = None) -> None:
        """Give a slot up: its waiting requests are answered with NOT_COORDINATOR. Other slots stay as they are.

        `epoch` is that of the slot's next coordinator, if known. If this coordinator has since had the slot under that
        epoch or a newer one, the call comes too late and is ignored.
        """
        newest = self._newest_epoch(slot)
        if epoch is None or epoch > newest:
            self._lose(slot, newest if epoch is None else epoch)

    def reload(self, slot: int) -> None:
        """Forget a slot's state and read it again, like a coordinator that takes the slot over. Waiting requests are
        answered with NOT_COORDINATOR."""
        if slot in self._epochs:
            self.flush()
            self._leave(slot)
            self._begin_to_load(slot)
            self.flush()

    def take_none(self) -> None:
        """Start serving without slots: other coordinators have them until `load` brings one."""
        self._state_error = ErrorCode.NONE

    def _newest_epoch(self, slot: int) -> int:
        return self._epochs.get(slot, self._lost.get(slot, -1))

    def _lose(self, slot: int, newest_epoch: int) -> None:
        """The slot belongs to another coordinator or to none. Only a newer epoch brings it back."""
        self._epochs.pop(slot, None)
        self._lost[slot] = newest_epoch
        self._leave(slot)

    def _leave(self, slot: int) -> None:
        """Forget a slot's state, and answer its waiting requests with NOT_COORDINATOR."""
        self._unavailable.pop(slot, None)
        if slot in self._loading:
            self._give_up(slot)
        served = self._served.get(slot)
        if served is not None:
            self._drop(served, ErrorCode.NOT_COORDINATOR)

    def _give_up(self, slot: int) -> None:
        """Stop reading a shard."""
        loading = self._loading.pop(slot)
        loading.journal.close()
        loading.shard.unload(ErrorCode.NOT_COORDINATOR)

    @property
    def is_loading(self) -> bool:
        """Whether shards are still being read."""
        return bool(self._loading)

    def _begin_to_load(self, slot: int) -> None:
        """Start reading a shard, a piece at a time if there is a `later`. Does nothing if it is loaded or being
        read."""
        if slot in self._served or slot in self._loading:
            return
        try:
            journal = self._store.load(slot, self._epochs[slot])
        except (MusterError, OSError) as error:
            self._could_not_load(slot, error)
            return
        self._unavailable.pop(slot, None)
        shift = shift_between(self._clock(), self._wall_clock())
        loading = self._loading[slot] = Loading(slot, journal, self._new_shard(), shift)
        if journal.is_empty:
            self._load_some(loading)
        self._load_soon()

    def _load_soon(self) -> None:
        if self._later is None:
            while self.load_next_piece():
                pass
        elif self._loading and not self._load_is_due:
            self._load_is_due = True
            self._later(self._load_next)

    def _load_next(self) -> None:
        self._load_is_due = False
        if self.load_next_piece():
            self._load_soon()

    def load_next_piece(self) -> bool:
        """Read more of the shards that are being loaded. Returns False if the store has nothing for any of them yet:
        `release_durable` is called when it has."""
        return any(self._load_some(loading) for loading in list(self._loading.values()))

    def _load_some(self, loading: Loading[S]) -> bool:
        """Read some of one shard. Returns whether there was something to read."""
        slot = loading.slot
        try:
            made_progress = loading.step(LOAD_RECORDS)
        except Exception as error:  # a log closed in the meantime raises errors of its own
            self._give_up(slot)
            self._could_not_load(slot, error)
            return True
        if loading.is_complete:
            del self._loading[slot]
            self._start_serving(loading)
        return made_progress

    def _start_serving(self, loading: Loading[S]) -> None:
        """A shard has been read completely: start serving it."""
        slot = loading.slot
        self._unread.discard(slot)
        if loading.skipped:
            log.error(
                "partition %d of %s: skipped %d record(s) or batch(es) that cannot be decoded; %s",
                slot,
                self._topic,
                loading.skipped,
                f"the first {loading.first_skipped}",
            )
        served = self._served[slot] = ServedShard(slot, loading.shard, loading.journal)
        now = self._clock()
        self._settle(served, now, loading.shard.loaded, now)

    def _could_not_load(self, slot: int, error: Exception) -> None:
        """A shard cannot be read: until it can be, its slot has no coordinator."""
        if slot not in self._unread:  # a lasting failure would flood the log
            self._unread.add(slot)
            log.error("reading partition %d of %s failed: %s", slot, self._topic, error)
        self._store_unavailable(slot, error)

    def _store_unavailable(self, slot: int, error: Exception) -> None:
        """The store failed: try the slot again later, or never if another coordinator has it."""
        if isinstance(error, FencedError):
            self._lose(slot, self._epochs[slot])
        else:
            self._retry_later(slot)

    def _retry_later(self, slot: int) -> None:
        self._unavailable[slot] = self._clock() + RELOAD_AFTER_MS
        self._note_deadline(self._unavailable[slot])

    def close(self) -> None:
        """Write what is left, answer waiting requests with NOT_COORDINATOR, and stop serving."""
        if self._state_error is ErrorCode.COORDINATOR_NOT_AVAILABLE:
            return
        self.flush()
        self._forget_all(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    def unload_all(self) -> None:
        """The topic was deleted: forget its shards, and answer waiting requests with NOT_COORDINATOR. `load_all` starts
        afresh, with any epoch."""
        self._forget_all(ErrorCode.NOT_COORDINATOR)

    def _forget_all(self, state_error: ErrorCode) -> None:
        self._state_error = state_error
        self._epochs.clear()
        self._lost.clear()
        for slot in [*self._served, *self._loading, *self._unavailable]:
            self._leave(slot)

    def _serve(self, slot: int) -> ServedShard[S] | ErrorCode:
        """The shard of a slot, loaded if necessary, or the reason why it is not available now."""
        served = self._served.get(slot)
        if served is not None:
            return served
        if self._state_error is not ErrorCode.NONE:
            return self._state_error
        if slot not in self._epochs or self._unavailable.get(slot, 0) > self._clock():
            return ErrorCode.NOT_COORDINATOR
        self._begin_to_load(slot)
        if slot in self._loading:
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return self._served.get(slot, ErrorCode.NOT_COORDINATOR)

    # ---------------------------------------------------------------------------------------------- the step, the store

    def _settle(
        self, served: ServedShard[S], now: int, decide: Callable[..., Decision], *arguments: Any
    ) -> Sequence[Answer] | None:
        """Call `decide` and carry out its decision: records into the open batch, answers after them, events to
        `on_event`. If `decide` raises, the shard is dropped; returns the callbacks that were called, perhaps not all of
        them."""
        try:
            effects = decide(*arguments)
            if effects.records:
                self._write_down(served, effects, now)
        except Exception:
            log.exception("partition %d of %s: internal error; it will be loaded again", served.slot, self._topic)
            self._retry_later(served.slot)
            return self._drop(served, ErrorCode.UNKNOWN_SERVER_ERROR)
        if effects.replies:
            served.answer(effects.replies)
        for event in effects.events:
            self._on_event(event)
        alarm = served.shard.first_alarm
        if alarm < self._announced_deadline:
            self._note_deadline(alarm)
        if self._dirty and (not self._flush_is_due or served.batch.size >= MAX_BATCH_BYTES):
            self._after_deciding(served)
        return None

    def _write_down(self, served: ServedShard[S], effects: Decision, now: int) -> None:
        if not served.batch.count:
            served.batch_shift = shift_between(now, self._wall_clock())
        at = served.batch_time = now + served.batch_shift
        served.shard.write_down(effects.records, served.batch, at, served.batch_shift)
        self._dirty.add(served)

    def _after_deciding(self, served: ServedShard[S]) -> None:
        if served.batch.size >= MAX_BATCH_BYTES:
            self._write(served)
        elif self._schedule_flush is not None and not self._flush_is_due:
            self._flush_is_due = True
            self._schedule_flush()

    def _append_separately(self, served: ServedShard[S], append: Callable[[], int], reply: Reply) -> ErrorCode:
        """Append something that cannot be part of the open batch, after that batch; `reply` goes out once it is
        durable.

        `append` writes to the journal, applies what it has written, and returns the position after it. If the store
        refuses its producer (`PRODUCER_ERRORS`), nothing is written and the shard is unchanged. The caller must answer
        any error that is returned."""
        self._write(served)
        if self._served.get(served.slot) is not served:
            return ErrorCode.NOT_COORDINATOR
        try:
            end = append()
        except Exception as error:
            if isinstance(error, KafkaError) and error.code in PRODUCER_ERRORS:
                return error.code
            self._store_failed(served, "writing partition %d of %s failed: %s", error)
            return ErrorCode.NOT_COORDINATOR
        served.wrote(end)
        served.answer([reply])
        self._after_deciding(served)
        return ErrorCode.NONE

    def flush(self) -> None:
        """Write all open batches, and send the answers that are durable. The journal of a dropped shard accepts nothing
        more."""
        self._flush_is_due = False
        dirty, self._dirty = self._dirty, set()
        for served in sorted(dirty, key=_BY_SLOT):
            self._write(served)

    def _flush_unless_scheduled(self) -> None:
        if self._dirty and self._schedule_flush is None:
            self.flush()

    def _write(self, served: ServedShard[S]) -> None:
        batch, served.batch = served.batch, BatchBuilder()
        if not batch.count:
            return
        try:
            end = served.journal.write(batch, served.batch_time)
        except Exception as error:
            self._store_failed(served, "writing partition %d of %s failed: %s", error)
        else:
            served.wrote(end)

    def release_durable(self) -> None:
        """The store has made progress: send the answers that are durable, and continue reading shards."""
        for served in list(self._served.values()):
            if not served.is_durable:
                served.release()
            if not served.is_durable and served.journal.failed is not None:
                self._store_failed(served, "partition %d of %s cannot be synced: %s", served.journal.failed)
        if self._loading:
            self._load_soon()

    def _store_failed(self, served: ServedShard[S], line: str, error: Exception) -> None:
        if self._served.get(served.slot) is served:  # otherwise it was dropped in the meantime
            log.error(line, served.slot, self._topic, error)
            self._store_unavailable(served.slot, error)
            if served.slot in self._served:
                self._drop(served, ErrorCode.NOT_COORDINATOR)

    def _drop(self, served: ServedShard[S], error: ErrorCode) -> list[Answer]:
        """Drop a shard: requests that wait for its store, or for other members, are answered with `error`. Returns
        their callbacks."""
        del self._served[served.slot]
        served.journal.close()
        replies = [
            Reply(reply.ticket, served.shard.error_for_lost(reply.response, error)) for reply in served.take_waiting()
        ]
        replies += served.shard.unload(error).replies
        for reply in replies:
            reply.ticket(reply.response)
        return [reply.ticket for reply in replies]

    # ------------------------------------------------------------------------------------------------ time

    def next_deadline(self) -> int | None:
        """When to call `on_deadlines` next, by `clock`."""
        shards = [served.shard for served in self._served.values()]
        deadline = NEVER
        while shards:
            first = min(shards, key=_FIRST_ALARM)
            deadline = first.first_alarm
            first.next_deadline()
            if first.first_alarm == deadline:  # otherwise that alarm was outdated
                break
        self._announced_deadline = min(deadline, *self._unavailable.values()) if self._unavailable else deadline
        return None if self._announced_deadline == NEVER else self._announced_deadline

    def _note_deadline(self, at: int) -> None:
        if at < self._announced_deadline and self._on_deadline_moved is not None:
            self._announced_deadline = at
            self._on_deadline_moved()

    def on_deadlines(self, now: int) -> None:
        """Do everything that is due: end sessions and rebalances, expire offsets, reload shards."""
        for served in list(self._served.values()):
            if served.shard.first_alarm <= now:
                self._settle(served, now, served.shard.on_deadline, now)
        for slot, at in list(self._unavailable.items()):
            if at <= now:
                self._begin_to_load(slot)
        self._flush_unless_scheduled()
