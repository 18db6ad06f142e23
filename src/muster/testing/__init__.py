"""Helpers for tests of consumer groups: virtual time, and a whole group in it.

`VirtualClock` is time as a number. `SimCluster` is a group of real client cores against the real coordinator, over a
network that can do anything a real one can, checked while it runs. `simulate` leads one through a life of faults that
follows from a seed.

Nothing of muster imports this package but the demo; it is for tests, yours too.
"""

from __future__ import annotations

from muster.testing.chaos import simulate
from muster.testing.checks import InvariantError
from muster.testing.clock import VirtualClock
from muster.testing.cluster import SimCluster
from muster.testing.member import Habits, SimMember
from muster.testing.scenario import Scenario

__all__ = ["Habits", "InvariantError", "Scenario", "SimCluster", "SimMember", "VirtualClock", "simulate"]
