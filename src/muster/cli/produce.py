"""`muster produce`: the lines of standard input as records."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

from muster.cli.common import add_connection, client_settings, pairs, reaching
from muster.client.producer import Producer
from muster.errors import ConfigError, MusterError
from muster.model import RecordMetadata


class Line(NamedTuple):
    """A record as a line gives it."""

    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    partition: int | None = None
    timestamp_ms: int | None = None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `muster produce`."""
    parser.add_argument("topic", metavar="TOPIC")
    parser.add_argument("--key-separator", metavar="TEXT", help="what stands before it in a line is the key")
    parser.add_argument(
        "--json", action="store_true", help="lines are objects: key, value, headers, partition, timestamp"
    )
    parser.add_argument("-H", dest="headers", action="append", default=[], metavar="NAME=VALUE", help="a header")
    parser.add_argument("--partition", type=int, metavar="N", help="default: by the key, as Java's producer chooses")
    parser.add_argument("--acks", choices=("all", "1", "0"), default="all")
    parser.add_argument("--compression", choices=("none", "gzip", "snappy", "lz4", "zstd"), default="none")
    parser.add_argument("--verbose", action="store_true", help="tell where each record was written")
    add_connection(parser)


def run(arguments: argparse.Namespace) -> int:
    """Produce until the input ends; the exit code says whether all of it was acknowledged."""
    if arguments.json and arguments.key_separator:
        raise ConfigError("--json and --key-separator exclude each other: a JSON line has a key of its own")
    settings = {"max.block.ms": 10_000, "acks": arguments.acks, "compression.type": arguments.compression}
    failures: list[MusterError] = []
    headers = [(name, value.encode()) for name, value in pairs(arguments.headers, "-H").items()]

    def on_delivery(metadata: RecordMetadata | None, error: MusterError | None) -> None:
        if error is not None:
            failures.append(error)
        elif arguments.verbose and metadata is not None:
            print(f"{metadata.topic}-{metadata.partition} at offset {metadata.offset}", file=sys.stderr)

    with reaching(arguments.bootstrap), Producer(settings | client_settings(arguments)) as producer:
        for line in read_lines(arguments):
            if failures:
                break
            producer.send(
                arguments.topic,
                line.value,
                line.key,
                partition=arguments.partition if line.partition is None else line.partition,
                timestamp_ms=line.timestamp_ms,
                headers=headers + line.headers,
                on_delivery=on_delivery,
            )
        producer.flush()
    if failures:
        with reaching(arguments.bootstrap):
            raise failures[0]
    return 0


def read_lines(arguments: argparse.Namespace) -> Iterator[Line]:
    """The records of standard input."""
    separator = arguments.key_separator.encode() if arguments.key_separator else None
    for number, raw in enumerate(sys.stdin.buffer, 1):
        text = raw.rstrip(b"\r\n")
        if arguments.json:
            yield from_json(text, number)
        elif separator is None:
            yield Line(None, text, [])
        else:
            key, found, value = text.partition(separator)
            if not found:
                raise MusterError(f"line {number} has no key: {arguments.key_separator!r} is not in it")
            yield Line(key, value, [])


def from_json(text: bytes, number: int) -> Line:
    """A record as an object. A key or value that is no text is written as JSON itself, null is none."""
    try:
        found: Any = json.loads(text)
    except ValueError as error:
        raise MusterError(f"line {number} is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise MusterError(f"line {number} is no JSON object")
    unknown = set(found) - {"key", "value", "headers", "partition", "timestamp"}
    if unknown:
        raise MusterError(f"line {number}: {', '.join(sorted(unknown))} means nothing; see --help")
    headers: Any = found.get("headers") or {}
    named = headers.items() if isinstance(headers, dict) else headers
    try:
        pairs = [(str(name), _bytes(value)) for name, value in named]
    except (TypeError, ValueError):
        raise MusterError(f"line {number}: headers are an object, or pairs of a name and a value") from None
    for name in ("partition", "timestamp"):
        if not isinstance(found.get(name), int | None):
            raise MusterError(f"line {number}: {name} is a whole number")
    return Line(
        _bytes(found.get("key")), _bytes(found.get("value")), pairs, found.get("partition"), found.get("timestamp")
    )


def _bytes(value: Any) -> bytes | None:
    if value is None:
        return None
    return value.encode() if isinstance(value, str) else json.dumps(value, separators=(",", ":")).encode()
