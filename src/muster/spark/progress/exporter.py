"""The progress of a session's queries as numbers for Prometheus.

What a query reports counts until it reports again, or ends: then its numbers are gone, as a stopped exporter's are.
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
    """One source of a query: its last report, when that came, and what its reports come to together."""

    last: Progress
    at_ms: int
    rows: int = 0
    batches: int = 0

    @property
    def labels(self) -> dict[str, str]:
        return {"query": self.last.query, "source": str(self.last.source), "group": self.last.group or ""}


class Exporter:
    """Keeps what queries report. Spark's thread for listeners tells it, the port's thread asks."""

    def __init__(self) -> None:
        self._sources: dict[tuple[str, int], _Source] = {}
        self._lock = threading.Lock()

    def heard(self, told: Progress, now_ms: int) -> None:
        """A query has reported."""
        with self._lock:
            found = self._sources.setdefault((told.id, told.source), _Source(told, now_ms))
            # A trigger without records reports its batch again, with no rows.
            found.last, found.at_ms = told, now_ms
            found.rows += told.rows
            found.batches += told.rows > 0

    def ended(self, query: str) -> None:
        """A query with this id has ended."""
        with self._lock:
            self._sources = {key: found for key, found in self._sources.items() if key[0] != query}

    def families(self) -> list[Family]:
        """The numbers of the queries that run."""
        with self._lock:
            sources = [_Source(each.last, each.at_ms, each.rows, each.batches) for each in self._sources.values()]
        return [*_of_partitions(sources), *_of_queries(sources)]

    def metrics(self, accept: str) -> Page:
        """`/metrics`."""
        return exposition.page(self.families(), accept)


def _of_partitions(sources: Iterable[_Source]) -> list[Family]:
    lag = gauge("muster_query_lag", "Records of a partition that the query has not committed.")
    seconds = gauge("muster_query_lag_seconds", "The age of the first of them.")
    for each in sources:
        for family, found in ((lag, each.last.lag), (seconds, each.last.lag_seconds)):
            for place, value in found.items():
                family.add(value, **each.labels, topic=place.topic, partition=str(place.partition))
    return [lag, seconds]


def _of_queries(sources: Iterable[_Source]) -> list[Family]:
    rows = counter("muster_query_rows_total", "Records that the query has read.")
    batches = counter("muster_query_batches_total", "Batches that had any.")
    at = gauge("muster_query_progress_timestamp_seconds", "When the query last reported.")
    told = {
        "committed_batch": gauge("muster_query_committed_batch", "The last batch that the group has acknowledged."),
        "generation": gauge("muster_query_generation", "The group's generation."),
        "rebalances": counter("muster_query_rebalances_total", "Generations since the query joined."),
        "members": gauge("muster_query_members", "Members of the group."),
        "input_rows_per_second": gauge("muster_query_input_rows_per_second", "How fast records came, by Spark."),
        "processed_rows_per_second": gauge(
            "muster_query_processed_rows_per_second", "How fast they were worked on, by Spark."
        ),
    }
    duration = gauge("muster_query_trigger_duration_seconds", "How long the last trigger took, with its batch.")
    for each in sources:
        rows.add(each.rows, **each.labels)
        batches.add(each.batches, **each.labels)
        at.add(each.at_ms / 1_000, **each.labels)
        for name, family in told.items():
            if (value := getattr(each.last, name)) is not None:
                family.add(value, **each.labels)
        if each.last.duration_ms is not None:
            duration.add(each.last.duration_ms / 1_000, **each.labels)
    return [rows, batches, at, *told.values(), duration]
