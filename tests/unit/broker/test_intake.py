"""Memory of large frames: as much as their bytes, with a total limit, and nobody waits for half a frame."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import pytest

from muster.broker.net.intake import CHUNK, POOL_BYTES, SLOWEST, Intake, LargeFrame

MB = 1_000_000


class Loop:
    """An event loop of which only the timers are used: `pass_time` fires those that are set."""

    def __init__(self) -> None:
        self.timers: list[Callable[[], None]] = []

    def call_later(self, delay: float, act: Callable[[], None]) -> Any:
        self.timers.append(act)
        return act

    def pass_time(self) -> None:
        timers, self.timers = self.timers, []
        for act in timers:
            act()


class Receiver:
    """A connection that records its calls, and reads as much of a frame as it may."""

    def __init__(self, intake: Intake) -> None:
        self.intake = intake
        self.frame: LargeFrame | None = None
        self.calls_for_room = 0
        self.closed = ""

    def room_again(self) -> None:
        self.calls_for_room += 1

    def close(self, why: str) -> None:
        self.closed = why
        self.intake.lost(self)

    def begin(self, length: int, start: bytes = b"start") -> None:
        self.frame = self.intake.begin(self, length, start)

    def read(self, count: int) -> int:
        """Returns how much there was room for."""
        assert self.frame is not None
        done = 0
        while done < count and (room := self.intake.room(self)):
            step = min(room, count - done)
            self.intake.received(self.frame, step)
            done += step
        return done

    def finish(self) -> None:
        assert self.frame is not None
        frame, self.frame = self.frame, None
        self.intake.whole(self)
        self.intake.done(frame)


def intake(most: int) -> tuple[Intake, Loop, list[Receiver]]:
    loop = Loop()
    found = Intake(most, loop)
    return found, loop, [Receiver(found) for _ in range(4)]


def test_a_frame_that_is_announced_takes_no_room() -> None:
    all_frames, _, (first, second, third, other) = intake(256 * MB)
    for receiver in (first, second, third):
        receiver.begin(100 * MB)
    assert all_frames.bytes == 15
    other.begin(MB)
    assert other.read(MB) == MB


def test_without_room_only_the_first_continues() -> None:
    all_frames, _, (first, second, third, _) = intake(10 * MB)
    first.begin(8 * MB)
    second.begin(8 * MB)
    third.begin(8 * MB)
    assert second.read(8 * MB) == 8 * MB
    assert third.read(8 * MB) == 2 * MB - 15
    assert all_frames.bytes == 10 * MB
    assert first.read(8 * MB) == 8 * MB, "the one that began first can always be finished"
    assert third.calls_for_room == 0
    first.finish()
    assert third.calls_for_room == 1
    second.finish()
    assert third.read(6 * MB) == 6 * MB
    third.finish()
    assert all_frames.bytes == 0


def test_half_a_frame_that_others_wait_for_is_given_up() -> None:
    all_frames, loop, (first, second, waiting, _) = intake(10 * MB)
    first.begin(100 * MB)
    second.begin(100 * MB)
    assert second.read(10 * MB - 10) == 10 * MB - 10
    waiting.begin(MB, b"")
    assert waiting.read(MB) == 0
    loop.pass_time()
    assert (first.closed, second.closed) == ("", ""), "each has a whole span to bring something"
    first.read(SLOWEST)
    waiting.read(MB)
    loop.pass_time()
    assert "while others waited for memory" in second.closed
    assert first.closed == "", "it brought as much as is asked for"
    assert waiting.calls_for_room
    assert waiting.read(MB) == MB
    assert all_frames.bytes == 5 + SLOWEST + MB


def test_half_a_frame_that_nobody_waits_for_may_take_its_time() -> None:
    _, loop, (first, *_) = intake(10 * MB)
    first.begin(8 * MB)
    for _ in range(5):
        loop.pass_time()
    assert first.closed == ""


def test_who_waits_is_not_to_blame_for_it() -> None:
    _, loop, (first, second, third, _) = intake(10 * MB)
    first.begin(20 * MB)
    second.begin(20 * MB)
    second.read(10 * MB)
    third.begin(MB)
    for _ in range(3):
        assert (second.read(1), third.read(1)) == (0, 0)
        assert first.read(SLOWEST) == SLOWEST
        loop.pass_time()
    assert (first.closed, second.closed, third.closed) == ("", "", "")


def test_a_lost_connection_gives_its_memory_back() -> None:
    all_frames, _, (first, second, *_) = intake(MB)
    first.begin(2 * MB)
    first.read(MB)
    second.begin(MB)
    assert second.read(1) == 0
    all_frames.lost(first)
    assert second.calls_for_room == 1
    assert all_frames.bytes == 5


def test_memory_is_used_again_unless_somebody_still_looks_at_it() -> None:
    all_frames, _, (first, second, third, _) = intake(10 * MB)
    first.begin(MB)
    assert first.frame is not None
    kept = first.frame.view()
    kept[0] = 77
    first.finish()
    second.begin(MB, b"other")
    assert kept[0] == 77
    second.finish()
    assert len(all_frames._pool) == 1
    third.begin(POOL_BYTES)
    assert not all_frames._pool
    assert CHUNK <= POOL_BYTES


def test_a_loop_that_keeps_its_view_of_the_memory_does_not_keep_the_memory() -> None:
    all_frames, _, (receiver, *_) = intake(MB)
    receiver.begin(MB)
    assert receiver.frame is not None
    kept = receiver.frame.part(10)
    receiver.frame.let_go()
    receiver.finish()
    assert len(all_frames._pool) == 1
    with pytest.raises(ValueError, match="released"):
        len(kept)


def test_memory_that_a_loop_holds_itself_is_not_used_again() -> None:
    all_frames, _, (receiver, *_) = intake(MB)
    receiver.begin(MB)
    assert receiver.frame is not None
    held = (ctypes.c_char * 10).from_buffer(receiver.frame.part(10))
    receiver.frame.let_go()
    receiver.finish()
    assert not all_frames._pool
    held[0] = b"x"
