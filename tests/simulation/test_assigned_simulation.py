"""Lives of groups to which the coordinator assigns: 40 fixed seeds and 20 of the run's own, any number in `make soak`.

The checks and the faults are those of `test_group_simulation.py`; besides, partitions lose their leaders for a while.
Partitions that are added, and static members that come back with other topics, must find their owners without an
operator's help, which other groups need at times.
"""

from __future__ import annotations

from random import Random

import pytest

from muster.coordinator.effects import Cause, RebalanceStarted
from muster.testing import Scenario, SimCluster, simulate
from tests.support.lives import chunks, live, name


def simulate_assigned(seed: int) -> SimCluster:
    return simulate(seed, Scenario.draw_assigned(Random(f"assigned {seed}")))


@pytest.mark.soak
@pytest.mark.parametrize("chunk", chunks(fixed=40, fresh=20, per_test=10), ids=name)
def test_whatever_happens_the_coordinator_assigns_as_promised(chunk: range) -> None:
    live(simulate_assigned, chunk, __file__, "promised")


def test_lives_differ_and_are_eventful() -> None:
    lives = [simulate_assigned(seed) for seed in range(30)]
    told = "\n".join(cluster.story for cluster in lives)
    for word in ("has no leader", "has a leader again", "MemberFenced", "MemberExpired", "is deposed", "a sync fails"):
        assert word in told, word
    events = [event for cluster in lives for event in cluster.brokers.coordinators.events]
    causes = {event.cause for event in events if isinstance(event, RebalanceStarted)}
    assert {Cause.LEADERS_LOST, Cause.PARTITIONS_GAINED, Cause.TOPIC_DELETED} <= causes
    assert Cause.LEADER_REJOINED not in causes
    assert not any(cluster.operator_helped for cluster in lives)
