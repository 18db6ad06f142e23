"""The options of a writer, and the errors for what is not allowed."""

from __future__ import annotations

import pytest
from pyspark.sql.types import ArrayType, BinaryType, IntegerType, LongType, StringType, StructField, StructType

from muster.errors import ConfigError
from muster.spark.sink_options import parse_sink_options

HEADERS = ArrayType(StructType([StructField("key", StringType(), False), StructField("value", BinaryType())]), False)


def schema(**columns):
    return StructType([StructField(name, kind) for name, kind in columns.items()])


def parsed(columns=None, **options):
    given = {"kafka.bootstrap.servers": "b:9092", "topic": "t"}
    given |= {name.replace("_", "."): str(value) for name, value in options.items()}
    found = columns or {"value": BinaryType()}
    return parse_sink_options({k: v for k, v in given.items() if v != "None"}, schema(**found))


ONCE = {"exactlyOnce": "true", "kafka_transactional_id": "copies"}


def test_exactly_once_is_for_streams():
    options = parsed(**ONCE)
    assert (options.prefix, options.config.transaction_timeout_ms) == ("copies", 900_000)
    assert parsed(**ONCE, kafka_transaction_timeout_ms=60_000).config.transaction_timeout_ms == 60_000
    assert parsed(exactlyOnce="false").prefix is None
    given = {"bootstrap": "b:9092", "topic": "t", "exactlyOnce": "true", "kafka.transactional.id": "copies"}
    with pytest.raises(ConfigError, match=r"^exactlyOnce is for writeStream: a batch write has no batch number"):
        parse_sink_options(given, schema(value=BinaryType()), streaming=False)


def test_by_default_it_is_idempotent_and_waits_for_all():
    config = parsed().config
    assert (config.idempotent, config.required_acks, config.bootstrap_servers) == (True, -1, ("b:9092",))
    assert parsed(bootstrap="b:9092").config == config


def test_the_producers_settings_have_kafkas_names():
    options = parsed(kafka_acks=1, kafka_compression_type="zstd", kafka_linger_ms=20, kafka_batch_size=1000)
    config = options.config
    assert (config.acks, config.compression_type, config.linger_ms, config.batch_size) == ("1", "zstd", 20, 1000)
    assert not config.idempotent


def test_the_columns_that_are_taken():
    columns = {"key": StringType(), "value": StringType(), "headers": HEADERS, "partition": IntegerType()}
    others = {"offset": LongType(), "timestamp": LongType()}
    assert parsed(columns | others).columns == frozenset(columns)
    assert parsed({"value": StringType(), "topic": StringType()}).columns == {"value"}, "the option wins"
    assert parsed({"value": StringType(), "topic": StringType()}, topic=None).columns == {"value", "topic"}


@pytest.mark.parametrize(
    ("columns", "options", "sentence"),
    [
        ({"key": StringType()}, {}, "needs a column named value; the columns are key$"),
        (None, {"topic": None}, "set the option topic, or add a column named topic"),
        (None, {"topic": " "}, "set the option topic, or add a column named topic"),
        ({"value": LongType()}, {}, "value is bigint; the sink needs string or binary: cast it"),
        ({"value": StringType(), "partition": LongType()}, {}, "partition is bigint; the sink needs int"),
        ({"value": StringType(), "headers": StringType()}, {}, "headers is string; the sink needs array<struct<key"),
        ({"value": StringType(), "topic": BinaryType()}, {"topic": None}, "topic is binary; the sink needs string"),
        (
            None,
            {"kafka_lingerms": 3},
            r"^kafka\.lingerms is not a setting of the producer; did you mean kafka.linger.ms",
        ),
        (None, {"kafka_ack": 3}, r"^kafka\.ack is not a setting of the producer; did you mean kafka.acks"),
        (None, {"kafka_linger_mss": 3}, r"^kafka\.linger\.mss is not a setting .* did you mean kafka.linger.ms"),
        (None, {"topics": "t"}, "topics is not an option of the muster sink; did you mean topic"),
        (None, {"subscribe": "t"}, "subscribe is not an option of the muster sink"),
        (None, {"kafka_key_serializer": "x"}, "kafka.key.serializer cannot be set: keys must be string or binary"),
        (None, {"kafka_transactional_id": "x"}, "kafka.transactional.id is set, but exactlyOnce is not, .* leave"),
        (None, {"exactlyOnce": "true"}, "^exactlyOnce needs kafka.transactional.id: a name that this query keeps"),
        (None, {"exactlyOnce": "true", "kafka_transactional_id": ""}, "^exactlyOnce needs kafka.transactional.id"),
        (None, {"exactlyOnce": "yes"}, "exactlyOnce is 'yes'; it must be one of true, false"),
        (
            {"value": StringType(), "topic": StringType()},
            {"topic": None, **ONCE},
            "^exactlyOnce needs the option topic: the sink marks what it has written",
        ),
        (None, ONCE | {"kafka_acks": "1"}, "^kafka.transactional.id needs acks=all"),
        (None, ONCE | {"kafka_enable_idempotence": "false"}, "^kafka.transactional.id needs kafka.enable.idempotence"),
        (None, {"path": "x"}, "path cannot be set: name the topic with the option topic"),
        (None, {"kafka_acks": "2"}, "^kafka.acks is '2'; it must be one of all, -1, 0, 1"),
        (None, {"kafka_delivery_timeout_ms": "5"}, r"kafka.delivery.timeout.ms \(5\) must be at least kafka.linger.ms"),
        (None, {"kafka_bootstrap_servers": None}, "kafka.bootstrap.servers is not set"),
        (None, {"includeHeaders": "maybe"}, "includeHeaders is 'maybe'; it must be one of true, false"),
    ],
)
def test_what_does_not_fit_is_refused_by_the_name_that_was_typed(columns, options, sentence):
    with pytest.raises(ConfigError, match=sentence):
        parsed(columns, **options)
