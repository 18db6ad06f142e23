"""The kinds of records in `__consumer_offsets` by Kafka's names, and those that muster does not write, with types.

muster's coordinator skips them (`group_records.decode_coordinated`), so a broker does not load this module.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Final, NamedTuple, TypeAlias

from muster.errors import UnsupportedVersionError
from muster.protocol import codec, group_messages
from muster.protocol import group_messages as g
from muster.protocol.primitives import Buffer


class RecordKind(IntEnum):
    """The kind in the first two bytes of a record's key: Kafka's CoordinatorRecordType."""

    LEGACY_OFFSET_COMMIT = 0
    OFFSET_COMMIT = 1
    GROUP_METADATA = 2
    CONSUMER_GROUP_METADATA = 3
    CONSUMER_GROUP_PARTITION_METADATA = 4
    CONSUMER_GROUP_MEMBER_METADATA = 5
    CONSUMER_GROUP_TARGET_ASSIGNMENT_METADATA = 6
    CONSUMER_GROUP_TARGET_ASSIGNMENT_MEMBER = 7
    CONSUMER_GROUP_CURRENT_MEMBER_ASSIGNMENT = 8
    SHARE_GROUP_MEMBER_METADATA = 10
    SHARE_GROUP_METADATA = 11
    SHARE_GROUP_TARGET_ASSIGNMENT_METADATA = 12
    SHARE_GROUP_TARGET_ASSIGNMENT_MEMBER = 13
    SHARE_GROUP_CURRENT_MEMBER_ASSIGNMENT = 14
    SHARE_GROUP_STATE_PARTITION_METADATA = 15
    CONSUMER_GROUP_REGULAR_EXPRESSION = 16
    STREAMS_GROUP_METADATA = 17
    STREAMS_GROUP_MEMBER_METADATA = 19
    STREAMS_GROUP_TARGET_ASSIGNMENT_METADATA = 20
    STREAMS_GROUP_TARGET_ASSIGNMENT_MEMBER = 21
    STREAMS_GROUP_CURRENT_MEMBER_ASSIGNMENT = 22
    STREAMS_GROUP_TOPOLOGY = 23

    @property
    def kafka_name(self) -> str:
        """The name in Kafka's schemas: `ConsumerGroupMetadata`."""
        return "".join(map(str.capitalize, self.name.split("_")))


KIND_NAMES: Final[dict[int, str]] = {int(kind): kind.kafka_name for kind in RecordKind}


def kind_name(kind: int) -> str:
    """The name of a kind; `kind 42` for an unknown one."""
    return KIND_NAMES.get(kind) or f"kind {kind}"


ConsumerGroupKey: TypeAlias = (
    g.ConsumerGroupMetadataKey
    | g.ConsumerGroupPartitionMetadataKey
    | g.ConsumerGroupMemberMetadataKey
    | g.ConsumerGroupTargetAssignmentMetadataKey
    | g.ConsumerGroupTargetAssignmentMemberKey
    | g.ConsumerGroupCurrentMemberAssignmentKey
    | g.ConsumerGroupRegularExpressionKey
)
ConsumerGroupValue: TypeAlias = (
    g.ConsumerGroupMetadataValue
    | g.ConsumerGroupPartitionMetadataValue
    | g.ConsumerGroupMemberMetadataValue
    | g.ConsumerGroupTargetAssignmentMetadataValue
    | g.ConsumerGroupTargetAssignmentMemberValue
    | g.ConsumerGroupCurrentMemberAssignmentValue
    | g.ConsumerGroupRegularExpressionValue
)
ShareGroupKey: TypeAlias = (
    g.ShareGroupMemberMetadataKey
    | g.ShareGroupMetadataKey
    | g.ShareGroupTargetAssignmentMetadataKey
    | g.ShareGroupTargetAssignmentMemberKey
    | g.ShareGroupCurrentMemberAssignmentKey
    | g.ShareGroupStatePartitionMetadataKey
)
ShareGroupValue: TypeAlias = (
    g.ShareGroupMemberMetadataValue
    | g.ShareGroupMetadataValue
    | g.ShareGroupTargetAssignmentMetadataValue
    | g.ShareGroupTargetAssignmentMemberValue
    | g.ShareGroupCurrentMemberAssignmentValue
    | g.ShareGroupStatePartitionMetadataValue
)
StreamsGroupKey: TypeAlias = (
    g.StreamsGroupMetadataKey
    | g.StreamsGroupMemberMetadataKey
    | g.StreamsGroupTargetAssignmentMetadataKey
    | g.StreamsGroupTargetAssignmentMemberKey
    | g.StreamsGroupCurrentMemberAssignmentKey
    | g.StreamsGroupTopologyKey
)
StreamsGroupValue: TypeAlias = (
    g.StreamsGroupMetadataValue
    | g.StreamsGroupMemberMetadataValue
    | g.StreamsGroupTargetAssignmentMetadataValue
    | g.StreamsGroupTargetAssignmentMemberValue
    | g.StreamsGroupCurrentMemberAssignmentValue
    | g.StreamsGroupTopologyValue
)


class TypedRecord(NamedTuple):
    """A record of a consumer (KIP-848), share or streams group; `value` None is a tombstone."""

    kind: RecordKind
    key: ConsumerGroupKey | ShareGroupKey | StreamsGroupKey
    value: ConsumerGroupValue | ShareGroupValue | StreamsGroupValue | None


FIRST_TYPED_KIND = RecordKind.CONSUMER_GROUP_METADATA
CLASSES: Final[dict[int, tuple[RecordKind, Any, Any]]] = {
    int(kind): (
        kind,
        getattr(group_messages, f"{kind.kafka_name}Key"),
        getattr(group_messages, f"{kind.kafka_name}Value"),
    )
    for kind in RecordKind
    if kind >= FIRST_TYPED_KIND
}
"""By kind: the classes of key and value."""


def decode_typed(kind: int, key: Buffer, value: Buffer | None) -> TypedRecord | None:
    """The record of a key and a value; None if its kind, or the version of its value, is not known.

    Raises:
        ProtocolError: the bytes of a known kind are broken.
    """
    found = CLASSES.get(kind)
    if found is None:
        return None
    known, key_class, value_class = found
    decoded = codec.decode(key_class, 0, key, 2)
    if value is None:
        return TypedRecord(known, decoded, None)
    try:
        return TypedRecord(known, decoded, codec.decode_versioned(value_class, value))
    except UnsupportedVersionError:
        return None
