"""What the source reports of a query (`lastProgress["sources"][i]["latestOffset"]`), and the same as a typed value."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from muster.history.lag import lag, total
from muster.model import TopicPartition
from muster.spark.offsets import Claims
from muster.spark.progress.group_watch import by_name


def report(behind: Claims, more: Mapping[str, Any]) -> dict[str, Any]:
    """The report as JSON's values. `behind` is what is not read yet; `more` are the group and the ages of records."""
    lags = {partition: lag(claim.start, claim.end) for partition, claim in behind.items()}
    worst = max(sorted(lags), key=lambda partition: lags[partition], default=None)
    found: dict[str, Any] = {
        "ends": by_name({partition: claim.end for partition, claim in behind.items()}),
        "lag": by_name(lags),
        "totalLag": total(lags.values()),
        "worst": None if worst is None else {"partition": str(worst), "lag": lags[worst]},
    }
    return found | {name: by_name(value) if name == "lagSeconds" else value for name, value in more.items()}


@dataclass(frozen=True, slots=True)
class Progress:
    """How far one source of a query is, when its last trigger was done.

    Lags are in records, `lag_seconds` is the age of the first record that is not read yet. What is not known (yet) is
    None, or left out of a dictionary: ages and members are asked for in the background, some seconds behind.
    """

    query: str
    """The query's name, or its id."""
    batch: int
    rows: int
    """Rows of that batch, from this source."""
    ends: dict[TopicPartition, int]
    lag: dict[TopicPartition, int]
    lag_seconds: dict[TopicPartition, float]
    group: str | None = None
    generation: int | None = None
    members: int | None = None
    rebalances: int | None = None
    """Generations that followed the query's first one."""
    committed_batch: int | None = None
    """The last batch that the group has acknowledged, as the metadata of its commits counts batches."""
    group_state: str | None = None
    input_rows_per_second: float | None = None
    """Spark's figures: what came since the trigger before, and how fast it was worked on."""
    processed_rows_per_second: float | None = None
    duration_ms: int | None = None
    """How long the trigger took, with its batch."""
    id: str = ""
    """The query's id, which stays over restarts."""
    source: int = 0
    """Which of the query's sources this is."""

    @property
    def total_lag(self) -> int:
        """The records that are not read yet, of all partitions of this query."""
        return sum(self.lag.values())

    @property
    def worst(self) -> TopicPartition | None:
        """The partition that is furthest behind."""
        return max(sorted(self.lag), key=lambda partition: self.lag[partition], default=None)

    @property
    def max_lag_seconds(self) -> float | None:
        """The age of the oldest record that is not read yet."""
        return max(self.lag_seconds.values(), default=None)


def progress(query: Any) -> Progress | None:
    """How far a streaming query is that reads with this source; None before its first trigger is done.

    Of several such sources of one query, this is the first; `progresses` has all.
    """
    last = query.lastProgress
    return next(progresses(last), None) if last else None


def progresses(last: Any) -> Iterator[Progress]:
    """The progress of each source of this kind in a report of Spark's: a `StreamingQueryProgress`, or its JSON."""
    given: dict[str, Any] = last if isinstance(last, dict) else json.loads(last.json)
    for number, source in enumerate(given["sources"]):
        told = source.get("latestOffset")
        told = json.loads(told) if isinstance(told, str) else told
        if isinstance(told, dict) and {"ends", "lag", "totalLag"} <= told.keys():
            yield Progress(
                query=given.get("name") or str(given["id"]),
                batch=int(given["batchId"]),
                rows=int(source["numInputRows"]),
                ends=_flat(told["ends"]),
                lag=_flat(told["lag"]),
                lag_seconds=_flat(told.get("lagSeconds", {})),
                **{name: told.get(name) for name in ("group", "generation", "members", "rebalances")},
                committed_batch=told.get("committedBatch"),
                group_state=told.get("groupState"),
                input_rows_per_second=source.get("inputRowsPerSecond"),
                processed_rows_per_second=source.get("processedRowsPerSecond"),
                duration_ms=given.get("durationMs", {}).get("triggerExecution"),
                id=str(given["id"]),
                source=number,
            )


def _flat(nested: Mapping[str, Mapping[str, Any]]) -> dict[TopicPartition, Any]:
    return {TopicPartition(topic, int(index)): value for topic, of in nested.items() for index, value in of.items()}
