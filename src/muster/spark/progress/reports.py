"""What the source reports about a query (`lastProgress["sources"][i]["latestOffset"]`), as JSON and typed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from muster.history.lag import lag, total
from muster.model import TopicPartition
from muster.spark.offsets import Claims
from muster.spark.progress.group_watch import by_name


def report(unread: Claims, more: Mapping[str, Any]) -> dict[str, Any]:
    """The report as JSON values. `unread` is what is not read yet; `more` has the group and the ages of records."""
    lags = {partition: lag(claim.start, claim.end) for partition, claim in unread.items()}
    worst = max(sorted(lags), key=lambda partition: lags[partition], default=None)
    found: dict[str, Any] = {
        "ends": by_name({partition: claim.end for partition, claim in unread.items()}),
        "lag": by_name(lags),
        "totalLag": total(lags.values()),
        "worst": None if worst is None else {"partition": str(worst), "lag": lags[worst]},
    }
    return found | {name: by_name(value) if name == "lagSeconds" else value for name, value in more.items()}


@dataclass(frozen=True, slots=True)
class Progress:
    """How far one source of a query had read when its last trigger was done.

    Lags are in records, `lag_seconds` is the age of the first unread record. What is not known (yet) is
    None, or missing in a dictionary: ages and members are looked up in the background, some seconds late.
    """

    query: str
    """The query's name, or its ID."""
    batch: int
    rows: int
    """Rows of that batch from this source."""
    ends: dict[TopicPartition, int]
    lag: dict[TopicPartition, int]
    lag_seconds: dict[TopicPartition, float]
    group: str | None = None
    generation: int | None = None
    members: int | None = None
    rebalances: int | None = None
    """Generations after the query's first one."""
    committed_batch: int | None = None
    """The last batch that the group has acknowledged, numbered as in the metadata of its commits."""
    group_state: str | None = None
    input_rows_per_second: float | None = None
    """Spark's figures: how fast records arrived since the last trigger, and how fast they were processed."""
    processed_rows_per_second: float | None = None
    duration_ms: int | None = None
    """How long the trigger took, including its batch."""
    id: str = ""
    """The query's ID, which survives restarts."""
    source: int = 0
    """Which of the query's sources this is."""

    @property
    def total_lag(self) -> int:
        """Unread records in all partitions of this query."""
        return sum(self.lag.values())

    @property
    def worst(self) -> TopicPartition | None:
        """The partition with the most lag."""
        return max(sorted(self.lag), key=lambda partition: self.lag[partition], default=None)

    @property
    def max_lag_seconds(self) -> float | None:
        """The age of the oldest unread record."""
        return max(self.lag_seconds.values(), default=None)


def progress(query: Any) -> Progress | None:
    """The progress of a streaming query that reads with this source; None before its first trigger is done.

    If the query has several such sources, this is the first; `progresses` has all.
    """
    last = query.lastProgress
    return next(progresses(last), None) if last else None


def progresses(last: Any) -> Iterator[Progress]:
    """The progress of each source of this kind in a Spark report: a `StreamingQueryProgress`, or its JSON."""
    reported: dict[str, Any] = last if isinstance(last, dict) else json.loads(last.json)
    for number, source in enumerate(reported["sources"]):
        found = source.get("latestOffset")
        found = json.loads(found) if isinstance(found, str) else found
        if isinstance(found, dict) and {"ends", "lag", "totalLag"} <= found.keys():
            yield Progress(
                query=reported.get("name") or str(reported["id"]),
                batch=int(reported["batchId"]),
                rows=int(source["numInputRows"]),
                ends=_flat(found["ends"]),
                lag=_flat(found["lag"]),
                lag_seconds=_flat(found.get("lagSeconds", {})),
                **{name: found.get(name) for name in ("group", "generation", "members", "rebalances")},
                committed_batch=found.get("committedBatch"),
                group_state=found.get("groupState"),
                input_rows_per_second=source.get("inputRowsPerSecond"),
                processed_rows_per_second=source.get("processedRowsPerSecond"),
                duration_ms=reported.get("durationMs", {}).get("triggerExecution"),
                id=str(reported["id"]),
                source=number,
            )


def _flat(nested: Mapping[str, Mapping[str, Any]]) -> dict[TopicPartition, Any]:
    return {TopicPartition(topic, int(index)): value for topic, of in nested.items() for index, value in of.items()}
