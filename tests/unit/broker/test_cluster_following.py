"""What a broker of a cluster does with what its image says: where topics are placed, which leader and settings
apply."""

from __future__ import annotations

from typing import Any

import pytest

from muster.broker.broker import Broker
from muster.errors import ErrorCode
from muster.protocol import messages as m
from muster.protocol.subscription import Subscription, decode_assignment, encode_subscription
from muster.zookeeper.base.operations import Create, GetData, SetData
from muster.zookeeper.base.znodes import (
    BrokerEndpoint,
    BrokerRegistration,
    LeaderAndIsr,
    TopicRegistration,
    broker_path,
    partition_state_path,
    read_topic,
    topic_config_data,
    topic_config_path,
    topic_path,
)
from tests.support.brokers import log_of
from tests.support.cluster_asks import coordinator, create, leaders, stored
from tests.support.held_disk import Asked
from tests.support.logs import NOW, batch
from tests.support.sim_cluster import SimCluster


async def ask(cluster: SimCluster, broker: Broker, request: Any, version: int) -> Any:
    return await cluster.soon(Asked(broker, request, version).answered())


async def test_topics_of_one_request_are_spread_over_the_brokers(cluster: SimCluster) -> None:
    async with cluster.pair() as (one, _):
        names = ["a", "b", "c", "d"]
        request = m.CreateTopicsRequest([m.CreatableTopic(name, 1, 1) for name in names], 60_000)
        answer = await ask(cluster, one, request, 7)
        assert [topic.error_code for topic in answer.topics] == [0] * 4
        assert [leaders(one, name)[0][0] for name in names] == [1, 2, 1, 2]


async def test_partitions_are_where_the_request_has_them(cluster: SimCluster) -> None:
    async with cluster.pair() as (one, _):
        wanted = [m.CreatableReplicaAssignment(index, [2]) for index in range(3)]
        request = m.CreateTopicsRequest([m.CreatableTopic("t", -1, -1, wanted)], 60_000)
        answer = await ask(cluster, one, request, 7)
        assert (answer.topics[0].error_code, answer.topics[0].num_partitions) == (0, 3)
        assert leaders(one, "t") == dict.fromkeys(range(3), (2, 0))


async def test_a_creation_that_is_only_to_be_checked_creates_nothing(cluster: SimCluster) -> None:
    async with cluster.running(1) as one:
        request = m.CreateTopicsRequest([m.CreatableTopic("t", 1, 1)], 60_000, validate_only=True)
        answer = await ask(cluster, one, request, 7)
        assert answer.topics[0].error_code == 0
        assert (await create(cluster, one, "t", 1)).error_code == 0


async def test_a_deletion_is_refused_where_it_is_switched_off(cluster: SimCluster) -> None:
    async with cluster.running(1, delete_topic_enable="false") as one:
        await create(cluster, one, "t", 1)
        answer = await ask(cluster, one, m.DeleteTopicsRequest([m.DeleteTopicState("t")], [], 60_000), 6)
        assert answer.responses[0].error_code == ErrorCode.TOPIC_DELETION_DISABLED
        assert leaders(one, "t") == {0: (1, 0)}


async def test_records_bear_the_epoch_that_the_leader_has_now(cluster: SimCluster) -> None:
    """The leader left and came back between two reads: it is the same broker with a newer epoch."""
    async with cluster.running(1) as one:
        await create(cluster, one, "t", 1)
        await stored(one, "t", 0)
        state = LeaderAndIsr(1, 5, [1], 1)
        cluster.do(SetData(partition_state_path("t", 0), state.encode()))
        await cluster.until(lambda: leaders(one, "t") == {0: (1, 5)})
        log = log_of(one, "t", 0)
        await cluster.until(lambda: log.leader_epoch == 5)
        assert await stored(one, "t", 0) == 1


async def test_settings_that_were_changed_hold_for_logs_that_are_open(cluster: SimCluster) -> None:
    async with cluster.running(1) as one:
        await create(cluster, one, "t", 1)
        await stored(one, "t", 0)
        log = log_of(one, "t", 0)
        cluster.do(SetData(topic_config_path("t"), topic_config_data({"retention.ms": "12345"})))
        await cluster.until(lambda: one.topics.get("t").settings == {"retention.ms": "12345"})  # type: ignore[union-attr]
        await cluster.until(lambda: log.config.retention_ms == 12_345)


async def test_a_setting_in_zookeeper_that_cannot_be_used_counts_as_not_set(
    cluster: SimCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing checks what is written there. One line reports it, then and at the next start."""
    name = topic_config_path("t")
    said = "topic t: Invalid value soon for configuration retention.ms: Not a number of type LONG; "
    async with cluster.running(1) as one:
        await create(cluster, one, "t", 1)
        await stored(one, "t", 0)
        log = log_of(one, "t", 0)
        cluster.do(SetData(name, topic_config_data({"retention.ms": "soon", "max.message.bytes": "12345"})))
        await cluster.until(lambda: log.config.max_message_bytes == 12_345)
        assert log.config.retention_ms == 604_800_000
        assert [line.startswith(said) for line in caplog.messages if "topic t:" in line] == [True]
    caplog.clear()
    async with cluster.running(1) as one:
        await cluster.until(lambda: leaders(one, "t") != {})
        assert await stored(one, "t", 0) == 1
        assert [line.startswith(said) for line in caplog.messages if "topic t:" in line] == [True]


async def test_nothing_is_said_of_a_file_of_producer_ids_that_a_cluster_has_no_use_for(
    cluster: SimCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """They come from ZooKeeper, whatever a broker's logs hold."""
    async with cluster.running(1) as one:
        await create(cluster, one, "t", 1)
        log = log_of(one, "t", 0)
        log.append(batch((b"k", b"v"), producer_id=7, producer_epoch=0, base_sequence=0), now=NOW)
    async with cluster.running(1) as one:
        await cluster.until(lambda: leaders(one, "t") != {})
    assert "muster-producer-ids" not in caplog.text


async def test_a_group_to_which_the_coordinator_assigns_learns_of_an_added_partition(cluster: SimCluster) -> None:
    async with cluster.running(1, server_assigned_groups=".*", group_initial_rebalance_delay_ms=0) as one:
        await create(cluster, one, "t", 1)
        while (await coordinator(one, "g"))[0]:
            await cluster.until(lambda: True)
        protocols = [m.JoinGroupRequestProtocol("range", encode_subscription(Subscription(["t"]), version=0))]
        join = m.JoinGroupRequest("g", 30_000, 30_000, "", None, "consumer", protocols)
        joined = await ask(cluster, one, join, 3)
        while joined.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            joined = await ask(cluster, one, join, 3)
        assert joined.error_code == 0
        synced = await ask(cluster, one, m.SyncGroupRequest("g", joined.generation_id, joined.member_id), 3)
        assert [each.partition for each in decode_assignment(synced.assignment).partitions] == [0]
        beat = m.HeartbeatRequest("g", joined.generation_id, joined.member_id)
        assert (await ask(cluster, one, beat, 3)).error_code == 0
        found = read_topic("t", cluster.do(GetData(topic_path("t")))[0])
        assert isinstance(found, TopicRegistration)
        cluster.do(SetData(topic_path("t"), found._replace(partitions={0: [1], 1: [1]}).encode()))
        await cluster.until(lambda: leaders(one, "t") == {0: (1, 0), 1: (1, 0)})
        for _ in range(1_000):
            await cluster.until(lambda: True)
            if (await ask(cluster, one, beat, 3)).error_code == ErrorCode.REBALANCE_IN_PROGRESS:
                return
        pytest.fail("the group was not notified")


async def test_of_two_brokers_that_create_a_topic_at_once_one_learns_that_it_exists(cluster: SimCluster) -> None:
    async with cluster.pair() as (one, two):
        request = m.CreateTopicsRequest([m.CreatableTopic("t", 1, 1)], 60_000)
        asked = [Asked(broker, request, 7) for broker in (one, two)]
        answers = [await cluster.soon(each.answered()) for each in asked]
        assert sorted(answer.topics[0].error_code for answer in answers) == [0, ErrorCode.TOPIC_ALREADY_EXISTS]


async def test_a_topic_is_spread_over_a_broker_that_has_just_registered(cluster: SimCluster) -> None:
    """Its own log line says that it is ready before the other brokers have read its registration."""
    async with cluster.running(1) as broker:
        listener = BrokerEndpoint("PLAINTEXT", "127.0.0.1", 9)
        cluster.do(Create(broker_path(2), BrokerRegistration(2, (listener,), 0).encode(), ephemeral=True))
        cluster.do(Create(broker_path(3), b"unreadable", ephemeral=True))
        assert [node.node_id for node in broker.cluster.nodes] == [1], "it has not read of it yet"
        await create(cluster, broker, "t", 4)
        assert {leader for leader, _ in leaders(broker, "t").values()} == {1, 2}
