"""The faces of producer and admin: the same methods, and what they check before a broker is involved."""

import asyncio
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from muster.client.admin.admin import Admin
from muster.client.admin.async_admin import AsyncAdmin
from muster.client.core.admin.admin import NewTopic, creatable_topic
from muster.client.core.metadata import PartitionMetadata, TopicMetadata
from muster.client.producer import async_producer, outbox
from muster.client.producer.async_producer import AsyncProducer
from muster.client.producer.producer import Producer
from muster.errors import (
    ClosedError,
    ErrorCode,
    IllegalArgumentError,
    KafkaError,
    KafkaTimeoutError,
    MusterError,
)
from tests.support.faces import rest, until
from tests.support.peers import free_ports
from tests.support.rooms import taken

NOWHERE = "127.0.0.1:1"


@pytest.fixture
def producer():
    with Producer(bootstrap_servers=NOWHERE, max_block_ms=100, buffer_memory=2000) as made:
        yield made


@pytest.mark.parametrize(
    ("arguments", "named", "error", "message"),
    [
        (("t", "text"), {}, TypeError, "the value is str, not bytes"),
        (("t", b"", 5), {}, TypeError, "give a key_serializer"),
        (("", b""), {}, ValueError, "a topic has an empty name"),
        (("t", b""), {"partition": -1}, ValueError, "partition is -1"),
        (("t", b""), {"partition": 2**31}, ValueError, "partition is 2147483648; .* at most 2147483647"),
        (("t", b""), {"partition": "0"}, ValueError, "partition is '0'; it must be a whole number"),
        (("t", b""), {"timestamp_ms": -1}, ValueError, "timestamp_ms is -1"),
        (("t", b""), {"timestamp_ms": 2**63}, ValueError, "timestamp_ms is 9223372036854775808"),
        (("t", b""), {"timestamp_ms": 1.5}, ValueError, "timestamp_ms is 1.5; it must be a whole number"),
        (("bad\ud800name", b""), {}, ValueError, "cannot be encoded as UTF-8"),
        (("t" * 40_000, b""), {}, ValueError, "40000 bytes"),
        ((None, b""), {}, ValueError, "must be text"),
        (([], b""), {}, ValueError, "must be text"),
        (("t", b""), {"headers": [("h\ud800", b"")]}, ValueError, "header's name .* cannot be encoded as UTF-8"),
        (("t", b""), {"headers": [(b"h", b"")]}, TypeError, "a header's name is b'h', not str"),
        (("t", b""), {"headers": {"h": "text"}}, TypeError, "the header 'h' is str, not bytes"),
        (("t", b""), {"headers": [("h", b"", b"")]}, TypeError, "neither a mapping nor pairs"),
        (("t", b""), {"headers": 5}, TypeError, "headers are 5"),
        (("t", b""), {"on_delivery": "call me"}, TypeError, "on_delivery is 'call me'"),
        (("t", bytes(3000)), {}, KafkaError, "takes 3082 bytes; buffer_memory of this producer allows 2000"),
    ],
)
def test_what_cannot_be_sent_is_refused_at_once(producer, arguments, named, error, message):
    with pytest.raises(error, match=message):
        producer.send(*arguments, **named)
    assert taken(producer) == 0


@pytest.mark.parametrize("raised", [RuntimeError("broken"), KeyboardInterrupt(), SystemExit(3)])
def test_what_callbacks_raise_harms_no_other_record(raised, caplog):
    """Callbacks of records and of futures, and a partitioner, in the producer's own thread."""
    reported = []

    def fail(*_):
        raise raised

    with Producer(bootstrap_servers=NOWHERE, max_block_ms=100) as producer:
        first = producer.send("t", b"v", on_delivery=fail)
        second = producer.send("t", b"v")
        second.add_done_callback(fail)
        third = producer.send("t", b"v", on_delivery=lambda metadata, error: reported.append(error))
        for future in (first, second, third):
            assert isinstance(future.exception(30), KafkaTimeoutError)
        assert isinstance(producer.send("t", b"v").exception(30), KafkaTimeoutError)
    assert reported == [third.exception()]
    with Producer(bootstrap_servers=NOWHERE, max_block_ms=100, partitioner=fail) as producer:
        producer._engine.metadata.topics["t"] = TopicMetadata("t", bytes(16), {0: PartitionMetadata(1)})
        assert "the partitioner failed" in str(producer.send("t", b"v").exception(30))
        assert isinstance(producer.send("other", b"v").exception(30), KafkaTimeoutError)


@pytest.mark.parametrize("cls", [Producer, AsyncProducer])
@pytest.mark.parametrize("name", ["key_serializer", "value_serializer", "partitioner"])
def test_what_cannot_be_called_is_refused_when_the_producer_is_made(cls, name):
    with pytest.raises(TypeError, match=f"{name} is 'utf-8', which cannot be called"):
        cls(bootstrap_servers=NOWHERE, **{name: "utf-8"})


@pytest.mark.parametrize(
    ("topic", "message"),
    [
        (NewTopic("t", 99_999_999_999), "num_partitions of t is 99999999999; it must be .* at most 2147483647"),
        (NewTopic("t", 1, 2**15), "replication_factor of t is 32768; it must be .* at most 32767"),
        (NewTopic("t", assignments={0: [1], 2**31: [1]}), "in the assignments of t is 2147483648"),
        (NewTopic("t", assignments={0: [2**31]}), "in the assignments of t is 2147483648"),
        (NewTopic("t", "3"), "num_partitions of t is '3'; it must be a whole number"),  # type: ignore[arg-type]
        (NewTopic(None, 1), "a topic is None; it must be text"),  # type: ignore[arg-type]
    ],
)
def test_a_topic_that_no_request_can_carry_is_refused_in_a_sentence(topic, message):
    with pytest.raises(IllegalArgumentError, match=message):
        creatable_topic(topic)


def test_numbers_that_make_no_sense_are_for_the_broker_to_refuse():
    assert creatable_topic(NewTopic("t", 0, -2)).num_partitions == 0


def test_a_serializer_is_asked_for_a_record_without_key_or_value_too():
    made: dict[str, Any] = {"key_serializer": lambda key: b"k" * 700, "value_serializer": lambda value: b"v" * 600}
    with Producer(bootstrap_servers=NOWHERE, max_block_ms=1, **made) as producer:
        producer.send("t").cancel()
        assert taken(producer) >= 1_300


@pytest.mark.parametrize("moving", [False, True])
def test_the_memory_of_records_that_the_sending_thread_has_not_taken_is_counted(moving, monkeypatch):
    gate, at_the_gate = threading.Event(), threading.Event()

    def held_up(*_):
        at_the_gate.set()
        gate.wait(60)

    with Producer(bootstrap_servers=NOWHERE, max_block_ms=50, buffer_memory=2_000, linger_ms=0) as producer:
        producer.start()
        try:
            if not moving:
                producer._outbox._thread.call_soon(held_up)
                assert at_the_gate.wait(60)
            else:
                take = producer._engine.take
                monkeypatch.setattr(producer._engine, "take", lambda *record: (held_up(), take(*record)))
            for _ in range(6):
                producer.send("t", bytes(300)).cancel()
            assert at_the_gate.wait(60)
            with pytest.raises(KafkaTimeoutError, match="buffer_memory stayed full"):
                producer.send("t", bytes(300))
        finally:
            gate.set()


def test_a_serializer_that_raises_is_the_callers_affair():
    def fail(content):
        raise KeyboardInterrupt

    with Producer(bootstrap_servers=NOWHERE, max_block_ms=100, key_serializer=fail) as producer:
        with pytest.raises(KeyboardInterrupt):
            producer.send("t", b"v", b"k")
        assert taken(producer) == 0


@pytest.mark.filterwarnings("always::ResourceWarning")
def test_a_dropped_producer_warns_settles_its_records_and_frees_its_thread(monkeypatch):
    monkeypatch.setattr(outbox, "UNCLOSED_MS", 50)
    before, open_before = set(threading.enumerate()), set(outbox._open)  # other tests' threads may end meanwhile
    held = [Producer(bootstrap_servers=NOWHERE)]
    future = held[0].send("t", b"v")
    with pytest.warns(ResourceWarning, match="a Producer was dropped without close"):
        held.clear()
    assert isinstance(future.exception(30), ClosedError)
    threads = [one for one in set(threading.enumerate()) - before if one.name == "muster-producer"]
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads)
    assert outbox._open <= open_before


@pytest.mark.filterwarnings("always::ResourceWarning")
async def test_a_dropped_async_producer_warns_and_settles_its_records(monkeypatch):
    monkeypatch.setattr(async_producer, "UNCLOSED_MS", 50)
    held = [AsyncProducer(bootstrap_servers=NOWHERE)]
    await held[0].start()
    future = await held[0].send("t", b"v")
    with pytest.warns(ResourceWarning, match="an AsyncProducer was dropped without close"):
        held.clear()
    with pytest.raises(ClosedError):
        await asyncio.wait_for(future, 30)


def test_records_are_reported_when_their_event_loop_ends_with_all_in_it():
    reported = []

    async def main():
        producer = AsyncProducer(bootstrap_servers=NOWHERE)
        await producer.send("t", b"v", on_delivery=lambda metadata, error: reported.append(error))
        return producer

    with pytest.warns(ResourceWarning, match="an AsyncProducer was dropped without close"):
        asyncio.run(main())
    assert [type(error) for error in reported] == [ClosedError]


async def test_leaving_async_with_raises_what_was_not_reported():
    async def send_some():
        async with AsyncProducer(bootstrap_servers=NOWHERE, max_block_ms=50) as producer:
            for _ in range(2):
                await producer.send("t", b"v")
            seen = await producer.send("t", b"v")
            with pytest.raises(KafkaTimeoutError):
                await seen
            await producer.send("t", b"v", on_delivery=lambda metadata, error: None)

    with pytest.raises(KafkaTimeoutError, match="was not found") as raised:
        await send_some()
    assert raised.value.__notes__ == ["the first of 2 records that were not delivered"]


async def test_closing_an_async_producer_twice_at_once_waits_for_the_one_end():
    producer = AsyncProducer(bootstrap_servers=NOWHERE)
    await producer.start()
    future = await producer.send("t", b"v")
    first = asyncio.ensure_future(producer.close())
    await asyncio.sleep(0)
    await producer.close(10)
    assert isinstance(future.exception(), ClosedError)
    await first


async def test_whoever_waits_for_room_learns_that_the_producer_was_closed():
    """Its record was not accepted, and its outcome would never be reported."""
    producer = AsyncProducer(bootstrap_servers=NOWHERE, buffer_memory=300)
    taken = await producer.send("t", bytes(200))
    waiting = asyncio.ensure_future(producer.send("t", bytes(200)))
    await asyncio.sleep(0)
    await producer.close(10)
    assert isinstance(taken.exception(), ClosedError)
    with pytest.raises(ClosedError):
        await waiting


async def test_a_cancelled_close_gives_up_and_tells():
    producer = AsyncProducer(bootstrap_servers=NOWHERE)
    await producer.start()
    future = await producer.send("t", b"v")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(producer.close(), 0.05)
    assert isinstance(future.exception(), ClosedError)
    await producer.close()


def test_an_unreachable_cluster_fails_the_future_with_the_reason(producer):
    reported = threading.Event()
    seen = []

    def on_delivery(metadata, error):
        seen.append((metadata, error))
        reported.set()

    producer.start()
    until(lambda: producer._engine.metadata.last_error is not None, rest)  # it has tried
    future = producer.send("t", b"v", on_delivery=on_delivery)
    with pytest.raises(KafkaTimeoutError, match=r"127\.0\.0\.1:1: refused"):
        future.result(30)
    assert reported.wait(30)
    assert seen == [(None, future.exception())]


def test_full_buffer_memory_blocks_for_max_block_ms(producer):
    producer._engine.core.buffered_bytes = 1900
    with pytest.raises(KafkaTimeoutError, match="buffer_memory stayed full"):
        producer.send("t", bytes(200))


def test_a_caller_that_waits_for_room_continues_when_there_is_some(monkeypatch):
    producer = Producer(bootstrap_servers=NOWHERE, max_block_ms=2_000, buffer_memory=2000)
    outbox, core = producer._outbox, producer._engine.core
    core.buffered_bytes = 1900

    def free():
        while not (outbox._waiters and hurries):  # the caller waits
            time.sleep(0.001)
        core.buffered_bytes = 0
        outbox._on_reported()

    hurries: list[bool] = []

    def make_room() -> None:
        hurries.append(True)
        outbox._drain()

    monkeypatch.setattr(outbox, "_make_room", make_room)
    freeing = threading.Thread(target=free)
    with producer:
        freeing.start()
        sent = producer.send("t", bytes(200))
        freeing.join()
        assert len(hurries) == 1, "a caller that waits does not ask again and again"
        with pytest.raises(KafkaTimeoutError, match="was not found"):
            sent.result(120)


def test_a_caller_that_waits_for_room_is_refused_when_the_producer_is_closed_though_there_is_room_then():
    """If it were accepted after the end, its future would stay pending forever."""
    outcome: list[object] = []
    with Producer(bootstrap_servers=NOWHERE, buffer_memory=2000) as producer:
        producer._engine.core.buffered_bytes = 1900

        def send() -> None:
            try:
                outcome.append(producer.send("t", bytes(200)))
            except MusterError as error:
                outcome.append(type(error))

        sending = threading.Thread(target=send)
        sending.start()
        while not producer._outbox._waiters:
            time.sleep(0.001)
        producer._engine.core.buffered_bytes = 0
        producer.close(timeout_ms=0)
        sending.join()
    assert outcome == [ClosedError]


def test_a_delivery_callback_may_send_but_does_not_wait():
    outcomes: list[Any] = []
    finished = threading.Event()

    with Producer(bootstrap_servers=NOWHERE, max_block_ms=50) as producer:

        def on_delivery(metadata, error):
            outcomes.append(producer.send("t", b"from a callback"))
            producer._engine.core.buffered_bytes += producer._engine.config.buffer_memory
            try:
                producer.send("t", b"no room")
            except KafkaTimeoutError as refused:
                outcomes.append(refused)
            producer._engine.core.buffered_bytes -= producer._engine.config.buffer_memory
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


async def test_async_faces_start_by_themselves():
    producer = AsyncProducer(bootstrap_servers=NOWHERE, max_block_ms=50)
    future = await producer.send("t", b"v")
    with pytest.raises(KafkaTimeoutError):
        await future
    await producer.close()
    with pytest.raises(ClosedError):
        await producer.start()
    with pytest.raises(ClosedError):
        await producer.send("t", b"v")
    admin = AsyncAdmin(bootstrap_servers=NOWHERE, default_api_timeout_ms=50, request_timeout_ms=50)
    with pytest.raises(KafkaTimeoutError):
        await admin.list_topics()
    await admin.close()


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
        producer._room.set()
        with pytest.raises(KafkaTimeoutError, match="was not found"):
            await (await waiting)


async def test_a_flush_has_a_timeout():
    producer = AsyncProducer(bootstrap_servers=NOWHERE, max_block_ms=600_000)
    future = await producer.send("t", b"v")
    with pytest.raises(KafkaTimeoutError, match="within 10 ms"):
        await producer.flush(10)
    await producer.close(0)
    with pytest.raises(ClosedError):
        await future


async def test_an_admin_call_on_an_unreachable_cluster_says_why():
    (port,) = free_ports(1)
    async with AsyncAdmin(bootstrap_servers=f"127.0.0.1:{port}", default_api_timeout_ms=200) as admin:
        while admin._calls._metadata.last_error is None:  # until it has tried
            await asyncio.sleep(0.005)
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


def test_max_block_ms_is_kept_however_often_others_take_the_room(monkeypatch):
    """Each time that there is room, another caller takes it first. The test sets the clock."""
    now = [1_000.0]
    waits = []

    class Waiter:
        def acquire(self, timeout):
            waits.append(timeout)
            assert len(waits) < 10
            now[0] += min(timeout, 0.03)
            return timeout > 0.03

    monkeypatch.setattr(outbox, "time", SimpleNamespace(monotonic=lambda: now[0]))
    with Producer(bootstrap_servers=NOWHERE, max_block_ms=100) as producer:
        monkeypatch.setattr(producer._outbox, "_try_to_put", lambda record: Waiter())
        with pytest.raises(KafkaTimeoutError, match=r"buffer_memory stayed full for max_block_ms \(100\)"):
            producer.send("t", b"x")
    assert [round(wait * 1000) for wait in waits] == [100, 70, 40, 10]
    assert round(1000 * (now[0] - 1_000)) == 100


def test_a_transactional_call_that_takes_too_long_says_what_it_waits_for() -> None:
    what = "the coordinator of transactional id billing"
    said = rf"500 ms: {what}: no connection to 127\.0\.0\.1:1: refused.*; call it again"
    with (
        Producer(bootstrap_servers=NOWHERE, transactional_id="billing") as producer,
        pytest.raises(KafkaTimeoutError, match=said),
    ):
        producer.init_transactions(timeout_ms=500)
