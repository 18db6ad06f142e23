"""Frames on a connection: a length of four bytes, a header, a message.

These functions build and read frames, without I/O. Client and broker cut their streams into frames themselves.
"""

from __future__ import annotations

from struct import Struct as Packer
from typing import TypeVar

from muster.errors import ProtocolError
from muster.protocol import codec
from muster.protocol.api import request_header_version, response_header_version
from muster.protocol.messages import RequestHeader
from muster.protocol.primitives import Buffer, Request, Response, read_uvarint

_LENGTH = Packer(">i")
_CORRELATION_ID = Packer(">i")

_MOST_TAGS = 1_000
"""The maximum number of tagged fields in a header; Kafka's own headers have none yet."""

R = TypeVar("R", bound=Response)


def check_length(length: int, max_frame_bytes: int) -> None:
    """Raises ProtocolError for a frame length that is negative or above the limit."""
    if length < 0:
        raise ProtocolError(f"invalid frame length {length}; does the peer speak Kafka's protocol?")
    if length > max_frame_bytes:
        text = f"a frame of {length} bytes exceeds the limit of {max_frame_bytes}"
        raise ProtocolError(f"{text}; does the peer speak Kafka's protocol?")


def join_frame(parts: list[Buffer]) -> list[Buffer]:
    """Put the length in front of buffers that make up one frame."""
    parts.insert(0, _LENGTH.pack(sum(map(len, parts))))
    return parts


def encode_request(request: Request[R], version: int, correlation_id: int, client_id: str | None) -> list[Buffer]:
    """A request as a frame: buffers to be written one after another."""
    header = RequestHeader(request.API_KEY, version, correlation_id, client_id)
    parts: list[Buffer] = []
    codec.encoder(RequestHeader, request_header_version(type(request), version))(header, parts.append)
    codec.encoder(type(request), version)(request, parts.append)
    return join_frame(parts)


def encode_response(response: Response, request: type[Request[R]], version: int, correlation_id: int) -> list[Buffer]:
    """A response as a frame: buffers to be written one after another."""
    parts: list[Buffer] = [_CORRELATION_ID.pack(correlation_id)]
    if response_header_version(request, version):
        parts.append(b"\0")
    codec.encoder(type(response), version)(response, parts.append)
    return join_frame(parts)


def correlation_id(frame: Buffer) -> int:
    """The id of the request that a response answers."""
    if len(frame) < 4:
        raise ProtocolError("a response is shorter than its header")
    (found,) = _CORRELATION_ID.unpack_from(frame, 0)
    return int(found)


def decode_response(frame: Buffer, request: type[Request[R]], version: int) -> R:
    """The message of a response frame."""
    position = 4
    if response_header_version(request, version):
        try:
            position = skip_tags(frame, position)
        except IndexError:
            raise ProtocolError("incomplete response header") from None
    found: R = codec.decode(request.RESPONSE, version, frame, position)
    return found


def skip_tags(frame: Buffer, position: int) -> int:
    """The position after a header's tagged fields.

    Raises:
        IndexError: they are truncated.
        ProtocolError: there are more than any valid header has.
    """
    count, position = read_uvarint(frame, position)
    if count > _MOST_TAGS:
        raise ProtocolError(f"invalid header: {count} tagged fields")
    for _ in range(count):
        _, position = read_uvarint(frame, position)
        size, position = read_uvarint(frame, position)
        position += size
    return position
