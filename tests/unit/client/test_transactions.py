"""A producer's transactions: which requests are sent when, and what each answer means (KIP-98, 360, 447, 890).

The tables are those of Java 4.2's `TransactionManager`.
"""

from __future__ import annotations

from typing import Any

import pytest

from muster.client.core.produce.transactions import ProducerTransactions, ProducerTransactionState
from muster.client.core.sends import FailureKind
from muster.errors import (
    CommitFailedError,
    ErrorCode,
    IllegalArgumentError,
    IllegalStateError,
    KafkaError,
    KafkaTimeoutError,
    MusterError,
    ProducerFencedError,
    TransactionAbortedError,
)
from muster.model import GroupMetadata, OffsetAndMetadata, TopicPartition
from muster.protocol import transaction_messages as t
from muster.protocol.messages import InitProducerIdRequest
from muster.protocol.records.record_batch import TRANSACTIONAL_FLAG
from tests.support.producer_harness import TOPIC
from tests.support.transactional_producer import GROUP, ID, PLACE, TransactionalProducer

E = ErrorCode
S = ProducerTransactionState
BOTH = pytest.mark.parametrize("v2", [True, False], ids=["v2", "v1"])


def state(p: TransactionalProducer) -> ProducerTransactionState:
    return p.transactions.state


# --- the normal course
# -------------------------------------------------------------------------------------------------


def test_the_first_id_is_asked_for_by_name_and_timeout() -> None:
    p = TransactionalProducer(settings={"transaction_timeout_ms": 9_000})
    call = p.transactions.initialize()
    asked = p.ask(InitProducerIdRequest)
    request = asked.request
    assert (request.transactional_id, request.transaction_timeout_ms) == (ID, 9_000)
    assert (request.producer_id, request.producer_epoch) == (-1, -1)
    p.reply(asked)
    call.result()
    assert state(p) is S.READY


def test_v2_a_transaction_takes_a_produce_and_an_end() -> None:
    p = TransactionalProducer.begun(v2=True)
    request = p.put(b"a")
    assert request.version == 13
    (batch,) = request.batches
    assert batch.header.attributes & TRANSACTIONAL_FLAG
    assert (batch.header.producer_id, batch.header.producer_epoch, batch.header.base_sequence) == (1000, 0, 0)
    produce: Any = request.send.build(13)
    assert produce.transactional_id == ID
    call = p.commit()
    assert not p.asked, "a record is in flight"
    p.answer(request)
    end = p.ask(t.EndTxnRequest)
    assert end.version == 5
    assert (end.request.transactional_id, end.request.producer_id, end.request.producer_epoch) == (ID, 1000, 0)
    assert end.request.committed
    p.reply(end)
    assert call.done
    assert state(p) is S.READY
    p.see()
    p.transactions.begin()
    (batch,) = p.put(b"b").batches
    assert (batch.header.producer_epoch, batch.header.base_sequence) == (1, 0), "the next epoch came with the answer"


def test_v1_a_partition_is_added_before_its_first_batch_is_sent() -> None:
    p = TransactionalProducer.begun(v2=False, leaders=[1, 1])
    p.hold(b"a")
    p.hold(b"b", partition=1)
    added = p.ask(t.AddPartitionsToTxnRequest)
    assert added.version == 3
    assert [(topic.name, topic.partitions) for topic in added.request.v3_and_below_topics] == [(TOPIC, [0])]
    p.reply(added)
    (request,) = p.open
    assert request.version == 11, "a newer version would say that the broker adds partitions"
    assert request.values == [b"a"]
    p.answer(request)
    p.reply(p.ask(t.AddPartitionsToTxnRequest))
    (request,) = p.open
    p.answer(request)
    p.put(b"c")  # the partition is already in the transaction
    assert not p.asked
    p.commit()
    p.answer(p.open[0])
    end = p.ask(t.EndTxnRequest)
    assert end.version == 4
    p.reply(end)
    p.see()
    p.transactions.begin()
    p.hold(b"d")
    p.reply(p.ask(t.AddPartitionsToTxnRequest))
    (batch,) = p.open[0].batches
    assert (batch.header.producer_epoch, batch.header.base_sequence) == (0, 2), "epoch and sequences continue"


def test_a_commit_does_not_wait_for_the_linger_time() -> None:
    p = TransactionalProducer.begun(settings={"linger_ms": 1_000})
    p.hold(b"a")
    p.commit()
    assert [request.values for request in p.open] == [[b"a"]]


@BOTH
def test_a_transaction_without_records_and_offsets_needs_no_request(v2: bool) -> None:
    for end in (TransactionalProducer.commit, TransactionalProducer.abort):
        p = TransactionalProducer.begun(v2=v2)
        assert end(p).done
        assert state(p) is S.READY


def test_v2_the_first_batches_of_a_partition_are_not_sent_alone() -> None:
    """Brokers would refuse a first sequence other than 0. A producer without transactions sends its first batch
    alone."""
    for v2, sent in (True, 3), (False, 1):
        p = TransactionalProducer.begun(v2=v2)
        for value in (b"a", b"b", b"c"):
            p.add(value)
            if p.asked:
                p.reply(p.asked[0])
        assert len(p.open) == sent


def test_v2_a_batch_that_overtook_the_first_is_sent_again_after_it() -> None:
    p = TransactionalProducer.begun()
    first, second = p.put(b"a"), p.put(b"b")
    p.answer(first, E.NOT_LEADER_OR_FOLLOWER)
    p.answer(second, E.OUT_OF_ORDER_SEQUENCE_NUMBER)
    for value, base_offset in (b"a", 0), (b"b", 1):
        (request,) = p.open or p.tick(200)
        assert request.values == [value]
        p.answer(request, base_offset=base_offset)
        p.turn()
    assert p.offsets() == {b"a": 0, b"b": 1}
    assert state(p) is S.IN_TRANSACTION


def test_an_abort_drops_what_was_not_sent_and_waits_for_what_was() -> None:
    p = TransactionalProducer.begun(settings={"max_in_flight_requests_per_connection": 1})
    request = p.put(b"sent")
    p.hold(b"waiting")
    call = p.abort()
    assert isinstance(p.error(b"waiting"), TransactionAbortedError)
    assert not p.asked
    p.answer(request)
    end = p.ask(t.EndTxnRequest)
    assert not end.request.committed
    p.reply(end)
    assert call.done
    assert p.offsets() == {b"sent": 0}


def test_an_abort_drops_records_of_an_unknown_topic() -> None:
    p = TransactionalProducer.begun(topic_exists=False)
    p.hold(b"parked")
    assert p.abort().done
    assert isinstance(p.error(b"parked"), TransactionAbortedError)


def test_v2_an_abort_drops_a_batch_that_waits_to_be_sent_again() -> None:
    """Written late, it would have an older epoch than its partition: brokers refuse it."""
    p = TransactionalProducer.begun(b"warm", v2=True)
    p.fail(p.put(b"a"))
    call = p.abort()
    assert isinstance(p.error(b"a"), TransactionAbortedError)
    p.reply(p.ask(t.EndTxnRequest))
    assert call.done
    p.see()
    p.transactions.begin()
    p.write(b"next")
    assert p.transactions.sequences.producer_epoch == 1
    assert p.offsets()[b"next"] == 0


def test_v1_an_abort_settles_a_batch_whose_answer_was_lost() -> None:
    """Otherwise its first attempt could be written after the marker, with the epoch of the next transaction."""
    p = TransactionalProducer.begun(v2=False, settings={"linger_ms": 60_000})
    p.hold(b"a")
    p.core.begin_flush()
    p.reply(p.ask(t.AddPartitionsToTxnRequest))
    p.fail(p.open[0])
    p.core.end_flush()
    p.hold(b"unsent")
    call = p.abort()
    assert isinstance(p.error(b"unsent"), TransactionAbortedError)
    assert not p.asked
    (again,) = p.tick(2_000)
    assert again.values == [b"a"]
    p.answer(again, E.DUPLICATE_SEQUENCE_NUMBER)
    p.reply(p.ask(t.EndTxnRequest))
    assert call.done


def test_v1_an_abort_drops_batches_after_a_lost_one() -> None:
    """They cannot be written; the next epoch closes the gap."""
    p = TransactionalProducer.begun(b"warm", v2=False)
    first, second = p.put(b"a"), p.put(b"b")
    p.answer(second, E.OUT_OF_ORDER_SEQUENCE_NUMBER)
    p.answer(first, E.MESSAGE_TOO_LARGE)
    call = p.abort()
    p.reply(p.ask(t.EndTxnRequest))
    bump = p.ask(InitProducerIdRequest)
    assert (bump.request.producer_id, bump.request.producer_epoch) == (1000, 0)
    p.reply(bump)
    assert call.done


# --- offsets ---------------------------------------------------------------------------------------------------------


def test_v2_offsets_go_to_the_groups_coordinator() -> None:
    p = TransactionalProducer.begun(v2=True)
    call = p.send_offsets(5)
    asked = p.ask(t.TxnOffsetCommitRequest)
    assert asked.version == 5
    request = asked.request
    assert (request.group_id, request.generation_id, request.member_id) == ("g", 3, "member-1")
    assert [(topic.name, part.committed_offset) for topic in request.topics for part in topic.partitions] == [
        (TOPIC, 5)
    ]
    p.reply(asked)
    assert call.done
    p.commit()
    p.reply(p.ask(t.EndTxnRequest))
    assert state(p) is S.READY


def test_v1_the_group_is_added_first_each_time() -> None:
    p = TransactionalProducer.begun(v2=False)
    call = p.send_offsets(5)
    added = p.ask(t.AddOffsetsToTxnRequest)
    assert added.request.group_id == "g"
    p.reply(added)
    asked = p.ask(t.TxnOffsetCommitRequest)
    assert asked.version == 4
    p.reply(asked)
    assert call.done
    p.send_offsets(6)
    p.ask(t.AddOffsetsToTxnRequest)


def test_no_offsets_are_done_at_once() -> None:
    p = TransactionalProducer.begun()
    assert p.transactions.send_offsets({}, GROUP).done
    assert p.commit().done


def test_a_generation_without_a_member_is_refused() -> None:
    p = TransactionalProducer.begun()
    with pytest.raises(IllegalArgumentError, match="no member id"):
        p.transactions.send_offsets({PLACE: OffsetAndMetadata(1)}, GroupMetadata("g", 1))


def test_only_what_failed_for_a_while_is_committed_again() -> None:
    p = TransactionalProducer.begun(leaders=[1, 1])
    both = {TopicPartition(TOPIC, number): OffsetAndMetadata(7) for number in range(2)}
    call = p.transactions.send_offsets(both, GROUP)
    asked = p.ask(t.TxnOffsetCommitRequest)
    parts = asked.request.topics[0].partitions
    p.reply(asked, E.COORDINATOR_LOAD_IN_PROGRESS)
    assert len(parts) == 2
    p.tick(200)
    asked = p.ask(t.TxnOffsetCommitRequest)
    assert len(asked.request.topics[0].partitions) == 2
    p.reply(asked)
    assert call.done


def test_an_abort_gives_up_offsets() -> None:
    p = TransactionalProducer.begun(v2=False)
    call = p.send_offsets()
    asked = p.ask(t.AddOffsetsToTxnRequest)
    abort = p.abort()
    assert isinstance(call.error, TransactionAbortedError)
    p.reply(asked)  # the coordinator has begun the transaction
    end = p.ask(t.EndTxnRequest)
    assert not end.request.committed
    p.reply(end)
    assert abort.done


def test_a_commit_waits_for_offsets() -> None:
    p = TransactionalProducer.begun()
    p.send_offsets()
    p.commit()
    p.reply(p.ask(t.TxnOffsetCommitRequest))
    p.reply(p.ask(t.EndTxnRequest))
    assert state(p) is S.READY


# --- the table of answers --------------------------------------------------------------------------------------------

AGAIN, LOOK_UP, ABORTABLE, FATAL, FENCED, INIT_RETRIABLE, COMMIT_FAILED = (
    "again",
    "looked up again",
    "abortable",
    "fatal",
    "fenced",
    "may initialize again",
    "commit failed",
)
COMMON: dict[ErrorCode, str] = {
    E.COORDINATOR_NOT_AVAILABLE: LOOK_UP,
    E.NOT_COORDINATOR: LOOK_UP,
    E.COORDINATOR_LOAD_IN_PROGRESS: AGAIN,
    E.CONCURRENT_TRANSACTIONS: AGAIN,
    E.NOT_ENOUGH_REPLICAS: AGAIN,
    E.INVALID_PRODUCER_EPOCH: FENCED,
    E.PRODUCER_FENCED: FENCED,
    E.INVALID_TXN_STATE: FATAL,
    E.INVALID_PRODUCER_ID_MAPPING: FATAL,
    E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: FATAL,
    E.UNKNOWN_SERVER_ERROR: FATAL,
    E.TRANSACTION_ABORTABLE: ABORTABLE,
}
ANSWERS: dict[type[Any], dict[ErrorCode, str]] = {
    InitProducerIdRequest: COMMON
    | {
        E.TRANSACTION_ABORTABLE: INIT_RETRIABLE,
        E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: INIT_RETRIABLE,
        E.CLUSTER_AUTHORIZATION_FAILED: INIT_RETRIABLE,
        E.INVALID_TRANSACTION_TIMEOUT: FATAL,
    },
    t.AddPartitionsToTxnRequest: COMMON
    | {
        E.UNKNOWN_TOPIC_OR_PARTITION: AGAIN,
        E.TOPIC_AUTHORIZATION_FAILED: ABORTABLE,
        E.OPERATION_NOT_ATTEMPTED: ABORTABLE,
        E.UNKNOWN_PRODUCER_ID: ABORTABLE,
        E.UNKNOWN_SERVER_ERROR: ABORTABLE,
    },
    t.AddOffsetsToTxnRequest: COMMON | {E.GROUP_AUTHORIZATION_FAILED: ABORTABLE, E.UNKNOWN_PRODUCER_ID: ABORTABLE},
    t.TxnOffsetCommitRequest: COMMON
    | {
        E.REQUEST_TIMED_OUT: LOOK_UP,
        E.UNKNOWN_TOPIC_OR_PARTITION: AGAIN,
        E.UNKNOWN_MEMBER_ID: COMMIT_FAILED,
        E.ILLEGAL_GENERATION: COMMIT_FAILED,
        E.FENCED_INSTANCE_ID: ABORTABLE,
        E.GROUP_AUTHORIZATION_FAILED: ABORTABLE,
        E.TOPIC_AUTHORIZATION_FAILED: FATAL,
        E.UNSUPPORTED_FOR_MESSAGE_FORMAT: FATAL,
    },
    t.EndTxnRequest: COMMON | {E.UNKNOWN_PRODUCER_ID: ABORTABLE},
}
CELLS = [(kind, code, outcome) for kind, codes in ANSWERS.items() for code, outcome in codes.items()]


def led_to(kind: type[Any]) -> TransactionalProducer:
    """A producer that has just sent this request."""
    p = TransactionalProducer(v2=kind in (t.EndTxnRequest, t.TxnOffsetCommitRequest))
    if kind is InitProducerIdRequest:
        p.transactions.initialize()
    elif kind is t.AddPartitionsToTxnRequest:
        p.begin()
        p.hold(b"a")
    elif kind is t.EndTxnRequest:
        p.begin_with(b"a")
        p.commit()
    else:
        p.begin()
        p.send_offsets()
    return p


@pytest.mark.parametrize(
    ("kind", "code", "outcome"), CELLS, ids=[f"{kind.__name__}-{code.name}" for kind, code, _ in CELLS]
)
def test_what_an_answer_means(kind: type[Any], code: ErrorCode, outcome: str) -> None:
    p = led_to(kind)
    asked = p.ask(kind)
    looked_up = p.looked_up
    p.reply(asked, code)
    error = p.transactions.error
    match outcome:
        case "again":
            assert not p.asked, "not without a pause"
            p.tick(200)
            assert p.looked_up == looked_up
            p.ask(kind)
        case "looked up again":
            p.tick(200)
            assert p.looked_up == looked_up + 1
            p.ask(kind)
        case "may initialize again":
            assert state(p) is S.UNINITIALIZED
            p.transactions.initialize()
            p.reply(p.ask(kind))
            assert state(p) is S.READY
        case "abortable" | "commit failed":
            assert state(p) is S.ABORTABLE_ERROR
            assert isinstance(error, CommitFailedError) == (outcome == COMMIT_FAILED)
            assert isinstance(error, KafkaError)
            assert (error.code, error.abortable, error.fatal) == (code, True, False)
            p.abort()
            while p.asked:
                p.reply(p.asked[0])
            assert state(p) is S.READY
        case "fatal" | "fenced":
            assert state(p) is S.FATAL_ERROR
            assert isinstance(error, ProducerFencedError) == (outcome == FENCED)
            assert isinstance(error, KafkaError)
            assert (error.code, error.abortable, error.fatal) == (
                E.PRODUCER_FENCED if outcome == FENCED else code,
                False,
                True,
            )
            with pytest.raises(type(error)):
                p.transactions.begin()
            with pytest.raises(type(error)):
                p.transactions.abort()


@pytest.mark.parametrize("code", [E.TRANSACTION_ABORTABLE, E.UNKNOWN_PRODUCER_ID, E.INVALID_TXN_STATE])
def test_an_abort_that_is_refused_ends_the_producer(code: ErrorCode) -> None:
    p = TransactionalProducer.begun(b"a")
    call = p.abort()
    p.reply(p.ask(t.EndTxnRequest), code)
    assert state(p) is S.FATAL_ERROR
    with pytest.raises(KafkaError, match="was not aborted"):
        call.result()


def test_the_next_transaction_begins_soon_where_the_last_is_still_being_completed() -> None:
    p = TransactionalProducer.begun(v2=False)
    p.hold(b"a")
    p.reply(p.ask(t.AddPartitionsToTxnRequest), E.CONCURRENT_TRANSACTIONS)
    p.tick(25)
    p.ask(t.AddPartitionsToTxnRequest)


def test_a_partition_that_was_not_tried_is_not_the_reason() -> None:
    p = TransactionalProducer.begun(v2=False, leaders=[1, 1])
    p.give(b"a", partition=0)
    p.give(b"b", partition=1)
    asked = p.ask(t.AddPartitionsToTxnRequest)
    p.reply(asked, E.OPERATION_NOT_ATTEMPTED, p1=E.TOPIC_AUTHORIZATION_FAILED)
    assert "flights-1" in str(p.transactions.error)
    assert "TOPIC_AUTHORIZATION_FAILED" in str(p.transactions.error)


def trouble(p: TransactionalProducer) -> str:
    assert p.core.coordination is not None
    return p.core.coordination.trouble


def test_what_a_call_waits_for_is_known_until_the_coordinator_gives_a_good_answer() -> None:
    p = TransactionalProducer(lookups=[E.COORDINATOR_NOT_AVAILABLE])
    p.transactions.initialize()
    p.turn()
    what = f"the coordinator of transactional id {ID}"
    assert trouble(p) == f"{what}: it was looked up, and the answer was COORDINATOR_NOT_AVAILABLE"
    p.tick(2_000)
    p.lose(p.ask(InitProducerIdRequest), FailureKind.UNREACHABLE)
    assert trouble(p) == f"{what}: scripted: unreachable"
    p.tick(2_000)
    p.reply(p.ask(InitProducerIdRequest), E.CONCURRENT_TRANSACTIONS)
    assert trouble(p) == f"{what}: it answered CONCURRENT_TRANSACTIONS"
    p.tick(2_000)
    p.reply(p.ask(InitProducerIdRequest))
    assert trouble(p) == ""


def test_what_offsets_wait_for_is_known() -> None:
    p = TransactionalProducer.begun(b"a")
    p.lookups = [E.COORDINATOR_NOT_AVAILABLE]
    p.send_offsets()
    said = "the coordinator of group g: it was looked up, and the answer was COORDINATOR_NOT_AVAILABLE"
    assert trouble(p) == said


LOOKUPS = [
    (InitProducerIdRequest, E.COORDINATOR_NOT_AVAILABLE, S.READY),
    (InitProducerIdRequest, E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, S.UNINITIALIZED),
    (InitProducerIdRequest, E.UNKNOWN_SERVER_ERROR, S.FATAL_ERROR),
    (t.TxnOffsetCommitRequest, E.GROUP_AUTHORIZATION_FAILED, S.ABORTABLE_ERROR),
    (t.TxnOffsetCommitRequest, E.INVALID_GROUP_ID, S.FATAL_ERROR),
    (t.TxnOffsetCommitRequest, E.COORDINATOR_NOT_AVAILABLE, S.IN_TRANSACTION),
]


@pytest.mark.parametrize(("kind", "code", "after"), LOOKUPS)
def test_what_the_answer_to_a_lookup_means(kind: type[Any], code: ErrorCode, after: ProducerTransactionState) -> None:
    p = TransactionalProducer()
    if kind is InitProducerIdRequest:
        p.lookups = [code]
        p.transactions.initialize()
    else:
        p.begin()
        p.lookups = [code]
        p.send_offsets()
    p.turn()
    p.tick(200)
    while p.asked:
        p.reply(p.asked[0])
    assert state(p) is after


# --- records that fail -----------------------------------------------------------------------------------------------

BATCHES: dict[ErrorCode, str] = {
    E.INVALID_PRODUCER_EPOCH: ABORTABLE,
    E.INVALID_TXN_STATE: ABORTABLE,
    E.TRANSACTION_ABORTABLE: ABORTABLE,
    E.TOPIC_AUTHORIZATION_FAILED: ABORTABLE,
    E.OUT_OF_ORDER_SEQUENCE_NUMBER: ABORTABLE,
    E.UNKNOWN_SERVER_ERROR: ABORTABLE,
    E.INVALID_RECORD: ABORTABLE,
    E.PRODUCER_FENCED: FATAL,
    E.INVALID_PRODUCER_ID_MAPPING: FATAL,
    E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: FATAL,
    E.CLUSTER_AUTHORIZATION_FAILED: FATAL,
    E.NOT_ENOUGH_REPLICAS: AGAIN,
    E.CONCURRENT_TRANSACTIONS: AGAIN,
}


@BOTH
@pytest.mark.parametrize(("code", "outcome"), BATCHES.items())
def test_what_the_answer_to_a_batch_means(v2: bool, code: ErrorCode, outcome: str) -> None:
    p = TransactionalProducer.begun(b"warm", v2=v2)
    request = p.put(b"a")
    p.answer(request, code)
    p.turn()
    error = p.transactions.error
    if outcome == AGAIN:
        (again,) = p.tick(200)
        assert again.values == [b"a"]
        return
    assert p.error(b"a") is error
    assert error is not None
    assert (error.abortable, error.fatal) == (outcome == ABORTABLE, outcome == FATAL)
    with pytest.raises(MusterError):
        p.transactions.commit()
    with pytest.raises(MusterError):
        p.give(b"late")
    if outcome == ABORTABLE:
        call = p.abort()
        p.reply(p.ask(t.EndTxnRequest))
        if not v2:
            p.reply(p.ask(InitProducerIdRequest))
        call.result()
        assert p.transactions.sequences.producer_epoch == 1
        p.transactions.begin()
        p.write(b"next")
        assert p.offsets()[b"next"] == 0


def test_every_call_raises_what_ended_the_producer_first() -> None:
    p = TransactionalProducer(leaders=[1, 2])
    p.begin()
    first, second = p.put(b"a"), p.put(b"b", partition=1)
    p.answer(first, E.INVALID_PRODUCER_ID_MAPPING)
    p.answer(second, E.PRODUCER_FENCED)
    for call in (p.transactions.begin, p.transactions.commit, p.transactions.abort, p.transactions.check_send):
        with pytest.raises(KafkaError, match="INVALID_PRODUCER_ID_MAPPING") as reported:
            call()
        assert reported.value.fatal


def test_after_a_failure_what_is_in_flight_is_not_tried_again() -> None:
    p = TransactionalProducer.begun()
    first, second, third = (p.put(value) for value in (b"a", b"b", b"c"))
    p.answer(first, E.INVALID_RECORD)
    p.answer(second, E.OUT_OF_ORDER_SEQUENCE_NUMBER)
    p.fail(third)
    p.turn()
    assert set(p.done) == {b"a", b"b", b"c"}
    assert not p.open
    p.abort()
    p.reply(p.ask(t.EndTxnRequest))
    assert state(p) is S.READY


def test_a_commit_fails_with_the_first_record_that_does() -> None:
    p = TransactionalProducer.begun()
    request = p.put(b"a")
    call = p.commit()
    p.answer(request, E.INVALID_RECORD)
    p.turn()
    assert not p.asked
    with pytest.raises(KafkaError) as reported:
        call.result()
    assert (reported.value.code, reported.value.abortable) == (E.INVALID_RECORD, True)
    assert reported.value is not p.transactions.error, "a traceback of its own"
    p.abort()
    assert not p.ask(t.EndTxnRequest).request.committed


def test_a_record_that_finds_no_topic_in_time_makes_the_transaction_abortable() -> None:
    p = TransactionalProducer.begun(topic_exists=False, settings={"max_block_ms": 300})
    p.hold(b"a")
    call = p.commit()
    p.tick(400)
    assert isinstance(call.error, KafkaTimeoutError)
    assert call.error.abortable


@BOTH
def test_a_batch_that_was_not_acknowledged_in_time_makes_the_transaction_abortable(v2: bool) -> None:
    p = TransactionalProducer.begun(
        b"warm", v2=v2, settings={"delivery_timeout_ms": 3_000, "request_timeout_ms": 2_000}
    )
    late = p.put(b"a")
    p.tick(3_000)
    assert isinstance(p.error(b"a"), KafkaTimeoutError)
    assert state(p) is S.ABORTABLE_ERROR
    p.abort()
    p.reply(p.ask(t.EndTxnRequest))
    if not v2:
        p.reply(p.ask(InitProducerIdRequest))
    p.see()
    p.transactions.begin()
    p.answer(late)  # the answer to a batch of an earlier epoch is ignored
    p.write(b"next")
    assert p.offsets()[b"next"] == 0


def test_brokers_before_25_cannot_start_over_after_a_failure() -> None:
    p = TransactionalProducer.begun(b"warm", v2=False, init_version=2)
    p.answer(p.put(b"a"), E.INVALID_RECORD)
    assert state(p) is S.FATAL_ERROR


def test_a_batch_that_is_too_large_is_split_within_its_transaction() -> None:
    p = TransactionalProducer.begun(settings={"linger_ms": 5})
    p.hold(b"a" * 100, b"b" * 100)
    (request,) = p.tick(5)
    p.answer(request, E.MESSAGE_TOO_LARGE)
    pieces = []
    while found := p.turn() or list(p.open):
        pieces += [
            (batch.header.base_sequence, batch.header.attributes & TRANSACTIONAL_FLAG) for batch in found[0].batches
        ]
        p.answer(found[0])
    assert [sequence for sequence, _ in pieces] == [0, 1]
    assert all(flag for _, flag in pieces)


# --- answers that are lost -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ANSWERS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("why", [FailureKind.DISCONNECTED, FailureKind.TIMEOUT, FailureKind.UNREACHABLE])
def test_a_lost_answer_is_asked_for_again_at_the_coordinator_known_then(kind: type[Any], why: FailureKind) -> None:
    p = led_to(kind)
    asked = p.ask(kind)
    looked_up = p.looked_up
    p.lose(asked, why)
    assert p.looked_up == looked_up + 1, "at once: it may just have moved"
    p.ask(kind)


@pytest.mark.parametrize("kind", ANSWERS, ids=lambda kind: kind.__name__)
def test_a_request_that_no_version_can_carry_ends_the_producer(kind: type[Any]) -> None:
    p = led_to(kind)
    p.lose(p.ask(kind), FailureKind.UNSUPPORTED_VERSION)
    assert state(p) is S.FATAL_ERROR


def test_a_producer_that_is_not_let_in_may_initialize_again() -> None:
    p = led_to(InitProducerIdRequest)
    p.lose(p.ask(InitProducerIdRequest), FailureKind.AUTHENTICATION)
    assert state(p) is S.UNINITIALIZED


@pytest.mark.parametrize("answer", [E.NONE, E.INVALID_TXN_STATE])
@pytest.mark.parametrize("kind", [t.AddPartitionsToTxnRequest, t.AddOffsetsToTxnRequest])
def test_v1_an_abort_ends_what_the_coordinator_may_have_begun(kind: type[Any], answer: ErrorCode) -> None:
    """INVALID_TXN_STATE then means that it had not begun."""
    p = led_to(kind)
    p.lookups = [E.COORDINATOR_NOT_AVAILABLE]
    p.lose(p.ask(kind))
    call = p.abort()
    p.tick(200)
    p.reply(p.ask(t.EndTxnRequest), answer)
    assert call.done
    assert state(p) is S.READY


def test_v1_an_abort_sends_nothing_where_the_addition_was_not_sent() -> None:
    p = led_to(t.AddPartitionsToTxnRequest)
    p.lookups = [E.COORDINATOR_NOT_AVAILABLE]
    p.lose(p.ask(t.AddPartitionsToTxnRequest), FailureKind.UNREACHABLE)
    call = p.abort()
    p.tick(200)
    assert call.done


def test_v1_invalid_state_ends_a_producer_whose_transaction_was_begun() -> None:
    p = TransactionalProducer.begun(b"a", v2=False)
    p.abort()
    p.reply(p.ask(t.EndTxnRequest), E.INVALID_TXN_STATE)
    assert state(p) is S.FATAL_ERROR


# --- upgrading to v2 ------------------------------------------------------------------------------------------------


def test_a_transaction_ends_by_the_protocol_that_it_began_with_and_the_next_has_a_new_epoch() -> None:
    p = TransactionalProducer.begun(b"a", v2=False)
    p.metadata.learn_features(2, {"transaction.version": 2})
    request = p.put(b"b")
    assert request.version == 11
    p.answer(request)
    call = p.commit()
    end = p.ask(t.EndTxnRequest)
    assert end.version == 4
    p.reply(end)
    bump = p.ask(InitProducerIdRequest)
    assert (bump.request.producer_id, bump.request.producer_epoch) == (1000, 0)
    p.reply(bump)
    call.result()
    p.see()
    p.transactions.begin()
    request = p.put(b"c")
    assert request.version == 13
    assert request.batches[0].header.producer_epoch == 1


def test_what_an_older_broker_says_of_the_features_changes_nothing() -> None:
    p = TransactionalProducer.begun(b"a", v2=True)
    p.metadata.learn_features(0, {})
    p.commit()
    p.reply(p.ask(t.EndTxnRequest))
    assert p.transactions.is_v2


def test_the_epoch_of_the_next_producer_id_comes_with_the_end() -> None:
    p = TransactionalProducer.begun(b"a")
    p.commit()
    end = p.ask(t.EndTxnRequest)
    # The epochs are used up: the answer has another id, epoch 0.
    end.request.producer_id, end.request.producer_epoch = 2000, -1
    p.reply(end)
    assert (p.transactions.sequences.producer_id, p.transactions.sequences.producer_epoch) == (2000, 0)


# --- the calls -------------------------------------------------------------------------------------------------------

CALLS = {
    "init": ProducerTransactions.initialize,
    "begin": ProducerTransactions.begin,
    "commit": ProducerTransactions.commit,
    "abort": ProducerTransactions.abort,
    "send": ProducerTransactions.check_send,
}
_BEFORE = {"begin", "commit", "abort", "send"}
REFUSED = {
    "new": _BEFORE,
    "initializing": _BEFORE,
    "ready": {"commit", "abort", "send"},
    "begun": {"init", "abort"} - {"abort"},
    "used": {"init", "begin"},
    "committing": {"init", "begin", "abort", "send"},
    "aborting": {"init", "begin", "commit", "send"},
    "committed, not seen": {"init", "begin", "abort", "send"},
    "committed": {"init", "abort", "send"},
    "abortable": {"init", "begin", "commit", "send"},
    "fatal": {"init", "begin", "commit", "abort", "send"},
}


def in_state(name: str) -> TransactionalProducer:
    p = TransactionalProducer()
    if name == "new":
        return p
    if name == "initializing":
        p.transactions.initialize()
        return p
    p.ready()
    if name == "ready":
        return p
    p.transactions.begin()
    if name == "begun":
        return p
    p.write(b"a")
    if name == "used":
        return p
    if name in ("abortable", "fatal"):
        p.answer(p.put(b"b"), E.INVALID_RECORD if name == "abortable" else E.PRODUCER_FENCED)
        return p
    call = p.abort() if name == "aborting" else p.commit()
    if name.startswith("committed"):
        p.reply(p.ask(t.EndTxnRequest))
        if name == "committed":
            call.result()
    return p


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("name", REFUSED)
def test_which_calls_a_state_allows(name: str, call: str) -> None:
    p = in_state(name)
    before = state(p)
    if call in REFUSED[name]:
        expected = KafkaError if name in ("abortable", "fatal") else IllegalStateError
        with pytest.raises(expected):
            CALLS[call](p.transactions)
        assert state(p) is before, "a call that is refused changes nothing"
    else:
        CALLS[call](p.transactions)


def test_a_call_that_is_repeated_is_the_same_call() -> None:
    p = TransactionalProducer()
    first = p.transactions.initialize()
    assert p.transactions.initialize() is first
    p.reply(p.ask(InitProducerIdRequest))
    assert p.transactions.initialize() is first
    first.result()
    p.transactions.begin()
    p.write(b"a")
    commit = p.commit()
    assert p.commit() is commit
    p.reply(p.ask(t.EndTxnRequest))
    assert p.commit() is commit
    assert not p.asked


def test_a_call_that_succeeded_is_not_repeated_once_the_producer_has_ended() -> None:
    """A lookup was in flight when the transaction was aborted, and the abort sent no request."""
    p = TransactionalProducer()
    p.begin()
    p.lookups = [E.COORDINATOR_NOT_AVAILABLE, E.UNKNOWN_SERVER_ERROR]
    p.send_offsets()
    call = p.abort()
    while p.asked:
        p.reply(p.asked[0])
    assert call.done
    p.tick(200)
    assert state(p) is S.FATAL_ERROR
    assert p.transactions.abort() is call, "its caller has not seen the outcome"
    call.result()
    with pytest.raises(KafkaError, match="UNKNOWN_SERVER_ERROR"):
        p.transactions.abort()


def test_a_close_fails_the_calls_under_way() -> None:
    p = TransactionalProducer.begun(b"a")
    call = p.commit()
    p.core.close()
    assert call.error is not None


def test_lines_for_the_log_name_the_transactional_id() -> None:
    p = TransactionalProducer()
    p.ready()
    assert p.core.coordination is not None
    assert any(f"the coordinator of transactional id {ID} is" in str(event) for event in p.core.coordination.events)
