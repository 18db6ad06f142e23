"""Checks of the values that a caller passes in, before they go into a request.

A value that the protocol cannot carry fails the whole request, and several calls may share one request: a single bad
topic name would stop all metadata updates. So such a value is refused when the caller passes it in.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from muster.client.config import whole_number
from muster.errors import IllegalArgumentError
from muster.model import OffsetAndMetadata, TopicPartition

MAX_OFFSET = 2**63 - 1
MAX_INT = 2**31 - 1
MAX_REASON_LENGTH = 255
"""The maximum length of the reason for joining or leaving (KIP-800)."""
_MIN_TIMESTAMP = -6
"""Timestamps below 0 have meanings of their own, such as `LATEST_TIMESTAMP`."""
MAX_TEXT_BYTES = 2**15 - 1
"""What the oldest versions of the requests can carry."""


def check_text(what: str, text: Any) -> str:
    """Text that goes over the wire.

    Raises:
        IllegalArgumentError: it is not text, cannot be encoded as UTF-8, or is longer than a request can carry.
    """
    if not isinstance(text, str):
        raise IllegalArgumentError(f"{what} is {text!r}; it must be text")
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise IllegalArgumentError(f"{what} is {text!r}, which cannot be encoded as UTF-8") from None
    if size > MAX_TEXT_BYTES:
        raise IllegalArgumentError(f"{what} has {size} bytes; at most {MAX_TEXT_BYTES} can be sent")
    return text


def check_topic(topic: Any) -> str:
    """A topic's name: text that is not empty. The broker decides which names are allowed."""
    if not check_text("a topic", topic):
        raise IllegalArgumentError("a topic has an empty name")
    return str(topic)


def check_partition(partition: Any) -> TopicPartition:
    """A partition; a plain pair will do."""
    try:
        topic, number = partition
    except (TypeError, ValueError):
        raise IllegalArgumentError(f"{partition!r} is not a partition: give TopicPartition(topic, number)") from None
    check_topic(topic)
    return TopicPartition(topic, check_number(f"the partition of {topic}", number, 0, MAX_INT))


def check_partitions(partitions: Iterable[Any]) -> list[TopicPartition]:
    """Several partitions."""
    return [check_partition(partition) for partition in partitions]


def check_number(what: str, number: Any, least: int, most: int) -> int:
    """A whole number within bounds; any type with `__index__` counts as one.

    Raises:
        IllegalArgumentError: it is not a whole number, or out of bounds.
    """
    if isinstance(number, bool) or not hasattr(number, "__index__"):
        raise IllegalArgumentError(f"{what} is {number!r}; it must be {whole_number(what, number)}")
    value = int(number.__index__())
    if not least <= value <= most:
        raise IllegalArgumentError(f"{what} is {value}; it must be at least {least} and at most {most}")
    return value


def check_timeout(timeout_ms: Any) -> int:
    """How long a call may take.

    A float is refused even if it is whole: other clients take seconds, and a loop with `poll(1.0)` would be a busy
    loop.

    Raises:
        IllegalArgumentError: it is not a whole number, or negative, which Kafka's client refuses too.
    """
    if isinstance(timeout_ms, int) and timeout_ms < 0:
        raise IllegalArgumentError(f"timeout_ms is {timeout_ms}; it must be at least 0: no call waits forever")
    return check_number("timeout_ms", timeout_ms, 0, MAX_OFFSET)


def compile_pattern(pattern: Any) -> re.Pattern[str]:
    """Compile a pattern for topics.

    Raises:
        IllegalArgumentError: it is not a regular expression for text.
    """
    text = pattern.pattern if isinstance(pattern, re.Pattern) else pattern
    if not isinstance(text, str):
        raise IllegalArgumentError(f"the pattern is {pattern!r}; it must be text or a compiled pattern for text")
    try:
        return re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise IllegalArgumentError(f"the pattern {pattern!r} is not a regular expression: {error}") from None


def check_offset(partition: TopicPartition, offset: Any) -> OffsetAndMetadata:
    """A position: a number, or an `OffsetAndMetadata`."""
    what = f"the offset of {partition}"
    if not isinstance(offset, OffsetAndMetadata):
        return OffsetAndMetadata(check_number(what, offset, 0, MAX_OFFSET))
    return OffsetAndMetadata(
        check_number(what, offset.offset, 0, MAX_OFFSET),
        check_number(f"the leader epoch of {partition}", offset.leader_epoch, -1, MAX_INT),
        check_text(f"the metadata of {partition}", offset.metadata),
    )


def check_timestamps(timestamps: Mapping[Any, Any]) -> dict[TopicPartition, int]:
    """Timestamps at which offsets are looked up, in milliseconds."""
    return {
        (p := check_partition(partition)): check_number(f"the timestamp of {p}", at_ms, _MIN_TIMESTAMP, MAX_OFFSET)
        for partition, at_ms in _check_mapping("the timestamps", timestamps).items()
    }


def check_offsets(offsets: Mapping[Any, Any]) -> dict[TopicPartition, OffsetAndMetadata]:
    """Offsets to be committed."""
    return {
        (p := check_partition(partition)): check_offset(p, offset)
        for partition, offset in _check_mapping("the offsets", offsets).items()
    }


def _check_mapping(what: str, value: Any) -> Mapping[Any, Any]:
    if not isinstance(value, Mapping):
        raise IllegalArgumentError(f"{what} are {value!r}; they must be a mapping with TopicPartition keys")
    return value
