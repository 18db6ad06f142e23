"""Finding the coordinator of a group of scheme 2 (A2, A6).

Theory. `COORDINATOR_TRANSITIONS` in `states.py` is the state table. A ConsumerMetadataRequest goes to any of the
servers in `coordinator_servers`, to another one after each failure: a frozen one must not stop the search. A
coordinator is given up as in every client (`KnownCoordinator`), and also after a session timeout without a successful
heartbeat.

The sequence that `check` guards against: a JoinGroup is parked at the coordinator; that process freezes, and another
coordinator takes its slot; the connection stays up, so nothing fails. A member that waits in JoinGroup sends no
heartbeats. So from time to time it asks for the coordinator, although it knows one.
"""

from __future__ import annotations

from collections.abc import Sequence

from muster.client.config import ConsumerConfig
from muster.client.core.events import EventStream
from muster.client.core.known_coordinator import KnownCoordinator
from muster.client.core.metadata import ClusterMetadata
from muster.client.core.sends import AnySend, Failure, send
from muster.errors import ErrorCode, KafkaError, MusterError, error_code
from muster.model import Node
from muster.protocol.messages import FindCoordinatorRequest, FindCoordinatorResponse
from muster.zookeeper.server_assigned.states import COORDINATOR_TRANSITIONS, CoordinatorEvent, CoordinatorState

FIRST_SERVER_ID = -2
"""Servers have negative ids here; coordinators have their own ids."""


class CoordinatorSearch(KnownCoordinator):
    """The group's coordinator, as far as it is known."""

    def __init__(
        self,
        config: ConsumerConfig,
        servers: Sequence[tuple[str, int]],
        nodes: ClusterMetadata,
        events: EventStream,
        seed: int = 0,
    ) -> None:
        super().__init__(f"group {config.group_id}", config, nodes, events, seed)
        self._group_id = config.group_id or ""
        self.state = CoordinatorState.UNKNOWN
        self._timeout_ms = min(config.request_timeout_ms, config.session_timeout_ms)
        self._servers = [FIRST_SERVER_ID - index for index in range(len(servers))]
        for node_id, (host, port) in zip(self._servers, servers, strict=True):
            nodes.learn_node(Node(node_id, host, port))
        self._next = seed % len(servers)

    def check(self) -> None:
        """Ask whether the group still has the known coordinator; it is lost if the group has another one."""
        self._wanted = True

    def poll(self, now: int) -> list[AnySend]:
        """The ConsumerMetadataRequest, if it is due."""
        if not self._is_due(now):
            return []
        self._wanted, self._in_flight = False, True
        if self.node_id is None:
            self._move(CoordinatorEvent.ASKS)
        server = self._servers[self._next]
        self._next = (self._next + 1) % len(self._servers)
        return [send(server, FindCoordinatorRequest(key=self._group_id), self._on_reply, timeout_ms=self._timeout_ms)]

    def _on_reply(self, reply: FindCoordinatorResponse | Failure, now: int) -> None:
        self._in_flight = False
        if isinstance(reply, Failure):
            self._not_found(None if reply.retriable else reply.error(), now)
            return
        code = error_code(reply.error_code)
        if code is not ErrorCode.NONE or reply.node_id < 0:
            text = f"looking for the coordinator of group {self._group_id}"
            self._not_found(None if code.retriable or not code else KafkaError(code, text), now)
            return
        found = Node(reply.node_id, reply.host, reply.port)
        if self.node_id is not None:
            if self._metadata.brokers.get(self.node_id) == found:
                return
            self.mark_dead(f"the group has another coordinator, {found.host}:{found.port}", now)
        if self.state is CoordinatorState.UNKNOWN:
            self._move(CoordinatorEvent.ASKS)
        self._learn(found)
        self._move(CoordinatorEvent.ANSWERED)

    def _not_found(self, error: MusterError | None, now: int) -> None:
        self._back_off(now)
        if self.state is CoordinatorState.ASKED:
            self._move(CoordinatorEvent.NO_ANSWER)
            self.error = self.error or error

    def mark_dead(self, cause: str, now: int) -> None:
        """See `KnownCoordinator.mark_dead`."""
        if self.node_id is not None:
            self._move(CoordinatorEvent.LOST)
        super().mark_dead(cause, now)

    def _move(self, found: CoordinatorEvent) -> None:
        self.state = COORDINATOR_TRANSITIONS[self.state, found]
