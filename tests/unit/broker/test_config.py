from __future__ import annotations

from pathlib import Path

import pytest

from muster.broker.config import SETTINGS, BrokerConfig, environment_name, load
from muster.broker.settings import Source
from muster.broker.topics import settings as topic_settings
from muster.errors import ConfigError


def test_every_default_is_a_value_that_may_be_set():
    for known in (SETTINGS, topic_settings.SETTINGS):
        for setting in known.values():
            if setting.default is not None:
                text = str(setting.default).lower() if isinstance(setting.default, bool) else str(setting.default)
                assert setting.parse(text) == setting.default, setting.name
            assert setting.documentation.endswith("."), setting.name


def test_every_synonym_is_a_setting_of_the_broker():
    for setting in topic_settings.SETTINGS.values():
        if setting.synonym is not None:
            assert SETTINGS[setting.synonym].kind is setting.kind, setting.name


def test_the_last_source_wins(tmp_path: Path):
    file = tmp_path / "muster.toml"
    file.write_text(
        '[broker]\n"num.partitions" = 2\n"log.retention.hours" = 3\n"group.max.size" = 4\n'
        '"auto.create.topics.enable" = false\n"fsync" = "always"\n'
    )
    environment = {"MUSTER_LOG_RETENTION_HOURS": "5", "MUSTER_GROUP_MAX_SIZE": "6", "HOME": "/", "MUSTER_SEEDS": "9"}
    config = load(
        file, environment, ["group.max.size=7", "fetch.max.bytes=2048"], {"fetch.max.bytes": 4096, "fsync": None}
    )
    assert config["num.partitions"] == 2
    assert config["log.retention.hours"] == 5
    assert config["group.max.size"] == 7
    assert config["fetch.max.bytes"] == 4096
    assert config["fsync"] == "always"
    assert config.flag("auto.create.topics.enable") is False
    assert config["group.min.session.timeout.ms"] == 6000
    assert config.is_set("num.partitions")
    assert not config.is_set("group.min.session.timeout.ms")


@pytest.mark.parametrize("name", SETTINGS)
def test_every_setting_has_a_variable(name: str):
    setting = SETTINGS[name]
    value = {"listeners": "PLAINTEXT://h:1", "advertised.listeners": "PLAINTEXT://h:1"}.get(name)
    value = "h:1" if name == "draft.listener" else value
    if value is None:
        value = next(iter(setting.choices), "1") if setting.default is None else str(setting.default)
    config = load(environment={environment_name(name): value})
    assert config.is_set(name)


@pytest.mark.parametrize(
    ("sources", "sentence"),
    [
        ({"overrides": ["num.partition=3"]}, "there is no setting 'num.partition'; did you mean num.partitions?"),
        ({"overrides": ["qqqqqqq=3"]}, "-o qqqqqqq=3: there is no setting 'qqqqqqq'"),
        ({"overrides": ["num.partitions"]}, "-o takes key=value, not 'num.partitions'"),
        ({"overrides": ["num.partitions=many"]}, "num.partitions: Not a number of type INT"),
        ({"overrides": ["num.partitions=0"]}, "Value must be at least 1"),
        ({"overrides": ["num.partitions=3000000000"]}, "Not a number of type INT"),
        ({"overrides": ["default.replication.factor=3"]}, "Value must be no more than 1"),
        ({"overrides": ["num.partitions=1_0"]}, "Not a number of type INT"),
        ({"overrides": ["num.partitions=" + "9" * 5_000]}, "Not a number of type INT"),
        ({"overrides": ["log.cleaner.min.cleanable.ratio=x"]}, "Not a number of type DOUBLE"),
        ({"overrides": ["log.cleaner.min.cleanable.ratio=nan"]}, "Not a number of type DOUBLE"),
        ({"overrides": ["log.cleaner.min.cleanable.ratio=1_0"]}, "Not a number of type DOUBLE"),
        ({"overrides": ["log.cleaner.min.cleanable.ratio=1.5f"]}, "Value must be no more than 1"),
        ({"overrides": ["auto.create.topics.enable=yes"]}, "Expected value to be either true or false"),
        ({"overrides": ["fsync=sometimes"]}, "String must be one of: interval, always, never"),
        ({"overrides": ["log.cleanup.policy=compact,burn"]}, "Invalid value burn"),
        ({"overrides": ["listeners=SSL://x:9092"]}, "only PLAINTEXT is supported"),
        ({"overrides": ["listeners=nowhere"]}, "listeners must be one address"),
        ({"overrides": ["listeners=h:99999"]}, "listeners must be one address"),
        ({"overrides": ["log.dirs=a,b"]}, "log.dirs must be a single folder"),
        ({"overrides": ["group.min.session.timeout.ms=9", "group.max.session.timeout.ms=8"]}, "must not be above"),
        ({"overrides": ["server.assigned.groups=("]}, "server.assigned.groups is not a regular expression: '('"),
        ({"overrides": ["server.assigned.groups=(a+)+"]}, "server.assigned.groups could be slow to match"),
        ({"environment": {"MUSTER_NUM_PARTITION": "3"}}, "did you mean MUSTER_NUM_PARTITIONS?"),
        ({"environment": {"MUSTER_NUM_PARTITIONS": "x"}}, "MUSTER_NUM_PARTITIONS: Invalid value x"),
        ({"flags": {"fsync": "x"}}, "String must be one of"),
    ],
)
def test_what_is_refused(sources: dict[str, object], sentence: str):
    with pytest.raises(ConfigError) as refused:
        load(**sources)  # type: ignore[arg-type]
    assert sentence in str(refused.value)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[broker]\nnum.partitions = 3\n", 'quote the keys of [broker], such as "num.partitions"'),
        ("[broker]\n'num.partitons' = 3\n", "did you mean num.partitions?"),
        ("broker = 3\n", "[broker] must be a table of quoted keys"),
        ("[broker\n", "is not valid TOML"),
        ("[brokr]\n'num.partitions' = 3\n", "unknown table [brokr]; did you mean [broker]?"),
        ("'num.partitions' = 3\n", "unknown key 'num.partitions' outside a table; settings belong in [broker]"),
        ("[broker]\n'num.partitions' = 1979-05-27\n", "num.partitions cannot be a date"),
    ],
)
def test_files_that_are_refused(tmp_path: Path, text: str, sentence: str):
    file = tmp_path / "muster.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as refused:
        load(file)
    assert sentence in str(refused.value)
    assert str(file) in str(refused.value)


def test_a_file_that_is_not_there(tmp_path: Path):
    with pytest.raises(ConfigError, match="No such file"):
        load(tmp_path / "none.toml")


@pytest.mark.parametrize(
    ("settings", "retention", "roll"),
    [
        ({}, 168 * 3_600_000, 168 * 3_600_000),
        ({"log.retention.hours": 2, "log.roll.hours": 3}, 7_200_000, 10_800_000),
        ({"log.retention.hours": 2, "log.retention.minutes": 3}, 180_000, 168 * 3_600_000),
        ({"log.retention.minutes": 3, "log.retention.ms": 4, "log.roll.ms": 5}, 4, 5),
        ({"log.retention.ms": -1}, -1, 168 * 3_600_000),
        ({"log.retention.hours": -1}, -1, 168 * 3_600_000),
    ],
)
def test_the_finest_unit_of_time_wins(settings: dict[str, int], retention: int, roll: int):
    config = BrokerConfig(settings)
    assert (config.retention_ms, config.roll_ms) == (retention, roll)


@pytest.mark.parametrize(
    ("settings", "listener", "advertised"),
    [
        ({}, ("127.0.0.1", 9092), ("127.0.0.1", None)),
        ({"listeners": "PLAINTEXT://0.0.0.0:1", "advertised.listeners": "g:2"}, ("0.0.0.0", 1), ("g", 2)),
        ({"listeners": "h:1", "advertised.listeners": "g:2"}, ("h", 1), ("g", 2)),
        ({"listeners": "h:1", "advertised.listeners": "PLAINTEXT://g:0"}, ("h", 1), ("g", None)),
    ],
)
def test_addresses(settings: dict[str, str], listener: tuple[str, int], advertised: tuple[str, int | None]):
    config = BrokerConfig(settings)
    assert (config.listener, config.advertised) == (listener, advertised)


@pytest.mark.parametrize("name", ["listeners", "advertised.listeners"])
@pytest.mark.parametrize("address", ["PLAINTEXT://0.0.0.0:1", "PLAINTEXT://[::]:1", "PLAINTEXT://:1"])
def test_an_address_that_nobody_can_connect_to_is_not_advertised(name: str, address: str):
    with pytest.raises(ConfigError, match=r"every address of this machine.*--advertised-host"):
        _ = BrokerConfig({name: address}).advertised


def test_a_topics_setting_its_brokers_or_the_default():
    broker = BrokerConfig({"log.segment.bytes": 2_000_000, "log.retention.minutes": 1})
    topic = {"max.message.bytes": "5"}
    assert topic_settings.effective("max.message.bytes", topic, broker) == (5, Source.TOPIC)
    assert topic_settings.effective("segment.bytes", topic, broker) == (2_000_000, Source.START)
    assert topic_settings.effective("retention.ms", topic, broker) == (60_000, Source.START)
    assert topic_settings.effective("segment.ms", topic, broker) == (604_800_000, Source.DEFAULT)
    assert topic_settings.effective("preallocate", topic, broker) == (False, Source.DEFAULT)
    assert set(topic_settings.values(topic, broker)) == set(topic_settings.SETTINGS)


@pytest.mark.parametrize("name", ["log.retention.ms", "log.retention.minutes", "log.retention.hours"])
def test_records_are_kept_forever_or_for_a_time(name: str) -> None:
    """As in Kafka: any negative value means forever, and zero is an error."""
    assert load(overrides=[f"{name}=-2"]).retention_ms == -1
    assert load(overrides=[f"{name}=0", "log.retention.ms=5"]).retention_ms == 5  # the last one wins
    with pytest.raises(ConfigError, match="must be unlimited"):
        load(overrides=[f"{name}=0"])
