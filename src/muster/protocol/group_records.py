"""Keys and values of `__consumer_offsets`, as Apache Kafka 4.2 writes them.

A record's key begins with an int16, the kind of the record; the message after it has version 0. Kinds 0 and 1 are both
an offset commit (Kafka before 0.9 wrote 0), 2 is a group of the classic protocol. The value begins with its own
version, an int16 too, or is null: a tombstone, which removes the key's state.

The other kinds (of consumer groups of KIP-848, share and streams groups) are in `record_kinds.py`. The coordinator
does not decode them: `decode_coordinated` returns an `UnknownRecord` for them, as for records of a newer Kafka. Their
bytes are kept unchanged, and broken ones do no harm. Readers of the whole topic use `decode_record`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from struct import Struct
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from muster.errors import ProtocolError, UnsupportedVersionError
from muster.protocol import codec
from muster.protocol.messages import GroupMetadataKey, GroupMetadataValue, OffsetCommitKey, OffsetCommitValue
from muster.protocol.primitives import ZERO_UUID, Buffer
from muster.protocol.records.record_batch import BatchBuilder
from muster.protocol.records.varints import varint

if TYPE_CHECKING:
    from muster.protocol.record_kinds import TypedRecord

LEGACY_OFFSET_COMMIT = 0
OFFSET_COMMIT = 1
GROUP_METADATA = 2

OFFSET_COMMIT_VALUE_VERSION = 4
OFFSET_COMMIT_VALUE_VERSION_WITH_EXPIRY = 1
GROUP_METADATA_VALUE_VERSION = 3
"""The versions that a Kafka 4.2 broker writes; all older ones are read.

Only version 1 of an offset commit can hold a retention time, so it is still written for commits that carry one
(OffsetCommit version 2 to 4).
"""

_INT16 = Struct(">h")
_INT32 = Struct(">i")
_COMMIT_HEAD = Struct(">hqiB")
_COMMIT_TAIL = Struct(">qB")
_USUAL_COMMIT = Struct(">i3sqi11s")
_USUAL_HEAD = Struct(">Bh").pack(2 * (_USUAL_COMMIT.size - _INT32.size - 2), OFFSET_COMMIT_VALUE_VERSION)
"""How the usual value begins: its length as a varint, its version."""
_USUAL_TAIL = Struct(">BqBB")
"""No metadata, the time, no tags, no headers."""


CommittedOffset: TypeAlias = tuple[int, int, str, int, int, bytes]
"""The fields of `OffsetCommitValue`: offset, leader epoch, metadata, times of commit and expiry, topic id."""


class OffsetCommitRecord(NamedTuple):
    """What a group has committed for one partition; `value` None is a tombstone."""

    key: OffsetCommitKey
    value: OffsetCommitValue | None


@dataclass(slots=True)
class OffsetCommits:
    """What one request commits for partitions of a topic: an OffsetCommitRecord for each, in order."""

    group: str
    topic: str
    values: list[tuple[int, CommittedOffset]]

    def records(self) -> list[OffsetCommitRecord]:
        return [
            OffsetCommitRecord(OffsetCommitKey(self.group, self.topic, partition), OffsetCommitValue(*value))
            for partition, value in self.values
        ]


class GroupMetadataRecord(NamedTuple):
    """A group of the classic protocol at one generation; `value` None is a tombstone."""

    key: GroupMetadataKey
    value: GroupMetadataValue | None


def most_bytes(record: GroupMetadataRecord) -> int:
    """An upper bound of the encoded size of a group's record, without encoding it: a few calls, however many
    members."""
    group = record.value
    if group is None:
        return 0
    members = group.members
    blobs = len(b"".join([member.subscription for member in members] + [member.assignment for member in members]))
    # A member id begins with the instance id, or, without one, with the client id.
    names = len("".join([f"{member.client_id}{member.group_instance_id or ''}" for member in members]))
    texts = len(record.key.group) + len(group.protocol_type) + len(group.protocol or "") + len(group.leader or "")
    return blobs + 8 * names + 4 * texts + 2_000 * (len(members) + 1)


class UnknownRecord(NamedTuple):
    """A record of an unknown kind, or with an unknown version: its bytes, unchanged."""

    key_type: int
    key: bytes
    value: bytes | None


CoordinatedRecord: TypeAlias = OffsetCommitRecord | GroupMetadataRecord | UnknownRecord
Written: TypeAlias = CoordinatedRecord | OffsetCommits
"""Records that are written together and applied together."""


def append_records(batch: BatchBuilder, timestamp: int, written: Written) -> None:
    """Add records to a batch, with this timestamp."""
    if isinstance(written, OffsetCommits):
        _append_commits(batch, timestamp, written)
    else:
        batch.append(timestamp, *encode_record(written))


def encode_record(record: CoordinatedRecord) -> tuple[bytes, bytes | None]:
    """Key and value of a record."""
    if isinstance(record, UnknownRecord):
        return record.key, record.value
    if isinstance(record, OffsetCommitRecord):
        return _encode_offset_commit(record)
    key = codec.encode_prefixed(GROUP_METADATA, record.key, 0)
    if record.value is None:
        return key, None
    return key, codec.encode_prefixed(GROUP_METADATA_VALUE_VERSION, record.value, GROUP_METADATA_VALUE_VERSION)


def _append_commits(batch: BatchBuilder, timestamp: int, commits: OffsetCommits) -> None:
    # Every commit of every partition passes through here, so the usual case is one `pack`: partition, length of the
    # value, value without metadata, no tags, no headers.
    pack, usual, at, tail = _USUAL_COMMIT.pack, _USUAL_HEAD, None, b""
    ends, size = [], _USUAL_COMMIT.size
    for partition, value in commits.values:
        offset, leader_epoch, metadata, commit_timestamp, expire_timestamp, topic_id = value
        if metadata or expire_timestamp != -1 or topic_id != ZERO_UUID:
            ends.append(_encode_unusual_commit(partition, OffsetCommitValue(*value)))
            size = 0
        else:
            if commit_timestamp != at:
                at = commit_timestamp
                tail = _USUAL_TAIL.pack(1, at, 0, 0)
            ends.append(pack(partition, usual, offset, leader_epoch, tail))
    batch.append_encoded(timestamp, _commit_start(commits.group, commits.topic), ends, size)


def _encode_unusual_commit(partition: int, value: OffsetCommitValue) -> bytes:
    encoded = _encode_commit_value(value)
    return b"%b%b%b\0" % (_INT32.pack(partition), varint(len(encoded)), encoded)


def _encode_offset_commit(record: OffsetCommitRecord) -> tuple[bytes, bytes | None]:
    key, value = record
    encoded_key = _commit_key_head(key.group, key.topic) + _INT32.pack(key.partition)
    return encoded_key, None if value is None else _encode_commit_value(value)


def _encode_commit_value(value: OffsetCommitValue) -> bytes:
    if value.expire_timestamp != -1:
        return codec.encode_prefixed(
            OFFSET_COMMIT_VALUE_VERSION_WITH_EXPIRY, value, OFFSET_COMMIT_VALUE_VERSION_WITH_EXPIRY
        )
    metadata = value.metadata.encode()
    if len(metadata) > 126 or value.topic_id != ZERO_UUID:
        return codec.encode_prefixed(OFFSET_COMMIT_VALUE_VERSION, value, OFFSET_COMMIT_VALUE_VERSION)
    head = _COMMIT_HEAD.pack(OFFSET_COMMIT_VALUE_VERSION, value.offset, value.leader_epoch, len(metadata) + 1)
    return head + metadata + _COMMIT_TAIL.pack(value.commit_timestamp, 0)


@lru_cache(maxsize=4096)
def _commit_key_head(group: str, topic: str) -> bytes:
    """The key of an offset commit up to the partition, which comes last."""
    return codec.encode_prefixed(OFFSET_COMMIT, OffsetCommitKey(group, topic), 0)[: -_INT32.size]


@lru_cache(maxsize=4096)
def _commit_start(group: str, topic: str) -> bytes:
    """The same, with the length of the whole key in front, as in a record."""
    head = _commit_key_head(group, topic)
    return varint(len(head) + _INT32.size) + head


def decode_record(key: Buffer | None, value: Buffer | None) -> CoordinatedRecord | TypedRecord:
    """The record of a key and a value, of any kind.

    Raises:
        ProtocolError: the bytes of a known kind are broken, or there is no key.
    """
    from muster.protocol.record_kinds import decode_typed  # imported here, so that a broker does not load it

    record = decode_coordinated(key, value)
    if type(record) is UnknownRecord:
        return decode_typed(record.key_type, record.key, record.value) or record
    return record


def decode_coordinated(key: Buffer | None, value: Buffer | None) -> CoordinatedRecord:
    """Like `decode_record`, for a coordinator: records of kinds that it does not coordinate are not decoded.

    Raises:
        ProtocolError: the bytes of an offset commit or of a classic group are broken, or there is no key.
    """
    if key is None or len(key) < _INT16.size:
        raise ProtocolError("a record of __consumer_offsets has no key, or one without a kind")
    kind: int = _INT16.unpack_from(key)[0]
    try:
        if kind in (LEGACY_OFFSET_COMMIT, OFFSET_COMMIT):
            return OffsetCommitRecord(codec.decode(OffsetCommitKey, 0, key, 2), _read(OffsetCommitValue, value))
        if kind == GROUP_METADATA:
            return GroupMetadataRecord(codec.decode(GroupMetadataKey, 0, key, 2), _read(GroupMetadataValue, value))
    except UnsupportedVersionError:
        pass  # written by a Kafka newer than this table
    return UnknownRecord(kind, bytes(key), None if value is None else bytes(value))


def _read(cls: Any, value: Buffer | None) -> Any:
    return None if value is None else codec.decode_versioned(cls, value)
