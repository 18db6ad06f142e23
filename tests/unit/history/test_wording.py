"""Words for figures."""

from __future__ import annotations

import pytest

from muster.history.model import Member
from muster.history.rules.wording import count, duration, listed, named, settings_value


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [
        (0, "0 ms"),
        (999, "999 ms"),
        (1_000, "1.0 s"),
        (119_999, "120.0 s"),
        (120_000, "2.0 min"),
        (7_199_999, "120.0 min"),
        (7_200_000, "2.0 h"),
        (172_800_000, "2.0 days"),
    ],
)
def test_durations(milliseconds: int, text: str) -> None:
    assert duration(milliseconds) == text


@pytest.mark.parametrize(
    ("items", "text"),
    [
        ([], "a member"),
        (["a"], "a"),
        (["a", "a"], "a (2 times)"),
        (["a", "b", "a"], "a (2 times) and b"),
        (["a", "b", "c"], "a, b and c"),
        (["a", "b", "c", "d", "e"], "a, b, c and 2 more"),
    ],
)
def test_lists(items: list[str], text: str) -> None:
    assert listed(items) == text


@pytest.mark.parametrize(("value", "text"), [(7, "7"), (45_000, "45000"), (45_001, "46000"), (824_690, "830000")])
def test_settings_are_rounded_up(value: int, text: str) -> None:
    assert settings_value(value) == text


def test_names_and_counts() -> None:
    assert named(Member("m-1", "app", "/10.0.0.1", "pod-1")) == "'app' at 10.0.0.1, instance pod-1"
    assert (count(1, "time"), count(2, "time")) == ("1 time", "2 times")
