"""An interrupt between any two instructions of the blocking face: nothing lost, nothing twice, no hang."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
import uuid
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from muster import Admin, AsyncConsumer, Consumer, NewTopic, Producer, RebalanceListener
from muster.client.consumer import consumer as consumer_face
from muster.client.consumer import handout
from muster.client.net import loop
from muster.client.producer import outbox
from muster.client.producer import producer as producer_module
from muster.errors import ClosedError
from muster.model import OffsetAndMetadata, TopicPartition
from tests.support.brokers import beside
from tests.support.interrupts import InterruptAt

pytestmark = pytest.mark.slow

MANY = 6_000
ZERO = TopicPartition("numbers", 0)


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with beside(tmp_path_factory.mktemp("broker") / "data") as address:
        with Admin(bootstrap_servers=address) as admin:
            admin.create_topics([NewTopic(ZERO.topic, 1)])
        with Producer(bootstrap_servers=address, batch_size=1, linger_ms=0) as producer:
            for number in range(MANY):
                producer.send(ZERO.topic, b"%d" % number, partition=0)
        yield address


class Reader:
    """A consumer, and a record of what it has handed out. A commit of more than that fails the test."""

    def __init__(self, bootstrap: str, group: str, **settings: Any) -> None:
        self.consumer = Consumer(
            bootstrap_servers=bootstrap,
            group_id=group,
            auto_offset_reset="earliest",
            auto_commit_interval_ms=0,
            fetch_max_wait_ms=20,
            **settings,
        )
        self.consumer.assign([ZERO])
        self.seen: list[int] = []
        self.commits: list[int] = []
        self.wrong: list[str] = []
        commits = self.consumer._consumer._core.group.commits
        real = commits.commit

        def commit(offsets: dict[TopicPartition, OffsetAndMetadata], *arguments: Any, **named: Any) -> None:
            self.commits += [offset.offset for offset in offsets.values()]
            if self.commits and self.commits[-1] > len(self.seen):
                self.wrong.append(f"{self.commits[-1]} committed where {len(self.seen)} were handed out")
            real(offsets, *arguments, **named)

        commits.commit = commit  # type: ignore[method-assign, assignment]

    def poll(self) -> list[int]:
        return [r.offset for batch in self.consumer.poll(20_000, max_records=2).values() for r in batch]

    def iterate(self) -> list[int]:
        return [next(self.consumer).offset]

    def tables(self) -> list[int]:
        tables = self.consumer.poll_arrow(20_000, columns=["offset"])
        return [int(str(offset)) for table in tables.values() for offset in table.column("offset").to_pylist()]


READING: dict[str, Callable[[Reader], list[int]]] = {
    "poll": Reader.poll,
    "iteration": Reader.iterate,
    "tables": Reader.tables,
}


@pytest.mark.parametrize(
    ("how", "then"), [("poll", "poll"), ("poll", "iteration"), ("iteration", "iteration"), ("tables", "tables")]
)
def test_reading(bootstrap: str, how: str, then: str) -> None:
    """However the call is interrupted, the next one continues where the caller is."""
    read, read_on = READING[how], READING[then]
    small = {"max_partition_fetch_bytes": 60, "fetch_max_bytes": 60} if how == "tables" else {"max_poll_records": 3}
    reader = Reader(bootstrap, f"reading-{how}-{then}", **small)
    reader.seen += read(reader)
    calls = number = 0
    while calls < 6:  # in iteration, every third call goes to the loop's thread
        number += 1
        interrupt = InterruptAt(number, consumer_face, loop, handout)
        try:
            reader.seen += interrupt.run(lambda: read(reader))
        except KeyboardInterrupt:
            found = read_on(reader)
            if not interrupt.possible and found[0] > len(reader.seen):
                reader.seen += range(len(reader.seen), found[0])  # of one call: the caller was about to get them
                reader.wrong.clear()
            reader.seen += found
            assert reader.seen == list(range(len(reader.seen))), interrupt.where
        if not interrupt.happened:
            calls, number = calls + 1, 0
            assert reader.seen == list(range(len(reader.seen)))
        assert not reader.wrong, f"{reader.wrong} {interrupt.where}"
    assert reader.commits
    assert len(reader.seen) < MANY
    reader.consumer.close()


def test_commit_callbacks_are_called_once_and_in_order(bootstrap: str) -> None:
    """If the interrupt comes before a callback has begun, the next call makes it."""
    reader = Reader(bootstrap, "callbacks")
    consumer, called = reader.consumer, []
    reader.seen += reader.poll()
    asked = number = 0
    while True:
        number += 1
        for _ in range(2):
            consumer.commit_async({ZERO: 1}, partial(lambda n, *_: called.append(n), asked))
            asked += 1
        interrupt = InterruptAt(number, consumer_face, loop)
        with suppress(KeyboardInterrupt):
            interrupt.run(lambda: consumer.commit({ZERO: 1}))
        consumer.commit({ZERO: 1})
        assert called == list(range(asked)), interrupt.where
        if not interrupt.happened:
            break
    consumer.close()


def ended(consumer: Consumer) -> bool:
    """Whether its thread is gone."""
    thread = consumer._thread._thread
    return thread is None or not thread.is_alive()


def leave(consumer: Consumer) -> None:
    """Does what `with` does."""
    consumer.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)


def test_the_first_call() -> None:
    number = 0
    while True:
        number += 1
        consumer = Consumer(bootstrap_servers="127.0.0.1:1")
        interrupt = InterruptAt(number, consumer_face, loop)
        with suppress(KeyboardInterrupt):
            interrupt.run(consumer.start)
        assert consumer.assignment() == set(), interrupt.where
        consumer.close()
        assert ended(consumer), interrupt.where
        if not interrupt.happened:
            break


def join(thread: threading.Thread) -> None:
    """Wait for the end of a thread; one whose start was interrupted just before it runs cannot be joined yet."""
    for _ in range(10_000):
        with suppress(RuntimeError):
            thread.join(10)
            return
        time.sleep(0.001)


def test_a_producer_whose_start_was_interrupted_goes_when_it_is_dropped() -> None:
    """The call was the `__enter__` of its `with`: nobody can close it."""
    before, open_before = set(threading.enumerate()), set(outbox._open)
    number, interrupt = 0, InterruptAt(0, producer_module, outbox, loop)
    while number == 0 or interrupt.happened:
        number += 1
        interrupt = InterruptAt(number, producer_module, outbox, loop)
        producer = Producer(bootstrap_servers="127.0.0.1:1")
        with suppress(KeyboardInterrupt):
            interrupt.run(producer.start)
        # At the end of its `with`, where the interpreter does not check for signals.
        if producer._outbox._lock.locked():
            assert not interrupt.possible, interrupt.where
            producer._outbox._lock.release()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            del producer
        for thread in set(threading.enumerate()) - before:
            if thread.name == "muster-producer":  # not one that a broker of this process starts meanwhile
                join(thread)
                assert not thread.is_alive(), interrupt.where
        assert outbox._open <= open_before, interrupt.where


def test_closing(bootstrap: str) -> None:
    """What was handed out is committed or not, depending on how far the call got; closing again completes it."""
    before = set(threading.enumerate())  # left by other tests, in whatever order they run
    number = 0
    while True:
        number += 1
        reader = Reader(bootstrap, f"closing-{number}")
        reader.seen += reader.poll()
        interrupt = InterruptAt(number, consumer_face, loop)
        with suppress(KeyboardInterrupt):
            interrupt.run(reader.consumer.close)
        reader.consumer.close()
        assert ended(reader.consumer), interrupt.where
        with pytest.raises(ClosedError):
            reader.consumer.poll(10)
        assert not reader.wrong, interrupt.where
        if not interrupt.happened:
            break
    assert not [one for one in set(threading.enumerate()) - before if one.name == "muster-consumer"]


def test_leaving_by_an_interrupt_whose_farewell_is_interrupted(bootstrap: str) -> None:
    number = 0
    while True:
        number += 1
        reader = Reader(bootstrap, f"leaving-{number}")
        reader.seen += reader.poll()
        interrupt = InterruptAt(number, consumer_face, loop)
        with suppress(KeyboardInterrupt):
            interrupt.run(partial(leave, reader.consumer))
        leave(reader.consumer)
        assert ended(reader.consumer), interrupt.where
        assert not any(reader.commits), interrupt.where
        if not interrupt.happened:
            break


def members(bootstrap: str, group: str) -> int:
    with Admin(bootstrap_servers=bootstrap) as admin:
        found: Any = admin.describe_consumer_groups([group])[group]
    return len(found.members)


def member(face: Any, bootstrap: str, group: str) -> Any:
    settings = {"group_id": group, "auto_offset_reset": "earliest", "fetch_max_wait_ms": 20}
    return face(bootstrap_servers=bootstrap, **settings)


@pytest.mark.parametrize("way", [lambda consumer: consumer.close(), leave], ids=["close", "with"])
def test_ctrl_c_while_close_runs_the_listener_leaves_the_group(bootstrap: str, way: Callable[[Consumer], None]) -> None:
    class Listener(RebalanceListener):
        def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
            signal.raise_signal(signal.SIGINT)

    group = f"ctrl-c-{uuid.uuid4().hex[:8]}"
    consumer = member(Consumer, bootstrap, group)
    consumer.subscribe([ZERO.topic], listener=Listener())
    while not consumer.poll(20_000):
        pass
    assert members(bootstrap, group) == 1
    with pytest.raises(KeyboardInterrupt):
        way(consumer)
    assert members(bootstrap, group) == 0
    consumer.close()
    assert ended(consumer)


@pytest.mark.any_loop
@pytest.mark.parametrize("times", [1, 2])
async def test_a_close_that_is_cancelled_in_the_listener_leaves_the_group(bootstrap: str, times: int) -> None:
    """Cancelled again, it ends at once, whether or not the coordinator has answered."""
    reached = asyncio.Event()

    class Listener(RebalanceListener):
        async def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
            reached.set()
            await asyncio.Event().wait()  # never

    group = f"cancelled-{uuid.uuid4().hex[:8]}"
    consumer = member(AsyncConsumer, bootstrap, group)
    consumer.subscribe([ZERO.topic], listener=Listener())
    while not await consumer.poll(20_000):
        pass
    assert await asyncio.to_thread(members, bootstrap, group) == 1
    closing = asyncio.create_task(consumer.close())
    await reached.wait()
    for _ in range(times):
        closing.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await closing
    await consumer.close()
    if times == 1:
        assert await asyncio.to_thread(members, bootstrap, group) == 0
    with pytest.raises(ClosedError):
        await consumer.poll(10)
