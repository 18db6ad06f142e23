"""What a query's progress reports besides offsets: the age of the oldest unread records, and how many members
its group has.

Both need requests to brokers, so a separate thread sends them, at most every few seconds and only while Spark asks
for progress: a trigger never waits for it. The age of a record takes one small fetch per partition, for at most
`MOST` partitions in a round, those with the most lag first, and once for each position.
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


class FirstUnread(NamedTuple):
    """When the first unread record was written, in milliseconds, and the position for which this was looked up."""

    position: int
    timestamp_ms: int | None


class GroupWatch:
    """Watches one query. Spark's thread calls `notice` and `seen`."""

    def __init__(self, settings: FetchSettings, group_id: str | None) -> None:
        self._settings = dataclasses.replace(
            settings,
            columns=("offset", "timestamp"),
            fail_on_data_loss=True,
            timeout_s=_PATIENCE_MS / 1000,
            client=dataclasses.replace(settings.client, request_timeout_ms=_PATIENCE_MS),
            max_bytes=1,  # a broker sends at least one whole batch
        )
        self._group_id = group_id
        self._unread: Claims = {}
        self._first_unread: dict[TopicPartition, FirstUnread] = {}
        self._group: dict[str, Any] = {}
        self._lock = threading.Lock()
        self._wanted = threading.Event()
        self._thread: threading.Thread | None = None

    def notice(self, unread: Claims) -> None:
        """Record what is not read yet, partition by partition. Starts watching."""
        with self._lock:
            self._unread = dict(unread)
            self._first_unread = {
                partition: found for partition, found in self._first_unread.items() if partition in unread
            }
        self._wanted.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="muster-spark-watch", daemon=True)
            self._thread.start()

    def seen(self, now_ms: int) -> dict[str, Any]:
        """What is known so far, for the query's progress."""
        with self._lock:
            ages = {
                partition: max(0, now_ms - found.timestamp_ms) / 1000
                for partition, found in self._first_unread.items()
                if found.timestamp_ms is not None and found.position == self._unread[partition].start
            }
            ages |= {partition: 0.0 for partition, unread in self._unread.items() if unread.size <= 0}
            return {"lagSeconds": ages, "maxLagSeconds": max(ages.values(), default=None), **self._group}

    # --- in the thread -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            self._wanted.wait()
            self._wanted.clear()
            cluster = connect(self._settings.client)
            try:
                self.refresh(cluster)
            except Exception as error:  # no caller waits for this, and the next round may succeed
                log.debug("the query's progress lacks record ages and members: %s", error)
                disconnect()
            time.sleep(EVERY_S)

    def refresh(self, cluster: Cluster) -> None:
        """Send one round of requests."""
        with self._lock:
            unread, known_ages = dict(self._unread), dict(self._first_unread)
        known = {partition for partition, found in known_ages.items() if found.position == unread[partition].start}
        due = {partition: claim for partition, claim in unread.items() if claim.size > 0 and partition not in known}
        for partition in sorted(due, key=lambda p: (-due[p].size, p))[:MOST]:
            found = FirstUnread(due[partition].start, self._timestamp(partition, due[partition]))
            with self._lock:
                if partition in self._unread:
                    self._first_unread[partition] = found
        if self._group_id is not None:
            state, members = cluster.describe(self._group_id)
            with self._lock:
                self._group = {"groupState": state, "members": members}

    def _timestamp(self, partition: TopicPartition, unread: Claim) -> int | None:
        """The timestamp of the first record of a range; None if it is not available."""
        # Usually there is a record at that very offset. If not (compaction, a transaction marker), the
        # next record is looked for, which may take a second request.
        for end in (unread.start + 1, unread.end):
            with contextlib.suppress(MusterError):
                batches = RangeReader(self._settings, partition, unread.start, end).batches()
                with contextlib.closing(batches):  # type: ignore[type-var]
                    for batch in batches:
                        first = batch.column("timestamp")[0]
                        return None if not first.is_valid else int(first.value) // 1000
        return None


def by_name(values: Mapping[TopicPartition, Any]) -> dict[str, dict[str, Any]]:
    """Values by partition, nested for JSON like the offsets of Spark's own source."""
    found: dict[str, dict[str, Any]] = {}
    for partition in sorted(values):
        found.setdefault(partition.topic, {})[str(partition.partition)] = values[partition]
    return found
