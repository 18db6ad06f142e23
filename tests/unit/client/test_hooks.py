"""Hooks: each gets each record once, in order, and breaks nothing."""

from __future__ import annotations

import asyncio
import logging
import threading
from pathlib import Path
from typing import Any

import pytest

from muster import AsyncConsumer, AsyncProducer, Consumer, ConsumerHooks, Producer, ProducerHooks
from muster.errors import KafkaError, KafkaTimeoutError
from muster.model import OffsetAndMetadata, TopicPartition
from tests.support.brokers import beside, running

PLACE = TopicPartition("t", 0)


class Sent(ProducerHooks):
    def __init__(self, name: str = "", said: list[tuple[Any, ...]] | None = None) -> None:
        self.name = name
        self.said: list[tuple[Any, ...]] = [] if said is None else said
        self.threads: list[int] = []

    def on_send(self, record: Any) -> None:
        self.threads.append(threading.get_ident())
        record.headers.append(("hook", self.name.encode()))
        self.said.append((self.name, "sent", record.value))

    def on_acknowledgement(self, record: Any, metadata: Any, error: Any) -> None:
        outcome = metadata.offset if error is None else type(error).__name__
        assert (metadata is None) is (error is not None)
        self.said.append((self.name, "over", record.value, outcome))


class Read(ConsumerHooks):
    def __init__(self) -> None:
        self.values: list[bytes | None] = []
        self.commits: list[dict[TopicPartition, OffsetAndMetadata]] = []
        self.threads: set[int] = set()

    def on_consume(self, records: Any) -> None:
        self.threads.add(threading.get_ident())
        self.values += [record.value for some in records.values() for record in some]

    def on_commit(self, offsets: Any) -> None:
        self.commits.append(dict(offsets))


class Broken(ProducerHooks, ConsumerHooks):
    def on_send(self, record: Any) -> None:
        raise ValueError("a defect")

    on_acknowledgement = on_consume = on_commit = lambda self, *_: 1 / 0  # type: ignore[assignment]


async def test_an_async_producer_tells_its_hooks(tmp_path: Path) -> None:
    said: list[tuple[Any, ...]] = []
    reported: list[Any] = []
    async with running(tmp_path) as broker:
        hooks = [Sent("a", said), Sent("b", said)]
        async with AsyncProducer(bootstrap_servers=broker.bootstrap, hooks=hooks) as producer:
            await producer.send_and_wait("t", b"one", headers={"own": b"1"}, partition=0)
            future = await producer.send("t", b"two", on_delivery=lambda *outcome: reported.append((outcome, said[-1])))
            await future
            with pytest.raises(KafkaError):
                await producer.send("t", b"x" * 2_000_000)
        settings = {"bootstrap_servers": broker.bootstrap, "auto_offset_reset": "earliest"}
        async with AsyncConsumer(settings) as consumer:
            consumer.assign([PLACE])
            record = await anext(consumer)
    assert record.headers == [("own", b"1"), ("hook", b"a"), ("hook", b"b")]
    both = [(name, *rest) for rest in (("sent", b"one"), ("over", b"one", 0)) for name in "ab"]
    assert said[:4] == both
    assert said[6:8] == [("a", "over", b"two", 1), ("b", "over", b"two", 1)]
    assert reported[0][1] == said[7], "the caller's callback comes behind the hooks"
    assert [(one[0], one[1], one[3]) for one in said[10:]] == [("a", "over", "KafkaError"), ("b", "over", "KafkaError")]
    assert len(said) == 12


def test_a_blocking_producer_tells_its_hooks(tmp_path: Path) -> None:
    hook = Sent()
    with beside(tmp_path) as bootstrap, Producer(bootstrap_servers=bootstrap, hooks=[hook]) as producer:
        for number in range(50):
            producer.send("t", b"%d" % number, partition=0)
        producer.flush()
    assert set(hook.threads) == {threading.get_ident()}
    over = [one for one in hook.said if one[1] == "over"]
    assert over == [("", "over", b"%d" % number, number) for number in range(50)]


def test_a_failure_that_only_hooks_saw_is_raised_at_the_end() -> None:
    hook = Sent()
    with (
        pytest.raises(KafkaTimeoutError),
        Producer(bootstrap_servers="127.0.0.1:1", hooks=[hook], max_block_ms=10) as p,
    ):
        p.send("t", b"lost")
    assert hook.said == [("", "sent", b"lost"), ("", "over", b"lost", "KafkaTimeoutError")]


@pytest.mark.parametrize("by_iteration", [False, True])
def test_a_blocking_consumer_tells_its_hooks(tmp_path: Path, by_iteration: bool) -> None:
    hook = Read()
    with beside(tmp_path) as bootstrap:
        with Producer(bootstrap_servers=bootstrap) as producer:
            for number in range(10):
                producer.send("t", b"%d" % number, partition=0)
        settings = {"bootstrap_servers": bootstrap, "auto_offset_reset": "earliest", "group_id": "g"}
        upper: dict[str, Any] = {"value_deserializer": lambda data: data.decode() + "!"}
        with Consumer(settings, hooks=[Broken(), hook], enable_auto_commit=False, **upper) as consumer:
            consumer.assign([PLACE])
            seen: list[Any] = []
            while len(seen) < 10:
                if by_iteration:
                    seen.append(next(consumer).value)
                else:
                    seen += [one.value for some in consumer.poll(1_000, max_records=3).values() for one in some]
            consumer.commit()
            consumer.commit({})
    assert seen == [f"{number}!" for number in range(10)]
    assert hook.values == [b"%d" % number for number in range(10)], "each once, before it is deserialized"
    assert hook.threads == {threading.get_ident()}
    assert [{place: offset.offset for place, offset in commit.items()} for commit in hook.commits] == [{PLACE: 10}]


async def test_auto_commits_are_reported(tmp_path: Path) -> None:
    hook = Read()
    async with running(tmp_path) as broker:
        async with AsyncProducer(bootstrap_servers=broker.bootstrap) as producer:
            await producer.send_and_wait("t", b"a", partition=0)
        settings = {"bootstrap_servers": broker.bootstrap, "auto_offset_reset": "earliest", "group_id": "g"}
        async with AsyncConsumer(settings, hooks=[hook], auto_commit_interval_ms=10) as consumer:
            consumer.subscribe(["t"])
            await anext(consumer)
            while not any(PLACE in commit and commit[PLACE].offset == 1 for commit in hook.commits):
                await consumer.poll(10)
                await asyncio.sleep(0)


def test_a_hook_that_raises_is_logged_and_breaks_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    after = Sent()
    caplog.set_level(logging.ERROR, "muster.client.hooks")
    with beside(tmp_path) as bootstrap, Producer(bootstrap_servers=bootstrap, hooks=[Broken(), after]) as producer:
        assert producer.send_and_wait("t", b"v").offset == 0
    assert [one[1] for one in after.said] == ["sent", "over"]
    assert [record.message for record in caplog.records] == [
        "on_send of Broken failed",
        "on_acknowledgement of Broken failed",
    ]


@pytest.mark.parametrize(
    ("client", "hook"), [(Producer, Read()), (AsyncProducer, Read()), (Consumer, Sent()), (AsyncConsumer, object())]
)
def test_what_is_not_a_hook_is_refused(client: Any, hook: object) -> None:
    with pytest.raises(TypeError, match=r"hooks: .* is not an instance of (Producer|Consumer)Hooks"):
        client(bootstrap_servers="127.0.0.1:1", hooks=[hook])
