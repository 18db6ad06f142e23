"""Members of scheme 2 on a virtual clock, with coordinators that crash and freeze, from a seed.

A `World` has some coordinator processes, one of which leads the group, and consumers without sockets: each has a
`ServerAssignedMember` and reads a log that has records without end. What the coordinators answer is the business of a
`Lead`: the model below, or the real coordinator. Every message goes through its codec.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from itertools import count
from random import Random
from typing import Any, Protocol

from muster.client.core.events import Disconnect, Fatal
from muster.client.core.sends import AnySend, Channel, Failure, FailureKind
from muster.errors import ErrorCode, MusterError
from muster.model import TopicPartition
from muster.protocol import codec
from muster.protocol import messages as m
from muster.protocol.draft_api import DRAFT_VERSIONS
from muster.protocol.draft_messages import DraftAssignedTopic, DraftJoinGroupRequest, DraftJoinGroupResponse
from muster.zookeeper.consumers.server_assigned_config import ServerAssignedConfig
from muster.zookeeper.server_assigned.member import ServerAssignedMember
from muster.zookeeper.server_assigned.states import ServerAssignedState

GROUP = "delays"
TOPIC = "flights"
SERVERS = 3
SESSION_MS = 10_000

Reply = Callable[[Any], None]


def over_the_wire(message: Any, version: int = 0) -> Any:
    """The message as it arrives."""
    return codec.decode(type(message), version, codec.encode(message, version))


class Lead(Protocol):
    """The group's coordinator within a process. It lives until the process ends; durable state is kept elsewhere."""

    is_fenced: bool
    """Whether a frozen one may continue when it resumes: its writes are refused."""

    def handle(self, request: Any, version: int, reply: Reply, now: int) -> None:
        """Answer a request, now or later."""

    def tick(self, now: int) -> None:
        """Time has passed."""

    def drop(self) -> None:
        """Another process leads now: all waiting requests are answered."""


class Disk:
    """The state that a group's coordinators keep, in the model."""

    def __init__(self, partitions: int) -> None:
        self.partitions = partitions
        self.generation = 0
        self.shares: dict[str, list[int]] = {}
        self.offsets: dict[int, int] = {}
        self.new_ids = count(1)
        self.went_back: list[str] = []

    def commit(self, partition: int, offset: int) -> None:
        if offset < self.offsets.get(partition, 0):
            self.went_back.append(f"{partition}: {offset} after {self.offsets[partition]}")
        self.offsets[partition] = offset


class Model:
    """A coordinator that follows the rules of the drafts, as small as possible."""

    is_fenced = False

    def __init__(self, disk: Disk, now: int) -> None:
        self._disk = disk
        self._deadlines = dict.fromkeys(disk.shares, now + SESSION_MS)
        self._waiting: dict[str, Reply] = {}
        self._rebalance_until: int | None = None

    def handle(self, request: Any, version: int, reply: Reply, now: int) -> None:
        match request:
            case DraftJoinGroupRequest():
                self._join(request, reply, now)
            case m.HeartbeatRequest():
                reply(m.HeartbeatResponse(error_code=self._judge(request.member_id, request.generation_id, now)))
            case m.LeaveGroupRequest():
                known = self._deadlines.pop(request.member_id, None) is not None
                reply(m.LeaveGroupResponse(error_code=0 if known else ErrorCode.UNKNOWN_MEMBER_ID))
                if known:
                    self._begin(now)
            case m.OffsetCommitRequest():
                self._commit(request, reply, now)
            case m.OffsetFetchRequest():
                self._fetch(request, reply)

    def _judge(self, member_id: str, generation: int, now: int) -> ErrorCode:
        if member_id not in self._deadlines:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if generation != self._disk.generation:
            return ErrorCode.ILLEGAL_GENERATION
        self._deadlines[member_id] = now + SESSION_MS
        return ErrorCode.NONE if self._rebalance_until is None else ErrorCode.ILLEGAL_GENERATION

    def _join(self, request: DraftJoinGroupRequest, reply: Reply, now: int) -> None:
        member_id = request.consumer_id
        if member_id and member_id not in self._deadlines:
            reply(DraftJoinGroupResponse(ErrorCode.UNKNOWN_MEMBER_ID, -1, member_id))
            return
        if member_id and self._rebalance_until is None:
            self._deadlines[member_id] = now + SESSION_MS
            reply(self._share(member_id))  # unchanged in a stable group: like a heartbeat
            return
        member_id = member_id or f"member-{next(self._disk.new_ids)}"
        self._deadlines[member_id] = now + SESSION_MS
        self._waiting[member_id] = reply
        self._begin(now)

    def _begin(self, now: int) -> None:
        if self._rebalance_until is None:
            self._rebalance_until = now + SESSION_MS
        self._maybe_complete(now)

    def _maybe_complete(self, now: int) -> None:
        if self._rebalance_until is None:
            return
        if now >= self._rebalance_until:
            self._deadlines = {each: now + SESSION_MS for each in self._deadlines if each in self._waiting}
        if self._deadlines.keys() - self._waiting.keys():
            return
        disk, members = self._disk, sorted(self._deadlines)
        disk.generation += 1
        disk.shares = {
            each: [p for p in range(disk.partitions) if p % len(members) == i] for i, each in enumerate(members)
        }
        self._rebalance_until = None
        self._deadlines = dict.fromkeys(members, now + SESSION_MS)
        waiting, self._waiting = self._waiting, {}
        for member_id, reply in waiting.items():
            reply(self._share(member_id))

    def _share(self, member_id: str) -> DraftJoinGroupResponse:
        share = DraftAssignedTopic(TOPIC, self._disk.shares[member_id])
        return DraftJoinGroupResponse(0, self._disk.generation, member_id, [share])

    def _commit(self, request: m.OffsetCommitRequest, reply: Reply, now: int) -> None:
        code = self._judge(request.member_id, request.generation_id_or_member_epoch, now)
        if code is ErrorCode.ILLEGAL_GENERATION and request.generation_id_or_member_epoch == self._disk.generation:
            code = ErrorCode.NONE  # the coordinator waits for the members: they may commit
        [topic] = request.topics
        if code is ErrorCode.NONE:
            for partition in topic.partitions:
                self._disk.commit(partition.partition_index, partition.committed_offset)
        answers = [m.OffsetCommitResponsePartition(each.partition_index, code) for each in topic.partitions]
        reply(m.OffsetCommitResponse(topics=[m.OffsetCommitResponseTopic(TOPIC, partitions=answers)]))

    def _fetch(self, request: m.OffsetFetchRequest, reply: Reply) -> None:
        numbers = [number for topic in request.topics or () for number in topic.partition_indexes]
        found = [
            m.OffsetFetchResponsePartition(number, self._disk.offsets.get(number, -1), metadata="")
            for number in numbers
        ]
        reply(m.OffsetFetchResponse(topics=[m.OffsetFetchResponseTopic(TOPIC, found)]))

    def drop(self) -> None:
        for member_id, reply in self._waiting.items():
            reply(DraftJoinGroupResponse(ErrorCode.NOT_COORDINATOR, -1, member_id))

    def tick(self, now: int) -> None:
        for member_id, deadline in list(self._deadlines.items()):
            if now >= deadline and member_id not in self._waiting:
                del self._deadlines[member_id]
                self._begin(now)
        self._maybe_complete(now)


class Process:
    """A coordinator process."""

    def __init__(self, node_id: int) -> None:
        self.node_id = node_id
        self.lead: Lead | None = None
        self.is_up = True
        self.is_frozen = False
        self.life = 0
        """Increases with each end: connections of the previous life are broken."""
        self.inbox: list[Callable[[], None]] = []


class SimConsumer:
    """A consumer: handles one record of each partition per turn, and starts at the group's committed offset."""

    def __init__(self, world: World, name: str, seed: int) -> None:
        self.world = world
        self.name = name
        self.positions: dict[int, int] = {}
        self.is_up = True
        self.is_frozen = False
        self.errors: list[MusterError] = []
        self.states: set[ServerAssignedState] = set()
        config = ServerAssignedConfig(
            coordinator_servers=tuple(f"c{index}:1" for index in range(SERVERS)),
            group_id=GROUP,
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=1_000,
            auto_commit_interval_ms=2_000,
        )
        self.config = config
        self.member = ServerAssignedMember(config, config.coordinator_servers, [TOPIC], self, seed)
        self.connections: dict[tuple[int, Channel], int] = {}
        """A number for each connection; answers on closed ones are not delivered."""
        self.numbers = count(1)
        self.inbox: list[Callable[[], None]] = []

    # --- what reads its partitions -----------------------------------------------------------------------------------

    def handled(self) -> Mapping[TopicPartition, int]:
        return {TopicPartition(TOPIC, number): offset for number, offset in self.positions.items()}

    def stop(self) -> Mapping[TopicPartition, int]:
        found, self.positions = self.handled(), {}
        return found

    def start(self, partitions: Mapping[TopicPartition, int | None]) -> None:
        self.positions = {partition.partition: offset or 0 for partition, offset in partitions.items()}

    # --- turns -------------------------------------------------------------------------------------------------------

    def turn(self) -> None:
        """Handles what arrived and what is due, and some records."""
        if not self.is_up or self.is_frozen:
            return
        inbox, self.inbox = self.inbox, []
        for arrived in inbox:
            arrived()
        for send in self.member.poll(self.world.now):
            self.world.send(self, send)
        for event in self.member.events.take():
            if isinstance(event, Disconnect):
                self.connections.pop((event.node_id, Channel.COORDINATOR), None)
            elif isinstance(event, Fatal):
                self.errors.append(event.error)
                self.member.begin(self.world.now)
        self.states.add(self.member.state)

    def read(self) -> None:
        if self.is_up and not self.is_frozen:
            self.positions = {number: offset + 1 for number, offset in self.positions.items()}

    @property
    def owned(self) -> set[int]:
        return {partition.partition for partition in self.member.partitions}


class World:
    """Everything, on one clock."""

    def __init__(self, seed: int, make_lead: Callable[[World], Lead], members: int, *, loss: float = 0.0) -> None:
        self.now = 0
        self.rng = Random(seed)
        self.loss = loss
        self._heap: list[tuple[int, int, Callable[[], None]]] = []
        self._order = count()
        self._make_lead = make_lead
        self.leader: Process | None = None
        """The process that leads the group; another one may believe that it does."""
        self.processes = [Process(index) for index in range(SERVERS)]
        self.consumers = [SimConsumer(self, f"c{index}", self.rng.getrandbits(30)) for index in range(members)]
        self._again()

    def later(self, after: int, act: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (self.now + after, next(self._order), act))

    def run(self, milliseconds: int) -> None:
        """Let time pass."""
        until = self.now + milliseconds
        while self._heap and self._heap[0][0] <= until:
            self.now, _, act = heapq.heappop(self._heap)
            act()
        self.now = until

    def _again(self) -> None:
        for process in self.processes:
            if process.is_up and not process.is_frozen:
                self._serve_inbox(process)
                if process.lead is not None:
                    process.lead.tick(self.now)
        for consumer in self.consumers:
            consumer.turn()
            consumer.read()
        self.later(50, self._again)

    # --- who leads ---------------------------------------------------------------------------------------------------

    def elect(self) -> None:
        """Another process takes the group, if one is up. The former one is notified, or learns of it some time after it
        has resumed."""
        up = [each for each in self.processes if each.is_up and not each.is_frozen and each.lead is None]
        for process in self.processes:
            if process.lead is not None and not (process.is_frozen and process.lead.is_fenced):
                self._depose(process, process.lead)
        self.leader = self.rng.choice(up) if up else None
        if self.leader is not None:
            self.leader.lead = self._make_lead(self)

    def _depose(self, process: Process, lead: Lead) -> None:
        if process.lead is lead:
            process.lead = None
            process.inbox.append(lead.drop)

    def crash(self, process: Process) -> None:
        process.is_up, process.lead, process.inbox = False, None, []
        process.life += 1
        if self.leader is process:
            self.leader = None

    def freeze(self, process: Process) -> None:
        """It is suspended; its connections stay up."""
        process.is_frozen = True

    def wake(self, process: Process) -> None:
        """It continues with what has arrived meanwhile, before it can be elected again."""
        process.is_frozen = False
        self._serve_inbox(process)
        if process.lead is not None and self.leader is not process:
            lead = process.lead
            self.later(self.rng.randrange(1, 3_000), lambda: self._depose(process, lead))

    def _serve_inbox(self, process: Process) -> None:
        inbox, process.inbox = process.inbox, []
        for arrived in inbox:
            arrived()

    # --- the network -------------------------------------------------------------------------------------------------

    def _delay(self) -> int:
        return self.rng.randrange(1, 120)

    def send(self, consumer: SimConsumer, send: AnySend) -> None:
        """Send a request, and later its answer; or the connection breaks."""
        node = consumer.member.nodes.brokers[send.node_id]
        process = self.processes[-2 - send.node_id if send.node_id < 0 else send.node_id]
        assert node.host == f"c{process.node_id}", "the addresses are those of the processes"
        key = (send.node_id, send.channel)
        number = consumer.connections.setdefault(key, next(consumer.numbers))
        version = DRAFT_VERSIONS[send.request_type.API_KEY][1]
        request = over_the_wire(send.build(version), version)
        life, done = process.life, [False]

        def end(answer: Any) -> None:
            if done[0]:
                return
            done[0] = True
            if isinstance(answer, Failure):
                consumer.connections.pop(key, None)
            consumer.inbox.append(lambda: send.on_reply(answer, self.now))

        def broken(kind: FailureKind = FailureKind.DISCONNECTED) -> None:
            end(Failure(kind, f"no answer of {node.host}"))

        def answered(answer: Any) -> None:
            if process.life == life and consumer.connections.get(key) == number:
                if self.rng.random() < self.loss:
                    self.later(self._delay(), broken)
                else:
                    arrived = over_the_wire(answer, version)
                    self.later(self._delay(), lambda: end(arrived))
            else:
                self.later(0, broken)

        def arrives() -> None:
            if not process.is_up or process.life != life or self.rng.random() < self.loss:
                self.later(self._delay(), broken)
            else:
                process.inbox.append(lambda: self.serve(process, request, version, answered))

        self.later(self._delay(), arrives)
        timeout_ms = send.timeout_ms or consumer.config.request_timeout_ms
        self.later(timeout_ms, lambda: broken(FailureKind.TIMEOUT))
        self._watch(consumer, process, key, number, life, broken, done)

    def _watch(
        self,
        consumer: SimConsumer,
        process: Process,
        key: tuple[int, Channel],
        number: int,
        life: int,
        broken: Callable[[], None],
        done: list[bool],
    ) -> None:
        """A connection whose peer has ended, or that the consumer has closed, fails the requests that wait on it."""

        def look() -> None:
            if done[0]:
                return
            if process.life != life or consumer.connections.get(key) != number:
                broken()
            else:
                self.later(100, look)

        self.later(100, look)

    def serve(self, process: Process, request: Any, version: int, reply: Reply) -> None:
        """The answer of a process."""
        leader = self.leader
        if isinstance(request, m.FindCoordinatorRequest):
            if leader is None:
                reply(m.FindCoordinatorResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE, node_id=-1, port=-1))
            else:
                reply(m.FindCoordinatorResponse(node_id=leader.node_id, host=f"c{leader.node_id}", port=1))
        elif process.lead is None:
            reply(refused(request, ErrorCode.NOT_COORDINATOR))
        else:
            process.lead.handle(request, version, reply, self.now)


def refused(request: Any, code: ErrorCode) -> Any:
    """The answer to a request from a process that does not coordinate the group."""
    match request:
        case DraftJoinGroupRequest():
            return DraftJoinGroupResponse(code, -1, request.consumer_id)
        case m.OffsetCommitRequest():
            topics = [
                m.OffsetCommitResponseTopic(
                    topic.name,
                    partitions=[
                        m.OffsetCommitResponsePartition(each.partition_index, code) for each in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
            return m.OffsetCommitResponse(topics=topics)
        case m.OffsetFetchRequest():
            found = [
                m.OffsetFetchResponseTopic(
                    topic.name,
                    [
                        m.OffsetFetchResponsePartition(number, -1, metadata="", error_code=code)
                        for number in topic.partition_indexes
                    ],
                )
                for topic in request.topics or ()
            ]
            return m.OffsetFetchResponse(topics=found)
    return type(request).RESPONSE(error_code=code)
