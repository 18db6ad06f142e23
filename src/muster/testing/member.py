"""A simulated consumer: a real `ConsumerCore`, and a program that uses it as an application would.

The program is a generator that yields what it waits for (`Wait`); the member resumes it when that has come, in virtual
time. It follows the faces of the client: records handed out are handled before the next poll, the listener runs while
the program is in poll, closing commits and leaves. A member with `fetch=False` is like Spark's: it reads the partitions
that it is given by itself, and commits explicit offsets, fenced by its ownership.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

from muster.client.config import ConsumerConfig
from muster.client.core.consumer import ConsumerCore
from muster.client.core.events import CallbackKind, Fatal, Note, RebalanceCallback
from muster.client.core.member_state import MemberState, Step
from muster.client.core.sends import Channel
from muster.errors import ErrorCode, KafkaError, MusterError
from muster.model import OffsetAndMetadata, TopicPartition
from muster.testing.clock import Timer
from muster.testing.driver import SimDriver
from muster.testing.invariants import InvariantError

if TYPE_CHECKING:
    from muster.testing.cluster import SimCluster


@dataclass(slots=True)
class Wait:
    """What a program waits for: a predicate that is asked after each turn, at most until a time."""

    until: int | None = None
    predicate: Callable[[], bool] | None = None


Program = Generator[Wait, None, None]

Batch = dict[TopicPartition, range]
"""Offsets of records that were handed out."""


@dataclass(slots=True)
class Habits:
    """How an application uses its consumer; times in milliseconds.

    `commit` is "auto", "sync" (after each batch, waiting), "async" (after each batch, not waiting).
    `stay_away_ms` is how long the handling of the next batch takes, once, whatever `handle_ms` says.
    """

    commit: str = "auto"
    handle_ms: int = 50
    listener_ms: int = 2
    poll_ms: int = 1_000
    max_records: int = 50
    stay_away_ms: int = 0


_GIVES_UP = (ErrorCode.FENCED_INSTANCE_ID,)
_SURVIVES = (ErrorCode.GROUP_MAX_SIZE_REACHED, ErrorCode.INCONSISTENT_GROUP_PROTOCOL)


class SimMember:
    """One consumer process of a `SimCluster`; made by `SimCluster.add_member`.

    `held` is what its listener was told that it owns. `crash`, `close`, `freeze` and `thaw` are what can happen to it.
    """

    def __init__(
        self,
        cluster: SimCluster,
        name: str,
        settings: Mapping[str, Any],
        *,
        fetch: bool,
        habits: Habits,
        pattern: str | None,
        topics: list[str],
        rng: Random,
    ) -> None:
        self.name = name
        self.habits = habits
        self.held: set[TopicPartition] = set()
        self.is_alive = True
        self.is_closing = False
        self.errors: list[MusterError] = []
        """What its polls raised."""
        self.config = ConsumerConfig(client_id=name, enable_auto_commit=habits.commit == "auto", **settings)
        self.fetches = fetch
        self.core = ConsumerCore(self.config, fetch=fetch, seed=rng.getrandbits(31))
        self.core.listening = True
        self._cluster = cluster
        self._clock = cluster.clock
        self._invariants = cluster.invariants
        self._pattern = pattern
        self._topics = topics
        self._driver = SimDriver(
            name, self.identity, self.config, self.core.metadata, cluster.network, cluster.brokers, rng, self.wakeup
        )
        self._frozen = False
        self._scheduled = False
        self._away_until = 0
        self._timer: Timer | None = None
        self._positions: dict[TopicPartition, int] = {}
        self._program = self._read() if fetch else self._claim()
        self._wait = Wait()
        self._invariants.joined(self)
        self._clock.call_later(0, self._begin)

    def __repr__(self) -> str:
        return f"<{self.name} {self.state.value} {self.generation_id} {sorted(self.held)}>"

    # --- what others see ---------------------------------------------------------------------------------------------

    @property
    def identity(self) -> str:
        """The instance id of a static member, which outlives the process; else the process's name."""
        return self.config.group_instance_id or self.name

    @property
    def state(self) -> MemberState:
        """What it is to its group."""
        return self.core.member_state

    @property
    def generation_id(self) -> int:
        """The generation it believes in, -1 if none."""
        return self.core.group_metadata().generation_id

    @property
    def member_id(self) -> str:
        """The id that the coordinator gave it."""
        return self.core.group_metadata().member_id

    @property
    def is_settled(self) -> bool:
        """Whether it is stable, its listener has been told all, nothing is to be joined, and it is there to stay."""
        membership = self.core.group.membership
        at_rest = membership.step is Step.IDLE and not membership.rejoin_needed
        return self.state is MemberState.STABLE and at_rest and not (self._frozen or self.is_closing)

    def assignment(self) -> set[TopicPartition]:
        """What the consumer says it is assigned."""
        return set(self.core.subscription.assignment())

    # --- what can happen to it ---------------------------------------------------------------------------------------

    def crash(self) -> None:
        """The process ends on the spot: nothing is committed, nobody is told."""
        self._trace("crashes")
        self._end()

    def close(self) -> None:
        """The program ends as it should: it finishes its batch, commits, and leaves the group."""
        self._trace("is closed")
        self.is_closing = True
        self.wakeup()

    def freeze(self) -> None:
        """The process is stopped (SIGSTOP, a long garbage collection): not even heartbeats go out."""
        self._trace("freezes")
        self._frozen = True
        self._driver.freeze()

    def thaw(self) -> None:
        """The process goes on."""
        if self.is_alive and self._frozen:
            self._trace("thaws")
            self._frozen = False
            self._driver.thaw()

    def stay_away(self, milliseconds: int) -> None:
        """Let the handling of the next batch take so long; heartbeats go on meanwhile."""
        self.habits.stay_away_ms = milliseconds

    def come_back(self) -> None:
        """End the handling that keeps it away from poll."""
        self.habits.stay_away_ms = 0
        self._away_until = self._clock.now
        self.wakeup()

    def rewind(self, partition: TopicPartition, offset: int) -> None:
        """Have it read a partition that it holds from an earlier offset on, and commit that."""
        self._trace(f"rewinds {partition} to {offset}")
        self.core.subscription.seek(partition, offset)
        self._invariants.rewound(self, partition, offset)
        self.core.commit({partition: OffsetAndMetadata(offset)}, lambda _error, _now: None)
        self.wakeup()

    def _end(self) -> None:
        self.is_alive = False
        self._driver.kill()
        if self._timer is not None:
            self._timer.cancel()
        self._invariants.gone(self)

    # --- turning -----------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        if self._pattern is not None:
            self.core.subscribe_pattern(re.compile(self._pattern))
        else:
            self.core.subscribe(self._topics)
        self._resume()
        self.wakeup()

    def wakeup(self) -> None:
        """Have the cores polled soon."""
        if not self._scheduled and self.is_alive and not self._frozen:
            self._scheduled = True
            self._clock.call_later(0, self._turn)

    def _turn(self) -> None:
        self._scheduled = False
        if not self.is_alive or self._frozen:
            return
        self._poll_cores()
        wait, now = self._wait, self._clock.now
        if (wait.predicate is not None and wait.predicate()) or (wait.until is not None and now >= wait.until):
            self._resume()
        if self.is_alive:
            self._arm()

    def _poll_cores(self) -> None:
        now = self._clock.now
        self._driver.dispatch(self.core.metadata.poll(now))
        self._driver.dispatch(self.core.poll(now))
        for note in self.core.take_notes():
            self._trace(note.text)
        for node_id in self.core.take_given_up():
            self._driver.disconnect(node_id, Channel.COORDINATOR)

    def _resume(self) -> None:
        try:
            self._wait = next(self._program)
        except StopIteration:
            self._trace("has ended")
            self._end()
            return
        self.wakeup()

    def _arm(self) -> None:
        now = self._clock.now
        times = [self._wait.until, self.core.metadata.next_deadline(now), self.core.next_deadline(now)]
        due = min((time for time in times if time is not None), default=None)
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if due is None else self._clock.call_at(max(due, now + 1), self.wakeup)

    def _trace(self, text: str) -> None:
        self._cluster.trace(self.name, text)

    # --- programs: waiting, listening --------------------------------------------------------------------------------

    def _sleep(self, milliseconds: int) -> Program:
        until = self._clock.now + milliseconds
        while self._clock.now < until:
            yield Wait(until)

    def _handle_events(self) -> Program:
        """Run the listener for what has happened. An error ends the poll; the program takes a rest, and polls again."""
        while self.core.events:
            event = self.core.events.pop(0)
            if isinstance(event, RebalanceCallback):
                yield from self._tell_listener(event)
            elif isinstance(event, Fatal):
                self._on_error(event.error)
                self.core.leave_poll()
                yield from self._sleep(1_000)
                self.core.enter_poll(self._clock.now)
            elif isinstance(event, Note):
                self._trace(event.text)

    def _on_error(self, error: MusterError) -> None:
        self._trace(f"poll raises {error}")
        self.errors.append(error)
        code = error.code if isinstance(error, KafkaError) else None
        if code in _GIVES_UP:
            self.is_closing = True
        elif code not in _SURVIVES:
            raise InvariantError(f"{self.name}'s poll raises an error that nothing gave cause for: {error!r}")

    def _tell_listener(self, event: RebalanceCallback) -> Program:
        partitions = event.partitions
        self._trace(f"{event.kind.value} {', '.join(map(str, sorted(partitions))) or 'nothing'}")
        if event.kind is CallbackKind.LOST:
            self._give_up(partitions)
        elif event.kind is CallbackKind.ASSIGNED:
            self._invariants.assigned(self, partitions)
        yield from self._sleep(self.habits.listener_ms)
        if event.kind is CallbackKind.REVOKED:
            if self.habits.commit != "auto":
                yield from self._commit_sync({p: o for p, o in self._stand().items() if p in partitions}, 2_000)
            self._give_up(partitions)
        self.core.callback_done(event.token, self._clock.now)

    def _give_up(self, partitions: tuple[TopicPartition, ...]) -> None:
        self._invariants.given_up(self, partitions)
        for partition in partitions:
            self._positions.pop(partition, None)

    # --- programs: handling and committing ---------------------------------------------------------------------------

    def _handle(self, batch: Batch) -> Program:
        away, self.habits.stay_away_ms = self.habits.stay_away_ms, 0
        text = ", ".join(f"{partition}: {offsets[0]}-{offsets[-1]}" for partition, offsets in batch.items())
        self._trace(f"handles {text}")
        if away:
            self._trace(f"stays away from poll for {away} ms")
            self._away_until = self._clock.now + away
            yield Wait(self._away_until, lambda: self._away_until <= self._clock.now)
        yield from self._sleep(self.habits.handle_ms)
        for partition, offsets in batch.items():
            self._invariants.handled(partition, offsets)

    def _stand(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Where the application stands: what it may commit."""
        if self.fetches:
            return self.core.consumed()
        return {partition: OffsetAndMetadata(offset) for partition, offset in self._positions.items()}

    def _commit_sync(
        self,
        offsets: dict[TopicPartition, OffsetAndMetadata],
        timeout_ms: int,
        fence: Mapping[TopicPartition, int] | None = None,
    ) -> Program:
        """Commit and wait; failures are the application's loss, it goes on."""
        if not offsets:
            return
        outcome: list[MusterError | None] = []
        until = self._clock.now + timeout_ms
        self.core.commit(offsets, lambda error, _now: outcome.append(error), until=until, fence=fence)
        while not outcome:
            yield Wait(None, lambda: bool(outcome))
        if outcome[0] is not None:
            self._trace(f"commit failed: {outcome[0]}")

    # --- the program of a consumer that fetches ----------------------------------------------------------------------

    def _read(self) -> Program:
        while not self.is_closing:
            batch: Batch = {}
            yield from self._poll(batch)
            if not batch:
                continue
            yield from self._handle(batch)
            if self.habits.commit == "sync":
                yield from self._commit_sync(self._stand(), 5_000)
            elif self.habits.commit == "async":
                self.core.commit(self._stand(), lambda _error, _now: None)
        yield from self._say_goodbye()

    def _poll(self, batch: Batch) -> Program:
        """As `AsyncConsumer.poll`."""
        core = self.core
        deadline = self._clock.now + self.habits.poll_ms
        core.enter_poll(self._clock.now)
        while not self.is_closing:
            self._poll_cores()
            if core.events:
                yield from self._handle_events()
                continue
            for partition, records in core.collect(self.habits.max_records).items():
                offsets = range(records[0].offset, records[-1].offset + 1)
                self._invariants.handed_out(self, partition, offsets)
                batch[partition] = offsets
            if batch or self._clock.now >= deadline:
                break
            yield Wait(deadline, lambda: bool(core.events) or core.has_records or self.is_closing)
        core.leave_poll()

    def _say_goodbye(self) -> Program:
        """As `AsyncConsumer.close`."""
        core = self.core
        until = self._clock.now + 5_000
        core.commit_for_close(lambda _error, _now: None, until)
        yield Wait(until, lambda: not core.commits_pending)
        left: list[bool] = []
        core.unsubscribe(self._clock.now, lambda: left.append(True), "the consumer is being closed")
        while not left and self._clock.now < until:
            self._poll_cores()
            yield from self._handle_events()
            if not left:
                yield Wait(until, lambda: bool(left) or bool(core.events))

    # --- the program of a consumer that reads by itself --------------------------------------------------------------

    def _claim(self) -> Program:
        self.core.enter_poll(self._clock.now)
        while not self.is_closing:
            yield from self._handle_events()
            yield from self._find_positions()
            batch, fence = self._take_batch()
            if not batch:
                yield Wait(self._clock.now + 200, lambda: bool(self.core.events) or self.is_closing)
                continue
            yield from self._handle(batch)
            done = {p: OffsetAndMetadata(offsets[-1] + 1) for p, offsets in batch.items() if p in self.held}
            self._positions.update({p: offset.offset for p, offset in done.items()})
            yield from self._commit_sync(done, 5_000, {p: fence[p] for p in done})
        yield from self._say_goodbye()

    def _find_positions(self) -> Program:
        """Ask where to begin in partitions that are new."""
        new = [p for p in sorted(self.held) if p not in self._positions]
        if not new:
            return
        since = {p: self.core.ownership(p) for p in new}
        outcome: list[Any] = []
        self.core.fetch_committed(new, lambda found, _now: outcome.append(found), until=self._clock.now + 5_000)
        yield Wait(None, lambda: bool(outcome))
        if isinstance(outcome[0], MusterError):
            self._trace(f"where to begin is not known: {outcome[0]}")
            return
        for partition, committed in outcome[0].items():
            if since[partition] is not None and self.core.ownership(partition) == since[partition]:
                self._positions[partition] = 0 if committed is None else committed.offset

    def _take_batch(self) -> tuple[Batch, dict[TopicPartition, int]]:
        batch: Batch = {}
        fence: dict[TopicPartition, int] = {}
        for partition in sorted(self._positions):
            since = self.core.ownership(partition)
            begin = self._positions[partition]
            end = min(self._cluster.end_offset(partition), begin + self.habits.max_records)
            if since is None or end <= begin or partition not in self.held:
                continue
            batch[partition] = range(begin, end)
            fence[partition] = since
            self._invariants.handed_out(self, partition, batch[partition])
        return batch, fence
