"""Causes inferred only from records match those in the events of muster's broker as often as their confidence
claims."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import pytest

from muster.history.model import Cause
from tests.history.inference import lives, of_life, of_recording
from tests.history.lives import live
from tests.history.truth import Judged
from tests.history.verdicts import SURE, files, load
from tools import inference_page

ENOUGH = 10
"""Fewer rows of a cause say little about it."""


@pytest.mark.slow
def test_random_lives_are_explained():
    """The minimum scores are below those on the page, because the same seeds would give other lives if members behaved
    differently."""
    told = [each for lived in lives(range(1001, 1007)) for each in of_life(lived)]
    true = Counter(each.cause for each in told)
    for cause in [cause for cause, count in true.items() if count >= ENOUGH]:
        mine = [each for each in told if each.cause is cause]
        found = [each for each in told if each.row.cause is cause]
        assert _share(mine, lambda each: each.near) >= 0.9, cause
        assert _share(mine, lambda each: each.right) >= 0.6, cause
        assert _share(found, lambda each: each.right) >= 0.6, cause
    assert len(told) > 90
    assert len([cause for cause, count in true.items() if count >= 3]) >= 6
    assert _share(told, lambda each: each.right) >= 0.8
    for least, many, right in ((0.9, 50, 0.97), (0.6, 60, 0.94)):
        sure = [each for each in told if each.row.confidence >= least]
        assert len(sure) > many
        assert _share(sure, lambda each: each.right) >= right, least
    said = [each for each in told if each.cause is not Cause.NOT_KNOWN]
    assert _share(said, lambda each: each.row.confidence >= SURE) >= 0.75


def test_a_cause_that_is_wrong_in_a_recording_has_little_confidence():
    told = [each for name in files() for each in of_recording(load(name))]
    assert [each for each in told if each.row.confidence >= SURE and not each.right] == []
    assert sum(each.row.confidence >= SURE for each in told) > 0.9 * len(told)


def _share(rows: Sequence[Judged], holds: Callable[[Judged], bool]) -> float:
    return sum(holds(each) for each in rows) / max(len(rows), 1)


def test_a_seed_lives_the_same_life_again():
    first, second = live(1001, acts=3), live(1001, acts=3)
    assert first.events == second.events
    assert first.raw.equals(second.raw)


GUESSES = {"without-commits-java-range.muster.json.gz"}
"""Nothing in the records distinguishes a member that left from one that died."""


@pytest.mark.parametrize("name", [name for name in files() if load(name).get("events")])
def test_recordings_on_muster_are_explained(name):
    told = list(of_recording(load(name)))
    assert told
    assert all(each.right or (name in GUESSES and each.near) for each in told)


def test_the_page_is_up_to_date():
    former = inference_page.PAGE.read_text()
    assert former == inference_page.page(former), "run: python -m tools.inference_page"
