"""The real coordinator as the `Lead` of a group in a `World` of members that speak Kafka's draft protocol.

Its store is behind a network and fences older epochs (`SlowStore`), so a coordinator that was frozen and believes that
it still leads can answer from memory for a while, but write nothing.
"""

from __future__ import annotations

from typing import Any

from muster.coordinator.assigned_calls import AssignedJoin, AssignedJoined, AssignedMembers
from muster.coordinator.runtime import Client
from muster.errors import ErrorCode
from muster.protocol import messages as m
from muster.protocol.draft_messages import DraftAssignedTopic, DraftJoinGroupRequest, DraftJoinGroupResponse
from muster.protocol.group_records import GroupMetadataRecord, OffsetCommitRecord, decode_record
from tests.support.draft_world import GROUP, TOPIC, Disk, Reply
from tests.support.runtime_broker import Broker
from tests.support.slow_store import Cells, SlowStore


class SharedCells(Cells):
    """The storage that the coordinators share, and a view of it from outside."""

    def __init__(self, disk: Disk) -> None:
        super().__init__()
        self.disk = disk
        self.epoch = 0

    def look(self) -> None:
        """Record what has been committed since the last look, and the generation."""
        for cells in self.cells.values():
            for key, value in cells.items():
                record = decode_record(key, value)
                if isinstance(record, OffsetCommitRecord) and record.value is not None:
                    self.disk.commit(record.key.partition, record.value.offset)
                elif isinstance(record, GroupMetadataRecord) and record.value is not None:
                    self.disk.generation = record.value.generation


class RealLead:
    """A coordinator with its own epoch."""

    is_fenced = True

    def __init__(self, shared: SharedCells, now: int) -> None:
        shared.epoch += 1
        self._shared = shared
        self._name = f"epoch{shared.epoch}"
        self._store = SlowStore(shared)
        self._broker = Broker(store=self._store, assigned=".*")
        self._broker.topics.partitions = {TOPIC: shared.disk.partitions}
        self._broker.now = now
        runtime = self._broker.runtime
        self._store.on_news = runtime.release_durable
        self._members = AssignedMembers(runtime)
        runtime.take_none()
        runtime.load(runtime.partition_for(GROUP), shared.epoch)

    def handle(self, request: Any, version: int, reply: Reply, now: int) -> None:
        self._broker.now = now
        client = Client(self._name, "/127.0.0.1", version)
        match request:
            case DraftJoinGroupRequest():
                ask = AssignedJoin(
                    request.group_id,
                    request.consumer_id,
                    request.session_timeout,
                    request.topics,
                    request.partition_assignment_strategy,
                )
                self._members.join(ask, client, lambda found: reply(_joined(found)))
            case m.HeartbeatRequest():
                error = self._members.heartbeat(request.group_id, request.generation_id, request.member_id)
                reply(m.HeartbeatResponse(error_code=error))
            case m.LeaveGroupRequest():

                def left(error: ErrorCode) -> None:
                    reply(m.LeaveGroupResponse(error_code=error))

                self._members.leave(request.group_id, request.member_id, client, left)
            case _:
                self._broker.runtime.submit(request, client, reply)

    def tick(self, now: int) -> None:
        self._broker.now = now
        self._broker.turn()
        self._store.deliver()
        self._broker.turn()
        self._shared.look()

    def drop(self) -> None:
        self._broker.runtime.unload_all()


def _joined(found: AssignedJoined) -> DraftJoinGroupResponse:
    topics = [DraftAssignedTopic(topic, numbers) for topic, numbers in found.partitions.items()]
    return DraftJoinGroupResponse(found.error, found.generation_id, found.member_id, topics)
