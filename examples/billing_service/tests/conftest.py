"""The service with topics of its own for each test. The broker is a fixture of muster's pytest plugin."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from billing.clients import CLIENTS
from muster.testing import Kafka
from shop import Shop

INSTALLED = [client for client, package in CLIENTS.items() if find_spec(package)]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--client", choices=INSTALLED, help="run the service with this client only")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "client" in metafunc.fixturenames:
        chosen = metafunc.config.getoption("--client")
        metafunc.parametrize("client", [chosen] if chosen else INSTALLED)


@pytest.fixture
def kafka(muster_broker: Kafka) -> Kafka:
    return muster_broker


@pytest.fixture
def shop(kafka: Kafka, client: str, tmp_path: Path) -> Iterator[Shop]:
    with Shop(kafka, client, tmp_path / "billing.db") as shop:
        yield shop
