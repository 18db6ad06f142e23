"""An answer on the wire proves which message has arrived, wherever the bytes are cut."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.zookeeper.session import socket_times as wire
from muster.zookeeper.session.socket_times import Wire

CONNECT, WELCOME = pack("!iqiq", 0, 0, 4000, 0) + bytes(21), pack("!iiq", 0, 4000, 77) + bytes(20)
PING, WATCH = -2, -1


def frame(body: bytes) -> bytes:
    return pack("!i", len(body)) + body


def request(xid: int, more: bytes = b"") -> bytes:
    return frame(pack("!ii", xid, 11) + more)


def answer(xid: int, more: bytes = b"") -> bytes:
    return frame(pack("!iqi", xid, 5, 0) + more)


class Pair:
    """A wire whose bytes leave and arrive as the test says, at the times that it says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self.alive: list[float] = []
        self.granted: list[int] = []
        monkeypatch.setattr(wire, "monotonic", lambda: self.now)
        ours, self.theirs = socket.socketpair()
        self.refusals = 0
        self.wire = Wire(ours, self.alive.append, self.granted.append, self.refused)
        self.cuts: Iterator[int] = iter(())

    def refused(self) -> None:
        self.refusals += 1

    def say(self, data: bytes) -> None:
        while data:
            count = self.wire.send(memoryview(data)[: next(self.cuts, len(data))])
            data = data[count:]
            self.now += 1

    def hear(self, data: bytes) -> None:
        self.theirs.sendall(data)
        left = len(data)
        while left:
            left -= len(self.wire.recv(min(left, next(self.cuts, left))))

    def close(self) -> None:
        self.wire.break_off()
        self.wire.close()
        self.wire.break_off()
        self.theirs.close()


@given(cuts=st.lists(st.integers(1, 30), max_size=200), more=st.binary(max_size=50))
def test_an_answer_proves_the_time_at_which_its_request_was_sent(cuts, more):
    with pytest.MonkeyPatch.context() as monkeypatch:
        pair = Pair(monkeypatch)
        pair.cuts = iter(cuts)
        pair.say(frame(CONNECT))
        pair.hear(frame(WELCOME))
        assert (pair.granted, pair.alive) == ([4000], [100.0]), "from when it was begun to connect"
        sent = []
        for xid in (1, 2, PING):
            pair.say(request(xid, more))
            sent.append(pair.now - 1)  # no later than when its last piece was sent
        pair.hear(answer(1, more))
        pair.hear(answer(WATCH, more))
        pair.hear(answer(2, more) + answer(PING))
        assert len(pair.alive) == 4, "what a watch tells proves nothing"
        assert pair.alive == sorted(pair.alive)
        assert all(proved <= at for proved, at in zip(pair.alive[1:], sent, strict=True))
        pair.now = 500.0
        pair.say(request(PING))
        pair.now = 600.0
        pair.say(request(PING))
        pair.hear(answer(PING))
        assert pair.alive[-1] < 600, "of two pings the older one is answered"
        pair.close()


def test_a_session_that_has_ended_proves_nothing(monkeypatch):
    pair = Pair(monkeypatch)
    pair.say(frame(CONNECT))
    pair.hear(frame(pack("!iiq", 0, 0, 0) + bytes(20)))
    assert (pair.granted, pair.alive) == ([0], [])
    pair.close()
    assert pair.wire.fileno() == -1


@pytest.mark.parametrize("greeted", [False, True])
def test_a_connection_that_is_closed_without_a_greeting_was_refused(monkeypatch, greeted):
    pair = Pair(monkeypatch)
    pair.say(frame(CONNECT))
    if greeted:
        pair.hear(frame(WELCOME))
    pair.theirs.close()
    assert pair.wire.recv(100) == b""
    assert pair.refusals == (not greeted)
    pair.close()
