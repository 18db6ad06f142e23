"""What the history of groups costs on one core, by phase: decode, chunk, fold, and rows as tables.

    python -m benchmarks folding [STORY …] [--groups 10000] [--generations 50] [--pieces 1]

Each story is a generated stretch of `__consumer_offsets`, read one log partition after another as the small engine
does, measured in CPU time. `turnover` is the usual one: groups of two members that commit ten partitions every five
seconds; each generation replaces one member. The other stories would be slow under a rule that looks back too far:
groups of many generations, members or partitions, a member that joins and leaves forever, commits without generations.
`--scale` makes them longer: if that raises the cost per generation, the total grows with the square.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.history import BEGIN_MS, ROUND_MS
from muster.history.entries.chunks import chunks
from muster.history.entries.decode import decode
from muster.history.model import CommitNote, Generation, Limits, Rebalance, Rows
from muster.history.rows import to_table
from muster.history.rules import fold as rules
from muster.history.rules.group_state import ReplayedState
from muster.history.tables import RAW
from muster.protocol import group_messages as g
from muster.protocol.group_records import GroupMetadataRecord, OffsetCommitRecord, encode_record
from muster.protocol.messages import GroupMetadataKey, GroupMetadataValue, MemberMetadata, OffsetCommitKey
from muster.protocol.record_kinds import RecordKind, TypedRecord
from muster.protocol.subscription import Subscription, encode_assignment_by_topic, encode_subscription
from tests.support.written import encode_typed

LOG_PARTITIONS = 50
"""The most log partitions, with two hundred groups each."""
ROUNDS = 4
"""Commits of each partition between two generations, unless a story says otherwise."""

Record = tuple[bytes, bytes | None]


@dataclass(frozen=True)
class Story:
    """Groups that all live alike."""

    groups: int
    generations: int
    members: int = 2
    partitions: int = 10
    rounds: int = ROUNDS
    replaced: int = 1
    """How many members each generation replaces with new ones."""
    flaps: bool = False
    """One member goes in one generation and is back in the next."""
    modern: bool = False
    """KIP-848's records."""
    pieces: int = 1
    """How many pieces each log partition is read in."""

    def times(self, **factors: int) -> Story:
        return Story(**{name: value * factors.get(name, 1) for name, value in vars(self).items()})


@dataclass
class Spent:
    """CPU time by phase, and the results."""

    seconds: dict[str, float] = field(default_factory=dict)
    records: int = 0
    generations: int = 0
    rebalances: int = 0

    @contextmanager
    def on(self, phase: str) -> Iterator[None]:
        """Count the time spent within the block."""
        began = time.process_time()
        yield
        self.seconds[phase] = self.seconds.get(phase, 0.0) + time.process_time() - began


# ----------------------------------------------------------------------------------------------------- made records


class _Group:
    """One group, generation after generation."""

    def __init__(self, name: str, story: Story) -> None:
        self.name, self.story = name, story
        said = encode_subscription(Subscription(["events"]))
        shares = np.array_split(np.arange(story.partitions), story.members)
        self._shares = [share.tolist() for share in shares]
        self._said, self._given = said, [encode_assignment_by_topic({"events": share}) for share in self._shares]
        self._ids = [f"{name}-{slot:04d}-2e569272-2412-4eba-88ec-{0:012d}" for slot in range(story.members)]
        self._came = list(self._ids)
        self._went: list[str] = []

    def generation(self, number: int, now_ms: int) -> Iterator[Record]:
        """The records of the next generation."""
        story = self.story
        self._went = []
        for turn in range(story.replaced if number > 1 else 0):
            slot = (number * story.replaced + turn) % story.members
            self._went.append(self._ids[slot])
            self._ids[slot] = f"{self.name}-{slot:04d}-2e569272-2412-4eba-88ec-{number:012d}"
        self._came = self._ids if number == 1 else [each for each in self._ids if each.endswith(f"-{number:012d}")]
        here = self._ids[:-1] if story.flaps and number % 2 else self._ids
        yield from self._modern(number, here) if story.modern else self._classic(number, here, now_ms)

    def _classic(self, number: int, ids: list[str], now_ms: int) -> Iterator[Record]:
        rows = [
            MemberMetadata(name, None, f"{self.name}-{slot}", "/10.0.0.1", 300_000, 45_000, self._said, given)
            for slot, (name, given) in enumerate(zip(ids, self._given, strict=False))
        ]
        value = GroupMetadataValue("consumer", number, "range", ids[0], now_ms, rows)
        yield encode_record(GroupMetadataRecord(GroupMetadataKey(self.name), value))

    def _modern(self, number: int, ids: list[str]) -> Iterator[Record]:
        kind, topic = RecordKind, b"\1" * 16
        keys = (
            (kind.CONSUMER_GROUP_CURRENT_MEMBER_ASSIGNMENT, g.ConsumerGroupCurrentMemberAssignmentKey),
            (kind.CONSUMER_GROUP_TARGET_ASSIGNMENT_MEMBER, g.ConsumerGroupTargetAssignmentMemberKey),
            (kind.CONSUMER_GROUP_MEMBER_METADATA, g.ConsumerGroupMemberMetadataKey),
        )
        for name in self._went:
            for each, key in keys:
                yield encode_typed(TypedRecord(each, key(self.name, name), None))
        for name in self._came:
            member = g.ConsumerGroupMemberMetadataValue(
                client_id=name[:-37], client_host="/10.0.0.1", subscribed_topic_names=["events"],
                rebalance_timeout_ms=300_000,
            )  # fmt: skip
            yield encode_typed(TypedRecord(keys[2][0], keys[2][1](self.name, name), member))
        epoch = g.ConsumerGroupMetadataValue(number, 7)
        yield encode_typed(TypedRecord(kind.CONSUMER_GROUP_METADATA, g.ConsumerGroupMetadataKey(self.name), epoch))
        has = dict(zip(ids, self._shares, strict=False))
        for name in self._came:
            target = [g.ConsumerGroupTargetAssignmentMemberValueTopicPartition(topic, has[name])]
            value = g.ConsumerGroupTargetAssignmentMemberValue(target)
            yield encode_typed(TypedRecord(keys[1][0], keys[1][1](self.name, name), value))
        of_targets = g.ConsumerGroupTargetAssignmentMetadataKey(self.name)
        given = g.ConsumerGroupTargetAssignmentMetadataValue(number)
        yield encode_typed(TypedRecord(kind.CONSUMER_GROUP_TARGET_ASSIGNMENT_METADATA, of_targets, given))
        for name in ids:
            current = [g.ConsumerGroupCurrentMemberAssignmentValueTopicPartitions(topic, has[name])]
            stands = g.ConsumerGroupCurrentMemberAssignmentValue(number, number - 1, 0, current)
            yield encode_typed(TypedRecord(keys[0][0], keys[0][1](self.name, name), stands))


_COMMIT = np.dtype(
    [("version", ">i2"), ("offset", ">i8"), ("epoch", ">i4"), ("text", "i1"), ("at", ">i8"), ("tags", "i1")]
)


class _Commits:
    """A round of commits of some groups, made column by column."""

    def __init__(self, names: list[str], partitions: int) -> None:
        keys = [
            encode_record(OffsetCommitRecord(OffsetCommitKey(name, "events", partition), None))[0]
            for name in names
            for partition in range(partitions)
        ]
        self._keys = pa.array(keys, pa.binary())
        self._values = np.zeros(len(keys), _COMMIT)
        self._values["version"], self._values["text"] = 4, 1

    def round(self, number: int, now_ms: int) -> tuple[Any, Any]:
        """Keys and values."""
        self._values["offset"], self._values["at"] = 1_000 * number + 7, now_ms
        size = len(self._keys)
        offsets = pa.py_buffer(np.arange(0, (size + 1) * _COMMIT.itemsize, _COMMIT.itemsize, dtype=np.int32).tobytes())
        return self._keys, pa.Array.from_buffers(
            pa.binary(), size, [None, offsets, pa.py_buffer(self._values.tobytes())]
        )


def log(story: Story, names: list[str], partition: int) -> Iterator[pa.Table]:
    """One log partition, in pieces of about equal size."""
    commits, groups = _Commits(names, story.partitions), [_Group(name, story) for name in names]
    parts: list[pa.RecordBatch] = []
    offset = number = 0
    every = -(-story.generations * (story.rounds + 1) // story.pieces)
    for generation in range(1, story.generations + 1):
        for turn in range(story.rounds + 1):
            now_ms = BEGIN_MS + number * ROUND_MS
            if turn == 0:
                made = [record for each in groups for record in each.generation(generation, now_ms)]
                keys, values = (pa.array(column, pa.binary()) for column in zip(*made, strict=True))
            else:
                keys, values = commits.round(number, now_ms)
            parts.append(_batch(keys, values, partition, offset, now_ms))
            offset, number = offset + len(keys), number + 1
            if number % every == 0:
                yield pa.Table.from_batches(parts)
                parts = []
    if parts:
        yield pa.Table.from_batches(parts)


def _batch(keys: Any, values: Any, partition: int, offset: int, now_ms: int) -> pa.RecordBatch:
    size = len(keys)
    columns: dict[str, Any] = {
        "partition": np.full(size, partition, np.int32),
        "offset": np.arange(offset, offset + size),
        "timestamp_ms": np.full(size, now_ms),
        "leader_epoch": np.zeros(size, np.int32),
        "key": keys,
        "value": values,
    }
    return pa.RecordBatch.from_arrays([pa.array(columns[name]) for name in RAW.names], schema=RAW)


# ------------------------------------------------------------------------------------------------------- measured


def measure(story: Story) -> Spent:
    """Fold a story's groups, and make tables of the rows."""
    spent, limits = Spent(), Limits()
    partitions = max(1, min(LOG_PARTITIONS, story.groups // 200))
    for partition in range(partitions):
        names = [f"group-{number:06d}" for number in range(partition, story.groups, partitions)]
        states: dict[str, ReplayedState] = {}
        for piece in log(story, names, partition):
            spent.records += piece.num_rows
            _take(piece, states, limits, spent)
        rows = Rows()
        with spent.on("fold"):
            for state in states.values():
                rows.extend(rules.finish(state, BEGIN_MS))
        _tables(rows, spent)
    return spent


def _take(piece: pa.Table, states: dict[str, ReplayedState], limits: Limits, spent: Spent) -> None:
    rows = Rows()
    with spent.on("decode"):
        entries = decode(piece).entries
    with spent.on("chunk"):
        found = list(chunks(entries, None))
    with spent.on("fold"):
        for chunk in found:
            state = states.get(chunk.group)
            if state is None:
                state = states[chunk.group] = rules.start(chunk.group, limits)
            rows.extend(rules.fold(state, chunk))
    _tables(rows, spent)


def _tables(rows: Rows, spent: Spent) -> None:
    with spent.on("tables"):
        to_table(Generation, rows.generations)
        to_table(Rebalance, rows.rebalances)
        to_table(CommitNote, rows.notes)
    spent.generations += len(rows.generations)
    spent.rebalances += len(rows.rebalances)


STORIES: dict[str, Callable[[int, int], Story]] = {
    "turnover": lambda groups, generations: Story(groups, generations),
    "ten": lambda groups, generations: Story(groups // 10, generations, members=10, partitions=30),
    "modern": lambda groups, generations: Story(groups, generations, modern=True),
    "modern-ten": lambda groups, generations: Story(groups // 10, generations, members=10, partitions=30, modern=True),
    "long": lambda _, scale: Story(1, 400 * scale),
    "wide": lambda _, scale: Story(1, 50, members=20 * scale, partitions=20 * scale),
    "all-new": lambda _, scale: Story(1, 50, members=6 * scale, partitions=6 * scale, replaced=6 * scale),
    "partitions": lambda _, scale: Story(1, 50, members=4, partitions=200 * scale),
    "flapping": lambda _, scale: Story(1, 400 * scale, members=3, replaced=0, flaps=True),
    "commits": lambda _, scale: Story(1, 1, partitions=100, rounds=400 * scale),
    "pieces": lambda _, scale: Story(1, 50 * scale, pieces=50 * scale),
    "modern-long": lambda _, scale: Story(1, 100 * scale, modern=True),
    "modern-wide": lambda _, scale: Story(1, 20, members=20 * scale, partitions=20 * scale, modern=True),
    "modern-partitions": lambda _, scale: Story(1, 20, members=4, partitions=200 * scale, modern=True),
}
"""By name: a function of the number of groups (or of nothing) and of generations (or of a scale, by default 50)."""


def main() -> int:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stories", nargs="*", choices=[[], *STORIES], default=[], metavar="STORY")
    parser.add_argument("--groups", type=int, default=10_000)
    parser.add_argument("--generations", "--scale", type=int, default=50)
    asked = parser.parse_args()
    print("| story | records | generations | decode, s | chunk, s | fold, s | tables, s | in all, s | peak, MB |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name in asked.stories or ["turnover"]:
        spent = measure(STORIES[name](asked.groups, asked.generations))
        phases = [spent.seconds.get(phase, 0.0) for phase in ("decode", "chunk", "fold", "tables")]
        figures = " | ".join(f"{seconds:,.2f}" for seconds in (*phases, sum(phases)))
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        print(f"| {name} | {spent.records:,} | {spent.generations:,} | {figures} | {peak:,} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
