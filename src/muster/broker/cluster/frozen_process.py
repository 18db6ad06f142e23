"""Detects that this process was frozen for so long that another may have taken its place in the cluster.

A broker is frozen (SIGSTOP, a paused machine), its session ends, and a copy of its data folder is started elsewhere
under its id. When it wakes up it finds requests in its sockets before it hears from ZooKeeper: no consumer will see the
records that it acknowledges at that point. So each access to a partition checks the clock. After a freeze no partition
is served until ZooKeeper has answered on its current session, or a session timeout has passed: while ZooKeeper is down,
records are still served.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic

READS_PER_LIMIT = 4
"""While the process runs, the clock is read at least this many times within the limit."""


class FreezeDetector:
    """Detects freezes of `limit_s` or longer, and calls `noticed`, so that ZooKeeper is asked."""

    def __init__(self, limit_s: float, noticed: Callable[[], None], read: Callable[[], float] = monotonic) -> None:
        self._limit_s = limit_s
        self._noticed = noticed
        self._read = read
        self._read_at = read()
        self._woke_at = self._doubtful_until = self._read_at
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Check the clock regularly, on the running loop."""
        self.is_doubtful()
        again = self._limit_s / READS_PER_LIMIT
        self._timer = asyncio.get_running_loop().call_later(again, self.start)

    def stop(self) -> None:
        """Stop checking."""
        if self._timer is not None:
            self._timer.cancel()

    def is_doubtful(self) -> bool:
        """Whether another process may have taken this one's place, as far as is known since it woke up."""
        now = self._read()
        if now - self._read_at >= self._limit_s:
            self._woke_at, self._doubtful_until = now, now + self._limit_s
            self._noticed()
        self._read_at = now
        return now < self._doubtful_until

    def answered(self, asked_at: float) -> None:
        """ZooKeeper has answered, on the current session, a request sent at that time."""
        if asked_at >= self._woke_at:
            self._doubtful_until = self._woke_at
