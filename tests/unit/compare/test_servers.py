"""The servers of a comparison, before any is started."""

from __future__ import annotations

import asyncio
import sys
import threading
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

import pytest

from muster.compare.servers import _enter, removal, removal_of_group
from muster.local.server import LocalServer
from muster.zookeeper.base.operations import Create, Plan
from tests.support.watcher_world import Hand, World

PATIENCE_S = 120


class SlowServer:
    """Starts when the test allows it."""

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
    """An interrupt (Ctrl-C) cancels the caller, an impatient user twice: a server that a thread is still starting is
    stopped anyway."""
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


class StuckServer(LocalServer):
    """Runs, but never becomes ready."""

    def command(self) -> list[str]:
        return [sys.executable, "-c", "import time; time.sleep(600)"]

    def is_ready(self) -> bool:
        return False


async def test_a_server_that_may_never_serve_is_not_waited_for(tmp_path: Path) -> None:
    server = StuckServer("stuck", tmp_path / "stuck")

    async def run() -> None:
        with ExitStack() as running:
            await _enter(running, server)

    task = asyncio.create_task(run())
    async with asyncio.timeout(4 * PATIENCE_S):
        while server.pid is None:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert server.pid is None


def test_nothing_of_a_run_is_left_and_all_else_stays() -> None:
    world = World()
    before = sorted(world.zookeeper.tree.paths())
    for path in ("/run-1", "/run-1/ids", "/run-1/ids/a", "/run-1/topics", "/run-10"):
        world.do(Create(path))

    def twice() -> Plan[None]:
        yield from removal("/run-1")
        yield from removal("/run-1")  # one that no longer exists

    Hand(world).carry_out(twice())
    assert sorted(world.zookeeper.tree.paths()) == sorted([*before, "/run-10"])


def test_a_group_goes_with_its_offsets_and_no_other_one() -> None:
    world = World()
    Hand(world).carry_out(removal_of_group("run-1"))  # there are no groups at all
    for path in ("/muster", "/muster/groups", "/muster/groups/3", "/muster/groups/4"):
        world.do(Create(path))
    others = ["/muster/groups/3/run-10", "/muster/groups/3/run-10~0", "/muster/groups/4/run"]
    for path in (*others, "/muster/groups/4/run-1", "/muster/groups/4/run-1~0", "/muster/groups/4/run-1~12"):
        world.do(Create(path))
    Hand(world).carry_out(removal_of_group("run-1"))
    assert [path for path in sorted(world.zookeeper.tree.paths()) if path.startswith("/muster/groups/")] == sorted(
        ["/muster/groups/3", "/muster/groups/4", *others]
    )
