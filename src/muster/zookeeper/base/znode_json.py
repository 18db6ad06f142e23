"""Znodes with JSON, parsed as untrusted input: `parse_znode` returns the contents, or `Unreadable` with the reason."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")

MAX_TEXT = 10_000
"""The most characters of text that is sent to clients: their strings have at most 32,767 bytes."""

_NO_TEXT = re.compile("[\ud800-\udfff]")
DECIMAL = re.compile(r"-?[0-9]{1,19}\Z")
INT32 = 1 << 31


class Unreadable(NamedTuple):
    """A znode that is not as Kafka writes it."""

    path: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path} cannot be read: {self.reason}"


class InvalidZnodeError(Exception):
    """The reason why a znode cannot be read; `parse_znode` catches it."""


class Json(dict[str, Any]):
    """The JSON object in a znode. Its methods raise InvalidZnodeError for values that are missing or invalid."""

    beyond_java: str | None = None

    def text(self, name: str) -> str:
        return text_of(name, self.get(name))

    def texts(self, name: str) -> list[str]:
        found = self.get(name)
        if not isinstance(found, list) or not all(isinstance(text, str) for text in found):
            raise InvalidZnodeError(f"{name} is not a list of strings")
        return found

    def integer(self, name: str) -> int:
        return integer(name, self.get(name))

    def port(self, name: str) -> int:
        found = self.integer(name)
        if not 0 <= found < 1 << 16:
            raise InvalidZnodeError(f"{name} is not a valid port")
        return found

    def mapping(self, name: str) -> dict[str, Any]:
        found = self.get(name)
        if not isinstance(found, dict):
            raise InvalidZnodeError(f"{name} is not a JSON object")
        return found

    def time(self, name: str) -> int:
        """Milliseconds since the epoch, -1 if unreadable: nothing depends on it."""
        found = self.get(name, "")
        return int(found) if isinstance(found, str | int) and DECIMAL.match(str(found)) else -1


def text_of(name: str, found: Any) -> str:
    """The value, if it is text that can be sent to clients."""
    if not isinstance(found, str) or len(found) > MAX_TEXT or _NO_TEXT.search(found):
        raise InvalidZnodeError(f"{name} is not text")
    return found


def integer(name: str, found: Any) -> int:
    if type(found) is not int or not -INT32 <= found < INT32:
        raise InvalidZnodeError(f"{name} is not a 32-bit integer")
    return found


def integers(name: str, found: Any) -> list[int]:
    if not isinstance(found, list):
        raise InvalidZnodeError(f"{name} is not a list")
    return [integer(name, number) for number in found]


def encode(values: Mapping[str, Any]) -> bytes:
    return json.dumps(values, separators=(",", ":"), ensure_ascii=False).encode()


def parse_znode(path: str, data: bytes | None, read: Callable[[Json], T]) -> T | Unreadable:
    """The result of `read` for the object in the data."""
    beyond: list[str] = []

    def number(text: str) -> float:
        value = int(text)
        if not -INT32 <= value < INT32:
            beyond.append(f"{quoted(text)} is beyond Java's int")
        return value

    def fraction(text: str) -> float:
        beyond.append(f"{quoted(text)} is not an integer")
        return float(text)

    try:
        if data is None:
            raise InvalidZnodeError("it has no data")
        found = json.loads(data.decode(), parse_int=number, parse_float=fraction, parse_constant=_no_constant)
        if not isinstance(found, dict):
            raise InvalidZnodeError("it is not a JSON object")
        values = Json(found)
        values.beyond_java = beyond[0] if beyond else None
        return read(values)
    except InvalidZnodeError as error:
        return Unreadable(path, str(error))
    except (ValueError, RecursionError):  # not JSON, not UTF-8, a number of thousands of digits, or nested too deeply
        return Unreadable(path, "it is not valid JSON")


def _no_constant(name: str) -> float:
    raise InvalidZnodeError(f"{name} is not valid JSON")


def quoted(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:40] + "…")
