"""The simulated counterpart of the client's driver: links instead of sockets, the virtual clock instead of the real
one.

It has the real driver's contract (`client.core.sends`): one link for each node and channel, answers in order, every
`on_reply` called exactly once and never within `dispatch`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import Random
from typing import Any, Protocol

from muster.client.config import ClientConfig
from muster.client.core.backoff import Backoff
from muster.client.core.metadata import ClusterMetadata
from muster.client.core.sends import LEAST_LOADED, AnySend, Channel, Failure, FailureKind
from muster.errors import UnsupportedVersionError
from muster.protocol.primitives import Request
from tests.simulator.network import Link, Network, Nodes, Waiting


class Wire(Nodes, Protocol):
    """The other functions of the nodes that the driver uses."""

    node_ids: list[int]

    def newest_version(self, request_type: type[Request[Any]]) -> int:
        """The newest version of a request that the nodes support."""

    def over_the_wire(self, message: Any, version: int) -> Any:
        """The message as it arrives."""


class SimDriver:
    """The connections of one simulated client.

    `wakeup` is called after each delivery. While `frozen` the process is suspended: arriving messages wait.
    """

    setup_timeout_ms = 3_000

    def __init__(
        self,
        name: str,
        identity: str,
        config: ClientConfig,
        metadata: ClusterMetadata,
        network: Network,
        brokers: Wire,
        rng: Random,
        wakeup: Callable[[], None],
    ) -> None:
        self.name = name
        self.identity = identity
        self.on_sent: Callable[[Any], None] = lambda _request: None
        self.on_delivered: Callable[[Any], None] = lambda _answer: None
        self.config = config
        self.client_id = config.client_id
        self._metadata = metadata
        self._network = network
        self._brokers = brokers
        self._rng = rng
        self._wakeup = wakeup
        self._links: dict[tuple[int, Channel], Link] = {}
        self._backoffs: dict[int, Backoff] = {}
        self._retry_at: dict[int, int] = {}
        self._inbox: list[tuple[AnySend, Any]] = []
        self._frozen = False
        self._dead = False

    def dispatch(self, sends: Iterable[AnySend]) -> None:
        """Submit requests."""
        now = self._network.clock.now
        for send in sends:
            node_id = self._least_loaded() if send.node_id == LEAST_LOADED else send.node_id
            if send.node_id != LEAST_LOADED and node_id not in self._metadata.brokers:
                failure = Failure(FailureKind.UNREACHABLE, f"broker {node_id} is not known in the cluster")
                self._network.clock.call_later(0, self.deliver, send, failure)
                continue
            timeout_ms = self.config.request_timeout_ms if send.timeout_ms is None else send.timeout_ms
            self._link(node_id, send.channel).submit(Waiting(send, now + timeout_ms))

    def _link(self, node_id: int, channel: Channel) -> Link:
        link = self._links.get((node_id, channel))
        if link is None:
            link = self._links[node_id, channel] = self._network.connect(
                self, node_id, channel, self._brokers, self._retry_at.get(node_id, 0)
            )
        return link

    def _least_loaded(self) -> int:
        """A random node among those that did not fail lately, as the real driver chooses when loads are equal."""
        nodes = sorted(self._metadata.brokers) or self._brokers.node_ids
        now = self._network.clock.now
        good = [node for node in nodes if self._retry_at.get(node, 0) <= now] or self._brokers.node_ids
        return self._rng.choice(good)

    def build(self, waiting: Waiting) -> Request[Any] | Failure:
        """The request in the version that both sides support, through its codec if the wire is simulated too."""
        send, brokers = waiting.send, self._brokers
        version = brokers.newest_version(send.request_type)
        if send.newest_version is not None:
            version = min(version, send.newest_version)
        waiting.version = version
        try:
            request = send.build(version)
            self.on_sent(request)
            sent: Request[Any] = brokers.over_the_wire(request, version)
            return sent
        except UnsupportedVersionError as error:
            return Failure(FailureKind.UNSUPPORTED_VERSION, str(error))

    def disconnect(self, node_id: int, channel: Channel) -> None:
        """Close one link at the client's request."""
        link = self._links.pop((node_id, channel), None)
        if link is not None:
            link.close(Failure(FailureKind.DISCONNECTED, "no longer needed"))

    def deliver(self, send: AnySend, answer: Any) -> None:
        """Pass an answer to the core that asked."""
        if self._dead:
            return
        if self._frozen:
            self._inbox.append((send, answer))
            return
        self.on_delivered(answer)
        send.on_reply(answer, self._network.clock.now)
        self._wakeup()

    def on_open(self, link: Link) -> None:
        """The connection to the node is established."""
        self._backoffs.pop(link.node_id, None)
        self._retry_at.pop(link.node_id, None)

    def on_closed(self, link: Link) -> None:
        """A link is closed; the next one to its node waits a little."""
        key = (link.node_id, link.channel)
        if self._links.get(key) is not link:
            return
        del self._links[key]
        backoff = self._backoffs.get(link.node_id)
        if backoff is None:
            config = self.config
            backoff = Backoff(config.reconnect_backoff_ms, config.reconnect_backoff_max_ms, self._rng.getrandbits(31))
            self._backoffs[link.node_id] = backoff
        now = self._network.clock.now
        self._retry_at[link.node_id] = now + backoff.next_wait_ms()
        if not self._dead:
            self._metadata.request_update(now)
            self._wakeup()

    def freeze(self) -> None:
        """The process is suspended: nothing is delivered to it."""
        self._frozen = True

    def thaw(self) -> None:
        """The process resumes: everything that arrived meanwhile is delivered."""
        self._frozen = False
        inbox, self._inbox = self._inbox, []
        for send, answer in inbox:
            self.deliver(send, answer)
        self._wakeup()

    def kill(self) -> None:
        """The process is killed: its connections break, and no callback is called."""
        self._dead = True
        for link in list(self._links.values()):
            link.close(Failure(FailureKind.DISCONNECTED, "the process is gone"))
        self._links.clear()
