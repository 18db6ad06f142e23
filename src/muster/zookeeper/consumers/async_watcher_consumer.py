"""`AsyncWatcherConsumer`: a consumer of scheme 1 for asyncio.

One task carries out the plans of a `WatcherMember` (`watchers/scheme.py`), one at a time, on a `ZooKeeperSession`. Its
partitions are read as in `assigned_reader.py`. This file connects the two.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import uuid
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from muster.client.consumer.async_consumer import AsyncConsumer, OffsetsToCommit
from muster.client.consumer.listener import RebalanceListener
from muster.client.core.checks import check_timeout
from muster.clock import monotonic_ms, wall_clock_ms
from muster.errors import (
    ClosedError,
    CommitFailedError,
    ErrorCode,
    IllegalStateError,
    KafkaTimeoutError,
    MusterError,
)
from muster.model import OffsetAndMetadata, TopicPartition
from muster.zookeeper.base.operations import Ask, Plan, SessionEvent, SessionExpiredError, Watched, ZooKeeperError
from muster.zookeeper.base.znodes import BrokerRegistration
from muster.zookeeper.consumers.assigned_reader import AsyncAssignedReader
from muster.zookeeper.consumers.watcher_config import WatcherConfig
from muster.zookeeper.session.session import ZooKeeperSession
from muster.zookeeper.watchers.asks import (
    ClaimedPartition,
    GiveUp,
    Level,
    NotifyUser,
    Pause,
    StartFetching,
    StopFetching,
    TimeOfDay,
)
from muster.zookeeper.watchers.scheme import WatcherMember
from muster.zookeeper.watchers.settings import new_consumer_id
from muster.zookeeper.watchers.states import WatcherState
from muster.zookeeper.watchers.subscription import WatcherSubscription

if TYPE_CHECKING:
    from muster.zookeeper.consumers.typed_settings import WatcherKeywords

log = logging.getLogger("muster.zookeeper.watcher")

T = TypeVar("T")

Topics = Mapping[str, int] | Iterable[str] | str

BROKER_CHECK_INTERVAL_MS = 1_000
"""How often it checks whether the brokers can be reached."""

_LEVELS = {Level.INFO: logging.INFO, Level.WARNING: logging.WARNING, Level.ERROR: logging.ERROR}


class AsyncWatcherConsumer(AsyncAssignedReader):
    """Reads records as a member of a group that ZooKeeper coordinates, as Kafka's consumers up to 0.8 did.

    It can share a group with Kafka's own consumers of that kind (0.8.2 to 1.1). Settings are those of `WatcherConfig`,
    by keyword or as a mapping with Kafka's dotted keys.

        async with AsyncWatcherConsumer(zookeeper_connect="localhost:2181", group_id="delays") as consumer:
            consumer.subscribe(["flights"])
            async for record in consumer:
                ...

    Delivery is at least once. When its session ends, a member continues until it learns of that; so two members may
    return the same records for a while, and the older one's commits may set the group back. That is a flaw of the
    scheme: the groups of `AsyncConsumer` do not have it.
    """

    def __init__(self, settings: Mapping[str, Any] | None = None, /, **more: Unpack[WatcherKeywords]) -> None:
        self._config = WatcherConfig.of(settings, **more)
        config = self._config
        group_id = config.group_id or ""
        if config.consumer_id is None:
            self.consumer_id = new_consumer_id(group_id, socket.gethostname(), wall_clock_ms(), uuid.uuid4().hex)
        else:
            self.consumer_id = f"{group_id}_{config.consumer_id}"
        super().__init__()
        self._member: WatcherMember | None = None
        self._session: ZooKeeperSession | None = None
        self._claimed: dict[TopicPartition, ClaimedPartition] = {}
        """The partitions that are read now; empty while nothing is fetched."""
        self._stopped_at: dict[TopicPartition, int] = {}
        """The positions after the processed records, when fetching was stopped."""
        self._starting = asyncio.Lock()
        self._has_session = False
        """Cleared between two sessions, when ZooKeeper cannot be asked."""
        self._turn = asyncio.Lock()
        """Held by the running plan: there is one at a time."""
        self._wake = asyncio.Event()
        """Set when the member has something to do."""
        self._watcher: asyncio.Task[None] | None = None
        self._commit_at = 0

    # --- life --------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Connect to ZooKeeper, and join the group once the consumer is subscribed. Every method that waits does this.

        Raises:
            ConnectionLossError: no ZooKeeper has answered within `zookeeper_connection_timeout_ms`.
        """
        self._check_open()
        if self._session is None:
            async with self._starting:
                await self._connect()
        if self._watcher is None and self._member is not None:
            self._watcher = asyncio.create_task(self._watch())

    async def _connect(self) -> None:
        if self._session is not None:
            return  # another task was faster
        config = self._config
        session = ZooKeeperSession(config.zookeeper_connect, timeout_ms=config.zookeeper_session_timeout_ms)
        session.listen(self._on_event)
        await session.start(config.zookeeper_connection_timeout_ms)
        if self._closing:
            await session.close()
            raise ClosedError("the consumer is closed")
        self._session = session

    @property
    def _has_begun(self) -> bool:
        return self._session is not None

    @property
    def _is_subscribed(self) -> bool:
        return self._member is not None

    def _seen(self) -> None:
        if self._member is not None:
            self._member.try_again()
            self._wake.set()

    async def _end(self, timeout_ms: int) -> None:
        """Commit if auto commit is on, and end the session, which deletes the id and the owner znodes."""
        try:
            if self._watcher is not None:
                self._watcher.cancel()
                await asyncio.wait([self._watcher])
            await self._shut_down_member(timeout_ms)
        finally:
            try:
                if self._session is not None:
                    await self._session.close()
            finally:  # even if the caller was interrupted, which cancels this
                if self._reader is not None:
                    await self._reader.close()

    async def _drop(self) -> None:
        """End the session, which deletes the id and the owner znodes."""
        if self._watcher is not None:
            self._watcher.cancel()
            await asyncio.wait([self._watcher])
        if self._session is not None:
            await self._session.close()

    async def _shut_down_member(self, timeout_ms: int) -> None:
        if self._session is None or self._member is None or self._defect is not None:
            return
        try:
            async with asyncio.timeout(timeout_ms / 1000), self._turn:
                await self._session.run(self._member.shut_down(), self._carry_out)
        except TimeoutError:
            log.warning("%s: the last offsets could not be committed in time", self.consumer_id)

    # --- subscribing -------------------------------------------------------------------------------------------------

    def subscribe(
        self,
        topics: Topics | None = None,
        *,
        pattern: str | None = None,
        black_list: str | None = None,
        num_streams: int = 1,
        listener: RebalanceListener | None = None,
    ) -> None:
        """Join the group, with a list of topics, a pattern that whole topic names must match, or one that they must not
        match.

        A consumer with several streams gets partitions for each of them, which `streams` shows. A mapping sets the
        number of streams of each topic. As in 0.8, a consumer can subscribe only once. The pattern must have the same
        meaning in Java and Python; commas separate alternatives.

        As in Kafka 0.8's own consumer, a rebalance does not wait for a poll. So the listener is called in its own task
        (by a `WatcherConsumer` in its own thread), at any time, even while the caller is processing records. Before
        `on_partitions_revoked` fetching has stopped, and processed records are committed if auto commit is on; the
        partitions are released only after it, so it may commit. Without arguments, its commit writes the same offsets
        as auto commit: records of the last poll do not count as processed yet. No records are returned before
        `on_partitions_assigned` has returned, so it may seek. An exception is raised by the next poll, and the
        rebalance continues.

        Raises:
            ConfigError: the pattern, a topic's name or a number of streams is wrong.
            IllegalStateError: it is already subscribed, or this call subscribes in two ways.
        """
        self._check_open()
        if self._member is not None:
            raise IllegalStateError("a WatcherConsumer can subscribe only once; create another one")
        if sum(way is not None for way in (topics, pattern, black_list)) != 1:
            raise IllegalStateError("subscribe() takes exactly one of topics, pattern and black_list")
        if topics is None:
            subscription = WatcherSubscription.to_list(
                pattern or black_list or "", num_streams, white=pattern is not None
            )
        else:
            subscription = WatcherSubscription.to_topics(_streams(topics, num_streams))
        self._listener = listener
        self._member = WatcherMember(self._config.settings(self.consumer_id), subscription)
        if self._session is not None:
            self._watcher = asyncio.get_running_loop().create_task(self._watch())

    def assignment(self) -> set[TopicPartition]:
        """The partitions that this consumer reads now."""
        return set(self._claimed)

    def streams(self) -> dict[str, set[TopicPartition]]:
        """The partitions of each stream that currently has any; Kafka calls a stream a thread."""
        found: dict[str, set[TopicPartition]] = {}
        for partition, reading in self._claimed.items():
            found.setdefault(reading.thread, set()).add(partition)
        return found

    @property
    def state(self) -> WatcherState:
        """The member's state in its group."""
        return self._member.state if self._member is not None else WatcherState.UNREGISTERED

    # --- committing --------------------------------------------------------------------------------------------------

    async def commit(self, offsets: OffsetsToCommit | None = None, timeout_ms: int | None = None) -> None:
        """Write offsets to ZooKeeper, by default the caller's position in every partition.

        It waits for a running rebalance. ZooKeeper does not check the writer: see the docstring of the class.

        Raises:
            CommitFailedError: this consumer no longer owns the partitions, or its session has expired.
            KafkaTimeoutError: not done within `timeout_ms` (`default_api_timeout_ms` if None).
            ZooKeeperError: ZooKeeper refused it.
        """
        within_ms = self._config.default_api_timeout_ms if timeout_ms is None else check_timeout(timeout_ms)
        await self.start()
        turn = self._from_listener if self._is_in_listener else self._turn
        try:
            async with asyncio.timeout(within_ms / 1000), turn:
                positions = self._stopped_at if self._stopped_at and offsets is None else self._to_commit(offsets)
                not_owned = await self._commit(positions)
                self._note_committed(positions)
        except TimeoutError:
            raise KafkaTimeoutError("the offsets could not be committed in time") from None
        except SessionExpiredError:
            raise CommitFailedError(ErrorCode.UNKNOWN_MEMBER_ID, "the session with ZooKeeper has expired") from None
        if not_owned and offsets is not None:
            text = f"{', '.join(map(str, not_owned))}: not owned by this consumer"
            raise CommitFailedError(ErrorCode.ILLEGAL_GENERATION, text)

    async def _commit(self, positions: Mapping[TopicPartition, int]) -> list[TopicPartition]:
        if self._member is None or self._session is None:
            return list(positions)
        return await self._session.run(self._member.commit(positions), self._carry_out)

    async def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """The group's committed offsets; None for a partition without one.

        Raises:
            IllegalStateError: it is not subscribed yet.
            ZooKeeperError: ZooKeeper refused it.
        """
        await self.start()
        if self._member is None or self._session is None:
            raise IllegalStateError("subscribe() before committed()")
        found = await self._session.run(self._member.committed([TopicPartition(*each) for each in partitions]))
        return {p: None if offset is None else OffsetAndMetadata(offset) for p, offset in found.items()}

    # --- the member --------------------------------------------------------------------------------------------------

    def _on_event(self, event: Watched | SessionEvent) -> None:
        if isinstance(event, SessionEvent):
            self._has_session = event is SessionEvent.CONNECTED or (
                self._has_session and event is not SessionEvent.EXPIRED
            )
        if event is SessionEvent.EXPIRED:
            self._stop_fetching()  # from now on the member knows that others own its partitions
        if self._member is not None:
            if isinstance(event, Watched):
                self._member.watched(event)
            else:
                self._member.session(event)
            self._wake.set()

    async def _watch(self) -> None:
        """Run the member's turns, and commit in between, until the consumer is closed."""
        assert self._member is not None
        self._commit_at = monotonic_ms() + self._config.auto_commit_interval_ms
        try:
            while True:
                self._wake.clear()
                if self._member.wants_attention and self._has_session:
                    async with self._turn:
                        await self._run(self._member.attend())
                elif self._config.enable_auto_commit and monotonic_ms() >= self._commit_at:
                    self._commit_at = monotonic_ms() + self._config.auto_commit_interval_ms
                    async with self._turn:
                        await self._auto_commit()
                elif (
                    self._has_session and self._claimed and self._reader is not None and self._reader._driver.is_cut_off
                ):
                    async with self._turn:
                        await self._find_brokers(self._reader)
                    await self._wait_for_work()
                else:
                    await self._wait_for_work()
        except ClosedError:
            pass
        except Exception as error:  # a defect: every poll reports it from now on
            log.exception("%s: a consumer that watches ZooKeeper failed", self.consumer_id)
            self._defect = error if isinstance(error, MusterError) else MusterError(f"the consumer failed: {error!r}")
            self._stop_fetching()
            self._wake_poll()
            if self._session is not None:
                await self._session.close()  # others must be able to take over its partitions

    async def _wait_for_work(self) -> None:
        wait_ms = BROKER_CHECK_INTERVAL_MS
        if self._config.enable_auto_commit:
            wait_ms = min(wait_ms, self._commit_at - monotonic_ms())
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0, wait_ms) / 1000):
                await self._wake.wait()

    async def _find_brokers(self, reader: AsyncConsumer) -> None:
        """Look up the brokers again: none of those that the reader knows answers, and they may have new addresses."""
        assert self._member is not None
        try:
            brokers = await self._run(self._member.brokers())
        except ZooKeeperError as error:
            log.warning("%s: no broker answers, and ZooKeeper could not be asked: %s", self.consumer_id, error)
        else:
            if brokers:
                reader._driver.set_bootstrap(self._config.addresses_of(brokers))

    async def _auto_commit(self) -> None:
        try:
            await self._commit(self._positions())
        except ZooKeeperError as error:
            log.warning("%s: auto commit failed: %s", self.consumer_id, error)

    async def _run(self, plan: Plan[T]) -> T:
        assert self._session is not None
        return await self._session.run(plan, self._carry_out)

    async def _carry_out(self, what: Ask[Any]) -> Any:
        """Carry out the member's asks that are not for ZooKeeper."""
        match what:
            case StopFetching():
                return self._stop_fetching()
            case GiveUp():
                method = "on_partitions_lost" if what.lost else "on_partitions_revoked"
                await self._notify_listener(method, what.partitions)
            case StartFetching():
                await self._start_fetching(what)
            case Pause():
                await asyncio.sleep(what.milliseconds / 1000)
            case TimeOfDay():
                return wall_clock_ms()
            case NotifyUser():
                log.log(_LEVELS[what.level], "%s: %s", self.consumer_id, what.message)
                if what.error is not None:
                    self._fail(what.error)
            case _:
                raise TypeError(f"unknown request: {what!r}")
        return None

    def _stop_fetching(self) -> dict[TopicPartition, int]:
        if self._claimed and self._reader is not None:
            self._stopped_at = self._positions_at_stop()
            self._claimed = {}
            self._reader.assign([])
        return dict(self._stopped_at)

    async def _start_fetching(self, what: StartFetching) -> None:
        self._stopped_at = {}
        await self._ensure_reader(what.brokers)
        self._claimed, self._is_held = what.partitions, self._listener is not None
        self._wake_poll()
        self._read_from({partition: reading.offset for partition, reading in what.partitions.items()})
        try:
            await self._notify_listener("on_partitions_assigned", what.partitions)
        finally:
            self._is_held = False
            self._wake_poll()
        log.info("%s: reads %s", self.consumer_id, ", ".join(map(str, sorted(what.partitions))) or "nothing")

    async def _ensure_reader(self, brokers: list[BrokerRegistration]) -> None:
        """Create the consumer that reads, or give it the brokers' current addresses."""
        if self._reader is None:
            reader = AsyncConsumer(self._config.of_reader(self.consumer_id, brokers))
            await reader.start()
            self._reader = reader
        else:
            self._reader._driver.set_bootstrap(self._config.addresses_of(brokers))


def _streams(topics: Topics, num_streams: int) -> Mapping[str, int]:
    if isinstance(topics, Mapping):
        return topics
    return dict.fromkeys([topics] if isinstance(topics, str) else topics, num_streams)
