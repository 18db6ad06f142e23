"""The parts behind the faces, without a broker: outcomes of records, the consumer's pump, marks on what was taken."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from typing import Any

import pytest

from muster.client.config import ConsumerConfig, ProducerConfig
from muster.client.consumer.async_consumer import AsyncConsumer
from muster.client.consumer.consumer import Consumer
from muster.client.consumer.handout import Handout
from muster.client.consumer.listener import RebalanceListener
from muster.client.consumer.pump import ConsumerPump, call_here, settle
from muster.client.core.consumer import ConsumerCore
from muster.client.core.produce.accumulator import Completion
from muster.client.delivery import DeliveryFuture, Receipt
from muster.client.producer.producer_engine import ProducerEngine, _outcomes
from muster.client.serde import Serializers
from muster.errors import ClosedError, ErrorCode, IllegalStateError, KafkaError, MusterError
from muster.model import ConsumerRecord, RecordMetadata, TopicPartition

NOWHERE = "127.0.0.1:1"
ZERO, ONE = TopicPartition("t", 0), TopicPartition("t", 1)


# --- outcomes of records ---------------------------------------------------------------------------------------------


def engine() -> ProducerEngine:
    return ProducerEngine(ProducerConfig(), Serializers(None, None), None, lambda: None, in_callers_loop=False)


def completed(**more: Any) -> list[tuple[Any, RecordMetadata | None, MusterError | None]]:
    return list(_outcomes(Completion(ZERO, ["a", "b"], [10, 20], 2, [0, 0], **more)))


@pytest.mark.parametrize(
    ("base", "appended", "places"),
    [(7, -1, [(7, 10), (8, 20)]), (7, 99, [(7, 99), (8, 99)]), (-1, -1, [(-1, 10), (-1, 20)])],
)
def test_each_record_gets_its_own_offset_and_time(base: int, appended: int, places: list[tuple[int, int]]) -> None:
    """The time is the broker's if it sets one; without an offset (acks=0, forgotten duplicates) none is made up."""
    reported = completed(base_offset=base, log_append_time_ms=appended)
    assert [(found.offset, found.timestamp) for _, found, _ in reported if found is not None] == places


def test_a_record_that_the_broker_names_gets_its_own_error() -> None:
    whole, own = KafkaError(ErrorCode.INVALID_RECORD), KafkaError(ErrorCode.INVALID_TIMESTAMP)
    assert [error for _, _, error in completed(error=whole, record_errors={1: own})] == [whole, own]


def test_what_was_given_as_a_buffer_may_be_changed_once_it_is_sent() -> None:
    value, header = bytearray(b"value"), bytearray(b"header")
    headers: Any = {"h": header}
    record = engine().encode("t", value, memoryview(value), None, None, headers)
    value[:], header[:] = b"other", b"HEADER"
    assert (record.value, record.key, list(record.headers)) == (b"value", b"value", [("h", b"header")])


def failed(made: ProducerEngine, count: int) -> list[Future[RecordMetadata]]:
    futures: list[Future[RecordMetadata]] = [DeliveryFuture() for _ in range(count)]
    for number, future in enumerate(futures):
        made._report(future, None, MusterError(f"number {number}"))
    return futures


def test_unreported_failures_are_reported_once_with_how_many_there_are() -> None:
    made = engine()
    futures = failed(made, 1_003)
    futures[0].exception()
    error = made.take_unseen()
    assert str(error) == "number 1"
    assert error is not None
    assert error.__notes__ == ["the first of 1002 records that were not delivered"]
    assert made.take_unseen() is None
    failed(made, 1)
    assert not hasattr(made.take_unseen(), "__notes__")


def test_what_is_given_up_at_the_end_is_reported_besides_its_callback() -> None:
    made = engine()
    reported: list[Any] = []
    receipt = Receipt(DeliveryFuture(), lambda metadata, error: reported.append(error))
    made._report(receipt, None, MusterError("while it was at work"))
    assert made.take_unseen() is None
    made._giving_up = True
    made._report(Receipt(DeliveryFuture(), receipt.on_delivery), None, MusterError("at the end"))
    assert str(made.take_unseen()) == "at the end"
    assert len(reported) == 2


def test_a_producer_whose_core_failed_takes_no_more_records() -> None:
    made = engine()
    record = made.encode("t", b"v", None, None, None, None)
    made.loop.error = ZeroDivisionError("a defect")
    with pytest.raises(MusterError, match="a defect"):
        made.append(record, 0)
    assert made.core.buffered_bytes == 0


async def test_a_flush_that_the_close_cuts_short_is_not_a_success() -> None:
    made = engine()
    await made.start()
    made.append(made.encode("t", b"v", None, None, None, None), made.driver.now())
    flushing = asyncio.create_task(made.flush())
    await asyncio.sleep(0)
    made.hurry()
    with pytest.raises(ClosedError):
        await flushing
    await made.close()


# --- the pump --------------------------------------------------------------------------------------------------------


@pytest.fixture
def pump() -> ConsumerPump:
    return ConsumerPump(ConsumerCore(ConsumerConfig(group_id="g")))


async def test_callbacks_may_be_coroutines() -> None:
    called: list[int] = []

    async def callback(number: int) -> None:
        await asyncio.sleep(0)
        called.append(number)

    await call_here(callback, 1)
    await call_here(called.append, 2)
    assert called == [1, 2]


async def test_a_call_within_a_callback_ends_before_it(pump: ConsumerPump) -> None:
    seen: list[bool] = []

    async def outer(*_: Any) -> None:
        pump.commit_ended(lambda *_: seen.append(pump.in_callback), {}, None)
        await pump.run_commit_callbacks()
        seen.append(pump.in_callback)

    pump.commit_ended(outer, {}, None)
    await pump.run_commit_callbacks()
    assert seen == [True, True]
    assert not pump.in_callback


def test_a_fenced_commit_is_reported_by_the_next_poll_too(pump: ConsumerPump) -> None:
    pump.commit_ended(None, {}, KafkaError(ErrorCode.ILLEGAL_GENERATION))
    assert not pump.has_fatal
    pump.commit_ended(None, {}, KafkaError(ErrorCode.FENCED_INSTANCE_ID))
    with pytest.raises(KafkaError):
        pump.raise_fatal()
    pump.raise_fatal()  # reported once


async def test_no_time_is_a_time(pump: ConsumerPump) -> None:
    now = pump.driver.now()
    assert pump.until(0) - now < 30_000 < pump.until(None) - now
    assert await pump.wait(lambda: True, 0)
    assert not await pump.wait(lambda: False, 0)


async def test_an_outcome_that_comes_when_its_caller_was_cancelled_is_nobodys() -> None:
    outcome: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    outcome.cancel()
    settle(outcome, 1, 0)
    assert outcome.cancelled()


# --- what was taken --------------------------------------------------------------------------------------------------


def test_records_of_a_partition_that_is_gone_are_not_counted() -> None:
    core = ConsumerCore(ConsumerConfig())
    handout = Handout(core.subscription)
    core.assign([ZERO])
    handout.take({ZERO: [ConsumerRecord("t", 0, offset, 0, 0, None, None, [], 1) for offset in range(3)]})
    assert handout.count(ZERO) == 3
    core.assign([])
    core.assign([ZERO])
    assert handout.count(ZERO) == 0


# --- the consumer's faces --------------------------------------------------------------------------------------------


def test_a_subscription_is_to_topics_or_to_a_pattern() -> None:
    consumer = AsyncConsumer(group_id="g")
    wrong: dict[str, Any]
    for wrong in {}, {"topics": ["t"], "pattern": "t"}, {"topics": []}:
        with pytest.raises(IllegalStateError):
            consumer.subscribe(**wrong)
    assert consumer.subscription() == set()


@pytest.mark.parametrize("listener", [None, RebalanceListener()])
def test_callbacks_are_waited_for_where_there_is_a_listener(listener: RebalanceListener | None) -> None:
    consumer = AsyncConsumer(group_id="g")
    consumer.subscribe(["t"], listener=listener)
    assert consumer._core.listening is (listener is not None)


async def test_a_seek_of_several_partitions_moves_all_or_none() -> None:
    consumer = AsyncConsumer()
    consumer.assign([ZERO])
    consumer.seek(ZERO, 5)
    with pytest.raises(IllegalStateError):
        consumer.seek_to_end([ZERO, ONE])
    assert await consumer.position(ZERO) == 5
    await consumer.close()


async def test_the_lag_counts_what_waits_to_be_handed_out() -> None:
    consumer = AsyncConsumer()
    consumer.assign([ZERO])
    consumer.seek(ZERO, 3)
    state = consumer._core.subscription.state(ZERO)
    state.high_watermark = 10
    consumer._handout.take({ZERO: [ConsumerRecord("t", 0, offset, 0, 0, None, None, [], 1) for offset in range(3)]})
    assert consumer.current_lag(ZERO) == 10


async def test_a_timestamp_is_not_the_name_of_an_end() -> None:
    consumer = AsyncConsumer(bootstrap_servers=NOWHERE)
    with pytest.raises(IllegalStateError, match="at least 0"):
        await consumer.offsets_for_times({ZERO: -1}, timeout_ms=0)
    await consumer.close()


def test_a_wakeup_of_a_closed_consumer_says_nothing() -> None:
    consumer = Consumer(bootstrap_servers=NOWHERE)
    consumer.start()
    consumer.close()
    consumer.wakeup()
