"""Why a known member has rejoined: only for the events.

The rules of a rebalance never decode a subscription. But a member that rejoins starts a rebalance, and the difference
from its last JoinGroup says why: different topics; fewer owned partitions, as in the second phase of a cooperative
rebalance (KIP-429); or no difference, and then the partitions of a leader's topics may have changed since the
generation began. Two subscriptions are decoded for a rebalance: the old and the new one of the member that started it.
"""

from __future__ import annotations

from muster.coordinator.groups.effects import EventCause
from muster.coordinator.groups.group import STABLE, ClassicGroupBase, ClassicMember, Protocols
from muster.errors import ProtocolError
from muster.protocol.subscription import decode_subscription


def why_again(group: ClassicGroupBase, member: ClassicMember, protocols: Protocols) -> EventCause:
    """Why a member starts a rebalance with these protocols; `member` still has those of its last join."""
    leads = group.state is STABLE and member.member_id == group.leader_id
    plain = EventCause.LEADER_REJOINED if leads else EventCause.MEMBER_REJOINED
    if not group.uses_consumer_protocol:
        return plain
    after = dict(protocols).get(group.protocol_name or "")
    if after is None:
        return plain
    changed = _difference(member.metadata(group.protocol_name), after)
    if changed is None and leads and _partitions_changed(group):
        return EventCause.PARTITIONS_CHANGED
    return changed or plain


def _difference(before: bytes, after: bytes) -> EventCause | None:
    if before == after:
        return None
    try:
        was, now = decode_subscription(before), decode_subscription(after)
    except ProtocolError:
        return None
    if set(was.topics) != set(now.topics):
        return EventCause.SUBSCRIPTION_CHANGED
    if not set(was.owned_partitions) <= set(now.owned_partitions):
        return EventCause.PARTITIONS_REVOKED
    return None


def _partitions_changed(group: ClassicGroupBase) -> bool:
    count = group.partition_count
    return count is not None and any(count(topic) != before for topic, before in group.partition_counts.items())
