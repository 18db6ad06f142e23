"""The servers of a comparison, before any is started."""

from __future__ import annotations

import asyncio
import threading
from contextlib import ExitStack
from types import TracebackType

import pytest

from muster.compare.servers import _enter, removal
from muster.zookeeper.operations import Create, Plan
from tests.support.watcher_world import Hand, World

PATIENCE_S = 30


class SlowServer:
    """Starts when it is let."""

    def __init__(self) -> None:
        self.begun, self.may_start = threading.Event(), threading.Event()
        self.story: list[str] = []

    def __enter__(self) -> None:
        self.begun.set()
        assert self.may_start.wait(PATIENCE_S)
        self.story.append("started")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.story.append("ended")


async def test_a_server_that_starts_while_its_caller_is_cancelled_is_ended() -> None:
    """An interrupt (Ctrl-C) cancels the caller, an impatient user twice: what a thread still starts is ended all the
    same."""
    server = SlowServer()

    async def run() -> None:
        with ExitStack() as running:
            await _enter(running, server)
            server.story.append("used")

    task = asyncio.create_task(run())
    await asyncio.to_thread(server.begun.wait, PATIENCE_S)
    for _ in range(2):
        task.cancel()
        for _ in range(3):
            await asyncio.sleep(0)
        assert not task.done()
    server.may_start.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert server.story == ["started", "ended"]


def test_nothing_of_a_run_is_left_and_all_else_stays() -> None:
    world = World()
    before = sorted(world.zookeeper.tree.paths())
    for path in ("/run-1", "/run-1/ids", "/run-1/ids/a", "/run-1/topics", "/run-10"):
        world.do(Create(path))

    def twice() -> Plan[None]:
        yield from removal("/run-1")
        yield from removal("/run-1")  # one that is gone

    Hand(world).carry_out(twice())
    assert sorted(world.zookeeper.tree.paths()) == sorted([*before, "/run-10"])
