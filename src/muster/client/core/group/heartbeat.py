"""When to heartbeat, and what a missing answer means (H1 to H4 seen from the member).

Three clocks run while the member is in the group: when the next heartbeat is due, when the session counts as lost
because no heartbeat was answered for `session.timeout.ms`, and when the user's code has stayed away from `poll` for
`max.poll.interval.ms`.
"""

from __future__ import annotations

from muster.client.config import ConsumerConfig
from muster.client.core.backoff import Backoff


class Heartbeat:
    """The three clocks, as times in milliseconds."""

    def __init__(self, config: ConsumerConfig, seed: int = 0) -> None:
        self._config = config
        self.send_at = 0
        self.session_ends_at = 0
        self.poll_due_at = 0
        self._backoff = Backoff(config.retry_backoff_ms, config.retry_backoff_max_ms, seed)

    def reset(self, now: int) -> None:
        """The member has just joined."""
        self.send_at = now + self._config.heartbeat_interval_ms
        self.reset_session(now)
        self.polled(now)

    def reset_session(self, now: int) -> None:
        """The coordinator was found again: it has a whole session timeout to answer."""
        self.session_ends_at = now + self._config.session_timeout_ms

    def polled(self, now: int) -> None:
        """The user's code has called `poll`."""
        self.poll_due_at = now + self._config.max_poll_interval_ms

    def sent(self, now: int) -> None:
        """A heartbeat was sent."""
        self.send_at = now + self._config.heartbeat_interval_ms

    def received(self, now: int) -> None:
        """A heartbeat was answered; REBALANCE_IN_PROGRESS is an answer too (H4)."""
        self._backoff.reset()
        self.reset_session(now)

    def failed(self, now: int) -> None:
        """A heartbeat got no answer, or a different error: the next one is sent sooner (H4)."""
        self.send_at = now + self._backoff.next_wait_ms()
