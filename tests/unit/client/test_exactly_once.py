"""`exactly_once`: what it requires of its clients, and which errors it retries."""

from __future__ import annotations

from typing import Any

import pytest

from muster import AsyncConsumer, AsyncProducer, Consumer, Producer, async_exactly_once, exactly_once
from muster.client.exactly_once import _is_retried, _Round
from muster.errors import (
    CommitFailedError,
    ConfigError,
    ErrorCode,
    IllegalStateError,
    KafkaError,
    KafkaTimeoutError,
    MusterError,
)
from muster.model import ConsumerRecord, GroupMetadata, TopicPartition

NOWHERE = "127.0.0.1:1"
P0, P1, P2 = (TopicPartition("t", index) for index in range(3))
FITS: dict[str, Any] = {"group_id": "g", "enable_auto_commit": False, "isolation_level": "read_committed"}


async def no_round(batch: Any) -> None:
    raise AssertionError(f"a round begins: {batch}")


@pytest.mark.parametrize(
    ("reading", "writing", "message"),
    [
        ({"enable_auto_commit": False}, {"transactional_id": "x"}, "a consumer with a group_id"),
        ({"group_id": "g"}, {"transactional_id": "x"}, "enable_auto_commit=False"),
        (FITS | {"enable_auto_offset_store": False}, {"transactional_id": "x"}, "enable_auto_offset_store=True"),
        ({"group_id": "g", "enable_auto_commit": False}, {"transactional_id": "x"}, 'isolation_level="read_committed"'),
        (FITS, {}, "a transactional_id"),
    ],
)
async def test_clients_that_do_not_fit_are_refused(
    reading: dict[str, Any], writing: dict[str, Any], message: str
) -> None:
    with (
        Consumer(bootstrap_servers=NOWHERE, **reading) as consumer,
        Producer(bootstrap_servers=NOWHERE, **writing) as producer,
        pytest.raises(ConfigError, match=message),
    ):
        exactly_once(consumer, producer, print)
    async with (
        AsyncConsumer(bootstrap_servers=NOWHERE, **reading) as consumer_here,
        AsyncProducer(bootstrap_servers=NOWHERE, **writing) as producer_here,
    ):
        with pytest.raises(ConfigError, match=message):
            await async_exactly_once(consumer_here, producer_here, no_round)


async def test_a_consumer_of_assigned_partitions_is_refused() -> None:
    """It has no generation: every round would be empty, and its records silently skipped."""
    with (
        Consumer(bootstrap_servers=NOWHERE, **FITS) as consumer,
        Producer(bootstrap_servers=NOWHERE, transactional_id="x") as producer,
    ):
        consumer.assign([P0])
        with pytest.raises(IllegalStateError, match="a consumer that is subscribed"):
            exactly_once(consumer, producer, print)
    async with (
        AsyncConsumer(bootstrap_servers=NOWHERE, **FITS) as consumer_here,
        AsyncProducer(bootstrap_servers=NOWHERE, transactional_id="x") as producer_here,
    ):
        consumer_here.assign([P0])
        with pytest.raises(IllegalStateError, match="a consumer that is subscribed"):
            await async_exactly_once(consumer_here, producer_here, no_round)


def abortable(error: MusterError) -> MusterError:
    error.abortable = True
    return error


@pytest.mark.parametrize(
    ("error", "again"),
    [
        (abortable(CommitFailedError(ErrorCode.ILLEGAL_GENERATION, "x")), True),
        (abortable(KafkaTimeoutError("late")), True),
        (abortable(KafkaError(ErrorCode.TRANSACTION_ABORTABLE)), True),
        (abortable(KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)), False),
        (abortable(KafkaError(ErrorCode.MESSAGE_TOO_LARGE)), False),
        (KafkaTimeoutError("a call"), False),
        (KafkaError(ErrorCode.PRODUCER_FENCED), False),
        (ValueError("of the handler"), False),
        (KeyboardInterrupt(), False),
    ],
)
def test_what_is_tried_again(error: BaseException, again: bool) -> None:
    assert _is_retried(error) is again


class Member:
    """The parts of a consumer that a round uses: its partitions with their positions."""

    def __init__(self, positions: dict[TopicPartition, int], generation_id: int = 3) -> None:
        self.positions = positions
        self.kept = set(positions)
        """Those that were not given away since their records were handed out."""
        self.sought: dict[TopicPartition, int] = {}
        self._generation_id = generation_id

    @property
    def _handout(self) -> Member:
        return self

    def is_kept(self, partition: TopicPartition) -> bool:
        return partition in self.kept

    def group_metadata(self) -> GroupMetadata:
        return GroupMetadata("g", self._generation_id, "m")

    def handled(self, *, handed_out: bool) -> dict[TopicPartition, int]:
        return self.positions

    def seek(self, partition: TopicPartition, offset: int) -> None:
        self.sought[partition] = offset


def round_of(member: Any, *partitions: TopicPartition) -> _Round:
    """A round of two records, with the offsets 5 and 6, in each partition."""
    batch = {
        partition: [ConsumerRecord(*partition, offset, 0, 0, None, b"v") for offset in (5, 6)]
        for partition in partitions
    }
    return _Round(member, batch, False)


def test_a_round_leaves_out_what_belongs_to_another_member_by_now() -> None:
    """The sequence: records are returned; partitions are given away, and one comes back with a position that its other
    owner has committed, lower or higher; then the round takes the generation, with which these offsets would be
    accepted."""
    found = round_of(Member({P0: 7, P2: 6}), P0, P1, P2)
    assert list(found.batch) == [P0]
    member = Member({P0: 7, P2: 9})
    member.kept.remove(P2)
    found = round_of(member, P0, P1, P2)
    assert list(found.batch) == [P0]
    assert (found.offsets, found.count) == ({P0: 7}, 2)


def test_a_member_without_a_generation_has_no_round() -> None:
    """The sequence: records are returned; a heartbeat is answered UNKNOWN_MEMBER_ID. The partitions stay assigned until
    the member joins again, and the generation of offsets without one is not checked."""
    found = round_of(Member({P0: 7}, generation_id=-1), P0)
    assert (found.batch, found.offsets, found.count) == ({}, {}, 0)


def test_an_aborted_round_goes_back_only_where_the_partition_was_kept() -> None:
    """The sequence: a round is in progress; one partition is given away, and another one as well, which comes back with
    the position that its other owner has committed. That owner has processed the round's records."""
    member = Member(dict.fromkeys((P0, P1, P2), 7))
    found = round_of(member, P0, P1, P2)
    member.kept -= {P1, P2}
    found.go_back()
    assert member.sought == {P0: 5}
    assert found.count == 0
