"""Producers with one transactional id in any order of requests, retries and crashes: what must always hold."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from muster.coordinator.transactions.entry import ENDING, LAST_EPOCH, ONGOING
from muster.coordinator.transactions.rules import ProducerIdentity
from muster.errors import ErrorCode
from tests.support.scale import examples
from tests.support.transaction_harness import MINUTE, T0, T1, TransactionHarness

NONE = ErrorCode.NONE


class Producers(RuleBasedStateMachine):
    """`mine` are the ids of the producer that was initialized last and has missed no answer."""

    @initialize(version=st.sampled_from([0, 1, 2]), client=st.sampled_from([0, 2]), epochs_left=st.integers(0, 4))
    def begin(self, version: int, client: int, epochs_left: int) -> None:
        self.it = TransactionHarness(version, client if version == 2 else 0)
        self.it.init()
        self.it.put(producer_epoch=LAST_EPOCH - epochs_left)
        self.it.log.clear()
        self.it.init()
        self.mine: ProducerIdentity | None = self.it.producer
        self.given = {self.it.producer}
        self.fenced: set[ProducerIdentity] = set()
        self.seen: list[ProducerIdentity] = []

    def _gave(self, producer: ProducerIdentity) -> None:
        self.fenced |= self.given - {producer}
        self.given.add(producer)
        self.mine = producer

    @rule(continues=st.booleans())
    def init(self, continues: bool) -> None:
        answer = self.it.init(self.mine if continues else None)
        if answer.error_code == NONE:
            self._gave(ProducerIdentity(answer.producer_id, answer.producer_epoch))

    @rule(partition=st.sampled_from([T0, T1]))
    def add(self, partition: object) -> None:
        if self.mine is not None:
            self.it.add(partition, producer=self.mine)  # type: ignore[arg-type]

    @rule(commit=st.booleans(), lost=st.booleans())
    def end(self, commit: bool, lost: bool) -> None:
        if self.mine is None:
            return
        state = self.it.state
        answer = self.it.end(commit, self.mine)
        if answer.error_code == NONE and self.it.client == 2 and not lost:
            self._gave(ProducerIdentity(answer.producer_id, answer.producer_epoch))
        if answer.error_code == NONE and lost and state is ONGOING:
            self.it.mark()
            again = self.it.end(commit, self.mine)  # it does not know, and repeats
            assert again.error_code == NONE
            if self.it.client == 2:
                assert ProducerIdentity(again.producer_id, again.producer_epoch) == self.it.producer
                self._gave(self.it.producer)

    @precondition(lambda self: self.it.markers)
    @rule()
    def mark(self) -> None:
        self.it.mark()

    @rule()
    def time_out(self) -> None:
        self.it.wait(2 * MINUTE)

    @rule()
    def crash(self) -> None:
        shard = self.it.replayed()
        expected = dict(self.it.shard.entries)
        if self.it.config.transaction_version:
            assert shard.entries == expected
        else:
            assert {n: (e.producer_id, e.producer_epoch, e.state, e.partitions) for n, e in shard.entries.items()} == {
                n: (e.producer_id, e.producer_epoch, e.state, e.partitions) for n, e in expected.items()
            }
            shard.entries.update(expected)
        self.it.take(shard.loaded(self.it.now))
        self.it.shard = shard

    @rule()
    def zombies(self) -> None:
        """A fenced producer can no longer change anything. Retrying EndTxn changes nothing, so it may be answered."""
        before = self.it.entry
        for producer in sorted(self.fenced):
            if producer == self.it.producer:
                continue
            assert self.it.add(T0, producer=producer) != NONE
            assert set(self.it.verify(T0, producer=producer).values()) != {NONE}
            for commit in (True, False):
                self.it.end(commit, producer)
        assert self.it.entry == before

    @invariant()
    def ids_only_grow(self) -> None:
        """No epoch is used for two producers, and none decreases."""
        if self.seen:
            assert self.it.producer >= self.seen[-1]
        self.seen.append(self.it.producer)
        assert self.it.entry.producer_epoch <= LAST_EPOCH + 1
        for _, epoch in self.given:
            assert epoch <= LAST_EPOCH

    @invariant()
    def every_decision_is_sent(self) -> None:
        if self.it.state in ENDING:
            due = self.it.markers[-1]
            assert (due.producer_id, due.producer_epoch) == self.it.producer
            assert due.partitions == self.it.entry.partitions


Producers.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=30, deadline=None)
TestProducers = Producers.TestCase
