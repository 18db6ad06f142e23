"""`muster consume`: prints records on standard output, standalone or as a member of a group."""

from __future__ import annotations

import argparse
import errno
import select
import signal
import sys
import time
from collections import deque
from collections.abc import Callable
from itertools import accumulate
from types import FrameType
from typing import Any, BinaryIO

from muster.cli.common import add_connection, client_settings, pairs, reaching
from muster.cli.logs import set_up_log
from muster.cli.stream.reading_range import UntilEnd, add_range, begin, check_range, chooses_beginning
from muster.cli.stream.record_text import as_json, formatter, unpackings
from muster.client.config import ConsumerConfig
from muster.client.consumer.consumer import Consumer
from muster.errors import ConfigError, ErrorCode, KafkaConnectionError, KafkaError, KafkaTimeoutError, MusterError
from muster.model import ConsumerRecord, TopicPartition


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `muster consume`."""
    parser.add_argument("topics", nargs="+", metavar="TOPIC")
    parser.add_argument("--group", metavar="GROUP", help="join this group and commit its offsets (default: standalone)")
    parser.add_argument(
        "--from-beginning", action="store_true", help="start at the earliest record if there is no committed offset"
    )
    add_range(parser)
    parser.add_argument("--max-messages", type=int, metavar="N", help="stop after N records")
    parser.add_argument("--timeout-ms", type=int, metavar="MS", help="stop when no record has arrived for this long")
    shape = parser.add_mutually_exclusive_group()
    shape.add_argument(
        "--format",
        metavar="TEXT",
        help=r"like kcat's -f: %%t topic, %%p partition, %%o offset, %%k key, %%s value, %%h headers, %%T timestamp,"
        r" %%K and %%S lengths (default %%s\n)",
    )
    shape.add_argument("--json", action="store_true", help="print each record as one line of JSON")
    parser.add_argument("--keys", action="store_true", help="print the key and a tab before the value")
    parser.add_argument("--headers", action="store_true", help="print headers (name=value,…) and a tab first")
    parser.add_argument("--null", default="", metavar="TEXT", help="text printed for null")
    parser.add_argument(
        "--unpack",
        action="append",
        default=[],
        metavar="[key=|value=]TEXT",
        help="unpack binary data like kcat -s: b h i q integers (capitals: unsigned), < little-endian, s text, $ end",
    )
    add_connection(parser)


def run(arguments: argparse.Namespace) -> int:
    """Consume until stopped. Ctrl-C and SIGTERM leave the group cleanly; a second one does not wait for that."""
    _check(arguments)
    set_up_log(arguments)
    if sys.stdout is None:
        raise MusterError("standard output is closed: there is nowhere to write")
    write = as_json if arguments.json else _formatter(arguments)
    output = RecordOutput(sys.stdout.buffer, write)
    handled = [number for number in (signal.SIGTERM, signal.SIGINT) if signal.getsignal(number) is not signal.SIG_IGN]
    for number in handled:
        signal.signal(number, output.interrupt)
    try:
        _consume(arguments, output)
    except MusterError:
        output.check_interrupts()
        raise
    finally:
        for number in handled:
            signal.signal(number, signal.SIG_IGN)  # nothing is left to stop: keep the exit code
    return 0


def _formatter(arguments: argparse.Namespace) -> Callable[[ConsumerRecord], bytes]:
    before = r"%h\t" * arguments.headers + r"%k\t" * arguments.keys
    key, value = unpackings(arguments.unpack)
    null = arguments.null.encode(errors="surrogateescape")
    text = before + r"%s\n" if arguments.format is None else arguments.format
    return formatter(text, null=null, key=key, value=value)


def _consume(arguments: argparse.Namespace, output: RecordOutput) -> None:
    grouped = arguments.group is not None  # an empty name does not mean standalone: the setting is refused
    settings: dict[str, Any] = {
        "auto.offset.reset": "earliest" if arguments.from_beginning or chooses_beginning(arguments) else "latest",
        "allow.auto.create.topics": False,
    }
    settings |= client_settings(arguments, ConsumerConfig)
    # A group.id in the file belongs to the program that the file is for: a standalone reader must not commit to it.
    settings.pop("group.id", None)
    settings.pop("group_id", None)
    if grouped:
        settings["group.id"] = arguments.group
    with reaching(arguments.bootstrap), Consumer(settings) as consumer:
        ends: UntilEnd | None = None
        if grouped:
            _check_topics(consumer, arguments.topics)
            consumer.subscribe(arguments.topics)
        else:
            ends = _assign(consumer, arguments)
        try:
            _pump(consumer, arguments, output, ends)
        except BaseException:
            if grouped and ConsumerConfig.of(settings).enable_auto_commit:
                _commit_written(consumer, output)
            raise


def _check(arguments: argparse.Namespace) -> None:
    for option, number in (("--max-messages", arguments.max_messages), ("--timeout-ms", arguments.timeout_ms)):
        if number is not None and number < 0:
            raise ConfigError(f"{option} {number}: must be at least 0")
    check_range(arguments)
    if arguments.format is not None and (arguments.keys or arguments.headers):
        raise ConfigError("--keys and --headers apply to the default format: in --format use %k and %h")
    if arguments.json and (arguments.keys or arguments.headers or arguments.null or arguments.unpack):
        raise ConfigError("--json always prints keys, headers and null: omit --keys, --headers, --null and --unpack")
    if {"group.id", "group_id"} & set(pairs(arguments.settings, "-o")):
        raise ConfigError("-o group.id: name the group with --group; without it nothing is committed")


def _check_topics(consumer: Consumer, topics: list[str]) -> None:
    """Fail if the cluster is unreachable, and report missing topics: a group would wait silently for both."""
    for topic in topics:
        try:
            consumer.partitions_for(topic, 10_000)
        except (KafkaConnectionError, KafkaTimeoutError):
            raise
        except KafkaError as error:
            print(f"muster: waiting for topic {topic}: {error.code.name}", file=sys.stderr)


def _assign(consumer: Consumer, arguments: argparse.Namespace) -> UntilEnd | None:
    places: list[TopicPartition] = []
    for topic in arguments.topics:
        known = _partitions(consumer, topic)
        if arguments.partition is not None and arguments.partition not in known:
            raise ConfigError(f"topic {topic} has no partition {arguments.partition}: it has {len(known)} partitions")
        places += [TopicPartition(topic, part) for part in sorted(known) if arguments.partition in (None, part)]
    consumer.assign(places)
    ends = UntilEnd(consumer, places) if arguments.until_end else None
    begin(consumer, places, arguments)
    return ends


def _partitions(consumer: Consumer, topic: str) -> set[int]:
    try:
        return {info.partition for info in consumer.partitions_for(topic, 10_000)}
    except KafkaError as error:
        if error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise MusterError(f"topic {topic} does not exist: create it with `muster topics create`") from None
        raise


def _pump(consumer: Consumer, arguments: argparse.Namespace, output: RecordOutput, ends: UntilEnd | None) -> None:
    """Calling `poll` again confirms that the records it returned before are written."""
    left = arguments.max_messages
    last = time.monotonic()
    while left is None or left > 0:
        output.check_interrupts()
        output.check_reader()
        if ends is not None and ends.reached():
            return
        records = [record for batch in consumer.poll(200, max_records=left).values() for record in batch]
        if ends is not None:
            records = ends.within(records)
        output.write(records)
        if records:
            last = time.monotonic()
            if left is not None:
                left -= len(records)
        elif arguments.timeout_ms is not None and (time.monotonic() - last) * 1000 >= arguments.timeout_ms:
            return


def _commit_written(consumer: Consumer, output: RecordOutput) -> None:
    """After an interruption: commit as much of the last batch as has been written, and no more."""
    mine = consumer.assignment()
    try:
        consumer.commit({place: offset for place, offset in output.written.items() if place in mine}, 5_000)
    except MusterError as error:
        print(f"muster: the last records written are not committed: {error}", file=sys.stderr)


class RecordOutput:
    """Writes records, and knows how far it got when interrupted: `written` is where to continue reading.

    A signal that arrives during a write is handled once the written bytes are counted. A write starts only when the
    stream can take at least `PIPE_BUF` bytes without blocking, so that Ctrl-C also ends a command whose reader has
    stopped reading.
    """

    def __init__(self, stream: BinaryIO, text: Callable[[ConsumerRecord], bytes]) -> None:
        self._raw: BinaryIO = getattr(stream, "raw", stream)  # with a buffer, it would be unknown how much is written
        self._has_fileno = _has_fileno(self._raw)
        self._text = text
        self._counting = False
        self._interrupted_by: int | None = None
        self._interrupts = 0
        self.written: dict[TopicPartition, int] = {}

    def interrupt(self, number: int, frame: FrameType | None) -> None:
        """The signal handler: the first signal stops reading cleanly, the second cuts that short; further ones have no
        effect.

        Python drops what is raised in, for example, a weak reference's callback: `check_interrupts` raises it again.
        """
        self._interrupts += 1
        if self._interrupts > 2:
            return
        self._interrupted_by = number
        if not self._counting:
            raise KeyboardInterrupt(number)

    def check_interrupts(self) -> None:
        """Raise KeyboardInterrupt if a signal came and reading has not stopped."""
        if self._interrupted_by is not None:
            raise KeyboardInterrupt(self._interrupted_by)

    def write(self, records: list[ConsumerRecord]) -> None:
        """Write records."""
        self.written = {}
        texts = [self._text(record) for record in records]
        ends = deque(zip(accumulate(map(len, texts)), records, strict=True))
        data, done = memoryview(b"".join(texts)), 0
        while ends:
            if self._has_fileno:
                select.select([], [self._raw], [])
            self._counting = True
            try:
                if done < len(data):
                    done += self._raw.write(data[done : done + select.PIPE_BUF]) or 0
                while ends and ends[0][0] <= done:
                    record = ends.popleft()[1]
                    self.written[TopicPartition(record.topic, record.partition)] = record.offset + 1
            finally:
                self._counting = False
            self.check_interrupts()

    def check_reader(self) -> None:
        """Raise BrokenPipeError if the reader of the output has exited, as `head` does after its last line.

        Otherwise only a write would notice this, and on a quiet topic the next one may be hours away.
        """
        if self._has_fileno:
            stream = select.poll()
            stream.register(self._raw, 0)  # errors are always reported
            if any(events & (select.POLLERR | select.POLLHUP) for _, events in stream.poll(0)):
                raise BrokenPipeError(errno.EPIPE, "the reader of the output has exited")


def _has_fileno(stream: BinaryIO) -> bool:
    try:
        stream.fileno()
    except OSError:
        return False
    return True
