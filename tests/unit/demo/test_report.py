"""The demo's page: well formed, complete, self-contained, and honest about what is wrong."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree

import pytest

from muster.demo.course import Course, Outage
from muster.demo.show.picture import FLOWS, KINDS, STAGES, Box, picture
from muster.demo.show.report import NOT_KNOWN, DelayRow, DemoReport, Figure, OwnershipSpan, ShownRebalance, render
from muster.pages.charts import WIDTH, Band, Bar, NumberedLine, Shade, bar_chart, clock, column_chart, ticks, timeline
from tests.support.demo_report import course, sample
from tests.support.pages import Nesting, shapes


@pytest.fixture(scope="module")
def report() -> DemoReport:
    return sample()


@pytest.fixture(scope="module")
def page(report: DemoReport) -> str:
    return render(report)


def test_every_element_is_closed_and_every_chart_and_table_is_there(page: str) -> None:
    nesting = Nesting()
    nesting.feed(page)
    assert nesting.open == []
    assert (nesting.seen["svg"], nesting.seen["table"], nesting.seen["h1"], nesting.seen["h2"]) == (7, 3, 1, 8)


def test_the_page_asks_for_nothing_but_itself(page: str) -> None:
    assert not re.search(r"https?:|<script|<link|<img|@import|url\((?!#)|src=", page)


def test_every_chart_has_a_title_and_says_its_values(page: str, report: DemoReport) -> None:
    for svg in re.findall(r"<svg.*?</svg>", page, re.DOTALL):
        root = ElementTree.fromstring(svg)
        assert root.get("role") == "img"
        assert root.get("aria-label") == root.findtext("title")
        assert root.findtext("desc")
    for row in report.carriers:
        assert f"{row.label}: {row.mean_minutes:.2f} min, {row.flights:,} flights" in page


def test_each_figure_is_in_the_table_with_its_verdict(page: str) -> None:
    assert page.count("✓ correct") == 7
    assert "30,000" in page
    assert "✗" not in page


def test_one_wrong_figure_is_said_at_the_top(report: DemoReport) -> None:
    page = render(replace(report, figures={**report.figures, "lost": Figure(3, ok=False)}))
    assert "✗ Wrong: lost" in page
    assert "Every checked figure" not in page


def test_outages_next_to_the_lag_are_a_sentence(report: DemoReport) -> None:
    assert "(UTC). Outages: broker killed and started again at " in render(report)


def test_a_cluster_that_exists_is_not_said_to_be_killed_and_causes_are_looked_for_elsewhere(report: DemoReport) -> None:
    own = render(report)
    assert "were killed. Outages on the way: broker killed and started again." in own
    assert "doctor.html" not in own
    unknown = [replace(rebalance, cause=NOT_KNOWN) for rebalance in report.rebalances]
    other = render(replace(report, outages=[], rebalances=unknown, course=Course()))
    assert "Members joined, left and were killed. Below" in other
    assert "doctor.html, next to this page" in other


def test_the_picture_has_every_stage_and_every_flow() -> None:
    svg = picture("the pipeline", {"feed": Box("feed & more", ["7 batches"])})
    assert svg.count('class="flow"') == len(FLOWS)
    assert [group.get("class") for group in shapes(svg, "stage")] == [
        f"stage {stage.kind}" for stage in STAGES.values()
    ]
    assert "feed &amp; more" in svg
    assert {stage.kind for stage in STAGES.values()} == KINDS.keys()
    assert {name for flow in FLOWS for name in flow} == STAGES.keys()


def test_what_comes_from_outside_is_escaped(report: DemoReport) -> None:
    nasty = '<b a="1">&'
    page = render(
        replace(
            report,
            group=nasty,
            topic=nasty,
            footer=nasty,
            members=(),
            spans=[OwnershipSpan(0, nasty, 0, 9_000)],
            rebalances=[ShownRebalance(0, 5, 1, nasty)],
            carriers=[DelayRow(nasty, 1, 2.0)],
            boxes={"feed": Box(nasty, [nasty])},
            course=course(Outage(0, 1, nasty)),
            figures={nasty: Figure(nasty, ok=True, note=nasty)},
            headline=(nasty,),
        )
    )
    assert "<b" not in page.replace("<body", "")
    assert not re.search(r"&(?!amp;|lt;|gt;|quot;|#x27;)", page)


def test_a_run_without_anything_still_gives_a_page(report: DemoReport) -> None:
    nothing: dict[str, Any] = {"carriers": [], "weeks": [], "weather": [], "spans": [], "rebalances": [], "outages": []}
    empty = replace(report, **nothing, boxes={}, course=Course(), figures={}, members=())
    nesting = Nesting()
    nesting.feed(render(empty))
    assert nesting.open == []


def test_bands_lie_where_their_time_is() -> None:
    bands = [Band(0, 0, "a", 0, 4_000), Band(0, 1, "b", 4_000, 8_000), Band(1, 1, "b", 2_000, 8_000)]
    svg = timeline("t", ["p0", "p1"], bands, [], [])
    first, second, third = (band.find("rect") for band in shapes(svg, "band"))
    assert first is not None
    assert second is not None
    assert third is not None
    half = float(first.get("width", "0"))
    assert float(second.get("x", "0")) == pytest.approx(float(first.get("x", "0")) + half, abs=0.02)
    assert float(third.get("width", "0")) == pytest.approx(1.5 * half, abs=0.02)
    assert float(second.get("x", "0")) + half <= WIDTH
    assert first.get("y") == second.get("y") != third.get("y")
    assert [band.get("class") for band in shapes(svg, "band")] == ["band m0", "band m1", "band m1"]


def test_a_band_too_short_for_its_owners_name_says_it_in_its_title() -> None:
    svg = timeline("t", ["p0"], [Band(0, 0, "a-long-name", 0, 10), Band(0, 1, "b", 10, 60_000)], [], [])
    assert [name.text for name in shapes(svg, "name")] == ["b"]
    assert "a-long-name: 0.0 s to 10 ms" in svg


def test_markers_do_not_cross_the_names_of_owners_out() -> None:
    svg = timeline("t", ["p0"], [Band(0, 0, "owner", 0, 9_000)], [NumberedLine(1, 100, 200, "r")], [])
    assert svg.index('class="marker"') < svg.index(">owner</text>")


def test_numbers_of_markers_that_are_close_do_not_cover_each_other() -> None:
    markers = [NumberedLine(number, 1_000 + 10 * number, 1_500, "r") for number in range(1, 4)] + [
        NumberedLine(4, 9_000, 9_100, "r")
    ]
    svg = timeline("t", ["p0"], [], markers, [Shade(5_000, 6_000, "down")])
    circles = list(ElementTree.fromstring(svg).iter("circle"))
    assert len({circle.get("cy") for circle in circles[:3]}) == 3
    assert circles[3].get("cy") == circles[0].get("cy")
    assert min(float(circle.get("cy", "0")) for circle in circles) > 9


def test_bars_grow_with_their_values_to_both_sides_of_zero() -> None:
    svg = bar_chart("t", [Bar("a", 10.0), Bar("b", 5.0), Bar("c", -2.5), Bar("none", None)], "min")
    rects = [group.find("rect") for group in shapes(svg, "bar")]
    long, half, negative = (rect for rect in rects if rect is not None)
    assert float(long.get("width", "0")) == pytest.approx(2 * float(half.get("width", "0")), abs=0.02)
    end = float(negative.get("x", "0")) + float(negative.get("width", "0"))
    assert end == pytest.approx(float(long.get("x", "0")), abs=0.02)
    assert [text.text for text in shapes(svg, "value")] == ["10.0", "5.0", "-2.5"]
    assert "no value" in svg


def test_columns_stand_on_zero() -> None:
    svg = column_chart("t", [Bar("1", None), Bar("2", 20.0), Bar("3", -4.0)], "min", "hour")
    up, down = (group.find("rect") for group in shapes(svg, "bar"))
    assert up is not None
    assert down is not None
    assert float(up.get("y", "0")) + float(up.get("height", "0")) == pytest.approx(float(down.get("y", "0")), abs=0.02)


@pytest.mark.parametrize(
    ("milliseconds", "shown"),
    [(0, "0.0 s"), (850, "850 ms"), (12_400, "12.4 s"), (119_900, "119.9 s"), (125_000, "2:05 min")],
)
def test_lengths_of_time_are_for_people(milliseconds: int, shown: str) -> None:
    assert clock(milliseconds) == shown


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(0, 24.8, [0, 5, 10, 15, 20, 25]), (0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1]), (-3, 9, [-4, -2, 0, 2, 4, 6, 8, 10])],
)
def test_ticks_are_round_and_cover_the_range(low: float, high: float, expected: list[float]) -> None:
    assert ticks(low, high, 6) == pytest.approx(expected)
