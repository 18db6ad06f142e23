"""The answers to batches that lie: the same as Apache Kafka's, field by field; and what is written can be read."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

import pytest

from muster.protocol import messages as m
from muster.protocol.records.compression import Compression
from muster.protocol.records.record_batch import check_batch, iter_headers, read_tuples
from tests.support import brokers
from tests.support.brokers import RawClient
from tests.support.lying_batches import ANSWERS_OF_KAFKA, LIES, TOPICS, ask_all
from tests.support.peers import KafkaBroker

BROKEN: list[object] = [87, None, "not written", -1, 0, 0, []]
FAILED: list[object] = [-1, None, "not written", -1, 0, 0, []]

REFUSED_HERE = {
    "a key of -2 bytes": BROKEN,
    "a value of -2 bytes": BROKEN,
    "a header's value of -3 bytes": BROKEN,
}
"""Kafka accepts some batches that most consumers cannot read, and that would stop them."""

for codec in (Compression.GZIP, Compression.SNAPPY, Compression.LZ4, Compression.ZSTD):
    name = codec.name.lower()
    for lie in ("a record of one too few", "a record of one too many", "a record of -5 bytes"):
        REFUSED_HERE[f"{name}, {lie}"] = BROKEN
    REFUSED_HERE[f"{name} with a byte behind it"] = FAILED


async def test_lies_are_answered_as_by_kafka(tmp_path: Path) -> None:
    kafkas = json.loads(ANSWERS_OF_KAFKA.read_text())

    def tell(bootstrap: str) -> None:
        with RawClient(bootstrap) as client:
            ours = ask_all(client)
            wrong = [
                f"{topic}: {lie}: ours {ours[topic][lie]}, expected {expected}"
                for topic in TOPICS
                for lie in LIES
                if ours[topic][lie] != (expected := REFUSED_HERE.get(lie, kafkas[topic][lie]))
            ]
            assert not wrong, "\n".join(wrong)
            for topic in TOPICS:
                read_all(client, topic)

    async with brokers.running(tmp_path / "data") as broker:
        await brokers.in_thread(tell, broker.bootstrap)


def read_all(client: RawClient, topic: str) -> None:
    """Everything that was written can be read, and the header has the largest time of the records."""
    offset = end = 0
    while offset == 0 or offset < end:
        asked = m.FetchPartition(0, fetch_offset=offset, partition_max_bytes=1 << 20)
        request = m.FetchRequest(max_wait_ms=0, min_bytes=0, topics=[m.FetchTopic(topic, partitions=[asked])])
        [answer] = client.ask(request, 11).responses[0].partitions
        end = answer.high_watermark
        assert isinstance(answer.records, bytes)
        for position, header in iter_headers(answer.records):
            check_batch(answer.records, position, header)
            records = read_tuples(answer.records, position, header)
            assert header.base_offset == offset
            assert len(records) == header.record_count == header.last_offset_delta + 1
            latest = max((time + (1 << 63)) % (1 << 64) - (1 << 63) for _, time, *_ in records)
            assert header.max_timestamp == latest
            offset = header.next_offset


@pytest.mark.slow
def test_kafka_says_so_still(kafka_broker: KafkaBroker) -> None:
    with RawClient(kafka_broker.bootstrap) as client:
        found = ask_all(client, f"{uuid.uuid4().hex}-")
    recorded = json.loads(ANSWERS_OF_KAFKA.read_text())
    wrong = [
        f"{topic}: {lie}: now {found[topic][lie]}, recorded {recorded[topic][lie]}"
        for topic in TOPICS
        for lie in LIES
        if found[topic][lie] != recorded[topic][lie]
    ]
    assert not wrong, "\n".join(wrong)
