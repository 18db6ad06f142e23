"""A broker of muster on this machine, or a coordinator for groups of Apache Kafka, each in its own process."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path

from muster.local.ports import LOOPBACK, free_ports
from muster.local.server import LocalServer

_READY = re.compile(r"^muster \S+ ready on (\S+) ", re.MULTILINE)


class _Command(LocalServer):
    """A process of the command `muster`. It reports when it is ready: something that listens on its port may be another
    server."""

    def arguments(self) -> list[str]:
        """The arguments of `muster` with which it is started."""
        raise NotImplementedError

    def command(self) -> list[str]:
        """The command line that starts it."""
        return [sys.executable, "-m", "muster", *self.arguments()]

    def is_ready(self) -> bool:
        """Whether it has reported that it is ready."""
        return _READY.search(self.log) is not None


class LocalBroker(_Command):
    """One broker on the loopback interface: alone, or with an id in the cluster on a ZooKeeper."""

    COMMAND = "serve"

    def __init__(
        self,
        folder: Path,
        port: int = 0,
        *,
        zookeeper: str | None = None,
        broker_id: int = 1,
        settings: Mapping[str, object] | None = None,
        users: Path | None = None,
        metrics_port: int | None = None,
    ) -> None:
        """`settings` are those of `muster serve -o`."""
        super().__init__(f"broker {broker_id}" if zookeeper else "the broker", folder, port, users)
        self.broker_id = broker_id
        self.metrics_port = metrics_port
        self._zookeeper = zookeeper
        self._settings = dict(settings or {})

    @property
    def bootstrap(self) -> str:
        """Its address, under the name of the clients' setting."""
        return self.address

    @property
    def data_dir(self) -> Path:
        """The folder of its topics and groups."""
        return self.folder / "data"

    @property
    def was_killed(self) -> bool:
        """Whether the last broker in this folder did not end cleanly, and none is running."""
        from muster.log.store import CLEAN_SHUTDOWN_FILE  # the log itself is open in the broker's own process

        return self.data_dir.exists() and not (self.data_dir / CLEAN_SHUTDOWN_FILE).exists()

    def arguments(self) -> list[str]:
        """The arguments of `muster` with which it is started."""
        self.port = self.port or free_ports(1)[0]
        arguments = [self.COMMAND, "--host", LOOPBACK, "--port", str(self.port), "--data-dir", str(self.data_dir)]
        if self._zookeeper is not None:
            arguments += ["--zookeeper", self._zookeeper, "--broker-id", str(self.broker_id)]
        if self.metrics_port is not None:
            arguments += ["--metrics-port", str(self.metrics_port)]
        return arguments + _overrides(self._settings)


class LocalCoordinator(_Command):
    """One coordinator on the loopback interface, beside the Kafka on a ZooKeeper."""

    def __init__(
        self,
        folder: Path,
        zookeeper: str,
        coordinator_id: int,
        settings: Mapping[str, object] | None = None,
        users: Path | None = None,
    ) -> None:
        """`settings` are those of `muster coordinator -o`."""
        super().__init__(f"coordinator {coordinator_id}", folder, users=users)
        self.coordinator_id = coordinator_id
        self._members_port = 0
        self._zookeeper = zookeeper
        self._settings = dict(settings or {})

    @property
    def members_address(self) -> str:
        """The address where members join."""
        return f"{LOOPBACK}:{self._members_port}"

    def arguments(self) -> list[str]:
        """The arguments of `muster` with which it is started."""
        if not self.port:
            self.port, self._members_port = free_ports(2)
        arguments = ["coordinator", "--host", LOOPBACK, "--port", str(self.port)]
        arguments += ["--draft-listener", self.members_address, "--zookeeper", self._zookeeper]
        return [*arguments, "--coordinator-id", str(self.coordinator_id), *_overrides(self._settings)]


def _overrides(settings: Mapping[str, object]) -> list[str]:
    return [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]
