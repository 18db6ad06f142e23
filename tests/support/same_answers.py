"""One request to muster and to Apache Kafka, and the differences between the answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from muster.errors import ErrorCode, UnsupportedVersionError
from muster.protocol import messages as m
from muster.protocol.api import ADVERTISED, REQUESTS, ApiKey
from muster.protocol.primitives import ZERO_UUID, Request, Struct
from tests.support.brokers import RawClient
from tests.support.written import build_batch

PATIENCE_S = 300.0
"""Only in case of a hang."""

UNKNOWN_ID = b"\x51" * 16

VOLATILE = {"host", "port", "cluster_id", "documentation", "error_message", "batch_index_error_message"}
"""Fields whose values differ from broker to broker. For messages, only their presence is compared."""

UNORDERED = {"topics", "responses", "partitions", "results", "configs", "brokers", "synonyms", "groups"}
"""Lists whose order Kafka does not define."""


class World(NamedTuple):
    """The environment of a case: one broker, its connection, a topic with records, names that do not exist."""

    client: RawClient
    topic: str
    topic_id: bytes
    prefix: str


_NOT_READY = {ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE}

Step = tuple[str, Callable[[World], Request[Any]]]


def connect(bootstrap: str, prefix: str) -> World:
    client = RawClient(bootstrap)
    topic = f"{prefix}-topic"
    settings = [m.CreatableTopicConfig("retention.ms", "-1")]
    created = client.ask(m.CreateTopicsRequest([m.CreatableTopic(topic, 2, 1, [], settings)], 300_000), 7)
    assert created.topics[0].error_code == 0, created
    world = World(client, topic, created.topics[0].topic_id, prefix)
    for _ in range(2):
        batch = bytes(build_batch([(1000, b"k", b"v", []), (3000, None, b"w", []), (2000, b"k", None, [])]))
        while client.ask(produce(world, batch), 9).responses[0].partition_responses[0].error_code:
            pass  # the new topic's leader is being announced
    while client.ask(list_offsets(world, -1, 1), 4).topics[0].partitions[0].error_code:
        pass
    return world


def ready_group(ask: Callable[[Request[Any], int], Any], group: str, topic: str) -> bytes:
    """Wait until a group's coordinator and a topic exist; returns the topic's id."""
    while ask(m.FindCoordinatorRequest(coordinator_keys=[group]), 4).coordinators[0].error_code:
        pass
    fetch = m.OffsetFetchRequest(groups=[m.OffsetFetchRequestGroup(group, topics=None)])
    while ask(fetch, 8).groups[0].error_code in _NOT_READY:
        pass
    while True:
        (found,) = ask(m.MetadataRequest([m.MetadataRequestTopic(name=topic)]), 12).topics
        if not found.error_code and found.partitions:
            return bytes(found.topic_id)


def until_ready(world: World, request: Request[Any], version: int) -> None:
    """Ask until the broker has created what it creates at the first request."""
    deadline = time.monotonic() + PATIENCE_S
    while error := world.client.ask(request, version).error_code:
        assert time.monotonic() < deadline, ErrorCode(error)
        time.sleep(0.05)


def plain(value: Any, world: World, name: str = "") -> Any:
    """A response as dictionaries and lists that can be compared between brokers."""
    if isinstance(value, Struct):
        return {field: plain(getattr(value, field), world, field) for field in value.__slots__}
    if isinstance(value, list):
        found = [plain(one, world) for one in value]
        return sorted(found, key=repr) if name in UNORDERED else found
    if name in VOLATILE:
        return f"some {name}" if value else value
    if name == "topic_id":
        return {ZERO_UUID: "none", UNKNOWN_ID: "unknown", world.topic_id: "the topic's"}.get(value, "another's")
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    return value


def differences(ours: Any, theirs: Any, path: str = "") -> list[str]:
    """The differences between two answers, one line each."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        return [line for key in ours for line in differences(ours[key], theirs[key], f"{path}.{key}")]
    if isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        pairs = enumerate(zip(ours, theirs, strict=True))
        return [line for at, (one, other) in pairs for line in differences(one, other, f"{path}[{at}]")]
    return [] if ours == theirs else [f"{path}: ours {ours!r}, Kafka's {theirs!r}"]


def compare(
    steps: list[Step], worlds: tuple[World, World], versions: Iterable[int], mask: Callable[[Any], None] | None = None
) -> None:
    """Send both brokers each request in each version that can express it."""
    wrong = []
    for version in versions:
        asked = 0
        for label, build in steps:
            try:
                answers = [plain(world.client.ask(build(world), version), world) for world in worlds]
            except (UnsupportedVersionError, AttributeError, TypeError):
                continue  # this version has no field for it
            asked += 1
            if mask is not None:
                for answer in answers:
                    mask(answer)
            wrong += [f"v{version}, {label}: {line}" for line in differences(*answers)]
        assert asked, f"no request fits version {version}"
    assert not wrong, "\n".join(wrong)


def versions(key: ApiKey) -> range:
    """The versions that both support."""
    first, last = ADVERTISED[key]
    return range(max(first, REQUESTS[key].MIN_VERSION), last + 1)


def produce(world: World, records: bytes, partition: int = 0, acks: int = -1, topic: str | None = None) -> Request[Any]:
    data = m.TopicProduceData(
        world.topic if topic is None else topic, ZERO_UUID, [m.PartitionProduceData(partition, records)]
    )
    return m.ProduceRequest(acks=acks, timeout_ms=300_000, topic_data=[data])


def by_id(request: Any, topic_id: bytes) -> Any:
    """The same request for versions that name topics by id."""
    topics = request.topic_data if isinstance(request, m.ProduceRequest) else request.topics
    for topic in topics:
        topic.topic_id = topic_id
    return request


def list_offsets(
    world: World, timestamp: int, partition: int = 0, *, topic: str | None = None, epoch: int = -1
) -> Request[Any]:
    asked = [m.ListOffsetsPartition(partition, epoch, timestamp)]
    return m.ListOffsetsRequest(-1, 0, [m.ListOffsetsTopic(topic or world.topic, asked)])
