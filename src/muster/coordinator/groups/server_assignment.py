"""Groups to which the coordinator itself assigns (A5): what it takes of a member, how it assigns, and when anew.

Theory of operation
===================

Before clients assigned, the coordinator was to do it: it knows the topics, so it alone watches them, and a member is
told its partitions. The setting `server.assigned.groups` makes this of a group. It is a classic group in all else, with
the same members, sessions, rebalances and records, and every stock client can be in it. One thing differs: the
assignment does not come with the leader's SyncGroup; the coordinator has it as soon as all have joined.

    classic           all joined -> answers to JoinGroup -> leader's SyncGroup -> record -> answers to SyncGroup
    server-assigned   all joined -> assignment -> record -> answers to JoinGroup -> SyncGroup answered at once

- *The leader* is `COORDINATOR_LEADS`, an id that no member has: so each client takes itself for a follower, sends an
  empty SyncGroup, and reads its share from the answer. Kafka too names a leader that is gone at times (KIP-345).
- *One record* has the members with their shares, and is durable before any JoinGroup is answered, as every answer waits
  for what was decided before it. If it cannot be written, the JoinGroups fail as SyncGroups do in a classic group.
  The group passes through COMPLETING_REBALANCE within one act, and no request finds it there.
- *Strategies* are `range` and `roundrobin`, known by name. The others need what only clients have: the sticky ones what
  their members hold. A member that knows neither is refused (A7: a new strategy on the server is a new server; one of
  the clients' own is none of the server's business). A member counts as eager: where a cooperative strategy
  stands beside an eager one, clients are eager by themselves (KIP-429).
- *Of a subscription* only the topics are kept. Clients put into it what they own and in which generation; that changes
  with each rebalance, and would look like another subscription. Bytes that are none are refused at the door: so they
  are never there when the group assigns, and one bad member cannot stop the others.
- *What is assigned* are the partitions that have a leader (H6): the others cannot be read. They come back into the
  assignment with their leader. Members beyond the number of partitions are idle (H7).
- *The coordinator watches*. When topics come, go or grow, or leaders do, it is told, and compares: the partitions that
  the group has in its shares with those that it would assign now. If they differ, that group rebalances, and no other.
  It compares after reading the record, too: what happened meanwhile is found.
- *A setting that was changed* over a restart shows in the leader of the record that is read. The group then rebalances
  once, so that the members have their leader again, or need none any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from muster.coordinator.groups.effects import Cause
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
"""The leader of a group to which the coordinator assigns. Members' ids end with a UUID: no member has this one."""

STRATEGIES = ("range", "roundrobin")
"""By which the coordinator can assign: they keep nothing from one assignment to the next."""


class ServerAssignment:
    """Assigns the partitions that exist and have a leader to the members of groups; keeps nothing of a group."""

    def __init__(self, topics: TopicResolver) -> None:
        self._topics = topics

    def accept(self, protocol_type: str, protocols: list[tuple[str, bytes]]) -> list[tuple[str, bytes]]:
        """Of a member's protocols the strategies that are known here, each with the topics alone.

        Raises:
            KafkaError: INCONSISTENT_GROUP_PROTOCOL if it knows none of them, or is no consumer; INVALID_REQUEST if its
                subscription cannot be read.
        """
        if protocol_type != CONSUMER_PROTOCOL_TYPE:
            raise _refusal(f"the coordinator assigns to consumers, not to members of type {protocol_type!r}")
        accepted = [(name, _topics_alone(name, metadata)) for name, metadata in protocols if name in STRATEGIES]
        if not accepted:
            known, named = " and ".join(STRATEGIES), ", ".join(name for name, _ in protocols)
            raise _refusal(f"the coordinator assigns by {known}, the member knows {named or 'nothing'}")
        return accepted

    def assign(self, strategy: str, members: Iterable[tuple[str, str | None, bytes]]) -> dict[str, bytes]:
        """The share of each member, as its SyncGroup brings it. A member is its id, its instance id and its
        subscription, which is empty for one that cannot be read: it gets nothing."""
        # Imported here: a broker to whose groups their leaders assign does not load it.
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

    def why_again(self, topics: Iterable[str], assignments: Iterable[bytes]) -> tuple[Cause, str] | None:
        """Why a group with these subscribed topics and shares has to rebalance, None if it need not."""
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
            return Cause.TOPIC_DELETED, f"the topic is gone: {_few(deleted)}"
        if lost:
            return Cause.LEADERS_LOST, f"without a leader: {_few(lost)}"
        if gained:
            return Cause.PARTITIONS_GAINED, f"to be assigned: {_few(gained)}"
        return None


def _refusal(why: str) -> KafkaError:
    return KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, why)


def _topics_alone(name: str, metadata: bytes) -> bytes:
    try:
        topics = subscribed_topics(metadata)
    except ProtocolError as error:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"its subscription for {name} cannot be read: {error}") from None
    return encode_subscription(Subscription(sorted(set(topics))), version=0)


def _topics_of(metadata: bytes) -> list[str]:
    """The topics of a subscription; none if it was written by a group that did not look into it."""
    try:
        return sorted(set(subscribed_topics(metadata)))
    except ProtocolError:
        return []


@lru_cache(maxsize=4096)  # the same shares are looked at whenever a topic changes
def _partitions_of(share: bytes) -> Sequence[TopicPartition]:
    """The partitions of a share; none if it cannot be read, which only a damaged record has: then it is made anew."""
    try:
        return decode_assignment(share).partitions
    except ProtocolError:
        return []


def _encoded(share: MemberAssignment, led: Mapping[str, Sequence[int]]) -> bytes:
    """A share, in which partitions are counted among those with a leader, by the partitions' own numbers."""
    by_topic = {topic: [led[topic][place] for place in places] for topic, places in (share.unnamed() or {}).items()}
    return encode_assignment_by_topic(by_topic, version=0)


def _few(names: Sequence[object]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(map(str, names[:3])) + more
