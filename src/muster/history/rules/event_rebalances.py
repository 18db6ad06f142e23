"""What the broker's own events say about a group's rebalances: when each began and ended, and why.

muster's broker writes its events to `__group_events` (Apache Kafka has no such topic). They need no inference: where
they are, they are the truth, and the labels by which inference is measured.

A rebalance runs from the first `RebalanceStarted` to the next `RebalanceCompleted`. What begins it is its cause; what
else happened to the group until it was done are its further causes, in their order: members that came or went meanwhile
need no start of their own. Two things are told that are no rebalance: a static member that took its place again in a
stable group, and a coordinator that has read the group (`rebalanced` is False).

What one event cannot tell is not here: a rolling restart and a flapping member are patterns of several rebalances.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass
from typing import Any

from muster.history.model import LAST_MS, Cause

Event = Mapping[str, Any]

MOVED_WITHIN_MS = 60_000
"""How long after a coordinator has read a group its members' joining again is put down to that."""

_TAKEN_OVER = "static member came back while the group was changing, or with other metadata"
_CAUSES = {
    "member joined": Cause.JOINED,
    "member left": Cause.LEFT,
    "member's session expired": Cause.SESSION_EXPIRED,
    "member did not sync in time": Cause.SESSION_EXPIRED,
    "member rejoined with other topics": Cause.SUBSCRIPTION_CHANGED,
    "leader rejoined": Cause.LEADER_REJOINED,
    "member rejoined with other metadata": Cause.LEADER_REJOINED,
    "member gave partitions up and rejoined": Cause.LEADER_REJOINED,
    "leader rejoined after its topics' partitions changed": Cause.PARTITIONS_ADDED,
    "partitions were added, or have a leader again": Cause.PARTITIONS_ADDED,
    _TAKEN_OVER: Cause.STATIC_MEMBER_REPLACED,
}
"""By the cause in a RebalanceStarted. Those of an operator's or a store's limits have no name of their own."""

REVOKED = "member gave partitions up and rejoined"
_POLL = "poll timeout has expired"
"""What Java's and muster's clients give as their reason to leave (KIP-800)."""

_METADATA = "cached metadata has changed"
"""What both give as a leader's reason to join again: its topics have other partitions than it assigned."""

_REJOINS = (Cause.LEADER_REJOINED, Cause.JOINED)


@dataclass(frozen=True, slots=True)
class Label:
    """One rebalance, as the broker saw it."""

    group: str
    generation: int | None
    """The one that it ended in; None: it did not end."""
    started_ms: int
    finished_ms: int | None
    cause: Cause
    member: str
    """The member that began it, "" if none did."""
    client_id: str
    reason: str | None
    """What the member's client gave as its reason, or the coordinator."""
    others: tuple[Cause, ...]
    """What else happened until it was done, without repetition."""
    members: int | None
    """How many the generation has."""
    phase: int
    """2: the second phase of a cooperative rebalance, with the cause of the first."""
    rebalanced: bool
    events: tuple[Event, ...]
    is_sure: bool = True
    """False: a member may have been too slow. It left and gave no reason, as clients do that never give one; or its
    session expired and it has an instance id: such a member stops its heartbeats then, and does not leave (KIP-345)."""


def labels(events: Iterable[Event]) -> list[Label]:
    """The rebalances of one group, from its events in the order of their time. Values that are none of muster's, or of
    a later version, are passed over. One that is not done is the last."""
    telling = Telling()
    return [*telling.labels(events), *telling.rest()]


def by_group(events: Iterable[Event]) -> dict[str, list[Label]]:
    """`labels` of each group, from the events of all: those of several partitions one after the other."""
    return {group: labels(own) for group, own in events_by_group(events).items()}


def events_by_group(events: Iterable[Event]) -> dict[str, list[Event]]:
    """Each group's events in the order of their time, from those of several partitions one after the other."""
    groups: dict[str, list[Event]] = {}
    for event in events:
        if is_told(event) and isinstance(event.get("group_id"), str):
            groups.setdefault(event["group_id"], []).append(event)
    return {group: sorted(own, key=lambda event: event["at_ms"]) for group, own in groups.items()}


def is_told(event: Any) -> bool:
    """Whether a value is an event of a version that is known, at a time that a calendar has."""
    if not isinstance(event, Mapping) or event.get("v") != 1:
        return False
    at_ms = event.get("at_ms")
    return isinstance(at_ms, int) and 0 <= at_ms <= LAST_MS


class Telling:
    """The events since the last rebalance that was done, and what has to be known from before: plain data."""

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._started = False
        self._generation: int | None = None
        self._broker: int | None = None
        self._loaded_ms: int | None = None
        self._last: Label | None = None

    @property
    def has_started(self) -> bool:
        """Whether a rebalance has begun that is not done."""
        return self._started

    def labels(self, events: Iterable[Event]) -> list[Label]:
        """Go on with these events, in the order of their time; what is known to be done by them."""
        found: list[Label] = []
        for event in events:
            if is_told(event):
                found += self.take(event)
        return found

    def copy(self) -> Telling:
        """One that goes on by itself."""
        found = copy(self)
        found._events = [*self._events]
        return found

    def take(self, event: Event) -> Iterator[Label]:
        """Take the next event; what is known to be done by it."""
        kind = event.get("event")
        if kind == "GroupLoaded":
            yield from self._loaded(event)
            return
        if not self._started and event.get("cause") != _TAKEN_OVER:
            yield from self._taken_over()
        self._events.append(event)
        if kind == "RebalanceStarted":
            self._started = True
        elif kind == "RebalanceCompleted":
            yield from self._completed(event)

    def rest(self) -> Iterator[Label]:
        """What is not done."""
        if self._started:
            yield self._label(None)
        else:
            yield from self._taken_over()

    def _loaded(self, event: Event) -> Iterator[Label]:
        if not self._started:
            yield from self._taken_over()
        self._loaded_ms = event["at_ms"]
        self._generation = event.get("generation_id")
        self._last = None
        if self._started:
            self._events.append(event)
            return
        yield _plain(event, Cause.COORDINATOR_MOVED, self._generation, self._moved(event))
        self._broker = event.get("broker_id")

    def _moved(self, event: Event) -> str:
        broker = event.get("broker_id")
        if self._broker is None or self._broker == broker:
            return f"broker {broker} has read the group"
        return f"broker {broker} has the group, after broker {self._broker}"

    def _taken_over(self) -> Iterator[Label]:
        """Static members that took their places again, and no rebalance followed at once."""
        for event in [event for event in self._events if event.get("event") == "MemberFenced"]:
            self._events.remove(event)
            yield _plain(event, Cause.STATIC_MEMBER_REPLACED, self._generation, None)

    def _completed(self, event: Event) -> Iterator[Label]:
        if self._started:
            label = self._label(event)
            self._last = label
            yield label
        self._events, self._started = [], False
        self._generation = event.get("generation_id")

    def _label(self, completed: Event | None) -> Label:
        events = tuple(self._events)
        first = next(event for event in events if event.get("event") == "RebalanceStarted")
        causes = self._causes(events, first)
        phase = 1
        if first.get("cause") == REVOKED and self._last is not None:
            causes, phase = [self._last.cause, *causes[1:]], 2
        return Label(
            first.get("group_id", ""),
            completed.get("generation_id") if completed is not None else None,
            first["at_ms"],
            completed["at_ms"] if completed is not None else None,
            causes[0],
            first.get("member_id", ""),
            first.get("client_id", ""),
            _reason(first, events),
            tuple(dict.fromkeys(cause for cause in causes[1:] if cause is not causes[0])),
            completed.get("members") if completed is not None else None,
            phase,
            True,
            events,
            _is_sure(causes[0], first, events),
        )

    def _causes(self, events: tuple[Event, ...], first: Event) -> list[Cause]:
        """The cause of the start, and those of all that happened until the end."""
        cause = _cause_of_start(first, events)
        moved_ms, self._loaded_ms = self._loaded_ms, None
        found = [cause]
        if moved_ms is not None and 0 <= first["at_ms"] - moved_ms <= MOVED_WITHIN_MS:
            known = cause is Cause.LEADER_REJOINED
            found = [Cause.COORDINATOR_MOVED, cause] if known else [cause, Cause.COORDINATOR_MOVED]
        for event in events:
            other = _cause_of(event, events)
            if other is not None and event is not first:
                found.append(other)
        return found


def _plain(event: Event, cause: Cause, generation: int | None, reason: str | None) -> Label:
    at, member, client = event["at_ms"], event.get("member_id", ""), event.get("client_id", "")
    group, members = event.get("group_id", ""), event.get("members")
    return Label(group, generation, at, at, cause, member, client, reason, (), members, 1, False, (event,))


def _cause_of_start(start: Event, events: tuple[Event, ...]) -> Cause:
    cause = _CAUSES.get(str(start.get("cause")), Cause.NOT_KNOWN)
    if cause is Cause.JOINED and start.get("state") == "Empty":
        return Cause.STARTED
    if cause is Cause.LEFT:
        return _cause_of(_left(start, events), events) or cause
    if cause is Cause.LEADER_REJOINED and _METADATA in str(start.get("reason")):
        return Cause.PARTITIONS_ADDED
    return cause


def _cause_of(event: Event, events: tuple[Event, ...]) -> Cause | None:
    """What an event stands for by itself, None if for nothing that brings a rebalance."""
    match event.get("event"):
        case "RebalanceStarted":
            return _cause_of_start(event, events)
        case "MemberJoined":
            return None if _begins_with(event, events) else Cause.JOINED
        case "MemberLeft":
            return Cause.POLL_INTERVAL_EXCEEDED if _POLL in str(event.get("reason")) else Cause.LEFT
        case "MemberExpired":
            # A member that heartbeats, and does not join within the rebalance timeout, its max.poll.interval.ms.
            slow = str(event.get("kind")).startswith("did not rejoin")
            return Cause.POLL_INTERVAL_EXCEEDED if slow else Cause.SESSION_EXPIRED
        case "MemberFenced":
            return Cause.STATIC_MEMBER_REPLACED
        case "GroupLoaded":
            return Cause.COORDINATOR_MOVED
        case _:
            return None


def _begins_with(joined: Event, events: tuple[Event, ...]) -> bool:
    """Whether a member's coming is what a start of a rebalance tells already."""
    return any(
        event.get("event") == "RebalanceStarted" and event.get("member_id") == joined.get("member_id")
        for event in events
    )


def _is_sure(cause: Cause, start: Event, events: tuple[Event, ...]) -> bool:
    """See `Label.is_sure`."""
    if cause is Cause.LEFT:
        return bool(_left(start, events).get("reason"))
    return cause is not Cause.SESSION_EXPIRED or start.get("group_instance_id") is None


def _left(start: Event, events: tuple[Event, ...]) -> Event:
    """The MemberLeft of the member that has begun a rebalance."""
    for event in events:
        if event.get("event") == "MemberLeft" and event.get("member_id") == start.get("member_id"):
            return event
    return {}


def _reason(start: Event, events: tuple[Event, ...]) -> str | None:
    return _left(start, events).get("reason") or start.get("reason")
