"""The records that flow while the group changes: written at an even pace, to all partitions in turn."""

from __future__ import annotations

import asyncio
from typing import Any

from muster.client.admin.async_admin import AsyncAdmin
from muster.client.producer.async_producer import AsyncProducer
from muster.clock import monotonic_ms
from muster.errors import MusterError
from muster.model import TopicPartition
from muster.protocol.api import LATEST_TIMESTAMP

TURN_S = 0.05


class Load:
    """Writes until it is stopped. What it writes is the same in every run: numbers from 0 on."""

    def __init__(self, bootstrap: str, topic: str, partitions: int, rate: int) -> None:
        self._bootstrap = bootstrap
        self._topic = topic
        self._partitions = partitions
        self._rate = rate
        self._ends: dict[int, int] = {}
        self._stopped = False

    def stop(self) -> None:
        """Stop after the writes under way."""
        self._stopped = True

    def written(self) -> dict[int, int]:
        """The offset after the last acknowledged record of each partition."""
        return dict(self._ends)

    async def run(self) -> None:
        """Write until stopped, and until all is acknowledged."""
        async with AsyncProducer(
            bootstrap_servers=self._bootstrap, client_id="muster-compare", linger_ms=5
        ) as producer:
            began, sent = monotonic_ms(), 0
            while not self._stopped:
                due = (monotonic_ms() - began) * self._rate // 1000
                for number in range(sent, due):
                    outcome = await producer.send(
                        self._topic, str(number).encode(), partition=number % self._partitions
                    )
                    outcome.add_done_callback(self._acknowledged)
                sent = max(sent, due)
                await asyncio.sleep(TURN_S)
            await producer.flush()

    def _acknowledged(self, outcome: asyncio.Future[Any]) -> None:
        if not outcome.cancelled() and outcome.exception() is None:
            written = outcome.result()
            self._ends[written.partition] = max(self._ends.get(written.partition, 0), written.offset + 1)

    async def ends(self, admin: AsyncAdmin) -> dict[int, int]:
        """The partitions' ends according to the brokers."""
        partitions = [TopicPartition(self._topic, number) for number in range(self._partitions)]
        found = await admin.list_offsets(dict.fromkeys(partitions, LATEST_TIMESTAMP))
        ends = {}
        for partition, answer in found.items():
            if answer is None:
                raise MusterError(f"the brokers did not report the end of {partition}")
            ends[partition.partition] = answer.offset
        return ends
