"""Cuts the bytes that arrive on a socket into frames, without copying large ones.

The transport reads straight into the buffer that `get_buffer` offers. A small frame is copied out of the shared buffer.
For a frame that does not fit there, memory is allocated as soon as its length is known, and the rest is read into it: a
fetch of 50 MB is written once, by the kernel, and decoded in place.
"""

from __future__ import annotations

from struct import Struct

from muster.protocol.framing import check_length
from muster.protocol.primitives import Buffer

_LENGTH = Struct(">i")
_SHARED_BYTES = 65_536

_REUSED_FRAMES = 3
"""A consumer reads one frame while it decodes another and a third waits."""
_MAX_REUSED_BYTES = 8 << 20
_PIECE = 1 << 20


def _is_free(memory: bytearray) -> bool:
    """Whether no view of the memory is left. Python refuses to resize memory that has a view; `pop` and `append` do not
    move it. Reference counts would show it too, but differ between interpreters and compilers, some of which borrow
    references.
    """
    try:
        last = memory.pop()
    except BufferError:
        return False
    memory.append(last)
    return True


class _Memory:
    """Memory for large frames, reused once a frame has been read completely.

    The system allocates new memory a page at a time and clears it: that takes longer than reading a frame into it.
    """

    __slots__ = ("_buffers",)

    def __init__(self) -> None:
        self._buffers: list[bytearray] = []

    def take(self, length: int) -> memoryview:
        """Memory for a frame."""
        if length > _MAX_REUSED_BYTES:
            return memoryview(bytearray(length))
        for memory in self._buffers:
            if len(memory) >= length and _is_free(memory):
                return memoryview(memory)[:length]
        memory = bytearray(-(-length // _PIECE) * _PIECE)
        self._buffers = [*self._buffers, memory][-_REUSED_FRAMES:]
        return memoryview(memory)[:length]

    def release(self) -> None:
        """Release all memory: frames are small again, so the reader has caught up."""
        if self._buffers:
            self._buffers = []


class FrameReader:
    """Frames of one connection: `get_buffer`, read into it, then `buffer_updated` returns the complete frames."""

    __slots__ = ("_end", "_filled", "_large", "_memory", "_shared", "_view", "max_frame_bytes")

    def __init__(self, max_frame_bytes: int) -> None:
        self.max_frame_bytes = max_frame_bytes
        self._shared = bytearray(_SHARED_BYTES)
        self._view = memoryview(self._shared)
        self._end = 0
        self._large: memoryview | None = None
        self._filled = 0
        self._memory = _Memory()

    def get_buffer(self) -> memoryview:
        """Where the next bytes belong; never empty."""
        if self._large is not None:
            return self._large[self._filled :]
        return self._view[self._end :]

    def buffer_updated(self, count: int) -> list[Buffer]:
        """Note bytes that were read; returns the frames that are complete now, without their lengths.

        Raises:
            ProtocolError: a length is negative or above the bound. The connection is no longer usable.
        """
        if self._large is not None:
            self._filled += count
            if self._filled < len(self._large):
                return []
            frame, self._large = self._large, None
            return [frame]
        self._end += count
        return self._cut()

    def _cut(self) -> list[Buffer]:
        frames: list[Buffer] = []
        position, end = 0, self._end
        while end - position >= 4:
            (length,) = _LENGTH.unpack_from(self._shared, position)
            check_length(length, self.max_frame_bytes)
            if end - position - 4 < length:
                if length + 4 > _SHARED_BYTES:
                    self._begin_large(length, position + 4)
                    return frames
                break
            self._memory.release()
            frames.append(bytes(self._view[position + 4 : position + 4 + length]))
            position += 4 + length
        if position:
            self._shared[: end - position] = self._shared[position:end]
            self._end = end - position
        return frames

    def _begin_large(self, length: int, position: int) -> None:
        there = self._end - position
        self._large = self._memory.take(length)
        self._large[:there] = self._view[position : self._end]
        self._filled = there
        self._end = 0
