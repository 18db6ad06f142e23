"""Encode and decode messages: compiles the functions that `codegen.py` writes, once for each message and version."""

from __future__ import annotations

import linecache
from collections.abc import Callable
from struct import error as struct_error
from struct import pack, unpack_from
from typing import Any, TypeVar

from muster.errors import ProtocolError, UnsupportedVersionError
from muster.protocol import messages, primitives
from muster.protocol.primitives import Buffer, Message

M = TypeVar("M", bound=Message)
Encode = Callable[[Any, Callable[[Buffer], None]], None]
Decode = Callable[[Buffer, int], tuple[Any, int]]

_codecs: dict[tuple[type[Message], int], tuple[Encode, Decode]] = {}


def encode(message: Message, version: int) -> bytes:
    """The bytes of a message in a version. A request that the version cannot carry whole is refused."""
    return b"".join(encode_parts(message, version))


def encode_parts(message: Message, version: int) -> list[Buffer]:
    """The same as buffers to be written one after the other; record batches are among them uncopied."""
    parts: list[Buffer] = []
    encoder(type(message), version)(message, parts.append)
    return parts


def decode(cls: type[M], version: int, buffer: Buffer, position: int = 0) -> M:
    """Read a message. Bytes behind it are left alone, as Kafka leaves them.

    Raises:
        ProtocolError: the bytes are not such a message.
        UnsupportedVersionError: there is no such version.
    """
    try:
        found: M = decoder(cls, version)(buffer, position)[0]
    except (struct_error, IndexError, UnicodeDecodeError, OverflowError) as error:
        raise ProtocolError(f"{cls.__name__} v{version} is cut short or garbled: {error}") from None
    return found


def encoder(cls: type[Message], version: int) -> Encode:
    """The function that appends an encoded message to a list of buffers: `encode(message, parts.append)`."""
    return (_codecs.get((cls, version)) or _compile(cls, version))[0]


def decoder(cls: type[Message], version: int) -> Decode:
    """The function behind `decode`: raises what `struct` and indexing raise on broken bytes."""
    return (_codecs.get((cls, version)) or _compile(cls, version))[1]


def _truncated() -> ProtocolError:
    return ProtocolError("the message is cut short")


def _lost(message: str, version: int, field: str) -> UnsupportedVersionError:
    return UnsupportedVersionError(f"{message} v{version}, the newest that the broker speaks, cannot carry {field}")


_NAMESPACE: dict[str, Any] = {
    **{name: value for name, value in vars(messages).items() if not name.startswith("_")},
    **{name: value for name, value in vars(primitives).items() if not name.startswith("_")},
    "pack": pack,
    "unpack_from": unpack_from,
    "truncated": _truncated,
    "lost": _lost,
}


def _compile(cls: type[Message], version: int) -> tuple[Encode, Decode]:
    from muster.protocol import codegen  # needed only here: a process that decodes nothing does not pay for it

    if not cls.MIN_VERSION <= version <= cls.MAX_VERSION:
        known = f"{cls.MIN_VERSION} to {cls.MAX_VERSION}"
        raise UnsupportedVersionError(f"{cls.__name__} has versions {known}, not {version}")
    source, packers = codegen.codec_source(cls.__name__, version)
    namespace = dict(_NAMESPACE)
    for name, expression in packers.items():
        namespace[name] = eval(expression, namespace)
    filename = f"<muster codec {cls.__name__} v{version}>"
    exec(compile(source, filename, "exec"), namespace)
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    pair = (namespace["encode"], namespace["decode"])
    _codecs[cls, version] = pair
    return pair
