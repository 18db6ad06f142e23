"""Carries out what `history_schedules.py` draws: live groups, a job that is killed, a broker that stops."""

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
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from muster.client.admin.admin import Admin
from muster.client.plain.cluster import connect, disconnect
from muster.history.model import Limits
from muster.history.sources.cluster_limits import limits_of
from muster.history.sources.raw_records import EVENTS_TOPIC, OFFSETS_TOPIC
from muster.protocol.api import LATEST_TIMESTAMP
from muster.spark import history
from muster.spark.history.source import parse_history_options
from muster.spark.offsets import from_json
from tests.support.brokers import BrokerProcess
from tests.support.faces import Cluster
from tests.support.history_schedules import BY_ITSELF, LAST, ORDERLY, SHORT_MS, End, Facts, Schedule, Step, Tables
from tests.support.history_tables import at_once, final_in_folder, in_folder, looks_in, of_frames
from tests.support.live_groups import LiveGroups
from tests.support.peers import KafkaBroker
from tests.support.spark_soak import SOURCE, end_with, family, outliving, processes

PATIENCE_S = 600.0
"""Only in case of a hang."""
SHAKEN_S = 20.0
"""How long after a broker's outage a job may still end because of it."""
WORKER_S = 15.0
"""How long a job may take to notice that one of its workers is gone."""
PAST_SHORT_S = SHORT_MS / 1000 + 45
"""How long a schedule with a short window of patterns runs: so that there are rows that only time has made final
(source.SKEW_MS), and groups that were forgotten."""
TOPICS = (4, 3)

Broker = BrokerProcess | KafkaBroker


def until(condition: Callable[[], bool], look: Callable[[], object]) -> None:
    """Wait for a condition, and check meanwhile that everything is fine."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        look()
        time.sleep(0.05)


class Job:
    """`muster history`, restarted whenever a schedule ends it. Its folder stays."""

    def __init__(self, bootstrap: str, folder: Path, schedule: Schedule) -> None:
        self.out = folder / "out"
        self.ends: list[End] = []
        self.earlier: list[Tables] = []
        self.began_at = 0.0
        self.is_shaken: Callable[[float], bool] = lambda _since: False
        self._bootstrap, self._folder, self._schedule = bootstrap, folder, schedule
        self._process: subprocess.Popen[bytes] | None = None
        self._log = folder / "log"
        self._done_before = -1
        self._pids: dict[int, str] = {}

    # --- progress --------------------------------------------------------------------------------------------

    def last(self, log: str) -> int:
        """The last batch in one of the checkpoint's logs, -1 if there is none."""
        there = (self.out / "_checkpoint" / log).glob("[0-9]*")
        return max((int(path.name) for path in there if path.name.isdecimal()), default=-1)

    def has_done_some(self) -> bool:
        """Whether a batch of this run is done."""
        return self.last("commits") > self._done_before

    def listens(self) -> bool:
        """Whether the command has installed its signal handlers: before that, signals end any Python process."""
        assert self._process is not None
        status = Path("/proc") / str(self._process.pid) / "status"
        if not status.exists():
            return True
        caught = next(line for line in status.read_text().splitlines() if line.startswith("SigCgt:"))
        return bool(int(caught.split()[1], 16) >> (signal.SIGTERM - 1) & 1)

    def is_in_batch(self) -> bool:
        """Whether a batch of this run is in progress. A batch left by the last run is run again first."""
        return self.last("offsets") > max(self.last("commits"), self._done_before + 1)

    def has_read_to_the_end(self, ends: dict[str, dict[int, int]]) -> bool:
        """Whether a finished batch has read everything, including the brokers' events, and has written the statuses."""
        done = self.last("commits")
        if done < 1:
            return False
        before, offset = (self._offset(number) for number in (done - 1, done))
        read = {place.partition: claim.end for place, claim in from_json(offset["read"]).finished().items()}
        reported = {int(partition): claim[1] for partition, claim in offset["events"].get("read", {}).items()}
        return before["until"] < offset["until"] and {OFFSETS_TOPIC: read, EVENTS_TOPIC: reported} == ends

    def _offset(self, batch: int) -> dict[str, Any]:
        """The end of a batch, as recorded in the checkpoint."""
        text = (self.out / "_checkpoint" / "offsets" / str(batch)).read_text()
        found: dict[str, Any] = json.loads(text.splitlines()[2])
        return found

    # --- start and end -----------------------------------------------------------------------------------

    def start(self, *, follow: bool = True) -> None:
        """Start it."""
        self._done_before = self.last("commits")
        self._log = self._folder / f"log-{len(self.ends) + 1}"
        command = [*self.command(self.out), *(["--follow", "--every", "1s"] if follow else [])]
        with self._log.open("wb") as log:
            # Its own session: Ctrl-C goes to the whole process group of a terminal.
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        self.began_at = time.monotonic()

    def command(self, out: Path) -> list[str]:
        """The command that writes the history to a folder."""
        module = ["tests.support.history_job", str(SHORT_MS)] if self._schedule.short else ["muster"]
        found = [sys.executable, "-m", *module, "history", "--bootstrap", self._bootstrap, "--out", str(out)]
        return [*found, "--master", self._schedule.master]

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""
        return self._process is None or self._process.poll() is not None

    def look(self) -> None:
        """Start it again if it has ended although nothing was done to it."""
        if self.is_over:
            self.has_ended(BY_ITSELF)
            self.start()

    def end(self, how: str) -> bool:
        """End it; returns whether it has ended, which it need not if a worker's process was killed."""
        process = self._process
        assert process is not None
        there = self._take_note(process.pid)
        if how == "interrupt":
            os.killpg(process.pid, signal.SIGINT)
        else:
            number = signal.SIGTERM if how.startswith("term") else signal.SIGKILL
            only = {
                "kill_jvm": _of(there, "java", "SparkSubmit"),
                "kill_source": _of(there, SOURCE),
                "kill_worker": _workers(there)[:1],
                "kill_driver": [process.pid],
                "term": [process.pid],
            }
            end_with(number, only.get(how, list(there)))
        if how == "kill_worker":
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(WORKER_S)
        if how in ("kill_jvm", "kill_source") and not only[how]:
            return False  # it does not exist yet
        if how == "kill_worker" and not self.is_over:
            return False
        self.has_ended(how)
        return True

    def has_ended(self, how: str) -> None:
        """Wait until it has ended, and record how."""
        process = self._process
        assert process is not None
        code = process.wait(PATIENCE_S)
        self._process = None
        shaken = self.is_shaken(self.began_at)
        self.ends.append(End(len(self.ends) + 1, how, code, _said(self._log), shaken))
        left = outliving(self._pids)
        assert not left, f"processes outlive run {len(self.ends)} ({how}): {left}"
        self.earlier.append(final_in_folder(self.out))

    def _take_note(self, root: int) -> dict[int, str]:
        there = family(root)
        self._pids |= there
        return there

    def kill(self) -> None:
        """At the very end, in case of an error."""
        if self._process is not None:
            end_with(signal.SIGKILL, list(family(self._process.pid)))
            self._process.wait()


def _of(there: dict[int, str], *words: str) -> list[int]:
    return [pid for pid, args in there.items() if all(word in args for word in words)]


def _workers(there: dict[int, str]) -> list[int]:
    """The processes in which tasks run: children of Spark's daemon."""
    parents = processes()
    daemons = set(_of(there, "pyspark.daemon"))
    return [pid for pid in daemons if parents.get(pid, (0, ""))[0] in daemons]


_USUAL = ("WARN Utils: ", "WARN NativeCodeLoader: ", "log4j profile", "log level", "sc.setLogLevel", "incubator")


def _said(log: Path) -> str:
    """The output of a run, without what Spark always prints."""
    lines = log.read_text(errors="replace").splitlines()
    reported = "\n".join(line for line in lines if not any(word in line for word in _USUAL))
    return reported if len(reported) < 4_000 else f"{reported[:2_000]}\n…\n{reported[-2_000:]}"


class Soak:
    """One schedule, carried out."""

    def __init__(self, schedule: Schedule, folder: Path, broker: Broker, spark: Callable[[], Any]) -> None:
        self.schedule, self.bootstrap = schedule, broker.bootstrap
        self._broker, self._spark, self._folder = broker, spark, folder
        cluster, name = Cluster(self.bootstrap), uuid.uuid4().hex[:6]
        topics = {cluster.topic(partitions): partitions for partitions in TOPICS}
        groups = {f"{name}-{way}": way for way in schedule.groups}
        self.groups = LiveGroups(self.bootstrap, topics, groups, schedule.seed)
        self.job = Job(self.bootstrap, folder, schedule)
        self.job.is_shaken = self._is_shaken
        self._away: threading.Thread | None = None
        self._back_at = -1e9
        self.story: list[str] = []

    def run(self) -> Facts:
        """Do everything, read to the end, and collect the facts."""
        began_at = time.monotonic()
        try:
            self.groups.start()
            self.job.start()
            for step in self.schedule.steps:
                self._do(step)
            self._broker_is_back()
            if self.schedule.short:
                until(lambda: time.monotonic() > began_at + PAST_SHORT_S, self.job.look)
            self.groups.end()
            return self._at_rest()
        finally:
            self._broker_is_back()
            self.job.kill()
            disconnect()

    # --- steps -------------------------------------------------------------------------------------------------------

    def _do(self, step: Step) -> None:
        job = self.job
        if step.when == "start":
            job.look()
            time.sleep(max(0.0, job.began_at + step.after_s - time.monotonic()))
            if step.do in ORDERLY:
                until(job.listens, job.look)
        else:
            until(job.is_in_batch if step.when == "batch" else job.has_done_some, job.look)
            time.sleep(step.after_s)
        job.look()
        self.story.append(f"{time.strftime('%X')} {step}, at {job.last('offsets')}, {job.last('commits')}")
        if step.do.startswith("broker"):
            self._broker_is_back()
            self._away = threading.Thread(target=self._send_away, args=[step])
            self._away.start()
        elif job.end(step.do):
            job.start()

    def _send_away(self, step: Step) -> None:
        broker = self._broker
        if step.do == "broker_freeze":
            assert broker.pid is not None
            os.kill(broker.pid, signal.SIGSTOP)
            time.sleep(step.for_s)
            os.kill(broker.pid, signal.SIGCONT)
        else:
            broker.kill()
            time.sleep(step.for_s)
            broker.start()
        self._back_at = time.monotonic()

    def _broker_is_back(self) -> None:
        if self._away is not None:
            self._away.join()
            self._away = None

    def _is_shaken(self, since: float) -> bool:
        """Whether the broker is down, or was, after this time or shortly before."""
        return (self._away is not None and self._away.is_alive()) or self._back_at + SHAKEN_S > since

    # --- results ---------------------------------------------------------------------------------------------

    def _at_rest(self) -> Facts:
        """No group has a member any longer: the job reads to the end, and another reader reads the same topic."""
        ends = self._ends()
        if self.schedule.ending == "follow":
            until(lambda: self.job.has_read_to_the_end(ends), self.job.look)
            assert self.job.end("term")
        else:
            until(self.job.listens, self.job.look)
            assert self.job.end("term")
            self.job.start(follow=False)
            self.job.has_ended(LAST)
        fresh = self._fresh()
        assert self._ends() == ends, "the topic was written to meanwhile"
        written = in_folder(self.job.out)
        return Facts(written, fresh, tuple(self.job.ends), looks_in(self.job.out), tuple(self.job.earlier))

    def _ends(self) -> dict[str, dict[int, int]]:
        """Where the two topics end."""
        found: dict[str, dict[int, int]] = {OFFSETS_TOPIC: {}, EVENTS_TOPIC: {}}
        cluster = connect(
            parse_history_options({"bootstrap": self.bootstrap}, streaming=False)[0].fetch_settings().client
        )
        places = cluster.led(list(found), internal=True)
        for place, end in cluster.list_offsets(dict.fromkeys(places, LATEST_TIMESTAMP)).items():
            found[place.topic][place.partition] = end
        return found

    def _limits(self) -> Limits:
        with Admin(bootstrap_servers=self.bootstrap) as admin:
            found = limits_of(admin)
        return replace(found, pattern_ms=SHORT_MS) if self.schedule.short else found

    def _fresh(self) -> Tables:
        if self.schedule.beside == "small":
            return at_once(self.bootstrap, self._limits())
        if self.schedule.beside == "job":
            other = self._folder / "other"
            done = subprocess.run(self.job.command(other), capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
            return in_folder(other)
        whole = history.tables(self._spark(), bootstrap=self.bootstrap, limits=self._limits())
        try:
            return of_frames(whole)
        finally:
            whole.close()


def carry_out(schedule: Schedule, folder: Path, broker: Broker, spark: Callable[[], Any]) -> tuple[Facts, list[str]]:
    """The facts of a schedule, and its story."""
    soak = Soak(schedule, folder, broker, spark)
    try:
        return soak.run(), soak.story
    except BaseException as error:
        error.add_note("\n".join([str(schedule), *soak.story, *map(str, soak.job.ends)]))
        raise
