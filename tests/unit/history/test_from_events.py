"""The history from the brokers' events, of groups without a log: the same generations and causes as from a log."""

from __future__ import annotations

from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from muster.history.engine import GroupHistory, report
from muster.history.event_history import history_of
from muster.history.model import Cause, GroupKind
from muster.history.sources.reader_warnings import ReaderWarnings
from muster.protocol.group_records import GroupMetadataRecord
from tests.support.scale import examples
from tests.support.told_group import Reported

LONG: dict[str, Any] = {"session_timeout_ms": 300_000}
NAMES = "abcd"


def reported(group: Reported, *, since: int = 0) -> GroupHistory:
    return history_of(group.written[since:], (), ReaderWarnings())


def in_the_log(group: Reported) -> list[tuple[int, set[str]]]:
    """The generations that were written, with their members."""
    values = [each.value for each in group.records if isinstance(each, GroupMetadataRecord) and each.value is not None]
    return [(value.generation, {member.member_id for member in value.members}) for value in values]


def generations(found: GroupHistory) -> list[tuple[int, set[str]]]:
    return [(row.generation, {member.member_id for member in row.members}) for row in found.rows.generations]


def act(group: Reported, verb: str, name: str) -> None:
    there = name in group.ids and group.generation and group.ids[name] in group.group.members
    match verb:
        case "join":
            group.join(name, instance=f"i-{name}" if name == "d" else None)
        case "replace" if name == "d":
            group.join("d", member_id="", instance="i-d")
        case "leave" if there:
            group.leave(name)
        case "settle" if group.generation:
            for other in group.members:
                group.join(other, instance="i-d" if other == "d" else None)
            group.tick(6_000).sync_all() if group.members else None
        case "move" if group.generation:
            group.moved_to(1 + len(group.written) % 3)
        case "expire":
            group.tick(70_000)


steps = st.lists(
    st.tuples(
        st.sampled_from(["join", "replace", "leave", "settle", "settle", "move", "expire"]), st.sampled_from(NAMES)
    ),
    max_size=25,
)


@settings(max_examples=examples(150), deadline=None)
@given(steps)
def test_generations_have_the_members_that_the_log_has(script: list[tuple[str, str]]) -> None:
    group = Reported()
    for verb, name in script:
        act(group, verb, name)
    latest: dict[int, set[str]] = dict(in_the_log(group))  # a takeover is a row of the same generation
    found = generations(reported(group))
    assert found == [(number, latest[number]) for number, _ in found]
    labels = [label for label in group.labels if label.rebalanced and label.finished_ms is not None]
    assert [number for number, _ in found] == [label.generation for label in labels]


JOINED, LEFT = ("join", "a"), ("leave", "a")
WITHIN_A_REBALANCE = [
    JOINED,
    ("join", "b"),
    ("expire", "a"),
    JOINED,
    JOINED,
    LEFT,
    JOINED,
    JOINED,
    ("settle", "a"),
    JOINED,
]


@settings(max_examples=examples(150), deadline=None)
@given(steps, st.integers(0, 40))
@example(WITHIN_A_REBALANCE, 9)  # the first event is that a leaves, before the rebalance completes without it
def test_of_events_that_begin_late_counts_are_right_and_no_member_is_named_that_is_not_there(
    script: list[tuple[str, str]], since: int
) -> None:
    group = Reported()
    for verb, name in script:
        act(group, verb, name)
    latest = dict(in_the_log(group))
    complete = {label.generation: label.members for label in group.labels if label.rebalanced}
    found = reported(group, since=since)
    rebalanced = {row.generation for row in found.rows.rebalances if not row.is_takeover}
    for row in found.rows.generations:
        named = {member.member_id for member in row.members if not member.member_id.startswith("unnamed")}
        assert named <= latest[row.generation]
        if row.generation in rebalanced:
            assert len(row.members) == complete[row.generation]


def test_rebalances_have_the_causes_that_were_reported() -> None:
    group = Reported().stable_with("a", "b")
    group.leave("b", reason="the consumer is being closed").join("a").sync_all()
    group.join("c").join("a").sync_all()
    group.tick(9_000).heartbeat("a")
    group.tick(1_000).join("a").sync_all()
    made = report(reported(group), "events", group.now, events=group.written)
    assert [
        (row.generation, row.cause, row.confidence, row.members_before, row.members_after, row.source)
        for row in made.rebalances
    ] == [
        (1, Cause.STARTED, 1.0, 0, 2, "events"),
        (2, Cause.LEFT, 1.0, 2, 1, "events"),
        (3, Cause.JOINED, 1.0, 1, 2, "events"),
        (4, Cause.SESSION_EXPIRED, 1.0, 2, 1, "events"),
    ]
    gone = made.rebalances[-1].left
    assert [(member.client_id, member.session_timeout_ms) for member in gone] == [("client-c", 10_000)]
    assert not any("records" in sentence for row in made.rebalances for sentence in row.evidence)
    assert any("'client-c'" in finding.sentence for finding in made.findings if finding.rule == "session_expired")
    assert made.kinds == {"g": GroupKind.CLASSIC}


def test_a_group_that_was_there_before_is_not_a_rebalance_and_its_unnamed_members_are_counted() -> None:
    group = Reported().stable_with("a", "b", "c")
    since = len(group.written)
    group.leave("c").join("a").join("b").sync_all()
    remarks = ReaderWarnings()
    found = history_of(group.written[since:], (), remarks)
    (row,) = found.rows.rebalances
    assert (row.previous_generation, row.generation, row.members_before, row.members_after) == (1, 2, 3, 2)
    assert [member.client_id for member in row.left] == ["client-c"]
    assert [len(each.members) for each in found.rows.generations] == [3, 2]
    assert any("events of group g are missing" in sentence for sentence in remarks.sentences())


def test_a_coordinator_that_took_a_group_over_is_not_a_rebalance() -> None:
    group = Reported().stable_with("a", "b").moved_to(2)
    assert [row.generation for row in reported(group).rows.rebalances] == [1]
    assert [row.generation for row in reported(group, since=len(group.written) - 1).rows.generations] == [1]


def test_known_groups_are_left_out_and_strange_values_pass() -> None:
    group = Reported().stable_with("a")
    assert history_of(group.written, ["g"], ReaderWarnings()).kinds == {}
    strange: list[Any] = [
        None,
        {"v": 1, "at_ms": 5, "event": "RebalanceStarted", "group_id": "s"},
        {"v": 1, "at_ms": 6, "event": "RebalanceCompleted", "group_id": "s", "generation_id": "x", "members": "y"},
        {"v": 1, "at_ms": 7, "event": "MemberFenced", "group_id": "s", "member_id": 3, "client_host": None},
        {"v": 1, "at_ms": 8, "event": "MemberJoined", "group_id": "\ud800", "member_id": "\ud800", "client_host": "h"},
        {"v": 1, "at_ms": 9, "event": "GroupLoaded", "group_id": "\ud800", "generation_id": 4, "members": 1},
    ]
    found = history_of([*group.written, *strange], (), ReaderWarnings())
    assert [row.generation for row in found.rows.rebalances if row.group == "g"] == [1]
