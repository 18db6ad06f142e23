"""Only records that the caller was handed and has finished with are committed; those that nobody got are handed out
again."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress

import pytest

from muster import AsyncConsumer, Consumer
from muster.client.consumer.listener import RebalanceListener
from muster.errors import ClosedError
from muster.model import TopicPartition
from tests.support.numbered_records import World, first

# --- how the consumer is left ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit, GeneratorExit])
def test_leaving_by_an_exception_commits_nothing_that_was_not_handled(world: World, error: type[BaseException]) -> None:
    with suppress(error), Consumer(**world.settings) as consumer:
        consumer.subscribe([world.topic])
        assert len(first(consumer, max_records=10)) == 10
        assert len(first(consumer, max_records=7)) == 7
        raise error
    assert world.committed() == [10]
    assert world.members() == 0


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit, GeneratorExit])
def test_leaving_iteration_by_an_exception_does_not_commit_the_last_record(
    world: World, error: type[BaseException]
) -> None:
    with suppress(error), Consumer(**world.settings) as consumer:
        consumer.subscribe([world.topic])
        for record in consumer:
            if record.offset == 9:
                raise error
    assert world.committed() == [9]
    assert world.members() == 0


def test_leaving_properly_commits_what_was_handed_out_and_nothing_that_waits(world: World) -> None:
    with Consumer(**world.settings) as consumer:
        consumer.subscribe([world.topic])
        for record in consumer:
            if record.offset == 9:
                break
        assert consumer.position(world.places[0]) == 10
    assert world.committed() == [10]
    with Consumer(**world.settings) as consumer:
        consumer.subscribe([world.topic])
        assert first(consumer, max_records=5)[0].offset == 10
    assert world.committed() == [15]


async def test_the_same_for_asyncio(world: World) -> None:
    with suppress(ValueError):
        async with AsyncConsumer(**world.settings) as consumer:
            consumer.subscribe([world.topic])
            async for record in consumer:
                if record.offset == 9:
                    raise ValueError
    assert await asyncio.to_thread(world.committed) == [9]
    async with AsyncConsumer(**world.settings) as consumer:
        consumer.subscribe([world.topic])
        async for record in consumer:
            if record.offset == 19:
                break
    assert await asyncio.to_thread(world.committed) == [20]


class Committing(RebalanceListener):
    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer

    def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
        self._consumer.commit()


def reads_tables(consumer: Consumer) -> None:
    while not consumer.poll_arrow(1_000):
        pass


def asks(consumer: Consumer) -> None:
    [place] = consumer.assignment()
    for call in (consumer.position, consumer.current_lag):
        call(place)
    for call_of_all in (consumer.pause, consumer.resume, consumer.committed, consumer.end_offsets):
        call_of_all([place])


@pytest.mark.parametrize(
    ("does", "committed"),
    [(lambda _: None, 10), (asks, 10), (lambda consumer: consumer.commit(), 20), (reads_tables, 20)],
    ids=["nothing", "asks", "commits", "reads tables"],
)
def test_what_says_that_the_last_records_are_handled(
    world: World, does: Callable[[Consumer], None], committed: int
) -> None:
    """A commit and the next poll mark them as handled; other calls do not, nor does a commit in the listener while the
    consumer closes."""
    with suppress(ValueError), Consumer(**world.settings) as consumer:
        consumer.subscribe([world.topic], listener=Committing(consumer))
        first(consumer, max_records=10)
        first(consumer, max_records=10)
        does(consumer)
        raise ValueError
    assert world.committed() == [committed]


def test_a_commit_of_offsets_marks_the_records_before_them(world: World) -> None:
    with suppress(ValueError), Consumer(**world.settings) as consumer:
        consumer.subscribe([world.topic])
        first(consumer, max_records=10)
        first(consumer, max_records=10)
        consumer.commit({world.places[0]: 15})
        raise ValueError
    assert world.committed() == [15]
    with suppress(ValueError), Consumer(**world.settings) as consumer:
        consumer.subscribe([world.topic])
        while not consumer.poll_arrow(1_000):
            pass
        consumer.commit({world.places[0]: 18})
        raise ValueError
    assert world.committed() == [18]


def test_a_commit_that_is_refused_says_nothing_of_the_kind(world: World) -> None:
    with suppress(ValueError), Consumer(**world.settings) as consumer:
        consumer.subscribe([world.topic])
        assert len(first(consumer, max_records=10)) == 10
        consumer.commit({world.places[0]: 10, TopicPartition("elsewhere", 0): -1})
    assert world.committed() == [0]


def test_a_listener_that_raises_does_not_keep_the_consumer_in_its_group(world: World) -> None:
    class Raises(RebalanceListener):
        def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
            raise ValueError("mine")

    consumer = Consumer(**world.settings)
    consumer.subscribe([world.topic], listener=Raises())
    first(consumer)
    with pytest.raises(ValueError, match="mine"):
        consumer.close()
    assert world.members() == 0


def test_another_thread_that_closes_cannot_say_that_records_are_handled(world: World) -> None:
    consumer = Consumer(**world.settings)
    consumer.subscribe([world.topic])
    first(consumer, max_records=10)
    first(consumer, max_records=10)
    thread = threading.Thread(target=consumer.close)
    thread.start()
    thread.join(60)
    assert world.committed() == [10]
    with pytest.raises(ClosedError):
        consumer.poll(10)
    assert list(consumer) == []


@pytest.mark.parametrize(
    ("ending", "committed"), [("returns", 20), ("raises", 10), ("cancelled", 10), ("still at work", 10)]
)
async def test_another_task_that_closes_looks_how_the_first_has_fared(
    world: World, ending: str, committed: int
) -> None:
    consumer = AsyncConsumer(**world.settings)
    consumer.subscribe([world.topic])
    at_work = asyncio.Event()

    async def read() -> None:
        for _ in range(2):
            while not await consumer.poll(1_000, max_records=10):
                pass
        at_work.set()
        if ending == "raises":
            raise ValueError
        if ending != "returns":
            await asyncio.sleep(600)

    reader = asyncio.create_task(read())
    await at_work.wait()
    if ending == "cancelled":
        reader.cancel()
    if ending != "still at work":
        await asyncio.wait([reader])
    await consumer.close()
    reader.cancel()
    with suppress(ValueError, asyncio.CancelledError):
        await reader
    assert await asyncio.to_thread(world.committed) == [committed]


# --- interrupts ------------------------------------------------------------------------------------------------------

INTERRUPTED = """
import os, random, signal, sys, threading, time
from muster import Consumer

bootstrap, group, topic = sys.argv[1:]
seen, interrupts, polling, at_work = [], 0, False, True


def on_signal(number, frame):
    if polling:  # in the consumer's code, not in the lines around it
        raise KeyboardInterrupt


signal.signal(signal.SIGINT, on_signal)  # it may be inherited as ignored


def interrupt():
    while at_work:
        time.sleep(random.random() * 0.004)
        os.kill(os.getpid(), signal.SIGINT)


with Consumer(bootstrap_servers=bootstrap, group_id=group, auto_offset_reset="earliest") as consumer:
    consumer.subscribe([topic])
    thread = threading.Thread(target=interrupt)
    thread.start()
    while len(seen) < 300 or interrupts < 100:
        batches = {}
        try:
            polling = True
            batches = consumer.poll(20, max_records=1)
            polling = False
        except KeyboardInterrupt:
            polling = False
            interrupts += 1
        for batch in batches.values():
            seen += [record.offset for record in batch]
    at_work = False
    thread.join()
assert seen == list(range(300)), seen
print("fine")
"""


def test_signals_during_polls_lose_nothing(bootstrap: str) -> None:
    world = World(bootstrap, 300)
    command = [sys.executable, "-c", INTERRUPTED, bootstrap, world.group, world.topic]
    with world.admin:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
        assert ended.stdout == "fine\n", ended.stderr
        assert world.committed() == [300]
