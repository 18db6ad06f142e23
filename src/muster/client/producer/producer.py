"""`Producer`: the blocking producer.

Its core runs in a background thread; records get there through an `Outbox`. It is not an `AsyncProducer` on a loop
thread, as `Consumer` is an `AsyncConsumer`: `send` is called for each record, so records must be passed over in bulk.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack

from muster.client.config import ProducerConfig
from muster.client.core.checks import check_timeout
from muster.client.core.produce.partitioner import Partitioner
from muster.client.delivery import DeliveryFuture, Headers, OnDelivery, Receipt
from muster.client.hooks import Hooked, ProducerHooks, producer_hooks
from muster.client.metrics import Metrics
from muster.client.net import forks
from muster.client.producer.outbox import Outbox
from muster.client.producer.producer_engine import check_callable, patience_ms
from muster.client.serde import GivenSerializer, Serializers
from muster.model import PartitionInfo, RecordMetadata

if TYPE_CHECKING:
    from muster.client.typed_settings import ProducerKeywords


class Producer(forks.StaysHere):
    """Writes records to Kafka, from any thread: `AsyncProducer` with blocking calls.

    `on_delivery` callbacks run in the producer's background thread: they must not block. The only method of the
    producer that they may call is `send`, which there raises KafkaTimeoutError immediately instead of waiting for room.

    A producer that is never closed continues sending at the end of the script, or after it was dropped, for at most ten
    seconds. It cannot be used in a forked process: its calls and futures raise IllegalStateError there.

        with Producer(bootstrap_servers="localhost:9092") as producer:
            metadata = producer.send("flights", b"...", key=b"N14228").result()
    """

    def __init__(
        self,
        settings: Mapping[str, Any] | None = None,
        /,
        *,
        key_serializer: GivenSerializer | None = None,
        value_serializer: GivenSerializer | None = None,
        partitioner: Partitioner | None = None,
        hooks: Sequence[ProducerHooks] = (),
        **more: Unpack[ProducerKeywords],
    ) -> None:
        config = ProducerConfig.of(settings, **more)
        self._hook = producer_hooks(hooks)
        self._outbox = Outbox(config, Serializers(key_serializer, value_serializer), partitioner)
        self._engine = self._outbox.engine

    def start(self) -> None:
        """Start the background thread. `send` does this too."""
        self._outbox.start()

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
        """Accept a record for sending; blocks only while `buffer_memory` is full, at most `max_block_ms`.

        Returns:
            A future with the record's place in the log. It fails with the broker's KafkaError, or with
            KafkaTimeoutError after `delivery_timeout_ms` (`max_block_ms` while the topic is not known).

        Raises:
            KafkaTimeoutError: there was no room in time.
            KafkaError: MESSAGE_TOO_LARGE.
            ClosedError: the producer is closed.
        """
        if on_delivery is not None:
            check_callable("on_delivery", on_delivery)
        hooked: Hooked | None = None
        if self._hook is not None:
            hooked = self._hook(topic, value, key, partition, timestamp_ms, headers)
            topic, value, key, partition, timestamp_ms, headers = hooked.fields
        try:
            record = self._engine.encode(topic, value, key, partition, timestamp_ms, headers)
            future = DeliveryFuture()
            if hooked is not None:
                record.receipt = hooked.of(future, on_delivery)
            else:
                record.receipt = future if on_delivery is None else Receipt(future, on_delivery)
            self._outbox.put(record)
        except Exception as error:
            if hooked is not None:
                hooked.failed(error)
            raise
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

    def flush(self, timeout_ms: int | None = None) -> None:
        """Send all waiting records now, and wait until every record sent so far is acknowledged or has failed.

        Raises:
            KafkaTimeoutError: it took longer than `timeout_ms`.
        """
        if timeout_ms is not None:
            check_timeout(timeout_ms)
        self._outbox.flush(timeout_ms)

    def partitions_for(self, topic: str) -> list[PartitionInfo]:
        """The partitions of a topic, and where they are; waits for it for `max_block_ms`.

        Raises:
            KafkaTimeoutError: no broker knew the topic in time.
        """
        return self._outbox.partitions_for(topic)

    def metrics(self) -> Metrics:
        """What this producer has done, by Kafka's names (docs/reference/metrics.md)."""
        return self._engine.measured(self._outbox.buffered_bytes)

    def close(self, timeout_ms: int | None = None) -> None:
        """Flush, then close the connections; after `timeout_ms` unacknowledged records fail with ClosedError.

        An interrupt ends the wait immediately. A record that was not delivered is reported by its future and its
        callback; without a callback, and if the future is never read, by a warning in the log.
        """
        if timeout_ms is not None:
            check_timeout(timeout_ms)
        self._outbox.close(timeout_ms)
        self._engine.warn_of_unseen()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close. An exception that leaves `with` is not delayed for long; without one, unreported failures are
        raised."""
        self._outbox.close(patience_ms(error))
        if error is not None:
            self._engine.warn_of_unseen()
        elif (unseen := self._engine.take_unseen()) is not None:
            raise unseen

    def __del__(self) -> None:
        outbox = getattr(self, "_outbox", None)
        if outbox is not None and outbox.needs_closing:
            warnings.warn("a Producer was dropped without close()", ResourceWarning, source=self, stacklevel=2)
            outbox.drop()
