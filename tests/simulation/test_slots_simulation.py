"""Coordinators that share slots through ZooKeeper, from seeds: whatever happens to them, nothing acknowledged is lost,
no stale answer is given, and a group that nobody joins or leaves does not rebalance."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from muster.coordinator.runtime import CoordinatorRuntime
from muster.errors import ErrorCode, KafkaError
from muster.protocol.messages import HeartbeatRequest, OffsetFetchRequest, OffsetFetchRequestGroup
from muster.protocol.records.control_records import TxnMarker
from muster.protocol.transaction_messages import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from muster.zookeeper.base.operations import Check, Multi
from muster.zookeeper.base.znodes import GROUPS, slot_epoch_path
from muster.zookeeper.cluster import cached_znode
from tests.support.scale import fresh_seeds, seeds
from tests.support.slot_world import SESSION_MS, SlotWorld, commit_request

GIVEN_UP_MS = 1_500
"""How long a client waits for an answer."""


class SimClient:
    """Repeats one kind of request about a group, to the node that it believes to be its coordinator."""

    def __init__(self, world: SlotWorld, group_id: str, pause_ms: int) -> None:
        self.world = world
        self.group_id = group_id
        self.pause_ms = pause_ms
        self.answers: Counter[ErrorCode] = Counter()
        self._asked = 0
        world.clock.call_later(world.rng.randint(0, pause_ms), self._go)

    def _go(self) -> None:
        world = self.world
        self._asked += 1
        asked = self._asked
        reported = [node.keeper.owner(world.slot_of(self.group_id)) for node in world.nodes.values()]
        node = world.nodes.get(world.rng.choice(reported) or 0) if reported else None
        if node is None:
            world.clock.call_later(200, self._go)
            return
        request, version, take = self.request()

        def reply(answer: Any) -> None:
            error = take(answer)
            self.answers[error] += 1
            if asked == self._asked:
                self._asked += 1
                world.clock.call_later(self.pause_ms if error is ErrorCode.NONE else 200, self._go)

        def give_up() -> None:
            if asked == self._asked:
                self._go()

        node.later(world.rng.randint(0, 3), lambda: node.submit(request, version, reply))
        world.clock.call_later(GIVEN_UP_MS, give_up)

    def request(self) -> tuple[Any, int, Callable[[Any], ErrorCode]]:
        raise NotImplementedError


class Committer(SimClient):
    """Commits ever greater offsets, for one partition or for many."""

    def __init__(self, world: SlotWorld, group_id: str, ledger: dict[tuple[str, int], int]) -> None:
        self.ledger = ledger
        self.next = 0
        super().__init__(world, group_id, world.rng.choice((5, 50, 300)))

    def request(self) -> tuple[Any, int, Callable[[Any], ErrorCode]]:
        self.next += 1
        offset, rng = self.next, self.world.rng
        partitions = rng.sample(range(40), rng.choice((1, 1, 2, 30)))

        def take(answer: Any) -> ErrorCode:
            error = ErrorCode(answer.topics[0].partitions[0].error_code)
            if error is ErrorCode.NONE:
                for partition in partitions:
                    key = self.group_id, partition
                    self.ledger[key] = max(self.ledger.get(key, 0), offset)
            return error

        return commit_request(self.group_id, dict.fromkeys(partitions, offset)), 8, take


class Reader(SimClient):
    """Looks up a group's committed offsets: never lower than what was acknowledged before the request."""

    def __init__(self, world: SlotWorld, group_id: str, ledger: dict[tuple[str, int], int]) -> None:
        self.ledger = ledger
        super().__init__(world, group_id, 70)

    def request(self) -> tuple[Any, int, Callable[[Any], ErrorCode]]:
        acknowledged = {
            number: offset for (group_id, number), offset in self.ledger.items() if group_id == self.group_id
        }

        def take(answer: Any) -> ErrorCode:
            [group] = answer.groups
            if not group.error_code:
                found = {each.partition_index: each.committed_offset for t in group.topics for each in t.partitions}
                for number, offset in acknowledged.items():
                    assert found.get(number, 0) >= offset, f"{self.group_id} {number}: {found.get(number)} < {offset}"
            return ErrorCode(group.error_code)

        return OffsetFetchRequest(groups=[OffsetFetchRequestGroup(self.group_id, topics=None)]), 8, take


class Transactional(SimClient):
    """Commits offsets in transactions, ends each with a marker until that is accepted, and then checks: the group has
    the offsets of the committed transactions, and no others. It is the only one that commits for its group.

    Requests that it has given up may be carried out late. A late commit is verified, as the transaction's coordinator
    would do; a marker has the epoch of its transaction."""

    PARTITIONS = 40

    def __init__(self, world: SlotWorld, group_id: str, producer_id: int) -> None:
        self.producer_id = producer_id
        self.number = 0
        self.ended = 0
        self.expected: dict[int, int] = {}
        self._begin(world)
        super().__init__(world, group_id, world.rng.choice((5, 50)))

    def _begin(self, world: SlotWorld) -> None:
        self.number += 1
        self.phase = "pend"
        self.commits = world.rng.random() < 0.6
        self.partitions = world.rng.sample(range(self.PARTITIONS), world.rng.choice((1, 2, 30)))

    def request(self) -> tuple[Any, int, Callable[[Any], ErrorCode]]:
        if self.phase == "pend":
            return self._pend(self.number, self.partitions)
        return self._mark(self.number) if self.phase == "mark" else self._look()

    def _pend(self, number: int, partitions: list[int]) -> tuple[Any, int, Callable[[Any], ErrorCode]]:
        asked = [TxnOffsetCommitRequestPartition(partition, number) for partition in partitions]
        topics = [TxnOffsetCommitRequestTopic("t", asked)]
        request = TxnOffsetCommitRequest("x", self.group_id, self.producer_id, number, topics=topics)

        def do(runtime: CoordinatorRuntime, reply: Any) -> None:
            guard, error = None, ErrorCode.NONE
            try:
                guard = runtime.begin_verification(self.group_id, self.producer_id, number, tv2=True)
            except KafkaError as refused:
                error = refused.code
            if guard is not None and (self.number, self.phase) != (number, "pend"):
                error = ErrorCode.TRANSACTION_ABORTABLE
            runtime.commit_in_transaction(request, error, guard, reply)
            runtime.flush()

        def take(answer: Any) -> ErrorCode:
            error = ErrorCode(answer.topics[0].partitions[0].error_code)
            if error is ErrorCode.NONE and (self.number, self.phase) == (number, "pend"):
                self.phase = "mark"
            return error

        return do, 5, take

    def _mark(self, number: int) -> tuple[Any, int, Callable[[Any], ErrorCode]]:
        commits, partitions = self.commits, self.partitions

        def do(runtime: CoordinatorRuntime, reply: Any) -> None:
            marker = TxnMarker(self.producer_id, number + 1, commits, 0, 2)
            runtime.write_marker(self.world.slot_of(self.group_id), marker, reply)

        def take(error: ErrorCode) -> ErrorCode:
            if (self.number, self.phase) == (number, "mark"):
                assert error in (*RETRIABLE, ErrorCode.NONE), error
                if error is ErrorCode.NONE:
                    self.phase = "look"
                    self.expected |= dict.fromkeys(partitions if commits else (), number)
            return error

        return do, 0, take

    def _look(self) -> tuple[Any, int, Callable[[Any], ErrorCode]]:
        number, expected = self.number, dict(self.expected)

        def take(answer: Any) -> ErrorCode:
            [group] = answer.groups
            if not group.error_code and (self.number, self.phase) == (number, "look"):
                found = {
                    p.partition_index: (p.committed_offset, p.error_code) for t in group.topics for p in t.partitions
                }
                assert found == {each: (offset, 0) for each, offset in expected.items()}, self.group_id
                self.ended += 1
                self._begin(self.world)
            return ErrorCode(group.error_code)

        request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(self.group_id, topics=None)], require_stable=True)
        return request, 8, take


RETRIABLE = (
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
)


class Member(SimClient):
    """A member of a stable group: none of its heartbeats is ever answered with a rebalance, or an unknown member."""

    def __init__(self, world: SlotWorld, group_id: str, generation: int, member_id: str) -> None:
        self.generation, self.member_id = generation, member_id
        super().__init__(world, group_id, 1_000)

    def request(self) -> tuple[Any, int, Callable[[Any], ErrorCode]]:
        def take(answer: Any) -> ErrorCode:
            error = ErrorCode(answer.error_code)
            assert error in (ErrorCode.NONE, ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS), error
            return error

        return HeartbeatRequest(self.group_id, self.generation, self.member_id), 4, take


def act(world: SlotWorld, number: int) -> None:
    rng = world.rng
    node_id = rng.choice((1, 2, 3))
    node = world.nodes.get(node_id)
    match number:
        case 0 if node and len(world.nodes) > 1:
            world.kill(node_id)
        case 1 if not node:
            world.start(node_id)
        case 2 if node:
            # It has not been heard from for its whole timeout, as is true of every session that ends: before that, it
            # may still answer.
            world.zookeeper.cut(node.session)
            world.clock.call_later(2 * SESSION_MS, world.zookeeper.heal, node.session)
        case 3 | 4 if node and not node.session.is_frozen:
            node.freeze()
        case 5 | 6 if node and node.session.is_frozen:
            node.thaw()
        case 7 if node:
            world.zookeeper.reset(node.session)
        case 8 if node and len(world.zookeeper.servers) > 1:
            held = world.zookeeper.servers[rng.randrange(1, len(world.zookeeper.servers))]
            held.is_held = not held.is_held
        case 9 if node:
            world.zookeeper.cut(node.session, directions=(rng.choice(("to server", "to client")),))
            world.clock.call_later(rng.choice((100, 2_000, 7_000)), world.zookeeper.heal, node.session)


def heal(world: SlotWorld) -> None:
    for index in range(len(world.zookeeper.servers)):
        world.zookeeper.release(index)
    for node in world.nodes.values():
        world.zookeeper.heal(node.session)
        if node.session.is_frozen:
            node.thaw()


def fenced_writes(world: SlotWorld) -> None:
    """Every write about groups includes a check of its slot's epoch."""
    for session in world.zookeeper.sessions:
        for request, _, _ in session._asked.values():
            if isinstance(request.what, Multi):
                paths = {write.path for write in request.what.writes if write.path.startswith(GROUPS + "/")}
                slots = {int(path.split("/")[3]) for path in paths if path.count("/") == 4}
                checks = [write.path for write in request.what.writes if isinstance(write, Check)]
                assert all(slot_epoch_path(slot) in checks for slot in slots)


def story(seed: int, bursts: int = 14) -> SlotWorld:
    """Bursts of faults, each followed by some time; at the end everything is healed and time passes."""
    world = SlotWorld(seed, servers=3, lag_ms=(0, 5, 100)[seed % 3])
    world.start(1, 2, 3)
    world.settle()
    ledger: dict[tuple[str, int], int] = {}
    generation, ids = world.form("stable", 3)
    shares = {member_id: world.share("stable", generation, member_id) for member_id in ids}
    members = [Member(world, "stable", generation, member_id) for member_id in ids]
    committers = [Committer(world, group_id, ledger) for group_id in ("a", "b", "c", "d")]
    for group_id in ("a", "b", "c"):
        Reader(world, group_id, ledger)
    transactional = [Transactional(world, group_id, number) for number, group_id in enumerate(("a-t", "b-t", "c-t"))]
    for _ in range(bursts):
        for _ in range(world.rng.randint(1, 3)):
            act(world, world.rng.randrange(10))
            world.run(world.rng.choice((0, 1, 2, 5, 20, 100)))
            fenced_writes(world)
        world.run(world.rng.choice((10, 200, 1_500, 5_000)))
        fenced_writes(world)
        if world.rng.random() < 0.3:
            heal(world)
    heal(world)
    world.run(20_000)
    world.settle()
    before = {client: client.answers[ErrorCode.NONE] for client in (*members, *committers)}
    ended = {client: client.ended for client in transactional}
    world.run(5_000)
    assert all(client.answers[ErrorCode.NONE] > count for client, count in before.items())
    assert all(client.ended > count for client, count in ended.items())
    for member_id, share in shares.items():
        assert world.share("stable", generation, member_id) == share
    taken = [(slot, epoch) for node in world.everyone for _, slot, epoch in node.history]
    assert len(taken) == len(set(taken)), "two coordinators had a slot under one epoch"
    return world


@pytest.fixture(autouse=True)
def few_offsets_in_a_znode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cached_znode, "OFFSETS_OF_A_ZNODE", 7)


@pytest.mark.soak
@pytest.mark.parametrize("seed", [*seeds(6), *fresh_seeds(2)])
def test_whatever_happens_to_coordinators(seed: int) -> None:
    story(seed)
