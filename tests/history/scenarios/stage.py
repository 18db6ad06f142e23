"""Where a scripted scenario is played: topics with a trickle of records, members as processes, and what was done when.

A script does something to a group inside `stage.happens(group, cause, about)`, which notes the time, runs the block,
and waits until the group is at rest with exactly the members that the script left alive. Those windows are the truth
against which inferred causes are measured. `stage.quiet(about)` notes a time in which no rebalance is expected.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaException, Producer

from muster.clock import wall_clock_ms
from tests.history.scenarios.clients import Flavour, command
from tests.history.scenarios.operator_client import Operator, OperatorError
from tests.history.scenarios.road import Road

ROOT = Path(__file__).resolve().parents[3]

PATIENCE_S = 300.0
"""Only in case of a hang."""

STILL_S = 1.5
"""How long a group has to stay the same to be at rest: the second phase of a cooperative rebalance begins sooner."""


class StageError(Exception):
    """What a script waited for did not happen, or a member ended unexpectedly."""


class Member:
    """One process that is, or was, a member; `label` is its client id."""

    def __init__(self, group: Group, label: str, flavour: Flavour, spec: dict[str, Any], errors: Path) -> None:
        self.group = group
        self.label = label
        self.flavour = flavour
        self.topics: list[str] = []
        self.events: list[dict[str, str]] = []
        self._errors = errors
        with errors.open("w") as sink:
            self.process = subprocess.Popen(
                command(flavour, spec), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=sink, text=True, cwd=ROOT
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                with contextlib.suppress(ValueError):  # the last line of a killed process may be incomplete
                    self.events.append(json.loads(line))

    def tell(self, do: str, **what: Any) -> None:
        """Send a command."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": do, **what}) + "\n")
        self.process.stdin.flush()

    def wait_for(self, event: str, count: int = 1) -> None:
        """Wait until the member has reported this event this many times."""

        def told() -> bool:
            if self.process.poll() is not None and event not in ("closed", "fenced"):
                raise StageError(
                    f"{self.label} ended unexpectedly: {self.events[-3:]} {self._errors.read_text()[-2000:]}"
                )
            return sum(told["event"] == event for told in self.events) >= count

        until(told, f"{self.label} reports {event}")

    def subscribe(self, *topics: str) -> None:
        """Subscribe to exactly these topics, and be a member from now on."""
        self.topics = list(topics)
        self.tell("subscribe", topics=self.topics)
        if self not in self.group.members:
            self.group.members.append(self)

    def match(self, pattern: str, *topics: str, by: str = "pattern") -> None:
        """Subscribe to what an expression matches, which at the moment is these topics: `pattern` is the client's
        expression, `regex` one of KIP-848 that the broker evaluates."""
        self.topics = list(topics)
        self.tell("subscribe", **{by: pattern})
        if self not in self.group.members:
            self.group.members.append(self)

    def unsubscribe(self) -> None:
        """Leave the group, but keep the process."""
        self.group.remove(self)
        self.tell("unsubscribe")

    def leave(self, how: str = "default", timeout_ms: int = 30_000) -> None:
        """Close the consumer, and wait for the end of the process."""
        self.group.remove(self)
        self.tell("close", how=how, timeout_ms=timeout_ms)
        self.process.wait(PATIENCE_S)

    def crash(self) -> None:
        """SIGKILL."""
        self.group.remove(self)
        self.process.kill()
        self.process.wait(PATIENCE_S)

    def freeze(self) -> None:
        """SIGSTOP: the process and its connections stay, but are silent. After a while the group is without it."""
        self.group.remove(self)
        os.kill(self.process.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT; it is expected back."""
        os.kill(self.process.pid, signal.SIGCONT)
        self.group.members.append(self)

    def oversleep(self, ms: int) -> None:
        """Handle a record for this long, which is expected to cost the membership for that time."""
        self.group.remove(self)
        self.tell("sleep", ms=ms)

    def end(self) -> None:
        """End the process, whatever its state."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.send_signal(signal.SIGCONT)
        self.process.wait()
        self._reader.join(PATIENCE_S)
        if self.process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self.process.stdin.close()


@dataclass
class Group:
    """A group, and the members that it should have according to the script."""

    stage: Stage
    name: str
    flavour: Flavour
    config: dict[str, str] = field(default_factory=dict)
    members: list[Member] = field(default_factory=list)
    commit: str = "auto"
    protocol_type: str = ""
    """Set for groups that are not consumer groups."""

    def remove(self, member: Member) -> None:
        """Expect the group without this member."""
        if member in self.members:
            self.members.remove(member)

    def member(
        self,
        label: str,
        config: Mapping[str, str] | None = None,
        *,
        flavour: Flavour | None = None,
        instance: str | None = None,
    ) -> Member:
        """Start a process that can be a member; it is not one until it subscribes."""
        changes = {**self.config, **(config or {})}
        if instance is not None:
            changes["group.instance.id"] = instance
        if self.commit != "auto":
            changes["enable.auto.commit"] = "false"
        return self.stage.start(self, label, flavour or self.flavour, changes)

    def several(self, count: int, *, static: bool = False) -> list[Member]:
        """Start the processes of some members, m1 and so on; static ones have their names as instance ids."""
        labels = [f"m{at}" for at in range(1, count + 1)]
        return [self.member(label, instance=label if static else None) for label in labels]

    def expected(self) -> tuple[list[str], list[list[Any]]]:
        """The client ids of the members, and all partitions of what they subscribe to."""
        topics = sorted({topic for member in self.members for topic in member.topics})
        partitions = [[topic, at] for topic in topics for at in range(self.stage.topics[topic])]
        return sorted(member.label for member in self.members), partitions

    def seen(self) -> tuple[Any, ...]:
        """The broker's description of it: state, client ids, owned partitions, who owns what."""
        try:
            told = self.stage.operator.ask("describe", group=self.name, type=self.protocol_type)
        except OperatorError as error:
            if "GroupIdNotFound" in str(error):
                return "Dead", [], [], []
            if "TimeoutException" in str(error):  # a broker is frozen
                return "Unknown", [], [], []
            raise
        members = told["members"]
        owned = sorted(partition for member in members for partition in member["partitions"])
        who = sorted((member["member_id"], sorted(member["partitions"])) for member in members)
        return told["state"], sorted(member["client_id"] for member in members), owned, who

    def owned_by(self, label: str) -> set[tuple[str, int]]:
        """The partitions of a member of a group of consumers."""
        members = self.stage.operator.ask("describe", group=self.name, type="")["members"]
        return {(topic, at) for each in members if each["client_id"] == label for topic, at in each["partitions"]}

    def seen_members(self) -> int:
        """How many members the broker lists while the group is stable; 0 while it is not."""
        state, labels, _, _ = self.seen()
        return len(labels) if state == "Stable" else 0

    def at_rest(self) -> bool:
        """Whether it is stable with exactly the expected members and all partitions owned, or empty if none are
        expected."""
        labels, partitions = self.expected()
        state, seen, owned, _ = self.seen()
        if not labels:
            return state in ("Empty", "Dead") or (bool(self.protocol_type) and state == "Stable")
        return bool(state == "Stable" and seen == labels and owned == partitions)

    def settle(self, still_s: float = STILL_S) -> None:
        """Wait until it is at rest and has been so, unchanged, for a while."""
        since, last = time.monotonic(), None

        def still() -> bool:
            nonlocal since, last
            seen = self.seen() if self.at_rest() else None
            if seen is None or seen != last:
                since, last = time.monotonic(), seen
            return seen is not None and time.monotonic() - since > still_s

        until(still, lambda: f"{self.name} is at rest as {self.expected()}; it is {self.seen()}")


class Stage:
    """One scenario's topics, groups and notes, on a cluster that it may share: all names begin with the scenario's."""

    def __init__(self, name: str, bootstrap: str, operator: Operator, folder: Path, cluster: Any = None) -> None:
        self.name = name
        self.bootstrap = bootstrap
        self.operator = operator
        self.cluster = cluster
        self.road: Road | None = None
        """A slow connection to the broker, or one that can be cut."""
        self.config: dict[str, str] = {}
        """Settings of all members, unless a script sets others."""
        self.topics: dict[str, int] = {}
        self.topic_ids: dict[str, str] = {}
        """Includes those of topics deleted since: KIP-848's records name topics only by id."""
        self.truth: list[dict[str, Any]] = []
        self.calm: list[dict[str, Any]] = []
        self.processes: list[subprocess.Popen[Any]] = []
        """Processes other than members, ended with the stage."""
        self.folder = folder
        self._members: list[Member] = []
        self._ended = threading.Event()
        self._fed: list[str] = []
        self.dry: set[tuple[str, int]] = set()
        """Partitions to which nothing more is written."""
        self._feeder = threading.Thread(target=self._feed, daemon=True)
        self._feeder.start()

    # --- what there is

    def topic(self, name: str, partitions: int = 4, *, idle: bool = False) -> str:
        """Create a topic; records trickle into it unless it is idle."""
        full = f"{self.name}.{name}"
        told = self.operator.ask("create", topic=full, partitions=partitions)
        self.topic_ids[full] = told["topic_id"]
        self.topics[full] = partitions
        if not idle:
            self._fed.append(full)
        return full

    def rest(self, topic: str) -> None:
        """Write nothing more to it."""
        self._fed.remove(topic)

    def add_partitions(self, topic: str, partitions: int) -> None:
        """Add partitions."""
        self.operator.ask("add_partitions", topic=topic, partitions=partitions)
        self.topics[topic] = partitions

    def delete_topic(self, topic: str) -> None:
        """Delete it."""
        if topic in self._fed:
            self._fed.remove(topic)
            time.sleep(0.3)
        self.operator.ask("delete_topic", topic=topic)
        del self.topics[topic]

    def group(
        self, flavour: Flavour, config: Mapping[str, str] | None = None, *, name: str = "g", commit: str = "auto"
    ) -> Group:
        """A group, with its members' settings in addition to `clients.QUICK`."""
        return Group(self, f"{self.name}.{name}", flavour, {**self.config, **(config or {})}, commit=commit)

    def start(self, group: Group, label: str, flavour: Flavour, changes: dict[str, str]) -> Member:
        """Start a member's process and wait until it takes commands."""
        config = flavour.config(self.bootstrap, group.name, label, changes)
        kind = "share" if flavour.protocol == "share" else "consumer"
        spec = {"kind": kind, "commit": group.commit, "config": config}
        errors = self.folder / f"{self.name}-{label}-{len(self._members)}.err"
        member = Member(group, label, flavour, spec, errors)
        self._members.append(member)
        member.wait_for("ready")
        return member

    def _feed(self) -> None:
        producer = Producer({"bootstrap.servers": self.bootstrap, "topic.metadata.refresh.interval.ms": 1_000})
        count = 0
        while not self._ended.wait(0.1):
            for topic in list(self._fed):
                partition = count % self.topics.get(topic, 1)
                if (topic, partition) in self.dry:
                    continue
                with contextlib.suppress(KafkaException):  # a new partition that the producer does not know yet
                    producer.produce(topic, str(count), partition=partition)
            count += 1
            producer.poll(0)
        producer.flush(PATIENCE_S)

    # --- what happens

    @contextlib.contextmanager
    def happens(
        self, group: Group, cause: str, about: str, *, also: Iterable[str] = (), pattern: str | None = None
    ) -> Iterator[None]:
        """What is done in the block is this cause, and every row of the following window is its consequence.

        `also`: other causes that rows of the window may have, such as further members that join while a group starts.
        `pattern`: what they all form together.
        """
        if group.flavour.client == "kafka-python":
            # A poll that ends just before its JoinGroup is answered forgets it: the next one joins again.
            also = [*also, "leader_rejoined"]
        at_ms = wall_clock_ms()
        yield
        group.settle()
        entry: dict[str, Any] = {"group": group.name, "cause": cause, "at_ms": at_ms, "until_ms": wall_clock_ms()}
        more = {"also": list(also), "pattern": pattern}
        self.truth.append({**entry, "about": about, **{key: value for key, value in more.items() if value}})
        self.go_on()

    @contextlib.contextmanager
    def perhaps(self, group: Group, cause: str, about: str, *, also: Iterable[str] = ()) -> Iterator[None]:
        """What is done in the block is this cause if the group rebalances at all: the coordinators' log shows whether
        it does."""
        with self.happens(group, cause, about, also=also):
            yield
        self.truth[-1]["if_logged"] = True

    @contextlib.contextmanager
    def quiet(self, group: Group, about: str) -> Iterator[None]:
        """What is done in the block is expected to cause no rebalance."""
        at_ms = wall_clock_ms()
        yield
        group.settle()
        self.calm.append({"group": group.name, "at_ms": at_ms, "until_ms": wall_clock_ms(), "about": about})
        self.go_on()

    def go_on(self, seconds: float = 2.0) -> None:
        """Let the members consume and commit for a while."""
        time.sleep(seconds)

    def running(
        self,
        flavour: Flavour,
        count: int,
        config: Mapping[str, str] | None = None,
        *,
        partitions: int = 4,
        idle: bool = False,
        static: bool = False,
        commit: str = "auto",
        for_s: float = 0,
    ) -> tuple[str, Group, list[Member]]:
        """A topic, and a group of this many members that read it, which started at once and have run for `for_s`."""
        topic = self.topic("t", partitions, idle=idle)
        group = self.group(flavour, config, commit=commit)
        members = group.several(count, static=static)
        self.started(group, members, topic)
        if for_s:
            self.go_on(for_s)
        return topic, group, members

    def started(self, group: Group, members: list[Member], *topics: str) -> None:
        """Make all these subscribe at once, as the group's start."""
        also = ["joined"] if len(members) > 1 else []
        counted = "a member subscribes" if len(members) == 1 else f"{len(members)} members subscribe at once"
        with self.happens(group, "started", counted, also=also):
            for member in members:
                member.subscribe(*topics)

    def killed(self, member: Member, *, also: Iterable[str] = ()) -> None:
        """SIGKILL for a member of a group that is at rest."""
        with self.happens(member.group, "session_expired", f"{member.label} gets SIGKILL", also=also):
            member.crash()

    def left(self, member: Member, *, also: Iterable[str] = ()) -> None:
        """A member of a group that is at rest leaves cleanly."""
        with self.happens(member.group, "left", f"{member.label} closes its consumer", also=also):
            member.leave()

    def all_left(self, group: Group, who: str = "all") -> None:
        """The whole group is stopped cleanly."""
        with self.happens(group, "left", f"{who} close their consumers"):
            for member in list(group.members):
                member.leave()

    def overslept(self, member: Member, seconds: int, poll_s: int = 10, *, also: Iterable[str] = ()) -> None:
        """A member handles a record for longer than its poll interval, and then comes back."""
        about = f"{member.label} handles a record for {seconds} s, its poll interval is {poll_s} s"
        with self.happens(member.group, "poll_interval_exceeded", about, also=also):
            member.oversleep(seconds * 1000)
        with self.happens(member.group, "joined", f"{member.label} polls again"):
            member.group.members.append(member)

    # --- the end

    def ends(self) -> dict[str, list[list[int]]]:
        """Start and end of each partition's log."""
        return {topic: self.operator.ask("ends", topic=topic) for topic in self.topics}

    def close(self) -> None:
        """End everything that is still running, and stop writing records."""
        self._ended.set()
        for member in self._members:
            member.end()
        for process in self.processes:
            process.kill()
            process.wait()
        self._feeder.join(PATIENCE_S)


def until(condition: Callable[[], bool], what: str | Callable[[], str]) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            raise StageError(f"not within {PATIENCE_S:.0f} s: {what if isinstance(what, str) else what()}")
        time.sleep(0.25)
