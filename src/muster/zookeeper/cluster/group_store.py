"""The second store of the groups' coordinator: their records in ZooKeeper, one slot under one epoch at a time.

It is a `muster.coordinator.shards.store.Store`. A journal knows every record of its slot, and in which znode it is
(`group_znodes.py`). A write changes some records, and then writes the znodes that hold them, together with the changes
of concurrent requests, in one multi, which checks the slot's epoch. While a multi is under way, further changes gather
for the next one. So a rebalance costs one multi however many members there are, and so do all concurrent commits. The
changes of one write to one group are in one multi, if they fit into one.

The epoch fences: once another coordinator has the slot, every multi is refused, and the journal fails with FencedError.
In addition, each znode is written only if it has the known version. This matters in one case: the answer to a multi is
lost with the connection, so it is unknown whether the multi was carried out, or still will be. Then the first of its
znodes is read, which shows whether it was; if not, the same multi is sent again, and of the two only one can be carried
out.

    the connection is lost    nothing is durable until there is one again; the multi that was under way is settled then
    the session has ended     FencedError: the slot is another's, or vacant. What was acknowledged is in ZooKeeper
    something else is refused the journal fails, and the slot is read again: what was not durable may be lost

A record that is too large for a znode is refused before anything changes (TooLargeError); a coordinator asks
`GroupStore.fits` beforehand. Committed offsets always fit: a znode takes so few of them that there is room even when
each has the longest metadata that is allowed (`MAX_OFFSET_METADATA`).

A server whose `jute.maxbuffer` was lowered closes the connection at a request that is too large for it, without an
error: that looks like a broken network, and the request would be retried forever. So a large multi whose answer is lost
repeatedly, although requests in between are answered, is given up with TooLargeError, and from then on this store sends
at most half as much at a time (`Room`).

Reading stays a few znodes ahead of the coordinator, however many there are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

from muster.coordinator.shards.store import FencedError, Piece, Stored
from muster.errors import ErrorCode, KafkaError
from muster.protocol.records.control_records import TxnMarker
from muster.protocol.records.record_batch import BatchBuilder, read_header, read_tuples
from muster.zookeeper.base.operations import (
    Create,
    Delete,
    Plan,
    SessionExpiredError,
    SetData,
    Stat,
    TooLargeError,
    Write,
)
from muster.zookeeper.base.znode_json import Unreadable
from muster.zookeeper.cluster.cached_znode import (
    CachedZnode,
    PendingZnode,
    group_of,
    is_of_group,
    is_offset,
    offset_fits,
)
from muster.zookeeper.cluster.group_znodes import (
    MAX_ZNODE_BYTES,
    fits,
    groups_path,
    offsets_name,
    read_name,
    read_znode,
    transactional_batch,
)
from muster.zookeeper.cluster.slot_plans import LARGE_BYTES, data_of, names_of_groups, size_of, write_all
from muster.zookeeper.cluster.slot_transactions import NewProducers, Producers, SlotTransactions

WRITES_OF_A_MULTI = 500
_ROOM_OF_PATHS = 8 * 1024
_ROOM_OF_A_MULTI = MAX_ZNODE_BYTES + _ROOM_OF_PATHS
"""Bytes of data and paths: enough for any znode with its path."""

READERS = 8
"""How many znodes are fetched at a time while a slot is read."""

READ_AHEAD = 32
"""How many znodes are kept until the coordinator reads them."""


class Runner(Protocol):
    """Carries out plans on one session."""

    def __call__(self, plan: Plan[Any], then: Callable[[Any], None], /) -> Callable[[], None]:
        """Begin. `then` is called with the result, or the error as a value; never before this returns. The returned
        function ends the plan early, without a call of `then`."""


class Room:
    """How much goes into one request to ZooKeeper."""

    def __init__(self) -> None:
        self.bytes = _ROOM_OF_A_MULTI

    def was_too_much(self, size: int) -> None:
        """ZooKeeper did not accept a request of this size. The limit may have been lowered meanwhile."""
        self.bytes = min(self.bytes, max(size // 2, LARGE_BYTES))

    def fits(self, key: bytes, value: bytes) -> bool:
        """Whether a group's record can be written, as far as known."""
        return fits(key, value, self.bytes - _ROOM_OF_PATHS)


class GroupStore:
    """A `Store` of the groups in ZooKeeper.

    Args:
        run: carries out plans on the session with which the slots are held.
        on_news: called when something was read, has become durable, or failed.
        new_producers: makes an empty state of a slot's producers.
        on_fenced: called with a slot and an epoch that turned out to be over.
    """

    def __init__(
        self,
        run: Runner,
        on_news: Callable[[], None],
        new_producers: NewProducers,
        on_fenced: Callable[[int, int], None] = lambda slot, epoch: None,
    ) -> None:
        self._run = run
        self._on_news = on_news
        self._on_fenced = on_fenced
        self._new_producers = new_producers
        self._room = Room()
        self.fits = self._room.fits

    def load(self, slot: int, epoch: int) -> GroupJournal:
        """Begin to read a slot that was taken under this epoch."""
        return GroupJournal(slot, epoch, self._run, self._news, self._room, self._new_producers())

    def _news(self, journal: GroupJournal) -> None:
        self._on_news()
        if isinstance(journal.failed, FencedError):
            self._on_fenced(journal.slot, journal.epoch)


class GroupJournal:
    """A `Journal`. Positions count the calls of `write`."""

    is_empty = False

    def __init__(
        self,
        slot: int,
        epoch: int,
        run: Runner,
        on_news: Callable[[GroupJournal], None],
        room: Room,
        producers: Producers,
    ) -> None:
        self.slot = slot
        self.epoch = epoch
        self.durable = 0
        self.failed: Exception | None = None
        self._run = run
        self._on_news = on_news
        self._room = room
        self._position = 0
        self._now = 0
        self._own: dict[str, CachedZnode] = {}
        self._offsets: dict[str, dict[int, CachedZnode]] = {}
        self._where: dict[bytes, CachedZnode] = {}
        """The znode of each offset. An offset that is committed again before its removal is written stays in its znode:
        a group's znodes may be written in two multis, and a crash between them must not leave an offset in two places.
        """
        self._dirty: dict[str, dict[CachedZnode, int]] = {}
        """Pending writes by group, each with the position of the first write that caused it."""
        self._under_way: dict[CachedZnode, tuple[int, Write[Any], set[bytes]]] = {}
        """The same for the multi that is under way, with the write, and the keys that it removes."""
        self._names: deque[str] = deque()
        self._arrived: deque[Piece] = deque()
        self._fetching: set[str] = set()
        self._is_listed = False
        self._transactions = SlotTransactions(groups_path(slot), producers)
        self._plans: dict[int, Callable[[], None]] = {}
        self._plan = 0
        self._begin(names_of_groups(slot, epoch), self._listed)

    def close(self) -> None:
        """See `Journal.close`: what is under way is carried out or not, and nothing more is sent."""
        self.failed = self.failed or KafkaError(ErrorCode.NOT_COORDINATOR, "the shard was unloaded")
        plans, self._plans = self._plans, {}
        for end in plans.values():
            end()
        self._names.clear()
        self._arrived.clear()
        self._dirty.clear()

    def _begin(self, plan: Plan[Any], then: Callable[[Any], None]) -> None:
        self._plan += 1
        number = self._plan

        def done(outcome: Any) -> None:
            if self._plans.pop(number, None) is None:
                return
            if isinstance(outcome, SessionExpiredError):
                outcome = FencedError(f"the session that held slot {self.slot} with epoch {self.epoch} has ended")
            if isinstance(outcome, TooLargeError):
                self._room.was_too_much(sum(size_of(write) for _, write, _ in self._under_way.values()))
            try:
                if isinstance(outcome, Exception):
                    self.failed = outcome
                else:
                    then(outcome)
            except TooLargeError as error:  # from the next multi
                self.failed = error
            self._on_news(self)

        self._plans[number] = self._run(plan, done)

    def _check_open(self) -> None:
        if self.failed is not None:
            raise self.failed

    # --- reading -----------------------------------------------------------------------------------------------------

    def read(self, most: int) -> Piece:
        """See `Journal.read`."""
        self._check_open()
        records: list[Stored] = []
        skipped = None
        while self._arrived and len(records) < most and skipped is None:
            piece = self._arrived.popleft()
            records += piece.records
            skipped = piece.skipped
        self._fetch()
        is_last = self._is_listed and not (self._arrived or self._names or self._fetching)
        if is_last and not self._transactions.is_read:
            # Pending offsets come last: whatever supersedes them has already marked them.
            return self._transactions.next_piece(most) if not (records or skipped) else Piece(records, skipped)
        return Piece(records, skipped, is_last)

    def _listed(self, names: list[str]) -> None:
        self._is_listed = True
        self._names.extend(names)
        self._fetch()

    def _fetch(self) -> None:
        while self._names and len(self._fetching) < READERS and len(self._arrived) < READ_AHEAD:
            name = self._names.popleft()
            self._fetching.add(name)
            self._begin(data_of(f"{groups_path(self.slot)}/{name}"), partial(self._take, name))

    def _take(self, name: str, found: tuple[bytes | None, Stat] | None) -> None:
        self._fetching.discard(name)
        if found is not None:
            self._arrived.append(self._know(name, *found))
        self._fetch()

    def _know(self, name: str, data: bytes | None, stat: Stat) -> Piece:
        """Adopt a znode as it was found; its records go to the coordinator."""
        named = read_name(name)
        if named.producer_id is not None and named.number is not None:
            return self._transactions.know(named.group, name, named.number, named.producer_id, data, stat.version)
        path = f"{groups_path(self.slot)}/{name}"
        znode = CachedZnode(named.group, name, path, stat.version, named.number is not None)
        self._keep(znode, named.number)
        records = read_znode(path, data)
        if not isinstance(records, Unreadable) and not all(_belongs(key, znode) for key in records):
            records = Unreadable(
                path, "it holds records that belong in another znode"
            )  # perhaps a copy of an older znode
        if isinstance(records, Unreadable):  # it will be overwritten when the group is written
            return Piece((), (path, ValueError(records.reason)))
        for key, value in records.items():
            znode.put(key, value)
            if znode.is_offsets:
                self._where[key] = znode
        return Piece([(path, key, value) for key, value in records.items()])

    def _keep(self, znode: CachedZnode, number: int | None) -> None:
        if number is None:
            self._own[znode.group] = znode
        else:
            self._offsets.setdefault(znode.group, {})[number] = znode

    # --- writing -----------------------------------------------------------------------------------------------------

    def write(self, batch: BatchBuilder, now: int) -> int:
        """See `Journal.write`. Raises TooLargeError if a record is too large for a znode."""
        self._check_open()
        newest = self._newest(batch.build())
        self._begin_write(now)
        for key, value in newest.items():
            if is_offset(key):
                self._supersede(key, value)
                self._put_offset(key, value)
            else:
                self._put(key, value)
        self._send()
        return self._position

    def _newest(self, batch: bytearray) -> dict[bytes, bytes | None]:
        """The records of a batch, by key. Raises TooLargeError."""
        newest: dict[bytes, bytes | None] = {}
        for _, _, key, value, _ in read_tuples(batch):
            assert key is not None
            newest[key] = value
        for key, value in newest.items():
            self._refuse_too_large(key, value)
        return newest

    def _begin_write(self, now: int) -> None:
        self._position += 1
        self._now = now

    def _supersede(self, key: bytes, value: bytes | None) -> None:
        """An offset was committed without a transaction, or removed."""
        found = self._transactions.removed(key) if value is None else self._transactions.superseded(key)
        for znode in found:
            self._changed(znode)

    # --- transactions (as `LogJournal`) -----------------------------------------------------------------------------

    def begin_verification(self, producer_id: int, producer_epoch: int, *, tv2: bool, now: int) -> int | None:
        """A guard for a producer's commit; None if its transaction is open here."""
        return self._transactions.begin_verification(producer_id, producer_epoch, tv2=tv2, now=now)

    def write_transactional(
        self, batch: BatchBuilder, now: int, producer_id: int, producer_epoch: int, guard: int | None
    ) -> int:
        """Like `write`, for offsets that are part of a producer's transaction. Also raises errors for the producer."""
        self._check_open()
        built = transactional_batch(batch, producer_id, producer_epoch)
        header, newest = read_header(built), self._newest(built)
        self._transactions.check(header, guard)
        self._begin_write(now)
        records = [(group_of(key), key, value) for key, value in newest.items() if value is not None]
        for znode in self._transactions.commit(header, records):
            self._changed(znode)
        self._send()
        return self._position

    def write_marker(self, marker: TxnMarker, now: int) -> int:
        """Like `write`, for the marker that ends a producer's transaction. The znodes that it empties are written last:
        as long as part of a group's offsets is not written, the transaction is open."""
        self._check_open()
        self._transactions.check_marker(marker, now)
        self._begin_write(now)
        committed, ended = self._transactions.end(marker, now)
        for key, value, order in committed:
            for znode in self._transactions.superseded(key, order):
                self._changed(znode)
            self._put_offset(key, value)
        for znode in ended:
            of_group = self._dirty.setdefault(znode.group, {})
            of_group[znode] = of_group.pop(znode, self._position)
        self._send()
        return self._position

    def open_transactions(self) -> Sequence[object]:
        """The transactions that no marker has ended."""
        return self._transactions.open()

    def _refuse_too_large(self, key: bytes, value: bytes | None) -> None:
        if value is None:
            return
        if not (offset_fits(key, value) if is_offset(key) else self._room.fits(key, value)):
            path = f"{groups_path(self.slot)}/{group_of(key)}"
            raise TooLargeError(path, f"a record of {len(value)} bytes is too large for {path}")

    def _put(self, key: bytes, value: bytes | None) -> None:
        group = group_of(key)
        znode = self._own.get(group)
        if znode is None:
            if value is None:
                return
            znode = CachedZnode(group, group, f"{groups_path(self.slot)}/{group}")
            self._keep(znode, None)
        if value is not None:
            znode.put(key, value)
        else:
            znode.remove(key)
            for of_group in self._offsets.get(group, {}).values():
                if not of_group.records:  # it could not be read, and is deleted with the group
                    self._changed(of_group)
        self._changed(znode)

    def _put_offset(self, key: bytes, value: bytes | None) -> None:
        znode = self._where.get(key)
        if value is None:
            if znode is not None:
                znode.remove(key)
                self._changed(znode)
            return
        if znode is None:
            znode = self._where[key] = self._with_room(group_of(key), key)
        znode.put(key, value)
        self._changed(znode)

    def _with_room(self, group: str, key: bytes) -> CachedZnode:
        """The group's znode for a new offset: the first with room, so that there are few."""
        of_group = self._offsets.setdefault(group, {})
        for znode in of_group.values():
            if znode.takes(key):
                return znode
        number = next(number for number in range(len(of_group) + 1) if number not in of_group)
        name = offsets_name(group, number)
        znode = of_group[number] = CachedZnode(group, name, f"{groups_path(self.slot)}/{name}", is_offsets=True)
        return znode

    def _changed(self, znode: CachedZnode) -> None:
        self._dirty.setdefault(znode.group, {}).setdefault(znode, self._position)

    def _send(self) -> None:
        """Start the pending writes, unless some are under way."""
        if self._under_way:
            return
        self._gather()
        writes = tuple(write for _, write, _ in self._under_way.values())
        if writes:
            self._begin(write_all(self.slot, self.epoch, writes), self._written)
        self._count_durable()

    def _gather(self) -> None:
        """Choose what goes into the next multi: whole groups, or as much as fits of a group that is too large."""
        room, count = self._room.bytes, WRITES_OF_A_MULTI
        while self._dirty and count:
            group, znodes = next(iter(self._dirty.items()))
            sized = [(znode, since, *_write_of(znode, self._now)) for znode, since in znodes.items()]
            if self._under_way and (sum(size for *_, size in sized) > room or len(sized) > count):
                return
            for znode, since, write, size in sized:
                if size > room and not self._under_way:
                    raise TooLargeError(znode.path, f"{size} bytes for {znode.path} are too many for this ZooKeeper")
                if size > room or not count:
                    return
                del znodes[znode]
                if write is not None:
                    self._under_way[znode] = since, write, set(znode.leaving)
                    room, count = room - size, count - 1
                else:
                    self._settle(znode, set(znode.leaving))
            del self._dirty[group]

    def _written(self, nothing: None) -> None:
        done, self._under_way = self._under_way, {}
        for znode, (_, write, gone) in done.items():
            znode.version = _version_after(write)
            self._settle(znode, gone)
        self._send()

    def _settle(self, znode: CachedZnode, gone: set[bytes]) -> None:
        """ZooKeeper has a znode without these records. Forget it if it is deleted, unless it will be written again."""
        if isinstance(znode, PendingZnode):
            self._transactions.settled(znode, gone)
            return
        for key in znode.left(gone):
            self._where.pop(key, None)
        if znode.version is not None or znode.records or znode.leaving:
            return
        if znode.is_offsets:
            of_group = self._offsets.get(znode.group, {})
            for number in [number for number, each in of_group.items() if each is znode]:
                del of_group[number]
            if not of_group:
                self._offsets.pop(znode.group, None)
        elif self._own.get(znode.group) is znode:
            del self._own[znode.group]

    def _count_durable(self) -> None:
        # The rest of a group that did not fit into one multi may be under way while older changes of other groups wait.
        waiting = [since for since, _, _ in self._under_way.values()]
        waiting += [since for znodes in self._dirty.values() for since in znodes.values()]
        self.durable = min(waiting) - 1 if waiting else self._position


def _write_of(znode: CachedZnode, now: int) -> tuple[Write[Any] | None, int]:
    """The write that brings a znode up to date (None if there is nothing to write), and its size in a request."""
    if not znode.records:
        if znode.version is None:
            return None, 0
        write: Write[Any] = Delete(znode.path, znode.version)
    else:
        data = znode.encode(now)
        write = Create(znode.path, data) if znode.version is None else SetData(znode.path, data, znode.version)
    return write, size_of(write)


def _version_after(write: Write[Any]) -> int | None:
    if isinstance(write, SetData):
        return write.version + 1
    return 0 if isinstance(write, Create) else None


def _belongs(key: bytes, znode: CachedZnode) -> bool:
    """Whether a record is written into this znode. Records found elsewhere are not read: they would never be
    overwritten, and might be read after newer ones."""
    return is_offset(key) is znode.is_offsets and is_of_group(key, znode.group)
