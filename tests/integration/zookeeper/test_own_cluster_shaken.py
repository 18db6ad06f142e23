"""muster's own cluster of brokers under load while its brokers and ZooKeeper are killed, stopped and frozen.

`make test` runs a short fixed schedule; `make soak SCHEDULES=20 ARGS="-k own_cluster_shaken"` draws that many of a
minute or more. Run one again with `MUSTER_FIRST_SEED=17 make soak SCHEDULES=1 ARGS="-k own_cluster_shaken"`.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from muster import Admin, NewTopic
from muster.local.zookeeper import Ensemble
from tests.support import scale
from tests.support.cluster_chaos import Facts, Schedule, carry_out, judge
from tests.support.cluster_transactions import QUICK, Transactions
from tests.support.muster_cluster import Cluster, Commits, eventually
from tests.support.own_cluster_chaos import Away, Shaken, Topics, World, draw, world
from tests.support.zookeepers import ZooKeeperServer

pytestmark = pytest.mark.slow

SHORT = Schedule(
    seed=-1,
    partitions=3,
    request_timeout_ms=2_000,
    assignor="cooperative-sticky",
    racks=False,
    steps=(
        Away("kill", ("zookeeper", "coordinator"), 0, 0, mute=True),
        Away("term", ("1",), 0, 0, mute=True),
        Away("freeze", ("controller",), 3, 0),
    ),
)


def world_of(schedule: Schedule[Away]) -> World:
    """For the short schedule, the default world."""
    return World() if schedule is SHORT else world(schedule.seed)


@pytest.fixture
def zookeepers(schedule: Schedule[Away], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ensemble]:
    """ZooKeeper for only this test, with the jars and the Java of the tests."""
    monkeypatch.setattr("muster.local.zookeeper.zookeeper_classpath", ZooKeeperServer(tmp_path).classpath)
    monkeypatch.setattr("muster.local.zookeeper.find_java", lambda _: ZooKeeperServer(tmp_path).java())
    with Ensemble(tmp_path / "zookeepers", world_of(schedule).zookeepers, fsync=False) as ensemble:
        yield ensemble


@pytest.fixture
def cluster(zookeepers: Ensemble, schedule: Schedule[Away], tmp_path: Path) -> Iterator[Cluster]:
    found = world_of(schedule)
    store = {"group.coordinator.store": found.store, "transaction.state.log.num.partitions": 6, **QUICK}
    with Cluster(tmp_path, f"{zookeepers.address}/muster", store, fsync=found.fsync, gated=True).running() as made:
        yield made


@pytest.mark.soak
@pytest.mark.parametrize(
    "schedule", [SHORT, *map(draw, scale.schedules(0))], ids=lambda schedule: f"seed{schedule.seed}"
)
def test_brokers_and_zookeeper_shaken_lose_and_repeat_and_disorder_nothing(
    cluster, zookeepers, schedule, record_property
):
    """acks=all, idempotence, groups of both faces and readers of ranges; records on a broker wait until it is back."""
    topic = f"t-{uuid.uuid4().hex[:8]}"
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        new = NewTopic(topic, schedule.partitions, configs={"retention.ms": "-1"})
        admin.create_topics([new])
    eventually(lambda: all(len(cluster.leaders(topic, n)) == schedule.partitions for n in cluster.brokers))
    shaken = Shaken(cluster, zookeepers.servers, group=f"{topic}-blocking")
    commits = Commits(cluster, topic)
    commits.start()
    beside = Facts({})
    topics = Topics(beside, cluster, schedule.seed)
    transactions = Transactions(beside, cluster, schedule.seed)
    facts = carry_out(schedule, cluster.bootstrap, topic, shaken.shake)
    commits.stop()
    topics.stop()
    transactions.stop()
    count = {group: sum(len(rows) for _, rows in runs) for group, runs in facts.runs.items()}
    topic_count = f"{len(topics.known)} topics, {len(topics.failed)} requests about them failed"
    wrong_transactions = transactions.wrong()
    ended = (
        f"{len(transactions.reported.committed)} transactions committed, {len(transactions.reported.aborted)} aborted"
    )
    reported = f"{len(facts.acknowledged)} acknowledged, {count} read by groups, {topic_count}, {ended}"
    record_property("soak", f"seed {schedule.seed}, {world_of(schedule)}: {reported}")
    print(*topics.failed, *transactions.troubles, sep="\n")
    assert [*judge(facts), *beside.errors, *topics.wrong(), *wrong_transactions] == [], schedule
    assert len(facts.acknowledged) > 100
