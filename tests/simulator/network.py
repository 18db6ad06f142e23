"""The wires between simulated clients and simulated brokers.

A `Link` is one TCP connection. Within it messages keep their order in either direction; between links nothing is
guaranteed, so a slow link's request may arrive after a later one on another. What can happen to a link:

- it is slow: each message has its own delay, occasionally a long one;
- it breaks (`Network.reset`): some of the requests in flight still arrive, their answers never do, and the client sees
  DISCONNECTED;
- its path is cut (`Network.cut`): nothing moves, in both directions or in one, until the path is healed, and neither
  end is notified. A client that gives up a request meanwhile closes its end; what it had sent may still arrive when the
  path is back;
- its broker dies: the client learns of it as soon as a packet can reach it. If the path is cut, and the client has
  nothing to send, that may never happen, and only its own timeout helps.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from random import Random
from typing import Any, Protocol

from muster.client.core.sends import AnySend, Channel, Failure, FailureKind
from tests.simulator.clock import Timer, VirtualClock

TO_BROKER, TO_CLIENT = "to broker", "to client"
BOTH_WAYS = (TO_BROKER, TO_CLIENT)


@dataclass(slots=True)
class Waiting:
    """A request without an answer, as the client stores it."""

    send: AnySend
    deadline: int
    version: int = 0


class LinkOwner(Protocol):
    """The functions of its client that a link uses; `SimDriver` is one."""

    name: str
    identity: str
    client_id: str
    setup_timeout_ms: int

    def build(self, waiting: Waiting) -> Any:
        """The request as it is sent, or a Failure."""

    def deliver(self, send: AnySend, answer: Any) -> None:
        """An answer, or a Failure."""

    def on_open(self, link: Link) -> None:
        """The connection to the node is established."""

    def on_closed(self, link: Link) -> None:
        """The link is closed."""


class FarEnd(Protocol):
    """A node's end of a link."""

    def receive(self, waiting: Waiting, request: Any) -> None:
        """A request has arrived."""

    def hang_up(self) -> None:
        """The connection has ended."""


class Nodes(Protocol):
    """The functions of the nodes that the network uses."""

    def is_up(self, node_id: int) -> bool:
        """Whether a node accepts connections."""

    def accept(self, link: Link) -> FarEnd:
        """A client has connected."""


class Pipe:
    """One direction of a link: messages in order, each with its delay."""

    __slots__ = ("_clock", "_deliver", "_is_cut", "_pumping", "queue")

    def __init__(self, clock: VirtualClock, deliver: Callable[[Any], None], is_cut: Callable[[], bool]) -> None:
        self.queue: deque[tuple[int, Any]] = deque()
        self._clock = clock
        self._deliver = deliver
        self._is_cut = is_cut
        self._pumping = False

    def push(self, message: Any, delay_ms: int) -> None:
        ready = self._clock.now + delay_ms
        if self.queue:
            ready = max(ready, self.queue[-1][0])
        self.queue.append((ready, message))
        if not self._pumping and not self._is_cut():
            self._pumping = True
            self._clock.call_at(ready, self.pump)

    def pump(self) -> None:
        self._pumping = False
        while self.queue and self.queue[0][0] <= self._clock.now and not self._is_cut():
            self._deliver(self.queue.popleft()[1])
        if self.queue and not self._pumping and not self._is_cut():
            self._pumping = True
            self._clock.call_at(self.queue[0][0], self.pump)


class Link:
    """One connection of a client to a node."""

    def __init__(self, network: Network, driver: LinkOwner, node_id: int, channel: Channel) -> None:
        self.node_id = node_id
        self.channel = channel
        self.driver = driver
        self.is_open = False
        self.is_closed = False
        self.in_flight: deque[Waiting] = deque()
        self.queue: deque[Waiting] = deque()
        self.far_end: FarEnd | None = None
        """None while the connection is being established, and when the broker is dead."""
        self._network = network
        self._timer: Timer | None = None
        self.to_broker = Pipe(network.clock, self._arrive, lambda: self.is_cut(TO_BROKER))
        self.to_client = Pipe(network.clock, self._answer, lambda: self.is_cut(TO_CLIENT))

    def __repr__(self) -> str:
        return f"{self.driver.name}->{self.node_id}/{self.channel.value}"

    def is_cut(self, direction: str) -> bool:
        """Whether its messages are stopped in a direction now."""
        cuts = self._network.cuts
        return bool(cuts) and (self.path, direction) in cuts

    @property
    def identity(self) -> str:
        """The identity of its member, for the checks."""
        return self.driver.identity

    @property
    def client_name(self) -> str:
        """The name of its process, for the checks."""
        return self.driver.name

    @property
    def path(self) -> tuple[str, int]:
        """The path that `Network.cut` cuts."""
        return self.driver.name, self.node_id

    # --- the client's end --------------------------------------------------------------------------------------------

    def submit(self, waiting: Waiting) -> None:
        """Send a request, or keep it until the connection is established."""
        if not self.is_open:
            self.queue.append(waiting)
        else:
            self._write(waiting)
        self._arm()

    def _write(self, waiting: Waiting) -> None:
        built = self.driver.build(waiting)
        if isinstance(built, Failure):
            self._network.clock.call_later(0, self.driver.deliver, waiting.send, built)
            return
        if self.in_flight:  # like the real connection: answers come in order, so none can come before those ahead
            waiting.deadline = max(waiting.deadline, self.in_flight[-1].deadline)
        self.in_flight.append(waiting)
        self.to_broker.push((waiting, built), self._network.delay_ms())

    def opened(self, far_end: FarEnd) -> None:
        """The connection is established: waiting requests are sent."""
        self.is_open = True
        self.far_end = far_end
        while self.queue:
            self._write(self.queue.popleft())
        self._arm()

    def close(self, failure: Failure) -> None:
        """Close it from the client's side; requests in flight get the failure."""
        if self.is_closed:
            return
        self.is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._network.forget(self)
        reported = [
            (w, failure if not i else Failure(FailureKind.DISCONNECTED, failure.message))
            for i, w in enumerate(self.in_flight)
        ]
        reported += [(w, Failure(FailureKind.UNREACHABLE, failure.message)) for w in self.queue]
        self.in_flight.clear()
        self.queue.clear()
        for waiting, why in reported:
            self.driver.deliver(waiting.send, why)
        self.driver.on_closed(self)

    def _arm(self) -> None:
        if self._timer is None and (self.in_flight or self.queue):
            due = min(w.deadline for w in (*list(self.in_flight)[:1], *self.queue))
            self._timer = self._network.clock.call_at(due, self._expire)

    def _expire(self) -> None:
        self._timer = None
        now = self._network.clock.now
        if self.in_flight and self.in_flight[0].deadline <= now:
            name = self.in_flight[0].send.request_type.__name__
            self.close(Failure(FailureKind.TIMEOUT, f"node {self.node_id} did not answer {name} in time"))
            return
        for waiting in [w for w in self.queue if w.deadline <= now]:
            self.queue.remove(waiting)
            failure = Failure(FailureKind.UNREACHABLE, f"could not be sent to node {self.node_id} in time")
            self.driver.deliver(waiting.send, failure)
        self._arm()

    def _answer(self, message: tuple[Waiting, Any] | None) -> None:
        if message is None:
            # A node may have died and restarted long before its client learns that the connection is closed: requests
            # that the client sent meanwhile were lost.
            self._network.note_disturbed(self.client_name)
            self.close(Failure(FailureKind.DISCONNECTED, f"node {self.node_id} closed the connection"))
        elif not self.is_closed:
            waiting, answer = message
            assert self.in_flight[0] is waiting, "answers come in the order of their requests"
            self.in_flight.popleft()
            self.driver.deliver(waiting.send, answer)

    # --- the broker's end --------------------------------------------------------------------------------------------

    def _arrive(self, message: tuple[Waiting, Any]) -> None:
        if self.far_end is not None:
            self.far_end.receive(*message)
        elif not self.is_closed:  # the far end no longer exists: the packet is answered with a reset
            self.reset_by_peer()

    def answer(self, waiting: Waiting, response: Any) -> None:
        """The broker's answer to a request."""
        if not self.is_closed:
            self.to_client.push((waiting, response), self._network.delay_ms())

    def reset_by_peer(self) -> None:
        """The broker's end is closed, and says so."""
        self.far_end = None
        self.to_client.push(None, self._network.delay_ms())


class Network:
    """All links, and the paths that are cut.

    Args:
        slow: how many of a thousand messages are delayed for a long time.
        late: how many of a hundred links that a client gives up still deliver what was in flight.
    """

    def __init__(self, clock: VirtualClock, rng: Random, *, slow: int = 10, late: int = 30) -> None:
        self.clock = clock
        self.slow = slow
        self.late = late
        self.cuts: set[tuple[tuple[str, int], str]] = set()
        self.links: list[Link] = []
        self._ghosts: list[Link] = []
        self._rng = rng
        self._disturbed: dict[str, int] = {}

    def delay_ms(self) -> int:
        """The delay of the next message."""
        if self.slow and self._rng.randrange(1000) < self.slow:
            return self._rng.randrange(50, 3_000)
        return self._rng.randrange(4)

    def connect(self, driver: LinkOwner, node_id: int, channel: Channel, nodes: Nodes, not_before: int) -> Link:
        """Begin to connect, not before a given time; the link accepts requests at once, and sends them when it is
        connected."""
        link = Link(self, driver, node_id, channel)
        self.links.append(link)
        begin = max(self.clock.now, not_before)
        self.clock.call_at(begin + self.delay_ms(), self._connect, link, nodes, begin + driver.setup_timeout_ms)
        return link

    def _connect(self, link: Link, nodes: Nodes, until: int) -> None:
        if link.is_closed:
            return
        if any(map(link.is_cut, BOTH_WAYS)):
            if self.clock.now >= until:
                link.close(Failure(FailureKind.UNREACHABLE, f"no connection to node {link.node_id}: no answer in time"))
            else:
                self.clock.call_at(min(until, self.clock.now + 500), self._connect, link, nodes, until)
        elif not nodes.is_up(link.node_id):
            link.close(Failure(FailureKind.UNREACHABLE, f"no connection to node {link.node_id}: refused"))
        else:
            link.opened(nodes.accept(link))
            link.driver.on_open(link)

    def forget(self, link: Link) -> None:
        """The client has closed a link. What is in flight on it arrives late, or is lost."""
        self.links.remove(link)
        if self._rng.randrange(100) >= self.late:
            link.to_broker.queue.clear()
        elif link.to_broker.queue:
            self._ghosts.append(link)

    def reset(self, link: Link) -> None:
        """Break a link: some of what is in flight arrives at the broker, no answer comes back."""
        self.note_disturbed(link.client_name)
        queue = link.to_broker.queue
        arriving = self._rng.randint(0, len(queue))
        while len(queue) > arriving:
            queue.pop()
        link.to_client.queue.clear()
        far_end, link.far_end = link.far_end, None
        if far_end is not None:
            for _, message in list(queue):
                far_end.receive(*message)
            far_end.hang_up()
        queue.clear()
        link.close(Failure(FailureKind.DISCONNECTED, "the connection was reset"))

    def cut(self, client: str, node_id: int, directions: Iterable[str] = BOTH_WAYS) -> None:
        """Block traffic between a client and a node, or in only one direction."""
        self.cuts.update(((client, node_id), direction) for direction in directions)
        self.note_disturbed(client)

    def is_cut(self, client: str, node_id: int) -> bool:
        """Whether anything is stopped between a client and a node."""
        return any(((client, node_id), direction) in self.cuts for direction in BOTH_WAYS)

    def note_disturbed(self, client: str) -> None:
        """Something that concerns a client was cut or broken, or was found to have been."""
        self._disturbed[client] = self.clock.now

    def undisturbed(self, client: str, since: int) -> bool:
        """Whether nothing that concerns a client was cut or broken since then."""
        is_cut = any(path[0] == client for path, _ in self.cuts)
        return not is_cut and self._disturbed.get(client, -1) < since

    def heal(self, client: str | None = None) -> None:
        """Let everything pass again, or everything of one client; stopped messages arrive now."""
        healed = {cut for cut in self.cuts if client in (None, cut[0][0])}
        self.cuts -= healed
        paths = {path for path, _ in healed}
        self._disturbed.update((path[0], self.clock.now) for path in paths)
        for link in list(self.links):
            if link.path in paths:
                link.to_broker.pump()
                link.to_client.pump()
        ghosts, self._ghosts = self._ghosts, []
        for link in ghosts:
            link.to_broker.pump()
            if link.to_broker.queue:
                self._ghosts.append(link)
