"""The thread that works next to the loop: its clients take turns, and leave nothing that accumulates."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from muster.broker.net.side_thread import MAX_ORPHANED, Pieces, SideThread
from tests.support.said import said


class Clients:
    """Clients with work for the thread, which waits until the gate opens. Records what was done, in order."""

    def __init__(self) -> None:
        self.side = SideThread()
        self.gate = threading.Event()
        self.reported: list[str] = []
        self.given_back: list[str] = []

    def add(self, name: str, pieces: int = 1, topic: str = "t", **options: bool) -> Any:
        def work() -> Pieces:
            for number in range(pieces):
                self.gate.wait()
                self.reported.append(f"{name}{number}")
                yield

        call: Any = SimpleNamespace(give_frame_back=lambda: self.given_back.append(name), keeps_frame=False)
        self.side.run(call, topic, work(), lambda: self.reported.append(f"{name} done"), **options)
        return call

    async def all(self) -> list[str]:
        self.gate.set()
        while len(self.side):
            await asyncio.sleep(0)
        return self.reported


@pytest.fixture
def clients() -> Iterator[Callable[[], Clients]]:
    made: list[Clients] = []

    def make() -> Clients:
        made.append(Clients())
        return made[-1]

    yield make
    for each in made:
        each.gate.set()
        each.side._thread.shutdown()


async def test_clients_take_turns_after_each_piece(clients: Callable[[], Clients]) -> None:
    some = clients()
    some.add("a", 3)
    some.add("b", 1)
    assert await some.all() == ["a0", "b0", "a1", "b done", "a2", "a done"]


async def test_a_topic_of_many_clients_has_no_more_turns_than_another(clients: Callable[[], Clients]) -> None:
    """Eight producers to a topic whose batches are slow; another topic's batch waits for at most two of theirs."""
    some = clients()
    for number in range(8):
        some.add(f"slow{number}-", 4, topic="slow")
    some.add("one", 3, topic="other")
    some.add("two", 1, topic="third")
    order = await some.all()
    turns = [each for each in order if "done" not in each]
    assert [turns.index(name) for name in ("one0", "two0", "one1", "one2")] == [2, 3, 5, 7]
    assert len(turns) == 8 * 4 + 3 + 1


async def test_clients_of_one_topic_take_turns_whatever_other_topics_do(clients: Callable[[], Clients]) -> None:
    some = clients()
    some.add("a", 3, topic="x")
    some.add("b", 3, topic="x")
    some.add("c", 2, topic="y")
    turns = [each for each in await some.all() if "done" not in each]
    assert [each for each in turns if each[0] in "ab"] == ["a0", "b0", "a1", "b1", "a2", "b2"]
    assert turns[:5] == ["a0", "b0", "c0", "a1", "c1"]


async def test_the_work_of_a_client_that_is_gone_is_dropped_at_once(clients: Callable[[], Clients]) -> None:
    some = clients()
    running = some.add("a", 2)
    for number in range(1_000):
        some.add(f"gone{number}-").on_cancel()
        assert len(some.side) == 1, "what is dropped does not wait for its turn"
    some.add("b")
    running.on_cancel()
    assert await some.all() == ["a0", "b0", "b done"]


async def test_who_waits_for_no_answer_may_go_but_only_so_many(clients: Callable[[], Clients]) -> None:
    """A producer with acks=0 sends its last records and ends."""
    some = clients()
    for number in range(MAX_ORPHANED + 5):
        call = some.add(f"{number}-", unanswered=True)
        call.on_cancel()
        assert call.keeps_frame == (number < MAX_ORPHANED)
    assert len(some.side) == MAX_ORPHANED
    assert some.given_back == []
    reported = await some.all()
    assert [one for one in reported if "done" in one] == [f"{number}- done" for number in range(MAX_ORPHANED)]
    assert len(some.given_back) == MAX_ORPHANED
    some.add("later", unanswered=True).on_cancel()
    assert (await some.all())[-1] == "later done"


async def test_nothing_is_done_or_reported_after_the_stop(
    clients: Callable[[], Clients], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    some = clients()
    some.add("a")
    some.add("b")
    some.side.stop()
    some.gate.set()
    some.side._thread.shutdown()
    for _ in range(5):
        await asyncio.sleep(0)
    some.add("c")
    assert some.reported in ([], ["a0"])
    assert said(caplog, "muster.broker") == []


async def test_work_that_ends_with_the_stop_is_not_reported(clients: Callable[[], Clients]) -> None:
    """The last piece is done, and the loop has not been notified yet."""
    some = clients()
    some.add("a", 0)
    some.side._thread.submit(lambda: None).result()
    some.side.stop()
    for _ in range(5):
        await asyncio.sleep(0)
    assert some.reported == []
