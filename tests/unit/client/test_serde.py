"""Serializers and deserializers: how each kind is called, and what happens if one fails."""

from __future__ import annotations

import functools
import json
import uuid
from typing import Any

import pytest

from muster import AsyncConsumer, AsyncProducer, Consumer, Producer
from muster.client.serde import Deserializers, Serializers, serde_function
from muster.errors import RecordDeserializationError, SerializationError
from muster.model import ConsumerRecord

NOWHERE = "127.0.0.1:1"
HEADERS: list[tuple[str, bytes | None]] = [("schema", b"7")]


def record(key: Any = b"k", value: Any = b"v") -> ConsumerRecord:
    return ConsumerRecord("t", 3, 41, 5, 1, key, value, list(HEADERS), 2)


def alone(data: Any) -> Any:
    return ("alone", data)


def with_topic(topic: str, data: Any) -> Any:
    return (topic, data)


def with_all(topic: str, data: Any, headers: Any) -> Any:
    return (topic, data, headers)


def any_number(*arguments: Any) -> Any:
    return arguments


class Ours:
    def deserialize(self, topic: str, data: bytes, headers: Any) -> Any:
        return (topic, data, headers)


class JavasOrder:  # and kafka-python's
    def deserialize(self, topic: str, headers: Any, data: bytes) -> Any:
        return (topic, data, headers)


class WithoutHeaders:
    def deserialize(self, topic: str, data: bytes) -> Any:
        return (topic, data)


class OfTheClass:
    @classmethod
    def deserialize(cls, topic: str, data: bytes) -> Any:
        return (topic, data)


class Called:
    def __call__(self, topic: str, data: bytes) -> Any:
        return (topic, data)


@pytest.mark.parametrize(
    ("given", "result"),
    [
        (alone, ("alone", b"1")),
        (with_topic, ("t", b"1")),
        (with_all, ("t", b"1", HEADERS)),
        (any_number, ("t", b"1")),
        (functools.partial(with_all, "mine"), ("mine", "t", b"1")),
        (lambda data, encoding="utf-8": data.decode(encoding), "1"),
        (bytes.decode, "1"),
        (json.loads, 1),
        (int, 1),
        (str, "b'1'"),
        (Ours(), ("t", b"1", HEADERS)),
        (JavasOrder(), ("t", b"1", HEADERS)),
        (WithoutHeaders(), ("t", b"1")),
        (OfTheClass, ("t", b"1")),
        (Called(), ("t", b"1")),
    ],
)
def test_each_kind_gets_what_it_asks_for(given: Any, result: Any) -> None:
    called = serde_function("value_deserializer", "deserialize", given)
    assert called is not None
    assert called("t", b"1", HEADERS) == result


async def later(data: bytes) -> bytes:
    return data


class Later:
    async def deserialize(self, topic: str, data: bytes, headers: Any) -> bytes:
        return data

    async def serialize(self, topic: str, data: bytes, headers: Any) -> bytes:
        return data


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("json", "'json', which cannot be called and has no method"),
        (Ours, "is the class Ours: pass an instance"),
        (later, "is a coroutine function"),
        (Later(), "is a coroutine function"),
        (lambda a, b, c, d: a, "needs 4 arguments: it is called with"),
    ],
)
def test_what_cannot_be_called_is_refused_when_it_is_given(given: Any, why: str) -> None:
    for face in (Consumer, AsyncConsumer):
        for name in ("key_deserializer", "value_deserializer"):
            with pytest.raises(TypeError, match=f"{name} .*{why}"):
                face(bootstrap_servers=NOWHERE, **{name: given})
    if given is not Ours:  # it has no method for it
        for maker in (Producer, AsyncProducer):
            for name in ("key_serializer", "value_serializer"):
                with pytest.raises(TypeError, match=f"{name} .*{why}"):
                    maker(bootstrap_servers=NOWHERE, **{name: given})


# --- reading ---------------------------------------------------------------------------------------------------------


def test_a_record_is_read_into_another_with_all_that_it_had() -> None:
    raw = record(b"1", b"[2]")
    read = Deserializers(int, json.loads).read(raw)
    assert read == ConsumerRecord("t", 3, 41, 5, 1, 1, [2], HEADERS, 2)
    assert raw == record(b"1", b"[2]")
    assert Deserializers(None, json.loads).read(raw).key == b"1"
    assert not Deserializers(None, None)


def test_none_is_not_deserialized() -> None:
    assert Deserializers(int, int).read(record(None, None)) == record(None, None)


@pytest.mark.parametrize(("key", "value", "origin"), [(b"x", b"1", "key"), (b"1", b"x", "value"), (b"x", b"x", "key")])
def test_a_failure_says_where_the_record_is_and_has_it(key: bytes, value: bytes, origin: str) -> None:
    raw = record(key, value)
    with pytest.raises(RecordDeserializationError, match=f"the {origin} of the record at offset 41 of t-3") as reported:
        Deserializers(int, int).read(raw)
    error = reported.value
    assert (error.partition, error.offset, error.origin, error.record) == (("t", 3), 41, origin, raw)
    assert isinstance(error.__cause__, ValueError)
    assert (error.retriable, error.fatal) == (False, False)


def test_an_interrupt_is_not_a_failure_of_the_record() -> None:
    def interrupted(data: bytes) -> bytes:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Deserializers(None, interrupted).read(record())


# --- writing ---------------------------------------------------------------------------------------------------------


def test_serializers_get_none_too() -> None:
    reported: list[Any] = []
    assert Serializers(reported.append, reported.append).write("t", None, None, []) == (None, None)
    assert reported == [None, None]


def fails(_data: Any) -> bytes:
    raise ValueError("no such type")


@pytest.mark.parametrize("which", ["key", "value"])
def test_a_serializer_that_fails_is_reported_with_its_topic(which: str) -> None:
    with pytest.raises(SerializationError, match=f"the {which} for topic t .*: ValueError: no such type") as reported:
        Serializers(fails if which == "key" else None, fails).write("t", "k", "v", [])
    assert isinstance(reported.value.__cause__, ValueError)


class Registering:
    """Writes the schema's id into a header, as a registry's serializer may do."""

    def serialize(self, topic: str, data: Any, headers: Any) -> bytes:
        headers.append((f"{topic}-schema", b"7"))
        return json.dumps(data).encode()


def headers_of(producer: Any, **headers: Any) -> Any:
    [engine] = [producer._engine]
    return engine.encode("t", {"a": 1}, None, None, None, headers.get("headers")).headers


@pytest.mark.parametrize("maker", [Producer, AsyncProducer])
def test_a_serializer_may_add_headers(maker: Any) -> None:
    producer = maker(bootstrap_servers=NOWHERE, value_serializer=Registering())
    mine = [("mine", b"1")]
    assert list(headers_of(producer, headers=mine)) == [("mine", b"1"), ("t-schema", b"7")]
    assert list(headers_of(producer)) == [("t-schema", b"7")]
    assert mine == [("mine", b"1")]


@pytest.mark.parametrize("maker", [Producer, AsyncProducer])
def test_a_serializer_has_to_make_bytes(maker: Any) -> None:
    producer = maker(bootstrap_servers=NOWHERE, value_serializer=lambda value: str(value))
    with pytest.raises(TypeError, match="the value is str, not bytes"):
        producer._engine.encode("t", uuid.uuid4(), None, None, None, None)
    unheard = maker(bootstrap_servers=NOWHERE, value_serializer=lambda topic, value, headers: headers.append(1))
    with pytest.raises(TypeError, match="neither a mapping nor pairs"):
        unheard._engine.encode("t", b"", None, None, None, None)
