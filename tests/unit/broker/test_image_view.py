"""What a broker in a cluster reports about it: partitions that it leads, that another leads, that have no leader."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from muster.broker.broker import Broker
from muster.broker.cluster.image_view import ImageView
from muster.broker.groups.coordination import ClusterCoordination
from muster.broker.groups.service import GroupTopics
from muster.errors import ErrorCode
from muster.log import LogError
from muster.model import GROUP_METADATA_TOPIC, Node
from muster.protocol import admin_messages as a
from muster.protocol import messages as m
from muster.protocol.group_partitions import group_partition
from muster.protocol.records.record_batch import iter_headers
from muster.zookeeper.base.image import ClusterImage, PartitionImage, TopicImage
from muster.zookeeper.base.znodes import BrokerEndpoint, BrokerRegistration, LeaderAndIsr, TopicRegistration
from tests.support.brokers import log_of, running, topic_of
from tests.support.held_disk import Asked
from tests.support.written import build_batch

EPOCH = 7
HERE, ELSEWHERE, NOWHERE, STALE, FRESH, UNKNOWN = range(6)
"""Partitions of the topic "t": led by this broker, by broker 2, by none; by a broker that is down according to the
image; one that the controller has not seen; and one that does not exist."""


def registration(number: int) -> BrokerRegistration:
    return BrokerRegistration(
        number, (BrokerEndpoint("PLAINTEXT", f"host{number}", 9090 + number),), 0, rack=f"r{number}"
    )


def an_image() -> ClusterImage:
    image = ClusterImage()
    image.brokers = {2: registration(2), 1: registration(1)}
    image.controller_id = 2
    replicas = {HERE: [1], ELSEWHERE: [2], NOWHERE: [3], STALE: [3], FRESH: [1]}
    topic = image.topics["t"] = TopicImage(TopicRegistration(replicas, "id"))
    for number, leader in {HERE: 1, ELSEWHERE: 2, NOWHERE: -1, STALE: 3}.items():
        topic.states[number] = PartitionImage(LeaderAndIsr(leader, EPOCH + number, replicas[number], 5), 0)
    return image


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    async with running(tmp_path / "data") as found:
        topic = found.changes.create_topic("t", 5, {})
        found.cluster = ImageView("cluster", found.cluster.node, an_image())
        found.partitions.lead(topic, HERE, EPOCH)
        for number in (ELSEWHERE, NOWHERE, STALE, FRESH):
            found.partitions.resign("t", number)
        yield found


async def test_the_coordinator_learns_which_partitions_can_be_read(broker: Broker) -> None:
    topics = GroupTopics(broker.topics, broker.cluster)
    assert topics.led_partitions("t") == [HERE, ELSEWHERE]
    assert topics.led_partitions("there is none") == []


def leader_of(reported: Any) -> tuple[int, int] | None:
    return (reported.leader_id, reported.leader_epoch) if reported is not None else None


def endpoints(answer: Any) -> list[tuple[int, str, int, str]]:
    return [(node.node_id, node.host, node.port, node.rack) for node in answer.node_endpoints]


CODES = {
    HERE: 0,
    ELSEWHERE: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    NOWHERE: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    STALE: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    FRESH: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    UNKNOWN: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
}
LEADERS = {HERE: None, ELSEWHERE: (2, EPOCH + 1), NOWHERE: (-1, EPOCH + 2), STALE: (-1, EPOCH + 3), FRESH: (-1, -1)}


@pytest.mark.parametrize("named", [True, False])
async def test_metadata_tells_brokers_leaders_and_what_has_none(broker: Broker, named: bool) -> None:
    asked = [m.MetadataRequestTopic(name="t")] if named else None
    answer = await Asked(broker, m.MetadataRequest(asked), 9).answered()
    assert [(node.node_id, node.host, node.port, node.rack) for node in answer.brokers] == [
        (1, "host1", 9091, "r1"),
        (2, "host2", 9092, "r2"),
    ]
    assert answer.controller_id == 2
    (topic,) = answer.topics
    found = {
        p.partition_index: (p.error_code, p.leader_id, p.leader_epoch, p.replica_nodes, p.isr_nodes, p.offline_replicas)
        for p in topic.partitions
    }
    none = ErrorCode.LEADER_NOT_AVAILABLE
    assert found == {
        HERE: (0, 1, EPOCH, [1], [1], []),
        ELSEWHERE: (0, 2, EPOCH + 1, [2], [2], []),
        NOWHERE: (none, -1, EPOCH + 2, [3], [3], [3]),
        STALE: (none, -1, EPOCH + 3, [3], [3], [3]),
        FRESH: (none, -1, -1, [1], [], []),
    }
    answer = await Asked(broker, m.DescribeTopicPartitionsRequest([m.TopicRequest("t")], 100), 0).answered()
    assert found == {
        p.partition_index: (p.error_code, p.leader_id, p.leader_epoch, p.replica_nodes, p.isr_nodes, p.offline_replicas)
        for p in answer.topics[0].partitions
    }


def replies(answer: Any) -> dict[int, int]:
    """The error code of each partition of the only topic in a response."""
    if isinstance(answer, a.ElectLeadersResponse):
        return {one.partition_id: one.error_code for one in answer.replica_election_results[0].partition_result}
    topics = answer.responses if isinstance(answer, a.AlterPartitionReassignmentsResponse) else answer.results
    return {one.partition_index: one.error_code for one in topics[0].partitions}


@pytest.mark.parametrize(
    ("kind", "refused"),
    [(0, ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE), (1, ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE)],
    ids=["preferred", "unclean"],
)
async def test_only_a_broker_that_is_there_could_be_elected(broker: Broker, kind: int, refused: ErrorCode) -> None:
    wanted = {
        HERE: ErrorCode.ELECTION_NOT_NEEDED,
        ELSEWHERE: ErrorCode.ELECTION_NOT_NEEDED,
        NOWHERE: refused,
        STALE: refused,
        FRESH: refused,
        UNKNOWN: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    asked = a.ElectLeadersRequest(kind, [a.TopicPartitions("t", list(wanted))])
    assert replies(await Asked(broker, asked, 2).answered()) == wanted
    everywhere = await Asked(broker, a.ElectLeadersRequest(kind, None), 2).answered()
    assert replies(everywhere) == {NOWHERE: refused, STALE: refused, FRESH: refused}


async def test_a_replica_without_records_is_not_a_leader_to_prefer(broker: Broker) -> None:
    """A tool of Kafka's created the topic with two replicas: the other broker, the first replica, has no records."""
    image = an_image()
    image.topics["t"].registration.partitions[HERE] = [2, 1]
    broker.cluster = ImageView("cluster", broker.cluster.node, image)
    asked = [a.ElectLeadersRequest(kind, [a.TopicPartitions("t", [HERE])]) for kind in (0, 1)]
    codes = [replies(await Asked(broker, each, 2).answered()) for each in asked]
    assert codes == [{HERE: ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE}, {HERE: ErrorCode.ELECTION_NOT_NEEDED}]


async def test_partitions_do_not_move_to_other_brokers(broker: Broker) -> None:
    def moved(*to: tuple[int, list[int] | None], change: bool = True) -> Asked:
        partitions = [a.ReassignablePartition(index, replicas) for index, replicas in to]
        topics = [a.ReassignableTopic("t", partitions)]
        return Asked(broker, a.AlterPartitionReassignmentsRequest(1_000, change, topics), 1)

    asked = moved((HERE, [1]), (ELSEWHERE, [1]), (NOWHERE, [3]), (STALE, [3, 1]), (FRESH, [2]), (UNKNOWN, [1]))
    answer = await asked.answered()
    refused = ErrorCode.INVALID_REPLICA_ASSIGNMENT
    wanted = {HERE: 0, ELSEWHERE: refused, NOWHERE: 0, STALE: refused, FRESH: refused, UNKNOWN: 3}
    assert replies(answer) == wanted
    sentences = {one.partition_index: one.error_message for one in answer.responses[0].partitions}
    assert sentences[ELSEWHERE] == "Partitions do not move here: t-1 stays on broker 2, where its records are."
    assert sentences[STALE] == "The manual partition assignment includes broker 3, but no such broker is registered."
    assert replies(await moved((HERE, [1, 2])).answered()) == {HERE: refused}
    answer = await moved((HERE, [1, 2]), (ELSEWHERE, [2]), change=False).answered()
    assert replies(answer) == {HERE: ErrorCode.INVALID_REPLICATION_FACTOR, ELSEWHERE: 0}
    assert answer.responses[0].partitions[0].error_message == "The replication factor is changed from 1 to 2"


async def test_a_folder_has_the_partitions_whose_records_are_in_it(broker: Broker) -> None:
    """This includes one that this broker no longer leads; it reports that others' partitions are elsewhere."""
    folder = str(broker.config.data_dir.absolute())
    asked = a.AlterReplicaLogDirsRequest([a.AlterReplicaLogDir(folder, [a.AlterReplicaLogDirTopic("t", list(CODES))])])
    topic = topic_of(broker, "t")
    broker.partitions.set_aside(topic, [ELSEWHERE])
    assert replies(await Asked(broker, asked, 2).answered()) == dict.fromkeys(CODES, 0) | {
        ELSEWHERE: ErrorCode.NOT_LEADER_OR_FOLLOWER,
        UNKNOWN: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }


def produce_request(numbers: range | list[int]) -> m.ProduceRequest:
    data = [m.PartitionProduceData(number, bytes(build_batch([(0, None, b"v", [])]))) for number in numbers]
    return m.ProduceRequest(None, -1, 1_000, [m.TopicProduceData("t", partition_data=data)])


@pytest.mark.parametrize("version", [9, 10])
async def test_a_produce_is_refused_by_a_broker_that_does_not_lead(broker: Broker, version: int) -> None:
    answer = await Asked(broker, produce_request(list(CODES)), version).answered()
    found = answer.responses[0].partition_responses
    assert {result.index: result.error_code for result in found} == CODES
    hinted = {**LEADERS, UNKNOWN: None} if version == 10 else dict.fromkeys(CODES)
    assert {result.index: leader_of(result.current_leader) for result in found} == hinted
    assert endpoints(answer) == ([(2, "host2", 9092, "r2")] if version == 10 else [])


async def test_what_is_produced_bears_the_epoch_of_its_partition(broker: Broker) -> None:
    await Asked(broker, produce_request([HERE]), 9).answered()
    log = log_of(broker, "t", HERE)
    with pytest.raises(LogError) as refused:
        log.append(build_batch([(0, None, b"late", [])]), now=0, leader_epoch=EPOCH - 1, origin="coordinator")
    assert refused.value.code is ErrorCode.FENCED_LEADER_EPOCH
    log.append(build_batch([(0, None, b"in time", [])]), now=0, leader_epoch=EPOCH, origin="coordinator")
    epochs = [header.partition_leader_epoch for _, header in iter_headers(log.read(0, 1_000).data)]
    assert epochs == [EPOCH, EPOCH]


def fetch_request(epochs: dict[int, int]) -> m.FetchRequest:
    partitions = [m.FetchPartition(number, epoch, 0, partition_max_bytes=100) for number, epoch in epochs.items()]
    return m.FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=100, topics=[m.FetchTopic("t", partitions=partitions)])


async def test_a_fetch_is_refused_by_a_broker_that_does_not_lead(broker: Broker) -> None:
    answer = await Asked(broker, fetch_request(dict.fromkeys(CODES, -1)), 12).answered()
    found = answer.responses[0].partitions
    assert {data.partition_index: data.error_code for data in found} == CODES
    assert [data.current_leader for data in found] == [None] * len(CODES), "version 12 does not tell it in Kafka"


async def test_a_fetch_of_a_version_that_can_carry_it_names_the_leader(broker: Broker) -> None:
    request = fetch_request(dict.fromkeys(LEADERS, -1))
    request.topics[0].topic_id = broker.topics.topic_id("t")
    answer = await Asked(broker, request, 16).answered()
    assert {data.partition_index: leader_of(data.current_leader) for data in answer.responses[0].partitions} == LEADERS
    assert endpoints(answer) == [(2, "host2", 9092, "r2")]


EPOCHS = {
    -1: 0,
    EPOCH: 0,
    EPOCH - 1: ErrorCode.FENCED_LEADER_EPOCH,
    0: ErrorCode.FENCED_LEADER_EPOCH,
    EPOCH + 1: ErrorCode.UNKNOWN_LEADER_EPOCH,
}


@pytest.mark.parametrize(("epoch", "error"), EPOCHS.items())
async def test_an_older_epoch_is_fenced_and_a_newer_one_unknown(broker: Broker, epoch: int, error: int) -> None:
    answer = await Asked(broker, fetch_request({HERE: epoch}), 12).answered()
    assert answer.responses[0].partitions[0].error_code == error
    asked = m.ListOffsetsTopic("t", [m.ListOffsetsPartition(HERE, epoch, -1)])
    answer = await Asked(broker, m.ListOffsetsRequest(-1, 0, [asked]), 7).answered()
    (found,) = answer.topics[0].partitions
    assert (found.error_code, found.leader_epoch) == (error, -1 if error else EPOCH)


async def test_a_look_for_offsets_is_refused_by_a_broker_that_does_not_lead(broker: Broker) -> None:
    asked = m.ListOffsetsTopic("t", [m.ListOffsetsPartition(number, -1, -1) for number in CODES])
    answer = await Asked(broker, m.ListOffsetsRequest(-1, 0, [asked]), 7).answered()
    assert {found.partition_index: found.error_code for found in answer.topics[0].partitions} == CODES


async def test_the_coordinator_of_a_group_is_the_leader_of_its_partition(broker: Broker) -> None:
    image = an_image()
    view = ImageView("cluster", broker.cluster.node, image)
    by_leaders = ClusterCoordination(broker.config, broker.topics, broker.partitions, broker.changes, view)
    broker.groups._coordination = by_leaders
    assert by_leaders.coordinator("g") is None, "there is no topic of the groups yet"
    broker.changes.create_topic(GROUP_METADATA_TOPIC, 3, {})

    async def coordinator(group_id: str) -> tuple[int, int, str]:
        answer = await Asked(broker, m.FindCoordinatorRequest(key_type=0, coordinator_keys=[group_id]), 4).answered()
        (found,) = answer.coordinators
        return found.error_code, found.node_id, found.host

    nobody = (ErrorCode.COORDINATOR_NOT_AVAILABLE, -1, "")
    assert await coordinator("g") == nobody, "the topic of the groups is not in the image yet"
    leaders = [1, 2, -1]
    groups = {group_partition(name, 3): name for name in ("a", "b", "c", "d", "e")}
    topic = image.topics[GROUP_METADATA_TOPIC] = TopicImage(TopicRegistration({0: [1], 1: [2], 2: [3]}))
    assert await coordinator("g") == nobody, "the controller has not seen it yet"
    for slot, leader in enumerate(leaders):
        topic.states[slot] = PartitionImage(LeaderAndIsr(leader, 0, [leader], 5), 0)
    found = [await coordinator(groups[slot]) for slot in range(3)]
    assert found == [(0, 1, "host1"), (0, 2, "host2"), nobody]


async def test_a_topic_may_be_given_to_any_broker_that_is_registered(broker: Broker) -> None:
    found = [broker.cluster.is_registered(node) for node in (0, 1, 2, 3)]
    assert found == [False, True, True, False]


def test_each_address_is_for_those_that_can_use_it() -> None:
    """A broker of Kafka's that has no unencrypted listener, and two of ours, one of which speaks the draft protocol."""
    image = an_image()
    image.brokers[1] = registration(1)._replace(draft_listener=BrokerEndpoint("DRAFT", "host1", 7001))
    image.brokers[3] = BrokerRegistration(3, (BrokerEndpoint("SSL", "host3", 9093, "SSL"),), 0)
    view = ImageView("cluster", Node(1, "host1", 9091), image)
    assert [node.node_id for node in view.nodes] == [1, 2]
    assert view.node_of(3) is None
    assert view.draft_node_of(1) == Node(1, "host1", 7001)
    assert (view.draft_node_of(2), view.draft_node_of(9)) == (None, None)


def test_replicas_that_are_not_in_sync_are_distinguished() -> None:
    """Kafka's tools created the topic with two replicas: these brokers keep one."""
    image = an_image()
    image.topics["t"].registration.partitions[HERE] = [1, 2, 3]
    view = ImageView("cluster", Node(1, "host1", 9091), image)
    assert view.leadership("t", HERE) == (1, EPOCH + HERE, [1, 2, 3], [1], [3])
