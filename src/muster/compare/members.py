"""The members that are compared: one consumer of each scheme, which reports what it reads whenever that changes.

All have the same settings, where those exist: offsets are committed when a partition is given up and every
`AUTO_COMMIT_MS`, as in Kafka 0.8; assignment is by range; a session lasts `SESSION_MS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from muster.client.consumer.async_consumer import AsyncConsumer
from muster.client.consumer.handout import Records
from muster.client.consumer.listener import RebalanceListener
from muster.client.core.sends import AnySend
from muster.client.net.driver import Driver
from muster.compare.rules.formulas import Scheme
from muster.compare.rules.results import Work
from muster.errors import ConfigError
from muster.model import TopicPartition
from muster.zookeeper.base import znodes
from muster.zookeeper.base.operations import Ask, Plan, SessionEvent, SetData, Watched, ask
from muster.zookeeper.consumers.async_server_assigned_consumer import AsyncServerAssignedConsumer
from muster.zookeeper.consumers.async_watcher_consumer import AsyncWatcherConsumer
from muster.zookeeper.session.session import ZooKeeperSession
from muster.zookeeper.watchers.asks import StartFetching, StopFetching

SESSION_MS = 6_000
HEARTBEAT_MS = 1_000
AUTO_COMMIT_MS = 60_000
"""Kafka 0.8's default."""
BACKOFF_MS = 2_000
"""Kafka 0.8's default."""
TRIES = 20
"""More than Kafka 0.8's four: on a slow machine a member that gave up would begin a rebalance without a cause."""

TO_COORDINATORS = frozenset(
    ["FindCoordinator", "JoinGroup", "SyncGroup", "Heartbeat", "LeaveGroup", "OffsetCommit", "OffsetFetch"]
)

ReportOwned = Callable[[frozenset[int]], None]
"""Called with the partitions that the member reads from now on."""
Lost = Callable[[], None]
"""Called when the member's session has ended unexpectedly."""


class ComparedMember(Protocol):
    """One member. It belongs to the group from the first poll until it is closed."""

    async def poll(self, timeout_ms: int) -> Records:
        """Wait for records."""

    async def commit(self, offsets: dict[TopicPartition, int]) -> None:
        """Commit these offsets now, or raise a MusterError."""

    def assignment(self) -> set[TopicPartition]:
        """The partitions that it believes it reads."""

    async def close(self) -> None:
        """Leave the group."""

    def work(self) -> Work:
        """What it has done so far."""


def make(
    scheme: Scheme, where: Where, group: str, topic: str, name: str, tell: ReportOwned, lost: Lost
) -> ComparedMember:
    """A member of a scheme."""
    if scheme is Scheme.WATCHERS:
        return WatchingMember(where, group, topic, name, tell, lost)
    if scheme is Scheme.SERVER:
        return AssignedMember(where, group, topic, name, tell, lost)
    if scheme is Scheme.MEMBERS:
        return JoinSyncMember(where, group, topic, name, tell, lost)
    raise ConfigError(f"scheme {scheme.value} has no members that run here")


class Where(Protocol):
    """Where the servers are."""

    @property
    def zookeeper(self) -> str:
        """HOST:PORT/chroot."""

    @property
    def bootstrap(self) -> str:
        """The brokers."""

    @property
    def coordinators(self) -> str:
        """The listeners of scheme 2's coordinators."""

    @property
    def watch_brokers(self) -> bool:
        """Whether members of scheme 1 watch the brokers."""


class WatchingMember(AsyncWatcherConsumer):
    """Scheme 1."""

    def __init__(self, where: Where, group: str, topic: str, name: str, tell: ReportOwned, lost: Lost) -> None:
        super().__init__(
            zookeeper_connect=where.zookeeper,
            group_id=group,
            consumer_id=name,
            auto_offset_reset="earliest",
            zookeeper_session_timeout_ms=SESSION_MS,
            zookeeper_connection_timeout_ms=60_000,
            rebalance_backoff_ms=BACKOFF_MS,
            rebalance_max_retries=TRIES,
            auto_commit_interval_ms=AUTO_COMMIT_MS,
            watch_brokers=where.watch_brokers,
        )
        self._tell, self._lost = tell, lost
        self._zookeeper, self._znodes = where.zookeeper, znodes.GroupPaths(group)
        self.subscribe([topic])

    async def commit_again(self, offsets: dict[TopicPartition, int]) -> None:
        """Repeat a commit that failed because its session had expired, in another session. The consumer of 0.8 does so:
        its ZooKeeper client retries in the next session what failed in the last one."""
        async with ZooKeeperSession(self._zookeeper) as session:
            for partition, offset in offsets.items():
                await session.run(_written(self._znodes.offset(*partition), b"%d" % offset))

    async def _carry_out(self, what: Ask[Any]) -> Any:
        was_reading = bool(self._claimed)
        answer = await super()._carry_out(what)
        if isinstance(what, StartFetching) or (isinstance(what, StopFetching) and was_reading):
            self._tell(frozenset(partition.partition for partition in self._claimed))
        return answer

    def _on_event(self, event: Watched | SessionEvent) -> None:
        if event is SessionEvent.EXPIRED:
            self._lost()
        super()._on_event(event)

    def work(self) -> Work:
        """What it has done so far."""
        member = self._member
        return Work() if member is None else Work(member.rebalances, member.tries, member.conflicts)


def _written(path: str, data: bytes) -> Plan[None]:
    yield from ask(SetData(path, data))


class AssignedMember(AsyncServerAssignedConsumer):
    """Scheme 2."""

    def __init__(self, where: Where, group: str, topic: str, name: str, tell: ReportOwned, lost: Lost) -> None:
        super().__init__(
            coordinator_servers=where.coordinators,
            bootstrap_servers=where.bootstrap,
            group_id=group,
            client_id=name,
            auto_offset_reset="earliest",
            partition_assignment_strategy="range",
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=HEARTBEAT_MS,
            auto_commit_interval_ms=AUTO_COMMIT_MS,
        )
        self._tell, self._lost = tell, lost
        self._rebalances = 0
        self._id = ""
        self._requests: dict[str, int] | None = None
        self.subscribe([topic])

    async def start(self) -> None:
        """Join the group."""
        await super().start()
        if self._requests is None and self._loop is not None:
            self._requests = _count(self._loop.driver)

    def _positions_at_stop(self) -> dict[TopicPartition, int]:
        if self.assignment():
            self._tell(frozenset())
        return super()._positions_at_stop()

    def _read_from(self, partitions: Mapping[TopicPartition, int | None]) -> None:
        super()._read_from(partitions)
        before, self._id = self._id, self.group_metadata().member_id
        if before not in ("", self._id):
            self._lost()
        self._rebalances += 1
        self._tell(frozenset(partition.partition for partition in partitions))

    def work(self) -> Work:
        """What it has done so far."""
        return Work(self._rebalances, self._rebalances, 0, dict(self._requests or {}))


class JoinSyncMember(AsyncConsumer):
    """Scheme 3."""

    def __init__(self, where: Where, group: str, topic: str, name: str, tell: ReportOwned, lost: Lost) -> None:
        super().__init__(
            bootstrap_servers=where.bootstrap,
            group_id=group,
            client_id=name,
            auto_offset_reset="earliest",
            partition_assignment_strategy="range",
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=HEARTBEAT_MS,
            auto_commit_interval_ms=AUTO_COMMIT_MS,
        )
        self._kept = _Listener(tell, lost)
        self._requests = _count(self._driver)
        self.subscribe([topic], listener=self._kept)

    def work(self) -> Work:
        """What it has done so far."""
        return Work(self._kept.rebalances, self._kept.rebalances, 0, dict(self._requests))


class _Listener(RebalanceListener):
    """Keeps track of the assigned partitions."""

    def __init__(self, tell: ReportOwned, lost: Lost) -> None:
        self._tell, self._lost = tell, lost
        self._owned: frozenset[int] = frozenset()
        self.rebalances = 0

    def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
        self.rebalances += 1
        self._owned |= {partition.partition for partition in partitions}
        self._tell(self._owned)

    def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
        self._give_up(partitions)

    def on_partitions_lost(self, partitions: list[TopicPartition]) -> None:
        self._lost()
        self._give_up(partitions)

    def _give_up(self, partitions: list[TopicPartition]) -> None:
        self._owned -= {partition.partition for partition in partitions}
        self._tell(self._owned)


def _count(driver: Driver) -> dict[str, int]:
    """Count a client's requests to coordinators by name."""
    counted: dict[str, int] = {}
    dispatch = driver.dispatch

    def count(sends: Iterable[AnySend]) -> None:
        taken = list(sends)
        for send in taken:
            name = send.request_type.__name__.removesuffix("Request").removeprefix("Draft")
            if name in TO_COORDINATORS:
                counted[name] = counted.get(name, 0) + 1
        dispatch(taken)

    driver.dispatch = count  # type: ignore[method-assign]
    return counted
