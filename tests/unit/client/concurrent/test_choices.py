"""What the faces refuse, each with a one-sentence error, and how they end if no broker is there."""

from __future__ import annotations

import asyncio
import math
import threading
from typing import Any

import pytest

from muster.client.concurrent import AsyncConcurrentConsumer, ConcurrentConsumer, Retry
from muster.errors import ConfigError, IllegalStateError

GROUP = {"bootstrap.servers": "127.0.0.1:1", "group.id": "delays"}


def handle(_record: object) -> None: ...


async def handle_async(_record: object) -> None: ...


@pytest.mark.parametrize(
    ("settings", "choices", "words"),
    [
        (GROUP, {"topics": ()}, "set either topics or pattern"),
        (GROUP, {"topics": "t", "pattern": "t.*"}, "set either topics or pattern"),
        ({}, {}, "group_id is not set"),
        (GROUP, {"enable_auto_commit": True}, "enable_auto_commit cannot be on"),
        (GROUP, {"order": "keys"}, 'it must be "key", "partition", "unordered" or a function'),
        (GROUP, {"workers": "fibers"}, 'it must be "threads" or "processes"'),
        (GROUP, {"concurrency": 0}, "must be at least 1"),
        (GROUP, {"concurency": 3}, "concurency"),
        (GROUP, {"retry": 3}, "it must be a Retry"),
        (GROUP, {"dead_letter_topic": "t"}, "the dead letter topic too"),
        (GROUP, {"topics": None, "pattern": "t.*", "dead_letter_topic": "t-dead"}, "the dead letter topic too"),
        (GROUP, {"drain_timeout_ms": 300_000}, "below max_poll_interval_ms"),
        (GROUP, {"commit_interval_ms": 0}, "commit_interval_ms is 0; it must be at least 1"),
        (GROUP, {"commit_interval_ms": math.nan}, "commit_interval_ms is nan; it must be a whole number"),
        (GROUP, {"drain_timeout_ms": math.nan}, "drain_timeout_ms is nan; it must be a whole number"),
        (GROUP, {"concurrency": "3"}, "concurrency is '3'; it must be a whole number"),
        (GROUP, {"max_buffered": 2.5}, "max_buffered is 2.5; it must be a whole number"),
    ],
)
def test_choices_that_make_no_sense(settings: Any, choices: Any, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ConcurrentConsumer(settings, handle, **({"topics": "t"} | choices))
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("choices", "words"),
    [
        ({"delay_ms": 0.5}, "delay_ms is 0.5; it must be a whole number"),
        ({"max_delay_ms": math.inf}, "max_delay_ms is inf; it must be a whole number"),
        ({"max_delay_ms": 10**400}, "max_delay_ms must be at most"),
        ({"max_attempts": math.nan}, "max_attempts is nan; it must be a whole number"),
        ({"max_attempts": True}, "max_attempts is True; it must be a whole number"),
    ],
)
def test_numbers_that_only_a_failure_would_show_to_be_wrong(choices: Any, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Retry(**choices)
    assert words in str(caught.value)


def test_handlers_that_do_not_fit() -> None:
    with pytest.raises(TypeError, match="which cannot be called"):
        ConcurrentConsumer(GROUP, None, topics="t")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="which cannot be called"):
        AsyncConcurrentConsumer(GROUP, "handle", topics="t")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="use AsyncConcurrentConsumer"):
        ConcurrentConsumer(GROUP, handle_async, topics="t")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="a module-level function"):
        ConcurrentConsumer(GROUP, lambda _record: None, topics="t", workers="processes")


def test_deserializers_that_do_not_fit() -> None:
    for face, own in ((ConcurrentConsumer, handle), (AsyncConcurrentConsumer, handle_async)):
        with pytest.raises(TypeError, match="value_deserializer is 3, which cannot be called"):
            face(GROUP, own, topics="t", value_deserializer=3)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="key_deserializer is a coroutine function"):
            face(GROUP, own, topics="t", key_deserializer=handle_async)  # type: ignore[arg-type]
    with pytest.raises(
        ConfigError, match=r"the value_deserializer cannot be sent to a process: .* module-level function"
    ):
        ConcurrentConsumer(GROUP, handle, topics="t", workers="processes", value_deserializer=lambda data: data)


def test_it_ends_without_a_broker_and_before_it_has_begun() -> None:
    consumer = ConcurrentConsumer(GROUP, handle, topics="t")
    timer = threading.Timer(0.2, consumer.stop)
    timer.start()
    consumer.run()
    timer.join()
    stopped = ConcurrentConsumer(GROUP, handle, topics="t")
    stopped.stop()
    stopped.run()
    assert stopped.metrics()["handled"] == 0


async def test_a_task_that_awaits_it_can_be_cancelled() -> None:
    running = asyncio.ensure_future(AsyncConcurrentConsumer(GROUP, handle_async, topics="t").run())
    await asyncio.sleep(0.1)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


def test_the_blocking_one_does_not_run_in_an_event_loop() -> None:
    async def scene() -> None:
        ConcurrentConsumer(GROUP, handle, topics="t").run()

    with pytest.raises(IllegalStateError, match="use AsyncConcurrentConsumer"):
        asyncio.run(scene())
