"""The judge of the demo on a small run's files: correct files pass, and each fault shows in its figure."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from muster.demo.data.events import FLIGHTS_STREAM, WEATHER_STREAM, FlightFault, StreamEvent
from muster.demo.judge.outcome import WEATHER, by_weather, compare, figures, kind_of_weather
from muster.demo.run.examination import Examination
from muster.demo.run.job import DemoOptions, DemoRun
from muster.demo.show.story import Story
from muster.history.report import Report

HOUR = "2013-01-01T10:00:00Z"
AT = datetime.fromisoformat(HOUR)
DAY = {"day": "2013-01-01", "origin": "JFK", "carrier": "AA"}
SUMS = {"flights": 4, "departed": 3, "minutes": 10}
SKY: dict[str, Any] = {"wind_speed": 5.0, "precip": 0.0, "visib": 10.0}
DELAYS = (7, None, 3, 0)


def sent() -> list[StreamEvent]:
    """An hour's weather, four good flights, and a late one."""
    weather = StreamEvent(AT, WEATHER_STREAM, "JFK", "{}", row={"station": "JFK", "hour": HOUR, **SKY})
    rows = [{"origin": "JFK", "carrier": "AA", "time_hour": HOUR, "dep_delay": delay} for delay in DELAYS]
    good = [StreamEvent(AT, FLIGHTS_STREAM, "N1", value(number), number, None, row) for number, row in enumerate(rows)]
    return [weather, *good, StreamEvent(AT, FLIGHTS_STREAM, "N1", value(4), 4, FlightFault.LATE, {})]


def value(number: int) -> str:
    return f'{{"id":{number},"seen_at":"2013"}}'


def record(topic: str, partition: int, offset: int, text: str, **more: Any) -> dict[str, Any]:
    return {"topic": topic, "partition": partition, "offset": offset, "key": None, "value": text, **more}


class World:
    """The files of a correct run: Spark had partition 0, with flights 0, 2 and 4; python-1 had the other one."""

    def __init__(self, out: Path) -> None:
        self.run = DemoRun(DemoOptions(out, out / "broker"), Story("delays", has_events=True))
        self.run.examination = Examination(Report("the broker", None, 0), (), 0, ())
        list(self.run.truth.watch(sent()))
        self.run.sent, self.run.ends = 5, {0: 3, 1: 2}
        self.shared = [{"partition": 0, "offset": offset, "value": value(2 * offset)} for offset in range(3)]
        self.delays: list[dict[str, Any]] = [{**DAY, **SUMS, "airline": "American"}]
        self.weather: list[dict[str, Any]] = [
            {"id": number, **SKY} | ({} if delay is None else {"dep_delay": delay})
            for number, delay in enumerate(DELAYS)
        ]
        fault = {"fault": "late", "source": "flights-0-2"}
        self.reader = [
            {"event": "assigned", "partitions": [0]},
            record("flights-by-day", 0, 0, json.dumps({**SUMS, "flights": 1}), key=json.dumps(DAY)),
            record("flights-by-day", 0, 1, json.dumps(SUMS), key=json.dumps(DAY)),
            record("flights-dead", 0, 0, value(4), headers=fault),
        ]
        self.members: dict[str, list[dict[str, Any]]] = {
            "python-1": [
                {"event": "assigned", "partitions": [1]},
                *(record("flights", 1, offset, value(2 * offset + 1)) for offset in range(2)),
                {"event": "committed", "offsets": {"1": 2}},
            ]
        }
        self.claims = {0: [0, 2], 1: [2, 3]}
        self.done = {0, 1}
        self.torn = {"reader": '{"topic":"flights-dead","par'}

    def wrong(self) -> set[str]:
        """The figures that have an unexpected value."""
        run = self.run
        for name, rows in (("shared", self.shared), ("delays", self.delays), ("weather", self.weather)):
            _write(run.collected / f"{name}.jsonl", rows)
        for name, lines in {"reader": self.reader, **self.members}.items():
            _write(run.options.out / f"{name}.jsonl", lines, self.torn.get(name, ""))
        run.member_files = {name: run.options.out / f"{name}.jsonl" for name in self.members}
        log = run.spark_out / "checkpoints" / "shared"
        for batch, (start, end) in self.claims.items():
            _write(log / "offsets" / str(batch), ["v1", {}, {"claims": {"flights": {"0": [start, end]}}}])
        for batch in self.done:
            _write(log / "commits" / str(batch), ["v1", {}])
        return {name for name, figure in figures(run, compare(run)).items() if figure.ok is False}


def _write(path: Path, lines: list[Any], torn: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines) + torn, encoding="utf-8")


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_a_run_in_which_all_is_right(world: World) -> None:
    assert world.wrong() == set()


SHARED = "handled by the shared group"
TWICE = {"handled twice", "handled twice without a reason"}
WRONG: dict[str, tuple[Callable[[World], Any], set[str]]] = {
    "a window that is in the table twice": (lambda w: w.delays.append(w.delays[0]), {"windows in the table"}),
    "a window that is wrong": (lambda w: w.delays[0].update(minutes=11), {"windows in the table"}),
    "a topic without its last value": (lambda w: w.reader.pop(2), {"windows in the compacted topic"}),
    "a topic with another order": (
        lambda w: w.reader.append(
            record("flights-by-day", 0, 2, json.dumps({}), key=json.dumps(DAY)) | {"value": None}
        ),
        {"windows in the compacted topic"},
    ),
    "a flight that is joined twice": (lambda w: w.weather.append(w.weather[0]), {"flights with their weather"}),
    "a flight with another hour's weather": (lambda w: w.weather[2].update(precip=0.3), {"flights with their weather"}),
    "a letter that is missing": (lambda w: w.reader.pop(3), {"dead letters"}),
    "a flight that reached no member": (
        lambda w: (w.members["python-1"].pop(2), w.run.ends.update({1: 1})),
        {"flights sent", SHARED},
    ),
    "a record that nobody handled": (lambda w: w.run.ends.update({1: 3}), {SHARED}),
    "a record that another member handled again": (
        lambda w: w.members.update(
            {"python-2": [{"event": "assigned", "partitions": [1]}, record("flights", 1, 1, value(3))]}
        ),
        TWICE,
    ),
    "a row that Spark's output lacks": (
        lambda w: (w.shared.pop(), w.run.ends.update({0: 2})),
        {"flights sent", SHARED, "handled out of order"},
    ),
}


@pytest.mark.parametrize("change", WRONG)
def test_what_is_wrong_is_in_its_figure(world: World, change: str) -> None:
    make, expected = WRONG[change]
    make(world)
    assert world.wrong() == expected


def test_flights_that_were_never_on_their_way_are_missed(world: World) -> None:
    world.run.sent = 6
    assert world.wrong() == {SHARED}


def test_a_batch_that_was_planned_and_not_finished_is_in_no_output(world: World) -> None:
    world.claims[2] = [3, 5]
    assert world.wrong() == set()


def test_what_a_killed_member_had_not_committed_may_come_again(world: World) -> None:
    world.members["python-1"].pop()
    world.members["python-2"] = [{"event": "assigned", "partitions": [1]}, record("flights", 1, 1, value(3))]
    assert world.wrong() == TWICE
    world.run.killed.add("python-1")
    world.torn["python-1"] = '{"topic":"flights","partition":1,"off'
    assert world.wrong() == set()


@pytest.mark.parametrize(
    ("row", "kind"),
    [
        ({}, 0),
        ({"visib": 3.0, "wind_speed": 25.0, "precip": 0.0}, 0),
        ({"visib": 2.9}, 1),
        ({"visib": 2.9, "wind_speed": 25.1}, 2),
        ({"wind_speed": 30.0, "precip": 0.01}, 3),
        ({"precip": 0.09}, 3),
        ({"precip": 0.1, "visib": 1.0}, 4),
    ],
)
def test_the_worst_thing_about_an_hour_is_its_kind_of_weather(row: dict[str, float], kind: int) -> None:
    assert kind_of_weather(row) == WEATHER[kind]
    (shown,) = by_weather([{**row, "dep_delay": 4}, {**row, "dep_delay": None}])
    assert (shown.label, shown.flights, shown.mean_minutes) == (WEATHER[kind], 2, 4.0)
