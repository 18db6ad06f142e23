"""Simulated nodes: which of them are up, their ends of the links, and which node answers a request.

Groups are coordinated by the broker's own rules (`coordinators`), records are in memory (`records`). The leader of a
partition depends on which nodes are up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

from muster.coordinator.groups.config import GroupConfig
from muster.coordinator.runtime import Client, CoordinatorRuntime
from muster.errors import ErrorCode
from muster.model import TopicPartition
from muster.protocol import codec
from muster.protocol import messages as m
from muster.protocol.primitives import Request
from tests.simulator.checks import Invariants, Limits
from tests.simulator.checks.offsets import Records
from tests.simulator.clock import VirtualClock
from tests.simulator.coordinators import LOOK_MS, SimCoordinators
from tests.simulator.network import Link, Waiting
from tests.simulator.records import SimRecords, SimTopics, host

GROUP_REQUESTS = (
    m.HeartbeatRequest,
    m.OffsetCommitRequest,
    m.OffsetFetchRequest,
    m.JoinGroupRequest,
    m.SyncGroupRequest,
    m.LeaveGroupRequest,
    m.DeleteGroupsRequest,
)
_PIPELINED = (m.OffsetCommitRequest, m.OffsetFetchRequest)


class BrokerEnd:
    """A node's end of a link: requests are read one after the other, answers are sent in the same order."""

    def __init__(self, brokers: SimBrokers, link: Link) -> None:
        self.link = link
        self.is_gone = False
        self._brokers = brokers
        self._unread: deque[tuple[Waiting, Any]] = deque()
        self._slots: deque[list[Any]] = deque()
        self._blocked = False

    def receive(self, waiting: Waiting, request: Any) -> None:
        """A request has arrived."""
        if not self.is_gone:
            self._unread.append((waiting, request))
            self.read()

    def read(self) -> None:
        """Read what can be read, unless the node is suspended."""
        frozen = self._brokers.frozen
        while self._unread and not self._blocked and not self.is_gone and self.link.node_id not in frozen:
            waiting, request = self._unread.popleft()
            slot = [waiting, None]
            self._slots.append(slot)
            self._brokers.handle(self, request, waiting.version, partial(self._reply, slot))
            # A join stops its connection until it is answered, a commit does not.
            self._blocked = slot[1] is None and not isinstance(request, _PIPELINED)

    def _reply(self, slot: list[Any], response: Any) -> None:
        slot[1] = response
        self._blocked = False
        while self._slots and self._slots[0][1] is not None:
            waiting, answer = self._slots.popleft()
            if not self.is_gone:
                self.link.answer(waiting, self._brokers.over_the_wire(answer, waiting.version))
        self._brokers.clock.call_later(0, self.read)

    def hang_up(self) -> None:
        """The connection is closed: what has not been read will not be read."""
        self.is_gone = True


class SimBrokers:
    """All nodes of the simulated cluster."""

    def __init__(
        self,
        clock: VirtualClock,
        rng: Random,
        topics: dict[str, int],
        groups: list[str],
        *,
        nodes: int,
        config: GroupConfig,
        limits: Limits,
        lazy_log: bool,
        skew_ms: int,
        wire: bool,
        versions: dict[type[Request[Any]], int],
        trace: Callable[[str, str], None],
    ) -> None:
        self.clock = clock
        self.node_ids = list(range(1, nodes + 1))
        self.topics = SimTopics(topics)
        self.topics.leader_of = self.leader
        self.records = SimRecords(clock, self, self.topics, rng)
        self.coordinators = SimCoordinators(
            clock, rng, self.topics, config, groups, lazy_log=lazy_log, skew_ms=skew_ms, trace=trace
        )
        self.asked = Records(self.topics.next_record, self.topics.log_starts)
        self.invariants = self.coordinators.invariants = Invariants(
            limits, lambda: clock.now, self.coordinators.logs, self.asked, self.topics.topic_name
        )
        self.coordinator = 1
        """The node that coordinates, or was the last one to do so."""
        self.frozen: set[int] = set()
        self._dark: set[TopicPartition] = set()
        self._rng = rng
        self._wire = wire
        self._versions = versions
        self._trace = trace
        self._up = set(self.node_ids)
        self._epoch = 0
        self._ends: dict[int, list[BrokerEnd]] = {node: [] for node in self.node_ids}
        clock.call_later(LOOK_MS, self._look)

    def _look(self) -> None:
        self.coordinators.look()
        self.clock.call_later(LOOK_MS, self._look)

    # --- nodes -------------------------------------------------------------------------------------------------------

    @property
    def runtime(self) -> CoordinatorRuntime | None:
        """The coordinator's runtime, None if there is no coordinator."""
        current = self.coordinators.current
        return None if current is None else current.runtime

    def is_up(self, node_id: int) -> bool:
        """Whether a node accepts connections."""
        return node_id in self._up

    def accept(self, link: Link) -> BrokerEnd:
        """A client has connected."""
        end = BrokerEnd(self, link)
        self._ends[link.node_id].append(end)
        return end

    def newest_version(self, request_type: type[Request[Any]]) -> int:
        """The newest version of a request that the nodes support."""
        return self._versions.get(request_type, request_type.MAX_VERSION)

    def over_the_wire(self, message: Any, version: int) -> Any:
        """The message as it arrives: through the codec, if that is simulated too."""
        return codec.decode(type(message), version, codec.encode(message, version)) if self._wire else message

    def start_coordinator(self, node_id: int) -> None:
        """Make a node load the logs, and coordinate the groups from now on."""
        self.coordinator = node_id
        self.coordinators.begin(node_id)

    def kill(self, node_id: int) -> None:
        """A node dies at once. If it was the coordinator, what was not durable in its logs may be lost."""
        self._trace(f"node {node_id}", "dies")
        self._up.discard(node_id)
        self.frozen.discard(node_id)
        self._epoch += 1
        for end in self._ends[node_id]:
            end.hang_up()
            if not end.link.is_closed:
                end.link.reset_by_peer()
        self._ends[node_id].clear()
        self.coordinators.forget(node_id)
        current = self.coordinators.current
        if current is not None and current.node_id == node_id:
            self.coordinators.die()

    def start(self, node_id: int) -> None:
        """A node restarts; if there is no coordinator, it becomes the coordinator."""
        if node_id in self._up:
            return
        self._trace(f"node {node_id}", "starts")
        self._up.add(node_id)
        self._epoch += 1
        if self.runtime is None and node_id == self.coordinator:
            self.start_coordinator(node_id)

    def take_over(self) -> None:
        """Another node that is up becomes the coordinator, if there is none."""
        free = [node for node in sorted(self._up) if self.coordinators.at(node) is None]
        if self.runtime is None and free:
            self.start_coordinator(self._rng.choice(free))

    def move_coordinator(self, node_id: int) -> None:
        """Hand the groups over to another node properly, as when leadership is rebalanced."""
        if self.runtime is not None and node_id in self._up and self.coordinators.at(node_id) is None:
            self.thaw(self.coordinator)
            self.coordinators.resign()
            self.start_coordinator(node_id)

    def depose_coordinator(self, for_ms: int) -> None:
        """Another node takes over, and the former coordinator does not notice it for a while."""
        free = [node for node in sorted(self._up) if self.coordinators.at(node) is None]
        if self.runtime is not None and free:
            self.coordinators.depose(for_ms)
            self.start_coordinator(self._rng.choice(free))

    def freeze(self, node_id: int) -> None:
        """A node is suspended: a long pause of the process or of its machine. For the node it is as if its clock had
        jumped."""
        self._trace(f"node {node_id}", "stands still")
        self.frozen.add(node_id)
        coordinator = self.coordinators.at(node_id)
        if coordinator is not None:
            coordinator.is_frozen = True

    def thaw(self, node_id: int) -> None:
        """A node resumes: with the work that became due meanwhile, and the messages that arrived, in either order."""
        if node_id not in self.frozen:
            return
        self._trace(f"node {node_id}", "goes on")
        self.frozen.discard(node_id)
        coordinator = self.coordinators.at(node_id)
        reads_first = self._rng.randrange(2)
        self.coordinators.is_well_again()
        if reads_first:
            self._read(node_id)
        if coordinator is not None:
            coordinator.thaw()
        if not reads_first:
            self._read(node_id)

    def _read(self, node_id: int) -> None:
        for end in list(self._ends[node_id]):
            end.read()

    def leader(self, partition: TopicPartition) -> tuple[int, int]:
        """The node that leads a partition now, -1 if none can, and the leader epoch."""
        up = [] if partition in self._dark else sorted(self._up)
        return (up[partition.partition % len(up)] if up else -1), self._epoch

    # --- requests ----------------------------------------------------------------------------------------------------

    def handle(self, end: BrokerEnd, request: Any, version: int, reply: Callable[[Any], None]) -> None:
        """Answer a request that a node has read, now or later."""
        link, node_id = end.link, end.link.node_id
        if isinstance(request, GROUP_REQUESTS):
            client = Client(link.driver.client_id, f"/{link.client_name}", version)
            self.coordinators.submit(node_id, request, client, link, reply)
        elif isinstance(request, m.FindCoordinatorRequest):
            reply(self._find_coordinator(request, node_id))
        elif not self.records.handle(request, node_id, reply):
            raise TypeError(f"the simulated nodes do not know {type(request).__name__}")

    def _find_coordinator(self, request: m.FindCoordinatorRequest, node_id: int) -> m.FindCoordinatorResponse:
        known = self.runtime is not None or self._rng.randrange(2)  # otherwise old news, or no news
        believes = any(stale.node_id == node_id for stale in self.coordinators.stale)
        coordinator = node_id if believes else self.coordinator
        found, name, port = (coordinator, host(coordinator), 9092) if known else (-1, "", -1)
        error = ErrorCode.NONE if known else ErrorCode.COORDINATOR_NOT_AVAILABLE
        if request.coordinator_keys:
            key = request.coordinator_keys[0]
            return m.FindCoordinatorResponse(coordinators=[m.Coordinator(key, found, name, port, error)])
        return m.FindCoordinatorResponse(error_code=error, node_id=found, host=name, port=port)

    # --- topics ------------------------------------------------------------------------------------------------------

    def produce(self, partition: TopicPartition, count: int) -> None:
        """Append records; fetches that wait for them are answered."""
        self.records.write(partition, count)

    def truncate(self, partition: TopicPartition, offset: int) -> None:
        """Lose records: a follower that lagged is the leader now."""
        self._epoch += 1
        self.asked.unsure.add(partition)
        self.topics.logs[partition].truncate(offset)

    def grow(self, name: str, count: int) -> None:
        """Set a topic's number of partitions; create it if it does not exist."""
        self.topics.grow(name, count)
        self.coordinators.topics_changed([name])

    def darken(self, partition: TopicPartition) -> None:
        """A partition has no leader until `lighten`."""
        self._trace("admin", f"{partition} has no leader")
        self._dark.add(partition)
        self.coordinators.topics_changed([partition.topic])

    def lighten(self, partition: TopicPartition) -> None:
        """A partition has a leader again, with another epoch."""
        if partition in self._dark:
            self._trace("admin", f"{partition} has a leader again")
            self._dark.discard(partition)
            self._epoch += 1
            self.coordinators.topics_changed([partition.topic])

    @property
    def dark(self) -> list[TopicPartition]:
        """The partitions without a leader."""
        return sorted(self._dark)

    def delete_topic(self, name: str) -> None:
        """Delete a topic, and the offsets that groups have committed for it."""
        self.asked.unsure.update(partition for partition in self.topics.logs if partition.topic == name)
        self.invariants.durable.topic_may_vanish(name)
        self.topics.delete(name)
        self.coordinators.topic_deleted(name)
