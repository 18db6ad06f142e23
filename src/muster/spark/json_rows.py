"""JSON documents one by one, read as Spark's `from_json` reads them: what the quick way (`documents.py`) cannot take.

Plain JSON is taken apart by Python's own scanner, which is written in C; what that refuses, or reads otherwise than
Spark, is read by `_Reader`.

Spark reads with Jackson. Beyond the standard that allows strings in single quotes, the numbers NaN, Infinity,
-Infinity, +Infinity, -INF and +INF, and anything behind the document's end. A field that does not fit its type is
null, and the document is bad, but its other fields are kept; where the text is no JSON, all fields are null. A bad
element takes the whole array or map along, unless it is a struct, of which only the bad field is null.
`tests/support/from_json_cases.py` is a table that was made with `from_json` itself.
"""

from __future__ import annotations

import binascii
import json
import math
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql import types as t

from muster.spark.json_times import date_of, local_timestamp_of, timestamp_of

_SPACE = re.compile(r"[ \t\r\n]*")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_ODD = re.compile(r"NaN|[+-]?Infinity|[+-]INF")
_PLAIN = {'"': re.compile(r'[^"\\\x00-\x1f]*'), "'": re.compile(r"[^'\\\x00-\x1f]*")}
_ESCAPES = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_HEX = re.compile(r"[0-9a-fA-F]{4}")
_WORDS = {"true": True, "false": False, "null": None}
_BEHIND_NUMBER = re.compile(r"[ \t\r\n,\]}]|\Z")
_DECIMAL = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?\Z")
_WHOLE = re.compile(r"[+-]?\d{1,1000}\Z")
_ODD_TEXTS = {"NaN", "Infinity", "+Infinity", "-Infinity", "+INF", "-INF"}
_SURROGATES = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]")
_WIDE = Context(prec=100)
_MOST_DIGITS, _DEEPEST, _LONGEST_NAME = 1_000, 1_000, 50_000
"""Jackson's limits: a document beyond one of them is no JSON."""
_FRAMES = 4 * _DEEPEST
"""More than what reading and writing such a document takes of Python's stack."""
_FOUR = "[A-Za-z0-9+/]{4}|[A-Za-z0-9+/]{3}=|[A-Za-z0-9+/]{2}=="
BASE64 = rf"^(?:[A-Za-z0-9+/]{{4}})*(?:{_FOUR})?$"
"""Any regular one, padded at its end."""

_ODD_BASE64 = re.compile(rf"(?:[\x00-\x20]*(?:{_FOUR}))*[\x00-\x20]*\Z")
_TOO_FAR = re.compile(rf"(?:[\x00-\x20]*(?:{_FOUR}))*[\x00-\x20]*[A-Za-z0-9+/](?:[A-Za-z0-9+/]=)?\Z")
_HALF_PAIRS = re.compile(r"\\u[dD][89a-fA-F]")

MOST_BRACKETS = 500
"""A scanner goes one call deeper for each bracket: a document with more is read by `_Reader`, which knows its end."""


class NoJson(ValueError):  # noqa: N818 - it is no error of the program
    """The text is no JSON object."""


class DoesNotFit(ValueError):  # noqa: N818
    """A value does not fit its type."""


class Number(NamedTuple):
    """A number as it is written."""

    text: str
    whole: bool


class Pairs(list[tuple[str, Any]]):
    """An object: names and values, as often as they are there."""


class Partial(NamedTuple):
    """What could be made of a value, of which a part does not fit."""

    value: Any


def text_of(raw: bytes) -> str:
    """The text of a value, as Spark casts it: what is no UTF-8 is replaced."""
    if b"\xed" in raw:
        raw = _SURROGATES.sub("\ufffd".encode(), raw)
    return raw.decode("utf-8", "replace")


# --- reading ----------------------------------------------------------------------------------------------------------


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0

    def document(self) -> Pairs:
        self._skip()
        if self._peek() != "{":
            raise NoJson("it does not begin with {")
        return self._object()

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _skip(self) -> None:
        found = _SPACE.match(self._text, self._at)
        assert found is not None
        self._at = found.end()

    def _take(self, wanted: str) -> None:
        self._skip()
        if self._peek() not in tuple(wanted):
            raise NoJson(f"{wanted} was expected at {self._at}")
        self._at += 1

    def _value(self) -> Any:
        self._skip()
        first = self._peek()
        if first in ("{", "["):
            return self._nested(self._object if first == "{" else self._array)
        if first in ('"', "'"):
            return self._string()
        for word, value in _WORDS.items():
            if self._text.startswith(word, self._at):
                self._at += len(word)
                self._check_end()
                return value
        return self._number()

    def _nested(self, read: Callable[[], Any]) -> Any:
        self._depth += 1
        if self._depth >= _DEEPEST:
            raise NoJson(f"more than {_DEEPEST} brackets are open at {self._at}")
        found = read()
        self._depth -= 1
        return found

    def _check_end(self) -> None:
        if not _BEHIND_NUMBER.match(self._text, self._at):
            raise NoJson(f"a value is followed by something else at {self._at}")

    def _number(self) -> Number:
        found = _NUMBER.match(self._text, self._at)
        if found is None:
            found = _ODD.match(self._text, self._at)
            if found is None:
                raise NoJson(f"no value at {self._at}")
            whole = False
        else:
            whole = found[1] is None and found[2] is None
        self._at = found.end()
        if len(found[0]) > _MOST_DIGITS and sum(map(str.isdigit, found[0])) > _MOST_DIGITS:
            raise NoJson(f"a number of more than {_MOST_DIGITS} digits ends at {self._at}")
        self._check_end()
        return Number(found[0], whole)

    def _object(self) -> Pairs:
        self._at += 1
        found = Pairs()
        self._skip()
        if self._peek() == "}":
            self._at += 1
            return found
        while True:
            self._skip()
            if self._peek() not in ('"', "'"):
                raise NoJson(f"a name was expected at {self._at}")
            name = self._string()
            if len(name) > _LONGEST_NAME:
                raise NoJson(f"a name of {len(name)} characters ends at {self._at}")
            self._take(":")
            found.append((name, self._value()))
            self._take(",}")
            if self._text[self._at - 1] == "}":
                return found

    def _array(self) -> list[Any]:
        self._at += 1
        found: list[Any] = []
        self._skip()
        if self._peek() == "]":
            self._at += 1
            return found
        while True:
            found.append(self._value())
            self._take(",]")
            if self._text[self._at - 1] == "]":
                return found

    def _string(self) -> str:
        quote = self._peek()
        self._at += 1
        parts: list[str] = []
        while True:
            plain = _PLAIN[quote].match(self._text, self._at)
            assert plain is not None
            parts.append(plain[0])
            self._at = plain.end()
            if self._peek() == quote:
                self._at += 1
                return _joined(parts)
            if self._peek() != "\\":
                raise NoJson(f"a string does not end at {self._at}")
            parts.append(self._escape())

    def _escape(self) -> str:
        letter = self._text[self._at + 1 : self._at + 2]
        self._at += 2
        if letter in _ESCAPES:
            return _ESCAPES[letter]
        code = _HEX.match(self._text, self._at) if letter == "u" else None
        if code is None:
            raise NoJson(f"no escape at {self._at}")
        self._at += 4
        return chr(int(code[0], 16))


def _joined(parts: list[str]) -> str:
    """Text whose surrogates are paired; half a pair becomes a question mark, as in Java."""
    text = "".join(parts)
    if len(parts) == 1:
        return text
    return (
        text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").replace("\ufffd", "?")
        if any("\ud800" <= letter <= "\udfff" for letter in text)
        else text
    )


def _whole_number(text: str) -> Number:
    if len(text) > _MOST_DIGITS:
        raise ValueError(text)
    return tuple.__new__(Number, (text, True))  # what the class does, but in Python


def _other_number(text: str) -> Number:
    if len(text) > _MOST_DIGITS:
        raise ValueError(text)
    return tuple.__new__(Number, (text, False))


def _refuse(text: str) -> Any:
    raise ValueError(text)  # NaN and Infinity, of which Spark knows more forms


_scan: Any = json.JSONDecoder(
    object_pairs_hook=Pairs, parse_int=_whole_number, parse_float=_other_number, parse_constant=_refuse
).scan_once  # type: ignore[attr-defined]


def parse(text: str) -> Pairs:
    """Take a document apart.

    Raises:
        NoJson: it is no object, or no JSON.
        RecursionError: Python's stack is too small for it.
    """
    start = _SPACE.match(text)
    assert start is not None
    # Half a surrogate pair would stay one.
    plain = text.startswith("{", start.end()) and not ("\\u" in text and _HALF_PAIRS.search(text))
    plain = plain and len(text) <= _LONGEST_NAME
    if plain and (len(text) < MOST_BRACKETS or text.count("{") + text.count("[") < MOST_BRACKETS):
        try:
            found, _ = _scan(text, start.end())
        except (ValueError, StopIteration, RecursionError):
            pass
        else:
            assert isinstance(found, Pairs)
            return found
    return _Reader(text).document()


# --- to types ---------------------------------------------------------------------------------------------------------

Convert = Callable[[Any], Any]
"""Makes a value for Arrow of a parsed one that is not null. Raises DoesNotFit; a Partial is one that fits partly."""


class Rows:
    """Reads documents as rows of a schema."""

    def __init__(self, schema: t.StructType, zone: str) -> None:
        self._convert = _struct(schema, zone)
        self.empty: dict[str, Any] = dict.fromkeys(schema.names)
        """The row of what is no document."""

    def read(self, text: str | None) -> tuple[dict[str, Any], bool]:
        """The row of a document, and whether all of it fits. A value that is null or blank is a row of nulls."""
        if text is None or not text.strip(" \t\r\n"):
            return self.empty, True
        try:
            try:
                found = self._convert(parse(text))
            except RecursionError:
                with _more_frames():
                    found = self._convert(parse(text))
        except NoJson:
            return self.empty, False
        return (found.value, False) if isinstance(found, Partial) else (found, True)


@contextmanager
def _more_frames() -> Iterator[None]:
    """Let Python follow a document as deep as Jackson does."""
    usual = sys.getrecursionlimit()
    sys.setrecursionlimit(usual + _FRAMES)
    try:
        yield
    finally:
        sys.setrecursionlimit(usual)


def _struct(schema: t.StructType, zone: str) -> Convert:
    fields = {field.name: _converter(field.dataType, zone) for field in schema}

    def convert(value: Any) -> Any:
        if not isinstance(value, Pairs):
            raise DoesNotFit(value)
        row: dict[str, Any] = dict.fromkeys(fields)
        fits = True
        for name, inner in value:
            if name not in fields:
                continue
            try:
                made = None if inner is None else fields[name](inner)
            except DoesNotFit:
                fits = False
                continue
            if isinstance(made, Partial):
                fits, made = False, made.value
            row[name] = made
        return row if fits else Partial(row)

    return convert


def _array(kind: t.ArrayType, zone: str) -> Convert:
    element = _converter(kind.elementType, zone)

    def convert(value: Any) -> Any:
        if not isinstance(value, list) or isinstance(value, Pairs):
            raise DoesNotFit(value)
        made = [None if inner is None else element(inner) for inner in value]
        return _whole(made, [each.value if isinstance(each, Partial) else each for each in made])

    return convert


def _map(kind: t.MapType, zone: str) -> Convert:
    element = _converter(kind.valueType, zone)

    def convert(value: Any) -> Any:
        if not isinstance(value, Pairs):
            raise DoesNotFit(value)
        made = [None if inner is None else element(inner) for _, inner in value]
        pairs = [
            (name, each.value if isinstance(each, Partial) else each)
            for (name, _), each in zip(value, made, strict=True)
        ]
        return _whole(made, pairs)

    return convert


def _whole(made: list[Any], value: Any) -> Any:
    return Partial(value) if any(isinstance(each, Partial) for each in made) else value


def _converter(kind: t.DataType, zone: str) -> Convert:
    if isinstance(kind, t.StructType):
        return _struct(kind, zone)
    if isinstance(kind, t.ArrayType):
        return _array(kind, zone)
    if isinstance(kind, t.MapType):
        return _map(kind, zone)
    if isinstance(kind, t.DecimalType):
        return lambda value: _decimal(value, kind.precision, kind.scale)
    if isinstance(kind, t.TimestampType):
        return lambda value: _timestamp(value, zone)
    return _SIMPLE[type(kind)]


def _integer(low: int, high: int) -> Convert:
    def convert(value: Any) -> int:
        if not isinstance(value, Number) or not value.whole:
            raise DoesNotFit(value)
        number = int(value.text)
        if not low <= number <= high:
            raise DoesNotFit(value)
        return number

    return convert


def _byte(value: Any) -> int:
    number: int = _integer(-128, 255)(value)  # as Jackson has it
    return number - 256 if number > 127 else number


def _float(value: Any) -> float:
    if isinstance(value, Number):
        return float(int(value.text)) if value.whole and len(value.text) < 300 else _any_float(value.text)
    if isinstance(value, str) and value in _ODD_TEXTS:
        return _any_float(value)
    raise DoesNotFit(value)


def _single(value: Any) -> float:
    """As Java reads a float: rounded once, where a double made a float would be rounded twice."""
    found = _float(value)
    if not isinstance(value, Number) or not math.isfinite(found):
        return found
    single: float = pa.scalar(value.text).cast(pa.float32()).as_py()
    return 0.0 if value.whole and not single else single


def _any_float(text: str) -> float:
    return float(text.replace("INF", "Infinity"))


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise DoesNotFit(value)
    return value


def _decimal(value: Any, precision: int, scale: int) -> Decimal:
    if isinstance(value, Number):
        text = value.text
    elif isinstance(value, str):
        text = value.replace(",", "")
    else:
        raise DoesNotFit(value)
    if not _DECIMAL.match(text):
        raise DoesNotFit(value)
    try:
        found = Decimal(text).quantize(Decimal(1).scaleb(-scale), ROUND_HALF_UP, _WIDE)
    except InvalidOperation:
        raise DoesNotFit(value) from None
    if len(found.as_tuple().digits) > precision and found:
        raise DoesNotFit(value)
    return found


def _binary(value: Any) -> bytes:
    if not isinstance(value, str):
        raise DoesNotFit(value)
    return binary_of(value)


def binary_of(value: str) -> bytes:
    """What a text in base64 stands for.

    Raises:
        DoesNotFit: it is none.
        NoJson: it is none, and the whole document is lost.
    """
    if re.fullmatch(BASE64[1:-1], value):
        return binascii.a2b_base64(value)
    if _TOO_FAR.match(value):
        raise NoJson("Jackson looks for the rest of a base64 text behind its end, and loses the document")
    if not _ODD_BASE64.match(value):
        raise DoesNotFit(value)
    return b"".join(map(binascii.a2b_base64, re.findall(_FOUR, value)))  # padded within, or with spaces between


def _date(value: Any) -> int:
    found = date_of(value) if isinstance(value, str) else None
    if found is None and isinstance(value, str) and _WHOLE.match(value) and -(2**31) <= int(value) < 2**31:
        found = int(value)  # Spark's own files had days since 1970 once
    if found is None:
        raise DoesNotFit(value)
    return found


def _timestamp(value: Any, zone: str) -> int:
    if isinstance(value, Number) and value.whole and -(2**63) <= int(value.text) < 2**63:
        return (int(value.text) * 1_000_000 + 2**63) % 2**64 - 2**63  # in Java this flows over
    found = timestamp_of(value, zone) if isinstance(value, str) else None
    if found is None:
        raise DoesNotFit(value)
    return found


def _local_timestamp(value: Any) -> int:
    found = local_timestamp_of(value) if isinstance(value, str) else None
    if found is None:
        raise DoesNotFit(value)
    return found


# --- to text ----------------------------------------------------------------------------------------------------------


def _string(value: Any) -> str:
    return value if isinstance(value, str) else _written(value)


def _written(value: Any) -> str:
    """A value as Jackson writes it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, Number):
        return str(int(value.text)) if value.whole else java_double(_any_float(value.text))
    if isinstance(value, Pairs):
        return "{" + ",".join(f"{_quoted(name)}:{_written(inner)}" for name, inner in value) + "}"
    return "[" + ",".join(map(_written, value)) + "]"


_NAMES = {"\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t", '"': '\\"', "\\": "\\\\"}


def _quoted(text: str) -> str:
    return '"' + re.sub(r'["\\\x00-\x1f\U00010000-\U0010ffff]', lambda at: _escaped(at[0]), text) + '"'


def _escaped(letter: str) -> str:
    codes = letter.encode("utf-16-be").hex().upper()
    return _NAMES.get(letter) or "".join(f"\\u{codes[at : at + 4]}" for at in range(0, len(codes), 4))


def java_double(number: float) -> str:
    """A double as Java writes it; what is no number goes into quotes, as in JSON."""
    if math.isnan(number):
        return '"NaN"'
    if math.isinf(number):
        return '"Infinity"' if number > 0 else '"-Infinity"'
    sign, digits, exponent = Decimal(repr(number)).normalize().as_tuple()
    assert isinstance(exponent, int)
    text = "".join(map(str, digits))
    minus = "-" if sign else ""
    if not number:
        return f"{minus}0.0"
    point = len(text) + exponent
    if -3 < point <= 7:
        if point <= 0:
            return f"{minus}0.{'0' * -point}{text}"
        text = text.ljust(point, "0")
        return f"{minus}{text[:point]}.{text[point:] or '0'}"
    return f"{minus}{text[0]}.{text[1:] or '0'}E{point - 1}"


_SIMPLE: dict[type[t.DataType], Convert] = {
    t.ByteType: _byte,
    t.ShortType: _integer(-(2**15), 2**15 - 1),
    t.IntegerType: _integer(-(2**31), 2**31 - 1),
    t.LongType: _integer(-(2**63), 2**63 - 1),
    t.FloatType: _single,
    t.DoubleType: _float,
    t.BooleanType: _boolean,
    t.StringType: _string,
    t.BinaryType: _binary,
    t.DateType: _date,
    t.TimestampNTZType: _local_timestamp,
}


def supports(kind: t.DataType) -> bool:
    """Whether documents can be read as this type."""
    if isinstance(kind, t.StructType):
        return all(supports(field.dataType) for field in kind)
    if isinstance(kind, t.ArrayType):
        return supports(kind.elementType)
    if isinstance(kind, t.MapType):
        return isinstance(kind.keyType, t.StringType) and supports(kind.valueType)
    return isinstance(kind, t.DecimalType | t.TimestampType) or type(kind) in _SIMPLE
