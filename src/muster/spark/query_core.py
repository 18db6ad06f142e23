"""A streaming query as a member of its group, without I/O: the consumer's core, the claims, and what joins them.

It is turned like any core: `poll(now)` when something has arrived or `next_deadline` has come. The face (`member.py`)
brings Spark's calls in between. What it does at each turn:

- events of the group: a gain is noted; a loss ends ownership at once; a revocation begins a drain, and is answered when
  the drain is over (rule 4), while the heartbeats go on;
- the committed offsets of gained partitions are looked up, and where there are none the reset policy is applied;
- what is done and not committed is committed, fenced by the ownership under which it was claimed. A commit that fails
  in a rebalance is made again after it: the partition's epoch tells whether it is still right;
- the ends of the owned partitions are looked up when Spark has asked for them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from muster.client.config import ConsumerConfig
from muster.client.core.consumer import ConsumerCore
from muster.client.core.events import WARNING, CallbackKind, Event, Fatal, Note, RebalanceCallback
from muster.client.core.member_state import MemberState, Step
from muster.client.core.offsets import OffsetQuery
from muster.client.core.sends import AnySend
from muster.errors import KafkaError, KafkaTimeoutError, MusterError
from muster.model import OffsetAndMetadata, TopicPartition
from muster.protocol.api import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from muster.spark.claims import QueryClaims
from muster.spark.options import Offsets, SourceOptions

COMMIT_RETRY_MS = 200
DRAIN_MARGIN_MS = 5_000
"""So long before the broker's rebalance timeout a drain ends: the join has to arrive in time."""


@dataclass(slots=True)
class Ends:
    """The ends of partitions, as last heard: the high watermark, or the last stable offset for read_committed."""

    offsets: dict[TopicPartition, int] = field(default_factory=dict)
    asked_at: int = -1
    heard_at: int = -1
    query: OffsetQuery | None = None


class QueryCore:
    """One query's membership. `partitions` are given where the query reads alone (`mode=assign`)."""

    def __init__(self, options: SourceOptions, config: ConsumerConfig, claims: QueryClaims) -> None:
        self.options = options
        self.claims = claims
        self.consumer = ConsumerCore(config, fetch=False)
        self.ends = Ends()
        self.fatal: MusterError | None = None
        self.notes: list[Note] = []
        self.fence: dict[TopicPartition, int] = {}
        self._config = config
        self._token: int | None = None
        self._revoking: tuple[TopicPartition, ...] = ()
        self._committing = False
        self._commit_at = 0
        self._fetching: set[TopicPartition] = set()
        self._resetting: OffsetQuery | None = None
        self._ends_wanted = False
        self._late: set[TopicPartition] = set()
        self._metadata_version = -1
        self._began = False

    # --- what the face asks ------------------------------------------------------------------------------------------

    def begin(self, now: int) -> None:
        """Join the group, or take all partitions. Does nothing twice (rule 1)."""
        if self._began:
            return
        self._began = True
        options = self.options
        if not options.grouped:
            if options.partitions:
                self._take_all(list(options.partitions))
            else:
                self.consumer.metadata.set_interest(None if options.pattern is not None else options.topics)
            return
        self.consumer.listening = True
        if options.pattern is not None:
            self.consumer.subscribe_pattern(re.compile(rf"\A(?:{options.pattern})\Z"))
        else:
            self.consumer.subscribe(options.topics)
        self.consumer.enter_poll(now)

    @property
    def generation(self) -> int:
        """The group's generation, -1 outside of one."""
        return self.consumer.group_metadata().generation_id if self.options.grouped else -1

    @property
    def settled(self) -> bool:
        """Whether there is nothing to wait for: the group is stable, and every partition's position is known."""
        if not self._began or self.claims.draining or self.claims.unresolved() or self.claims.without_start():
            return False
        if not self.options.grouped:
            return bool(self.claims.owned()) or self._metadata_version >= 0
        membership = self.consumer.group.membership
        stable = self.consumer.member_state is MemberState.STABLE and membership.step is Step.IDLE
        return stable and not membership.rejoin_needed_now()

    @property
    def all_committed(self) -> bool:
        """Whether the group has acknowledged everything that is done."""
        return not self._committing and not (self._commits_somewhere and self.claims.to_commit())

    @property
    def _commits_somewhere(self) -> bool:
        return self.options.group_id is not None

    def want_ends(self) -> None:
        """Have the ends of the owned partitions looked up."""
        self._ends_wanted = True

    def ends_fresh(self, since: int) -> bool:
        """Whether the ends were looked up at or after this time, for all partitions that are owned."""
        owned = self.claims.positions()
        return not owned or (self.ends.heard_at >= since and owned.keys() <= self.ends.offsets.keys())

    # --- turning -----------------------------------------------------------------------------------------------------

    def poll(self, now: int) -> list[AnySend]:
        """Do what is due; the requests that come of it."""
        if not self._began:
            return []
        sends = self.consumer.poll(now)
        for event in self.consumer.take_events():
            self._on_event(event, now)
        self._find_partitions()
        self._end_drain(now)
        self._look_up_committed(now)
        self._apply_reset()
        self._commit(now)
        self._look_up_ends(now)
        return [*sends, *self.consumer.poll(now)]

    def next_deadline(self, now: int) -> int | None:
        """When to poll again, if nothing arrives before."""
        times = [self.consumer.next_deadline(now)]
        if self._token is not None:
            times.append(now + 50 if self.claims.may_give_up(now) else self.claims.drain_deadline)
        if self._commits_somewhere and not self._committing and self.claims.to_commit():
            times.append(max(now, self._commit_at))
        known = [time for time in times if time is not None]
        return min(known) if known else None

    # --- the group's events ------------------------------------------------------------------------------------------

    def _on_event(self, event: Event, now: int) -> None:
        if isinstance(event, Fatal):
            self.fatal = event.error
        elif isinstance(event, Note):
            self.notes.append(event)
        elif event.kind is CallbackKind.ASSIGNED:
            self._gain(list(event.partitions))
            self.consumer.callback_done(event.token, now)
        elif event.kind is CallbackKind.LOST:
            self._token = None
            self.claims.revoked(event.partitions)
            self.consumer.callback_done(event.token, now)
        else:
            self._begin_drain(event, now)

    def _gain(self, partitions: list[TopicPartition]) -> None:
        for partition in partitions:
            self.fence[partition] = self.consumer.ownership(partition) or 0
        self.claims.assigned(partitions)

    def _begin_drain(self, event: RebalanceCallback, now: int) -> None:
        rebalance_ms = max(self._config.max_poll_interval_ms - DRAIN_MARGIN_MS, self._config.max_poll_interval_ms // 2)
        self._token = event.token
        self._revoking = event.partitions
        self.claims.drain(event.partitions, now + min(self.options.drain_timeout_ms, rebalance_ms))

    def _end_drain(self, now: int) -> None:
        if self._token is None or not self.claims.may_give_up(now):
            return
        token, self._token = self._token, None
        if self.claims.batch_reads(self._revoking):
            self.notes.append(
                Note(
                    WARNING,
                    "partitions are given up while a batch still reads them, since drain.timeout has passed: that "
                    "batch's records of them will be read again by their next owner",
                )
            )
        self.claims.revoked(self._revoking)
        self.consumer.callback_done(token, now)

    # --- reading alone -----------------------------------------------------------------------------------------------

    def _find_partitions(self) -> None:
        """Without a group: take all partitions there are, also those that come later."""
        metadata = self.consumer.metadata
        if self.options.grouped or self.options.partitions or metadata.version == self._metadata_version:
            return
        topics: list[str] = list(self.options.topics)
        if self.options.pattern is not None:
            visible = (name for name, topic in metadata.topics.items() if not topic.is_internal)
            topics = [name for name in visible if re.fullmatch(self.options.pattern, name)]
        found = [TopicPartition(name, index) for name in topics for index in metadata.partitions(name)]
        if not found:
            return
        if self._metadata_version >= 0:
            self._late |= set(found) - set(self.claims.owned())
        self._metadata_version = metadata.version
        self._take_all(found)

    def _take_all(self, partitions: list[TopicPartition]) -> None:
        new = sorted(set(partitions) - set(self.claims.owned()))
        if new:
            self.consumer.metadata.add_interest({partition.topic for partition in new})
            self.claims.assigned(new)

    # --- where gained partitions start -------------------------------------------------------------------------------

    def _look_up_committed(self, now: int) -> None:
        wanted = [partition for partition in self.claims.unresolved() if partition not in self._fetching]
        if not wanted:
            return
        if not self._commits_somewhere:
            for partition in wanted:
                self.claims.committed(partition, None)
            return
        self._fetching |= set(wanted)
        epochs = {partition: self.claims.epoch(partition) for partition in wanted}

        def on_done(found: dict[TopicPartition, OffsetAndMetadata | None] | MusterError, now: int) -> None:
            self._fetching -= set(wanted)
            if isinstance(found, MusterError):
                if isinstance(found, KafkaTimeoutError) or not (isinstance(found, KafkaError) and found.retriable):
                    self.notes.append(Note(WARNING, f"committed offsets are looked up again: {found}"))
                return
            for partition, committed in found.items():
                # Lost and regained since it was asked: another member may have committed in between.
                if self.claims.epoch(partition) == epochs[partition]:
                    self.claims.committed(partition, committed.offset if committed is not None else None)

        self.consumer.fetch_committed(wanted, on_done, until=now + self._config.default_api_timeout_ms)

    def _apply_reset(self) -> None:
        query = self._resetting
        if query is not None:
            if not query.done:
                return
            self._resetting = None
            if query.error is not None:
                self.fatal = query.error
                return
            for partition, found in query.results.items():
                if found is not None:
                    self.claims.reset(partition, found.offset)
        times: dict[TopicPartition, int] = {}
        for partition in self.claims.without_start():
            offset = self._starting_offset(partition)
            if offset >= 0:
                self.claims.reset(partition, offset)
            else:
                times[partition] = offset
        if times:
            self._resetting = self.consumer.offsets.query(times)

    def _starting_offset(self, partition: TopicPartition) -> int:
        """An offset, or the timestamp that ListOffsets knows for the earliest or latest."""
        starting = self.options.starting or Offsets.LATEST
        if partition in self._late:
            return EARLIEST_TIMESTAMP
        if isinstance(starting, dict):
            return starting.get(partition, EARLIEST_TIMESTAMP)
        return LATEST_TIMESTAMP if starting is Offsets.LATEST else EARLIEST_TIMESTAMP

    # --- commits -----------------------------------------------------------------------------------------------------

    def _commit(self, now: int) -> None:
        if self._committing or now < self._commit_at or not self._commits_somewhere:
            return
        offsets = self.claims.to_commit()
        if not offsets:
            return
        self._committing = True
        epochs = {partition: self.claims.epoch(partition) for partition in offsets}
        self.consumer.commit(offsets, self._on_committed(offsets, epochs), fence=self._fence_of(offsets))

    def _fence_of(self, offsets: dict[TopicPartition, OffsetAndMetadata]) -> dict[TopicPartition, int] | None:
        if not self.options.grouped:
            return None
        return {partition: self.fence[partition] for partition in offsets}

    def _on_committed(
        self, offsets: dict[TopicPartition, OffsetAndMetadata], epochs: dict[TopicPartition, int | None]
    ) -> Callable[[MusterError | None, int], None]:
        def on_done(error: MusterError | None, now: int) -> None:
            self._committing = False
            if error is None:
                self._commit_at = 0
                for partition, offset in offsets.items():
                    self.claims.acknowledged(partition, offset.offset, epochs[partition])
                return
            # Whatever went wrong: what is still owned under the same epoch is committed again, a little later.
            self._commit_at = now + COMMIT_RETRY_MS
            self.notes.append(Note(10, f"offsets are committed again: {error}"))

        return on_done

    # --- ends --------------------------------------------------------------------------------------------------------

    def _look_up_ends(self, now: int) -> None:
        ends = self.ends
        if ends.query is not None and ends.query.done:
            if ends.query.error is None:
                ends.offsets |= {p: found.offset for p, found in ends.query.results.items() if found is not None}
                ends.heard_at = ends.asked_at
            ends.query = None
        positions = self.claims.positions()
        if self._ends_wanted and ends.query is None and positions:
            self._ends_wanted = False
            ends.asked_at = now
            ends.query = self.consumer.offsets.query(dict.fromkeys(positions, LATEST_TIMESTAMP))
