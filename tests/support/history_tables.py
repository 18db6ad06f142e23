"""The tables of the history as rows: what a job has written, and the same made in one run without interruptions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from muster.client.admin.admin import Admin
from muster.clock import wall_clock_ms
from muster.history import engine
from muster.history.model import Lag, Limits
from muster.history.rows import from_table
from muster.history.sources.lag_samples import lag_samples
from muster.history.sources.live import LiveTopic, ReaderConfig
from muster.history.sources.raw_records import EVENTS_TOPIC, OFFSETS_TOPIC
from muster.history.sources.reader_warnings import ReaderWarnings
from muster.spark.history.folding import KINDS
from tests.support.history_schedules import ROWS, Tables


def at_once(bootstrap: str, limits: Limits) -> Tables:
    """The small engine's result for the topic."""
    config, remarks = ReaderConfig(bootstrap_servers=(bootstrap,)), ReaderWarnings()
    now_ms = wall_clock_ms()
    with Admin(bootstrap_servers=bootstrap) as admin:
        found = engine.read_history(LiveTopic(admin, config, OFFSETS_TOPIC, remarks), limits, None, now_ms)
        samples = lag_samples(admin, config, found.committed, now_ms, remarks)
        names = [topic.name for topic in admin.list_topics(include_internal=True)]
        reported = EVENTS_TOPIC in names
        events = engine.events_of(LiveTopic(admin, config, EVENTS_TOPIC, remarks)) if reported else []
    assert not remarks.sentences(), remarks.sentences()
    made = engine.report(found, "here", now_ms, samples, events, limits)
    rows = (tuple(made.generations), tuple(made.rebalances), tuple(made.notes))
    return Tables(*rows, counts=made.counts, lag=tuple(made.lag))


def of_frames(found: Any) -> Tables:
    """The contents of Spark's tables."""
    rows: dict[str, Any] = {
        name: tuple(from_table(KINDS[name], getattr(found, name).toArrow())) for name in (*ROWS, "lag")
    }
    counts: dict[tuple[str, int], int] = {}
    for row in found.counts.collect():
        _count(counts, row)
    return Tables(**rows, counts=counts)


def in_folder(out: Path) -> Tables:
    """What a job has written, read without Spark: its files are plain Parquet. The lag is that of the last sample."""
    rows: dict[str, Any] = {name: (*final_rows(out, name), *_rows(name, out / "open" / name)) for name in ROWS}
    looks = looks_in(out)
    return Tables(**rows, counts=counts_in(out), lag=looks[max(looks)] if looks else ())


def final_in_folder(out: Path) -> Tables:
    """The rows that are final so far."""
    rows: dict[str, Any] = {name: tuple(final_rows(out, name)) for name in ROWS}
    return Tables(**rows)


def final_rows(out: Path, name: str) -> Iterator[Any]:
    """The final rows of a table."""
    for _, folder in _batches(out, name):
        yield from _rows(name, folder)


def looks_in(out: Path) -> Mapping[int, tuple[Lag, ...]]:
    """The lag that each batch has written."""
    found: dict[int, tuple[Lag, ...]] = {}
    for batch, folder in _batches(out, "lag"):
        found[batch] = (*found.get(batch, ()), *_rows("lag", folder))
    return found


def counts_in(out: Path) -> dict[tuple[str, int], int]:
    """How many records of each kind and version the job has read."""
    counts: dict[tuple[str, int], int] = {}
    for _, folder in _batches(out, "counts"):
        for table in _tables(folder):
            for row in table.to_pylist():
                _count(counts, row)
    return counts


def _count(counts: dict[tuple[str, int], int], row: Any) -> None:
    place = row["kind"], row["version"]
    counts[place] = counts.get(place, 0) + row["records"]


def _batches(out: Path, name: str) -> list[tuple[int, Path]]:
    """The folders of a table that have final rows, each with its batch."""
    return [(int(path.name.removeprefix("batch=")), path) for path in sorted((out / name).glob("day=*/batch=*"))]


def _rows(name: str, folder: Path) -> Iterator[Any]:
    for table in _tables(folder):
        yield from from_table(KINDS[name], table)


def _tables(folder: Path) -> Iterator[pa.Table]:
    """The complete files: those that Spark has begun, but not moved to their place, are in `_temporary`."""
    for path in sorted(folder.glob("*.parquet")):
        yield pq.read_table(path, partitioning=None)
