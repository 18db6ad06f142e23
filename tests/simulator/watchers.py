"""Consumers of scheme 1 on the virtual clock: the real rules against the in-memory ZooKeeper, and what they deliver.

`SimWatcher` carries out what `WatcherMember` asks for. It reads from a `SimTopics`, in which every partition has a
record for each moment of its interval. The ledger there records which member got which record: so a test notices a
record that was read twice, one that was never read, and a partition that two members read at once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from random import Random
from typing import Any, NamedTuple

from muster.model import TopicPartition
from muster.zookeeper.base import znodes
from muster.zookeeper.base.operations import Ask, Create, NodeExistsError, SessionEvent, SetData, Watched
from muster.zookeeper.watchers.asks import GiveUp, Level, NotifyUser, Pause, StartFetching, StopFetching, TimeOfDay
from muster.zookeeper.watchers.scheme import WatcherMember
from muster.zookeeper.watchers.settings import WatcherSettings
from muster.zookeeper.watchers.states import WatcherState
from muster.zookeeper.watchers.subscription import WatcherSubscription
from tests.simulator.clock import VirtualClock
from tests.simulator.zookeeper import Running, SimSession, SimZooKeeper

_FETCH_MS = 100
"""How often a member reads."""

_STOP_MS = 150
"""How long it takes at most to stop fetching, unless a test sets another time: about 100 ms with Kafka's own."""


class Delivery(NamedTuple):
    """A record that a member has handed out."""

    at: int
    member: str
    partition: TopicPartition
    offset: int


class Overlap(NamedTuple):
    """Two members that both believe they own a partition."""

    at: int
    partition: TopicPartition
    members: tuple[str, str]


class SimTopics:
    """Topics whose partitions get a record every `interval_ms`, and the ledger of the records that were read."""

    def __init__(self, clock: VirtualClock, interval_ms: int = 50) -> None:
        self.clock = clock
        self.interval_ms = interval_ms
        self.deliveries: list[Delivery] = []
        self.overlaps: list[Overlap] = []
        self.readers: dict[TopicPartition, set[str]] = defaultdict(set)

    def end(self) -> int:
        """The offset of the next record, of any partition."""
        return self.clock.now // self.interval_ms

    def starts(self, member: str, partition: TopicPartition) -> None:
        """A member reads a partition from now on."""
        self.overlaps += [Overlap(self.clock.now, partition, (other, member)) for other in self.readers[partition]]
        self.readers[partition].add(member)

    def stops(self, member: str) -> None:
        """A member no longer reads anything."""
        for readers in self.readers.values():
            readers.discard(member)

    def twice(self) -> dict[tuple[TopicPartition, int], list[Delivery]]:
        """The records that were handed out more than once."""
        found: dict[tuple[TopicPartition, int], list[Delivery]] = defaultdict(list)
        for delivery in self.deliveries:
            found[delivery.partition, delivery.offset].append(delivery)
        return {record: deliveries for record, deliveries in found.items() if len(deliveries) > 1}


class SimWatcher:
    """A process with one consumer of scheme 1."""

    def __init__(
        self,
        zookeeper: SimZooKeeper,
        topics: SimTopics,
        settings: WatcherSettings,
        subscription: WatcherSubscription,
        rng: Random,
        *,
        server: int | None = None,
        auto_commit_interval_ms: int = 60_000,
        stop_ms: int = _STOP_MS,
    ) -> None:
        self.name = settings.consumer_id
        self.member = WatcherMember(settings, subscription)
        self.notices: list[NotifyUser] = []
        self.give_ups: list[GiveUp] = []
        """The partitions that its user was notified of losing."""
        self.brokers: list[znodes.BrokerRegistration] = []
        """The partitions from which it reads."""
        self.is_gone = False
        self._clock = zookeeper.clock
        self._topics = topics
        self._rng = rng
        self._interval_ms = auto_commit_interval_ms
        self._stop_ms = stop_ms
        self._positions: dict[TopicPartition, int] = {}
        self._is_fetching = False
        self._running: Running[Any] | None = None
        self._set_aside: list[Callable[[], None]] = []
        self.session: SimSession = zookeeper.connect(
            self.name, timeout_ms=settings.zookeeper_session_timeout_ms, server=server, listener=self._hear
        )
        self._later(_FETCH_MS, self._fetch)
        self._later(auto_commit_interval_ms, self._auto_commit)

    # --- for tests ---------------------------------------------------------------------------------------------------

    @property
    def is_at_rest(self) -> bool:
        """Whether it is idle until something changes."""
        return self.is_gone or (
            self.member.state is WatcherState.STABLE and self._running is None and not self.member.wants_attention
        )

    @property
    def reads(self) -> set[TopicPartition]:
        """The partitions from which it hands out records."""
        return set(self._positions) if self._is_fetching else set()

    def errors(self) -> list[str]:
        """The errors that it has reported to its user."""
        return [tell.message for tell in self.notices if tell.level is Level.ERROR]

    def leave(self) -> None:
        """Close the consumer."""
        if self._running is not None:
            self._running.cancel()
        self.is_gone = True
        self._running = self.session.run(self.member.shut_down(), self._carry_out, lambda _: self.session.close())

    def crash(self) -> None:
        """The process is killed: ZooKeeper notices it when the session has expired."""
        self.is_gone = True
        self._topics.stops(self.name)
        self._is_fetching = False
        self.session.freeze()

    def freeze(self) -> None:
        """The process is suspended."""
        self.session.freeze()

    def thaw(self) -> None:
        """It resumes, and does not know that time has passed."""
        set_aside, self._set_aside = self._set_aside, []
        for due in set_aside:
            self._clock.call_later(0, due)
        self.session.thaw()

    # --- its life ----------------------------------------------------------------------------------------------------

    def _later(self, delay_ms: int, call: Callable[..., None], *arguments: Any) -> None:
        def due() -> None:
            if self.session.is_frozen:
                self._set_aside.append(due)
            else:
                call(*arguments)

        self._clock.call_later(delay_ms, due)

    def _hear(self, event: Watched | SessionEvent) -> None:
        if isinstance(event, Watched):
            self.member.watched(event)
        else:
            if event is SessionEvent.EXPIRED:
                self._is_fetching = False
                self._topics.stops(self.name)
            self.member.session(event)
        self._attend()

    def _attend(self) -> None:
        if self._running is None and not self.is_gone and self.session.session_id and self.member.wants_attention:
            self._run(lambda: self.member.attend())

    def _run(self, plan: Callable[[], Any]) -> None:
        running = self.session.run(plan(), self._carry_out, self._done)
        if not running.is_done:
            self._running = running

    def _done(self, running: Running[Any]) -> None:
        self._running = None
        self._later(0, self._attend)

    def _auto_commit(self) -> None:
        if self.is_gone:
            return
        if self._running is None and self._is_fetching:
            self._run(lambda: self.member.commit(dict(self._positions)))
        self._later(self._interval_ms, self._auto_commit)

    def _fetch(self) -> None:
        if self.is_gone:
            return
        if self._is_fetching:
            for partition, position in self._positions.items():
                for offset in range(position, self._topics.end()):
                    self._topics.deliveries.append(Delivery(self._clock.now, self.name, partition, offset))
                self._positions[partition] = max(position, self._topics.end())
        self._later(_FETCH_MS, self._fetch)

    def _carry_out(self, what: Ask[Any], reply: Callable[[Any], None]) -> None:
        match what:
            case StopFetching():
                self._is_fetching = False
                self._topics.stops(self.name)
                self._later(self._rng.randint(0, self._stop_ms), reply, dict(self._positions))
            case GiveUp():
                self.give_ups.append(what)
                self._later(0, reply, None)
            case StartFetching():
                self._start(what)
                self._later(0, reply, None)
            case Pause():
                self._later(what.milliseconds, reply, None)
            case TimeOfDay():
                self._later(0, reply, self._clock.now)
            case NotifyUser():
                self._tell(what)
                self._later(0, reply, None)
            case _:
                raise TypeError(f"{what!r} is not known here")

    def _start(self, what: StartFetching) -> None:
        self._positions = {partition: reading.offset or 0 for partition, reading in what.partitions.items()}
        self._is_fetching = True
        self.brokers = what.brokers
        for partition in self._positions:
            self._topics.starts(self.name, partition)

    def _tell(self, what: NotifyUser) -> None:
        self.notices.append(what)
        if what.error is not None:  # the user's next poll
            self._later(1_000, self._come_back)

    def _come_back(self) -> None:
        self.member.try_again()
        self._attend()


def write_topics(zookeeper: SimZooKeeper, session: SimSession, topics: Mapping[str, int], brokers: int = 1) -> None:
    """Write brokers and topics as a cluster does; an existing topic gets its new number of partitions."""
    for path in (znodes.CONSUMERS, znodes.BROKERS, znodes.BROKER_IDS, znodes.BROKER_TOPICS):
        _create(zookeeper, session, path, None)
    for number in range(brokers):
        endpoints = (znodes.BrokerEndpoint("PLAINTEXT", "127.0.0.1", 9092 + number),)
        data = znodes.BrokerRegistration(number, endpoints, 0, 1).encode()
        _create(zookeeper, session, znodes.broker_path(number), data)
    for topic, partitions in topics.items():
        data = znodes.TopicRegistration({number: [0] for number in range(partitions)}, version=1).encode()
        if not _create(zookeeper, session, znodes.topic_path(topic), data):
            zookeeper.do(session, SetData(znodes.topic_path(topic), data))


def _create(zookeeper: SimZooKeeper, session: SimSession, path: str, data: bytes | None) -> bool:
    try:
        zookeeper.do(session, Create(path, data))
    except NodeExistsError:
        return False
    return True
