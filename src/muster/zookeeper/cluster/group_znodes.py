"""The znodes of groups whose coordinators keep them in ZooKeeper: names and contents.

    /muster/groups/[slot]/[name]        what the group is: the coordinator's record of it
    /muster/groups/[slot]/[name]~[n]    some of its committed offsets, up to fifty
    /muster/groups/[slot]/[name]~t[producer id]-[n]
                                        offsets that are part of a producer's open transaction, up to fifty

The contents are the coordinator's own records, keys and values as `__consumer_offsets` has them (`group_records.py`),
in one record batch, which has a version, a checksum and compression. So any program that reads `__consumer_offsets` can
read these, and a group can be moved from one place to the other. The batch of a pending znode is transactional, with
the producer's id and epoch; a header of each record has its position in the order of all pending commits of the slot. A
record without a value was superseded by a later commit.

A group id may be any text. In a name, everything except letters, digits, `.`, `_` and `-` is escaped as in a URL; a
long name is cut, and a hash of the whole name is added. Nothing reads a group id from a name: the records have it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple
from urllib.parse import quote

from muster.errors import CorruptRecordError
from muster.protocol.records.compression import Compression
from muster.protocol.records.record_batch import (
    BatchBuilder,
    BatchHeader,
    Record,
    check_batch,
    iter_headers,
    read_records,
)
from muster.zookeeper.base.operations import MAX_DATA_BYTES
from muster.zookeeper.base.znode_json import Unreadable
from muster.zookeeper.base.znodes import (
    GROUPS,
)

COMPRESS_ABOVE = 64 * 1024
"""Bytes. Smaller znodes are written as they are: compressing them would take longer than ZooKeeper does."""

MAX_UNPACKED_BYTES = 64 * 1024 * 1024
"""The most bytes that a group's znode may decompress to."""

MAX_ZNODE_BYTES = MAX_DATA_BYTES - 16 * 1024
"""The most bytes written to one znode; the rest of a request is left for paths and for the check of the epoch."""

NAME_CHARACTERS = 200
_KEPT_OF_A_LONG_NAME = 100

_OFFSETS_NAME = re.compile(r"(.+)~(?:t(0|[1-9][0-9]{0,18})-)?(0|[1-9][0-9]{0,8})\Z")
_ORDER = "order"


def groups_path(slot: int) -> str:
    """The parent of a slot's groups."""
    return f"{GROUPS}/{slot}"


def group_name(group_id: str) -> str:
    """The name of a group's znode, different for each group id."""
    name = quote(group_id, safe="", errors="surrogatepass").replace("~", "%7E") or "%"
    if name.startswith("."):
        name = "%2E" + name[1:]  # neither '.' nor '..'
    if len(name) > NAME_CHARACTERS:
        hashed = hashlib.sha256(group_id.encode(errors="surrogatepass")).hexdigest()
        name = f"{name[:_KEPT_OF_A_LONG_NAME]}={hashed}"
    return name


def offsets_name(name: str, number: int) -> str:
    """The name of one of the znodes with a group's offsets."""
    return f"{name}~{number}"


def pending_name(name: str, producer_id: int, number: int) -> str:
    """The name of one of the znodes with offsets of a group that are part of a producer's transaction."""
    return f"{name}~t{producer_id}-{number}"


class ZnodeName(NamedTuple):
    """A znode among a slot's groups: its group, and its number if it has offsets, None if it is the group's own.
    `producer_id`: the producer of the transaction that the offsets are part of."""

    group: str
    number: int | None
    producer_id: int | None = None


def read_name(name: str) -> ZnodeName:
    """The parsed name."""
    found = _OFFSETS_NAME.match(name)
    if found is None:
        return ZnodeName(name, None)
    return ZnodeName(found[1], int(found[3]), None if found[2] is None else int(found[2]))


def encode_records(records: Mapping[bytes, bytes], now: int) -> bytes:
    """The contents of a znode, with `now` as their time."""
    batch = BatchBuilder()
    for key, value in records.items():
        batch.append(now, key, value)
    compression = Compression.GZIP if batch.size > COMPRESS_ABOVE else Compression.NONE
    return bytes(batch.build(compression=compression))


def read_znode(path: str, data: bytes | None) -> dict[bytes, bytes] | Unreadable:
    """The records in a znode, by key."""
    try:
        return dict(_records(data or b""))
    except CorruptRecordError as error:
        return Unreadable(path, str(error))


def _records(data: bytes) -> Iterable[tuple[bytes, bytes]]:
    for _, record in _all_records(data):
        if record.key is None or record.value is None:
            raise CorruptRecordError("a record has no key or no value")
        yield record.key, record.value


def _all_records(data: bytes) -> Iterable[tuple[BatchHeader, Record]]:
    end = 0
    for position, header in iter_headers(data):
        check_batch(data, position, header)
        for record in read_records(data, position, header, MAX_UNPACKED_BYTES):
            yield header, record
        end = position + header.size
    if end != len(data) or not end:
        raise CorruptRecordError(f"of {len(data)} bytes, {end} are records")


class PendingOffsetsZnode(NamedTuple):
    """What a pending znode holds: keys, values (None: superseded), positions in the order of commits."""

    producer_id: int
    producer_epoch: int
    records: list[tuple[bytes, bytes | None, int]]


def encode_pending(
    records: Iterable[tuple[bytes, bytes | None, int]], now: int, producer_id: int, producer_epoch: int
) -> bytes:
    """The contents of a pending znode."""
    batch = BatchBuilder()
    for key, value, order in records:
        batch.append(now, key, value, [(_ORDER, order.to_bytes(8, "big"))])
    compression = Compression.GZIP if batch.size > COMPRESS_ABOVE else Compression.NONE
    return bytes(transactional_batch(batch, producer_id, producer_epoch, compression))


def transactional_batch(
    batch: BatchBuilder, producer_id: int, producer_epoch: int, compression: Compression = Compression.NONE
) -> bytearray:
    """A batch of a producer's transaction, as coordinators of groups write them."""
    return batch.build(
        compression=compression,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=0,
        transactional=True,
    )


def read_pending(path: str, data: bytes | None) -> PendingOffsetsZnode | Unreadable:
    """The records in a pending znode."""
    records: list[tuple[bytes, bytes | None, int]] = []
    producer = (-1, -1)
    try:
        for header, record in _all_records(data or b""):
            producer = header.producer_id, header.producer_epoch
            order = dict(record.headers).get(_ORDER)
            if record.key is None or order is None or len(order) != 8:
                raise CorruptRecordError("a pending offset has no key, or no position in the order of commits")
            records.append((record.key, record.value, int.from_bytes(order, "big")))
    except CorruptRecordError as error:
        return Unreadable(path, str(error))
    return PendingOffsetsZnode(*producer, records)


def fits(key: bytes, value: bytes, most: int = MAX_ZNODE_BYTES) -> bool:
    """Whether the record of a group can be written: it has to fit into one znode, compressed if it is large, and to be
    readable again."""
    size = len(key) + len(value)
    if size <= most - 1024:
        return True
    return size < MAX_UNPACKED_BYTES - 1024 and len(encode_records({key: value}, 0)) <= most
