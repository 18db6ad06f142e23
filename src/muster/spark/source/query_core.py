"""A streaming query as a member of its group, without I/O: the consumer's core, the claims, and what connects them.

It is polled like any core: `poll(now)` when something has arrived or `next_deadline` is reached. The member
(`member.py`) makes Spark's calls in between. Each poll:

- handles group events: a gain is noted; a loss ends ownership immediately; a revocation starts a drain, and is answered
  when the drain has ended (rule 4), while heartbeats continue;
- looks up the committed offsets of gained partitions, and applies the reset policy to those without one;
- commits finished claims, fenced by the ownership under which they were claimed. A commit that fails in a
  rebalance is retried after it if the partition's epoch is still the same;
- looks up the start and end offsets of the owned partitions' logs when Spark has asked for them (`bounds.py`);
- turns a loss into an error, or with `failOnDataLoss=false` into a warning.

A topic that does not exist when the query starts ends the query, as with Spark's own source. A topic that is deleted
later, or a partition without a leader, holds up only its own partitions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

from muster.client.config import ConsumerConfig
from muster.client.core.consumer import ConsumerCore
from muster.client.core.events import (
    DEBUG,
    INFO,
    WARNING,
    CallbackKind,
    Disconnect,
    Event,
    EventStream,
    Fatal,
    Note,
    RebalanceCallback,
)
from muster.client.core.group.member_state import MemberState, RebalanceStep
from muster.client.core.sends import AnySend
from muster.client.plain.fetch import LOG_BEGINS, data_loss
from muster.errors import ConfigError, ErrorCode, KafkaError, MusterError
from muster.model import OffsetAndMetadata, TopicPartition
from muster.protocol.api import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from muster.protocol.primitives import ZERO_UUID
from muster.spark.offsets import TopicState
from muster.spark.source.bounds import Lookup, PartitionBounds
from muster.spark.source.choices import OffsetOrTime
from muster.spark.source.claims import QueryClaims
from muster.spark.source.options import SourceOptions
from muster.spark.source.state import StateError

COMMIT_RETRY_MS, COMMIT_RETRY_MAX_MS = 200, 5_000
LOOKUP_RETRY_MS = 500
LOOKUP_MS = 5_000
"""How long one lookup of committed offsets may take."""

DRAIN_MARGIN_MS = 5_000
"""How long before the rebalance timeout a drain ends, so that the JoinGroup arrives in time."""

MISSING_TOPIC_MS = 10_000
"""How long a starting query waits for a topic that does not exist: it may just have been created."""

NO_BROKER_WARNING_MS = 5_000

_PASSING = (ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID)
_MOVING = (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
_NO_TOPIC = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)


class QueryCore:
    """One query's membership, or its fixed partitions (`mode=assign`)."""

    def __init__(self, options: SourceOptions, config: ConsumerConfig, claims: QueryClaims) -> None:
        self.options = options
        self.claims = claims
        self.consumer = ConsumerCore(config, fetch=False)
        self.bounds = PartitionBounds(self.consumer.offsets, claims, self.consumer.metadata)
        self.fatal: MusterError | None = None
        self.events = EventStream()
        self.fence: dict[TopicPartition, int] = {}
        self._config = config
        self._token: int | None = None
        self._revoking: tuple[TopicPartition, ...] = ()
        self._committing = 0
        self._commit_at = 0
        self._commit_failures = 0
        self._commit_may_recover = True
        self._commits_apart = False
        self._commit_failure_noted = False
        self._fetching: set[TopicPartition] = set()
        self._fetch_at = 0
        self._fetches_apart = False
        self._without_record: set[TopicPartition] = set()
        self._left_out: set[TopicPartition] = set()
        self._resets = Lookup(self.consumer.offsets, claims)
        self._metadata_version = -1
        self._missing: dict[str, int] = {}
        self._began_at: int | None = None
        self._beginning = True
        self._no_broker_noted = False
        self.rebalances = 0
        """Generations after the member's first one."""
        self._last_generation = -1

    # --- for the member ----------------------------------------------------------------------------------------------

    def begin(self, now: int) -> None:
        """Join the group, or take all partitions. A second call does nothing (rule 1)."""
        if self._began_at is not None:
            return
        self._began_at = now
        options = self.options
        self.events += [Note(WARNING, note) for note in options.notes]
        if options.feeds_itself:
            endless = "each commit of this query adds a record to __consumer_offsets: it will never reach the end"
            alone = "the query reads __consumer_offsets, so it commits nothing: only the checkpoint has its progress"
            self.events.append(Note(WARNING, endless if options.commits else alone))
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
        """The group's generation; -1 outside a group."""
        return self.consumer.group_metadata().generation_id if self.options.grouped else -1

    @property
    def settled(self) -> bool:
        """Whether there is nothing to wait for: the group is stable and every partition can be read."""
        return self._at_rest and not self._waiting()

    def ready(self, now: int) -> bool:
        """Whether the query no longer needs to wait: all partitions that it still waits for are held up."""
        held_up = self.bounds.held_up(now) | set(self._resets.asked_before(now - LOOKUP_MS))
        return self._at_rest and self._waiting() <= {
            p for p in self.claims.owned() if p in held_up or p.topic in self._missing
        }

    @property
    def _at_rest(self) -> bool:
        if self._began_at is None or self.claims.draining or (self._beginning and self._missing):
            return False
        if self._metadata_version < 0:
            return False
        if not self.options.grouped:
            return True
        membership = self.consumer.group.membership
        stable = self.consumer.member_state is MemberState.STABLE and membership.step is RebalanceStep.IDLE
        return stable and not membership.rejoin_needed_now()

    def _waiting(self) -> set[TopicPartition]:
        claims = self.claims
        return {*claims.unresolved(), *claims.without_start(), *claims.without_own_commit()}

    def has_begun(self) -> None:
        """Reading starts: from now on a missing topic holds up only its own partitions."""
        self._beginning = False

    @property
    def broker_answered(self) -> bool:
        """Whether any broker has answered."""
        return self.consumer.metadata.refreshes > 0

    @property
    def all_committed(self) -> bool:
        """Whether the group has acknowledged everything that is done."""
        return not self._committing and not self._to_commit()

    @property
    def commits_fail(self) -> bool:
        """Whether the last commit failed: then waiting for the next one is useless."""
        return self._commit_failures > 0

    @property
    def commits_are_futile(self) -> bool:
        """Whether the last commit failed for a reason other than a rebalance or a moving coordinator, which are
        temporary."""
        return self.commits_fail and not self._commit_may_recover

    # --- polling -----------------------------------------------------------------------------------------------------

    def poll(self, now: int) -> list[AnySend]:
        """Do what is due; returns the resulting requests."""
        if self._began_at is None:
            return []
        sends = self.consumer.poll(now)
        for event in self.consumer.take_events():
            self._on_event(event, now)
        self._end_drain(now)
        if self.fatal is None:
            self._look_at_metadata(now)
            self._look_up_committed(now)
            self._apply_reset(now)
            self.bounds.poll(now)
            self.take_losses()
            self._check_state(now)
        self._commit(now)
        self._count_rebalances()
        return [*sends, *self.consumer.poll(now)]

    def _count_rebalances(self) -> None:
        generation = self.generation
        if generation >= 0 and generation != self._last_generation:
            self.rebalances += self._last_generation >= 0
            self._last_generation = generation

    def next_deadline(self, now: int) -> int | None:
        """When to poll again if nothing arrives earlier."""
        times = [self.consumer.next_deadline(now), self.bounds.next_deadline(now)]
        if self._token is not None:
            times.append(now + 50 if self._may_give_up(now) else self.claims.drain_deadline)
        if not self._committing and self._to_commit():
            times.append(max(now, self._commit_at))
        if self.claims.unresolved() and not self._fetching:
            times.append(max(now, self._fetch_at))
        if self._beginning and self._began_at is not None:
            missing = [since + MISSING_TOPIC_MS for since in self._missing.values()]
            times += [time for time in (*missing, self._began_at + NO_BROKER_WARNING_MS) if time > now]
        known = [time for time in times if time is not None]
        return min(known) if known else None

    def take_losses(self) -> None:
        """End the query because of a loss, or warn about it. The member calls this too when it learns of a loss between
        polls."""
        self.events += self.bounds.notes
        self.bounds.notes = []
        error = self.bounds.error or self._resets.error
        for what in self.claims.take_losses():
            if self.options.fail_on_data_loss:
                error = error or data_loss(what, by_retention=LOG_BEGINS in what)
            else:
                warning = f"{what}; reading continues from the log's start, since failOnDataLoss is false"
                self.events.append(Note(WARNING, warning))
        self.fatal = self.fatal or error

    def _check_state(self, now: int) -> None:
        broken = self.claims.state.take_broken(now)
        if broken is None:
            return
        if self.options.fail_on_data_loss:
            self.fatal = self.fatal or StateError(broken)
        else:
            self.events.append(Note(WARNING, f"{broken}. Reading continues, since failOnDataLoss is false"))

    def take_events(self) -> list[Event]:
        """The events since the last call. None is for the user; `fatal` is the error for the user."""
        return [*self.events.take(), *self.consumer.take_events(for_user=False)]

    # --- the group's events ------------------------------------------------------------------------------------------

    def _on_event(self, event: Event, now: int) -> None:
        if isinstance(event, Fatal):
            self.fatal = event.error
        elif isinstance(event, Note | Disconnect):
            self.events.append(event)
        elif event.kind is CallbackKind.ASSIGNED:
            self._gain(list(event.partitions), now)
            self.consumer.callback_done(event.token, now)
        elif event.kind is CallbackKind.LOST:
            self._token = None
            self.claims.revoked(event.partitions)
            self.consumer.callback_done(event.token, now)
        else:
            self._begin_drain(event, now)

    def _gain(self, partitions: list[TopicPartition], now: int) -> None:
        for partition in partitions:
            self.fence[partition] = self.consumer.ownership(partition) or 0
        self.claims.assigned(partitions)
        self.claims.state.assigned(self.claims.owned(), self._is_gone, now)

    def _begin_drain(self, event: RebalanceCallback, now: int) -> None:
        rebalance_ms = max(self._config.max_poll_interval_ms - DRAIN_MARGIN_MS, self._config.max_poll_interval_ms // 2)
        self._token = event.token
        self._revoking = event.partitions
        self.claims.drain(event.partitions, now + min(self.options.drain_timeout_ms, rebalance_ms))

    def _end_drain(self, now: int) -> None:
        if self._token is None or not self._may_give_up(now):
            return
        token, self._token = self._token, None
        if self.claims.batch_reads(self._revoking):
            self.events.append(
                Note(
                    WARNING,
                    "partitions are given up while a batch still reads them, since drain.timeout has passed: their "
                    "next owner will read that batch's records again",
                )
            )
        self.claims.revoked(self._revoking)
        self.consumer.callback_done(token, now)

    def _may_give_up(self, now: int) -> bool:
        # A partition that can no longer be committed, since its topic is gone, does not hold up the drain.
        return self.claims.may_give_up(now, {p for p in self._revoking if self._is_gone(p.topic)})

    # --- topics ------------------------------------------------------------------------------------------------------

    def _look_at_metadata(self, now: int) -> None:
        metadata = self.consumer.metadata
        if self._beginning:
            self._watch_the_beginning(now)
        if metadata.version == self._metadata_version or not self._all_answered():
            return
        self._metadata_version = metadata.version
        found = self._topics()
        self._note_missing(now)
        topics = {name: TopicState(_id_text(metadata.topic_id(name)), len(metadata.partitions(name))) for name in found}
        self.claims.seen(topics, metadata.cluster_id or "")
        if not self.options.grouped and not self.options.partitions:
            self._take_all(self.options.share.of(self._all_partitions()))

    def _all_answered(self) -> bool:
        """Whether the metadata has an answer for all topics that the query reads."""
        metadata = self.consumer.metadata
        if self.options.pattern is not None:
            return metadata.interest is None and (bool(metadata.topics) or not metadata.update_pending)
        return all(name in metadata.topics or metadata.topic_error(name) for name in self.options.named_topics)

    def _is_gone(self, topic: str) -> bool:
        return self._metadata_version >= 0 and topic not in self.consumer.metadata.topics

    def _topics(self) -> list[str]:
        """The existing topics that the query reads."""
        metadata, options = self.consumer.metadata, self.options
        if options.pattern is None:
            return [name for name in options.named_topics if name in metadata.topics]
        visible = (name for name, topic in metadata.topics.items() if not topic.is_internal)
        return [name for name in visible if re.fullmatch(options.pattern, name)]

    def _note_missing(self, now: int) -> None:
        metadata = self.consumer.metadata
        missing = {n for n in self.options.named_topics if metadata.topic_error(n) in _NO_TOPIC}
        for name in sorted(missing - self._missing.keys()):
            waits = f"for {MISSING_TOPIC_MS // 1000} s" if self._beginning else "until it exists again"
            self.events.append(Note(WARNING, f"topic {name} does not exist; waiting for it {waits}"))
        self._missing = {name: self._missing.get(name, now) for name in missing}
        for partition in self.options.partitions if self._beginning else ():
            if partition.topic in metadata.topics and partition.partition not in metadata.partitions(partition.topic):
                self.fatal = ConfigError(f"assign names {partition}, which does not exist")

    def _watch_the_beginning(self, now: int) -> None:
        """When a query starts, report problems early, and do not wait forever for a topic that does not exist."""
        assert self._began_at is not None
        error = self.consumer.metadata.last_error
        if error is not None and not self._no_broker_noted and now >= self._began_at + NO_BROKER_WARNING_MS:
            self._no_broker_noted = True
            self.events.append(Note(WARNING, f"{self.no_broker()}; retrying"))
        late = sorted(name for name, since in self._missing.items() if now >= since + MISSING_TOPIC_MS)
        if late and self.fatal is None:
            self.fatal = KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"topic {late[0]} does not exist: create it, or remove it from the topics to read",
            )

    def no_broker(self) -> str:
        """A message saying that no broker has answered, and why."""
        where = ", ".join(self.options.bootstrap)
        return f"no broker at {where} has answered yet: {self.consumer.metadata.last_error}"

    def _take_all(self, partitions: list[TopicPartition]) -> None:
        new = sorted(set(partitions) - set(self.claims.owned()))
        if new:
            self.consumer.metadata.add_interest({partition.topic for partition in new})
            self.claims.assigned(new)

    # --- where gained partitions start -------------------------------------------------------------------------------

    def _look_up_committed(self, now: int) -> None:
        wanted = [partition for partition in self.claims.unresolved() if partition not in self._fetching]
        if not wanted or now < self._fetch_at:
            return
        if not self.options.commits:
            for partition in wanted:
                self.claims.committed(partition, None)
            return
        for part in _by_topic(wanted) if self._fetches_apart else [wanted]:
            self._fetch_committed(part, now)

    def _fetch_committed(self, wanted: list[TopicPartition], now: int) -> None:
        self._fetching |= set(wanted)
        epochs = {partition: self.claims.epoch(partition) for partition in wanted}

        def on_done(found: dict[TopicPartition, OffsetAndMetadata | None] | MusterError, now: int) -> None:
            self._fetching -= set(wanted)
            if isinstance(found, MusterError):
                # A problem with one topic must not hold up the others: they are looked up separately.
                first, self._fetches_apart = not self._fetches_apart, True
                self._fetch_at = now + LOOKUP_RETRY_MS
                level = WARNING if first else DEBUG
                self.events.append(Note(level, f"could not look up committed offsets, retrying: {found}"))
                return
            for partition, committed in found.items():
                # The partition was lost and regained since: another member may have committed in between.
                if self.claims.epoch(partition) != epochs[partition]:
                    continue
                if committed is None:
                    self.claims.committed(partition, None)
                else:
                    self.claims.committed(partition, committed.offset, committed.metadata)

        until = now + min(LOOKUP_MS, self._config.default_api_timeout_ms)
        self.consumer.fetch_committed(wanted, on_done, until=until)

    def _apply_reset(self, now: int) -> None:
        for partition, found in self._resets.take().items():
            self.claims.reset(partition, found.offset)
        waiting = self.claims.without_start()
        if not waiting:
            return
        self._check_choice(waiting)
        times: dict[TopicPartition, int] = {}
        for partition in waiting:
            spot = self._starting_spot(partition)
            if spot.offset is not None:
                self.claims.reset(partition, spot.offset)
                continue
            times[partition] = spot.time
            if spot.time == LATEST_TIMESTAMP and self.claims.restarted and not self._resets.under_way(partition):
                warning = (
                    f"the group has no committed offset for {partition}: reading starts at its end (startingOffsets)"
                )
                self.events.append(Note(WARNING, warning))
        self._resets.ask(times, now)

    def _starting_spot(self, partition: TopicPartition) -> OffsetOrTime:
        if self.claims.is_new(partition):
            return OffsetOrTime(None, EARLIEST_TIMESTAMP)
        if partition in self._without_record:
            return OffsetOrTime(None, LATEST_TIMESTAMP)
        return self.options.starting.spot(partition)

    def _check_choice(self, waiting: Iterable[TopicPartition]) -> None:
        """Check the start in the options against the existing partitions and records, and warn about omitted ones."""
        choice = self.options.starting
        if self._resets.without_record and choice.latest_if_none:
            self._without_record |= self._resets.without_record
        elif self._resets.without_record:
            self.fatal = self.fatal or choice.no_record(min(self._resets.without_record))
        self._resets.without_record.clear()
        old = {partition for partition in waiting if not self.claims.is_new(partition)} - self._left_out
        if warning := choice.left_out_warning(old):
            self._left_out |= old
            self.events.append(Note(WARNING, warning))
        if self._beginning and not self.claims.restarted and not self._missing:
            try:
                choice.check_named_partitions(self.options.partitions or self._all_partitions())
            except ConfigError as error:
                self.fatal = self.fatal or error

    def _all_partitions(self) -> list[TopicPartition]:
        metadata = self.consumer.metadata
        return [TopicPartition(name, index) for name in self._topics() for index in metadata.partitions(name)]

    # --- commits -----------------------------------------------------------------------------------------------------

    def _commit(self, now: int) -> None:
        if self._committing or now < self._commit_at:
            return
        offsets = self._to_commit()
        for part in _by_topic(offsets) if self._commits_apart else [list(offsets)] if offsets else []:
            self._commit_part({partition: offsets[partition] for partition in part})

    def _to_commit(self) -> dict[TopicPartition, OffsetAndMetadata]:
        # Another client's offset, committed under this query's name, would be mistaken for its own at the next start.
        if not self.options.commits or isinstance(self.fatal, StateError):
            return {}
        return {p: offset for p, offset in self.claims.to_commit().items() if not self._is_gone(p.topic)}

    def _commit_part(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        self._committing += 1
        epochs = {partition: self.claims.epoch(partition) for partition in offsets}
        self.consumer.commit(offsets, self._on_committed(offsets, epochs), fence=self._fence_of(offsets))

    def _fence_of(self, offsets: Iterable[TopicPartition]) -> dict[TopicPartition, int] | None:
        if not self.options.grouped:
            return None
        return {partition: self.fence[partition] for partition in offsets}

    def _on_committed(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], epochs: dict[TopicPartition, int | None]
    ) -> Callable[[MusterError | None, int], None]:
        def on_done(error: MusterError | None, now: int) -> None:
            self._committing -= 1
            if error is None:
                for partition, offset in offsets.items():
                    self.claims.acknowledged(partition, offset.offset, epochs[partition])
                self._on_commits_work()
            else:
                self._on_commit_failed(error, offsets, now)

        return on_done

    def _on_commits_work(self) -> None:
        if not self._commit_failures or self._committing or self._to_commit():
            return
        self._commit_failures = self._commit_at = 0
        self._commits_apart = False
        if self._commit_failure_noted:
            self._commit_failure_noted = False
            self.events.append(Note(INFO, f"offsets of group {self.options.group_id} are being committed again"))

    def _on_commit_failed(self, error: MusterError, offsets: Iterable[TopicPartition], now: int) -> None:
        """Partitions still owned under the same epoch are committed again, with backoff."""
        passes = self.options.grouped and isinstance(error, KafkaError) and error.code in _PASSING
        self._commit_may_recover = passes or (isinstance(error, KafkaError) and error.code in _MOVING)
        if isinstance(error, KafkaError) and error.code in _NO_TOPIC:
            self._commits_apart = True
        self._commit_at = now + min(COMMIT_RETRY_MS * 2 ** min(self._commit_failures, 8), COMMIT_RETRY_MAX_MS)
        failure = f"could not commit offsets of group {self.options.group_id}, retrying: {error}"
        if not passes and not self._commit_failure_noted:
            self._commit_failure_noted = True
            self.events.append(Note(WARNING, f"{failure}. Until then only the checkpoint has the query's progress"))
        else:
            self.events.append(Note(DEBUG, failure))
        self._commit_failures += 1


def _id_text(topic_id: bytes) -> str:
    return "" if topic_id == ZERO_UUID else topic_id.hex()


def _by_topic(partitions: Iterable[TopicPartition]) -> list[list[TopicPartition]]:
    topics: dict[str, list[TopicPartition]] = {}
    for partition in partitions:
        topics.setdefault(partition.topic, []).append(partition)
    return list(topics.values())
