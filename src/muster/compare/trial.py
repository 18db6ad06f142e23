"""One run of the workload under one scheme: starts the members' processes, performs the steps, records what happens.

A step ends when the remaining members share all partitions, nothing has changed for `QUIET_MS`, and all records written
until then are handled. The time is measured but not checked.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from muster.client.admin.async_admin import AsyncAdmin
from muster.clock import monotonic_ms
from muster.compare.load import Load
from muster.compare.rules.formulas import Scheme
from muster.compare.rules.recorder import (
    Awake,
    Double,
    Frozen,
    Gone,
    Handled,
    HandledRecords,
    Hold,
    OwnershipEvent,
    OwnershipState,
    Owns,
    Period,
    awake,
    doubles,
    holds,
    naps,
    ownerless_ms,
    union_ms,
)
from muster.compare.rules.results import SchemeRun, StepResult, Work
from muster.compare.rules.workload import OF_SERVERS, StepKind, WorkloadStep, hosts, script
from muster.compare.servers import Servers
from muster.demo.run.processes import Process
from muster.errors import ErrorCode, KafkaError, MusterError

QUIET_MS = 400
REST_MS = 30_000
PATIENCE_S = 300
AWAY_S = 3.0
"""The minimum time that a broker or ZooKeeper is down."""
LATE_MS, LATE_FOR_S = 2_500, 5.0
"""The delay of the lagging server, and for how long: longer than a backoff of scheme 1."""
PER_HOST = 10
"""Members that share a process."""


class DidNotConvergeError(MusterError):
    """A group did not converge."""


@dataclass(frozen=True, slots=True)
class TrialOptions:
    """The options of a run."""

    folder: Path
    name: str
    """The name of the topic and the group, neither of which exists yet."""
    partitions: int = 8
    rate: int = 100
    """Records written per second."""
    handle_ms: float = 1.0
    """How long a member works on a record."""
    watch_brokers: bool = False
    """Whether members of scheme 1 watch the brokers."""


class Trial:
    """Runs it. `run` ends all processes that it started."""

    def __init__(
        self,
        scheme: Scheme,
        size: int,
        servers: Servers,
        options: TrialOptions,
        note: Callable[[str], None],
        steps: Sequence[WorkloadStep] = (),
    ) -> None:
        """Without `steps`, those of `script` are performed."""
        self.scheme = scheme
        self.name = options.name
        self._servers = servers
        self._options = options
        self._note = note
        self._steps = steps or script(size, broker=servers.broker_stops, zookeeper=servers.zookeeper_stops)
        self._zero = monotonic_ms()
        self._members = OwnershipState()
        self._books = HandledRecords()
        self._events: list[OwnershipEvent] = []
        self._changed_ms = 0
        """When the last ownership event arrived."""
        self._news = asyncio.Event()
        self._hosts: list[Process] = []
        self._host_of: dict[str, Process] = {}
        self._counts: dict[str, Work] = {}
        self._counted: dict[str, asyncio.Event] = {}
        self._lost: list[tuple[int, str]] = []
        self._committed: list[str] = []
        self._woken = ""
        """A resumed member that has not been assigned a partition since."""
        self._began = 0
        """When the joining member began to join: before that, a JVM had to start."""
        self._after_waking = 0
        self._active: list[str] = []
        self._load = Load(servers.bootstrap, self.name, options.partitions, options.rate)
        self._run = SchemeRun(scheme, size, options.partitions, servers.brokers)

    def _now(self) -> int:
        return monotonic_ms() - self._zero

    # --- its life ----------------------------------------------------------------------------------------------------

    async def run(self) -> SchemeRun:
        """Run all steps."""
        await self._servers.create_topic(self.name, self._options.partitions)
        if not self.scheme.watches:
            await self._coordinator()
        async with AsyncExitStack() as stack:
            await self._start_hosts(stack)
            self._zero = monotonic_ms()
            async with asyncio.TaskGroup() as tasks:
                readers = [tasks.create_task(self._read(host)) for host in self._hosts]
                writing = tasks.create_task(self._load.run())
                await self._until(lambda: bool(self._load.written()), "the first record is written")
                await self._rest()
                for step in self._steps:
                    await self._do(step)
                self._load.stop()
                await writing
                ends = await self._ends()
                await self._until(lambda: self._books.reached(ends), "all records handled")
                self._run.end_ms = self._now()
                for host in self._hosts:
                    await host.close_input()
                async with asyncio.timeout(PATIENCE_S):
                    await asyncio.gather(*readers)
        self._conclude(ends)
        return self._run

    async def _rest(self) -> None:
        """Wait until ZooKeeper is idle: what servers do for a new topic and a first producer does not belong to a step.
        A server that others also use may never be idle."""
        give_up = monotonic_ms() + REST_MS
        before, now = None, await self._servers.counters()
        while before is None or (now[:3] != before[:3] and monotonic_ms() < give_up):
            await asyncio.sleep(QUIET_MS / 1000)
            before, now = now, await self._servers.counters()

    async def _start_hosts(self, stack: AsyncExitStack) -> None:
        arguments = ["--scheme", self.scheme.value, "--group", self.name, "--topic", self.name]
        arguments += ["--bootstrap", self._servers.bootstrap]
        arguments += ["--coordinators", self._servers.coordinators]
        arguments += ["--handle-ms", str(self._options.handle_ms)]
        arguments += ["--watch-brokers"] * self._options.watch_brokers
        program, per_host = "muster.compare.host", PER_HOST
        if self.scheme is Scheme.KAFKA08:
            program, per_host = "muster.compare.peer", 1
            arguments += ["--folder", str(self._options.folder), "--partitions", str(self._options.partitions)]
        for number, names in enumerate(hosts(self._steps, per_host), 1):
            log = self._options.folder / f"{self.name}-{number}.log"
            of_this = [*arguments, "--zookeeper", self._servers.zookeeper_of(names[0])]
            host = await Process.start(f"host {number}", ["-m", program, *of_this], log)
            stack.push_async_callback(host.kill)
            self._hosts.append(host)
            self._host_of |= dict.fromkeys(names, host)
            self._counted[host.name] = asyncio.Event()
        for host in self._hosts:
            await host.read_line(PATIENCE_S)

    async def _ends(self) -> dict[int, int]:
        async with AsyncAdmin(bootstrap_servers=self._servers.bootstrap) as admin:
            return await self._load.ends(admin)

    def _conclude(self, ends: dict[int, int]) -> None:
        run = self._run
        run.naps = naps(self._events, run.end_ms)
        run.holds = [_cut(hold, run.end_ms) for hold in holds(self._events, run.end_ms) if hold.start_ms < run.end_ms]
        reading = awake(run.holds, run.naps)
        run.doubles = doubles(reading)
        run.produced, run.handled = sum(ends.values()), self._books.distinct
        run.lost = self._books.lost(ends)
        run.twice = sum(count for _, _, count in self._books.twice)
        for step in run.steps:
            during = Period(step.start_ms, step.end_ms)
            step.twice = self._books.twice_during(during)
            step.ownerless_ms = ownerless_ms(reading, run.partitions, during)
            found = [double for double in run.doubles if during.start_ms <= double.start_ms < during.end_ms]
            step.doubled, step.doubled_ms = len(found), union_ms(_spans(found))

    # --- events from members -----------------------------------------------------------------------------------------

    async def _read(self, host: Process) -> None:
        while (line := await host.next_line()) is not None:
            self._take(host, json.loads(line))
            self._news.set()
        host.check()

    def _take(self, host: Process, said: dict[str, Any]) -> None:
        at, member = said["t"] - self._zero, said.get("m", "")
        match said["e"]:
            case "owns":
                self._happened(Owns(at, member, frozenset(said["p"])))
                self._woken = "" if member == self._woken and said["p"] else self._woken
            case "gone":
                self._happened(Gone(at, member))
            case "began":
                self._began = at
            case "handled":
                self._books.take(Handled(at, member, said["p"], said["a"], said["b"]))
                self._after_waking += (member == self._woken) * (said["b"] - said["a"] + 1)
            case "lost":
                self._lost.append((at, member))
            case "work":
                self._counts[member] = Work(said["rebalances"], said["tries"], said["conflicts"], said["requests"])
            case "counted":
                self._counted[host.name].set()
            case "committed":
                self._committed.append(said["outcome"])
            case "error":
                self._note(f"{member}: {said['text']}")

    def _happened(self, event: OwnershipEvent) -> None:
        self._events.append(event)
        self._members.take(event)
        self._changed_ms = max(self._changed_ms, event.at_ms)
        self._news.set()

    # --- steps -------------------------------------------------------------------------------------------------------

    async def _do(self, step: WorkloadStep) -> None:
        before, counts = await self._servers.counters(), dict(self._counts)
        self._committed.clear()
        self._after_waking, self._began = 0, 0
        result = StepResult(step.kind, step.member, 0, self._now(), 0, 0)
        actions: dict[StepKind, Callable[[str], Awaitable[None]]] = {
            StepKind.JOIN: self._join,
            StepKind.LEAVE: self._leave,
            StepKind.CRASH: self._crash,
            StepKind.FREEZE: self._freeze,
            StepKind.LATE: self._join_late,
            StepKind.LAG: self._lag,
            StepKind.BROKER: lambda _: self._outage(
                "a broker", self._stop_broker, self._servers.start_broker, noticed=self._options.watch_brokers
            ),
            StepKind.ZOOKEEPER: lambda _: self._outage(
                "ZooKeeper", self._servers.stop_zookeeper, self._servers.start_zookeeper
            ),
        }
        await actions[step.kind](step.member)
        if step.kind in (StepKind.JOIN, StepKind.LATE):
            result.start_ms = max(result.start_ms, self._began)
        result.settled_ms = max(result.start_ms, self._changed_ms)
        if step.kind in OF_SERVERS:
            result.settled_ms = self._now() - QUIET_MS
        await self._count()
        result.counted = (await self._servers.counters()).since(before)
        result.work = _added(counts, self._counts)
        result.size, result.end_ms = len(self._active), self._now()
        result.expired = sum(at >= result.start_ms and not step.ends_session_of(member) for at, member in self._lost)
        result.stale_commits = {outcome: self._committed.count(outcome) for outcome in dict.fromkeys(self._committed)}
        result.after_waking, self._woken = self._after_waking, ""
        self._run.steps.append(result)
        self._note(f"{step}: {result.converge_ms / 1000:.1f} s, {result.counted.reads} reads")

    async def _join(self, member: str) -> None:
        since = self._now()
        self._active.append(member)
        await self._host_of[member].say(json.dumps({"do": "join", "m": member}))
        await self._settled(since)

    async def _join_late(self, member: str) -> None:
        """A server lags until the others have seen the new member and failed to rebalance."""
        since = self._now()
        await self._servers.be_late(LATE_MS)
        self._active.append(member)
        await self._host_of[member].say(json.dumps({"do": "join", "m": member}))
        await asyncio.sleep(LATE_FOR_S)
        await self._servers.be_late(0)
        self._run.outages.append(("what a server should know", Period(since, self._now())))
        await self._settled(since)

    async def _leave(self, member: str) -> None:
        since = self._now()
        self._active.remove(member)
        await self._host_of[member].say(json.dumps({"do": "leave", "m": member}))
        await self._settled(since)

    async def _crash(self, member: str) -> None:
        since = self._now()
        self._active.remove(member)
        await self._host_of[member].kill()
        self._happened(Gone(self._now(), member))
        await self._settled(since)

    async def _freeze(self, member: str) -> None:
        since = self._now()
        self._host_of[member].freeze()
        self._happened(Frozen(self._now(), member))
        self._active.remove(member)
        await self._settled(since)
        woken = self._now()
        self._active.append(member)
        self._woken = member
        self._happened(Awake(woken, member))
        self._host_of[member].thaw()
        await self._until(lambda: bool(self._committed), f"{member} notices that it was frozen")
        await self._settled(woken)

    async def _lag(self, member: str) -> None:
        """The member's server lags until the others have taken over, and a while longer; then it catches up."""
        since = self._now()
        await self._servers.lag()
        others = [name for name in self._active if name != member]

        def taken_over() -> bool:
            owned = [self._members.owned.get(name, frozenset()) for name in others]
            return sum(map(len, owned)) == self._options.partitions

        await self._until(taken_over, "the others take over")
        await asyncio.sleep(AWAY_S)
        healed = self._now()
        await self._servers.catch_up()
        self._run.outages.append((f"what {member}’s server learns", Period(since, healed)))
        await self._settled(healed)

    async def _stop_broker(self) -> None:
        """Stop a broker that does not coordinate the group: what matters here is what happens to partitions."""
        await self._servers.stop_broker(-1 if self.scheme.watches else await self._coordinator())

    async def _coordinator(self) -> int:
        """The broker that coordinates the group; by then brokers have done what the first request for a group
        requires."""
        async with AsyncAdmin(bootstrap_servers=self._servers.groups) as admin:
            give_up = monotonic_ms() + PATIENCE_S * 1000
            while True:
                described = (await admin.describe_consumer_groups([self.name], raise_errors=False))[self.name]
                if not isinstance(described, KafkaError):
                    return described.coordinator.node_id
                if described.code is ErrorCode.GROUP_ID_NOT_FOUND:
                    return -1
                if monotonic_ms() > give_up:
                    raise described
                await asyncio.sleep(0.1)

    async def _outage(
        self,
        what: str,
        stop: Callable[[], Awaitable[None]],
        start: Callable[[], Awaitable[None]],
        *,
        noticed: bool = False,
    ) -> None:
        """Stop it, and start it again. If it is `noticed`, each member rebalances after both, and the step waits for
        that. Otherwise this could happen: the others have rebalanced, all is quiet, and the next step begins; a member
        that ZooKeeper notifies late begins its own rebalance during that step, and reads nothing meanwhile.
        """
        since = self._now()
        await stop()
        if noticed:
            await self._noticed(since, f"all members notice that {what} is down")
        await asyncio.sleep(AWAY_S)
        back = self._now()
        await start()
        self._run.outages.append((what, Period(since, self._now())))
        if noticed:
            await self._noticed(back, f"all members notice that {what} is back")
        await self._settled(None)

    async def _noticed(self, since: int, what: str) -> None:
        """Wait until all members have rebalanced since then. If they do not, the checks report it."""
        with suppress(DidNotConvergeError):
            await self._until(partial(self._shared, since), what)

    def _shared(self, since: int | None) -> bool:
        """Whether the members that are active share all partitions."""
        return self._members.shared(self._active, self._options.partitions, since)

    async def _settled(self, since: int | None) -> None:
        """Wait until the members that are active share all partitions, and all written records are handled."""

        while True:
            await self._until(partial(self._shared, since), f"{len(self._active)} members share the partitions")
            await self._until(partial(self._books.reached, self._load.written()), "all written records are handled")
            rest_ms = self._changed_ms + QUIET_MS - self._now()
            if self._shared(since) and rest_ms <= 0:
                return
            await asyncio.sleep(max(rest_ms, 1) / 1000)

    async def _count(self) -> None:
        """Make all members report what they have done."""
        living = [host for host in self._hosts if host.running and not host.expected_to_end]
        for host in living:
            self._counted[host.name].clear()
            await host.say(json.dumps({"do": "count"}))
        for host in living:
            async with asyncio.timeout(PATIENCE_S):
                await self._counted[host.name].wait()

    async def _until(self, done: Callable[[], bool], what: str) -> None:
        give_up = monotonic_ms() + PATIENCE_S * 1000
        while not done():
            self._news.clear()
            with suppress(TimeoutError):
                # Not wait_for, which in Python 3.11 loses a cancellation that arrives with the result.
                async with asyncio.timeout(0.5):
                    await self._news.wait()
            if monotonic_ms() > give_up:
                owned = {member: sorted(partitions) for member, partitions in self._members.owned.items()}
                raise DidNotConvergeError(
                    f"{self.name}: did not happen within {PATIENCE_S} s: {what}; owned partitions: {owned}"
                )


def _added(before: dict[str, Work], after: dict[str, Work]) -> Work:
    """What the members did between the two reports."""
    total = Work()
    for member, work in after.items():
        total += work.since(before.get(member, Work()))
    return total


def _cut(hold: Hold, end_ms: int) -> Hold:
    return hold._replace(end_ms=min(hold.end_ms, end_ms))


def _spans(found: Iterable[Double]) -> list[Period]:
    return [Period(double.start_ms, double.end_ms) for double in found]
