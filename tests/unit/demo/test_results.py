"""Faults in results are found, whatever they are: lost, duplicated, in another window, with another fault."""

from __future__ import annotations

import json
from datetime import date
from typing import Any

import pytest

from muster.demo.data.events import Delays, FlightFault, Truth
from muster.demo.judge import results

DAY = date(2013, 1, 1)


def truth() -> Truth:
    return Truth(
        flights=5,
        windows={(DAY, "JFK", "AA"): Delays(2, 2, 10), (DAY, "EWR", "UA"): Delays(1, 0, 0)},
        dead={3: FlightFault.LATE, 4: FlightFault.NOT_JSON},
        weather={HOUR: (5.0, 0.0, None), ("JFK", "2013-01-01T06:00:00Z"): (0.0, 0.1, 3.0)},
        good={0: (HOUR, 7), 1: (HOUR, None), 2: (HOUR, 3), 4: (("EWR", "2013-01-01T05:00:00Z"), 1)},
    )


HOUR = "JFK", "2013-01-01T05:00:00Z"


def joined(number: int, delay: int | None, wind: float = 5.0) -> dict[str, Any]:
    """As Spark writes it: without null values."""
    found = {"id": number, "wind_speed": wind, "precip": 0.0}
    return found if delay is None else {**found, "dep_delay": delay}


JOINED = [joined(0, 7), joined(1, None), joined(2, 3)]


def row(
    origin: str = "JFK", carrier: str = "AA", flights: int = 2, departed: int = 2, minutes: int = 10
) -> dict[str, Any]:
    counts = {"flights": flights, "departed": departed, "minutes": minutes}
    return {"day": "2013-01-01", "origin": origin, "carrier": carrier, "airline": "A", **counts}


RIGHT = [row(), row("EWR", "UA", 1, 0, 0)]


def test_right_windows_are_right() -> None:
    assert results.windows(RIGHT, truth()) == results.Compared(2)


def test_a_window_that_is_missing_wrong_or_too_many_is_named() -> None:
    assert results.windows(RIGHT[:1], truth()).wrong == (
        "2013-01-01 EWR UA: None instead of Delays(flights=1, departed=0, minutes=0)",
    )
    for wrong in (row(flights=3), row(departed=1), row(minutes=11)):
        assert len(results.windows([wrong, RIGHT[1]], truth()).wrong) == 1
    assert len(results.windows([*RIGHT, row("LGA")], truth()).wrong) == 1
    assert results.windows([*RIGHT, RIGHT[0]], truth()).repeated == 1


def record(
    topic: str, offset: int, value: str | None, key: dict[str, str] | None = None, partition: int = 0
) -> dict[str, Any]:
    return {"topic": topic, "partition": partition, "offset": offset, "key": json.dumps(key), "value": value}


def test_of_a_compacted_topic_the_last_value_of_each_key_counts_and_a_tombstone_deletes_it() -> None:
    one, other = {"day": "2013-01-01", "origin": "JFK"}, {"day": "2013-01-01", "origin": "EWR"}
    records = [
        record("t", 2, '{"flights":3}', one),
        record("t", 0, '{"flights":1}', one),
        record("t", 1, '{"flights":9}', other),
        record("t", 3, None, other),
    ]
    assert results.last_values(records) == [{**one, "flights": 3}]


def test_flights_without_their_weather_twice_or_unexpected_are_named() -> None:
    assert results.joined(JOINED[::-1], truth()) == results.Compared(3)
    found = results.joined([*JOINED[:2], joined(0, 7), joined(4, 1)], truth())
    assert found.wrong == ("flight 2 lacks its weather", "flight 4 should not be there", "flight 0 is there 2 times")
    assert found.repeated == 1


@pytest.mark.parametrize("other", [joined(0, 8), joined(0, None), joined(0, 7, 0.0), {**joined(0, 7), "visib": 3.0}])
def test_a_flight_with_another_delay_or_another_hours_weather_is_named(other: dict[str, Any]) -> None:
    (wrong,) = results.joined([other, *JOINED[1:]], truth()).wrong
    assert wrong.startswith("flight 0 has delay and weather (")
    assert wrong.endswith(" instead of (7, 5.0, 0.0, None)")


def letter(number: int, fault: str) -> dict[str, Any]:
    return {"value": f'{{"id":{number},"seen_at":"201', "headers": {"fault": fault, "source": "flights-0-1"}}


def test_dead_letters_may_be_repeated_but_not_missing_wrong_or_too_many() -> None:
    right = [letter(3, "late"), letter(4, "not JSON")]
    assert results.dead([*right, right[0]], truth()) == results.Compared(2, repeated=1)
    assert results.dead(right[:1], truth()).wrong == ("flight 4: no letter instead of not JSON",)
    assert results.dead([letter(3, "not JSON"), right[1]], truth()).wrong == ("flight 3: not JSON instead of late",)
    assert results.dead([*right, letter(3, "not JSON")], truth()).wrong == ("flight 3: late, not JSON instead of late",)
    assert results.dead([*right, letter(1, "late")], truth()).wrong == ("flight 1 should not be a dead letter",)


def test_each_flight_is_in_the_topic_once_in_order_within_its_partition() -> None:
    values = {(0, 0): 0, (1, 0): 1, (0, 1): 2, (1, 1): 3, (1, 2): 4}
    assert results.sent(_texts(values), 5) == results.Compared(5)
    assert results.sent(_texts({**values, (1, 2): 3}), 5) == results.Compared(4, ("flight 4 is not in the topic",), 1)
    assert results.sent(_texts({(0, 0): 2, (0, 1): 0, (1, 0): 1}), 3).wrong == ("flight 0 follows 2 in partition 0",)
    assert results.sent(_texts(values), 4).wrong == ("flight 4 was never sent",)
    assert results.sent({(0, 0): "nonsense"}, 0).wrong == ("the record 0:0 has no id",)


def _texts(values: dict[tuple[int, int], int]) -> dict[tuple[int, int], str]:
    return {place: f'{{"id":{number},"seen_at":null}}' for place, number in values.items()}
