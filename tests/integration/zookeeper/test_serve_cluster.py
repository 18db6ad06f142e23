"""`muster serve --zookeeper`: three brokers in separate processes, on a real ZooKeeper."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from muster.cli import main as command
from muster.client.admin.admin import Admin
from muster.client.consumer.consumer import Consumer
from muster.client.core.admin.admin import NewTopic
from muster.client.producer.producer import Producer
from muster.errors import ErrorCode
from muster.model import TopicPartition
from muster.protocol import messages as m
from tests.support.brokers import BrokerProcess, RawClient
from tests.support.muster_cluster import LONG, PARTITIONS, PATIENCE_S, Cluster, Commits, Load, eventually, stored
from tests.support.written import build_batch
from tests.support.zookeepers import ZooKeeperServer

pytestmark = pytest.mark.slow


@pytest.fixture
def cluster(zookeeper: ZooKeeperServer, tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path, zookeeper.chroot(), LONG).running() as made:
        yield made


def test_nothing_acknowledged_is_lost_whatever_is_killed(own_zookeeper: ZooKeeperServer, tmp_path: Path) -> None:
    with Cluster(tmp_path, f"{own_zookeeper.address}/muster").running() as cluster:
        with Admin(bootstrap_servers=cluster.bootstrap) as admin:
            for topic in ("t", "doomed"):
                admin.create_topics([NewTopic(topic, PARTITIONS)])
        eventually(lambda: all_led(cluster, "doomed", PARTITIONS))
        with Producer(bootstrap_servers=cluster.bootstrap) as producer:
            for number in range(PARTITIONS):
                producer.send("doomed", value=b"0", partition=number)
            producer.flush()
        eventually(lambda: all(len(cluster.leaders("t", number)) == PARTITIONS for number in cluster.brokers))
        load, commits = Load(cluster, "t"), Commits(cluster, "t")
        load.start()
        commits.start()
        load.more()
        commits.more()

        # The controller is killed: another one is elected, which makes its partitions leaderless and later gives them
        # back.
        former = cluster.controller(1)
        other = former % 3 + 1
        cluster.brokers[former].kill()
        eventually(lambda: cluster.controller(other) not in (former, -1))
        # While it is down, a topic of which it has records is deleted.
        with Admin(bootstrap_servers=cluster.brokers[other].bootstrap) as admin:
            admin.delete_topics(["doomed"])
            admin.create_topics([NewTopic("doomed", PARTITIONS)])
        mine = tmp_path / f"broker{former}"
        assert sorted(mine.glob("doomed-?")) != []
        cluster.brokers[former].start()
        assert sorted(mine.glob("doomed-?")) == [], "the former topic's records were kept"
        load.more()
        commits.more()

        # ZooKeeper is killed: data is still served, and groups once it is back, before and after sessions have expired.
        for away_s in (0.5, 4):
            own_zookeeper.kill()
            time.sleep(away_s)
            load.more()
            own_zookeeper.start()
            eventually(lambda: all(cluster.nodes(number) == [1, 2, 3] for number in cluster.brokers))
            load.more()
            commits.more()
        load.stop()
        commits.stop()
        found = stored(cluster, "t")
        for partition in range(PARTITIONS):
            acknowledged = sorted(number for where, number in load.acknowledged if where == partition)
            assert found[partition] == acknowledged


def test_records_and_groups_on_three_brokers(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        admin.create_topics([NewTopic("t", PARTITIONS)])
    # A broker first reads its slots of the groups, and reports that meanwhile.
    asked = m.ListGroupsRequest()
    eventually(lambda: all(cluster.ask(n, asked, 4) == m.ListGroupsResponse() for n in cluster.brokers))
    eventually(lambda: all_led(cluster, "t", PARTITIONS))
    by_broker = [cluster.leaders("t", number) for number in cluster.brokers]
    assert by_broker[0] == by_broker[1] == by_broker[2]
    assert sorted(leader for _, leader, _ in by_broker[0].values()) == [1, 1, 2, 2, 3, 3]
    with Producer(bootstrap_servers=cluster.bootstrap) as producer:
        for number in range(PARTITIONS * 10):
            producer.send("t", value=b"%d" % number, partition=number % PARTITIONS)
        producer.flush()
    with Consumer(
        bootstrap_servers=cluster.bootstrap, group_id="g", auto_offset_reset="earliest", enable_auto_commit=False
    ) as consumer:
        consumer.subscribe(["t"])
        seen: list[int] = []
        deadline = time.monotonic() + PATIENCE_S
        while len(seen) < PARTITIONS * 10 and time.monotonic() < deadline:
            for records in consumer.poll(1_000).values():
                seen += [int(record.value or b"") for record in records]
        consumer.commit()
        assert sorted(seen) == list(range(PARTITIONS * 10))
        committed = consumer.committed([TopicPartition("t", number) for number in range(PARTITIONS)])
        assert [found.offset for found in committed.values() if found] == [10] * PARTITIONS

    # A broker is killed: its partitions have no leader, the others continue; it comes back with a newer epoch.
    before = cluster.leaders("t", 1)
    mine = [number for number, (_, leader, _) in before.items() if leader == 3]
    cluster.brokers[3].kill()
    none = ErrorCode.LEADER_NOT_AVAILABLE
    eventually(lambda: all(cluster.leaders("t", 1)[n] == (none, -1, before[n][2] + 1) for n in mine))
    # The ends of its partitions are not known, and are not waited for.
    asked_for = ["groups", "describe", "g", "--json", "--bootstrap", cluster.bootstrap, "--timeout-ms", "100000000"]
    assert command.main(asked_for) == 0
    rows = {row["partition"]: row["log_end_offset"] for row in json.loads(capsys.readouterr().out)["g"]["offsets"]}
    assert rows == {number: None if number in mine else 10 for number in range(PARTITIONS)}
    cluster.brokers[3].start()
    eventually(lambda: all(cluster.leaders("t", 1)[n] == (0, 3, before[n][2] + 2) for n in mine))
    with Consumer(bootstrap_servers=cluster.bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition("t", n) for n in mine])
        ends = consumer.end_offsets([TopicPartition("t", n) for n in mine])
    assert list(ends.values()) == [10] * len(mine)


def test_a_partition_that_cannot_be_opened_has_no_leader(cluster: Cluster, tmp_path: Path) -> None:
    """All brokers report it. A producer without keys uses the others; with its log restored, the partition is led
    again."""
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        admin.create_topics([NewTopic("t", PARTITIONS)])
    eventually(lambda: all_led(cluster, "t", PARTITIONS))
    before = cluster.leaders("t", 1)
    lost = min(number for number, (_, leader, _) in before.items() if leader == 2)
    with Producer(bootstrap_servers=cluster.bootstrap) as producer:
        for number in range(PARTITIONS):
            assert producer.send("t", value=b"first", partition=number).result(PATIENCE_S).offset == 0
    cluster.brokers[2].stop()
    path = tmp_path / "broker2" / f"t-{lost}" / f"{0:020d}.log"
    path.rename(path.with_suffix(".kept"))
    path.mkdir()
    cluster.brokers[2].start()
    others = sorted(set(before) - {lost})

    def led() -> bool:
        reported = [cluster.leaders("t", number) for number in cluster.brokers]
        none = ErrorCode.LEADER_NOT_AVAILABLE, -1
        return all(
            found[lost][:2] == none and all(found[number][:2] == (0, before[number][1]) for number in others)
            for found in reported
        )

    eventually(led)
    with Producer(bootstrap_servers=cluster.bootstrap, batch_size=1) as producer:
        sent = [producer.send("t", value=b"second").result(PATIENCE_S).partition for _ in range(40)]
    assert lost not in sent
    cluster.brokers[2].stop()
    path.rmdir()
    path.with_suffix(".kept").rename(path)
    cluster.brokers[2].start()
    eventually(lambda: all_led(cluster, "t", PARTITIONS))
    assert all(cluster.leaders("t", number)[lost][1] == 2 for number in cluster.brokers)
    with Producer(bootstrap_servers=cluster.bootstrap) as producer:
        assert producer.send("t", value=b"third", partition=lost).result(PATIENCE_S).offset == 1


def all_led(cluster: Cluster, topic: str, partitions: int) -> bool:
    """Whether every broker reports it."""
    reported = [cluster.leaders(topic, number) for number in cluster.brokers]
    return all(len(found) == partitions and all(code == 0 for code, _, _ in found.values()) for found in reported)


def test_what_kafkas_tools_of_that_time_write(cluster: Cluster, znodes: KazooClient, tmp_path: Path) -> None:
    znodes.create("/config/topics/old", b'{"version":1,"config":{"retention.ms":"99000"}}')
    znodes.create("/brokers/topics/old", b'{"version":1,"partitions":{"1":[2],"0":[1]}}')
    eventually(lambda: cluster.leaders("old", 3) == {0: (0, 1, 0), 1: (0, 2, 0)})
    registered, _ = znodes.get("/brokers/topics/old")
    znodes.set("/brokers/topics/old", registered.replace(b'"1":[2]', b'"1":[2],"2":[3]'))
    eventually(lambda: all_led(cluster, "old", 3))
    assert {number: leader for number, (_, leader, _) in cluster.leaders("old", 1).items()} == {0: 1, 1: 2, 2: 3}
    with Producer(bootstrap_servers=cluster.bootstrap) as producer:
        for number in range(3):
            producer.send("old", value=b"v", partition=number)
        producer.flush()
    znodes.set("/config/topics/old", b'{"version":1,"config":{"retention.ms":"77000"}}')
    request = m.DescribeConfigsRequest([m.DescribeConfigsResource(2, "old", ["retention.ms"])])
    eventually(lambda: all(cluster.ask(n, request, 4).results[0].configs[0].value == "77000" for n in cluster.brokers))
    assert len(list(tmp_path.glob("broker*/old-?"))) == 3
    znodes.create("/admin/delete_topics/old")
    eventually(lambda: not list(tmp_path.glob("broker*/old-?")))
    eventually(lambda: znodes.exists("/brokers/topics/old") is None)


def test_a_broker_that_stood_still_comes_back_and_its_id_is_its_own(cluster: Cluster, tmp_path: Path) -> None:
    cluster.ask(1, m.MetadataRequest([m.MetadataRequestTopic(name="auto")], True), 9)
    eventually(lambda: all_led(cluster, "auto", 3))
    before = cluster.leaders("auto", 1)
    [mine] = [number for number, (_, leader, _) in before.items() if leader == 2]
    os.kill(cluster.brokers[2].pid, signal.SIGSTOP)
    try:
        eventually(lambda: cluster.leaders("auto", 1)[mine] == (5, -1, 1))
    finally:
        os.kill(cluster.brokers[2].pid, signal.SIGCONT)
    # Until it learns of the change, the suspended broker reports the old state.
    back = {**before, mine: (0, 2, 2)}
    eventually(lambda: all(cluster.leaders("auto", number) == back for number in cluster.brokers))
    twin = BrokerProcess(tmp_path / "twin", {**cluster.settings, "node.id": 2})
    with pytest.raises(AssertionError, match="broker 2 has its records in the data folder with the id"):
        twin.start()
    assert not (tmp_path / "twin").exists()
    properties = dict(line.split("=") for line in (tmp_path / "broker2" / "meta.properties").read_text().split()[1:])
    given_up = {"replaced.data.dir": properties["directory.id"]}
    twin = BrokerProcess(tmp_path / "twin", {**cluster.settings, "node.id": 2, **given_up})
    with pytest.raises(AssertionError, match="another broker is registered with the id 2"):
        twin.start()


def test_a_broker_that_a_copy_has_replaced_acknowledges_nothing_when_it_wakes_up(
    zookeeper: ZooKeeperServer, tmp_path: Path
) -> None:
    settings: dict[str, object] = {
        "zookeeper.connect": zookeeper.chroot(),
        "zookeeper.session.timeout.ms": 2_000,
        "num.partitions": 1,
    }
    batch = bytes(build_batch([(0, None, b"v", [])]))
    data = m.TopicProduceData("t", partition_data=[m.PartitionProduceData(0, batch)])
    request = m.ProduceRequest(None, -1, 60_000, [data])

    def answer(client: RawClient) -> int:
        found = client.receive(m.ProduceRequest, 9)
        code: int = found.responses[0].partition_responses[0].error_code
        return code

    def taken(broker: BrokerProcess) -> bool:
        with RawClient(broker.bootstrap) as client:
            client.ask(m.MetadataRequest([m.MetadataRequestTopic(name="t")], True), 9)
            client.send(request, 9)
            return answer(client) == 0

    with BrokerProcess(tmp_path / "folder", settings) as former:
        eventually(lambda: taken(former))
        with RawClient(former.bootstrap) as client:
            os.kill(former.pid, signal.SIGSTOP)
            try:
                client.send(request, 9)
                shutil.copytree(tmp_path / "folder", tmp_path / "copy")
                with BrokerProcess(tmp_path / "copy", settings) as copy:
                    eventually(lambda: taken(copy))
                    os.kill(former.pid, signal.SIGCONT)
                    assert answer(client) == ErrorCode.NOT_LEADER_OR_FOLLOWER
                    assert former.wait() == 1
                    assert "this data folder is an older copy" in former.log()
            finally:
                former.kill()
