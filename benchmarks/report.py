"""The output of a benchmark: JSON for programs, one table for people, and the same table in performance.md."""

from __future__ import annotations

import json
import os
import platform
import re
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

from benchmarks.modes import Figures
from muster import __version__

ROOT = Path(__file__).resolve().parent.parent
RESULTS = Path(__file__).resolve().parent / "results"
PAGE = ROOT / "docs" / "reference" / "performance.md"

Medians = Mapping[str, Mapping[str, Figures]]
"""By mode and server."""


class Row(NamedTuple):
    """One line of the table: a figure of a mode, its label, and its goal."""

    mode: str
    figure: str
    label: str
    unit: str
    less_is_better: bool
    target: str


MS, MB, RATE, US, MB_S = "ms", "MB", "/s", "µs", "MB/s"
ROWS = (
    Row("startup", "ms", "start to first successful Metadata", MS, True, "≤ 150 ms"),
    Row("startup", "rss_mb", "resident memory after the start", MB, True, "≤ 45 MB"),
    Row("memory", "rss_mb", "the same with a group of 1,000 members", MB, True, "≤ 70 MB"),
    Row("heartbeats", "requests_per_s", "heartbeats, 4 connections × 64 deep", RATE, False, "≥ 200,000/s"),
    Row("heartbeats", "server_us", "server's CPU for each of them", US, True, "≤ 4 µs"),
    Row("heartbeats-64x1", "requests_per_s", "heartbeats, 64 connections × 1", RATE, False, ""),
    Row("heartbeats-64x1", "server_us", "server's CPU for each of them", US, True, "≤ 11 µs"),
    Row("commits", "requests_per_s", "OffsetCommit, 1 partition", RATE, False, "≥ 80,000/s"),
    Row("commits", "server_us", "server's CPU for each of them", US, True, ""),
    Row("commits-10", "requests_per_s", "OffsetCommit, 10 partitions", RATE, False, "≥ 40,000/s"),
    Row("commits-10", "server_us", "server's CPU for each of them", US, True, ""),
    Row("offset-fetches", "requests_per_s", "OffsetFetch, 1 partition", RATE, False, "≥ 100,000/s"),
    Row("offset-fetches", "server_us", "server's CPU for each of them", US, True, ""),
    Row("rebalance-100", "form_ms", "a group of 100 forms", MS, True, "≤ 0.6 × Kafka"),
    Row("rebalance-100", "one_more_ms", "one more joins the 100", MS, True, "≤ 0.5 × Kafka"),
    Row("rebalance-1000", "form_ms", "a group of 1,000 forms", MS, True, "≤ 0.6 × Kafka"),
    Row("rebalance-1000", "one_more_ms", "one more joins the 1,000", MS, True, "≤ 0.5 × Kafka"),
    Row("produce-900", "mb_per_s", "produce, batches of 900 records of 1 KB", MB_S, False, "≥ 1.2 × Kafka"),
    Row("produce-16", "mb_per_s", "produce, batches of 16 records of 1 KB", MB_S, False, "≥ Kafka"),
    Row("produce-single", "records_per_s", "produce, single records, 4 × 64 deep", RATE, False, "≥ 60,000/s"),
    Row("fetch", "mb_per_s", "fetch, 1 MB at a time", MB_S, False, "≥ Kafka"),
    Row("end-to-end", "p50_ms", "record sent → seen by a waiting fetch, median", MS, True, "≤ 0.25 ms"),
    Row("end-to-end", "p99_ms", "the same, 99th percentile", MS, True, "≤ 1 ms"),
)


def ratio(medians: Mapping[str, Figures], row: Row, server: str = "muster") -> float | None:
    """How many times better muster is than Kafka; None if either was not measured."""
    ours, theirs = (medians.get(name, {}).get(row.figure) for name in (server, "kafka"))
    if not ours or not theirs:
        return None
    return theirs / ours if row.less_is_better else ours / theirs


def cells(medians: Medians) -> list[tuple[str, ...]]:
    """The table: the label, each server's figure, how much better muster's are than Kafka's, the goal."""
    found: list[tuple[str, ...]] = []
    ours = _ours(medians)
    for row in ROWS:
        measured = medians.get(row.mode)
        if not measured or not any(row.figure in figures for figures in measured.values()):
            continue
        figures = [_number(measured.get(server, {}).get(row.figure), row.unit) for server in (*ours, "kafka")]
        better = [ratio(measured, row, server) for server in ours]
        found.append((row.label, *figures, *("-" if x is None else f"{x:.2g}×" for x in better), row.target))
    return found


def _ours(medians: Medians) -> list[str]:
    """Which of muster's servers were measured."""
    compiled = any("compiled" in measured for measured in medians.values())
    return ["muster", "compiled"] if compiled else ["muster"]


def head(medians: Medians) -> tuple[str, ...]:
    """The column headings."""
    ours = _ours(medians)
    names = ["muster", "compiled"][: len(ours)]
    return ("", *names, "Kafka 4.2", *(f"{name} is better by" for name in names), "to reach")


def _number(value: float | None, unit: str) -> str:
    if value is None:
        return "-"
    text = f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
    return f"{text}{unit}" if unit == RATE else f"{text} {unit}"


def plain(medians: Medians) -> str:
    """The table for a terminal."""
    return plain_table(head(medians), cells(medians), left=(0, len(head(medians)) - 1))


def plain_table(head: Sequence[str], rows: Sequence[Sequence[str]], left: Collection[int]) -> str:
    """A table for a terminal; the columns `left` are aligned left, all others right."""
    table = [head, *rows]
    widths = [max(len(row[column]) for row in table) for column in range(len(head))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column in left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in table
    )


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]], left: Collection[int]) -> str:
    """The same table for a page."""
    rule = ["---" if column in left else "---:" for column in range(len(head))]
    return "\n".join("| " + " | ".join(line) + " |" for line in [head, rule, *rows])


def spread(ratios: Sequence[float]) -> str:
    """The median of ratios, and the least and the most of them."""
    return f"{median(ratios):.2f}× ({min(ratios):.2f} to {max(ratios):.2f})"


def machine() -> str:
    """A generic description of the machine."""
    return f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}, Python {platform.python_version()}"


def save(runs: Mapping[str, Mapping[str, list[Figures]]], medians: Medians, seconds: float) -> Path:
    """Write all runs and their medians; returns the file."""
    return save_as("load", {"seconds": seconds, "medians": medians, "runs": runs})


def save_as(name: str, found: Mapping[str, object]) -> Path:
    """Write a benchmark's results and the machine; returns the file."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / time.strftime(f"{name}-%Y%m%d-%H%M%S.json")
    path.write_text(json.dumps({"muster": __version__, "machine": machine(), **found}, indent=1) + "\n")
    return path


def write_page(medians: Medians, note: str) -> None:
    """Put the load benchmark's table into docs/reference/performance.md."""
    put_on_page("load", f"{note}\n\n{markdown_table(head(medians), cells(medians), left=(0, len(head(medians)) - 1))}")


def put_on_page(place: str, text: str) -> None:
    """Put a text between the two marks of a place in docs/reference/performance.md."""
    page = PAGE.read_text()
    begin, end = f"<!-- {place}:begin -->", f"<!-- {place}:end -->"
    if begin not in page or end not in page:
        raise SystemExit(f"{PAGE} has no place for the table: {begin} … {end}")
    PAGE.write_text(re.sub(f"{begin}.*?{end}", lambda _: f"{begin}\n{text}\n{end}", page, flags=re.DOTALL))
