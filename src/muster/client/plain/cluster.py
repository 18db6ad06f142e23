"""Brokers, leaders and offsets by blocking calls: what planners and executors need to know about a cluster.

One `Cluster` is kept for each process and its settings (`connect`), so that tasks of a reused worker find its
connections open. Every request is repeated, at another broker if necessary, until its time is up: a restart of a broker
only makes a task wait. Of brokers that did not answer, the one that failed last is asked last: a broker that hangs uses
up a request's whole time.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from muster.client.config import ClientConfig, parse_address
from muster.client.core.metadata import metadata_request
from muster.client.core.offset_requests import fetch_answers, fetch_request, list_answers, list_request
from muster.client.core.refusals import should_retry_query
from muster.client.net.access import Access
from muster.client.plain.wire import PlainConnection
from muster.errors import (
    AuthenticationError,
    ErrorCode,
    KafkaConnectionError,
    KafkaError,
    MusterError,
    ProtocolError,
    error_code,
)
from muster.model import OffsetAndMetadata, TopicPartition
from muster.protocol.api import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from muster.protocol.messages import (
    DescribeGroupsRequest,
    FetchResponseLeaderIdAndEpoch,
    FetchResponseNodeEndpoint,
    FindCoordinatorRequest,
    ListGroupsRequest,
    ListOffsetsRequest,
    ListOffsetsResponse,
    MetadataRequest,
    MetadataResponse,
    OffsetFetchRequest,
)
from muster.protocol.primitives import ZERO_UUID

T = TypeVar("T")

BACKOFF_S, BACKOFF_MAX_S = 0.1, 1.0
_OFFSET_FETCH_BY_NAME = 7  # one group, topics by name


class RetriableError(MusterError):
    """A transient error: a leader that moved, a broker that is down. The caller tries again until time is up."""


@dataclass(frozen=True, slots=True)
class Leader:
    """The leader of a partition."""

    node_id: int
    epoch: int


class RetryTimer:
    """How long a call may be retried, with at least one retry: a broker that hangs takes up the whole first try.
    `reset` after progress."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self.reset()

    def reset(self) -> None:
        """Restart the clock: there was progress."""
        self._until = time.monotonic() + self._timeout_s
        self._backoff_s = BACKOFF_S
        self._tries = 0

    def pause(self, error: Exception) -> None:
        """Wait before the next try; raises KafkaConnectionError when there is no time left for one."""
        self._tries += 1
        if self._tries > 1 and time.monotonic() + self._backoff_s > self._until:
            raise KafkaConnectionError(f"no answer within {self._timeout_s:g} s: {error}") from error
        time.sleep(self._backoff_s)
        self._backoff_s = min(2 * self._backoff_s, BACKOFF_MAX_S)


class Cluster:
    """The brokers behind a list of addresses, used from one thread. A call may take as long as a request."""

    def __init__(self, config: ClientConfig) -> None:
        self._config = config
        self._access = Access(config)
        self._bootstrap = [parse_address(address) for address in config.bootstrap_servers]
        self._timeout_s = config.request_timeout_ms / 1000
        self._nodes: dict[int, tuple[str, int]] = {}
        self._leaders: dict[TopicPartition, Leader] = {}
        self._topic_ids: dict[str, bytes] = {}
        self._free: dict[tuple[str, int], PlainConnection] = {}
        self._failed_at: dict[tuple[str, int], float] = {}
        """When an address last failed, until it answers."""

    # --- connections -------------------------------------------------------------------------------------------------

    def take(self, node_id: int) -> PlainConnection:
        """A connection to a broker, for the caller alone until `give_back`. Raises RetriableError."""
        address = self._nodes.get(node_id)
        if address is None:
            raise RetriableError(f"broker {node_id} is not known")
        return self._take(address)

    def _take(self, address: tuple[str, int]) -> PlainConnection:
        kept = self._free.pop(address, None)
        if kept is not None:
            return kept
        try:
            return PlainConnection(*address, self._config, self._access)
        except OSError as error:
            self._failed_at[address] = time.monotonic()
            raise RetriableError(f"broker {address[0]}:{address[1]} cannot be reached: {error}") from error
        except AuthenticationError as error:
            if error.retriable:
                raise RetriableError(str(error)) from error
            raise

    def give_back(self, node_id: int, connection: PlainConnection) -> None:
        """Keep a connection for the next task; one that awaits an answer is closed instead."""
        self._keep(self._nodes.get(node_id), connection)

    def _keep(self, address: tuple[str, int] | None, connection: PlainConnection) -> None:
        if address is None or address in self._free or not connection.idle:
            connection.close()
        else:
            self._free[address] = connection

    def _ask(self, address: tuple[str, int], exchange: Callable[[PlainConnection], T]) -> T:
        reused = address in self._free
        connection = self._take(address)
        try:
            answer = exchange(connection)
        except (OSError, ProtocolError) as error:
            connection.close()
            if reused and not isinstance(error, TimeoutError):  # it may only have been idle for too long
                return self._ask(address, exchange)
            self._failed_at[address] = time.monotonic()
            raise RetriableError(f"broker {address[0]}:{address[1]} did not answer: {error}") from error
        except BaseException:
            connection.close()
            raise
        self._failed_at.pop(address, None)
        self._keep(address, connection)
        return answer

    def mark_failed(self, node_id: int) -> None:
        """A broker did not answer, or closed the connection."""
        address = self._nodes.get(node_id)
        if address is not None:
            self._failed_at[address] = time.monotonic()

    def _metadata_addresses(self) -> list[tuple[str, int]]:
        """The addresses to fetch metadata from, the bootstrap addresses after the known brokers (KIP-899)."""
        known = list(self._nodes.values())
        if not known or self._config.rebootstraps:
            known += self._bootstrap
        return sorted(dict.fromkeys(known), key=lambda address: self._failed_at.get(address, 0.0))

    def _retry(self, step: Callable[[], T]) -> T:
        retry = RetryTimer(self._timeout_s)
        while True:
            try:
                return step()
            except RetriableError as error:
                retry.pause(error)

    # --- metadata ----------------------------------------------------------------------------------------------------

    def topics(self, names: Iterable[str] | None = None) -> dict[str, list[int]]:
        """The partitions of the named topics, or of all but the internal ones.

        Raises:
            KafkaError: a named topic does not exist or is not visible to this client.
            KafkaConnectionError: no broker answered in time.
        """
        wanted = None if names is None else sorted(set(names))
        return self._retry(lambda: self._topics(wanted))

    def led(self, names: Iterable[str], *, internal: bool = False) -> list[TopicPartition]:
        """The partitions of the named topics that have a leader; none of a topic that does not exist or is not
        visible to this client. `internal`: only of internal topics.

        Raises:
            KafkaConnectionError: no broker answered in time.
        """
        wanted = sorted(set(names))
        response = self._retry(lambda: self._metadata(wanted))
        return [
            TopicPartition(topic.name or "", partition.partition_index)
            for topic in response.topics
            for partition in topic.partitions
            if topic.error_code == 0 and partition.leader_id >= 0 and topic.is_internal >= internal
        ]

    def _topics(self, names: list[str] | None) -> dict[str, list[int]]:
        response = self._metadata(names)
        found: dict[str, list[int]] = {}
        for topic in response.topics:
            code = error_code(topic.error_code)
            if code is not ErrorCode.NONE and names is not None:
                _raise_for(code, f"topic {topic.name} cannot be read")
            if topic.name is not None and not (names is None and topic.is_internal):
                found[topic.name] = sorted(partition.partition_index for partition in topic.partitions)
        return found

    def _metadata(self, names: list[str] | None) -> MetadataResponse:
        def exchange(connection: PlainConnection) -> MetadataResponse:
            return connection.ask(metadata_request(names, False, connection.version(MetadataRequest)))

        failed: RetriableError | None = None
        for address in self._metadata_addresses():
            try:
                response = self._ask(address, exchange)
            except RetriableError as error:
                failed = error
                continue
            self._learn(response)
            return response
        raise failed or RetriableError("there is no broker to ask")

    def _learn(self, response: MetadataResponse) -> None:
        self._nodes = {broker.node_id: (broker.host, broker.port) for broker in response.brokers} or self._nodes
        for topic in response.topics:
            self._topic_ids[topic.name or ""] = topic.topic_id
            for partition in topic.partitions:
                key = TopicPartition(topic.name or "", partition.partition_index)
                self._leaders[key] = Leader(partition.leader_id, partition.leader_epoch)

    def leader(self, partition: TopicPartition) -> Leader:
        """The last known leader of a partition. Raises RetriableError if it has none."""
        if partition not in self._leaders:
            self._topics([partition.topic])
        found = self._leaders.get(partition)
        if found is None or found.node_id < 0:
            self._leaders.pop(partition, None)
            raise RetriableError(f"{partition} has no leader")
        return found

    def follow(
        self,
        partition: TopicPartition,
        hint: FetchResponseLeaderIdAndEpoch | None,
        nodes: Iterable[FetchResponseNodeEndpoint],
    ) -> bool:
        """Adopt the leader that an answer names (KIP-951). Returns False if it is not newer than the known one."""
        known = self._leaders.get(partition)
        if hint is None or hint.leader_id < 0 or (known is not None and hint.leader_epoch <= known.epoch):
            return False
        self._nodes |= {node.node_id: (node.host, node.port) for node in nodes}
        self._leaders[partition] = Leader(hint.leader_id, hint.leader_epoch)
        return hint.leader_id in self._nodes

    def topic_id(self, topic: str) -> bytes:
        """The last known id of a topic; sixteen zero bytes if it is not known."""
        return self._topic_ids.get(topic, ZERO_UUID)

    def forget_leader(self, partition: TopicPartition) -> None:
        """Look the leader up again when it is next needed."""
        self._leaders.pop(partition, None)

    # --- offsets -----------------------------------------------------------------------------------------------------

    def list_offsets(self, times: Mapping[TopicPartition, int], isolation_level: int = 0) -> dict[TopicPartition, int]:
        """Offsets at EARLIEST_TIMESTAMP, LATEST_TIMESTAMP or a time in milliseconds; -1 if no record is as recent.

        Raises:
            KafkaError, KafkaConnectionError: they could not be looked up.
        """
        found: dict[TopicPartition, int] = {}

        def step() -> dict[TopicPartition, int]:
            by_node: dict[int, dict[TopicPartition, int]] = {}
            for partition, when in times.items():
                if partition not in found:
                    by_node.setdefault(self.leader(partition).node_id, {})[partition] = when
            for node_id, asked in by_node.items():
                self._list_offsets(node_id, asked, isolation_level, found)
            return found

        return self._retry(step)

    def bounds(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, tuple[int, int]]:
        """Where the logs of these partitions begin and end, in order of their names; without those that have no leader.

        Raises:
            KafkaError, KafkaConnectionError: they could not be looked up.
        """
        wanted = set(partitions)
        led = sorted(wanted.intersection(self.led({each.topic for each in wanted}))) if wanted else []
        starts = self.list_offsets(dict.fromkeys(led, EARLIEST_TIMESTAMP))
        ends = self.list_offsets(dict.fromkeys(led, LATEST_TIMESTAMP))
        return {partition: (starts[partition], ends[partition]) for partition in led}

    def _list_offsets(
        self, node_id: int, asked: dict[TopicPartition, int], isolation_level: int, found: dict[TopicPartition, int]
    ) -> None:
        def exchange(connection: PlainConnection) -> ListOffsetsResponse:
            version, timeout_ms = connection.version(ListOffsetsRequest), self._config.request_timeout_ms
            return connection.ask(list_request(asked, isolation_level, timeout_ms, version=version))

        try:
            response = self._ask(self._nodes[node_id], exchange)
        except (KeyError, RetriableError) as error:
            for partition in asked:
                self.forget_leader(partition)
            raise RetriableError(f"broker {node_id}: {error}") from error
        for partition, answer in list_answers(response, asked).items():
            if isinstance(answer, KafkaError) and answer.code is ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT:
                found[partition] = -1  # records from before Kafka 0.10 have no timestamps
            elif isinstance(answer, KafkaError):
                self.forget_leader(partition)
                _raise_for(answer.code, f"the offsets of {partition} cannot be read")
            else:
                found[partition] = -1 if answer is None else answer.offset

    def committed(self, group_id: str, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata]:
        """What a group has committed for these partitions; those without a commit are left out. Waits
        for the offsets of open transactions."""
        request = fetch_request(_OFFSET_FETCH_BY_NAME, group_id, partitions, require_stable=True)
        return self._retry(lambda: self._committed(group_id, request))

    def describe(self, group_id: str) -> tuple[str, int]:
        """A group's state, and how many members it has."""
        request = DescribeGroupsRequest(groups=[group_id])

        def step() -> tuple[str, int]:
            address = self._coordinator(group_id)
            (group,) = self._ask(address, lambda connection: connection.ask(request)).groups
            _raise_for(error_code(group.error_code), f"group {group_id} cannot be described")
            return group.group_state, len(group.members)

        return self._retry(step)

    def groups(self) -> list[str]:
        """The names of all groups.

        Raises:
            KafkaError, KafkaConnectionError: a broker did not list them.
        """
        return self._retry(self._groups)

    def _groups(self) -> list[str]:
        self._metadata([])
        names: list[str] = []
        for address in self._nodes.values():
            response = self._ask(address, lambda connection: connection.ask(ListGroupsRequest()))
            _raise_for(error_code(response.error_code), "the groups cannot be listed")
            names += [group.group_id for group in response.groups]
        return names

    def _coordinator(self, group_id: str) -> tuple[str, int]:
        self._metadata([])
        finding = FindCoordinatorRequest(key=group_id)
        found = self._ask(next(iter(self._nodes.values())), lambda connection: connection.ask(finding, 3))
        _raise_for(error_code(found.error_code), f"group {group_id} has no coordinator")
        return found.host, found.port

    def _committed(self, group_id: str, request: OffsetFetchRequest) -> dict[TopicPartition, OffsetAndMetadata]:
        address = self._coordinator(group_id)
        response = self._ask(address, lambda connection: connection.ask(request, _OFFSET_FETCH_BY_NAME))
        refused, answers = fetch_answers(response)
        _raise_for(refused, f"the offsets of group {group_id} cannot be read")
        committed: dict[TopicPartition, OffsetAndMetadata] = {}
        for partition, (code, position) in answers.items():
            _raise_for(code, f"the committed offset of {partition} cannot be read")
            if position is not None:
                committed[partition] = position
        return committed

    def close(self) -> None:
        """Close the open connections."""
        for connection in self._free.values():
            connection.close()
        self._free.clear()


def _raise_for(code: ErrorCode, what: str) -> None:
    """Raise RetriableError or KafkaError for an error code."""
    if code is ErrorCode.NONE:
        return
    if should_retry_query(code):
        raise RetriableError(f"{what}: {code.name}")
    raise KafkaError(code, what)


_per_thread = threading.local()


def connect(config: ClientConfig) -> Cluster:
    """This thread's `Cluster` for these settings, with the connections that earlier tasks left open.

    Sockets must not be shared with a parent process: pyspark forks its workers, so the process is part of the key.
    """
    key = (os.getpid(), config)
    if getattr(_per_thread, "key", None) != key:
        disconnect()
        _per_thread.key = key
        _per_thread.cluster = Cluster(config)
    cluster: Cluster = _per_thread.cluster
    return cluster


def disconnect() -> None:
    """Close the connections that `connect` keeps for this thread."""
    cluster: Cluster | None = getattr(_per_thread, "cluster", None)
    _per_thread.key = _per_thread.cluster = None
    if cluster is not None:
        cluster.close()
