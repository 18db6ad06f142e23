"""What a broker's folder says about groups afterwards: the segments of `__consumer_offsets`, and its log from that
time."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path
from struct import Struct
from typing import Any

from muster.protocol.records.record_batch import iter_headers, read_tuples

Row = tuple[int, int, int, int, bytes, bytes | None, bool]
"""Partition, offset, timestamp in ms, the leader epoch of the batch, key, value, whether it is transactional."""

_GROUP = Struct(">hh")
LOGGED = re.compile(r"^(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}) [A-Z]+ (GroupMetadataManager|GroupCoordinator\w*) (.*)$")


def group_of(key: bytes) -> str:
    """The group that a key names: it follows the kind in keys of every kind."""
    _, length = _GROUP.unpack_from(key)
    return key[_GROUP.size : _GROUP.size + length].decode()


def topic_rows(data: Path, name: str = "__consumer_offsets") -> Iterator[Row]:
    """Every record of a topic in a broker's data folder, tombstones and unknown kinds included, in the log's order."""
    for folder in sorted(data.glob(f"{name}-*"), key=lambda path: int(path.name.rpartition("-")[2])):
        partition = int(folder.name.rpartition("-")[2])
        for segment in sorted(folder.glob("*.log")):
            content = segment.read_bytes()
            for position, header in iter_headers(content):
                if header.is_control:
                    continue
                for offset, timestamp, key, value, _ in read_tuples(content, position, header):
                    place = partition, offset, timestamp, header.partition_leader_epoch
                    yield *place, key or b"", value, header.is_transactional


def rows_of(data: Path, prefix: str) -> list[Row]:
    """The records of groups whose names begin with the prefix."""
    return [row for row in topic_rows(data) if group_of(row[4]).startswith(prefix)]


def events_of(data: Path, prefix: str) -> list[dict[str, Any]]:
    """What muster's broker wrote to `__group_events` about groups whose names begin with the prefix."""
    values = (value for *_, key, value, _ in topic_rows(data, "__group_events") if key.decode().startswith(prefix))
    return [json.loads(value) for value in values if value is not None]


def as_json(row: Row) -> list[Any]:
    """A row in the corpus's form. Older files lack the last column."""
    *numbers, key, value, is_transactional = row
    text = None if value is None else base64.b64encode(value).decode()
    return [*numbers, base64.b64encode(key).decode(), text, is_transactional]


def said_of(logs: Iterable[str], prefix: str) -> list[dict[str, Any]]:
    """What brokers' coordinators logged about groups whose names begin with the prefix, in order of time."""
    named = re.compile(rf"(?<![\w-])({re.escape(prefix)}[\w.-]+)")
    found = []
    for log in logs:
        for line in log.splitlines():
            if (logged := LOGGED.match(line)) and (group := named.search(logged[3])):
                at = datetime.strptime(logged[1], "%Y-%m-%d %H:%M:%S,%f").astimezone()
                group_name = group[1].rstrip(".")
                found.append({"at_ms": round(at.timestamp() * 1000), "group": group_name, "text": logged[3]})
    return sorted(found, key=lambda told: told["at_ms"])
