"""The doctor is right about stories: what was done to a group is named, and nothing is reported that was not done.

What is true of a story is derived from its acts (stories/truth.py), independently of the rules; the coordinator's own
log confirms the acts.
"""

from __future__ import annotations

import pytest

from tests.history.stories import score
from tests.history.stories.draw import THEMES, draw
from tests.history.stories.truth import NOTHING, UNSURE, deeds, windows
from tests.history.stories.witness import doubts

FILES = score.files()
NAMES = [path.name for path in FILES]


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_no_cause_is_wrong_and_sure(path):
    wrong = [said for said in score.score(path).rows if said.verdict == score.WRONG and said.row.confidence >= UNSURE]
    assert [(said.row.generation, said.row.cause, said.row.confidence, said.done) for said in wrong] == []


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_a_group_that_is_well_has_no_finding(path):
    scored = score.score(path)
    assert not (scored.expected.is_healthy and scored.findings)


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_the_brokers_log_bears_the_acts_out(path):
    """The coordinator rebalanced only while something was done, and no member expired unintentionally."""
    assert path.stat().st_size < 200_000
    assert doubts(score.load(path)) == []


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_acts_are_reported_in_order(path):
    kept = score.load(path)
    told = [(window.begin_ms, window.until_ms) for window in windows(kept)]
    assert told == sorted(told)
    assert all(begin <= until for begin, until in told)
    assert all(deed.causes or deed.act["do"] in (*NOTHING, "create", "delete_topic") for deed in deeds(kept))


def test_there_are_stories_of_all_kinds():
    kept = [score.load(path) for path in FILES]
    assert len([each for each in kept if each["kafka"].startswith("4.")]) >= 40
    assert len([each for each in kept if not each["kafka"].startswith("4.")]) >= 10
    assert {each["theme"] for each in kept} >= set(THEMES)
    clients = {(about["client"], about["protocol"]) for each in kept for about in each["cast"].values()}
    assert len({client for client, _ in clients}) >= 5
    assert {"range", "cooperative", "consumer"} <= {protocol for _, protocol in clients}
    for traffic in ("always", "never"):
        assert len([each for each in kept if each["traffic"] in (traffic, "stops")]) >= len(kept) / 3


def test_what_the_log_can_tell_is_named():
    """Nine tenths of what was done is named; of confident rows, nine tenths are right."""
    sums = score.totals([score.score(path) for path in FILES])
    assert sums["named"] >= 0.9 * sums["done"]
    assert sums["sure_and_true"] >= 0.9 * sums["sure_rows"]


def test_a_seed_draws_the_same_story_again():
    assert draw(7) == draw(7)
    assert draw(7) != draw(8)
