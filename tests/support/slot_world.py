"""Coordinators that share slots, on an in-memory ZooKeeper: the real rules, store and runtime, and simple clients.

A `SimNode` does the same as a broker: runs the keeper's turns, passes slots to its runtime, and refuses every request
while its session is in doubt.
"""

from __future__ import annotations

from random import Random
from typing import Any

from muster.coordinator.groups.config import GroupConfig
from muster.coordinator.runtime import Client, CoordinatorRuntime
from muster.coordinator.shards.shards import ShardHost
from muster.errors import ErrorCode, MusterError
from muster.log.producers.producer_state import PartitionProducers
from muster.protocol import messages as m
from muster.protocol.group_partitions import group_partition
from muster.zookeeper.base.znodes import CoordinatorRegistration
from muster.zookeeper.cluster.group_store import GroupStore
from muster.zookeeper.cluster.slots import SlotKeeper, preferred
from tests.simulator import VirtualClock
from tests.simulator.zookeeper import SimZooKeeper
from tests.support.group_harness import DEFAULT_PROTOCOLS, FakeTopics

SESSION_MS = 4_000
SLOTS = 4
START_MS = 1_700_000_000_000


def runner(session):
    """`group_store.Runner` over a simulated session."""

    def run(plan, then):
        return session.run(plan, then=lambda done: then(done.error if done.error is not None else done.result)).cancel

    return run


class SimNode:
    """A process that coordinates the groups of its slots."""

    def __init__(self, world: SlotWorld, node_id: int) -> None:
        self.world = world
        self.node_id = node_id
        self.is_dead = self.is_running = self.is_due = False
        self.wants_flush = False
        self.history: list[tuple[int, int, int]] = []
        self.events: list[Any] = []
        self._set_aside: list[Any] = []
        self._ids = 0
        self.session = world.zookeeper.connect(f"node {node_id}", timeout_ms=SESSION_MS, listener=self._on_event)
        self.keeper = SlotKeeper(node_id, self._gained, self._lost, world.slots, self._is_busy)
        self.store = GroupStore(runner(self.session), self._news, PartitionProducers, self._fenced)
        config = GroupConfig(group_initial_rebalance_delay_ms=0, offsets_topic_num_partitions=world.slots)
        self.runtime = CoordinatorRuntime(
            world.config or config,
            self.store,
            ShardHost(
                lambda: world.clock.now + START_MS,
                self.events.append,
                self._schedule_flush,
                later=lambda load: self.later(1, load),
            ),
            topics=world.topics,
            new_member_id=self._new_member_id,
        )
        self.runtime.take_none()
        self.later(100, self._tick)

    # --- the shell ---------------------------------------------------------------------------------------------------

    def later(self, delay_ms: int, call: Any) -> None:
        def due() -> None:
            if self.session.is_frozen:
                self._set_aside.append(due)
            elif not self.is_dead:
                call()

        self.world.clock.call_later(delay_ms, due)

    def _on_event(self, event: Any) -> None:
        if not self.is_dead and self.keeper.on_event(event):
            self.wake()

    def wake(self) -> None:
        self.is_due = True
        if not (self.is_running or self.is_dead) and self.session.session_id:
            self.is_due, self.is_running = False, True
            self.session.run(self.keeper.turn(CoordinatorRegistration("localhost", self.node_id)), then=self._turned)

    def _turned(self, running: Any) -> None:
        self.is_running = False
        if running.error is not None:
            assert isinstance(running.error, MusterError), running.error
            self.later(self.world.rng.randint(20, 200), self.wake)
        elif self.is_due:
            self.wake()

    def _gained(self, slot: int, epoch: int) -> None:
        self.history.append((self.world.clock.now, slot, epoch))
        assert self.runtime.load(slot, epoch)

    def _lost(self, slot: int) -> None:
        self.runtime.unload(slot)

    def _is_busy(self, slot: int) -> bool:
        return self.runtime.is_rebalancing(slot)

    def _news(self) -> None:
        if not self.is_dead:
            self.runtime.release_durable()

    def _fenced(self, slot: int, epoch: int) -> None:
        if self.keeper.fenced(slot, epoch):
            self.wake()

    def _schedule_flush(self) -> None:
        if not self.wants_flush:
            self.wants_flush = True
            self.later(0, self._flush)

    def _flush(self) -> None:
        self.wants_flush = False
        self.runtime.flush()

    def _tick(self) -> None:
        deadline = self.runtime.next_deadline()
        if deadline is not None and deadline <= self.world.clock.now + START_MS:
            self.runtime.on_deadlines(self.world.clock.now + START_MS)
        if self.keeper.release_kept():
            self.wake()
        self.later(100, self._tick)

    def _new_member_id(self, prefix: str) -> str:
        self._ids += 1
        return f"{prefix}-{self.node_id}-{self._ids}"

    # --- events ---------------------------------------------------------------------------------------

    def kill(self) -> None:
        self.is_dead = True
        self.session.freeze()

    def freeze(self) -> None:
        self.session.freeze()

    def thaw(self) -> None:
        self.session.thaw()
        set_aside, self._set_aside = self._set_aside, []
        for due in set_aside:
            self.world.clock.call_later(0, due)

    def submit(self, request: Any, version: int, reply: Any) -> None:
        """A request arrives; or an action on the groups' runtime."""
        if not self.session.is_live:
            self.keeper.drop_all()
            self.wake()
        if callable(request):
            request(self.runtime, reply)
            return
        self.runtime.submit(request, Client("client", "/127.0.0.1", version), reply)


class SlotWorld:
    def __init__(self, seed: int = 0, *, servers: int = 1, lag_ms: int = 0, slots: int = SLOTS, config: Any = None):
        self.rng = Random(seed)
        self.clock = VirtualClock()
        self.slots = slots
        self.config = config
        self.topics = FakeTopics(t=40, u=2)
        self.zookeeper = SimZooKeeper(self.clock, Random(seed + 1), servers=servers, lag_ms=lag_ms)
        self.nodes: dict[int, SimNode] = {}
        self.everyone: list[SimNode] = []

    @classmethod
    def settled(cls, *node_ids: int, **settings: Any) -> SlotWorld:
        """A world with these nodes, which share the slots."""
        world = cls(**settings)
        world.start(*node_ids)
        world.settle()
        return world

    def start(self, *node_ids: int) -> None:
        for node_id in node_ids:
            self.nodes[node_id] = SimNode(self, node_id)
            self.everyone.append(self.nodes[node_id])

    def kill(self, node_id: int) -> SimNode:
        node = self.nodes.pop(node_id)
        node.kill()
        return node

    def run(self, milliseconds: int) -> None:
        self.clock.advance(milliseconds)

    def until(self, what: Any, within_ms: int = 60_000) -> None:
        assert self.clock.run_until(what, within_ms)

    def is_settled(self) -> bool:
        """Whether no slot is about to move: all nodes know each other, and every slot is served by one coordinator, the
        one that should have it according to all of them."""
        nodes = [node for node in self.nodes.values() if not node.session.is_frozen]
        ids = {node.node_id for node in nodes}
        return all(node.keeper.is_settled and ids <= node.keeper.live.keys() for node in nodes) and all(
            {node.keeper.owner(slot) for node in nodes} == {preferred(slot, nodes[0].keeper.live)}
            and (owner := nodes[0].keeper.owner(slot)) in self.nodes
            and slot in self.nodes[owner].runtime._served
            for slot in range(self.slots)
        )

    def settle(self) -> None:
        self.until(self.is_settled)

    def slot_of(self, group_id: str) -> int:
        return group_partition(group_id, self.slots)

    def owners(self, group_id: str) -> set[int | None]:
        """The nodes that have a group, each according to itself, except suspended ones."""
        slot = self.slot_of(group_id)
        return {node.keeper.owner(slot) for node in self.nodes.values() if not node.session.is_frozen}

    def coordinator(self, group_id: str) -> SimNode:
        """The node that has a group, according to all."""
        [owner] = self.owners(group_id)
        assert owner is not None
        return self.nodes[owner]

    def ask(self, node: SimNode, request: Any, version: int, within_ms: int = 60_000) -> Any:
        answers: list[Any] = []
        node.submit(request, version, answers.append)
        self.until(lambda: bool(answers), within_ms)
        return answers[0]

    # --- requests ----------------------------------------------------------------------------------------------------

    def commit(self, group_id: str, offset: int, partition: int = 0, node: SimNode | None = None, **member: Any) -> int:
        answer = self.ask(
            node or self.coordinator(group_id), commit_request(group_id, {partition: offset}, **member), 8
        )
        return int(answer.topics[0].partitions[0].error_code)

    def committed(self, group_id: str, node: SimNode | None = None) -> dict[int, int] | int:
        """The group's committed offsets in topic `t`, or the error."""
        request = m.OffsetFetchRequest(groups=[m.OffsetFetchRequestGroup(group_id, topics=None)])
        [group] = self.ask(node or self.coordinator(group_id), request, 8).groups
        if group.error_code:
            return int(group.error_code)
        return {each.partition_index: each.committed_offset for topic in group.topics for each in topic.partitions}

    def heartbeat(self, group_id: str, generation: int, member_id: str, node: SimNode | None = None) -> ErrorCode:
        request = m.HeartbeatRequest(group_id, generation, member_id)
        return ErrorCode(self.ask(node or self.coordinator(group_id), request, 4).error_code)

    def form(
        self, group_id: str, members: int = 2, bytes_each: int = 20, padding: bytes = b""
    ) -> tuple[int, list[str]]:
        """Create a stable group; returns its generation, and the ids of its members, the leader first."""
        node = self.coordinator(group_id)
        ids = [self.ask(node, join_request(group_id), 5).member_id for _ in range(members)]
        joined = self._join_all(node, group_id, ids)
        # Each join after the first makes the earlier members rejoin.
        while len({answer.generation_id for answer in joined}) > 1:
            joined = self._join_all(node, group_id, ids)
        leader, generation = joined[0].leader, joined[0].generation_id
        shares = [m.SyncGroupRequestAssignment(each, each.encode().ljust(bytes_each, b".") + padding) for each in ids]
        answer = self.ask(node, m.SyncGroupRequest(group_id, generation, leader, assignments=shares), 3)
        assert answer.error_code == 0, ErrorCode(answer.error_code)
        return generation, sorted(ids, key=lambda each: each != leader)

    def _join_all(self, node: SimNode, group_id: str, member_ids: list[str]) -> list[Any]:
        answers: list[Any] = []
        for member_id in member_ids:
            node.submit(join_request(group_id, member_id), 5, answers.append)
        self.until(lambda: len(answers) == len(member_ids))
        return answers

    def share(self, group_id: str, generation: int, member_id: str) -> bytes:
        """A member's assignment, requested again."""
        request = m.SyncGroupRequest(group_id, generation, member_id)
        answer = self.ask(self.coordinator(group_id), request, 3)
        assert answer.error_code == 0, ErrorCode(answer.error_code)
        return bytes(answer.assignment)

    def znodes(self, slot: int | None = None) -> list[str]:
        """The paths below `/muster/groups`, of all slots or one."""
        prefix = "/muster/groups/" if slot is None else f"/muster/groups/{slot}/"
        return [path for path in self.zookeeper.tree.paths() if path.startswith(prefix) and path.count("/") == 4]


def join_request(group_id: str, member_id: str = "") -> m.JoinGroupRequest:
    protocols = [m.JoinGroupRequestProtocol(*item) for item in DEFAULT_PROTOCOLS.items()]
    return m.JoinGroupRequest(group_id, 30_000, 60_000, member_id, None, "consumer", protocols)


def commit_request(
    group_id: str, offsets: dict[int, int], generation: int = -1, member_id: str = "", metadata: str = ""
) -> m.OffsetCommitRequest:
    partitions = [
        m.OffsetCommitRequestPartition(partition, offset, committed_metadata=metadata)
        for partition, offset in offsets.items()
    ]
    return m.OffsetCommitRequest(
        group_id, generation, member_id, topics=[m.OffsetCommitRequestTopic("t", partitions=partitions)]
    )
