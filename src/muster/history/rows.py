"""Converts the rules' rows to Arrow tables, and back: an engine writes these and reads them again.

`to_table(Rebalance, rows)` has the schema `tables.REBALANCES`; `from_table(Rebalance, table)` returns the same rows. A
time becomes a timestamp in addition to its milliseconds; a time outside the calendar (damaged records may have one) is
null there, and only its milliseconds are kept.

Tables are made column by column. A member usually lives through many generations and is the same object in all of their
rows, so each is converted once, and Arrow copies it to its other places.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from itertools import accumulate, chain
from operator import attrgetter, itemgetter
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from muster.history import tables
from muster.history.model import (
    LAST_MS,
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
    TopicPartition,
)

R = TypeVar("R")
Row: TypeAlias = dict[str, Any]
Column: TypeAlias = "pa.Array[Any]"

DAY_MS = 24 * 3_600_000


class _Form(NamedTuple, Generic[R]):
    """How rows of one kind become a table: its schema, the time from which the day is taken, the columns that are not
    simply an attribute of that name, and the conversion back."""

    schema: pa.Schema
    time: str
    columns: Mapping[str, Callable[[Sequence[Any], pa.DataType], Column]]
    back: Any


def to_table(kind: type[R], rows: Iterable[R]) -> pa.Table:
    """Rows as a table of the schema of their kind."""
    form, found = _FORMS[kind], list(rows)
    made: dict[str, Column] = {}
    for field in form.schema:
        if field.name == "day" or f"{field.name}_ms" in form.schema.names:
            continue
        build = form.columns.get(field.name)
        made[field.name] = _plain(found, field.name, field.type) if build is None else build(found, field.type)
    for field in form.schema:
        if field.name == "day":
            made["day"] = _days(made[form.time]).cast(field.type)
        elif field.name not in made:
            made[field.name] = _moments(made[f"{field.name}_ms"]).cast(field.type)
    return pa.Table.from_arrays([made[name] for name in form.schema.names], schema=form.schema)


def from_table(kind: type[R], table: pa.Table | pa.RecordBatch) -> list[R]:
    """The rows of a table; columns that a row does not have are ignored."""
    back = _FORMS[kind].back
    return [back(row) for row in table.to_pylist()]


def schema_of(kind: type[Any]) -> pa.Schema:
    """The schema of a kind of row."""
    return _FORMS[kind].schema


def day_of(ms: int) -> int | None:
    """The UTC day of a time, as an Arrow date32."""
    return ms // DAY_MS if 0 <= ms <= LAST_MS else None


# --- to a table ------------------------------------------------------------------------------------------------------


def _plain(rows: Sequence[Any], name: str, kind: pa.DataType) -> Column:
    """The rows' attribute of this name."""
    return pa.array(_each(rows, name), kind)


def _each(items: Sequence[Any], name: str) -> list[Any]:
    return list(map(attrgetter(name), items))


def _in_calendar(ms: Column) -> Any:
    within = pc.and_(pc.greater_equal(ms, pa.scalar(0)), pc.less_equal(ms, pa.scalar(LAST_MS)))
    return pc.if_else(within, ms, pa.scalar(None, pa.int64()))


def _days(ms: Column) -> Column:
    found: Column = pc.divide(_in_calendar(ms), pa.scalar(DAY_MS)).cast(pa.int32())
    return found


def _moments(ms: Column) -> Column:
    found: Column = pc.multiply(_in_calendar(ms), pa.scalar(1_000))
    return found


def _lists(parts: Sequence[Sequence[Any]], kind: Any, build: Callable[[list[Any], Any], Column]) -> Column:
    """A list for each row; `build` makes a column of all their elements."""
    offsets = pa.array([0, *accumulate(map(len, parts))], pa.int32())
    values = build(list(chain.from_iterable(parts)), kind.value_type)
    return pa.ListArray.from_arrays(offsets, values, type=kind)


def _structs(kind: Any, **columns: Any) -> Column:
    """A column of structs from the columns of their fields, each a column or a list of values."""
    made = [
        found if isinstance(found, pa.Array) else pa.array(found, field.type)
        for field, found in zip(kind, columns.values(), strict=True)
    ]
    return pa.StructArray.from_arrays(made, fields=list(kind))


def _once(items: list[Any], build: Callable[[list[Any]], Column]) -> Column:
    """A column of these items; `build` gets each distinct object once, and never None, which becomes null."""
    places: dict[int, int] = {}
    unique: list[Any] = []
    indices: list[int | None] = []
    for item in items:
        place = None
        if item is not None:
            place = places.setdefault(id(item), len(unique))
            if place == len(unique):
                unique.append(item)
        indices.append(place)
    found = build(unique)
    return found if len(unique) == len(items) else found.take(pa.array(indices, pa.int64()))


def _partitions(parts: list[Sequence[TopicPartition]], kind: Any) -> Column:
    def pairs(found: list[TopicPartition], of: Any) -> Column:
        return _structs(of, topic=list(map(itemgetter(0), found)), partition=list(map(itemgetter(1), found)))

    return _once(parts, lambda unique: _lists(unique, kind, pairs))


def _members(members: list[Member | None], kind: Any) -> Column:
    def build(unique: list[Member]) -> Column:
        columns: dict[str, Any] = {}
        for field in kind:
            found = _each(unique, field.name)
            in_pairs = field.name in ("assignment", "owned")
            columns[field.name] = _partitions(found, field.type) if in_pairs else found
        return _structs(kind, **columns)

    return _once(members, build)


def _changes(changes: list[Change], kind: Any) -> Column:
    return _structs(
        kind,
        member=_members(_each(changes, "member"), kind.field("member").type),
        before=_members(_each(changes, "before"), kind.field("before").type),
    )


def _moves(moves: list[Moved], kind: Any) -> Column:
    return _structs(kind, **{field.name: _each(moves, field.name) for field in kind})


def _stops(stops: list[tuple[str, int, int]], kind: Any) -> Column:
    return _structs(
        kind, **{name: list(map(itemgetter(at), stops)) for at, name in enumerate(("topic", "partition", "ms"))}
    )


def _alternatives(found: list[Alternative], kind: Any) -> Column:
    causes = list(map(str, _each(found, "cause")))
    return _structs(kind, cause=causes, told_apart_by=_each(found, "told_apart_by"))


def _patterns(rows: Sequence[Any], kind: pa.DataType) -> Column:
    """A struct if a row is part of a pattern, otherwise null."""
    found = [None if row.pattern is None else asdict(row.pattern) for row in rows]
    return pa.array(found, kind)


def _list_of(name: str, build: Callable[[list[Any], Any], Column]) -> Callable[[Sequence[Any], pa.DataType], Column]:
    return lambda rows, kind: _lists(_each(rows, name), kind, build)


def _value_of(name: str) -> Callable[[Sequence[Any], pa.DataType], Column]:
    """For an enumeration."""
    return lambda rows, kind: pa.array(list(map(str, _each(rows, name))), kind)


def _place_of(name: str) -> Callable[[Sequence[Any], pa.DataType], Column]:
    return lambda rows, kind: pa.array(_each(rows, f"at.{name}"), kind)


_OF_GENERATIONS = {
    "kind": _value_of("kind"),
    "members": _list_of("members", _members),
    "log_partition": _place_of("partition"),
    "log_offset": _place_of("offset"),
    "timestamp_ms": _place_of("timestamp_ms"),
    "leader_epoch": _place_of("leader_epoch"),
}
_OF_REBALANCES = {
    "cause": _value_of("cause"),
    "alternatives": _list_of("alternatives", _alternatives),
    "pattern": _patterns,
    "joined": _list_of("joined", _changes),
    "left": _list_of("left", _members),
    "replaced": _list_of("replaced", _changes),
    "resubscribed": _list_of("resubscribed", _changes),
    "moved_partitions": _list_of("moved_partitions", _moves),
    "stopped": _list_of("stopped", _stops),
    "waited_for": _list_of("waited_for", _members),
}


# --- back ------------------------------------------------------------------------------------------------------------


def _back_generation(row: Mapping[str, Any]) -> Generation:
    at = Place(row["log_partition"], row["log_offset"], row["timestamp_ms"], row["leader_epoch"])
    members = tuple(_back_member(member) for member in row["members"])
    return Generation(**_of(Generation, row) | {"kind": GroupKind(row["kind"]), "members": members, "at": at})


def _back_rebalance(row: Mapping[str, Any]) -> Rebalance:
    found = _of(Rebalance, row)
    for name in ("joined", "replaced", "resubscribed"):
        found[name] = tuple(_back_change(change) for change in row[name])
    return Rebalance(
        **found
        | {
            "cause": Cause(row["cause"]),
            "evidence": tuple(row["evidence"]),
            "alternatives": tuple(Alternative(Cause(a["cause"]), a["told_apart_by"]) for a in row["alternatives"]),
            "pattern": _back_pattern(row["pattern"]),
            "left": tuple(_back_member(member) for member in row["left"]),
            "moved_partitions": tuple(Moved(**moved) for moved in row["moved_partitions"]),
            "stopped": tuple((s["topic"], s["partition"], s["ms"]) for s in row["stopped"]),
            "waited_for": tuple(_back_member(member) for member in row["waited_for"]),
        }
    )


def _back_pattern(seen: Mapping[str, Any] | None) -> PatternSeen | None:
    if seen is None:
        return None
    went = tuple(Cause(cause) for cause in seen["went"])
    return PatternSeen(Pattern(seen["kind"]), seen["confidence"], tuple(seen["evidence"]), tuple(seen["members"]), went)


def _back_change(change: Mapping[str, Any]) -> Change:
    before = change["before"]
    return Change(_back_member(change["member"]), None if before is None else _back_member(before))


def _back_member(member: Mapping[str, Any]) -> Member:
    return Member(
        **_of(Member, member)
        | {
            "topics": tuple(member["topics"]),
            "assignment": _back_partitions(member["assignment"]),
            "owned": _back_partitions(member["owned"]),
        }
    )


def _back_partitions(partitions: Iterable[Mapping[str, Any]]) -> tuple[TopicPartition, ...]:
    return tuple((place["topic"], place["partition"]) for place in partitions)


def _of(kind: Any, row: Mapping[str, Any]) -> Row:
    return {name: row[name] for name in kind.__slots__ if name in row}


def _back_plain(kind: Any) -> Any:
    return lambda row: kind(**_of(kind, row))


_FORMS: dict[type[Any], _Form[Any]] = {
    Generation: _Form(tables.GENERATIONS, "started_ms", _OF_GENERATIONS, _back_generation),
    Rebalance: _Form(tables.REBALANCES, "at_ms", _OF_REBALANCES, _back_rebalance),
    CommitNote: _Form(tables.NOTES, "at_ms", {}, _back_plain(CommitNote)),
    Lag: _Form(tables.LAG, "at_ms", {}, _back_plain(Lag)),
    Finding: _Form(tables.FINDINGS, "since_ms", {}, _back_plain(Finding)),
}
