"""`AsyncConcurrentConsumer`: records handled by tasks, for asyncio."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Unpack

from muster.client.concurrent.engine import ConcurrentEngine
from muster.client.concurrent.options import UserOptions, consumer_config
from muster.client.concurrent.workers import TaskWorkers, with_deserializers
from muster.client.core.concurrent.rules import Order, Retry
from muster.client.net import forks
from muster.client.serde import DeserializerLike, Deserializers
from muster.model import ConsumerRecord

if TYPE_CHECKING:
    from muster.client.typed_settings import ConsumerKeywords


class AsyncConcurrentConsumer(forks.NotPicklable):
    """A member of a group that handles many records at a time, each with a call of an async function.

        async def handle(record):
            ...

        await AsyncConcurrentConsumer(
            {"bootstrap.servers": "localhost:9092", "group.id": "delays"}, handle, topics=["flights"], concurrency=100
        ).run()

    `ConcurrentConsumer` describes the arguments. The difference: a handler that takes too long at a rebalance or at the
    end is cancelled, as asyncio cancels tasks. Deserializers are called in the event loop and must not block.
    """

    def __init__(
        self,
        settings: Mapping[str, Any] | None,
        handler: Callable[[ConsumerRecord], Awaitable[None]],
        /,
        *,
        key_deserializer: DeserializerLike | None = None,
        value_deserializer: DeserializerLike | None = None,
        topics: Iterable[str] | str | None = None,
        pattern: str | re.Pattern[str] | None = None,
        order: Order = "key",
        concurrency: int = 100,
        retry: Retry | None = None,
        dead_letter_topic: str | None = None,
        commit_interval_ms: int = 1_000,
        drain_timeout_ms: int = 30_000,
        max_buffered: int | None = None,
        handle_signals: bool = True,
        **more: Unpack[ConsumerKeywords],
    ) -> None:
        if not callable(handler):
            raise TypeError(f"handler is {handler!r}, which cannot be called")
        handle = with_deserializers(handler, Deserializers(key_deserializer, value_deserializer))
        config = consumer_config(settings, more)
        options = UserOptions(
            topics=topics,
            pattern=pattern,
            order=order,
            concurrency=concurrency,
            retry=retry or Retry(),
            dead_letter_topic=dead_letter_topic,
            commit_interval_ms=commit_interval_ms,
            drain_timeout_ms=drain_timeout_ms,
            max_buffered=max_buffered,
            handle_signals=handle_signals,
        ).options(config)
        self._engine = ConcurrentEngine(config, options, lambda on_end: TaskWorkers(handle, on_end))

    async def run(self) -> None:
        """Handle records until `stop`, Ctrl-C or SIGTERM; then wait for running handlers, commit, and leave the group.

        Cancelling it cancels the handlers too; the records they had finished are committed.

        Raises:
            HandlerFailedError: a record failed for good, and no dead letter topic is set.
            KafkaError: the group or a partition cannot be read.
        """
        await self._engine.run()

    def stop(self, *, drain: bool = True) -> None:
        """End `run`; without `drain`, running handlers are cancelled. May be called from any thread and from
        handlers."""
        self._engine.stop_soon(drain=drain)

    def metrics(self) -> dict[str, int]:
        """Counters since the start, and how many records are in progress and waiting."""
        return self._engine.core.counters()
