"""Handling a group's records many at a time, without I/O: what to start, to retry, to pause, to commit.

Theory. A runner (`client/concurrent`, or a simulation) polls a consumer and hands the records to `add`. It starts what
`start` returns, and tells how each job ended: `succeeded`, `failed`, and for what `take_dead_letters` returned
`buried` or `not_buried`. Every so often it commits `to_commit`, and tells what was acknowledged. `flow` says which
partitions to pause and to resume.

Promises, whatever the order of calls:

1. Of the records that share a lane (one key, or one partition) a job starts when all before it are done, and not
   before. Two of a lane are never under way at once, not even over a loss of the partition.
2. What `to_commit` returns is done up to its offset, and what its metadata says is done.
3. Metadata always has room for what is done behind the offset: `start` holds back what could not be told.
4. At most `concurrency` jobs are under way. Of the waiting ones each partition has at most twice its share of
   `max_buffered`, if the runner polls for `poll_limit` records at a time: a partition that stands still leaves the
   others their room.
5. Jobs of a partition that was given up end without a trace: their results change nothing that is committed.

A partition that is being given up first goes through `close`: its jobs that wait are dropped, those under way may
end, and count. Then `give_up` drops the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import asdict, dataclass
from heapq import heappop, heappush
from operator import attrgetter

from muster.client.core.concurrent.progress import Progress
from muster.client.core.concurrent.rules import Failure, Rules
from muster.client.core.concurrent.work import Job, Queue, State
from muster.model import ConsumerRecord, OffsetAndMetadata, TopicPartition

LEAST_SHARE = 16
"""Records of one partition that may wait, however many partitions there are."""


@dataclass(slots=True)
class Metrics:
    """Counters since the start."""

    handled: int = 0
    failed_attempts: int = 0
    dead_lettered: int = 0
    skipped: int = 0
    """Records that were done before they came: by a former owner, or by this program before it was started again."""
    dropped: int = 0
    """Records under way that count for nothing: their partition was given up, or was about to be when they failed."""


class ConcurrentCore:
    """The records of one consumer that are being handled."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.metrics = Metrics()
        self.under_way = 0
        """Handlers at work, those for partitions that were given up included."""
        self.fatal: Job | None = None
        """A record that could not be handled, and must not be passed over: the run has to end."""
        self._progress: dict[TopicPartition, Progress] = {}
        self._queue = Queue()
        self._retries: list[tuple[int, int, Job]] = []
        self._retried = 0
        self._dead_letters: list[Job] = []
        self._may_resume = False
        self._metadata_limit = rules.metadata_limit
        self._lane_key = _lane_key(rules)

    # --- partitions --------------------------------------------------------------------------------------------------

    def assign(self, partition: TopicPartition, committed: OffsetAndMetadata | None) -> None:
        """A partition is this consumer's from now on; `committed` is where its group stands."""
        self.give_up([partition])
        self._progress[partition] = Progress(partition, committed, self._metadata_limit)

    def close(self, partitions: Iterable[TopicPartition]) -> None:
        """These are about to be given up: start no more of them."""
        for partition in partitions:
            progress = self._progress.get(partition)
            if progress is not None and not progress.closing:
                progress.closing = True
                self._queue.drop(partition)
                progress.held = 0

    def give_up(self, partitions: Iterable[TopicPartition]) -> None:
        """These are not this consumer's any more. What is under way may be cancelled; its result means nothing."""
        for partition in partitions:
            progress = self._progress.pop(partition, None)
            if progress is not None:
                progress.over = True
                self._queue.drop(partition)
        self._may_resume = True  # the others' shares have grown

    def is_waited_for(self, partitions: Iterable[TopicPartition]) -> bool:
        """Whether jobs of these partitions are under way, or on their way to the dead letters."""
        return any(self._progress[p].under_way for p in partitions if p in self._progress)

    @property
    def partitions(self) -> list[TopicPartition]:
        """Those that are this consumer's."""
        return list(self._progress)

    def position(self, partition: TopicPartition) -> int | None:
        """The first offset that is not done."""
        progress = self._progress.get(partition)
        return None if progress is None else progress.base

    # --- records -----------------------------------------------------------------------------------------------------

    def add(self, records: Mapping[TopicPartition, Iterable[ConsumerRecord]]) -> None:
        """Take what a poll has returned."""
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

    def _cut(self, progress: Progress, offset: int) -> None:
        """Records come once more from an offset on, perhaps others than before."""
        gone = self._queue.drop(progress.partition, offset)
        gone |= {job for _, _, job in self._retries if job.progress is progress and job.record.offset >= offset}
        for job in gone:
            if job.state is not State.ENDED:
                job.state = State.ENDED
                progress.held -= 1
                progress.bytes_held -= job.size
        progress.cut(offset)

    def _enqueue(self, record: ConsumerRecord, progress: Progress) -> None:
        job = Job(record, progress, self._lane_key(record))
        progress.held += 1
        progress.bytes_held += job.size
        self._queue.add(job)

    # --- starting ----------------------------------------------------------------------------------------------------

    def start(self, now: int) -> Job | None:
        """The next job to start, None if there is none now."""
        if self.fatal is not None:
            return None  # what comes behind it in its lane must not be handled without it
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

    def failed(self, job: Job, failure: Failure, now: int) -> None:
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
        """A handler was ended from outside: its record is not done, and its partition is given up."""
        self.under_way -= 1
        self._drop(job)

    def halt(self, job: Job) -> None:
        """A handler ended for a reason that is not its record's: start no more. The run has to end."""
        self.under_way -= 1
        self.fatal = self.fatal or job
        self._drop(job)

    def take_dead_letters(self) -> list[Job]:
        """Records that are to be written to the topic of dead letters. Their lanes wait for it."""
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
        """A dead letter cannot be written: the record must not be passed over."""
        if not job.is_void:
            self.fatal = self.fatal or job
        self._drop(job)

    def _done(self, job: Job) -> bool:
        """A record is done. Returns whether that means anything."""
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
        """Where the consumer is that has handed over all that was before."""
        for partition, position in positions.items():
            progress = self._progress.get(partition)
            if progress is not None:
                progress.move_to(position)

    def to_commit(self, partitions: Iterable[TopicPartition] | None = None) -> dict[TopicPartition, OffsetAndMetadata]:
        """What to commit, of all partitions or of some; those left out stand where they were committed."""
        chosen = self._progress if partitions is None else [p for p in partitions if p in self._progress]
        found = {partition: self._progress[partition].to_commit() for partition in chosen}
        return {partition: what for partition, what in found.items() if what is not None}

    def committed(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """A commit of these was acknowledged."""
        for partition, what in offsets.items():
            progress = self._progress.get(partition)
            if progress is not None:
                progress.committed(what)

    def limit_metadata(self, limit: int) -> None:
        """The broker takes no more than so many characters of metadata."""
        self._metadata_limit = limit
        for progress in self._progress.values():
            progress.limit_metadata(limit)

    def counters(self) -> dict[str, int]:
        """What has happened so far, and what is going on."""
        waiting = sum(progress.held for progress in self._progress.values())
        return asdict(self.metrics) | {"under_way": self.under_way, "waiting": waiting}


def _lane_key(rules: Rules) -> Callable[[ConsumerRecord], Hashable]:
    """What decides over a record's lane; None for a record without order."""
    if callable(rules.order):
        chosen = rules.order
        return lambda record: _hashable(chosen(record))
    if rules.order == "key":
        return attrgetter("key")
    if rules.order == "partition":
        return lambda _record: ""
    return lambda _record: None


def _hashable(key: Hashable) -> Hashable:
    """The key, or what it looks like: a function may make dicts and lists of records."""
    try:
        hash(key)
    except TypeError:
        return repr(key)
    return key
