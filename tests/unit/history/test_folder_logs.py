"""What a broker's folder contains about the logs that groups read, and about the transactions that are open in them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.history.doctor import Selection, read_folder
from muster.history.model import OpenTransaction
from muster.history.sources.folder_logs import FolderLog, folder_logs, open_in_folder
from muster.history.sources.raw_records import OFFSETS_TOPIC
from muster.history.sources.reader_warnings import ReaderWarnings
from muster.history.sources.segments import OpenedTransaction
from muster.protocol.group_records import OffsetCommitRecord, encode_record
from muster.protocol.messages import OffsetCommitKey, OffsetCommitValue
from muster.protocol.records.producer_snapshots import SnapshotEntry, encode_snapshot
from muster.protocol.records.record_batch import BatchBuilder
from muster.protocol.transaction_messages import PartitionsSchema, TransactionLogKey, TransactionLogValue
from muster.protocol.transaction_records import TransactionRecord
from muster.protocol.transaction_records import encode_record as encode_transaction
from tests.support.scale import examples
from tests.unit.history.test_folder import ABORT, COMMIT, FIRST, batch, marker, of

T0 = ("t", 0)
HOUR_MS = 3_600_000
ONGOING, PREPARE_COMMIT, COMPLETE = 1, 2, 4


def log_of(root: Path, *batches: bytes, partition: str = "t-0", base: int = 0) -> Path:
    folder = root / partition
    folder.mkdir(exist_ok=True)
    (folder / f"{base:020}.log").write_bytes(b"".join(batches))
    return folder


def snapshot(folder: Path, offset: int, *entries: tuple[int, int, int]) -> Path:
    """Each entry has a producer id, its epoch and the first offset of its transaction."""
    path = folder / f"{offset:020}.snapshot"
    made = [SnapshotEntry(producer, epoch, -1, -1, 0, 1_500, 0, first) for producer, epoch, first in entries]
    path.write_bytes(encode_snapshot(made))
    return path


def state(root: Path, partition: int, *records: tuple[str, int, int | None, bool]) -> None:
    """Transactional id, its producer, its state (None: it has expired), and whether t-0 is in its transaction."""
    folder = root / f"__transaction_state-{partition}"
    folder.mkdir()
    builder = BatchBuilder()
    for name, producer_id, status, has_it in records:
        places = [PartitionsSchema("t", [3, 0] if has_it else [3])]
        value = None
        if status is not None:
            value = TransactionLogValue(producer_id, transaction_status=status, transaction_partitions=places)
        builder.append(0, *encode_transaction(TransactionRecord(TransactionLogKey(name), value), 1))
    (folder / FIRST).write_bytes(bytes(builder.build()) if records else b"")


def logs(root: Path) -> dict[tuple[str, int], FolderLog]:
    return folder_logs([root], [T0, ("t", 1), ("another", 0)], ReaderWarnings())


# ------------------------------------------------------------------------------------------------------------- one log


def test_a_log_has_its_bounds_and_its_open_transactions(tmp_path: Path) -> None:
    log_of(tmp_path, batch(3, b"a", b"b"), of(5, b"c", 7), of(6, b"d", 8), marker(7, COMMIT, 8), base=3)
    log_of(tmp_path, of(8, b"e", 7), base=8)
    assert logs(tmp_path) == {T0: FolderLog(3, 9, {7: OpenedTransaction(5, 0, 1008)}, 1008)}


def test_an_empty_segment_says_where_the_log_ends(tmp_path: Path) -> None:
    log_of(tmp_path, base=4)
    log_of(tmp_path, base=9)
    assert logs(tmp_path) == {T0: FolderLog(4, 9, {}, -1)}


def test_a_snapshot_has_what_segments_no_longer_have(tmp_path: Path) -> None:
    """Retention deletes segments in which an open transaction begins, as long as it does not end."""
    folder = log_of(tmp_path, batch(90, b"a"), marker(91, ABORT, 8), base=90)
    snapshot(folder, 90, (7, 3, 40), (8, 0, 60), (9, 1, -1))
    assert logs(tmp_path) == {T0: FolderLog(90, 92, {7: OpenedTransaction(40, 3, 1_500)}, 1_500)}


@pytest.mark.parametrize("damage", [lambda data: data[:-1], lambda data: data[:9] + b"\xff" + data[10:], lambda _: b""])
def test_of_a_damaged_snapshot_the_one_before_it_counts(tmp_path: Path, damage) -> None:
    folder = log_of(tmp_path, of(0, b"a", 7), of(1, b"b", 8), marker(2, COMMIT, 8))
    snapshot(folder, 1, (7, 0, 0))
    newest = snapshot(folder, 3, (9, 0, 2))
    newest.write_bytes(damage(newest.read_bytes()))
    (found,) = logs(tmp_path).values()
    assert (found.end, {producer: each.first for producer, each in found.opened.items()}) == (3, {7: 0})


@settings(max_examples=examples(60), deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from([7, 8, 9]), st.sampled_from(["data", "commit", "abort"])), max_size=12),
    st.data(),
)
def test_wherever_a_snapshot_was_taken_the_same_transactions_are_open(tmp_path_factory, events, data) -> None:
    """And wherever a segment ends."""
    batches, opened = [], [dict[int, int]()]
    for at, (producer, kind) in enumerate(events):
        now = dict(opened[-1])
        if kind == "data":
            batches.append(of(at, b"v", producer))
            now.setdefault(producer, at)
        else:
            batches.append(marker(at, COMMIT if kind == "commit" else ABORT, producer))
            now.pop(producer, None)
        opened.append(now)
    roll, taken = (data.draw(st.integers(0, len(batches))) for _ in range(2))
    root = tmp_path_factory.mktemp("log")
    folder = log_of(root, *batches[:roll])
    if roll:
        log_of(root, *batches[roll:], base=roll)
    else:
        log_of(root, *batches)
    snapshot(folder, taken, *((producer, 0, first) for producer, first in opened[taken].items()))
    (found,) = logs(root).values()
    assert found.end == len(batches)
    assert {producer: each.first for producer, each in found.opened.items()} == opened[-1]


# ------------------------------------------------------------------------------------------ who has the transaction


@pytest.mark.parametrize(
    ("states", "now_ms", "name", "hangs"),
    [
        ({0: [("orders", 7, ONGOING, True)]}, HOUR_MS, "orders", False),
        ({0: [("orders", 7, PREPARE_COMMIT, True)]}, HOUR_MS, "orders", False),
        ({0: [("orders", 7, ONGOING, False)]}, HOUR_MS, "orders", True),
        ({0: [("orders", 7, COMPLETE, False)]}, HOUR_MS, "orders", True),
        ({0: [("orders", 7, COMPLETE, False)]}, 1_200_000, "orders", False),
        ({0: [("orders", 7, ONGOING, True), ("orders", 8, ONGOING, True)], 1: []}, HOUR_MS, None, True),
        ({0: [("another", 9, ONGOING, True)], 1: []}, HOUR_MS, None, True),
        ({0: [("orders", 7, ONGOING, True), ("orders", 7, None, True)], 1: []}, HOUR_MS, None, True),
        ({0: [], 1: []}, HOUR_MS, None, True),
        ({0: []}, HOUR_MS, None, False),
        ({1: [], 2: []}, HOUR_MS, None, False),
        ({}, HOUR_MS, None, False),
    ],
)
def test_a_transaction_hangs_if_its_coordinator_surely_does_not_have_it(tmp_path, states, now_ms, name, hangs) -> None:
    """Without the whole of `__transaction_state`, another broker's coordinator may have the producer's id."""
    log_of(tmp_path, of(0, b"a", 7), of(1, b"b", 7))
    for partition, records in states.items():
        state(tmp_path, partition, *records)
    remarks = ReaderWarnings()
    found = open_in_folder([tmp_path], logs(tmp_path), now_ms, remarks)
    assert found == {T0: OpenTransaction(0, 0, 7, 0, name, 1001, hangs)}
    assert bool(remarks.sentences()) == (name is None and not hangs)


def test_the_oldest_of_several_transactions_is_reported(tmp_path: Path) -> None:
    log_of(tmp_path, of(0, b"a", 7), of(1, b"b", 8), marker(2, COMMIT, 7), of(3, b"c", 7))
    (found,) = open_in_folder([tmp_path], logs(tmp_path), 5, ReaderWarnings()).values()
    assert (found.producer_id, found.start_offset, found.last_stable_offset) == (8, 1, 1)


def test_no_time_but_that_of_the_logs_counts(tmp_path: Path) -> None:
    """A folder that was copied an hour ago, a second after the transaction began."""
    log_of(tmp_path, of(0, b"a", 7))
    state(tmp_path, 0, ("orders", 7, COMPLETE, False))
    assert [each.hangs for each in open_in_folder([tmp_path], logs(tmp_path), 0, ReaderWarnings()).values()] == [False]


# ------------------------------------------------------------------------------------------------------- the report


def committed(*rows: tuple[str, int, int]) -> bytes:
    builder = BatchBuilder()
    for topic, partition, offset in rows:
        value = OffsetCommitValue(offset, -1, "", HOUR_MS)
        builder.append(HOUR_MS, *encode_record(OffsetCommitRecord(OffsetCommitKey("g", topic, partition), value)))
    return bytes(builder.build())


def test_the_doctor_knows_the_lag_of_the_partitions_in_the_folder(tmp_path: Path) -> None:
    """But not if a log ends before the committed offset: the copy is older, or the replica lags behind."""
    log_of(tmp_path, committed(("t", 0, 2), ("t", 1, 5), ("u", 0, 1)), partition=f"{OFFSETS_TOPIC}-0")
    log_of(tmp_path, batch(1, b"a", b"b", b"c"), base=1)
    log_of(tmp_path, batch(0, b"a"), partition="t-1")
    report = read_folder([tmp_path], Selection()).report()
    assert [(row.topic, row.partition, row.log_start_offset, row.lag_records, row.is_exact) for row in report.lag] == [
        ("t", 0, 1, 2, False)
    ]
    said = " ".join(report.warnings)
    assert "the lag of 1 partition is not known: the folder does not have the logs" in said
    assert "the lag of 1 partition is not known: the logs end before the committed offsets" in said
    assert [finding.rule for finding in report.findings] == []


def test_the_doctor_names_the_transaction_that_a_group_waits_for(tmp_path: Path) -> None:
    log_of(tmp_path, committed(("t", 0, 1)), partition=f"{OFFSETS_TOPIC}-0")
    log_of(tmp_path, batch(0, b"a"), of(1, b"b", 7), batch(2, b"c"))
    state(tmp_path, 0, ("orders", 7, ONGOING, True))
    (finding,) = read_folder([tmp_path], Selection()).report().findings
    assert finding.rule == "open_transaction"
    assert "2 offsets from 1 on are held back by a transaction of orders (producer 7, epoch 0)" in finding.sentence
