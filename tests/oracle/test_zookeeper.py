"""The in-memory ZooKeeper answers, refuses, notifies and counts like a real one, in seeded stories.

tests/support/zookeeper_stories.py generates and plays the stories.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support import scale
from tests.support.zookeeper_stories import Transcript, counted, imagined, lived
from tests.support.zookeepers import ZooKeeperServer

STEPS = 60


def compare(seed: int, imagination: Transcript, reality: Transcript) -> None:
    pairs = list(zip(imagination.plain(), reality.plain(), strict=True))
    for place, (ours, theirs) in enumerate(pairs):
        assert ours == theirs, f"seed {seed}, the story so far:\n" + "\n".join(line for line, _ in pairs[:place])


@pytest.mark.soak
@pytest.mark.parametrize("seed", scale.seeds(8))  # `make soak` has new ones, which test no particular change
async def test_the_same_steps_have_the_same_answers_and_events(zookeeper: ZooKeeperServer, seed: int) -> None:
    story, _ = imagined(seed, STEPS, ends=True)
    compare(seed, story, await lived(zookeeper, story))


async def test_a_server_that_comes_back_has_the_same_znodes_and_sessions(own_zookeeper: ZooKeeperServer) -> None:
    story, _ = imagined(1, STEPS, ends=False, restarts=(STEPS // 2, STEPS - 2))
    compare(1, story, await lived(own_zookeeper, story))


async def test_the_counters_agree(own_zookeeper: ZooKeeperServer) -> None:
    story, counts = imagined(4, 4 * STEPS, ends=False)
    counters: list[dict[str, float]] = []
    reality = await lived(own_zookeeper, story, counters)
    compare(4, story, reality)
    assert len(counts.watches_fired) == 4, "every kind of watch has fired in it"
    assert counted(*counters) == replace(counts, packets_sent=0)
