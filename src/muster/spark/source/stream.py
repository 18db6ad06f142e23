"""The streaming reader: passes Spark's calls to the query's member.

Spark creates a reader at least twice: in the process that lives as long as the query, and in a short-lived one that
pickles it for the executors. Only the first is asked for offsets, so only there is a member created.
"""

from __future__ import annotations

import atexit
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from muster.clock import wall_clock_ms
from muster.spark.offsets import INITIAL, from_json, to_json
from muster.spark.progress.group_watch import GroupWatch
from muster.spark.progress.reports import report
from muster.spark.source.member import QueryMember, query_name
from muster.spark.source.options import SourceOptions
from muster.spark.source.ranges import read_range, tasks
from muster.spark.source.shares import split

_GOODBYE_S = 12.0
"""How long an ending process may take to leave its group."""


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """A streaming query's reader."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._settings = options.fetch_settings()
        self._member: QueryMember | None = None
        self._available_now = False
        self._watch: GroupWatch | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_member": None, "_watch": None}

    def _active(self, offset: dict[str, Any] | None = None) -> QueryMember:
        """The query's member. If its group is named after the query (`groupIdPrefix`), the first offset that Spark
        passes has the query's name."""
        if self._member is None:
            name = str((offset or {}).get("query", "")) or query_name(self._options)
            self._member = QueryMember(self._options.in_group_of(name), name)
            close_at_exit(self._member.close)
            if self._available_now:
                self._member.prepare_available_now()
        return self._member

    # --- Spark's names -----------------------------------------------------------------------------------------------

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadAllAvailable() if self._options.max_rows is None else ReadMaxRows(self._options.max_rows)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return to_json(INITIAL)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._available_now = True
        if self._member is not None:
            self._member.prepare_available_now()
        elif self._options.in_group_of("") is self._options:
            self._active()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        return self._active(start).latest(start, limit.max_rows if isinstance(limit, ReadMaxRows) else None)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        if self._member is None:
            return None
        if self._watch is None:
            self._watch = GroupWatch(self._settings, self._member.group_id)
        unread = self._member.unread()
        self._watch.notice(unread)
        return report(unread, self._member.group_progress() | self._watch.seen(wall_clock_ms()))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        if start == end:
            return []
        pieces = split(self._active(end).planned(end), self._options.min_partitions, self._options.max_records)
        ids = {name: topic.id for name, topic in from_json(end).topics.items()}
        return tasks(pieces, lambda topic: ids.get(topic, ""), self._options.max_partitions)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_range(self._settings, partition)

    def commit(self, end: dict[str, Any]) -> None:
        self._active(end).finished(end)

    def stop(self) -> None:
        if self._member is not None:
            self._member.close()


def close_at_exit(close: Callable[[], None]) -> None:
    """Leave the group when the process ends. In a clean stop Spark sends SIGTERM, and only the handler runs. When
    the JVM is killed, the reader's stop() is called. `atexit` covers everything else."""
    atexit.register(close)
    if threading.current_thread() is not threading.main_thread():
        return

    def on_sigterm(_number: int, _frame: FrameType | None) -> None:
        # In a separate thread: the interrupted main thread may hold a lock that closing needs.
        goodbye = threading.Thread(target=close, name="muster-spark-goodbye", daemon=True)
        goodbye.start()
        goodbye.join(_GOODBYE_S)
        os._exit(143)

    signal.signal(signal.SIGTERM, on_sigterm)
