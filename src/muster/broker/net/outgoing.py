"""The parts of answers that wait to be written: bytes, views, and ranges of files that the system may send itself."""

from __future__ import annotations

from mmap import mmap

from muster.model import FileRange
from muster.protocol.primitives import Buffer

Part = Buffer | FileRange

LARGE = 64 * 1024
"""Answers of at least this size are passed to the system part by part. A file's range is never smaller: the rest of one
becomes a view."""


def in_memory(part: Part) -> Buffer:
    """A part as bytes, for a transport that cannot send a file's range."""
    return part.view if isinstance(part, FileRange) else part


def piece(parts: list[Part], most: int) -> Buffer:
    """The first bytes, at most `most`: small parts joined, or a view of a large one."""
    first = in_memory(parts[0])
    if len(first) >= most:
        return memoryview(first)[:most]
    joined, size = [], 0
    for part in parts:
        if size + len(part) > most:
            break
        joined.append(in_memory(part))
        size += len(part)
    return b"".join(joined)


def drop(parts: list[Part], count: int) -> None:
    """Remove the first `count` bytes."""
    whole = 0
    for part in parts:
        if count < len(part):
            break
        count -= len(part)
        whole += 1
    del parts[:whole]
    if count:
        part = parts[0]
        if isinstance(part, FileRange) and len(part) - count >= LARGE:
            parts[0] = part.without_first(count)
        else:
            parts[0] = memoryview(in_memory(part))[count:]


def own_bytes(parts: list[Part]) -> int:
    """The memory that the parts take; a view of a mapped log takes none."""
    return sum(0 if _is_of_file(part) else len(part) for part in parts)


def _is_of_file(part: Part) -> bool:
    return isinstance(part, FileRange) or (isinstance(part, memoryview) and isinstance(part.obj, mmap))
