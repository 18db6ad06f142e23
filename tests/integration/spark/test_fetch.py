"""Reading fixed ranges as an executor does, while brokers stop and start, and records are deleted."""

from __future__ import annotations

import struct
import threading

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import AdminClient

from muster.client.config import ClientConfig
from muster.client.plain import cluster as clusters
from muster.client.plain.cluster import connect, disconnect
from muster.client.plain.fetch import DataLossError, FetchSettings, RangeReader
from muster.errors import KafkaConnectionError, KafkaError
from muster.model import OffsetAndMetadata, TopicPartition
from muster.spark.offsets import Claim
from muster.spark.source.batch import plan
from muster.spark.source.options import parse_options
from muster.spark.source.ranges import OffsetRange, ReadTask, read_range
from tests.support.brokers import BrokerProcess
from tests.support.faces import Cluster
from tests.support.queries import offsets

pytestmark = pytest.mark.slow


@pytest.fixture
def cluster(cluster):
    yield cluster
    disconnect()


def config(bootstrap, request_timeout_ms=30_000):
    return ClientConfig(bootstrap_servers=(bootstrap,), client_id="test", request_timeout_ms=request_timeout_ms)


def reader(bootstrap, topic, start, end, request_timeout_ms=30_000, **settings):
    chosen = FetchSettings(config(bootstrap, request_timeout_ms), **{"max_wait_ms": 50, **settings})
    return RangeReader(chosen, TopicPartition(topic, 0), start, end)


def in_batches(cluster, topic, count):
    """Write numbered records in batches of 500: a fetch returns at least one whole batch, however small it may be."""
    for start in range(0, count, 500):
        cluster.produce(topic, 500, partitions=1, start=start)


def test_exactly_a_range_is_read_in_small_fetches(cluster):
    topic = cluster.topic(1)
    in_batches(cluster, topic, 5000)
    found = reader(cluster.bootstrap, topic, 100, 4900, max_bytes=2000)
    batches = list(found.batches())
    assert offsets(batches) == list(range(100, 4900))
    assert len(batches) > 5
    assert b"".join(batches[0]["value"][:2].to_pylist()) == b"100101"
    assert connect(config(cluster.bootstrap))._free


def test_a_task_reads_one_range_after_the_other(cluster):
    topic = cluster.topic(2)
    for start in range(0, 5000, 500):
        cluster.produce(topic, 500, partitions=2, start=start)
    task = ReadTask([OffsetRange(topic, 1, 5, 2000), OffsetRange(topic, 0, 100, 101), OffsetRange(topic, 0, 7, 1500)])
    chosen = FetchSettings(config(cluster.bootstrap), max_wait_ms=50, max_bytes=2000)
    batches = read_range(chosen, task)
    first = [next(batches)]
    assert offsets([*first, *batches]) == [*range(5, 2000), 100, *range(7, 1500)]
    given_up = read_range(chosen, task)
    assert next(given_up).num_rows
    given_up.close()
    assert offsets(reader(cluster.bootstrap, topic, 7, 9).batches()) == [7, 8]


def test_a_reader_that_is_given_up_leaves_no_answer_behind(cluster):
    topic = cluster.topic(1)
    in_batches(cluster, topic, 5000)
    batches = reader(cluster.bootstrap, topic, 0, 5000, max_bytes=2000).batches()
    assert next(batches).num_rows
    batches.close()
    assert offsets(reader(cluster.bootstrap, topic, 7, 9).batches()) == [7, 8]


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_every_codec_and_headers(cluster, codec):
    topic = cluster.topic(1)
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "compression.type": codec, "linger.ms": 20})
    for number in range(300):
        producer.produce(
            topic, b"v" * 50, headers=[("n", str(number).encode()), ("none", None)] if number % 2 else None
        )
    producer.flush(300)
    found = reader(cluster.bootstrap, topic, 0, 300, columns=("offset", "headers"))
    rows = pa.Table.from_batches(found.batches()).to_pylist()
    assert rows[3]["headers"] == [{"key": "n", "value": b"3"}, {"key": "none", "value": None}]
    assert rows[2]["headers"] is None
    assert len(rows) == 300


def test_a_broker_that_is_restarted_costs_waiting_only(tmp_path):
    with BrokerProcess(tmp_path / "data") as broker:
        cluster = Cluster(broker.bootstrap)
        topic = cluster.topic(1)
        in_batches(cluster, topic, 3000)
        batches = reader(broker.bootstrap, topic, 0, 3000, max_bytes=1000, timeout_s=300).batches()
        found = offsets([next(batches)])
        broker.kill()
        restarted = threading.Timer(1.0, broker.start)
        restarted.start()
        found += offsets(batches)
        restarted.join()
        assert found == list(range(3000))
        disconnect()


def test_the_wait_for_a_broker_ends(monkeypatch):
    monkeypatch.setattr(clusters, "BACKOFF_S", 0.01)
    with pytest.raises(KafkaConnectionError, match=r"no answer within 0\.2 s"):
        list(reader("127.0.0.1:1", "t", 0, 1, request_timeout_ms=200, timeout_s=0.2).batches())
    disconnect()


def test_records_that_are_gone_fail_the_task_or_are_skipped(kafka_broker):
    cluster = Cluster(kafka_broker.bootstrap)
    topic = cluster.written(100, partitions=1)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    for future in admin.delete_records([Place(topic, 0, 40)]).values():
        future.result(300)
    with pytest.raises(DataLossError, match=r"offsets 10 to 39 .* are gone: .* begins at 40 .* failOnDataLoss"):
        list(reader(cluster.bootstrap, topic, 10, 100).batches())
    kept = reader(cluster.bootstrap, topic, 10, 100, fail_on_data_loss=False)
    assert offsets(kept.batches()) == list(range(40, 100))
    assert offsets(reader(cluster.bootstrap, topic, 10, 30, fail_on_data_loss=False).batches()) == []
    disconnect()


def test_a_log_that_ends_before_the_range_fails_the_task(cluster):
    topic = cluster.written(10, partitions=1)
    with pytest.raises(DataLossError, match="ends at offset 10"):
        list(reader(cluster.bootstrap, topic, 5, 12, timeout_s=0.5).batches())
    found = reader(cluster.bootstrap, topic, 5, 12, timeout_s=0.5, fail_on_data_loss=False)
    assert offsets(found.batches()) == [5, 6, 7, 8, 9]


def test_read_committed_skips_what_was_aborted(kafka_broker):
    cluster = Cluster(kafka_broker.bootstrap)
    topic = cluster.topic(1)
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": topic})
    producer.init_transactions(300)
    for number, end in enumerate([producer.commit_transaction, producer.abort_transaction] * 3):
        producer.begin_transaction()
        for _ in range(5):
            producer.produce(topic, struct.pack(">i", number), partition=0)
        producer.flush(300)
        end(300)
    settings = {"kafka.bootstrap.servers": cluster.bootstrap, "subscribe": topic}
    for isolation, expected in (("read_committed", [0, 2, 4]), ("read_uncommitted", [0, 1, 2, 3, 4, 5])):
        options = parse_options(settings | {"isolationLevel": isolation}, streaming=False)
        chosen = options.fetch_settings()
        claims = plan(connect(chosen.client), options)
        ((partition, claim),) = claims.items()
        found = pa.Table.from_batches(RangeReader(chosen, partition, *claim).batches())
        assert [struct.unpack(">i", value.as_py())[0] for value in found["value"]][::5] == expected
        assert len(found) == 5 * len(expected)
    disconnect()


def test_what_a_batch_reads(cluster):
    topic = cluster.written(20, partitions=2)
    zero, one = TopicPartition(topic, 0), TopicPartition(topic, 1)
    with cluster.consumer("sync", enable_auto_commit=False) as consumer:
        consumer.commit({zero: OffsetAndMetadata(4)})

    def planned(**more):
        given = {"bootstrap": cluster.bootstrap, "subscribe": topic, **more}
        return plan(connect(config(cluster.bootstrap)), parse_options(given, streaming=False))

    assert planned() == {zero: Claim(0, 10), one: Claim(0, 10)}
    assert planned(startingOffsets="committed", groupId=cluster.group) == {zero: Claim(4, 10), one: Claim(0, 10)}
    assert planned(startingOffsets=f'{{"{topic}":{{"0":3,"1":-2}}}}') == {zero: Claim(3, 10), one: Claim(0, 10)}
    both = f'{{"{topic}":{{"0":3,"1":-1}}}}'
    assert planned(endingOffsets=both) == {zero: Claim(0, 3), one: Claim(0, 10)}
    with pytest.raises(KafkaError, match="nowhere-to-be-found"):
        planned(subscribe="nowhere-to-be-found")
