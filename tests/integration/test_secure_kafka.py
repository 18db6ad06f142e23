"""Clients on a real Apache Kafka whose listeners require TLS and SASL: what works, and the errors otherwise."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
import uuid
from typing import Any

import pytest

from muster.client.admin.admin import Admin
from muster.client.admin.async_admin import AsyncAdmin
from muster.client.concurrent import AsyncConcurrentConsumer
from muster.client.consumer.async_consumer import AsyncConsumer
from muster.client.consumer.consumer import Consumer
from muster.client.core.admin.admin import NewTopic
from muster.client.net import connection
from muster.client.producer.async_producer import AsyncProducer
from muster.client.producer.producer import Producer
from muster.client.security import tokens
from muster.errors import AuthenticationError, KafkaTimeoutError
from muster.model import ConsumerRecord, OffsetAndMetadata, TopicPartition
from tests.support.faces import PATIENCE_S
from tests.support.growing import until_said
from tests.support.secure_kafka import PASSWORDS, PLAIN, SCRAM, SecureKafka, login
from tests.support.token_endpoint import token

pytestmark = pytest.mark.slow


@pytest.fixture
def secure(secure_kafka: SecureKafka) -> SecureKafka:
    return secure_kafka


def trusting(kafka: SecureKafka, authority: str = "ca") -> dict[str, str]:
    return {"ssl.truststore.location": str(kafka.certificates.path(authority))}


def tls(kafka: SecureKafka, authority: str = "ca", **more: str) -> dict[str, Any]:
    return {"security.protocol": "SSL"} | trusting(kafka, authority) | more


def sasl(mechanism: str, username: str = "alice", password: str | None = None) -> dict[str, Any]:
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.username": username,
        "sasl.password": PASSWORDS[username] if password is None else password,
    }


def bearing(provider: Any) -> dict[str, Any]:
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.token.provider": provider,
    }


def round_trip(address: str, settings: dict[str, Any]) -> None:
    """Create a topic, write to it and read it in a group, with every client."""
    name = f"t-{uuid.uuid4().hex[:8]}"
    with Admin(settings, bootstrap_servers=address) as admin:
        admin.create_topics([NewTopic(name, 1)])
    with Producer(settings, bootstrap_servers=address) as producer:
        producer.send_and_wait(name, b"one")
    with Consumer(settings, bootstrap_servers=address, group_id=name, auto_offset_reset="earliest") as consumer:
        consumer.subscribe([name])
        deadline = time.monotonic() + PATIENCE_S
        found: dict[Any, Any] = {}
        while not found and time.monotonic() < deadline:
            found = consumer.poll(timeout_ms=500)
        assert [record.value for records in found.values() for record in records] == [b"one"]
        consumer.commit()


@pytest.mark.parametrize("listener", ["TLS", "MUTUAL", "ELSEWHERE"])
def test_a_client_and_a_broker_that_trust_each_other(secure: SecureKafka, listener: str) -> None:
    more = {"ssl.keystore.location": str(secure.certificates.path("client"))} if listener == "MUTUAL" else {}
    if listener == "ELSEWHERE":
        more = {"ssl.endpoint.identification.algorithm": ""}
    round_trip(secure.address(listener), tls(secure, **more))


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize("listener", ["SASL", "BOTH"])
def test_a_password(secure: SecureKafka, mechanism: str, listener: str) -> None:
    module = PLAIN if mechanism == "PLAIN" else SCRAM
    settings = {
        "security.protocol": secure.LISTENERS[listener],
        "sasl.mechanism": mechanism,
        "sasl.jaas.config": login(module, username="alice", password=PASSWORDS["alice"]),
    }
    round_trip(secure.address(listener), settings | trusting(secure))


@pytest.mark.any_loop
async def test_the_faces_for_asyncio_over_tls_with_a_password(secure: SecureKafka) -> None:
    settings = sasl("SCRAM-SHA-256") | trusting(secure) | {"security.protocol": "SASL_SSL"}
    settings["bootstrap.servers"] = secure.address("BOTH")
    topic = f"t-{uuid.uuid4().hex[:8]}"
    async with AsyncAdmin(settings) as admin:
        await admin.create_topics([NewTopic(topic, 1)])
    for acks in ("all", "0"):
        async with AsyncProducer(settings, acks=acks, enable_idempotence=False) as producer:
            futures = [await producer.send(topic, bytes(5_000)) for _ in range(50)]
            await producer.flush()
            assert [(await future).offset for future in futures] == ([-1] * 50 if acks == "0" else list(range(50)))
    read: list[int] = []
    async with (
        AsyncConsumer(settings, group_id=topic, auto_offset_reset="earliest") as consumer,
        asyncio.timeout(PATIENCE_S),
    ):
        consumer.subscribe([topic])
        while len(read) < 100:
            read += [record.offset for records in (await consumer.poll(500)).values() for record in records]
    assert read == list(range(100))


def test_records_handled_many_at_a_time_and_their_dead_letters(secure: SecureKafka) -> None:
    """Over SASL_SSL: the producer of dead letters has the settings of the consumer."""
    topic, values = f"t-{uuid.uuid4().hex[:8]}", set[Any]()
    settings = sasl("SCRAM-SHA-512") | {"security.protocol": "SASL_SSL"} | trusting(secure)
    settings["bootstrap.servers"] = secure.address("BOTH")
    with Admin(settings) as admin:
        admin.create_topics([NewTopic(topic, 2), NewTopic(f"{topic}-dead", 1)])
    with Producer(settings) as producer:
        for value in (b"1", b"2", b"no number", b"3"):
            producer.send(topic, value)

    async def handle(record: ConsumerRecord) -> None:
        values.add(record.value)

    async def scene() -> None:
        group = {"group.id": topic, "auto.offset.reset": "earliest"}
        consumer = AsyncConcurrentConsumer(
            settings | group, handle, topics=topic, value_deserializer=int, dead_letter_topic=f"{topic}-dead"
        )
        run = asyncio.ensure_future(consumer.run())
        async with asyncio.timeout(PATIENCE_S):
            while consumer.metrics()["handled"] + consumer.metrics()["dead_lettered"] < 4:
                await asyncio.sleep(0.02)
        consumer.stop()
        await run

    asyncio.run(scene())
    assert values == {1, 2, 3}
    with Consumer(settings, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition(f"{topic}-dead", 0)])
        assert next(consumer).value == b"no number"
    with Admin(settings) as admin:
        committed = admin.list_consumer_group_offsets(topic).values()
    assert sum(place.offset for place in committed if isinstance(place, OffsetAndMetadata)) == 4


def test_a_token(secure: SecureKafka) -> None:
    round_trip(secure.address("SASL"), bearing(token))


def refusals(kafka: SecureKafka) -> dict[str, tuple[str, dict[str, Any], str]]:
    """Each way of being refused: the listener, the settings, the error."""
    other = {"ssl.keystore.location": str(kafka.certificates.path("other-client"))}
    plain = sasl("PLAIN", password="hush-wrong")
    over_tls = plain | trusting(kafka) | {"security.protocol": "SASL_SSL"}
    refused = "the broker refused"
    return {
        "unknown authority": ("TLS", tls(kafka, "other-ca"), "from an authority that is not trusted here"),
        "expired": ("EXPIRED", tls(kafka), "the broker's certificate has expired"),
        "another name": ("ELSEWHERE", tls(kafka), "is for another host name"),
        "no certificate": ("MUTUAL", tls(kafka), "does not accept this client's certificate"),
        "a stranger's certificate": ("MUTUAL", tls(kafka, **other), "does not accept this client's certificate"),
        "a wrong password, PLAIN": ("SASL", plain, f"{refused} PLAIN: Authentication failed: Invalid username or"),
        "a wrong password, SCRAM": ("SASL", sasl("SCRAM-SHA-256", password="hush"), f"{refused} SCRAM-SHA-256"),
        "an unknown user": ("SASL", sasl("SCRAM-SHA-512", "bob") | {"sasl.username": "nobody"}, f"{refused} SCRAM"),
        "no token": ("SASL", bearing(lambda: "hush.hush.hush"), f"{refused} OAUTHBEARER: .*invalid_token"),
        "an expired token": ("SASL", bearing(lambda: token(-60)), "has already expired"),
        "a mechanism that is not offered": ("ONLY_SCRAM", plain, "does not offer PLAIN on this port; it offers: SCRAM"),
        "SASL where there is none": ("TLS", over_tls, "this port of the broker does not use SASL"),
    }


@pytest.mark.parametrize("name", list(refusals(SecureKafka.nowhere())))
def test_each_refusal_has_its_own_sentence_and_ends_the_call(
    secure: SecureKafka, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "muster")
    listener, settings, said = refusals(secure)[name]
    address = secure.address(listener)
    topic = f"t-{uuid.uuid4().hex[:8]}"
    with (
        Admin(settings, bootstrap_servers=address) as admin,
        pytest.raises(AuthenticationError, match=said) as by_admin,
    ):
        admin.describe_cluster()
    with Producer(settings, bootstrap_servers=address) as producer:
        with pytest.raises(AuthenticationError, match=said) as by_producer:
            producer.send_and_wait(topic, b"one")
        with pytest.raises(AuthenticationError, match=said):  # not closed: it tries once more, and fails again
            producer.send_and_wait(topic, b"two")
    for group in None, topic:
        with Consumer(settings, bootstrap_servers=address, group_id=group) as consumer:
            if group is None:
                consumer.assign([TopicPartition(topic, 0)])
            else:
                consumer.subscribe([topic])
            for _ in range(2):
                with pytest.raises(AuthenticationError, match=said) as by_consumer:
                    consumer.poll(timeout_ms=int(PATIENCE_S * 1000))
    reported = [str(raised.value) for raised in (by_admin, by_producer, by_consumer)]
    reported += [record.getMessage() for record in caplog.records]
    assert reported
    assert not [text for text in reported if "hush" in text or PASSWORDS["bob"] in text]


@pytest.mark.parametrize(
    ("listener", "protocol", "said"),
    [
        ("TLS", "PLAINTEXT", r"does its port require TLS \(security_protocol\)\?"),
        ("BOTH", "SASL_PLAINTEXT", r"does its port require TLS \(security_protocol\)\?"),
        ("SASL", "PLAINTEXT", r"does its port require SASL \(security_protocol\)\?"),
        ("PLAINTEXT", "SSL", r"does the port use TLS \(security_protocol\)\?"),
        ("SASL", "SASL_SSL", r"does the port use TLS \(security_protocol\)\?"),
    ],
)
def test_another_protocol_than_the_ports_is_reported(
    secure: SecureKafka, listener: str, protocol: str, said: str
) -> None:
    settings = sasl("PLAIN") | trusting(secure) | {"security.protocol": protocol}

    def describe(limit_ms: int) -> str:
        with (
            Admin(settings, bootstrap_servers=secure.address(listener), default_api_timeout_ms=limit_ms) as admin,
            pytest.raises(KafkaTimeoutError) as late,
        ):
            admin.describe_cluster()
        return str(late.value)

    assert until_said(said, describe, 1_500)


@pytest.mark.parametrize("first", ["EXPIRED", "TLS"])
def test_one_broker_that_cannot_be_trusted_does_not_keep_clients_from_the_others(
    secure: SecureKafka, first: str
) -> None:
    addresses = [secure.address(first), secure.address("EXPIRED" if first == "TLS" else "TLS")]
    for _ in range(3):
        with Admin(tls(secure), bootstrap_servers=addresses) as admin:
            assert admin.describe_cluster().nodes


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "OAUTHBEARER"])
async def test_clients_prove_themselves_again_before_the_brokers_trust_ends(
    secure: SecureKafka, mechanism: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For twice the time that the broker trusts an authentication: no connection ends, nothing is lost or read
    twice."""
    # Earlier than usual: at 95% of a few seconds, a busy broker would read too late what was sent in time.
    monkeypatch.setattr(connection, "REAUTHENTICATE_AT", (0.3, 0.4))
    # With a fresh token: a cached one lasts less and less, and Kafka accepts none within a second of the previous one.
    monkeypatch.setattr(tokens, "_REFRESH_AT", 0.2)
    caplog.set_level(logging.INFO, "muster.client")
    fetched = itertools.count()
    lasts_s = secure.TRUST_S - 1
    provider = bearing(lambda: (next(fetched), token(lasts_s))[1])
    settings = provider if mechanism == "OAUTHBEARER" else sasl(mechanism, "bob")
    address, name = secure.address("SHORT"), f"t-{uuid.uuid4().hex[:8]}"
    read: list[bytes | None] = []
    async with (
        AsyncProducer(settings, bootstrap_servers=address) as producer,
        AsyncConsumer(settings, bootstrap_servers=address, group_id=name, auto_offset_reset="earliest") as consumer,
    ):
        consumer.subscribe([name])
        written = 0
        ends = time.monotonic() + 2 * secure.TRUST_S
        while time.monotonic() < ends:
            await producer.send_and_wait(name, b"%d" % written)
            written += 1
            found = await consumer.poll(timeout_ms=50)
            read += [record.value for records in found.values() for record in records]
        async with asyncio.timeout(PATIENCE_S):
            while len(read) < written:
                found = await consumer.poll(timeout_ms=500)
                read += [record.value for records in found.values() for record in records]
    assert read == [b"%d" % number for number in range(written)]
    assert [text for text in caplog.messages if "connection" in text and "ended" in text] == []
    if mechanism == "OAUTHBEARER":
        assert next(fetched) > 2
