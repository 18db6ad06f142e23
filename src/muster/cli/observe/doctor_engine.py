"""Which engine reads the history for `muster doctor`: the small one in this process, or Spark for large topics."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from importlib.util import find_spec

from muster.cli.observe.spark_tools import QUIET, spark_tools
from muster.history.doctor import Notify
from muster.history.engine import GroupHistory, read_history
from muster.history.model import Limits
from muster.history.sources.reading import TopicSource

LARGE = 50_000_000
"""With more records than this, counted by offsets, Spark is used if it is installed."""
CORES = 4
"""With fewer, Spark is never faster: per core it does half the work of this process."""


@dataclass(frozen=True, slots=True)
class ChosenEngine:
    """An engine that chooses once it knows the topic's size: a `doctor.HistoryEngine`."""

    choice: str
    notify: Notify
    bootstrap: str | None = None
    options: Mapping[str, str] | None = None
    """Options of the Spark source: the client settings."""
    folder: str | None = None
    """A folder to read instead of a cluster; only the small engine reads several."""

    def __call__(
        self, topic: TopicSource, limits: Limits, groups: Collection[str] | None, now_ms: int | None, /
    ) -> GroupHistory:
        if not self._takes_spark(sum(topic.records.values())):
            return read_history(topic, limits, groups, now_ms)
        return self._by_spark(limits, groups, now_ms)

    def _takes_spark(self, records: int) -> bool:
        if self.choice != "auto":
            return self.choice == "spark"
        if records <= LARGE or (os.cpu_count() or 1) < CORES or (self.bootstrap is None and self.folder is None):
            return False
        if find_spec("pyspark") is not None:
            return True
        self.notify(
            f"reading {records:,} records in this process; Spark would use all cores, but is not installed: "
            "pip install 'muster-kafka[spark]'"
        )
        return False

    def _by_spark(self, limits: Limits, groups: Collection[str] | None, now_ms: int | None) -> GroupHistory:
        """The same history, read by Spark."""
        by_spark, session, with_short_errors = spark_tools()
        spark = session("muster doctor", **QUIET)
        try:
            found: GroupHistory = with_short_errors(
                lambda: by_spark.whole(
                    spark,
                    bootstrap=self.bootstrap,
                    folder=self.folder,
                    groups=groups or (),
                    limits=limits,
                    now_ms=now_ms,
                    **(self.options or {}),
                )
            )
        finally:
            spark.stop()
        return found
