"""`ConcurrentConsumer`: records handled by threads or processes, for code that blocks."""

from __future__ import annotations

import asyncio
import inspect
import os
import pickle
import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Unpack

from muster.client.concurrent.engine import ConcurrentEngine
from muster.client.concurrent.options import UserOptions, consumer_config
from muster.client.concurrent.processes import ProcessCall
from muster.client.concurrent.workers import DirectCall, HandlerCall, OnEnd, ThreadWorkers, with_deserializers
from muster.client.core.concurrent.rules import Order, Retry
from muster.client.net import forks
from muster.client.serde import DeserializerLike, Deserializers
from muster.errors import ConfigError, IllegalStateError
from muster.model import ConsumerRecord

if TYPE_CHECKING:
    from muster.client.typed_settings import ConsumerKeywords


class ConcurrentConsumer(forks.NotPicklable):
    """A member of a group that handles many records at a time, each with a call of a function.

        def handle(record):
            ...

        ConcurrentConsumer(
            {"bootstrap.servers": "localhost:9092", "group.id": "delays"}, handle, topics=["flights"], concurrency=32
        ).run()

    Args:
        settings: those of `Consumer`, as a mapping or as keywords.
        handler: called with each record. It returns when the record is done, and raises if it could not be handled.
        key_deserializer, value_deserializer: as those of `Consumer`, called right before the handler, where it runs. A
            record that they cannot read fails for good. The order depends on the raw key bytes, which an order
            function also gets.
        topics, pattern: what to read.
        order: `"key"` (records with one key in order, those without a key in any), `"partition"`, `"unordered"`, or a
            function of a record: records of a partition with the same result are handled in order.
        concurrency: how many records at a time; by default 100 threads, or one process per processor.
        workers: `"threads"`, or `"processes"` for CPU-bound work; then the handler must be a module-level function.
        retry: how many times and after what delay a failed record is retried. Later records of its key wait, the
            others do not.
        dead_letter_topic: where records that failed for good are written. Without it the first of them ends the run.
        commit_interval_ms: how often finished records are committed: a crash repeats those finished since.
        drain_timeout_ms: how long a rebalance, and the end, wait for running handlers.
        max_buffered: how many records wait in memory (at most twice as many); by default 1,000, or ten per handler if
            that is more.
        handle_signals: let Ctrl-C and SIGTERM end the run, unless the program has its own handlers for them.
    """

    def __init__(
        self,
        settings: Mapping[str, Any] | None,
        handler: Callable[[ConsumerRecord], None],
        /,
        *,
        key_deserializer: DeserializerLike | None = None,
        value_deserializer: DeserializerLike | None = None,
        topics: Iterable[str] | str | None = None,
        pattern: str | re.Pattern[str] | None = None,
        order: Order = "key",
        concurrency: int | None = None,
        workers: Literal["threads", "processes"] = "threads",
        retry: Retry | None = None,
        dead_letter_topic: str | None = None,
        commit_interval_ms: int = 1_000,
        drain_timeout_ms: int = 30_000,
        max_buffered: int | None = None,
        handle_signals: bool = True,
        **more: Unpack[ConsumerKeywords],
    ) -> None:
        _check(handler, workers)
        deserializers = Deserializers(key_deserializer, value_deserializer)
        if workers == "processes":
            _check_pickling(handler=handler, key_deserializer=key_deserializer, value_deserializer=value_deserializer)
        config = consumer_config(settings, more)
        if concurrency is None:
            concurrency = 100 if workers == "threads" else os.cpu_count() or 1
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

        def make_workers(on_end: OnEnd) -> ThreadWorkers:
            make_call: Callable[[], HandlerCall] = partial(DirectCall, with_deserializers(handler, deserializers))
            if workers == "processes":
                make_call = partial(ProcessCall, handler, key_deserializer, value_deserializer)
            return ThreadWorkers(concurrency, make_call, on_end)

        self._engine = ConcurrentEngine(config, options, make_workers)

    def run(self) -> None:
        """Handle records until `stop`, Ctrl-C or SIGTERM; then wait for running handlers, commit, and leave the group.

        A second Ctrl-C or SIGTERM abandons the running handlers; their records are handled again by the next run.

        Raises:
            HandlerFailedError: a record failed for good, and no dead letter topic is set.
            KafkaError: the group or a partition cannot be read.
            IllegalStateError: `run` was called before, or an event loop is running in this thread.
        """
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            asyncio.run(self._engine.run())
        else:
            raise IllegalStateError("an event loop is running in this thread: use AsyncConcurrentConsumer there")

    def stop(self, *, drain: bool = True) -> None:
        """End `run`; without `drain`, running handlers are abandoned. May be called from any thread and from
        handlers."""
        self._engine.stop_soon(drain=drain)

    def metrics(self) -> dict[str, int]:
        """Counters since the start, and how many records are in progress and waiting."""
        return self._engine.core.counters()


def _check(handler: Any, workers: str) -> None:
    if not callable(handler):
        raise TypeError(f"handler is {handler!r}, which cannot be called")
    if inspect.iscoroutinefunction(handler):
        raise ConfigError("the handler is an async function: use AsyncConcurrentConsumer")
    if workers not in ("threads", "processes"):
        raise ConfigError(f'workers is {workers!r}; it must be "threads" or "processes"')


def _check_pickling(**given: Any) -> None:
    for name, each in given.items():
        try:
            pickle.dumps(each)
        except Exception as error:
            text = f"the {name} cannot be sent to a process: {error}. It must be a module-level function"
            raise ConfigError(text) from error
