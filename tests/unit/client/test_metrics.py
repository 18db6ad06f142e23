"""What `metrics()` reports: Kafka's names, with values of what really happened."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster import AsyncConsumer, AsyncProducer, Consumer, Producer
from muster.client.metrics import MetricName, Metrics, of_consumer
from muster.client.net.measures import WINDOW_MS, Measures, RecordCounts, SampleWindow
from muster.errors import KafkaError
from muster.model import TopicPartition
from tests.support.brokers import beside, running


@given(st.lists(st.tuples(st.integers(0, 40_000), st.integers(0, 100)), min_size=1), st.integers(0, 100_000))
def test_a_window_has_the_last_half_to_whole_minute(steps: list[tuple[int, int]], later: int) -> None:
    window, now, added = SampleWindow(), 0, []
    for wait, value in steps:
        now += wait
        window.add(value, now)
        added.append((now, value))
    now += later
    average, most = window.average(now), window.maximum(now)
    sure = [value for at, value in added if now - at < WINDOW_MS]
    maybe = [value for at, value in added if now - at < 2 * WINDOW_MS]
    assert (average is None) == (most is None)
    if sure:
        assert most is not None
        assert most >= max(sure)
    if most is None:
        assert not sure
    else:
        assert most in maybe
    assert sum(sure) / 60 <= window.rate(now) + 1e-9
    assert window.rate(now) <= sum(maybe) / 30 + 1e-9


def test_an_average_and_a_rate() -> None:
    window = SampleWindow()
    assert (window.average(5), window.maximum(5), window.rate(5)) == (None, None, 0)
    window.add(10, 1_000)
    window.add(20, 31_000)
    assert (window.average(32_000), window.maximum(32_000)) == (15, 20)
    assert window.rate(60_000) == pytest.approx(30 / 59, rel=0.02)
    assert (window.average(70_000), window.maximum(70_000)) == (20, 20)
    assert window.average(200_000) is None


def test_requests_and_records() -> None:
    measures, records = Measures(), RecordCounts()
    measures.answered("FetchRequest", 1_000, 1_030)
    measures.answered("FetchRequest", 2_000, 2_010)
    found = measures.requests["FetchRequest"]
    assert (found.answered, found.sent_at, found.took_ms.average(2_010)) == (2, 2_000, 20)
    records.add({TopicPartition("a", 0): [1, 2], TopicPartition("a", 1): [3], TopicPartition("b", 0): [4]}, 0)
    records.add({TopicPartition("b", 0): [5]}, 1)
    assert (records.total, records.by_topic) == (5, {"a": 3, "b": 2})


def test_a_number_is_found_by_its_name() -> None:
    tags = (("client-id", "c"),)
    metrics = Metrics(
        {
            MetricName("g", "total", tags): 1,
            MetricName("g", "total", (*tags, ("topic", "t"))): 2,
            MetricName("g", "twice", tags): 3,
            MetricName("h", "twice", tags): 4,
        }
    )
    assert metrics.value("total") == 1
    assert metrics.value("total", topic="t") == 2
    assert metrics.value("total", client_id="c") == 1
    assert metrics.value("twice", "h") == 4
    for wanted in (("twice",), ("none",), ("total", "h")):
        with pytest.raises(KeyError):
            metrics.value(*wanted)
    with pytest.raises(KeyError):
        metrics.value("total", client_id="other")


async def test_an_async_client_counts_what_it_does(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        async with AsyncProducer(bootstrap_servers=broker.bootstrap, linger_ms=5) as producer:
            assert producer.metrics().value("record-send-total") == 0
            for number in range(30):
                await producer.send("t", b"%d" % number, partition=0)
            with pytest.raises(KafkaError):
                await producer.send("t", b"x" * 2_000_000)
            await producer.flush()
            sent = producer.metrics()
        assert sent.value("record-send-total") == sent.value("record-acknowledged-total") == 30
        assert sent.value("record-send-total", topic="t") == 30
        assert sent.value("record-error-total") == sent.value("record-retry-total") == 0
        assert sent.value("buffer-available-bytes") == sent.value("buffer-total-bytes") == 32 * 1024 * 1024
        assert sent.value("request-total") >= 1
        assert sent.value("request-latency-avg") <= sent.value("request-latency-max")
        assert sent.value("connection-count") >= 1
        assert {name.group for name in sent} == {"producer-metrics", "producer-topic-metrics"}
        settings = {"bootstrap_servers": broker.bootstrap, "group_id": "g", "auto_offset_reset": "earliest"}
        async with AsyncConsumer(settings, client_id="reader", heartbeat_interval_ms=50) as consumer:
            before = consumer.metrics()
            assert before.value("records-consumed-total") == before.value("rebalance-total") == 0
            with pytest.raises(KeyError):
                before.value("records-lag-max")
            consumer.subscribe(["t"])
            read = 0
            while read < 20:
                read += sum(map(len, (await consumer.poll(1_000, max_records=20)).values()))
            await consumer.commit()
            while not consumer.metrics().value("heartbeat-total"):
                await asyncio.sleep(0.01)
            found = consumer.metrics()
            assert consumer.current_lag(TopicPartition("t", 0)) == found.value("records-lag-max") == 30 - read
            assert found.value("records-lag", topic="t", partition="0") == 30 - read
            lags = {TopicPartition("t", number): lag for number, lag in enumerate((3, 7, 5))}
            of_several = of_consumer(consumer._core, consumer._driver, RecordCounts(), lags, 0)
            assert of_several.value("records-lag-max") == 7
    assert found.value("records-consumed-total") == found.value("records-consumed-total", topic="t") >= read
    assert found.value("records-consumed-rate") > 0
    assert found.value("bytes-fetched-total") > 100
    assert found.value("fetch-total") >= 1
    assert found.value("fetch-latency-avg") >= 0
    assert found.value("commit-total") == 1
    assert found.value("commit-latency-max") >= 0
    assert (found.value("rebalance-total"), found.value("failed-rebalance-total")) == (1, 0)
    assert 0 <= found.value("last-heartbeat-seconds-ago") < 100
    assert 0 <= found.value("last-rebalance-seconds-ago") < 100
    assert 0 <= found.value("last-poll-seconds-ago") < 100
    assert found.value("assigned-partitions") == 1
    assert found.value("join-total") == 2
    assert all(("client-id", "reader") in name.tags for name in found)


def test_a_blocking_client_tells_the_same(tmp_path: Path) -> None:
    with beside(tmp_path) as bootstrap:
        with Producer(bootstrap_servers=bootstrap) as producer:
            producer.send_and_wait("t", b"a")
            names = set(producer.metrics())
            assert producer.metrics().value("record-acknowledged-total") == 1
        assert producer.metrics().value("connection-count") == 0
        with Consumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest", client_id="c") as consumer:
            consumer.assign([TopicPartition("t", 0)])
            next(consumer)
            found = consumer.metrics()
    assert MetricName("producer-metrics", "record-send-total", (("client-id", ""),)) in names
    assert found.value("records-consumed-total") == 1
    assert not [name for name in found if name.group == "consumer-coordinator-metrics"], "it is in no group"
