"""ZooKeeper servers on this machine: one, or several that form an ensemble."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from muster.local.jars import zookeeper_classpath
from muster.local.java import find_java
from muster.local.ports import LOOPBACK, free_ports
from muster.local.relay import Relay
from muster.local.server import LocalServer, RunsInBlock, ServerFailedError

SETTINGS: Mapping[str, object] = {
    "tickTime": 500,  # sessions can be as short as that, and are checked at that interval
    "minSessionTimeout": 500,
    "maxSessionTimeout": 120_000,
    "clientPortAddress": LOOPBACK,
    "maxClientCnxns": 0,
    "admin.enableServer": "false",
    "4lw.commands.whitelist": "*",
    # In ticks, 30 s in all: a busy machine must not make a server leave its ensemble.
    "initLimit": 60,
    "syncLimit": 60,
}


class ZooKeeperServer(LocalServer):
    """One server on the loopback interface.

    Without `fsync` its log is not forced to disk: a killed process loses nothing, a power cut may.
    """

    def __init__(
        self,
        folder: Path,
        port: int = 0,
        *,
        fsync: bool = True,
        users: Path | None = None,
        name: str = "ZooKeeper",
        members: Sequence[str] = (),
        number: int = 1,
        settings: Mapping[str, object] | None = None,
    ) -> None:
        """`members` are the lines `server.N=…` of an ensemble, in which this is server `number`. `settings` override
        `SETTINGS`."""
        super().__init__(name, folder, port, users)
        self._fsync = fsync
        self._members = members
        self._settings = {**SETTINGS, **(settings or {})}
        self.number = number

    def classpath(self) -> str:
        """The class path with its classes."""
        return zookeeper_classpath()

    def java(self) -> str:
        """The java command."""
        return find_java("ZooKeeper")

    def command(self) -> list[str]:
        """The command line that starts it; writes its configuration."""
        self.port = self.port or free_ports(1)[0]
        data = self.folder / "data"
        data.mkdir(exist_ok=True)
        settings = {**self._settings, "dataDir": data, "clientPort": self.port}
        # Java reads the file as Latin-1, but knows JSON's escapes, so a folder can have any name.
        lines = [f"{key}={json.dumps(str(value))[1:-1]}\n" for key, value in settings.items()]
        if self._members:
            lines += [f"{line}\n" for line in self._members]
            (data / "myid").write_text(str(self.number))
        configuration = self.folder / "zoo.cfg"
        configuration.write_text("".join(lines))
        options = ["-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
        options += [f"-Dzookeeper.forceSync={'yes' if self._fsync else 'no'}"]
        options += ["-Dorg.slf4j.simpleLogger.showDateTime=true", "-cp", self.classpath()]
        # The locale decides how Java encodes file names. Without members it starts as a single server.
        java = ["/usr/bin/env", "LC_ALL=C.UTF-8", self.java(), *options]
        return [*java, "org.apache.zookeeper.server.quorum.QuorumPeerMain", str(configuration)]

    def is_ready(self) -> bool:
        """Whether it serves; in an ensemble, with a quorum. Another server that has its port is not mistaken for it.

        It answers `ruok` before it serves, and may never answer a request that arrived slightly too early.
        """
        return f"dataDir={self.folder / 'data'}" in self.four_letters("conf", 2)

    def four_letters(self, word: str, timeout_s: float = 60) -> str:
        """Its answer to one of ZooKeeper's four-letter words, "" if nothing listens."""
        try:
            with socket.create_connection((LOOPBACK, self.port), timeout=timeout_s) as connection:
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

    @property
    def mode(self) -> str:
        """`standalone`, `leader` or `follower`; "" while it does not serve."""
        lines = self.four_letters("srvr").splitlines()
        return next((line.partition(": ")[2] for line in lines if line.startswith("Mode: ")), "")


class Ensemble(RunsInBlock):
    """Servers that form one ensemble, which serves while a majority of them runs.

    `ports` are those for clients, one for each server. With `relayed` a server reaches the others through relays in
    this process, so that tests can make it lag.
    """

    def __init__(
        self,
        folder: Path,
        size: int = 3,
        ports: Sequence[int] = (),
        *,
        fsync: bool = True,
        users: Path | None = None,
        relayed: bool = False,
        settings: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(users or folder.absolute() / "users")
        inner = free_ports(2 * size)
        self._quorum, election = inner[:size], inner[size:]
        numbers = range(1, size + 1)
        self._relays = {
            (one, other): Relay(self._quorum[other - 1])
            for one in numbers
            for other in numbers
            if relayed and one != other
        }
        self.servers = [
            ZooKeeperServer(
                folder / f"zookeeper-{n}",
                ports[n - 1] if ports else 0,
                fsync=fsync,
                users=self.users,
                name=f"ZooKeeper server {n}",
                members=[
                    f"server.{other}={LOOPBACK}:{self._port_of(other, n)}:{election[other - 1]}"
                    for other in numbers
                    if size > 1
                ],
                number=n,
                settings=settings,
            )
            for n in numbers
        ]

    def _port_of(self, other: int, seen_by: int) -> int:
        relay = self._relays.get((seen_by, other))
        return self._quorum[other - 1] if relay is None else relay.port

    @contextlib.contextmanager
    def lagging(self, server: ZooKeeperServer) -> Iterator[None]:
        """Within the block a follower learns nothing from its leader: it keeps answering reads from stale data, and its
        sessions believe that they are connected. Afterwards it catches up.

        Consequences: the leader does not hear from the sessions of that server, so each expires after its timeout, with
        its ephemeral nodes; the session is not notified. After `syncLimit` ticks, 30 s if it is not set, the server
        gives up on its leader, and does not serve until the block is left.
        """
        relays = [relay for (one, _), relay in self._relays.items() if one == server.number]
        assert relays, "an ensemble whose servers may lag is made with relayed=True"
        assert server.mode == "follower", f"{server.name} is not a follower: {server.mode}"
        for relay in relays:
            relay.hold()
        try:
            yield
        finally:
            for relay in relays:
                relay.release()

    def delay(self, server: ZooKeeperServer, delay_ms: int) -> None:
        """Delay everything that a follower receives from its leader by this long: less than 30 s. 0 removes the
        delay."""
        for (one, _), relay in self._relays.items():
            if one == server.number:
                relay.delay_ms = delay_ms

    @property
    def address(self) -> str:
        """The addresses of all servers, for clients."""
        return ",".join(server.address for server in self.servers)

    @property
    def leader(self) -> ZooKeeperServer:
        """The leader, through which all writes go.

        Raises:
            ServerFailedError: there is none at the moment.
        """
        for server in self.servers:
            if server.mode == "leader":
                return server
        raise ServerFailedError("ZooKeeper's servers have no leader")

    @property
    def followers(self) -> list[ZooKeeperServer]:
        """The other servers that serve."""
        return [server for server in self.servers if server.mode == "follower"]

    def start(self) -> None:
        """Start all servers, and return when all serve."""
        for server in self.servers:
            server.launch()
        for server in self.servers:
            server.wait_until_ready()

    def stop(self) -> None:
        """Stop all servers cleanly."""
        for server in self.servers:
            server.ask_to_end()
        for server in self.servers:
            server.wait_for_its_end()

    def _set_up(self, block: contextlib.ExitStack) -> None:
        for relay in self._relays.values():
            block.enter_context(relay)
        for server in self.servers:
            block.callback(server.wait_for_own_end)
