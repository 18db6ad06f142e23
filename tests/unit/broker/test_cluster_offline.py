"""A partition that its broker in a cluster cannot open: it has no leader, for all brokers, until a start can open
it."""

from __future__ import annotations

from pathlib import Path

import pytest

from muster.broker.broker import Broker
from muster.errors import ErrorCode
from muster.protocol import messages as m
from muster.zookeeper.base.operations import GetData
from muster.zookeeper.base.znodes import (
    BrokerRegistration,
    LeaderAndIsr,
    broker_path,
    partition_state_path,
    read_broker,
    read_partition_state,
)
from tests.support.cluster_asks import create, delete, leaders, produce, stored
from tests.support.held_disk import Asked
from tests.support.sim_cluster import SimCluster

FIRST = f"{0:020d}.log"
NONE = ErrorCode.LEADER_NOT_AVAILABLE, -1, [1], [1]
"""Error, leader, replicas and the offline ones of those."""


async def advertised(broker: Broker, topic: str) -> dict[int, tuple[int, int, list[int], list[int]]]:
    answer = await Asked(broker, m.MetadataRequest([m.MetadataRequestTopic(name=topic)]), 9).answered()
    return {
        each.partition_index: (each.error_code, each.leader_id, each.replica_nodes, each.offline_replicas)
        for each in answer.topics[0].partitions
    }


async def produced(broker: Broker, topic: str, index: int) -> int:
    answer = await produce(broker, topic, index).answered()
    error: int = answer.responses[0].partition_responses[0].error_code
    return error


def state(cluster: SimCluster, topic: str, index: int) -> LeaderAndIsr:
    data, _ = cluster.do(GetData(partition_state_path(topic, index)))
    found = read_partition_state(topic, index, data)
    assert isinstance(found, LeaderAndIsr)
    return found


def said_offline(cluster: SimCluster, number: int) -> int:
    """How many partitions a broker reports in ZooKeeper as ones that it cannot open."""
    data, _ = cluster.do(GetData(broker_path(number)))
    found = read_broker(str(number), data)
    assert isinstance(found, BrokerRegistration)
    return len(found.offline)


async def until_led(cluster: SimCluster, broker: Broker, topic: str, wanted: list[int]) -> None:
    def is_so() -> bool:
        return [leader for leader, _ in leaders(broker, topic).values()] == wanted

    await cluster.until(is_so)


async def write(cluster: SimCluster) -> None:
    """A topic of three partitions, of which the first and the last are on broker 1, with a record in each."""
    async with cluster.pair() as (one, two):
        await create(cluster, one, "t", 3)
        for broker, index in ((one, 0), (two, 1), (one, 2)):
            await until_led(cluster, broker, "t", [1, 2, 1])
            assert await stored(broker, "t", index) == 0


def put_a_folder_in_place(tmp_path: Path) -> Path:
    path = next(tmp_path.glob(f"**/broker1/**/t-0/{FIRST}"))
    path.rename(path.with_suffix(".kept"))
    path.mkdir()
    return path


def put_notes_in_place(tmp_path: Path) -> None:
    folder = next(tmp_path.glob("**/broker1/**/before-0")).with_name("t-0")
    folder.mkdir()
    (folder / "notes.txt").write_text("of another program")


@pytest.mark.parametrize("controller", [1, 2])
async def test_no_broker_names_its_leader_until_it_can_be_opened(
    cluster: SimCluster, tmp_path: Path, controller: int
) -> None:
    await write(cluster)
    path = put_a_folder_in_place(tmp_path)
    first, second = (controller, 3 - controller)
    async with cluster.running(first) as a, cluster.running(second) as b:
        assert a.cluster.controller_id == controller
        one, two = (a, b) if controller == 1 else (b, a)
        for broker in (one, two):
            await until_led(cluster, broker, "t", [-1, 2, 1])
            assert await advertised(broker, "t") == {0: NONE, 1: (0, 2, [2], []), 2: (0, 1, [1], [])}
        await cluster.until(lambda: state(cluster, "t", 0).leader == -1)
        epoch = state(cluster, "t", 0).leader_epoch
        await cluster.until(lambda: leaders(one, "t")[0] == leaders(two, "t")[0] == (-1, epoch))
        assert await produced(one, "t", 0) == ErrorCode.KAFKA_STORAGE_ERROR
        assert await produced(two, "t", 0) == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert (await stored(one, "t", 2), await stored(two, "t", 1)) == (1, 1)
    path.rmdir()
    path.with_suffix(".kept").rename(path)
    async with cluster.running(2) as two, cluster.running(1) as one:
        for broker in (one, two):
            await until_led(cluster, broker, "t", [1, 2, 1])
        assert leaders(two, "t")[0][1] > epoch, "what was led since is led under a newer epoch"
        assert said_offline(cluster, 1) == 0
        assert await advertised(two, "t") == {index: (0, node, [node], []) for index, node in enumerate((1, 2, 1))}
        await cluster.until(lambda: one.partitions.get("t", 0) is not None)
        assert await stored(one, "t", 0) == 1


async def test_one_that_is_deleted_and_created_again_is_led(cluster: SimCluster, tmp_path: Path) -> None:
    await write(cluster)
    put_a_folder_in_place(tmp_path)
    async with cluster.running(2) as two, cluster.running(1) as one:
        await until_led(cluster, two, "t", [-1, 2, 1])
        assert (await delete(cluster, two, "t")).error_code == 0
        assert (await create(cluster, two, "t", 2)).error_code == 0
        nodes = [leader for leader, _ in leaders(two, "t").values()]
        assert sorted(nodes) == [1, 2]
        await cluster.until(lambda: one.partitions.get("t", nodes.index(1)) is not None)
        assert await stored(one, "t", nodes.index(1)) == 0
        await cluster.until(lambda: said_offline(cluster, 1) == 0)


async def test_something_in_the_place_of_a_new_partition_keeps_no_other_from_being_led(
    cluster: SimCluster, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One line reports it, for that partition alone; the broker follows the cluster as before."""
    async with cluster.running(1) as one:
        await create(cluster, one, "before", 1)
        put_notes_in_place(tmp_path)
        await create(cluster, one, "t", 2)
        await until_led(cluster, one, "t", [-1, 1])
        await cluster.until(lambda: one.partitions.get("t", 1) is not None)
        assert await produced(one, "t", 0) == ErrorCode.KAFKA_STORAGE_ERROR
        assert (await advertised(one, "t"))[0] == NONE
        assert (await create(cluster, one, "later", 1)).error_code == 0
        assert await stored(one, "later", 0) == 0
        lines = [record.message for record in caplog.records if record.levelname in ("ERROR", "WARNING")]
        assert [line.partition(": ")[0] for line in lines] == [
            "t-0 cannot be opened, and will not be served until the next start"
        ]
