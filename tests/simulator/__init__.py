"""Helpers for tests of consumer groups: virtual time, and a whole group that runs in it.

`VirtualClock` is time as a number. `SimCluster` is a group of real client cores against the real coordinator, over a
network that can do anything a real one can, checked while it runs. `simulate` plays a life of faults that follows from
a seed.

Only muster's demo imports this package; it is for tests, including yours.
"""

from __future__ import annotations

from tests.simulator.chaos import simulate
from tests.simulator.checks import InvariantError
from tests.simulator.clock import VirtualClock
from tests.simulator.cluster import SimCluster
from tests.simulator.member import Habits, SimMember
from tests.simulator.scenario import Scenario

__all__ = ["Habits", "InvariantError", "Scenario", "SimCluster", "SimMember", "VirtualClock", "simulate"]
