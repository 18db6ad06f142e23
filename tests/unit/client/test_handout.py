"""The three marks of a record: taken, handed out and handled, and what moves each of them."""

from __future__ import annotations

import pytest

from muster.client.consumer.handout import Handout
from muster.client.core.subscription_state import SubscriptionState
from muster.model import ConsumerRecord, OffsetAndMetadata, TopicPartition

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)


def record(partition: TopicPartition, offset: int, epoch: int = 1) -> ConsumerRecord:
    return ConsumerRecord("t", partition.partition, offset, 0, 0, None, None, [], epoch)


class Taken:
    """A handout that has taken records 0 to 4 of two partitions from a core, whose positions are after them."""

    def __init__(self) -> None:
        self.subscription = SubscriptionState()
        self.subscription.assign([P0, P1])
        self.handout = Handout(self.subscription)
        for partition in (P0, P1):
            self.take(partition, range(5))

    def take(self, partition: TopicPartition, offsets: range) -> None:
        self.subscription.seek(partition, offsets[0])
        self.subscription.state(partition).position = offsets[-1] + 1
        self.handout.take({partition: [record(partition, offset) for offset in offsets]})

    def hand_out(self, limit: int = 100) -> dict[TopicPartition, list[int]]:
        return {p: [found.offset for found in records] for p, records in self.handout.hand_out(limit).items()}

    def iterate(self, count: int) -> list[tuple[int, int]]:
        found = [self.handout.next() for _ in range(count)]
        return [(one.partition, one.offset) for one in found if one is not None]

    def commits(self) -> dict[TopicPartition, int]:
        """The offsets that a commit would use, for partitions where they differ from the core's position."""
        return {partition: place.offset for partition, place in self.handout.unhandled().items()}


@pytest.fixture
def taken() -> Taken:
    return Taken()


def test_a_limit_is_for_all_partitions_together(taken: Taken) -> None:
    assert taken.hand_out(7) == {P0: [0, 1, 2, 3, 4], P1: [0, 1]}
    assert taken.hand_out(7) == {P1: [2, 3, 4]}
    assert taken.hand_out(7) == {}


def test_what_was_handed_out_is_handled_when_the_caller_comes_back(taken: Taken) -> None:
    taken.hand_out(2)
    assert taken.commits() == {P0: 0, P1: 0}
    taken.handout.mark_all_handled()
    assert taken.commits() == {P0: 2, P1: 0}
    taken.hand_out(3)
    taken.handout.mark_all_handled()
    assert taken.commits() == {P1: 0}  # P0 is committed at the core's position


def test_iteration_handles_a_record_when_the_next_one_is_asked_for(taken: Taken) -> None:
    assert taken.iterate(3) == [(0, 0), (0, 1), (0, 2)]
    assert taken.commits() == {P0: 2, P1: 0}
    assert taken.iterate(3) == [(0, 3), (0, 4), (1, 0)]
    assert taken.commits() == {P1: 0}


def test_what_nobody_has_got_is_handed_out_again(taken: Taken) -> None:
    taken.hand_out(2)
    taken.handout.mark_all_handled()
    assert taken.hand_out(2) == {P0: [2, 3]}
    taken.handout.take_back()
    assert taken.hand_out(2) == {P0: [2, 3]}
    taken.handout.take_back()
    assert taken.iterate(2) == [(0, 2), (0, 3)]


def test_after_a_seek_iteration_continues_with_nothing_of_the_former_position(taken: Taken) -> None:
    """In the middle of the records of the partition for which seek was called."""
    taken.iterate(2)
    taken.subscription.seek(P0, 90)
    taken.handout.drop([P0])
    assert taken.iterate(1) == [(1, 0)]
    assert taken.handout.position(P0) is None


@pytest.mark.parametrize("how", ["paused", "given up", "to be given up"])
def test_iteration_stops_within_the_records_of_a_partition_that_is_not_to_be_read(taken: Taken, how: str) -> None:
    taken.iterate(2)
    if how == "paused":
        taken.subscription.pause([P0])
    elif how == "given up":
        taken.subscription.assign([P1])
    else:
        taken.subscription.mark_pending_revocation([P0])
    assert taken.iterate(1) == [(1, 0)]
    assert taken.hand_out() == {P1: [1, 2, 3, 4]}


def test_records_of_a_former_ownership_are_neither_handed_out_nor_committed(taken: Taken) -> None:
    taken.hand_out(2)
    taken.subscription.assign([P1])
    taken.subscription.assign([P0, P1])
    assert taken.commits() == {P1: 0}
    taken.handout.take_back()
    assert taken.hand_out(1) == {P1: [0]}


def test_a_partition_that_has_come_back_was_not_kept(taken: Taken) -> None:
    """Another member may have handled its records, whatever its position is now."""
    taken.hand_out()
    taken.handout.mark_all_handled()
    assert (taken.handout.is_kept(P0), taken.handout.is_kept(P1)) == (True, True)
    taken.subscription.assign([P1])
    taken.subscription.assign([P0, P1])
    assert (taken.handout.is_kept(P0), taken.handout.is_kept(P1)) == (False, True)
    taken.take(P0, range(5, 8))
    taken.hand_out()
    assert (taken.handout.is_kept(P0), taken.handout.is_kept(P1)) == (True, False)


@pytest.mark.parametrize(("committed", "stands"), [(1, 1), (2, 2), (3, 3), (4, 3), (9, 3)])
def test_a_commit_of_offsets_handles_what_was_handed_out_before_them(taken: Taken, committed: int, stands: int) -> None:
    """And no others: those are still to come, whatever the caller has committed."""
    taken.hand_out(3)
    taken.handout.handled_up_to({P0: OffsetAndMetadata(committed)})
    assert taken.commits() == {P0: stands, P1: 0}
    taken.handout.take_back()
    assert taken.hand_out(5 - stands) == {P0: list(range(stands, 5))}


def test_what_waits_is_fetched_again_where_tables_are_wanted(taken: Taken) -> None:
    taken.hand_out(2)
    taken.handout.mark_all_handled()
    taken.handout.give_back()
    assert [taken.subscription.position(partition) for partition in (P0, P1)] == [2, 0]
    assert (taken.hand_out(), taken.handout.has_records) == ({}, False)


def test_when_it_has_ended_iteration_brings_nothing(taken: Taken) -> None:
    taken.iterate(2)
    taken.handout.end(handled=True)
    assert taken.iterate(1) == []
    assert taken.commits() == {P0: 2, P1: 0}


def test_an_end_that_handles_nothing_commits_before_what_was_handed_out_last(taken: Taken) -> None:
    taken.iterate(3)
    taken.handout.end(handled=False)
    assert taken.commits() == {P0: 2, P1: 0}
    assert taken.iterate(1) == []


def test_the_offset_of_the_next_record_and_how_many_are_still_to_come(taken: Taken) -> None:
    """A partition has two runs of records: the first one that is not finished decides."""
    taken.take(P0, range(5, 8))
    taken.hand_out(2)
    assert (taken.handout.position(P0), taken.handout.count(P0)) == (2, 6)
    taken.handout.mark_all_handled()
    assert (taken.handout.position(P0), taken.handout.count(P0)) == (2, 6)
    assert taken.commits() == {P0: 2, P1: 0}


def test_a_place_has_the_epoch_of_the_record_before_it(taken: Taken) -> None:
    """Otherwise the validation of the position would ask for the end of the wrong epoch (KIP-320)."""
    taken.handout.clear()
    taken.handout.take({P0: [record(P0, 0, 1), record(P0, 1, 2)]})
    taken.hand_out(1)
    taken.handout.mark_all_handled()
    assert taken.handout.unhandled() == {P0: OffsetAndMetadata(1, 1)}


def test_a_log_that_lost_its_end_is_committed_no_further_than_it_goes(taken: Taken) -> None:
    """The core has found that the log was truncated before the records that wait here."""
    taken.hand_out(4)
    taken.handout.mark_all_handled()
    taken.subscription.state(P0).position = 3
    assert taken.commits() == {P1: 0}


# --- tables ----------------------------------------------------------------------------------------------------------


def tables(*, end: int = 8) -> Taken:
    """A table of P0 was handed out, from offset 5 up to `end`."""
    found = Taken()
    found.handout.clear()
    found.subscription.seek(P0, end)
    found.handout.hand_out_tables({P0: 5})
    return found


@pytest.mark.parametrize(("committed", "stands"), [(4, 5), (5, 5), (6, 6), (8, None), (9, 5)])
def test_a_commit_of_offsets_handles_the_rows_before_them(committed: int, stands: int | None) -> None:
    """Not those of a table that ends later: no record with that offset was handed out."""
    found = tables()
    found.handout.handled_up_to({P0: OffsetAndMetadata(committed)})
    assert found.commits() == ({} if stands is None else {P0: stands})


def test_tables_that_nobody_has_got_are_fetched_again() -> None:
    found = tables()
    found.handout.take_back()
    assert found.subscription.position(P0) == 5
    assert found.commits() == {}


def test_tables_of_a_partition_that_is_gone_are_not() -> None:
    found = tables()
    assert found.handout.is_kept(P0)
    found.subscription.assign([P1])
    assert not found.handout.is_kept(P0)
    found.handout.take_back()
    assert found.commits() == {}


def test_tables_of_a_partition_that_was_sought_are_nobodys_affair() -> None:
    found = tables()
    found.subscription.seek(P0, 90)
    found.handout.drop([P0])
    found.handout.take_back()
    assert found.subscription.position(P0) == 90
