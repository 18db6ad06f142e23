"""Work in slices: what happens between two pieces of it, and at the broker's stop; and who collects garbage when."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Generator, Iterator
from itertools import count
from pathlib import Path

import pytest

from muster.broker.net.slices import Slices, Work
from muster.broker.operators.garbage import DUE, REST, Garbage
from muster.broker.topics.catalogue import TopicToCreate
from muster.protocol import messages as m
from tests.support import brokers
from tests.support.brokers import RawClient
from tests.support.said import said


class Reported:
    """What happened, in order."""

    def __init__(self) -> None:
        self.reported: list[str] = []
        self.slices = Slices(asyncio.get_running_loop(), lambda: self.reported.append("between"), count().__next__)

    def add(self, name: str, steps: int) -> None:
        def work() -> Work:
            for _ in range(steps):
                self.reported.append(name)
                yield

        self.slices.add(work(), wanted=lambda: True, over=lambda: self.reported.append(f"{name} is over"))

    async def turns(self, number: int) -> None:
        for _ in range(number):
            await asyncio.sleep(0)


async def test_only_between_two_pieces_of_work_is_there_a_rest() -> None:
    reported = Reported()
    reported.add("a", 2)
    reported.add("b", 1)
    await reported.turns(10)
    assert reported.reported == ["a", "a", "a is over", "between", "b", "b is over", "between"]


async def test_what_is_left_at_the_stop_is_dropped_and_what_comes_later_too() -> None:
    reported = Reported()
    reported.add("a", 100)
    reported.add("b", 1)
    await reported.turns(2)
    assert reported.reported == ["a"] * len(reported.reported) != []
    reported.reported.clear()
    reported.slices.stop()
    assert reported.reported == ["a is over", "b is over"]
    reported.add("c", 1)
    await reported.turns(5)
    assert reported.reported == ["a is over", "b is over", "c is over"]


@pytest.fixture
def thresholds() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)
    gc.unfreeze()


@pytest.mark.usefixtures("thresholds")
async def test_nobody_looks_over_all_objects_while_a_large_request_is_under_way() -> None:
    """It creates many objects: each full collection would take as long as it takes to scan all of them."""
    begun: list[bool] = []
    under_way = False

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start" and info["generation"] == 2:
            begun.append(under_way)

    def work() -> Generator[None, None, None]:
        nonlocal under_way
        under_way = True
        objects: list[list[list[None]]] = []
        for _ in range(40):
            objects.append([[] for _ in range(10_000)])
            yield
        del objects
        under_way = False

    garbage = Garbage()
    garbage.take_over()
    slices = Slices(asyncio.get_running_loop(), garbage.collect_if_due)
    gc.callbacks.append(note)
    try:
        slices.add(work(), wanted=lambda: True)
        while len(slices):
            await asyncio.sleep(0)
    finally:
        gc.callbacks.remove(note)
    assert begun == [False]


@pytest.mark.usefixtures("thresholds")
def test_all_is_looked_over_when_due_and_then_not_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    now, looks, due = [100.0], [], [DUE - 1]

    def collect() -> int:
        looks.append(now[0])
        now[0] += 2.0
        return 0

    monkeypatch.setattr(gc, "collect", collect)
    monkeypatch.setattr(gc, "get_count", lambda: (0, 0, due[0]))
    garbage = Garbage(lambda: now[0])
    garbage.collect_if_due()
    assert looks == []
    due[0] = DUE
    for _ in range(2):
        garbage.collect_if_due()
    assert looks == [100.0]
    now[0] = 102.0 + 2.0 * REST - 1
    garbage.collect_if_due()
    assert len(looks) == 1
    now[0] += 1
    garbage.collect_if_due()
    assert len(looks) == 2


async def test_a_broker_stops_though_requests_are_queued(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Some have begun and some have not. Each is answered or its connection closed, and none runs after the stop; the
    next start finishes a deletion that was begun."""
    caplog.set_level(logging.WARNING)
    many = [TopicToCreate(f"t{number}", 1, {}) for number in range(300)]
    async with brokers.running(tmp_path / "data") as broker:
        broker.changes.create_topics(many)
        with RawClient(broker.bootstrap) as first, RawClient(broker.bootstrap) as second:
            slices = broker._server.slices
            slices._clock = count().__next__  # each reading of the clock is the end of a slice
            first.send(m.DeleteTopicsRequest([], [topic.name for topic in many], 20_000), 5)
            second.send(m.CreateTopicsRequest([m.CreatableTopic(f"u{number}", 1, 1) for number in range(300)]), 7)
            while len(slices) < 2 or len(broker.topics):
                await asyncio.sleep(0)
            steps = 0

            def step() -> Work:
                nonlocal steps
                while True:
                    steps += 1
                    yield

            slices.add(step(), wanted=lambda: True)
            await broker.stop()
            assert len(slices) == 0
            assert first.closed()
            assert second.closed()
            for _ in range(20):
                await asyncio.sleep(0)
            assert steps == 0
    assert said(caplog, "muster") == []
    async with brokers.running(tmp_path / "data") as broker:
        assert len(broker.topics) == 0
        assert not list((tmp_path / "data").glob("[tu]*-0"))
