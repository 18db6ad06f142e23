"""`Admin`: administers a cluster with blocking calls. It runs an `AsyncAdmin` in a background thread."""

from __future__ import annotations

import warnings
from collections.abc import Coroutine, Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, Unpack, overload

from muster.client.admin.async_admin import AsyncAdmin
from muster.client.admin.part import checked
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
        """Start the background thread. Every call does this too."""
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

    @overload
    def create_topics(
        self, topics: Iterable[NewTopic | str], *, validate_only: bool = False, raise_errors: Literal[True] = True
    ) -> dict[str, CreatedTopic]: ...

    @overload
    def create_topics(
        self, topics: Iterable[NewTopic | str], *, validate_only: bool = False, raise_errors: Literal[False]
    ) -> dict[str, CreatedTopic | KafkaError]: ...

    def create_topics(
        self, topics: Iterable[NewTopic | str], *, validate_only: bool = False, raise_errors: bool = True
    ) -> dict[str, Any]:
        """As `AsyncAdmin.create_topics`."""
        return checked(
            self._run(self._admin.create_topics(topics, validate_only=validate_only, raise_errors=False)), raise_errors
        )

    def delete_topics(self, names: Iterable[str], *, raise_errors: bool = True) -> dict[str, KafkaError | None]:
        """As `AsyncAdmin.delete_topics`."""
        return checked(self._run(self._admin.delete_topics(names, raise_errors=False)), raise_errors)

    def list_topics(self, *, include_internal: bool = False) -> list[TopicListing]:
        """As `AsyncAdmin.list_topics`."""
        return self._run(self._admin.list_topics(include_internal=include_internal))

    @overload
    def describe_topics(
        self, names: Iterable[str], *, raise_errors: Literal[True] = True
    ) -> dict[str, TopicDescription]: ...

    @overload
    def describe_topics(
        self, names: Iterable[str], *, raise_errors: Literal[False]
    ) -> dict[str, TopicDescription | KafkaError]: ...

    def describe_topics(self, names: Iterable[str], *, raise_errors: bool = True) -> dict[str, Any]:
        """As `AsyncAdmin.describe_topics`."""
        return checked(self._run(self._admin.describe_topics(names, raise_errors=False)), raise_errors)

    @overload
    def list_offsets(
        self,
        timestamps: Mapping[TopicPartition, int],
        *,
        isolation_level: str = "read_uncommitted",
        raise_errors: Literal[True] = True,
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]: ...

    @overload
    def list_offsets(
        self,
        timestamps: Mapping[TopicPartition, int],
        *,
        isolation_level: str = "read_uncommitted",
        raise_errors: Literal[False],
    ) -> dict[TopicPartition, OffsetAndTimestamp | KafkaError | None]: ...

    def list_offsets(
        self,
        timestamps: Mapping[TopicPartition, int],
        *,
        isolation_level: str = "read_uncommitted",
        raise_errors: bool = True,
    ) -> dict[TopicPartition, Any]:
        """As `AsyncAdmin.list_offsets`."""
        return checked(
            self._run(self._admin.list_offsets(timestamps, isolation_level=isolation_level, raise_errors=False)),
            raise_errors,
        )

    def create_partitions(
        self, topics: Mapping[str, NewPartitions | int], *, validate_only: bool = False, raise_errors: bool = True
    ) -> dict[str, KafkaError | None]:
        """As `AsyncAdmin.create_partitions`."""
        return checked(
            self._run(self._admin.create_partitions(topics, validate_only=validate_only, raise_errors=False)),
            raise_errors,
        )

    @overload
    def delete_records(
        self, offsets: Mapping[TopicPartition, int], *, raise_errors: Literal[True] = True
    ) -> dict[TopicPartition, int]: ...

    @overload
    def delete_records(
        self, offsets: Mapping[TopicPartition, int], *, raise_errors: Literal[False]
    ) -> dict[TopicPartition, int | KafkaError]: ...

    def delete_records(
        self, offsets: Mapping[TopicPartition, int], *, raise_errors: bool = True
    ) -> dict[TopicPartition, Any]:
        """As `AsyncAdmin.delete_records`."""
        return checked(self._run(self._admin.delete_records(offsets, raise_errors=False)), raise_errors)

    @overload
    def describe_producers(
        self, partitions: Iterable[TopicPartition], *, raise_errors: Literal[True] = True
    ) -> dict[TopicPartition, list[ProducerState]]: ...

    @overload
    def describe_producers(
        self, partitions: Iterable[TopicPartition], *, raise_errors: Literal[False]
    ) -> dict[TopicPartition, list[ProducerState] | KafkaError]: ...

    def describe_producers(
        self, partitions: Iterable[TopicPartition], *, raise_errors: bool = True
    ) -> dict[TopicPartition, Any]:
        """As `AsyncAdmin.describe_producers`."""
        return checked(self._run(self._admin.describe_producers(partitions, raise_errors=False)), raise_errors)

    def elect_leaders(
        self,
        election_type: ElectionType,
        partitions: Iterable[TopicPartition] | None = None,
        *,
        raise_errors: bool = True,
    ) -> dict[TopicPartition, KafkaError | None]:
        """As `AsyncAdmin.elect_leaders`."""
        return checked(
            self._run(self._admin.elect_leaders(election_type, partitions, raise_errors=False)), raise_errors
        )

    def alter_partition_reassignments(
        self,
        reassignments: Mapping[TopicPartition, Iterable[int] | None],
        *,
        allow_replication_factor_change: bool = True,
        raise_errors: bool = True,
    ) -> dict[TopicPartition, KafkaError | None]:
        """As `AsyncAdmin.alter_partition_reassignments`."""
        return checked(
            self._run(
                self._admin.alter_partition_reassignments(
                    reassignments, allow_replication_factor_change=allow_replication_factor_change, raise_errors=False
                )
            ),
            raise_errors,
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

    @overload
    def describe_configs(
        self,
        resources: Iterable[ConfigResource],
        *,
        include_documentation: bool = False,
        raise_errors: Literal[True] = True,
    ) -> dict[ConfigResource, dict[str, ConfigEntry]]: ...

    @overload
    def describe_configs(
        self, resources: Iterable[ConfigResource], *, include_documentation: bool = False, raise_errors: Literal[False]
    ) -> dict[ConfigResource, dict[str, ConfigEntry] | KafkaError]: ...

    def describe_configs(
        self, resources: Iterable[ConfigResource], *, include_documentation: bool = False, raise_errors: bool = True
    ) -> dict[ConfigResource, Any]:
        """As `AsyncAdmin.describe_configs`."""
        return checked(
            self._run(
                self._admin.describe_configs(resources, include_documentation=include_documentation, raise_errors=False)
            ),
            raise_errors,
        )

    def alter_configs(
        self, changes: Mapping[ConfigResource, Changes], *, validate_only: bool = False, raise_errors: bool = True
    ) -> dict[ConfigResource, KafkaError | None]:
        """As `AsyncAdmin.alter_configs`."""
        return checked(
            self._run(self._admin.alter_configs(changes, validate_only=validate_only, raise_errors=False)), raise_errors
        )

    def list_config_resources(self, types: Iterable[ConfigResourceType] = ()) -> list[ConfigResource]:
        """As `AsyncAdmin.list_config_resources`."""
        return self._run(self._admin.list_config_resources(types))

    @overload
    def describe_log_dirs(
        self, brokers: Iterable[int] | None = None, *, raise_errors: Literal[True] = True
    ) -> dict[int, dict[str, LogDirDescription]]: ...

    @overload
    def describe_log_dirs(
        self, brokers: Iterable[int] | None = None, *, raise_errors: Literal[False]
    ) -> dict[int, dict[str, LogDirDescription] | KafkaError]: ...

    def describe_log_dirs(self, brokers: Iterable[int] | None = None, *, raise_errors: bool = True) -> dict[int, Any]:
        """As `AsyncAdmin.describe_log_dirs`."""
        return checked(self._run(self._admin.describe_log_dirs(brokers, raise_errors=False)), raise_errors)

    def alter_replica_log_dirs(
        self, broker: int, log_dirs: Mapping[TopicPartition, str], *, raise_errors: bool = True
    ) -> dict[TopicPartition, KafkaError | None]:
        """As `AsyncAdmin.alter_replica_log_dirs`."""
        return checked(
            self._run(self._admin.alter_replica_log_dirs(broker, log_dirs, raise_errors=False)), raise_errors
        )

    def list_consumer_groups(self, *, states: Iterable[str] = (), types: Iterable[str] = ()) -> list[GroupListing]:
        """As `AsyncAdmin.list_consumer_groups`."""
        return self._run(self._admin.list_consumer_groups(states=states, types=types))

    @overload
    def describe_consumer_groups(
        self, group_ids: Iterable[str], *, raise_errors: Literal[True] = True
    ) -> dict[str, GroupDescription]: ...

    @overload
    def describe_consumer_groups(
        self, group_ids: Iterable[str], *, raise_errors: Literal[False]
    ) -> dict[str, GroupDescription | KafkaError]: ...

    def describe_consumer_groups(self, group_ids: Iterable[str], *, raise_errors: bool = True) -> dict[str, Any]:
        """As `AsyncAdmin.describe_consumer_groups`."""
        return checked(self._run(self._admin.describe_consumer_groups(group_ids, raise_errors=False)), raise_errors)

    def delete_consumer_groups(
        self, group_ids: Iterable[str], *, raise_errors: bool = True
    ) -> dict[str, KafkaError | None]:
        """As `AsyncAdmin.delete_consumer_groups`."""
        return checked(self._run(self._admin.delete_consumer_groups(group_ids, raise_errors=False)), raise_errors)

    @overload
    def list_consumer_group_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition] | None = None, *, raise_errors: Literal[True] = True
    ) -> dict[TopicPartition, OffsetAndMetadata]: ...

    @overload
    def list_consumer_group_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition] | None = None, *, raise_errors: Literal[False]
    ) -> dict[TopicPartition, OffsetAndMetadata | KafkaError]: ...

    def list_consumer_group_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition] | None = None, *, raise_errors: bool = True
    ) -> dict[TopicPartition, Any]:
        """As `AsyncAdmin.list_consumer_group_offsets`."""
        return checked(
            self._run(self._admin.list_consumer_group_offsets(group_id, partitions, raise_errors=False)), raise_errors
        )

    @overload
    def list_offsets_of_consumer_groups(
        self, group_ids: Iterable[str], *, raise_errors: Literal[True] = True
    ) -> dict[str, dict[TopicPartition, OffsetAndMetadata]]: ...

    @overload
    def list_offsets_of_consumer_groups(
        self, group_ids: Iterable[str], *, raise_errors: Literal[False]
    ) -> dict[str, dict[TopicPartition, OffsetAndMetadata | KafkaError] | KafkaError]: ...

    def list_offsets_of_consumer_groups(self, group_ids: Iterable[str], *, raise_errors: bool = True) -> dict[str, Any]:
        """As `AsyncAdmin.list_offsets_of_consumer_groups`."""
        return checked(
            self._run(self._admin.list_offsets_of_consumer_groups(group_ids, raise_errors=False)), raise_errors
        )

    def alter_consumer_group_offsets(
        self, group_id: str, offsets: Mapping[TopicPartition, OffsetAndMetadata | int], *, raise_errors: bool = True
    ) -> dict[TopicPartition, KafkaError | None]:
        """As `AsyncAdmin.alter_consumer_group_offsets`."""
        return checked(
            self._run(self._admin.alter_consumer_group_offsets(group_id, offsets, raise_errors=False)), raise_errors
        )

    def delete_consumer_group_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition], *, raise_errors: bool = True
    ) -> dict[TopicPartition, KafkaError | None]:
        """As `AsyncAdmin.delete_consumer_group_offsets`."""
        return checked(
            self._run(self._admin.delete_consumer_group_offsets(group_id, partitions, raise_errors=False)), raise_errors
        )

    def remove_consumer_group_members(
        self,
        group_id: str,
        members: Iterable[GroupMember] | None = None,
        *,
        reason: str | None = None,
        raise_errors: bool = True,
    ) -> dict[GroupMember, KafkaError | None]:
        """As `AsyncAdmin.remove_consumer_group_members`."""
        return checked(
            self._run(self._admin.remove_consumer_group_members(group_id, members, reason=reason, raise_errors=False)),
            raise_errors,
        )
