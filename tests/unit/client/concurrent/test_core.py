"""The rules of handling many records at a time, one by one."""

from __future__ import annotations

from typing import Any

import pytest

from muster.client.core.concurrent import dead_letters
from muster.client.core.concurrent.core import ConcurrentCore
from muster.client.core.concurrent.encoding import Done, decode, encode
from muster.client.core.concurrent.rules import HandlerFailure, Retry, Rules
from muster.errors import ConfigError
from muster.model import ConsumerRecord, OffsetAndMetadata, TopicPartition
from tests.support.concurrent_jobs import offsets, start

P0, P1 = TopicPartition("flights", 0), TopicPartition("flights", 1)
BOOM = HandlerFailure("ValueError", "boom", "Traceback …")


def record(offset: int, key: bytes | None = None, partition: int = 0, epoch: int = 0, value: bytes = b"") -> Any:
    return ConsumerRecord("flights", partition, offset, 0, 0, key, value, leader_epoch=epoch)


def core(
    given: Any = None, *, assigned: Any = (P0,), committed: OffsetAndMetadata | None = None, **rules: Any
) -> ConcurrentCore:
    """A core that has these records."""
    made = ConcurrentCore(Rules(**rules))
    for partition in assigned:
        made.assign(partition, committed)
    if given is not None:
        made.add(given)
    return made


def keyed(keys: str, start: int = 0) -> dict[TopicPartition, list[ConsumerRecord]]:
    """Records of partition 0, each with one letter as its key; `-` for none."""
    letters = enumerate(keys, start)
    return {P0: [record(offset, None if letter == "-" else letter.encode()) for offset, letter in letters]}


def committed(of: ConcurrentCore, partition: TopicPartition = P0) -> tuple[int, Done | None]:
    """What would be committed now: the offset, and which later records are done."""
    [what] = of.to_commit([partition]).values()
    return what.offset, decode(partition, what.offset, what.metadata)


# --- order -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("order", "first", "after"),
    [
        ("key", [0, 1, 3, 5], [2, 4]),
        ("partition", [0], [1]),
        ("unordered", [0, 1, 2, 3, 4, 5], []),
        (lambda found: found.offset % 2, [0, 1], [2, 3]),
        (lambda _found: None, [0, 1, 2, 3, 4, 5], []),
    ],
    ids=["key", "partition", "unordered", "function", "function without order"],
)
def test_what_may_start_side_by_side(order, first, after):
    it = core(order=order)
    it.add(keyed("abab-"[:2] + "a-a-"))  # a b a - a -
    jobs = start(it)
    assert offsets(jobs) == [0, 1, 3, 5] if order == "key" else first
    for job in jobs:
        it.succeeded(job)
    assert offsets(start(it)) == ([2] if order == "key" else after)


def test_the_same_key_in_another_partition_is_another_lane():
    it = core({P0: [record(0, b"a")], P1: [record(0, b"a", 1)]}, assigned=(P0, P1))
    assert len(start(it)) == 2


def test_keys_that_cannot_be_hashed_have_lanes_as_well():
    """A function may turn a record into anything."""
    it = core({P0: [record(0), record(1), record(2)]}, order=lambda found: {"id": found.offset % 2})
    assert offsets(start(it)) == [0, 1]


def test_no_more_than_concurrency_at_once():
    it = core(keyed("-----"), order="unordered", concurrency=2)
    jobs = start(it)
    assert offsets(jobs) == [0, 1]
    it.succeeded(jobs[1])
    assert offsets(start(it)) == [2]


def test_a_long_lane_takes_turns_with_the_others():
    it = core(keyed("aaabc"), concurrency=1)
    order = []
    while jobs := start(it):
        order += offsets(jobs)
        it.succeeded(jobs[0])
    assert order == [0, 3, 4, 1, 2]


# --- committing ------------------------------------------------------------------------------------------------------


def test_offset_and_metadata_say_what_is_done():
    it = core(keyed("------"), order="unordered")
    jobs = start(it)
    assert it.to_commit() == {P0: OffsetAndMetadata(0, 0, "")}
    for place in (1, 2, 4):
        it.succeeded(jobs[place])
    assert committed(it) == (0, Done(5, (0, 3), 0))
    it.succeeded(jobs[0])
    assert committed(it) == (3, Done(5, (3,), 0))
    it.succeeded(jobs[3])
    assert committed(it) == (5, None)


def test_what_is_committed_is_not_committed_again():
    it = core(committed=OffsetAndMetadata(0))
    assert it.to_commit() == {}
    it.add(keyed("a"))
    it.succeeded(start(it)[0])
    offsets = it.to_commit()
    assert offsets == {P0: OffsetAndMetadata(1, 0)}
    it.committed(offsets)
    assert it.to_commit() == {}


def test_an_acknowledgement_of_an_earlier_ownership_says_nothing():
    it = core(keyed("a"))
    it.succeeded(start(it)[0])
    late = it.to_commit()
    it.give_up([P0])
    it.assign(P0, None)
    it.add(keyed("a"))
    it.succeeded(start(it)[0])
    it.committed(late)
    assert it.to_commit() == {P0: OffsetAndMetadata(1, 0)}


def test_metadata_of_others_is_no_reason_to_commit():
    assert core(committed=OffsetAndMetadata(7, 0, "by hand")).to_commit() == {}


def test_a_position_after_offsets_without_records_is_committed():
    """Transaction markers, and records removed by compaction, at the end of the log."""
    it = core(keyed("ab"), committed=OffsetAndMetadata(0))
    first, second = start(it)
    it.move_to({P0: 9})
    it.succeeded(first)
    it.move_to({P0: 9})
    assert it.position(P0) == 1  # the second is not done
    it.succeeded(second)
    it.move_to({P0: 9})
    assert it.to_commit()[P0].offset == 9


def test_the_position_of_a_partition_that_closes_says_nothing():
    """Records that have arrived since were not accepted."""
    it = core(committed=OffsetAndMetadata(0))
    it.close([P0])
    it.add(keyed("ab"))
    it.move_to({P0: 2})
    assert it.to_commit() == {}


# --- continuing where another member ended
# ---------------------------------------------------------------------------------


def left(offset: int, end: int, *holes: int, epoch: int = 0) -> OffsetAndMetadata:
    return OffsetAndMetadata(offset, 0, encode(P0, offset, Done(end, holes, epoch)))


def test_what_a_former_owner_has_done_is_skipped():
    it = core(keyed("------", start=2), order="unordered", committed=left(2, 6, 2, 4))
    assert offsets(start(it)) == [2, 4, 6, 7]
    assert it.counters()["skipped"] == 2


def test_what_a_former_owner_has_done_is_passed_on_before_it_is_read():
    """A second crash, before all the records have been read again."""
    it = core(keyed("--", start=2), order="unordered", committed=left(2, 100, 2, 50))
    it.succeeded(start(it)[0])
    assert committed(it) == (4, Done(100, (50,), 0))


def test_a_record_that_came_after_an_election_is_another():
    it = core({P0: [record(3, epoch=3), record(5, epoch=4)]}, order="unordered", committed=left(2, 6, 2, 4, epoch=3))
    assert offsets(start(it)) == [5]


def test_what_was_lost_in_an_election_is_forgotten_and_the_rest_is_not():
    it = core(keyed("------"), order="unordered")
    jobs = start(it)
    it.succeeded(jobs[1])
    it.succeeded(jobs[4])
    it.add({P0: [record(3, epoch=1), record(4, epoch=1)]})
    again = start(it)
    assert offsets(again) == [3, 4]
    it.succeeded(jobs[3])  # of the record that was truncated
    assert committed(it) == (0, Done(3, (0, 2), 0))
    it.succeeded(again[0])
    assert committed(it) == (0, Done(4, (0, 2), 1))


def test_a_record_that_takes_the_place_of_one_under_way_waits_for_it():
    it = core(keyed("aa"))
    [first] = start(it)
    it.add({P0: [record(0, b"a", epoch=1)]})
    assert start(it) == []
    it.succeeded(first)
    assert it.to_commit()[P0].offset == 0
    assert offsets(start(it)) == [0]


# --- failures --------------------------------------------------------------------------------------------------------


def test_a_failure_holds_up_its_key_alone():
    it = core(keyed("aab"), retry=Retry(delay_ms=100))
    first, other = start(it)
    it.failed(first, BOOM, now=0)
    it.succeeded(other)
    assert start(it, now=99) == []
    assert it.next_retry() == 100
    [again] = start(it, now=100)
    assert again is first
    it.succeeded(again)
    assert offsets(start(it, now=100)) == [1]


def test_waits_grow_up_to_a_limit():
    assert [Retry(delay_ms=100, max_delay_ms=500).wait_ms(failures) for failures in (1, 2, 3, 4, 99)] == [
        100, 200, 400, 500, 500,
    ]  # fmt: skip


def test_a_handler_may_say_when():
    it = core(keyed("a"))
    it.failed(start(it)[0], HandlerFailure("RetryLaterError", delay_ms=5), now=1)
    assert it.next_retry() == 6


@pytest.mark.parametrize(
    "failure", [BOOM, HandlerFailure("PoisonRecordError", permanent=True)], ids=["last try", "poison"]
)
def test_what_failed_for_good_is_done_when_its_dead_letter_is_acknowledged(failure):
    it = core(keyed("aa"), retry=Retry(max_attempts=1 if failure is BOOM else 9), dead_letters=True)
    [job] = start(it)
    it.failed(job, failure, now=0)
    assert it.take_dead_letters() == [job]
    assert it.take_dead_letters() == []
    assert (start(it), it.position(P0)) == ([], 0)
    it.buried(job)
    assert it.position(P0) == 1
    assert offsets(start(it)) == [1]
    assert it.counters()["dead_lettered"] == 1


def test_without_dead_letters_nothing_more_is_started():
    it = core(keyed("aab"), retry=Retry(max_attempts=1))
    first, other = start(it)
    it.failed(first, BOOM, now=0)
    it.succeeded(other)
    assert it.fatal is first
    assert start(it) == []
    assert committed(it) == (0, Done(3, (0, 1), 0))


def test_a_dead_letter_that_cannot_be_written_ends_the_run():
    it = core(keyed("aa"), retry=Retry(max_attempts=1), dead_letters=True)
    [job] = start(it)
    it.failed(job, BOOM, now=0)
    it.not_buried(it.take_dead_letters()[0])
    assert (it.fatal, start(it), it.position(P0)) == (job, [], 0)


def test_headers_of_a_dead_letter():
    it = core(retry=Retry(max_attempts=2), dead_letters=True)
    one = record(5, b"k")
    one.headers = [("own", b"1"), ("__muster.errors.topic", b"of an earlier death")]
    it.add({P0: [one]})
    for _ in range(2):
        it.failed(start(it, now=10_000)[0], BOOM, now=0)
    [job] = it.take_dead_letters()
    assert dict(dead_letters.headers(job, "delays")) == {
        "own": b"1",
        "__muster.errors.topic": b"flights",
        "__muster.errors.partition": b"0",
        "__muster.errors.offset": b"5",
        "__muster.errors.timestamp": b"0",
        "__muster.errors.group": b"delays",
        "__muster.errors.attempts": b"2",
        "__muster.errors.exception": b"ValueError",
        "__muster.errors.message": b"boom",
        "__muster.errors.stacktrace": "Traceback …".encode(),
    }
    assert len(dead_letters.headers(job, "delays")) == 10
    assert dict(dead_letters.headers(job, "delays", brief=True))["__muster.errors.stacktrace"] == b""


# --- giving partitions up --------------------------------------------------------------------------------------------


def test_a_partition_that_closes_lets_what_is_under_way_count():
    it = core(keyed("-----"), concurrency=2, order="unordered")
    first, second = start(it)
    it.close([P0])
    assert it.is_waited_for([P0])
    it.succeeded(second)
    it.failed(first, BOOM, now=0)
    assert not it.is_waited_for([P0])
    assert start(it, now=10**6) == []
    assert committed(it) == (0, Done(2, (0,), 0))


def test_late_results_of_a_partition_that_is_gone_change_nothing():
    it = core(keyed("ab"))
    first, second = start(it)
    it.give_up([P0])
    it.assign(P0, OffsetAndMetadata(0))
    it.add(keyed("ab"))
    it.succeeded(first)
    it.failed(second, BOOM, now=0)
    assert (it.to_commit(), it.next_retry(), it.counters()["dropped"]) == ({}, None, 2)
    assert offsets(start(it)) == [0, 1]


def test_a_partition_that_comes_back_waits_for_handlers_that_still_run():
    it = core(keyed("ab"))
    first, _second = start(it)
    it.give_up([P0])
    it.assign(P0, None)
    it.add(keyed("ac"))
    assert offsets(start(it)) == [1]
    it.cancelled(first)
    assert offsets(start(it)) == [0]


def test_a_record_waiting_for_another_try_goes_with_its_partition():
    it = core(keyed("a"))
    it.failed(start(it)[0], BOOM, now=0)
    it.give_up([P0])
    assert start(it, now=10**6) == []
    assert it.next_retry() is None


# --- back-pressure ---------------------------------------------------------------------------------------------------


def test_a_full_partition_is_paused_and_resumed_when_half_is_left():
    it = core(order="partition", max_buffered=20)
    assert it.poll_limit == 20
    it.add(keyed("-" * 21))
    assert it.flow() == ([P0], [])
    for left in range(21, 10, -1):
        assert (it.flow(), it.may_resume) == (([], []), False), left
        it.succeeded(start(it)[0])
    start(it)
    assert it.may_resume
    assert it.flow() == ([], [P0])


def test_a_stuck_partition_leaves_the_others_their_share():
    it = core(
        {P0: [record(offset) for offset in range(40)], P1: [record(0, partition=1)]},
        assigned=(P0, P1),
        order="partition",
        max_buffered=40,
    )
    assert it.flow() == ([P0], [])


def test_bytes_count_too():
    it = core({P0: [record(0, b"k", value=bytes(999))]}, max_buffered_bytes=1_000)
    assert it.flow() == ([P0], [])
    it.succeeded(start(it)[0])
    assert it.flow() == ([], [P0])


def test_what_metadata_could_not_report_is_not_started():
    """One record is stuck: the others continue as long as metadata can record that they are done."""
    it = core(keyed("-" * 500), order="unordered", metadata_limit=40, max_buffered=10_000, concurrency=10_000)
    jobs = start(it)
    assert offsets(jobs) == list(range(64))  # 8 bytes fit
    for job in jobs[1:]:
        it.succeeded(job)
    assert start(it) == []
    assert committed(it) == (0, Done(64, (0,), 0))
    it.succeeded(jobs[0])
    assert offsets(start(it)) == list(range(64, 128))


def test_few_holes_may_be_far_apart():
    it = core({P0: [record(0, b"stuck")]}, order="key", concurrency=2)
    start(it)
    for offset in range(1, 100_000, 1_000):
        it.add({P0: [record(offset, b"other")]})
        it.succeeded(start(it)[0])
    assert committed(it) == (0, Done(99_002, (0,), 0))


def test_a_broker_that_takes_no_metadata():
    it = core(keyed("--"), order="unordered")
    it.succeeded(start(it)[1])
    it.limit_metadata(0)
    assert it.to_commit() == {P0: OffsetAndMetadata(0, 0, "")}
    it.assign(P1, None)
    it.add({P1: [record(0, partition=1), record(1, partition=1)]})
    it.succeeded(start(it)[1])
    assert it.to_commit([P1]) == {P1: OffsetAndMetadata(0, 0, "")}


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        ({"order": "keys"}, 'order is \'keys\'; it must be "key", "partition", "unordered" or a function'),
        ({"concurrency": 0}, "concurrency is 0; it must be at least 1"),
        ({"max_buffered": 0}, "max_buffered is 0; it must be at least 1"),
        ({"retry": 3}, "retry is 3; it must be a Retry(max_attempts=…, delay_ms=…)"),
        ({"metadata_limit": -1}, "metadata_limit is -1; it must be at least 0"),
    ],
)
def test_rules_that_make_no_sense(rules, words):
    with pytest.raises(ConfigError) as caught:
        Rules(**rules)
    assert str(caught.value) == words


@pytest.mark.parametrize("retry", [{"max_attempts": 0}, {"delay_ms": -1}, {"delay_ms": 10, "max_delay_ms": 5}])
def test_retries_that_make_no_sense(retry):
    with pytest.raises(ConfigError):
        Retry(**retry)
