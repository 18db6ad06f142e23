"""A signal handler of the program may raise at any point: the last commit still happens."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

import pytest

from muster.client.core.concurrent import progress as module
from muster.client.core.concurrent.core import ConcurrentCore
from muster.client.core.concurrent.encoding import Done, decode, encode
from muster.client.core.concurrent.rules import Rules
from muster.model import ConsumerRecord, OffsetAndMetadata, TopicPartition

P0 = TopicPartition("flights", 0)


def records(*offsets: int, epoch: int = 0) -> dict[TopicPartition, list[ConsumerRecord]]:
    return {P0: [ConsumerRecord("flights", 0, each, 0, 0, b"%d" % each, b"", [], epoch) for each in offsets]}


def interrupted(work: Callable[[], Any], at: int) -> bool:
    """Do the work, and raise in the middle of it: at this instruction of the code that tracks a partition."""
    left = at

    def trace(frame: FrameType, event: str, _argument: object) -> Any:
        nonlocal left
        if frame.f_code.co_filename != module.__file__:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            left -= 1
            if left < 0:
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


def reported(core: ConcurrentCore) -> set[int]:
    """The offsets that a commit would report as done."""
    [found] = core.to_commit().values() or [None]
    found = found or OffsetAndMetadata(core.position(P0) or 0)
    left = decode(P0, found.offset, found.metadata) or Done(found.offset)
    return set(range(left.end)) - set(left.holes)


def fresh() -> ConcurrentCore:
    """A partition of which a former owner has done 10, 12 and 14 to 19; 13 has no record."""
    core = ConcurrentCore(Rules(concurrency=3))
    metadata = encode(P0, 10, Done(20, (11, 13), 0))
    core.assign(P0, OffsetAndMetadata(10, 0, metadata))
    return core


def half_way() -> ConcurrentCore:
    """11, 20 and 21 have arrived, and 20 is done."""
    core = fresh()
    core.add(records(10, 11, 12, 14, 20, 21))
    jobs = [core.start(0) for _ in range(3)]
    core.succeeded(next(job for job in jobs if job is not None and job.record.offset == 20))
    return core


DONE_BEFORE = {*range(10), 10, 12, 13, *range(14, 20)}


@pytest.mark.parametrize(
    ("make", "work", "done"),
    [
        (fresh, lambda core: core.add(records(10, 11, 12, 14, 15, 19, 20, 22)), DONE_BEFORE | {21}),
        (half_way, lambda core: core.add(records(22, 25)), DONE_BEFORE | {20, 23, 24}),
        (fresh, lambda core: core.add(records(10, 11, 15, epoch=1)), set(range(10))),
        (half_way, lambda core: core.add(records(12, 13, 20, epoch=1)), {*range(11), 20}),
        (half_way, lambda core: core.add(records(18, epoch=1)), DONE_BEFORE | {20}),
    ],
    ids=["first", "on", "of-a-later-leader", "cut", "cut-once"],
)
def test_what_is_committed_after_an_interrupt_is_done(
    make: Callable[[], ConcurrentCore], work: Callable[[ConcurrentCore], None], done: set[int]
) -> None:
    before, at, core = reported(make()), 0, make()
    while interrupted(partial(work, core), at):
        assert reported(core) <= done or reported(core) == before, f"at instruction {at}"
        at, core = at + 1, make()
    assert at > 50
