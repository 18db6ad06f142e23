"""The options and columns of `write.format("muster")`, which are those of Spark's own Kafka sink.

Options that begin with `kafka.` are producer settings, under Kafka's names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql.types import ArrayType, BinaryType, DataType, IntegerType, StringType, StructField, StructType

from muster.client.config import ProducerConfig
from muster.errors import ConfigError
from muster.spark.option_values import KnownOptions, OptionValues, with_option_names

KNOWN = (
    "kafka.bootstrap.servers",
    "bootstrap",
    "topic",
    "exactlyOnce",
    "includeHeaders",
    "checkpointLocation",
    "queryName",
    "path",
)
"""All options but producer settings. `path`, which `save(path)` sets, is refused."""

_DECIDED_HERE = {
    "kafka.key.serializer": "keys must be string or binary: cast them in the query",
    "kafka.value.serializer": "values must be string or binary: cast them in the query",
    "path": "name the topic with the option topic, not in save() or start()",
}

NAMES = KnownOptions("sink", KNOWN, _DECIDED_HERE)

_DEFAULTS: dict[str, Any] = {"client_id": "muster-spark", "batch_size": 128 * 1024, "linger_ms": 0}
"""Defaults that differ from the producer's: many records arrive together, so larger batches cost no time."""

_PREFIX = "kafka.transactional.id"

TRANSACTION_TIMEOUT_MS = 900_000
"""A task is one transaction, however many rows it has. Brokers do not allow a longer timeout by default
(`transaction.max.timeout.ms`)."""

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
    """A writer's options."""

    topic: str | None
    """The topic of all rows, whatever their column topic says."""
    columns: frozenset[str]
    """The columns of the rows that the sink uses."""
    config: ProducerConfig
    prefix: str | None = None
    """With `exactlyOnce`, how the transactional ids of the tasks begin."""


def parse_sink_options(raw: Mapping[str, str], schema: StructType, *, streaming: bool = True) -> SinkOptions:
    """Parse a writer's options, and check the columns of its rows. `streaming`: for a query, whose batches are
    numbered.

    Raises:
        ConfigError: something is unknown, missing or of a wrong type. The message is written for the user.
    """
    options = OptionValues(raw, NAMES)
    options.check_names()
    options.flag("includeHeaders", True)  # headers are written if there is a column of that name, as by Spark's sink
    topic = (options.get("topic") or "").strip() or None
    prefix = _prefix(options, topic, streaming)
    return SinkOptions(topic, _columns(schema, topic), _config(options, prefix), prefix)


def _prefix(options: OptionValues, topic: str | None, streaming: bool) -> str | None:
    prefix = options.get(_PREFIX)
    if not options.flag("exactlyOnce", False):
        if prefix is not None:
            raise ConfigError(
                f"{_PREFIX} is set, but exactlyOnce is not, and the sink uses transactions only with it: set "
                f"exactlyOnce to true, or leave {_PREFIX} out"
            )
        return None
    if not streaming:
        raise ConfigError(
            "exactlyOnce is for writeStream: a batch write has no batch number by which a retry could recognize "
            "what the first attempt has written"
        )
    if not prefix:
        raise ConfigError(
            f"exactlyOnce needs {_PREFIX}: a name that this query keeps when it is restarted, and that no other "
            "query uses"
        )
    if topic is None:
        raise ConfigError(
            "exactlyOnce needs the option topic: the sink marks what it has written with an offset of the topic's "
            "first partition"
        )
    return prefix


def _columns(schema: StructType, topic: str | None) -> frozenset[str]:
    found = {field.name: field.dataType for field in schema.fields if field.name in _COLUMNS}
    if "value" not in found:
        raise ConfigError(
            f"the sink needs a column named value; the columns are {', '.join(schema.fieldNames()) or 'none'}"
        )
    if topic is not None:
        found.pop("topic", None)
    elif "topic" not in found:
        raise ConfigError("there is no topic: set the option topic, or add a column named topic")
    for name, kind in found.items():
        if not any(_alike(kind, wanted) for wanted in _COLUMNS[name]):
            wanted_types = " or ".join(wanted.simpleString() for wanted in _COLUMNS[name])
            raise ConfigError(f"column {name} is {kind.simpleString()}; the sink needs {wanted_types}: cast it")
    return frozenset(found)


def _alike(kind: DataType, wanted: DataType) -> bool:
    """Whether two types are equal apart from nullability."""
    if isinstance(kind, StringType) and isinstance(wanted, StringType):
        return True  # whatever its collation
    return bool(kind.simpleString() == wanted.simpleString())


def _config(options: OptionValues, prefix: str | None) -> ProducerConfig:
    settings = {
        name.removeprefix("kafka."): value
        for name, value in options.all.items()
        if name.startswith("kafka.") and name not in options.known
    }
    defaults = _DEFAULTS if prefix is None else _DEFAULTS | {"transaction_timeout_ms": TRANSACTION_TIMEOUT_MS}
    chosen = defaults | {name.replace(".", "_"): value for name, value in settings.items()}
    try:
        return ProducerConfig.of(chosen, bootstrap_servers=options.bootstrap())
    except ConfigError as error:
        raise ConfigError(with_option_names(str(error), ProducerConfig, set(chosen), {})) from None
