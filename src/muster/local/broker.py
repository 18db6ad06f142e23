"""A broker of muster on this machine: `muster serve` in a process of its own."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path

from muster.local.kept import Kept
from muster.local.ports import LOOPBACK, free_ports
from muster.log.store import CLEAN_SHUTDOWN_FILE

_READY = re.compile(r"^muster \S+ ready on (\S+) ", re.MULTILINE)


class LocalBroker(Kept):
    """One broker on the loopback interface: alone, or with an id in the cluster on a ZooKeeper."""

    def __init__(
        self,
        folder: Path,
        port: int = 0,
        *,
        zookeeper: str | None = None,
        broker_id: int = 1,
        settings: Mapping[str, object] | None = None,
        users: Path | None = None,
    ) -> None:
        """`settings` are those of `muster serve -o`."""
        super().__init__(f"broker {broker_id}" if zookeeper else "the broker", folder, port, users)
        self.broker_id = broker_id
        self._zookeeper = zookeeper
        self._settings = dict(settings or {})

    @property
    def bootstrap(self) -> str:
        """Its address, by the name that clients' settings have."""
        return self.address

    @property
    def data_dir(self) -> Path:
        """Its folder of topics and groups."""
        return self.folder / "data"

    @property
    def was_killed(self) -> bool:
        """Whether an earlier one in this folder did not end in good order, while none runs."""
        return self.data_dir.exists() and not (self.data_dir / CLEAN_SHUTDOWN_FILE).exists()

    def arguments(self) -> list[str]:
        """The arguments of `muster` that it is started with."""
        self.port = self.port or free_ports(1)[0]
        arguments = ["serve", "--host", LOOPBACK, "--port", str(self.port), "--data-dir", str(self.data_dir)]
        if self._zookeeper is not None:
            arguments += ["--zookeeper", self._zookeeper, "--broker-id", str(self.broker_id)]
        for name, value in self._settings.items():
            arguments += ["-o", f"{name}={value}"]
        return arguments

    def command(self) -> list[str]:
        """The command line to start it with."""
        return [sys.executable, "-m", "muster", *self.arguments()]

    def is_ready(self) -> bool:
        """Whether it has said that it is ready: its port could be another server's."""
        return _READY.search(self.log) is not None
