"""The one definition of lag: whatever says how far a group is behind takes it from here.

It is that of Kafka's own tool (`ConsumerGroupCommand`, Kafka 4.2): the log's end minus the committed offset.

| | lag |
|---|---|
| the group has committed nothing for the partition | not known |
| the log's end cannot be had: the topic was deleted, or no leader answers | not known |
| the log begins after the committed offset: retention was faster | counted from the committed offset all the same |
| the log ends before the committed offset: it was made anew, or cut off | negative |
| transaction markers, and offsets that compaction has emptied | count as records do |

The log's end is the high watermark. For a reader with `isolation.level=read_committed` it is the last stable offset, as
in its own metrics; the committed offsets of a group do not tell how its members read.

What of it can still be read, and how much is gone, are other questions: `first_unread`, `lost_records`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import overload


@overload
def lag(committed: int, log_end: int) -> int: ...
@overload
def lag(committed: int | None, log_end: int | None) -> int | None: ...
def lag(committed: int | None, log_end: int | None) -> int | None:
    """How far a group is behind in a partition; None where that is not known."""
    return None if committed is None or log_end is None else log_end - committed


def total(lags: Iterable[int]) -> int:
    """The lag of several partitions. One that was committed beyond the end of its log takes nothing from the others."""
    return sum(max(0, each) for each in lags)


def first_unread(committed: int, log_start: int) -> int:
    """From where on there may be records that the group has not read."""
    return max(committed, log_start)


def lost_records(committed: int, log_start: int, log_end: int) -> int:
    """How many offsets were removed before the group had read them."""
    return max(0, min(log_start, log_end) - committed)
