"""The service with kafka-python."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from contextlib import closing
from itertools import chain
from threading import Event
from typing import Any

from kafka import AsyncConsumerRebalanceListener, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import (
    CommitFailedError,
    IllegalGenerationError,
    RebalanceInProgressError,
    RetriableError,
    UnknownMemberIdError,
)
from kafka.structs import OffsetAndMetadata

from billing.progress import Progress
from billing.service import Handle, Settings

log = logging.getLogger(__name__)

NOT_NOW = (
    CommitFailedError,
    RebalanceInProgressError,
    IllegalGenerationError,
    UnknownMemberIdError,
    RetriableError,
)
"""A rebalance is under way, the partitions are lost, or the broker is down."""


def run(settings: Settings, handle: Handle, stopping: Event) -> None:
    """Handle orders until `stopping` is set."""
    common = {"bootstrap_servers": settings.bootstrap, "client_id": settings.client_id}
    with (
        closing(KafkaProducer(**common)) as producer,
        closing(
            KafkaConsumer(
                **common,
                group_id=settings.group_id,
                auto_offset_reset="earliest",
                enable_auto_commit=False,
                heartbeat_interval_ms=round(settings.heartbeat_interval_s * 1000),
            )
        ) as consumer,
    ):
        member = Member(consumer, settings.commit_interval_s)
        consumer.subscribe([settings.orders], listener=member)
        while not stopping.is_set():
            for record in _polled(consumer):
                message = handle(record)
                member.sent.append(
                    producer.send(message.topic, message.value, key=message.key, headers=message.headers)
                )
                member.progress.add(record)
                if stopping.is_set():
                    break
            if member.progress.is_due():
                member.commit()
        member.commit()


def _polled(consumer: KafkaConsumer) -> Iterable[Any]:
    """The next records, if there are any."""
    try:
        # A poll that ends while the consumer joins can leave kafka-python 3.0 without partitions, so this timeout is
        # long.
        return chain.from_iterable(consumer.poll(timeout_ms=1000).values())
    except RetriableError as error:  # the broker is down
        log.warning("nothing read: %s", error)
        return ()


class Member(AsyncConsumerRebalanceListener):  # type: ignore[misc]
    """Commits the offsets of handled records."""

    def __init__(self, consumer: KafkaConsumer, interval_s: float) -> None:
        self.progress = Progress(interval_s)
        self.sent: list[Any] = []
        self._consumer = consumer

    def commit(self) -> None:
        """Wait until the messages are written, then commit."""
        offsets = self._to_commit()
        if not offsets:
            return
        try:
            self._consumer.commit(_described(offsets))
            self.progress.committed(offsets)
        except NOT_NOW as error:
            log.warning("not committed yet: %s", error)

    async def on_partitions_revoked(self, revoked: Collection[TopicPartition]) -> None:
        """These partitions are about to be given up.

        This is called on the consumer's event loop, within `poll`, where the blocking `commit` would wait for itself.
        """
        offsets = self._to_commit()
        if offsets:
            try:
                await self._consumer.commit_async(_described(offsets))
            except NOT_NOW as error:
                log.warning("not committed; the next owner handles the last orders again: %s", error)
        self.progress.forget(revoked)

    async def on_partitions_lost(self, lost: Collection[TopicPartition]) -> None:
        """These partitions have gone to other members."""
        self.progress.forget(lost)

    async def on_partitions_assigned(self, assigned: Collection[TopicPartition]) -> None:
        """These partitions are now read by this member."""

    def _to_commit(self) -> dict[tuple[str, int], int]:
        for sent in self.sent:
            sent.get(timeout=60)
        self.sent.clear()
        return self.progress.to_commit()


def _described(offsets: dict[tuple[str, int], int]) -> dict[TopicPartition, OffsetAndMetadata]:
    return {TopicPartition(*partition): OffsetAndMetadata(offset, "", -1) for partition, offset in offsets.items()}
