"""Fetching from a follower that the leader names (KIP-392), and giving it up."""

from __future__ import annotations

from typing import Any

import pytest

from muster.client.core.sends import AnySend, Failure, FailureKind
from muster.errors import ErrorCode
from muster.model import Node
from muster.protocol import messages as m
from tests.support.one_broker import P0, P1, TOPIC_ID, OneBroker


class TwoNodes(OneBroker):
    """Node 1 leads both partitions, nodes 1 and 2 have replicas. Without sessions: each fetch is complete."""

    def _learn(self) -> None:
        self.metadata.set_interest({"t"})
        self.describe(leader=1, epoch=0)

    def describe(self, leader: int, epoch: int, nodes: tuple[int, ...] = (1, 2)) -> None:
        self.metadata.request_update(self.now)
        self.now += self.config.retry_backoff_max_ms
        [send] = self.metadata.poll(self.now)
        partitions = [m.MetadataResponsePartition(0, p.partition, leader, epoch, [1, 2], [1, 2]) for p in self.logs]
        brokers = [m.MetadataResponseBroker(n, f"h{n}", 9092) for n in nodes]
        topic = m.MetadataResponseTopic(0, "t", TOPIC_ID, partitions=partitions)
        send.on_reply(m.MetadataResponse(brokers=brokers, topics=[topic]), self.now)

    def reply(self, send: AnySend, *, prefer: int = -1, error: ErrorCode | None = None) -> None:
        """Answer a fetch of one partition: with a better replica, an error, or records."""
        request: Any = send.build(13)
        [topic] = request.topics
        data = []
        for asked in topic.partitions:
            found = self._read(P0._replace(partition=asked.partition), asked.fetch_offset, error)
            if prefer >= 0:
                found.records, found.preferred_read_replica = b"", prefer
            data.append(found)
        send.on_reply(m.FetchResponse(responses=[m.FetchableTopicResponse("", TOPIC_ID, data)]), self.now)

    def only(self) -> AnySend:
        """The only fetch that is due."""
        [send] = self.poll()
        return send


@pytest.fixture
def broker() -> TwoNodes:
    return TwoNodes({P0: [2, 2, 2]}, client_rack="r2", auto_offset_reset="earliest")


def taken(broker: TwoNodes) -> list[int]:
    return [record.offset for record in broker.fetcher.collect(500).get(P0, [])]


def test_records_come_from_the_replica_that_the_leader_names(broker: TwoNodes) -> None:
    send = broker.only()
    assert send.node_id == 1
    request: Any = send.build(13)
    assert request.rack_id == "r2"
    broker.reply(send, prefer=2)
    assert not broker.fetcher.has_records
    send = broker.only()  # at once
    assert send.node_id == 2
    broker.reply(send)
    assert taken(broker) == [0, 1]
    assert broker.only().node_id == 2


def test_after_metadata_max_age_the_leader_is_asked_again(broker: TwoNodes) -> None:
    broker.reply(broker.only(), prefer=2)
    broker.now += broker.config.metadata_max_age_ms - 1
    send = broker.only()
    assert send.node_id == 2
    broker.reply(send)
    broker.now += 1
    send = broker.only()
    assert send.node_id == 1
    broker.reply(send, prefer=2)
    send = broker.only()
    assert send.node_id == 2
    broker.reply(send)
    assert taken(broker) == [0, 1, 2, 3]
    broker.now += broker.config.metadata_max_age_ms - 1
    assert broker.only().node_id == 2


@pytest.mark.parametrize(
    "error",
    [
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.OFFSET_OUT_OF_RANGE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    ],
)
def test_a_replica_that_cannot_serve_is_left_for_the_leader_after_a_backoff(broker: TwoNodes, error: ErrorCode) -> None:
    for _ in range(3):  # the leader keeps naming it
        broker.reply(broker.only(), prefer=2)
        broker.reply(broker.only(), error=error)
        assert broker.subscription.needs_reset() == []
        assert broker.poll() == []
        broker.now += broker.config.retry_backoff_ms
        send = broker.only()
        assert send.node_id == 1
        broker.reply(send)
        assert len(taken(broker)) == 2


def test_a_replica_that_does_not_answer_is_left_for_the_leader() -> None:
    broker = TwoNodes({P0: [2], P1: [2]})
    broker.reply(broker.only(), prefer=2)
    broker.only().on_reply(Failure(FailureKind.DISCONNECTED, "gone"), broker.now)
    assert broker.metadata.update_pending
    assert broker.poll() == []
    broker.now += broker.config.retry_backoff_ms
    send = broker.only()
    assert send.node_id == 1
    broker.reply(send)
    assert set(broker.fetcher.collect(500)) == {P0, P1}


def test_another_broker_that_does_not_answer_is_no_reason_to_leave_it(broker: TwoNodes) -> None:
    old = broker.only()
    broker.metadata.update_leader(P0, 2, 1, None)
    broker.metadata.update_leader(P0, 1, 2, None)
    state = broker.subscription.state(P0)
    state.preferred_replica, state.preferred_until = 2, broker.now + 1_000
    old.on_reply(Failure(FailureKind.DISCONNECTED, "gone"), broker.now)
    assert broker.only().node_id == 2


def test_a_replica_that_is_not_known_is_not_asked_for_and_the_leader_not_spun_upon(broker: TwoNodes) -> None:
    broker.reply(broker.only(), prefer=7)
    assert broker.metadata.update_pending
    assert broker.poll() == []
    assert broker.fetcher.next_deadline(broker.now) == broker.now + broker.config.retry_backoff_ms
    broker.now += broker.config.retry_backoff_ms
    assert broker.only().node_id == 1


def test_a_replica_that_names_itself_is_not_kept_for_longer(broker: TwoNodes) -> None:
    broker.reply(broker.only(), prefer=2)
    broker.now += broker.config.metadata_max_age_ms - 1
    broker.reply(broker.only(), prefer=2)
    broker.now += 1
    assert broker.only().node_id == 1


def test_the_first_broker_may_be_the_one_that_is_named() -> None:
    broker = TwoNodes({P0: [2]})
    broker.describe(leader=1, epoch=1, nodes=(0, 1))
    broker.metadata.topics["t"].partitions[0].replicas = [0, 1]
    broker.reply(broker.only(), prefer=0)
    assert broker.only().node_id == 0


def test_a_replica_that_is_left_ends_no_longer_wait(broker: TwoNodes) -> None:
    broker.reply(broker.only(), prefer=2)
    send = broker.only()
    state = broker.subscription.state(P0)
    state.retry_at = broker.now + broker.config.retry_backoff_max_ms
    send.on_reply(Failure(FailureKind.DISCONNECTED, "gone"), broker.now)
    assert broker.fetcher.next_deadline(broker.now) == broker.now + broker.config.retry_backoff_max_ms


def test_a_replica_whose_broker_is_gone_is_not_asked(broker: TwoNodes) -> None:
    broker.reply(broker.only(), prefer=2)
    broker.describe(leader=1, epoch=0, nodes=(1,))
    assert broker.only().node_id == 1


def test_one_that_waits_for_room_is_not_held_against_the_leader() -> None:
    """Where the waiting partition is fetched from decides which broker's fetch is parked for a shorter time."""
    broker = TwoNodes({P0: [3, 3, 3], P1: [1]}, max_partition_fetch_bytes=1)
    state = broker.subscription.state(P0)
    state.preferred_replica, state.preferred_until = 2, 1 << 40
    broker.subscription.seek(P1, 1)
    leader, replica = sorted(broker.poll(), key=lambda send: send.node_id)
    broker.reply(replica)
    broker.reply(leader)
    request: Any = broker.only().build(13)
    assert request.max_wait_ms == broker.config.fetch_max_wait_ms


def test_unknown_ends_of_an_answer_change_nothing(broker: TwoNodes) -> None:
    broker.reply(broker.only())
    assert broker.fetcher.lag(P0) == 6
    send = broker.only()
    data = m.PartitionData(0, 0, -1, -1, -1, preferred_read_replica=2)
    send.on_reply(m.FetchResponse(responses=[m.FetchableTopicResponse("", TOPIC_ID, [data])]), broker.now)
    assert broker.fetcher.lag(P0) == 6
    state = broker.subscription.state(P0)
    assert (state.high_watermark, state.last_stable_offset, state.log_start_offset) == (6, 6, 0)
    assert Node(2, "h2", 9092) in broker.metadata.brokers.values()
