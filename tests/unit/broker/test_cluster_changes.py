"""What an admin changes in a cluster: requested from any broker, written to ZooKeeper, and followed by all brokers."""

from __future__ import annotations

from typing import Any

from muster.broker.broker import Broker
from muster.errors import ErrorCode
from muster.protocol import admin_messages as a
from muster.zookeeper.base.operations import Delete, GetData
from muster.zookeeper.base.znodes import TopicRegistration, read_topic, topic_path
from tests.support.brokers import log_of
from tests.support.cluster_asks import altered, create, delete, ends, leaders, stored
from tests.support.held_disk import Asked
from tests.support.sim_cluster import SimCluster


def growth(broker: Broker, name: str, count: int, brokers: list[int] | None = None, timeout_ms: int = 60_000) -> Asked:
    assigned = None if brokers is None else [a.CreatePartitionsAssignment([each]) for each in brokers]
    return Asked(broker, a.CreatePartitionsRequest([a.CreatePartitionsTopic(name, count, assigned)], timeout_ms), 3)


async def grow(cluster: SimCluster, broker: Broker, name: str, count: int, brokers: list[int] | None = None) -> Any:
    answer = await cluster.soon(growth(broker, name, count, brokers).answered())
    (result,) = answer.results
    return result


def registered(cluster: SimCluster, name: str) -> dict[int, list[int]]:
    found = read_topic(name, cluster.do(GetData(topic_path(name)))[0])
    assert isinstance(found, TopicRegistration)
    return found.partitions


async def test_partitions_are_added_by_any_broker_and_spread(cluster: SimCluster) -> None:
    async with cluster.pair() as (one, two):
        await create(cluster, one, "t", 2)
        assert (await grow(cluster, two, "t", 5)).error_code == 0
        assert registered(cluster, "t") == {0: [1], 1: [2], 2: [1], 3: [2], 4: [1]}
        await cluster.until(lambda: leaders(one, "t") == leaders(two, "t"))
        assert {index: leader for index, (leader, _) in leaders(two, "t").items()} == {0: 1, 1: 2, 2: 1, 3: 2, 4: 1}
        await cluster.until(lambda: list(ends(one, "t")) == [0, 2, 4])
        assert await stored(one, "t", 4) == 0
        refused = await grow(cluster, one, "t", 5)
        assert (refused.error_code, refused.error_message) == (
            ErrorCode.INVALID_PARTITIONS,
            "Topic already has 5 partition(s).",
        )


async def test_partitions_go_where_the_request_says(cluster: SimCluster) -> None:
    async with cluster.pair() as (one, _):
        await create(cluster, one, "t", 1)
        assert (await grow(cluster, one, "t", 3, [2, 2])).error_code == 0
        assert registered(cluster, "t") == {0: [1], 1: [2], 2: [2]}
        assert (await grow(cluster, one, "t", 4, [3])).error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT


async def test_of_two_that_add_at_once_one_learns_that_it_is_done(cluster: SimCluster) -> None:
    """The sequence: both brokers have read that there are two partitions, then each requests three."""
    async with cluster.pair() as (one, two):
        await create(cluster, one, "t", 2)
        await cluster.until(lambda: two.topics.partition_count("t") == 2)
        asked = [growth(broker, "t", 3) for broker in (one, two)]
        answers = [await cluster.soon(each.answered()) for each in asked]
        codes = sorted(answer.results[0].error_code for answer in answers)
        assert codes == [ErrorCode.NONE, ErrorCode.INVALID_PARTITIONS]
        assert len(registered(cluster, "t")) == 3


async def test_a_topic_that_is_deleted_meanwhile(cluster: SimCluster) -> None:
    async with cluster.pair() as (one, two):
        await create(cluster, one, "t", 1)
        await cluster.until(lambda: two.topics.partition_count("t") == 1)
        await delete(cluster, one, "t")
        result = await grow(cluster, two, "t", 2)
        assert result.error_code in (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        await cluster.until(lambda: not len(two.topics))


async def test_without_a_leader_in_time_the_request_times_out(cluster: SimCluster) -> None:
    async with cluster.running(1) as one:
        await create(cluster, one, "t", 1)
        asked = growth(one, "t", 2, timeout_ms=0)
        answer = await cluster.soon(asked.answered())
        assert answer.results[0].error_code == ErrorCode.REQUEST_TIMED_OUT
        await cluster.until(lambda: list(ends(one, "t")) == [0, 1])


# ----------------------------------------------------------------------------------------------------------- settings


def change(broker: Broker, name: str, *changes: tuple[str, int, str | None], kind: int = 2) -> Asked:
    return Asked(broker, altered(kind, name, *changes), 1)


async def alter(cluster: SimCluster, broker: Broker, name: str, *changes: Any, kind: int = 2) -> int:
    answer = await cluster.soon(change(broker, name, *changes, kind=kind).answered())
    code: int = answer.responses[0].error_code
    return code


def kept(broker: Broker, name: str) -> dict[str, str]:
    topic = broker.topics.get(name)
    return dict(topic.settings) if topic is not None else {}


async def test_settings_are_changed_by_any_broker_and_followed_by_all(cluster: SimCluster) -> None:
    async with cluster.pair() as (one, two):
        await create(cluster, one, "t", 2)
        await cluster.until(lambda: list(ends(two, "t")) == [1])
        assert await alter(cluster, two, "t", ("retention.ms", 0, "7"), ("segment.ms", 0, "9")) == 0
        assert kept(two, "t") == {"retention.ms": "7", "segment.ms": "9"}
        await cluster.until(lambda: kept(one, "t") == kept(two, "t"))
        for broker, index in ((one, 0), (two, 1)):
            log = log_of(broker, "t", index)
            assert (log.config.retention_ms, log.config.segment_ms) == (7, 9)
        written, _ = cluster.do(GetData("/config/topics/t"))
        assert written == b'{"version":1,"config":{"retention.ms":"7","segment.ms":"9"}}'
        assert await alter(cluster, one, "t", ("segment.ms", 1, None)) == 0
        await cluster.until(lambda: kept(two, "t") == {"retention.ms": "7"})
        assert await alter(cluster, one, "t", ("retention.ms", 0, "7")) == 0  # as it is


async def test_of_two_that_change_at_once_both_are_granted(cluster: SimCluster) -> None:
    """Each looks again at what the other has written."""
    async with cluster.pair() as (one, two):
        await create(cluster, one, "t", 2)
        await cluster.until(lambda: two.topics.partition_count("t") == 2)
        asked = [change(one, "t", ("retention.ms", 0, "7")), change(two, "t", ("segment.ms", 0, "9"))]
        for each in asked:
            answer = await cluster.soon(each.answered())
            assert answer.responses[0].error_code == 0
        both = {"retention.ms": "7", "segment.ms": "9"}
        await cluster.until(lambda: kept(one, "t") == kept(two, "t") == both)


async def test_a_topic_whose_settings_are_not_in_zookeeper_gets_them(cluster: SimCluster) -> None:
    async with cluster.running(1) as one:
        await create(cluster, one, "t", 1)
        cluster.do(Delete("/config/topics/t"))
        assert await alter(cluster, one, "t", ("retention.ms", 0, "7")) == 0
        assert cluster.do(GetData("/config/topics/t"))[0] == b'{"version":1,"config":{"retention.ms":"7"}}'


async def test_settings_of_a_topic_that_is_gone(cluster: SimCluster) -> None:
    async with cluster.running(1) as one:
        assert await alter(cluster, one, "t", ("retention.ms", 0, "7")) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        await create(cluster, one, "t", 1)
        assert await alter(cluster, one, "t", ("retention.ms", 0, "x")) == ErrorCode.INVALID_CONFIG


async def test_each_broker_has_settings_of_its_own(cluster: SimCluster) -> None:
    async with cluster.running(1) as one, cluster.running(2) as two:
        assert await alter(cluster, one, "1", ("log.retention.ms", 0, "7"), kind=4) == 0
        assert await alter(cluster, one, "2", ("log.retention.ms", 0, "7"), kind=4) == ErrorCode.INVALID_REQUEST
        assert await alter(cluster, one, "", ("log.retention.ms", 0, "7"), kind=4) == ErrorCode.INVALID_REQUEST
        assert (one.config.retention_ms, two.config.retention_ms) == (7, 604_800_000)
