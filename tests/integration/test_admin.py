"""Admin on muster and on Apache Kafka, through both faces."""

from __future__ import annotations

import asyncio
import uuid

import pytest

from muster.client.admin.admin import Admin
from muster.client.admin.async_admin import AsyncAdmin
from muster.client.core.admin.admin import (
    ConfigResource,
    ConfigResourceType,
    GroupDescription,
    NewTopic,
    TopicDescription,
)
from muster.client.core.admin.members import GroupMember
from muster.client.core.admin.partitions import ElectionType
from muster.client.core.admin.transactions import AbortTransactionSpec
from muster.client.producer.producer import Producer
from muster.errors import AdminError, ErrorCode, KafkaError
from muster.model import OffsetAndMetadata, TopicPartition
from muster.protocol.api import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from tests.support.faces import read, rest, until, until_known

pytestmark = pytest.mark.slow


@pytest.fixture
def admin(cluster):
    with Admin(bootstrap_servers=cluster.bootstrap) as made:
        yield made


def name(prefix="t"):
    return f"{prefix}-{uuid.uuid4().hex[:8]}"


def create(admin, topic):
    """The answer; a deleted topic's name may not be free at once."""
    rest()
    return admin.create_topics([NewTopic(topic, 1)], raise_errors=False)[topic]


def code(answer):
    assert isinstance(answer, KafkaError), answer
    return answer.code


def test_topics_are_created_listed_described_and_deleted(admin, cluster):
    topic, other = name(), name()
    created = admin.create_topics(
        [NewTopic(topic, 3, configs={"retention.ms": "5000"}), other, NewTopic("bad name")], raise_errors=False
    )
    assert (created[topic].num_partitions, created[topic].replication_factor) == (3, 1)
    assert code(created["bad name"]) is ErrorCode.INVALID_TOPIC_EXCEPTION
    assert code(admin.create_topics([topic], raise_errors=False)[topic]) is ErrorCode.TOPIC_ALREADY_EXISTS
    until_known(cluster.bootstrap, topic, 3)
    listed = {found.name: found for found in admin.list_topics()}
    assert listed[topic].topic_id == created[topic].topic_id
    described = admin.describe_topics([topic, "not-there"], raise_errors=False)
    assert isinstance(described[topic], TopicDescription)
    assert [part.partition for part in described[topic].partitions] == [0, 1, 2]
    assert {part.leader_id for part in described[topic].partitions} == {1}
    assert code(described["not-there"]) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert admin.delete_topics([topic, other])[topic] is None
    assert code(admin.delete_topics([topic], raise_errors=False)[topic]) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    until_known(cluster.bootstrap, topic, 0)
    assert topic not in {found.name for found in admin.list_topics()}


def test_creation_can_be_tried_without_doing_it(admin):
    topic = name()
    admin.create_topics([NewTopic(topic, 1)], validate_only=True)
    assert (
        code(admin.create_topics([NewTopic(topic, 0)], validate_only=True, raise_errors=False)[topic])
        is ErrorCode.INVALID_PARTITIONS
    )
    assert topic not in {found.name for found in admin.list_topics()}


def test_asking_for_a_topic_does_not_create_it(admin):
    topic = name()
    assert code(admin.describe_topics([topic], raise_errors=False)[topic]) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    found = admin.list_offsets({TopicPartition(topic, 0): LATEST_TIMESTAMP}, raise_errors=False)
    assert code(found[TopicPartition(topic, 0)]) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert topic not in {found.name for found in admin.list_topics()}


def test_the_cluster_and_its_settings(admin, cluster):
    found = admin.describe_cluster()
    assert [f"{node.host}:{node.port}" for node in found.nodes] == [cluster.bootstrap]
    assert found.cluster_id
    topic = name()
    admin.create_topics([NewTopic(topic, 1, configs={"retention.ms": "5000"})])
    until_known(cluster.bootstrap, topic, 1)
    about = ConfigResource(ConfigResourceType.TOPIC, topic)
    broker = ConfigResource(ConfigResourceType.BROKER, str(found.nodes[0].node_id))
    missing = ConfigResource(ConfigResourceType.TOPIC, "not-there")
    settings = admin.describe_configs([about, broker, missing], raise_errors=False)
    assert code(settings[missing]) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert settings[about]["retention.ms"].value == "5000"
    assert not settings[about]["retention.ms"].is_default
    assert settings[about]["cleanup.policy"].is_default
    assert settings[broker]["num.partitions"].value == "1"


def test_offsets_are_listed(admin, cluster):
    topic = cluster.written(10, partitions=2)
    zero, one, none = (TopicPartition(topic, number) for number in (0, 1, 9))
    ends = admin.list_offsets(
        {zero: LATEST_TIMESTAMP, one: EARLIEST_TIMESTAMP, none: LATEST_TIMESTAMP}, raise_errors=False
    )
    assert (ends[zero].offset, ends[one].offset) == (5, 0)
    assert code(ends[none]) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    # Record number n has timestamp 1000 (n + 1); partition 0 holds 0, 2, 4, 6, 8.
    by_time = admin.list_offsets({zero: 4_500, one: 10**13}, isolation_level="read_committed")
    assert (by_time[zero].offset, by_time[zero].timestamp) == (2, 5_000)
    assert by_time[one] is None


def test_groups_are_listed_and_described(admin, cluster):
    topic = cluster.written(10, partitions=2)
    settings = {"client_id": "reader", "group_instance_id": "one", "partition_assignment_strategy": ("roundrobin",)}
    with cluster.consumer("sync", enable_auto_commit=False, **settings) as consumer:
        consumer.subscribe([topic])
        read(consumer, 10)
        consumer.commit()
        (listed,) = (found for found in admin.list_consumer_groups() if found.group_id == cluster.group)
        assert (listed.protocol_type, listed.state, listed.group_type.lower()) == ("consumer", "Stable", "classic")
        stable = {found.group_id for found in admin.list_consumer_groups(states=["Stable"], types=["classic"])}
        assert cluster.group in stable
        assert cluster.group not in {found.group_id for found in admin.list_consumer_groups(states=["Empty"])}
        described = admin.describe_consumer_groups([cluster.group, "not-there"], raise_errors=False)
        assert code(described["not-there"]) is ErrorCode.GROUP_ID_NOT_FOUND
        group = described[cluster.group]
        assert isinstance(group, GroupDescription)
        assert (group.state, group.assignor, group.coordinator.node_id) == ("Stable", "roundrobin", 1)
        (member,) = group.members
        assert (member.client_id, member.group_instance_id, member.topics) == ("reader", "one", [topic])
        assert member.host == "/127.0.0.1"
        assert member.assignment == [TopicPartition(topic, 0), TopicPartition(topic, 1)]
        committed = admin.list_consumer_group_offsets(cluster.group)
        assert {place.partition: found.offset for place, found in committed.items()} == {0: 5, 1: 5}
        assert admin.list_offsets_of_consumer_groups([cluster.group, "not-there"]) == {
            cluster.group: committed,
            "not-there": {},
        }
        assert (
            code(admin.delete_consumer_groups([cluster.group], raise_errors=False)[cluster.group])
            is ErrorCode.NON_EMPTY_GROUP
        )
        refused = admin.alter_consumer_group_offsets(cluster.group, {TopicPartition(topic, 0): 1}, raise_errors=False)
        assert code(refused[TopicPartition(topic, 0)]) is ErrorCode.UNKNOWN_MEMBER_ID


def test_the_offsets_of_an_empty_group_are_set_and_forgotten(admin, cluster):
    topic = cluster.topic(2)
    zero, one = TopicPartition(topic, 0), TopicPartition(topic, 1)
    altered = admin.alter_consumer_group_offsets(cluster.group, {zero: 3, one: OffsetAndMetadata(4, -1, "noted")})
    assert altered == {zero: None, one: None}
    found = admin.list_consumer_group_offsets(cluster.group)
    assert found == {zero: OffsetAndMetadata(3), one: OffsetAndMetadata(4, -1, "noted")}
    assert admin.list_consumer_group_offsets(cluster.group, [one, TopicPartition(topic, 7)]) == {one: found[one]}
    assert admin.list_consumer_group_offsets("not-there") == {}
    deleted = admin.delete_consumer_groups([cluster.group, "not-there"], raise_errors=False)
    assert deleted[cluster.group] is None
    assert code(deleted["not-there"]) is ErrorCode.GROUP_ID_NOT_FOUND
    assert admin.list_consumer_group_offsets(cluster.group) == {}


@pytest.mark.any_loop
async def test_the_async_face(cluster):
    topic = name()
    async with AsyncAdmin({"bootstrap.servers": cluster.bootstrap}) as admin:
        created = (await admin.create_topics([NewTopic(topic, 2)]))[topic]
        assert created.num_partitions == 2
        await asyncio.to_thread(until_known, cluster.bootstrap, topic, 2)
        assert topic in {found.name for found in await admin.list_topics()}
        assert (await admin.delete_topics([topic])) == {topic: None}


def test_a_deleted_and_recreated_topic_is_written_to_again(admin, cluster):
    topic = cluster.topic(1)
    with Producer(bootstrap_servers=cluster.bootstrap) as producer:
        assert producer.send_and_wait(topic, b"old").offset == 0
        cluster.delete(topic)
        made: list[object] = []
        until(lambda: bool(made) and not isinstance(made[-1], KafkaError), lambda: made.append(create(admin, topic)))
        # Before the broker knows of it, it may accept the record for the former topic, with which it is deleted.
        until_known(cluster.bootstrap, topic, 1)
        assert producer.send_and_wait(topic, b"new").offset == 0


NONE = TopicPartition("not-there", 0)
STRANGERS = [GroupMember("stranger"), GroupMember("another")]
MISSING = ConfigResource(ConfigResourceType.TOPIC, "not-there")
TRIES = 3
"""A topic that does not exist might be created: some calls wait for it."""

FAILING = {
    "create_topics": lambda a, **how: a.create_topics(["bad name", "worse name"], **how),
    "delete_topics": lambda a, **how: a.delete_topics(["not-there"], **how),
    "describe_topics": lambda a, **how: a.describe_topics(["not-there"], **how),
    "list_offsets": lambda a, **how: a.list_offsets({NONE: LATEST_TIMESTAMP}, **how),
    "create_partitions": lambda a, **how: a.create_partitions({"not-there": 3}, **how),
    "delete_records": lambda a, **how: a.delete_records({NONE: 1}, **how),
    "describe_producers": lambda a, **how: a.describe_producers([NONE], **how),
    "elect_leaders": lambda a, **how: a.elect_leaders(ElectionType.PREFERRED, [NONE], **how),
    "alter_partition_reassignments": lambda a, **how: a.alter_partition_reassignments({NONE: [1]}, **how),
    "describe_configs": lambda a, **how: a.describe_configs([MISSING], **how),
    "alter_configs": lambda a, **how: a.alter_configs({MISSING: {"retention.ms": "1"}}, **how),
    "describe_log_dirs": lambda a, **how: a.describe_log_dirs([99], **how),
    "alter_replica_log_dirs": lambda a, **how: a.alter_replica_log_dirs(1, {NONE: "/none"}, **how),
    "describe_consumer_groups": lambda a, **how: a.describe_consumer_groups(["not-there"], **how),
    "delete_consumer_groups": lambda a, **how: a.delete_consumer_groups(["not-there"], **how),
    "alter_consumer_group_offsets": lambda a, **how: a.alter_consumer_group_offsets("not-there", {NONE: 1}, **how),
    "remove_consumer_group_members": lambda a, **how: a.remove_consumer_group_members("not-there", STRANGERS, **how),
    "delete_consumer_group_offsets": lambda a, **how: a.delete_consumer_group_offsets("not-there", [NONE], **how),
    "describe_transactions": lambda a, **how: a.describe_transactions(["not-there"], **how),
    "abort_transaction": lambda a, **how: a.abort_transaction(AbortTransactionSpec(NONE, 1, 0), **how),
    "fence_producers": lambda a, **how: a.fence_producers([""], **how),
}


@pytest.mark.parametrize("call", FAILING.values(), ids=FAILING)
async def test_a_call_that_failed_raises_unless_the_outcomes_are_asked_for(cluster, call):
    async with AsyncAdmin(bootstrap_servers=cluster.bootstrap) as patient:
        # They wait for the coordinators' topics.
        await patient.describe_transactions(["not-there"], raise_errors=False)
        await patient.describe_consumer_groups(["not-there"], raise_errors=False)
    async with AsyncAdmin(bootstrap_servers=cluster.bootstrap, retries=TRIES) as admin:
        with pytest.raises(AdminError) as raised:
            await call(admin)
        outcomes = await call(admin, raise_errors=False)
    blocking = await asyncio.to_thread(both_ways, cluster.bootstrap, call)
    for error, returned in ((raised.value, outcomes), blocking):
        assert codes(error.outcomes) == codes(returned)
        assert error.code is error.first.code is codes(returned)[0]
        assert error.__cause__ is error.first


def codes(answers):
    return [code(answer) for answer in answers.values()]


def both_ways(bootstrap, call):
    with Admin(bootstrap_servers=bootstrap, retries=TRIES) as admin:
        with pytest.raises(AdminError) as raised:
            call(admin)
        return raised.value, call(admin, raise_errors=False)


def test_what_succeeded_is_among_the_outcomes_of_a_call_that_failed(admin, cluster):
    topic = name()
    with pytest.raises(AdminError, match="INVALID_TOPIC_EXCEPTION") as raised:
        admin.create_topics([topic, "bad name"])
    assert raised.value.outcomes[topic].num_partitions == 1
    until_known(cluster.bootstrap, topic, 1)
    with pytest.raises(AdminError, match=f"TOPIC_ALREADY_EXISTS: Topic '{topic}' already exists"):
        admin.create_topics([topic])
