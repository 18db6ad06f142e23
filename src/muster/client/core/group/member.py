"""What every phase of a membership needs: the member's identity, its heartbeats, its listener, leaving.

The theory is at the head of `membership.py`, which adds the rebalance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from muster.client.config import ConsumerConfig
from muster.client.core.coordinator_lookup import CoordinatorLookup
from muster.client.core.events import (
    DEBUG,
    INFO,
    WARNING,
    CallbackKind,
    Disconnect,
    EventStream,
    Fatal,
    Note,
    RebalanceCallback,
)
from muster.client.core.group import requests
from muster.client.core.group.heartbeat import Heartbeat
from muster.client.core.group.member_state import NO_GENERATION, MemberGeneration, MemberState, RebalanceStep
from muster.client.core.refusals import MEMBERSHIP_ENDED
from muster.client.core.sends import AnySend, Channel, Failure, Send, send
from muster.client.core.subscription_state import SubscriptionState
from muster.errors import ErrorCode, KafkaError, MusterError, error_code
from muster.model import TopicPartition
from muster.protocol.messages import HeartbeatResponse, LeaveGroupRequest, LeaveGroupResponse


class MemberCore:
    """A member of a group, without the rules of its rebalances.

    `Membership` inherits from it, although the client otherwise prefers composition: both write the same state, step
    and generation, and call the same listener, so a separate object would need a dozen names passed through.
    """

    def __init__(
        self,
        group_id: str,
        config: ConsumerConfig,
        subscription: SubscriptionState,
        lookup: CoordinatorLookup,
        events: EventStream,
        seed: int,
    ) -> None:
        self.group_id = group_id
        self.state = MemberState.UNJOINED
        self.step = RebalanceStep.IDLE
        self.generation = NO_GENERATION
        self.in_poll = False
        """Whether the user's code is in `poll`; see the head of `membership.py`."""
        self.listening = False
        """Whether there is a listener to call; if not, the rebalance continues immediately."""
        self.ownership: dict[TopicPartition, int] = {}
        """For each partition assigned to this member, a number unique to this ownership."""
        self.rejoin_needed = True
        self.rejoin_reason = ""
        self.needs_join_prepare = True
        self._config = config
        self._subscription = subscription
        self._lookup = lookup
        self._events = events
        self._heartbeat = Heartbeat(config, seed)
        self._outbox: list[AnySend] = []
        self._session_epoch = -1
        self._halted = False
        self._owned_counter = 0
        self._callback: tuple[int, Callable[[int], None]] | None = None
        self._token = 0
        self._parked = False

    # --- for other parts ---------------------------------------------------------------------------------------------

    @property
    def generation_if_stable(self) -> MemberGeneration | None:
        """The generation under which offsets can be committed now."""
        return self.generation if self.state is MemberState.STABLE else None

    @property
    def rebalance_in_progress(self) -> bool:
        """Whether this member has joined, or is joining, but has no assignment yet."""
        return self.state in (MemberState.PREPARING_REBALANCE, MemberState.COMPLETING_REBALANCE)

    @property
    def callback_pending(self) -> bool:
        """Whether the listener was called and has not returned."""
        return self._callback is not None

    def request_rejoin(self, reason: str) -> None:
        """Join again, and say why (KIP-800)."""
        self.rejoin_needed = True
        self.rejoin_reason = reason
        self._note(INFO, f"group {self.group_id} must be rejoined: {reason}")

    def polled(self, now: int) -> None:
        """The user's code has called `poll`."""
        self._heartbeat.polled(now)

    def resume(self) -> None:
        """The user has seen the error that was reported: joining may be retried."""
        self._halted = False

    def reset_on_error(self, request: str, code: ErrorCode) -> None:
        """An answer said that the generation has ended. After ILLEGAL_GENERATION the member id is kept."""
        self._reset(f"{request} was answered {code.name}", forget_member=code is not ErrorCode.ILLEGAL_GENERATION)

    def _reset(self, reason: str, *, forget_member: bool) -> None:
        self._note(INFO, f"this member's generation of group {self.group_id} has ended: {reason}")
        self.state = self.state.to(MemberState.UNJOINED)
        self.generation = NO_GENERATION if forget_member else MemberGeneration(member_id=self.generation.member_id)
        self.rejoin_needed = True
        self.rejoin_reason = reason
        self.needs_join_prepare = True
        self._withdraw_callbacks()

    def _report(self, error: MusterError) -> None:
        self._halted = True
        self._events.append(Fatal(error))

    def _note(self, level: int, text: str) -> None:
        self._events.append(Note(level, text))

    # --- the listener ------------------------------------------------------------------------------------------------

    def _call(
        self, kind: CallbackKind, partitions: Iterable[TopicPartition], then: Callable[[int], None], now: int
    ) -> None:
        if not self.listening:
            then(now)
            return
        self._token += 1
        self._callback = self._token, then
        self._events.append(RebalanceCallback(kind, tuple(partitions), self._token))

    def callback_done(self, token: int, now: int) -> None:
        """The listener has returned from the call with this token. An older token is ignored."""
        if self._callback is None or self._callback[0] != token:
            return
        _, then = self._callback
        self._callback = None
        self._heartbeat.polled(now)
        then(now)

    def _withdraw_callbacks(self) -> None:
        """Take back the listener calls of an ended rebalance that were not made yet.

        The sequence: the join is answered while the user handles records, so `assigned` waits for the next poll; the
        user does not poll for too long, and the member leaves. If the listener were called then, it would treat
        partitions as its own although other members already have them. Partitions that the listener already knows are
        reported as lost by the next preparation, or given up when the member leaves.
        """
        if self.step not in (RebalanceStep.REVOKING, RebalanceStep.RELEASING, RebalanceStep.ASSIGNING):
            return
        for event in [event for event in self._events if isinstance(event, RebalanceCallback)]:
            self._events.remove(event)
            self._callback = None
            self.step = RebalanceStep.IDLE
            if event.kind is CallbackKind.ASSIGNED:
                added = set(event.partitions)
                self._own([p for p in self._subscription.assignment() if p not in added])

    # --- what it owns ------------------------------------------------------------------------------------------------

    def _own(self, partitions: list[TopicPartition]) -> None:
        before = self.ownership
        self._owned_counter += 1
        self.ownership = {partition: before.get(partition, self._owned_counter) for partition in partitions}
        self._subscription.assign_from_group(partitions)

    # --- heartbeats (H3, H4) -----------------------------------------------------------------------------------------

    @property
    def _at_poll(self) -> bool:
        """Whether the user's code waits in `poll`, and not in its listener: then the poll interval is not running."""
        return self.in_poll and self._callback is None

    def _poll_heartbeat(self, now: int) -> None:
        if self._at_poll:
            self._heartbeat.polled(now)
        if not self.state.has_joined:
            return
        node_id = self._lookup.need()
        if node_id is None:
            return
        if self._session_epoch != self._lookup.epoch:
            self._session_epoch = self._lookup.epoch
            self._heartbeat.reset_session(now)
        if now >= self._heartbeat.session_ends_at:
            self._lookup.mark_dead("no heartbeat was answered for session.timeout.ms", now)
            self._lookup.need()
        elif now >= self._heartbeat.poll_due_at:
            self._on_poll_interval_exceeded(now)
        elif now >= self._heartbeat.send_at:
            self._heartbeat.sent(now)
            request = requests.heartbeat(self.group_id, self.generation, self._config)
            on_reply = partial(self._on_heartbeat, self.generation, self._lookup.epoch)
            self._outbox.append(send(node_id, request, on_reply, channel=Channel.COORDINATOR))

    def _on_poll_interval_exceeded(self, now: int) -> None:
        self._note(
            WARNING,
            f"poll was not called for max_poll_interval_ms ({self._config.max_poll_interval_ms} ms): this member "
            f"leaves group {self.group_id}, and its partitions are reassigned. Handling the records of one "
            "poll takes too long: raise max_poll_interval_ms, or lower max_poll_records",
        )
        self.leave("consumer poll timeout has expired.", now)

    def _on_heartbeat(self, sent: MemberGeneration, epoch: int, reply: HeartbeatResponse | Failure, now: int) -> None:
        if isinstance(reply, Failure):
            if epoch == self._lookup.epoch:
                self._lookup.failed(reply, now)
            self._heartbeat.failed(now)
            return
        code = error_code(reply.error_code)
        if epoch == self._lookup.epoch:
            self._lookup.refused(code, now)
        if code is ErrorCode.NONE:
            self._heartbeat.received(now)
        elif code is ErrorCode.REBALANCE_IN_PROGRESS:
            if self.state is MemberState.STABLE and self.generation == sent:
                self.request_rejoin("group is already rebalancing")
            self._heartbeat.received(now)
        elif code in MEMBERSHIP_ENDED:
            self._on_heartbeat_fenced(code, sent, now)
        else:
            self._heartbeat.failed(now)

    def _on_heartbeat_fenced(self, code: ErrorCode, sent: MemberGeneration, now: int) -> None:
        if self.generation != sent:
            self._heartbeat.received(now)  # the answer is about a generation that is already over
            return
        self.reset_on_error("Heartbeat", code)
        self._heartbeat.failed(now)
        if code is ErrorCode.FENCED_INSTANCE_ID:
            self._report(KafkaError(code, requests.explain(code, self.group_id, self._config)))

    # --- leave -------------------------------------------------------------------------------------------------------

    def prepare_leave(self, then: Callable[[int], None], now: int) -> None:
        """The user leaves: give up all partitions, call the listener, then continue with `then`."""
        self._drop_attempt()
        self._withdraw_callbacks()
        self._callback = None
        self.step = RebalanceStep.IDLE
        owned = self._subscription.assignment() if self._subscription.group_managed else []
        if not owned:
            then(now)
            return

        def give_up(now: int) -> None:
            self._own([])
            then(now)

        lost = self.generation.was_reset or self.rebalance_in_progress
        self._call(CallbackKind.LOST if lost else CallbackKind.REVOKED, owned, give_up, now)

    def leave(self, reason: str, now: int, on_left: Callable[[], None] | None = None) -> None:
        """Leave the group. A static member sends nothing: it stays in the group for its session timeout (KIP-345).

        There are no retries: if it fails, the session timeout removes the member. The next `poll` returns the request.
        """
        self._drop_attempt()
        parked, self._parked = self._parked, False
        node_id = self._lookup.node_id
        dynamic = self._config.group_instance_id is None
        member_id = self.generation.member_id
        if dynamic and node_id is not None and self.state is not MemberState.UNJOINED and member_id:
            build = partial(requests.leave, self.group_id, member_id, reason)
            # The coordinator would not read it after a parked JoinGroup on the same connection.
            channel = Channel.DATA if parked else Channel.COORDINATOR
            self._outbox.append(Send(node_id, LeaveGroupRequest, build, partial(self._on_leave, on_left), channel))
        elif on_left is not None:
            on_left()
        if parked and node_id is not None:
            # Closed only after the LeaveGroup was created. A heartbeat under way on this connection fails with it, and
            # that failure gives the coordinator up. If it were closed earlier, while the listener is called, the
            # coordinator would be given up with it, and the LeaveGroup would have no node to go to.
            self._events.append(Disconnect(node_id))
        self._reset("consumer pro-actively leaving the group", forget_member=True)

    def _on_leave(self, on_left: Callable[[], None] | None, reply: LeaveGroupResponse | Failure, now: int) -> None:
        if isinstance(reply, Failure):
            self._note(INFO, f"leaving group {self.group_id} got no answer: {reply.message}")
        else:
            codes = [reply.error_code, *(member.error_code for member in reply.members)]
            code = error_code(next((code for code in codes if code), 0))
            if code is not ErrorCode.NONE:
                self._note(DEBUG, f"leaving group {self.group_id} was answered {code.name}")
        if on_left is not None:
            on_left()

    def _drop_attempt(self) -> None:
        """Forget the current rebalance; note in `_parked` whether the coordinator holds one of its requests."""
        raise NotImplementedError
