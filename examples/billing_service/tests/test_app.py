"""The HTTP API, served by uvicorn as in production."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from billing.app import Worker, application
from muster.testing import Kafka
from shop import Shop


@contextmanager
def served(kafka: Kafka, shop: Shop, worker: Worker) -> Iterator[str]:
    """The address of the service, while its worker runs."""
    app = application(worker, shop.store)
    server = uvicorn.Server(uvicorn.Config(app, port=0, ws="none", log_level="warning"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        kafka.until(lambda: server.started, "the service to start")
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(60)
        assert not thread.is_alive(), "the server does not stop"


def ask(url: str) -> tuple[int, Any]:
    try:
        with urllib.request.urlopen(url, timeout=30) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def test_the_service_shows_what_it_has_billed(kafka: Kafka, shop: Shop) -> None:
    with served(kafka, shop, shop.worker()) as address:
        assert ask(f"{address}/orders/last") == (200, {"last": None, "billed": 0})
        shop.order("1", "2")
        shop.until_billed(2)
        assert ask(f"{address}/orders/last") == (200, {"last": "2", "billed": 2})
        assert ask(f"{address}/customers/ada") == (200, {"customer": "ada", "cents": 200})
        assert ask(f"{address}/health") == (200, {"status": "ok"})
    kafka.until_empty(shop.group_id)
    assert shop.committed() == {0: 2}


def test_the_service_is_not_healthy_once_its_worker_has_ended(kafka: Kafka, shop: Shop) -> None:
    shop.till.broken = True
    shop.order("1")
    with served(kafka, shop, shop.worker()) as address:
        kafka.until(shop.failed, "the crash")
        status, body = ask(f"{address}/health")
    assert status == 503
    assert "the till is broken" in body["detail"]
