"""Every request in every state of a transactional id, as Apache Kafka 4.2 answers it."""

from __future__ import annotations

import pytest

from muster.coordinator.transactions import rules
from muster.coordinator.transactions.effects import TransactionalIdExpired, TransactionTimedOut
from muster.coordinator.transactions.entry import (
    BEFORE,
    COMPLETE_ABORT,
    COMPLETE_COMMIT,
    EMPTY,
    LAST_EPOCH,
    ONGOING,
    PREPARE_ABORT,
    PREPARE_COMMIT,
    Transaction,
    TransactionState,
)
from muster.coordinator.transactions.rules import ProducerIdentity
from muster.errors import ErrorCode
from tests.support.transaction_harness import MINUTE, T0, T1, TransactionHarness

NONE = ErrorCode.NONE
CONCURRENT = ErrorCode.CONCURRENT_TRANSACTIONS
FENCED = ErrorCode.PRODUCER_FENCED
INVALID = ErrorCode.INVALID_TXN_STATE
MAPPING = ErrorCode.INVALID_PRODUCER_ID_MAPPING

STATES = list(TransactionState)
IDLE = (EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT)
ENDING = (PREPARE_COMMIT, PREPARE_ABORT)


def changed(producer: ProducerIdentity, *, epoch: int = 0, producer_id: int = 0) -> ProducerIdentity:
    return ProducerIdentity(producer.producer_id + producer_id, producer.epoch + epoch)


def test_every_table_has_every_cell() -> None:
    assert set(rules.INIT_PRODUCER_ID) == set(rules.ADD_PARTITIONS) == set(rules.VERIFY_PARTITIONS) == set(STATES)
    both = (True, False)
    assert set(rules.END_BEFORE_BUMPS) == {(state, commit) for state in STATES for commit in both}
    assert set(rules.END) == {(state, commit, retry) for state in STATES for commit in both for retry in both}


# ------------------------------------------------------------------------------------------------------ InitProducerId


def test_the_first_producer_of_a_name_gets_a_new_id() -> None:
    it = TransactionHarness()
    answer = it.init()
    assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (NONE, 1000, 0)
    assert it.entry == Transaction(1000, 0, MINUTE, it.now, EMPTY, previous_producer_id=1000)


def test_ids_given_with_an_unknown_name_are_skipped() -> None:
    """The id has expired, or its producer was in another cluster before (KAFKA-8710)."""
    answer = TransactionHarness().init(ProducerIdentity(77, 5))
    assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (NONE, 1000, 0)


@pytest.mark.parametrize("client", [0, 2])
@pytest.mark.parametrize("state", IDLE)
def test_a_producer_gets_the_next_epoch(state: TransactionState, client: int) -> None:
    it = TransactionHarness(client=client).to(state)
    before = it.entry
    it.now += 5
    answer = it.init(timeout_ms=7_000)
    assert (answer.error_code, answer.producer_id) == (NONE, before.producer_id)
    assert answer.producer_epoch == before.producer_epoch + 1 == it.entry.producer_epoch
    assert it.entry == Transaction(
        before.producer_id,
        before.producer_epoch + 1,
        7_000,
        it.now,
        EMPTY,
        previous_producer_id=before.producer_id,
        client_version=before.client_version,
    )


@pytest.mark.parametrize("given", ["none", "current", "older", "other id"])
@pytest.mark.parametrize("state", ENDING)
def test_while_a_transaction_is_being_finished_nothing_begins(state: TransactionState, given: str) -> None:
    """Not even for ids that would be refused: they may be the valid ones when it has ended."""
    it = TransactionHarness().to(state)
    before, producer = it.entry, it.producer
    known = {"none": None, "current": producer, "older": changed(producer, epoch=-1)}
    answer = it.init(known.get(given, changed(producer, producer_id=9)))
    assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (CONCURRENT, -1, -1)
    assert it.entry == before


@pytest.mark.parametrize("with_ids", [False, True])
@pytest.mark.parametrize(("version", "epoch", "last"), [(2, 1, 0), (0, 1, -1), (1, 1, -1)])
def test_a_new_producer_aborts_the_transaction_of_the_last(with_ids: bool, version: int, epoch: int, last: int) -> None:
    it = TransactionHarness(version).to(ONGOING)
    answer = it.init(it.producer if with_ids else None)
    assert (answer.error_code, answer.producer_id) == (CONCURRENT, -1)
    assert (it.state, it.entry.producer_epoch, it.entry.last_producer_epoch) == (PREPARE_ABORT, epoch, last)
    (markers,) = it.markers
    assert (markers.producer_epoch, markers.committed, markers.partitions) == (epoch, False, frozenset((T0,)))
    assert markers.client_version == (2 if version == 2 else 0)
    it.mark()
    again = it.init()
    assert (again.error_code, again.producer_epoch, it.state) == (NONE, epoch + 1, EMPTY)


@pytest.mark.parametrize("state", [EMPTY, ONGOING, COMPLETE_COMMIT, COMPLETE_ABORT])
def test_a_producer_that_knows_other_ids_is_fenced(state: TransactionState) -> None:
    it = TransactionHarness().to(state)
    before, producer = it.entry, it.producer
    assert it.init(changed(producer, producer_id=1)).error_code == FENCED
    assert it.init(changed(producer, producer_id=1), version=3).error_code == ErrorCode.INVALID_PRODUCER_EPOCH
    if state is not ONGOING:
        assert it.init(changed(producer, epoch=2)).error_code == FENCED
    assert it.entry == before


def test_a_producer_that_continues_gets_the_same_answer_twice() -> None:
    """KIP-360: the answer to the first was lost."""
    it = TransactionHarness().to(EMPTY)
    old = it.producer
    first = it.init(old)
    assert (first.producer_epoch, it.entry.last_producer_epoch) == (1, 0)
    second = it.init(old)
    assert (second.error_code, second.producer_id, second.producer_epoch) == (NONE, first.producer_id, 1)
    it.init()  # another producer with that transactional id
    assert it.init(old).error_code == FENCED


def test_epochs_that_are_used_up_bring_another_producer_id() -> None:
    it = TransactionHarness().to(EMPTY)
    it.put(producer_epoch=LAST_EPOCH - 1)
    answer = it.init()
    assert (answer.producer_id, answer.producer_epoch) == (1000, LAST_EPOCH)
    answer = it.init()
    assert (answer.producer_id, answer.producer_epoch, it.entry.last_producer_epoch) == (1001, 0, -1)
    assert it.entry.previous_producer_id == 1000


def test_a_rotation_is_answered_again_until_the_next_change() -> None:
    it = TransactionHarness().to(EMPTY)
    it.put(producer_epoch=LAST_EPOCH)
    old = it.producer
    answer = it.init(old)
    assert (answer.producer_id, answer.producer_epoch, it.entry.last_producer_epoch) == (1001, 0, LAST_EPOCH)
    again = it.init(old)
    assert (again.error_code, again.producer_id, again.producer_epoch) == (NONE, 1001, 0)
    assert it.init(old).error_code == FENCED  # the previous answer made a change


def test_used_up_epochs_of_another_producer_are_not_taken_over() -> None:
    """Kafka 4.2 fails with an internal error here."""
    it = TransactionHarness().to(EMPTY)
    it.put(producer_epoch=LAST_EPOCH, last_producer_epoch=LAST_EPOCH - 1)
    assert it.init(ProducerIdentity(1000, 5)).error_code == FENCED
    answer = it.init(ProducerIdentity(1000, LAST_EPOCH - 1))
    assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (NONE, 1000, LAST_EPOCH)


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
def test_a_timeout_that_is_not_allowed_is_refused(timeout_ms: int) -> None:
    it = TransactionHarness()
    assert it.init(timeout_ms=timeout_ms).error_code == ErrorCode.INVALID_TRANSACTION_TIMEOUT
    assert not it.shard.entries
    assert it.init(timeout_ms=900_000).error_code == NONE


def test_without_a_producer_id_the_producer_asks_again() -> None:
    it = TransactionHarness()
    it.has_ids = False
    assert it.init().error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert not it.shard.entries


# ------------------------------------------------------------------------------------ AddPartitionsToTxn, and verifying


@pytest.mark.parametrize("client", [0, 2])
@pytest.mark.parametrize("state", STATES)
def test_adding_partitions(state: TransactionState, client: int) -> None:
    it = TransactionHarness(client=client).to(state)
    before, producer = it.entry, it.producer
    it.now += 5
    if state in ENDING:
        for other in (producer, changed(producer, epoch=1), changed(producer, producer_id=1)):
            assert it.add(T1, producer=other) == CONCURRENT
        assert it.entry == before
        return
    assert it.add(T1, producer=changed(producer, epoch=1)) == FENCED
    assert it.add(T1, producer=changed(producer, epoch=-1)) == FENCED
    assert it.add(T1, producer=changed(producer, producer_id=1)) == MAPPING
    assert it.entry == before
    assert it.add(T1) == NONE
    assert (it.state, it.entry.client_version, it.entry.last_update_ms) == (ONGOING, client, it.now)
    if state is ONGOING:
        assert (it.entry.partitions, it.entry.start_ms) == (frozenset((T0, T1)), before.start_ms)
    else:
        assert (it.entry.partitions, it.entry.start_ms) == (frozenset((T1,)), it.now)


def test_adding_what_is_there_writes_nothing() -> None:
    it = TransactionHarness().to(ONGOING)
    written = len(it.written)
    assert it.add(T0) == NONE
    assert len(it.written) == written
    assert it.add(T0, T1) == NONE
    assert len(it.written) == written + 1


def test_an_unknown_name_has_no_transactions() -> None:
    it = TransactionHarness()
    stranger = ProducerIdentity(5, 0)
    assert it.add(T0, producer=stranger) == MAPPING
    assert it.verify(T0, producer=stranger) == {T0: MAPPING}
    assert it.end(True, stranger).error_code == it.end(True, stranger, version=4).error_code == MAPPING


@pytest.mark.parametrize("state", STATES)
def test_verifying_partitions(state: TransactionState) -> None:
    it = TransactionHarness().to(state)
    producer, written = it.producer, len(it.written)
    assert it.verify(T0, producer=changed(producer, producer_id=1)) == {T0: MAPPING}
    assert it.verify(T0, producer=changed(producer, epoch=-1)) == {T0: FENCED}
    if state in ENDING:
        assert it.verify(T0, T1) == {T0: CONCURRENT, T1: CONCURRENT}
    else:
        there = NONE if state is ONGOING else ErrorCode.TRANSACTION_ABORTABLE
        assert it.verify(T0, T1) == {T0: there, T1: ErrorCode.TRANSACTION_ABORTABLE}
    assert len(it.written) == written


# -------------------------------------------------------------------------------------------------------------- EndTxn

END_V4 = {  # commit, abort
    EMPTY: (INVALID, INVALID),
    ONGOING: (PREPARE_COMMIT, PREPARE_ABORT),
    PREPARE_COMMIT: (CONCURRENT, CONCURRENT),
    PREPARE_ABORT: (CONCURRENT, CONCURRENT),
    COMPLETE_COMMIT: (NONE, INVALID),
    COMPLETE_ABORT: (INVALID, NONE),
}


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("state", STATES)
def test_ending_before_each_transaction_had_an_epoch(state: TransactionState, commit: bool) -> None:
    expected = END_V4[state][not commit]
    it = TransactionHarness(client=0).to(state)
    before, producer, sent = it.entry, it.producer, len(it.markers)
    assert it.end(commit, changed(producer, producer_id=1)).error_code == MAPPING
    for epoch in (-1, 1):
        assert it.end(commit, changed(producer, epoch=epoch)).error_code == FENCED
        assert it.end(commit, changed(producer, epoch=epoch), version=1).error_code == 47
    answer = it.end(commit)
    assert (answer.producer_id, answer.producer_epoch) == (-1, -1)
    if isinstance(expected, ErrorCode):
        assert (answer.error_code, it.entry) == (expected, before)
        assert len(it.markers) == sent
        return
    assert (answer.error_code, it.state) == (NONE, expected)
    assert it.producer == producer
    assert (it.markers[-1].producer_epoch, it.markers[-1].committed) == (producer.epoch, commit)
    assert it.markers[-1].client_version == 0
    it.mark()
    assert it.state is (COMPLETE_COMMIT if commit else COMPLETE_ABORT)
    assert (it.producer, it.entry.partitions) == (producer, frozenset())


END_V5 = {  # commit, commit again, abort, abort again
    EMPTY: (INVALID, FENCED, PREPARE_ABORT, FENCED),
    ONGOING: (PREPARE_COMMIT, FENCED, PREPARE_ABORT, FENCED),
    PREPARE_COMMIT: (CONCURRENT, CONCURRENT, CONCURRENT, CONCURRENT),
    PREPARE_ABORT: (CONCURRENT, CONCURRENT, CONCURRENT, CONCURRENT),
    COMPLETE_COMMIT: (INVALID, NONE, PREPARE_ABORT, INVALID),
    COMPLETE_ABORT: (INVALID, INVALID, PREPARE_ABORT, NONE),
}


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("state", STATES)
def test_ending(state: TransactionState, commit: bool, again: bool) -> None:
    expected = END_V5[state][2 * (not commit) + again]
    it = TransactionHarness().to(state)
    if state is EMPTY:
        it.init()  # so that there is a previous epoch
    before, producer, sent = it.entry, it.producer, len(it.markers)
    it.now += 5
    answer = it.end(commit, changed(producer, epoch=-again))
    if isinstance(expected, ErrorCode):
        assert (answer.error_code, it.entry) == (expected, before)
        reported = (answer.producer_id, answer.producer_epoch)
        assert reported == ((producer.producer_id, producer.epoch) if expected is NONE else (-1, -1))
        assert len(it.markers) == sent
        return
    assert (answer.error_code, it.state) == (NONE, expected)
    assert (answer.producer_id, answer.producer_epoch) == (producer.producer_id, producer.epoch + 1)
    assert (it.entry.producer_epoch, it.entry.last_producer_epoch) == (producer.epoch + 1, producer.epoch)
    assert it.entry.start_ms == (before.start_ms if state is ONGOING else it.now)
    markers = it.markers[-1]
    assert (markers.producer_epoch, markers.committed, markers.client_version) == (producer.epoch + 1, commit, 2)
    assert markers.partitions == ({T0} if state is ONGOING else frozenset())
    it.mark()
    assert it.state is (COMPLETE_COMMIT if commit else COMPLETE_ABORT)
    assert it.producer == ProducerIdentity(answer.producer_id, answer.producer_epoch)


@pytest.mark.parametrize("state", [EMPTY, ONGOING, COMPLETE_COMMIT, COMPLETE_ABORT])
def test_ending_as_another_producer(state: TransactionState) -> None:
    it = TransactionHarness().to(state)
    before, producer = it.entry, it.producer
    for commit in (True, False):
        assert it.end(commit, changed(producer, producer_id=1)).error_code == MAPPING
        for epoch in (-2, 1, 2):
            assert it.end(commit, changed(producer, epoch=epoch)).error_code == FENCED
    assert it.entry == before


@pytest.mark.parametrize("commit", [True, False])
def test_ending_with_the_last_epoch_brings_another_producer_id(commit: bool) -> None:
    it = TransactionHarness().to(ONGOING)
    it.put(producer_epoch=LAST_EPOCH)
    old = it.producer
    answer = it.end(commit)
    assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (NONE, 1001, 0)
    assert (it.entry.producer_id, it.entry.producer_epoch) == (1000, LAST_EPOCH + 1)
    assert (it.markers[-1].producer_id, it.markers[-1].producer_epoch) == (1000, LAST_EPOCH + 1)
    # The producer has its new ids, which are not valid yet (KAFKA-18660).
    assert it.add(T0, producer=ProducerIdentity(1001, 0)) == CONCURRENT
    assert it.end(commit, ProducerIdentity(1001, 0)).error_code == CONCURRENT
    it.mark()
    assert (it.producer, it.entry.previous_producer_id) == (ProducerIdentity(1001, 0), 1000)
    again = it.end(commit, old)
    assert (again.error_code, again.producer_id, again.producer_epoch) == (NONE, 1001, 0)
    assert it.end(not commit, old).error_code == INVALID
    assert it.end(commit, changed(old, epoch=-1)).error_code == MAPPING
    assert it.add(T0) == NONE
    assert it.end(commit, old).error_code == MAPPING


def test_a_fence_that_uses_up_the_epochs_brings_another_producer_id() -> None:
    """KAFKA-20090: otherwise the id would keep an epoch that no producer may have."""
    it = TransactionHarness().to(ONGOING)
    it.put(producer_epoch=LAST_EPOCH)
    assert it.init().error_code == CONCURRENT
    it.mark()
    assert it.producer == ProducerIdentity(1001, 0)
    assert it.init().producer_epoch == 1


def test_a_transaction_is_not_ended_without_the_id_that_it_needs() -> None:
    it = TransactionHarness().to(ONGOING)
    it.put(producer_epoch=LAST_EPOCH)
    before, it.has_ids = it.entry, False
    assert it.end(True).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert it.init().error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert it.entry == before
    it.wait(2 * MINUTE)
    assert it.entry == before
    it.has_ids = True
    it.wait(2_000)
    assert it.state is PREPARE_ABORT


# ------------------------------------------------------------------------------------------------------------- markers


def test_markers_of_an_earlier_transaction_complete_nothing() -> None:
    """KAFKA-16352, KAFKA-15468: results may come late, and twice."""
    it = TransactionHarness().to(COMPLETE_COMMIT)
    late = it.markers[-1]
    it.add(T0)
    it.mark(late)
    assert it.state is ONGOING
    it.end(True)
    it.mark(late)
    assert it.state is PREPARE_COMMIT
    assert not it.shard.awaits(late, T0)
    assert it.shard.awaits(it.markers[-1], T0)
    it.mark()
    it.mark()
    assert it.state is COMPLETE_COMMIT


def test_a_transaction_that_began_in_the_future_times_out_all_the_same() -> None:
    """The clock was set back by hours while the coordinator was down: times in records are wall-clock times."""
    it = TransactionHarness().to(ONGOING)
    it.now -= 3 * 60 * MINUTE
    it.shard = it.replayed()
    it.take(it.shard.loaded(it.now))
    assert it.entry.start_ms == it.now
    it.wait(MINUTE + it.config.transaction_abort_timed_out_transaction_cleanup_interval_ms)
    assert it.state is PREPARE_ABORT


def test_a_transaction_is_complete_with_its_last_marker() -> None:
    it = TransactionHarness().to(ONGOING)
    it.add(T1)
    it.end(True)
    (markers,) = it.markers
    it.take(it.shard.marked(markers, [T0], it.now))
    assert it.state is PREPARE_COMMIT
    assert it.shard.describe("x", 0).topics[0].partitions == [1]
    it.take(it.shard.marked(markers, [T1], it.now))
    assert it.state is COMPLETE_COMMIT


# ------------------------------------------------------------------------------------------------------- time, loading


@pytest.mark.parametrize("version", [0, 2])
def test_a_transaction_that_lasts_too_long_is_aborted(version: int) -> None:
    it = TransactionHarness(version).to(ONGOING)
    begun, producer = it.now, it.producer
    it.wait(MINUTE)
    assert it.state is ONGOING
    it.wait(10_000)
    assert (it.state, it.entry.producer_epoch) == (PREPARE_ABORT, producer.epoch + 1)
    assert it.now - begun <= MINUTE + 10_000
    assert it.events == [TransactionTimedOut("x", *producer, MINUTE)]
    it.mark()
    assert it.add(T0, producer=producer) == FENCED


def test_the_time_of_each_transaction_counts_by_itself() -> None:
    it = TransactionHarness().to(ONGOING)
    it.wait(MINUTE - 1_000)
    it.end(True)
    it.mark()
    it.add(T0)
    it.wait(MINUTE - 1_000)
    assert it.state is ONGOING
    it.add(T1)
    it.wait(12_000)
    assert it.state is PREPARE_ABORT


def test_many_short_transactions_leave_one_alarm_which_the_last_of_them_gets_in_time() -> None:
    it = TransactionHarness()
    it.init(timeout_ms=MINUTE)
    for _ in range(50):
        it.now += 1_000  # without checking the alarms, as when another id has the first of them
        it.add(T0)
        it.end(True)
        it.mark()
    it.add(T0)
    assert len(it.shard._alarms) == 1
    it.wait(MINUTE)
    assert it.state is ONGOING
    it.wait(11_000)
    assert it.state is PREPARE_ABORT


def test_a_shorter_timeout_than_that_of_the_last_transaction_counts() -> None:
    it = TransactionHarness()
    it.init(timeout_ms=10 * MINUTE)
    it.add(T0)
    it.end(True)
    it.mark()
    it.init(timeout_ms=MINUTE)
    it.add(T0)
    it.wait(MINUTE + 11_000)
    assert it.state is PREPARE_ABORT


@pytest.mark.parametrize("state", IDLE)
def test_an_id_that_is_not_used_is_forgotten(state: TransactionState) -> None:
    it = TransactionHarness().to(state)
    it.wait(it.config.transactional_id_expiration_ms - 1)
    assert it.state is state
    it.wait(it.config.transaction_remove_expired_transaction_cleanup_interval_ms + 1)
    assert not it.shard.entries
    assert it.events == [TransactionalIdExpired("x")]
    assert not it.replayed().entries
    assert it.log[-1][1] is None


@pytest.mark.parametrize("state", [ONGOING, *ENDING])
def test_an_id_with_a_transaction_is_kept(state: TransactionState) -> None:
    it = TransactionHarness().to(state)
    it.put(timeout_ms=2**31 - 1)
    it.wait(2 * it.config.transactional_id_expiration_ms)
    assert it.state is state


@pytest.mark.parametrize("client", [0, 2])
@pytest.mark.parametrize("state", STATES)
def test_a_shard_that_is_read_again_continues(state: TransactionState, client: int) -> None:
    it = TransactionHarness(client=client).to(state)
    shard = it.replayed()
    assert shard.entries == it.shard.entries
    effects = shard.loaded(it.now)
    assert [reply.response for reply in effects.replies] == (it.markers if state in ENDING else [])
    it.shard = shard
    if state in ENDING:
        it.mark()
        assert it.state in (COMPLETE_COMMIT, COMPLETE_ABORT)
    elif state is ONGOING:
        it.wait(2 * MINUTE)
        assert it.state is PREPARE_ABORT


def test_ids_before_version_1_are_kept_without_what_came_later() -> None:
    it = TransactionHarness(0, 0).to(COMPLETE_COMMIT)
    assert {value[:2] for _, value in it.log if value is not None} == {b"\0\0"}
    kept = it.replayed().entries["x"]
    assert (kept.state, kept.producer_id, kept.previous_producer_id) == (COMPLETE_COMMIT, 1000, -1)


def test_states_are_reached_only_from_those_before_them() -> None:
    for state in STATES:
        for before in STATES:
            entry = Transaction(1, 0, 1, 1, before)
            if state is ONGOING and before not in BEFORE[ONGOING]:
                with pytest.raises(ValueError, match="cannot go from"):
                    entry.with_partitions(frozenset((T0,)), 2, 2)
            elif state in ENDING and before not in BEFORE[state]:
                with pytest.raises(ValueError, match="cannot go from"):
                    entry.ended(state, 2, -1, 2)
            elif state is EMPTY and before not in BEFORE[EMPTY]:
                with pytest.raises(ValueError, match="cannot go from"):
                    entry.initialized(1, 1, -1, 1, 2)
