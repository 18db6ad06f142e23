"""Records that wait to be handled, in the chosen order.

A `Job` is one record. Jobs that must keep an order share a lane: only its first job runs or waits for a retry; the
others wait for it. Jobs that may start are in one queue, both jobs without an order and the first of each lane, and a
lane goes to the back after each job, so that a long lane does not hold up the others.

A lane lives as long as it has jobs. A job that still runs when its partition is given up stays first in its lane
until it has ended: if the partition comes back, records of the same key wait for it. A lane is not an object: its jobs
are linked, and the first is found by partition and key. Most lanes have one job, and every object created for a record
costs the garbage collector time too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterator
from enum import Enum
from itertools import pairwise

from muster.client.core.concurrent.progress import PartitionProgress
from muster.client.core.concurrent.rules import HandlerFailure
from muster.model import ConsumerRecord, TopicPartition


class State(Enum):
    """The state of a job."""

    WAITING = "waiting"
    UNDER_WAY = "under way"
    RETRYING = "waiting for a retry"
    DEAD_LETTER = "being written as a dead letter"
    ENDED = "ended"


class Job:
    """A record to handle."""

    __slots__ = ("attempts", "born", "failure", "following", "key", "last", "progress", "record", "size", "state")

    def __init__(self, record: ConsumerRecord, progress: PartitionProgress, key: Hashable) -> None:
        self.record = record
        self.progress = progress
        self.key = key
        """The key of its lane within the partition; None for a job without order."""
        self.following: Job | None = None
        """The next job of the lane."""
        self.last: Job | None = None
        """The last job of the lane; set on the first if there are several."""
        self.state = State.WAITING
        self.attempts = 0
        """How many attempts have failed."""
        self.failure: HandlerFailure | None = None
        """Why the last attempt failed."""
        self.size = _size(record)
        self.born = len(progress.cuts)

    @property
    def is_void(self) -> bool:
        """Whether the job's result is ignored: its partition was given up, or its record is lost."""
        progress = self.progress
        return progress.over or bool(progress.cuts and progress.is_void(self.record.offset, self.born))

    @property
    def is_busy(self) -> bool:
        """Whether something outside the core is working on it."""
        return self.state in (State.UNDER_WAY, State.DEAD_LETTER)


class Queue:
    """All jobs in their lanes, and which may start."""

    def __init__(self) -> None:
        self._ready: deque[Job] = deque()
        self._lanes: dict[TopicPartition, dict[Hashable, Job]] = {}
        """The first job of each lane."""
        self._parked: dict[TopicPartition, list[Job]] = {}
        """Jobs that may start only when more of their partition is committed."""

    def add(self, job: Job) -> None:
        """Add a job at the end of its lane."""
        if job.key is None:
            self._ready.append(job)
            return
        lanes = self._lanes.get(job.progress.partition)
        if lanes is None:
            lanes = self._lanes[job.progress.partition] = {}
        first = lanes.get(job.key)
        if first is None:
            lanes[job.key] = job
            self._ready.append(job)
        else:
            (first.last or first).following = job
            first.last = job

    def again(self, job: Job) -> None:
        """A job's delay has ended: it is still the first of its lane."""
        self._ready.append(job)

    def park(self, job: Job) -> None:
        """Put aside a job that may not start yet."""
        self._parked.setdefault(job.progress.partition, []).append(job)

    def unpark(self, partition: TopicPartition) -> None:
        """Jobs that were put aside may start now, before others."""
        self._ready.extendleft(reversed(self._parked.pop(partition, [])))

    def pop(self) -> Job | None:
        """The next job that may start."""
        return self._ready.popleft() if self._ready else None

    def end(self, job: Job) -> None:
        """A job has ended: the next one in its lane may start."""
        job.state = State.ENDED
        if job.key is None:
            return
        lanes, following = self._lanes[job.progress.partition], job.following
        if following is None:
            del lanes[job.key]
            return
        lanes[job.key] = following
        if job.last is not following:
            following.last = job.last
        job.following = job.last = None
        self._ready.append(following)

    def drop(self, partition: TopicPartition, offset: int = 0) -> set[Job]:
        """Forget the jobs of a partition that are not busy, from an offset on; returns them."""

        def goes(job: Job) -> bool:
            return job.progress.partition == partition and job.record.offset >= offset and not job.is_busy

        parked = self._parked.get(partition, [])
        dropped = {job for job in (*self._ready, *parked) if goes(job)}
        self._ready = deque(job for job in self._ready if not goes(job))
        self._parked[partition] = [job for job in parked if not goes(job)]
        lanes = self._lanes.get(partition, {})
        for key, first in list(lanes.items()):
            jobs = list(_lane(first))
            kept = [job for job in jobs if not goes(job)]
            if len(kept) < len(jobs):
                dropped.update(job for job in jobs if goes(job))
                del lanes[key]
                if kept:
                    lanes[key] = _joined(kept)
        return dropped


def _lane(first: Job) -> Iterator[Job]:
    job: Job | None = first
    while job is not None:
        yield job
        job = job.following


def _joined(jobs: list[Job]) -> Job:
    """Link jobs as a lane; returns the first."""
    for job, following in pairwise(jobs):
        job.following = following
    for job in jobs:
        job.last = None
    jobs[-1].following = None
    if len(jobs) > 1:
        jobs[0].last = jobs[-1]
    return jobs[0]


def _size(record: ConsumerRecord) -> int:
    key, value = record.key, record.value
    return (0 if key is None else len(key)) + (0 if value is None else len(value))
