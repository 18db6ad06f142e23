"""The group coordinator's service: routes requests to the groups' shards, and answers them.

`shards.py` makes a shard's decisions durable before their answers go out. This file finds the shard for a request, and
combines the answer to a request about several groups.

Here a ticket, which is opaque to the rules, is the callback for the answer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from muster.coordinator.groups.config import GroupConfig
from muster.coordinator.groups.effects import Effects, Origin
from muster.coordinator.groups.error_responses import error_for_lost, error_response
from muster.coordinator.groups.group_pattern import GroupPattern
from muster.coordinator.groups.kinds import AnyGroup
from muster.coordinator.groups.offsets import Granted
from muster.coordinator.groups.shard import GroupCounts, GroupShard
from muster.coordinator.groups.topics import TopicResolver
from muster.coordinator.parts import Gather, fetched, fetched_groups, listed
from muster.coordinator.shards.clocks import shift_between
from muster.coordinator.shards.served_shard import Answer, Reply, ServedShard
from muster.coordinator.shards.shards import ShardHost, Shards
from muster.coordinator.shards.store import Store, TransactionalJournal
from muster.errors import ErrorCode, KafkaError
from muster.model import GROUP_METADATA_TOPIC, UNKNOWN_MEMBER_ID
from muster.protocol.admin_messages import OffsetDeleteRequest
from muster.protocol.group_partitions import group_partition, in_hash_order, java_hash, partition_hash
from muster.protocol.messages import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    ListGroupsRequest,
    ListGroupsResponse,
    OffsetCommitRequest,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
    SyncGroupRequest,
)
from muster.protocol.primitives import Request, Response
from muster.protocol.records.control_records import TxnMarker
from muster.protocol.records.record_batch import BatchBuilder
from muster.protocol.transaction_messages import TxnOffsetCommitRequest

__all__ = ["Client", "CoordinatorRuntime", "GroupConfig", "group_partition"]

log = logging.getLogger("muster.groups")

FORGOTTEN_AT_ONCE = 100
"""How many offsets of a deleted topic are removed in one step."""


Decide = Callable[[GroupShard, Any, Origin, int], Effects]


@dataclass(slots=True)
class Client:
    """The client that sent a request, and the request's version."""

    client_id: str
    client_host: str
    api_version: int


class CoordinatorRuntime(Shards[GroupShard]):
    """All groups of one broker.

    Args:
        topics: names, ids and partition counts of the existing topics.
        new_member_id: makes an id for a new member, from its client id or, for static members, its instance id.

    The other arguments are those of `Shards`; the slots are by default the partitions of `__consumer_offsets`.
    """

    def __init__(
        self,
        config: GroupConfig,
        store: Store,
        host: ShardHost,
        *,
        topics: TopicResolver,
        new_member_id: Callable[[str], str],
    ) -> None:
        counts = GroupCounts()
        slots = config.offsets_topic_num_partitions
        super().__init__(GROUP_METADATA_TOPIC, slots, lambda: GroupShard(config, topics, counts), store, host)
        self.config = config
        self.counts = counts
        self._new_member_id = new_member_id
        self._assigned_groups = GroupPattern(config.server_assigned_groups)
        self._handlers: dict[type[Any], Callable[[Any, Client, Answer], None]] = {
            OffsetCommitRequest: partial(self._of_one_group, GroupShard.commit),
            HeartbeatRequest: self._heartbeat,
            JoinGroupRequest: self._join,
            SyncGroupRequest: partial(self._of_one_group, GroupShard.sync),
            LeaveGroupRequest: partial(self._of_one_group, GroupShard.leave),
            OffsetDeleteRequest: partial(self._of_one_group, GroupShard.delete_offsets),
            OffsetFetchRequest: self._fetch,
            DescribeGroupsRequest: self._describe,
            ListGroupsRequest: self._list,
            DeleteGroupsRequest: self._delete,
        }

    def is_rebalancing(self, slot: int) -> bool:
        """Whether a group in the slot is rebalancing: only this coordinator knows which members have joined so far."""
        served = self._served.get(slot)
        return served is not None and any(group.is_rebalancing for group in served.shard.groups.values())

    @property
    def assigns(self) -> bool:
        """Whether the coordinator assigns the partitions of any group."""
        return bool(self._assigned_groups)

    def assigns_to(self, group_id: str) -> bool:
        """Whether the coordinator assigns the group's partitions (server_assignment.py)."""
        return self._assigned_groups.matches(group_id)

    # ------------------------------------------------------------------------------------------------------- requests

    def submit(self, request: Request[Any], client: Client, reply: Callable[[Response], None]) -> None:
        """Handle a request. `reply` is called exactly once, now or later, never before the state that it reveals is
        durable."""
        self._handlers[type(request)](request, client, reply)
        if self._dirty and self._schedule_flush is None:
            self.flush()

    def heartbeat(
        self, group_id: str, generation_id: int, member_id: str, group_instance_id: str | None = None
    ) -> ErrorCode:
        """The fast path for a Heartbeat: returns the error code immediately. A heartbeat writes nothing."""
        served = self._served.get(group_partition(group_id, self.slot_count))
        if served is None:
            found = self._find(group_id)
            if not isinstance(found, ServedShard):
                # A coordinator that is still loading does not know its members yet, so it answers with NONE, as Kafka
                # does.
                return ErrorCode.NONE if found is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS else found
            served = found
        return served.shard.heartbeat(group_id, generation_id, member_id, group_instance_id, self._clock())

    def commit(
        self,
        request: OffsetCommitRequest,
        version: int,
        partitions: Sequence[int],
        offsets: Sequence[int],
        leader_epochs: Sequence[int],
        reply: Answer,
    ) -> bool:
        """The fast path for a commit for partitions of one topic, without metadata; the request has only the topic.

        `reply` is called once the commit is durable, with `Granted`, or with a response if that fails. Returns False if
        the commit cannot simply be granted: `submit` then says why."""
        served = self._served.get(group_partition(request.group_id, self.slot_count))
        if served is None:
            return False
        now = self._clock()
        try:
            commits = served.shard.plain_commit(request, version, now, partitions, offsets, leader_epochs)
        except Exception:  # `submit` raises it again, and drops the shard
            return False
        if commits is None:
            return False
        topic = request.topics[0]
        granted = Granted(topic.name, topic.topic_id, partitions)
        answered = self._settle(served, now, served.shard.commit_all, commits, reply, granted)
        if answered is not None and reply not in answered:
            reply(error_for_lost(granted, ErrorCode.UNKNOWN_SERVER_ERROR))
        if self._dirty and self._schedule_flush is None:
            self.flush()
        return True

    def _find(self, group_id: str) -> ServedShard[GroupShard] | ErrorCode:
        partition = group_partition(group_id, self.slot_count)
        return self._served.get(partition) or self._serve(partition)

    def _of_one_group(
        self, decide: Decide, request: Any, client: Client, reply: Answer, fresh_member_id: str = UNKNOWN_MEMBER_ID
    ) -> None:
        served = self._served.get(group_partition(request.group_id, self.slot_count))
        if served is None:
            found = self._find(request.group_id)
            if not isinstance(found, ServedShard):
                reply(error_response(request, found))
                return
            served = found
        origin = Origin(reply, client.client_id, client.client_host, client.api_version, fresh_member_id)
        now = self._clock()
        answered = self._settle(served, now, decide, served.shard, request, origin, now)
        if answered is not None and reply not in answered:
            reply(error_response(request, ErrorCode.UNKNOWN_SERVER_ERROR))

    def _join(self, request: JoinGroupRequest, client: Client, reply: Answer) -> None:
        fresh_member_id = UNKNOWN_MEMBER_ID
        if request.member_id == UNKNOWN_MEMBER_ID:
            fresh_member_id = self._new_member_id(request.group_instance_id or client.client_id)
        if client.api_version >= 7:
            reply = partial(_without_empty_name, reply)
        self._of_one_group(GroupShard.join, request, client, reply, fresh_member_id)

    def _heartbeat(self, request: HeartbeatRequest, client: Client, reply: Answer) -> None:
        who = (request.group_id, request.generation_id, request.member_id, request.group_instance_id)
        reply(HeartbeatResponse(error_code=self.heartbeat(*who)))

    # --------------------------------------------------------------------------------------------------- transactions

    def begin_verification(self, group_id: str, producer_id: int, producer_epoch: int, *, tv2: bool) -> int | None:
        """A guard for a producer's commit to the group: the producer's transaction must be verified first. None if the
        transaction is open here already. Raises KafkaError."""
        found = self._find(group_id)
        if not isinstance(found, ServedShard):
            raise KafkaError(found)
        return _journal(found).begin_verification(producer_id, producer_epoch, tv2=tv2, now=self._wall_clock())

    def commit_in_transaction(
        self, request: TxnOffsetCommitRequest, error: ErrorCode, guard: int | None, reply: Answer
    ) -> None:
        """TxnOffsetCommit: the offsets become the group's when the transaction is committed. `error` is the result of
        its verification, `guard` what `begin_verification` returned."""
        found = self._find(request.group_id)
        if not isinstance(found, ServedShard):
            reply(error_response(request, found))
            return
        served, now = found, self._clock()
        answer, commits = served.shard.transactional_commit(request, error, now)
        if not commits:
            served.answer([Reply(reply, answer)])
            return

        def append() -> int:
            batch, shift = BatchBuilder(), shift_between(now, self._wall_clock())
            served.shard.write_down([*commits], batch, now + shift, shift)
            producer = (request.producer_id, request.producer_epoch)
            end = _journal(served).write_transactional(batch, now + shift, *producer, guard)
            for each in commits:
                served.shard.apply_transactional(request.producer_id, each)
            return end

        code = self._append_separately(served, append, Reply(reply, answer))
        if code is not ErrorCode.NONE:
            reply(error_for_lost(answer, code))

    def write_marker(self, slot: int, marker: TxnMarker, reply: Callable[[ErrorCode], None]) -> None:
        """A producer's transaction has ended: its offsets become the groups', or are dropped. `reply` is called once
        that is durable, or with the reason why not."""
        found = self._serve(slot)
        if not isinstance(found, ServedShard):
            reply(found)
            return
        served = found

        def append() -> int:
            end = _journal(served).write_marker(marker, self._wall_clock())
            served.shard.end_transaction(marker.producer_id, marker.committed)
            return end

        code = self._append_separately(served, append, Reply(reply, ErrorCode.NONE))
        if code is not ErrorCode.NONE:
            reply(code)

    def open_transactions(self) -> list[tuple[int, Any]]:
        """The transactions that are open in each slot."""
        return [
            (slot, each)
            for slot, served in sorted(self._served.items())
            for each in _journal(served).open_transactions()
        ]

    def intervene(self, group_id: str, decide: Callable[[AnyGroup, int], Effects]) -> bool:
        """Change a group from outside (`groups/interventions.py`). Returns whether this coordinator has it."""
        served = self._served.get(self.partition_for(group_id))
        group = None if served is None else served.shard.groups.get(group_id)
        if served is None or group is None:
            return False
        now = self._clock()
        self._settle(served, now, served.shard.intervene, group, decide, now)
        self._flush_unless_scheduled()
        return True

    def shards(self) -> list[GroupShard]:
        """The shards that are loaded now."""
        return [served.shard for _, served in sorted(self._served.items())]

    def fetch_if_durable(
        self, groups: Iterable[OffsetFetchRequestGroup], version: int, require_stable: bool = False
    ) -> OffsetFetchResponse | None:
        """The fast path for an OffsetFetch: the answer, if everything that it could reveal is durable."""
        found = []
        for group in groups:
            served = self._served.get(group_partition(group.group_id, self.slot_count))
            if served is None or not served.is_all_durable:
                return None
            found.append(served.shard.fetch_offsets(group, version, require_stable))
        return fetched(found, version)

    # ------------------------------------------------------------------------------------ requests about many groups

    def _fetch(self, request: OffsetFetchRequest, client: Client, reply: Answer) -> None:
        version, require_stable = client.api_version, request.require_stable
        groups = fetched_groups(request, version)
        gather = Gather(len(groups), lambda found: reply(fetched(found, version)))
        for i, group in enumerate(groups):
            self._read_one(
                group.group_id,
                gather.part(i),
                lambda shard, group=group: shard.fetch_offsets(group, version, require_stable),  # type: ignore[misc]
                lambda error, group=group: error_response(group, error),  # type: ignore[misc]
            )

    def _describe(self, request: DescribeGroupsRequest, client: Client, reply: Answer) -> None:
        groups = self._by_partition(request.groups)
        gather = Gather(len(groups), lambda found: reply(DescribeGroupsResponse(groups=found)))
        version = client.api_version
        for i, group_id in enumerate(groups):
            self._read_one(
                group_id,
                gather.part(i),
                lambda shard, group_id=group_id: shard.describe(group_id, version),  # type: ignore[misc]
                lambda error, group_id=group_id: DescribedGroup(group_id=group_id, error_code=error),  # type: ignore[misc]
            )

    def _delete(self, request: DeleteGroupsRequest, client: Client, reply: Answer) -> None:
        groups = self._by_partition(dict.fromkeys(request.groups_names), lambda ids: in_hash_order(ids, java_hash))
        gather = Gather(len(groups), lambda found: reply(DeleteGroupsResponse(results=found)))
        for i, group_id in enumerate(groups):
            self._decide_one(
                group_id,
                gather.part(i),
                lambda shard, group_id=group_id: shard.delete_group(group_id),  # type: ignore[misc]
                lambda error, group_id=group_id: DeletableGroupResult(group_id, error),  # type: ignore[misc]
            )

    def _read_one(
        self, group_id: str, part: Answer, read: Callable[[GroupShard], Any], refuse: Callable[[ErrorCode], Any]
    ) -> None:
        """Answer with a shard's view of a group, once it is durable."""
        self._decide_one(group_id, part, lambda shard: (read(shard), Effects()), refuse)

    def _decide_one(
        self,
        group_id: str,
        part: Answer,
        decide: Callable[[GroupShard], tuple[Any, Effects]],
        refuse: Callable[[ErrorCode], Any],
    ) -> None:
        """Decide one group's part of a request."""
        served = self._find(group_id)
        if not isinstance(served, ServedShard):
            part(refuse(served))
            return
        self._settle_part(served, part, decide, refuse)

    def _settle_part(
        self,
        served: ServedShard[GroupShard],
        part: Answer,
        decide: Callable[[GroupShard], tuple[Any, Effects]],
        refuse: Callable[[ErrorCode], Any],
    ) -> None:
        answered = self._settle(served, self._clock(), _decided, decide, served.shard, part)
        if answered is not None and part not in answered:
            part(refuse(ErrorCode.UNKNOWN_SERVER_ERROR))

    def _by_partition(
        self, group_ids: Iterable[str], within: Callable[[list[str]], list[str]] = lambda group_ids: group_ids
    ) -> list[str]:
        """The groups in the order of Kafka's answers: partition by partition, ordered by `within` in each."""
        by_partition: dict[int, list[str]] = {}
        for group_id in group_ids:
            by_partition.setdefault(self.partition_for(group_id), []).append(group_id)
        partitions = in_hash_order(by_partition, partition_hash)
        return [group_id for partition in partitions for group_id in within(by_partition[partition])]

    def _list(self, request: ListGroupsRequest, client: Client, reply: Answer) -> None:
        error = self._state_error
        if error is ErrorCode.NONE and self._loading:
            error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        if error is not ErrorCode.NONE:
            reply(ListGroupsResponse(error_code=error))
            return
        served_shards = list(self._served.values())
        gather = Gather(len(served_shards), lambda found: reply(listed(found)))
        states, types = request.states_filter, request.types_filter
        for i, served in enumerate(served_shards):
            self._settle_part(
                served,
                gather.part(i),
                lambda shard: (ListGroupsResponse(groups=shard.list_groups(states, types)), Effects()),
                lambda error: ListGroupsResponse(error_code=error),
            )

    # --------------------------------------------------------------------------------------------------------- topics

    def topics_changed(self, names: Iterable[str] | None = None) -> None:
        """Topics were created or deleted, or their partitions or leaders changed; None means any topic. Server-assigned
        groups rebalance if this affects them. A shard that is not loaded checks this when it is loaded."""
        if not self.assigns:
            return
        some = None if names is None else frozenset(names)
        for served in list(self._served.values()):
            now = self._clock()
            self._settle(served, now, served.shard.topics_changed, some, now)
        self._flush_unless_scheduled()

    def topics_deleted(self, topics: Iterable[str]) -> Generator[None, None, None]:
        """Topics were deleted: remove their committed offsets, a few at a time. A shard that is not loaded removes them
        when it is loaded. No topic with one of these names may be created before this ends."""
        gone = frozenset(topics)
        self.topics_changed(gone)
        for served in list(self._served.values()):
            shard = served.shard
            for group_id in list(shard.groups):
                kept = shard.offsets.of_group(group_id).keys() | shard.pending.of_group(group_id).keys()
                for topic in gone.intersection(kept):
                    yield from self._forget_offsets(served, group_id, topic)
                yield
        self._flush_unless_scheduled()

    def _forget_offsets(
        self, served: ServedShard[GroupShard], group_id: str, topic: str
    ) -> Generator[None, None, None]:
        shard = served.shard
        pending = shard.pending.of_group(group_id).get(topic, {})
        partitions = list(dict.fromkeys([*shard.offsets.of_group(group_id).get(topic, ()), *pending]))
        for start in range(0, len(partitions), FORGOTTEN_AT_ONCE):
            if self._served.get(served.slot) is served:
                some = partitions[start : start + FORGOTTEN_AT_ONCE]
                self._settle(served, self._clock(), shard.forget_offsets, group_id, topic, some)
            yield


def _journal(served: ServedShard[GroupShard]) -> TransactionalJournal:
    return cast(TransactionalJournal, served.journal)


def _decided(decide: Callable[[GroupShard], tuple[Any, Effects]], shard: GroupShard, part: Answer) -> Effects:
    """The effects of deciding one group's part of a request, including its answer."""
    answer, effects = decide(shard)
    return effects.reply(part, answer)


def _without_empty_name(reply: Answer, answer: JoinGroupResponse) -> None:
    """Since version 7 of JoinGroup, the name of a protocol not yet chosen is null; before, it is empty."""
    answer.protocol_name = answer.protocol_name or None
    reply(answer)
