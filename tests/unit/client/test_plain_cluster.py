"""Blocking calls to several brokers: some that are suspended, and leaders that move while a range is read."""

from __future__ import annotations

import struct
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from muster.client.config import ClientConfig
from muster.client.plain import cluster as clusters
from muster.client.plain.cluster import Cluster, Leader
from muster.client.plain.fetch import FetchSettings, RangeReader
from muster.errors import ErrorCode, KafkaConnectionError, UnsupportedVersionError
from muster.model import TopicPartition
from muster.protocol import framing
from muster.protocol import messages as m
from muster.protocol.records.record_batch import BatchBuilder

T0 = TopicPartition("t", 0)
ID = bytes(range(16))
REQUEST_S = 30.0


class World:
    """Brokers 1 to 3 at ports 1 to 3. Requests are recorded in `asked`; a `frozen` broker takes all the time there
    is."""

    def __init__(self) -> None:
        self.now = 0.0
        self.frozen: set[int] = set()
        self.asked: list[tuple[int, str]] = []
        self.versions: dict[type[Any], int] = {}
        self.last: Any = None
        self.leader, self.epoch = 1, 5
        self.fetched: Callable[[int, m.FetchRequest], m.FetchResponse] = lambda port, request: m.FetchResponse()

    def answer(self, port: int, request: Any) -> Any:
        name = type(request).__name__.removesuffix("Request")
        self.asked.append((port, name))
        self.last = request
        if port in self.frozen:
            self.now += REQUEST_S
            raise TimeoutError("timed out")
        if name == "Metadata":
            brokers = [m.MetadataResponseBroker(n, "h", n) for n in (1, 2, 3)]
            part = m.MetadataResponsePartition(0, 0, self.leader, self.epoch)
            return m.MetadataResponse(brokers=brokers, topics=[m.MetadataResponseTopic(0, "t", ID, partitions=[part])])
        if name == "ListOffsets":
            parts = [m.ListOffsetsPartitionResponse(partition_index=0, offset=7)]
            return m.ListOffsetsResponse(topics=[m.ListOffsetsTopicResponse("t", parts)])
        return self.fetched(port, request)


class Link:
    """Replaces a connection."""

    world: World

    def __init__(self, _host: str, port: int, *_: Any) -> None:
        self.port = port
        self.sent: list[Any] = []

    @property
    def idle(self) -> bool:
        return not self.sent

    def version(self, request_type: type[Any], newest: int | None = None) -> int:
        found: int = self.world.versions.get(request_type, request_type.MAX_VERSION)
        return found

    def send(self, request: Any, _newest: int | None = None) -> None:
        self.sent.append(request)

    def receive(self) -> Any:
        return self.world.answer(self.port, self.sent.pop(0))

    def ask(self, request: Any, newest: int | None = None) -> Any:
        self.send(request, newest)
        return self.receive()

    def close(self) -> None:
        return


@pytest.fixture
def world(monkeypatch):
    found = Link.world = World()
    sleep = lambda s: setattr(found, "now", found.now + s)  # noqa: E731
    monkeypatch.setattr(clusters, "time", SimpleNamespace(monotonic=lambda: found.now, sleep=sleep))
    monkeypatch.setattr(clusters, "PlainConnection", Link)
    return found


def cluster(**settings: Any) -> Cluster:
    return Cluster(ClientConfig(bootstrap_servers=("h:1", "h:2"), **settings))


def test_a_suspended_broker_is_asked_last_until_it_answers(world):
    found = cluster()
    world.frozen = {1}
    found.topics(["t"])
    assert world.asked == [(1, "Metadata"), (2, "Metadata")]
    world.asked.clear()
    found.topics(["t"])
    assert world.asked == [(2, "Metadata")]
    world.frozen = {2, 3}
    world.asked.clear()
    found.topics(["t"])
    assert world.asked == [(2, "Metadata"), (3, "Metadata"), (1, "Metadata")]
    world.asked.clear()
    found.topics(["t"])
    assert world.asked == [(1, "Metadata")]


def test_a_suspended_leader_takes_the_time_of_one_try_only(world):
    """The first attempt takes all the time of one request; the second one finds the new leader."""
    found = cluster()
    found.topics(["t"])
    world.frozen, world.leader, world.epoch = {1}, 2, 6
    assert found.list_offsets({T0: -1}) == {T0: 7}
    assert world.now < 2 * REQUEST_S
    assert world.asked[1:] == [(1, "ListOffsets"), (2, "Metadata"), (2, "ListOffsets")]


def test_when_all_stand_still_there_is_an_end_of_it(world):
    world.frozen = {1, 2, 3}
    with pytest.raises(KafkaConnectionError, match="no answer within 30 s"):
        cluster().list_offsets({T0: -1})


def test_without_recovery_only_known_brokers_are_asked(world):
    """KIP-899: metadata.recovery.strategy=none."""
    found = cluster(metadata_recovery_strategy="none")
    found.topics(["t"])
    found._nodes = {3: ("h", 3)}
    assert found._metadata_addresses() == [("h", 3)]
    assert cluster()._metadata_addresses() == [("h", 1), ("h", 2)]


def test_brokers_before_kafka_0_11_are_asked_for_metadata_too(world):
    """Their request versions cannot say that no topic should be created."""
    world.versions = {m.MetadataRequest: 1}
    cluster().topics(["t"])
    assert framing.encode_request(world.last, 1, 1, "")


def test_brokers_before_kafka_0_10_1_are_not_asked_for_offsets_by_time(world):
    """They only know the times of segments, so the offset would be another record's."""
    world.versions = {m.ListOffsetsRequest: 0}
    found = cluster()
    assert found.list_offsets({T0: -1}) == {T0: 7}
    with pytest.raises(UnsupportedVersionError, match="by timestamp"):
        found.list_offsets({T0: 5})


def batch(base: int) -> bytes:
    builder = BatchBuilder()
    builder.append(1000, None, b"x", [])
    built = bytearray(builder.build())
    struct.pack_into(">q", built, 0, base)
    return bytes(built)


def moves(epoch: int) -> Callable[[int, m.FetchRequest], m.FetchResponse]:
    """Broker 1 says that broker 2 is the leader now."""

    def fetched(port: int, request: m.FetchRequest) -> m.FetchResponse:
        offset = request.topics[0].partitions[0].fetch_offset
        if port == 1:
            hint = m.FetchResponseLeaderIdAndEpoch(2, epoch)
            part = m.PartitionData(0, ErrorCode.NOT_LEADER_OR_FOLLOWER, current_leader=hint)
            nodes = [m.FetchResponseNodeEndpoint(2, "h", 2)]
        else:
            part, nodes = m.PartitionData(0, 0, 9, records=batch(offset)), []
        return m.FetchResponse(responses=[m.FetchableTopicResponse("t", ID, [part])], node_endpoints=nodes)

    return fetched


def read(world: World) -> int:
    """How many of three records a reader gets whose metadata says that broker 1 is the leader."""
    reader: Any = RangeReader(FetchSettings(ClientConfig()), T0, 0, 3, ID)
    reader._cluster = found = cluster()
    found.topics(["t"])
    assert found.leader(T0) == Leader(1, 5)
    world.asked.clear()
    return sum(rows.num_rows for rows in reader.batches())


def test_a_reader_goes_where_the_answer_says_without_a_pause(world):
    """KIP-951."""
    world.fetched = moves(epoch=6)
    assert read(world) == 3
    assert world.asked == [(1, "Fetch"), *[(2, "Fetch")] * 3]
    assert world.now == 0


def test_a_hint_that_is_not_newer_is_not_followed(world):
    """The reader pauses and asks for metadata, which may know more by then."""

    def moved(port: int, request: m.FetchRequest) -> m.FetchResponse:
        world.leader, world.epoch = 2, 6
        return moves(epoch=5)(port, request)

    world.fetched = moved
    assert read(world) == 3
    assert world.asked[:2] == [(1, "Fetch"), (1, "Metadata")]
    assert world.now > 0
