"""What a client knows about the cluster: brokers, topics, the leaders of partitions; and when to ask again.

Theory. The owner says which topics it is interested in. The metadata is fetched again when something is found to be
stale (`request_update`), when a topic of interest has never been seen, and when the last answer is
`metadata.max.age.ms` old. A producer (`on_demand`) first asks only for the topics that it needs and does not know, as
Kafka's does. Only such a request may create topics: one for all topics of interest would bring back those that were
deleted since the producer wrote to them. While a needed topic is not found, requests of both kinds take turns: a topic
that does not exist must not keep the new leaders of all others from being learned.

Requests go to the least loaded broker, one at a time. They back off exponentially while they fail, or while their
answers hold retriable errors. A slow answer may be older than what is known already, so a leader is replaced only by
one with the same or a newer epoch of the same topic id (KIP-320). Each update raises `version`.

If no known broker has answered for `metadata.recovery.rebootstrap.trigger.ms`, or one says so, the client starts over
from its bootstrap addresses (KIP-1102): `rebootstraps` goes up, and the driver gives up its connections. Leader epochs
are kept: they identify an answer that is older than what was known.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial

from muster.client.config import ClientConfig
from muster.client.core.backoff import Backoff
from muster.client.core.sends import LEAST_LOADED, AnySend, Failure, Send
from muster.errors import AuthenticationError, ErrorCode, KafkaConnectionError, KafkaError, MusterError, error_code
from muster.model import NO_LEADER_EPOCH, Node, PartitionInfo, TopicPartition
from muster.protocol.messages import MetadataRequest, MetadataRequestTopic, MetadataResponse, MetadataResponseTopic
from muster.protocol.primitives import ZERO_UUID

NO_LEADER = -1

NEVER = 1 << 62

_FIRST_WITHOUT_CREATION = 4


def metadata_request(topics: Iterable[str] | None, may_create: bool, version: int) -> MetadataRequest:
    """Metadata of these topics; None means all. Before v4 the broker creates a requested topic in any case.

    v0 cannot ask for no topics: there an empty list means all.
    """
    named = None if topics is None else [MetadataRequestTopic(name=name) for name in topics]
    if named is None and version == 0:
        named = []
    return MetadataRequest(named, allow_auto_topic_creation=may_create or version < _FIRST_WITHOUT_CREATION)


@dataclass(slots=True)
class PartitionMetadata:
    """One partition: its leader and the leader's epoch. `leader_id` is -1 while it has none."""

    leader_id: int
    leader_epoch: int = NO_LEADER_EPOCH
    error_code: ErrorCode = ErrorCode.NONE
    replicas: list[int] = field(default_factory=list)
    isr: list[int] = field(default_factory=list)


@dataclass(slots=True)
class TopicMetadata:
    """One topic that exists. `topic_id` is sixteen zero bytes if the broker sent none."""

    name: str
    topic_id: bytes
    partitions: dict[int, PartitionMetadata]
    is_internal: bool = False
    error_code: ErrorCode = ErrorCode.NONE


class ClusterMetadata:
    """The cluster as one client knows it.

    `brokers` is empty until the first answer; the driver then uses the bootstrap addresses. `seed` is for the jitter
    of retries, see `Backoff`.
    """

    def __init__(
        self,
        config: ClientConfig,
        *,
        allow_auto_topic_creation: bool = True,
        on_demand: bool = False,
        seed: int = 0,
    ) -> None:
        self.brokers: dict[int, Node] = {}
        self.topics: dict[str, TopicMetadata] = {}
        self.cluster_id: str | None = None
        self.controller_id = -1
        self.version = 0
        self.refreshes = 0
        """How many Metadata responses have arrived. Unlike `version`, leaders learned from other answers do not change
        it."""
        self.rebootstraps = 0
        """How many times the brokers were forgotten."""
        self.features_epoch = -1
        self.features: dict[str, int] = {}
        """The levels of the cluster's finalized features."""
        self.allow_auto_topic_creation = allow_auto_topic_creation
        self.last_error: MusterError | None = None
        """Why the last request failed; None once one succeeds."""
        self.refusal: AuthenticationError | None = None
        """Why no broker accepts this client. No request is sent until `resume`: the answer would be the same."""
        self._refusals = 0
        self._config = config
        self._backoff = Backoff(config.retry_backoff_ms, config.retry_backoff_max_ms, seed)
        self._interest: set[str] | None = set()
        self._on_demand = on_demand
        self._needed: set[str] = set()
        """With `on_demand`, the topics that records wait for and that no answer has contained yet."""
        self._errors: dict[str, ErrorCode] = {}
        self._names: dict[bytes, str] = {}
        self._racks: dict[int, str] = {}
        self._need_update = True
        self._in_flight = False
        self._requested_since_send = False
        self._all_wanted = False
        """Whether `request_update` was called since all topics of interest were last requested."""
        self._asked_for_needed = False
        """Whether the last request was only for the topics that are needed, and did not find all of them."""
        self._refreshed_at: int | None = None
        self._asking_since: int | None = None
        """When requests began to fail."""
        self._not_before = 0

    # --- what to know ------------------------------------------------------------------------------------------------

    @property
    def interest(self) -> frozenset[str] | None:
        """The topics that Metadata requests name; None means all."""
        return None if self._interest is None else frozenset(self._interest)

    def set_interest(self, names: Iterable[str] | None) -> None:
        """Ask for these topics from now on; None for all topics, which a subscription by pattern needs."""
        if names is None:
            if self._interest is not None:
                self._interest = None
                self._ask_now()
            return
        wanted = set(names)
        if self._interest is not None:
            self._errors = {name: code for name, code in self._errors.items() if name in wanted}
        self._interest = wanted
        self._needed &= wanted
        if any(name not in self.topics for name in wanted) and not self._on_demand:
            self._ask_now()

    def add_interest(self, names: Iterable[str]) -> None:
        """Ask for these topics too."""
        if self._interest is None:
            return
        new = set(names) - self._interest
        if self._on_demand:
            new |= {name for name in names if name not in self.topics} - self._needed
            self._needed |= new
        if new:
            self._interest |= new
            self._ask_now()

    def _ask_now(self) -> None:
        # A new topic must not wait for the backoff of the last refresh, which did not ask for it.
        self._need_update = self._requested_since_send = True
        if not self._backoff.failures:
            self._not_before = 0

    def request_update(self, now: int) -> None:
        """Something is stale: ask again at the next poll, or when the backoff allows."""
        self._need_update = self._requested_since_send = self._all_wanted = True

    def resume(self) -> None:
        """The user calls again after the refusal was raised: something may have changed, so ask once more."""
        if self.refusal is not None:
            self.refusal, self._refusals = None, 0

    @property
    def update_pending(self) -> bool:
        """Whether a request is under way or due: what is known may be stale."""
        return self._need_update or self._in_flight

    # --- what is known -----------------------------------------------------------------------------------------------

    def partition_count(self, topic: str) -> int | None:
        """How many partitions a topic has, None while it is not known."""
        found = self.topics.get(topic)
        return len(found.partitions) if found else None

    def partitions(self, topic: str) -> list[int]:
        """The partitions of a topic in order, empty while it is not known."""
        found = self.topics.get(topic)
        return sorted(found.partitions) if found else []

    def partition_infos(self, topic: str) -> list[PartitionInfo]:
        """The partitions of a topic with their leaders and replicas, in order; empty while it is not known."""
        found = self.topics.get(topic)
        return [
            PartitionInfo(topic, number, self.brokers.get(part.leader_id), tuple(part.replicas), tuple(part.isr))
            for number, part in (sorted(found.partitions.items()) if found else ())
        ]

    def leader(self, partition: TopicPartition) -> int | None:
        """The id of the broker that leads a partition, None while there is none or it is not known."""
        found = self._partition(partition)
        if found is None or found.leader_id == NO_LEADER or found.leader_id not in self.brokers:
            return None
        return found.leader_id

    def has_replica(self, partition: TopicPartition, node_id: int) -> bool:
        """Whether this broker is known and has a replica of the partition."""
        found = self._partition(partition)
        return found is not None and node_id in self.brokers and node_id in found.replicas

    def racks(self, topic: str) -> tuple[frozenset[str], ...]:
        """For each partition of a topic, the racks of its replicas; a broker that is down keeps its last known rack.

        Kafka's client does not know the rack of a broker that is down, so its groups rebalance each time one goes
        down."""
        found = self.topics.get(topic)
        if found is None:
            return ()
        rack_of = self._racks
        known = [partition.replicas for _, partition in sorted(found.partitions.items())]
        return tuple(frozenset(rack_of[node] for node in replicas if node in rack_of) for replicas in known)

    def leader_epoch(self, partition: TopicPartition) -> int:
        """The epoch of the known leader, -1 if there is none."""
        found = self._partition(partition)
        return found.leader_epoch if found else NO_LEADER_EPOCH

    def topic_id(self, topic: str) -> bytes:
        """The id of a topic; sixteen zero bytes while it is not known."""
        found = self.topics.get(topic)
        return found.topic_id if found else ZERO_UUID

    def topic_name(self, topic_id: bytes) -> str | None:
        """The name of the topic with this id."""
        return self._names.get(topic_id)

    def topic_error(self, topic: str) -> ErrorCode:
        """The error of a topic in the last answer; NONE if it had none, or was not asked for."""
        return self._errors.get(topic, ErrorCode.NONE)

    def _partition(self, partition: TopicPartition) -> PartitionMetadata | None:
        topic = self.topics.get(partition.topic)
        return topic.partitions.get(partition.partition) if topic else None

    # --- learned elsewhere -------------------------------------------------------------------------------------------

    def update_leader(self, partition: TopicPartition, leader_id: int, leader_epoch: int, node: Node | None) -> bool:
        """Adopt a leader from a Produce or Fetch response (KIP-951). False if it is not newer."""
        known = self._partition(partition)
        if known is None or leader_epoch <= known.leader_epoch or (node is None and leader_id not in self.brokers):
            return False
        if node is not None:
            self.learn_node(node)
        known.leader_id, known.leader_epoch, known.error_code = leader_id, leader_epoch, ErrorCode.NONE
        self.version += 1
        return True

    def learn_node(self, node: Node) -> None:
        """A broker's address from another answer (FindCoordinator, leader hints), newer than what is known."""
        known = self.brokers.get(node.node_id)
        if known is None or (known.host, known.port) != (node.host, node.port):
            self.brokers[node.node_id] = node
            self.version += 1

    def learn_features(self, epoch: int, levels: Mapping[str, int]) -> None:
        """What a broker reports about the cluster's finalized features (KIP-584); an older epoch changes nothing."""
        if epoch > self.features_epoch:
            self.features_epoch, self.features = epoch, dict(levels)

    def rebootstrap(self, now: int) -> None:
        """Forget the brokers and start over from the bootstrap addresses (KIP-899, KIP-1102)."""
        self.brokers = {}
        self.rebootstraps += 1
        self.version += 1
        self._asking_since = now
        self._need_update = self._requested_since_send = True

    # --- asking ------------------------------------------------------------------------------------------------------

    def poll(self, now: int) -> list[AnySend]:
        """The request that is due, if one is."""
        if self._gives_up_at() <= now:
            self.rebootstrap(now)
        if self._in_flight or self.refusal is not None or not self._due(now):
            return []
        self._in_flight = True
        if self._asking_since is None:
            self._asking_since = now
        self._requested_since_send = False
        asks_for_all = self._asked_for_needed and (self._all_wanted or now >= self._expires_at())
        self._asked_for_needed = bool(self._needed) and not asks_for_all
        asked = frozenset(self._needed) if self._asked_for_needed else self.interest
        self._all_wanted = self._all_wanted and asked != self.interest
        may_create = self.allow_auto_topic_creation and (self._asked_for_needed or not self._on_demand)
        return [
            Send(
                LEAST_LOADED,
                MetadataRequest,
                partial(metadata_request, None if asked is None else sorted(asked), may_create),
                lambda reply, now: self._on_reply(reply, now, asked),
            )
        ]

    def next_deadline(self, now: int) -> int | None:
        """When `poll` has something to do, if nothing happens earlier."""
        if self.refusal is not None:
            return None
        asks_at = NEVER if self._in_flight else self._not_before if self._need_update else self._expires_at()
        when = min(asks_at, self._gives_up_at())
        return None if when == NEVER else max(now, when)

    def _gives_up_at(self) -> int:
        """When the client gives up on the known brokers."""
        if self._asking_since is None or not self.brokers or not self._config.rebootstraps:
            return NEVER
        return self._asking_since + self._config.metadata_recovery_rebootstrap_trigger_ms + 1

    def _due(self, now: int) -> bool:
        return now >= self._not_before if self._need_update else now >= self._expires_at()

    def _expires_at(self) -> int:
        return 0 if self._refreshed_at is None else self._refreshed_at + self._config.metadata_max_age_ms

    def _on_reply(self, reply: MetadataResponse | Failure, now: int, asked: frozenset[str] | None) -> None:
        self._in_flight = False
        if isinstance(reply, Failure):
            self._failed(reply.error(), now)
            self._count_refusal(reply.error())
        elif reply.error_code:
            if reply.error_code == ErrorCode.REBOOTSTRAP_REQUIRED and self._config.rebootstraps:
                self.rebootstrap(now)
            self._failed(KafkaError(reply.error_code, "the broker refused to describe the cluster"), now)
        elif not reply.brokers:
            self._failed(KafkaConnectionError("the broker does not know any brokers yet"), now)
        else:
            self._update(reply, now, asked)

    def _failed(self, error: MusterError, now: int) -> None:
        self.last_error = error
        self._need_update = self._all_wanted = True
        self._not_before = now + self._backoff.next_wait_ms()

    def _count_refusal(self, error: MusterError) -> None:
        """The cause may be the certificate of this broker alone, for example expired: the others are asked first."""
        if not isinstance(error, AuthenticationError):
            return
        self._refusals += 1
        if self._refusals >= (len(self.brokers) or len(self._config.bootstrap_servers)):
            self.refusal = error

    def _update(self, reply: MetadataResponse, now: int, asked: frozenset[str] | None) -> None:
        self.last_error = None
        self._asking_since = None
        self._refusals = 0
        if not self._on_demand or self.interest == asked:
            self._refreshed_at = now
        self.brokers = {node.node_id: Node(node.node_id, node.host, node.port, node.rack) for node in reply.brokers}
        self._racks |= {node.node_id: node.rack for node in reply.brokers if node.rack}
        self.cluster_id = reply.cluster_id
        self.controller_id = reply.controller_id
        stale = self._take_topics(reply.topics, asked)
        self._asked_for_needed = self._asked_for_needed and bool(self._needed & (asked or set()))
        self.version += 1
        self.refreshes += 1
        missing = self._interest is None and asked is not None
        if self._interest is not None and asked is not None:
            missing = not (self._needed if self._on_demand else self._interest) <= asked
        missing = missing or (self._all_wanted and not self._requested_since_send)
        self._need_update = stale or missing or self._requested_since_send
        if stale or (self._requested_since_send and not missing):
            self._not_before = now + self._backoff.next_wait_ms()
        else:
            self._backoff.reset()
            self._not_before = now if missing else now + self._config.retry_backoff_ms

    def _take_topics(self, answered: list[MetadataResponseTopic], asked: frozenset[str] | None) -> bool:
        """Replace the topics with those of the answer. Returns whether some are stale or missing."""
        topics: dict[str, TopicMetadata] = {}
        errors: dict[str, ErrorCode] = {}
        stale = False
        for answer in answered:
            name = answer.name
            if name is None:
                continue
            code = error_code(answer.error_code)
            if code is not ErrorCode.NONE:
                errors[name] = code
                if code.stale_metadata:
                    stale = stale or not self._on_demand or name in self._needed
                else:
                    self._needed.discard(name)
                continue
            topics[name] = self._topic(answer, name)
            stale = stale or any(partition.error_code.stale_metadata for partition in topics[name].partitions.values())
        if asked is not None:
            # Topics of interest that this request did not name are requested next; what is known about them stays.
            interest = self._interest or set()
            topics = {n: t for n, t in self.topics.items() if n in interest and n not in asked} | topics
            errors = {n: code for n, code in self._errors.items() if n in interest and n not in asked} | errors
        self._needed -= topics.keys()
        self.topics = topics
        self._errors = errors
        self._names = {topic.topic_id: name for name, topic in topics.items() if topic.topic_id != ZERO_UUID}
        return stale

    def _topic(self, answer: MetadataResponseTopic, name: str) -> TopicMetadata:
        known = self.topics.get(name)
        if known is not None and known.topic_id != answer.topic_id:
            known = None  # deleted and created again: epochs start over
        partitions: dict[int, PartitionMetadata] = {}
        for part in sorted(answer.partitions, key=lambda part: part.partition_index):
            before = known.partitions.get(part.partition_index) if known else None
            if before is not None and NO_LEADER_EPOCH != part.leader_epoch < before.leader_epoch:
                partitions[part.partition_index] = before
                continue
            code = error_code(part.error_code)
            partitions[part.partition_index] = PartitionMetadata(
                part.leader_id, part.leader_epoch, code, part.replica_nodes, part.isr_nodes
            )
        return TopicMetadata(name, answer.topic_id, partitions, answer.is_internal)
