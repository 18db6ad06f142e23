"""A setting of another client is refused, with its equivalent here, or the reason why there is none."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from muster import Admin, AsyncConsumer, Consumer, Producer
from muster.client import other_names
from muster.client.config import AdminConfig, ClientConfig, ConsumerConfig, ProducerConfig
from muster.errors import ConfigError

NAMES = Path(__file__).parent / "names"
LISTS = {
    path.stem: [name for line in path.read_text().splitlines() if line[0] != "#" for name in line.split()]
    for path in NAMES.glob("*.txt")
}
KNOWN: dict[type[ClientConfig], set[str]] = {
    config: {setting.name for setting in fields(config)} for config in (ConsumerConfig, ProducerConfig, AdminConfig)
}
ALL = set().union(*KNOWN.values())


def refused(config: type[ClientConfig], name: str) -> str | None:
    """The error for a name; None if it is a setting."""
    if name.replace(".", "_") in KNOWN[config]:
        return None
    with pytest.raises(ConfigError) as reported:
        config.of({name: "1"})
    return str(reported.value)


def test_the_lists_are_whole() -> None:
    assert {name: len(names) for name, names in LISTS.items()} == {
        "librdkafka": 193,
        "java": 141,
        "kafka_python": 79,
        "aiokafka": 49,
    }


@pytest.mark.parametrize("config", KNOWN, ids=lambda config: config.__name__)
@pytest.mark.parametrize("client", LISTS)
def test_every_name_of_every_client_has_an_answer(config: type[ClientConfig], client: str) -> None:
    for name in LISTS[client]:
        sentence = refused(config, name)
        assert sentence is None or re.match(rf"{re.escape(name)} is not a setting of this client: \w", sentence), (
            sentence
        )


@pytest.mark.parametrize("config", KNOWN, ids=lambda config: config.__name__)
@pytest.mark.parametrize(("name", "found"), other_names.EQUIVALENT.items())
def test_what_is_named_is_a_setting(config: type[ClientConfig], name: str, found: str) -> None:
    setting = re.split(r"\W", found, maxsplit=1)[0]
    assert setting in ALL
    sentence = refused(config, name)
    assert sentence is not None, "it is a setting here now: take it from the table"
    assert sentence == f"{name} is not a setting of this client: " + (
        f"here it is called {found}"
        if setting in KNOWN[config]
        else f"it would be {found}, which this client does not have"
    )


def test_no_name_has_two_answers() -> None:
    assert not set(other_names.OTHERWISE) & set(other_names.EQUIVALENT)


def test_settings_that_an_answer_speaks_of_exist() -> None:
    """Words with an underscore are settings, arguments or methods."""
    others = {"on_delivery", "end_offsets", "current_lag", "commit_async", "timeout_ms", "use_all_dns_ips"}
    answers = [*other_names.OTHERWISE.values(), *other_names.FAMILIES.values()]
    reported = {word for text in answers for word in re.findall(r"\b[a-z]+_[a-z_]+\b", text)}
    assert reported - ALL - others - {"ssl_"} == set()
    assert others <= reported
    assert callable(Consumer.end_offsets)
    assert callable(Consumer.current_lag)


@pytest.mark.parametrize(
    ("make", "settings", "sentence"),
    [
        (
            Consumer,
            {"enable.partition.eof": True},
            "enable.partition.eof is not a setting of this client: compare position()",
        ),
        (Consumer, {"queued.max.messages.kbytes": 1}, "here it is called max_partition_fetch_bytes, in bytes"),
        (Producer, {"message.timeout.ms": 1}, "here it is called delivery_timeout_ms"),
        (Producer, {"group.id": "g"}, "group.id is not a setting of this client: it is a setting of consumers"),
        (Consumer, {"linger_ms": 1}, "linger_ms is not a setting of this client: it is a setting of producers"),
        (Consumer, {"retries": 1}, "it is a setting of producers and admin clients"),
        (Admin, {"value_deserializer": str}, "it is a keyword of Consumer and AsyncConsumer"),
        (Consumer, {"queue.buffering.max.ms": 1}, "it would be linger_ms, which this client does not have"),
        (AsyncConsumer, {"sasl.kerberos.service.name": "kafka"}, "Kerberos (GSSAPI) is not supported"),
        (Consumer, {"fetch_min_byts": 1}, "did you mean fetch_min_bytes?"),
    ],
)
def test_sentences(make: type, settings: dict[str, object], sentence: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        make(settings)


def test_topics_are_not_given_to_the_consumer_itself() -> None:
    with pytest.raises(ConfigError, match="not 'flights'; pass topics to subscribe"):
        Consumer("flights", bootstrap_servers="localhost:9092")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="not 'localhost:9092'; write bootstrap_servers='localhost:9092'"):
        Producer("localhost:9092")  # type: ignore[arg-type]


def test_the_page_for_those_who_come_says_the_same() -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "reference" / "migrating.md").read_text()
    _, _, table = page.partition("\n## Settings\n")
    rows = re.findall(r"^\| (.*) \| (.*) \| (.*) \|$", table.partition("\n## ")[0], re.MULTILINE)[1:]
    assert len(rows) > 20
    for _theirs, librdkafkas, ours in rows:
        settings = re.findall(r"`(\w+)`", ours)
        assert ALL.issuperset(word for word in settings if word != "Assignor")
        for name in re.findall(r"`([\w.]+)`", librdkafkas):
            assert name in LISTS["librdkafka"] or name == "oauth_cb"  # confluent-kafka's own setting
            known = name.replace(".", "_")
            here = re.split(r"\W", other_names.EQUIVALENT.get(known, known))[0]
            assert here in settings, name
