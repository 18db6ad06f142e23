"""The same requests, in every version, to muster and to Apache Kafka 4.2: the answers have the same shape and codes.

Each case is a list of requests on its own topic, with the same records on both brokers. Values that must differ (ids,
addresses, other users of the broker) are normalized for both before they are compared.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest

from muster.errors import ErrorCode
from muster.model import GROUP_METADATA_TOPIC
from muster.protocol import messages as m
from muster.protocol.api import ApiKey
from muster.protocol.primitives import ZERO_UUID, Request
from muster.protocol.records.compression import Compression
from tests.support.brokers import RawClient
from tests.support.same_answers import (
    UNKNOWN_ID,
    Step,
    World,
    by_id,
    compare,
    list_offsets,
    plain,
    produce,
    until_ready,
    versions,
)
from tests.support.written import build_batch

pytestmark = pytest.mark.slow


def new_topic(world: World, name: str, **configs: str) -> bytes:
    """A topic with one partition that keeps its records from 1970, once its leader is known; returns its id."""
    wanted = {"retention_ms": "-1"} | configs
    settings = [m.CreatableTopicConfig(key.replace("_", "."), value) for key, value in wanted.items()]
    (made,) = world.client.ask(m.CreateTopicsRequest([m.CreatableTopic(name, 1, 1, [], settings)], 300_000), 7).topics
    assert made.error_code == 0, made
    while world.client.ask(list_offsets(world, -1, topic=name), 4).topics[0].partitions[0].error_code:
        pass
    return bytes(made.topic_id)


# ----------------------------------------------------------------------------------------------- producing and fetching


def batch(**changes: Any) -> bytes:
    return bytes(build_batch([(1000, b"k", b"v", [])], **changes))


def damaged(position: int, value: int) -> bytes:
    damaged = bytearray(batch())
    damaged[position] ^= value
    return bytes(damaged)


BATCHES: dict[str, bytes] = {
    "a good batch": batch(),
    "gzip": batch(compression=Compression.GZIP),
    "zstd": batch(compression=Compression.ZSTD),
    "a wrong CRC": damaged(-1 % len(batch()), 1),
    "magic 1": batch()[:16] + b"\1" + batch()[17:],
    "no batch at all": b"",
    "garbage": b"garbage" * 5,
    "zeros": bytes(80),
    "cut off": batch()[:-3],
    "two batches": batch() + batch(),
    "too large": bytes(build_batch([(1000, b"k", bytes(1_100_000), [])])),
    "of a transaction": batch(transactional=True, producer_id=5, producer_epoch=0, base_sequence=0),
    "a control batch": batch(control=True),
    "from the far future": bytes(build_batch([(32_503_680_000_000, b"k", b"v", [])])),
    "first of producer 7": batch(producer_id=7, producer_epoch=1, base_sequence=0),
    "the same again": batch(producer_id=7, producer_epoch=1, base_sequence=0),
    "a gap": batch(producer_id=7, producer_epoch=1, base_sequence=9),
    "an old epoch": batch(producer_id=7, producer_epoch=0, base_sequence=1),
    "a new epoch": batch(producer_id=7, producer_epoch=2, base_sequence=0),
    "a new epoch that does not begin at 0": batch(producer_id=7, producer_epoch=3, base_sequence=4),
}


def test_a_produce_that_is_refused_without_acks_closes_the_connection(worlds: tuple[World, World]) -> None:
    """It belongs to a transaction, but names no transactional id. An answer would be mistaken for the next
    request's."""
    for world in worlds:
        host, port = world.client.socket.getpeername()
        other = RawClient(f"{host}:{port}")
        other.send(produce(world, BATCHES["of a transaction"], acks=0), 9)
        with other.socket, pytest.raises((EOFError, ConnectionError)):
            other.ask(m.ApiVersionsRequest(), 0)


@pytest.mark.parametrize("version", versions(ApiKey.PRODUCE))
def test_produce(worlds: tuple[World, World], version: int) -> None:
    steps: list[Step] = [
        (label, lambda w, records=records: by_id(produce(w, records), w.topic_id))  # type: ignore[misc]
        for label, records in BATCHES.items()
    ]
    compare(steps, worlds, [version])


def sent(topic: str, records: bytes) -> Callable[[World], Request[Any]]:
    """Send a batch to one of a world's topics."""
    return lambda world: produce(world, records, topic=f"{world.prefix}-{topic}")


@pytest.mark.parametrize("codec", [Compression.NONE, Compression.ZSTD, Compression.GZIP])
def test_produce_with_odd_producers(worlds: tuple[World, World], codec: Compression) -> None:
    """Negative ids, epochs and sequences, in batches that are stored as they are, and in those that a topic with its
    own codec has rebuilt."""
    for world in worlds:
        new_topic(world, f"{world.prefix}-gzip", compression_type="gzip")
    steps: list[Step] = []
    for topic, epoch, sequence, producer in product(("topic", "gzip"), (-2, -1, 0), (-2, -1, 0, 5), (-2, -1, 8)):
        of = {"producer_id": producer, "producer_epoch": epoch, "base_sequence": sequence}
        steps.append((f"{of} to {topic}", sent(topic, batch(compression=codec, **of))))
    turns = product(("topic", "gzip"), product((-1, 0), (0, 3)), product((-2, -1, 0, 1), (0, 1, 3, 6)))
    for producer, (topic, *both) in enumerate(turns, 100):
        for epoch, sequence in both:
            of = {"producer_id": producer, "producer_epoch": epoch, "base_sequence": sequence}
            steps.append((f"{both} to {topic}", sent(topic, batch(compression=codec, **of))))
    compare(steps, worlds, [9])


@pytest.mark.parametrize("codec", [Compression.NONE, Compression.ZSTD, Compression.GZIP])
def test_produce_before_1970(worlds: tuple[World, World], codec: Compression) -> None:
    for world in worlds:
        new_topic(world, f"{world.prefix}-gzip", compression_type="gzip")
    steps: list[Step] = []
    for topic, first, second in product(("topic", "gzip"), (-2, -1, 5), (-2, -1, 5)):
        records = bytes(build_batch([(first, b"k", b"v", []), (second, b"k", b"v", [])], compression=codec))
        steps.append((f"{first} and {second} to {topic}", sent(topic, records)))
    compare(steps, worlds, [9])


@pytest.mark.parametrize("times", [(-1,), (-1, -1), (-2, -1), (-2, -3), (0, -1)])
def test_the_latest_of_records_without_a_timestamp(worlds: tuple[World, World], times: tuple[int, ...]) -> None:
    records = bytes(build_batch([(time, None, b"v", []) for time in times]))
    for world in worlds:
        new_topic(world, f"{world.prefix}-times")
    compare([("a batch", sent("times", records))], worlds, [9])
    compare([("the latest", lambda w: list_offsets(w, -3, topic=f"{w.prefix}-times"))], worlds, [7, 10])


def test_produce_elsewhere(worlds: tuple[World, World]) -> None:
    steps: list[Step] = [
        ("an unknown topic", lambda w: by_id(produce(w, batch(), topic="nowhere"), UNKNOWN_ID)),
        ("an unknown partition", lambda w: by_id(produce(w, batch(), 9), w.topic_id)),
        ("acks of 5", lambda w: by_id(produce(w, batch(), acks=5), w.topic_id)),
        ("acks of 5, unknown topic", lambda w: by_id(produce(w, batch(), acks=5, topic="nowhere"), UNKNOWN_ID)),
        ("acks of 5, unknown partition", lambda w: by_id(produce(w, batch(), 9, acks=5), w.topic_id)),
        ("acks of 5, no batch", lambda w: by_id(produce(w, b"", acks=5), w.topic_id)),
        ("acks of 1", lambda w: by_id(produce(w, batch(), acks=1), w.topic_id)),
    ]
    compare(steps, worlds, versions(ApiKey.PRODUCE))


def test_produce_to_an_internal_topic(worlds: tuple[World, World]) -> None:
    """Neither lets a client write to the topic in which the coordinator keeps its groups."""
    for world in worlds:
        until_ready(world, m.FindCoordinatorRequest(world.prefix), 3)
    steps: list[Step] = [
        ("a record", lambda w: produce(w, batch(), topic=GROUP_METADATA_TOPIC)),
        ("a wrong CRC", lambda w: produce(w, damaged(-1 % len(batch()), 1), topic=GROUP_METADATA_TOPIC)),
        ("garbage", lambda w: produce(w, b"garbage" * 5, topic=GROUP_METADATA_TOPIC)),
        ("acks of 5", lambda w: produce(w, batch(), acks=5, topic=GROUP_METADATA_TOPIC)),
        ("an unknown partition", lambda w: produce(w, batch(), 1 << 20, topic=GROUP_METADATA_TOPIC)),
    ]
    compare(steps, worlds, range(3, 13))


def fetch(
    world: World,
    offset: int = 0,
    partition: int = 0,
    *,
    topic: str | None = None,
    topic_id: bytes | None = None,
    epoch: int = -1,
    fetched_epoch: int = -1,
    isolation: int = 0,
    partition_max: int = 1 << 20,
    max_bytes: int = 1 << 20,
) -> Request[Any]:
    asked = m.FetchPartition(partition, epoch, offset, fetched_epoch, partition_max_bytes=partition_max)
    topics = [m.FetchTopic(world.topic if topic is None else topic, topic_id or world.topic_id, [asked])]
    return m.FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=max_bytes, isolation_level=isolation, topics=topics)


FETCHES: list[Step] = [
    ("from the beginning", lambda w: fetch(w)),
    ("from within a batch", lambda w: fetch(w, 4)),
    ("at the end", lambda w: fetch(w, 6)),
    ("behind the end", lambda w: fetch(w, 7)),
    ("an empty partition", lambda w: fetch(w, 0, 1)),
    ("before the beginning", lambda w: fetch(w, -1)),
    ("an unknown topic", lambda w: fetch(w, topic="nowhere", topic_id=UNKNOWN_ID)),
    ("an unknown partition", lambda w: fetch(w, 0, 9)),
    ("the leader's epoch", lambda w: fetch(w, epoch=0)),
    ("an epoch to come", lambda w: fetch(w, epoch=5)),
    ("an epoch before all", lambda w: fetch(w, epoch=-2)),
    ("the epoch of records that were read", lambda w: fetch(w, 4, fetched_epoch=0)),
    ("an epoch that ended earlier", lambda w: fetch(w, 9, fetched_epoch=0, isolation=1)),
    ("records of an epoch to come", lambda w: fetch(w, 4, fetched_epoch=3)),
    ("an epoch that was read, before the beginning", lambda w: fetch(w, -1, fetched_epoch=0)),
    ("committed records", lambda w: fetch(w, isolation=1)),
    ("committed records behind the end", lambda w: fetch(w, 7, isolation=1)),
    ("committed records of an unknown partition", lambda w: fetch(w, 0, 9, isolation=1)),
    ("one byte of the partition", lambda w: fetch(w, partition_max=1)),
    ("one byte in all", lambda w: fetch(w, max_bytes=1)),
    ("less than no byte in all", lambda w: fetch(w, max_bytes=-1)),
    ("less than no byte of the partition", lambda w: fetch(w, partition_max=-1)),
    ("less than no byte at the end", lambda w: fetch(w, 6, max_bytes=-1)),
    ("no topics", lambda w: m.FetchRequest(max_wait_ms=0, min_bytes=1)),
]


def test_fetch(worlds: tuple[World, World]) -> None:
    compare(FETCHES, worlds, versions(ApiKey.FETCH))


def session_fetch(session_id: int, epoch: int, topics: list[Any], forgotten: list[Any] | None = None) -> Request[Any]:
    return m.FetchRequest(
        max_wait_ms=0,
        min_bytes=1,
        max_bytes=1 << 20,
        session_id=session_id,
        session_epoch=epoch,
        topics=topics,
        forgotten_topics_data=forgotten or [],
    )


@pytest.mark.parametrize("version", range(7, 19))
def test_fetch_sessions(worlds: tuple[World, World], version: int) -> None:
    answers = []
    for world in worlds:
        name: dict[str, Any] = {"topic": world.topic, "topic_id": world.topic_id}
        both = [
            m.FetchTopic(
                **name, partitions=[m.FetchPartition(index, -1, 0, partition_max_bytes=1 << 20) for index in (0, 1)]
            )
        ]
        at_end = [m.FetchTopic(**name, partitions=[m.FetchPartition(0, -1, 6, partition_max_bytes=1 << 20)])]
        ask = world.client.ask
        first = ask(session_fetch(0, 0, both), version)
        session = first.session_id
        assert session
        found = [
            first,
            ask(session_fetch(session, 1, at_end), version),
            ask(session_fetch(session, 2, []), version),
            ask(produce(world, batch()), 9),
            ask(session_fetch(session, 3, []), version),
            ask(session_fetch(session, 3, []), version),
            ask(session_fetch(session, 4, [], [m.ForgottenTopic(**name, partitions=[0])]), version),
            ask(session_fetch(session, 5, [], [m.ForgottenTopic(**name, partitions=[1])]), version),
            ask(session_fetch(session, 6, []), version),
            ask(session_fetch(0, 0, both), version),
        ]
        other = found[-1].session_id
        found.append(ask(session_fetch(other, -1, both), version))
        found.append(ask(session_fetch(other, 1, []), version))
        for answer in found:
            if isinstance(answer, m.FetchResponse):
                answer.session_id = {0: 0, session: 1, other: 2}[answer.session_id]
        answers.append([plain(answer, world) for answer in found])
    for number, (ours, theirs) in enumerate(zip(*answers, strict=True)):
        assert ours == theirs, f"Fetch v{version}, step {number} of the session: ours, then Kafka's"


def a_topic_goes_and_comes_again(world: World, version: int) -> list[Any]:
    """What a session contains about it, by partition."""
    topic = f"{world.prefix}-goes"
    topic_id = new_topic(world, topic)
    session, found = 0, []
    for epoch, asked in enumerate([(0, 1), (), (0,), (7,), (), (0,), (7, 8)]):
        if epoch == 1:
            world.client.ask(m.DeleteTopicsRequest([m.DeleteTopicState(topic)], [], 300_000), 6)
            gone = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            asked_again = m.MetadataRequest([m.MetadataRequestTopic(name=topic)], False)
            while world.client.ask(asked_again, 12).topics[0].error_code != gone:
                pass
            # Kafka's broker first forgets its name, and closes the partition a moment later.
            while world.client.ask(list_offsets(world, -1, topic=topic), 4).topics[0].partitions[0].error_code != gone:
                pass
        if epoch == 4:
            new_topic(world, topic)
        partitions = [m.FetchPartition(index, -1, 0, partition_max_bytes=1 << 20) for index in asked]
        topics = [m.FetchTopic(topic, topic_id, partitions)] if asked else []
        answer = world.client.ask(session_fetch(session, epoch, topics), version)
        session = session or answer.session_id
        assert (answer.error_code, answer.session_id) == (0, session)
        reported = [plain(partition, world) for each in answer.responses for partition in each.partitions]
        found.append(sorted(reported, key=lambda partition: partition["partition_index"]))
    return found


@pytest.mark.parametrize(("version", "codes"), [(12, {0, 3}), (13, {0, 3, 100, 103}), (18, {0, 3, 100, 103})])
def test_a_fetch_session_of_a_topic_that_goes_and_comes_again(
    worlds: tuple[World, World], version: int, codes: set[int]
) -> None:
    """A session with ids keeps the names of the topics that it has read."""
    ours, theirs = (a_topic_goes_and_comes_again(world, version) for world in worlds)
    assert ours == theirs
    assert {partition["error_code"] for step in ours for partition in step} == codes


def test_list_offsets(worlds: tuple[World, World]) -> None:
    steps: list[Step] = [
        (f"timestamp {time}", lambda w, time=time: list_offsets(w, time))  # type: ignore[misc]
        for time in (-7, -6, -5, -4, -3, -2, -1, 0, 1000, 1001, 2500, 3000, 3001)
    ]
    steps += [
        (f"timestamp {time} of an empty partition", lambda w, time=time: list_offsets(w, time, 1))  # type: ignore[misc]
        for time in (-3, -2, -1, 0)
    ]
    steps += [
        ("an unknown topic", lambda w: list_offsets(w, -1, topic="nowhere")),
        ("an unknown partition", lambda w: list_offsets(w, -1, 9)),
        ("the leader's epoch", lambda w: list_offsets(w, -1, epoch=0)),
        ("an epoch before all", lambda w: list_offsets(w, -1, epoch=-2)),
        ("an epoch to come", lambda w: list_offsets(w, -1, epoch=5)),
        (
            "one partition twice",
            lambda w: m.ListOffsetsRequest(
                -1,
                0,
                [m.ListOffsetsTopic(w.topic, [m.ListOffsetsPartition(0, -1, -1), m.ListOffsetsPartition(0, -1, -2)])],
            ),
        ),
    ]
    compare(steps, worlds, versions(ApiKey.LIST_OFFSETS))


def test_offset_for_leader_epoch(worlds: tuple[World, World]) -> None:
    def step(label: str, epoch: int, partition: int = 0, topic: str | None = None, current: int = -1) -> Step:
        asked = [m.OffsetForLeaderPartition(partition, current, epoch)]
        return label, lambda w: m.OffsetForLeaderEpochRequest(-1, [m.OffsetForLeaderTopic(topic or w.topic, asked)])

    steps = [step(f"epoch {epoch}", epoch) for epoch in (-2, -1, 0, 1, 5)]
    steps += [step(f"epoch {epoch} of an empty partition", epoch, 1) for epoch in (-1, 0, 1)]
    steps += [step(f"a leader's epoch of {current}", 0, current=current) for current in (0, 5, -2)]
    steps += [step("an unknown topic", 0, topic="nowhere"), step("an unknown partition", 0, 9)]
    compare(steps, worlds, versions(ApiKey.OFFSET_FOR_LEADER_EPOCH))


# --------------------------------------------------------------------------------------------- topics


def metadata(*topics: Any, create: bool = False, operations: bool = False) -> Request[Any]:
    return m.MetadataRequest(list(topics), create, False, operations)


def test_metadata(worlds: tuple[World, World]) -> None:
    named = m.MetadataRequestTopic
    steps: list[Step] = [
        ("by name", lambda w: metadata(named(name=w.topic), create=True)),
        ("without creating", lambda w: metadata(named(name=w.topic), named(name=f"{w.prefix}-none"))),
        ("twice the same", lambda w: metadata(named(name=w.topic), named(name=w.topic), create=True)),
        ("with operations", lambda w: metadata(named(name=w.topic), create=True, operations=True)),
        ("an internal topic that does not exist", lambda w: metadata(named(name="__share_group_state"))),
        ("an invalid name", lambda w: metadata(named(name="a b"), named(name=""), create=True)),
        ("by id", lambda w: metadata(named(w.topic_id, None), create=True)),
        ("by an unknown id", lambda w: metadata(named(UNKNOWN_ID, None), create=True)),
        ("by id and name", lambda w: metadata(named(w.topic_id, w.topic), create=True)),
        ("by nothing", lambda w: metadata(named(ZERO_UUID, None), create=True)),
        ("by an unknown id and a name", lambda w: metadata(named(UNKNOWN_ID, w.topic), create=True)),
    ]
    compare(steps, worlds, versions(ApiKey.METADATA))


def test_a_topic_that_asking_creates_is_there_for_the_next_who_asks(worlds: tuple[World, World]) -> None:
    name = f"{worlds[0].prefix}-asked-for"
    request = metadata(m.MetadataRequestTopic(name=name), create=True)
    first = [plain(world.client.ask(request, 12).topics, world) for world in worlds]
    assert first[0] == first[1]
    for world in worlds:
        while world.client.ask(request, 12).topics[0].error_code:
            pass


def create(*topics: m.CreatableTopic, validate: bool = True) -> Request[Any]:
    return m.CreateTopicsRequest(list(topics), 300_000, validate)


def topic(
    name: str, partitions: int = 1, replicas: int = 1, assigned: Any = (), **settings: str | None
) -> m.CreatableTopic:
    configs = [m.CreatableTopicConfig(key.replace("_", "."), value) for key, value in settings.items()]
    assignments = [m.CreatableReplicaAssignment(index, list(ids)) for index, ids in assigned]
    return m.CreatableTopic(name, partitions, replicas, assignments, configs)


def broker_wide(found: Any) -> None:
    """Kafka's test broker gets min.insync.replicas from its controller, as a setting for all brokers."""
    for result in found["topics"]:
        for setting in result["configs"] or []:
            if setting["name"] == "min.insync.replicas":
                setting["config_source"] = 5


CREATIONS: list[Step] = [
    ("a good one", lambda w: create(topic(f"{w.prefix}-new", 3))),
    ("defaults", lambda w: create(topic(f"{w.prefix}-new", -1, -1))),
    ("one that exists", lambda w: create(topic(w.topic))),
    ("one that collides", lambda w: create(topic(w.topic.replace("-", "."))), ),
    ("no name", lambda w: create(topic(""))),
    ("a space", lambda w: create(topic("a b"))),
    ("a dot", lambda w: create(topic("."))),
    ("250 characters", lambda w: create(topic("x" * 250))),
    ("no partitions", lambda w: create(topic(f"{w.prefix}-new", 0))),
    ("no partitions, and an unknown setting", lambda w: create(topic(f"{w.prefix}-new", 0, no_such="5"))),
    ("assigned elsewhere, and a wrong setting", lambda w: create(topic(f"{w.prefix}-new", -1, -1, [(0, [2])],
                                                                       retention_ms="x"))),
    ("a wrong setting in place of which a right one comes", lambda w: create(m.CreatableTopic(
        f"{w.prefix}-new", 1, 1, [], [m.CreatableTopicConfig("retention.ms", value) for value in ("x", "5")]))),
    ("too many partitions", lambda w: create(topic(f"{w.prefix}-new", 1_000_000))),
    ("no replicas", lambda w: create(topic(f"{w.prefix}-new", 1, 0))),
    ("two replicas", lambda w: create(topic(f"{w.prefix}-new", 1, 2))),
    ("assigned", lambda w: create(topic(f"{w.prefix}-new", -1, -1, [(0, [1]), (1, [1])]))),
    ("assigned and counted", lambda w: create(topic(f"{w.prefix}-new", 1, 1, [(0, [1])]))),
    ("assigned and partitions", lambda w: create(topic(f"{w.prefix}-new", 1, -1, [(0, [1])]))),
    ("assigned to nobody", lambda w: create(topic(f"{w.prefix}-new", -1, -1, [(0, [])]))),
    ("assigned elsewhere", lambda w: create(topic(f"{w.prefix}-new", -1, -1, [(0, [2])]))),
    ("assigned twice", lambda w: create(topic(f"{w.prefix}-new", -1, -1, [(0, [1, 1])]))),
    ("assigned with a gap", lambda w: create(topic(f"{w.prefix}-new", -1, -1, [(1, [1])]))),
    ("one assignment twice", lambda w: create(topic(f"{w.prefix}-new", -1, -1, [(0, [1]), (0, [1])]))),
    ("a setting", lambda w: create(topic(f"{w.prefix}-new", retention_ms="5", cleanup_policy="compact,delete"))),
    ("an unknown setting", lambda w: create(topic(f"{w.prefix}-new", no_such="5"))),
    ("a word for a number", lambda w: create(topic(f"{w.prefix}-new", retention_ms="abc"))),
    ("a number too small", lambda w: create(topic(f"{w.prefix}-new", retention_ms="-2"))),
    ("a number too large", lambda w: create(topic(f"{w.prefix}-new", min_cleanable_dirty_ratio="2"))),
    ("an unknown word", lambda w: create(topic(f"{w.prefix}-new", cleanup_policy="foo"))),
    ("a null", lambda w: create(topic(f"{w.prefix}-new", retention_ms=None))),
    ("the same twice", lambda w: create(topic(f"{w.prefix}-new"), topic(f"{w.prefix}-new"))),
    ("two", lambda w: create(topic(f"{w.prefix}-new"), topic(f"{w.prefix}-other", 2))),
    ("6,000 partitions twice", lambda w: create(topic(f"{w.prefix}-a", 6000), topic(f"{w.prefix}-b", 6000))),
    ("the most partitions", lambda w: create(topic(f"{w.prefix}-a", 9999))),
    ("one too many", lambda w: create(topic(f"{w.prefix}-a", 10_000))),
    ("one too many by a setting", lambda w: create(topic(f"{w.prefix}-a", 9999, retention_ms="5"))),
    ("the most in two", lambda w: create(topic(f"{w.prefix}-a", 9000), topic(f"{w.prefix}-b", 998))),
    ("one too many in two", lambda w: create(topic(f"{w.prefix}-a", 9000), topic(f"{w.prefix}-b", 999))),
    ("too many, one by default", lambda w: create(topic(f"{w.prefix}-a", 10_000), topic(f"{w.prefix}-b", -1))),
    ("many, and less than none", lambda w: create(topic(f"{w.prefix}-a", 9999), topic(f"{w.prefix}-b", -5))),
    ("many, and a bad name", lambda w: create(topic(f"{w.prefix}-a", 9999), topic("a b"))),
    ("too many, and a bad name", lambda w: create(topic(f"{w.prefix}-a", 6000), topic("a b", 6000))),
    ("too many, and one that exists", lambda w: create(topic(f"{w.prefix}-a", 9999), topic(w.topic, 2))),
    ("too many, some of them twice", lambda w: create(topic(f"{w.prefix}-a"), topic(f"{w.prefix}-b", 10_000),
                                                      topic(f"{w.prefix}-a"))),
    ("many, twice", lambda w: create(topic(f"{w.prefix}-a", 9999), topic(f"{w.prefix}-a", 9999))),
]  # fmt: skip


def test_create_topics(worlds: tuple[World, World]) -> None:
    compare(CREATIONS, worlds, versions(ApiKey.CREATE_TOPICS), broker_wide)


def test_messages_of_create_topics_are_kafkas(worlds: tuple[World, World]) -> None:
    for label, build in CREATIONS:
        ours, theirs = (
            sorted(str(result.error_message) for result in world.client.ask(build(world), 7).topics) for world in worlds
        )
        assert ours == theirs, label


def test_create_and_delete_topics(worlds: tuple[World, World]) -> None:
    for version in range(1, 7):
        answers = []
        for world in worlds:
            names = [f"{world.prefix}-{version}-{letter}" for letter in "ab"]
            made = world.client.ask(create(*map(topic, names), validate=False), 5)
            broker_wide(found := plain(made, world))
            if version < 6:
                request = m.DeleteTopicsRequest([], [*names, f"{world.prefix}-none", "a b"], 300_000)
            else:
                by_name = [m.DeleteTopicState(name) for name in [*names, f"{world.prefix}-none"]]
                other = [m.DeleteTopicState(None, UNKNOWN_ID), m.DeleteTopicState(None)]
                twice = [m.DeleteTopicState("x", UNKNOWN_ID), m.DeleteTopicState(None)] * 2
                request = m.DeleteTopicsRequest([*by_name, *other, *twice], [], 300_000)
            deleted = plain(world.client.ask(request, version), world)
            answers.append((found, deleted))
        assert answers[0] == answers[1], f"DeleteTopics v{version}: ours, then Kafka's"


def test_delete_a_topic_by_id(worlds: tuple[World, World]) -> None:
    answers = []
    for world in worlds:
        request = m.DeleteTopicsRequest([m.DeleteTopicState(None, world.topic_id)], [], 300_000)
        answers.append([plain(world.client.ask(request, 6), world) for _ in range(2)])
    assert answers[0] == answers[1]


def test_describe_topic_partitions(worlds: tuple[World, World]) -> None:
    asked = m.TopicRequest
    cursor = m.DescribeTopicPartitionsRequestCursor
    steps: list[Step] = [
        ("one", lambda w: m.DescribeTopicPartitionsRequest([asked(w.topic)])),
        ("twice", lambda w: m.DescribeTopicPartitionsRequest([asked(w.topic), asked(w.topic)])),
        ("one and none", lambda w: m.DescribeTopicPartitionsRequest([asked(w.topic), asked(f"{w.prefix}-a")])),
        ("a page", lambda w: m.DescribeTopicPartitionsRequest([asked(w.topic)], 1)),
        ("the next page", lambda w: m.DescribeTopicPartitionsRequest([asked(w.topic)], 1, cursor(w.topic, 1))),
        ("two pages", lambda w: m.DescribeTopicPartitionsRequest([asked(w.topic), asked(f"{w.prefix}-z")], 2)),
        ("an invalid name", lambda w: m.DescribeTopicPartitionsRequest([asked("a b")])),
        (
            "a page of another",
            lambda w: m.DescribeTopicPartitionsRequest([asked(w.topic)], 1, cursor(f"{w.prefix}-a", 0)),
        ),
        ("a page before all", lambda w: m.DescribeTopicPartitionsRequest([asked(w.topic)], 1, cursor(w.topic, -1))),
        ("a page without room", lambda w: m.DescribeTopicPartitionsRequest([asked(w.topic)], -1, cursor(w.topic, 1))),
    ]
    compare(steps, worlds, versions(ApiKey.DESCRIBE_TOPIC_PARTITIONS))


# --------------------------------------------------------------------------------------------- cluster and settings


def test_describe_cluster(worlds: tuple[World, World]) -> None:
    steps: list[Step] = [
        ("brokers", lambda w: m.DescribeClusterRequest()),
        ("operations", lambda w: m.DescribeClusterRequest(True)),
        ("controllers", lambda w: m.DescribeClusterRequest(False, 2)),
        ("something else", lambda w: m.DescribeClusterRequest(False, 3)),
    ]
    compare(steps, worlds, versions(ApiKey.DESCRIBE_CLUSTER))


def test_api_versions(worlds: tuple[World, World]) -> None:
    for version in range(5):
        ours, theirs = (world.client.ask(m.ApiVersionsRequest("test", "1"), version) for world in worlds)
        assert ours.error_code == theirs.error_code == 0
        known = {api.api_key: (api.min_version, api.max_version) for api in theirs.api_keys}
        for api in ours.api_keys:
            assert known[api.api_key] == (api.min_version, api.max_version)
    ours, theirs = (world.client.ask(m.ApiVersionsRequest("-bad-", "1"), 4) for world in worlds)
    assert ours.error_code == theirs.error_code == 42
    assert ours.api_keys == theirs.api_keys == []


# --------------------------------------------------------------------------------------------- groups and producers


def test_find_coordinator(worlds: tuple[World, World]) -> None:
    steps: list[Step] = [
        ("of a group", lambda w: m.FindCoordinatorRequest(w.prefix, 0)),
        ("of nobody", lambda w: m.FindCoordinatorRequest("", 0)),
        ("of an unknown kind", lambda w: m.FindCoordinatorRequest(w.prefix, 7)),
        ("of a share group", lambda w: m.FindCoordinatorRequest(w.prefix, 2)),
        ("of an unknown kind, by list", lambda w: m.FindCoordinatorRequest("", 7, [w.prefix])),
        ("of a malformed share group", lambda w: m.FindCoordinatorRequest("", 2, [w.prefix])),
        ("of two groups", lambda w: m.FindCoordinatorRequest("", 0, [w.prefix, "other"])),
    ]
    until_ready(worlds[1], m.FindCoordinatorRequest(worlds[1].prefix, 0), 3)
    compare(steps, worlds, versions(ApiKey.FIND_COORDINATOR))


def test_init_producer_id(worlds: tuple[World, World]) -> None:
    def without_id(found: Any) -> None:
        if found["producer_id"] >= 0:
            found["producer_id"] = "some"

    until_ready(worlds[1], m.InitProducerIdRequest(None, 1000), 4)
    steps: list[Step] = [
        ("a new one", lambda w: m.InitProducerIdRequest(None, 1000)),
        ("with an empty transactional id", lambda w: m.InitProducerIdRequest("", 1000)),
        ("again", lambda w: m.InitProducerIdRequest(None, 1000, 5, 2)),
        ("half of an identity", lambda w: m.InitProducerIdRequest(None, 1000, 5, -1)),
    ]
    compare(steps, worlds, versions(ApiKey.INIT_PRODUCER_ID), without_id)


def commit(world: World, metadata: str = "", generation: int = -1, topic: str | None = None) -> Request[Any]:
    partitions = [m.OffsetCommitRequestPartition(0, 1, -1, metadata), m.OffsetCommitRequestPartition(9, 1, -1, "")]
    committed = m.OffsetCommitRequestTopic(topic or world.topic, UNKNOWN_ID if topic else world.topic_id, partitions)
    return m.OffsetCommitRequest(f"{world.prefix}-none", generation, "", topics=[committed])


def join(group: str, session: int = 10_000, member: str = "", kind: str = "consumer", names: str = "r") -> Request[Any]:
    protocols = [m.JoinGroupRequestProtocol(name, b"") for name in names]
    return m.JoinGroupRequest(group, session, 10_000, member, None, kind, protocols)


def fetched(world: World, topic_id: bytes) -> Request[Any]:
    topic = m.OffsetFetchRequestTopics(world.topic, topic_id, [0, 1])
    return m.OffsetFetchRequest(groups=[m.OffsetFetchRequestGroup(f"{world.prefix}-none", topics=[topic])])


STRANGERS: dict[ApiKey, list[Step]] = {
    ApiKey.HEARTBEAT: [
        ("of no member", lambda w: m.HeartbeatRequest(f"{w.prefix}-none", 1, "x")),
        ("of no group", lambda w: m.HeartbeatRequest("", 1, "x")),
    ],
    ApiKey.LEAVE_GROUP: [
        ("one", lambda w: m.LeaveGroupRequest(f"{w.prefix}-none", "x")),
        ("some", lambda w: m.LeaveGroupRequest(f"{w.prefix}-none", members=[m.MemberIdentity("x")])),
    ],
    ApiKey.SYNC_GROUP: [("of no member", lambda w: m.SyncGroupRequest(f"{w.prefix}-none", 1, "x"))],
    ApiKey.JOIN_GROUP: [
        ("no group", lambda w: join("")),
        ("a short session", lambda w: join(f"{w.prefix}-none", 1)),
        ("an unknown member", lambda w: join(f"{w.prefix}-none", member="x")),
        ("no protocols", lambda w: join(f"{w.prefix}-none", names="")),
        ("no type", lambda w: join(f"{w.prefix}-none", kind="")),
    ],
    ApiKey.OFFSET_COMMIT: [
        ("without a group", lambda w: commit(w)),
        ("of a generation", lambda w: commit(w, generation=3)),
        ("with a long note", lambda w: commit(w, "x" * 5_000)),
        ("for no topic", lambda w: commit(w, topic=f"{w.prefix}-none")),
    ],
    ApiKey.OFFSET_FETCH: [
        ("some", lambda w: m.OffsetFetchRequest(w.prefix, [m.OffsetFetchRequestTopic(w.topic, [0, 7])])),
        ("all", lambda w: m.OffsetFetchRequest(w.prefix, None)),
        ("some of some", lambda w: fetched(w, w.topic_id)),
        ("of an unknown id", lambda w: fetched(w, UNKNOWN_ID)),
        ("all of some", lambda w: m.OffsetFetchRequest(groups=[m.OffsetFetchRequestGroup(w.prefix, topics=None)])),
        ("of a member", lambda w: m.OffsetFetchRequest(groups=[m.OffsetFetchRequestGroup(w.prefix, "x", 3, None)])),
    ],
    # Not the group with the empty name: all tests have the same one on the Kafka that they share.
    ApiKey.DESCRIBE_GROUPS: [
        ("two", lambda w: m.DescribeGroupsRequest([f"{w.prefix}-none", f"{w.prefix}-nil"])),
        ("what is allowed", lambda w: m.DescribeGroupsRequest([f"{w.prefix}-none"], True)),
    ],
    ApiKey.DELETE_GROUPS: [
        ("twice", lambda w: m.DeleteGroupsRequest([f"{w.prefix}-none", f"{w.prefix}-nil", f"{w.prefix}-none"]))
    ],
}
"""Requests to a group that does not exist."""


@pytest.mark.parametrize("key", STRANGERS)
def test_groups_that_do_not_exist(worlds: tuple[World, World], key: ApiKey) -> None:
    for world in worlds:
        until_ready(world, m.FindCoordinatorRequest(world.prefix, 0), 3)
        for group in ("", world.prefix, f"{world.prefix}-none", f"{world.prefix}-nil"):
            until_ready(world, m.OffsetFetchRequest(group, []), 7)
    compare(STRANGERS[key], worlds, versions(key))


def test_a_version_that_nobody_has(worlds: tuple[World, World]) -> None:
    """Both end the connection; only ApiVersions is answered, in v0 (KIP-511)."""
    for world in worlds:
        request = bytes.fromhex("000000120012270f000000050004") + b"test" + bytes(4)
        world.client.socket.sendall(request)
        answer = world.client.receive_frame()
        assert answer[:6] == b"\0\0\0\5\0\x23"
        world.client.socket.sendall(bytes.fromhex("0000000a0003270f00000006ffff"))
        assert world.client.closed()
