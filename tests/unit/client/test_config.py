"""Settings: names, text values, and which values must agree."""

import pytest

from muster.client.config import AdminConfig, ClientConfig, ConsumerConfig, ProducerConfig, parse_address
from muster.errors import ConfigError


def test_kafkas_own_keys_and_text_values_are_taken():
    config = ConsumerConfig.of(
        {
            "bootstrap.servers": "a:1, b:2",
            "group.id": "g",
            "enable.auto.commit": "false",
            "session.timeout.ms": "6000",
            "partition.assignment.strategy": "sticky,range",
        }
    )
    assert config.bootstrap_servers == ("a:1", "b:2")
    assert config.enable_auto_commit is False
    assert config.session_timeout_ms == 6000
    assert config.partition_assignment_strategy == ("sticky", "range")


def test_keywords_win_over_the_mapping():
    assert ClientConfig.of({"client.id": "mapped"}, client_id="given").client_id == "given"


def test_the_longest_text_that_can_be_sent_is_taken():
    assert len(ClientConfig(client_id="x" * 32_767).client_id) == 32_767
    for name in ("x" * 249, "...", "a.b_C-9"):
        assert ConsumerConfig(group_instance_id=name).group_instance_id == name


@pytest.mark.parametrize(
    ("cls", "settings", "message"),
    [
        (ConsumerConfig, {"sesion_timeout_ms": 1}, "did you mean session_timeout_ms"),
        (ProducerConfig, {"lingerms": 1}, "did you mean linger_ms"),
        (AdminConfig, {"zzzz": 1}, "zzzz is not a setting of this client$"),
        (ClientConfig, {"request_timeout_ms": "soon"}, "must be a whole number"),
        (ClientConfig, {"request_timeout_ms": True}, "must be a whole number"),
        (ClientConfig, {"request_timeout_ms": 0}, "at least 1"),
        (ClientConfig, {"retry_backoff_ms": -1}, "at least 0"),
        (ClientConfig, {"client_id": 5}, "client_id is 5; it must be text, for example '5'$"),
        (ConsumerConfig, {"group_id": 5}, "group_id is 5; it must be text, for example '5'$"),
        (ConsumerConfig, {"isolation_level": 5}, "it must be one of read_uncommitted, read_committed$"),
        (ProducerConfig, {"acks": 1.5}, "^acks is '1.5'; it must be one of all, -1, 0, 1$"),
        (
            ConsumerConfig,
            {"session_timeout_ms": "10s"},
            "is '10s'; it must be a whole number of milliseconds, for example 45000$",
        ),
        (
            ConsumerConfig,
            {"session.timeout.ms ": 10},
            "^'session.timeout.ms ' is not a setting of this client; did you",
        ),
        (ClientConfig, {"client_id": None}, "must not be None"),
        (ClientConfig, {"bootstrap_servers": ""}, "at least one broker"),
        (ClientConfig, {"bootstrap_servers": 9092}, "must be text like"),
        (ClientConfig, {"bootstrap_servers": [None]}, "must be text like"),
        (ClientConfig, {"bootstrap_servers": b"a:1"}, "must be text like"),
        (ClientConfig, {"bootstrap_servers": "a\0b:1"}, "not a broker address"),
        (ClientConfig, {"bootstrap_servers": "a b:1"}, "not a broker address"),
        (ClientConfig, {"client_id": "x" * 32_768}, "32767 can be sent"),
        (ConsumerConfig, {"group_instance_id": ""}, "group_instance_id is ''"),
        (ConsumerConfig, {"group_instance_id": ".."}, "must not be '.' or '..'"),
        (ConsumerConfig, {"group_instance_id": "a/b"}, "letters, digits"),
        (ConsumerConfig, {"group_instance_id": "x" * 250}, "1 to 249"),
        (ClientConfig, {"bootstrap_servers": "localhost"}, "host:port|localhost:9092"),
        (ConsumerConfig, {"enable_auto_commit": "yes"}, "true or false"),
        (ConsumerConfig, {"auto_offset_reset": "first"}, "it must be one of earliest, latest, none$"),
        (
            ConsumerConfig,
            {"auto_offset_reset": "smallest"},
            "auto_offset_reset is 'smallest': here it is called earliest$",
        ),
        (ConsumerConfig, {"auto_offset_reset": "beginning"}, "here it is called earliest$"),
        (ConsumerConfig, {"auto_offset_reset": "largest"}, "here it is called latest$"),
        (ConsumerConfig, {"auto_offset_reset": "End"}, "here it is called latest$"),
        (ConsumerConfig, {"auto_offset_reset": "error"}, "here it is called none$"),
        (ConsumerConfig, {"auto_offset_reset": "Latest"}, "here it is called latest$"),
        (ProducerConfig, {"compression_type": "GZIP"}, "here it is called gzip$"),
        (ProducerConfig, {"acks": "ALL"}, "here it is called all$"),
        (ConsumerConfig, {"isolation_level": "x"}, "read_committed"),
        (ConsumerConfig, {"heartbeat_interval_ms": 45_000}, "below session_timeout_ms"),
        (ConsumerConfig, {"session_timeout_ms": 2**31}, "at most 2147483647"),
        (ConsumerConfig, {"group_id": "\ud800"}, "cannot be encoded as UTF-8"),
        (ConsumerConfig, {"client_rack": "\ud800"}, "cannot be encoded as UTF-8"),
        (ConsumerConfig, {"group_id": ""}, "name the group"),
        (ConsumerConfig, {"fetch_max_wait_ms": 30_000}, "below request_timeout_ms"),
        (ConsumerConfig, {"partition_assignment_strategy": ()}, "at least one"),
        (ProducerConfig, {"acks": 2}, "all, -1, 0, 1"),
        (ProducerConfig, {"compression_type": "brotli"}, "gzip"),
        (ProducerConfig, {"compression_gzip_level": 10}, "compression_gzip_level is 10; it must be at most 9"),
        (ProducerConfig, {"compression_gzip_level": -2}, "at least -1"),
        (ProducerConfig, {"compression_gzip_level": 0}, "must be 1 to 9, or -1 for the codec's default"),
        (ProducerConfig, {"compression_zstd_level": 23}, "at most 22"),
        (ProducerConfig, {"compression_zstd_level": -131_073}, "at least -131072"),
        (ProducerConfig, {"delivery_timeout_ms": 1000}, "linger_ms \\+ request_timeout_ms"),
        (ProducerConfig, {"enable_idempotence": True, "acks": 1}, "needs acks=all"),
        (ProducerConfig, {"enable_idempotence": True, "retries": 0}, "needs retries"),
        (ProducerConfig, {"enable_idempotence": True, "max_in_flight_requests_per_connection": 6}, "at most 5"),
    ],
)
def test_what_is_wrong_is_said(cls, settings, message):
    with pytest.raises(ConfigError, match=message):
        cls.of(settings)


@pytest.mark.parametrize(
    ("settings", "idempotent"),
    [
        ({}, True),
        ({"acks": "all"}, True),
        ({"acks": -1}, True),
        ({"acks": "1"}, False),
        ({"acks": 0}, False),
        ({"retries": 0}, False),
        ({"max_in_flight_requests_per_connection": 6}, False),
        ({"enable_idempotence": False}, False),
        ({"enable_idempotence": "true"}, True),
    ],
)
def test_idempotence_is_on_unless_something_speaks_against_it(settings, idempotent):
    assert ProducerConfig.of(settings).idempotent is idempotent


def test_the_ends_of_the_codecs_scales_are_taken():
    for level in (-1, 1, 9):
        assert ProducerConfig(compression_gzip_level=level).compression_gzip_level == level
    for level in (-131_072, 0, 22):
        assert ProducerConfig(compression_zstd_level=level).compression_zstd_level == level


def test_a_long_request_timeout_lifts_the_default_delivery_timeout():
    assert ProducerConfig.of(request_timeout_ms=300_000).delivery_timeout_ms == 300_005


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("localhost:9092", ("localhost", 9092)),
        ("10.0.0.1:1", ("10.0.0.1", 1)),
        ("[::1]:9092", ("::1", 9092)),
        ("PLAINTEXT://kafka.example:19092", ("kafka.example", 19092)),
    ],
)
def test_addresses(text, found):
    assert parse_address(text) == found


@pytest.mark.parametrize(
    "text", ["", "host", "host:", ":9092", "::1:9092", "host:0", "host:65536", "HTTP://host:1", "h:x"]
)
def test_what_is_not_an_address(text):
    with pytest.raises(ConfigError):
        parse_address(text)
