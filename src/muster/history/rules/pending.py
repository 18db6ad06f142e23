"""A rebalance that is not final yet: partitions are still silent, its epoch is still open, a pattern may still emerge.

Everything in it is known when the rebalance happens, except three things that come later: until when each partition
was silent, the target of a KIP-848 epoch, and the rebalances around it. So the row is created once these are known.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from muster.history.model import Cause, Generation, Rebalance, TopicPartition
from muster.history.rules.causes import Case, Verdict, verdict
from muster.history.rules.patterns import Trace, pattern
from muster.history.rules.rebalances import counts, moved


@dataclass(slots=True)
class SilenceWatch:
    """For a member whose departure is inferred from silence: whether another member progresses on its partitions before
    as much time has passed as the silence lasted."""

    member_id: str
    places: tuple[TopicPartition, ...]
    until_ms: int
    resumed: bool = False


@dataclass(slots=True)
class Pending:
    """A rebalance whose row is not complete yet. Times are by the group's clock."""

    case: Case
    trace: Trace
    known: dict[str, int]
    """Number of partitions by topic, as known before."""
    duration_ms: int | None
    duration_is: str
    silent_since: dict[TopicPartition, int] = field(default_factory=dict)
    stopped: dict[TopicPartition, int] = field(default_factory=dict)
    is_open: bool = False
    """A KIP-848 epoch whose target assignment may still arrive."""
    watches: list[SilenceWatch] = field(default_factory=list)

    @property
    def at_ms(self) -> int:
        return self.case.at_ms

    @property
    def rebalanced(self) -> bool:
        """Whether the generation changed: it does not when a static member is replaced."""
        before, after = self.case.before, self.case.after
        return before is None or before.generation != after.generation or before.kind is not after.kind

    def heard(self, place: TopicPartition, at_ms: int) -> None:
        """A partition was committed for the first time after the rebalance."""
        self.stopped[place] = at_ms - self.silent_since.pop(place)

    def superseded(self, at_ms: int, window_ms: int) -> dict[TopicPartition, int]:
        """The next rebalance has begun: partitions that are still silent count for that one from now on. Returns since
        when each has been silent."""
        within = at_ms - self.at_ms <= window_ms
        if within:
            self.stopped.update({place: at_ms - since for place, since in self.silent_since.items()})
        still = dict.fromkeys(self.silent_since, at_ms) if within else {}
        self.silent_since = {}
        return still

    def seal(self, after: Generation, duration_ms: int | None, duration_is: str) -> None:
        """The epoch is complete."""
        self.is_open = False
        self.case.after = after
        self.duration_ms, self.duration_is = duration_ms, duration_is
        note_partition_changes(self.case, self.known)

    def judged(self, traces: list[Trace], window_ms: int, first: Verdict | None, now_ms: int) -> tuple[Verdict, int]:
        """The verdict and the phase; `first`: the verdict on the previous rebalance; `now_ms`: how far the log has been
        read."""
        is_over = {each.member_id: each.until_ms <= now_ms for each in self.watches if not each.resumed}
        self.case.departures = [
            each.unproven(is_over=is_over[each.member.member_id]) if each.member.member_id in is_over else each
            for each in self.case.departures
        ]
        found = verdict(self.case)
        if self.case.is_second_phase and found.cause is Cause.NOT_KNOWN and first is not None:
            evidence = (*found.evidence, *first.evidence)
            confidence = round(first.confidence * found.confidence, 2)
            return replace(first, confidence=confidence, evidence=evidence), 2
        seen = pattern(found, self.trace, traces, window_ms)
        return seen if self.rebalanced else replace(seen, pattern=None), 1

    def row(self, found: Verdict, phase: int) -> Rebalance:
        """The row."""
        case = self.case
        before, after, differs = case.before, case.after, case.differs
        return Rebalance(
            group=after.group,
            generation=after.generation,
            previous_generation=None if before is None else before.generation,
            at_ms=after.started_ms,
            duration_ms=self.duration_ms,
            duration_is=self.duration_is,
            members_before=0 if before is None else len(before.members),
            members_after=len(after.members),
            joined=tuple(differs.joined),
            left=tuple(differs.left),
            replaced=tuple(differs.replaced),
            resubscribed=tuple(differs.resubscribed),
            moved_partitions=moved(before, after, differs),
            waited_ms=case.waited_ms,
            waited_for=case.waited_for,
            stopped=tuple((*place, ms) for place, ms in sorted(self.stopped.items())),
            cause=found.cause,
            confidence=found.confidence,
            evidence=found.evidence,
            alternatives=found.alternatives,
            pattern=found.pattern,
            is_stop=found.is_stop,
            phase=phase,
        )


def note_partition_changes(case: Case, known: dict[str, int]) -> None:
    """Note in a case which topics gained partitions and which lost all."""
    now = counts(case.after.members)
    before = case.before
    if before is None or not before.members or not case.after.members:
        return
    was = subscribed(before)
    case.grown = {
        topic: (known.get(topic, 0), number)
        for topic, number in now.items()
        if number > known.get(topic, 0) and (topic in was or case.metadata_changed)
    }
    still = subscribed(case.after)
    assigned = {topic for member in before.members for topic, _ in member.assignment}
    case.gone_topics = tuple(sorted(topic for topic in assigned & still if topic not in now))


def subscribed(generation: Generation) -> set[str]:
    """The topics of all members; for those that subscribe by regular expression, their assigned topics."""
    by_name = {topic for member in generation.members for topic in member.topics}
    by_regex = {topic for member in generation.members if member.topic_regex for topic, _ in member.assignment}
    return by_name | by_regex
