"""The demo's report: an HTML page with the pipeline, its results, the story of the shared group and the
checked figures.

The page is self-contained: no scripts, fonts or addresses. `render` takes a `DemoReport`, which `outcome.py`
fills in; times are milliseconds of one clock, which the page counts from the first moment in the report.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape

from muster.demo.course import Course, Outage
from muster.demo.show.picture import KINDS, Box, picture
from muster.history.show.page import moment
from muster.pages.charts import Band, Bar, NumberedLine, Shade, bar_chart, clock, column_chart, line_chart, timeline
from muster.pages.document import document, scroll, section, table, tiles, value

UNIT = "min"
NOT_KNOWN = "not known"
"""The cause of a rebalance for which the cluster reports none."""


@dataclass(frozen=True, slots=True)
class DelayRow:
    """The mean departure delay of some flights; `mean_minutes` is None if none of them left."""

    label: str
    flights: int
    mean_minutes: float | None


@dataclass(frozen=True, slots=True)
class OwnershipSpan:
    """How long one member owned one partition without interruption."""

    partition: int
    member: str
    start_ms: int
    end_ms: int


@dataclass(frozen=True, slots=True)
class ShownRebalance:
    """One rebalance: the generation it led to, and its cause."""

    at_ms: int
    duration_ms: int
    generation: int
    cause: str


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the table: what was counted, and whether it is correct (None: nothing to compare with)."""

    value: int | float | str
    ok: bool | None = None
    note: str = ""


@dataclass(slots=True)
class DemoReport:
    """Everything the page shows. The figures named in `headline` are shown large at its top."""

    group: str
    boxes: Mapping[str, Box]
    course: Course
    carriers: Sequence[DelayRow]
    weeks: Sequence[DelayRow]
    """In the order of the year; the label is the number of the week."""
    weather: Sequence[DelayRow]
    spans: Sequence[OwnershipSpan]
    rebalances: Sequence[ShownRebalance]
    outages: Sequence[Outage]
    figures: dict[str, Figure]
    headline: Sequence[str] = ()
    topic: str = "flights"
    footer: str = ""
    members: Sequence[str] = field(default=())
    """The members in the order of the legend; other owners follow."""


def render(report: DemoReport) -> str:
    """Return the page as HTML text."""
    title = "New York’s flights of 2013, through a pipeline on Spark, checked record by record"
    footer = f"<footer>{escape(report.footer)}</footer>" if report.footer else ""
    pipeline = (_pipeline(report), _lags(report), _watermarks(report))
    outcome = (_weather(report), _carriers(report), _weeks(report))
    story = _timeline(_from_zero(report))
    return document(title, _header(report, title), *pipeline, *outcome, story, _figures(report), footer)


def _from_zero(report: DemoReport) -> DemoReport:
    starts = [span.start_ms for span in report.spans] + [outage.start_ms for outage in report.outages]
    zero = min(starts + [rebalance.at_ms for rebalance in report.rebalances], default=0)
    return replace(
        report,
        spans=[replace(span, start_ms=span.start_ms - zero, end_ms=span.end_ms - zero) for span in report.spans],
        outages=[replace(item, start_ms=item.start_ms - zero, end_ms=item.end_ms - zero) for item in report.outages],
        rebalances=sorted(
            (replace(item, at_ms=item.at_ms - zero) for item in report.rebalances), key=lambda item: item.at_ms
        ),
    )


def _header(report: DemoReport, title: str) -> str:
    wrong = [name for name, figure in report.figures.items() if figure.ok is False]
    verdict = (
        f'<p class="verdict bad">✗ Wrong: {escape(", ".join(wrong))}</p>'
        if wrong
        else '<p class="verdict good">✓ Every checked figure is correct.</p>'
    )
    outages = ", ".join(dict.fromkeys(outage.cause for outage in report.course.outages))
    lead = (
        f"Topic “{report.topic}” went through three streaming queries, members of consumer groups of their own, while "
        f"a Spark query and Python processes shared group “{report.group}”. Members joined, left and were killed. "
        f"{f'Outages on the way: {outages}. ' if outages else ''}"
        "Below: the pipeline, what came out, and how it compares with the source."
    )
    shown = tiles((name, report.figures[name].value) for name in report.headline if name in report.figures)
    return f'<header><h1>{escape(title)}</h1><p class="lead">{escape(lead)}</p>{verdict}{shown}</header>'


def _timeline(report: DemoReport) -> str:
    members = list(dict.fromkeys([*report.members, *(span.member for span in report.spans)]))
    partitions = sorted({span.partition for span in report.spans})
    bands = [
        Band(partitions.index(span.partition), members.index(span.member), span.member, span.start_ms, span.end_ms)
        for span in report.spans
    ]
    markers = [
        NumberedLine(number, item.at_ms, item.at_ms + item.duration_ms, f"generation {item.generation}, {item.cause}")
        for number, item in enumerate(report.rebalances, 1)
    ]
    shades = [Shade(outage.start_ms, outage.end_ms, outage.cause) for outage in report.outages]
    rows = [f"partition {partition}" for partition in partitions]
    title = f"Who owned each partition of {report.topic} over time"
    hint = (
        "A row is a partition, a colour its owner. Numbered lines are rebalances; the grey area after each is its "
        "duration."
    )
    if any(item.cause == NOT_KNOWN for item in report.rebalances):
        hint += " The cluster does not report causes: doctor.html, next to this page, has those that its records show."
    chart = scroll(timeline(title, rows, bands, markers, shades))
    return section("Who owned what", hint, _legend(members, report.outages), chart, _rebalances(report.rebalances))


def _legend(members: Iterable[str], outages: Sequence[Outage]) -> str:
    items = [f'<li><i class="m{index % 8}"></i>{escape(name)}</li>' for index, name in enumerate(members)]
    items.append('<li><i class="nobody"></i>nobody</li>')
    causes = dict.fromkeys(f"{outage.cause} ({clock(outage.end_ms - outage.start_ms)})" for outage in outages)
    items += [f'<li><i class="down"></i>{escape(cause)}</li>' for cause in causes]
    return f'<ul class="legend">{"".join(items)}</ul>'


def _rebalances(rebalances: Sequence[ShownRebalance]) -> str:
    rows = [
        (
            f'<span class="badge">{number}</span>',
            clock(item.at_ms),
            clock(item.duration_ms),
            str(item.generation),
            escape(item.cause),
        )
        for number, item in enumerate(rebalances, 1)
    ]
    head = [("", False), ("at", True), ("took", True), ("generation", True), ("cause", False)]
    return table(head, rows)


def _pipeline(report: DemoReport) -> str:
    items = [f'<li><i class="{kind}"></i>{escape(name)}</li>' for kind, name in KINDS.items()]
    legend = f'<ul class="legend">{"".join(items)}</ul>'
    hint = "From the files to the results. Records per second are counted over the time in which a query’s batches ran."
    return section("The pipeline", hint, legend, scroll(picture("The pipeline", report.boxes)), _queries(report.course))


def _queries(course: Course) -> str:
    head = [("query", False), ("batches", True), ("records", True), ("records/s", True), ("longest batch", True)]
    head += [("rows in state", True), ("dropped by the watermark", True)]
    rows = []
    for query, batches in sorted(course.batches.items()):
        stateful = any(batch.watermark_ms is not None for batch in batches)
        cells = [f"{course.count(query):,}", f"{sum(batch.rows for batch in batches):,}", f"{course.rate(query):,.0f}"]
        cells.append(clock(max(batch.took_ms for batch in batches)))
        cells.append(f"{max(batch.state_rows for batch in batches):,}" if stateful else "")
        cells.append(f"{sum(batch.dropped for batch in batches):,}" if stateful else "")
        rows.append((escape(query), *cells))
    return table(head, rows)


def _lags(report: DemoReport) -> str:
    """The lag over time of the groups that had any."""
    charts = []
    for group, points in report.course.lag_over_time.items():
        if len(points) > 1 and any(lag for _, lag in points):
            title = f"Lag of group {group}"
            charts.append(f"<h3>{escape(title)}</h3>" + scroll(line_chart(title, points, "records")))
    outages = ", ".join(
        f"{outage.cause} at {moment(outage.start_ms)}, for {clock(outage.end_ms - outage.start_ms)}"
        for outage in report.course.outages
    )
    hint = "Records that were written and not yet committed by the group, as any operator can see them (UTC)."
    return section("Lag", f"{hint} Outages: {outages}." if outages else hint, *charts)


def _watermarks(report: DemoReport) -> str:
    """How far the watermark of the windows is from the newest event, in days of 2013."""
    batches = report.course.batches.get("windows", ())
    points = [
        (batch.at_ms, (batch.newest_ms - batch.watermark_ms) / 86_400_000)
        for batch in batches
        if batch.newest_ms is not None and batch.watermark_ms
    ]
    if len(points) < 2:
        return ""
    title = "The newest event before the watermark"
    hint = "Days of 2013 between the newest flight of a batch and the watermark, up to which windows are closed."
    return section("Watermark", hint, scroll(line_chart(title, points, "days")))


def _weather(report: DemoReport) -> str:
    chart = bar_chart("Mean departure delay by the weather of the hour", _bars(report.weather), UNIT)
    hint = "Flights joined with the weather of their hour, as the stream-stream join found it: mean delay in minutes."
    return section("Delay by weather", hint, scroll(chart))


def _weeks(report: DemoReport) -> str:
    title = "Mean departure delay by week of the year"
    chart = column_chart(title, _bars(report.weeks), UNIT, "week of 2013")
    hint = "From the windows of days in the table: mean departure delay in minutes."
    return section("Delay by week", hint, scroll(chart))


def _carriers(report: DemoReport) -> str:
    rows = sorted(report.carriers, key=lambda row: (row.mean_minutes is None, -(row.mean_minutes or 0.0), row.label))
    chart = bar_chart("Mean departure delay by carrier", _bars(rows), UNIT)
    return section("Delay by carrier", "Mean departure delay in minutes over the flights that left.", scroll(chart))


def _bars(rows: Iterable[DelayRow]) -> list[Bar]:
    return [Bar(row.label, row.mean_minutes, f"{row.flights:,} flights") for row in rows]


def _figures(report: DemoReport) -> str:
    verdicts = {True: '<span class="good">✓ correct</span>', False: '<span class="bad">✗ wrong</span>', None: ""}
    rows = [
        (escape(name), value(figure.value), verdicts[figure.ok], escape(figure.note))
        for name, figure in report.figures.items()
    ]
    head = [("figure", False), ("value", True), ("check", False), ("", False)]
    return section(
        "Checked figures",
        "Counted from what the pipeline and the members wrote, compared with the source files.",
        table(head, rows),
    )
