"""Which connections must be closed: those that are idle, and the one that takes its answers slowest."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.broker.net.connections import Connections

IDLE_S = 600.0
MOST = 100

pytestmark = pytest.mark.interpreted
"""Compiled modules accept no test double of a connection."""


class Peer:
    """A connection as `Connections` sees it."""

    def __init__(self, last_active: float = 0.0, waiting: bool = False) -> None:
        self.last_active = last_active
        self.waiting = waiting
        self.unread = 0
        self.ended = ""

    def idle(self) -> None:
        self.ended = "idle"

    def close(self, why: str) -> None:
        self.ended = why


def connections(clock: list[float]) -> Any:
    return Connections(
        max_connections=100, max_unread_bytes=MOST, max_idle_ms=int(IDLE_S * 1000), clock=lambda: clock[0]
    )


# --------------------------------------------------------------------------------------------- idle


@pytest.mark.parametrize("late", [0.0, 30.0])
@pytest.mark.parametrize("waiting", [True, False])
@pytest.mark.parametrize(("idle_for", "ends"), [(0.0, False), (IDLE_S - 1, False), (IDLE_S, False), (IDLE_S + 1, True)])
def test_a_connection_ends_that_was_idle_for_too_long(late: float, waiting: bool, idle_for: float, ends: bool):
    """A connection whose request waits is not idle, for example with a JoinGroup in a long rebalance; and time in which
    nothing was read does not count."""
    clock = [0.0]
    made = connections(clock)
    clock[0] = now = made.sweep_s + late + 2 * IDLE_S
    for _ in range(2):
        made._sweep_due = now - late  # the previous call was on time, this one is late
        peer = Peer(now - late - idle_for, waiting)
        made.admit(peer)
        made.close_idle()
        assert bool(peer.ended) == (ends and not waiting)
        made.lost(peer)


@given(st.lists(st.tuples(st.floats(0, 3 * IDLE_S), st.booleans()), max_size=20))
def test_the_others_stay(peers: list[tuple[float, bool]]):
    clock = [0.0]
    made = connections(clock)
    clock[0] = made.sweep_s
    there = [Peer(clock[0] - idle_for, waiting) for idle_for, waiting in peers]
    for peer in there:
        made.admit(peer)
    made.close_idle()
    assert [bool(peer.ended) for peer in there] == [
        idle_for > IDLE_S and not waiting
        for idle_for, waiting in ((clock[0] - peer.last_active, peer.waiting) for peer in there)
    ]


# --------------------------------------------------------------------------------------------- answers not taken


class Model:
    """Which peer took something last, in the plainest form: the slowest is first in `order`."""

    def __init__(self) -> None:
        self.unread: dict[int, int] = {}
        self.order: list[int] = []

    def count(self, peer: int, size: int) -> list[int]:
        """Returns which connection must be closed."""
        before = self.unread.get(peer, 0)
        if size < before or not before:
            self.order = [other for other in self.order if other != peer] + [peer]
        self.unread[peer] = size
        ended = []
        while sum(self.unread.values()) > MOST:
            slowest = next(other for other in self.order if self.unread[other])
            self.unread[slowest] = 0
            ended.append(slowest)
        return ended


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(-60, 60)), max_size=60))
def test_the_one_ends_that_has_taken_nothing_for_the_longest_time(steps: list[tuple[int, int]]):
    """A peer that takes its answers bit by bit is not the slowest, however much waits for it."""
    made, model = connections([0.0]), Model()
    peers = {number: Peer() for number in range(5)}
    for number, change in steps:
        size = max(peers[number].unread + change, 0)
        made.count_unread(peers[number], size)
        ended = model.count(number, size)
        assert {number for number, peer in peers.items() if peer.ended} == set(ended)
        assert {number: peer.unread for number, peer in peers.items() if peer.unread} == {
            number: size for number, size in model.unread.items() if size
        }
        assert made.unread_bytes == sum(peer.unread for peer in peers.values()) <= MOST
        for again in ended:
            peers[again] = Peer()


def test_a_reader_that_makes_progress_outlives_one_that_reads_nothing():
    made = connections([0.0])
    healthy, dead = Peer(), Peer()
    made.count_unread(healthy, 60)
    made.count_unread(dead, 30)
    for size in (50, 40, 65):  # it took some, and more was added
        made.count_unread(healthy, size)
    made.count_unread(healthy, 75)
    assert (bool(healthy.ended), bool(dead.ended)) == (False, True)
