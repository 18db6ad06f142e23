"""A flush is over exactly when every record that was accepted before it is settled, wherever the records are."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from muster.client.core.sends import FailureKind
from muster.errors import ErrorCode
from tests.support.producer_harness import TOPIC, ProducerHarness
from tests.support.scale import examples

pytestmark = pytest.mark.slow

ANSWERS = (
    ErrorCode.NONE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.MESSAGE_TOO_LARGE,
    ErrorCode.INVALID_RECORD,
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    ErrorCode.UNKNOWN_PRODUCER_ID,
    ErrorCode.DUPLICATE_SEQUENCE_NUMBER,
)
SETTINGS: tuple[dict[str, Any], ...] = (
    {},
    {"linger_ms": 50},
    {"acks": 1},
    {"enable_idempotence": False, "max_in_flight_requests_per_connection": 1},
    {"retries": 2, "enable_idempotence": True, "delivery_timeout_ms": 30_100},
)


@pytest.mark.parametrize("settings", [{}, {"enable_idempotence": False}])
def test_a_flush_waits_for_records_whose_topic_was_not_known(settings):
    """They move from the waiting area into a request within one round."""
    p = ProducerHarness(leaders=[1, 2], topic_exists=False, settings=settings)
    p.give(b"elsewhere", topic="other")
    p.tick(1_000)
    p.give(b"a", partition=0)
    p.give(b"b", partition=1)
    flushed = p.core.begin_flush()
    p.topic_exists = True
    first, second = p.tick(2_000)
    assert not flushed()
    p.answer(first)
    p.answer(second)
    assert not flushed(), "one record's topic is not known yet"
    p.tick(60_000)
    assert p.done[b"elsewhere"].error is not None
    assert flushed()


def test_a_flush_waits_until_the_outcomes_were_handed_out():
    """An acknowledgement that the core knows of, but has not reported yet, does not count as settled."""
    p = ProducerHarness()
    request = p.put(b"a")
    flushed = p.core.begin_flush()
    p.open.remove(request)
    request.send.on_reply(p.response(request, [p.part(request.batches[0], ErrorCode.NONE, 0)]), p.now)
    assert not flushed()
    assert len(p.core.take_events()) == 1
    assert flushed()


def test_a_flush_waits_for_its_own_records_of_a_batch_that_was_split():
    p = ProducerHarness()
    p.give(b"a", partition=0)
    first = p.core.begin_flush()
    p.give(b"b", partition=0)
    second = p.core.begin_flush()
    (request,) = p.turn()
    assert request.values == [b"a", b"b"]
    p.answer(request, ErrorCode.MESSAGE_TOO_LARGE)
    (request,) = p.turn()
    p.answer(request)
    assert first()
    assert not second()
    (request,) = p.turn()
    p.answer(request)
    assert second()


class Flushes(RuleBasedStateMachine):
    """Records, flushes, answers of three brokers, broken connections and leaders that move, in any order."""

    @initialize(
        chosen=st.sampled_from(SETTINGS), exists=st.booleans(), leaders=st.lists(st.sampled_from([1, 2, 3, None]))
    )
    def begin(self, chosen: dict[str, Any], exists: bool, leaders: list[int | None]) -> None:
        self.p = ProducerHarness(leaders=[1, *leaders], topic_exists=exists, settings=dict(chosen))
        self.given: list[bytes] = []
        self.flushes: list[tuple[Callable[[], bool], list[bytes]]] = []

    @rule(where=st.sampled_from([None, 0, 0, 1, 2]), topic=st.sampled_from([TOPIC, TOPIC, TOPIC, "unknown"]))
    def append(self, where: int | None, topic: str) -> None:
        value = b"%d" % len(self.given)
        self.given.append(value)
        self.p.give(value, partition=where, topic=topic)

    @rule()
    def flush(self) -> None:
        self.flushes.append((self.p.core.begin_flush(), list(self.given)))

    @rule()
    def turn(self) -> None:
        self.p.turn()

    @rule(ms=st.sampled_from([1, 130, 5_000, 31_000]))
    def wait(self, ms: int) -> None:
        self.p.tick(ms)

    @rule()
    def create_topic(self) -> None:
        self.p.topic_exists = True

    @rule(data=st.data())
    def move_leaders(self, data: st.DataObject) -> None:
        self.p.leader_epoch += 1
        self.p.leaders = [data.draw(st.sampled_from([1, 2, 3, None])) for _ in self.p.leaders]

    @precondition(lambda self: self.p.open and self.p.config.required_acks)
    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(self.p.open))
        codes = [data.draw(st.sampled_from(ANSWERS)) for _ in request.batches]
        self.p.answer_each(request, [self.p.part(b, code, 0) for b, code in zip(request.batches, codes, strict=True)])

    @precondition(lambda self: self.p.open)
    @rule(data=st.data(), kind=st.sampled_from(FailureKind))
    def fail(self, data: st.DataObject, kind: FailureKind) -> None:
        node_id = data.draw(st.sampled_from(self.p.open)).node_id
        for request in [request for request in self.p.open if request.node_id == node_id]:
            self.p.fail(request, kind)

    @invariant()
    def a_flush_is_over_when_what_came_before_it_is_settled(self) -> None:
        for flushed, records in self.flushes:
            assert flushed() == all(record in self.p.done for record in records)

    def teardown(self) -> None:
        if not hasattr(self, "p"):
            return
        for flushed, _ in self.flushes:
            self.p.core.end_flush()
            del flushed
        last = self.p.core.begin_flush()
        self.p.leaders = [1 for _ in self.p.leaders]
        for _ in range(300):
            self.p.tick(1_000)
            while self.p.open:
                self.p.answer(self.p.open[0])
        assert last()
        assert sorted(self.p.done) == sorted(self.given)
        assert self.p.core.buffered_bytes == 0


TestFlushes = Flushes.TestCase
TestFlushes.settings = settings(
    max_examples=examples(150), stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
