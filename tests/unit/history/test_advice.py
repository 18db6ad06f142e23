"""What the doctor advises fits what was seen: the same rule, in other circumstances, says something else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from muster.history.findings import findings
from muster.history.model import Cause, Change, Finding, GroupKind, Member, Rebalance
from tests.unit.history.test_findings import CALM, FLAPS, GOES, SLOW, STATIC, generation, note, rebalance, times, view

CHANGED = times(3, Cause.SUBSCRIPTION_CHANGED, 60_000)
BOTH, ONE = replace(CALM, topics=("orders", "new")), replace(SLOW, topics=("orders",))


def only(found: list[Finding]) -> Finding:
    (each,) = found
    return each


@pytest.mark.parametrize(
    ("members", "said"),
    [
        ((BOTH, replace(SLOW, topics=("new", "orders"))), "topics that their pattern matches"),
        ((BOTH, ONE), "two versions of a program"),
        ((BOTH,), "topics that their pattern matches"),
    ],
)
def test_members_that_agree_in_the_end_are_no_two_versions_of_a_program(members: tuple[Member, ...], said: str) -> None:
    found = only(findings([view(*CHANGED, generations=[generation(*members), generation()])]))
    assert found.rule == "rejoins"
    assert said in found.advice


@pytest.mark.parametrize(("kind", "said"), [("connect", []), ("consumer", ["rejoins"])])
def test_workers_of_connect_join_again_for_their_work(kind: str, said: list[str]) -> None:
    """Each change of a connector makes them rebalance, and what they give up is handed out by one more."""
    latest = replace(generation(CALM, protocol="sessioned"), protocol_type=kind)
    assert [each.rule for each in findings([view(*times(3, Cause.LEADER_REJOINED, 60_000), latest=latest)])] == said


@pytest.mark.parametrize(
    ("gone", "closes", "removes"), [((SLOW,), True, False), ((STATIC,), False, True), ((STATIC, SLOW), True, False)]
)
def test_a_static_member_is_not_told_to_leave_as_it_is_closed(
    gone: tuple[Member, ...], closes: bool, removes: bool
) -> None:
    found = only(findings([view(rebalance(Cause.SESSION_EXPIRED, left=gone))]))
    assert ("Close consumers on SIGTERM" in found.advice, "remove-members" in found.advice) == (closes, removes)


@pytest.mark.parametrize(("stops", "others"), [((True, True), False), ((True, False), True), ((False, False), True)])
def test_a_group_that_goes_as_a_whole_has_no_others_to_save(stops: tuple[bool, bool], others: bool) -> None:
    pattern = replace(FLAPS, went=(Cause.LEFT,) * 4, members=("'a' at h", "'b' at h"))
    back: Rebalance = rebalance(Cause.STARTED, ago_ms=1_000, joined=(Change(SLOW),), pattern=pattern)
    seen = [each for stop in stops for each in times(2, Cause.LEFT, 60_000, pattern=pattern, is_stop=stop, **GOES)]
    found = only(findings([view(*seen, back)]))
    assert found.rule == "flapping"
    assert ("the others rebalance" in found.advice) is others
    assert ("the whole group rebalances" in found.sentence) is others
    assert "each of these processes" in found.advice
    assert "autoscaler" in found.advice


@pytest.mark.parametrize(("kind", "said"), [(GroupKind.CONSUMER, []), (GroupKind.CLASSIC, ["members_come_and_go"])])
def test_members_that_start_together_come_one_by_one_where_none_waits(kind: GroupKind, said: list[str]) -> None:
    """Each member of KIP-848 that joins makes an epoch of its own, also where all are started at once."""
    latest = replace(generation(CALM, protocol="uniform"), kind=kind)
    seen = times(8, Cause.JOINED, 100, joined=(Change(CALM),), stopped=())
    assert [each.rule for each in findings([view(*seen, latest=latest)])] == said


def test_an_offset_that_went_back_is_handled_again_only_where_a_member_began_there() -> None:
    """A commit that waited for a new coordinator may be written after a later one, and nobody begins at it."""
    found = only(findings([view(notes=[note("rewind", 183, 188)])]))
    assert "5 records are handled again where a member began there" in found.sentence
    assert "As a coordinator moves" in found.advice
