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
from muster.testing.backends import Backend, BrokerAwayError, start_backend
from muster.testing.recordings import recording
from muster.testing.rules.conditions import missing

T = TypeVar("T")

FOR_TESTS: dict[str, object] = {
    "group.initial.rebalance.delay.ms": 0,
    "group.min.session.timeout.ms": 100,
    "offsets.topic.num.partitions": 1,
    # Every Fetch names all of its partitions, so that faults for a topic match it.
    "max.incremental.fetch.session.cache.slots": 0,
    # A killed broker of a cluster can rejoin after this time.
    "zookeeper.session.timeout.ms": 6_000,
}
"""Settings of test brokers that differ from a broker's defaults. A group's first member does not wait for others, and
sessions may be short."""

DEFAULT_TIMEOUT_S = 30.0
POLL_INTERVAL_S = 0.05
"""How often a wait polls several brokers."""
STORY_LINES = 25
KIT_CLIENT = "muster-testing"
"""The client id of the kit's own clients, which stories omit."""
_NUMBERS = itertools.count(1)
_EXPECTED = {
    "assigned": "be assigned",
    "stable": "be stable",
    "committed": "commit",
    "lag_zero": "commit everything",
    "empty": "be empty",
}
"""The words for a condition (conditions.py) in the message of a wait that timed out."""


class When(TypedDict, total=False):
    """Which requests a fault matches, and when it strikes: see `muster.testing.rules.faults.Rule`."""

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
    """Disk failures to simulate. Failures that a call does not mention stay unchanged."""

    full: bool
    sync_delay_ms: int
    fail: bool


class WaitTimeoutError(MusterError, AssertionError):
    """A wait timed out. The message says what was missing, and what has happened so far."""


class Fault:
    """A fault, active until it is removed or its `with` block ends."""

    def __init__(self, kafka: Kafka, body: dict[str, Any]) -> None:
        self._kafka = kafka
        self._active = True
        self._kept: Counter[str] = Counter()
        """The counts from brokers that were stopped; once the fault is removed, from all brokers."""
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
        answers = self._kafka.ask_all(method, self._place + path) if self._active else []
        return sum((_counts(each) for each in answers), self._kept)

    @property
    def seen(self) -> int:
        """How many requests it has matched, whether it struck them or not. Known after its removal too."""
        return self._now()["seen"]

    @property
    def struck(self) -> int:
        """How many times it has struck. Known after its removal too."""
        return self._now()["struck"]

    @property
    def held(self) -> int:
        """How many requests it is holding."""
        return self._now()["held"]

    def release(self) -> int:
        """Let the held requests be handled. Returns how many. The fault stays active."""
        return self._now("POST", "/release")["released"]

    def remove(self) -> None:
        """Remove it, and let the held requests be handled."""
        self._kafka.forget(self)

    def _end(self) -> None:
        """For `Kafka.forget`: keep its counts."""
        try:
            last = self._now("DELETE")
        finally:
            self._active = False
        self._kept = Counter(seen=last["seen"], struck=last["struck"])

    def _keep(self, answer: Mapping[str, Any]) -> None:
        """Keep the counts of a broker that is about to stop."""
        last = _counts(answer)
        self._kept += Counter(seen=last["seen"], struck=last["struck"])

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
        """The group's state, generation, members with their partitions, committed offsets, and log ends."""
        return self._kafka.view(self.group_id)

    def expire(self, member: str | None = None) -> None:
        """Expire the sessions of the members whose client id, member id or group.instance.id matches a pattern; by
        default, of all members."""
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
        body = {name: value for name, value in body.items() if value is not None}
        self._kafka.ask_coordinator(self.group_id, "POST", f"groups/{quote(self.group_id, safe='')}/{what}", body)


class GroupClock:
    """The groups' clock."""

    def __init__(self, kafka: Kafka) -> None:
        self._kafka = kafka

    def advance(self, seconds: float, silent: str | None = None) -> None:
        """Advance the clock: the sessions, rebalance timeouts and offsets that are due by then expire.

        No member counts as having sent a heartbeat meanwhile. With `silent`, a pattern of client ids, member ids or
        group.instance.ids, all members that do not match it count as having sent one.
        """
        body = {
            "advance_ms": round(_checked_seconds(seconds, "seconds") * 1000),
            **({} if silent is None else {"silent": silent}),
        }
        self._kafka.ask_all("POST", "clock", body)


class Replay:
    """A recording that is being replayed on a broker (`Kafka.replay`)."""

    def __init__(self, kafka: Kafka) -> None:
        self._kafka = kafka

    def now(self) -> dict[str, Any]:
        """The progress: how many `lines` there are, how many have `passed`, whether the replay is `over`, what it
        `waits_for`, and the `differences` so far."""
        return self._kafka.ask_all("GET", "replay")[0]

    @property
    def differences(self) -> list[str]:
        """Commits and generations that did not happen in time, and what could not be repeated."""
        differences: list[str] = self.now()["differences"]
        return differences

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
        self._arguments = {
            "brokers": brokers,
            "in_process": in_process,
            "settings": FOR_TESTS | dict(settings or {}),
            "folder": None if folder is None else Path(folder),
            "seed": seed,
        }
        self.strict = strict
        self.clock = GroupClock(self)
        self._block = ExitStack()
        self._running: Backend | None = None
        self._faults: list[Fault] = []
        self._admin: muster.Admin | None = None
        self._never_struck: list[str] = []
        """Removed faults that never struck, if the kit is strict."""
        self._disk_fails = False
        self._kept: list[dict[str, Any]] = []
        """The stories of brokers, and their counts of requests, from before they were killed or stopped."""

    def __enter__(self) -> Self:
        if self._running is not None:
            raise MusterError("these brokers are running already: create another Kafka")
        with ExitStack() as block:
            self._running = start_backend(block, **self._arguments)  # type: ignore[arg-type]
            self._block = block.pop_all()
        self._faults, self._kept, self._never_struck, self._admin, self._disk_fails = [], [], [], None, False
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
                "these brokers are not running: use them in a `with` block, `with muster.testing.kafka() as kafka`"
            )
        return self._running

    # ---------------------------------------------------------------------------------------------------- between tests

    def begin(self) -> None:
        """Begin a test: `story` and `requests` leave out what happened before."""
        self._kept = []
        self.ask_all("POST", "begin")

    def members(self) -> list[tuple[str, str]]:
        """The members of all groups, as pairs of group id and client id."""
        return sorted((group, client) for each in self.ask_all("GET", "members") for group, client in each["members"])

    def clean_up(self) -> None:
        """Remove all faults. Raises AssertionError if the kit is `strict` and one never struck."""
        for fault in list(self._faults):
            fault.remove()
        never_struck, self._never_struck = self._never_struck, []
        if never_struck:
            raise AssertionError(f"fault(s) that never struck: {', '.join(never_struck)}")

    def revive(self) -> None:
        """Thaw the frozen brokers, and start those that were killed or stopped."""
        for place, server in enumerate(self.brokers):
            if server.pid is None:
                self.start(place)
            elif server.is_frozen:
                self.thaw(place)

    def heal(self) -> None:
        """`revive` the brokers, remove all faults, and let the disk work again."""
        self.revive()
        for fault in list(self._faults):
            fault.remove()
        self._never_struck = []
        if self._disk_fails:
            self.disk(full=False, sync_delay_ms=0, fail=False)
            self._disk_fails = False

    def reset(self, staying: Iterable[tuple[str, str]] = ()) -> None:
        """End a test: `heal`, and expire all group members except `staying` (pairs of group id and client id)."""
        self.heal()
        self.ask_all("POST", "reset", {"staying": sorted(set(staying))})

    @property
    def bootstrap(self) -> str:
        """The brokers' addresses, for `bootstrap.servers`."""
        return self._backend.bootstrap

    # ----------------------------------------------------------------------------------------------- the brokers' lives

    @property
    def brokers(self) -> list[LocalBroker]:
        """The brokers' processes; empty with `in_process`."""
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
            self._ask(broker, "POST", "faults", fault.body)

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
            self._kept += [self._ask(broker, "GET", path) for path in ("story", "requests")]
            for fault in list(self._faults):  # another thread may be removing one
                fault._keep(self._backend.ask(broker, "GET", fault._place, None)[1])

    def _process(self, broker: int) -> LocalBroker:
        if not self.brokers:
            raise MusterError("a broker in this process cannot be killed, stopped or frozen: leave in_process out")
        if broker not in range(len(self.brokers)):
            raise MusterError(f"broker={broker!r}: brokers are numbered from 0 to {len(self.brokers) - 1}")
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
        """Delete a topic with its records, and create it again with the same number of partitions."""
        partitions = len(self.admin.describe_topics([topic])[topic].partitions)
        self.admin.delete_topics([topic])
        self.admin.create_topics([muster.NewTopic(topic, partitions)])

    def fence_producer(self, transactional_id: str) -> None:
        """Fence the producer with this transactional id, as if another one had started. Its transaction is aborted."""
        self.admin.fence_producers([transactional_id])

    def delete_records(self, topic: str, before: int, partition: int = 0) -> None:
        """Delete a partition's records before an offset, as if retention had overtaken a consumer."""
        self.admin.delete_records({TopicPartition(topic, partition): before})

    def records(self, topic: str) -> list[ConsumerRecord]:
        """The current records of a topic, by partition and offset."""
        reader = muster.Consumer(bootstrap_servers=self.bootstrap, client_id=KIT_CLIENT, fetch_max_wait_ms=20)
        with reader:
            partitions = [TopicPartition(topic, each.partition) for each in reader.partitions_for(topic)]
            records = list(read_from(reader, reader.beginning_offsets(partitions)))
        return sorted(records, key=lambda record: (record.partition, record.offset))

    def until_records(self, topic: str, count: int, timeout_s: float = DEFAULT_TIMEOUT_S) -> list[ConsumerRecord]:
        """Wait for `count` records in a topic, and return all its records. Raises WaitTimeoutError."""
        records: list[ConsumerRecord] = []

        def enough() -> bool:
            nonlocal records
            records = self.records(topic)
            return len(records) >= count

        self.until(enough, lambda: f"{count} record(s) in {topic}: there are {len(records)}", timeout_s)
        return records

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
            raise MusterError(f"offsets={offsets!r}: it must be a number of records, or offsets by partition")
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

        A broker may be down meanwhile and come back, as in all waits.
        """
        __tracebackhide__ = True  # a report shows the test's line
        deadline = time.monotonic() + _checked_seconds(timeout_s, "timeout_s")
        while not self._unless_away(condition, deadline):
            if time.monotonic() > deadline:
                text = what if isinstance(what, str) else what()
                raise WaitTimeoutError(f"waited {timeout_s:g} s for {text}\n{self.story()}{_event_loop_hint()}")
            time.sleep(0.01)

    @contextmanager
    def assert_no_rebalance(self, group_id: str) -> Iterator[None]:
        """Raises AssertionError if the group rebalances within the block."""
        before = self.view(group_id)["generation"]
        yield
        after = self.view(group_id)
        if (after["generation"], after["state"]) != (before, "Stable"):
            text = (
                f"group {group_id} rebalanced: it was in generation {before} and is in {after['generation']}, "
                f"{after['state']}"
            )
            raise AssertionError(f"{text}\n{self.story(group_id)}")

    def _wait(self, until: str, group_id: str, timeout_s: float, **wanted: object) -> dict[str, Any]:
        __tracebackhide__ = True
        wait = {"until": until, "group": group_id, **{k: v for k, v in wanted.items() if v is not None}}
        deadline = time.monotonic() + _checked_seconds(timeout_s, "timeout_s")
        while True:
            left_s = max(deadline - time.monotonic(), 0)
            reply = self._unless_away(partial(self._poll_wait, wait, left_s), deadline)
            if reply is None:
                time.sleep(POLL_INTERVAL_S)
                continue
            status, answer = reply
            if status == HTTPStatus.OK:
                return answer
            if status != HTTPStatus.REQUEST_TIMEOUT:
                raise MusterError(answer["error"])
            if time.monotonic() >= deadline:
                text = f"waited {timeout_s:g} s for group {group_id} to {_EXPECTED[until]}: {answer['missing']}"
                group = _described(answer["group"])
                raise WaitTimeoutError(f"{text}\n{group}\n{self.story(group_id)}{_event_loop_hint()}")

    def _poll_wait(self, wait: Mapping[str, Any], left_s: float) -> tuple[int, dict[str, Any]]:
        """The answer to a wait. A single broker does the waiting. Several are polled once, since each knows only the
        ends of its own logs, and a group that does not exist yet may be coordinated by any of them."""
        if self._backend.count() == 1:
            return self._backend.ask(0, "POST", "wait", {**wait, "timeout_ms": round(left_s * 1000)})
        view = self.view(wait["group"])
        what = missing(view, wait)
        if what is None:
            return HTTPStatus.OK, view
        time.sleep(min(POLL_INTERVAL_S, left_s))
        return HTTPStatus.REQUEST_TIMEOUT, {"missing": what, "group": view}

    def _unless_away(self, question: Callable[[], T], deadline: float) -> T | None:
        """The answer to a question; None while a broker is down: another thread may be restarting it."""
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

        `do` is one of `EFFECTS` in `muster.testing.rules.faults`; the keywords are the fields of its `Rule`.

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
        """Hold a request until the fault releases it or is removed."""
        return self.fault("hold", api, **when)

    def lose_request(self, api: str, **when: Unpack[When]) -> Fault:
        """Close the connection instead of handling a request."""
        return self.fault("lose_request", api, **when)

    def lose_answer(self, api: str, **when: Unpack[When]) -> Fault:
        """Handle a request, then close its connection instead of answering."""
        return self.fault("lose_answer", api, **when)

    def disk(self, **change: Unpack[DiskTrouble]) -> None:
        """Let the disk fail. `full=True`: writes fail with ENOSPC. `sync_delay_ms=…`: syncs take longer. `fail=True`:
        syncs fail, and the broker stops, as Kafka does."""
        unknown = change.keys() - DiskTrouble.__annotations__.keys()
        if unknown:
            known = ", ".join(DiskTrouble.__annotations__)
            raise MusterError(f"{', '.join(sorted(unknown))} is not a disk failure: choose from {known}")
        self._disk_fails = True
        self.ask_all("POST", "disk", change)

    def disconnect(self, client: str = "*") -> int:
        """Close the connections of clients whose id matches a pattern. Returns how many."""
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
                self._never_struck.append(fault.name)

    # ------------------------------------------------------------------------------------------------------ recordings

    @contextmanager
    def record(self, path: Path | str, *, topics: Iterable[str] | None = None) -> Iterator[Path]:
        """Within the block, record what happens to groups (records, rebalances, commits, faults) in a file for
        `replay`.

        Args:
            topics: the topics whose records are recorded, including existing ones; None: all.

        Warns:
            UserWarning: the recording ends before the block: it became too large, or the broker was stopped or killed.

        Raises:
            MusterError: the file cannot be written, which may be found at the end of the block; or there are several
                brokers.
        """
        path = Path(path).absolute()
        body = {"path": str(path), **({} if topics is None else {"topics": sorted(_checked_list(topics, "topics"))})}
        self._on_single_broker("recording", body)
        try:
            yield path
        except BaseException:
            self.ask_all("DELETE", "recording")  # the block's own error is the one to raise
            raise
        recording.check_ended(path, next((each["why"] for each in self.ask_all("DELETE", "recording") if each), None))

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
                under test replaces all members.
            group: the group's name in the replay, if it differs from the recorded one.
            pace: a factor for the recorded pauses; 0: wait only for the group, without pauses.
            patience_s: how long to wait for each commit and generation before continuing without it.

        Raises:
            MusterError: the file is not a recording or is damaged, one of its topics exists, or there are several
                brokers.
        """
        body: dict[str, Any] = {"path": str(Path(path).absolute()), "pace": pace}
        body |= {name: value for name, value in (("client", client), ("group", group)) if value is not None}
        self._on_single_broker(
            "replay", {**body, "patience_ms": round(_checked_seconds(patience_s, "patience_s") * 1000)}
        )
        try:
            yield Replay(self)
        finally:
            self.ask_all("DELETE", "replay")

    def _on_single_broker(self, what: str, body: Mapping[str, Any]) -> None:
        if self._backend.count() > 1:
            raise MusterError(f"a {what} needs a single broker, and this kit has {self._backend.count()}")
        self.ask_all("POST", what, body)

    # ------------------------------------------------------------------------------------------- reports of the brokers

    def requests(self, api: str | None = None, client: str | None = None) -> int:
        """How many requests there were; with arguments, of one API, from one client."""
        return sum(
            each["count"]
            for each in self._collect("requests")
            if api in (None, each["api"]) and client in (None, each["client"])
        )

    def _collect(self, what: str) -> list[dict[str, Any]]:
        """The lines of all brokers' stories, or of their counts of requests."""
        return [each for answer in [*self._kept, *self.ask_all("GET", what)] for each in answer.get(what, ())]

    def view(self, group_id: str) -> dict[str, Any]:
        """See `Group.now`."""
        found = self.ask_coordinator(group_id, "GET", f"groups/{quote(group_id, safe='')}")
        if self._backend.count() > 1:
            everywhere = [each["ends"] for each in self.ask_all("GET", "ends")]
            for topic in found["ends"]:
                ends = [pair for led in everywhere for pair in led.get(topic, {}).items()]
                found["ends"][topic] = dict(sorted(ends, key=lambda pair: int(pair[0])))
        return found

    def groups(self) -> list[str]:
        """The ids of all groups."""
        return sorted(group for answer in self.ask_all("GET", "groups") for group in answer["groups"])

    def story(self, group_id: str | None = None) -> str:
        """What happened, in order: events of groups (or of one group), faults that struck, what the test did."""
        entries = sorted(self._collect("story"), key=lambda each: int(each["at_ms"]))
        lines = [
            f"  {(each['at_ms'] - entries[0]['at_ms']) / 1000:8.3f}  "
            + (f"{each['group']}: {each['line']}" if each["group"] else each["line"])
            for each in entries
            if group_id in (None, each["group"]) or not each["group"]
        ]
        omitted = f"  … {len(lines) - STORY_LINES} earlier lines\n" if len(lines) > STORY_LINES else ""
        counted: Counter[str] = Counter()
        for each in self._collect("requests"):
            if each["client"] == KIT_CLIENT:
                continue
            counted[f"{each['client'] or '(no client id)'}: {each['api']}"] += each["count"]
        requests = ", ".join(f"{what} {count}" for what, count in sorted(counted.items()))
        happened = f"\n{omitted}" + "\n".join(lines[-STORY_LINES:]) if lines else " nothing"
        return f"What happened:{happened}\nRequests: {requests or 'none'}"

    def account(self) -> str:
        """The current state of affected groups, and the story: for the report of a failed test."""
        try:
            groups = {each["group"] for each in self._collect("story")} | {group_id for group_id, _ in self.members()}
            return "\n".join([*(self._described_now(group_id) for group_id in sorted(groups - {""})), self.story()])
        except MusterError as error:
            return f"The brokers do not answer: {error}"

    def _described_now(self, group_id: str) -> str:
        try:
            return _described(self.view(group_id))
        except MusterError as error:  # its broker is not running
            return f"Group {group_id}: {error}"

    def ask_all(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
        """Send a command to every running broker."""
        servers = self._backend.servers()
        return [
            self._ask(place, method, path, body)
            for place in range(self._backend.count())
            if not servers or (servers[place].pid is not None and not servers[place].is_frozen)
        ]

    def ask_coordinator(
        self, group_id: str, method: str, path: str, body: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Send a command to the broker that coordinates a group."""
        return self._ask(self._coordinator(group_id) or 0, method, path, body)

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

    def _ask(self, broker: int, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        status, answer = self._backend.ask(broker, method, path, body)
        if status != HTTPStatus.OK:
            raise MusterError(answer.get("error", str(answer)))
        return answer


def assert_handled_once(handled: Iterable[Any], expected: Iterable[Any]) -> None:
    """Assert that each of `expected` was handled exactly once, and nothing else. Raises AssertionError."""
    __tracebackhide__ = True
    counts, wanted = Counter(handled), set(expected)
    missing = sorted(wanted - counts.keys(), key=repr)
    twice = sorted((each for each, count in counts.items() if count > 1), key=repr)
    foreign = sorted(counts.keys() - wanted, key=repr)
    wrong = [
        f"{len(values)} {text}: {', '.join(map(repr, values[:10]))}{' …' if len(values) > 10 else ''}"
        for values, text in ((missing, "not handled"), (twice, "handled more than once"), (foreign, "not expected"))
        if values
    ]
    assert not wrong, "; ".join(wrong)


def _counts(answer: Mapping[str, Any]) -> Counter[str]:
    """The counts in a broker's answer about a fault."""
    return Counter({name: answer[name] for name in ("seen", "struck", "held", "released") if name in answer})


def _checked_list(values: Iterable[T], name: str) -> Iterable[T]:
    """The values, unless they are a str or bytes, which would be split up. Raises MusterError."""
    if isinstance(values, str | bytes):
        raise MusterError(f"{name}={values!r}: it must be a list")
    return values


def _records(records: Iterable[bytes | tuple[bytes | None, bytes | None]]) -> list[tuple[bytes | None, bytes | None]]:
    """Pairs of key and value. Raises MusterError."""
    pairs = [each if isinstance(each, tuple) else (None, each) for each in _checked_list(records, "records")]
    for pair in pairs:
        if len(pair) != 2 or not all(isinstance(each, bytes | None) for each in pair):
            raise MusterError(f"records has {pair!r}: keys and values must be bytes or None; encode text")
    return pairs


def _checked_seconds(value: float, name: str) -> float:
    if not isinstance(value, int | float):
        raise MusterError(f"{name}={value!r}: it must be a number of seconds")
    return value


def _event_loop_hint() -> str:
    """A hint about a wait that blocked the event loop, and with it the clients that run on it."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return ""
    return "\nThis wait blocked the event loop and every client on it: use muster.testing.AsyncKafka, and await it."


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
    committed = [
        f"  committed in {topic}: {offsets} of {group['ends'].get(topic)}"
        for topic, offsets in group["offsets"].items()
    ]
    return "\n".join([state, *members, *committed])
