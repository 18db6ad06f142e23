"""How far one partition is: which of its records are done, what may be committed, and which may be started.

Theory. Records come in the order of their offsets and are done in any order. `base` is the first that is not done: it
is what may be committed. `high` is behind the last that is done; what is done between the two goes into the metadata.

    committed         base                      high         next
       |  done  done   |   ■   done  ■  done done |  ■ ■ ■ ■ ■ |     ■ not done: it waits, is under way, or failed

What a former owner has left in the metadata (`left`) counts as done. As long as records up to its end have not come
again, it is passed on with each commit, so that a second crash repeats no more than the first.

Offsets at which no record comes (compacted away, of aborted transactions, markers) are done by not coming: `next` is
behind them when the following record comes.

A signal handler of the program's may raise anywhere in here, and the run then ends with a last commit. So at every
point between two changes what is committed is done: a record is known as open before `next` is behind it, and what is
said to be done becomes less before anything else does.
"""

from __future__ import annotations

from collections import deque

from muster.client.core.concurrent.encoding import DEFAULT_LIMIT, Done, Space, decode, encode, space
from muster.model import NO_LEADER_EPOCH, OffsetAndMetadata, TopicPartition


class Progress:
    """One ownership of one partition. A partition that is lost and comes back has a new one."""

    __slots__ = (
        "_committed",
        "_epochs",
        "_holes",
        "_limit",
        "_open",
        "_order",
        "_space",
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
        """Behind the last record that has come; None if none has, and nothing is committed."""
        self.high = -1
        self.high_epoch = NO_LEADER_EPOCH
        self.left_end = -1
        self.left_epoch = NO_LEADER_EPOCH
        self._holes: deque[int] = deque()
        """Those that a former owner left, and that have not come yet."""
        self._open: set[int] = set()
        """Offsets that have come and are not done."""
        self._order: deque[int] = deque()
        """The same, in order, with some that are done by now."""
        self._epochs: deque[tuple[int, int]] = deque()
        """Leader epochs of records, each with the offset from which on it holds."""
        self._limit = limit
        self._space: Space = space(limit)
        self._committed = committed
        self.cuts: list[int] = []
        """Offsets to which the log went back."""
        self.closing = False
        """It is being given up: no record is started."""
        self.over = False
        """It is given up: results that still come are dropped."""
        self.paused = False
        self.resume_at = 0
        """When so few records wait it may be resumed."""
        self.parked_at: int | None = None
        """The base when a record was put aside that could not be told; None if none is."""
        self.sent: OffsetAndMetadata | None = None
        """What was given out to be committed last."""
        self.held = 0
        """Records that wait, the first time or for another try."""
        self.bytes_held = 0
        self.under_way = 0
        self.skipped = 0
        """Records that a former owner had done."""
        if committed is not None:
            self._begin(committed)

    def _begin(self, committed: OffsetAndMetadata) -> None:
        self.next = committed.offset
        self._epochs.append((committed.offset - 1, committed.leader_epoch))
        left = decode(self.partition, committed.offset, committed.metadata)
        if left is None:
            self._committed = committed._replace(metadata="")  # of another program: no reason to commit it anew
        else:
            self.left_end, self.left_epoch = left.end, left.epoch
            self._holes.extend(left.holes)

    # --- records -----------------------------------------------------------------------------------------------------

    def goes_back(self, offset: int) -> bool:
        """Whether records come once more from an offset on: an election has cut the log, or it is read again."""
        return self.next is not None and offset < self.next

    def cut(self, offset: int) -> None:
        """Offsets from this one on mean other records now. What is known of those before stays."""
        self.high, self.left_end = min(self.high, offset), min(self.left_end, offset)
        self.cuts.append(offset)
        self.next = offset
        self._open = {each for each in self._open if each < offset}
        self._order = deque(each for each in self._order if each < offset)
        self._holes.clear()
        while self._epochs and self._epochs[-1][0] >= offset:
            self._epochs.pop()

    def is_void(self, offset: int, born: int) -> bool:
        """Whether the log was cut below a record that came when there had been so many cuts."""
        return any(cut <= offset for cut in self.cuts[born:])

    def add(self, offset: int, leader_epoch: int = NO_LEADER_EPOCH) -> bool:
        """A record has come. Returns whether it is to be handled; a former owner may have done so."""
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
            # A leader that came later has written this: the record that was done is lost, with all behind it.
            self.left_end = offset
            self._holes.clear()
            return False
        while self._holes and self._holes[0] < offset:
            self._holes.popleft()
        return not self._holes or self._holes[0] != offset

    def done(self, offset: int, leader_epoch: int = NO_LEADER_EPOCH) -> None:
        """A record is done: by its handler, or it is among the dead letters."""
        self._open.discard(offset)
        if offset >= self.high:
            self.high = offset + 1
        if leader_epoch > self.high_epoch:
            self.high_epoch = leader_epoch

    def move_to(self, position: int) -> None:
        """There is no record up to the consumer's position that has not come."""
        if not self._open and not self.closing and (self.next is None or position > self.next):
            self.next = position
            self._epochs.append((position - 1, NO_LEADER_EPOCH))  # of what is there instead of records

    # --- where it stands ---------------------------------------------------------------------------------------------

    @property
    def base(self) -> int | None:
        """The first offset that is not done; None while there is nothing to say."""
        order, still_open = self._order, self._open
        while order and order[0] not in still_open:
            order.popleft()
        return order[0] if order else self.next

    @property
    def holes(self) -> int:
        """How many offsets are not done of those that have come, or are known from a former owner."""
        return len(self._open) + len(self._holes)

    def may_start(self, offset: int) -> bool:
        """Whether a commit can tell that this record is done, whatever else is not."""
        if not self._space.holes or self.holes <= self._space.holes:
            return True
        base = self.base
        return base is None or offset - base < self._space.window

    @property
    def has_moved(self) -> bool:
        """Whether records may start now that were put aside."""
        return self.base != self.parked_at or self.holes <= self._space.holes

    # --- committing --------------------------------------------------------------------------------------------------

    def to_commit(self) -> OffsetAndMetadata | None:
        """What to commit; None if that is committed."""
        base = self.base
        if base is None:
            return None
        told = encode(self.partition, base, self._done(base), self._limit) if self._space.holes else ""
        found = OffsetAndMetadata(base, self._epoch_of(base), told)
        known = self._committed
        if known is not None and (known.offset, known.metadata) == (base, told):
            return None
        self.sent = found
        return found

    def limit_metadata(self, limit: int) -> None:
        """The broker takes no more than so many characters."""
        self._limit, self._space = limit, space(limit)

    def committed(self, what: OffsetAndMetadata) -> None:
        """A commit was acknowledged; one of an earlier ownership says nothing about this one."""
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

        It is what the next owner asks the leader about (KIP-320). That of the record before the base would not do: its
        epoch may have ended long before the base, at a gap, and the log would look as if it had been cut.
        """
        epochs, at = self._epochs, base if base in self._open else base - 1
        while len(epochs) > 1 and epochs[1][0] <= at:
            epochs.popleft()
        return epochs[0][1] if epochs and epochs[0][0] <= at else NO_LEADER_EPOCH
