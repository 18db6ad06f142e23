"""The records for the Spark benchmark: batches built once and produced repeatedly, one topic per codec."""

from __future__ import annotations

import os
import time
import uuid
from typing import NamedTuple

from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.modes import PRODUCE_VERSION
from benchmarks.wire import Asker, BenchmarkError
from muster.clock import wall_clock_ms
from muster.errors import ErrorCode
from muster.protocol.messages import PartitionProduceData, ProduceRequest, TopicProduceData
from muster.protocol.records.compression import Compression
from muster.protocol.records.record_batch import RecordFields
from tests.support.written import build_batch

PARTITIONS = 8
BATCH_BYTES = 64 * 1024
DIFFERENT = 48
"""How many batches are distinct; the rest repeat these at other offsets."""

_PASSING = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.NOT_LEADER_OR_FOLLOWER)


class Topic(NamedTuple):
    """A filled topic: the same number of records in each partition."""

    name: str
    of_each: int

    @property
    def records(self) -> int:
        return self.of_each * PARTITIONS


def fill(bootstrap: str, value_bytes: int, codec: str, records: int) -> Topic:
    """A new topic of about this many records, which repeat those of some batches."""
    filler = [os.urandom(value_bytes).hex()[: value_bytes - 12].encode() for _ in range(64)]
    name = f"bench-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.create_topics([NewTopic(name, PARTITIONS, 1)]).values():
        future.result(30)
    in_batch = max(1, BATCH_BYTES // (value_bytes + 18))
    batches = [_batch(number, in_batch, filler, Compression[codec.upper()]) for number in range(DIFFERENT)]
    rounds = -(-records // (in_batch * PARTITIONS))
    host, _, port = bootstrap.rpartition(":")
    with Asker((host, int(port))) as asker:
        for turn in range(rounds):
            some = [batches[(turn * PARTITIONS + index) % DIFFERENT] for index in range(PARTITIONS)]
            _produce(asker, name, some)
    return Topic(name, rounds * in_batch)


def drop(bootstrap: str, topic: Topic) -> None:
    """Delete it: ten million records of each codec would fill a disk."""
    admin = AdminClient({"bootstrap.servers": bootstrap})  # it must live as long as its futures
    for future in admin.delete_topics([topic.name]).values():
        future.result(30)


def _batch(number: int, records: int, filler: list[bytes], codec: Compression) -> bytes:
    """Distinct keys, and values that compress about as well as JSON."""
    now = wall_clock_ms()
    first = number * records
    found: list[RecordFields] = [
        (now, b"k%010d" % at, b"%012d" % at + filler[at & 63], []) for at in range(first, first + records)
    ]
    return bytes(build_batch(found, compression=codec))


def _produce(asker: Asker, topic: str, batches: list[bytes]) -> None:
    """Write a batch to each partition once. The leaders of a new topic take a moment to learn that they lead."""
    left = dict(enumerate(batches))
    deadline = time.monotonic() + 20
    while left:
        data = [PartitionProduceData(index, batch) for index, batch in left.items()]
        request = ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[TopicProduceData(topic, partition_data=data)])
        for told in asker.ask(request, PRODUCE_VERSION).responses[0].partition_responses:
            if told.error_code == 0:
                del left[told.index]
            elif told.error_code not in _PASSING or time.monotonic() > deadline:
                raise BenchmarkError(f"Produce was answered {ErrorCode(told.error_code).name}")
        if left:
            time.sleep(0.1)
