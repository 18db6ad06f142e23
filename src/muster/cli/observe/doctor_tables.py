"""What `muster doctor` prints for people: groups, rebalances, findings and warnings."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from muster.history.model import Rebalance
from muster.history.report import Report, summaries
from muster.history.rules.wording import duration, listed, named, shortened
from muster.history.show.json_report import moment

SHOWN = 40
"""The largest number of rows printed of a table; --json has all."""
FINDINGS = 12
_WIDE = 150
_LONGEST = 300
"""Maximum characters of a cell: a name may have 32,767."""


def print_report(report: Report) -> None:
    """Print the report."""
    console = Console(markup=False, highlight=False, emoji=False, soft_wrap=False)
    if sys.stdout is None or not sys.stdout.isatty():
        console = Console(markup=False, highlight=False, emoji=False, width=_WIDE, color_system=None)
    since = f", from {moment(report.from_ms)}" if report.from_ms is not None else ""
    console.print(plain(f"{report.source}{since}, as of {moment(report.until_ms)}"))
    _groups(console, report)
    _rebalances(console, report)
    _findings(console, report)
    _warnings(console, report)


def plain(text: str) -> Text:
    """Text that is safe for a terminal: names come from clients and may contain control characters."""
    return Text("".join(c if c.isprintable() else " " if c == "\n" else "\ufffd" for c in text))


def _table(title: str, *heads: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, pad_edge=False)
    for head in heads:
        numbers = head in ("members", "rebalances", "lag", "generation", "took", "moved", "sure")
        table.add_column(head, justify="right" if numbers else "left", no_wrap=numbers, overflow="fold")
    return table


def _rows(table: Table, rows: Iterable[tuple[str, ...]]) -> Table:
    for row in rows:
        table.add_row(*(plain(cell if len(cell) <= _LONGEST else f"{cell[:_LONGEST]}...") for cell in row))
    return table


def _groups(console: Console, report: Report) -> None:
    found = summaries(report)
    if not found:
        console.print("\nNo groups found.")
        return
    table = _table("Groups", "group", "protocol", "members", "rebalances", "last", "lag", "findings")
    rows = [
        (
            shortened(group.group),
            shortened(group.protocol_label),
            str(group.members),
            str(group.rebalances),
            "-" if group.last_rebalance_ms is None else _at(group.last_rebalance_ms),
            "-" if group.lag_records is None else f"{'' if group.is_exact else '<= '}{group.lag_records}",
            str(group.findings or "-"),
        )
        for group in found[:SHOWN]
    ]
    console.print()
    console.print(_rows(table, rows))
    _more(console, len(found), "group")


def _rebalances(console: Console, report: Report) -> None:
    found = sorted(report.rebalances, key=lambda row: -row.at_ms)
    if not found:
        console.print("\nNo rebalances.")
        return
    table = _table("Rebalances", "at", "group", "generation", "cause", "sure", "who", "members", "took", "moved")
    rows = [
        (
            _at(row.at_ms),
            shortened(row.group),
            str(row.generation),
            _cause(row),
            "reported" if row.source == "events" and row.confidence == 1 else f"{row.confidence:.0%}",
            _who(row),
            f"{row.members_before} -> {row.members_after}",
            _took(row),
            _moved(row),
        )
        for row in found[:SHOWN]
    ]
    console.print()
    console.print(_rows(table, rows))
    _more(console, len(found), "rebalance")


def _at(ms: int) -> str:
    """A time in UTC, to the second."""
    found = moment(ms)
    return str(ms) if found is None else found[:19].replace("T", " ")


def _cause(row: Rebalance) -> str:
    phase = ", phase 2" if row.phase == 2 else ""
    pattern = "" if row.pattern is None else f" ({row.pattern.kind.value})"
    return f"{row.cause.value}{phase}{pattern}"


def _who(row: Rebalance) -> str:
    parts = [
        ("+ ", [change.member for change in row.joined]),
        ("- ", row.left),
        ("new: ", [change.member for change in row.replaced]),
        ("other topics: ", [change.member for change in row.resubscribed]),
    ]
    return "; ".join(sign + listed(map(named, members)) for sign, members in parts if members) or "-"


def _took(row: Rebalance) -> str:
    if row.duration_ms is None:
        return "?"
    sign = {"at least": ">= ", "at most": "<= "}.get(row.duration_is, "")
    return f"{sign}{duration(row.duration_ms)}"


def _moved(row: Rebalance) -> str:
    return f"{row.moved}, {row.moved_needlessly} needless" if row.moved_needlessly else str(row.moved)


def _findings(console: Console, report: Report) -> None:
    console.print()
    if not report.findings:
        console.print("No findings.")
        return
    console.print(Text("Findings", "bold"))
    grid = Table.grid(padding=(0, 1))
    for number, finding in enumerate(report.findings[:FINDINGS], 1):
        a_day = finding.stopped_partition_ms_per_day
        cost = f" Partitions were stopped for up to {duration(a_day)} a day." if a_day else ""
        what = plain(f"{shortened(finding.group)} [{finding.rule}]: {finding.sentence}{cost}")
        grid.add_row(f"{number}.", what.append("\n").append(plain(finding.advice)))
    console.print(grid)
    _more(console, len(report.findings), "finding", FINDINGS)


def _warnings(console: Console, report: Report) -> None:
    for warning in report.warnings:
        console.print(plain(f"Note: {warning}."))


def _more(console: Console, there: int, noun: str, shown: int = SHOWN) -> None:
    if there > shown:
        console.print(f"... and {there - shown} more {noun}{'s' if there - shown > 1 else ''} (--json has all)")
