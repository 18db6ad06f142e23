"""Damaged batches: a task fails with their offsets, or reports what it skips; never silently."""

import struct
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from muster.arrow.schema import EXTRA
from muster.client.config import ClientConfig
from muster.client.plain.fetch import FetchSettings, RangeReader
from muster.errors import CorruptRecordError
from muster.model import TopicPartition
from muster.protocol.messages import PartitionData
from muster.protocol.records.record_batch import BatchBuilder
from tests.support.message_sets import message


def batch(base, count, **flags):
    builder = BatchBuilder()
    for number in range(count):
        builder.append(1000, None, b"%d" % (base + number), [])
    built = bytearray(builder.build(**flags))
    struct.pack_into(">q", built, 0, base)
    return built


def reader(end, start=0, **settings):
    found: Any = RangeReader(FetchSettings(ClientConfig(), **settings), TopicPartition("t", 0), start, end)
    found._send = lambda: None  # it requests no more from brokers
    return found


def decoded(found, *batches):
    data = PartitionData(records=b"".join(batches), high_watermark=99)
    rows = []
    for part in found._decode(data):
        rows += pa.Table.from_batches([part])["offset"].to_pylist()
    return rows


def flip(built, position=-1):
    built[position] ^= 0xFF
    return built


@pytest.mark.parametrize("check_crcs", [True, False])
def test_a_task_fails_with_the_offsets_that_are_damaged(check_crcs):
    found = reader(9, check_crcs=check_crcs)
    bad = flip(batch(3, 3), -1 if check_crcs else 61)
    with pytest.raises(CorruptRecordError, match=r"offsets 3 to 5 of t-0 are damaged .*failOnDataLoss"):
        decoded(found, batch(0, 3), bad, batch(6, 3))


@pytest.mark.parametrize("check_crcs", [True, False])
def test_a_damaged_batch_is_skipped_and_named(caplog, check_crcs):
    found = reader(20, check_crcs=check_crcs, fail_on_data_loss=False, timeout_s=0.01)
    bad = flip(batch(3, 3), -1 if check_crcs else 61)
    assert decoded(found, batch(0, 3), bad, batch(6, 3)) == [0, 1, 2]
    assert found._position == 6
    assert "offsets 3 to 5 of t-0 are damaged" in caplog.text
    assert decoded(found, batch(6, 3)) == [6, 7, 8]


def test_a_damaged_last_offset_does_not_take_good_records_with_it(caplog):
    found = reader(9, fail_on_data_loss=False)
    bad = batch(0, 3)
    struct.pack_into(">i", bad, 23, 1000)
    assert decoded(found, bad, batch(3, 6)) == []
    assert found._position == 3
    assert "offsets 0 to 2 of" in caplog.text


def test_a_damaged_last_offset_hides_no_records():
    bad = batch(0, 3)
    struct.pack_into(">i", bad, 23, 0)
    with pytest.raises(CorruptRecordError, match="offsets 1 to 2 of t-0 are damaged"):
        decoded(reader(9, start=1), bad, batch(3, 6))


def test_damage_that_begins_before_the_range_is_named_from_its_start(caplog):
    found = reader(9, start=4, fail_on_data_loss=False)
    assert decoded(found, flip(batch(3, 3)), batch(6, 3)) == []
    assert "offsets 4 to 5 of t-0 are damaged" in caplog.text


def test_a_senseless_batch_after_the_damage_sends_nobody_back():
    found = reader(9, start=3, fail_on_data_loss=False)
    assert decoded(found, flip(batch(3, 3)), batch(1, 2)) == []
    assert found._position == 4


def test_bytes_that_are_not_batches_fail_always():
    found = reader(9, fail_on_data_loss=False)
    with pytest.raises(CorruptRecordError, match="t-0 is damaged after offset 0"):
        decoded(found, b"\xff" * 80)


# --- message sets of releases before 0.11, which may precede and follow batches ---------------------------------


@pytest.mark.parametrize("loses", [False, True])
@pytest.mark.parametrize("magic", [0, 1])
def test_message_sets_are_read_wherever_they_stand(loses, magic):
    sets = [message(offset, b"x", magic=magic) for offset in (3, 4)]
    for parts, expected in (
        ([*sets], [3, 4]),
        ([*sets, batch(5, 3)], [3, 4, 5, 6, 7]),
        ([batch(0, 3), *sets], [0, 1, 2, 3, 4]),
        ([batch(0, 3), *sets, batch(5, 1)], [0, 1, 2, 3, 4, 5]),
        ([batch(0, 3), sets[0], sets[1][:-1]], [0, 1, 2, 3]),
    ):
        found = reader(len(expected) + (expected[0]), fail_on_data_loss=not loses)
        assert decoded(found, *parts) == expected
        assert found._position == expected[-1] + 1


def test_damage_in_a_batch_next_to_sets_is_named():
    with pytest.raises(CorruptRecordError, match="offsets 5 to 7 of t-0 are damaged"):
        decoded(reader(9), message(4, b"x"), flip(batch(5, 3)))


def test_a_damaged_set_is_reported_as_damage():
    bad = flip(bytearray(message(0, b"x")))
    with pytest.raises(CorruptRecordError, match="t-0 is damaged after offset 0: corrupt message at offset 0"):
        decoded(reader(9), bad)
    found = reader(9)
    assert decoded(found, batch(0, 3), flip(bytearray(message(3, b"x")))) == [0, 1, 2]


def test_all_columns_of_old_formats():
    columns = ("key", "value", "offset", "timestamp", "timestampType", *EXTRA)
    found = reader(9, start=3, columns=columns)
    sets = message(3, b"x", key=b"k") + message(4, None, magic=1, timestamp=1_700_000_000_000)
    sets += message(5, b"z", magic=1, attributes=8, timestamp=7_000)  # LogAppendTime
    data = PartitionData(records=sets, high_watermark=99)
    rows = [row for part in found._decode(data) for row in pa.Table.from_batches([part]).to_pylist()]
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    times = [round((row.pop("timestamp") - epoch).total_seconds() * 1000) for row in rows]
    assert times == [-1, 1_700_000_000_000, 7_000]
    assert [tuple(row.values()) for row in rows] == [
        (b"k", b"x", 3, 0, None, None, False),
        (None, None, 4, 0, None, None, False),
        (None, b"z", 5, 1, None, None, False),
    ]
