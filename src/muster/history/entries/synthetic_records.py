"""Records that no log has: what is known of groups from elsewhere, written down for the rules as a coordinator would
have written it."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from muster.history.tables import RAW
from muster.protocol.group_records import GroupMetadataRecord, OffsetCommitRecord, encode_record


class WrittenDown:
    """Such records, as a topic of one partition: a source for the engine."""

    def __init__(self) -> None:
        self._rows: list[tuple[int, int, int, int, bytes, bytes | None]] = []

    def write(self, record: GroupMetadataRecord | OffsetCommitRecord, at_ms: int, offset: int | None = None) -> None:
        """Append a record. Only those of one group need offsets that grow; else each has its own."""
        self._rows.append((0, len(self._rows) if offset is None else offset, at_ms, -1, *encode_record(record)))

    @property
    def records(self) -> dict[int, int]:
        """How many records there are."""
        return {0: len(self._rows)}

    def read(self, partition: int) -> Iterator[pa.RecordBatch]:
        """All records, as rows of schema RAW."""
        columns = list(zip(*self._rows, strict=True)) or [()] * len(RAW)
        yield pa.RecordBatch.from_arrays(
            [pa.array(column, each.type) for column, each in zip(columns, RAW, strict=True)], schema=RAW
        )
