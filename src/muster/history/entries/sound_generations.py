"""Finds the values of classic groups that can be decoded, column by column, for all values together.

The codec would have to build every member to find that out. Here values of the version that Kafka 4.2 writes are walked
from size to size, member by member, all values in parallel. The codec decodes any value that is found sound (a test
compares the two); the rest (another version, non-ASCII text, many members, broken bytes) is left to the codec.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from muster.history.model import Int64s

    Flags: TypeAlias = NDArray[np.bool_]
    Octets: TypeAlias = NDArray[np.uint8]
    Read: TypeAlias = Callable[[str, Int64s], Int64s]
    """Big-endian numbers of a numpy type, at these positions in the buffer."""

_VERSION = 3
_AT_ONCE = 1 << 12
"""Values that are walked together: their bytes stay in the processor's cache."""
_FEWEST = 16
"""If fewer values have another member, the codec is faster."""


def sound(read: Read, data: Octets, start: Int64s, end: Int64s) -> Flags:
    """Which of the values at these positions in a buffer are sound."""
    found = np.zeros(len(start), np.bool_)
    for first in range(0, len(start), _AT_ONCE):
        span = slice(first, first + _AT_ONCE)
        found[span] = _Walk(read, data, start[span], end[span]).sound()
    return found


class _Walk:
    """Walks some values from begin to end; those that are not sound drop out."""

    def __init__(self, read: Read, data: Octets, start: Int64s, end: Int64s) -> None:
        self._read, self._data, self._count = read, data, len(start)
        self._rows, self._at, self._end = np.arange(len(start)), start, end
        self._left = np.zeros(len(start), np.int64)
        """Members not read yet."""
        self._texts: list[tuple[Int64s, Int64s, Int64s]] = []
        """Rows, and where their texts begin and end."""

    def sound(self) -> Flags:
        """Which of them are sound."""
        self._only(self._number(2) == _VERSION)
        self._text()
        self._skip(4)
        self._text(or_none=True)
        self._text(or_none=True)
        self._skip(8)
        self._left = self._number(4)
        self._only(self._left >= 0)
        done = [self._rows[self._left == 0]]
        self._only(self._left > 0)
        while len(self._rows) >= _FEWEST:
            self._member()
            done.append(self._rows[self._left == 0])
            self._only(self._left > 0)
        found = np.zeros(self._count, np.bool_)
        found[np.concatenate(done)] = True
        found[self._beyond_ascii(found)] = False
        return found

    def _member(self) -> None:
        self._text()
        self._text(or_none=True)
        self._text()
        self._text()
        self._skip(8)
        self._bytes()
        self._bytes()
        self._left = self._left - 1

    def _only(self, these: Flags) -> None:
        if not these.all():
            self._rows, self._at, self._end = self._rows[these], self._at[these], self._end[these]
            self._left = self._left[these]

    def _skip(self, size: int) -> None:
        self._at = self._at + size
        self._only(self._at <= self._end)

    def _number(self, width: int) -> Int64s:
        """The next number, of `width` bytes, of each row that has one."""
        self._skip(width)
        return self._read(f">i{width}", self._at - width)

    def _text(self, *, or_none: bool = False) -> None:
        size = self._number(2)
        if or_none:
            size = np.maximum(size, 0)
        elif size.size and size.min() < 0:
            whole = size >= 0
            self._only(whole)
            size = size[whole]
        begin = self._at
        self._at = begin + size
        self._texts.append((self._rows, begin, self._at))
        self._only(self._at <= self._end)

    def _bytes(self) -> None:
        size = self._number(4)
        whole = size >= 0
        self._only(whole)
        self._at = self._at + size[whole]
        self._only(self._at <= self._end)

    def _beyond_ascii(self, these: Flags) -> Any:
        """The rows among these whose text is not all ASCII."""
        rows, begin, end = (np.concatenate(parts) for parts in zip(*self._texts, strict=True))
        some = these[rows] & (end > begin)
        rows, begin, end = rows[some], begin[some], end[some]
        if not len(rows):
            return rows
        order = np.argsort(begin, kind="stable")
        bounds = np.column_stack((begin, end))[order].ravel() - begin[order[0]]
        texts = np.append(
            self._data[begin[order[0]] : end[order[-1]]], np.uint8(0)
        )  # so that the last bound is a valid index
        beyond = np.bitwise_or.reduceat(texts, bounds)[::2] >= 128
        return rows[order][beyond]
