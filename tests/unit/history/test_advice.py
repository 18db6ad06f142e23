"""The doctor's advice fits what was observed: in other circumstances the same rule says something else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from muster.history.findings import findings
from muster.history.model import Cause, Change, Finding, GroupKind, Member, Rebalance
from tests.unit.history.test_findings import (
    CALM,
    FLAPS,
    GOES,
    SLOW,
    STATIC,
    generation,
    note,
    rebalance,
    takeovers,
    times,
    view,
)

CHANGED = times(3, Cause.SUBSCRIPTION_CHANGED, 60_000)
BOTH, ONE = replace(CALM, topics=("orders", "new")), replace(SLOW, topics=("orders",))


def only(found: list[Finding]) -> Finding:
    (each,) = found
    return each


@pytest.mark.parametrize(
    ("members", "said"),
    [
        ((BOTH, replace(SLOW, topics=("new", "orders"))), "topics that match their pattern"),
        ((BOTH, ONE), "two versions of a program"),
        ((BOTH,), "topics that match their pattern"),
    ],
)
def test_members_that_agree_in_the_end_are_not_two_versions_of_a_program(
    members: tuple[Member, ...], said: str
) -> None:
    found = only(findings([view(*CHANGED, generations=[generation(*members), generation()])]))
    assert found.rule == "rejoins"
    assert said in found.advice


@pytest.mark.parametrize(("kind", "said"), [("connect", []), ("consumer", ["rejoins"])])
def test_workers_of_connect_join_again_for_their_work(kind: str, said: list[str]) -> None:
    """Each change of a connector makes them rebalance, and another rebalance hands out what they give up."""
    latest = replace(generation(CALM, protocol="sessioned"), protocol_type=kind)
    assert [each.rule for each in findings([view(*times(3, Cause.LEADER_REJOINED, 60_000), latest=latest)])] == said


@pytest.mark.parametrize(
    ("gone", "closes", "removes"), [((SLOW,), True, False), ((STATIC,), False, True), ((STATIC, SLOW), True, False)]
)
def test_a_static_member_is_not_advised_to_leave_as_it_is_closed(
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
    assert ("every member rebalances" in found.advice) is others
    assert ("the whole group rebalances" in found.sentence) is others
    assert "each of these processes" in found.advice
    assert "autoscaler" in found.advice


@pytest.mark.parametrize(("kind", "said"), [(GroupKind.CONSUMER, []), (GroupKind.CLASSIC, ["members_come_and_go"])])
def test_members_that_start_together_come_one_by_one_where_none_waits(kind: GroupKind, said: list[str]) -> None:
    """Each member of KIP-848 that joins creates its own epoch, even if all are started at once."""
    latest = replace(generation(CALM, protocol="uniform"), kind=kind)
    seen = times(8, Cause.JOINED, 100, joined=(Change(CALM),), stopped=())
    assert [each.rule for each in findings([view(*seen, latest=latest)])] == said


def test_an_offset_that_went_back_is_handled_again_only_where_a_member_began_there() -> None:
    """A commit that waited for a new coordinator may be written after a later one, and no member starts from it."""
    found = only(findings([view(notes=[note("rewind", 183, 188)])]))
    assert "members that start there process 5 records again" in found.sentence
    assert "When a coordinator moves" in found.advice


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (takeovers(5, 30_000), "pod-1 5 times within 2.0 min"),
        (takeovers(9, 30_000) + takeovers(2, 30_000, pod="pod-2"), "pod-1 9 times within"),
        (takeovers(3, 30_000), None),  # deploys, one after another
        (takeovers(2, 30_000) + takeovers(2, 30_000, pod="pod-2"), None),  # each was restarted twice
        (takeovers(9, 600_000), None),  # a deploy each ten minutes
        ([replace(row, generation=2) for row in takeovers(5, 30_000)], None),  # the group rebalanced: late ones
    ],
)
def test_processes_that_share_an_instance_id_are_found(rows: list[Rebalance], said: str | None) -> None:
    """They keep fencing each other, and nothing rebalances."""
    found = [each for each in findings([view(*rows)]) if each.rule == "instance_id_contested"]
    assert [said in each.sentence and "fences the other" in each.advice for each in found if said] == [True] * bool(
        said
    )
    assert bool(found) is bool(said)


@pytest.mark.parametrize(
    ("cause", "said"),
    [
        (Cause.POLL_INTERVAL_EXCEEDED, "longer than max.poll.interval.ms"),
        (Cause.SESSION_EXPIRED, "kill -9"),
        (Cause.LEFT, "a supervisor"),
        (Cause.NOT_KNOWN, "or its handler is too slow"),
    ],
)
def test_the_advice_on_a_flapping_member_depends_on_how_it_goes(cause: Cause, said: str) -> None:
    pattern = replace(FLAPS, went=(cause, cause, Cause.JOINED))
    seen = times(4, Cause.NOT_KNOWN, 60_000, left=(SLOW,), pattern=pattern)
    (found,) = findings([view(*seen)])
    assert said in found.advice


@pytest.mark.parametrize("change", [{"left": (SLOW,)}, {"replaced": (Change(replace(SLOW, member_id="s-2"), SLOW),)}])
def test_a_crash_loop_is_reported_as_one_after_a_clean_stop(change: dict[str, Any]) -> None:
    """If members commit rarely, the pattern does not know why they left; the rebalances name the most likely cause."""
    pattern = replace(FLAPS, went=(*(Cause.NOT_KNOWN,) * 4, Cause.LEFT))
    seen = times(4, Cause.SESSION_EXPIRED, 60_000, **change, confidence=0.5, pattern=pattern)
    stop = rebalance(Cause.LEFT, ago_ms=5_000, left=(SLOW, CALM), members_after=0)
    (found,) = findings([view(*seen, stop)])
    assert "most likely it dies or hangs without leaving the group (kill -9" in found.advice


@pytest.mark.parametrize(
    ("clients", "polls", "batches"),
    [(("slow",), True, False), (("muster-spark",), False, True), (("slow", "muster-spark"), True, True)],
)
def test_a_query_that_others_wait_for_is_not_advised_to_poll_fewer_records(
    clients: tuple[str, ...], polls: bool, batches: bool
) -> None:
    members = tuple(replace(SLOW, client_id=client) for client in clients)
    found = only(findings([view(rebalance(Cause.JOINED, waited_ms=21_700, waited_for=members))]))
    assert ("max.poll.records" in found.advice, "maxOffsetsPerTrigger" in found.advice) == (polls, batches)
