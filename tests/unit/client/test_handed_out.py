"""Only what the caller was handed, and has come back from, is committed; what nobody has got is handed out again."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from contextlib import suppress

import pytest

from muster import AsyncConsumer, Consumer
from muster.client.consumer.listener import RebalanceListener
from muster.errors import ClosedError
from muster.model import TopicPartition
from tests.support.numbered_records import World, first

ZERO = TopicPartition("t", 0)


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


def test_leaving_in_good_order_commits_what_was_handed_out_and_nothing_that_waits(world: World) -> None:
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


def test_a_listener_that_commits_does_not_count_it_either(world: World) -> None:
    with suppress(ValueError), Consumer(**world.settings) as consumer:

        class Listener(RebalanceListener):
            def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
                consumer.commit()

        consumer.subscribe([world.topic], listener=Listener())
        first(consumer, max_records=10)
        first(consumer, max_records=10)
        raise ValueError
    assert world.committed() == [10]


def test_a_commit_says_that_what_was_handed_out_is_handled(world: World) -> None:
    with suppress(ValueError), Consumer(**world.settings) as consumer:
        consumer.subscribe([world.topic])
        first(consumer, max_records=10)
        consumer.commit()
        raise ValueError
    assert world.committed() == [10]


def test_a_commit_of_offsets_says_it_of_what_stands_in_front_of_them(world: World) -> None:
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


def test_other_calls_say_nothing_of_the_kind(world: World) -> None:
    with suppress(ValueError), Consumer(**world.settings) as consumer:
        consumer.subscribe([world.topic])
        first(consumer, max_records=10)
        first(consumer, max_records=10)
        assert consumer.position(world.places[0]) == 20
        consumer.pause(world.places)
        consumer.resume(world.places)
        consumer.committed(world.places)
        consumer.current_lag(world.places[0])
        consumer.end_offsets(world.places)
        raise ValueError
    assert world.committed() == [10]


def test_tables_that_were_not_handled_are_not_committed(world: World) -> None:
    with suppress(ValueError), Consumer(**world.settings) as consumer:
        consumer.subscribe([world.topic])
        first(consumer, max_records=10)
        while not consumer.poll_arrow(1_000):
            pass
        raise ValueError
    assert world.committed() == [10]


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
