"""The workload: whatever its size, somebody takes over, and members that are killed have their own processes."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.compare.rules.workload import LOSSES, StepKind, WorkloadStep, differing_script, fragile, hosts, script


def test_the_steps_of_five_members() -> None:
    joins = [WorkloadStep(StepKind.JOIN, f"m{number}") for number in range(1, 6)]
    losses = [
        WorkloadStep(StepKind.LEAVE, "m1"),
        WorkloadStep(StepKind.CRASH, "m2"),
        WorkloadStep(StepKind.FREEZE, "m3"),
    ]
    assert script(5) == [*joins, *losses, WorkloadStep(StepKind.BROKER), WorkloadStep(StepKind.ZOOKEEPER)]
    assert script(5, broker=False, zookeeper=False) == [*joins, *losses]
    assert [str(step) for step in script(5)[4:7]] == ["m5 joins", "m1 leaves", "m2 crashes"]
    assert str(WorkloadStep(StepKind.BROKER)) == "a broker stops and restarts"


def test_a_group_of_two_is_filled_up_before_each_loss() -> None:
    steps = [str(step) for step in script(2, broker=False, zookeeper=False)]
    assert steps == [
        "m1 joins",
        "m2 joins",
        "m1 leaves",
        "m3 joins",
        "m2 crashes",
        "m4 joins",
        "m3 is frozen past its session, and resumes",
    ]


def test_the_member_whose_server_lags_is_alone_in_its_process() -> None:
    steps = differing_script()
    assert [step.member for step in steps] == ["m1", "m2", "m3", "", "m2"]
    assert hosts(steps, 10) == [["m2"], ["m1", "m3"]]


@pytest.mark.parametrize("size", [-1, 0, 1])
def test_a_group_that_nobody_could_take_over_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match="no member to take over"):
        script(size)


@given(st.integers(2, 60), st.integers(1, 12))
def test_somebody_takes_over_whatever_is_lost(size: int, per_host: int) -> None:
    steps = script(size)
    members: set[str] = set()
    came = [step.member for step in steps if step.kind is StepKind.JOIN]
    assert came == sorted(came)
    for step in steps:
        if step.kind is StepKind.JOIN:
            assert step.member not in members
            members.add(step.member)
        elif step.kind in LOSSES:
            members.remove(step.member)  # it must be there
            assert members
    assert [step.kind for step in steps[:size]] == [StepKind.JOIN] * size
    kinds = Counter(step.kind for step in steps)
    assert all(kinds[kind] == 1 for kind in StepKind if kind not in (StepKind.JOIN, StepKind.LATE, StepKind.LAG))
    shared = hosts(steps, per_host)
    assert sorted(name for names in shared for name in names) == sorted({s.member for s in steps if s.member})
    assert all([name] in shared for name in fragile(steps))
    assert max(map(len, shared)) <= per_host


def test_only_a_step_that_takes_a_member_away_ends_its_session() -> None:
    """A newcomer that loses its session causes another rebalance, and the counts of its step mean nothing."""
    meant = {kind for kind in StepKind if WorkloadStep(kind, "m1").ends_session_of("m1")}
    assert meant == {StepKind.CRASH, StepKind.FREEZE, StepKind.LAG}
    assert not any(WorkloadStep(kind, "m1").ends_session_of("m2") for kind in StepKind)
