"""Handles many records of a group at a time, without I/O: what to start, retry, pause and commit.

Theory. A runner (`client/concurrent`, or a simulation) polls a consumer and hands the records to `add`. It starts what
`start` returns, and reports how each job ended: `succeeded`, `failed`, and, for dead letters, `buried` or `not_buried`.
From time to time it commits `to_commit`, and reports what was acknowledged. `flow` says which partitions to pause and
to resume.

Guarantees, whatever the order of calls:

1. A job starts only when all earlier records of its lane (one key, or one partition) are done. Two jobs of a lane never
   run concurrently, even if the partition is lost and comes back.
2. Everything before an offset that `to_commit` returns is done, and so is everything that its metadata claims.
3. Metadata always has room for what is done after the offset: `start` holds back records that would not fit.
4. At most `concurrency` jobs run. Each partition has at most twice its share of `max_buffered` waiting, if the runner
   polls for `poll_limit` records at a time: a blocked partition leaves room for the others.
5. Jobs of a partition that was given up end without effect: their results change nothing that is committed.

A partition that is being given up first goes through `close`: its waiting jobs are dropped, running ones may finish,
and they count. Then `give_up` drops the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import asdict, dataclass
from heapq import heappop, heappush
from operator import attrgetter

from muster.client.core.concurrent.progress import PartitionProgress
from muster.client.core.concurrent.rules import HandlerFailure, Rules
from muster.client.core.concurrent.work import Job, Queue, State
from muster.model import ConsumerRecord, OffsetAndMetadata, TopicPartition

LEAST_SHARE = 16
"""How many records of one partition may always wait, however many partitions there are."""


@dataclass(slots=True)
class Counters:
    """Counters since the start."""

    handled: int = 0
    failed_attempts: int = 0
    dead_lettered: int = 0
    skipped: int = 0
    """Records that were already done: by a previous owner, or by this program before a restart."""
    dropped: int = 0
    """Running records that do not count: their partition was given up, or was about to be when they failed."""


class ConcurrentCore:
    """The records of a consumer that are waiting or being handled."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.metrics = Counters()
        self.under_way = 0
        """Running handlers, including those for partitions that were given up."""
        self.fatal: Job | None = None
        """A record that could not be handled and must not be skipped: the run must end."""
        self._progress: dict[TopicPartition, PartitionProgress] = {}
        self._queue = Queue()
        self._retries: list[tuple[int, int, Job]] = []
        self._retried = 0
        self._dead_letters: list[Job] = []
        self._may_resume = False
        self._metadata_limit = rules.metadata_limit
        self._lane_key = _lane_key(rules)

    # --- partitions --------------------------------------------------------------------------------------------------

    def assign(self, partition: TopicPartition, committed: OffsetAndMetadata | None) -> None:
        """A partition was assigned; `committed` is the group's offset in it."""
        self.give_up([partition])
        self._progress[partition] = PartitionProgress(partition, committed, self._metadata_limit)

    def close(self, partitions: Iterable[TopicPartition]) -> None:
        """These partitions are about to be given up: start no more of their records."""
        for partition in partitions:
            progress = self._progress.get(partition)
            if progress is not None and not progress.closing:
                progress.closing = True
                self._queue.drop(partition)
                progress.held = 0

    def give_up(self, partitions: Iterable[TopicPartition]) -> None:
        """These partitions were given up. Their running jobs may be cancelled; their results are ignored."""
        for partition in partitions:
            progress = self._progress.pop(partition, None)
            if progress is not None:
                progress.over = True
                self._queue.drop(partition)
        self._may_resume = True  # the others' shares have grown

    def is_waited_for(self, partitions: Iterable[TopicPartition]) -> bool:
        """Whether jobs of these partitions are running or being written as dead letters."""
        return any(self._progress[p].under_way for p in partitions if p in self._progress)

    @property
    def partitions(self) -> list[TopicPartition]:
        """The partitions that belong to this consumer."""
        return list(self._progress)

    def position(self, partition: TopicPartition) -> int | None:
        """The first offset that is not done."""
        progress = self._progress.get(partition)
        return None if progress is None else progress.base

    # --- records -----------------------------------------------------------------------------------------------------

    def add(self, records: Mapping[TopicPartition, Iterable[ConsumerRecord]]) -> None:
        """Take the records of a poll."""
        for partition, found in records.items():
            progress = self._progress.get(partition)
            if progress is None or progress.closing:
                continue
            for record in found:
                if progress.goes_back(record.offset):
                    self._cut(progress, record.offset)
                if progress.add(record.offset, record.leader_epoch):
                    self._enqueue(record, progress)
                else:
                    self.metrics.skipped += 1

    def _cut(self, progress: PartitionProgress, offset: int) -> None:
        """The records from this offset on arrive again, perhaps different ones."""
        gone = self._queue.drop(progress.partition, offset)
        gone |= {job for _, _, job in self._retries if job.progress is progress and job.record.offset >= offset}
        for job in gone:
            if job.state is not State.ENDED:
                job.state = State.ENDED
                progress.held -= 1
                progress.bytes_held -= job.size
        progress.cut(offset)

    def _enqueue(self, record: ConsumerRecord, progress: PartitionProgress) -> None:
        job = Job(record, progress, self._lane_key(record))
        progress.held += 1
        progress.bytes_held += job.size
        self._queue.add(job)

    # --- starting ----------------------------------------------------------------------------------------------------

    def start(self, now: int) -> Job | None:
        """The next job to start, None if there is none now."""
        if self.fatal is not None:
            return None  # later records of its lane must not be handled before it
        retries = self._retries
        while retries and retries[0][0] <= now:
            job = heappop(retries)[2]
            if job.state is State.RETRYING and not job.progress.over and not job.progress.closing:
                job.state = State.WAITING
                self._queue.again(job)
        while self.under_way < self.rules.concurrency and (found := self._queue.pop()) is not None:
            progress = found.progress
            if not progress.may_start(found.record.offset):
                progress.parked_at = progress.base
                self._queue.park(found)
                continue
            found.state = State.UNDER_WAY
            progress.held -= 1
            if progress.paused and progress.held <= progress.resume_at:
                self._may_resume = True
            progress.under_way += 1
            self.under_way += 1
            return found
        return None

    def next_retry(self) -> int | None:
        """When a job that has failed is due again."""
        return self._retries[0][0] if self._retries else None

    # --- how jobs end ------------------------------------------------------------------------------------------------

    def succeeded(self, job: Job) -> None:
        """A handler has returned."""
        self.under_way -= 1
        if self._done(job):
            self.metrics.handled += 1

    def failed(self, job: Job, failure: HandlerFailure, now: int) -> None:
        """A handler has raised."""
        self.under_way -= 1
        job.attempts += 1
        job.failure = failure
        self.metrics.failed_attempts += 1
        progress, retry = job.progress, self.rules.retry
        if job.is_void or progress.closing:
            self._drop(job)
        elif not failure.permanent and job.attempts < retry.max_attempts:
            progress.under_way -= 1
            progress.held += 1
            job.state = State.RETRYING
            wait = retry.wait_ms(job.attempts) if failure.delay_ms is None else failure.delay_ms
            self._retried += 1
            heappush(self._retries, (now + wait, self._retried, job))
        elif self.rules.dead_letters:
            job.state = State.DEAD_LETTER
            self._dead_letters.append(job)
        else:
            self.fatal = self.fatal or job
            self._drop(job)

    def cancelled(self, job: Job) -> None:
        """A handler was cancelled: its record is not done, and its partition is given up."""
        self.under_way -= 1
        self._drop(job)

    def halt(self, job: Job) -> None:
        """A handler failed for a reason unrelated to its record: start no more. The run must end."""
        self.under_way -= 1
        self.fatal = self.fatal or job
        self._drop(job)

    def take_dead_letters(self) -> list[Job]:
        """Records to write to the dead letter topic. Their lanes wait until that is done."""
        found, self._dead_letters = self._dead_letters, []
        for job in found:
            if job.is_void:
                self._drop(job)
        return [job for job in found if job.state is State.DEAD_LETTER]

    def buried(self, job: Job) -> None:
        """A dead letter was acknowledged: the record is done."""
        if self._done(job):
            self.metrics.dead_lettered += 1

    def not_buried(self, job: Job) -> None:
        """A dead letter cannot be written: the record must not be skipped."""
        if not job.is_void:
            self.fatal = self.fatal or job
        self._drop(job)

    def _done(self, job: Job) -> bool:
        """A record is done. Returns whether that counts."""
        progress, record = job.progress, job.record
        progress.under_way -= 1
        progress.bytes_held -= job.size
        void = job.is_void
        self._queue.end(job)
        if void:
            self.metrics.dropped += 1
            return False
        progress.done(record.offset, record.leader_epoch)
        if progress.parked_at is not None and progress.has_moved:
            progress.parked_at = None
            self._queue.unpark(progress.partition)
        if progress.paused and progress.held <= progress.resume_at:
            self._may_resume = True
        return True

    def _drop(self, job: Job) -> None:
        job.progress.under_way -= 1
        job.progress.bytes_held -= job.size
        self.metrics.dropped += 1
        self._queue.end(job)

    # --- back-pressure -----------------------------------------------------------------------------------------------

    @property
    def share(self) -> int:
        """How many records of one partition may wait before it is paused."""
        return max(LEAST_SHARE, self.rules.max_buffered // max(1, len(self._progress)))

    @property
    def poll_limit(self) -> int:
        """How many records to poll for."""
        return self.share

    def flow(self) -> tuple[list[TopicPartition], list[TopicPartition]]:
        """Which partitions to pause, and which to resume, since the last call."""
        self._may_resume = False
        share = self.share
        bytes_share = max(1, self.rules.max_buffered_bytes // max(1, len(self._progress)))
        pause, resume = [], []
        for partition, progress in self._progress.items():
            if progress.closing:
                continue
            if progress.paused:
                if progress.held <= share // 2 and progress.bytes_held <= bytes_share // 2:
                    progress.paused = False
                    resume.append(partition)
            elif progress.held >= share or progress.bytes_held >= bytes_share:
                progress.paused = True
                progress.resume_at = share // 2
                pause.append(partition)
        return pause, resume

    @property
    def may_resume(self) -> bool:
        """Whether `flow` may have a partition to resume."""
        return self._may_resume

    # --- committing --------------------------------------------------------------------------------------------------

    def move_to(self, positions: Mapping[TopicPartition, int]) -> None:
        """The consumer's position: all records before it have been handed over."""
        for partition, position in positions.items():
            progress = self._progress.get(partition)
            if progress is not None:
                progress.move_to(position)

    def to_commit(self, partitions: Iterable[TopicPartition] | None = None) -> dict[TopicPartition, OffsetAndMetadata]:
        """What to commit, for all partitions or some; partitions without changes are left out."""
        chosen = self._progress if partitions is None else [p for p in partitions if p in self._progress]
        found = {partition: self._progress[partition].to_commit() for partition in chosen}
        return {partition: what for partition, what in found.items() if what is not None}

    def committed(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """A commit of these offsets was acknowledged."""
        for partition, what in offsets.items():
            progress = self._progress.get(partition)
            if progress is not None:
                progress.committed(what)

    def limit_metadata(self, limit: int) -> None:
        """The broker accepts at most this many characters of metadata."""
        self._metadata_limit = limit
        for progress in self._progress.values():
            progress.limit_metadata(limit)

    def counters(self) -> dict[str, int]:
        """Counters, and what is in progress."""
        waiting = sum(progress.held for progress in self._progress.values())
        return asdict(self.metrics) | {"under_way": self.under_way, "waiting": waiting}


def _lane_key(rules: Rules) -> Callable[[ConsumerRecord], Hashable]:
    """What determines a record's lane; None for a record without order."""
    if callable(rules.order):
        chosen = rules.order
        return lambda record: _hashable(chosen(record))
    if rules.order == "key":
        return attrgetter("key")
    if rules.order == "partition":
        return lambda _record: ""
    return lambda _record: None


def _hashable(key: Hashable) -> Hashable:
    """The key, or a hashable form of it: a function may return dicts and lists."""
    try:
        hash(key)
    except TypeError:
        return repr(key)
    return key
