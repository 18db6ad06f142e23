"""What the tests of clients share: a broker for each file, and a topic with a group for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from muster.client.net import connection, driver
from tests.support.brokers import beside
from tests.support.numbered_records import World


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with beside(tmp_path_factory.mktemp("broker") / "data") as address:
        yield address


@pytest.fixture
def world(bootstrap: str) -> Iterator[World]:
    found = World(bootstrap)
    with found.admin:
        yield found


@pytest.fixture
def one_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new connection is not checked again after a second: that check would hide missing timers."""
    for module in (connection, driver):
        monkeypatch.setattr(module, "SLOW_MS", 60_000)
