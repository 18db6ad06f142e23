"""`AsyncWatcherConsumer`: a consumer of scheme 1 for asyncio.

One task carries out the plans of a `WatcherMember` (`watcher_scheme.py`), one at a time, on a `ZooKeeperSession`. What
the member owns is read by an `AsyncConsumer` without a group, to which partitions are assigned by hand: the same core
that every consumer has. This file joins the two.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import uuid
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, Self, TypeVar

from muster.client import AsyncConsumer, forks
from muster.client.async_consumer import DEFAULT_CLOSE_TIMEOUT_MS, has_ended_well
from muster.client.driver import monotonic_ms, wall_clock_ms
from muster.client.handout import Records
from muster.errors import (
    ClosedError,
    CommitFailedError,
    ConfigError,
    ErrorCode,
    IllegalStateError,
    KafkaTimeoutError,
    MusterError,
    WakeupError,
)
from muster.model import ConsumerRecord, OffsetAndMetadata, TopicPartition
from muster.zookeeper.operations import Ask, Plan, SessionEvent, SessionExpiredError, Watched, ZooKeeperError
from muster.zookeeper.session import ZooKeeperSession
from muster.zookeeper.watcher_asks import Level, Pause, Reading, StartFetching, StopFetching, Tell, TimeOfDay
from muster.zookeeper.watcher_config import WatcherConfig
from muster.zookeeper.watcher_scheme import WatcherMember
from muster.zookeeper.watcher_settings import new_consumer_id
from muster.zookeeper.watcher_states import WatcherState
from muster.zookeeper.watcher_subscription import Subscription

log = logging.getLogger("muster.zookeeper.watcher")

T = TypeVar("T")

Topics = Mapping[str, int] | Iterable[str] | str
OffsetsToCommit = Mapping[TopicPartition, OffsetAndMetadata | int]

_LEVELS = {Level.INFO: logging.INFO, Level.WARNING: logging.WARNING, Level.ERROR: logging.ERROR}


class AsyncWatcherConsumer(forks.StaysHere):
    """Reads records as a member of a group that ZooKeeper coordinates, as Kafka's consumers up to 0.8 did.

    It shares a group with Kafka's own consumers of that kind (0.8.2 to 1.1). Settings are those of `WatcherConfig`, by
    keyword or as a mapping with Kafka's dotted keys.

        async with AsyncWatcherConsumer(zookeeper_connect="localhost:2181", group_id="delays") as consumer:
            consumer.subscribe(["flights"])
            async for record in consumer:
                ...

    Records come at least once. Whatever has ended its session, a member goes on until it learns of that; so two members
    may hand out the same records for a while, and the commits of the older one may set the group back. That is the
    scheme's own flaw: `AsyncConsumer`'s groups do not have it.
    """

    def __init__(self, settings: Mapping[str, Any] | None = None, /, **more: Any) -> None:
        self._config = WatcherConfig.of(settings, **more)
        config = self._config
        group_id = config.group_id or ""
        if config.consumer_id is None:
            self.consumer_id = new_consumer_id(group_id, socket.gethostname(), wall_clock_ms(), uuid.uuid4().hex)
        else:
            self.consumer_id = f"{group_id}_{config.consumer_id}"
        self._member: WatcherMember | None = None
        self._session: ZooKeeperSession | None = None
        self._reader: AsyncConsumer | None = None
        self._addresses: set[str] = set()
        """The brokers from which the reader began."""
        self._readings: dict[TopicPartition, Reading] = {}
        """What is read now; empty while nothing is fetched."""
        self._stopped_at: dict[TopicPartition, int] = {}
        """The positions behind what was handled, when fetching was stopped."""
        self._starting = asyncio.Lock()
        self._has_session = False
        """Between the end of a session and the next one nothing can be asked."""
        self._turn = asyncio.Lock()
        """One plan at a time."""
        self._wake = asyncio.Event()
        """The member has something to do."""
        self._news = asyncio.Event()
        """There is something for a poll: another reader, an error, the end."""
        self._errors: deque[MusterError] = deque()
        self._watcher: asyncio.Task[None] | None = None
        self._last_task: asyncio.Task[Any] | None = None
        """The task to which records were handed out last."""
        self._commit_at = 0
        self._woken = False
        self._polling = False
        self._closing = False
        self._gone = asyncio.Event()
        """It is closed."""
        self._is_last_handled = False
        """At the close: whether what was handed out last is handled."""
        self._forks = forks.count

    # --- life --------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Connect to ZooKeeper, and take part in the group once it is subscribed. Every method that waits does this.

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
        session.listen(self._hear)
        await session.start(config.zookeeper_connection_timeout_ms)
        if self._closing:
            await session.close()
            raise ClosedError("the consumer is closed")
        self._session = session

    async def close(self, timeout_ms: int = DEFAULT_CLOSE_TIMEOUT_MS) -> None:
        """Stop fetching, commit if auto commit is on, and end the session: id and owners go with it.

        As with `AsyncConsumer`, the caller says with it that records handed out are handled, unless the task that has
        them is still at work or failed.
        """
        await self._close(timeout_ms, handled=has_ended_well(self._last_task))

    async def _close(self, timeout_ms: int, *, handled: bool) -> bool:
        """Close. Returns True: it is closed then, by this call or another."""
        if self._session is not None and self._forks != forks.count:
            return True
        if self._closing:
            await self._gone.wait()
            return True
        self._closing, self._is_last_handled = True, handled
        self._tell_poll()
        try:
            if self._watcher is not None:
                self._watcher.cancel()
                await asyncio.wait([self._watcher])
            await self._say_goodbye(timeout_ms)
        finally:
            try:
                if self._session is not None:
                    await self._session.close()
                if self._reader is not None:
                    await self._reader.close()
            finally:
                self._gone.set()
        return True

    async def _hang_up(self) -> None:
        """End a consumer that was dropped: nothing is committed; id and owners go."""
        if self._closing:
            return
        self._closing = True
        if self._watcher is not None:
            self._watcher.cancel()
            await asyncio.wait([self._watcher])
        if self._session is not None:
            await self._session.close()
        if self._reader is not None:
            await self._reader._hang_up()

    async def _say_goodbye(self, timeout_ms: int) -> None:
        if self._session is None or self._member is None:
            return
        try:
            async with asyncio.timeout(timeout_ms / 1000), self._turn:
                await self._session.run(self._member.shut_down(), self._carry_out)
        except TimeoutError:
            log.warning("%s: the last offsets could not be committed in time", self.consumer_id)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close(DEFAULT_CLOSE_TIMEOUT_MS, handled=kind is None and has_ended_well(self._last_task))

    def __del__(self) -> None:
        if getattr(self, "_session", None) is not None and not self._closing and self._forks == forks.count:
            warnings.warn("an AsyncWatcherConsumer was dropped without close()", ResourceWarning, stacklevel=2)

    def _check_open(self) -> None:
        if self._closing:
            raise ClosedError("the consumer is closed")
        if self._forks != forks.count:
            if self._session is not None:
                raise forks.orphaned("consumer")
            self._forks = forks.count

    # --- subscribing -------------------------------------------------------------------------------------------------

    def subscribe(
        self,
        topics: Topics | None = None,
        *,
        pattern: str | None = None,
        black_list: str | None = None,
        num_streams: int = 1,
    ) -> None:
        """Take part in the group, for topics, for all topics whose whole name a pattern matches, or for all others.

        A consumer with several streams gets as many members' parts: `streams` says which partitions belong to which. A
        mapping gives each topic a number of its own. As in 0.8 there is one subscription in a consumer's life. The
        pattern is one that Java and Python read alike; commas separate alternatives.

        Raises:
            ConfigError: the pattern, a topic's name or a number of streams is wrong.
            IllegalStateError: it is subscribed already, or to be subscribed in two ways.
        """
        self._check_open()
        if self._member is not None:
            raise IllegalStateError("a consumer that watches ZooKeeper subscribes once; make another one")
        if sum(way is not None for way in (topics, pattern, black_list)) != 1:
            raise IllegalStateError("subscribe to topics, to a pattern, or to all that is not on a black list")
        if topics is None:
            subscription = Subscription.to_list(pattern or black_list or "", num_streams, white=pattern is not None)
        else:
            subscription = Subscription.to_topics(_streams(topics, num_streams))
        self._member = WatcherMember(self._config.settings(self.consumer_id), subscription)
        if self._session is not None:
            self._watcher = asyncio.get_running_loop().create_task(self._watch())

    def assignment(self) -> set[TopicPartition]:
        """The partitions that this consumer reads now."""
        return set(self._readings)

    def streams(self) -> dict[str, set[TopicPartition]]:
        """The partitions of each stream that has some now; a stream is a thread in Kafka's words."""
        found: dict[str, set[TopicPartition]] = {}
        for partition, reading in self._readings.items():
            found.setdefault(reading.thread, set()).add(partition)
        return found

    @property
    def state(self) -> WatcherState:
        """Where it stands in its group."""
        return self._member.state if self._member is not None else WatcherState.UNREGISTERED

    # --- reading -----------------------------------------------------------------------------------------------------

    async def poll(self, timeout_ms: int = 1_000, *, max_records: int | None = None) -> Records:
        """Wait for records, `timeout_ms` at most, and return up to `max_poll_records` of them, or none.

        Calling it again says that the records of the last call are handled.

        Raises:
            RebalanceFailedError: another owner did not release in all tries. Polling again begins anew.
            WakeupError: `wakeup` was called.
            KafkaError: what reading raises, see `AsyncConsumer.poll`.
        """
        deadline = monotonic_ms() + timeout_ms

        async def read(reader: AsyncConsumer, left_ms: int) -> Records:
            return await reader.poll(left_ms, max_records=max_records)

        return await self._read(read, deadline) or {}

    async def getmany(self, *, timeout_ms: int = 0, max_records: int | None = None) -> Records:
        """`poll` that does not wait unless asked to."""
        return await self.poll(timeout_ms, max_records=max_records)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ConsumerRecord:
        try:
            return await self._next()
        except ClosedError:
            raise StopAsyncIteration from None

    async def _next(self) -> ConsumerRecord:
        """The next record, however long it takes. Raises ClosedError at the end."""

        async def read(reader: AsyncConsumer, left_ms: int) -> ConsumerRecord:
            return await anext(reader)

        while True:
            record: ConsumerRecord | None = await self._read(read, None)
            if record is not None:
                return record

    def _take_back(self) -> None:
        """The caller was interrupted before it got the last records: they are handed out again."""
        if self._reader is not None:
            self._reader._handout.take_back()

    async def _read(self, read: Callable[[AsyncConsumer, int], Any], deadline: int | None) -> Any:
        """Have `read` read for as long as there is time; None if there is no reader until then."""
        if self._member is None:
            raise IllegalStateError("subscribe() before poll()")
        if self._polling:
            raise IllegalStateError("another poll of this consumer is under way")
        self._polling = True
        try:
            await self.start()
            self._last_task = asyncio.current_task()
            while True:
                self._raise_told()
                self._news.clear()
                left_ms = 60_000 if deadline is None else max(0, deadline - monotonic_ms())
                if self._reader is not None:
                    with suppress(WakeupError):
                        return await read(self._reader, left_ms)
                elif not await self._wait_for_news(left_ms) and deadline is not None:
                    return None
        finally:
            self._polling = False

    async def _wait_for_news(self, within_ms: int) -> bool:
        try:
            async with asyncio.timeout(within_ms / 1000):
                await self._news.wait()
        except TimeoutError:
            return False
        return True

    def _raise_told(self) -> None:
        if self._closing:
            raise ClosedError("the consumer is closed")
        if self._woken:
            self._woken = False
            raise WakeupError("wakeup() was called")
        if self._errors:
            if self._member is not None:
                self._member.try_again()
                self._wake.set()
            raise self._errors.popleft()

    def wakeup(self) -> None:
        """Have the poll under way raise a WakeupError, or else the next one. No record is lost by it."""
        self._woken = True
        self._tell_poll()

    def _tell_poll(self) -> None:
        self._news.set()
        if self._reader is not None and self._polling:
            self._reader.wakeup()

    # --- where to read -----------------------------------------------------------------------------------------------

    def seek(self, partition: TopicPartition, offset: OffsetAndMetadata | int) -> None:
        """Read on from an offset, until the next rebalance. Raises IllegalStateError if it is not assigned."""
        self._assigned_reader(partition).seek(partition, offset)

    async def position(self, partition: TopicPartition, timeout_ms: int | None = None) -> int:
        """The offset of the next record; waits while it has to be looked up."""
        await self.start()
        return await self._assigned_reader(partition).position(partition, timeout_ms)

    def _assigned_reader(self, partition: TopicPartition) -> AsyncConsumer:
        self._check_open()
        if self._reader is None or partition not in self._readings:
            raise IllegalStateError(f"{partition} is not assigned to this consumer")
        return self._reader

    # --- committing --------------------------------------------------------------------------------------------------

    async def commit(self, offsets: OffsetsToCommit | None = None, timeout_ms: int | None = None) -> None:
        """Write offsets to ZooKeeper, by default the caller's position in every partition.

        A rebalance under way is waited for. ZooKeeper does not look at the writer: see the head of the class.

        Raises:
            CommitFailedError: partitions are not this consumer's any more, or its session has expired.
            KafkaTimeoutError: not done in `timeout_ms` (`default_api_timeout_ms` if None).
            ZooKeeperError: ZooKeeper refused it.
        """
        await self.start()
        within_ms = self._config.default_api_timeout_ms if timeout_ms is None else timeout_ms
        try:
            async with asyncio.timeout(within_ms / 1000), self._turn:
                strange = await self._commit(self._to_commit(offsets))
        except TimeoutError:
            raise KafkaTimeoutError("the offsets could not be committed in time") from None
        except SessionExpiredError:
            raise CommitFailedError(ErrorCode.UNKNOWN_MEMBER_ID, "the session with ZooKeeper has expired") from None
        if strange and offsets is not None:
            text = f"{', '.join(map(str, strange))}: not owned by this consumer"
            raise CommitFailedError(ErrorCode.ILLEGAL_GENERATION, text)

    async def _commit(self, positions: Mapping[TopicPartition, int]) -> list[TopicPartition]:
        if self._member is None or self._session is None:
            return list(positions)
        return await self._session.run(self._member.commit(positions), self._carry_out)

    def _to_commit(self, offsets: OffsetsToCommit | None) -> dict[TopicPartition, int]:
        if offsets is None:
            return self._positions(handed_out=True)
        return {
            TopicPartition(*partition): place if isinstance(place, int) else place.offset
            for partition, place in offsets.items()
        }

    def _positions(self, *, handed_out: bool = False) -> dict[TopicPartition, int]:
        """The positions behind what the caller has handled, in the partitions that are read now."""
        if self._reader is None:
            return {}
        handled = self._reader.handled(handed_out=handed_out)
        return {partition: offset for partition, offset in handled.items() if partition in self._readings}

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

    def _hear(self, event: Watched | SessionEvent) -> None:
        if isinstance(event, SessionEvent):
            self._has_session = event is SessionEvent.CONNECTED or (
                self._has_session and event is not SessionEvent.EXPIRED
            )
        if self._member is not None:
            if isinstance(event, Watched):
                self._member.watched(event)
            else:
                self._member.session(event)
            self._wake.set()

    async def _watch(self) -> None:
        """Give the member its turns, and commit in between, until the consumer is closed."""
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
                else:
                    await self._wait_for_work()
        except ClosedError:
            pass
        except Exception as error:  # a defect: the user learns of it at the next poll
            log.exception("%s: a consumer that watches ZooKeeper failed", self.consumer_id)
            failure = error if isinstance(error, MusterError) else MusterError(f"the consumer failed: {error!r}")
            self._errors.append(failure)
            self._tell_poll()

    async def _wait_for_work(self) -> None:
        wait_ms = self._commit_at - monotonic_ms() if self._config.enable_auto_commit else None
        with suppress(TimeoutError):
            async with asyncio.timeout(None if wait_ms is None else max(0, wait_ms) / 1000):
                await self._wake.wait()

    async def _auto_commit(self) -> None:
        try:
            await self._commit(self._positions())
        except ZooKeeperError as error:
            log.warning("%s: auto commit failed: %s", self.consumer_id, error)

    async def _run(self, plan: Plan[T]) -> T:
        assert self._session is not None
        return await self._session.run(plan, self._carry_out)

    async def _carry_out(self, what: Ask[Any]) -> Any:
        """Do what the member asks for beside ZooKeeper."""
        match what:
            case StopFetching():
                return self._stop_fetching()
            case StartFetching():
                await self._start_fetching(what)
            case Pause():
                await asyncio.sleep(what.milliseconds / 1000)
            case TimeOfDay():
                return wall_clock_ms()
            case Tell():
                log.log(_LEVELS[what.level], "%s: %s", self.consumer_id, what.message)
                if what.error is not None:
                    self._errors.append(what.error)
                    self._tell_poll()
            case _:
                raise TypeError(f"nothing here carries out {what!r}")
        return None

    def _stop_fetching(self) -> dict[TopicPartition, int]:
        if self._readings and self._reader is not None:
            self._stopped_at = self._positions(handed_out=self._closing and self._is_last_handled)
            self._readings = {}
            self._reader.assign([])
        return dict(self._stopped_at)

    async def _start_fetching(self, what: StartFetching) -> None:
        self._stopped_at = {}
        await self._have_reader(what)
        if self._reader is None:
            return
        self._readings = what.partitions
        self._reader.assign(what.partitions)
        for partition, reading in what.partitions.items():
            if reading.offset is not None:
                self._reader.seek(partition, reading.offset)
        log.info("%s: reads %s", self.consumer_id, ", ".join(map(str, sorted(what.partitions))) or "nothing")

    async def _have_reader(self, what: StartFetching) -> None:
        """Make the consumer that reads, or another one where none of the brokers is left that the last one knew."""
        settings = self._config.of_reader(self.consumer_id, what.brokers)
        addresses = set(settings["bootstrap_servers"])
        if not addresses:
            text = "no broker has a listener without encryption, which is what this consumer speaks"
            self._errors.append(ConfigError(text))
        elif self._reader is None or not addresses & self._addresses:
            last, self._reader = self._reader, AsyncConsumer(settings)
            self._addresses = addresses
            await self._reader.start()
            if last is not None:
                await last.close()
        self._tell_poll()


def _streams(topics: Topics, num_streams: int) -> Mapping[str, int]:
    if isinstance(topics, Mapping):
        return topics
    return dict.fromkeys([topics] if isinstance(topics, str) else topics, num_streams)
