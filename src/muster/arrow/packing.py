"""Arrow columns to record batches, for writing very many records in one call.

`place` determines the partition of each row as Kafka's producers do: the partition that the row names, otherwise the
one of its key. -1 means any: the producer chooses. `pack` makes batches of the rows of each partition, in their order.
The numba kernel does both if that pays (`engine.packing_kernel_for`), otherwise plain Python does, with the same
results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from muster.arrow.engine import Kernel
from muster.arrow.schema import Array
from muster.protocol.records.record_batch import HEADER_SIZE, BatchBuilder, record_size

ANYWHERE = -1

Places = npt.NDArray[np.int32]


class RecordColumns(NamedTuple):
    """Records as columns. Keys and values are binary or text, `headers` lists of structs of text and binary; a
    column that is None is null in every row."""

    key: Array | None
    value: Array
    headers: Array | None

    def take(self, indices: npt.NDArray[np.int64]) -> RecordColumns:
        """Some of the rows."""
        key, value, headers = self
        return RecordColumns(
            None if key is None else key.take(indices),
            value.take(indices),
            None if headers is None else headers.take(indices),
        )


def place(
    rows: RecordColumns,
    given: Array | None,
    partitions: int,
    key_partition: Callable[[bytes, int], int],
    kernel: Kernel | None,
) -> Places:
    """The partition of each row. `given` are those that rows name (int32, or null); `key_partition` is the rule for
    keys, which the kernel has itself."""
    count = len(rows.value)
    if given is None:
        places = np.full(count, ANYWHERE, np.int32)
    else:
        places = np.array(given.fill_null(ANYWHERE).to_numpy(zero_copy_only=False), np.int32)
    if rows.key is None or rows.key.null_count == count:
        return places
    if kernel is not None:
        kernel.place(*_field(rows.key), partitions, places)
        return places
    free = np.flatnonzero(places == ANYWHERE)
    for row, key in zip(free.tolist(), _binary(rows.key.take(free)).to_pylist(), strict=True):
        if key is not None:
            places[row] = key_partition(key, partitions)
    return places


def pack(
    rows: RecordColumns, places: Places, timestamp_ms: int, batch_bytes: int, kernel: Kernel | None
) -> Iterator[tuple[int, BatchBuilder]]:
    """Batches with their places, of at most `batch_bytes` each before compression, or of one record. All records have
    this timestamp."""
    if not len(places):
        return
    narrow = places if places.max() > np.iinfo(np.int16).max else places.astype(np.int16)  # a type that sorts fast
    order = np.argsort(narrow, kind="stable").astype(np.int64)
    if kernel is None:
        yield from _pack_plain(rows, places, order, timestamp_ms, batch_bytes)
    else:
        yield from _pack(kernel, rows, places, order, timestamp_ms, batch_bytes)


# ------------------------------------------------------------------------------------------------- with the kernel


def _pack(
    kernel: Kernel,
    rows: RecordColumns,
    places: Places,
    order: npt.NDArray[np.int64],
    timestamp_ms: int,
    batch_bytes: int,
) -> Iterator[tuple[int, BatchBuilder]]:
    count = len(places)
    key, value = _field(rows.key, count), _field(rows.value)
    lists, pairs = _lists(rows.headers, count)
    sizes, each = np.full(count, 2, np.int64), np.zeros(len(pairs[0][1]) - 1, np.int64)
    for field in (key, value):
        kernel.add_sizes(*field[1:], sizes)
    for field in pairs:
        kernel.add_sizes(*field[1:], each)
    kernel.add_lists(lists, each, sizes)
    firsts, begins, at = (np.empty(count + 1, np.int64) for _ in range(3))
    at = at[:count]
    batches, total = kernel.cut(order, sizes, places, batch_bytes - HEADER_SIZE, firsts, begins, at)
    out = np.empty(total, np.uint8)
    kernel.put_heads(order, sizes, firsts, batches, at, out)
    for field in (key, value):
        kernel.put_field(*field, at, out)
    where = np.empty(len(each), np.int64)
    kernel.put_lists(lists, each, at, where, out)
    for field in pairs:
        kernel.put_field(*field, where, out)
    whole = memoryview(out.data)
    ends = zip(pairwise(firsts[: batches + 1].tolist()), pairwise(begins[: batches + 1].tolist()), strict=True)
    for (first, behind), (begin, end) in ends:
        builder = BatchBuilder()
        builder.append_packed(timestamp_ms, whole[begin:end], behind - first)
        yield int(places[order[first]]), builder


_Field = tuple[npt.NDArray[np.uint8], npt.NDArray[np.int32], npt.NDArray[np.uint8]]


def _field(column: Array | None, count: int = 0) -> _Field:
    """A column in the form that the kernel takes: its bytes, where each row's begin, and which rows have any."""
    if column is None:
        return _fixed(np.empty(0, np.uint8)), _fixed(np.zeros(count + 1, np.int32)), _fixed(np.zeros(count, np.uint8))
    if pa.types.is_large_string(column.type) or pa.types.is_large_binary(column.type):
        column = column.cast(pa.binary())
    column_buffers: list[Any] = column.buffers()
    _, starts, data = column_buffers
    if starts is None:  # no rows
        return _fixed(np.empty(0, np.uint8)), _fixed(np.zeros(1, np.int32)), _fixed(np.empty(0, np.uint8))
    content = np.empty(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)
    return _fixed(content), _starts(column, starts), _valid(column)


def _lists(headers: Any, count: int) -> tuple[npt.NDArray[np.int32], tuple[_Field, _Field]]:
    """Where the headers of each row begin, and the columns of their names and contents."""
    if headers is None:
        return _fixed(np.zeros(count + 1, np.int32)), (_field(None), _field(None))
    # A null list may still have entries, which do not belong to the row.
    pairs = headers.flatten()
    lengths = headers.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
    starts = np.zeros(count + 1, np.int32)
    np.cumsum(lengths, out=starts[1:])
    names, contents = pairs.flatten()
    return _fixed(starts), (_field(names), _field(contents))


def _starts(column: Array, buffer: Any) -> npt.NDArray[np.int32]:
    return _fixed(np.frombuffer(buffer, np.int32, len(column) + 1, 4 * column.offset))


def _valid(column: Array) -> npt.NDArray[np.uint8]:
    if not column.null_count:
        return _fixed(np.empty(0, np.uint8))
    return _fixed(column.is_valid().to_numpy(zero_copy_only=False).astype(np.uint8))


def _fixed(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The kernel's functions are compiled for arrays that cannot be written, as Arrow's are."""
    array.flags.writeable = False
    return array


# ------------------------------------------------------------------------------------------------- plain Python


def _pack_plain(
    rows: RecordColumns, places: Places, order: npt.NDArray[np.int64], timestamp_ms: int, batch_bytes: int
) -> Iterator[tuple[int, BatchBuilder]]:
    none = [None] * len(places)
    keys, values = (none if column is None else _binary(column).to_pylist() for column in rows[:2])
    headers = none if rows.headers is None else rows.headers.to_pylist()
    builder, here = BatchBuilder(), ANYWHERE
    for row in order.tolist():
        key, value = keys[row], values[row]
        pairs = [(pair["key"], pair["value"]) for pair in headers[row] or ()]
        is_full = builder.size + record_size(key, value, pairs) > batch_bytes
        if builder.count and (places[row] != here or is_full):
            yield here, builder
            builder = BatchBuilder()
        here = int(places[row])
        builder.append(timestamp_ms, key, value, pairs)
    yield here, builder


def _binary(column: Any) -> Any:
    """Text as its bytes, which are not copied: as Python strings, each would be decoded and encoded again."""
    return column if pa.types.is_binary(column.type) else column.cast(pa.binary())
