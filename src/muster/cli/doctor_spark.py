"""`muster doctor --engine spark`: the same report, with its tables made by Spark."""

from __future__ import annotations

import time
from importlib import import_module
from typing import Any

from muster.errors import MusterError
from muster.history.model import CommitNote, Finding, Generation, Lag, Rebalance
from muster.history.report import Report
from muster.history.rows import from_table


def report(bootstrap: str, folder: str | None, groups: frozenset[str]) -> Report:
    """Read a cluster's history, or a folder's, by Spark."""
    try:
        by_spark: Any = import_module("muster.spark.history")
        session: Any = import_module("muster.spark").session
    except ModuleNotFoundError as error:
        raise MusterError(str(error)) from None
    source = {"folder": folder} if folder is not None else {"bootstrap": bootstrap}
    found = by_spark.tables(session("muster doctor"), groups=groups, **source)
    try:
        return _report(found, folder or f"the cluster at {bootstrap}", groups)
    finally:
        found.close()


def _report(found: Any, source: str, groups: frozenset[str]) -> Report:
    generations = from_table(Generation, found.generations.toArrow())
    made = Report(
        source=source,
        from_ms=min((row.started_ms for row in generations), default=None),
        until_ms=time.time_ns() // 1_000_000,
        generations=sorted(generations, key=lambda row: (row.group, row.at.partition, row.at.offset)),
        rebalances=sorted(from_table(Rebalance, found.rebalances.toArrow()), key=lambda row: (row.group, row.at_ms)),
        notes=sorted(from_table(CommitNote, found.notes.toArrow()), key=lambda row: (row.group, row.at_ms)),
        lag=from_table(Lag, found.lag.toArrow()),
        findings=sorted(
            from_table(Finding, found.findings.toArrow()), key=lambda row: (-row.cost, row.group, row.rule)
        ),
        kinds={row.group: row.kind for row in generations},
    )
    for row in found.counts.toArrow().to_pylist():
        place = row["kind"], row["version"]
        made.counts[place] = made.counts.get(place, 0) + row["records"]
    missing = groups - set(made.kinds)
    if missing:
        raise MusterError(f"{source} has nothing about a group {min(missing)!r}")
    return made
