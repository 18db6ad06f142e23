"""The servers that are measured, each in a process of its own: muster, and Apache Kafka, started as by its own
scripts."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import ClassVar

from benchmarks.wire import Address, Asker, BenchmarkError
from muster.errors import MusterError
from muster.protocol.messages import MetadataRequest
from tests.support import peers

START_TIMEOUT_S = 90.0
METADATA_VERSION = 12
SETTINGS = {"group.initial.rebalance.delay.ms": "0", "num.partitions": "4"}
"""The same for both; everything else has its default."""

KAFKA_JVM = (
    # bin/kafka-server-start.sh and bin/kafka-run-class.sh of Kafka 4.2.
    "-Xmx1G",
    "-Xms1G",
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
)


class Server:
    """One server on a free port of the loopback interface. `prepare` once, then `start` and `stop`."""

    name: str
    environment: ClassVar[dict[str, str]] = {}
    """Additional environment variables."""

    def __init__(self, folder: Path, port: int | None = None) -> None:
        self.folder = folder
        self.address: Address = ("127.0.0.1", port or peers.free_ports(1)[0])
        self._process: subprocess.Popen[bytes] | None = None

    def prepare(self) -> None:
        """Preparations before the first start, which are not measured."""
        self.folder.mkdir(parents=True)

    def command(self) -> list[str]:
        raise NotImplementedError

    def start(self) -> float:
        """Start, and return the seconds until Metadata was answered with a broker."""
        # Like an installed command: without this shell's environment, with bytecode files.
        left_out = ("MUSTER_", "PYTHONDONTWRITEBYTECODE")
        environment = {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
        environment |= self.environment
        with (self.folder / "log").open("ab") as log:
            begun = time.perf_counter()
            self._process = subprocess.Popen(
                self.command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment
            )
        while not self._answers():
            if self._process.poll() is not None or time.perf_counter() - begun > START_TIMEOUT_S:
                self.stop()
                raise BenchmarkError(f"{self.name} did not start:\n{(self.folder / 'log').read_text()[-2000:]}")
            time.sleep(0.002)
        return time.perf_counter() - begun

    def _answers(self) -> bool:
        try:
            with Asker(self.address) as asker:
                return bool(asker.ask(MetadataRequest(topics=[]), METADATA_VERSION).brokers)
        except (OSError, BenchmarkError, MusterError):
            return False

    def stop(self) -> None:
        """Kill it: its data is no longer needed, and a clean shutdown takes Kafka ten seconds."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def cpu_s(self) -> float | None:
        """CPU time of the process, to the microsecond: Linux has a clock for each process."""
        if sys.platform != "linux":
            return None
        return time.clock_gettime((~self.pid << 3) | 2)

    def rss_mb(self) -> float | None:
        """Resident memory, in units of 1,000,000 bytes."""
        try:
            status = Path(f"/proc/{self.pid}/status").read_text()
        except OSError:
            return None
        line = next(line for line in status.splitlines() if line.startswith("VmRSS:"))
        return int(line.split()[1]) * 1024 / 1e6


class Muster(Server):
    """`muster serve`, with this interpreter."""

    name = "muster"

    def command(self) -> list[str]:
        options = [word for setting in SETTINGS.items() for word in ("-o", "=".join(setting))]
        place = ["--port", str(self.address[1]), "--data-dir", str(self.folder / "data")]
        return [sys.executable, "-m", "muster", "serve", *place, "--log-level", "WARNING", *options]


class Compiled(Muster):
    """The same from the folder that `make wheel` leaves, with its hot modules compiled."""

    name = "compiled"
    folder_of_modules = Path(__file__).resolve().parent.parent / "build" / "compiled"
    environment: ClassVar[dict[str, str]] = {"PYTHONPATH": str(folder_of_modules)}


class Kafka(Server):
    """Apache Kafka, one node that is broker and controller."""

    name = "kafka"

    def prepare(self) -> None:
        super().prepare()
        controller = peers.free_ports(1)[0]
        port = self.address[1]
        configured = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "log.dirs": str(self.folder / "data"),
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "share.coordinator.state.topic.replication.factor": "1",
            # So that deleted topics do not fill the disk during a run.
            "log.segment.delete.delay.ms": "1000",
            **SETTINGS,
        }
        path = self._properties
        path.write_text("".join(f"{key}={value}\n" for key, value in configured.items()))
        peers.kafka_jars()
        format_storage = ["format", "-t", "bXVzdGVyLWJlbmNoLTAwMQ", "-c", str(path)]
        done = peers.run_kafka_class("kafka.tools.StorageTool", *format_storage)
        if done.returncode:
            raise BenchmarkError(f"Kafka's StorageTool failed:\n{done.stdout}{done.stderr}")

    @property
    def _properties(self) -> Path:
        return self.folder / "server.properties"

    def command(self) -> list[str]:
        java = peers.find_java()
        assert java is not None
        quiet = f"-Dlog4j2.configurationFile={peers.PEERS / 'kafka' / 'log4j2.xml'}"
        return [java, *KAFKA_JVM, quiet, "-cp", peers.kafka_classpath(), "kafka.Kafka", str(self._properties)]
