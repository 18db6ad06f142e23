"""Groups that are not read with: in their offsets, tasks of muster's Spark sink mark which batches they have written.

With `exactlyOnce` (muster.spark.exactly_once) a task commits, in the transaction of its rows, the number of the batch
as an offset of a group with the name of its transactional id. Such offsets are not places in a log: they show neither a
lag nor the silence of a member. `muster lag`, the doctor and the history's tables leave these groups out, by this rule.
"""

from __future__ import annotations

import re
from collections.abc import Collection

SINK_METADATA = "muster-sink:"
"""How the metadata of such an offset begins."""
_NAME = re.compile(r".+-[0-9]+")


def is_of_sink(group: str, metadata: Collection[str]) -> bool:
    """Whether a group only marks how far a task of muster's Spark sink is: by its name, and by the metadata of all its
    offsets."""
    kept = bool(metadata) and all(text.startswith(SINK_METADATA) for text in metadata)
    return kept and _NAME.fullmatch(group) is not None
