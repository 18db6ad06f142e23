"""A server that gets a signal to stop while it starts."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from muster.broker.config import BrokerConfig
from muster.broker.group_server import GroupServer
from muster.cli.servers import serve
from muster.errors import MusterError


class Starting(GroupServer):
    """A shell whose start waits until the test decides how it ends."""

    def __init__(self) -> None:
        super().__init__(BrokerConfig())
        self.outcome: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.said: list[str] = []
        self.broken = asyncio.Event()

    @property
    def ends(self) -> list[asyncio.Event]:
        return [self.broken]

    async def start(self) -> None:
        self.said.append("starting")
        try:
            await self.outcome
        except asyncio.CancelledError:
            self.said.append("given up")
            raise

    async def stop(self) -> None:
        self.said.append("stopped")


async def until_said(shell: Starting, word: str) -> None:
    async with asyncio.timeout(60):
        while word not in shell.said:
            await asyncio.sleep(0)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_start_that_waits_is_given_up(number: signal.Signals, capsys: pytest.CaptureFixture[str]) -> None:
    shell = Starting()
    running = asyncio.ensure_future(serve.until_stopped(shell, lambda _: "ready"))
    await until_said(shell, "starting")
    os.kill(os.getpid(), number)
    assert await asyncio.wait_for(running, 60) == 0
    assert shell.said == ["starting", "given up"]
    assert capsys.readouterr().out == ""


async def test_a_start_that_fails_tells_why() -> None:
    shell = Starting()
    shell.outcome.set_exception(MusterError("no place here"))
    with pytest.raises(MusterError, match="no place here"):
        await serve.until_stopped(shell, lambda _: "ready")
    assert shell.said == ["starting"]


@pytest.mark.parametrize("is_broken", [False, True])
async def test_what_has_started_is_stopped(is_broken: bool, capsys: pytest.CaptureFixture[str]) -> None:
    shell = Starting()
    shell.outcome.set_result(None)
    running = asyncio.ensure_future(serve.until_stopped(shell, lambda _: "ready"))
    async with asyncio.timeout(60):
        while "ready" not in capsys.readouterr().out:
            await asyncio.sleep(0)
    if is_broken:
        shell.broken.set()
    else:
        os.kill(os.getpid(), signal.SIGTERM)
    assert await asyncio.wait_for(running, 60) == int(is_broken)
    assert shell.said == ["starting", "stopped"]
