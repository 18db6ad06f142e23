"""The differences between two generations of a group: members, subscriptions, partitions.

**Members.** An id that is in both generations is the same member. Two other ids are one replaced member if they have
the same instance id (static, KIP-345), or the same client id and host: a restarted process, or a member that lost its
membership and rejoined, within one rebalance. Members on one host often share a client id; any two of them are then
paired, which gives the right count.

**Needless moves.** Members that stay and subscribe to the same topics can keep what they had, up to their share. The
new shares, given to the members so that the largest go to those that had most, determine how many partitions had to
move; any further move was needless. If members subscribe to different topics, no move is counted as needless.

**Cooperative rebalances** (KIP-429) take two generations: the first revokes the partitions that must move and leaves
them unassigned (`withheld`); the second hands them out. A member's subscription lists the partitions that it owned when
it joined.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from muster.history.model import Change, Generation, Member, Moved, TopicPartition


@dataclass(slots=True)
class Difference:
    """How the members of two generations differ."""

    joined: list[Change] = field(default_factory=list)
    left: list[Member] = field(default_factory=list)
    replaced: list[Change] = field(default_factory=list)
    resubscribed: list[Change] = field(default_factory=list)
    stayed: list[Change] = field(default_factory=list)
    gone: list[Member] = field(default_factory=list)
    """Members whose ids are gone, replaced or not."""
    came: list[Member] = field(default_factory=list)
    """Members whose ids are new."""

    @property
    def same_members(self) -> bool:
        return not (self.joined or self.left or self.replaced)


def difference(before: Iterable[Member], after: Iterable[Member]) -> Difference:
    """Compare the members of two generations."""
    former = {member.member_id: member for member in before}
    found = Difference()
    came = []
    for member in after:
        earlier = former.pop(member.member_id, None)
        if earlier is None:
            came.append(member)
        else:
            found.stayed.append(Change(member, earlier))
    if came:
        _pair(came, former, found)
    found.left = list(former.values())
    found.gone = found.left + [change.before for change in found.replaced if change.before is not None]
    found.came = [change.member for change in found.joined + found.replaced]
    found.resubscribed = [change for change in (*found.stayed, *found.replaced) if _resubscribed(change)]
    return found


def identity(member: Member) -> tuple[str, ...]:
    """What a member keeps when it returns under a new id."""
    return (member.instance_id,) if member.instance_id else (member.client_id, member.host)


def _pair(came: Iterable[Member], gone: dict[str, Member], found: Difference) -> None:
    """Pair new members with those that they replace, which are removed from `gone`."""
    by_identity: dict[tuple[str, ...], deque[Member]] = defaultdict(deque)
    for member in gone.values():
        by_identity[identity(member)].append(member)
    for member in came:
        former = by_identity.get(identity(member))
        if former:
            earlier = former.popleft()
            del gone[earlier.member_id]
            found.replaced.append(Change(member, earlier))
        else:
            found.joined.append(Change(member))


def _resubscribed(change: Change) -> bool:
    before, after = change.before, change.member
    return before is not None and (before.topics, before.topic_regex) != (after.topics, after.topic_regex)


# --------------------------------------------------------------------------------------------------------- partitions


def owners(members: Iterable[Member]) -> dict[TopicPartition, str]:
    """Which member has which partition."""
    return {place: member.member_id for member in members for place in member.assignment}


def moved(before: Generation | None, after: Generation, found: Difference) -> tuple[Moved, ...]:
    """The partitions whose owner changed. A replaced member is a different owner unless it is static."""
    former = owners(before.members) if before is not None else {}
    instances = {
        change.before.member_id: change.member.member_id
        for change in found.replaced
        if change.before is not None and change.member.instance_id
    }
    former = {place: instances.get(owner, owner) for place, owner in former.items()}
    if not former:
        return ()
    now = owners(after.members)
    changed = sorted({place for place, _ in former.items() ^ now.items()})
    if not changed:
        return ()
    needless = _needless(found, changed, former, now, len(after.members))
    return tuple(Moved(*place, former.get(place), now.get(place), place in needless) for place in changed)


def _needless(
    found: Difference,
    changed: list[TopicPartition],
    former: dict[TopicPartition, str],
    now: dict[TopicPartition, str],
    after: int,
) -> frozenset[TopicPartition]:
    stayed = {change.member.member_id for change in found.stayed}
    lost = [place for place in changed if former.get(place) in stayed and place in now]
    if not lost or found.resubscribed or len({change.member.topics for change in found.stayed}) > 1:
        return frozenset()
    had, has = _sizes(former, now), _sizes(now, now)
    old = sorted(((had[member], member) for member in stayed), reverse=True)
    shares = sorted(has.values(), reverse=True)
    shares += [0] * (len(old) - len(shares))
    least, more = divmod(len(now), after)
    forced = {
        member: max(0, size - max(share, least + (number < more)))
        for number, ((size, member), share) in enumerate(zip(old, shares, strict=False))
    }
    beyond = len(lost) - sum(forced.values())
    lost_by = Counter(former[place] for place in lost)
    flagged = set()
    for place in reversed(lost):
        owner = former[place]
        if beyond <= 0:
            break
        if forced[owner] > 0 and lost_by[owner] <= forced[owner]:
            continue
        flagged.add(place)
        beyond -= 1
    return frozenset(flagged)


def _sizes(owner: Mapping[TopicPartition, str], still: Mapping[TopicPartition, str]) -> dict[str, int]:
    """The number of each member's partitions that are still assigned."""
    sizes: dict[str, int] = defaultdict(int)
    for place, member_id in owner.items():
        sizes[member_id] += place in still
    return sizes


def withheld(before: Generation | None, after: Generation) -> frozenset[TopicPartition]:
    """Partitions that members owned when they joined and that the generation leaves unassigned: a first phase."""
    owned = {place for member in after.members for place in member.owned}
    if not owned and "cooperative" not in (after.protocol or ""):
        return frozenset()
    assigned = {place for member in after.members for place in member.assignment}
    if before is not None and "cooperative" in (after.protocol or ""):
        staying = {member.member_id for member in after.members}
        owned |= {place for each in before.members if each.member_id in staying for place in each.assignment}
    topics = {topic for member in after.members for topic in member.topics}
    return frozenset(place for place in owned - assigned if place[0] in topics)


def counts(members: Iterable[Member]) -> dict[str, int]:
    """The known number of partitions of each topic, from assignments and owned partitions."""
    found: dict[str, int] = {}
    for member in members:
        for topic, partition in member.assignment:
            if partition >= found.get(topic, 0):
                found[topic] = partition + 1
        for topic, partition in member.owned:
            if partition >= found.get(topic, 0):
                found[topic] = partition + 1
    return found
