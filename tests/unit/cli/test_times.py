"""Points in time and durations on the command line."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.cli.times import datetime_ms, duration_ms
from muster.errors import ConfigError

NOON = 1371132000000
"""2013-06-13T14:00:00Z."""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2013-06-13T14:00:00.000", NOON),  # as Kafka's tools take it: UTC
        ("2013-06-13T14:00:00.007Z", NOON + 7),
        ("2013-06-13T16:00:00.000+02:00", NOON),
        ("2013-06-13T09:00:00.000-05", NOON),
        ("2013-06-13T16:00:00.000+0200", NOON),
        ("2013-06-13T14:00:01", NOON + 1_000),
        ("2013-06-13T14:00", NOON),
        ("2013-06-13", NOON - 14 * 3_600_000),
        ("1969-12-31T23:59:59.999", -1),
        ("9999-12-31T23:59:59.999-23:59", 253402387139999),
        ("0001-01-01T00:00:00.000+23:59", -62135683140000),
    ],
)
def test_points_in_time(text: str, expected: int) -> None:
    assert datetime_ms(text, "--at") == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "yesterday",
        "2013-06-31T00:00",
        "2013-06-13T24:00:00.000",
        "2013-06-13 14:00",
        "2013-06-13T14:00:00.5",  # Kafka's tools read it as 5 ms
        "2013-06-13T14",
        "20130613",
        "2013-W24-4",
        "２０１３-06-13",
        "1371132000000",
    ],
)
def test_what_is_not_a_point_in_time(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--at '.*' is not a point in time: write 2013-06-13T17:00:00\.000"):
        datetime_ms(text, "--at")


# The first block is from the documentation of java.time.Duration.parse.
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("PT20.345S", 20_345),
        ("PT15M", 900_000),
        ("PT10H", 36_000_000),
        ("P2D", 172_800_000),
        ("P2DT3H4M", 183_840_000),
        ("PT-6H3M", -21_420_000),
        ("-PT6H3M", -21_780_000),
        ("-PT-6H+3M", 21_420_000),
        ("pt1h30m", 5_400_000),
        ("PT-0.5S", -500),
        ("PT1,25S", 1_250),
        ("PT0S", 0),
        ("90s", 90_000),
        ("1h30m", 5_400_000),
        ("2d", 172_800_000),
        ("500ms", 500),
        ("5m", 300_000),
        ("1d12h", 129_600_000),
        ("1.5m", 90_000),
        ("2w", 1_209_600_000),
        ("0.1s", 100),
    ],
)
def test_durations(text: str, expected: int) -> None:
    assert duration_ms(text, "--since") == expected


@pytest.mark.parametrize(
    "text",
    ["", "P", "PT", "P1DT", "-P", "5", "5x", "1h 30m", "P1Y", "P1W", "PT1", "P1H", "h", "-5m", "１m", "9" * 40 + "d"],
)
def test_what_is_not_a_duration(text: str) -> None:
    with pytest.raises(ConfigError, match="--since '"):
        duration_ms(text, "--since")


@given(days=st.integers(0, 400), hours=st.integers(0, 99), minutes=st.integers(0, 99), seconds=st.integers(0, 99))
def test_both_forms_say_the_same(days: int, hours: int, minutes: int, seconds: int) -> None:
    short = f"{days}d{hours}h{minutes}m{seconds}s"
    assert duration_ms(short, "") == duration_ms(f"P{days}DT{hours}H{minutes}M{seconds}S", "")
