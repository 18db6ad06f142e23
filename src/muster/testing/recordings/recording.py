"""The file of a recording: what happened to groups, in order of time, one JSON object per line.

The first line identifies the file (`{"muster_recording": 1, …}`), the last one says how the recording ended. Every
other line has `at_ms`, the milliseconds since the recording began, and `what` happened: one of KINDS. Bytes are written
as text if they are UTF-8, and as `{"base64": "…"}` if not, so that people can read and edit a recording.
"""

from __future__ import annotations

import base64
import binascii
import json
import warnings
from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from muster.errors import ConfigError, MusterError
from muster.version import __version__

VERSION = 1
MOST_BYTES = 64 << 20
"""The largest size of a recording."""
_END_BYTES = 1_000
"""Space reserved for the last line."""

Line = Mapping[str, Any]

KINDS: dict[str, dict[str, type | tuple[type, ...]]] = {
    "topic": {"topic": str, "partitions": int},
    "record": {
        "topic": str,
        "partition": int,
        "offset": int,
        "timestamp_ms": int,
        "key": (str, dict, type(None)),
        "value": (str, dict, type(None)),
        "headers": list,
    },
    "had": {"group": str, "offsets": dict},
    "joined": {"group": str, "client": str},
    "left": {"group": str, "client": str},
    "expired": {"group": str, "client": str},
    "fenced": {"group": str, "client": str, "instance": str},
    "generation": {"group": str, "generation": int, "members": list},
    "committed": {"group": str, "client": str, "offsets": dict},
    "struck": {"name": str, "fault": dict, "api": str, "client": str},
    "refused": {"group": str, "client": str, "api": str, "error": str},
    "did": {"act": str},
    "end": {"why": str},
}
"""The kinds of lines, and the fields of each."""

COMPLETE = "complete"
TOO_LARGE = f"it reached {MOST_BYTES >> 20} MiB"


class DamagedRecordingError(ConfigError):
    """A file is not a recording, or is damaged."""


def to_json(data: bytes | None) -> str | dict[str, str] | None:
    """Bytes in the form in which a recording stores them."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def from_json(value: object) -> bytes | None:
    """The inverse of `to_json`. Raises ValueError."""
    if isinstance(value, dict):
        return base64.b64decode(value["base64"], validate=True)
    return value.encode() if isinstance(value, str) else None


def head(source: str, began_ms: int) -> dict[str, Any]:
    """The first line of a recording of `source`."""
    return {"muster_recording": VERSION, "of": source, "began_ms": began_ms, "by": f"muster {__version__}"}


class AnyRecord(Protocol):
    """A record of any reader."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None

    @property
    def headers(self) -> Iterable[tuple[str, bytes | None]]:
        """Pairs of key and value."""


def record_fields(topic: str, partition: int, record: AnyRecord) -> dict[str, Any]:
    """The fields of a record's line."""
    return {
        "topic": topic,
        "partition": partition,
        "offset": record.offset,
        "timestamp_ms": record.timestamp,
        "key": to_json(record.key),
        "value": to_json(record.value),
        "headers": [[key, to_json(value)] for key, value in record.headers],
    }


def free_name(client_id: str, taken: Collection[str]) -> str:
    """The name of a member in a recording: its client id, with a number if another member has the same."""
    names = (f"{client_id}#{number}" if number > 1 else client_id for number in range(1, len(taken) + 2))
    return next(name for name in names if name not in taken)


def open_recording(path: Path) -> BinaryIO:
    """Open the file of a new recording. Raises ConfigError: it cannot be written, or exists and is not a recording."""
    try:
        if path.exists() and path.stat().st_size:
            with path.open("rb") as file:
                if b'"muster_recording"' not in file.read(200):
                    raise ConfigError(f"{path} exists and is not a recording: choose another file, or delete it")
        return path.open("wb")
    except OSError as error:
        raise ConfigError(f"cannot write a recording to {path}: {error.strerror}") from None


class Writer:
    """A recording that is being written, of at most MOST_BYTES. Raises ConfigError, as `open_recording` does."""

    def __init__(self, path: Path, source: str, began_ms: int) -> None:
        self.path = path
        self.size = self.lines = 0
        self.why = ""
        """How the recording has ended: COMPLETE, or the reason why it is incomplete."""
        self._file = open_recording(path)
        self._put(head(source, began_ms))

    def write(self, at_ms: int, what: str, **fields: object) -> None:
        """Write a line, unless the recording has ended."""
        if not self.why:
            self._put({"at_ms": at_ms, "what": what, **fields})

    def end(self, at_ms: int = 0, why: str = COMPLETE) -> None:
        """End the recording, unless it has ended, and close the file."""
        if not self.why:
            self._end(at_ms, why)
        try:
            self._file.close()
        except OSError as error:  # `close` retries a write that failed in `_put`
            self._failed(error)

    def _end(self, at_ms: int, why: str) -> None:
        self._put({"at_ms": at_ms, "what": "end", "why": why})
        self.why = self.why or why

    def _put(self, row: Line) -> None:
        data = f"{json.dumps(row, ensure_ascii=False)}\n".encode()
        if self.size + len(data) > MOST_BYTES - _END_BYTES and row.get("what") != "end":
            self._end(row["at_ms"], TOO_LARGE)
            return
        try:
            self._file.write(data)
            self._file.flush()
            self.size += len(data)
            self.lines += 1
        except OSError as error:
            self._failed(error)

    def _failed(self, error: OSError) -> None:
        self.why = f"the file cannot be written: {error.strerror}"


def check_ended(path: Path, why: str | None) -> None:
    """Warn, or raise MusterError, if a recording is incomplete.

    Args:
        why: how it ended (`Writer.why`); None: it ended with its broker.
    """
    if why is None or why == TOO_LARGE:
        reason = why or "the broker was stopped or killed while it was recorded"
        warnings.warn(f"the recording {path} is incomplete: {reason}", stacklevel=2)
    elif why != COMPLETE:
        raise MusterError(f"the recording {path} is incomplete: {why}")


@dataclass(slots=True)
class Recording:
    """A recording that was read."""

    lines: list[Line]
    """All lines except the first and the last one."""
    why: str
    """How it ended: COMPLETE, or the reason why it is incomplete."""
    _offsets: dict[tuple[str, int], list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        failed: set[str] = set()
        """Clients whose commit was refused later in the recording, before they joined again."""
        for number, each in reversed(list(enumerate(self.lines))):
            match each["what"]:
                case "record":
                    self._offsets.setdefault((each["topic"], each["partition"]), []).append(each["offset"])
                case "refused" if each["api"] == "OffsetCommit" and each["error"] == "UNKNOWN_MEMBER_ID":
                    failed.add(each["client"])
                case "joined":
                    failed.discard(each["client"])
                case "expired" if each["client"] in failed:
                    self.lines[number] = {"before": "OffsetCommit", **each}
        for offsets in self._offsets.values():
            offsets.reverse()

    def replayed_offset(self, topic: str, partition: int, offset: int) -> int:
        """The offset that corresponds to a recorded one in a partition which has only the recorded records, from
        offset 0."""
        return bisect_left(self._offsets.get((topic, partition), []), offset)

    def groups(self) -> list[str]:
        """The groups in it."""
        return sorted({each["group"] for each in self.lines if each.get("group")})

    def clients(self) -> list[str]:
        """The members of its groups, by their names in the recording."""
        return sorted({each["client"] for each in self.lines if each["what"] == "joined"})

    def rename_group(self, name: str) -> None:
        """Rename its group. Raises ConfigError if it has no group or several."""
        known = self.groups()
        if len(known) != 1:
            raise ConfigError(
                f"group={name!r} renames the only group of a recording; this one has {', '.join(known) or 'none'}"
            )
        self.lines = [{**each, "group": name} if each.get("group") else each for each in self.lines]
        for each in self.lines:
            if each["what"] == "struck" and each.get("groups"):
                each["groups"][:] = [name]


def read(text: bytes, name: str) -> Recording:
    """The recording in a file's bytes; `name` is the file's, for errors.

    Raises:
        DamagedRecordingError: the file is not a recording, has another version, or has a damaged line.
    """
    whole, _, torn = text.rpartition(b"\n")
    rows = whole.split(b"\n")
    first = _object(rows[0])
    if first is None or not isinstance(first.get("muster_recording"), int):
        raise DamagedRecordingError(f"{name} is not a recording by muster: its first line has no muster_recording")
    if first["muster_recording"] != VERSION:
        version = first["muster_recording"]
        raise DamagedRecordingError(
            f"{name} is a recording of version {version}, but this version of muster reads only version {VERSION}"
        )
    lines = [_checked(row, f"{name}, line {number}") for number, row in enumerate(rows[1:], 2)]
    _check_order(lines, name)
    if lines and lines[-1]["what"] == "end" and not torn:
        return Recording(lines[:-1], lines[-1]["why"])
    return Recording(lines, "its last line is missing: the broker ended while it was recorded")


def _object(row: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(row)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _checked(row: bytes, where: str) -> Line:
    line = _object(row)
    if line is None:
        raise DamagedRecordingError(f"{where} is damaged: it is not a JSON object")
    known = KINDS.get(line.get("what", ""))
    if known is None:
        raise DamagedRecordingError(f"{where}: what={line.get('what')!r} is unknown; known are {', '.join(KINDS)}")
    for name, kind in {"at_ms": int, **known}.items():
        if name not in line or not isinstance(line[name], kind) or isinstance(line[name], bool):
            problem = f"{name}={line[name]!r} has the wrong type" if name in line else f"{name} is missing"
            raise DamagedRecordingError(f"{where} is damaged: in {line['what']!r}, {problem}")
    try:
        _check_parts(line)
    except (ValueError, TypeError, KeyError, AttributeError, binascii.Error):
        raise DamagedRecordingError(f"{where} is damaged: a part of {line['what']!r} has an invalid value") from None
    return line


def _check_parts(line: Line) -> None:
    """Raises an error of any kind if a value within a line is not valid."""
    _require(isinstance(line.get("before", ""), str))
    match line["what"]:
        case "topic":
            _require(0 < line["partitions"] <= 10_000)
        case "record":
            _require(line["partition"] >= 0 and line["offset"] >= 0)
            for value in (line["key"], line["value"], *(value for _, value in _pairs(line["headers"]))):
                from_json(value)
        case "committed" | "had":
            _require(all(int(p) >= 0 and o >= 0 for offsets in line["offsets"].values() for p, o in offsets.items()))
        case "generation":
            for member in line["members"]:
                _require(isinstance(member["client"], str))
                _require(all(isinstance(p, int) for owned in member["partitions"].values() for p in owned))


def _pairs(headers: Iterable[Any]) -> Iterable[tuple[str, Any]]:
    for key, value in headers:
        _require(isinstance(key, str))
        yield key, value


def _require(condition: bool) -> None:
    if not condition:
        raise ValueError


def _check_order(lines: list[Line], name: str) -> None:
    """Raises DamagedRecordingError unless offsets increase and each topic is declared before its records: a recording
    edited by hand may violate both."""
    last: dict[tuple[str, int], int] = {}
    topics: dict[str, int] = {}
    for number, each in enumerate(lines, 2):
        if each["what"] == "topic":
            topics[each["topic"]] = each["partitions"]
        elif each["what"] == "record":
            place = each["topic"], each["partition"]
            if each["partition"] >= topics.get(each["topic"], 0):
                raise DamagedRecordingError(
                    f"{name}, line {number}: no line before this record declares its topic and partition"
                )
            if each["offset"] <= last.get(place, -1):
                raise DamagedRecordingError(
                    f"{name}, line {number}: the offset is not greater than that of the partition's previous record"
                )
            last[place] = each["offset"]
