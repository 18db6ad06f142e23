"""A process that runs members of a comparison."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.alive import is_alive, wait_until_gone

COMPARISON = """
import asyncio, sys
from pathlib import Path
from muster.demo.run.processes import Process

async def main(log):
    options = ("scheme", "zookeeper", "bootstrap", "coordinators", "group", "topic")
    command = ["-m", "muster.compare.host", *(f"--{name}=1" for name in options)]
    host = await Process.start("members", command, log)
    await host.read_line(100)
    host.freeze()
    print(host.process.pid, flush=True)
    await asyncio.sleep(600)

asyncio.run(main(Path(sys.argv[1])))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with its parent")
def test_members_that_stand_still_end_with_a_comparison_that_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", COMPARISON, str(tmp_path / "log")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as comparison:
        assert comparison.stdout is not None
        host = int(comparison.stdout.readline())
        assert is_alive(host)
        comparison.kill()
    try:
        wait_until_gone(host)
    finally:
        if is_alive(host):
            os.kill(host, signal.SIGKILL)
