"""How fast records of `__consumer_offsets` become entries of the history, on one core.

    python -m benchmarks decoding [--rows 1000000] [--seconds 3]

`entries` is `history/entries/decode.py` over a table of generated records, `one by one` is `decode_record` in a loop.
Both are in records per second of CPU time, the best of the runs that fit into the time. Commits differ in how often
keys repeat: a group commits for few partitions repeatedly, so the share of distinct keys is small in a log that was not
compacted, and every key is distinct in one that was.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from itertools import islice
from struct import pack

import pyarrow as pa

from muster.history.entries.decode import decode
from muster.history.tables import RAW
from muster.model import TopicPartition
from muster.protocol import codec
from muster.protocol import group_messages as g
from muster.protocol.group_records import (
    GroupMetadataRecord,
    OffsetCommitRecord,
    decode_record,
    encode_record,
)
from muster.protocol.messages import (
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
    OffsetCommitKey,
    OffsetCommitValue,
)
from muster.protocol.record_kinds import RecordKind, TypedRecord
from muster.protocol.subscription import Subscription, encode_assignment, encode_subscription
from tests.support.written import encode_typed

NOW = 1_700_000_000_000
PARTITIONS = 8
METADATA_ROWS = 50_000
"""The most generated records that are not commits."""

Record = tuple[bytes, bytes | None]


def commits(groups: int, metadata: str = "", version: int = 4) -> Iterator[Record]:
    """Commits of this many groups in turn, each for its partitions of one topic."""
    number = 0
    while True:
        group, partition = f"group-{number // PARTITIONS % groups}", number % PARTITIONS
        record = OffsetCommitRecord(
            OffsetCommitKey(group, "orders", partition), OffsetCommitValue(number, 3, metadata, NOW + number)
        )
        key, value = encode_record(record)
        if version != 4 and record.value is not None:
            value = pack(">h", version) + codec.encode(record.value, version)
        yield key, value
        number += 1


def classic(members: int, groups: int) -> Iterator[Record]:
    """Generations of classic groups with this many members."""
    said = encode_subscription(Subscription(["orders"], [TopicPartition("orders", 0)], 3))
    given = encode_assignment([TopicPartition("orders", number) for number in range(4)])
    ids = [f"consumer-{number}-2e569272-2412-4eba-88ec-833a1bf706aa" for number in range(members)]
    rows = [MemberMetadata(name, None, "consumer", "/127.0.0.1", 300_000, 45_000, said, given) for name in ids]
    number = 0
    while True:
        value = GroupMetadataValue("consumer", number, "range", ids[0], NOW + number, rows)
        key, encoded = encode_record(GroupMetadataRecord(GroupMetadataKey(f"group-{number % groups}"), value))
        yield key, encoded
        number += 1


def modern(groups: int) -> Iterator[Record]:
    """What a rebalance of a KIP-848 group writes: its epoch, and the target and current assignments of a member."""
    number = 0
    while True:
        group, epoch = f"group-{number % groups}", number // groups
        ids = group, f"m{epoch % 3}-2e569272-2412-4eba-88ec"
        target = [g.ConsumerGroupTargetAssignmentMemberValueTopicPartition(bytes(16), [1, 2, 3, 4])]
        current = [g.ConsumerGroupCurrentMemberAssignmentValueTopicPartitions(bytes(16), [1, 2, 3, 4])]
        for record in (
            TypedRecord(
                RecordKind.CONSUMER_GROUP_METADATA,
                g.ConsumerGroupMetadataKey(group),
                g.ConsumerGroupMetadataValue(epoch, 7),
            ),
            TypedRecord(
                RecordKind.CONSUMER_GROUP_TARGET_ASSIGNMENT_MEMBER,
                g.ConsumerGroupTargetAssignmentMemberKey(*ids),
                g.ConsumerGroupTargetAssignmentMemberValue(target),
            ),
            TypedRecord(
                RecordKind.CONSUMER_GROUP_CURRENT_MEMBER_ASSIGNMENT,
                g.ConsumerGroupCurrentMemberAssignmentKey(*ids),
                g.ConsumerGroupCurrentMemberAssignmentValue(epoch, epoch - 1, 0, current),
            ),
        ):
            yield encode_typed(record)
        number += 1


def stories(rows: int) -> Iterator[tuple[str, list[Record]]]:
    """What is measured: a name, and records."""
    few = min(rows, METADATA_ROWS)
    for name, records, count in (
        ("commits, 100 groups", commits(100), rows),
        ("commits, 10,000 groups", commits(10_000), rows),
        ("commits, every key different", commits(rows), rows),
        ("commits with metadata, 10,000 groups", commits(10_000, '{"checkpoint":17}'), rows),
        ("commits of Kafka 2.1 to 3.9 (version 3)", commits(10_000, version=3), rows),
        ("classic groups, 1 member", classic(1, 1_000), few),
        ("classic groups, 3 members", classic(3, 1_000), few),
        ("classic groups, 10 members", classic(10, 1_000), few),
        ("KIP-848 groups", modern(1_000), few),
    ):
        yield name, list(islice(records, count))


def table(records: list[Record]) -> pa.Table:
    """The records in the form in which they are read."""
    count = len(records)
    columns = {
        "partition": [0] * count,
        "offset": range(count),
        "timestamp_ms": range(NOW, NOW + count),
        "leader_epoch": [0] * count,
        "key": [key for key, _ in records],
        "value": [value for _, value in records],
    }
    return pa.table([pa.array(columns[field.name], field.type) for field in RAW], schema=RAW)


def rate(work: Callable[[], object], count: int, seconds: float) -> float:
    """Records per second of processor time, all threads together."""
    work()
    best, until = float("inf"), time.monotonic() + seconds
    while best == float("inf") or time.monotonic() < until:
        start = time.process_time()
        work()
        best = min(best, time.process_time() - start)
    return count / best


def main() -> int:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000, help="commits in a table (default 1,000,000)")
    parser.add_argument("--seconds", type=float, default=3.0, help="for each figure")
    asked = parser.parse_args()
    print("| records | entries, k/s | one by one, k/s |")
    print("|---|---|---|")
    for name, records in stories(asked.rows):
        raw, some = table(records), records[:METADATA_ROWS]
        whole = rate(lambda raw=raw: decode(raw), len(records), asked.seconds)  # type: ignore[misc]
        singly = rate(lambda some=some: [decode_record(*record) for record in some], len(some), asked.seconds)  # type: ignore[misc]
        print(f"| {name} | {whole / 1e3:,.0f} | {singly / 1e3:,.0f} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
