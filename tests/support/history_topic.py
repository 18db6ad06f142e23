"""`__consumer_offsets` as a test wants it: recorded histories, written as only Kafka's own tools may."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from muster.errors import ErrorCode
from muster.history.tables import RAW
from muster.model import GROUP_METADATA_TOPIC
from muster.protocol import messages as m
from muster.protocol.primitives import ZERO_UUID
from muster.protocol.record_batch import RecordFields, build_batch
from tests.support.brokers import RawClient

CORPUS = Path(__file__).parent.parent / "history" / "corpus"
BATCH = 2_000


class Written(NamedTuple):
    """A record, and the log partition in which it stands."""

    partition: int
    timestamp_ms: int
    key: bytes
    value: bytes | None
    leader_epoch: int = 0


def names() -> list[str]:
    """All recorded scenarios."""
    return sorted(path.name.removesuffix(".json.gz") for path in CORPUS.glob("*.json.gz"))


def recorded(names: Iterable[str], partitions: int) -> list[Written]:
    """Recorded scenarios side by side in one topic, each group in one partition, by time."""
    found = []
    for number, name in enumerate(names):
        kept = json.loads(gzip.decompress((CORPUS / f"{name}.json.gz").read_bytes()))
        for _, _, timestamp_ms, epoch, key, value in kept["records"]:
            raw = None if value is None else base64.b64decode(value)
            found.append(Written(number % partitions, timestamp_ms, base64.b64decode(key), raw, epoch))
    return sorted(found, key=lambda record: record.timestamp_ms)


def raw(records: Sequence[Written], first: int = 0) -> pa.Table:
    """Records of one log partition as they are read."""
    rows = [
        {
            "partition": record.partition,
            "offset": first + number,
            "timestamp_ms": record.timestamp_ms,
            "leader_epoch": record.leader_epoch,
            "key": record.key,
            "value": record.value,
        }
        for number, record in enumerate(records)
    ]
    return pa.Table.from_pylist(rows, schema=RAW)


def create(bootstrap: str, partitions: int) -> None:
    """The topic, with so many partitions."""
    with RawClient(bootstrap) as client:
        request = m.CreateTopicsRequest([m.CreatableTopic(GROUP_METADATA_TOPIC, partitions, 1)], 10_000)
        assert client.ask(request, 7).topics[0].error_code == 0


def delete(bootstrap: str) -> None:
    """The topic, with all that is in it."""
    with RawClient(bootstrap) as client:
        request = m.DeleteTopicsRequest([m.DeleteTopicState(GROUP_METADATA_TOPIC)], [], 10_000)
        assert client.ask(request, 6).responses[0].error_code in (0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


def write(bootstrap: str, records: Sequence[Written]) -> None:
    """Write records behind those that are there. `__admin_client` is the name by which Kafka's tools may."""
    with RawClient(bootstrap) as client:
        for partition in sorted({record.partition for record in records}):
            mine = [record for record in records if record.partition == partition]
            own: list[RecordFields] = [(r.timestamp_ms, r.key, r.value, []) for r in mine]
            for some in _batched(own):
                data = m.PartitionProduceData(partition, bytes(build_batch(list(some))))
                topic = m.TopicProduceData(GROUP_METADATA_TOPIC, ZERO_UUID, [data])
                answer = client.ask(m.ProduceRequest(None, -1, 30_000, [topic]), 9, "__admin_client")
                assert answer.responses[0].partition_responses[0].error_code == 0


def _batched(records: list[RecordFields]) -> Iterable[list[RecordFields]]:
    return (records[begin : begin + BATCH] for begin in range(0, len(records), BATCH))
