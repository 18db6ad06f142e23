"""Whether a query's state (windows, joins, deduplication) still fits the partitions that it reads.

Spark keeps a query's state in that query's checkpoint; no other member of the group sees it. So from its first batch
on, a query that keeps state must read exactly the partitions whose records are in the state, and be their only reader:

1.  A partition that the query has read stays with it. If another member got it, its keys would be counted partly here
    and partly there.
2.  No other client commits a partition that the query has read. Another member's commit means that records bypassed
    the state; an operator's, that records will be in it twice. A missing commit (it expired, or the group was
    deleted) no longer says where the query must continue.
3.  A partition that it has not read yet comes without a commit: it was added to the topic. One with a commit was read
    by another member, whose state has the beginning of its windows.

Breaking a rule ends the query with a `StateError`, or is a warning with `failOnDataLoss=false`. Either of two settings
guarantees them: a group for the query alone, or a fixed share of the partitions for each query (`share`).

Examples: (1) queries A and B share a group; B joins while A has an hour's window half full: A gives up partitions,
and both would write that window with part of its records. (2) A is stopped; B takes over its partitions and commits;
B leaves, A comes back: what B read is in none of A's windows. (3) A is stopped, an operator resets the group to read an
hour again: A would add that hour to its windows a second time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from muster.errors import MusterError
from muster.model import TopicPartition

MISSING_MS = 12_000
"""How long a partition may be missing: longer than a query's process takes to leave the group (`member.GOODBYE_MS`)."""

_REMEDY = (
    "give the query its own group, or each query a fixed share of the partitions (option share), "
    "and start with a new checkpointLocation"
)


class StateError(MusterError):
    """A query's state no longer fits the partitions that it reads. The message says which partition and why."""


class QueryState:
    """The partitions whose records are in a query's state, if the query is known to keep any."""

    def __init__(self) -> None:
        self.known = False
        """Whether the query keeps state: Spark's driver says so after the first batch, later the checkpoint."""
        self._read: set[TopicPartition] = set()
        self._missing: dict[TopicPartition, int] = {}
        """Partitions that were read but are not assigned now, and since when."""
        self._broken: dict[TopicPartition, str] = {}

    def read(self, partitions: Iterable[TopicPartition]) -> None:
        """The batch that read these partitions is done."""
        self._read.update(partitions)

    def with_batch(self, partitions: Iterable[TopicPartition]) -> tuple[TopicPartition, ...]:
        """The partitions in the state once a batch that reads these is done; empty without state."""
        return tuple(sorted(self._read.union(partitions))) if self.known else ()

    def assigned(self, owned: Collection[TopicPartition], is_gone: Callable[[str], bool], now: int) -> None:
        """The group's assignment is known (rule 1). The partitions of a topic for which `is_gone` is true belong to no
        member.

        A missing partition may still come: this query's previous process leaves the group some seconds after the next
        one has joined, if the next one starts immediately. It commits what it reads until then, which rule 2
        detects."""
        missing = (partition for partition in self._read.difference(owned) if not is_gone(partition.topic))
        self._missing = {partition: self._missing.get(partition, now) for partition in missing}

    def committed(self, partition: TopicPartition, is_own: bool) -> None:
        """A gained partition has a committed offset, from this query or another client (rules 2 and 3)."""
        if is_own or not self._read:
            return
        if partition in self._read:
            self._broken.setdefault(partition, "was committed by another client since the query read it")
        else:
            self._broken.setdefault(partition, "was read by another member of the group before the query got it")

    def uncommitted(self, partition: TopicPartition) -> None:
        """A gained partition has no committed offset, and the checkpoint does not say how far it was read (rule 2)."""
        if partition in self._read:
            self._broken.setdefault(partition, "no longer has a committed offset")

    def take_broken(self, now: int) -> str | None:
        """What is wrong, once, as a sentence without a full stop; None while the query is not known to keep state."""
        if not self.known:
            return None
        for partition in [each for each, since in self._missing.items() if now >= since + MISSING_MS]:
            del self._missing[partition]
            self._broken.setdefault(partition, "now belongs to another member of the group")
        if not self._broken:
            return None
        (partition, what), *more = sorted(self._broken.items())
        self._broken.clear()
        others = f" (and {len(more)} more)" if more else ""
        return f"the query keeps state, and {partition}{others} {what}: windows and joins would be wrong; {_REMEDY}"
