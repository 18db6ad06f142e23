"""The offsets that Spark stores for a query: claims, not positions.

    {"v": 1, "seq": 7, "gen": 3, "claims": {"flights": {"0": [120, 180], "4": [95, 130]}}}

says that batch 7 of this query reads offsets 120 to 179 of partition 0 and 95 to 129 of partition 4, and nothing else:
whatever the group looks like when the batch is planned, retried or replayed after a restart, it reads the same records.
It says nothing about what other members read, so it never goes stale. The initial offset is a constant.

`uncommitted` (omitted when empty) holds claims of finished batches whose commit the group has not acknowledged.
After a crash it says what the query has done without the group's knowledge. `topics` has each topic's ID,
since all of this is valid only for that ID, and how many partitions it had when the query first saw it (`topics.py`);
`query` is the name under which the query commits. `share` is the query's fixed share of the partitions (`2/3`), omitted
if it reads all. `state` has the partitions whose records are in the query's state (`state.py`), if it keeps any.
Offsets without these fields, from older versions, are read too.

Spark compares offsets as JSON text. So the order of keys is fixed, and if there is nothing new, the very dict that
Spark passed is returned.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from muster.errors import MusterError
from muster.model import TopicPartition

FORMAT = 1


class Claim(NamedTuple):
    """A range of offsets of one partition: `start` is inclusive, `end` exclusive."""

    start: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.start


Claims = dict[TopicPartition, Claim]


class Share(NamedTuple):
    """The fixed share of the partitions that one of several queries reads: those whose number leaves the remainder
    `number` when divided by `shares`.

    It depends on the partition's number alone. So partitions that are added later belong to a share immediately, and
    the same-numbered partitions of two topics are in the same share: a stream-stream join of topics that were written
    with the same keys and partition counts finds both sides in one query.
    """

    number: int = 0
    shares: int = 1

    def of(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """The partitions in this share."""
        return [partition for partition in partitions if partition.partition % self.shares == self.number]

    def __str__(self) -> str:
        return f"{self.number}/{self.shares}"


ALL = Share()


class TopicState(NamedTuple):
    """What is stored for a topic: its ID in hexadecimal, empty if the broker sends none, and its partition count."""

    id: str
    partitions: int


TopicStates = dict[str, TopicState]


class QueryOffset(NamedTuple):
    """An offset of the query, as stored in Spark's checkpoint."""

    seq: int
    claims: Claims
    generation: int = -1
    uncommitted: Claims = {}  # noqa: RUF012 - never changed
    topics: TopicStates = {}  # noqa: RUF012 - never changed
    query: str = ""
    share: Share = ALL
    state: tuple[TopicPartition, ...] = ()

    def finished(self) -> Claims:
        """What the query has done by the end of this batch without an acknowledged commit: for each partition
        one range, joining earlier batches and this one where they adjoin."""
        done = dict(self.uncommitted)
        for partition, claim in self.claims.items():
            before = done.get(partition)
            done[partition] = Claim(before.start, claim.end) if before and before.end == claim.start else claim
        return done


INITIAL = QueryOffset(0, {})


class OffsetFormatError(MusterError):
    """The checkpoint contains something that this source did not write."""


def to_json(offset: QueryOffset) -> dict[str, Any]:
    """The dict that Spark stores as JSON; equal offsets give equal text."""
    out: dict[str, Any] = {"v": FORMAT, "seq": offset.seq}
    if offset.seq:
        out["gen"] = offset.generation
    out["claims"] = _claims_to_json(offset.claims)
    if offset.uncommitted:
        out["uncommitted"] = _claims_to_json(offset.uncommitted)
    if offset.topics:
        out["topics"] = {name: list(offset.topics[name]) for name in sorted(offset.topics)}
    if offset.query:
        out["query"] = offset.query
    if offset.share.shares > 1:
        out["share"] = list(offset.share)
    if offset.state:
        out["state"] = {}
        for partition in sorted(offset.state):
            out["state"].setdefault(partition.topic, []).append(partition.partition)
    return out


def _claims_to_json(claims: Claims) -> dict[str, dict[str, list[int]]]:
    out: dict[str, dict[str, list[int]]] = {}
    for partition in sorted(claims):
        out.setdefault(partition.topic, {})[str(partition.partition)] = list(claims[partition])
    return out


def from_json(stored: Mapping[str, Any]) -> QueryOffset:
    """Read what `to_json` wrote.

    Raises:
        OffsetFormatError: it was written by something else, or by a newer muster.
    """
    if stored.get("v") != FORMAT:
        raise OffsetFormatError(
            f"the checkpoint holds offsets of format {stored.get('v')!r}, and this muster knows only {FORMAT}: "
            "use the version that wrote them, or start with a new checkpointLocation"
        )
    try:
        claims, uncommitted = (_claims_from_json(stored.get(key, {})) for key in ("claims", "uncommitted"))
        topics = {name: TopicState(str(id_), int(count)) for name, (id_, count) in stored.get("topics", {}).items()}
        query = str(stored.get("query", ""))
        share = Share(*map(int, stored.get("share", ALL)))
        state = tuple(
            TopicPartition(topic, int(index)) for topic, found in stored.get("state", {}).items() for index in found
        )
        generation = int(stored.get("gen", -1))
        return QueryOffset(int(stored["seq"]), claims, generation, uncommitted, topics, query, share, state)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise OffsetFormatError(
            f"the checkpoint holds an offset that this source did not write: {stored!r} ({error})"
        ) from None


def _claims_from_json(stored: Mapping[str, Mapping[str, list[int]]]) -> Claims:
    claims: Claims = {}
    for topic, partitions in stored.items():
        for partition, (start, end) in partitions.items():
            if not 0 <= int(start) <= int(end):
                raise ValueError(f"{topic}-{partition} has the range [{start}, {end})")
            claims[TopicPartition(topic, int(partition))] = Claim(int(start), int(end))
    return claims
