"""Bugs that are planted on purpose: a check that cannot fail checks nothing."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import count, islice
from random import Random

import pytest

from tests.simulator.checks import InvariantError
from tests.simulator.transactions.life import simulate_transactions
from tests.simulator.transactions.plan import Plan, plan_of

SEEDS = 60
"""A planted bug is found within this many lives of its kind, and nearly always in one of the first few."""

Kind = Callable[[Plan], bool]


def lead_many_lives(kind: Kind) -> None:
    """Run lives of some kind, with a standalone broker and no members: the shortest ones."""
    plans = ((seed, plan_of(Random(seed))) for seed in count())
    seeds = (seed for seed, plan in plans if not (plan.is_cluster or plan.members) and kind(plan))
    for seed in islice(seeds, SEEDS):
        simulate_transactions(seed)


def caught_with(pattern: str, kind: Kind = lambda plan: True) -> None:
    """One of the seeds of some kind finds the bug, and says what is wrong."""
    with pytest.raises(InvariantError) as caught:
        lead_many_lives(kind)
    assert re.search(pattern, str(caught.value).splitlines()[0]), str(caught.value).splitlines()[0]
