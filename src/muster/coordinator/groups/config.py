"""The coordinator's settings: Apache Kafka's broker keys in snake_case, with Kafka 4.2's defaults and limits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from muster.errors import ErrorCode
from muster.protocol.group_records import GroupMetadataRecord

INT32_MAX = 2**31 - 1


@dataclass(slots=True)
class GroupConfig:
    """Settings of group coordination. A Kafka key such as `group.max.size` is the field `group_max_size`."""

    group_min_session_timeout_ms: int = 6_000
    """The shortest `session.timeout.ms` a member may request; less is INVALID_SESSION_TIMEOUT."""

    group_max_session_timeout_ms: int = 1_800_000
    """The longest `session.timeout.ms` a member may request."""

    group_initial_rebalance_delay_ms: int = 3_000
    """How long an empty group waits for more members after the last one joined; in total at most the rebalance
    timeout."""

    group_max_size: int = INT32_MAX
    """The maximum number of members in a group; another one is refused with GROUP_MAX_SIZE_REACHED."""

    offsets_retention_minutes: int = 10_080
    """How long offsets are kept after a group has become empty, or after the last commit of a simple consumer."""

    offsets_retention_check_interval_ms: int = 600_000
    """How often to look for expired offsets."""

    offset_metadata_max_bytes: int = 4_096
    """The longest metadata of a commit, in characters, as Kafka counts it."""

    server_assigned_groups: str | None = None
    """A regular expression for the ids of groups to which the coordinator assigns (server_assignment.py)."""

    offsets_topic_num_partitions: int = 50
    """Partitions of `__consumer_offsets`. If the number is changed, groups in an existing data folder are not found."""

    node_id: int = 0
    """The broker's id, for events."""

    record_fits: Callable[[GroupMetadataRecord], bool] = lambda record: True
    """Whether the store accepts a group of this size; otherwise the group's members are removed, with the error
    `record_too_large`."""

    record_too_large: ErrorCode = ErrorCode.GROUP_MAX_SIZE_REACHED

    metadata_max_bytes: int = -1
    """The limit on the metadata of all members together, in bytes; -1 means unlimited."""

    metadata_bytes: int = 0
    """The current size of that metadata, kept by the groups (group.py)."""

    @property
    def offsets_retention_ms(self) -> int:
        return self.offsets_retention_minutes * 60_000
