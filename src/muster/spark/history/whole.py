"""The whole history as rows of the rules, computed by Spark: what the small engine makes in one process."""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as f

from muster.history.engine import GroupHistory
from muster.history.model import Limits
from muster.history.rows import from_table
from muster.spark.history.folding import KINDS, STATUSES, TIMELINE
from muster.spark.history.job import folded, packed
from muster.spark.history.packed import IN_EVENTS, IN_EVENTS_ONLY, from_bytes, span_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ROWS = ("generations", "rebalances", "notes")


def whole(
    spark: SparkSession,
    *,
    bootstrap: str | None = None,
    folder: str | None = None,
    groups: Iterable[str] = (),
    limits: Limits,
    now_ms: int | None,
    **options: Any,
) -> GroupHistory:
    """Like `muster.history.engine.read_history`, for a cluster or a folder.

    Raises:
        ConfigError: an option is unknown or not valid.
    """
    # The brokers' events are not used here, but when the rows are put together, as with any engine.
    records = packed(spark, bootstrap, folder, groups, options).where(~f.col("what").isin(IN_EVENTS, IN_EVENTS_ONLY))
    output = folded(spark, records, limits, now_ms)
    rows = output.where(f.col("name").isin(*_ROWS, STATUSES, TIMELINE, "counts")).select("name", "data").toArrow()
    return collected(zip(*(column.to_pylist() for column in rows.columns), strict=True))


def collected(packed_rows: Iterable[tuple[str, bytes]]) -> GroupHistory:
    """Unpacked rows; lag and findings are computed from them afterwards, as with any engine."""
    found = GroupHistory()
    for name, data in packed_rows:
        if name == STATUSES:
            for status in pickle.loads(data):
                found.kinds[status.group] = status.kind
                if status.committed:
                    found.committed[status.group] = status.committed
        elif name == TIMELINE:
            found.timeline.merge(pickle.loads(data))
        elif name == "counts":
            _count(found, data)
        elif name in _ROWS:
            getattr(found.rows, name).extend(from_table(KINDS[name], from_bytes(data)))
    return found


def _count(found: GroupHistory, data: bytes) -> None:
    table = from_bytes(data)
    for row in table.to_pylist():
        place = row["kind"], row["version"]
        found.counts[place] = found.counts.get(place, 0) + row["records"]
    span = span_of(table)
    if span is not None:
        first, last = span
        found.from_ms = first if found.from_ms is None else min(first, found.from_ms)
        found.until_ms = max(last, found.until_ms or 0)
