"""What the history's source returns to Spark, called as Spark calls it: every record once, and time once everything is
read."""

from __future__ import annotations

import contextlib
import json
import pickle
from typing import Any

import pytest
from confluent_kafka import Consumer as GroupConsumer
from confluent_kafka import Producer
from confluent_kafka import TopicPartition as Offset
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from muster.client.admin.admin import Admin
from muster.client.core.admin.admin import NewTopic
from muster.client.plain.cluster import disconnect
from muster.client.plain.fetch import DataLossError
from muster.errors import ConfigError
from muster.history.sources.raw_records import EVENTS_TOPIC
from muster.protocol.group_partitions import group_partition
from muster.spark.history.packed import IN_COUNTS, IN_ENTRIES, IN_EVENTS, IN_TICK, SLOTS, from_bytes, slot_of
from muster.spark.history.source import (
    TICK_DEFAULT_MS,
    FolderReader,
    PackedBatchReader,
    PackedStreamReader,
    groups_option,
    parse_history_options,
)
from tests.support import history_topic
from tests.support.brokers import BrokerProcess
from tests.support.faces import PATIENCE_S, Cluster, until

PARTITIONS = 3
KAFKAS_PARTITIONS = 5
"""Of `__consumer_offsets` on the Kafka of the tests."""
CLOCK_MS = 1_900_000_000_000
SCENARIOS = ["life-java-range", "life-java-consumer", "life-java-cooperative.muster"]  # one in each partition
RECORDS = history_topic.recorded(SCENARIOS, PARTITIONS)


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
        made.append(PackedStreamReader(*parse_history_options(given, streaming=True)))
        return made[-1]

    yield reader
    for each in made:
        each.stop()


@contextlib.contextmanager
def stopping(reader):
    yield reader
    reader.stop()
    disconnect()


def rows_of(reader, start, end):
    """The rows from the tasks of a batch; Spark pickles the reader for them."""
    tasks = reader.partitions(start, end)
    there = pickle.loads(pickle.dumps(reader))
    return [row for task in tasks for batch in there.read(task) for row in batch.to_pylist()]


def counted(rows) -> int:
    tables = [from_bytes(row["data"]) for row in rows if row["what"] == IN_COUNTS]
    return sum(row["records"] for table in tables for row in table.to_pylist())


def ticked(rows):
    """The time up to which each bucket's log partition has been read."""
    return {(row["log_partition"], row["slot"]): int(row["data"]) for row in rows if row["what"] == IN_TICK}


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
    later = readers()  # a restart, with nothing new: the same time does not pass again
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
    assert {row["at_ms"] for row in rows if row["what"] == IN_TICK} == {CLOCK_MS}
    assert 0 < counted(rows) < len(RECORDS)
    reader.commit(end)
    again = reader.latestOffset(end, ReadAllAvailable())
    assert again["read"] == end["read"]
    assert ticked(rows_of(reader, end, again)) == {}  # the clock does not advance


def test_time_does_not_pass_where_a_transaction_is_open(transactional_kafka):
    """Records after it are not read. The status of the groups there is reported anyway.

    Transactions of other tests may be open in other partitions for a while, which is waited for."""
    cluster = Cluster(transactional_kafka.bootstrap)
    topic, own = cluster.topic(1), group_partition(cluster.group, KAFKAS_PARTITIONS)
    settings = {"bootstrap.servers": cluster.bootstrap, "transaction.timeout.ms": 900_000}
    writer = Producer({**settings, "transactional.id": cluster.group})
    writer.init_transactions(PATIENCE_S)
    writer.begin_transaction()
    with contextlib.closing(GroupConsumer({"bootstrap.servers": cluster.bootstrap, "group.id": cluster.group})) as one:
        group = one.consumer_group_metadata()
    writer.send_offsets_to_transaction([Offset(topic, 0, 7)], group, PATIENCE_S)
    given = {"kafka.bootstrap.servers": cluster.bootstrap, "history.clock.ms": str(CLOCK_MS)}
    ends: list[Any] = []
    times: dict[tuple[int, int], int] = {}

    def read() -> None:
        with stopping(PackedStreamReader(*parse_history_options(given, streaming=True))) as reader:
            ends.append(reader.latestOffset(reader.initialOffset(), ReadAllAvailable()))
            times.update(ticked(rows_of(reader, reader.initialOffset(), ends[-1])))
        assert len(times) == KAFKAS_PARTITIONS * SLOTS
        assert all(times[own, slot] == 0 for slot in range(SLOTS))

    until(
        lambda: bool(times) and {place for place, at in times.items() if at == 0} == {(own, n) for n in range(SLOTS)},
        read,
    )
    assert set(times.values()) == {0, CLOCK_MS}
    end = ends[-1]
    writer.commit_transaction(PATIENCE_S)
    given["history.clock.ms"] = str(CLOCK_MS + TICK_DEFAULT_MS)
    with stopping(PackedStreamReader(*parse_history_options(given, streaming=True))) as reader:
        last: list[Any] = [end]

        def look():
            last.append(reader.latestOffset(last[-1], ReadAllAvailable()))

        until(lambda: set(ticked(rows_of(reader, end, last[-1])).values()) == {CLOCK_MS + TICK_DEFAULT_MS}, look)


def test_a_restart_runs_the_same_batch_again_and_continues_after_it(readers):
    first = readers()
    start = first.initialOffset()
    end = first.latestOffset(start, ReadMaxRows(60))
    before = rows_of(first, start, end)
    second = readers()
    assert rows_of(second, start, end) == before
    rest_end = second.latestOffset(end, ReadAllAvailable())
    assert counted(before) + counted(rows_of(second, end, rest_end)) == len(RECORDS)


def test_a_checkpoint_of_another_cluster_or_topic_is_refused_in_a_sentence(broker, readers):
    first = readers()
    end = first.latestOffset(first.initialOffset(), ReadAllAvailable())
    history_topic.delete(broker.bootstrap)
    history_topic.create(broker.bootstrap, PARTITIONS)
    with pytest.raises(DataLossError) as refused:
        readers().latestOffset(json.loads(json.dumps(end)), ReadAllAvailable())
    assert "the folder has the history of another cluster" in str(refused.value)
    assert "failOnDataLoss" not in str(refused.value)


def groups_in(rows):
    tables = [from_bytes(row["data"]) for row in rows if row["what"] == IN_ENTRIES]
    return {group for table in tables for group in table["group"].to_pylist()}


def test_all_readers_leave_out_other_groups_and_count_their_records(broker, readers):
    group = f"{SCENARIOS[0]}.g"
    only = groups_option([group])
    given = {"kafka.bootstrap.servers": broker.bootstrap} | only
    stream = readers(**only)
    end = stream.latestOffset(stream.initialOffset(), ReadAllAvailable())
    for rows in (
        rows_of(stream, stream.initialOffset(), end),
        rows_of_batch(PackedBatchReader(*parse_history_options(given, streaming=False))),
        rows_of_batch(FolderReader(str(broker.folder), frozenset({group}))),
    ):
        assert groups_in(rows) == {group}
        assert counted(rows) == len(RECORDS)


def test_a_batch_and_a_folder_have_every_record(broker):
    given = {"kafka.bootstrap.servers": broker.bootstrap}
    for reader in (
        PackedBatchReader(*parse_history_options(given, streaming=False)),
        FolderReader(str(broker.folder), frozenset()),
    ):
        tasks = reader.partitions()
        assert len(tasks) == PARTITIONS
        assert counted(rows_of_batch(reader)) == len(RECORDS)


def heard(rows):
    """Partition and offset of each event that tasks have passed on to the bucket of its group."""
    found = []
    for row in (row for row in rows if row["what"] == IN_EVENTS):
        for event in from_bytes(row["data"]).to_pylist():
            place = group_partition(event["group"], PARTITIONS), slot_of(event["group"])
            assert (row["log_partition"], row["slot"]) == place
            found.append((event["partition"], event["offset"]))
    return sorted(found)


def test_the_brokers_events_are_read_once_and_to_their_end_whatever_a_batch_may_have(broker, readers):
    names = SCENARIOS[2:]
    reported = history_topic.reported(names, 2)
    first = readers()
    start = first.initialOffset()
    assert first.latestOffset(start, ReadMaxRows(6))["events"] == {}  # there is no such topic
    history_topic.create(broker.bootstrap, 2, EVENTS_TOPIC)
    history_topic.write(broker.bootstrap, reported[:7], EVENTS_TOPIC)
    reader = readers()
    end = reader.latestOffset(start, ReadMaxRows(6))
    found = rows_of(reader, start, end)
    assert heard(found) == [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (1, 1), (1, 2)]
    history_topic.write(broker.bootstrap, reported[7:], EVENTS_TOPIC)
    later = readers()  # a restart
    assert rows_of(later, start, end) == found
    start = json.loads(json.dumps(end))
    end = later.latestOffset(start, ReadMaxRows(6))
    assert len(heard(rows_of(later, start, end))) == len(reported) - 7
    assert later.partitions(end, end) == []
    start = json.loads(json.dumps(end))
    assert heard(rows_of(later, start, later.latestOffset(start, ReadMaxRows(6)))) == []

    own = [[event for event in reported if event.partition == partition] for partition in range(2)]
    everything = [(partition, offset) for partition in range(2) for offset in range(len(own[partition]))]
    batch = PackedBatchReader(*parse_history_options({"kafka.bootstrap.servers": broker.bootstrap}, streaming=False))
    assert heard(rows_of_batch(batch)) == everything
    assert heard(rows_of_batch(FolderReader(str(broker.folder), frozenset()))) == everything
    assert heard(rows_of_batch(FolderReader(str(broker.folder), frozenset({"another"})))) == []


def rows_of_batch(reader):
    return [row for task in reader.partitions() for batch in reader.read(task) for row in batch.to_pylist()]


def test_a_topic_of_events_that_a_user_has_made_is_not_believed(broker):
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        admin.create_topics([NewTopic(EVENTS_TOPIC, 1)])
    history_topic.write(broker.bootstrap, history_topic.reported(SCENARIOS[2:]), EVENTS_TOPIC)
    batch = PackedBatchReader(*parse_history_options({"kafka.bootstrap.servers": broker.bootstrap}, streaming=False))
    assert heard(rows_of_batch(batch)) == []


def test_what_the_history_reads_is_not_a_matter_of_choice():
    for name in ("subscribe", "mode", "columns"):
        with pytest.raises(ConfigError, match=f"{name} cannot be set"):
            parse_history_options({"bootstrap": "a:1", name: "x"}, streaming=True)
