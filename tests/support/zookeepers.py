"""A real Apache ZooKeeper for tests: started as `muster.local` does, its jars kept as Kafka's are (peers.py).

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
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from kazoo.client import KazooClient

from muster.local import jars
from muster.local.zookeeper import ZooKeeperServer as LocalServer
from tests.support import peers

PATIENCE_S = 240
VERSION = jars.ZOOKEEPER_VERSION
_names = itertools.count()


class ZooKeeperServer(LocalServer):
    """One server on the loopback interface. Sessions may be as short as half a second; it looks at them as often.

    Use it as a context manager, or through the fixture `zookeeper`, which all tests of a run share.
    """

    def __init__(self, folder: Path, port: int = 0) -> None:
        # A process that is killed loses nothing without fsync, and disks of machines for tests are slow.
        super().__init__(folder, port, fsync=False)

    def chroot(self) -> str:
        """The address with a folder that no other test has; it is not there yet."""
        return f"{self.address}/test-{os.getpid()}-{next(_names)}"

    def classpath(self) -> str:
        """Where its classes are."""
        return f"{peers.fetched_jars('zookeeper', VERSION, jars.ZOOKEEPER_POM)}/*"

    def java(self) -> str:
        """The java command."""
        return peers.java_command(())[0]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._held.close()  # its keeper kills it: an orderly end takes longer
        shutil.rmtree(self.folder, ignore_errors=True)


@contextlib.contextmanager
def operator(address: str, timeout_s: float = 60) -> Iterator[KazooClient]:
    """A client of ZooKeeper's own, as an operator has it, for what is below an address."""
    client = KazooClient(address, timeout=timeout_s)
    client.start(PATIENCE_S)
    try:
        yield client
    finally:
        client.stop()
        client.close()


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
                server.let_go()
                described.write_text(json.dumps({"port": server.port}))
        yield server
