"""A producer's transactions as the user sees them: their state, and the calls that change it (KIP-98, KIP-360,
KIP-890).

Theory. The states are those of Java 4.2's `TransactionManager`. `init_transactions` leads to READY. A transaction goes
from there through IN_TRANSACTION and COMMITTING or ABORTING back to READY. A record or an offset that is not written
makes the transaction *abortable*: it can only be aborted, and its other records are dropped. An error from which the
producer cannot recover, such as another producer with the same id, is fatal. The requests to brokers are in
`transaction_coordination.py`.

A call may be interrupted, or time out, at any moment (KAFKA-13412): its work continues, and the same call, made
again, waits for the same outcome. Until that is known, no other call is allowed.

There are two protocols. If the cluster's finalized feature `transaction.version` is 2, brokers add a partition with
its first batch, and EndTxn answers with the next epoch, so no batch can get into a transaction that follows its own.
Otherwise (v1) the producer adds partitions itself, and keeps its epoch unless something went wrong: then it asks for
the next one after the abort. A transaction ends by the protocol that it began with.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass
from enum import Enum

from muster.client.core.metadata import ClusterMetadata
from muster.client.core.produce.accumulator import ProducerBatch
from muster.client.core.produce.sequences import TransactionSequences
from muster.errors import IllegalArgumentError, IllegalStateError, MusterError, TransactionAbortedError
from muster.model import GroupMetadata, OffsetAndMetadata, TopicPartition

_FEATURE = "transaction.version"


class ProducerTransactionState(Enum):
    """The state of a transactional producer."""

    UNINITIALIZED = "uninitialized"
    INITIALIZING = "initializing"
    READY = "ready"
    IN_TRANSACTION = "in transaction"
    COMMITTING = "committing"
    ABORTING = "aborting"
    ABORTABLE_ERROR = "abortable error"
    FATAL_ERROR = "fatal error"


_OPEN = (ProducerTransactionState.IN_TRANSACTION, ProducerTransactionState.ABORTABLE_ERROR)
_MAY_FAIL = (ProducerTransactionState.IN_TRANSACTION, ProducerTransactionState.COMMITTING)


class TransactionCall:
    """A call of the user that needs requests to brokers: whether it has finished, and how."""

    __slots__ = ("done", "error", "name", "refusal", "seen")

    def __init__(self, name: str) -> None:
        self.name = name
        self.done = False
        self.error: MusterError | None = None
        self.seen = False
        """Whether the caller has the outcome."""
        self.refusal = ""
        """Why a broker last refused it; it is still being retried."""

    def finish(self, error: MusterError | None = None) -> None:
        """Set the outcome, once."""
        if not self.done:
            self.done, self.error = True, error

    def result(self) -> None:
        """Hand the outcome to the caller: raise the error, if there is one."""
        self.seen = True
        if self.error is not None:
            raise copy(self.error)


@dataclass(slots=True, eq=False)
class TransactionOffsets:
    """Offsets to commit in the transaction; `left` are those without an answer."""

    group: GroupMetadata
    left: dict[TopicPartition, OffsetAndMetadata]
    call: TransactionCall
    is_added: bool = False


class ProducerTransactions:
    """The transactions of one producer. `end_producer` is called with a fatal error, and then calls `end`."""

    def __init__(
        self, metadata: ClusterMetadata, sequences: TransactionSequences, end_producer: Callable[[MusterError], None]
    ) -> None:
        self.state = ProducerTransactionState.UNINITIALIZED
        self.error: MusterError | None = None
        """Why the transaction must be aborted, or the producer has ended."""
        self.is_v2 = False
        """Whether the protocol is v2: brokers add partitions, and EndTxn answers with the next epoch."""
        self.ends_in_v2 = False
        """Whether the transaction that is ending does so in v2."""
        self.can_raise_epoch = False
        """Whether the coordinator can give this producer its next epoch, as Kafka 2.5 and later can."""
        self.raises_epoch = False
        """In v1: whether the next transaction needs a new epoch."""
        self.sequences = sequences
        self.end_producer = end_producer
        # About the open transaction:
        self.is_begun = False
        """Whether the coordinator has the transaction, or with v2 may have it."""
        self.may_be_begun = False
        """In v1: whether the answer to AddPartitionsToTxn or AddOffsetsToTxn was lost."""
        self.partitions: set[TopicPartition] = set()
        self.to_add: set[TopicPartition] = set()
        self.offsets: deque[TransactionOffsets] = deque()
        self._is_used = False
        self._metadata = metadata
        self._features_epoch = -1
        self._call: TransactionCall | None = None

    # --- the user's calls --------------------------------------------------------------------------------------------

    def initialize(self) -> TransactionCall:
        """Get an id and an epoch, which ends what another producer with this transactional id has begun."""
        if (previous := self._previous_call("init_transactions")) is not None:
            return previous
        self._check_error()
        if self.state is not ProducerTransactionState.UNINITIALIZED:
            raise IllegalStateError("init_transactions is called once, before the first transaction")
        return self._start(ProducerTransactionState.INITIALIZING, "init_transactions")

    def begin(self) -> None:
        """Begin a transaction. One without records and offsets counts as just begun, so an interrupted call can be
        repeated."""
        self._check_error()
        if self.unseen is not None:
            raise IllegalStateError(f"the outcome of {self.unseen} is not known yet: call it again")
        if self.state is ProducerTransactionState.UNINITIALIZED:
            raise IllegalStateError("call init_transactions first, once")
        if self.state is ProducerTransactionState.IN_TRANSACTION and self._is_used:
            raise IllegalStateError("a transaction is open: commit or abort it first")
        self.state, self._call, self._is_used = ProducerTransactionState.IN_TRANSACTION, None, False

    def commit(self) -> TransactionCall:
        """End the transaction: all of it becomes visible, once every record is acknowledged."""
        if (previous := self._previous_call("commit_transaction")) is not None:
            return previous
        self._check_open()
        return self._end_transaction(ProducerTransactionState.COMMITTING, "commit_transaction")

    def abort(self) -> TransactionCall:
        """Abort the transaction: readers see nothing of it, and records that were not sent yet are dropped."""
        if (previous := self._previous_call("abort_transaction")) is not None:
            return previous
        if self.state is not ProducerTransactionState.ABORTABLE_ERROR:
            self._check_open()
        self._drop(TransactionAbortedError("the transaction was aborted before the offsets were committed"))
        return self._end_transaction(ProducerTransactionState.ABORTING, "abort_transaction")

    def send_offsets(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], group: GroupMetadata
    ) -> TransactionCall:
        """Commit a group's offsets as part of the transaction."""
        if group.generation_id > 0 and not group.member_id:
            raise IllegalArgumentError(f"{group} has a generation, but no member id")
        self.check_send()
        call = TransactionCall("send_offsets_to_transaction")
        if offsets:
            self.offsets.append(TransactionOffsets(group, dict(offsets), call))
        else:
            call.finish()
        return call

    def check_send(self) -> None:
        """Raise the reason why a record cannot be taken now, if there is one. Used from any thread."""
        if self.state is not ProducerTransactionState.IN_TRANSACTION:
            self._check_open()
        self._is_used = True

    @property
    def last_call(self) -> TransactionCall | None:
        """The last call to initialize, commit or abort; None once a transaction has begun after it."""
        return self._call

    @property
    def unseen(self) -> str | None:
        """The name of the last call if its caller does not have the outcome yet; it must be made again."""
        call = self._call
        return None if call is None or (call.done and call.seen) else call.name

    @property
    def is_open(self) -> bool:
        """Whether there is a transaction that can be aborted."""
        return self.state in _OPEN

    @property
    def is_ending(self) -> bool:
        """Whether a commit or an abort is under way."""
        return self._call is not None and not self._call.done and self._call.name != "init_transactions"

    def _previous_call(self, name: str) -> TransactionCall | None:
        """The previous call of this name, if it is under way or was the last to succeed. Once the producer has ended,
        only an outcome that the caller does not have yet counts.
        """
        call = self._call
        if call is None or call.error is not None:
            return None
        if call.seen and self.state is ProducerTransactionState.FATAL_ERROR:
            return None
        if call.name == name:
            return call
        if not call.done:
            raise IllegalStateError(f"{call.name} is under way: call it again to learn its outcome")
        return None

    def _check_error(self) -> None:
        if self.error is not None:
            raise copy(self.error)

    def _check_open(self) -> None:
        self._check_error()
        if self.state is not ProducerTransactionState.IN_TRANSACTION:
            first = "init_transactions and " if self.state is ProducerTransactionState.UNINITIALIZED else ""
            raise IllegalStateError(f"no transaction is open: call {first}begin_transaction first")

    def _end_transaction(self, state: ProducerTransactionState, name: str) -> TransactionCall:
        self.ends_in_v2 = self.is_v2
        self.learn_version()
        return self._start(state, name)

    def _start(self, state: ProducerTransactionState, name: str) -> TransactionCall:
        self.state, self.error, self._call = state, None, TransactionCall(name)
        return self._call

    # --- records -----------------------------------------------------------------------------------------------------

    def may_send(self, partition: TopicPartition) -> bool:
        """Whether batches of a partition may be sent; otherwise the partition is added to the transaction first."""
        if self.is_v2:
            self.is_begun = True
            return True
        if partition in self.partitions:
            return True
        self.to_add.add(partition)
        return False

    @property
    def dropping(self) -> MusterError | None:
        """The error of records that are no longer sent, while the transaction is failing."""
        if self.state is ProducerTransactionState.ABORTABLE_ERROR:
            return self.error
        if self.state is ProducerTransactionState.ABORTING:
            return TransactionAbortedError("the transaction was aborted before the record was written")
        return None

    def must_settle(self, batch: ProducerBatch) -> bool:
        """Whether a batch is sent again although the transaction is failing.

        In v1 a marker leaves the epoch as it is. So an attempt without an answer could be written after the marker of
        the abort, and open a transaction that is never ended. Once a later attempt is answered, brokers refuse the
        earlier one as a repeat. A batch after a lost one cannot be written at all.
        """
        is_v2 = self.ends_in_v2 if self.state is ProducerTransactionState.ABORTING else self.is_v2
        return not is_v2 and batch.has_sequence and self.sequences.is_in_line(batch)

    def failed(self, error: MusterError, leaves_gap: bool) -> None:
        """A record was not written: the transaction cannot be committed. With `leaves_gap`, its sequence was used."""
        if self.state is ProducerTransactionState.FATAL_ERROR:
            return
        if leaves_gap and not (self.is_v2 or self.can_raise_epoch):
            self.end_producer(error)  # brokers older than Kafka 2.5 cannot restart the sequences
            return
        self.fail(error, raises_epoch=leaves_gap)

    # --- outcomes ----------------------------------------------------------------------------------------------------

    def fail(self, error: MusterError, *, raises_epoch: bool = False) -> None:
        """The transaction cannot be committed. An abort that is already in progress continues."""
        self.raises_epoch |= raises_epoch and self.can_raise_epoch and not self.is_v2
        if self.state in _MAY_FAIL:
            error.abortable, error.fatal = True, False
            self.state, self.error = ProducerTransactionState.ABORTABLE_ERROR, error
            self._finish_calls(error)

    def end(self, error: MusterError) -> None:
        """The producer cannot continue, or was closed."""
        self.state, self.error = ProducerTransactionState.FATAL_ERROR, error
        self._finish_calls(error)

    def initialized(self, error: MusterError | None = None) -> None:
        """The producer has its id, or its next epoch; with an error it may be asked for again."""
        if error is None:
            self.learn_version()
            self.raises_epoch = False
            self._finish(ProducerTransactionState.READY)
        else:
            self.state = ProducerTransactionState.UNINITIALIZED
            self._finish_calls(error)

    def ended(self) -> None:
        """The coordinator has ended the transaction, or never had it."""
        self.is_begun = self.may_be_begun = False
        self.partitions.clear()
        if self.raises_epoch:
            self.state = ProducerTransactionState.INITIALIZING
        else:
            self._finish(ProducerTransactionState.READY)

    def learn_version(self) -> None:
        """Choose the protocol of the next transaction. Moving to v2 takes a new epoch, so that partitions of earlier
        transactions do not count as added."""
        if self._features_epoch < self._metadata.features_epoch:
            self._features_epoch = self._metadata.features_epoch
            was_v2, self.is_v2 = self.is_v2, self._metadata.features.get(_FEATURE, 0) >= 2
            self.sequences.first_goes_alone = not self.is_v2  # in v2 brokers refuse a first sequence other than 0
            self.raises_epoch |= self.is_v2 and not was_v2

    def _finish(self, state: ProducerTransactionState) -> None:
        self.state = state
        if self._call is not None:
            self._call.finish()

    def _finish_calls(self, error: MusterError) -> None:
        if self._call is not None:
            self._call.finish(error)
        self._drop(error)

    def _drop(self, error: MusterError) -> None:
        self.to_add.clear()
        while self.offsets:
            self.offsets.popleft().call.finish(error)
