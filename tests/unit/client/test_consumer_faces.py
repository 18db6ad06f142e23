"""The two faces of the consumer: the same methods, and details that only one of them handles. No broker is needed."""

from __future__ import annotations

import asyncio
import os
import re

import pytest

from muster.client.consumer.async_consumer import AsyncConsumer
from muster.client.consumer.consumer import Consumer
from muster.client.consumer.listener import RebalanceListener
from muster.errors import (
    ClosedError,
    ConfigError,
    IllegalArgumentError,
    IllegalStateError,
    KafkaTimeoutError,
    WakeupError,
)
from muster.model import OffsetAndMetadata, TopicPartition

NOWHERE = "127.0.0.1:1"
ZERO = TopicPartition("flights", 0)


def test_a_consumer_without_a_group_cannot_subscribe():
    with Consumer(bootstrap_servers=NOWHERE) as consumer:
        with pytest.raises(ConfigError, match="group_id is not set"):
            consumer.subscribe(["flights"])
        consumer.assign([ZERO])
        assert consumer.poll(50) == {}


def test_client_ids_are_made_as_kafkas_consumers_make_them():
    first = AsyncConsumer(group_id="g")._config.client_id
    assert re.fullmatch(r"consumer-g-\d+", first)
    assert AsyncConsumer(group_id="g", group_instance_id="i")._config.client_id == "consumer-g-i"
    assert AsyncConsumer(group_id="g", client_id="mine")._config.client_id == "mine"


def test_without_a_broker_calls_end_with_their_time():
    with Consumer(bootstrap_servers=NOWHERE, group_id="g") as consumer:
        consumer.subscribe(["flights"])
        assert consumer.poll(100) == {}
        with pytest.raises(KafkaTimeoutError):
            consumer.committed([ZERO], timeout_ms=100)
        with pytest.raises(KafkaTimeoutError):
            consumer.end_offsets([ZERO], timeout_ms=100)
        with pytest.raises(KafkaTimeoutError):
            consumer.partitions_for("flights", timeout_ms=100)
        consumer.close(timeout_ms=100)


def test_one_bad_value_ends_one_call():
    with Consumer(bootstrap_servers=NOWHERE, group_id="g") as consumer:
        consumer.assign([ZERO])
        calls = [
            lambda: consumer.seek(ZERO, 2**63),
            lambda: consumer.seek(ZERO, -1),
            lambda: consumer.assign([TopicPartition("\ud800", 0)]),
            lambda: consumer.committed([TopicPartition("\ud800", 0)]),
            lambda: consumer.commit({ZERO: 2**63}),
            lambda: consumer.commit({ZERO: OffsetAndMetadata(1, 0, "\ud800")}),
            lambda: consumer.commit_async({TopicPartition("\ud800", 0): 1}),
            lambda: consumer.end_offsets([TopicPartition("\ud800", 0)]),
            lambda: consumer.offsets_for_times({ZERO: 2**63}),
        ]
        for call in calls:
            with pytest.raises(IllegalArgumentError):
                call()
        consumer.seek(ZERO, 7)
        assert consumer.position(ZERO) == 7
        assert consumer.poll(50) == {}
        consumer.close(timeout_ms=100)


async def test_a_position_that_is_waited_for_while_the_partition_is_given_up():
    consumer = AsyncConsumer(bootstrap_servers=NOWHERE)
    consumer.assign([ZERO])
    waiting = asyncio.create_task(consumer.position(ZERO, 60_000))
    await asyncio.sleep(0.05)
    consumer.assign([TopicPartition("flights", 1)])
    with pytest.raises(IllegalStateError, match="flights-0 is not assigned"):
        await waiting
    assert await consumer.poll(50) == {}
    await consumer.close(100)


def test_after_closing_every_call_says_so():
    consumer = Consumer(bootstrap_servers=NOWHERE, group_id="g")
    consumer.subscribe(["flights"])
    consumer.close(timeout_ms=100)
    consumer.close(timeout_ms=100)
    with pytest.raises(ClosedError):
        consumer.poll(10)
    with pytest.raises(ClosedError):
        consumer.assignment()
    assert list(consumer) == []


def test_a_child_process_makes_a_consumer_of_its_own():
    consumer = Consumer(bootstrap_servers=NOWHERE, group_id="g")
    consumer.subscribe(["flights"])
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            consumer.poll(10)
            said = "nothing"
        except IllegalStateError as error:
            said = str(error)
        os.write(writing, said.encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert b"create a new one in the child" in os.read(reading, 1_000)
    os.close(reading)
    os.close(writing)
    assert consumer.poll(10) == {}
    consumer.close(timeout_ms=100)


async def test_a_wakeup_ends_one_poll():
    async with AsyncConsumer(bootstrap_servers="127.0.0.1:1") as consumer:
        consumer.assign([TopicPartition("t", 0)])
        consumer.wakeup()
        with pytest.raises(WakeupError):
            await consumer.poll(10)
        assert await consumer.poll(10) == {}


async def test_a_question_that_nobody_waits_for_is_not_asked():
    async with AsyncConsumer(bootstrap_servers="127.0.0.1:1") as consumer:
        with pytest.raises(KafkaTimeoutError):
            await consumer.end_offsets([TopicPartition("t", 0)], timeout_ms=10)
        assert consumer._core.offsets.next_deadline(0) is None


def test_lost_is_reported_as_revoked_unless_overridden():
    reported = []

    class Listener(RebalanceListener):
        def on_partitions_revoked(self, partitions):
            reported.append(partitions)

    Listener().on_partitions_lost([ZERO])
    assert reported == [[ZERO]]
