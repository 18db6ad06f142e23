"""What a broker counts, and when it reports that it is unhealthy."""

from __future__ import annotations

import asyncio
import errno
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from muster.broker import monitor as module
from muster.broker.broker import PROBE, Broker
from muster.broker.groups.coordination import StandaloneCoordination
from muster.broker.monitor import Monitor
from muster.broker.operators import metrics as gathering
from muster.clock import wall_clock_ms
from muster.coordinator.groups import effects
from muster.coordinator.groups.shard import GroupCounts
from muster.log import Files
from muster.log.results import Traffic
from muster.metrics.families import value_of
from muster.protocol import messages as m
from muster.protocol.primitives import ZERO_UUID
from tests.support.brokers import RawClient, broker_config, in_thread
from tests.support.transaction_sides import TransactionSide
from tests.support.written import build_batch

NOW = wall_clock_ms()
READ = "kafka_server_brokertopicmetrics_"


class Disk(Files):
    """A disk that may be full."""

    full = False

    def pwrite(self, fd: int, data: bytes | bytearray | memoryview, position: int) -> int:
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().pwrite(fd, data, position)


class Watched:
    def __init__(self, folder: Path) -> None:
        self.disk = Disk()
        self.broker = Broker(broker_config(folder), self.disk)
        self.monitor = Monitor(self.broker, "127.0.0.1", 0)
        self.monitor.port.start()

    async def get(self, path: str) -> tuple[int, str]:
        return await asyncio.to_thread(self._get, path)

    def _get(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://{self.monitor.port.address}{path}", timeout=120) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    async def samples(self) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
        status, text = await self.get("/metrics")
        assert status == 200
        return {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }


@pytest.fixture
async def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Watched]:
    monkeypatch.setattr("muster.metrics.port.CACHE_S", 0)
    watched = Watched(tmp_path)
    async with watched.broker as broker:
        broker.changes.create_topic("t", 2, {})
        yield watched
    await asyncio.to_thread(watched.monitor.port.stop)


def labels(**given: str) -> frozenset[tuple[str, str]]:
    return frozenset(given.items())


def produce(records: int, topic: str = "t", partition: int = 0) -> m.ProduceRequest:
    data = bytes(build_batch([(NOW, None, b"value", [])] * records))
    part = m.PartitionProduceData(partition, data)
    return m.ProduceRequest(None, -1, 30_000, [m.TopicProduceData(topic, ZERO_UUID, [part])])


def fetch(*partitions: int, offset: int = 0, min_bytes: int = 1, max_wait_ms: int = 0) -> m.FetchRequest:
    wanted = [m.FetchPartition(index, fetch_offset=offset, partition_max_bytes=100_000) for index in partitions]
    return m.FetchRequest(max_wait_ms=max_wait_ms, min_bytes=min_bytes, topics=[m.FetchTopic("t", partitions=wanted)])


async def ask(watched: Watched, *requests: Any, version: int) -> Any:
    def all_of_them(bootstrap: str) -> list[Any]:
        with RawClient(bootstrap) as client:
            return [client.ask(request, version) for request in requests]

    return await in_thread(all_of_them, watched.broker.bootstrap)


async def test_records_and_bytes_are_counted(watched: Watched) -> None:
    sizes = [len(bytes(build_batch([(NOW, None, b"value", [])] * count))) for count in (3, 200)]
    await ask(watched, produce(3), produce(200, partition=1), version=11)  # the fast path, and the general one
    answers = await ask(watched, fetch(0, 1), fetch(0), fetch(1, offset=777), version=12)
    sent = sum(len(part.records) for part in answers[0].responses[0].partitions)
    assert sent == sum(sizes)
    found = await watched.samples()
    topic = labels(topic="t")
    for place in (topic, labels()):
        assert found[f"{READ}messagesin_total", place] == 203
        assert found[f"{READ}bytesin_total", place] == sum(sizes)
        assert found[f"{READ}bytesout_total", place] == sum(sizes) + sizes[0]
        assert found[f"{READ}totalproducerequests_total", place] == 2
        assert found[f"{READ}totalfetchrequests_total", place] == 4
        assert found[f"{READ}failedfetchrequests_total", place] == 1
        assert found[f"{READ}failedproducerequests_total", place] == 0
    second = labels(topic="t", partition="1")
    assert found["kafka_log_log_logendoffset", second] == 200
    assert found["kafka_log_log_logstartoffset", second] == 0
    assert found["kafka_log_log_size", second] == sizes[1]
    assert found["kafka_server_replicamanager_partitioncount", labels()] == 2


async def test_refused_batches_are_counted(watched: Watched) -> None:
    late = m.PartitionProduceData(0, bytes(build_batch([(NOW + 10 * 3_600_000, None, b"v", [])])))
    request = m.ProduceRequest(None, -1, 30_000, [m.TopicProduceData("t", ZERO_UUID, [late])])
    await ask(watched, request, produce(1, "nothing"), version=11)
    found = await watched.samples()
    assert found[f"{READ}failedproducerequests_total", labels(topic="t")] == 1
    assert found[f"{READ}totalproducerequests_total", labels()] == 1


async def test_bytes_of_a_fetch_that_waits_count_once(watched: Watched) -> None:
    (size,) = [len(bytes(build_batch([(NOW, None, b"value", [])])))]
    await ask(watched, produce(1), fetch(0, min_bytes=size + 1, max_wait_ms=1), version=11)
    assert (await watched.samples())[f"{READ}bytesout_total", labels(topic="t")] == size


async def test_totals_do_not_shrink_when_a_topic_is_deleted(watched: Watched) -> None:
    await ask(watched, produce(5), version=11)
    before = await watched.samples()
    await ask(watched, m.DeleteTopicsRequest(topic_names=["t"], timeout_ms=30_000), version=5)
    found = await watched.samples()
    assert (f"{READ}messagesin_total", labels(topic="t")) not in found
    for name in ("messagesin", "bytesin"):
        assert found[f"{READ}{name}_total", labels()] == before[f"{READ}{name}_total", labels()]


async def test_requests_are_counted_by_version_and_timed(watched: Watched) -> None:
    await ask(watched, produce(1), produce(1), produce(100), version=11)
    await ask(watched, fetch(0), version=12)
    await ask(watched, fetch(0), version=11)
    found = await watched.samples()
    start = "kafka_network_requestmetrics_"
    assert found[f"{start}requests_total", labels(request="Produce", version="11")] == 3
    assert found[f"{start}requests_total", labels(request="Fetch", version="12")] == 1
    assert found[f"{start}requests_total", labels(request="Fetch", version="11")] == 1
    assert found[f"{start}totaltimems_count", labels(request="Produce")] == 3
    assert found[f"{start}totaltimems_bucket", labels(request="Fetch", le="+Inf")] == 2
    assert 0 < found[f"{start}totaltimems_sum", labels(request="Produce")] < 30_000


async def test_a_request_that_waits_is_timed_to_its_answer(watched: Watched) -> None:
    await ask(watched, fetch(0, max_wait_ms=120), version=12)
    found = await watched.samples()
    assert found["kafka_network_requestmetrics_totaltimems_sum", labels(request="Fetch")] >= 100


async def test_groups_and_commits_are_counted(watched: Watched) -> None:
    offsets = [m.OffsetCommitRequestPartition(number, 7) for number in (0, 1)]
    topics = [m.OffsetCommitRequestTopic("t", partitions=offsets)]
    with_words = [m.OffsetCommitRequestTopic("t", partitions=[m.OffsetCommitRequestPartition(0, 8, -1, "words")])]
    find = m.FindCoordinatorRequest(coordinator_keys=["g"])
    await ask(watched, find, version=4)
    requests = [m.OffsetCommitRequest("g", topics=some) for some in (topics, topics, with_words)]
    await ask(watched, *requests, version=9)
    found = await watched.samples()
    start = "kafka_server_group_coordinator_metrics_"
    assert found[f"{start}offset_commit_count", labels()] == 5
    assert found[f"{start}offset_count", labels()] == 2
    assert found[f"{start}classic_group_count", labels(state="Empty")] == 1
    assert found["kafka_coordinator_group_groupmetadatamanager_numgroups", labels()] == 1
    await ask(watched, m.DeleteTopicsRequest(topic_names=["t"], timeout_ms=30_000), version=5)
    assert (await watched.samples())[f"{start}offset_deletion_count", labels()] == 2


async def test_connections_are_counted(watched: Watched) -> None:
    await ask(watched, fetch(0), version=12)
    with RawClient(watched.broker.bootstrap):
        found = await watched.samples()
    start = "kafka_server_socket_server_metrics_connection_"
    assert [found[f"{start}{name}", labels()] for name in ("count", "creation_total", "close_total")] == [1, 2, 1]


async def test_rebalances_are_counted_by_events(watched: Watched) -> None:
    watched.monitor._count(effects.RebalanceCompleted("g", 1, 2, 3, None, None))
    found = await watched.samples()
    assert found["kafka_server_group_coordinator_metrics_group_completed_rebalance_count", labels()] == 1
    assert found["muster_group_events_total", labels(event="RebalanceCompleted")] == 1


def test_groups_in_all_states() -> None:
    counts = GroupCounts()
    counts.offsets_expired = 4
    found = gathering.groups_counted({"Stable": 2, "Empty": 1}, 9, counts, {effects.MemberFenced: 3})
    start = "kafka_server_group_coordinator_metrics_"
    assert value_of(found, f"{start}group_count", protocol="classic") == 3
    assert value_of(found, f"{start}classic_group_count", state="Stable") == 2
    assert value_of(found, f"{start}classic_group_count", state="PreparingRebalance") == 0
    assert value_of(found, "kafka_coordinator_group_groupmetadatamanager_numgroupsempty") == 1
    assert value_of(found, f"{start}offset_expiration_count") == 4
    assert value_of(found, "muster_group_events_total", event="MemberFenced") == 3


def test_traffic_adds_up() -> None:
    one, other = Traffic(), Traffic()
    for number, name in enumerate(Traffic.__slots__, 1):
        setattr(one, name, number)
        setattr(other, name, 100 * number)
    one.add(other)
    assert [getattr(one, name) for name in Traffic.__slots__] == [101 * n for n in range(1, len(Traffic.__slots__) + 1)]


@pytest.mark.interpreted
async def test_health_while_groups_are_loaded(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    assert await watched.get("/healthz") == (200, "serving\n")
    monkeypatch.setattr(type(watched.broker.groups.runtime), "is_loading", property(lambda self: True))
    assert await watched.get("/healthz") == (503, "groups are being loaded\n")


async def test_health_says_that_the_disk_is_full_until_it_takes_data(watched: Watched) -> None:
    watched.disk.full = True
    assert (await watched.get("/healthz"))[0] == 200, "no record was refused yet"
    await ask(watched, produce(1), version=11)
    status, text = await watched.get("/healthz")
    assert (status, text) == (
        503,
        "the data folder is not writable: No space left on device (1 partitions refused records)\n",
    )
    watched.disk.full = False
    assert await watched.get("/healthz") == (200, "serving\n")
    assert not list(watched.broker.config.data_dir.glob(f"{PROBE}*"))


async def test_health_while_zookeeper_does_not_answer(watched: Watched) -> None:
    class InDoubt(StandaloneCoordination):
        def may_serve(self) -> bool:
            return False

    before, watched.broker.coordination = watched.broker.coordination, InDoubt.__new__(InDoubt)
    try:
        assert await watched.get("/healthz") == (503, "ZooKeeper does not answer: groups are waiting for it\n")
    finally:
        watched.broker.coordination = before
    assert (await watched.get("/healthz"))[0] == 200


async def test_health_of_one_that_is_not_registered(watched: Watched) -> None:
    class Among:
        is_registered = False
        lost = asyncio.Event()

    watched.broker._zookeeper = Among()  # type: ignore[assignment]
    try:
        assert (await watched.get("/healthz"))[1] == "it is not registered in ZooKeeper: other brokers do not see it\n"
        Among.is_registered = True
        assert (await watched.get("/healthz"))[0] == 200
        Among.lost.set()
        assert await watched.get("/healthz") == (503, "it has failed and is stopping\n")
    finally:
        watched.broker._zookeeper = None


async def test_before_the_start_and_after_the_end(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    try:
        assert await watched.get("/healthz") == (503, "it is starting, or stopping\n")
        assert (await watched.samples())["kafka_server_kafkaserver_brokerstate", labels()] == 1
        assert (await watched.get("/metrics"))[1].count("kafka_") == 3
    finally:
        watched.monitor.port.stop()


async def test_a_loop_that_is_busy_is_said_to_be(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATIENCE_S", 0.02)
    with ThreadPoolExecutor(2) as pool:
        asking = [pool.submit(watched._get, path) for path in ("/metrics", "/healthz")]
        answers = [each.result() for each in asking]  # the loop is busy until both are answered
    assert answers == [(503, "it is busy: no answer within 0.02 s\n")] * 2


async def test_work_that_fails_after_its_caller_has_given_up(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATIENCE_S", 0.02)
    unexpected: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: unexpected.append(context))

    def fail(done: object) -> None:
        raise ValueError("too late")

    with ThreadPoolExecutor(1) as pool:
        asking: Future[None] = pool.submit(watched.monitor._on_loop, fail)
        with pytest.raises(module.BusyError):
            asking.result()  # the loop is busy until then
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not unexpected


async def test_transactions_are_counted(watched: Watched) -> None:
    coordinator = watched.broker.transactions
    assert coordinator is not None
    coordinator.runtime.config.transaction_abort_timed_out_transaction_cleanup_interval_ms = 20
    place = labels(topic="t", partition="0")

    def begin(bootstrap: str, name: str, timeout_ms: int, at_ms: int = 1000, *, ends: bool = False) -> None:
        with RawClient(bootstrap) as client:
            client.ask(m.FindCoordinatorRequest(key_type=1, coordinator_keys=[name]), 4)
            side = TransactionSide(client, "t", name)
            side.take(side.settled(lambda: side.init(timeout_ms=timeout_ms)))
            assert not side.produce(12, at_ms=at_ms).error_code
            assert not ends or not side.end(True, 5).error_code

    async def seen(**states: int) -> dict[Any, float]:
        async with asyncio.timeout(120):
            while True:
                found = await watched.samples()
                if all(found[("muster_transactional_ids", labels(state=name))] == n for name, n in states.items()):
                    return found
                await asyncio.sleep(0.01)

    before = await watched.samples()
    assert before["muster_transactional_ids", labels(state="Ongoing")] == 0
    assert before["kafka_cluster_partition_laststableoffsetlag", place] == 0
    assert ("muster_log_open_transactions", place) not in before
    await in_thread(
        lambda bootstrap: begin(bootstrap, "fresh", 60_000, int(time.time() * 1000)), watched.broker.bootstrap
    )
    found = await seen(Ongoing=1)
    assert found["kafka_server_replicamanager_partitionswithlatetransactionscount", labels()] == 0
    await in_thread(lambda bootstrap: begin(bootstrap, "fresh", 60_000, ends=True), watched.broker.bootstrap)
    await seen(CompleteAbort=0, CompleteCommit=1)
    await in_thread(lambda bootstrap: begin(bootstrap, "slow", 60_000), watched.broker.bootstrap)
    found = await seen(Ongoing=1, CompleteAbort=0)
    assert found["kafka_cluster_partition_laststableoffsetlag", place] == 1
    assert found["muster_log_open_transactions", place] == 1
    assert found["kafka_server_replicamanager_partitionswithlatetransactionscount", labels()] == 1, "its time is 1970"
    assert found["muster_transaction_markers_outstanding", labels()] == 0
    assert found["muster_transaction_markers_refused", labels()] == 0
    assert found["muster_transactions_timed_out_total", labels()] == 0
    await in_thread(lambda bootstrap: begin(bootstrap, "short", 1), watched.broker.bootstrap)
    found = await seen(Ongoing=1, CompleteAbort=1)
    assert found["muster_transactions_timed_out_total", labels()] == 1
    assert found["muster_log_open_transactions", place] == 1
