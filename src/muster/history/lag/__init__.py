"""The one definition of lag, that of Kafka 4.2's own tool (`ConsumerGroupCommand`): log end minus committed offset.

| | lag |
|---|---|
| the group has committed nothing for the partition | not known |
| the log's end cannot be looked up: the topic was deleted, or no leader answers | not known |
| the log begins after the committed offset: retention was faster | still counted from the committed offset |
| the log ends before the committed offset: the topic was recreated, or its log truncated | negative |
| transaction markers, and offsets removed by compaction | counted like records |

The log's end is the high watermark. A consumer with `isolation.level=read_committed` measures its own lag up to the
last stable offset, but committed offsets do not show which isolation level a group's members use.

How much of the lag can still be read, and how much is gone: `first_unread`, `lost_records`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import overload


@overload
def lag(committed: int, log_end: int) -> int: ...
@overload
def lag(committed: int | None, log_end: int | None) -> int | None: ...
def lag(committed: int | None, log_end: int | None) -> int | None:
    """A group's lag in a partition; None if not known."""
    return None if committed is None or log_end is None else log_end - committed


def total(lags: Iterable[int]) -> int:
    """The lag of several partitions. A negative one counts as 0."""
    return sum(max(0, each) for each in lags)


def first_unread(committed: int, log_start: int) -> int:
    """The first offset that the group has not read and that may still exist."""
    return max(committed, log_start)


def lost_records(committed: int, log_start: int, log_end: int) -> int:
    """How many offsets were deleted before the group had read them."""
    return max(0, min(log_start, log_end) - committed)
