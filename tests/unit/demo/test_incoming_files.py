"""The files that the feed reads: complete or absent, with names that sort in the order of writing."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from muster.demo.data.events import FLIGHTS_STREAM, WEATHER_STREAM, StreamEvent
from muster.demo.data.incoming_files import IncomingFiles

TOPICS = {FLIGHTS_STREAM: "my-flights", WEATHER_STREAM: "my-weather"}


def event(number: int, stream: str = FLIGHTS_STREAM) -> StreamEvent:
    return StreamEvent(datetime(2013, 1, 1, tzinfo=UTC), stream, f"N{number}", f'{{"id":{number},"dest":"Ñ\u2028"}}')


def test_files_hold_the_records_in_order_each_with_its_topic(tmp_path: Path) -> None:
    slices = IncomingFiles(tmp_path / "incoming", TOPICS)
    for number in range(12):
        slices.write([event(2 * number), event(2 * number + 1, WEATHER_STREAM)])
    assert slices.files == 12
    files = sorted((tmp_path / "incoming").iterdir())
    assert [file.suffix for file in files] == [".json"] * 12
    rows = [json.loads(line) for file in files for line in file.read_text(encoding="utf-8").split("\n")[:-1]]
    assert [(row["key"], row["value"]) for row in rows] == [(each.key, each.value) for each in map(event, range(24))]
    assert [row["topic"] for row in rows] == ["my-flights", "my-weather"] * 12


def test_a_file_that_is_not_whole_has_a_name_that_spark_skips(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError("No space left on device")

    slices = IncomingFiles(tmp_path / "incoming", TOPICS)
    monkeypatch.setattr(Path, "rename", full)
    with pytest.raises(OSError, match="No space left"):
        slices.write([event(0)])
    assert all(file.name.startswith(".") for file in (tmp_path / "incoming").iterdir())
    assert slices.files == 0
