"""What must hold for a group that copies records, at every moment and at the end.

A reader of committed records that asks for the group's stable offset finds that both agree: every copy that it has seen
is of a record below that offset, and every record below it is copied, once the reader has reached the end that the
output had when it asked. Markers reach partitions one after the other, so neither is complete at any moment.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from muster.model import TopicPartition
from tests.simulator.checks import InvariantError
from tests.simulator.transactions.members import COPIERS
from tests.simulator.transactions.world import World


class Copies:
    """The records of the group's output that readers got."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._seen: dict[int, set[int]] = {}
        self._at: dict[TopicPartition, int] = {}
        self._owed: list[tuple[int, dict[int, int], dict[TopicPartition, int]]] = []
        """When offsets were read, their values, and where the output ended."""

    def given(self, where: TopicPartition, rows: list[tuple[int, str]], at: int) -> None:
        """A reader got records of the output, and is at an offset."""
        for _, text in rows:
            copy = copy_of(text.partition(" ")[2])
            if copy is not None:
                partition, offset = copy
                if offset in self._seen.setdefault(partition, set()):
                    raise InvariantError(f"record {offset} of partition {partition} was copied twice, then in {text}")
                self._seen[partition].add(offset)
        self._at[where] = at

    def visible(self) -> dict[int, int]:
        """By partition, the last record whose copy readers have seen."""
        return {partition: max(found) for partition, found in self._seen.items()}

    def compare(self, visible: dict[int, int], offsets: dict[int, int], partitions: int) -> None:
        """`offsets` were requested when this much was `visible`."""
        for partition, offset in offsets.items():
            if visible.get(partition, -1) >= offset:
                raise InvariantError(
                    f"{COPIERS} is at {offset} of partition {partition}, and its copy of record {visible[partition]} "
                    "is visible"
                )
        ends = {
            log.topic_partition: log.high_watermark for log in self._world.logs if log.topic_partition.topic == "out"
        }
        if len(ends) == partitions:
            self._owed.append((self._world.now, offsets, ends))
        left = []
        for owed in self._owed:
            if any(self._at.get(where, 0) < end for where, end in owed[2].items()):
                left.append(owed)
            else:
                self._check_paid(*owed)
        self._owed = left

    def _check_paid(self, asked_at: int, offsets: dict[int, int], _: Any) -> None:
        for partition, offset in offsets.items():
            missing = sorted(set(range(offset)) - self._seen.get(partition, set()))
            if missing:
                raise InvariantError(
                    f"{COPIERS} was at {offset} of partition {partition} at {asked_at}, without copies of {missing}"
                )

    def check_all(self, truth: Any, ends: dict[int, int]) -> None:
        """Faults have ended: every record has exactly one copy."""
        found = (copy_of(one.value) for one in truth.records if one.committed)
        copied = Counter(each for each in found if each is not None)
        wanted = Counter((partition, offset) for partition, end in ends.items() for offset in range(end))
        if copied != wanted:
            wrong = sorted(key for key in copied | wanted if copied[key] != wanted[key])
            raise InvariantError(f"not copied exactly once: {[(key, copied[key]) for key in wrong][:5]}")


def copy_of(value: str) -> tuple[int, int] | None:
    """The partition and offset of the record that this is a copy of."""
    words = value.split(" ")
    return (int(words[1]), int(words[2])) if words[0] == "copy" else None
