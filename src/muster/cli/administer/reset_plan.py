"""The new offsets of `muster groups reset-offsets`, as `kafka-consumer-groups --reset-offsets` of Kafka 4.2 sets them.

A form chooses each partition's offset from four: the beginning and the end of its log, the committed offset, and the
first offset at or after the given time. Offsets that a user or a file names, and shifted ones, are clamped to the log;
all others lie within it, except the committed one, which `--to-current` leaves unchanged. A plan is exported and read
as CSV: `topic,partition,offset`, preceded by the group if there are several.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from muster.cli.common import natural_number
from muster.errors import ConfigError, MusterError
from muster.model import TopicPartition


class ResetForm(Enum):
    """How the new offsets are chosen; the value is the option."""

    TO_OFFSET = "to-offset"
    TO_EARLIEST = "to-earliest"
    TO_LATEST = "to-latest"
    TO_CURRENT = "to-current"
    SHIFT_BY = "shift-by"
    TO_DATETIME = "to-datetime"
    BY_DURATION = "by-duration"
    FROM_FILE = "from-file"

    @property
    def by_time(self) -> bool:
        """Whether brokers are asked for the first offset at a time."""
        return self in (ResetForm.TO_DATETIME, ResetForm.BY_DURATION)


@dataclass(slots=True, frozen=True)
class PartitionOffsets:
    """What is known about one partition; `at_time` is None if no record is that recent."""

    begin: int
    end: int
    committed: int | None = None
    at_time: int | None = None


@dataclass(slots=True)
class NewOffset:
    """One line of a plan. `remark` says why the offset differs from the requested one."""

    group: str
    topic: str
    partition: int
    current_offset: int | None
    new_offset: int
    remark: str | None = None

    @property
    def place(self) -> TopicPartition:
        """The partition."""
        return TopicPartition(self.topic, self.partition)


def new_offset(
    form: ResetForm, number: int, place: TopicPartition, offsets: PartitionOffsets
) -> tuple[int, str | None]:
    """A group's new offset in a partition, with a remark if it differs from the requested one. `number` is the value of
    --to-offset or --shift-by, or the file's.

    Raises:
        MusterError: there is no committed offset to shift.
    """
    match form:
        case ResetForm.TO_EARLIEST:
            return offsets.begin, None
        case ResetForm.TO_LATEST:
            return offsets.end, None
        case ResetForm.TO_CURRENT:
            return (offsets.end if offsets.committed is None else offsets.committed), None
        case ResetForm.TO_DATETIME | ResetForm.BY_DURATION:
            if offsets.at_time is None:
                return offsets.end, f"{place} has no record that recent: using its end, {offsets.end}"
            return offsets.at_time, None
        case ResetForm.SHIFT_BY:
            if offsets.committed is None:
                raise MusterError(f"{place} has no committed offset to shift")
            return _within(offsets.committed + number, place, offsets)
        case ResetForm.TO_OFFSET | ResetForm.FROM_FILE:
            return _within(number, place, offsets)


def _within(offset: int, place: TopicPartition, offsets: PartitionOffsets) -> tuple[int, str | None]:
    if offset > offsets.end:
        return offsets.end, f"{place}: {offset} is after its end: using {offsets.end}"
    if offset < offsets.begin:
        return offsets.begin, f"{place}: {offset} is before its beginning: using {offsets.begin}"
    return offset, None


# --- partitions on the command line ----------------------------------------------------------------------------------


def named_partitions(texts: Iterable[str], option: str = "--topic") -> dict[str, list[int] | None]:
    """`TOPIC` or `TOPIC:0,1` as partitions by topic; None means all. If a topic is named twice, its partitions are
    combined.

    Raises:
        ConfigError: the text has neither form.
    """
    found: dict[str, list[int] | None] = {}
    for text in texts:
        topic, colon, numbers = text.partition(":")
        wanted = [natural_number(number) for number in numbers.split(",")] if colon else []
        if not topic or None in wanted:
            raise ConfigError(f"{option} {text!r}: write TOPIC, or TOPIC:0,1 for some of its partitions")
        if not colon:
            found[topic] = None
        elif (before := found.setdefault(topic, [])) is not None:
            before += [number for number in dict.fromkeys(wanted) if number is not None and number not in before]
    return found


# --- CSV -------------------------------------------------------------------------------------------------------------


def as_csv(plan: Iterable[NewOffset], *, with_group: bool) -> str:
    """A plan as Kafka's tool exports it."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for line in plan:
        row: list[object] = [line.topic, line.partition, line.new_offset]
        writer.writerow([line.group, *row] if with_group else row)
    return text.getvalue()


def from_csv(text: str, groups: list[str], name: str) -> dict[str, dict[TopicPartition, int]]:
    """An exported plan, by group. Lines without a group belong to the only group that is named.

    Raises:
        ConfigError: a line is malformed.
    """
    plan: dict[str, dict[TopicPartition, int]] = {}
    rows = csv.reader(io.StringIO(text), strict=True)
    try:
        lines = [(rows.line_num, row) for row in rows if row]
    except csv.Error as error:
        raise ConfigError(f"{name}, line {rows.line_num}: {error}") from None
    width = len(lines[0][1]) if lines else 0
    single = len(groups) == 1 and width == 3
    for number, row in lines:
        where = f"{name}, line {number}"
        if len(row) != (3 if single else 4):
            wanted = "topic,partition,offset" if single else "group,topic,partition,offset"
            raise ConfigError(f"{where}: expected {wanted}, found {','.join(row)!r}")
        group, topic, partition, offset = [groups[0], *row] if single else row
        place = TopicPartition(topic, _number(partition, where))
        offsets = plan.setdefault(group, {})
        if place in offsets:
            raise ConfigError(f"{where}: {place} is named a second time")
        offsets[place] = _number(offset, where)
    return plan


def _number(text: str, where: str) -> int:
    try:
        return int(text.strip())
    except ValueError:
        raise ConfigError(f"{where}: {text!r} is not a whole number") from None


# --- as a table ------------------------------------------------------------------------------------------------------


def plan_table(plan: list[NewOffset]) -> list[str]:
    """A plan in the columns that `kafka-consumer-groups --reset-offsets` prints."""
    heads = ["GROUP", "TOPIC", "PARTITION", "NEW-OFFSET"]
    rows = [heads] + [[line.group, line.topic, str(line.partition), str(line.new_offset)] for line in plan]
    widths = [max(15, *(len(row[0]) for row in rows)), max(15, *(len(row[1]) for row in rows)), 10, 0]
    return ["", *(" ".join(f"{text:<{width}}" for text, width in zip(row, widths, strict=True)) for row in rows)]


def by_group(plan: Iterable[NewOffset]) -> Mapping[str, list[NewOffset]]:
    """The lines of each group."""
    found: dict[str, list[NewOffset]] = {}
    for line in plan:
        found.setdefault(line.group, []).append(line)
    return found
