"""Fixtures that every test may ask for: the real peers (tests/support/peers.py)."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import peers


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all workers of this test run share, and no other run."""
    folder = tmp_path_factory.getbasetemp()
    return folder.parent if os.environ.get("PYTEST_XDIST_WORKER") else folder


@pytest.fixture(scope="session")
def kafka_broker(run_folder: Path) -> Iterator[peers.KafkaBroker]:
    """Apache Kafka 4.2 on a free port, shared by all tests of the run: name topics and groups for the test alone."""
    with peers.shared_kafka(run_folder / "kafka") as broker:
        yield broker


@pytest.fixture(scope="session")
def java() -> str:
    """A java command of 17 or newer."""
    return peers.require("Java 17 or newer", peers.find_java(), "Debian: apt-get install openjdk-17-jre-headless")


@pytest.fixture(scope="session")
def kcat() -> str:
    """The kcat command."""
    return peers.require("kcat", shutil.which("kcat") or shutil.which("kafkacat"), "Debian: apt-get install kcat")


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> peers.Chromium:
    """A real browser to open pages in."""
    found = peers.require("Chromium", peers.find_chromium(), "Debian: apt-get install chromium")
    return peers.Chromium(found, tmp_path_factory.mktemp("chromium"))
