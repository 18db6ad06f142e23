"""Real Apache Kafka on ZooKeeper for tests: 0.8.2.2, whose consumer ZooKeeper coordinates, 3.9.1, the last line of
releases whose brokers know ZooKeeper, and those between.

They run on current Java and with a current ZooKeeper.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Self

from muster.compare.peer import POM
from muster.local.server import keep, pid_in
from tests.support import peers

VERSION = "0.8.2.2"
LAST_VERSION = "3.9.1"

_JARS = {VERSION: "kafka08", LAST_VERSION: "kafka39"}

_LOGGING = """log4j.rootLogger={level}, out
log4j.appender.out=org.apache.log4j.ConsoleAppender
log4j.appender.out.target=System.err
log4j.appender.out.layout=org.apache.log4j.PatternLayout
log4j.appender.out.layout.ConversionPattern=%d %p %c{{1}} %m%n
"""


def command(folder: Path, cls: str, *arguments: str, level: str = "WARN", version: str = VERSION) -> list[str]:
    """The command line of one of its classes; it logs to stderr."""
    logging = folder / f"log4j-{level}.properties"
    logging.write_text(_LOGGING.format(level=level))
    own = POM if version == VERSION else None
    classpath = f"{peers.fetched_jars(_JARS.get(version, _JARS[LAST_VERSION]), version, own)}/*"
    options = ["-Djava.net.preferIPv4Stack=true", f"-Dlog4j.configuration=file:{logging}", "-cp", classpath]
    return peers.java_command([*options, cls, *arguments])


def run_class(folder: Path, cls: str, *arguments: str, text: str = "", version: str = VERSION) -> str:
    """Run one of its tools; returns what it printed."""
    line = command(folder, cls, *arguments, version=version)
    done = subprocess.run(line, input=text, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@dataclass
class OldKafkaBroker:
    """One broker of Kafka 0.8.2.2; a context manager. `zookeeper` is an address with a chroot, which it creates."""

    folder: Path
    zookeeper: str
    port: int = 0
    broker_id: int = 0
    settings: Mapping[str, str] = field(default_factory=dict)

    version: str = VERSION
    _started: ClassVar[str] = "[Kafka Server {}], started"

    @property
    def log(self) -> str:
        """Its log."""
        path = self.folder / "kafka.log"
        return path.read_text(errors="replace") if path.exists() else ""

    @property
    def bootstrap(self) -> str:
        """Its address."""
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "users").touch()
        self._held = contextlib.ExitStack()
        self._held.enter_context(peers.locked(self.folder / "users", fcntl.LOCK_SH))
        self.start()
        return self

    def start(self) -> None:
        """Start it, on its data if it was killed; returns when it serves."""
        self.port = self.port or peers.free_ports(1)[0]
        settings = {
            "broker.id": self.broker_id,
            "log.dirs": self.folder / "data",
            "zookeeper.connect": self.zookeeper,
            "zookeeper.session.timeout.ms": "60000",
            "zookeeper.connection.timeout.ms": "60000",
            "auto.create.topics.enable": "false",
            "log.cleaner.enable": "false",
            "controlled.shutdown.enable": "false",
            **self._listening(),
            **self.settings,
        }
        configuration = self.folder / "server.properties"
        configuration.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        said = len(self.log)
        server = command(self.folder, "kafka.Kafka", str(configuration), level="INFO", version=self.version)
        process = keep(server, self.folder / "users", self.folder / "pid", self.folder / "kafka.log")
        deadline = time.monotonic() + peers.START_TIMEOUT_S
        while self._started.format(self.broker_id) not in self.log[said:]:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"Kafka {self.version} did not start:\n{self.log[-3000:]}")
            time.sleep(0.05)
        process.returncode = 0  # the keeper outlives this object, and is not waited for

    def kill(self) -> None:
        """SIGKILL; `start` brings it back."""
        pid = pid_in(self.folder)
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        self._wait_until_gone()

    def _wait_until_gone(self) -> None:
        while pid_in(self.folder):
            time.sleep(0.02)

    def _listening(self) -> dict[str, str]:
        return {"port": str(self.port), "host.name": "127.0.0.1", "advertised.host.name": "127.0.0.1"}

    def __exit__(self, *_: object) -> None:
        self._held.close()
        self._wait_until_gone()
        shutil.rmtree(self.folder, ignore_errors=True)

    def run_class(self, cls: str, *arguments: str, text: str = "") -> str:
        """Run one of the tools of this release."""
        return run_class(self.folder, cls, *arguments, text=text, version=self.version)

    def create_topic(self, topic: str, partitions: int) -> None:
        """Create a topic with Kafka's own tool."""
        where = ["--zookeeper", self.zookeeper, "--create", "--topic", topic]
        self.run_class("kafka.admin.TopicCommand", *where, "--partitions", str(partitions), "--replication-factor", "1")

    def produce(self, topic: str, values: Sequence[object]) -> None:
        """Write with Kafka's own producer, to all partitions: without keys it would stay with one for ten minutes."""
        arguments = ["--broker-list", self.bootstrap, "--topic", topic]
        arguments += ["--property", "parse.key=true", "--property", "key.separator=:"]
        text = "".join(f"{value}:{value}\n" for value in values)
        self.run_class("kafka.tools.ConsoleProducer", *arguments, text=text)

    @contextlib.contextmanager
    def consumer(self, topic: str, **settings: object) -> Iterator[OldKafkaConsumer]:
        """Kafka's own consumer in a process; at the end it is told to leave (SIGTERM)."""
        configuration = self.folder / f"consumer-{settings['consumer.id']}.properties"
        configuration.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        where = ["--zookeeper", self.zookeeper, "--topic", topic, "--from-beginning"]
        line = command(
            self.folder, "kafka.tools.ConsoleConsumer", *where, "--consumer.config", str(configuration), level="INFO"
        )
        output = configuration.with_suffix(".out")
        with output.open("wb") as out, configuration.with_suffix(".log").open("wb") as errors:
            process = subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=out, stderr=errors)
        consumer = OldKafkaConsumer(process, output, configuration.with_suffix(".log"))
        try:
            yield consumer
        finally:
            consumer.leave()


@dataclass
class LastZooKeeperKafkaBroker(OldKafkaBroker):
    """One broker of Kafka 2.4 to 3.9 in ZooKeeper mode. Topics and records come from current clients."""

    version: str = LAST_VERSION
    _started: ClassVar[str] = "[KafkaServer id={}] started"

    def _listening(self) -> dict[str, str]:
        return {
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port}",
            "offsets.topic.num.partitions": "5",
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
        }


@dataclass
class OldKafkaConsumer:
    """A running ConsoleConsumer."""

    process: subprocess.Popen[bytes]
    output: Path
    log: Path

    @property
    def values(self) -> list[str]:
        """Its output."""
        return self.output.read_text().split()

    def leave(self) -> None:
        """Make it commit and leave the group."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
