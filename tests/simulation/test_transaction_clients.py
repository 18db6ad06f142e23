"""Bugs of muster's own producer, planted one at a time: lives of a broker with transactions find them.

In those lives (`tests.simulator.transactions.life`) some processes have muster's producer. Its checks are listed at the
top of `client`; `checks` checks that the broker's promises hold with it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from muster.client.core.produce.accumulator import ProducerBatch
from muster.client.core.produce.sequences import TransactionSequences
from muster.client.core.produce.transaction_coordination import TransactionCoordination
from muster.client.core.produce.transactions import ProducerTransactions, ProducerTransactionState, TransactionCall
from muster.client.core.sends import AnySend
from muster.client.producer.producer_loop import ProducerLoop
from muster.errors import ErrorCode, KafkaTimeoutError, MusterError
from tests.simulator.transactions.life import simulate_transactions
from tests.simulator.transactions.plan import Plan
from tests.simulator.transactions.planted import caught_with

UNWELL = "everything works, but last could not write|has ended without a reason"


def real(plan: Plan) -> bool:
    """Lives with muster's producers, on a disk that keeps what is written."""
    return plan.real > 0 and not plan.loses


def v1(plan: Plan) -> bool:
    """Lives of producers that add partitions themselves."""
    return real(plan) and plan.tv2 == 0.0


def v2(plan: Plan) -> bool:
    """Lives of producers whose partitions brokers add."""
    return real(plan) and plan.tv2 == 1.0


def change_ends(monkeypatch: pytest.MonkeyPatch, change: Callable[[Any], None]) -> None:
    """Show the client answers to EndTxn that differ from those given."""
    original = TransactionCoordination._on_end

    def changed(asked: TransactionCoordination, commits: bool, reply: Any, now: int) -> None:
        change(reply)
        original(asked, commits, reply, now)

    monkeypatch.setattr(TransactionCoordination, "_on_end", changed)


def test_a_life_has_transactions_of_musters_producer() -> None:
    assert simulate_transactions(2).by_client > 10


@pytest.mark.slow
def test_sequences_that_continue_in_a_new_epoch(monkeypatch):
    def begin_epoch(book: TransactionSequences, producer_id: int, producer_epoch: int) -> None:
        book.producer_id, book.producer_epoch = producer_id, producer_epoch
        for entry in book._partitions.values():
            entry.producer_id, entry.producer_epoch = producer_id, producer_epoch

    monkeypatch.setattr(TransactionSequences, "begin_epoch", begin_epoch)
    caught_with(UNWELL, v2)


@pytest.mark.slow
def test_an_epoch_that_is_not_taken_from_the_answer_to_the_end(monkeypatch):
    def forgetful(reply: Any) -> None:
        reply.producer_id = -1

    change_ends(monkeypatch, forgetful)
    caught_with(UNWELL, v2)


@pytest.mark.slow
def test_an_end_that_counts_as_done_while_the_last_is_being_completed(monkeypatch):
    def hasty(reply: Any) -> None:
        if reply.error_code == ErrorCode.CONCURRENT_TRANSACTIONS:
            reply.error_code = ErrorCode.NONE

    change_ends(monkeypatch, hasty)
    caught_with(f"{UNWELL}|was reported as committed", v2)


@pytest.mark.slow
def test_an_addition_that_counts_for_the_transactions_to_come(monkeypatch):
    original = ProducerTransactions.ended

    def forgetful(current: ProducerTransactions) -> None:
        partitions = set(current.partitions)
        original(current)
        current.partitions |= partitions

    monkeypatch.setattr(ProducerTransactions, "ended", forgetful)
    caught_with(f"{UNWELL}|keeps", v1)


@pytest.mark.slow
def test_an_abort_that_leaves_records_for_the_next_transaction(monkeypatch):
    original = TransactionCoordination._due

    def hasty(asked: TransactionCoordination, incomplete: bool) -> AnySend | None:
        aborts = asked._transactions.state is ProducerTransactionState.ABORTING
        return original(asked, incomplete and not aborts)

    monkeypatch.setattr(ProducerTransactions, "dropping", property(lambda _: None))
    monkeypatch.setattr(TransactionCoordination, "_due", hasty)
    caught_with("keeps|together|ended differently|did not ask for it")


@pytest.mark.slow
def test_a_commit_that_does_not_wait_for_its_records(monkeypatch):
    original = TransactionCoordination._due
    monkeypatch.setattr(TransactionCoordination, "_due", lambda asked, _incomplete: original(asked, False))
    caught_with("is committed without|was committed with|keeps|ended without a reason", real)


@pytest.mark.slow
def test_a_commit_that_skips_a_record_that_was_lost(monkeypatch):
    original = ProducerTransactions.fail

    def careless(current: ProducerTransactions, error: MusterError, *, raises_epoch: bool = False) -> None:
        if current.state is not ProducerTransactionState.COMMITTING:
            original(current, error, raises_epoch=raises_epoch)

    monkeypatch.setattr(ProducerTransactions, "fail", careless)
    caught_with(f"is committed without|was committed with|{UNWELL}", real)


@pytest.mark.slow
def test_a_commit_that_counts_as_aborted_when_its_time_is_up(monkeypatch):
    original = ProducerLoop.complete

    async def pessimistic(loop: ProducerLoop, start: Callable[[Any], TransactionCall], timeout_ms: int | None) -> None:
        try:
            await original(loop, start, timeout_ms)
        except KafkaTimeoutError as error:
            error.abortable |= "commit_transaction" in str(error)
            raise

    monkeypatch.setattr(ProducerLoop, "complete", pessimistic)
    caught_with("neither abortable nor fatal", real)


@pytest.mark.slow
def test_a_fenced_producer_that_aborts_and_continues(monkeypatch):
    original = ProducerTransactions.__init__

    def init(current: ProducerTransactions, *arguments: Any) -> None:
        original(current, *arguments)
        current.end_producer = current.fail

    monkeypatch.setattr(ProducerTransactions, "__init__", init)
    caught_with("do not end|could not write", real)


@pytest.mark.slow
def test_a_record_that_is_taken_while_the_transaction_is_being_committed(monkeypatch):
    original = ProducerTransactions.check_send

    def open_handed(current: ProducerTransactions) -> None:
        if current.state is not ProducerTransactionState.COMMITTING:
            original(current)

    monkeypatch.setattr(ProducerTransactions, "check_send", open_handed)
    caught_with("though it is not known how", real)


@pytest.mark.slow
def test_offsets_that_a_commit_does_not_wait_for(monkeypatch):
    original = TransactionCoordination._send_offsets

    def hasty(asked: TransactionCoordination, offsets: Any) -> AnySend | None:
        found = original(asked, offsets)
        if found is not None and offsets.call.name and asked._transactions.state is ProducerTransactionState.COMMITTING:
            asked._transactions.offsets.clear()
            return None
        return found

    monkeypatch.setattr(TransactionCoordination, "_send_offsets", hasty)
    caught_with("without the offset|has committed", real)


@pytest.mark.slow
def test_a_batch_that_is_renumbered_when_it_is_sent_again(monkeypatch):
    original = TransactionSequences.assign

    def anew(book: TransactionSequences, batch: ProducerBatch) -> None:
        if batch.has_sequence and book._entry(batch.partition).next_sequence > batch.base_sequence:
            book._remove(batch)
            batch.base_sequence = -1
        original(book, batch)

    monkeypatch.setattr(TransactionSequences, "assign", anew)
    caught_with("was committed with|is at .* and was reported", real)


@pytest.mark.slow
def test_an_abort_in_v1_that_does_not_ask_for_the_next_epoch(monkeypatch):
    never = property(lambda _: False, lambda _, _value: None)
    monkeypatch.setattr(ProducerTransactions, "raises_epoch", never, raising=False)
    caught_with(f"{UNWELL}|do not end|was committed with", v1)
