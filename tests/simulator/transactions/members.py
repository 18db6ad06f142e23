"""The members of a group that copy records, each record once (KIP-447): muster's own consumer and producer, run by
`async_exactly_once`, in processes that are suspended and killed.

Each round is an attempt whose records and offsets contain its name. The outcome is what `async_exactly_once`
guarantees: a round that it counts is committed, one that it reads again is not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from unittest import mock

from muster.client.consumer import async_consumer
from muster.client.consumer.async_consumer import AsyncConsumer
from muster.client.exactly_once import async_exactly_once
from muster.errors import MusterError
from muster.model import GroupMetadata, OffsetAndMetadata, TopicPartition
from tests.simulator.checks import InvariantError
from tests.simulator.transactions.client import ClientProducer
from tests.simulator.transactions.producers import Abortable, Fatal
from tests.simulator.transactions.wire import ClientDriver
from tests.simulator.transactions.world import Attempt, World

SOURCE, COPIERS = "source", "copiers"


def value_of(partition: int, offset: int) -> str:
    """The content of a record's copy."""
    return f"copy {partition} {offset}"


class Member:
    """One process. `out`: the partitions to which it writes; `settings`: additional ones of its consumer."""

    def __init__(
        self, world: World, process: str, producer: ClientProducer, out: list[TopicPartition], **settings: Any
    ) -> None:
        self.process = process
        self.is_leaving = False
        self._world = world
        self._out = out
        self._producer = producer
        self._round: Attempt | None = None
        rng = world.rng
        session_ms = rng.choice((400, 1_000))
        with mock.patch.object(async_consumer, "random", rng):
            self._consumer = AsyncConsumer(
                group_id=COPIERS,
                client_id=process,
                enable_auto_commit=False,
                isolation_level="read_committed",
                auto_offset_reset="earliest",
                session_timeout_ms=session_ms,
                heartbeat_interval_ms=100,
                max_poll_interval_ms=rng.choice((1_000, 3_000)),
                max_poll_records=rng.choice((1, 3, 10)),
                request_timeout_ms=3_000,
                default_api_timeout_ms=3_000,
                fetch_max_wait_ms=100,
                retry_backoff_ms=20,
                retry_backoff_max_ms=100,
                reconnect_backoff_ms=5,
                reconnect_backoff_max_ms=50,
                **settings,
            )
        pump: Any = self._consumer._pump
        driver: Any = ClientDriver(world, process, self._consumer._config, self._consumer._core.metadata, lambda: False)
        self._consumer._driver = pump.driver = pump.loop.driver = driver
        driver.loop.on_end.append(self._killed)
        self._client: Any = producer._client
        self._commit_offsets = self._client.send_offsets_to_transaction
        vars(self._client)["send_offsets_to_transaction"] = self._send_offsets

    def _killed(self) -> None:
        self._consumer._closed = self._consumer._loop._closed = True

    async def live(self) -> None:
        """Copy until it must leave, or cannot continue."""
        world, rng = self._world, self._world.rng
        try:
            await self._producer.begin()
            self._consumer.subscribe([SOURCE])
            await async_exactly_once(self._consumer, self._client, self._handle, until=self._until, timeout_ms=200)
        except (Abortable, Fatal, MusterError) as error:
            world.tell(f"{self.process} ends: {error!r}")
        began, limit = world.now, rng.choice((0, 500))
        await self._consumer.close(limit)
        if self._producer.is_late(began, limit):
            raise InvariantError(f"the close of {self.process}'s consumer took {world.now - began} ms, not {limit}")
        await self._producer.leave()

    async def _handle(self, batch: Mapping[TopicPartition, list[Any]]) -> None:
        rng = self._world.rng
        self._round = self._producer.note_attempt()
        for partition, records in batch.items():
            for record in records:
                await self._producer.append(rng.choice(self._out), value_of(partition.partition, record.offset))
        ends = {str(partition): records[-1].offset + 1 for partition, records in batch.items()}
        self._world.tell(f"{self._round.name} copies up to {ends}")
        await self._world.sleep(rng.choice((0, 0, 5, 50, 300, rng.randint(0, 4_000))))

    async def _send_offsets(self, offsets: Mapping[TopicPartition, int], group: GroupMetadata, **more: Any) -> None:
        found = self._round
        assert found is not None
        named = {where: OffsetAndMetadata(offset, metadata=found.name) for where, offset in offsets.items()}
        await self._commit_offsets(named, group, **more)
        found.offsets += [(group.group_id, where, offset) for where, offset in offsets.items()]

    def _until(self, count: int) -> bool:
        found, self._round = self._round, None
        if found is not None:
            found.reported = count > 0
            self._world.tell(f"{found.name} is {'committed' if count else 'read again'}")
        return self.is_leaving or self._world.rng.random() < 0.02
