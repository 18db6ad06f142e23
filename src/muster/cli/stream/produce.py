"""`muster produce`: writes lines from standard input as records."""

from __future__ import annotations

import argparse
import base64
import json
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

from muster.cli.common import add_connection, client_settings, pairs, reaching
from muster.cli.logs import set_up_log
from muster.client.config import ProducerConfig
from muster.client.producer.producer import Producer
from muster.errors import ConfigError, MusterError
from muster.model import RecordMetadata


class InputRecord(NamedTuple):
    """A record parsed from a line."""

    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    partition: int | None = None
    timestamp_ms: int | None = None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `muster produce`."""
    parser.add_argument("topic", metavar="TOPIC")
    parser.add_argument("--key-separator", metavar="TEXT", help="separator between key and value")
    parser.add_argument(
        "--json", action="store_true", help="lines are JSON objects: key, value, headers, partition, timestamp"
    )
    parser.add_argument(
        "-H", dest="headers", action="append", default=[], metavar="NAME=VALUE", help="a header (repeatable)"
    )
    parser.add_argument(
        "--partition",
        type=int,
        metavar="N",
        help="write to this partition (default: by key, like Kafka's Java producer)",
    )
    parser.add_argument(
        "--acks", choices=("all", "1", "0"), default="all", help="acknowledgements to wait for (default all)"
    )
    parser.add_argument(
        "--compression",
        choices=("none", "gzip", "snappy", "lz4", "zstd"),
        default="none",
        help="how batches are compressed (default none)",
    )
    parser.add_argument(
        "--verbose", action="store_true", help="print each record's partition and offset on standard error"
    )
    add_connection(parser)


def run(arguments: argparse.Namespace) -> int:
    """Produce until the input ends; returns 0 if everything was acknowledged."""
    if arguments.json and arguments.key_separator:
        raise ConfigError("--json and --key-separator cannot be combined: a JSON line has its own key")
    set_up_log(arguments)
    if sys.stdin is None:  # checked before connecting: otherwise an unreachable broker would be reported first
        raise MusterError("standard input is closed: there is nothing to produce")
    settings = {"max.block.ms": 10_000, "acks": arguments.acks, "compression.type": arguments.compression}
    failures: list[MusterError] = []
    headers = [(name, value.encode()) for name, value in pairs(arguments.headers, "-H").items()]

    def on_delivery(metadata: RecordMetadata | None, error: MusterError | None) -> None:
        if error is not None:
            failures.append(error)
        elif arguments.verbose and metadata is not None:
            print(f"{metadata.topic}-{metadata.partition} at offset {metadata.offset}", file=sys.stderr)

    with reaching(arguments.bootstrap), Producer(settings | client_settings(arguments, ProducerConfig)) as producer:
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


def read_lines(arguments: argparse.Namespace) -> Iterator[InputRecord]:
    """The records of standard input."""
    separator = arguments.key_separator.encode() if arguments.key_separator else None
    for number, raw in enumerate(sys.stdin.buffer, 1):
        text = raw.rstrip(b"\r\n")
        if arguments.json:
            yield from_json(text, number)
        elif separator is None:
            yield InputRecord(None, text, [])
        else:
            key, found, value = text.partition(separator)
            if not found:
                raise MusterError(f"line {number} has no key: it lacks the separator {arguments.key_separator!r}")
            yield InputRecord(key, value, [])


def from_json(text: bytes, number: int) -> InputRecord:
    """A record from a JSON object. A key or value that is not a string is written as JSON; null stays null.

    Bytes that are not text are base64 in `key_base64` or `value_base64`, in a header `{"base64": …}`.
    """
    try:
        found: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise MusterError(f"line {number} is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise MusterError(f"line {number} is not a JSON object")
    unknown = set(found) - _NAMES
    if unknown:
        raise MusterError(f"line {number}: unknown field {', '.join(sorted(unknown))}; see --help")
    headers: Any = found.get("headers") or {}
    named = headers.items() if isinstance(headers, dict) else headers
    try:
        pairs = [(str(name), _header(value)) for name, value in named]
    except (TypeError, ValueError):
        raise MusterError(f"line {number}: headers must be an object, or a list of [name, value] pairs") from None
    for name in ("partition", "timestamp"):
        if not isinstance(found.get(name), int | None) or isinstance(found.get(name), bool):
            raise MusterError(f"line {number}: {name} must be a whole number")
    key, value = (_field(found, name, number) for name in ("key", "value"))
    return InputRecord(key, value, pairs, found.get("partition"), found.get("timestamp"))


# `muster consume --json` also writes `topic` and `offset`: they are ignored here.
_NAMES = {"key", "key_base64", "value", "value_base64", "headers", "partition", "timestamp", "topic", "offset"}


def _field(found: dict[str, Any], name: str, number: int) -> bytes | None:
    encoded = found.get(f"{name}_base64")
    if encoded is None:
        try:
            return _bytes(found.get(name))
        except UnicodeEncodeError:
            raise MusterError(
                f"line {number}: {name} has an unpaired surrogate, which cannot be encoded as UTF-8"
            ) from None
    if found.get(name) is not None:
        raise MusterError(f"line {number}: {name} and {name}_base64 cannot be combined")
    try:
        return base64.b64decode(encoded, validate=True)
    except (TypeError, ValueError):
        raise MusterError(f"line {number}: {name}_base64 is not base64") from None


def _header(value: Any) -> bytes | None:
    if isinstance(value, dict) and value.keys() == {"base64"}:
        return base64.b64decode(value["base64"], validate=True)
    return _bytes(value)


def _bytes(value: Any) -> bytes | None:
    if value is None:
        return None
    return value.encode() if isinstance(value, str) else json.dumps(value, separators=(",", ":")).encode()
