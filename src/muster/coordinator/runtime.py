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

A ticket, which the rules hand around without looking into it, is here a function that takes the answer.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, NamedTuple

from muster.coordinator.config import GroupConfig
from muster.coordinator.effects import Effects, GroupEvent, Origin, Reply
from muster.coordinator.failures import refused, spoiled
from muster.coordinator.loading import GroupLog, Loading
from muster.coordinator.shard import GroupShard
from muster.coordinator.topics import TopicResolver
from muster.errors import ErrorCode, KafkaError, MusterError
from muster.model import GROUP_METADATA_TOPIC, UNKNOWN_MEMBER_ID
from muster.protocol.group_records import encode_record
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
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponseTopic,
    SyncGroupRequest,
)
from muster.protocol.primitives import Request, Response
from muster.protocol.record_batch import BatchBuilder

__all__ = ["Client", "CoordinatorRuntime", "GroupConfig", "GroupLog", "group_partition"]

log = logging.getLogger("muster.groups")

MAX_BATCH_BYTES = 1024 * 1024
"""A batch that has grown so large is written before the turn ends."""

LOAD_RECORDS = 256
"""How many records are read at a time."""

RELOAD_AFTER_MS = 1_000
"""How long a shard whose log failed stays away before it is read again."""

Answer = Callable[[Any], None]


class Client(NamedTuple):
    """Who sent a request, and in which version."""

    client_id: str
    client_host: str
    api_version: int


def group_partition(group_id: str, partitions: int) -> int:
    """The partition of `__consumer_offsets` that keeps a group: the absolute value of Java's hash of its id."""
    return _known(group_id, partitions) if len(group_id) <= _MOST_KNOWN_LENGTH else _hashed(group_id, partitions)


_MOST_KNOWN_LENGTH = 256
"""Longer ids, which nobody uses in earnest, are not remembered: there may be tens of thousands of them."""


@lru_cache(maxsize=65_536)
def _known(group_id: str, partitions: int) -> int:
    return _hashed(group_id, partitions)


def _hashed(group_id: str, partitions: int) -> int:
    hashed = 0
    encoded = group_id.encode("utf-16-be", "surrogatepass")
    for i in range(0, len(encoded), 2):
        hashed = (hashed * 31 + (encoded[i] << 8 | encoded[i + 1])) & 0xFFFFFFFF
    if hashed >= 0x80000000:
        hashed = 0x100000000 - hashed
    return 0 if hashed == 0x80000000 else hashed % partitions


class _Home:
    """A shard with its log, its open batch, and the answers that wait for the log.

    `decided` are answers that wait for the open batch to be written, `parked` those that wait for what was written to
    be durable, each with the end of the log that it waits for. `written` is the end of the last write.
    """

    __slots__ = ("batch", "batch_time", "decided", "log", "parked", "partition", "shard", "written")

    def __init__(self, partition: int, shard: GroupShard, log: GroupLog) -> None:
        self.partition = partition
        self.shard = shard
        self.log = log
        self.batch = BatchBuilder()
        self.batch_time = 0
        self.written = log.log_end_offset
        self.decided: list[Reply] = []
        self.parked: deque[tuple[int, Reply]] = deque()

    def answer(self, replies: list[Reply]) -> None:
        """Answer when all that was decided until now is durable."""
        if self.batch.count:
            self.decided += replies
            return
        self.parked.extend((self.written, reply) for reply in replies)
        self.release()

    def wrote(self, end: int) -> None:
        """The open batch is in the log, before the offset `end`: the log says so, for it need not be ours alone."""
        self.written = end
        decided, self.decided = self.decided, []
        self.answer(decided)

    def waiting(self) -> list[Reply]:
        """The answers that have not gone out, in order."""
        return [reply for _, reply in self.parked] + self.decided

    def release(self) -> None:
        """Answer those whose records, and whatever was decided before, the log has durably."""
        parked, high_watermark = self.parked, self.log.high_watermark
        while parked and parked[0][0] <= high_watermark:
            reply = parked.popleft()[1]
            reply.ticket(reply.response)


class CoordinatorRuntime:
    """All groups of one broker.

    Args:
        open_log: gives the log of a partition of `__consumer_offsets`, an empty one if it was never written.
        clock: milliseconds since the epoch. Sessions are measured by it too, so it had better not jump.
        topics: names, ids and partition counts of the topics that exist.
        on_event: told of rebalances and members, for the broker's log and for whoever watches.
        new_member_id: a fresh id for a member, from its client id or, for static members, its instance id.
        schedule_flush: called when there is something to flush, at most once until `flush` is called. Without it
            every `submit` flushes by itself.
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
    ) -> None:
        self.config = config
        self._open_log = open_log
        self._clock = clock
        self._topics = topics
        self._on_event = on_event
        self._new_member_id = new_member_id
        self._schedule_flush = schedule_flush
        self._homes: dict[int, _Home] = {}
        self._away: dict[int, int] = {}  # partitions whose log failed, and when to read them again
        self._dirty: set[_Home] = set()
        self._flush_is_due = False
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
        """Read the logs that exist (`partitions`; all, if not given) and begin to serve.

        The others are opened when a group first needs them. Until this was called every request is answered
        COORDINATOR_LOAD_IN_PROGRESS. Sessions of the members found begin now.
        """
        wanted = range(self.config.offsets_topic_num_partitions) if partitions is None else partitions
        self._state_error = ErrorCode.NONE
        for partition in wanted:
            self._try_to_load(partition)
        self.flush()

    def load(self, partition: int) -> None:
        """Read one log. A shard that is there already is left alone. Raises what the log raises."""
        if partition in self._homes:
            return
        log = self._open_log(partition)
        if log.high_watermark < log.log_end_offset:
            # The shard was dropped between an append and its sync. What is read now would lack records that a crash
            # would bring back.
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the end of the log is not durable")
        shard = GroupShard(self.config, self._topics)
        self._read(Loading(log, shard), partition)
        home = self._homes[partition] = _Home(partition, shard, log)
        self._away.pop(partition, None)
        now = self._clock()
        self._settle(home, shard.loaded(now), now)

    def _read(self, loading: Loading, partition: int) -> None:
        while not loading.step(LOAD_RECORDS):
            pass
        if loading.passed_over:
            log.error(
                "partition %d of %s: %d record(s) or batch(es) were passed over because they cannot be understood; %s",
                partition,
                GROUP_METADATA_TOPIC,
                loading.passed_over,
                f"the first {loading.first_passed_over}",
            )

    def _try_to_load(self, partition: int) -> None:
        """As `load`; a log that cannot be read leaves its groups without a coordinator until it can."""
        try:
            self.load(partition)
        except (MusterError, OSError) as error:
            log.error("reading partition %d of %s failed: %s", partition, GROUP_METADATA_TOPIC, error)
            self._away[partition] = self._clock() + RELOAD_AFTER_MS

    def close(self) -> None:
        """Write what is left, answer whoever waits with NOT_COORDINATOR, and serve no more."""
        if self._state_error is ErrorCode.COORDINATOR_NOT_AVAILABLE:
            return
        self.flush()
        self._state_error = ErrorCode.COORDINATOR_NOT_AVAILABLE
        for home in list(self._homes.values()):
            self._drop(home, ErrorCode.NOT_COORDINATOR)
        self._away.clear()

    def unload_all(self) -> None:
        """The topic is gone: forget its groups, and send away all who wait. `load_all` begins anew."""
        self._state_error = ErrorCode.NOT_COORDINATOR
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
            if not isinstance(found, _Home):
                # A coordinator that is loading cannot know, so it keeps the member calm, as Kafka does.
                return ErrorCode.NONE if found is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS else found
            home = found
        return home.shard.heartbeat(group_id, generation_id, member_id, group_instance_id, self._clock())

    def _find(self, group_id: str) -> _Home | ErrorCode:
        partition = group_partition(group_id, self.config.offsets_topic_num_partitions)
        home = self._homes.get(partition)
        if home is not None:
            return home
        if self._state_error is not ErrorCode.NONE:
            return self._state_error
        if self._away.get(partition, 0) > self._clock():
            return ErrorCode.NOT_COORDINATOR
        self._try_to_load(partition)
        return self._homes.get(partition, ErrorCode.NOT_COORDINATOR)

    def _of_one_group(self, request: Any, client: Client, reply: Answer) -> None:
        home = self._find(request.group_id)
        if not isinstance(home, _Home):
            reply(refused(request, home))
            return
        origin, now = Origin(reply, client.client_id, client.client_host, client.api_version), self._clock()
        if isinstance(request, JoinGroupRequest) and request.member_id == UNKNOWN_MEMBER_ID:
            origin.fresh_member_id = self._new_member_id(request.group_instance_id or client.client_id)
        try:
            effects = _DECIDE[type(request)](home.shard, request, origin, now)
            self._write_down(home, effects, now)
        except Exception:
            log.exception("%s of group %s could not be handled", type(request).__name__, request.group_id)
            if reply not in self._drop(home, ErrorCode.UNKNOWN_SERVER_ERROR):
                reply(refused(request, ErrorCode.UNKNOWN_SERVER_ERROR))
            return
        self._deliver(home, effects)

    def _join(self, request: JoinGroupRequest, client: Client, reply: Answer) -> None:
        self._of_one_group(request, client, _without_empty_name(reply) if client.api_version >= 7 else reply)

    def _heartbeat(self, request: HeartbeatRequest, client: Client, reply: Answer) -> None:
        who = (request.group_id, request.generation_id, request.member_id, request.group_instance_id)
        reply(HeartbeatResponse(error_code=self.heartbeat(*who)))

    # ---------------------------------------------------------------------------- requests that are about many groups

    def _fetch(self, request: OffsetFetchRequest, client: Client, reply: Answer) -> None:
        version = client.api_version
        if version < 8:  # one group, in the request itself
            topics = (
                None
                if request.topics is None
                else [
                    OffsetFetchRequestTopics(name=topic.name, partition_indexes=topic.partition_indexes)
                    for topic in request.topics
                ]
            )
            groups = [OffsetFetchRequestGroup(request.group_id, topics=topics)]
        else:
            groups = request.groups
        gather = _Gather(len(groups), lambda found: reply(_fetched(found, version)))
        for i, group in enumerate(groups):
            home = self._find(group.group_id)
            if isinstance(home, _Home):
                self._settle(home, Effects([Reply(gather.part(i), home.shard.fetch_offsets(group, version))]))
            else:
                gather.part(i)(refused(group, home))

    def _describe(self, request: DescribeGroupsRequest, client: Client, reply: Answer) -> None:
        gather = _Gather(len(request.groups), lambda found: reply(DescribeGroupsResponse(groups=found)))
        for i, group_id in enumerate(request.groups):
            home = self._find(group_id)
            if isinstance(home, _Home):
                self._settle(home, Effects([Reply(gather.part(i), home.shard.describe(group_id, client.api_version))]))
            else:
                gather.part(i)(DescribedGroup(group_id=group_id, error_code=home))

    def _delete(self, request: DeleteGroupsRequest, client: Client, reply: Answer) -> None:
        gather = _Gather(len(request.groups_names), lambda found: reply(DeleteGroupsResponse(results=found)))
        for i, group_id in enumerate(request.groups_names):
            home = self._find(group_id)
            if isinstance(home, _Home):
                result, effects = home.shard.delete_group(group_id)
                self._settle(home, effects.reply(gather.part(i), result))
            else:
                gather.part(i)(DeletableGroupResult(group_id, home))

    def _list(self, request: ListGroupsRequest, client: Client, reply: Answer) -> None:
        if self._state_error is not ErrorCode.NONE:
            reply(ListGroupsResponse(error_code=self._state_error))
            return
        found = [
            group
            for home in self._homes.values()
            for group in home.shard.list_groups(request.states_filter, request.types_filter)
        ]
        reply(ListGroupsResponse(groups=found))

    # ---------------------------------------------------------------------------------------------- the step, the log

    def _settle(self, home: _Home, effects: Effects, now: int = 0) -> None:
        """See to what was decided: records into the open batch, answers behind them, events to whoever watches."""
        self._write_down(home, effects, now)
        self._deliver(home, effects)

    def _write_down(self, home: _Home, effects: Effects, now: int) -> None:
        if not effects.records:
            return
        batch = home.batch
        for record in effects.records:
            key, value = encode_record(record)
            batch.append(now, key, value)
        home.batch_time = now
        self._dirty.add(home)

    def _deliver(self, home: _Home, effects: Effects) -> None:
        home.answer(effects.replies)
        for event in effects.events:
            self._on_event(event)
        if self._dirty:
            self._after_deciding(home)

    def _after_deciding(self, home: _Home) -> None:
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

    def _write(self, home: _Home) -> None:
        batch, home.batch = home.batch, BatchBuilder()
        self._dirty.discard(home)
        if not batch.count:
            return
        try:
            appended = home.log.append(batch.build(), now=home.batch_time, origin="coordinator")
        except (MusterError, OSError) as error:
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

    def _drop(self, home: _Home, error: ErrorCode) -> list[Answer]:
        """Throw a shard away, to be read again in a while: all who wait for its log, or for other members, are answered
        with `error`. Returns whom that was."""
        del self._homes[home.partition]
        self._dirty.discard(home)
        self._away[home.partition] = self._clock() + RELOAD_AFTER_MS
        replies = [Reply(reply.ticket, spoiled(reply.response, error)) for reply in home.waiting()]
        replies += home.shard.unload(error).replies
        home.parked.clear()
        home.decided.clear()
        for reply in replies:
            reply.ticket(reply.response)
        return [reply.ticket for reply in replies]

    # ------------------------------------------------------------------------------------------------ time and topics

    def next_deadline(self) -> int | None:
        """When `on_deadlines` wants to be called next, by `clock`."""
        deadlines = [d for home in self._homes.values() if (d := home.shard.next_deadline()) is not None]
        deadlines += self._away.values()
        return min(deadlines, default=None)

    def on_deadlines(self, now: int) -> None:
        """Do all that is due: sessions and rebalances that end, offsets that expire, shards to be read again."""
        for home in list(self._homes.values()):
            deadline = home.shard.next_deadline()
            if deadline is not None and deadline <= now:
                self._on_deadline(home, now)
        for partition, at in list(self._away.items()):
            if at <= now:
                self._try_to_load(partition)
        if self._dirty and self._schedule_flush is None:
            self.flush()

    def _on_deadline(self, home: _Home, now: int) -> None:
        try:
            effects = home.shard.on_deadline(now)
            self._write_down(home, effects, now)
        except Exception:
            log.exception("what was due in partition %d of %s went wrong", home.partition, GROUP_METADATA_TOPIC)
            self._drop(home, ErrorCode.UNKNOWN_SERVER_ERROR)
        else:
            self._deliver(home, effects)

    def topic_deleted(self, topic: str) -> None:
        """A topic is gone: what groups committed for it goes too."""
        now = self._clock()
        for home in list(self._homes.values()):
            self._settle(home, home.shard.topic_deleted(topic), now)
        if self._schedule_flush is None:
            self.flush()


class _Gather:
    """Collects the parts of an answer, each of which waits for another shard's log, and hands them on when all came."""

    __slots__ = ("_done", "_missing", "_parts")

    def __init__(self, count: int, done: Callable[[list[Any]], None]) -> None:
        self._parts: list[Any] = [None] * count
        self._missing = count
        self._done = done
        if not count:
            done([])

    def part(self, index: int) -> Answer:
        def take(answer: Any) -> None:
            self._parts[index] = answer
            self._missing -= 1
            if not self._missing:
                self._done(self._parts)

        return take


def _without_empty_name(reply: Answer) -> Answer:
    """Since version 7 of JoinGroup a protocol that was not chosen is null, before that it is empty."""

    def take(answer: JoinGroupResponse) -> None:
        answer.protocol_name = answer.protocol_name or None
        reply(answer)

    return take


_DECIDE: dict[type[Any], Callable[[GroupShard, Any, Origin, int], Effects]] = {
    JoinGroupRequest: GroupShard.join,
    OffsetCommitRequest: GroupShard.commit,
    SyncGroupRequest: GroupShard.sync,
    LeaveGroupRequest: GroupShard.leave,
}


def _fetched(groups: list[OffsetFetchResponseGroup], version: int) -> OffsetFetchResponse:
    """The answer to an OffsetFetch. Since version 2 a group that failed shows no partitions; version 1 has no other
    place for the error."""
    for group in groups:
        if group.error_code and version >= 2:
            group.topics = []
    if version >= 8:
        return OffsetFetchResponse(groups=groups)
    topics = [
        OffsetFetchResponseTopic(
            topic.name,
            [
                OffsetFetchResponsePartition(
                    p.partition_index, p.committed_offset, p.committed_leader_epoch, p.metadata, p.error_code
                )
                for p in topic.partitions
            ],
        )
        for topic in groups[0].topics
    ]
    return OffsetFetchResponse(topics=topics, error_code=groups[0].error_code)
