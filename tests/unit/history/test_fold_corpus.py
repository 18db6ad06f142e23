"""The rules on recorded scenarios: what real clients and brokers wrote while something was done to a group."""

from __future__ import annotations

import base64
import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from muster.history.entries.chunks import chunks
from muster.history.entries.decode import decode
from muster.history.model import Cause, Rebalance, Rows
from muster.history.rules.fold import finish, fold, start
from muster.history.tables import RAW
from tests.history.verdicts import limits_of

CORPUS = Path(__file__).parents[2] / "history" / "corpus"
FILES = sorted(path.name for path in CORPUS.glob("*.json.gz"))
NEAR_MS = 100
"""The script's clock and the broker's are one, but a record is written a little after what it tells of."""

UNSURE = 0.6
"""Members that commit nothing: a session that expired cannot be told from a member that left. A row that does not claim
to know names what it may have been."""


def loaded(name: str) -> dict[str, Any]:
    kept: dict[str, Any] = json.loads(gzip.decompress((CORPUS / name).read_bytes()))
    return kept


def raw_table(kept: dict[str, Any]) -> pa.Table:
    rows = [
        (*place, *(None if part is None else base64.b64decode(part) for part in parts))
        for *place, parts in ((*row[:4], row[4:]) for row in kept["records"])
    ]
    return pa.table([list(column) for column in zip(*rows, strict=True)], schema=RAW)


def histories(kept: dict[str, Any]) -> dict[str, Rows]:
    now_ms = max(row[2] for row in kept["records"])
    found = {}
    for chunk in chunks(decode(raw_table(kept)).entries, now_ms):
        state = start(chunk.group, limits_of(kept))
        rows = fold(state, chunk)
        rows.extend(finish(state, now_ms))
        found[chunk.group] = rows
    return found


def within(rows: Rows, window: dict[str, Any]) -> list[Rebalance]:
    first, last = window["at_ms"] - NEAR_MS, window["until_ms"] + NEAR_MS
    return [row for row in rows.rebalances if first <= row.at_ms <= last]


@pytest.mark.parametrize("name", FILES)
def test_the_cause_is_the_one_that_was_scripted(name):
    kept = loaded(name)
    found = histories(kept)
    for window in kept["truth"]:
        allowed = {window["cause"], *window.get("also", [])}
        rows = within(found[window["group"]], window)
        causes = {str(row.cause) for row in rows}
        for row in rows:
            if row.cause is Cause.MEMBER_GONE or row.confidence < UNSURE:
                causes |= {str(each.cause) for each in row.alternatives}
        assert allowed & causes, (window, rows)


@pytest.mark.parametrize("name", FILES)
def test_where_nothing_was_to_rebalance_nothing_is_said_to(name):
    kept = loaded(name)
    found = histories(kept)
    for window in kept.get("quiet", []):
        rows = within(found.get(window["group"], Rows()), window)
        assert all(row.generation == row.previous_generation for row in rows), rows


@pytest.mark.parametrize("name", FILES)
def test_every_generation_comes_once_and_in_order(name):
    for rows in histories(loaded(name)).values():
        numbers = [(row.kind, row.at.offset) for row in rows.generations]
        assert len(set(numbers)) == len(numbers)
        places = [row.at.offset for row in rows.generations]
        assert places == sorted(places)
        assert all(row.ended_ms is not None for row in rows.generations[:-1])
