"""With auto commit: the commit before partitions are given up. It is retried while the rebalance has time."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from muster.client.config import ConsumerConfig
from muster.client.core.backoff import Backoff
from muster.client.core.events import ERROR, WARNING, EventStream, Note
from muster.client.core.metadata import ClusterMetadata
from muster.client.core.refusals import is_retriable
from muster.client.core.subscription_state import SubscriptionState
from muster.errors import ErrorCode, KafkaError, MusterError

OnCommitted = Callable[[MusterError | None, int], None]
CommitConsumed = Callable[[OnCommitted, int], None]
"""Commits what has been handed out, without retries. Calls back with the error, or None, and the time."""


WARN_AFTER_MS = 5_000


class CommitFirst:
    """A commit that is retried until it succeeds, and the step after it. `max.poll.interval.ms` bounds the retries."""

    def __init__(
        self,
        config: ConsumerConfig,
        subscription: SubscriptionState,
        metadata: ClusterMetadata,
        notes: EventStream,
        seed: int,
    ) -> None:
        self.commit: CommitConsumed | None = None
        """How to commit; None if auto commit is off."""
        self._config = config
        self._subscription = subscription
        self._metadata = metadata
        self._notes = notes
        self._backoff = Backoff(config.retry_backoff_ms, config.retry_backoff_max_ms, seed)
        self._then: Callable[[int], None] | None = None
        self._try_at: int | None = None
        self._until = 0
        self._warn_at: int | None = None
        """When to log that the rebalance is waiting; None once that was logged."""

    @property
    def waiting(self) -> bool:
        """Whether a step waits for an unfinished commit."""
        return self._then is not None

    def begin(self, then: Callable[[int], None], now: int) -> None:
        """Call `then` once the commit has succeeded or was given up. The first try is at the next `poll`."""
        self._backoff.reset()
        self._then = then
        self._try_at = now
        self._until = now + self._config.max_poll_interval_ms
        self._warn_at = now + WARN_AFTER_MS

    def poll(self, now: int) -> None:
        """Try the commit if it is due; continue without it if no time is left."""
        if self._then is None:
            return
        if now >= self._until:
            self._note("offsets could not be committed in time before the rebalance; continuing without the commit")
            self._finish(now)
        elif self._try_at is not None and now >= self._try_at and self.commit is not None:
            self._try_at = None
            self.commit(partial(self._on_committed, self._then), now)

    def deadlines(self) -> list[int]:
        """When `poll` has something to do."""
        if self._then is None:
            return []
        return [self._until] if self._try_at is None else [self._try_at, self._until]

    def drop(self) -> bool:
        """Forget the waiting step: its generation has ended. Returns whether one was waiting."""
        waited = self.waiting
        self._then = self._try_at = None
        return waited

    def _on_committed(self, then: Callable[[int], None], error: MusterError | None, now: int) -> None:
        if self._then is not then:
            return
        may_retry = is_retriable(error) and now < self._until
        if may_retry and not self._is_gone(error, now):
            self._try_at = now + self._backoff.next_wait_ms()
            self._warn(error, now)
            return
        if error is not None:
            self._note(f"offsets could not be committed before the rebalance: {error}")
        self._finish(now)

    def _is_gone(self, error: MusterError | None, now: int) -> bool:
        """Whether the topic of an owned partition was deleted: its offsets can never be committed; the others are."""
        codes = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)
        if not isinstance(error, KafkaError) or error.code not in codes:
            return False
        self._metadata.request_update(now)
        return any(self._metadata.partition_count(owned.topic) is None for owned in self._subscription.assignment())

    def _warn(self, error: MusterError | None, now: int) -> None:
        """Log once what is holding up the rebalance, such as a topic that was created again with fewer partitions."""
        if self._warn_at is None or now < self._warn_at:
            return
        self._warn_at = None
        limit = self._config.max_poll_interval_ms
        text = f"the rebalance waits for a commit that has been refused for {WARN_AFTER_MS // 1000} s: {error}"
        owned = self._subscription.assignment()
        gone = [str(one) for one in owned if one.partition not in self._metadata.partitions(one.topic)]
        if gone:
            verb = "exists" if len(gone) == 1 else "exist"
            text += f"; {', '.join(sorted(gone))} no longer {verb}: the topic was recreated with fewer partitions"
        self._notes.append(Note(WARNING, f"{text}; it is given up after max_poll_interval_ms ({limit})"))

    def _finish(self, now: int) -> None:
        then, self._then, self._try_at = self._then, None, None
        if then is not None:
            then(now)

    def _note(self, text: str) -> None:
        self._notes.append(Note(ERROR, text))
