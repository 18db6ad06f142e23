"""The user's rebalance listener."""

from __future__ import annotations

from collections.abc import Awaitable

from muster.model import TopicPartition


class RebalanceListener:
    """A rebalance listener: its methods are called when partitions are assigned or given up. Derive a class and
    override what you need.

    The methods are called from within `poll`, `unsubscribe` and `close` of the consumer, in the caller's thread or
    task; those of an `AsyncConsumer`'s listener may be coroutines. They may call the consumer: a revoked partition is
    still this consumer's while `on_partitions_revoked` runs, so its offsets can be committed there. The group waits for
    the method, at most for `max_poll_interval_ms`.

    An exception is raised from the current call; the rebalance continues regardless.
    """

    def on_partitions_assigned(self, partitions: list[TopicPartition]) -> Awaitable[None] | None:
        """These partitions are newly assigned; `seek` sets where reading starts. Called after each rebalance."""

    def on_partitions_revoked(self, partitions: list[TopicPartition]) -> Awaitable[None] | None:
        """These partitions are about to be given up; offsets can still be committed."""

    def on_partitions_lost(self, partitions: list[TopicPartition]) -> Awaitable[None] | None:
        """These partitions may have new owners already: it is too late to commit. By default calls
        `on_partitions_revoked`."""
        return self.on_partitions_revoked(partitions)
