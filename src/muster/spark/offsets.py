"""The offsets that Spark keeps for a query: claims, not positions.

    {"v": 1, "seq": 7, "gen": 3, "claims": {"flights": {"0": [120, 180], "4": [95, 130]}}}

says that batch 7 of this query reads offsets 120 to 179 of partition 0 and 95 to 129 of partition 4, and nothing else:
whatever the group looks like when the batch is planned, retried or replayed after a restart, it reads the same records.
What other members read does not stand in it, so nothing of it goes stale. The first offset is a constant.

`uncommitted` (left out while it is empty) holds claims of finished batches whose commit the group has not acknowledged.
After a crash it tells what the query has done though the group does not know it. `topics` says of each topic its id,
for which alone all of this is good, and how many partitions it had when the query first saw it (`topics.py`); `query`
is the name under which the query commits. Offsets of versions that wrote neither are read as well.

Spark compares offsets as JSON text. So the order of keys is fixed, and where there is nothing new the very dict that
Spark gave is given back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from muster.errors import MusterError
from muster.model import TopicPartition

FORMAT = 1


class Claim(NamedTuple):
    """A range of offsets of one partition: `start` is the first, `end` is behind the last."""

    start: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.start


Claims = dict[TopicPartition, Claim]


class Topic(NamedTuple):
    """A topic's id in hexadecimal digits, empty where the broker tells none, and a number of partitions."""

    id: str
    partitions: int


Topics = dict[str, Topic]


class QueryOffset(NamedTuple):
    """An offset of the query, as Spark's checkpoint holds it."""

    seq: int
    claims: Claims
    generation: int = -1
    uncommitted: Claims = {}  # noqa: RUF012 - never changed
    topics: Topics = {}  # noqa: RUF012 - never changed
    query: str = ""

    def finished(self) -> Claims:
        """What the query has done by the end of this batch without knowing that the group knows: for each partition
        one range, of earlier batches and this one where they adjoin."""
        done = dict(self.uncommitted)
        for partition, claim in self.claims.items():
            before = done.get(partition)
            done[partition] = Claim(before.start, claim.end) if before and before.end == claim.start else claim
        return done


INITIAL = QueryOffset(0, {})


class OffsetFormatError(MusterError):
    """The checkpoint holds something that this source did not write."""


def to_json(offset: QueryOffset) -> dict[str, Any]:
    """The dict that Spark stores as JSON: equal offsets give equal text."""
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
    return out


def _claims_to_json(claims: Claims) -> dict[str, dict[str, list[int]]]:
    out: dict[str, dict[str, list[int]]] = {}
    for partition in sorted(claims):
        out.setdefault(partition.topic, {})[str(partition.partition)] = list(claims[partition])
    return out


def from_json(stored: Mapping[str, Any]) -> QueryOffset:
    """Read what `to_json` wrote.

    Raises:
        OffsetFormatError: it did not, or a newer muster did.
    """
    if stored.get("v") != FORMAT:
        raise OffsetFormatError(
            f"the checkpoint holds offsets of format {stored.get('v')!r}, this version of muster knows {FORMAT}: "
            "use the version that wrote them, or start with a new checkpointLocation"
        )
    try:
        claims, uncommitted = (_claims_from_json(stored.get(key, {})) for key in ("claims", "uncommitted"))
        topics = {name: Topic(str(id_), int(count)) for name, (id_, count) in stored.get("topics", {}).items()}
        query = str(stored.get("query", ""))
        return QueryOffset(int(stored["seq"]), claims, int(stored.get("gen", -1)), uncommitted, topics, query)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise OffsetFormatError(f"the checkpoint holds no offset of this source: {stored!r} ({error})") from None


def _claims_from_json(stored: Mapping[str, Mapping[str, list[int]]]) -> Claims:
    claims: Claims = {}
    for topic, partitions in stored.items():
        for partition, (start, end) in partitions.items():
            if not 0 <= int(start) <= int(end):
                raise ValueError(f"{topic}-{partition} has the range [{start}, {end})")
            claims[TopicPartition(topic, int(partition))] = Claim(int(start), int(end))
    return claims
