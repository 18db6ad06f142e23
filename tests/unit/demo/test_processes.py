"""The demo's broker: real processes."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from muster.demo.run.processes import EmbeddedBroker, Process, ProcessFailedError
from muster.local.server import pid_in
from tests.support.alive import wait_until_gone

PATIENCE_S = 120
DEMO = """
import asyncio, sys
from pathlib import Path
from muster.demo.run.processes import EmbeddedBroker

async def main(folder):
    broker = EmbeddedBroker(folder / "data", folder / "logs")
    await broker.start()
    print((folder / "logs" / "pid").read_text(), flush=True)
    await asyncio.sleep(600)

asyncio.run(main(Path(sys.argv[1])))
"""


@pytest.mark.slow
async def test_a_broker_keeps_its_port_and_one_that_ends_by_itself_is_reported(tmp_path: Path):
    broker = EmbeddedBroker(tmp_path / "data", tmp_path / "logs")
    await broker.start()
    try:
        address = broker.bootstrap
        broker.check()
        await broker.kill()
        broker.check()
        await broker.start()
        assert broker.bootstrap == address
        assert (tmp_path / "data").is_dir()
        assert broker.events.exists()
        os.kill(int((tmp_path / "logs" / "pid").read_text()), signal.SIGKILL)
        with pytest.raises(ProcessFailedError, match="the broker ended with signal SIGKILL; its last words:\n  muster"):
            await until_it_raises(broker)
    finally:
        await broker.stop()
    broker.check()


async def until_it_raises(broker: EmbeddedBroker) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            broker.check()
            await asyncio.sleep(0.05)


async def test_a_process_that_does_not_end_is_killed_where_nobody_waits_for_it(tmp_path: Path):
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(600)"
    process = await Process.start("a process", ["-c", deaf], tmp_path / "log")
    await process.read_line(PATIENCE_S)
    stopping = asyncio.create_task(process.stop(patience_s=600))
    await asyncio.sleep(0)
    stopping.cancel()  # as a second Ctrl-C does
    with pytest.raises(asyncio.CancelledError):
        await stopping
    assert process.ending == "signal SIGKILL"


@pytest.mark.slow
def test_a_demo_that_is_killed_leaves_no_broker(tmp_path: Path):
    with subprocess.Popen([sys.executable, "-c", DEMO, str(tmp_path)], stdout=subprocess.PIPE) as demo:
        assert demo.stdout is not None
        pid = int(demo.stdout.readline())
        demo.kill()
    deadline = time.monotonic() + PATIENCE_S
    while pid_in(tmp_path / "logs") == pid:
        assert time.monotonic() < deadline, "the broker is still there"
        time.sleep(0.05)


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="the processes of a session are found in /proc")
async def test_a_killed_process_takes_those_with_it_that_have_a_process_group_of_their_own(tmp_path: Path):
    """Like Spark's Python workers."""
    child = "import os, time; os.setpgid(0, 0); print(os.getpid(), flush=True); time.sleep(600)"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    process = await Process.start("a process", ["-c", parent], tmp_path / "log")
    pid = int(await process.read_line(PATIENCE_S))
    assert os.getpgid(pid) == pid
    await process.kill()
    wait_until_gone(pid)
