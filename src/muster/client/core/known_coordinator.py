"""The coordinator of a group or of a transactional id while it is known, and the rules for giving it up.

A coordinator is given up when it answers that it is not the coordinator, or does not answer. `epoch` then goes up, so
that the answer to a request sent under the old epoch is recognised as void. The first loss after a successful response
is followed by an immediate lookup: the group may just have moved. Each further lookup waits for a backoff first, which
grows until a coordinator responds successfully. `coordinator_lookup.py` finds it; members of other schemes find theirs
in their own way.
"""

from __future__ import annotations

from muster.client.config import ClientConfig
from muster.client.core.backoff import Backoff
from muster.client.core.events import INFO, Disconnect, EventStream, Note
from muster.client.core.metadata import ClusterMetadata
from muster.client.core.sends import Failure
from muster.errors import ErrorCode, MusterError
from muster.model import Node


class KnownCoordinator:
    """The coordinator, as far as it is known; `what` is what it coordinates, such as "group g"."""

    def __init__(
        self, what: str, config: ClientConfig, metadata: ClusterMetadata, events: EventStream, seed: int = 0
    ) -> None:
        self.what = f"the coordinator of {what}"
        self._metadata = metadata
        self._events = events
        self.node_id: int | None = None
        """The coordinator, while it is known."""
        self.epoch = 0
        """Goes up whenever a coordinator is given up."""
        self.error: MusterError | None = None
        """An error that a retry does not change. The code that reports it to the user resets it to None."""
        self.trouble = ""
        """Why the latest request to it, or the lookup of it, failed; empty after a successful response."""
        self._wanted = False
        self._in_flight = False
        self._backoff = Backoff(config.retry_backoff_ms, config.retry_backoff_max_ms, seed)
        self._gave_up_since_answer = False
        self._retry_at = 0

    def need(self) -> int | None:
        """The coordinator's node id; if it is unknown, the next `poll` looks it up."""
        if self.node_id is None:
            self._wanted = True
        return self.node_id

    def next_deadline(self, now: int) -> int | None:
        """When the next lookup is due."""
        return max(now, self._retry_at) if self._wanted and not self._in_flight else None

    def _is_due(self, now: int) -> bool:
        return self._wanted and not self._in_flight and now >= self._retry_at

    def _learn(self, found: Node) -> None:
        self._metadata.learn_node(found)
        self.node_id = found.node_id
        self._wanted = False
        self._events.append(Note(INFO, f"{self.what} is {found.host}:{found.port}"))

    def mark_dead(self, cause: str, now: int) -> None:
        """Give the coordinator up; it is looked up again when a request needs it."""
        if self.node_id is None:
            return
        self.trouble = cause
        self._events.append(Note(INFO, f"lost {self.what}: {cause}"))
        self._events.append(Disconnect(self.node_id))
        self.node_id = None
        self.epoch += 1
        if self._gave_up_since_answer:
            self._back_off(now)
        self._gave_up_since_answer = True  # the first time there is no backoff: it may just have moved

    def mark_alive(self) -> None:
        """A request to the coordinator was answered."""
        self.trouble = ""
        self._gave_up_since_answer = False
        self._backoff.reset()

    def failed(self, failure: Failure, now: int) -> None:
        """A request to the coordinator got no answer. If it may succeed later, the coordinator is given up."""
        if failure.retriable:
            self.mark_dead(failure.message, now)

    def refused(self, code: ErrorCode, now: int) -> bool:
        """Whether an answer means that the broker is not the coordinator; if so, the coordinator is given up."""
        if code.stale_coordinator:
            self.mark_dead(f"it answered {code.name}", now)
            return True
        self.mark_alive()
        return False

    def _back_off(self, now: int) -> None:
        self._retry_at = now + self._backoff.next_wait_ms()
