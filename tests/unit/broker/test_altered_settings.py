"""Settings that change while the broker runs: the rules, and how a standalone broker applies them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from muster.broker import dynamic_settings as given_settings
from muster.broker.broker import Broker
from muster.broker.config import DYNAMIC, SETTINGS, BrokerConfig
from muster.broker.dynamic_settings import FILE, DynamicSettings
from muster.broker.handlers import alter_configs
from muster.broker.net.calls import at_once
from muster.broker.settings import Source
from muster.broker.topics import settings as topic_settings
from muster.broker.topics.settings import AlterOperation, SettingChange
from muster.errors import ConfigError, ErrorCode, KafkaError
from muster.log import CleanupPolicy
from muster.protocol import admin_messages as a
from muster.protocol import messages as m
from muster.protocol.records.compression import Compression
from muster.protocol.records.record_batch import read_header
from tests.support import brokers
from tests.support.brokers import log_of, topic_of
from tests.support.cluster_asks import altered, produce, stored
from tests.support.faulty_disk import FaultyDisk
from tests.support.held_disk import Asked
from tests.support.written import build_batch

SET, DELETE, APPEND, SUBTRACT = AlterOperation

# ---------------------------------------------------------------------------------------------- rules of topic settings


@pytest.mark.parametrize(
    ("before", "change", "after"),
    [
        ({}, ("retention.ms", SET, "5"), {"retention.ms": "5"}),
        ({"retention.ms": "5"}, ("retention.ms", SET, " 6 "), {"retention.ms": "6"}),
        ({"retention.ms": "5"}, ("retention.ms", DELETE, ""), {}),
        ({"retention.ms": "5"}, ("segment.ms", DELETE, ""), {"retention.ms": "5"}),
        ({}, ("no.such", DELETE, ""), {}),
        ({}, ("cleanup.policy", APPEND, "compact"), {"cleanup.policy": "delete,compact"}),
        ({"cleanup.policy": "compact"}, ("cleanup.policy", APPEND, "compact"), {"cleanup.policy": "compact"}),
        ({"cleanup.policy": "compact"}, ("cleanup.policy", APPEND, "delete"), {"cleanup.policy": "compact,delete"}),
        ({}, ("cleanup.policy", SUBTRACT, "delete"), {"cleanup.policy": ""}),
        ({}, ("cleanup.policy", SUBTRACT, "compact"), {"cleanup.policy": "delete"}),
        ({}, ("cleanup.policy", SET, "delete , compact,delete"), {"cleanup.policy": "delete,compact"}),
        ({}, ("preallocate", SET, "TRUE"), {"preallocate": "true"}),
        (
            {},
            ("leader.replication.throttled.replicas", SET, "0:1,1:2"),
            {"leader.replication.throttled.replicas": "0:1,1:2"},
        ),
    ],
)
def test_what_a_topic_has_after_an_operation(before: Any, change: Any, after: Any) -> None:
    kept = dict(before)
    assert topic_settings.altered(before, [SettingChange(*change)]) == after
    assert before == kept


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (("no.such", SET, "5"), "Unknown topic config name: no.such"),
        (("no.such", APPEND, "5"), "Can't APPEND to key no.such because its type is not LIST."),
        (("retention.ms", APPEND, "5"), "Can't APPEND to key retention.ms because its type is not LIST."),
        (("retention.ms", SUBTRACT, "5"), "Can't SUBTRACT to key retention.ms because its type is not LIST."),
        (("retention.ms", SET, "-2"), "Invalid value -2 for configuration retention.ms: Value must be at least -1"),
        (
            ("min.compaction.lag.ms", SET, "9223372036854775807"),
            "conflict topic config setting min.compaction.lag.ms (9223372036854775807) > max.compaction.lag.ms (7)",
        ),
        (("follower.replication.throttled.replicas", SET, "0:1,1"), "must be the literal '*' or a list of replicas"),
    ],
)
def test_what_a_topic_is_refused(change: Any, why: str) -> None:
    with pytest.raises(ConfigError) as refused:
        topic_settings.altered({"max.compaction.lag.ms": "7"}, [SettingChange(*change)])
    assert why in str(refused.value)


# --------------------------------------------------------------------------------------------- rules of broker settings


@pytest.mark.parametrize(
    ("change", "code", "why"),
    [
        (("no.such", SET, "5"), 42, "There is no broker config named no.such"),
        (("log.retention.mss", SET, "5"), 42, "did you mean log.retention.ms?"),
        (("num.partitions", SET, "5"), 42, "Cannot update these configs dynamically: Set(num.partitions)"),
        (("log.retention.ms", SET, "x"), 42, "Not a number of type LONG"),
        (("log.retention.ms", APPEND, "5"), 40, "Config value append is not allowed for config key: log.retention.ms"),
        (("log.retention.ms", SUBTRACT, "5"), 40, "Config value subtract is not allowed"),
    ],
)
def test_what_a_broker_is_refused(change: Any, code: int, why: str) -> None:
    with pytest.raises(KafkaError) as refused:
        given_settings.altered({}, [SettingChange(*change)])
    assert refused.value.code == code
    assert why in str(refused.value.message)


def test_what_a_broker_has_after_some_operations() -> None:
    changes = [
        SettingChange("log.cleanup.policy", APPEND, "compact"),
        SettingChange("log.retention.ms", DELETE, ""),
        SettingChange("message.max.bytes", SET, " 7 "),
        SettingChange("no.such", DELETE, ""),
    ]
    after = {"log.cleanup.policy": "delete,compact", "message.max.bytes": "7"}
    assert given_settings.altered({"log.retention.ms": "5"}, changes) == after


def test_what_may_change_is_known() -> None:
    assert set(SETTINGS) >= DYNAMIC


def test_the_nearest_source_wins() -> None:
    config = BrokerConfig({"log.retention.minutes": 1, "message.max.bytes": 10})
    config.change(Source.ALL_BROKERS, {"message.max.bytes": "20", "log.retention.ms": "30"})
    assert (config["message.max.bytes"], config.source("message.max.bytes")) == (20, Source.ALL_BROKERS)
    config.change(Source.BROKER, {"message.max.bytes": "40"})
    assert (config["message.max.bytes"], config.source("message.max.bytes")) == (40, Source.BROKER)
    assert config.synonyms("message.max.bytes") == [
        ("message.max.bytes", 40, Source.BROKER),
        ("message.max.bytes", 20, Source.ALL_BROKERS),
        ("message.max.bytes", 10, Source.START),
        ("message.max.bytes", 1_048_588, Source.DEFAULT),
    ]
    assert config.retention_ms == 30
    assert config.synonyms("log.retention.ms") == [
        ("log.retention.ms", 30, Source.ALL_BROKERS),
        ("log.retention.minutes", 1, Source.START),
        ("log.retention.hours", 168, Source.DEFAULT),
    ]
    assert topic_settings.effective("retention.ms", {}, config) == (30, Source.ALL_BROKERS)
    config.change(Source.ALL_BROKERS, {})
    assert (config.retention_ms, config["message.max.bytes"]) == (60_000, 40)
    with pytest.raises(ConfigError, match="there is no setting"):
        config.change(Source.BROKER, {"no.such": "5"})


@pytest.mark.parametrize("content", ["", "{}", '{"broker": {}, "all brokers": {"no.such": "5"}}', "[]", "\x00"])
def test_a_file_that_cannot_be_understood_is_reported(tmp_path: Path, content: str) -> None:
    (tmp_path / FILE).write_text(content)
    with pytest.raises(ConfigError, match="cannot be parsed"):
        DynamicSettings(BrokerConfig(), tmp_path)


# ------------------------------------------------------------------------------------ values stored by an older version


def change_kept(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.levelname == "WARNING"]


async def test_a_kept_value_of_a_topic_that_is_out_of_range_now_counts_as_not_set(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One line at startup reports it; the topic is served, and the value can be altered or removed."""
    given = {"compression.type": "gzip", "compression.gzip.level": "1", "retention.ms": "1234567"}
    async with brokers.running(tmp_path) as broker:
        broker.changes.create_topic("t", 2, given)
        await stored(broker, "t", 0)
    change_kept(tmp_path / "muster-topics.json", '"compression.gzip.level": "1"', '"compression.gzip.level": "0"')
    change_kept(tmp_path / "muster-topics.json", '"1234567"', '"-7"')
    caplog.clear()
    async with brokers.running(tmp_path, {"compression.gzip.level": 5, "log.retention.ms": 7_654_321}) as broker:
        assert await stored(broker, "t", 0) == 1
        found = config_of(broker)
        assert (found.compression, found.compression_level) == (Compression.GZIP, 5)
        assert found.retention_ms == 7_654_321
        said = warnings(caplog)
        assert len(said) == 2
        assert all(line.startswith("topic t: Invalid value ") for line in said)
        assert {line.split(" for configuration ")[1].split(":")[0] for line in said} == {
            "compression.gzip.level",
            "retention.ms",
        }
        refused, why = await alter(broker, 2, "t", ("retention.bytes", SET, "5"))
        assert (refused, "compression.gzip.level" in str(why)) == (ErrorCode.INVALID_CONFIG, True)
        changes = ("compression.gzip.level", SET, "9"), ("retention.ms", DELETE, None)
        assert await alter(broker, 2, "t", *changes) == (0, None)
        assert config_of(broker).compression_level == 9
        assert warnings(caplog) == said


def test_a_kept_value_of_the_broker_that_is_out_of_range_now_is_skipped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kept = {"broker": {"compression.gzip.level": "0", "message.max.bytes": "7"}, "all brokers": {"log.roll.ms": "x"}}
    (tmp_path / FILE).write_text(json.dumps(kept))
    config = BrokerConfig()
    given = DynamicSettings(config, tmp_path)
    assert (given.of(Source.BROKER), given.of(Source.ALL_BROKERS)) == ({"message.max.bytes": "7"}, {})
    assert (config["message.max.bytes"], config["compression.gzip.level"]) == (7, -1)
    assert [line.rpartition(": ")[2] for line in warnings(caplog)] == [
        "Value must be between 1 and 9 or equal to -1; ignored",
        "Not a number of type LONG; ignored",
    ]


# -------------------------------------------------------------------------------------------------- a standalone broker


@pytest.fixture
async def broker(tmp_path: Path, disk: FaultyDisk) -> AsyncIterator[Broker]:
    async with brokers.running(tmp_path / "data", {"offsets.topic.num.partitions": 2}, disk) as found:
        found.changes.create_topic("t", 2, {"retention.ms": "1000", "max.message.bytes": "5000"})
        yield found


async def alter(broker: Broker, kind: int, name: str, *changes: Any, validate: bool = False) -> tuple[int, str | None]:
    answer = await Asked(broker, altered(kind, name, *changes, validate=validate), 1).answered()
    (result,) = answer.responses
    return result.error_code, result.error_message


async def put(broker: Broker, kind: int, name: str, **settings: str) -> int:
    configs = [a.AlterConfigsRequestAlterableConfig(name.replace("_", "."), value) for name, value in settings.items()]
    resource = a.AlterConfigsRequestAlterConfigsResource(kind, name, configs)
    answer = await Asked(broker, a.AlterConfigsRequest([resource]), 2).answered()
    code: int = answer.responses[0].error_code
    return code


def config_of(broker: Broker, index: int = 0) -> Any:
    log = log_of(broker, "t", index)
    return log.config


async def test_what_a_topic_is_given_holds_at_once_and_stays(tmp_path: Path, broker: Broker) -> None:
    assert await alter(broker, 2, "t", ("max.message.bytes", SET, "100"), ("retention.ms", DELETE, None)) == (0, None)
    assert [config_of(broker, index).max_message_bytes for index in (0, 1)] == [100, 100]
    assert config_of(broker).retention_ms == 604_800_000
    answer = await produce(broker, "t", 0, bytes(200)).answered()
    assert answer.responses[0].partition_responses[0].error_code == ErrorCode.MESSAGE_TOO_LARGE
    kept = json.loads((tmp_path / "data" / "muster-topics.json").read_text())["topics"]["t"]["settings"]
    assert kept == {"max.message.bytes": "100"}
    assert await alter(broker, 2, "t", ("max.message.bytes", SET, "5000")) == (0, None)
    await stored(broker, "t", 0, bytes(200))


async def test_alter_configs_keeps_only_what_it_contains(broker: Broker) -> None:
    assert await put(broker, 2, "t", segment_ms="77") == 0
    topic = topic_of(broker, "t")
    assert topic.settings == {"segment.ms": "77"}
    assert (config_of(broker).segment_ms, config_of(broker).max_message_bytes) == (77, 1_048_588)
    assert await put(broker, 4, "1", log_retention_ms="5", message_max_bytes="99") == 0
    assert await put(broker, 4, "1", log_retention_ms="6") == 0
    assert broker.dynamic.of(Source.BROKER) == {"log.retention.ms": "6"}
    assert (config_of(broker).retention_ms, config_of(broker).max_message_bytes) == (6, 1_048_588)


async def test_validate_only_changes_nothing(broker: Broker) -> None:
    assert await alter(broker, 2, "t", ("max.message.bytes", SET, "100"), validate=True) == (0, None)
    assert await alter(broker, 4, "1", ("message.max.bytes", SET, "100"), validate=True) == (0, None)
    assert config_of(broker).max_message_bytes == 5000
    assert broker.dynamic.of(Source.BROKER) == {}


async def test_a_refused_operation_takes_the_others_of_its_resource_along(broker: Broker) -> None:
    code, _ = await alter(broker, 2, "t", ("max.message.bytes", SET, "100"), ("retention.ms", SET, "x"))
    assert code == ErrorCode.INVALID_CONFIG
    assert config_of(broker).max_message_bytes == 5000


async def test_a_full_disk_keeps_the_settings_of_before(broker: Broker, disk: FaultyDisk) -> None:
    disk.fill_up()
    for kind, name, setting in ((2, "t", "retention.ms"), (4, "1", "log.retention.ms")):
        code, message = await alter(broker, kind, name, (setting, SET, "9"))
        assert code == ErrorCode.KAFKA_STORAGE_ERROR
        assert "No space left" in str(message)
    assert config_of(broker).retention_ms == 1000
    assert broker.config.retention_ms == 604_800_000
    disk.mend()
    assert await alter(broker, 2, "t", ("retention.ms", SET, "9")) == (0, None)


async def test_what_brokers_are_given_goes_before_what_they_were_started_with(tmp_path: Path) -> None:
    start = {"message.max.bytes": 7000, "log.retention.ms": 70}
    async with brokers.running(tmp_path / "data", start) as broker:
        broker.changes.create_topic("t", 1, {})
        assert await alter(broker, 4, "", ("message.max.bytes", SET, "8000"), ("log.retention.ms", SET, "80")) == (
            0,
            None,
        )
        assert await alter(broker, 4, "1", ("message.max.bytes", SET, "9000")) == (0, None)
        assert (config_of(broker).max_message_bytes, config_of(broker).retention_ms) == (9000, 80)
    async with brokers.running(tmp_path / "data", start) as broker:
        assert (config_of(broker).max_message_bytes, config_of(broker).retention_ms) == (9000, 80)
        assert await alter(broker, 4, "1", ("message.max.bytes", DELETE, None)) == (0, None)
        assert config_of(broker).max_message_bytes == 8000
        assert await put(broker, 4, "") == 0
        assert (config_of(broker).max_message_bytes, config_of(broker).retention_ms) == (7000, 70)


async def test_what_changes_between_two_slices_is_looked_at_again(broker: Broker) -> None:
    """The sequence: the checks; then the broker's settings, a slice at a time; another request; then the topic's
    settings."""
    request = altered(4, "1", ("log.retention.ms", SET, "9"))
    request.resources += altered(2, "t", ("min.compaction.lag.ms", SET, "50")).resources
    needs = alter_configs.AlterConfigNeeds(broker.cluster, broker.topics, broker.partitions, broker.dynamic, None)
    steps: Any = alter_configs.incremental_alter_configs(needs, request, Any)  # type: ignore[arg-type]
    next(steps)
    assert await alter(broker, 2, "t", ("max.compaction.lag.ms", SET, "10")) == (0, None)
    answer = at_once(steps)
    assert [each.error_code for each in answer.responses] == [0, ErrorCode.INVALID_CONFIG]


async def test_the_topic_of_events_has_the_settings_of_its_brokers(broker: Broker) -> None:
    """Some of these settings mark it as the brokers' own topic."""
    assert broker.changes.events is not None
    broker.changes.events.ensure()
    code, _ = await alter(broker, 2, "__group_events", ("retention.ms", SET, "9"))
    assert code == ErrorCode.POLICY_VIOLATION


async def test_another_policy_holds_for_the_records_that_come(broker: Broker) -> None:
    await stored(broker, "t", 0)  # without a key
    assert await alter(broker, 2, "t", ("cleanup.policy", SET, "compact")) == (0, None)
    assert config_of(broker).cleanup_policy is CleanupPolicy.COMPACT
    answer = await produce(broker, "t", 0).answered()
    assert answer.responses[0].partition_responses[0].error_code == ErrorCode.INVALID_RECORD
    assert await alter(broker, 2, "t", ("cleanup.policy", SET, "")) == (0, None)
    assert config_of(broker).cleanup_policy is CleanupPolicy.NONE
    await stored(broker, "t", 0)


@pytest.mark.parametrize("size", [10, 100_000], ids=["small", "large"])
async def test_batches_are_stored_in_the_codec_of_the_topic(broker: Broker, size: int) -> None:
    """The thread compresses a large one."""
    assert await alter(broker, 2, "t", ("compression.type", SET, "zstd"), ("max.message.bytes", DELETE, None)) == (
        0,
        None,
    )
    offset = await stored(broker, "t", 0, bytes(size))
    log = log_of(broker, "t", 0)
    found = log.read(offset, 1 << 20)
    header = read_header(found.data, 0)
    assert header.compression is Compression.ZSTD
    assert header.size < 200


async def test_the_short_way_leaves_batches_that_are_to_be_compressed(tmp_path: Path) -> None:
    async with brokers.running(tmp_path / "data") as broker:
        broker.changes.create_topic("t", 1, {})
        records = bytes(build_batch([(1_700_000_000_000, None, b"v" * 100, [])]))
        data = m.TopicProduceData("t", bytes(16), [m.PartitionProduceData(0, records)])
        with brokers.RawClient(broker.bootstrap) as client:
            for codec in ("producer", "lz4", "uncompressed"):
                assert (await alter(broker, 2, "t", ("compression.type", SET, codec)))[0] == 0
                request = m.ProduceRequest(None, -1, 1000, [data])
                answer = await asyncio.to_thread(client.ask, request, 9)
                assert answer.responses[0].partition_responses[0].error_code == 0
        log = log_of(broker, "t", 0)
        codecs = [read_header(log.read(offset, 1).data, 0).compression for offset in range(3)]
        assert codecs == [Compression.NONE, Compression.LZ4, Compression.NONE]


@pytest.mark.parametrize("whole", [False, True], ids=["incremental", "whole"])
@pytest.mark.parametrize(
    ("kind", "why"), [(32, "Groups have no configs"), (16, "Client metrics have no configs"), (77, "type 77")]
)
async def test_kinds_that_have_no_settings_here(tmp_path: Path, kind: int, why: str, whole: bool) -> None:
    """None of the groups that are served would apply a group's setting, so it is not stored."""
    setting = ("consumer.session.timeout.ms", "50000")
    request: Any
    if whole:
        configs = [a.AlterConfigsRequestAlterableConfig(*setting)]
        request = a.AlterConfigsRequest([a.AlterConfigsRequestAlterConfigsResource(kind, "g", configs)])
    else:
        request = altered(kind, "g", (setting[0], SET, setting[1]))
    described = m.DescribeConfigsRequest([m.DescribeConfigsResource(kind, "g", None)], False, False)
    async with brokers.running(tmp_path / "data") as broker:
        (result,) = (await Asked(broker, request, 1).answered()).responses
        assert (result.error_code, why in result.error_message) == (ErrorCode.INVALID_REQUEST, True)
        (reported,) = (await Asked(broker, described, 4).answered()).results
        # If Kafka has this kind of resource, it is not an error that it has no settings.
        assert (reported.error_code, reported.configs) == (ErrorCode.INVALID_REQUEST if kind == 77 else 0, [])
