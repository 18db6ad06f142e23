"""The records that a coordinator writes about one group, by hand: a small language for histories, with the real
encoders.

    log = GroupLog("g")
    log.generation(1, [member("m1", "t:0-3")])
    log.commits("t:0-3", every=5_000, until=log.now + 60_000)
    log.generation(2, [])

Times are in milliseconds; `now` advances with each record, `wait` advances it further.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from muster.history.model import Chunk, Commits, Entry, How, Limits, Place, Rows, TopicPartition
from muster.history.rules.fold import finish, fold, start
from muster.model import TopicPartition as _Place
from muster.protocol import group_messages as g
from muster.protocol.group_records import GroupMetadataRecord, encode_record
from muster.protocol.messages import GroupMetadataKey, GroupMetadataValue
from muster.protocol.messages import MemberMetadata as ClassicMemberMetadata
from muster.protocol.record_kinds import RecordKind, TypedRecord
from muster.protocol.subscription import Subscription, encode_assignment, encode_subscription
from tests.support.written import encode_typed

BEGIN_MS = 1_800_000_000_000
K = RecordKind


def places(text: str) -> list[TopicPartition]:
    """`t:0-3 u:1` as partitions."""
    found: list[TopicPartition] = []
    for word in text.split():
        topic, numbers = word.rsplit(":", 1)
        first, _, last = numbers.partition("-")
        found += [(topic, number) for number in range(int(first), int(last or first) + 1)]
    return found


@dataclass(frozen=True)
class M:
    """A member: its properties and partitions, in the form used by histories."""

    id: str
    has: str = ""
    topics: str = "t"
    client: str = ""
    host: str = "/10.0.0.1"
    instance: str | None = None
    owned: str = ""
    session_ms: int = 45_000
    poll_ms: int = 300_000
    user_data: bytes = b""
    regex: str | None = None

    def with_(self, **changes: object) -> M:
        return replace(self, **changes)  # type: ignore[arg-type]

    @property
    def client_id(self) -> str:
        return self.client or self.id.split("-")[0]


@dataclass
class GroupLog:
    """The log of one group, while it is being written."""

    group: str = "g"
    now: int = BEGIN_MS
    leader_epoch: int = 0
    offset: int = 0
    partition: int = 7
    entries: list[Entry] = field(default_factory=list)
    how: How = How.UNKNOWN
    """How the next commits are written."""
    rows: list[tuple[int, int, TopicPartition, int, int, How]] = field(default_factory=list)
    """For commits: log offset, time, partition, offset, leader epoch, how."""
    notes: dict[int, str] = field(default_factory=dict)
    """Metadata of commits by log offset."""
    committed: dict[TopicPartition, int] = field(default_factory=dict)

    def wait(self, ms: int) -> GroupLog:
        self.now += ms
        return self

    def _place(self) -> Place:
        self.offset += 1
        return Place(self.partition, self.offset, self.now, self.leader_epoch)

    def raw(self, key: bytes, value: bytes | None) -> GroupLog:
        self.entries.append(Entry(self._place(), key, value))
        return self

    # --- classic

    def generation(
        self,
        number: int,
        members: Sequence[M],
        *,
        protocol: str = "range",
        protocol_type: str = "consumer",
        leader: int = 0,
        joined_ms: int = 10,
    ) -> GroupLog:
        """A GroupMetadata record; all had joined `joined_ms` before."""
        value = GroupMetadataValue(
            protocol_type=protocol_type,
            generation=number,
            protocol=protocol if members else None,
            leader=members[leader].id if members else None,
            current_state_timestamp=self.now - joined_ms,
            members=[self._member(each, protocol_type) for each in members],
        )
        return self.raw(*encode_record(GroupMetadataRecord(GroupMetadataKey(self.group), value)))

    @staticmethod
    def _member(member: M, protocol_type: str) -> ClassicMemberMetadata:
        owned, has = ([_Place(*place) for place in places(text)] for text in (member.owned, member.has))
        subscription = Subscription(member.topics.split(), owned, 1, None, member.user_data)
        is_consumer = protocol_type == "consumer"
        return ClassicMemberMetadata(
            member_id=member.id,
            group_instance_id=member.instance,
            client_id=member.client_id,
            client_host=member.host,
            rebalance_timeout=member.poll_ms,
            session_timeout=member.session_ms,
            subscription=encode_subscription(subscription) if is_consumer else b"\0\1opaque",
            assignment=encode_assignment(has) if is_consumer else b"\0\1opaque",
        )

    def tombstone(self) -> GroupLog:
        return self.raw(*encode_record(GroupMetadataRecord(GroupMetadataKey(self.group), None)))

    # --- KIP-848

    def typed(self, kind: RecordKind, key: object, value: object) -> GroupLog:
        return self.raw(*encode_typed(TypedRecord(kind, key, value)))  # type: ignore[arg-type]

    def epoch(self, number: int | None, metadata_hash: int = 1) -> GroupLog:
        value = None if number is None else g.ConsumerGroupMetadataValue(number, metadata_hash)
        return self.typed(K.CONSUMER_GROUP_METADATA, g.ConsumerGroupMetadataKey(self.group), value)

    def partitions(self, counts: dict[str, int]) -> GroupLog:
        """The numbers of partitions of topics, as brokers before Kafka 4.1 write them."""
        topics = [g.TopicMetadata(topic_id(name), name, number, []) for name, number in counts.items()]
        value = g.ConsumerGroupPartitionMetadataValue(topics)
        return self.typed(K.CONSUMER_GROUP_PARTITION_METADATA, g.ConsumerGroupPartitionMetadataKey(self.group), value)

    def member(self, member: M) -> GroupLog:
        value = g.ConsumerGroupMemberMetadataValue(
            instance_id=member.instance,
            client_id=member.client_id,
            client_host=member.host,
            subscribed_topic_names=member.topics.split(),
            subscribed_topic_regex=member.regex,
            rebalance_timeout_ms=member.poll_ms,
        )
        key = g.ConsumerGroupMemberMetadataKey(self.group, member.id)
        return self.typed(K.CONSUMER_GROUP_MEMBER_METADATA, key, value)

    def target(self, epoch: int, members: Iterable[M]) -> GroupLog:
        for each in members:
            topics = [g.ConsumerGroupTargetAssignmentMemberValueTopicPartition(*one) for one in by_id(each.has)]
            key = g.ConsumerGroupTargetAssignmentMemberKey(self.group, each.id)
            value = g.ConsumerGroupTargetAssignmentMemberValue(topics)
            self.typed(K.CONSUMER_GROUP_TARGET_ASSIGNMENT_MEMBER, key, value)
        key6 = g.ConsumerGroupTargetAssignmentMetadataKey(self.group)
        value6 = g.ConsumerGroupTargetAssignmentMetadataValue(epoch)
        return self.typed(K.CONSUMER_GROUP_TARGET_ASSIGNMENT_METADATA, key6, value6)

    def standing(self, epoch: int, *members: M, state: int = 0) -> GroupLog:
        for each in members:
            topics = [g.ConsumerGroupCurrentMemberAssignmentValueTopicPartitions(*one) for one in by_id(each.has)]
            key = g.ConsumerGroupCurrentMemberAssignmentKey(self.group, each.id)
            value = g.ConsumerGroupCurrentMemberAssignmentValue(epoch, epoch - 1, state, topics, [])
            self.typed(K.CONSUMER_GROUP_CURRENT_MEMBER_ASSIGNMENT, key, value)
        return self

    def gone(self, *members: M) -> GroupLog:
        for each in members:
            keys = (
                (K.CONSUMER_GROUP_CURRENT_MEMBER_ASSIGNMENT, g.ConsumerGroupCurrentMemberAssignmentKey),
                (K.CONSUMER_GROUP_TARGET_ASSIGNMENT_MEMBER, g.ConsumerGroupTargetAssignmentMemberKey),
                (K.CONSUMER_GROUP_MEMBER_METADATA, g.ConsumerGroupMemberMetadataKey),
            )
            for kind, key in keys:
                self.typed(kind, key(self.group, each.id), None)
        return self

    def regex(self, regex: str, topics: str) -> GroupLog:
        key = g.ConsumerGroupRegularExpressionKey(self.group, regex)
        value = g.ConsumerGroupRegularExpressionValue(topics.split(), 1, self.now)
        return self.typed(K.CONSUMER_GROUP_REGULAR_EXPRESSION, key, value)

    # --- commits

    def commit(self, where: str, by: int = 10, note: str = "") -> GroupLog:
        """A commit for each of these partitions, higher by `by` than the last."""
        for place in places(where):
            self.committed[place] = self.committed.get(place, 0) + by
            at = self._place()
            self.rows.append((at.offset, at.timestamp_ms, place, self.committed[place], self.leader_epoch, self.how))
            if note:
                self.notes[at.offset] = note
        return self

    def expire(self, where: str) -> GroupLog:
        for place in places(where):
            self.committed.pop(place, None)
            at = self._place()
            self.rows.append((at.offset, at.timestamp_ms, place, -1, self.leader_epoch, How.PLAIN))
        return self

    def commits(self, where: str, for_ms: int, every: int = 5_000, by: int = 10) -> GroupLog:
        """Commits of these partitions at regular times, for this long."""
        end = self.now + for_ms
        while self.now + every <= end:
            self.wait(every).commit(where, by)
        self.now = end
        return self

    # --- input and output of the rules

    def chunk(self, first: int = 0, end: int | None = None, now_ms: int | None = None) -> Chunk:
        """The entries at log offsets [first, end)."""
        end = self.offset + 1 if end is None else end
        rows = [row for row in self.rows if first <= row[0] < end]
        names = sorted({row[2] for row in rows})
        index = {name: number for number, name in enumerate(names)}

        def column(values: Iterable[int]) -> np.ndarray:
            return np.array(list(values), dtype=np.int64)

        notes = [(at, self.notes[row[0]]) for at, row in enumerate(rows) if row[0] in self.notes]
        commits = Commits(
            names,
            column(row[0] for row in rows),
            column(row[1] for row in rows),
            column(index[row[2]] for row in rows),
            column(row[3] for row in rows),
            column(-1 if row[3] < 0 else row[1] for row in rows),
            column(row[4] for row in rows),
            column(row[5] for row in rows),
            notes,
        )
        entries = [each for each in self.entries if first <= each.at.offset < end]
        return Chunk(self.group, entries, commits, now_ms)

    def history(self, limits: Limits | None = None) -> Rows:
        """The rows of the rules, if everything is read at once."""
        state = start(self.group, limits or Limits())
        rows = fold(state, self.chunk())
        rows.extend(finish(state, self.now))
        return rows


def by_id(where: str) -> list[tuple[bytes, list[int]]]:
    """Partitions with a topic id that is derived from the topic's name."""
    found: dict[str, list[int]] = {}
    for topic, number in places(where):
        found.setdefault(topic, []).append(number)
    return [(topic_id(topic), numbers) for topic, numbers in found.items()]


def topic_id(topic: str) -> bytes:
    return topic.encode().ljust(16, b"\1")
