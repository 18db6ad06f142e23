"""Groups: list, describe and delete them, their offsets and members."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, Literal, overload

from muster.client.admin.part import AdminPart, checked
from muster.client.core import offset_requests
from muster.client.core.admin import admin as rules
from muster.client.core.admin import members as admin_members
from muster.client.core.admin.admin import GroupDescription, GroupListing
from muster.client.core.admin.members import GroupMember
from muster.client.core.checks import check_partitions
from muster.client.core.refusals import COORDINATOR_RETRIABLE, OFFSETS_RETRIABLE
from muster.errors import ErrorCode, KafkaError, UnsupportedVersionError
from muster.model import Node, OffsetAndMetadata, TopicPartition
from muster.protocol.messages import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    LeaveGroupRequest,
    ListGroupsRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
)

_GROUPS_AT_ONCE = 100


class GroupsPart(AdminPart):
    """The methods of `AsyncAdmin` for groups."""

    async def list_consumer_groups(
        self, *, states: Iterable[str] = (), types: Iterable[str] = ()
    ) -> list[GroupListing]:
        """The groups of all brokers, sorted by id; only those in the given states and of the given types, if any.

        Raises:
            KafkaError: a broker refused to list its groups, or did not answer.
            UnsupportedVersionError: a broker is too old for the filter.
        """
        return rules.all_groups(await self.list_consumer_groups_by_broker(states=states, types=types))

    async def list_consumer_groups_by_broker(
        self, *, states: Iterable[str] = (), types: Iterable[str] = ()
    ) -> dict[int, list[GroupListing] | KafkaError]:
        """`list_consumer_groups` by broker, or why a broker did not list its groups.

        Raises:
            KafkaTimeoutError: no broker answered.
            UnsupportedVersionError: a broker is too old for the filter.
        """
        request = ListGroupsRequest(list(states), list(types))

        async def one(node_id: int) -> list[GroupListing]:
            answer = await self._calls.ask(node_id, request)
            error = rules.failure(answer.error_code)
            if error is not None:
                raise error
            return [GroupListing(g.group_id, g.protocol_type, g.group_state, g.group_type) for g in answer.groups]

        return await self._calls.of_brokers(one, COORDINATOR_RETRIABLE)

    @overload
    async def describe_consumer_groups(
        self, group_ids: Iterable[str], *, raise_errors: Literal[True] = True
    ) -> dict[str, GroupDescription]: ...

    @overload
    async def describe_consumer_groups(
        self, group_ids: Iterable[str], *, raise_errors: Literal[False]
    ) -> dict[str, GroupDescription | KafkaError]: ...

    async def describe_consumer_groups(self, group_ids: Iterable[str], *, raise_errors: bool = True) -> dict[str, Any]:
        """State and members of groups (O1), of the classic protocol or KIP-848. The error for a group that does not
        exist, or is of another kind, is GROUP_ID_NOT_FOUND.
        """

        async def ask(node: Node, group_ids: list[str]) -> dict[str, GroupDescription | KafkaError]:
            answer = await self._calls.ask(node.node_id, DescribeGroupsRequest(group_ids))
            found = {group.group_id: rules.group_description(group, node) for group in answer.groups}
            missing = [group_id for group_id, outcome in found.items() if _is_missing(outcome)]
            return found | (await self._describe_other_groups(node, missing) if missing else {})

        return checked(await self._calls.of_coordinators(group_ids, ask, COORDINATOR_RETRIABLE), raise_errors)

    async def _describe_other_groups(
        self, node: Node, group_ids: list[str]
    ) -> dict[str, GroupDescription | KafkaError]:
        """Groups of the KIP-848 protocol, which need a different request."""
        from muster.protocol.group_messages import ConsumerGroupDescribeRequest  # such groups are rare

        try:
            answer = await self._calls.ask(node.node_id, ConsumerGroupDescribeRequest(group_ids))
        except UnsupportedVersionError:
            return {}
        found = {group.group_id: rules.consumer_group_description(group, node) for group in answer.groups}
        return {group_id: outcome for group_id, outcome in found.items() if not _is_missing(outcome)}

    async def delete_consumer_groups(
        self, group_ids: Iterable[str], *, raise_errors: bool = True
    ) -> dict[str, KafkaError | None]:
        """Delete groups and their offsets. The error for a group with members is NON_EMPTY_GROUP."""

        async def ask(node: Node, group_ids: list[str]) -> dict[str, KafkaError | None]:
            answer = await self._calls.ask(node.node_id, DeleteGroupsRequest(group_ids))
            return {
                result.group_id: rules.failure(result.error_code, f"group {result.group_id}")
                for result in answer.results
            }

        return checked(await self._calls.of_coordinators(group_ids, ask, COORDINATOR_RETRIABLE), raise_errors)

    @overload
    async def list_consumer_group_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition] | None = None, *, raise_errors: Literal[True] = True
    ) -> dict[TopicPartition, OffsetAndMetadata]: ...

    @overload
    async def list_consumer_group_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition] | None = None, *, raise_errors: Literal[False]
    ) -> dict[TopicPartition, OffsetAndMetadata | KafkaError]: ...

    async def list_consumer_group_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition] | None = None, *, raise_errors: bool = True
    ) -> dict[TopicPartition, Any]:
        """The committed offsets of a group, for all its partitions or the given ones; partitions without an offset are
        left out.

        Raises:
            KafkaError: the group's offsets cannot be read.
        """
        wanted = None if partitions is None else sorted(partitions)

        async def ask(
            node: Node, _: list[str]
        ) -> dict[str, dict[TopicPartition, OffsetAndMetadata | KafkaError] | KafkaError]:
            answer = await self._calls.send(
                node.node_id,
                OffsetFetchRequest,
                lambda version: offset_requests.fetch_request(version, group_id, wanted),
                offset_requests.FETCH_WITH_NAMES,
            )
            return {group_id: rules.committed_offsets(answer)}

        found = (await self._calls.of_coordinators([group_id], ask, OFFSETS_RETRIABLE))[group_id]
        if isinstance(found, KafkaError):
            raise found
        return checked(found, raise_errors)

    @overload
    async def list_offsets_of_consumer_groups(
        self, group_ids: Iterable[str], *, raise_errors: Literal[True] = True
    ) -> dict[str, dict[TopicPartition, OffsetAndMetadata]]: ...

    @overload
    async def list_offsets_of_consumer_groups(
        self, group_ids: Iterable[str], *, raise_errors: Literal[False]
    ) -> dict[str, dict[TopicPartition, OffsetAndMetadata | KafkaError] | KafkaError]: ...

    async def list_offsets_of_consumer_groups(
        self, group_ids: Iterable[str], *, raise_errors: bool = True
    ) -> dict[str, Any]:
        """All committed offsets of several groups, or why a group's offsets cannot be read: one request per hundred
        groups of a coordinator (KIP-709; one per group before Kafka 3.0).
        """

        async def ask(
            node: Node, group_ids: list[str]
        ) -> dict[str, dict[TopicPartition, OffsetAndMetadata | KafkaError] | KafkaError]:
            found: dict[str, dict[TopicPartition, OffsetAndMetadata | KafkaError] | KafkaError] = {}
            for first in range(0, len(group_ids), _GROUPS_AT_ONCE):
                some = group_ids[first : first + _GROUPS_AT_ONCE]
                try:
                    answer = await self._calls.send(
                        node.node_id,
                        OffsetFetchRequest,
                        partial(offset_requests.fetch_all_request, group_ids=some),
                        offset_requests.FETCH_WITH_NAMES,
                    )
                    found |= rules.committed_offsets_by_group(answer)
                except UnsupportedVersionError:
                    for group_id in some:
                        found[group_id] = await self._all_offsets(node, group_id)
            return found

        return checked(await self._calls.of_coordinators(group_ids, ask, OFFSETS_RETRIABLE), raise_errors)

    async def _all_offsets(
        self, node: Node, group_id: str
    ) -> dict[TopicPartition, OffsetAndMetadata | KafkaError] | KafkaError:
        answer = await self._calls.send(
            node.node_id,
            OffsetFetchRequest,
            lambda version: offset_requests.fetch_request(version, group_id, None),
            offset_requests.FETCH_WITH_NAMES,
        )
        return rules.committed_offsets(answer)

    async def alter_consumer_group_offsets(
        self, group_id: str, offsets: Mapping[TopicPartition, OffsetAndMetadata | int], *, raise_errors: bool = True
    ) -> dict[TopicPartition, KafkaError | None]:
        """Set the committed offsets of a group that has no members. If it has members, the error for each partition is
        UNKNOWN_MEMBER_ID.

        Raises:
            KafkaError: the group's coordinator cannot be found.
        """
        positions = {
            partition: OffsetAndMetadata(offset) if isinstance(offset, int) else offset
            for partition, offset in offsets.items()
        }

        async def attempt(partitions: list[TopicPartition]) -> dict[TopicPartition, KafkaError | None]:
            node = (await self._calls.coordinators([group_id]))[group_id]
            if isinstance(node, KafkaError):
                return dict.fromkeys(partitions, node)
            request = offset_requests.commit_request(
                group_id, {partition: positions[partition] for partition in sorted(partitions)}
            )
            newest = offset_requests.COMMIT_WITH_NAMES
            answer = await self._calls.send(node.node_id, OffsetCommitRequest, lambda _: request, newest)
            answers = offset_requests.commit_answers(answer)
            return {partition: rules.failure(code, f"group {group_id}") for partition, code in answers.items()}

        return checked(await self._calls.settle(positions, attempt, OFFSETS_RETRIABLE), raise_errors)

    async def delete_consumer_group_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition], *, raise_errors: bool = True
    ) -> dict[TopicPartition, KafkaError | None]:
        """Delete committed offsets of a group. The error for a topic to which a member subscribes is
        GROUP_SUBSCRIBED_TO_TOPIC. A group whose subscriptions the coordinator does not know must be empty; otherwise
        the error is NON_EMPTY_GROUP."""

        async def attempt(partitions: list[TopicPartition]) -> dict[TopicPartition, KafkaError | None]:
            node = (await self._calls.coordinators([group_id]))[group_id]
            if isinstance(node, KafkaError):
                return dict.fromkeys(partitions, node)
            request = admin_members.delete_offsets_request(group_id, sorted(partitions))
            return admin_members.deleted_offsets(await self._calls.ask(node.node_id, request), group_id, partitions)

        return checked(
            await self._calls.settle(check_partitions(partitions), attempt, COORDINATOR_RETRIABLE), raise_errors
        )

    async def remove_consumer_group_members(
        self,
        group_id: str,
        members: Iterable[GroupMember] | None = None,
        *,
        reason: str | None = None,
        raise_errors: bool = True,
    ) -> dict[GroupMember, KafkaError | None]:
        """Remove members from a group of the classic protocol, all of them if none are named; the coordinator logs the
        reason (KIP-800). A running member rejoins. The error for an unknown member is UNKNOWN_MEMBER_ID.

        Raises:
            KafkaError: no members are named, and the group cannot be described.
        """
        if members is None:
            members = admin_members.all_members((await self.describe_consumer_groups([group_id]))[group_id])

        async def attempt(left: list[GroupMember]) -> dict[GroupMember, KafkaError | None]:
            node = (await self._calls.coordinators([group_id]))[group_id]
            if isinstance(node, KafkaError):
                return dict.fromkeys(left, node)

            def build(version: int) -> LeaveGroupRequest:
                return admin_members.remove_members_request(version, group_id, left, reason)

            answer = await self._calls.send(node.node_id, LeaveGroupRequest, build)
            return admin_members.removed_members(answer, left)

        return checked(
            await self._calls.settle(admin_members.checked_members(members), attempt, COORDINATOR_RETRIABLE),
            raise_errors,
        )


def _is_missing(answer: object) -> bool:
    return isinstance(answer, KafkaError) and answer.code is ErrorCode.GROUP_ID_NOT_FOUND
