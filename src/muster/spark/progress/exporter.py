"""The progress of a session's queries as metrics for Prometheus.

A query's report counts until its next one. When the query ends, its metrics disappear, like those of a stopped
exporter.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass

from muster.metrics import exposition
from muster.metrics.exposition import Page
from muster.metrics.families import Family, counter, gauge
from muster.spark.progress.reports import Progress


@dataclass(slots=True)
class _Source:
    """One source of a query: its last report, when that arrived, and the totals of all reports."""

    last: Progress
    at_ms: int
    rows: int = 0
    batches: int = 0

    @property
    def labels(self) -> dict[str, str]:
        return {"query": self.last.query, "source": str(self.last.source), "group": self.last.group or ""}


class QueryExporter:
    """Keeps what queries report. Spark's listener thread writes it, the port's thread reads it."""

    def __init__(self) -> None:
        self._sources: dict[tuple[str, int], _Source] = {}
        self._lock = threading.Lock()

    def record(self, progress: Progress, now_ms: int) -> None:
        """Record a query's report."""
        with self._lock:
            found = self._sources.setdefault((progress.id, progress.source), _Source(progress, now_ms))
            # A trigger without records reports its batch again, with no rows.
            found.last, found.at_ms = progress, now_ms
            found.rows += progress.rows
            found.batches += progress.rows > 0

    def ended(self, query: str) -> None:
        """A query with this id has ended."""
        with self._lock:
            self._sources = {key: found for key, found in self._sources.items() if key[0] != query}

    def families(self) -> list[Family]:
        """The metrics of the running queries."""
        with self._lock:
            sources = [_Source(each.last, each.at_ms, each.rows, each.batches) for each in self._sources.values()]
        return [*_of_partitions(sources), *_of_queries(sources)]

    def metrics(self, accept: str) -> Page:
        """`/metrics`."""
        return exposition.page(self.families(), accept)


def _of_partitions(sources: Iterable[_Source]) -> list[Family]:
    lag = gauge("muster_query_lag", "Records of a partition that the query has not committed.")
    seconds = gauge("muster_query_lag_seconds", "Age of the first uncommitted record.")
    for each in sources:
        for family, found in ((lag, each.last.lag), (seconds, each.last.lag_seconds)):
            for place, value in found.items():
                family.add(value, **each.labels, topic=place.topic, partition=str(place.partition))
    return [lag, seconds]


def _of_queries(sources: Iterable[_Source]) -> list[Family]:
    rows = counter("muster_query_rows_total", "Records that the query has read.")
    batches = counter("muster_query_batches_total", "Batches with at least one record.")
    at = gauge("muster_query_progress_timestamp_seconds", "When the query last reported.")
    optional = {
        "committed_batch": gauge("muster_query_committed_batch", "The last batch that the group has acknowledged."),
        "generation": gauge("muster_query_generation", "The group's generation."),
        "rebalances": counter("muster_query_rebalances_total", "Generations since the query joined."),
        "members": gauge("muster_query_members", "Members of the group."),
        "input_rows_per_second": gauge(
            "muster_query_input_rows_per_second", "How fast records arrived, as Spark reports it."
        ),
        "processed_rows_per_second": gauge(
            "muster_query_processed_rows_per_second", "How fast records were processed, as Spark reports it."
        ),
    }
    duration = gauge("muster_query_trigger_duration_seconds", "How long the last trigger took, including its batch.")
    for each in sources:
        rows.add(each.rows, **each.labels)
        batches.add(each.batches, **each.labels)
        at.add(each.at_ms / 1_000, **each.labels)
        for name, family in optional.items():
            if (value := getattr(each.last, name)) is not None:
                family.add(value, **each.labels)
        if each.last.duration_ms is not None:
            duration.add(each.last.duration_ms / 1_000, **each.labels)
    return [rows, batches, at, *optional.values(), duration]
