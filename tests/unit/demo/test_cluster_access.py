"""How the demo's processes reach a cluster that requires TLS and SASL."""

from __future__ import annotations

import argparse

import pytest

from muster.demo.run.cluster_access import ClusterAccess
from muster.errors import ConfigError

FILE = """\
bootstrap.servers=first:9093
security.protocol=SASL_PLAINTEXT
sasl.mechanism=PLAIN
sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required username="u" password="secret";
client.id=somebody
group.id=other
auto.offset.reset=latest
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "client.properties"
    path.write_text(FILE)
    return str(path)


def test_without_an_address_and_a_file_there_is_no_way():
    assert ClusterAccess.given(None, None) is None


def test_an_address_alone_is_a_way():
    assert ClusterAccess("a:1,b:2").settings() == {"bootstrap.servers": "a:1,b:2"}
    assert ClusterAccess.given("a:1", None) == ClusterAccess("a:1")


def test_the_file_says_who_the_client_is_and_the_demo_what_it_does(file):
    access = ClusterAccess.given(None, file)
    assert access == ClusterAccess("first:9093", file)
    settings = access.settings()
    assert settings["bootstrap.servers"] == "first:9093"
    assert settings["security.protocol"] == "SASL_PLAINTEXT"
    assert "secret" in settings["sasl.jaas.config"]
    assert not settings.keys() & {"client.id", "group.id", "auto.offset.reset"}
    assert access.options()["kafka.sasl.mechanism"] == "PLAIN"


def test_the_address_of_the_command_line_wins(file):
    access = ClusterAccess.given("b:2", file)
    assert access is not None
    assert access.settings()["bootstrap.servers"] == "b:2"


def test_a_process_is_given_the_name_of_the_file_and_no_secret(file):
    access = ClusterAccess("first:9093", file)
    parser = argparse.ArgumentParser()
    ClusterAccess.add_to(parser)
    assert ClusterAccess.of(parser.parse_args(access.arguments())) == access
    assert "secret" not in " ".join(access.arguments())
    assert ClusterAccess.of(parser.parse_args(ClusterAccess("a:1").arguments())) == ClusterAccess("a:1")


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ("security.protocol=PLAINTEXT", "has no bootstrap.servers: name a broker with --bootstrap"),
        ("bootstrap.servers=a:1\nsecurity.protocol=TLS", "security_protocol"),
        ("bootstrap.servers=a", "not a broker address"),
    ],
)
def test_a_file_that_cannot_be_used_is_reported_before_anything_starts(tmp_path, text, reported):
    path = tmp_path / "client.properties"
    path.write_text(text)
    with pytest.raises(ConfigError, match=reported):
        ClusterAccess.given(None, str(path))
    with pytest.raises(ConfigError, match="cannot be read"):
        ClusterAccess.given(None, str(tmp_path / "none"))
