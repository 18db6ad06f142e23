"""`df.write.format("muster")` and `df.writeStream.format("muster")`: rows to records, like Spark's own Kafka sink.

Each task encodes its Arrow batches directly as record batches and hands them to a producer, which the next task in the
same Python process reuses. A task ends when all its records are acknowledged, and fails if one cannot be
written. Then Spark retries it, and writes all its records again: at least once, like Spark's own sink.

`commit` and `abort` do nothing: what a task has written is readable immediately and cannot be taken back.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from muster.arrow.engine import Engine, packing_kernel_for
from muster.arrow.packing import ANYWHERE, Rows, pack, place
from muster.client.config import ProducerConfig
from muster.client.core.produce.accumulator import OutgoingBatch
from muster.client.core.produce.partitioner import partition_for_key
from muster.client.net.driver import wall_clock_ms
from muster.client.producer.batch_producer import BatchProducer
from muster.errors import MusterError
from muster.spark.given import as_typed
from muster.spark.sink_options import SinkOptions
from muster.spark.worker import keep_memory, spare_collections

CHUNK_BYTES = 4 * 1024 * 1024
"""Arrow batches are collected up to this size: a single one may have only a few records for each partition. More than
fits in a processor's cache costs more."""

MOST_BYTES = 2 * CHUNK_BYTES
"""A larger Arrow batch is cut. Its parts are not collected again, which would copy them."""


class SinkError(MusterError):
    """Rows were not written. The message is written for the user."""


class BatchWriter(DataSourceArrowWriter):  # type: ignore[misc]
    """Writes the rows of a DataFrame."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return write(self._options, iterator)


class StreamWriter(DataSourceStreamArrowWriter):  # type: ignore[misc]
    """Writes the rows of a query's batches."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return write(self._options, iterator)


def write(options: SinkOptions, batches: Iterator[pa.RecordBatch], engine: Engine = Engine.AUTO) -> WriterCommitMessage:
    """Run one task. Returns when all rows are acknowledged according to `acks`.

    Raises:
        SinkError: a record cannot be written, or was not acknowledged within `delivery.timeout.ms`.
    """
    producer = None
    keep_memory()
    try:
        for chunk in _chunks(options, batches):
            producer = producer or _producer(options.config)
            for topic, rows, given in _by_topic(options, chunk):
                _write(producer, topic, rows, given, engine)
        if producer is not None:
            producer.flush()
    except BaseException as error:
        if producer is not None:
            _drop(producer)
        if isinstance(error, MusterError) and not isinstance(error, SinkError):
            raise SinkError(as_typed(str(error), ProducerConfig, set(), {})) from error
        raise
    spare_collections()
    return WriterCommitMessage()


def _write(producer: BatchProducer, topic: str, rows: Rows, given: Any, engine: Engine) -> None:
    kernel = packing_kernel_for(engine, len(rows.value))
    config = producer.config
    partitions = producer.partition_count(topic)
    if config.partitioner_ignore_keys:
        places = place(rows._replace(key=None), given, partitions, partition_for_key, kernel)
    else:
        places = place(rows, given, partitions, partition_for_key, kernel)
    now = wall_clock_ms()
    producer.put(
        [
            OutgoingBatch(topic, None if partition == ANYWHERE else partition, builder, now, None)
            for partition, builder in pack(rows, places, now, config.batch_size, kernel)
        ]
    )


# ------------------------------------------------------------------------------------------------- rows


def _chunks(options: SinkOptions, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """The rows, in chunks that make large record batches."""
    collected: list[pa.RecordBatch] = []
    size = 0
    for part in _parts(options, batches):
        collected.append(part)
        size += part.nbytes
        if size >= CHUNK_BYTES:
            yield pa.Table.from_batches(collected)
            collected, size = [], 0
    if collected:
        yield pa.Table.from_batches(collected)


def _parts(options: SinkOptions, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The columns that are written. A batch of large values may have hundreds of megabytes: each part of it is packed
    into the memory of the part before, and the first parts are sent while later ones are packed."""
    for batch in batches:
        wanted = batch.select([name for name in batch.schema.names if name in options.columns])
        if wanted.num_rows:
            rows = -(-wanted.num_rows // max(1, -(-wanted.nbytes // MOST_BYTES)))
            for first in range(0, wanted.num_rows, rows):
                yield wanted.slice(first, rows)


def _by_topic(options: SinkOptions, chunk: pa.Table) -> Iterator[tuple[str, Rows, Any]]:
    """The rows of each topic, in order, and the partitions that they name."""
    columns: dict[str, Any] = {name: _whole(chunk.column(name)) for name in chunk.schema.names}
    rows = Rows(columns.get("key"), columns["value"], columns.get("headers"))
    _check_headers(rows.headers)
    given = columns.get("partition")
    if given is not None and (least := pc.min(given).as_py()) is not None and least < 0:
        raise SinkError(f"a row names partition {least}: use 0 or more, or null for any partition")
    if options.topic is not None:
        yield options.topic, rows, given
        return
    topics = columns["topic"]
    if topics.null_count:
        raise SinkError("a row has null in column topic: name a topic, or set the option topic for all rows")
    named = topics.dictionary_encode()
    numbers = named.indices.to_numpy()
    for number, topic in enumerate(named.dictionary.to_pylist()):
        if len(named.dictionary) == 1:
            yield topic, rows, given
            return
        those = np.flatnonzero(numbers == number)
        yield topic, rows.take(those), None if given is None else given.take(those)


def _whole(column: Any) -> Any:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)


def _check_headers(headers: Any) -> None:
    if headers is None:
        return
    pairs = headers.flatten()
    if pairs.null_count or pairs.flatten()[0].null_count:
        raise SinkError("a row has a header that is null or whose key is null, which Kafka does not allow")


# ------------------------------------------------------------------------------------------------- producers

_producers: dict[ProducerConfig, BatchProducer] = {}
"""The open producers of this process, the last used at the end. No task that has ended has anything in flight."""

_KEPT = 4


def _producer(config: ProducerConfig) -> BatchProducer:
    """A producer that tasks with these settings share, one after another."""
    found = _producers.pop(config, None)
    if found is None or not found.usable:
        found = BatchProducer(config)
    _producers[config] = found
    while len(_producers) > _KEPT:
        _producers.pop(next(iter(_producers))).close()
    return found


def _drop(producer: BatchProducer) -> None:
    """Close the producer of a failed task: the next task must not write what it has not sent yet."""
    _producers.pop(producer.config, None)
    producer.close()


def close_producers() -> None:
    """Close all producers of this process."""
    while _producers:
        _producers.popitem()[1].close()
