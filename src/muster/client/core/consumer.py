"""The consumer without I/O: lookup, membership, commits, positions and fetching, composed.

Theory. A face (async, sync, or Spark's driver-side member) calls `poll(now)` whenever something arrives or
`next_deadline(now)` has come, sends what it returns, and handles `take_events()`. A user's call is a method with
a callback. The order within a poll is that of Kafka's client (J6): the coordinator, only if the group assigns
partitions or a request needs it; metadata for a pattern; join and sync; the heartbeat; auto commit; then positions and
fetches. The face runs the callbacks of completed commits, which are the user's code, before all that.

`enter_poll` and `leave_poll` mark the time that the user spends in `poll`. Records count as handled when the user comes
back for more: only then are they auto-committed, and partitions given up. The Spark face calls `enter_poll` once and
never leaves; its answers to the callbacks say when it is done with a partition.

With `fetch=False`, nothing is fetched and no position is looked up: the face reads the partitions itself, and commits
explicit offsets, fenced by `ownership`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

from muster.assignors import Assignor, get_assignors
from muster.client.config import ConsumerConfig
from muster.client.core.checks import check_offsets, check_partitions
from muster.client.core.consume.fetcher import Fetcher
from muster.client.core.consume.offsets import OffsetLookup
from muster.client.core.consume.validation import PositionValidation
from muster.client.core.coordinator_lookup import CoordinatorLookup
from muster.client.core.events import DEBUG, WARNING, Event, EventStream, Fatal, Note
from muster.client.core.group.commits import Committed, OffsetCommitter, Offsets
from muster.client.core.group.member_state import MemberState
from muster.client.core.group.membership import Membership
from muster.client.core.metadata import ClusterMetadata
from muster.client.core.refusals import is_retriable
from muster.client.core.sends import AnySend
from muster.client.core.subscription_state import SubscriptionKind, SubscriptionState
from muster.errors import AuthenticationError, ConfigError, ErrorCode, IllegalStateError, KafkaError, MusterError
from muster.model import ConsumerRecord, GroupMetadata, OffsetAndMetadata, TopicPartition

_REPORTED_TOPIC_ERRORS = (ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.INVALID_TOPIC_EXCEPTION)

OnDone = Callable[[MusterError | None, int], None]


class ConsumerCore:
    """One consumer. `seed` is for the jitter of retries, see `Backoff`.

    The metadata is a core of its own (`core.metadata`), polled by the same face or driver as this one.
    """

    def __init__(self, config: ConsumerConfig, *, fetch: bool = True, seed: int = 0) -> None:
        self.config = config
        self.events = EventStream()
        self.in_poll = False
        self.polled_at: int | None = None
        self._reported_refusal: AuthenticationError | None = None
        self.unhandled: Callable[[], Offsets] = dict
        """The offsets to commit for partitions whose records the face holds and the user has not handled."""
        allow = config.allow_auto_create_topics
        self.metadata = ClusterMetadata(config, allow_auto_topic_creation=allow, seed=seed)
        self.subscription = SubscriptionState(config.auto_offset_reset)
        self.offsets = OffsetLookup(config, self.subscription, self.metadata, self.events)
        self.fetcher = Fetcher(config, self.subscription, self.metadata, self.events) if fetch else None
        self.validation = PositionValidation(config, self.subscription, self.metadata, self.events)
        self._group = _GroupParts(config, self, seed) if config.group_id is not None else None
        self._auto_commits = self._group is not None and config.enable_auto_commit and fetch
        self._auto_commit_at = 0
        self._auto_commit_in_flight = False
        self._seen_refresh = 0
        self._reported_missing_position = False
        if self._group is not None and self._auto_commits:
            self._group.membership.commit_first.commit = self._commit_consumed

    # --- subscribing -------------------------------------------------------------------------------------------------

    def subscribe(self, topics: Iterable[str]) -> None:
        """Let the group assign partitions of these topics."""
        group = self.group
        self.subscription.subscribe(topics)
        group.membership.topics.keep_fresh()

    def subscribe_pattern(self, pattern: re.Pattern[str]) -> None:
        """Let the group assign partitions of all topics that match, now or later."""
        group = self.group
        self.subscription.subscribe_pattern(pattern)
        group.membership.forget_matches()
        group.membership.topics.keep_fresh()

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Assign partitions manually, without the group (J7)."""
        if self._auto_commits and self.subscription.kind is SubscriptionKind.MANUAL:
            self._auto_commit(0)
        self.subscription.assign(partitions)
        self.metadata.set_interest(self.subscription.topics)

    def unsubscribe(self, now: int, on_done: Callable[[], None], reason: str) -> None:
        """Give up all partitions and leave the group. `on_done` is called when LeaveGroup is answered or has failed."""
        if self._group is None or not self.subscription.group_managed:
            self._forget()
            on_done()
            return
        membership = self._group.membership

        def leave(now: int) -> None:
            membership.leave(reason, now, on_done)
            membership.forget_subscription()
            self._forget()

        membership.prepare_leave(leave, now)

    def _forget(self) -> None:
        self.subscription.unsubscribe()
        self.metadata.set_interest(())

    @property
    def listening(self) -> bool:
        """Whether callbacks are wanted; without them, rebalances proceed on their own."""
        return self._group is not None and self._group.membership.listening

    @listening.setter
    def listening(self, wanted: bool) -> None:
        if self._group is not None:
            self._group.membership.listening = wanted

    # --- the group ---------------------------------------------------------------------------------------------------

    @property
    def group(self) -> _GroupParts:
        """The parts that belong to the group.

        Raises:
            ConfigError: this consumer has no group.
        """
        if self._group is None:
            raise ConfigError("group_id is not set: subscribing and committing need a group")
        return self._group

    @property
    def member_state(self) -> MemberState:
        """This consumer's state in its group."""
        return self._group.membership.state if self._group is not None else MemberState.UNJOINED

    def ownership(self, partition: TopicPartition) -> int | None:
        """A number that stays the same while the partition belongs to this member, and is never used again."""
        return self._group.membership.ownership.get(partition) if self._group is not None else None

    def group_metadata(self) -> GroupMetadata:
        """This member's current id and generation."""
        group = self.group
        generation = group.membership.generation
        return GroupMetadata(
            group.membership.group_id, generation.generation_id, generation.member_id, self.config.group_instance_id
        )

    def enforce_rebalance(self, reason: str) -> None:
        """Trigger a rebalance of the group although nothing has changed here."""
        if not self.subscription.group_managed:
            raise IllegalStateError("only a consumer that is subscribed to topics can trigger a rebalance")
        self.group.membership.request_rejoin(reason)

    # --- the user's presence -----------------------------------------------------------------------------------------

    def enter_poll(self, now: int) -> None:
        """The user calls `poll`: records handed out before are handled, errors raised before are seen."""
        self.in_poll, self.polled_at = True, now
        seen = not self.events.has_fatal
        if seen:
            self._reported_missing_position = False
            self.metadata.resume()
        if self._group is not None:
            self._group.membership.in_poll = True
            self._group.membership.polled(now)
            if seen:
                self._group.membership.resume()
                self._group.commits.resume()

    def leave_poll(self) -> None:
        """`poll` returns to the user, with records or without."""
        self.in_poll = False
        if self._group is not None:
            self._group.membership.in_poll = False

    # --- polling -----------------------------------------------------------------------------------------------------

    def poll(self, now: int) -> list[AnySend]:
        """Do what is due; returns the requests to send."""
        sends: list[AnySend] = []
        group = self._group
        if group is not None:
            sends += group.membership.poll(now)
            self._maybe_auto_commit(now)
            if self.fetcher is not None:
                group.commits.fetch_positions()
            sends += group.commits.poll(now)
            sends += group.lookup.poll(now)
            self._take_lookup_error(group, now)
        elif self.fetcher is not None:
            self._reset_new_partitions()
        sends += self.offsets.poll(now)
        if self.fetcher is not None:
            sends += self.validation.poll(now)
            sends += self.fetcher.poll(now)
        self._report_topic_errors()
        self._report_refusal()
        return sends

    def _report_refusal(self) -> None:
        if self.metadata.refusal is not self._reported_refusal:
            self._reported_refusal = self.metadata.refusal
            if self._reported_refusal is not None:
                self.events.fail(self._reported_refusal)

    def next_deadline(self, now: int) -> int | None:
        """When to poll again, if nothing arrives earlier."""
        times: list[int | None] = [self.offsets.next_deadline(now)]
        if self.fetcher is not None:
            times += [self.fetcher.next_deadline(now), self.validation.next_deadline(now)]
        if self._group is not None:
            group = self._group
            times += [
                group.membership.next_deadline(now),
                group.commits.next_deadline(now),
                group.lookup.next_deadline(now),
            ]
            if self._auto_commits and self.in_poll and not self._auto_commit_in_flight:
                times.append(max(now, self._auto_commit_at))
        known = [time for time in times if time is not None]
        return min(known) if known else None

    def take_events(self, *, for_user: bool = True) -> list[Event]:
        """What has happened since the last call, in order; without `for_user`, only those that the face handles
        itself.
        """
        return self.events.take(for_user=for_user)

    def callback_done(self, token: int, now: int) -> None:
        """The listener has been called for the event with that token, and has returned."""
        if self._group is not None:
            self._group.membership.callback_done(token, now)

    def _take_lookup_error(self, group: _GroupParts, now: int) -> None:
        error, group.lookup.error = group.lookup.error, None
        if error is None:
            return
        reported = group.commits.fail_all(error, now)
        if not self.events.has_fatal and (not reported or self.subscription.group_managed):
            self.events.append(Fatal(error))

    def _report_topic_errors(self) -> None:
        if self._seen_refresh != self.metadata.refreshes:
            self._seen_refresh = self.metadata.refreshes
            for topic in sorted(self.subscription.topics):
                code = self.metadata.topic_error(topic)
                if code in _REPORTED_TOPIC_ERRORS:
                    self.events.fail(KafkaError(code, f"topic {topic} cannot be read"))

    def _reset_new_partitions(self) -> None:
        """Without a group there are no committed offsets: start where `auto_offset_reset` says."""
        stuck = [p for p in self.subscription.partitions_without_position() if not self.subscription.request_reset(p)]
        if stuck and not self._reported_missing_position:
            self._reported_missing_position = True
            names = ", ".join(map(str, stuck))
            message = f"{names} has no position, and auto_offset_reset=none: choose one with seek()"
            self.events.append(Fatal(KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, message)))

    # --- records -----------------------------------------------------------------------------------------------------

    @property
    def has_records(self) -> bool:
        """Whether `collect` would return records, or raise."""
        return self.fetcher is not None and self.fetcher.has_records

    def collect(self, max_records: int) -> dict[TopicPartition, list[ConsumerRecord]]:
        """Records to hand out; the positions of their partitions move past them. Raises as `Fetcher.collect` does."""
        return self.fetcher.collect(max_records) if self.fetcher is not None else {}

    # --- committing --------------------------------------------------------------------------------------------------

    def commit(
        self,
        offsets: Offsets,
        on_done: OnDone,
        *,
        until: int | None = None,
        fence: Mapping[TopicPartition, int] | None = None,
    ) -> None:
        """Commit offsets; see `OffsetCommitter.commit`."""
        checked = check_offsets(offsets)
        self.group.commits.commit(checked, on_done, until=until, fence=fence)
        self.subscription.store_at_least(checked)

    def fetch_committed(
        self,
        partitions: Iterable[TopicPartition],
        on_done: Callable[[Committed | MusterError, int], None],
        *,
        until: int | None = None,
    ) -> None:
        """Fetch the group's committed offsets; see `OffsetCommitter.fetch`."""
        self.group.commits.fetch(check_partitions(partitions), on_done, until=until)

    def commit_for_close(self, on_done: OnDone, until: int) -> None:
        """The last auto commit, if enabled: retried until `until`."""
        consumed = self.consumed()
        if self._auto_commits and consumed:
            self.group.commits.commit(consumed, on_done, until=until)
        else:
            on_done(None, 0)

    @property
    def commits_pending(self) -> bool:
        """Whether a commit has not been answered yet."""
        return self._group is not None and self._group.commits.pending

    def consumed(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """What a commit sends: the user's position in each partition, or what the user has stored."""
        if not self.config.enable_auto_offset_store:
            return self.subscription.stored()
        return {**self.subscription.all_consumed(), **self.unhandled()}

    def _commit_consumed(self, on_done: OnDone, now: int) -> None:
        self.group.commits.commit(self.consumed(), on_done)

    def restart_auto_commit(self, now: int) -> None:
        """An assignment has just taken effect: the interval restarts."""
        self._auto_commit_at = now + self.config.auto_commit_interval_ms

    def _maybe_auto_commit(self, now: int) -> None:
        if not self._auto_commits or not self.in_poll or self._auto_commit_in_flight or now < self._auto_commit_at:
            return
        self._auto_commit_at = now + self.config.auto_commit_interval_ms
        self._auto_commit(now)

    def _auto_commit(self, now: int) -> None:
        consumed = self.consumed()
        if not consumed:
            return
        self._auto_commit_in_flight = True

        def on_done(error: MusterError | None, now: int) -> None:
            self._auto_commit_in_flight = False
            if is_retriable(error):
                self._auto_commit_at = min(self._auto_commit_at, now + self.config.retry_backoff_ms)
                self.events.append(Note(DEBUG, f"auto commit will be retried: {error}"))
            elif error is not None:
                self.events.append(Note(WARNING, f"auto commit failed: {error}"))

        self.group.commits.commit(consumed, on_done)


class _GroupParts:
    """The parts of a consumer that it needs only in a group."""

    def __init__(self, config: ConsumerConfig, core: ConsumerCore, seed: int) -> None:
        assert config.group_id is not None
        assignors: list[Assignor] = get_assignors(config.partition_assignment_strategy)
        self.lookup = CoordinatorLookup(config.group_id, config, core.metadata, core.events, seed)
        self.membership = Membership(
            config.group_id, config, assignors, core.subscription, core.metadata, self.lookup, core.events, seed
        )
        self.membership.on_assigned = core.restart_auto_commit
        self.commits = OffsetCommitter(
            config, core.subscription, core.metadata, self.lookup, self.membership, core.events, seed
        )
