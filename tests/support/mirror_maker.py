"""Apache Kafka's MirrorMaker 2 between clusters, in a separate process, with intervals short enough for a test."""

from __future__ import annotations

import itertools
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support import peers

EVERY_FLOW = {
    "replication.factor": "1",
    "checkpoints.topic.replication.factor": "1",
    "heartbeats.topic.replication.factor": "1",
    "offset-syncs.topic.replication.factor": "1",
    "refresh.topics.interval.seconds": "1",
    "refresh.groups.interval.seconds": "1",
    "sync.topic.configs.interval.seconds": "1",
    "emit.heartbeats.interval.seconds": "1",
    "emit.checkpoints.interval.seconds": "1",
    "sync.group.offsets.enabled": "true",
    "sync.group.offsets.interval.seconds": "1",
    "sync.topic.acls.enabled": "false",
    "offset.lag.max": "0",
    "tasks.max": "1",
    **{f"{worker}.storage.replication.factor": "1" for worker in ("offset", "status", "config")},
    **{f"{worker}.storage.partitions": "1" for worker in ("offset", "status")},
    "plugin.discovery": "service_load",
}
"""One replica, everything every second, and a sync of offsets for each record, so that translated offsets are exact."""

EVERY_WORKER = {
    # At most ten syncs of offsets are in flight, so the last one of a partition may have to wait for the next flush,
    # which by default takes place once a minute.
    "offset.flush.interval.ms": "500",
    # Otherwise each worker scans every class of Kafka's jars.
    "plugin.discovery": "service_load",
}
"""A worker runs a flow. MirrorMaker passes these on only if they are prefixed with the name of the flow's target."""


class MirrorMaker:
    """One MirrorMaker 2 for some flows, such as ("left", "right"), between clusters with these addresses; `more` are
    additional settings."""

    def __init__(
        self,
        folder: Path,
        clusters: Mapping[str, str],
        flows: Sequence[tuple[str, str]],
        *,
        topics: str,
        groups: str,
        more: Mapping[str, str] | None = None,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        # Otherwise it starts a worker for these too, to write heartbeats.
        idle = set(itertools.permutations(clusters, 2)) - set(flows)
        settings = {
            "clusters": ",".join(clusters),
            **{f"{alias}.bootstrap.servers": address for alias, address in clusters.items()},
            **{f"{source}->{target}.enabled": "true" for source, target in flows},
            **{f"{source}->{target}.emit.heartbeats.enabled": "false" for source, target in idle},
            "topics": topics,
            "groups": groups,
            **EVERY_FLOW,
            **{f"{alias}.{name}": value for alias in clusters for name, value in EVERY_WORKER.items()},
            **(more or {}),
        }
        self._properties = folder / "mm2.properties"
        self._properties.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        self._log = folder / "mm2.log"

    def log(self) -> str:
        """Its output."""
        return self._log.read_text(errors="replace")

    def __enter__(self) -> MirrorMaker:
        jars = peers.fetched_jars("mirror", peers.KAFKA_VERSION)
        log4j = f"-Dlog4j2.configurationFile={peers.PEERS / 'kafka' / 'log4j2.xml'}"
        classes = f"{jars}/*:{peers.kafka_classpath()}"
        main = ["org.apache.kafka.connect.mirror.MirrorMaker", str(self._properties)]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                peers.java_command([log4j, "-cp", classes, *main]), stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()  # an orderly stop takes some seconds
        self._process.wait()
