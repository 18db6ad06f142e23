"""Why a member that the group knows has joined again: for the events, and for nothing else.

The coordinator looks into a subscription no more than it must, which is nowhere. But a member that rejoins starts a
rebalance, and what differs from its last JoinGroup says why: other topics; fewer partitions of its own, as in the
second phase of a cooperative rebalance (KIP-429); nothing, and then a leader's topics may have other partitions than
when the generation began. Two subscriptions are decoded for a rebalance, those of the one member that has started it.
"""

from __future__ import annotations

from muster.coordinator.groups.effects import Cause
from muster.coordinator.groups.group import STABLE, ClassicGroupBase, ClassicMember, Protocols
from muster.errors import ProtocolError
from muster.protocol.subscription import decode_subscription


def why_again(group: ClassicGroupBase, member: ClassicMember, protocols: Protocols) -> Cause:
    """Why a member, which is still as it joined last, starts a rebalance with these protocols."""
    leads = group.state is STABLE and member.member_id == group.leader_id
    plain = Cause.LEADER_REJOINED if leads else Cause.MEMBER_REJOINED
    if not group.uses_consumer_protocol:
        return plain
    after = dict(protocols).get(group.protocol_name or "")
    if after is None:
        return plain
    changed = _difference(member.metadata(group.protocol_name), after)
    if changed is None and leads and _partitions_changed(group):
        return Cause.PARTITIONS_CHANGED
    return changed or plain


def _difference(before: bytes, after: bytes) -> Cause | None:
    if before == after:
        return None
    try:
        was, now = decode_subscription(before), decode_subscription(after)
    except ProtocolError:
        return None
    if set(was.topics) != set(now.topics):
        return Cause.SUBSCRIPTION_CHANGED
    if not set(was.owned_partitions) <= set(now.owned_partitions):
        return Cause.PARTITIONS_REVOKED
    return None


def _partitions_changed(group: ClassicGroupBase) -> bool:
    count = group.partition_count
    return count is not None and any(count(topic) != before for topic, before in group.partition_counts.items())
