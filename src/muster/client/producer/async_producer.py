"""`AsyncProducer`: the asyncio producer. Its core runs in the caller's event loop."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack

from muster.client.config import ProducerConfig
from muster.client.core.checks import check_timeout
from muster.client.core.produce.partitioner import Partitioner
from muster.client.core.produce.transactions import ProducerTransactions, TransactionCall
from muster.client.delivery import Headers, OnDelivery, Receipt
from muster.client.hooks import HookedReceipt, ProducerHooks, producer_hooks
from muster.client.metrics import Metrics
from muster.client.net import forks
from muster.client.producer.producer_engine import (
    UNCLOSED_MS,
    ProducerEngine,
    check_callable,
    exit_timeout_ms,
)
from muster.client.producer.transaction_blocks import AsyncTransactionBlock
from muster.client.serde import SerializerLike, Serializers
from muster.errors import ClosedError, KafkaTimeoutError
from muster.model import GroupMetadata, OffsetAndMetadata, PartitionInfo, RecordMetadata, TopicPartition

if TYPE_CHECKING:
    from muster.client.typed_settings import ProducerKeywords


class AsyncProducer(forks.NotPicklable):
    """Writes records to Kafka, from asyncio. `Producer` documents the settings and most methods.

    async with AsyncProducer(bootstrap_servers="localhost:9092") as producer:
        future = await producer.send("flights", b"...", key=b"N14228")
        metadata = await future
    """

    def __init__(
        self,
        settings: Mapping[str, Any] | None = None,
        /,
        *,
        key_serializer: SerializerLike | None = None,
        value_serializer: SerializerLike | None = None,
        partitioner: Partitioner | None = None,
        hooks: Sequence[ProducerHooks] = (),
        **more: Unpack[ProducerKeywords],
    ) -> None:
        config = ProducerConfig.of(settings, **more)
        self._hook = producer_hooks(hooks)
        self._room = asyncio.Event()
        self._over = asyncio.Event()
        self._engine = ProducerEngine(
            config,
            Serializers(key_serializer, value_serializer),
            partitioner,
            self._room.set,
            in_callers_loop=True,
        )
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False
        self._forks = forks.count

    async def start(self) -> None:
        """Bind the producer to the running event loop. Every method that waits does this too."""
        if self._closed:
            raise ClosedError("the producer is closed")
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            await self._engine.start()

    async def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        *,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Headers | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> asyncio.Future[RecordMetadata]:
        """Accept a record for sending; waits only while `buffer_memory` is full, at most `max_block_ms`.

        Returns:
            A future with the record's place in the log. It fails with the broker's KafkaError, or with
            KafkaTimeoutError after `delivery_timeout_ms` (`max_block_ms` while the topic is not known).

        Raises:
            KafkaTimeoutError: there was no room in time.
            KafkaError: MESSAGE_TOO_LARGE, or the error that made the producer unusable.
            ClosedError: the producer is closed.
            IllegalStateError: the producer has a `transactional_id`, and no transaction is open.
        """
        if self._loop is None or self._closed or self._forks != forks.count:
            await self._ready()
        if on_delivery is not None:
            check_callable("on_delivery", on_delivery)
        hooked: HookedReceipt | None = None
        if self._hook is not None:
            hooked = self._hook(topic, value, key, partition, timestamp_ms, headers)
            topic, value, key, partition, timestamp_ms, headers = hooked.fields
        try:
            record = self._engine.encode(topic, value, key, partition, timestamp_ms, headers)
            if not self._engine.core.has_room(record.size):
                await self._wait_for_room(record.size)
                self._check_open()
            future: asyncio.Future[RecordMetadata] = asyncio.Future(loop=asyncio.get_running_loop())
            if hooked is not None:
                record.receipt = hooked.of(future, on_delivery)
            else:
                record.receipt = future if on_delivery is None else Receipt(future, on_delivery)
            needs_poll = self._engine.append(record, self._engine.driver.now())
        except Exception as error:
            if hooked is not None:
                hooked.failed(error)
            raise
        if needs_poll:
            await asyncio.sleep(0)  # a caller that sends without a pause must not keep batches from being sent
        return future

    async def send_and_wait(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        *,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Headers | None = None,
    ) -> RecordMetadata:
        """Send a record and wait until it is acknowledged."""
        future = await self.send(topic, value, key, partition=partition, timestamp_ms=timestamp_ms, headers=headers)
        return await future

    async def flush(self, timeout_ms: int | None = None) -> None:
        """See `Producer.flush`."""
        if timeout_ms is not None:
            check_timeout(timeout_ms)
        await self._ready()
        await self._engine.flush(timeout_ms)

    # --- transactions ------------------------------------------------------------------------------------------------

    async def init_transactions(self, *, timeout_ms: int | None = None) -> None:
        """See `Producer.init_transactions`."""
        await self._complete(ProducerTransactions.initialize, timeout_ms)

    async def begin_transaction(self) -> None:
        """See `Producer.begin_transaction`."""
        await self._ready()
        self._engine.transactions.begin()

    async def commit_transaction(self, *, timeout_ms: int | None = None) -> None:
        """See `Producer.commit_transaction`."""
        await self._complete(ProducerTransactions.commit, timeout_ms)

    async def abort_transaction(self, *, timeout_ms: int | None = None) -> None:
        """See `Producer.abort_transaction`."""
        await self._complete(ProducerTransactions.abort, timeout_ms)

    async def send_offsets_to_transaction(
        self,
        offsets: Mapping[TopicPartition, int | OffsetAndMetadata],
        group_metadata: GroupMetadata,
        *,
        timeout_ms: int | None = None,
    ) -> None:
        """See `Producer.send_offsets_to_transaction`."""
        await self._ready()
        await self._engine.send_offsets(offsets, group_metadata, timeout_ms)

    def transaction(self) -> AsyncTransactionBlock[AsyncProducer]:
        """`async with producer.transaction():` begins a transaction. The end of the block commits it, and raises what
        the commit raises; an exception that leaves the block aborts it.
        """
        return AsyncTransactionBlock(self, self._engine.transactions)

    async def _complete(self, start: Callable[[ProducerTransactions], TransactionCall], timeout_ms: int | None) -> None:
        await self._ready()
        await self._engine.complete(start, timeout_ms)

    # --- the rest ----------------------------------------------------------------------------------------------------

    async def partitions_for(self, topic: str) -> list[PartitionInfo]:
        """See `Producer.partitions_for`."""
        await self._ready()
        return await self._engine.partitions_for(topic)

    def metrics(self) -> Metrics:
        """What this producer has done, by Kafka's names (docs/reference/metrics.md)."""
        return self._engine.measured(self._engine.core.buffered_bytes)

    async def close(self, timeout_ms: int | None = None) -> None:
        """Flush, then close the connections; after `timeout_ms`, unacknowledged records fail with ClosedError. An open
        transaction is aborted.

        A record that was not delivered is reported by its future and its callback; without a callback, and if the
        future is never read, by a warning in the log.
        """
        if timeout_ms is not None:
            check_timeout(timeout_ms)
        await self._close(timeout_ms)
        self._engine.warn_of_unseen()

    async def _close(self, timeout_ms: int | None) -> None:
        if self._loop is None or self._forks != forks.count:
            self._closed = True
            return
        if timeout_ms is not None:
            self._loop.call_later(timeout_ms / 1000, self._engine.hurry)
        if self._closed:
            await self._over.wait()
            return
        self._closed = True
        try:
            await self._engine.close()
        finally:
            self._over.set()

    def __del__(self) -> None:
        loop = getattr(self, "_loop", None)
        if loop is None or self._closed or self._forks != forks.count:
            return
        warnings.warn("an AsyncProducer was dropped without close()", ResourceWarning, source=self, stacklevel=2)
        if not loop.is_closed():
            loop.call_soon_threadsafe(self._engine.close_unattended, UNCLOSED_MS)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close. An exception that leaves `with` is not delayed for long; without one, unreported failures are
        raised."""
        await self._close(exit_timeout_ms(error))
        if error is not None:
            self._engine.warn_of_unseen()
        elif (unseen := self._engine.take_unseen()) is not None:
            raise unseen

    async def _ready(self) -> None:
        if self._loop is None:
            self._forks = forks.count
            await self.start()
        self._check_open()

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the producer is closed")
        if self._forks != forks.count:
            raise forks.orphaned("producer")

    async def _wait_for_room(self, size: int) -> None:
        core = self._engine.core
        limit = self._engine.config.max_block_ms
        try:
            async with asyncio.timeout(limit / 1000):
                while not core.has_room(size) and not self._closed:
                    core.room_wanted = True
                    self._engine.loop.wakeup()
                    self._room.clear()
                    await self._room.wait()
        except TimeoutError:
            raise KafkaTimeoutError(f"buffer_memory stayed full for max_block_ms ({limit})") from None
        finally:
            core.room_wanted = False  # another waiting caller finds no room either, and sets it again
