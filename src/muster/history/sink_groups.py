"""Groups without consumers: in their offsets, muster's Spark sink marks which batches its tasks have written.

With `exactlyOnce` (muster.spark.exactly_once) a task commits, in the transaction of its rows, the number of the batch
as an offset of a group that is named after its transactional id. Such offsets are not positions in a log: they show
neither a lag nor the silence of a member. `muster lag`, the doctor and the history's tables leave these groups out.
"""

from __future__ import annotations

import re
from collections.abc import Collection

SINK_METADATA = "muster-sink:"
"""The beginning of such an offset's metadata."""
_NAME = re.compile(r".+-[0-9]+")


def is_of_sink(group: str, metadata: Collection[str]) -> bool:
    """Whether a group only marks the progress of a task of muster's Spark sink, judged by its name and by the metadata
    of all its offsets."""
    all_marked = bool(metadata) and all(text.startswith(SINK_METADATA) for text in metadata)
    return all_marked and _NAME.fullmatch(group) is not None
