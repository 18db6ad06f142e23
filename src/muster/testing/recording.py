"""The file of a recording: what a group saw, a JSON object a line, by time.

The first line says what it is (`{"muster_recording": 1, …}`), the last one how it ended. Every other line has `at_ms`,
the milliseconds since it began, and `what` happened: KINDS. Bytes are text where they are UTF-8, and
`{"base64": "…"}` where they are not, so that a recording can be read, and edited, by a person.
"""

from __future__ import annotations

import base64
import binascii
import json
from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from muster.errors import ConfigError
from muster.version import __version__

VERSION = 1
MOST_BYTES = 64 << 20
"""The largest recording."""
_END_BYTES = 1_000
"""Room for its last line."""

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
"""What may have happened, and the fields that the line of each has."""

COMPLETE = "complete"
TOO_LARGE = f"it reached {MOST_BYTES >> 20} MiB"


class DamagedRecordingError(ConfigError):
    """A file that is not a recording, or was damaged."""


def to_json(data: bytes | None) -> str | dict[str, str] | None:
    """Bytes as they stand in a recording."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def from_json(value: object) -> bytes | None:
    """The bytes again. Raises ValueError."""
    if isinstance(value, dict):
        return base64.b64decode(value["base64"], validate=True)
    return value.encode() if isinstance(value, str) else None


def head(source: str, began_ms: int) -> dict[str, Any]:
    """The first line of a recording of `source`."""
    return {"muster_recording": VERSION, "of": source, "began_ms": began_ms, "by": f"muster {__version__}"}


class Record(Protocol):
    """A record, as readers have it."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None

    @property
    def headers(self) -> Iterable[tuple[str, bytes | None]]:
        """Pairs of key and value."""


def record_fields(topic: str, partition: int, record: Record) -> dict[str, Any]:
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
    """What a member is called: its client id, with a number where another member has the same."""
    names = (f"{client_id}#{number}" if number > 1 else client_id for number in range(1, len(taken) + 2))
    return next(name for name in names if name not in taken)


def opened(path: Path) -> BinaryIO:
    """A new recording's file. Raises ConfigError: it cannot be written, or is something else than a recording."""
    try:
        if path.exists() and path.stat().st_size:
            with path.open("rb") as file:
                if b'"muster_recording"' not in file.read(200):
                    raise ConfigError(f"{path} exists, and is not a recording: it is left alone")
        return path.open("wb")
    except OSError as error:
        raise ConfigError(f"cannot write a recording to {path}: {error.strerror}") from None


class Writer:
    """A recording that is being written, of at most MOST_BYTES. Raises ConfigError as `opened` does."""

    def __init__(self, path: Path, source: str, began_ms: int) -> None:
        self.path = path
        self.size = self.lines = 0
        self.why = ""
        """How it has ended: COMPLETE, or why it breaks off."""
        self._file = opened(path)
        self._put(head(source, began_ms))

    def write(self, at_ms: int, what: str, **fields: object) -> None:
        """Add a line, unless the recording has ended."""
        if not self.why:
            self._put({"at_ms": at_ms, "what": what, **fields})

    def end(self, at_ms: int = 0, why: str = COMPLETE) -> None:
        """End it, unless it has ended, and close the file."""
        if not self.why:
            self._end(at_ms, why)
        self._file.close()

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
            self.why = f"{self.path}: {error.strerror}"


@dataclass(slots=True)
class Recording:
    """A recording that was read."""

    lines: list[Line]
    """All but the first and the last."""
    why: str
    """How it ended: COMPLETE, or why it breaks off."""
    _offsets: dict[tuple[str, int], list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        failed: set[str] = set()
        """The clients of which a commit was refused since they were members."""
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

    def place(self, topic: str, partition: int, offset: int) -> int:
        """What an offset is where the partition has the recorded records alone, from offset 0 on."""
        return bisect_left(self._offsets.get((topic, partition), []), offset)

    def groups(self) -> list[str]:
        """The groups that something happened to."""
        return sorted({each["group"] for each in self.lines if each.get("group")})

    def clients(self) -> list[str]:
        """The members of its groups, by client id."""
        return sorted({each["client"] for each in self.lines if each["what"] == "joined"})

    def rename_group(self, name: str) -> None:
        """Have its one group bear another name. Raises ConfigError where it has several."""
        known = self.groups()
        if len(known) != 1:
            raise ConfigError(f"group={name!r} renames one group; this recording has {', '.join(known) or 'none'}")
        self.lines = [{**each, "group": name} if each.get("group") else each for each in self.lines]
        for each in self.lines:
            if each["what"] == "struck" and each.get("groups"):
                each["groups"][:] = [name]


def read(text: bytes, name: str) -> Recording:
    """The recording in a file's bytes.

    Raises:
        DamagedRecordingError: it is not one, is of a later version, or a line of it is damaged.
    """
    whole, _, torn = text.rpartition(b"\n")
    rows = whole.split(b"\n")
    first = _object(rows[0])
    if first is None or not isinstance(first.get("muster_recording"), int):
        raise DamagedRecordingError(f"{name} is not a recording of muster's: its first line does not say so")
    if first["muster_recording"] != VERSION:
        version = first["muster_recording"]
        raise DamagedRecordingError(f"{name} is a recording of version {version}; this muster reads {VERSION}")
    lines = [_checked(row, f"{name}, line {number}") for number, row in enumerate(rows[1:], 2)]
    _check_order(lines, name)
    if lines and lines[-1]["what"] == "end" and not torn:
        return Recording(lines[:-1], lines[-1]["why"])
    return Recording(lines, "its last line is missing: the broker ended while it was recorded")


def _object(row: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(row)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _checked(row: bytes, where: str) -> Line:
    found = _object(row)
    if found is None:
        raise DamagedRecordingError(f"{where} is damaged: it is not a JSON object")
    known = KINDS.get(found.get("what", ""))
    if known is None:
        raise DamagedRecordingError(f"{where}: what={found.get('what')!r} is none of {', '.join(KINDS)}")
    for name, kind in {"at_ms": int, **known}.items():
        if name not in found or not isinstance(found[name], kind) or isinstance(found[name], bool):
            raise DamagedRecordingError(f"{where} is damaged: {name}={found.get(name)!r} of {found['what']!r}")
    try:
        _check_parts(found)
    except (ValueError, TypeError, KeyError, AttributeError, binascii.Error):
        raise DamagedRecordingError(
            f"{where} is damaged: a part of {found['what']!r} is not as it was written"
        ) from None
    return found


def _check_parts(found: Line) -> None:
    """Raises an error of some kind where something within a line is not as it was written."""
    _require(isinstance(found.get("before", ""), str))
    match found["what"]:
        case "topic":
            _require(0 < found["partitions"] <= 10_000)
        case "record":
            _require(found["partition"] >= 0 and found["offset"] >= 0)
            for value in (found["key"], found["value"], *(value for _, value in _pairs(found["headers"]))):
                from_json(value)
        case "committed" | "had":
            _require(all(int(p) >= 0 and o >= 0 for offsets in found["offsets"].values() for p, o in offsets.items()))
        case "generation":
            for member in found["members"]:
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
    """Offsets grow, and topics are named before their records: what is edited by hand may be neither."""
    last: dict[tuple[str, int], int] = {}
    topics: dict[str, int] = {}
    for number, each in enumerate(lines, 2):
        if each["what"] == "topic":
            topics[each["topic"]] = each["partitions"]
        elif each["what"] == "record":
            place = each["topic"], each["partition"]
            if each["partition"] >= topics.get(each["topic"], 0):
                raise DamagedRecordingError(f"{name}, line {number}: no line before it has the topic of this record")
            if each["offset"] <= last.get(place, -1):
                raise DamagedRecordingError(f"{name}, line {number}: its offset is not above the partition's last one")
            last[place] = each["offset"]
