"""Programs that use a consumer as applications do, by the rules of the client's public classes.

Records handed out are handled before the next poll, the listener runs while the program is in poll, closing commits and
leaves. `read` is the program of a consumer that fetches. `claim` is like Spark's: it is always in poll, reads its
partitions itself, and commits explicit offsets, fenced by its ownership. It learns of lost partitions at once, also in
the middle of a batch, and gives up revoked partitions when the batch that reads them is done.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from muster.client.core.events import CallbackKind, Event, Fatal, RebalanceCallback
from muster.client.core.group.member_state import MemberState
from muster.client.core.subscription_state import OffsetReset, PositionState
from muster.errors import ErrorCode, KafkaError, MusterError
from muster.model import OffsetAndMetadata, TopicPartition
from tests.simulator.checks import InvariantError
from tests.simulator.checks.offsets import Offsets
from tests.simulator.member import Program, SimMember, Wait

Batch = dict[TopicPartition, list[int]]
"""Offsets of records that were handed out."""

_GIVES_UP = (ErrorCode.FENCED_INSTANCE_ID,)
_SURVIVES = (ErrorCode.GROUP_MAX_SIZE_REACHED, ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
CLOSE_MS = 20_000
"""How long closing may take; it should be quick, unless the coordinator cannot be reached."""


class Application:
    """The base class of all programs."""

    def __init__(self, member: SimMember) -> None:
        self.member = member
        self.core = member.core
        self.clock = member.clock
        self.leaving = False

    @property
    def offsets(self) -> Offsets:
        """The checks of handled and committed offsets."""
        return self.member.invariants.group(self.member.group_id).offsets

    def sleep(self, milliseconds: int) -> Program:
        """Wait this long, whatever happens."""
        until = self.clock.now + milliseconds
        while self.clock.now < until:
            yield Wait(until)

    # --- events ------------------------------------------------------------------------------------------------------

    def handle_events(self) -> Program:
        """Run the listener for the events. An error ends the poll; the program pauses, and polls again."""
        while self.core.events:
            yield from self.handle_event(self.core.events.pop(0))

    def handle_event(self, event: Event) -> Program:
        """Run the listener for one event."""
        if isinstance(event, RebalanceCallback):
            yield from self._tell_listener(event)
        elif isinstance(event, Fatal):
            self._on_error(event.error)
            self.core.leave_poll()
            if not self.member.is_closing:
                yield from self.sleep(1_000)
                self.core.enter_poll(self.clock.now)
        else:
            self.member.attend(event)

    def _on_error(self, error: MusterError) -> None:
        member = self.member
        member.trace(f"poll raises {error}")
        member.errors.append(error)
        code = error.code if isinstance(error, KafkaError) else None
        if code in _GIVES_UP:
            member.close()
        elif code not in _SURVIVES:
            raise InvariantError(f"{member.name}'s poll raises an error without a reason: {error!r}")

    def _tell_listener(self, event: RebalanceCallback) -> Program:
        member, partitions = self.member, event.partitions
        member.trace(f"{event.kind.value} {', '.join(map(str, sorted(partitions))) or 'nothing'}")
        if event.kind is CallbackKind.LOST:
            self.give_up(partitions, in_good_order=False)
        elif event.kind is CallbackKind.ASSIGNED:
            member.invariants.assigned(member, partitions)
        yield from self.sleep(member.habits.listener_ms)
        if event.kind is CallbackKind.REVOKED:
            clean = not member.could_not_commit and not self.leaving
            member.could_not_commit = False
            if member.habits.commit != "auto":
                outcome: list[MusterError | None] = []
                stand = {p: o for p, o in self.stand().items() if p in partitions}
                yield from self.commit_sync(stand, 2_000, outcome)
                clean = outcome == [None]
            self.give_up(partitions, in_good_order=clean)
        self.core.callback_done(event.token, self.clock.now)

    def give_up(self, partitions: tuple[TopicPartition, ...], *, in_good_order: bool) -> None:
        """The listener knows that these were revoked or lost."""
        self.member.invariants.given_up(self.member, partitions, in_good_order=in_good_order)

    # --- handling and committing -------------------------------------------------------------------------------------

    def handle(self, batch: Batch, *, middle: Callable[[Batch], Program] | None = None) -> Program:
        """Handle a batch; `middle` is called when half of it is done."""
        member = self.member
        habits = member.habits
        away, habits.stay_away_ms = habits.stay_away_ms, 0
        text = ", ".join(f"{partition}: {offsets[0]}-{offsets[-1]}" for partition, offsets in batch.items())
        member.trace(f"handles {text}")
        if away:
            member.trace(f"stays away from poll for {away} ms")
            member.away_until = self.clock.now + away
            yield from self.wait_for(member.away_until, lambda: member.away_until <= self.clock.now)
        first = {partition: offsets[: len(offsets) // 2] for partition, offsets in batch.items()}
        if middle is not None:
            yield from self.work(habits.handle_ms // 2)
            self._done(first)
            yield from middle(first)
        yield from self.work(habits.handle_ms)
        self._done(batch if middle is None else {p: offsets[len(first[p]) :] for p, offsets in batch.items()})

    def work(self, milliseconds: int) -> Program:
        """Let the time pass that handling takes."""
        yield from self.sleep(milliseconds)

    def wait_for(self, until: int, predicate: Callable[[], bool]) -> Program:
        """Wait for something while a batch is being handled."""
        yield Wait(until, predicate)

    def _done(self, batch: Batch) -> None:
        for partition, offsets in batch.items():
            self.offsets.handled(partition, offsets)

    def stand(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """The application's positions: what it may commit."""
        consumed = self.core.consumed().items()
        return {partition: offset._replace(metadata=self.member.name) for partition, offset in consumed}

    def commit_sync(
        self,
        offsets: dict[TopicPartition, OffsetAndMetadata],
        timeout_ms: int,
        outcome: list[MusterError | None],
        fence: Mapping[TopicPartition, int] | None = None,
    ) -> Program:
        """Commit and wait; a failure is accepted, and the program continues."""
        if not offsets:
            outcome.append(None)
            return
        until = self.clock.now + timeout_ms
        self.core.commit(offsets, lambda error, _now: outcome.append(error), until=until, fence=fence)
        while not outcome:
            yield from self.wait_for(until + 60_000, lambda: bool(outcome))
        if outcome[0] is not None:
            self.member.trace(f"commit failed: {outcome[0]}")

    def commit_async(self, offsets: dict[TopicPartition, OffsetAndMetadata], until: int | None = None) -> None:
        """Commit and continue."""
        self.core.commit(offsets, lambda _error, _now: None, until=until)

    # --- the end -----------------------------------------------------------------------------------------------------

    def say_goodbye(self) -> Program:
        """See `AsyncConsumer.close`."""
        until = self.clock.now + CLOSE_MS
        self.core.commit_for_close(lambda _error, _now: None, until)
        yield Wait(until, lambda: not self.core.commits_pending)
        yield from self.leave(until, "the consumer is being closed")

    def leave(self, until: int, reason: str) -> Program:
        """Like `AsyncConsumer.unsubscribe`: give up everything, and leave the group."""
        left: list[bool] = []
        member_id, reachable, since = self.member.member_id, self._can_leave(), self.clock.now
        self.leaving = True
        self.core.unsubscribe(self.clock.now, lambda: left.append(True), reason)
        while not left and self.clock.now < until:
            self.member.poll_cores()
            yield from self.handle_events()
            if not left:
                yield Wait(until, lambda: bool(left) or bool(self.core.events))
        self.leaving = False
        if reachable and left and self._was_undisturbed(since):
            sessions = self.member.invariants.group(self.member.group_id).sessions
            sessions.said_goodbye(member_id, self.member.name)

    def _can_leave(self) -> bool:
        """Whether a LeaveGroup is due, and its coordinator is known."""
        member = self.member
        group = self.core.group
        is_dynamic = member.config.group_instance_id is None
        joined = member.state is not MemberState.UNJOINED and bool(member.member_id)
        return is_dynamic and joined and group.lookup.node_id == member.world.brokers.coordinator

    def _was_undisturbed(self, since: int) -> bool:
        """Whether nothing was between this member and the coordinator."""
        world = self.member.world
        is_well = world.brokers.coordinators.is_well and world.invariants.well_since < since
        return is_well and world.network.undisturbed(self.member.name, since)


class Reader(Application):
    """A consumer that fetches: poll, handle, commit."""

    def __init__(self, member: SimMember) -> None:
        super().__init__(member)
        self.paused: set[TopicPartition] = set()
        self.whims = [self._seek, self._seek_amid_a_reset, self._pause]
        if member.by_hand is None:
            self.whims += [self._leave_for_a_while, self._read_less]

    def run(self) -> Program:
        """The program."""
        member, habits = self.member, self.member.habits
        while not member.is_closing:
            batch: Batch = {}
            yield from self._poll(batch)
            if batch:
                middle = {"middle": self._commit_half, "overlap": self._begin_to_commit}.get(habits.commit)
                yield from self.handle(batch, middle=middle)
                yield from self._commit()
            if habits.restless and not member.is_closing and not member.rng.randrange(habits.restless):
                yield from member.rng.choice(self.whims)()
        yield from self.say_goodbye()

    def _commit(self) -> Program:
        match self.member.habits.commit:
            case "sync" | "middle":
                yield from self.commit_sync(self.stand(), 5_000, [])
            case "async" | "overlap":
                self.commit_async(self.stand())

    def _commit_half(self, first: Batch) -> Program:
        """Commit the handled part of a batch, and continue with it."""
        if self.member.rng.randrange(2):
            yield from self.commit_sync(_behind(first), 3_000, [])
        else:
            self.commit_async(_behind(first))

    def _begin_to_commit(self, first: Batch) -> Program:
        """Like another thread that commits and waits, while this one continues and commits as well."""
        self.commit_async(_behind(first), self.clock.now + 5_000)
        yield from self.sleep(0)

    def _poll(self, batch: Batch) -> Program:
        """See `AsyncConsumer.poll`."""
        core, member = self.core, self.member
        deadline = self.clock.now + member.habits.poll_ms
        core.enter_poll(self.clock.now)
        while not member.is_closing:
            member.poll_cores()
            if core.events:
                yield from self.handle_events()
                continue
            self._collect(batch)
            if batch or self.clock.now >= deadline:
                break
            yield Wait(deadline, lambda: bool(core.events) or core.has_records or member.is_closing)
        core.leave_poll()

    def _collect(self, batch: Batch) -> None:
        for partition, records in self.core.collect(self.member.habits.max_records).items():
            if partition in self.paused:
                raise InvariantError(f"{self.member.name} was handed records of {partition}, which is paused")
            offsets = [record.offset for record in records]
            behind = self.core.subscription.state(partition).position
            self.offsets.handed_out(self.member, partition, offsets[0], behind)
            batch[partition] = offsets

    def give_up(self, partitions: tuple[TopicPartition, ...], *, in_good_order: bool) -> None:
        """The listener knows that these were revoked or lost."""
        self.paused -= set(partitions)
        super().give_up(partitions, in_good_order=in_good_order)

    # --- occasional actions -----------------------------------------------------------------------------------

    def _some(self) -> list[TopicPartition]:
        states = self.core.subscription.states()
        known = [p for p, state in states if state.state is PositionState.FETCHING and p in self.member.held]
        return self.member.rng.sample(known, min(2, len(known)))

    def _seek(self) -> Program:
        for partition in self._some():
            position = self.core.subscription.state(partition).position
            offset = self.member.rng.randint(max(0, position - 10), position)
            self.member.trace(f"seeks {partition} to {offset}")
            self.core.subscription.seek(partition, offset)
            self.offsets.sought(self.member, partition, offset)
        yield from self.sleep(0)

    def _seek_amid_a_reset(self) -> Program:
        """Like `seek_to_beginning`, followed by a seek while the beginning is looked up."""
        for partition in self._some():
            self.member.trace(f"seeks to the beginning of {partition}, then to its last record")
            position = self.core.subscription.state(partition).position
            self.core.subscription.request_reset(partition, OffsetReset.EARLIEST)
            self.member.wakeup()
            yield from self.sleep(self.member.rng.randrange(3))
            if partition in self.member.held:
                offset = max(0, position - 1)
                self.core.subscription.seek(partition, offset)
                self.offsets.sought(self.member, partition, offset)

    def _pause(self) -> Program:
        core = self.core
        again = [p for p in self.paused if p in core.subscription.assignment()]
        core.subscription.resume(again)
        some = [p for p in self._some() if p not in self.paused]
        self.member.trace(f"resumes {sorted(again)}, pauses {some}")
        core.subscription.pause(some)
        self.paused = set(some)
        self.clock.call_later(3_000, self._resume, self.paused)
        yield from self.sleep(0)

    def _resume(self, paused: set[TopicPartition]) -> None:
        if self.member.is_alive and paused is self.paused:
            self.core.subscription.resume([p for p in paused if p in self.core.subscription.assignment()])
            self.paused = set()
            self.member.wakeup()

    def _leave_for_a_while(self) -> Program:
        self.member.trace("unsubscribes")
        yield from self.leave(self.clock.now + 5_000, "the consumer unsubscribed from all topics")
        if self.member.rng.randrange(2):
            yield from self.sleep(self.member.rng.randrange(3_000))
        self.member.trace("subscribes again")
        self.member.subscribe()

    def _read_less(self) -> Program:
        if self.member.pattern is None and len(self.member.topics) > 1:
            topics = self.member.rng.sample(self.member.topics, len(self.member.topics) - 1)
            self.member.trace(f"subscribes to {topics} only")
            self.member.subscribe(topics)
            self.clock.call_later(5_000, self._read_all)
        yield from self.sleep(0)

    def _read_all(self) -> None:
        if self.member.is_alive and self.core.subscription.group_managed:
            self.member.trace("subscribes to everything again")
            self.member.subscribe()
            self.member.wakeup()


class Claimer(Application):
    """A consumer that reads its partitions itself, like Spark's."""

    def __init__(self, member: SimMember) -> None:
        super().__init__(member)
        self._positions: dict[TopicPartition, int] = {}
        self._batch: Batch = {}
        self._later: list[RebalanceCallback] = []

    def run(self) -> Program:
        """The program."""
        member = self.member
        self.core.enter_poll(self.clock.now)
        while not member.is_closing:
            yield from self._take_events()
            yield from self._find_positions()
            fence = self._take_batch()
            if not self._batch:
                yield Wait(self.clock.now + 200, lambda: bool(self.core.events) or member.is_closing)
                continue
            yield from self.handle(self._batch)
            yield from self._commit(fence)
            self._batch = {}
            while self._later:
                yield from self.handle_event(self._later.pop(0))
        yield from self.say_goodbye()

    def stand(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Its position in the partitions that it holds."""
        return {partition: OffsetAndMetadata(offset) for partition, offset in self._positions.items()}

    def give_up(self, partitions: tuple[TopicPartition, ...], *, in_good_order: bool) -> None:
        """The listener knows that these were revoked or lost."""
        super().give_up(partitions, in_good_order=in_good_order)
        for partition in partitions:
            self._positions.pop(partition, None)

    # --- while a batch is being handled ------------------------------------------------------------------------------

    def work(self, milliseconds: int) -> Program:
        """The time that handling takes; events meanwhile are recorded."""
        yield from self.wait_for(self.clock.now + milliseconds, lambda: False)

    def wait_for(self, until: int, predicate: Callable[[], bool]) -> Program:
        """Wait for something, and record the events meanwhile."""
        while not predicate() and self.clock.now < until:
            yield from self._take_events()
            yield Wait(until, lambda: predicate() or bool(self.core.events))

    def _take_events(self) -> Program:
        while self.core.events:
            event = self.core.events.pop(0)
            revokes = isinstance(event, RebalanceCallback) and event.kind is CallbackKind.REVOKED
            if isinstance(event, RebalanceCallback) and revokes and set(event.partitions) & set(self._batch):
                self._later.append(event)
            else:
                yield from self.handle_event(event)

    def _commit(self, fence: Mapping[TopicPartition, int]) -> Program:
        """Commit a batch: all of it or, if some partitions were lost meanwhile, the rest."""
        for attempt in range(2):
            still = {p: since for p, since in fence.items() if self.core.ownership(p) == since}
            owned = still if attempt else fence
            offsets = {p: OffsetAndMetadata(self._batch[p][-1] + 1) for p in owned}
            outcome: list[MusterError | None] = []
            yield from self.commit_sync(offsets, 5_000, outcome, owned)
            if outcome[0] is None and owned and owned != still:
                raise InvariantError(f"{self.member.name} committed {offsets}, some of which it had lost meanwhile")
            if outcome[0] is None:
                break
        for partition, since in fence.items():
            if self.core.ownership(partition) == since and partition in self._positions:
                self._positions[partition] = self._batch[partition][-1] + 1

    # --- positions and batches --------------------------------------------------------------------------------

    def _find_positions(self) -> Program:
        """Look up where to begin in new partitions."""
        new = [p for p in sorted(self.member.held) if p not in self._positions]
        if not new:
            return
        since = {p: self.core.ownership(p) for p in new}
        outcome: list[object] = []
        self.core.fetch_committed(new, lambda found, _now: outcome.append(found), until=self.clock.now + 5_000)
        yield Wait(None, lambda: bool(outcome))
        if isinstance(outcome[0], MusterError):
            self.member.trace(f"where to begin is not known: {outcome[0]}")
            return
        assert isinstance(outcome[0], dict)
        for partition, committed in outcome[0].items():
            if since[partition] is not None and self.core.ownership(partition) == since[partition]:
                self._positions[partition] = 0 if committed is None else committed.offset

    def _take_batch(self) -> dict[TopicPartition, int]:
        fence: dict[TopicPartition, int] = {}
        topics = self.member.world.brokers.topics
        for partition in sorted(self._positions):
            since, log = self.core.ownership(partition), topics.logs.get(partition)
            if since is None or log is None or partition not in self.member.held:
                continue
            begin = max(self._positions[partition], log.log_start_offset)
            begin = log.log_start_offset if begin > log.log_end_offset else begin
            offsets: list[int] = []
            while len(offsets) < self.member.habits.max_records and (offset := log.next_record(begin)) < (
                log.log_end_offset
            ):
                offsets.append(offset)
                begin = offset + 1
            if offsets:
                self._batch[partition] = offsets
                fence[partition] = since
                self.offsets.handed_out(self.member, partition, offsets[0], offsets[-1] + 1)
        return fence


def _behind(batch: Batch) -> dict[TopicPartition, OffsetAndMetadata]:
    """The offsets that mark a batch as handled."""
    return {p: OffsetAndMetadata(offsets[-1] + 1, metadata="half") for p, offsets in batch.items() if offsets}


def program_of(member: SimMember) -> Program:
    """The program of a member: for one that fetches, or for one that does not."""
    return (Reader(member) if member.fetches else Claimer(member)).run()
