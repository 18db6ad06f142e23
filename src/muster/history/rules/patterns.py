"""Patterns that only several rebalances show: a rolling restart, a member that keeps joining and leaving.

A pattern is reported in addition to the causes of its rebalances. It is based on what the records show, never on
guesses: a member that is gone for no visible reason may have crashed, been scaled in or been restarted.

A member is followed through its ids: one that joins with the identity (instance id, or client id and host) or the id of
a member that left within the window is that member again, at the next `depth` of the same `chain`. So three members
that share a client id on one host are distinguished from one that left three times.

- **Flapping**: a chain with three or more departures within the window. The records show that it left and returned,
  not necessarily why.
- **Rolling restart**: three or more members, or nearly the whole group, left and returned one after another, each once:
  the second left after the first was back. Members that exceeded their poll interval never count. Those that expired
  may only have been paused: such a process returns under a new id, as a restarted one does. So they count only if they
  are static (such members never leave); if more than two thirds of the group were back before their former sessions had
  expired; or if the whole group was affected and no other member left in the meantime. If names change with each start
  (pods), departures and new members must alternate until most of the former members are replaced.

If members leave shortly after one another until the group is empty, the group was stopped. Such departures are not part
of a rolling restart, and part of flapping only if the member comes back.

The window extends `Limits.pattern_ms` to both sides of a rebalance, so the rows do not depend on how the log is split.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TypeAlias

from muster.history.model import Alternative, Cause, Member, Pattern, PatternSeen, fixed
from muster.history.rules.causes import Verdict
from muster.history.rules.departures import CLIENT_LOG, Departure
from muster.history.rules.rebalances import identity
from muster.history.rules.wording import count, duration, listed, named

FLAPPING_DEPARTURES = 3
IN_TURN = 3
"""How many members must leave and return one after another to count as a rolling restart of part of a group."""
MOST_TRACES = 512
STOP_MS = 60_000
"""The longest time between two departures when a group is stopped."""


@fixed
class Leg:
    """A departure or arrival of a member, as part of its chain."""

    chain: str
    depth: int
    name: str
    at_ms: int
    cause: Cause | None = None
    """Why it left; None for an arrival."""
    is_static: bool = False
    is_guess: bool = False
    """The cause is only a guess."""
    is_same: bool = False
    """It returned under the same id: the process survived."""
    succeeds: str = ""
    """The chain of a member with the same identity that was still in the group when this one joined."""
    is_succeeded: bool = False
    """It expired after such a successor had joined: the process had been restarted; no later arrival is its return."""

    @property
    def is_planned(self) -> bool:
        return self.is_static or self.cause in (Cause.LEFT, Cause.STATIC_MEMBER_REPLACED)


@fixed
class Trace:
    """One rebalance as patterns see it."""

    at_ms: int
    members_before: int
    went: tuple[Leg, ...]
    came: tuple[Leg, ...]


@fixed
class _Gone:
    member_id: str
    identity: tuple[str, ...]
    leg: Leg


class _Waiting:
    """Departed members, to be found again among those that join."""

    def __init__(self, gone: Iterable[_Gone], members: Iterable[Member]) -> None:
        self._by_id: dict[str, deque[_Gone]] = {member.member_id: deque() for member in members}
        self._by_identity: dict[tuple[str, ...], deque[_Gone]] = {identity(member): deque() for member in members}
        for each in gone:
            if each.member_id in self._by_id:
                self._by_id[each.member_id].append(each)
            if each.identity in self._by_identity:
                self._by_identity[each.identity].append(each)
        self.taken: set[int] = set()
        """By `id`."""

    def take(self, member: Member) -> _Gone | None:
        """The first that left with its id, otherwise the last that left with its identity; each is taken once."""
        by_id, by_identity = self._by_id[member.member_id], self._by_identity[identity(member)]
        while by_id and id(by_id[0]) in self.taken:
            by_id.popleft()
        while by_identity and id(by_identity[-1]) in self.taken:
            by_identity.pop()
        found = by_id[0] if by_id else by_identity[-1] if by_identity else None
        if found is not None:
            self.taken.add(id(found))
        return found


_Heirs: TypeAlias = "dict[tuple[str, ...], deque[str]]"


@dataclass(slots=True)
class Lineage:
    """Which member is which, across its ids."""

    living: dict[str, tuple[str, int]] = field(default_factory=dict)
    identities: dict[str, tuple[str, ...]] = field(default_factory=dict)
    succeeded: set[str] = field(default_factory=set)
    """Living members whose process seems to have been restarted: another with the same identity joined."""
    gone: list[_Gone] = field(default_factory=list)

    def went(self, member: Member, cause: Cause, at_ms: int, *, is_guess: bool = False) -> Leg:
        """Record a departure."""
        chain, depth = self.living.pop(member.member_id, (member.member_id, 0))
        succeeded = cause is Cause.SESSION_EXPIRED and member.member_id in self.succeeded
        static = member.instance_id is not None
        leg = Leg(chain, depth, named(member), at_ms, cause, static, is_guess, is_succeeded=succeeded)
        self.gone.append(_Gone(member.member_id, identity(member), leg))
        return leg

    def came(self, members: Sequence[Member], at_ms: int, window_ms: int) -> list[tuple[Leg, Leg | None]]:
        """Record arrivals in one rebalance; returns each with its departure within the window, if any."""
        self.gone = [each for each in self.gone if each.leg.at_ms >= at_ms - window_ms][-MOST_TRACES:]
        gone, heirs = _Waiting(self.gone, members), self._heirs()
        arrived = [self._arrived(member, at_ms, gone.take(member), heirs) for member in members]
        self.gone = [each for each in self.gone if id(each) not in gone.taken]
        return arrived

    def _arrived(self, member: Member, at_ms: int, found: _Gone | None, heirs: _Heirs) -> tuple[Leg, Leg | None]:
        chain, depth, succeeds = member.member_id, 0, ""
        if found is not None:
            chain, depth = found.leg.chain, found.leg.depth + 1
        elif heirs.get(identity(member)):
            former = heirs[identity(member)].popleft()
            self.succeeded.add(former)
            succeeds = self.living[former][0]
        self.living[member.member_id] = (chain, depth)
        static = member.instance_id is not None
        same = found is not None and found.member_id == member.member_id
        leg = Leg(chain, depth, named(member), at_ms, is_static=static, is_same=same, succeeds=succeeds)
        return leg, None if found is None else found.leg

    def _heirs(self) -> _Heirs:
        """The living members that a new one may replace, by identity."""
        found: _Heirs = {}
        for member_id in self.living:
            if member_id in self.identities and member_id not in self.succeeded:
                found.setdefault(self.identities[member_id], deque()).append(member_id)
        return found

    def keep(self, members: Iterable[Member]) -> None:
        """Forget all living members except these."""
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
    """A rebalance as patterns see it; and why the members that are back had left, and for how long.

    `times`: the time of the rebalance, and how long a member may have been gone to count as the same.
    """
    at_ms, window_ms = times
    why = {each.member.member_id: each.cause for each in departures}
    guesses = {each.member.member_id for each in departures if each.is_guess}
    went = [
        lineage.went(member, why.get(member.member_id, Cause.STATIC_MEMBER_REPLACED), at_ms, is_guess=guessed)
        for member in gone
        for guessed in [member.member_id in guesses]
    ]
    arrived, returned = [], {}
    for member, (leg, before) in zip(came, lineage.came(came, at_ms, window_ms) if came else (), strict=True):
        arrived.append(leg)
        if before is not None and before.cause is not None and before.at_ms < at_ms and not before.is_succeeded:
            returned[member.member_id] = (before.cause, at_ms - before.at_ms)
    return Trace(at_ms, members_before, tuple(went), tuple(arrived)), returned


@dataclass(frozen=True, slots=True)
class _Around:
    """One rebalance, those within a window around it, and what these show about members."""

    own: Trace
    near: Sequence[Trace]
    stops: frozenset[tuple[str, int]]
    """The departures when the group was stopped: chain and depth."""
    back: dict[tuple[str, int], Leg]
    """The returns, by chain and depth of the departure."""

    def went(self, trace: Trace) -> list[Leg]:
        """The departures in a rebalance, except those of a stop."""
        return [leg for leg in trace.went if (leg.chain, leg.depth) not in self.stops]

    @property
    def legs(self) -> set[str]:
        """The chains of members that left or returned in this rebalance."""
        return {leg.chain for leg in self.went(self.own)} | {leg.chain for leg in self.own.came if leg.depth > 0}


def pattern(found: Verdict, own: Trace, others: Sequence[Trace], window_ms: int) -> Verdict:
    """The verdict on a rebalance, with the pattern that it and the rebalances around it form."""
    if not (own.went or own.came):
        return found
    first_ms, last_ms = own.at_ms - window_ms, own.at_ms + window_ms
    near = [each for each in others if first_ms <= each.at_ms <= last_ms and (each.went or each.came)]
    back = {(leg.chain, leg.depth - 1): leg for each in near for leg in each.came if leg.depth > 0}
    around = _Around(own, near, _stops(near), back)
    stops = bool(own.went) and not around.went(own)
    seen = next((each for rule in _rules(found) if (each := rule(around)) is not None), None)
    return replace(_back(found, around), pattern=seen, is_stop=stops)


def _rules(found: Verdict) -> tuple[Callable[[_Around], PatternSeen | None], ...]:
    """The patterns that a rebalance with this cause may be part of."""
    if found.cause in (Cause.COORDINATOR_MOVED, Cause.NOT_KNOWN):
        return ()
    return (_flapping,) if found.cause is Cause.STARTED else (_flapping, _rolling, _killed_in_turn, _turnover)


def _stops(near: Sequence[Trace]) -> frozenset[tuple[str, int]]:
    """The departures one shortly after another until the group was empty."""
    found: set[tuple[str, int]] = set()
    until_ms = -1
    for each in reversed(near):
        if each.members_before and len(each.went) == each.members_before and not each.came:
            until_ms = each.at_ms
        if each.came or each.at_ms < until_ms - STOP_MS:
            until_ms = -1
        if until_ms >= 0:
            found |= {(leg.chain, leg.depth) for leg in each.went}
            until_ms = each.at_ms
    return frozenset(found)


def _seen(kind: Pattern, confidence: float, evidence: str, went: Sequence[Leg]) -> PatternSeen:
    members = tuple(dict.fromkeys(leg.name for leg in went))
    return PatternSeen(kind, confidence, (evidence,), members, tuple(_why(leg) for leg in went))


def _why(leg: Leg) -> Cause:
    return Cause.NOT_KNOWN if leg.is_guess or leg.cause is None else leg.cause


def _flapping(around: _Around) -> PatternSeen | None:
    own, near = around.own, around.near
    roots = _successors(near)
    here = {roots.get(chain, chain) for chain in around.legs | {leg.chain for leg in own.went}}
    here |= {roots[leg.chain] for leg in own.came if leg.chain in roots}
    departures: dict[str, list[Leg]] = {}
    for leg in (leg for each in near for leg in each.went):
        at_rest = (leg.chain, leg.depth) in around.stops and (leg.chain, leg.depth) not in around.back
        if (root := roots.get(leg.chain, leg.chain)) in here and not at_rest:
            departures.setdefault(root, []).append(leg)
    for _, legs in sorted(departures.items()):
        if len(legs) < FLAPPING_DEPARTURES or not _is_of(own, legs, roots):
            continue
        span = duration(legs[-1].at_ms - legs[0].at_ms)
        causes = listed(str(_why(leg)).replace("_", " ") for leg in legs)
        evidence = f"{legs[0].name} left {count(len(legs), 'time')} within {span}; causes: {causes}."
        return _seen(Pattern.FLAPPING, 0.9, evidence, legs)
    return None


def _is_of(own: Trace, legs: Sequence[Leg], roots: dict[str, str]) -> bool:
    """Whether one of these departures, or the return from it, is in this rebalance, as opposed to a later stop."""
    went = {(leg.chain, leg.depth) for leg in legs}
    chains = {leg.chain for leg in legs}
    came = any(leg.chain in chains or leg.chain in roots for leg in own.came)
    return came or any((leg.chain, leg.depth) in went for leg in own.went)


def _successors(near: Sequence[Trace]) -> dict[str, str]:
    """The chains of processes that were restarted before their former member expired, and the chains of those
    members."""
    expired = {leg.chain: leg.at_ms for each in near for leg in each.went if leg.cause is Cause.SESSION_EXPIRED}
    roots: dict[str, str] = {}
    for leg in (leg for each in near for leg in each.came if leg.succeeds):
        if leg.at_ms <= expired.get(leg.succeeds, 0):
            roots[leg.chain] = roots.get(leg.succeeds, leg.succeeds)
    return roots


def _rolling(around: _Around) -> PatternSeen | None:
    """Members that left and returned one after another, each once: on their own, or the whole group."""
    restarts = _restarts(around)
    planned = [pair for pair in restarts if _is_own_act(*pair)]
    members = max(each.members_before for each in around.near)
    for went in _passes(around, planned):
        if len(went) >= IN_TURN or 3 * len(went) > 2 * members:
            return _rolled(went, 0.7 if len(went) < IN_TURN else 0.92 if len(went) >= members else 0.8)
    for went in _passes(around, [pair for pair in restarts if not _is_own_act(*pair)]):
        if max(IN_TURN, members) <= len(went) == _all_that_went(around):
            return _rolled(went, 0.7)
    return None


def _is_own_act(left: Leg, back: Leg) -> bool:
    return left.is_planned or left.at_ms == back.at_ms


def _rolled(went: Sequence[Leg], sure: float) -> PatternSeen:
    evidence = f"{count(len(went), 'member')} left and came back one after another: {listed(leg.name for leg in went)}."
    return _seen(Pattern.ROLLING_RESTART, sure, evidence, went)


def _passes(around: _Around, restarts: Sequence[tuple[Leg, Leg]]) -> Iterator[list[Leg]]:
    """The members that left one after another, each once, including one that left or returned in this rebalance."""
    for at, (left, back) in enumerate(restarts):
        if around.own.at_ms in (left.at_ms, back.at_ms):
            for turns in _each_once(restarts, at):
                rolled = _in_turn(turns)
                if left.chain in rolled:
                    yield [leg for leg, _ in turns if leg.chain in rolled]


def _all_that_went(around: _Around) -> int:
    """Number of departures for any reason, except those of a stop."""
    return sum(leg.cause is not Cause.STATIC_MEMBER_REPLACED for each in around.near for leg in around.went(each))


def _each_once(restarts: Sequence[tuple[Leg, Leg]], at: int) -> list[Sequence[tuple[Leg, Leg]]]:
    """The longest stretches around one restart in which no member leaves twice: as far backwards as possible and then
    forwards, and the other way round."""
    found: list[Sequence[tuple[Leg, Leg]]] = []
    for steps in ((-1, 1), (1, -1)):
        chains = {restarts[at][0].chain}
        ends = {-1: at, 1: at}
        for step in steps:
            while 0 <= (following := ends[step] + step) < len(restarts):
                if restarts[following][0].chain in chains:
                    break
                chains.add(restarts[following][0].chain)
                ends[step] = following
        found.append(restarts[ends[-1] : ends[1] + 1])
    return sorted(found, key=len, reverse=True)


def _in_turn(restarts: Sequence[tuple[Leg, Leg]]) -> set[str]:
    """The chains of restarts in waves (of one or more members), each of which ended before the next began."""
    waves: list[set[str]] = []
    began_ms = until_ms = -1
    for left, back in restarts:
        if left.at_ms > began_ms and left.at_ms >= until_ms:
            waves.append(set())
        waves[-1].add(left.chain)
        began_ms, until_ms = left.at_ms, max(until_ms, back.at_ms)
    rolled: set[str] = set()
    for wave, following in pairwise(waves):
        if not wave & following:
            rolled |= wave | following
    return rolled


def _killed_in_turn(around: _Around) -> PatternSeen | None:
    """Most of the group's processes were killed and restarted immediately: each joins under a new id before the old one
    has expired. If only some do, it need not be a deploy: a supervisor restarts a crashed process the same way."""
    near, own = around.near, around.own
    went = [leg for each in near for leg in around.went(each) if not leg.is_guess]
    expired = {leg.chain: leg for leg in went if leg.cause is Cause.SESSION_EXPIRED}
    came = {leg.succeeds: leg for each in near if each.members_before for leg in each.came if leg.succeeds in expired}
    killed = {chain: expired[chain] for chain, leg in came.items() if leg.at_ms < expired[chain].at_ms}
    here = {leg.chain for leg in own.went} | {leg.succeeds for leg in own.came}
    members = next((each.members_before for each in near if any(leg.succeeds in killed for leg in each.came)), 0)
    if len(killed) < 2 or 3 * len(killed) <= 2 * members or not here & killed.keys():
        return None
    names = listed(leg.name for leg in killed.values())
    evidence = (
        f"{count(len(killed), 'member')} rejoined before the former member of the same name had expired: {names}."
    )
    return _seen(Pattern.ROLLING_RESTART, 0.7, evidence, list(killed.values()))


def _restarts(around: _Around) -> list[tuple[Leg, Leg]]:
    """Members that left and returned under new ids, in the order in which they left. Only those with a known cause;
    replaced static members do not count, because nothing rebalanced."""
    pairs = [
        (leg, back)
        for each in around.near
        for leg in around.went(each)
        if not leg.is_guess and leg.cause not in (Cause.STATIC_MEMBER_REPLACED, Cause.POLL_INTERVAL_EXCEEDED)
        if (back := around.back.get((leg.chain, leg.depth))) is not None
        if not back.is_same
    ]
    return sorted(pairs, key=lambda pair: pair[0].at_ms)


@dataclass(frozen=True, slots=True)
class _Turn:
    """Members that left, or that joined, in one rebalance."""

    is_arrival: bool
    members: int
    is_own: bool


def _turnover(around: _Around) -> PatternSeen | None:
    """Members leave and others join alternately until most of the former members are replaced."""
    turns, gone = _turns(around)
    went = sum(turn.members for turn in turns if not turn.is_arrival)
    came = sum(turn.members for turn in turns if turn.is_arrival)
    changes = sum(this.is_arrival != that.is_arrival for this, that in pairwise(turns))
    in_turns = any(turn.is_own for turn in turns) and changes >= 3 and went >= 2 and abs(went - came) <= 1
    if not in_turns or 3 * went < 2 * max(each.members_before for each in around.near):
        return None
    evidence = (
        f"{count(went, 'member')} left and {count(came, 'new one')} joined alternately: most of the group was replaced."
    )
    return _seen(Pattern.ROLLING_RESTART, 0.65, evidence, gone)


def _turns(around: _Around) -> tuple[list[_Turn], list[Leg]]:
    """Departures and arrivals in order, starting with the first departure, and the departures among them. Members that
    returned under their own name, and short-lived ones, are left out."""
    near = around.near
    shared = _shared_names(near)
    goes_ms = (leg.at_ms for each in near for leg in around.went(each) if leg.cause is Cause.LEFT and not leg.is_guess)
    first_ms = min(goes_ms, default=0)
    arrived = {leg.chain for each in near for leg in each.came if leg.depth == 0 and leg.at_ms >= first_ms}
    departed = {leg.chain for each in near for leg in around.went(each)}
    turns: list[_Turn] = []
    gone: list[Leg] = []
    for each in near:
        left = [
            leg
            for leg in around.went(each)
            if leg.cause is Cause.LEFT and not leg.is_guess and leg.chain not in arrived
            if leg.name in shared or (leg.chain, leg.depth) not in around.back
        ]
        came = [leg for leg in each.came if leg.name in shared or (leg.depth == 0 and leg.chain not in departed)]
        gone += left
        turns += [_Turn(False, len(left), each is around.own)] if left else []
        turns += [_Turn(True, len(came), each is around.own)] if came and each.members_before else []
    first = next((at for at, turn in enumerate(turns) if not turn.is_arrival), 0)
    return turns[max(0, first - 1) :], gone


def _shared_names(near: Sequence[Trace]) -> set[str]:
    """Names that several members share: across a restart they cannot be distinguished."""
    chains: dict[str, set[str]] = {}
    for leg in (leg for each in near for leg in (*each.went, *each.came)):
        chains.setdefault(leg.name, set()).add(leg.chain)
    return {name for name, found in chains.items() if len(found) > 1}


def _back(found: Verdict, around: _Around) -> Verdict:
    """A member that returned soon survived, or was restarted immediately."""
    for leg in around.own.went:
        back = around.back.get((leg.chain, leg.depth))
        if back is None or back.at_ms <= around.own.at_ms or leg.is_succeeded:
            continue
        evidence = f"{leg.name} was back {duration(back.at_ms - leg.at_ms)} later."
        others = [each for each in found.alternatives if each.cause is Cause.POLL_INTERVAL_EXCEEDED]
        if back.is_same and found.cause is Cause.LEFT and others:
            return _survived(found, f"{evidence[:-1]} under the same id: its process survived.")
        return found.but(evidence)
    return found


def _survived(found: Verdict, evidence: str) -> Verdict:
    """KIP-848: a member that had to leave because its handler took too long returns under the same id. So does one that
    unsubscribes and subscribes again."""
    other = Alternative(Cause.LEFT, CLIENT_LOG)
    return replace(
        found,
        cause=Cause.POLL_INTERVAL_EXCEEDED,
        confidence=0.75,
        evidence=(*found.evidence, evidence),
        alternatives=(other, *(each for each in found.alternatives if each.cause is not Cause.POLL_INTERVAL_EXCEEDED)),
    )
