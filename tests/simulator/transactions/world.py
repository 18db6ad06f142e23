"""The world of a life: its time, its processes, the network between clients and brokers, and what the clients know
about their own transactions, with which the checks compare the logs."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from muster.log import PartitionLog
from muster.model import TopicPartition
from muster.protocol import messages as m
from muster.protocol import transaction_messages as t
from muster.protocol.messages import ProduceRequest
from tests.simulator.checks import InvariantError
from tests.simulator.clock import VirtualClock
from tests.simulator.transactions.loop import VirtualLoop
from tests.simulator.transactions.node import CLOSED, Connection, Node
from tests.simulator.transactions.peers import Peer
from tests.simulator.zookeeper import SimZooKeeper

ANSWER_WITHIN_MS = 60_000
"""A request over a living connection is answered by then, unless the broker is suspended."""


class Disconnected(Exception):  # noqa: N818
    """The connection broke: the request may have been handled or not, or may still be handled later."""


@dataclass
class Attempt:
    """One transaction, from its producer's view."""

    name: str
    tv2: bool
    producer_id: int = -1
    epoch: int = -1
    sent: list[tuple[TopicPartition, str]] = field(default_factory=list)
    """Records, in the order of their first sending in each partition."""
    acked: list[tuple[TopicPartition, str]] = field(default_factory=list)
    places: dict[int, int] = field(default_factory=dict)
    """The reported offsets, by the record's number in `sent`."""
    offsets: list[tuple[str, TopicPartition, int]] = field(default_factory=list)
    """Group, partition, offset: acknowledged commits."""
    inputs: list[int] = field(default_factory=list)
    """The inputs that it processed."""
    asked: list[bool] = field(default_factory=list)
    """Each EndTxn that was sent: whether to commit."""
    reported: bool | None = None
    """The answer's report of the end: committed, aborted, or None."""
    reported_no_commit: bool = False
    """Whether the only EndTxn that asked to commit was refused."""
    by_client: bool = False
    """Whether muster's own producer runs it."""


@dataclass
class Faults:
    """Chances for a request: lost on the way, answer lost, arriving late, twice. `refused`: a batch of muster's
    producer is refused, as it would be by a topic's settings."""

    lost: float = 0.0
    lost_answer: float = 0.0
    late: float = 0.0
    twice: float = 0.0
    refused: float = 0.0


class World:
    """Time, the brokers, the clients' processes and the network.

    Args:
        root: a folder for the brokers' data.
        brokers: how many; one is standalone, several are a cluster on ZooKeeper.
        settings: those of every broker.
    """

    def __init__(self, root: Path, rng: Random, brokers: int = 1, settings: dict[str, object] | None = None) -> None:
        self.now = 0
        self.running: Node | None = None
        """The broker process whose turn it is."""
        self.rng = rng
        self.loop = VirtualLoop(lambda: self.now)
        """Timers outside of all processes: the network's, and those of faults."""
        self.clock = VirtualClock()
        self.zookeeper = SimZooKeeper(self.clock, rng, servers=2, tick_ms=100) if brokers > 1 else None
        self.nodes: dict[int, Node] = {}
        """The newest process of each broker."""
        self.processes: list[Node] = []
        """All processes of brokers, including those that another one has replaced."""
        self.machines: list[VirtualLoop] = []
        """The clients' processes."""
        self.faults = Faults()
        self.attempts: dict[str, Attempt] = {}
        self.fences: list[tuple[int, int, dict[TopicPartition, int]]] = []
        """Producer id, epoch, and where the logs ended when InitProducerId had returned them."""
        self.taken: dict[str, dict[str, int]] = {}
        """For each transactional id the processes that have taken it over, and when one last sent a request or got an
        answer."""
        self.is_lasting = True
        """Whether what brokers have acknowledged lasts, and time advances steadily."""
        self.sent: list[tuple[Any, int]] = []
        """Requests that may arrive again at any time."""
        self.after_turn: Callable[[Node], None] = lambda _node: None
        self.story: list[str] = []
        self._settings = settings or {}
        self._connections: dict[tuple[str, Node], Connection] = {}
        self._asked: dict[Any, tuple[int, Connection, Any]] = {}
        self.loop.set_exception_handler(lambda _loop, found: self._fail(found))
        self._failure: BaseException | None = None
        self._tasks: dict[Any, VirtualLoop] = {}
        for number in range(1, brokers + 1):
            self.place(number, root / f"b{number}")

    def place(self, node_id: int, root: Path) -> Node:
        """A broker's process on a folder, replacing the previous one; it is not started yet."""
        node = Node(self, node_id, root, 9_000 + len(self.processes), self._settings)
        self.nodes[node_id] = node
        self.processes.append(node)
        return node

    def tell(self, line: str) -> None:
        """Record an event, for the message of a failure."""
        self.story.append(f"{self.now:>7} {line}")

    @property
    def logs(self) -> list[PartitionLog]:
        """All logs, except those of a broker that is down."""
        return [log for node in self.nodes.values() for log in node.logs]

    # ---------------------------------------------------------------------------------------------------------- running

    def begin(self, work: Coroutine[Any, Any, None], *, for_ever: bool = False) -> VirtualLoop:
        """A client starts its work, which continues `for_ever` or ends, in its own process."""
        machine = VirtualLoop(lambda: self.now)
        machine.set_exception_handler(lambda _loop, found: self._fail(found))
        machine.dial = self._refuse
        self.machines = [each for each in self.machines if not each.is_closed()] + [machine]
        task = machine.create_task(work)
        if not for_ever:
            self._tasks[task] = machine
        task.add_done_callback(self._ended)
        return machine

    @staticmethod
    def _refuse(*_: Any) -> Any:
        raise AssertionError("clients have connections of the world's")

    def _ended(self, task: Any) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and task.exception() is not None:
            self._failure = self._failure or task.exception()

    def _fail(self, found: dict[str, Any]) -> None:
        self._failure = self._failure or found.get("exception") or InvariantError(str(found))

    def kill(self, machine: VirtualLoop) -> None:
        """End a client's process: kill -9."""
        self._tasks = {task: each for task, each in self._tasks.items() if each is not machine}
        machine.kill()

    @property
    def is_idle(self) -> bool:
        """Whether all clients have ended except those that continue forever."""
        return not self._tasks

    def run(self, for_ms: int, until: Callable[[], bool] = lambda: False) -> None:
        """Let time pass."""
        end = self.now + for_ms
        while not until():
            due, turn = self._next(end + 1)
            if due > end:
                break
            self.now = self.clock.now = max(self.now, due)
            turn()
            self._raise()
        else:
            return
        self.now = self.clock.now = end

    def _next(self, end: int) -> tuple[int, Callable[[], Any]]:
        """What is due first, at `end` at the latest; if several are due now, the first one found."""
        due, turn = end, self._turn_of_zookeeper
        for node in self.processes:
            if (at := node.next_due()) is not None and at < due:
                due, turn = at, partial(self._turn_of, node)
                if due <= self.now:
                    return due, turn
        if (at := self.clock.next_due()) is not None and at < due:
            due, turn = at, self._turn_of_zookeeper
        for loop in self.machines:
            if (at := loop.next_due()) is not None and at < due:
                due, turn = at, loop.turn
                if due <= self.now:
                    return due, turn
        if (at := self.loop.next_due()) is not None and at < due:
            due, turn = at, self.loop.turn
        return due, turn

    def _turn_of(self, node: Node) -> None:
        node.turn()
        self.after_turn(node)

    def _turn_of_zookeeper(self) -> None:
        self.clock.advance(0)

    def _raise(self) -> None:
        for node in self.processes:
            if node.problems:
                problem = node.problems.pop()
                raise problem if isinstance(problem, InvariantError) else InvariantError(f"{node}: {problem!r}")
        if self._failure is not None:
            raise self._failure

    def later(self, after_ms: int, callback: Callable[..., Any], *arguments: Any) -> None:
        """Call back in the world's time."""
        self.loop.call_later(after_ms / 1000, callback, *arguments)

    def end(self) -> None:
        """Everything is stopped."""
        for node in self.processes:
            node.kill()
        for machine in self.machines:
            machine.kill()
        self.loop.drop()

    def takes_id(self, transactional_id: str, process: str) -> None:
        """A process requests the ids of a transactional id, or may do so. The abort of a fenced process also counts: in
        v2 it looks like a repetition of the abort that fenced it, and is answered with the currently valid ids."""
        self.taken.setdefault(transactional_id, {})[process] = self.now

    def fenced(self, producer_id: int, epoch: int) -> None:
        """A producer has its ids: from now on no older epoch writes."""
        self.fences.append((producer_id, epoch, {log.topic_partition: log.log_end_offset for log in self.logs}))

    async def sleep(self, ms: int) -> None:
        """Let time pass for one client."""
        await asyncio.sleep(ms / 1000)

    # ---------------------------------------------------------------------------------------------------------- network

    def at(self, host: str, port: int) -> Node | None:
        """The process with this address."""
        return next((node for node in self.processes if node.address == (host, port)), None)

    def dial(self, node: Node, protocol: Any, address: tuple[str, int]) -> Peer:
        """Connect a broker to another; raises OSError."""
        found = self.at(*address)
        connection = found.connect(f"{node}") if found is not None else None
        if connection is None:
            raise ConnectionRefusedError(f"nobody listens at {address}")
        return Peer(self, node, protocol, connection)

    def route(self, request: Any) -> Node | None:
        """The process to ask, according to some broker, which may be outdated; None if it knows none."""
        if self.zookeeper is None:
            return self.nodes[1]
        some = [node for node in self.processes if node.is_ready and not node.is_frozen]
        if not some:
            return None
        node = self.rng.choice(some)
        found = node.inside(lambda: _place(node.broker, request))
        return node if found is _ANYWHERE else found and self.at(found.host, found.port)

    async def ask(self, by: str, request: Any, version: int, *, again: bool = False) -> Any:
        """Send a request and wait for its answer. `again`: it may also come late, and again at any later time. Raises
        Disconnected."""
        rng, faults = self.rng, self.faults
        if again:
            self.sent.append((request, version))
        node = self.route(request)
        connection = None if node is None else self._connections.get((by, node))
        if node is None or connection is None or not connection.is_open:
            found = None if node is None else node.connect(by)
            if node is None or found is None:
                await self.sleep(10)
                raise Disconnected
            connection = self._connections[by, node] = found
        dice = rng.random()
        future = asyncio.get_running_loop().create_future()
        if dice < faults.lost:
            self._break(connection)
            await self.sleep(rng.randint(0, 20))
            raise Disconnected
        dice -= faults.lost
        if again and dice < faults.late:
            self._break(connection)
            self.later(rng.randint(1, 3_000), self.send_once, request, version)
            await self.sleep(rng.randint(0, 20))
            raise Disconnected
        if again and rng.random() < faults.twice:
            self.later(rng.randint(0, 300), self.send_once, request, version)
        is_lost = rng.random() < faults.lost_answer
        self._asked[future] = (self.now, connection, request)
        self.later(rng.randint(0, 3), self._deliver, connection, request, version, future)
        if is_lost:
            self.later(rng.randint(0, 30), self._break, connection)
        elif self.zookeeper is not None:
            self.later(5_000, self._break_if_waiting, future, connection)
        answer = await future
        if answer is CLOSED:
            raise Disconnected
        return answer

    def _break_if_waiting(self, future: Any, connection: Connection) -> None:
        """A client gives up a suspended broker of a cluster: another one may serve."""
        if future in self._asked and connection.node.is_frozen:
            self._break(connection)

    def _break(self, connection: Connection) -> None:
        self._connections = {key: each for key, each in self._connections.items() if each is not connection}
        connection.node.close(connection)
        for future, (_, via, _) in list(self._asked.items()):
            if via is connection:
                self._back(future, CLOSED)

    def _deliver(self, connection: Connection, request: Any, version: int, future: Any) -> None:
        def answered(answer: Any) -> None:
            self.later(self.rng.randint(0, 3), self._back, future, answer)

        if connection.is_open:
            connection.receive(_copied(request), version, answered)
        else:
            self._back(future, CLOSED)

    def _back(self, future: Any, answer: Any) -> None:
        self._asked.pop(future, None)
        if not future.done() and not future.get_loop().is_closed():
            future.set_result(answer)

    def send_once(self, request: Any, version: int, node: Node | None = None) -> None:
        """A request comes on its own connection, and nobody waits for the answer."""
        node = node or self.route(request)
        connection = node.connect("ghost") if node is not None else None
        if connection is not None:
            connection.receive(_copied(request), version, lambda _answer: None)

    def check_answers(self, within_ms: int = ANSWER_WITHIN_MS) -> None:
        """Every request that was sent long ago is answered."""
        for asked_at, connection, request in self._asked.values():
            if self.now - asked_at > within_ms and connection.is_open and not connection.node.is_frozen:
                raise InvariantError(f"a {type(request).__name__} was not answered within {within_ms} ms")


_ANYWHERE = object()
_TO_COORDINATOR = (m.InitProducerIdRequest, t.AddPartitionsToTxnRequest, t.AddOffsetsToTxnRequest, t.EndTxnRequest)


def _place(broker: Any, request: Any) -> Any:
    """The coordinator or leader for a request, according to a broker."""
    if isinstance(request, m.ProduceRequest):
        topic = request.topic_data[0]
        return broker.locator.leader(TopicPartition(topic.name, topic.partition_data[0].index))
    if isinstance(request, m.FetchRequest):
        [fetched] = request.topics
        return broker.locator.leader(TopicPartition(fetched.topic, fetched.partitions[0].partition))
    if isinstance(request, t.WriteTxnMarkersRequest):
        marked = request.markers[0].topics[0]
        return broker.locator.leader(TopicPartition(marked.name, marked.partition_indexes[0]))
    if isinstance(request, m.OffsetFetchRequest):
        broker.groups.ensure()
        return broker.coordination.coordinator(request.groups[0].group_id)
    if isinstance(request, m.OffsetCommitRequest | t.TxnOffsetCommitRequest):
        broker.groups.ensure()
        return broker.coordination.coordinator(request.group_id)
    if type(request) in _TO_COORDINATOR:
        broker.transactions.ensure()
        is_addition = isinstance(request, t.AddPartitionsToTxnRequest)
        name = request.v3_and_below_transactional_id if is_addition else request.transactional_id
        return broker.transactions.coordinator(name)
    return _ANYWHERE


def _copied(request: Any) -> Any:
    """As it is after it was sent: the log numbers batches in place."""
    return copy.deepcopy(request) if isinstance(request, ProduceRequest) else request
