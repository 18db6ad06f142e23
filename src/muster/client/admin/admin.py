"""`Admin`: administers a cluster with blocking calls. It runs an `AsyncAdmin` in a background thread."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Coroutine, Mapping
from functools import wraps
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar, Unpack

from muster.client.admin.async_admin import AsyncAdmin
from muster.client.net import forks
from muster.client.net.loop import LoopThread

if TYPE_CHECKING:
    from muster.client.typed_settings import AdminKeywords

P = ParamSpec("P")
V = TypeVar("V")


def _blocking(
    method: Callable[Concatenate[AsyncAdmin, P], Coroutine[Any, Any, V]],
) -> Callable[Concatenate[Admin, P], V]:
    """A method of `AsyncAdmin`, run in the background thread. Its overloads are kept."""

    @wraps(method)
    def call(self: Admin, /, *args: P.args, **more: P.kwargs) -> V:
        return self._thread.call(method, self._admin, *args, **more)

    return call


class Admin(forks.NotPicklable):
    """Administers a cluster, from any thread: `AsyncAdmin` with blocking calls."""

    def __init__(self, settings: Mapping[str, Any] | None = None, /, **more: Unpack[AdminKeywords]) -> None:
        self._admin = AsyncAdmin(settings, **more)
        self._thread = LoopThread("muster-admin", self._admin.close)

    def start(self) -> None:
        """Start the background thread. Every call does this too."""
        self._thread.call(self._admin.start)

    def close(self) -> None:
        """Close the connections and stop the thread."""
        self._thread.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        thread: LoopThread | None = getattr(self, "_thread", None)
        if thread is not None and thread.is_open:
            warnings.warn("an Admin was dropped without close()", ResourceWarning, source=self, stacklevel=2)
            thread.drop()

    create_topics = _blocking(AsyncAdmin.create_topics)
    delete_topics = _blocking(AsyncAdmin.delete_topics)
    list_topics = _blocking(AsyncAdmin.list_topics)
    describe_topics = _blocking(AsyncAdmin.describe_topics)
    list_offsets = _blocking(AsyncAdmin.list_offsets)
    create_partitions = _blocking(AsyncAdmin.create_partitions)
    delete_records = _blocking(AsyncAdmin.delete_records)
    describe_producers = _blocking(AsyncAdmin.describe_producers)
    elect_leaders = _blocking(AsyncAdmin.elect_leaders)
    alter_partition_reassignments = _blocking(AsyncAdmin.alter_partition_reassignments)
    list_partition_reassignments = _blocking(AsyncAdmin.list_partition_reassignments)
    describe_cluster = _blocking(AsyncAdmin.describe_cluster)
    reach_brokers = _blocking(AsyncAdmin.reach_brokers)
    describe_configs = _blocking(AsyncAdmin.describe_configs)
    alter_configs = _blocking(AsyncAdmin.alter_configs)
    list_config_resources = _blocking(AsyncAdmin.list_config_resources)
    describe_log_dirs = _blocking(AsyncAdmin.describe_log_dirs)
    alter_replica_log_dirs = _blocking(AsyncAdmin.alter_replica_log_dirs)
    list_consumer_groups = _blocking(AsyncAdmin.list_consumer_groups)
    list_consumer_groups_by_broker = _blocking(AsyncAdmin.list_consumer_groups_by_broker)
    describe_consumer_groups = _blocking(AsyncAdmin.describe_consumer_groups)
    delete_consumer_groups = _blocking(AsyncAdmin.delete_consumer_groups)
    list_consumer_group_offsets = _blocking(AsyncAdmin.list_consumer_group_offsets)
    list_offsets_of_consumer_groups = _blocking(AsyncAdmin.list_offsets_of_consumer_groups)
    alter_consumer_group_offsets = _blocking(AsyncAdmin.alter_consumer_group_offsets)
    delete_consumer_group_offsets = _blocking(AsyncAdmin.delete_consumer_group_offsets)
    remove_consumer_group_members = _blocking(AsyncAdmin.remove_consumer_group_members)
    list_transactions = _blocking(AsyncAdmin.list_transactions)
    list_transactions_by_broker = _blocking(AsyncAdmin.list_transactions_by_broker)
    describe_transactions = _blocking(AsyncAdmin.describe_transactions)
    abort_transaction = _blocking(AsyncAdmin.abort_transaction)
    fence_producers = _blocking(AsyncAdmin.fence_producers)
