"""Finding the coordinator of a group or of a transactional id (J2).

The coordinator is looked up when a request first needs it. FindCoordinator goes to the least-loaded broker; if it fails
with a retriable error, the metadata is refreshed and the lookup retried, with backoff. `known_coordinator.py` says when
a coordinator is given up.
"""

from __future__ import annotations

from muster.client.config import ClientConfig
from muster.client.core.events import EventStream
from muster.client.core.known_coordinator import KnownCoordinator
from muster.client.core.metadata import ClusterMetadata
from muster.client.core.sends import LEAST_LOADED, AnySend, Failure, Send
from muster.errors import ErrorCode, KafkaError, UnsupportedVersionError, error_code
from muster.model import Node
from muster.protocol.api import CoordinatorType
from muster.protocol.messages import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse

_FIRST_WITH_KEYS = 4


class CoordinatorLookup(KnownCoordinator):
    """Looks up the coordinator of a group, or of a transactional id."""

    failures = 0
    """How many lookups have failed."""

    def __init__(
        self,
        key: str,
        config: ClientConfig,
        metadata: ClusterMetadata,
        events: EventStream,
        seed: int = 0,
        kind: CoordinatorType = CoordinatorType.GROUP,
    ) -> None:
        what = "group" if kind is CoordinatorType.GROUP else "transactional id"
        super().__init__(f"{what} {key}", config, metadata, events, seed)
        self.key = key
        self._kind = kind

    def poll(self, now: int) -> list[AnySend]:
        """The FindCoordinator request, if it is due."""
        if not self._is_due(now):
            return []
        self._in_flight = True
        return [Send(LEAST_LOADED, FindCoordinatorRequest, self._request, self._on_reply)]

    def _request(self, version: int) -> FindCoordinatorRequest:
        if version >= _FIRST_WITH_KEYS:
            return FindCoordinatorRequest(key_type=self._kind, coordinator_keys=[self.key])
        if version == 0 and self._kind is CoordinatorType.TRANSACTION:
            raise UnsupportedVersionError("transactions need Kafka 0.11 or later")
        return FindCoordinatorRequest(key=self.key, key_type=self._kind)

    def _on_reply(self, reply: FindCoordinatorResponse | Failure, now: int) -> None:
        self._in_flight = False
        if isinstance(reply, Failure):
            self.failures += 1
            self.trouble = reply.message
            if not reply.retriable:
                self.error = reply.error()
            self._back_off(now)
            self._metadata.request_update(now)
            return
        answer = _only_coordinator(reply)
        code = error_code(answer.error_code)
        if code is ErrorCode.NONE:
            self._learn(Node(answer.node_id, answer.host, answer.port))
            return
        self.trouble = f"it was looked up, and the answer was {code.name}"
        self.failures += 1
        self._back_off(now)
        if code.retriable:
            self._metadata.request_update(now)
        else:
            self.error = KafkaError(code, answer.error_message or f"looking up {self.what}")


def _only_coordinator(reply: FindCoordinatorResponse) -> Coordinator:
    """The answer for the requested key; before v4 it is the response itself."""
    if reply.coordinators:
        return reply.coordinators[0]
    return Coordinator("", reply.node_id, reply.host, reply.port, reply.error_code, reply.error_message)
