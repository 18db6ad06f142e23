"""Arrow tables of fetched records. Imported only when `poll_arrow` is called, because pyarrow is an extra."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from muster.arrow import Decoder, arrow_schema
from muster.client.config import ConsumerConfig
from muster.client.core.consume.fetched import FetchedData
from muster.client.core.consume.fetcher import Fetcher
from muster.errors import ProtocolError
from muster.model import TopicPartition
from muster.protocol.records.record_batch import check_batch, iter_headers, read_tuples

Tables = dict[TopicPartition, pa.Table]


class ArrowReader:
    """Decodes the batches of a `Fetcher` into tables with the given columns."""

    def __init__(self, config: ConsumerConfig, fetcher: Fetcher, columns: Sequence[str]) -> None:
        arrow_schema(columns)  # raises for a column that does not exist
        self.columns = tuple(columns)
        self._check_crcs = config.check_crcs
        self._fetcher = fetcher
        self._decoders: dict[TopicPartition, Decoder] = {}
        self.starts: dict[TopicPartition, int] = {}
        """The positions of the partitions before the last `collect`."""

    def collect(self) -> Tables:
        """All fetched records; the positions move past them. Records before a damaged batch are included."""
        tables: Tables = {}
        self.starts = {}
        for partition, fetched in self._fetcher.collect_raw().items():
            self.starts[partition] = fetched[0].start_offset
            batches: list[pa.RecordBatch] = []
            for data in fetched:
                try:
                    batches += self._decode(partition, data, len(data.buffer))
                except ProtocolError as error:
                    end, offset, reason = self._find_damage(data, error)
                    batches += self._decode(partition, data, end)
                    self._fetcher.refuse_raw(partition, offset, reason)
                    break
            if batches:
                tables[partition] = pa.Table.from_batches(batches)
        return tables

    def _decode(self, partition: TopicPartition, data: FetchedData, end: int) -> list[pa.RecordBatch]:
        decoder = self._decoders.get(partition)
        if decoder is None:
            decoder = self._decoders[partition] = Decoder(*partition, self.columns)
        buffer = memoryview(data.buffer)[:end]
        return list(
            decoder.decode(buffer, data.start_offset, aborted=data.aborted, check_crcs=self._check_crcs).batches
        )

    def _find_damage(self, data: FetchedData, error: ProtocolError) -> tuple[int, int, ProtocolError]:
        """Where the first damaged batch begins, its offset, and what is wrong with it."""
        end, offset = 0, data.start_offset
        try:
            for position, header in iter_headers(data.buffer):
                if self._check_crcs:
                    check_batch(data.buffer, position, header)
                read_tuples(data.buffer, position, header)
                end, offset = position + header.size, max(offset, header.next_offset)
        except ProtocolError as found:
            return end, offset, found
        return 0, data.start_offset, error
