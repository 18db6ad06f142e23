"""A shard that is read and served, with its log and with what waits for the log."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from muster.coordinator.effects import Reply
from muster.coordinator.loading import GroupLog
from muster.coordinator.shard import GroupShard
from muster.protocol.record_batch import BatchBuilder

Answer = Callable[[Any], None]


class Home:
    """A shard with its log, its open batch, and the answers that wait for the log.

    `decided` are answers that wait for the open batch to be written, `parked` those that wait for what was written to
    be durable, each with the end of the log that it waits for. `written` is the end of the last write.
    """

    __slots__ = ("batch", "batch_time", "decided", "log", "parked", "partition", "shard", "written")

    def __init__(self, partition: int, shard: GroupShard, log: GroupLog) -> None:
        self.partition = partition
        self.shard = shard
        self.log = log
        self.batch = BatchBuilder()
        self.batch_time = 0
        self.written = log.log_end_offset
        self.decided: list[Reply] = []
        self.parked: deque[tuple[int, Reply]] = deque()

    def answer(self, replies: list[Reply]) -> None:
        """Answer when all that was decided until now is durable."""
        if self.batch.count:
            self.decided += replies
        elif self.parked or self.written > self.log.high_watermark:
            self.parked.extend([(self.written, reply) for reply in replies])
            self.release()
        else:
            for reply in replies:
                reply.ticket(reply.response)

    def wrote(self, end: int) -> None:
        """The open batch is in the log, before the offset `end`: the log says so, for it need not be ours alone."""
        self.written = end
        decided, self.decided = self.decided, []
        self.answer(decided)

    def release(self) -> None:
        """Answer those whose records, and whatever was decided before, the log has durably."""
        parked, high_watermark = self.parked, self.log.high_watermark
        while parked and parked[0][0] <= high_watermark:
            reply = parked.popleft()[1]
            reply.ticket(reply.response)

    def take_waiting(self) -> list[Reply]:
        """The answers that have not gone out, in order. They are the caller's now."""
        waiting = [reply for _, reply in self.parked] + self.decided
        self.parked.clear()
        self.decided = []
        return waiting
