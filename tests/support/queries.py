"""Streaming queries for tests: the member is used as Spark uses it, without a JVM, and what was read is audited."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pytest

from muster.client.plain.fetch import RangeReader
from muster.model import TopicPartition
from muster.spark.offsets import INITIAL, Claim, from_json, to_json
from muster.spark.source.member import QueryMember
from muster.spark.source.options import parse_options

Read = tuple[int, int]
"""Partition and offset."""


class Place(Protocol):
    """The cluster from which a query reads: a real or a simulated one."""

    bootstrap: str
    group: str
    session_timeout_ms: int


class Query:
    """Imitates Spark's micro-batch execution of a source: its two logs, its calls in order, an idempotent sink.

    `crash` drops the member without leaving the group; a new `Query` on the same folder is the restarted one.
    """

    def __init__(self, cluster: Place, topic: str, folder: Path, **options: Any) -> None:
        named = {name.replace("_", "."): str(value) for name, value in options.items()}
        settings = {
            "kafka.bootstrap.servers": cluster.bootstrap,
            "subscribe": topic,
            "groupId": cluster.group,
            "startingOffsets": "earliest",
            "kafka.heartbeat.interval.ms": "200",
            "kafka.session.timeout.ms": str(cluster.session_timeout_ms),
            "checkpointLocation": str(folder),
        }
        given = {name: value for name, value in {**settings, **named}.items() if value != "None"}
        self.options = parse_options(given, streaming=True)
        self.member = QueryMember(self.options)
        self.folder = folder
        for name in ("offsets", "commits", "sink"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        self.running: int | None = None

    # --- the logs ----------------------------------------------------------------------------------------------------

    def log(self, name: str) -> list[int]:
        return sorted(int(path.name) for path in (self.folder / name).iterdir())

    def offset(self, batch: int) -> dict[str, Any]:
        if batch < 0:
            return to_json(INITIAL)
        found: dict[str, Any] = json.loads((self.folder / "offsets" / str(batch)).read_text().splitlines()[2])
        return found

    # --- Spark's steps -----------------------------------------------------------------------------------------------

    def recover(self) -> bool:
        """After a restart: run again the batch that was begun and not committed. Returns whether there was one."""
        begun, done = self.log("offsets"), self.log("commits")
        if not begun or begun[-1] in done:
            return False
        self.running = begun[-1]
        self._plan()
        return True

    def trigger(self) -> bool:
        """Ask for a batch, plan it and read it. Returns False if there was nothing to read."""
        last = max(self.log("offsets"), default=-1)
        start = self.offset(last)
        end = self.member.latest(start, self.options.max_rows)
        if end is start:
            return False
        self.running = last + 1
        text = f"v1\n{{}}\n{json.dumps(end)}"
        (self.folder / "offsets" / str(self.running)).write_text(text)
        self._plan()
        return True

    def _plan(self) -> None:
        assert self.running is not None
        end = self.offset(self.running)
        read: list[Read] = []
        topics = from_json(end).topics
        for partition, claim in self.member.planned(end).items():
            topic_id = bytes.fromhex(topics[partition.topic].id) if partition.topic in topics else b""
            read += [(partition.partition, offset) for offset in self.read(partition, claim, topic_id)]
        (self.folder / "sink" / str(self.running)).write_text(json.dumps(read))

    def read(self, partition: TopicPartition, claim: Claim, topic_id: bytes) -> list[int]:
        """A task: returns the offsets that it read."""
        reader = RangeReader(self.options.fetch_settings(), partition, claim.start, claim.end, topic_id)
        return offsets(reader.batches())

    def finish(self) -> None:
        """The sink is done: the batch is added to the commit log. The source learns of it at the next trigger."""
        (self.folder / "commits" / str(self.running)).write_text("v1\n{}")
        self.running = None

    def run(self) -> int:
        """Run batches until there is nothing to read; returns how many. At the end the last batch is known to be
        done."""
        count = 0
        while self.trigger():
            self.finish()
            count += 1
        return count

    def run_until(self, condition: Callable[[], bool]) -> Callable[[], None]:
        """One step of a continuous query, for `faces.until`."""

        def step() -> None:
            if not condition() and self.trigger():
                self.finish()

        return step

    def stop(self) -> None:
        self.member.close()

    def crash(self) -> None:
        """The process is killed: no commit, no LeaveGroup."""

        async def end() -> None:
            if self.member._batch_done is not None:
                self.member._batch_done.close()
            await self.member._loop.close()

        self.member._thread.run(end())
        self.member._thread.close()

    # --- results ---------------------------------------------------------------------------------------------

    @property
    def owned(self) -> list[TopicPartition]:
        return self.member._claims.owned()

    def sink(self) -> list[Read]:
        """The records that all runs of the query have written: each batch counts once, however often it was run."""
        return [
            tuple(pair)
            for batch in self.log("sink")
            for pair in json.loads((self.folder / "sink" / str(batch)).read_text())
        ]

    def claims(self, batch: int) -> dict[int, tuple[int, int]]:
        return {p.partition: (claim.start, claim.end) for p, claim in from_json(self.offset(batch)).claims.items()}


def offsets(batches: Iterable[pa.RecordBatch]) -> list[int]:
    """The offsets in record batches."""
    return [int(offset) for batch in batches for offset in batch.column("offset").to_numpy()]


def audit(produced: Iterable[Read], *readers: Iterable[Read]) -> tuple[set[Read], dict[Read, int]]:
    """The records that were never read, and those read more than once, each with its count."""
    counted = Counter(read for reader in readers for read in reader)
    return set(produced) - set(counted), {read: count for read, count in counted.items() if count > 1}


def grid(count: int, partitions: int) -> set[Read]:
    """What `Cluster.produce` wrote to a new topic."""
    return {(number % partitions, number // partitions) for number in range(count)}


def committed(cluster: Any, topic: str, partitions: int) -> dict[int, int | None]:
    """The group's committed offsets, as the broker reports them."""
    with cluster.consumer("sync", enable_auto_commit=False) as consumer:
        found = consumer.committed([TopicPartition(topic, number) for number in range(partitions)])
        return {place.partition: offset and offset.offset for place, offset in found.items()}


def reported(caplog: pytest.LogCaptureFixture, level: int = logging.WARNING) -> list[str]:
    """The messages of the source."""
    return [r.getMessage() for r in caplog.records if r.name == "muster.spark" and r.levelno >= level]
