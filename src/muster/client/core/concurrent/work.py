"""Records that wait to be handled, in the order that was chosen.

A `Job` is one record on its way. Jobs that have to keep an order share a `Lane`: only its first job is under way, or
waits for another attempt; the others wait behind it. What may start stands in one queue, jobs without an order and
lanes alike, and a lane goes to its end after each job: so a long lane does not hold up the others.

A lane lives as long as it has jobs. A job that was given up with its partition, and still runs, stays first in its lane
until it has ended: should the partition come back, records of the same key wait for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from enum import Enum

from muster.client.core.concurrent.progress import Progress
from muster.client.core.concurrent.rules import Failure
from muster.model import ConsumerRecord, TopicPartition


class State(Enum):
    """Where a job stands."""

    WAITING = "waiting"
    UNDER_WAY = "under way"
    RETRYING = "waiting for another attempt"
    DEAD_LETTER = "on its way to the dead letters"
    ENDED = "ended"


class Job:
    """One record to be handled."""

    __slots__ = ("attempts", "born", "failure", "lane", "progress", "record", "size", "state")

    def __init__(self, record: ConsumerRecord, progress: Progress, lane: Lane | None) -> None:
        self.record = record
        self.progress = progress
        self.lane = lane
        self.state = State.WAITING
        self.attempts = 0
        """How many have failed."""
        self.failure: Failure | None = None
        """Why the last one did."""
        self.size = _length(record.key) + _length(record.value)
        self.born = len(progress.cuts)

    @property
    def is_void(self) -> bool:
        """Whether its result means nothing: its partition was given up, or its record is lost by now."""
        progress = self.progress
        return progress.over or bool(progress.cuts and progress.is_void(self.record.offset, self.born))

    @property
    def is_busy(self) -> bool:
        """Whether something outside of the core is at work on it."""
        return self.state in (State.UNDER_WAY, State.DEAD_LETTER)


class Lane:
    """Jobs of one partition that have to keep their order."""

    __slots__ = ("jobs", "name")

    def __init__(self, name: tuple[TopicPartition, Hashable]) -> None:
        self.name = name
        self.jobs: deque[Job] = deque()


class Queue:
    """All jobs and lanes, and which of them may start."""

    def __init__(self) -> None:
        self._ready: deque[Job] = deque()
        self._lanes: dict[tuple[TopicPartition, Hashable], Lane] = {}
        self._parked: dict[TopicPartition, list[Job]] = {}
        """Jobs that may not start before more of their partition is committed."""

    def lane(self, partition: TopicPartition, key: Hashable) -> Lane:
        """The lane of a key."""
        name = (partition, key)
        found = self._lanes.get(name)
        if found is None:
            found = self._lanes[name] = Lane(name)
        return found

    def add(self, job: Job) -> None:
        """A new job: behind those of its lane."""
        if job.lane is None:
            self._ready.append(job)
            return
        job.lane.jobs.append(job)
        if len(job.lane.jobs) == 1:
            self._ready.append(job)

    def again(self, job: Job) -> None:
        """A job whose wait is over: it is the first of its lane still."""
        self._ready.append(job)

    def park(self, job: Job) -> None:
        """Put a job aside that may not start yet."""
        self._parked.setdefault(job.progress.partition, []).append(job)

    def unpark(self, partition: TopicPartition) -> None:
        """Jobs that were put aside may start now; they were first."""
        self._ready.extendleft(reversed(self._parked.pop(partition, [])))

    def pop(self) -> Job | None:
        """The next job that may start."""
        return self._ready.popleft() if self._ready else None

    def end(self, job: Job) -> None:
        """A job is over: the next of its lane may start."""
        job.state = State.ENDED
        lane = job.lane
        if lane is None:
            return
        jobs = lane.jobs
        jobs.popleft()
        if jobs:
            self._ready.append(jobs[0])
        else:
            del self._lanes[lane.name]

    def drop(self, partition: TopicPartition, offset: int = 0) -> list[Job]:
        """Forget the jobs of a partition, from an offset on, that are not busy; returns them."""

        def goes(job: Job) -> bool:
            return job.progress.partition == partition and job.record.offset >= offset and not job.is_busy

        dropped = [job for job in self._ready if goes(job)] + [
            job for job in self._parked.get(partition, ()) if goes(job)
        ]
        self._ready = deque(job for job in self._ready if not goes(job))
        self._parked[partition] = [job for job in self._parked.get(partition, ()) if not goes(job)]
        for name in [name for name in self._lanes if name[0] == partition]:
            jobs = self._lanes[name].jobs
            dropped += [job for job in jobs if goes(job)]
            kept = [job for job in jobs if not goes(job)]
            jobs.clear()
            jobs.extend(kept)
            if not kept:
                del self._lanes[name]
        return dropped


def _length(value: object) -> int:
    return len(value) if isinstance(value, bytes | bytearray | memoryview | str) else 0
