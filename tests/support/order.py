"""The order of a run that workers share: what takes seconds begins, so that none is left when the others have ended."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import pytest


def slow_first(items: Sequence[pytest.Item], workers: int) -> list[pytest.Item]:
    """All tests: as many stretches as there are workers, each with slow files first and quick tests behind them.

    `--dist worksteal` gives each worker one stretch, and later, to one that has ended, the end of another's. A file
    stays together: its tests share fixtures.
    """
    files = [list(group) for _, group in groupby(items, key=lambda item: item.path)]
    slow = [file for file in files if _is_slow(file)]
    quick = [item for file in files if not _is_slow(file) for item in file]
    ordered: list[pytest.Item] = []
    for worker in range(workers):
        mine = [item for file in slow[worker::workers] for item in file]
        end = len(items) * (worker + 1) // workers
        room = max(end - len(ordered) - len(mine), 0)
        ordered += mine + quick[:room]
        del quick[:room]
    return ordered + quick


def _is_slow(file: Sequence[pytest.Item]) -> bool:
    return any(item.get_closest_marker("slow") for item in file)
