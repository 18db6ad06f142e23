"""The history in a real Spark: batch, stream and the small engine agree; a query that is killed continues."""

from __future__ import annotations

import json
import pickle
from datetime import date
from shutil import copytree

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException

from muster.client.admin.admin import Admin
from muster.client.plain.cluster import connect, disconnect
from muster.errors import ConfigError, MusterError
from muster.history import engine
from muster.history.entries.chunks import chunks
from muster.history.entries.decode import decode
from muster.history.lag.over_time import CommitTimeline, committed_partitions, lag_over_time, plan_lookups
from muster.history.model import Generation, GroupKind, Lag, Limits, Rows
from muster.history.model import Place as RecordPlace
from muster.history.rows import from_table, to_table
from muster.history.rules import fold as rules
from muster.history.rules.event_explanations import explained
from muster.history.rules.event_rebalances import by_group
from muster.history.show.json_report import as_json
from muster.history.show.page import render
from muster.history.sources.lag_samples import ends_over_time, lag_samples
from muster.history.sources.live import LiveTopic, ReaderConfig
from muster.history.sources.raw_records import EVENTS_TOPIC, OFFSETS_TOPIC
from muster.history.sources.reader_warnings import ReaderWarnings
from muster.spark import history
from muster.spark.history.compaction import NEW, OLD, Compaction, replace
from muster.spark.history.folding import KINDS, OUTPUT_DDL, SCHEMAS, STATUSES
from muster.spark.history.hadoop_folder import MARK, HadoopFolder
from muster.spark.history.packed import to_bytes
from muster.spark.history.sink import Sink, schema_of, written
from muster.spark.history.source import parse_history_options
from tests.support import history_topic
from tests.support.brokers import BrokerProcess
from tests.support.faces import PATIENCE_S
from tests.support.history_topic import Written

pytestmark = [pytest.mark.slow(90), pytest.mark.timeout(1800), pytest.mark.usefixtures("java")]

PARTITIONS = 3
SCENARIOS = ["life-java-range.muster", "life-java-consumer", "crash-confluent-cooperative.muster"]
"""A group in each partition; for two of them, muster's broker reported why they rebalanced."""
TABLES = ("generations", "rebalances", "notes")


@pytest.fixture
def broker(tmp_path):
    with BrokerProcess(tmp_path / "data") as process:
        history_topic.create(process.bootstrap, PARTITIONS)
        yield process


def small(records, events, end_ms):
    """What the rules return for these records without steps in between, combined with the broker's events."""
    rows = Rows()
    for partition in range(PARTITIONS):
        own = [record for record in records if record.partition == partition]
        for chunk in chunks(decode(history_topic.raw(own)).entries, None):
            state = rules.start(chunk.group, Limits())
            rows.extend(rules.fold(state, chunk))
            rows.extend(rules.finish(state, end_ms))
    rows.rebalances = explained(rows.rebalances, by_group(json.loads(event.value) for event in events))
    return {name: as_reported(getattr(rows, name)) for name in TABLES}


def past_lag(bootstrap, records, end_ms):
    """The lag over time as computed in one process."""
    past = CommitTimeline()
    for partition in range(PARTITIONS):
        own = [record for record in records if record.partition == partition]
        for chunk in chunks(decode(history_topic.raw(own)).entries, None):
            past.add(chunk.group, chunk.commits)
    settings, _ = parse_history_options({"bootstrap": bootstrap}, streaming=False)
    cluster = connect(settings.fetch_settings().client)
    asked = plan_lookups(committed_partitions(past), past.times(end_ms))
    try:
        return lag_over_time(past, asked.times, ends_over_time(cluster, asked))
    finally:
        disconnect()


def make_topics(bootstrap, records):
    """The topics that the groups have read, with a record every other second while the groups existed."""
    found = decode(history_topic.raw(records)).entries.select(["topic", "partition"]).to_pylist()
    times = range(records[0].timestamp_ms, records[-1].timestamp_ms, 2_000)
    for topic in {row["topic"] for row in found} - {None}:
        partitions = 1 + max(row["partition"] for row in found if row["topic"] == topic)
        history_topic.create(bootstrap, partitions, topic)
        written = [Written(index, time, b"k", b"v") for index in range(partitions) for time in times]
        history_topic.write(bootstrap, written, topic)


def as_reported(rows):
    """Rows without the leader epoch of the log: the test's broker writes with its own epoch."""
    return sorted(repr(row).replace("leader_epoch=0", "leader_epoch=*") for row in rows)


def reported(tables):
    found = {}
    for name in TABLES:
        table = getattr(tables, name).toArrow().select(SCHEMAS[name].names).cast(SCHEMAS[name])
        found[name] = as_reported(from_table(KINDS[name], table))
    return found


def counted(tables):
    return sum(row["records"] for row in tables.counts.collect())


def test_batch_stream_and_the_small_engine_say_the_same(spark, broker, tmp_path):
    records, events = history_topic.recorded(SCENARIOS, PARTITIONS), history_topic.reported(SCENARIOS)
    make_topics(broker.bootstrap, records)
    out, middle = tmp_path / "out", len(records) // 2
    end_ms = records[-1].timestamp_ms + 10**8
    history_topic.create(broker.bootstrap, 1, EVENTS_TOPIC)
    for some, now_ms in ((records[:middle], records[middle - 1].timestamp_ms), (records[middle:], end_ms)):
        history_topic.write(broker.bootstrap, some)
        heard = [event for event in events if event.timestamp_ms <= now_ms]
        history_topic.write(broker.bootstrap, heard, EVENTS_TOPIC)
        del events[: len(heard)]
        begin(spark, broker, out, now_ms, maxOffsetsPerTrigger="100")
    # A kill after the sink's write, before Spark's commit: the batch is run again.
    last = out / "_checkpoint" / "commits" / str(batches(out)[-1])
    for path in (last, last.with_name(f".{last.name}.crc")):
        path.unlink(missing_ok=True)
    begin(spark, broker, out, end_ms)
    assert batches(out)[-1] == int(last.name)
    written, whole = history.read(spark, str(out)), history.tables(spark, bootstrap=broker.bootstrap, now_ms=end_ms)
    expected = small(records, history_topic.reported(SCENARIOS), end_ms)
    sources = {
        source for row in expected["rebalances"] for source in ("events", "records") if f"source='{source}'" in row
    }
    assert sources == {"events", "records"}
    assert reported(whole) == expected
    behind = past_lag(broker.bootstrap, records, end_ms)
    assert any(row.lag_records for row in behind)
    rows = from_table(Lag, whole.lag_over_time.toArrow())
    assert sorted(rows, key=repr) == sorted(behind, key=repr)
    assert reported(written) == expected
    assert counted(written) == counted(whole) == len(records)
    assert written.findings.count() == whole.findings.where("since_ms >= 0").count()
    same_report_from_both_engines(spark, broker, end_ms)
    with history.tables(spark, folder=str(broker.folder)) as from_folder:
        assert reported(from_folder) == expected
        (kept,) = from_folder.kept
        assert kept.is_cached
    assert not kept.is_cached
    whole.close()


def same_report_from_both_engines(spark, broker, end_ms):
    """The output of `muster doctor` is the same with either engine, to the last digit."""
    config, limits = ReaderConfig(bootstrap_servers=(broker.bootstrap,)), Limits()
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        found = engine.read_history(LiveTopic(admin, config, OFFSETS_TOPIC, ReaderWarnings()), limits, None, end_ms)
        samples = lag_samples(admin, config, found.committed, end_ms, ReaderWarnings())
    by_spark = history.whole(spark, bootstrap=broker.bootstrap, limits=limits, now_ms=end_ms)
    one, other = (engine.report(each, "here", end_ms, samples) for each in (found, by_spark))
    assert as_json(one)["rebalances"]
    assert json.dumps(as_json(one)) == json.dumps(as_json(other))
    assert render(one) == render(other)


def begin(spark, broker, out, now_ms, **more):
    """Read what is there now; each run continues from the checkpoint of the previous one."""
    query = history.follow(spark, broker.bootstrap, str(out), once=True, now_ms=now_ms, **more)
    assert query.awaitTermination(PATIENCE_S)
    assert query.exception() is None


def batches(out):
    """The batches that are in the query's commit log."""
    return sorted(int(path.name) for path in (out / "_checkpoint" / "commits").glob("[0-9]*"))


def test_days_that_are_past_become_few_files_and_no_row_is_lost_or_there_twice(spark, tmp_path):
    tmp_path /= "history %20#é;=1,"
    schema = SCHEMAS["counts"]
    for day, batches_of in (("2026-11-20", range(12)), ("2026-11-21", range(10, 13)), ("2026-11-22", range(12))):
        for batch in batches_of:
            folder = tmp_path / "counts" / f"day={day}" / f"batch={batch}"
            folder.mkdir(parents=True)
            rows = [{"log_partition": batch, "kind": "k", "version": 1, "records": 1}]
            pq.write_table(pa.Table.from_pylist(rows, pa.schema([*schema][1:])), folder / "part-0.parquet")

    def read():
        rows = written(spark, str(tmp_path), "counts").collect()
        return sorted((str(row["day"]), row["log_partition"]) for row in rows)

    def folders(day):
        return sorted(int(path.name.removeprefix("batch=")) for path in (tmp_path / "counts" / f"day={day}").iterdir())

    def compact(batch, today):
        Compaction(spark, place, {"counts": schema_of("counts")}).run(batch, today)
        assert not (tmp_path / "_compact").exists()

    place, before = HadoopFolder(spark, str(tmp_path)), read()
    unfinished = tmp_path / "counts" / ".spark-staging-1" / "day=2026-11-22"  # left by a kill
    unfinished.mkdir(parents=True)
    compact(12, date(2026, 11, 22))
    assert [folders(f"2026-11-2{day}") for day in range(3)] == [[-1], [10, 11, 12], [*range(12)]]
    assert read() == before
    assert not unfinished.parent.exists()

    # A kill between two renames, on a file system that cannot exchange folders.
    place.rename("counts/day=2026-11-20", f"{OLD}/counts/day=2026-11-20")
    assert read() == before
    # A batch that is not in Spark's log may be run again: the day waits.
    compact(11, date(2026, 11, 23))
    assert [folders(f"2026-11-2{day}") for day in range(3)] == [[-1], [10, 11, 12], [*range(12)]]
    assert read() == before
    # A kill before the last step: the new copy exists next to the old one.
    (tmp_path / NEW / "counts").mkdir(parents=True)
    copytree(tmp_path / "counts" / "day=2026-11-20", tmp_path / NEW / "counts" / "day=2026-11-20")
    compact(20, date(2026, 11, 23))
    assert [folders(f"2026-11-2{day}") for day in range(3)] == [[-1], [10, 11, 12], [-1]]
    assert read() == before


def test_what_is_open_is_replaced_also_by_nothing_and_what_was_before_is_left_out(spark, tmp_path):
    source, _ = parse_history_options({"bootstrap": "127.0.0.1:1"}, streaming=False)
    stands, day_ms = (STATUSES, pickle.dumps([])), 86_400_000

    def generation(number, ended_ms):
        at = RecordPlace(0, number, number * day_ms, 0)
        return Generation("g", number, GroupKind.CLASSIC, at.timestamp_ms, ended_ms, None, None, "", None, None, (), at)

    def write(batch, **reported):
        """Like a job that has just begun."""
        rows = [(name.replace("_", "/"), to_bytes(to_table(Generation, some))) for name, some in reported.items()]
        frame = spark.createDataFrame([(name, 5, data) for name, data in [*rows, stands]], OUTPUT_DDL)
        sink = Sink(str(tmp_path), Limits(), source.fetch_settings(), since_ms=20 * day_ms, clock_ms=30 * day_ms)
        sink.write(frame, batch)
        files = [*tmp_path.glob("generations/*/*/*.parquet"), *tmp_path.glob("open/generations/*.parquet")]
        there = [row for file in files for row in pq.ParquetFile(file).read().to_pylist()]
        return [(row["generation"], row["ended_ms"]) for row in there]

    spark.conf.set("spark.sql.shuffle.partitions", "2")
    continues, ended = generation(1, None), generation(1, 21 * day_ms)
    assert write(0, open_generations=[continues], generations=[generation(0, 19 * day_ms)]) == [(1, None)]
    assert write(1, generations=[ended]) == [(1, 21 * day_ms)]
    spark.conf.unset("spark.sql.shuffle.partitions")


def test_rows_that_are_replaced_stay_until_the_next_are_written(spark, tmp_path):
    """A job that is stopped while it writes the statuses leaves those of its previous sample."""
    place = HadoopFolder(spark, str(tmp_path))

    def there():
        return [row["id"] for file in (tmp_path / "open").rglob("*.parquet") for row in pq.read_table(file).to_pylist()]

    def stops(batches):
        yield from batches
        raise RuntimeError("stopped")

    replace(place, "open/rows", spark.range(3).coalesce(1))
    with pytest.raises(PySparkException, match="stopped"):
        replace(place, "open/rows", spark.range(7).coalesce(1).mapInArrow(stops, "id long"))
    assert there() == [0, 1, 2]
    replace(place, "open/rows", spark.range(5).coalesce(1))
    assert there() == [0, 1, 2, 3, 4]
    replace(place, "open/rows", spark.range(0).coalesce(1))
    assert there() == []


def test_errors_are_sentences(spark, tmp_path):
    with pytest.raises(ConfigError, match="bootstrp is not an option of the muster source; did you mean bootstrap"):
        history.tables(spark, bootstrap="127.0.0.1:1", bootstrp="x")
    with pytest.raises(ConfigError, match="name either a cluster with bootstrap, or a folder"):
        history.entries(spark)
    with pytest.raises(ConfigError, match="subscribe cannot be set"):
        history.follow(spark, "127.0.0.1:1", str(tmp_path), subscribe="t")


def test_a_folder_in_which_a_job_cannot_go_on_is_refused(spark, tmp_path):
    def claim(name):
        HadoopFolder(spark, str(tmp_path / name)).claim("_checkpoint", ["generations", "lag"])

    claim("fresh")
    claim("fresh")  # nothing has been written yet
    for folder in ("older/_checkpoint", "newer", "fresh/lag"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "newer" / MARK).write_text('{"format": 99}')
    (tmp_path / "file").touch()
    for name, says in (
        ("older", "was written by an older version of muster"),
        ("newer", "was written by a newer version"),
        ("fresh", "starting over would write their rows again"),
        ("file", "cannot be written: .*not a directory"),
        ("file/in", "cannot be written: .*not a directory"),
    ):
        with pytest.raises(MusterError, match=says):
            claim(name)
    (tmp_path / "fresh" / "_checkpoint").mkdir()
    claim("fresh")
    with (
        HadoopFolder(spark, str(tmp_path / "held")).alone(),
        pytest.raises(ConfigError, match=r"another job is writing to .*held"),
        history.alone(spark, str(tmp_path / "held")),
    ):
        pytest.fail("two jobs write to one folder")
    with history.alone(spark, str(tmp_path / "held")):
        pass
    with (
        pytest.raises(MusterError, match=r"cannot be written: .*not a directory"),
        history.alone(spark, str(tmp_path / "file")),
    ):
        pytest.fail("it is a file")
    with pytest.raises(ConfigError, match=r"a\[1\] contains \[ \], which Spark reads as a glob pattern"):
        HadoopFolder(spark, str(tmp_path / "a[1]"))
    with pytest.raises(ConfigError, match="No FileSystem for scheme"):
        HadoopFolder(spark, "nosuch://a/b")
