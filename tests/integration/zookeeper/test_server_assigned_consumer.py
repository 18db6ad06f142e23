"""The consumers of scheme 2 on a real broker with a draft listener: reading, committing, joining and leaving."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from muster import AsyncAdmin, AsyncConsumer, AsyncProducer
from muster.broker.broker import Broker
from muster.client.core.admin.admin import NewTopic
from muster.clock import monotonic_ms
from muster.errors import (
    AuthenticationError,
    CommitFailedError,
    ConfigError,
    ErrorCode,
    IllegalStateError,
    KafkaError,
    WakeupError,
)
from muster.model import TopicPartition
from muster.zookeeper import AsyncServerAssignedConsumer, ServerAssignedConsumer
from muster.zookeeper.server_assigned.states import ServerAssignedState
from tests.support.brokers import running
from tests.support.peers import KafkaBroker
from tests.support.secure_kafka import PASSWORDS, SecureKafka

PATIENCE_MS = 120_000
TOPIC = "flights"


@asynccontextmanager
async def cluster(folder: Path, partitions: int = 4, records: int = 20) -> AsyncIterator[Broker]:
    settings = {"draft.listener": "127.0.0.1:0", "server.assigned.groups": "assigned.*"}
    async with running(folder, settings) as broker:
        async with AsyncAdmin(bootstrap_servers=broker.bootstrap) as admin:
            await admin.create_topics([NewTopic(TOPIC, partitions)])
        await produce(broker, range(records), partitions)
        yield broker


async def produce(broker: Broker, numbers: range, partitions: int = 4) -> None:
    async with AsyncProducer(bootstrap_servers=broker.bootstrap) as producer:
        for number in numbers:
            await producer.send(TOPIC, str(number).encode(), partition=number % partitions)


def addresses(broker: Broker) -> dict[str, str]:
    assert broker.cluster.draft_node is not None
    host, port = broker.cluster.draft_node.host, broker.cluster.draft_node.port
    return {"coordinator_servers": f"{host}:{port}", "bootstrap_servers": broker.bootstrap}


def consumer(broker: Broker, group: str = "assigned", **settings: Any) -> AsyncServerAssignedConsumer:
    return AsyncServerAssignedConsumer(
        addresses(broker), group_id=group, auto_offset_reset="earliest", heartbeat_interval_ms=100, **settings
    )


async def read(source: AsyncServerAssignedConsumer, count: int) -> list[int]:
    """The numbers of this many records, as they arrive."""
    found: list[int] = []
    deadline = monotonic_ms() + PATIENCE_MS
    while len(found) < count:
        assert monotonic_ms() < deadline, f"{len(found)} of {count} records arrived"
        for records in (await source.poll(1_000)).values():
            found += [int(record.value or b"") for record in records]
    return found


async def until_shared_out(*sources: AsyncServerAssignedConsumer, partitions: int = 4) -> None:
    """Wait until these consumers share all partitions, each an equal part."""
    async with asyncio.timeout(PATIENCE_MS / 1000):
        while True:
            shares = [source.assignment() for source in sources]
            if sum(map(len, shares)) == len(set().union(*shares)) == partitions:
                generations = {source.group_metadata().generation_id for source in sources}
                if len(generations) == 1:
                    return
            await asyncio.gather(*(source.poll(50) for source in sources))


async def test_one_consumer_reads_all_commits_and_the_next_continues(tmp_path: Path) -> None:
    async with cluster(tmp_path / "data") as broker:
        async with consumer(broker) as one:
            one.subscribe([TOPIC])
            assert sorted(await read(one, 20)) == list(range(20))
            assert one.state is ServerAssignedState.STABLE
            assert one.group_metadata().generation_id >= 1
            await one.commit()
            partition = TopicPartition(TOPIC, 0)
            found = (await one.committed([partition]))[partition]
            assert found is not None
            assert found.offset == await one.position(partition) == 5
            one.seek(partition, 3)
            assert await read(one, 2) == [12, 16]
        await produce(broker, range(20, 24))
        async with consumer(broker) as other:
            other.subscribe(TOPIC)
            assert sorted(await read(other, 4)) == [20, 21, 22, 23]


async def test_consumers_join_and_leave_alongside_a_stock_client(tmp_path: Path) -> None:
    async with cluster(tmp_path / "data") as broker:
        one, two = consumer(broker), consumer(broker)
        async with one, two:
            one.subscribe([TOPIC])
            two.subscribe([TOPIC])
            await until_shared_out(one)
            await asyncio.gather(two.poll(0))
            await until_shared_out(one, two)
            today = AsyncConsumer(
                bootstrap_servers=broker.bootstrap,
                group_id="assigned",
                partition_assignment_strategy="range",
                heartbeat_interval_ms=100,
            )
            async with today:
                today.subscribe([TOPIC])
                async with asyncio.timeout(PATIENCE_MS / 1000):
                    while True:
                        await asyncio.gather(today.poll(50), one.poll(50), two.poll(50))
                        shares = [set(today.assignment()), one.assignment(), two.assignment()]
                        if sorted(map(len, shares)) == [1, 1, 2] and len(set().union(*shares)) == 4:
                            break
            await until_shared_out(one, two)
            await two.close()
            await until_shared_out(one)


async def test_what_was_handled_is_committed_before_the_join_and_at_the_close(tmp_path: Path) -> None:
    async with cluster(tmp_path / "data") as broker:
        async with consumer(broker, auto_commit_interval_ms=3_600_000) as one:
            one.subscribe([TOPIC])
            found = await read(one, 20)
            await one.poll(0)  # all are handled
            async with consumer(broker) as two:
                two.subscribe([TOPIC])
                await until_shared_out(one, two)
                await produce(broker, range(20, 28))
                halves = await asyncio.gather(read(one, 4), read(two, 4))
                found += halves[0] + halves[1]
        assert sorted(found) == list(range(28)), "nothing came twice, nothing was left out"
        async with consumer(broker) as three:
            three.subscribe([TOPIC])
            await until_shared_out(three)
            offsets = await three.committed([TopicPartition(TOPIC, number) for number in range(4)])
            assert [place and place.offset for place in offsets.values()] == [7, 7, 7, 7]


async def test_a_commit_of_what_is_not_assigned_is_refused(tmp_path: Path) -> None:
    async with cluster(tmp_path / "data", records=0) as broker, consumer(broker) as one:
        with pytest.raises(IllegalStateError):
            await one.poll(0)
        with pytest.raises(IllegalStateError):
            await one.committed([])
        one.subscribe([TOPIC])
        with pytest.raises(IllegalStateError):
            one.subscribe([TOPIC])
        await until_shared_out(one)
        with pytest.raises(CommitFailedError):
            await one.commit({TopicPartition("other", 0): 1})
        with pytest.raises(IllegalStateError):
            one.seek(TopicPartition("other", 0), 1)
        one.wakeup()
        with pytest.raises(WakeupError):
            await one.poll(PATIENCE_MS)
        await produce(broker, range(8))
        assert sorted(await read(one, 8)) == list(range(8))


async def test_records_come_from_a_real_kafka_and_offsets_go_to_the_coordinator(
    tmp_path: Path, kafka_broker: KafkaBroker
) -> None:
    topic = f"read-beside-drafts-{uuid.uuid4().hex[:8]}"
    async with cluster(tmp_path / "data") as broker:
        for bootstrap in broker.bootstrap, kafka_broker.bootstrap:  # both have an id 1: they must be kept apart
            async with AsyncAdmin(bootstrap_servers=bootstrap) as admin:
                await admin.create_topics([NewTopic(topic, 2)])
        async with AsyncProducer(bootstrap_servers=kafka_broker.bootstrap) as producer:
            for number in range(10):
                await producer.send(topic, str(number).encode(), partition=number % 2)
        where = addresses(broker) | {"bootstrap_servers": kafka_broker.bootstrap}
        how: dict[str, Any] = {"group_id": "assigned", "auto_offset_reset": "earliest"}
        async with AsyncServerAssignedConsumer(where, **how) as one:
            one.subscribe([topic])
            assert sorted(await read(one, 10)) == list(range(10))
            await one.commit()
        async with AsyncAdmin(bootstrap_servers=broker.bootstrap) as admin:
            offsets = await admin.list_consumer_group_offsets("assigned")
        found = {partition: getattr(place, "offset", place) for partition, place in offsets.items()}
        assert found == {TopicPartition(topic, 0): 5, TopicPartition(topic, 1): 5}


async def test_records_come_from_a_kafka_that_wants_tls_and_a_password(
    tmp_path: Path, secure_kafka: SecureKafka
) -> None:
    """The coordinator, which supports neither, is contacted without them."""
    topic = f"read-secured-beside-drafts-{uuid.uuid4().hex[:8]}"
    async with cluster(tmp_path / "data") as broker:
        for bootstrap in broker.bootstrap, secure_kafka.address("PLAINTEXT"):
            async with AsyncAdmin(bootstrap_servers=bootstrap) as admin:
                await admin.create_topics([NewTopic(topic, 2)])
        async with AsyncProducer(bootstrap_servers=secure_kafka.address("PLAINTEXT")) as producer:
            for number in range(10):
                await producer.send(topic, str(number).encode(), partition=number % 2)
        where = addresses(broker) | {"bootstrap_servers": secure_kafka.address("BOTH")}
        how: dict[str, Any] = {
            "security_protocol": "SASL_SSL",
            "sasl_mechanism": "SCRAM-SHA-512",
            "sasl_username": "bob",
            "ssl_truststore_location": str(secure_kafka.certificates.path("ca")),
            "auto_offset_reset": "earliest",
        }
        async with AsyncServerAssignedConsumer(
            where, group_id="assigned", sasl_password=PASSWORDS["bob"], **how
        ) as one:
            one.subscribe([topic])
            assert sorted(await read(one, 10)) == list(range(10))
            await one.commit()
            partitions = [TopicPartition(topic, number) for number in range(2)]
            found = await one.committed(partitions)
            assert [place and place.offset for place in found.values()] == [5, 5]
        async with AsyncServerAssignedConsumer(where, group_id="assigned", sasl_password="hush", **how) as one:
            one.subscribe([topic])
            with pytest.raises(AuthenticationError, match="the broker refused SCRAM-SHA-512"):
                await read(one, 1)


async def test_an_auto_commit_does_not_undo_a_commit_of_the_caller(tmp_path: Path) -> None:
    partition = TopicPartition(TOPIC, 0)
    many: dict[str, Any] = {"auto_commit_interval_ms": 3_600_000}
    async with cluster(tmp_path / "data", partitions=1, records=10) as broker, consumer(broker, **many) as one:
        one.subscribe([TOPIC])
        assert await read(one, 10) == list(range(10))
        await one.commit({partition: 7})
        async with consumer(broker) as two:  # the rebalance commits what is handled: up to that offset
            two.subscribe([TOPIC])
            before = one.group_metadata().generation_id
            async with asyncio.timeout(PATIENCE_MS / 1000):
                while one.group_metadata().generation_id <= before:  # and is not polled, so its records are not handled
                    await two.poll(50)
            place = (await two.committed([partition]))[partition]
            assert place is not None
            assert place.offset >= 7


@pytest.mark.parametrize(
    ("group", "strategy"), [("assigned", "sticky"), ("assigned", "mine"), ("of-todays-kafka", "range")]
)
async def test_what_the_coordinator_does_not_assign_is_an_error(tmp_path: Path, group: str, strategy: str) -> None:
    settings = {"partition_assignment_strategy": strategy}
    async with cluster(tmp_path / "data") as broker, consumer(broker, group, **settings) as one:
        one.subscribe([TOPIC])
        for _ in range(2):  # polling again tries again
            with pytest.raises(KafkaError, match=r"server\.assigned\.groups") as failure:
                await read(one, 1)
            assert failure.value.code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


async def test_iteration_ends_with_the_close(tmp_path: Path) -> None:
    async with cluster(tmp_path / "data") as broker:
        one = consumer(broker)
        one.subscribe([TOPIC])
        assert {int((await anext(one)).value or b"") for _ in range(20)} == set(range(20))
        rest = asyncio.ensure_future(anext(one))
        await asyncio.sleep(0)
        await one.close()
        with pytest.raises(StopAsyncIteration):
            await rest


async def test_the_blocking_face_does_the_same(tmp_path: Path) -> None:
    def use(settings: dict[str, str]) -> list[int]:
        with ServerAssignedConsumer(settings, group_id="assigned", auto_offset_reset="earliest") as one:
            one.subscribe([TOPIC])
            found = [int(next(one).value or b"") for _ in range(20)]
            assert one.state is ServerAssignedState.STABLE
            assert len(one.assignment()) == 4
            partition = TopicPartition(TOPIC, 1)
            one.commit()
            assert one.position(partition) == 5
            place = one.committed([partition])[partition]
            assert place is not None
            assert place.offset == 5
            one.seek(partition, 4)
            deadline = monotonic_ms() + PATIENCE_MS
            while not (records := one.poll(1_000)):
                assert monotonic_ms() < deadline
            assert [record.value for record in records[partition]] == [b"17"]
            one.wakeup()
            with pytest.raises(WakeupError):
                one.poll(PATIENCE_MS)
        return found

    async with cluster(tmp_path / "data") as broker:
        assert sorted(await asyncio.to_thread(use, addresses(broker))) == list(range(20))


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"group_id": "g"},
        {"coordinator_servers": "localhost:1"},
        {"group_id": "g", "coordinator_servers": "localhost"},
        {"group_id": "g", "coordinator_servers": 1},
        {"group_id": "g", "coordinator_servers": "localhost:1", "group_instance_id": "one"},
        {"group_id": "g", "coordinator_servers": "localhost:1", "partition_assignment_strategy": "range,roundrobin"},
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        AsyncServerAssignedConsumer(settings)
