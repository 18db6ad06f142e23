"""Looks up where the logs of a query's partitions begin and end, and judges its positions by that.

Each partition is asked about by itself: one without a leader, or of a deleted topic, holds up no other partition. One
warning says that its records wait.

A log that begins behind a position is a loss at once. A log that ends before a position is looked at again first, as
Spark's own source does: a newly elected leader may not know its end yet, and with `read_committed` the end is the last
stable offset, which the commit of a read_uncommitted consumer may have passed. A log that ends before the position
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
"""After so long without an answer a query does not wait for a partition."""

HELD_UP_WARNING_MS = 10_000
STARTS_EVERY_MS = 10_000
"""How often the beginnings of logs are looked up again. Tasks find out by themselves which records are gone."""

DOUBT_TRIES, DOUBT_EVERY_MS = 3, 1_000


class Verdict(Enum):
    """Whether a position is valid, and why not (rule 13 of claims.py)."""

    GOOD = "good"
    GONE = "gone"
    """Records from here to the log's start were deleted."""
    BEYOND = "beyond"
    """The log ends before: it was truncated, or created again without topic ids, or the commit was never right."""


def judge(position: int, log_start: int, log_end: int) -> Verdict:
    """Whether reading can go on at a position.

    | position                    | verdict | with failOnDataLoss=false goes on at |
    |-----------------------------|---------|--------------------------------------|
    | log start <= p <= log end   | good    | p                                    |
    | p < log start               | gone    | log start                            |
    | p > log end                 | beyond  | log start                            |
    """
    if position < log_start:
        return Verdict.GONE
    return Verdict.BEYOND if position > log_end else Verdict.GOOD


@dataclass(frozen=True, slots=True)
class Answer:
    """An offset, the ownership under which it was asked for, and when."""

    offset: int
    epoch: int | None
    asked_at: int


class Lookup:
    """One kind of ListOffsets lookup; each partition's answer is taken when it comes."""

    def __init__(self, offsets: OffsetLookup, claims: QueryClaims, isolation_level: int | None = None) -> None:
        self._offsets = offsets
        self._claims = claims
        self._isolation_level = isolation_level
        self._queries: list[OffsetQuery] = []
        self._asked: dict[TopicPartition, tuple[int | None, int]] = {}
        self.error: MusterError | None = None
        self.without_record: set[TopicPartition] = set()
        """Partitions that have no record of the time asked for, or later. The caller clears it."""

    def ask(self, timestamps: Mapping[TopicPartition, int], now: int) -> None:
        """Look these up, except partitions that are being looked up already."""
        new = {partition: when for partition, when in timestamps.items() if partition not in self._asked}
        if new:
            self._asked |= {partition: (self._claims.epoch(partition), now) for partition in new}
            self._queries.append(self._offsets.query(new, self._isolation_level))

    def under_way(self, partition: TopicPartition) -> bool:
        """Whether an answer is awaited."""
        return partition in self._asked

    def asked_before(self, when: int) -> list[TopicPartition]:
        """Partitions that were looked up before a time, without an answer yet."""
        return sorted(partition for partition, (_, asked_at) in self._asked.items() if asked_at <= when)

    def oldest(self) -> int | None:
        """When the oldest lookup without an answer was made."""
        return min((asked_at for _, asked_at in self._asked.values()), default=None)

    def take(self) -> dict[TopicPartition, Answer]:
        """The answers that have come, for partitions that were owned without a break since they were looked up."""
        found: dict[TopicPartition, Answer] = {}
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
                    found[partition] = Answer(answer.offset, epoch, asked_at)
            query.results.clear()
            if query.done:
                self._queries.remove(query)
                self.error = self.error or query.error
                for partition in query.open:
                    self._asked.pop(partition, None)
        return found


@dataclass(slots=True)
class _Doubt:
    """An end that lies before the position: how often it was seen, and when it is looked at next."""

    epoch: int | None
    since: int
    seen: int = 0
    next_at: int = 0


class Bounds:
    """The beginnings and ends of the logs that a query reads.

    An end is the high watermark, or the last stable offset for `read_committed`.
    """

    def __init__(self, offsets: OffsetLookup, claims: QueryClaims, metadata: ClusterMetadata) -> None:
        self._claims = claims
        self._metadata = metadata
        self.ends: dict[TopicPartition, Answer] = {}
        self.notes: list[Note] = []
        self.error: MusterError | None = None
        self._starts: dict[TopicPartition, Answer] = {}
        self._ask_ends = Lookup(offsets, claims)
        self._ask_starts = Lookup(offsets, claims)
        self._ask_again = Lookup(offsets, claims, READ_UNCOMMITTED)
        self._wanted_at = -1
        self._doubts: dict[TopicPartition, _Doubt] = {}
        self._cleared: dict[TopicPartition, Answer] = {}
        self._warned: set[TopicPartition] = set()

    # --- what the face asks ------------------------------------------------------------------------------------------

    def want(self, now: int) -> None:
        """Have ends that were looked up before now looked up again."""
        self._wanted_at = now

    def missing(self, since: int) -> list[TopicPartition]:
        """Partitions with a position, but without an end that was looked up since that time, or without a start."""
        return [partition for partition in self._claims.positions() if not self._heard(partition, since)]

    def held_up(self, now: int) -> set[TopicPartition]:
        """Partitions for which a query does not wait."""
        before = now - HELD_UP_MS
        return {p for lookup in (self._ask_ends, self._ask_starts) for p in lookup.asked_before(before)}

    def fresh(self, since: int, now: int) -> bool:
        """Whether all answers have come for which a query waits."""
        missing = self.missing(since)
        return not missing or self.held_up(now).issuperset(missing)

    @property
    def in_doubt(self) -> list[TopicPartition]:
        """Partitions whose log seems to end before their position."""
        return sorted(self._doubts)

    def offsets(self) -> dict[TopicPartition, int]:
        """The ends of the owned partitions, as far as they are known."""
        return {p: end.offset for p, end in self.ends.items() if end.epoch == self._claims.epoch(p)}

    def _heard(self, partition: TopicPartition, since: int) -> bool:
        end = self._current(self.ends, partition)
        return end is not None and end.asked_at >= since and self._current(self._starts, partition) is not None

    def _current(self, heard: dict[TopicPartition, Answer], partition: TopicPartition) -> Answer | None:
        found = heard.get(partition)
        return found if found is not None and found.epoch == self._claims.epoch(partition) else None

    # --- turning -----------------------------------------------------------------------------------------------------

    def poll(self, now: int) -> None:
        """Take the answers, judge positions by them, and look up what is due."""
        ends = self._ask_ends.take()
        self.ends |= ends
        self._starts |= self._ask_starts.take()
        self._tell_again(ends)
        self._look_again(now)
        if self._claims.batch_state is BatchState.NONE:
            self._judge(now)
        self._ask(now)
        self._warn(now)
        for lookup in (self._ask_ends, self._ask_starts, self._ask_again):
            self.error = self.error or lookup.error

    def next_deadline(self, now: int) -> int | None:
        """When `poll` has something to do, if nothing arrives before."""
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

    # --- positions that mean nothing (rule 12) -----------------------------------------------------------------------

    def _judge(self, now: int) -> None:
        for partition, position in self._claims.positions().items():
            start, end = self._current(self._starts, partition), self._current(self.ends, partition)
            if start is None or end is None:
                continue
            verdict = judge(position, start.offset, end.offset)
            if verdict is Verdict.GONE:
                gone = f"offsets {position} to {start.offset - 1} of {partition} are gone"
                self._claims.lost(partition, start.offset, f"{gone}: {LOG_BEGINS} {start.offset} now")
            elif verdict is Verdict.BEYOND and partition not in self._doubts and self._cleared.get(partition) != end:
                self._doubts[partition] = _Doubt(end.epoch, now, next_at=now)
                self._metadata.request_update(now)  # the topic may have been created again

    def _look_again(self, now: int) -> None:
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

    def _weigh(self, partition: TopicPartition, position: int, doubt: _Doubt, end: Answer, now: int) -> None:
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
            f"{partition} ends at offset {end.offset}, and reading was to go on at {position}: its log was cut off, "
            "its topic was deleted and created again, or the group's offset was set beyond the end",
        )

    # --- partitions that are held up ---------------------------------------------------------------------------------

    def _warn(self, now: int) -> None:
        late = set(self._ask_ends.asked_before(now - HELD_UP_WARNING_MS)) - self._warned
        if late:
            self._warned |= late
            why = "; ".join(f"{partition} {self._why(partition)}" for partition in sorted(late))
            self.notes.append(
                Note(WARNING, f"{why}. What it holds waits until that is mended; other partitions are read on")
            )

    def _why(self, partition: TopicPartition) -> str:
        if self._metadata.topic_error(partition.topic) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            return "does not exist any more"
        return "has no leader" if self._metadata.leader(partition) is None else "does not say where it ends"

    def _tell_again(self, ends: Mapping[TopicPartition, Answer]) -> None:
        back = self._warned & ends.keys()
        if back:
            self._warned -= back
            self.notes.append(Note(INFO, f"{', '.join(map(str, sorted(back)))} can be read again"))
