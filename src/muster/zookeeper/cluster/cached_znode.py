"""A znode as the journal of its slot knows it: what it should hold, and which version of it ZooKeeper has."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from muster.protocol.group_records import LEGACY_OFFSET_COMMIT, OFFSET_COMMIT
from muster.zookeeper.cluster.group_znodes import MAX_ZNODE_BYTES, encode_pending, encode_records, group_name

OFFSETS_OF_A_ZNODE = 50
MAX_OFFSET_METADATA = 4_096
"""How many characters of metadata a znode has room for in each of its offsets."""

LARGEST_VALUE = 4 * MAX_OFFSET_METADATA + 128

VOID = b""
"""The value of a pending offset that a later commit has superseded."""


class CachedZnode:
    """A znode with records of a group."""

    __slots__ = ("group", "is_offsets", "leaving", "name", "path", "records", "room", "version")

    def __init__(self, group: str, name: str, path: str, version: int | None = None, is_offsets: bool = False) -> None:
        self.group = group
        self.name = name
        self.path = path
        self.version = version
        """The version of the znode; None while it does not exist."""
        self.is_offsets = is_offsets
        self.records: dict[bytes, bytes] = {}
        self.leaving: set[bytes] = set()
        """Keys of removed records that ZooKeeper may still have."""
        self.room = MAX_ZNODE_BYTES - 1024
        """Bytes that would remain if every value had its maximum size."""

    def encode(self, now: int) -> bytes:
        """Its contents, with `now` as their time."""
        return encode_records(self.records, now)

    def takes(self, key: bytes) -> bool:
        """Whether another offset fits, even if the existing ones grow later."""
        count = len(self.records) + len(self.leaving)
        return count < OFFSETS_OF_A_ZNODE and len(key) + LARGEST_VALUE <= self.room

    def put(self, key: bytes, value: bytes) -> None:
        if key in self.leaving:
            self.leaving.remove(key)
        elif key not in self.records:
            self.room -= len(key) + LARGEST_VALUE
        self.records[key] = value

    def remove(self, key: bytes) -> None:
        if self.records.pop(key, None) is not None:
            self.leaving.add(key)

    def left(self, keys: Iterable[bytes]) -> set[bytes]:
        """ZooKeeper no longer has these keys; returns those that have not been added again."""
        left = self.leaving.intersection(keys)
        self.leaving -= left
        self.room += sum(len(key) + LARGEST_VALUE for key in left)
        return left


class PendingZnode(CachedZnode):
    """Offsets of a group that are part of a producer's open transaction."""

    __slots__ = ("orders", "producer_epoch", "producer_id")

    def __init__(
        self, group: str, name: str, path: str, producer_id: int, producer_epoch: int, version: int | None = None
    ) -> None:
        super().__init__(group, name, path, version, is_offsets=True)
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.orders: dict[bytes, int] = {}
        """Each offset's position in the order of all pending commits of the slot."""

    def encode(self, now: int) -> bytes:
        """See `CachedZnode.encode`."""
        records = [(key, value or None, self.orders[key]) for key, value in self.records.items()]
        return encode_pending(records, now, self.producer_id, self.producer_epoch)


def is_offset(key: bytes) -> bool:
    """Whether a record is a committed offset."""
    return key[:2] in _OFFSET_KINDS


def offset_fits(key: bytes, value: bytes) -> bool:
    """Whether a znode can hold another committed offset."""
    return len(value) <= LARGEST_VALUE and len(key) <= MAX_ZNODE_BYTES // 2


_OFFSET_KINDS = tuple(kind.to_bytes(2, "big") for kind in (LEGACY_OFFSET_COMMIT, OFFSET_COMMIT))


def is_of_group(key: bytes, group: str) -> bool:
    """Whether a record belongs to the group with this name."""
    try:
        return group_of(key) == group
    except UnicodeDecodeError:
        return False


def group_of(key: bytes) -> str:
    """The name of the group to which a record belongs: in each kind of key, the group's id comes first."""
    return _name(key[4 : 4 + int.from_bytes(key[2:4], "big")])


@lru_cache(maxsize=4096)
def _name(group_id: bytes) -> str:
    return group_name(group_id.decode(errors="surrogatepass"))
