"""An admin's everyday work, on Apache Kafka and on muster: partitions, records, settings, groups, disks, leaders."""

from __future__ import annotations

import uuid

import pytest

from muster.client.admin.admin import Admin
from muster.client.core.admin.admin import ConfigResource, ConfigResourceType, NewTopic
from muster.client.core.admin.configs import ConfigChange, ConfigOperation
from muster.client.core.admin.members import GroupMember
from muster.client.core.admin.partitions import ElectionType, NewPartitions
from muster.client.producer.producer import Producer
from muster.errors import ErrorCode, KafkaError
from muster.model import OffsetAndMetadata, TopicPartition
from muster.protocol.api import EARLIEST_TIMESTAMP
from tests.support.faces import rest, until, until_known

pytestmark = pytest.mark.slow


@pytest.fixture
def admin(cluster):
    with Admin(bootstrap_servers=cluster.bootstrap) as made:
        yield made


def code(answer):
    assert isinstance(answer, KafkaError), answer
    return answer.code


def codes(answers):
    return {item: None if answer is None else answer.code for item, answer in answers.items()}


def test_topics_are_given_more_partitions(admin, cluster):
    topic, other = cluster.topic(2), cluster.topic(1)
    tried = admin.create_partitions({topic: 3, "not-there": 3}, validate_only=True, raise_errors=False)
    assert codes(tried) == {topic: None, "not-there": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    until_known(cluster.bootstrap, topic, 2)
    done = admin.create_partitions({topic: 4, other: 1}, raise_errors=False)
    assert codes(done) == {topic: None, other: ErrorCode.INVALID_PARTITIONS}
    until_known(cluster.bootstrap, topic, 4)
    assert codes(admin.create_partitions({topic: 2, other: NewPartitions(2, [[1], [1]])}, raise_errors=False)) == {
        topic: ErrorCode.INVALID_PARTITIONS,
        other: ErrorCode.INVALID_REPLICA_ASSIGNMENT,
    }
    assert codes(admin.create_partitions({other: NewPartitions(2, [[1]])}, raise_errors=False)) == {other: None}


def test_a_group_rebalances_to_new_partitions(admin, cluster):
    topic = cluster.topic(1)
    with cluster.consumer("sync", metadata_max_age_ms=200) as consumer:
        consumer.subscribe([topic])
        until(lambda: len(consumer.assignment()) == 1, lambda: consumer.poll(50))
        admin.create_partitions({topic: 3})
        until(lambda: len(consumer.assignment()) == 3, lambda: consumer.poll(50))


def test_records_are_deleted(admin, cluster):
    topic = cluster.written(30, partitions=3)
    first, second, third = (TopicPartition(topic, number) for number in range(3))
    missing = TopicPartition(topic, 9)
    found = admin.delete_records({first: 4, second: -1, third: 11, missing: 1}, raise_errors=False)
    assert (found[first], found[second]) == (4, 10)
    assert code(found[third]) is ErrorCode.OFFSET_OUT_OF_RANGE
    assert code(found[missing]) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    begins = admin.list_offsets(dict.fromkeys([first, second, third], EARLIEST_TIMESTAMP))
    assert [begins[place].offset for place in (first, second, third)] == [4, 10, 0]
    assert admin.delete_records({first: 2}) == {first: 4}
    assert admin.delete_records({}) == {}


def test_records_of_a_compacted_topic_stay(admin, cluster):
    topic = f"t-{uuid.uuid4().hex[:8]}"
    admin.create_topics([NewTopic(topic, 1, configs={"cleanup.policy": "compact"})])
    until_known(cluster.bootstrap, topic, 1)
    place = TopicPartition(topic, 0)
    refused = admin.delete_records({place: 0}, raise_errors=False)[place]
    assert code(refused) is ErrorCode.POLICY_VIOLATION
    assert f"the records of {place} cannot be deleted: the topic's cleanup.policy does not include delete" in str(
        refused
    )


def test_settings_are_changed_one_by_one(admin, cluster):
    topic = cluster.topic(1)
    about, missing = (ConfigResource(ConfigResourceType.TOPIC, name) for name in (topic, "not-there"))

    def settings():
        return admin.describe_configs([about])[about]

    tried = admin.alter_configs({about: {"retention.ms": "77"}}, validate_only=True)
    assert tried == {about: None}
    assert settings()["retention.ms"].value == "-1"
    changes = [
        ConfigChange("segment.bytes", "2097152"),
        ConfigChange("cleanup.policy", "compact", ConfigOperation.APPEND),
        ConfigChange("retention.ms", None, ConfigOperation.DELETE),
    ]
    done = admin.alter_configs({about: changes, missing: {"retention.ms": "1"}}, raise_errors=False)
    assert codes(done) == {about: None, missing: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    until(lambda: settings()["segment.bytes"].value == "2097152", lambda: None)
    found = settings()
    assert set(found["cleanup.policy"].value.split(",")) == {"delete", "compact"}
    assert found["retention.ms"].is_default
    less = [ConfigChange("cleanup.policy", "delete", ConfigOperation.SUBTRACT)]
    assert admin.alter_configs({about: less}) == {about: None}
    until(lambda: settings()["cleanup.policy"].value == "compact", lambda: None)
    refused = admin.alter_configs({about: {"segment.bytes": "x", "retention.ms": "5"}}, raise_errors=False)
    assert code(refused[about]) is ErrorCode.INVALID_CONFIG
    assert settings()["retention.ms"].is_default, "of a resource's changes all are made, or none"


@pytest.mark.parametrize("cluster", ["kafka_cluster"], indirect=True)
def test_settings_of_brokers_and_groups(admin, cluster):
    """On the cluster, where no other test looks at the brokers' settings."""
    group = ConfigResource(ConfigResourceType.GROUP, cluster.group)
    every = ConfigResource(ConfigResourceType.BROKER, "")
    broker = ConfigResource(ConfigResourceType.BROKER, str(admin.describe_cluster().nodes[0].node_id))
    done = admin.alter_configs(
        {
            group: {"consumer.session.timeout.ms": "50000"},
            every: {"log.cleaner.threads": "1"},
            broker: {"log.cleaner.threads": "1"},
        }
    )
    assert done == {group: None, every: None, broker: None}
    until(lambda: group in admin.list_config_resources([ConfigResourceType.GROUP]), lambda: None)
    # A broker other than the one that listed the group may answer, and apply the change a moment later.
    session = "consumer.session.timeout.ms"
    until(lambda: admin.describe_configs([group])[group][session].value == "50000", lambda: None)
    undone = {group: {"consumer.session.timeout.ms": None}, every: {"log.cleaner.threads": None}}
    assert admin.alter_configs(undone | {broker: {"log.cleaner.threads": None}}) == done
    topic = cluster.topic(1)
    assert ConfigResource(ConfigResourceType.TOPIC, topic) in admin.list_config_resources()


def test_offsets_are_forgotten(admin, cluster):
    topic, other = cluster.topic(2), cluster.topic(1)
    places = [TopicPartition(topic, 0), TopicPartition(topic, 1), TopicPartition(other, 0)]
    admin.alter_consumer_group_offsets(cluster.group, dict.fromkeys(places, 5))
    assert codes(admin.delete_consumer_group_offsets(cluster.group, places[:1], raise_errors=False)) == {
        places[0]: None
    }
    assert set(admin.list_consumer_group_offsets(cluster.group)) == set(places[1:])
    with cluster.consumer("sync", enable_auto_commit=False) as consumer:
        consumer.subscribe([topic])
        until(lambda: len(consumer.assignment()) == 2, lambda: consumer.poll(50))
        found = admin.delete_consumer_group_offsets(cluster.group, places, raise_errors=False)
        subscribed = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
        assert codes(found) == {places[0]: subscribed, places[1]: subscribed, places[2]: None}
    missing = admin.delete_consumer_group_offsets(f"{cluster.group}-not-there", places[:1], raise_errors=False)
    assert codes(missing) == {places[0]: ErrorCode.GROUP_ID_NOT_FOUND}
    assert admin.list_consumer_group_offsets(cluster.group) == {places[1]: OffsetAndMetadata(5)}


def test_members_are_removed(admin, cluster):
    topic = cluster.topic(2)
    static = {"group_instance_id": "one", "session_timeout_ms": 60_000}
    with cluster.consumer("sync", **static) as consumer:
        consumer.subscribe([topic])
        until(lambda: len(consumer.assignment()) == 2, lambda: consumer.poll(50))
        group = admin.describe_consumer_groups([cluster.group])[cluster.group]
        [member] = group.members
        strangers = [GroupMember("stranger"), GroupMember("", "two")]
        found = admin.remove_consumer_group_members(cluster.group, strangers, raise_errors=False)
        assert codes(found) == dict.fromkeys(strangers, ErrorCode.UNKNOWN_MEMBER_ID)
        assert member.group_instance_id == "one"
        assert admin.remove_consumer_group_members(cluster.group, reason="moved") == {GroupMember("", "one"): None}
        until(lambda: len(consumer.assignment()) == 2, lambda: consumer.poll(50))
    with cluster.consumer("sync") as consumer:
        consumer.subscribe([topic])
        admin.remove_consumer_group_members(cluster.group)
        until(lambda: len(consumer.assignment()) == 2, lambda: consumer.poll(50))
        group = admin.describe_consumer_groups([cluster.group])[cluster.group]
        gone = GroupMember(group.members[0].member_id)
        assert admin.remove_consumer_group_members(cluster.group, [gone]) == {gone: None}
        until(lambda: consumer.group_metadata().member_id not in ("", gone.member_id), lambda: consumer.poll(50))
    with pytest.raises(KafkaError, match="GROUP_ID_NOT_FOUND"):
        admin.remove_consumer_group_members(f"{cluster.group}-not-there")


def test_log_directories(admin, cluster):
    topic = cluster.written(10, partitions=2)
    node = admin.describe_cluster().nodes[0].node_id
    found = admin.describe_log_dirs()
    assert set(found) == {node}
    [(path, directory)] = found[node].items()
    assert path.startswith("/")
    assert directory.error is None
    replica = directory.replicas[TopicPartition(topic, 1)]
    assert replica.size > 0
    assert (replica.offset_lag, replica.is_future) == (0, False)
    assert directory.total_bytes >= directory.usable_bytes > 0
    assert code(admin.describe_log_dirs([99], raise_errors=False)[99]) is ErrorCode.BROKER_NOT_AVAILABLE


def test_producers(admin, cluster):
    topic = cluster.topic(2)
    place, missing = TopicPartition(topic, 0), TopicPartition(topic, 9)
    with Producer(bootstrap_servers=cluster.bootstrap) as producer:
        for _ in range(3):
            producer.send(topic, b"x", partition=0).result(300)
    found = admin.describe_producers([place, TopicPartition(topic, 1), missing], raise_errors=False)
    [state] = found[place]
    assert state.producer_id >= 0
    assert (state.producer_epoch, state.last_sequence) == (0, 2)
    assert state.last_timestamp > 0
    assert state.transaction_start_offset is None
    assert found[TopicPartition(topic, 1)] == []
    assert code(found[missing]) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_elections_on_one_broker(admin, cluster):
    topic = cluster.topic(1)
    place, missing = TopicPartition(topic, 0), TopicPartition(f"no-{uuid.uuid4().hex}", 0)
    found = admin.elect_leaders(ElectionType.PREFERRED, [place, missing], raise_errors=False)
    assert codes(found) == {place: ErrorCode.ELECTION_NOT_NEEDED, missing: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert codes(admin.elect_leaders(ElectionType.UNCLEAN, [place], raise_errors=False)) == {
        place: ErrorCode.ELECTION_NOT_NEEDED
    }
    assert place not in admin.elect_leaders(ElectionType.PREFERRED, raise_errors=False)


def test_reassignments_on_one_broker(admin, cluster):
    topic = cluster.topic(2)
    place, other = TopicPartition(topic, 0), TopicPartition(topic, 1)
    missing = TopicPartition(f"no-{uuid.uuid4().hex}", 0)
    assert codes(
        admin.alter_partition_reassignments({place: [1], other: [1, 9], missing: [1]}, raise_errors=False)
    ) == {
        place: None,
        other: ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        missing: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert codes(admin.alter_partition_reassignments({place: None}, raise_errors=False)) == {
        place: ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
    }
    done = admin.alter_partition_reassignments({place: [1]}, allow_replication_factor_change=False)
    assert codes(done) == {place: None}
    assert admin.list_partition_reassignments() == admin.list_partition_reassignments([place, missing]) == {}


def test_replicas_stay_in_their_folder(admin, cluster):
    place = TopicPartition(cluster.topic(1), 0)
    cluster.produce(place.topic, 1)
    [folder] = admin.describe_log_dirs([1])[1]
    assert codes(admin.alter_replica_log_dirs(1, {place: folder}, raise_errors=False)) == {place: None}
    assert codes(admin.alter_replica_log_dirs(1, {place: "/none"}, raise_errors=False)) == {
        place: ErrorCode.LOG_DIR_NOT_FOUND
    }
    with pytest.raises(KafkaError) as refused:
        admin.alter_replica_log_dirs(99, {place: folder})
    assert refused.value.code is ErrorCode.BROKER_NOT_AVAILABLE


def test_partitions_move_between_brokers(kafka_cluster):
    """On Kafka: muster's partitions do not move."""
    place = TopicPartition(f"moves-{uuid.uuid4().hex}", 0)
    with Admin(bootstrap_servers=kafka_cluster.bootstrap) as admin:
        admin.create_topics([NewTopic(place.topic, assignments={0: [1, 2]})])

        until_known(kafka_cluster.bootstrap, place.topic, 1)

        def partition():
            return admin.describe_topics([place.topic])[place.topic].partitions[0]

        refused = admin.alter_partition_reassignments(
            {place: [1, 2, 3]}, allow_replication_factor_change=False, raise_errors=False
        )
        assert codes(refused) == {place: ErrorCode.INVALID_REPLICATION_FACTOR}
        assert codes(admin.alter_partition_reassignments({place: [3, 2]}, raise_errors=False)) == {place: None}
        until(lambda: partition().replicas == [3, 2] and not admin.list_partition_reassignments([place]), rest)
        elected = codes(admin.elect_leaders(ElectionType.PREFERRED, [place], raise_errors=False))
        assert elected[place] in (None, ErrorCode.ELECTION_NOT_NEEDED)
        until(lambda: partition().leader_id == 3, rest)
