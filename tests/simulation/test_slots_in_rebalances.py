"""A coordinator comes back while its groups rebalance at another one: the rebalance is not started again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from muster.coordinator.groups.effects import RebalanceStarted
from muster.errors import ErrorCode
from muster.protocol.messages import (
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    MemberIdentity,
    SyncGroupRequest,
)
from muster.protocol.messages import SyncGroupRequestAssignment as Share
from tests.support.scale import fresh_seeds, seeds
from tests.support.slot_world import SESSION_MS, SlotWorld, join_request

GROUPS = [f"g{number}" for number in range(6)]
SLOWEST_MS = 9_000
"""How long a member's handler may keep it from joining; its session timeout is longer."""


class Joiner:
    """A member that finds the coordinator, joins, syncs and heartbeats; a slow handler may keep it from joining."""

    def __init__(self, world: SlotWorld, group_id: str) -> None:
        self.world, self.group_id = world, group_id
        self.member_id, self.generation = "", -1
        self.has_left = False
        self._tries = 0
        self._join()

    def leave(self) -> None:
        self.has_left = True
        self._ask(LeaveGroupRequest(self.group_id, members=[MemberIdentity(self.member_id)]), 4, lambda _: None)

    def _later(self, delay_ms: int, call: Callable[[], None]) -> None:
        self.world.clock.call_later(delay_ms, lambda: None if self.has_left else call())

    def _ask(self, request: Any, version: int, take: Callable[[Any], None]) -> None:
        """Ask the coordinator, and another one if it refers the member to that or does not answer."""
        self._tries += 1
        asked = self._tries
        world, slot = self.world, self.world.slot_of(self.group_id)
        owners = {node.keeper.owner(slot) for node in world.nodes.values() if not node.session.is_frozen}
        owner = world.rng.choice(sorted(each for each in owners if each) or [0])

        def again() -> None:
            if asked == self._tries and (not self.has_left or isinstance(request, LeaveGroupRequest)):
                self._ask(request, version, take)

        def reply(answer: Any) -> None:
            if asked != self._tries:
                return
            if answer.error_code in (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS):
                world.clock.call_later(100, again)
            else:
                take(answer)

        if not owner:
            world.clock.call_later(100, again)
            return
        world.nodes[owner].submit(request, version, reply)
        if not isinstance(request, JoinGroupRequest):
            world.clock.call_later(1_500, again)

    def _join(self) -> None:
        self._ask(join_request(self.group_id, self.member_id), 5, self._joined)

    def _joined(self, answer: Any) -> None:
        if answer.error_code == ErrorCode.NONE:
            self.member_id, self.generation = answer.member_id, answer.generation_id
            shares = [Share(each.member_id, b"x") for each in answer.members]
            request = SyncGroupRequest(self.group_id, self.generation, self.member_id, assignments=shares)
            self._ask(request, 3, self._reported)
        else:
            self.member_id = answer.member_id if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED else ""
            self._join()

    def _reported(self, answer: Any) -> None:
        match answer.error_code:
            case ErrorCode.NONE:
                self._later(500, self._heartbeat)
            case ErrorCode.REBALANCE_IN_PROGRESS:
                self._later(self.world.rng.choice((0, 300, SLOWEST_MS)), self._join)
            case _:
                self.member_id = ""
                self._join()

    def _heartbeat(self) -> None:
        self._ask(HeartbeatRequest(self.group_id, self.generation, self.member_id), 3, self._reported)


def formed(world: SlotWorld, members: list[Joiner]) -> bool:
    """Whether every group has one generation, with all its members that have not left."""
    there = [each for each in members if not each.has_left]
    standing = {(each.group_id, each.generation) for each in there}
    return (
        all(each.generation > 0 for each in there)
        and len(standing) == len({each.group_id for each in there})
        and not any(node.runtime.is_rebalancing(slot) for node in world.nodes.values() for slot in range(world.slots))
    )


@pytest.mark.parametrize("seed", [*seeds(20), *fresh_seeds(4)])
def test_a_coordinator_that_comes_back_restarts_no_rebalance(seed: int) -> None:
    world = SlotWorld(seed, servers=3)
    world.start(1, 2, 3)
    world.settle()
    members = [Joiner(world, name) for name in GROUPS for _ in range(3)]
    world.until(lambda: formed(world, members))
    away = world.nodes[world.rng.choice((1, 2, 3))]
    away.freeze()
    world.run(3 * SESSION_MS)  # others have its slots
    started = [len(node.events) for node in world.everyone]
    for each in world.rng.sample(members, 6):
        each.leave()
        world.run(world.rng.choice((0, 50, 2_000)))
    world.clock.call_later(world.rng.randint(0, 6_000), away.thaw)
    world.run(30_000)
    world.until(lambda: formed(world, members) and world.is_settled())
    begun: dict[tuple[str, int], set[int]] = {}
    for node, known in zip(world.everyone, started, strict=True):
        for event in node.events[known:]:
            if isinstance(event, RebalanceStarted):
                begun.setdefault((event.group_id, event.generation_id), set()).add(node.node_id)
    assert {key: nodes for key, nodes in begun.items() if len(nodes) > 1} == {}
