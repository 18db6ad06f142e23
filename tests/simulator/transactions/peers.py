"""What a simulated broker has instead of sockets: its session with ZooKeeper, and connections to other brokers, over
which the real links send their bytes."""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from muster.errors import ClosedError, MusterError
from muster.protocol import codec, framing
from muster.protocol.messages import ApiVersionsRequest
from muster.protocol.transaction_messages import AddPartitionsToTxnRequest, WriteTxnMarkersRequest
from muster.zookeeper.base import operations as zk
from tests.simulator.zookeeper import Running, SimSession

if TYPE_CHECKING:
    from tests.simulator.transactions.node import Connection, Node
    from tests.simulator.transactions.world import World

T = TypeVar("T")

CLOSED = "closed"
_HEAD = struct.Struct(">hhih")


class Session:
    """`broker.cluster.follower.Session` over a simulated one. ZooKeeper's events are handled in the broker's loop."""

    def __init__(self, node: Node, sim: SimSession) -> None:
        self.sim = sim
        self._node = node

    @property
    def timeout_ms(self) -> int:
        """The timeout agreed with ZooKeeper."""
        return self.sim.timeout_ms

    @property
    def is_live(self) -> bool:
        """Whether no other session sees this one expired."""
        return self.sim.is_live

    async def start(self) -> None:
        """Connect."""
        await self.run(zk.ask(zk.Reconnected()))

    async def close(self) -> None:
        """End the session."""
        self.sim.close()

    def listen(self, listener: Callable[[zk.Watched | zk.SessionEvent], None], /) -> None:
        """Register a listener for events."""
        self.sim.listen(lambda event: self._node.inside(lambda: listener(event)))

    async def run(self, plan: zk.Plan[T], /) -> T:
        """Carry out a plan."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def done(running: Running[T]) -> None:
            if loop.is_closed() or future.done():
                return
            if running.error is not None:
                future.set_exception(running.error)
            else:
                future.set_result(running.result)

        running = self.sim.run(self._inside(plan), then=done)
        try:
            return await future
        except asyncio.CancelledError:
            running.cancel()
            raise

    def _inside(self, plan: zk.Plan[T]) -> zk.Plan[T]:
        outcome: Any = None
        while True:
            step = self._node.inside(partial(_step, plan, outcome))
            if step is None:
                raise ClosedError("the process was killed")
            what, done = step
            if done is not None:
                return done[0]  # type: ignore[no-any-return]
            try:
                outcome = yield what
            except MusterError as error:
                outcome = error


def _step(plan: zk.Plan[Any], outcome: Any) -> tuple[Any, tuple[Any] | None]:
    try:
        return zk.next_ask(plan, outcome), None
    except StopIteration as over:
        return None, (over.value,)


class Peer(asyncio.Transport):
    """A connection of a broker to another, with asyncio's interface. Markers of producers with an epoch for each
    transaction, and verifications, may come late, twice, or again at any time."""

    def __init__(self, world: World, node: Node, protocol: Any, connection: Connection) -> None:
        super().__init__()
        self._world = world
        self._node = node
        self._protocol = protocol
        self._connection = connection
        self._buffer = bytearray()
        self._answers: deque[list[Any]] = deque()
        self._is_over = False
        self._there: deque[tuple[Any, list[Any]]] = deque()
        self._back: deque[Callable[[], Any]] = deque()
        node.peers.append(self)
        node.loop.call_soon(protocol.connection_made, self)

    # --- requests
    # -------------------------------------------------------------------------------------------------------

    def writelines(self, list_of_data: Any) -> None:
        """Take frames."""
        self._buffer += b"".join(bytes(part) for part in list_of_data)
        while len(self._buffer) >= 4:
            end = 4 + int.from_bytes(self._buffer[:4], "big")
            if len(self._buffer) < end:
                return
            frame = bytes(self._buffer[4:end])
            del self._buffer[:end]
            self._send(frame)

    def _send(self, frame: bytes) -> None:
        world, rng, faults = self._world, self._world.rng, self._world.faults
        key, version, correlation_id, client_length = _HEAD.unpack_from(frame, 0)
        api = self._connection.node.apis[key]
        kind, at = api.request, _HEAD.size + max(client_length, 0) + (version >= api.tags_from)
        request: Any = codec.decode(kind, version, frame, at)
        slot: list[Any] = [kind, version, correlation_id, None]
        self._answers.append(slot)
        may_repeat = may_come_again(request)
        dice = rng.random()
        if kind is not ApiVersionsRequest:
            if may_repeat:
                world.sent.append((request, version))
            if dice < faults.lost:
                world.later(rng.randint(0, 20), self._break)
                return
            if may_repeat and dice < faults.lost + faults.late:
                world.later(rng.randint(1, 3_000), world.send_once, request, version, self._connection.node)
                world.later(rng.randint(0, 20), self._break)
                return
            if may_repeat and rng.random() < faults.twice:
                world.later(rng.randint(0, 300), world.send_once, request, version, self._connection.node)
            if rng.random() < faults.lost_answer:
                world.later(rng.randint(0, 30), self._break)
        self._there.append((request, slot))
        world.later(rng.randint(0, 3), self._arrive)

    def _arrive(self) -> None:
        request, slot = self._there.popleft()
        if not self._connection.is_open:
            self._break()
        elif not self._is_over:
            self._connection.receive(request, slot[1], partial(self._answered, slot))

    # --- answers
    # --------------------------------------------------------------------------------------------------------

    def _answered(self, slot: list[Any], answer: Any) -> None:
        slot[3] = answer
        while self._answers and self._answers[0][3] is not None:
            kind, version, correlation_id, found = self._answers.popleft()
            if found == CLOSED:
                self._break()
                return
            data = b"".join(bytes(part) for part in framing.encode_response(found, kind, version, correlation_id))
            self._tell(self._protocol.data_received, data)

    def _tell(self, call: Callable[..., Any], *arguments: Any) -> None:
        if not self._node.loop.is_closed():
            self._back.append(partial(call, *arguments))
            self._node.loop.call_later(self._world.rng.randint(0, 3) / 1_000, lambda: self._back.popleft()())

    def _break(self) -> None:
        """The connection is broken; the broker learns of it after what has arrived."""
        if not self._is_over:
            self.abort()
            self._tell(self._protocol.connection_lost, None)

    def abort(self) -> None:
        """The broker closes it, or has died."""
        if not self._is_over:
            self._is_over = True
            self._node.peers.remove(self)
            self._connection.node.close(self._connection)


def may_come_again(request: Any) -> bool:
    """Whether a partition or coordinator can distinguish a request from one of the producer's next transaction."""
    if isinstance(request, WriteTxnMarkersRequest):
        return all(marker.transaction_version >= 2 for marker in request.markers)
    return isinstance(request, AddPartitionsToTxnRequest)
