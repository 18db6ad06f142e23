"""What only shows over several rebalances: a rolling restart, a member that comes and goes.

A member is followed through its ids: one that comes with the identity (instance id, or client id and host) or the id
of a member that went within the window is that member again, one `depth` further on the same `chain`. So three
members that share a client id on one host are told from one that went three times.

- **Flapping**: a chain with three departures or more within the window.
- **Rolling restart**: two chains or more in which a member left and came back, one after another: the second went
  when the first was back. Members that only expired do not count, but for static ones, which never leave, unless it
  was all of the group; those that exceeded their poll interval never do. A process that is killed and started anew at
  once comes before its former self expires. Where names change from start to start (a pod's), members that go and new
  ones that come have to take turns until most were replaced.

The window is `Limits.pattern_ms` to both sides of a rebalance, so the same rows are found whatever was read at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from muster.history.causes import Verdict
from muster.history.departures import Departure
from muster.history.model import Alternative, Cause, Member
from muster.history.rebalances import identity
from muster.history.wording import count, duration, listed, named

FLAPPING_DEPARTURES = 3
MOST_TRACES = 512


@dataclass(frozen=True, slots=True)
class Leg:
    """A member that went or came, as a part of its chain."""

    chain: str
    depth: int
    name: str
    at_ms: int
    cause: Cause | None = None
    """Why it went; None of one that came."""
    is_static: bool = False
    succeeds: str = ""
    """The chain of a member with the same identity that was still there as this one came."""

    @property
    def is_planned(self) -> bool:
        return self.is_static or self.cause in (Cause.LEFT, Cause.STATIC_MEMBER_REPLACED)


@dataclass(frozen=True, slots=True)
class Trace:
    """One rebalance as patterns see it."""

    at_ms: int
    members_before: int
    went: tuple[Leg, ...]
    came: tuple[Leg, ...]


@dataclass(frozen=True, slots=True)
class _Gone:
    member_id: str
    identity: tuple[str, ...]
    leg: Leg


@dataclass(slots=True)
class Lineage:
    """Which member is which, over the ids that it had."""

    living: dict[str, tuple[str, int]] = field(default_factory=dict)
    identities: dict[str, tuple[str, ...]] = field(default_factory=dict)
    succeeded: set[str] = field(default_factory=set)
    """Of the living: those whose process seems to have been started anew, as another of the same identity came."""
    gone: list[_Gone] = field(default_factory=list)

    def went(self, member: Member, cause: Cause, at_ms: int) -> Leg:
        """A member went."""
        chain, depth = self.living.pop(member.member_id, (member.member_id, 0))
        leg = Leg(chain, depth, named(member), at_ms, cause, member.instance_id is not None)
        self.gone.append(_Gone(member.member_id, identity(member), leg))
        return leg

    def came(self, member: Member, at_ms: int, window_ms: int) -> tuple[Leg, Leg | None]:
        """A member came; the leg on which it had gone, if it had."""
        self.gone = [each for each in self.gone if each.leg.at_ms >= at_ms - window_ms][-MOST_TRACES:]
        found = self._find(member)
        chain, depth = member.member_id, 0
        if found is not None:
            self.gone.remove(found)
            chain, depth = found.leg.chain, found.leg.depth + 1
        succeeds = self._succeeded(member) if found is None else ""
        self.living[member.member_id] = (chain, depth)
        static = member.instance_id is not None
        leg = Leg(chain, depth, named(member), at_ms, is_static=static, succeeds=succeeds)
        return leg, None if found is None else found.leg

    def _find(self, member: Member) -> _Gone | None:
        who = identity(member)
        same_id = [each for each in self.gone if each.member_id == member.member_id]
        return next(iter(same_id), None) or next((each for each in reversed(self.gone) if each.identity == who), None)

    def _succeeded(self, member: Member) -> str:
        """The chain of a living member that this one may stand in for."""
        who = identity(member)
        for member_id, (chain, _) in self.living.items():
            if member_id not in self.succeeded and self.identities.get(member_id) == who:
                self.succeeded.add(member_id)
                return chain
        return ""

    def keep(self, members: Iterable[Member]) -> None:
        """Forget of the living all but these."""
        known = self.living
        self.living, self.identities = {}, {}
        for each in members:
            self.living[each.member_id] = known.get(each.member_id, (each.member_id, 0))
            self.identities[each.member_id] = identity(each)
        self.succeeded &= self.living.keys()


def trace(
    lineage: Lineage,
    departures: Sequence[Departure],
    gone: Sequence[Member],
    came: Sequence[Member],
    times: tuple[int, int],
    members_before: int,
) -> tuple[Trace, dict[str, tuple[Cause, int]]]:
    """A rebalance as patterns see it, and why the members that are back had gone, and for how long.

    `times`: of the rebalance, and how long a member may have been gone to be the same.
    """
    at_ms, window_ms = times
    why = {each.member.member_id: each.cause for each in departures}
    went = [lineage.went(member, why.get(member.member_id, Cause.STATIC_MEMBER_REPLACED), at_ms) for member in gone]
    arrived, returned = [], {}
    for member in came:
        leg, before = lineage.came(member, at_ms, window_ms)
        arrived.append(leg)
        if before is not None and before.cause is not None and before.at_ms < at_ms:
            returned[member.member_id] = (before.cause, at_ms - before.at_ms)
    return Trace(at_ms, members_before, tuple(went), tuple(arrived)), returned


def pattern(found: Verdict, own: Trace, others: Sequence[Trace], window_ms: int) -> Verdict:
    """The verdict on a rebalance in the light of those around it, itself among them."""
    if found.cause in (Cause.COORDINATOR_MOVED, Cause.NOT_KNOWN) or not (own.went or own.came):
        return found
    first_ms, last_ms = own.at_ms - window_ms, own.at_ms + window_ms
    near = [each for each in others if first_ms <= each.at_ms <= last_ms and (each.went or each.came)]
    if found.cause is Cause.STARTED:
        return _flapping(found, own, near) or found
    rules = (_flapping, _rolling, _killed_in_turn, _turnover)
    return next((each for rule in rules if (each := rule(found, own, near)) is not None), None) or _back(
        found, own, near
    )


def _legs(own: Trace) -> set[str]:
    """The chains of members that went here, or were back here."""
    return {leg.chain for leg in own.went} | {leg.chain for leg in own.came if leg.depth > 0}


def _flapping(found: Verdict, own: Trace, near: Sequence[Trace]) -> Verdict | None:
    for chain in sorted(_legs(own)):
        legs = [leg for each in near for leg in each.went if leg.chain == chain]
        if len(legs) < FLAPPING_DEPARTURES:
            continue
        span = duration(legs[-1].at_ms - legs[0].at_ms)
        causes = listed(str(leg.cause).replace("_", " ") for leg in legs)
        evidence = f"{legs[0].name} went {count(len(legs), 'time')} within {span} ({causes})."
        return _overruled(found, Cause.FLAPPING, 0.9, evidence)
    return None


def _rolling(found: Verdict, own: Trace, near: Sequence[Trace]) -> Verdict | None:
    """Members that went and came back, in turn: by their own act, or all of the group."""
    legs = _legs(own)
    if not legs:
        return None
    restarts = [pair for pair in _restarts(near) if pair[0].cause is not Cause.POLL_INTERVAL_EXCEEDED]
    rolled, sure = (
        _in_turn([(left, back) for left, back in restarts if left.is_planned or left.at_ms == back.at_ms]),
        0.92,
    )
    if not rolled & legs:
        rolled, sure = _in_turn(restarts), 0.75
        if len(rolled) < max(3, *(each.members_before for each in near)):
            return None
    if not rolled & legs:
        return None
    names = [left.name for left, _ in restarts if left.chain in rolled]
    evidence = f"{count(len(rolled), 'member')} went and came back one after another: {listed(names)}."
    return _overruled(found, Cause.ROLLING_RESTART, sure if len(rolled) > 2 else 0.8, evidence)


def _in_turn(restarts: Sequence[tuple[Leg, Leg]]) -> set[str]:
    """The chains of restarts of which one was done before the next began."""
    rolled: set[str] = set()
    for (left, back), (next_left, _) in pairwise(restarts):
        if left.chain != next_left.chain and left.at_ms < next_left.at_ms and back.at_ms <= next_left.at_ms:
            rolled |= {left.chain, next_left.chain}
    return rolled


def _killed_in_turn(found: Verdict, own: Trace, near: Sequence[Trace]) -> Verdict | None:
    """Processes that were killed and started anew at once: each comes under a new id before the old one has expired."""
    expired = {leg.chain: leg for each in near for leg in each.went if leg.cause is Cause.SESSION_EXPIRED}
    came = {leg.succeeds: leg for each in near if each.members_before for leg in each.came if leg.succeeds in expired}
    came = {chain: leg for chain, leg in came.items() if leg.at_ms < expired[chain].at_ms}
    here = {leg.chain for leg in own.went} | {leg.succeeds for leg in own.came}
    if len(came) < 2 or not here & came.keys():
        return None
    names = listed(expired[chain].name for chain in came)
    evidence = f"{count(len(came), 'member')} came anew before the one with the same name had expired: {names}."
    return _overruled(found, Cause.ROLLING_RESTART, 0.7, evidence)


def _restarts(near: Sequence[Trace]) -> list[tuple[Leg, Leg]]:
    """Members that went and were back, in the order in which they went."""
    back = {(leg.chain, leg.depth): leg for each in near for leg in each.came if leg.depth > 0}
    pairs = [
        (leg, back[leg.chain, leg.depth + 1])
        for each in near
        for leg in each.went
        if (leg.chain, leg.depth + 1) in back
    ]
    return sorted(pairs, key=lambda pair: pair[0].at_ms)


def _turnover(found: Verdict, own: Trace, near: Sequence[Trace]) -> Verdict | None:
    """Members that go and others that come, in turns, until most were replaced."""
    returned = {(leg.chain, leg.depth - 1) for each in near for leg in each.came}
    turns: list[bool] = []
    went = came = here = 0
    members = 0
    for each in near:
        gone = [leg for leg in each.went if leg.cause is Cause.LEFT and (leg.chain, leg.depth) not in returned]
        new = [leg for leg in each.came if leg.depth == 0] if each.members_before else []
        members = max(members, each.members_before)
        went, came = went + len(gone), came + len(new)
        turns += ([False] if gone else []) + ([True] if new else [])
        here += each is own and bool(gone or new)
    changes = sum(first != second for first, second in pairwise(turns))
    if not here or went < 2 or abs(went - came) > 1 or changes < 3 or 3 * went < 2 * members:
        return None
    evidence = (
        f"{count(went, 'member')} left and {count(came, 'new one')} joined in turns: most of the group was replaced."
    )
    return _overruled(found, Cause.ROLLING_RESTART, 0.65, evidence)


def _back(found: Verdict, own: Trace, near: Sequence[Trace]) -> Verdict:
    """A member that was back soon lived on, or was started anew at once."""
    later = {
        (leg.chain, leg.depth): leg for each in near for leg in each.came if leg.depth > 0 and each.at_ms > own.at_ms
    }
    for leg in own.went:
        back = later.get((leg.chain, leg.depth + 1))
        if back is None:
            continue
        evidence = f"{leg.name} was back {duration(back.at_ms - leg.at_ms)} later."
        late = found.cause is Cause.POLL_INTERVAL_EXCEEDED
        return found.but(evidence, sure=1.1 if late and found.confidence < 0.9 else 1.0)
    return found


def _overruled(found: Verdict, cause: Cause, confidence: float, evidence: str) -> Verdict:
    alternative = Alternative(
        found.cause, "whether the rebalances around this one have the same reason: a deployment's log"
    )
    others = tuple(each for each in found.alternatives if each.cause is not cause)
    return Verdict(cause, confidence, (evidence, *found.evidence), (alternative, *others))
