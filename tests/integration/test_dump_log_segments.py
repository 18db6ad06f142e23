"""Kafka's own DumpLogSegments reads what the log writes: segments, both indexes, producer snapshots."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from confluent_kafka import Producer as ConfluentProducer

from muster import Consumer, Producer
from muster.coordinator.transactions.entry import COMPLETE_COMMIT, EMPTY, ONGOING, PREPARE_ABORT, PREPARE_COMMIT
from muster.log import CleanupPolicy, LogConfig, LogStore
from muster.model import TopicPartition
from muster.protocol.records.compression import Compression
from muster.protocol.records.record_batch import RecordFields
from tests.support import peers
from tests.support.brokers import BrokerProcess
from tests.support.written import build_batch

NOW = 1_700_000_000_000
BATCHES = 400
GAPS = "non-consecutive"
COMPLAINTS = ("mismatch", GAPS, "out of order", "exception", "corrupt", "error", "not found", "no record")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, java: str) -> Path:
    """A log of several segments, with every codec, headers, nulls, an idempotent producer, and one compacted."""
    root = tmp_path_factory.mktemp("dumped")
    store = LogStore.open(root, now=NOW)
    plain = store.create(TopicPartition("plain", 0), LogConfig(segment_bytes=16_000, index_interval_bytes=500))
    compacted = store.create(
        TopicPartition("compacted", 0),
        LogConfig(segment_bytes=16_000, index_interval_bytes=500, cleanup_policy=CleanupPolicy.COMPACT),
    )
    sequence = 0
    for at in range(BATCHES):
        value = None if at % 11 == 0 else b"value %d" % at * 8
        record: RecordFields = (NOW + 7 * at - at % 5, b"key %d" % (at % 13), value, [("h", b"x")])
        records = [record] * (1 + at % 4)
        batch = build_batch(
            records, compression=Compression(at % 5), producer_id=9, producer_epoch=0, base_sequence=sequence
        )
        sequence += len(records)
        plain.append(bytes(batch), now=NOW)
        compacted.append(batch, now=NOW)
    compacted.flush()  # compaction only reads what is durable
    assert compacted.compact(NOW) is not None
    store.close()
    return root


def dump(*options: str, gaps: bool = False) -> str:
    """What the tool prints; it must find nothing wrong. It also reports the gaps that compaction leaves everywhere."""
    done = peers.run_kafka_class("kafka.tools.DumpLogSegments", *options)
    assert done.returncode == 0, done.stderr
    output = done.stdout + done.stderr
    for complaint in COMPLAINTS:
        assert (gaps and complaint == GAPS) or complaint not in output.lower(), output[-3_000:]
    return done.stdout


def files(folder: Path, pattern: str) -> str:
    found = sorted(folder.glob(pattern))
    assert found
    return ",".join(map(str, found))


@pytest.mark.parametrize("topic", ["plain-0", "compacted-0"])
def test_indexes_point_to_where_the_batches_are(folder, topic):
    output = dump("--files", files(folder / topic, "*.index"))
    assert output.count("position:") > (20 if topic == "plain-0" else 0)
    output = dump("--files", files(folder / topic, "*.timeindex"))
    assert output.count("timestamp:") > 3


def test_indexes_are_sane(folder):
    indexes = files(folder / "plain-0", "*.index") + "," + files(folder / "plain-0", "*.timeindex")
    assert "passed sanity check" in dump("--index-sanity-check", "--files", indexes)


def test_every_record_is_printed(folder):
    output = dump("--deep-iteration", "--print-data-log", "--files", files(folder / "plain-0", "*.log"))
    printed = [line for line in output.splitlines() if line.startswith("| offset: ")]
    assert [int(line.split()[2]) for line in printed] == list(range(len(printed)))
    assert len(printed) == sum(1 + at % 4 for at in range(BATCHES))
    assert output.count("isvalid: true") == BATCHES
    assert "payload: value 399value 399" in printed[-1]
    assert "headerKeys: [h]" in printed[-1]


def test_compacted_segments_are_read(folder):
    output = dump("--deep-iteration", "--print-data-log", "--files", files(folder / "compacted-0", "*.log"), gaps=True)
    printed = [line for line in output.splitlines() if line.startswith("| offset: ")]
    offsets = [int(line.split()[2]) for line in printed]
    assert offsets == sorted(offsets)
    assert len(offsets) < 400
    assert {f"key {at}" for at in range(13)} <= {line.split("key: ")[1].split(" payload")[0] for line in printed}
    assert "isvalid: false" not in output


def test_the_producer_snapshot_is_read(folder):
    newest = max((folder / "plain-0").glob("*.snapshot"))
    output = dump("--files", str(newest))
    last = sum(1 + at % 4 for at in range(BATCHES)) - 1
    assert "producerId: 9 producerEpoch: 0" in output
    assert f"lastSequence: {last} lastOffset: {last} offsetDelta: {(BATCHES - 1) % 4}" in output


def test_the_topic_of_transactions_can_be_read_with_kafkas_decoder(muster_process: BrokerProcess, java: str) -> None:
    """The transactions that `muster serve` has decided, decoded by Kafka's --transaction-log-decoder. The second
    transaction begins when the first is complete."""
    producer = ConfluentProducer({"bootstrap.servers": muster_process.bootstrap, "transactional.id": "decoded"})
    producer.init_transactions(300)
    for end in (producer.commit_transaction, producer.abort_transaction):
        producer.begin_transaction()
        producer.produce("t", b"value", partition=0)
        producer.flush(300)
        end(300)
    muster_process.stop()
    topic = [str(log) for log in sorted(muster_process.folder.glob("__transaction_state-*/*.log"))]
    decoded = dump("--transaction-log-decoder", "--files", ",".join(topic))
    states = [int(state) for state in re.findall(r'"transactionalId":"decoded".*"transactionStatus":(\d)', decoded)]
    assert states[:6] == [EMPTY, ONGOING, PREPARE_COMMIT, COMPLETE_COMMIT, ONGOING, PREPARE_ABORT], decoded


def test_the_groups_topic_can_be_read_with_kafkas_decoder(muster_process: BrokerProcess, java: str) -> None:
    """A group and its commits, written by `muster serve`, decoded by Kafka's --offsets-decoder (C8, O1)."""
    bootstrap = muster_process.bootstrap
    with Producer(bootstrap_servers=bootstrap) as producer:
        producer.send_and_wait("t", b"value", partition=0)
    with Consumer(bootstrap_servers=bootstrap, group_id="decoded", auto_offset_reset="earliest") as consumer:
        consumer.subscribe(["t"])
        while not consumer.poll(timeout_ms=1_000):
            pass
        consumer.commit()
    muster_process.stop()
    topic = [str(log) for log in sorted(muster_process.folder.glob("__consumer_offsets-*/*.log"))]
    decoded = dump("--offsets-decoder", "--files", ",".join(topic))
    assert '"group":"decoded","topic":"t","partition":0' in decoded
    assert '"offset":1' in decoded
    assert '"protocolType":"consumer","generation":1,"protocol":"range"' in decoded
