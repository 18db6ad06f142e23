"""What the history's source tells Spark, asked as Spark asks: every record once, and time where all has been read."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from muster.client.plain.cluster import disconnect
from muster.errors import ConfigError
from muster.spark.history.packed import IN_COUNTS, IN_TICK, SLOTS, from_bytes
from muster.spark.history.source import FolderReader, PackedBatchReader, PackedStreamReader, take_options
from tests.support import history_topic
from tests.support.brokers import BrokerProcess

PARTITIONS = 3
CLOCK_MS = 1_900_000_000_000
RECORDS = history_topic.recorded(["life-java-range", "life-java-consumer", "crash-java-range"], PARTITIONS)


@pytest.fixture
def broker(tmp_path):
    with BrokerProcess(tmp_path / "data") as process:
        history_topic.create(process.bootstrap, PARTITIONS)
        history_topic.write(process.bootstrap, RECORDS)
        yield process
    disconnect()


@pytest.fixture
def readers(broker):
    made = []

    def reader(**more):
        given = {"kafka.bootstrap.servers": broker.bootstrap, "history.clock.ms": str(CLOCK_MS)} | more
        made.append(PackedStreamReader(*take_options(given, streaming=True)))
        return made[-1]

    yield reader
    for each in made:
        each.stop()


def rows_of(reader, start, end):
    """What the tasks of a batch hand over; Spark pickles the reader to them."""
    tasks = reader.partitions(start, end)
    there = pickle.loads(pickle.dumps(reader))
    return [row for task in tasks for batch in there.read(task) for row in batch.to_pylist()]


def counted(rows) -> int:
    tables = [from_bytes(row["data"]) for row in rows if row["what"] == IN_COUNTS]
    return sum(row["records"] for table in tables for row in table.to_pylist())


def ticked(rows):
    return {(row["log_partition"], row["slot"]): row["at_ms"] for row in rows if row["what"] == IN_TICK}


EVERY_BUCKET = {(partition, slot): CLOCK_MS for partition in range(PARTITIONS) for slot in range(SLOTS)}


def test_to_the_end_in_small_batches_and_time_passes_when_all_is_read(readers):
    reader = readers()
    rows: list[dict[str, Any]] = []
    ends: list[dict[tuple[int, int], int]] = []
    reader.prepareForTriggerAvailableNow()
    start = reader.initialOffset()
    while (end := reader.latestOffset(start, ReadMaxRows(70))) is not start:
        found = rows_of(reader, start, end)
        assert rows_of(reader, start, end) == found  # as often as it is run
        assert counted(rows) < len(RECORDS) or not counted(found)
        rows, ends = rows + found, [*ends, ticked(found)]
        start = json.loads(json.dumps(end))
    assert counted(rows) == len(RECORDS)
    assert len(ends) > 2
    assert [each for each in ends if each] == [ends[-1]] == [EVERY_BUCKET]
    later = readers()  # a restart, with nothing new: the same time has not passed again
    later.prepareForTriggerAvailableNow()
    assert later.latestOffset(start, ReadMaxRows(70)) is start


def test_as_a_stream_time_passes_only_where_a_partition_was_read_to_its_end(readers):
    reader = readers(**{"history.tick.ms": "0"})
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadMaxRows(6))
    assert not ticked(rows_of(reader, start, end))
    start = json.loads(json.dumps(end))
    end = reader.latestOffset(start, ReadAllAvailable())
    rows = rows_of(reader, start, end)
    assert ticked(rows) == EVERY_BUCKET
    assert 0 < counted(rows) < len(RECORDS)
    reader.commit(end)
    again = reader.latestOffset(end, ReadAllAvailable())
    assert again["read"] == end["read"]
    assert ticked(rows_of(reader, end, again)) == {}  # the clock stands still


def test_a_restart_runs_the_same_batch_again_and_goes_on_behind_it(readers):
    first = readers()
    start = first.initialOffset()
    end = first.latestOffset(start, ReadMaxRows(60))
    before = rows_of(first, start, end)
    second = readers()
    assert rows_of(second, start, end) == before
    rest_end = second.latestOffset(end, ReadAllAvailable())
    assert counted(before) + counted(rows_of(second, end, rest_end)) == len(RECORDS)


def test_a_batch_and_a_folder_have_every_record(broker):
    given = {"kafka.bootstrap.servers": broker.bootstrap}
    for reader in (
        PackedBatchReader(*take_options(given, streaming=False)),
        FolderReader(str(broker.folder), frozenset()),
    ):
        tasks = reader.partitions()
        assert len(tasks) == PARTITIONS
        assert counted([row for task in tasks for batch in reader.read(task) for row in batch.to_pylist()]) == len(
            RECORDS
        )


def test_what_the_history_reads_is_not_a_matter_of_choice():
    for name in ("subscribe", "mode", "columns"):
        with pytest.raises(ConfigError, match=f"{name} cannot be set"):
            take_options({"bootstrap": "a:1", name: "x"}, streaming=True)
