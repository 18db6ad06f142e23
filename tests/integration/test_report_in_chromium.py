"""The pages of the demo and of a comparison in a real browser: they load, are laid out, and show their data."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from muster.compare import page as comparison
from muster.compare.rules.checks import judge
from muster.demo.show.report import render
from muster.history.show import page as doctor
from tests.support import compare_results, history_report
from tests.support.demo_report import MEMBERS, sample
from tests.support.peers import Chromium

pytestmark = pytest.mark.slow

# Appended to a copy of the page: the browser's results, left in the document for --dump-dom.
MEASURE = """<script>
const outside = [...document.querySelectorAll("svg text")].filter(text => {
  const box = text.getBoundingClientRect(), chart = text.ownerSVGElement.getBoundingClientRect();
  return box.left < chart.left - 1 || box.right > chart.right + 1
    || box.top < chart.top - 1 || box.bottom > chart.bottom + 1;
});
document.body.dataset.outside = outside.map(text => text.textContent).join("|");
document.body.dataset.wide = document.documentElement.scrollWidth > window.innerWidth;
</script>"""


def test_chromium_shows_all_charts_of_the_demo_and_their_labels(chromium: Chromium, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    page.write_text(render(sample()) + MEASURE, encoding="utf-8")
    dom = chromium.dom(page)
    assert dom.count("<svg") == 7  # the pipeline, a lag, the watermark, three of delays, the timeline
    assert 'data-outside=""' in dom
    assert 'data-wide="false"' in dom
    assert all(f">{member}</text>" in dom for member in MEMBERS)
    assert len(re.findall(r'class="badge"', dom)) == 5


def test_chromium_shows_all_charts_and_labels_of_a_comparison(chromium: Chromium, tmp_path: Path) -> None:
    results = compare_results.sample(sizes=(2, 3, 20))
    results.differing = compare_results.differing()
    page = tmp_path / "compare.html"
    page.write_text(comparison.render(results, judge(results)) + MEASURE, encoding="utf-8")
    dom = chromium.dom(page)
    assert dom.count("<svg") == 9  # three timelines, split brain, five of growth
    assert 'data-outside=""' in dom
    assert 'data-wide="false"' in dom


def test_chromium_shows_all_charts_and_labels_of_the_doctors_page(chromium: Chromium, tmp_path: Path) -> None:
    page = tmp_path / "doctor.html"
    page.write_text(doctor.render(history_report.sample()) + MEASURE, encoding="utf-8")
    dom = chromium.dom(page)
    assert dom.count("<svg") == 3  # two timelines, one lag
    assert 'data-outside=""' in dom
    assert 'data-wide="false"' in dom
    assert len(re.findall(r'class="marker"', dom)) == len(history_report.CAUSES)


NARROW = """<body><script>
const frame = document.createElement("iframe");
frame.style.width = "400px"; frame.style.height = "3000px";
frame.srcdoc = {page};
frame.onload = () => {{
  const cut = [...frame.contentDocument.querySelectorAll("td")].filter(
    cell => cell.getBoundingClientRect().right > frame.contentWindow.innerWidth);
  document.body.dataset.cut = cut.map(cell => cell.textContent).join("|");
  const unnamed = [...frame.contentDocument.querySelectorAll("td.number:not(:first-child):not(:empty)")].filter(
    cell => frame.contentWindow.getComputedStyle(cell, "::before").content === "none");
  document.body.dataset.unnamed = unnamed.map(cell => cell.dataset.name).join("|");
  document.body.dataset.wide = frame.contentDocument.documentElement.scrollWidth > 400;
  document.body.dataset.cells = frame.contentDocument.querySelectorAll("td").length;
}};
document.body.append(frame);
</script></body>"""


@pytest.mark.parametrize(
    "drawn", [lambda: render(sample()), lambda: doctor.render(history_report.sample())], ids=["demo", "doctor"]
)
def test_a_phone_shows_every_cell_of_its_tables(chromium: Chromium, tmp_path: Path, drawn: Callable[[], str]) -> None:
    text = drawn()
    page = tmp_path / "narrow.html"
    page.write_text(NARROW.format(page=json.dumps(text).replace("</", "<\\/")), encoding="utf-8")
    dom = chromium.dom(page)
    assert f'data-cells="{text.count("<td")}"' in dom
    assert 'data-cut=""' in dom
    assert 'data-unnamed=""' in dom
    assert 'data-wide="false"' in dom


def test_chromium_paints_it(chromium: Chromium, tmp_path: Path) -> None:
    page, picture = tmp_path / "report.html", tmp_path / "report.png"
    page.write_text(render(sample()), encoding="utf-8")
    chromium.screenshot(page, picture)
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert picture.stat().st_size > 50_000
