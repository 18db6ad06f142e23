"""The service with its surroundings: topics, a payment provider, and one process after another (here each is a
thread)."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from billing.app import Worker
from billing.clients import runner
from billing.service import Billing, PaymentError, Settings
from billing.store import Order, Store
from muster import Producer
from muster.testing import Kafka

_NUMBERS = count(1)


class Till:
    """A payment provider that does what a test wants of it."""

    def __init__(self) -> None:
        self.charged: list[str] = []
        """The order of each call."""
        self.refuse: dict[str, int] = {}
        """How many more times it refuses an order."""
        self.broken = False
        """Whether it raises an error that the service does not expect."""
        self._held: dict[str, tuple[threading.Event, threading.Event]] = {}

    def hold(self, order_id: str) -> None:
        """Do not answer for this order from now on."""
        self._held[order_id] = threading.Event(), threading.Event()

    def until_held(self, order_id: str) -> None:
        """Return when it has been asked for the order that it holds."""
        assert self._held[order_id][0].wait(30), f"order {order_id} was not charged"

    def release(self) -> None:
        """Answer, and hold nothing from now on."""
        for _, released in self._held.values():
            released.set()

    def __call__(self, order: Order) -> None:
        self.charged.append(order.id)
        if self.broken:
            raise RuntimeError("the till is broken")
        if order.id in self._held:
            reached, released = self._held[order.id]
            reached.set()
            assert released.wait(30), f"order {order.id} was held for too long"
        if self.refuse.get(order.id, 0) > 0:
            self.refuse[order.id] -= 1
            raise PaymentError("no funds")


class Shop:
    """The topics and the database of one test, and the workers that share them."""

    def __init__(self, kafka: Kafka, client: str, database: Path) -> None:
        self.kafka = kafka
        self.group_id = f"billing-{next(_NUMBERS)}"
        self.orders = kafka.topic(partitions=2)
        self.invoices = kafka.topic()
        self.dead_letters = kafka.topic()
        self.store = Store(database)
        self.till = Till()
        self.workers: list[Worker] = []
        self._run = runner(client)
        self._settings = Settings(
            kafka.bootstrap,
            self.orders,
            self.invoices,
            self.dead_letters,
            self.group_id,
            commit_interval_s=0,
            heartbeat_interval_s=0.1,
        )

    def worker(self, client_id: str = "worker", till: Till | None = None, **changes: Any) -> Worker:
        """A worker, not started yet. `changes` are changes to its settings."""
        settings = replace(self._settings, client_id=client_id, **changes)
        worker = Worker(self._run, settings, Billing(settings, self.store, till or self.till))
        self.workers.append(worker)
        return worker

    def start(self, client_id: str = "worker", till: Till | None = None, **changes: Any) -> Worker:
        """Start a worker."""
        worker = self.worker(client_id, till, **changes)
        worker.start()
        return worker

    def order(self, *ids: str, partition: int = 0) -> None:
        """Write orders of 100 cents by customer ada."""
        for order_id in ids:
            self.write(json.dumps({"id": order_id, "customer": "ada", "cents": 100}).encode(), partition=partition)

    def write(self, value: bytes, **more: Any) -> None:
        """Write a record to the orders."""
        with Producer(bootstrap_servers=self.kafka.bootstrap, client_id="customers") as producer:
            producer.send(self.orders, value, **more)

    def until_billed(self, number: int) -> None:
        """Return when this many orders are billed. Fails immediately if a worker has ended without being stopped."""
        self.kafka.until(lambda: len(self.store.billed()) >= number or self.failed(), f"{number} bills")
        assert not self.failed(), self.failed()

    def failed(self) -> list[BaseException | str]:
        """Why workers have ended."""
        return [
            each.error or "the worker ended without being stopped"
            for each in self.workers
            if each.has_ended and not (each.stopping.is_set() and each.error is None)
        ]

    def committed(self) -> dict[int, int]:
        """The group's offsets, by partition."""
        offsets = self.kafka.group(self.group_id).now()["offsets"].get(self.orders, {})
        return {int(partition): offset for partition, offset in offsets.items()}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.till.release()
        for worker in self.workers:
            worker.stop()
            assert worker.has_ended, "the worker does not stop"
