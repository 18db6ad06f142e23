"""Finding the coordinator (J2)."""

from __future__ import annotations

import pytest

from muster.client.core.sends import LEAST_LOADED, FailureKind
from muster.errors import ErrorCode
from muster.protocol import messages as m
from tests.support.client_harness import GROUP, ConsumerHarness


def looking():
    """A consumer that has just requested its coordinator."""
    consumer = ConsumerHarness(enable_auto_commit=False)
    consumer.auto.discard(m.FindCoordinatorRequest)
    consumer.subscribe()
    return consumer


def refused(code):
    return m.FindCoordinatorResponse(coordinators=[m.Coordinator(GROUP, error_code=int(code))])


@pytest.mark.parametrize("version", range(m.FindCoordinatorRequest.MAX_VERSION + 1))
def test_the_question_goes_to_the_least_loaded_broker_in_every_version(version):
    consumer = ConsumerHarness(enable_auto_commit=False)
    consumer.auto.discard(m.FindCoordinatorRequest)
    consumer.versions[m.FindCoordinatorRequest] = version
    consumer.subscribe()
    send, request = consumer.pending[-1]
    assert send.node_id == LEAST_LOADED
    assert isinstance(request, m.FindCoordinatorRequest)
    assert request.coordinator_keys == ([GROUP] if version >= 4 else [])
    assert request.key == ("" if version >= 4 else GROUP)
    consumer.coordinator = 2
    consumer.pending.clear()
    send.on_reply(consumer._answer(request, version), consumer.now)
    consumer.turn()
    send, _ = next((s, r) for s, r in consumer.pending if isinstance(r, m.JoinGroupRequest))
    assert send.node_id == 2


@pytest.mark.parametrize("how", ["unreachable", "not available", "loading"])
def test_a_lookup_that_failed_refreshes_metadata_and_is_tried_again(how):
    consumer = looking()
    consumer.auto.discard(m.MetadataRequest)
    if how == "unreachable":
        consumer.fail(m.FindCoordinatorRequest, FailureKind.UNREACHABLE)
    else:
        code = ErrorCode.COORDINATOR_NOT_AVAILABLE if how == "not available" else ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        consumer.answer(m.FindCoordinatorRequest, refused(code))
    assert consumer.sent(m.FindCoordinatorRequest) == []
    consumer.tick(130)
    assert len(consumer.sent(m.MetadataRequest)) == 1
    assert len(consumer.sent(m.FindCoordinatorRequest)) == 1
    assert consumer.events == []


def test_a_lookup_that_is_not_allowed_is_the_users():
    consumer = looking()
    consumer.answer(m.FindCoordinatorRequest, refused(ErrorCode.GROUP_AUTHORIZATION_FAILED))
    assert consumer.fatal().code is ErrorCode.GROUP_AUTHORIZATION_FAILED


def test_a_coordinator_that_is_found_but_not_reached_is_given_up_with_backoff():
    consumer = looking()
    consumer.auto.add(m.FindCoordinatorRequest)
    answer = consumer._answer(consumer.sent(m.FindCoordinatorRequest)[0], 6)
    consumer.answer(m.FindCoordinatorRequest, answer)
    counts = []
    for _ in range(4):
        before = consumer.now
        consumer.fail(m.JoinGroupRequest, FailureKind.UNREACHABLE)
        while not consumer.sent(m.JoinGroupRequest):
            consumer.tick(10)
        counts.append(consumer.now - before)
    assert counts == sorted(counts)
    assert counts[-1] >= 300
    consumer.let_in("flights-0")
    consumer.finish_callback()
    consumer.tick(3_000)
    consumer.fail(m.HeartbeatRequest)
    before = consumer.now
    while not consumer.sent(m.HeartbeatRequest):
        consumer.tick(10)
    assert consumer.now - before <= 150  # a successful response in between has reset the backoff
