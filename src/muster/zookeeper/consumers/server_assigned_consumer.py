"""`ServerAssignedConsumer`: a blocking consumer of scheme 2."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Unpack

from muster.model import GroupMetadata
from muster.zookeeper.consumers.async_server_assigned_consumer import AsyncServerAssignedConsumer
from muster.zookeeper.consumers.blocking_reader import AssignedReader
from muster.zookeeper.server_assigned.states import ServerAssignedState

if TYPE_CHECKING:
    from muster.zookeeper.consumers.typed_settings import ServerAssignedKeywords


class ServerAssignedConsumer(AssignedReader):
    """Reads records as a member of a group whose coordinator assigns the partitions. See `AsyncServerAssignedConsumer`
    for its guarantees and its methods.

        with ServerAssignedConsumer(
            coordinator_servers="localhost:9093", bootstrap_servers="localhost:9092", group_id="delays"
        ) as consumer:
            consumer.subscribe(["flights"])
            for record in consumer:
                ...

    It is a member of the group from the first call that waits until `close`, in a background thread. Only one thread
    may use it at a time, except for `close` and `wakeup`.
    """

    _consumer: AsyncServerAssignedConsumer

    def __init__(self, settings: Mapping[str, Any] | None = None, /, **more: Unpack[ServerAssignedKeywords]) -> None:
        super().__init__(AsyncServerAssignedConsumer(settings, **more), "muster-server-assigned")

    def subscribe(self, topics: Iterable[str] | str) -> None:
        """Subscribe to topics and join the group. A consumer can subscribe only once."""
        self._do(self._consumer.subscribe, topics)

    @property
    def state(self) -> ServerAssignedState:
        """The member's state in its group."""
        return self._consumer.state

    def group_metadata(self) -> GroupMetadata:
        """This consumer's current member id and generation."""
        return self._do(self._consumer.group_metadata)
