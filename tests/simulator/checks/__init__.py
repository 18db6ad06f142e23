"""Invariants that must always hold, checked while a simulation runs.

Theory. The checks have two sides. On the coordinator's side each request of a group is a ticket; its answer is recorded
when the coordinator gives it, which is when it counts as acknowledged. On the members' side the checks record the calls
of listeners, which records were handed out, and which were handled. Neither side looks into the coordinator or the
client: the truth is computed from requests, answers and the coordinators' logs alone.

The promises are numbered: 1-4 in `ownership`, 5-8 in `sessions`, 9-12 in `durability`, 13-18 in `offsets`, and here

19. A ticket is answered at most once; over a live connection it is answered within a bounded time; and once the group
    is stable, none is left.
20. A deposed coordinator acknowledges no commit.
21. A member that got the answer that it is fenced does not join again.
"""

from __future__ import annotations

from tests.simulator.checks.base import InvariantError
from tests.simulator.checks.invariants import Invariants, Limits

__all__ = ["InvariantError", "Invariants", "Limits"]
