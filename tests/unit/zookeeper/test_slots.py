"""Which coordinator has which slot: shares, moves, doubt, sessions that expire, and turns that are interrupted at each
step."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from typing import Any

import pytest

from muster.coordinator.runtime import Client
from muster.errors import ErrorCode
from muster.zookeeper.base import operations as zk
from muster.zookeeper.base.znode_json import Unreadable
from muster.zookeeper.base.znodes import (
    CoordinatorRegistration,
    SlotOwner,
    coordinator_path,
    read_coordinator,
    read_slot_owner,
    slot_epoch_path,
    slot_owner_path,
)
from muster.zookeeper.cluster.slots import SLOT_COUNT, SlotKeeper, preferred
from tests.support.plans import noted, one_by_one
from tests.support.slot_world import SESSION_MS, SLOTS, SlotWorld, commit_request

HERE = CoordinatorRegistration("localhost", 9)


def epoch_of(world: SlotWorld, slot: int) -> int:
    return world.zookeeper.tree.get(slot_epoch_path(slot)).version


def slot_with(world: SlotWorld, node_id: int) -> int:
    """A slot that a node has."""
    return next(iter(world.nodes[node_id].keeper.held))


# --- which coordinator should have it
# ----------------------------------------------------------------------------------


@pytest.mark.parametrize("coordinators", [{1, 2}, {1, 2, 3}, {4, 7, 100, 1001, 5}])
def test_slots_are_spread_over_all(coordinators):
    share = Counter(preferred(slot, coordinators) for slot in range(SLOT_COUNT))
    assert set(share) == coordinators
    assert min(share.values()) >= SLOT_COUNT // len(coordinators) // 2


def test_only_the_slots_of_one_that_goes_move():
    for slot in range(SLOT_COUNT):
        before, after = preferred(slot, {1, 2, 3}), preferred(slot, {1, 3})
        assert before in (after, 2)


def test_nobody_has_slots_without_coordinators():
    assert preferred(0, {}) is None


def test_which_one_it_is_does_not_change_with_a_release():
    """Coordinators of two releases can run at the same time, and must not keep taking slots from each other."""
    assert [preferred(slot, {1, 2, 3}) for slot in range(16)] == [3, 2, 2, 3, 1, 3, 2, 1, 2, 3, 1, 1, 1, 1, 2, 3]


# --- znodes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("found", "data"),
    [
        (CoordinatorRegistration("host", 9092), b'{"version":1,"host":"host","port":9092}'),
        (SlotOwner(3, 7), b'{"id":3,"epoch":7}'),
    ],
)
def test_znodes_byte_for_byte(found, data):
    assert found.encode() == data
    assert (
        read_coordinator("3", data) if isinstance(found, CoordinatorRegistration) else read_slot_owner(5, data)
    ) == found


@pytest.mark.parametrize(
    "data", [None, b"", b"7", b"{}", b'{"id":"3","epoch":1}', b'{"host":"h","port":99999}', b"\xff"]
)
def test_what_is_neither_an_owner_nor_a_coordinator(data):
    assert isinstance(read_slot_owner(1, data), Unreadable)
    assert isinstance(read_coordinator("1", data), Unreadable)


# --- slots that move -------------------------------------------------------------------------------------------------


def test_one_alone_has_all():
    world = SlotWorld.settled(1)
    assert world.nodes[1].keeper.held == dict.fromkeys(range(SLOTS), 1)
    assert world.zookeeper.tree.get(slot_epoch_path(0)).data == b"1"


def test_all_slots_are_taken_in_few_round_trips():
    world = SlotWorld()
    keeper = SlotKeeper(1, lambda slot, epoch: None, lambda slot: None)
    session = world.zookeeper.connect("s", listener=lambda event: [keeper.on_event(event)].clear())
    world.zookeeper.settle()
    asked: list[Any] = []
    world.zookeeper.carry_out(session, noted(keeper.turn(HERE), asked))
    assert len(keeper.held) == SLOT_COUNT
    assert len(asked) < 40


def test_a_newcomer_gets_its_share_and_the_groups_in_it():
    world = SlotWorld.settled(1)
    groups = {f"g{number}": number for number in range(12)}
    for group_id, number in groups.items():
        assert world.commit(group_id, number + 1) == 0
    world.start(2, 3)
    world.until(lambda: len(world.nodes[1].keeper.live) == 3)
    world.settle()
    assert [world.nodes[1].keeper.owner(slot) for slot in range(SLOTS)] == [
        preferred(slot, {1, 2, 3}) for slot in range(SLOTS)
    ]
    for group_id, number in groups.items():
        assert world.committed(group_id) == {0: number + 1}


def test_what_waits_for_a_slot_that_is_given_up_is_sent_on():
    world = SlotWorld.settled(1)
    slot = next(slot for slot in range(SLOTS) if preferred(slot, {1, 2}) == 2)
    group_id = next(name for name in map(str, range(99)) if world.slot_of(name) == slot)
    world.start(2)
    first = world.nodes[1]

    def given_up():
        vacant = world.zookeeper.tree.find(slot_owner_path(slot)) is None
        assert not (vacant and slot in first.keeper.held)
        return vacant

    world.until(given_up)
    assert world.commit(group_id, 1, node=first) == ErrorCode.NOT_COORDINATOR
    assert first.keeper.owner(slot) is None  # vacant, or soon will be: nobody is sent back to the old coordinator
    world.settle()
    assert world.commit(group_id, 1) == 0


def test_a_coordinator_that_dies_is_replaced_when_its_session_has_ended():
    world = SlotWorld.settled(1, 2)
    slot, epoch = slot_with(world, 1), epoch_of(world, slot_with(world, 1))
    killed_at = world.clock.now
    world.kill(1)
    world.settle()
    assert world.clock.now - killed_at <= SESSION_MS + 1_000  # and the tick of the simulated server
    assert world.nodes[2].keeper.held[slot] == epoch + 1 == epoch_of(world, slot)


def test_one_that_comes_back_before_its_session_has_ended_waits_for_that():
    world = SlotWorld.settled(1)
    world.kill(1)
    world.start(1)
    world.run(1_000)
    assert not world.nodes[1].keeper.is_registered
    world.settle()
    assert set(world.nodes[1].keeper.held.values()) == {2}


# --- frozen, in doubt ------------------------------------------------------------------------------------------------


def test_one_that_stood_still_too_long_is_fenced_and_drops_what_it_held():
    world = SlotWorld.settled(1, 2)
    group_id = next(name for name in map(str, range(99)) if world.slot_of(name) in world.nodes[1].keeper.held)
    generation, (leader, _) = world.form(group_id)
    assert world.commit(group_id, 1, generation=generation, member_id=leader) == 0
    frozen = world.nodes[1]
    frozen.freeze()
    world.until(lambda: world.owners(group_id) == {2})
    world.settle()
    assert world.commit(group_id, 2, generation=generation, member_id=leader) == 0
    frozen.thaw()
    # Its first turn: it still believes that it holds slots, and its clock tells it that it may not.
    assert frozen.keeper.held
    assert world.heartbeat(group_id, generation, leader, node=frozen) == ErrorCode.NOT_COORDINATOR
    assert world.commit(group_id, 3, generation=generation, member_id=leader, node=frozen) == ErrorCode.NOT_COORDINATOR
    assert world.committed(group_id, node=frozen) == ErrorCode.NOT_COORDINATOR
    assert frozen.keeper.held == {}
    world.settle()
    assert world.committed(group_id) == {0: 2}
    assert world.heartbeat(group_id, generation, leader) is ErrorCode.NONE


def test_what_one_that_stood_still_had_decided_is_refused_by_zookeeper():
    """Without the check of the clock: a commit that is in flight when the process stops."""
    world = SlotWorld.settled(1, 2)
    group_id = next(name for name in map(str, range(99)) if world.slot_of(name) in world.nodes[1].keeper.held)
    assert world.commit(group_id, 1) == 0
    frozen = world.nodes[1]
    answers: list[Any] = []
    slot = world.slot_of(group_id)
    journal = frozen.runtime._served[slot].journal
    frozen.freeze()
    world.until(lambda: world.owners(group_id) == {2})
    world.settle()
    assert world.commit(group_id, 2) == 0
    frozen.runtime.submit(commit_request(group_id, {0: 3}), Client("late", "/x", 8), answers.append)
    frozen._flush()
    frozen.thaw()
    world.until(lambda: bool(answers))
    assert answers[0].topics[0].partitions[0].error_code == ErrorCode.NOT_COORDINATOR
    assert journal.failed is not None
    world.settle()
    assert world.committed(group_id) == {0: 2}


def test_in_doubt_it_serves_nothing_and_continues_under_a_new_epoch():
    world = SlotWorld.settled(1)
    assert world.commit("g", 7) == 0
    node, session_id = world.nodes[1], world.nodes[1].session.session_id
    world.zookeeper.cut(node.session)
    world.until(lambda: not node.keeper.held)
    assert world.committed("g", node=node) == ErrorCode.NOT_COORDINATOR
    assert node.keeper.owner(0) is None
    assert world.zookeeper.is_alive(session_id)
    world.zookeeper.heal(node.session)
    world.settle()
    assert node.session.session_id == session_id
    assert set(node.keeper.held.values()) == {2}
    assert world.committed("g") == {0: 7}
    assert world.zookeeper.tree.get(slot_owner_path(0)).data == b'{"id":1,"epoch":2}'


def test_a_session_that_was_in_doubt_for_a_moment_has_its_slots_again():
    """The sequence: a process is suspended for a long time, and a request checks its clock before any event has
    arrived; then an answer proves that the session is alive, and no doubt is ever reported."""
    world = SlotWorld.settled(1)
    assert world.commit("g", 7) == 0
    node = world.nodes[1]
    node.keeper.drop_all()
    assert world.committed("g", node=node) == ErrorCode.NOT_COORDINATOR
    node.wake()
    world.settle()
    assert set(node.keeper.held.values()) == {2}
    assert world.committed("g") == {0: 7}


def test_news_of_a_fence_that_come_late_mean_nothing():
    world = SlotWorld.settled(1)
    keeper = world.nodes[1].keeper
    assert not keeper.fenced(0, keeper.held[0] - 1)
    assert keeper.is_settled
    assert keeper.fenced(0, 1)
    assert (0 in keeper.held, keeper.is_settled) == (False, False)


def test_an_answer_that_comes_with_the_doubt_gives_no_slot():
    world, gained = SlotWorld(), []
    keeper = SlotKeeper(1, lambda slot, epoch: gained.append(epoch), lambda slot: None, slots=1)
    session = world.zookeeper.connect("s")
    world.zookeeper.settle()

    def taken(what):
        return isinstance(what, zk.Multi) and any(write.path == slot_owner_path(0) for write in what.writes)

    plan = one_by_one(keeper.turn(HERE))
    what = next(plan)
    while not taken(what):
        what = advance(world, session, plan, what)
    answer = world.zookeeper.do(session, what)
    keeper.on_event(zk.SessionEvent.DOUBTED)
    plan.send(answer)
    plan.close()
    assert (gained, keeper.held, keeper.owner(0)) == ([], {}, None)
    keeper.on_event(zk.SessionEvent.CONNECTED)
    world.zookeeper.carry_out(session, keeper.turn(HERE))
    assert (gained, keeper.held) == ([1], {0: 1})  # nothing was ever sent in it


def test_a_slot_that_another_session_has_is_no_longer_served():
    """The sequence: an operator deletes `owner`, and another coordinator takes the slot before this one has checked."""
    world = SlotWorld()
    lost: list[int] = []
    keeper = SlotKeeper(1, lambda slot, epoch: None, lost.append, slots=1)
    session = world.zookeeper.connect("s")
    world.zookeeper.settle()
    world.zookeeper.carry_out(session, keeper.turn(HERE))
    assert keeper.held == {0: 1}
    other = world.zookeeper.connect("other", listener=lambda event: None)
    world.zookeeper.settle()
    taken = zk.Create(slot_owner_path(0), SlotOwner(2, 2).encode(), ephemeral=True)
    world.zookeeper.do(other, zk.Multi(zk.Delete(slot_owner_path(0)), taken, zk.SetData(slot_epoch_path(0), b"2")))
    keeper.on_event(zk.Watched(zk.ZnodeChange.DELETED, slot_owner_path(0)))
    world.zookeeper.carry_out(session, keeper.turn(HERE))
    assert (lost, keeper.held, keeper.owner(0)) == ([0], {}, 2)


def advance(world, session, plan, what):
    """Carry out what a plan asks for; returns what it asks for next."""
    try:
        answer = world.zookeeper.do(session, what)
    except zk.ZooKeeperError as error:
        return plan.throw(error)
    return plan.send(answer)


# --- other cases ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("carried_out", [False, True])
def test_a_turn_that_is_broken_off_at_any_step_is_made_good_by_the_next(carried_out):
    steps = 1
    while made_good(steps, carried_out):
        steps += 1
    assert steps > 10


def made_good(step, carried_out):
    """Whether there is such a step."""
    world = SlotWorld(slots=2)
    gained: list[tuple[int, int]] = []
    keeper = SlotKeeper(1, lambda slot, epoch: gained.append((slot, epoch)), lambda slot: None, slots=2)
    session = world.zookeeper.connect("s", listener=lambda event: [keeper.on_event(event)].clear())
    world.zookeeper.settle()
    if not broken_off(world, session, keeper.turn(HERE), step, carried_out):
        return False
    world.zookeeper.carry_out(session, keeper.turn(HERE))
    assert dict(gained) == keeper.held == {0: epoch_of(world, 0), 1: epoch_of(world, 1)}
    assert len(gained) == 2
    assert keeper.is_settled
    return True


def broken_off(world, session, plan, step, carried_out):
    """Carry out a plan except its n-th operation, whose answer is lost; False if there are fewer."""
    plan = one_by_one(plan)
    try:
        what = next(plan)
        for _ in range(step - 1):
            what = advance(world, session, plan, what)
    except StopIteration:
        return False
    if carried_out:
        with suppress(zk.ZooKeeperError):
            world.zookeeper.do(session, what)
    with pytest.raises(zk.ConnectionLossError):
        lose_all(plan)
    return True


def lose_all(plan):
    for _ in range(5):  # a plan may wait for the connection before it continues
        plan.throw(zk.ConnectionLossError())


def test_an_owner_that_an_operator_deletes_is_written_again():
    world = SlotWorld.settled(1, 2)
    slot = slot_with(world, 1)
    operator = world.zookeeper.connect("operator")
    world.zookeeper.settle()
    world.zookeeper.do(operator, zk.Delete(slot_owner_path(slot)))
    world.until(lambda: world.nodes[1].keeper.held.get(slot) == 2)
    world.settle()
    world.zookeeper.do(operator, zk.Delete(coordinator_path(1)))
    world.until(lambda: 1 not in world.nodes[2].keeper.live)
    world.until(lambda: 1 in world.nodes[2].keeper.live)
    world.settle()
    assert world.zookeeper.tree.find(coordinator_path(1)) is not None


def test_an_epoch_that_an_operator_raises_costs_the_next_write_only():
    world = SlotWorld.settled(1)
    assert world.commit("g", 1) == 0
    operator = world.zookeeper.connect("operator")
    world.zookeeper.settle()
    world.zookeeper.do(operator, zk.SetData(slot_epoch_path(world.slot_of("g")), b"me"))
    assert world.commit("g", 2) == ErrorCode.NOT_COORDINATOR
    world.settle()
    assert world.committed("g") == {0: 1}
    assert world.commit("g", 3) == 0


def test_znodes_that_cannot_be_read_stop_nobody():
    world = SlotWorld.settled(1)
    operator = world.zookeeper.connect("operator")
    world.zookeeper.settle()
    world.zookeeper.do(operator, zk.Create("/muster/coordinators/rubbish", b"{}"))
    world.zookeeper.do(operator, zk.Create("/muster/coordinators/8", b"{}"))
    slot = 2
    world.zookeeper.do(operator, zk.SetData(slot_owner_path(slot), b"rubbish"))
    keeper = world.nodes[1].keeper
    world.until(lambda: len(keeper.unreadable) == 2 and keeper.held.get(slot) == 2)
    assert set(keeper.unreadable) == {"/muster/coordinators/rubbish", "/muster/coordinators/8"}
    world.settle()


def test_only_what_changes_is_read():
    world = SlotWorld.settled(1, 2, 3)
    world.run(1_000)
    before = world.zookeeper.counts.copy()
    world.run(60_000)
    assert world.zookeeper.counts.since(before).reads == 0
    operator = world.zookeeper.connect("operator")
    world.zookeeper.settle()
    data, _ = world.zookeeper.do(operator, zk.GetData(slot_owner_path(0)))
    before = world.zookeeper.counts.copy()
    world.zookeeper.do(operator, zk.SetData(slot_owner_path(0), data))
    world.run(1_000)
    assert world.zookeeper.counts.since(before).reads == 3
