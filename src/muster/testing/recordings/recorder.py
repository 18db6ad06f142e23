"""Records what happens to the groups of a broker: records, rebalances, commits, errors, faults.

Before each line is written, the logs are read up to the last stable offset. So a record precedes the commit that covers
it in the file, even if it was written in a transaction or without an acknowledgement.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from muster.broker.broker import Broker
from muster.clock import wall_clock_ms
from muster.coordinator.groups import effects
from muster.errors import ErrorCode, MusterError
from muster.log import LogError, PartitionLog
from muster.protocol.api import READ_COMMITTED
from muster.protocol.primitives import Response, Struct
from muster.protocol.records.aborted import AbortedTransactions
from muster.protocol.records.record_batch import Record, iter_headers, read_records
from muster.testing.recordings import recording
from muster.testing.rules.facts import Facts
from muster.testing.rules.faults import Rule

_READ_BYTES = 1 << 20
_OF_MEMBERS: dict[type[effects.GroupEvent], str] = {
    effects.MemberJoined: "joined",
    effects.MemberLeft: "left",
    effects.MemberExpired: "expired",
    effects.MemberFenced: "fenced",
}
_GROUP_APIS = frozenset({"JoinGroup", "SyncGroup", "Heartbeat", "OffsetCommit", "OffsetFetch", "TxnOffsetCommit"})
"""The requests whose errors are recorded."""
_OF_THE_KIT = "muster-testing"


class Recorder:
    """A recording in progress, until `end`.

    Args:
        topics: the topics whose records are recorded; None: all except internal topics.
        view: returns the state of a group (`Control.view`).

    Raises:
        ConfigError: the file cannot be written, or exists and is not a recording.
    """

    def __init__(
        self,
        broker: Broker,
        path: Path,
        topics: Collection[str] | None,
        view: Callable[[str], Mapping[str, Any]],
    ) -> None:
        self._broker = broker
        self._topics = topics
        self._view = view
        self._began = wall_clock_ms()
        self._ends: dict[tuple[str, int], int] = {}
        """The offset up to which each partition is recorded."""
        self._offsets: dict[str, dict[str, dict[str, int]]] = {}
        """The recorded committed offsets, by group."""
        self._in_transactions: dict[str, dict[str, Collection[int]]] = {}
        """The partitions for which a group has committed offsets in transactions."""
        self._names: dict[str, dict[str, str]] = {}
        """The names of members in the file, by group and member id: several members may have the same client id."""
        self._into = recording.Writer(path, "a test broker", self._began)
        self._begin()

    def end(self) -> dict[str, Any]:
        """End the recording, unless it has ended. Returns a summary."""
        if not self._into.why:
            self._drain()
        into = self._into
        into.end(self._now())
        return {"path": str(into.path), "lines": into.lines, "bytes": into.size, "why": into.why}

    @property
    def path(self) -> Path:
        """The file."""
        return self._into.path

    # ---------------------------------------------------------------------------------------------------- notifications

    def on_event(self, event: effects.GroupEvent) -> None:
        """An event of a group."""
        what = _OF_MEMBERS.get(type(event))
        if what is not None and isinstance(event, effects.MemberEvent):
            name = self._named(event)
            instance = {} if event.group_instance_id is None else {"instance": event.group_instance_id}
            self._note(what, group=event.group_id, client=name, **instance)
        elif isinstance(event, effects.RebalanceCompleted):
            self._generation(event.group_id)

    def on_answer(self, facts: Facts, response: Response) -> None:
        """A request was answered without a fault."""
        if facts.api in ("Produce", "EndTxn", "WriteTxnMarkers", "CreateTopics", "CreatePartitions"):
            self._drain()
        if facts.api == "TxnOffsetCommit":  # its offsets take effect when the transaction ends
            for group in facts.groups:
                known = self._in_transactions.setdefault(group, {})
                known.update({topic: {*known.get(topic, ()), *new} for topic, new in facts.partitions.items()})
        for group, partitions in self._in_transactions.items():
            self._commits(group, "", partitions)
        if facts.api in _GROUP_APIS:
            for group in sorted(facts.groups):
                client = self._client(group, facts)
                if facts.api == "OffsetCommit":
                    self._commits(group, client, facts.partitions)
                for error in sorted(_errors(response)):
                    self._note("refused", group=group, client=client, api=facts.api, error=ErrorCode(error).name)

    def on_strike(self, rule: Rule, facts: Facts) -> None:
        """A fault strikes a request."""
        if facts.client_id != _OF_THE_KIT:
            self._note(
                "struck",
                name=rule.name,
                fault=rule.effect(),
                api=facts.api,
                client=next((self._client(group, facts) for group in facts.groups), facts.client_id),
                groups=sorted(facts.groups),
                topics=sorted(facts.partitions),
            )

    def did(self, act: str, **more: object) -> None:
        """A test did something to the broker."""
        self._note("did", act=act, **{name: value for name, value in more.items() if value is not None})

    # ------------------------------------------------------------------------------------------------------ the lines

    def _begin(self) -> None:
        """Record what exists already."""
        self._drain()
        for shard in self._broker.groups.runtime.shards():
            for group_id in sorted({*shard.groups, *shard.offsets.by_group}):
                view = self._view(group_id)
                had = {topic: offsets for topic, offsets in view["offsets"].items() if self._is_recorded(topic)}
                if had:
                    self._offsets[group_id] = had
                    self._write("had", group=group_id, offsets=had)
                for member in view["members"]:
                    names = self._names.setdefault(group_id, {})
                    name = names[member["member_id"]] = recording.free_name(member["client_id"], names.values())
                    self._write("joined", group=group_id, client=name)
                if view["members"]:
                    self._generation(group_id)

    def _named(self, event: effects.MemberEvent) -> str:
        names = self._names.setdefault(event.group_id, {})
        if isinstance(event, effects.MemberJoined):
            names[event.member_id] = recording.free_name(event.client_id, names.values())
            return names[event.member_id]
        name = names.pop(event.member_id, event.client_id)
        if isinstance(event, effects.MemberFenced):
            names[event.new_member_id] = name
        return name

    def _client(self, group_id: str, facts: Facts) -> str:
        """The name of a request's sender in the file."""
        names = self._names.get(group_id, {})
        return next((names[member] for member in facts.members if member in names), facts.client_id)

    def _is_recorded(self, topic: str) -> bool:
        return self._topics is None or topic in self._topics

    def _generation(self, group_id: str) -> None:
        view, names = self._view(group_id), self._names.get(group_id, {})
        members = [
            {
                "client": names.get(each["member_id"], each["client_id"]),
                "partitions": {
                    topic: indexes for topic, indexes in each["partitions"].items() if self._is_recorded(topic)
                },
            }
            for each in view["members"]
        ]
        if members and self._topics is not None and not any(each["partitions"] for each in members):
            return  # a group without partitions of these topics
        self._note("generation", group=group_id, generation=view["generation"], members=members)

    def _commits(self, group_id: str, client: str, partitions: Mapping[str, Collection[int]]) -> None:
        """Record what a group has committed for these partitions since the last call. A change in another partition
        belongs to a request that has not been answered yet."""
        known = self._offsets.setdefault(group_id, {})
        changed: dict[str, dict[str, int]] = {}
        for topic, offsets in self._view(group_id)["offsets"].items():
            for partition, offset in offsets.items():
                named = int(partition) in partitions.get(topic, ()) and self._is_recorded(topic)
                if named and known.get(topic, {}).get(partition) != offset:
                    changed.setdefault(topic, {})[partition] = known.setdefault(topic, {})[partition] = offset
        if changed:
            self._note("committed", group=group_id, client=client, offsets=changed)

    def _note(self, what: str, **fields: object) -> None:
        self._drain()
        self._write(what, **fields)

    def _write(self, what: str, **fields: object) -> None:
        self._into.write(self._now(), what, **fields)

    def _now(self) -> int:
        return max(wall_clock_ms() - self._began, 0)

    def _drain(self) -> None:
        """Record what was appended since the last call."""
        for topic in self._broker.topics:
            if topic.internal or not self._is_recorded(topic.name):
                continue
            if (topic.name, topic.partitions - 1) not in self._ends:
                self._write("topic", topic=topic.name, partitions=topic.partitions)
            for index in range(topic.partitions):
                log = self._broker.partitions.get(topic.name, index)
                if log is not None:
                    start = self._ends.setdefault((topic.name, index), log.log_start_offset)
                    for record in self._since(log, start):
                        self._record(topic.name, index, record)

    def _since(self, log: PartitionLog, start: int) -> Iterator[Record]:
        place = log.topic_partition.topic, log.topic_partition.partition
        start = max(start, log.log_start_offset)  # retention may have deleted records that are not recorded
        while start < log.readable_end(READ_COMMITTED):
            try:
                found = log.read(start, _READ_BYTES, isolation_level=READ_COMMITTED)
            except (LogError, MusterError) as error:
                self._into.end(self._now(), f"partition {place[1]} of {place[0]} cannot be read: {error}")
                return
            aborted = AbortedTransactions(found.aborted or ())
            for position, header in iter_headers(found.data):
                if not aborted.drops(found.data, position, header) and not header.is_control:
                    yield from (each for each in read_records(found.data, position, header) if each.offset >= start)
            if found.next_offset <= start:
                break
            start = found.next_offset
            self._ends[place] = start

    def _record(self, topic: str, partition: int, record: Record) -> None:
        self._write("record", **recording.record_fields(topic, partition, record))


def _errors(struct: Struct) -> set[int]:
    """The error codes in a response."""
    errors: set[int] = set()
    for name in struct.__slots__:
        value = getattr(struct, name)
        if name == "error_code" and value:
            errors.add(value)
        elif isinstance(value, list):
            for each in value:
                if isinstance(each, Struct):
                    errors |= _errors(each)
    return errors
