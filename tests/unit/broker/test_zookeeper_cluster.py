"""A broker in a cluster, on a ZooKeeper in memory: what it follows, what it keeps, what it waits for."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from muster.broker.broker import Broker
from muster.broker.cluster import follower
from muster.errors import ConfigError, ErrorCode, KafkaError
from muster.model import GROUP_METADATA_TOPIC
from muster.protocol import messages as m
from muster.zookeeper.base.operations import Create, Delete, GetChildren, GetData, SetData, ensure_path
from muster.zookeeper.base.znodes import (
    CONTROLLER_EPOCH,
    BrokerEndpoint,
    BrokerRegistration,
    TopicRegistration,
    partition_state_path,
    topic_path,
)
from muster.zookeeper.cluster import scheme
from muster.zookeeper.cluster.scheme import CLUSTER_ID, BrokerIdTakenError, create_topic, request_deletion
from tests.support.cluster_asks import (
    below,
    commit,
    committed,
    coordinator,
    create,
    delete,
    ends,
    leaders,
    produce,
    stored,
)
from tests.support.faulty_disk import FaultyDisk
from tests.support.held_disk import Asked
from tests.support.said import said
from tests.support.sim_cluster import SimCluster, session_of


async def test_a_topic_is_spread_and_each_broker_has_its_part(cluster: SimCluster) -> None:
    async with cluster.pair() as (one, two):
        created = await create(cluster, one, "t", 4)
        assert (created.error_code, created.num_partitions) == (0, 4)
        await cluster.until(
            lambda: leaders(two, "t") == leaders(one, "t") == {0: (1, 0), 1: (2, 0), 2: (1, 0), 3: (2, 0)}
        )
        await cluster.until(lambda: (list(ends(one, "t")), list(ends(two, "t"))) == ([0, 2], [1, 3]))
        (topic,) = one.topics
        assert created.topic_id == topic.topic_id == two.topics.topic_id("t")
        again = await create(cluster, two, "t", 4)
        assert again.error_code == ErrorCode.TOPIC_ALREADY_EXISTS
        gone = await delete(cluster, two, "t")
        assert gone.error_code == 0
        await cluster.until(lambda: not len(one.topics))
        assert (ends(one, "t"), ends(two, "t")) == ({}, {})


@pytest.mark.slow
@pytest.mark.parametrize("carries_out", [False, True])
async def test_a_start_that_loses_its_connection_anywhere_succeeds(cluster: SimCluster, carries_out: bool) -> None:
    async with cluster.running(1) as other:
        await create(cluster, other, "t", 1)
        at = 0
        while await started_with_a_loss(cluster, at, carries_out):
            await cluster.until(lambda: len(other.cluster.nodes) == 1)
            at += 1
    assert at > 15


async def started_with_a_loss(cluster: SimCluster, at: int, carries_out: bool) -> bool:
    """Start a second broker that loses its connection at a given request; returns whether it got that far."""
    broker, session = cluster.make(2)
    session.break_at, session.carries_out = at, carries_out
    await cluster.soon(broker.start())
    lost = session.break_at is None
    await cluster.until(lambda: leaders(broker, "t") == {0: (1, 0)})
    assert [node.node_id for node in broker.cluster.nodes] == [1, 2], at
    await cluster.soon(broker.stop())
    return lost


async def test_an_added_partition_is_not_led_before_the_catalogue_has_it(cluster: SimCluster) -> None:
    """A folder that the catalogue does not know is set aside at the next start, with the acknowledged records in it."""
    disk = FaultyDisk()
    async with cluster.running(1, disk) as broker:
        await create(cluster, broker, "t", 1)
        registered, _ = cluster.do(GetData(topic_path("t")))
        disk.fill_up()
        assert registered is not None
        cluster.do(SetData(topic_path("t"), registered.replace(b'"0":[1]', b'"0":[1],"1":[1]')))
        await cluster.until(lambda: 1 in cluster_image(broker, "t").states)
        for _ in range(20):
            await asyncio.sleep(0)
            assert produce(broker, "t", 1).answer is not None
        assert list(ends(broker, "t")) == [0]
        disk.mend()
        await cluster.until(lambda: list(ends(broker, "t")) == [0, 1])
        assert await stored(broker, "t", 1) == 0
    async with cluster.running(1) as broker:
        await cluster.until(lambda: list(ends(broker, "t")) == [0, 1])
        assert await stored(broker, "t", 1) == 1


def cluster_image(broker: Broker, topic: str) -> Any:
    assert broker._zookeeper is not None
    return broker._zookeeper.image.topics[topic]


async def test_a_topic_that_cannot_be_listed_is_tried_again(cluster: SimCluster) -> None:
    disk = FaultyDisk()
    async with cluster.running(1, disk) as broker:
        disk.fill_up()
        cluster.plan(create_topic("t", TopicRegistration({0: [1]}, version=1), {"retention.ms": "5"}))
        await cluster.until(lambda: broker._zookeeper is not None and 0 in cluster_states(broker, "t"))
        for _ in range(20):
            cluster.clock.advance(20)
            await asyncio.sleep(0)
        assert not len(broker.topics)
        disk.mend()
        await cluster.until(lambda: list(ends(broker, "t")) == [0])
        cluster.do(SetData("/config/topics/t", b'{"version":1,"config":{"retention.ms":"7"}}'))
        await cluster.until(lambda: (log := broker.partitions.get("t", 0)) is not None and log.config.retention_ms == 7)


def cluster_states(broker: Broker, topic: str) -> dict[int, Any]:
    assert broker._zookeeper is not None
    found = broker._zookeeper.image.topics.get(topic)
    return found.states if found is not None else {}


async def test_a_folder_of_a_deleted_topic_is_removed_before_the_next_of_that_name(
    cluster: SimCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the next start would finish the removal, and take the new topic's records for the old topic's."""
    async with cluster.running(1) as broker:
        await create(cluster, broker, "t", 1)
        await stored(broker, "t", 0)
        with monkeypatch.context() as patched:
            patched.setattr(broker.partitions, "deleting", lambda topics: stuck(topics))
            patched.setattr(broker.partitions, "delete", lambda topic: set(topic.topic_partitions))
            await delete(cluster, broker, "t")
            cluster.plan(create_topic("t", TopicRegistration({0: [1]}, version=1), {}))
            await cluster.until(lambda: 0 in cluster_states(broker, "t"))
            for _ in range(20):
                cluster.clock.advance(20)
                await asyncio.sleep(0)
            assert not len(broker.topics)
        await cluster.until(lambda: list(ends(broker, "t")) == [0])
        assert await stored(broker, "t", 0) == 0
    async with cluster.running(1) as broker:
        await cluster.until(lambda: list(ends(broker, "t")) == [0])
        assert await stored(broker, "t", 0) == 1


def stuck(topics: Any) -> Any:
    yield
    return {partition for topic in topics for partition in topic.topic_partitions}


async def test_records_are_kept_when_an_older_tool_drops_the_topics_id(cluster: SimCluster) -> None:
    """Kafka's tools before 2.8 write a topic's registration without its id when they add partitions."""
    async with cluster.running(1) as broker, cluster.running(2) as other:
        await cluster.until(lambda: len(broker.cluster.nodes) == 2)
        await create(cluster, broker, "t", 2)
        before = broker.topics.topic_id("t")
        an_id = "AAAAAAAAQACAAAAAAAAAAA"
        (mine,) = [index for index, (leader, _) in leaders(broker, "t").items() if leader == 1]
        await cluster.until(lambda: mine in ends(broker, "t"))
        await stored(broker, "t", mine)
        registered, _ = cluster.do(GetData(topic_path("t")))
        partitions = json.loads(registered or b"")["partitions"]
        altered = {"version": 1, "partitions": {**partitions, "2": [1]}}
        with no_controller(cluster):
            cluster.do(SetData(topic_path("t"), json.dumps(altered).encode()))
            for each in (broker, other):
                await cluster.until(lambda: cluster_image(each, "t").registration.topic_id is None)  # noqa: B023
            cluster.plan(create_topic("next", TopicRegistration({0: [1]}, an_id), {}))
            await cluster.until(lambda: broker.topics.get("next") is not None)
            assert broker.topics.topic_id("t") == before
        await cluster.until(lambda: sorted(ends(broker, "t")) == sorted({mine, 2}))
        assert broker.topics.topic_id("t") == before
        await cluster.until(lambda: other.topics.partition_count("t") == 3)
        assert other.topics.topic_id("t") == before
        assert await stored(broker, "t", mine) == 1


async def test_records_are_kept_while_a_topic_cannot_be_understood(cluster: SimCluster) -> None:
    async with cluster.running(1) as broker:
        await create(cluster, broker, "t", 1)
        await create(cluster, broker, "other", 1)
        await stored(broker, "t", 0)
        good, _ = cluster.do(GetData(topic_path("t")))
        cluster.do(SetData(topic_path("t"), b"rubbish"))
        await cluster.until(lambda: "t" not in cluster_topics(broker))
        await delete(cluster, broker, "other")
        assert [topic.name for topic in broker.topics] == ["t"]
        cluster.do(SetData(topic_path("t"), good))
        await cluster.until(lambda: "t" in cluster_topics(broker))
        assert await stored(broker, "t", 0) == 1


def cluster_topics(broker: Broker) -> list[str]:
    assert broker._zookeeper is not None
    return list(broker._zookeeper.image.topics)


async def test_a_state_that_cannot_be_understood_is_left_alone(cluster: SimCluster) -> None:
    """The controller neither keeps creating it nor guesses; the partition is still served."""
    async with cluster.running(1) as broker:
        await create(cluster, broker, "t", 2)
        await stored(broker, "t", 0)
        good, _ = cluster.do(GetData(partition_state_path("t", 0)))
        cluster.do(SetData(partition_state_path("t", 0), b"rubbish"))
        await cluster.until(lambda: 0 not in cluster_states(broker, "t"))
        assert (await create(cluster, broker, "other", 1)).error_code == 0, "the controller continues"
        assert await stored(broker, "t", 0) == 1
        cluster.do(SetData(partition_state_path("t", 0), good))
        await cluster.until(lambda: 0 in cluster_states(broker, "t"))


async def test_a_broker_stops_and_keeps_its_records_when_zookeeper_was_emptied(cluster: SimCluster) -> None:
    """A ZooKeeper that lost its disk says that no topic exists."""
    async with cluster.running(1) as broker:
        await create(cluster, broker, "t", 1)
        await stored(broker, "t", 0)
        for path in [*below(cluster, topic_path("t")), CLUSTER_ID]:
            cluster.do(Delete(path))
        assert broker._zookeeper is not None
        await cluster.until(broker._zookeeper.lost.is_set)
        assert ends(broker, "t") == {0: 1}


async def test_a_broker_does_not_register_in_another_cluster(cluster: SimCluster) -> None:
    async with cluster.running(1) as broker:
        await create(cluster, broker, "t", 1)
        cluster.do(SetData(CLUSTER_ID, b'{"version":"1","id":"another"}'))
        cluster.expire(session_of(broker))
        assert broker._zookeeper is not None
        await cluster.until(broker._zookeeper.lost.is_set)
        assert cluster.do(GetChildren("/brokers/ids")) == []
    broker, _ = cluster.make(1)
    with pytest.raises(ConfigError, match="belongs to cluster"):
        await cluster.soon(broker.start())


@pytest.mark.parametrize(
    ("first", "second"), [("log", "zookeeper"), ("zookeeper", "log"), ("log", None), (None, "log")]
)
async def test_all_brokers_keep_groups_in_one_place(cluster: SimCluster, first: str | None, second: str | None) -> None:
    """Otherwise two brokers would coordinate the same groups, each acknowledging commits that the other never learns
    of."""

    def settings(store: str | None) -> dict[str, Any]:
        return {} if store is None else {"group_coordinator_store": store, "offsets_topic_num_partitions": 1}

    async with cluster.running(1, **settings(first)):
        broker, _ = cluster.make(2, **settings(second))
        with pytest.raises(ConfigError, match=r"keeps its groups in '(log|zookeeper)'"):
            await cluster.soon(broker.start())
        async with cluster.running(3, **settings(first)):
            pass
    with pytest.raises(ConfigError, match="/muster/store"):
        await cluster.soon(cluster.make(1, **settings(second))[0].start())


async def test_all_brokers_have_the_level_of_the_first(cluster: SimCluster, caplog: pytest.LogCaptureFixture) -> None:
    async with cluster.running(1, transaction_version=0), cluster.running(2) as second:
        assert second.features.levels == {"transaction.version": 0}
        assert second.transactions.runtime.config.transaction_version == 0
        assert "has no effect" not in caplog.text
        async with cluster.running(3, transaction_version=2) as third:
            assert third.features.levels == {"transaction.version": 0}
        assert "transaction.version=2 has no effect: the cluster has level 0" in caplog.text
    cluster.do(SetData("/muster/transaction.version", b"3"))
    with pytest.raises(ConfigError, match=r"/muster/transaction\.version in ZooKeeper says .* level '3'"):
        await cluster.soon(cluster.make(1)[0].start())


async def test_a_level_that_was_changed_is_that_of_all_brokers(cluster: SimCluster) -> None:
    async with cluster.running(1) as first, cluster.running(2) as second:
        both = [first.features, second.features]
        assert [(each.levels, each.epoch) for each in both] == [({"transaction.version": 2}, 0)] * 2
        assert await update(cluster, first, 1) is None
        await cluster.until(lambda: all(each.epoch == 1 for each in both))
        assert [each.levels for each in both] == [{"transaction.version": 1}] * 2
        assert second.transactions.runtime.config.transaction_version == 1
        cluster.do(Delete("/muster/transaction.version"))
        assert await update(cluster, second, 0) is None
        await cluster.until(lambda: all(each.levels == {"transaction.version": 0} for each in both))


async def test_a_level_is_changed_on_the_basis_of_the_newest(cluster: SimCluster) -> None:
    """Two brokers change it at the same time: the second reads what the first has written."""
    async with cluster.running(1) as first, cluster.running(2) as second:
        seen: list[int] = []

        def once(levels: Mapping[str, int]) -> dict[str, int]:
            seen.append(levels["transaction.version"])
            if len(seen) == 1:
                cluster.do(SetData("/muster/transaction.version", b"1"))
            return {"transaction.version": 0}

        assert await update(cluster, first, once) is None
        assert seen == [2, 1]
        await cluster.until(lambda: second.features.levels == {"transaction.version": 0})


async def test_a_level_that_is_not_known_changes_nothing(cluster: SimCluster, caplog: pytest.LogCaptureFixture) -> None:
    async with cluster.running(1) as broker:
        cluster.do(SetData("/muster/transaction.version", b"7"))
        await cluster.until(lambda: "which this version does not support" in caplog.text)
        cluster.do(SetData("/muster/transaction.version", b"damaged"))
        error = await update(cluster, broker, 1)
        assert error is not None
        assert "cannot be read" in (error.message or "")
        assert broker.features.levels == {"transaction.version": 2}


async def update(
    cluster: SimCluster, broker: Broker, change: int | Callable[[Mapping[str, int]], Mapping[str, int]]
) -> KafkaError | None:
    """How a broker of the cluster answers a change of the level."""
    assert broker._zookeeper is not None
    reported: list[KafkaError | None] = []
    rule = change if callable(change) else lambda levels: {"transaction.version": change}
    broker._zookeeper.update_features(rule, 30_000, reported.append)
    await cluster.until(lambda: reported)
    return reported[0]


@pytest.mark.parametrize("trace", ["broker", "epoch"])
async def test_a_cluster_of_kafkas_brokers_is_left_alone(cluster: SimCluster, trace: str) -> None:
    if trace == "broker":
        registration = BrokerRegistration(5, (BrokerEndpoint("PLAINTEXT", "host", 9092),), 0)
        cluster.plan(ensure_path("/brokers/ids"))
        cluster.do(Create("/brokers/ids/5", registration.encode(), ephemeral=True))
    else:
        cluster.do(Create(CONTROLLER_EPOCH, b"3"))
    broker, _ = cluster.make(1)
    with pytest.raises(ConfigError, match="an Apache Kafka cluster"):
        await cluster.soon(broker.start())
    assert "muster" not in cluster.do(GetChildren("/"))


async def test_what_kafkas_tools_left_without_brokers_is_taken_over(cluster: SimCluster) -> None:
    for path in ("/brokers/ids", "/brokers/topics", "/config/topics"):
        cluster.plan(ensure_path(path))
    cluster.plan(create_topic("t", TopicRegistration({0: [1]}, version=1), {}))
    async with cluster.running(1) as broker:
        await cluster.until(lambda: list(ends(broker, "t")) == [0])


async def test_an_id_that_stays_taken_ends_the_start(cluster: SimCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follower, "RETRY_TAKEN_S", 0.001)
    async with cluster.running(1) as broker:
        folder, had = str(broker.config.data_dir), broker.identity.directory_id
        twin, session = cluster.make(1, log_dirs=folder + "-twin", replaced_data_dir=had)
        monkeypatch.setattr(follower, "TAKEN_MORE_S", 0.05)
        session.timeout_ms = 0
        with pytest.raises(BrokerIdTakenError):
            await cluster.soon(twin.start())
        assert not session.sim.is_connected, "its session is closed"
        assert [node.node_id for node in broker.cluster.nodes] == [1]


async def test_an_id_whose_session_ends_is_taken_over(
    cluster: SimCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A broker that was killed finds its own former registration when it is started again."""
    monkeypatch.setattr(follower, "RETRY_TAKEN_S", 0.001)
    caplog.set_level(logging.INFO)

    def waiting() -> list[str]:
        return [line for line in said(caplog, "muster.broker") if "waiting for a dead session" in line]

    former = cluster.zookeeper.connect("former", timeout_ms=4_000)
    cluster.zookeeper.settle()
    async with cluster.running(2):
        registration = BrokerRegistration(1, (BrokerEndpoint("PLAINTEXT", "host", 9092),), 0)
        cluster.zookeeper.do(former, Create("/brokers/ids/1", registration.encode(), ephemeral=True))
        broker, _ = cluster.make(1)
        starting = asyncio.ensure_future(broker.start())
        # Not before: ZooKeeper's time passes while the broker opens its folder, however long that takes.
        await cluster.until(lambda: waiting() or starting.done())
        cluster.zookeeper.cut(former)
        await cluster.soon(starting)
        assert broker.cluster.node_of(1) == broker.node
        await cluster.soon(broker.stop())
    (line,) = waiting()
    assert line.startswith("another broker is registered with the id 1: ")


async def test_clients_wait_until_the_broker_is_one_of_its_cluster(cluster: SimCluster) -> None:
    broker, _ = cluster.make(1)
    starting = asyncio.ensure_future(broker.start())
    await cluster.until(lambda: hasattr(broker, "_server") and broker.node.port)
    reader, writer = await asyncio.open_connection("127.0.0.1", broker.node.port)
    assert not starting.done()
    greeting = b"\x00\x12\x00\x00" + b"\x00\x00\x00\x05" + b"\x00\x01x"  # ApiVersions v0, correlation 5, client "x"
    writer.write(len(greeting).to_bytes(4, "big") + greeting)
    await writer.drain()
    asked = asyncio.ensure_future(reader.readexactly(8))
    for _ in range(20):
        await asyncio.sleep(0)
    assert not asked.done()
    await cluster.until(starting.done)
    assert (await asyncio.wait_for(asked, 60))[4:] == b"\x00\x00\x00\x05"
    writer.close()
    await cluster.soon(broker.stop())
    with socket.socket() as left, pytest.raises(ConnectionRefusedError):
        left.connect(("127.0.0.1", broker.node.port))


async def test_fetches_that_wait_are_answered_when_the_leader_has_moved(cluster: SimCluster) -> None:
    disk = FaultyDisk()
    async with cluster.running(1, disk, fsync="always") as broker:
        await create(cluster, broker, "t", 1)
        fetch = m.FetchRequest(max_wait_ms=600_000, min_bytes=1, max_bytes=1000)
        fetch.topics = [m.FetchTopic("t", partitions=[m.FetchPartition(0, fetch_offset=0, partition_max_bytes=1000)])]
        fetching = Asked(broker, fetch, 11)
        assert fetching.answer is None
        give_away(cluster, "t")
        answer = await cluster.soon(fetching.answered())
        assert answer.responses[0].partitions[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        answer = await produce(broker, "t", 0).answered()
        assert answer.responses[0].partition_responses[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def give_away(cluster: SimCluster, topic: str) -> None:
    """Make another broker the leader of the only partition of a topic."""
    registration = BrokerRegistration(2, (BrokerEndpoint("PLAINTEXT", "host", 9092),), 0)
    cluster.do(Create("/brokers/ids/2", registration.encode(), ephemeral=True))
    registered, _ = cluster.do(GetData(topic_path(topic)))
    cluster.do(SetData(topic_path(topic), (registered or b"").replace(b"[1]", b"[2]")))
    state, _ = cluster.do(GetData(partition_state_path(topic, 0)))
    elsewhere = (state or b"").replace(b'"leader":1', b'"leader":2').replace(b'"leader_epoch":0', b'"leader_epoch":1')
    cluster.do(SetData(partition_state_path(topic, 0), elsewhere))


async def test_a_former_coordinator_takes_no_commits(cluster: SimCluster) -> None:
    async with cluster.running(1, offsets_topic_num_partitions=1, group_coordinator_store="log") as broker:
        await create(cluster, broker, "t", 1)
        await coordinator(broker, "g")
        await cluster.until(lambda: leaders(broker, GROUP_METADATA_TOPIC) == {0: (1, 0)})
        await cluster.until(lambda: not broker.groups.runtime.is_loading)
        assert await commit(broker, "g", 5) == 0
        give_away(cluster, GROUP_METADATA_TOPIC)
        await cluster.until(lambda: leaders(broker, GROUP_METADATA_TOPIC)[0][0] == 2)
        await cluster.until(lambda: not ends(broker, GROUP_METADATA_TOPIC))
        assert await commit(broker, "g", 6) == ErrorCode.NOT_COORDINATOR
        assert await coordinator(broker, "g") == (0, 2)


@contextlib.contextmanager
def no_controller(cluster: SimCluster) -> Iterator[None]:
    """A controller that does nothing."""
    cluster.do(Delete("/controller"))
    cluster.do(Create("/controller", b'{"version":1,"brokerid":9,"timestamp":"0"}', ephemeral=True))
    yield
    cluster.do(Delete("/controller"))


async def test_a_topic_without_leaders_is_reported_when_the_time_is_over(cluster: SimCluster) -> None:
    async with cluster.running(1) as broker:
        wanted = m.CreatableTopic("t", -1, -1, [m.CreatableReplicaAssignment(0, [1])])
        with no_controller(cluster):
            await cluster.until(lambda: broker.cluster.controller_id == 9)
            asked = Asked(broker, m.CreateTopicsRequest([wanted], 1), 7)
            answer = await cluster.soon(asked.answered())
            assert answer.topics[0].error_code == ErrorCode.REQUEST_TIMED_OUT
        await cluster.until(lambda: leaders(broker, "t") == {0: (1, 0)})
        with no_controller(cluster):
            await cluster.until(lambda: broker.cluster.controller_id == 9)
            assert (await delete(cluster, broker, "t", 1)).error_code == ErrorCode.REQUEST_TIMED_OUT
        await cluster.until(lambda: not len(broker.topics))


async def test_without_zookeeper_nothing_is_created_and_data_is_served(cluster: SimCluster) -> None:
    async with cluster.running(1) as broker:
        await create(cluster, broker, "t", 1)
        cluster.cut(session_of(broker))
        await cluster.until(lambda: not session_of(broker).sim.is_connected)
        assert (await create(cluster, broker, "u", 1)).error_code == ErrorCode.REQUEST_TIMED_OUT
        assert (await delete(cluster, broker, "t")).error_code == ErrorCode.REQUEST_TIMED_OUT
        assert await stored(broker, "t", 0) == 0
        cluster.zookeeper.heal(session_of(broker).sim)
        await cluster.until(lambda: session_of(broker).sim.is_connected)
        assert (await create(cluster, broker, "u", 1)).error_code == 0
        cluster.cut(session_of(broker))
        former = session_of(broker).sim.session_id
        await cluster.until(lambda: not cluster.zookeeper.is_alive(former))
        assert await stored(broker, "t", 0) == 1
        cluster.zookeeper.heal(session_of(broker).sim)
        await cluster.until(lambda: session_of(broker).sim.session_id not in (0, former))
        await cluster.until(lambda: cluster.do(GetChildren("/brokers/ids")) == ["1"])
        assert (await create(cluster, broker, "v", 1)).error_code == 0


async def test_producer_ids_are_given_once_and_run_out_without_zookeeper(
    cluster: SimCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheme, "PRODUCER_IDS_OF_A_BLOCK", block := 100)

    async def take(broker: Broker) -> tuple[int, int]:
        answer = await Asked(broker, m.InitProducerIdRequest(None, 0, -1, -1), 4).answered()
        return answer.error_code, answer.producer_id

    async with cluster.running(1) as one, cluster.running(2) as two:
        taken = []
        for _ in range(block + 1):
            taken += [await take(one), await take(two)]
        assert {error for error, _ in taken} == {0}
        assert len({found for _, found in taken}) == len(taken)
        await cluster.until(lambda: one._zookeeper is not None and len(one._zookeeper._next_ids) == block)
        cluster.cut(session_of(one))
        await cluster.until(lambda: not session_of(one).sim.is_connected)
        left = [await take(one) for _ in range(2 * block)]
        assert left[-1] == (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, -1)
        given = [found for error, found in left if error == 0]
        assert len(given) == 2 * block - 1
        cluster.zookeeper.heal(session_of(one).sim)
        await cluster.until(lambda: one._zookeeper is not None and one._zookeeper._next_ids)
        error, found = await take(one)
        assert error == 0
        assert found not in [*given, *(found for _, found in taken)]


async def test_each_group_has_one_coordinator_and_its_commits_come_back_with_it(cluster: SimCluster) -> None:
    async with cluster.running(1, group_coordinator_store="log") as one:
        async with cluster.running(2, group_coordinator_store="log") as two:
            await cluster.until(lambda: len(one.cluster.nodes) == 2)
            await create(cluster, one, "t", 1)
            assert await coordinator(one, "g0") == (ErrorCode.COORDINATOR_NOT_AVAILABLE, -1), "its topic is being made"
            for broker in (one, two):
                await cluster.until(lambda: all_led(broker, GROUP_METADATA_TOPIC, 4))  # noqa: B023
            found = {name: (await coordinator(one, name))[1] for name in ("g0", "g1", "g2", "g3", "g4", "g5")}
            assert set(found.values()) == {1, 2}
            assert {name: (await coordinator(two, name))[1] for name in found} == found
            for name, node in found.items():
                there, elsewhere = (one, two) if node == 1 else (two, one)
                await cluster.until(lambda: not there.groups.runtime.is_loading)  # noqa: B023
                assert await commit(elsewhere, name, 7) == ErrorCode.NOT_COORDINATOR
                assert await commit(there, name, 7) == 0
            await cluster.until(lambda: one.topics.get("t") is not None and two.topics.get("t") is not None)
        theirs = [name for name, node in found.items() if node == 2]
        await cluster.until(lambda: len(one.cluster.nodes) == 1)
        assert await coordinator(one, theirs[0]) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, -1)
        async with cluster.running(2, group_coordinator_store="log") as two:
            await cluster.until(lambda: all_led(two, GROUP_METADATA_TOPIC, 4) and not two.groups.runtime.is_loading)
            assert [await committed(two, name) for name in theirs] == [(0, 7)] * len(theirs)
            # The offsets of a deleted topic are removed, and all groups with their own topic.
            assert (await delete(cluster, one, "t")).error_code == 0
            await cluster.until(lambda: not two.topics.partition_count("t"))
            assert [await committed(two, name) for name in theirs] == [(0, -1)] * len(theirs)
            cluster.plan(request_deletion(GROUP_METADATA_TOPIC))
            await cluster.until(lambda: not two.topics.partition_count(GROUP_METADATA_TOPIC))
            assert (await committed(two, theirs[0]))[0] == ErrorCode.NOT_COORDINATOR
            assert (await coordinator(two, theirs[0]))[0] == ErrorCode.COORDINATOR_NOT_AVAILABLE
            await cluster.until(lambda: all_led(two, GROUP_METADATA_TOPIC, 4) and all_led(one, GROUP_METADATA_TOPIC, 4))
            node = (await coordinator(two, "g0"))[1]
            there = one if node == 1 else two
            await create(cluster, there, "t", 1)
            assert await commit(there, "g0", 9) == 0


async def test_partitions_added_to_the_topic_of_groups_leave_no_group_without_a_coordinator(
    cluster: SimCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """By hand, or by an old tool: the broker that leads none of them has to count them too."""
    async with (
        cluster.running(1, group_coordinator_store="log") as one,
        cluster.running(2, group_coordinator_store="log") as two,
    ):
        await cluster.until(lambda: len(one.cluster.nodes) == 2)
        await coordinator(one, "g0")
        brokers = {1: one, 2: two}
        for broker in brokers.values():
            await cluster.until(lambda: all_led(broker, GROUP_METADATA_TOPIC, 4))  # noqa: B023
        path = topic_path(GROUP_METADATA_TOPIC)
        registered = json.loads(cluster.do(GetData(path))[0] or b"")
        registered["partitions"]["4"] = [1]
        cluster.do(SetData(path, json.dumps(registered).encode()))
        for broker in brokers.values():
            await cluster.until(lambda: all_led(broker, GROUP_METADATA_TOPIC, 5))  # noqa: B023
            await cluster.until(lambda: not broker.groups.runtime.is_loading)  # noqa: B023
        await create(cluster, one, "t", 1)
        await cluster.until(lambda: two.topics.get("t") is not None)
        for name in (f"g{number}" for number in range(20)):
            error, node = await coordinator(one, name)
            assert error == 0
            assert (await coordinator(two, name)) == (0, node)
            assert await commit(brokers[node], name, 7) == 0, name
            assert await committed(brokers[node], name) == (0, 7)
    assert sum("has 5 partitions instead of 4" in line for line in said(caplog, "muster.broker")) == 2


def all_led(broker: Broker, topic: str, partitions: int) -> bool:
    reported = leaders(broker, topic)
    mine = [index for index, (leader, _) in reported.items() if leader == broker.node.node_id]
    return (
        len(reported) == partitions
        and all(leader > 0 for leader, _ in reported.values())
        and sorted(ends(broker, topic)) == mine
    )
