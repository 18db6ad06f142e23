"""A real PostgreSQL for tests, on a free port, with its own data. It refuses to run as root: then it runs as the user
that its package creates."""

from __future__ import annotations

import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import psycopg

from muster.local.ports import LOOPBACK, free_ports
from muster.local.server import LocalServer
from tests.support import peers

USER = "postgres"
HOW = "Debian: apt-get install postgresql"

SETTINGS = {
    "fsync": "off",  # a killed process loses nothing without them
    "listen_addresses": LOOPBACK,
    "unix_socket_directories": "",
    # Its memory-mapped files are in its folder, and deleted with it.
    "dynamic_shared_memory_type": "mmap",
    # Neither the driver's time zone nor UTC: the written data must not depend on it.
    "timezone": "Asia/Tokyo",
}


def find_postgres() -> Path | None:
    """The folder with PostgreSQL's programs: on PATH, or where Debian installs each version."""
    on_path = shutil.which("initdb")
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    found = [*debian, *([Path(on_path)] if on_path else [])]
    return found[-1].parent if found else None


class PostgresServer(LocalServer):
    """One server on the loopback interface, as a context manager; it accepts every client without a password."""

    def __init__(self, folder: Path) -> None:
        super().__init__("PostgreSQL", folder)
        self._programs = peers.require("PostgreSQL", find_postgres(), HOW)
        self._as_user = _as_user()
        self._data: Path | None = None
        self._names = itertools.count()

    def command(self) -> list[str]:
        """The command line that starts it; creates its data."""
        self.port = self.port or free_ports(1)[0]
        if self._data is None:
            # Other users, such as the one that it runs as, cannot enter pytest's folders.
            self._data = Path(tempfile.mkdtemp(prefix="muster-postgres-"))
            if self._as_user:
                shutil.chown(self._data, USER)
            options = ["--username", USER, "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync"]
            initdb = [*self._as_user, str(self._programs / "initdb"), "-D", str(self._data), *options]
            subprocess.run(initdb, cwd="/", check=True, capture_output=True)
        settings = [f"--{name}={value}" for name, value in {**SETTINGS, "port": str(self.port)}.items()]
        return [*self._as_user, str(self._programs / "postgres"), "-D", str(self._data), *settings]

    def is_ready(self) -> bool:
        """Whether it accepts connections."""
        return "ready to accept connections" in self.log

    def database(self) -> str:
        """The address of a database that no other test uses."""
        name = f"test_{next(self._names)}"
        with psycopg.connect(self._address("postgres"), autocommit=True) as connection:
            connection.execute(f"create database {name}")
        return self._address(name)

    def _address(self, name: str) -> str:
        return f"postgresql://{USER}@{self.address}/{name}"

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill(signal.SIGINT)  # an orderly stop, whatever clients are still connected
        self._held.close()
        if self._data is not None:
            shutil.rmtree(self._data, ignore_errors=True)


def _as_user() -> Sequence[str]:
    """The beginning of a command line that runs it as a user other than root, in the same process."""
    if os.getuid() != 0:
        return ()
    try:
        pwd.getpwnam(USER)
    except KeyError:
        peers.missing("PostgreSQL", f"it does not run as root, and there is no user {USER!r} ({HOW})")
    setpriv = peers.require("setpriv", shutil.which("setpriv"), "PostgreSQL does not run as root")
    # Changing the user revokes the keeper's request to be killed with its parent.
    return (setpriv, f"--reuid={USER}", f"--regid={USER}", "--init-groups", "--pdeathsig=KILL", "--")
