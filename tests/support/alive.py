"""Whether a process of any parent still runs."""

from __future__ import annotations

import os
import time
from pathlib import Path

PATIENCE_S = 240


def is_alive(pid: int) -> bool:
    """Whether a process runs. A zombie does not: in a container the first process, which inherits orphans, may never
    reap it."""
    try:
        os.kill(pid, 0)
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except ProcessLookupError:
        return False
    except OSError:  # without /proc, or it has ended between the two
        return not Path("/proc/self").exists()


def wait_until_gone(*pids: int) -> None:
    """Return when none of them runs."""
    deadline = time.monotonic() + PATIENCE_S
    while left := [pid for pid in pids if is_alive(pid)]:
        assert time.monotonic() < deadline, f"still there: {left}"
        time.sleep(0.02)


def wait_until_none_of(folder: Path) -> None:
    """Return when no process's command line names the folder: keepers end a moment after their servers."""
    deadline = time.monotonic() + PATIENCE_S
    while left := processes_of(folder):
        assert time.monotonic() < deadline, f"still there: {left}"
        time.sleep(0.1)


def processes_of(folder: Path) -> list[int]:
    """Processes whose command line names the folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                command = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if str(folder).encode() in command:
                found.append(int(entry.name))
    return found
