"""A group's rebalances according to the broker's own events: when each began and ended, and why.

muster's broker writes its events to `__group_events` (Apache Kafka has no such topic). They need no inference: they are
the truth where they exist, and the labels against which inference is measured.

A rebalance runs from the first `RebalanceStarted` to the next `RebalanceCompleted`. The event that starts it is its
cause; whatever else happens to the group until it completes are its further causes, in order: members that join or
leave during it have no `RebalanceStarted` of their own. Two kinds of label are not rebalances (`rebalanced` is False):
a static member that was replaced in a stable group, and a coordinator that has loaded the group.

Patterns over several rebalances (a rolling restart, a flapping member) are not found here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

from muster.history.model import LAST_MS, Cause

EventFields = Mapping[str, Any]
"""An event as the broker wrote it: the fields of its JSON object."""

MOVED_WITHIN_MS = 60_000
"""How long after a coordinator has loaded a group the rejoining of members is attributed to that."""

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
"""By the cause in a RebalanceStarted. Limits of the operator or of the store have no cause of their own."""

REVOKED = "member gave partitions up and rejoined"
_POLL = "poll timeout has expired"
"""In the leave reason of Java's and muster's clients (KIP-800)."""

_METADATA = "cached metadata has changed"
"""In both clients' reason when a leader rejoins because its topics' partitions differ from those it assigned."""


@dataclass(frozen=True, slots=True)
class Label:
    """One rebalance, as the broker saw it."""

    group: str
    generation: int | None
    """The resulting generation; None: the rebalance did not complete."""
    started_ms: int
    finished_ms: int | None
    cause: Cause
    member: str
    """The member that triggered it, "" if none did."""
    client_id: str
    reason: str | None
    """The reason given by the member's client or by the coordinator."""
    others: tuple[Cause, ...]
    """What else happened until it completed, without duplicates."""
    members: int | None
    """Number of members of the generation."""
    phase: int
    """2: the second phase of a cooperative rebalance, with the cause of the first."""
    rebalanced: bool
    events: tuple[EventFields, ...]
    is_sure: bool = True
    """False: a member may have been too slow. It left without a reason, as some clients always do; or its session
    expired and it is static: such a member stops its heartbeats instead of leaving (KIP-345)."""


def labels(events: Iterable[EventFields]) -> list[Label]:
    """The rebalances of one group, from its events in order of time. Values that are not muster's events, or are of a
    later version, are skipped. A rebalance that has not completed comes last."""
    telling = Telling()
    return [*telling.labels(events), *telling.rest()]


def by_group(events: Iterable[EventFields]) -> dict[str, list[Label]]:
    """`labels` of each group, from the events of all groups, partition after partition."""
    return {group: labels(own) for group, own in events_by_group(events).items()}


def events_by_group(events: Iterable[EventFields]) -> dict[str, list[EventFields]]:
    """Each group's events in order of time, from the events of several partitions, one after another."""
    groups: dict[str, list[EventFields]] = {}
    for event in events:
        if is_known_event(event) and isinstance(event.get("group_id"), str):
            groups.setdefault(event["group_id"], []).append(event)
    return {group: sorted(own, key=lambda event: event["at_ms"]) for group, own in groups.items()}


def is_known_event(event: Any) -> bool:
    """Whether a value is an event of a known version with a valid time."""
    if not isinstance(event, Mapping) or event.get("v") != 1:
        return False
    at_ms = event.get("at_ms")
    return isinstance(at_ms, int) and 0 <= at_ms <= LAST_MS


class Telling:
    """The events since the last completed rebalance, and the state carried over from before: plain data."""

    def __init__(self) -> None:
        self._events: list[EventFields] = []
        self._started = False
        self._generation: int | None = None
        self._broker: int | None = None
        self._loaded_ms: int | None = None
        self._last: Label | None = None

    @property
    def has_started(self) -> bool:
        """Whether a rebalance has started and not completed."""
        return self._started

    @property
    def waiting(self) -> Sequence[EventFields]:
        """The events that no label has yet."""
        return self._events

    def labels(self, events: Iterable[EventFields]) -> list[Label]:
        """Take more events, in order of time; returns the labels that they complete."""
        found: list[Label] = []
        for event in events:
            if is_known_event(event):
                found += self.take(event)
        return found

    def copy(self) -> Telling:
        """An independent copy."""
        found = copy(self)
        found._events = [*self._events]
        return found

    def take(self, event: EventFields) -> Iterator[Label]:
        """Take the next event; yields the labels that it completes."""
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
        """The labels of what has not completed."""
        if self._started:
            yield self._label(None)
        else:
            yield from self._taken_over()

    def _loaded(self, event: EventFields) -> Iterator[Label]:
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

    def _moved(self, event: EventFields) -> str:
        broker = event.get("broker_id")
        if self._broker is None or self._broker == broker:
            return f"broker {broker} loaded the group"
        return f"broker {broker} took the group over from broker {self._broker}"

    def _taken_over(self) -> Iterator[Label]:
        """Static members that were replaced without a rebalance following immediately."""
        for event in [event for event in self._events if event.get("event") == "MemberFenced"]:
            self._events.remove(event)
            yield _plain(event, Cause.STATIC_MEMBER_REPLACED, self._generation, None)

    def _completed(self, event: EventFields) -> Iterator[Label]:
        if self._started:
            label = self._label(event)
            self._last = label
            yield label
        self._events, self._started = [], False
        self._generation = event.get("generation_id")

    def _label(self, completed: EventFields | None) -> Label:
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

    def _causes(self, events: tuple[EventFields, ...], first: EventFields) -> list[Cause]:
        """The cause of the start, and those of everything that happened until the end."""
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


def _plain(event: EventFields, cause: Cause, generation: int | None, reason: str | None) -> Label:
    at, member, client = event["at_ms"], event.get("member_id", ""), event.get("client_id", "")
    group, members = event.get("group_id", ""), event.get("members")
    return Label(group, generation, at, at, cause, member, client, reason, (), members, 1, False, (event,))


def _cause_of_start(start: EventFields, events: tuple[EventFields, ...]) -> Cause:
    cause = _CAUSES.get(str(start.get("cause")), Cause.NOT_KNOWN)
    if cause is Cause.JOINED and start.get("state") == "Empty":
        return Cause.STARTED
    if cause is Cause.LEFT:
        return _cause_of(_left(start, events), events) or cause
    if cause is Cause.LEADER_REJOINED and _METADATA in str(start.get("reason")):
        return Cause.PARTITIONS_ADDED
    return cause


def _cause_of(event: EventFields, events: tuple[EventFields, ...]) -> Cause | None:
    """The cause that an event by itself indicates; None if it does not trigger a rebalance."""
    match event.get("event"):
        case "RebalanceStarted":
            return _cause_of_start(event, events)
        case "MemberJoined":
            return None if _begins_with(event, events) else Cause.JOINED
        case "MemberLeft":
            return Cause.POLL_INTERVAL_EXCEEDED if _POLL in str(event.get("reason")) else Cause.LEFT
        case "MemberExpired":
            # It sent heartbeats but did not rejoin within the rebalance timeout, its max.poll.interval.ms.
            slow = str(event.get("kind")).startswith("did not rejoin")
            return Cause.POLL_INTERVAL_EXCEEDED if slow else Cause.SESSION_EXPIRED
        case "MemberFenced":
            return Cause.STATIC_MEMBER_REPLACED
        case "GroupLoaded":
            return Cause.COORDINATOR_MOVED
        case _:
            return None


def _begins_with(joined: EventFields, events: tuple[EventFields, ...]) -> bool:
    """Whether a RebalanceStarted already covers this member's joining."""
    return any(
        event.get("event") == "RebalanceStarted" and event.get("member_id") == joined.get("member_id")
        for event in events
    )


def _is_sure(cause: Cause, start: EventFields, events: tuple[EventFields, ...]) -> bool:
    """See `Label.is_sure`."""
    if cause is Cause.LEFT:
        return bool(_left(start, events).get("reason"))
    return cause is not Cause.SESSION_EXPIRED or start.get("group_instance_id") is None


def _left(start: EventFields, events: tuple[EventFields, ...]) -> EventFields:
    """The MemberLeft of the member that triggered a rebalance."""
    for event in events:
        if event.get("event") == "MemberLeft" and event.get("member_id") == start.get("member_id"):
            return event
    return {}


def _reason(start: EventFields, events: tuple[EventFields, ...]) -> str | None:
    return _left(start, events).get("reason") or start.get("reason")
