"""The history of groups of which no log has records: muster's brokers tell it in `__group_events`.

A cluster that keeps its groups in ZooKeeper has none of them in `__consumer_offsets`. What its brokers tell is written
down as the records that the coordinator would have written, so that the same rules make the same tables of it: a
generation where a rebalance ended, whose members are those that came and have not gone. Causes and durations are the
brokers' (told.py). What no event has stays unknown: what members subscribe to and own, their timeouts, commits.

Events begin somewhere: retention takes old ones. A member that is named before it comes was there from the beginning.
Where an event says that there were more members than are known by name, unnamed ones make up the number; where it says
that there were fewer, events are missing, and those go that were not named for longest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from muster.history.engine import History, read_history
from muster.history.labels import Label, events_by_group, labels
from muster.history.model import Limits, Rebalance
from muster.history.remarks import Remarks
from muster.history.told import EVENTS
from muster.history.written_down import WrittenDown
from muster.protocol.group_records import GroupMetadataRecord
from muster.protocol.messages import GroupMetadataKey, GroupMetadataValue, MemberMetadata
from muster.protocol.subscription import Subscription, encode_assignment, encode_subscription

Event = Mapping[str, Any]

_GOES = frozenset({"MemberLeft", "MemberExpired"})
_SESSION = "no heartbeat within its session timeout"
"""The kind of a MemberExpired whose session timeout it tells."""
_NOT_TOLD = 0
"""A timeout that no event has."""

_Rebalance = tuple[int, int]
"""The generation that it led to, and when that was there."""


def history_of(events: Iterable[Any], known: Iterable[str], remarks: Remarks) -> History:
    """What events tell of groups other than those known."""
    left_out = frozenset(known)
    written = WrittenDown()
    began: set[tuple[str, int, int]] = set()
    for group, own in events_by_group(events).items():
        if group not in left_out and group == _text({"name": group}, "name"):
            told = _Group(group, own, written)
            began |= {(group, *which) for which in told.rebalances()}
            if told.is_incomplete:
                remarks.add(f"events of group {group} are missing, so some of its members are not known by name")
    found = read_history(written, Limits(), None, None)
    if not found.kinds:
        return History()
    found.counts = {}
    rows = found.rows
    rows.rebalances = [
        replace(row, source=EVENTS) for row in rows.rebalances if (row.group, row.generation, row.at_ms) in began
    ]
    remarks.add(
        f"{len(found.kinds)} group(s) have no records in the log, as groups that are kept in ZooKeeper: what is said "
        "of them is from the brokers' events, which tell causes and durations; what members subscribe to and own, "
        "which partitions moved and for how long they stood still is not told"
    )
    return found


def _which(row: Rebalance) -> tuple[str, int, int]:
    return row.group, row.generation, row.at_ms


class _Group:
    """One group, from its events in the order of their time."""

    def __init__(self, group: str, events: Sequence[Event], written: WrittenDown) -> None:
        self.is_incomplete = False
        self._group = group
        self._written = written
        self._labels = labels(events)
        self._named = _named(events)
        self._roster = dict.fromkeys(_there_before(events))
        """The members that are there, by id: those that were named last come last."""
        self._generation: int | None = None

    def rebalances(self) -> Iterator[_Rebalance]:
        """Write its generations down; those that a rebalance or a takeover led to."""
        for label in self._labels:
            yield from self._rebalance(label) if label.rebalanced else self._seen(label)

    def _rebalance(self, label: Label) -> Iterator[_Rebalance]:
        first = next(event for event in label.events if event.get("event") == "RebalanceStarted")
        if self._generation is None and first.get("state") == "Stable":
            before = dict(self._roster)
            self._apply(label.events)
            unnamed = max(0, _number(label.members) - len(self._roster))
            self._roster = before
            self._write(first.get("generation_id"), label.started_ms, len(before) + unnamed)
        self._apply(label.events)
        if label.generation is not None and label.finished_ms is not None:
            completed = label.events[-1]
            protocol, leader = _text(completed, "protocol_name"), _text(completed, "leader")
            self._write(label.generation, label.finished_ms, _number(label.members), protocol or None, leader or None)
            yield label.generation, label.finished_ms

    def _seen(self, label: Label) -> Iterator[_Rebalance]:
        """A static member took its place again, or another coordinator has read the group: there was no rebalance."""
        is_takeover = label.members is None
        self._apply(label.events)
        if label.generation is None:
            return
        if is_takeover or self._generation != label.generation:
            members = len(self._roster) if is_takeover else _number(label.members)
            self._write(label.generation, label.started_ms, members)
        if is_takeover:
            yield label.generation, label.started_ms

    def _apply(self, events: Iterable[Event]) -> None:
        for event in events:
            member = _member_of(event)
            if not member:
                continue
            was_there = member in self._roster
            self._roster.pop(member, None)
            kind = event.get("event")
            if kind == "MemberFenced":
                self._roster[_text(event, "new_member_id")] = None
            elif _comes(event) or (was_there and kind not in _GOES):
                self._roster[member] = None

    def _write(
        self, generation: object, at_ms: int, count: int, protocol: str | None = None, leader: str | None = None
    ) -> None:
        if not isinstance(generation, int) or not 0 <= generation < 1 << 31:
            return
        self._settle(count)
        members = [self._named.get(member) or _member(member) for member in sorted(self._roster)]
        value = GroupMetadataValue("consumer", generation, protocol, leader, -1, members)
        self._written.write(GroupMetadataRecord(GroupMetadataKey(self._group), value), at_ms)
        self._generation = generation

    def _settle(self, count: int) -> None:
        """Have as many members as were told."""
        self.is_incomplete |= len(self._roster) != count
        for member in [*self._roster][: max(0, len(self._roster) - count)]:
            del self._roster[member]
        known = len(self._roster)
        for number in range(count - known):
            self._roster[f"unnamed-{number + 1}"] = None


def _there_before(events: Iterable[Event]) -> list[str]:
    """The members that are named before any event says that they came."""
    came: set[str] = set()
    before: dict[str, None] = {}
    for event in events:
        kind, member = event.get("event"), _member_of(event)
        if kind == "MemberFenced":
            came.add(_text(event, "new_member_id"))
        if _comes(event):
            came.add(member)
        elif member and member not in came:
            before[member] = None
    return [*before]


def _comes(event: Event) -> bool:
    return event.get("event") == "MemberJoined" or event.get("cause") == "member joined"


def _named(events: Iterable[Event]) -> dict[str, MemberMetadata]:
    """The members as events name them: by client, host and instance id, and a timeout that one let pass."""
    found: dict[str, MemberMetadata] = {}
    for event in events:
        if "client_host" not in event:
            continue
        timeout_ms = event.get("timeout_ms")
        known = timeout_ms if isinstance(timeout_ms, int) and 0 <= timeout_ms < 1 << 31 else _NOT_TOLD
        is_session = _text(event, "kind") == _SESSION
        member = _member(
            _member_of(event),
            _text(event, "client_id"),
            _text(event, "client_host"),
            _text(event, "group_instance_id") or None,
            session_ms=known if is_session else _NOT_TOLD,
            rebalance_ms=_NOT_TOLD if is_session else known,
        )
        found[member.member_id] = member
        if event.get("event") == "MemberFenced":
            new = _text(event, "new_member_id")
            found.setdefault(new, _member(new, member.client_id, member.client_host, member.group_instance_id))
    return found


def _member_of(event: Event) -> str:
    return _text(event, "member_id") or _text(event, "leader")


def _number(members: object) -> int:
    return members if isinstance(members, int) else 0


def _text(event: Event, name: str) -> str:
    """A field that is text; JSON can name half a surrogate pair, which is none."""
    value = event.get(name)
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else ""


def _member(
    member_id: str,
    client_id: str = "unnamed",
    host: str = "an unknown host",
    instance: str | None = None,
    session_ms: int = _NOT_TOLD,
    rebalance_ms: int = _NOT_TOLD,
) -> MemberMetadata:
    nothing = encode_subscription(Subscription([])), encode_assignment([])
    return MemberMetadata(member_id, instance, client_id, host, rebalance_ms, session_ms, *nothing)
