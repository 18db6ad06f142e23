"""The testing kit: brokers for a test, and what a test does with them."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from http import HTTPStatus
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypedDict, TypeVar, Unpack
from urllib.parse import quote

import muster
from muster import MusterError, TopicPartition
from muster.local.broker import LocalBroker
from muster.model import ConsumerRecord
from muster.testing.backends import Backend, BrokerAwayError, started
from muster.testing.conditions import missing

T = TypeVar("T")

FOR_TESTS: dict[str, object] = {
    "group.initial.rebalance.delay.ms": 0,
    "group.min.session.timeout.ms": 100,
    "offsets.topic.num.partitions": 1,
    # A fetch names all of its partitions each time, so that faults about a topic find it.
    "max.incremental.fetch.session.cache.slots": 0,
    # A broker of a cluster that was killed is back when this has passed.
    "zookeeper.session.timeout.ms": 6_000,
}
"""Settings of test brokers that differ from a broker's defaults: a group's first member does not wait for others, and
sessions may be short."""

DEFAULT_TIMEOUT_S = 30.0
LOOK_EVERY_S = 0.05
"""The interval at which a wait polls several brokers."""
STORY_LINES = 25
KIT_CLIENT = "muster-testing"
"""The client id of the kit's own clients, which stories omit."""
_NUMBERS = itertools.count(1)
_WANTED = {
    "assigned": "be assigned",
    "stable": "be stable",
    "committed": "commit",
    "lag_zero": "commit everything",
    "empty": "be empty",
}
"""Conditions (conditions.py), in the messages of waits that fail."""


class When(TypedDict, total=False):
    """Which requests a fault matches, and when it strikes: see `muster.testing.rules.Rule`."""

    name: str
    client: str | None
    group: str | None
    member: str | None
    transactional_id: str | None
    topic: str | None
    partition: int | None
    nth: int | None
    after: int
    every: int
    times: int | None
    probability: float


class FaultFields(When, total=False):
    """The fields of a fault, apart from its effect and its requests."""

    error: str
    delay_ms: int
    throttle_ms: int


class DiskTrouble(TypedDict, total=False):
    """Disk failures to simulate; what is not named stays as it is."""

    full: bool
    sync_delay_ms: int
    fail: bool


class WaitTimeoutError(MusterError, AssertionError):
    """A wait timed out: the message says what was missing, and has the story so far."""


class Fault:
    """A fault, active until it is removed or its `with` block ends."""

    def __init__(self, kafka: Kafka, body: dict[str, Any]) -> None:
        self._kafka = kafka
        self._stands = True
        self._past: Counter[str] = Counter()
        """The counts of brokers that were stopped, or once it is removed, of all."""
        self.body = body
        """Its definition, as sent to the control port."""

    @property
    def name(self) -> str:
        """Its name in stories."""
        return str(self.body["name"])

    @property
    def _place(self) -> str:
        """Its path on the control port."""
        return f"faults/{quote(self.name, safe='')}"

    def _now(self, method: str = "GET", path: str = "") -> Counter[str]:
        """The counts of all brokers, including those stopped since."""
        answers = self._kafka.ask_all(method, self._place + path) if self._stands else []
        return sum((_numbers(each) for each in answers), self._past)

    @property
    def seen(self) -> int:
        """How many requests it has matched, even after it was removed."""
        return self._now()["seen"]

    @property
    def struck(self) -> int:
        """How often it has struck, even after it was removed."""
        return self._now()["struck"]

    @property
    def held(self) -> int:
        """How many requests it is holding."""
        return self._now()["held"]

    def release(self) -> int:
        """Let the held requests be handled; returns how many. The fault stays active."""
        return self._now("POST", "/release")["released"]

    def remove(self) -> None:
        """Remove it, and let the held requests be handled."""
        self._kafka.forget(self)

    def _end(self) -> None:
        """For `Kafka.forget`: keep its counts."""
        try:
            last = self._now("DELETE")
        finally:
            self._stands = False
        self._past = Counter(seen=last["seen"], struck=last["struck"])

    def _keep(self, answer: Mapping[str, Any]) -> None:
        """Keep the counts of a broker that is about to stop."""
        last = _numbers(answer)
        self._past += Counter(seen=last["seen"], struck=last["struck"])

    def wait_struck(self, times: int = 1, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        """Wait until the fault has struck this many times. Raises WaitTimeoutError."""
        self._kafka.until(lambda: self.struck >= times, f"the fault {self.name} to strike {times} time(s)", timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()


class Group:
    """A consumer group, of any clients."""

    def __init__(self, kafka: Kafka, group_id: str) -> None:
        self._kafka = kafka
        self.group_id = group_id

    def now(self) -> dict[str, Any]:
        """State, generation, members with their partitions, committed offsets, ends of the logs."""
        return self._kafka.view(self.group_id)

    def expire(self, member: str | None = None) -> None:
        """Expire the sessions of members whose client id, member id or group.instance.id matches a pattern; of all by
        default."""
        self._do("expire", member=member)

    def rebalance(self) -> None:
        """Make all members rejoin."""
        self._do("rebalance")

    def fence(self, instance: str) -> None:
        """Fence a static member: another process joins with its group.instance.id."""
        self._do("fence", instance=instance)

    def reload(self) -> None:
        """Make the coordinator reload the group from its log, as after a failover."""
        self._do("reload")

    def _do(self, what: str, **body: str | None) -> None:
        given = {name: value for name, value in body.items() if value is not None}
        self._kafka.ask_coordinator(self.group_id, "POST", f"groups/{quote(self.group_id, safe='')}/{what}", given)


class Clock:
    """The groups' clock."""

    def __init__(self, kafka: Kafka) -> None:
        self._kafka = kafka

    def advance(self, seconds: float, silent: str | None = None) -> None:
        """Advance the clock: sessions, rebalance timeouts and offset retention that are due by then expire.

        As if no member had sent a heartbeat meanwhile; with `silent`, a pattern of client ids, member ids or instance
        ids, as if only these had not.
        """
        body = {
            "advance_ms": round(_number(seconds, "seconds") * 1000),
            **({} if silent is None else {"silent": silent}),
        }
        self._kafka.ask_all("POST", "clock", body)


class Replay:
    """A recording that is being replayed on a broker (`Kafka.replay`)."""

    def __init__(self, kafka: Kafka) -> None:
        self._kafka = kafka

    def now(self) -> dict[str, Any]:
        """The progress: `lines`, how many have `passed`, whether it is `over`, what it `waits_for`, and the
        `differences` so far."""
        return self._kafka.ask_all("GET", "replay")[0]

    @property
    def differences(self) -> list[str]:
        """Where the group fell behind the recording, and what could not be repeated."""
        found: list[str] = self.now()["differences"]
        return found

    def until_over(self, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        """Wait until everything recorded has been replayed. Raises WaitTimeoutError."""
        __tracebackhide__ = True

        def what() -> str:
            now = self.now()
            return f"the end of the replay: line {now['passed'] + 1} of {now['lines']} waits: {now['waits_for']}"

        self._kafka.until(lambda: self.now()["over"], what, timeout_s)


class Kafka:
    """Brokers for tests: a context manager. Any client connects to `bootstrap`.

    The arguments are those of `muster.testing.kafka`; FOR_TESTS are default settings.

    Raises:
        ServerFailedError: a broker did not start; the error has the end of its log.
    """

    def __init__(
        self,
        settings: Mapping[str, object] | None = None,
        folder: Path | str | None = None,
        *,
        brokers: int = 1,
        in_process: bool = False,
        seed: int = 0,
        strict: bool = False,
    ) -> None:
        self._how = {
            "brokers": brokers,
            "in_process": in_process,
            "settings": FOR_TESTS | dict(settings or {}),
            "folder": None if folder is None else Path(folder),
            "seed": seed,
        }
        self.strict = strict
        self.clock = Clock(self)
        self._block = ExitStack()
        self._running: Backend | None = None
        self._faults: list[Fault] = []
        self._admin: muster.Admin | None = None
        self._idle: list[str] = []
        """Removed faults that never struck, if the kit is strict."""
        self._troubled = False
        self._past: list[dict[str, Any]] = []
        """The stories of brokers before they were killed or stopped."""

    def __enter__(self) -> Self:
        if self._running is not None:
            raise MusterError("these brokers are running already: create another Kafka")
        with ExitStack() as block:
            self._running = started(block, **self._how)  # type: ignore[arg-type]
            self._block = block.pop_all()
        self._faults, self._past, self._idle, self._admin, self._troubled = [], [], [], None, False
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self.clean_up()
        finally:
            try:
                self._block.close()
            finally:
                self._running = None

    @property
    def _backend(self) -> Backend:
        if self._running is None:
            raise MusterError(
                "these brokers are not running: use them in a block, `with muster.testing.kafka() as kafka`"
            )
        return self._running

    # ---------------------------------------------------------------------------------------------------- between tests

    def begin(self) -> None:
        """Begin a test: `story` and `requests` leave out what happened before."""
        self._past = []
        self.ask_all("POST", "begin")

    def members(self) -> list[tuple[str, str]]:
        """The members of all groups, as pairs of group and client id."""
        return sorted((group, client) for each in self.ask_all("GET", "members") for group, client in each["members"])

    def clean_up(self) -> None:
        """Remove all faults. Raises AssertionError if the kit is `strict` and one never struck."""
        for fault in list(self._faults):
            fault.remove()
        idle, self._idle = self._idle, []
        if idle:
            raise AssertionError(f"fault(s) that never struck: {', '.join(idle)}")

    def revive(self) -> None:
        """Thaw frozen brokers, and start those that were killed or stopped."""
        for place, server in enumerate(self.brokers):
            if server.pid is None:
                self.start(place)
            elif server.is_frozen:
                self.thaw(place)

    def heal(self) -> None:
        """`revive` the brokers and remove all faults; the disk works again."""
        self.revive()
        for fault in list(self._faults):
            fault.remove()
        self._idle = []
        if self._troubled:
            self.disk(full=False, sync_delay_ms=0, fail=False)
            self._troubled = False

    def reset(self, staying: Iterable[tuple[str, str]] = ()) -> None:
        """End a test: `heal`, and expire all group members except `staying`, pairs of group and client id."""
        self.heal()
        self.ask_all("POST", "reset", {"staying": sorted(set(staying))})

    @property
    def bootstrap(self) -> str:
        """The brokers' addresses, for `bootstrap.servers`."""
        return self._backend.bootstrap

    # ----------------------------------------------------------------------------------------------- the brokers' lives

    @property
    def brokers(self) -> list[LocalBroker]:
        """The brokers' processes; none with `in_process`."""
        return self._backend.servers()

    def kill(self, broker: int = 0) -> None:
        """Kill a broker as `kill -9` does; `start` brings it back with its data."""
        self._keep_story(broker)
        self._process(broker).kill()

    def stop(self, broker: int = 0) -> None:
        """Shut a broker down cleanly; `start` brings it back."""
        self._keep_story(broker)
        self._process(broker).stop()

    def start(self, broker: int = 0) -> None:
        """Start a broker that was killed or stopped, with the active faults, whose `nth`, `after` and `times` count
        from 0 again."""
        self._process(broker).start()
        for fault in self._faults:
            self._asked(broker, "POST", "faults", fault.body)

    def freeze(self, broker: int = 0) -> None:
        """Suspend a broker's process: connections stay open, but nothing is answered."""
        self._process(broker).freeze()

    def thaw(self, broker: int = 0) -> None:
        """Resume a frozen broker."""
        self._process(broker).thaw()

    def _keep_story(self, broker: int) -> None:
        """Keep a broker's story and counts, which are lost with its process."""
        server = self._process(broker)
        if server.pid is not None and not server.is_frozen:
            self._past += [self._asked(broker, "GET", path) for path in ("story", "requests")]
            for fault in list(self._faults):  # another thread may be removing one
                fault._keep(self._backend.ask(broker, "GET", fault._place, None)[1])

    def _process(self, broker: int) -> LocalBroker:
        if not self.brokers:
            raise MusterError("a broker in this process cannot be ended or frozen: leave in_process out")
        if broker not in range(len(self.brokers)):
            raise MusterError(f"broker={broker!r}: brokers go by their place, 0 to {len(self.brokers) - 1}")
        return self.brokers[broker]

    # --------------------------------------------------------------------------------------------- topics and records

    @property
    def admin(self) -> muster.Admin:
        """An admin client."""
        if self._admin is None:
            admin = muster.Admin(bootstrap_servers=self.bootstrap, client_id=KIT_CLIENT)
            self._admin = self._block.enter_context(admin)
        return self._admin

    def topic(
        self,
        name: str | None = None,
        *,
        partitions: int = 1,
        records: Iterable[bytes | tuple[bytes | None, bytes | None]] = (),
        settings: Mapping[str, str] | None = None,
    ) -> str:
        """Create a topic, by default with a unique name, and write records: values, or pairs of key and value."""
        written = _records(records)
        name = name or f"topic-{next(_NUMBERS)}"
        self.admin.create_topics([muster.NewTopic(name, partitions, configs=dict(settings or {}))])
        self.produce(name, written)
        return name

    def produce(self, topic: str, records: Iterable[bytes | tuple[bytes | None, bytes | None]]) -> None:
        """Write records, and wait until all are acknowledged."""
        written = _records(records)
        if not written:
            return
        with muster.Producer(bootstrap_servers=self.bootstrap, client_id=KIT_CLIENT) as producer:
            for key, value in written:
                producer.send(topic, value, key=key)
            producer.flush()

    def recreate(self, topic: str) -> None:
        """Delete a topic with its records, and create it again with as many partitions."""
        partitions = len(self.admin.describe_topics([topic])[topic].partitions)
        self.admin.delete_topics([topic])
        self.admin.create_topics([muster.NewTopic(topic, partitions)])

    def fence_producer(self, transactional_id: str) -> None:
        """Fence the producer with this transactional id, as if another one had started: its transaction is aborted."""
        self.admin.fence_producers([transactional_id])

    def delete_records(self, topic: str, before: int, partition: int = 0) -> None:
        """Delete a partition's records before an offset, as if retention had overtaken a consumer."""
        self.admin.delete_records({TopicPartition(topic, partition): before})

    def records(self, topic: str) -> list[ConsumerRecord]:
        """The current records of a topic, by partition and offset."""
        reader = muster.Consumer(bootstrap_servers=self.bootstrap, client_id=KIT_CLIENT, fetch_max_wait_ms=20)
        with reader:
            partitions = [TopicPartition(topic, each.partition) for each in reader.partitions_for(topic)]
            found = list(read_from(reader, reader.beginning_offsets(partitions)))
        return sorted(found, key=lambda record: (record.partition, record.offset))

    def until_records(self, topic: str, count: int, timeout_s: float = DEFAULT_TIMEOUT_S) -> list[ConsumerRecord]:
        """Wait for `count` records in a topic, and return all its records. Raises WaitTimeoutError."""
        found: list[ConsumerRecord] = []

        def enough() -> bool:
            nonlocal found
            found = self.records(topic)
            return len(found) >= count

        self.until(enough, lambda: f"{count} record(s) in {topic}: there are {len(found)}", timeout_s)
        return found

    # ----------------------------------------------------------------------------------------------------------- waits

    def group(self, group_id: str) -> Group:
        """A group, to inspect or disturb it."""
        return Group(self, group_id)

    def until_assigned(
        self,
        group_id: str,
        members: int | None = None,
        *,
        topics: Sequence[str] | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> dict[str, Any]:
        """Wait until the group is stable with `members` members, and every partition of the topics (by default those
        with assigned partitions) is assigned. Returns the group. Raises WaitTimeoutError."""
        __tracebackhide__ = True
        return self._wait("assigned", group_id, timeout_s, members=members, topics=topics)

    def until_stable(
        self, group_id: str, *, generation: int | None = None, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> dict[str, Any]:
        """Wait until the group is stable, in this generation or a later one. Raises WaitTimeoutError."""
        __tracebackhide__ = True
        return self._wait("stable", group_id, timeout_s, generation=generation)

    def until_committed(
        self, group_id: str, topic: str, offsets: int | Mapping[int, int], timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> dict[str, Any]:
        """Wait until the group has committed this many records of a topic in total, or at least these offsets by
        partition. Raises WaitTimeoutError."""
        if not isinstance(offsets, int | Mapping):
            raise MusterError(f"offsets={offsets!r}: it must be how many records, or offsets by partition")
        wanted = offsets if isinstance(offsets, int) else {str(index): offset for index, offset in offsets.items()}
        __tracebackhide__ = True
        return self._wait("committed", group_id, timeout_s, topic=topic, offsets=wanted)

    def until_lag_zero(
        self, group_id: str, topic: str | None = None, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> dict[str, Any]:
        """Wait until the group has no lag in its topics, or in one of them. Raises WaitTimeoutError."""
        __tracebackhide__ = True
        return self._wait("lag_zero", group_id, timeout_s, topic=topic)

    def until_empty(self, group_id: str, timeout_s: float = DEFAULT_TIMEOUT_S) -> dict[str, Any]:
        """Wait until the group has no members. Raises WaitTimeoutError."""
        __tracebackhide__ = True
        return self._wait("empty", group_id, timeout_s)

    def until(
        self, condition: Callable[[], object], what: str | Callable[[], str], timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> None:
        """Wait until a condition holds; `what` describes it in the error. Raises WaitTimeoutError.

        As in all waits, a broker that is down may come back meanwhile.
        """
        __tracebackhide__ = True  # a report shows the test's line
        deadline = time.monotonic() + _number(timeout_s, "timeout_s")
        while not self._or_away(condition, deadline):
            if time.monotonic() > deadline:
                text = what if isinstance(what, str) else what()
                raise WaitTimeoutError(f"waited {timeout_s:g} s for {text}\n{self.story()}{_on_a_loop()}")
            time.sleep(0.01)

    @contextmanager
    def assert_no_rebalance(self, group_id: str) -> Iterator[None]:
        """Raises AssertionError if the group rebalances in the block."""
        before = self.view(group_id)["generation"]
        yield
        after = self.view(group_id)
        if (after["generation"], after["state"]) != (before, "Stable"):
            text = f"group {group_id} rebalanced: generation {before} to {after['generation']}, it is {after['state']}"
            raise AssertionError(f"{text}\n{self.story(group_id)}")

    def _wait(self, until: str, group_id: str, timeout_s: float, **wanted: object) -> dict[str, Any]:
        __tracebackhide__ = True
        wait = {"until": until, "group": group_id, **{k: v for k, v in wanted.items() if v is not None}}
        deadline = time.monotonic() + _number(timeout_s, "timeout_s")
        while True:
            left_s = max(deadline - time.monotonic(), 0)
            found = self._or_away(partial(self._waited, wait, left_s), deadline)
            if found is None:
                time.sleep(LOOK_EVERY_S)
                continue
            status, answer = found
            if status == HTTPStatus.OK:
                return answer
            if status != HTTPStatus.REQUEST_TIMEOUT:
                raise MusterError(answer["error"])
            if time.monotonic() >= deadline:
                text = f"waited {timeout_s:g} s for group {group_id} to {_WANTED[until]}: {answer['missing']}"
                group = _described(answer["group"])
                raise WaitTimeoutError(f"{text}\n{group}\n{self.story(group_id)}{_on_a_loop()}")

    def _waited(self, wait: Mapping[str, Any], left_s: float) -> tuple[int, dict[str, Any]]:
        """The answer to a wait. A single broker waits itself; several are polled once, as each knows the ends of its
        own logs only, and a group without a coordinator may end up on any of them."""
        if self._backend.count() == 1:
            return self._backend.ask(0, "POST", "wait", {**wait, "timeout_ms": round(left_s * 1000)})
        view = self.view(wait["group"])
        what = missing(view, wait)
        if what is None:
            return HTTPStatus.OK, view
        time.sleep(min(LOOK_EVERY_S, left_s))
        return HTTPStatus.REQUEST_TIMEOUT, {"missing": what, "group": view}

    def _or_away(self, question: Callable[[], T], deadline: float) -> T | None:
        """The answer; None while a broker is down, which another thread may be restarting."""
        try:
            return question()
        except BrokerAwayError:
            if time.monotonic() > deadline:
                raise
            return None

    # ---------------------------------------------------------------------------------------------------------- faults

    def fault(self, do: str, *apis: str, **when: Unpack[FaultFields]) -> Fault:
        """Add a fault: `fault("lose_answer", "OffsetCommit", group="billing", nth=3)`. It is active until it is
        removed or its `with` block ends.

        `do` is one of `muster.testing.rules.EFFECTS`; the keywords are the fields of `muster.testing.rules.Rule`.

        Raises:
            MusterError: a field is unknown or has an invalid value.
        """
        name = when.pop("name", None) or f"fault-{next(_NUMBERS)}"
        fault = Fault(self, {"name": name, "do": do, "apis": list(apis), **when})
        self.ask_all("POST", "faults", fault.body)
        self._faults.append(fault)
        return fault

    def fail(self, api: str, error: str, **when: Unpack[When]) -> Fault:
        """Answer a request with an error instead of handling it."""
        return self.fault("error", api, error=error, **when)

    def delay(self, api: str, ms: int, **when: Unpack[When]) -> Fault:
        """Handle requests later; by default all of them."""
        when.setdefault("times", None)
        return self.fault("delay", api, delay_ms=ms, **when)

    def hold(self, api: str, **when: Unpack[When]) -> Fault:
        """Hold a request until the fault is released or removed."""
        return self.fault("hold", api, **when)

    def lose_request(self, api: str, **when: Unpack[When]) -> Fault:
        """Close the connection instead of handling a request."""
        return self.fault("lose_request", api, **when)

    def lose_answer(self, api: str, **when: Unpack[When]) -> Fault:
        """Handle a request, then close its connection instead of answering."""
        return self.fault("lose_answer", api, **when)

    def disk(self, **change: Unpack[DiskTrouble]) -> None:
        """`full=True`: writes fail with ENOSPC. `sync_delay_ms=…`: syncs take longer. `fail=True`: syncs fail, which
        ends a broker, as it does Kafka."""
        unknown = change.keys() - DiskTrouble.__annotations__.keys()
        if unknown:
            known = ", ".join(DiskTrouble.__annotations__)
            raise MusterError(f"{', '.join(sorted(unknown))} is not a disk failure: choose from {known}")
        self._troubled = True
        self.ask_all("POST", "disk", change)

    def disconnect(self, client: str = "*") -> int:
        """Close the connections of clients whose id matches a pattern; returns how many."""
        return sum(each["cut"] for each in self.ask_all("POST", "connections", {"client": client}))

    @contextmanager
    def refuse_connections(self, client: str = "*") -> Iterator[None]:
        """Refuse new connections within the block, and first close those of clients whose id matches the pattern."""
        self.ask_all("POST", "connections", {"refuse": True})
        try:
            self.disconnect(client)
            yield
        finally:
            self.ask_all("POST", "connections", {"refuse": False})

    def forget(self, fault: Fault) -> None:
        """Remove a fault (`Fault.remove`)."""
        if fault in self._faults:
            self._faults.remove(fault)
            fault._end()
            if self.strict and not fault.struck:
                self._idle.append(fault.name)

    # ------------------------------------------------------------------------------------------------------ recordings

    @contextmanager
    def record(self, path: Path | str, *, topics: Iterable[str] | None = None) -> Iterator[Path]:
        """Within the block, record what happens to groups (records, rebalances, commits, faults) in a file for
        `replay`.

        Args:
            topics: those whose records are recorded, including existing ones; None: all.

        Raises:
            MusterError: the file cannot be written, or there are several brokers.
        """
        path = Path(path).absolute()
        body = {"path": str(path), **({} if topics is None else {"topics": sorted(_several(topics, "topics"))})}
        self._alone("recording", body)
        try:
            yield path
        finally:
            self.ask_all("DELETE", "recording")

    @contextmanager
    def replay(
        self,
        path: Path | str,
        *,
        client: str | None = None,
        group: str | None = None,
        pace: float = 1.0,
        patience_s: float = DEFAULT_TIMEOUT_S,
    ) -> Iterator[Replay]:
        """Within the block, replay a recording: the same records, expired sessions and faults, at the same points of
        the group's work.

        Args:
            client: the recorded member that the code under test replaces; all others are simulated. None: the code
                under test is all of them.
            group: the group's name here, if it differs from the recorded one.
            pace: a factor for recorded times; 0: wait only for the group, not for time.
            patience_s: how long to wait for each commit and generation before continuing without it.

        Raises:
            MusterError: the file is not a recording or is damaged, one of its topics exists, or there are several
                brokers.
        """
        body: dict[str, Any] = {"path": str(Path(path).absolute()), "pace": pace}
        body |= {name: value for name, value in (("client", client), ("group", group)) if value is not None}
        self._alone("replay", {**body, "patience_ms": round(_number(patience_s, "patience_s") * 1000)})
        try:
            yield Replay(self)
        finally:
            self.ask_all("DELETE", "replay")

    def _alone(self, what: str, body: Mapping[str, Any]) -> None:
        if self._backend.count() > 1:
            raise MusterError(f"a {what} needs a single broker, and this kit has {self._backend.count()}")
        self.ask_all("POST", what, body)

    # ---------------------------------------------------------------------------------------- what the brokers can say

    def requests(self, api: str | None = None, client: str | None = None) -> int:
        """How many requests there were, of an API and a client."""
        return sum(
            each["count"]
            for each in self._said("requests")
            if api in (None, each["api"]) and client in (None, each["client"])
        )

    def _said(self, what: str) -> list[dict[str, Any]]:
        """The lines of all brokers' stories, or of their counts of requests."""
        return [each for answer in [*self._past, *self.ask_all("GET", what)] for each in answer.get(what, ())]

    def view(self, group_id: str) -> dict[str, Any]:
        """As `Group.now`."""
        found = self.ask_coordinator(group_id, "GET", f"groups/{quote(group_id, safe='')}")
        if self._backend.count() > 1:
            everywhere = [each["ends"] for each in self.ask_all("GET", "ends")]
            for topic in found["ends"]:
                ends = [pair for led in everywhere for pair in led.get(topic, {}).items()]
                found["ends"][topic] = dict(sorted(ends, key=lambda pair: int(pair[0])))
        return found

    def groups(self) -> list[str]:
        """The groups of all brokers."""
        return sorted(group for answer in self.ask_all("GET", "groups") for group in answer["groups"])

    def story(self, group_id: str | None = None) -> str:
        """What happened, in order: events of groups (or of one), faults that struck, what the test did."""
        said = sorted(self._said("story"), key=lambda each: int(each["at_ms"]))
        lines = [
            f"  {(each['at_ms'] - said[0]['at_ms']) / 1000:8.3f}  "
            + (f"{each['group']}: {each['line']}" if each["group"] else each["line"])
            for each in said
            if group_id in (None, each["group"]) or not each["group"]
        ]
        omitted = f"  … {len(lines) - STORY_LINES} lines before\n" if len(lines) > STORY_LINES else ""
        counted: Counter[str] = Counter()
        for each in self._said("requests"):
            if each["client"] == KIT_CLIENT:
                continue
            counted[f"{each['client'] or '(no client id)'}: {each['api']}"] += each["count"]
        requests = ", ".join(f"{what} {count}" for what, count in sorted(counted.items()))
        happened = f"\n{omitted}" + "\n".join(lines[-STORY_LINES:]) if lines else " nothing"
        return f"What happened:{happened}\nRequests: {requests or 'none'}"

    def account(self) -> str:
        """The current state of affected groups, and the story: for the report of a failed test."""
        try:
            groups = {each["group"] for each in self._said("story")} | {group_id for group_id, _ in self.members()}
            return "\n".join([*(self._described_now(group_id) for group_id in sorted(groups - {""})), self.story()])
        except MusterError as error:
            return f"The brokers do not answer: {error}"

    def _described_now(self, group_id: str) -> str:
        try:
            return _described(self.view(group_id))
        except MusterError as error:  # its broker does not run
            return f"Group {group_id}: {error}"

    def ask_all(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
        """Send a command to every running broker."""
        servers = self._backend.servers()
        return [
            self._asked(place, method, path, body)
            for place in range(self._backend.count())
            if not servers or (servers[place].pid is not None and not servers[place].is_frozen)
        ]

    def ask_coordinator(
        self, group_id: str, method: str, path: str, body: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Send a command to the broker that coordinates a group."""
        return self._asked(self._coordinator(group_id) or 0, method, path, body)

    def _coordinator(self, group_id: str) -> int | None:
        servers = self._backend.servers()
        if len(servers) < 2:
            return 0
        for place, server in enumerate(servers):
            if server.pid is None or server.is_frozen:
                continue
            _, found = self._backend.ask(place, "GET", f"groups/{quote(group_id, safe='')}", None)
            if found.get("state") != "Dead":
                return place
        return None

    def _asked(self, broker: int, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        status, answer = self._backend.ask(broker, method, path, body)
        if status != HTTPStatus.OK:
            raise MusterError(answer.get("error", str(answer)))
        return answer


def assert_handled_once(handled: Iterable[Any], expected: Iterable[Any]) -> None:
    """Assert that each of `expected` was handled exactly once, and nothing else was. Raises AssertionError."""
    __tracebackhide__ = True
    counts, wanted = Counter(handled), set(expected)
    missing = sorted(wanted - counts.keys(), key=repr)
    twice = sorted((each for each, count in counts.items() if count > 1), key=repr)
    foreign = sorted(counts.keys() - wanted, key=repr)
    wrong = [
        f"{len(found)} {text}: {', '.join(map(repr, found[:10]))}{' …' if len(found) > 10 else ''}"
        for found, text in ((missing, "not handled"), (twice, "handled more than once"), (foreign, "not expected"))
        if found
    ]
    assert not wrong, "; ".join(wrong)


def _numbers(answer: Mapping[str, Any]) -> Counter[str]:
    """The counts in a broker's answer about a fault."""
    return Counter({name: answer[name] for name in ("seen", "struck", "held", "released") if name in answer})


def _several(values: Iterable[T], name: str) -> Iterable[T]:
    """Refuse text, which is iterable too."""
    if isinstance(values, str | bytes):
        raise MusterError(f"{name}={values!r}: it must be a list")
    return values


def _records(records: Iterable[bytes | tuple[bytes | None, bytes | None]]) -> list[tuple[bytes | None, bytes | None]]:
    """Their keys and values."""
    pairs = [each if isinstance(each, tuple) else (None, each) for each in _several(records, "records")]
    for pair in pairs:
        if len(pair) != 2 or not all(isinstance(each, bytes | None) for each in pair):
            raise MusterError(f"records has {pair!r}: a key and a value are bytes or None; encode text")
    return pairs


def _number(value: float, name: str) -> float:
    if not isinstance(value, int | float):
        raise MusterError(f"{name}={value!r}: it must be a number of seconds")
    return value


def _on_a_loop() -> str:
    """A hint for a wait that has blocked the event loop, and with it the clients running on it."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return ""
    return "\nThis wait blocked the event loop, and every client on it: await it, with muster.testing.AsyncKafka."


def read_from(reader: muster.Consumer, starts: Mapping[TopicPartition, int]) -> Iterator[ConsumerRecord]:
    """The records from these offsets up to the current ends of their partitions.

    Raises:
        WaitTimeoutError: nothing was fetched for DEFAULT_TIMEOUT_S, as when a leader does not answer.
    """
    reader.assign(list(starts))
    ends = reader.end_offsets(list(starts))
    for place, offset in starts.items():
        reader.seek(place, offset)
    deadline = time.monotonic() + DEFAULT_TIMEOUT_S
    while left := [f"{place} at {at} of {end}" for place, end in ends.items() if (at := reader.position(place)) < end]:
        batches = reader.poll(200)
        if batches:
            deadline = time.monotonic() + DEFAULT_TIMEOUT_S
        elif time.monotonic() > deadline:
            raise WaitTimeoutError(f"no records were fetched for {DEFAULT_TIMEOUT_S:g} s: {', '.join(left)}")
        for place, batch in batches.items():
            yield from (each for each in batch if each.offset < ends[place])


def _described(group: Mapping[str, Any]) -> str:
    members = [
        f"  {each['client_id']} ({each['instance_id'] or each['member_id']}): "
        + (", ".join(f"{topic} {partitions}" for topic, partitions in each["partitions"].items()) or "no partitions")
        for each in group["members"]
    ]
    state = f"Group {group['group']}: {group['state']}, generation {group['generation']}, {len(members)} member(s)"
    offsets = [
        f"  committed in {topic}: {found} of {group['ends'].get(topic)}" for topic, found in group["offsets"].items()
    ]
    return "\n".join([state, *members, *offsets])
