"""Factories of muster's clients for tests: clients connect to a kit's brokers, and are closed when the test ends."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import AsyncExitStack, ExitStack
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from muster import Admin, AsyncAdmin, AsyncConsumer, AsyncProducer, Consumer, Producer

if TYPE_CHECKING:
    from typing import Unpack

    from muster.client.typed_settings import AdminKeywords, ConsumerKeywords, ProducerKeywords
    from muster.testing.kit import Kafka

_NUMBERS = itertools.count(1)
C = TypeVar("C", Admin, AsyncAdmin, AsyncConsumer, AsyncProducer, Consumer, Producer)


def own_name(test: str) -> str:
    """A unique name for a topic or a group of a test."""
    return f"{re.sub(r'[^a-zA-Z0-9._-]+', '-', test).strip('-')[:200] or 'test'}-{next(_NUMBERS)}"


class TopicFactory:
    """Creates topics: `muster_topic(partitions=2, records=[b"a"])` returns the name of a new one."""

    def __init__(self, kafka: Kafka, test: str) -> None:
        self._kafka = kafka
        self._test = test

    def __call__(
        self,
        name: str | None = None,
        *,
        partitions: int = 1,
        records: Iterable[bytes | tuple[bytes | None, bytes | None]] = (),
        settings: Mapping[str, str] | None = None,
    ) -> str:
        """Create a topic, by default with a unique name, and write records: values, or pairs of key and value."""
        return self._kafka.topic(
            own_name(self._test) if name is None else name, partitions=partitions, records=records, settings=settings
        )


class _Factory:
    """Makes clients for the brokers of one kit, with numbered client ids ("consumer-1")."""

    KIND = ""

    def __init__(self, kafka: Kafka, test: str) -> None:
        self._kafka = kafka
        self._test = test
        self._made: list[Callable[[], Any]] = []
        """Each client's `close` method."""

    def _settings(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        client_id = f"{self.KIND}-{len(self._made) + 1}"
        return {"bootstrap_servers": self._kafka.bootstrap, "client_id": client_id, **settings}

    def _keep(self, client: C) -> C:
        self._made.append(client.close)
        return client


class _Blocking(_Factory):
    def close(self) -> None:
        """Close all clients."""
        with ExitStack() as block:
            for close in self._made:
                block.callback(close)
            self._made = []


class _Async(_Factory):
    async def close(self) -> None:
        """Close all clients, on their event loop."""
        async with AsyncExitStack() as block:
            for close in self._made:
                block.push_async_callback(close)
            self._made = []


class _OfGroups(_Factory):
    KIND = "consumer"

    @cached_property
    def group_id(self) -> str:
        """The group of consumers without a `group_id` of their own: unique to the test."""
        return own_name(self._test)

    def _settings(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        return super()._settings({"group_id": self.group_id, "auto_offset_reset": "earliest", **settings})


class AdminFactory(_Blocking):
    """Makes admin clients: `muster_admin()`."""

    KIND = "admin"

    def __call__(self, **settings: Unpack[AdminKeywords]) -> Admin:
        """An admin client; the settings are added to the brokers' address."""
        return self._keep(Admin(**self._settings(settings)))


class ProducerFactory(_Blocking):
    """Makes producers: `muster_producer(linger_ms=0)`."""

    KIND = "producer"

    def __call__(self, **settings: Unpack[ProducerKeywords]) -> Producer:
        """A producer; the settings are added to the brokers' address."""
        return self._keep(Producer(**self._settings(settings)))


class ConsumerFactory(_OfGroups, _Blocking):
    """Makes consumers: `muster_consumer("orders", group_id="billing")`."""

    def __call__(self, *topics: str, **settings: Unpack[ConsumerKeywords]) -> Consumer:
        """A consumer in the test's own group (`group_id`), unless the settings name another. It subscribes to the
        topics, if any, and reads them from their beginning."""
        consumer = self._keep(Consumer(**self._settings(settings)))
        if topics:
            consumer.subscribe(topics)
        return consumer


class AsyncAdminFactory(_Async):
    """Makes admin clients for asyncio: `muster_async_admin()`."""

    KIND = "admin"

    def __call__(self, **settings: Unpack[AdminKeywords]) -> AsyncAdmin:
        """An admin client; the settings are added to the brokers' address."""
        return self._keep(AsyncAdmin(**self._settings(settings)))


class AsyncProducerFactory(_Async):
    """Makes producers for asyncio: `muster_async_producer()`."""

    KIND = "producer"

    def __call__(self, **settings: Unpack[ProducerKeywords]) -> AsyncProducer:
        """A producer; the settings are added to the brokers' address."""
        return self._keep(AsyncProducer(**self._settings(settings)))


class AsyncConsumerFactory(_OfGroups, _Async):
    """Makes consumers for asyncio: `muster_async_consumer("orders", group_id="billing")`."""

    def __call__(self, *topics: str, **settings: Unpack[ConsumerKeywords]) -> AsyncConsumer:
        """Like `ConsumerFactory`, but returns an asyncio consumer."""
        consumer = self._keep(AsyncConsumer(**self._settings(settings)))
        if topics:
            consumer.subscribe(topics)
        return consumer
