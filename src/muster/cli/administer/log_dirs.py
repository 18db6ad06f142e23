"""`muster log-dirs`: the disk space that partitions use, as `kafka-log-dirs` reports it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping

from muster.cli.common import add_connection, add_timeout, open_admin, print_json, report_errors
from muster.client.core.admin.partitions import LogDirDescription
from muster.errors import ConfigError, KafkaError

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
Brokers = Mapping[int, Mapping[str, LogDirDescription]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `muster log-dirs`."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    describe = actions.add_parser("describe", help="show the log directories and the size of each partition in them")
    describe.add_argument("--broker", action="append", type=int, metavar="ID", help="only this broker (repeatable)")
    describe.add_argument("--topic", action="append", metavar="TOPIC", help="only this topic (repeatable)")
    describe.add_argument("--json", action="store_true", help="print JSON, as kafka-log-dirs does")
    add_connection(describe)
    add_timeout(describe)


def run(arguments: argparse.Namespace) -> int:
    """Print the directories; returns 0 if all brokers answered and no directory has an error."""
    with open_admin(arguments) as admin:
        answers = admin.describe_log_dirs(arguments.broker, raise_errors=False)
    found = {broker: answer for broker, answer in answers.items() if not isinstance(answer, KafkaError)}
    topics = set(arguments.topic or [])
    if topics and not any(topics & held_topics(directory) for dirs in found.values() for directory in dirs.values()):
        raise ConfigError(f"no broker has partitions of {', '.join(sorted(topics))}")
    if arguments.json:
        print_json(as_json(found, topics))
    else:
        for line in table(found, topics):
            print(line)
    code = report_errors(answers, "broker")
    for broker, dirs in found.items():
        for path, directory in dirs.items():
            if directory.error is not None:
                print(f"muster: broker {broker}: {path}: {directory.error.code.name}", file=sys.stderr)
                code = 1
    return code


def held_topics(directory: LogDirDescription) -> set[str]:
    """The topics with partitions in a directory."""
    return {place.topic for place in directory.replicas}


def as_json(brokers: Brokers, topics: set[str]) -> dict[str, object]:
    """The JSON document of `kafka-log-dirs`, with the volumes' sizes (KIP-827)."""
    return {
        "version": 1,
        "brokers": [
            {
                "broker": broker,
                "logDirs": [
                    {
                        "logDir": path,
                        "error": None if found.error is None else found.error.code.name,
                        "totalBytes": found.total_bytes,
                        "usableBytes": found.usable_bytes,
                        "partitions": [
                            {
                                "partition": str(place),
                                "size": replica.size,
                                "offsetLag": replica.offset_lag,
                                "isFuture": replica.is_future,
                            }
                            for place, replica in sorted(found.replicas.items())
                            if not topics or place.topic in topics
                        ],
                    }
                    for path, found in sorted(dirs.items())
                ],
            }
            for broker, dirs in sorted(brokers.items())
        ],
    }


def table(brokers: Brokers, topics: set[str]) -> list[str]:
    """A line for each directory, followed by its partitions, largest first."""
    lines: list[str] = []
    for broker, dirs in sorted(brokers.items()):
        for path, found in sorted(dirs.items()):
            held = {place: each for place, each in found.replicas.items() if not topics or place.topic in topics}
            volume = ""
            if found.total_bytes is not None and found.usable_bytes is not None:
                volume = f"; {size_text(found.usable_bytes)} of {size_text(found.total_bytes)} free on its volume"
            used = size_text(sum(each.size for each in held.values()))
            lines.append(f"Broker {broker}, {path}: {len(held)} partitions, {used}{volume}")
            for place, each in sorted(held.items(), key=lambda item: (-item[1].size, item[0])):
                lag = f"\tlag {each.offset_lag}" if each.offset_lag else ""
                future = "\tmoving here" if each.is_future else ""
                lines.append(f"\t{size_text(each.size):>10}\t{place}{lag}{future}")
    return lines


def size_text(size: int) -> str:
    """A size for people to read: 4.2 MiB."""
    number, unit = float(size), 0
    while number >= 1024 and unit < len(_UNITS) - 1:
        number /= 1024
        unit += 1
    return f"{size} B" if unit == 0 else f"{number:.1f} {_UNITS[unit]}"
