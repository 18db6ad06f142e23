"""The rules of a sink that writes each row of a stream once (`exactlyOnce`), without I/O.

Theory. Each task writes its rows in one transaction, which also commits an offset as a *marker*: for a group with the
task's number, the number of the next batch; the commit's metadata says what was written. Before it writes, a task
initializes its transactional id, which fences every other attempt of the task, and then reads the marker. So an attempt
finds what an earlier one has committed, and an attempt that was thought to be dead can no longer commit anything:

1. Attempt A writes batch 7 and commits, but its executor dies before Spark hears of it. Attempt B reads the marker,
   writes nothing and succeeds.
2. Attempt A is slow, and B begins. B's `init_transactions` aborts A's transaction and fences A.

A marker belongs to a task number, so this holds if a batch that runs again has the same rows in the same tasks. Spark
does not promise that (SPARK-28650: the number of tasks may differ). So the marker has the number of the rows and a sum
over their keys and values, whatever their order; a task that finds a marker compares them with its own rows. The driver
looks for markers of tasks that a batch no longer has. A difference is an error: rows that were written again would be
duplicates, and rows that were left out might be lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa
from crc32c import crc32c

from muster.errors import MusterError
from muster.history.sink_groups import SINK_METADATA
from muster.model import OffsetAndMetadata

BATCH_ID, QUERY_ID = "streaming.sql.batchId", "sql.streaming.queryId"
"""Local properties of Spark's tasks."""

_SUM_BITS = (1 << 64) - 1


class SinkError(MusterError):
    """Rows were not written. The message is written for the user."""


def task_name(prefix: str, number: int) -> str:
    """The transactional id of a task, and the group of its markers."""
    return f"{prefix}-{number}"


def task_number(prefix: str, name: str) -> int | None:
    """The number of the task with this name; None if the name does not have this prefix."""
    before, _, number = name.rpartition("-")
    return int(number) if before == prefix and number.isdecimal() else None


class Content(NamedTuple):
    """What a task writes: how many rows, and a sum over their keys and values, whatever their order."""

    rows: int = 0
    checksum: int = 0

    def plus(self, chunk: pa.Table) -> Content:
        """The content with more rows."""
        sums: Iterable[int] = (0 for _ in range(chunk.num_rows))
        for name in ("key", "value"):
            if name in chunk.schema.names:
                column: Any = chunk.column(name).cast(pa.binary())
                sums = map(crc32c, column.fill_null(b"").to_pylist(), sums)
        return Content(self.rows + chunk.num_rows, self.checksum + sum(sums) & _SUM_BITS)


class SinkMarker(NamedTuple):
    """What a task has committed: its query, the batch, and what it wrote."""

    query: str
    batch: int
    content: Content

    def commit(self) -> OffsetAndMetadata:
        """The marker as an offset commit."""
        rows, checksum = self.content
        return OffsetAndMetadata(self.batch + 1, metadata=f"{SINK_METADATA}{self.query}:{rows}:{checksum:016x}")


def read_marker(group: str, committed: OffsetAndMetadata | None) -> SinkMarker | None:
    """The marker in a commit of a task's group.

    Raises:
        SinkError: another client uses the group.
    """
    if committed is None:
        return None
    try:
        query, rows, checksum = committed.metadata.removeprefix(SINK_METADATA).rsplit(":", 2)
        if committed.metadata.startswith(SINK_METADATA):
            return SinkMarker(query, committed.offset - 1, Content(int(rows), int(checksum, 16)))
    except ValueError:
        pass
    raise SinkError(
        f"group {group} has an offset that this sink did not commit, but the sink records in this group which "
        "batches are written: set kafka.transactional.id to a name that is not a prefix of any group's name"
    )


@dataclass(frozen=True, slots=True)
class Attempt:
    """A task of a batch of a query, in the sink whose transactional ids have this prefix."""

    prefix: str
    query: str
    batch: int
    number: int

    @property
    def name(self) -> str:
        """Its transactional id, and the group of its markers."""
        return task_name(self.prefix, self.number)

    @property
    def _label(self) -> str:
        return f"task {self.number} of batch {self.batch}"

    def is_written(self, marker: SinkMarker | None) -> bool:
        """Whether another attempt has written the rows.

        Raises: SinkError: the marker is from another query, or from a later batch.
        """
        if marker is None:
            return False
        if marker.query != self.query:
            raise SinkError(
                f"{self.name} was used by query {marker.query}, and this is query {self.query}: each query, and each "
                "checkpoint, needs its own kafka.transactional.id"
            )
        if marker.batch > self.batch:
            raise SinkError(
                f"{self._label} comes after batch {marker.batch} was written: the checkpoint is older than what is "
                "in the topic. To continue from this checkpoint and write some rows twice, choose another "
                "kafka.transactional.id"
            )
        return marker.batch == self.batch

    def check_same(self, marker: SinkMarker, content: Content) -> None:
        """Compare a marker of this batch with the rows of this attempt.

        Raises:
            SinkError: they are not the same.
        """
        if marker.content != content:
            raise SinkError(
                f"{self._label} was written with {marker.content.rows} rows, and runs again with "
                f"{content.rows}{' other rows' if content.rows == marker.content.rows else ''}: {_REFUSED}"
            )

    def marker(self, content: Content) -> SinkMarker:
        """The marker of rows that this attempt writes."""
        return SinkMarker(self.query, self.batch, content)


_REFUSED = (
    "rows would be lost or written twice. Restart the query with its previous settings, above all those that "
    "determine how many tasks a batch has (maxPartitions, minPartitions, spark.sql.shuffle.partitions); or choose "
    "another kafka.transactional.id to write the whole batch again"
)


def attempt(prefix: str, number: int, properties: Mapping[str, Any]) -> Attempt:
    """The current attempt, by the number of its task and its local properties.

    Raises:
        SinkError: it is not part of a streaming query.
    """
    query, batch = properties.get(QUERY_ID), properties.get(BATCH_ID)
    if query is None or batch is None:
        raise SinkError("exactlyOnce needs a streaming query, whose batches are numbered: use writeStream")
    return Attempt(prefix, str(query), int(batch), number)


def check_tasks(one: Attempt, ran: set[int], markers: Mapping[int, SinkMarker]) -> None:
    """Check, when all tasks of a batch have ended, that no other task has written rows of it. `one` is any of these
    tasks. Raises: SinkError: an earlier run of the batch had more tasks.
    """
    others = sorted(
        number
        for number, marker in markers.items()
        if number not in ran and (marker.query, marker.batch) == (one.query, one.batch) and marker.content.rows
    )
    if others:
        raise SinkError(
            f"batch {one.batch} was written in part by task {others[0]}, and runs again with {len(ran)} tasks, which "
            "have written all of it, so some rows were written twice. Restart the query with its previous settings, or "
            "choose another kafka.transactional.id to write the whole batch again"
        )
