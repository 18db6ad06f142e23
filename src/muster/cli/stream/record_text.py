r"""Records as text: kcat's format language (`kcat -f`, version 1.7), its unpacking of keys and values, and JSON.

    %s %S %R   the value; its length, -1 for null; the length as four bytes
    %k %K      the key and its length
    %h         headers as name=value, comma-separated; NULL for a null value
    %t %p %o   topic, partition, offset
    %T         the timestamp in milliseconds
    %%         a percent sign
    \n \t \r   and \\, \xNN (hexadecimal), \NNN (decimal, octal with a leading 0)

An unpacking consists of: `<` and `>` for the byte order, which starts as big-endian; b B h H i I q Q for integers of 1,
2, 4 and 8 bytes, unsigned in capitals; c for a character, s for the rest as text, $ for the end, which fails if bytes
are left; a blank for a blank.
"""

from __future__ import annotations

import base64
import json
import re
import struct
from collections.abc import Callable
from typing import Any

from muster.errors import ConfigError, MusterError
from muster.model import ConsumerRecord

Field = Callable[[ConsumerRecord], bytes]
Unpack = Callable[[bytes], bytes]

_ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "\\": b"\\"}
_NUMBERED = re.compile(r"\\(?:x([0-9A-Fa-f]{1,2})|(0[0-7]{1,3}|\d{1,3}))", re.ASCII)


def formatter(text: str, *, null: bytes = b"", key: Unpack | None = None, value: Unpack | None = None) -> Field:
    """A function that writes a record in this format; `null` is printed for a null key or value.

    Raises:
        ConfigError: the format has an unknown letter.
    """
    fields = _fields(null, key, value)
    parts = _parse(text, fields)

    def write(record: ConsumerRecord) -> bytes:
        try:
            return b"".join(part if isinstance(part, bytes) else part(record) for part in parts)
        except struct.error as error:
            place = f"{record.topic}-{record.partition} at offset {record.offset}"
            raise MusterError(f"{place} cannot be unpacked: {error}") from None

    return write


def _fields(null: bytes, key: Unpack | None, value: Unpack | None) -> dict[str, Field]:
    def shown(data: bytes | None, unpack: Unpack | None) -> bytes:
        if not data:
            return null if data is None else b""
        return unpack(data) if unpack is not None else data

    def length(data: bytes | None) -> int:
        return -1 if data is None else len(data)

    return {
        "s": lambda record: shown(record.value, value),
        "S": lambda record: b"%d" % length(record.value),
        "R": lambda record: struct.pack(">i", length(record.value)),
        "k": lambda record: shown(record.key, key),
        "K": lambda record: b"%d" % length(record.key),
        "h": lambda record: b",".join(
            name.encode() + b"=" + (b"NULL" if content is None else content) for name, content in record.headers
        ),
        "t": lambda record: record.topic.encode(),
        "p": lambda record: b"%d" % record.partition,
        "o": lambda record: b"%d" % record.offset,
        "T": lambda record: b"%d" % record.timestamp,
    }


def _parse(text: str, fields: dict[str, Field]) -> list[bytes | Field]:
    parts: list[bytes | Field] = []
    position = 0
    while position < len(text):
        pair = text[position : position + 2]
        numbered = _NUMBERED.match(text, position)
        if pair == "%%":
            parts.append(b"%")
        elif pair[0] == "%":
            if pair[1:] not in fields:
                raise ConfigError(f"--format: {pair} is unknown; choose from {', '.join('%' + f for f in fields)}")
            parts.append(fields[pair[1:]])
        elif numbered is not None:
            parts.append(_character(*numbered.groups()))
            position = numbered.end()
            continue
        elif pair[0] == "\\" and pair[1:] not in ("", "x"):
            parts.append(_ESCAPES.get(pair[1], pair[1].encode()))
        else:
            parts.append(pair[0].encode())
            position += 1
            continue
        position += 2
    return parts


def _character(hexadecimal: str | None, number: str | None) -> bytes:
    if hexadecimal is not None:
        return bytes([int(hexadecimal, 16)])
    digits = number or ""
    is_octal = digits.startswith("0") and all(digit in "01234567" for digit in digits)
    return bytes([int(digits, 8 if is_octal else 10) & 0xFF])


_SIZES = {letter: struct.calcsize(f">{letter}") for letter in "bBhHiIqQ"}


def unpacking(text: str, option: str) -> Unpack:
    """A function that turns the bytes of a key or value into text.

    Raises:
        ConfigError: the text is empty or has an unknown letter.
    """
    for letter in text:
        if letter not in " <>cs$" and letter not in _SIZES:
            raise ConfigError(f"{option}: {letter!r} is unknown; choose from < > b B h H i I q Q c s $ and blanks")
    if not text:
        raise ConfigError(f"{option}: the text is empty")

    return lambda data: _unpacked(text, data)


def _unpacked(text: str, data: bytes) -> bytes:
    parts: list[bytes] = []
    order, position = ">", 0
    for letter in text:
        match letter:
            case "<" | ">":
                order = letter
            case " ":
                parts.append(b" ")
            case "s":
                parts.append(data[position:])
                position = len(data)
            case "$":
                if position < len(data):
                    raise struct.error(f"{len(data) - position} bytes left at $")
            case _:
                size = _SIZES.get(letter, 1)
                piece = data[position : position + size]
                if len(piece) < size:
                    raise struct.error(f"only {len(piece)} bytes left for {letter}")
                parts.append(piece if letter == "c" else str(struct.unpack(order + letter, piece)[0]).encode())
                position += size
    return b"".join(parts)


def unpackings(texts: list[str]) -> tuple[Unpack | None, Unpack | None]:
    """The functions of `--unpack key=…` and `value=…`; text without either is for both.

    Raises:
        ConfigError: the text is not valid.
    """
    key = value = None
    for text in texts:
        what, equals, pack = text.partition("=")
        if equals and what not in ("key", "value"):
            raise ConfigError(f"--unpack {text!r}: write key=…, value=… or neither")
        found = unpacking(pack if equals else text, "--unpack")
        key = found if not equals or what == "key" else key
        value = found if not equals or what == "value" else value
    return key, value


def as_json(record: ConsumerRecord) -> bytes:
    """A record as a line of JSON, which `muster produce --json` can read.

    Bytes that are not UTF-8 become base64: in `key_base64` and `value_base64`, and for a header
    `{"base64": …}` instead of its text.
    """
    found: dict[str, Any] = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
    }
    for name, value in (("key", record.key), ("value", record.value)):
        text = _text(value)
        found |= {name: text} if isinstance(text, str | None) else {f"{name}_base64": text["base64"]}
    found["headers"] = [[name, _text(value)] for name, value in record.headers]
    return json.dumps(found, ensure_ascii=False).encode() + b"\n"


def _text(value: bytes | None) -> str | dict[str, str] | None:
    """Bytes as text, or as an object with their base64 if they are not UTF-8."""
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}
