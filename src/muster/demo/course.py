"""The course of the pipeline: its queries' batches and watermarks, and the lag of every group, as observed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any


@dataclass(frozen=True, slots=True)
class Outage:
    """A period in which something, such as the broker, was down."""

    start_ms: int
    end_ms: int
    cause: str


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch of a query. Event times are milliseconds since the epoch, None if the query has no watermark."""

    at_ms: int
    number: int
    rows: int
    took_ms: int
    watermark_ms: int | None
    newest_ms: int | None
    dropped: int
    """Rows dropped by the watermark."""
    state_rows: int


@dataclass
class Course:
    """Collects the course."""

    batches: dict[str, list[Batch]] = field(default_factory=dict)
    """By query. Some very short batches are missing: a program polls only a few times a second."""
    looked_ms: int = 0
    lags: dict[str, int] = field(default_factory=dict)
    """The last observed lags, at `looked_ms`."""
    lag_over_time: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    """By group: times, and records written but not yet committed."""
    outages: list[Outage] = field(default_factory=list)

    def on_batch(self, at_ms: int, message: Mapping[str, Any]) -> None:
        """Record a batch that a program reported."""
        batch = Batch(
            at_ms,
            message["batch"],
            message["rows"],
            message["took_ms"],
            _milliseconds(message["watermark"]),
            _milliseconds(message["newest"]),
            message["dropped"],
            message["state_rows"],
        )
        self.batches.setdefault(message["query"], []).append(batch)

    def on_lags(self, at_ms: int, lags: Mapping[str, int]) -> None:
        """Record observed lags of groups."""
        self.looked_ms = at_ms
        self.lags = dict(lags)
        for group, lag in lags.items():
            self.lag_over_time.setdefault(group, []).append((at_ms, lag))

    def last_batch_ms(self, query: str) -> int:
        """When a query's last batch was reported."""
        batches = self.batches.get(query)
        return batches[-1].at_ms if batches else 0

    def total_lag(self, *groups: str) -> int | None:
        """The total lag of some groups; None until each has been observed."""
        if not self.lags.keys() >= set(groups):
            return None
        return sum(self.lags[group] for group in groups)

    def count(self, query: str) -> int:
        """How many batches a query has had."""
        batches = self.batches.get(query, ())
        return max((batch.number + 1 for batch in batches), default=0)

    def rate(self, query: str) -> float:
        """Records per second of a query's batch time."""
        batches = self.batches.get(query, ())
        took_ms = sum(batch.took_ms for batch in batches)
        return sum(batch.rows for batch in batches) * 1_000 / took_ms if took_ms else 0.0


def _milliseconds(text: str | None) -> int | None:
    return round(datetime.fromisoformat(text).timestamp() * 1_000) if text else None
