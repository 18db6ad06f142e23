"""Edge cases of the history that once had no test: bugs planted there were not noticed."""

from __future__ import annotations

import datetime
from dataclasses import replace

import pytest

from muster.history.model import Cause, CommitNote, GroupKind
from muster.history.report import Report, summaries
from muster.history.rows import to_table
from muster.history.show.json_report import moment
from muster.pages.charts import times_of_day
from tests.support.group_log import BEGIN_MS, GroupLog, M
from tests.support.history_report import sample

A, B = M("a-1", "t:0-1"), M("b-1", "t:2-3")
DAY_MS = 86_400_000


def running() -> GroupLog:
    log = GroupLog(leader_epoch=5).generation(0, []).wait(3_000).generation(1, [A, B])
    return log.commits("t:0-3", 60_000)


def test_an_epoch_that_falls_is_not_a_coordinator_that_moved() -> None:
    log = running()
    log.leader_epoch = 3
    log.commits("t:0-3", 20_000).wait(1_000).generation(2, [A, B])
    row = log.history().rebalances[-1]
    assert row.cause is Cause.LEADER_REJOINED
    assert Cause.COORDINATOR_MOVED not in {each.cause for each in row.alternatives}


def test_an_epoch_that_grows_is_one() -> None:
    log = running()
    log.leader_epoch = 6
    row = log.commits("t:0-3", 20_000).wait(1_000).generation(2, [A, B]).history().rebalances[-1]
    assert row.cause is Cause.COORDINATOR_MOVED


def test_a_generation_that_is_written_again_began_when_it_began() -> None:
    static = A.with_(instance="one")
    log = GroupLog().generation(0, []).wait(1_000).generation(1, [static, B])
    began = log.now
    log.wait(5_000).generation(1, [static.with_(id="a-2"), B]).wait(5_000).generation(2, [B])
    generation = next(row for row in log.history().generations if row.generation == 1)
    assert (generation.started_ms, generation.ended_ms) == (began, log.now)
    assert {member.member_id for member in generation.members} == {"a-2", "b-1"}


@pytest.mark.parametrize(("behind_ms", "day"), [(-1, 0), (0, 1), (1, 1), (DAY_MS - 1, 1), (DAY_MS, 2)])
def test_a_day_is_that_of_utc_to_the_millisecond(behind_ms: int, day: int) -> None:
    midnight = BEGIN_MS // DAY_MS * DAY_MS
    note = CommitNote("g", "t", 0, midnight + behind_ms, "rewind", 1, 2)
    before = datetime.date(1970, 1, 1) + datetime.timedelta(days=midnight // DAY_MS - 1)
    assert to_table(CommitNote, [note])["day"][0].as_py() == before + datetime.timedelta(days=day)


def test_a_moment_is_in_utc_wherever_the_machine_is() -> None:
    assert moment(0) == "1970-01-01T00:00:00.000Z"
    assert moment(1_795_366_458_985) == "2026-11-22T16:54:18.985Z"


def test_since_keeps_generations_that_had_not_ended_then() -> None:
    report = sample()
    ended = sorted(each.ended_ms for each in report.generations if each.ended_ms is not None)
    since = ended[len(ended) // 2]
    kept = report.since(since)
    assert [each for each in report.generations if each.ended_ms is None or each.ended_ms >= since] == kept.generations
    assert any(each.started_ms < since for each in kept.generations)
    assert all(each.at_ms >= since for each in kept.rebalances)


def test_a_group_that_has_ended_has_no_members() -> None:
    generation = sample().generations[0]
    over = Report("here", None, 0, [replace(generation, ended_ms=generation.started_ms + 1)], kinds={})
    over.kinds = {generation.group: GroupKind.CLASSIC}
    assert [each.members for each in summaries(over)] == [0]
    open_ = replace(over, generations=[replace(generation, ended_ms=None)])
    assert [each.members for each in summaries(open_)] == [len(generation.members)]


def test_names_on_a_time_axis_begin_after_its_origin() -> None:
    found = times_of_day(BEGIN_MS + 1, 600_000, 9)
    assert len(found) > 3
    assert all(0 <= at <= 600_000 for at, _ in found)
