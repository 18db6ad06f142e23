"""How much the seeded and the violent tests do: a little in `make test`, any amount in `make soak`.

A test that uses one of these carries the marker `soak`.
"""

from __future__ import annotations

import os


def seeds(default: int) -> range:
    """The seeds of a simulation: MUSTER_SEEDS of them from MUSTER_FIRST_SEED (0), else `default`."""
    first = int(os.environ.get("MUSTER_FIRST_SEED", "0"))
    return range(first, first + int(os.environ.get("MUSTER_SEEDS", default)))


def kills(default: int) -> int:
    """How often a kill -9 test kills: MUSTER_KILLS, else `default`."""
    return int(os.environ.get("MUSTER_KILLS", default))
