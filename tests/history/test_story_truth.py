"""What should be reported about a story follows from its acts: a table of acts and causes, patterns and findings."""

from __future__ import annotations

from typing import Any

import pytest

from tests.history.stories.truth import deeds, expectation, patterns_of, windows
from tests.history.stories.witness import doubts, undoubted

START = {"do": "start", "members": ["m1", "m2"], "topics": ["t"]}
DEPLOY = {"step": 1, "what": "deploy", "how": "rolling"}
STATIC = {"step": 1, "what": "deploy", "how": "static"}


def story(*acts: dict[str, Any], client: str = "java", protocol: str = "range", static: bool = False) -> dict[str, Any]:
    """Acts ten seconds apart, unless they state their time."""
    timed = []
    for at, act in enumerate(acts):
        at_ms = act.get("at_ms", 10_000 * at)
        timed.append({"members": [], "settled": True, **act, "at_ms": at_ms, "until_ms": at_ms + 5_000})
    labels = {label for act in timed for label in act["members"]}
    about = {"client": client, "protocol": protocol, "static": static}
    return {
        "acts": timed,
        "cast": dict.fromkeys(sorted(labels), about),
        "config": {"session.timeout.ms": "20000"},
        "theme": "mixed",
        "traffic": "always",
        "broker_log": [],
        "records": [],
    }


def does(do: str, *members: str, **more: Any) -> dict[str, Any]:
    return {"do": do, "members": list(members), **more}


@pytest.mark.parametrize(
    ("act", "causes"),
    [
        (does("join", "m3", topics=["t"]), {"joined"}),
        (does("leave", "m1"), {"left"}),
        (does("kill", "m1"), {"session_expired"}),
        (does("freeze", "m1"), {"session_expired"}),
        (does("slow", "m1"), {"poll_interval_exceeded"}),
        (does("subscribe", "m1", topics=["t", "u"]), {"subscription_changed"}),
        (does("add_partitions"), {"partitions_added"}),
        (does("create", topic="u", matching=True), {"partitions_added", "subscription_changed"}),
        (does("create", topic="u", matching=False), set()),
        (does("blink", "m1"), set()),
        (does("wait"), set()),
    ],
)
def test_an_act_leads_to_its_cause(act, causes):
    *_, deed = deeds(story(START, act))
    assert deed.causes == causes
    assert deed.must is bool(causes)


def test_members_that_come_into_an_empty_group_start_it():
    stopped = does("leave", "m1", "m2", all=True)
    first, _, again = deeds(story(START, stopped, does("start", "m1", topics=["t"])))
    assert first.causes == again.causes == {"started"}
    assert "joined" in first.allowed
    assert "joined" not in again.allowed


def test_an_expression_that_the_broker_evaluates_does_not_change():
    *_, deed = deeds(story(START, does("create", topic="u", matching=True), protocol="consumer"))
    assert deed.causes == {"partitions_added"}


@pytest.mark.parametrize(
    ("back_ms", "left", "back"),
    [(12_000, "static_member_replaced", "static_member_replaced"), (60_000, "session_expired", "joined")],
)
def test_a_static_member_is_missed_only_after_its_session(back_ms, left, back):
    acts = (START, does("leave", "m1", of=STATIC, at_ms=10_000), does("back", "m1", topics=["t"], at_ms=back_ms))
    _, leaves, returns = deeds(story(*acts, static=True))
    assert [*leaves.causes, *returns.causes] == [left, back]
    assert leaves.must is returns.must is (left == "session_expired")


def test_acts_that_nobody_waited_for_share_a_window():
    kept = story(START, does("kill", "m2", settled=False), does("back", "m2", topics=["t"]))
    assert [len(window.deeds) for window in windows(kept)] == [1, 2]


def test_a_deploy_is_a_rolling_restart_and_crashes_are_none():
    turns = [does(do, label, topics=["t"], of=DEPLOY) for label in ("m1", "m2") for do in ("leave", "back")]
    kept = story(START, *turns)
    assert all(patterns_of(window, kept) == ({"rolling_restart"}, {"rolling_restart"}) for window in windows(kept)[1:])
    assert expectation(kept, list(deeds(kept))).must == [{"rolling_restart"}]
    crashes = [does(do, label, topics=["t"]) for label in ("m1", "m2") for do in ("kill", "back")]
    kept = story(START, *crashes)
    assert [found for window in windows(kept) for found in patterns_of(window, kept) if found] == []


def test_what_happens_to_a_member_besides_its_deploy_is_not_part_of_it():
    turns = [does(do, label, topics=["t"], of=DEPLOY) for label in ("m1", "m2") for do in ("leave", "back")]
    kept = story(START, does("freeze", "m1"), does("thaw", "m1"), *turns, does("kill", "m2"))
    freeze, thaw, *_, kill = windows(kept)[1:]
    assert [found for window in (freeze, thaw, kill) for found in patterns_of(window, kept)[0]] == []
    assert [found for window in (freeze, thaw, kill) for found in patterns_of(window, kept)[1] - {"flapping"}] == []


def test_a_member_flaps_that_went_three_times_in_ten_minutes():
    often = [does(do, "m2", topics=["t"]) for _ in range(3) for do in ("kill", "back")]
    kept = story(START, *often)
    assert all(patterns_of(window, kept)[0] == {"flapping"} for window in windows(kept)[1:])
    kept = story(START, *often[:4])
    assert all(patterns_of(window, kept)[0] == set() for window in windows(kept))


def test_findings_follow_from_what_was_done():
    kept = story(START, does("join", "m3", topics=["t"]), does("busy", "m1"), does("leave", "m1", "m2", "m3", all=True))
    expected = expectation(kept, list(deeds(kept)))
    assert expected.is_healthy
    assert expected.must == []
    assert expected.may == set()
    kept = story(START, does("kill", "m1"))
    assert expectation(kept, list(deeds(kept))).must == [{"session_expired", "flapping"}]
    assert expectation(kept, []).must == []
    kept = story(START, does("join", "m3", topics=["u"]), does("wait"))
    assert (expectation(kept, []).must, expectation(kept, []).may) == ([], {"shared_group_id"})
    kept = story(START, does("join", "m3", topics=["u"]), does("wait", at_ms=50_000))
    assert expectation(kept, []).must == [{"shared_group_id"}]


def test_a_rebalance_is_delayed_for_as_long_as_the_coordinator_waited():
    kept = story(START, does("join", "m3", topics=["t"], held_by="m1"))
    began = {"at_ms": 10_500, "group": "g", "text": "Preparing to rebalance group g"}
    for at_ms, must in ((10_900, []), (22_000, [{"held_up"}])):
        kept["acts"][-1]["until_ms"] = at_ms
        ended = {"at_ms": at_ms, "group": "g", "text": "Stabilized group g generation 2"}
        assert expectation({**kept, "broker_log": [began, ended]}, []).must == must


def test_a_story_ends_where_the_coordinator_did_what_no_act_explains():
    kept = story(START, does("kill", "m2"), does("wait"))
    expired = {"at_ms": 14_000, "group": "g", "text": "Member m2-1 has failed, removing it from the group."}
    assert doubts({**kept, "broker_log": [expired]}) == []
    other = {**expired, "text": "Member m1-1 has failed, removing it from the group."}
    assert len(doubts({**kept, "broker_log": [other]})) == 1
    assert [act["do"] for act in undoubted({**kept, "broker_log": [other]})["acts"]] == ["start"]
    late = {"at_ms": 18_000, "group": "g", "text": "Preparing to rebalance group g"}
    assert [act["do"] for act in undoubted({**kept, "broker_log": [late]})["acts"]] == ["start", "kill"]
