"""`sticky` and `cooperative-sticky`: as balanced as possible, and among those as little moved as possible.

Theory
------
1. Every member says what it owns and in which generation. `Layout.settle` turns the claims into at most one rightful
   owner for each partition.
2. With equal subscriptions (members without any existing topic set aside) P partitions over M members make a quota of
   P // M, and P % M members have one more. A member keeps what it owns up to that; the members that own more than the
   quota are the first to be allowed one more. No other balanced assignment keeps more: each member keeps the most
   that any balanced assignment could leave it, and the extra places go first to where they save a move.
3. What is free then is dealt in turn, so that each topic is spread over the members (as Kafka's
   AbstractStickyAssignor does; the fresh assignment is the same as Kafka's).
4. With mixed subscriptions `mixed.py` does the rest.

`sticky` is eager: members give everything up before they join, so the claims travel as user data, in the format of
Kafka's StickyAssignor (version 1: previous assignment and generation), and members of either kind can share a group.

`cooperative-sticky` (KIP-429) reads the owned partitions of the subscription, and their generation from version 2 of
the consumer protocol on, from the user data before that. A partition that has to move is left out of the assignment
altogether: its owner gives it up, joins again, and the next rebalance finds it free.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from itertools import repeat

from muster.assignors.base import Assignor, MemberAssignment, MemberSubscription, RebalanceProtocol
from muster.assignors.layout import FREE, Claim, Layout
from muster.assignors.mixed import deal, share_mixed
from muster.model import UNKNOWN_GENERATION_ID, TopicPartition

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")


class StickyAssignor(Assignor):
    """Balanced, and keeps as many partitions where they are as balance allows. Eager."""

    name = "sticky"

    def __init__(self) -> None:
        self._previous: list[TopicPartition] | None = None
        self._generation_id = UNKNOWN_GENERATION_ID

    def subscription_user_data(self, topics: Iterable[str]) -> bytes:
        """What this member owned last and in which generation, as Kafka's StickyAssignor writes it."""
        if self._previous is None:
            return b""
        return encode_previous_assignment(self._previous, self._generation_id)

    def on_assignment(self, assignment: MemberAssignment, generation_id: int) -> None:
        """Remember the assignment for the next `subscription_user_data`."""
        self._previous = list(assignment.partitions)
        self._generation_id = generation_id

    def assign(
        self, partitions_per_topic: Mapping[str, int], members: Mapping[str, MemberSubscription]
    ) -> dict[str, MemberAssignment]:
        """Share out as the head of the file says."""
        order = sorted(members)
        layout = Layout(partitions_per_topic, [members[member_id].topics for member_id in order])
        owner = layout.settle([self.claim(members[member_id]) for member_id in order])
        shares = share(layout, owner)
        name_of = layout.names().__getitem__
        return {
            member_id: MemberAssignment(list(map(name_of, self.granted(member, places, owner))))
            for member, (member_id, places) in enumerate(zip(order, shares, strict=True))
        }

    def claim(self, subscription: MemberSubscription) -> Claim:
        """What a member says it owns. What cannot be read claims nothing, as in Kafka."""
        return decode_previous_assignment(subscription.user_data)

    def granted(self, member: int, places: list[int], owner: list[int]) -> list[int]:
        """The part of a member's share that it may have now: all of it, since everything was given up."""
        return places


class CooperativeStickyAssignor(StickyAssignor):
    """`sticky` under cooperative rebalancing: what moves is revoked first and given in the next rebalance."""

    name = "cooperative-sticky"
    protocols = (RebalanceProtocol.EAGER, RebalanceProtocol.COOPERATIVE)

    def subscription_user_data(self, topics: Iterable[str]) -> bytes:
        """The generation of the last assignment: the only place for it before version 2 of the subscription."""
        return _INT32.pack(self._generation_id)

    def on_assignment(self, assignment: MemberAssignment, generation_id: int) -> None:
        """Remember the generation; what is owned stands in the subscription."""
        self._generation_id = generation_id

    def claim(self, subscription: MemberSubscription) -> Claim:
        """Owned partitions and their generation, the subscription's own where it has one."""
        generation_id, user_data = subscription.generation_id, subscription.user_data
        if generation_id == UNKNOWN_GENERATION_ID and len(user_data) >= _INT32.size:
            (generation_id,) = _INT32.unpack_from(user_data)
        return generation_id, subscription.owned_partitions

    def granted(self, member: int, places: list[int], owner: list[int]) -> list[int]:
        """Leave out what somebody else still holds.

        A contested place is left out for everybody, also for those who claim it: each of them has to give it up
        before one of them may have it.
        """
        return [place for place in places if owner[place] == member or owner[place] == FREE]


def share(layout: Layout, owner: list[int]) -> list[list[int]]:
    """Give every place of the layout to a member that subscribes to its topic; `owner` is what `settle` found."""
    shares, free = _kept(layout, owner)
    active = [member for member, topics in enumerate(layout.wanted) if topics]
    if len(set(layout.wanted) - {frozenset()}) <= 1:
        _share_equally(layout, shares, active, [place for places in free for place in places])
    else:
        share_mixed(layout, owner, shares, free)
    return shares


def _kept(layout: Layout, owner: list[int]) -> tuple[list[list[int]], list[list[int]]]:
    """Leave every place with its rightful owner if that still subscribes; the rest is free, topic by topic."""
    wanted = layout.wanted
    shares: list[list[int]] = [[] for _ in wanted]
    if max(owner, default=FREE) < 0:
        return shares, [list(range(start, start + n)) for start, n in zip(layout.starts, layout.counts, strict=False)]
    free: list[list[int]] = []
    for topic, count in enumerate(layout.counts):
        start = layout.starts[topic]
        left: list[int] = []
        for place, member in enumerate(owner[start : start + count], start):
            if member >= 0 and topic in wanted[member]:
                shares[member].append(place)
            else:
                left.append(place)
        free.append(left)
    return shares, free


def _share_equally(layout: Layout, shares: list[list[int]], active: list[int], free: list[int]) -> None:
    if not active:
        return
    quota, larger = divmod(layout.total, len(active))
    larger = _release(layout, shares, active, free, quota, larger)
    even = [member for member in active if len(shares[member]) == quota]
    needs = [(member, quota - len(shares[member])) for member in active if len(shares[member]) < quota]
    dealt = sum(need for _, need in needs)
    filled = deal(free[:dealt], needs, shares)
    for member, place in zip((even + filled)[:larger], free[dealt:], strict=True):
        shares[member].append(place)


def _release(
    layout: Layout, shares: list[list[int]], active: list[int], free: list[int], quota: int, larger: int
) -> int:
    """Take from every member what it holds over its quota; return how many may still have one more than the quota.

    Low partition numbers are kept, over all topics, so that a large owner stays spread over the topics.
    """
    over = [member for member in active if len(shares[member]) > quota]
    if not over:
        return larger
    number = layout.partition_numbers()
    for member in over:
        keep = quota + (larger > 0)
        larger -= larger > 0
        ranked = sorted(shares[member], key=number.__getitem__)
        shares[member] = ranked[:keep]
        free += ranked[keep:]
    free.sort()
    return larger


def encode_previous_assignment(partitions: Iterable[TopicPartition], generation_id: int) -> bytes:
    """StickyAssignor user data, version 1: array of (topic, array of partitions), then the generation."""
    by_topic: dict[str, list[int]] = {}
    for topic, partition in partitions:
        by_topic.setdefault(topic, []).append(partition)
    out = [_INT32.pack(len(by_topic))]
    for topic, numbers in by_topic.items():
        name = topic.encode()
        out += (_INT16.pack(len(name)), name, struct.pack(f">i{len(numbers)}i", len(numbers), *numbers))
    out.append(_INT32.pack(generation_id))
    return b"".join(out)


def decode_previous_assignment(data: bytes) -> Claim:
    """Read version 1, or version 0, which ends before the generation. Unreadable data claims nothing."""
    claimed: list[tuple[str, int]] = []
    if not data:
        return UNKNOWN_GENERATION_ID, claimed
    try:
        at = _read_previous(data, claimed)
    except (struct.error, ValueError):
        return UNKNOWN_GENERATION_ID, []
    if len(data) - at < _INT32.size:
        return UNKNOWN_GENERATION_ID, claimed
    return _INT32.unpack_from(data, at)[0], claimed


def _read_previous(data: bytes, claimed: list[tuple[str, int]]) -> int:
    """Collect the pairs, return where they end; struct.error or ValueError where the data is something else.

    A length that the data cannot hold is refused before anything is made of it: garbage must not ask for memory.
    """
    size = len(data)
    int16, int32 = _INT16.unpack_from, _INT32.unpack_from
    (topics,) = int32(data, 0)
    if topics < 0:
        raise ValueError("negative number of topics")
    at = 4
    for _ in range(topics):
        (length,) = int16(data, at)
        end = at + 2 + length
        (count,) = int32(data, end)
        if length < 0 or not 0 <= count <= size:
            raise ValueError("impossible length")
        topic = data[at + 2 : end].decode()
        at = end + 4
        if count == 1:  # with many topics and members nearly always
            claimed.append((topic, int32(data, at)[0]))
        else:
            claimed += zip(repeat(topic), struct.unpack_from(f">{count}i", data, at), strict=False)
        at += 4 * count
    return at
