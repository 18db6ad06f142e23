"""Members of groups that are not muster's own clients: each is a process that is started, asked to leave, or killed.

What a member does is the same for all: it reads its group's topic, prints each record as a line of JSON, then commits.
The broker reports the owners of partitions to confluent-kafka's admin client.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka import ConsumerGroupState, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.peers import kafka_command

PATIENCE_S = 180.0
"""Only in case of a hang."""

SESSION_TIMEOUT_MS = 12_000
"""Twice the minimum that a broker allows by default: on a busy machine a live member must not be removed. The members'
scripts have it, too."""

SCRIPTS = Path(__file__).parent / "members"
KCAT_LINE = '{"partition": %p, "offset": %o, "value": "%s"}\n'


def _python(script: str) -> Callable[[str, str, str, Path], list[str]]:
    def command(bootstrap: str, group: str, topic: str, folder: Path) -> list[str]:
        return [sys.executable, str(SCRIPTS / script), bootstrap, group, topic]

    return command


def _kcat(bootstrap: str, group: str, topic: str, folder: Path) -> list[str]:
    settings = {
        "client.id": "with-kcat",
        "partition.assignment.strategy": "range",
        "auto.offset.reset": "earliest",
        "session.timeout.ms": SESSION_TIMEOUT_MS,
        "heartbeat.interval.ms": 1_000,
        "auto.commit.interval.ms": 500,
    }
    options = [word for name, value in settings.items() for word in ("-X", f"{name}={value}")]
    return ["kcat", "-b", bootstrap, "-u", *options, "-f", KCAT_LINE, "-G", group, topic]


def _java(bootstrap: str, group: str, topic: str, folder: Path) -> list[str]:
    settings = folder / f"java-{group}.properties"
    settings.write_text("client.id=with-java\nheartbeat.interval.ms=1000\n")
    where = ["--bootstrap-server", bootstrap, "--group-id", group, "--topic", topic]
    how = ["--session-timeout", str(SESSION_TIMEOUT_MS), "--verbose", "--command-config", str(settings)]
    return kafka_command("org.apache.kafka.tools.VerifiableConsumer", *where, *how, heap="96m")


CLIENTS: dict[str, Callable[[str, str, str, Path], list[str]]] = {
    "with-kafka-python": _python("with_kafka_python.py"),
    "with-java": _java,
    "with-confluent": _python("with_confluent.py"),
    "with-muster": _python("with_muster.py"),
    "with-aiokafka": _python("with_aiokafka.py"),
    "with-kcat": _kcat,
}
"""How to start a member of each kind (bootstrap, group, topic, folder for its files), by its client id."""

_SHOWS_ITS_THREADS = {
    "with-java": signal.SIGQUIT,
    **dict.fromkeys(("with-kafka-python", "with-confluent", "with-muster", "with-aiokafka"), signal.SIGUSR1),
}
"""The signal on which a member of each kind prints where its threads are."""

OF_THE_DRAFTS = {"with-drafts": _python("with_muster.py")}
"""A member that speaks the draft protocol, to its own coordinators: its bootstrap is `COORDINATOR/BOOTSTRAP`."""


_LAST_LINES = 60


class Member:
    """A process that is a member of a group. `values` is what it has printed."""

    def __init__(self, client: str, bootstrap: str, group: str, topic: str, folder: Path) -> None:
        self.client = client
        self.values: set[int] = set()
        self._said: deque[str] = deque(maxlen=_LAST_LINES)
        """The last line that it printed that is not a record."""
        self._errors = folder / f"{group}-{client}-{time.monotonic_ns()}.err"
        with self._errors.open("w") as errors:
            self.process = subprocess.Popen(
                (CLIENTS | OF_THE_DRAFTS)[client](bootstrap, group, topic, folder),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                try:
                    reported = json.loads(line)
                except ValueError:  # the last line of a killed process may be incomplete
                    reported = {}
                if "value" in reported:
                    self.values.add(int(reported["value"]))
                else:
                    self._said.append(line)

    def check_alive(self) -> None:
        """Raise with its output if the member has ended on its own."""
        assert self.process.poll() is None, f"{self.client} ended on its own:\n{self._errors.read_text()[-2000:]}"

    def account(self) -> str:
        """Its output, and where its threads are if it runs: for the message of a failure."""
        if (runs := self.process.poll() is None) and self.client in _SHOWS_ITS_THREADS:
            self.process.send_signal(_SHOWS_ITS_THREADS[self.client])
            time.sleep(1)
        state = "runs" if runs else f"ended with {self.process.returncode}"
        said = "".join([*self._said, *self._errors.read_text().splitlines(keepends=True)[-_LAST_LINES:]])
        return f"{self.client}, process {self.process.pid}, {state}, {len(self.values)} records; it said:\n{said}"

    def leave(self) -> None:
        """Ask it to leave, and wait for its end."""
        self.check_alive()
        self._end(signal.SIGTERM)

    def crash(self) -> None:
        """SIGKILL."""
        self.check_alive()
        self._end(signal.SIGKILL)

    def destroy(self) -> None:
        """End it in whatever state it is."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join()

    def _end(self, how: signal.Signals) -> None:
        self.process.send_signal(how)
        try:
            self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.client} did not end on {how.name}") from None
        self._reader.join()


@dataclass
class Share:
    """What one member owns, as the broker reports it."""

    member_id: str
    client_id: str
    host: str
    partitions: list[int]


class Cluster:
    """A broker as an operator sees it, from outside."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self._admin = self._connect()

    def _connect(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.bootstrap, "socket.timeout.ms": 180_000})

    def create(self, topics: Iterable[str], partitions: int) -> None:
        """Create topics with this many partitions each."""
        made = self._admin.create_topics([NewTopic(topic, partitions, 1) for topic in topics])
        for future in made.values():
            future.result(PATIENCE_S)

    def group(self, name: str) -> tuple[ConsumerGroupState, list[Share]]:
        """A group's state and the partitions of its members."""
        reported = self._described(name)
        shares = []
        for member in reported.members:
            owned = sorted(p.partition for p in member.assignment.topic_partitions) if member.assignment else []
            shares.append(Share(member.member_id, member.client_id, member.host, owned))
        return reported.state, sorted(shares, key=lambda share: share.partitions)

    def _described(self, name: str) -> Any:
        """The broker's answer. librdkafka sometimes never completes a request that was made right after a broker came
        back: then another client makes another one."""
        for _ in range(8):
            try:
                return self._admin.describe_consumer_groups([name], request_timeout=10)[name].result(PATIENCE_S)
            except KafkaException as error:
                if error.args[0].code() != KafkaError._TIMED_OUT:
                    raise
                self._admin = self._connect()
        raise AssertionError(f"the group {name} is not described")

    def shared_by(self, name: str, members: Iterable[Member], partitions: int) -> list[Share]:
        """Wait until the group is stable with exactly these members, and every partition has one owner."""
        members = list(members)
        seen: Any = None

        def done() -> bool:
            nonlocal seen
            for member in members:
                member.check_alive()
            seen = state, shares = self.group(name)
            owned = sorted(partition for share in shares for partition in share.partitions)
            clients = sorted(share.client_id for share in shares)
            return (
                state is ConsumerGroupState.STABLE
                and owned == list(range(partitions))
                and clients == sorted(member.client for member in members)
            )

        until(done, lambda: f"{name} has {[m.client for m in members]} as its members; it is {seen}")
        _, shares = seen
        return list(shares)

    def empty(self, name: str) -> None:
        """Wait until the group has no members."""
        until(lambda: self.group(name)[0] is ConsumerGroupState.EMPTY, lambda: f"{name} is empty")


class Feed:
    """Writes numbers to topics at a steady pace, each number of a topic once, from 0 on, to the partitions in turn."""

    def __init__(
        self, bootstrap: str, topics: Iterable[str], partitions: int, settings: Mapping[str, Any] | None = None
    ) -> None:
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, **(settings or {})})
        self._topics = list(topics)
        self._partitions = partitions
        self._stopped = threading.Event()
        self._errors: list[str] = []
        self.count = 0
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        while not self._stopped.wait(0.02):
            for topic in self._topics:
                self._producer.produce(
                    topic, str(self.count), partition=self.count % self._partitions, on_delivery=self._reported
                )
            self.count += 1
            self._producer.poll(0)

    def _reported(self, error: Any, message: Any) -> None:
        if error is not None:
            self._errors.append(str(error))

    def finish(self) -> int:
        """Stop; returns how many numbers each topic has, all of them acknowledged."""
        self._stopped.set()
        self._thread.join()
        assert self._producer.flush(PATIENCE_S) == 0
        assert not self._errors, self._errors[:3]
        return self.count

    def __enter__(self) -> Feed:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()


def until(condition: Callable[[], bool], what: Callable[[], str]) -> None:
    """Wait for a condition that others fulfil."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"not within {PATIENCE_S:.0f} s: {what()}"
        time.sleep(0.1)
