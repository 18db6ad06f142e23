"""How an admin client builds its requests and reads the answers, without a broker."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from muster.client.admin.cluster import ClusterPart
from muster.client.core.admin import admin
from muster.client.core.admin import configs as admin_configs
from muster.client.core.admin import members as admin_members
from muster.client.core.admin import partitions as admin_partitions
from muster.client.core.admin import replicas as admin_replicas
from muster.client.core.admin.admin import ConfigResource, ConfigResourceType, GroupDescription, MemberDescription
from muster.client.core.admin.configs import ConfigChange, ConfigOperation
from muster.client.core.admin.members import GroupMember
from muster.client.core.admin.partitions import ElectionType, NewPartitions
from muster.client.core.sends import LEAST_LOADED
from muster.errors import ErrorCode, IllegalArgumentError, KafkaError, UnsupportedVersionError
from muster.model import Node, TopicPartition
from muster.protocol import admin_messages as a
from muster.protocol import messages as m

TOPIC = ConfigResource(ConfigResourceType.TOPIC, "t")
PLACES = [TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)]


def codes(answers):
    return {item: answer.code if isinstance(answer, KafkaError) else answer for item, answer in answers.items()}


# --- settings --------------------------------------------------------------------------------------------------------


def test_a_mapping_sets_and_deletes():
    assert admin_configs.config_changes(TOPIC, {"a": "1", "b": None}) == [
        ConfigChange("a", "1", ConfigOperation.SET),
        ConfigChange("b", None, ConfigOperation.DELETE),
    ]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ([ConfigChange("a")], "a of t: SET with value None"),
        ([ConfigChange("a", "1", ConfigOperation.DELETE)], "a of t: DELETE with value '1'"),
        ([ConfigChange("a", None, ConfigOperation.APPEND)], "a of t: APPEND with value None"),
        ({"a": 5}, "a of t is 5; it must be text"),
        ({"\ud800": "1"}, "cannot be encoded as UTF-8"),
        ([ConfigChange("a", "1"), ConfigChange("a", "2", ConfigOperation.APPEND)], "a is changed twice"),
    ],
)
def test_changes_that_no_broker_could_read(change, sentence):
    with pytest.raises(IllegalArgumentError, match=sentence):
        admin_configs.config_changes(TOPIC, change)


@pytest.mark.parametrize(
    ("resource", "node"),
    [
        (TOPIC, None),
        (ConfigResource(ConfigResourceType.TOPIC, "7"), None),
        (ConfigResource(ConfigResourceType.BROKER, "7"), 7),
        (ConfigResource(ConfigResourceType.BROKER_LOGGER, "7"), 7),
        (ConfigResource(ConfigResourceType.BROKER, ""), None),
        (ConfigResource(ConfigResourceType.GROUP, "7"), None),
    ],
)
def test_a_broker_keeps_its_own_settings(resource, node):
    assert admin_configs.own_node(resource) == node


def test_the_request_names_each_change():
    changes = {
        TOPIC: [ConfigChange("a", "1", ConfigOperation.SUBTRACT), ConfigChange("b", None, ConfigOperation.DELETE)]
    }
    request = admin_configs.alter_configs_request(changes, validate_only=True)
    [resource] = request.resources
    assert (resource.resource_type, resource.resource_name, request.validate_only) == (2, "t", True)
    found = [(change.name, change.config_operation, change.value) for change in resource.configs]
    assert found == [("a", 3, "1"), ("b", 1, None)]


def test_resources_of_unknown_types_are_left_out():
    listed = [a.ConfigResource("t", 2), a.ConfigResource("new", 99), a.ConfigResource("g", 32)]
    found = admin_configs.listed_resources(a.ListConfigResourcesResponse(0, 0, listed))
    assert found == [TOPIC, ConfigResource(ConfigResourceType.GROUP, "g")]


def test_old_brokers_list_what_has_settings_of_client_metrics_only():
    metrics = [ConfigResourceType.CLIENT_METRICS]
    assert admin_configs.list_resources_request(0, metrics).resource_types == [16]
    assert admin_configs.list_resources_request(1, []).resource_types == []
    for types in ([], [ConfigResourceType.TOPIC], [*metrics, ConfigResourceType.TOPIC]):
        with pytest.raises(UnsupportedVersionError, match=r"needs Kafka 4\.1"):
            admin_configs.list_resources_request(0, types)


# --- partitions ------------------------------------------------------------------------------------------------------


def test_a_number_is_that_of_all_partitions():
    asked = admin_partitions.new_partitions("t", 6)
    assert (asked.name, asked.count, asked.assignments) == ("t", 6, None)
    asked = admin_partitions.new_partitions("t", NewPartitions(3, [[1, 2]]))
    assert [each.broker_ids for each in asked.assignments or []] == [[1, 2]]
    with pytest.raises(IllegalArgumentError, match=r"the number of partitions of t is 2\.5"):
        admin_partitions.new_partitions("t", 2.5)  # type: ignore[arg-type]


def test_records_are_deleted_before_an_offset():
    offsets = admin_partitions.check_deletion_offsets({PLACES[0]: 5, PLACES[2]: -1, PLACES[1]: 0})
    request = admin_partitions.delete_records_request(offsets, 9)
    assert [(topic.name, [(p.partition_index, p.offset) for p in topic.partitions]) for topic in request.topics] == [
        ("t", [(0, 5), (1, 0)]),
        ("u", [(0, -1)]),
    ]
    wrong: Any
    for wrong in (-2, 2**63, "5"):
        with pytest.raises(IllegalArgumentError, match="the offset of t-0"):
            admin_partitions.check_deletion_offsets({PLACES[0]: wrong})


def test_what_became_of_records():
    parts = [a.DeleteRecordsPartitionResult(0, 5), a.DeleteRecordsPartitionResult(1, -1, ErrorCode.OFFSET_OUT_OF_RANGE)]
    answer = a.DeleteRecordsResponse(0, [a.DeleteRecordsTopicResult("t", parts)])
    found = admin_partitions.deleted_records(answer)
    assert codes(found) == {PLACES[0]: 5, PLACES[1]: ErrorCode.OFFSET_OUT_OF_RANGE}
    none_deleted = a.DeleteRecordsResponse(0, [a.DeleteRecordsTopicResult("t", [a.DeleteRecordsPartitionResult(0, 0)])])
    assert admin_partitions.deleted_records(none_deleted) == {PLACES[0]: 0}


def test_a_partition_without_producers_has_an_empty_list():
    answer = a.DescribeProducersResponse(0, [a.TopicResponse("t", [a.PartitionResponse(0)])])
    assert admin_partitions.described_producers(answer) == {PLACES[0]: []}
    state = a.ProducerState(7, 1, 5, 99, -1, -1)
    other = a.ProducerState(3, 0, -1, -1, 0, 0)
    answer = a.DescribeProducersResponse(
        0, [a.TopicResponse("t", [a.PartitionResponse(0, active_producers=[state, other])])]
    )
    found = admin_partitions.described_producers(answer)[PLACES[0]]
    assert not isinstance(found, KafkaError)
    first, second = found
    assert (first.producer_id, first.coordinator_epoch, first.transaction_start_offset) == (3, 0, 0)
    assert (second.producer_id, second.coordinator_epoch, second.transaction_start_offset) == (7, None, None)


def test_elections():
    request = admin_partitions.elect_leaders_request(2, ElectionType.UNCLEAN, PLACES, 9)
    assert request.election_type == 1
    assert [(named.topic, named.partitions) for named in request.topic_partitions or []] == [("t", [0, 1]), ("u", [0])]
    assert admin_partitions.elect_leaders_request(0, ElectionType.PREFERRED, None, 9).topic_partitions is None
    with pytest.raises(UnsupportedVersionError, match=r"needs Kafka 2\.4"):
        admin_partitions.elect_leaders_request(0, ElectionType.UNCLEAN, None, 9)


def test_reassignments():
    given: dict[Any, Any] = {PLACES[0]: (3, 1), PLACES[1]: None, ("u", 0): [2]}
    wanted = admin_replicas.check_replicas(given)
    assert wanted == {PLACES[0]: [3, 1], PLACES[1]: None, TopicPartition("u", 0): [2]}
    request = admin_replicas.reassign_request(wanted, factor_may_change=False, timeout_ms=9)
    assert not request.allow_replication_factor_change
    assert {
        topic.name: [(one.partition_index, one.replicas) for one in topic.partitions] for topic in request.topics
    } == {
        "t": [(0, [3, 1]), (1, None)],
        "u": [(0, [2])],
    }
    with pytest.raises(IllegalArgumentError, match="broker's id for t-0"):
        admin_replicas.check_replicas({PLACES[0]: ["one"]})  # type: ignore[list-item]
    refused = a.ReassignablePartitionResponse(1, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, None)
    answer = a.AlterPartitionReassignmentsResponse(
        responses=[a.ReassignableTopicResponse("t", [a.ReassignablePartitionResponse(0), refused])]
    )
    found = admin_replicas.reassigned(answer)
    assert found[PLACES[0]] is None
    assert str(found[PLACES[1]]) == "NO_REASSIGNMENT_IN_PROGRESS"
    listed = admin_replicas.list_reassignments_request(PLACES, 9)
    assert [(named.name, named.partition_indexes) for named in listed.topics or []] == [("t", [0, 1]), ("u", [0])]
    assert admin_replicas.list_reassignments_request(None, 9).topics is None
    going_on = a.OngoingTopicReassignment("t", [a.OngoingPartitionReassignment(0, [1, 2, 3], [3], [1])])
    assert admin_replicas.reassignments(a.ListPartitionReassignmentsResponse(topics=[going_on])) == {
        PLACES[0]: admin_replicas.PartitionReassignment([1, 2, 3], [3], [1])
    }


def test_other_log_directories():
    wanted = admin_replicas.check_log_dirs({PLACES[0]: "/a", PLACES[1]: "/b", PLACES[2]: "/a"})
    request = admin_replicas.alter_log_dirs_request(wanted)
    assert [(one.path, [(named.name, named.partitions) for named in one.topics]) for one in request.dirs] == [
        ("/a", [("t", [0]), ("u", [0])]),
        ("/b", [("t", [1])]),
    ]
    partitions = [
        a.AlterReplicaLogDirPartitionResult(0),
        a.AlterReplicaLogDirPartitionResult(1, ErrorCode.LOG_DIR_NOT_FOUND),
    ]
    answer = a.AlterReplicaLogDirsResponse(results=[a.AlterReplicaLogDirTopicResult("t", partitions)])
    found = admin_replicas.altered_log_dirs(answer)
    assert found[PLACES[0]] is None
    assert str(found[PLACES[1]]) == "LOG_DIR_NOT_FOUND: t-1"


def test_log_directories():
    replica = a.DescribeLogDirsTopic("t", [a.DescribeLogDirsPartition(1, 70, 3, True)])
    broken = a.DescribeLogDirsResult(ErrorCode.KAFKA_STORAGE_ERROR, "/b")
    answer = a.DescribeLogDirsResponse(0, 0, [a.DescribeLogDirsResult(0, "/a", [replica], 0, 0), broken])
    found = admin_partitions.log_dirs(answer)
    assert not isinstance(found, KafkaError)
    assert found["/a"].replicas == {TopicPartition("t", 1): admin_partitions.ReplicaInfo(70, 3, True)}
    assert (found["/a"].total_bytes, found["/a"].usable_bytes) == (0, 0), "0 is a number that is known"
    assert found["/b"].error is not None
    assert (found["/b"].error.code, found["/b"].total_bytes) == (ErrorCode.KAFKA_STORAGE_ERROR, None)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (0, ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
        (int(ErrorCode.UNKNOWN_SERVER_ERROR), ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
def test_an_answer_without_log_directories_is_a_refusal(code, expected):
    found = admin_partitions.log_dirs(a.DescribeLogDirsResponse(0, code, []))
    assert isinstance(found, KafkaError)
    assert found.code is expected


# --- groups ----------------------------------------------------------------------------------------------------------


def test_static_members_are_named_by_their_instance():
    members = [MemberDescription("a-1", None, "c", "h", []), MemberDescription("b-2", "b", "c", "h", [])]
    group = GroupDescription("g", "Stable", "consumer", "range", Node(1, "h", 1), members)
    assert admin_members.all_members(group) == [GroupMember("a-1"), GroupMember("", "b")]


def test_the_reason_goes_with_each_member():
    named = [GroupMember("a"), GroupMember("", "b")]
    request = admin_members.remove_members_request(5, "g", named, "r" * 300)
    found = [(each.member_id, each.group_instance_id, each.reason) for each in request.members]
    assert found == [("a", None, "r" * 255), ("", "b", "r" * 255)]
    request = admin_members.remove_members_request(5, "g", named, "")
    assert {each.reason for each in request.members} == {"member was removed by an admin"}
    with pytest.raises(UnsupportedVersionError, match=r"needs Kafka 2\.4"):
        admin_members.remove_members_request(2, "g", named, None)


@pytest.mark.parametrize("member", [GroupMember(), GroupMember("", ""), GroupMember(5)])  # type: ignore[arg-type]
def test_a_member_without_a_name_is_refused(member):
    with pytest.raises(IllegalArgumentError, match="a member"):
        admin_members.checked_members([member])


def test_an_error_of_the_group_is_that_of_each_item():
    named = [GroupMember("a"), GroupMember("", "b")]
    refused = m.LeaveGroupResponse(0, ErrorCode.NOT_COORDINATOR)
    assert codes(admin_members.removed_members(refused, named)) == dict.fromkeys(named, ErrorCode.NOT_COORDINATOR)
    answer = a.OffsetDeleteResponse(ErrorCode.GROUP_ID_NOT_FOUND)
    found = admin_members.deleted_offsets(answer, "g", PLACES)
    assert codes(found) == dict.fromkeys(PLACES, ErrorCode.GROUP_ID_NOT_FOUND)


def test_what_became_of_members_and_offsets():
    said = [m.MemberResponse("a", None, 0), m.MemberResponse("", "b", ErrorCode.UNKNOWN_MEMBER_ID)]
    found = admin_members.removed_members(m.LeaveGroupResponse(0, 0, said), [])
    assert codes(found) == {GroupMember("a"): None, GroupMember("", "b"): ErrorCode.UNKNOWN_MEMBER_ID}
    subscribed = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
    parts = [a.OffsetDeleteResponsePartition(0, 0), a.OffsetDeleteResponsePartition(1, subscribed)]
    answer = a.OffsetDeleteResponse(0, 0, [a.OffsetDeleteResponseTopic("t", parts)])
    assert codes(admin_members.deleted_offsets(answer, "g", PLACES)) == {PLACES[0]: None, PLACES[1]: subscribed}


# --- brokers before Kafka 2.4 ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("new", "is_complete"),
    [
        (admin.NewTopic("t"), False),
        (admin.NewTopic("t", 3), False),
        (admin.NewTopic("t", -1, 1), False),
        (admin.NewTopic("t", 3, 1), True),
        (admin.NewTopic("t", assignments={0: [1]}), True),
    ],
)
def test_a_broker_without_default_numbers_is_not_asked_for_them(new: admin.NewTopic, is_complete: bool) -> None:
    wanted = [admin.creatable_topic(admin.NewTopic("u", 1, 1)), admin.creatable_topic(new)]
    admin.check_counts_are_set(wanted, 4)
    if is_complete:
        admin.check_counts_are_set(wanted, 3)
    else:
        with pytest.raises(UnsupportedVersionError, match="set num_partitions and replication_factor of t"):
            admin.check_counts_are_set(wanted, 3)


def test_the_settings_of_a_broker_and_its_loggers_come_from_that_broker():
    asked: list[tuple[int, list[str]]] = []

    class Calls:
        async def controller(self):
            return 1

        async def settle(self, items, attempt, _retry):
            return await attempt(list(items))

        async def ask(self, node_id, request):
            asked.append((node_id, [each.resource_name for each in request.resources]))
            results = [
                m.DescribeConfigsResult(0, None, each.resource_type, each.resource_name, [])
                for each in request.resources
            ]
            return m.DescribeConfigsResponse(0, results)

    part = ClusterPart()
    part._calls = Calls()  # type: ignore[assignment]
    wanted = [ConfigResource(kind, "7") for kind in (ConfigResourceType.BROKER, ConfigResourceType.BROKER_LOGGER)]
    assert asyncio.run(part.describe_configs([TOPIC, *wanted])) == {key: {} for key in [TOPIC, *wanted]}
    assert asked == [(LEAST_LOADED, ["t"]), (7, ["7", "7"])]
