"""`AsyncServerAssignedConsumer`: a consumer of scheme 2 for asyncio.

A `CoreLoop` runs a `ServerAssignedMember` (`server_assigned/member.py`) over connections to the coordinators. Its
partitions are read as in `assigned_reader.py`, from brokers that know nothing of the group. This file connects the two.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack

from muster.client.consumer.async_consumer import AsyncConsumer, OffsetsToCommit
from muster.client.consumer.pump import settle
from muster.client.core.checks import check_partitions, check_timeout, check_topic
from muster.client.core.events import Fatal
from muster.client.net.driver import CoreLoop, Driver
from muster.errors import ClosedError, ConfigError, IllegalStateError, MusterError
from muster.model import GroupMetadata, OffsetAndMetadata, TopicPartition
from muster.protocol.draft_api import DRAFT_VERSIONS
from muster.zookeeper.consumers.assigned_reader import AsyncAssignedReader
from muster.zookeeper.consumers.server_assigned_config import ServerAssignedConfig
from muster.zookeeper.server_assigned.member import ServerAssignedMember
from muster.zookeeper.server_assigned.states import ServerAssignedState

if TYPE_CHECKING:
    from muster.zookeeper.consumers.typed_settings import ServerAssignedKeywords

log = logging.getLogger("muster.zookeeper.server_assigned")


class AsyncServerAssignedConsumer(AsyncAssignedReader):
    """Reads records as a member of a group whose coordinator assigns the partitions, as in Kafka's drafts of 2013 to
    2015.

    It connects to the draft listeners of muster's brokers (setting `draft.listener`), for groups that match
    `server.assigned.groups`; consumers of today's Kafka can be in the same group. Settings are those of
    `ServerAssignedConfig`, by keyword or as a mapping with Kafka's dotted keys.

        async with AsyncServerAssignedConsumer(
            coordinator_servers="localhost:9093", bootstrap_servers="localhost:9092", group_id="delays"
        ) as consumer:
            consumer.subscribe(["flights"])
            async for record in consumer:
                ...

    Delivery is at least once. A rebalance does not wait for the caller: the last records may be returned again.
    """

    def __init__(self, settings: Mapping[str, Any] | None = None, /, **more: Unpack[ServerAssignedKeywords]) -> None:
        self._config = ServerAssignedConfig.of(settings, **more)
        self._member: ServerAssignedMember | None = None
        self._loop: CoreLoop | None = None
        self._partitions: frozenset[TopicPartition] = frozenset()
        """The partitions that are read now; empty while nothing is fetched."""
        self._watch: asyncio.Task[None] | None = None
        super().__init__()

    # --- life --------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Join the group once the consumer is subscribed. Every method that waits does this automatically."""
        self._check_open()
        if self._member is None or self._loop is not None:
            return
        self._reader = AsyncConsumer(self._config.of_reader())
        self._reader.assign([])
        driver = Driver(self._config.of_member(), self._member.nodes, DRAFT_VERSIONS)
        self._loop = CoreLoop(driver, [self._member], self._on_turn)
        self._member.begin(driver.now())
        await self._loop.start()
        await self._reader.start()
        self._watch = asyncio.create_task(self._report_defect(self._loop))

    @property
    def _has_begun(self) -> bool:
        return self._loop is not None

    @property
    def _is_subscribed(self) -> bool:
        return self._member is not None

    def _seen(self) -> None:
        if self._member is not None and self._loop is not None:
            self._member.begin(self._loop.driver.now())
            self._loop.wakeup()

    async def _end(self, timeout_ms: int) -> None:
        if self._loop is None or self._member is None:
            return
        left = asyncio.Event()
        try:
            if self._loop.error is None:
                now = self._loop.driver.now()
                self._member.leave(now, now + timeout_ms, left.set)
                await self._loop.wait_for(left.is_set, timeout_ms)
        finally:
            await self._drop()
            if self._reader is not None:
                await self._reader.close()

    async def _drop(self) -> None:
        if self._loop is not None:
            await self._loop.close()
        if self._watch is not None:
            await asyncio.wait([self._watch])

    async def _report_defect(self, loop: CoreLoop) -> None:
        """If the loop stops because of an internal error, the next poll raises it."""
        with suppress(ClosedError):
            try:
                await loop.wait_for(lambda: False)
            except ClosedError:
                raise
            except MusterError as error:
                self._fail(error)

    # --- subscribing -------------------------------------------------------------------------------------------------

    def subscribe(self, topics: Iterable[str] | str) -> None:
        """Subscribe to topics and join the group. A consumer can subscribe only once.

        Raises:
            IllegalStateError: it is already subscribed.
        """
        self._check_open()
        if self._member is not None:
            raise IllegalStateError("a ServerAssignedConsumer can subscribe only once; create another one")
        names = [check_topic(topic) for topic in ([topics] if isinstance(topics, str) else topics)]
        if not names:
            raise ConfigError("subscribe() needs at least one topic")
        servers = self._config.coordinator_servers
        self._member = ServerAssignedMember(self._config, servers, names, _MemberFetching(self), random.getrandbits(31))

    def assignment(self) -> set[TopicPartition]:
        """The partitions that this consumer reads now."""
        return set(self._partitions)

    @property
    def state(self) -> ServerAssignedState:
        """The member's state in its group."""
        return self._member.state if self._member is not None else ServerAssignedState.OUTSIDE

    def group_metadata(self) -> GroupMetadata:
        """This consumer's current member id and generation."""
        generation_id, member_id = self._member.standing if self._member is not None else (-1, "")
        return GroupMetadata(self._config.group_id or "", generation_id, member_id, None)

    # --- committing --------------------------------------------------------------------------------------------------

    async def commit(self, offsets: OffsetsToCommit | None = None, timeout_ms: int | None = None) -> None:
        """Commit offsets at the coordinator, by default the caller's position in every partition. Retriable failures
        are retried.

        Raises:
            CommitFailedError: the group has been rebalanced, or a partition is not assigned to this consumer.
            KafkaTimeoutError: not done within `timeout_ms` (`default_api_timeout_ms` if None).
        """
        await self.start()
        member, loop = self._joined()
        outcome: asyncio.Future[MusterError | None] = asyncio.get_running_loop().create_future()
        member.commit(self._to_commit(offsets), partial(settle, outcome), self._until(loop, timeout_ms))
        await loop.wait_for(outcome.done)
        error = outcome.result()
        if error is not None:
            raise error

    async def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """The group's committed offsets; None for a partition without one.

        Raises:
            IllegalStateError: it is not subscribed yet.
            KafkaTimeoutError: there was no answer within `default_api_timeout_ms`.
        """
        await self.start()
        member, loop = self._joined()
        outcome: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        member.offsets.fetch(check_partitions(partitions), partial(settle, outcome), self._until(loop, None))
        await loop.wait_for(outcome.done)
        found: dict[TopicPartition, OffsetAndMetadata | None] | MusterError = outcome.result()
        if isinstance(found, MusterError):
            raise found
        return found

    def _joined(self) -> tuple[ServerAssignedMember, CoreLoop]:
        if self._member is None or self._loop is None:
            raise IllegalStateError("subscribe() before commit() or committed()")
        return self._member, self._loop

    def _until(self, loop: CoreLoop, timeout_ms: int | None) -> int:
        within_ms = self._config.default_api_timeout_ms if timeout_ms is None else check_timeout(timeout_ms)
        return loop.driver.now() + within_ms

    # --- the member --------------------------------------------------------------------------------------------------

    def _on_turn(self, now: int) -> None:
        assert self._member is not None
        assert self._loop is not None
        for event in self._member.events.take():
            if isinstance(event, Fatal):
                self._fail(event.error)
            else:
                self._loop.attend(event, log)


class _MemberFetching:
    """The consumer's fetching, as its member controls it (`member.Fetching`)."""

    def __init__(self, consumer: AsyncServerAssignedConsumer) -> None:
        self._consumer = consumer

    def handled(self) -> Mapping[TopicPartition, int]:
        return self._consumer._positions()

    def stop(self) -> Mapping[TopicPartition, int]:
        consumer = self._consumer
        positions = consumer._positions_at_stop()
        consumer._partitions = frozenset()
        if consumer._reader is not None:
            consumer._reader.assign([])
        return positions

    def start(self, partitions: Mapping[TopicPartition, int | None]) -> None:
        consumer = self._consumer
        consumer._partitions = frozenset(partitions)
        consumer._read_from(partitions)
        consumer._wake_poll()
