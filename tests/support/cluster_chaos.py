"""Brokers of a cluster that are killed, stopped, frozen and started again while clients write and read.

`draw` makes a schedule from a seed and `judge` finds in the facts what went wrong; neither does any I/O. `carry_out`
lets blocking and asyncio producers write numbered records, has a group of blocking and a group of asyncio consumers and
a reader of ranges (`client/plain`) read them, and does to the brokers what the schedule says, one after the other.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any, Generic, TypeVar

from confluent_kafka import Consumer as OutsideConsumer
from confluent_kafka import TopicPartition as OutsidePartition

from muster import AsyncProducer, Producer, RebalanceListener
from muster.client.config import ClientConfig
from muster.client.plain.cluster import Cluster as PlainCluster
from muster.client.plain.cluster import disconnect
from muster.client.plain.fetch import FetchSettings, RangeReader
from muster.errors import KafkaConnectionError
from muster.model import RecordMetadata, TopicPartition
from muster.protocol.api import LATEST_TIMESTAMP
from tests.support.faces import FACES, PATIENCE_S, Cluster, until
from tests.support.peers import KafkaCluster

AWAY = ("kill", "term", "freeze")
"""kill -9, SIGTERM, SIGSTOP. A broker that was frozen for a long time still believes that it leads when it resumes."""


@dataclass(frozen=True, slots=True)
class Step:
    """One broker is down for `for_s`; the next one goes down `then_s` after it has come back."""

    do: str
    node: int
    for_s: float
    then_s: float


S = TypeVar("S")


@dataclass(frozen=True)
class Schedule(Generic[S]):
    """What one run does. The type of a step depends on what is shaken."""

    seed: int
    partitions: int
    request_timeout_ms: int
    assignor: str
    racks: bool
    steps: tuple[S, ...]


def draw(seed: int) -> Schedule[Step]:
    """The schedule of a seed: every broker is down at least once."""
    random = Random(seed)
    nodes = [*random.sample((1, 2, 3), 3), *(random.choice((1, 2, 3)) for _ in range(random.randint(0, 4)))]
    return Schedule(
        seed,
        random.choice((1, 3, 6)),
        random.choice((2_000, 5_000, 30_000)),
        random.choice(("range", "roundrobin", "sticky", "cooperative-sticky")),
        random.random() < 0.5,
        tuple(
            Step(random.choice(AWAY), node, round(random.uniform(0.3, 9), 1), round(random.choice((0, 2)), 1))
            for node in nodes
        ),
    )


# --- facts and what they mean ----------------------------------------------------------------------------------------

Row = tuple[int, str]
"""An offset and the value there."""


@dataclass
class Facts:
    """The result of a schedule. `log` is what the partitions contain at the end, read by another client.

    `acknowledged` has the offset of each value, -1 if the broker did not return it. `runs` are what a member of a group
    read from a partition between its assignment and its loss. `ranges` are what was read by range.
    """

    log: dict[TopicPartition, list[Row]]
    acknowledged: dict[str, RecordMetadata] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    runs: dict[str, list[tuple[TopicPartition, list[Row]]]] = field(default_factory=dict)
    ranges: list[tuple[TopicPartition, list[Row]]] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    with_epochs: bool = False
    """Whether the records that were read, and the log, have the leader epoch appended to each value."""

    def noted(self, value: str, epoch: int) -> str:
        """What is recorded for a value that is read."""
        return f"{value}@{epoch}" if self.with_epochs else value


def judge(facts: Facts) -> list[str]:
    """What is wrong; nothing if everything is fine."""
    return [*facts.errors, *_lost(facts), *_disordered(facts), *_misread(facts)]


def judge_unclean(facts: Facts, may_be_lost: set[str]) -> list[str]:
    """The errors after an election that lost some records, which may have been read and acknowledged before. What was
    read is compared with what the log has in the end: all of that, in its order.

    The facts have epochs because of this sequence of events: two records are written at 134 and 135, not acknowledged
    because the follower went down, read once it is no longer in sync, lost with the leader, and written again by their
    producer, which got no answer, at 134 and 135. The reader has gone back, as it must.
    """
    there = {row for rows in facts.log.values() for row in rows}
    values = {value for _, value in map(_without_epoch, there)}
    kept = {
        value: reported for value, reported in facts.acknowledged.items() if value in values or value not in may_be_lost
    }
    runs = {
        group: [(place, [_without_epoch(row) for row in rows if row in there]) for place, rows in found]
        for group, found in facts.runs.items()
    }
    log = {place: [*map(_without_epoch, rows)] for place, rows in facts.log.items()}
    return judge(Facts(log, kept, facts.failed, runs, errors=facts.errors))


def _without_epoch(row: Row) -> Row:
    return row[0], row[1].rpartition("@")[0]


def _lost(facts: Facts) -> Iterator[str]:
    at = {value: (place, offset) for place, rows in facts.log.items() for offset, value in rows}
    total = sum(map(len, facts.log.values()))
    if total != len(at):
        yield f"{total - len(at)} records were written twice"
    for value, reported in facts.acknowledged.items():
        found = at.get(value)
        if found is None:
            yield f"{value} was acknowledged at {reported.offset} and is lost"
        elif reported.offset >= 0 and found != (TopicPartition(reported.topic, reported.partition), reported.offset):
            yield f"{value} was acknowledged at {reported.offset} and is at {found}"
    for value, error in list(facts.failed.items())[:3]:
        yield f"{value} failed: {error}"


def _disordered(facts: Facts) -> Iterator[str]:
    for place, rows in facts.log.items():
        last: dict[str, int] = {}
        for offset, value in rows:
            writer, _, number = value.partition(":")
            if int(number) <= last.get(writer, -1):
                yield f"{value} is behind {writer}:{last[writer]} at {offset} of {place}"
            last[writer] = int(number)


def _misread(facts: Facts) -> Iterator[str]:
    for group, runs in facts.runs.items():
        seen = {value for _, rows in runs for _, value in rows}
        missing = [value for rows in facts.log.values() for _, value in rows if value not in seen]
        if missing:
            yield f"group {group} has not read {len(missing)} records, {missing[:3]}"
    for who, place, rows in [
        *((group, *run) for group, runs in facts.runs.items() for run in runs),
        *(("by range", *found) for found in facts.ranges),
    ]:
        offsets = [offset for offset, _ in facts.log[place]]
        if not rows:
            continue
        begin = next((at for at, offset in enumerate(offsets) if offset >= rows[0][0]), len(offsets))
        if facts.log[place][begin : begin + len(rows)] != rows:
            wrong = next(
                (at for at, row in enumerate(rows) if facts.log[place][begin + at : begin + at + 1] != [row]), 0
            )
            yield f"{who} read {rows[max(0, wrong - 1) : wrong + 2]} of {place}, which the log has otherwise"


# --- carrying out ----------------------------------------------------------------------------------------------------


class Worker:
    """A worker that runs in its own thread until it is stopped."""

    def __init__(self, facts: Facts, name: str) -> None:
        self.facts = facts
        self.name = name
        self.stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.work()
        except Exception as error:
            self.facts.errors.append(f"{self.name}: {type(error).__name__}: {error}")

    def work(self) -> None:
        """The work of the thread."""
        raise NotImplementedError

    def stop(self) -> None:
        """Make it stop, and wait until it has."""
        self.stopped.set()
        self._thread.join(PATIENCE_S)
        if self._thread.is_alive():
            self.facts.errors.append(f"{self.name} does not end")


class Writer(Worker):
    """Writes numbered records, to each partition in turn."""

    pause_s = 0.004

    def __init__(self, facts: Facts, name: str, topic: str, partitions: int, **settings: Any) -> None:
        self.topic, self.partitions, self.settings = topic, partitions, settings
        self.count = 0
        super().__init__(facts, name)

    def reported(self, value: str) -> Callable[[RecordMetadata | None, BaseException | None], None]:
        """Record the outcome of one record."""

        def on_delivery(metadata: RecordMetadata | None, error: BaseException | None) -> None:
            if metadata is not None:
                self.facts.acknowledged[value] = metadata
            else:
                self.facts.failed[value] = repr(error)

        return on_delivery

    def next(self) -> dict[str, Any]:
        """The next record, as arguments of `send`."""
        number, self.count = self.count, self.count + 1
        value = f"{self.name}:{number}"
        return {
            "topic": self.topic,
            "value": value.encode(),
            "partition": number % self.partitions,
            "on_delivery": self.reported(value),
        }

    def work(self) -> None:
        with Producer(self.settings) as producer:
            while not self.stopped.wait(self.pause_s):
                producer.send(**self.next())


class AsyncWriter(Writer):
    """The same with an AsyncProducer."""

    def work(self) -> None:
        async def write() -> None:
            async with AsyncProducer(self.settings) as producer:
                while not self.stopped.is_set():
                    await producer.send(**self.next())
                    await asyncio.sleep(self.pause_s)

        asyncio.run(write())


class Member(Worker, RebalanceListener):
    """One member of a group, which records what it reads."""

    def __init__(self, facts: Facts, name: str, face: str, topic: str, group: str, **settings: Any) -> None:
        self.face, self.topic, self.group, self.settings = face, topic, group, settings
        self.open: dict[TopicPartition, list[Row]] = {}
        self.runs = facts.runs.setdefault(group, [])
        super().__init__(facts, name)

    def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
        for partition in partitions:
            self.open.pop(partition, None)

    def work(self) -> None:
        consumer = FACES[self.face](**self.settings | {"group_id": self.group})
        try:
            consumer.subscribe([self.topic], listener=self)
            while not self.stopped.is_set():
                for partition, records in consumer.poll(200).items():
                    if partition not in self.open:
                        self.open[partition] = []
                        self.runs.append((partition, self.open[partition]))
                    self.open[partition] += [
                        (record.offset, self.facts.noted((record.value or b"").decode(), record.leader_epoch))
                        for record in records
                    ]
        finally:
            consumer.close(timeout_ms=20_000)


class Ranges(Worker):
    """Reads each partition to its end, repeatedly, as Spark's tasks do."""

    def __init__(self, facts: Facts, name: str, topic: str, partitions: int, config: ClientConfig) -> None:
        self.places = [TopicPartition(topic, number) for number in range(partitions)]
        self.config = config
        super().__init__(facts, name)

    def work(self) -> None:
        begun = dict.fromkeys(self.places, 0)
        planner = PlainCluster(self.config)
        settings = FetchSettings(self.config, columns=("value", "offset"))
        try:
            while not self.stopped.wait(0.1):
                try:
                    ends = planner.list_offsets(dict.fromkeys(self.places, LATEST_TIMESTAMP))
                except KafkaConnectionError:
                    continue  # it waits no longer than the request timeout, and an election may take longer
                for place, end in ends.items():
                    self.facts.ranges.append((place, self._read(RangeReader(settings, place, begun[place], end))))
                    begun[place] = end
        finally:
            planner.close()
            disconnect()

    def _read(self, reader: RangeReader) -> list[Row]:
        rows: list[Row] = []
        for batch in reader.batches():
            values = zip(batch.column("offset").to_pylist(), batch.column("value").to_pylist(), strict=True)
            rows += [(int(offset or 0), str(value or b"", "utf-8")) for offset, value in values]
        return rows


def carry_out(schedule: Schedule[S], bootstrap: str, topic: str, shake: Callable[[S], None]) -> Facts:
    """Carry out a schedule, each step by `shake`, and collect the facts."""
    facts = Facts({})
    timeouts = {"request_timeout_ms": schedule.request_timeout_ms, "bootstrap_servers": bootstrap}
    writing = {**timeouts, "delivery_timeout_ms": 300_000}
    reading = Cluster(bootstrap).settings(
        **timeouts, auto_commit_interval_ms=300, partition_assignment_strategy=schedule.assignor
    )
    with contextlib.ExitStack() as readers:
        for group, face in (("blocking", "sync"), ("asyncio", "async")):
            for number in (1, 2):
                rack = {"client_rack": f"r{number}"} if schedule.racks else {}
                name = f"{topic}-{group}"
                member = Member(facts, f"{name}-{number}", face, topic, name, **reading | rack)
                readers.callback(member.stop)
        ranges = Ranges(facts, "ranges", topic, schedule.partitions, ClientConfig.of(timeouts))
        readers.callback(ranges.stop)
        with contextlib.ExitStack() as writers:
            for number, kind in enumerate((Writer, AsyncWriter, Writer, AsyncWriter)):
                writers.callback(kind(facts, f"w{number}", topic, schedule.partitions, **writing).stop)
            time.sleep(1)
            for step in schedule.steps:
                shake(step)
        facts.log = read_by_another(facts, bootstrap, topic, schedule.partitions)
        wanted = {value for rows in facts.log.values() for _, value in rows}
        deadline = time.monotonic() + PATIENCE_S
        while (
            time.monotonic() < deadline
            and not facts.errors
            and not all(
                wanted <= {value for _, rows in list(runs) for _, value in list(rows)} for runs in facts.runs.values()
            )
        ):
            time.sleep(0.1)
    return facts


def shake_kafka(brokers: KafkaCluster, step: Step) -> None:
    """Carry out one step: a broker goes down, and comes back."""
    node = brokers.node(step.node)
    match step.do:
        case "kill":
            node.kill()
        case "term":
            node.stop()
        case "freeze":
            node.send(signal.SIGSTOP)
    time.sleep(step.for_s)
    if step.do == "freeze":
        node.send(signal.SIGCONT)
    else:
        node.start()
    time.sleep(step.then_s)


def read_by_another(facts: Facts, bootstrap: str, topic: str, partitions: int) -> dict[TopicPartition, list[Row]]:
    """The log of each partition, read by librdkafka."""
    settings = {"bootstrap.servers": bootstrap, "group.id": "none", "enable.auto.commit": False}
    consumer = OutsideConsumer(settings)
    log: dict[TopicPartition, list[Row]] = {}
    try:
        for number in range(partitions):
            outside = OutsidePartition(topic, number, 0)
            consumer.assign([outside])
            _, end = consumer.get_watermark_offsets(outside, PATIENCE_S)
            rows = log[TopicPartition(topic, number)] = []
            until(partial(_is_read, rows, end), partial(_read, facts, consumer, rows))
    finally:
        consumer.close()
    return log


def _is_read(rows: list[Row], end: int) -> bool:
    return end == 0 or (bool(rows) and rows[-1][0] == end - 1)


def _read(facts: Facts, consumer: OutsideConsumer, rows: list[Row]) -> None:
    for message in consumer.consume(500, 0.2):
        if not message.error():
            value, epoch = message.value() or b"", message.leader_epoch()
            rows.append((message.offset() or 0, facts.noted(value.decode(), -1 if epoch is None else epoch)))
