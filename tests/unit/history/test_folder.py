"""A folder's logs are read completely, and faults in them are reported."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.history import tables
from muster.history.sources import segments
from muster.history.sources.folder import FolderTopic, NotALogError, missing
from muster.history.sources.raw_records import EVENTS_TOPIC, OFFSETS_TOPIC
from muster.history.sources.reader_warnings import ReaderWarnings
from muster.protocol.records.compression import Compression
from muster.protocol.records.record_batch import HEADER_SIZE, BatchBuilder
from tests.support.scale import examples

FIRST = "00000000000000000000.log"
ABORT, COMMIT = b"\x00\x00\x00\x00", b"\x00\x00\x00\x01"


def batch(at: int, *values: bytes | None, epoch: int = 3, **flags: Any) -> bytes:
    builder = BatchBuilder()
    for value in values:
        builder.append(1000 + at, b"key", value)
    return bytes(builder.build(base_offset=at, leader_epoch=epoch, **flags))


def marker(at: int, kind: bytes, producer_id: int) -> bytes:
    builder = BatchBuilder()
    builder.append(0, kind, bytes(6))
    return bytes(builder.build(base_offset=at, transactional=True, control=True, producer_id=producer_id))


def of(at: int, value: bytes, producer_id: int) -> bytes:
    return batch(at, value, transactional=True, producer_id=producer_id, producer_epoch=0, base_sequence=0)


def in_folder(root: Path, *batches: bytes, partition: int = 0, name: str = FIRST) -> Path:
    folder = root / f"{OFFSETS_TOPIC}-{partition}"
    folder.mkdir(exist_ok=True)
    (folder / name).write_bytes(b"".join(batches))
    return folder


def read(*paths: Path, topic: str = OFFSETS_TOPIC) -> tuple[dict[int, list[tuple[int, bytes]]], list[str]]:
    remarks = ReaderWarnings()
    found = FolderTopic(paths, topic, remarks)
    rows: dict[int, list[Any]] = {}
    for partition in found.records:
        table = pa.Table.from_batches(found.read(partition), tables.RAW)
        rows[partition] = list(zip(table["offset"].to_pylist(), table["value"].to_pylist(), strict=True))
    return rows, remarks.sentences()


def test_a_row_has_all_that_the_log_says(tmp_path: Path):
    in_folder(tmp_path, batch(5, b"a", None, epoch=9), of(7, b"c", 1), marker(8, COMMIT, 1), partition=7)
    found = FolderTopic([tmp_path], OFFSETS_TOPIC, ReaderWarnings())
    rows = [row for part in found.read(7) for row in part.to_pylist()]
    assert [tuple(row.values()) for row in rows] == [
        (7, 5, 1005, 9, b"key", b"a", False),
        (7, 6, 1005, 9, b"key", None, False),
        (7, 7, 1007, 3, b"key", b"c", True),
    ]
    assert list(rows[0]) == tables.RAW.names


def test_a_data_directory_a_partition_and_copied_files_are_read_alike(tmp_path: Path):
    one = in_folder(tmp_path, batch(0, b"a"), batch(1, b"b"), partition=3)
    in_folder(tmp_path, batch(2, b"c"), partition=3, name="00000000000000000002.log")
    (one / "00000000000000000000.index").write_bytes(b"not a log")
    (one / "00000000000000000000.log.deleted").write_bytes(batch(0, b"old"))
    (tmp_path / f"{OFFSETS_TOPIC}-4.{'a' * 32}-delete").mkdir()
    (tmp_path / "flights-0").mkdir()
    (tmp_path / "flights-0" / FIRST).write_bytes(batch(0, b"no"))
    copied = tmp_path / "copied"
    copied.mkdir()
    (copied / "b.log").write_bytes((one / FIRST).read_bytes())
    (copied / "a.log").write_bytes((one / "00000000000000000002.log").read_bytes())
    rows = [(0, b"a"), (1, b"b"), (2, b"c")]
    assert read(tmp_path) == ({3: rows}, [])
    assert read(one) == ({3: rows}, [])
    assert read(copied) == ({0: rows}, [])
    assert read(one / FIRST) == ({3: rows[:2]}, [])


def test_a_folder_without_a_log_has_no_partition(tmp_path: Path):
    (tmp_path / "flights-0").mkdir()
    (tmp_path / "flights-0" / FIRST).write_bytes(batch(0, b"no"))
    for path in (tmp_path, tmp_path / "flights-0"):
        assert read(path) == ({}, [])
    assert isinstance(missing([tmp_path], OFFSETS_TOPIC), NotALogError)
    with pytest.raises(FileNotFoundError):
        read(tmp_path / "not-there")


def test_copied_files_are_not_a_log_of_events(tmp_path: Path):
    (tmp_path / FIRST).write_bytes(batch(0, b"a"))
    assert read(tmp_path, topic=EVENTS_TOPIC) == ({}, [])


def test_a_partition_of_two_folders_is_read_once(tmp_path: Path):
    first, second = tmp_path / "one", tmp_path / "two"
    for folder in (first, second):
        folder.mkdir()
        in_folder(folder, batch(0, b"a"))
    rows, said = read(first, second)
    assert rows == {0: [(0, b"a")]}
    assert "more than once" in said[0]


@pytest.mark.parametrize("codec", list(Compression))
def test_compressed_batches_are_read(tmp_path: Path, codec: Compression):
    in_folder(tmp_path, batch(0, b"a" * 100, b"b", compression=codec), batch(2, b"c"))
    assert read(tmp_path) == ({0: [(0, b"a" * 100), (1, b"b"), (2, b"c")]}, [])


def test_a_batch_that_two_segments_have_is_read_once(tmp_path: Path):
    in_folder(tmp_path, batch(0, b"a"), batch(1, b"b"))
    in_folder(tmp_path, batch(1, b"b", b"c"), batch(3, b"d"), name="00000000000000000001.log")
    assert read(tmp_path)[0] == {0: [(0, b"a"), (1, b"b"), (2, b"c"), (3, b"d")]}


# --- transactions ----------------------------------------------------------------------------------------------------


def test_aborted_commits_do_not_count_and_committed_ones_do(tmp_path: Path):
    in_folder(
        tmp_path,
        of(0, b"kept", 1),
        of(1, b"void", 2),
        batch(2, b"plain"),
        marker(3, ABORT, 2),
        of(4, b"kept after an abort", 2),
        marker(5, COMMIT, 1),
        marker(6, COMMIT, 2),
        of(7, b"void again", 1),
        marker(8, ABORT, 1),
    )
    assert read(tmp_path) == ({0: [(0, b"kept"), (2, b"plain"), (4, b"kept after an abort")]}, [])


def test_a_transaction_may_span_segments(tmp_path: Path):
    in_folder(tmp_path, of(0, b"void", 1), batch(1, b"a"))
    in_folder(tmp_path, of(2, b"void", 1), marker(3, ABORT, 1), of(4, b"b", 1), name="00000000000000000002.log")
    in_folder(tmp_path, of(5, b"c", 1), marker(6, COMMIT, 1), name="00000000000000000005.log")
    assert read(tmp_path) == ({0: [(1, b"a"), (4, b"b"), (5, b"c")]}, [])


def test_a_transaction_that_has_not_ended_does_not_count(tmp_path: Path):
    in_folder(tmp_path, of(0, b"open", 1), batch(1, b"a"))
    rows, said = read(tmp_path)
    assert rows == {0: [(1, b"a")]}
    assert "offset 0" in said[0]


EVENTS = st.lists(st.tuples(st.sampled_from(["write", "abort", "commit", "plain"]), st.integers(0, 2)), max_size=30)


@settings(max_examples=examples(60), deadline=None)
@given(events=EVENTS, piece=st.sampled_from([1, 200, 4 << 20]))
def test_what_counts_of_any_transactions(tmp_path_factory: pytest.TempPathFactory, events: list[Any], piece: int):
    waiting: dict[int, list[tuple[int, bytes]]] = {}
    batches, expected = [], []
    for at, (kind, producer_id) in enumerate(events):
        if kind == "write":
            batches.append(of(at, b"%d" % at, producer_id))
            waiting.setdefault(producer_id, []).append((at, b"%d" % at))
        elif kind == "plain":
            batches.append(batch(at, b"%d" % at))
            expected.append((at, b"%d" % at))
        else:
            batches.append(marker(at, COMMIT if kind == "commit" else ABORT, producer_id))
            expected += waiting.pop(producer_id, []) if kind == "commit" else []
            waiting.pop(producer_id, None)
    path = tmp_path_factory.mktemp("log")
    in_folder(path, *batches)
    usual, segments.PIECE_BYTES = segments.PIECE_BYTES, piece
    try:
        assert read(path)[0] == {0: sorted(expected)}
    finally:
        segments.PIECE_BYTES = usual


# --- damage ----------------------------------------------------------------------------------------------------------


def test_a_torn_tail_is_said(tmp_path: Path):
    in_folder(tmp_path, batch(0, b"a"), batch(1, b"b")[:-3])
    rows, said = read(tmp_path)
    assert rows == {0: [(0, b"a")]}
    assert "not a whole batch" in said[0]


def test_a_reserved_tail_of_zeros_is_nothing_to_say(tmp_path: Path):
    in_folder(tmp_path, batch(0, b"a"), bytes(5000))
    assert read(tmp_path) == ({0: [(0, b"a")]}, [])


def test_an_empty_file_is_nothing_to_say(tmp_path: Path):
    in_folder(tmp_path)
    assert read(tmp_path) == ({0: []}, [])


def test_a_batch_with_a_wrong_crc_is_skipped(tmp_path: Path):
    bad = bytearray(batch(1, b"b"))
    bad[-1] ^= 1
    in_folder(tmp_path, batch(0, b"a"), bytes(bad), batch(2, b"c"))
    rows, said = read(tmp_path)
    assert rows == {0: [(0, b"a"), (2, b"c")]}
    assert "offsets 1 to 1" in said[0]


@pytest.mark.parametrize("length", [-1, 0, 5, 2**31 - 1, 10_000])
def test_after_bytes_that_are_not_a_batch_the_next_one_is_found(tmp_path: Path, length: int):
    bad = bytearray(batch(1, b"b"))
    bad[8:12] = length.to_bytes(4, "big", signed=True)
    in_folder(tmp_path, batch(0, b"a"), bytes(bad), batch(2, b"c"), batch(3, b"d"))
    rows, said = read(tmp_path)
    assert rows == {0: [(0, b"a"), (2, b"c"), (3, b"d")]}
    assert "which are not a record batch" in said[0]


def test_rubbish_and_former_formats_do_not_end_the_reading(tmp_path: Path):
    in_folder(tmp_path, os.urandom(3000))
    in_folder(tmp_path, batch(9, b"a"), name="00000000000000000009.log")
    older = bytes(8) + (30).to_bytes(4, "big") + bytes(4) + b"\x01" + bytes(40)
    in_folder(tmp_path, older, partition=1)
    rows, said = read(tmp_path)
    assert rows == {0: [(9, b"a")], 1: []}
    assert any("before Kafka 0.11" in sentence for sentence in said)


@settings(max_examples=examples(60), deadline=None)
@given(data=st.data())
def test_whatever_the_damage_what_is_read_is_what_was_written(tmp_path_factory: pytest.TempPathFactory, data: Any):
    values = [b"v%d" % at for at in range(8)]
    log = bytearray(b"".join(batch(at, value) for at, value in enumerate(values)))
    for _ in range(data.draw(st.integers(0, 3))):
        at = data.draw(st.integers(0, len(log) - 1))
        log[at] ^= data.draw(st.integers(1, 255))
    path = tmp_path_factory.mktemp("log")
    in_folder(path, bytes(log[: data.draw(st.integers(0, len(log)))]))
    found = [value for _, value in read(path)[0][0]]
    assert set(found) <= set(values)
    assert len(found) == len(set(found))


def test_a_segment_that_is_gone_or_shorter_meanwhile_is_said(tmp_path: Path):
    one = in_folder(tmp_path, batch(0, b"a"), batch(1, b"b"))
    in_folder(tmp_path, batch(2, b"c"), name="00000000000000000002.log")
    remarks = ReaderWarnings()
    found = FolderTopic([tmp_path], OFFSETS_TOPIC, remarks)
    (one / FIRST).write_bytes(batch(0, b"a"))
    (one / "00000000000000000002.log").unlink()
    assert [part["value"].to_pylist() for part in found.read(0)] == [[b"a"]]
    assert ["shorter" in remarks.sentences()[0], "missing" in remarks.sentences()[1]] == [True, True]


def test_nothing_in_the_folder_is_changed(tmp_path: Path):
    in_folder(tmp_path, batch(0, b"a"), b"rubbish")
    before = {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in tmp_path.rglob("*")}
    read(tmp_path)
    assert {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in tmp_path.rglob("*")} == before


def test_links_that_lead_to_themselves_and_what_only_looks_like_a_log_stop_nothing(tmp_path: Path):
    folder = in_folder(tmp_path, batch(0, b"a"))
    (tmp_path / f"{OFFSETS_TOPIC}-1").symlink_to(tmp_path / f"{OFFSETS_TOPIC}-1")
    (tmp_path / "here").symlink_to(".")
    (tmp_path / f"{OFFSETS_TOPIC}-2").write_bytes(b"no folder")
    (folder / "00000000000000000007.log").symlink_to(folder / "00000000000000000007.log")
    (folder / "00000000000000000008.log").mkdir()
    os.mkfifo(folder / "00000000000000000009.log")
    assert read(tmp_path) == ({0: [(0, b"a")]}, [])


@pytest.mark.parametrize("gap", [-HEADER_SIZE, 1 - HEADER_SIZE, -30, -1, 0])
def test_a_batch_after_damage_is_found_wherever_a_piece_of_the_file_ends(tmp_path: Path, gap: int):
    in_folder(tmp_path, b"\xff" * (segments.PIECE_BYTES + gap), batch(0, b"a"))
    rows, said = read(tmp_path)
    assert rows == {0: [(0, b"a")]}
    assert f"skipped {segments.PIECE_BYTES + gap} bytes at position 0, which are not a record batch" in said[0]


def test_a_batch_that_begins_in_one_segment_and_continues_in_the_next_is_read_once(tmp_path: Path):
    in_folder(tmp_path, batch(0, b"a", b"b"))
    in_folder(tmp_path, batch(1, b"b", b"c"), name="00000000000000000001.log")
    assert read(tmp_path)[0] == {0: [(0, b"a"), (1, b"b"), (2, b"c")]}
