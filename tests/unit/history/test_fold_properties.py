"""Whatever a group goes through, and wherever its log is cut: the same rows in order, and a state that stays small."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from muster.history.model import Limits, Rows
from muster.history.rules.fold import finish, fold, start
from tests.support.group_log import GroupLog, M
from tests.support.scale import examples

LIMITS = Limits(pattern_ms=120_000, consumer_session_timeout_ms=45_000)


class Life:
    """A group that goes through one event after another, in both protocols."""

    def __init__(self) -> None:
        self.log = GroupLog()
        self.number = 0
        self.ids = 0
        self.partitions = 4
        self.members: list[M] = []
        self.is_consumer = False

    def _shared_out(self) -> list[M]:
        members: list[M] = []
        for number, each in enumerate(self.members):
            mine = [f"t:{one}" for one in range(self.partitions) if one % len(self.members) == number]
            members.append(each.with_(has=" ".join(mine), owned=each.has if number % 2 else ""))
        return members

    def rebalance(self, *gone: M) -> None:
        self.members = self._shared_out()
        self.number += 1
        if not self.is_consumer:
            self.log.generation(self.number, self.members)
            return
        self.log.gone(*gone)
        for each in self.members:
            self.log.member(each)
        self.log.epoch(self.number, self.partitions).target(self.number, self.members)
        self.log.standing(self.number, *self.members)

    def join(self, who: int, static: bool) -> None:
        self.ids += 1
        self.members.append(M(f"c{who}-{self.ids}", instance=f"i{self.ids}" if static else None))
        self.rebalance()

    def leave(self, who: int, silent_ms: int) -> None:
        if not self.members:
            return
        gone = self.members.pop(who % len(self.members))
        self.commits(silent_ms)
        self.rebalance(gone)

    def restart(self, who: int, _: int) -> None:
        if not self.members:
            return
        at = who % len(self.members)
        gone = self.members[at]
        self.ids += 1
        self.members[at] = gone.with_(id=f"{gone.client_id}-{self.ids}")
        if gone.instance and not self.is_consumer:
            self.log.generation(self.number, self.members)
        else:
            self.rebalance(gone)

    def add_partitions(self, more: int, _: int) -> None:
        self.partitions += more
        self.rebalance()

    def commits(self, for_ms: int, _: int = 0) -> None:
        where = " ".join(each.has for each in self.members) or "t:0"
        self.log.commits(where, for_ms, every=4_000)

    def delete(self, _: int, __: int) -> None:
        self.log.expire("t:0-1")
        if self.is_consumer:
            self.log.gone(*self.members).epoch(None)
        else:
            self.log.tombstone()
        self.members, self.number = [], 0

    def convert(self, _: int, __: int) -> None:
        if self.is_consumer:
            self.log.gone(*self.members).epoch(None)
            self.log.generation(self.number, self.members)
        else:
            self.log.tombstone()
            for each in self.members:
                self.log.member(each)
            self.log.epoch(self.number).target(self.number, self.members).standing(self.number, *self.members)
        self.is_consumer = not self.is_consumer

    def move_coordinator(self, by: int, clock_ms: int) -> None:
        self.log.leader_epoch += 1 + by
        self.log.wait(clock_ms - 100_000)  # its clock may be far behind

    def nonsense(self, which: int, size: int) -> None:
        keys = (b"\0\2\0\1g", b"\0\2\0\1", b"\0\5\0\1g", b"\0\3\0\1g", b"\0\x63x", b"\0")
        self.log.raw(keys[which % len(keys)], b"\0\3" + b"\7" * (size % 90))

    def skip(self, by: int, _: int) -> None:
        self.number += by


DEEDS: list[Callable[[Life, int, int], None]] = [
    lambda life, a, b: life.join(a, b % 3 == 0),
    lambda life, a, b: life.leave(a, b),
    Life.restart,
    Life.add_partitions,
    lambda life, a, b: life.commits(b),
    lambda life, a, b: life.rebalance(),
    Life.delete,
    Life.convert,
    Life.move_coordinator,
    Life.nonsense,
    Life.skip,
]


@st.composite
def lives(draw: st.DrawFn) -> GroupLog:
    life = Life()
    life.partitions = draw(st.sampled_from([1, 4, 20]))
    deeds = st.tuples(st.sampled_from(DEEDS), st.integers(0, 3), st.sampled_from([0, 3, 4_000, 9_000, 50_000, 310_000]))
    for deed, which, how in draw(st.lists(deeds, min_size=3, max_size=30)):
        deed(life, which, how)
        life.log.wait(draw(st.sampled_from([0, 5, 3_000, 40_000])))
    return life.log


def in_pieces(log: GroupLog, cuts: list[int]) -> Rows:
    rows, state = Rows(), start(log.group, LIMITS)
    for first, end in pairwise([0, *sorted(cuts), log.offset + 1]):
        now_ms = next((each.at.timestamp_ms for each in reversed(log.entries) if each.at.offset < end), None)
        rows.extend(fold(state, log.chunk(first, end, now_ms)))
        state = pickle.loads(pickle.dumps(state))
    rows.extend(finish(state, log.now))
    return rows


@settings(max_examples=examples(150), deadline=None)
@given(lives(), st.data())
def test_where_a_log_is_cut_changes_nothing(log: GroupLog, data: st.DataObject) -> None:
    cuts = data.draw(st.lists(st.integers(0, log.offset + 1), max_size=6))
    assert in_pieces(log, cuts) == log.history(LIMITS)


@settings(max_examples=examples(150), deadline=None)
@given(lives())
def test_rows_make_sense_whatever_comes(log: GroupLog) -> None:
    rows = log.history(LIMITS)
    places = [row.at.offset for row in rows.generations]
    assert places == sorted(set(places))
    assert all(row.ended_ms is not None for row in rows.generations[:-1])
    for row in rows.rebalances:
        assert 0 <= row.confidence <= 1
        assert row.evidence
        assert row.duration_ms is None or row.duration_ms >= 0
        assert all(ms >= 0 for _, _, ms in row.stopped)
        assert len(row.joined) + len(row.replaced) <= row.members_after
        assert row.cause not in {each.cause for each in row.alternatives}
        if row.previous_generation is None:
            assert not row.left
            assert not row.moved


@settings(max_examples=examples(60), deadline=None)
@given(lives(), st.integers(0, 200))
def test_a_log_may_begin_anywhere(log: GroupLog, first: int) -> None:
    state = start(log.group, LIMITS)
    rows = fold(state, log.chunk(min(first, log.offset)))
    rows.extend(finish(state, log.now))
    if rows.rebalances and rows.rebalances[0].previous_generation is None:
        assert not rows.rebalances[0].left


def test_the_state_is_as_large_as_the_group_however_long_it_lives() -> None:
    log, sizes = GroupLog(), []
    state = start("g", LIMITS)
    for number in range(1, 301):
        first = log.offset + 1
        come = M(f"c-{number}", "t:2-3")
        log.generation(number, [M("a-1", "t:0-1"), *([come] if number % 2 else [])]).commits("t:0-3", 20_000)
        fold(state, log.chunk(first, now_ms=log.now))
        sizes.append(len(pickle.dumps(state)))
    assert max(sizes[200:]) <= max(sizes[:100]) * 1.1
