"""Entries, sorted by group, in log order."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.history import tables
from muster.history.entries.chunks import chunks
from muster.history.model import Entry, How, Place
from tests.support.scale import examples

GROUPS = ("a", "b", "c")
COMMITS = st.tuples(
    st.sampled_from(GROUPS),
    st.sampled_from(["t", "u"]),
    st.sampled_from([-1, 0, 1, 2**31 - 1]),
    st.integers(-1, 9),
    st.sampled_from([None, False, True]),
)
HOW = {None: How.UNKNOWN, False: How.PLAIN, True: How.TRANSACTIONAL}
OTHERS = st.tuples(st.sampled_from(GROUPS), st.none() | st.binary(max_size=2))


def row(at: int, given_entry: tuple[Any, ...]) -> dict[str, Any]:
    found = dict.fromkeys(tables.ENTRIES.names) | {
        "group": given_entry[0],
        "log_partition": 7,
        "log_offset": at,
        "timestamp_ms": 1000 - at,  # a clock that steps back changes nothing
        "leader_epoch": at // 3,
    }
    if len(given_entry) == 2:
        return found | {"kind": 2, "key": b"key", "value": given_entry[1]}
    _, topic, partition, offset, how = given_entry
    place = {"topic": topic, "partition": partition, "is_transactional": how}
    return found | place | {"kind": 1, "offset": offset, "commit_ms": offset - 1}


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(COMMITS | OTHERS, max_size=30), st.integers(1, 30))
def test_each_group_has_its_entries_in_the_order_of_the_log(entries: list[tuple[Any, ...]], piece: int):
    rows = [row(at, entry) for at, entry in enumerate(entries)]
    pieces = [pa.RecordBatch.from_pylist(rows[at : at + piece], tables.ENTRIES) for at in range(0, len(rows), piece)]
    found = list(chunks(pa.Table.from_batches(pieces, tables.ENTRIES), 5))

    assert [chunk.group for chunk in found] == list(dict.fromkeys(entry[0] for entry in entries))
    for chunk in found:
        assert chunk.now_ms == 5
        own = [r for r in rows if r["group"] == chunk.group]
        assert chunk.entries == [
            Entry(Place(7, r["log_offset"], r["timestamp_ms"], r["leader_epoch"]), r["key"], r["value"])
            for r in own
            if r["topic"] is None
        ]
        commits = chunk.commits
        columns = (commits.partition, commits.log_offset, commits.timestamp_ms, commits.offset, commits.commit_ms)
        assert [
            (*commits.names[place], *others)
            for place, *others in zip(*(column.tolist() for column in (*columns, commits.how)), strict=True)
        ] == [
            (r["topic"], r["partition"], r["log_offset"], r["timestamp_ms"], r["offset"], r["commit_ms"], how)
            for r in own
            if r["topic"] is not None
            for how in [HOW[r["is_transactional"]]]
        ]


def test_entries_of_an_earlier_version_are_read_from_parquet(tmp_path):
    """They lack the column that says how each was committed."""
    rows = [row(0, ("a", "t", 0, 5, True)), row(1, ("a", b"v"))]
    whole = pa.Table.from_pylist(rows, tables.ENTRIES)
    pq.write_table(whole.drop_columns(["is_transactional"]), tmp_path / "entries.parquet")
    (chunk,) = chunks(pq.read_table(tmp_path / "entries.parquet"), None)
    assert (chunk.commits.offset.tolist(), chunk.commits.how.tolist()) == ([5], [How.UNKNOWN])
    assert [entry.value for entry in chunk.entries] == [b"v"]


def test_without_entries_there_are_no_chunks():
    assert list(chunks(tables.ENTRIES.empty_table(), None)) == []


def test_a_record_batch_does_as_well():
    batch = pa.RecordBatch.from_pylist([row(0, ("a", None))], tables.ENTRIES)
    assert [chunk.group for chunk in chunks(batch, None)] == ["a"]
