"""The types that a user's program sees: correct code passes, and each mistake is reported on its own line."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tools import typed_settings

pytestmark = pytest.mark.slow

PROGRAM = """
import asyncio
from collections.abc import Iterable
from typing import Any

from muster.assignors.sticky import StickyAssignor
from muster import (
    Admin,
    AsyncAdmin,
    AsyncConsumer,
    AsyncProducer,
    Consumer,
    NewTopic,
    Producer,
    RebalanceListener,
)
from muster.client.concurrent import AsyncConcurrentConsumer, ConcurrentConsumer, Retry
from muster.errors import AdminError, KafkaError
from muster.model import ConsumerRecord, PartitionInfo, TopicPartition
from muster import zookeeper
from muster.zookeeper import ServerAssignedConsumer, WatcherConsumer

AT = "localhost:9092"
DOTTED = {"bootstrap.servers": AT, "group.id": "g"}


class Listener(RebalanceListener):
    def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
        print(partitions)


def handle(record: ConsumerRecord) -> None:
    print(record.value)


async def handle_async(record: ConsumerRecord) -> None:
    print(record.value)


def consumers(given: dict[str, Any]) -> None:
    Consumer(DOTTED)
    Consumer(DOTTED, session_timeout_ms=10_000, enable_auto_commit=False)
    Consumer(given, **given)
    Consumer(bootstrap_servers=[AT, AT], partition_assignment_strategy=["range", StickyAssignor()])
    Consumer(group_id="g", auto_offset_reset="earliest", isolation_level="read_committed")
    Consumer(security_protocol="SASL_SSL", sasl_mechanism="PLAIN", sasl_username="u", sasl_password="p")
    Consumer(group_idd="g")  # wrong
    Consumer(group_id=5)  # wrong
    Consumer(session_timeout_ms="10s")  # wrong
    Consumer(session_timeout_ms=1.5)  # wrong
    Consumer(auto_offset_reset="smallest")  # wrong
    Consumer(linger_ms=5)  # wrong
    Consumer(security_protocol="TLS")  # wrong
    AsyncConsumer(group_id="g", max_poll_records=10)
    AsyncConsumer(group_id="g", max_poll_record=10)  # wrong
    WatcherConsumer(zookeeper_connect="localhost:2181", group_id="g", rebalance_backoff_ms=100)
    WatcherConsumer(zookeeper_connect="localhost:2181", coordinator_servers=AT)  # wrong
    ServerAssignedConsumer(coordinator_servers=AT, bootstrap_servers=AT, group_id="g")
    ServerAssignedConsumer(coordinator_servers=9092)  # wrong
    zookeeper.WatcherConsumr(group_id="g")  # wrong


def producers() -> None:
    Producer(acks="all", compression_type="zstd", linger_ms=5)
    Producer(acks=1)
    Producer(acks="nope")  # wrong
    Producer(acks=2)  # wrong
    Producer(compression_type="brotli")  # wrong
    Producer(group_id="g")  # wrong
    AsyncProducer(acks="all", retries=3)
    AsyncProducer(retries="3")  # wrong
    with Producer(bootstrap_servers=AT) as producer:
        infos: list[PartitionInfo] = producer.partitions_for("t")
        numbers: list[int] = producer.partitions_for("t")  # wrong
        print(infos, numbers, producer.send("t", b"v").result().offset)
        producer.flush(timeout_ms=1_000)
        producer.flush(timeout_ms=1.0)  # wrong


def admins() -> None:
    Admin(default_api_timeout_ms=5_000)
    Admin(default_api_timeout=5_000)  # wrong
    AsyncAdmin(retries=3)
    AsyncAdmin(acks="all")  # wrong
    with Admin(bootstrap_servers=AT) as admin:
        print([made.num_partitions for made in admin.create_topics([NewTopic("t", num_partitions=1)]).values()])
        for name, answer in admin.create_topics(["t"], raise_errors=False).items():
            print(name, answer.num_partitions)  # wrong
            if isinstance(answer, KafkaError):
                raise answer
            print(answer.num_partitions)
        offset: int | None = admin.list_consumer_group_offsets("g")[TopicPartition("t", 0)].offset
        print(offset, admin.delete_topics(["t"], raise_errors=False)["t"] is None)
        admin.describe_topics(["t"], raise_error=False)  # wrong
        try:
            admin.create_topics(["t"])
        except AdminError as error:
            print(error.code, {name: answer for name, answer in error.outcomes.items()})


def reading() -> None:
    with Consumer(DOTTED) as consumer:
        consumer.subscribe(["t"], listener=Listener())
        for partition, records in consumer.poll(1_000).items():
            print(partition.topic, [record.offset for record in records])
        consumer.poll(1.0)  # wrong
        consumer.poll(None)  # wrong
        consumer.subscribe(pattern=5)  # wrong
        infos: list[PartitionInfo] = consumer.partitions_for("t")
        consumer.commit({TopicPartition("t", 0): 3})
        consumer.commit({("t", 0): 3})  # wrong
        print(infos)


def many(topics: Iterable[str]) -> None:
    retry = Retry(max_attempts=3)
    ConcurrentConsumer(DOTTED, handle, topics=topics, order="key", workers="processes", retry=retry).run()
    ConcurrentConsumer(DOTTED, lambda record: print(record.value), topics="t", order=lambda record: record.key).run()
    ConcurrentConsumer(None, handle, topics="t", bootstrap_servers=AT, group_id="g").run()
    ConcurrentConsumer(DOTTED, handle, topics="t", order="kee")  # wrong
    ConcurrentConsumer(DOTTED, handle_async, topics="t")  # wrong
    ConcurrentConsumer(DOTTED, handle, topics="t", workers="process")  # wrong
    ConcurrentConsumer(DOTTED, handle, topics="t", group_idd="g")  # wrong
    AsyncConcurrentConsumer(DOTTED, handle_async, topics="t")
    AsyncConcurrentConsumer(DOTTED, handle, topics="t")  # wrong
    AsyncConcurrentConsumer(DOTTED, handle_async, topics="t", order="kee")  # wrong


async def asynchronous() -> None:
    async with AsyncConsumer(DOTTED) as consumer, AsyncProducer(bootstrap_servers=AT) as producer:
        consumer.subscribe("t")
        async for record in consumer:
            sent = await producer.send("u", record.value)
            print((await sent).partition)
        await consumer.poll(0.5)  # wrong


class OwnProducer(Producer):
    def extra(self) -> None: ...


with OwnProducer(bootstrap_servers=AT) as own:
    own.extra()
asyncio.run(asynchronous())
""".lstrip()


def test_the_generated_files_are_up_to_date() -> None:
    for file in typed_settings.FILES:
        assert (typed_settings.SOURCE / file).read_text() == typed_settings.text(file)


def marked() -> set[int]:
    return {number for number, line in enumerate(PROGRAM.splitlines(), 1) if line.endswith("# wrong")}


def test_mypy_reports_the_wrong_lines_of_a_program_and_no_others(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file", "", "--cache-dir", "cache", "program.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    reported = {int(line) for line in re.findall(r"^program\.py:(\d+): error:", done.stdout, re.MULTILINE)}
    assert (reported - marked(), marked() - reported) == (set(), set()), done.stdout + done.stderr
    assert not re.findall(r"^(?!program\.py:|Found )", done.stdout.strip(), re.MULTILINE), done.stdout
