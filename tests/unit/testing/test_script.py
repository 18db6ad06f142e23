"""A recording as a script: which entries are acts and which are marks, and when each is passed."""

from __future__ import annotations

from typing import Any

import pytest

from muster.testing.recordings.recording import COMPLETE, Line, Recording
from muster.testing.recordings.script import Script


def record(at_ms: int, offset: int) -> Line:
    return {"at_ms": at_ms, "what": "record", "topic": "t", "partition": 0, "offset": offset}


def committed(at_ms: int, offset: int, client: str = "a") -> Line:
    return {"at_ms": at_ms, "what": "committed", "group": "g", "client": client, "offsets": {"t": {"0": offset}}}


def generation(at_ms: int, *clients: str) -> Line:
    members = [{"client": client, "partitions": {}} for client in clients]
    return {"at_ms": at_ms, "what": "generation", "group": "g", "generation": 1, "members": members}


def of(at_ms: int, what: str, client: str = "a", **more: Any) -> Line:
    return {"at_ms": at_ms, "what": what, "group": "g", "client": client, **more}


class Group:
    """The group under test: the lines that it has reached."""

    def __init__(self) -> None:
        self.reached: list[Line] = []

    def lacks(self, mark: Line) -> str | None:
        return None if mark in self.reached else f"no {mark['what']}"


def acts(script: Script, now: int, group: Group) -> list[int]:
    """The times of the acts that are due."""
    found = []
    while (line := script.next(now, group)) is not None:
        found.append(line["at_ms"])
    return found


def test_an_act_waits_for_its_time() -> None:
    script, group = Script(Recording([record(0, 0), record(100, 1), record(150, 2)], COMPLETE), None), Group()
    assert acts(script, 1_000, group) == [0]
    assert script.wait_ms(1_000) == 100
    assert acts(script, 1_099, group) == []
    assert script.waits_for == "it is due in 1 ms"
    assert acts(script, 1_100, group) == [100]
    assert acts(script, 9_000, group) == [150]
    assert script.is_over
    assert script.wait_ms(9_000) is None


def test_a_late_look_does_not_put_off_what_comes_after() -> None:
    script, group = Script(Recording([record(0, 0), record(100, 1), record(200, 2)], COMPLETE), None), Group()
    assert acts(script, 0, group) == [0]
    assert acts(script, 150, group) == [100]
    assert acts(script, 199, group) == []
    assert acts(script, 200, group) == [200]


@pytest.mark.parametrize(("pace", "times"), [(0, [0]), (0.5, [0, 500]), (2, [0, 2_000])])
def test_the_pace_is_what_times_are_multiplied_by(pace: float, times: list[int]) -> None:
    group = Group()
    script = Script(Recording([record(0, 0), record(1_000, 1)], COMPLETE), None, pace)
    seen = [now for now in range(0, 2_001, 500) for _ in acts(script, now, group)]
    assert seen == (times if pace else [0, 0])


def test_a_mark_holds_up_what_comes_after_it() -> None:
    first, mark, last = record(0, 0), committed(10, 1), record(30, 1)
    script, group = Script(Recording([first, mark, last], COMPLETE), None), Group()
    assert acts(script, 0, group) == [0]
    assert acts(script, 500, group) == []
    assert script.waits_for == "no committed"
    group.reached.append(mark)
    assert acts(script, 500, group) == []  # its gap of 20 ms starts when the mark is reached
    assert acts(script, 519, group) == []
    assert acts(script, 520, group) == [30]
    assert script.differences == []


def test_a_mark_that_is_not_reached_in_time_is_a_difference() -> None:
    script = Script(Recording([committed(0, 1), record(0, 0)], COMPLETE), None, patience_ms=100)
    group = Group()
    assert acts(script, 0, group) == []
    assert script.wait_ms(0) == 100
    assert acts(script, 99, group) == []
    assert acts(script, 100, group) == [0]
    assert script.differences == ["no committed, after 0.1 s"]


def test_what_another_member_does_is_an_act() -> None:
    lines: list[Line] = [of(0, "joined", "b"), generation(1, "a", "b"), committed(2, 1, "b"), committed(3, 1)]
    lines.append(record(4, 2))
    script, group = Script(Recording(lines, COMPLETE), frozenset({"a"}), 0), Group()
    assert acts(script, 0, group) == [0]
    group.reached.append(lines[1])
    assert acts(script, 1, group) == [2]
    group.reached.append(lines[3])
    assert acts(script, 2, group) == [4]


def test_a_generation_without_the_member_under_test_is_skipped() -> None:
    script = Script(Recording([generation(0, "b"), generation(1), record(2, 0)], COMPLETE), frozenset({"a"}), 0)
    assert acts(script, 0, Group()) == [2]


def test_a_fault_is_added_before_its_request_comes_and_waited_for() -> None:
    fault, last = of(500, "struck", name="f", api="OffsetCommit", fault={}), record(500, 1)
    script, group = Script(Recording([record(0, 0), fault, last], COMPLETE), None), Group()
    assert acts(script, 0, group) == [0, 500]  # it happens at the time of the request
    assert acts(script, 600, group) == []
    group.reached.append(fault)
    assert acts(script, 600, group) == [500]


def test_a_session_that_made_a_commit_fail_ends_when_the_next_commit_comes() -> None:
    failed = of(3, "refused", api="OffsetCommit", error="UNKNOWN_MEMBER_ID")
    for gone, lines in ((True, [failed]), (False, [of(3, "joined"), failed]), (False, [])):
        ended = of(1, "expired")
        script, group = Script(Recording([ended, *lines, record(9, 0)], COMPLETE), None, 0), Group()
        assert script.is_mark(script.recording.lines[0]) == gone
        assert acts(script, 0, group)[0] == 1
        assert (script.position == 0) == gone


def test_a_fault_that_struck_at_another_member_is_left_out() -> None:
    fault = of(0, "struck", "b", name="f", api="OffsetCommit", fault={})
    script = Script(Recording([fault, record(1, 0)], COMPLETE), frozenset({"a"}), 0)
    assert acts(script, 0, Group()) == [1]


def test_it_ends_where_the_member_under_test_has_left_for_good() -> None:
    lines: list[Line] = [of(0, "left"), committed(1, 1), of(2, "left", "b"), of(3, "left"), generation(4, "b")]
    lines.append(of(5, "left", "b"))
    script, group = Script(Recording(lines, COMPLETE), frozenset({"a"}), 0), Group()
    assert script.end == 3
    group.reached.append(lines[1])
    assert acts(script, 0, group) == [0, 2]
    assert script.is_over


def test_a_recording_that_breaks_off_is_a_difference() -> None:
    assert Script(Recording([], "it reached 64 MiB"), None).differences == [
        "the recording is incomplete: it reached 64 MiB"
    ]
