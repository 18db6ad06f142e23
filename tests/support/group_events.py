"""Members of a group that send their own requests, and the events that a broker has written about it."""

from __future__ import annotations

import json
from typing import Any

from muster.broker.broker import Broker
from muster.model import GROUP_EVENTS_TOPIC
from muster.protocol import messages as m
from muster.protocol.records.record_batch import iter_headers, read_records
from muster.protocol.subscription import Subscription, encode_subscription
from tests.support.held_disk import Asked

LONG_MS = 300_000


class Member:
    """A member of a group on a broker of this process."""

    def __init__(self, broker: Broker, name: str = "a", group: str = "g") -> None:
        self.broker, self.name, self.group = broker, name, group
        self.member_id = ""
        self.generation = -1

    def joins(self, reason: str | None = None) -> Asked:
        """A JoinGroup that waits for others; a new member already has its id."""
        protocols = [m.JoinGroupRequestProtocol("range", encode_subscription(Subscription(["t"])))]
        request = m.JoinGroupRequest(
            self.group, LONG_MS, LONG_MS, self.member_id, None, "consumer", protocols, reason=reason
        )
        return Asked(self.broker, request, 9, client_id=self.name)

    async def join(self) -> None:
        """Join and sync; the leaders send empty assignments."""
        if not self.member_id:
            self.member_id = (await self.joins().answered()).member_id
        answer = await self.joins().answered()
        assert answer.error_code == 0
        self.generation = answer.generation_id
        shares = [m.SyncGroupRequestAssignment(each.member_id, b"") for each in answer.members]
        request = m.SyncGroupRequest(self.group, self.generation, self.member_id, None, "consumer", "range", shares)
        assert (await Asked(self.broker, request, 5).answered()).error_code == 0

    async def heartbeat(self) -> int:
        """The error of the answer."""
        request = m.HeartbeatRequest(self.group, self.generation, self.member_id)
        error: int = (await Asked(self.broker, request, 4).answered()).error_code
        return error

    async def leave(self, reason: str | None = None) -> None:
        """Leave the group."""
        request = m.LeaveGroupRequest(self.group, members=[m.MemberIdentity(self.member_id, None, reason)])
        assert (await Asked(self.broker, request, 5).answered()).error_code == 0


def events_of(data: bytes | memoryview) -> list[dict[str, Any]]:
    """The events among the records read from the topic."""
    found = []
    for position, header in iter_headers(data):
        for record in read_records(data, position, header):
            event = json.loads(bytes(record.value or b""))
            assert (record.key, record.timestamp) == (event["group_id"].encode(), event["at_ms"])
            found.append(event)
    return found


def written(broker: Broker) -> dict[int, list[dict[str, Any]]]:
    """The events in each partition that a broker leads."""
    topic = broker.topics.get(GROUP_EVENTS_TOPIC)
    logs = {
        index: broker.partitions.get(GROUP_EVENTS_TOPIC, index) for index in range(topic.partitions if topic else 0)
    }
    return {index: events_of(log.read(0, 1 << 24).data) for index, log in logs.items() if log is not None}


def names(broker: Broker) -> list[str]:
    """The names of the events in the only partition that a broker leads."""
    (events,) = written(broker).values() or ([],)
    return [event["event"] for event in events]
