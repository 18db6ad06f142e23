"""The handout: records that a face has taken from the core and handed out to the caller, and that the caller has
handled.

Theory. A record passes three marks. It is *taken* from the core, whose position is then after it. It is
*handed out* when a poll or an iteration returns it to the caller. It is *handled* when the caller comes back for more,
or commits it. Only handled records are committed, so a crash, an exception or an interrupt loses no record:
unhandled records are read again.

A `_Run` holds the records of one partition in the order of their offsets, and two indexes that divide them:

    records   0 ......... handled ......... index ......... len
                handled   |   handed out    |   taken      |

Handing out moves `index` and nothing else, in one step. So an interrupt finds the record before or after the mark, and
records that never reached the caller are taken back by moving `index` to `handled` again. Tables are handed out as a
whole; only their first position is kept, to which the partition returns.

A run is void once its partition has been given up, even if the partition has come back since
(`PartitionState.assigned`), or once the user has called `seek`. It stays valid if the broker has since lost its
offsets.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from muster.client.core.subscription_state import PartitionState, SubscriptionState
from muster.model import ConsumerRecord, OffsetAndMetadata, TopicPartition

Records = dict[TopicPartition, list[ConsumerRecord]]


class _Run:
    """Records of one partition, taken from the core together."""

    __slots__ = ("handled", "index", "partition", "records", "size", "state")

    def __init__(self, partition: TopicPartition, state: PartitionState, records: list[ConsumerRecord]) -> None:
        self.partition = partition
        self.state = state
        self.records = records
        self.size = len(records)
        self.index = 0
        self.handled = 0

    @property
    def has_more(self) -> bool:
        """Whether the run has more to hand out now."""
        state = self.state
        return self.index < self.size and state.assigned and not state.paused and not state.pending_revocation

    def position_before(self, index: int) -> OffsetAndMetadata:
        """The position before one of the run's records."""
        before = self.records[max(0, index - 1)]
        return OffsetAndMetadata(self.records[index].offset, before.leader_epoch)


class Handout:
    """The records and tables between a core and the caller of a face."""

    def __init__(self, subscription: SubscriptionState) -> None:
        self._subscription = subscription
        self._runs: list[_Run] = []
        self._current: _Run | None = None
        """The run from which iteration hands out the next record."""
        self._tables: dict[TopicPartition, tuple[PartitionState, OffsetAndMetadata]] = {}
        """Where the tables that were handed out but not yet handled begin."""
        self._last: dict[TopicPartition, PartitionState] = {}
        """The partitions of what was handed out last."""
        self._ended = False

    # --- taking and handing out --------------------------------------------------------------------------------------

    def take(self, records: Mapping[TopicPartition, list[ConsumerRecord]]) -> None:
        """Take the records that the core has collected."""
        for partition, found in records.items():
            self._runs.append(_Run(partition, self._subscription.state(partition), found))

    @property
    def has_records(self) -> bool:
        """Whether there is something to hand out now."""
        return any(run.has_more for run in self._runs)

    def hand_out(self, limit: int) -> Records:
        """Up to `limit` records, for a poll."""
        records: Records = {}
        self._last = {}
        for run in self._runs:
            if limit > 0 and run.has_more:
                found = run.records[run.index : run.index + limit]
                records.setdefault(run.partition, []).extend(found)
                self._last[run.partition] = run.state
                run.index += len(found)
                limit -= len(found)
        return records

    def next(self) -> ConsumerRecord | None:
        """The next record, for iteration; None when all are handed out. The record before it counts as handled.

        The interpreter checks for signals at calls, at backward jumps and at the start of functions. None of these
        follows the move of `index`: once it has moved, the caller gets the record.
        """
        run = self._current
        if run is not None:
            index, state = run.index, run.state
            if index < run.size and state.assigned and not state.paused and not state.pending_revocation:
                record = run.records[index]
                run.handled = index
                run.index = index + 1
                return record
        return self._next_of_another()

    def _next_of_another(self) -> ConsumerRecord | None:
        run = self._first()
        if run is None:
            return None
        record = run.records[run.index]
        run.index += 1
        return record

    def _first(self) -> _Run | None:
        """The run that iteration continues with, once everything handed out is handled."""
        self.mark_all_handled()
        if self._ended:
            return None
        for run in self._runs:
            if run.has_more:
                self._current = run
                return run
        return None

    def hand_out_tables(self, starts: Mapping[TopicPartition, int]) -> None:
        """Note where the tables being handed out begin."""
        self._last = {partition: self._subscription.state(partition) for partition in starts}
        for partition, offset in starts.items():
            self._tables[partition] = self._last[partition], OffsetAndMetadata(offset)

    def is_kept(self, partition: TopicPartition) -> bool:
        """Whether this member has had the partition ever since its records were handed out last."""
        state = self._last.get(partition)
        return state is not None and state.assigned

    # --- the caller's actions ----------------------------------------------------------------------------------------

    def mark_all_handled(self) -> None:
        """The caller wants more: everything handed out is handled."""
        self._current = None
        for run in self._runs:
            run.handled = run.index
        self._runs = [run for run in self._runs if run.index < run.size and run.state.assigned]
        self._tables = {}

    def handled_up_to(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """The caller commits these offsets: records handed out before them are handled."""
        for run in self._runs:
            end = offsets.get(run.partition)
            while end is not None and run.handled < run.index and run.records[run.handled].offset < end.offset:
                run.handled += 1
        for partition, (state, start) in self._tables.items():
            end = offsets.get(partition)
            if end is not None and start.offset < end.offset <= state.position:
                self._tables[partition] = state, end

    def take_back(self) -> None:
        """The caller was interrupted before it got the last records: hand them out again."""
        self._current = None
        for run in self._runs:
            run.index = run.handled
        for partition, (state, start) in self._tables.items():
            if state.assigned:
                self._subscription.seek(partition, start)
        self._tables = {}

    def drop(self, partitions: Iterable[TopicPartition]) -> None:
        """The user has chosen another position for these partitions."""
        gone = set(partitions)
        self._current = None
        self._runs = [run for run in self._runs if run.partition not in gone]
        self._tables = {partition: found for partition, found in self._tables.items() if partition not in gone}

    def give_back(self) -> None:
        """Move positions back to the records that were taken but not handed out, so that they can be fetched again."""
        for partition, position in self._positions(handled=False).items():
            self._subscription.seek(partition, position)
        self._current = None
        for run in self._runs:
            run.records = run.records[: run.index]
            run.size = run.index

    def end(self, *, handled: bool) -> None:
        """Stop handing out. The last records handed out count as handled, or another consumer reads them again."""
        self._ended = True
        if handled:
            self.mark_all_handled()
        else:
            self.take_back()

    def clear(self) -> None:
        """Forget everything."""
        self._current = None
        self._runs = []
        self._tables = {}

    # --- positions of the user ---------------------------------------------------------------------------------------

    def position(self, partition: TopicPartition) -> int | None:
        """The offset of the next record to hand out; None if the core knows it."""
        found = self._positions(handled=False).get(partition)
        return None if found is None else found.offset

    def count(self, partition: TopicPartition) -> int:
        """How many records of a partition were taken but not handed out."""
        return sum(run.size - run.index for run in self._valid() if run.partition == partition)

    def unhandled(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """The offsets to commit that differ from the core's positions."""
        tables = {partition: start for partition, (state, start) in self._tables.items() if state.assigned}
        positions = self._positions(handled=True) | tables
        consumed = self._subscription.all_consumed()
        # The position is after what was taken, unless the log has lost its end.
        return {p: at for p, at in positions.items() if p not in consumed or at.offset < consumed[p].offset}

    def _positions(self, *, handled: bool) -> dict[TopicPartition, OffsetAndMetadata]:
        positions: dict[TopicPartition, OffsetAndMetadata] = {}
        for run in self._valid():
            index = run.handled if handled else run.index
            if index < run.size:
                positions.setdefault(run.partition, run.position_before(index))
        return positions

    def _valid(self) -> Iterable[_Run]:
        return [run for run in self._runs if run.state.assigned]
