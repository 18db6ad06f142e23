"""Where a standalone `muster consume` begins and ends: offsets, times, the last records, the end."""

from __future__ import annotations

import argparse
import sys

from muster.cli.administer.confirmation import some
from muster.cli.common import natural_number
from muster.cli.times import datetime_ms, duration_ms
from muster.client.consumer.consumer import Consumer
from muster.clock import wall_clock_ms
from muster.errors import ConfigError
from muster.model import ConsumerRecord, TopicPartition

_WITHOUT_GROUP = ("offset", "partition", "last", "from_time", "since", "until_end")


def add_range(parser: argparse.ArgumentParser) -> None:
    """The options that select the records to read without a group: a group continues from its committed offsets."""
    begin = parser.add_mutually_exclusive_group()
    begin.add_argument(
        "--offset", metavar="N", help="start at this offset, earliest or latest; -N is --last N (like kcat's -o)"
    )
    begin.add_argument("--last", type=int, metavar="N", help="start N offsets before the end of each partition")
    begin.add_argument(
        "--from-time", metavar="TIME", help="start at this time, such as 2013-06-13T17:00 (UTC) or @MILLISECONDS"
    )
    begin.add_argument("--since", metavar="DURATION", help="start this long ago: 90s, 1h30m, 2d, PT1H30M")
    parser.add_argument("--until-end", action="store_true", help="stop at the current end of the partitions")
    parser.add_argument("--partition", type=int, metavar="N", help="read only this partition")


def check_range(arguments: argparse.Namespace) -> None:
    """Check the arguments before connecting."""
    used = [name for name in _WITHOUT_GROUP if (found := getattr(arguments, name)) is not None and found is not False]
    if arguments.group is not None and used:
        options = ", ".join("--" + name.replace("_", "-") for name in used)
        raise ConfigError(f"{options}: cannot be combined with --group")
    if arguments.last is not None and arguments.last < 0:
        raise ConfigError(f"--last {arguments.last}: must be at least 0")
    _offset(arguments)
    _begin_ms(arguments)


def begin(consumer: Consumer, places: list[TopicPartition], arguments: argparse.Namespace) -> None:
    """Seek to where reading starts."""
    begin_ms, offset = _begin_ms(arguments), _offset(arguments)
    if begin_ms is not None:
        _seek_to_time(consumer, places, begin_ms)
    elif offset == "earliest":
        consumer.seek_to_beginning(places)
    elif offset == "latest":
        consumer.seek_to_end(places)
    elif isinstance(offset, int) and offset >= 0:
        _seek_to_offset(consumer, places, offset)
    last = arguments.last if arguments.last is not None else -offset if isinstance(offset, int) and offset < 0 else None
    if last is not None:
        begins, ends = consumer.beginning_offsets(places, 10_000), consumer.end_offsets(places, 10_000)
        for place in places:
            consumer.seek(place, max(begins[place], ends[place] - last))


def chooses_beginning(arguments: argparse.Namespace) -> bool:
    """Whether to read existing records. If the log loses its first ones before they are read, reading then starts at
    its new beginning: resetting to the end, as for new records, would skip the wanted records.
    """
    return _offset(arguments) not in (None, "latest") or bool(arguments.last) or _begin_ms(arguments) is not None


def _seek_to_offset(consumer: Consumer, places: list[TopicPartition], offset: int) -> None:
    """A partition without that offset is read from the nearest one, with a message: kcat and Kafka's console
    consumer jump to the end, which would skip existing records."""
    begins, ends = consumer.beginning_offsets(places, 10_000), consumer.end_offsets(places, 10_000)
    for place in places:
        consumer.seek(place, min(max(offset, begins[place]), ends[place]))
    without = [f"{place} begins at {begins[place]}" for place in places if begins[place] > offset]
    without += [f"{place} ends at {ends[place]}" for place in places if ends[place] < offset]
    if without:
        print(f"muster: no offset {offset}: {some(without)}; reading from there", file=sys.stderr)


def _offset(arguments: argparse.Namespace) -> int | str | None:
    text: str | None = arguments.offset
    if text in (None, "earliest", "latest"):
        return text
    digits = (text or "").removeprefix("-")
    number = natural_number(digits)
    if number is None:
        raise ConfigError(f"--offset {text}: must be a number, earliest or latest")
    if text == digits:
        return number
    return -number if number else "latest"


def _begin_ms(arguments: argparse.Namespace) -> int | None:
    if arguments.since is not None:
        return max(0, wall_clock_ms() - duration_ms(arguments.since, "--since"))
    if arguments.from_time is None:
        return None
    milliseconds = natural_number(arguments.from_time.removeprefix("@"))
    if milliseconds is not None and arguments.from_time.startswith("@"):
        return min(milliseconds, 2**62)
    return max(0, datetime_ms(arguments.from_time, "--from-time"))


def _seek_to_time(consumer: Consumer, places: list[TopicPartition], begin_ms: int) -> None:
    """A partition without a record that recent is read from its current end."""
    found = consumer.offsets_for_times(dict.fromkeys(places, begin_ms), 10_000)
    ends = consumer.end_offsets([place for place in places if found.get(place) is None], 10_000)
    for place in places:
        at_time = found.get(place)
        consumer.seek(place, ends[place] if at_time is None else at_time.offset)


class UntilEnd:
    """How far --until-end reads: to where the partitions ended when reading started."""

    def __init__(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        self._consumer = consumer
        self._ends = consumer.end_offsets(places, 10_000)
        self._left = list(places)

    def within(self, records: list[ConsumerRecord]) -> list[ConsumerRecord]:
        """The records before those ends."""
        return [
            record for record in records if record.offset < self._ends[TopicPartition(record.topic, record.partition)]
        ]

    def reached(self) -> bool:
        """Whether all partitions have been read to those ends. Positions decide, not records: the last offsets may hold
        nothing that a consumer returns, such as transaction markers.
        """
        done = [place for place in self._left if self._consumer.position(place, 10_000) >= self._ends[place]]
        if done:
            self._consumer.pause(done)
            self._left = [place for place in self._left if place not in done]
        return not self._left
