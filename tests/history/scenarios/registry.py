"""A node of a schema registry: a member of a group whose protocol type is `sr`, which elects the node that writes.

This is how Confluent's registry works. Its members' metadata and assignments are JSON without topics.
"""

from __future__ import annotations

import json
import threading
import time

from muster.client.config import ClientConfig
from muster.client.net.access import Access
from muster.client.plain.wire import PlainConnection
from muster.errors import ErrorCode
from muster.protocol import messages as m

SESSION_MS = 6_000
_HEARTBEAT_S = 1.0
_JOIN_VERSION, _LEAVE_VERSION = 5, 4


class RegistryNode:
    """One node, with a thread of its own."""

    def __init__(self, bootstrap: str, group: str, name: str) -> None:
        host, _, port = bootstrap.rpartition(":")
        config = ClientConfig(client_id=name, request_timeout_ms=120_000, socket_connection_setup_timeout_ms=120_000)
        self._wire = PlainConnection(host, int(port), config, Access(config))
        self._group, self._name = group, name
        self._member_id, self._generation = "", -1
        self._ended = threading.Event()
        self._leaves = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self, *, leaves: bool) -> None:
        """End it cleanly, or as if its process had been killed."""
        self._leaves = leaves
        self._ended.set()
        self._thread.join(120)
        self._wire.close()

    def _run(self) -> None:
        while self._wire.ask(m.FindCoordinatorRequest(key=self._group), 2).error_code:
            time.sleep(_HEARTBEAT_S)
        self._join()
        while not self._ended.wait(_HEARTBEAT_S):
            beat = self._wire.ask(m.HeartbeatRequest(self._group, self._generation, self._member_id), 3)
            if beat.error_code:
                self._join()
        if self._leaves:
            leaving = m.LeaveGroupRequest(self._group, members=[m.MemberIdentity(self._member_id)])
            self._wire.ask(leaving, _LEAVE_VERSION)

    def _join(self) -> None:
        about = {"host": self._name, "port": 8081, "master_eligibility": True, "scheme": "http", "version": 1}
        protocols = [m.JoinGroupRequestProtocol("v0", json.dumps(about).encode())]
        while True:
            asked = m.JoinGroupRequest(self._group, SESSION_MS, SESSION_MS, self._member_id, None, "sr", protocols)
            joined = self._wire.ask(asked, _JOIN_VERSION)
            self._member_id = joined.member_id
            if joined.error_code == ErrorCode.NONE and self._sync(joined):
                return
            if joined.error_code == ErrorCode.UNKNOWN_MEMBER_ID:
                self._member_id = ""

    def _sync(self, joined: m.JoinGroupResponse) -> bool:
        self._generation = joined.generation_id
        elected = {"error": 0, "master": joined.leader, "master_identity": None}
        shares = [m.SyncGroupRequestAssignment(each.member_id, json.dumps(elected).encode()) for each in joined.members]
        asked = m.SyncGroupRequest(self._group, self._generation, self._member_id, assignments=shares)
        return self._wire.ask(asked, 3).error_code == ErrorCode.NONE
