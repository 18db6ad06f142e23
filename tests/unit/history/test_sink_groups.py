"""Groups in which a Spark sink marks what it has written are not consumers, whichever engine reads their offsets."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from muster.history.engine import GroupHistory, read_history
from muster.history.entries.chunks import chunks
from muster.history.entries.decode import decode
from muster.history.entries.synthetic_records import SyntheticRecords
from muster.history.model import GroupKind, Limits
from muster.history.rules import fold as rules
from muster.history.sink_groups import is_of_sink
from muster.protocol.group_records import GroupMetadataRecord, OffsetCommitRecord
from muster.protocol.messages import GroupMetadataKey, GroupMetadataValue, OffsetCommitKey, OffsetCommitValue
from muster.spark.history.folding import STATUSES, TIMELINE, fold_in_order
from muster.spark.history.packed import PACKED
from muster.spark.history.source import packed_decoded
from muster.spark.history.whole import collected
from tests.support.group_log import BEGIN_MS, GroupLog, M

MARK = "muster-sink:query:3:00000000000000ff"
LATER_MS = BEGIN_MS + 3_600_000
OF_SINK, PLAIN = "out-3", "plain-3"


@pytest.mark.parametrize(
    ("group", "metadata", "kept"),
    [
        ("out-3", ["muster-sink:1", "muster-sink:"], True),
        ("out-3", ["muster-sink:1", ""], False),
        ("out-3", [], False),
        ("out", ["muster-sink:1"], False),
        ("out-x3", ["muster-sink:1"], False),
        ("-3", ["muster-sink:1"], False),
        ("out-3", ["spark:1"], False),
    ],
)
def test_the_rule(group: str, metadata: list[str], kept: bool) -> None:
    assert is_of_sink(group, metadata) == kept


def marks(group: str = OF_SINK) -> GroupLog:
    log = GroupLog(group)
    for _ in range(4):
        log.wait(1_000).commit("t:0", by=1, note=MARK)
    return log


def of_a_broker_that_records_empty_groups() -> GroupLog:
    log = GroupLog(OF_SINK).generation(0, []).commit("t:0", note=MARK)
    return log.wait(10).generation(1, [])


@pytest.mark.parametrize(
    ("log", "kind"),
    [
        (marks(), GroupKind.SINK),
        (marks("out"), GroupKind.OFFSETS_ONLY),
        # deleted
        (marks().expire("t:0"), GroupKind.SINK),
        # another client commits
        (marks().commit("t:0"), GroupKind.OFFSETS_ONLY),
        # a query commits
        (marks().commit("t:0", note="spark:q/7"), GroupKind.OFFSETS_ONLY),
        # marks after another client
        (GroupLog(OF_SINK).commit("t:0").wait(10).commit("t:0", note=MARK), GroupKind.SINK),
        # a member joins
        (marks().generation(1, [M("a-1", "t:0")]), GroupKind.CLASSIC),
        (of_a_broker_that_records_empty_groups(), GroupKind.SINK),
        # another client after an empty generation
        (GroupLog(OF_SINK).generation(0, []).commit("t:0", note=MARK).commit("t:0"), GroupKind.CLASSIC),
        (GroupLog(OF_SINK).generation(1, [M("a-1", "t:0")]).commit("t:0", note=MARK), GroupKind.CLASSIC),
        (GroupLog(OF_SINK).generation(0, []).commit("t:0", note="spark:q/7"), GroupKind.CLASSIC),
    ],
)
def test_the_latest_offset_of_a_group_without_members_decides(log: GroupLog, kind: GroupKind) -> None:
    """Wherever the log is cut."""
    for cut in range(log.offset + 1):
        state = rules.start(log.group, Limits())
        rules.fold(state, log.chunk(0, cut + 1))
        rules.fold(state, log.chunk(cut + 1))
        assert state.kind is kind, cut


# ---------------------------------------------------------------------------------------------------- rows and findings


def written() -> SyntheticRecords:
    """Two groups whose commits are alike, except that one has a sink's marks."""
    found = SyntheticRecords()
    for group, metadata in ((OF_SINK, MARK), (PLAIN, "")):
        found.write(
            GroupMetadataRecord(GroupMetadataKey(group), GroupMetadataValue("", 0, None, None, -1, [])), BEGIN_MS
        )
        for offset in (1, 2, 3, 1):
            at_ms = BEGIN_MS + 1_000 * offset
            value = OffsetCommitValue(offset, -1, metadata, at_ms)
            found.write(OffsetCommitRecord(OffsetCommitKey(group, "t", 0), value), at_ms)
    return found


def by_small_engine() -> GroupHistory:
    return read_history(written(), Limits(), None, LATER_MS)


def packed_output() -> list[tuple[str, bytes]]:
    rows = [row for piece in packed_decoded(written().read(0), frozenset()) for row in piece.to_pylist()]
    batches = iter([pa.RecordBatch.from_pylist(sorted(rows, key=lambda row: row["log_offset"]), PACKED)])
    return [(row["name"], row["data"]) for out in fold_in_order(Limits(), LATER_MS)(batches) for row in out.to_pylist()]


def groups_of(found: GroupHistory) -> set[str]:
    rows: list[Any] = [*found.rows.generations, *found.rows.rebalances, *found.rows.notes]
    return {row.group for row in rows} | set(found.committed) | set(found.timeline.commits)


@pytest.mark.parametrize("by", [by_small_engine, lambda: collected(packed_output())], ids=["small", "spark"])
def test_both_engines_leave_them_out_but_for_the_kind_of_those_that_are_named(by) -> None:
    found = by()
    assert found.kinds[OF_SINK] is GroupKind.SINK
    found.leave_out_sinks(())
    assert (groups_of(found), set(found.kinds)) == ({PLAIN}, {PLAIN})
    assert [row.kind for row in found.rows.notes] == ["non_member", "rewind"], (
        "the same commits of another client count"
    )
    found = by()
    found.leave_out_sinks({OF_SINK})
    assert (groups_of(found), found.kinds[OF_SINK]) == ({PLAIN}, GroupKind.SINK)


def test_the_tables_in_spark_have_no_rows_of_them() -> None:
    found = collected(row for row in packed_output() if row[0] not in (STATUSES, TIMELINE))
    assert groups_of(found) == {PLAIN}
    (past,) = [collected([row]).timeline for row in packed_output() if row[0] == TIMELINE]
    assert set(past.commits) == {PLAIN}


def test_past_commits_of_groups_that_are_left_out_no_longer_count() -> None:
    found = by_small_engine().timeline
    before = found._size
    found.leave_out([OF_SINK])
    assert found._size == before // 2
    assert [chunk.group for chunk in chunks(decode(pa.Table.from_batches(written().read(0))).entries, None)] == [
        OF_SINK,
        PLAIN,
    ]
