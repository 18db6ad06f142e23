"""Where reading starts and ends according to the options, with the precedence of Spark's own Kafka source.

`startingTimestamp` overrides `startingOffsetsByTimestamp`, which overrides `startingOffsets`; likewise for the end of
a batch read. A time means the first record at or after it. If there is none, a read ends at the end of the
log, and `startingOffsetsByTimestampStrategy` says whether it starts there or fails.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from muster.errors import ConfigError
from muster.model import TopicPartition
from muster.protocol.api import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from muster.spark.option_values import OptionValues

EARLIEST, LATEST, COMMITTED = "earliest", "latest", "committed"

STRATEGY = "startingOffsetsByTimestampStrategy"
STARTING = ("startingTimestamp", "startingOffsetsByTimestamp", "startingOffsets")
ENDING = ("endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets")
"""The options, in order of precedence."""

_LISTED = 5
"""How many partitions a message names; of the rest it gives only the count."""


class OffsetOrTime(NamedTuple):
    """Where to read in a partition: at an offset, or if that is None, at a timestamp for ListOffsets: milliseconds,
    EARLIEST_TIMESTAMP or LATEST_TIMESTAMP."""

    offset: int | None
    time: int = LATEST_TIMESTAMP


@dataclass(frozen=True, slots=True)
class OffsetChoice:
    """Where to start or end in partitions, by the options alone."""

    option: str
    """The option that sets it."""
    everywhere: int
    """The timestamp for ListOffsets in unnamed partitions: a time, EARLIEST_TIMESTAMP or LATEST_TIMESTAMP."""
    named: Mapping[TopicPartition, int] = field(default_factory=dict)
    """The partitions named in JSON, each with an offset (-2 earliest, -1 latest) or, if `by_time`, a time."""
    by_time: bool = False
    committed: bool = False
    """Whether a batch read starts at the group's committed offsets."""
    latest_if_none: bool = True
    """Whether a time without a record at or after it means the log's end, rather than an error."""

    def spot(self, partition: TopicPartition) -> OffsetOrTime:
        """Where to read in a partition."""
        found = self.named.get(partition)
        if found is None:
            return OffsetOrTime(None, self.everywhere)
        return OffsetOrTime(None, found) if self.by_time or found < 0 else OffsetOrTime(found)

    def left_out(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Partitions that the JSON omits, if it names any."""
        return sorted(set(partitions) - self.named.keys()) if self.named else []

    def left_out_warning(self, partitions: Iterable[TopicPartition]) -> str | None:
        """A message about the omitted partitions, without a full stop; None if there are none."""
        found = self.left_out(partitions)
        if not found:
            return None
        verb, where = ("starts", "begin") if self.everywhere == EARLIEST_TIMESTAMP else ("ends", "end")

        return f"{self.option} does not name {listed(found)}: reading {verb} where their logs {where}"

    def check_named_partitions(self, partitions: Iterable[TopicPartition]) -> None:
        """Refuse named partitions that are not read.

        Raises:
            ConfigError: the JSON names one.
        """
        if unknown := self.named.keys() - set(partitions):
            raise ConfigError(f"{self.option} names {min(unknown)}, which is not one of the partitions that are read")

    def no_record(self, partition: TopicPartition) -> ConfigError:
        """The error for a partition without a record at or after its time."""
        return ConfigError(
            f"{self.option} is {self.spot(partition).time} for {partition}, which has no record at or after that time; "
            f"set {STRATEGY} to latest to start such partitions at their end"
        )

    @property
    def moves(self) -> bool:
        """Whether a later lookup may have another result, since logs grow."""
        return LATEST_TIMESTAMP in (self.everywhere, *self.named.values()) or (self.uses_times and self.latest_if_none)

    @property
    def uses_times(self) -> bool:
        """Whether it looks up records by time."""
        return self.by_time or self.everywhere >= 0


def starting(options: OptionValues, streaming: bool | None) -> OffsetChoice:
    """Where reading starts; None for `streaming` checks only what applies to both kinds.

    Raises:
        ConfigError: an option is not a valid offset or time.
    """
    latest_if_none = options.choice(STRATEGY, ("error", "latest")) == "latest"
    found = _by_time(options, STARTING, EARLIEST_TIMESTAMP, latest_if_none)
    if found is not None:
        return found
    name = STARTING[-1]
    value = options.get(name)
    if value is None:
        return OffsetChoice(name, LATEST_TIMESTAMP if streaming else EARLIEST_TIMESTAMP)
    if value.lstrip().startswith("{"):
        named = _partitions(name, value, least=-2)
        if streaming is False and LATEST_TIMESTAMP in named.values():
            raise ConfigError(f"{name} has -1 (latest) for a partition: a batch read would find nothing to read")
        return OffsetChoice(name, EARLIEST_TIMESTAMP, named)
    word = options.choice(name, (EARLIEST, LATEST, COMMITTED))
    if streaming is False and word == LATEST:
        raise ConfigError(f"{name} is latest: a batch read would find nothing to read")
    return OffsetChoice(name, LATEST_TIMESTAMP if word == LATEST else EARLIEST_TIMESTAMP, committed=word == COMMITTED)


def ending(options: OptionValues) -> OffsetChoice:
    """Where a batch read ends.

    Raises:
        ConfigError: an option is not a valid offset or time.
    """
    found = _by_time(options, ENDING, LATEST_TIMESTAMP, True)
    if found is not None:
        return found
    name = ENDING[-1]
    value = options.get(name)
    if value is not None and value.lstrip().startswith("{"):
        return OffsetChoice(name, LATEST_TIMESTAMP, _partitions(name, value, least=-1))
    options.choice(name, (LATEST,))
    return OffsetChoice(name, LATEST_TIMESTAMP)


def overruled(options: OptionValues) -> list[str]:
    """Messages about options that another option overrides."""
    messages = []
    for names in (STARTING, ENDING):
        found = [name for name in names if options.get(name) is not None]
        messages += [f"{name} is ignored, since {found[0]} is set" for name in found[1:]]
    return messages


def _by_time(options: OptionValues, names: tuple[str, ...], rest: int, latest_if_none: bool) -> OffsetChoice | None:
    """The choice by the first two options."""
    time = options.number(names[0], None, 0)
    if time is not None:
        return OffsetChoice(names[0], time, latest_if_none=latest_if_none)
    value = options.get(names[1])
    if value is None:
        return None
    return OffsetChoice(names[1], rest, _partitions(names[1], value, least=0), True, latest_if_none=latest_if_none)


def _partitions(name: str, value: str, least: int) -> dict[TopicPartition, int]:
    """The numbers in the JSON, by partition."""
    try:
        found = {
            TopicPartition(topic, int(index)): _whole(number)
            for topic, partitions in json.loads(value).items()
            for index, number in partitions.items()
        }
    except (ValueError, TypeError, AttributeError):
        raise ConfigError(f'{name} is {value!r}; it must look like {{"topic":{{"0":23,"1":42}}}}') from None
    for partition, number in found.items():
        if number < least:
            what = "a time in milliseconds"
            if least < 0:
                what = f"an offset, -1 for latest{', -2 for earliest' if least == -2 else ''}"
            raise ConfigError(f"{name} has {number} for {partition}: it must be {what}")
    return found


def _whole(number: Any) -> int:
    if isinstance(number, bool) or not isinstance(number, int):
        raise TypeError(number)
    return number


def listed(partitions: list[TopicPartition]) -> str:
    """Partition names for a message."""
    names = ", ".join(map(str, partitions[:_LISTED]))
    return names if len(partitions) <= _LISTED else f"{names} and {len(partitions) - _LISTED} more"
