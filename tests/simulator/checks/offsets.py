"""The offsets that one group has committed, and the records that its members were handed.

13. An acknowledged commit is still there after a restart. One that was not acknowledged may or may not be there.
14. A commit never moves an offset back, unless its member was asked to. (Exception: a commit that its client gave up by
    closing the connection. It can arrive after a later one, in Kafka as well.)
15. Committed records were handled: no crash loses a record (at least once).
16. Within one ownership, records are handled in order from the committed offset, and none is left out.
17. No member is handed records that another member has committed, except one that does not know yet that it was
    removed: its generation is older than that of the commit. (A commit without a generation comes from a consumer with
    a manual assignment: if it was sent before its process ended, it may arrive after its successor has asked.)
18. A partition that was given up in good order is committed as far as it was handled: its next owner handles nothing
    again.

If the records themselves were lost (`Log.truncate`, a topic deleted and created again) none of this can hold; such a
partition is `unsure` from then on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from muster.errors import ErrorCode
from muster.model import TopicPartition
from muster.protocol.messages import OffsetCommitRequest, OffsetCommitResponse
from tests.simulator.checks.base import InvariantError, Member, Ticket
from tests.simulator.checks.durability import Committed
from tests.simulator.checks.ownership import Ownership

NOTHING = Committed(-1)


@dataclass(slots=True)
class _Offsets:
    """One partition's committed offset, and the member that last moved it there."""

    acknowledged: Committed = NOTHING
    by: str = ""
    generation_id: int = -1
    pending: list[Committed] = field(default_factory=list)
    """Commits that were sent to the coordinator and not acknowledged: a restart may keep them."""
    before_load: list[Committed] = field(default_factory=list)
    """The ones among them that were sent before the log was loaded."""
    late: bool = False
    may_go_back: int = 0
    """How often a member was asked to go back and has not committed it yet."""


@dataclass(slots=True)
class _Reading:
    """One ownership of one partition: where it must begin, and how far it has advanced."""

    at_least: int
    next_offset: int = -1


class Records:
    """The properties of the partitions' logs that the check uses: where the next record is, even if retention may have
    removed it, and where the log begins, now and earlier."""

    def __init__(
        self, next_record: Callable[[TopicPartition, int], int], log_starts: Callable[[TopicPartition], list[int]]
    ) -> None:
        self.next_record = next_record
        self.log_starts = log_starts
        self.unsure: set[TopicPartition] = set()

    def log_start(self, partition: TopicPartition) -> int:
        """The start offset of the log."""
        return self.log_starts(partition)[-1]


class Offsets:
    """The ledger of one group."""

    def __init__(self, ownership: Ownership, records: Records, *, latest: bool) -> None:
        self._latest = latest
        self._ownership = ownership
        self._records = records
        self._offsets: dict[TopicPartition, _Offsets] = {}
        self._reading: dict[tuple[str, TopicPartition], _Reading] = {}
        self._handled: dict[TopicPartition, set[int]] = {}
        self._handled_to: dict[TopicPartition, int] = {}
        self._stale: set[tuple[str, TopicPartition]] = set()

    def _of(self, partition: TopicPartition) -> _Offsets:
        found = self._offsets.get(partition)
        if found is None:
            found = self._offsets[partition] = _Offsets()
        return found

    # --- commits -----------------------------------------------------------------------------------------------------

    def asked(self, commits: Iterable[tuple[TopicPartition, Committed]]) -> None:
        """A commit was sent to the coordinator."""
        for partition, value in commits:
            self._of(partition).pending.append(value)

    def answered(self, ticket: Ticket, response: OffsetCommitResponse) -> list[tuple[TopicPartition, Committed]]:
        """A commit was answered; returns which partitions were acknowledged."""
        request: OffsetCommitRequest = ticket.request
        codes = [each.error_code for topic in response.topics for each in topic.partitions]
        acknowledged = []
        for (partition, value), code in zip(ticket.commits, codes, strict=True):
            known = self._of(partition)
            if code == ErrorCode.NONE:
                acknowledged.append((partition, value))
                if partition not in self._records.unsure:
                    self._check_commit(ticket, partition, value, known)
                if value.offset < known.acknowledged.offset:
                    known.may_go_back = max(0, known.may_go_back - 1)
                known.acknowledged = value
                known.by = ticket.connection.identity
                known.generation_id = request.generation_id_or_member_epoch
                if value in known.pending:
                    del known.pending[: known.pending.index(value) + 1]
            elif code != ErrorCode.NOT_COORDINATOR and value in known.pending:
                known.pending.remove(value)  # refused: it must not be there after a restart
        return acknowledged

    def _check_commit(self, ticket: Ticket, partition: TopicPartition, value: Committed, known: _Offsets) -> None:
        goes_back = value.offset < known.acknowledged.offset and not known.may_go_back
        if ticket.request.generation_id_or_member_epoch < 0 and (ticket.connection.identity, partition) in self._stale:
            # A consumer outside of the group began at an offset from a deposed coordinator, and commits to its
            # successor: a commit without a generation is not fenced, nor is it in Kafka.
            known.late, goes_back = True, False
        if goes_back and not ticket.connection.is_closed:
            raise InvariantError(
                f"{ticket.request.member_id} moved the offset of {partition} back from {known.acknowledged.offset} "
                f"to {value.offset}"
            )
        known.late = known.late or goes_back
        handled, who = self.handled_to(partition), ticket.request.member_id
        if value.offset > handled and self._may_jump(partition, known):
            self._skip(partition, value.offset)
        elif value.offset > handled:
            raise InvariantError(f"{who} committed {value.offset} of {partition}, of which {handled} was not handled")

    def committed(self, partition: TopicPartition) -> int:
        """The acknowledged offset, -1 if there is none."""
        return self._of(partition).acknowledged.offset

    def loaded(self, partition: TopicPartition, value: Committed | None) -> None:
        """A coordinator has loaded its log, and found this: everything that was acknowledged must be in it."""
        known, found = self._of(partition), value or NOTHING
        may_be = [known.acknowledged[:3], *(each[:3] for each in known.pending)]
        if found[:3] not in may_be and partition not in self._records.unsure:
            raise InvariantError(
                f"after the restart {partition} is at {found}; {known.acknowledged} was acknowledged, "
                f"{known.pending} was under way"
            )
        if found.offset > self.handled_to(partition) and self._may_jump(partition, known):
            # A member began at the log's end, and committed that; the coordinator wrote it and handed over before it
            # answered. So this is the first sign of that commit.
            self._skip(partition, found.offset)
        known.acknowledged = found
        known.pending = [each for each in known.pending if each not in known.before_load]

    def being_loaded(self) -> None:
        """A coordinator begins to load the log: what it does not find is lost."""
        for known in self._offsets.values():
            known.before_load = list(known.pending)

    def vanished(self, partition: TopicPartition) -> None:
        """The offset was removed correctly: a member that reads the partition may be sent to its beginning."""
        known = self._of(partition)
        known.acknowledged, known.late = NOTHING, True
        known.pending.clear()

    def partitions(self) -> list[TopicPartition]:
        """All partitions with a committed offset."""
        return sorted(self._offsets)

    # --- the members' side -------------------------------------------------------------------------------------------

    def reported_by_a_stale_coordinator(self, identity: str, partition: TopicPartition) -> None:
        """A deposed coordinator returned the offset from which a member begins: that may be too low."""
        self._stale.add((identity, partition))

    def begin(self, member: Member, partitions: Iterable[TopicPartition]) -> None:
        """A member owns these from now on."""
        for partition in partitions:
            self._reading[member.name, partition] = _Reading(self.committed(partition))
            self._stale.discard((member.identity, partition))

    def end(self, member: Member, partitions: Iterable[TopicPartition] | None, *, in_good_order: bool) -> None:
        """A member no longer owns these (None: nothing at all). If in good order, everything that it handled is
        committed."""
        gone = None if partitions is None else set(partitions)
        for name, partition in list(self._reading):
            if name == member.name and (gone is None or partition in gone):
                reading = self._reading.pop((name, partition))
                known = self._of(partition)
                clean = in_good_order and partition not in self._records.unsure and not known.late
                if clean and max(known.acknowledged.offset, 0) < reading.next_offset:
                    raise InvariantError(
                        f"{member.name} gave {partition} up properly at {reading.next_offset}, but "
                        f"{known.acknowledged.offset} is committed"
                    )

    def sought(self, member: Member, partition: TopicPartition, offset: int) -> None:
        """A member continues from an offset, and may commit that."""
        known = self._of(partition)
        known.may_go_back += 1
        known.late = True
        self._reading[member.name, partition] = _Reading(-1, offset)

    def handed_out(self, member: Member, partition: TopicPartition, first: int, behind: int) -> None:
        """A member was handed records: `first` is the offset of the first, `behind` the position after them."""
        reading = self._reading.get((member.name, partition))
        if reading is None:
            raise InvariantError(f"{member.name} was handed records of {partition}, which it does not own")
        if partition not in self._records.unsure:
            if reading.next_offset < 0:
                self._check_begin(member, partition, reading, first)
            else:
                self._check_continues(member, partition, reading.next_offset, first)
            self._check_may_read(member, partition, first)
        reading.next_offset = behind

    def _check_begin(self, member: Member, partition: TopicPartition, reading: _Reading, first: int) -> None:
        known = self._of(partition)
        is_excused = known.late or (member.identity, partition) in self._stale
        if first < reading.at_least and not is_excused:
            raise InvariantError(
                f"{member.name} begins {partition} at {first}; {reading.at_least} was committed before it got it"
            )
        newest = max(0, known.acknowledged.offset, *(each.offset for each in known.pending), 0)
        expected = self._next(partition, newest)
        if first > expected and self._may_jump(partition, known):
            self._skip(partition, first)
        elif first > expected and not known.late:
            raise InvariantError(f"{member.name} begins {partition} at {first}; {known.acknowledged} is committed")

    def _may_jump(self, partition: TopicPartition, known: _Offsets) -> bool:
        """With `latest`: nothing is committed, or the committed offset is before the log's start."""
        return self._latest and known.acknowledged.offset < max(0, self._records.log_start(partition))

    def _check_continues(self, member: Member, partition: TopicPartition, expected: int, first: int) -> None:
        # The log may have begun there when the position turned out to be before it: it was reset, and records were
        # fetched from there. While they wait for the application to poll, retention continues.
        starts = (start for start in self._records.log_starts(partition) if start > expected)
        if first in (self._records.next_record(partition, offset) for offset in (expected, *starts)):
            return
        if self._latest and first > expected and expected < self._records.log_start(partition):
            self._skip(partition, first)
            return
        raise InvariantError(f"{member.name} was handed {first} of {partition} after {expected - 1}")

    def _check_may_read(self, member: Member, partition: TopicPartition, first: int) -> None:
        known = self._of(partition)
        may_know = self._ownership.is_of(member, known.generation_id) and known.by != member.identity
        may_know = may_know and known.generation_id >= 0
        is_excused = known.late or (member.identity, partition) in self._stale
        if first < known.acknowledged.offset and may_know and not is_excused:
            raise InvariantError(
                f"{member.name} (generation {member.generation_id}) was handed {first} of {partition}, though "
                f"{known.by} committed {known.acknowledged.offset} in generation {known.generation_id}"
            )

    # --- what was handled --------------------------------------------------------------------------------------------

    def handled(self, partition: TopicPartition, offsets: Iterable[int]) -> None:
        """A member has handled records."""
        done, frontier = self._handled.setdefault(partition, set()), self._handled_to.get(partition, 0)
        for offset in offsets:
            if offset >= frontier:
                done.add(offset)
        self._advance(partition, frontier)

    def _skip(self, partition: TopicPartition, offset: int) -> None:
        """Records before an offset need not be handled."""
        self._advance(partition, max(offset, self._handled_to.get(partition, 0)))

    def _next(self, partition: TopicPartition, offset: int) -> int:
        """The offset of the next record that can still be read."""
        return self._records.next_record(partition, max(offset, self._records.log_start(partition)))

    def _advance(self, partition: TopicPartition, frontier: int) -> None:
        done = self._handled.setdefault(partition, set())
        frontier = self._next(partition, frontier)
        while frontier in done:
            done.discard(frontier)
            frontier = self._next(partition, frontier + 1)
        self._handled_to[partition] = frontier

    def handled_to(self, partition: TopicPartition) -> int:
        """All records before this offset were handled, or no longer exist."""
        self._advance(partition, self._handled_to.get(partition, 0))
        return self._handled_to[partition]
