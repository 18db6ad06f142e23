"""The open transactions of a slot: offsets that groups have only when a producer's transaction is committed.

In a log, the order of records decides: the last commit for a partition counts, whether in a transaction or not, and a
marker commits or drops what its producer wrote before it. Here each pending offset is a record in a znode of its
producer and group (`PendingZnode`), with its position in the order of all pending commits of the slot, and the state of
the znodes says what the order of a log would:

- a commit without a transaction marks the pending offsets for its partition as superseded, in the same multi;
- an offset of a committed transaction does the same to those with an earlier position;
- when an offset is removed, so are the pending ones for its partition.

A marker is one multi for each group: it writes the offsets and deletes the pending znodes that had them. If these do
not fit into one multi, the pending znodes are deleted last (`GroupJournal.write_marker`): until then the partitions
count as unstable, and the coordinator of the transaction, which has had no answer, sends the marker again.

Everything else about producers is only in memory: epochs of ended transactions, and guards. A commit that begins a
transaction must have been verified by its coordinator under a guard of this journal, so a slot's move does not let a
producer continue with an old epoch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

from muster.coordinator.shards.store import Piece, Stored
from muster.errors import ErrorCode, KafkaError
from muster.protocol.records.control_records import TxnMarker, end_marker
from muster.protocol.records.record_batch import BatchBuilder, BatchHeader, read_header
from muster.zookeeper.base.znode_json import Unreadable
from muster.zookeeper.cluster.cached_znode import VOID, PendingZnode, is_of_group, is_offset
from muster.zookeeper.cluster.group_znodes import PendingOffsetsZnode, pending_name, read_pending, transactional_batch

PRODUCER_EXPIRATION_MS = 24 * 3600 * 1000
"""How long a producer without an open transaction is remembered; Kafka's `producer.id.expiration.ms`."""

EXPIRY_CHECK_MS = 10 * 60 * 1000


class Producers(Protocol):
    """What is known about producers: the rules of a partition's log (`muster.log.producers.producer_state`)."""

    def begin_verification(self, producer_id: int, epoch: int, sequence: int, tv2: bool, now: int) -> int | None: ...

    def check(self, header: BatchHeader, guard: int | None = None, *, of_client: bool = True) -> object: ...

    def check_marker(self, marker: TxnMarker) -> None: ...

    def note(self, header: BatchHeader, marker: TxnMarker | None = None) -> object: ...

    def expire(self, now: int, expiration_ms: int) -> None: ...

    def open_transactions(self) -> Sequence[object]: ...


NewProducers = Callable[[], Producers]


def _belongs(found: PendingOffsetsZnode, group: str, producer_id: int) -> bool:
    """Whether a znode's contents match its name; those of a copied znode do not."""
    keys = [key for key, _, _ in found.records]
    return found.producer_id == producer_id and all(is_offset(key) and is_of_group(key, group) for key in keys)


class SlotTransactions:
    """The open transactions of one slot. `folder` is the path above its groups' znodes."""

    def __init__(self, folder: str, producers: Producers) -> None:
        self._folder = folder
        self._producers = producers
        self._znodes: dict[int, dict[str, dict[int, PendingZnode]]] = {}
        """By producer, group and number."""
        self._holders: dict[bytes, dict[int, PendingZnode]] = {}
        """The pending znodes that have each offset, by producer."""
        self._order = 0
        self._expired_at: int | None = None
        self._read: list[tuple[int, PendingZnode, bytes]] = []
        self._unread: deque[tuple[int, PendingZnode, bytes]] | None = None

    # -------------------------------------------------------------------------------------------------------- reading

    def know(self, group: str, name: str, number: int, producer_id: int, data: bytes | None, version: int) -> Piece:
        """Adopt a znode as it was found. `next_piece` returns its offsets, once all others have been read."""
        path = f"{self._folder}/{name}"
        found = read_pending(path, data)
        if not isinstance(found, Unreadable) and not _belongs(found, group, producer_id):
            found = Unreadable(path, "it holds records that belong in another znode")
        pending = PendingOffsetsZnode(producer_id, -1, []) if isinstance(found, Unreadable) else found
        znode = PendingZnode(group, name, path, producer_id, pending.producer_epoch, version)
        self._znodes.setdefault(producer_id, {}).setdefault(group, {})[number] = znode
        for key, value, order in pending.records:
            self._put(znode, key, value or VOID, order)
            self._read.append((order, znode, key))
        if isinstance(found, Unreadable):
            return Piece((), (path, ValueError(found.reason)))
        return Piece(())

    def next_piece(self, most: int) -> Piece:
        """The next pending offsets, in the order in which they were committed."""
        if self._unread is None:
            self._unread, self._read = deque(sorted(self._read, key=lambda each: each[0])), []
            self._order = max([self._order, *(order for order, _, _ in self._unread)])
            for order, znode, _ in self._unread:
                self._note_open(znode, order)
        unread = self._unread
        records: list[Stored] = []
        producer_id = unread[0][1].producer_id if unread else None
        while unread and len(records) < most and unread[0][1].producer_id == producer_id:
            _, znode, key = unread.popleft()
            records.append((znode.path, key, znode.records[key] or None))
        return Piece(records, is_last=not unread, producer_id=producer_id)

    @property
    def is_read(self) -> bool:
        """Whether `next_piece` has nothing more."""
        return not self._read if self._unread is None else not self._unread

    def _note_open(self, znode: PendingZnode, order: int) -> None:
        batch = BatchBuilder()
        batch.append(0, b"", b"")
        ids = (znode.producer_id, znode.producer_epoch)
        self._producers.note(read_header(transactional_batch(batch, *ids))._replace(base_offset=order))

    # -------------------------------------------------------------------------------------------------------- writing

    def begin_verification(self, producer_id: int, producer_epoch: int, *, tv2: bool, now: int) -> int | None:
        """A guard for a producer's commit; None if its transaction is open here."""
        return self._producers.begin_verification(producer_id, producer_epoch, 0, tv2, now)

    def open(self) -> Sequence[object]:
        """The transactions that no marker has ended."""
        return self._producers.open_transactions()

    def check(self, header: BatchHeader, guard: int | None) -> None:
        """Raises KafkaError if the producer may not write this."""
        if header.producer_id < 0:
            raise KafkaError(ErrorCode.INVALID_TXN_STATE, f"{header.producer_id} is not a producer id")
        self._producers.check(header, guard, of_client=False)

    def commit(self, header: BatchHeader, records: Iterable[tuple[str, bytes, bytes]]) -> list[PendingZnode]:
        """A producer's commits, of groups and with keys and values; returns the znodes that change."""
        changed = []
        for group, key, value in records:
            znode = self._holders.get(key, {}).get(header.producer_id) or self._with_room(
                header.producer_id, group, key
            )
            znode.producer_epoch = header.producer_epoch
            self._order += 1
            self._put(znode, key, value, self._order)
            changed.append(znode)
        self._producers.note(header._replace(base_offset=self._order))
        return changed

    def _put(self, znode: PendingZnode, key: bytes, value: bytes, order: int) -> None:
        znode.put(key, value)
        znode.orders[key] = order
        self._holders.setdefault(key, {})[znode.producer_id] = znode

    def _with_room(self, producer_id: int, group: str, key: bytes) -> PendingZnode:
        here = self._znodes.setdefault(producer_id, {}).setdefault(group, {})
        for znode in here.values():
            if znode.takes(key):
                return znode
        number = next(number for number in range(len(here) + 1) if number not in here)
        name = pending_name(group, producer_id, number)
        znode = here[number] = PendingZnode(group, name, f"{self._folder}/{name}", producer_id, -1)
        return znode

    def superseded(self, key: bytes, before: int | None = None) -> Iterator[PendingZnode]:
        """An offset was committed (by a transaction, at the position `before`); returns the znodes that change."""
        for znode in self._holders.get(key, {}).values():
            if znode.records[key] != VOID and (before is None or znode.orders[key] < before):
                znode.put(key, VOID)
                yield znode

    def removed(self, key: bytes) -> Iterator[PendingZnode]:
        """An offset was removed; returns the znodes that change."""
        for znode in self._holders.pop(key, {}).values():
            znode.remove(key)
            yield znode

    def check_marker(self, marker: TxnMarker, now: int) -> None:
        """Raises KafkaError if a marker must not be written."""
        self._expire(now)
        self._producers.check_marker(marker)

    def end(self, marker: TxnMarker, now: int) -> tuple[list[tuple[bytes, bytes, int]], list[PendingZnode]]:
        """A producer's transaction has ended. Returns the offsets that it commits, with their positions in the order of
        commits, and the znodes that are empty now."""
        self._producers.note(read_header(end_marker(marker, now)), marker)
        ended = [znode for here in self._znodes.get(marker.producer_id, {}).values() for znode in here.values()]
        found = []
        for znode in ended:
            for key, value in list(znode.records.items()):
                if marker.committed and value != VOID:
                    found.append((key, value, znode.orders[key]))
                znode.remove(key)
                holders = self._holders[key]
                del holders[marker.producer_id]
                if not holders:
                    del self._holders[key]
        return sorted(found, key=lambda each: each[2]), ended

    def _expire(self, now: int) -> None:
        if self._expired_at is None or now - self._expired_at >= EXPIRY_CHECK_MS:
            self._expired_at = now
            self._producers.expire(now, PRODUCER_EXPIRATION_MS)

    def settled(self, znode: PendingZnode, gone: set[bytes]) -> None:
        """ZooKeeper has a znode without these records. Forget it if it is deleted, unless it will be written again."""
        for key in znode.left(gone):
            if key not in znode.records:
                znode.orders.pop(key, None)
        if znode.version is not None or znode.records or znode.leaving:
            return
        groups = self._znodes.get(znode.producer_id, {})
        here = groups.get(znode.group, {})
        for number in [number for number, each in here.items() if each is znode]:
            del here[number]
        if not here:
            groups.pop(znode.group, None)
        if not groups:
            self._znodes.pop(znode.producer_id, None)
