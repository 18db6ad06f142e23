"""A classic member of a group: join, sync, heartbeat, leave (J5, J7, J8, H3, H4; KIP-345, 394, 429, 800, 814).

Theory. Two things are kept apart, as in Kafka's own client.

The member's state in the group, its `MemberState`:

    UNJOINED --JoinGroup sent--> PREPARING_REBALANCE --answered--> COMPLETING_REBALANCE --SyncGroup answered--> STABLE
       ^                                                                                                          |
       +----------------- fenced, unknown, poll interval exceeded, left (the generation is reset) ----------------+

Heartbeats are sent in the last two. A rebalance that begins in a stable group leaves the member STABLE, with its
partitions and its right to commit, until its JoinGroup goes out.

What the member's rebalance waits for, its `RebalanceStep`:

    IDLE -> COMMITTING -> REVOKING -> JOINING -> [LEADING] -> SYNCING -> [RELEASING] -> ASSIGNING -> IDLE

COMMITTING and REVOKING are the join's preparation (J8). It runs once for each rebalance, however often the join itself
is tried, and again only after the generation was reset. Under EAGER it gives up every partition. Under COOPERATIVE it
gives up only partitions of topics that are no longer subscribed to; RELEASING later gives up what the new assignment
takes away, and then the member joins once more. If the generation was reset, the partitions are reported as lost, not
as revoked: they may have new owners already. In LEADING the leader waits for metadata of topics that only other members
subscribe to.

Preparation and release begin only while the user is in `poll` (`in_poll`): by then the user has handled what was handed
out before, so it may be committed. The other steps do not wait for the user.

The race that `_attempt` guards against: a JoinGroup is parked at the coordinator; the coordinator is given up, or the
user unsubscribes; the answer to the parked request arrives after all. It belongs to an attempt that has ended, and is
dropped.

This differs from Kafka's client in three ways. With auto commit, a COOPERATIVE member also commits right before it
releases partitions, so that records handled during the rebalance are not handled again. While the commit before the
join is under way, records of a topic that is no longer subscribed to are not handed out. And if a topic was deleted,
Kafka's client tries to commit its offsets for `max.poll.interval.ms` before it joins; this one joins immediately.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeVar

from muster.assignors import Assignor, MemberAssignment, RebalanceProtocol
from muster.client.config import ConsumerConfig
from muster.client.core.backoff import Backoff
from muster.client.core.coordinator_lookup import CoordinatorLookup
from muster.client.core.events import INFO, WARNING, CallbackKind, EventStream, Fatal
from muster.client.core.group import requests
from muster.client.core.group.assignment import Assignors, PendingAssignment
from muster.client.core.group.commit_first import CommitFirst
from muster.client.core.group.member import MemberCore
from muster.client.core.group.member_state import MemberGeneration, MemberState, RebalanceStep
from muster.client.core.group.topics import MemberTopics
from muster.client.core.metadata import ClusterMetadata
from muster.client.core.refusals import REJOIN_IMMEDIATELY
from muster.client.core.sends import AnySend, Channel, Failure, send
from muster.client.core.subscription_state import SubscriptionState
from muster.errors import ErrorCode, KafkaError, MusterError, error_code
from muster.model import CONSUMER_PROTOCOL_TYPE, TopicPartition
from muster.protocol.messages import (
    JoinGroupResponse,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)
from muster.protocol.subscription import (
    Assignment,
    decode_assignment,
)

MAX_PARTITIONS_LOGGED = 64

A = TypeVar("A", JoinGroupResponse, SyncGroupResponse)


class Membership(MemberCore):
    """One consumer's membership in its group."""

    def __init__(
        self,
        group_id: str,
        config: ConsumerConfig,
        assignors: list[Assignor],
        subscription: SubscriptionState,
        metadata: ClusterMetadata,
        lookup: CoordinatorLookup,
        events: EventStream,
        seed: int = 0,
    ) -> None:
        super().__init__(group_id, config, subscription, lookup, events, seed)
        self.is_leader = False
        self.topics = MemberTopics(config, subscription, metadata)
        self.commit_first = CommitFirst(config, subscription, metadata, events, seed)
        self.rebalances = self.failed_rebalances = 0
        self.rebalanced_at: int | None = None
        self.on_assigned: Callable[[int], None] = lambda _now: None
        """Called when an assignment takes effect."""
        self._assignors = Assignors(assignors)
        self._metadata = metadata
        self._assignor_failures = Backoff(config.retry_backoff_ms, config.retry_backoff_max_ms, seed)
        self._attempt = 0
        self._epoch_sent = 0
        self._retry_at = 0
        self._polled_at = 0
        self._pending: PendingAssignment | None = None

    @property
    def settled(self) -> bool:
        """Whether the listener was called for all partitions. Only then are positions looked up: a listener may
        seek."""
        return self.step is not RebalanceStep.ASSIGNING

    # --- poll --------------------------------------------------------------------------------------------------------

    def poll(self, now: int) -> list[AnySend]:
        """Do what is due; returns the requests to send."""
        self._polled_at = now
        if self._subscription.group_managed:
            self.topics.match_pattern(now)
            self._abandon_void_attempt(now)
            self._advance(now)
            self._poll_heartbeat(now)
        outbox, self._outbox = self._outbox, []
        return outbox

    def next_deadline(self, now: int) -> int | None:
        """When `poll` has something to do, if nothing arrives earlier."""
        if not self._subscription.group_managed:
            return None
        times = self.commit_first.deadlines()
        if self.step is RebalanceStep.IDLE and self.rejoin_needed and not self._halted:
            times.append(self._retry_at)
        if self.state.has_joined and self._lookup.node_id is not None:
            times += [self._heartbeat.send_at, self._heartbeat.session_ends_at]
            if not self._at_poll:
                times.append(self._heartbeat.poll_due_at)
        # Something that was due at the last poll and still is due waits for an event, not for time.
        later = [time for time in times if time > self._polled_at]
        return max(now, min(later)) if later else None

    def _advance(self, now: int) -> None:
        # While a callback is pending, the member is about to leave.
        if self.step is RebalanceStep.IDLE and not self.callback_pending:
            self._maybe_rejoin(now)
        elif self.step is RebalanceStep.LEADING:
            self._lead(now)
        if self.in_poll:
            self.commit_first.poll(now)

    def rejoin_needed_now(self) -> bool:
        """Whether the member must rejoin, for example because topics have changed since the last join."""
        reason = self.topics.change()
        if reason is not None and not self.rejoin_needed:
            self.request_rejoin(reason)
        return self.rejoin_needed

    def _maybe_rejoin(self, now: int) -> None:
        if not self.rejoin_needed_now() or self._halted or now < self._retry_at:
            return
        if self._lookup.need() is None or not self.topics.pattern_is_fresh(now):
            return
        if not self.needs_join_prepare:
            self._join(now)
        elif self.in_poll:
            self._prepare(now)

    # --- preparing the join (J8) -------------------------------------------------------------------------------------

    def _prepare(self, now: int) -> None:
        self.needs_join_prepare = False
        if self.commit_first.commit is None or self.generation_if_stable is None:
            self._give_up_before_join(now)
            return
        self._commit_before_join(now)

    def _commit_before_join(self, now: int) -> None:
        given_up = self._to_give_up_before_join()
        # Nothing more of these is handed out: the position would run ahead of what is being committed.
        self._subscription.mark_pending_revocation(given_up)
        self._commit_then(RebalanceStep.COMMITTING, partial(self._committed_before_join, given_up), now)

    def _committed_before_join(self, stopped: list[TopicPartition], now: int) -> None:
        """Give up the partitions that are not wanted. If the user changed the subscription during the commit, there are
        more of them, and their records were handed out meanwhile: commit again first.
        """
        changed = any(partition not in stopped for partition in self._to_give_up_before_join())
        if changed and self.generation_if_stable is not None:
            self._commit_before_join(now)
        else:
            self._give_up_before_join(now)

    def _commit_then(self, step: RebalanceStep, then: Callable[[int], None], now: int) -> None:
        self.step = step
        self.commit_first.begin(then, now)
        self._advance(now)

    def _to_give_up_before_join(self) -> list[TopicPartition]:
        owned = self._subscription.assignment()
        if self._assignors.protocol is RebalanceProtocol.EAGER:
            return owned
        return [partition for partition in owned if partition.topic not in self._subscription.topics]

    def _give_up_before_join(self, now: int) -> None:
        self.step = RebalanceStep.REVOKING
        owned = self._subscription.assignment()
        if self.generation.was_reset:
            # The generation was reset by an answer, or by leaving: others may own these partitions already.
            if not owned:
                self._after_giving_up([], now)
                return
            self._call(CallbackKind.LOST, owned, partial(self._after_giving_up, []), now)
        elif self._assignors.protocol is RebalanceProtocol.EAGER:
            self._call(CallbackKind.REVOKED, owned, partial(self._after_giving_up, []), now)
        else:
            given_up = self._to_give_up_before_join()
            kept = [partition for partition in owned if partition not in given_up]
            if not given_up:
                self._after_giving_up(kept, now)
                return
            self._subscription.mark_pending_revocation(given_up)
            self._call(CallbackKind.REVOKED, given_up, partial(self._after_giving_up, kept), now)

    def _after_giving_up(self, kept: list[TopicPartition], now: int) -> None:
        self._own(kept)
        self.is_leader = False
        self.topics.follow()
        self.topics.keep_fresh()
        self.step = RebalanceStep.IDLE
        if not self.needs_join_prepare:
            self._join(now)
        # Otherwise the generation was reset while the listener ran: another preparation reports the rest as lost.

    # --- join --------------------------------------------------------------------------------------------------------

    def _join(self, now: int) -> None:
        node_id = self._lookup.need()
        if node_id is None:
            return  # `_maybe_rejoin` is called again when it is found
        topics, owned = sorted(self._subscription.topics), self._subscription.assignment()
        try:
            protocols = self._assignors.protocols(topics, owned, self.generation, self._config.client_rack)
        except MusterError as error:
            self._failed(error, now)
            return
        self.state = self.state.to(MemberState.PREPARING_REBALANCE)
        self.step = RebalanceStep.JOINING
        self.topics.joining()
        self._begin_attempt()
        request = requests.join(self.group_id, self.generation, self._config, protocols, self.rejoin_reason)
        timeout = requests.join_timeout_ms(self._config)
        on_reply = partial(self._on_answer, self._attempt, partial(self._on_join, self.generation))
        self._outbox.append(send(node_id, request, on_reply, channel=Channel.COORDINATOR, timeout_ms=timeout))

    def _begin_attempt(self) -> None:
        self._attempt += 1
        self._epoch_sent = self._lookup.epoch

    def _abandon_void_attempt(self, now: int) -> None:
        """If the coordinator was given up, the request that is parked there is void: begin another attempt."""
        waiting = self.step in (RebalanceStep.JOINING, RebalanceStep.SYNCING, RebalanceStep.LEADING)
        if waiting and self._epoch_sent != self._lookup.epoch:
            self._failed(KafkaError(ErrorCode.NETWORK_EXCEPTION, "the coordinator was lost in the meantime"), now)

    def _on_answer(self, attempt: int, then: Callable[[A, ErrorCode, int], None], reply: A | Failure, now: int) -> None:
        """Handle what answers to JoinGroup and SyncGroup have in common; `then` handles the rest."""
        if attempt != self._attempt:
            return
        if isinstance(reply, Failure):
            self._lookup.failed(reply, now)
            self._failed(reply.error(), now)
            return
        code = error_code(reply.error_code)
        self._lookup.refused(code, now)
        if code is ErrorCode.NONE and reply.protocol_type not in (None, CONSUMER_PROTOCOL_TYPE):
            text = requests.other_type(reply.protocol_type)
            self._failed(KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, text), now)
            return
        then(reply, code, now)

    def _on_join(self, sent: MemberGeneration, reply: JoinGroupResponse, code: ErrorCode, now: int) -> None:
        if code is not ErrorCode.NONE:
            self._join_refused(code, sent, reply.member_id, now)
        elif self.state is not MemberState.PREPARING_REBALANCE:
            self._failed(KafkaError(ErrorCode.REBALANCE_IN_PROGRESS, "the member was reset while it joined"), now)
        elif self._missed_a_generation(reply.generation_id):
            self._reset("the group has assigned its partitions without it", forget_member=False)
            self._failed(KafkaError(ErrorCode.ILLEGAL_GENERATION, "a generation was missed"), now)
        else:
            self.state = self.state.to(MemberState.COMPLETING_REBALANCE)
            self._heartbeat.reset(now)
            self.generation = MemberGeneration(reply.generation_id, reply.member_id, reply.protocol_name)
            if reply.leader == reply.member_id:
                self._become_leader(reply, now)
            else:
                self._sync([], now)

    def _missed_a_generation(self, generation_id: int) -> bool:
        """Whether this member's partitions may have had other owners, although the group lets it in again.

        A dynamic member that misses a rebalance is removed. A static member stays in the group for its session timeout,
        with the subscription of its last join, which does not list what it was assigned after that. The sequence: its
        JoinGroup is held up on the way; other members are given its partitions, read and commit them; then the
        JoinGroup arrives. What the member still owns is lost, as if a heartbeat had said so. Kafka's client keeps it,
        and when it revokes it, its commit overwrites what the new owner has committed.
        """
        is_static = self._config.group_instance_id is not None
        owns = bool(self._subscription.assignment()) and not self.generation.was_reset
        return is_static and owns and generation_id > self.generation.generation_id + 1

    def _join_refused(self, code: ErrorCode, sent: MemberGeneration, member_id: str, now: int) -> None:
        if code is ErrorCode.MEMBER_ID_REQUIRED:
            self.generation = MemberGeneration(member_id=member_id)
            self.request_rejoin(f"need to re-join with the given member-id: {member_id}")
        elif code is ErrorCode.UNKNOWN_MEMBER_ID and self.generation == sent:
            self.reset_on_error("JoinGroup", code)
        self._failed(KafkaError(code, requests.explain(code, self.group_id, self._config)), now)

    # --- lead and sync (J4) ------------------------------------------------------------------------------------------

    def _become_leader(self, reply: JoinGroupResponse, now: int) -> None:
        try:
            self._pending = PendingAssignment.of(reply, self._metadata.refreshes)
        except MusterError as error:
            self._failed(error, now)
            return
        self.topics.keep_fresh(self._pending.topics)
        self.step = RebalanceStep.LEADING
        self._begin_attempt()
        self._lead(now)

    def _lead(self, now: int) -> None:
        pending = self._pending
        assert pending is not None
        if not pending.knows(self._metadata):
            self._metadata.request_update(now)
            return
        self._pending = None
        self.topics.match_pattern(now)
        self.is_leader = True
        assignments: list[SyncGroupRequestAssignment] = []
        if not pending.skip_assignment:  # otherwise a static leader came back, and the old assignment is kept (KIP-814)
            try:
                shares = self._assignors.assign(pending, self._metadata)
                assignments = self._assignors.encode(pending, shares)
            except MusterError as error:
                self._failed(error, now)
                return
            self._report_assignment(pending, shares)
        self.topics.assigned_from(pending.topics)
        self._sync(assignments, now)

    def _report_assignment(self, pending: PendingAssignment, shares: Mapping[str, MemberAssignment]) -> None:
        assigned = {topic for share in shares.values() for topic in share.topics()}
        unassigned = sorted(pending.topics - assigned)
        if unassigned:
            text = f"these subscribed topics are not assigned to any member: {', '.join(unassigned)}"
            self._note(WARNING, text)
        if not assigned <= pending.topics:
            pending.topics |= assigned
            self.topics.keep_fresh(pending.topics)
        self._note(INFO, f"as leader of group {self.group_id}, assigned by {pending.protocol_name}: {_summary(shares)}")

    def _sync(self, assignments: list[SyncGroupRequestAssignment], now: int) -> None:
        node_id = self._lookup.need()
        if node_id is None:
            self._failed(KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE), now)
            return
        self.step = RebalanceStep.SYNCING
        self._begin_attempt()
        request = requests.sync(self.group_id, self.generation, self._config, assignments)
        on_reply = partial(self._on_answer, self._attempt, partial(self._on_sync, self.generation))
        self._outbox.append(send(node_id, request, on_reply, channel=Channel.COORDINATOR))

    def _on_sync(self, sent: MemberGeneration, reply: SyncGroupResponse, code: ErrorCode, now: int) -> None:
        if code is not ErrorCode.NONE:
            if code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION) and self.generation == sent:
                self.reset_on_error("SyncGroup", code)
            self._failed(KafkaError(code, requests.explain(code, self.group_id, self._config)), now)
        elif self.generation.was_reset or self.state is not MemberState.COMPLETING_REBALANCE:
            self._failed(KafkaError(ErrorCode.ILLEGAL_GENERATION, "the member was reset while it synced"), now)
        elif reply.protocol_name not in (None, self.generation.protocol_name):
            message = f"SyncGroup names assignor {reply.protocol_name}, JoinGroup named {self.generation.protocol_name}"
            self._failed(KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, message), now)
        else:
            self._become_stable(reply.assignment, now)

    # --- the join fails ----------------------------------------------------------------------------------------------

    def _failed(self, error: MusterError, now: int) -> None:
        """An attempt has failed. Try again immediately, after a backoff, or once the user has seen the error."""
        self._attempt += 1
        self._pending = None
        self.step = RebalanceStep.IDLE
        code = error.code if isinstance(error, KafkaError) else None
        if code is not ErrorCode.MEMBER_ID_REQUIRED:
            self.failed_rebalances += 1
            name = code.name if code is not None else type(error).__name__
            self.request_rejoin(f"rebalance failed due to {name}")
        if code in REJOIN_IMMEDIATELY:
            self._maybe_rejoin(now)
        elif code is not None and code.retriable:
            self._retry_at = now + self._config.retry_backoff_ms
        else:
            if code is None:
                # An assignor failed, and will fail again. Each try costs the whole group a rebalance, so it waits for a
                # backoff, not only for the user's next poll.
                self._retry_at = now + self._assignor_failures.next_wait_ms()
            self._report(error)

    # --- the join succeeds -------------------------------------------------------------------------------------------

    def _become_stable(self, data: bytes, now: int) -> None:
        self.state = self.state.to(MemberState.STABLE)
        self.rejoin_needed = False
        self.rejoin_reason = ""
        self._assignor_failures.reset()
        self.topics.joined(is_leader=self.is_leader)
        try:
            share = decode_assignment(data)
        except MusterError as error:
            self.needs_join_prepare = True
            self._failed(error, now)
            return
        unsubscribed = [partition for partition in share.partitions if not self.topics.is_subscribed(partition.topic)]
        if unsubscribed:
            self.step = RebalanceStep.IDLE
            self.needs_join_prepare = True
            self.request_rejoin("received assignment does not match the current subscription")
            return
        assigned = set(share.partitions)
        released = [partition for partition in self._subscription.assignment() if partition not in assigned]
        if not released:
            self._take(share, self.generation, now)
            return
        # Only under COOPERATIVE is anything owned here: KIP-429's second phase.
        self._subscription.mark_pending_revocation(released)
        then = partial(self._release, released, share, self.generation)
        if self.commit_first.commit is not None:
            self._commit_then(RebalanceStep.RELEASING, then, now)
        else:
            self.step = RebalanceStep.RELEASING
            then(now)

    def _release(self, released: list[TopicPartition], share: Assignment, joined: MemberGeneration, now: int) -> None:
        self.step = RebalanceStep.RELEASING
        kind = CallbackKind.LOST if self.generation.was_reset else CallbackKind.REVOKED
        self._call(kind, released, partial(self._after_release, released, share, joined), now)

    def _after_release(
        self, released: list[TopicPartition], share: Assignment, joined: MemberGeneration, now: int
    ) -> None:
        if self.generation == joined:
            self.request_rejoin("need to revoke partitions and re-join")
            self._take(share, joined, now)
            return
        # The generation was reset while the listener ran: this member no longer owns any of its partitions.
        gone = set(released)
        self._own([partition for partition in self._subscription.assignment() if partition not in gone])
        self.needs_join_prepare = True
        self.step = RebalanceStep.IDLE

    def _take(self, share: Assignment, joined: MemberGeneration, now: int) -> None:
        self.step = RebalanceStep.ASSIGNING
        self.topics.learn({partition.topic for partition in share.partitions})
        error = self._assignors.notify(MemberAssignment(share.partitions, share.user_data), joined)
        owned = set(self._subscription.assignment())
        added = [partition for partition in sorted(share.partitions) if partition not in owned]
        self._own(sorted(share.partitions))
        self.rebalances += 1
        self.rebalanced_at = now
        self.on_assigned(now)
        self._call(CallbackKind.ASSIGNED, added, self._after_assigned, now)
        if error is not None:  # the assignment takes effect nevertheless
            self._events.append(Fatal(error))

    def _after_assigned(self, now: int) -> None:
        self.needs_join_prepare = True
        self.step = RebalanceStep.IDLE

    # --- the end of a subscription -----------------------------------------------------------------------------------

    def forget_matches(self) -> None:
        """The pattern has changed."""
        self.topics.forget_matches(self._polled_at)

    def forget_subscription(self) -> None:
        """The user has unsubscribed: the next subscription starts afresh."""
        self.topics.forget()
        self.step = RebalanceStep.IDLE
        self.rejoin_reason = ""

    def _drop_attempt(self) -> None:
        """Forget the current rebalance."""
        if self.commit_first.drop():
            self.step = RebalanceStep.IDLE
        if self.step in (RebalanceStep.JOINING, RebalanceStep.SYNCING) and self._lookup.node_id is not None:
            self._parked = True
        if self.step in (RebalanceStep.JOINING, RebalanceStep.SYNCING, RebalanceStep.LEADING):
            self._attempt += 1
            self._pending = None
            self.step = RebalanceStep.IDLE


def _summary(shares: Mapping[str, MemberAssignment]) -> str:
    """An assignment for the log: partition by partition if that fits on a line, otherwise only the numbers."""
    count = sum(share.count() for share in shares.values())
    if count > MAX_PARTITIONS_LOGGED or len(shares) > MAX_PARTITIONS_LOGGED:
        return f"{count} partitions to {len(shares)} members"
    return "; ".join(f"{member}: {', '.join(map(str, share.partitions))}" for member, share in shares.items())
