"""Lives of groups whose coordinator assigns the partitions: 40 fixed seeds and 20 of the run's own, any number in `make
soak`.

The checks and the faults are those of `test_group_simulation.py`; in addition, partitions lose their leaders for a
while. Partitions that are added, and static members that come back with other topics, must be handled without an
operator's help, which other groups sometimes need.
"""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from muster.coordinator.groups.effects import EventCause, RebalanceStarted
from muster.coordinator.groups.server_assignment import ServerAssignment
from tests.simulator import InvariantError, Scenario, SimCluster, simulate
from tests.support.lives import chunks, live, name


def simulate_assigned(seed: int) -> SimCluster:
    return simulate(seed, Scenario.draw_assigned(Random(f"assigned {seed}")))


@pytest.mark.soak
@pytest.mark.parametrize("chunk", chunks(fixed=40, fresh=20, per_test=10), ids=name)
def test_whatever_happens_the_coordinator_assigns_as_promised(chunk: range) -> None:
    live(simulate_assigned, chunk, __file__, "promised")


@pytest.mark.slow
def test_lives_differ_and_are_eventful() -> None:
    lives = [simulate_assigned(seed) for seed in range(26)]
    reported = "\n".join(cluster.story for cluster in lives)
    for word in ("has no leader", "has a leader again", "MemberFenced", "MemberExpired", "is deposed", "a sync fails"):
        assert word in reported, word
    events = [event for cluster in lives for event in cluster.brokers.coordinators.events]
    causes = {event.cause for event in events if isinstance(event, RebalanceStarted)}
    assert {EventCause.LEADERS_LOST, EventCause.PARTITIONS_GAINED, EventCause.TOPIC_DELETED} <= causes
    assert EventCause.LEADER_REJOINED not in causes
    assert not any(cluster.operator_helped for cluster in lives)


def lead_lives() -> None:
    for seed in range(40):
        simulate_assigned(seed)


def assert_caught(pattern: str) -> None:
    """One of a few lives finds the planted bug, and says what is wrong."""
    with pytest.raises(InvariantError, match=pattern):
        lead_lives()


def test_partitions_that_come_back_unnoticed_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    real = ServerAssignment.rebalance_cause

    def blind(assignment: ServerAssignment, *arguments: Any) -> tuple[EventCause, str] | None:
        why = real(assignment, *arguments)
        return None if why is not None and why[0] is EventCause.PARTITIONS_GAINED else why

    monkeypatch.setattr(ServerAssignment, "rebalance_cause", blind)
    assert_caught("not stable after")


def test_a_partition_given_to_two_members_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    real = ServerAssignment.assign

    def generous(assignment: ServerAssignment, *arguments: Any) -> dict[str, bytes]:
        shares = real(assignment, *arguments)
        return dict.fromkeys(shares, next(iter(shares.values()))) if len(shares) > 3 else shares

    monkeypatch.setattr(ServerAssignment, "assign", generous)
    assert_caught("gives t.* to .* and to|own t.* in generation")
