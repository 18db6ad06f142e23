"""The journal of one slot whose multis are carried out when the test says so: what it reports as durable is in
ZooKeeper."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from muster.coordinator.shards.store import FencedError
from muster.log.producers.producer_state import PartitionProducers
from muster.protocol.group_records import GroupMetadataRecord, OffsetCommitRecord, encode_record
from muster.protocol.messages import GroupMetadataKey, GroupMetadataValue, OffsetCommitKey, OffsetCommitValue
from muster.protocol.records.record_batch import BatchBuilder
from muster.zookeeper.base import operations as zk
from muster.zookeeper.base.znodes import SLOTS, slot_epoch_path
from muster.zookeeper.cluster import cached_znode, group_store
from muster.zookeeper.cluster.group_store import GroupJournal, GroupStore
from muster.zookeeper.cluster.group_znodes import groups_path, read_znode
from tests.simulator.zookeeper.tree import Tree

EPOCH = 1
MUSTER_MARK = 1


class Znodes:
    """A ZooKeeper with one client, and a `Runner`: a plan waits until its `turn`."""

    def __init__(self) -> None:
        self.tree = Tree()
        self.waiting: list[tuple[zk.Plan[Any], Callable[[Any], None]]] = []
        self._zxid = 0
        for path in ("/muster", SLOTS, f"{SLOTS}/0", slot_epoch_path(0), "/muster/groups", groups_path(0)):
            self.do(zk.Create(path))
        self.do(zk.SetData(slot_epoch_path(0), b"1"))

    def __call__(self, plan: zk.Plan[Any], then: Callable[[Any], None]) -> Callable[[], None]:
        one = (plan, then)
        self.waiting.append(one)
        return lambda: self.waiting.remove(one) if one in self.waiting else None

    def turn(self) -> None:
        """Carry out the whole plan that has waited longest."""
        plan, then = self.waiting.pop(0)
        outcome: Any = None
        try:
            while True:
                what = plan.throw(outcome) if isinstance(outcome, Exception) else plan.send(outcome)
                outcome = self._outcome(what)
        except StopIteration as done:
            then(done.value)
        except zk.ZooKeeperError as error:
            then(error)

    def _outcome(self, what: Any) -> Any:
        try:
            return self.do(what)
        except zk.ZooKeeperError as error:
            return error

    def do(self, what: Any) -> Any:
        node = None if isinstance(what, zk.Multi) else self.tree.find(what.path)
        match what:
            case zk.Exists():
                return None if node is None else node.stat()
            case zk.GetData():
                found = self.tree.get(what.path)
                return found.data, found.stat()
            case zk.GetChildren():
                return sorted(self.tree.get(what.path).children)
            case zk.Multi() | zk.Create() | zk.SetData():
                self._zxid += 1
                writes = what.writes if isinstance(what, zk.Multi) else (what,)
                return self.tree.transact(writes, MUSTER_MARK, self._zxid)[1]
        return None

    def records(self) -> dict[Any, Any]:
        """Everything in the slot's znodes."""
        found: dict[Any, Any] = {}
        for name in self.tree.get(groups_path(0)).children:
            path = f"{groups_path(0)}/{name}"
            records = read_znode(path, self.tree.get(path).data)
            assert isinstance(records, dict), records
            assert not found.keys() & records.keys(), "a record is in two znodes"
            found |= records
        return found


def loaded(znodes: Znodes) -> tuple[GroupJournal, dict[bytes, bytes]]:
    """A journal that was read to its end, and what it read."""
    journal = GroupStore(znodes, lambda: None, PartitionProducers).load(0, EPOCH)
    records: dict[bytes, bytes] = {}
    while True:
        piece = journal.read(100)
        records |= {key: value for _, key, value in piece.records if key is not None and value is not None}
        if piece.is_last:
            return journal, records
        znodes.turn()


def batch_of(*records: OffsetCommitRecord | GroupMetadataRecord) -> BatchBuilder:
    batch = BatchBuilder()
    for record in records:
        batch.append(0, *encode_record(record))
    return batch


def offset_of(group: str, partition: int, offset: int | None) -> OffsetCommitRecord:
    value = None if offset is None else OffsetCommitValue(offset, -1, "", 0, -1)
    return OffsetCommitRecord(OffsetCommitKey(group, "t", partition), value)


def group_of(group: str, generation: int | None) -> GroupMetadataRecord:
    value = None if generation is None else GroupMetadataValue("consumer", generation, None, None, -1, [])
    return GroupMetadataRecord(GroupMetadataKey(group), value)


def test_what_is_changed_again_while_it_waits_is_durable_with_the_last_change():
    """The sequence: a multi is in flight; a group commits twice meanwhile. The next multi has both commits, and neither
    may be acknowledged before it is carried out."""
    znodes = Znodes()
    journal, _ = loaded(znodes)
    assert journal.write(batch_of(offset_of("a", 0, 1)), 0) == 1
    assert journal.write(batch_of(offset_of("b", 0, 1)), 0) == 2
    assert journal.write(batch_of(offset_of("b", 0, 2)), 0) == 3
    assert journal.durable == 0
    znodes.turn()
    assert journal.durable == 1
    znodes.turn()
    assert journal.durable == 3


def test_of_what_goes_in_several_multis_nothing_is_durable_before_the_last(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cached_znode, "OFFSETS_OF_A_ZNODE", 1)
    monkeypatch.setattr(group_store, "WRITES_OF_A_MULTI", 2)
    znodes = Znodes()
    journal, _ = loaded(znodes)
    journal.write(batch_of(*(offset_of("a", partition, 1) for partition in range(5))), 0)
    reported = []
    while znodes.waiting:
        reported.append((journal.durable, len(znodes.records())))
        znodes.turn()
    assert (reported, journal.durable) == ([(0, 0), (0, 2), (0, 4)], 1)


def test_a_znode_whose_offsets_have_gone_leaves_its_number_to_the_next(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cached_znode, "OFFSETS_OF_A_ZNODE", 2)
    znodes = Znodes()
    journal, _ = loaded(znodes)
    for records in (
        [offset_of("a", partition, 1) for partition in range(4)],
        [offset_of("a", partition, None) for partition in range(2)],
        [offset_of("a", partition, 2) for partition in range(4, 6)],
    ):
        journal.write(batch_of(*records), 0)
        while znodes.waiting:
            znodes.turn()
    assert (journal.failed, journal.durable) == (None, 3)
    assert sorted(znodes.tree.get(groups_path(0)).children) == ["a~0", "a~1"]
    assert loaded(znodes)[1].keys() == {encode_record(offset_of("a", partition, 0))[0] for partition in (2, 3, 4, 5)}


@pytest.mark.parametrize("seed", range(12))
def test_what_is_durable_is_there(seed: int, monkeypatch: pytest.MonkeyPatch):
    """Whatever is written, and whenever the multis are carried out: ZooKeeper has the last durable value of each
    record, or a later one. In the end a journal that is read has everything."""
    monkeypatch.setattr(cached_znode, "OFFSETS_OF_A_ZNODE", 2)
    monkeypatch.setattr(group_store, "WRITES_OF_A_MULTI", 3)
    rng, znodes = Random(seed), Znodes()
    journal, _ = loaded(znodes)
    written: dict[bytes, list[tuple[int, bytes | None]]] = {}

    def check() -> None:
        there = znodes.records()
        for key, values in written.items():
            durable = [at for at, (position, _) in enumerate(values) if position <= journal.durable]
            allowed = [value for _, value in values[durable[-1] if durable else 0 :]]
            assert there.get(key) in (allowed if durable else [None, *allowed])
        assert journal.failed is None

    for _ in range(150):
        if rng.random() < 0.4 and znodes.waiting:
            znodes.turn()
        else:
            group = rng.choice("abc")
            records: list[Any] = [
                offset_of(group, partition, rng.choice([None, rng.randrange(1_000_000)]))
                for partition in rng.sample(range(8), rng.randint(1, 6))
            ]
            if rng.random() < 0.3:
                records.append(group_of(group, rng.choice([None, rng.randrange(1_000_000)])))
            position = journal.write(batch_of(*records), 0)
            for record in records:
                key, value = encode_record(record)
                written.setdefault(key, []).append((position, value))
        check()
    while znodes.waiting:
        znodes.turn()
        check()
    assert journal.durable == position
    newest = {key: values[-1][1] for key, values in written.items()}
    assert loaded(znodes)[1] == {key: value for key, value in newest.items() if value is not None}


def test_what_a_successor_has_written_is_not_mistaken_for_ones_own():
    """The sequence: a multi is lost with the connection; the slot's epoch is still ours; another coordinator takes the
    slot and writes the same znode once; the znode is read, and has the version that our write would have given it. The
    epoch reveals it, if it is read after the znode."""
    znodes = Znodes()
    journal, _ = loaded(znodes)
    journal.write(batch_of(offset_of("a", 0, 1)), 0)
    znodes.turn()
    journal.write(batch_of(offset_of("a", 0, 2)), 0)
    [(plan, _)] = znodes.waiting
    what = next(plan)
    assert isinstance(what, zk.Multi)
    assert type(plan.throw(zk.ConnectionLossError())).__name__ == "Reconnected"
    what, asked = plan.send(None), 0

    def go_on() -> None:
        nonlocal what, asked
        while True:
            asked += 1
            what = plan.send(znodes.do(what))
            if asked == 2:  # between any two of its requests
                znodes.do(zk.Multi(zk.SetData(slot_epoch_path(0), b"2"), zk.SetData(f"{groups_path(0)}/a~0", b"newer")))

    with pytest.raises(FencedError):
        go_on()
    assert asked >= 2
