"""The control of a running test broker: faults, groups, time, disk, story.

Each broker has a `Control`, on its event loop. All commands go through `ask`, with the path and the JSON object of a
request to the control port, whether they come through that port (`control_port.py`) or from a test in the same process.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from http import HTTPStatus
from typing import Any
from urllib.parse import unquote

from muster.broker.broker import Broker
from muster.broker.groups.events import sentence
from muster.clock import wall_clock_ms
from muster.coordinator.groups import interventions
from muster.coordinator.groups.classic_group import ClassicGroup
from muster.coordinator.groups.effects import Effects, GroupEvent
from muster.coordinator.groups.group import ClassicMember
from muster.coordinator.groups.kinds import AnyGroup
from muster.coordinator.runtime import Client
from muster.errors import ConfigError, ProtocolError
from muster.protocol.messages import JoinGroupRequest, JoinGroupRequestProtocol
from muster.protocol.subscription import decode_assignment
from muster.testing.disk import FaultyDisk
from muster.testing.interposer import Interposer
from muster.testing.recordings.player import Hooks
from muster.testing.recordings.record_replay import RecordReplay
from muster.testing.rules.conditions import missing
from muster.testing.rules.facts import Facts
from muster.testing.rules.faults import FaultPlan, Rule

MOST_LINES = 5_000
"""The largest number of lines in a story."""
POLL_INTERVAL_S = 0.005
DEFAULT_TIMEOUT_MS = 30_000

Answer = tuple[int, dict[str, Any]]


class UnknownError(Exception):
    """The fault, group or command of a request does not exist."""


class Control:
    """The control of one broker: create it before the broker starts, and `attach` it afterwards.

    Args:
        seed: the seed for faults that have a probability.
    """

    def __init__(self, broker: Broker, disk: FaultyDisk, seed: int = 0) -> None:
        self._broker = broker
        self._disk = disk
        self._plan = FaultPlan(seed)
        self._interposer: Interposer
        self._record_replay: RecordReplay | None = None
        self._accept_again: Callable[[], None] | None = None
        self._lines: deque[tuple[int, str, str]] = deque(maxlen=MOST_LINES)
        """The story. Each entry has milliseconds since the epoch, the group that the line concerns (or ""), the line.
        """
        broker.watch_events(self._on_event)

    def attach(self) -> None:
        """The broker has started."""
        topics = self._broker.topics
        self._interposer = Interposer(self._broker.apis, self._plan, topics.topic_name, self._on_strike)
        self._interposer.count_requests()
        hooks = Hooks(
            self.view,
            self._add_fault,
            lambda name: installed.struck if (installed := self._plan.installed.get(name)) else 1,
            self._remove_fault,
            self._disturb,
            self._disconnect,
        )
        self._record_replay = RecordReplay(self._broker, self._interposer, hooks)

    # ------------------------------------------------------------------------------------------------------ the story

    def _write(self, group: str, line: str) -> None:
        self._lines.append((wall_clock_ms(), group, line))

    def _on_event(self, event: GroupEvent) -> None:
        self._write(event.group_id, sentence(event))
        if self._record_replay is not None:
            self._record_replay.on_event(event)

    def _on_strike(self, rule: Rule, facts: Facts) -> None:
        about = [*sorted(facts.groups), *sorted(facts.partitions)]
        what = f"{facts.api} of {facts.client_id or 'a client without an id'}"
        self._write("", f"fault {rule.name}, {rule}: {what}{' about ' if about else ''}{', '.join(about)}")
        self._recordings.on_strike(rule, facts)

    @property
    def _recordings(self) -> RecordReplay:
        assert self._record_replay is not None, "the broker has not started"
        return self._record_replay

    def _did(self, act: str, group: str = "", line: str = "", **more: object) -> None:
        """Note what the test does; called before it takes effect."""
        self._write(group, f"test: {line or act}")
        self._recordings.did(act, group=group or None, **more)

    # ------------------------------------------------------------------------------------------------------- commands

    async def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Answer:
        """Carry out a command. Returns an HTTP status and a JSON object."""
        parts = [unquote(part) for part in path.strip("/").split("/")]
        try:
            match method, *parts:
                case "POST", "wait":
                    return await self._wait(body or {})
                case _:
                    return HTTPStatus.OK, self._answer(method, parts, dict(body or {}))
        except UnknownError as error:
            return HTTPStatus.NOT_FOUND, {"error": str(error)}
        except (ConfigError, KeyError, TypeError) as error:
            text = f"{error} is missing" if isinstance(error, KeyError) else str(error)
            return HTTPStatus.BAD_REQUEST, {"error": text}

    def _answer(self, method: str, path: list[str], body: dict[str, Any]) -> dict[str, Any]:
        match method, *path:
            case _, "faults", *rest:
                return self._of_faults(method, rest, body)
            case _, "groups", *rest:
                return self._of_groups(method, rest, body)
            case "POST", "clock":
                return self._skip(**body)
            case "POST", "disk":
                self._did("disk", line=f"the disk: {body}", **body)
                self._disk.change(**body)
                return {}
            case "POST", "connections":
                return self._refuse(**body) if "refuse" in body else self._disconnect(**body)
            case "GET", "requests":
                counts = sorted(self._plan.requests.items())
                return {"requests": [{"client": client, "api": api, "count": n} for (client, api), n in counts]}
            case "GET", "story":
                return {"story": [{"at_ms": at, "group": group, "line": line} for at, group, line in self._lines]}
        return self._of_tests(method, path, body)

    def _of_tests(self, method: str, path: list[str], body: dict[str, Any]) -> dict[str, Any]:
        """Commands that separate tests from each other."""
        match method, *path:
            case "GET", "ends":
                names = sorted({log.topic_partition.topic for log in self._broker.partitions.led()})
                return {"ends": {topic: self._ends(topic) for topic in names}}
            case "GET", "members":
                return {"members": [[group.group_id, each.client_id] for group, each in self._members()]}
            case "POST", "begin":
                self._lines.clear()
                self._plan.requests.clear()
                return {}
            case "POST", "reset":
                return self._reset(**body)
        return self._of_recordings(method, path, body)

    def _of_recordings(self, method: str, path: list[str], body: dict[str, Any]) -> dict[str, Any]:
        match method, *path:
            case "POST", "recording":
                return self._recordings.record(**body)
            case "DELETE", "recording":
                return self._recordings.end_recording()
            case "POST", "replay":
                return self._recordings.replay(**body)
            case "GET", "replay":
                return self._recordings.status()
            case "DELETE", "replay":
                return self._recordings.end_replay()
        raise UnknownError(f"{method} /{'/'.join(path)} is not a command: see docs/reference/test-broker.md")

    def _of_faults(self, method: str, path: list[str], body: dict[str, Any]) -> dict[str, Any]:
        match method, *path:
            case ("POST",):
                return {"name": self._add_fault(body).name}
            case ("GET",):
                return {"faults": [self._fault(name) for name in self._plan.installed]}
            case "GET", name:
                return self._fault(name)
            case "DELETE", name:
                last = self._fault(name)
                self._record_release(name)
                self._remove_fault(name)
                return last
            case "POST", name, "release":
                self._fault(name)
                self._record_release(name)
                return {"released": self._interposer.release(name)}
        raise UnknownError(f"{method} /faults/{'/'.join(path)} is not a command: see docs/reference/test-broker.md")

    def _add_fault(self, values: Mapping[str, Any]) -> Rule:
        rule = self._plan.add(values)
        self._interposer.apply()
        return rule

    def _record_release(self, name: str) -> None:
        """Note in the recording that a fault releases the requests that it holds."""
        if self._plan.installed[name].rule.do in ("hold", "hang"):
            self._recordings.did("release", fault=name)

    def _remove_fault(self, name: str) -> None:
        self._plan.remove(name)
        self._interposer.apply()

    def _fault(self, name: str) -> dict[str, Any]:
        installed = self._plan.installed.get(name)
        if installed is None:
            raise UnknownError(f"there is no fault named {name!r}")
        held = self._interposer.held(name)
        return {
            "name": name,
            "fault": str(installed.rule),
            "seen": installed.seen,
            "struck": installed.struck,
            "held": held,
        }

    # --------------------------------------------------------------------------------------------------------- groups

    def _of_groups(self, method: str, path: list[str], body: dict[str, Any]) -> dict[str, Any]:
        match method, *path:
            case ("GET",):
                return {"groups": [name for shard in self._broker.groups.runtime.shards() for name in shard.groups]}
            case "GET", group:
                return self.view(group)
            case "POST", group, what:
                return self._disturb(group, what, **body)
        raise UnknownError(f"{method} /groups/{'/'.join(path)} is not a command: see docs/reference/test-broker.md")

    def _members(self) -> list[tuple[ClassicGroup, ClassicMember]]:
        groups = [group for shard in self._broker.groups.runtime.shards() for group in shard.groups.values()]
        return [(one, member) for one in groups if isinstance(one, ClassicGroup) for member in one.members.values()]

    def _reset(self, *, staying: Iterable[tuple[str, str]] = ()) -> dict[str, Any]:
        """Between tests: end all faults and failures, and expire all members except `staying` (pairs of group id and
        client id)."""
        self._recordings.close()
        for name in list(self._plan.installed):
            self._remove_fault(name)
        self._disk.change(full=False, sync_delay_ms=0, fail=False)
        if self._accept_again is not None:
            self._refuse(refuse=False)
        stays = {(group_id, client_id) for group_id, client_id in staying}

        def goes(group: ClassicGroup, now: int) -> Effects:
            return interventions.expire(group, lambda member: (group.group_id, member.client_id) not in stays, now)

        for group_id in {group.group_id for group, _ in self._members()}:
            self._intervene(group_id, goes)
        return {}

    def view(self, group_id: str) -> dict[str, Any]:
        """The current state of a group. A group that does not exist is Dead and has no members."""
        runtime = self._broker.groups.runtime
        group, offsets = None, {}
        for shard in runtime.shards():
            if group_id in shard.groups:
                group = shard.groups[group_id]
                offsets = shard.offsets.of_group(group_id)
        members = [_member_view(member) for member in group.members.values()] if isinstance(group, ClassicGroup) else []
        committed = {
            topic: {str(index): value[0] for index, value in by_partition.items()}
            for topic, by_partition in sorted(offsets.items())
        }
        topics = {*committed, *(topic for member in members for topic in member["partitions"])}
        if isinstance(group, ClassicGroup):
            topics.update(group.subscribed_topics or ())
        return {
            "group": group_id,
            "state": group.state.value if isinstance(group, ClassicGroup) else "Dead",
            "generation": group.generation_id if isinstance(group, ClassicGroup) else -1,
            "protocol": (group.protocol_name or "") if isinstance(group, ClassicGroup) else "",
            "members": members,
            "offsets": committed,
            "ends": {topic: self._ends(topic) for topic in sorted(topics)},
            "partitions": {topic: self._broker.topics.partition_count(topic) for topic in sorted(topics)},
        }

    def _ends(self, topic: str) -> dict[str, int]:
        count = self._broker.topics.partition_count(topic)
        logs = ((index, self._broker.partitions.get(topic, index)) for index in range(count))
        return {str(index): log.high_watermark for index, log in logs if log is not None}

    def _disturb(
        self, group_id: str, what: str, *, member: str | None = None, instance: str | None = None
    ) -> dict[str, Any]:
        """Expire members, trigger a rebalance, fence a static member, or make the coordinator reload the group."""
        _check_pattern("member", member)
        if not isinstance(instance, str | None):
            raise ConfigError(f"instance={instance!r}: it must be a group.instance.id, as text")
        unknown = _unknown(member, self._group(group_id).members.values())
        line = f"{what} {member or instance or ''}".strip() + unknown
        self._did(what, group_id, line, member=member, instance=instance)
        match what:
            case "expire":
                self._intervene(group_id, lambda group, now: interventions.expire(group, _named(member), now))
            case "rebalance":
                reason = "a test triggered it"
                self._intervene(group_id, lambda group, now: interventions.rebalance(group, reason, now))
            case "fence":
                self._fence(group_id, instance)
            case "reload":
                runtime = self._broker.groups.runtime
                runtime.reload(runtime.partition_for(group_id))
            case _:
                raise UnknownError(
                    f"{what!r} is not an operation on a group: choose from expire, rebalance, fence, reload"
                )
        return {}

    def _group(self, group_id: str) -> ClassicGroup:
        for shard in self._broker.groups.runtime.shards():
            group = shard.groups.get(group_id)
            if isinstance(group, ClassicGroup):
                return group
        raise UnknownError(f"this broker has no group {group_id!r}")

    def _intervene(self, group_id: str, decide: Callable[[ClassicGroup, int], Effects]) -> None:
        def of_classic(group: AnyGroup, now: int) -> Effects:
            assert isinstance(group, ClassicGroup)
            return decide(group, now)

        self._broker.groups.runtime.intervene(group_id, of_classic)

    def _fence(self, group_id: str, instance: str | None) -> None:
        """Join as another process with the same group.instance.id, which fences the current member."""
        group = self._group(group_id)
        member_id = group.static_members.get(instance or "")
        if member_id is None:
            raise UnknownError(f"group {group_id!r} has no static member {instance!r}")
        member = group.members[member_id]
        request = JoinGroupRequest(
            group_id=group_id,
            session_timeout_ms=member.session_timeout_ms,
            rebalance_timeout_ms=member.rebalance_timeout_ms,
            group_instance_id=instance,
            protocol_type=group.protocol_type or "",
            protocols=[JoinGroupRequestProtocol(name, metadata) for name, metadata in member.protocols],
        )
        self._broker.groups.runtime.submit(request, Client("another-program", "/127.0.0.1", 9), lambda _: None)

    # --------------------------------------------------------------------------------------- time, connections, waits

    def _skip(self, *, advance_ms: int, silent: str | None = None) -> dict[str, Any]:
        """Advance the groups' clock. With `silent` (a pattern of client, member or instance ids) all members that do
        not match it count as having sent heartbeats meanwhile; without it, no member does."""
        if not isinstance(advance_ms, int) or advance_ms < 0:
            raise ConfigError(f"advance_ms={advance_ms!r}: it must be a whole number of milliseconds, 0 or more")
        _check_pattern("silent", silent)
        unknown = _unknown(silent, (member for _, member in self._members()))
        line = f"the clock is advanced by {advance_ms} ms{f', {silent} is silent' if silent else ''}{unknown}"
        self._did("clock", line=line, advance_ms=advance_ms, silent=silent)
        runtime = self._broker.groups.runtime
        if silent is not None:
            is_silent = _named(silent)
            for shard in runtime.shards():
                for group in shard.groups.values():
                    if isinstance(group, ClassicGroup):
                        interventions.keep(group, lambda member: not is_silent(member), advance_ms)
        self._broker.groups.skip(advance_ms)
        return {}

    def _refuse(self, *, refuse: bool) -> dict[str, Any]:
        if refuse and self._accept_again is None:
            self._accept_again = self._broker.refuse()
        elif not refuse and self._accept_again is not None:
            self._accept_again()
            self._accept_again = None
        line = f"new connections are {'refused' if refuse else 'accepted again'}"
        self._did("refuse connections" if refuse else "accept connections", line=line)
        return {}

    def _disconnect(self, *, client: str = "*") -> dict[str, Any]:
        _check_pattern("client", client)
        cut = [each for each in self._broker.connections if fnmatchcase(each.client_id, client)]
        for connection in cut:
            connection.abort()
        self._did("disconnect", line=f"{len(cut)} connection(s) of clients {client} are closed", client=client)
        return {"cut": len(cut)}

    async def _wait(self, wait: Mapping[str, Any]) -> Answer:
        """Answer once the condition holds; if it does not hold in time, answer with 408 and what is missing."""
        until = time.monotonic() + wait.get("timeout_ms", DEFAULT_TIMEOUT_MS) / 1000
        while True:
            view = self.view(wait["group"])
            what = missing(view, wait)
            if what is None:
                return HTTPStatus.OK, view
            if time.monotonic() >= until:
                return HTTPStatus.REQUEST_TIMEOUT, {"missing": what, "group": view}
            await asyncio.sleep(POLL_INTERVAL_S)


def _member_view(member: ClassicMember) -> dict[str, Any]:
    partitions: dict[str, list[int]] = {}
    try:
        for topic, index in decode_assignment(member.assignment).partitions if member.assignment else ():
            partitions.setdefault(topic, []).append(index)
    except ProtocolError:  # a member of Connect, say
        pass
    return {
        "member_id": member.member_id,
        "client_id": member.client_id,
        "host": member.client_host.lstrip("/"),
        "instance_id": member.group_instance_id,
        "partitions": {topic: sorted(indexes) for topic, indexes in sorted(partitions.items())},
    }


def _check_pattern(name: str, pattern: object) -> None:
    if not isinstance(pattern, str | None):
        raise ConfigError(f"{name}={pattern!r}: it must be a pattern, as text, such as 'billing-*'")


def _named(pattern: str | None) -> Callable[[ClassicMember], bool]:
    """Whether a member's client id, member id or instance id matches; None matches all."""

    def matches(member: ClassicMember) -> bool:
        names = (member.client_id, member.member_id, member.group_instance_id or "")
        return pattern is None or any(fnmatchcase(name, pattern) for name in names)

    return matches


def _unknown(pattern: str | None, members: Iterable[ClassicMember]) -> str:
    """A remark if no member matches a pattern, which may be a typo."""
    return "" if any(map(_named(pattern), members)) or pattern is None else " (no member matches)"
