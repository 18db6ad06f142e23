"""An interrupt anywhere in the calls of a transaction: the call can be repeated, nothing hangs, and the outcome is the
one that the last call reports."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from muster import (
    AsyncConsumer,
    AsyncProducer,
    Consumer,
    GroupMetadata,
    IllegalStateError,
    Producer,
    TopicPartition,
    async_exactly_once,
    exactly_once,
)
from tests.support.faces import new_topic
from tests.support.interrupts import interrupted

pytestmark = pytest.mark.slow

PATIENCE_MS = 180_000
COUNT = 60


@pytest.fixture
def bootstrap(shared_muster: Any) -> str:
    found: str = shared_muster.bootstrap
    return found


@pytest.fixture
def topic(bootstrap: str) -> str:
    return new_topic(bootstrap, 1)


def read_committed(bootstrap: str, topic: str, last: bytes) -> list[bytes]:
    """All committed values; `last` was written after everything else."""
    found: list[bytes] = []
    settings = {"isolation_level": "read_committed", "auto_offset_reset": "earliest", "enable_auto_commit": False}
    with Consumer(settings, bootstrap_servers=bootstrap) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        while last not in found:
            found += [record.value for records in consumer.poll(1_000).values() for record in records]
    return found


def settled(producer: Producer) -> bool:
    """What a user does after an interrupt: abort, or learn the outcome of a commit. Returns whether it is committed."""
    try:
        producer.abort_transaction()
    except IllegalStateError:
        with contextlib.suppress(IllegalStateError):  # there was no transaction yet
            producer.commit_transaction()
            return True
    return False


def test_interrupts_in_each_call(bootstrap: str, topic: str) -> None:
    """Each call is repeated until it succeeds."""
    group = GroupMetadata(f"g-{topic}", -1, "")
    offsets = {TopicPartition(topic, 0): 1}

    def again(at: int, call: Callable[[], object]) -> bool:
        if not interrupted(at, call):
            return False
        call()
        return True

    with Producer(bootstrap_servers=bootstrap, transactional_id=topic) as producer:
        producer.init_transactions()
        rounds = 0
        for at in itertools.count():
            reached = again(at, producer.begin_transaction)
            producer.send(topic, b"%d" % at)
            reached |= again(at, lambda: producer.send_offsets_to_transaction(offsets, group))
            reached |= again(at, producer.commit_transaction)
            producer.begin_transaction()
            producer.send(topic, b"aborted")
            reached |= again(at, producer.abort_transaction)
            rounds = at
            if not reached:
                break
    assert rounds > 20
    assert read_committed(bootstrap, topic, b"%d" % rounds) == [b"%d" % at for at in range(rounds + 1)]


def test_interrupts_in_init_and_close(bootstrap: str, topic: str) -> None:
    for at in itertools.count():
        producer = Producer(bootstrap_servers=bootstrap, transactional_id=topic)
        reached = interrupted(at, producer.init_transactions)
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"left open")
        reached |= interrupted(at, producer.close)
        producer.close(PATIENCE_MS)
        if not reached:
            break
    with Producer(bootstrap_servers=bootstrap, transactional_id=topic) as producer:
        producer.init_transactions()
        with producer.transaction():
            producer.send(topic, b"last")
    assert read_committed(bootstrap, topic, b"last") == [b"last"]


def test_interrupts_in_a_block(bootstrap: str, topic: str) -> None:
    expected: list[bytes] = []
    with Producer(bootstrap_servers=bootstrap, transactional_id=topic) as producer:
        producer.init_transactions()

        def block(value: bytes) -> None:
            with producer.transaction():
                producer.send(topic, value)

        for at in itertools.count():
            value = b"%d" % at
            reached = interrupted(at, lambda value=value: block(value))  # type: ignore[misc]
            if not reached:
                expected.append(value)
                break
            if settled(producer):
                expected.append(value)
            with producer.transaction():
                producer.send(topic, b"next %d" % at)
            expected.append(b"next %d" % at)
    found = read_committed(bootstrap, topic, expected[-1])
    # If an interrupt came before the transaction began, the user learned the outcome of the previous transaction.
    assert [value for value in found if b"next" in value] == [value for value in expected if b"next" in value]
    assert set(found) <= set(expected)
    assert len(set(found)) == len(found)


def fill(bootstrap: str, source: str) -> list[bytes]:
    expected = [b"%d" % number for number in range(COUNT)]
    with Producer(bootstrap_servers=bootstrap) as producer:
        for value in expected:
            producer.send(source, value)
    return expected


def reading(bootstrap: str, source: str) -> dict[str, Any]:
    return {
        "bootstrap_servers": bootstrap,
        "group_id": source,
        "enable_auto_commit": False,
        "auto_offset_reset": "earliest",
        "isolation_level": "read_committed",
        "max_poll_records": 1,
    }


def points() -> Iterator[int]:
    """A round has several thousand lines: every one of its first hundreds, then in steps."""
    return itertools.count(0, 7)


def test_interrupts_in_exactly_once(bootstrap: str, topic: str) -> None:
    """The same clients continue after each interrupt, and copy each record once."""
    source = new_topic(bootstrap, 1)
    expected = fill(bootstrap, source)
    copied = 0
    with (
        Consumer(reading(bootstrap, source)) as consumer,
        Producer(bootstrap_servers=bootstrap, transactional_id=topic) as producer,
    ):
        producer.init_transactions()
        consumer.subscribe([source])

        def handle(batch: Any) -> None:
            for records in batch.values():
                for record in records:
                    producer.send(topic, record.value)

        def one(count: int) -> bool:
            return count > 0

        exactly_once(consumer, producer, handle, until=one)
        interrupts = 0
        for at in points():
            if not interrupted(at, lambda: exactly_once(consumer, producer, handle, until=one)):
                copied += 1
                if copied > 2:
                    break
            else:
                interrupts += 1
            position = consumer.position(TopicPartition(source, 0))
            if position >= COUNT - 5:
                break
        assert interrupts > 10
        with contextlib.suppress(TimeoutError):
            while consumer.position(TopicPartition(source, 0)) < COUNT:
                exactly_once(consumer, producer, handle, until=one)
    assert read_committed(bootstrap, topic, expected[-1]) == expected


async def cancelled(turns: int, action: Callable[[], Awaitable[object]]) -> bool:
    """Cancel an action after this many turns of the event loop; returns whether it was still running."""
    task = asyncio.ensure_future(action())
    for _ in range(turns):
        await asyncio.sleep(0)
        if task.done():
            break
    was = task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    return was and task.cancelled()


def test_cancellations_in_each_call(bootstrap: str, topic: str) -> None:
    group = GroupMetadata(f"g-{topic}", -1, "")
    offsets = {TopicPartition(topic, 0): 1}

    async def run() -> int:
        async with AsyncProducer(bootstrap_servers=bootstrap, transactional_id=topic) as producer:
            await cancelled(2, producer.init_transactions)
            await producer.init_transactions()

            async def again(turns: int, call: Callable[[], Awaitable[object]]) -> bool:
                if not await cancelled(turns, call):
                    return False
                await call()
                return True

            for turns in itertools.count():
                reached = await again(turns, producer.begin_transaction)
                await producer.send(topic, b"%d" % turns)
                reached |= await again(turns, lambda: producer.send_offsets_to_transaction(offsets, group))
                reached |= await again(turns, producer.commit_transaction)
                await producer.begin_transaction()
                await producer.send(topic, b"aborted")
                reached |= await again(turns, producer.abort_transaction)
                if not reached or turns > 60:
                    return turns
        raise AssertionError

    rounds = asyncio.run(run())
    assert rounds > 3
    assert read_committed(bootstrap, topic, b"%d" % rounds) == [b"%d" % turns for turns in range(rounds + 1)]


def test_cancellations_in_exactly_once(bootstrap: str, topic: str) -> None:
    source = new_topic(bootstrap, 1)
    expected = fill(bootstrap, source)

    async def run() -> int:
        async with (
            AsyncConsumer(reading(bootstrap, source)) as consumer,
            AsyncProducer(bootstrap_servers=bootstrap, transactional_id=topic) as producer,
        ):
            await producer.init_transactions()
            consumer.subscribe([source])

            async def handle(batch: Any) -> None:
                for records in batch.values():
                    for record in records:
                        await producer.send(topic, record.value)

            def copy() -> Awaitable[object]:
                return async_exactly_once(consumer, producer, handle, until=lambda count: count > 0)

            await copy()
            interrupts = 0
            for turns in range(200):
                interrupts += await cancelled(turns, copy)
                if await consumer.position(TopicPartition(source, 0)) >= COUNT - 5:
                    break
            while await consumer.position(TopicPartition(source, 0)) < COUNT:
                await copy()
            return interrupts

    assert asyncio.run(run()) > 5
    assert read_committed(bootstrap, topic, expected[-1]) == expected
