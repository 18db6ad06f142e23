"""Lives of brokers with transactions, for many seeds: 16 fixed ones and 8 of the run's own, any number in a soak.

The checks are described in `tests.simulator.transactions.checks`, the events in `life`. A failure names its seed, and
says how to run it again. Each promise is broken on purpose further below: a check that cannot fail checks nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

from muster.broker.topics.fetches import ParkedFetch
from muster.broker.transactions.markers import MarkerSender, MarkerWriter
from muster.broker.transactions.service import TransactionService
from muster.coordinator.groups.pending_offsets import PendingOffsets
from muster.coordinator.groups.shard import GroupShard
from muster.coordinator.shards.served_shard import ServedShard
from muster.coordinator.transactions import rules
from muster.coordinator.transactions.entry import PREPARE_COMMIT, Transaction
from muster.coordinator.transactions.shard import TransactionShard
from muster.errors import ErrorCode
from muster.log import PartitionLog
from muster.log.producers import transactions as open_transactions
from muster.log.producers.producer_state import PartitionProducers
from muster.log.segments.aborted_index import AbortedIndex
from muster.protocol.api import READ_COMMITTED
from tests.simulator.transactions.life import simulate_transactions
from tests.simulator.transactions.planted import caught_with
from tests.support.lives import chunks, live, name


@pytest.mark.soak
@pytest.mark.parametrize("chunk", chunks(fixed=16, fresh=8, per_test=8), ids=name)
def test_transactions_are_whole_whatever_happens(chunk: range) -> None:
    live(simulate_transactions, chunk, __file__, "whole")


def test_a_seed_tells_the_same_story_again() -> None:
    for seed in (3, 13):  # a standalone broker, and a cluster with members
        assert simulate_transactions(seed).story == simulate_transactions(seed).story


# --- atomicity, and the answers to producers -------------------------------------------------------------------------


@pytest.mark.slow
def test_a_sender_that_aborts_in_one_partition_what_it_commits_in_others(monkeypatch):
    real = MarkerWriter.write

    def fickle(writer: MarkerWriter, marker: Any, where: Any, done: Any) -> None:
        real(writer, marker._replace(committed=marker.committed and where.partition != 2), where, done)

    monkeypatch.setattr(MarkerWriter, "write", fickle)
    caught_with("ended differently")


@pytest.mark.slow
def test_a_coordinator_that_commits_what_it_has_to_abort(monkeypatch):
    def fence(found: Transaction, version: int, new_id: Callable[[], int], now: int) -> Transaction:
        return rules._ended(found, PREPARE_COMMIT, version, new_id, now)

    monkeypatch.setattr(rules, "fence", fence)
    caught_with("did not ask for it|and then it was|was committed with")


@pytest.mark.slow
def test_an_answer_that_does_not_wait_for_the_disk(monkeypatch):
    real = ServedShard.answer

    def hasty(served: ServedShard[Any], replies: list[Any]) -> None:
        if isinstance(served.shard, TransactionShard):
            for reply in replies:
                reply.ticket(reply.response)
        else:
            real(served, replies)

    monkeypatch.setattr(ServedShard, "answer", hasty)
    reported = "was reported as committed|and then it was|ended differently|was committed with|after epoch|went back"
    caught_with(f"{reported}|ends .* together", lambda plan: plan.fsync == "always" and plan.cuts > 0)


@pytest.mark.slow
def test_a_partition_that_is_forgotten_by_its_record(monkeypatch):
    real = Transaction.value

    def forgetful(entry: Transaction, shift: int = 0) -> Any:
        few = frozenset(each for each in entry.partitions if each.partition != 1)
        return real(entry._replace(partitions=few), shift)

    monkeypatch.setattr(Transaction, "value", forgetful)
    caught_with("its log|ended differently|forever|ends .* together")


# --- isolation -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_reader_of_committed_records_is_given_open_ones(monkeypatch):
    real = PartitionLog.read

    def open_to_all(log: PartitionLog, offset: int, max_bytes: int, **more: Any) -> Any:
        found = real(log, offset, max_bytes, **more)
        if more.get("isolation_level") == READ_COMMITTED:
            return real(log, offset, max_bytes)._replace(aborted=found.aborted)
        return found

    monkeypatch.setattr(PartitionLog, "read", open_to_all)
    caught_with("a reader of .* was given|is read as")


@pytest.mark.slow
def test_an_aborted_transaction_that_a_look_up_skips(monkeypatch):
    real = AbortedIndex.collect

    def careless(index: AbortedIndex, start: int, end: int, found: list[Any]) -> bool:
        some: list[Any] = []
        over = real(index, start, end, some)
        found += [one for one in some if one.first_offset >= start]
        return over

    monkeypatch.setattr(AbortedIndex, "collect", careless)
    caught_with("a reader of .* was given|is read as")


@pytest.mark.slow
def test_an_index_without_some_of_its_entries(monkeypatch):
    real = AbortedIndex.append

    def lazy(index: AbortedIndex, entry: Any) -> None:
        if entry.first_offset % 3:
            real(index, entry)

    monkeypatch.setattr(AbortedIndex, "append", lazy)
    caught_with("does not know what is in it")


# --- zombies, and what hangs -----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_coordinator_that_takes_an_older_epoch(monkeypatch):
    real = rules.check_producer

    def trusting(found: Transaction | None, producer: rules.ProducerIdentity) -> ErrorCode:
        error = real(found, producer)
        return ErrorCode.NONE if error is ErrorCode.PRODUCER_FENCED else error

    monkeypatch.setattr(rules, "check_producer", trusting)
    caught_with("after epoch|forever|ends? .* together|ended differently|and then it was|reported as|was committed")


@pytest.mark.slow
def test_a_log_that_takes_an_older_epoch_and_does_not_ask_for_a_guard(monkeypatch):
    real = PartitionProducers.check

    def trusting(producers: PartitionProducers, header: Any, guard: Any, **more: Any) -> Any:
        entry = producers.producers.get(header.producer_id)
        is_old = entry is not None and header.producer_epoch < entry.epoch
        return None if is_old else real(producers, header, guard, **more)

    monkeypatch.setattr(PartitionProducers, "check", trusting)
    monkeypatch.setattr(PartitionProducers, "begin_verification", lambda *_: None)
    caught_with("after epoch|forever|ends .* together|has readers wait|does not know|ended without a reason")


@pytest.mark.slow
def test_a_guard_that_outlives_the_marker(monkeypatch):
    """KIP-890: a batch that was verified for a transaction arrives after that has ended."""
    real = PartitionProducers.check

    def unguarded(producers: PartitionProducers, header: Any, guard: Any, **more: Any) -> Any:
        return real(producers, header, guard, **{**more, "verifies": False})

    monkeypatch.setattr(PartitionProducers, "check", unguarded)
    monkeypatch.setattr(
        "muster.broker.transactions.verification.Verifier.ask", lambda *arguments, **_more: arguments[5]({})
    )
    caught_with("forever|after epoch|ends .* together|ended without a reason")


@pytest.mark.slow
def test_markers_that_are_not_sent_again_after_a_start(monkeypatch):
    real = TransactionShard.loaded

    def forgetful(shard: TransactionShard, now: int) -> Any:
        effects = real(shard, now)
        effects.replies.clear()
        return effects

    monkeypatch.setattr(TransactionShard, "loaded", forgetful)
    caught_with("forever|do not end")


@pytest.mark.slow
def test_a_marker_that_is_not_repeated(monkeypatch):
    real, write = MarkerSender._written, MarkerWriter.write
    markers = count()

    def resigned(sender: MarkerSender, due: Any, marker: Any, errors: Any) -> None:
        real(sender, due, marker, dict.fromkeys(errors, ErrorCode.NONE))

    def refusing(writer: MarkerWriter, marker: Any, where: Any, done: Any) -> None:
        if next(markers) % 20 == 9:
            done(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        else:
            write(writer, marker, where, done)

    monkeypatch.setattr(MarkerWriter, "write", refusing)
    simulate_transactions(15)
    monkeypatch.setattr(MarkerSender, "_written", resigned)
    caught_with("forever|do not end|ended differently|ends .* together")


@pytest.mark.slow
def test_what_a_power_cut_leaves_open_is_not_looked_for(monkeypatch):
    monkeypatch.setattr(TransactionService, "_abort_hanging", lambda *_: None)
    caught_with("open forever", lambda plan: plan.loses)


@pytest.mark.slow
def test_a_last_stable_offset_that_does_not_wait_for_the_marker_to_be_durable(monkeypatch):
    monkeypatch.setattr(open_transactions.PartitionTransactions, "complete", lambda *_: None)
    caught_with("does not know|went back|a reader of", lambda plan: plan.fsync == "always")


# --- offsets ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_an_offset_that_is_returned_while_a_transaction_may_still_change_it(monkeypatch):
    real = GroupShard.fetch_offsets

    def rash(shard: GroupShard, request: Any, version: int, require_stable: bool = False) -> Any:
        return real(shard, request, version, False)

    monkeypatch.setattr(GroupShard, "fetch_offsets", rash)
    caught_with("processed twice|has committed", lambda plan: plan.hands_over)


@pytest.mark.slow
def test_pending_offsets_that_an_abort_commits(monkeypatch):
    real = PendingOffsets.end
    monkeypatch.setattr(PendingOffsets, "end", lambda pending, producer_id, committed: real(pending, producer_id, True))
    caught_with("has committed")


@pytest.mark.slow
def test_a_shard_that_does_not_read_what_is_pending(monkeypatch):
    monkeypatch.setattr(GroupShard, "replay_transactional", lambda *_: None)
    caught_with("its log|has committed|processed twice")


@pytest.mark.slow
def test_an_epoch_that_is_not_in_the_record(monkeypatch):
    """KAFKA-20357."""
    real = Transaction.value

    def as_in_4_2_0(entry: Transaction, shift: int = 0) -> Any:
        return real(entry._replace(last_producer_epoch=-1), shift)

    monkeypatch.setattr(Transaction, "value", as_in_4_2_0)
    caught_with("its log")


# --- answers ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_coordinator_that_answers_twice(monkeypatch):
    real = TransactionShard.end

    def chatty(shard: TransactionShard, request: Any, version: int, ticket: Any, now: int) -> Any:
        effects = real(shard, request, version, ticket, now)
        effects.replies.insert(0, effects.replies[0])
        return effects

    monkeypatch.setattr(TransactionShard, "end", chatty)
    caught_with("a second answer to a EndTxnRequest")


@pytest.mark.slow
def test_a_fetch_that_is_never_answered(monkeypatch):
    monkeypatch.setattr(ParkedFetch, "complete", lambda _: None)
    caught_with("never answered|not answered within|do not end")
