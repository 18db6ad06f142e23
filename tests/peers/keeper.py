"""Keep one server running for as long as a process holds its lock, and end it when none does.

keeper.py USERS PIDFILE LOGFILE COMMAND ARGUMENT…

A process that uses the server holds a shared lock on the file USERS. The kernel gives the lock back when it ends,
however it ends, so that a test run that is killed leaves no server behind, and the workers of a parallel run share one
server without counting each other. The keeper holds no lock while the server is in use; once it can have the lock for
itself, it ends the server, and keeps the lock until the server is gone: a newcomer waits for that and starts another.
"""

from __future__ import annotations

import fcntl
import subprocess
import sys
import time
from pathlib import Path

POLL_S = 0.2


def main() -> int:
    """Run the command until it ends by itself or is needed no more."""
    users, pidfile, logfile = (Path(argument) for argument in sys.argv[1:4])
    with users.open("a") as lock, logfile.open("ab") as log:
        server = subprocess.Popen(sys.argv[4:], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        pidfile.write_text(str(server.pid))
        while server.poll() is None:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                time.sleep(POLL_S)
                continue
            # Its data is not needed any more, and an orderly end takes Kafka ten seconds.
            server.kill()
            server.wait()
        # A server that was killed to be started again may have a new keeper already: the file is then the new one's.
        if pidfile.exists() and pidfile.read_text() == str(server.pid):
            pidfile.unlink(missing_ok=True)
        return server.wait()


if __name__ == "__main__":
    sys.exit(main())
