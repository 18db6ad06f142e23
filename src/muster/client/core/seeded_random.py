"""Random numbers for pure code: they follow from a seed, so that simulations are repeatable."""

from __future__ import annotations

_MASK = 0xFFFFFFFF


class SeededRandom:
    """Marsaglia's xorshift with 32 bits: for jitter, not for secrets."""

    __slots__ = ("_state",)

    def __init__(self, seed: int = 0) -> None:
        self._state = (seed ^ 0x9E3779B9) & _MASK or 1

    def below(self, bound: int) -> int:
        """A number from 0 to `bound` - 1."""
        state = self._state
        state ^= state << 13 & _MASK
        state ^= state >> 17
        state ^= state << 5 & _MASK
        self._state = state
        return state % bound
