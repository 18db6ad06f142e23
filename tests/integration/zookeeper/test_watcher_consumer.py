"""`WatcherConsumer` on a real ZooKeeper, reading from muster's own broker, whose address the test writes there."""

from __future__ import annotations

import asyncio
import gc
import json
from contextlib import AsyncExitStack, suppress
from typing import Any

import pytest

from muster.errors import ClosedError, CommitFailedError, ConfigError, IllegalStateError, MusterError, WakeupError
from muster.model import ConsumerRecord, OffsetAndMetadata, TopicPartition
from muster.zookeeper.base import znodes
from muster.zookeeper.base.operations import SessionEvent
from muster.zookeeper.consumers.async_watcher_consumer import AsyncWatcherConsumer
from muster.zookeeper.consumers.watcher_consumer import WatcherConsumer
from muster.zookeeper.watchers.asks import RebalanceFailedError
from muster.zookeeper.watchers.states import WatcherState
from tests.support.peers import free_ports
from tests.support.watcher_cluster import PATIENCE_S, Cluster, collect, end_session, polling, until


async def test_one_consumer_reads_all_commits_and_the_next_continues(cluster: Cluster) -> None:
    await cluster.create("alone", 4, records=100)
    async with cluster.consumer("alone-g") as consumer:
        consumer.subscribe(["alone"])
        records = await collect(consumer, 100)
        assert sorted(int(record.value or b"") for record in records) == list(range(100))
        assert consumer.assignment() == {TopicPartition("alone", number) for number in range(4)}
        assert consumer.state is WatcherState.STABLE
        thread = f"{consumer.consumer_id}-0"
        assert cluster.owners("alone-g", "alone") == dict.fromkeys(range(4), thread)
        assert consumer.streams() == {thread: consumer.assignment()}
        await consumer.commit()
        assert [cluster.offset("alone-g", "alone", number) for number in range(4)] == [25] * 4
        partition = TopicPartition("alone", 0)
        assert await consumer.position(partition) == 25
        assert await consumer.committed([partition]) == {partition: OffsetAndMetadata(25)}
        await consumer.commit({partition: 24})
        assert cluster.offset("alone-g", "alone", 0) == 24
        with pytest.raises(CommitFailedError, match="not owned"):
            await consumer.commit({TopicPartition("other", 0): 1})
    assert cluster.owners("alone-g", "alone") == {}
    assert cluster.zookeeper.get_children("/consumers/alone-g/ids") == []
    # The close committed the positions once more: its records are handled.
    await cluster.produce("alone", 4, range(100, 104))
    async with cluster.consumer("alone-g") as consumer:
        consumer.subscribe(["alone"])
        assert sorted(int(record.value or b"") for record in await collect(consumer, 4)) == [100, 101, 102, 103]


async def test_the_group_shares_partitions_and_continues_where_it_was(cluster: Cluster) -> None:
    await cluster.create("shared", 6, records=60)
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(cluster.consumer("shared-g", consumer_id="a"))
        first.subscribe(["shared"])
        async with polling(first) as before:
            await until(lambda: len(before) == 60)
        second = await stack.enter_async_context(cluster.consumer("shared-g", consumer_id="b"))
        second.subscribe({"shared": 2})
        async with polling(first, second) as found:
            await until(lambda: len(first.assignment()) == 2 and len(second.assignment()) == 4)
            assert await asyncio.to_thread(cluster.owners, "shared-g", "shared") == {
                0: "shared-g_a-0",
                1: "shared-g_a-0",
                2: "shared-g_b-0",
                3: "shared-g_b-0",
                4: "shared-g_b-1",
                5: "shared-g_b-1",
            }
            assert {thread: len(parts) for thread, parts in second.streams().items()} == {
                "shared-g_b-0": 2,
                "shared-g_b-1": 2,
            }
            await cluster.produce("shared", 6, range(60, 120))
            await until(lambda: {int(record.value or b"") for record in [*before, *found]} == set(range(120)))
            # Records that the first one had read before it released some of the partitions are not read again by the
            # second one.
            assert not {record.value for record in before} & {record.value for record in found}
        await first.close()
        async with polling(second):
            await until(lambda: len(second.assignment()) == 6)


async def test_two_tasks_may_begin_at_once_and_a_close_ends_what_begins(cluster: Cluster) -> None:
    await cluster.create("begun", 1, records=1)
    consumer = cluster.consumer("begun-g")
    consumer.subscribe("begun")
    try:
        partition = TopicPartition("begun", 0)
        found, committed = await asyncio.gather(collect(consumer, 1), consumer.committed([partition]))
        assert len(found) == 1
        assert committed == {partition: None}
    finally:
        await consumer.close()
    consumer = cluster.consumer("begun-g")
    consumer.subscribe("begun")
    starts = [asyncio.create_task(consumer.start()) for _ in range(2)]
    await asyncio.sleep(0)
    await consumer.close()
    for outcome in await asyncio.gather(*starts, return_exceptions=True):
        assert isinstance(outcome, ClosedError)


async def test_each_of_two_tasks_that_close_waits_until_all_is_committed(cluster: Cluster) -> None:
    await cluster.create("closed-twice", 1, records=3)
    consumer = cluster.consumer("closed-twice-g")
    consumer.subscribe("closed-twice")
    reading = asyncio.create_task(collect(consumer, 3))
    assert len(await reading) == 3
    for closing in asyncio.as_completed([consumer.close(), consumer.close()]):
        await closing
        assert cluster.offset("closed-twice-g", "closed-twice", 0) == 3
        assert cluster.zookeeper.get_children("/consumers/closed-twice-g/ids") == []


async def test_lists_and_new_partitions(cluster: Cluster) -> None:
    await cluster.create("list-a", 1, records=1)
    await cluster.create("other", 1, records=1)
    async with cluster.consumer("list-g") as consumer:
        consumer.subscribe(pattern="list-.*")
        async with polling(consumer) as found:
            await until(lambda: len(found) == 1)
            await cluster.create("list-b", 2, records=4)
            await until(lambda: len(found) == 5)
            assert {record.topic for record in found} == {"list-a", "list-b"}
            assert len(consumer.assignment()) == 3
        data, _ = cluster.zookeeper.get(f"/consumers/list-g/ids/{consumer.consumer_id}")
        assert json.loads(data)["pattern"] == "white_list"


async def test_a_session_that_expires_is_followed_by_another_one(cluster: Cluster) -> None:
    await cluster.create("expiring", 2, records=10)
    async with cluster.consumer("expiring-g") as consumer:
        consumer.subscribe("expiring")
        async with polling(consumer) as found:
            await until(lambda: len(found) == 10)
            path = f"/consumers/expiring-g/ids/{consumer.consumer_id}"
            _, before = await asyncio.to_thread(cluster.zookeeper.get, path)
            await asyncio.to_thread(end_session, consumer)
            await until(lambda: consumer.state is not WatcherState.STABLE)
            await until(lambda: consumer.state is WatcherState.STABLE)
            _, after = await asyncio.to_thread(cluster.zookeeper.get, path)
            assert after.ephemeralOwner not in (0, before.ephemeralOwner)
            await cluster.produce("expiring", 2, range(10, 20))
            await until(lambda: {int(record.value or b"") for record in found} == set(range(20)))


async def test_a_member_that_learns_of_its_end_reads_nothing_until_it_has_claimed_again(cluster: Cluster) -> None:
    await cluster.create("ended", 2)
    async with cluster.consumer("ended-g") as consumer:
        consumer.subscribe("ended")
        async with polling(consumer):
            await until(lambda: len(consumer.assignment()) == 2)
            read: list[set[TopicPartition]] = []
            assert consumer._session is not None
            consumer._session.listen(
                lambda event: read.append(consumer.assignment()) if event is SessionEvent.EXPIRED else None
            )
            await asyncio.to_thread(end_session, consumer)
            await until(lambda: bool(read))
            assert read == [set()]
            await until(lambda: len(consumer.assignment()) == 2)


async def test_a_broker_that_comes_back_at_another_address_is_found(cluster: Cluster) -> None:
    """No member watches brokers, and without a rebalance nothing else would report it."""
    await cluster.create("moved", 1, records=3)
    right = await asyncio.to_thread(lambda: cluster.zookeeper.get("/brokers/ids/0")[0])
    (port,) = free_ports(1)
    wrong = znodes.BrokerRegistration(0, (znodes.BrokerEndpoint("PLAINTEXT", "127.0.0.1", port),), 0, 4).encode()
    await asyncio.to_thread(cluster.zookeeper.set, "/brokers/ids/0", wrong)
    async with cluster.consumer("moved-g") as consumer:
        consumer.subscribe("moved")
        async with polling(consumer) as found:
            await until(lambda: len(consumer.assignment()) == 1)
            assert consumer._member is not None
            rebalances = consumer._member.rebalances
            await asyncio.to_thread(cluster.zookeeper.set, "/brokers/ids/0", right)
            await until(lambda: len(found) == 3)
            assert consumer._member.rebalances == rebalances


async def test_auto_commits_do_not_undo_those_of_the_caller(cluster: Cluster) -> None:
    await cluster.create("midway", 1, records=10)
    async with cluster.consumer("midway-g", auto_commit_interval_ms=1) as consumer:
        consumer.subscribe("midway")
        assert len(await collect(consumer, 10)) == 10
        await consumer.commit({TopicPartition("midway", 0): 4})
        assert consumer._member is not None
        rebalances = consumer._member.rebalances
        await asyncio.to_thread(cluster.announce, "midway", 1)  # which causes a rebalance, and commits
        await until(lambda: consumer._member is not None and consumer._member.rebalances > rebalances)
        await until(lambda: consumer.state is WatcherState.STABLE)
        assert cluster.offset("midway-g", "midway", 0) == 4
        assert [record.offset for record in await collect(consumer, 6)] == [4, 5, 6, 7, 8, 9]


async def test_a_consumer_with_a_defect_says_so_at_each_poll_and_leaves_the_group(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cluster.create("broken", 1, records=1)

    async def fail(*_: Any) -> None:
        raise ZeroDivisionError

    consumer = cluster.consumer("broken-g")
    monkeypatch.setattr(consumer, "_start_fetching", fail)
    consumer.subscribe("broken")
    for _ in range(2):
        with pytest.raises(MusterError, match="ZeroDivisionError"):
            await consumer.poll(PATIENCE_S * 1_000)
    await until(lambda: cluster.zookeeper.get_children("/consumers/broken-g/ids") == [])
    assert cluster.owners("broken-g", "broken") == {}
    await consumer.close()


async def test_when_another_owner_does_not_release_the_poll_says_so_and_the_next_one_tries_again(
    cluster: Cluster,
) -> None:
    await cluster.create("held", 1, records=1)
    path = "/consumers/held-g/owners/held/0"
    await asyncio.to_thread(cluster.zookeeper.create, path, b"stranger-0", ephemeral=True, makepath=True)
    settings = {"rebalance_backoff_ms": 20, "rebalance_max_retries": 2}
    async with cluster.consumer("held-g", **settings) as consumer, asyncio.timeout(PATIENCE_S):
        consumer.subscribe("held")
        with pytest.raises(RebalanceFailedError, match="after 2 retries"):
            await consumer.poll(PATIENCE_S * 1_000)
        assert consumer.assignment() == set()
        await asyncio.to_thread(cluster.zookeeper.delete, path)
        found: list[ConsumerRecord] = []
        while not found:
            with suppress(RebalanceFailedError):
                found = await collect(consumer, 1)
        assert consumer.state is WatcherState.STABLE


async def test_iteration_and_wakeup_and_the_end(cluster: Cluster) -> None:
    await cluster.create("iterated", 2, records=10)
    consumer = cluster.consumer("iterated-g")
    with pytest.raises(IllegalStateError, match="subscribe"):
        await consumer.poll(0)
    consumer.subscribe("iterated")
    with pytest.raises(IllegalStateError, match="once"):
        consumer.subscribe("other")
    seen = 0
    async with consumer, asyncio.timeout(PATIENCE_S):
        async for _ in consumer:
            seen += 1
            if seen == 10:
                break
        await consumer.commit()
        waiting = asyncio.create_task(consumer.poll(PATIENCE_S * 1_000))
        await asyncio.sleep(0)
        consumer.wakeup()
        with pytest.raises(WakeupError):
            await waiting
        rest = asyncio.create_task(anext(consumer))
        await asyncio.sleep(0)
        await consumer.close()
        with pytest.raises(StopAsyncIteration):
            await rest
    assert [cluster.offset("iterated-g", "iterated", number) for number in range(2)] == [5, 5]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"group_id": "a/b"},
        {"group_id": "g", "bootstrap_servers": "localhost:1"},
        {"group_id": "g", "partition_assignment_strategy": "sticky"},
        {"group_id": "g", "partition_assignment_strategy": "range,roundrobin"},
        {"group_id": "g", "consumer_id": "/"},
        {"group_id": "g", "rebalance_max_retry": 1},
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        AsyncWatcherConsumer(settings)


# --- the blocking face -----------------------------------------------------------------------------------------------


def blocking(cluster: Cluster, group: str, **settings: Any) -> WatcherConsumer:
    return WatcherConsumer(
        zookeeper_connect=cluster.connect,
        group_id=group,
        auto_offset_reset="earliest",
        zookeeper_session_timeout_ms=20_000,
        zookeeper_connection_timeout_ms=60_000,
        **settings,
    )


async def test_the_blocking_face_does_the_same(cluster: Cluster) -> None:
    await cluster.create("blocking", 2, records=10)
    partition = TopicPartition("blocking", 0)

    def read() -> None:
        with blocking(cluster, "blocking-g") as consumer:
            consumer.subscribe("blocking")
            seen = [next(consumer) for _ in range(6)]
            assert len(seen) == 6
            assert consumer.assignment() == {partition, TopicPartition("blocking", 1)}
            assert list(consumer.streams()) == [f"{consumer.consumer_id}-0"]
            assert consumer.state is WatcherState.STABLE
            consumer.commit()
            committed = consumer.committed(sorted(consumer.assignment()))
            assert sum(found.offset for found in committed.values() if found is not None) == 6
            consumer.seek(partition, 0)
            assert consumer.position(partition) == 0
            consumer.commit({partition: 5, TopicPartition("blocking", 1): 5})
            consumer.wakeup()
            with pytest.raises(WakeupError):
                consumer.poll(PATIENCE_S * 1_000)
            assert isinstance(consumer.getmany(), dict)
        with pytest.raises(ClosedError):
            consumer.poll(0)
        assert next(consumer, None) is None

    await asyncio.to_thread(read)


async def test_records_that_iteration_did_not_reach_are_not_committed_by_close(cluster: Cluster) -> None:
    await cluster.create("left", 1, records=10)

    def read(count: int) -> list[int]:
        with blocking(cluster, "left-g") as consumer:
            consumer.subscribe("left")
            return [int(next(consumer).value or b"") for _ in range(count)]

    assert await asyncio.to_thread(read, 4) == [0, 1, 2, 3]
    assert cluster.offset("left-g", "left", 0) == 4
    assert await asyncio.to_thread(read, 6) == [4, 5, 6, 7, 8, 9]


async def test_what_an_exception_leaves_behind_is_read_again(cluster: Cluster) -> None:
    await cluster.create("failing", 1, records=4)

    def fail() -> None:
        with blocking(cluster, "failing-g") as consumer:
            consumer.subscribe("failing")
            for record in consumer:
                if record.offset == 2:
                    raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await asyncio.to_thread(fail)
    assert cluster.offset("failing-g", "failing", 0) == 2
    assert cluster.zookeeper.get_children("/consumers/failing-g/ids") == []


async def test_one_that_is_dropped_leaves_without_a_commit(cluster: Cluster) -> None:
    await cluster.create("dropped", 1, records=1)

    def drop() -> None:
        consumer = blocking(cluster, "dropped-g")
        consumer.subscribe("dropped")
        next(consumer)
        del consumer
        gc.collect()

    with pytest.warns(ResourceWarning, match="without close"):
        await asyncio.to_thread(drop)
    await until(lambda: cluster.zookeeper.get_children("/consumers/dropped-g/ids") == [])
    assert cluster.offset("dropped-g", "dropped", 0) is None
