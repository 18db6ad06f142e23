"""One member that speaks Kafka's draft protocol, whose requests a test answers; time is a number."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from muster.client.core.events import Disconnect, Fatal
from muster.client.core.sends import AnySend, Failure, FailureKind
from muster.errors import ErrorCode, MusterError
from muster.model import TopicPartition
from muster.protocol import messages as m
from muster.protocol.draft_api import DRAFT_VERSIONS
from muster.protocol.draft_messages import DraftAssignedTopic, DraftJoinGroupRequest, DraftJoinGroupResponse
from muster.zookeeper.consumers.server_assigned_config import ServerAssignedConfig
from muster.zookeeper.server_assigned.member import ServerAssignedMember
from muster.zookeeper.server_assigned.states import ServerAssignedState
from tests.support.draft_world import GROUP, TOPIC, over_the_wire, refused

P0, P1 = TopicPartition(TOPIC, 0), TopicPartition(TOPIC, 1)
SESSION_MS = 10_000


class Solo:
    """One member, whose requests the test answers. Committed offsets and the coordinator are answered automatically."""

    def __init__(self, **more: Any) -> None:
        values: dict[str, Any] = {
            "coordinator_servers": "a:1,b:2",
            "group_id": GROUP,
            "session_timeout_ms": SESSION_MS,
            "heartbeat_interval_ms": 3_000,
            "auto_commit_interval_ms": 5_000,
            **more,
        }
        self.now = 1_000
        self.positions: dict[TopicPartition, int] = {}
        self.fetched: Mapping[TopicPartition, int | None] | None = None
        self.stops = 0
        self.committed: dict[TopicPartition, int] = {P0: 7}
        self.waiting: list[AnySend] = []
        self.finds_coordinator = True
        self.finds_offsets = True
        self.errors: list[MusterError] = []
        self.disconnected: list[int] = []
        config = ServerAssignedConfig(**values)
        self.member = ServerAssignedMember(config, config.coordinator_servers, [TOPIC], self, seed=1)

    # what reads

    def handled(self) -> Mapping[TopicPartition, int]:
        return dict(self.positions)

    def stop(self) -> Mapping[TopicPartition, int]:
        found, self.positions, self.fetched = self.positions, {}, None
        self.stops += 1
        return found

    def start(self, partitions: Mapping[TopicPartition, int | None]) -> None:
        self.fetched = dict(partitions)
        self.positions = {partition: offset or 0 for partition, offset in partitions.items()}

    # turns

    def turn(self, after: int = 0) -> Solo:
        self.now += after
        again = True
        while again:
            again = False
            for send in self.member.poll(self.now):
                self.waiting.append(send)
            for send in list(self.waiting):
                again = self._by_itself(send) or again
        for event in self.member.events.take():
            if isinstance(event, Fatal):
                self.errors.append(event.error)
            elif isinstance(event, Disconnect):
                self.disconnected.append(event.node_id)
        return self

    def _by_itself(self, send: AnySend) -> bool:
        if send.request_type is m.FindCoordinatorRequest and self.finds_coordinator:
            self.tell(send, m.FindCoordinatorResponse(node_id=5, host="c", port=9))
            return True
        if send.request_type is m.OffsetFetchRequest and self.finds_offsets:
            [topic] = self.request(m.OffsetFetchRequest).topics
            found = [
                m.OffsetFetchResponsePartition(number, self.committed.get(TopicPartition(TOPIC, number), -1))
                for number in topic.partition_indexes
            ]
            self.tell(send, m.OffsetFetchResponse(topics=[m.OffsetFetchResponseTopic(TOPIC, found)]))
            return True
        return False

    def find(self, kind: type[Any]) -> AnySend:
        found = [send for send in self.waiting if send.request_type is kind]
        assert found, f"no {kind.__name__} waits, but {[send.request_type.__name__ for send in self.waiting]}"
        return found[0]

    def asks(self, kind: type[Any]) -> bool:
        return any(send.request_type is kind for send in self.waiting)

    def request(self, kind: type[Any]) -> Any:
        """The waiting request of this kind, as the coordinator reads it."""
        send = self.find(kind)
        version = DRAFT_VERSIONS[kind.API_KEY][1]
        return over_the_wire(send.build(version), version)

    def answer(self, kind: type[Any], answer: Any) -> Solo:
        """Answer the request of this kind that has waited longest."""
        self.tell(self.find(kind), answer)
        return self.turn()

    def fail(self, kind: type[Any], how: FailureKind = FailureKind.DISCONNECTED) -> Solo:
        return self.answer(kind, Failure(how, "gone"))

    def tell(self, send: AnySend, answer: Any) -> None:
        self.waiting.remove(send)
        send.on_reply(answer, self.now)

    # verbs

    def begin(self) -> Solo:
        self.member.begin(self.now)
        return self.turn()

    def given(self, *numbers: int, generation: int = 1, member_id: str = "m") -> Solo:
        share = [DraftAssignedTopic(TOPIC, list(numbers))] if numbers else []
        return self.answer(DraftJoinGroupRequest, DraftJoinGroupResponse(0, generation, member_id, share))

    def stable(self, *numbers: int) -> Solo:
        return self.begin().given(*(numbers or (0, 1)))

    def beat(self, code: ErrorCode) -> Solo:
        if not self.asks(m.HeartbeatRequest):
            self.turn(3_000)
        return self.answer(m.HeartbeatRequest, m.HeartbeatResponse(error_code=code))

    def answer_commit(self, code: ErrorCode) -> Solo:
        request = self.request(m.OffsetCommitRequest)
        return self.answer(m.OffsetCommitRequest, refused(request, code))

    def releasing(self) -> Solo:
        self.stable()
        self.positions = {P0: 9, P1: 3}
        return self.beat(ErrorCode.ILLEGAL_GENERATION)

    @property
    def state(self) -> ServerAssignedState:
        return self.member.state

    def coordinator(self) -> int | None:
        return self.member.search.node_id


def any_answer(solo: Solo, send: AnySend, code: ErrorCode, generation: int) -> Any:
    version = DRAFT_VERSIONS[send.request_type.API_KEY][1]
    request = over_the_wire(send.build(version), version)
    if code is ErrorCode.NETWORK_EXCEPTION:
        return Failure(FailureKind.DISCONNECTED, "gone")
    if isinstance(request, m.FindCoordinatorRequest):
        error = ErrorCode.NONE if code is ErrorCode.NONE else ErrorCode.NOT_COORDINATOR
        return m.FindCoordinatorResponse(error_code=error, node_id=5, host="c")
    if code is not ErrorCode.NONE or isinstance(request, m.OffsetCommitRequest):
        return refused(request, code)
    if isinstance(request, DraftJoinGroupRequest):
        share = DraftAssignedTopic(TOPIC, [0, 1])
        return DraftJoinGroupResponse(0, generation, request.consumer_id or f"m{generation}", [share])
    if isinstance(request, m.OffsetFetchRequest):
        assert request.topics is not None
        found = [
            m.OffsetFetchResponsePartition(number, solo.committed.get(TopicPartition(TOPIC, number), -1))
            for number in request.topics[0].partition_indexes
        ]
        return m.OffsetFetchResponse(topics=[m.OffsetFetchResponseTopic(TOPIC, found)])
    return type(request).RESPONSE()
