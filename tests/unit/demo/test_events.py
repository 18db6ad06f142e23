"""What the demo sends: each flight once, in the order of its clock, late and damaged ones as documented; and the
truth."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest

from muster.demo.data.events import (
    ALLOWED_LATENESS,
    DAMAGED_EVERY,
    FLIGHTS_STREAM,
    HELD_BACK,
    LATE_EVERY,
    WEATHER_STREAM,
    Delays,
    FlightFault,
    StreamEvent,
    Truth,
    events,
    in_order,
)
from muster.demo.data.flights import Flight, flights
from muster.demo.judge.results import flight_id

SOME = 9_000


@pytest.fixture(scope="module")
def sent() -> list[StreamEvent]:
    return list(events(SOME))


def hour_of(event: StreamEvent) -> datetime:
    return datetime.fromisoformat(str(event.row["time_hour"]))


def test_every_flight_is_sent_once_with_ids_in_the_order_of_sending(sent: list[StreamEvent]) -> None:
    own = [event for event in sent if event.stream == FLIGHTS_STREAM]
    assert [event.id for event in own] == list(range(SOME))
    assert [flight_id(event.value) for event in own] == list(range(SOME))
    names = ("year", "month", "day", "flight", "origin", "sched_dep_time", "tailnum")
    assert sorted(str([event.row[name] for name in names]) for event in own) == sorted(
        str([flight.row[name] for name in names]) for flight in flights(SOME)
    )


def test_the_clock_never_goes_back(sent: list[StreamEvent]) -> None:
    assert all(one.at <= other.at for one, other in pairwise(sent))


def test_late_flights_are_late_by_far_and_others_are_not(sent: list[StreamEvent]) -> None:
    """The pipeline decides by `seen_at`, so no flight may be close to the limit."""
    slack = timedelta(days=1)
    late = [event.at - hour_of(event) for event in sent if event.fault is FlightFault.LATE]
    good = [event.at - hour_of(event) for event in sent if event.stream == FLIGHTS_STREAM and event.fault is None]
    assert len(late) == SOME // LATE_EVERY
    assert min(late) > ALLOWED_LATENESS + slack
    assert max(good) < ALLOWED_LATENESS - slack
    assert HELD_BACK > ALLOWED_LATENESS


def test_damaged_flights_are_of_three_kinds_and_still_have_their_ids(sent: list[StreamEvent]) -> None:
    damaged = [event for event in sent if event.fault not in (None, FlightFault.LATE)]
    assert len(damaged) == SOME // DAMAGED_EVERY
    for event in damaged:
        match event.fault:
            case FlightFault.NOT_JSON:
                with pytest.raises(ValueError, match=r"delimiter|Unterminated|Expecting"):
                    json.loads(event.value)
            case FlightFault.NO_HOUR:
                assert json.loads(event.value)["time_hour"] is None
            case FlightFault.UNKNOWN:
                assert json.loads(event.value)["carrier"] == "??"
    assert {event.fault for event in damaged} == {FlightFault.NOT_JSON, FlightFault.NO_HOUR, FlightFault.UNKNOWN}


def test_the_weather_of_an_hour_comes_before_the_flights_that_leave_in_it(sent: list[StreamEvent]) -> None:
    seen: set[tuple[str, datetime]] = set()
    everything = {(event.key, event.at) for event in sent if event.stream == WEATHER_STREAM}
    for event in sent:
        if event.stream == WEATHER_STREAM:
            seen.add((event.key, event.at))
        elif event.fault is None and hour_of(event) <= event.at:
            place = str(event.row["origin"]), hour_of(event)
            assert place in seen or place not in everything


def test_the_truth_counts_good_flights_by_day_origin_and_carrier(sent: list[StreamEvent]) -> None:
    expected = Truth()
    assert list(expected.watch(sent)) == sent
    assert expected.flights == SOME
    assert expected.hours == len(sent) - SOME
    assert sum(each.flights for each in expected.windows.values()) + len(expected.dead) == SOME
    good = [event for event in sent if event.stream == FLIGHTS_STREAM and event.fault is None]
    for (day, origin, carrier), delays in list(expected.windows.items())[::97]:
        own = [
            event.row["dep_delay"]
            for event in good
            if (hour_of(event).date(), event.row["origin"], event.row["carrier"]) == (day, origin, carrier)
        ]
        minutes = [each for each in own if isinstance(each, int)]
        assert delays == Delays(len(own), len(minutes), sum(minutes))
    weather = {(event.key, event.at): json.loads(event.value) for event in sent if event.stream == WEATHER_STREAM}
    joined = {
        event.id: (event.row["dep_delay"], hour["wind_speed"], hour["precip"], hour["visib"])
        for event in good
        if (hour := weather.get((str(event.row["origin"]), hour_of(event))))
    }
    assert expected.joined() == joined
    assert 0 < len(joined) < len(good)


def flight(minute: int) -> Flight:
    row = {"year": 2013, "month": 1, "day": 1, "dep_time": minute, "sched_dep_time": minute, "dep_delay": 0}
    return Flight("N1", {**row, "carrier": "AA", "origin": "JFK", "time_hour": "2013-01-01T05:00:00Z"})


def test_flights_that_are_still_held_back_at_the_end_come_then() -> None:
    found = list(in_order((flight(0) for _ in range(LATE_EVERY)), []))
    assert [event.fault for event in found] == [None] * (LATE_EVERY - 1) + [FlightFault.LATE]
    assert found[-1].at - found[-2].at == HELD_BACK


def test_midnight_of_the_day_before_is_written_2400() -> None:
    (event,) = in_order([flight(2400)], [])
    assert event.at == datetime(2013, 1, 2, 5, tzinfo=UTC)


def test_a_mean_of_nothing_is_none() -> None:
    assert Delays(flights=1).mean_minutes is None
    delays = Delays()
    for minutes in (None, 3, -4):
        delays.add(minutes)
    assert delays == Delays(flights=3, departed=2, minutes=-1)
    assert delays.mean_minutes == -0.5
    delays.merge(Delays(1, 1, 7))
    assert delays == Delays(4, 3, 6)
