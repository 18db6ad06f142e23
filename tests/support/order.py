"""The order of a run that workers share: slow tests begin first, so that none still runs when the other workers have
ended."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress, groupby
from operator import not_

import pytest


def slow_first(items: Sequence[pytest.Item], workers: int) -> list[pytest.Item]:
    """All tests: as many stretches as there are workers, each with slow files first and quick tests after them.

    `--dist worksteal` gives each worker one stretch, and later, to one that has finished, the end of another's. The
    tests of a file stay together, because they share fixtures; so do all files whose tests use the Spark session of a
    worker.
    Files whose mark has a number of seconds, such as `slow(270)`, come before all others, the longest first: one that
    begins late would still run when all others have ended.
    """
    files = [list(group) for _, group in groupby(items, key=lambda item: item.path)]
    in_spark = [any("spark" in getattr(item, "fixturenames", ()) for item in file) for file in files]
    blocks = [(_seconds(file), file) for file in compress(files, map(not_, in_spark))]
    together = list(compress(files, in_spark))
    blocks.append((sum(map(_seconds, together)), [item for file in together for item in file]))
    slow = [file for seconds, file in sorted(blocks, key=lambda block: -block[0]) if seconds]
    quick = [item for seconds, file in blocks if not seconds for item in file]
    ordered: list[pytest.Item] = []
    for worker in range(workers):
        mine = [item for file in slow[worker::workers] for item in file]
        end = len(items) * (worker + 1) // workers
        room = max(end - len(ordered) - len(mine), 0)
        ordered += mine + quick[:room]
        del quick[:room]
    return ordered + quick


def _seconds(file: Sequence[pytest.Item]) -> float:
    """The time that the mark gives for a file on a busy machine: 1 if it gives none, 0 without a mark."""
    marks = [mark for item in file if (mark := item.get_closest_marker("slow"))]
    return max((mark.args[0] if mark.args else 1 for mark in marks), default=0)
