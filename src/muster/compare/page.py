"""The page of a comparison: timelines of owners, what each step cost, how the cost grows, the checks.

The page is self-contained. `render` is a function of the results: every figure on the page was measured, or is computed
by a formula that the page names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from html import escape

from muster.compare.curves import GrowthLine, growth_chart, sampled
from muster.compare.rules import formulas
from muster.compare.rules.checks import ResultCheck, is_well
from muster.compare.rules.formulas import TITLES, Curve, Scheme
from muster.compare.rules.recorder import Hold, Period
from muster.compare.rules.results import Results, SchemeRun, StepResult
from muster.compare.rules.workload import OF_SERVERS, StepKind
from muster.pages.charts import Band, NumberedLine, Shade, clock, timeline
from muster.pages.document import document, scroll, section, table, tiles

ON_PAPER = 1_000
"""The number of members up to which the formulas are drawn."""

TITLE = "Three generations of group coordination, side by side"


def render(results: Results, checks: Sequence[ResultCheck]) -> str:
    """The page as HTML text."""
    stories = results.stories()
    parts = [_header(results, checks)]
    if stories:
        parts += [_timelines(stories), _totals(stories), *(_steps(run) for run in stories)]
    if results.differing is not None:
        parts.append(_differing(results.differing))
    return document(TITLE, *parts, _growth(results), _checks(checks), _footer(results))


# --- the top ---------------------------------------------------------------------------------------------------------


def _header(results: Results, checks: Sequence[ResultCheck]) -> str:
    wrong = [check.title for check in checks if check.ok is False]
    verdict = (
        f'<p class="verdict bad">✗ Failed: {escape("; ".join(wrong))}</p>'
        if not is_well(checks)
        else '<p class="verdict good">✓ All checks passed.</p>'
    )
    lead = (
        f"The same workload on the same data, once under each scheme: {results.story} members join one after another, "
        "one leaves, one crashes, one is frozen past its session and resumes, a broker stops and restarts, and so does "
        "ZooKeeper. The counts of the servers and the members show why coordination was redesigned twice."
    )
    shown = [
        (f"{_short(run.scheme)}: ZooKeeper’s reads until all had joined", sum(s.counted.reads for s in run.start))
        for run in results.stories()
    ]
    return f'<header><h1>{escape(TITLE)}</h1><p class="lead">{escape(lead)}</p>{verdict}{tiles(shown)}</header>'


def _short(scheme: Scheme) -> str:
    return TITLES[scheme].partition(":")[0] + (", Kafka’s own" if scheme is Scheme.KAFKA08 else "")


def _footer(results: Results) -> str:
    said = [results.setting, *(f"Left out: {each}." for each in results.left_out)]
    return f"<footer>{'<br>'.join(escape(each) for each in said if each)}</footer>"


# --- owners over time ------------------------------------------------------------------------------------------------


def _timelines(stories: Sequence[SchemeRun]) -> str:
    until = max(run.end_ms for run in stories)
    members = _members(stories)
    charts = [f"<h3>{escape(TITLES[run.scheme])}</h3>{scroll(_timeline(run, members, until))}" for run in stories]
    legend = [f'<li><i class="m{at % 8}"></i>{escape(name)}</li>' for at, name in enumerate(members)]
    legend.append('<li><i class="nobody"></i>nobody reads it</li>')
    legend.append('<li><i class="down"></i>its owner is frozen, or a server is down</li>')
    legend.append('<li><i class="double"></i>two owners</li>')
    hint = (
        "A row is a partition, a colour the member that reads it. Numbered lines are the steps; the grey after a line "
        "is the time until all partitions were assigned again. All timelines have the same scale."
    )
    return section("Who read what", hint, f'<ul class="legend">{"".join(legend)}</ul>', *charts)


def _members(stories: Iterable[SchemeRun]) -> list[str]:
    names = {step.member for run in stories for step in run.steps if step.member}
    return sorted(names, key=lambda name: (len(name), name))


def _timeline(run: SchemeRun, members: Sequence[str], until_ms: int) -> str:
    bands = [
        Band(hold.partition, members.index(hold.member), hold.member, hold.start_ms, hold.end_ms) for hold in run.holds
    ]
    markers = [
        NumberedLine(number, step.start_ms, step.settled_ms, str(step.step)) for number, step in enumerate(run.steps, 1)
    ]
    shades = [Shade(span.start_ms, span.end_ms, f"{what} is down", None, "away") for what, span in run.outages]
    for hold in run.holds:
        for nap in run.naps.get(hold.member, ()):
            shared = _both(hold, nap)
            if shared is not None:
                shades.append(Shade(*shared, f"{hold.member} is frozen", hold.partition))
    shades += [
        Shade(double.start_ms, double.end_ms, f"read by {' and '.join(double.members)}", double.partition, "double")
        for double in run.doubles
    ]
    rows = [f"partition {partition}" for partition in range(run.partitions)]
    return timeline(f"{TITLES[run.scheme]}: who read each partition", rows, bands, markers, shades, until_ms)


def _both(hold: Hold, nap: Period) -> Period | None:
    start, end = max(hold.start_ms, nap.start_ms), min(hold.end_ms, nap.end_ms)
    return Period(start, end) if start < end else None


# --- what it cost ----------------------------------------------------------------------------------------------------


def _seconds(milliseconds: int) -> str:
    return f"{milliseconds / 1_000:,.1f}"


def _counted(name: str, *, of_servers: bool) -> Callable[[SchemeRun], str]:
    """One of ZooKeeper's counters, summed over the steps that happen to servers, or over those that happen to
    members."""
    return lambda run: f"{sum(getattr(s.counted, name) for s in run.steps if (s.kind in OF_SERVERS) is of_servers):,}"


FIGURES: dict[str, Callable[[SchemeRun], str]] = {
    "rebalances, summed over the members": lambda run: f"{sum(step.work.rebalances for step in run.steps):,}",
    "failed attempts, which were retried": lambda run: f"{sum(step.work.failed_tries for step in run.steps):,}",
    "notifications by ZooKeeper when members join, leave and fail": _counted("watches", of_servers=False),
    "ZooKeeper’s reads": _counted("reads", of_servers=False),
    "ZooKeeper’s writes": _counted("writes", of_servers=False),
    "notifications while a broker or ZooKeeper is down, including the brokers’": _counted("watches", of_servers=True),
    "ZooKeeper’s reads then": _counted("reads", of_servers=True),
    "ZooKeeper’s writes then": _counted("writes", of_servers=True),
    "requests to coordinators, without heartbeats and commits": lambda run: f"{sum(s.work.joins for s in run.steps):,}",
    "heartbeats": lambda run: f"{sum(step.work.requests.get('Heartbeat', 0) for step in run.steps):,}",
    "partition-seconds without a reader": lambda run: _seconds(sum(step.ownerless_ms for step in run.steps)),
    "longest time until all partitions were assigned again": lambda run: clock(max(s.converge_ms for s in run.steps)),
    "records handled twice": lambda run: f"{run.twice:,}",
    "of these by the resumed member, which had lost them": lambda run: f"{sum(s.after_waking for s in run.steps):,}",
    "moments in which a partition had two readers": lambda run: f"{len(run.doubles):,}",
    "for how long": lambda run: clock(sum(step.doubled_ms for step in run.steps)),
    "the resumed member’s commit": lambda run: _outcomes(run),
}
"""The figures of a whole run."""


def _outcomes(run: SchemeRun) -> str:
    said = [outcome for step in run.of_kind(StepKind.FREEZE) for outcome in step.stale_commits]
    return ", ".join(said) or "–"


def _totals(stories: Sequence[SchemeRun]) -> str:
    head = [("", False), *((TITLES[run.scheme], True) for run in stories)]
    rows = [(escape(name), *(escape(figure(run)) for run in stories)) for name, figure in FIGURES.items()]
    hint = (
        "Summed over all steps. Reads, writes and notifications are ZooKeeper’s own counters; reads are those that "
        "found something, so that pings are left out. Members count their rebalances and requests themselves."
    )
    return section("What it cost", hint, table(head, rows))


_STEP_HEAD = [
    ("", False),
    ("step", False),
    ("members", True),
    ("until shared", True),
    ("rebalances", True),
    ("notified", True),
    ("reads", True),
    ("writes", True),
    ("requests", True),
    ("nobody read", True),
    ("twice", True),
]


def _steps(run: SchemeRun) -> str:
    rows = [_step_row(number, step) for number, step in enumerate(run.steps, 1)]
    hint = "“Nobody read” is in partition-seconds; “requests” are those to coordinators except heartbeats and commits."
    odd = [str(step.step) for step in run.steps if not step.as_meant]
    if odd:
        hint += f" Sessions expired unexpectedly, on a busy machine, during: {', '.join(odd)}."
    return section(f"{TITLES[run.scheme]}, step by step", hint, table(_STEP_HEAD, rows))


def _step_row(number: int, step: StepResult) -> Sequence[str]:
    return (
        f'<span class="badge">{number}</span>',
        escape(str(step.step)),
        f"{step.size}",
        clock(step.converge_ms),
        f"{step.work.rebalances:,}",
        f"{step.counted.watches:,}",
        f"{step.counted.reads:,}",
        f"{step.counted.writes:,}",
        f"{step.work.joins:,}",
        _seconds(step.ownerless_ms),
        f"{step.twice:,}",
    )


# --- split brain -----------------------------------------------------------------------------------------------------


def _differing(run: SchemeRun) -> str:
    late, broker, lag = (run.of_kind(kind)[0] for kind in (StepKind.LATE, StepKind.BROKER, StepKind.LAG))
    hint = (
        "Scheme 1 on a ZooKeeper of three servers, with one member on its own server. First that server learns "
        "everything late: although all sessions are alive, members see different members, and "
        f"{late.work.failed_tries:,} attempts to rebalance failed. Then a broker stops and restarts: these members "
        f"have watch_brokers, so the broker causes {broker.work.rebalances:,} rebalances, and none without it "
        "(above). Finally the server is cut off from the others for a while. ZooKeeper ends the session, and the "
        "other members take over, but the server does not know. Two members read the same partitions for "
        f"{clock(lag.doubled_ms)}, and {lag.twice:,} records were handled twice. Members of schemes 2 and 3 do not "
        "use ZooKeeper, so none of this happens to them."
    )
    names = _members([run])
    legend = [f'<li><i class="m{at % 8}"></i>{escape(name)}</li>' for at, name in enumerate(names)]
    legend.append('<li><i class="double"></i>two owners</li>')
    chart = scroll(_timeline(run, names, run.end_ms))
    return section("Split brain: servers that differ", hint, f'<ul class="legend">{"".join(legend)}</ul>', chart)


# --- how it grows ----------------------------------------------------------------------------------------------------


def _growth(results: Results) -> str:
    if not results.runs:
        return ""
    charts = [
        _chart(results, "ZooKeeper’s reads for one change", lambda join, _: join.counted.reads, _reads),
        _chart(results, "Notifications for one change", lambda join, _: join.counted.watches, _notifications),
        _chart(results, "ZooKeeper’s writes for one change", lambda join, _: join.counted.writes, _writes),
        _chart(results, "Requests to coordinators for one change", lambda join, _: join.work.joins, _requests),
        _chart(results, "ZooKeeper’s reads for the whole start", _start_reads, _reads_of_start),
    ]
    hint = (
        f"Points are measured; lines are the formula, extrapolated to {ON_PAPER:,} members. A change is one member "
        "that joins; the start is all of them, one after another. Writes are above their lines by the offsets that "
        "were committed meanwhile."
    )
    return section("How it grows", hint, _formulas(results.schemes), *charts, _measured(results))


_Formula = Callable[[SchemeRun], Curve]


def _reads(run: SchemeRun) -> Curve:
    return formulas.reads_curve(run.scheme, run.partitions, run.brokers)


def _writes(run: SchemeRun) -> Curve:
    return formulas.writes_curve(run.scheme, run.partitions)


def _notifications(run: SchemeRun) -> Curve:
    return formulas.notifications_curve(run.scheme)


def _requests(run: SchemeRun) -> Curve:
    return formulas.requests_curve(run.scheme)


def _reads_of_start(run: SchemeRun) -> Curve:
    return formulas.start_reads_curve(run.scheme, run.partitions, run.brokers)


def _start_reads(join: StepResult, before: Sequence[StepResult]) -> int:
    return sum(step.counted.reads for step in [*before, join])


_Measured = Callable[[StepResult, Sequence[StepResult]], int]
"""Takes a join and the joins before it; returns a count."""


def _chart(results: Results, title: str, measured: _Measured, formula: _Formula) -> str:
    lines = []
    for colour, scheme in enumerate(results.schemes):
        runs = sorted((run for run in results.runs if run.scheme is scheme), key=lambda run: run.size)
        points = [(size, measured(run.steps[size - 1], run.steps[: size - 1])) for run, size in _places(runs)]
        curve = formula(runs[0])
        # Kafka's own consumer reads more than ours; its formula was not derived, so only its points are drawn.
        drawn = [] if scheme is Scheme.KAFKA08 else [(members, curve(members)) for members in sampled(ON_PAPER)]
        lines.append(GrowthLine(_label(scheme), colour, points, drawn))
    return f"<h3>{escape(title)}</h3>{scroll(growth_chart(title, lines, 'members'))}"


def _places(runs: Sequence[SchemeRun]) -> list[tuple[SchemeRun, int]]:
    """The points that are drawn: one for each run, at its size. A single run has one for each of its joins."""
    if len(runs) == 1:
        return [(runs[0], size) for size in range(1, runs[0].size + 1)]
    return [(run, run.size) for run in runs]


def _label(scheme: Scheme) -> str:
    return TITLES[scheme].partition(": ")[2]


def _formulas(schemes: Iterable[Scheme]) -> str:
    head = [(name, False) for name in ("for one change", "reads", "writes", "notifications", "requests")]
    rows = [
        (escape(TITLES[scheme]), *(escape(words) for words in formulas.formula_texts(scheme).values()))
        for scheme in schemes
        if scheme is not Scheme.KAFKA08
    ]
    note = '<p class="hint">N members, P partitions, B brokers.</p>'
    return table(head, rows) + note


def _measured(results: Results) -> str:
    head = [
        ("scheme", False),
        ("members", True),
        ("rebalances of the start", True),
        ("notified", True),
        ("reads", True),
        ("writes", True),
        ("start took", True),
        ("a join’s reads", True),
        ("by the formula", True),
    ]
    rows = []
    for run in sorted(results.runs, key=lambda run: (list(Scheme).index(run.scheme), run.size)):
        counted = [step.counted for step in run.start]
        rows.append(
            (
                escape(TITLES[run.scheme]),
                f"{run.size}",
                f"{sum(step.work.rebalances for step in run.start):,}",
                f"{sum(count.watches for count in counted):,}",
                f"{sum(count.reads for count in counted):,}",
                f"{sum(count.writes for count in counted):,}",
                clock(sum(step.converge_ms for step in run.start)),
                f"{run.last_change.counted.reads:,}",
                f"{_reads(run)(run.size):,.0f}",
            )
        )
    return table(head, rows)


# --- the checks ------------------------------------------------------------------------------------------------------


def _checks(checks: Sequence[ResultCheck]) -> str:
    verdicts = {
        True: '<span class="good">✓ passed</span>',
        False: '<span class="bad">✗ failed</span>',
        None: "not judged",
    }
    rows = [
        (escape(TITLES[check.scheme]), f"{check.size}", escape(check.name), verdicts[check.ok], escape(check.seen))
        for check in checks
    ]
    head = [("scheme", False), ("members", True), ("what must hold", False), ("check", False), ("seen", False)]
    return section("Checked", "Counts and owners are checked; times are shown, but not checked.", table(head, rows))
