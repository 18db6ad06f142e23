"""`muster serve` as an operator runs it."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from muster.errors import MusterError
from muster.model import GROUP_METADATA_TOPIC
from muster.protocol import messages as m
from muster.protocol.primitives import ZERO_UUID
from tests.support import brokers
from tests.support.brokers import BrokerProcess, RawClient, topic_of
from tests.support.written import build_batch


def create(client: RawClient, *topics: m.CreatableTopic) -> list[m.CreatableTopicResult]:
    found: list[m.CreatableTopicResult] = client.ask(m.CreateTopicsRequest(list(topics), 10_000), 7).topics
    return found


def test_topics_survive_kill_9(muster_process: BrokerProcess) -> None:
    settings = [m.CreatableTopicConfig("retention.ms", "12345")]
    with RawClient(muster_process.bootstrap) as client:
        [kept] = create(client, m.CreatableTopic("kept", 3, 1, [], settings))
        create(client, m.CreatableTopic("dropped", 1, 1))
        client.ask(m.DeleteTopicsRequest([m.DeleteTopicState("dropped")], [], 1000), 6)
        before = client.ask(m.MetadataRequest(None), 12)
    muster_process.kill()
    muster_process.start()
    with RawClient(muster_process.bootstrap) as client:
        assert client.ask(m.MetadataRequest(None), 12) == before
        assert [topic.topic_id for topic in before.topics] == [kept.topic_id]
        described = client.ask(m.DescribeConfigsRequest([m.DescribeConfigsResource(2, "kept", ["retention.ms"])]), 4)
        assert described.results[0].configs[0].value == "12345"
    assert not list(muster_process.folder.glob("dropped-*"))


def test_a_topic_that_is_created_again_is_another(muster_process: BrokerProcess) -> None:
    with RawClient(muster_process.bootstrap) as client:
        [first] = create(client, m.CreatableTopic("again", 1, 1))
        client.ask(m.DeleteTopicsRequest([m.DeleteTopicState("again")], [], 1000), 6)
        [second] = create(client, m.CreatableTopic("again", 1, 1))
        assert first.topic_id != second.topic_id


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_it_properly(muster_process: BrokerProcess, number: signal.Signals) -> None:
    with RawClient(muster_process.bootstrap) as client:
        create(client, m.CreatableTopic("t", 1, 1))
        fetch = [m.FetchTopic("t", partitions=[m.FetchPartition(0, partition_max_bytes=1)])]
        client.send(m.FetchRequest(max_wait_ms=3_600_000, min_bytes=1, topics=fetch), 11)
        os.kill(muster_process.pid, number)
        assert client.closed()
    assert muster_process.stop() == 0, "a fetch that waits must not hold the broker up"
    assert "Traceback" not in muster_process.log()


def test_the_folder_is_locked(muster_process: BrokerProcess) -> None:
    command = [
        sys.executable,
        "-m",
        "muster",
        "serve",
        "--port",
        "0",
        "--data-dir",
        str(muster_process.folder),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 1
    assert "is in use by another process" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_port_is_taken(muster_process: BrokerProcess, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "muster", "serve", "--port", str(muster_process.port)]
    command += ["--data-dir", str(tmp_path / "other")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 1
    assert f"cannot listen on 127.0.0.1:{muster_process.port}" in done.stderr
    assert "Traceback" not in done.stderr


async def test_the_partitions_of_the_groups_cannot_be_changed(tmp_path: Path) -> None:
    async with brokers.running(tmp_path / "data", {"offsets.topic.num.partitions": 3}) as broker:
        assert broker.groups.ensure()
    with pytest.raises(MusterError, match="has 3 partitions"):
        async with brokers.running(tmp_path / "data", {"offsets.topic.num.partitions": 4}):
            pass
    async with brokers.running(tmp_path / "data") as broker:
        topic = topic_of(broker, GROUP_METADATA_TOPIC)
        assert topic.partitions == 3


@pytest.mark.parametrize("fsync", ["interval", "always", "never"])
async def test_a_fetch_is_woken_by_a_produce(tmp_path: Path, fsync: str) -> None:
    def wait(bootstrap: str) -> m.FetchResponse:
        with RawClient(bootstrap) as reader, RawClient(bootstrap) as writer:
            writer.ask(m.MetadataRequest([m.MetadataRequestTopic(name="t")]), 9)
            asked = [m.FetchTopic("t", partitions=[m.FetchPartition(0, partition_max_bytes=1000)])]
            reader.send(m.FetchRequest(max_wait_ms=3_600_000, min_bytes=1, topics=asked), 11)
            data = m.PartitionProduceData(0, bytes(build_batch([(1, b"k", b"v", [])])))
            writer.ask(m.ProduceRequest(None, -1, 1000, [m.TopicProduceData("t", ZERO_UUID, [data])]), 9)
            return reader.receive(m.FetchRequest, 11)

    async with brokers.running(tmp_path / "data", {"fsync": fsync}) as broker:
        answer = await brokers.in_thread(wait, broker.bootstrap)
        assert answer.responses[0].partitions[0].high_watermark == 1


@pytest.mark.parametrize("fsync", ["interval", "always", "never"])
async def test_records_that_nobody_waits_for_can_be_read_soon(tmp_path: Path, fsync: str) -> None:
    """acks=0: there is no other Produce whose sync they could share."""

    def write_and_read(bootstrap: str) -> int:
        with RawClient(bootstrap) as client:
            client.ask(m.MetadataRequest([m.MetadataRequestTopic(name="t")]), 9)
            data = m.PartitionProduceData(0, bytes(build_batch([(1, b"k", b"v", [])])))
            client.send(m.ProduceRequest(None, 0, 1000, [m.TopicProduceData("t", ZERO_UUID, [data])]), 9)
            asked = [m.FetchTopic("t", partitions=[m.FetchPartition(0, partition_max_bytes=1000)])]
            fetched = client.ask(m.FetchRequest(max_wait_ms=60_000, min_bytes=1, topics=asked), 11)
            return int(fetched.responses[0].partitions[0].high_watermark)

    async with brokers.running(tmp_path / "data", {"fsync": fsync}) as broker:
        assert await brokers.in_thread(write_and_read, broker.bootstrap) == 1


def test_a_hangup_does_not_end_the_broker(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        os.kill(broker.pid, signal.SIGHUP)
        with RawClient(broker.bootstrap) as client:
            assert client.ask(m.MetadataRequest(), 12).brokers
        while "SIGHUP" not in broker.log():
            time.sleep(0.01)


def test_a_name_cannot_write_lines_of_its_own(tmp_path: Path) -> None:
    forged = "g\n2026-01-01 00:00:00,000 INFO muster.broker all is well \x1b[2J"
    with BrokerProcess(tmp_path / "data") as broker:
        with RawClient(broker.bootstrap) as client:
            protocols = [m.JoinGroupRequestProtocol("range", b"")]
            request = m.JoinGroupRequest(forged, 6_000, 6_000, "", None, "consumer", protocols)
            client.ask(request, 3, forged)
        assert "all is well" in broker.log()
        for line in broker.log().splitlines():
            assert line.isprintable()
            assert not line.startswith("2026-01-01")


def until_served(bootstrap: str) -> m.MetadataResponse:
    """Connect until the broker has noticed that descriptors are available again."""
    while True:
        try:
            with RawClient(bootstrap) as client:
                return client.ask(m.MetadataRequest(), 12)
        except (EOFError, ConnectionError):
            time.sleep(0.01)


def test_without_descriptors_connections_wait_and_the_log_stays_short(tmp_path: Path) -> None:
    script = 'ulimit -n 100; exec "$@"'
    with BrokerProcess(
        tmp_path / "data", {"offsets.topic.num.partitions": 1}, prefix=["sh", "-c", script, "sh"]
    ) as broker:
        with RawClient(broker.bootstrap) as client:
            held = [socket.create_connection(("127.0.0.1", broker.port)) for _ in range(150)]
            [topic] = client.ask(m.CreateTopicsRequest([m.CreatableTopic("t", 1, 1)], 20_000), 7).topics
            assert topic.error_code == 0, "some descriptors are kept for the logs"
            while "for the logs" not in broker.log():  # it accepts some at a time
                time.sleep(0.01)
            for one in held:
                one.close()
            assert until_served(broker.bootstrap).brokers
        assert len(broker.log().splitlines()) < 30
        assert "Traceback" not in broker.log()


@pytest.mark.slow
def test_consumers_that_do_not_read_leave_descriptors_to_others(tmp_path: Path) -> None:
    prefix = ["sh", "-c", 'ulimit -n 100; exec "$@"', "sh"]
    with BrokerProcess(
        tmp_path / "data", {"num.partitions": 12, "message.max.bytes": 2_000_000}, prefix=prefix
    ) as broker:
        with contextlib.ExitStack() as held, RawClient(broker.bootstrap) as client:
            [topic] = client.ask(m.CreateTopicsRequest([m.CreatableTopic("t", 12, 1)], 20_000), 7).topics
            assert topic.error_code == 0
            batch = bytes(build_batch([(1, None, bytes(1_000_000), [])]))
            for number in range(12):
                data = [m.TopicProduceData("t", partition_data=[m.PartitionProduceData(number, batch)])]
                client.ask(m.ProduceRequest(acks=1, timeout_ms=20_000, topic_data=data), 8)
            asked = [m.FetchPartition(number, fetch_offset=0, partition_max_bytes=2_000_000) for number in range(12)]
            request = m.FetchRequest(max_wait_ms=0, min_bytes=1, topics=[m.FetchTopic("t", partitions=asked)])
            # For each consumer some ranges of files wait, one for each partition that does not fit into the sockets.
            for _ in range(12):
                consumer = held.enter_context(RawClient(broker.bootstrap))
                consumer.send(request, 11)
                assert consumer.socket.recv(1)
            assert until_served(broker.bootstrap).brokers
            [topic] = client.ask(m.CreateTopicsRequest([m.CreatableTopic("u", 1, 1)], 20_000), 7).topics
            assert topic.error_code == 0
        assert all(" INFO " in line for line in broker.log().splitlines())


@pytest.mark.slow
def test_the_broker_takes_as_many_descriptors_as_it_may(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", prefix=["sh", "-c", 'ulimit -S -n 90; exec "$@"', "sh"]) as broker:
        soft, hard = resource.prlimit(broker.pid, resource.RLIMIT_NOFILE)
        assert soft == hard > 90
