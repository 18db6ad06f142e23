"""Fetched record batches to Arrow record batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from muster.arrow import buffers, plain
from muster.arrow.engine import Engine, kernel_at_hand, kernel_for
from muster.arrow.schema import COLUMNS, Array, arrow_schema
from muster.arrow.segments import EncodedBatch, scan
from muster.protocol.records.compression import Buffer

MAX_ROWS = 1 << 20
"""The most rows in one Arrow record batch: a few compressed bytes may hold millions of empty records."""


class Fetched(NamedTuple):
    """The decoded records, lazily, and the offset at which the next fetch begins."""

    batches: Iterator[pa.RecordBatch]
    next_offset: int


class Decoder:
    """Decodes what is fetched from one partition.

    `columns` are names of `COLUMNS`, or "headers", in the order wanted. Other columns are not copied.
    """

    def __init__(
        self, topic: str, partition: int, columns: Sequence[str] = COLUMNS, engine: Engine = Engine.AUTO
    ) -> None:
        self.schema = arrow_schema(columns)
        self._columns = tuple(columns)
        self._topic = topic.encode()
        self._partition = partition
        self._engine = engine

    def decode(
        self,
        buffer: Buffer,
        start: int = 0,
        end: int = 2**63 - 1,
        aborted: Sequence[tuple[int, int]] | None = None,
        check_crcs: bool = True,
    ) -> Fetched:
        """The records of fetched bytes whose offset is in `[start, end)`.

        The bytes may end in the middle of a batch. `aborted` is a response's list of (producer id, first offset) of
        aborted transactions for read_committed, None for read_uncommitted. The next offset is known immediately;
        records are decoded as the batches are iterated over, and no batch is empty.

        Raises:
            CorruptRecordError: a CRC or a record is wrong; for a record, during iteration over the batches.
        """
        kernel, names = kernel_at_hand(self._engine), frozenset(self._columns)
        if kernel is not None and (found := buffers.decode_plain(kernel, buffer, (start, end), names, check_crcs)):
            decoded, next_offset = found
            return Fetched(self._assembled(decoded), next_offset)
        segments, next_offset = scan(buffer, start, end, aborted, check_crcs)
        return Fetched(self._batches(buffer, segments, (start, end)), next_offset)

    def _batches(
        self, buffer: Buffer, segments: list[EncodedBatch], wanted: tuple[int, int]
    ) -> Iterator[pa.RecordBatch]:
        kernel = kernel_for(self._engine, sum(segment.header.record_count for segment in segments))
        names = frozenset(self._columns)
        decoded = (
            plain.decode(buffer, segments, wanted, names)
            if kernel is None
            else buffers.decode(kernel, buffer, segments, wanted, names)
        )
        yield from self._assembled(decoded)

    def _assembled(self, decoded: Iterable[tuple[int, dict[str, Array]]]) -> Iterator[pa.RecordBatch]:
        for rows, columns in decoded:
            for at in range(0, rows, MAX_ROWS):
                yield self._assemble(columns, at, min(MAX_ROWS, rows - at))

    def _assemble(self, decoded: dict[str, Array], at: int, rows: int) -> pa.RecordBatch:
        columns = {name: array.slice(at, rows) for name, array in decoded.items()}
        for name in self._columns:
            if name == "topic":
                columns[name] = _constant_text(self._topic, rows)
            elif name == "partition":
                columns[name] = pa.array(np.full(rows, self._partition, np.int32))
        return pa.RecordBatch.from_arrays([columns[name] for name in self._columns], schema=self.schema)


def _constant_text(text: bytes, rows: int) -> Array:
    starts = np.arange(rows + 1, dtype=np.int32) * np.int32(len(text))
    return pa.StringArray.from_buffers(rows, pa.py_buffer(starts.data), pa.py_buffer(text * rows))
