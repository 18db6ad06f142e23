"""One run of one client in a process of its own: `python -m benchmarks.client_runs '{"what": "consume", …}'`.

Prints records per second and CPU µs per record of this whole process (all its threads), as JSON. All clients have the
same settings and do the same with each record: read the length of its value, or count its acknowledgement.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

AT_ONCE = 1_000
"""The most records that one poll returns."""

LINGER_MS = 5
BATCH_BYTES = 64 << 10
PAUSE = 100
"""A producer reads the clock after each of this many records."""

WARM_UP = 10
"""A tenth of the records that a consumer reads precede the start of the clock."""

WARM_UP_RECORDS = 10_000
"""A producer sends this many before the clock starts."""


@dataclass(frozen=True)
class Run:
    """The task: for `seconds`, or until a consumer has read most of the `records`."""

    what: str
    client: str
    bootstrap: str
    topic: str
    partitions: int
    records: int
    size: int
    seconds: float


class Meter:
    """Time and CPU between the first records and the last."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._seen = self._enough = -1
        self._warmed = 0
        self._wall = self._cpu = 0.0

    def start(self) -> None:
        self._seen = 0
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def done(self, count: int) -> bool:
        """Count records; returns whether there are enough. The first ones warm the consumer up; then the clock
        starts."""
        if self._seen < 0:
            self._warmed += count
            if self._warmed >= self._run.records // WARM_UP:
                self.start()
                # Not to the very end, where a client may wait for more records before it returns.
                self._enough = self._run.records * 9 // 10 - self._warmed
            return False
        self._seen += count
        return self._seen >= self._enough or time.perf_counter() - self._wall >= self._run.seconds

    def count(self, count: int) -> bool:
        """Count records that were sent; returns whether the time is over."""
        self._seen += count
        return time.perf_counter() - self._wall >= self._run.seconds

    def figures(self) -> dict[str, float]:
        wall, cpu = time.perf_counter() - self._wall, time.process_time() - self._cpu
        return {"records_per_s": self._seen / wall, "cpu_us": cpu / self._seen * 1e6}


# --- consumers: each yields how many records it was handed -----------------------------------------------------------


def _muster(run: Run) -> Iterator[int]:
    from muster import Consumer
    from muster.model import TopicPartition

    with Consumer(bootstrap_servers=run.bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition(run.topic, number) for number in range(run.partitions)])
        while True:
            for records in consumer.poll(1_000, max_records=AT_ONCE).values():
                sum([len(record.value or b"") for record in records])
                yield len(records)


async def _muster_async(run: Run) -> AsyncGenerator[int, None]:
    from muster import AsyncConsumer
    from muster.model import TopicPartition

    async with AsyncConsumer(bootstrap_servers=run.bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition(run.topic, number) for number in range(run.partitions)])
        while True:
            for records in (await consumer.poll(1_000, max_records=AT_ONCE)).values():
                sum([len(record.value or b"") for record in records])
                yield len(records)


def _muster_arrow(run: Run) -> Iterator[int]:
    from muster import Consumer
    from muster.arrow import warm
    from muster.model import TopicPartition

    warm()
    with Consumer(bootstrap_servers=run.bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition(run.topic, number) for number in range(run.partitions)])
        while True:
            for table in consumer.poll_arrow(1_000).values():
                assert table.column("value").nbytes
                yield table.num_rows


async def _aiokafka(run: Run) -> AsyncGenerator[int, None]:
    from aiokafka import AIOKafkaConsumer, TopicPartition

    async with AIOKafkaConsumer(bootstrap_servers=run.bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition(run.topic, number) for number in range(run.partitions)])
        while True:
            for records in (await consumer.getmany(timeout_ms=1_000, max_records=AT_ONCE)).values():
                sum([len(record.value) for record in records])
                yield len(records)


def _kafka_python(run: Run) -> Iterator[int]:
    from kafka import KafkaConsumer, TopicPartition

    consumer = KafkaConsumer(bootstrap_servers=run.bootstrap, auto_offset_reset="earliest")
    consumer.assign([TopicPartition(run.topic, number) for number in range(run.partitions)])
    while True:
        for records in consumer.poll(1_000, max_records=AT_ONCE).values():
            sum([len(record.value) for record in records])
            yield len(records)


def _confluent(run: Run) -> Iterator[int]:
    from confluent_kafka import Consumer, TopicPartition

    # Without these librdkafka stops fetching for a second whenever its queue is full, and a run would measure that.
    eager = {"fetch.queue.backoff.ms": 1, "queued.min.messages": 1_000_000}
    group = {"group.id": "unused", "enable.auto.commit": False}
    consumer = Consumer({"bootstrap.servers": run.bootstrap, **group, **eager})
    consumer.assign([TopicPartition(run.topic, number, 0) for number in range(run.partitions)])
    while True:
        messages = consumer.consume(AT_ONCE, 1.0)
        sum([len(message.value() or b"") for message in messages])
        yield len(messages)


CONSUMERS: dict[str, Callable[[Run], Iterator[int] | AsyncGenerator[int, None]]] = {
    "muster": _muster,
    "muster async": _muster_async,
    "muster to Arrow": _muster_arrow,
    "aiokafka": _aiokafka,
    "kafka-python": _kafka_python,
    "confluent-kafka": _confluent,
}


def consume(run: Run, meter: Meter) -> None:
    """Read until nothing is left or the time is over."""
    counts = CONSUMERS[run.client](run)
    if isinstance(counts, Iterator):
        for count in counts:
            if meter.done(count):
                return
        return
    asyncio.run(_consume(counts, meter))


async def _consume(counts: AsyncGenerator[int, None], meter: Meter) -> None:
    async with aclosing(counts) as closing:
        async for count in closing:
            if meter.done(count):
                return


# --- producers -------------------------------------------------------------------------------------------------------


def _produce_muster(run: Run, meter: Meter, value: bytes) -> None:
    from muster import Producer

    with Producer(bootstrap_servers=run.bootstrap, linger_ms=LINGER_MS, batch_size=BATCH_BYTES) as producer:
        producer.send_and_wait(run.topic, value)
        for _ in range(WARM_UP_RECORDS):
            producer.send(run.topic, value)
        producer.flush()
        meter.start()
        while not meter.count(PAUSE):
            for _ in range(PAUSE):
                producer.send(run.topic, value)
        producer.flush()
        _report(meter)


def _produce_kafka_python(run: Run, meter: Meter, value: bytes) -> None:
    from kafka import KafkaProducer

    producer = KafkaProducer(bootstrap_servers=run.bootstrap, acks="all", linger_ms=LINGER_MS, batch_size=BATCH_BYTES)
    producer.send(run.topic, value).get(30)
    for _ in range(WARM_UP_RECORDS):
        producer.send(run.topic, value)
    producer.flush()
    meter.start()
    while not meter.count(PAUSE):
        for _ in range(PAUSE):
            producer.send(run.topic, value)
    producer.flush()
    _report(meter)


def _produce_confluent(run: Run, meter: Meter, value: bytes) -> None:
    from confluent_kafka import Producer

    settings = {"linger.ms": LINGER_MS, "batch.size": BATCH_BYTES, "enable.idempotence": True}
    producer = Producer({"bootstrap.servers": run.bootstrap, **settings})
    told = 0

    def on_delivery(error: object, message: object) -> None:
        nonlocal told
        told += 1

    def send() -> None:
        while True:
            try:
                producer.produce(run.topic, value, on_delivery=on_delivery)
                return
            except BufferError:
                producer.poll(0.01)

    for _ in range(WARM_UP_RECORDS):
        send()
        producer.poll(0)
    producer.flush()
    meter.start()
    while not meter.count(PAUSE):
        for _ in range(PAUSE):
            send()
        producer.poll(0)
    producer.flush()
    _report(meter)


async def _produce_async(meter: Meter, send: Callable[[], Awaitable[Any]], flush: Callable[[], Awaitable[Any]]) -> None:
    await (await send())
    for _ in range(WARM_UP_RECORDS):
        await send()
    await flush()
    meter.start()
    while not meter.count(PAUSE):
        for _ in range(PAUSE):
            await send()
    await flush()
    _report(meter)


async def _produce_muster_async(run: Run, meter: Meter, value: bytes) -> None:
    from muster import AsyncProducer

    async with AsyncProducer(bootstrap_servers=run.bootstrap, linger_ms=LINGER_MS, batch_size=BATCH_BYTES) as producer:
        await _produce_async(meter, lambda: producer.send(run.topic, value), producer.flush)


async def _produce_aiokafka(run: Run, meter: Meter, value: bytes) -> None:
    from aiokafka import AIOKafkaProducer

    settings = {"linger_ms": LINGER_MS, "max_batch_size": BATCH_BYTES, "enable_idempotence": True}
    async with AIOKafkaProducer(bootstrap_servers=run.bootstrap, **settings) as producer:
        await _produce_async(meter, lambda: producer.send(run.topic, value), producer.flush)


PRODUCERS: dict[str, Callable[[Run, Meter, bytes], Awaitable[None] | None]] = {
    "muster": _produce_muster,
    "muster async": _produce_muster_async,
    "aiokafka": _produce_aiokafka,
    "kafka-python": _produce_kafka_python,
    "confluent-kafka": _produce_confluent,
}


async def _finish(work: Awaitable[None]) -> None:
    await work


def _report(meter: Meter) -> None:
    print(json.dumps(meter.figures()), flush=True)


def main() -> None:
    run = Run(**json.loads(sys.argv[1]))
    meter = Meter(run)
    if run.what == "produce":
        work = PRODUCERS[run.client](run, meter, b"v" * run.size)
        if work is not None:
            asyncio.run(_finish(work))
        return
    consume(run, meter)
    _report(meter)


if __name__ == "__main__":
    main()
