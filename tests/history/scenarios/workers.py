"""Workers of Kafka Connect, each a process and a member of the workers' group; its client id is the worker's label."""

from __future__ import annotations

import json
import subprocess
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

from tests.history.scenarios.clients import Flavour
from tests.history.scenarios.stage import PATIENCE_S, Group, Member
from tests.support.peers import KAFKA_VERSION, PEERS, fetched_jars, free_ports, java_command, kafka_classpath

CONVERTER = "org.apache.kafka.connect.storage.StringConverter"
SINK = "org.apache.kafka.connect.file.FileStreamSinkConnector"
QUICK = {"session.timeout.ms": "6000", "heartbeat.interval.ms": "1000"}
DELAY_S = 5
"""How long the tasks of a lost worker wait for it (scheduled.rebalance.max.delay.ms): 5 min by default."""


class Worker(Member):
    """A process that is a member from its start; it subscribes to no topics itself."""

    def __init__(self, group: Group, label: str, config: Mapping[str, str] | None = None) -> None:
        self.group = group
        self.label = label
        self.flavour = Flavour("connect", "sessioned")
        self.topics = []
        self.config = {**QUICK, **(config or {})}
        (self.port,) = free_ports(1)

    def subscribe(self, *topics: str) -> None:
        """Start it, and expect it in the group from now on."""
        stage, name = self.group.stage, f"{self.group.name}-{self.label}"
        settings = {
            "bootstrap.servers": stage.bootstrap,
            "group.id": self.group.name,
            "client.id": self.label,
            **self.config,
            "key.converter": CONVERTER,
            "value.converter": CONVERTER,
            **{f"{what}.storage.topic": f"{self.group.name}.{what}" for what in ("offset", "config", "status")},
            **{f"{what}.storage.replication.factor": "1" for what in ("offset", "config", "status")},
            **{f"{what}.storage.partitions": "1" for what in ("offset", "status")},
            "listeners": f"http://127.0.0.1:{self.port}",
            "scheduled.rebalance.max.delay.ms": str(DELAY_S * 1000),
            "plugin.discovery": "service_load",
        }
        path = stage.folder / f"{name}.properties"
        path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        jars = f"{fetched_jars('connect', KAFKA_VERSION)}/*:{kafka_classpath()}"
        options = [f"-Dlog4j2.configurationFile={PEERS / 'kafka' / 'log4j2.xml'}", "-cp", jars]
        main = ["org.apache.kafka.connect.cli.ConnectDistributed", str(path)]
        with (stage.folder / f"{name}.err").open("a") as errors:
            self.process = subprocess.Popen(
                [*java_command(options), *main], stdin=subprocess.DEVNULL, stdout=errors, stderr=errors, text=True
            )
        stage.processes.append(self.process)
        self.group.members.append(self)

    def leave(self, how: str = "default", timeout_ms: int = 30_000) -> None:
        """SIGTERM, and wait for the end of the process."""
        self.group.remove(self)
        self.process.terminate()
        self.process.wait(PATIENCE_S)

    def configures(self, name: str, config: Mapping[str, str]) -> bool:
        """Create a connector, or change its settings. False: not now, because the workers rebalance."""
        return self._ask("PUT", f"/connectors/{name}/config", config) is not None

    def deletes(self, name: str) -> bool:
        """Delete a connector. False: not now."""
        return self._ask("DELETE", f"/connectors/{name}") is not None

    def running(self, name: str) -> int:
        """How many tasks of a connector are running."""
        told = self._ask("GET", f"/connectors/{name}/status") or {"tasks": []}
        return sum(task["state"] == "RUNNING" for task in told["tasks"])

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        content = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", content, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return json.loads(answer.read() or b"{}")
        except (urllib.error.URLError, TimeoutError):  # it rebalances, or has not begun to serve
            return None
