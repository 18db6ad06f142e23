"""Keep one server running for as long as a process holds its lock, and end it when none does.

keeper.py USERS PIDFILE COMMAND ARGUMENT…

A process that uses the server holds a shared lock on the file USERS. The kernel releases the lock when it ends, however
it ends, so that a program that is killed leaves no server behind, and several processes can share one server without
counting each other. The keeper holds no lock while the server is in use; once it can get the lock exclusively, it ends
the server, and keeps the lock until the server is gone: a newcomer waits for that and starts another.

It also holds the lock on PIDFILE while the server runs (`server.pid_in` looks at that), and ends the same way as the
server. It runs as a script, without the package, so that it is small and starts quickly.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

POLL_S = 0.2
_PR_SET_PDEATHSIG = 1


def main() -> int:
    """Run the command until it ends or is no longer needed; returns how it ended."""
    users, pidfile = (Path(argument) for argument in sys.argv[1:3])
    ended, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with users.open("a") as lock, pidfile.open("a") as running:
        fcntl.flock(running, fcntl.LOCK_EX)  # an earlier server may be about to end
        # The keeper has one thread: what runs between fork and exec is safe.
        server = subprocess.Popen(sys.argv[3:], stdin=subprocess.DEVNULL, preexec_fn=die_with(os.getpid()))
        try:
            running.truncate(0)
            running.write(str(server.pid))
            running.flush()
            while server.poll() is None:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError:
                    select.select([ended], [], [], POLL_S)
                    continue
                break
        finally:
            # Its data is no longer needed, and some servers take ten seconds to end cleanly.
            server.kill()
            server.wait()
            running.truncate(0)
    return int(server.returncode)


def die_with(parent: int) -> Callable[[], None] | None:
    """The `preexec_fn` of a process: on Linux the kernel kills it when its parent ends, even while it is stopped
    (SIGSTOP) and would not notice a closed pipe."""
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None).prctl

    def before() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it ended before that
            os.kill(os.getpid(), signal.SIGKILL)

    return before


def end_as(code: int) -> int:
    """The exit code to end with; if a signal ended the server, the same signal ends the keeper."""
    if code < 0:
        with contextlib.suppress(OSError):  # SIGKILL has no handler
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


if __name__ == "__main__":
    sys.exit(end_as(main()))
