"""The service as a program: its HTTP API, and the thread that reads orders.

uvicorn --factory billing.app:from_environment
"""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from threading import Event, Thread

from fastapi import FastAPI, HTTPException

from billing.clients import Run, runner
from billing.service import Billing, Settings
from billing.store import Order, Store

log = logging.getLogger(__name__)


class Worker:
    """Reads orders in a thread, from `start` to `stop`."""

    def __init__(self, run: Run, settings: Settings, billing: Billing) -> None:
        self.error: BaseException | None = None
        self.stopping = Event()
        self._run = run
        self._settings = settings
        self._billing = billing
        self._thread = Thread(target=self._work, name="billing", daemon=True)

    @property
    def has_ended(self) -> bool:
        """Whether it has stopped reading orders."""
        return self._thread.ident is not None and not self._thread.is_alive()

    def start(self) -> None:
        """Begin to read orders."""
        self._thread.start()

    def stop(self) -> None:
        """Finish the current order, commit, and leave the group. Wait at most 30 s for that."""
        self.stopping.set()
        if self._thread.ident is not None:
            self._thread.join(30)

    def _work(self) -> None:
        try:
            self._run(self._settings, self._billing.handle, self.stopping)
        except BaseException as error:
            log.exception("the service has failed")
            self.error = error


def application(worker: Worker, store: Store) -> FastAPI:
    """The HTTP API. Its worker runs as long as it does."""

    @asynccontextmanager
    async def working(app: FastAPI) -> AsyncIterator[None]:
        worker.start()
        yield
        worker.stop()

    app = FastAPI(title="billing", lifespan=working)

    @app.get("/health")
    def health() -> dict[str, str]:
        """503 when the worker has ended, so that the orchestrator restarts the service."""
        if worker.has_ended:
            raise HTTPException(503, f"orders are not read: {worker.error!r}")
        return {"status": "ok"}

    @app.get("/orders/last")
    def last_order() -> dict[str, str | int | None]:
        """The order that was billed last, and how many there are."""
        billed = store.billed()
        return {"last": billed[-1] if billed else None, "billed": len(billed)}

    @app.get("/customers/{customer}")
    def customer(customer: str) -> dict[str, str | int]:
        """What a customer owes."""
        return {"customer": customer, "cents": store.balance(customer)}

    return app


def from_environment() -> FastAPI:
    """The service, configured by environment variables."""
    environment = os.environ
    settings = Settings(bootstrap=environment.get("KAFKA_BOOTSTRAP", "localhost:9092"))
    store = Store(Path(environment.get("BILLING_DATABASE", "billing.db")))
    worker = Worker(
        runner(environment.get("KAFKA_CLIENT", "muster")), settings, Billing(settings, store, _charge_nothing)
    )
    return application(worker, store)


def _charge_nothing(order: Order) -> None:
    """A substitute for a payment provider."""
