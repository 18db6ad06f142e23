"""How the simulated lives treat their consumers."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from muster.coordinator.groups.effects import MemberFenced
from tests.simulator import Scenario, SimCluster
from tests.simulator.chaos import _Life
from tests.simulator.faults import SIMPLE, Faults


def test_a_place_goes_to_one_of_two_consumers_by_hand_that_wait_for_it():
    """The first was closing, and crashed meanwhile: both events start its successor. The second one would start at the
    end of the life, when all have left."""
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


@pytest.mark.parametrize("grows", [True, False])
def test_a_static_member_may_have_the_share_of_one_that_knew_fewer_topics(grows, monkeypatch):
    """A topic was created while it was away: the assignment was computed from its former subscription."""
    scenario = replace(Scenario.draw(Random(1)), topics={"t": 2}, restless=0)
    cluster = SimCluster(1, topics=scenario.topics)
    life = _Life(cluster, scenario, Random(1))
    monkeypatch.setattr(cluster, "is_balanced", lambda _group_id: False)
    cluster.brokers.coordinators.events.append(MemberFenced("group", "i1-1", "m1", "/m1", "i1", "i1-2"))
    life.has_grown = grows
    assert life._has_too_small_a_share() is grows
