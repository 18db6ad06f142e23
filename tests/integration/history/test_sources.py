"""The history of real groups, read from running brokers and from their folders."""

from __future__ import annotations

import time
import uuid

import pytest
from confluent_kafka import Consumer as OutsideConsumer
from confluent_kafka import Producer as OutsideProducer
from confluent_kafka import TopicPartition as Place

from muster.client.admin import Admin
from muster.client.core.admin import ConfigResource, ConfigResourceType, GroupDescription, NewTopic, TopicDescription
from muster.history import engine
from muster.history.cluster_limits import limits_of
from muster.history.ends import lag_samples
from muster.history.folder import FolderTopic
from muster.history.lag import Committed
from muster.history.live import LiveTopic, RefusedError
from muster.history.model import Cause, GroupKind, Limits
from muster.history.raw import OFFSETS_TOPIC
from muster.history.remarks import Remarks
from muster.model import TopicPartition
from tests.support.faces import PATIENCE_S, Cluster

pytestmark = pytest.mark.slow

LIMITS = Limits()


@pytest.fixture(params=["muster", "kafka"])
def cluster(request):
    fixture = "shared_muster" if request.param == "muster" else "kafka_broker"
    return Cluster(request.getfixturevalue(fixture).bootstrap)


def fresh(prefix):
    return f"{prefix}-{uuid.uuid4().hex[:8]}"


def live(bootstrap, group):
    """What the cluster's records say of a group, which is bound to have some, and the readers' remarks."""
    remarks = Remarks()
    with Admin(bootstrap_servers=bootstrap) as admin:
        topic = LiveTopic(admin, (bootstrap,), OFFSETS_TOPIC, remarks)
        return engine.read_history(topic, LIMITS, {group}, int(time.time() * 1000)), remarks.sentences()


def test_a_running_cluster_is_read_by_no_member_and_nothing_is_committed(cluster):
    topic, group = cluster.topic(2), fresh("history")
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        places = {TopicPartition(topic, 0): 3, TopicPartition(topic, 1): 7}
        assert set(admin.alter_consumer_group_offsets(group, places).values()) == {None}
        admin.alter_consumer_group_offsets(group, {TopicPartition(topic, 0): 5})
        found, _ = live(cluster.bootstrap, group)
        again, _ = live(cluster.bootstrap, group)
        assert not [one.group_id for one in admin.list_consumer_groups() if "muster-history" in one.group_id]
    committed = {place: position.offset for place, position in found.committed[group].items()}
    assert committed == {(topic, 0): 5, (topic, 1): 7}
    assert found.kinds[group] in (GroupKind.OFFSETS_ONLY, GroupKind.CLASSIC)
    assert again.committed == found.committed


def test_commits_of_a_transaction_count_once_it_is_committed(kafka_broker):
    group = fresh("transactional")
    topic = Cluster(kafka_broker.bootstrap).topic(1)
    reader = OutsideConsumer({"bootstrap.servers": kafka_broker.bootstrap, "group.id": group})
    producer = OutsideProducer({"bootstrap.servers": kafka_broker.bootstrap, "transactional.id": group})
    producer.init_transactions(PATIENCE_S)
    for offset, ends in ((3, producer.commit_transaction), (9, producer.abort_transaction)):
        producer.begin_transaction()
        producer.produce(topic, b"value")
        producer.flush()
        producer.send_offsets_to_transaction([Place(topic, 0, offset)], reader.consumer_group_metadata(), PATIENCE_S)
        ends(PATIENCE_S)
    reader.close()
    found, _ = live(kafka_broker.bootstrap, group)
    assert found.committed[group][topic, 0].offset == 3

    # Two records and two markers are in the log: behind offset 0 there are two records, of which one was aborted.
    with Admin(bootstrap_servers=kafka_broker.bootstrap) as admin:
        committed = {group: {(topic, 0): Committed(0, 0)}, "up to the end": {(topic, 0): Committed(4, 0)}}
        samples = lag_samples(admin, (kafka_broker.bootstrap,), committed, 5, Remarks())
    assert [(sample.log_end_offset, sample.records) for sample in samples] == [(4, 2), (4, 0)]
    assert samples[0].oldest_ms is not None

    folder = FolderTopic([kafka_broker.folder / "data"], OFFSETS_TOPIC, Remarks())
    in_folder = engine.read_history(folder, LIMITS, {group}, None)
    assert in_folder.committed[group] == found.committed[group]


def test_a_folder_of_muster_says_what_the_broker_does(muster_process):
    group, bootstrap = fresh("folder"), muster_process.bootstrap
    topic = Cluster(bootstrap).topic(1)
    with Admin(bootstrap_servers=bootstrap) as admin:
        admin.alter_consumer_group_offsets(group, {TopicPartition(topic, 0): 4})
    running, _ = live(bootstrap, group)
    folder = FolderTopic([muster_process.folder], OFFSETS_TOPIC, Remarks())
    in_use = engine.read_history(folder, LIMITS, None, None)
    assert in_use.committed[group] == running.committed[group]


def test_lag_is_told_of_what_can_be_reached(cluster):
    topic, group = cluster.topic(2), fresh("lag")
    cluster.produce(topic, 10, partitions=2)
    remarks = Remarks()
    committed = {
        group: {(topic, 0): Committed(2, 0), (topic, 1): Committed(5, 0), ("gone-" + topic, 0): Committed(0, 0)}
    }
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        samples = lag_samples(admin, (cluster.bootstrap,), committed, 5, remarks)
    assert [(s.partition, s.log_start_offset, s.log_end_offset, s.records) for s in samples] == [
        (0, 0, 5, 3),
        (1, 0, 5, 0),
    ]
    assert [f"gone-{topic}" in said for said in remarks.sentences()] == [True]


def test_a_topic_that_is_not_there_is_refused(cluster):
    with Admin(bootstrap_servers=cluster.bootstrap) as admin, pytest.raises(RefusedError, match="no topic"):
        LiveTopic(admin, (cluster.bootstrap,), fresh("nothing"), Remarks())


def test_a_group_of_kip_848_is_described_and_its_epochs_are_read(kafka_broker):
    bootstrap, group = kafka_broker.bootstrap, fresh("epochs")
    with Admin(bootstrap_servers=bootstrap) as admin:
        topic = fresh("flights")
        admin.create_topics([NewTopic(topic, 2)])
        member = OutsideConsumer(
            {"bootstrap.servers": bootstrap, "group.id": group, "group.protocol": "consumer", "client.id": "one"}
        )
        member.subscribe([topic])
        until = time.monotonic() + PATIENCE_S
        while len(member.assignment()) < 2 and time.monotonic() < until:
            member.poll(0.1)
        described = admin.describe_consumer_groups([group])[group]
        member.close()
    assert isinstance(described, GroupDescription)
    (one,) = described.members
    assert (one.client_id, one.topics, one.epoch) == ("one", [topic], described.epoch)
    assert one.assignment == one.target == [TopicPartition(topic, 0), TopicPartition(topic, 1)]
    found, _ = live(bootstrap, group)
    assert found.kinds[group] is GroupKind.CONSUMER
    assert [row.cause for row in sorted(found.rows.rebalances, key=lambda row: row.at_ms)] == [
        Cause.STARTED,
        Cause.LEFT,
    ]


def test_a_cluster_tells_what_its_log_does_not(cluster):
    topic = cluster.topic(1)
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        limits = limits_of(admin)
        described = admin.describe_topics([topic])[topic]
        assert isinstance(described, TopicDescription)
        assert limits.topic_names[described.topic_id.hex()] == topic
        broker = ConfigResource(ConfigResourceType.BROKER, str(admin.describe_cluster().nodes[0].node_id))
        settings = admin.describe_configs([broker])[broker]
        assert isinstance(settings, dict)
    told = {
        name: int(entry.value or 0) for name, entry in settings.items() if "retention.min" in name or "sess" in name
    }
    assert limits.offsets_retention_ms == told["offsets.retention.minutes"] * 60_000
    # muster's broker has no groups of that protocol, and no such setting.
    assert limits.consumer_session_timeout_ms == told.get("group.consumer.session.timeout.ms", 45_000)
