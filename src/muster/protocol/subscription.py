"""The consumer protocol: the bytes that members and their leader exchange through JoinGroup and SyncGroup.

To a coordinator these are opaque bytes (J3, J4): a version and, after it, a Subscription (member to leader) or an
Assignment (leader to member), as in Kafka's ConsumerProtocol. Version 1 added the owned partitions (KIP-429), 2 their
generation, 3 the member's rack (KIP-881). New versions only add fields at the end, so bytes of a newer version are read
as the newest known one, and the rest is ignored.

`Subscription` and `Assignment` are this package's own values: `muster.assignors` is a sibling, which this package
does not import, and its `MemberSubscription` carries a `group_instance_id`, which these bytes do not hold.

No user data (`b""`) is written as null, as Java's members do when their assignor has none; null is read as `b""`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from struct import Struct, unpack_from
from struct import error as struct_error

from muster.errors import ProtocolError
from muster.model import UNKNOWN_GENERATION_ID, TopicPartition
from muster.protocol import codec
from muster.protocol.messages import (
    ConsumerProtocolAssignment,
    ConsumerProtocolAssignmentTopicPartition,
    ConsumerProtocolSubscription,
    ConsumerProtocolSubscriptionTopicPartition,
)

NEWEST_VERSION = 3

_INT32 = Struct(">i")


@dataclass(slots=True)
class Subscription:
    """What a member sends to the leader. `generation_id` is that of `owned_partitions`, -1 if it is not known."""

    topics: list[str]
    owned_partitions: list[TopicPartition] = field(default_factory=list)
    generation_id: int = UNKNOWN_GENERATION_ID
    rack_id: str | None = None
    user_data: bytes = b""


@dataclass(slots=True)
class Assignment:
    """What the leader sends to a member."""

    partitions: list[TopicPartition] = field(default_factory=list)
    user_data: bytes = b""


def encode_subscription(subscription: Subscription, version: int = NEWEST_VERSION) -> bytes:
    """Topics and owned partitions are sorted, so that equal subscriptions are equal bytes.

    The coordinator compares these bytes: a difference in them is "changed metadata", which rebalances the group (C5).
    """
    owned = [
        ConsumerProtocolSubscriptionTopicPartition(topic, partitions)
        for topic, partitions in _by_topic(sorted(subscription.owned_partitions)).items()
    ]
    message = ConsumerProtocolSubscription(
        topics=sorted(subscription.topics),
        user_data=subscription.user_data or None,
        owned_partitions=owned,
        generation_id=subscription.generation_id,
        rack_id=subscription.rack_id,
    )
    return codec.encode_prefixed(version, message, version)


def decode_subscription(data: bytes) -> Subscription:
    """Read a subscription of any version.

    Raises: ProtocolError: the bytes are truncated, or not in this format.
    """
    message = codec.decode(ConsumerProtocolSubscription, _version(data), data, 2)
    return Subscription(
        topics=message.topics,
        owned_partitions=_flat((found.topic, found.partitions) for found in message.owned_partitions),
        generation_id=message.generation_id,
        rack_id=message.rack_id or None,
        user_data=bytes(message.user_data or b""),
    )


def owned_before(subscription: Subscription) -> tuple[list[TopicPartition], int]:
    """The partitions that a member owned when it joined, and their generation (-1: unknown), wherever its subscription
    has them.

    Versions 1 and 2 of the subscription have fields for that. Sticky assignors put them in the user data before that,
    and still do: Java's cooperative one only the generation, its eager one and librdkafka's an array of (topic,
    partitions) and, since version 1 of that, the generation.
    """
    owned, generation_id, user_data = subscription.owned_partitions, subscription.generation_id, subscription.user_data
    if generation_id != UNKNOWN_GENERATION_ID or not user_data:
        return owned, generation_id
    if len(user_data) == _INT32.size:
        return owned, int(_INT32.unpack(user_data)[0])
    try:
        previous, generation_id = _previous_assignment(user_data)
    except (struct_error, ValueError):
        return owned, UNKNOWN_GENERATION_ID  # from an unknown assignor
    return owned or previous, generation_id


def _previous_assignment(data: bytes) -> tuple[list[TopicPartition], int]:
    (topics,) = _INT32.unpack_from(data)
    if topics < 0:
        raise ValueError("a negative number of topics")
    found: list[TopicPartition] = []
    at = _INT32.size
    for _ in range(topics):
        (size,) = unpack_from(">H", data, at)
        topic = data[at + 2 : at + 2 + size].decode()
        at += 2 + size
        (count,) = _INT32.unpack_from(data, at)
        at += _INT32.size
        if not 0 <= count <= (len(data) - at) // _INT32.size:
            raise ValueError("more partitions than there are bytes")
        found += [TopicPartition(topic, number) for number in unpack_from(f">{count}i", data, at)]
        at += _INT32.size * count
    if len(data) - at not in (0, _INT32.size):
        raise ValueError("unknown bytes after the topics")
    return found, int(_INT32.unpack_from(data, at)[0]) if at < len(data) else UNKNOWN_GENERATION_ID


def subscribed_topics(data: bytes) -> list[str]:
    """The topics of a subscription of any version, all of which begin like version 0; the rest is ignored.

    Raises:
        ProtocolError: the bytes are truncated, or not in this format.
    """
    _version(data)
    return codec.decode(ConsumerProtocolSubscription, 0, data, 2).topics


def encode_assignment(
    partitions: Iterable[TopicPartition], user_data: bytes = b"", version: int = NEWEST_VERSION
) -> bytes:
    """Encode an assignment. Topics are in the order in which `partitions` first names them."""
    return encode_assignment_by_topic(_by_topic(partitions), user_data, version)


def encode_assignment_by_topic(
    by_topic: Mapping[str, list[int]], user_data: bytes = b"", version: int = NEWEST_VERSION
) -> bytes:
    """`encode_assignment`, from partition numbers by topic."""
    message = ConsumerProtocolAssignment(
        assigned_partitions=[
            ConsumerProtocolAssignmentTopicPartition(topic, numbers) for topic, numbers in by_topic.items()
        ],
        user_data=user_data or None,
    )
    return codec.encode_prefixed(version, message, version)


def decode_assignment(data: bytes) -> Assignment:
    """Read an assignment of any version. A member without an assignment gets no bytes at all, which means no
    partitions.

    Raises: ProtocolError: the bytes are truncated, or not in this format.
    """
    if not data:
        return Assignment()
    message = codec.decode(ConsumerProtocolAssignment, _version(data), data, 2)
    return Assignment(
        partitions=_flat((found.topic, found.partitions) for found in message.assigned_partitions),
        user_data=bytes(message.user_data or b""),
    )


def _version(data: bytes) -> int:
    """The version to decode with: the first two bytes, or the newest known one if that is newer."""
    try:
        (version,) = unpack_from(">h", data)
    except struct_error:
        raise ProtocolError("the version of the consumer protocol is truncated") from None
    if version < 0:
        raise ProtocolError(f"the consumer protocol has no version {version}")
    return min(int(version), NEWEST_VERSION)


def _by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    by_topic: dict[str, list[int]] = {}
    for topic, partition in partitions:
        by_topic.setdefault(topic, []).append(partition)
    return by_topic


def _flat(by_topic: Iterable[tuple[str, list[int]]]) -> list[TopicPartition]:
    return [TopicPartition(topic, number) for topic, numbers in by_topic for number in numbers]
