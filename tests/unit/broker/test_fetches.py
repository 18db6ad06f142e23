"""Fetches: how much a response holds, which requests wait, and what ends the wait."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from muster.broker.broker import Broker
from muster.broker.topics import fetches as module
from muster.errors import ErrorCode
from muster.model import TopicPartition
from muster.protocol import messages as m
from muster.protocol.api import READ_COMMITTED, READ_UNCOMMITTED
from muster.protocol.primitives import ZERO_UUID
from muster.protocol.records.control_records import TxnMarker
from tests.support import brokers
from tests.support.brokers import log_of, topic_of
from tests.support.held_disk import Asked
from tests.support.transactions import begin, end
from tests.support.written import build_batch

NOW = 1_700_000_000_000
LONG_MS = 600_000


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    """A broker with a topic of three partitions and one of one."""
    async with brokers.running(tmp_path / "data") as found:
        found.changes.create_topic("t", 3, {})
        found.changes.create_topic("u", 1, {})
        yield found


def batch(size: int) -> bytes:
    return bytes(build_batch([(NOW, None, b"v" * size, [])]))


def put(broker: Broker, topic: str = "t", index: int = 0, size: int = 1) -> None:
    data = m.TopicProduceData(topic, ZERO_UUID, [m.PartitionProduceData(index, batch(size))])
    assert Asked(broker, m.ProduceRequest(None, 1, 30_000, [data]), 9).answer is not None


def fetch(
    broker: Broker,
    *topics: str,
    partitions: int = 3,
    by_id: bool = False,
    wait_ms: int = LONG_MS,
    min_bytes: int = 1,
    max_bytes: int = 1 << 30,
    isolation_level: int = READ_UNCOMMITTED,
    offset: int = 0,
) -> Asked:
    """A fetch of the first partitions of each topic from their beginning."""
    asked = [
        m.FetchTopic(
            "" if by_id else topic,
            broker.topics.topic_id(topic) if by_id else ZERO_UUID,
            [m.FetchPartition(index, fetch_offset=offset, partition_max_bytes=1 << 20) for index in range(partitions)],
        )
        for topic in topics
    ]
    request = m.FetchRequest(max_wait_ms=wait_ms, min_bytes=min_bytes, max_bytes=max_bytes, topics=asked)
    request.isolation_level = isolation_level
    return Asked(broker, request, 13 if by_id else 11)


def shown(asked: Asked) -> list[tuple[int, int]]:
    """Error and bytes of each partition of a response."""
    assert asked.answer is not None
    return [(p.error_code, len(p.records)) for topic in asked.answer.responses for p in topic.partitions]


def hang_up(asked: Asked) -> None:
    """The connection of a waiting fetch ends."""
    cancel: Callable[[], None] | None = vars(asked)["on_cancel"]
    assert cancel is not None
    cancel()


def waits(*fetches: Asked) -> bool:
    """Whether none of them is answered."""
    return all(asked.answer is None for asked in fetches)


async def test_a_fetch_waits_for_the_bytes_that_are_missing_only(broker: Broker) -> None:
    put(broker, size=500)
    asked = fetch(broker, "t", partitions=1, min_bytes=len(batch(500)) + len(batch(1)))
    assert waits(asked)
    put(broker, size=1)
    assert shown(asked) == [(0, len(batch(500)) + len(batch(1)))]


async def test_no_more_than_one_batch_exceeds_what_is_asked_for(broker: Broker) -> None:
    for index in range(3):
        put(broker, index=index, size=500)
    assert shown(fetch(broker, "t", max_bytes=10)) == [(0, len(batch(500))), (0, 0), (0, 0)]


async def test_an_error_is_reported_at_once(broker: Broker) -> None:
    request = m.FetchRequest(max_wait_ms=LONG_MS, min_bytes=1, topics=[m.FetchTopic("t", partitions=[])])
    request.topics[0].partitions = [m.FetchPartition(index, fetch_offset=5 * index) for index in range(2)]
    assert shown(Asked(broker, request, 11)) == [(0, 0), (ErrorCode.OFFSET_OUT_OF_RANGE, 0)]


@pytest.mark.parametrize("by_id", [False, True])
async def test_what_is_not_there_does_not_end_the_wait_for_the_others(broker: Broker, by_id: bool) -> None:
    """As Kafka 4.2 does: otherwise a consumer that fetches a deleted topic along with another would never pause."""
    gone = ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    missing = m.FetchTopic("nowhere", partitions=[m.FetchPartition(0)])
    if by_id:
        missing.topic, missing.topic_id = "", b"nowhere".ljust(16)
    request = m.FetchRequest(max_wait_ms=LONG_MS, min_bytes=1, topics=[missing])
    assert shown(Asked(broker, request, 13 if by_id else 11)) == [(gone, 0)]

    there = m.FetchTopic("t", broker.topics.topic_id("t"), [m.FetchPartition(0, partition_max_bytes=1 << 20)])
    request.topics = [there, missing]
    asked = Asked(broker, request, 13 if by_id else 11)
    assert waits(asked)
    put(broker)
    assert shown(asked) == [(0, len(batch(1))), (gone, 0)]


async def test_a_fetch_whose_connection_ends_is_forgotten(broker: Broker) -> None:
    asked = fetch(broker, "t")
    assert len(broker.fetches) == 1
    hang_up(asked)
    assert len(broker.fetches) == 0


async def test_readers_of_the_groups_topic_hear_of_commits(broker: Broker) -> None:
    """The coordinator writes without a produce request."""
    assert broker.groups.ensure()
    index = broker.groups.runtime.partition_for("g")
    asked = fetch(broker, "__consumer_offsets", partitions=index + 1)
    topic = m.OffsetCommitRequestTopic("t", partitions=[m.OffsetCommitRequestPartition(0, 5)])
    Asked(broker, m.OffsetCommitRequest("g", topics=[topic]), 8)
    await asked.answered()
    assert shown(asked)[index][1] > 0


async def test_readers_of_the_transactions_topic_hear_of_transactions(broker: Broker) -> None:
    """Their coordinator writes without a produce request, too."""
    assert broker.transactions.ensure()
    slot = broker.transactions.runtime.partition_for("x")
    asked = fetch(broker, "__transaction_state", partitions=slot + 1)
    Asked(broker, m.InitProducerIdRequest("x", 1_000), 4)
    await asked.answered()
    assert shown(asked)[slot][1] > 0


@pytest.mark.parametrize("by_id", [False, True])
@pytest.mark.parametrize("many", [2, 1_000])
async def test_what_ends_the_wait(broker: Broker, monkeypatch: pytest.MonkeyPatch, many: int, by_id: bool) -> None:
    """For a fetch of few partitions, and for one of so many that they are not indexed by key."""
    monkeypatch.setattr(module, "MANY", many)
    grows, goes = fetch(broker, "t", by_id=by_id), fetch(broker, "t", by_id=by_id)
    put(broker, "u")
    assert waits(grows, goes)
    assert len(broker.fetches) == 2
    put(broker, index=2)
    assert shown(grows) == shown(goes) == [(0, 0), (0, 0), (0, len(batch(1)))]

    goes = fetch(broker, "t", by_id=by_id, min_bytes=10_000)
    assert waits(goes)
    topic = topic_of(broker, "t")
    broker.changes.delete_topic(topic)
    # The name of the id was known when the fetch came.
    assert shown(goes) == [(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 0)] * 3
    assert len(broker.fetches) == 0


async def test_what_waiting_fetches_keep_is_bounded_and_given_back(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MANY", 2)
    monkeypatch.setattr(module, "MOST_KEPT", 6)
    for _ in range(3):
        first, second = fetch(broker, "t"), fetch(broker, "t")
        assert waits(first, second)
        assert shown(fetch(broker, "t")) == [(0, 0)] * 3
        hang_up(first)
        hang_up(second)


# --- readers of committed records -------------------------------------------------------------------------------------


def tell(broker: Broker, before: int) -> None:
    """Waiting fetches learn what was appended to the log after offset `before`, as after a request."""
    log = log_of(broker)
    size = len(log.read(before, 1 << 20).data)
    broker.fetches.appended("t", 0, size, log.log_end_offset)
    broker.fetches.wake(broker.partitions.get)


def transact(broker: Broker, producer_id: int, size: int = 100) -> None:
    tell(broker, begin(log_of(broker), producer_id, (None, b"v" * size)))


def decide(broker: Broker, producer_id: int, *, commit: bool) -> None:
    tell(broker, end(log_of(broker), producer_id, commit=commit))


def committed(broker: Broker, *, offset: int = 0, min_bytes: int = 1) -> Asked:
    level = READ_COMMITTED
    return fetch(broker, "t", partitions=1, isolation_level=level, offset=offset, min_bytes=min_bytes)


def reported(asked: Asked) -> tuple[int, int, list[tuple[int, int]]]:
    """High watermark, last stable offset and aborted transactions of a response's only partition."""
    assert asked.answer is not None
    [partition] = asked.answer.responses[0].partitions
    aborted = [(one.producer_id, one.first_offset) for one in partition.aborted_transactions]
    return partition.high_watermark, partition.last_stable_offset, aborted


async def test_a_reader_of_committed_records_is_not_woken_by_what_it_may_not_see(broker: Broker) -> None:
    asked, plain = committed(broker), fetch(broker, "t", partitions=1)
    transact(broker, 7)
    assert shown(plain)[0][1] > 0
    put(broker)  # after the first offset of the open transaction
    transact(broker, 7)
    assert waits(asked)
    decide(broker, 7, commit=False)
    assert reported(asked) == (4, 4, [(7, 0)])


async def test_records_before_an_open_transaction_are_there_at_once(broker: Broker) -> None:
    put(broker)
    transact(broker, 7)
    asked = committed(broker)
    assert (shown(asked), reported(asked)) == ([(0, len(batch(1)))], (2, 1, []))
    assert waits(committed(broker, offset=1))


@pytest.mark.parametrize("others", [0, 2])
async def test_a_marker_frees_all_bytes_before_it(broker: Broker, others: int) -> None:
    """One transaction ends while another one, which began later, is open: fetches parked before or between them."""
    early = committed(broker, min_bytes=450)
    for _ in range(5):
        transact(broker, 7)
    late = committed(broker, min_bytes=450)
    for _ in range(others):
        transact(broker, 8)
    assert waits(early, late)
    decide(broker, 7, commit=True)
    assert reported(early)[1:] == reported(late)[1:] == (5 if others else 6, [])
    assert shown(early) == shown(late)
    assert shown(early)[0][1] >= 450


async def test_a_marker_of_a_coordinator_ends_the_waiting(broker: Broker) -> None:
    """It is written a slice at a time, after the turn of the request that decided it."""
    transact(broker, 7)
    asked = committed(broker)
    found: list[list[ErrorCode]] = []
    broker.transactions.writer.write_all(TxnMarker(7, 0, False, 0, 0), [TopicPartition("t", 0)], found.append)
    async with asyncio.timeout(120):
        while waits(asked):
            await asyncio.sleep(0)
    assert found == [[ErrorCode.NONE]]
    assert reported(asked) == (2, 2, [(7, 0)])


async def test_a_marker_that_frees_too_little_wakes_nobody(broker: Broker) -> None:
    transact(broker, 7)
    asked = committed(broker, min_bytes=2_000)
    decide(broker, 7, commit=True)
    assert waits(asked)
    put(broker, size=2_000)
    assert shown(asked)[0][1] > 2_000


async def test_a_marker_of_a_later_transaction_frees_nothing(broker: Broker) -> None:
    transact(broker, 7)
    transact(broker, 8)
    asked = committed(broker)
    decide(broker, 8, commit=True)
    assert waits(asked)
    decide(broker, 7, commit=True)
    assert reported(asked) == (4, 4, [])


async def test_a_large_fetch_waits_for_stable_records_too(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MANY", 2)
    asked = fetch(broker, "t", isolation_level=READ_COMMITTED)
    transact(broker, 7)
    transact(broker, 7)
    assert waits(asked)
    decide(broker, 7, commit=True)
    assert shown(asked)[0][1] > 0


async def test_a_marker_that_is_not_synced_wakes_nobody(tmp_path: Path) -> None:
    async with brokers.running(tmp_path / "data", {"fsync": "always"}) as broker:
        broker.changes.create_topic("t", 1, {})
        log = log_of(broker)
        begin(log, 7)
        log.flush()
        asked = committed(broker)
        decide(broker, 7, commit=True)
        assert waits(asked)
        log.flush()
        broker.fetches.wake(broker.partitions.get)
        assert reported(asked) == (2, 2, [])
