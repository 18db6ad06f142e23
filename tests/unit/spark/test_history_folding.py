"""The history in Spark without Spark: what its functions return for packed rows, complete, in pieces, and with
ticks."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import pandas as pd  # type: ignore[import-untyped]
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.history.engine import read_history
from muster.history.entries.chunks import chunks
from muster.history.entries.decode import decode
from muster.history.lag.rows import CommitSeries, ExpiryState, expiry_state
from muster.history.model import Generation, GroupKind, Limits, Rows
from muster.history.rows import from_table
from muster.history.rules import fold as rules
from muster.history.rules.event_explanations import explained
from muster.history.rules.event_rebalances import by_group
from muster.spark.history.buckets import GroupStatus
from muster.spark.history.folding import KINDS, OPEN, SCHEMAS, STATUSES, TIMELINE, fold_in_order, fold_on, unpack
from muster.spark.history.packed import (
    IN_COUNTS,
    PACKED,
    SLOTS,
    from_bytes,
    pack,
    pack_events,
    slot_of,
    tick_rows,
    to_bytes,
)
from muster.spark.history.source import packed_decoded
from muster.spark.history.whole import collected
from tests.support.history_topic import Source, Written, names, raw, recorded, reported
from tests.support.scale import seeds

LIMITS = Limits()
SHORT = Limits(pattern_ms=20_000)
"""Limits other than those stored with a frozen group."""
LOOK_MS = 30_000
"""The difference between the time of a sample and the time up to which everything was read."""
TABLES = ("generations", "rebalances", "notes")
LATER_MS = 10**8


def packed(records: list[Written], first: int = 0) -> list[dict[str, Any]]:
    """The rows that a task passes on."""
    found = decode(raw(records, first))
    return pack(found.entries, found.counts, 0).to_pylist()


def packed_events(events: list[Written], first: int = 0) -> list[dict[str, Any]]:
    """The rows of `__group_events` that a task passes on, a piece for each of its partitions."""
    rows: list[dict[str, Any]] = []
    for partition in sorted({event.partition for event in events}):
        table = raw([event for event in events if event.partition == partition], first)
        for batch in table.to_batches():
            rows += pack_events(batch, lambda _: 0).to_pylist()
    return rows


def small(
    records: list[Written], end_ms: int, events: Iterable[Written] = (), limits: Limits = LIMITS
) -> dict[str, list[Any]]:
    """What the rules return without any steps in between."""
    rows = Rows()
    for chunk in chunks(decode(raw(records)).entries, None):
        state = rules.start(chunk.group, limits)
        rows.extend(rules.fold(state, chunk))
        rows.extend(rules.finish(state, end_ms))
    in_order = sorted(events, key=lambda event: event.partition)
    rows.rebalances = explained(rows.rebalances, by_group(json.loads(event.value or b"") for event in in_order))
    return {name: ordered(getattr(rows, name)) for name in TABLES}


def standings(records: list[Written], end_ms: int) -> dict[str, GroupStatus]:
    """The status of each group at the end, if it has one."""
    found = {}
    for chunk in chunks(decode(raw(records)).entries, None):
        state = rules.start(chunk.group, LIMITS)
        rules.fold(state, chunk)
        generations = rules.finish(state, end_ms).generations
        so = expiry_state(generations[-1] if generations else None)
        found[chunk.group] = GroupStatus(chunk.group, CommitSeries(chunk.commits).latest(), so, state.kind)
    return having_something(found.values())


def having_something(stands: Iterable[GroupStatus]) -> dict[str, GroupStatus]:
    return {stand.group: stand for stand in stands if stand.committed or stand.expiry != ExpiryState()}


def ordered(rows: list[Any]) -> list[Any]:
    return sorted(rows, key=repr)


def in_batch(
    records: list[Written], cuts: list[int], end_ms: int, events: list[Written] | None = None, limits: Limits = LIMITS
) -> dict[str, list[Any]]:
    """The batch engine: pieces, sorted as Spark sorts them."""
    bounds = [0, *sorted(cuts), len(records)]
    rows = [row for begin, end in pairwise(bounds) for row in packed(records[begin:end], begin)]
    rows += packed_events(events or [])
    rows.sort(key=lambda row: (row["slot"], row["log_offset"]))
    batches = (pa.RecordBatch.from_pylist(rows[begin : begin + 3], PACKED) for begin in range(0, len(rows), 3))
    reported = [row for batch in fold_in_order(limits, end_ms)(batches) for row in batch.to_pylist()]
    return tables((row["name"], row["data"]) for row in reported if row["name"] != STATUSES)


def tables(reported: Iterator[tuple[str, bytes]]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for name, data in reported:
        if name in (STATUSES, TIMELINE):
            continue
        kind = KINDS.get(name.removeprefix(OPEN))
        rows = from_bytes(data).to_pylist() if kind is None else from_table(kind, from_bytes(data))
        found.setdefault(name, []).extend(rows)
    return {name: ordered(found.get(name, [])) for name in {*TABLES, *found}}


class State:
    """The state that Spark keeps for one key."""

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
    """The streaming engine: micro-batches, with the state that Spark keeps between them."""

    def __init__(self, limits: Limits = LIMITS) -> None:
        self._limits = limits
        self.states = {slot: State() for slot in range(-1, SLOTS)}
        self.final: list[tuple[str, bytes]] = []
        self.open: list[tuple[str, bytes]] = []
        self.stands: list[GroupStatus] = []
        self.looks = 0
        """How many buckets have reported statuses in the last sample."""

    def batch(
        self, records: list[Written], first: int, tick_ms: int | None, events: Sequence[tuple[int, Written]] = ()
    ) -> None:
        middle = len(records) // 2
        rows = [*packed(records[middle:], first + middle), *packed(records[:middle], first)]  # Spark keeps no order
        rows += [row for offset, event in reversed(events) for row in packed_events([event], offset)]
        self.feed(rows, tick_ms)

    def feed(self, rows: list[dict[str, Any]], tick_ms: int | None) -> None:
        """A batch of packed rows."""
        if tick_ms is not None:
            rows = [*tick_rows({0: tick_ms}, tick_ms + LOOK_MS).to_pylist(), *rows]
            self.open, self.stands, self.looks = [], [], 0
        for slot, state in self.states.items():
            own = [row for row in rows if row["slot"] == slot]
            if own:
                frames = iter([pd.DataFrame(own[:1]), pd.DataFrame(own[1:], columns=PACKED.names)])
                for frame in fold_on(self._limits)((0, slot), frames, state):
                    self._take(frame, tick_ms)

    def _take(self, frame: pd.DataFrame, tick_ms: int | None) -> None:
        for name, at_ms, data in frame.itertuples(index=False):
            assert at_ms == (0 if tick_ms is None or name == "counts" else tick_ms + LOOK_MS)
            if name == STATUSES:
                self.stands += pickle.loads(data)
                self.looks += 1
            else:
                (self.open if name.startswith(OPEN) else self.final).append((name, data))

    def tables(self) -> dict[str, list[Any]]:
        """Final rows, and those that are open."""
        final, still = tables(iter(self.final)), tables(iter(self.open))
        return {name: ordered([*final[name], *still.get(OPEN + name, [])]) for name in TABLES}


CORPUS = names()


TOLD = [name for name in CORPUS if name.endswith(".muster")]


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[Written], list[Written], list[int]]:
    """Some recorded scenarios next to each other in one log partition, the brokers' events about them, and where it is
    cut."""
    chosen = draw(st.lists(st.sampled_from(CORPUS) | st.sampled_from(TOLD), min_size=1, max_size=4, unique=True))
    records = recorded(chosen, 1)
    events = reported(chosen, draw(st.integers(1, 3)))
    return records, events, sorted(draw(st.lists(st.integers(0, len(records)), max_size=4)))


@pytest.mark.slow
@pytest.mark.soak
@settings(max_examples=len(seeds(15)))
@given(histories(), st.sampled_from([LIMITS, SHORT]))
def test_whole_in_pieces_and_as_a_stream_the_history_is_the_same(history, limits):
    records, events, cuts = history
    end_ms = records[-1].timestamp_ms + LATER_MS
    expected = small(records, end_ms, events, limits)
    batch = in_batch(records, cuts, end_ms, events, limits)
    assert {name: batch[name] for name in TABLES} == expected
    stream, bounds = Stream(limits), [0, *cuts, len(records)]
    unread = list(enumerate(events))
    for begin, end in pairwise(bounds):
        there = records[begin:end]
        # A tick says what has been read: nothing older comes after it.
        following = min((record.timestamp_ms for record in records[end:]), default=end_ms)
        heard = [each for each in unread if each[1].timestamp_ms <= following]
        unread = unread[len(heard) :]
        stream.batch(there, begin, min(following, end_ms) if begin % 2 else None, heard)
    stream.batch([], len(records), end_ms, unread)
    assert stream.tables() == expected
    assert having_something(stream.stands) == standings(records, end_ms)


def test_nothing_is_given_twice_and_what_is_open_is_given_until_it_ends():
    records = recorded(["life-java-range", "crash-java-range"], 1)
    stream, middle = Stream(), len(records) // 2
    stream.batch(records[:middle], 0, records[middle - 1].timestamp_ms)
    before, opened = len(stream.final), tables(iter(stream.open))
    stream.batch([], middle, records[middle - 1].timestamp_ms)
    assert len(stream.final) == before
    assert tables(iter(stream.open)) == opened != {}
    assert all(generation.ended_ms is None for generation in opened["open/generations"])


def test_a_row_that_is_final_at_once_has_the_broker_s_word_of_the_same_batch():
    names_of = ["crash-java-range.muster"]
    records, events = recorded(names_of, 1), reported(names_of)
    last = records[-1]
    records.append(last._replace(timestamp_ms=last.timestamp_ms + 2 * LIMITS.pattern_ms))
    stream, end_ms = Stream(), records[-1].timestamp_ms
    stream.batch(records, 0, None, list(enumerate(events)))
    final = tables(iter(stream.final))["rebalances"]
    assert final == small(records, end_ms, events)["rebalances"]
    assert {row.source for row in final} == {"events"}


def test_a_row_that_waits_to_be_final_keeps_the_broker_s_word():
    names_of = ["crash-java-range.muster"]
    records, events = recorded(names_of, 1), reported(names_of)
    last_ms = records[-1].timestamp_ms
    stream, end_ms = Stream(), last_ms + 3 * LIMITS.pattern_ms
    stream.batch(records, 0, last_ms, list(enumerate(events)))
    for tick_ms in range(last_ms + LIMITS.pattern_ms // 4, end_ms, LIMITS.pattern_ms // 4):
        stream.batch([], len(records), tick_ms)
    stream.batch([], len(records), end_ms)
    found = stream.tables()["rebalances"]
    assert found == small(records, end_ms, events)["rebalances"]
    assert {row.source for row in found} == {"events"}


def test_a_group_that_has_nothing_left_is_forgotten():
    records = recorded(["life-java-range"], 1)
    ends_ms = records[-1].timestamp_ms
    groups = {chunk.group: chunk for chunk in chunks(decode(raw(records)).entries, None)}
    keys = {record.key for record in records}
    gone = [Written(0, ends_ms + 1, key, None, 0) for key in sorted(keys)]
    stream = Stream()
    stream.batch(records + gone, 0, ends_ms + 1)
    assert any(state.exists for state in stream.states.values())
    assert stream.open
    stream.batch([], len(records) + len(gone), ends_ms + LATER_MS)
    assert not any(state.exists for state in stream.states.values())
    assert not stream.open
    assert stream.looks  # for the removal of rows that were open, although the group no longer exists
    ended = [row for row in stream.tables()["generations"] if row.group in groups]
    assert all(row.ended_ms is not None for row in ended if row.kind is not GroupKind.OFFSETS_ONLY)
    stream.batch([], len(records) + len(gone), ends_ms + 2 * LATER_MS)
    assert not stream.open
    assert not stream.looks


def test_what_earlier_batches_had_committed_stays_committed():
    records = recorded(["life-java-range"], 1)
    end_ms = records[-1].timestamp_ms
    again = next(record for record in reversed(records) if record.value and record.key[:2] in (b"\0\0", b"\0\1"))
    more = [again._replace(timestamp_ms=end_ms)]
    stream = Stream()
    stream.batch(records, 0, None)
    stream.batch(more, len(records), end_ms)
    assert having_something(stream.stands) == standings(records + more, end_ms)
    assert len(stream.stands[0].committed) > 1


DAY_MS = 24 * 3_600_000


@pytest.mark.parametrize(
    ("last_ms", "then_ms"),
    [
        pytest.param({"metadata": 0, "commits": 0}, None, id="all at once"),
        pytest.param({"metadata": 0, "commits": DAY_MS}, None, id="commits last"),
        pytest.param({"metadata": DAY_MS, "commits": 0}, None, id="members last"),
        pytest.param({"metadata": 0, "commits": 0}, DAY_MS, id="another batch"),
        pytest.param({"metadata": DAY_MS, "commits": DAY_MS}, 0, id="a clock that is behind"),
    ],
)
def test_a_group_that_has_nothing_is_forgotten_when_a_pattern_s_time_has_passed_after_its_last_record(last_ms, then_ms):
    records = recorded(["life-java-range"], 1)
    ends_ms, keys = records[-1].timestamp_ms, sorted({record.key for record in records})
    kinds = {key: "commits" if key[:2] in (b"\0\0", b"\0\1") else "metadata" for key in keys}
    gone = [Written(0, ends_ms + last_ms[kinds[key]], key, None) for key in keys]
    gone.sort(key=lambda record: record.timestamp_ms)
    stream, last = Stream(), max(last_ms.values())
    stream.batch(records + gone, 0, None)
    if then_ms is not None:
        again, last = [gone[-1]._replace(timestamp_ms=ends_ms + then_ms)], max(last, then_ms)
        stream.batch(again, len(records) + len(gone), None)
    for passed_ms, is_there in ((LIMITS.pattern_ms, True), (LIMITS.pattern_ms + 1, False)):
        stream.batch([], 1 << 20, ends_ms + last + passed_ms)
        assert stream.states[slot_of("life-java-range.g")].exists == is_there


def test_counts_are_of_every_record_also_of_groups_that_are_left_out():
    records = recorded(["life-java-range", "life-java-consumer"], 1)
    found = decode(raw(records))
    whole, none = (pack(found.entries, found.counts, 0, only) for only in ((), ("no such group",)))
    assert {row["what"] for row in none.to_pylist()} == {IN_COUNTS}
    (counted,) = (from_bytes(row["data"]) for row in none.to_pylist())
    assert pc.sum(counted["records"]).as_py() == len(records)
    assert whole.schema == none.schema == PACKED


def test_collected_from_packed_rows_the_history_is_that_of_the_small_engine():
    records = [*recorded(["life-java-range", "life-java-consumer"], 1), *recorded(["crash-java-range"], 1)]
    end_ms = max(record.timestamp_ms for record in records) + 10**6
    pieces = packed_decoded(iter(raw(records).to_batches(max_chunksize=100)), frozenset())
    rows = sorted(
        (row for piece in pieces for row in piece.to_pylist()), key=lambda row: (row["slot"], row["log_offset"])
    )
    batches = iter([pa.RecordBatch.from_pylist(rows, PACKED)])
    reported = [row for batch in fold_in_order(LIMITS, end_ms)(batches) for row in batch.to_pylist()]
    found = collected((row["name"], row["data"]) for row in reported)
    expected = read_history(Source({0: records}), LIMITS, None, end_ms)
    for name in TABLES:
        assert ordered(getattr(found.rows, name)) == ordered(getattr(expected.rows, name))
    for name in ("committed", "kinds", "counts", "from_ms", "until_ms"):
        assert getattr(found, name) == getattr(expected, name)


def test_packed_entries_know_which_commits_were_made_in_transactions():
    table = raw(recorded(["life-java-range"], 1))
    bits = [(None, False, True)[number % 3] for number in range(len(table))]
    at = table.schema.get_field_index("is_transactional")
    (packed,) = packed_decoded(iter(table.set_column(at, "is_transactional", pa.array(bits)).to_batches()), frozenset())
    entries = [from_bytes(row["data"]) for row in packed.to_pylist() if row["what"] == "entries"]
    rows = [row for each in entries for row in each.select(["log_offset", "is_transactional", "offset"]).to_pylist()]
    of_commits = [row for row in rows if row["offset"] is not None]
    assert of_commits
    assert all(row["is_transactional"] is bits[row["log_offset"]] for row in of_commits)


def test_a_slot_is_the_same_in_every_process():
    """Checkpoints rely on it."""
    assert [slot_of(name) for name in ("orders", "billing", "é", "")] == [6, 2, 6, 0]


@pytest.mark.parametrize("name", SCHEMAS)
def test_what_is_packed_is_unpacked_whole(name):
    empty = SCHEMAS[name].empty_table()
    batch = pa.RecordBatch.from_pydict({"data": [to_bytes(empty)]}, schema=pa.schema([("data", pa.binary())]))
    assert pa.Table.from_batches(unpack(iter([batch])), schema=SCHEMAS[name]) == empty


def test_generations_are_rows_of_their_group():
    rows = in_batch(recorded(["life-java-range"], 1), [], 0)["generations"]
    assert {type(row) for row in rows} == {Generation}
