"""`muster cluster up` as a user runs it: real ZooKeeper, real brokers, real signals."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from muster.cli import main as command
from muster.client.consumer.consumer import Consumer
from muster.local import java
from muster.local.broker import LocalBroker
from muster.local.server import pid_in
from tests.support.alive import PATIENCE_S, wait_until_gone
from tests.support.zookeepers import ZooKeeperServer

pytestmark = pytest.mark.slow

# A broker that was killed stays registered in ZooKeeper until its session has ended: its next start waits for that.
SHORT_SESSIONS = ("-o", "zookeeper.session.timeout.ms=6000")
# On a busy machine no session ends while its broker lives.
LONG_SESSIONS = ("-o", "zookeeper.session.timeout.ms=60000")
SERVER = re.compile(r"^(broker \d|ZooKeeper server \d): (127\.0\.0\.1:\d+), process (\d+), log (.+)$")


class Up:
    """The command, started in its own process; and what it has printed."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        home = folder / "home"
        if not home.exists():  # with the layout of an unpacked release
            home.mkdir(parents=True)
            (home / "lib").symlink_to(ZooKeeperServer(folder).classpath().removesuffix("/*"))
        self.said: list[str] = []
        self.pids: dict[str, int] = {}
        self.addresses: dict[str, str] = {}
        program = [sys.executable, "-m", "muster", "cluster", "up", "--port-base", "0", *arguments]
        self.process = subprocess.Popen(
            program,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "ZOOKEEPER_HOME": str(home), "TMPDIR": str(folder)},
        )

    def wait_until_up(self, until: str) -> None:
        """Wait until it has printed this, and note what it has started."""
        self.wait_for(until)
        found = [match for line in self.said if (match := SERVER.match(line))]
        self.pids = {match[1]: int(match[3]) for match in found}
        self.addresses = {match[1]: match[2] for match in found}

    @property
    def bootstrap(self) -> str:
        return self.line("bootstrap.servers=")

    def line(self, start: str) -> str:
        return next(line for line in self.said if line.startswith(start)).removeprefix(start)

    def wait_for(self, text: str) -> str:
        """The next line that contains a text."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said.append(line.rstrip("\n"))
            if text in line:
                return self.said[-1]
        raise AssertionError("\n".join(self.said))

    def end(self, how: signal.Signals) -> int:
        """Send it a signal; returns its exit code, once nothing that it started is left."""
        self.process.send_signal(how)
        return self.ended()

    def ended(self) -> int:
        assert self.process.stdout is not None
        self.said += self.process.stdout.read().splitlines()
        code = self.process.wait(PATIENCE_S)
        wait_until_gone(*self.pids.values())
        return code


@contextmanager
def up(folder: Path, *arguments: str, until: str = "Ctrl-C stops all") -> Iterator[Up]:
    running = Up(folder, *arguments)
    try:
        running.wait_until_up(until)
        yield running
    finally:
        running.process.kill()
        running.process.wait()
        assert running.process.stdout is not None
        running.process.stdout.close()


def wait_until_led_by(admin: AdminClient, topic: str, brokers: set[int]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while (
        found := {part.leader for part in admin.list_topics(topic, PATIENCE_S).topics[topic].partitions.values()}
    ) != brokers:
        assert time.monotonic() < deadline, found
        time.sleep(0.05)


def produce(bootstrap: str, topic: str, values: range) -> None:
    errors: list[object] = []
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": bootstrap, "topic.metadata.propagation.max.ms": PATIENCE_S * 1_000}
    )
    for value in values:
        producer.produce(topic, b"%d" % value, on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(PATIENCE_S) == 0
    assert errors == [None] * len(values)


def consume(bootstrap: str, topic: str, count: int) -> list[int]:
    settings = {"bootstrap_servers": bootstrap, "group_id": uuid.uuid4().hex, "auto_offset_reset": "earliest"}
    with Consumer(settings) as consumer:
        consumer.subscribe([topic])
        return sorted(int(next(consumer).value or b"-1") for _ in range(count))


def test_clients_work_a_killed_broker_is_reported_and_ctrl_c_ends_all(tmp_path: Path):
    with up(tmp_path, *LONG_SESSIONS) as cluster:
        assert sorted(cluster.pids) == ["ZooKeeper server 1", "broker 1", "broker 2", "broker 3"]
        assert cluster.line("zookeeper.connect=") == cluster.addresses["ZooKeeper server 1"]
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        for created in admin.create_topics([NewTopic("t", 6, 1)]).values():
            created.result(PATIENCE_S)
        wait_until_led_by(admin, "t", {1, 2, 3})
        produce(cluster.bootstrap, "t", range(100))
        assert consume(cluster.bootstrap, "t", 100) == [*range(100)]
        os.kill(cluster.pids["broker 2"], signal.SIGKILL)
        reported = cluster.wait_for("broker 2 ended")
        assert re.match(
            r"\d\d:\d\d:\d\d broker 2 ended with signal SIGKILL; its log is .*/broker-2/server\.log; ", reported
        )
        again = reported.rpartition("restart it with: muster ")[2]
        assert again.startswith(f"serve --host 127.0.0.1 --port {cluster.addresses['broker 2'][10:]} ")
        assert again.endswith("--broker-id 2 -o zookeeper.session.timeout.ms=60000")
        assert cluster.end(signal.SIGINT) == 0
        assert cluster.said[-2:] == ["stopping: the brokers first, then ZooKeeper", "stopped"]
    assert list(tmp_path.iterdir()) == [tmp_path / "home"], "the folder of the data is removed"


def test_nothing_is_left_after_sigkill_and_the_data_is_there_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("LC_ALL", "C")  # with which Java cannot name this folder
    data = tmp_path / "José's data, \\ 試す"
    arguments = ("--brokers", "2", "--zookeeper-servers", "3", "--data-dir", str(data), *SHORT_SESSIONS)
    with up(tmp_path, *arguments) as cluster:
        assert len(cluster.pids) == 5
        produce(cluster.bootstrap, "kept", range(10))
        cluster.process.kill()
        with up(tmp_path, *arguments) as another:  # at once: it waits until the remaining processes have ended
            assert cluster.ended() == -signal.SIGKILL
            # On a busy machine they may have ended before they were looked for.
            waited = [line for line in another.said if line.startswith("waiting for ")]
            assert all(line.startswith("waiting for broker ") and "killed in the last run" in line for line in waited)
            assert consume(another.bootstrap, "kept", 10) == [*range(10)]
            with up(tmp_path, *arguments, until="muster: ") as refused:
                assert refused.said == [f"muster: another cluster runs in {data}"]
            assert another.process.stdout is not None
            another.process.stdout.close()  # as if its terminal were closed
            another.process.send_signal(signal.SIGHUP)
            assert another.process.wait(PATIENCE_S) == 0
            wait_until_gone(*another.pids.values())
            assert not any(LocalBroker(data / f"broker-{number}").was_killed for number in (1, 2))


def test_it_ends_when_zookeeper_has(tmp_path: Path):
    with up(tmp_path, "--brokers", "1") as cluster:
        os.kill(cluster.pids["ZooKeeper server 1"], signal.SIGKILL)
        cluster.wait_for("ZooKeeper server 1 ended with signal SIGKILL")
        assert cluster.ended() == 1
        assert cluster.said[-2:] == ["no ZooKeeper server is left: stopping", "stopped"]


def test_one_that_does_not_start_ends_all_properly_with_its_words(tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    arguments = ("--brokers", "2", "--data-dir", str(tmp_path / "data"), "-o", f"draft.listener={address}")
    with up(tmp_path, *arguments, until=f"  muster: cannot listen on {address}") as cluster:  # only one of them can
        assert cluster.ended() == 1
        assert re.match(r"muster: broker [12] ended with exit code 1; its last output:", cluster.said[0])
    assert not any(LocalBroker(tmp_path / "data" / f"broker-{number}").was_killed for number in (1, 2))


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_while_it_starts_ends_all(tmp_path: Path, how: signal.Signals):
    """It never becomes ready: its ZooKeeper is suspended."""
    running = Up(tmp_path, "--data-dir", str(tmp_path / "data"))
    with running.process, running.process.stdout or pytest.fail("no output"):
        deadline = time.monotonic() + PATIENCE_S
        while (pid := pid_in(tmp_path / "data" / "zookeeper-1")) is None:
            assert time.monotonic() < deadline, "ZooKeeper was not started"
            time.sleep(0.02)
        running.pids["ZooKeeper"] = pid
        os.kill(pid, signal.SIGSTOP)
        assert running.end(how) == 128 + how
        assert running.said == []
    assert pid_in(tmp_path / "data" / "zookeeper-1") is None


def test_a_port_that_is_taken_is_reported_in_one_sentence(tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with up(tmp_path, "--port-base", str(port), until="muster: ") as cluster:
            assert cluster.ended() == 1
            sentence = f"muster: port {port} for broker 1 is not available: Address already in use"
            assert cluster.said == [sentence]
    assert list(tmp_path.iterdir()) == [tmp_path / "home"], "the folder of the data is removed"


def test_without_java_it_is_reported_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(java, "packaged_java", lambda: None)
    assert command.main(["cluster", "up"]) == 1
    reported = capsys.readouterr()
    assert reported.out == ""
    assert reported.err.startswith("muster: ZooKeeper needs Java 17 or newer, and none is found: install one")
    assert reported.err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--brokers", "0"], "--brokers 0: must be at least 1"),
        (["--port-base", "65534"], "--port-base 65534: ports must be 1 to 65535, and the last would be 65537"),
        (["--port-base", "-1"], "--port-base -1: ports must be"),
        (["-o", "num.partition=3"], "there is no setting 'num.partition'; did you mean num.partitions?"),
        (["-o", "num.partitions=no"], "num.partitions"),
        (["--data-dir", __file__], "test_cluster_up.py: cannot create or use this folder: File exists"),
        (["-o", "node.id=4"], "-o node.id: cannot be set"),
        (["-o", "listeners=PLAINTEXT://127.0.0.1:9"], "-o listeners: cannot be set"),
    ],
)
def test_what_cannot_be_is_refused(capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str):
    assert command.main(["cluster", "up", *arguments]) == 1
    assert sentence in capsys.readouterr().err
