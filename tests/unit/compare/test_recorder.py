"""Ownership over time and handled records, compared with models that check each millisecond and each offset."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.compare.rules.recorder import (
    Awake,
    Double,
    Frozen,
    Gone,
    Handled,
    HandledRecords,
    Offsets,
    OwnershipEvent,
    OwnershipState,
    Owns,
    Period,
    awake,
    doubles,
    holds,
    naps,
    ownerless_ms,
    union_ms,
)

END = 40
PARTITIONS = 3


def owns(at: int, member: str, *partitions: int) -> Owns:
    return Owns(at, member, frozenset(partitions))


def test_a_third_reader_is_distinguished_from_two() -> None:
    events: list[OwnershipEvent] = [owns(0, "a", 0), owns(5, "b", 0), owns(10, "c", 0), Gone(20, "a")]
    assert doubles(holds(events, END)) == [
        Double(0, ("a", "b"), 5, 10),
        Double(0, ("a", "b", "c"), 10, 20),
        Double(0, ("b", "c"), 20, END),
    ]


MEMBERS = st.sampled_from("abc")
SETS = st.frozensets(st.integers(0, PARTITIONS - 1))


@st.composite
def stories(draw: st.DrawFn) -> list[OwnershipEvent]:
    events: list[OwnershipEvent] = []
    for at in sorted(draw(st.lists(st.integers(0, END - 1), max_size=20))):
        member, kind = draw(MEMBERS), draw(st.sampled_from([Owns, Owns, Owns, Gone, Frozen, Awake]))
        events.append(Owns(at, member, draw(SETS)) if kind is Owns else kind(at, member))
    return events


class ByMillisecond:
    """The partitions that each member reads in each millisecond."""

    def __init__(self, events: list[OwnershipEvent]) -> None:
        self.believed: list[dict[str, frozenset[int]]] = []
        self.reading: list[dict[str, frozenset[int]]] = []
        owned: dict[str, frozenset[int]] = {}
        frozen: set[str] = set()
        for at in range(END):
            for event in (event for event in events if event.at_ms == at):
                if isinstance(event, Owns):
                    owned[event.member] = event.partitions
                elif isinstance(event, Gone):
                    owned.pop(event.member, None)
                    frozen.discard(event.member)
                elif isinstance(event, Frozen):
                    frozen.add(event.member)
                else:
                    frozen.discard(event.member)
            self.believed.append(dict(owned))
            self.reading.append({member: held for member, held in owned.items() if member not in frozen})

    def owners(self, at: int, partition: int) -> tuple[str, ...]:
        return tuple(sorted(member for member, held in self.reading[at].items() if partition in held))


@given(stories(), st.integers(0, END), st.integers(0, END))
def test_ownership_is_as_each_millisecond_says(events: list[OwnershipEvent], one: int, other: int) -> None:
    model = ByMillisecond(events)
    held = holds(events, END)
    for at in range(END):
        by_hold = {(hold.member, hold.partition) for hold in held if hold.start_ms <= at < hold.end_ms}
        assert by_hold == {(member, p) for member, owned in model.believed[at].items() for p in owned}
    reading = awake(held, naps(events, END))
    during = Period(min(one, other), max(one, other))
    without = sum(
        not model.owners(at, partition)
        for at in range(during.start_ms, during.end_ms)
        for partition in range(PARTITIONS)
    )
    assert ownerless_ms(reading, PARTITIONS, during) == without
    found = doubles(reading)
    for at in range(END):
        for partition in range(PARTITIONS):
            here = [d.members for d in found if d.partition == partition and d.start_ms <= at < d.end_ms]
            owners = model.owners(at, partition)
            assert here == ([owners] if len(owners) > 1 else [])
    doubled = sum(any(len(model.owners(at, p)) > 1 for p in range(PARTITIONS)) for at in range(END))
    assert union_ms(Period(d.start_ms, d.end_ms) for d in found) == doubled


@given(stories())
def test_no_two_doubles_of_the_same_owners_touch(events: list[OwnershipEvent]) -> None:
    found = doubles(awake(holds(events, END), naps(events, END)))
    ends = {(double.partition, double.members, double.end_ms) for double in found}
    assert not any((double.partition, double.members, double.start_ms) in ends for double in found)
    assert found == sorted(found, key=lambda double: double.start_ms)


@pytest.mark.parametrize(
    ("owned", "members", "shared"),
    [
        ({"a": (0, 1), "b": (2,)}, "ab", True),
        ({"a": (0, 1, 2)}, "a", True),
        ({"a": (0,), "b": (1,), "c": (2,), "d": ()}, "abcd", True),
        ({"a": (0, 1, 2), "b": ()}, "ab", False),
        ({"a": (0, 1), "b": (1, 2)}, "ab", False),
        ({"a": (0,), "b": (1,)}, "ab", False),
        ({"a": (0, 1), "b": (2,)}, "a", False),
        ({"a": (0, 1), "b": (2,)}, "abc", False),
        ({"a": (0, 1), "b": (2, 3)}, "ab", False),
    ],
)
def test_when_partitions_are_shared(owned: dict[str, tuple[int, ...]], members: str, shared: bool) -> None:
    group = OwnershipState()
    for at, (member, partitions) in enumerate(owned.items()):
        group.take(owns(at, member, *partitions))
    assert group.shared(members, PARTITIONS) is shared


def test_shared_counts_those_that_are_awake_and_have_spoken_since() -> None:
    group = OwnershipState()
    for event in (owns(1, "a", 0, 1), owns(2, "b", 2), owns(3, "c", 0), Frozen(4, "c")):
        group.take(event)
    assert group.shared("ab", 3)
    assert group.shared("ab", 3, since_ms=1)
    assert not group.shared("ab", 3, since_ms=2)
    group.take(Awake(5, "c"))
    assert not group.shared("ab", 3)
    assert not group.shared("abc", 3)
    group.take(Gone(6, "c"))
    assert group.shared("ab", 3)


RUNS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 6)), max_size=25)


@given(RUNS)
def test_offsets_are_a_set(runs: list[tuple[int, int]]) -> None:
    offsets, model = Offsets(), set[int]()
    for first, more in runs:
        run = set(range(first, first + more + 1))
        assert offsets.add(first, first + more) == len(model & run)
        model |= run
        assert len(offsets) == len(model)
        assert offsets.until() == next(at for at in range(40) if at not in model)
    assert all(end < start for end, start in zip(offsets._ends, offsets._starts[1:], strict=False))


@given(
    st.lists(st.tuples(st.integers(0, 1), st.integers(0, 20), st.integers(0, 4), st.sampled_from("ab")), max_size=20)
)
def test_books_count_each_record_that_is_handled_again(runs: list[tuple[int, int, int, str]]) -> None:
    books, counts = HandledRecords(), Counter[tuple[int, int]]()
    for at, (partition, first, more, member) in enumerate(runs):
        books.take(Handled(at, member, partition, first, first + more))
        counts.update((partition, offset) for offset in range(first, first + more + 1))
    assert books.distinct == len(counts)
    assert books.twice_during(Period(0, len(runs))) == sum(counts.values()) - len(counts)
    assert sum(books.twice_during(Period(at, at + 1)) for at in range(len(runs))) == sum(n for _, _, n in books.twice)
    ends = dict.fromkeys(range(2), 25)
    assert books.lost(ends) == 50 - len(counts)
    assert books.reached({})
    assert books.reached({0: 0, 1: 0})
    assert books.reached({0: 3}) == all((0, offset) in counts for offset in range(3))
