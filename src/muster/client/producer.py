"""`AsyncProducer` and `Producer`: the two faces of one core.

`Producer` runs the core in a background thread. A record crosses over through an inbox that the thread empties as a
whole, so that the crossing costs once for many records.
"""

from __future__ import annotations

import asyncio
import logging
import random
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, InvalidStateError
from dataclasses import asdict
from types import TracebackType
from typing import Any

from muster.client.config import ProducerConfig
from muster.client.core.accumulator import Completion, OutgoingRecord, record_size
from muster.client.core.metadata import ClusterMetadata
from muster.client.core.partitioner import Partitioner
from muster.client.core.producer import ProducerCore
from muster.client.delivery import DeliveryFuture
from muster.client.driver import CoreLoop, Driver, wall_clock_ms
from muster.client.loop import LoopThread
from muster.errors import ClosedError, IllegalStateError, KafkaTimeoutError, MusterError
from muster.model import RecordMetadata

log = logging.getLogger("muster.client")

_MAX_INBOX = 1_000
"""How many records a caller may be ahead of the background thread. More would only be garbage for Python's collector to
look at again and again: without a bound, sending took twice the time."""

Serializer = Callable[[Any], bytes | None]
INBOX_WAIT_MS = 1
"""How long the thread of a `Producer` leaves records in the inbox, of the time that they may linger."""

Headers = Mapping[str, bytes | None] | Iterable[tuple[str, bytes | None]]
OnDelivery = Callable[[RecordMetadata | None, MusterError | None], None]
"""Called once for each record: with where it is, or with why it is not there."""


_Future = Future[RecordMetadata] | asyncio.Future[RecordMetadata]


class _Receipt:
    """Whom to tell about one record where that is not its future alone."""

    __slots__ = ("future", "on_delivery")

    def __init__(self, future: _Future, on_delivery: OnDelivery) -> None:
        self.future = future
        self.on_delivery = on_delivery


def _tell(receipt: _Future | _Receipt, metadata: RecordMetadata | None, error: MusterError | None) -> None:
    future = receipt.future if isinstance(receipt, _Receipt) else receipt
    try:
        if metadata is not None:
            future.set_result(metadata)
        elif error is not None:
            future.set_exception(error)
    except (InvalidStateError, asyncio.InvalidStateError):
        pass  # its holder cancelled it, perhaps this moment
    if isinstance(receipt, _Receipt):
        try:
            receipt.on_delivery(metadata, error)
        except Exception:
            log.exception("a delivery callback failed")


class _Engine:
    """What both faces are built on; everything but `encode` belongs to the event loop."""

    def __init__(
        self,
        config: ProducerConfig,
        key_serializer: Serializer | None,
        value_serializer: Serializer | None,
        partitioner: Partitioner | None,
        on_freed: Callable[[int], None] | None = None,
    ) -> None:
        self.config = config
        self.metadata = ClusterMetadata(config, seed=random.getrandbits(31))
        self.core = ProducerCore(config, self.metadata, partitioner, seed=random.getrandbits(31))
        self.driver = Driver(config, self.metadata)
        self.loop = CoreLoop(self.driver, [self.metadata, self.core], self._on_turn)
        self.room: asyncio.Event | None = None
        self._key_serializer = key_serializer
        self._value_serializer = value_serializer
        self._on_freed = on_freed

    def encode(
        self,
        topic: str,
        value: Any,
        key: Any,
        partition: int | None,
        timestamp_ms: int | None,
        headers: Headers | None,
    ) -> OutgoingRecord:
        """Serialize and check a record. Used from any thread."""
        key_bytes = _serialize("key", self._key_serializer, key)
        value_bytes = _serialize("value", self._value_serializer, value)
        if not topic:
            raise ValueError("topic is empty")
        if partition is not None and partition < 0:
            raise ValueError(f"partition is {partition}; it must be 0 or above, or None to let the partitioner choose")
        if timestamp_ms is None:
            timestamp_ms = wall_clock_ms()
        elif timestamp_ms < 0:
            raise ValueError(f"timestamp_ms is {timestamp_ms}; it must be 0 or above")
        pairs: Any = () if headers is None else list(headers.items() if isinstance(headers, Mapping) else headers)
        size = record_size(key_bytes, value_bytes, pairs)
        error = self.core.check_size(size)
        if error is not None:
            raise error
        return OutgoingRecord(topic, partition, key_bytes, value_bytes, pairs, timestamp_ms, None, size)

    def append(self, record: OutgoingRecord, now: int) -> bool:
        """Give a record to the core; whether that made it busy. Raises what the producer died of."""
        if self.core.fatal is not None:
            raise self.core.fatal
        if self.loop.error is not None:
            raise MusterError(f"the producer failed: {self.loop.error!r}") from self.loop.error
        news = self.core.append(record, now)
        if news:
            self.loop.wakeup()
        return news

    async def flush(self, timeout_ms: float | None) -> None:
        """Wait until what was given so far is done."""
        done = self.core.begin_flush()
        try:
            if not await self.loop.wait_for(done, None if timeout_ms is None else int(timeout_ms)):
                raise KafkaTimeoutError(f"not all records were acknowledged within {timeout_ms:g} ms")
        finally:
            self.core.end_flush()

    async def partitions_for(self, topic: str) -> list[int]:
        """The partitions of a topic, waiting for it for `max_block_ms`."""
        self.metadata.add_interest((topic,))
        limit = self.config.max_block_ms
        if not await self.loop.wait_for(lambda: self.metadata.partition_count(topic) is not None, limit):
            why = self.metadata.last_error or self.metadata.topic_error(topic).name
            raise KafkaTimeoutError(f"topic {topic} was not found within max_block_ms ({limit}): {why}")
        return self.metadata.partitions(topic)

    async def close(self, timeout_ms: float | None) -> None:
        """Flush for so long, then give up the rest."""
        try:
            await self.flush(timeout_ms)
        except (MusterError, TimeoutError):
            log.warning("the producer is closed with records that were not acknowledged")
        finally:
            self.core.close()
            self._on_turn(self.driver.now())
            await self.loop.close()

    def _on_turn(self, now: int) -> None:
        for completion in self.core.take_completions():
            _tell_all(completion)
            if self._on_freed is not None:
                self._on_freed(completion.memory)
        if self.room is not None:
            self.room.set()


def _tell_all(completion: Completion) -> None:
    topic, partition = completion.partition
    error, base, appended = completion.error, completion.base_offset, completion.log_append_time_ms
    if error is not None:
        for index, receipt in enumerate(completion.receipts):
            _tell(receipt, None, completion.record_errors.get(index, error))
        return
    offset, step = (base, 1) if base >= 0 else (-1, 0)
    for receipt, timestamp in zip(completion.receipts, completion.timestamps, strict=True):
        _tell(receipt, RecordMetadata(topic, partition, offset, appended if appended >= 0 else timestamp), None)
        offset += step


def _serialize(what: str, serializer: Serializer | None, content: Any) -> bytes | None:
    if serializer is not None:
        content = serializer(content)
    if content is None or isinstance(content, bytes):
        return content
    if isinstance(content, bytearray | memoryview):
        return bytes(content)
    raise TypeError(f"the {what} is {type(content).__name__}, not bytes: encode it, or give a {what}_serializer")


class AsyncProducer:
    """Writes records to Kafka, from asyncio.

    Settings are those of `ProducerConfig`, as keywords or in a mapping with Kafka's own dotted names. By default the
    producer is idempotent and waits for all in-sync replicas.

        async with AsyncProducer(bootstrap_servers="localhost:9092") as producer:
            future = await producer.send("flights", b"...", key=b"N14228")
            metadata = await future
    """

    def __init__(
        self,
        settings: Mapping[str, Any] | None = None,
        /,
        *,
        key_serializer: Serializer | None = None,
        value_serializer: Serializer | None = None,
        partitioner: Partitioner | None = None,
        **more: Any,
    ) -> None:
        config = ProducerConfig.of(settings, **more)
        self._engine = _Engine(config, key_serializer, value_serializer, partitioner)
        self._started = False
        self._closed = False

    async def start(self) -> None:
        """Bind the producer to the running event loop. Brokers are looked for when the first record is sent."""
        if self._closed:
            raise ClosedError("the producer is closed")
        if not self._started:
            self._started = True
            self._engine.room = asyncio.Event()
            await self._engine.loop.start()

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
        """Take a record to be sent; waits only while `buffer_memory` is full, at most `max_block_ms`.

        Returns:
            A future for where the record was written. It fails with a KafkaError that the broker gave, or with
            KafkaTimeoutError after `delivery_timeout_ms` (`max_block_ms` while the topic is not known).

        Raises:
            KafkaTimeoutError: there was no room in time.
            KafkaError: MESSAGE_TOO_LARGE, or what made the producer unusable.
            ClosedError: the producer is closed.
        """
        self._check_open()
        record = self._engine.encode(topic, value, key, partition, timestamp_ms, headers)
        if not self._engine.core.has_room(record.size):
            await self._wait_for_room(record.size)
            self._check_open()
        future: asyncio.Future[RecordMetadata] = asyncio.get_running_loop().create_future()
        record.receipt = future if on_delivery is None else _Receipt(future, on_delivery)
        if self._engine.append(record, self._engine.driver.now()):
            await asyncio.sleep(0)  # a caller that sends without a pause must not keep the batches from going out
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

    async def flush(self, timeout_ms: float | None = None) -> None:
        """Send what waits at once, and wait until all that was given so far is acknowledged or failed.

        Raises:
            KafkaTimeoutError: it took longer than `timeout_ms`.
        """
        self._check_open()
        await self._engine.flush(timeout_ms)

    async def partitions_for(self, topic: str) -> list[int]:
        """The partitions of a topic."""
        self._check_open()
        return await self._engine.partitions_for(topic)

    def metrics(self) -> dict[str, int]:
        """What was counted since the start."""
        return asdict(self._engine.core.metrics) | {"buffered_bytes": self._engine.core.buffered_bytes}

    async def close(self, timeout_ms: float | None = None) -> None:
        """Flush, then close the connections; after `timeout_ms` what is not acknowledged fails with ClosedError."""
        if self._closed:
            return
        self._closed = True
        if self._started:
            await self._engine.close(timeout_ms)

    async def __aenter__(self) -> AsyncProducer:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the producer is closed")
        if not self._started:
            raise IllegalStateError("the producer is not started: call `await producer.start()`, or use `async with`")

    async def _wait_for_room(self, size: int) -> None:
        core, room = self._engine.core, self._engine.room
        assert room is not None
        core.room_wanted = True
        self._engine.loop.wakeup()
        limit = self._engine.config.max_block_ms
        try:
            async with asyncio.timeout(limit / 1000):
                while not core.has_room(size):
                    room.clear()
                    await room.wait()
        except TimeoutError:
            raise KafkaTimeoutError(f"buffer_memory stayed full for max_block_ms ({limit})") from None
        finally:
            core.room_wanted = False


class Producer:
    """Writes records to Kafka, from any thread: the same as `AsyncProducer` with blocking calls.

    `on_delivery` callbacks run in the producer's own thread: they must not block. Of the producer's methods they may
    call `send`, which there raises KafkaTimeoutError at once where it would otherwise wait for room.

        with Producer(bootstrap_servers="localhost:9092") as producer:
            metadata = producer.send("flights", b"...", key=b"N14228").result()
    """

    def __init__(
        self,
        settings: Mapping[str, Any] | None = None,
        /,
        *,
        key_serializer: Serializer | None = None,
        value_serializer: Serializer | None = None,
        partitioner: Partitioner | None = None,
        **more: Any,
    ) -> None:
        config = ProducerConfig.of(settings, **more)
        self._engine = _Engine(config, key_serializer, value_serializer, partitioner, self._freed)
        self._thread = LoopThread("muster-producer")
        self._lock = threading.Condition()
        self._inbox: list[OutgoingRecord] = []
        self._inbox_bytes = 0
        self._inbox_since = 0
        """When its first record came."""
        self._look: asyncio.TimerHandle | None = None
        """In the loop's thread: when it looks into the inbox."""
        self._hurried = False
        self._buffered = 0
        self._waiting = 0
        self._started = False
        self._closed = False

    def start(self) -> None:
        """Start the background thread. `send` does that too."""
        with self._lock:
            if self._closed:
                raise ClosedError("the producer is closed")
            if self._started:
                return
            self._started = True
        self._thread.run(self._engine.loop.start())

    def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        *,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Headers | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> Future[RecordMetadata]:
        """Take a record to be sent; blocks only while `buffer_memory` is full, at most `max_block_ms`.

        Returns:
            A future for where the record was written. It fails with a KafkaError that the broker gave, or with
            KafkaTimeoutError after `delivery_timeout_ms` (`max_block_ms` while the topic is not known).

        Raises:
            KafkaTimeoutError: there was no room in time.
            KafkaError: MESSAGE_TOO_LARGE, or what made the producer unusable.
            ClosedError: the producer is closed.
        """
        if not self._started:
            self.start()
        record = self._engine.encode(topic, value, key, partition, timestamp_ms, headers)
        future = DeliveryFuture()
        record.receipt = future if on_delivery is None else _Receipt(future, on_delivery)
        with self._lock:
            self._reserve(record.size)
            wake = self._put(record)
        if wake is not None:
            self._thread.call_soon(wake)
        return future

    def send_and_wait(
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
        return self.send(topic, value, key, partition=partition, timestamp_ms=timestamp_ms, headers=headers).result()

    def flush(self, timeout_ms: float | None = None) -> None:
        """Send what waits at once, and wait until all that was given so far is acknowledged or failed.

        Raises:
            KafkaTimeoutError: it took longer than `timeout_ms`.
        """
        if self._closed:
            raise ClosedError("the producer is closed")
        if self._started:
            self._thread.run(self._flush(timeout_ms))

    def partitions_for(self, topic: str) -> list[int]:
        """The partitions of a topic."""
        self.start()
        return self._thread.run(self._engine.partitions_for(topic))

    def metrics(self) -> dict[str, int]:
        """What was counted since the start."""
        return asdict(self._engine.core.metrics) | {"buffered_bytes": self._buffered}

    def close(self, timeout_ms: float | None = None) -> None:
        """Flush, then close the connections; after `timeout_ms` what is not acknowledged fails with ClosedError."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._lock.notify_all()
        if self._started:
            self._thread.run(self._close(timeout_ms))
        self._thread.close()

    def __enter__(self) -> Producer:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    # --- between the threads -----------------------------------------------------------------------------------------

    def _reserve(self, size: int) -> None:
        """Count a record against `buffer_memory`, waiting for room; with the lock held."""
        if self._thread.is_current():  # a delivery callback: waiting here would be waiting for itself
            if self._buffered + size > self._engine.config.buffer_memory:
                raise KafkaTimeoutError("buffer_memory is full, and a delivery callback cannot wait for room")
        elif not self._has_room(size):
            self._waiting += 1
            if self._buffered + size > self._engine.config.buffer_memory:
                self._thread.call_soon(self._hurry)
            block_ms = self._engine.config.max_block_ms
            fits = self._lock.wait_for(lambda: self._has_room(size), block_ms / 1000)
            self._waiting -= 1
            if not fits:
                raise KafkaTimeoutError(f"buffer_memory stayed full for max_block_ms ({block_ms})")
        if self._closed:
            raise ClosedError("the producer is closed")
        self._buffered += size

    def _has_room(self, size: int) -> bool:
        """Whether the caller may go on; it may also when the producer is closed, to be told so."""
        full = self._buffered + size > self._engine.config.buffer_memory or len(self._inbox) >= _MAX_INBOX
        return self._closed or not full

    def _freed(self, size: int) -> None:
        with self._lock:
            self._buffered -= size
            self._lock.notify_all()
            self._engine.core.room_wanted = self._waiting > 0

    def _hurry(self) -> None:
        self._drain()
        self._engine.core.room_wanted = True
        self._engine.loop.wakeup()

    def _put(self, record: OutgoingRecord) -> Callable[[], None] | None:
        """Put a record into the inbox, with the lock held; what the loop's thread has to be told, if anything.

        Waking it for each record would have the two threads fight for the interpreter: three times the CPU. It looks
        a little later, within the linger time, or as soon as a batch may be full.
        """
        config = self._engine.config
        self._inbox.append(record)
        self._inbox_bytes += record.size
        if len(self._inbox) == 1:
            self._inbox_since = self._engine.driver.now()
            return self._look_soon if config.linger_ms else self._drain
        if self._inbox_bytes >= config.batch_size and not self._hurried:
            self._hurried = True
            return self._drain
        return None

    def _look_soon(self) -> None:
        if self._look is None:
            self._look = asyncio.get_running_loop().call_later(INBOX_WAIT_MS / 1000, self._drain)

    def _drain(self) -> None:
        """In the loop's thread: hand over what has come since the last time."""
        if self._look is not None:
            self._look.cancel()
            self._look = None
        with self._lock:
            records, since = self._inbox, self._inbox_since
            self._inbox, self._inbox_bytes, self._hurried = [], 0, False
            self._lock.notify_all()
        for record in records:
            try:
                self._engine.append(record, since)
            except Exception as error:
                failure = error if isinstance(error, MusterError) else MusterError(f"the partitioner failed: {error!r}")
                self._freed(record.size)
                _tell(record.receipt, None, failure)

    async def _flush(self, timeout_ms: float | None) -> None:
        self._drain()
        await self._engine.flush(timeout_ms)

    async def _close(self, timeout_ms: float | None) -> None:
        self._drain()
        await self._engine.close(timeout_ms)
