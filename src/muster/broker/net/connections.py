"""All connections of a broker together: how many are allowed, how much memory their answers may take, which must end.

The rules are pure, like those of a single connection (connection_core.py): time is passed in, in seconds, and a
connection that must end is closed through its core; the caller closes the socket.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

from muster.broker.net.connection_core import ConnectionCore

log = logging.getLogger("muster.broker")

WARN_EVERY_S = 5.0
"""Seconds between two log lines about connections that were refused."""


class Connections:
    """The open connections. A negative bound means unlimited."""

    def __init__(
        self, *, max_connections: int, max_unread_bytes: int, max_idle_ms: int, clock: Callable[[], float]
    ) -> None:
        self.refused = RateLimitedWarning(clock)
        """The log lines about connections that were refused."""
        self.sweep_s = max(max_idle_ms / 10_000, 0.05) if max_idle_ms >= 0 else None
        """Seconds between two calls of `close_idle`; None if it need not be called."""
        self.admitted = 0
        """How many were admitted since the start."""
        self.unread_bytes = 0
        """Memory in answers that peers do not take."""
        self._max_connections = max_connections
        self._max_unread_bytes = max_unread_bytes if max_unread_bytes >= 0 else 1 << 62
        self._max_idle_s = max_idle_ms / 1000
        self._clock = clock
        self._open: dict[ConnectionCore, None] = {}
        self._closed = False
        # In order of progress: the first connection is the one that has taken nothing for the longest time.
        self._unread: dict[ConnectionCore, None] = {}
        self._sweep_due = clock() + (self.sweep_s or 0)

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[ConnectionCore]:
        return iter(list(self._open))

    def admit(self, connection: ConnectionCore) -> bool:
        """Whether one more connection is allowed."""
        if self._closed or len(self._open) >= self._max_connections:
            self.refused.warn(f"refused the connection of {connection.peer}: max.connections={self._max_connections}")
            return False
        self._open[connection] = None
        self.admitted += 1
        return True

    def admit_no_more(self) -> None:
        """Refuse every connection from now on."""
        self._closed = True

    def lost(self, connection: ConnectionCore) -> None:
        """A connection has ended."""
        self._open.pop(connection, None)
        self.count_unread(connection, 0)

    def count_unread(self, connection: ConnectionCore, size: int) -> None:
        """Note the bytes that a peer has not taken; if the total is too large, the slowest connection must end."""
        self.unread_bytes += size - connection.unread
        if size < connection.unread or not size:
            self._unread.pop(connection, None)
        connection.unread = size
        if size:
            self._unread.setdefault(connection)
        while self.unread_bytes > self._max_unread_bytes and self._unread:
            slowest = next(iter(self._unread))
            self.unread_bytes -= slowest.unread
            slowest.unread = 0
            del self._unread[slowest]
            slowest.close("it does not read its answers, and queued.max.response.bytes is reached")

    @property
    def unread(self) -> list[ConnectionCore]:
        """The connections whose peers do not take their answers, the slowest first."""
        return list(self._unread)

    def close_forgotten(self) -> None:
        """End the connections that have a request which no code can answer any longer."""
        for connection in self:
            connection.close_if_forgotten()

    def close_idle(self) -> None:
        """End the connections that were idle for longer than is allowed. Called every `sweep_s`."""
        assert self.sweep_s is not None
        now = self._clock()
        # A late call shows that the loop did not run: what peers sent meanwhile has not been read yet.
        late = now - self._sweep_due
        oldest = now - self._max_idle_s - late
        for connection in self:
            if connection.last_active < oldest and not connection.waiting:
                connection.idle()
        self._sweep_due = now + self.sweep_s


class RateLimitedWarning:
    """A recurring warning: one line in WARN_EVERY_S, with the number of suppressed ones."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._again = 0.0
        self._left_out = 0

    def warn(self, text: str) -> None:
        """Write a line, or count it."""
        now = self._clock()
        if now < self._again:
            self._left_out += 1
            return
        more = f" ({self._left_out} similar messages suppressed)" if self._left_out else ""
        log.warning("%s%s", text, more)
        self._again, self._left_out = now + WARN_EVERY_S, 0
