"""A proxy between two servers that delays data in order, without losing any."""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
import time
from types import TracebackType
from typing import Self

from muster.local.ports import LOOPBACK

_CHUNK = 65_536
_PATIENCE_S = 5.0


class Relay:
    """Listens on a port, and forwards each connection to `target`. A context manager.

    Data from the target can be delayed by `delay_ms`, or held altogether (`hold`, `release`); data to the target passes
    immediately. The end of a connection passes in order, as bytes do. Bytes that are held when all connections are
    ended (`cut`) are lost.
    """

    def __init__(self, target: int, *, patience_s: float = _PATIENCE_S) -> None:
        """`target` is a port of the loopback interface; nothing has to listen there yet: a connection waits
        `patience_s` for it."""
        self.target = target
        self._patience_s = patience_s
        self.delay_ms = 0
        self._free = threading.Event()
        self._free.set()
        self._server = socket.create_server((LOOPBACK, 0))
        self.port: int = self._server.getsockname()[1]
        self._closed = False
        self._sockets: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._run(self._accept)

    def hold(self) -> None:
        """Hold back everything that the target sends, until `release`."""
        self._free.clear()

    def release(self) -> None:
        """Pass on the data that was held, and all that follows."""
        self._free.set()

    def cut(self) -> None:
        """End all connections. Bytes that were held for them are dropped; new connections are not held."""
        with self._lock:
            for one in self._sockets:
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)  # the threads that wait on it close it
        self._free.set()

    def close(self) -> None:
        """End all connections, and stop listening."""
        with self._lock:
            self._closed = True
            for one in (self._server, *self._sockets):
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)  # wakes the threads that wait for it
                one.close()
        self._free.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                near, _ = self._server.accept()
                if self._keep(near):
                    self._run(self._join, near)

    def _join(self, near: socket.socket) -> None:
        far = self._connect()
        if far is None or not self._keep(far):
            self._end(near)
            return
        late: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()
        self._run(self._pass, near, far)
        self._run(self._take, far, late)
        self._run(self._give, late, near)

    def _connect(self) -> socket.socket | None:
        """A connection to the target, with a short wait for the target to listen.

        This happens: a server votes for another, and connects before that one listens. Without a relay its connection
        is refused, and it tries again; if it were accepted and dropped, it would vote again, and the other would wait
        30 s for it.
        """
        deadline = time.monotonic() + self._patience_s
        while not self._closed:
            try:
                return socket.create_connection((LOOPBACK, self.target))
            except OSError:
                if time.monotonic() > deadline:
                    break
                time.sleep(0.02)
        return None

    def _keep(self, *sockets: socket.socket) -> bool:
        with self._lock:
            if self._closed:
                for one in sockets:
                    one.close()
                return False
            self._sockets.update(sockets)
            return True

    def _run(self, function: object, *arguments: object) -> None:
        threading.Thread(target=function, args=arguments, name="muster-relay", daemon=True).start()  # type: ignore[arg-type]

    def _pass(self, near: socket.socket, far: socket.socket) -> None:
        """Bytes to the target, immediately."""
        with contextlib.suppress(OSError):
            while data := near.recv(_CHUNK):
                far.sendall(data)
        self._end(far)

    def _take(self, far: socket.socket, late: queue.SimpleQueue[tuple[float, bytes]]) -> None:
        """Bytes from the target into the queue; empty bytes say that the connection has ended."""
        data = b"."
        while data:
            try:
                data = far.recv(_CHUNK)
            except OSError:
                data = b""
            late.put((time.monotonic(), data))

    def _give(self, late: queue.SimpleQueue[tuple[float, bytes]], near: socket.socket) -> None:
        """Bytes from the queue, once their delay is over."""
        with contextlib.suppress(OSError):
            while True:
                taken_at, data = late.get()
                time.sleep(max(0.0, taken_at + self.delay_ms / 1000 - time.monotonic()))
                self._free.wait()
                if not data:
                    break
                near.sendall(data)
        self._end(near)

    def _end(self, one: socket.socket) -> None:
        """No more bytes in either direction: servers ignore a half-closed connection."""
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
        with self._lock:
            if not self._closed:
                self._sockets.discard(one)
                one.close()
