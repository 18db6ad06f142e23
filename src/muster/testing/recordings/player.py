"""Replays a recording on a broker: appends its records, joins as its other members, injects its faults.

Everything runs on the broker's event loop. The script is advanced before each request is handled, so everything that is
due before a request has happened by then, however quickly the client sends it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from muster.broker.broker import Broker
from muster.clock import wall_clock_ms
from muster.coordinator.groups import effects, interventions
from muster.coordinator.groups.classic_group import ClassicGroup
from muster.coordinator.groups.group import PREPARING_REBALANCE, ClassicMember
from muster.coordinator.groups.kinds import AnyGroup
from muster.coordinator.runtime import Client
from muster.errors import ConfigError, ErrorCode, MusterError
from muster.protocol.messages import (
    DeleteGroupsRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    LeaveGroupRequest,
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)
from muster.protocol.primitives import Request
from muster.protocol.records.record_batch import BatchBuilder
from muster.protocol.subscription import Subscription, encode_assignment_by_topic, encode_subscription
from muster.testing.recordings import recording
from muster.testing.recordings.recording import Line
from muster.testing.recordings.script import FAULTS, Script
from muster.testing.rules.faults import Rule

_STANDARD = ("range", "roundrobin", "sticky", "cooperative-sticky")
_LONGEST_SESSION_MS = 1_800_000
"""The session timeout of simulated members, which send no heartbeats: they leave when the recording says so."""
_JOIN_VERSION = 4
"""The first JoinGroup version in which a new member must join again with the id that it receives (KIP-394)."""
_OF_THE_COORDINATOR = frozenset(
    {
        "COORDINATOR_LOAD_IN_PROGRESS",
        "COORDINATOR_NOT_AVAILABLE",
        "NOT_COORDINATOR",
        "REQUEST_TIMED_OUT",
        "UNSTABLE_OFFSET_COMMIT",
    }
)
"""Errors caused by the broker's state. All others are consequences of what happens to the group."""


class Hooks(NamedTuple):
    """Operations of the broker's `Control`."""

    view: Callable[[str], Mapping[str, Any]]
    add_fault: Callable[[Mapping[str, Any]], Rule]
    struck: Callable[[str], int]
    remove_fault: Callable[[str], object]
    disturb: Callable[..., object]
    """Its first arguments are the group and the operation: "rebalance", "fence"."""
    disconnect: Callable[[], object]


class Player:
    """A recording that is replayed on a broker, from `start` to `stop`."""

    def __init__(self, broker: Broker, script: Script, hooks: Hooks) -> None:
        self.script = script
        self._broker = broker
        self._hooks = hooks
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._acting = False
        self._completed: dict[str, int] = {}
        """The number of generations with members under test that each group has completed."""
        self._generations: dict[str, list[Line]] = {}
        """The recorded generations of each group."""
        self._ordinals: dict[int, int] = {}
        """The number of each recorded generation within its group, by the `id` of its line."""
        for line in script.recording.lines:
            if line["what"] == "generation" and script.is_mark(line):
                known = self._generations.setdefault(line["group"], [])
                known.append(line)
                self._ordinals[id(line)] = len(known)
        self._others: dict[tuple[str, str], _SimulatedMember] = {}
        self._armed: Line | None = None
        """The line of an expired session that expires when the next commit arrives."""
        self._faults: dict[int, str] = {}
        """The names of added faults, by the `id` of their line."""
        self._recorded_names: dict[str, list[str]] = {}
        """The names of added faults, by their recorded name."""

    # -------------------------------------------------------------------------------------------- starting and stopping

    def start(self) -> None:
        """Start the replay. Raises ConfigError if a topic of the recording exists on this broker."""
        for line in self.script.recording.lines:
            if line["what"] == "topic" and self._broker.topics.get(line["topic"]) is not None:
                name = line["topic"]
                raise ConfigError(f"topic {name} exists on this broker: delete it, or replay on another broker")
        self._broker.groups.ensure()
        self.advance()

    def stop(self) -> None:
        """Stop the replay; delete its topics, and its groups that have no members."""
        if self._timer is not None:
            self._timer.cancel()
        self.script.position = self.script.end
        for other in self._others.values():
            other.leave()
        for name in self._faults.values():
            self._hooks.remove_fault(name)
        for name in {line["topic"] for line in self.script.recording.lines if line["what"] == "topic"}:
            topic = self._broker.topics.get(name)
            if topic is not None:
                self._broker.changes.delete_topic(topic)
        groups = DeleteGroupsRequest(self.script.recording.groups())
        self._broker.groups.runtime.submit(groups, _client(""), lambda _: None)

    def status(self) -> dict[str, Any]:
        """The progress."""
        script = self.script
        return {
            "lines": script.end,
            "passed": script.position,
            "over": script.is_over,
            "waits_for": script.waits_for,
            "differences": script.differences,
        }

    # ---------------------------------------------------------------------------------------------------- notifications

    def before(self, request: Request[Any]) -> None:
        """A request is about to be handled."""
        self.advance()
        api = type(request).__name__.removesuffix("Request")
        armed = self._armed
        if armed is not None and (api, getattr(request, "group_id", None)) == (armed["before"], armed["group"]):
            self._armed = None
            self._expire(armed["group"])
        if isinstance(request, SyncGroupRequest):
            self.decide_assignment(request)

    def on_event(self, event: effects.GroupEvent) -> None:
        """Something has happened to a group; its coordinator is still at work."""
        if isinstance(event, effects.RebalanceCompleted) and self._own(self.group(event.group_id)):
            self._completed[event.group_id] = self._completed.get(event.group_id, 0) + 1
        self._loop.call_soon(self.advance)

    def lacks(self, mark: Line) -> str | None:
        """See `GroupProgress.lacks`."""
        if "before" in mark:
            return None if self._armed is not mark else f"the next {mark['before']} has not arrived"
        if mark["what"] in FAULTS:
            name = self._faults.get(id(mark))
            return (
                f"the next {mark['api']} has not arrived" if name is not None and not self._hooks.struck(name) else None
            )
        if mark["what"] == "generation":
            wanted, group = self._ordinals[id(mark)], mark["group"]
            done = self._completed.get(group, 0)
            return None if done >= wanted else f"group {group} has completed {done} rebalance(s), not {wanted}"
        offsets = self._hooks.view(mark["group"])["offsets"]
        for topic, partitions in mark["offsets"].items():
            for partition, recorded in partitions.items():
                wanted = self.script.recording.replayed_offset(topic, int(partition), recorded)
                committed = offsets.get(topic, {}).get(partition, 0)
                if committed < wanted:
                    return f"group {mark['group']} has committed {committed} in {topic} {partition}, not {wanted}"
        return None

    # --------------------------------------------------------------------------------------------------------- acting

    def advance(self) -> None:
        """Do everything that is due, and schedule the next call."""
        if self._acting:
            return
        self._acting = True
        try:
            for other in self._others.values():
                other.rejoin()
            while (line := self.script.next(wall_clock_ms(), self)) is not None:
                self._act(line)
        finally:
            self._acting = False
        self._broker.fetches.wake(self._broker.partitions.get)
        if self._timer is not None:
            self._timer.cancel()
        wait_ms = self.script.wait_ms(wall_clock_ms())
        self._timer = None if wait_ms is None else self._loop.call_later(max(wait_ms, 1) / 1000, self.advance)

    def _act(self, line: Line) -> None:
        try:
            match line["what"]:
                case "topic":
                    self._create(line["topic"], line["partitions"])
                case "record":
                    self._append(line)
                case "had":
                    self._commit(line, _client(""), "", -1)
                case "struck":
                    self._strike(line)
                case "refused":
                    self._refuse(line)
                case "did":
                    self._do(line)
                case "joined" | "left" | "expired" | "committed":
                    self._of_a_member(line)
        except (MusterError, OSError) as error:
            self.script.differences.append(f"{line['what']} at {line['at_ms']} ms: {error}")

    def _create(self, name: str, partitions: int) -> None:
        topic = self._broker.topics.get(name)
        if topic is None:
            self._broker.changes.create_topic(name, partitions, {})
        elif topic.partitions != partitions:
            self.script.differences.append(
                f"{name} grew to {partitions} partitions in the recording; a replay does not add them"
            )

    def _append(self, line: Line) -> None:
        log = self._broker.partitions.get(line["topic"], line["partition"])
        if log is None:
            raise MusterError(f"partition {line['partition']} of {line['topic']} does not exist")
        batch = BatchBuilder()
        headers = [(key, recording.from_json(value)) for key, value in line["headers"]]
        batch.append(
            line["timestamp_ms"], recording.from_json(line["key"]), recording.from_json(line["value"]), headers
        )
        data = batch.build()
        appended = log.append(data, now=wall_clock_ms(), origin="coordinator")
        self._broker.fetches.appended(line["topic"], line["partition"], len(data), appended.last_offset + 1)

    def _strike(self, line: Line) -> None:
        """Add a fault for the next such request of any client: the client under test may have a different id."""
        about = {key: names[0] for key in ("group", "topic") if (names := line.get(f"{key}s"))}
        if line["api"] in ("JoinGroup", "SyncGroup"):
            about.pop("topic", None)
        rule = self._hooks.add_fault({**line["fault"], "apis": [line["api"]], "times": 1, **about})
        self._faults[id(line)] = rule.name
        self._recorded_names.setdefault(line["name"], []).append(rule.name)

    def _refuse(self, line: Line) -> None:
        if line["error"] in _OF_THE_COORDINATOR:
            fault = {"do": "error", "apis": [line["api"]], "error": line["error"], "group": line["group"]}
            self._faults[id(line)] = self._hooks.add_fault(fault).name

    def _do(self, line: Line) -> None:
        match line["act"]:
            case "rebalance":
                self._hooks.disturb(line["group"], "rebalance")
            case "fence":
                self._hooks.disturb(line["group"], "fence", instance=line.get("instance"))
            case "disconnect":
                self._hooks.disconnect()
            case "release":
                for name in self._recorded_names.pop(line.get("fault", ""), []):
                    self._hooks.remove_fault(name)
            case "expire" | "reload" | "clock":
                pass  # their effects have lines of their own
            case act:
                self.script.differences.append(f"{act} at {line['at_ms']} ms was not repeated")

    # ---------------------------------------------------------------------------------------------------- the members

    def _of_a_member(self, line: Line) -> None:
        group_id, client, what = line["group"], line["client"], line["what"]
        if self.script.is_under_test(client):
            if "before" in line:
                self._armed = line
            elif what == "expired":
                self._expire(group_id)
            return  # the code under test does its own joining and leaving
        other = self._others.get((group_id, client))
        if other is None:
            other = self._others[group_id, client] = _SimulatedMember(self, group_id, client)
        match what:
            case "joined":
                other.join()
            case "committed":
                self._commit(line, _client(client), other.member_id, other.generation)
            case "left" | "expired":
                other.leave()

    def _expire(self, group_id: str) -> None:
        """Expire the sessions of the members under test."""

        def decide(group: AnyGroup, now: int) -> effects.Effects:
            assert isinstance(group, ClassicGroup)
            own = self._own(group)
            return interventions.expire(group, lambda member: member in own, now)

        self._broker.groups.runtime.intervene(group_id, decide)

    def _commit(self, line: Line, client: Client, member_id: str, generation: int) -> None:
        def note_errors(response: Any) -> None:
            assert isinstance(response, OffsetCommitResponse)
            errors = {each.error_code for topic in response.topics for each in topic.partitions} - {0}
            for error in sorted(errors):
                self.script.differences.append(f"a commit of {line.get('client')} failed: {ErrorCode(error).name}")

        request = OffsetCommitRequest(line["group"], generation, member_id)
        for topic, partitions in line["offsets"].items():
            places = [
                OffsetCommitRequestPartition(int(p), self.script.recording.replayed_offset(topic, int(p), offset))
                for p, offset in partitions.items()
            ]
            request.topics.append(OffsetCommitRequestTopic(topic, partitions=places))
        self.submit(request, client, note_errors)

    def submit(self, request: Request[Any], client: Client, reply: Callable[[Any], None]) -> None:
        """Send a request to the coordinator, as a simulated member."""
        self._broker.groups.runtime.submit(request, client, reply)

    def group(self, group_id: str) -> ClassicGroup | None:
        """The group with this id, if it exists."""
        for shard in self._broker.groups.runtime.shards():
            group = shard.groups.get(group_id)
            if isinstance(group, ClassicGroup):
                return group
        return None

    def topics_of(self, group_id: str, client: str) -> list[str]:
        """The topics of a recorded member: those of all partitions that were ever assigned to it."""
        topics: set[str] = set()
        for line in self._generations.get(group_id, []):
            for member in line["members"]:
                if member["client"] == client or not topics:
                    topics.update(member["partitions"])
        return sorted(topics)

    def decide_assignment(self, request: SyncGroupRequest) -> None:
        """Replace the leader's assignment with the recorded one of this generation."""
        group = self.group(request.group_id)
        known = self._generations.get(request.group_id, [])
        number = self._completed.get(request.group_id, 0)
        if group is None or group.leader_id != request.member_id or number >= len(known):
            return
        if not self._own(group):
            return
        theirs = {other.member_id: other.client for other in self._others.values() if other.group_id == group.group_id}
        recorded = {member["client"]: member["partitions"] for member in known[number]["members"]}
        clients = recorded_clients(list(group.members.values()), theirs, list(recorded))
        if clients is None:
            self.script.differences.append(
                f"generation {number + 1} of {group.group_id} has {len(group.members)} member(s), not the recorded"
                f" {len(recorded)}: it keeps its leader's assignment"
            )
            if not request.assignments:  # the leader is simulated, and has no assignor
                clients = {}
        if clients is not None:
            request.assignments = [
                SyncGroupRequestAssignment(
                    member_id, encode_assignment_by_topic(recorded.get(clients.get(member_id, ""), {}))
                )
                for member_id in group.members
            ]

    def _own(self, group: ClassicGroup | None) -> list[ClassicMember]:
        """The members under test of a group."""
        theirs = {other.member_id for other in self._others.values()}
        return [] if group is None else [each for each in group.members.values() if each.member_id not in theirs]

    def has_all_of_its_own(self, group_id: str) -> bool:
        """Whether the group has as many members under test as the next recorded generation. While it rebalances, only
        members that have rejoined count."""
        known, number = self._generations.get(group_id, []), self._completed.get(group_id, 0)
        if number >= len(known):
            return True
        wanted = sum(self.script.is_under_test(member["client"]) for member in known[number]["members"])
        group = self.group(group_id)
        own = self._own(group)
        if group is not None and group.state == PREPARING_REBALANCE:
            own = [member for member in own if member.awaiting_join is not None]
        return len(own) >= wanted


def recorded_clients(
    members: Sequence[ClassicMember], theirs: Mapping[str, str], recorded: Sequence[str]
) -> dict[str, str] | None:
    """The recorded client that each member replaces, by member id. A simulated member gets its own client, and a member
    under test the one with its client id; the other members get the remaining ones in the order in which they joined.
    None if the numbers differ.

    Args:
        theirs: the clients of simulated members, by member id.
        recorded: the clients of the recorded generation.
    """
    clients = {member.member_id: theirs[member.member_id] for member in members if member.member_id in theirs}
    for member in members:
        client_id = member.client_id
        if member.member_id not in clients and client_id in recorded and client_id not in clients.values():
            clients[member.member_id] = client_id
    free = [client for client in recorded if client not in clients.values()]
    left = [member.member_id for member in members if member.member_id not in clients]
    if len(left) != len(free) or not set(clients.values()) <= set(recorded):
        return None
    return clients | dict(zip(left, free, strict=True))


def _client(client_id: str) -> Client:
    return Client(client_id.partition("#")[0], "/127.0.0.1", _JOIN_VERSION)


class _SimulatedMember:
    """A simulated member. When its group rebalances, it rejoins only after the members under test have, so that the
    generation has the same members as the recorded one."""

    def __init__(self, player: Player, group_id: str, client: str) -> None:
        self.group_id = group_id
        self.client = client
        self.member_id = ""
        self.generation = -1
        self._player = player
        self._wanted = self._waits = False

    def join(self) -> None:
        """Join the group."""
        self._wanted = True
        self.rejoin()

    def leave(self) -> None:
        """Leave the group."""
        if self._wanted and self.member_id:
            request = LeaveGroupRequest(self.group_id, self.member_id)
            self._player.submit(request, Client(self.client, "/127.0.0.1", 0), lambda _: None)
        self._wanted, self.member_id, self.generation = False, "", -1

    def rejoin(self) -> None:
        """Join, unless the member is in its group and the group is not rebalancing."""
        group = self._player.group(self.group_id)
        is_in = group is not None and self.member_id in group.members
        if not self._wanted or self._waits or (is_in and group is not None and group.state != PREPARING_REBALANCE):
            return
        if self.member_id and not self._player.has_all_of_its_own(self.group_id):
            return
        names = list(_STANDARD)
        if group is not None and group.members:
            names = [name for name, _ in next(iter(group.members.values())).protocols]
        metadata = encode_subscription(Subscription(self._player.topics_of(self.group_id, self.client)))
        self._waits = True
        request = JoinGroupRequest(
            self.group_id,
            session_timeout_ms=_LONGEST_SESSION_MS,
            rebalance_timeout_ms=_LONGEST_SESSION_MS,
            member_id=self.member_id,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name, metadata) for name in names],
        )
        self._player.submit(request, _client(self.client), self._joined)

    def _joined(self, answer: Any) -> None:
        assert isinstance(answer, JoinGroupResponse)
        self._waits = False
        if not self._wanted:  # it left while the join was pending
            return
        if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = answer.member_id
            self.rejoin()
        elif answer.error_code:
            error = ErrorCode(answer.error_code).name
            self._wanted = False
            self._player.script.differences.append(f"{self.client} could not join: {error}")
        else:
            self.member_id, self.generation = answer.member_id, answer.generation_id
            request = SyncGroupRequest(self.group_id, self.generation, self.member_id)
            asyncio.get_running_loop().call_soon(self._sync, request)

    def _sync(self, request: SyncGroupRequest) -> None:
        self._player.decide_assignment(request)
        self._player.submit(request, _client(self.client), lambda _: None)
