"""What the demo sends, and the expected results: records in clock order, and the truth computed from them.

The clock shows the time in New York in 2013, in Eastern Standard Time: a flight is sent when it leaves, an hour's
weather when that hour begins. A flight's event time is `time_hour`, the hour for which it was scheduled, so flights
arrive slightly out of order, as events do. The demo also creates the problems that pipelines face:

- late: every LATE_EVERYth flight is held back for HELD_BACK. That far exceeds the pipeline's ALLOWED_LATENESS, and
  shows in the records themselves (`seen_at` against `time_hour`). So lateness does not depend on batches;
- damaged: every DAMAGED_EVERYth flight is truncated, lacks its hour, or has an unknown
  carrier, in turn.

A flight's `id` is its position in the order of sending. It comes first, so that a damaged record still has it. Keys are
tail numbers, and ids rise within a partition.
"""

from __future__ import annotations

import csv
import heapq
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from enum import StrEnum
from itertools import count
from operator import attrgetter

from muster.demo.data.flights import Flight, Value, flights, installed

LATE_EVERY = 401
HELD_BACK = timedelta(days=10)
ALLOWED_LATENESS = timedelta(days=3)
DAMAGED_EVERY = 997
UNKNOWN_CARRIER = "??"
_STANDARD_TIME = timedelta(hours=5)


class FlightFault(StrEnum):
    """Why a flight becomes a dead letter."""

    NOT_JSON = "not JSON"
    NO_HOUR = "no scheduled hour"
    UNKNOWN = "unknown carrier"
    LATE = "late"


_DAMAGES = (FlightFault.NOT_JSON, FlightFault.NO_HOUR, FlightFault.UNKNOWN)


Cell = Value | float


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """One record. Only flights have `id` and `fault`; the id of weather is -1."""

    at: datetime
    stream: str
    key: str
    value: str
    id: int = -1
    fault: FlightFault | None = None
    row: Mapping[str, Cell] = field(default_factory=dict)


FLIGHTS_STREAM = "flights"
WEATHER_STREAM = "weather"
WEATHER = ("wind_speed", "precip", "visib")
"""The parts of an hour's weather that are compared."""


def events(limit: int | None = None) -> Iterator[StreamEvent]:
    """All records in the order of sending: the first `limit` flights, and the weather of their time."""
    return in_order(flights(limit), weather())


def in_order(departures: Iterable[Flight], hours: Iterable[StreamEvent]) -> Iterator[StreamEvent]:
    """Merge flights, held-back flights and the weather. The weather ends with the flights."""
    ids = count()
    held: list[tuple[datetime, int, Flight]] = []
    rest = iter(hours)
    hour = next(rest, None)
    at = datetime.min.replace(tzinfo=UTC)
    for number, flight in enumerate(departures):
        at = max(at, departed_at(flight.row))
        while hour is not None and hour.at <= at:
            yield hour
            hour = next(rest, None)
        while held and held[0][0] <= at:
            yield _late(next(ids), at, heapq.heappop(held)[2])
        if number % LATE_EVERY == LATE_EVERY - 1:
            heapq.heappush(held, (at + HELD_BACK, number, flight))
        else:
            yield _on_time(next(ids), number, at, flight)
    for due, _, flight in sorted(held, key=lambda each: each[:2]):
        at = max(at, due)
        yield _late(next(ids), at, flight)


def _on_time(place: int, number: int, at: datetime, flight: Flight) -> StreamEvent:
    fault = None
    row: dict[str, Value] = {"id": place, "seen_at": _text(at), **flight.row}
    if number % DAMAGED_EVERY == DAMAGED_EVERY - 1:
        fault = _DAMAGES[number // DAMAGED_EVERY % len(_DAMAGES)]
        if fault is FlightFault.NO_HOUR:
            row["time_hour"] = None
        elif fault is FlightFault.UNKNOWN:
            row["carrier"] = UNKNOWN_CARRIER
    value = json.dumps(row, separators=(",", ":"))
    if fault is FlightFault.NOT_JSON:
        value = value[: len(value) // 2]
    return StreamEvent(at, FLIGHTS_STREAM, flight.key, value, place, fault, row)


def _late(place: int, at: datetime, flight: Flight) -> StreamEvent:
    row: dict[str, Value] = {"id": place, "seen_at": _text(at), **flight.row}
    value = json.dumps(row, separators=(",", ":"))
    return StreamEvent(at, FLIGHTS_STREAM, flight.key, value, place, FlightFault.LATE, row)


def departed_at(row: dict[str, Value]) -> datetime:
    """When a flight is sent: at its departure, or its scheduled departure if it never left."""
    year, month, day = (int(str(row[name])) for name in ("year", "month", "day"))
    left = int(str(row["sched_dep_time"] if row["dep_time"] is None else row["dep_time"]))
    clock = timedelta(hours=left // 100, minutes=left % 100)
    return datetime(year, month, day, tzinfo=UTC) + clock + _STANDARD_TIME


def weather() -> Iterator[StreamEvent]:
    """The hourly weather at each airport, in time order."""
    with installed("weather.csv").open(encoding="utf-8", newline="") as lines:
        rows = [_weather(row) for row in csv.DictReader(lines)]
    yield from sorted(rows, key=attrgetter("at", "key"))


def _weather(row: dict[str, str]) -> StreamEvent:
    hour = row["time_hour"]
    shown: dict[str, Cell] = {"station": row["origin"], "hour": hour}
    for name in ("temp", *WEATHER):
        shown[name] = float(row[name]) if row[name] not in ("", "NA") else None
    value = json.dumps(shown, separators=(",", ":"))
    return StreamEvent(datetime.fromisoformat(hour), WEATHER_STREAM, row["origin"], value, row=shown)


def _text(at: datetime) -> str:
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")


# ------------------------------------------------------------------------------------------------------------ the truth

DayWindow = tuple[date, str, str]
"""Day (UTC), origin, carrier."""
Hour = tuple[str, str]
"""An airport and an hour, as in the records."""


@dataclass(slots=True)
class Delays:
    """Departure delays of some flights, in whole minutes: integer sums do not depend on the order."""

    flights: int = 0
    departed: int = 0
    minutes: int = 0

    def add(self, dep_delay: Cell) -> None:
        """Count one flight; one that never left has no delay."""
        self.flights += 1
        if isinstance(dep_delay, int):
            self.departed += 1
            self.minutes += dep_delay

    def merge(self, other: Delays) -> None:
        """Add other flights."""
        self.flights += other.flights
        self.departed += other.departed
        self.minutes += other.minutes

    @property
    def mean_minutes(self) -> float | None:
        """The mean delay of the flights that left; None if none did."""
        return self.minutes / self.departed if self.departed else None


@dataclass(slots=True)
class Truth:
    """The expected results of the pipeline, computed from the records without it."""

    flights: int = 0
    hours: int = 0
    """Weather records."""
    windows: dict[DayWindow, Delays] = field(default_factory=dict)
    dead: dict[int, FlightFault] = field(default_factory=dict)
    weather: dict[Hour, tuple[Cell, ...]] = field(default_factory=dict)
    good: dict[int, tuple[Hour, Cell]] = field(default_factory=dict)
    """For each flight that is neither late nor damaged: its origin and hour, and its delay."""

    def add(self, event: StreamEvent) -> None:
        """Count one record."""
        if event.stream == WEATHER_STREAM:
            self.hours += 1
            self.weather[str(event.row["station"]), str(event.row["hour"])] = _weather_of(event.row)
            return
        self.flights += 1
        if event.fault is not None:
            self.dead[event.id] = event.fault
            return
        hour, origin, carrier = (str(event.row[name]) for name in ("time_hour", "origin", "carrier"))
        window = date.fromisoformat(hour[:10]), origin, carrier
        self.windows.setdefault(window, Delays()).add(event.row["dep_delay"])
        self.good[event.id] = (origin, hour), event.row["dep_delay"]

    def watch(self, sent: Iterable[StreamEvent]) -> Iterator[StreamEvent]:
        """Pass records on, counting each."""
        for event in sent:
            self.add(event)
            yield event

    def joined(self) -> dict[int, tuple[Cell, ...]]:
        """The flights whose hour has known weather, which the join must find: their delay and that weather."""
        return {
            flight: (delay, *self.weather[hour]) for flight, (hour, delay) in self.good.items() if hour in self.weather
        }


def _weather_of(row: Mapping[str, Cell]) -> tuple[Cell, ...]:
    return tuple(row[name] for name in WEATHER)
