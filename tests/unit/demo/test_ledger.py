"""The ledger of the demo: each disturbance excuses what it must, and nothing else."""

from __future__ import annotations

import json
from typing import Any

import pytest

from muster.demo.judge.ledger import (
    BatchRead,
    DuplicateWindow,
    Judgement,
    Ownership,
    OwnershipEnd,
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
    assert zero == Ownership("m", 0, [0, 1, 2], committed=2, ending=OwnershipEnd.REVOKED)
    assert one == Ownership("m", 1, [0], ending=OwnershipEnd.OPEN)


@pytest.mark.parametrize("torn", ['{"topic": "fl', '{"topic": "flights", "partition": 0, "offset": 1, "value": {}}'])
def test_the_torn_last_line_of_a_killed_member_is_dropped(torn: str) -> None:
    file = [*lines(assigned(0), record(0, 0)), torn]
    [own] = read_member("m", file, killed=True)
    assert (own.offsets, own.ending) == ([0], OwnershipEnd.KILLED)
    with pytest.raises(ValueError, match="truncated line"):
        read_member("m", file)


def test_a_record_of_a_partition_that_nobody_assigned_is_judged_like_any_other() -> None:
    assert read_member("m", lines(record(0, 0))) == [Ownership("m", 0, [0])]


def member(story: str) -> tuple[list[str], bool]:
    """A member's file of partition 0, and whether it was killed: `0 1 +2 ?3 lost` handles 0 and 1, has 2 committed, and
    3 not, and loses the partition."""
    entries = [assigned(0)]
    for word in story.removesuffix(" killed").split():
        if word in ("revoked", "lost"):
            entries.append(revoked(0, event=word))
        elif word == "again":
            entries.append(assigned(0))
        elif word[0] in "+?":
            entries.append(committed(0, int(word[1:]), "committed" if word[0] == "+" else "commit_failed"))
        else:
            entries.append(record(0, int(word)))
    return lines(*entries), story.endswith(" killed")


KILLED, DOWN = DuplicateWindow.KILLED, DuplicateWindow.BROKER_DOWN
STORIES: dict[str, tuple[int, list[str], dict[str, Any]]] = {
    "each record is handled once": (3, ["0 1 +2 revoked", "2 +3"], {"produced": 3, "handled": 3, "distinct": 3}),
    "an ownership is reported twice": (2, ["0 again 1"], {}),
    "nobody handled a record": (3, ["0 2"], {"lost": [(0, 1)]}),
    "a record was never produced": (1, ["0 1"], {"unexplained": [(0, 1)]}),
    "a killed member had not committed it": (3, ["0 +1 1 2 killed", "1 2 +3"], {"duplicates": {KILLED: 2}}),
    "a killed member had committed it": (1, ["0 +1 killed", "0"], {"unexplained": [(0, 0)]}),
    "an older commit is acknowledged late": (2, ["0 1 +2 +1 killed", "1"], {"unexplained": [(0, 1)]}),
    "the broker was away": (1, ["0 ?1 lost", "0"], {"duplicates": {DOWN: 1}}),
    "a later commit than the failed one was heard": (2, ["0 ?1 +1 1 revoked", "1"], {"unexplained": [(0, 1)]}),
    "it was handed over in good order": (1, ["0 revoked", "0"], {"unexplained": [(0, 0)]}),
    "three times need two excuses": (1, ["0 killed", "0", "0"], {"unexplained": [(0, 0)], "duplicates": {KILLED: 1}}),
    "twice uses one excuse of two": (1, ["0 killed", "0 killed"], {"duplicates": {KILLED: 1}}),
    "twice within one ownership": (
        1,
        ["0 0 killed"],
        {"disorder": ["m0 handled 0:0 after 0:0"], "duplicates": {KILLED: 1}},
    ),
    "out of order": (2, ["1 0"], {"disorder": ["m0 handled 0:0 after 0:1"]}),
    "going back after a loss": (3, ["0 1 lost again 2"], {}),
}


@pytest.mark.parametrize("story", STORIES)
def test_what_the_books_say(story: str) -> None:
    end, members, expected = STORIES[story]
    judgement = verdict(end, *map(member, members))
    wrong = {name: expected.get(name, []) for name in ("lost", "unexplained", "disorder")}
    assert {name: getattr(judgement, name) for name in wrong} == wrong
    assert judgement.ok is not any(wrong.values())
    assert {window: count for window, count in judgement.duplicates.items() if count} == expected.get("duplicates", {})
    counts = {name: count for name, count in expected.items() if isinstance(count, int)}
    assert {name: getattr(judgement, name) for name in counts} == counts


def test_only_the_last_batch_before_a_loss_may_come_again() -> None:
    claims = [BatchRead(0, 0, 0, 2), BatchRead(1, 0, 2, 4)]
    heir = lines(assigned(0), record(0, 2), record(0, 3))
    judgement = verdict(4, (heir, False), claims=claims)
    assert judgement.ok
    assert judgement.duplicates[DuplicateWindow.SPARK_BATCH] == 2
    earlier = lines(assigned(0), record(0, 1), record(0, 2), record(0, 3))
    assert verdict(4, (earlier, False), claims=claims).unexplained == [(0, 1)]


def test_a_partition_that_came_back_ends_a_run_of_claims() -> None:
    claims = [BatchRead(0, 0, 0, 2), BatchRead(1, 0, 5, 7), BatchRead(2, 0, 7, 9)]
    assert suspects(claims) == {0: [claims[0], claims[2]]}


def test_what_two_batches_claim_counts_twice_and_going_back_is_reported() -> None:
    claims = [BatchRead(0, 0, 0, 2), BatchRead(1, 0, 2, 6), BatchRead(2, 0, 1, 6)]
    judgement = verdict(6, claims=claims)
    assert (judgement.handled, judgement.distinct) == (11, 6)
    assert judgement.duplicates[DuplicateWindow.SPARK_BATCH] == 5
    assert judgement.disorder == ["Spark went back from 2 to 1 in partition 0"]


def test_sparks_output_must_be_its_batches() -> None:
    claims = [BatchRead(0, 0, 0, 3)]
    assert judge({0: 3}, [], claims, {0: [0, 1, 2]}).ok
    assert judge({0: 3}, [], claims, {0: [0, 1]}).disorder == ["Spark's output lacks 1 records of its batches"]
    twice = judge({0: 3}, [], claims, {0: [0, 1, 2, 2]})
    assert twice.disorder == ["Spark's output has 1 more records than its batches"]


def test_claims_are_read_from_the_offset_log() -> None:
    batches = {
        1: '{"v":1,"seq":2,"gen":3,"claims":{"flights":{"0":[4,9],"2":[5,5]}}}',
        0: '{"v":1,"seq":1,"gen":3,"claims":{"flights":{"0":[0,4]}}}',
        2: '{"v":1,"seq":2,"gen":3,"claims":{}}',
    }
    assert read_claims(batches, "flights") == [BatchRead(0, 0, 0, 4), BatchRead(1, 0, 4, 9)]
