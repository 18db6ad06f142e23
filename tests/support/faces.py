"""Both faces of the consumer with one interface, so that a behaviour is tested once, and topics for them to read."""

from __future__ import annotations

import asyncio
import inspect
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import uvloop
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions

from muster.client.admin.admin import Admin
from muster.client.consumer.async_consumer import AsyncConsumer
from muster.client.consumer.consumer import Consumer
from muster.client.consumer.listener import RebalanceListener
from muster.client.core.admin.admin import NewTopic
from muster.client.net.loop import LoopThread
from muster.errors import ErrorCode, KafkaError
from muster.model import ConsumerRecord, TopicPartition
from muster.protocol import messages as m
from muster.protocol.primitives import Request
from tests.support.brokers import RawClient

PATIENCE_S = 300.0
"""Only in case of a hang."""

CLOSE_MS = 60_000
"""How long a consumer may take to commit and to leave its group when it is closed."""


class Blocking:
    """An `AsyncConsumer` called like a `Consumer`: each call runs in a loop in its own thread, and is waited for."""

    loop_policy: type[asyncio.AbstractEventLoopPolicy] = asyncio.DefaultEventLoopPolicy

    def __init__(self, **settings: Any) -> None:
        self._thread = LoopThread("blocking")
        before = asyncio.get_event_loop_policy()
        asyncio.set_event_loop_policy(self.loop_policy())
        try:
            self._thread.run(asyncio.sleep(0))
        finally:
            asyncio.set_event_loop_policy(before)
        self.abandoned = False
        self.consumer = AsyncConsumer(**settings)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.consumer, name)
        if not callable(found):
            return found

        def call(*arguments: Any, **named: Any) -> Any:
            async def run() -> Any:
                result = found(*arguments, **named)
                return await result if inspect.isawaitable(result) else result

            return self._thread.run(run())

        return call

    def __iter__(self) -> Iterator[ConsumerRecord]:
        return self

    def __next__(self) -> ConsumerRecord:
        async def run() -> ConsumerRecord | None:
            return await anext(self.consumer, None)

        record = self._thread.run(run())
        if record is None:
            raise StopIteration
        return record

    def close(self, *arguments: Any, **named: Any) -> None:
        try:
            self.__getattr__("close")(*arguments, **named)
        finally:
            self._thread.close()

    def abandon(self) -> None:
        """Stop like a crash: without leaving the group."""

        async def stop() -> None:
            await self.consumer._loop.close()
            self.consumer._closed = True

        self._thread.run(stop())
        self._thread.close()
        self.abandoned = True


class OnUvloop(Blocking):
    """The same on uvloop, whose transports do not derive from asyncio's."""

    loop_policy = uvloop.EventLoopPolicy


class Abandonable(Consumer):
    """A `Consumer` that can crash."""

    abandoned = False

    def abandon(self) -> None:
        """Stop like a crash: without leaving the group."""
        self._run(self._consumer._loop.close)
        self._thread.close()
        self.abandoned = True


FACES: dict[str, Callable[..., Any]] = {"sync": Abandonable, "async": Blocking, "uvloop": OnUvloop}


class Recorder(RebalanceListener):
    """Records its calls."""

    def __init__(self) -> None:
        self.reported: list[tuple[str, list[TopicPartition]]] = []

    def on_partitions_assigned(self, partitions):
        self.reported.append(("assigned", sorted(partitions)))

    def on_partitions_revoked(self, partitions):
        self.reported.append(("revoked", sorted(partitions)))

    def on_partitions_lost(self, partitions):
        self.reported.append(("lost", sorted(partitions)))


class Cluster:
    """A broker to test against: muster or Apache Kafka. No other test uses the same names.

    What is created, grown or deleted here is known to every broker when the call returns. Kafka's answer says only that
    the controller has done it: its brokers learn of it a moment later, and until then a topic is unknown, has no
    leaders, has fewer partitions, or is still the former one, whose new records are deleted with it.
    """

    session_timeout_ms = 45_000
    """Kafka's default: on a busy machine no live member is expelled."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.group = f"g-{uuid.uuid4().hex[:8]}"

    def topic(self, partitions: int = 4, name: str | None = None) -> str:
        """A new topic. It keeps its records: `produce` dates them to 1970, and retention, which Kafka checks 30 s after
        its start and every 5 minutes, would delete them at once."""
        name = name or f"t-{uuid.uuid4().hex[:8]}"
        kept = [m.CreatableTopicConfig("retention.ms", "-1")]
        self._have_done(m.CreateTopicsRequest([m.CreatableTopic(name, partitions, -1, [], kept)], 30_000), 7)
        until_known(self.bootstrap, name, partitions)
        return name

    def written(self, count: int, partitions: int = 4) -> str:
        """A new topic with this many records, written by `produce`."""
        topic = self.topic(partitions)
        self.produce(topic, count, partitions)
        return topic

    def delete(self, topic: str) -> None:
        """Delete a topic."""
        self._have_done(m.DeleteTopicsRequest([m.DeleteTopicState(topic)], [], 30_000), 6)
        until_known(self.bootstrap, topic, 0)

    def recreate(self, topic: str) -> None:
        """Delete a topic, and create it with one partition. Deleting continues after its answer: the name is free a
        little later."""
        self.delete(topic)

        def create() -> None:
            try:
                created.append(self.topic(1, topic))
            except KafkaError:
                rest()

        created: list[str] = []
        until(lambda: bool(created), create)

    def grow(self, topic: str, partitions: int) -> None:
        """Give a topic more partitions."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "socket.timeout.ms": 300_000})
        for future in admin.create_partitions([NewPartitions(topic, partitions)]).values():
            future.result(PATIENCE_S)
        until_known(self.bootstrap, topic, partitions)

    def _have_done(self, request: Request[Any], version: int) -> None:
        """Make the first running broker, which may forward the request, create or delete a topic.

        Raises:
            KafkaError: it was refused.
        """
        codes: list[ErrorCode] = []

        def ask() -> None:
            with next(filter(None, map(_connected, self.bootstrap.split(",")))) as client:
                answer = client.ask(request, version)
            [result] = answer.topics if isinstance(answer, m.CreateTopicsResponse) else answer.responses
            codes.append(ErrorCode(result.error_code))

        is_done = ErrorCode.TOPIC_ALREADY_EXISTS, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        until(lambda: bool(codes) and (codes[-1] in is_done or not codes[-1].retriable), ask)
        done_before = len(codes) > 1 and codes[-1] in is_done
        if codes[-1] is not ErrorCode.NONE and not done_before:
            raise KafkaError(codes[-1])

    def produce(self, topic: str, count: int, partitions: int = 4, start: int = 0) -> None:
        """Write numbered records to the partitions in turn, with a timestamp of 1000 times their number."""
        failed: list[Any] = []

        def reported(error: Any, _message: Any) -> None:
            if error is not None:
                failed.append(error)

        producer = Producer({"bootstrap.servers": self.bootstrap, "linger.ms": 5})
        for number in range(start, start + count):
            when = 1_000 * (number + 1)
            producer.produce(
                topic, str(number).encode(), partition=number % partitions, timestamp=when, on_delivery=reported
            )
        assert producer.flush(PATIENCE_S) == 0
        assert not failed, failed[:3]

    @contextmanager
    def consumer(self, face: str, **settings: Any) -> Iterator[Any]:
        """A consumer that is closed at the end, however the test ends."""
        consumer = FACES[face](**self.settings(**settings))
        try:
            yield consumer
        finally:
            if not consumer.abandoned:
                consumer.close(timeout_ms=CLOSE_MS)

    def settings(self, **settings: Any) -> dict[str, Any]:
        """A consumer's settings."""
        return {
            "bootstrap_servers": self.bootstrap,
            "group_id": self.group,
            "auto_offset_reset": "earliest",
            "heartbeat_interval_ms": 200,
            "session_timeout_ms": self.session_timeout_ms,
            "fetch_max_wait_ms": 50,
        } | settings


def new_topic(bootstrap: str, partitions: int = 3, **configs: str) -> str:
    """A topic that every broker knows, with these settings (`cleanup_policy`) and defaults for the others."""
    name = f"t-{uuid.uuid4().hex[:8]}"
    settings = {key.replace("_", "."): value for key, value in configs.items()}
    with Admin(bootstrap_servers=bootstrap) as admin:
        admin.create_topics([NewTopic(name, partitions, configs=settings)])
    until_known(bootstrap, name, partitions)
    return name


def until_known(bootstrap: str, topic: str, partitions: int) -> None:
    """Wait until every running broker knows the topic with this many partitions, and leads those that it should lead;
    with 0 partitions, until none knows the topic."""
    for address in bootstrap.split(","):
        client = _connected(address)
        if client is None:
            continue
        with client:
            until(lambda c=client, a=address: _knows(c, a, topic, partitions), rest)  # type: ignore[misc]


def _connected(address: str) -> RawClient | None:
    """A connection; None if no broker runs."""
    try:
        return RawClient(address)
    except ConnectionRefusedError:
        return None


def _knows(client: RawClient, address: str, topic: str, partitions: int) -> bool:
    reported = client.ask(m.MetadataRequest([m.MetadataRequestTopic(name=topic)], False), 9)
    [found] = reported.topics
    if partitions == 0:
        return found.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    parts = found.partitions
    if found.error_code or len(parts) != partitions or any(part.leader_id < 0 for part in parts):
        return False
    [me] = [broker.node_id for broker in reported.brokers if broker.port == int(address.rpartition(":")[2])]
    asked = [m.ListOffsetsPartition(part.partition_index, -1, -1) for part in parts if part.leader_id == me]
    if not asked:
        return True
    answer = client.ask(m.ListOffsetsRequest(-1, 0, [m.ListOffsetsTopic(topic, asked)]), 5)
    return not any(part.error_code for part in answer.topics[0].partitions)


def read(consumer: Any, count: int) -> list[ConsumerRecord]:
    """Poll until this many records have arrived."""
    records: list[ConsumerRecord] = []
    until(lambda: len(records) >= count, lambda: records.extend(flat(consumer.poll(100))))
    return records


def flat(batches: dict[TopicPartition, list[ConsumerRecord]]) -> list[ConsumerRecord]:
    """The records of a poll."""
    return [record for batch in batches.values() for record in batch]


def numbers(records: Iterable[ConsumerRecord]) -> list[int]:
    """What `Cluster.produce` wrote."""
    return sorted(int(record.value or b"-1") for record in records)


def until(condition: Callable[[], bool], step: Callable[[], object]) -> None:
    """Do something until a condition holds."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        step()


def rest() -> None:
    """A step for `until` that only waits."""
    time.sleep(0.005)


def public(cls: type) -> dict[str, Callable[..., Any]]:
    """The methods of a face that its users call, including those of its base classes."""
    methods = inspect.getmembers(cls, inspect.isfunction)
    return {name: method for name, method in methods if not name.startswith("_") or name == "__init__"}
