"""What an admin changes in a cluster of three brokers on a real ZooKeeper, with kill -9 after the answers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from muster.errors import ErrorCode
from muster.protocol import admin_messages as a
from muster.protocol import messages as m
from muster.protocol.primitives import ZERO_UUID
from tests.support.muster_cluster import LONG, Cluster, eventually
from tests.support.written import build_batch
from tests.support.zookeepers import ZooKeeperServer

pytestmark = pytest.mark.slow


@pytest.fixture
def cluster(tmp_path: Path, zookeeper: ZooKeeperServer) -> Iterator[Cluster]:
    with Cluster(tmp_path, zookeeper.chroot(), LONG).running() as found:
        yield found


def produce(cluster: Cluster, leader: int, index: int) -> int:
    records = bytes(build_batch([(1000, None, b"v", [])]))
    data = m.TopicProduceData("t", ZERO_UUID, [m.PartitionProduceData(index, records)])
    answer = cluster.ask(leader, m.ProduceRequest(None, -1, 30_000, [data]), 9)
    result = answer.responses[0].partition_responses[0]
    assert result.error_code == 0
    return int(result.base_offset)


def leader_of(cluster: Cluster, index: int, asked: int) -> int:
    return eventually(lambda: next((n for e, n, _ in [cluster.leaders("t", asked)[index]] if not e), 0))  # type: ignore[no-any-return]


def setting(cluster: Cluster, number: int, key: str) -> Any:
    request = m.DescribeConfigsRequest([m.DescribeConfigsResource(2, "t", [key])])
    (result,) = cluster.ask(number, request, 4).results
    return result.configs[0].value if result.configs else None


def test_partitions_settings_and_records(cluster: Cluster) -> None:
    """Each change is requested from another broker, which is killed after its answer; the change remains."""
    created = cluster.ask(1, m.CreateTopicsRequest([m.CreatableTopic("t", 3, 1)], 30_000), 7)
    assert created.topics[0].error_code == 0
    eventually(lambda: setting(cluster, 2, "retention.ms") and setting(cluster, 3, "retention.ms"))

    grown = cluster.ask(2, a.CreatePartitionsRequest([a.CreatePartitionsTopic("t", 6, None)], 30_000), 3)
    assert [(one.error_code, one.error_message) for one in grown.results] == [(0, None)]
    cluster.brokers[2].kill()
    eventually(lambda: len(cluster.leaders("t", 1)) == len(cluster.leaders("t", 3)) == 6)
    cluster.brokers[2].start()
    leaders = {index: leader_of(cluster, index, 1) for index in range(6)}
    assert sorted(leaders.values()) == [1, 1, 2, 2, 3, 3]

    config = a.IncrementalAlterConfigsRequestAlterableConfig("retention.ms", 0, "777777777")
    resource = a.IncrementalAlterConfigsRequestAlterConfigsResource(2, "t", [config])
    altered = cluster.ask(3, a.IncrementalAlterConfigsRequest([resource]), 1)
    assert altered.responses[0].error_code == 0
    cluster.brokers[3].kill()
    cluster.brokers[3].start()
    eventually(lambda: {setting(cluster, number, "retention.ms") for number in (1, 2, 3)} == {"777777777"})

    for index, leader in leaders.items():
        assert leader_of(cluster, index, leader) == leader
        assert [produce(cluster, leader, index) for _ in range(3)] == [0, 1, 2]
    cut = a.DeleteRecordsRequest(
        [a.DeleteRecordsTopic("t", [a.DeleteRecordsPartition(i, 2) for i in range(6)])], 30_000
    )
    answer = cluster.ask(1, cut, 2)
    reported = {one.partition_index: (one.error_code, one.low_watermark) for one in answer.topics[0].partitions}
    elsewhere = (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)
    assert reported == {index: (0, 2) if leader == 1 else elsewhere for index, leader in leaders.items()}
    cluster.brokers[1].kill()
    cluster.brokers[1].start()
    mine = next(index for index, leader in leaders.items() if leader == 1)
    topics = [m.ListOffsetsTopic("t", [m.ListOffsetsPartition(mine, -1, -2)])]

    def earliest() -> tuple[int, int]:
        found = cluster.ask(1, m.ListOffsetsRequest(-1, 0, topics), 4).topics[0].partitions[0]
        return found.error_code, found.offset

    eventually(lambda: earliest() == (0, 2))
