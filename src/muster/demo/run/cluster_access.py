"""How to reach a cluster: its address, and a file of client settings as for Kafka's own tools, for TLS and SASL.

Processes get the file's name, and read it themselves: passwords do not belong on command lines.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, fields

from muster.client import properties
from muster.client.config import AdminConfig, ClientConfig, ConsumerConfig, ProducerConfig
from muster.errors import ConfigError

_OWN = ("bootstrap.servers", "client.id")
"""Settings that the demo decides. Settings of consumers or producers only are ignored: the demo has its own."""


@dataclass(frozen=True, slots=True)
class ClusterAccess:
    """How to reach the brokers."""

    bootstrap: str
    file: str | None = None

    @classmethod
    def given(cls, bootstrap: str | None, file: str | None) -> ClusterAccess | None:
        """The access that the command line describes; None means that the demo starts a broker.

        Raises:
            ConfigError: the file is not usable, or neither it nor `bootstrap` says where the cluster is.
        """
        if file is None:
            return None if bootstrap is None else cls(bootstrap)
        found = properties.read(file)
        kinds = (ConsumerConfig, ProducerConfig, AdminConfig)
        properties.check(file, found, {setting.name for kind in kinds for setting in fields(kind)})
        bootstrap = bootstrap or found.get("bootstrap.servers")
        if bootstrap is None:
            raise ConfigError(f"{file} has no bootstrap.servers: name a broker with --bootstrap")
        access = cls(bootstrap, file)
        ClientConfig.of(access.settings())
        return access

    def settings(self) -> dict[str, str]:
        """The settings of any client, by Kafka's names."""
        found = {} if self.file is None else properties.read(self.file)
        known = properties.choose(found, {setting.name for setting in fields(ClientConfig)})
        return {name: value for name, value in known.items() if name not in _OWN} | {
            "bootstrap.servers": self.bootstrap
        }

    def options(self) -> dict[str, str]:
        """The settings as options of the Spark source."""
        return {f"kafka.{name}": value for name, value in self.settings().items()}

    def arguments(self) -> list[str]:
        """The settings as command-line arguments for one of the demo's processes."""
        return ["--bootstrap", self.bootstrap, *(() if self.file is None else ("--client-settings", self.file))]

    @classmethod
    def of(cls, arguments: argparse.Namespace) -> ClusterAccess:
        """Read what `arguments` wrote."""
        return cls(arguments.bootstrap, arguments.client_settings)

    @staticmethod
    def add_to(parser: argparse.ArgumentParser) -> None:
        """Make a parser understand `arguments`."""
        parser.add_argument("--bootstrap", required=True)
        parser.add_argument("--client-settings")
