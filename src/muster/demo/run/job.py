"""The demo's run: a pipeline on Spark and a group that Spark shares with Python, changed under load and checked."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from muster.client.admin.async_admin import AsyncAdmin
from muster.client.core.admin.admin import NewTopic
from muster.clock import wall_clock_ms
from muster.demo.course import Course, Outage
from muster.demo.data.events import FLIGHTS_STREAM, WEATHER_STREAM, StreamEvent, Truth, events
from muster.demo.data.flights import FLIGHTS, QUICK_FLIGHTS
from muster.demo.data.incoming_files import MOST, IncomingFiles
from muster.demo.data.names import SPARK, DemoNames
from muster.demo.run.cluster_access import ClusterAccess
from muster.demo.run.examination import CAUSES, Examination, Expected, examine
from muster.demo.run.plan import CompletedStep, DemoStep, FeedPace
from muster.demo.run.processes import EmbeddedBroker, Process
from muster.demo.run.watch import GroupsSnapshot, Watcher, tail_events
from muster.demo.show.story import Story
from muster.demo.show.view import ProgressView
from muster.errors import MusterError
from muster.model import TopicPartition

PIPELINE = "pipeline"
READER = "reader"

Steps = list[tuple[DemoStep, Callable[[], Awaitable[None]]]]
"""The steps, in order, each with the function that does it."""

_START_TIMEOUT_S = 300
_STALL_TIMEOUT_S = 240
_FILE_EVERY_S = 0.5
_FILES_AHEAD = 2
_LEAST = 250
"""Minimum flights per file: a batch of the feed takes as long for a few as for a thousand."""


class DemoError(MusterError):
    """The demo could not continue. The message says why."""


@dataclass(slots=True)
class DemoOptions:
    """The options of the command line. Without `access` the demo starts a broker."""

    out: Path
    data_dir: Path
    quick: bool = False
    access: ClusterAccess | None = None
    master: str = "local[2,4]"
    group: str = "delays"
    topic: str = "flights"

    @property
    def events(self) -> int:
        """How many flights are sent."""
        return QUICK_FLIGHTS if self.quick else FLIGHTS

    @property
    def duration_s(self) -> float:
        """How long sending takes if nothing holds it back."""
        return 24.0 if self.quick else 120.0

    @property
    def names(self) -> DemoNames:
        """The topics and groups."""
        return DemoNames.of(self.topic)


@dataclass
class DemoRun:
    """What a run records for the judgement and the report."""

    options: DemoOptions
    story: Story
    course: Course = field(default_factory=Course)
    member_files: dict[str, Path] = field(default_factory=dict)
    killed: set[str] = field(default_factory=set)
    ends: dict[int, int] = field(default_factory=dict)
    """For each partition of the flights' topic the offset after its last record."""
    sent: int = 0
    """Flights."""
    truth: Truth = field(default_factory=Truth)
    """The expected results, computed before the flights are sent."""
    hours: int = 0
    """Weather records."""
    wall_time_s: float = 0.0
    completed_steps: list[CompletedStep] = field(default_factory=list)
    examination: Examination | None = None

    @property
    def spark_out(self) -> Path:
        """Where the Spark queries keep their output and checkpoints."""
        return self.options.out / "spark"

    @property
    def collected(self) -> Path:
        """Where the results and the rebalances that Spark found are, as lines of JSON."""
        return self.spark_out / "collected"

    @property
    def groups(self) -> list[str]:
        """All groups of the run."""
        names = self.options.names
        return [self.options.group, *names.groups, names.reader_group]


class DemoJob:
    """Runs the demo. `run` returns when everything is handled and all processes have ended; it always ends them."""

    def __init__(self, options: DemoOptions, view: ProgressView) -> None:
        self._options = options
        self._view = view
        self._members: dict[str, Process] = {}
        self._broker: EmbeddedBroker | None = None
        self._access = options.access or ClusterAccess("")
        self._steps_done = 0
        self._stack = AsyncExitStack()
        self._driver_is_back: asyncio.Task[None] | None = None
        self._failed: DemoError | None = None
        """A query of a Spark program has ended with an error."""
        self._answers: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.run_record = DemoRun(options, Story(options.group, has_events=options.access is None))

    @property
    def _story(self) -> Story:
        return self.run_record.story

    @property
    def _course(self) -> Course:
        return self.run_record.course

    async def run(self) -> DemoRun:
        """Run the demo to its end."""
        started = time.monotonic()
        async with self._stack:
            await self._start_broker()
            await self._create_topics()
            watcher = Watcher(self._access, self._options.group, self._partitions())
            async with asyncio.TaskGroup() as tasks:
                background = [
                    tasks.create_task(watcher.run(self._on_snapshots)),
                    tasks.create_task(self._watch_processes()),
                ]
                if self._broker is not None:
                    background.append(tasks.create_task(tail_events(self._broker.events, self._on_event)))
                await self._start_members()
                async with asyncio.TaskGroup() as work:
                    steps = self._steps()
                    pace = FeedPace(self._options.events, self._options.duration_s, len(steps))
                    work.create_task(self._feed(pace))
                    work.create_task(self._do_steps(pace, steps))
                await self._wait_until_handled()
                await self._finish()
                for task in background:
                    task.cancel()
        self._story.finish(wall_clock_ms())
        self.run_record.wall_time_s = time.monotonic() - started
        return self.run_record

    # --- what is started ---------------------------------------------------------------------------------------------

    async def _start_broker(self) -> None:
        if self._options.access is None:
            self._broker = EmbeddedBroker(self._options.data_dir, self._options.out / "logs")
            self._stack.push_async_callback(self._broker.stop)
            await self._broker.start()
            self._access = ClusterAccess(self._broker.bootstrap)
        self._view.note(f"broker at {self._access.bootstrap}")

    async def _create_topics(self) -> None:
        names = self._options.names
        compacted = {names.windows: {"cleanup.policy": "compact"}}
        topics = [NewTopic(topic, count, -1, compacted.get(topic, {})) for topic, count in names.partitions.items()]
        async with AsyncAdmin(self._access.settings(), client_id="muster-demo") as admin:
            there = {listing.name for listing in await admin.list_topics()}
            for topic in topics:
                if topic.name in there:
                    raise DemoError(
                        f"topic {topic.name} already exists: choose another with --topic, and a new --group"
                    )
            await admin.create_topics(topics)

    async def _start_members(self) -> None:
        self._view.note("starting Spark twice: a program that feeds the topics, and the pipeline")
        (self.run_record.spark_out).mkdir()
        self._incoming = IncomingFiles(
            self.run_record.spark_out / "incoming",
            {FLIGHTS_STREAM: self._options.names.flights, WEATHER_STREAM: self._options.names.weather},
        )
        await asyncio.gather(self._start_spark(SPARK), self._start_spark(PIPELINE))
        for number in (1, 2, 3):
            await self._start_member(f"python-{number}")
        await self._start_member(READER, self._options.names.reader_group, self._options.names.results)
        self._view.note(f"three Python members are joining the Spark query in group {self._options.group}")
        await self._settled(4, "the four members", _START_TIMEOUT_S)

    async def _start_member(self, name: str, group: str = "", topics: tuple[str, ...] = ()) -> None:
        file = self._options.out / f"{name}.jsonl"
        if name != READER:
            self.run_record.member_files[name] = file
        arguments = [*self._access.arguments(), "--group", group or self._options.group]
        arguments += ["--topics", ",".join(topics or (self._options.topic,)), "--name", name, "--file", str(file)]
        await self._start_process(name, name, ["-m", "muster.demo.run.member", *arguments])

    async def _start_spark(self, name: str) -> None:
        """Start one of the two Spark programs; returns when its queries run."""
        arguments = [*self._access.arguments(), "--topic", self._options.topic, "--out", str(self.run_record.spark_out)]
        arguments += ["--master", self._options.master]
        if name == SPARK:
            arguments += ["--group", self._options.group]
        module = "muster.demo.run.feed" if name == SPARK else "muster.demo.run.pipeline"
        process = await self._start_process(name, f"the Spark program {module}", ["-m", module, *arguments])
        ready = _message(process, await process.read_line(_START_TIMEOUT_S))
        if ready.get("event") != "ready":
            raise DemoError(f"{process.name} did not start: {ready['error']} (see {process.log})")
        reader = asyncio.create_task(self._read(process))
        self._stack.callback(reader.cancel)

    async def _start_process(self, key: str, name: str, command: list[str]) -> Process:
        process = await Process.start(name, command, self._options.out / "logs" / f"{key}.log")
        self._members[key] = process
        self._stack.push_async_callback(process.stop)
        return process

    # --- what is watched ---------------------------------------------------------------------------------------------

    async def _read(self, process: Process) -> None:
        """Process what a Spark program prints: batches, and answers to commands."""
        try:
            while (line := await process.next_line()) is not None:
                await self._take(process, _message(process, line))
        except Exception as error:
            self._failed = error if isinstance(error, DemoError) else DemoError(f"{process.name}: {error!r}")

    async def _take(self, process: Process, message: dict[str, Any]) -> None:
        match message["event"]:
            case "batch":
                self._course.on_batch(wall_clock_ms(), message)
            case "failed":
                self._failed = DemoError(f"{process.name} failed: {message['error']} (see {process.log})")
            case _:
                await self._answers.put(message)

    async def _ask(self, key: str, timeout_s: float, **command: Any) -> None:
        """Send a Spark program a command, and wait until it is done.

        Raises:
            DemoError: it did not answer in time.
        """
        await self._members[key].say(json.dumps(command))
        try:
            async with asyncio.timeout(timeout_s):
                await self._answers.get()
        except TimeoutError:
            raise DemoError(f"{self._members[key].name} did not {command['do']} within {timeout_s:.0f} s") from None

    def _partitions(self) -> dict[str, list[TopicPartition]]:
        """What each group reads."""
        names = self._options.names
        topics = {self._options.group: (names.flights,), names.reader_group: names.results}
        topics |= {group: (topic,) for group, (_, topic) in names.groups.items()}
        return {
            group: [TopicPartition(topic, number) for topic in read for number in range(names.partitions[topic])]
            for group, read in topics.items()
        }

    def _on_snapshots(self, snapshot: GroupsSnapshot) -> None:
        self._story.on_snapshot(snapshot.shared)
        self._course.on_lags(snapshot.shared.at_ms, snapshot.lags)
        self._view.progress(self._story, self._course, self.run_record.sent, self._options.events)

    def _on_event(self, event: dict[str, Any]) -> None:
        rebalance = self._story.on_event(event)
        if rebalance is not None:
            done = f"rebalance to generation {rebalance.generation} in {rebalance.duration_ms} ms"
            self._view.note(f"{done}: {rebalance.cause}")

    async def _watch_processes(self) -> None:
        while True:
            if self._failed is not None:
                raise self._failed
            for process in self._members.values():
                process.check()
            if self._broker is not None:
                self._broker.check()
            await asyncio.sleep(0.5)

    async def _until(self, done: Callable[[], bool], what: str, timeout_s: float) -> None:
        """Wait for something that snapshots show."""
        give_up = time.monotonic() + timeout_s
        while not done():
            if time.monotonic() > give_up:
                latest = self._story.latest
                seen = f"the shared group was last seen as {latest}, lags as {self._course.lags}"
                raise DemoError(f"{what} did not happen within {timeout_s:.0f} s; {seen}")
            await asyncio.sleep(0.1)

    async def _settled(self, members: int, who: str, timeout_s: float = _STALL_TIMEOUT_S) -> None:
        asked_at = wall_clock_ms()

        def settled() -> bool:
            latest = self._story.latest
            return latest is not None and latest.at_ms > asked_at and len(latest.members) == members and latest.settled

        await self._until(settled, f"a stable group of {who}", timeout_s)

    # --- what happens ------------------------------------------------------------------------------------------------

    async def _feed(self, pace: FeedPace) -> None:
        """Write records to files at the given pace: the flights that are due, with the weather before them."""
        started, run = time.monotonic(), self.run_record
        rest = run.truth.watch(events(self._options.events))
        while run.sent < self._options.events:
            due = min(pace.allowed(time.monotonic() - started, self._steps_done) - run.sent, MOST)
            if due >= min(_LEAST, self._options.events - run.sent) and self._feed_keeps_up():
                some = await asyncio.to_thread(_take, rest, due)
                await asyncio.to_thread(self._incoming.write, some)
                flights = sum(each.stream == FLIGHTS_STREAM for each in some)
                run.sent += flights
                run.hours += len(some) - flights
            await asyncio.sleep(_FILE_EVERY_S)
        self._view.note(f"all {run.sent:,} flights are on their way, with {run.hours:,} hours of weather")

    def _feed_keeps_up(self) -> bool:
        """Whether the feed, which reads one file per batch, has at most a few left. Fewer files means larger ones."""
        return self._incoming.files - self._course.count("feed") <= _FILES_AHEAD

    def _steps(self) -> Steps:
        steps: Steps = [
            (DemoStep.JOIN, self._join),
            (DemoStep.DRIVER, self._kill_driver),
            (DemoStep.KILL, self._kill),
            (DemoStep.LEAVE, self._leave),
            (DemoStep.EXECUTOR, self._kill_executor),
        ]
        if self._broker is not None:
            steps.append((DemoStep.RESTART, self._restart))
        return steps

    async def _do_steps(self, pace: FeedPace, steps: Steps) -> None:
        for number, (step, act) in enumerate(steps):
            while self.run_record.sent < pace.share_of(number) * self._options.events:
                await asyncio.sleep(0.05)
            self._view.note(f"→ {step}")
            began = wall_clock_ms()
            await act()
            if step is not DemoStep.DRIVER:  # it continues during the next steps
                self.run_record.completed_steps.append(CompletedStep(step, began, wall_clock_ms()))
            self._steps_done += 1

    async def _join(self) -> None:
        await self._start_member("python-4")
        await self._settled(5, "five members")

    async def _kill(self) -> None:
        self.run_record.killed.add("python-2")
        await self._members["python-2"].kill()
        await self._settled(4, "the four that are left")

    async def _kill_driver(self) -> None:
        """Kill the driver while it has state; it restarts while the group of the Python members changes."""
        await self._until_each(lambda query: self._course.count(query) > 0)
        down = wall_clock_ms()
        await self._members[PIPELINE].kill()
        self._driver_is_back = asyncio.create_task(self._start_driver(down))
        self._stack.callback(self._driver_is_back.cancel)

    async def _start_driver(self, down: int) -> None:
        await self._start_spark(PIPELINE)
        await self._batches_of_pipeline()
        back = wall_clock_ms()
        self._course.outages.append(Outage(down, back, "the pipeline's driver killed and started again"))
        self.run_record.completed_steps.append(CompletedStep(DemoStep.DRIVER, down, back))

    async def _kill_executor(self) -> None:
        assert self._driver_is_back is not None
        await self._driver_is_back
        await self._ask(PIPELINE, _STALL_TIMEOUT_S, do="lose an executor")
        await self._batches_of_pipeline()

    async def _batches_of_pipeline(self) -> None:
        """Wait until each query of the pipeline has done one more batch. A query with nothing left to read runs no
        batch: on a slow machine the data runs out before a step is done."""
        since, groups, course = wall_clock_ms(), self._options.names.groups, self._course

        def done(query: str) -> bool:
            own = [group for group, (member, _) in groups.items() if member == query]
            at_rest = course.looked_ms > since and course.total_lag(*own) == 0
            return at_rest or course.last_batch_ms(query) > since

        await self._until_each(done)

    async def _until_each(self, done: Callable[[str], bool]) -> None:
        queries = {query for query, _ in self._options.names.groups.values()}
        await self._until(lambda: all(map(done, queries)), "a batch of each query of the pipeline", _STALL_TIMEOUT_S)

    async def _leave(self) -> None:
        await self._members["python-1"].stop(_STALL_TIMEOUT_S)  # if it were killed, its session would expire instead
        await self._settled(3, "the three that are left")

    async def _restart(self) -> None:
        assert self._broker is not None
        down = wall_clock_ms()
        await self._broker.kill()
        await asyncio.sleep(1)
        await self._broker.start()
        outage = Outage(down, wall_clock_ms(), "broker killed and started again")
        self._story.outages.append(outage)
        self._course.outages.append(outage)
        await self._settled(3, "the same three members")

    # --- how it ends -------------------------------------------------------------------------------------------------

    async def _wait_until_handled(self) -> None:
        """Wait until every group has committed everything. If the lag stops shrinking, the groups are stuck."""
        best, give_up = -1, 0.0
        while True:
            latest = self._story.latest
            written = sum(latest.ends.values()) if latest else 0
            left = self._course.total_lag(self._options.group, *self._options.names.groups)
            if latest is not None and written >= self.run_record.sent and left == 0:
                self.run_record.ends = dict(latest.ends)
                self._view.note("everything is handled and committed")
                return
            if written - (left or 0) > best:
                best, give_up = written - (left or 0), time.monotonic() + _STALL_TIMEOUT_S
            if time.monotonic() > give_up:
                raise DemoError(
                    f"the groups are stuck with {written:,} records written and lags of {self._course.lags}"
                )
            await asyncio.sleep(0.2)

    async def _finish(self) -> None:
        """End the queries, let the reader read their results to the end, and collect."""
        await self._ask(PIPELINE, _STALL_TIMEOUT_S, do="finish")
        await self._members[PIPELINE].close_input()
        await self._read_results()
        for name, process in self._members.items():
            if name not in (SPARK, PIPELINE):
                await process.stop(_STALL_TIMEOUT_S)
        await self._ask(SPARK, _STALL_TIMEOUT_S, do="stop")
        self._view.note("all members have left; Spark makes the history of the groups, and reads the results")
        await self._ask(SPARK, 300, do="collect", groups=self.run_record.groups)
        await self._members[SPARK].close_input()
        self._view.note("the doctor reads the same history")
        run = self.run_record
        run.examination = await asyncio.to_thread(
            examine, self._access, run.groups, run.collected / "rebalances.jsonl", self._expected()
        )

    def _expected(self) -> list[Expected]:
        """What the history must show of the steps: in the shared group, and in those of the pipeline's queries."""
        shared, pipeline = self._options.group, self._options.names.group("windows")
        return [
            Expected(completed, shared if completed.step is not DemoStep.DRIVER else pipeline, CAUSES[completed.step])
            for completed in sorted(
                self.run_record.completed_steps, key=lambda completed: list(DemoStep).index(completed.step)
            )
            if completed.step in CAUSES
        ]

    async def _read_results(self) -> None:
        """Wait until the reader has committed all results of the finished pipeline."""
        ended, group = wall_clock_ms(), self._options.names.reader_group
        await self._until(
            lambda: self._course.looked_ms > ended and self._course.lags.get(group) == 0,
            f"reading {' and '.join(self._options.names.results)} to the end",
            _STALL_TIMEOUT_S,
        )


def _message(process: Process, line: str) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(line)
    except ValueError:
        raise DemoError(f"{process.name} printed {line[:200]!r} instead of a message") from None
    return found


def _take(rest: Iterator[StreamEvent], most: int) -> list[StreamEvent]:
    """The next records, at most `most`."""
    return list(islice(rest, most))
