"""What must hold whatever happens, checked while a simulation runs.

Theory. The checks look from two sides. From the coordinator's: each request of a group is a ticket, whose answer is
noted when the coordinator gives it, that is when it counts as acknowledged. From the members': what their listeners
were told, what they were handed, and what they have handled. Neither looks into the coordinator or the client: what is
true is worked out from requests, answers and the coordinators' logs alone.

The promises are numbered: 1-4 in `ownership`, 5-8 in `sessions`, 9-12 in `durability`, 13-18 in `offsets`, and here

19. A ticket is answered at most once; over a living connection it is answered in a bounded time; and once the group is
    stable none is left over.
20. A coordinator that is none any more acknowledges no commit.
21. Who was told that it is fenced asks to join no more.
"""

from __future__ import annotations

from muster.testing.checks.base import InvariantError
from muster.testing.checks.invariants import Invariants, Limits

__all__ = ["InvariantError", "Invariants", "Limits"]
