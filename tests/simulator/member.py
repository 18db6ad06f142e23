"""A simulated consumer process: a real `ConsumerCore`, its connections, and a program that uses it (`programs`).

The program is a generator that yields its waits (`Wait`). The member resumes it when the wait is over, in virtual time.
It polls the cores whenever something has arrived or is due, even while the program is busy.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any, Protocol

from muster.client.config import ConsumerConfig
from muster.client.core.consumer import ConsumerCore
from muster.client.core.events import Disconnect, Event, Note
from muster.client.core.group.member_state import MemberState, RebalanceStep
from muster.client.core.sends import Channel
from muster.errors import MusterError
from muster.model import OffsetAndMetadata, TopicPartition
from tests.simulator.checks import Invariants
from tests.simulator.clock import Timer, VirtualClock
from tests.simulator.driver import SimDriver
from tests.simulator.network import Network
from tests.simulator.nodes import SimBrokers


@dataclass(slots=True)
class Wait:
    """What a program waits for: a predicate, checked after each turn, or a certain time, whichever comes first."""

    until: int | None = None
    predicate: Callable[[], bool] | None = None


Program = Generator[Wait, None, None]


@dataclass(slots=True)
class Habits:
    """How an application uses its consumer; times in milliseconds.

    `commit` is "auto", "sync" (after each batch, waiting), "async" (after each batch, not waiting), "middle" (also half
    way through a batch) or "overlap" (like another thread: not waiting for a commit that may be retried).
    `stay_away_ms` is how long the handling of the next batch takes, once, whatever `handle_ms` says. One batch in
    `restless` is followed by something unusual: a seek, a pause, another subscription; 0 for none.
    """

    commit: str = "auto"
    handle_ms: int = 50
    listener_ms: int = 2
    poll_ms: int = 1_000
    max_records: int = 50
    stay_away_ms: int = 0
    restless: int = 0

    def be_quick(self) -> None:
        """Do nothing unusual from now on, and nothing that takes a long time."""
        self.restless = self.stay_away_ms = 0
        self.handle_ms = min(self.handle_ms, 300)
        self.listener_ms = min(self.listener_ms, 200)


class World(Protocol):
    """The functions of the cluster that a member uses; `SimCluster` is one."""

    clock: VirtualClock
    network: Network
    brokers: SimBrokers
    invariants: Invariants

    def trace(self, who: str, what: str) -> None:
        """Record an event."""

    def end_offset(self, partition: TopicPartition) -> int:
        """The offset that the next record of a partition gets."""


class SimMember:
    """One consumer process of a `SimCluster`; made by `SimCluster.add_member`.

    `held` are the partitions that its listener knows it owns. `crash`, `close`, `freeze` and `thaw` can happen to it.
    """

    def __init__(
        self,
        world: World,
        name: str,
        settings: Mapping[str, Any],
        *,
        fetch: bool,
        habits: Habits,
        pattern: str | None,
        topics: list[str],
        rng: Random,
        program: Callable[[SimMember], Program],
        by_hand: list[TopicPartition] | None = None,
    ) -> None:
        self.name = name
        self.habits = habits
        self.held: set[TopicPartition] = set()
        self.is_alive = True
        self.is_closing = False
        self.errors: list[MusterError] = []
        """The errors that its polls raised."""
        self.config = ConsumerConfig(client_id=name, enable_auto_commit=habits.commit == "auto", **settings)
        self.group_id = self.config.group_id or ""
        self.fetches = fetch
        self.core = ConsumerCore(self.config, fetch=fetch, seed=rng.getrandbits(31))
        self.core.listening = True
        self.world = world
        self.clock = world.clock
        self.invariants = world.invariants
        self.pattern = pattern
        self.topics = topics
        self.by_hand = by_hand
        """The partitions that it assigns itself, without the group; None if the group assigns them."""
        self.rng = rng
        self.could_not_commit = False
        """Whether an auto commit before a rebalance has failed since this was last read."""
        self.away_until = 0
        self._driver = SimDriver(
            name, self.identity, self.config, self.core.metadata, world.network, world.brokers, rng, self.wakeup
        )
        self._driver.on_sent = lambda request: self.invariants.sent(name, request)
        self._driver.on_delivered = lambda answer: self.invariants.delivered(name, answer)
        self._frozen = False
        self._scheduled = False
        self._timer: Timer | None = None
        self._program = program(self)
        self._wait = Wait()
        self.invariants.joined(self)
        self.clock.call_later(0, self._begin)

    def __repr__(self) -> str:
        return f"<{self.name} {self.state.value} {self.generation_id} {sorted(self.held)}>"

    # --- what others see ---------------------------------------------------------------------------------------------

    @property
    def identity(self) -> str:
        """The instance id of a static member, which outlives the process; otherwise the process's name."""
        return self.config.group_instance_id or self.name

    @property
    def state(self) -> MemberState:
        """Its state in its group."""
        return self.core.member_state

    @property
    def generation_id(self) -> int:
        """The generation according to the member, -1 if none."""
        return self.core.group_metadata().generation_id

    @property
    def member_id(self) -> str:
        """The member id that the coordinator gave it."""
        return self.core.group_metadata().member_id

    @property
    def is_settled(self) -> bool:
        """Whether it is stable, its listener has been called, no join is due, and it is not about to end."""
        if self.by_hand is not None:
            return not (self._frozen or self.is_closing)
        membership = self.core.group.membership
        at_rest = (
            membership.step is RebalanceStep.IDLE and not membership.rejoin_needed and not membership.callback_pending
        )
        return self.state is MemberState.STABLE and at_rest and not (self._frozen or self.is_closing)

    @property
    def is_frozen(self) -> bool:
        """Whether the process is suspended."""
        return self._frozen

    def assignment(self) -> set[TopicPartition]:
        """The consumer's own assignment."""
        return set(self.core.subscription.assignment())

    # --- events ---------------------------------------------------------------------------------------

    def crash(self) -> None:
        """The process ends immediately: nothing is committed, and no request is sent."""
        self.trace("crashes")
        self._end()

    def close(self) -> None:
        """The program ends properly: it finishes its batch, commits, and leaves the group."""
        if not self.is_closing:
            self.trace("is closed")
            self.is_closing = True
            self.wakeup()

    def freeze(self) -> None:
        """The process is suspended (SIGSTOP, a long garbage collection): not even heartbeats are sent."""
        self.trace("freezes")
        self._frozen = True
        self._driver.freeze()

    def thaw(self) -> None:
        """The process resumes. For the process it is as if its clock had jumped."""
        if self.is_alive and self._frozen:
            self.trace("thaws")
            self._frozen = False
            self._driver.thaw()

    def stay_away(self, milliseconds: int) -> None:
        """Make the handling of the next batch take this long; heartbeats continue meanwhile."""
        self.habits.stay_away_ms = milliseconds

    def come_back(self) -> None:
        """End the handling that keeps it away from poll."""
        self.habits.stay_away_ms = 0
        self.away_until = self.clock.now
        self.wakeup()

    def rewind(self, partition: TopicPartition, offset: int) -> None:
        """Make it read a partition that it holds from an earlier offset on, and commit that."""
        self.trace(f"rewinds {partition} to {offset}")
        self.core.subscription.seek(partition, offset)
        self.invariants.group(self.group_id).offsets.sought(self, partition, offset)
        self.core.commit({partition: OffsetAndMetadata(offset)}, lambda _error, _now: None)
        self.wakeup()

    def _end(self) -> None:
        self.is_alive = False
        self._driver.kill()
        if self._timer is not None:
            self._timer.cancel()
        self.invariants.gone(self)

    # --- turns -----------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        self.subscribe()
        self._resume()
        self.wakeup()

    def subscribe(self, topics: list[str] | None = None) -> None:
        """Subscribe to its own topics, or to others. By hand: take the partitions, from the group's offsets."""
        if self.by_hand is not None:
            self.core.assign(self.by_hand)
            self.held = set(self.by_hand)
            self.invariants.group(self.group_id).offsets.begin(self, self.by_hand)
        elif topics is None and self.pattern is not None:
            self.core.subscribe_pattern(re.compile(self.pattern))
        else:
            self.core.subscribe(self.topics if topics is None else topics)

    def wakeup(self) -> None:
        """Make the cores be polled soon."""
        if not self._scheduled and self.is_alive and not self._frozen:
            self._scheduled = True
            self.clock.call_later(0, self._turn)

    def _turn(self) -> None:
        self._scheduled = False
        if not self.is_alive or self._frozen:
            return
        self.poll_cores()
        wait, now = self._wait, self.clock.now
        if (wait.predicate is not None and wait.predicate()) or (wait.until is not None and now >= wait.until):
            self._resume()
        if self.is_alive:
            self._arm()

    def poll_cores(self) -> None:
        """Let the cores do what is due, and send the resulting requests."""
        now = self.clock.now
        self._driver.dispatch(self.core.metadata.poll(now))
        self._driver.dispatch(self.core.poll(now))
        for event in self.core.take_events(for_user=False):
            self.attend(event)

    def attend(self, event: Event) -> None:
        """Handle an event that is not for the user."""
        if isinstance(event, Note):
            self.trace(event.text)
            self.could_not_commit = self.could_not_commit or event.text.startswith("offsets could not be committed")
        elif isinstance(event, Disconnect):
            self._driver.disconnect(event.node_id, Channel.COORDINATOR)

    def _resume(self) -> None:
        try:
            self._wait = next(self._program)
        except StopIteration:
            self.trace("has ended")
            self._end()
            return
        self.wakeup()

    def _arm(self) -> None:
        now = self.clock.now
        times = [self._wait.until, self.core.metadata.next_deadline(now), self.core.next_deadline(now)]
        due = min((time for time in times if time is not None), default=None)
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if due is None else self.clock.call_at(max(due, now + 1), self.wakeup)

    def trace(self, text: str) -> None:
        """Record what it does."""
        self.world.trace(self.name, text)
