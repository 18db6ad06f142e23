"""The coordinator's runtime: loads shards from their logs, runs requests through them, writes what they decide.

The one file of this package that touches the world: a log, a clock, callbacks. It waits for nothing and starts nothing.
It is used from one thread, and no method awaits, so there are no locks; each request is handled to the end of what the
rules decide before the next.

The life of a request
=====================

`submit` finds the shard, lets it decide, and puts the records into the shard's open batch. The answers are parked until
the log says that everything decided so far is durable - also those that wrote nothing, for they may tell of records
that others wrote and a crash could still take back. `flush` (called once, at the end of a turn of the event loop)
writes each shard's batch, so that all commits of one turn share one write: group commit. `release_durable` lets the
answers go whose records lie before the high watermark, in order; by the default fsync policy that is within `flush`.

The state runs ahead of the log by at most one turn. That is safe because nobody hears of it before the log has it: if
an append fails, every parked answer becomes an error, the shard is thrown away with all who wait in it, and is read
again from the log. Nothing is ever undone piece by piece. A rule that raises, which none should, is met like that too.

The life of a shard
===================

A slot of the topic is empty until it is first needed. Its log is then read, some hundred records at a time so that
others are served in between (`later`); meanwhile its groups are told COORDINATOR_LOAD_IN_PROGRESS. When its log fails
the slot is away for a while, its groups are told NOT_COORDINATOR, and then it is read again.

A ticket, which the rules hand around without looking into it, is here a function that takes the answer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

from muster.coordinator.config import GroupConfig
from muster.coordinator.effects import Effects, GroupEvent, Origin, Reply
from muster.coordinator.failures import refused, spoiled
from muster.coordinator.group import NEVER
from muster.coordinator.home import Answer, Home
from muster.coordinator.loading import GroupLog, Loading
from muster.coordinator.partitioning import group_partition, in_hash_order, java_hash, partition_hash
from muster.coordinator.parts import Gather, fetched, fetched_groups, listed
from muster.coordinator.shard import GroupShard
from muster.coordinator.topics import TopicResolver
from muster.coordinator.wall_time import shift_between, shifted
from muster.errors import ErrorCode, KafkaError, MusterError
from muster.model import GROUP_METADATA_TOPIC, UNKNOWN_MEMBER_ID
from muster.protocol.group_records import append_records
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
    SyncGroupRequest,
)
from muster.protocol.primitives import Request, Response
from muster.protocol.record_batch import BatchBuilder

__all__ = ["Client", "CoordinatorRuntime", "GroupConfig", "GroupLog", "group_partition"]

log = logging.getLogger("muster.groups")

MAX_BATCH_BYTES = 1024 * 1024
"""A batch that has grown so large is written before the turn ends."""

LOAD_RECORDS = 256
"""How many records are read at a time: a few milliseconds' worth."""

FORGOTTEN_AT_ONCE = 100
"""Offsets of a deleted topic that are forgotten in one go."""

RELOAD_AFTER_MS = 1_000
"""How long a shard whose log failed stays away before it is read again."""


class Client(NamedTuple):
    """Who sent a request, and in which version."""

    client_id: str
    client_host: str
    api_version: int


class CoordinatorRuntime:
    """All groups of one broker.

    Args:
        open_log: gives the log of a partition of `__consumer_offsets`, an empty one if it was never written.
        clock: milliseconds since the epoch by a clock that does not jump. Sessions are measured by it.
        topics: names, ids and partition counts of the topics that exist.
        on_event: told of rebalances and members, for the broker's log and for whoever watches.
        new_member_id: a fresh id for a member, from its client id or, for static members, its instance id.
        schedule_flush: called when there is something to flush, at most once until `flush` is called. Without it
            every `submit` flushes by itself.
        on_deadline_moved: called when a deadline has come nearer than `next_deadline` last told.
        later: calls a function in one of the next turns of the event loop. Without it logs are read in one go.
        wall_clock: the time of day, for what records tell; `clock`, if it is not given.
    """

    def __init__(
        self,
        config: GroupConfig,
        open_log: Callable[[int], GroupLog],
        *,
        clock: Callable[[], int],
        topics: TopicResolver,
        on_event: Callable[[GroupEvent], None],
        new_member_id: Callable[[str], str],
        schedule_flush: Callable[[], None] | None = None,
        on_deadline_moved: Callable[[], None] | None = None,
        later: Callable[[Callable[[], None]], None] | None = None,
        wall_clock: Callable[[], int] | None = None,
    ) -> None:
        self.config = config
        self._open_log = open_log
        self._clock = clock
        self._wall_clock = wall_clock or clock
        self._topics = topics
        self._on_event = on_event
        self._new_member_id = new_member_id
        self._schedule_flush = schedule_flush
        self._on_deadline_moved = on_deadline_moved
        self._told_deadline = 0
        self._later = later
        self._homes: dict[int, Home] = {}
        self._loading: dict[int, Loading] = {}
        self._away: dict[int, int] = {}  # partitions whose log failed, and when to read them again
        self._dirty: set[Home] = set()
        self._flush_is_due = False
        self._load_is_due = False
        self._state_error: ErrorCode = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        self._handlers: dict[type[Any], Callable[[Any, Client, Answer], None]] = {
            OffsetCommitRequest: self._of_one_group,
            HeartbeatRequest: self._heartbeat,
            JoinGroupRequest: self._join,
            SyncGroupRequest: self._of_one_group,
            LeaveGroupRequest: self._of_one_group,
            OffsetFetchRequest: self._fetch,
            DescribeGroupsRequest: self._describe,
            ListGroupsRequest: self._list,
            DeleteGroupsRequest: self._delete,
        }

    # ----------------------------------------------------------------------------------------------- loading, closing

    def partition_for(self, group_id: str) -> int:
        """The partition of `__consumer_offsets` that keeps a group."""
        return group_partition(group_id, self.config.offsets_topic_num_partitions)

    def load_all(self, partitions: Iterable[int] | None = None) -> None:
        """Begin to read the logs that exist (`partitions`; all, if not given), and to serve.

        The others are opened when a group first needs them. Until this was called every request is answered
        COORDINATOR_LOAD_IN_PROGRESS. Sessions of the members found begin when their log is read.
        """
        wanted = range(self.config.offsets_topic_num_partitions) if partitions is None else partitions
        self._state_error = ErrorCode.NONE
        for partition in wanted:
            self._begin_to_load(partition)
        self.flush()

    @property
    def is_loading(self) -> bool:
        """Whether there are logs still to be read."""
        return bool(self._loading)

    def _begin_to_load(self, partition: int) -> None:
        """Read a log, a piece at a time if there is a later. One that is there, or being read, is left alone."""
        if partition in self._homes or partition in self._loading:
            return
        try:
            found = self._open_log(partition)
            if found.high_watermark < found.log_end_offset:
                # The shard was dropped between an append and its sync. What is read now would lack records that a
                # crash would bring back.
                raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the end of the log is not durable")
        except (MusterError, OSError) as error:
            self._could_not_load(partition, error)
            return
        self._away.pop(partition, None)
        shard = GroupShard(self.config, self._topics)
        self._loading[partition] = Loading(partition, found, shard, shift_between(self._clock(), self._wall_clock()))
        if self._later is None or found.log_start_offset == found.log_end_offset:
            while partition in self._loading:
                self._load_some(self._loading[partition])
        else:
            self._load_soon()

    def _load_soon(self) -> None:
        if self._later is not None and self._loading and not self._load_is_due:
            self._load_is_due = True
            self._later(self._load_next)

    def _load_next(self) -> None:
        self._load_is_due = False
        self.load_a_piece()
        self._load_soon()

    def load_a_piece(self) -> None:
        """Read some more of the logs that are to be read."""
        if self._loading:
            self._load_some(next(iter(self._loading.values())))

    def _load_some(self, loading: Loading) -> None:
        partition = loading.partition
        try:
            if not loading.step(LOAD_RECORDS):
                return
        except Exception as error:  # a log that was closed meanwhile has its own ways to fail
            del self._loading[partition]
            self._could_not_load(partition, error)
            return
        del self._loading[partition]
        if loading.passed_over:
            log.error(
                "partition %d of %s: %d record(s) or batch(es) were passed over because they cannot be understood; %s",
                partition,
                GROUP_METADATA_TOPIC,
                loading.passed_over,
                f"the first {loading.first_passed_over}",
            )
        home = self._homes[partition] = Home(partition, loading.shard, loading.log)
        now = self._clock()
        self._settle(home, now, loading.shard.loaded, now)

    def _could_not_load(self, partition: int, error: Exception) -> None:
        """A log that cannot be read leaves its groups without a coordinator until it can."""
        log.error("reading partition %d of %s failed: %s", partition, GROUP_METADATA_TOPIC, error)
        self._go_away(partition)

    def _go_away(self, partition: int) -> None:
        self._away[partition] = self._clock() + RELOAD_AFTER_MS
        self._comes_due(self._away[partition])

    def close(self) -> None:
        """Write what is left, answer whoever waits with NOT_COORDINATOR, and serve no more."""
        if self._state_error is ErrorCode.COORDINATOR_NOT_AVAILABLE:
            return
        self.flush()
        self._forget_all(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    def unload_all(self) -> None:
        """The topic is gone: forget its groups, and send away all who wait. `load_all` begins anew."""
        self._forget_all(ErrorCode.NOT_COORDINATOR)

    def _forget_all(self, state_error: ErrorCode) -> None:
        self._state_error = state_error
        self._loading.clear()
        for home in list(self._homes.values()):
            self._drop(home, ErrorCode.NOT_COORDINATOR)
        self._away.clear()

    # ------------------------------------------------------------------------------------------------------- requests

    def submit(self, request: Request[Any], client: Client, reply: Callable[[Response], None]) -> None:
        """Handle a request. `reply` is called exactly once, now or later, never before what it tells is durable."""
        self._handlers[type(request)](request, client, reply)
        if self._dirty and self._schedule_flush is None:
            self.flush()

    def heartbeat(
        self, group_id: str, generation_id: int, member_id: str, group_instance_id: str | None = None
    ) -> ErrorCode:
        """The short way for a Heartbeat: the answer's error code, at once. A heartbeat writes nothing."""
        home = self._homes.get(group_partition(group_id, self.config.offsets_topic_num_partitions))
        if home is None:
            found = self._find(group_id)
            if not isinstance(found, Home):
                # A coordinator that is loading cannot know, so it keeps the member calm, as Kafka does.
                return ErrorCode.NONE if found is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS else found
            home = found
        return home.shard.heartbeat(group_id, generation_id, member_id, group_instance_id, self._clock())

    def _find(self, group_id: str) -> Home | ErrorCode:
        partition = group_partition(group_id, self.config.offsets_topic_num_partitions)
        home = self._homes.get(partition)
        if home is not None:
            return home
        if self._state_error is not ErrorCode.NONE:
            return self._state_error
        if self._away.get(partition, 0) > self._clock():
            return ErrorCode.NOT_COORDINATOR
        self._begin_to_load(partition)
        if partition in self._loading:
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return self._homes.get(partition, ErrorCode.NOT_COORDINATOR)

    def _of_one_group(
        self, request: Any, client: Client, reply: Answer, fresh_member_id: str = UNKNOWN_MEMBER_ID
    ) -> None:
        home = self._find(request.group_id)
        if not isinstance(home, Home):
            reply(refused(request, home))
            return
        origin = Origin(reply, client.client_id, client.client_host, client.api_version, fresh_member_id)
        now = self._clock()
        answered = self._settle(home, now, _DECIDE[type(request)], home.shard, request, origin, now)
        if answered is not None and reply not in answered:
            reply(refused(request, ErrorCode.UNKNOWN_SERVER_ERROR))

    def _join(self, request: JoinGroupRequest, client: Client, reply: Answer) -> None:
        fresh_member_id = UNKNOWN_MEMBER_ID
        if request.member_id == UNKNOWN_MEMBER_ID:
            fresh_member_id = self._new_member_id(request.group_instance_id or client.client_id)
        if client.api_version >= 7:
            reply = partial(_without_empty_name, reply)
        self._of_one_group(request, client, reply, fresh_member_id)

    def _heartbeat(self, request: HeartbeatRequest, client: Client, reply: Answer) -> None:
        who = (request.group_id, request.generation_id, request.member_id, request.group_instance_id)
        reply(HeartbeatResponse(error_code=self.heartbeat(*who)))

    # ---------------------------------------------------------------------------- requests that are about many groups

    def _fetch(self, request: OffsetFetchRequest, client: Client, reply: Answer) -> None:
        version = client.api_version
        groups = fetched_groups(request, version)
        gather = Gather(len(groups), lambda found: reply(fetched(found, version)))
        for i, group in enumerate(groups):
            self._ask(
                group.group_id,
                gather.part(i),
                lambda shard, group=group: shard.fetch_offsets(group, version),  # type: ignore[misc]
                lambda error, group=group: refused(group, error),  # type: ignore[misc]
            )

    def _describe(self, request: DescribeGroupsRequest, client: Client, reply: Answer) -> None:
        groups = self._by_partition(request.groups)
        gather = Gather(len(groups), lambda found: reply(DescribeGroupsResponse(groups=found)))
        version = client.api_version
        for i, group_id in enumerate(groups):
            self._ask(
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

    def _ask(
        self, group_id: str, part: Answer, look: Callable[[GroupShard], Any], refuse: Callable[[ErrorCode], Any]
    ) -> None:
        """Answer with what a shard shows of a group, once that is durable."""
        self._decide_one(group_id, part, lambda shard: (look(shard), Effects()), refuse)

    def _decide_one(
        self,
        group_id: str,
        part: Answer,
        decide: Callable[[GroupShard], tuple[Any, Effects]],
        refuse: Callable[[ErrorCode], Any],
    ) -> None:
        """Have a group's part of a request decided."""
        home = self._find(group_id)
        if not isinstance(home, Home):
            part(refuse(home))
            return
        self._settle_part(home, part, decide, refuse)

    def _settle_part(
        self,
        home: Home,
        part: Answer,
        decide: Callable[[GroupShard], tuple[Any, Effects]],
        refuse: Callable[[ErrorCode], Any],
    ) -> None:
        answered = self._settle(home, self._clock(), _decided, decide, home.shard, part)
        if answered is not None and part not in answered:
            part(refuse(ErrorCode.UNKNOWN_SERVER_ERROR))

    def _by_partition(
        self, group_ids: Iterable[str], within: Callable[[list[str]], list[str]] = lambda group_ids: group_ids
    ) -> list[str]:
        """The groups in the order in which Kafka answers: partition by partition, and in order `within` each."""
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
        homes = list(self._homes.values())
        gather = Gather(len(homes), lambda found: reply(listed(found)))
        states, types = request.states_filter, request.types_filter
        for i, home in enumerate(homes):
            self._settle_part(
                home,
                gather.part(i),
                lambda shard: (ListGroupsResponse(groups=shard.list_groups(states, types)), Effects()),
                lambda error: ListGroupsResponse(error_code=error),
            )

    # ---------------------------------------------------------------------------------------------- the step, the log

    def _settle(self, home: Home, now: int, decide: Callable[..., Effects], *arguments: Any) -> Sequence[Answer] | None:
        """Have something decided, and see to it: records into the open batch, answers behind them, events to whoever
        watches. If that raises, the shard is dropped: returns those who were told, which need not be all."""
        try:
            effects = decide(*arguments)
            if effects.records:
                self._write_down(home, effects, now)
        except Exception:
            log.exception("partition %d of %s could not go on", home.partition, GROUP_METADATA_TOPIC)
            return self._drop(home, ErrorCode.UNKNOWN_SERVER_ERROR)
        home.answer(effects.replies)
        for event in effects.events:
            self._on_event(event)
        if home.shard.first_alarm < self._told_deadline:
            self._comes_due(home.shard.first_alarm)
        if self._dirty:
            self._after_deciding(home)
        return None

    def _write_down(self, home: Home, effects: Effects, now: int) -> None:
        batch, shift = home.batch, shift_between(now, self._wall_clock())
        for record in effects.records:
            append_records(batch, now + shift, shifted(record, shift) if shift else record)
        home.batch_time = now + shift
        self._dirty.add(home)

    def _after_deciding(self, home: Home) -> None:
        if home.batch.size >= MAX_BATCH_BYTES:
            self._write(home)
        elif self._schedule_flush is not None and not self._flush_is_due:
            self._flush_is_due = True
            self._schedule_flush()

    def flush(self) -> None:
        """Write all open batches, and answer whoever the log allows to."""
        self._flush_is_due = False
        dirty, self._dirty = self._dirty, set()
        for home in sorted(dirty, key=lambda home: home.partition):
            self._write(home)

    def _write(self, home: Home) -> None:
        batch, home.batch = home.batch, BatchBuilder()
        self._dirty.discard(home)
        if not batch.count:
            return
        try:
            appended = home.log.append(batch.build(), now=home.batch_time, origin="coordinator")
        except Exception as error:
            log.error("writing partition %d of %s failed: %s", home.partition, GROUP_METADATA_TOPIC, error)
            self._drop(home, ErrorCode.NOT_COORDINATOR)
        else:
            home.wrote(appended.last_offset + 1)

    def release_durable(self) -> None:
        """Answer whoever the logs allow to, after somebody else made them durable."""
        for home in list(self._homes.values()):
            if home.parked:
                home.release()
            if home.parked and home.log.failed is not None:
                log.error(
                    "partition %d of %s cannot be synced: %s", home.partition, GROUP_METADATA_TOPIC, home.log.failed
                )
                self._drop(home, ErrorCode.NOT_COORDINATOR)

    def _drop(self, home: Home, error: ErrorCode) -> list[Answer]:
        """Throw a shard away, to be read again in a while: all who wait for its log, or for other members, are answered
        with `error`. Returns whom that was."""
        del self._homes[home.partition]
        self._dirty.discard(home)
        self._go_away(home.partition)
        replies = [Reply(reply.ticket, spoiled(reply.response, error)) for reply in home.take_waiting()]
        replies += home.shard.unload(error).replies
        for reply in replies:
            reply.ticket(reply.response)
        return [reply.ticket for reply in replies]

    # ------------------------------------------------------------------------------------------------ time and topics

    def next_deadline(self) -> int | None:
        """When `on_deadlines` wants to be called next, by `clock`."""
        deadlines = [d for home in self._homes.values() if (d := home.shard.next_deadline()) is not None]
        deadlines += self._away.values()
        self._told_deadline = min(deadlines, default=NEVER)
        return None if self._told_deadline == NEVER else self._told_deadline

    def _comes_due(self, at: int) -> None:
        if at < self._told_deadline and self._on_deadline_moved is not None:
            self._told_deadline = at
            self._on_deadline_moved()

    def on_deadlines(self, now: int) -> None:
        """Do all that is due: sessions and rebalances that end, offsets that expire, shards to be read again."""
        for home in list(self._homes.values()):
            deadline = home.shard.next_deadline()
            if deadline is not None and deadline <= now:
                self._settle(home, now, home.shard.on_deadline, now)
        for partition, at in list(self._away.items()):
            if at <= now:
                self._begin_to_load(partition)
        if self._dirty and self._schedule_flush is None:
            self.flush()

    def topics_deleted(self, topics: Iterable[str]) -> Generator[None, None, None]:
        """Topics are gone: what groups committed for them goes too, some of it at a time. From a shard that is not
        there it goes when it is read. No topic of such a name may come into being before the end of this."""
        gone = frozenset(topics)
        for home in list(self._homes.values()):
            for group_id in list(home.shard.offsets.by_group):
                for topic in gone.intersection(home.shard.offsets.of_group(group_id)):
                    yield from self._forget_offsets(home, group_id, topic)
                yield
        if self._schedule_flush is None:
            self.flush()

    def _forget_offsets(self, home: Home, group_id: str, topic: str) -> Generator[None, None, None]:
        shard = home.shard
        partitions = list(shard.offsets.of_group(group_id).get(topic, ()))
        for start in range(0, len(partitions), FORGOTTEN_AT_ONCE):
            if self._homes.get(home.partition) is home:
                some = partitions[start : start + FORGOTTEN_AT_ONCE]
                self._settle(home, self._clock(), shard.forget_offsets, group_id, topic, some)
            yield


def _decided(decide: Callable[[GroupShard], tuple[Any, Effects]], shard: GroupShard, part: Answer) -> Effects:
    """The effects of a decision about a group's part of a request, its answer among them."""
    answer, effects = decide(shard)
    return effects.reply(part, answer)


def _without_empty_name(reply: Answer, answer: JoinGroupResponse) -> None:
    """Since version 7 of JoinGroup a protocol that was not chosen is null, before that it is empty."""
    answer.protocol_name = answer.protocol_name or None
    reply(answer)


_DECIDE: dict[type[Any], Callable[[GroupShard, Any, Origin, int], Effects]] = {
    JoinGroupRequest: GroupShard.join,
    OffsetCommitRequest: GroupShard.commit,
    SyncGroupRequest: GroupShard.sync,
    LeaveGroupRequest: GroupShard.leave,
}
