"""Why a group rebalanced: a table of rules from the strongest evidence to the weakest. The first match decides.

A rule reads a `Case`, one rebalance with all that is known about it, and returns a `Verdict` or None. Its confidence
is the share of such cases in which the cause is right, as far as recorded scenarios show; alternatives that also fit
are listed with what would tell them apart. Patterns over several rebalances (patterns.py) are reported in addition to
the cause and never replace it.

A rejoining leader shows less than members that join or leave. A leader with the Java client rejoins when the group's
topics gained partitions, which the next assignment shows; when its application calls enforceRebalance, and when its
metadata changed in another way (its rack), which nothing shows. A follower that rejoins with unchanged metadata only
gets a reply; clients that report their owned partitions (all since Kafka 2.4) send different metadata each time, so it
may have been a follower whose application calls enforceRebalance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TypeAlias

from muster.history.model import Alternative, Cause, Change, Generation, Member, PatternSeen, TopicPartition, fixed
from muster.history.rules.commit_times import Signs
from muster.history.rules.departures import BROKER_LOG, CLIENT_LOG, Departure
from muster.history.rules.rebalances import Difference
from muster.history.rules.wording import count, duration, listed, named

JOIN_LOG = "the coordinator's log: 'Preparing to rebalance group … (reason: …)' names what came first"
CONNECT = "connect"
"""The protocol type of Kafka Connect's workers."""
AT_ONCE_MS = 1_000
"""How soon a rebalance begins after its trigger, as commits show it."""
ADMIN_LOG = "when the topic's partitions were created, from the controller's log or with `kafka-topics --describe`"
MOVE_LOG = "the brokers' logs: 'Elected as the group coordinator' (or 'Loading group metadata') at that time"


@fixed
class Verdict:
    """A cause, its confidence and evidence, and what else it could be."""

    cause: Cause
    confidence: float
    evidence: tuple[str, ...] = ()
    alternatives: tuple[Alternative, ...] = ()
    pattern: PatternSeen | None = None
    is_stop: bool = False

    def but(self, *more: str, sure: float = 1.0, also: Iterable[Alternative] = ()) -> Verdict:
        """The same verdict with more evidence and alternatives; `sure` scales the confidence."""
        known = {each.cause for each in self.alternatives} | {self.cause}
        added = tuple(each for each in also if each.cause not in known)
        confidence = round(min(0.99, self.confidence * sure), 2)
        return replace(
            self,
            confidence=confidence,
            evidence=(*self.evidence, *more),
            alternatives=(*self.alternatives, *added),
        )


@fixed
class CoordinatorMove:
    """Since the previous generation another broker (or the same one, restarted) took the group over."""

    before_ms: int
    """When the former coordinator last wrote."""
    after_ms: int
    """When the new one first wrote."""


@dataclass(slots=True)
class Case:
    """One rebalance, and what is known about it. Times are by the group's clock."""

    after: Generation
    before: Generation | None
    differs: Difference
    at_ms: int
    departures: list[Departure] = field(default_factory=list)
    ended: str = ""
    """Why there is no previous generation: `deleted`, `fell`, or "" if neither."""
    has_earlier_records: bool = False
    """The log has earlier records of the group."""
    missed: int = 0
    """Number of generations between the two that have no record."""
    grown: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Topics of the same subscription that have more partitions than before."""
    gone_topics: tuple[str, ...] = ()
    handed_out: frozenset[TopicPartition] = frozenset()
    """Partitions that the previous generation revoked and this one hands out."""
    is_second_phase: bool = False
    second_of: str = ""
    """Why it is a second phase, if not because partitions are handed out."""
    move: CoordinatorMove | None = None
    metadata_changed: bool = False
    """KIP-848: the hash of the topics' metadata, or the set that a regular expression matches, has changed."""
    regex_grew: tuple[str, ...] = ()
    signs: list[Signs] | None = None
    """Commits of the members that stayed, before the rebalance."""
    returned: dict[str, tuple[Cause, int]] = field(default_factory=dict)
    """For members that rejoined under a new id: why they had left, and for how long."""
    waited_for: tuple[Member, ...] = ()
    """Members that joined long after the others."""
    waited_ms: int | None = None
    """How long the others waited for these."""
    queries_gone: dict[str, int] = field(default_factory=dict)
    """Spark queries whose members left, and the last batch that each had finished."""
    queries_back: set[str] = field(default_factory=set)
    """Those of them that committed again soon."""
    batches: tuple[str, ...] = ()
    """Sentences about the batches of Spark queries."""

    @property
    def began_by_ms(self) -> int:
        """When all members had joined, by the group's clock."""
        after = self.after
        if after.prepared_ms is None:
            return self.at_ms
        return self.at_ms - min(max(0, after.started_ms - after.prepared_ms), 3_600_000)

    @property
    def stayed(self) -> int:
        return len(self.differs.stayed)

    @property
    def is_modern(self) -> bool:
        return self.after.leader is None and bool(self.after.kind == "consumer")


Rule: TypeAlias = Callable[[Case], Verdict | None]


def verdict(case: Case) -> Verdict:
    """Why a group rebalanced, judged by this rebalance alone."""
    found = next(chain((each for rule in RULES if (each := rule(case)) is not None), [_unknown(case)]))
    if case.missed:
        found = found.but(_missed(case), sure=0.8)
    former, now = case.before.protocol if case.before is not None else None, case.after.protocol
    if former and now and former != now:
        found = found.but(f"The assignor changed from {former} to {now}.")
    return found.but(*case.batches) if case.batches else found


def _missed(case: Case) -> str:
    numbers = count(case.missed, "generation")
    return (
        f"{numbers} between {_number(case.before)} and {case.after.generation} left no record: those rebalances did "
        "not complete, or compaction removed them."
    )


def _number(generation: Generation | None) -> str:
    return "-" if generation is None else str(generation.generation)


# ---------------------------------------------------------------------------------------------------- where it begins


def _no_longer_known(case: Case) -> Verdict | None:
    """The first known record of a group."""
    if case.before is not None or case.ended == "deleted":
        return None
    if case.ended == "fell":
        evidence = (
            f"Generation {case.after.generation} follows a higher one: the group was deleted and created again, and "
            "the records in between were removed by compaction."
        )
        return Verdict(Cause.STARTED, 0.6, (evidence,), (Alternative(Cause.NOT_KNOWN, "the brokers' logs"),))
    if not case.after.members:
        return Verdict(Cause.NOT_KNOWN, 0.0, (f"The group has no members as of generation {case.after.generation}.",))
    if case.after.generation <= 1:
        return Verdict(Cause.STARTED, 0.97, (f"The group is new: {_who(case.after.members)}.",))
    if not case.has_earlier_records and case.after.generation <= 3:
        evidence = f"The log has no records of the group before generation {case.after.generation}."
        return Verdict(Cause.STARTED, 0.6, (evidence,), (Alternative(Cause.JOINED, "older records of the log"),))
    evidence = f"The log begins with generation {case.after.generation}; what came before is not known."
    return Verdict(Cause.NOT_KNOWN, 0.0, (evidence,))


def _started(case: Case) -> Verdict | None:
    if case.ended == "deleted" and case.after.members:
        return Verdict(Cause.STARTED, 0.97, (f"The group had been deleted and is new: {_who(case.after.members)}.",))
    if case.before is None or case.before.members or not case.after.members:
        return None
    if case.before.generation == 0:
        return Verdict(Cause.STARTED, 0.97, (f"The group is new: {_who(case.after.members)}.",))
    empty = duration(max(0, case.after.started_ms - case.before.started_ms))
    return Verdict(Cause.STARTED, 0.97, (f"The group had been empty for {empty}: {_who(case.after.members)}.",))


def _gone_at_once(case: Case) -> Verdict | None:
    """Members joined an empty group, and it is empty again."""
    if case.before is None or case.before.members or case.after.members:
        return None
    evidence = "The group was empty before and after: the members that joined left before the rebalance completed."
    return Verdict(Cause.STARTED, 0.9, (evidence,)) if case.after.generation > case.before.generation else None


def _who(members: Iterable[Member]) -> str:
    return f"{listed(map(named, members))} joined"


# ------------------------------------------------------------------------------------------------------ the coordinator


MOVE_SLACK_MS = 6_000
"""How long a rebalance may take after a member's session has expired, plus a margin for clocks."""


def _moved(case: Case) -> Verdict | None:
    """Members that lost their membership when another broker took over."""
    move = case.move
    if move is None or case.before is None or not case.before.members:
        return None
    gone = case.differs.gone
    before = duration(max(0, case.at_ms - move.before_ms))
    moved = (
        f"The leader epoch of the group's partition increased in the {before} before: another broker took over, or "
        "the same one restarted."
    )
    if gone:
        silent = all(case.at_ms - each.silent_ms <= move.after_ms + 1_000 for each in case.departures)
        came_back = len(case.differs.replaced) == len(gone)
        together = _expired_with_the_move(case, move)
        if case.stayed > len(gone) == 1 and not came_back:
            return _one_expired(case, moved) if silent and together else None
        if not (silent and (not case.stayed or came_back or together)) or case.differs.joined:
            return None
        if any(change.member.instance_id for change in case.differs.replaced):
            return None  # a static member that is back was restarted, which is not due to the move
        evidence = f"{count(len(gone), 'member')} lost their membership in the move: {listed(map(named, gone))}."
        others = [Alternative(each.cause, MOVE_LOG) for each in case.departures if each.cause is not Cause.LEFT]
        return Verdict(Cause.COORDINATOR_MOVED, 0.8 if len(gone) > 1 else 0.5, (moved, evidence)).but(also=others)
    if case.differs.same_members and not case.differs.resubscribed and not case.grown and not case.is_second_phase:
        recent = case.at_ms - move.before_ms <= _patience_ms(case)
        if recent:
            evidence = "Members and subscriptions are the same."
            other = Alternative(Cause.LEADER_REJOINED, MOVE_LOG)
            return Verdict(Cause.COORDINATOR_MOVED, 0.7, (moved, evidence), (other,))
    return None


def _one_expired(case: Case, moved: str) -> Verdict | None:
    """All but one found the new coordinator, which waited a full session timeout for that one, dead or not."""
    if case.differs.joined:
        return None
    (gone,) = case.departures
    evidence = (
        f"{named(gone.member)} was silent for a full session timeout from then on; the others found the coordinator."
    )
    others = (Alternative(Cause.COORDINATOR_MOVED, MOVE_LOG), Alternative(gone.cause, CLIENT_LOG), *gone.alternatives)
    return Verdict(Cause.SESSION_EXPIRED, 0.55, (gone.evidence, moved, evidence)).but(also=others)


def _expired_with_the_move(case: Case, move: CoordinatorMove) -> bool:
    """A new coordinator gives each member a full session timeout after it has loaded the group: those that have not
    found it by then all expire at that moment."""
    session_ms = max(member.session_timeout_ms or 0 for member in case.differs.gone)
    return session_ms > 0 and 0 <= case.at_ms - move.after_ms - session_ms + 1_000 <= MOVE_SLACK_MS


def _patience_ms(case: Case) -> int:
    """How long after a move a rebalance may still result from it."""
    timeouts = [each.rebalance_timeout_ms or each.session_timeout_ms or 0 for each in case.after.members]
    return min(max([60_000, *timeouts]), 300_000)


def _back_after_move(case: Case) -> Verdict | None:
    """All members that joined had lost their membership when the coordinator moved."""
    came = case.differs.came
    why = [case.returned.get(member.member_id) for member in came]
    if not came or case.differs.gone or any(each is None or each[0] is not Cause.COORDINATOR_MOVED for each in why):
        return None
    evidence = f"{listed(map(named, came))} lost membership when the coordinator moved, and rejoined."
    return Verdict(Cause.COORDINATOR_MOVED, 0.75, (evidence,), (Alternative(Cause.JOINED, MOVE_LOG),))


# ------------------------------------------------------------------------------------------------ members come and go


def _static_replaced(case: Case) -> Verdict | None:
    replaced = [change for change in case.differs.replaced if change.member.instance_id]
    if not replaced or len(replaced) < len(case.differs.replaced) or case.differs.left or case.differs.joined:
        return None
    evidence = _came_back(replaced)
    if case.before is not None and case.before.generation == case.after.generation:
        return Verdict(
            Cause.STATIC_MEMBER_REPLACED, 0.98, (evidence, "The group did not rebalance: the generation is the same.")
        )
    if not _brings_more(case):
        return None  # its session had expired, or another member made the group rebalance
    why = "It brought a different assignor or subscription."
    return Verdict(Cause.STATIC_MEMBER_REPLACED, 0.9, (evidence, why))


def _came_back(replaced: Iterable[Change]) -> str:
    who = listed(named(change.member) for change in replaced)
    return f"{who} returned under a new member id with the same instance id."


def _brings_more(case: Case) -> bool:
    return bool(case.differs.resubscribed) or (case.before is not None and case.before.protocol != case.after.protocol)


def _departed(case: Case) -> Verdict | None:
    if not case.departures:
        return None
    known = [each for each in case.departures if each.cause is not Cause.MEMBER_GONE] or case.departures
    first = min(known, key=lambda each: each.triggered_ms)
    same = [each for each in case.departures if each.cause is first.cause]
    others = [each for each in case.departures if each.cause is not first.cause]
    confidence = max(each.confidence for each in same)
    evidence = (*(each.evidence for each in (*same, *others)[:4]), *_back_at_once(case))
    found = Verdict(first.cause, confidence, evidence, first.alternatives)
    if case.grown:
        found = found.but(*_growth(case), sure=0.85, also=[Alternative(Cause.PARTITIONS_ADDED, JOIN_LOG)])
    if others:
        also = [Alternative(each.cause, JOIN_LOG) for each in others]
        found = found.but("This cause is assumed to have come first.", sure=0.7, also=also)
    if case.differs.joined and first.cause is Cause.LEFT and not first.is_guess:
        return _left_or_joined(case, found)
    if _was_waited_for(case, first):
        return _joined_first(case, found)
    if case.differs.joined:
        found = found.but(_joined_besides(case), sure=0.85, also=[Alternative(Cause.JOINED, JOIN_LOG)])
    elif static := [change for change in case.differs.replaced if change.member.instance_id]:
        found = found.but(_came_back(static), also=[Alternative(Cause.STATIC_MEMBER_REPLACED, JOIN_LOG)])
    elif _back_at_once(case) and first.cause is not Cause.LEFT:
        found = found.but(also=[Alternative(Cause.JOINED, JOIN_LOG)])
    if not case.after.members:
        found = found.but("The group is empty now.")
    return found


def _left_or_joined(case: Case, found: Verdict) -> Verdict:
    """One member joined and one left in the same rebalance: nothing shows which came first."""
    return found.but(_joined_besides(case), sure=0.6, also=[Alternative(Cause.JOINED, JOIN_LOG)])


def _was_waited_for(case: Case, first: Departure) -> bool:
    """Whether a member (possibly the restarted process) joined while another was dead but had not expired. The
    rebalance then begins immediately, and a classic group waits in it until the dead member's timeout expires; one that
    joins after that has only as long as the others take to join. This is ruled out if the others still committed: eager
    members do not commit during a rebalance. The same is assumed of a member that is gone for no visible reason."""
    waits = first.is_guess or first.cause in (Cause.SESSION_EXPIRED, Cause.POLL_INTERVAL_EXCEEDED)
    if case.is_modern or not waits or not _arrived(case):
        return False
    if first.is_guess or "cooperative" in (case.after.protocol or ""):
        return True
    latest = max((each.last_ms for each in case.signs or () if each.commits), default=-1)
    return latest < first.triggered_ms - AT_ONCE_MS


def _joined_first(case: Case, found: Verdict) -> Verdict:
    """A member joined while the group waited for another that was dead."""
    joined = f"{_who(_arrived(case))}, probably first: a group waits for its members until they time out."
    others = [] if found.cause is Cause.MEMBER_GONE else [Alternative(found.cause, JOIN_LOG)]
    alternatives = (*others, *(each for each in found.alternatives if each.cause is not Cause.JOINED))
    sure = {Cause.SESSION_EXPIRED: 0.8, Cause.POLL_INTERVAL_EXCEEDED: 0.55}.get(found.cause, 0.7)
    return Verdict(Cause.JOINED, sure, (joined, *found.evidence), alternatives)


def _arrived(case: Case) -> list[Member]:
    """New members and restarted processes, except static ones, which replace themselves."""
    replaced = [change.member for change in case.differs.replaced if not change.member.instance_id]
    return [*(change.member for change in case.differs.joined), *replaced]


def _joined_besides(case: Case) -> str:
    return f"In the same rebalance {_who(change.member for change in case.differs.joined)}."


def _back_at_once(case: Case) -> list[str]:
    back = [change.member for change in case.differs.replaced if not change.member.instance_id]
    return [f"Back in the same rebalance under a new member id: {listed(map(named, back))}."] if back else []


def _joined(case: Case) -> Verdict | None:
    joined = [change.member for change in case.differs.joined]
    if not joined:
        return None
    evidence = [f"{_who(joined)}: {count(len(joined), 'new member id')}."]
    for member in joined:
        if member.member_id in case.returned:
            why, ms = case.returned[member.member_id]
            gone = "reason not known" if why is Cause.MEMBER_GONE else str(why).replace("_", " ")
            evidence.append(f"{named(member)} rejoined after being gone for {duration(ms)} ({gone}).")
    return Verdict(Cause.JOINED, 0.97, tuple(evidence))


# ---------------------------------------------------------------------------------------------------- subscriptions


def _second_phase(case: Case) -> Verdict | None:
    """This rebalance is only the second phase of the previous one, whose row provides the cause."""
    if not case.is_second_phase:
        return None
    if case.second_of:
        return Verdict(Cause.NOT_KNOWN, 0.9, (case.second_of,))
    given = len(case.handed_out)
    evidence = (
        f"Second phase: {count(given, 'partition')} that the members had revoked {'was' if given == 1 else 'were'} "
    )
    return Verdict(Cause.NOT_KNOWN, 0.97, (evidence + "handed out.",))


def _resolved(case: Case) -> Verdict | None:
    """A regular expression is resolved after its member has joined, so its topics did not gain partitions."""
    return _second_phase(case) if case.second_of else None


def _subscription_changed(case: Case) -> Verdict | None:
    changed = case.differs.resubscribed
    if not changed:
        return None
    evidence = []
    for change in changed[:3]:
        topics = _topics(_added(change), _dropped(change), change.member)
        evidence.append(f"{named(change.member)} changed its subscription: {topics}.")
    alike = len({_added(change) for change in changed}) == len({_dropped(change) for change in changed}) == 1
    sure = 0.6 if alike and len(changed) == case.stayed > 1 else 0.93
    if gone := _unread(case):
        evidence.append(f"No member subscribes to {listed(gone)} any longer, as when a topic is deleted.")
        sure = 0.55
    others = _by_pattern(changed[0]) if alike else ()
    return Verdict(Cause.SUBSCRIPTION_CHANGED, sure, tuple(evidence), others)


def _by_pattern(change: Change) -> tuple[Alternative, ...]:
    """A client that resolves patterns itself (all do in the classic protocol) changes its subscription when a topic
    that matches is created or deleted."""
    if _added(change) and not _dropped(change):
        apart = "whether the members subscribe by pattern; when the topic was created"
        return (Alternative(Cause.PARTITIONS_ADDED, apart),)
    if _dropped(change) and not _added(change):
        apart = f"whether {listed(_dropped(change))} was deleted: `kafka-topics --list`"
        return (Alternative(Cause.NOT_KNOWN, apart),)
    return ()


def _unread(case: Case) -> tuple[str, ...]:
    """The topics that all changed subscriptions dropped, without other changes, and that no member subscribes to."""
    dropped = {_dropped(change) for change in case.differs.resubscribed}
    if len(dropped) > 1 or any(map(_added, case.differs.resubscribed)):
        return ()
    still = {topic for member in case.after.members for topic in member.topics}
    return tuple(topic for topic in dropped.pop() if topic not in still)


def _added(change: Change) -> tuple[str, ...]:
    return tuple(sorted(set(change.member.topics) - set(change.before.topics if change.before else ())))


def _dropped(change: Change) -> tuple[str, ...]:
    return tuple(sorted(set(change.before.topics if change.before else ()) - set(change.member.topics)))


def _topics(added: Sequence[str], dropped: Sequence[str], member: Member) -> str:
    parts = [f"added {listed(added)}" if added else "", f"removed {listed(dropped)}" if dropped else ""]
    return ", ".join(filter(None, parts)) or f"the pattern is now {member.topic_regex!r}"


def _partitions_added(case: Case) -> Verdict | None:
    if case.grown:
        evidence = _growth(case)
        if case.regex_grew:
            evidence.append(f"The members' regular expression now matches {listed(case.regex_grew)}.")
        return Verdict(Cause.PARTITIONS_ADDED, 0.95, tuple(evidence))
    if case.regex_grew:
        evidence = [f"The members' regular expression now matches {listed(case.regex_grew)}."]
        return Verdict(Cause.PARTITIONS_ADDED, 0.8, tuple(evidence))
    return None


def _growth(case: Case) -> list[str]:
    return [f"{topic} grew from {had} to {now} partitions." for topic, (had, now) in sorted(case.grown.items())]


def _metadata_changed(case: Case) -> Verdict | None:
    if not case.metadata_changed:
        return None
    if case.gone_topics:
        evidence = f"{listed(case.gone_topics)} no longer has assigned partitions: it was deleted."
        return Verdict(Cause.NOT_KNOWN, 0.5, (evidence,))
    evidence = (
        "The topics' metadata changed, but not the number of assigned partitions: perhaps replicas moved between racks."
    )
    return Verdict(Cause.NOT_KNOWN, 0.3, (evidence,), (Alternative(Cause.PARTITIONS_ADDED, ADMIN_LOG),))


def _leader_rejoined(case: Case) -> Verdict | None:
    if case.before is None or not case.differs.same_members or not case.after.members or case.is_modern:
        return None
    leader = next((each for each in case.after.members if each.member_id == case.after.leader), None)
    who = named(leader) if leader is not None else "the leader"
    evidence = [
        f"Members, subscriptions and partitions are the same: the member that rejoined was {who}, the leader, or one "
        "that calls enforceRebalance or whose user data changed (as in Kafka Streams)."
    ]
    if case.gone_topics:
        evidence = [
            f"{listed(case.gone_topics)} no longer has assigned partitions: it was deleted, and {who} rejoined."
        ]
    if case.after.protocol_type == CONNECT:
        evidence = [
            "The workers are the same: one rejoined, as each does when a connector or its tasks change, and when "
            "scheduled.rebalance.max.delay.ms has passed for the tasks of a worker that is gone."
        ]
    apart = "the coordinator's log: 'Preparing to rebalance group … (reason: …)'"
    return Verdict(Cause.LEADER_REJOINED, 0.8, tuple(evidence), (Alternative(Cause.NOT_KNOWN, apart),))


def _unknown(case: Case) -> Verdict:
    evidence = "Members and subscriptions are the same, and nothing in the records explains it."
    return Verdict(Cause.NOT_KNOWN, 0.0, (evidence,), (Alternative(Cause.PARTITIONS_ADDED, BROKER_LOG),))


RULES: tuple[Rule, ...] = (
    _no_longer_known,
    _back_after_move,
    _started,
    _gone_at_once,
    _moved,
    _static_replaced,
    _departed,
    _joined,
    _subscription_changed,
    _resolved,
    _partitions_added,
    _second_phase,
    _metadata_changed,
    _leader_rejoined,
)
