"""A real Apache ZooKeeper for tests: started as by `muster.local`, with jars that are stored like Kafka's (peers.py).

A run's workers share one server, in which each test has its own chroot; a test that freezes or kills its server starts
its own.
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
    """One server on the loopback interface. Sessions may be as short as half a second, which is also how often it
    checks them.

    Use it as a context manager, or through the fixture `zookeeper`, which all tests of a run share.
    """

    def __init__(self, folder: Path, port: int = 0) -> None:
        # A killed process loses nothing without fsync, and the disks of test machines are slow.
        super().__init__(folder, port, fsync=False)

    def chroot(self) -> str:
        """The address with a chroot that no other test uses; it does not exist yet."""
        return f"{self.address}/test-{os.getpid()}-{next(_names)}"

    def classpath(self) -> str:
        """The class path."""
        return f"{peers.fetched_jars('zookeeper', VERSION, jars.ZOOKEEPER_POM)}/*"

    def java(self) -> str:
        """The java command."""
        return peers.java_command(())[0]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._held.close()  # its keeper kills it: an orderly stop takes longer
        shutil.rmtree(self.folder, ignore_errors=True)


@contextlib.contextmanager
def operator(address: str, timeout_s: float = 60) -> Iterator[KazooClient]:
    """A client of ZooKeeper's own, as an operator uses it, for the znodes below an address."""
    client = KazooClient(address, timeout=timeout_s)
    client.start(PATIENCE_S)
    try:
        yield client
    finally:
        client.stop()
        client.close()


@contextlib.contextmanager
def shared_zookeeper(folder: Path) -> Iterator[ZooKeeperServer]:
    """The server that all workers of one test run share: the first to need it starts it, it ends after the last."""
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
