"""The pace keeps data flowing until the last step is done; the story comes from events and snapshots."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from muster.demo.run.plan import FeedPace
from muster.demo.show.report import NOT_KNOWN, ShownRebalance
from muster.demo.show.story import Snapshot, Story


@given(st.floats(0, 1e4), st.floats(0, 1e4), st.integers(0, 4), st.integers(0, 4))
def test_the_pace_never_falls_back(one: float, other: float, done: int, more: int) -> None:
    pace = FeedPace(events=1_000, duration_s=60, steps=4)
    early, late = sorted((one, other))
    assert 0 <= pace.allowed(early, min(done, more)) <= pace.allowed(late, max(done, more)) <= 1_000


def test_data_is_left_while_a_step_is_not_done_and_all_is_sent_after_the_last() -> None:
    pace = FeedPace(events=1_000, duration_s=60, steps=4)
    for done in range(4):
        assert pace.allowed(1e6, done) < 1_000
        assert pace.allowed(90, done) > pace.allowed(60, done) or done == 3
    assert pace.allowed(60, 4) == 1_000


def test_data_flows_at_its_pace_until_the_next_steps_share_and_slowly_above_it() -> None:
    pace = FeedPace(events=1_000, duration_s=100, steps=4)
    assert [pace.share_of(step) for step in range(2)] == [0.1, 0.275]
    assert [pace.allowed(share, 0) for share in (10, 20, 27, 47.5, 67.5)] == [100, 200, 270, 285, 295]


def snapshot(at_ms: int, owners: dict[int, str], state: str = "Stable") -> Snapshot:
    members = sorted(set(owners.values()))
    return Snapshot(at_ms, state, members, owners, dict.fromkeys(owners, 0), dict.fromkeys(range(2), 5))


def event(kind: str, **fields: Any) -> dict[str, Any]:
    return {"event": kind, "group_id": "g", **fields}


def test_events_tell_rebalances_with_every_cause() -> None:
    story = Story("g", has_events=True)
    story.on_event(event("RebalanceStarted", at=1_000, cause="member joined", client_id="a"))
    story.on_event(event("RebalanceStarted", at=1_500, cause="member left", client_id="b"))
    story.on_event(event("RebalanceStarted", at=1_500, cause="member left", client_id="b"))
    done = story.on_event(event("RebalanceCompleted", at=2_000, duration_ms=1_000, generation_id=7))
    assert done == ShownRebalance(1_000, 1_000, 7, "member joined (a); member left (b)")
    assert story.generation == 7
    assert story.on_event(event("RebalanceCompleted", at=3_000, duration_ms=10, generation_id=8)) == ShownRebalance(
        2_990, 10, 8, NOT_KNOWN
    )
    assert story.on_event({**event("RebalanceStarted", at=1), "group_id": "other"}) is None


def test_without_events_rebalances_are_seen_between_two_looks() -> None:
    story = Story("g", has_events=False)
    story.on_snapshot(snapshot(1_000, {0: "a", 1: "a"}))
    story.on_snapshot(snapshot(1_500, {}, "PreparingRebalance"))
    story.on_snapshot(snapshot(2_000, {0: "a", 1: "b"}))
    assert [(r.at_ms, r.duration_ms, r.cause) for r in story.rebalances] == [(1_000, 1_000, NOT_KNOWN)]
    story.on_snapshot(snapshot(2_500, {0: "b", 1: "b"}))
    assert len(story.rebalances) == 2


def test_spans_follow_the_owners() -> None:
    story = Story("g", has_events=True)
    story.on_snapshot(snapshot(0, {0: "a", 1: "a"}))
    story.on_snapshot(snapshot(10, {}, "PreparingRebalance"))
    story.on_snapshot(snapshot(20, {0: "a", 1: "b"}))
    story.on_snapshot(snapshot(30, {0: "a"}))
    story.finish(40)
    assert {(s.partition, s.member, s.start_ms, s.end_ms) for s in story.spans} == {
        (0, "a", 0, 40),
        (1, "a", 0, 20),
        (1, "b", 20, 20),
    }


def test_spans_end_when_the_group_is_empty() -> None:
    story = Story("g", has_events=True)
    story.on_snapshot(snapshot(0, {0: "a"}))
    story.on_snapshot(snapshot(10, {}, "Empty"))
    story.finish(99)
    assert [(s.member, s.start_ms, s.end_ms) for s in story.spans] == [("a", 0, 10)]


def test_settled_means_that_everybody_has_something() -> None:
    assert snapshot(0, {0: "a", 1: "b"}).settled
    assert not snapshot(0, {0: "a"}).settled
    assert not snapshot(0, {0: "a", 1: "b"}, "CompletingRebalance").settled
    idle = snapshot(0, {0: "a", 1: "b"})
    idle.members.append("c")
    assert not idle.settled
    assert idle.lag == 10
