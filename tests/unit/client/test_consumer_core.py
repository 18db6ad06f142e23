"""The parts of a consumer together: the order of a poll (J6), and which call gets which error."""

from __future__ import annotations

import pytest

from muster.errors import ConfigError, ErrorCode, IllegalStateError, KafkaError
from muster.model import GroupMetadata
from muster.protocol import messages as m
from tests.support.client_harness import ConsumerHarness, stable_member, tp, tps


def kinds(consumer):
    """The requests that wait, in the order they were sent."""
    return [type(request).__name__ for _, request in consumer.pending]


def code_of(error):
    """The code of an error that must be Kafka's."""
    assert isinstance(error, KafkaError)
    return error.code


def test_the_order_of_a_poll():
    """J6: the heartbeat before the auto commit, positions and fetches last."""
    consumer = ConsumerHarness(heartbeat_interval_ms=5_000, auto_commit_interval_ms=5_000)
    consumer.auto.discard(m.OffsetFetchRequest)
    consumer.stable("flights-0")
    consumer.pending.clear()
    consumer.core.subscription.seek(tp("flights-0"), 3)
    consumer.core.subscription.assign_from_group(tps("flights-0 flights-1"))
    consumer.now += 5_000
    consumer.turn()
    assert kinds(consumer) == ["HeartbeatRequest", "OffsetCommitRequest", "OffsetFetchRequest", "FetchRequest"]


def test_the_coordinator_is_looked_for_only_when_somebody_needs_it():
    """J6, J7: if partitions are assigned by hand, with a position given, nobody looks up the coordinator."""
    consumer = ConsumerHarness(enable_auto_commit=False)
    consumer.core.assign([tp("flights-0")])
    consumer.core.subscription.seek(tp("flights-0"), 5)
    consumer.enter_poll()
    assert consumer.lookups == 0
    assert len(consumer.sent(m.FetchRequest)) == 1
    consumer.commit({"flights-0": 5})
    assert consumer.lookups == 1


def test_positions_begin_at_what_is_committed_and_else_at_the_reset_policy():
    consumer = ConsumerHarness(auto_offset_reset="earliest")
    consumer.committed = {tp("flights-0"): 7}
    consumer.stable("flights-0 flights-1")
    assert consumer.core.subscription.position(tp("flights-0")) == 7
    assert consumer.core.subscription.position(tp("flights-1")) == 0


def test_without_a_group_positions_begin_at_the_reset_policy():
    consumer = ConsumerHarness(group_id=None, auto_offset_reset="earliest")
    consumer.core.assign([tp("flights-1")])
    consumer.enter_poll()
    assert consumer.core.subscription.position(tp("flights-1")) == 0
    assert consumer.lookups == 0


@pytest.mark.parametrize("group_id", [None, "delays"])
def test_no_offset_and_no_policy_is_reported_once_for_each_poll(group_id):
    consumer = ConsumerHarness(group_id=group_id, auto_offset_reset="none")
    consumer.core.assign([tp("flights-1")])
    consumer.enter_poll()
    assert code_of(consumer.fatal()) is ErrorCode.OFFSET_OUT_OF_RANGE
    consumer.tick(10_000)
    assert consumer.events == []
    consumer.enter_poll()
    assert code_of(consumer.fatal()) is ErrorCode.OFFSET_OUT_OF_RANGE
    consumer.core.subscription.seek(tp("flights-1"), 2)
    consumer.enter_poll()
    assert consumer.events == []


@pytest.mark.parametrize("code", [ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.INVALID_TOPIC_EXCEPTION])
def test_topics_that_cannot_be_read_are_reported(code):
    consumer = ConsumerHarness()
    consumer.topic_errors = {"flights": code}
    consumer.subscribe()
    assert code_of(consumer.fatal()) is code


def test_an_error_that_has_not_been_seen_is_not_tried_again():
    """The error came while the user was away: the poll that raises it does not join as well."""
    consumer = ConsumerHarness(enable_auto_commit=False)
    consumer.subscribe()
    consumer.leave_poll()
    send, request = consumer.pending.pop()
    assert isinstance(request, m.JoinGroupRequest)
    send.on_reply(m.JoinGroupResponse(error_code=int(ErrorCode.GROUP_MAX_SIZE_REACHED)), consumer.now)
    consumer.core.enter_poll(consumer.now)
    assert consumer.core.poll(consumer.now) == []
    consumer.turn()
    assert code_of(consumer.fatal()) is ErrorCode.GROUP_MAX_SIZE_REACHED
    consumer.enter_poll()
    assert len(consumer.sent(m.JoinGroupRequest)) == 1


def test_a_core_without_fetcher_neither_fetches_nor_looks_positions_up():
    consumer = ConsumerHarness(fetch=False, auto_offset_reset="earliest")
    consumer.auto -= {m.OffsetFetchRequest, m.ListOffsetsRequest}
    consumer.stable()
    consumer.tick(60_000)
    assert set(kinds(consumer)) == {"HeartbeatRequest"}
    found: list[object] = []
    consumer.core.fetch_committed(tps("flights-0"), lambda result, _now: found.append(result))
    consumer.turn()
    assert len(consumer.sent(m.OffsetFetchRequest)) == 1


def test_group_metadata_is_what_a_transactional_producer_needs():
    consumer = ConsumerHarness(group_instance_id="i1")
    assert consumer.core.group_metadata() == GroupMetadata("delays", -1, "", "i1")
    consumer.stable(generation=4)
    assert consumer.core.group_metadata() == GroupMetadata("delays", 4, "m1", "i1")


def test_what_needs_a_group_says_so():
    consumer = ConsumerHarness(group_id=None)
    with pytest.raises(ConfigError):
        consumer.core.subscribe(["flights"])
    with pytest.raises(ConfigError):
        consumer.core.commit({}, lambda _error, _now: None)
    consumer.core.assign([tp("flights-0")])
    with pytest.raises(IllegalStateError):
        consumer.core.enforce_rebalance("no")


def test_by_hand_another_assignment_commits_the_old_one_where_auto_commit_is_on():
    consumer = ConsumerHarness(auto_commit_interval_ms=10**9)
    consumer.core.assign([tp("flights-0")])
    consumer.core.subscription.seek(tp("flights-0"), 9)
    consumer.core.assign([tp("flights-1")])
    consumer.turn()
    committed = consumer.sent(m.OffsetCommitRequest)[0].topics[0].partitions
    assert [(p.partition_index, p.committed_offset) for p in committed] == [(0, 9)]


def test_the_coordinator_is_not_asked_for_in_vain():
    consumer = ConsumerHarness()
    consumer.auto.discard(m.FindCoordinatorRequest)
    consumer.subscribe()
    consumer.tick(30_000)
    assert len(consumer.sent(m.FindCoordinatorRequest)) == 1
    assert consumer.sent(m.HeartbeatRequest) == []


def test_the_next_deadline_is_the_next_thing_to_do():
    consumer = stable_member(fetch=False)
    assert consumer.core.next_deadline(consumer.now) == consumer.now + 3_000
