"""Rows are converted to tables and back without loss."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.history import tables
from muster.history.model import (
    Alternative,
    Cause,
    Change,
    CommitNote,
    Finding,
    Generation,
    GroupKind,
    Lag,
    Member,
    Moved,
    Pattern,
    PatternSeen,
    Place,
    Rebalance,
)
from muster.history.rows import from_table, schema_of, to_table
from tests.support.scale import examples

TEXT = st.text(st.characters(codec="utf-8"), max_size=4)
INT = st.integers(-(2**31), 2**31 - 1)
LONG = st.integers(-(2**63), 2**63 - 1)
MAYBE_LONG = st.none() | LONG
PARTITIONS = st.lists(st.tuples(TEXT, INT), max_size=2).map(tuple)
MEMBERS = st.builds(
    Member,
    member_id=TEXT,
    client_id=TEXT,
    host=TEXT,
    instance_id=st.none() | TEXT,
    topics=st.lists(TEXT, max_size=2).map(tuple),
    topic_regex=st.none() | TEXT,
    assignment=PARTITIONS,
    owned=PARTITIONS,
    session_timeout_ms=st.none() | INT,
    rebalance_timeout_ms=st.none() | INT,
    epoch=st.none() | INT,
)
CHANGES = st.lists(st.builds(Change, MEMBERS, st.none() | MEMBERS), max_size=2).map(tuple)
GENERATIONS = st.builds(
    Generation,
    group=TEXT,
    generation=INT,
    kind=st.sampled_from(GroupKind),
    started_ms=LONG,
    ended_ms=MAYBE_LONG,
    prepared_ms=MAYBE_LONG,
    settled_ms=MAYBE_LONG,
    protocol_type=TEXT,
    protocol=st.none() | TEXT,
    leader=st.none() | TEXT,
    members=st.lists(MEMBERS, max_size=2).map(tuple),
    at=st.builds(Place, INT, LONG, LONG, INT),
)
REBALANCES = st.builds(
    Rebalance,
    group=TEXT,
    generation=INT,
    previous_generation=st.none() | INT,
    at_ms=LONG,
    duration_ms=MAYBE_LONG,
    duration_is=TEXT,
    members_before=INT,
    members_after=INT,
    joined=CHANGES,
    left=st.lists(MEMBERS, max_size=2).map(tuple),
    replaced=CHANGES,
    resubscribed=CHANGES,
    moved_partitions=st.lists(
        st.builds(Moved, TEXT, INT, st.none() | TEXT, st.none() | TEXT, st.booleans()), max_size=2
    ).map(tuple),
    waited_ms=MAYBE_LONG,
    waited_for=st.lists(MEMBERS, max_size=2).map(tuple),
    stopped=st.lists(st.tuples(TEXT, INT, st.integers(0, 2**40)), max_size=2).map(tuple),
    cause=st.sampled_from(Cause),
    confidence=st.floats(0, 1),
    evidence=st.lists(TEXT, max_size=2).map(tuple),
    alternatives=st.lists(st.builds(Alternative, st.sampled_from(Cause), TEXT), max_size=2).map(tuple),
    pattern=st.none()
    | st.builds(
        PatternSeen,
        st.sampled_from(Pattern),
        st.floats(0, 1),
        st.lists(TEXT, max_size=2).map(tuple),
        st.lists(TEXT, max_size=2).map(tuple),
        st.lists(st.sampled_from(Cause), max_size=2).map(tuple),
    ),
    phase=st.integers(1, 2),
    source=TEXT,
    is_stop=st.booleans(),
)
NOTES = st.builds(CommitNote, TEXT, TEXT, INT, LONG, TEXT, LONG, LONG)
LAGS = st.builds(Lag, TEXT, TEXT, INT, LONG, LONG, LONG, LONG, LONG, LONG, st.booleans(), MAYBE_LONG, LONG, MAYBE_LONG)
FINDINGS = st.builds(Finding, TEXT, TEXT, LONG, TEXT, LONG, MAYBE_LONG, TEXT)


@pytest.mark.parametrize(
    ("kind", "rows", "schema"),
    [
        (Generation, GENERATIONS, tables.GENERATIONS),
        (Rebalance, REBALANCES, tables.REBALANCES),
        (CommitNote, NOTES, tables.NOTES),
        (Lag, LAGS, tables.LAG),
        (Finding, FINDINGS, tables.FINDINGS),
    ],
)
@settings(max_examples=examples(40), deadline=None)
@given(data=st.data())
def test_rows_come_back_as_they_were(kind: type[Any], rows: st.SearchStrategy[Any], schema: pa.Schema, data: Any):
    given_rows = data.draw(st.lists(rows, max_size=3).map(lambda found: found * 2))  # members are shared by many rows
    table = to_table(kind, given_rows)
    assert table.schema == schema == schema_of(kind)
    assert from_table(kind, table) == given_rows


def note(at_ms: int) -> CommitNote:
    return CommitNote("g", "t", 0, at_ms, "rewind", 1, 2)


@pytest.mark.parametrize(
    ("at_ms", "at", "day"),
    [
        (1_700_000_000_123, "2023-11-14 22:13:20.123000+00:00", "2023-11-14"),
        (253_402_300_799_999, "9999-12-31 23:59:59.999000+00:00", "9999-12-31"),
        (-1, "None", "None"),
        (253_402_300_800_000, "None", "None"),
        (2**63 - 1, "None", "None"),
    ],
)
def test_a_time_and_its_day_are_listed_with_its_milliseconds_where_a_calendar_has_them(at_ms: int, at: str, day: str):
    row = to_table(CommitNote, [note(at_ms)]).to_pylist()[0]
    assert (row["at_ms"], str(row["at"]), str(row["day"])) == (at_ms, at, day)
