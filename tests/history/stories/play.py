"""Plays a story with real clients, and notes what was done when: the acts, from which `truth.py` derives what is
expected.

An act is a JSON object: `do`, `members` (their labels, which are their client ids), `at_ms`, `until_ms`, other details,
and `settled` if the script waited for the group to be at rest. `until_ms` is when that was. A step may have several
acts; `of` names the step that they are part of.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

from muster.clock import wall_clock_ms
from tests.history.scenarios.clients import ASSIGNORS, JAVA_ASSIGNORS, Flavour
from tests.history.scenarios.cluster_plays import Nodes
from tests.history.scenarios.stage import Group, Member, Stage, until
from tests.history.scenarios.workers import DELAY_S, SINK, Worker
from tests.history.stories.draw import Step, Story

OUTSIDER = Flavour("confluent", "range")
STILL_S = 3.0
"""How long a group has to stay the same to be at rest: longer than in scenarios, for busy machines."""

PACE_S = 3.0
"""The pause between two steps, in which members commit a few times."""


def flavour_of(kind: str) -> Flavour:
    """`kafka-python-range` is the client kafka-python with the protocol `range`."""
    client, _, protocol = kind.rpartition("-")
    return Flavour(client, protocol)


class Player:
    """Carries out one story on a stage."""

    def __init__(self, stage: Stage, story: Story) -> None:
        self.stage = stage
        self.story = story
        self.acts: list[dict[str, Any]] = []
        self.cast: dict[str, dict[str, Any]] = {}
        """Members by their labels: client, protocol, whether they have an instance id."""
        self.members: dict[str, Member] = {}
        self.flavours = [flavour_of(kind) for kind in story.clients]
        config = dict(story.config)
        if self.flavours[0].next_generation:
            config.pop("session.timeout.ms")
        self.group: Group = stage.group(self.flavours[0], config, commit=story.commit)
        if self.is_connect:
            self.group.protocol_type = "connect"
        self._of: dict[str, Any] | None = None
        self._steps = 0

    @property
    def is_connect(self) -> bool:
        """Whether the members are workers of Kafka Connect."""
        return self.flavours[0].client == "connect"

    def play(self) -> None:
        """Play all steps."""
        self.stage.topic("t", self.story.partitions)
        if self.story.traffic == "never":
            self._rest()
        if self.story.theme == "static" and self.flavours[0].next_generation:
            given = {"name": "consumer.session.timeout.ms", "value": "30000"}
            self.stage.operator.ask("group_config", group=self.group.name, **given)
        if isinstance(self.stage.cluster, Nodes):
            self.stage.cluster.move(self.group, 2)  # node 1 is the controller, and its data is read
        for step in self.story.steps:
            do: Callable[[Step], None] = getattr(self, f"_do_{step['do']}")
            do(step)
            self.stage.go_on(PACE_S)

    # --- notes

    @contextlib.contextmanager
    def _act(self, do: str, *labels: str, settles: bool = True, **what: Any) -> Iterator[None]:
        """Note what is done in the block, and wait until the group is at rest if it `settles`."""
        act: dict[str, Any] = {"do": do, "members": list(labels), "at_ms": wall_clock_ms(), **what}
        if self._of is not None:
            act["of"] = self._of
        self.acts.append(act)
        yield
        if settles:
            self.group.settle(STILL_S)
        if settles and self.is_connect:
            time.sleep(DELAY_S + 2)  # after that, the tasks of a lost worker are given to others
            self.group.settle(STILL_S)
        act["until_ms"] = wall_clock_ms()
        act["settled"] = settles

    @contextlib.contextmanager
    def _step(self, what: str, **more: Any) -> Iterator[None]:
        """The acts in the block are parts of one step."""
        self._steps += 1
        self._of = {"step": self._steps, "what": what, **more}
        yield
        self._of = None

    # --- who is there

    def _name(self, topic: str) -> str:
        return f"{self.stage.name}.{topic}"

    def _process(self, label: str, *, static: bool = False, mixed: bool = False) -> Member:
        """A process that is not a member yet."""
        flavour = self.flavours[(int(label[1:]) - 1) % len(self.flavours)]
        changes: dict[str, str] = {}
        if self.is_connect:
            self.cast[label] = {"client": "connect", "protocol": flavour.protocol, "static": False}
            self.members[label] = worker = Worker(self.group, label, self.story.config)
            return worker
        if mixed:
            names = JAVA_ASSIGNORS if flavour.client == "java" else ASSIGNORS
            other = "org.apache.kafka.clients.consumer.RoundRobinAssignor" if flavour.client == "java" else "roundrobin"
            changes["partition.assignment.strategy"] = f"{other},{names[flavour.protocol]}"
        self.cast[label] = {"client": flavour.client, "protocol": flavour.protocol, "static": static}
        member = self.group.member(label, changes, flavour=flavour, instance=label if static else None)
        self.members[label] = member
        return member

    def _enter(self, member: Member, topics: list[str], *, pattern: bool = False) -> None:
        names = [self._name(topic) for topic in topics]
        if not pattern:
            member.subscribe(*names)
            return
        by = "regex" if member.flavour.next_generation else "pattern"
        member.match(f"{self.stage.name}\\..*", *names, by=by)

    def _arrives(self, do: str, step: Step, label: str, **what: Any) -> None:
        member = self._process(label, static=step.get("static", False), mixed=step.get("mixed", False))
        what = {**what, "pattern": step.get("pattern", False), "settles": step.get("settles", True)}
        with self._act(do, label, topics=step["topics"], **what):
            self._enter(member, step["topics"], pattern=step.get("pattern", False))

    # --- members come and go

    def _do_start(self, step: Step) -> None:
        members = [self._process(label, static=step.get("static", False)) for label in step["members"]]
        self._start(step, members)

    def _start(self, step: Step, members: list[Member]) -> None:
        pattern = step.get("pattern", False)
        with self._act("start", *step["members"], topics=step["topics"], pattern=pattern):
            for member in members:
                self._enter(member, step["topics"], pattern=pattern)

    def _do_join(self, step: Step) -> None:
        self._arrives("join", step, step["member"], mixed=step.get("mixed", False))

    def _do_back(self, step: Step) -> None:
        self._arrives("back", step, step["member"])

    def _do_leave(self, step: Step) -> None:
        more = {"how": step["how"]} if "how" in step else {}
        with self._act("leave", step["member"], settles=step.get("settles", True), **more):
            self.members[step["member"]].leave(**more)

    def _do_kill(self, step: Step) -> None:
        with self._act("kill", step["member"], settles=step.get("settles", True)):
            self.members[step["member"]].crash()

    def _do_freeze(self, step: Step) -> None:
        member = self.members[step["member"]]
        with self._step("freeze"):
            with self._act("freeze", member.label):
                member.freeze()
            self.stage.go_on()
            with self._act("thaw", member.label):
                member.thaw()

    def _do_blink(self, step: Step) -> None:
        member = self.members[step["member"]]
        with self._act("blink", member.label, seconds=step["seconds"]):
            os.kill(member.process.pid, signal.SIGSTOP)
            time.sleep(step["seconds"])
            os.kill(member.process.pid, signal.SIGCONT)

    def _do_slow(self, step: Step) -> None:
        member = self.members[step["member"]]
        with self._step("slow", seconds=step["seconds"]):
            settles = step.get("settles", True)  # a member that returns soon is never seen to be absent
            with self._act("slow", member.label, seconds=step["seconds"], settles=settles):
                member.oversleep(step["seconds"] * 1_000)
                time.sleep(0 if settles else step["seconds"])
            with self._act("polls_again", member.label):
                self.group.members.append(member)

    def _do_outage(self, step: Step) -> None:
        """The handlers of several members take too long at the same time, because a service that they call does not
        answer."""
        members = [self.members[label] for label in step["members"]]
        with self._step("outage", seconds=step["seconds"]):
            for member in members:
                with self._act("slow", member.label, seconds=step["seconds"], settles=False):
                    member.oversleep(step["seconds"] * 1_000)
            time.sleep(step["seconds"])
            with self._act("polls_again", *step["members"]):
                self.group.members += members

    def _do_unsubscribe(self, step: Step) -> None:
        with self._act("leave", step["member"]):
            self.members[step["member"]].unsubscribe()

    def _do_subscribe_again(self, step: Step) -> None:
        with self._act("back", step["member"], topics=step["topics"]):
            self._enter(self.members[step["member"]], step["topics"])

    def _do_busy(self, step: Step) -> None:
        with self._act("busy", step["member"], seconds=step["seconds"]):
            self.members[step["member"]].tell("sleep", ms=step["seconds"] * 1_000)
            time.sleep(step["seconds"])

    def _do_held(self, step: Step) -> None:
        member = self._process(step["member"])
        busy, stands_still = self.members[step["busy"]], step.get("stands_still", False)
        if stands_still:
            os.kill(busy.process.pid, signal.SIGSTOP)
        else:
            busy.tell("sleep", ms=step["seconds"] * 1_000)
            time.sleep(0.5)
        more = {"held_by": step["busy"], "seconds": step["seconds"]}
        with self._act("join", member.label, topics=step["topics"], **more):
            self._enter(member, step["topics"])
            if stands_still:
                time.sleep(step["seconds"])
                os.kill(busy.process.pid, signal.SIGCONT)

    def _do_stick(self, step: Step) -> None:
        with self._act("stick", step["member"]):
            self.members[step["member"]].tell("pause")

    def _do_twin(self, step: Step) -> None:
        """Another process with the instance id of a running one: the broker fences the older one, which ends."""
        label = step["member"]
        fenced = self.members[label]
        member = self._process(label, static=True)
        with self._act("twin", label):
            self.group.remove(fenced)
            self._enter(member, ["t"])
            fenced.process.wait(60)

    def _do_refused(self, step: Step) -> None:
        """A process whose assignors the group does not support: the broker refuses it each time it asks."""
        label, flavour = step["member"], flavour_of(step["client"])
        with self._act("refused", label, client=step["client"], seconds=step["seconds"]):
            other = self.group.member(label, flavour=flavour)
            other.tell("subscribe", topics=[self._name(topic) for topic in step["topics"]])
            time.sleep(step["seconds"])
            other.end()

    def _do_rejoin(self, step: Step) -> None:
        with self._act("rejoin", step["member"]):
            self.members[step["member"]].tell("rejoin", reason=None)
            time.sleep(2)

    def _do_dry_up(self, step: Step) -> None:
        """The partitions that this member owns get no more records; those of others do."""
        with self._act("dry_up", step["member"], seconds=step["seconds"], settles=False):
            self.stage.dry |= self.group.owned_by(step["member"])
            time.sleep(step["seconds"])

    # --- over and over

    def _do_crash_loop(self, step: Step) -> None:
        label = step["member"]
        with self._step("crash_loop", times=step["times"]):
            for _ in range(step["times"]):
                former = self.members[label]
                topics = former.topics
                another = self._process(label)
                with self._act("kill", label, settles=False):
                    former.crash()
                with self._act("back", label, topics=topics):
                    another.subscribe(*topics)
                self.stage.go_on(step.get("rest_s", 3))

    def _do_flap(self, step: Step) -> None:
        label = step["member"]
        with self._step("flap", times=step["times"]):
            for _ in range(step["times"]):
                former = self.members[label]
                with self._act("leave", label):
                    former.leave()
                another = self._process(label)
                with self._act("back", label, topics=former.topics):
                    another.subscribe(*former.topics)
                self.stage.go_on(step.get("rest_s", 3))

    def _do_deploy(self, step: Step) -> None:
        with self._step("deploy", how=step["how"]):
            if step["how"] == "at_once":
                self._stop(step["members"])
                members = [self._process(label) for label in step["members"]]
                topics = [name.rpartition(".")[2] for name in self.members[step["members"][0]].topics] or ["t"]
                self._start({**step, "topics": topics}, members)
            else:
                for label in step["members"]:
                    self._redeploy(label, step)

    def _redeploy(self, label: str, step: Step) -> None:
        former, static = self.members[label], step.get("static", False)
        with self._act("leave", label, settles=False):
            former.leave()
        time.sleep(step["pause_s"])
        another = self._process(label, static=static)
        with self._act("back", label, topics=former.topics):
            another.subscribe(*former.topics)

    def _do_stop(self, step: Step) -> None:
        self._stop(step["members"])

    def _stop(self, labels: list[str]) -> None:
        members = [self.members[label] for label in labels]
        with self._act("leave", *labels, all=True):
            for member in members:
                self.group.remove(member)
                if self.is_connect:
                    member.process.terminate()
                else:
                    member.tell("close", how="default", timeout_ms=30_000)
            for member in members:
                member.process.wait(60)

    # --- topics and offsets

    def _do_create(self, step: Step) -> None:
        with self._act("create", topic=step["topic"], matching=step.get("matching", False)):
            name = self.stage.topic(step["topic"], step["partitions"], idle=not self._fed)
            if step.get("matching"):
                for member in self.group.members:
                    member.topics = [*member.topics, name]

    def _do_subscribe(self, step: Step) -> None:
        with self._act("subscribe", step["member"], topics=step["topics"]):
            self._enter(self.members[step["member"]], step["topics"])

    def _do_delete_topic(self, step: Step) -> None:
        name = self._name(step["topic"])
        readers = [member for member in self.group.members if name in member.topics]
        with self._act("delete_topic", *(member.label for member in readers), topic=step["topic"]):
            for member in readers:
                member.topics = [topic for topic in member.topics if topic != name]
            self.stage.delete_topic(name)

    def _do_add_partitions(self, step: Step) -> None:
        with self._act("add_partitions", topic=step["topic"], partitions=step["partitions"]):
            self.stage.add_partitions(self._name(step["topic"]), step["partitions"])

    def _do_rest(self, step: Step) -> None:
        with self._act("rest", settles=False):
            self._rest()

    @property
    def _fed(self) -> bool:
        return not any(act["do"] == "rest" for act in self.acts) and self.story.traffic != "never"

    def _rest(self) -> None:
        for topic in list(self.stage.topics):
            with contextlib.suppress(ValueError):  # it is at rest already
                self.stage.rest(topic)

    def _do_reset(self, step: Step) -> None:
        name = self._name("t")
        offset = 0 if self.story.traffic == "never" else step["offset"]
        with self._act("reset", offset=offset):
            for partition in range(self.stage.topics[name]):
                self.stage.operator.ask(
                    "set_offset", group=self.group.name, topic=name, partition=partition, offset=offset
                )

    def _do_outsider(self, step: Step) -> None:
        other = self.group.member("outsider", flavour=OUTSIDER)
        with self._act("outsider", "outsider", seconds=step["seconds"]):
            other.tell("assign", partitions=[[self._name("t"), 0], [self._name("t"), 1]])
            time.sleep(step["seconds"])
            other.leave()

    def _do_restart_broker(self, step: Step) -> None:
        with self._act("restart_broker", seconds=step["seconds"]):
            self.stage.cluster.kill(1)
            time.sleep(step["seconds"])
            self.stage.cluster.restart(1)
            self.stage.go_on(15)

    def _do_lead(self, step: Step) -> None:
        with self._act("lead", node=step["node"]):
            self.stage.cluster.move(self.group, step["node"])

    def _do_lose_coordinator(self, step: Step) -> None:
        """`how`: `kill` for SIGKILL, `stop` for a clean shutdown. Another broker takes over meanwhile."""
        nodes = self.stage.cluster
        node = nodes.coordinator(self.group)
        with self._act("lose_coordinator", node=node, how=step["how"], seconds=step["seconds"]):
            if step["how"] == "kill":
                nodes.kill(node)
            else:
                nodes.stop(node)
            time.sleep(step["seconds"])
            nodes.restart(node)
            self.stage.go_on(5)

    # --- connectors

    def _do_connector(self, step: Step) -> None:
        """Create a connector that reads the topic in a group of its own, or change its number of tasks."""
        name, tasks = step["name"], step["tasks"]
        config = {
            "connector.class": SINK,
            "topics": self._name("t"),
            "tasks.max": str(tasks),
            "file": str(self.stage.folder / f"{self.stage.name}.{name}.out"),
            "consumer.override.group.id": f"{self.stage.name}.{name}",
            "consumer.override.session.timeout.ms": self.story.config["session.timeout.ms"],
            "consumer.override.heartbeat.interval.ms": "1000",
        }
        with self._act("connector", name=name, tasks=tasks):
            until(lambda: self._live.configures(name, config), f"the workers take the connector {name}")
            until(lambda: self._live.running(name) == tasks, f"{tasks} tasks of {name} run")

    @property
    def _live(self) -> Worker:
        worker = self.group.members[0]
        assert isinstance(worker, Worker)
        return worker

    def _do_wait(self, step: Step) -> None:
        with self._act("wait", seconds=step["seconds"]):
            time.sleep(step["seconds"])
