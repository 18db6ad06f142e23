"""The kinds of client that play members: how each is started, and Kafka's settings in the form that it takes."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tests.support.peers import PEERS, java_command, kafka_classpath, kafka_jars, locked, peers_home, require

MEMBERS = Path(__file__).parent / "members"

JAVA_ASSIGNORS = {
    "range": "org.apache.kafka.clients.consumer.RangeAssignor",
    "cooperative": "org.apache.kafka.clients.consumer.CooperativeStickyAssignor",
}
ASSIGNORS = {"range": "range", "cooperative": "cooperative-sticky"}

QUICK = {
    "session.timeout.ms": "6000",
    "heartbeat.interval.ms": "1000",
    "max.poll.interval.ms": "10000",
    "auto.commit.interval.ms": "1000",
    "metadata.max.age.ms": "1500",
    "auto.offset.reset": "earliest",
}
"""A member's settings unless a script says otherwise: short, so that a scenario lasts a minute at most."""

SETTLED_BY_THE_BROKER = ("session.timeout.ms", "heartbeat.interval.ms", "partition.assignment.strategy")
"""Settings that a member of KIP-848's protocol must not have."""


@dataclass(frozen=True)
class Flavour:
    """A client and the protocol that it uses: `range`, `cooperative`, `consumer` (KIP-848) or `share`
    (KIP-932, Java only)."""

    client: str
    protocol: str

    def __str__(self) -> str:
        return f"{self.client}-{self.protocol}"

    @property
    def next_generation(self) -> bool:
        """Whether the broker assigns (KIP-848)."""
        return self.protocol == "consumer"

    def config(self, bootstrap: str, group: str, client_id: str, changes: Mapping[str, str]) -> dict[str, str]:
        """A member's settings, by Kafka's names."""
        config = {"bootstrap.servers": bootstrap, "group.id": group, "client.id": client_id, **QUICK}
        if self.protocol == "share":
            config = {name: value for name, value in config.items() if name not in QUICK}
        elif self.next_generation:
            config = {name: value for name, value in config.items() if name not in SETTLED_BY_THE_BROKER}
            config["group.protocol"] = "consumer"
        else:
            names = JAVA_ASSIGNORS if self.client == "java" else ASSIGNORS
            config["partition.assignment.strategy"] = names[self.protocol]
        return {**config, **changes}


def command(flavour: Flavour, spec: Mapping[str, Any]) -> list[str]:
    """The command line that starts a member, in the folder of the repository."""
    if flavour.client == "java":
        return java_program("ScriptedMember", json.dumps(spec), heap="64m")
    if flavour.client == "franz":
        return [str(go_program()), json.dumps(spec)]
    module = f"tests.history.scenarios.members.with_{flavour.client.replace('-', '_')}"
    return [sys.executable, "-m", module, json.dumps(spec)]


def java_program(name: str, *arguments: str, heap: str = "96m") -> list[str]:
    """The command line that runs one of the programs in Java."""
    options = [f"-Dlog4j2.configurationFile={PEERS / 'kafka' / 'log4j2.xml'}"]
    return [*java_command(options, heap=heap), "-cp", f"{compiled()}:{kafka_classpath()}", name, *arguments]


def _digest(sources: Sequence[Path]) -> str:
    return hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:16]


@cache
def go_program() -> Path:
    """The member that uses franz-go, built when its sources have changed."""
    go = require("Go", shutil.which("go"), "it builds the scripted member that uses franz-go")
    sources = sorted((MEMBERS / "franz").iterdir())
    program = peers_home() / "scripted-members" / f"franz-{_digest(sources)}"
    with locked(peers_home() / "scripted-members" / "mutex"):
        if not program.is_file():
            subprocess.run([go, "build", "-o", str(program), "."], cwd=MEMBERS / "franz", check=True)
    return program


@cache
def compiled() -> Path:
    """The folder with the programs' classes, compiled when their sources have changed."""
    sources = sorted(MEMBERS.glob("*.java"))
    digest = _digest(sources)
    folder = peers_home() / "scripted-members" / digest
    with locked(peers_home() / "scripted-members" / "mutex"):
        if not folder.is_dir():
            made = folder.with_suffix(".new")
            compiler = [*java_command([]), "--module", "jdk.compiler/com.sun.tools.javac.Main"]
            jars = ":".join(str(path) for path in kafka_jars().glob("*.jar"))
            files = [str(path) for path in sources]
            subprocess.run([*compiler, "-nowarn", "-d", str(made), "-cp", jars, *files], check=True)
            made.rename(folder)
    return folder
