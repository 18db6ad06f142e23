"""The history in Spark of groups without a log: the brokers' events yield the same rows as in the small engine."""

from __future__ import annotations

import json
from itertools import cycle, pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.history.engine import report
from muster.history.event_history import history_of
from muster.history.model import Limits
from muster.history.sources.reader_warnings import ReaderWarnings
from muster.spark.history.folding import STATUSES, fold_in_order
from muster.spark.history.packed import IN_EVENTS_ONLY, PACKED, pack_events
from tests.support.history_topic import Written, raw, reported
from tests.support.scale import examples
from tests.unit.spark.test_history_folding import TABLES, TOLD, Stream, ordered, tables

LIMITS = Limits(pattern_ms=20_000)
LATER_MS = 10**8


def packed(events: list[tuple[int, Written]]) -> list[dict[str, Any]]:
    """What tasks pass on, for events with their offsets."""
    rows: list[dict[str, Any]] = []
    for offset, event in reversed(events):  # Spark keeps no order
        for batch in raw([event], offset).to_batches():
            rows += pack_events(batch, lambda _: 0, IN_EVENTS_ONLY).to_pylist()
    return rows


def expected(events: list[Written]) -> dict[str, list[Any]]:
    in_order = sorted(events, key=lambda event: event.partition)  # as a topic is read
    values = [json.loads(event.value or b"") for event in in_order]
    made = report(history_of(values, (), ReaderWarnings()), "", 0, events=values)
    return {name: ordered(getattr(made, name)) for name in TABLES}


def generations(rows: dict[str, list[Any]]) -> list[tuple[str, int, tuple[str, ...]]]:
    return [(row.group, row.generation, tuple(each.member_id for each in row.members)) for row in rows["generations"]]


@pytest.mark.parametrize(("name", "partitions"), list(zip(TOLD, cycle([1, 3]))))
def test_a_whole_topic(name: str, partitions: int) -> None:
    events = reported([name], partitions)
    rows = sorted(packed(list(enumerate(events))), key=lambda row: (row["slot"], row["log_offset"]))
    batches = iter([pa.RecordBatch.from_pylist(rows, PACKED)])
    end_ms = events[-1].timestamp_ms + LATER_MS
    made = [row for batch in fold_in_order(Limits(), end_ms)(batches) for row in batch.to_pylist()]
    found = tables((row["name"], row["data"]) for row in made if row["name"] != STATUSES)
    assert {each: found[each] for each in TABLES} == expected(events)
    assert found["rebalances"]


def test_a_member_that_joined_is_known_by_name_after_a_batch_without_events() -> None:
    """The event of its join is read in one batch, the next is empty, and the rebalance comes after it."""
    in_pieces(reported(["deploy-static-java-range.muster"], 1), [1, 1, 6])


@pytest.mark.slow
@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.sampled_from(TOLD), min_size=1, max_size=3, unique=True), st.data())
def test_in_pieces_each_row_is_given_once(names: list[str], data: st.DataObject) -> None:
    events = reported(names, data.draw(st.integers(1, 3)))
    # Events with the same time are read together.
    between = [at for at in range(1, len(events)) if events[at - 1].timestamp_ms < events[at].timestamp_ms]
    in_pieces(events, sorted(data.draw(st.lists(st.sampled_from(between), max_size=4))))


def in_pieces(events: list[Written], cuts: list[int]) -> None:
    """Read the events in batches, and check that the rows are the same as for all of them read at once."""
    stream = Stream(LIMITS)
    for begin, end in pairwise([0, *cuts, len(events)]):
        following = events[end].timestamp_ms if end < len(events) else events[-1].timestamp_ms
        stream.feed(packed([(number, events[number]) for number in range(begin, end)]), following)
    stream.feed([], events[-1].timestamp_ms + 1)
    wanted = expected(events)
    found = stream.tables()
    assert generations(found) == generations(wanted)
    assert [(row.group, row.generation, row.cause, row.at_ms) for row in found["rebalances"]] == [
        (row.group, row.generation, row.cause, row.at_ms) for row in wanted["rebalances"]
    ]
    before = stream.tables()
    stream.feed([], events[-1].timestamp_ms + LATER_MS)
    stream.feed([], events[-1].timestamp_ms + 2 * LATER_MS)
    assert stream.tables() == before
    if all(not row.members for row in wanted["generations"] if row.ended_ms is None):
        assert not any(state.exists for state in stream.states.values())
