"""Real peers for tests: Apache Kafka from Maven, its own tools, kcat, Java and Chromium, found or fetched here.

A test uses the fixture of the peer that it needs (tests/conftest.py). If that is not available, the test is skipped
with a message that says what is missing and how to get it, or fails if MUSTER_REQUIRE_ALL=1. Kafka's jars are fetched
once, with Maven, into MUSTER_PEERS_HOME (default ~/.cache/muster-tests). A run's workers share one broker, which ends
with the last of them (muster/local/keeper.py); other runs on the machine have their own, on their own ports.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn, TypeVar

import pytest

from muster.errors import ConfigError
from muster.local.jars import fetch
from muster.local.java import OLDEST_JAVA, installed_java
from muster.local.ports import free_ports as free_ports  # tests import it from here
from muster.local.server import keep, pid_in
from tests.support import class_data
from tests.support.kafka_tools import KafkaTools
from tests.support.scale import is_quick

T = TypeVar("T")

PEERS = Path(__file__).resolve().parents[1] / "peers"
KAFKA_VERSION = "4.2.0"
START_TIMEOUT_S = 240.0
GROUP_PARTITIONS = 5
"""The partitions of `__consumer_offsets`."""
CLUSTER_ID = "bXVzdGVyLXRlc3RzLTAwMQ"
NEVER_KILLED = {"broker.session.timeout.ms": "60000"}
"""Settings of a Kafka whose brokers no test kills: one that a busy machine delays for some seconds stays in the
cluster, and its partitions keep their leaders."""
CHROMIUMS = (
    "chromium",
    "chromium-browser",
    "google-chrome",
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
)


def missing(what: str, how: str) -> NoReturn:
    """Skip the test that needs `what`, or fail it if everything must be available (MUSTER_REQUIRE_ALL=1)."""
    sentence = f"{what} is not available here: {how}"
    if os.environ.get("MUSTER_REQUIRE_ALL") == "1":
        pytest.fail(f"MUSTER_REQUIRE_ALL=1, but {sentence}", pytrace=False)
    pytest.skip(sentence)


def require(what: str, found: T | None, how: str = "install it") -> T:
    """Return what was found; if it is None, skip loudly or fail (see `missing`)."""
    if is_quick():
        pytest.skip(f"{what}: `make quick` does without it")
    return missing(what, how) if found is None else found


@cache
def find_java() -> str | None:
    """The java command that JAVA_HOME or PATH leads to, if it is new enough for Kafka 4 and Spark 4."""
    return installed_java()


def find_chromium() -> str | None:
    """A Chromium or Chrome that can run headless."""
    return next((path for name in CHROMIUMS if (path := shutil.which(name))), None)


def peers_home() -> Path:
    """The folder that keeps fetched files from run to run."""
    return Path(os.environ.get("MUSTER_PEERS_HOME") or Path.home() / ".cache" / "muster-tests")


@contextlib.contextmanager
def locked(path: Path, kind: int = fcntl.LOCK_EX) -> Iterator[None]:
    """Hold a file's lock, shared or exclusive."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as lock:
        fcntl.flock(lock, kind)
        yield


@cache
def fetched_jars(peer: str, version: str, pom: Path | None = None) -> Path:
    """The folder with a release's jars, which tests/peers/PEER/pom.xml names: fetched by Maven if it does not exist
    yet."""
    folder = peers_home() / peer / version
    if not folder.is_dir():
        name = f"Apache {'ZooKeeper' if peer == 'zookeeper' else 'Kafka'} {version}"
        require("Maven", shutil.which("mvn"), f"it fetches {name} (Debian: apt-get install maven)")
        try:
            fetch(pom or PEERS / peer / "pom.xml", folder, name, {f"{peer}.version": version})
        except ConfigError as error:
            missing(name, str(error))
    return folder


def kafka_jars() -> Path:
    """The folder with Kafka's jars, fetched if it does not exist yet."""
    return fetched_jars("kafka", KAFKA_VERSION)


def kafka_jar(artifact: str) -> Path:
    """One of Kafka's own jars, such as kafka-clients, whose common/message/*.json define the wire protocol."""
    return kafka_jars() / f"{artifact}-{KAFKA_VERSION}.jar"


def kafka_classpath() -> str:
    """The class path with Kafka's broker and tools."""
    return f"{kafka_jars()}/*"


@cache
def kafka_class_data() -> Path | None:
    """The class data that JVMs with Kafka's class path can share (class_data.py)."""
    return class_data.data_of("kafka", kafka_jars(), java, peers_home()) if (java := find_java()) else None


@cache
def spark_class_data() -> Path | None:
    """The class data that JVMs of this environment's Spark can share."""
    found, java = find_spec("pyspark"), find_java()
    if java is None or found is None or found.origin is None:
        return None
    return class_data.data_of("spark", Path(found.origin).parent / "jars", java, peers_home())


def spark_java_options() -> list[str]:
    """The options of a Spark that lives for seconds and sees few rows: it has no web page, shuffles in two tasks rather
    than in 200, each of which would write state files, and interprets its plans, because compiling one costs more than
    its rows. A session's own settings come before these. The code cache has room for many queries in one session: with
    a single compiler it would have 48 MB."""
    settings = ("-XX:ReservedCodeCacheSize=240m", "-Dspark.ui.enabled=false", "-Dspark.sql.shuffle.partitions=2")
    interpreted = ("-Dspark.sql.codegen.wholeStage=false", "-Dspark.sql.codegen.factoryMode=NO_CODEGEN")
    return [*class_data.SMALL, *class_data.mapped(spark_class_data()), *settings, *interpreted]


def java_command(options: Sequence[str], *, heap: str = "256m") -> list[str]:
    """The beginning of a small JVM's command line."""
    java = require(
        f"Java {OLDEST_JAVA} or newer",
        find_java(),
        "Kafka and ZooKeeper run on it (Debian: apt-get install openjdk-17-jre-headless)",
    )
    return [java, f"-Xmx{heap}", *class_data.SMALL, *options]


def kafka_command(cls: str, *arguments: str, heap: str = "256m", more: Sequence[str] = ()) -> list[str]:
    """The command line that runs one class of Kafka's jars, such as org.apache.kafka.tools.VerifiableConsumer."""
    options = [f"-Dlog4j2.configurationFile={PEERS / 'kafka' / 'log4j2.xml'}", "-cp", kafka_classpath()]
    options = [*more, *class_data.mapped(kafka_class_data()), *options]
    return [*java_command(options, heap=heap), cls, *arguments]


def run_kafka_class(
    cls: str, *arguments: str, stdin: str = "", timeout_s: float = 300
) -> subprocess.CompletedProcess[str]:
    """Run one class of Kafka's jars to its end; the caller looks at returncode, stdout and stderr."""
    if not stdin:
        return _KAFKA_TOOLS.run(cls, arguments, timeout_s)
    command = kafka_command(cls, *arguments)
    return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=timeout_s, check=False)


_KAFKA_TOOLS = KafkaTools(lambda: kafka_command(str(PEERS / "kafka" / "Tools.java")))


@dataclass
class KafkaBroker:
    """One real Apache Kafka node, broker and controller in one process, on the loopback interface.

    Use it as a context manager, or through the fixture `kafka_broker`, whose broker all tests of a run share: those
    must not stop it, and must use topic and group names of their own.
    """

    folder: Path
    settings: Mapping[str, str] = field(default_factory=dict)
    port: int = 0
    heap: str = "512m"
    users: Path = Path("users")
    """The file whose shared lock keeps it running (muster/local/keeper.py); in its folder unless it is absolute."""
    java_options: Sequence[str] = ()
    format_options: Sequence[str] = ()
    """Further arguments of StorageTool, which formats the data: users of SCRAM."""
    formatted_like: Path | None = None
    """The data of another controller of the same cluster, copied to save StorageTool's JVM."""

    @property
    def bootstrap(self) -> str:
        """HOST:PORT, in the form of every client's bootstrap setting."""
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int | None:
        """The process id while the broker runs."""
        return pid_in(self.folder)

    @property
    def log(self) -> str:
        """The broker's log."""
        path = self.folder / "kafka.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def start(self) -> None:
        """Start, with the data of an earlier start if there is any, and return when the broker serves."""
        self.wait_until_started(self.launch())

    def launch(self) -> subprocess.Popen[bytes]:
        """Start without waiting; pass the result to `wait_until_started`."""
        configuration = self.configure()
        (self.folder / self.users).touch()
        (self.folder / "kafka.log").unlink(missing_ok=True)
        command = kafka_command("kafka.Kafka", str(configuration), heap=self.heap, more=self.java_options)
        return keep(command, self.folder / self.users, self.folder / "pid", self.folder / "kafka.log")

    def configure(self) -> Path:
        """Write its settings and format its data, if that was not done before; returns the file of the settings."""
        self.folder.mkdir(parents=True, exist_ok=True)
        configuration = self.folder / "server.properties"
        if not configuration.exists():
            self._configure(configuration)
        return configuration

    def wait_until_started(self, process: subprocess.Popen[bytes]) -> None:
        """Return when the broker serves."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while "Kafka Server started" not in self.log:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"Apache Kafka did not start:\n{self.log[-3000:]}")
            time.sleep(0.05)
        # The keeper outlives this object: it has no parent that waits for it.
        process.returncode = 0

    def _configure(self, path: Path) -> None:
        ports = free_ports(2)
        self.port = self.port or ports[0]
        configured = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{ports[1]}",
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{ports[1]}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{self.port}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "log.dirs": str(self.folder / "data"),
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": str(GROUP_PARTITIONS),
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
            "share.coordinator.state.topic.replication.factor": "1",
            "group.initial.rebalance.delay.ms": "0",
            # After a kill -9 the controller refuses the broker until its old session has ended.
            "broker.session.timeout.ms": "3000",
            "broker.heartbeat.interval.ms": "500",
            # A cluster's controller is a JVM like the others, and may be the last to start: by default they wait only a
            # minute.
            "initial.broker.registration.timeout.ms": str(int(START_TIMEOUT_S * 1000)),
            # After five minutes it would move leaders and coordinators during a test.
            "auto.leader.rebalance.enable": "false",
            **self.settings,
        }
        path.write_text("".join(f"{key}={value}\n" for key, value in configured.items()))
        if configured["process.roles"] == "broker" or self.formatted_like is not None:
            # This saves a JVM: StorageTool would write exactly this.
            (self.folder / "data").mkdir()
            described = f"version=1\ncluster.id={CLUSTER_ID}\nnode.id={configured['node.id']}\n"
            (self.folder / "data" / "meta.properties").write_text(described)
            if self.formatted_like is not None:
                shutil.copy(self.formatted_like / "bootstrap.checkpoint", self.folder / "data")
            return
        done = run_kafka_class(
            "kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(path), *self.format_options
        )
        if done.returncode:
            raise RuntimeError(f"Kafka's StorageTool failed:\n{done.stdout}{done.stderr}")

    def send(self, what: signal.Signals) -> None:
        """Send the broker's process a signal: SIGSTOP freezes it, SIGCONT resumes it."""
        if pid := self.pid:
            os.kill(pid, what)

    def kill(self, how: signal.Signals = signal.SIGKILL) -> None:
        """End the broker's process and wait until it is gone; `start` brings it back on its data."""
        if pid := self.pid:
            os.kill(pid, how)
        while self.pid:
            time.sleep(0.02)

    def stop(self) -> None:
        """Stop the broker properly."""
        self.kill(signal.SIGTERM)

    def __enter__(self) -> KafkaBroker:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._held = contextlib.ExitStack()
        self._held.enter_context(locked(self.folder / self.users, fcntl.LOCK_SH))
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()
        while self.pid:
            time.sleep(0.02)


@dataclass
class KafkaCluster:
    """Some real Apache Kafka brokers of one cluster on the loopback interface; the first are also controllers.

    Topics have as many replicas as there are brokers unless they say otherwise, and rack `r1` is that of node 1. Use it
    as a context manager if a test kills nodes (a majority of the controllers must keep running), or through the fixture
    `kafka_cluster`, which all tests of a run share: those must not stop a node.
    """

    folder: Path
    size: int = 3
    settings: Mapping[str, str] = field(default_factory=dict)
    ports: list[int] = field(default_factory=list)
    """The brokers' ports, followed by the controllers'."""
    java_options: Sequence[str] = ()
    controllers: int = 1

    @property
    def bootstrap(self) -> str:
        """The addresses of all brokers."""
        return ",".join(self.node(node_id).bootstrap for node_id in range(1, self.size + 1))

    def node(self, node_id: int) -> KafkaBroker:
        """One broker, which may be killed and restarted; ids count from 1."""
        port = self.ports[node_id - 1]
        voters = [f"127.0.0.1:{voter}" for voter in self.ports[self.size :]]
        listeners = f"PLAINTEXT://127.0.0.1:{port}"
        replicas = str(self.size)
        controls = node_id <= self.controllers
        settings = {
            "process.roles": "broker,controller" if controls else "broker",
            "node.id": str(node_id),
            "broker.rack": f"r{node_id}",
            "controller.quorum.voters": ",".join(f"{voter}@{place}" for voter, place in enumerate(voters, 1)),
            "listeners": f"{listeners},CONTROLLER://{voters[node_id - 1]}" if controls else listeners,
            "default.replication.factor": replicas,
            "offsets.topic.replication.factor": replicas,
            "transaction.state.log.replication.factor": replicas,
            "transaction.state.log.num.partitions": "5",
            "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
            # So that three fit on a small machine.
            "log.cleaner.dedupe.buffer.size": "2097152",
            "num.network.threads": "2",
            "num.io.threads": "3",
            **self.settings,
        }
        users = self.folder.resolve() / "users"
        like = self.folder / "node-1" / "data" if 1 < node_id <= self.controllers else None
        folder = self.folder / f"node-{node_id}"
        return KafkaBroker(folder, settings, port, "256m", users, self.java_options, formatted_like=like)

    def start(self) -> None:
        """Start every node that is not running, and return when all of them serve."""
        self.ports = self.ports or free_ports(self.size + self.controllers)
        if self.controllers > 1:
            self.node(1).configure()  # the other controllers' data is copied from its own
        # The first, whose data a separate JVM formats, comes last: the others start meanwhile.
        nodes = [node for node_id in range(self.size, 0, -1) if not (node := self.node(node_id)).pid]
        launched = [(node, node.launch()) for node in nodes]
        for node, process in launched:
            node.wait_until_started(process)

    def __enter__(self) -> KafkaCluster:
        self._held = contextlib.ExitStack()
        self._held.enter_context(locked(self.folder / "users", fcntl.LOCK_SH))
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()
        while any(self.node(node_id).pid for node_id in range(1, self.size + 1)):
            time.sleep(0.02)


@contextlib.contextmanager
def shared_kafka_cluster(folder: Path) -> Iterator[KafkaCluster]:
    """The cluster that all workers of one test run share, like `shared_kafka`."""
    described = folder / "cluster.json"
    with contextlib.ExitStack() as held:
        with locked(folder / "mutex"):
            held.enter_context(locked(folder / "users", fcntl.LOCK_SH))
            cluster = KafkaCluster(folder, settings=NEVER_KILLED)
            if described.exists():
                cluster.ports = json.loads(described.read_text())["ports"]
            cluster.start()
            described.write_text(json.dumps({"ports": cluster.ports}))
        yield cluster


@contextlib.contextmanager
def shared_kafka(folder: Path) -> Iterator[KafkaBroker]:
    """The broker that all workers of one test run share: the first to need it starts it, it ends after the last."""
    described = folder / "broker.json"
    with contextlib.ExitStack() as held:
        with locked(folder / "mutex"):
            held.enter_context(locked(folder / "users", fcntl.LOCK_SH))
            broker = KafkaBroker(folder, NEVER_KILLED)
            if described.exists():
                broker.port = json.loads(described.read_text())["port"]
            if broker.pid is None:
                broker.start()
                described.write_text(json.dumps({"port": broker.port}))
        yield broker


@dataclass
class Chromium:
    """A headless real browser; each call has its own profile."""

    command: str
    folder: Path

    def dom(self, page: Path) -> str:
        """The document after the page has loaded and its scripts have run."""
        return self._run(page, "--dump-dom").stdout

    def screenshot(self, page: Path, picture: Path, *, width: int = 1280, height: int = 2000) -> None:
        """Write the page's picture as PNG."""
        self._run(page, f"--screenshot={picture}", f"--window-size={width},{height}", "--hide-scrollbars")

    def _run(self, page: Path, *flags: str) -> subprocess.CompletedProcess[str]:
        quiet = ["--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-quic"]
        start = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", f"--user-data-dir={self.folder}"]
        return subprocess.run(
            [self.command, *start, *quiet, *flags, page.resolve().as_uri()],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
            check=True,
        )
