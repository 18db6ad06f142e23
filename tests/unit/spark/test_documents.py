"""Documents as typed columns: what `from_json` made of odd ones, read at once, in pieces and one by one."""

from __future__ import annotations

import datetime
import json
import pickle

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import types as t

from muster.errors import ConfigError
from muster.spark import documents as rooms
from muster.spark.decoding import Decoding, Mode
from muster.spark.documents import BadRecordError, Documents
from muster.spark.json_columns import is_quick
from muster.spark.json_rows import java_double, text_of
from muster.spark.json_times import date_of, timestamp_of
from muster.spark.options import parse_options
from muster.spark.source import MusterDataSource
from tests.support.from_json_cases import CASES

INT, TEXT = t.IntegerType(), t.StringType()
FIELDS = {
    "a": INT,
    "l": t.LongType(),
    "d": t.DoubleType(),
    "f": t.FloatType(),
    "s": TEXT,
    "b": t.BooleanType(),
    "n": t.DecimalType(6, 2),
    "dt": t.DateType(),
    "ts": t.TimestampType(),
    "st": t.StructType([t.StructField("x", INT), t.StructField("y", TEXT)]),
    "ar": t.ArrayType(INT),
    "m": t.MapType(TEXT, INT),
    "sa": t.ArrayType(t.StructType([t.StructField("x", INT)])),
    "bi": t.BinaryType(),
    "sh": t.ShortType(),
    "by": t.ByteType(),
    "nt": t.TimestampNTZType(),
    "ne": t.StructType(
        [
            t.StructField("dt", t.DateType()),
            t.StructField("ts", t.TimestampType()),
            t.StructField("nt", t.TimestampNTZType()),
            t.StructField("n", t.DecimalType(20, 4)),
            t.StructField("f", t.FloatType()),
            t.StructField("by", t.ByteType()),
            t.StructField("bi", t.BinaryType()),
            t.StructField("ar", t.ArrayType(t.DateType())),
            t.StructField("nn", t.ArrayType(t.ArrayType(t.DecimalType(5, 2)))),
        ]
    ),
    "ms": t.MapType(TEXT, TEXT),
    "n2": t.DecimalType(38, 18),
}
CORRUPT = "_corrupt_record"
QUICK = [name for name, kind in FIELDS.items() if is_quick(kind)]


def schema(names, *more):
    fields = [t.StructField(name, FIELDS[name]) for name in names]
    return t.StructType([*fields, *more])


def documents(names=FIELDS, mode=Mode.PERMISSIVE, corrupt=True, zone="UTC", **given):
    more = [t.StructField(CORRUPT, TEXT)] if corrupt else []
    found = Documents(schema(names, *more), (), Decoding(mode, CORRUPT, zone), **given)
    found.check()
    return found


def batch(values):
    offsets = pa.array(range(100, 100 + len(values)), pa.int64())
    return pa.RecordBatch.from_arrays([pa.array(values, pa.binary()), offsets], names=["value", "offset"])


def as_text(name, value):
    """As Spark casts it."""
    if value is None:
        return None
    if name in ("ts", "nt"):
        text = (datetime.datetime(1970, 1, 1) + datetime.timedelta(microseconds=value)).isoformat(" ")  # noqa: DTZ001
        return text.rstrip("0").rstrip(".") if "." in text else text
    if name == "d":
        return java_double(value).strip('"')
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{', '.join(inner(each) for each in value)}]"
    return value.decode() if name == "bi" else str(value)


def inner(value):
    if isinstance(value, dict):
        return f"{{{', '.join('null' if each is None else str(each) for each in value.values())}}}"
    return "null" if value is None else str(value)


def shown(found):
    """Rows as Spark shows them; dates and floats in a way of their own."""
    rows: list[dict[str, object]] = [{} for _ in range(found.num_rows)]
    for name in found.schema.names:
        column = found.column(name)
        if name in ("ts", "nt"):
            column = column.cast(pa.int64())
        elif name == "dt":
            column = column.cast(pa.int32())
        try:
            values = column.to_pylist()
        except OverflowError:  # Python knows no time before the year 1, and none behind 9999
            values = column.cast(counted(column.type)).to_pylist()
        for row, value in zip(rows, values, strict=True):
            if value is not None:
                row[name] = to_show(name, value)
    return rows


def counted(kind):
    """The same type with numbers in place of times and dates."""
    if pa.types.is_timestamp(kind):
        return pa.int64()
    if pa.types.is_date(kind):
        return pa.int32()
    if pa.types.is_list(kind):
        return pa.list_(counted(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([(each.name, counted(each.type)) for each in kind])
    return kind


def to_show(name, value):
    if name == "st":
        return inner(value)
    if name == "m":
        return "{" + ", ".join(f"{key} -> {inner(each)}" for key, each in value) + "}"
    return value if name in ("dt", "f") else as_text(name, value)


def spark_says(names):
    """The table's documents, as far as they are about these columns."""
    others = [f'"{name}"'.encode() for name in FIELDS if name not in names]
    for document, expected in CASES:
        if document is None or not any(other in document for other in others):
            yield document, {name: to_compare(name, text) for name, text in (expected or {}).items()}


def to_compare(name, text):
    if name == "dt":
        return date_of(text)
    return pa.scalar(float(text), pa.float32()).as_py() if name == "f" and text != "NaN" else text


def same(found, expected):
    return all(
        str(mine) == str(theirs) for mine, theirs in zip(map(sorted_row, found), map(sorted_row, expected), strict=True)
    )


def sorted_row(row):
    return sorted((name, "NaN" if value != value else value) for name, value in row.items())


@pytest.mark.parametrize("names", [list(FIELDS), QUICK], ids=["all", "quick"])
@pytest.mark.parametrize("alone", [1, 16])
def test_odd_documents_are_read_as_spark_reads_them(names, alone, monkeypatch):
    """With 1, each document goes to Arrow's reader by itself too, if it may."""
    monkeypatch.setattr(rooms, "ALONE", alone)
    cases = list(spark_says(names))
    found = shown(documents(names).decode(batch([document for document, _ in cases]), "t-0"))
    for (document, expected), row in zip(cases, found, strict=True):
        assert same([row], [expected]), (document, row, expected)


def test_columns_are_in_their_order_whichever_way_they_were_read():
    good = [b'{"a":%d,"s":"x%d"}' % (number, number) for number in range(5_000)]
    values: list[bytes | None] = [b'{"a":"bad"}' if number % 611 == 5 else value for number, value in enumerate(good)]
    values[77], values[4_999] = None, b"\xff"
    found = documents(["a", "s"]).decode(batch(values), "t-0")
    rows = [(row["a"], row["s"]) for row in found.to_pylist()]
    assert rows == [
        (number, f"x{number}") if values[number] is good[number] else (None, None) for number in range(5_000)
    ]
    bad = [number for number, row in enumerate(found.to_pylist()) if row[CORRUPT] is not None]
    assert bad == [number for number, value in enumerate(values) if value is not None and value is not good[number]]


QUICKLY, SLOWLY = documents(), documents()
vars(SLOWLY)["_quick"] = ()

INNER = ["dt", "ts", "nt", "n", "f", "by", "bi", "ar", "nn"]

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**65), 2**65)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=4)
    | st.sampled_from(
        [1.005, 2.675, 99999.995, -0.0, 127, 128, 255, 256, -129, "1.005", "1,000", "+5", "1e2", "YWI=", "a"]
    )
    | st.sampled_from(["2024-02-29", "2024-02-29T10:11:12Z", "2024-02-29T10:11:12", "2024-02-30", "2024-2-9 1:2"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*"xyz", *INNER]), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.dictionaries(st.sampled_from([*FIELDS, *["ne"] * 9, "other"]), json_values, max_size=4), max_size=12),
    st.data(),
)
def test_the_quick_way_says_what_the_slow_one_says(objects, data):
    texts = [json.dumps(each, ensure_ascii=data.draw(st.booleans())).encode(errors="replace") for each in objects]
    quick, slow = QUICKLY, SLOWLY
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rooms, "ALONE", 1)
        assert same(shown(quick.decode(batch(texts), "t-0")), shown(slow.decode(batch(texts), "t-0")))


@pytest.mark.parametrize("number", [b"Inf", b"-Inf", b"-NaN"])
def test_what_only_arrows_reader_takes_for_a_number(number, monkeypatch):
    monkeypatch.setattr(rooms, "ALONE", 1)
    found = documents(["a", "d"]).decode(batch([b'{"a":1,"d":%s}' % number, b'{"a":2,"d":1}']), "t-0")
    assert [(row["a"], row["d"]) for row in found.to_pylist()] == [(None, None), (2, 1.0)]


def test_modes():
    values = [b'{"a":1}', b'{"a":"x"}', b'{"a":2}']
    dropped = documents(["a"], Mode.DROPMALFORMED, corrupt=False).decode(batch(values), "t-0")
    assert dropped.to_pydict() == {"a": [1, 2]}
    with pytest.raises(BadRecordError, match="value at offset 101 of t-0 does not fit"):
        documents(["a"], Mode.FAILFAST).decode(batch(values), "t-0")
    assert documents(["a"], Mode.FAILFAST).decode(batch([values[0], None, b" "]), "t-0").num_rows == 3
    assert documents(["a"], corrupt=False).decode(batch(values), "t-0").to_pydict() == {"a": [1, None, 2]}
    assert documents(["a"]).decode(batch([]), "t-0").num_rows == 0


def test_times_without_a_zone_are_those_of_the_zone():
    text = b'{"ts":"2024-07-01T10:11:12"}'
    summer = (
        documents(["ts"], zone="Europe/Berlin").decode(batch([text]), "t-0").column("ts").cast(pa.int64()).to_pylist()
    )
    assert summer == [timestamp_of("2024-07-01T08:11:12Z", "UTC")]
    # Clocks went from 2:00 to 3:00, and from 3:00 to 2:00.
    skipped, twice = b'{"ts":"2024-03-31T02:30:00"}', b'{"ts":"2024-10-27T02:30:00"}'
    found = documents(["ts"], zone="Europe/Berlin").decode(batch([skipped, twice]), "t-0").column("ts").cast(pa.int64())
    assert found.to_pylist() == [timestamp_of(at, "UTC") for at in ("2024-03-31T01:30:00Z", "2024-10-27T00:30:00Z")]


def test_a_document_of_many_brackets_hurts_no_task():
    deep = b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    wide = b'{"x":[' + b",".join([b"{}"] * 600) + b'],"a":3}'
    found = documents(["a"]).decode(batch([b'{"a":1}', deep, wide]), "t-0")
    assert found.column("a").to_pylist() == [1, None, 3]
    assert [text is not None for text in found.column(CORRUPT).to_pylist()] == [False, True, False]


def test_a_value_that_holds_two_documents_shifts_no_other():
    values = [b'{"a":1}{"a":2}', b"", b'{"a":3}', b'{"a":4} {"a":5}']
    assert documents(["a"]).decode(batch(values), "t-0").column("a").to_pylist() == [1, None, 3, 4]


BASE = {"kafka.bootstrap.servers": "a:1", "subscribe": "t", "decode": "json"}


def test_what_is_said_of_options_and_schemas():
    source = MusterDataSource(BASE | {"decode.schema": "a INT", "columns": "partition,key"})
    assert source.schema() == "`partition` int, `key` binary, a INT"
    with pytest.raises(ConfigError, match=r"say what the documents hold with schema\(…\), or with decode\.schema"):
        MusterDataSource(BASE).schema()
    with pytest.raises(ConfigError, match=r"decode\.mode is for decoded values"):
        parse_options({"bootstrap": "a:1", "subscribe": "t", "decode.mode": "FAILFAST"}, streaming=False)
    with pytest.raises(ConfigError, match="timeZone is 'Mars', which is no time zone"):
        parse_options(BASE | {"timeZone": "Mars"}, streaming=False)
    with pytest.raises(ConfigError, match="one of json"):
        parse_options(BASE | {"decode": "avro"}, streaming=False)
    wrong = t.StructType([t.StructField("partition", TEXT), t.StructField("a", INT)])
    with pytest.raises(ConfigError, match="with the types struct<partition:int>"):
        MusterDataSource(BASE | {"columns": "partition"}).reader(wrong)
    with pytest.raises(ConfigError, match="none can be NOT NULL"):
        MusterDataSource(BASE).reader(t.StructType([t.StructField("a", INT, False)]))
    with pytest.raises(ConfigError, match="cannot read a as map<int,int>"):
        MusterDataSource(BASE).reader(t.StructType([t.StructField("a", t.MapType(INT, INT))]))
    with pytest.raises(ConfigError, match="its type must be STRING"):
        MusterDataSource(BASE).reader(t.StructType([t.StructField("a", INT), t.StructField(CORRUPT, INT)]))
    reader = MusterDataSource(BASE | {"columns": "offset"}).reader(
        t.StructType([t.StructField("a", INT), t.StructField("offset", t.LongType())])
    )
    decoded = pickle.loads(pickle.dumps(reader))._documents.decode(batch([b'{"a":1}', b"{}"]), "t-0")
    assert decoded.to_pydict() == {"a": [1, None], "offset": [100, 101]}


def test_text_that_is_no_utf8():
    assert text_of(b"\xed\xa0\x80x\xff") == "\ufffdx\ufffd"


@pytest.mark.parametrize(
    ("text", "there"),
    [("1900-02-28", True), ("1900-02-29", False), ("2000-02-29", True), ("2023-02-29", False), ("2024-02-29", True)],
)
def test_leap_years(text, there):
    assert (date_of(text) is not None) is there


def test_offsets_of_time_zones_have_their_sign():
    noon = timestamp_of("2024-07-01T12:00:00Z", "UTC")
    for text in ("2024-07-01T07:30:00-04:30", "2024-07-01T16:30:00+04:30", "2024-07-01 07:30:00 UTC-4:30"):
        assert timestamp_of(text, "Asia/Tokyo") == noon
