"""The service with confluent-kafka."""

from __future__ import annotations

import logging
from threading import Event
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from billing.progress import Progress
from billing.service import Handle, Headers, Settings

log = logging.getLogger(__name__)

MOVED = (KafkaError.REBALANCE_IN_PROGRESS, KafkaError.ILLEGAL_GENERATION, KafkaError.UNKNOWN_MEMBER_ID)
"""A rebalance is under way, or the partitions are lost."""


class Order(NamedTuple):
    """A message of confluent-kafka as the service's record."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers


def run(settings: Settings, handle: Handle, stopping: Event) -> None:
    """Handle orders until `stopping` is set."""
    # librdkafka writes its own messages to stderr unless it has a logger.
    common = {"bootstrap.servers": settings.bootstrap, "client.id": settings.client_id, "logger": log}
    producer = Producer({**common, "enable.idempotence": True})
    consumer = Consumer(
        {
            **common,
            "group.id": settings.group_id,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "heartbeat.interval.ms": round(settings.heartbeat_interval_s * 1000),
            "partition.assignment.strategy": "cooperative-sticky",
        }
    )
    member = Member(consumer, producer, settings.commit_interval_s)
    try:
        consumer.subscribe([settings.orders], on_revoke=member.on_revoke, on_lost=member.on_lost)
        while not stopping.is_set():
            found = consumer.poll(0.1)
            if found is not None and found.error() is None:
                record = _order(found)
                message = handle(record)
                producer.produce(
                    message.topic, message.value, message.key, headers=message.headers, on_delivery=member.on_delivery
                )
                member.progress.add(record)
            elif found is not None:
                if found.error().fatal():
                    raise KafkaException(found.error())
                log.warning("%s", found.error())
            if member.progress.is_due():
                member.commit()
        member.commit()
    finally:
        consumer.close()


def _order(found: Any) -> Order:
    return Order(found.topic(), found.partition(), found.offset(), found.key(), found.value(), found.headers() or [])


class Member:
    """Commits the offsets of handled records."""

    def __init__(self, consumer: Consumer, producer: Producer, interval_s: float) -> None:
        self.progress = Progress(interval_s)
        self._consumer = consumer
        self._producer = producer
        self._failed: list[KafkaError] = []

    def on_delivery(self, error: KafkaError | None, message: Any) -> None:
        """A message was written, or could not be."""
        if error is not None:
            self._failed.append(error)

    def commit(self) -> None:
        """Wait until the messages are written, then commit."""
        self._producer.flush()
        if self._failed:
            raise KafkaException(self._failed[0])
        offsets = self.progress.to_commit()
        if not offsets:
            return
        places = [TopicPartition(topic, partition, offset) for (topic, partition), offset in offsets.items()]
        try:
            self._consumer.commit(offsets=places, asynchronous=False)
            self.progress.committed(offsets)
        except KafkaException as error:
            reason = error.args[0]
            if reason.code() not in MOVED and not reason.retriable():
                raise
            log.warning("not committed: %s", reason)

    def on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """These partitions are about to be given up."""
        self.commit()
        self.on_lost(consumer, partitions)

    def on_lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """These partitions have gone to other members."""
        self.progress.forget((each.topic, each.partition) for each in partitions)
