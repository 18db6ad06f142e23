"""A report as one JSON object: `muster doctor --json`. docs/reference/history.md documents the keys.

Rows follow the Arrow schema of their table, so a field has the same name and meaning everywhere; only timestamps are
text here, and `day`, the partition column of files, is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from functools import cache
from typing import Any, TypeAlias

import pyarrow as pa

from muster.history.model import LAST_MS, CommitNote, Finding, Generation, Json, Lag, Rebalance
from muster.history.report import GroupSummary, Report, by_group, summaries
from muster.history.rows import schema_of

_Show: TypeAlias = Callable[[Any], Any]


def as_json(report: Report) -> Json:
    """The whole report as JSON values. Keys may be added; existing ones stay."""
    return {
        "source": report.source,
        "from_ms": report.from_ms,
        "until_ms": report.until_ms,
        "since_ms": report.since_ms,
        "groups": _groups(report),
        "rebalances": _shown(Rebalance, sorted(report.rebalances, key=lambda row: row.at_ms)),
        "findings": _shown(Finding, report.findings),
        "lag": _shown(Lag, report.lag),
        "lag_over_time": _shown(Lag, report.lag_over_time),
        "notes": _shown(CommitNote, report.notes),
        "counts": [
            {"kind": kind, "version": version, "records": records}
            for (kind, version), records in sorted(report.counts.items())
        ],
        "warnings": report.warnings,
    }


def moment(ms: int) -> str | None:
    """A time in UTC in ISO 8601; None if it is outside the calendar."""
    if not 0 <= ms <= LAST_MS:
        return None
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _groups(report: Report) -> list[Json]:
    latest = {row.group: row for row in report.generations}
    lag = by_group(report.lag)
    return [_group(each, latest.get(each.group), lag.get(each.group, ())) for each in summaries(report)]


def _group(summary: GroupSummary, latest: Generation | None, lags: Iterable[Lag]) -> Json:
    """A group with the members of its latest generation."""
    there = latest.members if latest is not None and latest.ended_ms is None else ()
    return asdict(summary) | {
        "protocol": latest.protocol if latest is not None else None,
        "members_now": _show_members()(there),
        "lag_ms": _worst(lags),
    }


def _worst(lags: Iterable[Lag]) -> int | None:
    return max((row.lag_ms for row in lags if row.lag_ms is not None), default=None)


def _shown(kind: type[Any], rows: Sequence[Any]) -> list[Json]:
    """Rows of one kind, with the names of their schema."""
    schema = schema_of(kind)
    columns: list[tuple[str, str, _Show]] = []
    for field in schema:
        if f"{field.name}_ms" in schema.names:
            columns.append((field.name, f"{field.name}_ms", _show_time))
        elif field.name != "day":
            columns.append((field.name, field.name, _show(field.type)))
    return [{name: show(getattr(row, of)) for name, of, show in columns} for row in rows]


def _show_time(ms: int | None) -> str | None:
    return None if ms is None else moment(ms)


@cache
def _show_members() -> _Show:
    return _show(schema_of(Generation).field("members").type)


def _show(kind: Any) -> _Show:
    """The function that converts a value of this type to JSON."""
    if pa.types.is_list(kind):
        each = _show(kind.value_type)
        return lambda values: [each(value) for value in values]
    if pa.types.is_struct(kind):
        return _show_struct([(field.name, _show(field.type)) for field in kind])
    if pa.types.is_string(kind):
        return lambda value: None if value is None else str(value)  # an enumeration's value
    return lambda value: value


def _show_struct(fields: Sequence[tuple[str, _Show]]) -> _Show:
    """Converts an object with these fields, or a tuple that has them in this order."""

    def show(value: Any) -> Json | None:
        if value is None:
            return None
        if isinstance(value, tuple):
            return {name: each(part) for (name, each), part in zip(fields, value, strict=True)}
        return {name: each(getattr(value, name)) for name, each in fields}

    return show
