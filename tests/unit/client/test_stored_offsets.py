"""`store_offsets`: only offsets that the user has stored are committed (librdkafka's
`enable.auto.offset.store=false`)."""

from __future__ import annotations

from typing import Any

import pytest

from muster import Consumer
from muster.client.core.subscription_state import SubscriptionState
from muster.errors import IllegalArgumentError, IllegalStateError
from muster.model import OffsetAndMetadata, TopicPartition
from tests.support.faces import FACES, until
from tests.support.numbered_records import World, first

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)


def test_what_is_stored_goes_with_the_partition() -> None:
    state = SubscriptionState()
    state.assign([P0, P1])
    state.store({P0: 5, P1: OffsetAndMetadata(7, 1, "why")})
    assert state.stored() == {P0: OffsetAndMetadata(5), P1: OffsetAndMetadata(7, 1, "why")}
    state.store({P0: 3})  # going back is allowed, as in librdkafka
    state.seek(P0, 40)
    assert state.stored()[P0] == OffsetAndMetadata(3)
    state.assign([P1])
    state.assign([P0, P1])
    assert state.stored() == {P1: OffsetAndMetadata(7, 1, "why")}


def test_all_or_none_are_stored() -> None:
    state = SubscriptionState()
    state.assign([P0])
    with pytest.raises(IllegalStateError, match="t-1 is not assigned"):
        state.store({P0: 5, P1: 5})
    with pytest.raises(IllegalArgumentError):
        state.store({P0: -1})
    assert state.stored() == {}


def test_a_commit_by_name_is_not_undone_by_the_next_one_without() -> None:
    state = SubscriptionState()
    state.assign([P0, P1])
    state.store({P0: 5})
    state.store_at_least({P0: OffsetAndMetadata(9), P1: OffsetAndMetadata(9)})
    assert state.stored() == {P0: OffsetAndMetadata(9)}
    state.store_at_least({P0: OffsetAndMetadata(2)})
    assert state.stored() == {P0: OffsetAndMetadata(9)}


# --- on a broker -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("face", FACES)
def test_only_what_is_stored_is_committed_by_every_way(world: World, face: str) -> None:
    consumer: Any = FACES[face](**world.settings, enable_auto_offset_store=False)
    try:
        consumer.subscribe([world.topic])
        records = first(consumer, max_records=10)
        first(consumer, max_records=10)
        consumer.commit()
        assert world.committed() == [0]
        consumer.store_offsets(records[3])
        consumer.commit()
        assert world.committed() == [4]
        consumer.store_offsets({world.places[0]: 6})
        until(lambda: world.committed() == [6], lambda: consumer.poll(0))  # auto commit
        consumer.commit({world.places[0]: 9})
        consumer.commit()
        assert world.committed() == [9]
        consumer.store_offsets({world.places[0]: OffsetAndMetadata(8, metadata="back")})
    finally:
        consumer.close()
    assert world.committed() == [8]


@pytest.mark.slow
def test_a_rebalance_commits_what_is_stored(world: World) -> None:
    settings = {**world.settings, "auto_commit_interval_ms": 600_000}
    with Consumer(**settings, enable_auto_offset_store=False) as consumer, Consumer(**settings) as other:
        consumer.subscribe([world.topic])
        consumer.store_offsets(first(consumer)[41])
        other.subscribe([world.topic])

        def step() -> None:
            consumer.poll(10)
            other.poll(10)

        until(lambda: world.committed() == [42], step)


def test_it_is_refused_where_it_would_mean_nothing(world: World) -> None:
    with Consumer(**world.settings) as consumer:
        consumer.assign(world.places)
        with pytest.raises(IllegalStateError, match="needs enable_auto_offset_store to be off"):
            consumer.store_offsets({world.places[0]: 1})
    with Consumer(**world.settings, enable_auto_offset_store=False) as consumer:
        with pytest.raises(IllegalStateError, match="not assigned"):
            consumer.store_offsets({world.places[0]: 1})
        consumer.assign(world.places)
        consumer.store_offsets({world.places[0]: 1})
        assert consumer.handled() == {world.places[0]: 1}
    assert world.committed() == [1]
