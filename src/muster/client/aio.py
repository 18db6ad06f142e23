"""`AsyncConsumer`: the consumer for asyncio."""

from __future__ import annotations

import asyncio
import inspect
import logging
import random
import re
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from muster.client.config import ConsumerConfig
from muster.client.core.consumer import ConsumerCore
from muster.client.core.events import CallbackKind, Fatal, RebalanceCallback
from muster.client.core.sends import LEAST_LOADED, Channel, Failure, Send
from muster.client.core.subscription_state import OffsetReset, SubscriptionKind
from muster.client.described import metadata_request, partition_infos
from muster.client.driver import CoreLoop, Driver
from muster.client.listener import RebalanceListener
from muster.errors import (
    ClosedError,
    ConfigError,
    ErrorCode,
    IllegalStateError,
    KafkaError,
    KafkaTimeoutError,
    MusterError,
    error_code,
)
from muster.model import (
    ConsumerRecord,
    GroupMetadata,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    PartitionInfo,
    TopicPartition,
)
from muster.protocol.api import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from muster.protocol.messages import MetadataRequest, MetadataResponse

if TYPE_CHECKING:
    import pyarrow as pa

    from muster.client.arrow import ArrowReader

log = logging.getLogger("muster.client.consumer")

T = TypeVar("T")

Records = dict[TopicPartition, list[ConsumerRecord]]
OffsetsToCommit = Mapping[TopicPartition, OffsetAndMetadata | int]
CommitCallback = Callable[[dict[TopicPartition, OffsetAndMetadata], MusterError | None], Any]

DEFAULT_CLOSE_TIMEOUT_MS = 30_000


class AsyncConsumer:
    """Reads records, alone or as a member of a group.

    Settings are those of `ConsumerConfig`, by keyword or as a mapping with Kafka's dotted keys. Nothing is connected
    before the first call that needs it. One task polls; other methods may be called from other tasks meanwhile. The
    user's callbacks (listener, commit callbacks) are called from within `poll`, `commit`, `unsubscribe` and `close`.

        async with AsyncConsumer(bootstrap_servers="localhost:9092", group_id="delays") as consumer:
            consumer.subscribe(["flights"])
            async for record in consumer:
                ...
    """

    def __init__(self, settings: Mapping[str, Any] | None = None, /, **more: Any) -> None:
        self._config = _named(ConsumerConfig.of(settings, **more))
        self._core = ConsumerCore(self._config, seed=random.getrandbits(31))
        self._driver = Driver(self._config, self._core.metadata)
        self._loop = CoreLoop(self._driver, [self._core.metadata, self._core], self._on_turn)
        self._listener: RebalanceListener | None = None
        self._completed: deque[tuple[CommitCallback, dict[TopicPartition, OffsetAndMetadata], MusterError | None]]
        self._completed = deque()
        self._buffer: deque[ConsumerRecord] = deque()
        """What iteration has taken from the core and not yet handed out."""
        self._arrow: ArrowReader | None = None
        self._started = False
        self._polling = False
        self._closing = False
        self._closed = False
        self._call_user: Callable[..., Awaitable[None]] = _call_here

    # --- life --------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Begin to turn in the running event loop. Every method that waits does this by itself."""
        if self._closed:
            raise ClosedError("the consumer is closed")
        if not self._started:
            self._started = True
            await self._loop.start()

    async def close(self, timeout_ms: int = DEFAULT_CLOSE_TIMEOUT_MS) -> None:
        """Commit if auto commit is on, tell the listener, leave the group, close the connections.

        A static member (`group_instance_id`) does not leave: its place is kept for `session_timeout_ms`.
        """
        if self._closing:
            return
        self._closing = True  # not closed yet: the listener may still commit
        try:
            if self._started:
                await self._say_goodbye(self._driver.now() + timeout_ms)
        finally:
            self._closed = True
            if self._started:
                await self._loop.close()

    async def _say_goodbye(self, until: int) -> None:
        if self._loop.error is not None:
            return
        self._give_back(self._buffered_partitions())
        self._core.commit_for_close(self._note_goodbye_commit, until)
        await self._wait(lambda: not self._core.commits_pending, until)
        try:
            await self._run_commit_callbacks()
        finally:
            await self._leave("the consumer is being closed", until)
            if self._core.fetcher is not None:
                self._driver.dispatch(self._core.fetcher.closing_sends())
                await asyncio.sleep(0)

    def _note_goodbye_commit(self, error: MusterError | None, now: int) -> None:
        if error is not None:
            log.warning("the last auto commit of group %s failed: %s", self._config.group_id, error)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # --- subscribing -------------------------------------------------------------------------------------------------

    def subscribe(
        self,
        topics: Iterable[str] | str | None = None,
        *,
        pattern: str | re.Pattern[str] | None = None,
        listener: RebalanceListener | None = None,
    ) -> None:
        """Have the group assign partitions of topics, or of all topics whose whole name the pattern matches.

        Replaces an earlier subscription of the same kind; partitions come with the polls that follow.

        Raises:
            ConfigError: `group_id` is not set.
            IllegalStateError: subscribed in another way; `unsubscribe` comes first.
        """
        self._check_open()
        if (topics is None) == (pattern is None):
            raise IllegalStateError("subscribe to topics, or to a pattern")
        if pattern is not None:
            self._core.subscribe_pattern(re.compile(pattern))
        else:
            names = [topics] if isinstance(topics, str) else list(topics or ())
            if not names:
                raise IllegalStateError("there are no topics to subscribe to; unsubscribe() ends a subscription")
            self._core.subscribe(names)
        self._listener = listener
        self._core.listening = listener is not None
        self._loop.wakeup()

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Take partitions by hand, in place of those assigned by hand before. No group is joined (J7).

        Raises:
            IllegalStateError: subscribed to topics; `unsubscribe` comes first.
        """
        self._check_open()
        self._give_back(self._buffered_partitions())
        self._core.assign([TopicPartition(*partition) for partition in partitions])
        self._loop.wakeup()

    async def unsubscribe(self) -> None:
        """Give up all partitions, by telling the listener, and leave the group."""
        self._check_open()
        await self.start()
        self._give_back(self._buffered_partitions())
        until = self._driver.now() + self._config.default_api_timeout_ms
        await self._leave("the consumer unsubscribed from all topics", until)

    async def _leave(self, reason: str, until: int) -> None:
        left = asyncio.Event()
        self._core.unsubscribe(self._driver.now(), left.set, reason)
        raised: Exception | None = None
        while not left.is_set():
            self._turn()
            self._put_errors_aside()
            try:
                await self._handle_events()
            except Exception as error:  # the listener's: the group is to know all the same
                raised = raised or error
            if not await self._wait(lambda: left.is_set() or bool(self._core.events), until):
                break
        if raised is not None:
            raise raised

    def subscription(self) -> set[str]:
        """The topics subscribed to; for a pattern those that match it now."""
        return set(self._core.subscription.topics) if self._core.subscription.group_managed else set()

    def assignment(self) -> set[TopicPartition]:
        """The partitions that are this consumer's now."""
        return set(self._core.subscription.assignment())

    # --- reading -----------------------------------------------------------------------------------------------------

    async def poll(self, timeout_ms: int = 1_000, *, max_records: int | None = None) -> Records:
        """Wait for records, `timeout_ms` at most, and return up to `max_poll_records` of them, or none.

        Coming back for more says that the records handed out before are handled: auto commit and rebalances rely on
        it. A poll that is cancelled loses nothing.

        Raises:
            KafkaError: the group or a partition cannot be read, and trying again does not help.
            IllegalStateError: nothing is subscribed or assigned, or another task is polling.
        """
        await self._before_poll()
        limit = max_records or self._config.max_poll_records
        if self._buffer:
            return self._hand_out_buffer(limit)
        return await self._poll(timeout_ms, lambda: self._core.collect(limit))

    async def poll_arrow(
        self, timeout_ms: int = 1_000, *, columns: Sequence[str] | None = None
    ) -> dict[TopicPartition, pa.Table]:
        """`poll` that makes no object for each record: all that has arrived, as one `pyarrow.Table` for each partition.

        `columns` are some of key, value, topic, partition, offset, timestamp, timestampType (all of them by default)
        and headers, with the types that Spark's Kafka source gives them; what is not asked for is not copied. How much
        comes is bounded by the fetch settings; `max_poll_records` has no say. Everything else is as with `poll`.

        Needs `pip install 'muster-kafka[arrow]'`. Where numba is installed too, it decodes several times as fast; it is
        loaded after the first 50,000 records, for which everything waits: `muster.arrow.warm()` does that beforehand.

        Raises:
            ConfigError: pyarrow is not installed.
            ValueError: there is no such column.
        """
        reader = self._arrow_reader(columns)
        await self._before_poll()
        self._give_back(self._buffered_partitions())
        return await self._poll(timeout_ms, reader.collect)

    def _arrow_reader(self, columns: Sequence[str] | None) -> ArrowReader:
        try:
            from muster.arrow import COLUMNS
            from muster.client.arrow import ArrowReader
        except ImportError as error:
            text = "poll_arrow needs pyarrow, which is not installed: pip install 'muster-kafka[arrow]'"
            raise ConfigError(text) from error
        wanted = COLUMNS if columns is None else tuple(columns)
        assert self._core.fetcher is not None
        if self._arrow is None or self._arrow.columns != wanted:
            self._arrow = ArrowReader(self._config, self._core.fetcher, wanted)
        return self._arrow

    async def _before_poll(self) -> None:
        self._check_open()
        await self.start()
        if self._polling:
            raise IllegalStateError("another poll of this consumer is under way")
        if self._core.subscription.kind is SubscriptionKind.NONE:
            raise IllegalStateError("subscribe() or assign() before poll()")
        await asyncio.sleep(0)  # a loop around poll must not starve the other tasks, nor this one's connections

    async def _poll(self, timeout_ms: int, collect: Callable[[], dict[TopicPartition, T]]) -> dict[TopicPartition, T]:
        deadline = self._driver.now() + timeout_ms
        self._polling = True
        self._core.enter_poll(self._driver.now())
        try:
            while True:
                await self._run_commit_callbacks()
                self._turn()
                if await self._handle_events():
                    continue
                records = collect()
                if records or not await self._wait(self._has_news, deadline):
                    return records
        finally:
            self._polling = False
            self._core.leave_poll()

    async def getmany(self, *, timeout_ms: int = 0, max_records: int | None = None) -> Records:
        """`poll` that does not wait unless asked to."""
        return await self.poll(timeout_ms, max_records=max_records)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ConsumerRecord:
        while not self._buffer:
            try:
                await self._fill_buffer()
            except ClosedError:
                raise StopAsyncIteration from None
        return self._buffer.popleft()

    async def _fill_buffer(self) -> None:
        records = await self.poll(self._config.max_poll_interval_ms // 2)
        for batch in records.values():
            self._buffer.extend(batch)

    def _has_news(self) -> bool:
        return bool(self._core.events or self._completed or self._core.has_records)

    def _hand_out_buffer(self, limit: int) -> Records:
        records: Records = {}
        for _ in range(min(limit, len(self._buffer))):
            record = self._buffer.popleft()
            records.setdefault(TopicPartition(record.topic, record.partition), []).append(record)
        return records

    def _buffered_partitions(self) -> set[TopicPartition]:
        return {TopicPartition(record.topic, record.partition) for record in self._buffer}

    def _buffered_positions(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Where the user of the iterator stands in partitions of which records are buffered."""
        heads: dict[TopicPartition, OffsetAndMetadata] = {}
        for record in reversed(self._buffer):
            heads[TopicPartition(record.topic, record.partition)] = OffsetAndMetadata(
                record.offset, record.leader_epoch
            )
        return heads

    def _give_back(self, partitions: Iterable[TopicPartition]) -> None:
        """Have the buffered records of these partitions fetched again, if they are to be read at all."""
        gone = set(partitions)
        for partition, head in self._buffered_positions().items():
            if partition in gone and self._core.subscription.is_assigned(partition):
                self._core.subscription.seek(partition, head)
        self._buffer = deque(r for r in self._buffer if TopicPartition(r.topic, r.partition) not in gone)

    # --- where to read -----------------------------------------------------------------------------------------------

    def seek(self, partition: TopicPartition, offset: OffsetAndMetadata | int) -> None:
        """Read on from an offset. Raises IllegalStateError where the partition is not assigned."""
        self._core.subscription.seek(partition, offset)
        self._drop_buffered([partition])  # once the position is another
        self._loop.wakeup()

    def seek_to_beginning(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Read the oldest records there are; of all assigned partitions by default."""
        self._reset(partitions, OffsetReset.EARLIEST)

    def seek_to_end(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Read what comes from now on; of all assigned partitions by default."""
        self._reset(partitions, OffsetReset.LATEST)

    def _reset(self, partitions: Iterable[TopicPartition] | None, strategy: OffsetReset) -> None:
        chosen = self._core.subscription.assignment() if partitions is None else list(partitions)
        for partition in chosen:
            self._core.subscription.state(partition)  # raises where it is not assigned
        self._drop_buffered(chosen)
        for partition in chosen:
            self._core.subscription.request_reset(partition, strategy)
        self._loop.wakeup()

    def _drop_buffered(self, partitions: Iterable[TopicPartition]) -> None:
        gone = set(partitions)
        self._buffer = deque(r for r in self._buffer if TopicPartition(r.topic, r.partition) not in gone)

    async def position(self, partition: TopicPartition, timeout_ms: int | None = None) -> int:
        """The offset of the next record; waits while it has to be looked up.

        Raises:
            IllegalStateError: the partition is not assigned.
            KafkaTimeoutError: it could not be looked up in time.
        """
        await self.start()
        buffered = self._buffered_positions().get(partition)
        if buffered is not None:
            return buffered.offset
        subscription = self._core.subscription
        until = self._until(timeout_ms)
        # The partition may be given up meanwhile: then this raises, as it would have before.
        await self._wait(lambda: subscription.position(partition) is not None or self._has_fatal(), until)
        found = subscription.position(partition)
        if found is None:
            self._raise_fatal()
            raise KafkaTimeoutError(f"the position of {partition} could not be looked up in time")
        return found

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Hand out nothing of these partitions until they are resumed. They stay this consumer's."""
        chosen = list(partitions)
        self._give_back(chosen)
        self._core.subscription.pause(chosen)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Undo `pause`."""
        self._core.subscription.resume(partitions)
        self._loop.wakeup()

    def paused(self) -> set[TopicPartition]:
        """The paused partitions."""
        return set(self._core.subscription.paused())

    def lag(self, partition: TopicPartition) -> int | None:
        """How many records are still to be read, None before the first fetch."""
        found = self._core.fetcher.lag(partition) if self._core.fetcher is not None else None
        waiting = sum(1 for r in self._buffer if (r.topic, r.partition) == partition)
        return None if found is None else found + waiting

    # --- committing --------------------------------------------------------------------------------------------------

    async def commit(self, offsets: OffsetsToCommit | None = None, timeout_ms: int | None = None) -> None:
        """Commit offsets, by default where the user stands in all partitions; failures that may heal are tried again.

        Raises:
            CommitFailedError: the group has moved on. With code REBALANCE_IN_PROGRESS the next polls complete the
                rebalance, after which what is still assigned can be committed.
            KafkaTimeoutError: not done in `timeout_ms` (`default_api_timeout_ms` if None).
        """
        await self.start()
        outcome: asyncio.Future[MusterError | None] = asyncio.get_running_loop().create_future()
        chosen = self._to_commit(offsets)
        self._core.commit(chosen, partial(_settle, outcome), until=self._until(timeout_ms))
        self._loop.wakeup()
        error = await self._outcome(outcome)
        await self._run_commit_callbacks()
        if error is not None:
            raise error

    def commit_async(self, offsets: OffsetsToCommit | None = None, callback: CommitCallback | None = None) -> None:
        """Commit without waiting, one try. The callback gets the offsets and None, or what went wrong, in order."""
        self._check_open()
        chosen = self._to_commit(offsets)

        def on_done(error: MusterError | None, now: int) -> None:
            if callback is not None:
                self._completed.append((callback, chosen, error))
            elif error is not None:
                log.error("offsets of group %s were not committed: %s", self._config.group_id, error)
            if isinstance(error, KafkaError) and error.code is ErrorCode.FENCED_INSTANCE_ID:
                self._core.events.append(Fatal(error))

        self._core.commit(chosen, on_done)
        self._loop.wakeup()

    async def committed(
        self, partitions: Iterable[TopicPartition], timeout_ms: int | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """What the group has committed; None for a partition of which nothing is."""
        await self.start()
        outcome: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._core.fetch_committed(partitions, partial(_settle, outcome), until=self._until(timeout_ms))
        self._loop.wakeup()
        found: dict[TopicPartition, OffsetAndMetadata | None] | MusterError = await self._outcome(outcome)
        if isinstance(found, MusterError):
            raise found
        return found

    def _to_commit(self, offsets: OffsetsToCommit | None) -> dict[TopicPartition, OffsetAndMetadata]:
        if offsets is None:
            return self._core.consumed() | self._buffered_positions()
        return {
            TopicPartition(*partition): OffsetAndMetadata(offset) if isinstance(offset, int) else offset
            for partition, offset in offsets.items()
        }

    async def _run_commit_callbacks(self) -> None:
        while self._completed:
            callback, offsets, error = self._completed.popleft()
            await self._call_user(callback, offsets, error)

    # --- asking ------------------------------------------------------------------------------------------------------

    async def beginning_offsets(
        self, partitions: Iterable[TopicPartition], timeout_ms: int | None = None
    ) -> dict[TopicPartition, int]:
        """The oldest offsets that can be read."""
        found = await self._query(dict.fromkeys(partitions, EARLIEST_TIMESTAMP), timeout_ms)
        return {partition: offset.offset for partition, offset in found.items() if offset is not None}

    async def end_offsets(
        self, partitions: Iterable[TopicPartition], timeout_ms: int | None = None
    ) -> dict[TopicPartition, int]:
        """The offsets that the next records will get; for read_committed, where the first open transaction begins."""
        found = await self._query(dict.fromkeys(partitions, LATEST_TIMESTAMP), timeout_ms)
        return {partition: offset.offset for partition, offset in found.items() if offset is not None}

    async def offsets_for_times(
        self, timestamps: Mapping[TopicPartition, int], timeout_ms: int | None = None
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first offsets at or after timestamps (milliseconds since the epoch); None where there is none."""
        if any(timestamp < 0 for timestamp in timestamps.values()):
            raise IllegalStateError("a timestamp is at least 0: beginning_offsets and end_offsets find the ends")
        return await self._query(dict(timestamps), timeout_ms)

    async def _query(
        self, timestamps: dict[TopicPartition, int], timeout_ms: int | None
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        await self.start()
        query = self._core.offsets.query(timestamps)
        try:
            if not await self._wait(lambda: query.done, self._until(timeout_ms)):
                raise KafkaTimeoutError("the offsets could not be looked up in time")
        finally:
            self._core.offsets.cancel(query)
        if query.error is not None:
            raise query.error
        return query.results

    async def partitions_for(self, topic: str, timeout_ms: int | None = None) -> list[PartitionInfo]:
        """The partitions of a topic, and where they are; asks the cluster each time."""
        found = await self._describe([topic], timeout_ms)
        return found.get(topic, [])

    async def list_topics(self, timeout_ms: int | None = None) -> dict[str, list[PartitionInfo]]:
        """All topics that this client may see, with their partitions; asks the cluster each time."""
        return await self._describe(None, timeout_ms)

    async def _describe(self, topics: list[str] | None, timeout_ms: int | None) -> dict[str, list[PartitionInfo]]:
        await self.start()
        until = self._until(timeout_ms)
        while True:
            reply = await self._ask_metadata(topics, until)
            if isinstance(reply, MetadataResponse):
                described = partition_infos(reply)
                codes = [error_code(topic.error_code) for topic in reply.topics if topic.error_code and topics]
                if not codes:
                    return described
                if not codes[0].retriable or codes[0] is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    raise KafkaError(codes[0], f"topic {topics}")
            if self._driver.now() + self._config.retry_backoff_ms >= until:
                raise KafkaTimeoutError("the cluster did not describe its topics in time")
            await asyncio.sleep(self._config.retry_backoff_ms / 1000)

    async def _ask_metadata(self, topics: list[str] | None, until: int) -> MetadataResponse | Failure | None:
        """One question; None if there is no answer in time."""
        outcome: asyncio.Future[MetadataResponse | Failure] = asyncio.get_running_loop().create_future()

        build = partial(metadata_request, topics, self._config.allow_auto_create_topics)
        self._driver.dispatch([Send(LEAST_LOADED, MetadataRequest, build, partial(_settle, outcome))])
        try:
            async with asyncio.timeout(max(0, until - self._driver.now()) / 1000):
                reply = await outcome
        except TimeoutError:
            return None
        if isinstance(reply, Failure) and not reply.retriable:
            raise reply.error()
        return reply

    # --- the group ---------------------------------------------------------------------------------------------------

    def group_metadata(self) -> GroupMetadata:
        """Which member of which generation this consumer is now."""
        return self._core.group_metadata()

    def enforce_rebalance(self, reason: str = "rebalance enforced by user") -> None:
        """Have the group rebalanced at the next poll (KIP-568); the coordinator logs the reason."""
        self._core.enforce_rebalance(reason)
        self._loop.wakeup()

    # --- turning -----------------------------------------------------------------------------------------------------

    def _turn(self) -> None:
        """Have the core do now what is due, not at the loop's next round: its events are handled right after."""
        self._driver.dispatch(self._core.poll(self._driver.now()))
        self._loop.wakeup()

    def _on_turn(self, now: int) -> None:
        for note in self._core.take_notes():
            log.log(note.level, "%s", note.text)
        for node_id in self._core.take_given_up():
            self._driver.disconnect(node_id, Channel.COORDINATOR)

    async def _handle_events(self) -> bool:
        """Run the listener for what has happened, raise what has gone wrong. Whether there was anything to run."""
        ran = False
        while self._core.events:
            event = self._core.events.pop(0)
            if isinstance(event, Fatal):
                raise event.error
            if isinstance(event, RebalanceCallback):
                ran = True
                await self._tell_listener(event)
            else:
                log.log(event.level, "%s", event.text)
        return ran

    async def _tell_listener(self, event: RebalanceCallback) -> None:
        listener = self._listener
        try:
            if listener is not None:
                method = {
                    CallbackKind.ASSIGNED: listener.on_partitions_assigned,
                    CallbackKind.REVOKED: listener.on_partitions_revoked,
                    CallbackKind.LOST: listener.on_partitions_lost,
                }[event.kind]
                await self._call_user(method, list(event.partitions))
        finally:
            self._core.callback_done(event.token, self._driver.now())
            self._loop.wakeup()

    def _put_errors_aside(self) -> None:
        """Who leaves is not kept by what the next poll would have told."""
        for event in [event for event in self._core.events if isinstance(event, Fatal)]:
            self._core.events.remove(event)
            log.warning("%s", event.error)

    def _has_fatal(self) -> bool:
        return any(isinstance(event, Fatal) for event in self._core.events)

    def _raise_fatal(self) -> None:
        for event in list(self._core.events):
            if isinstance(event, Fatal):
                self._core.events.remove(event)
                raise event.error

    async def _wait(self, predicate: Callable[[], bool], until: int) -> bool:
        """Wait until the predicate holds; whether it did before `until`."""
        remaining = until - self._driver.now()
        if remaining <= 0:
            return predicate()
        return await self._loop.wait_for(predicate, remaining)

    async def _outcome(self, outcome: asyncio.Future[T]) -> T:
        await self._loop.wait_for(outcome.done)
        return outcome.result()

    def _until(self, timeout_ms: int | None) -> int:
        return self._driver.now() + (self._config.default_api_timeout_ms if timeout_ms is None else timeout_ms)

    def _check_open(self) -> None:
        if self._closing:
            raise ClosedError("the consumer is closed")


_consumers = count(1)


def _named(config: ConsumerConfig) -> ConsumerConfig:
    """With a client id as Kafka's own consumers have it: coordinators put it in front of member ids."""
    if config.client_id:
        return config
    last = config.group_instance_id or next(_consumers)
    return replace(config, client_id=f"consumer-{config.group_id}-{last}" if config.group_id else f"consumer-{last}")


async def _call_here(function: Callable[..., Any], *arguments: Any) -> None:
    result = function(*arguments)
    if inspect.isawaitable(result):
        await result


def _settle(outcome: asyncio.Future[Any], result: Any, now: int) -> None:
    if not outcome.done():
        outcome.set_result(result)
