"""The listener of a `WatcherConsumer`, and other features that it shares with the other consumers, on a real
ZooKeeper."""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
from typing import Any

import pytest

from muster import RebalanceListener
from muster.errors import ClosedError, IllegalStateError
from muster.model import TopicPartition
from muster.zookeeper.base import znodes
from muster.zookeeper.consumers.async_watcher_consumer import AsyncWatcherConsumer
from muster.zookeeper.consumers.watcher_consumer import WatcherConsumer
from tests.support.watcher_cluster import PATIENCE_S, Cluster, collect, end_session, polling, until

GROUP = "listeners"
_numbers = itertools.count()


@pytest.fixture
def topic() -> str:
    """A topic that only this test uses: all share one broker."""
    return f"heard-{os.getpid()}-{next(_numbers)}"


class Notes(RebalanceListener):
    """Records its calls, and the contents of the group's znodes at that moment."""

    def __init__(self, cluster: Cluster, topic: str, consumer: AsyncWatcherConsumer) -> None:
        self.reported: list[tuple[str, list[TopicPartition]]] = []
        self.owners: list[dict[int, str]] = []
        self.assignments: list[set[TopicPartition]] = []
        self.cluster, self.topic, self.consumer = cluster, topic, consumer

    async def note(self, what: str, partitions: list[TopicPartition]) -> None:
        self.owners.append(await asyncio.to_thread(self.cluster.owners, GROUP, self.topic))
        self.assignments.append(self.consumer.assignment())
        self.reported.append((what, partitions))

    async def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
        await self.note("assigned", partitions)

    async def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
        await self.note("revoked", partitions)

    async def on_partitions_lost(self, partitions: list[TopicPartition]) -> None:
        await self.note("lost", partitions)


async def test_the_listener_is_notified_before_a_release_after_the_commit_and_before_anything_is_handed_out(
    cluster: Cluster, topic: str
) -> None:
    p0, p1 = (TopicPartition(topic, number) for number in range(2))
    await cluster.create(topic, 2, records=6)
    async with cluster.consumer(GROUP, consumer_id="a") as first:
        notes = Notes(cluster, topic, first)
        first.subscribe(topic, listener=notes)
        assert len(await collect(first, 6)) == 6
        await first.poll(0)  # they are handled
        async with cluster.consumer(GROUP, consumer_id="b") as second:
            second.subscribe(topic)
            async with polling(first, second):
                await until(lambda: len(first.assignment()) == len(second.assignment()) == 1)
                await until(lambda: len(notes.reported) == 3)
        await until(lambda: len(notes.reported) == 5)
    assert notes.reported == [
        ("assigned", [p0, p1]),
        ("revoked", [p0, p1]),
        ("assigned", [p0]),
        ("revoked", [p0]),
        ("assigned", [p0, p1]),
        ("revoked", [p0, p1]),
    ]
    assert notes.owners[1] == dict.fromkeys((0, 1), f"{GROUP}_a-0"), "it is told before it releases"
    assert notes.assignments == [{p0, p1}, set(), {p0}, set(), {p0, p1}, set()]
    assert [cluster.offset(GROUP, topic, number) for number in (0, 1)] == [3, 3]


async def test_a_listener_may_commit_what_goes_and_seek_in_what_comes(cluster: Cluster, topic: str) -> None:
    p0 = TopicPartition(topic, 0)
    await cluster.create(topic, 1, records=10)
    committed: list[int | None] = []

    class Keeper(RebalanceListener):
        async def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
            await consumer.commit()
            committed.append(cluster.offset(GROUP, topic, 0))
            await consumer.commit({p0: 7})

        async def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
            assert await consumer.position(p0) == (0 if not committed else 7)
            assert consumer._reader is not None
            while not consumer._reader._core.has_records:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.05)  # a poll that is not delayed would return them now
            consumer.seek(p0, 2 if not committed else 8)

    async with cluster.consumer(GROUP, enable_auto_commit=False) as consumer:
        consumer.subscribe(topic, listener=Keeper())
        assert [record.offset for record in await collect(consumer, 8)] == list(range(2, 10))
        await asyncio.to_thread(cluster.announce, topic, 1)
        await until(lambda: cluster.offset(GROUP, topic, 0) == 7)
        # The records handed out last are not handled: nothing says that the caller has finished with them.
        assert [record.offset for record in await collect(consumer, 2)] == [8, 9]
    assert committed[0] == 2
    assert cluster.offset(GROUP, topic, 0) == 7


async def test_a_listener_that_raises_is_reported_and_the_rebalance_continues(cluster: Cluster, topic: str) -> None:
    await cluster.create(topic, 1, records=3)

    class Angry(RebalanceListener):
        def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
            raise ZeroDivisionError("assigned")

        async def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
            with pytest.raises(IllegalStateError, match="wait for itself"):
                await consumer.poll()
            raise ZeroDivisionError("revoked")

    consumer = cluster.consumer(GROUP)
    consumer.subscribe(topic, listener=Angry())
    with pytest.raises(ZeroDivisionError, match="assigned"):
        await consumer.poll(PATIENCE_S * 1_000)
    assert len(await collect(consumer, 3)) == 3
    await asyncio.to_thread(cluster.announce, topic, 1)
    reported: list[str] = []
    while len(reported) < 2:
        try:
            await consumer.poll(PATIENCE_S * 1_000)
        except ZeroDivisionError as error:
            reported.append(str(error))
    assert reported == ["revoked", "assigned"]
    await consumer.close()
    assert cluster.zookeeper.get_children(f"/consumers/{GROUP}/ids") == []


async def test_partitions_of_a_session_that_ended_are_lost(cluster: Cluster, topic: str) -> None:
    p0, p1 = (TopicPartition(topic, number) for number in range(2))
    await cluster.create(topic, 2)
    async with cluster.consumer(GROUP) as consumer:
        notes = Notes(cluster, topic, consumer)
        consumer.subscribe(topic, listener=notes)
        async with polling(consumer):
            await until(lambda: len(notes.reported) == 1)
            await asyncio.to_thread(end_session, consumer)
            await until(lambda: len(notes.reported) == 3)
    assert [what for what, _ in notes.reported] == ["assigned", "lost", "assigned", "revoked"]
    assert {tuple(partitions) for _, partitions in notes.reported} == {(p0, p1)}


async def test_a_listener_may_close_the_consumer(cluster: Cluster, topic: str) -> None:
    await cluster.create(topic, 1, records=3)
    closed: list[bool] = []

    class Closing(RebalanceListener):
        async def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
            await consumer.close()
            closed.append(True)

    consumer = cluster.consumer(GROUP)
    consumer.subscribe(topic, listener=Closing())
    with pytest.raises(ClosedError):
        await consumer.poll(PATIENCE_S * 1_000)
    await until(lambda: closed == [True])
    assert cluster.zookeeper.get_children(f"/consumers/{GROUP}/ids") == []


@pytest.mark.parametrize("closes", ["close", "the listener"])
async def test_the_listener_of_a_blocking_consumer_has_a_thread_and_may_call_the_consumer(
    cluster: Cluster, topic: str, closes: str
) -> None:
    p0 = TopicPartition(topic, 0)
    await cluster.create(topic, 1, records=5)
    threads: set[str] = set()
    positions: list[int] = []
    done = threading.Event()

    class Keeper(RebalanceListener):
        def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
            threads.add(threading.current_thread().name)
            consumer.seek(p0, 3)
            positions.append(consumer.position(p0))

        def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
            consumer.commit({p0: 4})
            if closes == "the listener":
                consumer.close()
            done.set()

    consumer = WatcherConsumer(
        zookeeper_connect=cluster.connect, group_id=GROUP, auto_offset_reset="earliest", enable_auto_commit=False
    )

    def read() -> None:
        consumer.subscribe(topic, listener=Keeper())
        assert next(consumer).offset == 3
        if closes == "close":
            consumer.close()
        else:
            cluster.announce(topic, 1)
            assert done.wait(PATIENCE_S)
            consumer.close()

    await asyncio.to_thread(read)
    assert done.is_set()
    assert threads == {"muster-listener"}
    assert positions == [3]
    assert cluster.offset(GROUP, topic, 0) == 4
    assert cluster.zookeeper.get_children(f"/consumers/{GROUP}/ids") == []


async def test_a_listener_of_coroutines_is_none_for_a_blocking_consumer(cluster: Cluster, topic: str) -> None:
    await cluster.create(topic, 1)

    class Async(RebalanceListener):
        async def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None: ...

    def read() -> None:
        with WatcherConsumer(zookeeper_connect=cluster.connect, group_id=GROUP) as consumer:
            consumer.subscribe(topic, listener=Async())
            with pytest.raises(IllegalStateError, match="plain functions"):
                consumer.poll(PATIENCE_S * 1_000)

    await asyncio.to_thread(read)


async def test_a_poll_that_is_cancelled_loses_nothing(cluster: Cluster, topic: str) -> None:
    await cluster.create(topic, 2)
    async with cluster.consumer(GROUP) as consumer:
        consumer.subscribe(topic)
        found: list[int] = []

        async def poll() -> None:
            for records in (await consumer.poll(PATIENCE_S * 1_000)).values():
                found.extend(int(record.value or b"") for record in records)

        produced = asyncio.create_task(cluster.produce(topic, 2, range(200)))
        for turn in range(2_000):
            task = asyncio.create_task(poll())
            for _ in range(turn % 20):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            if produced.done():
                break
        await produced
        async with asyncio.timeout(PATIENCE_S):
            while len(found) < 200:
                await poll()
        assert sorted(found) == list(range(200))


async def test_pause_resume_seek_and_tables(cluster: Cluster, topic: str) -> None:
    p0, p1 = (TopicPartition(topic, number) for number in range(2))
    await cluster.create(topic, 2, records=10)
    async with cluster.consumer(GROUP) as consumer:
        consumer.subscribe(topic)
        with pytest.raises(IllegalStateError, match="not assigned"):
            consumer.pause([p0])
        assert consumer.paused() == set()
        assert len(await collect(consumer, 10)) == 10
        consumer.pause([p0])
        assert consumer.paused() == {p0}
        consumer.seek_to_beginning()
        assert {record.partition for record in await collect(consumer, 5)} == {1}
        consumer.resume([p0])
        assert [record.offset for record in await collect(consumer, 5)] == list(range(5))
        consumer.seek_to_end([p1])
        assert await consumer.position(p1) == 5
        consumer.seek(p0, 2)
        rows: list[Any] = []
        async with asyncio.timeout(PATIENCE_S):
            while not rows:
                for partition, table in (await consumer.poll_arrow(columns=["offset", "value"])).items():
                    rows += [(partition, *row.values()) for row in table.to_pylist()]
        assert rows == [(p0, offset, str(2 * offset).encode()) for offset in range(2, 5)]
        # As with every consumer, a rebalance ends it.
        consumer.pause([p0])
        await asyncio.to_thread(cluster.announce, topic, 2)
        async with polling(consumer):
            await until(lambda: consumer.paused() == set() and len(consumer.assignment()) == 2)

    def read() -> list[int]:
        with WatcherConsumer(zookeeper_connect=cluster.connect, group_id=GROUP) as blocking:
            blocking.subscribe(topic)
            while len(blocking.assignment()) < 2:
                blocking.poll(100)
            blocking.seek_to_beginning([p0])
            blocking.seek_to_end([p1])
            blocking.pause([p1])
            assert blocking.paused() == {p1}
            blocking.resume([p1])
            tables: dict[TopicPartition, Any] = {}
            while not tables:
                tables = blocking.poll_arrow(1_000)
            return list(tables[p0].column("offset").to_pylist())

    assert await asyncio.to_thread(read) == list(range(5))
    assert znodes.read_offset("/", cluster.zookeeper.get(f"/consumers/{GROUP}/offsets/{topic}/0")[0]) == 5
