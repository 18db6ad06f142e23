"""What the service does with one record. It is independent of the Kafka client."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from billing.store import Order, Store

log = logging.getLogger(__name__)

Headers = Sequence[tuple[str, bytes | None]]


@dataclass(frozen=True)
class Settings:
    """The topics that the service reads and writes, and its group."""

    bootstrap: str
    orders: str = "orders"
    invoices: str = "invoices"
    dead_letters: str = "orders-dead-letters"
    group_id: str = "billing"
    client_id: str = "billing"
    commit_interval_s: float = 1.0
    """Offsets are also committed before partitions are given up, and at the end."""
    heartbeat_interval_s: float = 3.0
    """How long it takes a member to notice a rebalance."""


class Record(Protocol):
    """A record of the orders topic, as most clients have it."""

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def headers(self) -> Headers: ...


class Message(NamedTuple):
    """A record to write."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


Handle = Callable[[Record], Message]


class PaymentError(Exception):
    """The payment was refused, or its provider could not be reached."""


class Billing:
    """Bills orders.

    Args:
        charge: takes the customer's money. It may be called again for an order, and must then do nothing: providers
            take the order's id as their idempotency key. Raises PaymentError.
        attempts: how often a charge is tried before the order becomes a dead letter.
    """

    def __init__(self, settings: Settings, store: Store, charge: Callable[[Order], None], *, attempts: int = 3) -> None:
        self._settings = settings
        self._store = store
        self._charge = charge
        self._attempts = attempts

    def handle(self, record: Record) -> Message:
        """Bill an order. Returns its invoice, or the dead letter that it becomes."""
        try:
            order = _parsed(record.value)
            if not self._store.is_billed(order.id):
                self._take_payment(order)
                self._store.bill(order)
        except (ValueError, PaymentError) as error:
            log.warning("%s/%s@%s is a dead letter: %s", record.topic, record.partition, record.offset, error)
            return self._dead_letter(record, error)
        return self._invoice(order)

    def _take_payment(self, order: Order) -> None:
        for attempt in range(1, self._attempts + 1):
            try:
                self._charge(order)
                return
            except PaymentError as error:
                log.info("attempt %s to charge order %s: %s", attempt, order.id, error)
                if attempt == self._attempts:
                    raise

    def _invoice(self, order: Order) -> Message:
        """The invoice for an order. A redelivered order gets the same one, because the first may not have been
        written."""
        value = json.dumps({"order": order.id, "customer": order.customer, "cents": order.cents}).encode()
        return Message(self._settings.invoices, order.id.encode(), value, [])

    def _dead_letter(self, record: Record, error: Exception) -> Message:
        """The record unchanged, with the reason and its position in headers."""
        place = f"{record.topic}/{record.partition}@{record.offset}"
        headers = [*record.headers, ("error", str(error).encode()), ("from", place.encode())]
        return Message(self._settings.dead_letters, record.key, record.value, headers)


def _parsed(value: bytes | None) -> Order:
    """Raises ValueError."""
    try:
        fields = json.loads(value or b"")
        return Order(str(fields["id"]), str(fields["customer"]), int(fields["cents"]))
    except (KeyError, TypeError) as error:
        raise ValueError(f"this is not an order: {error!r}") from error
