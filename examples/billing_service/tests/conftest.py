"""The broker of the tests, and the service with topics of its own for each test."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

import muster.testing
from billing.clients import CLIENTS
from muster.testing import Kafka
from shop import Shop

INSTALLED = [client for client, package in CLIENTS.items() if find_spec(package)]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--client", choices=INSTALLED, help="run the service with this client alone")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "client" in metafunc.fixturenames:
        chosen = metafunc.config.getoption("--client")
        metafunc.parametrize("client", [chosen] if chosen else INSTALLED)


@pytest.fixture(scope="session")
def broker() -> Iterator[Kafka]:
    with muster.testing.kafka() as kafka:
        yield kafka


@pytest.fixture
def kafka(broker: Kafka) -> Iterator[Kafka]:
    yield broker
    broker.clean_up()


@pytest.fixture
def shop(kafka: Kafka, client: str, tmp_path: Path) -> Iterator[Shop]:
    with Shop(kafka, client, tmp_path / "billing.db") as shop:
        yield shop
