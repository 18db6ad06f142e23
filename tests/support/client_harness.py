"""One `ConsumerCore` with a broker played by the test: time is a number, answers are written by hand.

Metadata, FindCoordinator, committed offsets, list-offsets and fetches are answered automatically (`auto`); joins,
syncs, heartbeats, leaves and commits wait for the test. Every request goes through its codec.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from muster.client.config import ConsumerConfig
from muster.client.core.consumer import ConsumerCore
from muster.client.core.events import CallbackKind, Disconnect, Event, Fatal, Note, RebalanceCallback
from muster.client.core.sends import AnySend, Channel, Failure, FailureKind
from muster.errors import ErrorCode, KafkaError, MusterError
from muster.model import OffsetAndMetadata, TopicPartition
from muster.protocol import codec
from muster.protocol import messages as m
from muster.protocol.primitives import Request
from muster.protocol.subscription import Subscription, decode_assignment, encode_assignment, encode_subscription

Q = TypeVar("Q", bound=Request[Any])

GROUP = "delays"

ALL = "flights-0 flights-1 flights-2 flights-3"
"""The partitions of the topic that the consumers here subscribe to."""


def topic_id(name: str) -> bytes:
    """A topic id derived from the name."""
    return name.encode().ljust(16, b"\1")[:16]


def tp(text: str) -> TopicPartition:
    """`flights-3` as a partition."""
    topic, _, number = text.rpartition("-")
    return TopicPartition(topic, int(number))


def tps(text: str) -> list[TopicPartition]:
    """Several, separated by spaces."""
    return [tp(item) for item in text.split()]


class ConsumerHarness:
    """A consumer core, its clock, and what it has sent."""

    def __init__(self, *, listening: bool = True, fetch: bool = True, **settings: Any) -> None:
        settings = {"group_id": GROUP, "partition_assignment_strategy": "range", "client_id": "c"} | settings
        self.config = ConsumerConfig(**settings)
        self.core = ConsumerCore(self.config, fetch=fetch)
        if self.config.group_id is not None:
            self.core.listening = listening
        self.now = 1_000
        self.pending: list[tuple[AnySend, Request[Any]]] = []
        self.events: list[Event] = []
        self.notes: list[str] = []
        self.topics: dict[str, int] = {"flights": 4}
        self.topic_errors: dict[str, ErrorCode] = {}
        self.committed: dict[TopicPartition, int] = {}
        self.coordinator = 1
        self.lookups = 0
        self.auto: set[type[Request[Any]]] = {
            m.MetadataRequest,
            m.FindCoordinatorRequest,
            m.OffsetFetchRequest,
            m.ListOffsetsRequest,
        }
        self.versions: dict[type[Request[Any]], int] = {}
        self.disconnected: list[int] = []

    @property
    def member(self) -> Any:
        """The membership under test."""
        return self.core.group.membership

    # --- time and turns --------------------------------------------------------------------------------------------

    def turn(self) -> None:
        """Poll the cores until they send nothing more."""
        for _ in range(50):
            sends = [*self.core.metadata.poll(self.now), *self.core.poll(self.now)]
            for event in self.core.take_events():
                if isinstance(event, Note):
                    self.notes.append(event.text)
                elif isinstance(event, Disconnect):
                    self.disconnected.append(event.node_id)
                else:
                    self.events.append(event)
            if not sends:
                return
            for send in sends:
                self._take_in(send)
        raise AssertionError("the core never comes to rest")

    def tick(self, milliseconds: int) -> None:
        """Advance the time, with a turn at each deadline on the way."""
        end = self.now + milliseconds
        self.turn()
        for _ in range(10_000):
            times = [self.core.next_deadline(self.now), self.core.metadata.next_deadline(self.now)]
            due = min((time for time in times if time is not None), default=end)
            if due >= end:
                break
            self.now = max(due, self.now + 1)
            self.turn()
        self.now = end
        self.turn()

    def _take_in(self, send: AnySend) -> None:
        version = self.versions.get(send.request_type, send.request_type.MAX_VERSION)
        if send.newest_version is not None:
            version = min(version, send.newest_version)
        built = send.build(version)
        request = codec.decode(send.request_type, version, codec.encode(built, version))
        if send.request_type in self.auto:
            answer = self._answer(request, version)
            if answer is not None:
                send.on_reply(answer, self.now)
                return
        self.pending.append((send, request))

    # --- requests and answers ----------------------------------------------------------------------------------------

    def sent(self, kind: type[Q]) -> list[Q]:
        """The requests of a kind that wait for an answer."""
        return [request for _, request in self.pending if isinstance(request, kind)]

    def channel(self, kind: type[Request[Any]]) -> Channel:
        """The channel of the oldest waiting request of a kind."""
        return next(send.channel for send, request in self.pending if isinstance(request, kind))

    def answer(self, kind: type[Request[Any]], response: Any) -> None:
        """Answer the oldest waiting request of a kind."""
        for index, (send, request) in enumerate(self.pending):
            if isinstance(request, kind):
                del self.pending[index]
                send.on_reply(response, self.now)
                self.turn()
                return
        raise AssertionError(f"no {kind.__name__} was sent; waiting: {[type(r).__name__ for _, r in self.pending]}")

    def fail(self, kind: type[Request[Any]], failure: FailureKind = FailureKind.DISCONNECTED) -> None:
        """Fail the oldest waiting request of a kind."""
        self.answer(kind, Failure(failure, failure.value))

    def _answer(self, request: Request[Any], version: int) -> Any:
        match request:
            case m.MetadataRequest():
                return self.metadata_response(request)
            case m.FindCoordinatorRequest():
                self.lookups += 1
                host = f"broker{self.coordinator}"
                if request.coordinator_keys:
                    found = m.Coordinator(GROUP, self.coordinator, host, 9092, 0)
                    return m.FindCoordinatorResponse(coordinators=[found])
                return m.FindCoordinatorResponse(node_id=self.coordinator, host=host, port=9092)
            case m.OffsetFetchRequest():
                return self._committed_response(request)
            case m.ListOffsetsRequest():
                return m.ListOffsetsResponse(
                    topics=[
                        m.ListOffsetsTopicResponse(
                            topic.name,
                            [m.ListOffsetsPartitionResponse(p.partition_index, 0, -1, 0, 0) for p in topic.partitions],
                        )
                        for topic in request.topics
                    ]
                )
            case m.FetchRequest():
                return m.FetchResponse(responses=[m.FetchableTopicResponse()])
        return None

    def metadata_response(self, request: m.MetadataRequest) -> m.MetadataResponse:
        """The requested topics, as `topics` and `topic_errors` define them."""
        names = sorted(self.topics) if request.topics is None else [topic.name or "" for topic in request.topics]
        return m.MetadataResponse(
            brokers=[m.MetadataResponseBroker(n, f"broker{n}", 9092) for n in (1, 2)],
            cluster_id="c",
            controller_id=1,
            topics=[self._topic(name) for name in names],
        )

    def _topic(self, name: str) -> m.MetadataResponseTopic:
        missing = ErrorCode.NONE if name in self.topics else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        code = self.topic_errors.get(name, missing)
        count = 0 if code else self.topics[name]
        partitions = [m.MetadataResponsePartition(0, n, 1, 0, [1], [1]) for n in range(count)]
        return m.MetadataResponseTopic(int(code), name, topic_id(name), name.startswith("__"), partitions)

    def _committed_response(self, request: m.OffsetFetchRequest) -> m.OffsetFetchResponse:
        names = {topic_id(name): name for name in self.topics}
        topics = []
        for topic in request.groups[0].topics or []:
            name = topic.name or names[topic.topic_id]
            found = [
                m.OffsetFetchResponsePartitions(n, self.committed.get(TopicPartition(name, n), -1))
                for n in topic.partition_indexes
            ]
            topics.append(m.OffsetFetchResponseTopics(topic.name, topic.topic_id, found))
        return m.OffsetFetchResponse(groups=[m.OffsetFetchResponseGroup(GROUP, topics)])

    # --- the group's side --------------------------------------------------------------------------------------------

    def join(self) -> m.JoinGroupRequest:
        """The waiting join."""
        return self.sent(m.JoinGroupRequest)[0]

    def refuse_join(self, code: ErrorCode, member_id: str = "") -> None:
        """Answer the join with an error."""
        self.answer(m.JoinGroupRequest, m.JoinGroupResponse(error_code=int(code), member_id=member_id))

    def accept_join(
        self,
        generation: int = 1,
        *,
        member_id: str = "m1",
        leader: str = "m1",
        others: dict[str, Subscription] | None = None,
        skip_assignment: bool = False,
        protocol: str | None = None,
    ) -> None:
        """Answer the join; to the leader with its own subscription and those of others."""
        request = self.join()
        name = protocol or request.protocols[0].name
        members = []
        if leader == member_id:
            own = next(p.metadata for p in request.protocols if p.name == name)
            members = [m.JoinGroupResponseMember(member_id, request.group_instance_id, own)]
            members += [m.JoinGroupResponseMember(i, None, encode_subscription(s)) for i, s in (others or {}).items()]
        self.answer(
            m.JoinGroupRequest,
            m.JoinGroupResponse(
                generation_id=generation,
                protocol_type="consumer",
                protocol_name=name,
                leader=leader,
                member_id=member_id,
                members=members,
                skip_assignment=skip_assignment,
            ),
        )

    def shares(self) -> dict[str, list[TopicPartition]]:
        """What the leader's waiting SyncGroup assigns."""
        request = self.sent(m.SyncGroupRequest)[0]
        return {item.member_id: decode_assignment(item.assignment).partitions for item in request.assignments}

    def accept_sync(self, partitions: str | Iterable[TopicPartition]) -> None:
        """Answer the sync with this member's assignment."""
        share = tps(partitions) if isinstance(partitions, str) else list(partitions)
        self.answer(m.SyncGroupRequest, m.SyncGroupResponse(assignment=encode_assignment(share)))

    def let_in(self, share: str | Iterable[TopicPartition], generation: int = 1, **how: Any) -> None:
        """Answer the join, then the sync with this member's assignment."""
        self.accept_join(generation, **how)
        self.accept_sync(share)

    def refuse_sync(self, code: ErrorCode) -> None:
        """Answer the sync with an error."""
        self.answer(m.SyncGroupRequest, m.SyncGroupResponse(error_code=int(code)))

    def heartbeat(self, code: ErrorCode = ErrorCode.NONE) -> None:
        """Answer the oldest heartbeat."""
        self.answer(m.HeartbeatRequest, m.HeartbeatResponse(error_code=int(code)))

    def rebalance(self) -> None:
        """A heartbeat reports that the group is rebalancing."""
        self.tick(3_000)
        self.heartbeat(ErrorCode.REBALANCE_IN_PROGRESS)

    def accept_leave(self) -> None:
        """Answer the LeaveGroup."""
        self.answer(m.LeaveGroupRequest, m.LeaveGroupResponse())

    def accept_commit(self, code: ErrorCode = ErrorCode.NONE) -> m.OffsetCommitRequest:
        """Answer the oldest commit with one code for all its partitions."""
        request = self.sent(m.OffsetCommitRequest)[0]
        self.answer(
            m.OffsetCommitRequest,
            m.OffsetCommitResponse(
                topics=[
                    m.OffsetCommitResponseTopic(
                        topic.name,
                        topic.topic_id,
                        [m.OffsetCommitResponsePartition(p.partition_index, int(code)) for p in topic.partitions],
                    )
                    for topic in request.topics
                ]
            ),
        )
        return request

    # --- the user's side ---------------------------------------------------------------------------------------------

    def subscribe(self, *topics: str) -> None:
        """Subscribe, and enter poll."""
        self.core.subscribe(topics or ("flights",))
        self.enter_poll()

    def enter_poll(self) -> None:
        """The user enters poll."""
        self.core.enter_poll(self.now)
        self.turn()

    def leave_poll(self) -> None:
        """The user leaves poll."""
        self.core.leave_poll()

    def callback(self) -> tuple[str, list[TopicPartition]]:
        """Which callback waits, if exactly one does."""
        waiting = [event for event in self.events if isinstance(event, RebalanceCallback)]
        assert len(waiting) == 1, f"events: {self.events}"
        return waiting[0].kind.value, list(waiting[0].partitions)

    def finish_callback(self) -> tuple[str, list[TopicPartition]]:
        """The listener returns."""
        found = self.callback()
        event = next(event for event in self.events if isinstance(event, RebalanceCallback))
        self.events.remove(event)
        self.core.callback_done(event.token, self.now)
        self.turn()
        return found

    def fatal(self) -> MusterError:
        """The error that the user's next call will raise."""
        event = next(event for event in self.events if isinstance(event, Fatal))
        self.events.remove(event)
        return event.error

    def stable(self, partitions: str = ALL, generation: int = 1) -> None:
        """Make a fresh consumer the only member of the group."""
        self.subscribe()
        self.accept_join(generation)
        self.accept_sync(partitions)
        if self.core.listening:
            assert self.finish_callback() == (CallbackKind.ASSIGNED.value, tps(partitions))

    def commit(self, offsets: dict[str, int], **options: Any) -> list[MusterError | None]:
        """Commit, and return the list that will get the outcome."""
        outcome: list[MusterError | None] = []
        chosen = {tp(text): OffsetAndMetadata(offset) for text, offset in offsets.items()}
        self.core.commit(chosen, lambda error, _now: outcome.append(error), **options)
        self.turn()
        return outcome


def manual(**settings):
    """A consumer without auto commit, so that only the group's requests are seen."""
    return ConsumerHarness(**{"enable_auto_commit": False} | settings)


def joining(**settings):
    """A consumer that has subscribed, and asks to join; without auto commit."""
    consumer = manual(**settings)
    consumer.subscribe()
    return consumer


def stable_member(partitions=ALL, generation=1, **settings):
    """The only member of a stable group; without auto commit by default."""
    consumer = manual(**settings)
    consumer.stable(partitions, generation)
    return consumer


def leave(consumer: ConsumerHarness) -> list[bool]:
    """Leave the group; returns the list that gets True once that is done."""
    left: list[bool] = []
    consumer.core.unsubscribe(consumer.now, lambda: left.append(True), "the consumer is being closed")
    consumer.turn()
    return left


def by_hand(**settings):
    """A consumer with manual assignment, whose group has no members."""
    consumer = ConsumerHarness(enable_auto_commit=False, **settings)
    consumer.core.assign(tps("flights-0 flights-1"))
    consumer.enter_poll()
    return consumer


def code_of(error):
    """The code of an error that must be Kafka's."""
    assert isinstance(error, KafkaError)
    return error.code


def fetch_committed(consumer, partitions, **options):
    found: list[Any] = []
    consumer.core.fetch_committed(tps(partitions), lambda result, _now: found.append(result), **options)
    consumer.turn()
    return found
