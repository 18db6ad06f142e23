"""Whether this process stood still for so long that another one may have its place in the cluster.

A broker is frozen (SIGSTOP, a paused machine), its session ends, and a copy of its data folder goes on elsewhere under
its id. When it wakes up it finds requests in its sockets before it hears of ZooKeeper: what it acknowledges then, no
consumer will see. So each look at a partition asks the clock. After a standstill no partition is served until ZooKeeper
has answered on its present session, or for as long as a session lasts: when ZooKeeper is away, records are
served on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic

LOOKS_OF_A_LIMIT = 4
"""How often the clock is read within the limit at least, while the process runs."""


class Standstill:
    """Notices one of `limit_s` or longer; `noticed` is called then, for ZooKeeper to be asked."""

    def __init__(self, limit_s: float, noticed: Callable[[], None], read: Callable[[], float] = monotonic) -> None:
        self._limit_s = limit_s
        self._noticed = noticed
        self._read = read
        self._looked_at = read()
        self._woke_at = self._doubtful_until = self._looked_at
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Look at the clock now and then, on the running loop."""
        self.is_doubtful()
        again = self._limit_s / LOOKS_OF_A_LIMIT
        self._timer = asyncio.get_running_loop().call_later(again, self.start)

    def stop(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()

    def is_doubtful(self) -> bool:
        """Whether another process may have this one's place, for all that was heard since it woke up."""
        now = self._read()
        if now - self._looked_at >= self._limit_s:
            self._woke_at, self._doubtful_until = now, now + self._limit_s
            self._noticed()
        self._looked_at = now
        return now < self._doubtful_until

    def answered(self, asked_at: float) -> None:
        """ZooKeeper has answered what was asked then, on the present session."""
        if asked_at >= self._woke_at:
            self._doubtful_until = self._woke_at
