"""What the simulated lives do to their consumers."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from muster.testing import Scenario, SimCluster
from muster.testing.faults import SIMPLE, Faults


def test_a_place_goes_to_one_of_two_consumers_by_hand_that_wait_for_it():
    """The first was closing, and crashed at that: both have its successor started. The other would come at the end of
    the life, when all have left."""
    scenario = replace(Scenario.draw(Random(1)), topics={"t": 1}, simple=1)
    cluster = SimCluster(1, topics=scenario.topics, simple_groups=[SIMPLE])
    faults = Faults(cluster, scenario, Random(1))
    faults.start_simple(0)
    [first] = cluster.alive
    cluster.run(1_000)
    first.close()
    faults.start_simple(0)
    faults.start_simple(0)
    cluster.run(30_000)
    [second] = cluster.alive
    assert second is not first
    second.close()
    cluster.run_until(lambda: not cluster.alive, 30_000)
    cluster.run(30_000)
    assert cluster.alive == []
