"""Folders with transactions: Kafka's are opened by muster, muster's by Kafka and its tools, and both agree."""

from __future__ import annotations

import contextlib
import random
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka import Producer as OutsideProducer

from muster import Admin, NewTopic
from muster.clock import wall_clock_ms
from muster.errors import ErrorCode
from muster.log import CleanupPolicy, LogConfig, LogError, PartitionLog
from muster.log.producers.producer_state import PartitionProducers
from muster.log.segments.aborted_index import AbortedIndex, AbortedTxn
from muster.model import TopicPartition
from muster.protocol import admin_messages as a
from muster.protocol import messages as m
from muster.protocol import transaction_messages as t
from muster.protocol.api import READ_COMMITTED
from muster.protocol.records.aborted import AbortedTransactions
from muster.protocol.records.control_records import TxnMarker
from muster.protocol.records.record_batch import BatchHeader, iter_headers, read_records
from tests.support.brokers import RawClient
from tests.support.logs import NOW, Row, batch
from tests.support.peers import KafkaBroker, run_kafka_class
from tests.support.transactions import begin, check_rebuilt, end, read_committed, sent

pytestmark = pytest.mark.slow(30)

THEIRS, OURS = TopicPartition("theirs", 0), TopicPartition("ours", 0)
PATIENCE_S = 240.0
STEPS = 40
STEP_MS = 400
CONFIG = LogConfig(segment_ms=1_000, segment_bytes=700)
SEED = 2_609
DAY = 86_400_000


class Answer(NamedTuple):
    """Kafka's answer to a fetch of committed records, and the offset of the next fetch."""

    stable: int
    aborted: list[tuple[int, int]]
    rows: list[Row]
    next_offset: int


class World(NamedTuple):
    kafka: KafkaBroker
    theirs: Path
    """A copy of the folder that Kafka has written, after its shutdown."""
    ours: PartitionLog
    """The log whose folder Kafka has opened."""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, java: str) -> Iterator[World]:
    root = tmp_path_factory.mktemp("folders")
    # So that a client's batch can begin a transaction without a coordinator.
    kafka = KafkaBroker(root / "kafka", {"transaction.partition.verification.enable": "false"})
    with kafka:
        with Admin(bootstrap_servers=kafka.bootstrap) as admin:
            configs = {"segment.ms": str(CONFIG.segment_ms)}
            admin.create_topics([NewTopic(place.topic, 1, 1, configs=configs) for place in (THEIRS, OURS)])
        live_on_kafka(kafka.bootstrap, random.Random(SEED))
        kafka.stop()
        data = kafka.folder / "data"
        shutil.copytree(data / str(THEIRS), root / str(THEIRS))
        log = PartitionLog(root / str(OURS), OURS, CONFIG)
        live_on_muster(log, random.Random(SEED))
        log.close()
        for path in [*(data / str(OURS)).glob("0*")]:
            path.unlink()
        for path in log.directory.iterdir():
            shutil.copy(path, data / str(OURS))
        kafka.start()
        # It may lead the partition without having a high watermark yet.
        wait_until(lambda: all(answer_of(kafka, of.topic, 0).last_stable_offset > 0 for of in (OURS, THEIRS)))
        opened = PartitionLog.open(log.directory, OURS, CONFIG, now=0, clean=True)
        yield World(kafka, root / str(THEIRS), opened)
        opened.abandon()


def life(rng: random.Random, produce: Callable[[int, bytes, int], None], finish: Callable[[int, bool], None]) -> None:
    """Transactions of three producers in turn, across segments; at the end one is open."""
    open_now: set[int] = set()
    for at in range(STEPS):
        who = rng.randrange(3)
        if who in open_now and rng.random() < 0.4:
            open_now.remove(who)
            finish(who, rng.random() < 0.4)
        else:
            open_now.add(who)
            produce(who, b"%d" % at, at * STEP_MS)
    for who in sorted(open_now):
        finish(who, False)
    produce(1, b"open", STEPS * STEP_MS)


def live_on_kafka(bootstrap: str, rng: random.Random) -> None:
    begun = wall_clock_ms()
    plain = OutsideProducer({"bootstrap.servers": bootstrap})
    settings = {"bootstrap.servers": bootstrap, "transaction.timeout.ms": 600_000}
    producers = [OutsideProducer({**settings, "transactional.id": f"folder-{who}"}) for who in range(3)]
    in_transaction: set[int] = set()
    for producer in producers:
        producer.init_transactions(PATIENCE_S)

    def produce(who: int, value: bytes, after_ms: int) -> None:
        if who not in in_transaction:
            producers[who].begin_transaction()
            in_transaction.add(who)
        producers[who].produce(THEIRS.topic, value, b"k", partition=0, timestamp=begun + after_ms)
        producers[who].flush(PATIENCE_S)
        if after_ms % (3 * STEP_MS) == 0:
            plain.produce(THEIRS.topic, b"plain", b"k", partition=0, timestamp=begun + after_ms)
            plain.flush(PATIENCE_S)

    def finish(who: int, commit: bool) -> None:
        in_transaction.remove(who)
        (producers[who].commit_transaction if commit else producers[who].abort_transaction)(PATIENCE_S)

    life(rng, produce, finish)


def live_on_muster(log: PartitionLog, rng: random.Random) -> None:
    begun = wall_clock_ms()
    sequences = [0, 0, 0]

    def produce(who: int, value: bytes, after_ms: int) -> None:
        now = begun + after_ms
        guard = log.begin_verification(who, 0, sequences[who], tv2=False, now=now)
        log.append(sent(who, 0, sequences[who], (b"k", value), time=now), now=now, guard=guard)
        sequences[who] += 1
        if after_ms % (3 * STEP_MS) == 0:
            log.append(batch((b"k", b"plain"), timestamp=now), now=now)

    life(rng, produce, lambda who, commit: void(end(log, who, commit=commit, now=begun)))


def void(_: object) -> None:
    """Ignores the result of a function."""


def wait_until(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def answer_of(kafka: KafkaBroker, topic: str, offset: int) -> m.PartitionData:
    asked = m.FetchTopic(topic, partitions=[m.FetchPartition(0, fetch_offset=offset, partition_max_bytes=1 << 20)])
    request = m.FetchRequest(max_wait_ms=0, min_bytes=0, topics=[asked])
    request.isolation_level = READ_COMMITTED
    with RawClient(kafka.bootstrap) as client:
        [answer] = client.ask(request, 11).responses[0].partitions
    return answer


def fetched(kafka: KafkaBroker, topic: str, offset: int) -> Answer:
    answer = answer_of(kafka, topic, offset)
    assert not answer.error_code
    aborted = [(one.producer_id, one.first_offset) for one in answer.aborted_transactions or []]
    rows: list[Row] = []
    dropped, next_offset = AbortedTransactions(aborted), offset
    data = answer.records
    assert isinstance(data, (bytes, bytearray, memoryview))
    for position, header in iter_headers(data):
        next_offset = header.next_offset
        if not dropped.drops(data, position, header) and not header.is_control:
            rows += [(one.offset, one.key, one.value) for one in read_records(data, position, header)]
    return Answer(answer.last_stable_offset, aborted, [row for row in rows if row[0] >= offset], next_offset)


def check_same(kafka: KafkaBroker, log: PartitionLog) -> None:
    """Kafka and muster agree on every offset of a log that both have opened."""
    assert sum(len(segment.aborted) for segment in log.segments) > 3
    for offset in range(log.log_end_offset + 1):
        kafkas = fetched(kafka, log.topic_partition.topic, offset)
        ours = log.read(offset, 1 << 20, isolation_level=READ_COMMITTED)
        assert ours.last_stable_offset == kafkas.stable
        assert ours.aborted is not None
        assert ours.next_offset == kafkas.next_offset
        # Kafka may list transactions that do not overlap with what is read: its precision is that of its offset index.
        near = [one for one in kafkas.aborted if one[1] < ours.next_offset] if ours.data else []
        assert ours.aborted == near
        rows = [row for row in read_committed(log, offset, 1 << 20) if row[0] < kafkas.next_offset]
        assert rows == kafkas.rows


def entries(folder: Path) -> list[AbortedTxn]:
    found = []
    for path in sorted(folder.glob("*.txnindex")):
        index = AbortedIndex(path)
        assert index.load(int(path.name[:20]), 1 << 40)
        found += list(index)
    return found


@pytest.mark.parametrize("how", ["clean", "crash", "no snapshots", "no indexes"])
def test_muster_opens_what_kafka_has_written(world, tmp_path, how):
    folder = tmp_path / str(THEIRS)
    shutil.copytree(world.theirs, folder)
    kafkas = entries(folder)
    for suffix in {"no snapshots": ["snapshot"], "no indexes": ["index", "txnindex"]}.get(how, []):
        for path in folder.glob(f"*.{suffix}"):
            path.unlink()
    log = PartitionLog.open(folder, THEIRS, LogConfig(), now=0, clean=how == "clean")
    assert [entry for segment in log.segments for entry in segment.aborted] == kafkas
    check_rebuilt(log)
    check_same(world.kafka, log)
    assert len(log.segments) > 5
    assert len(log.open_transactions()) == 1
    log.abandon()


def test_snapshots_of_kafka_are_read(world, tmp_path):
    """The newest snapshot has the open transaction, and agrees with the log about each producer."""
    newest = PartitionProducers.decode(max(world.theirs.glob("*.snapshot")).read_bytes())
    folder = tmp_path / str(THEIRS)
    shutil.copytree(world.theirs, folder)
    for path in folder.glob("*.snapshot"):
        path.unlink()
    log = PartitionLog.open(folder, THEIRS, LogConfig(), now=0, clean=False)
    assert newest.open_transactions() == log.open_transactions()
    for pid, entry in log.producers.producers.items():
        said = newest.producers[pid]
        assert (said.epoch, said.coordinator_epoch, said.last_timestamp) == (
            entry.epoch,
            entry.coordinator_epoch,
            entry.last_timestamp,
        )
        # Kafka's broker writes the last batch alone, with the same timestamp for it and for the marker after it.
        assert [one[:4] for one in said.batches] == [one[:4] for one in list(entry.batches)[-1:]]
    log.abandon()


def test_kafka_opens_what_muster_has_written(world):
    assert len(world.ours.segments) > 5
    assert entries(world.ours.directory) == entries(world.kafka.folder / "data" / str(OURS))
    check_same(world.kafka, world.ours)


def dump(*paths: Path) -> str:
    done = run_kafka_class("kafka.tools.DumpLogSegments", "--deep-iteration", "--files", ",".join(map(str, paths)))
    assert done.returncode == 0, done.stderr
    assert "xception" not in done.stdout + done.stderr
    return done.stdout


def test_kafkas_tool_prints_markers_aborted_transactions_and_open_ones(world):
    folder, log = world.ours.directory, world.ours
    output = dump(*sorted(folder.glob("*.log")))
    assert output.count("isvalid: true") == output.count("baseOffset: ") > STEPS
    assert "endTxnMarker: COMMIT coordinatorEpoch: 0" in output
    assert "endTxnMarker: ABORT coordinatorEpoch: 0" in output
    printed = dump(*sorted(folder.glob("*.txnindex")))
    for entry in entries(folder):
        numbers = f"producerId: {entry.producer_id} firstOffset: {entry.first_offset} lastOffset: {entry.last_offset}"
        assert f"version: 0 {numbers} lastStableOffset: {entry.last_stable_offset}" in printed
    [open_now] = log.open_transactions()
    snapshot = dump(max(folder.glob("*.snapshot")))
    assert f"coordinatorEpoch: 0 currentTxnFirstOffset: OptionalLong[{open_now.first_offset}]" in snapshot
    assert "currentTxnFirstOffset: OptionalLong.empty" in snapshot


# --- the rules, compared -----------------------------------------------------------------------------------------

Said = tuple[int, int]
"""Error and offset."""


class Sides:
    """A partition of Kafka and one of muster that get the same calls."""

    def __init__(self, kafka: KafkaBroker, topic: str, folder: Path) -> None:
        self.client = RawClient(kafka.bootstrap)
        self.topic = topic
        config = LogConfig(transaction_partition_verification_enable=False)
        self.log = PartitionLog(folder / f"{topic}-0", TopicPartition(topic, 0), config)

    def produce(self, pid: int, epoch: int, sequence: int, count: int, *, transactional: bool) -> tuple[Said, Said]:
        """A batch: Kafka's answer and muster's."""
        numbers = {"producer_id": pid, "producer_epoch": epoch, "base_sequence": sequence}
        now = wall_clock_ms()
        data = bytes(batch(*[(b"k", b"v")] * count, timestamp=now, transactional=transactional, **numbers))
        asked = m.TopicProduceData(self.topic, partition_data=[m.PartitionProduceData(0, data)])
        request = m.ProduceRequest("any" if transactional else None, 1, 30_000, [asked])
        [answer] = self.client.ask(request, 9).responses[0].partition_responses
        try:
            ours = (0, self.log.append(data, now=now).base_offset)
        except LogError as error:
            ours = (error.code, -1)
        return (answer.error_code, answer.base_offset), ours

    def end(self, pid: int, epoch: int, *, commit: bool, coordinator_epoch: int, version: int) -> tuple[int, int]:
        """A marker: Kafka's error and muster's."""
        marker = t.WritableTxnMarker(pid, epoch, commit, [t.WritableTxnMarkerTopic(self.topic, [0])])
        marker.coordinator_epoch, marker.transaction_version = coordinator_epoch, version
        answer = self.client.ask(t.WriteTxnMarkersRequest([marker]), 2 if version else 1)
        written = TxnMarker(pid, epoch, commit, coordinator_epoch, version)
        ours = self.log.append_marker(written, now=wall_clock_ms())
        return answer.markers[0].topics[0].partitions[0].error_code, ours.error

    def close(self) -> None:
        self.client.close()
        self.log.abandon()

    def check_producers(self) -> None:
        asked = a.DescribeProducersRequest([a.TopicRequest(self.topic, [0])])
        [found] = self.client.ask(asked, 0).topics[0].partitions
        assert {
            one.producer_id: (
                one.producer_epoch,
                one.last_sequence,
                one.coordinator_epoch,
                one.current_txn_start_offset,
            )
            for one in found.active_producers
        } == {
            pid: (
                entry.epoch,
                entry.batches[-1].last_sequence if entry.batches else -1,
                entry.coordinator_epoch,
                entry.first_offset,
            )
            for pid, entry in self.log.producers.producers.items()
        }


@pytest.mark.parametrize("seed", range(4))
def test_kafka_and_muster_decide_alike(world, tmp_path, seed):
    """Batches and markers of two producers, valid and invalid ones: both write each one, or both refuse it with the
    same code."""
    topic, rng = f"side-by-side-{seed}", random.Random(seed)
    with Admin(bootstrap_servers=world.kafka.bootstrap) as admin:
        admin.create_topics([NewTopic(topic, 1, 1)])
    wait_until(lambda: not answer_of(world.kafka, topic, 0).error_code)
    with contextlib.closing(Sides(world.kafka, topic, tmp_path)) as sides:
        codes = {live_side_by_side(sides, rng) for _ in range(250)}
        sides.check_producers()
        check_same(world.kafka, sides.log)
        check_rebuilt(sides.log)
    expected = {"NONE", "INVALID_PRODUCER_EPOCH", "OUT_OF_ORDER_SEQUENCE_NUMBER", "INVALID_TXN_STATE"}
    assert {ErrorCode(code).name for code in codes} == {*expected, "TRANSACTION_COORDINATOR_FENCED"}


def live_side_by_side(sides: Sides, rng: random.Random) -> int:
    """One batch or marker; returns the code, which must be the same."""
    pid = rng.choice((50, 51))
    entry = sides.log.producers.producers.get(pid)
    epoch = max((entry.epoch if entry is not None else 0) + rng.choice((0, 0, 0, 0, 0, 1, -1)), 0)
    if rng.random() < 0.65:
        following = entry.batches[-1].last_sequence + 1 if entry is not None and entry.batches else 0
        sequence = max(rng.choice((following, following, following, 0, following - 1, following + 1)), 0)
        count, transactional = rng.choice((1, 2)), rng.random() < 0.8
        kafkas, ours = sides.produce(pid, epoch, sequence, count, transactional=transactional)
        assert ours == kafkas, f"{pid} {epoch} {sequence} {count} {transactional}"
        return ours[0]
    commit, coordinator_epoch, version = rng.random() < 0.5, rng.choice((5, 5, 5, 6, 4)), rng.choice((0, 1, 2))
    numbers = {"coordinator_epoch": coordinator_epoch, "version": version}
    kafkas_code, our_code = sides.end(pid, epoch, commit=commit, **numbers)
    assert our_code == kafkas_code, f"{pid} {epoch} {commit} {numbers}"
    return our_code


def test_kafkas_tool_reads_what_muster_has_compacted(tmp_path, java):
    """An empty aborted batch, a marker with a delete horizon, and a marker that is empty except for its epoch."""
    config = LogConfig(segment_bytes=300, cleanup_policy=CleanupPolicy.COMPACT)
    log = PartitionLog(tmp_path / "compacted-0", TopicPartition("compacted", 0), config)
    begin(log, 7)
    end(log, 7, commit=False, epoch=1, version=2)
    begin(log, 8)
    end(log, 8, commit=False)
    begin(log, 9)
    end(log, 9, commit=True)
    log.append(batch((b"k", b"newer")), now=NOW)
    kinds: set[tuple[bool, bool, bool]] = set()
    for days in (0, 2, 4):
        before = len(log.segments)
        while len(log.segments) == before:
            log.append(batch((b"filler", b"f" * 200)), now=NOW)
        log.flush()
        log.producers.producers.pop(9, None)
        assert log.compact(NOW + days * DAY) is not None
        kinds |= {(one.is_control, not one.record_count, one.delete_horizon_ms is not None) for one in check_tool(log)}
    assert {(False, True, False), (True, False, False), (True, False, True), (True, True, False)} <= kinds
    log.abandon()


def check_tool(log: PartitionLog) -> list[BatchHeader]:
    """Each batch is printed as it is in the log. Returns their headers."""
    printed = [line for line in dump(*sorted(log.directory.glob("*.log"))).splitlines() if "baseOffset: " in line]
    headers = [header for segment in log.segments for _, header in segment.headers()]
    assert [line.split("baseOffset: ")[1].split()[0] for line in printed] == [str(one.base_offset) for one in headers]
    for line, header in zip(printed, headers, strict=True):
        horizon = "OptionalLong.empty" if (at := header.delete_horizon_ms) is None else f"OptionalLong[{at}]"
        for said in (
            f" count: {header.record_count} ",
            f" producerId: {header.producer_id} producerEpoch: {header.producer_epoch} ",
            f" isTransactional: {str(header.is_transactional).lower()} isControl: {str(header.is_control).lower()} ",
            f" deleteHorizonMs: {horizon} ",
            " isvalid: true",
        ):
            assert said in line
    return headers
