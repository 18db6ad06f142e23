"""What is reported about Spark queries in a group: only what the metadata of their commits shows."""

from __future__ import annotations

from itertools import pairwise

import pyarrow as pa
import pytest

from muster.history.entries.chunks import chunks
from muster.history.model import Limits, Rows
from muster.history.rules.fold import finish, fold, start
from muster.history.rules.query_batches import ABOUT, MOST, read_note
from muster.history.tables import ENTRIES
from tests.support.group_log import GroupLog, M

Q, B, C = M("spark-1", "t:0-1"), M("b-1", "t:2-3"), M("c-1")
GROWN = [Q.with_(has="t:0"), B.with_(has="t:2-3"), C.with_(has="t:1")]
AGAIN = M("spark-2", "t:0-1")
LEFT = [B.with_(has="t:0-3")]

SLOW = (
    "Spark query q finished batch 3 right before all members had joined, 20.0 s after the previous batch: a query "
    "joins when its batch is finished."
)
WENT = "Spark query q left as a member after finishing batch 2; "
ON = f"{WENT}it continued as another member: it was restarted, or had been removed from the group in between."
NOT_BACK = f"{WENT}it did not commit again soon."


def works(note: str = "spark:q/{}", before: str = "t:0-1") -> GroupLog:
    """Batches 1 and 2 are done."""
    log = GroupLog().generation(0, []).wait(3_000).generation(1, [Q, B])
    for batch in (1, 2):
        log.wait(2_000).commit(before, note=note.format(batch)).commits("t:2-3", 1_000, 500)
    return log


def a_batch_of_20_s(note: str = "spark:q/{}", until_ms: int = 10, batch: int = 3) -> GroupLog:
    log = works(note).wait(19_000).commit("t:0-1", note=note.format(batch))
    return log.wait(until_ms).generation(2, GROWN)


def a_quick_batch() -> GroupLog:
    return works().wait(1_000).commit("t:0-1", note="spark:q/3").wait(10).generation(2, GROWN)


def another_client_has_committed_since() -> GroupLog:
    log = works().wait(19_000).commit("t:0-1", note="spark:q/3").wait(5).commit("t:0")
    return log.wait(10).generation(2, GROWN)


def goes(how: str) -> GroupLog:
    log = works().wait(5_000).generation(2, LEFT).commits("t:0-3", 5_000)
    if how == "back":
        log.generation(3, [AGAIN, B]).wait(2_000).commit("t:0-1", note="spark:q/3")
    elif how == "other":
        log.generation(3, [AGAIN, B]).wait(2_000).commit("t:0-1", note="spark:r/1")
    elif how == "late":
        log.wait(3_600_000).commit("t:0-1", note="spark:q/3")
    return log


CASES = {
    "a slow batch": (a_batch_of_20_s(), [SLOW]),
    "a quick batch": (a_quick_batch(), []),
    "done long before all had joined": (a_batch_of_20_s(until_ms=3_000), []),
    "a batch before it that was not seen": (a_batch_of_20_s(batch=7), []),
    "metadata of another client": (a_batch_of_20_s(note="sparkle:{}"), []),
    "another client has committed since": (another_client_has_committed_since(), []),
    "a query that is back": (goes("back"), [ON]),
    "a query that is not": (goes(""), [NOT_BACK]),
    "another query takes its place": (goes("other"), [NOT_BACK]),
    "a query that is back an hour later": (goes("late"), [NOT_BACK]),
}


def reported(rows: Rows) -> list[str]:
    """What the rebalance into generation 2 says about queries."""
    [row] = [row for row in rows.rebalances if row.generation == 2]
    return [line for line in row.evidence if line.startswith(ABOUT)]


@pytest.mark.parametrize(("log", "expected"), CASES.values(), ids=CASES)
def test_what_is_said_of_queries_wherever_a_chunk_ends(log: GroupLog, expected: list[str]) -> None:
    assert reported(log.history()) == expected
    state = start(log.group, Limits())
    rows = fold(state, log.chunk(0, 0))
    for first, end in pairwise(range(log.offset + 2)):
        rows.extend(fold(state, log.chunk(first, end)))
    rows.extend(finish(state, log.now))
    assert reported(rows) == expected


def test_the_metadata_of_queries_comes_with_their_commits() -> None:
    rows = [
        {"group": group, "log_offset": at, "topic": "t", "partition": at % 2, "offset": at, "metadata": metadata}
        for at, (group, metadata) in enumerate(
            [("g", "spark:q/1"), ("h", "spark:r/7"), ("g", ""), ("g", None), ("g", "spark:q/2"), ("h", "x")]
        )
    ]
    plain = {"log_partition": 0, "timestamp_ms": 1, "leader_epoch": 0, "kind": 1, "commit_ms": 1, "expire_ms": -1}
    table = pa.Table.from_pylist([{**plain, **row} for row in rows], ENTRIES)
    found = {chunk.group: list(chunk.commits.notes) for chunk in chunks(table, None)}
    assert found == {"g": [(0, "spark:q/1"), (3, "spark:q/2")], "h": [(0, "spark:r/7")]}


def test_names_of_queries_are_read_and_no_more_than_some_are_kept() -> None:
    assert [read_note(f"spark:a/b c/12{topic}") for topic in ("", "@c-1:0f", "@:0f")] == [("a/b c", 12)] * 3
    assert [read_note(text) for text in ("spark:q", "spark:/1", "spark:q/x", " spark:q/1", "spark/q/1")] == [None] * 5
    log = works()
    for number in range(2 * MOST):
        log.commit("t:0", note=f"spark:q{number}/1")
    state = start(log.group, Limits())
    fold(state, log.chunk())
    assert list(state.queries.queries) == [f"q{number}" for number in range(MOST, 2 * MOST)]
