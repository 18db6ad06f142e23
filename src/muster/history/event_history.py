"""The history of groups that have no records in a log, from the events of muster's brokers in `__group_events`.

A cluster that keeps its groups in ZooKeeper has none of them in `__consumer_offsets`. The groups' events are converted
to the records that the coordinator would have written, so that the same rules make the same tables: a generation for
each completed rebalance, with the members that have joined and not left. Causes and durations come from the brokers
(event_explanations.py). What the events lack stays unknown: subscriptions, owned partitions, timeouts, commits.

Retention removes old events. A member that is named before it joins was a member from the beginning. If an event counts
more members than are known by name, unnamed ones are added; if it counts fewer, events are missing, and the members
named least recently are dropped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from muster.history.engine import GroupHistory, read_history
from muster.history.entries.synthetic_records import SyntheticRecords
from muster.history.model import Limits, Rebalance
from muster.history.rules.event_explanations import EVENTS
from muster.history.rules.event_rebalances import EventFields, Label, Telling, events_by_group
from muster.history.rules.wording import count
from muster.history.sources.reader_warnings import ReaderWarnings
from muster.protocol.group_records import GroupMetadataRecord
from muster.protocol.messages import GroupMetadataKey, GroupMetadataValue, MemberMetadata
from muster.protocol.subscription import Subscription, encode_assignment, encode_subscription

_DEPARTURES = frozenset({"MemberLeft", "MemberExpired"})
_SESSION = "no heartbeat within its session timeout"
"""The kind of a MemberExpired whose timeout is the session timeout."""
_UNKNOWN_MS = 0
"""A timeout that events do not contain."""

_Rebalance = tuple[int, int]
"""The resulting generation, and its time."""


def history_of(events: Iterable[Any], known: Iterable[str], warnings: ReaderWarnings) -> GroupHistory:
    """The history of groups other than the known ones, from events."""
    left_out = frozenset(known)
    written = SyntheticRecords()
    groups: dict[str, ToldGroup] = {}
    for group, own in events_by_group(events).items():
        if group not in left_out and group == _text({"name": group}, "name"):
            replayed = groups[group] = ToldGroup(group)
            replayed.take(own, written, is_last=True)
            if replayed.is_incomplete:
                warnings.add(f"events of group {group} are missing, so some of its members are not known by name")
    found = read_history(written, Limits(), None, None)
    if not found.kinds:
        return GroupHistory()
    found.counts = {}
    found.rows.rebalances = [each for row in found.rows.rebalances for each in groups[row.group].rows([row])]
    warnings.add(
        f"the log has no records of {count(len(found.kinds), 'group')} (as when groups are kept in ZooKeeper): their "
        "history comes from the brokers' events, which contain causes and durations, but not subscriptions, owned "
        "partitions, which partitions moved or how long they were stopped"
    )
    return found


@dataclass(slots=True)
class ToldGroup:
    """One group, from its events in order of time: plain data."""

    group: str
    began: set[_Rebalance] = field(default_factory=set)
    """The generations that a rebalance or a takeover led to."""
    is_incomplete: bool = False
    _telling: Telling = field(default_factory=Telling)
    _named: dict[str, MemberMetadata] = field(default_factory=dict)
    _roster: dict[str, None] | None = None
    """The current members by id, those named most recently last."""
    _generation: int | None = None
    _written: int = 0

    def take(self, events: Sequence[EventFields], written: SyntheticRecords, *, is_last: bool = False) -> None:
        """Write the generations in these events, which follow all earlier ones."""
        if self._roster is None:
            events = _without_a_begun_rebalance(events)
            self._roster = dict.fromkeys(_initial_members(events))
        fresh = _named(events)
        self._named |= fresh
        found = self._telling.labels(events)
        # A replaced static member starts a rebalance immediately or not at all.
        for label in [*found, *(self._telling.rest() if is_last or not self.is_rebalancing else ())]:
            self._rebalance(label, written) if label.rebalanced else self._seen(label, written)
        if not self.is_rebalancing:
            kept = {*self._current_members, *fresh, *map(_member_of, self._telling.waiting)}
            self._named = {each: known for each, known in self._named.items() if each in kept}

    @property
    def is_rebalancing(self) -> bool:
        """Whether a rebalance has started and not completed."""
        return self._telling.has_started

    def rows(self, rows: Iterable[Rebalance]) -> list[Rebalance]:
        """The rows of this group that led to a generation: the others are the state when events began."""
        return [replace(row, source=EVENTS) for row in rows if (row.generation, row.at_ms) in self.began]

    def _rebalance(self, label: Label, written: SyntheticRecords) -> None:
        roster = self._current_members
        first = next(event for event in label.events if event.get("event") == "RebalanceStarted")
        if self._generation is None and first.get("state") == "Stable":
            before = dict(roster)
            self._apply(label.events)
            unnamed = max(0, _number(label.members) - len(roster))
            self._roster = before
            self._write(written, first.get("generation_id"), label.started_ms, len(before) + unnamed)
        self._apply(label.events)
        if label.generation is not None and label.finished_ms is not None:
            completed = label.events[-1]
            protocol, leader = _text(completed, "protocol_name") or None, _text(completed, "leader") or None
            self._write(written, label.generation, label.finished_ms, _number(label.members), protocol, leader)
            self.began.add((label.generation, label.finished_ms))

    def _seen(self, label: Label, written: SyntheticRecords) -> None:
        """A static member was replaced, or another coordinator loaded the group: there was no rebalance."""
        is_takeover = label.members is None
        self._apply(label.events)
        if label.generation is None:
            return
        if is_takeover or self._generation != label.generation:
            members = len(self._current_members) if is_takeover else _number(label.members)
            self._write(written, label.generation, label.started_ms, members)
        if is_takeover:
            self.began.add((label.generation, label.started_ms))

    @property
    def _current_members(self) -> dict[str, None]:
        assert self._roster is not None
        return self._roster

    def _apply(self, events: Iterable[EventFields]) -> None:
        roster = self._current_members
        for event in events:
            member = _member_of(event)
            if not member:
                continue
            was_there = member in roster
            roster.pop(member, None)
            kind = event.get("event")
            if kind == "MemberFenced":
                roster[_text(event, "new_member_id")] = None
            elif _is_join(event) or (was_there and kind not in _DEPARTURES):
                roster[member] = None

    def _write(
        self,
        written: SyntheticRecords,
        generation: object,
        at_ms: int,
        count: int,
        protocol: str | None = None,
        leader: str | None = None,
    ) -> None:
        if not isinstance(generation, int) or not 0 <= generation < 1 << 31:
            return
        self._settle(count)
        members = [self._named.get(member) or _member(member) for member in sorted(self._current_members)]
        value = GroupMetadataValue("consumer", generation, protocol, leader, -1, members)
        written.write(GroupMetadataRecord(GroupMetadataKey(self.group), value), at_ms, self._written)
        self._generation, self._written = generation, self._written + 1

    def _settle(self, count: int) -> None:
        """Adjust the members to this number."""
        roster = self._current_members
        self.is_incomplete |= len(roster) != count
        for member in [*roster][: max(0, len(roster) - count)]:
            del roster[member]
        for number in range(count - len(roster)):
            roster[f"unnamed-{number + 1}"] = None


def _without_a_begun_rebalance(events: Sequence[EventFields]) -> Sequence[EventFields]:
    """The events after the first rebalance, if they begin in the middle of it: no event shows earlier joins and leaves,
    so its generation cannot be known, and its members must not be mistaken for those of the next one."""
    for number, event in enumerate(events):
        if event.get("event") == "RebalanceCompleted":
            return events[number + 1 :]
        if event.get("event") == "RebalanceStarted":
            break
    return events


def _initial_members(events: Iterable[EventFields]) -> list[str]:
    """The members that are named before an event says that they joined."""
    came: set[str] = set()
    before: dict[str, None] = {}
    for event in events:
        kind, member = event.get("event"), _member_of(event)
        if kind == "MemberFenced":
            came.add(_text(event, "new_member_id"))
        if _is_join(event):
            came.add(member)
        elif member and member not in came:
            before[member] = None
    return [*before]


def _is_join(event: EventFields) -> bool:
    return event.get("event") == "MemberJoined" or event.get("cause") == "member joined"


def _named(events: Iterable[EventFields]) -> dict[str, MemberMetadata]:
    """The members as events name them: client, host, instance id, and the timeout that a member exceeded."""
    found: dict[str, MemberMetadata] = {}
    for event in events:
        if "client_host" not in event:
            continue
        timeout_ms = event.get("timeout_ms")
        known = timeout_ms if isinstance(timeout_ms, int) and 0 <= timeout_ms < 1 << 31 else _UNKNOWN_MS
        is_session = _text(event, "kind") == _SESSION
        member = _member(
            _member_of(event),
            _text(event, "client_id"),
            _text(event, "client_host"),
            _text(event, "group_instance_id") or None,
            session_ms=known if is_session else _UNKNOWN_MS,
            rebalance_ms=_UNKNOWN_MS if is_session else known,
        )
        found[member.member_id] = member
        if event.get("event") == "MemberFenced":
            new = _text(event, "new_member_id")
            found.setdefault(new, _member(new, member.client_id, member.client_host, member.group_instance_id))
    return found


def _member_of(event: EventFields) -> str:
    return _text(event, "member_id") or _text(event, "leader")


def _number(members: object) -> int:
    return members if isinstance(members, int) else 0


def _text(event: EventFields, name: str) -> str:
    """A text field; JSON can hold half a surrogate pair, which is not valid text."""
    value = event.get(name)
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else ""


def _member(
    member_id: str,
    client_id: str = "unnamed",
    host: str = "an unknown host",
    instance: str | None = None,
    session_ms: int = _UNKNOWN_MS,
    rebalance_ms: int = _UNKNOWN_MS,
) -> MemberMetadata:
    nothing = encode_subscription(Subscription([])), encode_assignment([])
    return MemberMetadata(member_id, instance, client_id, host, rebalance_ms, session_ms, *nothing)
