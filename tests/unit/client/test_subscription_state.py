"""Kinds of subscription cannot be mixed; assignments keep positions; resets respect the user's seeks."""

from __future__ import annotations

import re
from typing import Any

import pytest

from muster.client.core.subscription_state import OffsetReset, SubscriptionKind, SubscriptionState
from muster.errors import IllegalArgumentError, IllegalStateError
from muster.model import OffsetAndMetadata, TopicPartition

P0, P1, P2 = (TopicPartition("t", number) for number in range(3))


@pytest.fixture
def state() -> SubscriptionState:
    return SubscriptionState("earliest")


def test_ways_to_subscribe_exclude_each_other_until_unsubscribe(state: SubscriptionState) -> None:
    state.subscribe(["t"])
    for other in (lambda: state.assign([P0]), lambda: state.subscribe_pattern(re.compile("t"))):
        with pytest.raises(IllegalStateError, match="unsubscribe"):
            other()
    state.unsubscribe()
    state.assign([P0])
    assert not state.group_managed
    assert state.topics == {"t"}


def test_a_pattern_matches_whole_names(state: SubscriptionState) -> None:
    state.subscribe_pattern(re.compile("ab+"))
    assert state.update_pattern(["ab", "abb", "abc", "xab"])
    assert state.topics == {"ab", "abb"}
    assert not state.update_pattern(["abb", "ab"])


def test_no_epoch_comes_again_when_a_partition_is_lost_and_regained(state: SubscriptionState) -> None:
    """The answer to a fetch of an earlier ownership may arrive after any number of position changes in the later
    one."""
    state.subscribe(["t"])
    seen: set[int] = set()
    for _ in range(3):
        state.assign_from_group([P0])
        epochs = []
        for offset in range(3):
            state.seek(P0, OffsetAndMetadata(offset))
            epochs.append(state.state(P0).epoch)
        assert not seen & set(epochs)
        seen.update(epochs)
        state.assign_from_group([])


def test_a_new_assignment_keeps_the_positions_of_what_stays(state: SubscriptionState) -> None:
    state.subscribe(["t"])
    state.assign_from_group([P0, P1])
    assert state.partitions_without_position() == [P0, P1]
    state.set_position(P0, 7, 3)
    state.pause([P0])
    state.assign_from_group([P2, P0])
    assert state.assignment() == [P2, P0]
    assert state.position(P0) == 7
    assert state.paused() == [P0]
    assert state.all_consumed() == {P0: OffsetAndMetadata(7, 3)}
    assert state.partitions_without_position() == [P2]


def test_a_committed_offset_does_not_undo_a_seek(state: SubscriptionState) -> None:
    state.assign([P0])
    state.seek(P0, 5)
    state.set_position(P0, 2)
    assert state.position(P0) == 5


def test_a_looked_up_position_does_not_undo_a_seek_or_another_reset(state: SubscriptionState) -> None:
    state.assign([P0])
    assert state.request_reset(P0)
    state.seek(P0, 5)
    state.finish_reset(P0, OffsetReset.EARLIEST, 0)
    assert state.position(P0) == 5
    state.request_reset(P0, OffsetReset.LATEST)
    assert state.position(P0) is None
    state.finish_reset(P0, OffsetReset.EARLIEST, 0)
    assert state.needs_reset() == [P0]
    state.finish_reset(P0, OffsetReset.LATEST, 9)
    assert state.position(P0) == 9


def test_without_a_policy_a_reset_is_the_users(state: SubscriptionState) -> None:
    none = SubscriptionState("none")
    none.assign([P0])
    assert not none.request_reset(P0)
    assert none.request_reset(P0, OffsetReset.EARLIEST)


@pytest.mark.parametrize("call", ["position", "seek", "pause", "resume"])
def test_partitions_that_are_not_assigned_are_refused(state: SubscriptionState, call: str) -> None:
    calls = {
        "position": lambda: state.position(P0),
        "seek": lambda: state.seek(P0, 1),
        "pause": lambda: state.pause([P0]),
        "resume": lambda: state.resume([P0]),
    }
    with pytest.raises(IllegalStateError, match="t-0 is not assigned"):
        calls[call]()


@pytest.mark.parametrize(
    ("offset", "message"),
    [
        (-1, "at least 0"),
        (2**63, "at most 9223372036854775807"),
        (1.5, "whole number"),
        (None, "whole number"),
        (True, "whole number"),
        ("7", "whole number"),
        (OffsetAndMetadata(-1), "at least 0"),
        (OffsetAndMetadata(1, 2**31), "leader epoch"),
        (OffsetAndMetadata(1, 0, "\ud800"), "UTF-8"),
    ],
)
def test_there_are_no_such_offsets(state: SubscriptionState, offset: Any, message: str) -> None:
    state.assign([P0])
    state.seek(P0, 5)
    with pytest.raises(IllegalArgumentError, match=message):
        state.seek(P0, offset)
    assert state.position(P0) == 5
    state.seek(P0, 2**63 - 1)
    assert state.position(P0) == 2**63 - 1


@pytest.mark.parametrize("topic", ["", "\ud800", "x" * 40_000, None, 5, b"t"])
def test_there_are_no_such_topics(state: SubscriptionState, topic: Any) -> None:
    with pytest.raises(IllegalArgumentError, match="topic"):
        state.subscribe(["t", topic])
    with pytest.raises(IllegalArgumentError, match="topic"):
        state.assign([P0, TopicPartition(topic, 0)])
    assert state.kind is SubscriptionKind.NONE
    state.assign([P0])


@pytest.mark.parametrize("number", [-1, 2**31, "0", None])
def test_there_are_no_such_partitions(state: SubscriptionState, number: Any) -> None:
    with pytest.raises(IllegalArgumentError, match="the partition of t"):
        state.assign([TopicPartition("t", number)])
    with pytest.raises(IllegalArgumentError, match="not a partition"):
        state.assign(["t-0"])  # type: ignore[list-item]
