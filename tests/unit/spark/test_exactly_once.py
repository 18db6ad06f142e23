"""The rules of the sink that writes each row once: markers, what they are compared with, what is refused."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.history.sink_groups import SINK_METADATA
from muster.model import OffsetAndMetadata
from muster.spark.exactly_once import (
    BATCH_ID,
    QUERY_ID,
    Attempt,
    Content,
    SinkError,
    SinkMarker,
    attempt,
    check_tasks,
    read_marker,
    task_name,
    task_number,
)

NOW = Attempt("orders", "q", 7, 2)
SOME = Content(3, 0xFFFF_FFFF_0000_0001)

ROWS = st.lists(st.tuples(st.none() | st.binary(max_size=4), st.none() | st.binary(max_size=4)), max_size=12)


def table(rows):
    keys, values = ([row[at] for row in rows] for at in (0, 1))
    return pa.table({"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())})


@given(ROWS, st.randoms(use_true_random=False), st.integers(0, 12))
def test_the_content_is_that_of_the_rows_in_whatever_order_and_pieces(rows, chance, cut):
    whole = Content().plus(table(rows))
    chance.shuffle(rows)
    assert Content().plus(table(rows[:cut])).plus(table(rows[cut:])) == whole
    assert whole.rows == len(rows)


@given(ROWS.filter(len), st.data())
def test_another_row_is_another_content(rows, data):
    at = data.draw(st.integers(0, len(rows) - 1))
    other = [*rows[:at], (rows[at][0], (rows[at][1] or b"") + b"!"), *rows[at + 1 :]]
    assert Content().plus(table(other)) != Content().plus(table(rows))
    assert Content().plus(table([*rows, rows[at]])) != Content().plus(table(rows))


def test_text_counts_as_its_bytes_and_a_value_alone_will_do():
    text = pa.table({"value": pa.array(["ä", None, "b"]), "topic": pa.array(["x", "y", "z"])})
    assert Content().plus(text) == Content().plus(pa.table({"value": pa.array(["ä".encode(), None, b"b"])}))
    swapped = Content().plus(table([(b"a", b"b"), (b"c", b"d")]))
    assert swapped != Content().plus(table([(b"a", b"d"), (b"c", b"b")])), "which key has which value counts"


def test_a_marker_is_an_offset_that_says_whose_it_is():
    committed = NOW.marker(SOME).commit()
    assert committed == OffsetAndMetadata(8, metadata="muster-sink:q:3:ffffffff00000001")
    assert committed.metadata.startswith(SINK_METADATA)
    assert read_marker("orders-2", committed) == SinkMarker("q", 7, SOME)
    assert read_marker("orders-2", None) is None
    for strange in ("", "spark:q/3", "muster-sink:q:3", "muster-sink:q:x:1", "another:q:3:1"):
        with pytest.raises(SinkError, match=r"^group orders-2 has an offset that this sink did not commit"):
            read_marker("orders-2", OffsetAndMetadata(8, metadata=strange))


@pytest.mark.parametrize(
    ("marker", "outcome"),
    [
        (None, False),
        (SinkMarker("q", 6, SOME), False),
        (SinkMarker("q", 2, SOME), False),
        (SinkMarker("q", 7, SOME), True),
        (SinkMarker("q", 8, SOME), "task 2 of batch 7 comes after batch 8 was written: the checkpoint is older"),
        (SinkMarker("other", 7, SOME), "orders-2 was used by query other, and this is query q"),
        (SinkMarker("other", 6, SOME), "orders-2 was used by query other, and this is query q"),
    ],
)
def test_what_a_task_does_with_the_marker_that_it_finds(marker, outcome):
    if isinstance(outcome, str):
        with pytest.raises(SinkError, match=f"^{outcome}"):
            NOW.is_written(marker)
    else:
        assert NOW.is_written(marker) is outcome


def test_a_task_that_runs_again_must_have_the_same_rows():
    NOW.check_same(NOW.marker(SOME), SOME)
    with pytest.raises(
        SinkError, match=r"^task 2 of batch 7 was written with 3 rows, and runs again with 5: rows would"
    ):
        NOW.check_same(NOW.marker(SOME), Content(5, SOME.checksum))
    with pytest.raises(SinkError, match="was written with 3 rows, and runs again with 3 other rows: rows would"):
        NOW.check_same(NOW.marker(SOME), Content(3, 5))


def test_tasks_that_a_batch_no_longer_has():
    one = Attempt("orders", "q", 7, 0)
    here, before, another = SinkMarker("q", 7, SOME), SinkMarker("q", 6, SOME), SinkMarker("other", 7, SOME)
    check_tasks(one, {0, 1}, {1: here, 2: before, 3: another, 4: SinkMarker("q", 7, Content())})
    with pytest.raises(SinkError, match=r"^batch 7 was written in part by task 2, and runs again with 2 tasks"):
        check_tasks(one, {0, 1}, {3: here, 2: here})


def test_names_of_tasks():
    assert [task_name("orders", 0), NOW.name] == ["orders-0", "orders-2"]
    assert [task_number("orders", name) for name in ("orders-0", "orders-12")] == [0, 12]
    others = ("a-orders-1", "a-1", "orders", "orders-", "orders-x", "orders-1-2", "orders1")
    assert {task_number("orders", name) for name in others} == {None}


def test_which_task_it_is():
    assert attempt("orders", 2, {BATCH_ID: "7", QUERY_ID: "q"}) == NOW
    for properties in ({}, {BATCH_ID: None, QUERY_ID: None}, {QUERY_ID: "q"}):
        with pytest.raises(SinkError, match=r"^exactlyOnce needs a streaming query"):
            attempt("orders", 2, properties)
