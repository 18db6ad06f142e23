"""What `metrics()` of consumers and producers returns: numbers under Kafka's names where the meaning is the same.

A name comes with a group and tags, as in Kafka's `MetricName`. An unknown number, such as an average of
nothing, is left out. docs/reference/metrics.md lists them all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from muster.client.net.connection import ConnectionState
from muster.client.net.measures import Measures, RecordCounts, RequestStats
from muster.model import TopicPartition

if TYPE_CHECKING:
    from muster.client.core.consumer import ConsumerCore
    from muster.client.core.produce.producer import ProducerMetrics
    from muster.client.net.driver import Driver

CONSUMER = "consumer-metrics"
FETCHES = "consumer-fetch-manager-metrics"
COORDINATOR = "consumer-coordinator-metrics"
PRODUCER = "producer-metrics"
PRODUCER_TOPICS = "producer-topic-metrics"


class MetricName(NamedTuple):
    """The name of a number: `tags` are pairs, in the order of their names."""

    group: str
    name: str
    tags: tuple[tuple[str, str], ...] = ()


class Metrics(dict[MetricName, float]):
    """Numbers by their names."""

    def value(self, name: str, group: str | None = None, **tags: str) -> float:
        """The number of that name with these tags, and no other tags except `client-id`. A tag's hyphen is
        written as an underscore here.

        Raises:
            KeyError: there is none, or there are several in different groups.
        """
        wanted = {tag.replace("_", "-"): value for tag, value in tags.items()}
        found = [
            value
            for key, value in self.items()
            if key.name == name
            and group in (None, key.group)
            and {tag: text for tag, text in key.tags if tag != "client-id" or tag in wanted} == wanted
        ]
        if len(found) != 1:
            raise KeyError(f"{len(found)} numbers have the name {name} with the tags {wanted}")
        return found[0]


class _Collected:
    """Numbers of one client, as they are collected."""

    def __init__(self, client_id: str, now: int) -> None:
        self.found = Metrics()
        self.now = now
        self._client_id = client_id

    def add(self, group: str, name: str, value: float | None, **tags: str) -> None:
        if value is not None:
            all_tags = {"client-id": self._client_id, **tags}
            self.found[MetricName(group, name, tuple(sorted(all_tags.items())))] = float(value)

    def add_requests(self, group: str, requests: RequestStats | None, start: str, time: str) -> None:
        """The metrics `{start}-total`, `{start}-rate`, `{time}-avg` and `{time}-max`."""
        self.add(group, f"{start}-total", 0 if requests is None else requests.answered)
        if requests is not None:
            self.add(group, f"{time}-avg", requests.took_ms.average(self.now))
            self.add(group, f"{time}-max", requests.took_ms.maximum(self.now))

    def add_connections(self, group: str, driver: Driver) -> None:
        measures = driver.measures
        ready = [one for one in driver.connections if one.state is ConnectionState.READY]
        self.add(group, "connection-count", len(ready))
        self.add(group, "connection-creation-total", measures.made)
        self.add(group, "connection-close-total", measures.closed)
        kinds = list(measures.requests.values())
        self.add(group, "response-total", sum(kind.answered for kind in kinds))

    def add_sent_ago(self, group: str, name: str, requests: RequestStats | None) -> None:
        if requests is not None:
            self.add(group, name, (self.now - requests.sent_at) / 1_000)


def _of(measures: Measures, name: str) -> RequestStats | None:
    return measures.requests.get(f"{name}Request")


def of_consumer(
    core: ConsumerCore, driver: Driver, consumed: RecordCounts, lags: dict[TopicPartition, int], now: int
) -> Metrics:
    """A consumer's numbers; `lags` are those of its partitions, if known."""
    into = _Collected(core.config.client_id, now)
    into.add_connections(CONSUMER, driver)
    if core.polled_at is not None:
        into.add(CONSUMER, "last-poll-seconds-ago", (now - core.polled_at) / 1_000)
    _add_fetches(into, core, driver.measures, consumed, lags)
    if core.config.group_id is not None:
        _add_group(into, core, driver.measures)
    return into.found


def _add_fetches(
    into: _Collected, core: ConsumerCore, measures: Measures, consumed: RecordCounts, lags: dict[TopicPartition, int]
) -> None:
    into.add_requests(FETCHES, _of(measures, "Fetch"), "fetch", "fetch-latency")
    into.add(FETCHES, "records-consumed-total", consumed.total)
    into.add(FETCHES, "records-consumed-rate", consumed.window.rate(into.now))
    for topic, count in list(consumed.by_topic.items()):
        into.add(FETCHES, "records-consumed-total", count, topic=topic)
    if core.fetcher is not None:
        into.add(FETCHES, "bytes-fetched-total", core.fetcher.fetched_bytes)
    into.add(FETCHES, "records-lag-max", max(lags.values(), default=None))
    for partition, lag in lags.items():
        into.add(FETCHES, "records-lag", lag, topic=partition.topic, partition=str(partition.partition))


def _add_group(into: _Collected, core: ConsumerCore, measures: Measures) -> None:
    membership = core.group.membership
    into.add_requests(COORDINATOR, _of(measures, "OffsetCommit"), "commit", "commit-latency")
    into.add_requests(COORDINATOR, _of(measures, "JoinGroup"), "join", "join-time")
    into.add_requests(COORDINATOR, _of(measures, "SyncGroup"), "sync", "sync-time")
    beats = _of(measures, "Heartbeat")
    into.add_requests(COORDINATOR, beats, "heartbeat", "heartbeat-response-time")
    into.add_sent_ago(COORDINATOR, "last-heartbeat-seconds-ago", beats)
    into.add(COORDINATOR, "assigned-partitions", len(core.subscription.assignment()))
    into.add(COORDINATOR, "rebalance-total", membership.rebalances)
    into.add(COORDINATOR, "failed-rebalance-total", membership.failed_rebalances)
    if membership.rebalanced_at is not None:
        into.add(COORDINATOR, "last-rebalance-seconds-ago", (into.now - membership.rebalanced_at) / 1_000)


def of_producer(client_id: str, counted: ProducerMetrics, driver: Driver, room: tuple[int, int], now: int) -> Metrics:
    """A producer's numbers; `room` is the total size of its buffer, and how much of it is used."""
    into = _Collected(client_id, now)
    into.add_connections(PRODUCER, driver)
    requests = _of(driver.measures, "Produce")
    into.add(PRODUCER, "request-total", counted.requests)
    if requests is not None:
        into.add(PRODUCER, "request-latency-avg", requests.took_ms.average(now))
        into.add(PRODUCER, "request-latency-max", requests.took_ms.maximum(now))
    into.add(PRODUCER, "requests-in-flight", sum(one.load for one in driver.connections))
    into.add(PRODUCER, "record-send-total", counted.records_sent)
    into.add(PRODUCER, "record-error-total", counted.records_failed)
    into.add(PRODUCER, "record-retry-total", counted.records_retried)
    into.add(PRODUCER, "record-acknowledged-total", counted.records_acknowledged)
    into.add(PRODUCER, "batch-split-total", counted.splits)
    into.add(PRODUCER, "batch-total", counted.batches_sent)
    into.add(PRODUCER, "byte-total", counted.bytes_sent)
    if counted.batches_sent:
        into.add(PRODUCER, "batch-size-avg", counted.bytes_sent / counted.batches_sent)
    if counted.requests:
        into.add(PRODUCER, "records-per-request-avg", counted.records_sent / counted.requests)
    total, taken = room
    into.add(PRODUCER, "buffer-total-bytes", total)
    into.add(PRODUCER, "buffer-available-bytes", max(0, total - taken))
    for topic, count in list(counted.by_topic.items()):
        into.add(PRODUCER_TOPICS, "record-send-total", count, topic=topic)
    return into.found
