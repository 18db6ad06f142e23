"""Assigning and syncing: what the leader does, and how a member handles each error of a sync (J5, J7)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from muster.assignors import Assignor, MemberAssignment, RangeAssignor
from muster.client.core.group.member_state import MemberState, RebalanceStep
from muster.errors import ErrorCode, MusterError
from muster.model import TopicPartition
from muster.protocol import messages as m
from muster.protocol.subscription import Subscription
from tests.support.client_harness import ALL, joining, manual, tps


def test_the_leader_assigns_and_the_follower_sends_nothing():
    """J3, J4."""
    leader = joining()
    leader.accept_join(others={"m2": Subscription(["flights"])})
    assert leader.shares() == {"m1": tps("flights-0 flights-1"), "m2": tps("flights-2 flights-3")}
    follower = joining()
    follower.accept_join(leader="m2")
    assert follower.sent(m.SyncGroupRequest)[0].assignments == []
    assert follower.sent(m.SyncGroupRequest)[0].protocol_name == "range"


def test_the_leader_fetches_metadata_of_topics_that_only_others_subscribe_to():
    consumer = manual()
    consumer.topics["airports"] = 2
    consumer.subscribe()
    consumer.auto.discard(m.MetadataRequest)
    consumer.accept_join(others={"m2": Subscription(["airports"])})
    assert consumer.member.step is RebalanceStep.LEADING
    request = consumer.sent(m.MetadataRequest)[0]
    assert [topic.name for topic in request.topics] == ["airports", "flights"]
    consumer.answer(m.MetadataRequest, consumer.metadata_response(request))
    assert consumer.shares() == {"m1": tps(ALL), "m2": tps("airports-0 airports-1")}


def test_a_topic_that_does_not_exist_holds_no_leader_up():
    consumer = manual()
    consumer.subscribe("flights", "nowhere")
    consumer.accept_join()
    assert consumer.shares() == {"m1": tps(ALL)}
    assert any("not assigned to any member: nowhere" in note for note in consumer.notes)


def test_a_returning_static_leader_skips_the_assignment():
    """KIP-814."""
    consumer = joining(group_instance_id="i1")
    consumer.accept_join(skip_assignment=True)
    assert consumer.sent(m.SyncGroupRequest)[0].assignments == []
    consumer.accept_sync(ALL)
    consumer.finish_callback()
    consumer.topics["flights"] = 6  # it is still the leader, and watches the topics
    consumer.tick(consumer.config.metadata_max_age_ms)
    assert consumer.callback()[0] == "revoked"


def assignor(name: str, **methods: Any) -> Assignor:
    """A user's own assignor: range except for these methods."""
    made: Assignor = type(
        name, (RangeAssignor,), {"name": name} | {key: staticmethod(each) for key, each in methods.items()}
    )()
    return made


def raises(error: Exception) -> Callable[..., Any]:
    def method(*_: Any) -> Any:
        raise error

    return method


def test_an_assignor_that_raises_is_the_users_error():
    broken = assignor("broken", assign=raises(LookupError("no idea")))
    consumer = joining(partition_assignment_strategy=(broken,))
    consumer.accept_join()
    error = consumer.fatal()
    assert "broken raised LookupError: no idea" in str(error)


@pytest.mark.parametrize(
    "result",
    [
        None,
        {},
        {"m1": None},
        {"m1": MemberAssignment([TopicPartition("flights", -1)])},
        {"m1": MemberAssignment([TopicPartition("\ud800", 0)])},
        {"m1": MemberAssignment(tps(ALL), "no bytes")},  # type: ignore[arg-type]
    ],
)
def test_an_assignor_that_makes_no_assignment_is_the_users_error_and_tried_again_later(result):
    consumer = joining(partition_assignment_strategy=(assignor("broken", assign=lambda *_: result),))
    waits = []
    for _ in range(3):
        consumer.accept_join()
        assert isinstance(consumer.fatal(), MusterError)
        assert consumer.sent(m.SyncGroupRequest) == []
        consumer.enter_poll()
        failed_at = consumer.now
        while not consumer.sent(m.JoinGroupRequest):
            consumer.tick(10)
        waits.append(consumer.now - failed_at)
    assert 80 <= waits[0] < waits[1] < waits[2]
    result = {"m1": MemberAssignment(tps(ALL))}
    consumer.let_in(ALL)
    assert consumer.callback() == ("assigned", tps(ALL))


def test_an_assignor_whose_data_cannot_be_had_is_the_users_error():
    shy = assignor("shy", subscription_user_data=raises(LookupError("no data")))
    consumer = joining(partition_assignment_strategy=(shy,))
    assert "assignor shy raised LookupError: no data" in str(consumer.fatal())
    assert consumer.core.member_state is MemberState.UNJOINED


@pytest.mark.parametrize("listening", [True, False])
def test_an_assignor_that_fails_to_hear_of_its_assignment_does_not_stop_it(listening):
    """Like Kafka's own client: the assignment is applied, and poll raises once."""
    deaf = assignor("deaf", on_assignment=raises(RuntimeError("one hiccup")))
    consumer = joining(partition_assignment_strategy=(deaf,), listening=listening)
    consumer.let_in(ALL)
    assert "assignor deaf raised RuntimeError: one hiccup" in str(consumer.fatal())
    if listening:
        assert consumer.finish_callback() == ("assigned", tps(ALL))
    assert consumer.events == []
    assert consumer.core.subscription.assignment() == tps(ALL)
    assert consumer.core.member_state is MemberState.STABLE
    consumer.tick(1_000)
    assert consumer.sent(m.JoinGroupRequest) == []


def test_a_follower_gets_an_error_if_the_group_chose_what_it_never_offered():
    consumer = joining()
    consumer.let_in(ALL, leader="other", protocol="mystery")
    assert "'mystery', which was not offered" in str(consumer.fatal())


def test_a_users_assignor_is_asked_and_notified():
    """J9."""
    reported = []

    class Backwards(Assignor):
        name = "backwards"

        def subscription_user_data(self, topics):
            return b"me"

        def assign(self, partitions_per_topic, members):
            assert {member.user_data for member in members.values()} == {b"me"}
            partitions = [TopicPartition("flights", n) for n in range(partitions_per_topic["flights"])]
            return {member: MemberAssignment(partitions[::-1], b"you") for member in members}

        def on_assignment(self, assignment, generation_id):
            reported.append((assignment, generation_id))

    consumer = joining(partition_assignment_strategy=(Backwards(),))
    consumer.accept_join()
    share = consumer.sent(m.SyncGroupRequest)[0].assignments[0].assignment
    consumer.answer(m.SyncGroupRequest, m.SyncGroupResponse(assignment=share))
    assert reported == [(MemberAssignment(tps(ALL), b"you"), 1)] or reported[0][0].user_data == b"you"
    assert consumer.callback() == ("assigned", tps(ALL))


@pytest.mark.parametrize(
    ("code", "member_id"),
    [
        (ErrorCode.UNKNOWN_MEMBER_ID, ""),
        (ErrorCode.ILLEGAL_GENERATION, "m1"),
        (ErrorCode.REBALANCE_IN_PROGRESS, "m1"),
        (ErrorCode.NOT_COORDINATOR, "m1"),
        (ErrorCode.COORDINATOR_NOT_AVAILABLE, "m1"),
        (ErrorCode.GROUP_AUTHORIZATION_FAILED, None),
        (ErrorCode.FENCED_INSTANCE_ID, None),
        (ErrorCode.UNKNOWN_SERVER_ERROR, None),
    ],
)
def test_an_error_of_a_sync_leads_to_another_join_or_is_the_users(code, member_id):
    consumer = joining()
    consumer.accept_join()
    consumer.coordinator = 2
    consumer.refuse_sync(code)
    if member_id is None:
        assert consumer.fatal().code is code
    else:
        consumer.tick(100 if code.stale_coordinator else 0)
        assert consumer.join().member_id == member_id


def test_an_assignment_of_a_topic_no_longer_subscribed_to_leads_to_another_join():
    consumer = manual()
    consumer.topics["airports"] = 1
    consumer.subscribe()
    consumer.accept_join()
    consumer.core.subscribe(["airports"])
    consumer.accept_sync(ALL)
    consumer.finish_callback()  # nothing is revoked: the assignment was not accepted
    assert consumer.join().reason == "received assignment does not match the current subscription"
    assert consumer.core.subscription.assignment() == []
