"""The numba kernel that turns Arrow's buffers into encoded records: no Python object for a record.

Compiled, or loaded from numba's cache, when it is imported: `muster.arrow.engine` does that when there are many records
to pack. The rules are those of `protocol.record_batch` and, for keys, of Kafka's murmur2; the tests compare both record
by record.

One column after the other, over plain arrays, for which numba generates fast code (see `kernel.py`). A column is its
bytes, where each row's begin, and which rows have any: an empty array if all have. The functions release the
interpreter's lock, so that another thread can send meanwhile what was packed before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numba
import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int32]
Longs = npt.NDArray[np.int64]

F = TypeVar("F", bound=Callable[..., Any])

_types = numba.types
_bytes = _types.Array(_types.uint8, 1, "C", readonly=True)
_ints = _types.Array(_types.int32, 1, "C", readonly=True)
_int64 = _types.int64
_int32s, _int64s, _uint8s = _types.int32[::1], _types.int64[::1], _types.uint8[::1]

_SEED = np.uint32(0x9747B28C)
_M = np.uint32(0x5BD1E995)


def _jit(signature: Any = None) -> Callable[[F], F]:
    def compile_it(function: F) -> F:
        compiled: F = numba.njit(signature, cache=True, nogil=True)(function) if signature else numba.njit()(function)
        return compiled

    return compile_it


@_jit()
def _size(number: Any) -> int:
    """Bytes of a non-negative number, as a zigzag varint."""
    size = 1
    rest = np.uint64(number) >> np.uint64(6)
    while rest > np.uint64(0):
        rest >>= np.uint64(7)
        size += 1
    return size


@_jit()
def _put(out: Bytes, at: np.uint64, number: Any) -> np.uint64:
    """Write a non-negative number as a zigzag varint. Returns the position after it."""
    rest = np.uint64(number) << np.uint64(1)
    while rest >= np.uint64(0x80):
        out[at] = np.uint8(rest | np.uint64(0x80))
        rest >>= np.uint64(7)
        at += np.uint64(1)
    out[at] = np.uint8(rest)
    return at + np.uint64(1)


@_jit(_types.void(_bytes, _ints, _bytes, _int64, _int32s))
def place(data: Bytes, starts: Ints, valid: Bytes, partitions: int, places: Ints) -> None:
    """The partition of each row that has a key, where its place is -1: murmur2 modulo the number of partitions."""
    for row in range(places.size):
        if places[row] >= 0 or (valid.size and not valid[row]):
            continue
        at, length = np.uint64(starts[row]), np.uint32(starts[row + 1] - starts[row])
        h = _SEED ^ length
        for _ in range(length >> np.uint32(2)):
            k = np.uint32(0)
            for index in range(np.uint64(4)):
                k |= np.uint32(data[at + index]) << np.uint32(np.uint64(8) * index)
            k = np.uint32(k * _M)
            k = np.uint32(np.uint32(k ^ (k >> np.uint32(24))) * _M)
            h = np.uint32(np.uint32(h * _M) ^ k)
            at += np.uint64(4)
        left = np.uint64(length & np.uint32(3))
        if left:
            for index in range(left):
                h ^= np.uint32(data[at + index]) << np.uint32(np.uint64(8) * index)
            h = np.uint32(h * _M)
        h = np.uint32(np.uint32(h ^ (h >> np.uint32(13))) * _M)
        h ^= h >> np.uint32(15)
        places[row] = np.int32(np.int64(h & np.uint32(0x7FFFFFFF)) % partitions)


@_jit(_types.void(_ints, _bytes, _int64s))
def add_sizes(starts: Ints, valid: Bytes, sizes: Longs) -> None:
    """Add the size of a column in each record: the varint of its length, and its bytes."""
    for row in range(sizes.size):
        if valid.size and not valid[row]:
            sizes[row] += 1
        else:
            length = np.int64(starts[row + 1]) - np.int64(starts[row])
            sizes[row] += _size(length) + length


@_jit(_types.void(_ints, _int64s, _int64s))
def add_lists(lists: Ints, each: Longs, sizes: Longs) -> None:
    """Add the size of the headers: row r has those from lists[r] to lists[r + 1], and one takes each[h] bytes."""
    for row in range(sizes.size):
        sizes[row] += _size(np.int64(lists[row + 1]) - np.int64(lists[row]))
        for header in range(lists[row], lists[row + 1]):
            sizes[row] += each[header]


@_jit(_types.UniTuple(_int64, 2)(_int64s, _int64s, _int32s, _int64, _int64s, _int64s, _int64s))
def cut(
    order: Longs, sizes: Longs, places: Ints, limit: int, firsts: Longs, begins: Longs, at: Longs
) -> tuple[int, int]:
    """Cut rows, in `order`, into batches of one place and of at most `limit` bytes (or of one record); return how many,
    and their total size.

    A batch begins at firsts[b] in the order and at begins[b] in the bytes. A record begins at `at[row]`; `sizes` has
    its size without its offset and its length."""
    batches, total, count, size = 0, 0, 0, 0
    here = np.int32(0)
    for index in range(order.size):
        row = order[index]
        body = sizes[row] + _size(count)
        whole = body + _size(body)
        if index == 0 or places[row] != here or size + whole > limit:
            here = places[row]
            firsts[batches] = index
            begins[batches] = total
            batches += 1
            count, size = 0, 0
            body = sizes[row] + 1
            whole = body + _size(body)
        at[row] = total
        count += 1
        size += whole
        total += whole
    firsts[batches] = order.size
    begins[batches] = total
    return batches, total


@_jit(_types.void(_int64s, _int64s, _int64s, _int64, _int64s, _uint8s))
def put_heads(order: Longs, sizes: Longs, firsts: Longs, batches: int, at: Longs, out: Bytes) -> None:
    """Write what begins each record: length, attributes, a timestamp like the first's, offset. `at` moves past it."""
    for batch in range(batches):
        for index in range(firsts[batch], firsts[batch + 1]):
            row = order[index]
            offset = index - firsts[batch]
            position = _put(out, np.uint64(at[row]), sizes[row] + _size(offset))
            out[position] = 0
            out[position + np.uint64(1)] = 0
            at[row] = np.int64(_put(out, position + np.uint64(2), offset))


@_jit(_types.void(_bytes, _ints, _bytes, _int64s, _uint8s))
def put_field(data: Bytes, starts: Ints, valid: Bytes, at: Longs, out: Bytes) -> None:
    """Write a column, each row's at its record's position. `at` moves past it."""
    for row in range(at.size):
        position = np.uint64(at[row])
        if valid.size and not valid[row]:
            out[position] = 1  # the varint of -1
            at[row] += 1
            continue
        source = np.uint64(starts[row])
        length = np.uint64(starts[row + 1]) - source
        position = _put(out, position, np.int64(length))
        for index in range(length):
            out[position + index] = data[source + index]
        at[row] = np.int64(position + length)


@_jit(_types.void(_ints, _int64s, _int64s, _int64s, _uint8s))
def put_lists(lists: Ints, each: Longs, at: Longs, places: Longs, out: Bytes) -> None:
    """Write how many headers each record has, and set where each header begins; one takes each[h] bytes."""
    for row in range(at.size):
        position = np.int64(_put(out, np.uint64(at[row]), np.int64(lists[row + 1]) - np.int64(lists[row])))
        for header in range(lists[row], lists[row + 1]):
            places[header] = position
            position += each[header]
        at[row] = position
