"""Brokers whose ZooKeeper has less than they have, or an older state: records and epochs are kept."""

from __future__ import annotations

import pytest

from muster.broker.broker import Broker
from muster.errors import ErrorCode
from muster.model import GROUP_METADATA_TOPIC
from muster.zookeeper.base.operations import GetChildren, GetData, SetData
from muster.zookeeper.base.znodes import TopicRegistration, partition_state_path, topic_path
from muster.zookeeper.cluster.deletions import deletions_path
from muster.zookeeper.cluster.scheme import create_topic
from tests.support.brokers import log_of
from tests.support.cluster_asks import (
    commit,
    committed,
    coordinator,
    create,
    delete,
    ends,
    leaders,
    produce,
    put_in,
    stored,
    taken_out,
)
from tests.support.faulty_disk import FaultyDisk
from tests.support.sim_cluster import SimCluster, session_of


async def test_a_topic_that_is_merely_missing_is_set_aside_and_taken_back(
    cluster: SimCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """As after restoring an older backup of ZooKeeper. Kafka 4 keeps such logs too, as "stray"."""
    async with cluster.running(1) as broker:
        folder = broker.config.data_dir
        await create(cluster, broker, "t", 2)
        topic_id = broker.topics.topic_id("t")
        for number in range(3):
            assert await stored(broker, "t", 1) == number
        taken = taken_out(cluster, topic_path("t"))
        await cluster.until(lambda: not len(broker.topics))
        assert [path.name for path in folder.glob("t-*")] == [f"t-1.{topic_id.hex()}-stray"]
        assert f"the first as t-1.{topic_id.hex()}-stray" in caplog.text
        # Clients create it again meanwhile; that topic is set aside in turn.
        await create(cluster, broker, "t", 2)
        assert await stored(broker, "t", 1) == 0
        other = taken_out(cluster, topic_path("t"))
        put_in(cluster, taken)
        await cluster.until(lambda: ends(broker, "t") == {0: 0, 1: 3})
        assert broker.topics.topic_id("t") == topic_id
        assert await stored(broker, "t", 1) == 3
        taken_out(cluster, topic_path("t"))
        await cluster.until(lambda: not len(broker.topics))
    # What was set aside stays so after a restart.
    put_in(cluster, other)
    async with cluster.running(1) as broker:
        await cluster.until(lambda: ends(broker, "t") == {0: 0, 1: 1})
        assert len(list(folder.glob("t-*-stray"))) == 1
        assert (await delete(cluster, broker, "t")).error_code == 0
        assert len(list(folder.glob("t-*-stray"))) == 1, "only what was asked for is deleted"


async def test_partitions_that_are_missing_are_set_aside_and_taken_back(cluster: SimCluster) -> None:
    async with cluster.running(1) as broker:
        await create(cluster, broker, "t", 3)
        for index in range(3):
            assert await stored(broker, "t", index) == 0
        full, _ = cluster.do(GetData(topic_path("t")))
        assert full is not None
        cluster.do(SetData(topic_path("t"), full.replace(b',"2":[1]', b"").replace(b',"1":[1]', b"")))
        await cluster.until(lambda: ends(broker, "t") == {0: 1} and broker.topics.partition_count("t") == 1)
        assert produce(broker, "t", 1).answer is not None
    async with cluster.running(1) as broker:
        await cluster.until(lambda: ends(broker, "t") == {0: 1})
        cluster.do(SetData(topic_path("t"), full))
        await cluster.until(lambda: ends(broker, "t") == {0: 1, 1: 1, 2: 1})
        assert [await stored(broker, "t", index) for index in range(3)] == [1, 1, 1]


@pytest.mark.parametrize("disk_is_full", [False, True])
async def test_a_start_between_setting_aside_and_the_catalogue_loses_nothing(
    cluster: SimCluster, disk_is_full: bool
) -> None:
    """The folder has the new name, the catalogue still has the topic, and then the topic exists again."""
    disk = FaultyDisk()
    async with cluster.running(1, disk) as broker:
        await create(cluster, broker, "t", 1)
        assert await stored(broker, "t", 0) == 0
        folder = broker.config.data_dir
        disk.fill_up()
        taken = taken_out(cluster, topic_path("t"))
        await cluster.until(lambda: list(folder.glob("t-*-stray")))
        assert len(broker.topics) == 1
        put_in(cluster, taken)
        if not disk_is_full:
            disk.mend()
            await cluster.until(lambda: ends(broker, "t") == {0: 1})
    async with cluster.running(1) as broker:
        await cluster.until(lambda: ends(broker, "t") == {0: 1})
        assert await stored(broker, "t", 0) == 1


async def test_committed_offsets_are_kept_for_a_topic_that_is_merely_missing(cluster: SimCluster) -> None:
    async with cluster.running(1, offsets_topic_num_partitions=1, group_coordinator_store="log") as broker:
        await create(cluster, broker, "t", 1)
        await coordinator(broker, "g")
        await cluster.until(lambda: leaders(broker, GROUP_METADATA_TOPIC) == {0: (1, 0)})
        await cluster.until(lambda: not broker.groups.runtime.is_loading)
        assert await commit(broker, "g", 5) == 0
        taken = taken_out(cluster, topic_path("t"))
        await cluster.until(lambda: broker.topics.get("t") is None)
        put_in(cluster, taken)
        await cluster.until(lambda: leaders(broker, "t") == {0: (1, 0)})
        assert await committed(broker, "g") == (0, 5)
        # And so are the groups, if their own topic exists.
        taken = taken_out(cluster, topic_path(GROUP_METADATA_TOPIC))
        await cluster.until(lambda: broker.topics.get(GROUP_METADATA_TOPIC) is None)
        assert (await committed(broker, "g"))[0] == ErrorCode.NOT_COORDINATOR
        put_in(cluster, taken)
        await cluster.until(lambda: list(ends(broker, GROUP_METADATA_TOPIC)) == [0])
        await cluster.until(lambda: not broker.groups.runtime.is_loading)
        assert await committed(broker, "g") == (0, 5)


async def test_a_deletion_reaches_a_broker_that_was_away(cluster: SimCluster) -> None:
    async with cluster.running(1) as one:
        async with cluster.running(2) as two:
            await cluster.until(lambda: len(one.cluster.nodes) == 2)
            for name in ("doomed", "again", "stray"):
                await create(cluster, one, name, 2)
                mine = next(index for index, (leader, _) in leaders(one, name).items() if leader == 2)
                await cluster.until(lambda: mine in ends(two, name))  # noqa: B023
                assert await stored(two, name, mine) == 0
            folder = two.config.data_dir
            kept = taken_out(cluster, topic_path("stray"))
            await cluster.until(lambda: two.topics.get("stray") is None and one.topics.get("stray") is None)
        # While the broker is away: deleted; deleted and created again; or deleted after it was missing and set aside
        # here.
        put_in(cluster, kept)
        await cluster.until(lambda: one.topics.get("stray") is not None)
        for name in ("doomed", "again", "stray"):
            assert (await delete(cluster, one, name)).error_code == 0
        await create(cluster, one, "again", 1)
        assert sorted(path.name[:6] for path in folder.glob("*-[01]*")) == ["again-", "doomed", "stray-"]
        assert len(cluster.do(GetChildren(deletions_path(2)))) == 3
        await cluster.until(lambda: cluster.do(GetChildren(deletions_path(1))) == [])
    async with cluster.running(2) as two:
        await cluster.until(lambda: cluster.do(GetChildren(deletions_path(2))) == [])
        assert list(folder.glob("*-[01]")) == []
        assert [path.name for path in folder.glob("*-stray")] == []
        assert [topic.name for topic in two.topics] == ["again"]


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("with_records", [False, True])
@pytest.mark.parametrize("disk_is_full", [False, True])
async def test_leader_epochs_never_fall(
    cluster: SimCluster, restarted: bool, with_records: bool, disk_is_full: bool
) -> None:
    """An older state of a partition was restored. Clients ignore a leader whose epoch is older than theirs."""
    disk = FaultyDisk()
    async with cluster.running(2):
        async with cluster.running(1) as broker:
            for name in "tu":
                cluster.plan(create_topic(name, TopicRegistration({0: [1]}, version=1), {}))
            await cluster.until(lambda: list(ends(broker, "t")) == [0])
            assert await stored(broker, "t", 0) == 0
            older, _ = cluster.do(GetData(partition_state_path("t", 0)))
        await cluster.until(lambda: cluster.do(GetChildren("/brokers/ids")) == ["2"])
        async with cluster.running(1, disk) as broker:
            await cluster.until(lambda: led_under(broker, "t") == 2)
            newest = 2
            if disk_is_full:  # then the records decide, if there are any
                disk.fill_up()
                cluster.expire(session_of(broker))
                await cluster.until(lambda: led_under(broker, "t") == 4)
                newest = 4 if with_records else 2
                disk.mend()
            if with_records:
                assert await stored(broker, "t", 0) == 1
            if not restarted:
                cluster.do(SetData(partition_state_path("t", 0), older))
                await cluster.until(lambda: led_under(broker, "t") > 1_000)
                newest = led_under(broker, "t")
        await cluster.until(lambda: cluster.do(GetChildren("/brokers/ids")) == ["2"])
        if restarted:
            cluster.do(SetData(partition_state_path("t", 0), older))
        async with cluster.running(1) as broker:
            # Clients may have seen the next epoch, without a leader, while it was away.
            await cluster.until(lambda: led_under(broker, "t") > newest + 1)
            assert await stored(broker, "t", 0) == 1 + with_records
            log = log_of(broker, "t", 0)
            written = [header.partition_leader_epoch for segment in log.segments for _, header in segment.headers(0)]
            assert written == sorted(written)
            assert written[-1] > newest
            assert 0 < led_under(broker, "u") < 10


def led_under(broker: Broker, topic: str) -> int:
    """The epoch under which a broker leads partition 0; -1 if it does not."""
    log = broker.partitions.get(topic, 0)
    return log.leader_epoch if log is not None and leaders(broker, topic) == {0: (1, log.leader_epoch)} else -1
