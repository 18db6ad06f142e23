"""How Arrow's JSON reader reads the types of Spark: as what it is told to read them, and what is made of that then.

Each type is one of which Arrow's reader takes no text that `from_json` reads otherwise, but for what is checked here.
What is not certain raises ArrowInvalid: such a document is read by itself (`json_rows.py`). Maps are not among them:
Arrow's reader knows no map.
"""

from __future__ import annotations

import binascii
from importlib import import_module
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_type

from muster.spark.json_rows import BASE64, DoesNotFit, NoJson, binary_of

pc: Any = import_module("pyarrow.compute")  # its stubs know less than it takes

_DIGITS = 38
"""Of a decimal in Arrow, and in Spark."""

_MORE_DIGITS = 10
"""So many digits more than the column's are read behind the point, to be rounded."""

_AS_THEY_ARE = t.StringType | t.ShortType | t.IntegerType | t.LongType | t.FloatType | t.DoubleType | t.BooleanType
_AS_TEXT = t.DateType | t.TimestampType | t.TimestampNTZType | t.BinaryType
_LOWEST_BYTE, _HIGHEST_BYTE = -128, 255

_DATE = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$"
_TIME = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?"


def is_quick(kind: t.DataType) -> bool:
    """Whether Arrow's reader can read a type as `from_json` does."""
    if isinstance(kind, t.StructType):
        return all(is_quick(field.dataType) for field in kind)
    if isinstance(kind, t.ArrayType):
        return is_quick(kind.elementType)
    return isinstance(kind, _AS_THEY_ARE | _AS_TEXT | t.ByteType | t.DecimalType)


def read_as(kind: t.DataType) -> Any:
    """What Arrow's reader is to be told of a type."""
    if isinstance(kind, t.StructType):
        return pa.struct([pa.field(field.name, read_as(field.dataType)) for field in kind])
    if isinstance(kind, t.ArrayType):
        return pa.list_(pa.field("element", read_as(kind.elementType)))
    if isinstance(kind, t.ByteType):
        return pa.int16()
    if isinstance(kind, t.DecimalType):
        # Of 38 digits that are given so many more behind the point 128 bits would flow over, and Arrow not notice it.
        return pa.decimal256(_DIGITS, min(_DIGITS - kind.precision, _MORE_DIGITS) + kind.scale)
    return pa.string() if isinstance(kind, _AS_TEXT) else to_arrow_type(kind)


def made_of(column: Any, kind: t.DataType, wanted: Any, zone: str) -> Any:
    """The column that Spark expects (its Arrow type is `wanted`) of what Arrow's reader has read.

    Raises:
        ArrowInvalid: at least one value has to be looked at by itself.
    """
    if isinstance(kind, t.StructType):
        fields = zip(kind, wanted, strict=True)
        parts = [made_of(column.field(at), mine.dataType, f.type, zone) for at, (mine, f) in enumerate(fields)]
        return pa.StructArray.from_arrays(parts, fields=list(wanted), mask=_nulls(column))
    if isinstance(kind, t.ArrayType):
        values = made_of(column.values, kind.elementType, wanted.value_type, zone)
        return pa.ListArray.from_arrays(column.offsets, values, type=wanted, mask=_nulls(column))
    if isinstance(kind, t.DoubleType | t.FloatType):
        _check_zeros(column)
    elif isinstance(kind, t.ByteType):
        return _bytes(column)
    elif isinstance(kind, t.DecimalType):
        return pc.round(column, ndigits=kind.scale, round_mode="half_towards_infinity").cast(wanted)
    elif isinstance(kind, t.DateType):
        _check(column, _DATE)
    elif isinstance(kind, t.TimestampType):
        return _timestamps(column, zone)
    elif isinstance(kind, t.TimestampNTZType):
        _check(column, f"{_TIME}$")
    elif isinstance(kind, t.BinaryType):
        return _binaries(column)
    return column if column.type == wanted else column.cast(wanted)


def _nulls(column: Any) -> Any:
    return column.is_null() if column.null_count else None


def _mask(column: Any) -> Any:
    return column.is_null().to_numpy(zero_copy_only=False) if column.null_count else None


def _bytes(numbers: Any) -> Any:
    """Jackson takes 128 to 255 for bytes as well, which are negative then."""
    span = pc.min_max(numbers).as_py()
    if span["min"] is not None and not _LOWEST_BYTE <= span["min"] <= span["max"] <= _HIGHEST_BYTE:
        raise pa.ArrowInvalid("a number is no byte")
    return numbers.cast(pa.int8(), safe=False)


def _check_zeros(numbers: Any) -> None:
    """Spark reads -0 as 0.0, and -0.0 as -0.0, which look alike here."""
    values = numbers.drop_null().to_numpy()
    if (np.signbit(values) & (values == 0)).any():
        raise pa.ArrowInvalid("a number is -0 or -0.0")


def _binaries(texts: Any) -> Any:
    decode: Any = binascii.a2b_base64 if _all_match(texts, BASE64) else binary_of
    try:
        found = list(map(decode, texts.fill_null("").to_pylist()))
    except (DoesNotFit, NoJson):
        raise pa.ArrowInvalid("a text is no base64") from None
    return pa.array(found, pa.binary(), mask=_mask(texts))


def _timestamps(texts: Any, zone: str) -> Any:
    if _all_match(texts, rf"{_TIME}Z$"):
        return texts.cast(pa.timestamp("us", "UTC"))
    _check(texts, rf"{_TIME}$")
    local = texts.cast(pa.timestamp("us"))
    if zone != "UTC":
        # A time that clocks skip or show twice raises: it is read alone, in Java's way.
        local = pc.assume_timezone(local, zone).cast(pa.timestamp("us", "UTC"))
    return local.cast(pa.timestamp("us", "UTC"))


def _check(texts: Any, pattern: str) -> None:
    if not _all_match(texts, pattern):
        raise pa.ArrowInvalid("a text is of another form")


def _all_match(texts: Any, pattern: str) -> bool:
    """Whether all texts that are not null have a form."""
    return pc.all(pc.match_substring_regex(texts, pattern)).as_py() is not False
