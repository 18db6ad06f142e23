"""Batches and lags as they were observed, and the files that the feed reads."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from muster.demo.course import Course
from muster.demo.data.events import FLIGHTS_STREAM, WEATHER_STREAM, StreamEvent
from muster.demo.data.incoming_files import IncomingFiles


def message(batch: int, rows: int = 100, took_ms: int = 500, **more: Any) -> dict[str, Any]:
    found = {"event": "batch", "query": "windows", "batch": batch, "rows": rows, "took_ms": took_ms, "watermark": None}
    return found | {"newest": None, "dropped": 0, "state_rows": 0} | more


def test_a_query_s_batches_are_counted_also_where_some_were_not_seen() -> None:
    course = Course()
    assert (course.count("windows"), course.rate("windows"), course.last_batch_ms("windows")) == (0, 0.0, 0)
    course.on_batch(1_000, message(0))
    course.on_batch(2_000, message(4, rows=300))
    assert (course.count("windows"), course.rate("windows"), course.last_batch_ms("windows")) == (5, 400.0, 2_000)


def test_watermarks_are_milliseconds() -> None:
    course = Course()
    course.on_batch(1_000, message(0, watermark="2012-12-19T13:00:00.000Z", newest="2013-01-02T13:00:00.000Z"))
    (batch,) = course.batches["windows"]
    assert batch.watermark_ms is not None
    assert batch.newest_ms is not None
    assert batch.newest_ms - batch.watermark_ms == 14 * 86_400_000


def test_the_lag_of_groups_is_not_known_before_each_was_seen() -> None:
    course = Course()
    course.on_lags(1_000, {"a": 3})
    assert course.total_lag("a") == 3
    assert course.total_lag("a", "b") is None
    course.on_lags(2_000, {"a": 1, "b": 4})
    assert course.total_lag("a", "b") == 5
    assert course.lag_over_time == {"a": [(1_000, 3), (2_000, 1)], "b": [(2_000, 4)]}


def test_files_appear_whole_in_order_with_the_topic_of_each_record(tmp_path: Path) -> None:
    at = datetime(2013, 1, 1, tzinfo=UTC)
    slices = IncomingFiles(tmp_path / "incoming", {FLIGHTS_STREAM: "f", WEATHER_STREAM: "w"})
    slices.write(
        [StreamEvent(at, FLIGHTS_STREAM, "N1", '{"id":0}'), StreamEvent(at, WEATHER_STREAM, "JFK", '{"temp":1}')]
    )
    slices.write([StreamEvent(at, FLIGHTS_STREAM, "N2", '{"id":1}')])
    files = sorted(path for path in (tmp_path / "incoming").iterdir())
    assert [path.name for path in files] == ["000000.json", "000001.json"]
    assert slices.files == 2
    assert [json.loads(line) for line in files[0].read_text().splitlines()] == [
        {"topic": "f", "key": "N1", "value": '{"id":0}'},
        {"topic": "w", "key": "JFK", "value": '{"temp":1}'},
    ]
