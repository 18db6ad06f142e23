"""The history in Spark without Spark: what its functions make of packed rows, whole, in pieces, and with ticks."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pandas as pd  # type: ignore[import-untyped]
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.history import fold as rules
from muster.history.chunks import chunks
from muster.history.decode import decode
from muster.history.model import Generation, GroupKind, Limits, Rows
from muster.history.rows import from_table
from muster.spark.history.buckets import LogBounds
from muster.spark.history.folding import KINDS, OPEN, SCHEMAS, STANDS, fold_in_order, fold_on, unpack, unpack_lag
from muster.spark.history.packed import IN_COUNTS, PACKED, SLOTS, from_bytes, pack, slot_of, tick_rows, to_bytes
from tests.support.history_topic import Written, names, raw, recorded
from tests.support.scale import seeds

LIMITS = Limits()
TABLES = ("generations", "rebalances", "notes")
LATER_MS = 10**8


def packed(records: list[Written], first: int = 0) -> list[dict[str, Any]]:
    """What a task hands over."""
    found = decode(raw(records, first))
    return pack(found.entries, found.counts, 0).to_pylist()


def small(records: list[Written], end_ms: int) -> dict[str, list[Any]]:
    """What the rules say with nothing in between."""
    rows = Rows()
    for chunk in chunks(decode(raw(records)).entries, None):
        state = rules.start(chunk.group, LIMITS)
        rows.extend(rules.fold(state, chunk))
        rows.extend(rules.finish(state, end_ms))
    return {name: ordered(getattr(rows, name)) for name in TABLES}


def ordered(rows: list[Any]) -> list[Any]:
    return sorted(rows, key=repr)


def in_batch(records: list[Written], cuts: list[int], end_ms: int) -> dict[str, list[Any]]:
    """The batch engine: pieces, sorted as Spark sorts them."""
    bounds = [0, *sorted(cuts), len(records)]
    rows = [row for begin, end in pairwise(bounds) for row in packed(records[begin:end], begin)]
    rows.sort(key=lambda row: (row["slot"], row["log_offset"]))
    batches = (pa.RecordBatch.from_pylist(rows[begin : begin + 3], PACKED) for begin in range(0, len(rows), 3))
    told = [row for batch in fold_in_order(LIMITS, end_ms, {})(batches) for row in batch.to_pylist()]
    return tables((row["name"], row["data"]) for row in told)


def tables(told: Iterator[tuple[str, bytes]]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for name, data in told:
        kind = KINDS.get(name.removeprefix(OPEN))
        rows = from_bytes(data).to_pylist() if kind is None else from_table(kind, from_bytes(data))
        found.setdefault(name, []).extend(rows)
    return {name: ordered(found.get(name, [])) for name in {*TABLES, *found}}


class State:
    """What Spark keeps for one key."""

    def __init__(self) -> None:
        self.kept: tuple[bytes] | None = None

    @property
    def exists(self) -> bool:
        return self.kept is not None

    @property
    def get(self) -> tuple[bytes]:
        assert self.kept is not None
        return self.kept

    def update(self, value: tuple[bytes]) -> None:
        self.kept = value

    def remove(self) -> None:
        self.kept = None


class Stream:
    """The streaming engine: micro-batches, with the state that Spark keeps in between."""

    def __init__(self) -> None:
        self.states = {slot: State() for slot in range(-1, SLOTS)}
        self.final: list[tuple[str, bytes]] = []
        self.open: list[tuple[str, bytes]] = []
        self.stands: list[bytes] = []

    def batch(self, records: list[Written], first: int, tick_ms: int | None) -> None:
        middle = len(records) // 2
        rows = [*packed(records[middle:], first + middle), *packed(records[:middle], first)]  # Spark keeps no order
        if tick_ms is not None:
            rows = [*tick_rows([0], tick_ms).to_pylist(), *rows]
            self.open, self.stands = [], []
        for slot, state in self.states.items():
            own = [row for row in rows if row["slot"] == slot]
            if own:
                frames = iter([pd.DataFrame(own[:1]), pd.DataFrame(own[1:], columns=PACKED.names)])
                for frame in fold_on(LIMITS)((0, slot), frames, state):
                    self._take(frame, tick_ms)

    def _take(self, frame: pd.DataFrame, tick_ms: int | None) -> None:
        for name, at_ms, data in frame.itertuples(index=False):
            assert at_ms in (0, tick_ms)
            if name == STANDS:
                self.stands.append(data)
            else:
                (self.open if name.startswith(OPEN) else self.final).append((name, data))

    def tables(self) -> dict[str, list[Any]]:
        """Final rows, and those that are open."""
        final, still = tables(iter(self.final)), tables(iter(self.open))
        return {name: ordered([*final[name], *still.get(OPEN + name, [])]) for name in TABLES}


CORPUS = names()


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[Written], list[int]]:
    """Some recorded scenarios side by side in one log partition, and where it is cut."""
    chosen = draw(st.lists(st.sampled_from(CORPUS), min_size=1, max_size=4, unique=True))
    records = recorded(chosen, 1)
    return records, sorted(draw(st.lists(st.integers(0, len(records)), max_size=4)))


@pytest.mark.soak
@settings(max_examples=len(seeds(15)))
@given(histories())
def test_whole_in_pieces_and_as_a_stream_the_history_is_the_same(history):
    records, cuts = history
    end_ms = records[-1].timestamp_ms + LATER_MS
    expected = small(records, end_ms)
    batch = in_batch(records, cuts, end_ms)
    assert {name: batch[name] for name in TABLES} == expected
    stream, bounds = Stream(), [0, *cuts, len(records)]
    for begin, end in pairwise(bounds):
        there = records[begin:end]
        # A tick says what has been read: nothing older comes behind it.
        following = min((record.timestamp_ms for record in records[end:]), default=end_ms)
        stream.batch(there, begin, min(following, end_ms) if begin % 2 else None)
    stream.batch([], len(records), end_ms)
    assert stream.tables() == expected


def test_nothing_is_told_twice_and_what_is_open_is_told_until_it_ends():
    records = recorded(["life-java-range", "crash-java-range"], 1)
    stream, middle = Stream(), len(records) // 2
    stream.batch(records[:middle], 0, records[middle - 1].timestamp_ms)
    before, opened = len(stream.final), tables(iter(stream.open))
    stream.batch([], middle, records[middle - 1].timestamp_ms)
    assert len(stream.final) == before
    assert tables(iter(stream.open)) == opened != {}
    assert all(generation.ended_ms is None for generation in opened["open/generations"])


def test_a_group_that_has_nothing_left_is_forgotten():
    records = recorded(["life-java-range"], 1)
    ends_ms = records[-1].timestamp_ms
    groups = {chunk.group: chunk for chunk in chunks(decode(raw(records)).entries, None)}
    keys = {record.key for record in records}
    gone = [Written(0, ends_ms + 1, key, None, 0) for key in sorted(keys)]
    stream = Stream()
    stream.batch(records + gone, 0, ends_ms + 1)
    assert any(state.exists for state in stream.states.values())
    stream.batch([], len(records) + len(gone), ends_ms + LATER_MS)
    assert not any(state.exists for state in stream.states.values())
    ended = [row for row in stream.tables()["generations"] if row.group in groups]
    assert all(row.ended_ms is not None for row in ended if row.kind is not GroupKind.OFFSETS_ONLY)
    stream.batch([], len(records) + len(gone), ends_ms + 2 * LATER_MS)
    assert not stream.open
    assert not stream.stands


def test_counts_are_of_every_record_also_of_groups_that_are_left_out():
    records = recorded(["life-java-range", "life-java-consumer"], 1)
    found = decode(raw(records))
    whole, none = (pack(found.entries, found.counts, 0, only) for only in ((), ("no such group",)))
    assert {row["what"] for row in none.to_pylist()} == {IN_COUNTS}
    (counted,) = (from_bytes(row["data"]) for row in none.to_pylist())
    assert pc.sum(counted["records"]).as_py() == len(records)
    assert whole.schema == none.schema == PACKED


def test_lag_is_that_of_what_has_been_committed_by_the_tick():
    records = recorded(["life-java-range"], 1)
    stream, end_ms = Stream(), records[-1].timestamp_ms
    stream.batch(records, 0, end_ms)
    places = {(row["topic"], row["partition"]) for row in decode(raw(records)).entries.to_pylist() if row["topic"]}
    bounds = {place: LogBounds(0, 10**6) for place in places}
    batch = pa.RecordBatch.from_pydict({"data": stream.stands}, schema=pa.schema([("data", pa.binary())]))
    rows = [row for made in unpack_lag(LIMITS, bounds, end_ms, 0)(iter([batch])) for row in made.to_pylist()]
    assert {(row["topic"], row["partition"]) for row in rows} <= places
    assert rows
    assert all(row["lag_records"] == 10**6 - row["committed_offset"] for row in rows)
    assert {row["at_ms"] for row in rows} == {end_ms}
    assert {row["day"].isoformat() for row in rows} == {"1970-01-01"}  # the tick's


def test_a_slot_is_the_same_in_every_process():
    """A checkpoint depends on it."""
    assert [slot_of(name) for name in ("orders", "billing", "é", "")] == [6, 2, 6, 0]


@pytest.mark.parametrize("name", SCHEMAS)
def test_what_is_packed_is_unpacked_whole(name):
    empty = SCHEMAS[name].empty_table()
    batch = pa.RecordBatch.from_pydict({"data": [to_bytes(empty)]}, schema=pa.schema([("data", pa.binary())]))
    assert pa.Table.from_batches(unpack(iter([batch])), schema=SCHEMAS[name]) == empty


def test_generations_are_rows_of_their_group():
    rows = in_batch(recorded(["life-java-range"], 1), [], 0)["generations"]
    assert {type(row) for row in rows} == {Generation}
