"""Finding the group's coordinator, and giving it up (J2).

Theory. The coordinator is looked up when a request first needs it. FindCoordinator goes to the least-loaded broker; if
it fails with a retriable error, the metadata is refreshed and the lookup tried again, with backoff. A coordinator is
given up when it answers that it is not the coordinator, or does not answer. `epoch` then goes up, so that the answer to
a request sent under the old epoch is recognised as void. When two coordinators in a row turn out dead, the next lookup
waits for a backoff, which grows until a coordinator gives a good answer.
"""

from __future__ import annotations

from muster.client.config import ConsumerConfig
from muster.client.core.backoff import Backoff
from muster.client.core.events import INFO, Disconnect, EventStream, Note
from muster.client.core.metadata import ClusterMetadata
from muster.client.core.sends import LEAST_LOADED, AnySend, Failure, Send
from muster.errors import ErrorCode, KafkaError, MusterError, error_code
from muster.model import Node
from muster.protocol.messages import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse

GROUP_KEY_TYPE = 0
_FIRST_WITH_KEYS = 4


class CoordinatorLookup:
    """The group's coordinator, as far as it is known."""

    def __init__(
        self, group_id: str, config: ConsumerConfig, metadata: ClusterMetadata, events: EventStream, seed: int = 0
    ) -> None:
        self._group_id = group_id
        self._metadata = metadata
        self._events = events
        self.node_id: int | None = None
        self.epoch = 0
        """Goes up whenever a coordinator is given up."""
        self.error: MusterError | None = None
        """An error that is not retriable. The code that reports it to the user sets it back to None."""
        self.failures = 0
        """How many lookups have failed."""
        self._wanted = False
        self._in_flight = False
        self._backoff = Backoff(config.retry_backoff_ms, config.retry_backoff_max_ms, seed)
        self._gave_up_since_answer = False
        self._retry_at = 0

    def need(self) -> int | None:
        """The coordinator's node id; where it is unknown, have `poll` look it up."""
        if self.node_id is None:
            self._wanted = True
        return self.node_id

    def poll(self, now: int) -> list[AnySend]:
        """The FindCoordinator request, if it is due."""
        if not self._wanted or self._in_flight or self.node_id is not None or now < self._retry_at:
            return []
        self._in_flight = True
        return [Send(LEAST_LOADED, FindCoordinatorRequest, self._request, self._on_reply)]

    def next_deadline(self, now: int) -> int | None:
        """When the coordinator is looked up again."""
        if not self._wanted or self._in_flight or self.node_id is not None:
            return None
        return max(now, self._retry_at)

    def _request(self, version: int) -> FindCoordinatorRequest:
        if version >= _FIRST_WITH_KEYS:
            return FindCoordinatorRequest(key_type=GROUP_KEY_TYPE, coordinator_keys=[self._group_id])
        return FindCoordinatorRequest(key=self._group_id, key_type=GROUP_KEY_TYPE)

    def _on_reply(self, reply: FindCoordinatorResponse | Failure, now: int) -> None:
        self._in_flight = False
        if isinstance(reply, Failure):
            self.failures += 1
            if not reply.retriable:
                self.error = reply.error()
            self._back_off(now)
            self._metadata.request_update(now)
            return
        found = _only_coordinator(reply)
        code = error_code(found.error_code)
        if code is ErrorCode.NONE:
            self._metadata.learn_node(Node(found.node_id, found.host, found.port))
            self.node_id = found.node_id
            self._wanted = False
            self._events.append(Note(INFO, f"the coordinator of group {self._group_id} is {found.host}:{found.port}"))
            return
        self.failures += 1
        self._back_off(now)
        if code.retriable:
            self._metadata.request_update(now)
        else:
            self.error = KafkaError(code, found.error_message or f"looking up the coordinator of {self._group_id}")

    def mark_dead(self, cause: str, now: int) -> None:
        """Give the coordinator up; the next one is looked up when a request needs it."""
        if self.node_id is None:
            return
        self._events.append(Note(INFO, f"the coordinator of group {self._group_id} is given up: {cause}"))
        self._events.append(Disconnect(self.node_id))
        self.node_id = None
        self.epoch += 1
        if self._gave_up_since_answer:
            self._back_off(now)
        self._gave_up_since_answer = True  # the first time there is no backoff: it may just have moved

    def mark_alive(self) -> None:
        """A request to the coordinator was answered."""
        self._gave_up_since_answer = False
        self._backoff.reset()

    def failed(self, failure: Failure, now: int) -> None:
        """A request to the coordinator got no answer. If it may succeed later, the coordinator is given up."""
        if failure.retriable:
            self.mark_dead(failure.message, now)

    def refused(self, code: ErrorCode, now: int) -> bool:
        """Whether an error code means that the broker is not the coordinator; it is given up then."""
        if code.stale_coordinator:
            self.mark_dead(f"it answered {code.name}", now)
            return True
        self.mark_alive()
        return False

    def _back_off(self, now: int) -> None:
        self._retry_at = now + self._backoff.next_wait_ms()


def _only_coordinator(reply: FindCoordinatorResponse) -> Coordinator:
    """The answer for the one group asked for; before v4 the response itself holds it."""
    if reply.coordinators:
        return reply.coordinators[0]
    return Coordinator("", reply.node_id, reply.host, reply.port, reply.error_code, reply.error_message)
