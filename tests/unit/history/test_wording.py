"""Words for figures."""

from __future__ import annotations

import pytest

from muster.history.model import Member
from muster.history.rules.wording import count, duration, listed, named, settings_value


@pytest.mark.parametrize(
    ("said", "text"),
    [
        (duration(0), "0 ms"),
        (duration(999), "999 ms"),
        (duration(1_000), "1.0 s"),
        (duration(119_999), "120.0 s"),
        (duration(120_000), "2.0 min"),
        (duration(7_199_999), "120.0 min"),
        (duration(7_200_000), "2.0 h"),
        (duration(172_800_000), "2.0 days"),
        (listed([]), "a member"),
        (listed(["a"]), "a"),
        (listed(["a", "a"]), "a (2 times)"),
        (listed(["a", "b", "a"]), "a (2 times) and b"),
        (listed(["a", "b", "c"]), "a, b and c"),
        (listed(["a, x", "b, y", "c"]), "a, x; b, y and c"),
        (listed(["a", "b", "c", "d", "e"]), "a, b, c and 2 more"),
        (settings_value(7), "7"),
        (settings_value(45_000), "45000"),
        (settings_value(45_001), "46000"),
        (settings_value(824_690), "830000"),
        (named(Member("m-1", "app", "/10.0.0.1", "pod-1")), "'app' at 10.0.0.1, instance pod-1"),
        (count(1, "time"), "1 time"),
        (count(2, "time"), "2 times"),
    ],
)
def test_words(said: str, text: str) -> None:
    assert said == text
