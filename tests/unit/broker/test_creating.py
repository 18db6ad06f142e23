"""Topics are created a slice at a time: what others do between two slices, and what a broken disk does to them."""

from __future__ import annotations

import errno
import os
from collections.abc import AsyncIterator, Generator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from muster.broker.broker import Broker
from muster.broker.handlers.create_topics import TopicNeeds, _creating, create_topics
from muster.broker.handlers.metadata import MetadataNeeds as Described
from muster.broker.handlers.metadata import metadata
from muster.broker.net.calls import at_once
from muster.broker.net.slices import Slices, Work
from muster.broker.topics import changes as topic_changes
from muster.broker.topics.catalogue import FILE, TopicToCreate
from muster.errors import ErrorCode
from muster.model import GROUP_METADATA_TOPIC
from muster.protocol import messages as m
from muster.protocol.primitives import ZERO_UUID
from tests.support import brokers
from tests.support.brokers import RawClient, log_of, topic_of
from tests.support.faulty_disk import FaultyDisk
from tests.support.held_disk import Asked
from tests.support.written import build_batch

RECORD = bytes(build_batch([(1_700_000_000_000, b"k", b"v", [])]))
TWO = [TopicToCreate("a", 1, {}), TopicToCreate("b", 1, {})]


def admin(broker: Broker) -> TopicNeeds:
    """What the handlers of creations need."""
    return TopicNeeds(broker.config, broker.cluster, broker.topics, broker.changes)


class StuckDisk(FaultyDisk):
    """Some folders cannot be renamed: a mount point, for example."""

    stuck: tuple[str, ...] = ()

    def replace(self, source: Path, target: Path) -> None:
        if source.name in self.stuck:
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), str(source))
        super().replace(source, target)


@pytest.fixture
def disk() -> StuckDisk:
    return StuckDisk()


@pytest.fixture
async def broker(tmp_path: Path, disk: StuckDisk) -> AsyncIterator[Broker]:
    async with brokers.running(tmp_path / "data", {"offsets.topic.num.partitions": 2}, disk) as found:
        yield found


def delete(broker: Broker, name: str) -> None:
    topic = topic_of(broker, name)
    broker.changes.delete_topic(topic)


async def test_a_topic_deleted_before_its_turn_gets_no_partitions(broker: Broker) -> None:
    creating = broker.changes.creating(TWO)
    next(creating)
    delete(broker, "b")
    at_once(creating)
    assert broker.partitions.get("a", 0) is not None
    assert broker.partitions.get("b", 0) is None
    assert not (broker.config.data_dir / "b-0").exists()


async def test_a_topic_created_again_before_its_turn_keeps_its_own_log(broker: Broker) -> None:
    creating = broker.changes.creating(TWO)
    next(creating)
    delete(broker, "b")
    broker.changes.create_topic("b", 1, {"max.message.bytes": "77"})
    at_once(creating)
    found = log_of(broker, "b", 0)
    assert found.config.max_message_bytes == 77


async def test_groups_are_not_served_from_a_topic_that_is_deleted_while_it_is_made(broker: Broker) -> None:
    creating = broker.changes.creating([TopicToCreate(GROUP_METADATA_TOPIC, 2, {})])
    next(creating)
    delete(broker, GROUP_METADATA_TOPIC)
    at_once(creating)
    assert not broker.groups.serving


async def test_no_topic_takes_the_place_of_one_that_is_still_to_be_removed(tmp_path: Path) -> None:
    """The next start removes what is marked as being deleted, including records of a new topic with that name."""
    disk = StuckDisk()
    async with brokers.running(tmp_path / "data", files=disk) as broker:
        broker.changes.create_topic("t", 1, {})
        disk.stuck = ("t-0",)
        delete(broker, "t")
        with pytest.raises(OSError, match="not removed yet"):
            broker.changes.create_topic("t", 1, {})
        disk.stuck = ()
        broker.changes.create_topic("t", 1, {})
        log = log_of(broker, "t", 0)
        log.append(RECORD, now=1_700_000_000_000)
    async with brokers.running(tmp_path / "data") as broker:
        log = log_of(broker, "t", 0)
        assert log.log_end_offset == 1


def ask_for(client: RawClient, *names: str, partitions: int = 1) -> dict[str, int]:
    asked = m.CreateTopicsRequest([m.CreatableTopic(name, partitions, 1) for name in names], 20_000)
    return {topic.name: topic.error_code for topic in client.ask(asked, 7).topics}


async def test_one_request_for_many_topics_writes_the_catalogue_once(broker: Broker, disk: StuckDisk) -> None:
    """The catalogue is synced each time, and has a line for each topic: thousands of writes took minutes."""
    names = [f"t{number}" for number in range(300)]
    before = disk.syncs
    with RawClient(broker.bootstrap) as client:
        assert await brokers.in_thread(ask_for, client, *names) == dict.fromkeys(names, 0)
    assert disk.syncs - before < 10
    assert all(broker.partitions.get(name, 0) is not None for name in names)


@pytest.fixture
def added(monkeypatch: pytest.MonkeyPatch) -> list[Work]:
    """Work that is done in slices, between other requests."""
    found = []
    add = Slices.add

    def note(slices: Slices, work: Work, **named: Any) -> None:
        found.append(work)
        add(slices, work, **named)

    monkeypatch.setattr(Slices, "add", note)
    return found


async def test_many_partitions_are_made_between_what_others_ask(broker: Broker, added: list[Work]) -> None:
    with RawClient(broker.bootstrap) as client:
        assert await brokers.in_thread(partial(ask_for, partitions=50), client, "few") == {"few": 0}
        assert not added
        assert await brokers.in_thread(partial(ask_for, partitions=51), client, "many") == {"many": 0}
    assert added
    assert broker.partitions.get("many", 50) is not None


async def test_many_topics_are_deleted_between_what_others_ask(
    broker: Broker, disk: StuckDisk, added: list[Work]
) -> None:
    def ask(client: RawClient, *names: str) -> list[tuple[str | None, int]]:
        answer = client.ask(m.DeleteTopicsRequest([], list(names), 20_000), 5)
        return [(each.name, each.error_code) for each in answer.responses]

    names = [f"t{number}" for number in range(300)]
    broker.changes.create_topics([TopicToCreate(name, 1, {}) for name in names])
    unknown, twice = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INVALID_REQUEST
    before = disk.syncs
    with RawClient(broker.bootstrap) as client:
        found = await brokers.in_thread(ask, client, "none", "x", *names, "x")
    assert found == [("none", unknown), *((name, 0) for name in names), ("x", twice)]
    assert added
    assert disk.syncs - before < 10, "the catalogue is written once"
    assert not len(broker.topics)


def commit(group_id: str, *topics: str, partitions: int = 1) -> m.OffsetCommitRequest:
    offsets = [m.OffsetCommitRequestPartition(index, 7, -1, "") for index in range(partitions)]
    return m.OffsetCommitRequest(group_id, topics=[m.OffsetCommitRequestTopic(t, ZERO_UUID, offsets) for t in topics])


def committed(broker: Broker, topic: str) -> int:
    """The number of offsets of a topic, in all groups."""
    served_shards = broker.groups.runtime._served.values()
    return sum(name == topic for served in served_shards for _, name, _, _ in served.shard.offsets)


async def test_a_topic_with_many_partitions_and_groups_is_deleted_a_little_at_a_time(broker: Broker) -> None:
    """Each step removes at most some offsets or one folder: other requests are served in between."""
    topic, _ = broker.changes.create_topics([TopicToCreate("t", 300, {}), TopicToCreate("u", 1, {})])
    for number in range(10):
        Asked(broker, commit(f"g{number}", "t", partitions=300), 8)
        Asked(broker, commit(f"g{number}", "u"), 8)
    folder = broker.config.data_dir
    before = (300 * 10, 300)
    for _ in broker.changes.deleting([topic]):
        assert broker.partitions.get("t", 0) is None
        left = committed(broker, "t"), sum(path.name[2:].isdigit() for path in folder.glob("t-*"))
        assert before[0] - left[0] <= 100
        assert before[1] - left[1] <= 1
        before = left
    assert before == (0, 0)
    assert committed(broker, "u") == 10
    assert not broker.topics.deleting


async def test_a_topic_made_again_while_its_former_self_goes_is_left_alone(broker: Broker) -> None:
    """A large topic is being deleted in slices when another request, in one step, creates one with that name."""
    broker.changes.create_topics([TopicToCreate("t", 30, {}), TopicToCreate("u", 30, {})])
    Asked(broker, commit("g", "t"), 8)
    deleting = broker.changes.deleting([topic for topic in broker.topics if not topic.internal])
    next(deleting)
    broker.changes.create_topic("t", 1, {})
    log = log_of(broker, "t", 0)
    log.append(RECORD, now=1_700_000_000_000)
    Asked(broker, commit("g", "t"), 8)
    at_once(deleting)
    assert broker.partitions.get("t", 0) is log
    assert not log.closed
    assert not (broker.config.data_dir / "t-1").exists()
    assert committed(broker, "t") == 1
    assert broker.topics.deleting == []


async def test_who_wants_the_name_of_a_large_topic_waits_in_slices(broker: Broker) -> None:
    broker.changes.create_topic("t", 300, {})
    deleting = broker.changes.deleting(list(broker.topics))
    next(deleting)
    call: Any = SimpleNamespace(version=7)
    create = create_topics(admin(broker), m.CreateTopicsRequest([m.CreatableTopic("t", 1, 1)], 20_000), call)
    ask = metadata(
        Described(broker.cluster, broker.topics, broker.changes),
        m.MetadataRequest([m.MetadataRequestTopic(name="t")], True),
        call,
    )
    assert isinstance(create, Generator)
    assert isinstance(ask, Generator)
    assert sum(1 for _ in ask) > 300, "it removes what is left, and makes the topic"
    answer = at_once(create)
    assert isinstance(answer, m.CreateTopicsResponse)
    assert [topic.error_code for topic in answer.topics] == [ErrorCode.TOPIC_ALREADY_EXISTS]
    at_once(deleting)
    assert broker.partitions.get("t", 0) is not None


async def test_an_answer_comes_though_the_topic_of_the_groups_cannot_be_made(broker: Broker, disk: StuckDisk) -> None:
    disk.stuck = (f"{FILE}.tmp",)
    request = m.MetadataRequest([m.MetadataRequestTopic(name=name) for name in (GROUP_METADATA_TOPIC, "t")], True)
    with RawClient(broker.bootstrap) as client:
        answer = await brokers.in_thread(client.ask, request, 12)
    assert [topic.error_code for topic in answer.topics] == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 2
    assert not len(broker.topics)


async def test_the_topic_of_the_groups_is_made_again_before_the_rest_is_removed(broker: Broker) -> None:
    """A group's next request creates it, in one step: it must not wait for thousands of other folders."""
    broker.groups.ensure()
    broker.changes.create_topic("t", 300, {})
    deleting = broker.changes.deleting(list(broker.topics))
    next(deleting)
    assert broker.groups.ensure()
    assert broker.groups.serving
    assert broker.changes.is_cleaning_up("t")
    at_once(deleting)
    assert [topic.name for topic in broker.topics] == [GROUP_METADATA_TOPIC]


async def test_of_names_that_collide_in_one_request_only_the_first_is_made(broker: Broker) -> None:
    at_once(broker.changes.auto_create(["a.b", "a_b", "c"]))
    assert [topic.name for topic in broker.topics] == ["a.b", "c"]


@pytest.mark.parametrize(("most", "made"), [(9, 1), (10, 2), (14, 2), (15, 3)])
async def test_one_request_makes_no_more_partitions_than_are_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int, made: int
) -> None:
    monkeypatch.setattr(topic_changes, "MOST_CREATED_PARTITIONS", most)
    async with brokers.running(tmp_path / "data", {"num.partitions": 5}) as broker:
        at_once(broker.changes.auto_create(["a", "b", "c"]))
        assert len(broker.topics) == made


async def test_one_flipped_bit_in_an_epoch_takes_no_group_away(tmp_path: Path) -> None:
    """The checksum of a batch does not cover its epoch."""
    settings = {"offsets.topic.num.partitions": 1}
    async with brokers.running(tmp_path / "data", settings) as broker:
        broker.changes.create_topic("t", 1, {})
        for number in range(3):
            Asked(broker, commit(f"g{number}", "t"), 8)
            broker.groups._flush()
    (file,) = (tmp_path / "data" / f"{GROUP_METADATA_TOPIC}-0").glob("*.log")
    content = bytearray(file.read_bytes())
    content[13] ^= 1
    file.write_bytes(content)
    for _ in range(2):
        async with brokers.running(tmp_path / "data", settings) as broker:
            assert committed(broker, "t") == 3
            answer = await Asked(broker, commit("g0", "t"), 8).answered()
            assert answer.topics[0].partitions[0].error_code == 0


async def test_only_the_topic_with_the_stuck_folder_is_left_for_the_next_start(broker: Broker, disk: StuckDisk) -> None:
    topics = broker.changes.create_topics(TWO)
    disk.stuck = ("a-0",)
    at_once(broker.changes.deleting(topics))
    assert [topic.name for topic in broker.topics.deleting] == ["a"]
    assert not (broker.config.data_dir / "b-0").exists()


async def test_topics_that_cannot_be_deleted_are_all_still_there(broker: Broker, disk: StuckDisk) -> None:
    broker.changes.create_topics(TWO)
    disk.stuck = (f"{FILE}.tmp",)
    with RawClient(broker.bootstrap) as client:
        request = m.DeleteTopicsRequest([], ["a", "b", "c"], 20_000)
        answer = await brokers.in_thread(client.ask, request, 5)
    codes = [(each.name, each.error_code) for each in answer.responses]
    storage = ErrorCode.KAFKA_STORAGE_ERROR
    assert codes == [("a", storage), ("b", storage), ("c", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)]
    assert all(broker.partitions.get(name, 0) is not None for name in "ab")
    assert not broker.topics.deleting


async def test_a_name_that_cannot_be_had_does_not_cost_the_others(broker: Broker) -> None:
    (broker.config.data_dir / "b-0").write_text("of somebody else")
    with RawClient(broker.bootstrap) as client:
        found = await brokers.in_thread(ask_for, client, "a", "b", "c")
    assert found == {"a": 0, "b": ErrorCode.KAFKA_STORAGE_ERROR, "c": 0}
    assert broker.topics.get("b") is None


async def test_one_by_one_a_topic_that_another_request_made_is_left_alone(broker: Broker) -> None:
    """Two requests, each with a name that cannot be created, so that both try one topic after another."""
    (broker.config.data_dir / "b-0").write_text("of somebody else")
    request = m.CreateTopicsRequest([m.CreatableTopic(name, 1, 1) for name in ("b", "a")], 20_000)
    slow = _creating(admin(broker), request, 7)
    next(slow)
    first = broker.changes.create_topic("a", 1, {})
    answer = at_once(slow)
    assert [topic.error_code for topic in answer.topics] == [
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.TOPIC_ALREADY_EXISTS,
    ]
    assert broker.topics.get("a") is first
