"""A private server, in a process that ends when the caller does, however the caller ends (`keeper.py`): it can be
started, frozen, killed, restarted on its data, and stopped.

All calls block; in asyncio, make them in a thread.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from muster.errors import MusterError
from muster.local.ports import LOOPBACK

START_TIMEOUT_S = 240.0
"""How long a server may take to start: machines are slow at times."""
STOP_TIMEOUT_S = 30.0
_POLL_INTERVAL_S = 0.01


class ServerFailedError(MusterError):
    """A server ended unexpectedly, or was not ready in time."""


@contextlib.contextmanager
def held(users: Path) -> Iterator[None]:
    """Keep the servers of a `users` file running until the block is left, or until this process and all that it has
    forked have ended."""
    users.parent.mkdir(parents=True, exist_ok=True)
    with users.open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        yield


def keep(command: Sequence[str], users: Path, pidfile: Path, logfile: Path) -> subprocess.Popen[bytes]:
    """Start a server that runs for as long as a process holds the lock on `users`; returns its keeper, which ends the
    same way as the server.

    It has its own session: Ctrl-C in a terminal reaches only the caller."""
    keeper = [sys.executable, "-I", "-S", str(Path(__file__).with_name("keeper.py")), str(users), str(pidfile)]
    with logfile.open("ab") as log:
        return subprocess.Popen(
            [*keeper, *command], stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )


def pid_in(folder: Path) -> int | None:
    """The process of the server whose keeper has its `pid` file in a folder, while it runs."""
    try:
        with (folder / "pid").open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return int(file.read())  # its keeper holds the lock for as long as it runs
    except (OSError, ValueError):  # it was not started yet, or is being started
        pass
    return None


class RunsInBlock:
    """A context manager: what it starts runs within the block, and is stopped when the block ends, or killed if an
    error ends the block.

    `users` is the file whose shared lock keeps it running (`held`).
    """

    def __init__(self, users: Path) -> None:
        self.users = users
        self._held = contextlib.ExitStack()

    def start(self) -> None:
        """Start it, and return when it serves."""
        raise NotImplementedError

    def stop(self) -> object:
        """Stop it cleanly."""
        raise NotImplementedError

    def _set_up(self, block: contextlib.ExitStack) -> None:
        """Prepare what is needed before the lock is held; the result is what must be done after it is released."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as block:
            self._set_up(block)
            block.enter_context(held(self.users))
            self.start()
            self._held = block.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self.stop()
        finally:
            self._held.close()  # the keeper kills what is left


class LocalServer(RunsInBlock):
    """One server with a folder of its own. A subclass says how it is started, and when it is ready.

    It has its own `users` file unless several servers share one.
    """

    def __init__(self, name: str, folder: Path, port: int = 0, users: Path | None = None) -> None:
        """Port 0: a free one, chosen when it is first started."""
        super().__init__(users or folder.absolute() / "users")
        self.name = name
        self.port = port
        self.folder = folder.absolute()
        self.is_frozen = False
        self._process: subprocess.Popen[bytes] | None = None
        self._log_from = 0

    def command(self) -> list[str]:
        """The command line that starts it; writes its configuration."""
        raise NotImplementedError

    def is_ready(self) -> bool:
        """Whether it serves. Called after it was launched."""
        raise NotImplementedError

    @property
    def address(self) -> str:
        """HOST:PORT, for clients."""
        return f"{LOOPBACK}:{self.port}"

    @property
    def log_file(self) -> Path:
        """Its output since its folder was created."""
        return self.folder / "server.log"

    @property
    def log(self) -> str:
        """Its output since it was last started."""
        if not self.log_file.exists():
            return ""
        return self.log_file.read_bytes()[self._log_from :].decode(errors="replace")

    def last_words(self, lines: int = 12) -> str:
        """The end of its log."""
        output = self.log.strip().splitlines()
        return "\n".join(f"  {line}" for line in output[-lines:]) or "  (nothing)"

    @property
    def pid(self) -> int | None:
        """The process id while it runs."""
        return pid_in(self.folder)

    @property
    def ending(self) -> str | None:
        """How it ended, as text; None while it runs, and if another process started it."""
        code = None if self._process is None else self._process.poll()
        if code is None:
            return None
        return f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"

    def start(self) -> None:
        """Start, on the data of an earlier start if there is any, and return when it serves.

        Raises:
            ServerFailedError: it runs already, it ended instead, or it does not serve in time.
            ConfigError: what it needs is not installed.
        """
        self.launch()
        self.wait_until_ready()

    def launch(self) -> None:
        """Start without waiting; `wait_until_ready` comes next. Raises ServerFailedError: it runs already."""
        running = self.pid
        if running is not None:  # another keeper would wait for the end of this one
            frozen = "thaw it" if self.is_frozen else "stop or kill it before it is started again"
            raise ServerFailedError(f"{self.name} runs already, as process {running}: {frozen}")
        self.folder.mkdir(parents=True, exist_ok=True)
        self.users.touch()
        command = self.command()
        self.log_file.touch()
        self._log_from = self.log_file.stat().st_size
        self.is_frozen = False
        self._process = keep(command, self.users, self.folder / "pid", self.log_file)

    def wait_until_ready(self) -> None:
        """Return when it serves."""
        assert self._process is not None, "launch it first"
        deadline = time.monotonic() + START_TIMEOUT_S
        # A quick server may serve before its keeper has written the process id.
        while not (self._process.poll() is None and self.is_ready() and self.pid is not None):
            if self.ending is not None:
                raise ServerFailedError(f"{self.name} ended with {self.ending}; its last output:\n{self.last_words()}")
            if time.monotonic() > deadline:
                raise ServerFailedError(f"{self.name} is not ready after {START_TIMEOUT_S:.0f} s; see {self.log_file}")
            time.sleep(_POLL_INTERVAL_S)

    def freeze(self) -> None:
        """Freeze its process (SIGSTOP); returns when all threads have stopped."""
        self._signal(signal.SIGSTOP)
        self.is_frozen = True
        tasks = Path(f"/proc/{self.pid}/task")
        while tasks.exists() and not all(_is_stopped(task) for task in tasks.iterdir()):
            time.sleep(0.005)

    def thaw(self) -> None:
        """Resume it (SIGCONT)."""
        self._signal(signal.SIGCONT)
        self.is_frozen = False

    def kill(self, how: signal.Signals = signal.SIGKILL) -> None:
        """End its process with a signal and wait until it is gone; `start` starts it again on its data."""
        self.strike(how)
        self._wait_until_gone()

    def strike(self, how: signal.Signals = signal.SIGKILL) -> None:
        """Send its process a signal, if it runs."""
        try:
            self._signal(how)
        except ProcessLookupError:
            self._end_by_keeper()

    def ask_to_end(self) -> None:
        """Ask it to end cleanly; `wait_for_its_end` comes next. A frozen one is thawed."""
        try:
            self._signal(signal.SIGTERM)
        except ProcessLookupError:
            self._end_by_keeper()
            return
        with contextlib.suppress(ProcessLookupError):  # it has already ended, and its keeper is about to end
            self._signal(signal.SIGCONT)
        self.is_frozen = False

    def wait_for_its_end(self, patience_s: float = STOP_TIMEOUT_S) -> bool:
        """Return when it is gone. After `patience_s` it is killed, and this returns False."""
        if self._wait_until_gone(patience_s):
            return True
        self.kill()
        return False

    def stop(self, patience_s: float = STOP_TIMEOUT_S) -> bool:
        """Ask it to end cleanly, and return when it is gone. Returns False if that took a SIGKILL."""
        self.ask_to_end()
        return self.wait_for_its_end(patience_s)

    def wait_for_own_end(self) -> None:
        """Return when the process that this object has started is gone; one started elsewhere is left alone."""
        if self._process is not None:
            self.wait_for_its_end()

    def let_go(self) -> None:
        """Forget that this object started it: it keeps running while other processes hold its `users` file."""
        if self._process is not None:
            self._process.returncode = 0
            self._process = None

    def _signal(self, how: signal.Signals) -> None:
        pid = self.pid
        if pid is None:
            raise ProcessLookupError(f"{self.name} does not run")
        os.kill(pid, how)

    def _end_by_keeper(self) -> None:
        """End it although its process id cannot be read: its folder was removed, or it has just been started."""
        if self._process is not None:
            self._process.terminate()

    def _wait_until_gone(self, patience_s: float | None = None) -> bool:
        deadline = None if patience_s is None else time.monotonic() + patience_s
        if self._process is not None:
            # Its keeper ends after it, and may not have started: then the file has no process id yet.
            try:
                self._process.wait(patience_s)
            except subprocess.TimeoutExpired:
                return False
        while self.pid is not None:
            if deadline is not None and time.monotonic() > deadline:
                return False
            time.sleep(_POLL_INTERVAL_S)
        return True

    def _set_up(self, block: contextlib.ExitStack) -> None:
        block.callback(self.wait_for_own_end)


def _is_stopped(task: Path) -> bool:
    try:
        return (task / "stat").read_text().rpartition(")")[2].split()[0] == "T"
    except OSError:  # it has ended in the meantime
        return True
