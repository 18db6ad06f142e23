"""The log lines about groups that an operator reads: who, why, how long (O2)."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from muster.broker.groups.events import EventFile, GroupLines
from muster.coordinator.groups.effects import RebalanceCompleted, RebalanceStarted
from tests.support.assigned_group import AssignedGroup
from tests.support.group_harness import GroupHarness
from tests.support.said import said

LONG = {"session_timeout_ms": 300_000}


@pytest.fixture
def group() -> GroupHarness:
    return GroupHarness()


def lines(group: GroupHarness, caplog: pytest.LogCaptureFixture, level: int = logging.INFO) -> list[str]:
    """The log lines about everything that has happened to a group since the last call."""
    caplog.clear()
    tell = GroupLines()
    with caplog.at_level(level, "muster.groups"):
        for event in group.events:
            tell(event)
    group.events.clear()
    return said(caplog, "muster.groups")


def test_a_rebalance_is_reported_with_its_member_its_reason_and_its_length(
    group: GroupHarness, caplog: pytest.LogCaptureFixture
) -> None:
    """O2."""
    group.join("a", reason="first light").tick(3_000).sync_leader()
    assert lines(group, caplog) == [
        "group g: member a-1 of client 'client-a' at 127.0.0.1 joined: first light",
        "group g: rebalance after generation 0: member joined (member a-1 of client 'client-a'): Adding new member a-1 "
        "with group instance id None; client reason: first light",
        "group g: rebalance done in 3000 ms: generation 1, 1 member(s), range, leader a-1",
    ]


def test_a_client_that_the_coordinator_cannot_assign_to_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    group = AssignedGroup()
    group.join("x", protocols={"sticky": b"", "own": b""})
    assert lines(group, caplog) == [
        "group g: client 'client-x' at 127.0.0.1 cannot join: the coordinator assigns by range and roundrobin; "
        "the member supports sticky, own"
    ]


@pytest.mark.parametrize(
    ("happens", "cause"),
    [
        (lambda group: group.join("c"), "member joined (member c-"),
        (lambda group: group.join("a"), "leader rejoined (member a-"),
        (
            lambda group: group.join("b", protocols={"range": b"other"}),
            "member rejoined with other metadata (member b-",
        ),
        (lambda group: group.leave("b"), "member left (member b-"),
        (lambda group: (group.tick(9_999).heartbeat("a"), group.tick(1)), "member's session expired (member b-"),
        (
            lambda group: group.join("a", **LONG).join("b", **LONG).sync("a").tick(60_000),
            "member did not sync in time (member b-",
        ),
    ],
)
def test_every_cause_names_its_member(group: GroupHarness, caplog: pytest.LogCaptureFixture, happens, cause) -> None:
    """O2: a member that keeps making a group rebalance is named on every one of these lines."""
    group.stable_with("a", "b")
    lines(group, caplog)
    happens(group)
    started = [line for line in lines(group, caplog) if "rebalance after generation" in line]
    assert cause in started[-1]


def test_many_that_come_and_go_in_one_rebalance_are_one_line(
    group: GroupHarness, caplog: pytest.LogCaptureFixture
) -> None:
    """O2: the member that began the rebalance is named; there may be thousands of other members."""
    group.stable_with("a")
    lines(group, caplog)
    group.join("b", reason="more of us").join("c").join("d").leave("d").join("e").join("a").sync_leader()
    assert [line for line in lines(group, caplog) if "after generation" not in line] == [
        "group g: member b-3 of client 'client-b' at 127.0.0.1 joined: more of us",
        "group g: 3 member(s) joined, 1 member(s) left",
        "group g: rebalance done in 0 ms: generation 2, 4 member(s), range, leader a-1",
    ]


def test_at_level_debug_each_of_many_has_a_line(group: GroupHarness, caplog: pytest.LogCaptureFixture) -> None:
    """O2."""
    group.stable_with("a", "b", "c")
    reported = [line for line in lines(group, caplog, logging.DEBUG) if line.endswith(" at 127.0.0.1 joined")]
    assert [line.split("'")[1] for line in reported] == ["client-a", "client-b", "client-c"]


def test_events_are_lines_of_json_for_programs(group: GroupHarness, tmp_path: Path) -> None:
    """O2: with `--events`."""
    file = EventFile(tmp_path / "events")
    group.stable_with("a")
    for event in group.events:
        file(event)
    file.close()
    reported = [json.loads(line) for line in (tmp_path / "events").read_text().splitlines()]
    assert [entry["event"] for entry in reported] == [
        "MemberJoined",
        RebalanceStarted.__name__,
        RebalanceCompleted.__name__,
    ]
    assert reported[1]["cause"] == "member joined"
    assert reported[2]["duration_ms"] == 3_000


def test_events_continue_in_a_new_file_when_theirs_is_renamed(tmp_path: Path) -> None:
    """As logrotate does it."""
    event = RebalanceCompleted("g", 1, 1, 5, None, None)
    file = EventFile(tmp_path / "events")
    file(event)
    (tmp_path / "events").rename(tmp_path / "events.1")
    file(event)
    file.close()
    assert [len((tmp_path / name).read_text().splitlines()) for name in ("events.1", "events")] == [1, 1]


def test_events_that_cannot_be_written_are_reported_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The folder disappears, and comes back."""
    folder = tmp_path / "folder"
    folder.mkdir()
    file = EventFile(folder / "events")
    event = RebalanceCompleted("g", 1, 1, 5, None, None)
    (folder / "events").unlink()
    folder.rmdir()
    for _ in range(3):
        file(event)
    [line] = said(caplog, "muster")
    assert "events are being lost" in line
    folder.mkdir()
    file(event)
    file.close()
    assert len((folder / "events").read_text().splitlines()) == 1
