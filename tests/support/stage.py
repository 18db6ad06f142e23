"""A stage for stories of groups: members that send the same raw requests to muster and to Apache Kafka."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from muster.errors import ErrorCode
from muster.protocol import messages as m
from muster.protocol.primitives import Request
from tests.support.brokers import RawClient
from tests.support.same_answers import ready_group

SUBSCRIPTION = b"\0\0\0\0\0\1\0\1t\xff\xff\xff\xff"


class Stage:
    """One broker, a topic, a group, and its members; `reported` has all answers."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.group = f"group-{uuid.uuid4()}"
        self.topic = f"topic-{uuid.uuid4()}"
        self.connections: dict[str, RawClient] = {}
        self.waiting: dict[str, tuple[type[Request[Any]], int]] = {}
        self.ids: dict[str, str] = {}
        self.generation = 0
        self.protocol: str | None = None
        self.reported: list[Any] = []
        operator = self.connection("operator")
        operator.ask(m.CreateTopicsRequest([m.CreatableTopic(self.topic, 2, 1)], 300_000), 7)
        ready_group(operator.ask, self.group, self.topic)

    def connection(self, name: str) -> RawClient:
        if name not in self.connections:
            self.connections[name] = RawClient(self.bootstrap)
        return self.connections[name]

    def close(self) -> None:
        for connection in self.connections.values():
            connection.close()

    # ----------------------------------------------------------------------------------------------- actions of members

    def send(self, name: str, request: Request[Any], version: int) -> None:
        self.connection(name).send(request, version, f"client-{name}")
        self.waiting[name] = type(request), version

    def hear(self, *names: str) -> list[Any]:
        """Wait for answers, and record their contents."""
        heard = []
        for name in names:
            answer = self.connection(name).receive(*self.waiting.pop(name))
            if isinstance(answer, m.JoinGroupResponse) and answer.error_code in (0, ErrorCode.MEMBER_ID_REQUIRED):
                self.ids[name] = answer.member_id
                self.protocol = answer.protocol_name
                self.generation = max(self.generation, answer.generation_id)
            heard.append((name, answer))
        reported = [(name, self.tell(answer)) for name, answer in heard]
        self.reported += reported
        return [answer for _, answer in reported]

    def join(
        self,
        name: str,
        *,
        protocols: Sequence[tuple[str, bytes]] = (("range", SUBSCRIPTION),),
        version: int = 9,
        instance: str | None = None,
        member_id: str | None = None,
        session_timeout_ms: int = 300_000,
        protocol_type: str = "consumer",
    ) -> None:
        member_id = self.ids.get(name, "") if member_id is None else member_id
        wished = [m.JoinGroupRequestProtocol(*protocol) for protocol in protocols]
        request = m.JoinGroupRequest(
            self.group, session_timeout_ms, 300_000, member_id, instance, protocol_type, wished, "because"
        )
        if version < 5:
            request.group_instance_id = None
        if version < 8:
            request.reason = None
        self.send(name, request, version)

    def enter(self, name: str, **wishes: Any) -> None:
        """A new member gets its id, and joins again with it."""
        self.joins(name, **wishes)
        self.join(name, **wishes)

    def sync(self, name: str, *shares: str, generation: int | None = None, **fields: Any) -> None:
        assignments = [m.SyncGroupRequestAssignment(self.ids[each], each.encode()) for each in shares]
        number = self.generation if generation is None else generation
        fields = {"protocol_type": "consumer", "protocol_name": self.protocol, **fields}
        self.send(name, m.SyncGroupRequest(self.group, number, self.ids[name], assignments=assignments, **fields), 5)

    def joins(self, name: str, **wishes: Any) -> None:
        """Join, and wait for the answer."""
        self.join(name, **wishes)
        self.hear(name)

    def syncs(self, name: str, *shares: str, **fields: Any) -> None:
        """Sync, and wait for the answer."""
        self.sync(name, *shares, **fields)
        self.hear(name)

    def heartbeat(self, name: str, generation: int | None = None, instance: str | None = None) -> None:
        number = self.generation if generation is None else generation
        self.send(name, m.HeartbeatRequest(self.group, number, self.ids.get(name, "nobody"), instance), 4)
        self.hear(name)

    def leave(self, name: str, version: int = 5, instance: str | None = None, member_id: str | None = None) -> None:
        member_id = self.ids[name] if member_id is None else member_id
        request = m.LeaveGroupRequest(self.group, members=[m.MemberIdentity(member_id, instance)])
        if version < 3:
            request = m.LeaveGroupRequest(self.group, member_id)
        self.send(name, request, version)
        self.hear(name)

    def commit(self, name: str, generation: int | None = None, version: int = 9, **fields: Any) -> None:
        """Commit offset 7 of partition 0, with metadata, and of a partition that does not exist."""
        number = self.generation if generation is None else generation
        partitions = [m.OffsetCommitRequestPartition(0, 7, 2, "note"), m.OffsetCommitRequestPartition(9, 7)]
        topics = [m.OffsetCommitRequestTopic(self.topic, partitions=partitions)]
        fields = {"member_id": self.ids.get(name, ""), **fields}
        request = m.OffsetCommitRequest(self.group, number, topics=topics, **fields)
        self.send(name, request, version)
        self.hear(name)

    def look(self) -> None:
        """Describe the group, list it, and fetch its offsets."""
        described = m.DescribeGroupsRequest([self.group])
        self.send("operator", described, 6)
        self.hear("operator")
        self.send("operator", m.OffsetFetchRequest(groups=[m.OffsetFetchRequestGroup(self.group, topics=None)]), 9)
        self.hear("operator")

    def until(self, state: str) -> None:
        """Wait until a request has taken effect: requests of two connections may overtake each other."""
        request = m.DescribeGroupsRequest([self.group])
        while self.connection("operator").ask(request, 5).groups[0].group_state != state:
            pass

    def delete(self) -> None:
        self.send("operator", m.DeleteGroupsRequest([self.group]), 2)
        self.hear("operator")

    # ------------------------------------------------------------------------------------------------ what is compared

    def who(self, member_id: str) -> str:
        return next((f"<{name}>" for name, known in self.ids.items() if known == member_id), member_id)

    def tell(self, answer: Any) -> Any:
        """An answer in the story's terms, with errors by name."""
        match answer:
            case m.JoinGroupResponse():
                reported = (answer.generation_id, answer.protocol_type, answer.protocol_name, answer.skip_assignment)
                members = sorted((self.who(x.member_id), x.group_instance_id, x.metadata) for x in answer.members)
                return (*code(answer), *reported, self.who(answer.leader), self.who(answer.member_id), members)
            case m.SyncGroupResponse():
                return (*code(answer), answer.protocol_type, answer.protocol_name, bytes(answer.assignment))
            case m.LeaveGroupResponse():
                return (
                    *code(answer),
                    *((self.who(x.member_id), x.group_instance_id, *code(x)) for x in answer.members),
                )
            case m.OffsetCommitResponse():
                partitions = [x for topic in answer.topics for x in topic.partitions]
                return sorted((x.partition_index, *code(x)) for x in partitions)
            case m.OffsetFetchResponse():
                return [
                    (*code(group), x.partition_index, x.committed_offset, x.committed_leader_epoch, x.metadata)
                    for group in answer.groups
                    for topic in group.topics
                    for x in topic.partitions
                ]
            case m.DescribeGroupsResponse():
                (group,) = answer.groups
                described = sorted(
                    (
                        self.who(x.member_id),
                        x.group_instance_id,
                        x.client_id,
                        x.client_host,
                        bytes(x.member_metadata),
                        bytes(x.member_assignment),
                    )
                    for x in group.members
                )
                return (*code(group), group.group_state, group.protocol_type, group.protocol_data, described)
            case m.DeleteGroupsResponse():
                return [code(result) for result in answer.results]
            case _:
                return code(answer)


def code(answer: Any) -> tuple[str]:
    return (ErrorCode(answer.error_code).name,)
