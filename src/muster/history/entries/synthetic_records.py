"""Records that are not in a log: what other sources report about groups, as a coordinator would have written it."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from muster.history.tables import RAW
from muster.protocol.group_records import GroupMetadataRecord, OffsetCommitRecord, encode_record


class SyntheticRecords:
    """Synthetic records as a topic with one partition: a source for the engine."""

    def __init__(self) -> None:
        self._rows: list[tuple[int, int, int, int, bytes, bytes | None, bool | None]] = []

    def write(self, record: GroupMetadataRecord | OffsetCommitRecord, at_ms: int, offset: int | None = None) -> None:
        """Append a record. By default each gets its own offset; offsets that are passed only have to increase within a
        group."""
        self._rows.append((0, len(self._rows) if offset is None else offset, at_ms, -1, *encode_record(record), None))

    @property
    def records(self) -> dict[int, int]:
        """The number of records."""
        return {0: len(self._rows)}

    def read(self, partition: int) -> Iterator[pa.RecordBatch]:
        """All records, as rows of schema RAW."""
        columns = list(zip(*self._rows, strict=True)) or [()] * len(RAW)
        yield pa.RecordBatch.from_arrays(
            [pa.array(column, each.type) for column, each in zip(columns, RAW, strict=True)], schema=RAW
        )
