"""The main job: one group of Python members and a Spark query, changed under load, checked to the end."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from muster.client.async_admin import AsyncAdmin
from muster.client.async_producer import AsyncProducer
from muster.client.core.admin import NewTopic
from muster.client.driver import wall_clock_ms
from muster.demo.examination import Examination, examine
from muster.demo.flights import FLIGHTS, QUICK_FLIGHTS, flights
from muster.demo.plan import Deed, Pace, Step
from muster.demo.processes import EmbeddedBroker, Process
from muster.demo.report import Outage
from muster.demo.story import Snapshot, Story
from muster.demo.view import View
from muster.demo.watch import Watcher, tail_events
from muster.demo.way import Way
from muster.errors import MusterError

PARTITIONS = 8
SPARK = "spark"

Steps = list[tuple[Step, Callable[[], Awaitable[None]]]]
"""What happens, in order, and what does it."""

_START_TIMEOUT_S = 300
_STALL_TIMEOUT_S = 90


class DemoError(MusterError):
    """The demo could not go on. The message says why."""


@dataclass(slots=True)
class Options:
    """What the command line says. `way` None means a broker of the demo's own."""

    out: Path
    data_dir: Path
    quick: bool = False
    way: Way | None = None
    spark_master: str = "local[2,4]"
    group: str = "delays"
    topic: str = "flights"

    @property
    def events(self) -> int:
        """How many flights are sent."""
        return QUICK_FLIGHTS if self.quick else FLIGHTS

    @property
    def duration_s(self) -> float:
        """How long sending them takes, if nothing holds it back."""
        return 30.0 if self.quick else 120.0


@dataclass
class Run:
    """What a run leaves behind for the judgement and the report."""

    options: Options
    story: Story
    member_files: dict[str, Path] = field(default_factory=dict)
    killed: set[str] = field(default_factory=set)
    ends: dict[int, int] = field(default_factory=dict)
    spark_result: dict[str, Any] = field(default_factory=dict)
    sent: int = 0
    wall_time_s: float = 0.0
    deeds: list[Deed] = field(default_factory=list)
    examination: Examination | None = None

    @property
    def spark_out(self) -> Path:
        """Where the Spark query keeps its output and its checkpoint."""
        return self.options.out / "spark"


class Job:
    """Runs it. `run` returns when everything was handled and all processes have ended; it ends them in any case."""

    def __init__(self, options: Options, view: View) -> None:
        self._options = options
        self._view = view
        self._members: dict[str, Process] = {}
        self._broker: EmbeddedBroker | None = None
        self._way = options.way or Way("")
        self._steps_done = 0
        self._stack = AsyncExitStack()
        self.run_record = Run(options, Story(options.group, has_events=options.way is None))

    @property
    def _story(self) -> Story:
        return self.run_record.story

    async def run(self) -> Run:
        """Run the job to its end."""
        started = time.monotonic()
        (self._options.out / "logs").mkdir(exist_ok=True)
        async with self._stack:
            await self._start_broker()
            await self._create_topic()
            watcher = Watcher(self._way, self._options.group, self._options.topic, PARTITIONS)
            async with asyncio.TaskGroup() as tasks:
                background = [
                    tasks.create_task(watcher.run(self._on_snapshot)),
                    tasks.create_task(self._watch_processes()),
                ]
                if self._broker is not None:
                    background.append(tasks.create_task(tail_events(self._broker.events, self._on_event)))
                spark = await self._start_members()
                async with asyncio.TaskGroup() as work:
                    steps = self._steps()
                    pace = Pace(self._options.events, self._options.duration_s, len(steps))
                    work.create_task(self._produce(pace))
                    work.create_task(self._do_steps(pace, steps))
                await self._wait_until_handled()
                await self._finish(spark)
                await self._examine()
                for task in background:
                    task.cancel()
        self._story.finish(wall_clock_ms())
        self.run_record.wall_time_s = time.monotonic() - started
        return self.run_record

    # --- what is started ---------------------------------------------------------------------------------------------

    async def _start_broker(self) -> None:
        if self._options.way is None:
            self._broker = EmbeddedBroker(self._options.data_dir, self._options.out / "logs")
            self._stack.push_async_callback(self._broker.stop)
            await self._broker.start()
            self._way = Way(self._broker.bootstrap)
        self._view.note(f"broker at {self._way.bootstrap}")

    async def _create_topic(self) -> None:
        async with AsyncAdmin(self._way.settings(), client_id="muster-demo") as admin:
            topic = self._options.topic
            if topic in {listing.name for listing in await admin.list_topics()}:
                raise DemoError(f"there is a topic {topic} already: name another with --topic, and a new --group")
            outcome = (await admin.create_topics([NewTopic(topic, PARTITIONS, -1)]))[topic]
            if isinstance(outcome, Exception):
                raise outcome

    async def _start_members(self) -> Process:
        spark = await self._start_spark()
        for number in (1, 2, 3):
            await self._start_member(f"python-{number}")
        self._view.note("three Python members and a Spark query are joining group " + self._options.group)
        ready = json.loads(await spark.read_line(_START_TIMEOUT_S))
        if ready.get("event") != "ready":
            raise DemoError(f"the Spark query did not start: {ready}")
        await self._settled(4, "the four members", _START_TIMEOUT_S)
        return spark

    async def _start_member(self, name: str) -> None:
        file = self._options.out / f"{name}.jsonl"
        self.run_record.member_files[name] = file
        arguments = [*self._way.arguments(), "--group", self._options.group, "--topic", self._options.topic]
        arguments += ["--name", name, "--file", str(file)]
        log = self._options.out / "logs" / f"{name}.log"
        self._members[name] = await Process.start(name, ["-m", "muster.demo.member", *arguments], log)
        self._stack.push_async_callback(self._members[name].stop)

    async def _start_spark(self) -> Process:
        arguments = [*self._way.arguments(), "--group", self._options.group, "--topic", self._options.topic]
        arguments += ["--name", SPARK, "--out", str(self.run_record.spark_out), "--master", self._options.spark_master]
        log = self._options.out / "logs" / f"{SPARK}.log"
        process = await Process.start("the Spark query", ["-m", "muster.demo.spark_query", *arguments], log)
        self._members[SPARK] = process
        self._stack.push_async_callback(process.stop)
        return process

    # --- what is watched ---------------------------------------------------------------------------------------------

    def _on_snapshot(self, snapshot: Snapshot) -> None:
        self._story.on_snapshot(snapshot)
        self._view.progress(self._story, self.run_record.sent, self._options.events)

    def _on_event(self, event: dict[str, Any]) -> None:
        rebalance = self._story.on_event(event)
        if rebalance is not None:
            done = f"rebalance to generation {rebalance.generation} in {rebalance.duration_ms} ms"
            self._view.note(f"{done}: {rebalance.cause}")

    async def _watch_processes(self) -> None:
        while True:
            for process in self._members.values():
                process.check()
            if self._broker is not None:
                self._broker.check()
            await asyncio.sleep(0.5)

    async def _until(self, done: Callable[[], bool], what: str, timeout_s: float) -> None:
        """Wait for something that the snapshots show."""
        give_up = time.monotonic() + timeout_s
        while not done():
            if time.monotonic() > give_up:
                latest = self._story.latest
                raise DemoError(f"{what} did not happen within {timeout_s:.0f} s; the group was last seen as {latest}")
            await asyncio.sleep(0.1)

    async def _settled(self, members: int, who: str, timeout_s: float = 60) -> None:
        asked_at = wall_clock_ms()

        def settled() -> bool:
            latest = self._story.latest
            return latest is not None and latest.at_ms > asked_at and len(latest.members) == members and latest.settled

        await self._until(settled, f"a stable group of {who}", timeout_s)

    # --- what happens ------------------------------------------------------------------------------------------------

    async def _produce(self, pace: Pace) -> None:
        options = self._options
        async with AsyncProducer(self._way.settings(), client_id="muster-demo", linger_ms=20) as producer:
            started = time.monotonic()
            outcomes: list[asyncio.Future[Any]] = []
            for flight in flights(options.events):
                while self.run_record.sent >= pace.allowed(time.monotonic() - started, self._steps_done):
                    await asyncio.sleep(0.02)
                outcomes.append(await producer.send(options.topic, value=flight.value(), key=flight.key.encode()))
                self.run_record.sent += 1
            await producer.flush()
            for outcome in outcomes:
                await outcome
        self._view.note(f"all {self.run_record.sent:,} flights are written and acknowledged")

    def _steps(self) -> Steps:
        steps: Steps = [
            (Step.JOIN, self._join),
            (Step.KILL, self._kill),
            (Step.LEAVE, self._leave),
        ]
        if self._broker is not None:
            steps.append((Step.RESTART, self._restart))
        return steps

    async def _do_steps(self, pace: Pace, steps: Steps) -> None:
        for number, (step, act) in enumerate(steps):
            while self.run_record.sent < pace.share_of(number) * self._options.events:
                await asyncio.sleep(0.05)
            self._view.note(f"→ {step}")
            began = wall_clock_ms()
            await act()
            self.run_record.deeds.append(Deed(step, began, wall_clock_ms()))
            self._steps_done += 1

    async def _join(self) -> None:
        await self._start_member("python-4")
        await self._settled(5, "five members")

    async def _kill(self) -> None:
        self.run_record.killed.add("python-2")
        await self._members["python-2"].kill()
        await self._settled(4, "the four that are left")

    async def _leave(self) -> None:
        await self._members["python-1"].stop()
        await self._settled(3, "the three that are left")

    async def _restart(self) -> None:
        assert self._broker is not None
        down = wall_clock_ms()
        await self._broker.kill()
        await asyncio.sleep(1)
        await self._broker.start()
        self._story.outages.append(Outage(down, wall_clock_ms(), "broker killed and started again"))
        await self._settled(3, "the same three members")

    # --- how it ends -------------------------------------------------------------------------------------------------

    async def _wait_until_handled(self) -> None:
        best, give_up = -1, 0.0
        while True:
            latest = self._story.latest
            if latest is not None and sum(latest.ends.values()) >= self.run_record.sent and latest.lag == 0:
                self.run_record.ends = dict(latest.ends)
                self._view.note("everything is handled and committed")
                return
            handled = sum(latest.positions.values()) if latest else 0
            if handled > best:
                best, give_up = handled, time.monotonic() + _STALL_TIMEOUT_S
            if time.monotonic() > give_up:
                raise DemoError(f"the group stopped at {handled} of {self.run_record.sent} records; {latest}")
            await asyncio.sleep(0.2)

    async def _finish(self, spark: Process) -> None:
        for name, process in self._members.items():
            if name != SPARK:
                await process.stop()
        self._view.note("the members have left; Spark computes the delays from what was handled")
        spark.expected_to_end = True
        files = [str(file) for file in self.run_record.member_files.values()]
        await spark.say(json.dumps({"do": "finish", "files": files}))
        result = json.loads(await spark.read_line(300))
        if result.get("event") != "result":
            raise DemoError(f"the Spark job failed: {result.get('error', result)}")
        self.run_record.spark_result = result

    async def _examine(self) -> None:
        self._view.note("the doctor reads the group's history")
        run, group = self.run_record, self._options.group
        run.examination = await asyncio.to_thread(examine, self._way, group, tuple(run.deeds))
