"""`decode=json`: documents become typed columns in the task that fetches them, with the results of Spark's `from_json`.

Documents go to Arrow's JSON reader many at a time, as far as it is known to agree with `from_json`: objects of plain
UTF-8, and fields of every type but those with a map (`json_columns.py`), which are read one document after the other.
It fails at anything odd, a field of another type for example. Then the documents are halved until the odd ones are
alone, and those are read one by one (`json_rows.py`). So one bad document makes itself slow, not the others.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_schema

from muster.errors import ConfigError, MusterError
from muster.spark.decoding import Decoding, Mode
from muster.spark.json_columns import is_quick, made_of, read_as
from muster.spark.json_rows import MOST_BRACKETS, Rows, supports, text_of

pc: Any = import_module("pyarrow.compute")  # its stubs know less than it takes
arrow_json: Any = import_module("pyarrow.json")

CHUNK = 4_096
"""Documents that go to Arrow at once."""

ALONE = 16
"""So few documents are not halved any more."""

WARY_FOR = 8
"""After a chunk of which most documents had to be read one by one, so many chunks are not tried in another way."""


_HINTS = ("Inf", "-NaN")
_ODD_NUMBER = r"[:\[,][ \t\r\n]*(-?Inf[^i]|-NaN)"
"""What Arrow's reader takes for a number, and Spark does not. Where one of the hints is."""


class BadRecordError(MusterError):
    """A document does not fit the schema, and `decode.mode` is FAILFAST."""


@dataclass(frozen=True)
class Documents:
    """Makes the columns of a schema. `given` are those that come from Kafka, in the schema as well."""

    schema: t.StructType
    given: tuple[str, ...]
    decoding: Decoding

    def check(self) -> None:
        """Refuse a schema that cannot be had.

        Raises:
            ConfigError: a type is not supported, or a field may not be null.
        """
        if not self._own.fields:
            raise ConfigError("decode is json, and the schema has no field of the documents")
        for field in self._own:
            if not supports(field.dataType):
                raise ConfigError(f"decode=json cannot read {field.name} as {field.dataType.simpleString()}")
        if _nullable(self._own) != self._own:
            raise ConfigError("decode=json: a field may lack in a document, so none can be NOT NULL")
        corrupt = self._corrupt
        if corrupt is not None and not isinstance(corrupt.dataType, t.StringType):
            raise ConfigError(f"{self.decoding.corrupt} is the column for corrupt records: its type must be STRING")

    def fetched(self) -> tuple[str, ...]:
        """The columns to be fetched."""
        return tuple(dict.fromkeys([*self.given, "value", "offset"]))

    def decode(self, batch: pa.RecordBatch, where: str) -> pa.RecordBatch:
        """The columns of one batch with the columns of `fetched`. An error says where the batch is from.

        Raises:
            BadRecordError: a document does not fit, in mode FAILFAST.
        """
        values = batch.column("value")
        structs, bad = self._read(values)
        if self.decoding.mode is Mode.FAILFAST and bad:
            at = min(bad)
            raise BadRecordError(
                f"the value at offset {batch.column('offset')[at].as_py()} of {where} does not fit the schema: "
                f"{text_of(values[at].as_py())[:200]!r}. Set decode.mode to PERMISSIVE to have null for what does not"
            )
        columns: dict[str, Any] = dict(zip(self._own.names, structs.flatten(), strict=True))
        columns |= {name: batch.column(name) for name in self.given}
        if self._corrupt is not None:
            texts = [text_of(values[at].as_py()) if at in bad else None for at in range(len(values))] if bad else None
            columns[self.decoding.corrupt] = pa.array(texts or [None] * len(values), pa.string())
        made = pa.RecordBatch.from_arrays([columns[name] for name in self.schema.names], schema=self.arrow_schema)
        if self.decoding.mode is Mode.DROPMALFORMED and bad:
            keep = np.ones(len(values), bool)
            keep[list(bad)] = False
            made = made.filter(pa.array(keep))
        return made

    # --- schemas -----------------------------------------------------------------------------------------------------

    @cached_property
    def arrow_schema(self) -> Any:
        """What Spark expects."""
        return to_arrow_schema(self.schema, timezone="UTC")

    @cached_property
    def _corrupt(self) -> t.StructField | None:
        return next((field for field in self.schema if field.name == self.decoding.corrupt), None)

    @cached_property
    def _own(self) -> t.StructType:
        """The documents' fields."""
        others = {*self.given, self.decoding.corrupt}
        return t.StructType([field for field in self.schema if field.name not in others])

    @cached_property
    def _type(self) -> Any:
        return pa.struct(list(to_arrow_schema(self._own, timezone="UTC")))

    @cached_property
    def _rows(self) -> Rows:
        return Rows(self._own, self.decoding.zone)

    @cached_property
    def _quick(self) -> tuple[str, ...]:
        """The fields that Arrow's reader reads."""
        return tuple(field.name for field in self._own if is_quick(field.dataType))

    @cached_property
    def _options(self) -> Any:
        """How Arrow's reader reads them."""
        schema = pa.schema([pa.field(name, read_as(self._own[name].dataType)) for name in self._quick])
        return arrow_json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")

    @cached_property
    def _rest(self) -> tuple[Rows, Any]:
        """How the other fields are read, and their type."""
        fields = [field for field in self._own if field.name not in self._quick]
        kind = pa.struct([self._type.field(field.name) for field in fields])
        return Rows(t.StructType(fields), self.decoding.zone), kind

    # --- reading -----------------------------------------------------------------------------------------------------

    def _read(self, values: Any) -> tuple[Any, set[int]]:
        """The documents as one struct array, and which of them do not fit."""
        pieces: list[tuple[Any, Any]] = []
        bad: set[int] = set()
        candidates = _candidates(values) if self._quick else np.zeros(len(values), bool)
        wary = 0
        for at in range(0, len(values), CHUNK):
            places = np.arange(at, min(at + CHUNK, len(values)))
            mask = candidates[places] if not wary else np.zeros(len(places), bool)
            wary = max(0, wary - 1)
            slow = [places[~mask]]
            quick = self._try(values, places[mask], slow, bad) if mask.any() else []
            pieces += quick
            alone = np.sort(np.concatenate(slow))
            if len(alone) > len(places) // 2 and mask.any():
                wary = WARY_FOR
            if len(alone):
                pieces.append((alone, self._one_by_one(values, alone, bad)))
        if not pieces:
            return pa.array([], self._type), bad
        whole = pa.concat_arrays([array for _, array in pieces])
        order = np.concatenate([places for places, _ in pieces])
        if (np.diff(order) > 0).all():
            return whole, bad
        return whole.take(pa.array(np.argsort(order))), bad

    def _try(self, values: Any, places: Any, slow: list[Any], bad: set[int]) -> list[tuple[Any, Any]]:
        """Read documents with Arrow; those that it cannot read go to `slow`."""
        try:
            return [(places, self._at_once(values.take(pa.array(places)), places, bad))]
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            if len(places) <= ALONE:
                slow.append(places)
                return []
            middle = len(places) // 2
            halves = places[:middle], places[middle:]
            return [piece for half in halves for piece in self._try(values, half, slow, bad)]

    def _at_once(self, values: Any, places: Any, bad: set[int]) -> Any:
        count = len(places)
        text = pc.binary_join(pa.ListArray.from_arrays(pa.array([0, count], pa.int32()), values), b"\n")[0].as_py()
        reading = arrow_json.ReadOptions(use_threads=False, block_size=len(text) + 1)
        table = arrow_json.read_json(pa.BufferReader(text), reading, self._options)
        if table.num_rows != count:
            raise pa.ArrowInvalid("a value holds several documents")
        columns = {
            name: made_of(
                pa.concat_arrays(table.column(name).chunks),
                self._own[name].dataType,
                self._type.field(name).type,
                self.decoding.zone,
            )
            for name in self._quick
        }
        if len(columns) < len(self._type):
            rows, kind = self._rest
            others = self._read_with(rows, kind, values, places, bad)
            columns |= dict(zip([field.name for field in kind], others.flatten(), strict=True))
        return pa.StructArray.from_arrays([columns[field.name] for field in self._type], fields=list(self._type))

    def _one_by_one(self, values: Any, places: Any, bad: set[int]) -> Any:
        return self._read_with(self._rows, self._type, values.take(pa.array(places)), places, bad)

    def _read_with(self, reader: Rows, kind: Any, values: Any, places: Any, bad: set[int]) -> Any:
        rows: list[Any] = []
        for at, value in zip(places.tolist(), values.to_pylist(), strict=True):
            row, fits = reader.read(None if value is None else text_of(value))
            rows.append(row)
            if not fits:
                bad.add(at)
            if row is reader.empty and reader is not self._rows:
                raise pa.ArrowInvalid("the document is lost with all of its fields")
        return pa.array(rows, kind)


def _candidates(given: Any) -> Any:
    """Which values may go to Arrow: UTF-8, with braces around, not too deep. Between such values no other way to cut
    the text into as many documents exists than where the values end: a string has no bare line end."""
    values: Any = given
    try:
        text = values.cast(pa.string())
    except pa.ArrowInvalid:
        return np.array([value is not None and _is_candidate(value) for value in values.to_pylist()], bool)
    bare = pc.utf8_trim(text, " \t\r\n")
    whole = pc.and_(pc.starts_with(bare, "{"), pc.ends_with(bare, "}"))
    if any(pc.any(pc.match_substring(text, hint)).as_py() for hint in _HINTS):
        whole = pc.and_not(whole, pc.match_substring_regex(text, _ODD_NUMBER))
    sizes = pc.binary_length(values)
    if (pc.max(sizes).as_py() or 0) >= MOST_BRACKETS:
        brackets = pc.add(pc.count_substring(text, "{"), pc.count_substring(text, "["))
        whole = pc.and_(whole, pc.less(brackets, MOST_BRACKETS))
    return pc.fill_null(whole, False).to_numpy(zero_copy_only=False)


def _is_candidate(value: bytes) -> bool:
    try:
        text = value.decode().strip(" \t\r\n")
    except UnicodeDecodeError:
        return False
    return (
        text[:1] == "{"
        and text[-1:] == "}"
        and (text.count("{") + text.count("[") < MOST_BRACKETS and not re.search(_ODD_NUMBER, text))
    )


def _nullable(kind: Any) -> Any:
    if isinstance(kind, t.StructType):
        return t.StructType([t.StructField(f.name, _nullable(f.dataType), True, f.metadata) for f in kind])
    if isinstance(kind, t.ArrayType):
        return t.ArrayType(_nullable(kind.elementType), True)
    if isinstance(kind, t.MapType):
        return t.MapType(kind.keyType, _nullable(kind.valueType), True)
    return kind
