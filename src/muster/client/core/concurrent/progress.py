"""The progress of one partition: which records are done, what may be committed, and which may be started.

Theory. Records arrive in the order of their offsets and are done in any order. `base` is the first that is not done: it
is what may be committed. `high` is the offset after the last done record; what is done between the two goes into the
metadata.

    committed         base                      high         next
       |  done  done   |   ■   done  ■  done done |  ■ ■ ■ ■ ■ |     ■ not done: waiting, running, or failed

What a previous owner left in the metadata (`left`) counts as done. Until the records up to its end have arrived again,
it is passed on with each commit, so that a second crash repeats no more than the first.

Offsets at which no record arrives (compacted, in aborted transactions, markers) count as done: `next` is after them
when the following record arrives.

A signal handler of the program may raise anywhere in this file, and the run then ends with a last commit. So what is
committed must be done at every point between two changes: a record is open before `next` moves past it, and claims are
reduced before anything else changes.
"""

from __future__ import annotations

from collections import deque

from muster.client.core.concurrent.encoding import DEFAULT_LIMIT, Capacity, Done, capacity, decode, encode
from muster.model import NO_LEADER_EPOCH, OffsetAndMetadata, TopicPartition


class PartitionProgress:
    """One ownership of one partition. A partition that is lost and comes back gets a new one."""

    __slots__ = (
        "_capacity",
        "_committed",
        "_epochs",
        "_holes",
        "_limit",
        "_open",
        "_order",
        "bytes_held",
        "closing",
        "cuts",
        "held",
        "high",
        "high_epoch",
        "left_end",
        "left_epoch",
        "next",
        "over",
        "parked_at",
        "partition",
        "paused",
        "resume_at",
        "sent",
        "skipped",
        "under_way",
    )

    def __init__(
        self,
        partition: TopicPartition,
        committed: OffsetAndMetadata | None = None,
        limit: int = DEFAULT_LIMIT,
    ) -> None:
        self.partition = partition
        self.next: int | None = None
        """The offset after the last record that has arrived; None if none has arrived and nothing is committed."""
        self.high = -1
        self.high_epoch = NO_LEADER_EPOCH
        self.left_end = -1
        self.left_epoch = NO_LEADER_EPOCH
        self._holes: deque[int] = deque()
        """Holes that a previous owner left and whose records have not arrived yet."""
        self._open: set[int] = set()
        """Offsets that have arrived and are not done."""
        self._order: deque[int] = deque()
        """The open offsets in order, with some that have since been done."""
        self._epochs: deque[tuple[int, int]] = deque()
        """Leader epochs of records, each with its first offset."""
        self._limit = limit
        self._capacity: Capacity = capacity(limit)
        self._committed = committed
        self.cuts: list[int] = []
        """Offsets to which the log was truncated."""
        self.closing = False
        """The partition is being given up: no record is started."""
        self.over = False
        """The partition was given up: late results are dropped."""
        self.paused = False
        self.resume_at = 0
        """The partition may be resumed when at most this many records wait."""
        self.parked_at: int | None = None
        """The base when a record was put aside because it could not be encoded; None if none was."""
        self.sent: OffsetAndMetadata | None = None
        """The last result of `to_commit`."""
        self.held = 0
        """Records that wait, for their first attempt or a retry."""
        self.bytes_held = 0
        self.under_way = 0
        self.skipped = 0
        """Records that a previous owner had finished."""
        if committed is not None:
            self._begin(committed)

    def _begin(self, committed: OffsetAndMetadata) -> None:
        self.next = committed.offset
        self._epochs.append((committed.offset - 1, committed.leader_epoch))
        left = decode(self.partition, committed.offset, committed.metadata)
        if left is None:
            self._committed = committed._replace(metadata="")  # from another program: no reason to commit again
        else:
            self.left_end, self.left_epoch = left.end, left.epoch
            self._holes.extend(left.holes)

    # --- records -----------------------------------------------------------------------------------------------------

    def goes_back(self, offset: int) -> bool:
        """Whether records from an offset on arrive again: an election truncated the log, or it is read again."""
        return self.next is not None and offset < self.next

    def cut(self, offset: int) -> None:
        """The records from this offset on are now different. What is known about earlier ones stays."""
        self.high, self.left_end = min(self.high, offset), min(self.left_end, offset)
        self.cuts.append(offset)
        self.next = offset
        self._open = {each for each in self._open if each < offset}
        self._order = deque(each for each in self._order if each < offset)
        self._holes.clear()
        while self._epochs and self._epochs[-1][0] >= offset:
            self._epochs.pop()

    def is_void(self, offset: int, born: int) -> bool:
        """Whether a record that arrived after the first `born` truncations has been truncated since."""
        return any(cut <= offset for cut in self.cuts[born:])

    def add(self, offset: int, leader_epoch: int = NO_LEADER_EPOCH) -> bool:
        """A record has arrived. Returns whether it must be handled: a previous owner may have done so."""
        if not self._epochs or self._epochs[-1][1] != leader_epoch:
            self._epochs.append((offset, leader_epoch))
        if offset < self.left_end and self._was_done(offset, leader_epoch):
            self.next = offset + 1
            self.skipped += 1
            self.done(offset, leader_epoch)
            return False
        self._open.add(offset)
        self._order.append(offset)
        self.next = offset + 1
        if offset >= self.left_end:
            self._holes.clear()
        elif self._holes and self._holes[0] == offset:
            self._holes.popleft()
        return True

    def _was_done(self, offset: int, leader_epoch: int) -> bool:
        if leader_epoch > self.left_epoch >= 0:
            # A later leader has written this: the record that was done is lost, with all after it.
            self.left_end = offset
            self._holes.clear()
            return False
        while self._holes and self._holes[0] < offset:
            self._holes.popleft()
        return not self._holes or self._holes[0] != offset

    def done(self, offset: int, leader_epoch: int = NO_LEADER_EPOCH) -> None:
        """A record is done: handled, or written as a dead letter."""
        self._open.discard(offset)
        if offset >= self.high:
            self.high = offset + 1
        if leader_epoch > self.high_epoch:
            self.high_epoch = leader_epoch

    def move_to(self, position: int) -> None:
        """All records before the consumer's position have arrived."""
        if not self._open and not self.closing and (self.next is None or position > self.next):
            self.next = position
            self._epochs.append((position - 1, NO_LEADER_EPOCH))  # of another entry, such as a marker

    # --- its state ---------------------------------------------------------------------------------------------------

    @property
    def base(self) -> int | None:
        """The first offset that is not done; None while nothing is known."""
        order, still_open = self._order, self._open
        while order and order[0] not in still_open:
            order.popleft()
        return order[0] if order else self.next

    @property
    def holes(self) -> int:
        """How many offsets are not done, of those that have arrived or are known from a previous owner."""
        return len(self._open) + len(self._holes)

    def may_start(self, offset: int) -> bool:
        """Whether a commit can encode that this record is done, whatever else is not."""
        if not self._capacity.holes or self.holes <= self._capacity.holes:
            return True
        base = self.base
        return base is None or offset - base < self._capacity.window

    @property
    def has_moved(self) -> bool:
        """Whether records that were put aside may start now."""
        return self.base != self.parked_at or self.holes <= self._capacity.holes

    # --- committing --------------------------------------------------------------------------------------------------

    def to_commit(self) -> OffsetAndMetadata | None:
        """What to commit; None if nothing has changed."""
        base = self.base
        if base is None:
            return None
        metadata = encode(self.partition, base, self._done(base), self._limit) if self._capacity.holes else ""
        found = OffsetAndMetadata(base, self._epoch_of(base), metadata)
        known = self._committed
        if known is not None and (known.offset, known.metadata) == (base, metadata):
            return None
        self.sent = found
        return found

    def limit_metadata(self, limit: int) -> None:
        """The broker accepts at most this many characters of metadata."""
        self._limit, self._capacity = limit, capacity(limit)

    def committed(self, what: OffsetAndMetadata) -> None:
        """A commit was acknowledged; one of an earlier ownership does not count."""
        if what is self.sent:
            self._committed = what

    def _done(self, base: int) -> Done:
        end = max(self.high, self.left_end if self.next is None or self.next < self.left_end else -1)
        if end <= base:
            return Done(base)
        come = end if self.next is None else min(end, self.next)
        mine = [offset for offset in self._order if offset in self._open and offset < come]
        left = [offset for offset in self._holes if self.next is None or offset >= self.next]
        return Done(end, tuple(mine + left), max(self.high_epoch, self.left_epoch))

    def _epoch_of(self, base: int) -> int:
        """The leader epoch to commit: that of the record at the base; if all is done, of the last one.

        The next owner validates its position with it (KIP-320). The epoch of the record before the base would be
        wrong: it may have ended long before the base, at a gap, and the log would look truncated.
        """
        epochs, at = self._epochs, base if base in self._open else base - 1
        while len(epochs) > 1 and epochs[1][0] <= at:
            epochs.popleft()
        return epochs[0][1] if epochs and epochs[0][0] <= at else NO_LEADER_EPOCH
