"""A transactional producer's requests to coordinators, and what the answers mean, as in Java 4.2's
`TransactionManager`.

Theory. `poll` returns the one request that the state of `ProducerTransactions` needs next. Only one is in flight, so an
answer belongs to the state in which it arrives, and EndTxn goes out when no record is waiting or in flight.
`core/refusals.py` says which error codes repeat a request, make the transaction abortable, or end the producer.

In v1, an abort may be requested when it is unknown whether the coordinator has begun the transaction, because the
answer to AddPartitionsToTxn was lost. EndTxn goes out then, and INVALID_TXN_STATE means that there was nothing to
abort.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from muster.client.config import ProducerConfig
from muster.client.core.backoff import Backoff
from muster.client.core.coordinator_lookup import CoordinatorLookup
from muster.client.core.events import EventStream
from muster.client.core.metadata import ClusterMetadata
from muster.client.core.produce.transaction_requests import (
    ADD_PARTITIONS_OF_CLIENTS,
    END_BEFORE_V2,
    INIT_WITH_EPOCH,
    OFFSETS_BEFORE_V2,
    add_partitions_request,
    added,
    committed,
    init_request,
    offsets_request,
)
from muster.client.core.produce.transactions import ProducerTransactions, ProducerTransactionState, TransactionOffsets
from muster.client.core.refusals import COMMIT_ABORTABLE, INIT_RETRIABLE, OFFSETS_ABORTABLE, TRANSACTION_FATAL
from muster.client.core.sends import AnySend, Channel, Failure, FailureKind, Send
from muster.errors import (
    AuthenticationError,
    CommitFailedError,
    ErrorCode,
    KafkaError,
    MusterError,
    ProducerFencedError,
    error_code,
)
from muster.model import GroupMetadata, TopicPartition
from muster.protocol.api import CoordinatorType
from muster.protocol.messages import InitProducerIdRequest, InitProducerIdResponse
from muster.protocol.primitives import Request
from muster.protocol.transaction_messages import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    EndTxnRequest,
    EndTxnResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)

_COMPLETION_RETRY_MS = 20
"""The first wait while the previous transaction is being completed: short, as in Java, because that takes
milliseconds.
"""

_ENDING = (ProducerTransactionState.COMMITTING, ProducerTransactionState.ABORTING)
_ADDITIONS = (AddPartitionsToTxnRequest, AddOffsetsToTxnRequest)


class TransactionCoordination:
    """The requests of one producer's transactions."""

    def __init__(
        self, transactions: ProducerTransactions, config: ProducerConfig, metadata: ClusterMetadata, seed: int = 0
    ) -> None:
        assert config.transactional_id is not None
        self.id = config.transactional_id
        self.events = EventStream()
        """Lines for the log, and connections to be closed."""
        self._transactions = transactions
        self._sequences = transactions.sequences
        self._config = config
        self._metadata = metadata
        self._seed = seed
        self._coordinator = CoordinatorLookup(self.id, config, metadata, self.events, seed, CoordinatorType.TRANSACTION)
        self._group: CoordinatorLookup | None = None
        self._backoff = Backoff(config.retry_backoff_ms, config.retry_backoff_max_ms, seed)
        self._completion_backoff = Backoff(
            min(_COMPLETION_RETRY_MS, config.retry_backoff_ms), config.retry_backoff_ms, seed
        )
        self._retry_at = 0
        self._in_flight = False

    # --- poll --------------------------------------------------------------------------------------------------------

    def poll(self, now: int, incomplete: bool) -> list[AnySend]:
        """The requests that are due. `incomplete` says that records are waiting or in flight."""
        sends: list[AnySend] = []
        if not self._in_flight and now >= self._retry_at and (due := self._due(incomplete)) is not None:
            self._in_flight = True
            sends.append(due)
        for lookup in self._lookups:
            sends += lookup.poll(now)
        self._take_lookup_errors()
        return sends

    def next_deadline(self, now: int) -> int | None:
        """When `poll` has something to do, if nothing arrives earlier."""
        times = [lookup.next_deadline(now) for lookup in self._lookups]
        if not self._in_flight and self._retry_at > now:
            times.append(self._retry_at)
        return min((when for when in times if when is not None), default=None)

    @property
    def trouble(self) -> str:
        """Why a call to a coordinator takes so long; empty if that is not known."""
        return next((f"{one.what}: {one.trouble}" for one in self._lookups if one.trouble), "")

    @property
    def _lookups(self) -> list[CoordinatorLookup]:
        return [self._coordinator] if self._group is None else [self._coordinator, self._group]

    def _take_lookup_errors(self) -> None:
        error, self._coordinator.error = self._coordinator.error, None
        if error is not None:
            self._give_up(error)
        if self._group is not None:
            error, self._group.error = self._group.error, None
            if isinstance(error, KafkaError) and error.code in OFFSETS_ABORTABLE:
                self._transactions.fail(error)
            elif error is not None:
                self._transactions.end_producer(error)

    def _due(self, incomplete: bool) -> AnySend | None:
        current = self._transactions
        if current.to_add:
            return self._add_partitions()
        if current.offsets:
            return self._send_offsets(current.offsets[0])
        if current.state in _ENDING and not incomplete:
            if current.is_begun or current.may_be_begun:
                return self._end_txn()
            current.ended()  # nothing was sent
        if current.state is ProducerTransactionState.INITIALIZING:
            return self._init()
        return None

    # --- requests ----------------------------------------------------------------------------------------------------

    def _request(
        self,
        lookup: CoordinatorLookup,
        request_type: type[Request[Any]],
        build: Callable[[int], Request[Any]],
        on_answer: Callable[[Any, int], None],
        newest: int | None = None,
    ) -> AnySend | None:
        node_id = lookup.need()
        if node_id is None:
            return None

        def on_reply(reply: Any, now: int) -> None:
            self._in_flight = False
            if self._transactions.state is ProducerTransactionState.FATAL_ERROR:
                return
            if not isinstance(reply, Failure):
                on_answer(reply, now)
            elif reply.retriable:
                is_lost = reply.kind is not FailureKind.UNREACHABLE
                self._transactions.may_be_begun |= is_lost and request_type in _ADDITIONS
                lookup.failed(reply, now)
            else:
                self._give_up(reply.error())

        return Send(node_id, request_type, build, on_reply, Channel.COORDINATOR, newest_version=newest)

    def _must_retry(self, code: ErrorCode, lookup: CoordinatorLookup, now: int) -> bool:
        """Whether an answer means that the request is sent again, later or to another coordinator."""
        if lookup.refused(code, now):
            return True
        if code.retriable:
            lookup.trouble = f"it answered {code.name}"
            backoff = self._completion_backoff if code is ErrorCode.CONCURRENT_TRANSACTIONS else self._backoff
            self._retry_at = now + backoff.next_wait_ms()
            return True
        self._backoff.reset()
        self._completion_backoff.reset()
        return False

    def _give_up(self, error: MusterError) -> None:
        """No retry can help. A producer that has no id yet may be initialized again, once it is allowed to."""
        current = self._transactions
        has_no_id = current.state is ProducerTransactionState.INITIALIZING and self._sequences.needs_producer_id
        may_change = isinstance(error, KafkaError) and error.code in INIT_RETRIABLE
        if has_no_id and (may_change or isinstance(error, AuthenticationError)):
            current.initialized(error)
        else:
            current.end_producer(error)

    def _error(self, code: ErrorCode, what: str) -> MusterError:
        timeout_ms = self._config.transaction_timeout_ms
        fenced = (
            f"another producer with transactional_id {self.id} was started, or the transaction took longer than "
            f"transaction_timeout_ms ({timeout_ms})"
        )
        if code in (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH):
            return ProducerFencedError(ErrorCode.PRODUCER_FENCED, fenced)
        if code is ErrorCode.INVALID_TXN_STATE:  # in v2 an abort by another producer looks like one by this producer
            return KafkaError(code, f"{what}: {fenced}")
        if code is ErrorCode.INVALID_TRANSACTION_TIMEOUT:
            text = f"transaction_timeout_ms is {timeout_ms}, more than the broker's transaction.max.timeout.ms allows"
            return KafkaError(code, text)
        return KafkaError(code, f"{what} (transactional_id {self.id})")

    # --- the producer's id -------------------------------------------------------------------------------------------

    def _init(self) -> AnySend | None:
        def build(version: int) -> InitProducerIdRequest:
            self._transactions.can_raise_epoch = version >= INIT_WITH_EPOCH
            timeout_ms = self._config.transaction_timeout_ms
            return init_request(
                version, self.id, timeout_ms, self._sequences.producer_id, self._sequences.producer_epoch
            )

        return self._request(self._coordinator, InitProducerIdRequest, build, self._on_init)

    def _on_init(self, reply: InitProducerIdResponse, now: int) -> None:
        code = error_code(reply.error_code)
        if self._must_retry(code, self._coordinator, now):
            return
        if code is ErrorCode.NONE:
            self._sequences.begin_epoch(reply.producer_id, reply.producer_epoch)
            self._transactions.initialized()
        else:
            self._give_up(self._error(code, "the broker returned no producer id"))

    # --- partitions --------------------------------------------------------------------------------------------------

    def _add_partitions(self) -> AnySend | None:
        adding = frozenset(self._transactions.to_add)
        request = add_partitions_request(self.id, self._sequences.producer_id, self._sequences.producer_epoch, adding)
        return self._request(
            self._coordinator,
            AddPartitionsToTxnRequest,
            lambda _: request,
            lambda reply, now: self._on_added(adding, reply, now),
            ADD_PARTITIONS_OF_CLIENTS,
        )

    def _on_added(self, adding: frozenset[TopicPartition], reply: AddPartitionsToTxnResponse, now: int) -> None:
        current = self._transactions
        codes = added(reply)
        refused: dict[TopicPartition, ErrorCode] = {}
        for partition in sorted(adding):
            code = codes.get(partition, ErrorCode.UNKNOWN_SERVER_ERROR)
            if self._must_retry(code, self._coordinator, now):
                return
            if code in TRANSACTION_FATAL:
                current.end_producer(self._error(code, f"{partition} was not added to the transaction"))
                return
            if code is not ErrorCode.NONE:
                refused[partition] = code
        current.to_add -= adding
        if not refused:
            current.is_begun = True
            current.partitions |= adding
            return
        causes = {
            partition: code for partition, code in refused.items() if code is not ErrorCode.OPERATION_NOT_ATTEMPTED
        }
        partition, code = next(iter((causes or refused).items()))
        error = KafkaError(code, f"{partition} was not added to the transaction")
        current.fail(error, raises_epoch=code is ErrorCode.UNKNOWN_PRODUCER_ID)

    # --- offsets -----------------------------------------------------------------------------------------------------

    def _send_offsets(self, offsets: TransactionOffsets) -> AnySend | None:
        current, sequences, group = self._transactions, self._sequences, offsets.group
        if not current.is_v2 and not offsets.is_added:
            request = AddOffsetsToTxnRequest(self.id, sequences.producer_id, sequences.producer_epoch, group.group_id)
            return self._request(
                self._coordinator,
                AddOffsetsToTxnRequest,
                lambda _: request,
                lambda reply, now: self._on_group_added(offsets, reply, now),
            )
        lookup = self._lookup(group.group_id)
        current.is_begun = True
        left = dict(offsets.left)
        return self._request(
            lookup,
            TxnOffsetCommitRequest,
            lambda version: offsets_request(
                version, self.id, sequences.producer_id, sequences.producer_epoch, group, left
            ),
            lambda reply, now: self._on_offsets(offsets, lookup, reply, now),
            None if current.is_v2 else OFFSETS_BEFORE_V2,
        )

    def _lookup(self, group_id: str) -> CoordinatorLookup:
        if self._group is None or self._group.key != group_id:
            self._group = CoordinatorLookup(group_id, self._config, self._metadata, self.events, self._seed)
        return self._group

    def _on_group_added(self, offsets: TransactionOffsets, reply: AddOffsetsToTxnResponse, now: int) -> None:
        code = error_code(reply.error_code)
        what = f"group {offsets.group.group_id} was not added to the transaction"
        if self._must_retry(code, self._coordinator, now):
            return
        if code is ErrorCode.NONE:
            self._transactions.is_begun = offsets.is_added = True
        elif code in OFFSETS_ABORTABLE:
            self._transactions.fail(KafkaError(code, what), raises_epoch=code is ErrorCode.UNKNOWN_PRODUCER_ID)
        else:
            self._transactions.end_producer(self._error(code, what))

    def _on_offsets(
        self, offsets: TransactionOffsets, lookup: CoordinatorLookup, reply: TxnOffsetCommitResponse, now: int
    ) -> None:
        current = self._transactions
        codes = committed(reply)
        must_retry = False
        for partition in list(offsets.left):
            code = codes.get(partition, ErrorCode.UNKNOWN_SERVER_ERROR)
            if self._must_retry(code, lookup, now):
                must_retry = True
                missing = " (does the topic exist?)" if code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION else ""
                offsets.call.refusal = f"the offset of {partition} was refused with {code.name}{missing}"
                if code is ErrorCode.REQUEST_TIMED_OUT:
                    lookup.mark_dead("a commit timed out there", now)
            elif code is ErrorCode.NONE:
                del offsets.left[partition]
            elif code in OFFSETS_ABORTABLE:
                current.fail(_not_committed(code, partition, offsets.group))
                return
            else:
                current.end_producer(self._error(code, f"the offset of {partition} was not committed"))
                return
        if not must_retry:
            offsets.call.finish()
            if offsets in current.offsets:  # otherwise the transaction was aborted meanwhile
                current.offsets.remove(offsets)

    # --- the end -----------------------------------------------------------------------------------------------------

    def _end_txn(self) -> AnySend | None:
        current = self._transactions
        commits = current.state is ProducerTransactionState.COMMITTING
        request = EndTxnRequest(self.id, self._sequences.producer_id, self._sequences.producer_epoch, commits)
        newest = None if current.ends_in_v2 else END_BEFORE_V2
        return self._request(
            self._coordinator,
            EndTxnRequest,
            lambda _: request,
            lambda reply, now: self._on_end(commits, reply, now),
            newest,
        )

    def _on_end(self, commits: bool, reply: EndTxnResponse, now: int) -> None:
        current = self._transactions
        code = error_code(reply.error_code)
        if self._must_retry(code, self._coordinator, now):
            return
        if code is ErrorCode.NONE:
            if reply.producer_id >= 0:
                self._sequences.begin_epoch(reply.producer_id, reply.producer_epoch)
            current.ended()
        elif code is ErrorCode.INVALID_TXN_STATE and not commits and not current.is_begun:
            current.ended()
        elif commits and code in COMMIT_ABORTABLE:
            error = KafkaError(code, "the transaction cannot be committed")
            current.fail(error, raises_epoch=code is ErrorCode.UNKNOWN_PRODUCER_ID)
        else:
            what = "committed" if commits else "aborted"
            current.end_producer(self._error(code, f"the transaction was not {what}"))


def _not_committed(code: ErrorCode, partition: TopicPartition, group: GroupMetadata) -> KafkaError:
    if code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION):
        text = f"group {group.group_id} has reassigned its partitions since these records were read"
        return CommitFailedError(code, text)
    return KafkaError(code, f"the offset of {partition} was not committed in the transaction")
