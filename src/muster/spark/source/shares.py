"""How many rows of a batch each partition gets, and how ranges are cut into tasks. Pure arithmetic."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import TypeVar

from muster.model import TopicPartition
from muster.spark.offsets import Claim, Claims

T = TypeVar("T")


def share_rows(available: Mapping[TopicPartition, int], limit: int | None, turn: int = 0) -> dict[TopicPartition, int]:
    """Divide `limit` rows among partitions in proportion to what each has; exactly `limit` rows if there are that many.

    Rows left over from rounding go one by one to partitions in order, starting with another partition at each `turn`,
    so that with fewer rows than partitions none waits forever. None means no limit.
    """
    total = sum(available.values())
    if limit is None or total <= limit:
        return {partition: rows for partition, rows in available.items() if rows > 0}
    shares = {partition: rows * limit // total for partition, rows in available.items()}
    left = limit - sum(shares.values())
    order = sorted(available)
    first = turn % len(order)
    for partition in order[first:] + order[:first]:
        if left and shares[partition] < available[partition]:
            shares[partition] += 1
            left -= 1
    return {partition: rows for partition, rows in shares.items() if rows > 0}


def split(
    claims: Claims, min_partitions: int | None, max_records: int | None = None
) -> list[tuple[TopicPartition, Claim]]:
    """The pieces of a batch: one per claim, or claims cut into about equal pieces of at most `max_records`, so that
    there are at least `min_partitions` (if there are enough records). Deterministic: a batch is planned more than
    once."""
    whole = [
        (partition, piece)
        for partition in sorted(claims)
        if claims[partition].size
        for piece in _cut(claims[partition], -(-claims[partition].size // max_records) if max_records else 1)
    ]
    if min_partitions is None or len(whole) >= min_partitions:
        return whole
    total = sum(claim.size for _, claim in whole)
    pieces: list[tuple[TopicPartition, Claim]] = []
    for partition, claim in whole:
        count = min(claim.size, max(1, -(-claim.size * min_partitions // total)))
        pieces += [(partition, piece) for piece in _cut(claim, count)]
    return pieces


def _cut(claim: Claim, count: int) -> list[Claim]:
    """A claim in `count` pieces of about equal size."""
    edges = [claim.start + claim.size * index // count for index in range(count + 1)]
    return [Claim(start, end) for start, end in pairwise(edges)]


def pack(pieces: Sequence[T], most: int | None, size: Callable[[T], int]) -> list[list[T]]:
    """Put the pieces of a batch into at most `most` tasks of about equal size: the largest piece first, each into the
    task that is smallest so far. Pieces keep their order within a task. Deterministic, like `split`."""
    if most is None or len(pieces) <= most:
        return [[piece] for piece in pieces]
    tasks: list[list[int]] = [[] for _ in range(most)]
    loads = [(0, index) for index in range(most)]
    for at in sorted(range(len(pieces)), key=lambda at: -size(pieces[at])):
        load, index = loads[0]
        tasks[index].append(at)
        heapq.heapreplace(loads, (load + size(pieces[at]), index))
    return [[pieces[at] for at in sorted(task)] for task in tasks]
