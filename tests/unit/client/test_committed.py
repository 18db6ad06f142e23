"""Reading committed offsets: versions, retries, errors, and answers for a former ownership."""

from __future__ import annotations

import pytest

from muster.errors import ErrorCode, KafkaTimeoutError
from muster.model import OffsetAndMetadata
from muster.protocol import messages as m
from muster.protocol.primitives import ZERO_UUID
from tests.support.client_harness import GROUP, ConsumerHarness, by_hand, code_of, fetch_committed, topic_id, tp

# --- what is committed -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [*range(1, m.OffsetFetchRequest.MAX_VERSION + 1)])
def test_committed_offsets_are_read_in_every_version(version):
    consumer = by_hand()
    consumer.auto.discard(m.OffsetFetchRequest)
    consumer.pending.clear()
    consumer.versions[m.OffsetFetchRequest] = version
    found = fetch_committed(consumer, "flights-0 flights-1")
    send, request = consumer.pending[-1]
    if version >= 8:
        assert [topic.partition_indexes for topic in request.groups[0].topics] == [[0, 1]]
        topics = [
            m.OffsetFetchResponseTopics(
                "flights" if version < 10 else "",
                topic_id("flights"),
                [m.OffsetFetchResponsePartitions(0, 7, 2, "x"), m.OffsetFetchResponsePartitions(1, -1)],
            )
        ]
        response = m.OffsetFetchResponse(groups=[m.OffsetFetchResponseGroup(GROUP, topics)])
    else:
        assert [topic.partition_indexes for topic in request.topics] == [[0, 1]]
        old = [m.OffsetFetchResponsePartition(0, 7, 2, "x"), m.OffsetFetchResponsePartition(1, -1)]
        response = m.OffsetFetchResponse(topics=[m.OffsetFetchResponseTopic("flights", old)])
    assert request.require_stable is (version >= 7)
    send.on_reply(response, consumer.now)
    assert found == [{tp("flights-0"): OffsetAndMetadata(7, 2, "x"), tp("flights-1"): None}]


def offset_fetch_error(group=ErrorCode.NONE, partition=ErrorCode.NONE):
    part = m.OffsetFetchResponsePartitions(0, -1, error_code=int(partition))
    topics = [m.OffsetFetchResponseTopics("", topic_id("flights"), [part])]
    return m.OffsetFetchResponse(groups=[m.OffsetFetchResponseGroup(GROUP, topics, int(group))])


@pytest.mark.parametrize(
    "response",
    [
        offset_fetch_error(group=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        offset_fetch_error(group=ErrorCode.NOT_COORDINATOR),
        offset_fetch_error(partition=ErrorCode.UNSTABLE_OFFSET_COMMIT),
    ],
)
def test_reading_is_tried_again_while_it_may_help(response):
    consumer = by_hand()
    consumer.auto.discard(m.OffsetFetchRequest)
    found = fetch_committed(consumer, "flights-0", until=consumer.now + 1_000)
    consumer.answer(m.OffsetFetchRequest, response)
    assert found == []
    consumer.tick(130)
    consumer.answer(m.OffsetFetchRequest, offset_fetch_error())
    assert found == [{tp("flights-0"): None}]


@pytest.mark.parametrize(
    "response",
    [
        offset_fetch_error(group=ErrorCode.GROUP_AUTHORIZATION_FAILED),
        offset_fetch_error(partition=ErrorCode.TOPIC_AUTHORIZATION_FAILED),
        offset_fetch_error(partition=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
def test_reading_ends_where_it_does_not(response):
    consumer = by_hand()
    consumer.auto.discard(m.OffsetFetchRequest)
    found = fetch_committed(consumer, "flights-0", until=consumer.now + 1_000)
    consumer.answer(m.OffsetFetchRequest, response)
    assert isinstance(found[0], Exception)


def test_reading_ends_with_its_time():
    consumer = by_hand()
    consumer.auto.discard(m.OffsetFetchRequest)
    found = fetch_committed(consumer, "flights-0", until=consumer.now + 1_000)
    consumer.tick(1_000)
    assert isinstance(found[0], KafkaTimeoutError)


def test_the_answer_for_a_former_ownership_is_dropped():
    """The offset is requested; the partition is lost and comes back; the old answer arrives after the new request."""
    consumer = ConsumerHarness(enable_auto_commit=False, listening=False)
    consumer.auto.discard(m.OffsetFetchRequest)
    consumer.subscribe()
    consumer.let_in("flights-0")
    (old, _) = next((s, r) for s, r in consumer.pending if isinstance(r, m.OffsetFetchRequest))
    consumer.tick(3_000)
    consumer.heartbeat(ErrorCode.UNKNOWN_MEMBER_ID)
    consumer.let_in("flights-0", 3, member_id="m2", leader="m2")
    old.on_reply(committed_at(4), consumer.now)
    assert consumer.core.subscription.position(tp("flights-0")) is None


def test_the_answer_for_a_former_ownership_is_dropped_while_the_listener_learns_of_the_new_one():
    """Nothing new has been requested yet: the listener may seek. The coordinator has moved meanwhile, so that the
    answer of the old one comes after those of the new one."""
    consumer = ConsumerHarness(enable_auto_commit=False)
    consumer.auto.discard(m.OffsetFetchRequest)
    consumer.stable("flights-0")
    [old] = [send for send, request in consumer.pending if isinstance(request, m.OffsetFetchRequest)]
    consumer.rebalance()
    assert consumer.finish_callback()[0] == "revoked"
    consumer.let_in("flights-0", 2)
    assert consumer.callback()[0] == "assigned"
    old.on_reply(committed_at(4), consumer.now)
    assert consumer.core.subscription.position(tp("flights-0")) is None
    consumer.pending = [(send, request) for send, request in consumer.pending if send is not old]
    consumer.finish_callback()
    consumer.answer(m.OffsetFetchRequest, committed_at(9))
    assert consumer.core.subscription.position(tp("flights-0")) == 9


def committed_at(offset):
    """The answer to an OffsetFetch of flights-0."""
    topic = m.OffsetFetchResponseTopics("", topic_id("flights"), [m.OffsetFetchResponsePartitions(0, offset)])
    return m.OffsetFetchResponse(groups=[m.OffsetFetchResponseGroup(GROUP, [topic])])


def forget_flights(consumer):
    """The topic is deleted, and the metadata reports it."""
    del consumer.topics["flights"]
    consumer.core.metadata.request_update(consumer.now)
    consumer.tick(1_000)
    assert consumer.core.metadata.topic_id("flights") == ZERO_UUID


def test_an_answer_that_names_a_topic_by_its_former_id_is_understood():
    """The topic is requested by its id; it is deleted; the answer names an id that the metadata has forgotten."""
    consumer = by_hand()
    consumer.auto -= {m.OffsetFetchRequest, m.OffsetCommitRequest}
    consumer.pending.clear()
    found, done = fetch_committed(consumer, "flights-0"), []
    consumer.core.commit({tp("flights-0"): OffsetAndMetadata(9)}, lambda error, _now: done.append(error))
    consumer.turn()
    asked = {type(request): send for send, request in consumer.pending}
    forget_flights(consumer)
    fetched = m.OffsetFetchResponseTopics("", topic_id("flights"), [m.OffsetFetchResponsePartitions(0, 7)])
    asked[m.OffsetFetchRequest].on_reply(
        m.OffsetFetchResponse(groups=[m.OffsetFetchResponseGroup(GROUP, [fetched])]), consumer.now
    )
    committed = m.OffsetCommitResponseTopic("", topic_id("flights"), [m.OffsetCommitResponsePartition(0, 0)])
    asked[m.OffsetCommitRequest].on_reply(m.OffsetCommitResponse(topics=[committed]), consumer.now)
    assert found == [{tp("flights-0"): OffsetAndMetadata(7)}]
    assert done == [None]


# --- no coordinator --------------------------------------------------------------------------------------------------


def test_who_has_seen_that_nothing_is_committed_may_have_it_looked_up_again():
    consumer = by_hand(auto_offset_reset="none")
    assert code_of(consumer.fatal()) is ErrorCode.OFFSET_OUT_OF_RANGE
    consumer.leave_poll()
    consumer.committed = {tp("flights-0"): 5, tp("flights-1"): 6}
    consumer.tick(1_000)
    assert consumer.core.consumed() == {}
    consumer.enter_poll()
    assert {p: offset.offset for p, offset in consumer.core.consumed().items()} == consumer.committed
