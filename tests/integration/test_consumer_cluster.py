"""Clients on a cluster of three Kafka brokers: reading from the nearest replica, brokers that die and freeze under
load, and elections that lose records.

`make test` runs a fixed schedule; `make soak SCHEDULES=20 ARGS="-k all_brokers_shaken"` draws that many. Run one again
with `MUSTER_FIRST_SEED=17 make soak SCHEDULES=1 ARGS="-k all_brokers_shaken"`.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
import uuid
from collections import defaultdict
from functools import partial
from typing import Any

import pytest
from confluent_kafka import Producer

from muster import Admin, Consumer, NewTopic
from muster.client.concurrent import AsyncConcurrentConsumer, ConcurrentConsumer
from muster.errors import KafkaError, LogTruncationError
from muster.model import ConsumerRecord, OffsetAndMetadata, TopicPartition
from tests.support import scale
from tests.support.cluster_chaos import (
    AsyncWriter,
    Facts,
    Member,
    Schedule,
    Step,
    Writer,
    carry_out,
    draw,
    judge,
    judge_unclean,
    read_by_another,
    shake_kafka,
)
from tests.support.faces import PATIENCE_S, Cluster, numbers, read, rest, until, until_known
from tests.support.peers import KafkaCluster

pytestmark = pytest.mark.slow(105)

PARTITIONS = 3


@pytest.mark.parametrize("face", ["sync", "async"])
@pytest.mark.parametrize("way", ["poll", "poll_arrow"])
def test_every_partition_is_read_from_the_replica_in_the_rack(kafka_cluster, face, way):
    """KIP-392: with one replica in each rack, all leaders send the reader to node 3."""
    cluster = Cluster(kafka_cluster.bootstrap)
    topic = cluster.topic(PARTITIONS)
    cluster.produce(topic, 300, partitions=PARTITIONS)
    settings = cluster.settings(group_id=None, enable_auto_commit=False, client_rack="r3")
    with cluster.consumer(face, **settings) as consumer:
        places = [TopicPartition(topic, number) for number in range(PARTITIONS)]
        consumer.assign(places)
        seen = 0
        deadline = time.monotonic() + PATIENCE_S
        while seen < 300:
            assert time.monotonic() < deadline
            found = getattr(consumer, way)(100)
            seen += sum(len(records) for records in found.values())
        inner = consumer.consumer if face == "async" else consumer._consumer
        assert seen == 300

        def from_the_rack() -> bool:
            """A replica that could not answer is forgotten, until the leader names it again."""
            leaders = {place: inner._core.metadata.leader(place) for place in places}
            wanted = {place: None if leader == 3 else 3 for place, leader in leaders.items()}
            return {place: state.preferred_replica for place, state in inner._core.subscription.states()} == wanted

        until(from_the_rack, lambda: getattr(consumer, way)(100))
        # For comparison, a rack without brokers: the leaders serve.
    with cluster.consumer(face, **settings | {"client_rack": "nowhere"}) as consumer:
        consumer.assign(places)
        assert numbers(read(consumer, 300)) == list(range(300))


@pytest.mark.parametrize("assignor", ["range", "cooperative-sticky"])
def test_a_group_gives_each_member_what_has_a_replica_in_its_rack(kafka_cluster, assignor):
    """KIP-881: one partition on each broker, and a member in each rack, in an order different from that of the members'
    ids."""
    topic = create(kafka_cluster, 3, {0: [1], 1: [2], 2: [3]})
    cluster = Cluster(kafka_cluster.bootstrap)
    with contextlib.ExitStack() as held:
        members = {
            rack: held.enter_context(
                cluster.consumer(
                    "sync", client_rack=f"r{rack}", client_id=f"{4 - rack}", partition_assignment_strategy=assignor
                )
            )
            for rack in (1, 2, 3)
        }
        for member in members.values():
            member.subscribe([topic])
        wanted = {rack: {TopicPartition(topic, rack - 1)} for rack in members}
        until(
            lambda: {rack: member.assignment() for rack, member in members.items()} == wanted,
            lambda: [member.poll(20) for member in members.values()],
        )


class Load:
    """Writes numbered records until it is stopped; `acknowledged` are those that the cluster has acknowledged."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.acknowledged: set[int] = set()
        self._stopped = threading.Event()
        self._topic = topic
        self._producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5})
        self._thread = threading.Thread(target=self._write)
        self._thread.start()

    def _write(self) -> None:
        number = 0
        while not self._stopped.is_set():
            self._send(number)
            number += 1
            self._producer.poll(0)
            time.sleep(0.001)
        self._producer.flush(PATIENCE_S)

    def _send(self, number: int) -> None:
        def reported(error: Any, _message: Any) -> None:
            if error is None:
                self.acknowledged.add(number)

        self._producer.produce(self._topic, str(number).encode(), partition=number % PARTITIONS, on_delivery=reported)

    def stop(self) -> None:
        """Stop writing, and wait until everything is settled."""
        self._stopped.set()
        self._thread.join()


class Reader:
    """Reads in its own thread, and records the order of the offsets."""

    def __init__(self, way: str, **settings: Any) -> None:
        self.values: set[int] = set()
        self.offsets: dict[TopicPartition, list[int]] = defaultdict(list)
        self.errors: list[KafkaError] = []
        self._way = way
        self._stopped = threading.Event()
        self._consumer = Consumer(**settings)
        self._thread = threading.Thread(target=self._read)

    def start(self, topic: str) -> None:
        """Begin."""
        self._consumer.subscribe([topic])
        self._thread.start()

    def _read(self) -> None:
        while not self._stopped.is_set():
            try:
                self._poll()
            except KafkaError as error:
                self.errors.append(error)

    def _poll(self) -> None:
        if self._way == "poll":
            for partition, records in self._consumer.poll(200).items():
                self.values |= {int(record.value or b"-1") for record in records}
                self.offsets[partition] += [record.offset for record in records]
        else:
            for partition, table in self._consumer.poll_arrow(200, columns=["value", "offset"]).items():
                rows = table.to_pydict()
                self.values |= {int(value) for value in rows["value"]}
                self.offsets[partition] += rows["offset"]

    def stop(self) -> dict[TopicPartition, int]:
        """What is committed once it has ended."""
        self._stopped.set()
        self._thread.join()
        self._consumer.commit()
        found = self._consumer.committed(list(self.offsets))
        self._consumer.close()
        return {partition: offset.offset for partition, offset in found.items() if offset is not None}


@pytest.fixture(scope="module")
def brokers(tmp_path_factory):
    """Three brokers, all of them controllers too, which the tests here kill, freeze and restart."""
    with KafkaCluster(tmp_path_factory.mktemp("cluster"), controllers=3) as found:
        yield found


def test_brokers_die_under_load_and_nothing_is_lost_or_read_twice(brokers):
    """J2, KIP-320, KIP-392: brokers that lead, coordinate or serve reads in their rack are killed."""
    brokers.start()
    topic = f"t-{uuid.uuid4().hex[:8]}"
    cluster = Cluster(brokers.bootstrap)
    cluster.topic(PARTITIONS, topic)
    settings = cluster.settings(auto_commit_interval_ms=200)
    readers = [
        Reader("poll", **settings | {"client_rack": "r2", "group_id": f"{topic}-rack2"}),
        Reader("poll_arrow", **settings | {"client_rack": "r3", "group_id": f"{topic}-rack3"}),
        Reader("poll", **settings | {"group_id": f"{topic}-leaders"}),
    ]
    places = [TopicPartition(topic, number) for number in range(PARTITIONS)]

    def progress(more: int) -> None:
        """Everybody continues reading, all partitions."""
        marks = [{place: len(reader.offsets[place]) + more for place in places} for reader in readers]
        until(
            lambda: all(
                len(reader.offsets[place]) >= mark
                for reader, mine in zip(readers, marks, strict=True)
                for place, mark in mine.items()
            ),
            lambda: time.sleep(0.05),
        )

    with contextlib.ExitStack() as ended:
        load = Load(brokers.bootstrap, topic)
        ended.callback(load.stop)
        for reader in readers:
            reader.start(topic)
        progress(50)
        brokers.node(2).kill()
        progress(100)
        brokers.start()
        brokers.node(3).kill()
        progress(100)
    until(lambda: all(load.acknowledged <= reader.values for reader in readers), lambda: time.sleep(0.05))
    for reader in readers:
        committed = reader.stop()
        for partition, offsets in reader.offsets.items():
            assert offsets == sorted(set(offsets)), f"{partition} was read twice, or out of order"
            assert committed[partition] == offsets[-1] + 1
        assert reader.errors == []


def test_records_handled_many_at_a_time_while_the_coordinator_dies(brokers):
    """Both faces, in one group: the order of keys is kept, nothing is lost, repeated or left uncommitted, and the dead
    letters are delivered. The killed broker leads one of the partitions, too."""
    brokers.start()
    topic, dead = create(brokers, PARTITIONS), create(brokers, 1)
    cluster = Cluster(brokers.bootstrap)
    count, keys = 1_500, 60
    producer = Producer({"bootstrap.servers": brokers.bootstrap, "linger.ms": 5})
    for number in range(count):
        producer.produce(topic, b"%d" % number, b"k%d" % (number % keys))
    assert producer.flush(PATIENCE_S) == 0
    lock, handled = threading.Lock(), defaultdict[Any, list[int]](list)

    def note(record: ConsumerRecord) -> None:
        with lock:
            handled[record.key].append(record.value)

    def handle(record: ConsumerRecord) -> None:
        time.sleep(0.01)
        note(record)

    async def handle_async(record: ConsumerRecord) -> None:
        await asyncio.sleep(0.01)
        note(record)

    def value(data: bytes) -> int:
        if data.endswith(b"99"):
            raise ValueError("no number of ours")
        return int(data)

    choices: Any = {
        "topics": topic,
        "concurrency": 8,
        "commit_interval_ms": 200,
        "dead_letter_topic": dead,
        "value_deserializer": value,
    }
    in_threads = ConcurrentConsumer(cluster.settings(), handle, **choices)
    in_tasks = AsyncConcurrentConsumer(cluster.settings(), handle_async, **choices)
    members = (in_threads, in_tasks)
    runs = [threading.Thread(target=in_threads.run), threading.Thread(target=lambda: asyncio.run(in_tasks.run()))]
    with Admin(bootstrap_servers=brokers.bootstrap) as admin:
        for run in runs:
            run.start()
        until(lambda: all(member.metrics()["handled"] > 50 for member in members), rest)
        group = admin.describe_consumer_groups([cluster.group])[cluster.group]
        brokers.node(group.coordinator.node_id).kill()
        letters = count // 100
        until(lambda: sum(map(len, list(handled.values()))) >= count - letters, rest)
        until(lambda: sum(member.metrics()["dead_lettered"] for member in members) >= letters, rest)
        for member in members:
            member.stop()
        for run in runs:
            run.join()
        committed = admin.list_consumer_group_offsets(cluster.group).values()
    assert {key: sorted(set(numbers)) for key, numbers in handled.items()} == handled
    assert sum(map(len, handled.values())) == count - letters
    assert sum(member.metrics()["failed_attempts"] for member in members) == letters
    assert sum(place.offset for place in committed if isinstance(place, OffsetAndMetadata)) == count
    with cluster.consumer("sync", group_id=f"{cluster.group}-dead") as reader:
        reader.subscribe([dead])
        assert {record.value[-2:] for record in read(reader, letters)} == {b"99"}


def partition_of(admin, topic):
    """What the cluster reports about the first partition."""
    described = admin.describe_topics([topic])[topic]
    return described.partitions[0]


def test_a_log_that_lost_what_was_read_is_noticed(brokers):
    """KIP-320: a follower that was down is elected, and the records that it lacks are written again."""
    brokers.start()
    topic = create(brokers, 1, {0: [2, 3]}, unclean_leader_election_enable="true")
    zero = TopicPartition(topic, 0)
    cluster = Cluster(brokers.bootstrap)
    with Admin(bootstrap_servers=brokers.node(1).bootstrap) as admin:
        settings = cluster.settings(group_id=None, enable_auto_commit=False)
        cluster.produce(topic, 10, partitions=1)
        with (
            cluster.consumer("sync", **settings) as follows,
            cluster.consumer("sync", **settings | {"auto_offset_reset": "none"}) as insists,
        ):
            for consumer in (follows, insists):
                consumer.assign([zero])
                consumer.seek(zero, 0)
                assert numbers(read(consumer, 10)) == list(range(10))
            brokers.node(3).kill()
            until(lambda: partition_of(admin, topic).isr == [2], lambda: time.sleep(0.1))
            cluster.produce(topic, 10, partitions=1, start=10)
            for consumer in (follows, insists):
                assert numbers(read(consumer, 10)) == list(range(10, 20))
            brokers.node(2).kill()
            brokers.node(3).start()
            until(lambda: partition_of(admin, topic).leader_id == 3, lambda: time.sleep(0.1))
            cluster.produce(topic, 15, partitions=1, start=100)  # up to offset 25: the old position is within it
            assert numbers(read(follows, 15)) == list(range(100, 115))
            with pytest.raises(LogTruncationError) as caught:
                read(insists, 1)
            assert caught.value.divergent is not None
            assert caught.value.divergent.offset == 10
            insists.seek(zero, caught.value.divergent)
            assert numbers(read(insists, 15)) == list(range(100, 115))


SHAKEN = Schedule(
    seed=-1,
    partitions=3,
    request_timeout_ms=3_000,
    assignor="cooperative-sticky",
    racks=True,
    steps=(Step("kill", 2, 0.3, 0), Step("freeze", 3, 4, 0), Step("term", 1, 0.3, 0)),
)


def create(brokers: KafkaCluster, partitions: int, assignments: Any = None, **configs: str) -> str:
    """A topic that every broker knows."""
    topic = f"t-{uuid.uuid4().hex[:8]}"
    kept = {"retention.ms": "-1"} | {name.replace("_", "."): value for name, value in configs.items()}
    new = NewTopic(topic, partitions, assignments=assignments or {}, configs=kept)
    with Admin(bootstrap_servers=brokers.bootstrap) as admin:
        admin.create_topics([new])
    until_known(brokers.bootstrap, topic, partitions)
    return topic


@pytest.mark.soak
@pytest.mark.parametrize(
    "schedule", [SHAKEN, *map(draw, scale.schedules(0))], ids=lambda schedule: f"seed{schedule.seed}"
)
def test_all_brokers_shaken_in_turn_lose_and_repeat_and_disorder_nothing(brokers, schedule, record_property):
    """acks=all, idempotence, groups of both faces and readers of ranges; two of three replicas are always up."""
    brokers.start()
    topic = create(brokers, schedule.partitions, min_insync_replicas="2")
    facts = carry_out(schedule, brokers.bootstrap, topic, partial(shake_kafka, brokers))
    count = {group: sum(len(rows) for _, rows in runs) for group, runs in facts.runs.items()}
    record_property("soak", f"seed {schedule.seed}: {len(facts.acknowledged)} acknowledged, {count} read by groups")
    assert judge(facts) == [], schedule
    assert len(facts.acknowledged) > 100


def test_an_unclean_election_is_noticed_by_groups_and_costs_no_more_than_it_must(brokers):
    """KIP-320, KIP-360: what is written while the follower is down is lost with the leader, and nothing else is."""
    brokers.start()
    topic = create(brokers, 1, {0: [2, 3]}, unclean_leader_election_enable="true", min_insync_replicas="1")
    facts = Facts({}, with_epochs=True)
    settings = Cluster(brokers.bootstrap).settings(auto_commit_interval_ms=200)
    with contextlib.ExitStack() as readers, Admin(bootstrap_servers=brokers.bootstrap) as admin:
        for face in ("sync", "async"):
            member = Member(facts, face, face, topic, f"{topic}-{face}", **settings)
            readers.callback(member.stop)

        def progress(more: int) -> None:
            mark = len(facts.acknowledged) + more
            until(lambda: len(facts.acknowledged) >= mark and all(sizes() >= mark for sizes in read_sizes), rest)

        read_sizes = [lambda runs=runs: sum(len(rows) for _, rows in list(runs)) for runs in facts.runs.values()]
        with contextlib.ExitStack() as writers:
            for name, kind in (("w0", Writer), ("w1", AsyncWriter)):
                writing = {"bootstrap_servers": brokers.bootstrap, "request_timeout_ms": 3_000}
                writers.callback(kind(facts, name, topic, 1, **writing).stop)
            progress(100)
            before = set(facts.acknowledged)
            brokers.node(3).kill()
            until(lambda: partition_of(admin, topic).isr == [2], rest)
            progress(100)
            brokers.node(2).kill()
            time.sleep(5)  # so that answers are also reported on a busy machine
            behind = set(facts.acknowledged)
            brokers.node(3).start()
            until(lambda: partition_of(admin, topic).leader_id == 3, rest)
            mark = len(facts.acknowledged)
            until(lambda: len(facts.acknowledged) >= mark + 100, rest)
        brokers.start()
        facts.log = read_by_another(facts, brokers.bootstrap, topic, 1)
        last = facts.log[TopicPartition(topic, 0)][-1]
        until(
            lambda: bool(facts.errors) or all(any(last in rows for _, rows in runs) for runs in facts.runs.values()),
            rest,
        )
    assert judge_unclean(facts, may_be_lost=behind - before) == []
    kept = {value.rpartition("@")[0] for _, value in facts.log[TopicPartition(topic, 0)]}
    assert set(facts.acknowledged) - kept, "nothing was lost"
