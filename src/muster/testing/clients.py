"""Muster's clients for tests: made by a call, joined to a kit's brokers, and closed together at the test's end."""

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
    """A name for a topic or a group of a test, which no other has."""
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
        """Create a topic, by default of a name that no other has, with records: values, or pairs of key and value."""
        return self._kafka.topic(
            own_name(self._test) if name is None else name, partitions=partitions, records=records, settings=settings
        )


class _Factory:
    """Makes clients of one kit, whose ids are numbered ("consumer-1")."""

    KIND = ""

    def __init__(self, kafka: Kafka, test: str) -> None:
        self._kafka = kafka
        self._test = test
        self._made: list[Callable[[], Any]] = []
        """How to close each client that was made."""

    def _settings(self, given: Mapping[str, Any]) -> dict[str, Any]:
        client_id = f"{self.KIND}-{len(self._made) + 1}"
        return {"bootstrap_servers": self._kafka.bootstrap, "client_id": client_id, **given}

    def _keep(self, client: C) -> C:
        self._made.append(client.close)
        return client


class _Blocking(_Factory):
    def close(self) -> None:
        """Close all that were made."""
        with ExitStack() as block:
            for close in self._made:
                block.callback(close)
            self._made = []


class _Async(_Factory):
    async def close(self) -> None:
        """Close all that were made, on their event loop."""
        async with AsyncExitStack() as block:
            for close in self._made:
                block.push_async_callback(close)
            self._made = []


class _OfGroups(_Factory):
    KIND = "consumer"

    @cached_property
    def group_id(self) -> str:
        """The group of consumers that are made without a `group_id`: the test's own."""
        return own_name(self._test)

    def _settings(self, given: Mapping[str, Any]) -> dict[str, Any]:
        return super()._settings({"group_id": self.group_id, "auto_offset_reset": "earliest", **given})


class AdminFactory(_Blocking):
    """Makes admin clients: `muster_admin()`."""

    KIND = "admin"

    def __call__(self, **settings: Unpack[AdminKeywords]) -> Admin:
        """An admin client, with these settings beside the address."""
        return self._keep(Admin(**self._settings(settings)))


class ProducerFactory(_Blocking):
    """Makes producers: `muster_producer(linger_ms=0)`."""

    KIND = "producer"

    def __call__(self, **settings: Unpack[ProducerKeywords]) -> Producer:
        """A producer, with these settings beside the address."""
        return self._keep(Producer(**self._settings(settings)))


class ConsumerFactory(_OfGroups, _Blocking):
    """Makes consumers: `muster_consumer("orders", group_id="billing")`."""

    def __call__(self, *topics: str, **settings: Unpack[ConsumerKeywords]) -> Consumer:
        """A consumer that has subscribed to the topics, if there are any, and reads them from their beginning: in the
        test's own group (`group_id`), unless the settings name another."""
        consumer = self._keep(Consumer(**self._settings(settings)))
        if topics:
            consumer.subscribe(topics)
        return consumer


class AsyncAdminFactory(_Async):
    """Makes admin clients for asyncio: `muster_async_admin()`."""

    KIND = "admin"

    def __call__(self, **settings: Unpack[AdminKeywords]) -> AsyncAdmin:
        """An admin client, with these settings beside the address."""
        return self._keep(AsyncAdmin(**self._settings(settings)))


class AsyncProducerFactory(_Async):
    """Makes producers for asyncio: `muster_async_producer()`."""

    KIND = "producer"

    def __call__(self, **settings: Unpack[ProducerKeywords]) -> AsyncProducer:
        """A producer, with these settings beside the address."""
        return self._keep(AsyncProducer(**self._settings(settings)))


class AsyncConsumerFactory(_OfGroups, _Async):
    """Makes consumers for asyncio: `muster_async_consumer("orders", group_id="billing")`."""

    def __call__(self, *topics: str, **settings: Unpack[ConsumerKeywords]) -> AsyncConsumer:
        """As ConsumerFactory's."""
        consumer = self._keep(AsyncConsumer(**self._settings(settings)))
        if topics:
            consumer.subscribe(topics)
        return consumer
