"""Coordinators that share slots through ZooKeeper, from seeds: whatever happens to them, nothing acknowledged is lost,
nothing stale is told, and a group that nobody joins or leaves does not rebalance."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from muster.errors import ErrorCode
from muster.protocol.messages import HeartbeatRequest, OffsetFetchRequest, OffsetFetchRequestGroup
from muster.zookeeper.base.operations import Check, Multi
from muster.zookeeper.base.znodes import GROUPS, slot_epoch_path
from muster.zookeeper.cluster import group_store
from tests.support.scale import fresh_seeds, seeds
from tests.support.slot_world import SESSION_MS, SlotWorld, commit_request

GIVEN_UP_MS = 1_500
"""How long a client waits for an answer."""


class SimClient:
    """Asks again and again for one thing of a group, of the node that it believes to be its coordinator."""

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
        told = [node.keeper.owner(world.slot_of(self.group_id)) for node in world.nodes.values()]
        node = world.nodes.get(world.rng.choice(told) or 0) if told else None
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
    """Commits ever greater offsets, now for one partition, now for many."""

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
    """Asks what a group has committed: never less than what was acknowledged before it asked."""

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


class Member(SimClient):
    """A member of a stable group: no heartbeat of it is ever told of a rebalance, or that it is not known."""

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
            # It has not been heard of for the whole of its timeout, as is so of every session that ends: before, it
            # may tell what it knows.
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
    """Every write of groups goes with a check of its slot's epoch."""
    for session in world.zookeeper.sessions:
        for request, _, _ in session._asked.values():
            if isinstance(request.what, Multi):
                paths = {write.path for write in request.what.writes if write.path.startswith(GROUPS + "/")}
                slots = {int(path.split("/")[3]) for path in paths if path.count("/") == 4}
                checks = [write.path for write in request.what.writes if isinstance(write, Check)]
                assert all(slot_epoch_path(slot) in checks for slot in slots)


def story(seed: int, bursts: int = 14) -> SlotWorld:
    """Bursts of what can happen, each followed by some time; in the end all is healed and time passes."""
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
    world.run(5_000)
    assert all(client.answers[ErrorCode.NONE] > count for client, count in before.items())
    for member_id, share in shares.items():
        assert world.share("stable", generation, member_id) == share
    taken = [(slot, epoch) for node in world.everyone for _, slot, epoch in node.history]
    assert len(taken) == len(set(taken)), "two coordinators had a slot under one epoch"
    return world


@pytest.fixture(autouse=True)
def few_offsets_in_a_znode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_store, "OFFSETS_OF_A_ZNODE", 7)


@pytest.mark.soak
@pytest.mark.parametrize("seed", [*seeds(6), *fresh_seeds(2)])
def test_whatever_happens_to_coordinators(seed: int) -> None:
    story(seed)
