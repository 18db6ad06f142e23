"""Random requests about records, topics and settings, from a seed, correct and incorrect."""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable, Collection, Sequence
from struct import unpack_from
from typing import Any

from muster.protocol import admin_messages as a
from muster.protocol import messages as m
from muster.protocol.api import ADVERTISED, ApiKey
from muster.protocol.primitives import ZERO_UUID, Request
from muster.protocol.records.compression import Compression
from muster.protocol.records.record_batch import HEADER_SIZE
from tests.support.differential import Ask, Side
from tests.support.same_answers import UNKNOWN_ID
from tests.support.written import build_batch

STEPS = 40
CLIENT = "client"
WAIT_MS = 20_000
MOST = 1 << 20
TOPIC = 2
BROKER = 4
WEIGHTS = {
    "create": 6,
    "delete": 2,
    "grow": 4,
    "alter": 8,
    "describe_configs": 5,
    "produce": 26,
    "producer_id": 3,
    "fetch": 16,
    "list_offsets": 12,
    "metadata": 5,
    "delete_records": 5,
    "epochs": 4,
    "open_producers": 3,
    "describe_topics": 3,
    "log_dirs": 1,
}
KEYS = [
    *("cleanup.policy", "compression.type", "max.message.bytes", "message.timestamp.type", "min.cleanable.dirty.ratio"),
    *("retention.ms", "segment.bytes", "preallocate", "max.compaction.lag.ms", "remote.storage.enable", "no.such", ""),
    *("follower.replication.throttled.replicas", "compression.gzip.level", "compression.zstd.level", "flush.messages"),
]
VALUES = [
    *("", "1", "-1", "0", "-2", "x", "2147483648", "9223372036854775808", "1e3", " 5", "+5", "0x10", "1_000", "60000"),
    *("compact", "delete", "compact,delete", "compact,compact", "delete,", "gzip", "uncompressed", "true", "TRUE"),
    *("0.5", "9", "22", "LogAppendTime", "0:1", "*"),
]
SETTINGS = [
    *(("retention.ms", "-1"), ("retention.ms", "x"), ("cleanup.policy", "compact"), ("cleanup.policy", "none")),
    *(("max.message.bytes", "2000"), ("message.timestamp.type", "LogAppendTime"), ("no.such", "1")),
    *(("compression.type", "zstd"), ("message.timestamp.before.max.ms", "10000"), ("segment.bytes", "13")),
]

ASSIGNED: list[list[tuple[int, list[int]]]] = [
    [(0, [1])],
    [(0, [1]), (1, [1])],
    [(1, [1])],
    [(0, [1])] * 2,
    [(0, [9])],
    [(0, [])],
    [(0, [1, 1])],
]
"""The brokers, by partition."""


class RandomRecords:
    """One seed: a client, three topics, and producers' ids."""

    steps = STEPS

    def __init__(self, seed: int) -> None:
        self._dice = random.Random(seed)
        prefix = f"records-{seed}-{uuid.uuid4().hex[:8]}"
        self._names = [f"{prefix}-{letter}" for letter in "abc"]
        self._partitions: dict[str, int] = {}
        """The numbers of partitions of the topics that exist."""
        self._now = int(time.time() * 1000)
        self._times = [self._now] * 3 + [self._now - 10**6, self._now + 10**7, -1, 0]
        """Those of records."""
        self._producers = 0
        self._sent: dict[tuple[str, int, str], list[tuple[int, int, int]]] = {}
        """Epoch, first sequence and number of records of a producer's batches in a partition."""
        self._last = ("", 0, ""), (0, 0, 0)
        """The partition and producer of the last Produce, and its batch."""
        self._sides: Sequence[Side] = ()

    def begin(self, sides: Sequence[Side]) -> None:
        """Nothing exists yet."""
        self._sides = sides

    def end(self, sides: Sequence[Side]) -> None:
        """Delete the topics."""
        for side in sides:
            side.ask(m.DeleteTopicsRequest([m.DeleteTopicState(name) for name in self._partitions]), 6)

    # --------------------------------------------------------------------------------------------------------- requests

    def next(self, waiting: Collection[str]) -> Ask | None:
        """A request, mostly about a topic that exists."""
        names = [*self._names, *self._partitions, *self._partitions, *self._partitions]
        kind = self._dice.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        return getattr(self, f"_{kind}")(self._dice.choice(names))  # type: ignore[no-any-return]

    def _version(self, key: ApiKey) -> int:
        first, last = ADVERTISED[key]
        return last if self._dice.random() < 0.3 else self._dice.randint(max(first, _OLDEST.get(key, 0)), last)

    def _named(self, version: int, since: int, name: str) -> Callable[[Side], tuple[str, bytes]]:
        """A topic by its name, or by its id since a certain version."""
        if version < since:
            return lambda side: (name, ZERO_UUID)
        return lambda side: ("", side.given.get(f"id of {name}", UNKNOWN_ID))

    def _create(self, name: str) -> Ask:
        version, dice = self._version(ApiKey.CREATE_TOPICS), self._dice
        odd_names = ["", ".", "a b", "x" * 250, "é", name.replace("-", "."), "a/b"]
        name = name if dice.random() < 0.85 else dice.choice(odd_names)
        partitions, replicas = dice.choice([1, 2, 3, 2, -1, 0, -2]), dice.choice([1, 1, 1, 1, -1, 0, 2, -2])
        assigned: list[tuple[int, list[int]]] = []
        if dice.random() < 0.2:
            assigned = dice.choice(ASSIGNED)
            partitions, replicas = (-1, -1) if dice.random() < 0.7 else (partitions, replicas)
        settings = dice.sample(SETTINGS, dice.choice([0, 0, 0, 1, 2]))
        times, only_checked = 1 + (dice.random() < 0.07), dice.random() < 0.15
        topic = m.CreatableTopic(
            name,
            partitions,
            replicas,
            [m.CreatableReplicaAssignment(*each) for each in assigned],
            [m.CreatableTopicConfig(*each) for each in settings],
        )
        request = m.CreateTopicsRequest([topic] * times, WAIT_MS, only_checked)
        return Ask(CLIENT, version, lambda side: request, _without_new_ids)

    def _delete(self, name: str) -> Ask:
        version, dice = self._version(ApiKey.DELETE_TOPICS), self._dice
        times, style = 1 + (dice.random() < 0.1), dice.choice(["name", "name", "id", "both", "none"])

        def build(side: Side) -> Request[Any]:
            if version < 6:
                return m.DeleteTopicsRequest(topic_names=[name] * times, timeout_ms=WAIT_MS)
            topic_id = side.given.get(f"id of {name}", UNKNOWN_ID)
            by = {
                "name": (name, ZERO_UUID),
                "id": (None, topic_id),
                "both": (name, topic_id),
                "none": (None, ZERO_UUID),
            }
            return m.DeleteTopicsRequest([m.DeleteTopicState(*by[style])] * times, timeout_ms=WAIT_MS)

        return Ask(CLIENT, version, build)

    def _grow(self, name: str) -> Ask:
        dice = self._dice
        assigned = dice.choice([None] * 5 + [[[1]], [[1], [1]], [[9]]])
        placed = None if assigned is None else [a.CreatePartitionsAssignment(each) for each in assigned]
        topic = a.CreatePartitionsTopic(name, dice.choice([1, 0, 2, 3, 4, -1]), placed)
        request = a.CreatePartitionsRequest([topic], WAIT_MS, dice.random() < 0.4)
        return Ask(CLIENT, self._version(ApiKey.CREATE_PARTITIONS), lambda side: request)

    def _alter(self, name: str) -> Ask:
        dice = self._dice
        key, value = dice.choice(KEYS), dice.choice([*VALUES, None])
        kind = dice.choice([TOPIC] * 12 + [0, 1, 3, 127])
        name = name if kind == TOPIC else dice.choice(["1", "", name])
        only_checked = dice.random() < 0.3
        if dice.random() < 0.7:
            change = a.IncrementalAlterConfigsRequestAlterableConfig(key, dice.choice([0, 0, 0, 1, 2, 3]), value)
            resource = a.IncrementalAlterConfigsRequestAlterConfigsResource(kind, name, [change])
            one_by_one = a.IncrementalAlterConfigsRequest([resource], only_checked)
            return Ask(CLIENT, self._version(ApiKey.INCREMENTAL_ALTER_CONFIGS), lambda side: one_by_one)
        all_of_it = a.AlterConfigsRequestAlterConfigsResource(
            kind, name, [a.AlterConfigsRequestAlterableConfig(key, value)]
        )
        request = a.AlterConfigsRequest([all_of_it], only_checked)
        return Ask(CLIENT, self._version(ApiKey.ALTER_CONFIGS), lambda side: request)

    def _describe_configs(self, name: str) -> Ask:
        dice = self._dice
        keys = dice.choice([None, None, [], ["retention.ms", "no.such", "retention.ms"], ["cleanup.policy"]])
        kind = dice.choice([TOPIC] * 8 + [BROKER, 0, 3])
        name = name if kind == TOPIC else dice.choice(["7", "x"])
        resource = m.DescribeConfigsResource(kind, name, keys)
        version = self._version(ApiKey.DESCRIBE_CONFIGS)
        request = m.DescribeConfigsRequest([resource], dice.random() < 0.5, dice.random() < 0.5 and version >= 3)
        return Ask(CLIENT, version, lambda side: request, _without_brokers_settings)

    def _producer_id(self, name: str) -> Ask:
        request = m.InitProducerIdRequest(None, self._dice.choice([1000, 0, -1, 2**31 - 1]))
        return Ask(CLIENT, self._version(ApiKey.INIT_PRODUCER_ID), lambda side: request, _without_producer_id)

    def _produce(self, name: str) -> Ask:
        version, dice = self._version(ApiKey.PRODUCE), self._dice
        partition, acks = dice.choice([0, 0, 0, 1, 1, 2, 5, -1]), dice.choice([-1, -1, -1, 1, 1, 1, 2])
        named = self._named(version, 13, name)
        producer = f"producer {dice.randrange(self._producers)}" if self._producers and dice.random() < 0.75 else ""
        epoch, first, count = self._some_sequence(name, partition, producer)
        codecs = [Compression.NONE] * 5 + [Compression.GZIP, Compression.LZ4, Compression.SNAPPY, Compression.ZSTD]
        codec = dice.choice(codecs[: None if version >= 7 else -1])
        at = dice.choice(self._times)
        value = dice.choice([None, b"v", b"w" * 40, b"z" * 3000])
        records: list[Any] = [(at, dice.choice([None, b"k", b"j", b""]), value, []) for _ in range(count)]

        def build(side: Side) -> Request[Any]:
            of: dict[str, Any] = {}
            if producer:
                of = {"producer_id": side.given[producer], "producer_epoch": epoch, "base_sequence": first}
            batch = bytes(build_batch(records, compression=codec, **of))
            data = m.TopicProduceData(*named(side), [m.PartitionProduceData(partition, batch)])
            return m.ProduceRequest(None, acks, WAIT_MS, [data])

        self._last = (name, partition, producer), (epoch, first, count)
        return Ask(CLIENT, version, build, _without_times_of_appends)

    def _some_sequence(self, name: str, partition: int, producer: str) -> tuple[int, int, int]:
        """Epoch, first sequence and number of records: the next ones, or a repetition, a gap, another epoch …"""
        dice, sent = self._dice, self._sent.get((name, partition, producer), [])
        count = dice.choice([1, 1, 2, 3, 5])
        epoch, first, last_count = sent[-1] if sent else (0, 0, 0)
        following = (first + last_count) % 2**31
        if not producer or dice.random() < 0.6:
            return epoch, following, count
        odd = [
            (epoch, first, last_count or count),
            (*dice.choice(sent)[:2], count) if sent else (epoch, 5, count),
            (epoch, following + 1, count),
            (epoch, 0, count),
            (epoch + 1, 0, count),
            (epoch + 1, following, count),
            (epoch - 1, following, count),
            (epoch, 2**31 - 2, count),
        ]
        return dice.choice(odd)

    def _fetch(self, name: str) -> Ask:
        version, dice = self._version(ApiKey.FETCH), self._dice
        named = self._named(version, 13, name)
        offset, leader_epoch = dice.choice([0, 0, 1, 2, 5, 10, -1, 2**40, 3]), dice.choice([-1, -1, -1, 0, 1, -2])
        fetched_epoch = dice.choice([-1, -1, 0, 3, -2])
        partition = dice.choice([0, 0, 1, 2, 7, -1])
        asked = m.FetchPartition(partition, leader_epoch if version >= 9 else -1, offset)
        asked.partition_max_bytes = dice.choice([MOST, MOST, 1, 0, 100, -1])
        asked.last_fetched_epoch = fetched_epoch if version >= 12 else -1
        isolation, most = dice.choice([0, 1]), dice.choice([MOST, MOST, 1, 0, 100, -1])
        session = (
            dice.choice(["none", "none", "new", "next", "unknown", "wrong epoch", "end"]) if version >= 7 else "none"
        )

        def build(side: Side) -> Request[Any]:
            known = side.given.get("session", 54_321)
            session_id, session_epoch = {
                "none": (0, -1),
                "new": (0, 0),
                "next": (known, 1),
                "unknown": (12_345, 1),
                "wrong epoch": (known, 77),
                "end": (known, -1),
            }[session]
            topics = [m.FetchTopic(*named(side), [asked])]
            return m.FetchRequest(
                max_wait_ms=0,
                min_bytes=0,
                max_bytes=most,
                isolation_level=isolation,
                session_id=session_id,
                session_epoch=session_epoch,
                topics=topics,
            )

        return Ask(CLIENT, version, build, _only_headers_of_batches)

    def _list_offsets(self, name: str) -> Ask:
        version, dice = self._version(ApiKey.LIST_OFFSETS), self._dice
        now = self._now
        at = dice.choice([-1, -2, -3, -4, -5, -6, -7, now, now - 5, 0, now + 2, now + 10**8, 2**62])
        epoch = dice.choice([-1, -1, 0, 5, -2]) if version >= 4 else -1
        asked = m.ListOffsetsPartition(dice.choice([0, 0, 1, 2, 9, -1]), epoch, at)
        topic = m.ListOffsetsTopic(name, [asked] * (1 + (dice.random() < 0.1)))
        request = m.ListOffsetsRequest(
            dice.choice([-1, -1, -1, -2, 1]), dice.choice([0, 1]) if version >= 2 else 0, [topic]
        )
        return Ask(CLIENT, version, lambda side: request, self._without_times_found)

    def _without_times_found(self, answer: Any) -> None:
        """With LogAppendTime, a record has the time at which each broker wrote it."""
        for topic in answer["topics"]:
            for partition in topic["partitions"]:
                if partition["timestamp"] not in self._times:
                    partition["timestamp"] = "that of the append"

    def _metadata(self, name: str) -> Ask | None:
        version, dice = self._version(ApiKey.METADATA), self._dice
        style = dice.choice(["name", "name", "twice", "bad", "id", "no id"])
        if version < 12 and style in ("id", "no id"):
            return None
        if version < 4 and name not in self._partitions:
            return None  # it would be auto-created

        def build(side: Side) -> Request[Any]:
            by_name = m.MetadataRequestTopic(name=name)
            topics = {
                "name": [by_name],
                "twice": [by_name, by_name],
                "bad": [m.MetadataRequestTopic(name=each) for each in ("a b", "")],
                "id": [m.MetadataRequestTopic(side.given.get(f"id of {name}", UNKNOWN_ID), None)],
                "no id": [m.MetadataRequestTopic(ZERO_UUID, None)],
            }
            return m.MetadataRequest(topics[style], allow_auto_topic_creation=version < 4)

        return Ask(CLIENT, version, build)

    def _delete_records(self, name: str) -> Ask:
        dice = self._dice
        partition = a.DeleteRecordsPartition(dice.choice([0, 1, 9]), dice.choice([0, 1, 2, -1, -2, 2**50, 3]))
        request = a.DeleteRecordsRequest([a.DeleteRecordsTopic(name, [partition])], WAIT_MS)
        return Ask(CLIENT, self._version(ApiKey.DELETE_RECORDS), lambda side: request)

    def _epochs(self, name: str) -> Ask:
        version, choose = self._version(ApiKey.OFFSET_FOR_LEADER_EPOCH), self._dice.choice
        partition = m.OffsetForLeaderPartition(choose([0, 1, 9]), choose([-1, 0, 3, -2]), choose([0, -1, 1, 5, -2]))
        request = m.OffsetForLeaderEpochRequest(-2, [m.OffsetForLeaderTopic(name, [partition])])
        return Ask(CLIENT, version, lambda side: request)

    def _describe_topics(self, name: str) -> Ask:
        dice = self._dice
        names = sorted(dice.sample(self._names, 2))
        cursor = dice.choice([None, None, (names[0], 1), (names[1], 0), (names[1], 1), (name, 9)])
        after = None if cursor is None else m.DescribeTopicPartitionsRequestCursor(*cursor)
        asked = [m.TopicRequest(each) for each in names]
        request = m.DescribeTopicPartitionsRequest(asked, dice.choice([2000, 1, 2, -1, 0]), after)
        return Ask(CLIENT, 0, lambda side: request)

    def _log_dirs(self, name: str) -> Ask:
        request = a.DescribeLogDirsRequest([a.DescribableLogDirTopic(name, [0, 9])])
        return Ask(CLIENT, self._version(ApiKey.DESCRIBE_LOG_DIRS), lambda side: request, _without_sizes)

    def _open_producers(self, name: str) -> Ask:
        request = a.DescribeProducersRequest([a.TopicRequest(name, [self._dice.choice([0, 1, 9])])])
        return Ask(CLIENT, 0, lambda side: request, _without_last_times)

    # ---------------------------------------------------------------------------------------------------------- answers

    def learn(self, ask: Ask, answers: Sequence[tuple[Side, Any]]) -> None:
        """Record which topics exist, which batches were accepted, which ids were assigned."""
        if any(answer == "closed" for _, answer in answers):
            return
        ours = answers[0][1]
        match ours:
            case m.CreateTopicsResponse() | m.DeleteTopicsResponse() | a.CreatePartitionsResponse():
                self._look(ours)
            case m.InitProducerIdResponse() if all(answer.error_code == 0 for _, answer in answers):
                for side, answer in answers:
                    side.call(answer.producer_id, f"producer {self._producers}", "producer_id")
                self._producers += 1
            case m.ProduceResponse():
                self._note_batch(ours)
            case a.AlterConfigsResponse() | a.IncrementalAlterConfigsResponse():
                self._compare_settings(ours.responses[0].resource_name)
            case m.FetchResponse() if all(answer.session_id for _, answer in answers):
                for side, answer in answers:
                    side.call(answer.session_id, "session", "session_id")

    def _note_batch(self, answer: m.ProduceResponse) -> None:
        where, batch = self._last
        if where[2] and answer.responses[0].partition_responses[0].error_code == 0:
            self._sent.setdefault(where, []).append(batch)

    def _compare_settings(self, name: str) -> None:
        """Wait until both brokers have the same settings for a topic. If they never do, a later answer shows it."""
        for _ in range(100):
            found = []
            for side in self._sides:
                request = m.DescribeConfigsRequest([m.DescribeConfigsResource(TOPIC, name, None)])
                [result] = side.ask(request, 4).results
                found.append({each.name: each.value for each in result.configs if each.config_source == 1})
            if found[0] == found[1]:
                return
            time.sleep(0.02)

    def _look(self, changed: Any) -> None:
        """Wait until both brokers serve what was created, and no longer what was deleted."""
        results = getattr(changed, "topics", None) or getattr(changed, "responses", None) or changed.results
        for name in self._names:
            if any(result.name == name or result.name is None for result in results):
                counts = {_settled(side, name) for side in self._sides}
                if counts == {0}:
                    self._partitions.pop(name, None)
                    self._sent = {where: sent for where, sent in self._sent.items() if where[0] != name}
                else:
                    self._partitions[name] = max(counts)


_OLDEST = {ApiKey.PRODUCE: 3}


def _settled(side: Side, name: str) -> int:
    """The number of partitions of a topic, 0 if it does not exist, once its leaders answer; from then on its id is
    known."""
    before = -1
    while True:
        (found,) = side.ask(m.MetadataRequest([m.MetadataRequestTopic(name=name)], False), 12).topics
        count = len(found.partitions)
        asked = [m.ListOffsetsPartition(index, -1, -1) for index in range(count)]
        listed = side.ask(m.ListOffsetsRequest(-1, 0, [m.ListOffsetsTopic(name, asked)]), 4).topics
        ready = not any(partition.error_code for topic in listed for partition in topic.partitions)
        if ready and count == before:
            if count:
                side.call(bytes(found.topic_id), f"id of {name}")
            return count
        before = count
        time.sleep(0.02)


def _without_new_ids(answer: Any) -> None:
    for topic in answer["topics"]:
        topic["topic_id"] = topic["topic_id"] != ZERO_UUID
        _without_controllers(topic)


def _without_controllers(resource: Any) -> None:
    """Kafka's controller sets min.insync.replicas for all brokers."""
    found = resource["configs"] or []
    resource["configs"] = [each for each in found if each["name"] != "min.insync.replicas"] if found else found


def _without_brokers_settings(answer: Any) -> None:
    for result in answer["results"]:
        _without_controllers(result)


def _without_producer_id(answer: Any) -> None:
    answer["producer_id"] = isinstance(answer["producer_id"], str) or answer["producer_id"] >= 0


def _without_times_of_appends(answer: Any) -> None:
    for topic in answer["responses"]:
        for partition in topic["partition_responses"]:
            partition["log_append_time_ms"] = partition["log_append_time_ms"] > 0
            partition["record_errors"] = [each["batch_index"] for each in partition["record_errors"]]


def _without_last_times(answer: Any) -> None:
    for topic in answer["topics"]:
        for partition in topic["partitions"]:
            for producer in partition["active_producers"]:
                producer["last_timestamp"] = producer["last_timestamp"] > 0


def _without_sizes(answer: Any) -> None:
    """Compressed sizes differ from library to library."""
    for result in answer["results"]:
        for topic in result["topics"]:
            for partition in topic["partitions"]:
                partition["partition_size"] = partition["partition_size"] > 0


def _only_headers_of_batches(answer: Any) -> None:
    """Compressed records differ from library to library: keeps a batch's offset, epoch, attributes and number of
    records."""
    for topic in answer["responses"]:
        for partition in topic["partitions"]:
            records = bytes(partition["records"] or b"")
            partition["records"], at = [], 0
            while at + HEADER_SIZE <= len(records):
                offset, length, epoch = unpack_from(">qii", records, at)
                partition["records"].append((offset, epoch, *unpack_from(">hi", records, at + 21)))
                at += 12 + length
