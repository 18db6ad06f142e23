"""Changes to a group by an admin client, which is not a member: it deletes offsets and removes members."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from muster.client.core.admin.admin import GroupDescription, failure
from muster.client.core.checks import MAX_REASON_LENGTH, check_text
from muster.client.core.offset_requests import by_topic
from muster.errors import IllegalArgumentError, KafkaError, UnsupportedVersionError
from muster.model import TopicPartition
from muster.protocol.admin_messages import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
)
from muster.protocol.messages import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity

DEFAULT_REASON = "member was removed by an admin"
"""The reason that Kafka's client gives by default (KIP-800)."""

_FIRST_WITH_MEMBERS = 3


class GroupMember(NamedTuple):
    """A member of a group, by its `group.instance.id` if it is static, otherwise by its member id."""

    member_id: str = ""
    group_instance_id: str | None = None


def checked_members(members: Iterable[GroupMember]) -> list[GroupMember]:
    """Check the members to remove."""
    found = list(members)
    for member in found:
        check_text("a member's id", member.member_id)
        if member.group_instance_id is not None:
            check_text("a group.instance.id", member.group_instance_id)
        if not member.member_id and not member.group_instance_id:
            raise IllegalArgumentError("a member has neither a member id nor a group.instance.id")
    return found


def all_members(group: GroupDescription) -> list[GroupMember]:
    """All members of a group, as Kafka's client names them: static ones by their instance id alone."""
    return [
        GroupMember(member.member_id) if member.group_instance_id is None else GroupMember("", member.group_instance_id)
        for member in group.members
    ]


def remove_members_request(
    version: int, group_id: str, members: Iterable[GroupMember], reason: str | None
) -> LeaveGroupRequest:
    """LeaveGroup on behalf of members (KIP-345).

    Raises:
        UnsupportedVersionError: before v3 (Kafka 2.4) only a member itself can leave.
    """
    if version < _FIRST_WITH_MEMBERS:
        raise UnsupportedVersionError("removing members needs Kafka 2.4 or later")
    why = (reason or DEFAULT_REASON)[:MAX_REASON_LENGTH]
    return LeaveGroupRequest(
        group_id, members=[MemberIdentity(each.member_id, each.group_instance_id, why) for each in members]
    )


def removed_members(answer: LeaveGroupResponse, members: Iterable[GroupMember]) -> dict[GroupMember, KafkaError | None]:
    """The outcome for each member. An error of the whole request applies to all of them."""
    refused = failure(answer.error_code)
    if refused is not None:
        return dict.fromkeys(members, refused)
    return {
        GroupMember(result.member_id, result.group_instance_id): failure(
            result.error_code, result.group_instance_id or result.member_id
        )
        for result in answer.members
    }


def delete_offsets_request(group_id: str, partitions: Iterable[TopicPartition]) -> OffsetDeleteRequest:
    """OffsetDelete (KIP-496), to the group's coordinator."""
    topics = [
        OffsetDeleteRequestTopic(topic, [OffsetDeleteRequestPartition(number) for number in numbers])
        for topic, numbers in by_topic(partitions).items()
    ]
    return OffsetDeleteRequest(group_id, topics)


def deleted_offsets(
    answer: OffsetDeleteResponse, group_id: str, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, KafkaError | None]:
    """The outcome for each offset. An error of the group applies to all partitions."""
    refused = failure(answer.error_code, f"group {group_id}")
    if refused is not None:
        return dict.fromkeys(partitions, refused)
    return {
        (partition := TopicPartition(topic.name, part.partition_index)): failure(part.error_code, str(partition))
        for topic in answer.topics
        for part in topic.partitions
    }
