"""How long to wait before trying again: exponential, with jitter (KIP-580)."""

from __future__ import annotations

from muster.client.core.seeded_random import SeededRandom


class Backoff:
    """Waits that double from `initial_ms` to `max_ms`, each varied at random by up to a fifth.

    Equal seeds give equal waits. A face that talks to a real cluster passes a random seed, so that clients spread out.
    """

    __slots__ = ("_random", "failures", "initial_ms", "max_ms")

    def __init__(self, initial_ms: int, max_ms: int, seed: int = 0) -> None:
        self.initial_ms = initial_ms
        self.max_ms = max(initial_ms, max_ms)
        self.failures = 0
        self._random = SeededRandom(seed)

    def next_wait_ms(self) -> int:
        """Count a failure; returns how long to wait after it."""
        wait = self.initial_ms << min(self.failures, 30)
        self.failures += 1
        jitter = self._random.below(401) - 200
        return min(self.max_ms, wait) * (1000 + jitter) // 1000

    def reset(self) -> None:
        """Success: after the next failure the wait is the shortest again."""
        self.failures = 0
