"""The rules of transactions: how an id in each state answers each request.

Theory of operation
===================

    EMPTY --> ONGOING --> PREPARE_COMMIT --> COMPLETE_COMMIT --.
      ^  \\        |  \\                                         |
      |   \\       |   '--> PREPARE_ABORT --> COMPLETE_ABORT ----|
      |    '------+---------^                                   |
      '-----------+--- InitProducerId <-------------------------|
                  '<-------- the next transaction --------------'

A producer asks for its ids (InitProducerId), then adds the partitions that it is about to write to (AddPartitionsToTxn,
AddOffsetsToTxn; since `transaction.version` 2 the partitions' broker adds them). EndTxn decides. The decision takes
effect with its record: it is answered, and a marker is written into every partition, with retries until each has it.
Only then may the next transaction begin; until then requests are answered with CONCURRENT_TRANSACTIONS, and clients
retry.

A transaction whose producer is gone is aborted by the next producer with that id (InitProducerId while ONGOING), or by
its timeout. Both fence the producer with a new epoch.

In Kafka a change that is not yet in the log is a "pending state", and for requests it counts as PREPARE_*. Kafka also
keeps one from a decision until its last marker, and checks it before the producer id and the epoch, except in EndTxn
before version 5. Here a change is applied when it is decided, and answers wait for the log (`shards.py`), so PREPARE_*
covers both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import NamedTuple, TypeAlias

from muster.coordinator.transactions.entry import (
    COMPLETE_ABORT,
    COMPLETE_COMMIT,
    EMPTY,
    ENDING,
    EPOCH_BUMPS_SINCE,
    LAST_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    ONGOING,
    PREPARE_ABORT,
    PREPARE_COMMIT,
    Transaction,
    TransactionState,
)
from muster.errors import NONE, ErrorCode
from muster.model import TopicPartition

NewId: TypeAlias = Callable[[], int]
"""Returns an unused producer id; raises KafkaError if there is none now."""


class Move(Enum):
    """What a request does to a transactional id if it is not refused."""

    INITIALIZE = "the producer gets an epoch"
    FENCE = "the transaction is aborted, and the request repeated"
    ADD = "the partitions are added"
    ADD_OR_NONE = "the partitions that are new are added"
    COMMIT = "commits"
    ABORT = "aborts"
    REPEATED = "it was done before: the same ids are returned"
    LOOK_UP = "each partition must be in the transaction"


Answer: TypeAlias = ErrorCode | Move

_CONCURRENT = ErrorCode.CONCURRENT_TRANSACTIONS
_INVALID = ErrorCode.INVALID_TXN_STATE
_FENCED = ErrorCode.PRODUCER_FENCED

# --------------------------------------------------------------------------------------------------------- the tables

INIT_PRODUCER_ID: Mapping[TransactionState, Answer] = {
    EMPTY: Move.INITIALIZE,
    ONGOING: Move.FENCE,
    PREPARE_COMMIT: _CONCURRENT,
    PREPARE_ABORT: _CONCURRENT,
    COMPLETE_COMMIT: Move.INITIALIZE,
    COMPLETE_ABORT: Move.INITIALIZE,
}

ADD_PARTITIONS: Mapping[TransactionState, Answer] = {
    EMPTY: Move.ADD,
    ONGOING: Move.ADD_OR_NONE,
    PREPARE_COMMIT: _CONCURRENT,
    PREPARE_ABORT: _CONCURRENT,
    COMPLETE_COMMIT: Move.ADD,
    COMPLETE_ABORT: Move.ADD,
}
"""AddPartitionsToTxn and AddOffsetsToTxn, from the id's producer in its epoch."""

VERIFY_PARTITIONS: Mapping[TransactionState, Answer] = {
    EMPTY: Move.LOOK_UP,
    ONGOING: Move.LOOK_UP,
    PREPARE_COMMIT: _CONCURRENT,
    PREPARE_ABORT: _CONCURRENT,
    COMPLETE_COMMIT: Move.LOOK_UP,
    COMPLETE_ABORT: Move.LOOK_UP,
}
"""AddPartitionsToTxn that only asks whether partitions are in the transaction."""

END_BEFORE_BUMPS: Mapping[tuple[TransactionState, bool], Answer] = {
    (EMPTY, True): _INVALID,
    (EMPTY, False): _INVALID,
    (ONGOING, True): Move.COMMIT,
    (ONGOING, False): Move.ABORT,
    (PREPARE_COMMIT, True): _CONCURRENT,
    (PREPARE_COMMIT, False): _CONCURRENT,
    (PREPARE_ABORT, True): _CONCURRENT,
    (PREPARE_ABORT, False): _CONCURRENT,
    (COMPLETE_COMMIT, True): NONE,
    (COMPLETE_COMMIT, False): _INVALID,
    (COMPLETE_ABORT, True): _INVALID,
    (COMPLETE_ABORT, False): NONE,
}
"""EndTxn up to version 4, by state and whether it commits; from the id's producer in its epoch."""

END: Mapping[tuple[TransactionState, bool, bool], Answer] = {
    (EMPTY, True, False): _INVALID,
    (EMPTY, True, True): _FENCED,
    # Without partitions: the producer did not learn whether a broker added the partition that it wrote to.
    (EMPTY, False, False): Move.ABORT,
    (EMPTY, False, True): _FENCED,
    (ONGOING, True, False): Move.COMMIT,
    (ONGOING, True, True): _FENCED,
    (ONGOING, False, False): Move.ABORT,
    (ONGOING, False, True): _FENCED,
    (PREPARE_COMMIT, True, False): _CONCURRENT,
    (PREPARE_COMMIT, True, True): _CONCURRENT,
    (PREPARE_COMMIT, False, False): _CONCURRENT,
    (PREPARE_COMMIT, False, True): _CONCURRENT,
    (PREPARE_ABORT, True, False): _CONCURRENT,
    (PREPARE_ABORT, True, True): _CONCURRENT,
    (PREPARE_ABORT, False, False): _CONCURRENT,
    (PREPARE_ABORT, False, True): _CONCURRENT,
    (COMPLETE_COMMIT, True, False): _INVALID,
    (COMPLETE_COMMIT, True, True): Move.REPEATED,
    (COMPLETE_COMMIT, False, False): Move.ABORT,
    (COMPLETE_COMMIT, False, True): _INVALID,
    (COMPLETE_ABORT, True, False): _INVALID,
    (COMPLETE_ABORT, True, True): _INVALID,
    (COMPLETE_ABORT, False, False): Move.ABORT,
    (COMPLETE_ABORT, False, True): Move.REPEATED,
}
"""EndTxn since version 5, by state, whether it commits, and whether it is a retry: the producer has the epoch from
before the transaction ended."""


class TransactionOutcome(NamedTuple):
    """The answer to a request: an error, ids for the producer, and the transactional id's new state, if it changes."""

    error: ErrorCode = NONE
    changed: Transaction | None = None
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH


class ProducerIdentity(NamedTuple):
    """A producer's id and epoch, as it sent them."""

    producer_id: int
    epoch: int


# ------------------------------------------------------------------------------------------------------ InitProducerId


def init_producer_id(
    found: Transaction | None,
    known: ProducerIdentity | None,
    timeout_ms: int,
    server_version: int,
    new_id: NewId,
    now: int,
) -> TransactionOutcome:
    """InitProducerId. `known`: the ids that the producer has and wants to keep using (KIP-360)."""
    if found is None:
        producer_id = new_id()
        made = Transaction(producer_id, 0, timeout_ms, now, previous_producer_id=producer_id)
        return TransactionOutcome(NONE, made, producer_id, 0)
    if found.state in ENDING:
        return TransactionOutcome(_CONCURRENT)
    if known is not None and not _may_know(found, known):
        return TransactionOutcome(_FENCED)
    answer = INIT_PRODUCER_ID[found.state]
    if answer is Move.FENCE:
        return TransactionOutcome(_CONCURRENT, fence(found, server_version, new_id, now))
    ids = _next_ids(found, known, new_id)
    if ids is None:
        return TransactionOutcome(_FENCED)
    return TransactionOutcome(NONE, found.initialized(*ids, timeout_ms, now), *ids[:2])


def _may_know(found: Transaction, known: ProducerIdentity) -> bool:
    """Whether a producer may have received these ids from this coordinator; the epoch is checked later."""
    is_from_before = known.producer_id == found.previous_producer_id and known.epoch >= LAST_EPOCH
    return known.producer_id == found.producer_id or is_from_before


def _next_ids(found: Transaction, known: ProducerIdentity | None, new_id: NewId) -> tuple[int, int, int] | None:
    """Producer id, epoch and last epoch for a producer; None if another producer has received ids since."""
    is_current = known is None or known.epoch == found.producer_epoch
    last_epoch = NO_PRODUCER_EPOCH if known is None else found.producer_epoch
    if is_current and found.is_exhausted:
        return new_id(), 0, last_epoch
    if is_current:
        return found.producer_id, found.producer_epoch + 1, last_epoch
    if known is not None and known.epoch == found.last_producer_epoch:  # the answer to it was lost
        return found.producer_id, found.producer_epoch, found.last_producer_epoch
    return None


def fence(found: Transaction, server_version: int, new_id: NewId, now: int) -> Transaction:
    """Abort a transaction without its producer, which is fenced by one new epoch (KAFKA-19367). If that uses up the
    epochs, the producer id changes too (KAFKA-20090)."""
    if server_version < EPOCH_BUMPS_SINCE:
        return found.fenced(now)
    return _ended(found, PREPARE_ABORT, server_version, new_id, now)


# ------------------------------------------------------------------------------------ AddPartitionsToTxn, and verifying


def check_producer(found: Transaction | None, producer: ProducerIdentity) -> ErrorCode:
    """NONE if `producer` is the id's producer in its current epoch."""
    if found is None or found.producer_id != producer.producer_id:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    return NONE if found.producer_epoch == producer.epoch else _FENCED


def add_partitions(
    found: Transaction | None,
    producer: ProducerIdentity,
    partitions: frozenset[TopicPartition],
    client_version: int,
    now: int,
) -> TransactionOutcome:
    """AddPartitionsToTxn, or AddOffsetsToTxn."""
    if found is not None and found.state in ENDING:  # the producer may have ids that are valid only afterwards
        return TransactionOutcome(_CONCURRENT)
    error = check_producer(found, producer)
    if found is None or error is not NONE:
        return TransactionOutcome(error)
    answer = ADD_PARTITIONS[found.state]
    if answer is Move.ADD_OR_NONE and partitions <= found.partitions:
        return TransactionOutcome()
    return TransactionOutcome(NONE, found.with_partitions(partitions, client_version, now))


def verify_partitions(
    found: Transaction | None, producer: ProducerIdentity, partitions: frozenset[TopicPartition]
) -> Mapping[TopicPartition, ErrorCode]:
    """Whether partitions are in the transaction."""
    error = check_producer(found, producer)
    if found is None or error is not NONE:
        return dict.fromkeys(partitions, error)
    answer = VERIFY_PARTITIONS[found.state]
    if isinstance(answer, ErrorCode):
        return dict.fromkeys(partitions, answer)
    missing = ErrorCode.TRANSACTION_ABORTABLE
    return {partition: NONE if partition in found.partitions else missing for partition in partitions}


# -------------------------------------------------------------------------------------------------------------- EndTxn


def end(
    found: Transaction | None, producer: ProducerIdentity, committed: bool, client_version: int, new_id: NewId, now: int
) -> TransactionOutcome:
    """EndTxn."""
    if found is None:
        return TransactionOutcome(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    if client_version < EPOCH_BUMPS_SINCE:
        return _end_before_bumps(found, producer, committed, now)
    if found.state in ENDING:
        return TransactionOutcome(_CONCURRENT)
    is_of_last_id = (
        producer.producer_id == found.previous_producer_id
        and producer.epoch == LAST_EPOCH
        and found.producer_epoch == 0
    )
    if producer.producer_id != found.producer_id and not is_of_last_id:
        return TransactionOutcome(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    is_retry = is_of_last_id or found.producer_epoch == producer.epoch + 1
    if not is_retry and producer.epoch != found.producer_epoch:
        return TransactionOutcome(_FENCED)
    answer = END[found.state, committed, is_retry]
    if answer is Move.REPEATED:
        return TransactionOutcome(NONE, None, found.producer_id, found.producer_epoch)
    if isinstance(answer, ErrorCode):
        return TransactionOutcome(answer)
    state = PREPARE_COMMIT if answer is Move.COMMIT else PREPARE_ABORT
    changed = _ended(found, state, client_version, new_id, now)
    after = changed.completed(now)
    return TransactionOutcome(NONE, changed, after.producer_id, after.producer_epoch)


def _end_before_bumps(found: Transaction, producer: ProducerIdentity, committed: bool, now: int) -> TransactionOutcome:
    error = check_producer(found, producer)
    if error is not NONE:
        return TransactionOutcome(error)
    answer = END_BEFORE_BUMPS[found.state, committed]
    if isinstance(answer, ErrorCode):
        return TransactionOutcome(answer)
    state = PREPARE_COMMIT if answer is Move.COMMIT else PREPARE_ABORT
    return TransactionOutcome(NONE, found.ended(state, 0, NO_PRODUCER_ID, now))


def _ended(found: Transaction, state: TransactionState, version: int, new_id: NewId, now: int) -> Transaction:
    return found.ended(state, version, new_id() if found.is_exhausted else NO_PRODUCER_ID, now)
