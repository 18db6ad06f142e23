"""The metrics of a broker or coordinator: families of samples, read from its parts.

The parts count with plain additions; this file reads the counters on request. The functions only read the parts. With
many partitions this is done a slice at a time (`Steps`).

Names: `muster.metrics.families`. Kafka metrics that mean nothing here, such as those of replication, are left out,
except those that dashboards expect (UnderReplicatedPartitions).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence

from muster.broker.net.calls import Api
from muster.broker.net.connections import Connections
from muster.coordinator.groups import effects
from muster.coordinator.groups.shard import GroupCounts
from muster.coordinator.runtime import CoordinatorRuntime
from muster.log import PartitionLog, Traffic
from muster.metrics.families import Family, MetricType, counter, gauge

SLICE = 500
"""How many logs or groups are read in one slice."""

LATE_BUFFER_MS = 300_000
"""How long after `transaction.max.timeout.ms` an open transaction counts as late (Kafka's
LATE_TRANSACTION_BUFFER_MS)."""

Steps = Generator[None, None, list[Family]]

STATES = ("PreparingRebalance", "CompletingRebalance", "Stable", "Dead", "Empty")

_STARTING, _RUNNING = 1, 3
"""Kafka's BrokerState."""

_COORDINATOR = "kafka_server_group_coordinator_metrics_"
_MANAGER = "kafka_coordinator_group_groupmetadatamanager_"
_TOPICS = "kafka_server_brokertopicmetrics_"


def of_state(started: bool, started_at: int | None, version: str) -> list[Family]:
    """Whether the process serves, and since when."""
    state = gauge("kafka_server_kafkaserver_brokerstate", "1 while it starts, 3 while it runs.")
    state.add(_RUNNING if started else _STARTING)
    found = [state, gauge("muster_info", "Always 1; the version is a label.").add(1, version=version)]
    if started_at is not None:
        text = "When it started serving, in seconds since the epoch."
        found.append(gauge("muster_started_timestamp_seconds", text).add(started_at / 1e3))
    return found


# --------------------------------------------------------------------------------------------------- requests


def of_requests(apis: Iterable[Api]) -> list[Family]:
    """Requests by API and version, and how long they took."""
    requests = counter("kafka_network_requestmetrics_requests_total", "Requests by API and version.")
    took = Family(
        "kafka_network_requestmetrics_totaltimems",
        MetricType.HISTOGRAM,
        "Milliseconds from a request's last byte to its answer; for a fetch or a join this includes waiting.",
    )
    for api in {id(api): api for api in apis}.values():  # tables of two listeners may share some
        name = api.request.__name__.removesuffix("Request")
        for version, count in enumerate(api.counts):
            if count:
                requests.add(count, request=name, version=str(version))
        if api.latency is not None and api.latency.count:
            took.add(api.latency.seen(), request=name)
    return [requests, took]


def of_connections(connections: Connections) -> list[Family]:
    """The sockets of clients."""
    start = "kafka_server_socket_server_metrics_connection_"
    there, admitted = len(connections), connections.admitted
    return [
        gauge(f"{start}count", "Open client connections.").add(there),
        Family(f"{start}creation_total", MetricType.COUNTER, "Accepted connections.").add(admitted),
        Family(f"{start}close_total", MetricType.COUNTER, "Closed connections.").add(admitted - there),
        gauge("muster_unread_response_bytes", "Bytes of responses that clients have not read.").add(
            connections.unread_bytes
        ),
    ]


# --------------------------------------------------------------------------------------------------- logs


def of_logs(logs: Sequence[PartitionLog], former: Traffic, late_before_ms: int) -> Steps:
    """Sizes, offsets, traffic and open transactions of the partitions, and total traffic, including that of deleted
    partitions (`former`). A partition has a late transaction if the oldest open one had its last batch before
    `late_before_ms`."""
    text = "of each partition that this broker leads."
    size, segments = (
        gauge("kafka_log_log_size", f"Bytes {text}"),
        gauge("kafka_log_log_numlogsegments", f"Files {text}"),
    )
    start = gauge("kafka_log_log_logstartoffset", f"The first readable offset, {text}")
    end = gauge("kafka_log_log_logendoffset", f"The offset of the next record, {text}")
    unstable = gauge(
        "kafka_cluster_partition_laststableoffsetlag", f"Records that read_committed consumers wait for, {text}"
    )
    in_transactions = gauge("muster_log_open_transactions", "Open transactions of each partition that has some.")
    late = 0
    by_topic: dict[str, Traffic] = {}
    total = Traffic()
    total.add(former)
    for count, log in enumerate(logs, 1):
        place = {"topic": log.topic_partition.topic, "partition": str(log.topic_partition.partition)}
        size.add(log.size, **place)
        segments.add(len(log.segments), **place)
        start.add(log.log_start_offset, **place)
        end.add(log.log_end_offset, **place)
        high_watermark = log.high_watermark
        unstable.add(max(high_watermark - log.last_stable_offset, 0), **place)
        if open_ones := log.open_transactions():
            in_transactions.add(len(open_ones), **place)
            late += open_ones[0].last_timestamp < late_before_ms
        by_topic.setdefault(log.topic_partition.topic, Traffic()).add(log.traffic)
        total.add(log.traffic)
        if not count % SLICE:
            yield
    replicas = "kafka_server_replicamanager_"
    return [
        *of_traffic(total, by_topic),
        size,
        segments,
        start,
        end,
        unstable,
        in_transactions,
        gauge(f"{replicas}partitionswithlatetransactionscount", "Partitions with a late transaction.").add(late),
        gauge(f"{replicas}partitioncount", "Partitions that this broker has.").add(len(logs)),
        gauge(f"{replicas}leadercount", "Partitions that this broker leads.").add(len(logs)),
        gauge(f"{replicas}underreplicatedpartitions", "Always 0: a partition has one replica.").add(0),
    ]


_TRAFFIC: Mapping[str, tuple[str, Callable[[Traffic], int]]] = {
    "messagesin": ("Records written", lambda traffic: traffic.records_in),
    "bytesin": ("Bytes written", lambda traffic: traffic.bytes_in),
    "bytesout": ("Bytes fetched", lambda traffic: traffic.bytes_out),
    "totalproducerequests": (
        "Batches sent by producers and coordinators, one for each partition of a request",
        lambda traffic: traffic.appends + traffic.refused_appends,
    ),
    "totalfetchrequests": ("Reads, one for each partition of a fetch", lambda traffic: traffic.reads),
    "failedproducerequests": ("Batches rejected", lambda traffic: traffic.refused_appends),
    "failedfetchrequests": ("Reads rejected", lambda traffic: traffic.refused_reads),
}


def of_traffic(total: Traffic, by_topic: Mapping[str, Traffic]) -> list[Family]:
    """Traffic of each topic, and of all topics together (the sample without labels)."""
    found = []
    for name, (text, read) in _TRAFFIC.items():
        family = counter(f"{_TOPICS}{name}_total", f"{text}; without the label topic: in total.").add(read(total))
        for topic, traffic in by_topic.items():
            family.add(read(traffic), topic=topic)
        found.append(family)
    return found


# --------------------------------------------------------------------------------------------------- transactions


def of_transactions(states: Mapping[str, int], unmarked: int, refused: int, timed_out: int) -> list[Family]:
    """Transactional ids by state, and markers."""
    by_state = gauge("muster_transactional_ids", "Transactional ids in each state.")
    for state, count in states.items():
        by_state.add(count, state=state)
    return [
        by_state,
        counter("muster_transactions_timed_out_total", "Transactions aborted by their timeout.").add(timed_out),
        gauge("muster_transaction_markers_outstanding", "Markers of decided transactions, not written yet.").add(
            unmarked
        ),
        gauge("muster_transaction_markers_refused", "Markers that a partition permanently refuses.").add(refused),
    ]


# --------------------------------------------------------------------------------------------------- groups


def of_groups(runtime: CoordinatorRuntime, events: Mapping[type[effects.GroupEvent], int]) -> Steps:
    """Groups by state, committed offsets, and events."""
    states: Counter[str] = Counter()
    offsets = 0
    for shard in runtime.shards():
        for count, group in enumerate(list(shard.groups.values()), 1):
            states[group.listed().group_state] += 1
            if not count % SLICE:
                yield
        offsets += sum(len(parts) for topics in shard.offsets.by_group.values() for parts in topics.values())
        yield
    return groups_counted(states, offsets, runtime.counts, events)


def groups_counted(
    states: Mapping[str, int], offsets: int, counts: GroupCounts, events: Mapping[type[effects.GroupEvent], int]
) -> list[Family]:
    """The metrics of `of_groups`, from its counts."""
    total = sum(states.values())
    by_state = gauge(f"{_COORDINATOR}classic_group_count", "Classic groups in each state.")
    old = [gauge(f"{_MANAGER}numgroups", "Groups.").add(total), gauge(f"{_MANAGER}numoffsets", "Offsets.").add(offsets)]
    for state in STATES:
        number = states.get(state, 0)
        by_state.add(number, state=state)
        old.append(gauge(f"{_MANAGER}numgroups{state.lower()}", f"Groups in the state {state}.").add(number))
    return [
        gauge(f"{_COORDINATOR}group_count", "Groups by protocol.").add(total, protocol="classic"),
        by_state,
        gauge(f"{_COORDINATOR}offset_count", "Stored committed offsets.").add(offsets),
        _count("offset_commit", "Offsets committed.", counts.offsets_committed),
        _count("offset_expiration", "Offsets expired.", counts.offsets_expired),
        _count("offset_deletion", "Offsets deleted with their topics.", counts.offsets_deleted),
        _count("group_completed_rebalance", "Completed rebalances.", events.get(effects.RebalanceCompleted, 0)),
        *old,
        _of_events(events),
    ]


def _count(name: str, text: str, value: int) -> Family:
    return Family(f"{_COORDINATOR}{name}_count", MetricType.UNKNOWN, text).add(value)


def _of_events(events: Mapping[type[effects.GroupEvent], int]) -> Family:
    found = counter("muster_group_events_total", "Events of groups, by type (docs/reference/group-events.md).")
    for kind, count in sorted(events.items(), key=lambda item: item[0].__name__):
        found.add(count, event=kind.__name__)
    return found
