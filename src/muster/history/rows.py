"""The rules' rows as Arrow tables, and back: what an engine writes and what it reads again.

`to_table(Rebalance, rows)` has the schema `tables.REBALANCES`; `from_table(Rebalance, table)` gives the same rows back.
A time becomes a timestamp beside its milliseconds; one that no calendar has (a damaged record may say anything) is null
there, and only its milliseconds are kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

import pyarrow as pa

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
    Place,
    Rebalance,
    TopicPartition,
)

R = TypeVar("R")
Row: TypeAlias = dict[str, Any]

DAY_MS = 24 * 3_600_000
LAST_MS = 253_402_300_799_999
"""The end of the year 9999, the last that Python's and Spark's calendars have."""


class _Form(NamedTuple, Generic[R]):
    """How rows of one kind become a table: its schema, the time that its day is taken of, and the way back."""

    schema: pa.Schema
    time: str
    back: Any


def to_table(kind: type[R], rows: Iterable[R]) -> pa.Table:
    """Rows as a table of the schema of their kind."""
    form = _FORMS[kind]
    names = [name for name in form.schema.names if f"{name}_ms" in form.schema.names]
    plain = [_with_times(_plain(row), names, form.time) for row in rows]
    return pa.Table.from_pylist(plain, schema=form.schema)


def from_table(kind: type[R], table: pa.Table | pa.RecordBatch) -> list[R]:
    """The rows of a table; columns that a row does not have are passed over."""
    back = _FORMS[kind].back
    return [back(row) for row in table.to_pylist()]


def schema_of(kind: type[Any]) -> pa.Schema:
    """The schema of a kind of row."""
    return _FORMS[kind].schema


def day_of(ms: int) -> int | None:
    """The day of a time, as Arrow's date32 counts it, in UTC."""
    return ms // DAY_MS if 0 <= ms <= LAST_MS else None


def _with_times(row: Row, names: list[str], time: str) -> Row:
    row["day"] = day_of(row[time])
    for name in names:
        ms = row[f"{name}_ms"]
        row[name] = ms * 1000 if ms is not None and 0 <= ms <= LAST_MS else None
    return row


# --- to a table ------------------------------------------------------------------------------------------------------


def _plain(row: Any) -> Row:
    if isinstance(row, Generation):
        return _plain_generation(row)
    if isinstance(row, Rebalance):
        return _plain_rebalance(row)
    return asdict(row)


def _plain_generation(row: Generation) -> Row:
    found = {name: getattr(row, name) for name in row.__slots__}
    at = found.pop("at")
    found |= {
        "log_partition": at.partition,
        "log_offset": at.offset,
        "timestamp_ms": at.timestamp_ms,
        "leader_epoch": at.leader_epoch,
    }
    found["kind"] = row.kind.value
    found["members"] = [_plain_member(member) for member in row.members]
    return found


def _plain_rebalance(row: Rebalance) -> Row:
    found = {name: getattr(row, name) for name in row.__slots__}
    found["cause"] = row.cause.value
    found["alternatives"] = [{"cause": a.cause.value, "told_apart_by": a.told_apart_by} for a in row.alternatives]
    for name in ("joined", "replaced", "resubscribed"):
        found[name] = [_plain_change(change) for change in found[name]]
    found["left"] = [_plain_member(member) for member in row.left]
    found["moved"] = [asdict(moved) for moved in row.moved]
    found["stopped_ms"] = [{"topic": topic, "partition": part, "ms": ms} for topic, part, ms in row.stopped_ms]
    return found


def _plain_change(change: Change) -> Row:
    return {
        "member": _plain_member(change.member),
        "before": None if change.before is None else _plain_member(change.before),
    }


def _plain_member(member: Member) -> Row:
    found = {name: getattr(member, name) for name in member.__slots__}
    for name in ("assignment", "owned"):
        found[name] = [{"topic": topic, "partition": partition} for topic, partition in found[name]]
    return found


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
            "left": tuple(_back_member(member) for member in row["left"]),
            "moved": tuple(Moved(**moved) for moved in row["moved"]),
            "stopped_ms": tuple((s["topic"], s["partition"], s["ms"]) for s in row["stopped_ms"]),
        }
    )


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
    Generation: _Form(tables.GENERATIONS, "started_ms", _back_generation),
    Rebalance: _Form(tables.REBALANCES, "at_ms", _back_rebalance),
    CommitNote: _Form(tables.NOTES, "at_ms", _back_plain(CommitNote)),
    Lag: _Form(tables.LAG, "at_ms", _back_plain(Lag)),
    Finding: _Form(tables.FINDINGS, "since_ms", _back_plain(Finding)),
}
