"""Simulated nodes: the real coordinator on one of them, records in memory, and the few answers that clients need.

The coordinator is `muster.coordinator.runtime.CoordinatorRuntime` as the broker runs it, over logs in memory. All nodes
share the logs, as replicas would, so that another node can take the coordinator over. Which node leads a partition
follows from which nodes are up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

from muster.coordinator.config import GroupConfig
from muster.coordinator.effects import GroupEvent
from muster.coordinator.failures import refused
from muster.coordinator.runtime import Client, CoordinatorRuntime
from muster.errors import ErrorCode
from muster.model import TopicPartition
from muster.protocol import codec
from muster.protocol.api import EARLIEST_TIMESTAMP
from muster.protocol.messages import (
    Coordinator,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
    OffsetCommitRequest,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
    PartitionData,
    SyncGroupRequest,
)
from muster.protocol.messages import OffsetForLeaderEpochResponseEpochEndOffset as EpochEnd
from muster.protocol.primitives import ZERO_UUID, Request, Response
from muster.testing.clock import Timer, VirtualClock
from muster.testing.invariants import Invariants
from muster.testing.log import SimLog
from muster.testing.network import Link, Network, Waiting

GROUP_REQUESTS = (
    HeartbeatRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
    JoinGroupRequest,
    SyncGroupRequest,
    LeaveGroupRequest,
)
_PIPELINED = (OffsetCommitRequest, OffsetFetchRequest)


class SimTopics:
    """The topics, their ids, and the log of each partition."""

    def __init__(self, topics: dict[str, int]) -> None:
        self.logs: dict[TopicPartition, SimLog] = {}
        self.counts: dict[str, int] = {}
        for name, count in topics.items():
            self.grow(name, count)

    def grow(self, name: str, count: int) -> None:
        """Give a topic so many partitions; make it if there is none."""
        for number in range(self.counts.get(name, 0), count):
            self.logs[TopicPartition(name, number)] = SimLog()
        self.counts[name] = max(count, self.counts.get(name, 0))

    def partition_count(self, topic: str) -> int:
        """Partitions of a topic, 0 if there is none of that name."""
        return self.counts.get(topic, 0)

    def topic_id(self, topic: str) -> bytes:
        """The topic's id, made from its name."""
        return topic.encode().rjust(16, b"#")[-16:] if topic in self.counts else ZERO_UUID

    def topic_name(self, topic_id: bytes) -> str | None:
        """The name that goes with an id."""
        return next((name for name in self.counts if self.topic_id(name) == topic_id), None)


class BrokerEnd:
    """A node's end of a link: requests are read one after the other, answers leave in the same order."""

    def __init__(self, brokers: SimBrokers, link: Link) -> None:
        self.link = link
        self.is_gone = False
        self._brokers = brokers
        self._unread: deque[tuple[Waiting, Any]] = deque()
        self._slots: deque[list[Any]] = deque()
        self._blocked = False

    def receive(self, waiting: Waiting, request: Any) -> None:
        """A request has arrived."""
        if not self.is_gone:
            self._unread.append((waiting, request))
            self._read()

    def _read(self) -> None:
        while self._unread and not self._blocked and not self.is_gone:
            waiting, request = self._unread.popleft()
            slot = [waiting, None]
            self._slots.append(slot)
            self._brokers.handle(self, request, waiting.version, partial(self._reply, slot))
            # A join stops its connection until it is answered, a commit does not.
            self._blocked = slot[1] is None and not isinstance(request, _PIPELINED)

    def _reply(self, slot: list[Any], response: Any) -> None:
        slot[1] = response
        self._blocked = False
        while self._slots and self._slots[0][1] is not None:
            waiting, answer = self._slots.popleft()
            if not self.is_gone:
                self.link.answer(waiting, self._brokers.over_the_wire(answer, waiting.version))
        self._brokers.clock.call_later(0, self._read)

    def hang_up(self) -> None:
        """The connection is over: what has not been read is not read any more."""
        self.is_gone = True


class SimBrokers:
    """All nodes of the simulated cluster."""

    def __init__(
        self,
        clock: VirtualClock,
        network: Network,
        rng: Random,
        invariants: Invariants,
        topics: dict[str, int],
        *,
        nodes: int,
        config: GroupConfig,
        lazy_log: bool,
        wire: bool,
        versions: dict[type[Request[Any]], int],
        group_id: str,
        trace: Callable[[str, str], None],
    ) -> None:
        self.clock = clock
        self.node_ids = list(range(1, nodes + 1))
        self.topics = SimTopics(topics)
        self.runtime: CoordinatorRuntime | None = None
        self.coordinator: int = 1
        self.events: list[GroupEvent] = []
        self._network = network
        self._rng = rng
        self._invariants = invariants
        self._config = config
        self._lazy_log = lazy_log
        self._wire = wire
        self._versions = versions
        self._group_id = group_id
        self._trace = trace
        self._up = set(self.node_ids)
        self._epoch = 0
        self._ends: dict[int, list[BrokerEnd]] = {node: [] for node in self.node_ids}
        self._logs: dict[int, SimLog] = {}
        self._member_ids = 0
        self._alarm: Timer | None = None
        self._parked: list[tuple[FetchRequest, int, Callable[[Response], None]]] = []

    # --- nodes -------------------------------------------------------------------------------------------------------

    def is_up(self, node_id: int) -> bool:
        """Whether a node takes connections."""
        return node_id in self._up

    def accept(self, link: Link) -> BrokerEnd:
        """A client has connected."""
        end = BrokerEnd(self, link)
        self._ends[link.node_id].append(end)
        return end

    def newest_version(self, request_type: type[Request[Any]]) -> int:
        """The newest version of a request that the nodes speak."""
        return self._versions.get(request_type, request_type.MAX_VERSION)

    def over_the_wire(self, message: Any, version: int) -> Any:
        """The message as it arrives: through the codec, if that is simulated too."""
        return codec.decode(type(message), version, codec.encode(message, version)) if self._wire else message

    def start_coordinator(self, node_id: int) -> None:
        """Have a node read the logs, and coordinate the group from now on."""
        self.coordinator = node_id
        self.runtime = CoordinatorRuntime(
            self._config,
            self._open_log,
            clock=lambda: self.clock.now,
            topics=self.topics,
            on_event=self._on_event,
            new_member_id=self._new_member_id,
            schedule_flush=self._schedule_flush,
        )
        self._trace(f"node {node_id}", "coordinates")
        self.runtime.load_all(sorted(self._logs))
        self._check_loaded(self.runtime)
        self._arm()

    def _check_loaded(self, runtime: CoordinatorRuntime) -> None:
        """Ask the fresh runtime what it knows, and compare with what was acknowledged."""
        answers: list[Any] = []
        group = OffsetFetchRequestGroup(self._group_id, topics=None)
        runtime.flush()
        self._sync_logs()
        runtime.release_durable()
        runtime.submit(OffsetFetchRequest(groups=[group]), Client("checker", "", 9), answers.append)
        loaded = {
            TopicPartition(topic.name, each.partition_index): each.committed_offset
            for topic in answers[0].groups[0].topics
            for each in topic.partitions
        }
        self._invariants.restarted(loaded)

    def kill(self, node_id: int) -> None:
        """A node dies on the spot. If it was the coordinator, what its log had not made durable may be lost."""
        self._trace(f"node {node_id}", "dies")
        self._up.discard(node_id)
        self._epoch += 1
        for end in self._ends[node_id]:
            end.hang_up()
            if not end.link.is_closed:
                end.link.reset_by_peer()
        self._ends[node_id].clear()
        if node_id == self.coordinator and self.runtime is not None:
            self.runtime = None
            self._invariants.coordinator_died()
            for log in self._logs.values():
                log.crash(self._rng)

    def start(self, node_id: int) -> None:
        """A node comes back; if nobody coordinates, it does."""
        self._trace(f"node {node_id}", "starts")
        self._up.add(node_id)
        self._epoch += 1
        if self.runtime is None and node_id == self.coordinator:
            self.start_coordinator(node_id)

    def take_over(self) -> None:
        """Another node that is up becomes the coordinator, if there is none."""
        if self.runtime is None and self._up:
            self.start_coordinator(self._rng.choice(sorted(self._up)))

    def move_coordinator(self, node_id: int) -> None:
        """Hand the group over to another node in good order, as when leadership is rebalanced."""
        if self.runtime is not None and node_id in self._up and node_id != self.coordinator:
            self._trace(f"node {self.coordinator}", "resigns")
            runtime, self.runtime = self.runtime, None
            runtime.close()
            self._sync_logs()
            self._invariants.coordinator_died()
            self.start_coordinator(node_id)

    # --- logs and time -----------------------------------------------------------------------------------------------

    def _open_log(self, partition: int) -> SimLog:
        self._invariants.reloaded()
        return self._logs.setdefault(partition, SimLog(lazy=self._lazy_log))

    def fail_log(self, failing: bool) -> None:
        """Have every append to the coordinator's log fail, or work again."""
        self._trace("log", "fails" if failing else "works again")
        for log in self._logs.values():
            log.fails = failing

    def _new_member_id(self, prefix: str) -> str:
        self._member_ids += 1
        return f"{prefix}-{self._member_ids}"

    def _on_event(self, event: GroupEvent) -> None:
        self.events.append(event)
        self._trace("group", repr(event))

    def _schedule_flush(self) -> None:
        self.clock.call_later(self._rng.randrange(3), self._flush, self.runtime)

    def _flush(self, runtime: CoordinatorRuntime) -> None:
        if runtime is not self.runtime:
            return  # it died with its open batches
        runtime.flush()
        if self._lazy_log:
            self.clock.call_later(self._rng.randrange(1, 40), self._make_durable, runtime)
        self._arm()

    def _make_durable(self, runtime: CoordinatorRuntime) -> None:
        if runtime is self.runtime:
            self._sync_logs()
            runtime.release_durable()

    def _sync_logs(self) -> None:
        for log in self._logs.values():
            log.sync()

    def _arm(self) -> None:
        due = self.runtime.next_deadline() if self.runtime is not None else None
        if self._alarm is not None:
            if due is not None and not self._alarm.cancelled and self._alarm.when == due:
                return
            self._alarm.cancel()
        self._alarm = None if due is None else self.clock.call_at(max(due, self.clock.now + 1), self._on_deadline)

    def _on_deadline(self) -> None:
        self._alarm = None
        if self.runtime is not None:
            self.runtime.on_deadlines(self.clock.now)
        self._arm()

    # --- requests ----------------------------------------------------------------------------------------------------

    def handle(self, end: BrokerEnd, request: Any, version: int, reply: Callable[[Any], None]) -> None:
        """Answer a request that a node has read, now or later."""
        node_id = end.link.node_id
        if isinstance(request, GROUP_REQUESTS):
            self._group_request(end, request, version, reply)
        elif isinstance(request, MetadataRequest):
            reply(self._metadata(request))
        elif isinstance(request, FindCoordinatorRequest):
            reply(self._find_coordinator(request))
        elif isinstance(request, ListOffsetsRequest):
            reply(self._list_offsets(request, node_id))
        elif isinstance(request, OffsetForLeaderEpochRequest):
            reply(self._epoch_ends(request, node_id))
        elif isinstance(request, FetchRequest):
            self._fetch(request, node_id, reply)
        else:
            raise TypeError(f"the simulated nodes do not know {type(request).__name__}")

    def _group_request(self, end: BrokerEnd, request: Any, version: int, reply: Callable[[Any], None]) -> None:
        runtime = self.runtime
        if runtime is None or end.link.node_id != self.coordinator:
            reply(_not_coordinator(request))
            return
        driver = end.link.driver
        if isinstance(request, OffsetCommitRequest):
            self._trace(f"node {end.link.node_id}", f"is asked by {driver.name} to {_commit_text(request)}")
        client = Client(driver.config.client_id, f"/{driver.name}", version)
        runtime.submit(request, client, self._invariants.ticket(request, version, end.link, reply))
        self._arm()

    def _find_coordinator(self, request: FindCoordinatorRequest) -> FindCoordinatorResponse:
        known = self.runtime is not None or self._rng.randrange(2)  # else old news, or no news
        node_id, host, port = (self.coordinator, _host(self.coordinator), 9092) if known else (-1, "", -1)
        error = ErrorCode.NONE if known else ErrorCode.COORDINATOR_NOT_AVAILABLE
        if request.coordinator_keys:
            key = request.coordinator_keys[0]
            return FindCoordinatorResponse(coordinators=[Coordinator(key, node_id, host, port, error)])
        return FindCoordinatorResponse(error_code=error, node_id=node_id, host=host, port=port)

    # --- records -----------------------------------------------------------------------------------------------------

    def leader(self, partition: TopicPartition) -> tuple[int, int]:
        """The node that leads a partition now, -1 if none can, and its epoch."""
        up = sorted(self._up)
        return (up[partition.partition % len(up)] if up else -1), self._epoch

    def _metadata(self, request: MetadataRequest) -> MetadataResponse:
        names = sorted(self.topics.counts) if request.topics is None else [topic.name or "" for topic in request.topics]
        return MetadataResponse(
            brokers=[MetadataResponseBroker(node, _host(node), 9092) for node in self.node_ids],
            cluster_id="simulated",
            controller_id=self.node_ids[0],
            topics=[self._describe(name) for name in names],
        )

    def _describe(self, name: str) -> MetadataResponseTopic:
        count = self.topics.partition_count(name)
        if not count:
            return MetadataResponseTopic(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, name)
        partitions = []
        for number in range(count):
            leader, epoch = self.leader(TopicPartition(name, number))
            error = ErrorCode.NONE if leader >= 0 else ErrorCode.LEADER_NOT_AVAILABLE
            partitions.append(MetadataResponsePartition(error, number, leader, epoch, self.node_ids, self.node_ids))
        return MetadataResponseTopic(ErrorCode.NONE, name, self.topics.topic_id(name), False, partitions)

    def _list_offsets(self, request: ListOffsetsRequest, node_id: int) -> ListOffsetsResponse:
        topics = []
        for topic in request.topics:
            found = []
            for asked in topic.partitions:
                partition = TopicPartition(topic.name, asked.partition_index)
                leader, epoch = self.leader(partition)
                if leader != node_id:
                    error = ErrorCode.NOT_LEADER_OR_FOLLOWER
                    found.append(ListOffsetsPartitionResponse(asked.partition_index, error))
                    continue
                log = self.topics.logs[partition]
                offset = log.log_start_offset if asked.timestamp == EARLIEST_TIMESTAMP else log.log_end_offset
                found.append(ListOffsetsPartitionResponse(asked.partition_index, 0, -1, offset, epoch))
            topics.append(ListOffsetsTopicResponse(topic.name, found))
        return ListOffsetsResponse(topics=topics)

    def produce(self, partition: TopicPartition, count: int) -> None:
        """Append records; fetches that wait for some are answered."""
        self.topics.logs[partition].write(count, self.clock.now)
        parked, self._parked = self._parked, []
        for request, node_id, reply in parked:
            self._try_fetch(request, node_id, reply)

    def _epoch_ends(self, request: OffsetForLeaderEpochRequest, node_id: int) -> OffsetForLeaderEpochResponse:
        """No log is ever cut back: every epoch ends where the log does, as far as a reader can tell."""
        topics = []
        for topic in request.topics:
            ends = []
            for asked in topic.partitions:
                partition = TopicPartition(topic.topic, asked.partition)
                log = self.topics.logs.get(partition)
                if log is None or self.leader(partition)[0] != node_id:
                    ends.append(EpochEnd(ErrorCode.NOT_LEADER_OR_FOLLOWER, asked.partition))
                else:
                    ends.append(EpochEnd(0, asked.partition, asked.leader_epoch, log.high_watermark))
            topics.append(OffsetForLeaderTopicResult(topic.topic, ends))
        return OffsetForLeaderEpochResponse(topics=topics)

    def _fetch(self, request: FetchRequest, node_id: int, reply: Callable[[Response], None]) -> None:
        if self._try_fetch(request, node_id, reply):
            return
        entry = self._parked[-1]
        self.clock.call_later(request.max_wait_ms, self._fetch_wait_is_over, entry)

    def _try_fetch(self, request: FetchRequest, node_id: int, reply: Callable[[Response], None]) -> bool:
        response, has_news = self._read(request, node_id)
        if has_news or not request.max_wait_ms:
            reply(response)
            return True
        self._parked.append((request, node_id, reply))
        return False

    def _fetch_wait_is_over(self, entry: tuple[FetchRequest, int, Callable[[Response], None]]) -> None:
        found = next((parked for parked in self._parked if parked[2] is entry[2]), None)
        if found is not None:
            self._parked.remove(found)
            found[2](self._read(found[0], found[1])[0])

    def _read(self, request: FetchRequest, node_id: int) -> tuple[FetchResponse, bool]:
        has_news = False
        topics = []
        for topic in request.topics:
            name = topic.topic or self.topics.topic_name(topic.topic_id) or ""
            parts = []
            for asked in topic.partitions:
                data = self._read_partition(TopicPartition(name, asked.partition), asked.fetch_offset, node_id)
                has_news = has_news or bool(data.records) or bool(data.error_code)
                parts.append(data)
            topics.append(FetchableTopicResponse(topic.topic, topic.topic_id, parts))
        return FetchResponse(responses=topics), has_news  # no session: every fetch names all its partitions

    def _read_partition(self, partition: TopicPartition, offset: int, node_id: int) -> PartitionData:
        leader, _ = self.leader(partition)
        log = self.topics.logs.get(partition)
        if log is None or leader != node_id:
            return PartitionData(partition.partition, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        end = log.high_watermark
        if not log.log_start_offset <= offset <= end:
            return PartitionData(partition.partition, ErrorCode.OFFSET_OUT_OF_RANGE)
        return PartitionData(partition.partition, 0, end, end, 0, records=log.read(offset, 65_536).data)


def _commit_text(request: OffsetCommitRequest) -> str:
    offsets = [
        f"{topic.name}-{each.partition_index}: {each.committed_offset}"
        for topic in request.topics
        for each in topic.partitions
    ]
    return f"commit {', '.join(offsets)} in generation {request.generation_id_or_member_epoch}"


def _not_coordinator(request: Any) -> Any:
    if isinstance(request, OffsetFetchRequest):
        error = ErrorCode.NOT_COORDINATOR
        if request.groups:
            return OffsetFetchResponse(groups=[OffsetFetchResponseGroup(g.group_id, [], error) for g in request.groups])
        return OffsetFetchResponse(error_code=error)
    return refused(request, ErrorCode.NOT_COORDINATOR)


def _host(node_id: int) -> str:
    return f"node{node_id}"
