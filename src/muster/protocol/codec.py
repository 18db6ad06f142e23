"""Encode and decode messages: compiles the functions that `codegen.py` writes, once for each message and version."""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable, Generator
from contextlib import suppress
from importlib import import_module
from struct import Struct, pack, unpack_from
from struct import error as struct_error
from typing import Any, TypeVar

from muster.errors import ProtocolError, UnsupportedVersionError
from muster.protocol import primitives
from muster.protocol.primitives import UNLIMITED, Buffer, Message

M = TypeVar("M", bound=Message)
Encode = Callable[..., None]
"""(message, append, limit of array elements)"""
Decode = Callable[..., tuple[Any, int]]
"""(buffer, position, limit of array elements) -> message, position after it"""


class _Codecs(dict[tuple[type[Message], int], tuple[Callable[..., Any], Callable[..., Any]]]):
    """The functions of each message and version, compiled when they are first looked up."""

    def __init__(self, *, sliced: bool = False, of_bytes: bool = False) -> None:
        self._sliced = sliced
        self._of_bytes = of_bytes

    def __missing__(self, key: tuple[type[Message], int]) -> tuple[Callable[..., Any], Callable[..., Any]]:
        pair = self[key] = _compiled(*key, sliced=self._sliced, of_bytes=self._of_bytes)
        return pair


CODECS: dict[tuple[type[Message], int], tuple[Encode, Decode]] = _Codecs(of_bytes=True)
"""How each message is encoded in each version, and decoded from `bytes`."""
with suppress(ModuleNotFoundError):  # only a compiled build has this module (tools/typed_codecs.py)
    CODECS.update(import_module("muster.protocol.ready_codecs").CODECS)
_OF_BUFFERS: dict[tuple[type[Message], int], tuple[Encode, Decode]] = _Codecs()
_SLICED = _Codecs(sliced=True)

_INT16 = Struct(">h")
_BROKEN = (struct_error, IndexError, UnicodeDecodeError, OverflowError)
"""The exceptions that struct and indexing raise on broken bytes."""


def encode(message: Message, version: int) -> bytes:
    """The bytes of a message in a version.

    Raises:
        UnsupportedVersionError: the version lacks a field of the request that is set and must not be dropped.
    """
    return b"".join(encode_parts(message, version))


def encode_parts(message: Message, version: int) -> list[Buffer]:
    """Like `encode`, as buffers to be written one after another; record batches are not copied."""
    parts: list[Buffer] = []
    CODECS[type(message), version][0](message, parts.append)
    return parts


def decode(cls: type[M], version: int, buffer: Buffer, position: int = 0, most_elements: int = UNLIMITED) -> M:
    """Read a message. Bytes after it are ignored, as in Kafka.

    Raises:
        ProtocolError: the bytes are not such a message.
        TooManyElementsError: its arrays have more than `most_elements` elements in total. They were not built.
        UnsupportedVersionError: there is no such version.
    """
    try:
        codecs = CODECS if type(buffer) is bytes else _OF_BUFFERS
        found: M = codecs[cls, version][1](buffer, position, most_elements)[0]
    except _BROKEN as error:
        raise _garbled(cls, version, error) from None
    return found


def decode_sliced(
    cls: type[M], version: int, buffer: Buffer, position: int, most_elements: int
) -> Generator[None, None, M]:
    """Like `decode`, a few elements at a time: `message = yield from decode_sliced(...)`."""
    try:
        found, _ = yield from _SLICED[cls, version][1](buffer, position, most_elements)
    except _BROKEN as error:
        raise _garbled(cls, version, error) from None
    return found  # type: ignore[no-any-return]


def encode_sliced(message: Message, version: int, write: Callable[[Buffer], None]) -> Generator[None, None, None]:
    """Encode a few elements at a time: `yield from encode_sliced(message, version, parts.append)`."""
    yield from _SLICED[type(message), version][0](message, write)


def _garbled(cls: type[Message], version: int, error: Exception) -> ProtocolError:
    return ProtocolError(f"{cls.__name__} v{version} is truncated or malformed: {error}")


def encode_prefixed(prefix: int, message: Message, version: int) -> bytes:
    """A message that follows an int16, as in records of Kafka's internal topics: a key's kind, a value's version."""
    return b"".join((_INT16.pack(prefix), *encode_parts(message, version)))


def decode_versioned(cls: type[M], value: Buffer) -> M:
    """A message that follows its version (see `encode_prefixed`). Raises the errors of `decode`."""
    if len(value) < _INT16.size:
        raise ProtocolError(f"a {cls.__name__} is too short to have a version")
    return decode(cls, _INT16.unpack_from(value)[0], value, _INT16.size)


def encoder(cls: type[Message], version: int) -> Encode:
    """The function that appends an encoded message to a list of buffers: `encode(message, parts.append)`."""
    return CODECS[cls, version][0]


def _truncated() -> ProtocolError:
    return ProtocolError("the message is truncated")


def _lost(message: str, version: int, field: str) -> UnsupportedVersionError:
    return UnsupportedVersionError(f"{message} v{version}, the newest that the broker supports, cannot carry {field}")


_NAMESPACE: dict[str, Any] = {
    **{name: value for name, value in vars(primitives).items() if not name.startswith("_")},
    "pack": pack,
    "unpack_from": unpack_from,
    "truncated": _truncated,
    "lost": _lost,
}


def _compiled(
    cls: type[Message], version: int, *, sliced: bool, of_bytes: bool
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    from muster.protocol.definitions import codegen

    first = cls.MIN_VERSION if cls.OLDEST_VERSION is None else cls.OLDEST_VERSION
    if not first <= version <= cls.MAX_VERSION:
        known = f"{first} to {cls.MAX_VERSION}"
        raise UnsupportedVersionError(f"{cls.__name__} has versions {known}, not {version}")
    source, packers = codegen.codec_source(cls.__name__, version, sliced=sliced, of_bytes=of_bytes)
    namespace = vars(sys.modules[vars(cls)["__module__"]]) | _NAMESPACE
    for name, expression in packers.items():
        namespace[name] = eval(expression, namespace)
    kind = " sliced" if sliced else "" if of_bytes else " of any buffer"
    filename = f"<muster codec {cls.__name__} v{version}{kind}>"
    exec(compile(source, filename, "exec"), namespace)
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    return namespace["encode"], namespace["decode"]
