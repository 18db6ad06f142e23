"""A shard that is read and served, with its log and with what waits for the log."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from muster.coordinator.effects import Effects, Reply
from muster.errors import ErrorCode
from muster.protocol.primitives import Struct
from muster.protocol.record_batch import BatchBuilder

Answer = Callable[[Any], None]


class GroupLog(Protocol):
    """What is needed of a partition's log; `muster.log.PartitionLog` is one."""

    @property
    def log_start_offset(self) -> int: ...

    @property
    def log_end_offset(self) -> int: ...

    @property
    def high_watermark(self) -> int:
        """Records before it are durable."""

    @property
    def failed(self) -> Exception | None:
        """Set once writing or syncing has failed: what is not durable by then never will be."""

    def append(self, batches: bytearray, *, now: int, leader_epoch: int = 0, origin: Any = "coordinator") -> Any:
        """An object with `last_offset`, of the last record. Others may have appended meanwhile."""

    def read(self, offset: int, max_bytes: int) -> Any:
        """An object with `data` (whole batches, perhaps none) and `next_offset`."""


class Shard(Protocol):
    """What is needed of a shard to keep it in a log."""

    def replay(self, key: bytes | None, value: bytes | None, shift: int) -> None:
        """Take in a record of the log, its times moved by so many milliseconds. Raises what no record raises."""

    def write_down(self, records: list[Any], batch: BatchBuilder, timestamp: int, shift: int) -> None:
        """Put what it has decided to write into a batch, its times moved by so many milliseconds."""

    def loaded(self, now: int) -> Effects:
        """All records are taken in."""

    def unload(self, error: ErrorCode) -> Effects:
        """The shard goes: whoever waits in it is answered."""

    def spoiled(self, answer: Any, error: ErrorCode) -> Struct:
        """What to say in place of an answer whose records were lost."""

    @property
    def first_alarm(self) -> int:
        """A time that is not after the next deadline."""

    def next_deadline(self) -> int | None:
        """When to call `on_deadline`; None for never."""

    def on_deadline(self, now: int) -> Effects:
        """Do all that is due."""


S = TypeVar("S", bound=Shard)


class Home(Generic[S]):
    """A shard with its log, its open batch, and the answers that wait for the log.

    `decided` are answers that wait for the open batch to be written, `parked` those that wait for what was written to
    be durable, each with the end of the log that it waits for. `written` is the end of the last write.
    """

    __slots__ = ("batch", "batch_time", "decided", "log", "parked", "partition", "shard", "written")

    def __init__(self, partition: int, shard: S, log: GroupLog) -> None:
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
