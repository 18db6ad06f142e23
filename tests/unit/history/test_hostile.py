"""Input that no broker writes: damage costs only the damaged record, is counted, and stops neither the rest nor the
output."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from muster.cli.observe.doctor_tables import print_report
from muster.history.engine import events_of, read_history, report
from muster.history.model import LAST_MS, CommitNote, Finding, Generation, Limits, Rebalance
from muster.history.rows import from_table, to_table
from muster.history.rules.commit_times import Clock
from muster.history.rules.event_explanations import explained
from muster.history.rules.event_rebalances import by_group
from muster.history.show.json_report import as_json
from muster.history.show.page import render
from muster.pages.charts import times_of_day
from tests.support.history_report import sample
from tests.support.history_topic import Source, Written
from tests.support.hostile import damaged
from tests.support.scale import examples

SEEDS = range(examples(40))


@pytest.mark.parametrize("seed", SEEDS)
def test_damage_stops_nothing_and_every_record_is_counted(seed: int, capsys: pytest.CaptureFixture[str]) -> None:
    parts = damaged(seed)
    found = read_history(Source(parts, 97 + seed), Limits(), None, 1_900_000_000_000)
    made = report(found, "damage", found.until_ms or 0)
    assert sum(made.counts.values()) == sum(map(len, parts.values()))
    json.dumps(as_json(made), allow_nan=False).encode()
    render(made).encode()
    print_report(made)
    assert re.search("Rebalances|No rebalance", capsys.readouterr().out)
    rows: Sequence[tuple[type, Sequence[object]]] = (
        (Generation, made.generations),
        (Rebalance, made.rebalances),
        (CommitNote, made.notes),
        (Finding, made.findings),
    )
    for kind, own in rows:
        assert from_table(kind, to_table(kind, own)) == list(own)


T = 1_800_000_000_000


@pytest.mark.parametrize("odd", [-(2**63), -1, LAST_MS + 1, 2**62, 2**63 - 1])
def test_a_time_that_no_calendar_has_moves_no_clock(odd: int) -> None:
    clock = Clock()
    assert clock.times(np.array([T, odd, T + 5, odd])).tolist() == [T, T, T + 5, T + 5]
    assert clock.times(np.array([odd])).tolist() == [T + 5]
    assert clock.times(np.array([T + 7])).tolist() == [T + 7]


def test_a_clock_that_is_set_back_forever_never_falls() -> None:
    clock = Clock()
    times = clock.times(np.array([LAST_MS, 0] * 20_000))
    assert (np.diff(times) >= 0).all()
    assert times[-1] < 2**63 - LAST_MS


def test_a_time_that_no_calendar_has_is_shown_on_a_chart_in_milliseconds() -> None:
    origin = 11_111_111_111_111_111
    assert all(re.fullmatch(r"[0-9]+ ms", name) for _, name in times_of_day(origin, 60_000, 9))
    assert [name for _, name in times_of_day(0, 60_000, 2)] == ["00:00:00", "00:00:30", "00:01:00"]


def test_a_name_of_32767_characters_is_cut_in_tables(capsys: pytest.CaptureFixture[str]) -> None:
    made = sample()
    huge = "x" * 32_767
    made.rebalances = [replace(row, group=huge) for row in made.rebalances]
    made.findings = []
    print_report(made)
    out = capsys.readouterr().out
    assert out.count("x" * 10) > 0
    assert out.count("x") < 1_000 * len(made.rebalances)


ROW = next(row for row in sample().rebalances)


def event(**fields: object) -> dict[str, object]:
    return {"v": 1, "event": "RebalanceStarted", "at_ms": ROW.at_ms - 5, "group_id": ROW.group, "cause": "x"} | fields


DONE = event(event="RebalanceCompleted", at_ms=ROW.at_ms, generation_id=ROW.generation)


@pytest.mark.parametrize(
    "forged",
    [
        event(at_ms="now"),
        event(at_ms=None),
        event(at_ms=-(10**30)),
        event(at_ms=float("nan")),
        event(at_ms=[1]),
        event(group_id=["g"]),
        event(member_id={}, client_id=[], reason={"a": 1}, state=7, cause=[]),
        event(client_id="\ud800", reason="\udfff", cause="member left"),
        event(event=["RebalanceStarted"], kind=3),
        event(v="1"),
        ["v", 1],
        "v",
        7,
        None,
    ],
    ids=lambda forged: repr(forged)[-40:],
)
def test_an_event_that_no_broker_wrote_stops_nothing(forged: Any) -> None:
    made = explained([ROW], by_group([event(), forged, DONE]))
    assert len(made) == 1
    to_table(Rebalance, made)
    json.dumps(made[0].evidence, ensure_ascii=False).encode()
    alone = explained([ROW], by_group([forged, DONE]))
    json.dumps(alone[0].evidence, ensure_ascii=False).encode()
    to_table(Rebalance, alone)


def test_values_of_the_topic_of_events_that_are_not_json_are_skipped() -> None:
    values = [b"[" * 100_000, b"\xff\xfe", b"{", b"9" * 5_000, None, b"", b'{"v": 1}']
    log = Source({0: [Written(0, T, b"k", value) for value in values]}, 3)
    assert [value for value in events_of(log) if value is not None] == [{"v": 1}]
