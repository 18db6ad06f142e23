"""`__consumer_offsets` for tests: recorded histories, written as only Kafka's own tools may."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from muster.broker.topics.catalogue import EVENTS_TOPIC_SETTINGS
from muster.errors import ErrorCode
from muster.history.tables import RAW
from muster.model import GROUP_EVENTS_TOPIC, GROUP_METADATA_TOPIC
from muster.protocol import messages as m
from muster.protocol.group_partitions import group_partition
from muster.protocol.primitives import ZERO_UUID
from muster.protocol.records.record_batch import RecordFields
from tests.support.brokers import RawClient
from tests.support.written import build_batch

CORPUS = Path(__file__).parent.parent / "history" / "corpus"
BATCH = 2_000


class Written(NamedTuple):
    """A record, and its log partition."""

    partition: int
    timestamp_ms: int
    key: bytes
    value: bytes | None
    leader_epoch: int = 0


def names() -> list[str]:
    """All recorded scenarios."""
    return sorted(path.name.removesuffix(".json.gz") for path in CORPUS.glob("*.json.gz"))


def recorded(names: Iterable[str], partitions: int) -> list[Written]:
    """Recorded scenarios merged into one topic, each group in its partition, by time."""
    found = []
    for name in names:
        kept = json.loads(gzip.decompress((CORPUS / f"{name}.json.gz").read_bytes()))
        own = group_partition(f"{name.removesuffix('.muster')}.g", partitions)
        for _, _, timestamp_ms, epoch, key, value, *_ in kept["records"]:
            raw = None if value is None else base64.b64decode(value)
            found.append(Written(own, timestamp_ms, base64.b64decode(key), raw, epoch))
    return sorted(found, key=lambda record: record.timestamp_ms)


def reported(names: Iterable[str], partitions: int = 1) -> list[Written]:
    """The records that the brokers of recorded scenarios wrote to `__group_events` about the groups of `recorded`,
    spread over its partitions as if brokers had coordinated the groups in turn."""
    found: list[Written] = []
    for name in names:
        kept = json.loads(gzip.decompress((CORPUS / f"{name}.json.gz").read_bytes()))
        for event in kept.get("events") or ():
            own = len(found) % partitions
            found.append(Written(own, event["at_ms"], event["group_id"].encode(), json.dumps(event).encode()))
    return sorted(found, key=lambda record: record.timestamp_ms)


def raw(records: Sequence[Written], first: int = 0) -> pa.Table:
    """Records of one log partition in the form in which they are read."""
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


class Source:
    """Records of log partitions as a source of the history, this many rows at a time."""

    def __init__(self, parts: dict[int, list[Written]], rows: int = 1000) -> None:
        self._parts, self._rows = parts, rows
        self.records = {partition: len(records) for partition, records in parts.items()}

    def read(self, partition: int) -> Iterator[pa.RecordBatch]:
        yield from raw(self._parts[partition]).to_batches(max_chunksize=self._rows)


def create(bootstrap: str, partitions: int, topic: str = GROUP_METADATA_TOPIC) -> None:
    """Create one of the brokers' own topics with this many partitions."""
    mark = EVENTS_TOPIC_SETTINGS if topic == GROUP_EVENTS_TOPIC else {}
    settings = [m.CreatableTopicConfig(name, value) for name, value in mark.items()]
    with RawClient(bootstrap) as client:
        request = m.CreateTopicsRequest([m.CreatableTopic(topic, partitions, 1, [], settings)], 10_000)
        assert client.ask(request, 7).topics[0].error_code == 0


def delete(bootstrap: str) -> None:
    """The topic, with all of these records."""
    with RawClient(bootstrap) as client:
        request = m.DeleteTopicsRequest([m.DeleteTopicState(GROUP_METADATA_TOPIC)], [], 10_000)
        assert client.ask(request, 6).responses[0].error_code in (0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


def write(bootstrap: str, records: Sequence[Written], name: str = GROUP_METADATA_TOPIC) -> None:
    """Append records. `__admin_client` is the client id with which Kafka's tools are allowed to."""
    with RawClient(bootstrap) as client:
        for partition in sorted({record.partition for record in records}):
            mine = [record for record in records if record.partition == partition]
            own: list[RecordFields] = [(r.timestamp_ms, r.key, r.value, []) for r in mine]
            for some in _batched(own):
                data = m.PartitionProduceData(partition, bytes(build_batch(list(some))))
                topic = m.TopicProduceData(name, ZERO_UUID, [data])
                answer = client.ask(m.ProduceRequest(None, -1, 30_000, [topic]), 9, "__admin_client")
                assert answer.responses[0].partition_responses[0].error_code == 0


def _batched(records: list[RecordFields]) -> Iterable[list[RecordFields]]:
    return (records[begin : begin + BATCH] for begin in range(0, len(records), BATCH))
