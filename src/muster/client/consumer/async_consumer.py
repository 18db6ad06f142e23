"""`AsyncConsumer`: the asyncio consumer."""

from __future__ import annotations

import asyncio
import random
import re
import warnings
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import count
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

from muster.client.config import ConsumerConfig
from muster.client.consumer.decoding import DecodingHandout
from muster.client.consumer.handout import Handout, Records
from muster.client.consumer.listener import RebalanceListener
from muster.client.consumer.pump import CommitCallback, ConsumerPump, Offsets, call_here, log, settle
from muster.client.consumer.queries import ConsumerQueries
from muster.client.core.checks import MAX_INT, check_number, check_timeout, compile_pattern
from muster.client.core.consumer import ConsumerCore, OnDone
from muster.client.core.subscription_state import OffsetReset, SubscriptionKind
from muster.client.hooks import ConsumerHookCalls, ConsumerHooks
from muster.client.metrics import Metrics, of_consumer
from muster.client.net import forks
from muster.client.net.measures import RecordCounts
from muster.client.serde import DeserializerLike, Deserializers
from muster.errors import (
    ClosedError,
    ConfigError,
    IllegalStateError,
    KafkaTimeoutError,
    MusterError,
)
from muster.model import (
    ConsumerRecord,
    GroupMetadata,
    OffsetAndMetadata,
    TopicPartition,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from muster.client.consumer.arrow import ArrowReader
    from muster.client.typed_settings import ConsumerKeywords

T = TypeVar("T")

OffsetsToCommit = Mapping[TopicPartition, OffsetAndMetadata | int]

DEFAULT_CLOSE_TIMEOUT_MS = 30_000

_ABRUPT_CLOSE_MS = 1_000


class AsyncConsumer(ConsumerQueries):
    """Reads records, alone or as a member of a group.

    Settings are those of `ConsumerConfig`, by keyword or as a mapping with Kafka's dotted keys. No connection is made
    before the first call that needs one. One task polls; other tasks may call other methods at the same time. The
    user's callbacks (listener, commit callbacks) are called from within `poll`, `commit`, `unsubscribe` and `close`.

        async with AsyncConsumer(bootstrap_servers="localhost:9092", group_id="delays") as consumer:
            consumer.subscribe(["flights"])
            async for record in consumer:
                ...
    """

    def __init__(
        self,
        settings: Mapping[str, Any] | None = None,
        /,
        *,
        key_deserializer: DeserializerLike | None = None,
        value_deserializer: DeserializerLike | None = None,
        hooks: Sequence[ConsumerHooks] = (),
        **more: Unpack[ConsumerKeywords],
    ) -> None:
        deserializers = Deserializers(key_deserializer, value_deserializer)
        self._config = _named(ConsumerConfig.of(settings, **more))
        self._core = ConsumerCore(self._config, seed=random.getrandbits(31))
        self._pump = ConsumerPump(self._core)
        self._driver, self._loop = self._pump.driver, self._pump.loop
        self._decoding: DecodingHandout | None = None
        if deserializers:
            self._decoding = DecodingHandout(self._core.subscription, deserializers.read)
        self._handout = self._decoding or Handout(self._core.subscription)
        self._core.unhandled = self._handout.unhandled
        self._arrow: ArrowReader | None = None
        self._consumed = RecordCounts()
        self._hooks = ConsumerHookCalls(hooks)
        if self._hooks and self._config.group_id is not None:
            self._core.group.commits.on_committed = self._hooks.committed
        self._started = False
        self._polling = False
        self._reading_task: asyncio.Task[Any] | None = None
        """The task to which records were handed out last."""
        self._closing = False
        self._closed = False
        self._ended = asyncio.Event()
        self._closed_by_loop = False
        """Whether the loop thread calls `_close_abruptly` when it ends, so that an interrupted call need not."""
        self._forks = forks.count

    # --- life --------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start in the running event loop. Every method that waits does this too."""
        if self._forks != forks.count:
            if self._started:
                raise forks.orphaned("consumer")
            self._forks = forks.count
        if self._closed:
            raise ClosedError("the consumer is closed")
        if not self._started:
            self._started = True
            await self._loop.start()

    async def close(self, timeout_ms: int = DEFAULT_CLOSE_TIMEOUT_MS) -> None:
        """Commit if auto commit is on, call the listener, leave the group, close the connections.

        Calling `close` means that all records handed out are handled: they are committed. Records that iteration has
        not reached are not. The last records are not committed either if the task that got them is still running,
        failed or was cancelled, or if an exception leaves `async with`.

        A static member (`group_instance_id`) does not leave: it keeps its membership for `session_timeout_ms`.
        """
        await self._close(check_timeout(timeout_ms), handled=has_ended_well(self._reading_task))

    async def _close(self, timeout_ms: int, *, handled: bool) -> bool:
        """Close. Returns whether the consumer is closed now: False if a callback called by `close` calls this."""
        if self._started and self._forks != forks.count:
            return True  # the connections belong to the parent process
        if self._closing:
            if not self._pump.in_callback:
                await self._ended.wait()
            return self._closed
        self._closing = True  # not closed yet: the listener may still commit
        try:
            if self._started:
                await self._close_gracefully(self._driver.now() + timeout_ms, handled=handled)
        except (asyncio.CancelledError, KeyboardInterrupt, SystemExit):
            if not self._closed_by_loop:
                await self._close_abruptly()
            raise
        except BaseException:
            await self._end()
            raise
        await self._end()
        return True

    async def _end(self) -> None:
        self._closed = True
        self._handout.clear()
        try:
            if self._started:
                await self._loop.close()
        finally:
            self._ended.set()

    async def _close_abruptly(self) -> None:
        """End a consumer that was dropped, or whose close was interrupted: nothing is committed and no listener is
        called; it briefly tries to leave the group.
        """
        if self._ended.is_set():
            return
        why = "the consumer's close was interrupted" if self._closing else "the consumer was dropped"
        self._closing = True
        self._handout.end(handled=False)
        self._pump.listener, self._pump.call_user = None, call_here
        self._core.listening = False
        try:
            if self._started and not self._closed:
                with suppress(MusterError):
                    await self._pump.leave(why, self._driver.now() + _ABRUPT_CLOSE_MS)
        finally:
            await self._end()

    async def _close_gracefully(self, until: int, *, handled: bool) -> None:
        self._handout.end(handled=handled)
        if self._loop.error is not None:
            return
        self._core.commit_for_close(self._log_last_commit, until)
        try:
            await self._pump.wait(lambda: not self._core.commits_pending, until)
            await self._pump.run_commit_callbacks()
        finally:
            await self._pump.leave("the consumer is being closed", until)
            if self._core.fetcher is not None:
                self._driver.dispatch(self._core.fetcher.closing_sends())
                await asyncio.sleep(0)

    def _log_last_commit(self, error: MusterError | None, now: int) -> None:
        if error is not None:
            log.warning("the last auto commit of group %s failed: %s", self._config.group_id, error)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close(DEFAULT_CLOSE_TIMEOUT_MS, handled=kind is None and has_ended_well(self._reading_task))

    def __del__(self) -> None:
        if getattr(self, "_started", False) and not self._closed and self._forks == forks.count:
            warnings.warn("an AsyncConsumer was dropped without close()", ResourceWarning, source=self, stacklevel=2)

    # --- subscribing -------------------------------------------------------------------------------------------------

    def subscribe(
        self,
        topics: Iterable[str] | str | None = None,
        *,
        pattern: str | re.Pattern[str] | None = None,
        listener: RebalanceListener | None = None,
    ) -> None:
        """Subscribe to topics, or to all topics whose whole name matches the pattern; the group assigns the partitions.

        Replaces an earlier subscription of the same kind; later polls assign the partitions.

        Raises:
            ConfigError: `group_id` is not set.
            IllegalArgumentError: the pattern is not a regular expression.
            IllegalStateError: subscribed in another way; call `unsubscribe` first.
        """
        self._check_open()
        if (topics is None) == (pattern is None):
            raise IllegalStateError("subscribe to topics, or to a pattern")
        if pattern is not None:
            self._core.subscribe_pattern(compile_pattern(pattern))
        else:
            names = [topics] if isinstance(topics, str) else list(topics or ())
            if not names:
                raise IllegalStateError("there are no topics to subscribe to; unsubscribe() ends a subscription")
            self._core.subscribe(names)
        self._pump.listener = listener
        self._core.listening = listener is not None
        self._loop.wakeup()

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Assign partitions manually; replaces an earlier manual assignment. No group is joined (J7).

        Raises:
            IllegalStateError: subscribed to topics; call `unsubscribe` first.
        """
        self._check_open()
        self._handout.mark_all_handled()
        self._core.assign([TopicPartition(*partition) for partition in partitions])
        self._loop.wakeup()

    async def unsubscribe(self) -> None:
        """Give up all partitions, call the listener, and leave the group."""
        self._check_open()
        await self.start()
        await self._pump.leave("the consumer unsubscribed from all topics", self._pump.until(None))

    def subscription(self) -> set[str]:
        """The subscribed topics; for a pattern, those that match it now."""
        return set(self._core.subscription.topics) if self._core.subscription.group_managed else set()

    def assignment(self) -> set[TopicPartition]:
        """The partitions currently assigned to this consumer."""
        return set(self._core.subscription.assignment())

    # --- reading -----------------------------------------------------------------------------------------------------

    async def poll(self, timeout_ms: int = 1_000, *, max_records: int | None = None) -> Records:
        """Wait for records for at most `timeout_ms`, and return up to `max_poll_records` of them, or none.

        The next poll means that the records handed out before are handled: auto commit and rebalances
        rely on it. A poll that is cancelled loses nothing.

        Raises:
            KafkaError: the group or a partition cannot be read, and the error is not retriable.
            IllegalArgumentError: `timeout_ms` is negative, or a float (perhaps meant as seconds).
            IllegalStateError: nothing is subscribed or assigned, or another task is polling.
            WakeupError: `wakeup` was called.
        """
        limit = self._limit(max_records)

        async def hand_out() -> Records:
            decoding = self._decoding
            if decoding is None:
                await self._take(limit)
                return self._handout.hand_out(limit)
            decoding.raise_failure()
            await self._take(limit)
            batch = decoding.begin(limit)
            if batch:
                await self._pump.call_user(batch)
            return decoding.settle(batch)

        return await self._poll(timeout_ms, hand_out)

    async def poll_arrow(
        self, timeout_ms: int = 1_000, *, columns: Sequence[str] | None = None
    ) -> dict[TopicPartition, pa.Table]:
        """`poll` without an object for each record: everything that has arrived, as a `pyarrow.Table` for each
        partition.

        `columns` are some of key, value, topic, partition, offset, timestamp, timestampType (all of them by default)
        and headers, with the types that Spark's Kafka source gives them. Other columns are not copied. The fetch
        settings bound the size; `max_poll_records` has no effect. Otherwise it works like `poll`.

        Needs `pip install 'muster-kafka[arrow]'`. With numba installed, it decodes several times as fast. numba is
        loaded after the first 50,000 records, and the consumer waits for that; `muster.arrow.warm()` loads it
        beforehand.

        Raises:
            ConfigError: pyarrow is not installed.
            ValueError: a column does not exist.
        """
        reader = self._arrow_reader(columns)

        async def hand_out() -> dict[TopicPartition, pa.Table]:
            self._handout.give_back()
            tables = reader.collect()
            self._handout.hand_out_tables({partition: reader.starts[partition] for partition in tables})
            self._consumed.add(tables, self._driver.now())
            return tables

        return await self._poll(timeout_ms, hand_out)

    def _arrow_reader(self, columns: Sequence[str] | None) -> ArrowReader:
        try:
            from muster.arrow import COLUMNS
            from muster.client.consumer.arrow import ArrowReader
        except ImportError as error:
            text = "poll_arrow needs pyarrow, which is not installed: pip install 'muster-kafka[arrow]'"
            raise ConfigError(text) from error
        wanted = COLUMNS if columns is None else tuple(columns)
        assert self._core.fetcher is not None
        if self._arrow is None or self._arrow.columns != wanted:
            self._arrow = ArrowReader(self._config, self._core.fetcher, wanted)
        return self._arrow

    async def _poll(self, timeout_ms: int, hand_out: Callable[[], Awaitable[T]]) -> T:
        """The caller wants more: wait for at most `timeout_ms` until there is something to hand out."""
        self._check_open()
        timeout_ms = check_timeout(timeout_ms)
        if self._polling:
            raise IllegalStateError("another poll of this consumer is in progress")
        if self._core.subscription.kind is SubscriptionKind.NONE:
            raise IllegalStateError("call subscribe() or assign() before poll()")
        self._polling = True
        try:
            await self.start()
            await asyncio.sleep(0)  # a loop around poll must not starve other tasks or this client's connections
            return await self._poll_on(self._driver.now() + timeout_ms, hand_out)
        finally:
            self._polling = False
            self._core.leave_poll()

    async def _poll_on(self, deadline: int, hand_out: Callable[[], Awaitable[T]]) -> T:
        self._handout.mark_all_handled()
        self._reading_task = asyncio.current_task()
        self._core.enter_poll(self._driver.now())
        while True:
            self._pump.raise_wakeup()
            await self._pump.run_commit_callbacks()
            self._pump.turn()
            if await self._pump.handle_events():
                continue
            try:
                found = await hand_out()
            except BaseException:
                self._handout.take_back()  # the caller does not get the records
                raise
            if found or not await self._pump.wait(self._has_news, deadline):
                return found

    def _limit(self, max_records: int | None) -> int:
        if max_records is None:
            return self._config.max_poll_records
        return check_number("max_records", max_records, 1, MAX_INT)

    async def _take(self, limit: int) -> bool:
        """Take records from the core if all are handed out. Returns whether there are records to hand out."""
        if not self._handout.has_records:
            records = self._core.collect(limit)
            self._consumed.add(records, self._driver.now())
            self._handout.take(records)
            if self._hooks and records:
                await self._pump.call_user(partial(self._hooks.consumed, records))
        return self._handout.has_records

    def _has_news(self) -> bool:
        return self._pump.woken or self._pump.has_news

    def wakeup(self) -> None:
        """Make the current poll raise a WakeupError, or, if none is running, the next one. No record is lost.

        As with Kafka's client, `commit`, `committed`, `position` and look-ups of offsets raise it too, if they have to
        wait. The commit may still succeed.

        Call it from the event loop's thread; `Consumer.wakeup` may be called from any thread and from a signal
        handler.
        """
        self._pump.woken = True
        self._loop.wakeup()

    async def getmany(self, *, timeout_ms: int = 0, max_records: int | None = None) -> Records:
        """`poll` that does not wait by default."""
        return await self.poll(timeout_ms, max_records=max_records)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ConsumerRecord:
        while (record := self._handout.next()) is None:
            try:
                await self._fill()
            except ClosedError:
                raise StopAsyncIteration from None
        return record

    async def _fill(self) -> None:
        """Wait for records for iteration to hand out."""

        async def hand_out() -> bool:
            return await self._take(self._config.max_poll_records)

        await self._poll(self._config.max_poll_interval_ms // 2, hand_out)

    # --- where to read -----------------------------------------------------------------------------------------------

    def seek(self, partition: TopicPartition, offset: OffsetAndMetadata | int) -> None:
        """Continue reading at an offset. Raises IllegalStateError if the partition is not assigned."""
        self._core.subscription.seek(partition, offset)
        self._handout.drop([partition])  # only after the position has changed
        self._loop.wakeup()

    def seek_to_beginning(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Start reading at the oldest record, by default in all assigned partitions."""
        self._reset(partitions, OffsetReset.EARLIEST)

    def seek_to_end(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Read only new records, by default in all assigned partitions."""
        self._reset(partitions, OffsetReset.LATEST)

    def _reset(self, partitions: Iterable[TopicPartition] | None, strategy: OffsetReset) -> None:
        chosen = self._core.subscription.assignment() if partitions is None else list(partitions)
        for partition in chosen:
            self._core.subscription.state(partition)  # raises if it is not assigned
        self._handout.drop(chosen)
        for partition in chosen:
            self._core.subscription.request_reset(partition, strategy)
        self._loop.wakeup()

    async def position(self, partition: TopicPartition, timeout_ms: int | None = None) -> int:
        """The offset of the next record; waits if it has to be looked up.

        Raises:
            IllegalStateError: the partition is not assigned.
            KafkaTimeoutError: it could not be looked up in time.
        """
        await self.start()
        held = self._handout.position(partition)
        if held is not None:
            return held
        subscription, pump = self._core.subscription, self._pump
        # The partition may be given up during the wait: then this raises IllegalStateError.
        await pump.wait_awake(
            lambda: subscription.position(partition) is not None or pump.has_fatal, pump.until(timeout_ms)
        )
        found = subscription.position(partition)
        if found is None:
            pump.raise_fatal()
            raise KafkaTimeoutError(f"the position of {partition} could not be looked up in time")
        return found

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Return no records of these partitions until `resume`. They stay assigned to this consumer."""
        self._core.subscription.pause(partitions)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Undo `pause`."""
        self._core.subscription.resume(partitions)
        self._loop.wakeup()

    def paused(self) -> set[TopicPartition]:
        """The paused partitions."""
        return set(self._core.subscription.paused())

    def current_lag(self, partition: TopicPartition) -> int | None:
        """How many records are left to read; None before the first fetch."""
        found = self._core.fetcher.lag(partition) if self._core.fetcher is not None else None
        return None if found is None else found + self._handout.count(partition)

    # --- committing --------------------------------------------------------------------------------------------------

    async def commit(self, offsets: OffsetsToCommit | None = None, timeout_ms: int | None = None) -> None:
        """Commit offsets, by default the caller's position in every partition. Retriable errors are retried.

        Raises:
            CommitFailedError: the group has moved on. With code REBALANCE_IN_PROGRESS the next polls complete the
                rebalance; after that the partitions that are still assigned can be committed.
            KafkaTimeoutError: not finished in `timeout_ms` (`default_api_timeout_ms` if None).
            WakeupError: `wakeup` was called; the commit may still succeed.
        """
        await self.start()
        outcome: asyncio.Future[MusterError | None] = asyncio.get_running_loop().create_future()
        self._commit(self._to_commit(offsets), partial(settle, outcome), self._pump.until(timeout_ms))
        error = await self._pump.outcome(outcome)
        await self._pump.run_commit_callbacks()
        if error is not None:
            raise error

    def commit_async(self, offsets: OffsetsToCommit | None = None, callback: CommitCallback | None = None) -> None:
        """Commit without waiting and without retries. The callback gets the offsets and an error or None; callbacks are
        called in the order of the commits.
        """
        self._check_open()
        chosen = self._to_commit(offsets)
        self._commit(chosen, lambda error, _now: self._pump.commit_ended(callback, chosen, error), None)

    def store_offsets(self, offsets: OffsetsToCommit | ConsumerRecord) -> None:
        """Store offsets for the next commit, or the offset after a handled record: with `enable_auto_offset_store` off,
        nothing else is committed.

        Raises:
            IllegalStateError: a partition is not, or no longer, assigned, or `enable_auto_offset_store` is on.
        """
        self._check_open()
        if self._config.enable_auto_offset_store:
            raise IllegalStateError("store_offsets needs enable_auto_offset_store to be off")
        if isinstance(offsets, ConsumerRecord):
            partition = TopicPartition(offsets.topic, offsets.partition)
            offsets = {partition: OffsetAndMetadata(offsets.offset + 1, offsets.leader_epoch)}
        self._core.subscription.store({TopicPartition(*partition): offset for partition, offset in offsets.items()})

    def handled(self, *, handed_out: bool = False) -> dict[TopicPartition, int]:
        """The positions after the records that the caller has handled, as a commit would write them; for offsets stored
        elsewhere.

        With `handed_out`, all records handed out count as handled. Partitions whose position is not known yet are left
        out.
        """
        if handed_out:
            self._handout.mark_all_handled()
        return {partition: position.offset for partition, position in self._core.consumed().items()}

    def _commit(self, offsets: Offsets, on_done: OnDone, until: int | None) -> None:
        self._core.commit(offsets, on_done, until=until)
        self._handout.handled_up_to(offsets)
        self._loop.wakeup()

    def _to_commit(self, offsets: OffsetsToCommit | None) -> Offsets:
        if offsets is None:
            self._handout.mark_all_handled()  # this call means that everything is handled
            return self._core.consumed()
        return {
            TopicPartition(*partition): OffsetAndMetadata(offset) if isinstance(offset, int) else offset
            for partition, offset in offsets.items()
        }

    # --- the group ---------------------------------------------------------------------------------------------------

    def group_metadata(self) -> GroupMetadata:
        """This consumer's current member id and generation."""
        return self._core.group_metadata()

    def enforce_rebalance(self, reason: str = "rebalance enforced by user") -> None:
        """Trigger a rebalance of the group at the next poll (KIP-568); the coordinator logs the reason."""
        self._core.enforce_rebalance(reason)
        self._loop.wakeup()

    def metrics(self) -> Metrics:
        """What this consumer has done, by Kafka's names (docs/reference/metrics.md)."""
        known = {partition: self.current_lag(partition) for partition in self._core.subscription.assignment()}
        lags = {partition: lag for partition, lag in known.items() if lag is not None}
        return of_consumer(self._core, self._driver, self._consumed, lags, self._driver.now())

    def _check_open(self) -> None:
        if self._closing:
            raise ClosedError("the consumer is closed")


_consumers = count(1)


def _named(config: ConsumerConfig) -> ConsumerConfig:
    """Adds a default client id as Kafka's own consumers do: coordinators prefix member ids with it."""
    if config.client_id:
        return config
    last = config.group_instance_id or next(_consumers)
    return replace(config, client_id=f"consumer-{config.group_id}-{last}" if config.group_id else f"consumer-{last}")


def has_ended_well(task: asyncio.Task[Any] | None) -> bool:
    """Whether the records handed out to a task count as handled when the running task closes the consumer."""
    if task is None or task is asyncio.current_task():
        return True
    # Not `exception()`: that would keep asyncio from reporting an exception that was never retrieved.
    return task.done() and not task.cancelled() and getattr(task, "_exception", None) is None
