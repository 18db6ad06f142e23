"""Groups to which the coordinator itself assigns (A5): what it accepts from members, how and when it assigns.

Theory of operation
===================

Kafka's first drafts had the coordinator assign partitions, not a client: it knows the topics, so it alone watches them,
and sends each member its partitions. The setting `server.assigned.groups` turns this on for groups by their ids.
Otherwise such a group is a classic group, with the same members, sessions, rebalances and records, and any stock client
can join it. One thing differs: the assignment does not come from the leader's SyncGroup; the coordinator computes it as
soon as all have joined.

    classic           all joined -> answers to JoinGroup -> leader's SyncGroup -> record -> answers to SyncGroup
    server-assigned   all joined -> assignment -> record -> answers to JoinGroup -> SyncGroup answered immediately

- *The leader* is `COORDINATOR_LEADS`, an id that no member has. So each client acts as a follower, sends an empty
  SyncGroup, and reads its assignment from the answer. Kafka, too, sometimes names a leader that has left (KIP-345).
- *One record* has the members with their assignments. It is durable before any JoinGroup is answered, because every
  answer waits for the records decided before it. If it cannot be written, the JoinGroups fail as SyncGroups do in a
  classic group. The group passes through COMPLETING_REBALANCE in one step, so no request sees that state.
- *Strategies* are `range` and `roundrobin`, by name. The sticky ones need what only clients have: the partitions that
  each member owns. A member that supports neither is refused (A7: a new strategy on the server means a new server; the
  server cannot run a client's own strategy). Members count as eager: a client that lists a cooperative strategy
  together with an eager one behaves eagerly (KIP-429).
- *Subscriptions*: only their topics are kept. Clients also put in their owned partitions and generation; these change
  with each rebalance, and would look like a changed subscription. A JoinGroup with an invalid subscription is refused,
  so that one bad member cannot stop the others.
- *Only partitions that have a leader* are assigned (H6): the others cannot be read, and are assigned again when they
  have a leader. Members beyond the number of partitions are idle (H7).
- *The coordinator watches*. When topics, partitions or leaders appear or disappear, it compares the partitions in the
  group's assignments with those that it would assign now. If they differ, that group rebalances, and no other. It also
  compares after loading the record, to find changes made in the meantime.
- *A changed setting* shows in the leader of the loaded record. The group then rebalances once, so that it has a leader
or no longer needs one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from muster.coordinator.groups.effects import EventCause
from muster.coordinator.groups.topics import TopicResolver
from muster.errors import ErrorCode, KafkaError, ProtocolError
from muster.model import CONSUMER_PROTOCOL_TYPE, TopicPartition
from muster.protocol.subscription import (
    Subscription,
    decode_assignment,
    encode_assignment_by_topic,
    encode_subscription,
    subscribed_topics,
)

if TYPE_CHECKING:
    from muster.assignors import MemberAssignment

COORDINATOR_LEADS = "coordinator"
"""The leader id of a group to which the coordinator assigns. Member ids end with a UUID, so no member has this one."""

STRATEGIES = ("range", "roundrobin")
"""The strategies that the coordinator can use: they keep no state between assignments."""


class ServerAssignment:
    """Assigns the partitions that have a leader to the members of groups; keeps no state of a group."""

    def __init__(self, topics: TopicResolver) -> None:
        self._topics = topics

    def accept(self, protocol_type: str, protocols: list[tuple[str, bytes]]) -> list[tuple[str, bytes]]:
        """A member's protocols whose strategies are supported here, each reduced to the topics.

        Raises:
            KafkaError: INCONSISTENT_GROUP_PROTOCOL if there are none, or the member is not a consumer; INVALID_REQUEST
            if its subscription cannot be decoded.
        """
        if protocol_type != CONSUMER_PROTOCOL_TYPE:
            raise _refusal(f"the coordinator assigns to consumers, not to members of type {protocol_type!r}")
        accepted = [(name, _topics_alone(name, metadata)) for name, metadata in protocols if name in STRATEGIES]
        if not accepted:
            known, named = " and ".join(STRATEGIES), ", ".join(name for name, _ in protocols)
            raise _refusal(f"the coordinator assigns by {known}; the member supports {named or 'no strategy'}")
        return accepted

    def assign(self, strategy: str, members: Iterable[tuple[str, str | None, bytes]]) -> dict[str, bytes]:
        """Each member's assignment, as in its SyncGroup response. A member is its id, its instance id and its
        subscription; with an empty subscription (one that could not be decoded) it gets nothing."""
        # Imported here: a broker whose groups all have client-side assignment does not need it.
        from muster.assignors import MemberSubscription, get_assignor

        topics_of: dict[bytes, list[str]] = {}
        subscriptions: dict[str, MemberSubscription] = {}
        for member_id, instance_id, metadata in members:
            topics = topics_of.get(metadata)
            if topics is None:
                topics = topics_of[metadata] = _topics_of(metadata)
            subscriptions[member_id] = MemberSubscription(topics, group_instance_id=instance_id)
        led = {topic: self._topics.led_partitions(topic) for topics in topics_of.values() for topic in topics}
        counts = {topic: len(numbers) for topic, numbers in led.items() if numbers}
        shares = get_assignor(strategy).assign(counts, subscriptions)
        return {member_id: _encoded(share, led) for member_id, share in shares.items()}

    def rebalance_cause(self, topics: Iterable[str], assignments: Iterable[bytes]) -> tuple[EventCause, str] | None:
        """Why a group with these subscribed topics and assignments must rebalance; None if it need not."""
        owned: dict[str, set[int]] = {}
        for share in assignments:
            for topic, number in _partitions_of(share):
                owned.setdefault(topic, set()).add(number)
        deleted: list[str] = []
        lost: list[TopicPartition] = []
        gained: list[TopicPartition] = []
        for topic in sorted(topics):
            has, led = owned.get(topic, set()), set(self._topics.led_partitions(topic))
            if has and not self._topics.partition_count(topic):
                deleted.append(topic)
            else:
                lost += [TopicPartition(topic, number) for number in sorted(has - led)]
            gained += [TopicPartition(topic, number) for number in sorted(led - has)]
        if deleted:
            return EventCause.TOPIC_DELETED, f"topic deleted: {_few(deleted)}"
        if lost:
            return EventCause.LEADERS_LOST, f"no leader: {_few(lost)}"
        if gained:
            return EventCause.PARTITIONS_GAINED, f"to be assigned: {_few(gained)}"
        return None


def _refusal(why: str) -> KafkaError:
    return KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, why)


def _topics_alone(name: str, metadata: bytes) -> bytes:
    try:
        topics = subscribed_topics(metadata)
    except ProtocolError as error:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"its subscription for {name} cannot be decoded: {error}") from None
    return encode_subscription(Subscription(sorted(set(topics))), version=0)


def _topics_of(metadata: bytes) -> list[str]:
    """The topics of a subscription; none if it is invalid, which a group with client-side assignment may have
    stored."""
    try:
        return sorted(set(subscribed_topics(metadata)))
    except ProtocolError:
        return []


@lru_cache(maxsize=4096)  # the same assignments are compared whenever a topic changes
def _partitions_of(share: bytes) -> Sequence[TopicPartition]:
    """The partitions of an assignment; none if it cannot be decoded (a damaged record): then the coordinator assigns
    again."""
    try:
        return decode_assignment(share).partitions
    except ProtocolError:
        return []


def _encoded(share: MemberAssignment, led: Mapping[str, Sequence[int]]) -> bytes:
    """Encode an assignment; its indexes into the partitions that have a leader become partition numbers."""
    by_topic = {topic: [led[topic][place] for place in places] for topic, places in (share.unnamed() or {}).items()}
    return encode_assignment_by_topic(by_topic, version=0)


def _few(names: Sequence[object]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(map(str, names[:3])) + more
