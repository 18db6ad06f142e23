"""The doctor's page: well formed, self-contained, bounded, and consistent with the report."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from muster.history.model import GroupKind
from muster.history.report import Report
from muster.history.show.lanes import LaneSpan, lanes
from muster.history.show.page import GROUPS, LANES, REBALANCES, moment, render
from muster.pages.charts import clock
from tests.support.history_report import MINUTE_MS, START_MS, busy, member, sample
from tests.support.pages import Nesting


@pytest.fixture(scope="module")
def page() -> str:
    return render(sample())


def test_every_element_is_closed_and_nothing_is_asked_for(page: str) -> None:
    nesting = Nesting()
    nesting.feed(page)
    assert nesting.open == []
    assert nesting.seen["svg"] == 3  # two timelines, the lag of one
    assert not re.search(r"https?:|<script|<link|<img|@import|url\((?!#)|src=", page)


def test_it_says_what_the_report_says(page: str) -> None:
    report = sample()
    assert "3 consumer groups of the cluster at localhost:9092" in page
    for finding in report.findings:
        assert finding.advice.split(",")[0].replace("'", "&#x27;") in page
    for rebalance in report.rebalances:
        assert f"generation {rebalance.generation}, {rebalance.cause.value}: " in page
    assert "Or session_expired: check the broker&#x27;s line about its heartbeat" in page
    assert "9 GroupMetadata, 1,200 OffsetCommit, 1 kind 42, not decoded" in page
    assert "≤ 1,120" in page  # a lag that was not counted completely
    assert "✓ 1 partition without lag." in page


def test_a_rebalance_that_the_broker_explained_is_not_called_a_guess() -> None:
    report = sample()
    report.rebalances = [replace(each, source="events") for each in report.rebalances]
    assert "90% sure" not in render(report)
    assert "written by the broker" in render(report)


def test_the_lag_over_time_is_a_line_in_records_and_one_in_time() -> None:
    report = sample()
    (now, *_) = report.lag
    course = ((0, 10, 0), (1, 400, MINUTE_MS), (2, 30, None))
    times = [START_MS + step * MINUTE_MS for step, _, _ in course]
    report.lag_over_time = [
        replace(now, at_ms=at_ms, partition=index, lag_records=records, lag_ms=lag_ms)
        for at_ms, (_, records, lag_ms) in zip(times, course, strict=True)
        for index in range(2)
    ]
    made = render(report)
    assert made.count("<polyline") == 2
    assert f"From 20 to 60 records over {clock(2 * MINUTE_MS)}, 800 at most, {clock(MINUTE_MS)} after" in made
    report.lag_over_time = report.lag_over_time[:4]  # two times: no line
    assert "<polyline" not in render(report)


def test_what_comes_from_outside_is_escaped() -> None:
    report = sample()
    evil = "<script>alert(1)</script>"
    report.generations = [replace(each, group=evil) for each in report.generations if each.group == "orders-app"]
    report.rebalances = [replace(each, group=evil, evidence=(evil,)) for each in report.rebalances]
    report.findings = [replace(each, group=evil, sentence=evil) for each in report.findings]
    report.kinds = {evil: GroupKind.CLASSIC}
    report.warnings = [evil]
    assert "<script" not in render(report)


def test_a_long_history_of_many_groups_gives_a_bounded_page() -> None:
    report = sample()
    generations, rebalances = busy()
    crowd = tuple(member(f"client-{index}", index) for index in range(LANES + 7))
    last = replace(generations[-1], members=crowd)
    for number in range(60):
        group = f"group-{number:02}"
        report.kinds[group] = GroupKind.CLASSIC
        report.generations += [replace(each, group=group) for each in (*generations[:-1], last)]
        report.rebalances += [replace(each, group=group) for each in rebalances * 8]
    page = render(report)
    assert page.count("<h2>Group ") == GROUPS
    assert f"The latest {REBALANCES} of 64 changes." in page
    assert "Not drawn: 7 more members." not in page  # three of its lanes are the busy group's
    assert "Not drawn: 10 more members." in page
    assert len(page) < 2_000_000


def test_nothing_at_all_gives_a_page_too() -> None:
    page = render(Report("the folder x", None, START_MS))
    assert "Nothing was read from the folder x." in page
    assert "✓ No findings." in page


@pytest.mark.parametrize(
    ("at_ms", "text"),
    [
        (0, "1970-01-01 00:00:00"),
        (START_MS, "2026-09-21 14:13:20"),
        (2**62, f"{2**62} ms"),
        (-1, "1969-12-31 23:59:59"),
    ],
)
def test_moments(at_ms: int, text: str) -> None:
    assert moment(at_ms) == text


def test_a_process_keeps_its_lane_over_restarts() -> None:
    generations, _ = busy()
    found = lanes(generations[:3], START_MS + 60 * MINUTE_MS)
    assert [lane.name for lane in found] == ["billing", "payments"]
    first, second, third = (each.started_ms for each in generations[:3])
    end = generations[3].started_ms
    assert found[0].spans == [LaneSpan(first, second, 6), LaneSpan(second, third, 3), LaneSpan(third, end, 6)]
    assert found[1].spans == [LaneSpan(second, third, 3)]


def test_namesakes_in_one_generation_have_a_lane_each() -> None:
    generations, _ = busy()
    twins = (member("app", 0, restarted=111_111), member("app", 1, restarted=222_222))
    found = lanes([replace(generations[0], members=twins), replace(generations[1], members=twins[:1])], START_MS)
    assert [lane.name for lane in found] == ["app …111111", "app …222222"]


def test_a_static_member_is_named_by_its_instance() -> None:
    generations, _ = busy()
    static = replace(member("app", 0), instance_id="pod-7")
    moved = replace(static, host="/10.9.9.9", member_id="other")
    found = lanes([replace(generations[0], members=(static,)), replace(generations[1], members=(moved,))], START_MS)
    assert [lane.name for lane in found] == ["pod-7"]
