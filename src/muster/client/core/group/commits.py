"""Committing offsets and fetching what was committed.

Theory. Commits are reported in the order in which they were requested, whether they succeed or fail. A commit that may
be retried is sent alone: nothing is sent after it before its last try has ended, because a retry could reset offsets
that a later commit has advanced. Commits with a single try follow each other on the wire without waiting.

The group decides whether a commit is still allowed. A member commits under its generation, and only while it is STABLE.
An answer that says the generation has ended resets the member (see `membership.py`). A consumer with a manual
assignment commits without a generation, which the broker allows while the group has no members (J7).

The race that `_Commit.owned` guards against: a commit waits, for its next try or for another commit; the generation
ends, the partitions are lost, other members read and commit them; this consumer joins again, and only now is it the
commit's turn. Sent under the new generation it would be accepted, and would undo the others' commits. Kafka's client
sends the commit earlier, under the old generation.

The race that `_Fetch.owned` guards against: an OffsetFetch for a partition is sent; the partition is lost, another
member commits, and the partition comes back; the answer to the old OffsetFetch arrives. It is out of date, and dropped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial

from muster.client.config import ConsumerConfig
from muster.client.core.backoff import Backoff
from muster.client.core.coordinator_lookup import CoordinatorLookup
from muster.client.core.events import EventStream, Fatal
from muster.client.core.group.member_state import NO_GENERATION, MemberGeneration, MemberState
from muster.client.core.group.membership import Membership
from muster.client.core.metadata import ClusterMetadata
from muster.client.core.offset_requests import (
    COMMIT_WITH_NAMES,
    FETCH_WITH_NAMES,
    NO_TOPIC_IDS,
    TopicIds,
    commit_answers,
    commit_request,
    fetch_answers,
    fetch_request,
)
from muster.client.core.refusals import COMMIT_RETRIABLE, should_retry_query
from muster.client.core.sends import AnySend, Channel, Failure, Send, send
from muster.client.core.subscription_state import SubscriptionState
from muster.errors import (
    CommitFailedError,
    ErrorCode,
    KafkaError,
    KafkaTimeoutError,
    MusterError,
)
from muster.model import OffsetAndMetadata, TopicPartition
from muster.protocol.messages import OffsetCommitResponse, OffsetFetchRequest, OffsetFetchResponse

Offsets = Mapping[TopicPartition, OffsetAndMetadata]
Committed = dict[TopicPartition, OffsetAndMetadata | None]

POLL_FIRST = "the group is rebalancing: call poll(), then commit the partitions that are still assigned"
EXPELLED = (
    "this consumer is no longer a member of its group, and its partitions have other owners. Its poll calls were too "
    "far apart (raise max_poll_interval_ms or lower max_poll_records), or its heartbeats did not arrive"
)
LOST_MEANWHILE = "the generation of this commit has ended, and its partitions were lost with it"


@dataclass(slots=True)
class _Commit:
    offsets: Offsets
    on_done: Callable[[MusterError | None, int], None]
    until: int | None
    fence: Mapping[TopicPartition, int] | None
    backoff: Backoff
    requested_in: MemberGeneration | None
    """The generation when the caller requested it, if the member was stable then."""
    owned: dict[TopicPartition, int | None]
    """The ownership of its partitions at that time."""
    ids: TopicIds = NO_TOPIC_IDS
    in_flight: bool = False
    done: bool = False
    error: MusterError | None = None
    retry_at: int = 0
    lookups: int = 0


@dataclass(slots=True)
class _Fetch:
    partitions: list[TopicPartition]
    on_done: Callable[[Committed | MusterError, int], None]
    until: int | None
    backoff: Backoff
    ids: TopicIds = NO_TOPIC_IDS
    owned: dict[TopicPartition, int | None] = field(default_factory=dict)
    in_flight: bool = False
    retry_at: int = 0


class OffsetCommitter:
    """The committed offsets of one group, as one consumer writes and reads them."""

    def __init__(
        self,
        config: ConsumerConfig,
        subscription: SubscriptionState,
        metadata: ClusterMetadata,
        lookup: CoordinatorLookup,
        membership: Membership,
        events: EventStream,
        seed: int = 0,
    ) -> None:
        self._group_id = membership.group_id
        self._config = config
        self._subscription = subscription
        self._metadata = metadata
        self._lookup = lookup
        self._membership = membership
        self._events = events
        self._seed = seed
        self.on_committed: Callable[[Offsets], None] = lambda _offsets: None
        """Called with the offsets of each commit that has succeeded."""
        self._commits: deque[_Commit] = deque()
        self._fetches: list[_Fetch] = []
        self._positions: _Fetch | None = None
        self._halted = False
        self._polled_at = 0

    # --- the caller's requests ---------------------------------------------------------------------------------------

    def commit(
        self,
        offsets: Offsets,
        on_done: Callable[[MusterError | None, int], None],
        *,
        until: int | None = None,
        fence: Mapping[TopicPartition, int] | None = None,
    ) -> None:
        """Commit offsets. `on_done` gets the error, or None, and the time.

        `until` is the time up to which retriable failures are retried; None means no retries. `fence` holds the
        ownership (`Membership.ownership`) under which the records were read. If a partition has been lost since, even
        if it came back, nothing is committed. In a later generation than that of the request, the commit is sent only
        if this member has owned the partitions the whole time.
        """
        requested_in = self._membership.generation_if_stable if self._subscription.group_managed else NO_GENERATION
        owned = {partition: self._membership.ownership.get(partition) for partition in offsets}
        commit = _Commit(offsets, on_done, until, fence, self._backoff(), requested_in, owned)
        commit.lookups = self._lookup.failures
        self._commits.append(commit)

    def fetch(
        self,
        partitions: Iterable[TopicPartition],
        on_done: Callable[[Committed | MusterError, int], None],
        *,
        until: int | None = None,
    ) -> None:
        """Fetch the committed offsets; a partition without one gets None. Retried until `until`."""
        self._fetches.append(_Fetch(list(partitions), on_done, until, self._backoff()))

    @property
    def pending(self) -> bool:
        """Whether a commit is in progress or waiting."""
        return bool(self._commits)

    def resume(self) -> None:
        """The user has seen the error about positions, if there was one: fetch them again."""
        self._halted = False

    def fail_all(self, error: MusterError, now: int) -> bool:
        """No coordinator can be found: fail every commit and fetch that waits. Returns whether there was one."""
        commits = [commit for commit in self._commits if not commit.done]
        fetches, self._fetches = self._fetches, []
        for commit in commits:
            commit.done, commit.error = True, error
        self._report_done(now)
        for fetch in fetches:
            fetch.on_done(error, now)
        return bool(commits or fetches)

    def _backoff(self) -> Backoff:
        return Backoff(self._config.retry_backoff_ms, self._config.retry_backoff_max_ms, self._seed)

    # --- poll --------------------------------------------------------------------------------------------------------

    def poll(self, now: int) -> list[AnySend]:
        """The requests that are due."""
        self._polled_at = now
        sends: list[AnySend] = []
        self._expire(now)
        self._send_commits(sends, now)
        for fetch in list(self._fetches):
            if not fetch.in_flight and fetch.retry_at <= now:
                self._send_fetch(fetch, sends)
        return sends

    def next_deadline(self, now: int) -> int | None:
        """When `poll` has something to do, if nothing arrives earlier."""
        times = [commit.until for commit in self._commits if commit.until is not None]
        times += [fetch.until for fetch in self._fetches if fetch.until is not None]
        if self._commits and not self._commits[0].in_flight:
            times.append(self._commits[0].retry_at)
        times += [fetch.retry_at for fetch in self._fetches if not fetch.in_flight]
        # Something that was due at the last poll and still is due waits for an event, not for time.
        later = [time for time in times if time > self._polled_at]
        return max(now, min(later)) if later else None

    def _expire(self, now: int) -> None:
        for commit in self._commits:
            if not commit.done and commit.until is not None and now >= commit.until:
                message = f"offsets of group {self._group_id} were not committed in time"
                commit.done, commit.error = True, commit.error or KafkaTimeoutError(message)
        self._report_done(now)
        for fetch in list(self._fetches):
            if fetch.until is not None and now >= fetch.until:
                message = f"the committed offsets of group {self._group_id} could not be fetched in time"
                self._finish_fetch(fetch, KafkaTimeoutError(message), now)

    def _report_done(self, now: int) -> None:
        """Report what is done, in the order of the requests."""
        while self._commits and self._commits[0].done:
            commit = self._commits.popleft()
            if commit.error is None and commit.offsets:
                self.on_committed(commit.offsets)
            commit.on_done(commit.error, now)

    # --- commit ------------------------------------------------------------------------------------------------------

    def _send_commits(self, sends: list[AnySend], now: int) -> None:
        for commit in list(self._commits):
            alone = commit.until is not None
            first = self._commits and self._commits[0] is commit
            if alone and not first:
                break
            if not commit.done and not commit.in_flight:
                if now < commit.retry_at:
                    break
                self._send_commit(commit, sends)
            if alone and not commit.done:
                break
        self._report_done(now)

    def _send_commit(self, commit: _Commit, sends: list[AnySend]) -> None:
        if not commit.offsets:
            commit.done = True
            return
        generation = self._generation(commit)
        if isinstance(generation, MusterError):
            commit.done, commit.error = True, generation
            return
        node_id = self._lookup.need()
        if node_id is None:
            if commit.until is None and commit.lookups != self._lookup.failures:
                error = KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the group's coordinator is not known")
                commit.done, commit.error = True, error
            return
        commit.in_flight = True
        instance_id = self._config.group_instance_id if generation is not NO_GENERATION else None
        ids = commit.ids = TopicIds(commit.offsets, self._metadata)
        request = commit_request(
            self._group_id,
            commit.offsets,
            ids,
            generation_id=generation.generation_id,
            member_id=generation.member_id,
            group_instance_id=instance_id,
        )
        newest = None if ids.complete else COMMIT_WITH_NAMES
        on_reply = partial(self._on_commit, commit, generation, self._lookup.epoch)
        sends.append(send(node_id, request, on_reply, channel=Channel.COORDINATOR, newest_version=newest))

    def _generation(self, commit: _Commit) -> MemberGeneration | MusterError:
        """The generation to commit under, or the error if the commit is not allowed."""
        owned = self._membership.ownership
        if commit.fence is not None and any(owned.get(p) != since for p, since in commit.fence.items()):
            return CommitFailedError(ErrorCode.ILLEGAL_GENERATION, "a partition was lost after its records were read")
        manual = not self._subscription.group_managed and commit.fence is None
        generation = NO_GENERATION if manual else self._membership.generation_if_stable
        if generation is not None:
            still_owned = all(since is not None and owned.get(p) == since for p, since in commit.owned.items())
            if generation == commit.requested_in or still_owned:
                return generation
            return CommitFailedError(ErrorCode.ILLEGAL_GENERATION, LOST_MEANWHILE)
        if self._membership.rebalance_in_progress:
            return CommitFailedError(ErrorCode.REBALANCE_IN_PROGRESS, POLL_FIRST)
        return CommitFailedError(ErrorCode.UNKNOWN_MEMBER_ID, EXPELLED)

    def _on_commit(
        self, commit: _Commit, sent: MemberGeneration, epoch: int, reply: OffsetCommitResponse | Failure, now: int
    ) -> None:
        commit.in_flight = False
        if isinstance(reply, Failure):
            if epoch == self._lookup.epoch:
                self._lookup.failed(reply, now)
            error: MusterError | None = reply.error()
        else:
            error = self._judge_commit(commit, sent, epoch, reply, now)
        commit.error = error
        if isinstance(error, KafkaError) and error.code in COMMIT_RETRIABLE and commit.until is not None:
            self._refresh_topics(error, now)
            commit.retry_at = now + commit.backoff.next_wait_ms()
            return
        commit.done = True
        self._report_done(now)

    def _judge_commit(
        self, commit: _Commit, sent: MemberGeneration, epoch: int, reply: OffsetCommitResponse, now: int
    ) -> MusterError | None:
        """The error of an answer: its first error about the whole commit, otherwise about the topics that are not
        authorized."""
        answers = commit_answers(reply, commit.ids)
        forbidden: set[str] = set()
        for partition in commit.offsets:
            code = answers.get(partition, ErrorCode.UNKNOWN_SERVER_ERROR)
            if code is ErrorCode.NONE:
                continue
            if code is ErrorCode.TOPIC_AUTHORIZATION_FAILED:
                forbidden.add(partition.topic)
                continue
            return self._refused(code, partition, sent, epoch, now)
        self._lookup.mark_alive()
        if forbidden:
            topics = ", ".join(sorted(forbidden))
            return KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, f"this client may not commit to {topics}")
        return None

    def _refused(
        self, code: ErrorCode, partition: TopicPartition, sent: MemberGeneration, epoch: int, now: int
    ) -> KafkaError:
        if epoch == self._lookup.epoch:
            self._lookup.refused(code, now)
            if code is ErrorCode.REQUEST_TIMED_OUT:
                self._lookup.mark_dead("a commit timed out there", now)
        member = self._membership
        rebalancing = member.generation != sent and member.state is MemberState.PREPARING_REBALANCE
        match code:
            case ErrorCode.REBALANCE_IN_PROGRESS:
                member.request_rejoin("offset commit failed since group is already rebalancing")
                return CommitFailedError(code, POLL_FIRST)
            case ErrorCode.FENCED_INSTANCE_ID if member.generation == sent:
                message = f"another consumer joined with group_instance_id {self._config.group_instance_id!r}"
                return KafkaError(code, message)
            case ErrorCode.UNKNOWN_MEMBER_ID | ErrorCode.ILLEGAL_GENERATION | ErrorCode.FENCED_INSTANCE_ID:
                if rebalancing:
                    return CommitFailedError(ErrorCode.REBALANCE_IN_PROGRESS, POLL_FIRST)
                if code is not ErrorCode.FENCED_INSTANCE_ID and sent is not NO_GENERATION:
                    member.reset_on_error("OffsetCommit", code)
                return CommitFailedError(code, EXPELLED)
        return KafkaError(code, f"the offset of {partition} was not committed")

    def _refresh_topics(self, error: KafkaError, now: int) -> None:
        """After UNKNOWN_TOPIC_ID the topic has been created again: fetch its new id before the next try."""
        if error.code is ErrorCode.UNKNOWN_TOPIC_ID:
            self._metadata.request_update(now)

    # --- fetch -------------------------------------------------------------------------------------------------------

    def fetch_positions(self) -> None:
        """Start assigned partitions at their committed offsets."""
        if self._halted or not self._membership.settled:
            return
        waiting = self._subscription.partitions_without_position()
        owned = {partition: self._membership.ownership.get(partition) for partition in waiting}
        pending = self._positions
        if not waiting or (pending is not None and pending.owned == owned):
            return
        if pending is not None and pending in self._fetches:
            self._fetches.remove(pending)
        fetch = _Fetch(waiting, lambda _result, _now: None, None, self._backoff(), owned=owned)
        fetch.on_done = partial(self._on_positions, fetch)
        self._positions = fetch
        self._fetches.append(fetch)

    def _on_positions(self, fetch: _Fetch, result: Committed | MusterError, now: int) -> None:
        self._positions = None
        if isinstance(result, MusterError):
            self._halt(result)
            return
        without: list[TopicPartition] = []
        waiting = set(self._subscription.partitions_without_position())
        for partition, committed in result.items():
            if partition not in waiting or self._membership.ownership.get(partition) != fetch.owned[partition]:
                continue
            if committed is not None:
                self._subscription.set_position(partition, committed.offset, committed.leader_epoch)
            elif not self._subscription.request_reset(partition):
                without.append(partition)
        if without:
            names = ", ".join(map(str, without))
            message = f"nothing is committed for {names}, and auto_offset_reset=none: choose a position with seek()"
            self._halt(KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, message))

    def _halt(self, error: MusterError) -> None:
        self._halted = True
        self._events.append(Fatal(error))

    def _send_fetch(self, fetch: _Fetch, sends: list[AnySend]) -> None:
        node_id = self._lookup.need()
        if node_id is None:
            return
        fetch.in_flight = True
        ids = fetch.ids = TopicIds(fetch.partitions, self._metadata)

        def build(version: int) -> OffsetFetchRequest:
            return fetch_request(version, self._group_id, fetch.partitions, ids, require_stable=True)

        newest = None if ids.complete else FETCH_WITH_NAMES
        on_reply = partial(self._on_fetch, fetch, self._lookup.epoch)
        sends.append(Send(node_id, OffsetFetchRequest, build, on_reply, Channel.COORDINATOR, newest_version=newest))

    def _on_fetch(self, fetch: _Fetch, epoch: int, reply: OffsetFetchResponse | Failure, now: int) -> None:
        fetch.in_flight = False
        if fetch not in self._fetches:
            return
        if isinstance(reply, Failure):
            if epoch == self._lookup.epoch:
                self._lookup.failed(reply, now)
            result: Committed | MusterError = reply.error()
        else:
            code, answers = fetch_answers(reply, fetch.ids)
            if epoch == self._lookup.epoch:
                self._lookup.refused(code, now)
            result = _judge_fetch(self._group_id, code, fetch.partitions, answers)
        if isinstance(result, KafkaError) and should_retry_query(result.code):
            self._refresh_topics(result, now)
            fetch.retry_at = now + fetch.backoff.next_wait_ms()
            return
        self._finish_fetch(fetch, result, now)

    def _finish_fetch(self, fetch: _Fetch, result: Committed | MusterError, now: int) -> None:
        self._fetches.remove(fetch)
        fetch.on_done(result, now)


def _judge_fetch(
    group_id: str,
    code: ErrorCode,
    partitions: list[TopicPartition],
    answers: Mapping[TopicPartition, tuple[ErrorCode, OffsetAndMetadata | None]],
) -> Committed | MusterError:
    if code is not ErrorCode.NONE:
        return KafkaError(code, f"the committed offsets of group {group_id} cannot be read")
    found: Committed = {}
    worst: KafkaError | None = None
    for partition in partitions:
        code, committed = answers.get(partition, (ErrorCode.UNKNOWN_SERVER_ERROR, None))
        if code is ErrorCode.NONE:
            found[partition] = committed
            continue
        error = KafkaError(code, f"the committed offset of {partition} cannot be read")
        if code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            return KafkaError(code, f"{partition} does not exist")
        if not error.retriable:
            return error
        worst = error
    return found if worst is None else worst
