"""What operators and other programs may do to the znodes of slots, coordinators and groups: it costs the affected slot
some time, other slots nothing, and causes no storm of requests to ZooKeeper."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from muster.zookeeper.base import operations as zk
from muster.zookeeper.base.znodes import (
    COORDINATORS,
    CoordinatorRegistration,
    SlotOwner,
    coordinator_path,
    slot_epoch_path,
    slot_owner_path,
)
from muster.zookeeper.base.znodes import SLOTS as SLOTS_PATH
from muster.zookeeper.cluster.slots import SlotKeeper
from tests.support.plans import one_by_one
from tests.support.slot_world import SESSION_MS, SLOTS, SlotWorld


class Operator:
    """A session that writes anything."""

    def __init__(self, world: SlotWorld) -> None:
        self.world = world
        self.session = world.zookeeper.connect("operator")
        world.zookeeper.settle()

    def do(self, what: Any) -> Any:
        return self.world.zookeeper.do(self.session, what)

    def delete_all(self, path: str) -> None:
        for name in self.do(zk.GetChildren(path)):
            self.delete_all(f"{path}/{name}")
        with suppress(zk.NotEmptyError):  # some of it exists again
            self.do(zk.Delete(path))


@pytest.fixture
def world() -> SlotWorld:
    """Two coordinators that have all slots, and a group in each slot with a commit."""
    world = SlotWorld.settled(1, 2)
    for slot in range(SLOTS):
        assert world.commit(group_in(world, slot), 1) == 0
    return world


def group_in(world: SlotWorld, slot: int) -> str:
    return next(name for name in map(str, range(999)) if world.slot_of(name) == slot)


def commits_again(world: SlotWorld) -> None:
    """Every slot has a coordinator that accepts commits, and continues where it was."""
    for slot in range(SLOTS):
        group_id = group_in(world, slot)
        world.until(lambda group_id=group_id: world.owners(group_id) <= {1, 2} and world.commit(group_id, 2) == 0)
    world.settle()
    for slot in range(SLOTS):
        assert world.committed(group_in(world, slot)) == {0: 2}


def requests_of(world: SlotWorld, milliseconds: int) -> int:
    before = world.zookeeper.counts.copy()
    world.run(milliseconds)
    since = world.zookeeper.counts.since(before)
    return int(since.reads + since.writes)


@pytest.mark.parametrize("path", [slot_epoch_path(0), f"{SLOTS_PATH}/0", SLOTS_PATH, COORDINATORS])
def test_an_epoch_that_is_deleted_is_made_again_and_continues_from_where_it_was(world, path):
    for _ in range(3):  # so that the epochs of this process are ahead of those of new znodes
        world.zookeeper.expire(world.nodes[1].session)
        world.zookeeper.expire(world.nodes[2].session)
        world.run(SESSION_MS)
        world.settle()
    operator = Operator(world)
    operator.delete_all(path)
    world.zookeeper.expire(world.nodes[1].session)
    world.zookeeper.expire(world.nodes[2].session)
    world.run(SESSION_MS)
    commits_again(world)
    assert requests_of(world, 10_000) == 0


def test_a_slot_that_cannot_be_taken_holds_up_no_other(world):
    """For example, an ACL forbids it."""
    gained: list[int] = []
    keeper = SlotKeeper(9, lambda slot, epoch: gained.append(slot), lambda slot: None, slots=SLOTS)
    for node_id in (1, 2):
        world.kill(node_id)
    world.run(2 * SESSION_MS)
    session = world.zookeeper.connect("s")
    world.zookeeper.settle()
    plan = one_by_one(keeper.turn(CoordinatorRegistration("localhost", 9)))

    def refuse_one() -> None:
        what: Any = next(plan)
        while True:
            refused = isinstance(what, zk.GetData) and what.path == slot_owner_path(1)
            what = plan.throw(zk.NotPermittedError(what.path)) if refused else answer(world, session, plan, what)

    with pytest.raises(zk.NotPermittedError):
        refuse_one()
    assert gained == [0, 2, 3]
    assert not keeper.is_settled
    world.zookeeper.carry_out(session, keeper.turn(CoordinatorRegistration("localhost", 9)))
    assert gained == [0, 2, 3, 1]


def answer(world, session, plan, what):
    try:
        found = world.zookeeper.do(session, what)
    except Exception as error:
        return plan.throw(error)
    return plan.send(found)


def test_groups_of_a_slot_that_are_deleted_are_gone_and_the_slot_continues(world):
    operator = Operator(world)
    operator.delete_all("/muster/groups")
    assert world.commit(group_in(world, 0), 5) != 0
    world.run(5_000)
    for slot in range(SLOTS):
        world.until(lambda slot=slot: world.commit(group_in(world, slot), 7) == 0)
        assert world.committed(group_in(world, slot)) == {0: 7}


def test_an_owner_without_a_session_is_nobody(world):
    """As left by a program that copies a tree without ephemeral znodes."""
    operator = Operator(world)
    for node_id in (1, 2):
        world.kill(node_id)
    world.run(2 * SESSION_MS)
    for slot in range(SLOTS):
        operator.do(zk.Create(slot_owner_path(slot), SlotOwner(1, 1).encode()))
    operator.do(zk.Create(coordinator_path(7), CoordinatorRegistration("localhost", 7).encode()))
    world.start(1, 2)
    commits_again(world)
    assert set(world.nodes[1].keeper.live) == {1, 2}
    assert coordinator_path(7) in world.nodes[1].keeper.unreadable


@pytest.mark.parametrize("name", ["01", "٣", "²", "99999999999", "-5", "x", "4294967297"])
def test_a_znode_whose_name_is_not_an_id_is_not_a_coordinator(world, name):
    operator = Operator(world)
    operator.do(zk.Create(f"/muster/coordinators/{name}", CoordinatorRegistration("evil", 7).encode(), ephemeral=True))
    world.run(1_000)
    assert {number: found.port for number, found in world.nodes[1].keeper.live.items()} == {1: 1, 2: 2}
    assert f"/muster/coordinators/{name}" in world.nodes[1].keeper.unreadable
    commits_again(world)


@pytest.mark.parametrize("registration", [("", 9), ("h", 0), ("a b", 9), ("h\n", 9), ("h" * 40_000, 9)])
def test_a_coordinator_at_an_invalid_address_does_not_count(world, registration):
    operator = Operator(world)
    operator.do(zk.Create(coordinator_path(8), CoordinatorRegistration(*registration).encode(), ephemeral=True))
    world.run(1_000)
    assert set(world.nodes[1].keeper.live) == {1, 2}
    commits_again(world)


def test_a_copy_of_a_znode_rewinds_nothing(world):
    """An operator keeps the old content next to it."""
    group_id = group_in(world, 0)
    path = f"/muster/groups/0/{group_id}~0"
    operator = Operator(world)
    data, _ = operator.do(zk.GetData(path))
    for name in (f"{path}.bak", f"/muster/groups/0/x{group_id}~0", f"/muster/groups/0/{group_id}.old"):
        operator.do(zk.Create(name, data))
    assert world.commit(group_id, 9) == 0
    world.kill(1)
    world.kill(2)
    world.run(2 * SESSION_MS)
    world.start(1, 2)
    world.settle()
    assert world.committed(group_id) == {0: 9}


def test_garbage_in_all_znodes_of_groups_stops_nobody(world):
    operator = Operator(world)
    for path in world.znodes():
        operator.do(zk.SetData(path, b"garbage"))
    world.zookeeper.expire(world.nodes[1].session)
    world.zookeeper.expire(world.nodes[2].session)
    world.run(SESSION_MS)
    commits_again(world)
