"""A socket to ZooKeeper that notes when answered requests were sent.

ZooKeeper ends a session that it has not heard from for the session's timeout. An answer proves that it was heard, but
not when: the server may have been stopped since. The earliest time at which it may have heard from the session is when
the request was sent, so the timeout counts from there. Neither kazoo nor its pings report that time; the frames on the
socket show it.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator
from struct import Struct
from time import monotonic

_HEAD = Struct("!iii")
"""A frame's length, its xid, and the next number. The first frame of either side has the protocol's version in place of
an xid; in the server's, the session's timeout follows."""


class _Frames:
    """Finds the beginnings of frames in a stream of bytes."""

    def __init__(self) -> None:
        self._head = bytearray()
        self._left = 0

    def feed(self, data: bytes | bytearray | memoryview) -> Iterator[tuple[int, int]]:
        """The xid, and the number after it, of each frame whose head is complete now."""
        view = memoryview(data)
        while view:
            if self._left > 0:
                skipped = min(self._left, len(view))
                self._left -= skipped
                view = view[skipped:]
                continue
            taken = min(_HEAD.size - len(self._head), len(view))
            self._head += view[:taken]
            view = view[taken:]
            if len(self._head) == _HEAD.size:
                length, xid, following = _HEAD.unpack(self._head)
                self._head.clear()
                self._left = length + 4 - _HEAD.size
                yield xid, following


class Wire:
    """A socket with the methods that kazoo uses, which reports times.

    Args:
        on_alive: called with the monotonic time at which an answered request was sent.
        on_welcome: called before that, with the session timeout in ms that the server grants; 0: the session has ended.
        on_refused: called when the server closes the connection instead of greeting.
    """

    def __init__(
        self,
        connected: socket.socket,
        on_alive: Callable[[float], None],
        on_welcome: Callable[[int], None],
        on_refused: Callable[[], None],
    ) -> None:
        self._socket = connected
        self._on_alive = on_alive
        self._on_welcome = on_welcome
        self._on_refused = on_refused
        self._sent: dict[int, float] = {}
        self._out, self._in = _Frames(), _Frames()
        self.is_new = True
        """No server has answered on it yet."""
        self._connected_at = monotonic()

    def send(self, data: bytes | bytearray | memoryview) -> int:
        """Like `socket.send`."""
        now = monotonic()
        count = self._socket.send(data)
        for xid, _ in self._out.feed(memoryview(data)[:count]):
            # All pings have the same xid: the oldest is kept, since it is answered first.
            self._sent.setdefault(xid, now)
        return count

    def recv(self, most: int) -> bytes:
        """Like `socket.recv`."""
        try:
            data = self._socket.recv(most)
        except ConnectionError:
            data = b""
        if not data and self.is_new:
            self._on_refused()
        for xid, following in self._in.feed(data):
            if self.is_new:
                self.is_new = False
                self._sent.clear()
                self._on_welcome(following)
                if following > 0:
                    self._on_alive(self._connected_at)
            elif (sent := self._sent.pop(xid, None)) is not None:
                self._on_alive(sent)
        return data

    def break_off(self) -> None:
        """Shut the connection down, so that the thread that uses it notices. May be called from any thread."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def fileno(self) -> int:
        """Like `socket.fileno`."""
        return self._socket.fileno()

    def setblocking(self, flag: bool) -> None:
        """Like `socket.setblocking`."""
        self._socket.setblocking(flag)

    def close(self) -> None:
        """Like `socket.close`."""
        self._socket.close()
