"""What the history of consumer groups is made of, and the one way in which all engines compute it.

Kafka's coordinator keeps what it must know after a failover in `__consumer_offsets`: each committed offset, and each
generation (classic) or epoch (KIP-848) of a group with its members and what they were assigned. It never writes why it
rebalanced, when it began to, or that a member expired rather than left. So the history has two halves: what the records
say (generations, what differs between two of them, when commits stopped and went on), and what is inferred from that
(a cause, with its evidence, how sure it is and what else it could have been).

**From log to rows.** Everything about a group lies in one partition of the topic, in one total order; only that order
counts (timestamps are the brokers' clocks, and may step back). The raw rows are decoded (decode.py) into `ENTRIES`
(tables.py): commits with their columns filled, every other record with its bytes. Entries of one group, in log order,
are a `Chunk`. The rules are folds: `fold(state, chunk)` returns rows and changes the state, `finish(state)` returns
what was still open. Two properties hold them together, and are tested:

- where one chunk ends and the next begins changes nothing: a topic read at once, in pieces, or as a stream gives the
  same rows;
- the state is plain data (it can be pickled) and bounded by what a group has now, not by how long it has lived.

So the small engine (engine.py: one process, Arrow), Spark in batches and Spark as a stream (muster.spark.history) share
one implementation; they differ in what brings the entries of a group together.

**When a row is final.** A generation is closed by the next one. A rebalance may be part of a pattern (a rolling
restart, a flapping member) that only shows over several: it waits until the log has gone on for `Limits.pattern_ms`
after it. `finish` closes all at the log's end.

Sources: KIP-848, KIP-345, KIP-429, KIP-800; GroupMetadataValue and its neighbours in Apache Kafka 4.2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar, dataclass_transform

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Int64s: TypeAlias = NDArray[np.int64]

TopicPartition: TypeAlias = tuple[str, int]
V = TypeVar("V")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def fixed(cls: type[V]) -> type[V]:
    """A dataclass of which mypy lets nothing be changed.

    Not one that is `frozen`: that takes four times as long to make, and the rules make dozens for each generation.
    """
    return dataclass(slots=True, unsafe_hash=True)(cls)


LAST_MS = 253_402_300_799_999
"""The end of the year 9999, the last that Python's and Spark's calendars have: a later time is a damaged record's."""


class Place(NamedTuple):
    """Where a record stands in `__consumer_offsets`, and when the broker appended it."""

    partition: int
    offset: int
    timestamp_ms: int
    leader_epoch: int
    """Of the batch: it grows when another broker becomes the group's coordinator. -1 where it is not known."""


class Entry(NamedTuple):
    """A record about a group that is no commit: key and value as they are in the log (a value None: a tombstone)."""

    at: Place
    key: bytes
    value: bytes | None


@dataclass(slots=True)
class Commits:
    """A group's commits in log order, as columns of equal length (numpy int64).

    `partition` counts in `names`. A tombstone (the offset expired, or was deleted) has the offset -1. `commit_ms` is
    when the coordinator took the commit, -1 in a tombstone. `leader_epoch` is that of the batch, as in `Place`.
    """

    names: list[TopicPartition]
    log_offset: Int64s
    timestamp_ms: Int64s
    partition: Int64s
    offset: Int64s
    commit_ms: Int64s
    leader_epoch: Int64s
    notes: Sequence[tuple[int, str]] = ()
    """Of those that a Spark query made: the row, and their metadata."""


@dataclass(slots=True)
class Chunk:
    """What one stretch of the log says about one group, in log order.

    `now_ms` is how far the log is known to have been read, in the time of its records, over all groups: it closes rows
    of a group of which nothing more was written. None where that is not known.
    """

    group: str
    entries: Sequence[Entry]
    commits: Commits
    now_ms: int | None = None


class GroupKind(StrEnum):
    """Which of Kafka's protocols a group speaks."""

    CLASSIC = "classic"
    CONSUMER = "consumer"
    SHARE = "share"
    STREAMS = "streams"
    OFFSETS_ONLY = "offsets only"
    """Commits without any group record: a client that assigns partitions by hand, or a tool."""


@fixed
class Member:
    """A member of a generation. `assignment` and `owned` are sorted; `owned` is what it said to own as it joined."""

    member_id: str
    client_id: str
    host: str
    instance_id: str | None = None
    topics: tuple[str, ...] = ()
    topic_regex: str | None = None
    assignment: tuple[TopicPartition, ...] = ()
    owned: tuple[TopicPartition, ...] = ()
    session_timeout_ms: int | None = None
    rebalance_timeout_ms: int | None = None
    """Java's clients, librdkafka's and muster's send their max.poll.interval.ms here."""
    epoch: int | None = None
    """The member's own epoch (KIP-848); it may stay behind the group's."""


@fixed
class Generation:
    """One generation of a classic group, or one epoch of a KIP-848 group, as the log has it."""

    group: str
    generation: int
    kind: GroupKind
    started_ms: int
    """When its record was appended: all members have joined, and the leader has sent the assignment."""
    ended_ms: int | None
    """When the record of the next one was appended, or of the group's end; None: it has not ended."""
    prepared_ms: int | None
    """When all members had joined (classic); when the epoch was bumped (KIP-848)."""
    settled_ms: int | None
    """When the last member was known to have its assignment (KIP-848 only)."""
    protocol_type: str
    protocol: str | None
    """The assignor."""
    leader: str | None
    members: tuple[Member, ...]
    at: Place


class Cause(StrEnum):
    """Why a rebalance took place."""

    STARTED = "started"
    """The group's first members came: it was new or empty."""
    JOINED = "joined"
    LEFT = "left"
    SESSION_EXPIRED = "session_expired"
    POLL_INTERVAL_EXCEEDED = "poll_interval_exceeded"
    MEMBER_GONE = "member_gone"
    """A member left, or its session expired, or it exceeded its poll interval: the records do not show which."""
    SUBSCRIPTION_CHANGED = "subscription_changed"
    PARTITIONS_ADDED = "partitions_added"
    STATIC_MEMBER_REPLACED = "static_member_replaced"
    LEADER_REJOINED = "leader_rejoined"
    COORDINATOR_MOVED = "coordinator_moved"
    NOT_KNOWN = "not_known"
    """The records show a rebalance and nothing that would explain it."""


DEPARTURES = frozenset({Cause.LEFT, Cause.SESSION_EXPIRED, Cause.POLL_INTERVAL_EXCEEDED})
"""What `MEMBER_GONE` may be."""


class Pattern(StrEnum):
    """What several rebalances are together. Each of them has a cause of its own."""

    ROLLING_RESTART = "rolling_restart"
    FLAPPING = "flapping"


@fixed
class PatternSeen:
    """A pattern that a rebalance is part of."""

    kind: Pattern
    confidence: float
    evidence: tuple[str, ...]
    members: tuple[str, ...]
    """The members that make it, by client id, host and instance id."""
    went: tuple[Cause, ...]
    """Why they went, in the order in which they did; `not_known` where the records do not show it."""


@fixed
class Alternative:
    """Another cause that the same records fit, and what would tell the two apart."""

    cause: Cause
    told_apart_by: str


@fixed
class Change:
    """A member that came, went, was replaced or subscribed to something else between two generations.

    `before` is the member that it replaces: one with the same instance id, or the same client id and host.
    """

    member: Member
    before: Member | None = None


@fixed
class Moved:
    """A partition that changed its owner, and how long nothing was committed for it around the rebalance."""

    topic: str
    partition: int
    from_member: str | None
    to_member: str | None
    needless: bool
    """Its former owner stayed and kept its subscription, and an assignment as even was possible without the move."""


@fixed
class Rebalance:
    """What happened between two generations of a group, and why."""

    group: str
    generation: int
    previous_generation: int | None
    at_ms: int
    """When the new generation's record was appended."""
    duration_ms: int | None
    duration_is: str
    """`exact` (the broker's own events; KIP-848), `at least` (its SyncGroup), `at most` (from a commit on)."""
    members_before: int
    members_after: int
    joined: tuple[Change, ...]
    left: tuple[Member, ...]
    replaced: tuple[Change, ...]
    resubscribed: tuple[Change, ...]
    moved_partitions: tuple[Moved, ...]
    stopped: tuple[tuple[str, int, int], ...]
    """(topic, partition, ms) from the last commit before to the first commit after, of partitions that had commits."""
    cause: Cause
    confidence: float
    evidence: tuple[str, ...]
    alternatives: tuple[Alternative, ...]
    pattern: PatternSeen | None = None
    """What this rebalance and those around it are together; the cause is that of this one."""
    waited_ms: int | None = None
    """For how long the members waited in the rebalance for some that joined late, at most; None: for none that show."""
    waited_for: tuple[Member, ...] = ()
    """The members that joined late: their handlers kept them from polling."""
    phase: int = 1
    """2: the second phase of a cooperative rebalance, in which partitions that were given up are handed out. It has the
    cause of the first."""
    source: str = "records"
    """`records`: inferred; `events`: the broker wrote it to `__group_events`; `samples`: inferred from looks at the
    group through the admin API."""
    is_stop: bool = False
    """Its members went as part of a stop of the group: one soon after the other until none was left."""

    @property
    def is_rebalance(self) -> bool:
        """Whether the group rebalanced. Not in the second phase of a rebalance, which is counted once; nor where a
        static member took its place again in the same generation; nor in the stop of a group, nor where none is left
        to be assigned anything."""
        return self.phase == 1 and not self.is_takeover and not self.is_stop and self.members_after > 0

    @property
    def is_takeover(self) -> bool:
        """Whether a static member took its place again. A group that is converted keeps its number, too."""
        return self.generation == self.previous_generation and self.cause is Cause.STATIC_MEMBER_REPLACED

    @property
    def moved(self) -> int:
        return len(self.moved_partitions)

    @property
    def moved_needlessly(self) -> int:
        return sum(move.needless for move in self.moved_partitions)

    @property
    def stopped_partition_ms(self) -> int:
        """For how long partitions stood still, summed over them."""
        return sum(ms for _, _, ms in self.stopped)


@fixed
class CommitNote:
    """Something about a group's commits that an operator would want to know."""

    group: str
    topic: str
    partition: int
    at_ms: int
    kind: str
    """`rewind` (an offset below the last one), `non_member` (no member had this partition in this generation or the one
    before; of an empty group: its third commit), `deleted` (a tombstone: expired, or deleted by an operator)."""
    offset: int
    previous_offset: int


@fixed
class LagSample:
    """What a look at the cluster says of one partition that a group has committed.

    `records` counts data records between the committed offset and the end (without transaction markers and what
    compaction took), None where they were not counted; `oldest_ms` is the time of the first of them.
    """

    at_ms: int
    group: str
    topic: str
    partition: int
    log_start_offset: int
    log_end_offset: int
    records: int | None = None
    oldest_ms: int | None = None


@fixed
class Lag:
    """How far a group is behind in one partition at one time."""

    group: str
    topic: str
    partition: int
    at_ms: int
    committed_offset: int
    committed_ms: int
    log_start_offset: int
    log_end_offset: int
    lag_records: int
    """From the committed offset to the log's end, as Kafka's tool has it (`lag.lag`); negative where the log ends
    before the committed offset."""
    is_exact: bool
    """Whether so many records are there. Else it is at most this: transaction markers, offsets that compaction has
    emptied and records that retention took may be among them."""
    lag_ms: int | None
    lost_records: int
    """Records that retention took before the group had read them."""
    expires_ms: int | None
    """When the group is empty: the time at which its offset expires."""


@fixed
class Finding:
    """One sentence of the doctor."""

    group: str
    rule: str
    since_ms: int
    sentence: str
    stopped_partition_ms: int
    """For how long partitions were seen to stand still because of this, at most, summed over them. 0 where they did
    not, or where another finding about the same rebalances has the cost: no cost is in two findings."""
    stopped_partition_ms_per_day: int | None
    """The same for a day, where it was seen to come back over a day or longer; of less no rate is made."""
    advice: str


@dataclass(slots=True)
class Rows:
    """What a fold returns: rows that are final."""

    generations: list[Generation] = field(default_factory=list)
    rebalances: list[Rebalance] = field(default_factory=list)
    notes: list[CommitNote] = field(default_factory=list)

    def extend(self, other: Rows) -> None:
        self.generations += other.generations
        self.rebalances += other.rebalances
        self.notes += other.notes


@dataclass(frozen=True, slots=True)
class Limits:
    """What the rules go by and the log does not say."""

    since_ms: int = 0
    """What was before is wanted as context only."""
    pattern_ms: int = 600_000
    """How far apart the rebalances of one `Pattern` may be."""
    offsets_retention_ms: int = 7 * 24 * 3_600_000
    """The cluster's offsets.retention.minutes."""
    consumer_session_timeout_ms: int = 45_000
    """group.consumer.session.timeout.ms: members of KIP-848's groups do not bring one of their own."""
    session_timeouts_ms: Mapping[str, int] = field(default_factory=dict)
    """consumer.session.timeout.ms of KIP-848's groups that have their own."""
    topic_names: Mapping[str, str] = field(default_factory=dict)
    """Topic ids, as 32 hexadecimal digits, and their names: KIP-848's records of assignments have ids alone. A name
    that is missing here is inferred from subscriptions where that is possible; else the id stands for it."""


Counts: TypeAlias = dict[tuple[str, int], int]
"""How many records of each kind and version were read: the kind by Kafka's name (`GroupMetadata`), or `kind 42`; the
value's version, -1 for a tombstone, -2 for one that could not be decoded."""

Json: TypeAlias = dict[str, Any]
