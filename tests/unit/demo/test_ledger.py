"""The books of the demo: each window excuses what it must, and nothing else."""

from __future__ import annotations

import json
from typing import Any

import pytest

from muster.demo.judge.ledger import (
    BatchRead,
    Ending,
    Judgement,
    Ownership,
    Window,
    judge,
    read_claims,
    read_member,
    suspects,
)


def lines(*entries: dict[str, Any]) -> list[str]:
    return [json.dumps(entry) + "\n" for entry in entries]


def assigned(*partitions: int) -> dict[str, Any]:
    return {"event": "assigned", "at": 0, "partitions": list(partitions)}


def record(partition: int, offset: int) -> dict[str, Any]:
    return {"topic": "flights", "partition": partition, "offset": offset, "value": {}}


def committed(partition: int, offset: int, event: str = "committed") -> dict[str, Any]:
    return {"event": event, "at": 0, "offsets": {str(partition): offset}}


def revoked(*partitions: int, event: str = "revoked") -> dict[str, Any]:
    return {"event": event, "at": 0, "partitions": list(partitions)}


def verdict(end: int, *files: tuple[list[str], bool], claims: list[BatchRead] | None = None) -> Judgement:
    ownerships = [own for i, (file, killed) in enumerate(files) for own in read_member(f"m{i}", file, killed=killed)]
    rows: dict[int, list[int]] = {0: [o for c in claims or [] for o in range(c.start, c.end)]}
    return judge({0: end}, ownerships, claims or [], rows)


def test_a_file_tells_what_was_handled_and_how_much_of_it_is_safe() -> None:
    file = lines(assigned(0, 1), record(0, 0), record(0, 1), committed(0, 2), record(0, 2), revoked(0), record(1, 0))
    zero, one = read_member("m", file)
    assert zero == Ownership("m", 0, [0, 1, 2], committed=2, ending=Ending.REVOKED)
    assert one == Ownership("m", 1, [0], ending=Ending.OPEN)


@pytest.mark.parametrize("torn", ['{"topic": "fl', '{"topic": "flights", "partition": 0, "offset": 1, "value": {}}'])
def test_the_torn_last_line_of_a_killed_member_is_dropped(torn: str) -> None:
    file = [*lines(assigned(0), record(0, 0)), torn]
    [own] = read_member("m", file, killed=True)
    assert (own.offsets, own.ending) == ([0], Ending.KILLED)
    with pytest.raises(ValueError, match="truncated line"):
        read_member("m", file)


def test_a_record_of_a_partition_that_nobody_assigned_is_judged_like_any_other() -> None:
    assert read_member("m", lines(record(0, 0))) == [Ownership("m", 0, [0])]


def test_an_ownership_that_is_told_twice_is_one() -> None:
    file = lines(assigned(0), record(0, 0), assigned(0, 1), record(0, 1))
    assert verdict(2, (file, False)).ok


def test_an_older_commit_that_is_acknowledged_late_takes_nothing_back() -> None:
    killed = lines(assigned(0), record(0, 0), record(0, 1), committed(0, 2), committed(0, 1))
    heir = lines(assigned(0), record(0, 1))
    assert verdict(2, (killed, True), (heir, False)).unexplained == [(0, 1)]


def test_a_commit_that_failed_excuses_nothing_once_a_later_one_is_acknowledged() -> None:
    first = lines(assigned(0), record(0, 0), committed(0, 1, "commit_failed"), committed(0, 1), record(0, 1))
    heir = lines(assigned(0), record(0, 1))
    assert verdict(2, (first + lines(revoked(0)), False), (heir, False)).unexplained == [(0, 1)]


def test_all_is_well_where_each_record_is_handled_once() -> None:
    first = lines(assigned(0), record(0, 0), record(0, 1), committed(0, 2), revoked(0))
    second = lines(assigned(0), record(0, 2), committed(0, 3))
    judgement = verdict(3, (first, False), (second, False))
    assert judgement.ok
    assert (judgement.produced, judgement.handled, judgement.distinct) == (3, 3, 3)


def test_a_record_that_nobody_handled_is_lost() -> None:
    judgement = verdict(3, (lines(assigned(0), record(0, 0), record(0, 2)), False))
    assert judgement.lost == [(0, 1)]
    assert not judgement.ok


def test_a_record_that_was_never_produced_is_an_error() -> None:
    assert verdict(1, (lines(assigned(0), record(0, 0), record(0, 1)), False)).unexplained == [(0, 1)]


def test_what_a_killed_member_had_not_committed_may_come_again() -> None:
    killed = lines(assigned(0), record(0, 0), committed(0, 1), record(0, 1), record(0, 2))
    heir = lines(assigned(0), record(0, 1), record(0, 2), committed(0, 3))
    judgement = verdict(3, (killed, True), (heir, False))
    assert judgement.ok
    assert judgement.duplicates[Window.KILLED] == judgement.duplicate_count == 2


def test_what_a_killed_member_had_committed_must_not_come_again() -> None:
    killed = lines(assigned(0), record(0, 0), committed(0, 1))
    heir = lines(assigned(0), record(0, 0))
    judgement = verdict(1, (killed, True), (heir, False))
    assert judgement.unexplained == [(0, 0)]


def test_what_was_not_acknowledged_because_the_broker_was_away_may_come_again() -> None:
    first = lines(assigned(0), record(0, 0), committed(0, 1, "commit_failed"), revoked(0, event="lost"))
    heir = lines(assigned(0), record(0, 0))
    judgement = verdict(1, (first, False), (heir, False))
    assert judgement.ok
    assert judgement.duplicates[Window.BROKER_DOWN] == 1


def test_what_was_handed_over_in_good_order_must_not_come_again() -> None:
    first = lines(assigned(0), record(0, 0), revoked(0))
    heir = lines(assigned(0), record(0, 0))
    assert not verdict(1, (first, False), (heir, False)).ok


def test_a_record_that_came_three_times_needs_two_excuses() -> None:
    killed = lines(assigned(0), record(0, 0))
    heir = lines(assigned(0), record(0, 0))
    judgement = verdict(1, (killed, True), (heir, False), (heir, False))
    assert judgement.unexplained == [(0, 0)]
    assert judgement.duplicates[Window.KILLED] == 1


def test_a_record_that_came_twice_uses_one_excuse_though_there_are_two() -> None:
    file = lines(assigned(0), record(0, 0))
    judgement = verdict(1, (file, True), (file, True))
    assert judgement.ok
    assert judgement.duplicates[Window.KILLED] == judgement.duplicate_count == 1


def test_a_record_twice_within_one_ownership_is_an_error_though_the_member_was_killed() -> None:
    file = lines(assigned(0), record(0, 0), record(0, 0))
    assert verdict(1, (file, True)).disorder == ["m0 handled 0:0 after 0:0"]


def test_records_out_of_order_within_one_ownership_are_an_error() -> None:
    file = lines(assigned(0), record(0, 1), record(0, 0))
    assert verdict(2, (file, False)).disorder == ["m0 handled 0:0 after 0:1"]


def test_going_back_after_losing_a_partition_is_no_disorder() -> None:
    file = lines(assigned(0), record(0, 0), record(0, 1), revoked(0, event="lost"), assigned(0), record(0, 2))
    assert verdict(3, (file, False)).ok


def test_only_the_last_batch_before_a_loss_may_come_again() -> None:
    claims = [BatchRead(0, 0, 0, 2), BatchRead(1, 0, 2, 4)]
    heir = lines(assigned(0), record(0, 2), record(0, 3))
    judgement = verdict(4, (heir, False), claims=claims)
    assert judgement.ok
    assert judgement.duplicates[Window.SPARK_BATCH] == 2
    earlier = lines(assigned(0), record(0, 1), record(0, 2), record(0, 3))
    assert verdict(4, (earlier, False), claims=claims).unexplained == [(0, 1)]


def test_a_partition_that_came_back_ends_a_run_of_claims() -> None:
    claims = [BatchRead(0, 0, 0, 2), BatchRead(1, 0, 5, 7), BatchRead(2, 0, 7, 9)]
    assert suspects(claims) == {0: [claims[0], claims[2]]}


def test_what_two_batches_claim_counts_twice_and_going_back_is_told() -> None:
    claims = [BatchRead(0, 0, 0, 2), BatchRead(1, 0, 2, 6), BatchRead(2, 0, 1, 6)]
    judgement = verdict(6, claims=claims)
    assert (judgement.handled, judgement.distinct) == (11, 6)
    assert judgement.duplicates[Window.SPARK_BATCH] == 5
    assert judgement.disorder == ["Spark went back from 2 to 1 in partition 0"]


def test_sparks_output_must_be_its_batches() -> None:
    claims = [BatchRead(0, 0, 0, 3)]
    assert judge({0: 3}, [], claims, {0: [0, 1, 2]}).ok
    assert judge({0: 3}, [], claims, {0: [0, 1]}).disorder == ["Spark's output lacks 1 records of its batches"]
    twice = judge({0: 3}, [], claims, {0: [0, 1, 2, 2]})
    assert twice.disorder == ["Spark's output has 1 records more than its batches"]


def test_claims_are_read_from_the_offset_log() -> None:
    batches = {
        1: '{"v":1,"seq":2,"gen":3,"claims":{"flights":{"0":[4,9],"2":[5,5]}}}',
        0: '{"v":1,"seq":1,"gen":3,"claims":{"flights":{"0":[0,4]}}}',
        2: '{"v":1,"seq":2,"gen":3,"claims":{}}',
    }
    assert read_claims(batches, "flights") == [BatchRead(0, 0, 0, 4), BatchRead(1, 0, 4, 9)]
