"""A group's life with faults, for many seeds: 100 fixed ones and 100 of the run's own, any number in `make soak`.

What is checked: `tests/simulator/checks/invariants.py`. A failure names its seed, prints all events, and says how to
run it again.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys

import pytest

from tests.simulator import simulate
from tests.support.lives import chunks, live, name


@pytest.mark.soak
@pytest.mark.parametrize("chunk", chunks(fixed=100, fresh=100, per_test=20), ids=name)
def test_whatever_happens_the_group_keeps_its_promises(chunk: range) -> None:
    live(simulate, chunk, __file__, "promises")


def test_a_seed_tells_the_same_story_again() -> None:
    for seed in (1, 3, 8):
        assert simulate(seed).story == simulate(seed).story


@pytest.mark.slow
def test_a_seed_tells_the_same_story_in_every_process() -> None:
    """Sets of strings have a different order in each process: no decision may depend on it."""
    program = (
        "import hashlib; from tests.simulator import simulate\n"
        "for seed in (2, 5, 12, 20): print(hashlib.sha256(simulate(seed).story.encode()).hexdigest())"
    )
    reported = [
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    ]
    assert reported[0] == reported[1]
    assert len(set(reported[0].split())) == 4
    assert reported[0].split()[0] == hashlib.sha256(simulate(2).story.encode()).hexdigest()


@pytest.mark.slow
def test_lives_differ_and_are_eventful() -> None:
    """The seeds reach what they should: rebalances, every fault, every way of losing a partition."""
    lives = [simulate(seed) for seed in range(100)]
    reported = "\n".join(cluster.story for cluster in lives)
    for word in (
        "crashes", "freezes", "is closed", "unsubscribes", "seeks t", "pauses [T", "only", "stays away",
        "dies", "resigns", "is deposed", "stands still", "learns that", "cuts", "(to client)", "resets", "loses slot",
        "has slot",
        "log      fails", "syncs hang", "a sync fails", "partitions", "is made anew", "begins at", "ends at",
        "revoked t", "lost t", "MemberFenced", "MemberExpired", "NOT_COORDINATOR", "FENCED_INSTANCE_ID",
        "GROUP_MAX_SIZE_REACHED", "poll was not called", "everything is well but", "all leave: expiry", "deletes group",
    ):  # fmt: skip
        assert word in reported, word
    assert sum(cluster.invariants.rebalances for cluster in lives) > 300
    # What no group can discover on its own (`needs_operator`) is rare: hardly any group has to be rebalanced by hand.
    assert sum(cluster.operator_helped for cluster in lives) <= 2
