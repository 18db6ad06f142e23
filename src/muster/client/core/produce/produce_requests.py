"""Produce: the request for some batches, and what its answer says about each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from muster.client.core.produce.accumulator import ProducerBatch
from muster.client.core.refusals import EPOCH_IS_OLD, LIMITS
from muster.errors import ErrorCode, KafkaError, MusterError
from muster.model import TopicPartition
from muster.protocol.messages import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from muster.protocol.primitives import ZERO_UUID

_LAST_VERSION_BY_NAME = 12


@dataclass(slots=True)
class ProduceCall:
    """A Produce request in the making: `build` it in a version up to `newest`, and read its answer with `answers`."""

    build: Callable[[int], ProduceRequest]
    newest: int | None
    names: dict[bytes, str]

    def answers(self, reply: ProduceResponse) -> dict[TopicPartition, PartitionProduceResponse]:
        """The answer for each partition."""
        found: dict[TopicPartition, PartitionProduceResponse] = {}
        for topic in reply.responses:
            name = topic.name or self.names.get(topic.topic_id, "")
            found |= {TopicPartition(name, part.index): part for part in topic.partition_responses}
        return found


def produce_call(
    batches: Sequence[ProducerBatch],
    topic_id: Callable[[str], bytes],
    acks: int,
    timeout_ms: int,
    transactional_id: str | None,
    newest: int | None,
) -> ProduceCall:
    """The request for encoded batches of one broker. A version that names topics is used if an id is missing."""
    by_topic: dict[str, list[ProducerBatch]] = {}
    for batch in batches:
        by_topic.setdefault(batch.partition.topic, []).append(batch)
    ids = {topic: topic_id(topic) for topic in by_topic}
    if newest is None and ZERO_UUID in ids.values():
        newest = _LAST_VERSION_BY_NAME

    def build(version: int) -> ProduceRequest:
        by_name = version <= _LAST_VERSION_BY_NAME
        return ProduceRequest(
            transactional_id=transactional_id,
            acks=acks,
            timeout_ms=timeout_ms,
            topic_data=[
                TopicProduceData(
                    name=topic if by_name else "",
                    topic_id=ZERO_UUID if by_name else ids[topic],
                    partition_data=[PartitionProduceData(b.partition.partition, b.encoded) for b in parts],
                )
                for topic, parts in by_topic.items()
            ],
        )

    return ProduceCall(build, newest, {topic_id: topic for topic, topic_id in ids.items()})


def batch_error(batch: ProducerBatch, code: ErrorCode, answer: PartitionProduceResponse) -> KafkaError:
    """The error of a batch that a broker did not write."""
    what = f"the {'record' if batch.count == 1 else f'batch of {batch.count} records'} for {batch.partition}"
    if (limit := LIMITS.get(code)) is not None:
        text = f"{what} takes {batch.size} bytes, more than {limit} allows"
    elif code is ErrorCode.INVALID_PRODUCER_EPOCH:
        text = f"{what} was not written: {EPOCH_IS_OLD}"
    else:
        text = f"{what} was not written"
    return KafkaError(code, f"{text}: {answer.error_message}" if answer.error_message else text)


def record_errors(code: ErrorCode, answer: PartitionProduceResponse | None) -> dict[int, MusterError]:
    """The broker's errors for single records (KIP-467); the other records of the batch fail because of them."""
    if answer is None or not answer.record_errors:
        return {}
    single = len(answer.record_errors) == 1
    return {
        found.batch_index: KafkaError(
            code if single else ErrorCode.INVALID_RECORD, found.batch_index_error_message or answer.error_message
        )
        for found in answer.record_errors
    }
