"""`Admin`: the administration of a cluster for code that blocks. It is an `AsyncAdmin` on a loop thread."""

from __future__ import annotations

import warnings
from collections.abc import Coroutine, Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

from muster.client.admin.async_admin import AsyncAdmin
from muster.client.core.admin.admin import (
    ClusterDescription,
    ConfigEntry,
    ConfigResource,
    ConfigResourceType,
    CreatedTopic,
    GroupDescription,
    GroupListing,
    NewTopic,
    TopicDescription,
    TopicListing,
)
from muster.client.core.admin.configs import Changes
from muster.client.core.admin.members import GroupMember
from muster.client.core.admin.partitions import ElectionType, LogDirDescription, NewPartitions, ProducerState
from muster.client.core.admin.replicas import PartitionReassignment
from muster.client.net import forks
from muster.client.net.loop import LoopThread
from muster.errors import KafkaError
from muster.model import OffsetAndMetadata, OffsetAndTimestamp, TopicPartition

if TYPE_CHECKING:
    from muster.client.typed_settings import AdminKeywords

V = TypeVar("V")


class Admin(forks.StaysHere):
    """Administers a cluster, from any thread: `AsyncAdmin` with blocking calls."""

    def __init__(self, settings: Mapping[str, Any] | None = None, /, **more: Unpack[AdminKeywords]) -> None:
        self._admin = AsyncAdmin(settings, **more)
        self._thread = LoopThread("muster-admin", self._admin.close)

    def start(self) -> None:
        """Start the background thread. Every call does that too."""
        self._run(self._admin.start())

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

    def _run(self, work: Coroutine[Any, Any, V]) -> V:
        return self._thread.run(work)

    def create_topics(
        self, topics: Iterable[NewTopic | str], *, validate_only: bool = False
    ) -> dict[str, CreatedTopic | KafkaError]:
        """As `AsyncAdmin.create_topics`."""
        return self._run(self._admin.create_topics(topics, validate_only=validate_only))

    def delete_topics(self, names: Iterable[str]) -> dict[str, KafkaError | None]:
        """As `AsyncAdmin.delete_topics`."""
        return self._run(self._admin.delete_topics(names))

    def list_topics(self, *, include_internal: bool = False) -> list[TopicListing]:
        """As `AsyncAdmin.list_topics`."""
        return self._run(self._admin.list_topics(include_internal=include_internal))

    def describe_topics(self, names: Iterable[str]) -> dict[str, TopicDescription | KafkaError]:
        """As `AsyncAdmin.describe_topics`."""
        return self._run(self._admin.describe_topics(names))

    def list_offsets(
        self, timestamps: Mapping[TopicPartition, int], *, isolation_level: str = "read_uncommitted"
    ) -> dict[TopicPartition, OffsetAndTimestamp | KafkaError | None]:
        """As `AsyncAdmin.list_offsets`."""
        return self._run(self._admin.list_offsets(timestamps, isolation_level=isolation_level))

    def create_partitions(
        self, topics: Mapping[str, NewPartitions | int], *, validate_only: bool = False
    ) -> dict[str, KafkaError | None]:
        """As `AsyncAdmin.create_partitions`."""
        return self._run(self._admin.create_partitions(topics, validate_only=validate_only))

    def delete_records(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | KafkaError]:
        """As `AsyncAdmin.delete_records`."""
        return self._run(self._admin.delete_records(offsets))

    def describe_producers(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, list[ProducerState] | KafkaError]:
        """As `AsyncAdmin.describe_producers`."""
        return self._run(self._admin.describe_producers(partitions))

    def elect_leaders(
        self, election_type: ElectionType, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, KafkaError | None]:
        """As `AsyncAdmin.elect_leaders`."""
        return self._run(self._admin.elect_leaders(election_type, partitions))

    def alter_partition_reassignments(
        self,
        reassignments: Mapping[TopicPartition, Iterable[int] | None],
        *,
        allow_replication_factor_change: bool = True,
    ) -> dict[TopicPartition, KafkaError | None]:
        """As `AsyncAdmin.alter_partition_reassignments`."""
        return self._run(
            self._admin.alter_partition_reassignments(
                reassignments, allow_replication_factor_change=allow_replication_factor_change
            )
        )

    def list_partition_reassignments(
        self, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, PartitionReassignment]:
        """As `AsyncAdmin.list_partition_reassignments`."""
        return self._run(self._admin.list_partition_reassignments(partitions))

    def describe_cluster(self) -> ClusterDescription:
        """As `AsyncAdmin.describe_cluster`."""
        return self._run(self._admin.describe_cluster())

    def reach_brokers(self) -> dict[int, KafkaError | None]:
        """As `AsyncAdmin.reach_brokers`."""
        return self._run(self._admin.reach_brokers())

    def describe_configs(
        self, resources: Iterable[ConfigResource], *, include_documentation: bool = False
    ) -> dict[ConfigResource, dict[str, ConfigEntry] | KafkaError]:
        """As `AsyncAdmin.describe_configs`."""
        return self._run(self._admin.describe_configs(resources, include_documentation=include_documentation))

    def alter_configs(
        self, changes: Mapping[ConfigResource, Changes], *, validate_only: bool = False
    ) -> dict[ConfigResource, KafkaError | None]:
        """As `AsyncAdmin.alter_configs`."""
        return self._run(self._admin.alter_configs(changes, validate_only=validate_only))

    def list_config_resources(self, types: Iterable[ConfigResourceType] = ()) -> list[ConfigResource]:
        """As `AsyncAdmin.list_config_resources`."""
        return self._run(self._admin.list_config_resources(types))

    def describe_log_dirs(
        self, brokers: Iterable[int] | None = None
    ) -> dict[int, dict[str, LogDirDescription] | KafkaError]:
        """As `AsyncAdmin.describe_log_dirs`."""
        return self._run(self._admin.describe_log_dirs(brokers))

    def alter_replica_log_dirs(
        self, broker: int, log_dirs: Mapping[TopicPartition, str]
    ) -> dict[TopicPartition, KafkaError | None]:
        """As `AsyncAdmin.alter_replica_log_dirs`."""
        return self._run(self._admin.alter_replica_log_dirs(broker, log_dirs))

    def list_consumer_groups(self, *, states: Iterable[str] = (), types: Iterable[str] = ()) -> list[GroupListing]:
        """As `AsyncAdmin.list_consumer_groups`."""
        return self._run(self._admin.list_consumer_groups(states=states, types=types))

    def describe_consumer_groups(self, group_ids: Iterable[str]) -> dict[str, GroupDescription | KafkaError]:
        """As `AsyncAdmin.describe_consumer_groups`."""
        return self._run(self._admin.describe_consumer_groups(group_ids))

    def delete_consumer_groups(self, group_ids: Iterable[str]) -> dict[str, KafkaError | None]:
        """As `AsyncAdmin.delete_consumer_groups`."""
        return self._run(self._admin.delete_consumer_groups(group_ids))

    def list_consumer_group_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | KafkaError]:
        """As `AsyncAdmin.list_consumer_group_offsets`."""
        return self._run(self._admin.list_consumer_group_offsets(group_id, partitions))

    def list_offsets_of_consumer_groups(
        self, group_ids: Iterable[str]
    ) -> dict[str, dict[TopicPartition, OffsetAndMetadata | KafkaError] | KafkaError]:
        """As `AsyncAdmin.list_offsets_of_consumer_groups`."""
        return self._run(self._admin.list_offsets_of_consumer_groups(group_ids))

    def alter_consumer_group_offsets(
        self, group_id: str, offsets: Mapping[TopicPartition, OffsetAndMetadata | int]
    ) -> dict[TopicPartition, KafkaError | None]:
        """As `AsyncAdmin.alter_consumer_group_offsets`."""
        return self._run(self._admin.alter_consumer_group_offsets(group_id, offsets))

    def delete_consumer_group_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, KafkaError | None]:
        """As `AsyncAdmin.delete_consumer_group_offsets`."""
        return self._run(self._admin.delete_consumer_group_offsets(group_id, partitions))

    def remove_consumer_group_members(
        self, group_id: str, members: Iterable[GroupMember] | None = None, *, reason: str | None = None
    ) -> dict[GroupMember, KafkaError | None]:
        """As `AsyncAdmin.remove_consumer_group_members`."""
        return self._run(self._admin.remove_consumer_group_members(group_id, members, reason=reason))
