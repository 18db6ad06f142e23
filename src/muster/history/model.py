"""The data of the history of consumer groups, and how all engines compute it.

Kafka's coordinator keeps what it needs after a failover in `__consumer_offsets`: each committed offset, and each
generation (classic) or epoch (KIP-848) of a group with its members and their assignments. It never writes why or when a
rebalance started, or that a member expired rather than left. So the history has two parts: what the records say
(generations, their differences, when commits stopped and resumed), and what is inferred from that (a cause, with its
evidence, its confidence and alternatives).

**From log to rows.** Everything about a group is in one partition of the topic, in one total order; only that order
counts (timestamps are from the brokers' clocks, and may step back). The raw rows are decoded (decode.py) into `ENTRIES`
(tables.py): commits with their columns filled, every other record with its bytes. Entries of one group, in log order,
are a `Chunk`. The rules are folds: `fold(state, chunk)` returns rows and changes the state, `finish(state)` returns
what was still open. Two properties are tested:

- The result does not depend on where a chunk ends: a topic read as a whole, in pieces, or as a stream gives the same
  rows.
- The state is plain data (it can be pickled) and bounded by the group's current size, not by its age.

So the small engine (engine.py: one process, Arrow), Spark in batches and Spark as a stream (muster.spark.history) share
one implementation; they differ in how they bring the entries of a group together.

**When a row is final.** A generation is closed by the next one. A rebalance may be part of a pattern (a rolling
restart, a flapping member) that only several rebalances show: its row is final once the log has advanced by
`Limits.pattern_ms`. `finish` closes everything at the log's end.

Sources: KIP-848, KIP-345, KIP-429, KIP-800; GroupMetadataValue and related schemas in Apache Kafka 4.2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar, dataclass_transform

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Int64s: TypeAlias = NDArray[np.int64]

TopicPartition: TypeAlias = tuple[str, int]
V = TypeVar("V")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def fixed(cls: type[V]) -> type[V]:
    """A dataclass whose fields mypy treats as read-only.

    It is not `frozen`: creating a frozen one takes four times as long, and the rules create dozens for each generation.
    """
    return dataclass(slots=True, unsafe_hash=True)(cls)


LAST_MS = 253_402_300_799_999
"""The end of the year 9999, the last in Python's and Spark's calendars: a later time is from a damaged record."""


class Place(NamedTuple):
    """The position of a record in `__consumer_offsets`, and when the broker appended it."""

    partition: int
    offset: int
    timestamp_ms: int
    leader_epoch: int
    """The leader epoch of the batch: it increases when another broker becomes the group's coordinator. -1 if not
    known."""


class Entry(NamedTuple):
    """A record about a group that is not a commit: key and value as in the log (value None: a tombstone)."""

    at: Place
    key: bytes
    value: bytes | None


class How(IntEnum):
    """How an offset was committed, as far as the header of its record batch shows."""

    UNKNOWN = -1
    """The header was not read: the admin API or a broker's event reported the offset, or an older version of muster
    wrote the entry."""
    PLAIN = 0
    """By OffsetCommit, or written by the coordinator itself."""
    TRANSACTIONAL = 1
    """By TxnOffsetCommit, in a transaction that was committed."""


@dataclass(slots=True)
class Commits:
    """A group's commits in log order, as columns of equal length (numpy int64).

    `partition` is an index into `names`. A tombstone (the offset expired or was deleted) has offset -1. `commit_ms` is
    when the coordinator received the commit, -1 for a tombstone. `leader_epoch` is that of the batch, as in `Place`.
    `how` has values of `How`.
    """

    names: list[TopicPartition]
    log_offset: Int64s
    timestamp_ms: Int64s
    partition: Int64s
    offset: Int64s
    commit_ms: Int64s
    leader_epoch: Int64s
    how: Int64s
    notes: Sequence[tuple[int, str]] = ()
    """The commits of Spark queries and sinks: row and metadata."""


@dataclass(slots=True)
class Chunk:
    """One group's records in one stretch of the log, in log order.

    `now_ms` is how far the log has been read across all groups, by its records' clock: it closes rows of a group that
    has no further records. None if not known.
    """

    group: str
    entries: Sequence[Entry]
    commits: Commits
    now_ms: int | None = None


class GroupKind(StrEnum):
    """Which of Kafka's protocols a group uses."""

    CLASSIC = "classic"
    CONSUMER = "consumer"
    SHARE = "share"
    STREAMS = "streams"
    OFFSETS_ONLY = "offsets only"
    """Commits without any group record: from a client that assigns partitions manually, or from a tool."""
    SINK = "sink"
    """Offsets in which a task of muster's Spark sink marks what it has written (sink_groups.py)."""


@fixed
class Member:
    """A member of a generation. `assignment` and `owned` are sorted; `owned` is what it reported when it joined."""

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
    """The Java client, librdkafka and muster send their max.poll.interval.ms here."""
    epoch: int | None = None
    """The member's own epoch (KIP-848); it may lag behind the group's."""


@fixed
class Generation:
    """One generation of a classic group, or one epoch of a KIP-848 group, as in the log."""

    group: str
    generation: int
    kind: GroupKind
    started_ms: int
    """When its record was appended: all members have joined, and the leader has sent the assignment."""
    ended_ms: int | None
    """When the record of the next one, or of the group's end, was appended; None: it has not ended."""
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
    """The first members joined a new or empty group."""
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
    """The records show a rebalance but nothing that explains it."""


DEPARTURES = frozenset({Cause.LEFT, Cause.SESSION_EXPIRED, Cause.POLL_INTERVAL_EXCEEDED})
"""What `MEMBER_GONE` may mean."""


class Pattern(StrEnum):
    """A pattern that several rebalances form. Each of them has its own cause."""

    ROLLING_RESTART = "rolling_restart"
    FLAPPING = "flapping"


@fixed
class PatternSeen:
    """A pattern that a rebalance is part of."""

    kind: Pattern
    confidence: float
    evidence: tuple[str, ...]
    members: tuple[str, ...]
    """The members involved, by client id, host and instance id."""
    went: tuple[Cause, ...]
    """Why they left, in order; `not_known` if the records do not show it."""


@fixed
class Alternative:
    """Another cause that fits the same records, and what would tell the two apart."""

    cause: Cause
    told_apart_by: str


@fixed
class Change:
    """A member that joined, was replaced or changed its subscription between two generations.

    `before` is its former state, or the member that it replaces: one with the same instance id, or the same client id
    and host.
    """

    member: Member
    before: Member | None = None


@fixed
class Moved:
    """A partition that changed its owner."""

    topic: str
    partition: int
    from_member: str | None
    to_member: str | None
    needless: bool
    """Its former owner stayed and kept its subscription, and an equally even assignment was possible without the
    move."""


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
    """`exact` (the broker's own events; KIP-848), `at least` (its SyncGroup), `at most` (since a commit)."""
    members_before: int
    members_after: int
    joined: tuple[Change, ...]
    left: tuple[Member, ...]
    replaced: tuple[Change, ...]
    resubscribed: tuple[Change, ...]
    moved_partitions: tuple[Moved, ...]
    stopped: tuple[tuple[str, int, int], ...]
    """(topic, partition, ms) from the last commit before to the first commit after, for partitions with commits."""
    cause: Cause
    confidence: float
    evidence: tuple[str, ...]
    alternatives: tuple[Alternative, ...]
    pattern: PatternSeen | None = None
    """The pattern that this rebalance and those around it form; the cause is that of this rebalance alone."""
    waited_ms: int | None = None
    """The longest time that the members may have waited for some that joined late; None: no such wait is visible."""
    waited_for: tuple[Member, ...] = ()
    """The members that joined late: their handlers kept them from polling."""
    phase: int = 1
    """2: the second phase of a cooperative rebalance, in which revoked partitions are handed out. It has the cause of
    the first."""
    source: str = "records"
    """`records`: inferred; `events`: the broker wrote it to `__group_events`; `samples`: inferred from polling the
    group through the admin API."""
    is_stop: bool = False
    """Its members left as part of a stop of the group: one shortly after another until the group was empty."""

    @property
    def is_rebalance(self) -> bool:
        """Whether the group rebalanced. False for the second phase of a rebalance, which counts once; for a static
        member that was replaced in the same generation; for a stop of the group; and if no members are left."""
        return self.phase == 1 and not self.is_takeover and not self.is_stop and self.members_after > 0

    @property
    def is_takeover(self) -> bool:
        """Whether a static member was replaced. A converted group keeps its number, too."""
        return self.generation == self.previous_generation and self.cause is Cause.STATIC_MEMBER_REPLACED

    @property
    def moved(self) -> int:
        return len(self.moved_partitions)

    @property
    def moved_needlessly(self) -> int:
        return sum(move.needless for move in self.moved_partitions)

    @property
    def stopped_partition_ms(self) -> int:
        """How long partitions were stopped, summed over them."""
        return sum(ms for _, _, ms in self.stopped)


@fixed
class CommitNote:
    """Something noteworthy about a group's commits."""

    group: str
    topic: str
    partition: int
    at_ms: int
    kind: str
    """`rewind` (an offset below the last one), `non_member` (no member had this partition in this generation or the
    previous one; in an empty group: the third commit), `deleted` (a tombstone: expired, or deleted by an operator)."""
    offset: int
    previous_offset: int
    is_transactional: bool | None = None
    """Whether it was committed in a transaction; None if that is not known (`How.UNKNOWN`)."""


@fixed
class LagSample:
    """A sample from the cluster about one partition that a group has committed.

    `records` counts data records between the committed offset and the end (without transaction markers and what
    compaction removed), None if they were not counted; `oldest_ms` is the time of the first of them.
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
    """A group's lag in one partition at one time."""

    group: str
    topic: str
    partition: int
    at_ms: int
    committed_offset: int
    committed_ms: int
    log_start_offset: int
    log_end_offset: int
    lag_records: int
    """From the committed offset to the log's end, as in Kafka's tool (`lag.lag`); negative if the log ends before the
    committed offset."""
    is_exact: bool
    """Whether there are exactly this many records. Otherwise it is an upper bound that may include transaction markers,
    offsets removed by compaction and records removed by retention."""
    lag_ms: int | None
    lost_records: int
    """Records that retention removed before the group had read them."""
    expires_ms: int | None
    """If the group is empty: the time at which its offset expires."""


@fixed
class Finding:
    """One finding of the doctor."""

    group: str
    rule: str
    since_ms: int
    sentence: str
    stopped_partition_ms: int
    """Upper bound on the time for which this stopped partitions, summed over them. 0 if they were not, or if another
    finding about the same rebalances has the cost: no cost is counted twice."""
    stopped_partition_ms_per_day: int | None
    """The same per day, if it recurred over a day or longer; otherwise None."""
    advice: str


@dataclass(slots=True)
class Rows:
    """The result of a fold: rows that are final."""

    generations: list[Generation] = field(default_factory=list)
    rebalances: list[Rebalance] = field(default_factory=list)
    notes: list[CommitNote] = field(default_factory=list)

    def extend(self, other: Rows) -> None:
        self.generations += other.generations
        self.rebalances += other.rebalances
        self.notes += other.notes


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """The oldest open transaction of a partition: read_committed consumers get nothing from `last_stable_offset` on.
    `hangs`: no coordinator will end it."""

    last_stable_offset: int
    start_offset: int
    producer_id: int
    producer_epoch: int
    transactional_id: str | None
    last_timestamp_ms: int
    hangs: bool


@dataclass(frozen=True, slots=True)
class Limits:
    """What the rules need and the log does not contain."""

    since_ms: int = 0
    """Everything before this time is only context."""
    pattern_ms: int = 600_000
    """How far apart the rebalances of one `Pattern` may be."""
    offsets_retention_ms: int = 7 * 24 * 3_600_000
    """The cluster's offsets.retention.minutes."""
    consumer_session_timeout_ms: int = 45_000
    """group.consumer.session.timeout.ms: members of KIP-848 groups do not send their own."""
    session_timeouts_ms: Mapping[str, int] = field(default_factory=dict)
    """consumer.session.timeout.ms of the KIP-848 groups that have their own."""
    topic_names: Mapping[str, str] = field(default_factory=dict)
    """Names by topic id in 32 hexadecimal digits: KIP-848's assignment records only have ids. A name that is missing
    here is inferred from subscriptions if possible; otherwise the id is shown."""
    open_transactions: Mapping[TopicPartition, OpenTransaction] = field(default_factory=dict)
    """The oldest open transaction of each partition that groups read, if it has any."""


Counts: TypeAlias = dict[tuple[str, int], int]
"""Number of records read by kind (Kafka's name such as `GroupMetadata`, or `kind 42`) and version of the value (-1: a
tombstone, -2: not decodable)."""

Json: TypeAlias = dict[str, Any]
