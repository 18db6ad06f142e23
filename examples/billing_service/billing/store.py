"""The billed orders, in SQLite."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

_SCHEMA = """
CREATE TABLE IF NOT EXISTS bills (order_id TEXT PRIMARY KEY, customer TEXT NOT NULL, cents INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS balances (customer TEXT PRIMARY KEY, cents INTEGER NOT NULL);
"""


class Order(NamedTuple):
    """An order, as the topic has it."""

    id: str
    customer: str
    cents: int


class Store:
    """The bills, and what each customer owes. Any thread can use it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with self._transaction() as database:
            database.executescript(_SCHEMA)

    def bill(self, order: Order) -> bool:
        """Bill an order. False if it was billed before: Kafka may deliver a record again."""
        with self._transaction() as database:
            added = database.execute("INSERT INTO bills VALUES (?, ?, ?) ON CONFLICT DO NOTHING", order).rowcount
            if added:
                database.execute(
                    "INSERT INTO balances VALUES (?, ?)"
                    " ON CONFLICT (customer) DO UPDATE SET cents = cents + excluded.cents",
                    (order.customer, order.cents),
                )
        return bool(added)

    def is_billed(self, order_id: str) -> bool:
        """Whether an order is billed."""
        with self._transaction() as database:
            return database.execute("SELECT 1 FROM bills WHERE order_id = ?", (order_id,)).fetchone() is not None

    def billed(self) -> list[str]:
        """The ids of the orders that are billed, in the order of their billing."""
        with self._transaction() as database:
            return [order_id for (order_id,) in database.execute("SELECT order_id FROM bills ORDER BY rowid")]

    def balance(self, customer: str) -> int:
        """What a customer owes, in cents."""
        with self._transaction() as database:
            found = database.execute("SELECT cents FROM balances WHERE customer = ?", (customer,)).fetchone()
        return found[0] if found else 0

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        connection = sqlite3.connect(self._path, timeout=30)
        try:
            with connection:
                yield connection
        finally:
            connection.close()
