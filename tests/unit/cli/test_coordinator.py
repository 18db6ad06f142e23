"""`muster coordinator`: what its command line means, and what it refuses with an error before anything is started."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from muster.cli.main import main
from muster.cli.servers import coordinator
from muster.errors import ConfigError

NEEDED = ["--zookeeper", "127.0.0.1:1/kafka", "--coordinator-id", "101"]


def parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    coordinator.add_arguments(parser)
    return parser.parse_args(words)


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MUSTER_NODE_ID", "MUSTER_ZOOKEEPER_CONNECT", "MUSTER_LISTENERS", "MUSTER_DRAFT_LISTENER"):
        monkeypatch.delenv(name, raising=False)


def test_the_shortest_command_listens_next_to_a_kafka_on_the_same_machine() -> None:
    config = coordinator.settings(parsed(*NEEDED))
    assert config.listener == ("127.0.0.1", 9192)
    assert config.draft_listener == ("127.0.0.1", 9193)
    assert config.integer("node.id") == 101
    assert config["zookeeper.connect"] == "127.0.0.1:1/kafka"


def test_one_host_is_that_of_both_listeners() -> None:
    config = coordinator.settings(parsed(*NEEDED, "--host", "10.0.0.5", "--port", "7000"))
    assert (config.listener, config.draft_listener) == (("10.0.0.5", 7000), ("10.0.0.5", 9193))
    config = coordinator.settings(parsed(*NEEDED, "--draft-listener", "10.0.0.6:7001"))
    assert (config.listener, config.draft_listener) == (("127.0.0.1", 9192), ("10.0.0.6", 7001))


def test_settings_come_from_a_file_too(tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text('[broker]\n"node.id" = 7\n"zookeeper.connect" = "zk:2181"\n"log.dirs" = "/data"\n')
    config = coordinator.settings(parsed("--config", str(file)))
    assert (config.integer("node.id"), config["zookeeper.connect"]) == (7, "zk:2181")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--coordinator-id", "1"], "the ZooKeeper of Kafka's brokers"),
        (["--zookeeper", "zk:2181"], "--coordinator-id N is required"),
        ([*NEEDED, "-o", "num.partitions=3"], "num.partitions does not apply to a coordinator"),
        ([*NEEDED, "-o", "group.coordinator.store=log"], "group.coordinator.store does not apply to a coordinator"),
        ([*NEEDED, "-o", "no.such=3"], "there is no setting 'no.such'"),
        ([*NEEDED, "--draft-listener", "nowhere"], "draft.listener must be one address"),
        ([*NEEDED, "--port", "70000"], "--port 70000: must be 0 to 65535"),
        ([*NEEDED, "--host", "0.0.0.0"], "set one that they can reach"),
    ],
)
def test_what_cannot_be_meant_is_refused(words: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        coordinator.settings(parsed(*words))


def test_a_refusal_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["coordinator", *NEEDED, "-o", "server.assigned.groups=("]) == 1
    said = capsys.readouterr().err
    assert said.startswith("muster: server.assigned.groups is not a regular expression")
    assert said.count("\n") == 1
