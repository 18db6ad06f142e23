"""Carries out what `schedules.py` draws: a producer of numbers, queries in separate processes, a broker that is
killed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from muster import Producer
from muster.client.plain.cluster import connect, disconnect
from muster.client.plain.fetch import RangeReader
from muster.model import TopicPartition
from muster.protocol.api import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from muster.spark.offsets import Claims, from_json
from muster.spark.source.options import parse_options
from tests.support.brokers import BrokerProcess
from tests.support.faces import Cluster, until
from tests.support.peers import KafkaCluster
from tests.support.queries import committed
from tests.support.schedules import Batch, End, Facts, Schedule, Step, Write

SESSION_MS = 6_000
SHAKEN_S = 2.0
"""How long before and after a broker's outage a batch counts as shaken: its commit may have been in flight."""

GONE_S = 180.0
"""How long the last process of a query may outlive its driver."""

AT_ONCE = 200
"""Records for each step."""

SOURCE = "python_streaming_source_runner"

Brokers = BrokerProcess | KafkaCluster


def processes() -> dict[int, tuple[int, str]]:
    """All processes on the machine: the parent and the command line of each."""
    done = subprocess.run(["ps", "-A", "-ww", "-o", "pid=,ppid=,args="], capture_output=True, text=True, check=True)
    rows = (line.split(None, 2) for line in done.stdout.splitlines())
    return {int(row[0]): (int(row[1]), row[2]) for row in rows if len(row) == 3 and "<defunct>" not in row[2]}


def family(root: int) -> dict[int, str]:
    """A process and all its descendants, the oldest first, with their command lines."""
    found, there = {root: ""}, processes()
    while more := {pid: args for pid, (parent, args) in there.items() if parent in found and pid not in found}:
        found |= more
    return {pid: there[pid][1] for pid in found if pid in there}


def outliving(pids: Mapping[int, str]) -> list[str]:
    """Those of these processes that still exist after some time in which they may end; each with its arguments."""
    deadline = time.monotonic() + GONE_S
    while True:
        there = processes()
        left = [args for pid, args in pids.items() if there.get(pid, (0, ""))[1] == args]
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.1)


def end_with(number: signal.Signals, pids: Iterator[int] | list[int]) -> None:
    """Send a signal to processes, some of which may have ended."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


class Numbers(threading.Thread):
    """Writes 0, 1, 2 … to the partitions of a topic in turn, and records which are acknowledged: `due` of them soon,
    then a few a second, so that there is always something to read, but no growing backlog on a busy machine."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        super().__init__(daemon=True)
        self.partitions = partitions
        self.sent, self.due = 0, AT_ONCE
        self.acknowledged: set[int] = set()
        self.failed: list[str] = []
        self._stopping = threading.Event()
        self._topic = topic
        self._producer = Producer(bootstrap_servers=bootstrap, linger_ms=2)

    def run(self) -> None:
        """Write until it is stopped."""
        while not self._stopping.wait(0.05 if self.sent < self.due else 0.5):
            for _ in range(8 if self.sent < self.due else 1):
                number = self.sent
                future = self._producer.send(self._topic, b"%d" % number, partition=number % self.partitions)
                self.sent += 1
                future.add_done_callback(lambda done, n=number: self._reported(n, done.exception()))  # type: ignore[misc]

    def _reported(self, number: int, error: BaseException | None) -> None:
        if error is None:
            self.acknowledged.add(number)
        else:
            self.failed.append(f"{number}: {error}")

    def end(self) -> None:
        """Wait until all are acknowledged."""
        self._stopping.set()
        self.join()
        self._producer.close()


class Driver:
    """A driver's process, which runs one query at a time."""

    def __init__(self, folder: Path) -> None:
        self._errors = folder / f"driver-{uuid.uuid4().hex[:6]}"
        self._reported: list[dict[str, Any]] = []
        with self._errors.open("w") as errors:
            # Its own session: Ctrl-C goes to the whole process group of a terminal.
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.soak_query"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        self.jvm = int(self.wait("jvm")["jvm"])

    def _listen(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            self._reported.extend(json.loads(line) for line in lines if line.startswith("{"))
        self._reported.append({"gone": True})

    def say(self, **what: Any) -> None:
        """Make it do something."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(what) + "\n")
        self.process.stdin.flush()

    def reported(self, what: str, value: Any = None) -> dict[str, Any] | None:
        """The last message with this name, if there is one."""
        return next(
            (reported for reported in self._reported if what in reported and value in (None, reported[what])), None
        )

    def wait(self, what: str, value: Any = None) -> dict[str, Any]:
        """The next message with this name."""

        def look() -> None:
            assert self.reported("gone") is None or self.reported(what, value), f"the driver is gone: {self.errors()}"
            time.sleep(0.02)

        until(lambda: self.reported(what, value) is not None, look)
        return self.reported(what, value) or {}

    def errors(self) -> str:
        """The end of its standard error."""
        return self._errors.read_text()[-4_000:]

    def is_over(self) -> None:
        """Wait until it has ended, as well as its JVM. Processes that they started may outlive them."""
        self.process.wait(GONE_S)
        until(lambda: self.jvm not in processes(), lambda: time.sleep(0.05))
        self.wait("gone")
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self._listener.join()

    def close(self) -> None:
        """Make it end properly."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(GONE_S) == 0, self.errors()
        self._listener.join()


class Drivers:
    """Drivers that outlive a schedule are reused by the next one: starting a JVM takes longer than most of what is
    tested."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.idle: list[Driver] = []

    def take(self) -> Driver:
        """A driver that runs no query."""
        return self.idle.pop() if self.idle else Driver(self._folder)

    def __enter__(self) -> Drivers:
        return self

    def __exit__(self, *_error: object) -> None:
        for driver in self.idle:
            driver.close()


class Run:
    """A query, restarted whenever a schedule ends it. Its checkpoint and its sink stay."""

    def __init__(self, soak: Soak, name: str) -> None:
        self.name = name
        self.folder = soak.folder / name
        self.ends: list[End] = []
        self.began = -1
        self._number, self._tag = 0, ""
        self._soak = soak
        self._driver: Driver | None = None
        self._pids: dict[int, str] = {}
        (self.folder / "sink").mkdir(parents=True, exist_ok=True)

    # --- the checkpoint ----------------------------------------------------------------------------------------------

    def last(self, log: str) -> int:
        """The last batch in one of the checkpoint's logs; -1 for none."""
        return max(self.times(log), default=-1)

    def times(self, log: str) -> dict[int, float]:
        """When each batch was written into one of the checkpoint's logs."""
        there = (self.folder / "checkpoint" / log).glob("[0-9]*")
        return {int(path.name): path.stat().st_mtime for path in there if path.name.isdecimal()}

    def plans(self) -> dict[int, Claims]:
        """The records that each batch reads."""
        found = {}
        for batch in self.times("offsets"):
            text = (self.folder / "checkpoint" / "offsets" / str(batch)).read_text()
            found[batch] = from_json(json.loads(text.splitlines()[2])).claims
        return found

    # --- start and end -----------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the query, in its driver, or in another one."""
        self._driver = self._driver or self._soak.drivers.take()
        self._number += 1
        self.began = self.last("commits")
        self._tag = f"{self._soak.topic} {self.name} {self._number}"
        self._driver.say(start=self._number, tag=self._tag, **self._soak.command(self))
        self._driver.wait("started", self._tag)

    def look(self) -> None:
        """Raise an error if the query has ended although nothing was done to it."""
        driver = self._driver
        if driver is not None:
            reported = driver.reported("gone") or driver.reported("ended", self._tag)
            assert not reported, f"query {self.name} has ended unexpectedly: {reported} {driver.errors()}"

    def end(self, how: str) -> None:
        """End the run. The driver still exists afterwards if only the query has ended."""
        driver = self._driver
        assert driver is not None
        if how == "kill_source":
            driver.say(once=self._tag)
            driver.wait("once", self._tag)
        there = self._take_note(driver)
        sources = [pid for pid, args in there.items() if SOURCE in args]
        root = driver.process.pid
        if how == "stop" or (how == "kill_source" and not sources):
            driver.say(stop=True)
        elif how == "kill_source":
            end_with(signal.SIGKILL, sources)
        elif how == "interrupt":
            os.killpg(root, signal.SIGINT)
        else:
            number = signal.SIGTERM if how.startswith("term") else signal.SIGKILL
            only = {"kill_jvm": [driver.jvm], "kill_driver": [root], "term": [root]}
            end_with(number, only.get(how, list(there)))
        if how in ("stop", "kill_source"):
            driver.wait("ended", self._tag)
        else:
            driver.is_over()
            self._driver = None
        self.ends.append(End(self.name, self._number, how, self.last("offsets"), self.last("commits")))

    def _take_note(self, driver: Driver) -> dict[int, str]:
        there = family(driver.process.pid)
        self._pids |= {pid: args for pid, args in there.items() if SOURCE in args}
        return there

    def kill_worker(self) -> list[int]:
        """kill -9 of one of the processes in which tasks run; returns the batches that it may have been working for."""
        assert self._driver is not None
        there, parents = family(self._driver.process.pid), processes()
        daemons = {pid for pid, args in there.items() if "pyspark.daemon" in args}
        workers = [pid for pid in daemons if parents.get(pid, (0, ""))[0] in daemons]
        before = self.last("commits")
        end_with(signal.SIGKILL, workers[:1])
        return list(range(before + 1, self.last("offsets") + 2)) if workers else []

    def finish(self) -> None:
        """Stop the query and return its driver."""
        if self._driver is not None:
            self.end("stop")
            self._soak.drivers.idle.append(self._driver)
            self._driver = None

    def kill(self) -> None:
        """At the very end, in case of an error."""
        if self._driver is not None:
            end_with(signal.SIGKILL, list(family(self._driver.process.pid)))
            self._driver.is_over()
            self._driver = None

    def leftover(self) -> list[str]:
        """The processes of its source that outlive it."""
        return outliving(self._pids)


class Soak:
    """One schedule, carried out."""

    def __init__(self, schedule: Schedule, folder: Path, brokers: Brokers, drivers: Drivers) -> None:
        self.schedule, self.folder, self.drivers = schedule, folder, drivers
        self.bootstrap = brokers.bootstrap
        self._brokers = brokers
        self._cluster = Cluster(brokers.bootstrap)
        self.topic, self.copy = self._cluster.topic(3), self._cluster.topic(2)
        self.numbers = Numbers(self.bootstrap, self.topic, 3)
        self.runs = {name: Run(self, name) for name in "ab"}
        self._starts = 0
        self._away: threading.Thread | None = None
        self._absences: list[tuple[float, float]] = []
        self._retried: set[Batch] = set()
        self.story: list[str] = []

    def command(self, run: Run) -> dict[str, Any]:
        """The command with which a driver starts the query."""
        found: dict[str, Any] = {
            "options": self._options(run),
            "checkpoint": str(run.folder / "checkpoint"),
            "sink": str(run.folder / "sink"),
            "before_s": self.schedule.before_s,
            "behind_s": self.schedule.behind_s,
        }
        if self.schedule.sink == "topic":
            found["topic"] = {"bootstrap": self.bootstrap, "topic": self.copy}
        return found

    def _options(self, run: Run) -> dict[str, str]:
        schedule = self.schedule
        limit = schedule.limits[self._starts % len(schedule.limits)]
        self._starts += 1
        found = {
            "kafka.bootstrap.servers": self.bootstrap,
            "subscribe": self.topic,
            "groupId": self._cluster.group,
            "mode": schedule.mode,
            "startingOffsets": "earliest",
            "kafka.metadata.max.age.ms": "500",
            "maxOffsetsPerTrigger": str(limit),
        }
        if schedule.mode == "group":
            found |= {"kafka.heartbeat.interval.ms": "200", "kafka.session.timeout.ms": str(SESSION_MS)}
        if schedule.names_checkpoint:
            found["checkpointLocation"] = str(run.folder / "checkpoint")
        return found

    def run(self) -> Facts:
        """Do everything, wait until everything has arrived, and collect the facts."""
        try:
            self.runs["a"].start()
            self.numbers.start()
            for step in self.schedule.steps:
                self._do(step)
            self._brokers_are_back()
            self.numbers.end()
            assert not self.numbers.failed, self.numbers.failed[:3]
            until(lambda: self.numbers.acknowledged <= self._arrived(), self._look)
            until(self._all_committed, self._look)
            for run in self.runs.values():
                run.finish()
            left = [one for run in self.runs.values() for one in run.leftover()]
            assert not left, f"processes outlive their query: {left}"
            return self._facts()
        finally:
            self._brokers_are_back()
            for run in self.runs.values():
                run.kill()
            disconnect()

    # --- steps -------------------------------------------------------------------------------------------------------

    def _do(self, step: Step) -> None:
        run = self.runs[step.who]
        self.numbers.due = self.numbers.sent + AT_ONCE
        if step.do == "join":
            run.start()
        elif not step.early:
            until(lambda: run.last("commits") > run.began, self._look)
        time.sleep(step.after_s)
        self.story.append(f"{time.strftime('%X')} {step}, a at {self._at('a')}, b at {self._at('b')}")
        if step.do == "join":
            return
        if step.do == "kill_worker":
            self._retried |= {(run.name, batch) for batch in run.kill_worker()}
        elif step.do == "grow":
            self._brokers_are_back()
            self._cluster.grow(self.topic, self.numbers.partitions + 1)
            self.numbers.partitions += 1
        elif step.do.startswith("broker"):
            self._brokers_are_back()
            self._away = threading.Thread(target=self._send_away, args=[step])
            self._away.start()
        elif step.do.startswith("leave_"):
            if step.do == "leave_stop":
                run.finish()
            else:
                run.end(step.do.removeprefix("leave_"))
        else:
            run.end(step.do)
            run.start()

    def _at(self, name: str) -> tuple[int, int]:
        return self.runs[name].last("offsets"), self.runs[name].last("commits")

    def _send_away(self, step: Step) -> None:
        since, brokers = time.time(), self._brokers
        if isinstance(brokers, BrokerProcess) and step.do == "broker_freeze":
            os.kill(brokers.pid, signal.SIGSTOP)
            time.sleep(step.for_s)
            os.kill(brokers.pid, signal.SIGCONT)
        else:
            # Node 1 of a cluster is its controller: without it no leadership would move.
            node: Any = brokers if isinstance(brokers, BrokerProcess) else brokers.node(2 + int(step.for_s * 10) % 2)
            node.kill()
            time.sleep(step.for_s)
            node.start()
        self._absences.append((since, time.time()))

    def _brokers_are_back(self) -> None:
        if self._away is not None:
            self._away.join()
            self._away = None

    def _look(self) -> None:
        for run in self.runs.values():
            run.look()
        time.sleep(0.05)

    # --- results ---------------------------------------------------------------------------------------------

    def _writes(self) -> list[Write]:
        found = []
        for run in self.runs.values():
            for path in (run.folder / "sink").glob("[0-9]*-*"):
                batch, number, _ = path.name.split("-")
                found.append(Write((run.name, int(batch)), int(number), tuple(json.loads(path.read_text()))))
        return sorted(found, key=lambda write: (write.batch, write.run))

    def _arrived(self) -> set[int]:
        if self.schedule.sink == "topic":
            return set(self._read(self.copy).values())
        return {number for write in self._writes() for number in write.records}

    def _read(self, topic: str) -> dict[tuple[TopicPartition, int], int]:
        """All records of a topic by partition and offset."""
        given = {"bootstrap": self.bootstrap, "subscribe": topic, "columns": "offset,value"}
        settings = parse_options(given, streaming=False).fetch_settings()
        cluster = connect(settings.client)
        places = [TopicPartition(topic, index) for index in cluster.topics()[topic]]
        starts = cluster.list_offsets(dict.fromkeys(places, EARLIEST_TIMESTAMP))
        ends = cluster.list_offsets(dict.fromkeys(places, LATEST_TIMESTAMP))
        found: dict[tuple[TopicPartition, int], int] = {}
        for place in places:
            if starts[place] < ends[place]:
                reader = RangeReader(settings, place, starts[place], ends[place], cluster.topic_id(topic))
                for batch in reader.batches():
                    rows: list[dict[str, Any]] = batch.to_pylist()
                    found |= {(place, row["offset"]): int(row["value"]) for row in rows}
        return found

    def _all_committed(self) -> bool:
        ends = Counter(place.partition for place, _ in self._read(self.topic))
        found = committed(self._cluster, self.topic, self.numbers.partitions)
        # For an empty partition, such as one that was added late, 0 is committed or nothing.
        return all((offset or 0) == ends[partition] for partition, offset in found.items())

    def _facts(self) -> Facts:
        numbers = self._read(self.topic)
        plans = {
            (run.name, batch): frozenset(
                numbers[place, offset] for place, claim in claims.items() for offset in range(*claim)
            )
            for run in self.runs.values()
            for batch, claims in run.plans().items()
        }
        copies = Counter(self._read(self.copy).values()) if self.schedule.sink == "topic" else None
        return Facts(
            acknowledged=frozenset(self.numbers.acknowledged),
            sent=frozenset(range(self.numbers.sent)),
            plans=plans,
            ends=tuple(end for run in self.runs.values() for end in run.ends),
            writes=tuple(self._writes()),
            copies=copies,
            shaken=frozenset(self._shaken()),
            retried=frozenset(self._retried),
        )

    def _shaken(self) -> set[Batch]:
        found = set()
        for run in self.runs.values():
            done = run.times("commits")
            for batch, begun in run.times("offsets").items():
                ended = done.get(batch, time.time())
                if any(begun < t1 + SHAKEN_S and ended > t0 - SHAKEN_S for t0, t1 in self._absences):
                    found.add((run.name, batch))
        return found


def carry_out(schedule: Schedule, folder: Path, brokers: Brokers, drivers: Drivers) -> tuple[Facts, list[str]]:
    """The facts of a schedule, and its story."""
    soak = Soak(schedule, folder, brokers, drivers)
    try:
        return soak.run(), soak.story
    except BaseException as error:
        ends = [str(end) for run in soak.runs.values() for end in run.ends]
        error.add_note("\n".join([str(schedule), *soak.story, *ends]))
        raise
