"""Calls that cannot be intended: each is refused with a sentence that says what to write instead."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import re
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any

import pytest

from muster import Admin, AsyncConsumer, AsyncProducer, Consumer, Producer
from muster.client.concurrent import AsyncConcurrentConsumer, ConcurrentConsumer, Retry, RetryLaterError
from muster.errors import IllegalArgumentError, IllegalStateError, MusterError
from muster.model import GroupMetadata, TopicPartition
from muster.zookeeper.consumers.async_server_assigned_consumer import AsyncServerAssignedConsumer
from muster.zookeeper.consumers.async_watcher_consumer import AsyncWatcherConsumer
from muster.zookeeper.consumers.server_assigned_consumer import ServerAssignedConsumer
from muster.zookeeper.consumers.watcher_consumer import WatcherConsumer
from tests.support.faces import public

NOWHERE = "127.0.0.1:1"
ZERO = TopicPartition("flights", 0)
FACES = [Consumer, AsyncConsumer, Producer, AsyncProducer]
READERS = {
    WatcherConsumer: {"zookeeper_connect": NOWHERE},
    AsyncWatcherConsumer: {"zookeeper_connect": NOWHERE},
    ServerAssignedConsumer: {"coordinator_servers": NOWHERE, "bootstrap_servers": NOWHERE},
    AsyncServerAssignedConsumer: {"coordinator_servers": NOWHERE, "bootstrap_servers": NOWHERE},
}

GIVEN: dict[str, Any] = {
    "partition": ZERO,
    "partitions": [ZERO],
    "timestamps": {ZERO: 0},
    "topic": "flights",
    "offsets": {ZERO: 1},
    "group_metadata": GroupMetadata("g"),
}
"""The arguments that methods need in addition to the timeout."""


def timed(cls: type) -> list[str]:
    return [name for name, method in public(cls).items() if "timeout_ms" in inspect.signature(method).parameters]


CALLS = [(cls, name) for cls in FACES for name in timed(cls)] + [
    (cls, name) for cls in READERS for name in ("poll", "poll_arrow", "getmany", "close")
]


def client(cls: type) -> Any:
    if cls in READERS:
        return cls(group_id="g", **READERS[cls])
    return cls(bootstrap_servers=NOWHERE)


async def reported(cls: type, name: str, times: Iterable[Any]) -> list[str]:
    """How a client's method refuses each of these timeouts."""
    made = client(cls)
    try:
        if hasattr(made, "assign"):
            made.assign([ZERO])
        method = getattr(made, name)
        needed = {one: GIVEN[one] for one in inspect.signature(method).parameters if one in GIVEN}
        found = []
        for timeout_ms in times:
            with pytest.raises(IllegalArgumentError) as raised:
                await settled(method(**needed, timeout_ms=timeout_ms))
            found.append(str(raised.value))
        return found
    finally:
        await settled(made.close(timeout_ms=0))


async def settled(result: Any) -> Any:
    return await result if inspect.isawaitable(result) else result


def test_there_are_such_methods_on_all_faces():
    assert len(timed(Consumer)) == len(timed(AsyncConsumer)) == 12
    transactions = ["abort_transaction", "commit_transaction", "init_transactions", "send_offsets_to_transaction"]
    assert sorted(timed(Producer)) == sorted(timed(AsyncProducer)) == sorted(["close", "flush", *transactions])


REFUSED = [
    (1.0, "timeout_ms is 1.0; it must be a whole number of milliseconds: 1000 for 1.0 s"),
    (0.25, "timeout_ms is 0.25; it must be a whole number of milliseconds: 250 for 0.25 s"),
    (0.0, "timeout_ms is 0.0; it must be a whole number of milliseconds: 0 for 0.0 s"),
    (-1, "timeout_ms is -1; it must be at least 0: no call waits forever"),
    (-1.0, "timeout_ms is -1.0; it must be a whole number of milliseconds"),
    (float("inf"), "timeout_ms is inf; it must be a whole number of milliseconds"),
    (True, "timeout_ms is True; it must be a whole number of milliseconds"),
    ("100", "timeout_ms is '100'; it must be a whole number of milliseconds"),
    (timedelta(seconds=1), f"timeout_ms is {timedelta(seconds=1)!r}; it must be a whole number of milliseconds"),
]


@pytest.mark.parametrize(("cls", "name"), CALLS)
def test_a_time_is_a_whole_number_of_milliseconds(cls, name):
    found = asyncio.run(reported(cls, name, [timeout_ms for timeout_ms, _ in REFUSED]))
    assert found == [message for _, message in REFUSED]


@pytest.mark.parametrize(
    ("cls", "name"), [(cls, name) for cls, name in CALLS if name in ("poll", "poll_arrow", "getmany")]
)
def test_a_poll_does_not_wait_without_end(cls, name):
    assert asyncio.run(reported(cls, name, [None])) == ["timeout_ms is None; it must be a whole number of milliseconds"]


GROUPED = {"bootstrap.servers": NOWHERE, "group.id": "g"}
OTHER_TIMES: dict[str, Callable[[Any], object]] = {
    "a time limit of an admin": lambda ms: Admin(bootstrap_servers=NOWHERE, default_api_timeout_ms=ms),
    "a setting by Kafka's name": lambda ms: Consumer({"session.timeout.ms": ms}),
    "Retry": lambda ms: Retry(delay_ms=ms),
    "RetryLaterError": lambda ms: RetryLaterError(ms),
    "the interval between commits": lambda ms: ConcurrentConsumer(GROUPED, print, topics="t", commit_interval_ms=ms),
    "the time to drain": lambda ms: AsyncConcurrentConsumer(GROUPED, nothing, topics="t", drain_timeout_ms=ms),
    "a record's time": lambda ms: sent(ms),
    "a look-up by time": lambda ms: looked_up(Consumer, "offsets_for_times", ms),
    "a look-up by an admin": lambda ms: looked_up(Admin, "list_offsets", ms),
}


async def nothing(_record: Any) -> None: ...


def sent(timestamp_ms: Any) -> None:
    with contextlib.closing(Producer(bootstrap_servers=NOWHERE)) as producer:
        producer.send("t", b"v", timestamp_ms=timestamp_ms)


def looked_up(cls: type, method: str, at_ms: Any) -> None:
    with contextlib.closing(cls(bootstrap_servers=NOWHERE)) as made:
        getattr(made, method)({ZERO: at_ms})


@pytest.mark.parametrize("call", OTHER_TIMES.values(), ids=OTHER_TIMES)
def test_every_other_time_is_a_whole_number_of_milliseconds_too(call):
    with pytest.raises(MusterError, match=r"is 2\.5; it must be a whole number of milliseconds: 2500 for 2\.5 s$"):
        call(2.5)


@pytest.mark.parametrize("max_records", [0, -1, 2.5, "7"])
def test_a_poll_takes_at_least_one_record(max_records):
    with Consumer(bootstrap_servers=NOWHERE) as consumer:
        consumer.assign([ZERO])
        for method in (consumer.poll, consumer.getmany):
            with pytest.raises(IllegalArgumentError, match=f"max_records is {max_records!r}; it must be"):
                method(timeout_ms=0, max_records=max_records)


STANDS = {
    "subscribe() to topics": (lambda c: c.subscribe(["t"]), "is subscribed to topics"),
    "subscribe() to a pattern": (lambda c: c.subscribe(pattern="t.*"), "is subscribed to a pattern"),
    "assign()": (lambda c: c.assign([ZERO]), "has partitions from assign()"),
}


@pytest.mark.parametrize("then", STANDS)
@pytest.mark.parametrize("first", STANDS)
def test_one_way_of_subscribing_ends_before_another_begins(first, then):
    with Consumer(bootstrap_servers=NOWHERE, group_id="g") as consumer:
        (begin, state), (go_on, _) = STANDS[first], STANDS[then]
        begin(consumer)
        if first == then:
            go_on(consumer)
        else:
            with pytest.raises(IllegalStateError) as raised:
                go_on(consumer)
            assert str(raised.value) == f"this consumer {state}; call unsubscribe() before {then}"
        consumer.close(timeout_ms=0)


BAD_PATTERNS = [
    ("([", r"the pattern '\(\[' is not a regular expression: unterminated character set at position 1"),
    ("a{99999999999}", "is not a regular expression"),
    (b"flights", "the pattern is b'flights'; it must be text"),
    (re.compile(b"flights"), r"the pattern is re.compile\(b'flights'\); it must be text"),
    (5, "the pattern is 5; it must be text"),
]


@pytest.mark.parametrize(("pattern", "message"), BAD_PATTERNS)
def test_a_pattern_is_a_regular_expression(pattern, message):
    with Consumer(bootstrap_servers=NOWHERE, group_id="g") as consumer:
        with pytest.raises(IllegalArgumentError, match=message):
            consumer.subscribe(pattern=pattern)
        consumer.subscribe(["t"])  # the refused call changed nothing
        consumer.close(timeout_ms=0)
    with pytest.raises(IllegalArgumentError, match=message):
        ConcurrentConsumer({"bootstrap.servers": NOWHERE, "group.id": "g"}, print, pattern=pattern)
