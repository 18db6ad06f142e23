"""The options of `write.format("muster")` and its columns, as Spark's own Kafka sink has them.

Options that begin with `kafka.` are settings of the producer, under Kafka's own names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql.types import ArrayType, BinaryType, DataType, IntegerType, StringType, StructField, StructType

from muster.client.config import ProducerConfig
from muster.errors import ConfigError
from muster.spark.given import Given, Names, as_typed

KNOWN = (
    "kafka.bootstrap.servers",
    "bootstrap",
    "topic",
    "includeHeaders",
    "checkpointLocation",
    "queryName",
    "path",
)
"""Everything but the producer's settings. What `save(path)` gives is refused."""

_DECIDED_HERE = {
    "kafka.key.serializer": "keys are text or binary; cast them in the query",
    "kafka.value.serializer": "values are text or binary; cast them in the query",
    "kafka.transactional.id": "the sink writes at least once, without transactions, as Spark's own",
    "path": "name the topic with the option topic, not with save() or start()",
}

NAMES = Names("sink", KNOWN, _DECIDED_HERE)

_DEFAULTS: dict[str, Any] = {"client_id": "muster-spark", "batch_size": 128 * 1024, "linger_ms": 0}
"""Where they differ from the producer's: many records come at once, so larger batches cost no time."""

_HEADERS = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))

_COLUMNS: dict[str, tuple[DataType, ...]] = {
    "topic": (StringType(),),
    "key": (StringType(), BinaryType()),
    "value": (StringType(), BinaryType()),
    "headers": (_HEADERS,),
    "partition": (IntegerType(),),
}


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """What a writer was told."""

    topic: str | None
    """Where everything goes, whatever the rows say."""
    columns: frozenset[str]
    """The columns that the sink takes from the rows."""
    config: ProducerConfig


def parse_sink_options(given: Mapping[str, str], schema: StructType) -> SinkOptions:
    """Read a writer's options, and look at the columns of what it is to write.

    Raises:
        ConfigError: something is unknown, missing or of a wrong type. The message is for the user.
    """
    options = Given(given, NAMES)
    options.check_names()
    options.flag("includeHeaders", True)  # headers are written if there is such a column, as Spark's sink does
    topic = (options.get("topic") or "").strip() or None
    return SinkOptions(topic, _columns(schema, topic), _config(options))


def _columns(schema: StructType, topic: str | None) -> frozenset[str]:
    found = {field.name: field.dataType for field in schema.fields if field.name in _COLUMNS}
    if "value" not in found:
        raise ConfigError(f"the sink needs a column value; the columns are {', '.join(schema.fieldNames()) or 'none'}")
    if topic is not None:
        found.pop("topic", None)
    elif "topic" not in found:
        raise ConfigError("nothing says where to write: set the option topic, or give the rows a column topic")
    for name, kind in found.items():
        if not any(_alike(kind, wanted) for wanted in _COLUMNS[name]):
            wanted_types = " or ".join(wanted.simpleString() for wanted in _COLUMNS[name])
            raise ConfigError(f"the column {name} is {kind.simpleString()}; the sink takes {wanted_types}: cast it")
    return frozenset(found)


def _alike(kind: DataType, wanted: DataType) -> bool:
    """Whether two types are the same but for what may be null."""
    if isinstance(kind, StringType) and isinstance(wanted, StringType):
        return True  # whatever its collation
    return bool(kind.simpleString() == wanted.simpleString())


def _config(options: Given) -> ProducerConfig:
    settings = {
        name.removeprefix("kafka."): value
        for name, value in options.all.items()
        if name.startswith("kafka.") and name not in options.known
    }
    chosen = _DEFAULTS | {name.replace(".", "_"): value for name, value in settings.items()}
    try:
        return ProducerConfig.of(chosen, bootstrap_servers=options.bootstrap())
    except ConfigError as error:
        raise ConfigError(as_typed(str(error), ProducerConfig, set(chosen), {})) from None
