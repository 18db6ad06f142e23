"""Packing compared with the protocol's reader: both yield the same records at the same positions."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.arrow import arrow_schema
from muster.arrow.engine import Engine, packing_kernel_for
from muster.arrow.packing import ANYWHERE, RecordColumns, pack, place
from muster.client.core.produce.partitioner import partition_for_key
from muster.protocol.records.compression import Compression
from muster.protocol.records.record_batch import BatchBuilder, check_batch, read_header, read_tuples
from tests.support.scale import examples

ENGINES = [Engine.PYTHON, Engine.NUMBA]
HEADERS = arrow_schema(["headers"]).field(0).type


def kernel_of(engine):
    return packing_kernel_for(engine, 1)


def rows_of(keys, values, headers=None, kind=None):
    kind = kind or pa.binary()
    pairs = None if headers is None else pa.array([row and [dict(pair) for pair in row] for row in headers], HEADERS)
    return RecordColumns(None if keys is None else pa.array(keys, kind), pa.array(values, kind), pairs)


def packed(rows, places, engine, batch_bytes=1 << 20, **how):
    """Each batch as it is sent: its position, its bytes, its records."""
    found = []
    for partition, builder in pack(rows, np.array(places, np.int32), 1_700_000_000_000, batch_bytes, kernel_of(engine)):
        data = bytes(builder.build(**how))
        assert len(data) == builder.size or how
        check_batch(data, 0, read_header(data))
        found.append((partition, data, read_tuples(data)))
    return found


contents = st.none() | st.binary(max_size=200)
pairs = st.lists(st.fixed_dictionaries({"key": st.text(max_size=5), "value": contents}), max_size=3)


@st.composite
def tables(draw):
    count = draw(st.integers(0, 200))
    some = st.lists(contents, min_size=count, max_size=count)
    keys = draw(st.none() | some)
    headers = draw(st.none() | st.lists(st.none() | pairs, min_size=count, max_size=count))
    places = draw(st.lists(st.integers(-1, 3), min_size=count, max_size=count))
    return keys, draw(some), headers, places


@settings(deadline=None, max_examples=examples(60))
@given(tables(), st.sampled_from([100, 1_000, 10_000]), st.integers(0, 5))
def test_both_ways_pack_what_the_protocol_reads(table, batch_bytes, cut_off):
    keys, values, headers, places = table
    rows = rows_of(keys, values, headers)
    sliced: list[Any] = [
        None if column is None else column.slice(cut_off) for column in rows
    ]  # not at the start of their buffers
    cut = RecordColumns(*sliced)
    places, count = places[cut_off:], len(places)
    expected: dict[int, list[Any]] = {}
    for row, partition in enumerate(places, cut_off):
        pairs = [(pair["key"], pair["value"]) for pair in (headers and headers[row]) or ()]
        expected.setdefault(partition, []).append((keys and keys[row], values[row], pairs))
    for engine in ENGINES:
        found: dict[int, list[Any]] = {}
        for partition, data, records in packed(cut, places, engine, batch_bytes):
            assert [record[0] for record in records] == list(range(len(records)))
            assert len(data) <= batch_bytes or len(records) == 1
            found.setdefault(partition, []).extend((key, value, list(pairs)) for _, _, key, value, pairs in records)
        assert found == expected, (engine, count)


@pytest.mark.parametrize("engine", ENGINES)
def test_more_records_than_two_bytes_of_offset_hold(engine):
    rows = rows_of(None, [b"%d" % number for number in range(9_000)])
    [(partition, data, records)] = packed(rows, [7] * 9_000, engine, compression=Compression.LZ4)
    assert (partition, read_header(data).record_count, read_header(data).last_offset_delta) == (7, 9_000, 8_999)
    assert [record[3] for record in records] == [b"%d" % number for number in range(9_000)]
    assert {record[1] for record in records} == {1_700_000_000_000}


@pytest.mark.parametrize("engine", ENGINES)
def test_a_record_that_is_larger_than_a_batch_goes_alone(engine):
    sizes = [10, 5_000, 10, 10]
    rows = rows_of(None, [bytes(size) for size in sizes])
    found = [[len(record[3]) for record in records] for _, _, records in packed(rows, [0] * 4, engine, 1_000)]
    assert found == [[10], [5_000], [10, 10]]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", [pa.string(), pa.binary(), pa.large_string(), pa.large_binary()])
def test_text_and_bytes_of_every_length(engine, kind):
    text = ["ä", "b", None, ""]
    given = [content if content is None or "string" in str(kind) else content.encode() for content in text]
    [(_, _, records)] = packed(rows_of(given, given[::-1], kind=kind), [0] * 4, engine)
    expected = [content if content is None else content.encode() for content in text]
    assert [(key, value) for _, _, key, value, _ in records] == list(zip(expected, expected[::-1], strict=True))


@pytest.mark.parametrize("engine", ENGINES)
def test_no_rows_are_no_batches(engine):
    rows = rows_of([], [], [])
    assert packed(rows, [], engine) == []
    assert list(place(rows, None, 3, partition_for_key, kernel_of(engine))) == []


@pytest.mark.parametrize("engine", ENGINES)
def test_places_are_those_that_are_named_then_those_of_keys(engine):
    chance = random.Random(7)
    keys = [None if number % 5 == 0 else chance.randbytes(number % 23) for number in range(400)]
    named = [number % 9 if number % 7 == 0 else None for number in range(400)]
    rows = rows_of(keys, [b""] * 400)
    found = place(rows, pa.array(named, pa.int32()), 12, partition_for_key, kernel_of(engine))
    expected = [
        there if there is not None else ANYWHERE if key is None else partition_for_key(key, 12)
        for key, there in zip(keys, named, strict=True)
    ]
    assert found.tolist() == expected
    assert place(rows._replace(key=None), None, 12, partition_for_key, kernel_of(engine)).tolist() == [ANYWHERE] * 400


@pytest.mark.parametrize("engine", ENGINES)
def test_a_place_that_no_topic_has_is_reported_as_it_is(engine):
    rows = rows_of(None, [b"a", b"b"])
    assert [partition for partition, _, _ in packed(rows, [2**31 - 1, 0], engine)] == [0, 2**31 - 1]


def test_packed_records_are_the_first_of_their_batch():
    builder = BatchBuilder()
    builder.append(0, None, b"")
    with pytest.raises(ValueError, match="first of their batch"):
        builder.append_packed(0, memoryview(b"1234567"), 1)


def test_the_kernel_fills_a_batch_to_its_last_byte():
    engine = Engine.NUMBA
    rows = rows_of(None, [b"x" * 20] * 200)
    [(_, whole, _)] = packed(rows_of(None, [b"x" * 20] * 100), [0] * 100, Engine.PYTHON)
    assert [len(records) for _, _, records in packed(rows, [0] * 200, engine, len(whole))] == [100, 100]
    assert [len(records) for _, _, records in packed(rows, [0] * 200, engine, len(whole) - 1)] == [99, 99, 2]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_batch_after_a_long_one_has_no_holes(engine):
    values = [b"%d" % number for number in range(300)]
    found = packed(rows_of(None, values), [number // 100 for number in range(300)], engine)
    assert [[record[3] for record in records] for _, _, records in found] == [
        values[:100],
        values[100:200],
        values[200:],
    ]


@pytest.mark.parametrize("engine", ENGINES)
def test_entries_of_a_null_list_are_not_headers(engine):
    names = pa.array([{"key": name, "value": b"v"} for name in "abc"], HEADERS.value_type)
    headers: Any = pa.ListArray.from_arrays(
        pa.array([0, 1, 2, 3], pa.int32()), names, type=HEADERS, mask=pa.array([False, True, False])
    )
    [(_, _, records)] = packed(RecordColumns(None, pa.array([b"1", b"2", b"3"]), headers), [0] * 3, engine)
    assert [list(record[4]) for record in records] == [[("a", b"v")], [], [("c", b"v")]]
