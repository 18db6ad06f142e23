"""The service with muster's clients."""

from __future__ import annotations

import logging
from concurrent.futures import Future
from itertools import chain
from threading import Event

from billing.progress import Progress
from billing.service import Handle, Settings
from muster import CommitFailedError, Consumer, Producer, RebalanceListener, RecordMetadata, TopicPartition

log = logging.getLogger(__name__)


def run(settings: Settings, handle: Handle, stopping: Event) -> None:
    """Handle orders until `stopping` is set."""
    common = {"bootstrap_servers": settings.bootstrap, "client_id": settings.client_id}
    with (
        Producer(common) as producer,
        Consumer(
            common,
            group_id=settings.group_id,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            heartbeat_interval_ms=round(settings.heartbeat_interval_s * 1000),
            partition_assignment_strategy="cooperative-sticky",
        ) as consumer,
    ):
        member = Member(consumer, settings.commit_interval_s)
        consumer.subscribe([settings.orders], listener=member)
        while not stopping.is_set():
            for record in chain.from_iterable(consumer.poll(100).values()):
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


class Member(RebalanceListener):
    """Commits the offsets of handled records."""

    def __init__(self, consumer: Consumer, interval_s: float) -> None:
        self.progress = Progress(interval_s)
        self.sent: list[Future[RecordMetadata]] = []
        self._consumer = consumer

    def commit(self) -> None:
        """Wait until the messages are written, then commit."""
        for sent in self.sent:
            sent.result()
        self.sent.clear()
        offsets = self.progress.to_commit()
        if not offsets:
            return
        try:
            self._consumer.commit({TopicPartition(*partition): offset for partition, offset in offsets.items()})
            self.progress.committed(offsets)
        except CommitFailedError as error:
            log.warning("not committed: a rebalance is under way, or these partitions are lost: %s", error)

    def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
        self.commit()
        self.progress.forget(partitions)

    def on_partitions_lost(self, partitions: list[TopicPartition]) -> None:
        self.progress.forget(partitions)
