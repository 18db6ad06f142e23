"""Groups whose members handle many records at a time, through crashes, freezes, cuts and failovers, from seeds."""

from __future__ import annotations

import pytest

from tests.support.concurrent_members import World
from tests.support.lives import chunks, live, name


@pytest.mark.soak
@pytest.mark.parametrize("chunk", chunks(fixed=30, fresh=10, per_test=10), ids=name)
def test_order_is_kept_and_nothing_is_lost(chunk: range) -> None:
    live(lambda seed: World(seed).run(), chunk, __file__, "nothing_is_lost")


@pytest.mark.slow
def test_lives_are_eventful() -> None:
    """The seeds reach what they should: every fault, repeated records, and records that metadata has saved."""
    worlds = [World(seed) for seed in range(12)]
    for world in worlds:
        world.run()
    assert {"crash", "close", "freeze", "cut", "kill"} <= {fault for world in worlds for fault in world.faults}
    assert sum(world.repeats for world in worlds) > 0
    assert sum(world.reported_late for world in worlds) > 0
