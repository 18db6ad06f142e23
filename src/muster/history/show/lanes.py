"""Members as lanes of a timeline: one lane per process, across its restarts.

A member id is new after each restart and means nothing to people. The instance id, or the client id with the host,
stays. If several members of one generation share these (many consumers in one process, all named `rdkafka`), each gets
its own lane by member id.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from muster.history.model import Generation, Member
from muster.history.rules.rebalances import identity


@dataclass(slots=True)
class LaneSpan:
    """A period in which a member had this number of partitions."""

    start_ms: int
    end_ms: int
    partitions: int


@dataclass(slots=True)
class Lane:
    """One process: its name and when it was a member."""

    name: str
    spans: list[LaneSpan] = field(default_factory=list)


def lanes(generations: Sequence[Generation], until_ms: int) -> list[Lane]:
    """The lanes of one group, in the order in which they first appear."""
    shared = _shared(generations)
    found: dict[tuple[str, ...], Lane] = {}
    for each in generations:
        end_ms = until_ms if each.ended_ms is None else each.ended_ms
        for member in each.members:
            key = identity(member)
            own = (key[0], member.member_id) if key in shared else key
            lane = found.setdefault(own, Lane(_name(member, key in shared)))
            _extend(lane.spans, each.started_ms, end_ms, len(member.assignment))
    return list(found.values())


def _shared(generations: Sequence[Generation]) -> frozenset[tuple[str, ...]]:
    """The identities that several members of one generation share."""
    found: set[tuple[str, ...]] = set()
    for each in generations:
        counts = Counter(identity(member) for member in each.members)
        found.update(key for key, number in counts.items() if number > 1)
    return frozenset(found)


def _name(member: Member, shared: bool) -> str:
    name = member.instance_id or member.client_id or member.member_id
    suffix = f" …{member.member_id[-6:]}" if shared else ""
    return f"{name[:28]}{suffix}"


def _extend(spans: list[LaneSpan], start_ms: int, end_ms: int, partitions: int) -> None:
    if spans and spans[-1].end_ms == start_ms and spans[-1].partitions == partitions:
        spans[-1].end_ms = end_ms
    else:
        spans.append(LaneSpan(start_ms, end_ms, partitions))
