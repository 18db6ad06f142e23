"""A Python member of one of the demo's groups: reads records, writes them as JSON lines, commits.

Each record is written and flushed before its offset is committed, and each acknowledged commit is noted afterwards: the
file says what this member had handled, and how much of it was committed, whenever it ended (`ledger.py` reads it). The
process ends cleanly on SIGTERM, and when its standard input closes, which it does when the demo itself dies.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
from collections.abc import Iterable, Sequence
from typing import Any, TextIO

from muster.client.consumer.consumer import Consumer
from muster.client.consumer.listener import RebalanceListener
from muster.clock import wall_clock_ms
from muster.demo.data.names import HEARTBEAT_INTERVAL_MS, SESSION_TIMEOUT_MS
from muster.demo.run.cluster_access import ClusterAccess
from muster.errors import KafkaError
from muster.model import OffsetAndMetadata, TopicPartition


class MemberFile:
    """The member's file. Every line is flushed to the operating system before the next step."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def note(self, event: str, **details: Any) -> None:
        """Note something other than a record."""
        self._write({"event": event, "at": wall_clock_ms(), **details})
        self._stream.flush()

    def records(self, partition: TopicPartition, records: Iterable[Any]) -> None:
        """Note the records of one partition that are handled."""
        for record in records:
            self._write(
                {
                    "topic": partition.topic,
                    "partition": partition.partition,
                    "offset": record.offset,
                    "key": _text(record.key),
                    "value": _text(record.value),
                    **({"headers": {name: _text(value) for name, value in record.headers}} if record.headers else {}),
                }
            )
        self._stream.flush()

    def _write(self, entry: dict[str, Any]) -> None:
        self._stream.write(json.dumps(entry, separators=(",", ":")) + "\n")


class Listener(RebalanceListener):
    """Notes what is assigned, revoked and lost."""

    def __init__(self, book: MemberFile) -> None:
        self._book = book

    def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
        self._book.note("assigned", partitions=_numbers(partitions))

    def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
        self._book.note("revoked", partitions=_numbers(partitions))

    def on_partitions_lost(self, partitions: list[TopicPartition]) -> None:
        self._book.note("lost", partitions=_numbers(partitions))


def _numbers(partitions: Sequence[TopicPartition]) -> list[int]:
    return sorted(partition.partition for partition in partitions)


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode()


def run(consumer: Consumer, topics: list[str], book: MemberFile, stop: threading.Event) -> None:
    """Handle records until `stop` is set, then leave the group."""
    consumer.subscribe(topics, listener=Listener(book))
    while not stop.is_set():
        batches = consumer.poll(timeout_ms=300)
        for partition, records in batches.items():
            book.records(partition, records)
        if batches:
            commit(consumer, book, {p: records[-1].offset + 1 for p, records in batches.items()})
    consumer.close()


def commit(consumer: Consumer, book: MemberFile, offsets: dict[TopicPartition, int]) -> None:
    """Commit what was written. A commit that is not acknowledged is noted; the partition's owner continues anyway."""
    numbers = {str(partition.partition): offset for partition, offset in offsets.items()}
    try:
        consumer.commit({partition: OffsetAndMetadata(offset) for partition, offset in offsets.items()})
    except KafkaError as error:
        book.note("commit_failed", offsets=numbers, error=str(error))
    else:
        book.note("committed", offsets=numbers)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one member."""
    parser = argparse.ArgumentParser(prog="python -m muster.demo.run.member")
    ClusterAccess.add_to(parser)
    for name in ("group", "topics", "name", "file"):
        parser.add_argument(f"--{name}", required=True)
    arguments = parser.parse_args(argv)
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda _number, _frame: stop.set())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group of processes; the demo decides
    threading.Thread(target=_watch_parent, args=(stop,), daemon=True).start()
    with open(arguments.file, "w", encoding="utf-8") as stream:
        consumer = Consumer(
            ClusterAccess.of(arguments).settings(),
            group_id=arguments.group,
            client_id=arguments.name,
            partition_assignment_strategy="cooperative-sticky",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=SESSION_TIMEOUT_MS,
            heartbeat_interval_ms=HEARTBEAT_INTERVAL_MS,
        )
        run(consumer, arguments.topics.split(","), MemberFile(stream), stop)
    return 0


def _watch_parent(stop: threading.Event) -> None:
    while os.read(sys.stdin.fileno(), 1024):
        pass
    stop.set()


if __name__ == "__main__":
    sys.exit(main())
