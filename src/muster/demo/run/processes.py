"""The demo's processes: the broker, the Python members, the Spark programs. They are started, watched and always ended.

Each runs in its own session, so that Ctrl-C reaches only the demo itself and a process can be ended with everything
that it started (Spark's Python starts a JVM). Their standard input is a pipe: when the demo dies it closes, and they
end. The broker has a keeper (`muster.local`) that ends it in that case.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from muster.errors import MusterError
from muster.local.broker import LocalBroker
from muster.local.server import held


class ProcessFailedError(MusterError):
    """A process of the demo ended unexpectedly, or did not start."""


@dataclass
class Process:
    """One process. Its standard error goes to `log`; its standard output can be read line by line."""

    name: str
    log: Path
    process: asyncio.subprocess.Process
    _stream: IO[bytes]
    expected_to_end: bool = field(default=False)

    @classmethod
    async def start(cls, name: str, command: Sequence[str], log: Path, env: dict[str, str] | None = None) -> Process:
        """Start this Python with the arguments `command`."""
        stream = log.open("ab")
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=stream,
            start_new_session=True,
            env={**os.environ, **(env or {})},
            limit=16 * 1024 * 1024,
        )
        return cls(name, log, process, stream)

    @property
    def running(self) -> bool:
        """Whether it has not ended yet."""
        return self.process.returncode is None

    async def read_line(self, timeout_s: float) -> str:
        """The next line that it prints.

        Raises:
            ProcessFailedError: it ended instead, or printed nothing in time.
        """
        assert self.process.stdout is not None
        try:
            async with asyncio.timeout(timeout_s):
                line = await self.process.stdout.readline()
        except TimeoutError:
            raise ProcessFailedError(f"{self.name} printed nothing for {timeout_s:.0f} s; see {self.log}") from None
        if not line:
            await self.process.wait()
            raise ProcessFailedError(f"{self.name} ended with {self.ending}; its last words:\n{self.last_words()}")
        return line.decode().rstrip("\n")

    async def next_line(self) -> str | None:
        """The next line that it prints, however long that takes; None if it has ended."""
        assert self.process.stdout is not None
        line = await self.process.stdout.readline()
        if not line:
            await self.process.wait()
        return line.decode().rstrip("\n") if line else None

    async def say(self, line: str) -> None:
        """Write a line to its standard input."""
        assert self.process.stdin is not None
        with contextlib.suppress(ConnectionError):
            self.process.stdin.write(line.encode() + b"\n")
            await self.process.stdin.drain()

    def check(self) -> None:
        """Raise if it ended unexpectedly."""
        if not self.running and not self.expected_to_end:
            raise ProcessFailedError(f"{self.name} ended with {self.ending}; its last words:\n{self.last_words()}")

    @property
    def ending(self) -> str:
        """How it ended, for people."""
        code = self.process.returncode
        if code is None:
            return "nothing yet"
        return f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"

    def last_words(self, lines: int = 12) -> str:
        """The end of its log."""
        text = self.log.read_text(errors="replace").strip().splitlines()
        return "\n".join(f"  {line}" for line in text[-lines:]) or "  (nothing)"

    async def close_input(self) -> None:
        """Close its standard input, which makes it end."""
        assert self.process.stdin is not None
        self.expected_to_end = True
        self.process.stdin.close()
        with contextlib.suppress(ConnectionError):
            await self.process.stdin.wait_closed()

    def freeze(self) -> None:
        """Send SIGSTOP to it and everything that it started."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Send SIGCONT to it and everything that it started."""
        self._signal(signal.SIGCONT)

    async def kill(self) -> None:
        """Send SIGKILL to it and everything that it started."""
        self.expected_to_end = True
        self._signal(signal.SIGKILL)
        await self.process.wait()
        self._stream.close()

    async def stop(self, patience_s: float = 10.0) -> None:
        """Send SIGTERM; kill the process after `patience_s`, or if waiting is cancelled."""
        self.expected_to_end = True
        try:
            if self.running:
                with contextlib.suppress(ProcessLookupError):
                    self.process.terminate()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(patience_s):
                        await self.process.wait()
        finally:
            await self.kill()

    def _signal(self, number: signal.Signals) -> None:
        """Send it a signal, and to all processes of its session where `/proc` lists them.

        Spark's Python workers have a process group of their own. If only the JVM died, a streaming query's worker might
        notice, and its member would leave the group; not always, since the workers' daemon also ends them.
        """
        session = self.process.pid
        pids = [int(entry.name) for entry in Path("/proc").glob("[0-9]*")]
        others = [pid for pid in pids if pid != session and _session_of(pid) == session]
        for pid in others:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(session, number)


def _session_of(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except (ProcessLookupError, PermissionError):
        return None


class EmbeddedBroker:
    """The demo's own broker, which is killed and restarted on its folder and port. It ends when the demo dies."""

    def __init__(self, data_dir: Path, logs: Path) -> None:
        self.data_dir = data_dir
        self.events = logs / "broker-events.jsonl"
        self._broker = _Broker(data_dir, logs, self.events)
        self._held = contextlib.ExitStack()
        self._expected_to_end = True

    @property
    def bootstrap(self) -> str:
        """Where it listens, once started."""
        return self._broker.bootstrap

    async def start(self) -> None:
        """Start it, the first time on a free port; returns when clients may connect."""
        self._held.close()
        self._held.enter_context(held(self._broker.users))
        await asyncio.to_thread(self._broker.start)
        self._expected_to_end = False

    def check(self) -> None:
        """Raise if it ended unexpectedly."""
        if not self._expected_to_end and (ending := self._broker.ending):
            raise ProcessFailedError(f"the broker ended with {ending}; its last words:\n{self._broker.last_words()}")

    async def kill(self) -> None:
        """SIGKILL: nothing is flushed or closed."""
        self._expected_to_end = True
        await asyncio.to_thread(self._broker.kill)

    async def stop(self) -> None:
        """Stop it cleanly."""
        self._expected_to_end = True
        await asyncio.to_thread(self._broker.stop)
        self._held.close()


class _Broker(LocalBroker):
    """A broker with its data where the user wants it, and its log with the demo's."""

    def __init__(self, data_dir: Path, logs: Path, events: Path) -> None:
        # Kafka waits three seconds for more members of a new group; the demo has five groups to start, some twice.
        super().__init__(logs, settings={"group.initial.rebalance.delay.ms": 1_000})
        self._data_dir = data_dir
        self._events = events

    @property
    def data_dir(self) -> Path:
        return self._data_dir

    @property
    def log_file(self) -> Path:
        return self.folder / "broker.log"

    def arguments(self) -> list[str]:
        return [*super().arguments(), "--events", str(self._events)]
