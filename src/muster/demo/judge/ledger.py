"""The demo's ledger: which member handled which record, and the judgement on that.

At-least-once delivery promises that nothing is lost, and limits where duplicates come from. A member writes a line for
each record before it commits the record's offset, and a line for each acknowledged commit. So its file says, for each
time that it owned a partition, what it had handled and how much of that was committed when the ownership ended. Records
after that mark may be handled again by the next owner. There are three windows in which duplicates are allowed:

* killed: the member was killed; the records that it had handled since its last acknowledged commit;
* broker down: the ownership ended before the commit was acknowledged, because the broker was down;
* Spark batch: Spark was forced to give up a partition while a batch was reading it; at most that one batch.

A duplicate outside them is an error. So is a record that was never handled, and so are records of a partition that were
handled out of order within one ownership.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class OwnershipEnd(StrEnum):
    """How an ownership ended."""

    OPEN = "open"
    """The member was stopped at the end of the run, or is still running."""
    REVOKED = "revoked"
    LOST = "lost"
    KILLED = "killed"


class DuplicateWindow(StrEnum):
    """Where a duplicate may come from."""

    KILLED = "handled by the killed member since its last commit"
    BROKER_DOWN = "handled while the broker could not acknowledge the commit"
    SPARK_BATCH = "one Spark batch of a partition that was lost by force"


@dataclass(slots=True)
class Ownership:
    """One member's ownership of one partition, from assignment to its end: the offsets it handled, in order.

    `committed` is the offset after the last record whose commit was acknowledged, -1 if none was. `commit_failed`
    says that the last commit was not acknowledged.
    """

    member: str
    partition: int
    offsets: list[int] = field(default_factory=list)
    committed: int = -1
    commit_failed: bool = False
    ending: OwnershipEnd = OwnershipEnd.OPEN

    def in_window(self, offset: int) -> DuplicateWindow | None:
        """The window that allows another member to handle this offset again; None if there is none."""
        if offset < self.committed:
            return None
        if self.ending is OwnershipEnd.KILLED:
            return DuplicateWindow.KILLED
        return DuplicateWindow.BROKER_DOWN if self.commit_failed else None


@dataclass(frozen=True, slots=True)
class BatchRead:
    """What one Spark batch read from one partition: `start` is inclusive, `end` exclusive."""

    batch: int
    partition: int
    start: int
    end: int


@dataclass(slots=True)
class Judgement:
    """What the ledger shows."""

    produced: int
    handled: int
    distinct: int
    lost: list[tuple[int, int]]
    duplicates: dict[DuplicateWindow, int]
    unexplained: list[tuple[int, int]]
    disorder: list[str]

    @property
    def duplicate_count(self) -> int:
        """How often records were handled again."""
        return self.handled - self.distinct

    @property
    def ok(self) -> bool:
        """Whether nothing was lost or out of order, and duplicates occur only where they are allowed."""
        return not self.lost and not self.unexplained and not self.disorder


def read_member(member: str, lines: Iterable[str], *, killed: bool = False) -> list[Ownership]:
    """A member's ownerships from the lines of its file.

    The torn last line of a killed member is left out: its record was not written, so its offset was not committed.
    """
    open_now: dict[int, Ownership] = {}
    closed: list[Ownership] = []
    for line in lines:
        entry = _entry(line, member, torn_is_fine=killed)
        if entry is None:
            break
        if "offset" in entry:
            _handle(open_now, member, entry)
        else:
            _note(open_now, closed, member, entry)
    for ownership in open_now.values():
        ownership.ending = OwnershipEnd.KILLED if killed else OwnershipEnd.OPEN
        closed.append(ownership)
    return closed


def _entry(line: str, member: str, *, torn_is_fine: bool) -> dict[str, Any] | None:
    if line.endswith("\n"):
        try:
            entry: dict[str, Any] = json.loads(line)
            return entry
        except ValueError:
            pass
    if torn_is_fine:
        return None
    raise ValueError(f"the file of {member} has a truncated line: {line[:80]!r}")


def _handle(open_now: dict[int, Ownership], member: str, entry: Mapping[str, Any]) -> None:
    partition = entry["partition"]
    ownership = open_now.get(partition)
    if ownership is None:
        # A record of a partition that was never assigned to the member: kept as a separate ownership, and judged.
        ownership = open_now[partition] = Ownership(member, partition)
    ownership.offsets.append(entry["offset"])


def _note(open_now: dict[int, Ownership], closed: list[Ownership], member: str, entry: Mapping[str, Any]) -> None:
    match entry["event"]:
        case "assigned":
            for partition in entry["partitions"]:
                open_now.setdefault(partition, Ownership(member, partition))
        case "revoked" | "lost" as how:
            for partition in open_now.keys() & set(entry["partitions"]):
                ownership = open_now.pop(partition)
                ownership.ending = OwnershipEnd(how)
                closed.append(ownership)
        case "committed" | "commit_failed" as how:
            for partition in open_now.keys() & set(map(int, entry["offsets"])):
                _settle(open_now[partition], entry["offsets"][str(partition)], acknowledged=how == "committed")


def _settle(ownership: Ownership, offset: int, *, acknowledged: bool) -> None:
    ownership.commit_failed = not acknowledged
    if acknowledged:
        ownership.committed = max(ownership.committed, offset)


def read_claims(batches: Mapping[int, str], topic: str) -> list[BatchRead]:
    """The claims of a Spark query from its offset log: batch number -> the source's line of that batch."""
    claims: list[BatchRead] = []
    for batch in sorted(batches):
        ranges = json.loads(batches[batch])["claims"].get(topic, {})
        claims += [BatchRead(batch, int(p), start, end) for p, (start, end) in sorted(ranges.items()) if end > start]
    return claims


def suspects(claims: Sequence[BatchRead]) -> dict[int, list[BatchRead]]:
    """For each partition the batches that may have been handled again by the next owner.

    These are the last ones before the partition went to another member: the next claim does not start where this one
    ends, or none follows.
    """
    by_partition: dict[int, list[BatchRead]] = defaultdict(list)
    for claim in claims:
        by_partition[claim.partition].append(claim)
    found: dict[int, list[BatchRead]] = {}
    for partition, own in by_partition.items():
        following = [*own[1:], None]
        found[partition] = [
            claim for claim, after in zip(own, following, strict=True) if after is None or after.start != claim.end
        ]
    return found


def judge(
    ends: Mapping[int, int],
    ownerships: Sequence[Ownership],
    claims: Sequence[BatchRead],
    spark_rows: Mapping[int, Sequence[int]],
) -> Judgement:
    """Compare what was handled with what was produced.

    Args:
        ends: for each partition the offset after its last record; the first offset is 0.
        ownerships: what the Python members' files say.
        claims: the batches of the Spark query.
        spark_rows: for each partition the offsets of the rows in Spark's output, in any order.
    """
    times: Counter[tuple[int, int]] = Counter()
    for ownership in ownerships:
        times.update((ownership.partition, offset) for offset in ownership.offsets)
    for partition, offsets in spark_rows.items():
        times.update((partition, offset) for offset in offsets)
    expected = {(partition, offset) for partition, end in ends.items() for offset in range(end)}
    excused, unexplained = _excuse(times, ownerships, suspects(claims))
    return Judgement(
        produced=len(expected),
        handled=times.total(),
        distinct=len(times.keys() & expected),
        lost=sorted(expected - times.keys()),
        duplicates=excused,
        unexplained=sorted([*unexplained, *(times.keys() - expected)]),
        disorder=[*_disorder(ownerships), *_claim_disorder(claims), *_rows_outside(claims, spark_rows)],
    )


def _excuse(
    times: Counter[tuple[int, int]], ownerships: Sequence[Ownership], batches: Mapping[int, Sequence[BatchRead]]
) -> tuple[dict[DuplicateWindow, int], list[tuple[int, int]]]:
    """Find the window of each repetition: a record is handled once, and every further time needs an excuse."""
    repeated = {key for key, count in times.items() if count > 1}
    excuses: dict[tuple[int, int], list[DuplicateWindow]] = defaultdict(list)
    for ownership in ownerships:
        for offset in ownership.offsets:
            key = (ownership.partition, offset)
            window = ownership.in_window(offset) if key in repeated else None
            if window is not None:
                excuses[key].append(window)
    for partition, claims in batches.items():
        for claim in claims:
            for offset in range(claim.start, claim.end):
                if (partition, offset) in repeated:
                    excuses[partition, offset].append(DuplicateWindow.SPARK_BATCH)
    counted: Counter[DuplicateWindow] = Counter()
    unexplained: list[tuple[int, int]] = []
    for key in repeated:
        again = times[key] - 1
        used = excuses[key][:again]
        counted.update(used)
        unexplained += [key] * (again - len(used))
    return {window: counted[window] for window in DuplicateWindow}, unexplained


def _disorder(ownerships: Sequence[Ownership]) -> list[str]:
    found = []
    for own in ownerships:
        for before, after in zip(own.offsets, own.offsets[1:], strict=False):
            if after <= before:
                found.append(f"{own.member} handled {own.partition}:{after} after {own.partition}:{before}")
    return found


def _claim_disorder(claims: Sequence[BatchRead]) -> list[str]:
    found = []
    last: dict[int, BatchRead] = {}
    for claim in claims:
        before = last.get(claim.partition)
        if before is not None and claim.start < before.start:
            found.append(f"Spark went back from {before.start} to {claim.start} in partition {claim.partition}")
        last[claim.partition] = claim
    return found


def _rows_outside(claims: Sequence[BatchRead], spark_rows: Mapping[int, Sequence[int]]) -> list[str]:
    """Compare Spark's output with its claims: each claimed record once, and nothing else (exactly once into its
    sink)."""
    claimed: Counter[tuple[int, int]] = Counter()
    for claim in claims:
        claimed.update((claim.partition, offset) for offset in range(claim.start, claim.end))
    written: Counter[tuple[int, int]] = Counter()
    for partition, offsets in spark_rows.items():
        written.update((partition, offset) for offset in offsets)
    missing, extra = (claimed - written).total(), (written - claimed).total()
    found = []
    if missing:
        found.append(f"Spark's output lacks {missing} records of its batches")
    if extra:
        found.append(f"Spark's output has {extra} more records than its batches")
    return found
