"""A real Apache ZooKeeper for tests: its jars from Maven, kept as Kafka's are (tests/support/peers.py).

A run's workers share one server, below which each test has a folder of its own (a chroot); a test that freezes or kills
its server starts one for itself.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.support import peers

VERSION = "3.9.3"
_names = itertools.count()


@dataclass
class ZooKeeperServer:
    """One server on the loopback interface. Sessions may be as short as half a second; it looks at them as often.

    Use it as a context manager, or through the fixture `zookeeper`, which all tests of a run share.
    """

    folder: Path
    port: int = 0
    is_frozen: bool = False

    @property
    def address(self) -> str:
        """HOST:PORT, as clients want it."""
        return f"127.0.0.1:{self.port}"

    def chroot(self) -> str:
        """The address with a folder that no other test has; it is not there yet."""
        return f"{self.address}/test-{os.getpid()}-{next(_names)}"

    @property
    def pid(self) -> int | None:
        """The process id while it runs."""
        return peers.pid_in(self.folder)

    @property
    def log(self) -> str:
        """What it has logged so far."""
        path = self.folder / "zookeeper.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def start(self) -> None:
        """Start, on the data of an earlier start where there is some, and return when it serves."""
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "users").touch()
        self.port = self.port or peers.free_ports(1)[0]
        settings = {
            "tickTime": "500",
            "dataDir": self.folder / "data",
            "clientPortAddress": "127.0.0.1",
            "clientPort": self.port,
            "maxClientCnxns": "0",
            "minSessionTimeout": "500",
            "maxSessionTimeout": "120000",
            "admin.enableServer": "false",
            "4lw.commands.whitelist": "*",
        }
        configuration = self.folder / "zoo.cfg"
        configuration.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        options = [
            # A process that is killed loses nothing without it, and disks of machines for tests are slow.
            "-Dzookeeper.forceSync=no",
            "-Dorg.slf4j.simpleLogger.showDateTime=true",
            "-cp",
            f"{peers.fetched_jars('zookeeper', VERSION)}/*",
        ]
        command = peers.java_command([*options, "org.apache.zookeeper.server.ZooKeeperServerMain", str(configuration)])
        process = peers.kept(command, self.folder / "users", self.folder / "pid", self.folder / "zookeeper.log")
        self._wait_until_it_serves(process)

    def _wait_until_it_serves(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + peers.START_TIMEOUT_S
        # It answers `ruok` before it serves, and may never answer what it took a moment too early.
        while "Zookeeper version" not in self.four_letters("srvr", 2):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"Apache ZooKeeper did not start:\n{self.log[-3000:]}")
            time.sleep(0.05)
        # The keeper outlives this object, and is not waited for.
        process.returncode = 0

    def four_letters(self, word: str, timeout_s: float = 60) -> str:
        """Its answer to one of ZooKeeper's four-letter words, "" where nothing listens."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=timeout_s) as connection:
                connection.sendall(word.encode())
                return b"".join(iter(lambda: connection.recv(65_536), b"")).decode()
        except OSError:
            return ""

    def mntr(self) -> dict[str, float]:
        """Its own counters, without their prefix `zk_`; those that are numbers."""
        found = {}
        for line in self.four_letters("mntr").splitlines():
            name, _, value = line.partition("\t")
            with contextlib.suppress(ValueError):
                found[name.removeprefix("zk_")] = float(value)
        return found

    def freeze(self) -> None:
        """Stop its process where it is (SIGSTOP), with all its threads."""
        self._signal(signal.SIGSTOP)
        self.is_frozen = True
        tasks = Path(f"/proc/{self.pid}/task")
        while tasks.exists() and not all(_stands_still(task) for task in tasks.iterdir()):
            time.sleep(0.005)

    def thaw(self) -> None:
        """Let it go on."""
        self._signal(signal.SIGCONT)
        self.is_frozen = False

    def _signal(self, how: signal.Signals) -> None:
        pid = self.pid
        assert pid, "ZooKeeper does not run"
        os.kill(pid, how)

    def kill(self, how: signal.Signals = signal.SIGKILL) -> None:
        """End its process and wait until it is gone; `start` brings it back on its data."""
        if self.pid:
            self._signal(how)
        while self.pid:
            time.sleep(0.02)

    def __enter__(self) -> ZooKeeperServer:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._held = contextlib.ExitStack()
        self._held.enter_context(peers.locked(self.folder / "users", fcntl.LOCK_SH))
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.is_frozen and self.pid:
            self.thaw()
        self._held.close()
        while self.pid:
            time.sleep(0.02)
        shutil.rmtree(self.folder, ignore_errors=True)


def _stands_still(task: Path) -> bool:
    try:
        return (task / "stat").read_text().rpartition(")")[2].split()[0] == "T"
    except OSError:  # it has ended meanwhile
        return True


@contextlib.contextmanager
def shared_zookeeper(folder: Path) -> Iterator[ZooKeeperServer]:
    """The server that all workers of one test run share: the first to come starts it, it ends after the last."""
    described = folder / "server.json"
    with contextlib.ExitStack() as held:
        with peers.locked(folder / "mutex"):
            held.enter_context(peers.locked(folder / "users", fcntl.LOCK_SH))
            server = ZooKeeperServer(folder)
            if described.exists():
                server.port = json.loads(described.read_text())["port"]
            if server.pid is None:
                server.start()
                described.write_text(json.dumps({"port": server.port}))
        yield server
