"""The service with aiokafka."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from itertools import chain
from threading import Event
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener, TopicPartition
from aiokafka.errors import CommitFailedError

from billing.progress import Progress
from billing.service import Handle, Settings

log = logging.getLogger(__name__)


def run(settings: Settings, handle: Handle, stopping: Event) -> None:
    """Handle orders until `stopping` is set."""
    asyncio.run(_run(settings, handle, stopping))


async def _run(settings: Settings, handle: Handle, stopping: Event) -> None:
    common = {"bootstrap_servers": settings.bootstrap, "client_id": settings.client_id}
    consumer = AIOKafkaConsumer(
        **common,
        group_id=settings.group_id,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        heartbeat_interval_ms=round(settings.heartbeat_interval_s * 1000),
    )
    member = Member(consumer, settings.commit_interval_s)
    consumer.subscribe([settings.orders], listener=member)
    async with AIOKafkaProducer(**common, enable_idempotence=True) as producer, consumer:
        while not stopping.is_set():
            batches = await consumer.getmany(timeout_ms=100)
            rebalances = member.rebalances
            for record in chain.from_iterable(batches.values()):
                async with member.lock:
                    if stopping.is_set() or member.rebalances != rebalances:
                        break  # after a rebalance the rest of the batch is read again, by this member or another
                    # In a thread: the event loop sends heartbeats meanwhile.
                    message = await asyncio.to_thread(handle, record)
                    member.sent.append(
                        await producer.send(message.topic, message.value, key=message.key, headers=message.headers)
                    )
                    member.progress.add(record)
            if member.progress.is_due():
                async with member.lock:
                    await member.commit()
        async with member.lock:
            await member.commit()


class Member(ConsumerRebalanceListener):  # type: ignore[misc]
    """Commits the offsets of handled records.

    aiokafka calls listeners concurrently with the loop that reads: a rebalance waits until `lock` is free.
    """

    def __init__(self, consumer: AIOKafkaConsumer, interval_s: float) -> None:
        self.lock = asyncio.Lock()
        self.rebalances = 0
        self.progress = Progress(interval_s)
        self.sent: list[asyncio.Future[Any]] = []
        self._consumer = consumer

    async def commit(self) -> None:
        """Wait until the messages are written, then commit."""
        await asyncio.gather(*self.sent)
        self.sent.clear()
        offsets = self.progress.to_commit()
        if not offsets:
            return
        try:
            await self._consumer.commit({TopicPartition(*partition): offset for partition, offset in offsets.items()})
            self.progress.committed(offsets)
        except CommitFailedError as error:
            log.warning("not committed: a rebalance is under way, or these partitions are lost: %s", error)

    async def on_partitions_revoked(self, revoked: Collection[TopicPartition]) -> None:
        """These partitions are about to be given up, or are lost."""
        async with self.lock:
            self.rebalances += 1
            try:
                await self.commit()
            finally:
                self.progress.forget(revoked)

    async def on_partitions_assigned(self, assigned: Collection[TopicPartition]) -> None:
        """These partitions are now read by this member."""
