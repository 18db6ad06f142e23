"""A member under any order of answers, errors, lost connections and calls of its user (Hypothesis).

Whatever happens: it comes to rest, the listener's view and the assignment agree, it owns only what the group assigned,
and once everything is answered normally the member is stable again.
"""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from muster.client.core.events import CallbackKind, Fatal, RebalanceCallback
from muster.client.core.group.member_state import MemberState, RebalanceStep
from muster.client.core.sends import FailureKind
from muster.errors import ErrorCode
from muster.model import TopicPartition
from muster.protocol import messages as m
from muster.protocol.subscription import Subscription, decode_subscription
from tests.support.client_harness import ConsumerHarness, tps
from tests.support.scale import examples

EVERYTHING = tps("flights-0 flights-1 flights-2 flights-3")

JOIN_ERRORS = [
    ErrorCode.MEMBER_ID_REQUIRED,
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.REBALANCE_IN_PROGRESS,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.GROUP_MAX_SIZE_REACHED,
]
HEARTBEAT_ERRORS = [
    ErrorCode.NONE,
    ErrorCode.REBALANCE_IN_PROGRESS,
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.UNKNOWN_SERVER_ERROR,
]
COMMIT_ERRORS = [
    ErrorCode.NONE,
    ErrorCode.REBALANCE_IN_PROGRESS,
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
]
WAITING = (m.JoinGroupRequest, m.SyncGroupRequest, m.HeartbeatRequest, m.OffsetCommitRequest, m.LeaveGroupRequest)


class Member(RuleBasedStateMachine):
    """One consumer and everything that can happen to it."""

    @initialize(strategy=st.sampled_from(["range", "cooperative-sticky"]), auto=st.booleans(), static=st.booleans())
    def begin(self, strategy, auto, static):
        self.consumer = ConsumerHarness(
            partition_assignment_strategy=strategy,
            enable_auto_commit=auto,
            group_instance_id="i1" if static else None,
            max_poll_interval_ms=60_000,
        )
        self.consumer.topics = {"flights": 4, "airports": 2}
        self.generation = 0
        self.joined: set[str] = set()
        self.given: set[TopicPartition] = set()
        self.view: set[TopicPartition] = set()
        self.consumer.subscribe("flights")

    def has(self, kind: type[Any]) -> bool:
        return bool(self.consumer.sent(kind))

    # --- the group ---------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.has(m.JoinGroupRequest))
    @rule(leads=st.booleans(), skip=st.booleans(), others=st.booleans())
    def join_is_answered(self, leads, skip, others):
        self.generation += 1
        self.joined = set(decode_subscription(self.consumer.join().protocols[0].metadata).topics)
        more = {"m2": Subscription(["flights", "airports"])} if others else {}
        leader = "m1" if leads else "m2"
        self.consumer.accept_join(self.generation, leader=leader, others=more, skip_assignment=skip)

    @precondition(lambda self: self.has(m.JoinGroupRequest))
    @rule(code=st.sampled_from(JOIN_ERRORS))
    def join_is_refused(self, code):
        self.consumer.refuse_join(code, "m1" if code is ErrorCode.MEMBER_ID_REQUIRED else "")

    @precondition(lambda self: self.has(m.SyncGroupRequest))
    @rule(share=st.sets(st.sampled_from([*EVERYTHING, *tps("airports-0 airports-1")])))
    def sync_is_answered(self, share):
        share = {partition for partition in share if partition.topic in self.joined}
        self.given |= share
        self.consumer.accept_sync(sorted(share))

    @precondition(lambda self: self.has(m.SyncGroupRequest))
    @rule(code=st.sampled_from(JOIN_ERRORS[1:-1]))
    def sync_is_refused(self, code):
        self.consumer.refuse_sync(code)

    @precondition(lambda self: self.has(m.HeartbeatRequest))
    @rule(code=st.sampled_from(HEARTBEAT_ERRORS))
    def heartbeat_is_answered(self, code):
        self.consumer.heartbeat(code)

    @precondition(lambda self: self.has(m.OffsetCommitRequest))
    @rule(code=st.sampled_from(COMMIT_ERRORS))
    def commit_is_answered(self, code):
        self.consumer.accept_commit(code)

    @precondition(lambda self: any(self.has(kind) for kind in WAITING))
    @rule(kind=st.sampled_from(WAITING), failure=st.sampled_from(list(FailureKind)[:3]))
    def a_connection_breaks(self, kind, failure):
        if self.has(kind):
            self.consumer.coordinator = 3 - self.consumer.coordinator
            self.consumer.fail(kind, failure)

    # --- the user ----------------------------------------------------------------------------------------------------

    @rule()
    def the_user_comes(self):
        self.drop_errors()
        self.consumer.enter_poll()

    @rule()
    def the_user_goes(self):
        self.consumer.leave_poll()

    @rule(topics=st.sampled_from([("flights",), ("airports",), ("flights", "airports")]))
    def the_user_subscribes(self, topics):
        self.consumer.core.subscribe(topics)
        self.consumer.turn()

    @rule(partition=st.sampled_from(EVERYTHING))
    def the_user_commits(self, partition):
        self.consumer.commit({str(partition): 1}, until=self.consumer.now + 5_000)

    @precondition(lambda self: any(isinstance(e, RebalanceCallback) for e in self.consumer.events))
    @rule()
    def the_listener_returns(self):
        kind, partitions = self.consumer.finish_callback()
        if kind == CallbackKind.ASSIGNED.value:
            assert not self.view & set(partitions)
            self.view |= set(partitions)
        else:
            assert set(partitions) <= self.view
            self.view -= set(partitions)

    # --- time --------------------------------------------------------------------------------------------------------

    @rule(milliseconds=st.sampled_from([1, 100, 3_000, 20_000]))
    def time_passes(self, milliseconds):
        self.consumer.tick(milliseconds)

    @rule(count=st.sampled_from([4, 5]))
    def a_topic_changes(self, count):
        self.consumer.topics["flights"] = count

    # --- invariants -------------------------------------------------------------------------------------------

    @invariant()
    def nothing_is_owned_that_was_not_given(self):
        owned = set(self.consumer.core.subscription.assignment())
        assert owned <= self.given
        assert owned == set(self.consumer.member.ownership)

    @invariant()
    def one_callback_waits_at_most_and_the_views_agree(self):
        waiting = [event for event in self.consumer.events if isinstance(event, RebalanceCallback)]
        assert len(waiting) <= 1
        if not waiting:
            assert self.view == set(self.consumer.core.subscription.assignment())

    @invariant()
    def a_stable_member_has_a_generation(self):
        member = self.consumer.member
        assert (member.state is MemberState.STABLE) <= (not member.generation.was_reset)

    def drop_errors(self):
        self.consumer.events = [event for event in self.consumer.events if not isinstance(event, Fatal)]

    def share(self):
        """The current assignment: what the member decided as the leader, or everything that it subscribed to."""
        everything = [
            TopicPartition(name, n) for name in sorted(self.joined) for n in range(self.consumer.topics[name])
        ]
        return self.consumer.shares().get("m1", everything)

    def answer_well(self):
        """One step towards a healthy group. Returns whether there was nothing left to do."""
        consumer, member = self.consumer, self.consumer.member
        self.the_user_comes()
        if any(isinstance(event, RebalanceCallback) for event in consumer.events):
            self.the_listener_returns()
        elif self.has(m.JoinGroupRequest):
            self.join_is_answered(True, False, False)
        elif self.has(m.SyncGroupRequest):
            share = self.share()
            self.given |= set(share)
            consumer.accept_sync(share)
        elif self.has(m.HeartbeatRequest):
            consumer.heartbeat()
        elif self.has(m.OffsetCommitRequest):
            consumer.accept_commit()
        elif self.has(m.LeaveGroupRequest):
            consumer.accept_leave()
        elif member.state is MemberState.STABLE and member.step is RebalanceStep.IDLE and not member.rejoin_needed:
            return True
        else:
            consumer.tick(100)
        return False

    def teardown(self):
        if not hasattr(self, "consumer"):
            return
        assert any(self.answer_well() for _ in range(200))
        topics = {partition.topic for partition in self.consumer.core.subscription.assignment()}
        assert topics <= self.consumer.core.subscription.topics


TestMember = Member.TestCase
TestMember.settings = settings(
    max_examples=examples(60), stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
