"""The committed offsets of a group of scheme 2, as a member writes and reads them.

Theory. One commit is sent at a time, so that a retry cannot reset offsets that a later commit has advanced. Each is
sent with the member id and the generation that were current when it was requested, and the coordinator refuses it once
that generation is over: so a member that was frozen cannot commit. `in_force` has the current ones; a commit with
others fails without being sent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from muster.client.config import ConsumerConfig
from muster.client.core.backoff import Backoff
from muster.client.core.offset_requests import commit_answers, commit_request, fetch_answers, fetch_request
from muster.client.core.refusals import COMMIT_RETRIABLE, MEMBERSHIP_ENDED
from muster.client.core.sends import AnySend, Channel, Failure, send
from muster.errors import CommitFailedError, ErrorCode, KafkaError, KafkaTimeoutError, MusterError
from muster.model import OffsetAndMetadata, TopicPartition
from muster.protocol.messages import OffsetCommitResponse, OffsetFetchResponse
from muster.zookeeper.server_assigned.coordinator_search import CoordinatorSearch

_FETCH_VERSION = 1

Committed = dict[TopicPartition, OffsetAndMetadata | None]
GIVEN_UP = "the group has rebalanced and the partitions were revoked: their new owners continue from the last commit"


class MemberOfGeneration(NamedTuple):
    """A member in a generation."""

    generation_id: int
    member_id: str


OUTSIDE = MemberOfGeneration(-1, "")


@dataclass(slots=True, eq=False)
class _PendingCommit:
    positions: Mapping[TopicPartition, int]
    on_done: Callable[[MusterError | None, int], None]
    until: int
    standing: MemberOfGeneration
    backoff: Backoff
    retry_at: int = 0


@dataclass(slots=True, eq=False)
class _PendingFetch:
    partitions: list[TopicPartition]
    on_done: Callable[[Committed | MusterError, int], None]
    until: int | None
    backoff: Backoff
    in_flight: bool = False
    retry_at: int = 0


class GroupOffsets:
    """Commits and lookups that wait, and those in flight."""

    def __init__(self, config: ConsumerConfig, search: CoordinatorSearch, seed: int = 0) -> None:
        self.in_force = OUTSIDE
        """The member and generation whose commits are sent now."""
        self.on_expelled: Callable[[ErrorCode, int], None] = lambda _code, _now: None
        """Called when the answer to a current commit says that its member or generation is over."""
        self._config = config
        self._group_id = config.group_id or ""
        self._search = search
        self._seed = seed
        self._commits: deque[_PendingCommit] = deque()
        self._under_way: _PendingCommit | None = None
        self._fetches: list[_PendingFetch] = []

    @property
    def committing(self) -> bool:
        """Whether a commit waits or is in flight."""
        return bool(self._commits)

    def commit(
        self, positions: Mapping[TopicPartition, int], on_done: Callable[[MusterError | None, int], None], until: int
    ) -> None:
        """Commit with the current member id and generation. `on_done` gets the error, or None, and the time."""
        self._commits.append(_PendingCommit(positions, on_done, until, self.in_force, self._backoff()))

    def fetch(
        self,
        partitions: Iterable[TopicPartition],
        on_done: Callable[[Committed | MusterError, int], None],
        until: int | None = None,
    ) -> None:
        """Look up committed offsets, retried up to `until`; a partition without one gets None."""
        self._fetches.append(_PendingFetch(list(partitions), on_done, until, self._backoff()))

    def give_up(self, error: MusterError, now: int) -> None:
        """Fail everything that waits."""
        self.give_up_commits(error, now)
        fetches, self._fetches = self._fetches, []
        for fetch in fetches:
            fetch.on_done(error, now)

    def give_up_commits(self, error: MusterError, now: int) -> None:
        """Fail the commits that wait."""
        commits, self._commits, self._under_way = list(self._commits), deque(), None
        for commit in commits:
            commit.on_done(error, now)

    def _backoff(self) -> Backoff:
        return Backoff(self._config.retry_backoff_ms, self._config.retry_backoff_max_ms, self._seed)

    # --- time --------------------------------------------------------------------------------------------------------

    def poll(self, now: int) -> list[AnySend]:
        """The requests that are due."""
        self._expire(now)
        sends: list[AnySend] = []
        self._send_commit(sends, now)
        for fetch in self._fetches:
            if not fetch.in_flight and fetch.retry_at <= now:
                self._send_fetch(fetch, sends)
        return sends

    def next_deadline(self, now: int) -> int | None:
        """When `poll` has something to do, if nothing arrives before then."""
        times = [commit.until for commit in self._commits]
        times += [fetch.until for fetch in self._fetches if fetch.until is not None]
        if self._search.node_id is not None:
            if self._commits and self._under_way is None:
                times.append(self._commits[0].retry_at)
            times += [fetch.retry_at for fetch in self._fetches if not fetch.in_flight]
        return max(now, min(times)) if times else None

    def _expire(self, now: int) -> None:
        late = KafkaTimeoutError(f"offsets of group {self._group_id} were not committed in time")
        for commit in [commit for commit in self._commits if now >= commit.until]:
            self._end(commit, late, now)
        for fetch in [fetch for fetch in self._fetches if fetch.until is not None and now >= fetch.until]:
            text = f"the committed offsets of group {self._group_id} could not be fetched in time"
            self._end_fetch(fetch, KafkaTimeoutError(text), now)

    # --- commit ------------------------------------------------------------------------------------------------------

    def _end(self, commit: _PendingCommit, error: MusterError | None, now: int) -> None:
        if self._under_way is commit:
            self._under_way = None
        self._commits.remove(commit)
        commit.on_done(error, now)

    def _send_commit(self, sends: list[AnySend], now: int) -> None:
        while self._under_way is None and self._commits:
            commit = self._commits[0]
            if not commit.positions:
                self._end(commit, None, now)
            elif commit.standing != self.in_force or commit.standing is OUTSIDE:
                self._end(commit, CommitFailedError(ErrorCode.ILLEGAL_GENERATION, GIVEN_UP), now)
            else:
                node_id = self._search.need()
                if node_id is None or now < commit.retry_at:
                    return
                offsets = {partition: OffsetAndMetadata(offset) for partition, offset in commit.positions.items()}
                generation_id, member_id = commit.standing
                request = commit_request(self._group_id, offsets, generation_id=generation_id, member_id=member_id)
                on_reply = partial(self._on_commit, commit, self._search.epoch)
                self._under_way = commit
                sends.append(send(node_id, request, on_reply, channel=Channel.COORDINATOR))

    def _on_commit(self, commit: _PendingCommit, epoch: int, reply: OffsetCommitResponse | Failure, now: int) -> None:
        if self._under_way is not commit:
            return  # it timed out, or was given up
        self._under_way = None
        if isinstance(reply, Failure):
            if epoch == self._search.epoch:
                self._search.failed(reply, now)
            code, error = ErrorCode.NETWORK_EXCEPTION, reply.error()
            again = reply.retriable
        else:
            answers = commit_answers(reply)
            codes = [answers.get(partition, ErrorCode.UNKNOWN_SERVER_ERROR) for partition in commit.positions]
            code = next((code for code in codes if code is not ErrorCode.NONE), ErrorCode.NONE)
            if epoch == self._search.epoch:
                self._search.refused(code, now)
            again, error = code in COMMIT_RETRIABLE, KafkaError(code, f"a commit of group {self._group_id}")
        if again:
            commit.retry_at = now + commit.backoff.next_wait_ms()
        elif code is ErrorCode.NONE:
            self._end(commit, None, now)
        elif code in MEMBERSHIP_ENDED or code is ErrorCode.REBALANCE_IN_PROGRESS:
            self._end(commit, CommitFailedError(code, GIVEN_UP), now)
            if commit.standing == self.in_force:
                self.on_expelled(code, now)
        else:
            self._end(commit, error, now)

    # --- fetch -------------------------------------------------------------------------------------------------------

    def _end_fetch(self, fetch: _PendingFetch, found: Committed | MusterError, now: int) -> None:
        self._fetches.remove(fetch)
        fetch.on_done(found, now)

    def _send_fetch(self, fetch: _PendingFetch, sends: list[AnySend]) -> None:
        node_id = self._search.need()
        if node_id is not None:
            fetch.in_flight = True
            request = fetch_request(_FETCH_VERSION, self._group_id, fetch.partitions)
            on_reply = partial(self._on_fetch, fetch, self._search.epoch)
            sends.append(send(node_id, request, on_reply, channel=Channel.COORDINATOR))

    def _on_fetch(self, fetch: _PendingFetch, epoch: int, reply: OffsetFetchResponse | Failure, now: int) -> None:
        fetch.in_flight = False
        if fetch not in self._fetches:
            return
        code, found = ErrorCode.NETWORK_EXCEPTION, dict[TopicPartition, tuple[ErrorCode, OffsetAndMetadata | None]]()
        if isinstance(reply, Failure):
            if epoch == self._search.epoch:
                self._search.failed(reply, now)
            if not reply.retriable:
                self._end_fetch(fetch, reply.error(), now)
                return
        else:
            _, found = fetch_answers(reply)
            missing: tuple[ErrorCode, OffsetAndMetadata | None] = ErrorCode.UNKNOWN_SERVER_ERROR, None
            codes = [found.get(partition, missing)[0] for partition in fetch.partitions]
            # Before Kafka 0.9 a partition without an offset, of a topic that is unknown, has this error.
            bad = [code for code in codes if code not in (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)]
            code = bad[0] if bad else ErrorCode.NONE
            if epoch == self._search.epoch:
                self._search.refused(code, now)
        if code is ErrorCode.NONE:
            self._end_fetch(fetch, {partition: found[partition][1] for partition in fetch.partitions}, now)
        elif code.retriable:
            fetch.retry_at = now + fetch.backoff.next_wait_ms()
        else:
            self._end_fetch(fetch, KafkaError(code, f"the committed offsets of group {self._group_id}"), now)
