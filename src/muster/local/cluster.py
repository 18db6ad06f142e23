"""ZooKeeper and brokers of muster as one cluster on this machine."""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path

from muster.errors import ConfigError
from muster.local.broker import LocalBroker
from muster.local.folders import alone
from muster.local.ports import check_free, free_ports
from muster.local.server import LocalServer, RunsInBlock, ServerFailedError
from muster.local.zookeeper import Ensemble, ZooKeeperServer

PATIENCE_S = 60.0


def check_kazoo() -> None:
    """Raises ConfigError if kazoo, which the brokers of a cluster need, is not installed."""
    if find_spec("kazoo") is None:
        raise ConfigError("a cluster on ZooKeeper needs kazoo: pip install 'muster-kafka[zookeeper]'")


class LocalCluster(RunsInBlock):
    """Brokers 1, 2, … and their ZooKeeper, in one folder, each with its own subfolder.

    With `port_base` the brokers listen on that port and the next ones, and ZooKeeper's servers on those that follow;
    without it free ports are used. With `metrics_port_base` the brokers serve metrics on that port and the next ones.
    Brokers are stopped before ZooKeeper. If one server does not start, all are stopped.
    """

    def __init__(
        self,
        folder: Path,
        brokers: int = 3,
        zookeeper_servers: int = 1,
        *,
        port_base: int = 0,
        metrics_port_base: int = 0,
        settings: Mapping[str, object] | None = None,
        fsync: bool = True,
        kind: type[LocalBroker] = LocalBroker,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        """`settings` are those of `muster serve -o`, for each broker. `fsync` is ZooKeeper's. `kind` is the brokers'
        class. `say` is called with the reason if starting takes a long time."""
        self.folder = folder.absolute()
        self._say = say
        # A unique name: keepers of an earlier run in this folder must not mistake this run for theirs.
        super().__init__(self.folder / "runs" / f"{os.getpid()}-{secrets.token_hex(4)}")
        count = brokers + zookeeper_servers
        ports = list(range(port_base, port_base + count)) if port_base else free_ports(count)
        self.ensemble = Ensemble(self.folder, zookeeper_servers, ports[brokers:], fsync=fsync, users=self.users)
        self.brokers = {
            broker_id: kind(
                self.folder / f"broker-{broker_id}",
                ports[broker_id - 1],
                zookeeper=self.zookeeper,
                broker_id=broker_id,
                settings=settings,
                users=self.users,
                metrics_port=metrics_port_base + broker_id - 1 if metrics_port_base else None,
            )
            for broker_id in range(1, brokers + 1)
        }

    @property
    def zookeepers(self) -> list[ZooKeeperServer]:
        """ZooKeeper's servers."""
        return self.ensemble.servers

    @property
    def zookeeper(self) -> str:
        """The addresses of ZooKeeper's servers, as clients expect them."""
        return self.ensemble.address

    @property
    def bootstrap(self) -> str:
        """The addresses of all brokers, as clients expect them."""
        return ",".join(broker.bootstrap for broker in self.brokers.values())

    @property
    def servers(self) -> Iterator[LocalServer]:
        """All of them, brokers first."""
        yield from self.brokers.values()
        yield from self.zookeepers

    def start(self) -> None:
        """Start all, and return when all serve.

        Raises:
            ConfigError: another process has a port, or the folder; or something is not installed.
            ServerFailedError: one of them ended instead.
        """
        check_kazoo()
        for server in self.servers:
            self._wait_for_an_earlier(server)
            check_free(server.port, server.name)
        killed = [broker.name for broker in self.brokers.values() if broker.was_killed]
        self.ensemble.start()
        if killed:
            self._say(
                f"waiting for {', '.join(killed)}: killed in the last run; they return when their old session with "
                "ZooKeeper expires (zookeeper.session.timeout.ms)"
            )
        try:
            for broker in self.brokers.values():
                broker.launch()
            for broker in self.brokers.values():
                broker.wait_until_ready()
        except ServerFailedError:
            # Cleanly: a killed broker has to wait for the end of its session the next time.
            self.stop()
            raise

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Hold the folder's lock, which ends with this process."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with alone(self.folder / "lock", f"another cluster runs in {self.folder}"):
            yield

    def _wait_for_an_earlier(self, server: LocalServer) -> None:
        """Wait for a server of an earlier run: if its starter was killed, it ends within a moment."""
        deadline = time.monotonic() + PATIENCE_S
        while (pid := server.pid) is not None:
            if time.monotonic() > deadline:
                raise ConfigError(f"process {pid} runs as {server.name} in {server.folder}, and does not end")
            time.sleep(0.05)

    def stop(self) -> None:
        """Stop all cleanly: the brokers leave the cluster before ZooKeeper ends."""
        for broker in self.brokers.values():
            broker.ask_to_end()
        for broker in self.brokers.values():
            broker.wait_for_its_end()
        self.ensemble.stop()

    def kill(self) -> None:
        """SIGKILL to all running servers, without waiting for them to end."""
        for server in self.servers:
            server.strike()

    def _set_up(self, block: contextlib.ExitStack) -> None:
        block.enter_context(self._alone())
        block.callback(self.users.unlink, missing_ok=True)
        for server in self.servers:
            block.callback(server.wait_for_own_end)
