"""When a KIP-848 epoch has settled: after each record its table agrees with a check of all members."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from muster.history.rules.generations import LEFT_FOR_A_WHILE, STABLE, ConsumerTable, read
from muster.protocol.record_kinds import TypedRecord
from tests.support.group_log import GroupLog, M
from tests.support.scale import examples

A, B, C = M("a-1", "t:0"), M("b-1", "t:1"), M("c-1", "t:2")
WHO = st.sampled_from([A, B, C])
DEEDS = st.one_of(
    st.tuples(st.just("member"), WHO),
    st.tuples(st.just("gone"), WHO),
    st.tuples(st.just("epoch"), st.integers(1, 2)),
    st.tuples(st.just("target"), st.integers(1, 2)),
    st.tuples(st.just("standing"), st.sampled_from([1, 2, LEFT_FOR_A_WHILE]), WHO, st.sampled_from([STABLE, 1])),
)


def write(log: GroupLog, deed: str, *what: object) -> None:
    if deed == "target":
        log.target(int(str(what[0])), [A])
    elif deed == "standing":
        epoch, who, state = what
        log.standing(epoch, who, state=state)  # type: ignore[arg-type]
    else:
        getattr(log, deed)(*what)


def is_settled(table: ConsumerTable) -> bool:
    found = [table.standings.get(member_id) for member_id in table.members]
    return table.target_epoch == table.epoch and all(
        each is not None and ((each.epoch == table.epoch and each.state == STABLE) or each.epoch == LEFT_FOR_A_WHILE)
        for each in found
    )


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(DEEDS, max_size=30))
def test_a_table_knows_whether_all_members_have_what_they_are_to_have(deeds):
    log, table = GroupLog(), ConsumerTable()
    for deed in deeds:
        write(log, *deed)
    for entry in log.entries:
        record = read(entry)
        assert isinstance(record, TypedRecord)
        table.apply(record)
        assert table.is_settled() == is_settled(table)
