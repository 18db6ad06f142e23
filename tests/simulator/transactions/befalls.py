"""What happens to the processes of a life: brokers are killed, lose power, are suspended, are replaced while they are,
lose ZooKeeper; clients are killed and suspended; requests come again."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from random import Random
from typing import Any

from muster.protocol import transaction_messages as t
from tests.simulator.transactions.loop import VirtualLoop
from tests.simulator.transactions.node import SESSION_MS, Node
from tests.simulator.transactions.plan import Plan
from tests.simulator.transactions.world import Faults, World


class Befalls:
    """The faults of one life, at random moments. `clients` are the processes that may be hit, each with a function that
    starts its replacement, None if its own program does."""

    def __init__(self, world: World, plan: Plan) -> None:
        self.world = world
        self.plan = plan
        self.clients: dict[VirtualLoop, Callable[[], None] | None] = {}
        self.markers: list[tuple[Any, Any]] = []
        """Markers that may come again, with their partitions."""
        self.before_cut: Callable[[], None] = lambda: None
        self._is_over = False
        self._replaced = 0

    @property
    def _rng(self) -> Random:
        return self.world.rng

    def begin(self) -> None:
        """Cause faults from now on, for the length of the life."""
        plan = self.plan
        moments = {
            self._kill: plan.kills,
            self._cut: plan.cuts,
            self._freeze: plan.freezes,
            self._fill_disk: plan.full_disks,
            self._set_clock: plan.clock_steps,
            self._haunt: plan.ghosts,
            self._replace: plan.moves,
            self._doubt: plan.doubts,
            self._kill_client: plan.client_kills,
            self._freeze_client: plan.client_freezes,
        }
        for fault, times in moments.items():
            for _ in range(times):
                self.world.later(self._rng.randrange(plan.length_ms), fault)

    def end(self) -> None:
        """No more faults, and everything that can run does, soon."""
        self._is_over = True
        self.world.faults = Faults()
        self._thaw_all()
        self.world.later(2_500, self._start_for_good)

    def _thaw_all(self) -> None:
        for node in self.world.processes:
            self._thaw(node)
        for machine in self.world.machines:
            machine.thaw()
        if self.world.zookeeper is not None:
            for session in self.world.zookeeper.sessions:
                self.world.zookeeper.heal(session)

    def _start_for_good(self) -> None:
        self._thaw_all()
        for node in self.world.nodes.values():
            if node.broker is not None:
                node.disk.kill_after, node.disk.refused = None, 0
            self._start(node)
        self.world.later(1_000, self._keep_running)

    def _keep_running(self) -> None:
        """A broker that could not start because ZooKeeper still has its last session is started again."""
        for node in self.world.nodes.values():
            self._start(node)
        self.world.later(1_000, self._keep_running)

    # --- brokers -----------------------------------------------------------------------------------------------------

    def _node(self) -> Node:
        return self._rng.choice(list(self.world.nodes.values()))

    def _is_current(self, node: Node) -> bool:
        return self.world.nodes[node.node_id] is node

    def _start(self, node: Node) -> None:
        if node.broker is None and self._is_current(node):
            self.world.tell(f"{node} is started")
            node.start()

    def _kill(self) -> None:
        node = self._node()
        if node.broker is not None:
            node.disk.kill_after = self._rng.choice((0, 1, 2, 5, 10, 20))
            self.world.tell(f"{node} dies in {node.disk.kill_after} writes")
        self.world.later(self._rng.randint(200, 1_500), self._kill_for_sure, node)

    def _kill_for_sure(self, node: Node) -> None:
        if self._is_current(node):
            node.kill()
            self.world.later(self._rng.randint(0, 800), self._start, node)

    def _cut(self) -> None:
        node = self._node()
        if node.broker is not None:
            self.world.tell(f"the power of {node} fails")
            node.cut_power()
            self.before_cut()
        self.world.later(self._rng.randint(0, 800), self._start, node)

    def _freeze(self) -> None:
        node, for_ms = self._node(), self._rng.choice((500, 2_000, 5_000))
        node.freeze()
        self.world.tell(f"{node} stands still for {for_ms} ms")
        self.world.later(for_ms, self._thaw, node)

    def _thaw(self, node: Node) -> None:
        """Resume a frozen process. One that is being replaced waits until its successor serves, so that they do not
        race for the id."""
        if not self.world.nodes[node.node_id].is_ready and not self._is_current(node):
            self.world.later(200, self._thaw, node)
        elif node.is_frozen:
            self.world.tell(f"{node} goes on")
            node.thaw()

    def _fill_disk(self) -> None:
        node = self._node()
        if node.is_ready:  # partitions that cannot be opened for lack of space are not served until the next start
            node.disk.refused = self._rng.choice((1, 2, 5))

    def _set_clock(self) -> None:
        node = self._node()
        node.wall_ms += self._rng.choice((-3_600_000, -5_000, 5_000, 3_600_000))
        self.world.tell(f"the time of day of {node} is off by {node.wall_ms} ms")

    def _replace(self) -> None:
        """A broker is suspended for longer than its session timeout; another process is started with its id, elsewhere,
        on a copy of its folder. Then the first one resumes."""
        node = self._node()
        if self._is_over or not node.is_ready or node.is_frozen:
            return
        node.freeze()
        self.world.tell(f"{node} stands still, to be replaced")
        self.world.later(SESSION_MS + self._rng.randint(0, 1_500), self._replace_now, node)

    def _replace_now(self, node: Node) -> None:
        assert self.world.zookeeper is not None
        is_gone = node.session is not None and not self.world.zookeeper.is_alive(node.session.sim.session_id)
        if self._is_over or not self._is_current(node) or node.broker is None or not (node.is_frozen and is_gone):
            return
        self._replaced += 1
        root = node.root.with_name(f"{node.root.name}-{self._replaced}")
        shutil.copytree(node.root, root)
        newer = self.world.place(node.node_id, root)
        newer.on_start, newer.work_ms, newer.wall_ms = node.on_start, node.work_ms, node.wall_ms
        self.world.tell(f"{newer} takes the place of {node}")
        newer.start()
        self.world.later(self._rng.randint(200, 4_000), self._thaw, node)

    def _doubt(self) -> None:
        zookeeper = self.world.zookeeper
        assert zookeeper is not None
        session = self._node().session
        if session is None or self._is_over:
            return
        what = self._rng.randrange(3)
        self.world.tell(f"ZooKeeper and {session.sim}: {('reset', 'expired', 'cut off')[what]}")
        if what == 0:
            zookeeper.reset(session.sim)
        elif what == 1:
            zookeeper.expire(session.sim)
        else:
            zookeeper.cut(session.sim)
            self.world.later(self._rng.choice((500, 2_500)), zookeeper.heal, session.sim)

    # --- clients -----------------------------------------------------------------------------------------------------

    def _client(self) -> VirtualLoop | None:
        self.clients = {each: again for each, again in self.clients.items() if not each.is_closed()}
        some = [each for each in self.clients if not each.is_frozen]
        return self._rng.choice(some) if some and not self._is_over else None

    def _kill_client(self) -> None:
        machine = self._client()
        again = self.clients.get(machine) if machine is not None else None
        if machine is not None and again is not None:
            self.world.tell(f"{machine.name} is killed")
            self.world.kill(machine)
            self.world.later(self._rng.randint(0, 500), again)

    def _freeze_client(self) -> None:
        machine, for_ms = self._client(), self._rng.choice((300, 1_500, 3_000, 8_000))
        if machine is None:
            return
        machine.is_frozen = True
        self.world.tell(f"{machine.name} stands still for {for_ms} ms")
        self.world.later(for_ms, self._thaw_client, machine)
        again = self.clients[machine]
        if again is not None and self._rng.random() < 0.3:  # others assume that it is dead
            self.clients[machine] = None
            self.world.later(self._rng.randint(0, for_ms), again)

    def _thaw_client(self, machine: VirtualLoop) -> None:
        if machine.is_frozen and not machine.is_closed():
            self.world.tell(f"{machine.name} goes on")
            machine.thaw()

    # --- requests ----------------------------------------------------------------------------------------------------

    def _haunt(self) -> None:
        """A former request comes again."""
        rng, world = self._rng, self.world
        if self.markers and rng.random() < 0.3:
            marker, where = rng.choice(self.markers)
            topics = [t.WritableTxnMarkerTopic(where.topic, [where.partition])]
            asked = t.WritableTxnMarker(
                marker.producer_id,
                marker.producer_epoch,
                marker.committed,
                topics,
                marker.coordinator_epoch,
                marker.transaction_version,
            )
            world.send_once(t.WriteTxnMarkersRequest([asked]), 2)
        elif world.sent:
            world.send_once(*rng.choice(world.sent[-40:] if rng.random() < 0.7 else world.sent))
