"""Hooks: a program's own code, called for each record to trace or count it, like Kafka's interceptors.

    class Count(ProducerHooks):
        def on_acknowledgement(self, record, metadata, error):
            ...

    Producer(bootstrap_servers="localhost:9092", hooks=[Count()])

Hooks are called in the order given. If one raises, the error is logged, and the other hooks and the record continue:
a hook must not break the client that it observes. Hooks must not block.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from muster.client.delivery import Headers, OnDelivery, Receipt
from muster.errors import MusterError
from muster.model import ConsumerRecord, OffsetAndMetadata, RecordMetadata, TopicPartition

log = logging.getLogger("muster.client.hooks")


@dataclass(slots=True)
class Outbound:
    """A record that is about to be sent, as the caller gave it: a hook may change it, and add headers."""

    topic: str
    value: Any = None
    key: Any = None
    partition: int | None = None
    timestamp_ms: int | None = None
    headers: list[tuple[str, bytes | None]] = field(default_factory=list)


class ProducerHooks:
    """The methods that a producer calls; by default each does nothing."""

    def on_send(self, record: Outbound) -> None:
        """A record is about to be serialized: called by `send`, in the caller's thread or task."""

    def on_acknowledgement(
        self, record: Outbound, metadata: RecordMetadata | None, error: BaseException | None
    ) -> None:
        """The record was written, or was not: called once for each `on_send`, with either `metadata` or `error`, before
        the caller's `on_delivery`. A blocking producer calls it in its background thread, or, if `send` itself fails,
        in the caller's. A `send` that is interrupted may have no outcome.
        """


class ConsumerHooks:
    """The methods that a consumer calls; by default each does nothing."""

    def on_consume(self, records: Mapping[TopicPartition, Sequence[ConsumerRecord]]) -> None:
        """Records have arrived and are handed out next: called within `poll` or iteration, in the caller's thread or
        task. Each record is passed once, with bytes that are not deserialized yet; tables of `poll_arrow` are not."""

    def on_commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Offsets were committed, by a call or by auto commit. A blocking consumer calls it in its own thread."""


def _call_each(function: str, hooks: Iterable[object], *arguments: object) -> None:
    for hook in hooks:
        try:
            getattr(hook, function)(*arguments)
        except Exception:
            log.exception("%s of %s failed", function, type(hook).__name__)


def _checked(hooks: Sequence[Any], kind: type) -> tuple[Any, ...]:
    for hook in hooks:
        if not isinstance(hook, kind):
            raise TypeError(f"hooks: {hook!r} is not an instance of {kind.__name__}")
    return tuple(hooks)


class HookedReceipt(Receipt):
    """One record of a producer with hooks, and its receipt."""

    __slots__ = ("_callback", "_hooks", "record")

    def __init__(self, hooks: tuple[ProducerHooks, ...], record: Outbound) -> None:
        self._hooks = hooks
        self._callback: OnDelivery | None = None
        self.record = record

    @property
    def fields(self) -> tuple[str, Any, Any, int | None, int | None, Headers | None]:
        """The record with which `send` continues."""
        record = self.record
        return record.topic, record.value, record.key, record.partition, record.timestamp_ms, record.headers or None

    @property
    def notifies_caller(self) -> bool:
        """See `Receipt.notifies_caller`."""
        return self._callback is not None

    def of(self, future: Any, callback: OnDelivery | None) -> HookedReceipt:
        """Become the receipt of this future."""
        self.future, self._callback, self.on_delivery = future, callback, self._delivered
        return self

    def _delivered(self, metadata: RecordMetadata | None, error: MusterError | None) -> None:
        _call_each("on_acknowledgement", self._hooks, self.record, metadata, error)
        if self._callback is not None:
            self._callback(metadata, error)

    def failed(self, error: BaseException) -> None:
        """`send` raises this: there is no other outcome."""
        _call_each("on_acknowledgement", self._hooks, self.record, None, error)


BeginSend = Callable[[str, Any, Any, "int | None", "int | None", "Headers | None"], HookedReceipt]


def producer_hooks(hooks: Sequence[ProducerHooks]) -> BeginSend | None:
    """The function that `send` calls first, with a record's parts; None without hooks."""
    checked: tuple[ProducerHooks, ...] = _checked(hooks, ProducerHooks)
    if not checked:
        return None

    def begin(
        topic: str, value: Any, key: Any, partition: int | None, timestamp_ms: int | None, headers: Headers | None
    ) -> HookedReceipt:
        pairs = headers.items() if isinstance(headers, Mapping) else headers or ()
        hooked = HookedReceipt(checked, Outbound(topic, value, key, partition, timestamp_ms, list(pairs)))
        _call_each("on_send", checked, hooked.record)
        return hooked

    return begin


class ConsumerHookCalls:
    """The hooks of a consumer."""

    def __init__(self, hooks: Sequence[ConsumerHooks]) -> None:
        self._hooks: tuple[ConsumerHooks, ...] = _checked(hooks, ConsumerHooks)

    def __bool__(self) -> bool:
        return bool(self._hooks)

    def consumed(self, records: Mapping[TopicPartition, Sequence[ConsumerRecord]]) -> None:
        """Records are about to be handed out."""
        _call_each("on_consume", self._hooks, records)

    def committed(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Offsets were committed."""
        _call_each("on_commit", self._hooks, offsets)
