"""`muster configs`, `records`, `log-dirs` and `groups` without a cluster: what they read, refuse and print."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from muster.cli import main as command
from muster.cli.administer import configs, log_dirs, records
from muster.cli.stream import reading_range
from muster.client.core.admin.admin import ConfigEntry, ConfigResource, ConfigResourceType
from muster.client.core.admin.configs import ConfigChange, ConfigOperation
from muster.client.core.admin.partitions import LogDirDescription, ReplicaInfo
from muster.errors import ConfigError, ErrorCode, KafkaError
from muster.model import TopicPartition

NOWHERE = ["--bootstrap", "127.0.0.1:1"]
MANY_DIGITS = "9" * 5_000
"""More digits than Python parses as a number."""


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("groups reset-offsets --to-latest --all-topics", "name the groups, or use --all-groups"),
        ("groups reset-offsets g --all-groups --to-latest --all-topics", "name the groups, or use --all-groups"),
        ("groups reset-offsets g --to-latest", "name the partitions with --topic TOPIC[:0,1], or use --all-topics"),
        ("groups reset-offsets g --from-file not-there --all-topics", "cannot read not-there: No such file"),
        ("groups reset-offsets g --from-file not-there --topic t", "cannot read not-there: No such file"),
        ("groups reset-offsets g --by-duration -PT1H --topic t:x", "--topic 't:x': write TOPIC"),
        ("groups reset-offsets g --topic t:x --by-period -pt1h", "--topic 't:x': write TOPIC"),
        ("groups reset-offsets g --to-offset 0 --topic t:x", "--topic 't:x': write TOPIC"),
        ("groups reset-offsets g --to-datetime now --topic t", "--to-datetime 'now' is not a point in time"),
        ("groups reset-offsets g --by-period 5 --topic t", "--by-duration '5' is not a duration"),
        ("groups remove-members g", "name members with --member or --instance, or use --all"),
        ("groups remove-members g --all --member m", "name members with --member or --instance, or use --all"),
        ("records delete --all", "name topics with --before or --all, or use --from-file alone"),
        ("records delete t --from-file f", "name topics with --before or --all, or use --from-file alone"),
        ("records delete t --before -1", "--before -1: an offset must be at least 0"),
        ("records delete t:x --all", "records delete: 't:x': write TOPIC"),
        ("records delete --from-file not-there.json", "cannot read not-there.json: No such file or directory"),
        ("configs alter topics t", "name a change with --set"),
        ("configs alter topics --set a=1", "name the resources to change"),
        ("configs alter topics t --set a", "--set 'a': expected KEY=VALUE"),
        ("configs alter topics t --default --set a=1", "--default applies to brokers only"),
        ("configs describe brokers one", "'one' is not a broker ID"),
        ("configs alter brokers ١ --set a=1", "is not a broker ID"),
        ("consume t --group g --last 3 --until-end", "--last, --until-end: cannot be combined with --group"),
        ("consume t --last -3", "--last -3: must be at least 0"),
        ("consume t --offset=--3", "--offset --3: must be a number, earliest or latest"),
        ("consume t --since soon", "--since 'soon' is not a duration"),
        ("consume t --from-time soon", "--from-time 'soon' is not a point in time"),
        ("consume t --format %s --keys", "in --format use %k and %h"),
        ("consume t --json --null x", "--json always prints keys"),
        ("consume t --unpack z", "--unpack: 'z' is unknown"),
        ("consume t --unpack offset=s", "write key=…, value=… or neither"),
        ("consume t --unpack key=", "--unpack: the text is empty"),
        ("consume t -o group.id=g", "name the group with --group; without it nothing is committed"),
        ("consume t --group g -o group_id=h", "name the group with --group"),
        (f"consume t --offset {MANY_DIGITS}", "must be a number, earliest or latest"),
        (f"consume t --from-time @{MANY_DIGITS}", "is not a point in time"),
        (f"consume t --since {MANY_DIGITS}d", "is not a duration"),
        (f"groups reset-offsets g --to-latest --topic t:{MANY_DIGITS}", "write TOPIC, or TOPIC:0,1"),
        (f"groups reset-offsets g --by-duration P{MANY_DIGITS}D --topic t", "is not a duration"),
        (f"records delete t:{MANY_DIGITS} --all", "write TOPIC, or TOPIC:0,1"),
        ("groups list --state Empti", "--state: 'Empti' is not valid; choose from PreparingRebalance, "),
        ("groups list --state empty --type stable", "--type: 'stable' is not valid; choose from Classic, Consumer"),
        ("health -o nonsense=1", "nonsense is not a setting of this client"),
        ("health --json --command-config not-there", "not-there cannot be read: No such file or directory"),
    ],
)
def test_a_command_line_that_makes_no_sense(capsys, monkeypatch, words: str, sentence: str):
    """It is reported before any connection is made."""
    monkeypatch.setattr("muster.client.net.driver.Driver.dispatch", lambda *_: pytest.fail("it has begun to connect"))
    assert command.main([*words.split(), *NOWHERE]) == 1
    reported = capsys.readouterr()
    assert reported.out == ""
    assert reported.err.startswith("muster: ")
    assert sentence in reported.err
    assert reported.err.count("\n") == 1


@pytest.mark.parametrize(
    "words",
    [
        "groups reset-offsets g --all-topics",
        "groups reset-offsets g --all-topics --to-latest --to-earliest",
        "groups reset-offsets g --all-topics --topic t --to-latest",
        "groups reset-offsets g --all-topics --to-latest --dry-run --execute",
        "groups reset-offsets g --all-topics --to-latest --export --json",
        "records delete t",
        "configs describe users",
        "topics alter t",
        "consume t --last 3 --since 5m",
    ],
)
def test_options_that_exclude_each_other(capsys, words: str):
    with pytest.raises(SystemExit) as ended:
        command.main([*words.split(), *NOWHERE])
    assert ended.value.code == 2
    assert "error:" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "chosen"),
    [
        ("", False),
        ("--offset latest", False),
        ("--last 0", False),
        ("--offset earliest", True),
        ("--offset 0", True),
        ("--offset=-3", True),
        ("--last 3", True),
        ("--since 5m", True),
        ("--from-time @0", True),
    ],
)
def test_which_readers_want_records_that_are_there(words: str, chosen: bool):
    """If they are removed before they are read, such a reader does not reach the end."""
    parser = argparse.ArgumentParser()
    reading_range.add_range(parser)
    assert reading_range.chooses_beginning(parser.parse_args(words.split())) is chosen


def test_health_of_nothing(capsys):
    assert command.main(["health", "--timeout-ms", "300", *NOWHERE]) == 1
    reported = capsys.readouterr().out
    assert reported.startswith("not healthy: gave up after 300 ms")
    assert reported.count("\n") == 1
    assert command.main(["health", "--json", "--timeout-ms", "300", *NOWHERE]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["healthy"], len(found["problems"])) == (False, 1)
    assert found["coordinator"] == "coordinator not checked"


# --- records ---------------------------------------------------------------------------------------------------------


def test_the_file_of_kafka_delete_records():
    text = """{"partitions": [{"topic": "foo", "partition": 1, "offset": 1},
                               {"topic": "foo", "partition": 2, "offset": -1}], "version": 1}"""
    expected = {TopicPartition("foo", 1): 1, TopicPartition("foo", 2): -1}
    assert records.offsets_from_json(text, "f") == expected
    assert records.offsets_from_json('{"partitions": []}', "f") == {}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "f is not JSON"),
        ("[" * 100_000, "f is not JSON"),
        ("[]", "f is not of the form"),
        ('{"partitions": {}}', "f is not of the form"),
        ('{"partitions": [], "version": 2}', "f has version 2; only version 1 is supported"),
        ('{"partitions": [5]}', "f, entry 1 of partitions is not an object"),
        ('{"partitions": [{"partition": 0, "offset": 0}]}', "f, entry 1 of partitions has no topic"),
        (
            '{"partitions": [{"topic": "t", "partition": -1, "offset": 0}]}',
            "partition must be a whole number of at least 0",
        ),
        (
            '{"partitions": [{"topic": "t", "partition": 0, "offset": -2}]}',
            "offset must be a whole number of at least -1",
        ),
        ('{"partitions": [{"topic": "t", "partition": 0, "offset": true}]}', "offset must be a whole number"),
        ('{"partitions": [{"topic": "t", "partition": 0}]}', "offset must be a whole number of at least -1, not None"),
        (
            '{"partitions": [' + ", ".join(['{"topic": "t", "partition": 0, "offset": 1}'] * 2) + "]}",
            "f names t-0 twice",
        ),
    ],
)
def test_files_that_name_no_records(text: str, sentence: str):
    with pytest.raises(ConfigError) as refused:
        records.offsets_from_json(text, "f")
    assert sentence in str(refused.value)


def test_a_file_of_bytes_is_reported_in_a_sentence(tmp_path: Path, capsys):
    (tmp_path / "f").write_bytes(b"\xff\xfe")
    for words in ("records delete --from-file", "groups reset-offsets g --from-file"):
        assert command.main([*words.split(), str(tmp_path / "f"), "--timeout-ms", "200", *NOWHERE]) == 1
        assert "cannot read" in capsys.readouterr().err


# --- settings --------------------------------------------------------------------------------------------------------


def changes(words: str):
    parser = command.whole_parser()
    return configs.requested_changes(parser.parse_args(f"configs alter topics t {words}".split()))


def test_what_is_to_change():
    assert changes("--set a=1=2 --set b= --delete c --append d=x,y --subtract e=z") == [
        ConfigChange("a", "1=2"),
        ConfigChange("b", ""),
        ConfigChange("c", None, ConfigOperation.DELETE),
        ConfigChange("d", "x,y", ConfigOperation.APPEND),
        ConfigChange("e", "z", ConfigOperation.SUBTRACT),
    ]


@pytest.mark.parametrize("words", ["--set a=1 --set a=2", "--set a=1 --delete a", "--append a=1 --append a=2"])
def test_one_setting_changes_once(words: str):
    with pytest.raises(ConfigError, match="a is named twice"):
        changes(words)


def entry(name: str, value: str | None, source: int) -> ConfigEntry:
    return ConfigEntry(name, value, False, False, value is None, source)


@pytest.mark.parametrize(
    ("kind", "name", "source", "own"),
    [
        (ConfigResourceType.TOPIC, "t", 1, True),
        (ConfigResourceType.TOPIC, "t", 4, False),
        (ConfigResourceType.TOPIC, "t", 5, False),
        (ConfigResourceType.BROKER, "1", 2, True),
        (ConfigResourceType.BROKER, "1", 3, False),
        (ConfigResourceType.BROKER, "", 3, True),
        (ConfigResourceType.GROUP, "g", 8, True),
        (ConfigResourceType.GROUP, "g", 5, False),
    ],
)
def test_settings_of_its_own(kind: ConfigResourceType, name: str, source: int, own: bool):
    assert configs.is_own(ConfigResource(kind, name), entry("a", "1", source)) is own


def test_settings_as_text():
    topic = ConfigResource(ConfigResourceType.TOPIC, "t")
    found = {"a": entry("a", "1", 1), "b": entry("b", "2", 5), "c": entry("c", None, 1)}
    assert configs.table(topic, found) == ["Topic t:", "  a=1", "  b=2  (default)", "  c=(secret)"]
    assert configs.table(topic, {}) == ["Topic t: no settings of its own"]
    assert configs.table(ConfigResource(ConfigResourceType.BROKER, ""), {}) == ["All brokers: no settings of its own"]


# --- log directories -------------------------------------------------------------------------------------------------


def test_log_directories_in_both_forms():
    replicas = {TopicPartition("t", 0): ReplicaInfo(2048, 0, False), TopicPartition("u", 1): ReplicaInfo(5, 7, True)}
    broken = LogDirDescription(KafkaError(ErrorCode.KAFKA_STORAGE_ERROR), {})
    brokers = {1: {"/b": broken, "/a": LogDirDescription(None, replicas, 1 << 40, 1 << 30)}}
    assert log_dirs.table(brokers, set()) == [
        "Broker 1, /a: 2 partitions, 2.0 KiB; 1.0 GiB of 1.0 TiB free on its volume",
        "\t   2.0 KiB\tt-0",
        "\t       5 B\tu-1\tlag 7\tmoving here",
        "Broker 1, /b: 0 partitions, 0 B",
    ]
    found = log_dirs.as_json(brokers, {"u"})
    assert found == {
        "version": 1,
        "brokers": [
            {
                "broker": 1,
                "logDirs": [
                    {
                        "logDir": "/a",
                        "error": None,
                        "totalBytes": 1 << 40,
                        "usableBytes": 1 << 30,
                        "partitions": [{"partition": "u-1", "size": 5, "offsetLag": 7, "isFuture": True}],
                    },
                    {
                        "logDir": "/b",
                        "error": "KAFKA_STORAGE_ERROR",
                        "totalBytes": None,
                        "usableBytes": None,
                        "partitions": [],
                    },
                ],
            }
        ],
    }
