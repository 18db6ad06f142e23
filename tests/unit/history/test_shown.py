"""The JSON of a row and its table have the same names and the same values; and history.md lists them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.history import tables
from muster.history.model import CommitNote, Finding, Lag, Rebalance
from muster.history.report import Report
from muster.history.rows import schema_of, to_table
from muster.history.show.json_report import as_json, moment
from tests.support.scale import examples
from tests.unit.history.test_rows import FINDINGS, LAGS, NOTES, REBALANCES

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "history.md"
TABLES = {
    "generations": tables.GENERATIONS,
    "rebalances": tables.REBALANCES,
    "notes": tables.NOTES,
    "lag": tables.LAG,
    "findings": tables.FINDINGS,
}


@pytest.mark.parametrize(
    ("name", "kind", "rows"),
    [
        ("rebalances", Rebalance, REBALANCES),
        ("findings", Finding, FINDINGS),
        ("notes", CommitNote, NOTES),
        ("lag", Lag, LAGS),
        ("lag_over_time", Lag, LAGS),
    ],
)
@settings(max_examples=examples(30), deadline=None)
@given(data=st.data())
def test_json_has_what_the_table_has(name: str, kind: type[Any], rows: st.SearchStrategy[Any], data: Any):
    row = data.draw(rows)
    report = Report("here", None, 0)
    setattr(report, name, [row])
    (shown,) = as_json(report)[name]
    (stored,) = to_table(kind, [row]).to_pylist()
    del stored["day"]
    times = [each for each in stored if f"{each}_ms" in stored]
    assert {each: shown.pop(each) for each in times} == {
        each: None if stored[f"{each}_ms"] is None else moment(stored[f"{each}_ms"]) for each in times
    }
    assert shown == {each: value for each, value in stored.items() if each not in times}


@pytest.mark.parametrize("name", TABLES)
def test_the_page_names_every_column(name: str):
    (line,) = [line for line in PAGE.read_text().splitlines() if line.startswith(f"| `{name}` | `day`")]
    assert re.findall(r"`(\w+)`", line)[1:] == TABLES[name].names


@pytest.mark.parametrize("column", ["moved_partitions", "stopped", "alternatives", "joined", "left"])
def test_the_page_names_the_fields_of_lists(column: str):
    text = PAGE.read_text()
    said = set(re.findall(r"`(\w+)`", text[text.index("Their contents") : text.index("## In Spark")]))
    kind: Any = schema_of(Rebalance).field(column).type.value_type
    assert pa.types.is_struct(kind)
    assert said >= {field.name for field in kind}
