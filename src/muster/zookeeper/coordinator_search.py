"""Finding the coordinator of a group of scheme 2, again and again (A2, A6).

Theory. `COORDINATOR_TRANSITIONS` in `server_assigned_states.py` is the table. A ConsumerMetadataRequest goes to any of
the servers in `coordinator_servers`, to another one after each failure: one that is frozen must not stop the search. A
coordinator is lost when it answers that it is not the coordinator, when it does not answer, and when no heartbeat
was good for the session timeout. `epoch` goes up then: an answer to a request of an older epoch is void. The first loss
after a good answer is followed by a search at once, since the group may just have moved; each further one by a
back-off.

The sequence that `check` is for: a JoinGroup is parked at the coordinator; that process freezes, and another
coordinator takes its slot; the connection stays up, so nothing fails. A member that waits in JoinGroup sends no
heartbeats. So now and then it asks where the coordinator is, although it knows one.
"""

from __future__ import annotations

from collections.abc import Sequence

from muster.client.config import ConsumerConfig
from muster.client.core.backoff import Backoff
from muster.client.core.events import INFO, Disconnect, EventStream, Note
from muster.client.core.metadata import ClusterMetadata
from muster.client.core.sends import AnySend, Failure, send
from muster.errors import ErrorCode, KafkaError, MusterError, error_code
from muster.model import Node
from muster.protocol.messages import FindCoordinatorRequest, FindCoordinatorResponse
from muster.zookeeper.server_assigned_states import COORDINATOR_TRANSITIONS, CoordinatorState, Found

FIRST_SERVER_ID = -2
"""Servers are known by ids below 0, coordinators by their own."""


class CoordinatorSearch:
    """The group's coordinator, as far as it is known."""

    def __init__(
        self,
        config: ConsumerConfig,
        servers: Sequence[tuple[str, int]],
        nodes: ClusterMetadata,
        events: EventStream,
        seed: int = 0,
    ) -> None:
        self.state = CoordinatorState.UNKNOWN
        self.node_id: int | None = None
        """The coordinator, while it is known."""
        self.epoch = 0
        """Goes up whenever a coordinator is lost."""
        self.error: MusterError | None = None
        """An answer that trying again does not change. The code that tells the user sets it back to None."""
        self._group_id = config.group_id or ""
        self._timeout_ms = min(config.request_timeout_ms, config.session_timeout_ms)
        self._servers = [FIRST_SERVER_ID - index for index in range(len(servers))]
        for node_id, (host, port) in zip(self._servers, servers, strict=True):
            nodes.learn_node(Node(node_id, host, port))
        self._next = seed % len(servers)
        self._nodes = nodes
        self._events = events
        self._backoff = Backoff(config.retry_backoff_ms, config.retry_backoff_max_ms, seed)
        self._wanted = False
        self._in_flight = False
        self._lost_since_answer = False
        self._retry_at = 0

    def need(self) -> int | None:
        """The coordinator's node id; where it is unknown, have `poll` look for it."""
        if self.node_id is None:
            self._wanted = True
        return self.node_id

    def check(self) -> None:
        """Ask whether the group still has the coordinator that is known; it is lost if it has another."""
        self._wanted = True

    def poll(self, now: int) -> list[AnySend]:
        """The ConsumerMetadataRequest, if it is due."""
        if not self._wanted or self._in_flight or now < self._retry_at:
            return []
        self._wanted, self._in_flight = False, True
        if self.node_id is None:
            self._move(Found.ASKS)
        server = self._servers[self._next]
        self._next = (self._next + 1) % len(self._servers)
        return [send(server, FindCoordinatorRequest(key=self._group_id), self._on_reply, timeout_ms=self._timeout_ms)]

    def next_deadline(self, now: int) -> int | None:
        """When a request is due."""
        return max(now, self._retry_at) if self._wanted and not self._in_flight else None

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
            if self._nodes.brokers.get(self.node_id) == found:
                return
            self.lose(f"the group has another one, {found.host}:{found.port}", now)
        if self.state is CoordinatorState.UNKNOWN:
            self._move(Found.ASKS)
        self._nodes.learn_node(found)
        self.node_id = found.node_id
        self._wanted = False
        self._move(Found.ANSWERED)
        self._events.append(Note(INFO, f"the coordinator of group {self._group_id} is {found.host}:{found.port}"))

    def _not_found(self, error: MusterError | None, now: int) -> None:
        self._retry_at = now + self._backoff.next_wait_ms()
        if self.state is CoordinatorState.ASKED:
            self._move(Found.NO_ANSWER)
            self.error = self.error or error

    def lose(self, cause: str, now: int) -> None:
        """The coordinator does not coordinate the group any more, or cannot be reached."""
        if self.node_id is None:
            return
        self._events.append(Note(INFO, f"the coordinator of group {self._group_id} is given up: {cause}"))
        self._events.append(Disconnect(self.node_id))
        self.node_id = None
        self.epoch += 1
        self._move(Found.LOST)
        if self._lost_since_answer:
            self._retry_at = now + self._backoff.next_wait_ms()
        self._lost_since_answer = True

    def answered(self, code: ErrorCode, now: int) -> None:
        """A request to the coordinator was answered."""
        if code.stale_coordinator:
            self.lose(f"it answered {code.name}", now)
        else:
            self._lost_since_answer = False
            self._backoff.reset()

    def failed(self, failure: Failure, now: int) -> None:
        """A request to the coordinator got no answer. If it may succeed later, the coordinator is lost."""
        if failure.retriable:
            self.lose(failure.message, now)

    def _move(self, found: Found) -> None:
        self.state = COORDINATOR_TRANSITIONS[self.state, found]
