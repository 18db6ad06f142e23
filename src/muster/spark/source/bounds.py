"""Looks up where the logs of a query's partitions begin and end, and judges positions by that.

Each partition is looked up independently: one without a leader, or of a deleted topic, holds up no other. A single
warning says that its records wait.

A log that begins after a position is a loss immediately. A log that ends before a position is looked up again first, as
in Spark's own source: a newly elected leader may not know its end yet, and with `read_committed` the end is the last
stable offset, which a read_uncommitted consumer's commit may have passed. A log that ends before the position
every time is a loss (`judge`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from muster.client.core.consume.offsets import OffsetLookup, OffsetQuery
from muster.client.core.events import INFO, WARNING, Note
from muster.client.core.metadata import ClusterMetadata
from muster.client.plain.fetch import LOG_BEGINS
from muster.errors import ErrorCode, MusterError
from muster.model import TopicPartition
from muster.protocol.api import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, READ_UNCOMMITTED
from muster.spark.source.claims import BatchState, QueryClaims

HELD_UP_MS = 2_000
"""After this long without an answer, a query stops waiting for a partition."""

HELD_UP_WARNING_MS = 10_000
STARTS_EVERY_MS = 10_000
"""How often log start offsets are looked up again. Tasks notice on their own which records are gone."""

DOUBT_TRIES, DOUBT_EVERY_MS = 3, 1_000


class PositionValidity(Enum):
    """Whether a position is valid, and why not (rule 13 of claims.py)."""

    GOOD = "good"
    GONE = "gone"
    """Records from here to the log's start were deleted."""
    BEYOND = "beyond"
    """The log ends earlier: it was truncated, or recreated without topic IDs, or the commit was never valid."""


def judge(position: int, log_start: int, log_end: int) -> PositionValidity:
    """Whether reading can continue at a position.

    | position                    | verdict | failOnDataLoss=false continues at    |
    |-----------------------------|---------|--------------------------------------|
    | log start <= p <= log end   | good    | p                                    |
    | p < log start               | gone    | log start                            |
    | p > log end                 | beyond  | log start                            |
    """
    if position < log_start:
        return PositionValidity.GONE
    return PositionValidity.BEYOND if position > log_end else PositionValidity.GOOD


@dataclass(frozen=True, slots=True)
class OffsetAnswer:
    """An offset, the epoch under which it was looked up, and when."""

    offset: int
    epoch: int | None
    asked_at: int


class Lookup:
    """One kind of ListOffsets lookup; each partition's answer is used as soon as it arrives."""

    def __init__(self, offsets: OffsetLookup, claims: QueryClaims, isolation_level: int | None = None) -> None:
        self._offsets = offsets
        self._claims = claims
        self._isolation_level = isolation_level
        self._queries: list[OffsetQuery] = []
        self._asked: dict[TopicPartition, tuple[int | None, int]] = {}
        self.error: MusterError | None = None
        self.without_record: set[TopicPartition] = set()
        """Partitions without a record at or after the requested time. The caller clears it."""

    def ask(self, timestamps: Mapping[TopicPartition, int], now: int) -> None:
        """Look these up, except those already being looked up."""
        new = {partition: when for partition, when in timestamps.items() if partition not in self._asked}
        if new:
            self._asked |= {partition: (self._claims.epoch(partition), now) for partition in new}
            self._queries.append(self._offsets.query(new, self._isolation_level))

    def under_way(self, partition: TopicPartition) -> bool:
        """Whether a lookup is in flight."""
        return partition in self._asked

    def asked_before(self, when: int) -> list[TopicPartition]:
        """Partitions looked up before that time and not answered yet."""
        return sorted(partition for partition, (_, asked_at) in self._asked.items() if asked_at <= when)

    def oldest(self) -> int | None:
        """When the oldest unanswered lookup was made."""
        return min((asked_at for _, asked_at in self._asked.values()), default=None)

    def take(self) -> dict[TopicPartition, OffsetAnswer]:
        """The answers that have arrived, for partitions owned without interruption since the lookup."""
        found: dict[TopicPartition, OffsetAnswer] = {}
        for query in list(self._queries):
            for partition in [p for p in query.open if self._claims.epoch(p) is None]:
                query.open.pop(partition)
                self._asked.pop(partition, None)
            for partition, answer in query.results.items():
                epoch, asked_at = self._asked.pop(partition, (None, 0))
                if epoch is None or epoch != self._claims.epoch(partition):
                    continue
                if answer is None:
                    self.without_record.add(partition)
                else:
                    found[partition] = OffsetAnswer(answer.offset, epoch, asked_at)
            query.results.clear()
            if query.done:
                self._queries.remove(query)
                self.error = self.error or query.error
                for partition in query.open:
                    self._asked.pop(partition, None)
        return found


@dataclass(slots=True)
class _Doubt:
    """An end before the position: how often it was seen, and when it is looked up next."""

    epoch: int | None
    since: int
    seen: int = 0
    next_at: int = 0


class PartitionBounds:
    """The start and end offsets of the logs that a query reads.

    An end is the high watermark, or the last stable offset for `read_committed`.
    """

    def __init__(self, offsets: OffsetLookup, claims: QueryClaims, metadata: ClusterMetadata) -> None:
        self._claims = claims
        self._metadata = metadata
        self.ends: dict[TopicPartition, OffsetAnswer] = {}
        self.notes: list[Note] = []
        self.error: MusterError | None = None
        self._starts: dict[TopicPartition, OffsetAnswer] = {}
        self._ask_ends = Lookup(offsets, claims)
        self._ask_starts = Lookup(offsets, claims)
        self._ask_again = Lookup(offsets, claims, READ_UNCOMMITTED)
        self._wanted_at = -1
        self._doubts: dict[TopicPartition, _Doubt] = {}
        self._cleared: dict[TopicPartition, OffsetAnswer] = {}
        self._warned: set[TopicPartition] = set()

    # --- for the member ----------------------------------------------------------------------------------------------

    def want(self, now: int) -> None:
        """Look up ends again that were looked up before now."""
        self._wanted_at = now

    def missing(self, since: int) -> list[TopicPartition]:
        """Partitions with a position, but without a start, or without an end looked up since that time."""
        return [partition for partition in self._claims.positions() if not self._is_known(partition, since)]

    def held_up(self, now: int) -> set[TopicPartition]:
        """Partitions that a query does not wait for."""
        before = now - HELD_UP_MS
        return {p for lookup in (self._ask_ends, self._ask_starts) for p in lookup.asked_before(before)}

    def fresh(self, since: int, now: int) -> bool:
        """Whether all answers that a query waits for have arrived."""
        missing = self.missing(since)
        return not missing or self.held_up(now).issuperset(missing)

    @property
    def in_doubt(self) -> list[TopicPartition]:
        """Partitions whose log seems to end before the position."""
        return sorted(self._doubts)

    def offsets(self) -> dict[TopicPartition, int]:
        """The known ends of the owned partitions."""
        return {p: end.offset for p, end in self.ends.items() if end.epoch == self._claims.epoch(p)}

    def _is_known(self, partition: TopicPartition, since: int) -> bool:
        end = self._current(self.ends, partition)
        return end is not None and end.asked_at >= since and self._current(self._starts, partition) is not None

    def _current(self, answers: dict[TopicPartition, OffsetAnswer], partition: TopicPartition) -> OffsetAnswer | None:
        found = answers.get(partition)
        return found if found is not None and found.epoch == self._claims.epoch(partition) else None

    # --- polling -----------------------------------------------------------------------------------------------------

    def poll(self, now: int) -> None:
        """Process answers, judge positions by them, and look up what is due."""
        ends = self._ask_ends.take()
        self.ends |= ends
        self._starts |= self._ask_starts.take()
        self._note_readable(ends)
        self._settle_doubts(now)
        if self._claims.batch_state is BatchState.NONE:
            self._judge(now)
        self._ask(now)
        self._warn(now)
        for lookup in (self._ask_ends, self._ask_starts, self._ask_again):
            self.error = self.error or lookup.error

    def next_deadline(self, now: int) -> int | None:
        """When to poll again if nothing arrives earlier."""
        times = [doubt.next_at for doubt in self._doubts.values()]
        for lookup in (self._ask_ends, self._ask_starts):
            oldest = lookup.oldest()
            if oldest is not None:
                times += [oldest + HELD_UP_MS, oldest + HELD_UP_WARNING_MS]
        return min((time for time in times if time > now), default=None)

    def _ask(self, now: int) -> None:
        if self._wanted_at < 0:
            return
        ends: dict[TopicPartition, int] = {}
        starts: dict[TopicPartition, int] = {}
        for partition in self._claims.positions():
            end, start = self._current(self.ends, partition), self._current(self._starts, partition)
            if end is None or end.asked_at < self._wanted_at:
                ends[partition] = LATEST_TIMESTAMP
            doubt = self._doubts.get(partition)
            since = self._wanted_at - STARTS_EVERY_MS if doubt is None else doubt.since
            if start is None or start.asked_at < since:
                starts[partition] = EARLIEST_TIMESTAMP
        self._ask_ends.ask(ends, now)
        self._ask_starts.ask(starts, now)

    # --- invalid positions (rule 13) ---------------------------------------------------------------------------------

    def _judge(self, now: int) -> None:
        for partition, position in self._claims.positions().items():
            start, end = self._current(self._starts, partition), self._current(self.ends, partition)
            if start is None or end is None:
                continue
            state = judge(position, start.offset, end.offset)
            if state is PositionValidity.GONE:
                gone = f"offsets {position} to {start.offset - 1} of {partition} are gone"
                self._claims.lost(partition, start.offset, f"{gone}: {LOG_BEGINS} {start.offset} now")
            elif (
                state is PositionValidity.BEYOND
                and partition not in self._doubts
                and self._cleared.get(partition) != end
            ):
                self._doubts[partition] = _Doubt(end.epoch, now, next_at=now)
                self._metadata.request_update(now)  # the topic may have been recreated

    def _settle_doubts(self, now: int) -> None:
        answers = self._ask_again.take()
        positions = self._claims.positions() if self._doubts else {}
        for partition, doubt in list(self._doubts.items()):
            position = positions.get(partition)
            if position is None or doubt.epoch != self._claims.epoch(partition):
                del self._doubts[partition]
                continue
            answer = answers.get(partition)
            if answer is not None:
                self._weigh(partition, position, doubt, answer, now)
            elif doubt.next_at <= now:
                self._ask_again.ask({partition: LATEST_TIMESTAMP}, now)
                doubt.next_at = now + DOUBT_EVERY_MS

    def _weigh(self, partition: TopicPartition, position: int, doubt: _Doubt, end: OffsetAnswer, now: int) -> None:
        if end.offset >= position:
            del self._doubts[partition]
            self._cleared[partition] = self.ends[partition]
            return
        doubt.seen += 1
        start = self._current(self._starts, partition)
        if doubt.seen < DOUBT_TRIES or start is None or start.asked_at < doubt.since:
            return
        del self._doubts[partition]
        self._claims.lost(
            partition,
            start.offset,
            f"{partition} ends at offset {end.offset}, but reading is at {position}: its log was truncated, "
            "its topic was deleted and recreated, or the group's offset was set beyond the end",
        )

    # --- held-up partitions ------------------------------------------------------------------------------------------

    def _warn(self, now: int) -> None:
        late = set(self._ask_ends.asked_before(now - HELD_UP_WARNING_MS)) - self._warned
        if late:
            self._warned |= late
            why = "; ".join(f"{partition} {self._why(partition)}" for partition in sorted(late))
            self.notes.append(Note(WARNING, f"{why}. Its records wait until that is fixed; other partitions are read"))

    def _why(self, partition: TopicPartition) -> str:
        if self._metadata.topic_error(partition.topic) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            return "no longer exists"
        return "has no leader" if self._metadata.leader(partition) is None else "does not answer with its end offset"

    def _note_readable(self, ends: Mapping[TopicPartition, OffsetAnswer]) -> None:
        back = self._warned & ends.keys()
        if back:
            self._warned -= back
            self.notes.append(Note(INFO, f"{', '.join(map(str, sorted(back)))} can be read again"))
