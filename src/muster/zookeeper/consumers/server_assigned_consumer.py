"""`ServerAssignedConsumer`: a consumer of scheme 2 for code that blocks."""

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
    """Reads records as a member of a group whose coordinator assigns the partitions. `AsyncServerAssignedConsumer` says
    what it promises, and what each method does.

        with ServerAssignedConsumer(
            coordinator_servers="localhost:9093", bootstrap_servers="localhost:9092", group_id="delays"
        ) as consumer:
            consumer.subscribe(["flights"])
            for record in consumer:
                ...

    It takes part in the group from the first call that waits until `close`, in a thread of its own. One thread uses it
    at a time, except for `close` and `wakeup`.
    """

    _consumer: AsyncServerAssignedConsumer

    def __init__(self, settings: Mapping[str, Any] | None = None, /, **more: Unpack[ServerAssignedKeywords]) -> None:
        super().__init__(AsyncServerAssignedConsumer(settings, **more), "muster-server-assigned")

    def subscribe(self, topics: Iterable[str] | str) -> None:
        """Take part in the group, for topics. There is one subscription in such a consumer's life."""
        self._do(self._consumer.subscribe, topics)

    @property
    def state(self) -> ServerAssignedState:
        """Where it stands in its group."""
        return self._consumer.state

    def group_metadata(self) -> GroupMetadata:
        """Which member of which generation this consumer is now."""
        return self._do(self._consumer.group_metadata)
