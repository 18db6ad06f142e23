"""Offsets in transactions, kept in ZooKeeper: a coordinator reads the state that the order of a log would give,
wherever its predecessor stopped."""

from __future__ import annotations

from random import Random
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.coordinator.groups.config import GroupConfig
from muster.coordinator.groups.shard import GroupCounts, GroupShard
from muster.errors import ErrorCode, KafkaError
from muster.log.producers.producer_state import PartitionProducers
from muster.protocol.group_records import decode_coordinated, encode_record
from muster.protocol.records.control_records import TxnMarker
from muster.protocol.records.record_batch import read_header
from muster.zookeeper.cluster import cached_znode, group_store
from muster.zookeeper.cluster.cached_znode import PendingZnode
from muster.zookeeper.cluster.group_store import GroupJournal, GroupStore
from muster.zookeeper.cluster.group_znodes import (
    PendingOffsetsZnode,
    encode_pending,
    groups_path,
    pending_name,
    read_name,
    read_pending,
    transactional_batch,
)
from muster.zookeeper.cluster.slot_transactions import EXPIRY_CHECK_MS, PRODUCER_EXPIRATION_MS, SlotTransactions
from tests.support.group_harness import FakeTopics
from tests.support.scale import examples
from tests.unit.zookeeper.test_group_journal import EPOCH, Znodes, batch_of, offset_of

GROUPS = ("a", "b")


def new_shard() -> GroupShard:
    return GroupShard(GroupConfig(), FakeTopics(), GroupCounts())


def read(znodes: Znodes) -> tuple[GroupJournal, GroupShard]:
    """A journal that was read to its end, and the shard that results."""
    journal, shard = GroupStore(znodes, lambda: None, PartitionProducers).load(0, EPOCH), new_shard()
    while True:
        piece = journal.read(2)
        assert piece.skipped is None
        for _, key, value in piece.records:
            if piece.producer_id is None:
                shard.replay(key, value, 0)
            else:
                shard.replay_transactional(key, value, 0, piece.producer_id)
        if piece.is_last:
            return journal, shard
        if piece.is_empty:
            znodes.turn()


def state(shard: GroupShard) -> Any:
    """Committed offsets, and what each open transaction would make of them, in the order of its commits."""
    committed = {(group, topic, partition): value[0] for group, topic, partition, value in shard.offsets}
    by_producer = shard.pending.by_producer
    order = sorted(
        (found[0], producer_id, place, found[1][0])
        for producer_id, places in by_producer.items()
        for place, found in places.items()
        if found is not None
    )
    places = [(producer_id, place, offset) for _, producer_id, place, offset in order]
    opened = {
        place: sorted(producer_id for producer_id, those in by_producer.items() if place in those)
        for place in shard.pending.open_keys()
    }
    return committed, places, opened


class Slot:
    """A slot's journal with its shard, as the runtime uses them."""

    def __init__(self, znodes: Znodes) -> None:
        self.znodes = znodes
        self.journal, self.shard = read(znodes)

    def plain(self, group: str, partition: int, offset: int | None) -> None:
        record = offset_of(group, partition, offset)
        self.journal.write(batch_of(record), 0)
        self.shard.apply(decode_coordinated(*written(record)))

    def pend(self, producer_id: int, group: str, partitions: list[int], offset: int, epoch: int = 0) -> None:
        records = [offset_of(group, partition, offset) for partition in partitions]
        guard = self.journal.begin_verification(producer_id, epoch, tv2=False, now=0)
        self.journal.write_transactional(batch_of(*records), 0, producer_id, epoch, guard)
        for record in records:
            key, value = written(record)
            self.shard.replay_transactional(key, value, 0, producer_id)

    def mark(
        self, producer_id: int, commit: bool, epoch: int = 0, coordinator_epoch: int = 0, version: int = 0
    ) -> None:
        self.journal.write_marker(TxnMarker(producer_id, epoch, commit, coordinator_epoch, version), now=0)
        self.shard.end_transaction(producer_id, commit)

    def settle(self) -> None:
        while self.znodes.waiting:
            self.znodes.turn()
        assert self.journal.failed is None


def written(record: Any) -> tuple[bytes, bytes | None]:
    return encode_record(record)


class Act(NamedTuple):
    """An operation on a slot."""

    kind: str
    producer_id: int
    group: str
    partitions: list[int]
    turns: int

    def on(self, slot: Slot, offset: int) -> None:
        match self.kind:
            case "plain":
                for partition in self.partitions:
                    slot.plain(self.group, partition, offset)
            case "remove":
                slot.plain(self.group, self.partitions[0], None)
            case "pend":
                slot.pend(self.producer_id, self.group, self.partitions, offset)
            case "commit" | "abort":
                slot.mark(self.producer_id, self.kind == "commit")


ACTS = st.builds(
    Act,
    st.sampled_from(["plain", "remove", "pend", "pend", "pend", "commit", "abort"]),
    st.sampled_from([1, 2, 3]),
    st.sampled_from(GROUPS),
    st.lists(st.integers(0, 5), min_size=1, max_size=4, unique=True),
    st.integers(0, 3),
)


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(ACTS, max_size=25), st.integers(1, 3), st.integers(1, 4))
def test_what_is_read_is_what_was_decided(acts: list[Act], of_a_znode: int, of_a_multi: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cached_znode, "OFFSETS_OF_A_ZNODE", of_a_znode)
        patch.setattr(group_store, "WRITES_OF_A_MULTI", of_a_multi)
        znodes = Znodes()
        slot = Slot(znodes)
        for offset, act in enumerate(acts):
            act.on(slot, offset)
            for _ in range(min(act.turns, len(znodes.waiting))):
                znodes.turn()
        slot.settle()
        assert state(read(znodes)[1]) == state(slot.shard)


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(ACTS, max_size=12), st.booleans(), st.integers(1, 3), st.integers(1, 4), st.data())
def test_a_coordinator_that_ends_within_a_marker_leaves_a_transaction_that_the_next_marker_ends(
    acts: list[Act], commit: bool, of_a_znode: int, of_a_multi: int, data: st.DataObject
) -> None:
    """The marker is one multi or several; the coordinator of the transaction has got no answer, and sends it again."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cached_znode, "OFFSETS_OF_A_ZNODE", of_a_znode)
        patch.setattr(group_store, "WRITES_OF_A_MULTI", of_a_multi)
        znodes = Znodes()
        slot = Slot(znodes)
        for offset, act in enumerate(acts):
            act.on(slot, offset)
        slot.settle()
        slot.mark(1, commit)
        for _ in range(data.draw(st.integers(0, 6), "turns before its end")):
            if znodes.waiting:
                znodes.turn()
        done = not znodes.waiting
        znodes.waiting.clear()
        successor = Slot(znodes)
        if done:
            assert state(successor.shard) == state(slot.shard)
        open_before = state(successor.shard)[2]
        for place, value in state(slot.shard)[0].items():
            # A part that is not there yet is unstable: a reader of stable offsets waits for it.
            assert state(successor.shard)[0].get(place) == value or 1 in open_before.get(
                place, [1 if not commit else 0]
            )
        successor.mark(1, commit)
        successor.settle()
        assert state(successor.shard) == state(slot.shard)
        assert state(read(znodes)[1]) == state(slot.shard)


def test_a_marker_is_one_multi_for_a_group_that_fits() -> None:
    znodes = Znodes()
    slot = Slot(znodes)
    slot.pend(1, "a", [0, 1, 2], 7)
    slot.settle()
    slot.mark(1, commit=True)
    assert len(znodes.waiting) == 1
    znodes.turn()
    assert not znodes.waiting
    assert slot.journal.durable == 2
    assert sorted(znodes.tree.get(groups_path(0)).children) == ["a~0"]


def test_a_commit_is_durable_when_zookeeper_has_it() -> None:
    znodes = Znodes()
    slot = Slot(znodes)
    slot.pend(1, "a", [0], 7)
    assert slot.journal.durable == 0
    slot.settle()
    assert slot.journal.durable == 1
    slot.mark(1, commit=False)
    assert slot.journal.durable == 1
    slot.settle()
    assert slot.journal.durable == 2
    assert not znodes.tree.get(groups_path(0)).children


def refused(code: ErrorCode, act: Any) -> None:
    with pytest.raises(KafkaError) as raised:
        act()
    assert raised.value.code is code


def test_producers_are_held_to_the_rules_of_a_log() -> None:
    slot = Slot(Znodes())
    batch = batch_of(offset_of("a", 0, 1))
    refused(ErrorCode.INVALID_TXN_STATE, lambda: slot.journal.write_transactional(batch, 0, 1, 0, None))
    slot.pend(1, "a", [0], 1, epoch=5)
    assert slot.journal.begin_verification(1, 5, tv2=True, now=0) is None
    refused(ErrorCode.INVALID_PRODUCER_EPOCH, lambda: slot.journal.begin_verification(1, 4, tv2=True, now=0))
    refused(ErrorCode.INVALID_PRODUCER_EPOCH, lambda: slot.mark(1, commit=True, epoch=4))
    refused(ErrorCode.INVALID_PRODUCER_EPOCH, lambda: slot.mark(1, commit=True, epoch=5, version=2))
    guard = slot.journal.begin_verification(2, 0, tv2=False, now=0)
    slot.mark(2, commit=False)  # the transaction that it was verified for is over
    refused(ErrorCode.INVALID_TXN_STATE, lambda: slot.journal.write_transactional(batch, 0, 2, 0, guard))
    slot.mark(1, commit=True, epoch=6, coordinator_epoch=3, version=2)
    slot.mark(1, commit=True, epoch=6, coordinator_epoch=3, version=2)  # again: its answer was lost
    refused(ErrorCode.TRANSACTION_COORDINATOR_FENCED, lambda: slot.mark(1, True, epoch=7, coordinator_epoch=2))
    refused(ErrorCode.INVALID_TXN_STATE, lambda: slot.journal.write_transactional(batch, 0, -1, -1, None))
    slot.settle()
    assert state(slot.shard) == ({("a", "t", 0): 1}, [], {})


def test_a_marker_of_an_earlier_epoch_does_not_end_a_transaction_that_was_read() -> None:
    znodes = Znodes()
    slot = Slot(znodes)
    slot.pend(1, "a", [0], 1, epoch=5)
    slot.settle()
    successor = Slot(znodes)
    refused(ErrorCode.INVALID_PRODUCER_EPOCH, lambda: successor.mark(1, commit=True, epoch=4))
    assert successor.journal.begin_verification(1, 5, tv2=False, now=0) is None
    successor.mark(1, commit=True, epoch=5)
    successor.settle()
    assert state(successor.shard)[0] == {("a", "t", 0): 1}


def test_a_pending_znode_that_cannot_be_read_is_skipped_and_written_over() -> None:
    znodes = Znodes()
    slot = Slot(znodes)
    slot.pend(1, "a", [0], 1)
    slot.settle()
    path = f"{groups_path(0)}/{pending_name('a', 1, 0)}"
    theirs, ours = written(offset_of("b", 0, 1)), written(offset_of("a", 0, 1))
    for damage in (
        b"?",
        encode_pending([(*ours, 1)], 0, 2, 0),
        encode_pending([(*theirs, 1)], 0, 1, 0),
        encode_pending([(b"k", b"v", 1)], 0, 1, 0),
        bytes(batch_of(offset_of("a", 0, 1)).build()),
    ):
        znodes.tree.get(path).data = damage
        journal = GroupStore(znodes, lambda: None, PartitionProducers).load(0, EPOCH)
        pieces: list[Any] = []
        while not (pieces and pieces[-1].is_last):
            pieces.append(journal.read(10))
            if pieces[-1].is_empty:
                znodes.turn()
        assert [piece.skipped[0] for piece in pieces if piece.skipped] == [path]
    guard = journal.begin_verification(1, 0, tv2=False, now=0)
    journal.write_transactional(batch_of(offset_of("a", 3, 1)), 0, 1, 0, guard)
    while znodes.waiting:
        znodes.turn()
    assert journal.failed is None
    assert state(read(znodes)[1])[1] == [(1, ("a", "t", 3), 1)]


def test_names_and_contents() -> None:
    assert read_name(pending_name("a~", 2**63 - 1, 3)) == ("a~", 3, 2**63 - 1)
    assert read_name("a~3") == ("a", 3, None)
    assert read_name("a") == ("a", None, None)
    records: list[tuple[bytes, bytes | None, int]] = [
        (bytes([n]), None if n % 2 else b"v" * n, n * 10**12) for n in range(9)
    ]
    assert read_pending("p", encode_pending(records, 5, 2**60, 7)) == PendingOffsetsZnode(2**60, 7, records)
    large: list[tuple[bytes, bytes | None, int]] = [(b"%d" % n, b"v" * 3_000, n) for n in range(50)]
    assert len(encode_pending(large, 5, 1, 0)) < 10_000
    assert read_pending("p", encode_pending(large, 5, 1, 0)) == PendingOffsetsZnode(1, 0, large)


def test_what_is_not_needed_is_not_kept() -> None:
    znodes, rng = Znodes(), Random(1)
    slot = Slot(znodes)
    for number in range(200):
        slot.pend(number % 7, rng.choice(GROUPS), rng.sample(range(100), 3), number)
        slot.mark(number % 7, commit=bool(number % 2))
        if not number % 3:
            slot.settle()
    slot.settle()
    transactions = slot.journal._transactions
    assert not transactions._znodes
    assert not transactions._holders
    assert not slot.shard.pending.by_producer


def test_producers_without_a_transaction_are_forgotten_after_a_day() -> None:
    """As in a log (`producer.id.expiration.ms`), at other producers' markers. The one with an open transaction is
    not."""
    slot, expiry = Slot(Znodes()), PRODUCER_EXPIRATION_MS

    def known() -> list[int]:
        producers: Any = slot.journal._transactions._producers
        return sorted(producers.producers)

    def mark(producer_id: int, now: int) -> None:
        slot.pend(producer_id, "a", [producer_id], 1)
        slot.journal.write_marker(TxnMarker(producer_id, 0, True, 0, 0), now=now)

    slot.pend(1, "a", [0], 1)
    mark(2, 1_000)
    mark(3, 1_000 + EXPIRY_CHECK_MS)
    mark(4, expiry + 999)
    assert known() == [1, 2, 3, 4]
    mark(5, expiry + 1_000 + EXPIRY_CHECK_MS - 2)  # the next check is not due
    assert known() == [1, 2, 3, 4, 5]
    mark(6, expiry + 999 + EXPIRY_CHECK_MS)
    assert known() == [1, 3, 4, 5, 6]
    mark(7, 2 * expiry + 2 * EXPIRY_CHECK_MS)
    assert known() == [1, 7]


def test_a_deleted_znode_is_kept_while_a_later_removal_from_it_is_not_written() -> None:
    """The sequence: a marker's multi deletes the znode; while it is in flight, the producer commits another offset, and
    the transaction ends, too. The next offset then belongs to the same object: there are never two for one znode."""
    transactions = SlotTransactions("/groups", PartitionProducers())
    header = read_header(transactional_batch(batch_of(offset_of("a", 0, 1)), 1, 0))

    def commit(partition: int) -> PendingZnode:
        [znode] = transactions.commit(header, [("a", written(offset_of("a", partition, 1))[0], b"1")])
        return znode

    znode = commit(0)
    transactions.end(TxnMarker(1, 0, True, 0, 0), 0)
    under_way = set(znode.leaving)
    assert commit(1) is znode
    transactions.end(TxnMarker(1, 0, True, 0, 0), 0)
    transactions.settled(znode, under_way)
    assert commit(2) is znode
    transactions.end(TxnMarker(1, 0, True, 0, 0), 0)
    transactions.settled(znode, set(znode.leaving))
    assert not transactions._znodes
