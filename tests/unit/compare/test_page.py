"""The page of a comparison: well formed, complete, self-contained, and all its figures are from the results."""

from __future__ import annotations

import re
from itertools import pairwise
from xml.etree import ElementTree

import pytest

from muster.compare.curves import GrowthLine, growth_chart, sampled
from muster.compare.page import FIGURES, render
from muster.compare.rules.checks import judge
from muster.compare.rules.formulas import TITLES, Scheme
from muster.compare.rules.results import Results
from tests.support.compare_results import differing, sample
from tests.support.pages import Nesting, shapes


def page_of(results: Results) -> str:
    return render(results, judge(results))


@pytest.fixture(scope="module")
def page() -> str:
    return page_of(sample(sizes=(2, 3, 20)))


def test_every_element_is_closed_and_every_scheme_is_there(page: str) -> None:
    nesting = Nesting()
    nesting.feed(page)
    assert nesting.open == []
    assert nesting.seen["svg"] == 3 + 5  # a timeline for each scheme, and the charts of growth
    for scheme in (Scheme.WATCHERS, Scheme.SERVER, Scheme.MEMBERS):
        assert f"<h3>{TITLES[scheme]}</h3>" in page
    assert all(name in page for name in FIGURES)


def test_the_page_asks_for_nothing_but_itself(page: str) -> None:
    assert not re.search(r"https?:|<script|<link|<img|@import|url\((?!#)|src=", page)


def test_what_it_ran_on_is_reported_and_escaped(page: str) -> None:
    assert "ZooKeeper &lt;3.9&gt; &amp; three brokers" in page
    assert "Left out: the consumer of Kafka 0.8.2.2: no jars." in page


def test_the_verdict_is_that_of_the_checks(page: str) -> None:
    assert "✓ All checks passed" in page
    results = sample()
    results.runs[0].lost = 3
    bad = page_of(results)
    assert "✗ Failed: Scheme 1: members watch ZooKeeper, 3 members: no record is lost" in bad
    assert "✓ All checks passed" not in bad


def svgs(page: str) -> list[str]:
    return re.findall(r"<svg.*?</svg>", page, re.DOTALL)


def test_all_timelines_have_one_scale_and_show_what_was_not_as_it_should_be() -> None:
    results = sample()
    results.runs[1].end_ms *= 2
    results.runs[1].holds[-1] = results.runs[1].holds[-1]._replace(end_ms=results.runs[1].end_ms)
    charts = svgs(page_of(results))[:3]
    places = []
    for chart in charts:
        (first,) = {text.get("x") for text in ElementTree.fromstring(chart).iter() if text.text == "10 s"}
        places.append(first)
        assert len(shapes(chart, "double")) == 1
        assert len(shapes(chart, "shade")) == 4  # m3 is frozen, in all partitions
        assert len(shapes(chart, "away")) == 1
        assert len(shapes(chart, "marker")) == len(results.runs[0].steps)
    assert len(set(places)) == 1
    double = shapes(charts[0], "double")[0]
    assert "read by m1 and m3: 300 ms" in "".join(double.itertext())
    height = double[0].get("height")
    assert float(height or 999) < 30  # one row


def test_one_run_alone_has_a_point_for_each_join_and_several_have_theirs() -> None:
    for sizes, points in (((3,), 3), ((2, 3, 20), 3)):
        for chart in svgs(page_of(sample(sizes=sizes)))[-5:]:
            found = shapes(chart, "curve")
            assert [len(line.findall("circle")) for line in found[:3]] == [points] * 3
            assert all(line.findall("path") for line in found[:3])


def test_split_brain_by_servers_that_differ_is_drawn() -> None:
    results = sample()
    assert "Split brain" not in page_of(results)
    results.differing = differing()
    page = page_of(results)
    assert "3 attempts to rebalance failed" in page
    assert "the broker causes 6 rebalances" in page
    assert "read the same partitions for 2.5 s, and 77 records were" in page
    chart = svgs(page)[3]
    assert len(shapes(chart, "double")) == 1
    nesting = Nesting()
    nesting.feed(page)
    assert nesting.open == []


def test_no_results_is_still_a_page() -> None:
    nesting = Nesting()
    nesting.feed(page_of(Results()))
    assert nesting.open == []


def test_the_peer_has_points_and_no_formula() -> None:
    chart = svgs(page_of(sample(Scheme.KAFKA08)))[1]
    (line, _label) = shapes(chart, "curve")
    assert not line.findall("path")
    assert len(line.findall("circle")) == 3


def test_formulas_are_sampled_evenly_from_one_on() -> None:
    found = sampled(1_000)
    assert (found[0], found[-1]) == (1, 1_000)
    assert found == sorted(set(found))
    assert len(found) > 40


def test_zero_is_on_the_axis_and_labels_do_not_cover_each_other() -> None:
    lines = [
        GrowthLine("many", 0, [(5, 60)], [(1, 10), (1_000, 1_000_000)]),
        GrowthLine("one", 1, [(5, 1)], [(1, 1), (1_000, 1)]),
        GrowthLine("none", 2, [(5, 0)], [(1, 0), (1_000, 0)]),
        GrowthLine("none either", 3, [(5, 0)], [(1, 0), (1_000, 0)]),
    ]
    chart = growth_chart("Reads", lines, "members")
    svg = ElementTree.fromstring(chart)
    labels = {text.text: float(text.get("y", "0")) for text in svg.iter("text") if text.get("class") == "label"}
    assert set(labels) == {"many", "one", "none", "none either"}
    heights = sorted(labels.values())
    assert all(below - above >= 12 for above, below in pairwise(heights))
    dots = [float(line[1].get("cy", "0")) for line in shapes(chart, "curve")[:4]]
    grid = [float(line.get("y1", "0")) for line in shapes(chart, "grid") if line.get("y1") == line.get("y2")]
    assert dots[2] == dots[3] == max(grid)
    assert dots[0] < dots[1] < dots[2]
    assert "many: 5 members 60" in chart
