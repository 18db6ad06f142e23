"""Producers' lives with faults, for many seeds: 100 fixed ones and 50 of the run's own, any number in `make soak`.

The checks are described in `tests.simulator.producer`. A failure names its seed, and says how to run it again.
"""

from __future__ import annotations

import pytest

from muster.client.core.produce.accumulator import Unsettled
from muster.client.core.produce.sequences import Sequences
from tests.simulator import InvariantError
from tests.simulator.producer import simulate_producers
from tests.support.lives import chunks, live, name


@pytest.mark.soak
@pytest.mark.parametrize("chunk", chunks(fixed=100, fresh=50, per_test=50), ids=name)
def test_nothing_acknowledged_is_lost_nothing_is_written_twice_and_the_order_is_kept(chunk: range) -> None:
    live(simulate_producers, chunk, __file__, "nothing")


def test_a_seed_tells_the_same_story_again() -> None:
    for seed in (1, 3):
        assert simulate_producers(seed).story == simulate_producers(seed).story


def lead_many_lives() -> None:
    for seed in range(60):
        simulate_producers(seed)


def assert_caught(pattern: str) -> None:
    with pytest.raises(InvariantError, match=pattern):
        lead_many_lives()


def test_a_producer_that_renumbers_a_batch_when_it_sends_it_again_is_caught(monkeypatch):
    real = Sequences.assign

    def forgetful(sequences: Sequences, batch):
        if batch.has_sequence:
            sequences._remove(batch)
            batch.producer_id = batch.base_sequence = -1
        real(sequences, batch)

    monkeypatch.setattr(Sequences, "assign", forgetful)
    assert_caught("wrote records twice")


def test_a_flush_that_ends_too_early_is_caught(monkeypatch):
    monkeypatch.setattr(Unsettled, "begin_flush", lambda unsettled: lambda: True)
    assert_caught("a flush of p. is over")
