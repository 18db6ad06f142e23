"""Groups for assignors: how to write one, draw one, and find the best assignment by trying all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from hypothesis import strategies as st

from muster.assignors import MemberAssignment, MemberSubscription
from muster.assignors.layout import Layout
from muster.assignors.previous import PreviousReader, encode_previous_assignment
from muster.model import TopicPartition

Members = dict[str, MemberSubscription]


class Group(NamedTuple):
    """The input of an assignor. `claims` is what each member owned, all in one generation, no partition twice."""

    topics: dict[str, int]
    members: Members
    claims: dict[str, list[TopicPartition]]


def partitions(text: str) -> list[TopicPartition]:
    """Read "a:0-2,5 b:1"."""
    found = []
    for topic, runs in (part.split(":") for part in text.split()):
        for run in runs.split(","):
            first, _, last = run.partition("-")
            found += [TopicPartition(topic, number) for number in range(int(first), int(last or first) + 1)]
    return found


def member(topics: str, owned: str = "", generation_id: int = 1) -> MemberSubscription:
    """A member that reports what it owns in both forms, so that either sticky assignor can read it."""
    rows = partitions(owned)
    user_data = encode_previous_assignment(rows, generation_id)
    return MemberSubscription(topics.split(), rows, generation_id, user_data=user_data)


def previous(*data: bytes, topics: Iterable[str] = ()) -> list[tuple[int, list[TopicPartition]]]:
    """What a leader reads from the user data of some members of sticky: generations and partitions, of these topics."""
    layout = Layout(dict.fromkeys(topics, 2**31), [list(topics)])
    reader = PreviousReader(layout)
    found = []
    for generation_id, places in map(reader.read, data):
        spots = (divmod(place, 2**31) for place in places)
        found.append((generation_id, [TopicPartition(layout.topics[topic], number) for topic, number in spots]))
    return found


def given(assignments: Mapping[str, MemberAssignment]) -> dict[str, list[TopicPartition]]:
    """The partitions of each member, in order."""
    return {member_id: sorted(assignment.partitions) for member_id, assignment in assignments.items()}


def loads(assignments: Mapping[str, MemberAssignment]) -> list[int]:
    """The number of partitions of each member."""
    return [len(assignment.partitions) for assignment in assignments.values()]


def check_complete(topics: Mapping[str, int], members: Members, assignments: Mapping[str, MemberAssignment]) -> None:
    """Check that each partition that a member wants belongs to exactly one member that wants it."""
    assert set(assignments) == set(members)
    rows = sorted(row for assignment in assignments.values() for row in assignment.partitions)
    wanted = {topic for subscription in members.values() for topic in subscription.topics}
    assert rows == sorted(
        TopicPartition(topic, number) for topic, n in topics.items() if topic in wanted for number in range(n)
    )
    for member_id, assignment in assignments.items():
        assert {row.topic for row in assignment.partitions} <= set(members[member_id].topics)


def cost(group: Group, assignments: Mapping[str, MemberAssignment]) -> tuple[int, int]:
    """(sum of squared loads, minus the number of partitions still with their owner): less is better."""
    kept = sum(len(set(group.claims[name]).intersection(share.partitions)) for name, share in assignments.items())
    return sum(load * load for load in loads(assignments)), -kept


def least_cost(group: Group) -> tuple[int, int]:
    """The least `cost` of all assignments: for every reachable vector of loads, the maximum that can be kept."""
    names = list(group.members)
    owner = {row: name for name, rows in group.claims.items() for row in rows}
    reached = {(0,) * len(names): 0}
    for topic, count in group.topics.items():
        takers = [place for place, name in enumerate(names) if topic in group.members[name].topics]
        if not takers:
            continue
        for number in range(count):
            following: dict[tuple[int, ...], int] = {}
            for vector, kept in reached.items():
                for place in takers:
                    longer = (*vector[:place], vector[place] + 1, *vector[place + 1 :])
                    now = kept + (owner.get(TopicPartition(topic, number)) == names[place])
                    following[longer] = max(following.get(longer, 0), now)
            reached = following
    return min((sum(load * load for load in vector), -kept) for vector, kept in reached.items())


@st.composite
def groups(draw: st.DrawFn, *, equal: bool, most_members: int = 5, most_partitions: int = 4) -> Group:
    """A small group with a past: some partitions have an owner, and often a few owners have all of them."""
    names = [f"t{number}" for number in range(draw(st.integers(1, 4)))]
    topics = {name: draw(st.integers(1, most_partitions)) for name in names}
    ids = [f"m{number}" for number in range(draw(st.integers(1, most_members)))]
    some = st.lists(st.sampled_from(names), unique=True, min_size=1)
    wanted = {name: names if equal else draw(some) for name in ids}
    crowd = ids[: draw(st.integers(1, len(ids)))]
    claims: dict[str, list[TopicPartition]] = {name: [] for name in ids}
    for topic, count in topics.items():
        owners = [name for name in crowd if topic in wanted[name]]
        for number in range(count):
            if owners and (owner := draw(st.sampled_from([None, *owners, *owners]))) is not None:
                claims[owner].append(TopicPartition(topic, number))
    members = {
        name: MemberSubscription(wanted[name], claims[name], 1, user_data=encode_previous_assignment(claims[name], 1))
        for name in ids
    }
    return Group(topics, members, claims)
