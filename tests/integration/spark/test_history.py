"""The history in a real Spark: batch, stream and the small engine say the same; a query that is killed goes on."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from muster.errors import ConfigError
from muster.history import fold as rules
from muster.history.chunks import chunks
from muster.history.decode import decode
from muster.history.model import Limits, Rows
from muster.history.rows import from_table
from muster.spark import history, session
from muster.spark.history.folding import KINDS, SCHEMAS
from tests.support import history_topic
from tests.support.brokers import BrokerProcess
from tests.support.faces import PATIENCE_S, rest, until
from tests.support.spark_query import QUIET

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800), pytest.mark.usefixtures("java")]

PARTITIONS = 3
SCENARIOS = ["life-java-range", "life-java-consumer", "crash-confluent-cooperative", "deploy-java-range"]
TABLES = ("generations", "rebalances", "notes")


@pytest.fixture(scope="module")
def spark(java):
    found = session("muster history tests", "local[2,4]", **QUIET)
    yield found
    found.stop()


@pytest.fixture
def broker(tmp_path):
    with BrokerProcess(tmp_path / "data") as process:
        history_topic.create(process.bootstrap, PARTITIONS)
        yield process


def small(records, end_ms):
    """What the rules say of these records with nothing in between."""
    rows = Rows()
    for partition in range(PARTITIONS):
        own = [record for record in records if record.partition == partition]
        for chunk in chunks(decode(history_topic.raw(own)).entries, None):
            state = rules.start(chunk.group, Limits())
            rows.extend(rules.fold(state, chunk))
            rows.extend(rules.finish(state, end_ms))
    return {name: as_told(getattr(rows, name)) for name in TABLES}


def as_told(rows):
    """Rows without the epoch of the log's leader: the test's broker writes under an epoch of its own."""
    return sorted(repr(row).replace("leader_epoch=0", "leader_epoch=*") for row in rows)


def told(tables):
    found = {}
    for name in TABLES:
        table = getattr(tables, name).toArrow().select(SCHEMAS[name].names).cast(SCHEMAS[name])
        found[name] = as_told(from_table(KINDS[name], table))
    return found


def counted(tables):
    return sum(row["records"] for row in tables.counts.collect())


def test_batch_stream_and_the_small_engine_say_the_same(spark, broker, tmp_path):
    records = history_topic.recorded(SCENARIOS, PARTITIONS)
    out, middle = tmp_path / "out", len(records) // 2
    end_ms = records[-1].timestamp_ms + 10**8
    for some, now_ms in ((records[:middle], records[middle - 1].timestamp_ms), (records[middle:], end_ms)):
        history_topic.write(broker.bootstrap, some)
        begin(spark, broker, out, now_ms)
    # A kill behind the sink's write, before Spark's commit: the batch is run again.
    last = out / "_checkpoint" / "commits" / str(batches(out)[-1])
    for path in (last, last.with_name(f".{last.name}.crc")):
        path.unlink(missing_ok=True)
    begin(spark, broker, out, end_ms)
    assert batches(out)[-1] == int(last.name)
    written, whole = history.read(spark, str(out)), history.tables(spark, bootstrap=broker.bootstrap, now_ms=end_ms)
    expected = small(records, end_ms)
    assert told(whole) == expected
    assert told(written) == expected
    assert counted(written) == counted(whole) == len(records)
    assert written.findings.count() == whole.findings.where("since_ms >= 0").count()
    from_folder = history.tables(spark, folder=str(broker.folder))
    assert told(from_folder) == expected
    for kept in (whole, from_folder):
        kept.close()


def begin(spark, broker, out, now_ms):
    """Read what is there now; each run goes on from the checkpoint of the one before."""
    query = history.follow(spark, broker.bootstrap, str(out), once=True, now_ms=now_ms, maxOffsetsPerTrigger="150")
    assert query.awaitTermination(PATIENCE_S)
    assert query.exception() is None


def batches(out):
    """The batches that are in the query's commit log."""
    return sorted(int(path.name) for path in (out / "_checkpoint" / "commits").glob("[0-9]*"))


def test_the_job_stops_in_good_order_when_it_is_told_to(broker, tmp_path):
    history_topic.write(broker.bootstrap, history_topic.recorded(SCENARIOS[:1], PARTITIONS))
    out, log = tmp_path / "out", tmp_path / "log"
    command = [sys.executable, "-m", "muster", "history", "--bootstrap", broker.bootstrap, "--out", str(out)]
    with log.open("w") as told_to:
        process = subprocess.Popen(
            [*command, "--follow", "--every", "1s", "--master", "local[2]"], stdout=told_to, stderr=told_to
        )
        try:
            until(lambda: batches(out) or process.poll() is not None, rest)
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE_S) == 0, log.read_text()
        finally:
            process.kill()
    assert (out / "counts").exists()


def test_errors_are_sentences(spark, tmp_path):
    with pytest.raises(ConfigError, match="bootstrp is no option of the muster source; did you mean bootstrap"):
        history.tables(spark, bootstrap="127.0.0.1:1", bootstrp="x")
    with pytest.raises(ConfigError, match="name a cluster with bootstrap, or a folder"):
        history.entries(spark)
    with pytest.raises(ConfigError, match="subscribe cannot be set"):
        history.follow(spark, "127.0.0.1:1", str(tmp_path), subscribe="t")
