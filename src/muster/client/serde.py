"""Serializers and deserializers: the user's functions between objects and the bytes of a record.

Each is a function of the data alone, of `(topic, data)` or of `(topic, data, headers)`, depending on how many arguments
it needs; or an object whose method `serialize` or `deserialize` takes the same arguments. Headers are a list of pairs,
and a serializer may add to it: a schema registry puts its ids there or in front of the data. A deserializer is not
called for None, as in Kafka's client; a serializer is.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Protocol

from muster.errors import RecordDeserializationError, SerializationError
from muster.model import ConsumerRecord, Headers


class Serializer(Protocol):
    """An object that turns keys or values into bytes."""

    def serialize(self, topic: str, data: Any, headers: Headers) -> bytes | None:
        """The bytes to send; None for a record without a key or value."""


class Deserializer(Protocol):
    """An object that turns bytes into keys or values."""

    def deserialize(self, topic: str, data: bytes, headers: Headers) -> Any:
        """What the user gets instead of the bytes."""


SerializerLike = (
    Serializer
    | Callable[[Any], bytes | None]
    | Callable[[str, Any], bytes | None]
    | Callable[[str, Any, Headers], bytes | None]
)
DeserializerLike = (
    Deserializer | Callable[[bytes], Any] | Callable[[str, bytes], Any] | Callable[[str, bytes, Headers], Any]
)

SerdeFunction = Callable[[str, Any, Headers], Any]
"""A serializer or deserializer of any kind, in the form in which it is called."""

_KINDS = "it is called with (data), (topic, data) or (topic, data, headers)"


def serde_function(what: str, method: str, given: object) -> SerdeFunction | None:
    """The value of a setting such as `value_deserializer`, as a function of topic, data and headers.

    Raises:
        TypeError: it cannot be called with these arguments.
    """
    if given is None:
        return None
    function: Any = getattr(given, method, given)
    if isinstance(given, type) and inspect.isfunction(inspect.getattr_static(given, method, None)):
        raise TypeError(f"{what} is the class {given.__name__}: pass an instance")
    if not callable(function):
        raise TypeError(f"{what} is {given!r}, which cannot be called and has no method {method}")
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None)):  # noqa: B004
        raise TypeError(f"{what} is a coroutine function: records are (de)serialized without waiting")
    return _adapted(what, function)


def _adapted(what: str, function: Callable[..., Any]) -> SerdeFunction:
    needed = _needed(function)
    match needed:
        case None | [] | [_]:
            return lambda _topic, data, _headers: function(data)
        case [_, _]:
            return lambda topic, data, _headers: function(topic, data)
        case [_, "headers", _]:  # the order of Java's and kafka-python's interfaces
            return lambda topic, data, headers: function(topic, headers, data)
        case [_, _, _]:
            return function
    raise TypeError(f"{what} needs {len(needed)} arguments: {_KINDS}")


def _needed(function: Callable[..., Any]) -> list[str] | None:
    """The names of a function's required arguments; None if Python does not know them (some built-ins)."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    found = [one.name for one in parameters if one.kind in positional and one.default is inspect.Parameter.empty]
    if not found and any(one.kind is inspect.Parameter.VAR_POSITIONAL for one in parameters):
        return ["topic", "data"]
    return found


class Deserializers:
    """The deserializers of a consumer."""

    def __init__(self, key: DeserializerLike | None, value: DeserializerLike | None) -> None:
        self._key = serde_function("key_deserializer", "deserialize", key)
        self._value = serde_function("value_deserializer", "deserialize", value)

    def __bool__(self) -> bool:
        return self._key is not None or self._value is not None

    def read(self, record: ConsumerRecord) -> ConsumerRecord:
        """The record with objects instead of bytes. The given record stays unchanged: it may have to be read again.

        Raises:
            RecordDeserializationError: the key or the value cannot be deserialized.
        """
        key, value, headers = record.key, record.value, record.headers
        origin = "key"
        try:
            if key is not None and self._key is not None:
                key = self._key(record.topic, key, headers)
            origin = "value"
            if value is not None and self._value is not None:
                value = self._value(record.topic, value, headers)
        except Exception as error:
            raise RecordDeserializationError(origin, record, f"{type(error).__name__}: {error}") from error
        return ConsumerRecord(
            record.topic,
            record.partition,
            record.offset,
            record.timestamp,
            record.timestamp_type,
            key,
            value,
            headers,
            record.leader_epoch,
        )


class Serializers:
    """The serializers of a producer."""

    def __init__(self, key: SerializerLike | None, value: SerializerLike | None) -> None:
        self._key = serde_function("key_serializer", "serialize", key)
        self._value = serde_function("value_serializer", "serialize", value)

    def __bool__(self) -> bool:
        return self._key is not None or self._value is not None

    def write(self, topic: str, key: Any, value: Any, headers: Headers) -> tuple[Any, Any]:
        """Key and value as the serializers return them. Serializers may add headers.

        Raises:
            SerializationError: the key or the value cannot be serialized.
        """
        return _write("key", self._key, topic, key, headers), _write("value", self._value, topic, value, headers)


def _write(what: str, serialize: SerdeFunction | None, topic: str, data: Any, headers: Headers) -> Any:
    if serialize is None:
        return data
    try:
        return serialize(topic, data, headers)
    except Exception as error:
        text = f"the {what} for topic {topic} cannot be serialized: {type(error).__name__}: {error}"
        raise SerializationError(text) from error


def as_bytes(what: str, content: Any) -> bytes | None:
    """The bytes of a key or value, as passed in or as a serializer returned them.

    Raises:
        TypeError: it is something else.
    """
    if content is None or isinstance(content, bytes):
        return content
    if isinstance(content, bytearray | memoryview):
        return bytes(content)
    raise TypeError(f"the {what} is {type(content).__name__}, not bytes: encode it, or give a {what}_serializer")
