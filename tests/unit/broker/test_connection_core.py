"""The rules of a connection, driven without a socket: bytes cut anywhere, replies in any order, peers that do not read,
connections that end at any time, all from a seed.

`Peers` plays the event loop and the transports. After each step it is checked that answers come in the order of the
requests, that nothing is handled while the connection is stalled or after its end, and that memory is bounded; at the
end, that each request was answered or its connection ended, and that nothing is left.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Generator
from functools import partial
from typing import Any

import pytest

from muster.broker.net import connection_core, intake
from muster.broker.net.calls import NO_RESPONSE, Api, Call, CloseConnectionError, Service
from muster.broker.net.connection_core import CloseMode, ConnectionCore
from muster.broker.net.connections import Connections
from muster.broker.net.intake import Intake
from muster.broker.net.slices import Slices
from muster.protocol import framing
from muster.protocol import messages as m
from tests.support import scale

READ = 700
KEPT = 300
HIGH = 1_200
LIMIT = 5
MEMORY = 3_000
CHUNK = 500
LARGEST = 1_500
"""No answer is larger than this many bytes."""
REPLY = 1_050
"""Nor is the answer to a parked request larger than this."""
UNREAD = 6_000
VERSION = 9
ANSWER = b"\0\0\0\4"
"""Here a heartbeat's answer is its length and correlation id."""


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits that a few small requests reach."""
    for name, value in {
        "KEPT_BYTES": KEPT,
        "HIGH_WATER": HIGH,
        "PIPELINE_LIMIT": LIMIT,
        "_CHECK_EVERY": 4,
        "_LEAST_READ": 16,
        "SMALL": 20,
    }.items():
        monkeypatch.setattr(connection_core, name, value)
    monkeypatch.setattr(intake, "CHUNK", CHUNK)


class Loop:
    """An event loop's timers and turns; each reading of the clock advances the time by a small random amount."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.now = 0.0
        self.soon: list[Callable[[], None]] = []
        self.timers: list[Callable[[], None]] = []

    def time(self) -> float:
        self.now += self.rng.choice((0.0, 0.0, 0.0001, 0.003))
        return self.now

    def call_soon(self, callback: Callable[[], None], /) -> None:
        self.soon.append(callback)

    def call_later(self, delay: float, callback: Callable[[], None], /) -> Any:
        self.timers.append(callback)

    def turn(self) -> None:
        due, self.soon = self.soon, []
        for callback in due:
            callback()

    def timers_fire(self) -> None:
        due, self.timers = self.timers, []
        for callback in due:
            callback()


class Peer:
    """One client and the transport of its connection: what it sent and received, and what it can still take."""

    def __init__(self, world: Peers, name: str) -> None:
        self.world = world
        self.core = ConnectionCore(world.service, partial(world.woken.append, self))
        self.core.peer = name
        self.pace = world.rng.choice((0.02, 0.1, 1))
        """The probability that it reads."""
        self.to_send = bytearray()
        self.requests: deque[int] = deque()
        """Correlation ids of the requests that must be answered, in the order of sending."""
        self.sent = 0
        self.got = bytearray()
        self.window = 0
        self.written: deque[bytes] = deque()
        """What the transport got and the peer has not taken."""
        self.paused = self.gone = False
        self.bad = False
        """Whether it sent a request that ends the connection."""
        self.parked: set[Call] = set()

    @property
    def ended(self) -> bool:
        return self.core.ending is not None

    # -- what the peer does

    def ask(self, names: list[str], padding: int = 0) -> None:
        self.sent += 1
        request = m.MetadataRequest([m.MetadataRequestTopic(name=name) for name in names])
        self.to_send += b"".join(map(bytes, framing.encode_request(request, VERSION, self.sent, "p" * padding or "p")))
        if names[0] != "nothing":
            self.requests.append(self.sent)
        self.bad = self.bad or names[0] in ("raise", "close", "raise later", "unencodable")

    def beat(self) -> None:
        self.sent += 1
        request = m.HeartbeatRequest("g", 1, "m")
        self.to_send += b"".join(map(bytes, framing.encode_request(request, 3, self.sent, "p")))
        self.requests.append(self.sent)

    def deliver(self, count: int) -> None:
        """Some of what was sent arrives, if the connection reads."""
        core = self.core
        if self.gone or not self.to_send or not (core.reading or self.ended):
            return
        before = core.large
        if before is None:
            part = bytes(self.to_send[: min(count, READ)])
            core.received(memoryview(bytearray(part)))
        else:
            buffer = core.large_buffer()
            part = bytes(self.to_send[: min(count, len(buffer))])
            assert part
            buffer[: len(part)] = part
            core.received_more(len(part))
        del self.to_send[: len(part)]
        self.carry_out()

    def take(self, count: int) -> None:
        """The peer reads this many bytes."""
        self.window += count
        if self.gone:
            return
        self._transport_sends()
        if self.paused and not self.written:
            self.paused = False
            self.core.resume_writing()
            self.carry_out()

    # -- what the connection's transport does

    def carry_out(self) -> None:
        core = self.core
        assert core.out_bytes == sum(map(len, core.out))
        if self.gone:
            return
        while core.out and not self.paused:
            most = self.world.rng.choice((7, 100, 5_000))
            whole = self.world.rng.random() < 0.5
            piece = b"".join(map(bytes, core.take())) if whole else bytes(core.piece(most))
            if not whole:
                core.sent(len(piece))
            self.written.append(piece)
            self._transport_sends()
            if self.written:
                self.paused = True
                core.pause_writing()
        self.world.connections.count_unread(core, core.own_bytes + sum(map(len, self.written)))
        if core.ending is not None and (core.ending.how is not CloseMode.DRAINED or not self.written):
            self.lose()
        self.check()

    def _transport_sends(self) -> None:
        while self.written and self.window:
            piece = self.written.popleft()
            part, rest = piece[: self.window], piece[self.window :]
            self.window -= len(part)
            self.got += part
            if rest:
                self.written.appendleft(rest)

    def lose(self) -> None:
        if not self.gone:
            self.gone = True
            self.core.lost()
            self.world.connections.lost(self.core)
            assert not self.parked, "all that waited were cancelled"

    # -- invariants

    def check(self) -> None:
        core = self.core
        while len(self.got) >= 4:
            size = int.from_bytes(self.got[:4], "big")
            if len(self.got) < 4 + size:
                break
            number = int.from_bytes(self.got[4:8], "big")
            assert number == self.requests.popleft(), "answers come in the order of the requests"
            del self.got[: 4 + size]
        if core.ending is not None and isinstance(core.ending.error, AssertionError):
            raise core.ending.error
        assert len(core.pending) <= KEPT + 4 + 2 * READ
        assert len(core._slots) <= LIMIT
        waiting = sum(call.size for call in core._slots if call.frame is not None)
        assert core._behind == waiting or self.gone
        assert core.out_bytes + core._behind <= HIGH + LARGEST + LIMIT * REPLY
        if self.gone:
            assert (core.out, core.pending, core.waiting, core.unread) == ([], b"", False, 0)


class Peers:
    """Some connections, the handlers of their requests, and the loop."""

    def __init__(self, seed: int, count: int = 3) -> None:
        self.rng = random.Random(seed)
        self.loop = Loop(self.rng)
        self.intake = Intake(MEMORY, self.loop)
        self.slices = Slices(self.loop)
        self.connections = Connections(
            max_connections=10, max_unread_bytes=UNREAD, max_idle_ms=-1, clock=self.loop.time
        )
        apis = {
            3: Api(m.MetadataRequest, 0, 12, self.handle),
            12: Api(m.HeartbeatRequest, 0, 4, self._unexpected, False, self.fast),
        }
        self.service = Service(apis, None, 20_000, self.intake, self.slices, lambda: None, self.loop.time)
        self.woken: list[Peer] = []
        self.parked: list[tuple[Peer, Call, str]] = []
        self.count = 0
        self.eagerness = self.rng.choice((0.1, 1))
        """The probability that a handler replies."""
        self.peers: list[Peer] = []
        for _ in range(count):
            self.connect()

    def connect(self) -> None:
        self.peers = [peer for peer in self.peers if not peer.gone]
        self.count += 1
        self.peers.append(Peer(self, f"peer {self.count}"))
        assert self.connections.admit(self.peers[-1].core)

    # -- handlers

    def _peer(self, call: Call) -> Peer:
        return next(peer for peer in self.peers if peer.core.peer == call.peer)

    def _handled(self, peer: Peer, sliced: bool = False) -> None:
        # A request that is decoded in slices is begun when nothing blocks it, and is then finished.
        assert sliced or not peer.ended, "nothing is handled after the end"
        core = peer.core
        slack = 4 * len(ANSWER + b"1234")  # frames that were answered the short way since the last look
        stalled = core.stalled() and not HIGH <= core.out_bytes < HIGH + slack
        assert sliced or not stalled, "nothing is handled while the connection is stalled"

    def _unexpected(self, request: m.HeartbeatRequest, call: Call) -> m.MetadataResponse:
        """Heartbeats after parked requests take the general path, and are answered like all others."""
        self._handled(self._peer(call))
        return self.response(0)  # any message will do

    def fast(self, frame: bytes, position: int, version: int, correlation_id: int) -> bytes:
        return ANSWER + correlation_id.to_bytes(4, "big")

    def response(self, size: int) -> m.MetadataResponse:
        return m.MetadataResponse(cluster_id="x" * size)

    def handle(self, request: m.MetadataRequest, call: Call) -> Any:
        peer = self._peer(call)
        assert request.topics is not None
        name = request.topics[0].name or ""
        self._handled(peer, sliced=call.parked)
        found = {
            "small": lambda: self.response(0),
            "large": lambda: self.response(self.rng.randrange(LARGEST - 200)),
            "nothing": lambda: NO_RESPONSE,
            "many": lambda: m.MetadataResponse(topics=[m.MetadataResponseTopic(name="t")] * 15),
            "slices": lambda: self.steps(call),
            "raise later": lambda: self.steps(call, fails=True),
            "unencodable": lambda: m.MetadataResponse(throttle_time_ms="x"),  # type: ignore[arg-type]
        }.get(name)
        if found is not None:
            return found()
        if name == "raise":
            raise CloseConnectionError("asked to")
        if name == "close":
            call.close("asked to")
            return None
        if name == "at once":
            call.reply(self.response(5))
            return None
        call.blocks = name == "blocks"
        self.park(peer, call)
        return None

    def park(self, peer: Peer, call: Call) -> None:
        def cancelled() -> None:
            peer.parked.remove(call)
            self.parked = [one for one in self.parked if one[1] is not call]

        call.on_cancel = cancelled
        peer.parked.add(call)
        self.parked.append((peer, call, "parked"))

    def steps(self, call: Call, fails: bool = False) -> Generator[None, None, m.MetadataResponse]:
        for _ in range(self.rng.randrange(4)):
            yield
        if fails:
            raise ValueError("surprise")
        return self.response(100)

    def reply(self, number: int) -> None:
        peer, call, _ = self.parked.pop(number)
        peer.parked.discard(call)
        before = peer.core.out_bytes
        big = self.rng.random() < 0.3
        call.reply(self.steps(call) if self.rng.random() < 0.2 else self.response(1_000 if big else 3))
        if self.rng.random() < 0.1:
            call.reply(self.response(7))  # a second reply changes nothing
        assert not peer.ended or peer.core.out_bytes <= before, "nothing is said after the end"
        peer.check()

    # -- turns

    def turn(self) -> None:
        self.loop.turn()
        woken, self.woken[:] = list(self.woken), []
        for peer in woken:
            if not peer.gone:
                peer.core.woken = False
                peer.carry_out()
                if peer.core.pending or not peer.core.reading:  # more is not guaranteed (connection.py)
                    peer.core.resume()
                peer.carry_out()
        for peer in self.peers:
            peer.check()
        assert self.intake.bytes <= MEMORY + 20_000 + len(self.peers) * (READ + KEPT + 16)
        assert self.connections.unread_bytes <= UNREAD

    def step(self) -> None:
        rng = self.rng
        peer = rng.choice(self.peers)
        if peer.gone and rng.random() < 0.1:
            self.connect()
        what = rng.random()
        if what < 0.25 and not peer.gone and len(peer.to_send) < 6_000:
            self.some_request(peer)
        elif what < 0.55:
            peer.deliver(rng.choice((1, 3, 20, 200, 10_000)))
        elif what < 0.7:
            peer.take(rng.choice((1, 10, 500, 5_000)) if rng.random() < peer.pace else 0)
        elif what < 0.8:
            if self.parked and rng.random() < self.eagerness:
                self.reply(rng.randrange(len(self.parked)))
        elif what < 0.98:
            self.turn()
        elif what < 0.985:
            self.loop.timers_fire()
        elif what < 0.99:
            self.an_end(peer)

    def some_request(self, peer: Peer) -> None:
        rng = self.rng
        for _ in range(rng.choice((1, 1, 3, 8))):
            names = ["small", "large", "many", "slices", "parks", "parks", "blocks", "at once", "nothing"]
            if rng.random() < 0.02:
                names = ["raise", "close", "raise later", "unencodable"]
            kind = rng.random()
            if kind < 0.3:
                peer.beat()
            elif kind < 0.75:
                peer.ask([rng.choice(names)])
            elif kind < 0.85:
                peer.ask([rng.choice(names)] * rng.choice((30, 60)))  # decoded in slices, and large
            else:
                peer.ask([rng.choice(names)], padding=rng.choice((KEPT, 2_000, 5_000)))
            if rng.random() < 0.002:
                peer.bad = True
                peer.to_send += b"\xff" * 20

    def an_end(self, peer: Peer) -> None:
        if peer.gone:
            return
        self.rng.choice((peer.lose, peer.core.end, peer.core.abort, peer.core.idle, lambda: peer.core.close("why")))()

    def settle(self) -> None:
        """Everything that can happen happens: bytes arrive, peers read, handlers reply."""
        for _ in range(2_000):
            for peer in self.peers:
                peer.deliver(10_000)
                peer.take(10_000)
            while self.parked:
                self.reply(self.rng.randrange(len(self.parked)))
            self.turn()
            if self.rng.random() < 0.01:
                self.loop.timers_fire()
            if all(peer.gone or not (peer.to_send or peer.requests or peer.ended) for peer in self.peers):
                break
        self.turn()
        self.turn()

    def check_end(self) -> None:
        for peer in self.peers:
            if not peer.gone:
                assert not peer.bad
                assert not peer.to_send, "all was read"
                assert not peer.requests, "all was answered"
                assert peer.core.reading
                assert not peer.core.stalled()
            peer.lose()
            peer.check()
        assert (self.intake.bytes, len(self.connections), self.connections.unread_bytes) == (0, 0, 0)


@pytest.mark.soak
@pytest.mark.parametrize("seed", [*scale.seeds(300), *scale.fresh_seeds(100)])
def test_whatever_comes_in_whatever_order(seed: int) -> None:
    world = Peers(seed)
    for _ in range(world.rng.choice((100, 400))):
        world.step()
    world.settle()
    world.check_end()


def test_reads_between_replies_and_turns_do_not_pile_up() -> None:
    """A reply makes room for one more request; more is read before the turn in which it would be handled; and again."""
    world = Peers(0, 1)
    [peer] = world.peers
    for _ in range(500):
        peer.ask(["parks"])
    for _ in range(200):
        peer.take(10_000)
        peer.deliver(READ)
        if world.rng.random() < 0.3:
            world.turn()
        if world.parked:
            world.reply(0)
        peer.check()


def test_frames_handled_in_a_turn_may_end_with_a_full_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last of the received requests is handled in a later turn, and its answer fills the buffer: more is read
    too."""
    monkeypatch.setattr(connection_core, "HIGH_WATER", 1)
    world = Peers(0, 1)
    [peer] = world.peers
    peer.take(10_000)
    peer.ask(["small"])
    peer.ask(["small"])
    peer.deliver(READ)
    world.turn()
    world.turn()
    peer.ask(["small"])
    peer.deliver(READ)
    for _ in range(3):
        world.turn()
    assert not peer.requests
