"""The small values that every layer uses: partitions, offsets, nodes, records."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeVar

T = TypeVar("T")

_HEADERS = "headers"

UNKNOWN_MEMBER_ID = ""
"""The member id of a consumer that has not joined yet (J5)."""

UNKNOWN_GENERATION_ID = -1
NO_LEADER_EPOCH = -1

CONSUMER_PROTOCOL_TYPE = "consumer"

GROUP_METADATA_TOPIC = "__consumer_offsets"
"""The internal topic in which coordinators keep groups and their offsets."""

TRANSACTION_STATE_TOPIC = "__transaction_state"
"""The internal topic in which coordinators keep transactional ids."""

GROUP_EVENTS_TOPIC = "__group_events"
"""The internal topic in which muster's brokers record what happened to groups, and why."""

INTERNAL_TOPICS = frozenset({GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC, "__share_group_state", GROUP_EVENTS_TOPIC})
"""The brokers' own topics: listed only on request; clients cannot write to them."""


class TopicPartition(NamedTuple):
    """One partition of one topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class Descriptor(Protocol):
    """An open file."""

    def fileno(self) -> int:
        """The file descriptor's number."""


class FileRange:
    """Bytes of a file that never change: a view of them, and their position in the file, so that the kernel can send
    them without a copy. The file stays open as long as a range refers to it."""

    __slots__ = ("file", "start", "view")

    def __init__(self, file: Descriptor, start: int, view: memoryview) -> None:
        self.file = file
        self.start = start
        self.view = view

    def __len__(self) -> int:
        return len(self.view)

    def __bytes__(self) -> bytes:
        return bytes(self.view)

    def without_first(self, count: int) -> FileRange:
        """The range without its first `count` bytes."""
        return FileRange(self.file, self.start + count, self.view[count:])


class OffsetAndMetadata(NamedTuple):
    """A committed position: the offset of the next record to read, and the metadata that was committed with it."""

    offset: int
    leader_epoch: int = NO_LEADER_EPOCH
    metadata: str = ""


class OffsetAndTimestamp(NamedTuple):
    """The first offset whose timestamp is at or after the requested one (milliseconds since the epoch)."""

    offset: int
    timestamp: int
    leader_epoch: int = NO_LEADER_EPOCH


class Node(NamedTuple):
    """A broker's id and advertised address."""

    node_id: int
    host: str
    port: int
    rack: str | None = None

    def __str__(self) -> str:
        place = f"{self.host}:{self.port}"
        return f"{place} (id {self.node_id})" if self.node_id >= 0 else place  # a bootstrap address has no id yet


Headers = list[tuple[str, bytes | None]]


def headers_on_demand(kind: type[T]) -> type[T]:
    """Create a record's empty list of headers only when it is first read: most never are.

    For a class with a slot `headers`. Not done with `__getattr__`, which would slow down every attribute.
    """
    slot = vars(kind)[_HEADERS]

    def headers(record: object) -> Headers:
        try:
            found: Headers = slot.__get__(record)
        except AttributeError:
            found = []
            slot.__set__(record, found)
        return found

    setattr(kind, _HEADERS, property(headers, slot.__set__))
    return kind


@headers_on_demand
@dataclass(slots=True)
class ConsumerRecord:
    """A record as a consumer receives it.

    `key` and `value` are bytes or None, or what the consumer's deserializers returned. `timestamp` is in
    milliseconds since the epoch; `timestamp_type` 0 is CreateTime, 1 LogAppendTime.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int
    timestamp_type: int
    key: Any
    value: Any
    headers: Headers = field(default_factory=list)
    leader_epoch: int = NO_LEADER_EPOCH


class PartitionInfo(NamedTuple):
    """Where a partition is hosted. `leader` is None while there is none; `replicas` and `isr` are broker ids."""

    topic: str
    partition: int
    leader: Node | None
    replicas: tuple[int, ...] = ()
    isr: tuple[int, ...] = ()


class GroupMetadata(NamedTuple):
    """A consumer's member id and generation, as a transactional producer needs them (KIP-447)."""

    group_id: str
    generation_id: int = UNKNOWN_GENERATION_ID
    member_id: str = UNKNOWN_MEMBER_ID
    group_instance_id: str | None = None


class RecordMetadata(NamedTuple):
    """Where a produced record was written. `offset` is -1 with acks=0; `timestamp` in milliseconds."""

    topic: str
    partition: int
    offset: int
    timestamp: int
