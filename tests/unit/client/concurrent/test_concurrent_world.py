"""Lives of processes that handle records many at a time, from seeds: crashes, rebalances, elections, failures."""

from __future__ import annotations

import pytest

from tests.support.concurrent_world import World
from tests.support.lives import chunks, name


@pytest.mark.soak
@pytest.mark.parametrize("chunk", chunks(fixed=80, fresh=20, per_test=20), ids=name)
def test_order_is_kept_nothing_is_lost_and_what_was_reported_is_not_repeated(chunk: range) -> None:
    for seed in chunk:
        try:
            World(seed).run(400)
        except AssertionError as error:
            pytest.fail(f"seed {seed}: {error}")
