"""The assignors of a member, and the leader's part of a rebalance: an assignment for each member from all
subscriptions (J4).

An assignor may be the user's own. If it raises, or returns an invalid assignment, the error becomes a
`MusterError` that names the assignor, and the member continues.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from muster.assignors import Assignor, MemberAssignment, MemberSubscription, RebalanceProtocol, common_protocol
from muster.client.core.checks import check_partitions
from muster.client.core.group.member_state import MemberGeneration
from muster.client.core.metadata import ClusterMetadata
from muster.errors import IllegalStateError, MusterError
from muster.model import TopicPartition
from muster.protocol.messages import (
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    JoinGroupResponseMember,
    SyncGroupRequestAssignment,
)
from muster.protocol.subscription import (
    Subscription,
    decode_subscription,
    encode_assignment,
    encode_assignment_by_topic,
    encode_subscription,
)

T = TypeVar("T")

COOPERATIVE_STICKY = "cooperative-sticky"


@dataclass(slots=True)
class PendingAssignment:
    """An assignment that the leader has to compute. `topics` are those to which any member subscribes."""

    protocol_name: str
    skip_assignment: bool
    members: dict[str, MemberSubscription]
    topics: set[str]
    refreshes: int

    @classmethod
    def of(cls, reply: JoinGroupResponse, refreshes: int) -> PendingAssignment:
        """From the answer to the leader's JoinGroup; `refreshes` is the metadata's count at this moment.

        Raises:
            ProtocolError: a member's subscription cannot be decoded.
        """
        # Members that own nothing mostly send the same bytes: those are decoded once, not a thousand times.
        decoded = {data: decode_subscription(data) for data in {bytes(member.metadata) for member in reply.members}}
        members = {member.member_id: _subscription(member, decoded[bytes(member.metadata)]) for member in reply.members}
        topics = {topic for subscription in members.values() for topic in subscription.topics}
        return cls(reply.protocol_name or "", reply.skip_assignment, members, topics, refreshes)

    def knows(self, metadata: ClusterMetadata) -> bool:
        """Whether the cluster was asked about all topics. A topic that does not exist counts as known."""
        if metadata.interest is None and metadata.refreshes > self.refreshes:
            return True
        return all(topic in metadata.topics or metadata.topic_error(topic) for topic in self.topics)


class Assignors:
    """The assignors that a member offers to its group, in order of preference."""

    def __init__(self, assignors: Iterable[Assignor]) -> None:
        self._by_name = {assignor.name: assignor for assignor in assignors}
        self.protocol = common_protocol(list(self._by_name.values()))

    def offered(self, name: str | None) -> Assignor:
        """The assignor that the group has chosen.

        Raises:
            IllegalStateError: it was not offered.
        """
        found = self._by_name.get(name or "")
        if found is None:
            raise IllegalStateError(f"the coordinator chose assignor {name!r}, which was not offered")
        return found

    def protocols(
        self, topics: list[str], owned: list[TopicPartition], generation: MemberGeneration, rack: str
    ) -> list[JoinGroupRequestProtocol]:
        """The protocols of a JoinGroup, one for each assignor.

        Raises:
            MusterError: one of them failed.
        """

        def protocol(assignor: Assignor) -> JoinGroupRequestProtocol:
            user_data = assignor.subscription_user_data(topics)
            subscription = Subscription(
                topics, owned, generation.generation_id, rack_id=rack or None, user_data=user_data
            )
            return JoinGroupRequestProtocol(assignor.name, encode_subscription(subscription))

        return [_run(assignor, partial(protocol, assignor)) for assignor in self._by_name.values()]

    def assign(self, pending: PendingAssignment, metadata: ClusterMetadata) -> dict[str, MemberAssignment]:
        """Let the group's assignor assign the partitions.

        Raises:
            MusterError: it failed, left a member out, or gave away a partition that another member still holds.
        """
        assignor = self.offered(pending.protocol_name)
        counts = {name: len(topic.partitions) for name, topic in metadata.topics.items()}

        def shares() -> dict[str, MemberAssignment]:
            if any(member.rack_id for member in pending.members.values()):
                racks = {topic: metadata.racks(topic) for topic in pending.topics}
                found = assignor.assign_by_rack(counts, pending.members, racks)
            else:
                found = assignor.assign(counts, pending.members)
            check_shares(assignor.name, pending.members, found, self.protocol)
            return found

        return _run(assignor, shares)

    def encode(
        self, pending: PendingAssignment, shares: Mapping[str, MemberAssignment]
    ) -> list[SyncGroupRequestAssignment]:
        """The assignments, encoded for SyncGroup.

        Raises:
            MusterError: one of them cannot be encoded.
        """

        def encoded() -> list[SyncGroupRequestAssignment]:
            return [SyncGroupRequestAssignment(member_id, _encoded(share)) for member_id, share in shares.items()]

        return _run(self.offered(pending.protocol_name), encoded)

    def notify(self, assignment: MemberAssignment, generation: MemberGeneration) -> MusterError | None:
        """Notify the group's assignor of this member's assignment. Returns the error that it raised, if any."""
        try:
            assignor = self.offered(generation.protocol_name)
            _run(assignor, lambda: assignor.on_assignment(assignment, generation.generation_id))
        except MusterError as error:
            return error
        return None


def _run(assignor: Assignor, call: Callable[[], T]) -> T:
    try:
        return call()
    except MusterError:
        raise
    except Exception as error:
        raise MusterError(f"assignor {assignor.name} raised {type(error).__name__}: {error}") from error


def _encoded(share: MemberAssignment) -> bytes:
    by_topic = share.unnamed()
    if by_topic is None:
        return encode_assignment(check_partitions(share.partitions), share.user_data)
    return encode_assignment_by_topic(by_topic, share.user_data)


def _subscription(member: JoinGroupResponseMember, sent: Subscription) -> MemberSubscription:
    return MemberSubscription(
        list(sent.topics),
        list(sent.owned_partitions),
        sent.generation_id,
        member.group_instance_id,
        sent.rack_id,
        sent.user_data,
    )


def check_shares(
    assignor: str,
    members: Mapping[str, MemberSubscription],
    shares: Mapping[str, MemberAssignment],
    protocol: RebalanceProtocol,
) -> None:
    """Check what a user's assignor may get wrong.

    Raises:
        IllegalStateError: it left a member out, or gave away a partition that another member still holds (KIP-429).
    """
    missing = sorted(members.keys() - shares.keys())
    if missing:
        raise IllegalStateError(f"assignor {assignor} has no assignment for {', '.join(missing)}")
    # The built-in cooperative assignor uses the generation to decide whether a member still owns what it claims.
    if protocol is not RebalanceProtocol.COOPERATIVE or assignor == COOPERATIVE_STICKY:
        return
    added: set[TopicPartition] = set()
    revoked: set[TopicPartition] = set()
    for member_id, share in shares.items():
        owned = set(members[member_id].owned_partitions)
        added |= set(share.partitions) - owned
        revoked |= owned - set(share.partitions)
    stolen = sorted(added & revoked)
    if stolen:
        raise IllegalStateError(
            f"assignor {assignor} gave {', '.join(map(str, stolen))} to new owners before the old owners gave them "
            "up; under the cooperative protocol that takes two rebalances"
        )
