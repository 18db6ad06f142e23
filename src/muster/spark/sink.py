"""`df.write.format("muster")` and `df.writeStream.format("muster")`: rows to records, like Spark's own Kafka sink.

Each task encodes its Arrow batches directly as record batches and hands them to a producer, which the next task in the
same Python process reuses. A task ends when all its records are acknowledged, and fails if one cannot be
written. Then Spark retries it, and writes all its records again: at least once, like Spark's own sink. What a task has
written is readable immediately and cannot be taken back.

With `exactlyOnce` a task of a stream is a transaction (`exactly_once.py`), with its own producer: a shared one would be
fenced as soon as the task of the next batch runs in another process.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from muster.arrow.engine import Engine, packing_kernel_for
from muster.arrow.packing import ANYWHERE, RecordColumns, pack, place
from muster.client.config import ProducerConfig
from muster.client.core.produce.accumulator import OutgoingBatch
from muster.client.core.produce.partitioner import partition_for_key
from muster.client.plain.cluster import connect
from muster.client.producer.batch_producer import BatchProducer
from muster.clock import wall_clock_ms
from muster.errors import MusterError
from muster.model import GroupMetadata, TopicPartition
from muster.spark.exactly_once import (
    BATCH_ID,
    QUERY_ID,
    Attempt,
    Content,
    SinkError,
    attempt,
    check_tasks,
    read_marker,
    task_number,
)
from muster.spark.option_values import with_option_names
from muster.spark.sink_options import SinkOptions
from muster.spark.worker import keep_memory, spare_collections

CHUNK_BYTES = 4 * 1024 * 1024
"""Arrow batches are collected up to this size: a single one may have only a few records for each partition. More than
fits in a processor's cache costs more time."""

MOST_BYTES = 2 * CHUNK_BYTES
"""A larger Arrow batch is cut. Its parts are not collected again, which would copy them."""


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

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        attempts = [message.attempt for message in messages if isinstance(message, Written)]
        if attempts:
            _check_tasks(self._options, attempts)


class Written(WriterCommitMessage):  # type: ignore[misc]
    """The message of a task that has written its rows in a transaction, now or earlier."""

    def __init__(self, attempt: Attempt) -> None:
        self.attempt = attempt


def write(options: SinkOptions, batches: Iterator[pa.RecordBatch], engine: Engine = Engine.AUTO) -> WriterCommitMessage:
    """Run one task. Returns when all rows are acknowledged according to `acks`, or committed.

    Raises:
        SinkError: a record cannot be written, or was not acknowledged within `delivery.timeout.ms`; or, with
            `exactlyOnce`, another run of the batch has written something else.
    """
    keep_memory()
    try:
        if options.prefix is None:
            _write_rows(options, batches, engine)
            message = WriterCommitMessage()
        else:
            message = Written(_current_attempt(options.prefix))
            _write_once(message.attempt, options, batches, engine)
    except MusterError as error:
        if isinstance(error, SinkError):
            raise
        raise SinkError(with_option_names(str(error), ProducerConfig, set(), {})) from error
    spare_collections()
    return message


def _write_rows(options: SinkOptions, batches: Iterator[pa.RecordBatch], engine: Engine) -> None:
    """At least once."""
    producer = None
    try:
        for chunk in _chunks(options, batches):
            producer = producer or _producer(options.config)
            _write_chunk(producer, options, chunk, engine)
        if producer is not None:
            producer.flush()
    except BaseException:
        if producer is not None:
            _drop(producer)
        raise


# ------------------------------------------------------------------------------------------------- exactly once


def _current_attempt(prefix: str) -> Attempt:
    context = TaskContext.get()
    if context is None:
        return attempt(prefix, 0, {})
    return attempt(
        prefix, context.partitionId(), {name: context.getLocalProperty(name) for name in (BATCH_ID, QUERY_ID)}
    )


def _write_once(current: Attempt, options: SinkOptions, batches: Iterator[pa.RecordBatch], engine: Engine) -> None:
    assert options.topic is not None
    place = TopicPartition(options.topic, 0)
    producer = BatchProducer(replace(options.config, transactional_id=current.name))
    try:
        producer.init_transactions()  # before the marker is read: now no other attempt can commit one
        marker = read_marker(current.name, connect(options.config).committed(current.name, [place]).get(place))
        chunks = _chunks(options, batches)
        if current.is_written(marker):
            assert marker is not None
            current.check_same(marker, _content(chunks))
            return
        producer.begin_transaction()
        content = Content()
        for chunk in chunks:
            content = content.plus(chunk)
            _write_chunk(producer, options, chunk, engine)
        producer.flush()
        producer.send_offsets_to_transaction({place: current.marker(content).commit()}, GroupMetadata(current.name))
        producer.commit_transaction()
    except BaseException:
        with contextlib.suppress(MusterError):  # otherwise readers would wait for the transaction's timeout
            producer.abort_transaction(timeout_ms=_ABORT_MS)
        raise
    finally:
        producer.close()


_ABORT_MS = 5_000


def _check_tasks(options: SinkOptions, attempts: Sequence[Attempt]) -> None:
    """In the driver: look for markers of tasks that the batch had in an earlier run, and no longer has."""
    assert options.topic is not None
    first, ran = attempts[0], {found.number for found in attempts}
    cluster, place = connect(options.config), TopicPartition(options.topic, 0)
    numbers = {group: task_number(first.prefix, group) for group in cluster.groups()}
    markers = {
        number: read_marker(group, cluster.committed(group, [place]).get(place))
        for group, number in numbers.items()
        if number is not None and number not in ran
    }
    check_tasks(first, ran, {number: marker for number, marker in markers.items() if marker is not None})


def _content(chunks: Iterable[pa.Table]) -> Content:
    content = Content()
    for chunk in chunks:
        content = content.plus(chunk)
    return content


# ------------------------------------------------------------------------------------------------- both


def _write_chunk(producer: BatchProducer, options: SinkOptions, chunk: pa.Table, engine: Engine) -> None:
    for topic, rows, given in _by_topic(options, chunk):
        _write(producer, topic, rows, given, engine)


def _write(producer: BatchProducer, topic: str, rows: RecordColumns, given: Any, engine: Engine) -> None:
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
    into the memory of the previous part, and the first parts are sent while later ones are packed."""
    for batch in batches:
        wanted = batch.select([name for name in batch.schema.names if name in options.columns])
        if wanted.num_rows:
            rows = -(-wanted.num_rows // max(1, -(-wanted.nbytes // MOST_BYTES)))
            for first in range(0, wanted.num_rows, rows):
                yield wanted.slice(first, rows)


def _by_topic(options: SinkOptions, chunk: pa.Table) -> Iterator[tuple[str, RecordColumns, Any]]:
    """The rows of each topic, in order, and the partitions that they name."""
    columns: dict[str, Any] = {name: _whole(chunk.column(name)) for name in chunk.schema.names}
    rows = RecordColumns(columns.get("key"), columns["value"], columns.get("headers"))
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
"""The open producers of this process, the last used at the end. A task that has ended has nothing in flight."""

_MOST_PRODUCERS = 4


def _producer(config: ProducerConfig) -> BatchProducer:
    """A producer that tasks with these settings share, one after another."""
    found = _producers.pop(config, None)
    if found is None or not found.usable:
        found = BatchProducer(config)
    _producers[config] = found
    while len(_producers) > _MOST_PRODUCERS:
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
