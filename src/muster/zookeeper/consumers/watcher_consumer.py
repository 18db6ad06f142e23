"""`WatcherConsumer`: a blocking consumer of scheme 1. It is an `AsyncWatcherConsumer` on a loop thread."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Unpack

from muster.client.consumer.listener import RebalanceListener
from muster.model import TopicPartition
from muster.zookeeper.consumers.async_watcher_consumer import AsyncWatcherConsumer, Topics
from muster.zookeeper.consumers.blocking_reader import AssignedReader
from muster.zookeeper.watchers.states import WatcherState

if TYPE_CHECKING:
    from muster.zookeeper.consumers.typed_settings import WatcherKeywords


class WatcherConsumer(AssignedReader):
    """Reads records as a member of a group that ZooKeeper coordinates. See `AsyncWatcherConsumer` for its guarantees
    and its methods.

        with WatcherConsumer(zookeeper_connect="localhost:2181", group_id="delays") as consumer:
            consumer.subscribe(["flights"])
            for record in consumer:
                ...

    It is a member of the group from the first call that waits until `close`, in a background thread. Only one thread
    may use it at a time, except for `close` and `wakeup`.
    """

    _consumer: AsyncWatcherConsumer

    def __init__(self, settings: Mapping[str, Any] | None = None, /, **more: Unpack[WatcherKeywords]) -> None:
        consumer = AsyncWatcherConsumer(settings, **more)
        self.consumer_id = consumer.consumer_id
        super().__init__(consumer, "muster-watcher")

    def subscribe(
        self,
        topics: Topics | None = None,
        *,
        pattern: str | None = None,
        black_list: str | None = None,
        num_streams: int = 1,
        listener: RebalanceListener | None = None,
    ) -> None:
        """Join the group, with a list of topics, a pattern that whole topic names must match, or one that they must not
        match.

        The listener's methods are called in a separate thread, see `AsyncWatcherConsumer.subscribe`.
        """
        lists = {"pattern": pattern, "black_list": black_list}
        self._do(self._consumer.subscribe, topics, **lists, num_streams=num_streams, listener=listener)

    def streams(self) -> dict[str, set[TopicPartition]]:
        """The partitions of each stream that currently has any."""
        return self._do(self._consumer.streams)

    @property
    def state(self) -> WatcherState:
        """The member's state in its group."""
        return self._consumer.state
