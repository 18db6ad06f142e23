"""An interrupt (Ctrl-C) between any two instructions of a blocking `WatcherConsumer`: nothing is lost or gets stuck."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from muster.client.consumer import blocking
from muster.client.net import loop
from muster.errors import AdminError, ClosedError
from muster.model import TopicPartition
from muster.zookeeper.consumers import blocking_reader
from muster.zookeeper.consumers.watcher_consumer import WatcherConsumer
from tests.support.interrupts import InterruptAt
from tests.support.watcher_cluster import PATIENCE_S, Cluster, until

PARTITION = TopicPartition("interrupted", 0)
MANY = 6_000


@pytest.fixture
async def numbers(cluster: Cluster) -> Cluster:
    """A cluster with a topic of numbers: all tests here share the broker, each has its own ZooKeeper chroot."""
    with suppress(AdminError):  # the tests before have created it
        await cluster.create(PARTITION.topic, 1)
    await cluster.produce(PARTITION.topic, 1, range(MANY))
    await asyncio.to_thread(cluster.announce, PARTITION.topic, 1)
    return cluster


def consumer(cluster: Cluster, group: str) -> WatcherConsumer:
    found = WatcherConsumer(
        zookeeper_connect=cluster.connect,
        group_id=group,
        auto_offset_reset="earliest",
        zookeeper_connection_timeout_ms=60_000,
        zookeeper_session_timeout_ms=30_000,
        # A close that was interrupted may leave the end of its session to a thread for some milliseconds.
        rebalance_backoff_ms=20,
        rebalance_max_retries=2_000,
        max_poll_records=3,
    )
    found.subscribe(PARTITION.topic)
    return found


def poll(reader: WatcherConsumer) -> list[int]:
    found: list[int] = []
    while not found:
        found = [r.offset for batch in reader.poll(PATIENCE_S * 1_000, max_records=2).values() for r in batch]
    return found


def iterate(reader: WatcherConsumer) -> list[int]:
    return [next(reader).offset]


@pytest.mark.parametrize("read", [poll, iterate])
async def test_reading(numbers: Cluster, read: Callable[[WatcherConsumer], list[int]]) -> None:
    await asyncio.to_thread(read_interrupted, consumer(numbers, f"reading-{read.__name__}"), read)


def read_interrupted(reader: WatcherConsumer, read: Callable[[WatcherConsumer], list[int]]) -> None:
    seen = read(reader)
    calls = number = 0
    while calls < 2:
        number += 1
        interrupt = InterruptAt(number, blocking_reader, blocking, loop)
        try:
            seen += interrupt.run(lambda: read(reader))
        except KeyboardInterrupt:
            found = read(reader)
            if not interrupt.possible and found[0] > len(seen):
                seen += range(len(seen), found[0])  # of one call: the caller was about to get them
            seen += found
        assert seen == list(range(len(seen))), interrupt.where
        if not interrupt.happened:
            calls, number = calls + 1, 0
    assert len(seen) < MANY
    reader.close()


CALLS: dict[str, Callable[[WatcherConsumer], Any]] = {
    "assignment": lambda reader: reader.assignment(),
    "commit": lambda reader: reader.commit(),
    "commit of offsets": lambda reader: reader.commit({PARTITION: 2}),
    "committed": lambda reader: reader.committed([PARTITION]),
    "pause": lambda reader: reader.pause([PARTITION]),
    "position": lambda reader: reader.position(PARTITION),
    "seek": lambda reader: reader.seek(PARTITION, 5),
    "wakeup": lambda reader: reader.wakeup(),
}


async def test_every_other_call(numbers: Cluster) -> None:
    """After each interrupt, repeating the call works, and the consumer can be closed."""

    def call_all() -> None:
        reader = consumer(numbers, "calling")
        poll(reader)
        for name, call in CALLS.items():
            number, happened = -2, True
            while happened:
                number += 3  # their code paths overlap, so that one or another stops at each place
                interrupt = InterruptAt(number, blocking_reader, blocking, loop)
                with suppress(KeyboardInterrupt):
                    interrupt.run(partial(call, reader))
                happened = interrupt.happened
            call(reader)
            assert reader.assignment() == {PARTITION}, name
        assert reader.paused() == {PARTITION}
        reader.close()

    await asyncio.to_thread(call_all)
    assert numbers.offset("calling", PARTITION.topic, 0) is not None


@pytest.mark.parametrize("which", ["the first call", "close"])
async def test_the_first_call_and_the_last(numbers: Cluster, which: str) -> None:
    """A session is begun or ended meanwhile: none is left open."""

    def interrupted(number: int) -> InterruptAt:
        reader = consumer(numbers, f"ends-{which.replace(' ', '-')}")
        interrupt = InterruptAt(number, blocking_reader, blocking, loop)
        if which == "close":
            poll(reader)
            with suppress(KeyboardInterrupt):
                interrupt.run(reader.close)
        else:
            with suppress(KeyboardInterrupt):
                interrupt.run(reader.start)
            poll(reader)
        reader.close()
        with pytest.raises(ClosedError):
            reader.poll(10)
        return interrupt

    number = 1
    while (await asyncio.to_thread(interrupted, number)).happened:
        number += 11  # each has its own session, which takes some time
    ids = f"/consumers/ends-{which.replace(' ', '-')}/ids"
    await until(lambda: numbers.zookeeper.get_children(ids) == [])  # a thread may be ending the last session
