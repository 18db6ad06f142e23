"""What a query's progress tells besides offsets: how old the records are that it has not read yet, and which members
its group has.

Both take questions to brokers, so a thread of its own asks them, at most every few seconds and only while Spark asks
for progress: a trigger never waits for it. The age of a record is asked for by one small fetch for a partition, at most
`MOST` partitions in a round, those that are furthest behind first, and once for each position.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import threading
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from muster.client.plain.cluster import Cluster, connect, disconnect
from muster.client.plain.fetch import FetchSettings, RangeReader
from muster.errors import MusterError
from muster.model import TopicPartition
from muster.spark.offsets import Claim, Claims

log = logging.getLogger("muster.spark")

EVERY_S = 5.0
MOST = 16
"""Partitions of one round."""

_PATIENCE_MS = 5_000


class Told(NamedTuple):
    """When the first record that is not read yet was written, in milliseconds; and at which position that was asked."""

    position: int
    timestamp_ms: int | None


class Watch:
    """Watches one query. `notice` and `seen` are called by Spark's thread."""

    def __init__(self, settings: FetchSettings, group_id: str | None) -> None:
        self._settings = dataclasses.replace(
            settings,
            columns=("offset", "timestamp"),
            fail_on_data_loss=True,
            timeout_s=_PATIENCE_MS / 1000,
            client=dataclasses.replace(settings.client, request_timeout_ms=_PATIENCE_MS),
            max_bytes=1,  # a broker sends a whole batch at least
        )
        self._group_id = group_id
        self._behind: Claims = {}
        self._told: dict[TopicPartition, Told] = {}
        self._group: dict[str, Any] = {}
        self._lock = threading.Lock()
        self._wanted = threading.Event()
        self._thread: threading.Thread | None = None

    def notice(self, behind: Claims) -> None:
        """What is not read yet, partition by partition. Begins to watch."""
        with self._lock:
            self._behind = dict(behind)
            self._told = {partition: told for partition, told in self._told.items() if partition in behind}
        self._wanted.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="muster-spark-watch", daemon=True)
            self._thread.start()

    def seen(self, now_ms: int) -> dict[str, Any]:
        """What is known by now, for the query's progress."""
        with self._lock:
            ages = {
                partition: max(0, now_ms - told.timestamp_ms) / 1000
                for partition, told in self._told.items()
                if told.timestamp_ms is not None and told.position == self._behind[partition].start
            }
            ages |= {partition: 0.0 for partition, behind in self._behind.items() if behind.size <= 0}
            return {"lagSeconds": ages, "maxLagSeconds": max(ages.values(), default=None), **self._group}

    # --- in the thread -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            self._wanted.wait()
            self._wanted.clear()
            cluster = connect(self._settings.client)
            try:
                self.look(cluster)
            except Exception as error:  # no caller waits for it, and the next round may do better
                log.debug("the query's progress lacks what could not be asked: %s", error)
                disconnect()
            time.sleep(EVERY_S)

    def look(self, cluster: Cluster) -> None:
        """One round of questions."""
        with self._lock:
            behind, told = dict(self._behind), dict(self._told)
        known = {partition for partition, found in told.items() if found.position == behind[partition].start}
        due = {partition: claim for partition, claim in behind.items() if claim.size > 0 and partition not in known}
        for partition in sorted(due, key=lambda p: (-due[p].size, p))[:MOST]:
            found = Told(due[partition].start, self._timestamp(partition, due[partition]))
            with self._lock:
                if partition in self._behind:
                    self._told[partition] = found
        if self._group_id is not None:
            state, members = cluster.describe(self._group_id)
            with self._lock:
                self._group = {"groupState": state, "members": members}

    def _timestamp(self, partition: TopicPartition, behind: Claim) -> int | None:
        """The time of the first record of a range; None if it cannot be had."""
        # Most often there is a record at the very offset. Where there is none (compaction, a transaction's marker), the
        # next one is looked for, which may take a second request.
        for end in (behind.start + 1, behind.end):
            with contextlib.suppress(MusterError):
                batches = RangeReader(self._settings, partition, behind.start, end).batches()
                with contextlib.closing(batches):  # type: ignore[type-var]
                    for batch in batches:
                        first = batch.column("timestamp")[0]
                        return None if not first.is_valid else int(first.value) // 1000
        return None


def by_name(values: Mapping[TopicPartition, Any]) -> dict[str, dict[str, Any]]:
    """Values of partitions, nested for JSON as Spark's own source has its offsets."""
    found: dict[str, dict[str, Any]] = {}
    for partition in sorted(values):
        found.setdefault(partition.topic, {})[str(partition.partition)] = values[partition]
    return found
