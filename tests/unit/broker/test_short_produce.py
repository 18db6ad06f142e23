"""The fast path of Produce answers and writes what the general path does, and declines requests that it does not
cover."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from copy import copy
from pathlib import Path

import pytest

from muster.broker.broker import Broker
from muster.broker.handlers import fast_produce, produce
from muster.broker.net.connection_core import ConnectionCore
from muster.errors import ErrorCode
from muster.log import CleanupPolicy, PartitionLog
from muster.protocol import framing
from muster.protocol import messages as m
from muster.protocol.primitives import ZERO_UUID
from muster.protocol.records.record_batch import TRANSACTIONAL_FLAG
from tests.support import lying_batches as lies
from tests.support.brokers import log_of, running, topic_of

VERSIONS = [9, 12, 13]
SHORT, GENERAL = "short", "other"
"""Prefixes of the names of two topics that are otherwise alike: one is written to on each path."""

SETTINGS = {name.removeprefix("lies-"): settings for name, settings in lies.TOPICS.items()}

ONE = lies.batch(lies.record())
SEQUENCES = {
    f"sequence {sequence} of {count} records in epoch {epoch}": lies.batch(
        lies.in_order(count), count, producer=(7, epoch, sequence)
    )
    for epoch, sequence, count in [
        *((0, 0, 1), (0, 1, 2), (0, 1, 2), (0, 0, 1), (0, 3, 1), (0, 5, 1)),
        *((2, 1, 1), (2, 0, 3), (1, 3, 1), (2, 3, 1)),
    ]
}
BATCHES = {
    **{name: batch for name, batch in lies.LIES.items() if len(batch) < 60_000},
    **SEQUENCES,
    "the most records": lies.batch(lies.in_order(fast_produce.MOST_RECORDS), fast_produce.MOST_RECORDS),
    "one record more": lies.batch(lies.in_order(fast_produce.MOST_RECORDS + 1), fast_produce.MOST_RECORDS + 1),
    "half a batch": ONE[: len(ONE) // 2],
    "a byte too few": ONE[:-1],
    "a byte too many": ONE + b"\0",
    "nothing": b"",
}


class Connection:
    """A client's connection, reduced to its rules, with or without the fast path."""

    def __init__(self, broker: Broker, short: bool) -> None:
        self.core = ConnectionCore(broker._server.shared.service, lambda: None)
        self.short_answers = 0
        api = copy(self.core._apis[m.ProduceRequest.API_KEY])
        self._fast, api.fast = api.fast, self._counted if short else None
        self.core._apis = {m.ProduceRequest.API_KEY: api}

    def _counted(self, frame: bytes, position: int, version: int, correlation_id: int) -> bytes | None:
        assert self._fast is not None
        answer = self._fast(frame, position, version, correlation_id)
        self.short_answers += answer is not None
        return answer

    async def send(self, frame: bytes) -> bytes:
        """The answer to a request, b"" if the connection is closed."""
        self.core.received(memoryview(frame))
        while not self.core.out and self.core.ending is None and self.core.waiting:
            await asyncio.sleep(0.001)
        return b"".join(bytes(part) for part in self.core.take())


@pytest.fixture
async def broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Broker]:
    for module in (produce, fast_produce):
        monkeypatch.setattr(module, "wall_clock_ms", lambda: lies.NOW)
    async with running(tmp_path) as broker:
        for name, settings in SETTINGS.items():
            for way in (SHORT, GENERAL):
                broker.changes.create_topic(f"{way}-{name}", 2, settings)
        await asyncio.sleep(0)
        yield broker


def content(log: PartitionLog) -> bytes:
    offset, parts = 0, []
    while offset < log.log_end_offset:
        found = log.read(offset, 1 << 20)
        parts.append(bytes(found.data))
        offset = found.next_offset
    return b"".join(parts)


def request(broker: Broker, topic: str, batch: bytes | None, version: int, **changes: object) -> bytes:
    """A Produce request as a frame, for one partition; `changes` are for its fields, or `index`, `topics`."""
    index, topics, acks = changes.get("index", 0), changes.get("topics", 1), changes.get("acks", -1)
    topic_id = broker.topics.topic_id(topic) if version >= 13 else ZERO_UUID
    data = [m.TopicProduceData(topic, topic_id, [m.PartitionProduceData(index, batch)])] * topics  # type: ignore
    asked = m.ProduceRequest(changes.get("transactional_id"), acks, 30_000, data)  # type: ignore[arg-type]
    return b"".join(framing.encode_request(asked, version, 77, "c"))


async def same(broker: Broker, name: str, version: int, frame: Callable[[str], bytes]) -> tuple[bytes, int]:
    """Send a request on both paths; returns the answer, which must be the same, and how many the fast path gave."""
    short, general = Connection(broker, True), Connection(broker, False)
    answers = []
    for way, connection in ((SHORT, short), (GENERAL, general)):
        topic = f"{way}-{name}"
        answer = await connection.send(frame(topic))
        topic_id = broker.topics.topic_id(topic)
        ending = connection.core.ending
        answers.append((answer.replace(way.encode(), b"?????").replace(topic_id, bytes(16)), ending and ending.how))
    assert answers[0] == answers[1]
    assert content(log_of(broker, f"{SHORT}-{name}")) == content(log_of(broker, f"{GENERAL}-{name}"))
    return answers[0][0], short.short_answers


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", SETTINGS)
async def test_every_batch_is_answered_and_written_as_on_the_general_way(
    broker: Broker, name: str, version: int
) -> None:
    short = 0
    for what, batch in BATCHES.items():
        _, answered = await same(broker, name, version, lambda topic: request(broker, topic, batch, version))  # noqa: B023
        short += answered
        if what in ("one record more", "nothing") or "gzip" in what:
            assert not answered, what
    assert short > (0 if CleanupPolicy.COMPACT in SETTINGS[name].values() else 10)


@pytest.mark.parametrize("version", [3, 8, *VERSIONS])
async def test_only_plain_requests_are_answered_in_short(broker: Broker, version: int) -> None:
    async def short(**changes: object) -> int:
        return (await same(broker, "plain", version, lambda topic: request(broker, topic, ONE, version, **changes)))[1]

    assert await short() == await short(acks=1) == await short(index=1) == (version >= 9)
    assert not await short(index=2)
    assert not await short(index=-1)
    assert not await short(acks=0)
    assert not await short(acks=2)
    assert not await short(topics=2)
    assert not await short(topics=0)
    assert not await short(transactional_id="t")
    assert not await short(transactional_id="")


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("producer", [(-1, -1, -1), (7, 0, 1)])
async def test_records_of_a_transaction_want_a_transactional_id(
    broker: Broker, version: int, producer: tuple[int, int, int]
) -> None:
    """Even if the producer has an open transaction, so that the log would accept them."""
    logs = [log_of(broker, f"{way}-plain") for way in (SHORT, GENERAL)]
    first, sent = (
        lies.batch(lies.record(), attributes=TRANSACTIONAL_FLAG, producer=each) for each in ((7, 0, 0), producer)
    )
    for log in logs:
        guard = log.begin_verification(7, 0, 0, tv2=True, now=lies.NOW)
        log.append(first, now=lies.NOW, guard=guard)
    before = [log.log_end_offset for log in logs]
    answer, short = await same(broker, "plain", version, lambda topic: request(broker, topic, sent, version))
    [partition] = framing.decode_response(answer[4:], m.ProduceRequest, version).responses[0].partition_responses
    assert partition.error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert (short, [log.log_end_offset for log in logs]) == (0, before)


@pytest.mark.parametrize("version", VERSIONS)
async def test_damaged_requests_are_answered_as_on_the_general_way(broker: Broker, version: int) -> None:
    topics = [f"{way}-plain" for way in (SHORT, GENERAL)]
    whole = {topic: request(broker, topic, ONE, version) for topic in topics}
    name = broker.topics.topic_id(topics[0]) if version >= 13 else topics[0].encode()
    start = whole[topics[0]].index(name)
    for at in range(8, len(whole[topics[0]])):
        size = (at - 4).to_bytes(4, "big")
        await same(broker, "plain", version, lambda topic: size + whole[topic][4:at])  # noqa: B023
        if not start <= at < start + len(name):  # that is a different one for each path
            damage = bytes((whole[topics[0]][at] ^ 0x81,))
            await same(broker, "plain", version, lambda topic: whole[topic][:at] + damage + whole[topic][at + 1 :])  # noqa: B023


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_topic_created_again_is_not_mistaken_for_the_old_one(broker: Broker, version: int) -> None:
    connection = Connection(broker, True)
    frame = request(broker, f"{SHORT}-plain", ONE, version)
    assert await connection.send(frame)
    old = log_of(broker, f"{SHORT}-plain")
    topic = topic_of(broker, f"{SHORT}-plain")
    broker.changes.delete_topic(topic)
    broker.changes.create_topic(f"{SHORT}-plain", 2, {})
    await asyncio.sleep(0)
    new = log_of(broker, f"{SHORT}-plain")
    assert new is not old
    answer = framing.decode_response((await connection.send(frame))[4:], m.ProduceRequest, version)
    [partition] = answer.responses[0].partition_responses
    assert (partition.error_code, partition.base_offset, new.log_end_offset) == (
        (0, 0, 1) if version < 13 else (100, -1, 0)
    )


async def test_what_waits_for_a_sync_is_not_answered_in_short(tmp_path: Path) -> None:
    async with running(tmp_path, {"fsync": "always"}) as broker:
        broker.changes.create_topic("t", 1, {})
        connection = Connection(broker, True)
        assert await connection.send(request(broker, "t", ONE, 12))
        assert connection.short_answers == 0
