"""The cost of one change of a group and of its start: the formulas with which the measurements are compared.

`members` is the size of the group after the change, `partitions` those of its topic, `brokers` those in ZooKeeper.

Scheme 1, as `watchers/scheme.py` does it. A change wakes every member. Each sets the watch on the ids again (exists and
children: 2 reads), reads its own id (1), the brokers (1 + B), the ids (1) and each of them (N), and the topic (1). The
offset of each partition is read by its new owner (P together), if one was committed. That makes N² + (6 + B)·N + P
reads. Each failed try costs N + 4 + B more. Each owner znode is deleted and created (2P); a session and an id begin or
end (2); and each partition's offset is written before it is released, if it has moved (up to P). 0.8.2.2's own consumer
was measured with about twice as many reads for each member.

Scheme 2 keeps a group and its assignment in one znode: one write per rebalance. Scheme 3 writes a record of its log.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple


class Scheme(StrEnum):
    """The generations of group coordination, and the peers that are compared with them."""

    WATCHERS = "1"
    """Each member watches ZooKeeper, and rebalances on its own."""
    KAFKA08 = "1-kafka"
    """The same, by the consumer of Apache Kafka 0.8.2.2."""
    SERVER = "2"
    """A coordinator watches ZooKeeper, and assigns."""
    MEMBERS = "3"
    """A coordinator keeps the group, and one of the members assigns."""

    @property
    def watches(self) -> bool:
        """Whether members watch ZooKeeper themselves."""
        return self in (Scheme.WATCHERS, Scheme.KAFKA08)


TITLES = {
    Scheme.WATCHERS: "Scheme 1: members watch ZooKeeper",
    Scheme.KAFKA08: "Scheme 1: Kafka 0.8.2.2's own consumer",
    Scheme.SERVER: "Scheme 2: the coordinator assigns",
    Scheme.MEMBERS: "Scheme 3: a member assigns",
}


class Range(NamedTuple):
    """The allowed range of a count."""

    least: int
    most: int

    def __contains__(self, count: object) -> bool:
        return isinstance(count, int) and self.least <= count <= self.most

    def __str__(self) -> str:
        return f"{self.least:,}" if self.least == self.most else f"{self.least:,} to {self.most:,}"


def start_rebalances(members: int) -> int:
    """How often members rebalance while this many start one after another, each once the group has converged."""
    return members * (members + 1) // 2


def start_notifications(members: int) -> int:
    """How many watches on the ids fire meanwhile: each new member wakes all earlier ones."""
    return members * (members - 1) // 2


def reads_of_change(members: int, partitions: int, brokers: int) -> int:
    """ZooKeeper's reads for one change under scheme 1, all offsets committed and no failed try."""
    return members * members + (6 + brokers) * members + partitions


def reads_in_vain(members: int, brokers: int) -> int:
    """ZooKeeper's reads for a try that failed."""
    return members + 4 + brokers


def writes_of_change(partitions: int) -> int:
    """ZooKeeper's writes for one change under scheme 1, no offset moved and no failed try."""
    return 2 * partitions + 2


def reads_range(members: int, partitions: int, brokers: int, failed_tries: int, conflicts: int) -> Range:
    """The allowed range of a change's reads. Reading an offset that was never committed finds nothing, and is not
    counted; a member that joins sets a watch on the topic, and looks whether its chroot is there (2); an owner that is
    in the way is checked one more time (1 each)."""
    change = reads_of_change(members, partitions, brokers)
    vain = failed_tries * reads_in_vain(members, brokers) + conflicts
    return Range(change - partitions, change + 2 + vain)


def writes_range(members: int, partitions: int, failed_tries: int, conflicts: int) -> Range:
    """The allowed range of a change's writes. Offsets are written if they have moved: the first time the write is
    refused, and each is created, with its parents; and once more if a minute of auto commit ends in this step. A failed
    try creates and deletes the partitions that it could claim, and is refused the rest."""
    share = -(-partitions // members)
    most = writes_of_change(partitions) + 3 * partitions + 8 + failed_tries * 2 * share + conflicts
    return Range(2 * partitions - share + 1, most)


Curve = Callable[[int], float]
"""From the number of members to a count."""


def reads_curve(scheme: Scheme, partitions: int, brokers: int) -> Curve:
    """ZooKeeper's reads for one change."""
    if scheme.watches:
        return lambda members: reads_of_change(members, partitions, brokers)
    return lambda _: 0


def writes_curve(scheme: Scheme, partitions: int) -> Curve:
    """ZooKeeper's writes for one change."""
    if scheme.watches:
        return lambda _: writes_of_change(partitions)
    return lambda _: 1 if scheme is Scheme.SERVER else 0


def notifications_curve(scheme: Scheme) -> Curve:
    """Watches that fire at members when one more joins."""
    return lambda members: members - 1 if scheme.watches else 0


def requests_curve(scheme: Scheme) -> Curve:
    """Requests to coordinators when one more joins, without heartbeats and commits.

    Under scheme 2 every member joins. Under scheme 3 every member joins and syncs, and a new one joins twice, because
    it gets its id first (KIP-394).
    """
    if scheme.watches:
        return lambda _: 0
    return lambda members: members if scheme is Scheme.SERVER else 2 * members + 1


def start_reads_curve(scheme: Scheme, partitions: int, brokers: int) -> Curve:
    """ZooKeeper's reads while this many members start one after another: the sum over the changes, about N³/3."""
    change = reads_curve(scheme, partitions, brokers)
    return lambda members: sum(change(size) for size in range(1, members + 1))


def formula_texts(scheme: Scheme) -> dict[str, str]:
    """The formulas for one change, for people: N members, P partitions, B brokers."""
    if scheme.watches:
        writes, reads = "2P + 2, and up to P offsets", "N² + (6 + B)·N + P"
        return {"reads": reads, "writes": writes, "notifications": "N − 1", "requests": "0"}
    if scheme is Scheme.SERVER:
        return {"reads": "0", "writes": "1, and the members' commits", "notifications": "0", "requests": "N"}
    return {"reads": "0", "writes": "0", "notifications": "0", "requests": "2N + 1"}
