"""Sharing out and syncing: what the leader does, and how a member takes each error of a sync (J5, J7)."""

from __future__ import annotations

import pytest

from muster.assignors import Assignor, MemberAssignment, RangeAssignor
from muster.client.core.group.member_state import MemberState, Step
from muster.errors import ErrorCode, MusterError
from muster.model import TopicPartition
from muster.protocol.messages import (
    JoinGroupRequest,
    MetadataRequest,
    SyncGroupRequest,
    SyncGroupResponse,
)
from muster.protocol.subscription import Subscription
from tests.support.client_harness import ALL, manual, tps


def test_the_leader_assigns_and_the_follower_sends_nothing():
    """J3, J4."""
    leader = manual()
    leader.subscribe()
    leader.accept_join(others={"m2": Subscription(["flights"])})
    assert leader.shares() == {"m1": tps("flights-0 flights-1"), "m2": tps("flights-2 flights-3")}
    follower = manual()
    follower.subscribe()
    follower.accept_join(leader="m2")
    assert follower.sent(SyncGroupRequest)[0].assignments == []
    assert follower.sent(SyncGroupRequest)[0].protocol_name == "range"


def test_the_leader_fetches_metadata_of_topics_that_only_others_subscribe_to():
    consumer = manual()
    consumer.topics["airports"] = 2
    consumer.subscribe()
    consumer.auto.discard(MetadataRequest)
    consumer.accept_join(others={"m2": Subscription(["airports"])})
    assert consumer.member.step is Step.LEADING
    request = consumer.sent(MetadataRequest)[0]
    assert [topic.name for topic in request.topics] == ["airports", "flights"]
    consumer.answer(MetadataRequest, consumer.metadata_response(request))
    assert consumer.shares() == {"m1": tps(ALL), "m2": tps("airports-0 airports-1")}


def test_a_topic_that_does_not_exist_holds_no_leader_up():
    consumer = manual()
    consumer.subscribe("flights", "nowhere")
    consumer.accept_join()
    assert consumer.shares() == {"m1": tps(ALL)}
    assert any("not assigned to any member: nowhere" in note for note in consumer.notes)


def test_a_returning_static_leader_skips_the_assignment():
    """KIP-814."""
    consumer = manual(group_instance_id="i1")
    consumer.subscribe()
    consumer.accept_join(skip_assignment=True)
    assert consumer.sent(SyncGroupRequest)[0].assignments == []
    consumer.accept_sync(ALL)
    consumer.finish_callback()
    consumer.topics["flights"] = 6  # it is leader all the same, and watches
    consumer.tick(consumer.config.metadata_max_age_ms)
    assert consumer.callback()[0] == "revoked"


def test_an_assignor_that_raises_is_the_users_error():
    class Broken(Assignor):
        name = "broken"

        def assign(self, partitions_per_topic, members):
            raise LookupError("no idea")

    consumer = manual(partition_assignment_strategy=(Broken(),))
    consumer.subscribe()
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
    class Broken(Assignor):
        name = "broken"

        def assign(self, partitions_per_topic, members):
            return result

    consumer = manual(partition_assignment_strategy=(Broken(),))
    consumer.subscribe()
    waits = []
    for _ in range(3):
        consumer.accept_join()
        assert isinstance(consumer.fatal(), MusterError)
        assert consumer.sent(SyncGroupRequest) == []
        consumer.enter_poll()
        failed_at = consumer.now
        while not consumer.sent(JoinGroupRequest):
            consumer.tick(10)
        waits.append(consumer.now - failed_at)
    assert 80 <= waits[0] < waits[1] < waits[2]
    result = {"m1": MemberAssignment(tps(ALL))}
    consumer.accept_join()
    consumer.accept_sync(ALL)
    assert consumer.callback() == ("assigned", tps(ALL))


def test_an_assignor_whose_data_cannot_be_had_is_the_users_error():
    class Shy(RangeAssignor):
        name = "shy"

        def subscription_user_data(self, topics):
            raise LookupError("no data")

    consumer = manual(partition_assignment_strategy=(Shy(),))
    consumer.subscribe()
    assert "assignor shy raised LookupError: no data" in str(consumer.fatal())
    assert consumer.core.member_state is MemberState.UNJOINED


@pytest.mark.parametrize("listening", [True, False])
def test_an_assignor_that_fails_to_hear_of_its_assignment_does_not_stop_it(listening):
    """As with Kafka's own client: the assignment stands, and poll raises once."""

    class Deaf(RangeAssignor):
        name = "deaf"

        def on_assignment(self, assignment, generation_id):
            raise RuntimeError("one hiccup")

    consumer = manual(partition_assignment_strategy=(Deaf(),), listening=listening)
    consumer.subscribe()
    consumer.accept_join()
    consumer.accept_sync(ALL)
    assert "assignor deaf raised RuntimeError: one hiccup" in str(consumer.fatal())
    if listening:
        assert consumer.finish_callback() == ("assigned", tps(ALL))
    assert consumer.events == []
    assert consumer.core.subscription.assignment() == tps(ALL)
    assert consumer.core.member_state is MemberState.STABLE
    consumer.tick(1_000)
    assert consumer.sent(JoinGroupRequest) == []


def test_a_follower_is_told_where_the_group_chose_what_it_never_offered():
    consumer = manual()
    consumer.subscribe()
    consumer.accept_join(leader="other", protocol="mystery")
    consumer.accept_sync(ALL)
    assert "'mystery', which was not offered" in str(consumer.fatal())


def test_a_users_assignor_is_asked_and_told():
    """J9."""
    told = []

    class Backwards(Assignor):
        name = "backwards"

        def subscription_user_data(self, topics):
            return b"me"

        def assign(self, partitions_per_topic, members):
            assert {member.user_data for member in members.values()} == {b"me"}
            partitions = [TopicPartition("flights", n) for n in range(partitions_per_topic["flights"])]
            return {member: MemberAssignment(partitions[::-1], b"you") for member in members}

        def on_assignment(self, assignment, generation_id):
            told.append((assignment, generation_id))

    consumer = manual(partition_assignment_strategy=(Backwards(),))
    consumer.subscribe()
    consumer.accept_join()
    share = consumer.sent(SyncGroupRequest)[0].assignments[0].assignment
    consumer.answer(SyncGroupRequest, SyncGroupResponse(assignment=share))
    assert told == [(MemberAssignment(tps(ALL), b"you"), 1)] or told[0][0].user_data == b"you"
    assert consumer.callback() == ("assigned", tps(ALL))


@pytest.mark.parametrize(
    ("code", "member_id"),
    [
        (ErrorCode.UNKNOWN_MEMBER_ID, ""),
        (ErrorCode.ILLEGAL_GENERATION, "m1"),
        (ErrorCode.REBALANCE_IN_PROGRESS, "m1"),
    ],
)
def test_errors_of_a_sync_that_lead_straight_to_another_join(code, member_id):
    consumer = manual()
    consumer.subscribe()
    consumer.accept_join()
    consumer.refuse_sync(code)
    assert consumer.join().member_id == member_id


@pytest.mark.parametrize("code", [ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE])
def test_a_sync_that_comes_to_the_wrong_coordinator_leads_to_another_join(code):
    consumer = manual()
    consumer.subscribe()
    consumer.accept_join()
    consumer.coordinator = 2
    consumer.refuse_sync(code)
    consumer.tick(100)
    assert consumer.join().member_id == "m1"


@pytest.mark.parametrize(
    "code", [ErrorCode.GROUP_AUTHORIZATION_FAILED, ErrorCode.FENCED_INSTANCE_ID, ErrorCode.UNKNOWN_SERVER_ERROR]
)
def test_other_errors_of_a_sync_are_the_users(code):
    consumer = manual()
    consumer.subscribe()
    consumer.accept_join()
    consumer.refuse_sync(code)
    assert consumer.fatal().code is code


def test_an_assignment_of_a_topic_no_longer_subscribed_to_leads_to_another_join():
    consumer = manual()
    consumer.topics["airports"] = 1
    consumer.subscribe()
    consumer.accept_join()
    consumer.core.subscribe(["airports"])
    consumer.accept_sync(ALL)
    consumer.finish_callback()  # revoked, of nothing: the share was not taken
    assert consumer.join().reason == "received assignment does not match the current subscription"
    assert consumer.core.subscription.assignment() == []
