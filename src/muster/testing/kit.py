"""The testing kit's face: brokers for a test, and what a test does with them."""

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

T = TypeVar("T")

FOR_TESTS: dict[str, object] = {
    "group.initial.rebalance.delay.ms": 0,
    "group.min.session.timeout.ms": 100,
    "offsets.topic.num.partitions": 1,
    # A fetch names all of its partitions each time, so that faults about a topic find it.
    "max.incremental.fetch.session.cache.slots": 0,
}
"""The settings of a kit's brokers that differ from a broker's own: a group's first member does not wait for others, a
session may be short."""

DEFAULT_TIMEOUT_S = 30.0
STORY_LINES = 25
KIT_CLIENT = "muster-testing"
"""The client id of the kit's own clients, which stories leave out."""
_NUMBERS = itertools.count(1)


class When(TypedDict, total=False):
    """Which requests a fault is about, and when it strikes: see `muster.testing.rules.Rule`."""

    name: str
    client: str | None
    group: str | None
    member: str | None
    topic: str | None
    partition: int | None
    nth: int | None
    after: int
    every: int
    times: int | None
    probability: float


class FaultFields(When, total=False):
    """The fields of a fault, beside its effect and its requests."""

    error: str
    delay_ms: int
    throttle_ms: int


class DiskTrouble(TypedDict, total=False):
    """What the brokers' disk suffers from; what is not named stays as it is."""

    full: bool
    sync_delay_ms: int
    fail: bool


class WaitTimeoutError(MusterError, AssertionError):
    """What a test waited for did not come: the message has what was missing, and the story so far."""


class Fault:
    """A fault that stands until it is removed, or until the end of its `with` block."""

    def __init__(self, kafka: Kafka, body: dict[str, Any]) -> None:
        self._kafka = kafka
        self.body = body
        """As the control port takes it."""

    @property
    def name(self) -> str:
        """Its name, in stories."""
        return str(self.body["name"])

    def _now(self, method: str = "GET", path: str = "") -> dict[str, int]:
        found = [each for each in self._kafka.ask_all(method, f"faults/{quote(self.name, safe='')}{path}") if each]
        keys = {key for each in found for key, value in each.items() if isinstance(value, int)}
        return {key: sum(each[key] for each in found) for key in keys}

    @property
    def seen(self) -> int:
        """How many requests it was about."""
        return self._now()["seen"]

    @property
    def struck(self) -> int:
        """How often it struck."""
        return self._now()["struck"]

    @property
    def held(self) -> int:
        """How many requests it holds."""
        return self._now()["held"]

    def release(self) -> int:
        """Have the requests that it holds handled; returns how many. It stands on."""
        return self._now("POST", "/release")["released"]

    def remove(self) -> None:
        """End it, and have the requests that it holds handled."""
        self._kafka.forget(self)

    def wait_struck(self, times: int = 1, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        """Return when it has struck so often. Raises WaitTimeoutError."""
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
        """The session of a member ends now, or of all: those whose client id, member id or group.instance.id matches
        the pattern."""
        self._do("expire", member=member)

    def rebalance(self) -> None:
        """All members have to rejoin."""
        self._do("rebalance")

    def fence(self, instance: str) -> None:
        """Another program joins with a static member's group.instance.id: the member is fenced."""
        self._do("fence", instance=instance)

    def reload(self) -> None:
        """The coordinator forgets the group and reads it again, as one does that takes it over."""
        self._do("reload")

    def _do(self, what: str, **body: str | None) -> None:
        given = {name: value for name, value in body.items() if value is not None}
        self._kafka.ask_coordinator(self.group_id, "POST", f"groups/{quote(self.group_id, safe='')}/{what}", given)


class Clock:
    """The time of the brokers' groups."""

    def __init__(self, kafka: Kafka) -> None:
        self._kafka = kafka

    def advance(self, seconds: float, silent: str | None = None) -> None:
        """Let time pass at once: sessions, rebalances and the retention of offsets that are due then end.

        No client has sent a heartbeat meanwhile. With `silent`, a pattern of client ids, member ids or instance ids,
        only those have not.
        """
        body = {"advance_ms": round(seconds * 1000), **({} if silent is None else {"silent": silent})}
        self._kafka.ask_all("POST", "clock", body)


class Kafka:
    """Brokers for tests: a context manager. Any client reaches them by `bootstrap`.

    The arguments are those of `muster.testing.kafka`; FOR_TESTS are settings too.

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
        self._backend: Backend
        self._faults: list[Fault] = []
        self._admin: muster.Admin | None = None
        self._idle: list[str] = []
        """The faults that were removed, and had never struck, where that matters."""
        self._troubled = False
        self._past: list[dict[str, Any]] = []
        """The stories of brokers that were killed or stopped."""

    def __enter__(self) -> Self:
        with ExitStack() as block:
            self._backend = started(block, **self._how)  # type: ignore[arg-type]
            self._block = block.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self.clean_up()
        finally:
            if self._admin is not None:
                self._admin.close()
            self._block.close()

    # ---------------------------------------------------------------------------------------------------- between tests

    def begin(self) -> None:
        """A test begins: what has happened so far is left out of `story` and `requests`."""
        self._past = []
        self.ask_all("POST", "begin")

    def members(self) -> list[tuple[str, str]]:
        """The members of all groups: pairs of group and client id."""
        return sorted((group, client) for each in self.ask_all("GET", "members") for group, client in each["members"])

    def clean_up(self) -> None:
        """Remove all faults. Raises AssertionError if one has never struck and the kit is `strict`."""
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
        """A test has ended: `heal`, and end the sessions of all members of groups but those that stay, which are pairs
        of group and client id."""
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
        """End a broker's process as `kill -9` does; `start` brings it back on its data."""
        self._keep_story(broker)
        self._process(broker).kill()

    def stop(self, broker: int = 0) -> None:
        """Stop a broker in order; `start` brings it back."""
        self._keep_story(broker)
        self._process(broker).stop()

    def start(self, broker: int = 0) -> None:
        """Start a broker that was killed or stopped, with the faults that stand. They count from 0 again."""
        self._process(broker).start()
        for fault in self._faults:
            self._checked(self._backend.ask(broker, "POST", "faults", fault.body))

    def freeze(self, broker: int = 0) -> None:
        """Suspend a broker's process: its connections stay open, nothing is answered."""
        self._process(broker).freeze()

    def thaw(self, broker: int = 0) -> None:
        """Resume a frozen one."""
        self._process(broker).thaw()

    def _keep_story(self, broker: int) -> None:
        """Keep what a broker can say, which ends with its process."""
        server = self._process(broker)
        if server.pid is not None and not server.is_frozen:
            self._past += [
                self._checked(self._backend.ask(broker, "GET", path, None)) for path in ("story", "requests")
            ]

    def _process(self, broker: int) -> LocalBroker:
        if not self.brokers:
            raise MusterError("a broker in this process cannot be ended or frozen: leave in_process out")
        return self.brokers[broker]

    # --------------------------------------------------------------------------------------------- topics and records

    @property
    def admin(self) -> muster.Admin:
        """An admin client."""
        if self._admin is None:
            self._admin = muster.Admin(bootstrap_servers=self.bootstrap, client_id=KIT_CLIENT)
        return self._admin

    def topic(
        self,
        name: str | None = None,
        *,
        partitions: int = 1,
        records: Iterable[bytes | tuple[bytes | None, bytes | None]] = (),
        settings: Mapping[str, str] | None = None,
    ) -> str:
        """Create a topic, by default of a name that no other has, with records: values, or pairs of key and value."""
        name = name or f"topic-{next(_NUMBERS)}"
        self.admin.create_topics([muster.NewTopic(name, partitions, configs=dict(settings or {}))])
        self.produce(name, records)
        return name

    def produce(self, topic: str, records: Iterable[bytes | tuple[bytes | None, bytes | None]]) -> None:
        """Write records, and return when all are acknowledged."""
        wanted = list(records)
        if not wanted:
            return
        with muster.Producer(bootstrap_servers=self.bootstrap, client_id=KIT_CLIENT) as producer:
            for record in wanted:
                key, value = record if isinstance(record, tuple) else (None, record)
                producer.send(topic, value, key=key)
            producer.flush()

    def recreate(self, topic: str) -> None:
        """Delete a topic with its records, and create it again with as many partitions."""
        partitions = len(self.admin.describe_topics([topic])[topic].partitions)
        self.admin.delete_topics([topic])
        self.admin.create_topics([muster.NewTopic(topic, partitions)])

    def delete_records(self, topic: str, before: int, partition: int = 0) -> None:
        """Delete a partition's records before an offset, as retention does that passes a reader."""
        self.admin.delete_records({TopicPartition(topic, partition): before})

    def records(self, topic: str) -> list[ConsumerRecord]:
        """All records of a topic now, by partition and offset."""
        reader = muster.Consumer(bootstrap_servers=self.bootstrap, client_id=KIT_CLIENT, fetch_max_wait_ms=20)
        with reader:
            partitions = [TopicPartition(topic, each.partition) for each in reader.partitions_for(topic)]
            reader.assign(partitions)
            ends = reader.end_offsets(partitions)
            reader.seek_to_beginning()
            found: list[ConsumerRecord] = []
            while any(reader.position(partition) < end for partition, end in ends.items()):
                for batch in reader.poll(200).values():
                    found += [record for record in batch if record.offset < ends[_place(record)]]
        return sorted(found, key=lambda record: (record.partition, record.offset))

    def until_records(self, topic: str, count: int, timeout_s: float = DEFAULT_TIMEOUT_S) -> list[ConsumerRecord]:
        """The topic's records, once there are `count`. Raises WaitTimeoutError."""
        found: list[ConsumerRecord] = []

        def enough() -> bool:
            nonlocal found
            found = self.records(topic)
            return len(found) >= count

        self.until(enough, lambda: f"{count} record(s) in {topic}: there are {len(found)}", timeout_s)
        return found

    # ----------------------------------------------------------------------------------------------------------- waits

    def group(self, group_id: str) -> Group:
        """A group, to look at it or to do something to it."""
        return Group(self, group_id)

    def until_assigned(
        self,
        group_id: str,
        members: int | None = None,
        *,
        topics: Sequence[str] | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> dict[str, Any]:
        """Return the group when it is stable, has `members` members, and each partition of the topics (by default those
        that members have partitions of) belongs to one. Raises WaitTimeoutError."""
        __tracebackhide__ = True
        return self._wait("assigned", group_id, timeout_s, members=members, topics=topics)

    def until_stable(
        self, group_id: str, *, generation: int | None = None, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> dict[str, Any]:
        """Return the group when it is stable, at a generation or a later one. Raises WaitTimeoutError."""
        __tracebackhide__ = True
        return self._wait("stable", group_id, timeout_s, generation=generation)

    def until_committed(
        self, group_id: str, topic: str, offsets: int | Mapping[int, int], timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> dict[str, Any]:
        """Return the group when it has committed that many records of a topic in all, or at least these offsets by
        partition. Raises WaitTimeoutError."""
        wanted = offsets if isinstance(offsets, int) else {str(index): offset for index, offset in offsets.items()}
        __tracebackhide__ = True
        return self._wait("committed", group_id, timeout_s, topic=topic, offsets=wanted)

    def until_lag_zero(
        self, group_id: str, topic: str | None = None, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> dict[str, Any]:
        """Return the group when it has committed all records of its topics, or of one. Raises WaitTimeoutError."""
        __tracebackhide__ = True
        return self._wait("lag_zero", group_id, timeout_s, topic=topic)

    def until_empty(self, group_id: str, timeout_s: float = DEFAULT_TIMEOUT_S) -> dict[str, Any]:
        """Return the group when it has no members. Raises WaitTimeoutError."""
        __tracebackhide__ = True
        return self._wait("empty", group_id, timeout_s)

    def until(
        self, condition: Callable[[], object], what: str | Callable[[], str], timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> None:
        """Return when a condition holds. `what` says what is waited for. Raises WaitTimeoutError.

        As in all waits, a broker that is away may come back meanwhile.
        """
        __tracebackhide__ = True  # a report shows the test's line
        deadline = time.monotonic() + timeout_s
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
        body = {"until": until, "group": group_id, **{k: v for k, v in wanted.items() if v is not None}}
        deadline = time.monotonic() + timeout_s
        while True:
            # A group without a coordinator yet may come to any broker: the place is looked up again.
            place = self._or_away(partial(self._coordinator, group_id), deadline)
            left_ms = max(round((deadline - time.monotonic()) * 1000), 0)
            turn_ms = left_ms if self._backend.count() == 1 else min(left_ms, 200)
            asked = {**body, "timeout_ms": turn_ms}
            found = self._or_away(partial(self._backend.ask, place or 0, "POST", "wait", asked), deadline)
            if found is None:
                time.sleep(0.01)
                continue
            status, answer = found
            if status == HTTPStatus.OK:
                return answer
            if status != HTTPStatus.REQUEST_TIMEOUT:
                raise MusterError(answer["error"])
            if left_ms == turn_ms:
                text = f"waited {timeout_s:g} s for {until} of group {group_id}: {answer['missing']}"
                group = _described(answer["group"])
                raise WaitTimeoutError(f"{text}\n{group}\n{self.story(group_id)}{_on_a_loop()}")

    def _or_away(self, question: Callable[[], T], deadline: float) -> T | None:
        """The answer; None while a broker is away, which another thread may be starting again."""
        try:
            return question()
        except BrokerAwayError:
            if time.monotonic() > deadline:
                raise
            return None

    # ---------------------------------------------------------------------------------------------------------- faults

    def fault(self, do: str, *apis: str, **when: Unpack[FaultFields]) -> Fault:
        """Add a fault: `fault("lose_answer", "OffsetCommit", group="billing", nth=3)`. It stands until it is removed,
        or until the end of its `with` block.

        `do` is one of `muster.testing.rules.EFFECTS`, the others are the fields of `muster.testing.rules.Rule`.

        Raises:
            MusterError: a field is not one of a fault's, or has no such value.
        """
        name = when.pop("name", None) or f"fault-{next(_NUMBERS)}"
        fault = Fault(self, {"name": name, "do": do, "apis": list(apis), **when})
        self.ask_all("POST", "faults", fault.body)
        self._faults.append(fault)
        return fault

    def fail(self, api: str, error: str, **when: Unpack[When]) -> Fault:
        """Requests are answered with an error, and not handled."""
        return self.fault("error", api, error=error, **when)

    def delay(self, api: str, ms: int, **when: Unpack[When]) -> Fault:
        """Requests are handled so much later; by default all."""
        when.setdefault("times", None)
        return self.fault("delay", api, delay_ms=ms, **when)

    def hold(self, api: str, **when: Unpack[When]) -> Fault:
        """A request waits until the fault is released."""
        return self.fault("hold", api, **when)

    def lose_request(self, api: str, **when: Unpack[When]) -> Fault:
        """A request is not handled, and its connection is closed."""
        return self.fault("lose_request", api, **when)

    def lose_answer(self, api: str, **when: Unpack[When]) -> Fault:
        """A request is handled, then its connection is closed."""
        return self.fault("lose_answer", api, **when)

    def disk(self, **change: Unpack[DiskTrouble]) -> None:
        """`full=True`: writes fail with ENOSPC. `sync_delay_ms=…`: syncs take longer. `fail=True`: syncs fail, which
        ends a broker, as it does Kafka."""
        self._troubled = True
        self.ask_all("POST", "disk", change)

    def disconnect(self, client: str = "*") -> int:
        """Cut the connections of clients whose id matches a pattern; returns how many."""
        return sum(each["cut"] for each in self.ask_all("POST", "connections", {"client": client}))

    @contextmanager
    def refuse_connections(self, client: str = "*") -> Iterator[None]:
        """In the block new connections are refused, and those of clients whose id matches the pattern are cut first."""
        self.ask_all("POST", "connections", {"refuse": True})
        self.disconnect(client)
        try:
            yield
        finally:
            self.ask_all("POST", "connections", {"refuse": False})

    def forget(self, fault: Fault) -> None:
        """End a fault (`Fault.remove`)."""
        if fault in self._faults:
            self._faults.remove(fault)
            ended = self.ask_all("DELETE", f"faults/{quote(fault.name, safe='')}")
            if self.strict and not sum(each["struck"] for each in ended):
                self._idle.append(fault.name)

    # ---------------------------------------------------------------------------------------- what the brokers can say

    def requests(self, api: str | None = None, client: str | None = None) -> int:
        """How many requests there were, of a type and a client."""
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
        return self.ask_coordinator(group_id, "GET", f"groups/{quote(group_id, safe='')}")

    def groups(self) -> list[str]:
        """The groups of all brokers."""
        return sorted(group for answer in self.ask_all("GET", "groups") for group in answer["groups"])

    def story(self, group_id: str | None = None) -> str:
        """What happened, by time: events of groups (or of one), faults that struck, what the test did."""
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
            counted[f"{each['client']}: {each['api']}"] += each["count"]
        requests = ", ".join(f"{what} {count}" for what, count in sorted(counted.items()))
        happened = f"\n{omitted}" + "\n".join(lines[-STORY_LINES:]) if lines else " nothing"
        return f"What happened:{happened}\nRequests: {requests or 'none'}"

    def account(self) -> str:
        """The groups that something happened to, as they are now, and the story: for the report of a failed test."""
        groups = {each["group"] for each in self._said("story")} | {group_id for group_id, _ in self.members()}
        return "\n".join([*(self._described_now(group_id) for group_id in sorted(groups - {""})), self.story()])

    def _described_now(self, group_id: str) -> str:
        try:
            return _described(self.view(group_id))
        except MusterError as error:  # its broker does not run
            return f"Group {group_id}: {error}"

    def ask_all(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
        """A command to every broker that runs."""
        servers = self._backend.servers()
        return [
            self._checked(self._backend.ask(place, method, path, body))
            for place in range(self._backend.count())
            if not servers or (servers[place].pid is not None and not servers[place].is_frozen)
        ]

    def ask_coordinator(
        self, group_id: str, method: str, path: str, body: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """A command to the broker that coordinates a group."""
        return self._checked(self._backend.ask(self._coordinator(group_id) or 0, method, path, body))

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

    def _checked(self, answer: tuple[int, dict[str, Any]]) -> dict[str, Any]:
        status, body = answer
        if status != HTTPStatus.OK:
            raise MusterError(body.get("error", str(body)))
        return body


def assert_handled_once(handled: Iterable[Any], expected: Iterable[Any]) -> None:
    """Each of the `expected` was handled, none twice, and nothing else. Raises AssertionError, with what differs."""
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


def _on_a_loop() -> str:
    """What to say of a wait that has blocked an event loop, and the clients that may run on it."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return ""
    return (
        "\nThis wait blocked the event loop, and each client that runs on it: await it, on muster.testing.AsyncKafka."
    )


def _place(record: ConsumerRecord) -> TopicPartition:
    return TopicPartition(record.topic, record.partition)


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
