"""A report as one JSON object: `muster doctor --json`. docs/history.md says what each key is."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from datetime import UTC, datetime

from muster.history.model import LAST_MS, Change, Generation, Json, Lag, Member, Rebalance
from muster.history.report import GroupSummary, Report, by_group, summaries


def as_json(report: Report) -> Json:
    """The whole report, as values that JSON has. Keys may be added; those that are there stay."""
    return {
        "source": report.source,
        "from_ms": report.from_ms,
        "until_ms": report.until_ms,
        "since_ms": report.since_ms,
        "groups": _groups(report),
        "rebalances": [_rebalance(row) for row in sorted(report.rebalances, key=lambda row: row.at_ms)],
        "findings": [asdict(finding) for finding in report.findings],
        "lag": [asdict(row) for row in report.lag],
        "lag_over_time": [asdict(row) for row in report.lag_over_time],
        "notes": [asdict(note) for note in report.notes],
        "counts": [
            {"kind": kind, "version": version, "records": records}
            for (kind, version), records in sorted(report.counts.items())
        ],
        "warnings": report.warnings,
    }


def moment(ms: int) -> str | None:
    """A time in UTC as ISO 8601 has it; None where no calendar has it."""
    if not 0 <= ms <= LAST_MS:
        return None
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _groups(report: Report) -> list[Json]:
    latest = {row.group: row for row in report.generations}
    lag = by_group(report.lag)
    return [_group(each, latest.get(each.group), lag.get(each.group, ())) for each in summaries(report)]


def _group(summary: GroupSummary, latest: Generation | None, lags: Iterable[Lag]) -> Json:
    """A group with its members as its latest generation has them."""
    there = latest.members if latest is not None and latest.ended_ms is None else ()
    return asdict(summary) | {
        "protocol": latest.protocol if latest is not None else None,
        "members_now": [_member(member) for member in there],
        "lag_ms": _worst(lags),
    }


def _worst(lags: Iterable[Lag]) -> int | None:
    return max((row.lag_ms for row in lags if row.lag_ms is not None), default=None)


def _rebalance(row: Rebalance) -> Json:
    return {
        "group": row.group,
        "generation": row.generation,
        "previous_generation": row.previous_generation,
        "at": moment(row.at_ms),
        "at_ms": row.at_ms,
        "duration_ms": row.duration_ms,
        "duration_is": row.duration_is,
        "cause": row.cause.value,
        "confidence": row.confidence,
        "phase": row.phase,
        "source": row.source,
        "evidence": list(row.evidence),
        "alternatives": [{"cause": a.cause.value, "told_apart_by": a.told_apart_by} for a in row.alternatives],
        "members_before": row.members_before,
        "members_after": row.members_after,
        "joined": [_change(change) for change in row.joined],
        "left": [_member(member) for member in row.left],
        "replaced": [_change(change) for change in row.replaced],
        "resubscribed": [_change(change) for change in row.resubscribed],
        "moved": len(row.moved),
        "moved_needlessly": sum(moved.needless for moved in row.moved),
        "moved_partitions": [asdict(moved) for moved in row.moved],
        "stopped_partition_ms": sum(ms for _, _, ms in row.stopped_ms),
        "stopped": [{"topic": topic, "partition": partition, "ms": ms} for topic, partition, ms in row.stopped_ms],
    }


def _change(change: Change) -> Json:
    return {
        "member": _member(change.member),
        "before": None if change.before is None else _member(change.before),
    }


def _member(member: Member) -> Json:
    return {
        "member_id": member.member_id,
        "client_id": member.client_id,
        "host": member.host,
        "instance_id": member.instance_id,
        "topics": list(member.topics),
        "topic_regex": member.topic_regex,
        "assignment": [{"topic": topic, "partition": partition} for topic, partition in member.assignment],
    }
