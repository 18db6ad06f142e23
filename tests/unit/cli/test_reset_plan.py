"""Where groups continue: each form with the facts of a partition, the selected partitions, plans as CSV."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.cli.administer import reset_plan
from muster.cli.administer.reset_plan import NewOffset, PartitionOffsets, ResetForm
from muster.errors import ConfigError, MusterError
from muster.model import TopicPartition

PLACE = TopicPartition("t", 0)
KNOWN = PartitionOffsets(begin=10, end=20, committed=15, at_time=12)
BARE = PartitionOffsets(begin=10, end=20)
BEHIND = PartitionOffsets(begin=10, end=20, committed=5)
EMPTY = PartitionOffsets(begin=20, end=20, committed=20)


@pytest.mark.parametrize(
    ("form", "number", "facts", "expected"),
    [
        (ResetForm.TO_EARLIEST, 0, KNOWN, 10),
        (ResetForm.TO_LATEST, 0, KNOWN, 20),
        (ResetForm.TO_CURRENT, 0, KNOWN, 15),
        (ResetForm.TO_CURRENT, 0, BARE, 20),
        (ResetForm.TO_CURRENT, 0, BEHIND, 5),  # as it is, though the log begins later
        (ResetForm.TO_OFFSET, 13, KNOWN, 13),
        (ResetForm.TO_OFFSET, 10, KNOWN, 10),
        (ResetForm.TO_OFFSET, 20, KNOWN, 20),
        (ResetForm.TO_OFFSET, 9, KNOWN, 10),
        (ResetForm.TO_OFFSET, -1, KNOWN, 10),
        (ResetForm.TO_OFFSET, 21, KNOWN, 20),
        (ResetForm.TO_OFFSET, 5, EMPTY, 20),
        (ResetForm.SHIFT_BY, 2, KNOWN, 17),
        (ResetForm.SHIFT_BY, -5, KNOWN, 10),
        (ResetForm.SHIFT_BY, -6, KNOWN, 10),
        (ResetForm.SHIFT_BY, 6, KNOWN, 20),
        (ResetForm.SHIFT_BY, 0, BEHIND, 10),
        (ResetForm.TO_DATETIME, 0, KNOWN, 12),
        (ResetForm.TO_DATETIME, 0, BARE, 20),
        (ResetForm.BY_DURATION, 0, KNOWN, 12),
        (ResetForm.BY_DURATION, 0, BARE, 20),
        (ResetForm.FROM_FILE, 11, KNOWN, 11),
        (ResetForm.FROM_FILE, 3, KNOWN, 10),
        (ResetForm.FROM_FILE, 30, BARE, 20),
    ],
)
def test_forms(form: ResetForm, number: int, facts: PartitionOffsets, expected: int) -> None:
    assert reset_plan.new_offset(form, number, PLACE, facts)[0] == expected


def test_a_remark_says_what_was_not_as_asked_for() -> None:
    def remark(form: ResetForm, number: int, facts: PartitionOffsets) -> str | None:
        return reset_plan.new_offset(form, number, PLACE, facts)[1]

    assert remark(ResetForm.TO_OFFSET, 15, KNOWN) is None
    assert remark(ResetForm.TO_OFFSET, 21, KNOWN) == "t-0: 21 is after its end: using 20"
    assert remark(ResetForm.SHIFT_BY, -9, KNOWN) == "t-0: 6 is before its beginning: using 10"
    assert remark(ResetForm.TO_DATETIME, 0, BARE) == "t-0 has no record that recent: using its end, 20"
    assert remark(ResetForm.TO_CURRENT, 0, BEHIND) is None


def test_what_was_never_committed_cannot_be_shifted() -> None:
    with pytest.raises(MusterError, match="t-0 has no committed offset to shift"):
        reset_plan.new_offset(ResetForm.SHIFT_BY, 1, PLACE, BARE)


@given(
    form=st.sampled_from([ResetForm.TO_OFFSET, ResetForm.SHIFT_BY, ResetForm.FROM_FILE]),
    number=st.integers(-(2**40), 2**40),
    begin=st.integers(0, 1_000),
    length=st.integers(0, 1_000),
    committed=st.integers(0, 3_000),
)
def test_what_people_ask_for_stays_within_the_log(
    form: ResetForm, number: int, begin: int, length: int, committed: int
) -> None:
    facts = PartitionOffsets(begin, begin + length, committed)
    offset, remark = reset_plan.new_offset(form, number, PLACE, facts)
    wanted = committed + number if form is ResetForm.SHIFT_BY else number
    assert begin <= offset <= begin + length
    assert (offset == wanted) is (begin <= wanted <= begin + length) is (remark is None)


# --- partitions on the command line ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["t"], {"t": None}),
        (["t:0"], {"t": [0]}),
        (["t:2,0", "u", "t:0,5"], {"t": [2, 0, 5], "u": None}),
        (["t:1", "t"], {"t": None}),
        (["t", "t:1"], {"t": None}),
    ],
)
def test_named_partitions(texts: list[str], expected: dict[str, list[int] | None]) -> None:
    assert reset_plan.named_partitions(texts) == expected


@pytest.mark.parametrize("text", ["", ":1", "t:", "t:x", "t:1,", "t:-1", "t:1:2", "t:1-3", "t:١"])
def test_partitions_that_are_none(text: str) -> None:
    with pytest.raises(ConfigError, match=r"write TOPIC, or TOPIC:0,1"):
        reset_plan.named_partitions([text])


# --- plans as CSV ----------------------------------------------------------------------------------------------------


def lines(group: str, *rows: tuple[str, int, int]) -> list[NewOffset]:
    return [NewOffset(group, topic, partition, None, offset) for topic, partition, offset in rows]


def test_a_plan_of_one_group_has_no_group() -> None:
    plan = lines("g", ("t", 0, 5), ("t", 1, 7))
    assert reset_plan.as_csv(plan, with_group=False) == "t,0,5\nt,1,7\n"
    assert reset_plan.from_csv("t,0,5\nt,1,7\n", ["g"], "f") == {"g": {PLACE: 5, TopicPartition("t", 1): 7}}


def test_a_plan_of_several_groups() -> None:
    plan = lines("g", ("t", 0, 5)) + lines("a,b", ("t", 0, 6))
    text = reset_plan.as_csv(plan, with_group=True)
    assert text == 'g,t,0,5\n"a,b",t,0,6\n'
    assert reset_plan.from_csv(text, ["g", "a,b"], "f") == {"g": {PLACE: 5}, "a,b": {PLACE: 6}}
    # Kafka's tool also reads lines with a group if only one group is given.
    assert reset_plan.from_csv(text, ["g"], "f")["g"] == {PLACE: 5}


def test_what_editors_and_other_systems_make_of_a_file() -> None:
    assert reset_plan.from_csv('"t", 0 ,5\r\n\r\n"t",1,7\r\n\n', ["g"], "f")["g"] == {
        PLACE: 5,
        TopicPartition("t", 1): 7,
    }
    assert reset_plan.from_csv("", ["g"], "f") == {}


@pytest.mark.parametrize(
    ("text", "groups", "sentence"),
    [
        ("t,0,5\nt,1\n", ["g"], "f, line 2: expected topic,partition,offset, found 't,1'"),
        ("t,0,5\ng,t,1,5\n", ["g"], "f, line 2: expected topic,partition,offset, found 'g,t,1,5'"),
        ("t,0,5\n", ["g", "h"], "f, line 1: expected group,topic,partition,offset, found 't,0,5'"),
        ("topic,partition,offset\n", ["g"], "f, line 1: 'partition' is not a whole number"),
        ("t,0,1.5\n", ["g"], "f, line 1: '1.5' is not a whole number"),
        ("t,0,5\nt,0,6\n", ["g"], "f, line 2: t-0 is named a second time"),
        ('t,0,"5\n', ["g"], "f, line 1: unexpected end of data"),
    ],
)
def test_files_that_are_not_a_plan(text: str, groups: list[str], sentence: str) -> None:
    with pytest.raises(ConfigError) as refused:
        reset_plan.from_csv(text, groups, "f")
    assert str(refused.value) == sentence


_NAMES = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=30)


@given(st.dictionaries(st.tuples(_NAMES, _NAMES, st.integers(0, 99)), st.integers(0, 2**63 - 1), min_size=1))
def test_what_is_exported_is_read_again(offsets: dict[tuple[str, str, int], int]) -> None:
    plan = [NewOffset(*key, None, offset) for key, offset in offsets.items()]
    read = reset_plan.from_csv(reset_plan.as_csv(plan, with_group=True), ["a", "b"], "f")
    assert {(group, *place): offset for group, found in read.items() for place, offset in found.items()} == offsets


def test_the_table_has_the_columns_of_kafkas_tool() -> None:
    assert reset_plan.plan_table(lines("g", ("flights", 0, 1))) == [
        "",
        "GROUP           TOPIC           PARTITION  NEW-OFFSET",
        "g               flights         0          1",
    ]
