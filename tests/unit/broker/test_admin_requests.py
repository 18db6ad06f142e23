"""What an admin changes on a standalone broker, and what is left of it on a broken disk and after a restart."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from muster.broker import handlers
from muster.broker.broker import Broker
from muster.broker.handlers import create_partitions
from muster.broker.net.calls import CloseConnectionError, at_once
from muster.broker.topics import deletion_reserve as reserve
from muster.broker.topics.changes import PartitionIncrease
from muster.errors import ErrorCode
from muster.model import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC, TopicPartition
from muster.protocol import admin_messages as a
from muster.protocol import messages as m
from muster.protocol.primitives import ZERO_UUID
from muster.protocol.records.control_records import TxnMarker
from tests.support import brokers
from tests.support.brokers import log_of, topic_of
from tests.support.cluster_asks import altered, ends, stored
from tests.support.faulty_disk import FaultyDisk
from tests.support.held_disk import Asked
from tests.support.logs import NOW
from tests.support.transactions import begin, sent


@pytest.fixture
async def broker(tmp_path: Path, disk: FaultyDisk) -> AsyncIterator[Broker]:
    async with brokers.running(tmp_path / "data", {"offsets.topic.num.partitions": 2}, disk) as found:
        yield found


# --------------------------------------------------------------------------------------------------------- partitions


async def grow(broker: Broker, name: str, count: int, *, validate: bool = False) -> Any:
    topic = a.CreatePartitionsTopic(name, count, None)
    answer = await Asked(broker, a.CreatePartitionsRequest([topic], 20_000, validate), 3).answered()
    (result,) = answer.results
    return result


@pytest.mark.parametrize("count", [3, create_partitions._FEW + 3], ids=["few", "many"])
async def test_partitions_are_added_and_stay(tmp_path: Path, count: int) -> None:
    async with brokers.running(tmp_path / "data") as broker:
        topic = broker.changes.create_topic("t", 2, {"max.message.bytes": "77777"})
        await stored(broker, "t", 0)
        assert (await grow(broker, "t", count)).error_code == 0
        assert topic.partitions == count
        new = log_of(broker, "t", count - 1)
        assert new.config.max_message_bytes == 77777
        assert await stored(broker, "t", count - 1) == 0
    async with brokers.running(tmp_path / "data") as broker:
        topic_again = topic_of(broker, "t")
        assert (topic_again.topic_id, topic_again.partitions) == (topic.topic_id, count)
        assert {index: end for index, end in ends(broker, "t").items() if end} == (
            {0: 1, 2: 1} if count == 3 else {0: 1}
        )
        assert await stored(broker, "t", count - 1) == 1


async def test_validate_only_adds_none(broker: Broker) -> None:
    topic = broker.changes.create_topic("t", 2, {})
    assert (await grow(broker, "t", 5, validate=True)).error_code == 0
    assert topic.partitions == 2


async def test_a_full_disk_adds_none(broker: Broker, disk: FaultyDisk) -> None:
    topic = broker.changes.create_topic("t", 2, {})
    disk.fill_up()
    refused = await grow(broker, "t", 5)
    assert refused.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert "No space left" in refused.error_message
    assert topic.partitions == 2
    assert broker.partitions.get("t", 2) is None
    disk.mend()
    assert (await grow(broker, "t", 5)).error_code == 0
    assert list(ends(broker, "t")) == [0, 1, 2, 3, 4]


async def test_what_is_in_the_way_of_a_new_partition_is_not_mistaken_for_it(broker: Broker) -> None:
    topic = broker.changes.create_topic("t", 1, {})
    (broker.config.data_dir / "t-1").write_text("a note")
    assert (await grow(broker, "t", 2)).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert topic.partitions == 1


@pytest.mark.parametrize("topic", [GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC])
async def test_a_coordinators_topic_stays_as_it_is(broker: Broker, topic: str) -> None:
    """The partition of a group or transactional id is its hash modulo the number of partitions, so that must not
    change."""
    assert broker.groups.ensure()
    assert broker.transactions.ensure()
    before = broker.topics.partition_count(topic)
    refused = await grow(broker, topic, 70)
    assert refused.error_code == ErrorCode.INVALID_PARTITIONS
    assert broker.topics.partition_count(topic) == before


async def test_metadata_says_of_missing_internal_topics_that_they_are_internal(broker: Broker) -> None:
    """Like Kafka's Topic.isInternal."""
    names = [GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC, "__share_group_state", "t"]
    request = m.MetadataRequest([m.MetadataRequestTopic(name=name) for name in names], False)
    answer = await Asked(broker, request, 12).answered()
    assert [(topic.name, topic.is_internal) for topic in answer.topics] == [(name, name != "t") for name in names]


@pytest.mark.parametrize("producers", [[7], [7, 8]], ids=["without a transactional id", "of two producers"])
@pytest.mark.parametrize("acks", [0, 1])
async def test_a_refused_produce_without_acks_is_not_answered(broker: Broker, producers: list[int], acks: int) -> None:
    """Its client would mistake a response for the one to its next request."""
    broker.changes.create_topic("t", 2, {})
    parts = [m.PartitionProduceData(index, sent(producer, 0, 0)) for index, producer in enumerate(producers)]
    name = None if len(producers) == 1 else "x"
    request = m.ProduceRequest(name, acks, 30_000, [m.TopicProduceData("t", ZERO_UUID, parts)])
    if acks:
        refused = Asked(broker, request, 9).answer.responses[0].partition_responses
        assert all(each.error_code for each in refused)
    else:
        with pytest.raises(CloseConnectionError):
            Asked(broker, request, 9)


async def test_settings_that_change_while_partitions_are_added_hold_for_all(broker: Broker) -> None:
    topic = broker.changes.create_topic("t", 1, {"max.message.bytes": "1111"})
    count = create_partitions._FEW + 2
    steps = broker.changes.growing([PartitionIncrease(topic, 1, count)])
    next(steps)
    broker.topics.change_all([(topic, count, {"max.message.bytes": "2222"})])
    broker.partitions.configure(topic)
    for _ in steps:
        pass
    logs = [broker.partitions.get("t", index) for index in range(count)]
    assert {log.config.max_message_bytes for log in logs if log is not None} == {2222}


async def test_a_topic_that_takes_the_place_of_one_that_grows_keeps_its_own_settings(broker: Broker) -> None:
    topic = broker.changes.create_topic("t", 1, {"max.message.bytes": "1111"})
    steps = broker.changes.growing([PartitionIncrease(topic, 1, 2)])
    next(steps)
    broker.changes.delete_topic(topic)
    broker.changes.create_topic("t", 1, {"max.message.bytes": "2222"})
    for _ in steps:
        pass
    log = log_of(broker, "t", 0)
    assert log.config.max_message_bytes == 2222


def begun(broker: Broker, request: Any, version: int) -> Any:
    """The work of a large request that was received and waits for its turn."""
    return handlers.table(broker.parts())[type(request).API_KEY].handle(request, Asking(version))  # type: ignore[arg-type]


class Asking(NamedTuple):
    """As much of a request's call as the handlers in this file use."""

    version: int


MANY = create_partitions._FEW + 10


@pytest.mark.parametrize(
    ("meanwhile", "code", "has"),
    [
        (lambda changes, topic: at_once(changes.growing([PartitionIncrease(topic, 1, MANY + 5)])), 37, MANY + 5),
        (lambda changes, topic: changes.delete_topic(topic), 3, 0),
    ],
    ids=["more", "deleted"],
)
async def test_partitions_that_wait_for_their_turn_undo_nothing(
    broker: Broker, meanwhile: Any, code: int, has: int
) -> None:
    """What another request was granted meanwhile stays. In an earlier version its partitions were taken away again."""
    topic = broker.changes.create_topic("t", 1, {})
    waiting = begun(broker, a.CreatePartitionsRequest([a.CreatePartitionsTopic("t", MANY, None)], 20_000), 3)
    meanwhile(broker.changes, topic)
    (result,) = at_once(waiting).results
    assert result.error_code == code
    assert broker.topics.partition_count("t") == has
    assert all(broker.partitions.get("t", index) is not None for index in range(has))


async def test_settings_of_a_broker_that_wait_for_their_turn_undo_nothing(broker: Broker) -> None:
    names = ("message.max.bytes", "log.segment.bytes")
    waiting = [begun(broker, altered(4, "1", (name, 0, "2000000")), 1) for name in names]
    for each in waiting:
        assert at_once(each).responses[0].error_code == 0
    assert broker.config.integer("message.max.bytes") == broker.config.integer("log.segment.bytes") == 2_000_000


async def test_settings_of_a_deleted_topic_are_not_those_of_the_next(broker: Broker) -> None:
    for name in ("a", "t"):
        broker.changes.create_topic(name, 1, {})
    request = altered(2, "a", ("max.message.bytes", 0, "1111"))
    request.resources += altered(2, "t", ("max.message.bytes", 0, "1111")).resources
    steps = begun(broker, request, 1)
    next(steps)  # the changes of both are stored; this keeps the first
    topic = topic_of(broker, "t")
    broker.changes.delete_topic(topic)
    broker.changes.create_topic("t", 1, {"max.message.bytes": "2222"})
    assert {each.error_code for each in at_once(steps).responses} == {0}
    log = log_of(broker, "t", 0)
    assert log.config.max_message_bytes == 2222


# ------------------------------------------------------------------------------------------------------------ records


async def cut(broker: Broker, offset: int, name: str = "t") -> tuple[int, int]:
    partition = a.DeleteRecordsPartition(0, offset)
    request = a.DeleteRecordsRequest([a.DeleteRecordsTopic(name, [partition])], 20_000)
    answer = await Asked(broker, request, 2).answered()
    (result,) = answer.topics[0].partitions
    return result.error_code, result.low_watermark


@pytest.mark.parametrize("fsync", ["interval", "always", "never"])
async def test_where_a_log_begins_is_on_disk_before_the_answer(tmp_path: Path, fsync: str) -> None:
    async with brokers.running(tmp_path / "data", {"fsync": fsync}) as broker:
        broker.changes.create_topic("t", 1, {})
        for _ in range(5):
            await stored(broker, "t", 0)
        assert await cut(broker, 3) == (0, 3)
        lines = (tmp_path / "data" / "log-start-offset-checkpoint").read_text().splitlines()
        assert lines == ["0", "1", "t 0 3"]
        assert await cut(broker, -1) == (0, 5)
        assert await cut(broker, 6) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)


async def test_a_beginning_that_cannot_be_written_is_an_error(broker: Broker, disk: FaultyDisk) -> None:
    broker.changes.create_topic("t", 1, {})
    for _ in range(3):
        await stored(broker, "t", 0)
    disk.fill_up()
    # As if removed by hand, or because the disk was full at the first start.
    (broker.config.data_dir / reserve.FILE).unlink()
    assert (await cut(broker, 2))[0] == ErrorCode.KAFKA_STORAGE_ERROR
    disk.mend()
    assert await cut(broker, 2) == (0, 2)


async def test_the_topic_of_events_keeps_its_records(broker: Broker) -> None:
    """It is one of the broker's internal topics."""
    assert broker.changes.events is not None
    broker.changes.events.ensure()
    assert (await cut(broker, -1, "__group_events"))[0] == ErrorCode.INVALID_TOPIC_EXCEPTION


# ----------------------------------------------------------------------------------------------------------- log dirs


async def test_a_log_is_as_large_as_its_records(broker: Broker) -> None:
    broker.changes.create_topic("t", 2, {})
    await stored(broker, "t", 1)
    answer = await Asked(broker, a.DescribeLogDirsRequest(None), 4).answered()
    (result,) = answer.results
    assert result.log_dir == str(broker.config.data_dir)
    assert 0 < result.usable_bytes <= result.total_bytes
    sizes = {TopicPartition(t.name, p.partition_index): p.partition_size for t in result.topics for p in t.partitions}
    assert sizes == {TopicPartition("t", 0): 0, TopicPartition("t", 1): _file_size(broker, "t-1")}


def _file_size(broker: Broker, folder: str) -> int:
    return (broker.config.data_dir / folder / f"{0:020}.log").stat().st_size


async def test_many_partitions_are_described_in_slices(broker: Broker) -> None:
    broker.changes.create_topic("t", 150, {})
    answer = await Asked(broker, a.DescribeLogDirsRequest(None), 4).answered()
    assert [len(topic.partitions) for topic in answer.results[0].topics] == [150]


async def test_producers_are_described_with_their_transactions(broker: Broker) -> None:
    broker.changes.create_topic("t", 1, {})
    found = log_of(broker, "t", 0)
    for producer_id in (7, 8):
        begin(found, producer_id)
    found.append_marker(TxnMarker(7, 1, True, 4, 2), now=NOW + 5)
    request = a.DescribeProducersRequest([a.TopicRequest("t", [0])])
    answer = await Asked(broker, request, 0).answered()
    fields = ("producer_id", "producer_epoch", "last_sequence", "last_timestamp", "coordinator_epoch")
    described = [
        (*(getattr(one, name) for name in fields), one.current_txn_start_offset)
        for one in answer.topics[0].partitions[0].active_producers
    ]
    assert described == [(7, 1, -1, NOW + 5, 4, -1), (8, 0, 0, NOW, -1, 1)]


# ------------------------------------------------------------------------------------------------ what is not supported


async def test_what_is_not_served_is_not_advertised(broker: Broker) -> None:
    answer = await Asked(broker, m.ApiVersionsRequest("test", "1"), 4).answered()
    spoken = {api.api_key for api in answer.api_keys}
    assert 55 not in spoken  # DescribeQuorum: not supported
    assert {21, 34, 35, 37, 43, 45, 46, 47, 61, 74} <= spoken
