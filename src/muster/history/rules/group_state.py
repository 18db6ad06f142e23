"""The state of a group after part of its log, and how a rebalance is added to it, for both protocols.

The state is plain data, so that it can be pickled. Its size depends on the group's current size and the rebalances of
the last window.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from muster.history.model import Cause, Generation, GroupKind, Limits, Member, Place, Rows, TopicPartition
from muster.history.rules.causes import Case, CoordinatorMove, Verdict, verdict
from muster.history.rules.classic_generations import with_end
from muster.history.rules.commit_times import NEVER, Clock, CommitTimes, Signs
from muster.history.rules.departures import Departure
from muster.history.rules.generations import ConsumerTable, Ids, Standing
from muster.history.rules.patterns import Lineage, Trace, trace
from muster.history.rules.pending import Pending, SilenceWatch
from muster.history.rules.query_batches import QueryBatches
from muster.history.rules.rebalances import counts

FEWEST_WATCHED_MS = 10_000
"""A member that takes over partitions may need this long until its first commit."""


@dataclass(slots=True)
class OpenEpoch:
    """A KIP-848 group's current epoch: the members when it began, their target and current assignments."""

    number: int
    at: Place
    at_ms: int
    members: dict[str, Member]
    regexes: dict[str, tuple[str, ...]]
    metadata_hash: int
    targets: dict[str, Ids] = field(default_factory=dict)
    standings: dict[str, Standing] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    """Number of partitions by topic, before Kafka 4.1."""
    assignor: str | None = None
    settled_ms: int | None = None
    settled_at_ms: int | None = None


@dataclass(slots=True)
class ReplayedState:
    """The state of a group after part of its log."""

    group: str
    limits: Limits
    kind: GroupKind = GroupKind.OFFSETS_ONLY
    clock: Clock = field(default_factory=Clock)
    times: CommitTimes = field(default_factory=CommitTimes)
    first: Place | None = None
    current: Generation | None = None
    """The open classic generation."""
    current_ms: int = 0
    former: Generation | None = None
    """The generation that a tombstone ended."""
    former_ms: int = 0
    table: ConsumerTable = field(default_factory=ConsumerTable)
    epoch: OpenEpoch | None = None
    counts: dict[str, int] = field(default_factory=dict)
    withheld: frozenset[TopicPartition] = frozenset()
    resettling: str = ""
    """Why the next generation, if it has the same members, belongs to the same rebalance."""
    strange_topics: frozenset[str] = frozenset()
    """Topics that members other than the leader added or removed in the latest classic generation."""
    pending: list[Pending] = field(default_factory=list)
    traces: list[Trace] = field(default_factory=list)
    lineage: Lineage = field(default_factory=Lineage)
    verdict: Verdict | None = None
    """The verdict on the rebalance whose row was made last."""
    leader_epoch: int = -1
    heard_ms: int = 0
    """When the coordinator last wrote."""
    move: CoordinatorMove | None = None
    watching: list[SilenceWatch] = field(default_factory=list)
    """The watches that have not ended."""
    owners_are_stale: bool = False
    heard_of: dict[str, int] = field(default_factory=dict)
    """When each member of a KIP-848 group last showed a sign of life."""
    others: Generation | None = None
    """The open epoch of a share or streams group."""
    queries: QueryBatches = field(default_factory=QueryBatches)


def ended(state: ReplayedState, generation: Generation, at: Place, at_ms: int, rows: Rows) -> None:
    """A tombstone: the group is deleted or converted."""
    rows.generations.append(with_end(generation, at.timestamp_ms))
    state.former, state.former_ms = generation, at_ms
    state.times.disown()


def before_tombstone(
    state: ReplayedState, after: Generation, at_ms: int, other: GroupKind
) -> tuple[Generation | None, str]:
    """The generation before a tombstone if the group was converted in the same batch; otherwise None and the reason."""
    former, state.former = state.former, None
    if former is None:
        return None, ""
    converted = former.kind is other and at_ms - state.former_ms <= 10
    if converted and (after.generation == former.generation or not former.members):
        return former, ""
    return None, "deleted"


def signs_of_stayed(state: ReplayedState, case: Case) -> list[Signs]:
    """The commits of the remaining members before a rebalance."""
    if case.signs is None:
        stayed = [change.before for change in case.differs.stayed if change.before is not None]
        case.signs = [state.times.signs(member.assignment) for member in stayed]
    return case.signs


def stayed_moved_on_ms(state: ReplayedState, case: Case) -> int:
    """When any remaining member last committed a new offset."""
    return max((each.moved_on_ms for each in signs_of_stayed(state, case)), default=NEVER)


def others(state: ReplayedState, case: Case) -> tuple[int, int]:
    """Until when the remaining members committed, and at what interval."""
    shown = [each for each in signs_of_stayed(state, case) if each.commits >= 3]
    if not shown:
        return NEVER, NEVER
    latest = max(shown, key=lambda each: each.last_ms)
    return latest.last_ms, latest.longest_gap_ms


def silences(state: ReplayedState, before: Generation | None, at_ms: int) -> dict[TopicPartition, int]:
    """Since when each committed partition of a generation has been silent."""
    window = state.limits.pattern_ms
    latest = state.pending[-1] if state.pending else None
    found = latest.superseded(at_ms, window) if latest is not None else {}
    if before is None:
        return {}
    assigned = [place for member in before.members for place in member.assignment]
    earliest = max(at_ms - window, 0)
    silent = {
        place: last for place, last in zip(assigned, state.times.lasts(assigned), strict=True) if last >= earliest
    }
    return silent | {place: since for place, since in found.items() if place in silent}


def add(
    state: ReplayedState,
    case: Case,
    duration_ms: int | None,
    duration_is: str,
    silent: dict[TopicPartition, int],
    *,
    is_open: bool = False,
) -> None:
    """Add a rebalance; its row is made when it is final."""
    if case.before is not None:
        state.lineage.keep(case.before.members)
    state.queries.look(case, state.times)
    times = (case.at_ms, state.limits.pattern_ms)
    members = 0 if case.before is None else len(case.before.members)
    found, case.returned = trace(state.lineage, case.departures, case.differs.gone, case.differs.came, times, members)
    if state.move is not None and state.move.after_ms <= case.at_ms:
        case.move, state.move = state.move, None
        _blame_move(state, case)
    state.traces.append(found)
    watches = [
        SilenceWatch(each.member.member_id, each.member.assignment, case.at_ms + _watched_ms(state, each))
        for each in case.departures
        if each.rests_on_silence
    ]
    state.watching += watches
    known = dict(state.counts)
    state.pending.append(
        Pending(case, found, known, duration_ms, duration_is, silent, is_open=is_open, watches=watches)
    )


def _watched_ms(state: ReplayedState, found: Departure) -> int:
    """How long another member may take to progress on a silent member's partitions; not beyond the row's window."""
    return min(max(found.silent_ms, FEWEST_WATCHED_MS), state.limits.pattern_ms)


def _blame_move(state: ReplayedState, case: Case) -> None:
    """Mark members that lost their membership in a coordinator move, for when they return."""
    if case.differs.gone and verdict(case).cause is Cause.COORDINATOR_MOVED:
        ids = {member.member_id for member in case.differs.left}
        state.lineage.gone = [
            replace(each, leg=replace(each.leg, cause=Cause.COORDINATOR_MOVED)) if each.member_id in ids else each
            for each in state.lineage.gone
        ]


def remember(state: ReplayedState, after: Generation) -> None:
    """Remember how many partitions the topics of a generation have."""
    if not after.members:
        return
    now = counts(after.members)
    topics = {topic for member in after.members for topic in member.topics}
    kept = {topic: number for topic, number in state.counts.items() if topic in now or topic not in topics}
    for topic, number in now.items():
        kept[topic] = max(number, kept.get(topic, 0))
    state.counts = kept
