"""Entries of message sets, the format of records before Kafka 0.11."""

from __future__ import annotations

import struct
from zlib import crc32


def message(
    offset: int,
    value: bytes | None,
    *,
    magic: int = 0,
    attributes: int = 0,
    timestamp: int = 0,
    key: bytes | None = None,
) -> bytes:
    """One entry."""
    body = struct.pack(">bb", magic, attributes) + (struct.pack(">q", timestamp) if magic else b"")
    for field in (key, value):
        body += struct.pack(">i", -1) if field is None else struct.pack(">i", len(field)) + field
    return struct.pack(">qiI", offset, len(body) + 4, crc32(body)) + body
