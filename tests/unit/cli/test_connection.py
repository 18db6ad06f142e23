"""Which cluster a command uses and how it connects: the file of `--command-config`, `-o` and `--bootstrap`."""

import argparse
import logging

import pytest

from muster.cli.common import add_connection, client_settings, pairs, read_connection
from muster.cli.main import main
from muster.client.config import AdminConfig, ConsumerConfig, ProducerConfig
from muster.client.security.secret import Secret
from muster.errors import ConfigError
from tests.support.said import said

FILE = """\
bootstrap.servers=there:1
security.protocol=SASL_SSL
sasl.mechanism=PLAIN
sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required username="a" password="hush";
request.timeout.ms=5000
group.id=delays
linger.ms=7
"""


@pytest.fixture
def parsed(tmp_path):
    path = tmp_path / "client.properties"

    def parse(*words, text=FILE):
        path.write_text(text)
        parser = argparse.ArgumentParser()
        add_connection(parser)
        arguments = parser.parse_args([*words, "--command-config", str(path)])
        read_connection(arguments)
        return arguments

    return parse


@pytest.mark.parametrize(
    ("kind", "own"), [(AdminConfig, {}), (ConsumerConfig, {"group_id": "delays"}), (ProducerConfig, {"linger_ms": 7})]
)
def test_each_client_takes_what_it_knows_of_the_file(parsed, kind, own):
    config = kind.of(client_settings(parsed(), kind))
    assert config.bootstrap_servers == ("there:1",)
    assert (config.security_protocol, config.request_timeout_ms) == ("SASL_SSL", 5_000)
    assert isinstance(config.sasl_jaas_config, Secret)
    assert {name: getattr(config, name) for name in own} == own


def test_the_command_line_wins(parsed):
    arguments = parsed("--bootstrap", "here:2", "-o", "request.timeout.ms=6000")
    settings = client_settings(arguments, AdminConfig)
    assert (settings["bootstrap.servers"], settings["request.timeout.ms"]) == ("here:2", "6000")


@pytest.mark.parametrize("name", ["bootstrap.servers", "bootstrap_servers"])
def test_the_address_as_a_single_setting(parsed, name):
    arguments = parsed("-o", f"{name}=here:2")
    assert (arguments.bootstrap, client_settings(arguments, AdminConfig)["bootstrap.servers"]) == ("here:2", "here:2")
    both = parsed("-o", f"{name}=here:2", "--bootstrap", "nearer:3")
    assert AdminConfig.of(client_settings(both, AdminConfig)).bootstrap_servers == ("nearer:3",)


def test_without_a_file_the_cluster_is_on_this_machine():
    parser = argparse.ArgumentParser()
    add_connection(parser)
    arguments = parser.parse_args([])
    read_connection(arguments)
    assert client_settings(arguments, AdminConfig) == {"client.id": "muster-cli", "bootstrap.servers": "localhost:9092"}


def test_a_name_that_no_client_knows_is_reported_once(parsed, caplog):
    caplog.set_level(logging.WARNING)
    arguments = parsed(text="sasl.mechanim=PLAIN\ngroup.id=g")
    for kind in (AdminConfig, ConsumerConfig):  # once, however many clients a command has
        client_settings(arguments, kind)
    assert [message.partition(": ")[2] for message in said(caplog, "muster.client.settings")] == [
        "sasl.mechanim is not a setting of a Kafka client; did you mean sasl.mechanism?"
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "cannot be read: No such file"),
        ("security.protocol=TLS", "security_protocol is 'TLS'; it must be one of"),
        ("ssl.engine.factory.class=x", "ssl.engine.factory.class is not supported here"),
        ("security.protocol=SASL_SSL\nsasl.mechanism=PLAIN\nsasl.jaas.config=hush", "sasl_jaas_config cannot be read"),
        (
            "security.protocol=SSL\nssl.truststore.location=no.jks\nssl.truststore.type=JKS",
            "convert it to PEM: keytool",
        ),
    ],
)
@pytest.mark.parametrize("command", [["groups", "list"], ["topics", "list"], ["consume", "t"], ["produce", "t"]])
def test_a_file_that_cannot_be_used_is_one_sentence(tmp_path, capsys, text, said, command):
    path = tmp_path / "client.properties"
    if text is not None:
        path.write_text(text)
    assert main([*command, "--command-config", str(path)]) == 1
    error = capsys.readouterr().err
    assert error.startswith("muster: ")
    assert said in error
    assert "Traceback" not in error
    assert "hush" not in error


@pytest.mark.parametrize("text", ["pass-W0rd", "=hush", "sasl.password:Hush"])
def test_what_is_neither_a_pair_nor_a_name_is_not_shown(text):
    with pytest.raises(ConfigError, match=r"^-o: expected KEY=VALUE$"):
        pairs([text], "-o")
