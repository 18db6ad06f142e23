"""`Producer`: the blocking producer.

Its core runs in a background thread; records get there through an `Outbox`. It is not an `AsyncProducer` on a loop
thread, as `Consumer` is an `AsyncConsumer`: `send` is called for each record, so records must be handed over in bulk.
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
from muster.client.core.produce.transactions import ProducerTransactions
from muster.client.delivery import DeliveryFuture, Headers, OnDelivery, Receipt
from muster.client.hooks import HookedReceipt, ProducerHooks, producer_hooks
from muster.client.metrics import Metrics
from muster.client.net import forks
from muster.client.producer.outbox import Outbox
from muster.client.producer.producer_engine import check_callable, exit_timeout_ms
from muster.client.producer.transaction_blocks import TransactionBlock
from muster.client.serde import SerializerLike, Serializers
from muster.model import GroupMetadata, OffsetAndMetadata, PartitionInfo, RecordMetadata, TopicPartition

if TYPE_CHECKING:
    from muster.client.typed_settings import ProducerKeywords


class Producer(forks.NotPicklable):
    """Writes records to Kafka, from any thread.

    Settings are those of `ProducerConfig`, as keywords or in a mapping with Kafka's own dotted names. By default the
    producer is idempotent and waits for all in-sync replicas.

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
        key_serializer: SerializerLike | None = None,
        value_serializer: SerializerLike | None = None,
        partitioner: Partitioner | None = None,
        hooks: Sequence[ProducerHooks] = (),
        **more: Unpack[ProducerKeywords],
    ) -> None:
        config = ProducerConfig.of(settings, **more)
        self._hook = producer_hooks(hooks)
        self._outbox = Outbox(config, Serializers(key_serializer, value_serializer), partitioner)
        self._engine = self._outbox.engine
        self._transactions = self._engine.core.transactions

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
            IllegalStateError: the producer has a `transactional_id`, and no transaction is open.
        """
        if self._transactions is not None:
            self._transactions.check_send()
        if on_delivery is not None:
            check_callable("on_delivery", on_delivery)
        hooked: HookedReceipt | None = None
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

    # --- transactions ------------------------------------------------------------------------------------------------

    def init_transactions(self, *, timeout_ms: int | None = None) -> None:
        """Prepare the producer for transactions: call it once, before the first one.

        It ends what an earlier producer with this `transactional_id` has begun, and fences that producer. `timeout_ms`
        here and below is `max_block_ms` if None.

        Raises:
            ConfigError: `transactional_id` is not set.
            KafkaTimeoutError: no answer in time. The work continues: call it again to wait longer.
            KafkaError: TRANSACTIONAL_ID_AUTHORIZATION_FAILED, INVALID_TRANSACTION_TIMEOUT.
        """
        self._outbox.complete(ProducerTransactions.initialize, timeout_ms)

    def begin_transaction(self) -> None:
        """Begin a transaction: what is sent from now on belongs to it.

        Raises:
            IllegalStateError: a transaction is open, or the outcome of the last one was not seen.
            ProducerFencedError: another producer has taken this one's `transactional_id`.
        """
        self._outbox.begin_transaction()

    def commit_transaction(self, *, timeout_ms: int | None = None) -> None:
        """Send what is left, and commit once every record is acknowledged: readers see all of it, or nothing.

        Raises:
            KafkaTimeoutError: not done in time. The commit continues: call it again to learn its outcome.
            ProducerFencedError: another producer has taken this one's `transactional_id`, or the transaction took
                longer than `transaction_timeout_ms`.
            MusterError: with `abortable`, a record or the offsets were not written: call `abort_transaction`. With
                `fatal`, close the producer.
        """
        self._outbox.complete(ProducerTransactions.commit, timeout_ms)

    def abort_transaction(self, *, timeout_ms: int | None = None) -> None:
        """Abort: readers see nothing of it. Records that were not sent yet fail with TransactionAbortedError.

        Raises:
            KafkaTimeoutError: not done in time. The abort continues: call it again to wait longer.
            ProducerFencedError: as `commit_transaction`.
        """
        self._outbox.complete(ProducerTransactions.abort, timeout_ms)

    def send_offsets_to_transaction(
        self,
        offsets: Mapping[TopicPartition, int | OffsetAndMetadata],
        group_metadata: GroupMetadata,
        *,
        timeout_ms: int | None = None,
    ) -> None:
        """Commit a group's offsets as part of the transaction, for records that were read and processed in it.

        `offsets` are those of the next records to read; `group_metadata` is the consumer's own (`group_metadata()`),
        taken after the poll that returned the records: offsets of an earlier generation are refused (KIP-447).

        Raises:
            KafkaTimeoutError: not done in time. The producer keeps retrying; abort to give up.
            CommitFailedError: the group has reassigned the partitions: abort, and poll.
            MusterError: as `commit_transaction`.
        """
        self._outbox.send_offsets(offsets, group_metadata, timeout_ms)

    def transaction(self) -> TransactionBlock[Producer]:
        """`with producer.transaction():` begins a transaction. The end of the block commits it, and raises what the
        commit raises; an exception that leaves the block aborts it.
        """
        return TransactionBlock(self, self._engine.transactions)

    # --- the rest ----------------------------------------------------------------------------------------------------

    def partitions_for(self, topic: str) -> list[PartitionInfo]:
        """The partitions of a topic with their leaders and replicas; waits at most `max_block_ms` for the topic.

        Raises:
            KafkaTimeoutError: no broker knew the topic in time.
        """
        return self._outbox.partitions_for(topic)

    def metrics(self) -> Metrics:
        """What this producer has done, by Kafka's names (docs/reference/metrics.md)."""
        return self._engine.measured(self._outbox.buffered_bytes)

    def close(self, timeout_ms: int | None = None) -> None:
        """Flush, then close the connections; after `timeout_ms`, unacknowledged records fail with ClosedError. An open
        transaction is aborted.

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
        self._outbox.close(exit_timeout_ms(error))
        if error is not None:
            self._engine.warn_of_unseen()
        elif (unseen := self._engine.take_unseen()) is not None:
            raise unseen

    def __del__(self) -> None:
        outbox = getattr(self, "_outbox", None)
        if outbox is not None and outbox.needs_closing:
            warnings.warn("a Producer was dropped without close()", ResourceWarning, source=self, stacklevel=2)
            outbox.drop()
