"""`muster records`: deletes the oldest records of partitions, as `kafka-delete-records` does."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from muster.cli.administer.confirmation import add_yes, confirm, some
from muster.cli.administer.reset_plan import named_partitions
from muster.cli.common import (
    FILES,
    add_connection,
    add_timeout,
    completed,
    open_admin,
    partitions_of,
    print_json,
    report_errors,
)
from muster.client.admin.admin import Admin
from muster.client.core.admin.partitions import HIGH_WATERMARK
from muster.errors import ConfigError, KafkaError, MusterError
from muster.model import TopicPartition
from muster.protocol.api import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `muster records`."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    delete = actions.add_parser("delete", help="delete all records before an offset")
    delete.add_argument("topics", nargs="*", metavar="TOPIC[:0,1]", help="a topic, or some of its partitions")
    what = delete.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "--before", type=int, metavar="OFFSET", help="delete records before this offset, in each partition"
    )
    what.add_argument("--all", action="store_true", help="delete all current records")
    shape = "delete the records that a JSON file for kafka-delete-records names"
    completed(
        what.add_argument("--from-file", "--offset-json-file", dest="from_file", metavar="FILE", help=shape), FILES
    )
    delete.add_argument("--json", action="store_true", help="print JSON")
    add_yes(delete)
    add_connection(delete)
    add_timeout(delete)


def run(arguments: argparse.Namespace) -> int:
    """Delete the records; returns 0 if everything succeeded."""
    if bool(arguments.topics) == (arguments.from_file is not None):
        raise ConfigError("records delete: name topics with --before or --all, or use --from-file alone")
    if arguments.before is not None and arguments.before < 0:
        raise ConfigError(f"--before {arguments.before}: an offset must be at least 0")
    read = _read(arguments.from_file) if arguments.from_file is not None else None
    named = named_partitions(arguments.topics, "records delete:")
    with open_admin(arguments) as admin:
        wanted = read
        if wanted is None:
            offset = HIGH_WATERMARK if arguments.all else arguments.before
            wanted = dict.fromkeys(partitions_of(admin, named, ". Nothing was deleted."), offset)
        return _delete(admin, arguments, wanted)


def _read(path: str) -> dict[TopicPartition, int]:
    try:
        text = Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not valid UTF-8"
        raise ConfigError(f"cannot read {path}: {why}") from None
    return offsets_from_json(text, path)


def offsets_from_json(text: str, name: str) -> dict[TopicPartition, int]:
    """A file for `kafka-delete-records`: partitions, each with the offset before which to delete, or -1 for all.

    Raises:
        ConfigError: the text is not such a file.
    """
    try:
        found: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{name} is not JSON: {error}") from None
    listed = found.get("partitions") if isinstance(found, dict) else None
    if not isinstance(listed, list):
        raise ConfigError(f'{name} is not of the form {{"partitions": [{{"topic": …, "partition": 0, "offset": 1}}]}}')
    if found.get("version", 1) != 1:
        raise ConfigError(f"{name} has version {found['version']!r}; only version 1 is supported")
    offsets: dict[TopicPartition, int] = {}
    for number, each in enumerate(listed, 1):
        place, offset = _entry(each, f"{name}, entry {number} of partitions")
        if place in offsets:
            raise ConfigError(f"{name} names {place} twice")
        offsets[place] = offset
    return offsets


def _entry(each: Any, where: str) -> tuple[TopicPartition, int]:
    if not isinstance(each, dict):
        raise ConfigError(f"{where} is not an object")
    topic = each.get("topic")
    if not isinstance(topic, str) or not topic:
        raise ConfigError(f"{where} has no topic")
    numbers: list[int] = []
    for key, least in (("partition", 0), ("offset", HIGH_WATERMARK)):
        number = each.get(key)
        if not isinstance(number, int) or isinstance(number, bool) or number < least:
            raise ConfigError(f"{where}: {key} must be a whole number of at least {least}, not {number!r}")
        numbers.append(number)
    return TopicPartition(topic, numbers[0]), numbers[1]


def _delete(admin: Admin, arguments: argparse.Namespace, wanted: dict[TopicPartition, int]) -> int:
    """Delete in all partitions or none: all offsets are checked against the logs first."""
    count = _count(admin, wanted)
    if wanted:
        confirm(arguments, f"Delete {count} records of {some([str(place) for place in wanted])}?")
    results = admin.delete_records(wanted, raise_errors=False)
    if arguments.json:
        print_json(
            [
                {"topic": place.topic, "partition": place.partition}
                | ({"error": found} if isinstance(found, KafkaError) else {"low_watermark": found})
                for place, found in results.items()
            ]
        )
    else:
        for place, found in results.items():
            if not isinstance(found, KafkaError):
                print(f"partition: {place}\tlow_watermark: {found}")
    return report_errors(results, "partition")


def _count(admin: Admin, wanted: dict[TopicPartition, int]) -> int:
    """How many offsets would be deleted; a compacted log has fewer records than offsets."""
    listed = [
        admin.list_offsets(dict.fromkeys(wanted, which), raise_errors=False)
        for which in (EARLIEST_TIMESTAMP, LATEST_TIMESTAMP)
    ]
    count = 0
    for place, offset in wanted.items():
        begin, end = (found[place] for found in listed)
        for error in (begin, end):
            if isinstance(error, KafkaError):
                raise MusterError(f"partition {place}: {error.code.name}. Nothing was deleted.")
        first, last = (0 if found is None or isinstance(found, KafkaError) else found.offset for found in (begin, end))
        if offset > last:
            raise MusterError(f"{place} ends at {last}, before offset {offset}. Nothing was deleted.")
        count += max(0, (last if offset == HIGH_WATERMARK else offset) - first)
    return count
