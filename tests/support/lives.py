"""The seeds of a simulation, distributed over tests, and the message for a seed that fails."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from tests.simulator import InvariantError
from tests.support.scale import fresh_seeds, seeds


def chunks(*, fixed: int, fresh: int, per_test: int) -> list[range]:
    """The seeds of a simulation, this many for each test: fixed ones, and some new ones of this run."""
    return [
        part[at : at + per_test] for part in (seeds(fixed), fresh_seeds(fresh)) for at in range(0, len(part), per_test)
    ]


def name(chunk: range) -> str:
    """The name of the test for a chunk."""
    return f"{chunk[0]}-{chunk[-1]}"


def live(simulate: Callable[[int], object], chunk: range, file: str, keyword: str) -> None:
    """Run the lives of all seeds of a chunk. A failure says how to run that seed again."""
    for seed in chunk:
        try:
            simulate(seed)
        except InvariantError as error:
            again = f"MUSTER_FIRST_SEED={seed} MUSTER_SEEDS=1 python -m pytest {os.path.relpath(file)} -k {keyword}"
            pytest.fail(f"{error}\nrun it again: {again}", pytrace=False)
