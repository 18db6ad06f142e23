"""Whether what a query keeps of its records (windows, joins, deduplication) still fits the partitions that it reads.

Spark keeps a query's state in that query's checkpoint; no other member of the group sees it. So from its first batch
on, a query that keeps state has to read exactly the partitions whose records are in the state, and read them alone:

1.  A partition that the query has read stays with it. Given to another member, its keys would be counted in part here
    and in part there.
2.  No other client commits a partition that the query has read. A commit of another member means that records went past
    the state, one of an operator that records will be in it twice. A commit that is gone (it expired, or the group was
    deleted) no longer says where the query has to continue.
3.  A partition that it has not read yet comes without a commit: it was added to the topic. One with a commit was read
    by another member, which has the beginning of its windows.

What breaks a rule ends the query with a `StateError`, or is a warning with `failOnDataLoss=false`. Two settings keep
them: a group that the query has for itself, and a fixed share of the partitions for each query (`share`).

The schedules: (1) queries A and B share a group; B joins while A has an hour's window half full: A gives up partitions,
and both would write that window with a part of its records. (2) A is stopped; B takes its partitions over and commits;
B leaves, A comes back: what B read is in no window of A. (3) A is stopped, an operator sets the group back to read an
hour again: A would add that hour to what its windows have.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from muster.errors import MusterError
from muster.model import TopicPartition

MISSING_MS = 12_000
"""How long a partition may be missing: longer than a query's process takes to leave its group (`member.GOODBYE_MS`)."""

_WAY_OUT = (
    "give the query a group of its own, or each of the queries a fixed share of the partitions (option share), "
    "and begin with a new checkpointLocation"
)


class StateError(MusterError):
    """A query's state no longer fits the partitions that it reads. The message says which partition and why."""


class KeptState:
    """The partitions whose records are in a query's state, as far as the query is known to keep any."""

    def __init__(self) -> None:
        self.known = False
        """Whether the query keeps state: Spark's driver says so after the first batch, the checkpoint from then on."""
        self._read: set[TopicPartition] = set()
        self._missing: dict[TopicPartition, int] = {}
        """Partitions that were read and are not assigned now, and since when."""
        self._broken: dict[TopicPartition, str] = {}

    def read(self, partitions: Iterable[TopicPartition]) -> None:
        """A batch that read these is done."""
        self._read.update(partitions)

    def with_batch(self, partitions: Iterable[TopicPartition]) -> tuple[TopicPartition, ...]:
        """What the state is made of once a batch that reads these is done; nothing where none is kept."""
        return tuple(sorted(self._read.union(partitions))) if self.known else ()

    def assigned(self, owned: Collection[TopicPartition], is_gone: Callable[[str], bool], now: int) -> None:
        """The group's assignment is known (rule 1). The partitions of a topic that `is_gone` belong to no member.

        A partition that is missing may come yet: this query's own former process leaves the group some seconds after
        the next one has joined, if it is started at once. What it would read meanwhile it commits, so rule 2 tells."""
        missing = (partition for partition in self._read.difference(owned) if not is_gone(partition.topic))
        self._missing = {partition: self._missing.get(partition, now) for partition in missing}

    def committed(self, partition: TopicPartition, is_own: bool) -> None:
        """A gained partition has a committed offset, of this query or of another client (rules 2 and 3)."""
        if is_own or not self._read:
            return
        if partition in self._read:
            self._broken.setdefault(partition, "was committed by another client since the query read it")
        else:
            self._broken.setdefault(partition, "was read by another member of the group before the query got it")

    def uncommitted(self, partition: TopicPartition) -> None:
        """A gained partition has no committed offset, nor does the checkpoint say how far it was read (rule 2)."""
        if partition in self._read:
            self._broken.setdefault(partition, "has no committed offset any more")

    def take_broken(self, now: int) -> str | None:
        """What is wrong, once, as a sentence without a full stop; None while it is not known to matter."""
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
        return f"the query keeps state, and {partition}{others} {what}: windows and joins would be wrong; {_WAY_OUT}"
