"""Replaces `client.net.driver.Driver` in a life: one client's connections to the world's brokers.

It keeps the driver's contract (`client.core.sends`): a connection for each node and channel, requests and answers in
order through their codecs, an answer or a `Failure` for each, and the end of the connection when a request times out.
Faults are the world's. Late or repeated requests may reach a broker after the connection has ended.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from random import Random
from typing import Any

from muster.client.config import ClientConfig
from muster.client.core.backoff import Backoff
from muster.client.core.metadata import ClusterMetadata
from muster.client.core.sends import LEAST_LOADED, AnySend, Channel, Failure, FailureKind
from muster.client.net.measures import Measures
from muster.errors import ErrorCode, UnsupportedVersionError
from muster.protocol import codec
from muster.protocol.messages import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from muster.protocol.transaction_messages import EndTxnRequest, TxnOffsetCommitRequest
from tests.simulator.transactions.loop import VirtualLoop
from tests.simulator.transactions.node import CLOSED, Connection
from tests.simulator.transactions.world import World

SETUP_TIMEOUT_MS = 3_000
_REPEATED_FROM = {ProduceRequest: 0, TxnOffsetCommitRequest: 5, EndTxnRequest: 5}
"""Requests that may come late, twice or again, and since which version: brokers can distinguish them from those of the
next transaction. For a batch, its sequence shows that in every version, because an abort settles what is in flight
(`must_settle`)."""


@dataclass(eq=False)
class _Sent:
    send: AnySend
    request: Any
    frame: bytes
    version: int
    deadline: int
    answer: Any = None

    @property
    def may_come_again(self) -> bool:
        """Whether a broker may see it when the client no longer waits for its answer."""
        first = _REPEATED_FROM.get(self.send.request_type)
        return first is not None and self.version >= first


class ClientDriver:
    """The connections of one client. `is_v2`: whether brokers report `transaction.version` 2 when one opens."""

    def __init__(
        self, world: World, name: str, config: ClientConfig, metadata: ClusterMetadata, is_v2: Callable[[], bool]
    ) -> None:
        self.wakeup: Callable[[], None] = lambda: None
        self.on_error: Callable[[Exception], None] = lambda error: None
        self.on_sent: Callable[[Any], None] = lambda _request: None
        self.on_answer: Callable[[Any, Any], None] = lambda _request, _answer: None
        self.measures = Measures()
        self.world = world
        self.name = name
        self.config = config
        self.metadata = metadata
        self.is_dead = False
        self.connections: list[Any] = []
        self.rng: Random = world.rng
        self._is_v2 = is_v2
        loop: Any = asyncio.get_running_loop()
        self.loop: VirtualLoop = loop
        self.loop.on_end.append(self.kill)
        self._links: dict[tuple[int, Channel], _Link] = {}
        self._retry_at = 0
        self._backoff = Backoff(config.reconnect_backoff_ms, config.reconnect_backoff_max_ms, self.rng.getrandbits(31))

    # --- for the client ----------------------------------------------------------------------------------------------

    def now(self) -> int:
        """The world's time."""
        return self.world.now

    async def start(self) -> None:
        """Nothing is connected before a request is sent."""

    async def close(self) -> None:
        """Close every connection."""
        for link in list(self._links.values()):
            link.close(Failure(FailureKind.DISCONNECTED, "the client was closed"))

    def dispatch(self, sends: Iterable[AnySend]) -> None:
        """Submit requests."""
        for send in sends:
            if self.is_dead:
                return
            node_id, address = self._where(send.node_id)
            if address is None:
                failure = Failure(FailureKind.UNREACHABLE, f"broker {send.node_id} is not known in the cluster")
                self.later(0, self.deliver, send, failure)
                continue
            key = node_id, send.channel
            link = self._links.get(key)
            if link is not None and link.address != address:
                link.close(Failure(FailureKind.DISCONNECTED, f"broker {node_id} moved to {address}"))
                link = None
            if link is None:
                link = self._links[key] = _Link(self, key, address, self._retry_at)
            timeout_ms = self.config.request_timeout_ms if send.timeout_ms is None else send.timeout_ms
            link.submit(send, timeout_ms)

    def _where(self, node_id: int) -> tuple[int, tuple[str, int] | None]:
        """A broker by its id, and its address; for any broker, a known one, or one of the client's bootstrap
        addresses."""
        known = self.metadata.brokers
        if node_id == LEAST_LOADED:
            if not known or self.rng.random() < 0.1:
                node_id = self.rng.choice(list(self.world.nodes))
                return -node_id - 1, self.world.nodes[node_id].address
            node_id = self.rng.choice(list(known))
        found = known.get(node_id)
        return node_id, None if found is None else (found.host, found.port)

    def disconnect(self, node_id: int, channel: Channel) -> None:
        """Close a connection that is no longer needed."""
        link = self._links.pop((node_id, channel), None)
        if link is not None:
            link.close(Failure(FailureKind.DISCONNECTED, "no longer needed"))

    def kill(self) -> None:
        """The process is dead. What it has sent may still arrive."""
        self.is_dead = True
        for link in list(self._links.values()):
            link.abandon()
        self._links.clear()

    def later(self, after_ms: int, callback: Callable[..., Any], *arguments: Any) -> None:
        """Call back in the client's process, unless it has ended."""
        if not self.loop.is_closed():
            self.loop.call_later(after_ms / 1_000, callback, *arguments)

    # --- for the connections -----------------------------------------------------------------------------------------

    def deliver(self, send: AnySend, answer: Any) -> None:
        """Pass a request its answer, then poll the cores."""
        if self.is_dead:
            return
        try:
            send.on_reply(answer, self.world.now)
        except Exception as error:
            self.on_error(error)
        self.wakeup()

    def on_open(self) -> None:
        """The handshake is complete."""
        self._backoff.reset()
        self._retry_at = 0
        is_v2 = self._is_v2()
        self.metadata.learn_features(int(is_v2), {"transaction.version": 2} if is_v2 else {})

    def on_closed(self, link: _Link) -> None:
        """The next connection waits."""
        if self._links.get(link.key) is link:
            del self._links[link.key]
            self._retry_at = self.world.now + self._backoff.next_wait_ms()
            if not self.is_dead:
                self.metadata.request_update(self.world.now)
                self.wakeup()


class _Link:
    """One connection: requests that wait for it to open, requests in flight to the broker, and requests that wait for
    answers."""

    def __init__(self, driver: ClientDriver, key: tuple[int, Channel], address: tuple[str, int], open_at: int) -> None:
        self.key = key
        self.address = address
        self._driver = driver
        self._world = driver.world
        self._connection: Connection | None = None
        self._queue: deque[tuple[AnySend, int]] = deque()
        self._on_the_way: deque[_Sent] = deque()
        self._in_flight: deque[_Sent] = deque()
        self._is_closed = False
        self._give_up_at = max(open_at, driver.now()) + SETUP_TIMEOUT_MS
        driver.later(max(0, open_at - driver.now()) + driver.rng.randint(0, 2), self._open)

    def _open(self) -> None:
        node, driver = self._world.at(*self.address), self._driver
        if self._is_closed:
            return
        if node is not None and node.is_frozen and node.broker is not None and driver.now() < self._give_up_at:
            driver.later(50, self._open)  # the handshake is not answered
            return
        self._connection = None if node is None or node.is_frozen else node.connect(driver.name)
        if self._connection is None:
            self.close(Failure(FailureKind.UNREACHABLE, "no connection to the broker"))
            return
        driver.on_open()
        self._flush()

    def submit(self, send: AnySend, timeout_ms: int) -> None:
        """Submit a request."""
        self._queue.append((send, self._driver.now() + timeout_ms))
        self._driver.later(timeout_ms, self._expire)
        self._driver.later(0, self._flush)

    # --- requests
    # -------------------------------------------------------------------------------------------------------

    def _flush(self) -> None:
        while self._connection is not None and self._queue and not self._is_closed:
            send, deadline = self._queue.popleft()
            sent = self._built(send, deadline)
            if isinstance(sent, Failure):
                self._driver.deliver(send, sent)
            else:
                self._write(sent)

    def _built(self, send: AnySend, deadline: int) -> _Sent | Failure:
        assert self._connection is not None
        api = self._connection.node.apis[send.request_type.API_KEY]
        version = min(api.last, send.request_type.MAX_VERSION)
        if send.newest_version is not None:
            version = min(version, send.newest_version)
        try:
            request = send.build(version)
        except UnsupportedVersionError as error:
            return Failure(FailureKind.UNSUPPORTED_VERSION, str(error))
        self._driver.on_sent(request)
        if self._in_flight:  # answers arrive in order
            deadline = max(deadline, self._in_flight[-1].deadline)
        return _Sent(send, request, codec.encode(request, version), version, deadline)

    def _write(self, sent: _Sent) -> None:
        world, rng, faults = self._world, self._driver.rng, self._world.faults
        self._in_flight.append(sent)
        if isinstance(sent.request, ProduceRequest) and rng.random() < faults.refused:
            sent.answer = _refusal(sent)
            self._driver.later(rng.randint(0, 3), self._take_answers)
            return
        again = sent.may_come_again
        if again and sent.version != _V1_PRODUCE:
            world.sent.append((_arrived(sent), sent.version))
        dice = rng.random()
        if dice < faults.lost:
            self._driver.later(rng.randint(0, 20), self._break)
            return
        dice -= faults.lost
        if again and dice < faults.late:
            world.later(rng.randint(1, 3_000), world.send_once, _arrived(sent), sent.version)
            self._driver.later(rng.randint(0, 20), self._break)
            return
        if again and rng.random() < faults.twice:
            world.later(rng.randint(0, 300), world.send_once, _arrived(sent), sent.version)
        if rng.random() < faults.lost_answer:
            self._driver.later(rng.randint(0, 30), self._break)
        self._on_the_way.append(sent)
        world.later(rng.randint(0, 3), self._arrive)

    def _arrive(self) -> None:
        if self._is_closed or not self._on_the_way:
            return
        assert self._connection is not None
        if not self._connection.is_open:
            self._driver.later(0, self._break)
            return
        sent = self._on_the_way.popleft()

        def answered(answer: Any) -> None:
            if answer is not CLOSED:
                answer = codec.decode(type(answer), sent.version, codec.encode(answer, sent.version))
            sent.answer = answer
            self._driver.later(self._driver.rng.randint(0, 3), self._take_answers)

        self._connection.receive(_arrived(sent), sent.version, answered)

    # --- answers
    # --------------------------------------------------------------------------------------------------------

    def _take_answers(self) -> None:
        while self._in_flight and self._in_flight[0].answer is not None and not self._is_closed:
            sent = self._in_flight.popleft()
            if sent.answer is CLOSED:
                self._in_flight.appendleft(sent)
                self._break()
                return
            self._driver.on_answer(sent.request, sent.answer)
            self._driver.deliver(sent.send, sent.answer)

    def _break(self) -> None:
        self.close(Failure(FailureKind.DISCONNECTED, "the connection broke"))

    def _expire(self) -> None:
        now = self._driver.now()
        if self._is_closed:
            return
        if self._in_flight and self._in_flight[0].deadline <= now:
            self.close(Failure(FailureKind.TIMEOUT, "the broker did not answer in time"))
        elif any(deadline <= now for _, deadline in self._queue):
            queue, self._queue = self._queue, deque()
            for send, _ in queue:
                self._driver.deliver(send, Failure(FailureKind.UNREACHABLE, "it could not be sent in time"))

    def close(self, failure: Failure) -> None:
        """Like `Connection.close`: the oldest request gets `failure`, the others its consequence."""
        if self._is_closed:
            return
        self._is_closed = True
        self._leave(at_once=failure.kind is not FailureKind.TIMEOUT)
        in_flight, queue = list(self._in_flight), list(self._queue)
        self._in_flight.clear()
        self._queue.clear()
        broken = Failure(FailureKind.DISCONNECTED, failure.message)
        for index, sent in enumerate(in_flight):
            self._driver.deliver(sent.send, broken if index else failure)
        for send, _ in queue:
            self._driver.deliver(send, Failure(FailureKind.UNREACHABLE, failure.message))
        self._driver.on_closed(self)

    def abandon(self) -> None:
        """The process has died."""
        self._is_closed = True
        self._leave(at_once=False)

    def _leave(self, *, at_once: bool) -> None:
        """The broker sees the end of the connection, or first receives what is in flight."""
        connection, rng = self._connection, self._driver.rng
        if connection is None:
            return
        sees_all = all(sent.may_come_again for sent in self._in_flight) or self._driver.is_dead
        if at_once or not sees_all or rng.random() < 0.5:
            connection.node.close(connection)
            return
        for sent in self._on_the_way:
            connection.receive(_arrived(sent), sent.version, lambda _answer: None)
        self._world.later(rng.randint(0, 3_000), connection.node.close, connection)


_V1_PRODUCE = 11


def _refusal(sent: _Sent) -> ProduceResponse:
    """The answer of a broker whose topic does not accept such records."""
    topics = [
        TopicProduceResponse(
            topic.name,
            topic.topic_id,
            [PartitionProduceResponse(part.index, ErrorCode.INVALID_RECORD) for part in topic.partition_data],
        )
        for topic in _arrived(sent).topic_data
    ]
    return ProduceResponse(topics)


def _arrived(sent: _Sent) -> Any:
    """A request as a broker reads it: its own copy, because the log numbers batches in place."""
    found: Any = codec.decode(sent.send.request_type, sent.version, sent.frame)
    if isinstance(found, ProduceRequest):
        for topic in found.topic_data:
            for part in topic.partition_data:
                records: Any = part.records
                part.records = bytearray(records)
    return found
