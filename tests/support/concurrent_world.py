"""A world for `ConcurrentCore` without a network: logs, a group's committed offsets, and processes that crash.

Everything follows from a seed. What happens next is drawn each time: a poll, the start or the end of a handler, a
commit that is acknowledged, or stored but not acknowledged, or lost; partitions revoked, lost, assigned; the log cut by
an election; a crash. Checked all the time, against the truth kept here:

- order: when a handler starts, all earlier records of its lane are done, and in its process none of them is under way
- what is committed is done, and so is what the metadata lists; and it lists all that its process knows to be done
- a handler is never started for a record that the owner knows to be done
- memory, concurrency, and the length of metadata stay within their bounds

and at the end that every record was done.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from random import Random

from muster.client.core.concurrent.core import ConcurrentCore
from muster.client.core.concurrent.encoding import capacity, decode
from muster.client.core.concurrent.rules import HandlerFailure, Order, Retry, Rules
from muster.client.core.concurrent.work import Job
from muster.model import ConsumerRecord, OffsetAndMetadata, TopicPartition

Mark = tuple[TopicPartition, int, int]
"""Identifies a record even if its offset is used again after a truncation: partition, offset, epoch."""


def mark(record: ConsumerRecord) -> Mark:
    return TopicPartition(record.topic, record.partition), record.offset, record.leader_epoch


@dataclass
class Log:
    """One partition."""

    records: list[ConsumerRecord] = field(default_factory=list)
    end: int = 0
    epoch: int = 0
    epoch_ends: dict[int, int] = field(default_factory=dict)
    """The end offsets of former epochs."""

    def cut(self, offset: int) -> None:
        """A leader without the last records was elected."""
        self.records = [record for record in self.records if record.offset < offset]
        for epoch, end in list(self.epoch_ends.items()):
            self.epoch_ends[epoch] = min(end, offset)
        self.epoch_ends[self.epoch] = offset
        self.epoch += 1
        self.end = offset

    def before(self, record: ConsumerRecord) -> list[ConsumerRecord]:
        """The records before one; none if an election has removed that one."""
        at = bisect_left(self.records, record.offset, key=lambda each: each.offset)
        there = at < len(self.records) and self.records[at] is record
        return self.records[:at] if there else []

    def validated(self, position: OffsetAndMetadata) -> int:
        """The offset at which a consumer with this position continues (KIP-320)."""
        known = self.epoch_ends.get(position.leader_epoch, self.end)
        return min(position.offset, known, self.end)


class Process:
    """One program: a core, and its running handlers."""

    def __init__(self, rules: Rules) -> None:
        self.core = ConcurrentCore(rules)
        self.running: list[Job] = []
        self.burying: list[Job] = []
        self.places: dict[TopicPartition, OffsetAndMetadata] = {}
        self.paused: set[TopicPartition] = set()
        self.reported: dict[TopicPartition, set[Mark]] = {}
        """The records that this owner knows are done, or has done."""


class World:
    """See above."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = Random(seed)
        self.now = 0
        self.lives = 0
        self.repeats = 0
        orders: list[Order] = ["key", "key", "key", "partition", "unordered"]
        order = rng.choice(orders)
        self.rules = Rules(
            order=order,
            concurrency=rng.choice([1, 3, 10]),
            max_buffered=rng.choice([16, 64, 500]),
            retry=Retry(max_attempts=rng.choice([2, 4]), delay_ms=rng.choice([0, 20]), max_delay_ms=200),
            dead_letters=True,
            metadata_limit=rng.choice([0, 40, 44, 48, 60, 100, 4096]),
        )
        self.keys = rng.choice([1, 5, 50])
        self.has_gaps = rng.random() < 0.4
        self.cuts = rng.random() < 0.3
        self.fails = rng.choice([0.0, 0.1, 0.4])
        self.partitions = [TopicPartition("t", number) for number in range(rng.choice([1, 2, 3]))]
        self.logs = {partition: Log() for partition in self.partitions}
        self.committed: dict[TopicPartition, OffsetAndMetadata] = {}
        self.done: set[Mark] = set()
        self.processes = [Process(self.rules) for _ in range(2)]
        self.owner: dict[TopicPartition, Process] = {}

    # --- a life ------------------------------------------------------------------------------------------------------

    def run(self, steps: int) -> None:
        """Take this many steps, then end all faults, and check that nothing is left."""
        actions = [self.produce] * 2 + [self.poll] * 6 + [self.start] * 8 + [self.end_one] * 16
        actions += [self.commit] * 3 + [self.pass_time] * 3 + [self.bury] * 4 + [self.rebalance] * 1 + [self.lose] * 1
        self.produce()
        self.assign_all()
        for _ in range(steps):
            self.rng.choice(actions)()
            if self.rng.random() < 0.01:
                self.crash()
            if self.cuts and self.rng.random() < 0.01:
                self.cut()
            self.check_bounds()
        self.finish()

    def finish(self) -> None:
        """No more faults: everything is handled, and committed."""
        self.fails = 0.0
        self.assign_all()
        for _ in range(5_000):
            for action in (self.poll, self.start, self.end_one, self.bury, self.end_one, self.pass_time):
                action()
            # A record that a former owner has done may have been read again, failed, and wait for its next attempt.
            at_rest = not any(p.running or p.burying or p.core.counters()["waiting"] for p in self.processes)
            if at_rest and self.is_done():
                break
        assert self.is_done(), [record for log in self.logs.values() for record in log.records if not self.was(record)]
        for partition, process in self.owner.items():
            log, place = self.logs[partition], process.places[partition]
            process.core.move_to({partition: log.end})
            offsets = process.core.to_commit([partition])
            self.committed |= offsets
            # Otherwise the log was truncated and nothing has been written since: lost records may still be retried.
            if log.validated(place) == place.offset:
                assert all(not what.metadata for what in offsets.values())
                assert self.committed[partition].offset == log.end

    def is_done(self) -> bool:
        return all(self.was(record) for log in self.logs.values() for record in log.records)

    def was(self, record: ConsumerRecord) -> bool:
        return mark(record) in self.done

    # --- what can happen ---------------------------------------------------------------------------------------------

    def produce(self) -> None:
        for partition, log in self.logs.items():
            if len(log.records) > 400:
                continue
            for _ in range(self.rng.randrange(30)):
                if self.has_gaps and self.rng.random() < 0.3:
                    log.end += self.rng.choice([1, 1, 2, 400])
                number = self.rng.randrange(self.keys + 1)
                key = b"%d" % number if number else None
                log.records.append(ConsumerRecord(*partition, log.end, 0, 0, key, b"", leader_epoch=log.epoch))
                log.end += 1

    def poll(self) -> None:
        process = self.rng.choice(self.processes)
        core = process.core
        mine = [p for p in self.partitions if self.owner.get(p) is process and p not in process.paused]
        if not mine:
            return
        partition = self.rng.choice(mine)
        log, place = self.logs[partition], process.places[partition]
        position = log.validated(place)
        found = [record for record in log.records if record.offset >= position][: core.poll_limit]
        if found:
            process.places[partition] = OffsetAndMetadata(found[-1].offset + 1, found[-1].leader_epoch)
            core.add({partition: found})
        self.flow(process)

    def flow(self, process: Process) -> None:
        pause, resume = process.core.flow()
        process.paused |= set(pause)
        process.paused -= set(resume)

    def start(self) -> None:
        process = self.rng.choice(self.processes)
        for _ in range(self.rng.randrange(1, 12)):
            job = process.core.start(self.now)
            if job is None:
                break
            self.check_start(process, job)
            process.running.append(job)
        if process.core.may_resume:
            self.flow(process)

    def end_one(self) -> None:
        process = self.rng.choice(self.processes)
        if not process.running:
            return
        job = process.running.pop(self.rng.randrange(len(process.running)))
        if self.rng.random() < self.fails:
            permanent = self.rng.random() < 0.1
            process.core.failed(job, HandlerFailure("Error", permanent=permanent), self.now)
        else:
            self.note_done(process, job)
            process.core.succeeded(job)
        process.burying += process.core.take_dead_letters()

    def bury(self) -> None:
        process = self.rng.choice(self.processes)
        if process.burying:
            job = process.burying.pop(self.rng.randrange(len(process.burying)))
            self.note_done(process, job)
            process.core.buried(job)

    def pass_time(self) -> None:
        self.now += self.rng.randrange(60)

    def commit(self) -> None:
        process = self.rng.choice(self.processes)
        self.move(process)
        offsets = process.core.to_commit()
        self.check_commit(process, offsets)
        fate = self.rng.choice(["good", "good", "not reported", "lost"])
        if fate != "lost":
            self.committed |= offsets
        if fate == "good":
            process.core.committed(offsets)

    def move(self, process: Process) -> None:
        """The consumer's positions, as the engine reports them before it commits."""
        if self.rng.random() < 0.5:
            process.core.move_to({p: self.logs[p].validated(place) for p, place in process.places.items()})

    def rebalance(self) -> None:
        """Some partitions are revoked normally, then all without an owner are assigned."""
        for process in self.processes:
            mine = [p for p in self.partitions if self.owner.get(p) is process and self.rng.random() < 0.5]
            process.core.close(mine)
            for job in list(process.running):
                if self.rng.random() < 0.5:
                    process.running.remove(job)
                    self.note_done(process, job)
                    process.core.succeeded(job)
                elif self.rng.random() < 0.3 and job.progress.partition in mine:
                    process.running.remove(job)
                    process.core.cancelled(job)
            offsets = process.core.to_commit(mine)
            self.check_commit(process, offsets)
            if self.rng.random() < 0.8:
                self.committed |= offsets
            self.give_up(process, mine)
        self.assign_all()

    def lose(self) -> None:
        """A member was expelled, and learns of it."""
        if self.rng.random() < 0.3:
            process = self.rng.choice(self.processes)
            self.give_up(process, [p for p in self.partitions if self.owner.get(p) is process])
            self.assign_all()

    def crash(self) -> None:
        self.lives += 1
        place = self.rng.randrange(2)
        dead = self.processes[place]
        self.processes[place] = Process(self.rules)
        self.owner = {p: owner for p, owner in self.owner.items() if owner is not dead}
        self.assign_all()

    def cut(self) -> None:
        log = self.logs[self.rng.choice(self.partitions)]
        log.cut(self.rng.randint(max(0, log.end - 40), log.end))

    def give_up(self, process: Process, partitions: list[TopicPartition]) -> None:
        process.core.give_up(partitions)
        for partition in partitions:
            del self.owner[partition], process.places[partition], process.reported[partition]
            process.paused.discard(partition)

    def assign_all(self) -> None:
        for partition in self.partitions:
            if partition not in self.owner:
                process = self.owner[partition] = self.rng.choice(self.processes)
                committed = self.committed.get(partition)
                process.places[partition] = committed or OffsetAndMetadata(0)
                process.core.assign(partition, committed)
                process.reported[partition] = self.reported(partition, committed)

    # --- checks ------------------------------------------------------------------------------------------------------

    def reported(self, partition: TopicPartition, committed: OffsetAndMetadata | None) -> set[Mark]:
        """The records of the log that a commit reports as done, if no election has removed them since."""
        if committed is None:
            return set()
        log, left = self.logs[partition], decode(partition, committed.offset, committed.metadata)
        if log.validated(committed) < committed.offset:
            return set()
        end = committed.offset if left is None else left.end
        holes = set() if left is None else set(left.holes)
        reported = set()
        for record in log.records:
            new = left is not None and record.offset >= committed.offset and record.leader_epoch > left.epoch
            if record.offset >= end or new:
                break
            if record.offset not in holes:
                reported.add(mark(record))
        return reported

    def note_done(self, process: Process, job: Job) -> None:
        self.repeats += mark(job.record) in self.done
        self.done.add(mark(job.record))
        if not job.progress.over:
            process.reported[job.progress.partition].add(mark(job.record))

    def lane(self, record: ConsumerRecord) -> object:
        return {"key": record.key, "partition": "", "unordered": None}[str(self.rules.order)]

    def check_start(self, process: Process, job: Job) -> None:
        record, partition = job.record, job.progress.partition
        assert self.owner[partition] is process, f"{record} is started by a process that has given it up"
        assert mark(record) not in process.reported[partition], f"{record} is done, and its owner knew it"
        lane = self.lane(record)
        if lane is None:
            return
        for other in process.running + process.burying:
            same = other.progress.partition == partition and self.lane(other.record) == lane
            assert not same, f"{record} is started while {other.record} is under way"
        earlier = self.logs[partition].before(record)
        late = [each for each in earlier if self.lane(each) == lane and not self.was(each)]
        assert not late, f"{record} is started before {late[0]} is done"

    def check_commit(self, process: Process, offsets: dict[TopicPartition, OffsetAndMetadata]) -> None:
        for partition, what in offsets.items():
            assert len(what.metadata) <= self.rules.metadata_limit
            progress = process.core._progress[partition]
            log = self.logs[partition]
            if log.validated(process.places[partition]) < process.places[partition].offset:
                continue  # the log was truncated, and the process does not know it yet
            says = self.reported(partition, what)
            assert says <= self.done, f"{what} calls records done that are not: {sorted(says - self.done)}"
            if capacity(self.rules.metadata_limit).holes:
                present = set(map(mark, log.records))
                silent = (process.reported[partition] & present) - says
                assert not silent, f"{what} does not tell of {sorted(silent)} (left to {progress.left_end})"

    def check_bounds(self) -> None:
        for process in self.processes:
            core = process.core
            assert core.under_way == len(process.running) <= self.rules.concurrency
            held = [progress.held for progress in core._progress.values()]
            assert all(count >= 0 for count in held)
            # A partition that was the only one has filled its share before others came, whose shares are smaller.
            shares = sum(2 * max(self.rules.max_buffered // place, 16) for place in range(1, len(held) + 1))
            assert sum(held) <= shares + self.rules.concurrency
