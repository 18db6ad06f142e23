"""`exactly_once`: read records, process them, and write the results, each record once (KIP-447).

A round is one transaction: the results that the handler sent for what `poll` returned, and the group's offsets. Both
are committed or aborted together, so a consumer with `read_committed` sees the results of each record once.

`_Round` guards against two sequences, because a consumer without a listener also rebalances between polls.

1. `poll` returns records of a partition; the group gives it to another member; only then is the generation read.
   It is newer than the records, so the coordinator would accept their offsets, and the new owner reads them again. So,
   when the generation is read, each partition must have been assigned ever since its records were returned: one that
   has come back has the position that its other owner committed. Its position must be after the records, too. A later
   rebalance is noticed by the coordinator, because the generation is then older than the group's.
2. After an abort positions go back to the first record of the round. If a partition was given away and came back
   meanwhile, it has the position that its other owner committed, and keeps it (`Handout.is_kept`).

An interrupt can come at any moment of a round: after its commit has succeeded, or while it is under way. So what
happens to the round's records depends on the commit's outcome, which `_is_committed` waits for.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

from muster.client.consumer.async_consumer import AsyncConsumer
from muster.client.consumer.consumer import Consumer
from muster.client.core.produce.transactions import TransactionCall
from muster.client.core.subscription_state import SubscriptionKind
from muster.client.producer.async_producer import AsyncProducer
from muster.client.producer.producer import Producer
from muster.client.producer.producer_engine import exit_timeout_ms
from muster.errors import CommitFailedError, ConfigError, ErrorCode, IllegalStateError, KafkaError, MusterError
from muster.model import TopicPartition

log = logging.getLogger("muster.client.producer")

Batch = dict[TopicPartition, Any]
"""Records of a round, by partition: lists or, with `arrow`, tables."""

_RETRIED = frozenset(
    {
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.TRANSACTION_ABORTABLE,
        ErrorCode.UNKNOWN_PRODUCER_ID,
    }
)
"""Errors of a transaction after which the next one may succeed, in addition to retriable ones."""


def exactly_once(
    consumer: Consumer,
    producer: Producer,
    handler: Callable[[Batch], object],
    *,
    until: Callable[[int], bool] = lambda _count: False,
    arrow: bool = False,
    timeout_ms: int = 1_000,
) -> None:
    """Process records in transactions, each record once, until `until` returns True.

        exactly_once(consumer, producer, handler)

    `handler` gets what one poll returned, and sends its results with this `producer`; it need not wait for them. The
    consumer is subscribed, with any assignor, and has `enable_auto_commit=False` and
    `isolation_level="read_committed"`; `max_poll_records` bounds a round, and with 1, each record is a transaction. The
    producer has a `transactional_id` of its own in each process, and `init_transactions` was called. With `arrow`, the
    handler gets Arrow tables.

    After each round, `until` is called with the number of records that it committed, 0 if nothing was read.

    A round that cannot be committed, for example because the group has assigned its partitions to another member, is
    aborted, and its records are read again.

    Args:
        timeout_ms: how long a poll waits for records.

    Raises:
        ConfigError: the settings do not allow it.
        IllegalStateError: the consumer has partitions of `assign`, not a subscription.
        MusterError: with `fatal`, for example because another producer has taken the `transactional_id`, start again
            with new clients. Other errors are those that reading the records again would not resolve.
        BaseException: what the handler raised, or an interrupt. The round is aborted, and the next call reads its
            records again, unless an interrupt came so late that the round is committed. If that could not be
            determined in time, a note says so; then continue with a new consumer.
    """
    _check(consumer._consumer, producer._engine.core.transactions is not None)
    current = producer._engine.transactions
    if current.unseen == "commit_transaction":
        producer.commit_transaction()
    elif current.unseen == "abort_transaction":
        producer.abort_transaction()
    while True:
        batch: Batch = {}
        current_round: _Round | None = None
        earlier = current.last_call
        try:
            batch = consumer.poll_arrow(timeout_ms) if arrow else consumer.poll(timeout_ms)
            current_round = consumer._do(_Round, consumer._consumer, batch, arrow)
            if current_round.batch:
                with producer.transaction():
                    handler(current_round.batch)
                    producer.send_offsets_to_transaction(current_round.offsets, current_round.group)
        except BaseException as error:
            if current_round is None and batch:
                current_round = consumer._do(_Round, consumer._consumer, batch, arrow)
            if current_round is not None and not _is_committed(producer, earlier, error):
                consumer._do(current_round.go_back)
            if current_round is None or not _is_retried(error):
                raise
        if until(current_round.count):
            return


async def async_exactly_once(
    consumer: AsyncConsumer,
    producer: AsyncProducer,
    handler: Callable[[Batch], Awaitable[object]],
    *,
    until: Callable[[int], bool] = lambda _count: False,
    arrow: bool = False,
    timeout_ms: int = 1_000,
) -> None:
    """`exactly_once` for asyncio: `handler` is a coroutine function."""
    _check(consumer, producer._engine.core.transactions is not None)
    current = producer._engine.transactions
    if current.unseen == "commit_transaction":
        await producer.commit_transaction()
    elif current.unseen == "abort_transaction":
        await producer.abort_transaction()
    while True:
        batch: Batch = {}
        current_round: _Round | None = None
        earlier = current.last_call
        try:
            batch = await consumer.poll_arrow(timeout_ms) if arrow else await consumer.poll(timeout_ms)
            current_round = _Round(consumer, batch, arrow)
            if current_round.batch:
                async with producer.transaction():
                    await handler(current_round.batch)
                    await producer.send_offsets_to_transaction(current_round.offsets, current_round.group)
        except BaseException as error:
            if current_round is not None and not await _async_is_committed(producer, earlier, error):
                current_round.go_back()
            if current_round is None or not _is_retried(error):
                raise
        if until(current_round.count):
            return


class _Round:
    """The part of one poll's result that belongs to this member. Used only in the consumer's event loop."""

    def __init__(self, consumer: AsyncConsumer, batch: Batch, arrow: bool) -> None:
        self.group = consumer.group_metadata()
        self._consumer = consumer
        self._arrow = arrow
        at = consumer.handled(handed_out=True) if self.group.generation_id >= 0 else {}
        self.batch = {
            partition: records
            for partition, records in batch.items()
            if len(records)
            and consumer._handout.is_kept(partition)
            and at.get(partition, -1) > self._offset(records, -1)
        }
        self.offsets = {partition: at[partition] for partition in self.batch}
        self.count = sum(len(records) for records in self.batch.values())

    def go_back(self) -> None:
        """The round is aborted: its records are read again by whichever member has their partitions."""
        self.count = 0
        for partition, records in self.batch.items():
            if self._consumer._handout.is_kept(partition):
                self._consumer.seek(partition, self._offset(records, 0))

    def _offset(self, records: Any, index: int) -> int:
        return int(records["offset"][index].as_py()) if self._arrow else int(records[index].offset)


def _check(consumer: AsyncConsumer, has_transactions: bool) -> None:
    config = consumer._config
    if config.group_id is None:
        raise ConfigError("exactly_once needs a consumer with a group_id: offsets are committed for the group")
    if config.enable_auto_commit:
        raise ConfigError("exactly_once needs enable_auto_commit=False: offsets are committed in the transactions")
    if not config.enable_auto_offset_store:
        raise ConfigError(
            "exactly_once needs enable_auto_offset_store=True: it commits the offsets of the records that it has read"
        )
    if config.isolation_level != "read_committed":
        raise ConfigError(
            'exactly_once needs isolation_level="read_committed": otherwise it would process records of transactions '
            "that are aborted"
        )
    if not has_transactions:
        raise ConfigError("exactly_once needs a producer with a transactional_id")
    if consumer._core.subscription.kind is SubscriptionKind.MANUAL:
        raise IllegalStateError(
            "exactly_once needs a consumer that is subscribed: after assign() it is not a member of its group, and the "
            "coordinator could not refuse its offsets once another consumer has the partitions"
        )


def _is_committed(producer: Producer, earlier: TransactionCall | None, error: BaseException) -> bool:
    """Whether a round that ended with an error was committed nevertheless, or may have been. Aborts it otherwise."""
    current, limit_ms = producer._engine.transactions, exit_timeout_ms(error)
    call = current.last_call
    if call is not earlier and call is not None and call.name == "commit_transaction" and call.error is None:
        try:
            producer.commit_transaction(timeout_ms=limit_ms)
            return True
        except MusterError as failure:
            error.add_note(f"and the transaction was not committed: {failure}")
    if current.is_open:
        try:
            producer.abort_transaction(timeout_ms=limit_ms)
        except MusterError as failure:
            error.add_note(f"and the transaction was not aborted: {failure}")
    return current.unseen == "commit_transaction"


async def _async_is_committed(producer: AsyncProducer, earlier: TransactionCall | None, error: BaseException) -> bool:
    current, limit_ms = producer._engine.transactions, exit_timeout_ms(error)
    call = current.last_call
    if call is not earlier and call is not None and call.name == "commit_transaction" and call.error is None:
        try:
            await producer.commit_transaction(timeout_ms=limit_ms)
            return True
        except MusterError as failure:
            error.add_note(f"and the transaction was not committed: {failure}")
    if current.is_open:
        try:
            await producer.abort_transaction(timeout_ms=limit_ms)
        except MusterError as failure:
            error.add_note(f"and the transaction was not aborted: {failure}")
    return current.unseen == "commit_transaction"


def _is_retried(error: BaseException) -> bool:
    """Whether to try the aborted round again."""
    if not isinstance(error, KafkaError) or not error.abortable:
        return False
    if error.retriable or isinstance(error, CommitFailedError) or error.code in _RETRIED:
        log.warning("a transaction was aborted, and its records are read again: %s", error)
        return True
    return False
