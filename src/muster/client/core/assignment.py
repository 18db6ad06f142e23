"""The leader's part of a rebalance: from what all members said to what each of them gets (J4)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from muster.assignors import Assignor, MemberAssignment, MemberSubscription, RebalanceProtocol
from muster.client.core.metadata import ClusterMetadata
from muster.errors import IllegalStateError, MusterError
from muster.model import TopicPartition
from muster.protocol.messages import JoinGroupResponse, JoinGroupResponseMember
from muster.protocol.subscription import decode_subscription

COOPERATIVE_STICKY = "cooperative-sticky"


@dataclass(slots=True)
class Leading:
    """An assignment that the leader is about to make. `topics` are those that anybody subscribes to."""

    protocol_name: str
    skip_assignment: bool
    members: dict[str, MemberSubscription]
    topics: set[str]
    refreshes: int

    @classmethod
    def of(cls, reply: JoinGroupResponse, refreshes: int) -> Leading:
        """What the answer to the leader's JoinGroup says; `refreshes` is the metadata's count at this moment.

        Raises:
            ProtocolError: a member's subscription is none.
        """
        members = {member.member_id: _subscription(member) for member in reply.members}
        topics = {topic for subscription in members.values() for topic in subscription.topics}
        return cls(reply.protocol_name or "", reply.skip_assignment, members, topics, refreshes)

    def knows(self, metadata: ClusterMetadata) -> bool:
        """Whether the cluster was asked for all topics; those that do not exist are known not to."""
        if metadata.interest is None and metadata.refreshes > self.refreshes:
            return True
        return all(topic in metadata.topics or metadata.topic_error(topic) for topic in self.topics)

    def assign(
        self, assignors: Mapping[str, Assignor], metadata: ClusterMetadata, protocol: RebalanceProtocol
    ) -> dict[str, MemberAssignment]:
        """Have the group's assignor share out the partitions.

        Raises:
            MusterError: the group chose an assignor that this member does not have, or a user's assignor failed.
        """
        assignor = assignors.get(self.protocol_name)
        if assignor is None:
            raise IllegalStateError(f"the coordinator chose assignor {self.protocol_name!r}, which was not offered")
        counts = {name: len(topic.partitions) for name, topic in metadata.topics.items()}
        try:
            shares = assignor.assign(counts, self.members)
        except MusterError:
            raise
        except Exception as error:
            raise MusterError(f"assignor {assignor.name} raised {type(error).__name__}: {error}") from error
        check_shares(assignor.name, self.members, shares, protocol)
        return shares


def _subscription(member: JoinGroupResponseMember) -> MemberSubscription:
    said = decode_subscription(member.metadata)
    return MemberSubscription(
        said.topics,
        said.owned_partitions,
        said.generation_id,
        member.group_instance_id,
        said.rack_id,
        said.user_data,
    )


def check_shares(
    assignor: str,
    members: Mapping[str, MemberSubscription],
    shares: Mapping[str, MemberAssignment],
    protocol: RebalanceProtocol,
) -> None:
    """Check what a user's assignor may get wrong.

    Raises:
        IllegalStateError: it left a member out, or gave away what another member has not let go of (KIP-429).
    """
    missing = sorted(members.keys() - shares.keys())
    if missing:
        raise IllegalStateError(f"assignor {assignor} has no assignment for {', '.join(missing)}")
    # The built-in cooperative assignor knows by the generations which claims of ownership are void.
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
            f"assignor {assignor} gave {', '.join(map(str, stolen))} to new owners before the old ones let go; "
            "under the cooperative protocol that takes two rebalances"
        )
