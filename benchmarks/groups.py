"""Whole groups of members, each on a connection of its own: a server may handle a connection's requests one by one.

A member joins, syncs, and asks with heartbeats whether it must rejoin: immediately, and then at increasing intervals,
while it knows that a member is missing. A group's time is measured from its first JoinGroup to the last assignment of
the generation with all members.
"""

from __future__ import annotations

import contextlib
import heapq
import selectors
import socket
import time
from collections.abc import Callable
from typing import Any

from benchmarks.wire import Address, Asker, BenchmarkError, connect, frame, response_body
from muster.errors import ErrorCode
from muster.model import TopicPartition
from muster.protocol import codec
from muster.protocol.messages import (
    FindCoordinatorRequest,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    LeaveGroupRequest,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)
from muster.protocol.primitives import Message, Request
from muster.protocol.subscription import Subscription, encode_assignment, encode_subscription

JOIN_VERSION, SYNC_VERSION, HEARTBEAT_VERSION, LEAVE_VERSION, FIND_VERSION = 9, 5, 4, 5, 4
SESSION_MS = 60_000
LIMIT_S = 120.0
BACKOFF_MS = (0, 2, 5, 10, 20, 40)
NUDGE_S = 0.002
"""From the JoinGroup of one more member to the heartbeats of the others."""

CONNECT_AT_ONCE = 25
"""Both servers let 50 connections wait to be accepted; connections beyond that are retried after a second."""

PROTOCOL = "range"
_SUBSCRIPTION = encode_subscription(Subscription(topics=["bench"]))
_ASSIGNMENT = encode_assignment([TopicPartition("bench", 0), TopicPartition("bench", 1)])
_AGAIN = (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR)
_REJOIN = (ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION)


class Member:
    """One member and its connection."""

    __slots__ = ("asked", "assigned_at", "generation_id", "member_id", "received", "socket", "tries")

    def __init__(self, address: Address) -> None:
        self.socket = connect(address)
        self.socket.setblocking(False)
        self.received = bytearray()
        self.member_id = ""
        self.generation_id = -1
        self.assigned_at = 0.0
        self.asked: Callable[[Member, bytes], None] | None = None
        self.tries = 0

    def until_accepted(self) -> None:
        """Wait for an answer: connections are accepted in order, so those before it are then accepted too."""
        self.socket.setblocking(True)
        self.socket.sendall(frame(HeartbeatRequest("nobody"), HEARTBEAT_VERSION))
        length = int.from_bytes(self.socket.recv(4, socket.MSG_WAITALL), "big")
        self.socket.recv(length, socket.MSG_WAITALL)
        self.socket.setblocking(False)


class Group:
    """A group, to form and to extend."""

    def __init__(self, address: Address, group_id: str) -> None:
        self.address = address
        self.group_id = group_id
        self.members: list[Member] = []
        self._selector = selectors.DefaultSelector()
        self._timers: list[tuple[float, int, Member]] = []
        self._order = 0
        self._sizes: dict[int, int] = {}
        self._synced: dict[int, int] = {}
        self._formed = False
        self._templates: dict[tuple[type[Message], int], tuple[bytes, bytes, int]] = {}
        self._first_join = self._encode(self._join_request(""), JOIN_VERSION)
        find_coordinator(address, group_id)

    # --------------------------------------------------------------------------------------------- what is measured

    def form(self, count: int) -> float:
        """Seconds until this many members have their assignments."""
        self._add(count)
        start = time.perf_counter()
        for member in self.members:
            self._join(member)
        return self._until_formed(start)

    def grow(self) -> float:
        """Seconds until one more member, and with it all others, have their assignments."""
        old = list(self.members)
        (new,) = self._add(1)
        start = time.perf_counter()
        self._join(new)
        while not new.member_id:
            self._turn(start)
        nudge_at = time.perf_counter() + NUDGE_S
        for member in old:
            member.tries = 0
            self._at(nudge_at, member)
        return self._until_formed(start)

    def leave(self) -> None:
        """End the group: all members leave with one request, and the connections are closed."""
        with Asker(self.address) as asker:
            identities = [MemberIdentity(member.member_id) for member in self.members]
            asker.ask(LeaveGroupRequest(self.group_id, members=identities), LEAVE_VERSION)
        self.close()

    def close(self) -> None:
        """Close the connections."""
        for member in self.members:
            member.socket.close()
        self._selector.close()

    # --------------------------------------------------------------------------------------------- the loop

    def _add(self, count: int) -> list[Member]:
        added = []
        for number in range(1, count + 1):
            added.append(Member(self.address))
            if number % CONNECT_AT_ONCE == 0 or number == count:
                added[-1].until_accepted()
        for member in added:
            self._selector.register(member.socket, selectors.EVENT_READ, member)
        self.members += added
        self._formed = False
        return added

    def _until_formed(self, start: float) -> float:
        while not self._formed:
            self._turn(start)
        return max(member.assigned_at for member in self.members) - start

    def _turn(self, start: float) -> None:
        now = time.perf_counter()
        if now - start > LIMIT_S:
            raise BenchmarkError(f"{self.group_id} did not form: {self._synced} of {self._sizes}")
        while self._timers and self._timers[0][0] <= now:
            member = heapq.heappop(self._timers)[2]
            if member.asked is None:
                self._join(member) if member.generation_id < 0 else self._heartbeat(member)
        wait = min(1.0, self._timers[0][0] - now) if self._timers else 1.0
        for key, _ in self._selector.select(max(wait, 0)):
            self._receive(key.data)

    def _receive(self, member: Member) -> None:
        data = member.socket.recv(256 * 1024)
        if not data:
            raise BenchmarkError("the server closed a member's connection")
        if member.received:
            data = bytes(member.received) + data
        length = int.from_bytes(data[:4], "big")
        if len(data) < 4 or len(data) < 4 + length:
            member.received = bytearray(data)
            return
        member.received = bytearray()
        asked, member.asked = member.asked, None
        assert asked is not None
        asked(member, data[4:])

    def _at(self, when: float, member: Member) -> None:
        self._order += 1
        heapq.heappush(self._timers, (when, self._order, member))

    # --------------------------------------------------------------------------------------------- what members do

    def _join(self, member: Member) -> None:
        member.generation_id = -1
        if member.member_id:
            data = self._with_id(JoinGroupRequest, 0, member, JOIN_VERSION, self._join_request)
        else:
            data = self._first_join
        self._send(member, data, self._joined)

    def _join_request(self, member_id: str) -> JoinGroupRequest:
        protocols = [JoinGroupRequestProtocol(PROTOCOL, _SUBSCRIPTION)]
        return JoinGroupRequest(
            self.group_id, SESSION_MS, SESSION_MS, member_id, protocol_type="consumer", protocols=protocols
        )

    def _joined(self, member: Member, answer: bytes) -> None:
        found = _decode(JoinGroupRequest, JoinGroupResponse, JOIN_VERSION, answer)
        if found.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            member.member_id = found.member_id
            self._join(member)
        elif self._failed(member, found.error_code):
            return
        else:
            member.member_id, member.generation_id = found.member_id, found.generation_id
            if found.leader == found.member_id:
                self._sizes[found.generation_id] = len(found.members)
                self._send(member, self._leaders_sync(found), self._assigned)
            else:
                self._send(member, self._sync_of(member), self._assigned)

    def _leaders_sync(self, joined: JoinGroupResponse) -> bytes:
        shares = [SyncGroupRequestAssignment(member.member_id, _ASSIGNMENT) for member in joined.members]
        generation_id, member_id = joined.generation_id, joined.member_id
        request = SyncGroupRequest(self.group_id, generation_id, member_id, None, "consumer", PROTOCOL, shares)
        return self._encode(request, SYNC_VERSION)

    def _sync_of(self, member: Member) -> bytes:
        generation_id = member.generation_id

        def request(member_id: str) -> SyncGroupRequest:
            return SyncGroupRequest(self.group_id, generation_id, member_id, None, "consumer", PROTOCOL)

        return self._with_id(SyncGroupRequest, generation_id, member, SYNC_VERSION, request)

    def _assigned(self, member: Member, answer: bytes) -> None:
        found = _decode(SyncGroupRequest, SyncGroupResponse, SYNC_VERSION, answer)
        if self._failed(member, found.error_code):
            return
        if found.assignment != _ASSIGNMENT:
            raise BenchmarkError(f"a member was assigned {found.assignment!r}")
        member.assigned_at = time.perf_counter()
        generation_id, wanted = member.generation_id, len(self.members)
        self._synced[generation_id] = self._synced.get(generation_id, 0) + 1
        member.tries = 0
        if self._sizes.get(generation_id, 0) < wanted:
            self._heartbeat(member)
        elif self._synced[generation_id] == wanted:
            self._formed = True

    def _heartbeat(self, member: Member) -> None:
        generation_id = member.generation_id

        def request(member_id: str) -> HeartbeatRequest:
            return HeartbeatRequest(self.group_id, generation_id, member_id)

        data = self._with_id(HeartbeatRequest, generation_id, member, HEARTBEAT_VERSION, request)
        self._send(member, data, self._beaten)

    def _beaten(self, member: Member, answer: bytes) -> None:
        found = _decode(HeartbeatRequest, HeartbeatResponse, HEARTBEAT_VERSION, answer)
        if not self._failed(member, found.error_code) and self._sizes.get(member.generation_id, 0) < len(self.members):
            self._at(time.perf_counter() + BACKOFF_MS[min(member.tries, len(BACKOFF_MS) - 1)] / 1e3, member)
            member.tries += 1

    def _failed(self, member: Member, error: int) -> bool:
        """Do what an error asks for; False if there is none."""
        if not error:
            return False
        if error in _REJOIN:
            self._join(member)
        elif error == ErrorCode.UNKNOWN_MEMBER_ID:
            member.member_id = ""
            self._join(member)
        elif error in _AGAIN:
            member.generation_id = -1
            self._at(time.perf_counter() + 0.02, member)
        else:
            raise BenchmarkError(f"a member was answered {ErrorCode(error).name}")
        return True

    # --------------------------------------------------------------------------------------------- bytes

    def _send(self, member: Member, data: bytes, then: Callable[[Member, bytes], None]) -> None:
        member.asked = then
        view = memoryview(data)
        while view:
            with contextlib.suppress(BlockingIOError):
                view = view[member.socket.send(view) :]

    def _encode(self, request: Request[Any], version: int) -> bytes:
        return frame(request, version)

    def _with_id(
        self,
        kind: type[Request[Any]],
        generation_id: int,
        member: Member,
        version: int,
        request: Callable[[str], Request[Any]],
    ) -> bytes:
        """A member's request, made from that of a member whose id has the same length."""
        found = self._templates.get((kind, generation_id))
        if found is None or found[2] != len(member.member_id):
            before, after = self._encode(request(member.member_id), version).split(member.member_id.encode())
            found = self._templates[kind, generation_id] = (before, after, len(member.member_id))
        return found[0] + member.member_id.encode() + found[1]


def _decode(request: type[Request[Any]], response: type[Any], version: int, answer: bytes) -> Any:
    return codec.decode(response, version, answer, response_body(request, version))


def find_coordinator(address: Address, group_id: str) -> None:
    """Wait until the group has a coordinator that has loaded it."""
    deadline = time.monotonic() + LIMIT_S
    with Asker(address) as asker:
        while time.monotonic() < deadline:
            found = asker.ask(FindCoordinatorRequest(key_type=0, coordinator_keys=[group_id]), FIND_VERSION)
            if not found.coordinators[0].error_code:
                nobody = HeartbeatRequest(group_id, 0, "nobody")
                if asker.ask(nobody, HEARTBEAT_VERSION).error_code == ErrorCode.UNKNOWN_MEMBER_ID:
                    return
            time.sleep(0.02)
    raise BenchmarkError(f"no coordinator for {group_id}")
