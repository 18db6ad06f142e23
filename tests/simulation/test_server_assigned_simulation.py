"""Members of scheme 2 with coordinators that crash and freeze: invariants, over many seeds."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from muster.zookeeper.server_assigned.states import ServerAssignedState
from tests.support.draft_lead import RealLead, SharedCells
from tests.support.draft_world import SESSION_MS, Disk, Lead, Model, World
from tests.support.scale import seeds

PARTITIONS = 5

MakeLead = Callable[[World], Lead]


def model(disk: Disk) -> MakeLead:
    return lambda world: Model(disk, world.now)


def real(disk: Disk) -> MakeLead:
    shared = SharedCells(disk)
    return lambda world: RealLead(shared, world.now)


both = pytest.mark.parametrize("coordinator", [model, real])


def disturb_coordinators(world: World, rng: Random) -> None:
    process = rng.choice(world.processes)
    was_leader = process.lead is not None
    match rng.randrange(4):
        case 0:
            world.elect()
        case 1 if process.is_up:
            world.crash(process)
            if was_leader:
                world.later(rng.randrange(0, 8_000), world.elect)
        case 2:
            process.is_up = True
        case 3 if process.is_frozen:
            world.wake(process)
        case 3:
            world.freeze(process)
            if was_leader:
                world.later(rng.randrange(500, 8_000), world.elect)


def disturb_members(world: World, rng: Random) -> None:
    consumer = rng.choice(world.consumers)
    match rng.randrange(3):
        case 0:
            consumer.is_frozen = not consumer.is_frozen
        case 1:
            consumer.is_up = False
        case 2:
            consumer.member.begin(world.now)


def story(world: World, rng: Random, turns: int) -> None:
    """Members and coordinators start, stop, freeze and resume; then everything works."""
    for _ in range(turns):
        world.run(rng.randrange(100, 6_000))
        rng.choice([disturb_coordinators, disturb_members])(world, rng)
    for process in world.processes:
        process.is_up = True
        world.wake(process)
    for consumer in world.consumers:
        consumer.is_frozen = False
    world.loss = 0.0
    if world.leader is None:
        world.elect()


def assert_all_is_shared_out(world: World, partitions: int) -> None:
    """Each partition has exactly one owner among the members that are up, which reads it."""
    living = [each for each in world.consumers if each.is_up]
    assert {each.member.state for each in living} <= {ServerAssignedState.STABLE}
    assert len({each.member.standing.generation_id for each in living}) <= 1
    owned = sorted(number for each in living for number in each.owned)
    assert owned == (list(range(partitions)) if living else [])
    assert all(each.positions.keys() == each.owned for each in living)
    assert [each.errors for each in world.consumers if each.errors] == []


def begin(world: World) -> None:
    world.elect()
    for consumer in world.consumers:
        consumer.member.begin(world.now)


@both
@pytest.mark.parametrize("seed", seeds(20))
def test_whatever_comes_the_group_settles_and_no_commit_goes_back(
    seed: int, coordinator: Callable[[Disk], MakeLead]
) -> None:
    rng = Random(seed)
    disk = Disk(PARTITIONS)
    world = World(seed, coordinator(disk), rng.randrange(1, 5), loss=rng.choice([0, 0.02, 0.1]))
    begin(world)
    story(world, rng, 12)
    world.run(20 * SESSION_MS)
    assert_all_is_shared_out(world, PARTITIONS)
    generation, offsets = disk.generation, dict(disk.offsets)
    world.run(2 * SESSION_MS)
    assert disk.generation == generation, "a group in which nothing happens does not rebalance"
    if any(each.is_up for each in world.consumers):
        assert all(disk.offsets[number] > offsets.get(number, 0) for number in range(PARTITIONS))
    assert disk.went_back == []


@both
def test_a_failover_is_not_a_rebalance(coordinator: Callable[[Disk], MakeLead]) -> None:
    disk = Disk(PARTITIONS)
    world = World(3, coordinator(disk), 3)
    begin(world)
    world.run(4 * SESSION_MS)
    assert_all_is_shared_out(world, PARTITIONS)
    generation = disk.generation
    owned = [each.owned for each in world.consumers]
    for _ in range(5):
        assert world.leader is not None
        dead = world.leader
        world.crash(dead)
        world.run(4_000)
        world.elect()
        dead.is_up = True
        world.run(3_000)
    assert disk.generation == generation
    assert [each.owned for each in world.consumers] == owned
    assert {each.member.state for each in world.consumers} == {ServerAssignedState.STABLE}


@both
def test_a_member_that_waits_in_a_join_finds_the_next_coordinator_of_a_frozen_one(
    coordinator: Callable[[Disk], MakeLead],
) -> None:
    disk = Disk(PARTITIONS)
    world = World(5, coordinator(disk), 2)
    first, second = world.consumers
    world.elect()
    first.member.begin(world.now)
    world.run(3_000)
    first.is_frozen = True  # so that the second one has to wait for it
    second.member.begin(world.now)
    world.run(1_500)
    assert second.member.state is ServerAssignedState.JOINING
    assert world.leader is not None
    world.freeze(world.leader)
    world.elect()
    world.run(5 * SESSION_MS)
    assert second.owned == set(range(PARTITIONS))
