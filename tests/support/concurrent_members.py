"""Members of a simulated group that handle many records at a time: real consumers, the real coordinator, virtual time.

The program of a member does what `client/concurrent/engine.py` does, with the clock instead of handlers. The checks of
`tests.simulator` apply (what is committed was handled, none is left out, …), and these:

- order: when a handler starts, all earlier records of its key were handled, by whatever member
- a record is not started by a member that knows that it is done
- at the end everything was handled, more than once only if no commit could prevent that
"""

from __future__ import annotations

from functools import partial
from random import Random
from typing import Any

from muster.client.core.concurrent.core import ConcurrentCore
from muster.client.core.concurrent.encoding import decode
from muster.client.core.concurrent.rules import HandlerFailure, Retry, Rules
from muster.client.core.concurrent.work import Job
from muster.client.core.events import CallbackKind, RebalanceCallback
from muster.errors import MusterError
from muster.model import OffsetAndMetadata, TopicPartition
from tests.simulator import Habits, InvariantError, SimCluster, SimMember
from tests.simulator.member import Program, Wait
from tests.simulator.network import BOTH_WAYS
from tests.simulator.programs import Application

DRAIN_MS = 3_000
COMMIT_MS = 500
SESSION_TIMEOUT_MS = 6_000


class World:
    """A group, and what happened to every record."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = Random(seed)
        self.topics = {"flights": rng.choice([1, 3, 5])}
        self.cluster = SimCluster(seed, topics=self.topics, nodes=3, slow=rng.choice([0, 0, 5]))
        self.rules = Rules(
            order=rng.choice(["key", "key", "partition"]),
            concurrency=rng.choice([1, 4, 16]),
            max_buffered=rng.choice([16, 200]),
            retry=Retry(max_attempts=3, delay_ms=100, max_delay_ms=2_000),
            dead_letters=True,
            metadata_limit=rng.choice([0, 44, 200, 4096]),
        )
        self.keys = rng.choice([1, 7, 40])
        self.fails = rng.choice([0, 5])
        self.assignor = rng.choice(["range", "cooperative-sticky"])
        self.handled: dict[TopicPartition, set[int]] = {}
        self.repeats = self.reported_late = 0
        self.faults: list[str] = []
        self._count = 0

    # --- a life ------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Half a minute of faults; then everything is repaired, and every record must be handled."""
        cluster, rng = self.cluster, self.rng
        for _ in range(rng.choice([1, 2, 3])):
            self.add_member()
        for _ in range(12):
            self.produce()
            cluster.run(rng.randrange(200, 4_000))
            rng.choice([self.crash, self.crash, self.close, self.add_member, self.freeze, self.cut, self.kill_node])()
        for node in cluster.brokers.node_ids:
            cluster.brokers.start(node)
        cluster.brokers.take_over()
        cluster.heal()
        for member in cluster.alive:
            member.thaw()
        if all(member.is_closing for member in cluster.alive):
            self.add_member()
        # A member that was cut off still counts as one, but its session may expire before it has connected again.
        cluster.run(SESSION_TIMEOUT_MS)
        cluster.settle(180_000, quiet_ms=1_000)
        cluster.run_until(lambda: cluster.lag() == 0, 300_000)
        for partition in cluster.partitions():
            assert len(self.handled.get(partition, ())) == cluster.end_offset(partition)

    def add_member(self) -> None:
        self._count += 1
        if len(self.cluster.alive) < 5:
            settings: dict[str, Any] = {
                "group_id": "group",
                "auto_offset_reset": "earliest",
                "partition_assignment_strategy": self.assignor,
                "session_timeout_ms": SESSION_TIMEOUT_MS,
                "heartbeat_interval_ms": 1_000,
                "max_poll_interval_ms": 20_000,
            }
            name = f"c{self._count}"
            member = SimMember(
                self.cluster,
                name,
                settings,
                fetch=True,
                habits=Habits(commit="sync"),
                pattern=None,
                topics=list(self.topics),
                rng=Random(self.rng.getrandbits(64)),
                program=lambda member: ManyAtATime(member, self).run(),
            )
            self.cluster.members.append(member)

    def produce(self) -> None:
        for topic, count in self.topics.items():
            for number in range(count):
                if self.rng.randrange(3):
                    self.cluster.produce(topic, number, self.rng.randrange(1, 80))

    def _some(self) -> SimMember | None:
        alive = [member for member in self.cluster.alive if not member.is_closing]
        return self.rng.choice(alive) if alive else None

    def crash(self) -> None:
        if member := self._some():
            self.faults.append("crash")
            member.crash()
        if not self.cluster.alive or self.rng.randrange(2):
            self.add_member()

    def close(self) -> None:
        if len(self.cluster.alive) > 1 and (member := self._some()):
            self.faults.append("close")
            member.close()

    def freeze(self) -> None:
        if member := self._some():
            self.faults.append("freeze")
            member.freeze()
            self.cluster.clock.call_later(self.rng.choice([500, 9_000]), member.thaw)

    def cut(self) -> None:
        if member := self._some():
            self.faults.append("cut")
            self.cluster.cut(member, None, BOTH_WAYS)
            self.cluster.clock.call_later(self.rng.choice([500, 9_000]), self.cluster.heal, member)

    def kill_node(self) -> None:
        node = self.rng.choice(self.cluster.brokers.node_ids)
        if sum(map(self.cluster.brokers.is_up, self.cluster.brokers.node_ids)) > 2:
            self.faults.append("kill")
            self.cluster.brokers.kill(node)
            self.cluster.clock.call_later(1_000, self.cluster.brokers.take_over)
            self.cluster.clock.call_later(3_000, self.cluster.brokers.start, node)

    # --- records -----------------------------------------------------------------------------------------------------

    def key(self, offset: int) -> int:
        return offset * 7919 % 104_729 % self.keys

    def check_start(self, partition: TopicPartition, offset: int) -> None:
        done = self.handled.get(partition, set())
        by_key = self.rules.order == "key"
        late = [o for o in range(offset) if o not in done and (not by_key or self.key(o) == self.key(offset))]
        if late:
            raise InvariantError(f"{partition}: {offset} is started before {late[0]} of its key is done")

    def done(self, partition: TopicPartition, offset: int) -> None:
        handled = self.handled.setdefault(partition, set())
        self.repeats += offset in handled
        handled.add(offset)


class ManyAtATime(Application):
    """A member's program: replaces `Engine`."""

    def __init__(self, member: SimMember, world: World) -> None:
        super().__init__(member)
        self.world = world
        self.many = ConcurrentCore(world.rules)
        self.reported: dict[TopicPartition, set[int]] = {}
        self.commit_at = self.clock.now + COMMIT_MS
        self.committing = False

    def run(self) -> Program:
        """The program."""
        while not self.member.is_closing:
            yield from self._poll()
            self._commit_if_due()
        yield from self._hand_over(tuple(self.many.partitions))
        yield from self.say_goodbye()

    def _poll(self) -> Program:
        core, member = self.core, self.member
        deadline = min(self.clock.now + 1_000, max(self.commit_at, self.clock.now + 1))
        core.enter_poll(self.clock.now)
        while not member.is_closing:
            member.poll_cores()
            if core.events:
                yield from self.handle_events()
                continue
            if self._collect() or self.clock.now >= deadline:
                break
            yield Wait(deadline, lambda: bool(core.events) or core.has_records or member.is_closing)
        core.leave_poll()

    def _collect(self) -> bool:
        found = self.core.collect(self.many.poll_limit)
        for partition, records in found.items():
            behind = self.core.subscription.state(partition).position
            self.offsets.handed_out(self.member, partition, records[0].offset, behind)
            for record in records:
                record.key = b"%d" % self.world.key(record.offset)
        self.many.add(found)
        self._pump()
        self._flow()
        return bool(found)

    def _flow(self) -> None:
        pause, resume = self.many.flow()
        mine = set(self.core.subscription.assignment())
        self.core.subscription.pause([partition for partition in pause if partition in mine])
        self.core.subscription.resume([partition for partition in resume if partition in mine])

    # --- handlers ----------------------------------------------------------------------------------------------------

    def _pump(self) -> None:
        while (job := self.many.start(self.clock.now)) is not None:
            partition, offset = job.progress.partition, job.record.offset
            if offset in self.reported[partition]:
                raise InvariantError(f"{self.member.name} knew that {offset} of {partition} is done")
            self.world.check_start(partition, offset)
            self.clock.call_later(self.member.rng.choice([1, 20, 20, 300]), self._end, job)
        for job in self.many.take_dead_letters():
            self.clock.call_later(30, self._bury, job)
        if self.many.may_resume:
            self._flow()
            self.member.wakeup()
        due = self.many.next_retry()
        if due is not None:
            self.clock.call_at(due, self._again)

    def _again(self) -> None:
        if self._is_up(self._again):
            self._pump()

    def _is_up(self, again: Any) -> bool:
        """Whether the process runs; if it is suspended, the call is repeated later."""
        if self.member.is_alive and self.member.is_frozen:
            self.clock.call_later(100, again)
        return self.member.is_alive and not self.member.is_frozen

    def _end(self, job: Job) -> None:
        if not self._is_up(partial(self._end, job)):
            return
        if self.world.fails and not self.member.rng.randrange(self.world.fails):
            self.many.failed(job, HandlerFailure("ValueError"), self.clock.now)
        else:
            self._note_done(job)
            self.many.succeeded(job)
        self._pump()
        self.member.wakeup()

    def _bury(self, job: Job) -> None:
        if self._is_up(partial(self._bury, job)):
            self._note_done(job)
            self.many.buried(job)
            self._pump()
            self.member.wakeup()

    def _note_done(self, job: Job) -> None:
        partition, offset = job.progress.partition, job.record.offset
        self.world.done(partition, offset)
        self.offsets.handled(partition, [offset])
        if not job.is_void:
            self.reported[partition].add(offset)

    # --- committing, and giving partitions up ------------------------------------------------------------------------

    def _commit_if_due(self) -> None:
        if self.clock.now < self.commit_at or self.committing:
            return
        self.commit_at = self.clock.now + COMMIT_MS
        offsets = self.many.to_commit()
        if offsets:
            self.committing = True
            self.core.commit(offsets, partial(self._committed, offsets), until=self.clock.now + 10_000)

    def _committed(self, offsets: dict[TopicPartition, OffsetAndMetadata], error: MusterError | None, now: int) -> None:
        self.committing = False
        if error is None:
            self.many.committed(offsets)

    def _tell_listener(self, event: RebalanceCallback) -> Program:
        partitions = event.partitions
        if event.kind is CallbackKind.ASSIGNED:
            self.member.invariants.assigned(self.member, partitions)
            yield from self._begin(partitions)
        elif event.kind is CallbackKind.LOST:
            self.many.give_up(partitions)
            self.give_up(partitions, in_good_order=False)
        else:
            yield from self._hand_over(partitions)
            self.give_up(partitions, in_good_order=False)
        self.core.callback_done(event.token, self.clock.now)

    def _begin(self, partitions: tuple[TopicPartition, ...]) -> Program:
        found: list[Any] = []
        self.core.fetch_committed(partitions, lambda got, _now: found.append(got), until=self.clock.now + 5_000)
        yield Wait(self.clock.now + 6_000, lambda: bool(found))
        committed = found[0] if found and isinstance(found[0], dict) else {}
        for partition in partitions:
            known = committed.get(partition)
            self.many.assign(partition, known)
            self.reported[partition] = set()
            if known is not None:
                left = decode(partition, known.offset, known.metadata)
                self.reported[partition] = set(range(known.offset))
                if left is not None:
                    self.reported[partition] |= set(range(known.offset, left.end)) - set(left.holes)
                    self.world.reported_late += len(self.reported[partition]) - known.offset

    def _hand_over(self, partitions: tuple[TopicPartition, ...]) -> Program:
        self.many.close(partitions)
        yield Wait(self.clock.now + DRAIN_MS, lambda: not self.many.is_waited_for(partitions))
        offsets = self.many.to_commit(partitions)
        outcome: list[MusterError | None] = []
        yield from self.commit_sync(offsets, 2_000, outcome)
        self.many.give_up(partitions)
