"""What the core keeps track of, where a mistake would show late: after elections, gaps, handovers and pauses."""

from __future__ import annotations

from base64 import b64decode, b64encode

from muster.client.core.concurrent.core import ConcurrentCore
from muster.client.core.concurrent.encoding import MARKER, Done, decode, encode
from muster.client.core.concurrent.progress import PartitionProgress
from muster.client.core.concurrent.rules import HandlerFailure, Order, Retry, Rules
from muster.model import ConsumerRecord, OffsetAndMetadata, TopicPartition
from tests.support.concurrent_jobs import offsets, start

P0 = TopicPartition("flights", 0)
BOOM = HandlerFailure("ValueError")


def records(*offsets: int, epoch: int = 0, value: bytes = b"") -> dict[TopicPartition, list[ConsumerRecord]]:
    return {P0: [ConsumerRecord("flights", 0, each, 0, 0, b"k", value, [], epoch) for each in offsets]}


def core(
    left: OffsetAndMetadata | None = None,
    *,
    order: Order = "unordered",
    concurrency: int = 10_000,
    max_buffered: int = 10_000,
    max_buffered_bytes: int = 1 << 20,
    retry: Retry | None = None,
    dead_letters: bool = False,
    metadata_limit: int = 4096,
) -> ConcurrentCore:
    made = ConcurrentCore(
        Rules(
            order=order,
            concurrency=concurrency,
            max_buffered=max_buffered,
            max_buffered_bytes=max_buffered_bytes,
            retry=retry or Retry(),
            dead_letters=dead_letters,
            metadata_limit=metadata_limit,
        )
    )
    made.assign(P0, left)
    return made


def left_at(offset: int, done: Done, epoch: int = 0) -> OffsetAndMetadata:
    return OffsetAndMetadata(offset, epoch, encode(P0, offset, done))


# --- what a former owner left ----------------------------------------------------------------------------------------


def test_an_open_record_that_was_compacted_away_does_not_hide_the_next_one() -> None:
    it = core(left_at(5, Done(9, (5, 7))))
    it.add(records(6, 7, 8))
    assert offsets(start(it)) == [7]


def test_open_records_of_a_former_owner_that_never_came_are_forgotten_after_its_end() -> None:
    progress = PartitionProgress(P0, left_at(5, Done(20, (5, 7, 18))))
    progress.add(6)
    assert progress.holes == 2
    progress.add(20)
    assert progress.holes == 1


def test_open_records_that_are_still_to_come_take_up_room_in_metadata() -> None:
    it = core(left_at(10, Done(200, (10, 130, 150))), metadata_limit=48)  # two holes, or 112 offsets
    it.add(records(10, 130))
    [first] = start(it)
    assert first.record.offset == 10
    it.succeeded(first)
    assert offsets(start(it)) == [130]


def test_what_was_done_under_no_known_leader_is_not_done_after_a_cut() -> None:
    it = core(left_at(10, Done(20, (11,), -1)))
    it.add(records(10, 11, 12, epoch=-1))
    it.add(records(11, 14, epoch=-1))
    assert offsets(start(it)) == [11, 14]


def test_a_later_leader_ends_what_is_said_to_be_done() -> None:
    it = core(left_at(10, Done(20, (10, 12), 0)))
    it.add(records(10, 11, epoch=1))
    [found] = it.to_commit().values()
    assert (found.offset, decode(P0, found.offset, found.metadata)) == (10, None)


def test_the_leader_epoch_of_the_former_commit_is_kept_while_no_record_comes() -> None:
    it = core(left_at(10, Done(20, (10,)), epoch=3))
    it.limit_metadata(0)
    assert it.to_commit() == {P0: OffsetAndMetadata(10, 3, "")}


def test_the_leader_epoch_is_that_of_the_log_after_a_cut() -> None:
    it = core()
    it.add(records(0, 1, 2))
    it.add(records(3, epoch=1))
    it.add(records(2, epoch=2))
    for job in start(it):
        if job.record.offset < 2:
            it.succeeded(job)
    assert it.to_commit() == {P0: OffsetAndMetadata(2, 2, "")}


def test_metadata_of_another_kind_is_not_believed() -> None:
    body = b64decode(encode(P0, 0, Done(16, (0, 1, 8)))[len(MARKER) :])
    assert body[0] == 1  # a bitmap, which would also be valid as gaps
    for kind in (b"\2", b"\3"):
        assert decode(P0, 0, MARKER + b64encode(kind + body[1:]).decode()) is None


# --- what waits ------------------------------------------------------------------------------------------------------


def test_records_that_were_cut_no_longer_wait() -> None:
    it = core(order="partition", max_buffered_bytes=1_000)
    it.add(records(0, 1, 2, 3, value=bytes(300)))
    assert it.flow() == ([P0], [])
    it.add(records(1, epoch=1, value=bytes(300)))
    assert it.counters()["waiting"] == 2
    while jobs := start(it):
        it.succeeded(jobs[0])
    assert it.counters()["waiting"] == 0
    assert it.flow() == ([], [P0])


def test_a_record_that_was_cut_is_not_tried_again() -> None:
    it = core()
    it.add(records(0, 1))
    _, second = start(it)
    it.failed(second, BOOM, 0)
    it.add(records(1, epoch=1))
    [found] = start(it, 10**9)
    assert found is not second
    assert it.counters()["waiting"] == 0


def test_a_partition_paused_for_its_bytes_waits_until_records_are_done() -> None:
    it = core(max_buffered_bytes=1_000)
    it.add(records(0, value=bytes(999)))
    assert it.flow() == ([P0], [])
    [job] = start(it)
    assert (it.flow(), it.may_resume) == (([], []), False)
    it.succeeded(job)
    assert it.may_resume
    assert it.flow() == ([], [P0])


def test_records_put_aside_go_with_their_partition() -> None:
    it = core(metadata_limit=40)
    it.add(records(*range(100)))
    start(it)
    it.give_up([P0])
    assert not any(it._queue._parked.values())  # otherwise their records would be kept forever
    it.assign(P0, None)
    it.add(records(*range(100)))
    first, *_ = start(it)
    it.succeeded(first)
    jobs = start(it)
    assert jobs
    assert not any(job.is_void for job in jobs)


def test_many_partitions_have_some_room_each() -> None:
    it = core(max_buffered=100)
    for number in range(100):
        it.assign(TopicPartition("flights", number), None)
    assert it.poll_limit == 16


# --- failures while the partition is given up
# -----------------------------------------------------------------------------


def test_what_fails_while_its_partition_goes_is_left_to_the_next_owner() -> None:
    for retry in (Retry(), Retry(max_attempts=1)):
        for dead_letters in (True, False):
            it = core(retry=retry, dead_letters=dead_letters)
            it.add(records(0))
            [job] = start(it)
            it.close([P0])
            it.failed(job, BOOM, 0)
            assert (it.take_dead_letters(), it.fatal, it.next_retry()) == ([], None, None)
            assert it.metrics.dropped == 1
            assert it.to_commit() == {P0: OffsetAndMetadata(0, 0, "")}
