"""A member of scheme 2: the coordinator assigns, the member joins and sends heartbeats (A2 to A6). Pure.

Theory. `TRANSITIONS` in `states.py` is the state table. The member finds the coordinator of its group
(`coordinator_search.py`) and sends JoinGroup with its topics. The coordinator answers once all members that it knows
have sent theirs, with a generation, the member's id and its partitions: there is no leader among the members and no
second request. The member reads from the group's committed offsets, and sends heartbeats.

- ILLEGAL_GENERATION, the answer to a heartbeat or a commit, says that a rebalance has begun (A4). The member stops
  fetching, commits processed records if auto commit is on, and joins. The coordinator accepts commits of the old
  generation until all have joined. The commit has half a session timeout; then the member joins without it, so that the
  other members need not wait.
- NOT_COORDINATOR sends it back to the search (A6). It stays a member, with its partitions and its generation: the next
  coordinator continues from the state that the previous one wrote. So a failover is not a rebalance.
- UNKNOWN_MEMBER_ID says that the group continues without it. Its partitions have other owners: it stops, commits
  nothing, and joins as a new member.
- No successful heartbeat for the session timeout: the coordinator is lost. The next one has a whole session timeout.

The member keeps reading while it has no coordinator, as in Kafka's own clients. If its partitions have been assigned to
other members meanwhile, records are handled twice, but not committed twice: commits carry member and generation.

`_attempt` guards against two races. A JoinGroup is parked at a coordinator, which is lost; another one answers the next
JoinGroup; then the answer to the parked one arrives after all. Or: offsets are looked up; a rebalance begins, its
coordinator crashes, and the next one knows nothing of it, so that the member gets the same partitions in the same
generation again, continues and commits; then the answer to the first lookup arrives, and would set it back. Both
answers are ignored.

A new member does not know its id before the first answer. If that answer is lost with its coordinator, the group waits
one session timeout for a member that does not exist.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Protocol

from muster.client.config import ConsumerConfig, parse_address
from muster.client.core.events import INFO, WARNING, EventStream, Fatal, Note
from muster.client.core.group.heartbeat import Heartbeat
from muster.client.core.group.requests import join_timeout_ms
from muster.client.core.metadata import ClusterMetadata
from muster.client.core.sends import AnySend, Channel, Failure, send
from muster.errors import CommitFailedError, ErrorCode, KafkaError, MusterError, error_code
from muster.model import TopicPartition
from muster.protocol.draft_messages import DraftJoinGroupRequest, DraftJoinGroupResponse
from muster.protocol.messages import HeartbeatRequest, HeartbeatResponse, LeaveGroupRequest, LeaveGroupResponse
from muster.zookeeper.server_assigned.coordinator_search import CoordinatorSearch
from muster.zookeeper.server_assigned.offsets import GIVEN_UP, OUTSIDE, Committed, GroupOffsets, MemberOfGeneration
from muster.zookeeper.server_assigned.states import TRANSITIONS, ServerAssignedEvent, ServerAssignedState

_REBALANCE = (ErrorCode.ILLEGAL_GENERATION, ErrorCode.REBALANCE_IN_PROGRESS)
"""From September 2015 on, Kafka's trunk answered with the second while it waited for the members."""


class Fetching(Protocol):
    """The reader of the member's partitions."""

    def handled(self) -> Mapping[TopicPartition, int]:
        """The positions after the records that the user has processed."""

    def stop(self) -> Mapping[TopicPartition, int]:
        """Stop fetching, and return no fetched records. Returns the positions after the processed records."""

    def start(self, partitions: Mapping[TopicPartition, int | None]) -> None:
        """Fetch these partitions and no others, from these offsets; None: `auto_offset_reset` says from where."""


class ServerAssignedMember:
    """One consumer's place in its group. The face sends what `poll` returns, and takes `events`."""

    def __init__(
        self,
        config: ConsumerConfig,
        servers: Iterable[str],
        topics: Sequence[str],
        fetching: Fetching,
        seed: int = 0,
    ) -> None:
        self.state = ServerAssignedState.OUTSIDE
        self.standing = OUTSIDE
        self.events = EventStream()
        self.nodes = ClusterMetadata(config)
        """The addresses of coordinators; it never requests metadata."""
        addresses = [parse_address(each) for each in servers]
        self.search = CoordinatorSearch(config, addresses, self.nodes, self.events, seed)
        self.offsets = GroupOffsets(config, self.search, seed)
        self.offsets.on_expelled = self._on_rebalance
        self.partitions: frozenset[TopicPartition] = frozenset()
        """Its partitions in this generation."""
        self._group_id = config.group_id or ""
        self._config = config
        self._topics = list(topics)
        self._fetching = fetching
        self._heartbeat = Heartbeat(config, seed)
        self._outbox: list[AnySend] = []
        self._attempt = 0
        self._is_join_parked = False
        self._epoch = -1
        """The search's epoch when the session timeout was last restarted."""
        self._retry_at = 0
        self._check_at = 0
        self._release_until = 0
        self._stored: dict[TopicPartition, int] = {}
        """The group's committed offsets, as far as this member knows."""
        self._auto_commit_at = 0
        self._is_leaving = False
        self._leave_until = 0
        self._on_left: Callable[[], None] | None = None

    # --- what the face asks for --------------------------------------------------------------------------------------

    def begin(self, now: int) -> None:
        """Join the group; or join it again, when the user has seen the error that ended the membership."""
        if self.state in (ServerAssignedState.OUTSIDE, ServerAssignedState.FAILED):
            self._move(ServerAssignedEvent.BEGINS)
            self._retry_at = now

    def commit(
        self, positions: Mapping[TopicPartition, int], on_done: Callable[[MusterError | None, int], None], until: int
    ) -> None:
        """Commit positions in partitions of this member, retried until `until`."""
        if self.offsets.in_force is OUTSIDE or any(partition not in self.partitions for partition in positions):
            on_done(CommitFailedError(ErrorCode.ILLEGAL_GENERATION, GIVEN_UP), 0)
        else:
            self.offsets.commit(positions, partial(self._committed, positions, on_done), until)

    def _committed(
        self,
        positions: Mapping[TopicPartition, int],
        on_done: Callable[[MusterError | None, int], None],
        error: MusterError | None,
        now: int,
    ) -> None:
        if error is None:
            self._stored.update(positions)
        on_done(error, now)

    def leave(self, now: int, until: int, on_left: Callable[[], None]) -> None:
        """Stop, commit processed records if auto commit is on, and leave the group. `on_left` is called by `until`."""
        self._commit_at_stop(until)
        self._move(ServerAssignedEvent.CLOSES)
        self._leave_until, self._on_left = until, on_left

    # --- time --------------------------------------------------------------------------------------------------------

    def poll(self, now: int) -> list[AnySend]:
        """Do what is due; returns the resulting requests."""
        if self.search.error is not None:
            error, self.search.error = self.search.error, None
            self._fail(error, now)
        match self.state:
            case ServerAssignedState.JOINING:
                self._mind_join(now)
            case ServerAssignedState.STABLE:
                self._mind_heartbeat(now)
                self._mind_auto_commit(now)
            case ServerAssignedState.RELEASING:
                self._mind_release(now)
        outbox, self._outbox = self._outbox, []
        outbox += self.offsets.poll(now)
        if self.state is ServerAssignedState.CLOSED:
            self._mind_leaving(now)
            outbox += self._outbox
            self._outbox = []
        return outbox + self.search.poll(now)

    def next_deadline(self, now: int) -> int | None:
        """When to poll again, if nothing arrives before then."""
        times = [self.offsets.next_deadline(now), self.search.next_deadline(now)]
        known = self.search.node_id is not None
        match self.state:
            case ServerAssignedState.JOINING if known:
                times.append(self._check_at if self._is_join_parked else self._retry_at)
            case ServerAssignedState.STABLE:
                if known:
                    times += [self._heartbeat.send_at, self._heartbeat.session_ends_at]
                if self._config.enable_auto_commit:
                    times.append(self._auto_commit_at)
            case ServerAssignedState.RELEASING:
                times.append(self._release_until)
            case ServerAssignedState.CLOSED if self._on_left is not None:
                times.append(self._leave_until)
        found = [time for time in times if time is not None]
        return max(now, min(found)) if found else None

    # --- joining -----------------------------------------------------------------------------------------------------

    def _mind_join(self, now: int) -> None:
        if self._is_join_parked and self._epoch != self.search.epoch:
            self._is_join_parked = False  # the coordinator that holds it is lost
        node_id = self.search.need()
        if node_id is None:
            return
        if self._is_join_parked:
            if now >= self._check_at:
                self._check_at = now + self._config.session_timeout_ms
                self.search.check()
        elif now >= self._retry_at:
            self._join(node_id, now)

    def _join(self, node_id: int, now: int) -> None:
        self._attempt += 1
        self._is_join_parked, self._epoch = True, self.search.epoch
        self._check_at = now + self._config.session_timeout_ms
        request = DraftJoinGroupRequest(
            self._group_id,
            self._config.session_timeout_ms,
            self._topics,
            self.standing.member_id,
            self._config.partition_assignment_strategy[0],
        )
        on_reply = partial(self._on_join, self._attempt, self._epoch)
        timeout_ms = join_timeout_ms(self._config)
        self._outbox.append(send(node_id, request, on_reply, channel=Channel.COORDINATOR, timeout_ms=timeout_ms))

    def _on_join(self, attempt: int, epoch: int, reply: DraftJoinGroupResponse | Failure, now: int) -> None:
        if attempt != self._attempt or epoch != self.search.epoch or self.state is not ServerAssignedState.JOINING:
            return
        self._is_join_parked = False
        self._retry_at = now + self._config.retry_backoff_ms
        if isinstance(reply, Failure):
            self.search.failed(reply, now)
            if not reply.retriable:
                self._fail(reply.error(), now)
            return
        code = error_code(reply.error_code)
        self.search.refused(code, now)
        if code is ErrorCode.NONE:
            self._take(reply, now)
        elif code is ErrorCode.UNKNOWN_MEMBER_ID:
            self._forget(now)
        elif not code.retriable and code not in _REBALANCE:
            self._fail(KafkaError(code, self._explain(code)), now)

    def _take(self, reply: DraftJoinGroupResponse, now: int) -> None:
        self.standing = self.offsets.in_force = MemberOfGeneration(reply.group_generation_id, reply.consumer_id)
        self.partitions = frozenset(
            TopicPartition(share.topic, number) for share in reply.assigned_partitions for number in share.partitions
        )
        self._stored = {}
        self._move(ServerAssignedEvent.ASSIGNED)
        self._heartbeat.reset(now)
        self._auto_commit_at = now + self._config.auto_commit_interval_ms
        assigned = ", ".join(map(str, sorted(self.partitions))) or "nothing"
        generation = f"generation {reply.group_generation_id} of group {self._group_id}"
        self.events.append(Note(INFO, f"{generation}: the coordinator assigned {reply.consumer_id} {assigned}"))
        if self.partitions:
            self.offsets.fetch(sorted(self.partitions), partial(self._start, self._attempt))
        else:
            self._fetching.start({})

    def _start(self, attempt: int, found: Committed | MusterError, now: int) -> None:
        if attempt != self._attempt or self.state is not ServerAssignedState.STABLE:
            return
        if isinstance(found, MusterError):
            self._fail(found, now)
            return
        self._stored = {partition: place.offset for partition, place in found.items() if place is not None}
        self._fetching.start({partition: self._stored.get(partition) for partition in sorted(found)})

    def _explain(self, code: ErrorCode) -> str:
        if code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL:
            return (
                f"the coordinator does not assign group {self._group_id} by "
                f"{self._config.partition_assignment_strategy[0]}: its setting server.assigned.groups must match the "
                "group, and all members must name the same strategy, one that the coordinator supports"
            )
        return f"group {self._group_id}"

    # --- heartbeats --------------------------------------------------------------------------------------------------

    def _mind_heartbeat(self, now: int) -> None:
        node_id = self.search.need()
        if node_id is None:
            return
        if self._epoch != self.search.epoch:
            self._epoch = self.search.epoch
            self._heartbeat.reset_session(now)
            self._heartbeat.send_at = now
        if now >= self._heartbeat.session_ends_at:
            self.search.mark_dead("no heartbeat succeeded for the session timeout", now)
            self.search.need()
        elif now >= self._heartbeat.send_at:
            self._heartbeat.sent(now)
            request = HeartbeatRequest(self._group_id, self.standing.generation_id, self.standing.member_id)
            on_reply = partial(self._on_heartbeat, self._attempt, self._epoch)
            self._outbox.append(send(node_id, request, on_reply, channel=Channel.COORDINATOR))

    def _on_heartbeat(self, attempt: int, epoch: int, reply: HeartbeatResponse | Failure, now: int) -> None:
        if attempt != self._attempt or epoch != self.search.epoch:
            return
        if isinstance(reply, Failure):
            self.search.failed(reply, now)
            return
        code = error_code(reply.error_code)
        self.search.refused(code, now)
        if self.state is not ServerAssignedState.STABLE:
            return
        if code is ErrorCode.NONE:
            self._heartbeat.received(now)
        elif code is ErrorCode.UNKNOWN_MEMBER_ID or code in _REBALANCE:
            self._on_rebalance(code, now)
        elif code.retriable:
            self._heartbeat.failed(now)
        else:
            self._fail(KafkaError(code, f"a heartbeat of group {self._group_id}"), now)

    # --- a rebalance -------------------------------------------------------------------------------------------------

    def _on_rebalance(self, code: ErrorCode, now: int) -> None:
        if code in _REBALANCE and self.state is ServerAssignedState.STABLE:
            self._release_until = now + self._config.session_timeout_ms // 2
            self._commit_at_stop(self._release_until)
            self._move(ServerAssignedEvent.REBALANCE)
            self.events.append(Note(INFO, f"group {self._group_id} rebalances"))
            self._mind_release(now)
        elif code in _REBALANCE and self.state is ServerAssignedState.RELEASING:
            self._released(now)  # the group has continued: nothing can be committed any longer
        elif self.state in (ServerAssignedState.STABLE, ServerAssignedState.RELEASING):
            self._forget(now)

    def _commit_at_stop(self, until: int) -> None:
        positions = self._fetching.stop()
        if self._config.enable_auto_commit:
            self._auto_commit(positions, until)

    def _mind_release(self, now: int) -> None:
        if not self.offsets.committing or now >= self._release_until:
            self._released(now)
        else:
            self.search.need()

    def _released(self, now: int) -> None:
        self._move(ServerAssignedEvent.RELEASED)
        self._own_nothing(self.standing.member_id, now)
        self._mind_join(now)

    def _forget(self, now: int) -> None:
        """The group does not know this member: it joins as a new one."""
        self._fetching.stop()
        self._move(ServerAssignedEvent.FORGOTTEN)
        self._own_nothing("", now)
        self.events.append(Note(WARNING, f"group {self._group_id} has continued without this member; rejoining"))

    def _own_nothing(self, member_id: str, now: int) -> None:
        self.standing, self.offsets.in_force = MemberOfGeneration(OUTSIDE.generation_id, member_id), OUTSIDE
        self.partitions = frozenset()
        self.offsets.give_up_commits(CommitFailedError(ErrorCode.ILLEGAL_GENERATION, GIVEN_UP), now)
        self._is_join_parked = False

    def _fail(self, error: MusterError, now: int) -> None:
        """Stop, and report the error to the user."""
        if (self.state, ServerAssignedEvent.REFUSED) in TRANSITIONS:
            self._fetching.stop()
            self._move(ServerAssignedEvent.REFUSED)
            self._own_nothing(self.standing.member_id, now)
            self.events.append(Fatal(error))
        self.offsets.give_up(error, now)

    def _move(self, happening: ServerAssignedEvent) -> None:
        self.state = TRANSITIONS[self.state, happening]

    # --- auto commit -------------------------------------------------------------------------------------------------

    def _mind_auto_commit(self, now: int) -> None:
        if not self._config.enable_auto_commit or now < self._auto_commit_at:
            return
        self._auto_commit_at = now + self._config.auto_commit_interval_ms
        if not self.offsets.committing:
            self._auto_commit(self._fetching.handled(), now + self._config.default_api_timeout_ms)

    def _auto_commit(self, positions: Mapping[TopicPartition, int], until: int) -> None:
        moved = {p: offset for p, offset in positions.items() if p in self.partitions and self._stored.get(p) != offset}
        if moved:
            self.offsets.commit(moved, partial(self._committed, moved, self._note_auto_commit), until)

    def _note_auto_commit(self, error: MusterError | None, now: int) -> None:
        if error is not None:
            self.events.append(Note(WARNING, f"auto commit of group {self._group_id} failed: {error}"))

    # --- leaving -----------------------------------------------------------------------------------------------------

    def _mind_leaving(self, now: int) -> None:
        if self._on_left is None:
            return
        if now >= self._leave_until:
            self._left()
        elif self.offsets.committing:
            self.search.need()
        elif not self._is_leaving:
            self._is_leaving = True
            self._send_leave()

    def _send_leave(self) -> None:
        node_id, member_id = self.search.node_id, self.standing.member_id
        if node_id is None or not member_id:
            self._left()  # a member that cannot send LeaveGroup is removed by the session timeout
            return
        # The coordinator would not read the request while a JoinGroup is parked on the same connection.
        channel = Channel.DATA if self._is_join_parked else Channel.COORDINATOR
        request = LeaveGroupRequest(self._group_id, member_id)
        self._outbox.append(send(node_id, request, self._on_leave, channel=channel))

    def _on_leave(self, reply: LeaveGroupResponse | Failure, now: int) -> None:
        self._left()

    def _left(self) -> None:
        on_left, self._on_left = self._on_left, None
        if on_left is not None:
            on_left()
