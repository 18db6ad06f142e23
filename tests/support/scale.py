"""How much the seeded and the violent tests do: a little in `make test`, any amount in `make soak`.

A test that uses one of these carries the marker `soak`. Besides its fixed seeds a simulation runs some that no run had
before, so that every run tries something new: their first is drawn once for each run and shown in its header and in its
summary. MUSTER_FIRST_SEED=… MUSTER_SEEDS=… run exactly those again, and nothing fresh.
"""

from __future__ import annotations

import os
import random

_FRESH = "MUSTER_FRESH_SEED"


def seeds(default: int) -> range:
    """The fixed seeds of a simulation: MUSTER_SEEDS of them from MUSTER_FIRST_SEED (0), or `default`."""
    first = int(os.environ.get("MUSTER_FIRST_SEED", "0"))
    return range(first, first + int(os.environ.get("MUSTER_SEEDS", default)))


def is_quick() -> bool:
    """Whether this is `make quick`, which starts no other programs and draws fewer examples."""
    return os.environ.get("MUSTER_QUICK") == "1"


def examples(number: int, quick: int = 10) -> int:
    """How many examples Hypothesis tries: a tenth of them in `make quick`, and at least `quick`."""
    return min(number, max(quick, number // 10)) if is_quick() else number


def fresh_seeds(default: int) -> range:
    """`default` seeds that are new in this run; none if MUSTER_FIRST_SEED says which to run."""
    if "MUSTER_FIRST_SEED" in os.environ:
        return range(0)
    return range(first_fresh_seed(), first_fresh_seed() + default)


def first_fresh_seed() -> int:
    """The first of this run's own seeds. The workers of a run inherit it from the process that starts them."""
    return int(os.environ.setdefault(_FRESH, str(random.SystemRandom().randrange(10**6, 10**9))))


def kills(default: int) -> int:
    """How often a kill -9 test kills: MUSTER_KILLS, or `default`."""
    return int(os.environ.get("MUSTER_KILLS", default))


def schedules(default: int) -> range:
    """The seeds of schedules of kills: MUSTER_SCHEDULES of them from MUSTER_FIRST_SEED (0), or `default`."""
    first = int(os.environ.get("MUSTER_FIRST_SEED", "0"))
    return range(first, first + int(os.environ.get("MUSTER_SCHEDULES", default)))


def older_kafkas() -> list[str]:
    """The releases of Kafka before 4.0 that clients are tested with: MUSTER_KAFKAS, separated by spaces, or the oldest
    one in which an admin can do everything."""
    return os.environ.get("MUSTER_KAFKAS", "2.4.1").split()
