"""A few bytes that decompress to a million records: inspected in a thread next to the loop, in order, and within
limits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from muster.broker.broker import Broker
from muster.errors import ErrorCode
from muster.protocol import messages as m
from muster.protocol.primitives import ZERO_UUID
from muster.protocol.records.compression import MAX_DECOMPRESSED_SIZE
from tests.support import brokers
from tests.support.brokers import RawClient
from tests.support.held_disk import Asked
from tests.support.lying_batches import NOW, batch, in_order, record

MANY = 300_000


@cache
def many(count: int = MANY, *, codec: int = 4, **fields: Any) -> bytes:
    return batch(in_order(count, **fields), count, codec=codec)


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    async with brokers.running(tmp_path / "data") as found:
        found.changes.create_topic("t", 1, {"cleanup.policy": "compact"})
        yield found


def produce(records: bytes, acks: int = -1) -> m.ProduceRequest:
    data = m.TopicProduceData("t", ZERO_UUID, [m.PartitionProduceData(0, records)])
    return m.ProduceRequest(None, acks, 30_000, [data])


def result(answer: Any) -> tuple[int, int]:
    [found] = answer.responses[0].partition_responses
    return found.error_code, found.base_offset


async def turns_until_answered(asked: Asked) -> int:
    """How often the loop could have served others in the meantime."""
    turns = 0
    while asked.answer is None:
        await asyncio.sleep(0)
        turns += 1
    return turns


async def test_it_keeps_nobody_waiting(broker: Broker) -> None:
    asked = Asked(broker, produce(many()), 9)
    assert asked.blocks
    assert await turns_until_answered(asked) > 1
    assert result(asked.answer) == (0, 0)
    partition = m.ListOffsetsPartition(0, -1, NOW + 1)
    search = Asked(broker, m.ListOffsetsRequest(-1, 0, [m.ListOffsetsTopic("t", [partition])]), 5)
    assert await turns_until_answered(search) > 1
    assert search.answer.topics[0].partitions[0].offset == -1


async def test_what_comes_after_it_does_not_overtake_it(broker: Broker) -> None:
    def tell() -> None:
        with RawClient(broker.bootstrap) as client:
            for records in (many(), batch(record()), many(), batch(record())):
                client.send(produce(records), 9)
            answers = [client.receive(m.ProduceRequest, 9) for _ in range(4)]
            assert [result(answer) for answer in answers] == [(0, 0), (0, MANY), (0, MANY + 1), (0, 2 * MANY + 1)]

    await brokers.in_thread(tell)


async def test_what_is_wrong_with_it_is_reported(broker: Broker) -> None:
    def tell() -> None:
        with RawClient(broker.bootstrap) as client:
            answer = client.ask(produce(many(key=None)), 9)
            assert result(answer) == (ErrorCode.INVALID_RECORD, -1)
            [found] = answer.responses[0].partition_responses
            assert f"due to {MANY} record errors" in (found.error_message or "")
            assert len(found.record_errors) == 1_000
            assert result(client.ask(produce(batch(in_order(MANY - 1), MANY, codec=4)), 9)) == (87, -1)
            client.send(produce(many(key=None), acks=0), 9)
            assert client.closed()

    await brokers.in_thread(tell)


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
async def test_more_than_is_looked_into_is_too_large(broker: Broker, codec: int) -> None:
    """Java's producer splits a batch when it gets this error."""
    bomb = batch(record(value=bytes(MAX_DECOMPRESSED_SIZE)), codec=codec)
    if len(bomb) > 1_000_000:
        broker.changes.create_topic("large", 1, {"max.message.bytes": str(2 * len(bomb))})
        request = produce(bomb)
        request.topic_data[0].name = "large"
    else:
        request = produce(bomb)
    assert result(await Asked(broker, request, 9).answered()) == (ErrorCode.MESSAGE_TOO_LARGE, -1)


async def test_a_million_times_the_same_record(broker: Broker) -> None:
    """The smallest possible one: a few hundred bytes. Its offsets do not increase, which Kafka refuses too."""
    bomb = batch(record() * 1_000_000, 1_000_000, codec=4)
    assert len(bomb) < 2_000
    asked = Asked(broker, produce(bomb), 9)
    assert await turns_until_answered(asked) > 1
    assert result(asked.answer) == (ErrorCode.UNKNOWN_SERVER_ERROR, -1)


async def test_too_many_records_are_too_large(broker: Broker) -> None:
    assert result(await Asked(broker, produce(many(1_000_001, value=b"", key=b"")), 9).answered()) == (10, -1)
