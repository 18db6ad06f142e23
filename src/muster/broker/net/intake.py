"""Memory for large frames while they arrive and are handled: as much as their bytes, with a limit for all of them
together.

An announced frame costs nothing; the system provides its pages only when bytes arrive in them. When all large frames
together have reached the bound, only the frame that began first is read further, so that one frame can always be
finished. While other frames wait for room, a frame that stalls is given up: half a frame cannot make others wait for
more than twice STALLED_S.
"""

from __future__ import annotations

import contextlib
import mmap
import sys
from collections.abc import Callable
from typing import Protocol

from muster.protocol.primitives import Buffer

CHUNK = 1024 * 1024
"""How much of a large frame is read at once, at most."""

STALLED_S = 0.5
SLOWEST = 128 * 1024
"""Bytes that must arrive for a large frame within STALLED_S while others wait for its memory."""

POOL_BYTES = 2 * 1024 * 1024
"""A frame of up to this size reuses memory of an earlier one, if there is any: the system need not provide pages."""
POOLED = 4


class Receiver(Protocol):
    """A connection, as the intake sees it."""

    def room_again(self) -> None:
        """There may be room for more of the large frame."""

    def close(self, why: str) -> None:
        """End the connection."""


class Timer(Protocol):
    """What a loop returns for a scheduled call."""

    def cancel(self) -> None:
        """Cancel the call."""


class TimerLoop(Protocol):
    """What is needed from an event loop: calls at a later time."""

    def call_later(self, delay: float, callback: Callable[[], None], /) -> Timer:
        """Call back in that many seconds."""


class LargeFrame:
    """A frame with its own memory, of which `filled` bytes have arrived."""

    __slots__ = ("_given", "_memory", "checked_at", "filled", "length")

    def __init__(self, memory: mmap.mmap, length: int) -> None:
        self._memory: mmap.mmap | None = memory
        self._given: memoryview | None = None
        self.length = length
        self.filled = 0
        self.checked_at = -1
        """`filled` when the intake last checked for progress; -1 if it has not checked yet."""

    def view(self) -> memoryview:
        """The whole frame."""
        assert self._memory is not None
        return memoryview(self._memory)[: self.length]

    def part(self, room: int) -> memoryview:
        """Where the next bytes belong, as many as there is room for."""
        self._given = self.view()[self.filled : self.filled + room]
        return self._given

    def let_go(self) -> None:
        """The bytes of `part` have arrived. asyncio keeps its view, and so all of the memory, while it reports them."""
        if self._given is not None:
            # Another loop may hold the buffer itself until this call returns: then the memory is not reused.
            with contextlib.suppress(BufferError):
                self._given.release()
            self._given = None

    def take_memory(self) -> mmap.mmap | None:
        """The frame's memory, if no view of it is left."""
        memory, self._memory = self._memory, None
        # Two references: this variable and the argument of getrefcount. Each view would be one more.
        return memory if memory is not None and sys.getrefcount(memory) <= 2 else None


class Intake:
    """All large frames of a broker. `most` bounds their bytes."""

    def __init__(self, most: int, loop: TimerLoop) -> None:
        self.bytes = 0
        self._most = most
        self._loop = loop
        self._receiving: dict[Receiver, LargeFrame] = {}
        self._waiting: dict[Receiver, None] = {}
        self._pool: list[mmap.mmap] = []
        self._watch: Timer | None = None

    def begin(self, receiver: Receiver, length: int, start: Buffer) -> LargeFrame:
        """Begin a frame whose first bytes have arrived."""
        pooled = length <= POOL_BYTES
        memory = self._pool.pop() if pooled and self._pool else mmap.mmap(-1, POOL_BYTES if pooled else length)
        frame = LargeFrame(memory, length)
        memory[: len(start)] = start
        frame.filled = len(start)
        self.bytes += len(start)
        self._receiving[receiver] = frame
        return frame

    def room(self, receiver: Receiver) -> int:
        """Bytes of the receiver's frame that may be read now. If 0, `room_again` is called when there is room."""
        left = self._most - self.bytes
        if left <= 0 and next(iter(self._receiving), receiver) is receiver:
            left = CHUNK
        if left <= 0:
            self._waiting[receiver] = None
            if self._watch is None:
                self._check_later()
            return 0
        return min(left, CHUNK)

    def received(self, frame: LargeFrame, count: int) -> None:
        """More of a frame has arrived."""
        frame.filled += count
        self.bytes += count

    def whole(self, receiver: Receiver) -> None:
        """The receiver's frame is complete; its memory is held until `done`."""
        del self._receiving[receiver]
        self._wake()

    def done(self, frame: LargeFrame) -> None:
        """The frame was handled."""
        self.bytes -= frame.filled
        memory = frame.take_memory()
        if memory is not None and len(memory) == POOL_BYTES and len(self._pool) < POOLED:
            self._pool.append(memory)
        self._wake()

    def lost(self, receiver: Receiver) -> None:
        """The receiver's connection has ended."""
        self._waiting.pop(receiver, None)
        frame = self._receiving.pop(receiver, None)
        if frame is not None:
            self.done(frame)

    def stop(self) -> None:
        """Stop checking for progress."""
        if self._watch is not None:
            self._watch.cancel()

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for receiver in waiting:
            receiver.room_again()

    def _check_later(self) -> None:
        self._watch = self._loop.call_later(STALLED_S, self._check_progress)

    def _check_progress(self) -> None:
        """If frames wait for room, give up those that have made no progress since the last check."""
        self._watch = None
        for receiver, frame in list(self._receiving.items()):
            if receiver in self._waiting:
                frame.checked_at = -1
            elif frame.checked_at >= 0 and frame.filled - frame.checked_at < SLOWEST:
                receiver.close(
                    f"a frame stalled at {frame.filled} of {frame.length} bytes while others waited for memory"
                )
            else:
                frame.checked_at = frame.filled
        if self._waiting:
            self._check_later()
        else:
            for frame in self._receiving.values():
                frame.checked_at = -1
