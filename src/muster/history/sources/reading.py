"""Reads the partitions of a source in parallel, ahead of the caller, with bounded memory."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from typing import Protocol, TypeVar

import pyarrow as pa

T = TypeVar("T")

_WIDTH = 4
"""How many partitions are read at a time."""
_AHEAD = 2
"""How many batches of a partition may wait for the caller."""


class TopicSource(Protocol):
    """The records of one topic: in a cluster, in a folder, or synthetic."""

    @property
    def records(self) -> dict[int, int]:
        """The approximate number of records by partition; empty partitions may be left out."""

    def read(self, partition: int) -> Iterator[pa.RecordBatch]:
        """One partition's records, in order of offset, as batches of schema RAW."""


Part = tuple[int, Iterator[pa.RecordBatch]]


def side_by_side(topic: TopicSource, partitions: Sequence[int]) -> Generator[Part, None, None]:
    """Each partition with its batches, in the given order. Take all batches of one partition before the next; threads
    read ahead. What a reader raises is raised when its batches are taken."""
    pipes = {partition: _Pipe() for partition in partitions}
    waiting = deque(partitions)

    def work() -> None:
        while True:
            try:
                partition = waiting.popleft()
            except IndexError:
                return
            if not _fill(pipes[partition], lambda: topic.read(partition)):  # noqa: B023 - called at once
                return

    width = min(_WIDTH, len(partitions))
    threads = [threading.Thread(target=work, name="muster-history", daemon=True) for _ in range(width)]
    for thread in threads:
        thread.start()
    try:
        for partition in partitions:
            yield partition, pipes[partition].batches()
    finally:
        waiting.clear()
        for pipe in pipes.values():
            pipe.close()


def _fill(pipe: _Pipe, read: Callable[[], Iterator[pa.RecordBatch]]) -> bool:
    """Read into a pipe; False if the thread that takes the batches closed it."""
    failed: BaseException | None = None
    try:
        batches = read()
        with closing(batches):  # type: ignore[type-var]
            for batch in batches:
                if not pipe.put(batch):
                    return False
    except BaseException as error:  # raised again in the thread that takes the batches
        failed = error
    pipe.end(failed)
    return True


class _Pipe:
    """Batches passed from one thread to another: `put` blocks while _AHEAD of them wait."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._batches: deque[pa.RecordBatch] = deque()
        self._ended = self._closed = False
        self._failed: BaseException | None = None

    def put(self, batch: pa.RecordBatch) -> bool:
        """False: the taking thread closed the pipe."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or len(self._batches) < _AHEAD)
            if not self._closed:
                self._batches.append(batch)
                self._changed.notify_all()
            return not self._closed

    def end(self, failed: BaseException | None) -> None:
        with self._changed:
            self._ended, self._failed = True, failed
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._batches.clear()
            self._changed.notify_all()

    def batches(self) -> Iterator[pa.RecordBatch]:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._batches or self._ended)
                if not self._batches:
                    break
                batch = self._batches.popleft()
                self._changed.notify_all()
            yield batch
        if self._failed is not None:
            raise self._failed
