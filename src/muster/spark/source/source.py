"""`format("muster")`: readers and writers for batches and streams.

Spark creates readers more than once, in several processes, and pickles them for executors. So creating one does no I/O
and joins no group, and a process's sockets and member are never pickled.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from muster.arrow.schema import NEVER_NULL
from muster.client.plain.cluster import connect
from muster.errors import ConfigError
from muster.spark.sink_options import parse_sink_options
from muster.spark.source.batch import plan
from muster.spark.source.options import SourceOptions, parse_options
from muster.spark.source.ranges import read_range, tasks
from muster.spark.source.shares import split

log = logging.getLogger("muster.spark")

NAME = "muster"

_TYPES: dict[str, DataType] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    "headers": ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())])),
    "leaderEpoch": IntegerType(),
    "isTransactional": BooleanType(),
}


def spark_schema(columns: Sequence[str]) -> StructType:
    """The named columns with the types of Spark's own Kafka source, which declares all of them nullable."""
    return StructType([StructField(name, _TYPES[name], name not in NEVER_NULL) for name in columns])


class MusterDataSource(DataSource):  # type: ignore[misc]
    """The data source: options in, readers out."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        # Spark does not say what it needs the schema for; the readers check again.
        return spark_schema(parse_options(self.options, streaming=None).columns)

    def reader(self, schema: StructType) -> BatchReader:
        return BatchReader(_with_schema(parse_options(self.options, streaming=False), schema))

    def streamReader(self, schema: StructType) -> Any:  # noqa: N802 - Spark's name
        from muster.spark.source.stream import (
            StreamReader,  # imported here: a batch query does not need the member's modules
        )

        return StreamReader(_with_schema(parse_options(self.options, streaming=True), schema))

    def writer(self, schema: StructType, overwrite: bool) -> Any:
        from muster.spark.sink import BatchWriter  # imported here: a reader does not need the producer's modules

        if overwrite:
            raise ConfigError('mode("overwrite") is not supported: a topic is append-only; use mode("append")')
        return BatchWriter(parse_sink_options(self.options, schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:  # noqa: N802 - Spark's name
        from muster.spark.sink import StreamWriter

        # overwrite means output mode complete: each batch is appended whole, as by Spark's own sink.
        return StreamWriter(parse_sink_options(self.options, schema))


def _with_schema(options: SourceOptions, schema: StructType) -> SourceOptions:
    """The options, if the schema matches the option `columns`.

    Raises:
        ConfigError: it does not.
    """
    if schema != spark_schema(options.columns):
        raise ConfigError(
            f"the muster source has the columns {', '.join(options.columns)} with fixed types: "
            "omit schema(), choose columns with the option columns, and parse values in the query, "
            "with from_json"
        )
    return options


class BatchReader(DataSourceReader):  # type: ignore[misc]
    """Reads the records between two sets of offsets."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._settings = options.fetch_settings()

    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        for note in options.notes:
            log.warning(note)
        cluster = connect(self._settings.client)
        pieces = split(plan(cluster, options), options.min_partitions, options.max_records)
        return tasks(pieces, lambda topic: cluster.topic_id(topic).hex(), options.max_partitions)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_range(self._settings, partition)
