"""The faces of producer and admin: the same methods, and what they mind before a broker is involved."""

import asyncio
import inspect
import threading
from typing import Any

import pytest

from muster.client.admin import Admin, AsyncAdmin
from muster.client.core.metadata import PartitionMetadata, TopicMetadata
from muster.client.producer import AsyncProducer, Producer
from muster.errors import (
    ClosedError,
    ConfigError,
    ErrorCode,
    IllegalStateError,
    KafkaError,
    KafkaTimeoutError,
    MusterError,
)
from tests.support.peers import free_ports
from tests.unit.client.test_consumer_faces import public

NOWHERE = "127.0.0.1:1"


@pytest.mark.parametrize(("blocking", "waiting"), [(Producer, AsyncProducer), (Admin, AsyncAdmin)])
def test_the_faces_have_the_same_methods_with_the_same_parameters(blocking, waiting):
    ours, theirs = public(blocking), public(waiting)
    assert ours.keys() == theirs.keys()
    for name, method in ours.items():
        mine, other = inspect.signature(method), inspect.signature(theirs[name])
        assert list(mine.parameters.values()) == list(other.parameters.values()), name
        if name != "send":  # the two kinds of future
            assert mine.return_annotation == other.return_annotation, name


@pytest.mark.parametrize("cls", [Producer, AsyncProducer, Admin, AsyncAdmin])
def test_every_method_says_what_it_is_for(cls):
    for name, method in public(cls).items():
        assert name == "__init__" or method.__doc__, f"{cls.__name__}.{name}"


@pytest.mark.parametrize("cls", [Producer, AsyncProducer, Admin, AsyncAdmin])
def test_unknown_settings_are_refused(cls):
    with pytest.raises(ConfigError, match="did you mean request_timeout_ms"):
        cls({"request.timeoutms": 1})


@pytest.fixture
def producer():
    with Producer(bootstrap_servers=NOWHERE, max_block_ms=100, buffer_memory=2000) as made:
        yield made


@pytest.mark.parametrize(
    ("arguments", "named", "error", "message"),
    [
        (("t", "text"), {}, TypeError, "the value is str, not bytes"),
        (("t", b"", 5), {}, TypeError, "give a key_serializer"),
        (("", b""), {}, ValueError, "topic is empty"),
        (("t", b""), {"partition": -1}, ValueError, "partition is -1"),
        (("t", b""), {"timestamp_ms": -1}, ValueError, "timestamp_ms is -1"),
        (("t", bytes(3000)), {}, KafkaError, "buffer_memory allows 2000"),
    ],
)
def test_what_cannot_be_sent_is_refused_at_once(producer, arguments, named, error, message):
    with pytest.raises(error, match=message):
        producer.send(*arguments, **named)


def test_an_unreachable_cluster_fails_the_future_with_the_reason(producer):
    told = threading.Event()
    seen = []

    def on_delivery(metadata, error):
        seen.append((metadata, error))
        told.set()

    future = producer.send("t", b"v", on_delivery=on_delivery)
    with pytest.raises(KafkaTimeoutError, match=r"127\.0\.0\.1:1: refused"):
        future.result(30)
    assert told.wait(30)
    assert seen == [(None, future.exception())]


def test_full_buffer_memory_blocks_for_max_block_ms(producer):
    producer.start()
    with producer._lock:
        producer._buffered = 1900
    with pytest.raises(KafkaTimeoutError, match="buffer_memory stayed full"):
        producer.send("t", bytes(200))
    waiting = threading.Timer(0.02, producer._freed, [1900])
    waiting.start()
    producer.send("t", bytes(200))
    waiting.join()


def test_a_delivery_callback_may_send_but_does_not_wait():
    outcomes: list[Any] = []
    finished = threading.Event()

    with Producer(bootstrap_servers=NOWHERE, max_block_ms=50) as producer:

        def on_delivery(metadata, error):
            outcomes.append(producer.send("t", b"from a callback"))
            producer._buffered += producer._engine.config.buffer_memory
            try:
                producer.send("t", b"no room")
            except KafkaTimeoutError as refused:
                outcomes.append(refused)
            producer._buffered -= producer._engine.config.buffer_memory
            finished.set()

        producer.send("t", b"v", on_delivery=on_delivery)
        assert finished.wait(30)
    assert "was not found" in str(outcomes[0].exception(30))
    assert "cannot wait for room" in str(outcomes[1])


def test_more_records_than_the_thread_takes_at_once():
    with Producer(bootstrap_servers=NOWHERE, max_block_ms=5_000) as producer:
        futures = [producer.send("t", b"v") for _ in range(5_000)]
        producer.close(timeout_ms=10)
        assert all(isinstance(future.exception(30), ClosedError) for future in futures)


def test_serializers():
    def text(value):
        return value.encode()

    with (
        Producer(bootstrap_servers=NOWHERE, max_block_ms=1, key_serializer=text, value_serializer=text) as producer,
        pytest.raises(AttributeError),
    ):
        producer.send("t", 5, "k")


def test_close_fails_what_is_left():
    producer = Producer(bootstrap_servers=NOWHERE)
    future = producer.send("t", b"v")
    producer.close(timeout_ms=10)
    producer.close()
    with pytest.raises(ClosedError):
        future.result(30)
    for call in (lambda: producer.send("t", b"v"), producer.start, producer.flush):
        with pytest.raises(ClosedError):
            call()


def test_a_producer_that_never_started_closes():
    Producer(bootstrap_servers=NOWHERE).close()
    Admin(bootstrap_servers=NOWHERE).close()


def test_a_callback_that_fails_harms_nobody(producer):
    def on_delivery(metadata, error):
        raise RuntimeError("in a callback")

    futures = [producer.send("t", b"v", on_delivery=on_delivery) for _ in range(2)]
    for future in futures:
        with pytest.raises(KafkaTimeoutError):
            future.result(30)


def test_a_failing_partitioner_fails_its_record():
    def never(key, partitions, available):
        raise RuntimeError("no idea")

    with Producer(bootstrap_servers=NOWHERE, partitioner=never) as producer:
        metadata = producer._engine.metadata
        metadata.topics["t"] = TopicMetadata("t", bytes(16), {0: PartitionMetadata(1)})
        with pytest.raises(MusterError, match=r"the partitioner failed: .*no idea"):
            producer.send("t", b"v").result(30)
        assert producer.metrics()["buffered_bytes"] == 0


async def test_async_faces_have_to_be_started():
    producer = AsyncProducer(bootstrap_servers=NOWHERE)
    with pytest.raises(IllegalStateError, match="not started"):
        await producer.send("t", b"v")
    await producer.close()
    with pytest.raises(ClosedError):
        await producer.start()
    admin = AsyncAdmin(bootstrap_servers=NOWHERE)
    with pytest.raises(IllegalStateError, match="not started"):
        await admin.list_topics()


async def test_async_full_buffer_memory_waits_for_max_block_ms():
    async with AsyncProducer(bootstrap_servers=NOWHERE, max_block_ms=50, buffer_memory=300) as producer:
        core = producer._engine.core
        core.buffered_bytes = 300
        with pytest.raises(KafkaTimeoutError, match="buffer_memory stayed full"):
            await producer.send("t", bytes(200))
        assert not core.room_wanted
        waiting = asyncio.ensure_future(producer.send("t", bytes(200)))
        await asyncio.sleep(0)
        core.buffered_bytes = 0
        producer._engine.loop.wakeup()
        with pytest.raises(KafkaTimeoutError, match="was not found"):
            await (await waiting)


async def test_a_flush_has_a_timeout():
    async with AsyncProducer(bootstrap_servers=NOWHERE, max_block_ms=500) as producer:
        future = await producer.send("t", b"v")
        with pytest.raises(KafkaTimeoutError, match="within 10 ms"):
            await producer.flush(10)
        with pytest.raises(KafkaTimeoutError):
            await future


async def test_an_admin_call_on_an_unreachable_cluster_says_why():
    (port,) = free_ports(1)
    async with AsyncAdmin(bootstrap_servers=f"127.0.0.1:{port}", default_api_timeout_ms=200) as admin:
        for call in (admin.list_topics(), admin.describe_consumer_groups(["g"]), admin.create_topics(["t"])):
            with pytest.raises(KafkaTimeoutError, match="refused; is a broker listening there"):
                await call
    with pytest.raises(ClosedError):
        await admin.list_topics()


def test_fatal_errors_are_raised_by_send():
    producer = Producer(bootstrap_servers=NOWHERE)
    producer._engine.core.fatal = KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    future = producer.send("t", b"v")
    with pytest.raises(MusterError, match="CLUSTER_AUTHORIZATION_FAILED"):
        future.result(30)
    producer.close()
