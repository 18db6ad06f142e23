"""The doctor's page: one HTML file with the findings, the timeline of each group, its rebalances and its lag.

The page is self-contained: no scripts, fonts or links. A history may be long and a cluster may have thousands of
groups: the page shows those with findings first, limits the number of each kind of row, and reports how many it left
out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from html import escape

from muster.history.model import Finding, Generation, Lag, Rebalance
from muster.history.report import GroupSummary, Report, summaries
from muster.history.rules.wording import count, duration, listed, named, shortened
from muster.history.show.lanes import Lane, lanes
from muster.pages.charts import Band, Bar, NumberedLine, bar_chart, line_chart, timeline
from muster.pages.document import document, scroll, section, table, tiles

GROUPS = 12
"""How many groups get their own section."""
REBALANCES = 40
"""How many of a group's latest rebalances are shown; its timeline begins at the first of them."""
FINDINGS = 50
SUMMARIES = 200
PARTITIONS = 20
_REST_MS = 60_000
LANES = 24
FEWEST_POINTS = 3
"""A line is not drawn through fewer points."""


def render(report: Report) -> str:
    """Return the page as HTML text."""
    groups = summaries(report)
    with_section = [each for each in groups if each.generation is not None or each.lag_records is not None][:GROUPS]
    linked = {group.group: _link(group.group, number) for number, group in enumerate(with_section, 1)}
    parts = [_header(report, groups), _findings(report, linked), _groups(groups, linked)]
    parts += [_group(report.of(group.group), group, number) for number, group in enumerate(with_section, 1)]
    footer = f"<footer>{escape(_reach(report))}</footer>"
    return document("Consumer groups: their rebalances and lag", *parts, _notes(report), footer)


def _link(group: str, number: int) -> str:
    return f'<a href="#group-{number}">{_name(group)}</a>'


def _name(group: str) -> str:
    return f'<span class="name">{escape(shortened(group))}</span>'


# -------------------------------------------------------------------------------------------------------- all groups


def _header(report: Report, groups: Sequence[GroupSummary]) -> str:
    title = f"{count(len(groups), 'consumer group')} of {report.source}"
    if report.findings:
        found = f"{count(len(report.findings), 'finding')}, the group with the most costly one first."
        verdict = f'<p class="verdict bad">✗ {found}</p>'
    else:
        verdict = '<p class="verdict good">✓ No findings.</p>'
    lag = [group.lag_records for group in groups if group.lag_records is not None]
    stopped = sum(each.stopped_partition_ms for each in report.rebalances)
    shown = tiles(
        [
            ("rebalances", sum(each.is_rebalance for each in report.rebalances)),
            ("partition-time stopped, at most", duration(stopped)),
            ("members now", sum(group.members for group in groups)),
            ("lag in records", sum(lag) if lag else "not known"),
        ]
    )
    lead = escape(_reach(report))
    return f'<header><h1>{escape(title)}</h1><p class="lead">{lead}</p>{verdict}{shown}</header>'


def _reach(report: Report) -> str:
    if report.from_ms is None:
        return f"Nothing was read from {report.source}."
    return f"Read from {report.source}: records from {moment(report.from_ms)} to {moment(report.until_ms)}."


def _findings(report: Report, linked: Mapping[str, str]) -> str:
    if not report.findings:
        return ""
    rows = [
        (
            f'<span class="badge">{number}</span>',
            linked.get(each.group) or _name(each.group),
            _cost(each),
            moment(each.since_ms),
            f"<b>{escape(each.sentence)}</b><br>{escape(each.advice)}",
        )
        for number, each in enumerate(report.findings[:FINDINGS], 1)
    ]
    head = [("", False), ("group", False), ("stopped", True), ("since", False), ("finding, and what to change", False)]
    hint = (
        "Stopped: upper bound on the time for which the problem stopped partitions, summed over partitions."
        + _left_out(report.findings, FINDINGS)
    )
    return section("Findings", hint, table(head, rows))


def _cost(each: Finding) -> str:
    if not each.stopped_partition_ms:
        return ""
    a_day = each.stopped_partition_ms_per_day
    return duration(each.stopped_partition_ms) + (f"<br><small>{duration(a_day)} a day</small>" if a_day else "")


def _groups(groups: Sequence[GroupSummary], linked: Mapping[str, str]) -> str:
    rows = [
        (
            linked.get(each.group) or _name(each.group),
            escape(each.protocol_label),
            "" if each.generation is None else str(each.generation),
            str(each.members),
            str(each.rebalances),
            "" if each.lag_records is None else f"{'' if each.is_exact else '≤ '}{each.lag_records:,}",
            "" if each.last_rebalance_ms is None else moment(each.last_rebalance_ms),
        )
        for each in groups[:SUMMARIES]
    ]
    head = [
        ("group", False),
        ("protocol", False),
        ("generation", True),
        ("members", True),
        ("rebalances", True),
        ("lag", True),
        ("last rebalance", False),
    ]
    hint = "Groups with findings first, then those that rebalanced most." + _left_out(groups, SUMMARIES)
    return section("Groups", hint, table(head, rows))


def _notes(report: Report) -> str:
    lines = [*report.warnings]
    if report.counts:
        kinds: dict[str, int] = {}
        for (kind, version), number in report.counts.items():
            name = f"{kind}, not decoded" if version == _NOT_DECODED else kind
            kinds[name] = kinds.get(name, 0) + number
        read = ", ".join(f"{number:,} {name}" for name, number in sorted(kinds.items()))
        lines.append(f"Records read: {read}.")
    if not lines:
        return ""
    return section("What was read", "", "".join(f"<p>{escape(line)}</p>" for line in lines))


_NOT_DECODED = -2


# --------------------------------------------------------------------------------------------------------- one group


def _group(report: Report, summary: GroupSummary, number: int) -> str:
    latest = report.rebalances[-REBALANCES:]
    lag = _lag(summary.group, report.lag) + _over_time(summary.group, report.lag_over_time)
    title, anchor = f"Group {shortened(summary.group)}", f"group-{number}"
    if not report.generations:
        return section(
            title, "This group has had no members: clients outside it commit its offsets.", lag, anchor=anchor
        )
    hint = "Each row is a member, each bar the partitions it had; numbered lines are the changes listed below."
    if len(latest) < len(report.rebalances):
        hint += f" The latest {REBALANCES} of {count(len(report.rebalances), 'change')}."
    until_ms = _drawn_until(latest, report.until_ms)
    if until_ms < report.until_ms:
        hint += f" The group has not changed since the last change, {duration(report.until_ms - latest[-1].at_ms)} ago."
    chart = _timeline(summary.group, report.generations, latest, until_ms)
    return section(title, hint, chart, _rebalances(latest), lag, anchor=anchor)


def _drawn_until(rebalances: Sequence[Rebalance], until_ms: int) -> int:
    """The end of a timeline: a long pause after the last rebalance would leave no room for what came before."""
    if not rebalances:
        return until_ms
    first_ms, last_ms = rebalances[0].at_ms, rebalances[-1].at_ms
    return min(until_ms, last_ms + max((last_ms - first_ms) // 2, _REST_MS))


def _timeline(group: str, generations: Sequence[Generation], rebalances: Sequence[Rebalance], until_ms: int) -> str:
    first_ms = rebalances[0].at_ms if rebalances else generations[0].started_ms
    seen = [each for each in generations if each.ended_ms is None or each.ended_ms >= first_ms] or generations[-1:]
    origin = min(first_ms, seen[0].started_ms) if len(seen) < len(generations) else seen[0].started_ms
    origin = max(origin, first_ms - (until_ms - first_ms) // 8)
    found = lanes(seen, until_ms)
    bands = [_generation_band(index, each, origin, until_ms) for index, each in enumerate(seen)]
    for row, lane in enumerate(found[:LANES], 1):
        bands += [_span_band(row, lane, index, origin) for index in range(len(lane.spans))]
    markers = [
        NumberedLine(number, each.at_ms - origin, each.at_ms - origin, _label(each))
        for number, each in enumerate(rebalances, 1)
        if each.at_ms >= origin
    ]
    rows = ["generation", *(lane.name for lane in found[:LANES])]
    title = f"Members of {group} and their generations over time"
    more = len(found) - LANES
    left_out = f'<p class="hint">Not drawn: {count(more, "more member")}.</p>' if more > 0 else ""
    return scroll(timeline(title, rows, bands, markers, (), max(1, until_ms - origin), origin)) + left_out


def _generation_band(index: int, each: Generation, origin: int, until_ms: int) -> Band:
    end = until_ms if each.ended_ms is None else min(each.ended_ms, until_ms)
    label = f"{each.generation}" if each.members else f"{each.generation}: empty"
    return Band(0, 6 + index % 2, label, max(0, each.started_ms - origin), max(0, end - origin))


def _span_band(row: int, lane: Lane, index: int, origin: int) -> Band:
    span = lane.spans[index]
    label = count(span.partitions, "partition")
    return Band(row, (row - 1) % 6, label, max(0, span.start_ms - origin), max(0, span.end_ms - origin))


def _label(each: Rebalance) -> str:
    return f"generation {each.generation}, {each.cause.value}: {count(each.moved, 'partition')} moved"


def _rebalances(rebalances: Sequence[Rebalance]) -> str:
    if not rebalances:
        return ""
    rows = [
        (
            f'<span class="badge">{number}</span>',
            moment(each.at_ms),
            _cause(each),
            _took(each),
            f"{each.members_before} → {each.members_after}",
            _moves(each),
            _stopped(each),
            _why(each),
        )
        for number, each in enumerate(rebalances, 1)
    ]
    head = [
        ("", False),
        ("at", False),
        ("cause", False),
        ("took", False),
        ("members", False),
        ("moved", False),
        ("stopped", False),
        ("evidence", False),
    ]
    return table(head, rows)


def _cause(each: Rebalance) -> str:
    sure = "written by the broker" if each.source == "events" else f"{each.confidence:.0%} sure"
    phase = ", phase 2" if each.phase == 2 else ""
    cause = f"<b>{escape(each.cause.value)}</b>{phase}<br><small>{sure}</small>"
    if each.pattern is None:
        return cause
    part = f"part of {escape(each.pattern.kind.value)}<br><small>{each.pattern.confidence:.0%} sure</small>"
    return f"{cause}<br>{part}"


_SIGNS = {"at least": "≥ ", "at most": "≤ "}


def _took(each: Rebalance) -> str:
    return "" if each.duration_ms is None else _SIGNS.get(each.duration_is, "") + duration(each.duration_ms)


def _moves(each: Rebalance) -> str:
    return f"{each.moved}" + (f" ({each.moved_needlessly} needlessly)" if each.moved_needlessly else "")


def _stopped(each: Rebalance) -> str:
    if not each.stopped:
        return ""
    longest = max(gap for _, _, gap in each.stopped)
    return f"{count(len(each.stopped), 'partition')}, the longest ≤ {duration(longest)}"


def _why(each: Rebalance) -> str:
    together = () if each.pattern is None else each.pattern.evidence
    lines = "<br>".join(escape(line) for line in (_changes(each), *each.evidence, *together) if line)
    if not each.alternatives:
        return lines
    causes = ", ".join(dict.fromkeys(other.cause.value for other in each.alternatives))
    others = "<br>".join(escape(f"Or {other.cause.value}: check {other.told_apart_by}") for other in each.alternatives)
    return f"{lines}<details><summary>Or {escape(causes)}?</summary>{others}</details>"


def _changes(each: Rebalance) -> str:
    parts = [
        ("joined", [named(change.member) for change in each.joined]),
        ("gone", [named(member) for member in each.left]),
        ("replaced", [named(change.member) for change in each.replaced]),
        ("changed subscription", [named(change.member) for change in each.resubscribed]),
    ]
    return "; ".join(f"{what}: {listed(who)}" for what, who in parts if who)


def _lag(group: str, lag: Sequence[Lag]) -> str:
    now = {(each.topic, each.partition): each for each in lag}.values()
    behind = sorted((each for each in now if each.lag_records > 0), key=lambda each: -each.lag_records)
    if not now:
        return ""
    if not behind:
        beyond = sum(each.lag_records < 0 for each in now)
        if beyond:
            return f'<p class="hint">{count(beyond, "partition")} committed beyond the end of the log.</p>'
        return f'<p class="good">✓ {count(len(now), "partition")} without lag.</p>'
    bars = [Bar(f"{each.topic}-{each.partition}", each.lag_records, _aged(each)) for each in behind[:PARTITIONS]]
    more = f'<p class="hint">{_left_out(behind, PARTITIONS)}</p>' if len(behind) > PARTITIONS else ""
    chart = scroll(bar_chart(f"Lag of {group}", bars, "records"))
    return f"<h3>Lag by partition</h3>{chart}{more}"


def _over_time(group: str, rows: Sequence[Lag]) -> str:
    """The lag over time, summed over all partitions, in records and in time."""
    records: dict[int, int] = {}
    waited: dict[int, int] = {}
    for each in rows:
        records[each.at_ms] = records.get(each.at_ms, 0) + each.lag_records
        waited[each.at_ms] = max(waited.get(each.at_ms, 0), each.lag_ms or 0)
    if len(records) < FEWEST_POINTS or not any(records.values()):
        return ""
    in_records = line_chart(f"Lag of {group} over time", sorted(records.items()), "records")
    minutes = [(at_ms, ms / 60_000) for at_ms, ms in sorted(waited.items())]
    in_time = line_chart(f"Age of the oldest record that {group} had not committed", minutes, "minutes")
    hint = '<p class="hint">Upper bounds: markers and gaps count as records, and times are accurate to one step.</p>'
    return f"<h3>Lag over time</h3>{hint}{scroll(in_records)}{scroll(in_time)}"


def _aged(each: Lag) -> str:
    exact = "counted" if each.is_exact else "at most: includes markers and gaps"
    return exact if each.lag_ms is None else f"{exact}; the oldest has waited {duration(each.lag_ms)}"


# -------------------------------------------------------------------------------------------------------------- text


def moment(at_ms: int) -> str:
    """A time in UTC, to the second."""
    try:
        return datetime.fromtimestamp(at_ms / 1_000, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, OSError, ValueError):
        return f"{at_ms} ms"


def _left_out(items: Sequence[object], shown: int) -> str:
    return f" {len(items) - shown:,} more are not shown." if len(items) > shown else ""
