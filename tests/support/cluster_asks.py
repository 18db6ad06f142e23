"""Requests that tests send to brokers of a SimCluster, and changes that they make in its ZooKeeper by hand."""

from __future__ import annotations

from typing import Any

from muster.broker.broker import Broker
from muster.protocol import admin_messages as a
from muster.protocol import messages as m
from muster.zookeeper.base.operations import Create, Delete, GetChildren, GetData
from tests.support.held_disk import Asked
from tests.support.sim_cluster import SimCluster
from tests.support.written import build_batch


async def create(cluster: SimCluster, broker: Broker, name: str, partitions: int, timeout_ms: int = 60_000) -> Any:
    asked = Asked(broker, m.CreateTopicsRequest([m.CreatableTopic(name, partitions, 1)], timeout_ms), 7)
    answer = await cluster.soon(asked.answered())
    return answer.topics[0]


async def delete(cluster: SimCluster, broker: Broker, name: str, timeout_ms: int = 60_000) -> Any:
    asked = Asked(broker, m.DeleteTopicsRequest([m.DeleteTopicState(name)], [], timeout_ms), 6)
    answer = await cluster.soon(asked.answered())
    return answer.responses[0]


def altered(kind: int, name: str, *changes: tuple[str, int, str | None], validate: bool = False) -> Any:
    """An IncrementalAlterConfigs of one resource; each change has a setting, an operation and a value."""
    configs = [a.IncrementalAlterConfigsRequestAlterableConfig(*each) for each in changes]
    resource = a.IncrementalAlterConfigsRequestAlterConfigsResource(kind, name, configs)
    return a.IncrementalAlterConfigsRequest([resource], validate)


def produce(broker: Broker, topic: str, index: int, value: bytes = b"v", acks: int = -1) -> Asked:
    data = m.PartitionProduceData(index, bytes(build_batch([(0, None, value, [])])))
    return Asked(broker, m.ProduceRequest(None, acks, 60_000, [m.TopicProduceData(topic, partition_data=[data])]), 9)


async def stored(broker: Broker, topic: str, index: int, value: bytes = b"v") -> int:
    """The offset of a record that was produced."""
    answer = await produce(broker, topic, index, value).answered()
    (found,) = answer.responses[0].partition_responses
    assert found.error_code == 0
    offset: int = found.base_offset
    return offset


def leaders(broker: Broker, topic: str) -> dict[int, tuple[int, int]]:
    found = broker.topics.get(topic)
    count = found.partitions if found is not None else 0
    reported = {index: broker.cluster.leadership(topic, index) for index in range(count)}
    return {index: (one.leader, one.leader_epoch) for index, one in reported.items()}


def ends(broker: Broker, topic: str) -> dict[int, int]:
    logs = {index: broker.partitions.get(topic, index) for index in range(10)}
    return {index: log.log_end_offset for index, log in logs.items() if log is not None}


async def coordinator(broker: Broker, group_id: str) -> tuple[int, int]:
    answer = await Asked(broker, m.FindCoordinatorRequest(key_type=0, coordinator_keys=[group_id]), 4).answered()
    return answer.coordinators[0].error_code, answer.coordinators[0].node_id


async def commit(broker: Broker, group_id: str, offset: int) -> int:
    topic = m.OffsetCommitRequestTopic("t", partitions=[m.OffsetCommitRequestPartition(0, offset)])
    request = m.OffsetCommitRequest(group_id, -1, "", None, -1, [topic])
    answer = await Asked(broker, request, 8).answered()
    error: int = answer.topics[0].partitions[0].error_code
    return error


async def committed(broker: Broker, group_id: str) -> tuple[int, int]:
    topic = m.OffsetFetchRequestTopic("t", [0])
    answer = await Asked(broker, m.OffsetFetchRequest(group_id, [topic]), 7).answered()
    if answer.error_code:
        return answer.error_code, -1
    return answer.topics[0].partitions[0].error_code, answer.topics[0].partitions[0].committed_offset


def below(cluster: SimCluster, path: str) -> list[str]:
    children = cluster.do(GetChildren(path))
    return [found for child in children for found in below(cluster, f"{path}/{child}")] + [path]


def taken_out(cluster: SimCluster, path: str) -> dict[str, bytes | None]:
    """A znode and all its descendants, which are deleted as if by hand."""
    found = {each: cluster.do(GetData(each))[0] for each in reversed(below(cluster, path))}
    for each in reversed(found):
        cluster.do(Delete(each))
    return found


def put_in(cluster: SimCluster, taken: dict[str, bytes | None]) -> None:
    """What was removed is restored."""
    for each, data in taken.items():
        cluster.do(Create(each, data))
