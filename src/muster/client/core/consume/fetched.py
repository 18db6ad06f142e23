"""Fetched data of a partition, waiting to be handed out: raw batches, records of the current batch, then an error.

Theory. Records that can be read are handed out first. An error waits after them, and is raised when its partition's
turn comes and no records are left before it. Until then the partition is not fetched, so that errors neither pile up
nor are overtaken by later data. A lasting error (a damaged batch) is raised again at every turn until the user seeks,
pauses the partition or gives it up, as in Kafka's consumer: if the records after the damage were handed out, the next
commit would skip records that the user has never seen. Any other error is raised once, then the partition is
fetched again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from muster.client.core.subscription_state import PartitionState
from muster.errors import CorruptRecordError, MusterError, ProtocolError
from muster.model import NO_LEADER_EPOCH, ConsumerRecord, TopicPartition
from muster.protocol.primitives import Buffer
from muster.protocol.records.aborted import Aborted, AbortedTransactions
from muster.protocol.records.record_batch import BatchHeader, check_batch, iter_headers, next_header, read_as


@dataclass(slots=True)
class FetchedData:
    """Record batches of one partition as one fetch returned them, from `start_offset` on.

    `position` is where in `buffer` the next batch begins. `aborted` is None for read_uncommitted.
    """

    buffer: Buffer
    start_offset: int
    end_offset: int
    leader_epoch: int = NO_LEADER_EPOCH
    """The leader epoch of the last batch."""
    position: int = 0
    aborted: Sequence[Aborted] | None = None
    _transactions: AbortedTransactions | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        if self.aborted is not None:
            self._transactions = AbortedTransactions(self.aborted)

    @property
    def waiting_bytes(self) -> int:
        """Bytes not yet handed out."""
        return len(self.buffer) - self.position

    def hides(self, position: int, header: BatchHeader) -> bool:
        """Whether a batch holds nothing for the user. Must be called once for each batch, in order."""
        dropped = self._transactions is not None and self._transactions.drops(self.buffer, position, header)
        return dropped or header.is_control


class PartitionQueue:
    """The waiting data of one partition. It is void once `state.epoch` has changed, or the partition has another
    state."""

    __slots__ = ("_check_crcs", "_decoded", "_decoded_end", "_fetched", "_lasting", "epoch", "error", "partition")

    def __init__(self, partition: TopicPartition, epoch: int, *, check_crcs: bool) -> None:
        self.partition = partition
        self.epoch = epoch
        self.error: MusterError | None = None
        """Raised once all records before it are handed out."""
        self._lasting = False
        self._check_crcs = check_crcs
        self._fetched: deque[FetchedData] = deque()
        self._decoded: list[ConsumerRecord] = []
        self._decoded_end = -1
        """The offset after the batch that `_decoded` comes from."""

    @property
    def waiting_bytes(self) -> int:
        """Bytes not yet decoded."""
        return sum(data.waiting_bytes for data in self._fetched)

    @property
    def has_records(self) -> bool:
        """Whether there is data before the error, if any."""
        return bool(self._fetched or self._decoded)

    def __bool__(self) -> bool:
        return self.has_records or self.error is not None

    # --- filling -----------------------------------------------------------------------------------------------------

    def add(self, data: FetchedData) -> None:
        """Append fetched data."""
        self._fetched.append(data)

    def fail(self, error: MusterError, *, lasting: bool) -> None:
        """Add an error after the waiting records."""
        self.error = error
        self._lasting = lasting

    def damaged(self, offset: int, error: ProtocolError) -> None:
        """From `offset` on nothing can be read."""
        message = f"{self.partition} is damaged at offset {offset} ({error}); seek() past it to continue"
        self.fail(CorruptRecordError(message), lasting=True)

    # --- emptying ----------------------------------------------------------------------------------------------------

    def take_error(self) -> MusterError:
        """Take the error, to raise it now."""
        assert self.error is not None
        error = self.error.with_traceback(None)  # a lasting error's traceback would grow with each raise
        if not self._lasting:
            self.error = None
        return error

    def take(self, state: PartitionState, max_records: int) -> list[ConsumerRecord]:
        """Up to `max_records` records, in order; the position moves past them and past hidden batches."""
        taken: list[ConsumerRecord] = []
        while len(taken) < max_records:
            if not self._decoded and not self._decode_next(state):
                break
            room = max_records - len(taken)
            taken += self._decoded[:room]
            del self._decoded[:room]
        if taken:
            state.position = self._decoded[0].offset if self._decoded else self._decoded_end
        return taken

    def take_raw(self, state: PartitionState) -> list[FetchedData]:
        """Everything as fetched; the position moves past it.

        If `take` has begun to hand out a batch, it is fetched again from where `take` stopped.
        """
        if self._decoded or (self._fetched and self._fetched[0].position):
            state.go_back(state.position)
            return []
        fetched = list(self._fetched)
        self._fetched.clear()
        if fetched:
            state.position, state.leader_epoch = fetched[-1].end_offset, fetched[-1].leader_epoch
        return fetched

    def _decode_next(self, state: PartitionState) -> bool:
        """Decode the next batch that waits. Returns False if there is none, or it is damaged."""
        while self._fetched:
            data = self._fetched[0]
            try:
                self._decode_batch(state, data)
            except ProtocolError as error:
                self._fetched.clear()
                self.damaged(state.position, error)
                return False
            if data.position >= len(data.buffer):
                self._fetched.popleft()
            if self._decoded:
                return True
        return False

    def _decode_batch(self, state: PartitionState, data: FetchedData) -> None:
        position = data.position
        header = next_header(data.buffer, position)
        if header is None:  # the last batch is cut off: the next fetch returns it again
            data.position = len(data.buffer)
            return
        if self._check_crcs:
            check_batch(data.buffer, position, header)
        if not data.hides(position, header):
            self._decoded.extend(_records(self.partition, data.buffer, position, header, state.position))
        data.position = position + header.size
        state.position = self._decoded_end = max(state.position, header.next_offset)
        state.leader_epoch = header.partition_leader_epoch  # even for hidden batches: it belongs to the position


def whole_batches(records: Buffer) -> tuple[int, BatchHeader | None, ProtocolError | None]:
    """Where the whole batches end, the last of them, and the error of the following batch, if it is damaged."""
    end, last = 0, None
    try:
        for position, header in iter_headers(records):
            end, last = position + header.size, header
    except ProtocolError as error:
        return end, last, error
    return end, last, None


def _records(
    partition: TopicPartition, buffer: Buffer, position: int, header: BatchHeader, first: int
) -> list[ConsumerRecord]:
    """The records of a batch from offset `first` on: a fetch returns whole batches, and the position may be inside
    one."""
    records = read_as(ConsumerRecord, buffer, position, header)
    if first > header.base_offset:
        records = [record for record in records if record.offset >= first]
    topic, number = partition
    epoch, timestamp_type = header.partition_leader_epoch, header.timestamp_type
    for record in records:
        record.topic = topic
        record.partition = number
        record.timestamp_type = timestamp_type
        record.leader_epoch = epoch
    return records
