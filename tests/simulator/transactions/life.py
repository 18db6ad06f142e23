"""One life of a broker with transactions, from a seed: producers of several transactional ids, some of them more than
one process at a time, an application that reads, processes and writes, readers of committed records, and faults. A
process has muster's own producer (`client`), or is a script of requests (`producers`), which does things that no client
does.

Faults of the broker: it dies at a write (before, during, or after it), loses power, is suspended, finds its disk full,
has its time of day set. Faults of the network: requests and answers are lost; those of producers with an epoch for each
transaction also come late, twice, or again at any time, as do markers. (A producer without that cannot distinguish a
late request of its own from one of its next transaction, which is why KIP-890 was made.)
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from muster.coordinator.transactions.effects import TransactionEffects
from muster.errors import ErrorCode
from muster.model import TopicPartition
from muster.protocol import messages as m
from muster.protocol.records.record_batch import BatchBuilder
from tests.simulator.checks import InvariantError
from tests.simulator.transactions import checks
from tests.simulator.transactions.befalls import Befalls
from tests.simulator.transactions.client import NEVER_MS, ClientProducer
from tests.simulator.transactions.copies import Copies
from tests.simulator.transactions.members import COPIERS, SOURCE, Member
from tests.simulator.transactions.node import Node, times
from tests.simulator.transactions.plan import Plan, plan_of
from tests.simulator.transactions.producers import Abortable, Fatal, Producer
from tests.simulator.transactions.world import Disconnected, World

OUT, IN = "out", "in"
PARTITIONS = 3
INPUTS = 60
GROUP, SIDE_GROUP = "g", "h"
IDS = ("a", "b", "p")
SOURCES = 3
AGAIN = (
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.KAFKA_STORAGE_ERROR,
)
"""The errors that a reader gets for a partition that is not served at the moment."""
LAST_EPOCHS = 32_760
SETTLED_MS = 12_000


class Life:
    """One life."""

    def __init__(self, seed: int, root: Path) -> None:
        self.rng = Random(seed)
        self.plan = plan_of(self.rng)
        settings: dict[str, object] = {"fsync": self.plan.fsync}
        if self.plan.is_cluster:
            settings["group.coordinator.store"] = self.plan.store
        self.world = World(root, self.rng, self.plan.brokers, settings)
        self.world.is_lasting = not (self.plan.loses or self.plan.clock_steps)
        self.watch = checks.Watch(self.world)
        self.befalls = Befalls(self.world, self.plan)
        self.given: dict[TopicPartition, list[tuple[int, str]]] = {}
        self.copies = Copies(self.world)
        self.is_over = False
        """Whether no new transaction may be begun."""
        self.clients: list[ClientProducer] = []
        self.members: list[Member] = []
        self._versions: dict[str, bool] = {}
        """Whether processes of a transactional id are clients of `transaction.version` 2, if several run at once: in
        Kafka, too, the abort of one that an older client has fenced may count as a repetition of that client's last
        abort, and is answered with its epoch, which both then have."""
        self._is_fed = False
        self._are_members_over = False
        self._processes = 0
        self.world.after_turn = self.watch.look
        if self.plan.loses:
            self.befalls.before_cut = self.watch.forget
        for node in self.world.nodes.values():
            node.on_start = self._started

    # ---------------------------------------------------------------------------------------------------- getting ready

    def _started(self, node: Node) -> None:
        assert node.broker is not None
        writer = node.broker.transactions.writer
        real = writer.write

        def write(marker: Any, where: TopicPartition, done: Any) -> None:
            if marker.transaction_version >= 2:
                self.befalls.markers.append((marker, where))
            real(marker, where, done)

        writer.write = write  # type: ignore[method-assign]
        self.world.tell(f"{node} has started")
        self.watch.look_closely()

    async def prepare(self) -> None:
        """Create topics and inputs."""
        topics = [
            m.CreatableTopic(IN, 1, 1),
            m.CreatableTopic(OUT, PARTITIONS, 1),
            m.CreatableTopic(SOURCE, SOURCES, 1),
        ]
        await self._ask(m.CreateTopicsRequest(topics, 10_000), 7)
        await self._fill(IN, 0, INPUTS)
        for name in IDS:
            producer = Producer(self.world, name, name, tv2=False, timeout_ms=1_000)
            await producer.begin()
        if self.plan.exhausted:
            for node in self.world.nodes.values():
                node.inside(partial(self._exhaust, node))
        self.world.fences.clear()

    async def _ask(self, request: Any, version: int) -> Any:
        while True:
            try:
                return await self.world.ask("admin", request, version)
            except Disconnected:
                await self.world.sleep(50)

    async def _fill(self, topic: str, partition: int, count: int) -> None:
        """Write records without a transaction."""
        batch = BatchBuilder()
        for i in range(count):
            batch.append(1_600_000_000_000, None, b"%d" % i)
        data = m.TopicProduceData(topic, b"", [m.PartitionProduceData(partition, batch.build())])
        while True:
            answer = await self._ask(m.ProduceRequest(None, -1, 1_000, [data]), 9)
            if not answer.responses[0].partition_responses[0].error_code:
                return
            await self.world.sleep(50)

    def _exhaust(self, node: Node) -> None:
        """Leave few epochs to the ids: written as the coordinator writes it."""
        broker = node.broker
        assert broker is not None
        runtime = broker.transactions.runtime
        for served in list(runtime._served.values()):
            effects = TransactionEffects()
            for name, entry in served.shard.entries.items():
                served.shard._write(name, entry._replace(producer_epoch=LAST_EPOCHS), effects)
            runtime._settle(served, 0, lambda effects=effects: effects)

    # --------------------------------------------------------------------------------------------------------- programs

    def _producer(self, name: str) -> Producer | ClientProducer:
        self._processes += 1
        rng, plan = self.rng, self.plan
        is_new = self._is_v2(name)
        process = f"{name}.{self._processes}"
        if name == "p" and plan.hands_over:
            name = f"p{self._processes % 3}"
        timeout_ms = rng.choice((1_000, 3_000, 6_000))
        if rng.random() >= plan.real:
            return Producer(self.world, name, process, tv2=is_new, timeout_ms=timeout_ms)
        return self._client(name, process, is_new, timeout_ms)

    def _is_v2(self, name: str) -> bool:
        return self._versions.get(name, self.rng.random() < self.plan.tv2)

    def _client(self, name: str, process: str, is_new: bool, timeout_ms: int) -> ClientProducer:
        """Sometimes brokers begin to report `transaction.version` 2 during its life."""
        rng, v2_from_ms = self.rng, NEVER_MS
        if is_new:
            is_late = name not in self._versions and rng.random() < 0.2
            v2_from_ms = self.world.now + (rng.randint(0, self.plan.length_ms) if is_late else 0)
        client = ClientProducer(self.world, name, process, v2_from_ms=v2_from_ms, timeout_ms=timeout_ms)
        self.clients.append(client)
        return client

    def _commit_at_last(self) -> None:
        world = self.world
        world.begin(self._write_at_last())
        world.run(SETTLED_MS, lambda: world.is_idle)
        checks.check(world.is_idle, "everything works, but a producer does not end")
        world.run(SETTLED_MS)

    async def _write_at_last(self) -> None:
        """Everything works: transactions can be committed, even after one that was aborted because a batch was
        refused."""
        producer = self._client("a", "last", self._is_v2("a"), 6_000)
        producer.is_hasty = False
        try:
            await producer.begin()
            for fails in (False, False, True, False):
                producer.begin_transaction()
                await self._write(producer)
                if fails:
                    await self._be_refused(producer)
                await producer.end(commit=not fails)
        except (Abortable, Fatal) as error:
            raise InvariantError(f"everything works, but {producer.process} could not write: {error}") from error
        await producer.leave()

    async def live(self, name: str) -> None:
        """Run one process after another with one transactional id."""
        while not self.is_over:
            await self._life_of(name)
            await self.world.sleep(self.rng.choice((0, self.rng.randint(0, 300))))

    async def _life_of(self, name: str) -> None:
        producer = self._producer(name)
        try:
            if name == "p" and self.plan.hands_over:
                producer.position = await self._committed(GROUP, producer.process)
            await producer.begin()
            for _ in range(self.rng.randint(1, 8)):
                if self.is_over:
                    break
                if not await self._transaction(producer, name):
                    break
                await self.world.sleep(self.rng.randint(0, 60))
        except Fatal as error:
            self.world.tell(f"{producer.process} ends: {error}")
        await producer.leave()

    async def _transaction(self, producer: Producer | ClientProducer, name: str) -> bool:
        """Run one transaction. Returns False if the process dies in it."""
        attempt = producer.begin_transaction()
        try:
            if name == "p":
                if not await self._process(producer, attempt):
                    return not self.is_over
            else:
                await self._write(producer)
            if self.rng.random() < 0.08:
                self.world.tell(f"{producer.process} dies amid {attempt.name}")
                producer.kill()
                return False
            if self.rng.random() < 0.08:
                self.world.tell(f"{producer.process} dies as it commits {attempt.name}")
                await producer.commit_and_die()
                return False
            if self.rng.random() < 0.1:
                await self.world.sleep(self.rng.randint(300, 4_000))
            if self.rng.random() < 0.15:
                await producer.abort()
            else:
                await producer.end(commit=True)
        except Abortable as error:
            self.world.tell(f"{attempt.name} has to abort: {error}")
            await producer.abort()
        return True

    async def _be_refused(self, producer: ClientProducer) -> None:
        await producer.flush()
        self.world.faults.refused = 1.0
        try:
            await producer.send(TopicPartition(OUT, 0), "refused")
            await producer.flush()
            await producer.end(commit=True)
        except Abortable:
            self.world.faults.refused = 0.0
        else:
            raise InvariantError("a record was refused, and the transaction is committed")

    async def _write(self, producer: Producer | ClientProducer) -> None:
        rng = self.rng
        for number in range(rng.randint(1, 4)):
            where = TopicPartition(OUT, rng.randrange(PARTITIONS))
            values = [f"{number}.{i}" for i in range(rng.choice((1, 1, 2, 5)))]
            await producer.send(where, *values)
            if rng.random() < 0.2:
                await self.world.sleep(rng.randint(0, 40))
        if rng.random() < 0.3:
            await producer.commit_offset(SIDE_GROUP, TopicPartition(IN, 0), rng.randint(0, INPUTS))

    async def _process(self, producer: Producer | ClientProducer, attempt: Any) -> bool:
        """Read some inputs from the group's committed offset on, and write them. Returns whether there were some."""
        at, producer.position = producer.position, None
        if at is None:
            at = await self._committed(GROUP, producer.process)
        attempt.inputs = list(range(at, min(at + self.rng.randint(1, 4), INPUTS)))
        if not attempt.inputs:
            return False
        for i in attempt.inputs:
            await producer.send(TopicPartition(OUT, self.rng.randrange(PARTITIONS)), f"input {i}")
        await producer.commit_offset(GROUP, TopicPartition(IN, 0), attempt.inputs[-1] + 1)
        return True

    async def _committed(self, group: str, by: str) -> int:
        """The group's offset, once it is stable."""
        for _ in range(1_000):
            found = await self._stable_offsets(group, IN, [0], by)
            if found and not found[0].error_code:
                return max(int(found[0].committed_offset), 0)
            await self.world.sleep(20)
        raise Fatal("the group's offset does not become stable")

    async def _stable_offsets(self, group: str, topic: str, indexes: list[int], by: str) -> list[Any]:
        """The partitions of one answer; empty if the group cannot be asked now."""
        asked = m.OffsetFetchRequestGroup(group, topics=[m.OffsetFetchRequestTopics(topic, partition_indexes=indexes)])
        try:
            answer = await self.world.ask(by, m.OffsetFetchRequest(groups=[asked], require_stable=True), 8)
        except Disconnected:
            return []
        [found] = answer.groups
        return [] if found.error_code else list(found.topics[0].partitions)

    # ---------------------------------------------------------------------------------------------------- the copiers

    def _start_member(self, number: int) -> None:
        """A process is a member of the group; when it has ended, another one is started."""
        if not self._are_members_over:
            machine = self.world.begin(self._lead_member(number))
            machine.name = f"the process of m{number}"
            self.befalls.clients[machine] = partial(self._start_member, number)

    async def _lead_member(self, number: int) -> None:
        self._processes += 1
        plan, name, process = self.plan, f"m{number}", f"m{number}.{self._processes}"
        timeout_ms = self.rng.choice((1_000, 3_000, 6_000))
        self._versions.setdefault(name, self.rng.random() < plan.tv2)
        producer = self._client(name, process, self._is_v2(name), timeout_ms)
        out = [TopicPartition(OUT, partition) for partition in range(PARTITIONS)]
        settings = {
            "group_instance_id": name if plan.is_static else None,
            "partition_assignment_strategy": plan.assignor,
        }
        member = Member(self.world, process, producer, out, **settings)
        member.is_leaving = self._are_members_over
        self.members.append(member)
        await member.live()
        machine = asyncio.get_running_loop()
        if self.befalls.clients.pop(machine, None) is not None:  # type: ignore[call-overload]
            self.world.later(self.rng.randint(0, 300), self._start_member, number)

    async def feed(self) -> None:
        """Write the records that are copied."""
        while not self.is_over:
            await self._fill(SOURCE, self.rng.randrange(SOURCES), self.rng.randint(1, 4))
            await self.world.sleep(self.rng.randint(50, 500))
        self._is_fed = True

    async def compare(self) -> None:
        """Look up, at any moment, the group's offsets, and the existing copies."""
        while True:
            visible = self.copies.visible()
            offsets = await self._offsets_of_copiers("watcher")
            if not self.plan.loses:
                self.copies.compare(visible, offsets, PARTITIONS)
            await self.world.sleep(300 if self.is_over else self.rng.choice((1, 20, 100)))

    async def _offsets_of_copiers(self, by: str) -> dict[int, int]:
        """The group's stable offsets, for the partitions that have one."""
        while True:
            found = await self._stable_offsets(COPIERS, SOURCE, list(range(SOURCES)), by)
            if found:
                return {
                    each.partition_index: max(int(each.committed_offset), 0) for each in found if not each.error_code
                }
            await self.world.sleep(20)

    async def _finish_copies(self) -> None:
        """When faults have ended, the group copies everything that is left; then its members leave."""
        until = self.world.now + 4 * SETTLED_MS
        while self.world.now < until:
            found, ends = await self._offsets_of_copiers("finish"), self._source_ends()
            if self._is_fed and found == ends and len(ends) == SOURCES:
                self.world.tell(f"{COPIERS} is at the end, {ends}")
                break
            await self.world.sleep(200)
        else:
            checks.check(self.plan.loses, f"the group hangs at {found}, with records up to {ends}")
        self._are_members_over = True
        for member in self.members:
            member.is_leaving = True

    def _source_ends(self) -> dict[int, int]:
        return {
            log.topic_partition.partition: log.log_end_offset
            for log in self.world.logs
            if log.topic_partition.topic == SOURCE
        }

    # ---------------------------------------------------------------------------------------------- independent clients

    async def meddle(self) -> None:
        """Commits without transactions, to another group."""
        while not self.is_over:
            await self.world.sleep(self.rng.randint(100, 1_500))
            where = m.OffsetCommitRequestPartition(0, self.rng.randint(0, INPUTS), -1, "plain")
            topics = [m.OffsetCommitRequestTopic(IN, partitions=[where])]
            try:
                await self.world.ask("meddler", m.OffsetCommitRequest(SIDE_GROUP, topics=topics), 8)
            except Disconnected:
                continue

    async def read(self, partition: int) -> None:
        """Read committed records, in fetches of any size."""
        where, at = TopicPartition(OUT, partition), 0
        given = self.given[where] = []
        while True:
            asked = m.FetchPartition(partition, fetch_offset=at, partition_max_bytes=self.rng.choice((1, 200, 1_000)))
            topics = [m.FetchTopic(OUT, partitions=[asked])]
            request = m.FetchRequest(max_wait_ms=self.rng.choice((0, 100, 500)), min_bytes=1, max_bytes=10_000)
            request.isolation_level, request.topics, request.session_id, request.session_epoch = 1, topics, 0, -1
            try:
                answer = await self.world.ask(f"reader-{partition}", request, 11)
            except Disconnected:
                await self.world.sleep(20)
                continue
            [found] = answer.responses[0].partitions
            if found.error_code in AGAIN:
                await self.world.sleep(20)
                continue
            if found.error_code and self.plan.loses:
                return  # the records that it had read are gone
            checks.check(not found.error_code, f"a reader is refused with {found.error_code!r} at {at} of {where}")
            aborted = [(one.producer_id, one.first_offset) for one in found.aborted_transactions]
            data = b"" if found.records is None else bytes(found.records)
            rows, at = checks.committed_rows(data, aborted, at)
            given += rows
            if not self.plan.loses:
                self.copies.given(where, rows, at)
            await self.world.sleep(300 if self.is_over else self.rng.choice((5, 30, 200)))

    # ------------------------------------------------------------------------------------------------------ from a seed

    def lead(self) -> None:
        """Live the life, and check it."""
        world, plan = self.world, self.plan
        for node in world.nodes.values():
            node.start()
        world.begin(self.prepare())
        world.run(20_000, lambda: world.is_idle)
        checks.check(world.is_idle, "nothing went wrong, but the topics do not exist")
        world.faults = plan.faults
        for node in world.nodes.values():
            node.work_ms = self.rng.choice((0, 5, 40))
        self._begin_programs()
        self.befalls.begin()
        world.run(plan.length_ms)
        self.is_over = True
        self.befalls.end()
        if plan.members:
            world.begin(self._finish_copies())
        world.run(5 * SETTLED_MS, lambda: world.is_idle)
        checks.check(world.is_idle, "the clients do not end")
        world.run(SETTLED_MS)
        if not plan.loses:
            self._commit_at_last()
        checks.check_settled(world)
        self.watch.look_closely()
        if not plan.loses or not plan.cuts:
            self._check_past()

    def _begin_programs(self) -> None:
        world, plan = self.world, self.plan
        for name in IDS:
            together = 1 if name == "p" and plan.hands_over else self.rng.choice((1, 1, 2))
            if together > 1:
                self._versions[name] = self.rng.random() < plan.tv2
            for _ in range(together):
                machine = world.begin(self.live(name))
                machine.name = f"the process of {name}"
                self.befalls.clients[machine] = None
        for partition in range(PARTITIONS):
            world.begin(self.read(partition), for_ever=True)
        world.begin(self.meddle())
        if plan.members:
            for number in range(plan.members):
                self._start_member(number)
            world.begin(self.feed())
            world.begin(self.compare(), for_ever=True)

    def _check_past(self) -> None:
        world = self.world
        truth = checks.truth_of(world.logs)
        fates = checks.check_truth(world, truth, has_offsets=self.plan.store == "log")
        checks.check_readers(world, self.given, truth)
        found: list[int] = []

        async def ask() -> None:
            found.append(await self._committed(GROUP, "end"))

        world.begin(ask())
        world.run(10_000, lambda: world.is_idle)
        checks.check_processing(world, fates, found[0], GROUP)
        if self.plan.members:
            self.copies.check_all(truth, self._source_ends())


@dataclass
class Lived:
    """The events of a life."""

    plan: Plan
    story: list[str]
    attempts: int
    committed: int
    by_client: int
    """The attempts of muster's own producer."""
    requests: int


@contextmanager
def _quiet() -> Iterator[list[logging.LogRecord]]:
    """Do not show lines of the broker's log; those with exceptions are kept."""
    kept: list[logging.LogRecord] = []
    logger, handler = logging.getLogger("muster"), logging.Handler()
    handler.emit = lambda record: kept.append(record) if record.exc_info else None  # type: ignore[method-assign]
    before = logger.propagate, logger.level
    logger.propagate = False
    logger.setLevel(logging.ERROR)
    logger.addHandler(handler)
    try:
        yield kept
    finally:
        logger.removeHandler(handler)
        logger.propagate, level = before
        logger.setLevel(level)


def simulate_transactions(seed: int) -> Lived:
    """Simulate the life of a seed. Raises InvariantError."""
    root = Path(tempfile.mkdtemp(prefix="muster-life-", dir="/dev/shm"))
    life = Life(seed, root / "data")
    (root / "data").mkdir()
    try:
        with _quiet() as kept, times(life.world, lambda: life.world.running):
            try:
                life.lead()
            finally:
                life.world.end()
        if kept:
            raise InvariantError(f"the broker has raised {kept[0].getMessage()}: {kept[0].exc_info[1]!r}")  # type: ignore[index]
    except InvariantError as error:
        story = "\n".join(life.world.story[-400:])
        raise InvariantError(f"{error}\nseed {seed}, {life.plan}\n{story}") from error
    finally:
        shutil.rmtree(root, ignore_errors=True)
    attempts = life.world.attempts.values()
    return Lived(
        life.plan,
        life.world.story,
        len(attempts),
        sum(one.reported is True for one in attempts),
        sum(one.by_client for one in attempts),
        len(life.world.sent),
    )
