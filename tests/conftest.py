"""Fixtures for every test: the real peers (tests/support/peers.py), and muster (tests/support/brokers.py)."""

from __future__ import annotations

import asyncio
import gc
import os
import shlex
import shutil
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import uvloop
from hypothesis import HealthCheck, settings

from muster.broker.broker import Broker
from tests.support import brokers, peers, scale, zookeepers
from tests.support.limits import limit_quick_tests
from tests.support.order import slow_first

if TYPE_CHECKING:
    from tests.support.postgres import PostgresServer
    from tests.support.secure_kafka import SecureKafka

# A shell's `&` and nohup make a process ignore SIGINT, and every process that a test starts would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda *_: None)  # ignored in this process, but not in those that it starts


# Every Spark that a test starts, in any process, has these JVM options.
if not scale.is_quick():
    os.environ.setdefault("SPARK_SUBMIT_OPTS", shlex.join(peers.spark_java_options()))

# Hypothesis should find bugs, not how busy the machine is: a process that is held up for 200 ms has not failed.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("quick", settings.get_profile("untimed"), max_examples=10)
settings.load_profile("quick" if scale.is_quick() else "untimed")


# A test that asks for one of these needs more than Python: `make quick` leaves it out.
OTHERS = {"chromium", "java", "kcat", "postgres", "kafka_broker", "kafka_cluster", "secure_kafka"}
OTHERS |= {"zookeeper", "own_zookeeper", "transactional_kafka"}


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark the tests that need other programs."""
    if OTHERS.intersection(getattr(item, "fixturenames", ())):
        item.add_marker("peers")


def pytest_configure() -> None:
    """Draw the run's own seeds before the workers start, which must all collect the same tests."""
    scale.first_fresh_seed()


def pytest_asyncio_loop_factories(item: pytest.Item) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The event loops that a test runs on: asyncio's own, and uvloop's too if it has the mark `any_loop`."""
    if item.get_closest_marker("any_loop") is None:
        return {"asyncio": asyncio.new_event_loop}
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest.hookimpl(trylast=True)  # after those that shuffle
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let each worker end with quick tests, some of which it can hand over."""
    items[:] = slow_first(items, int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))
    limit_quick_tests(items)


def pytest_collection_finish() -> None:
    """Exclude the collected tests, which stay in memory to the end, from full garbage collections."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def handlers_of_python() -> Iterator[None]:
    """Restore the signal handlers. A command that ends ignores signals from then on, and every process that later tests
    start would inherit that; a Spark session that is shared by tests has a handler for Ctrl-C, and muster does not
    replace a program's handlers."""
    handlers: dict[int, Any] = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    for number, handler in handlers.items():
        signal.signal(number, handler)
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


def pytest_report_header() -> str:
    """Shown when the run begins."""
    return f"simulations: this run's own seeds begin at {scale.first_fresh_seed()}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Shown when the run fails, because -q hides the header; also the results of the schedules of kills."""
    for reports in terminalreporter.stats.values():
        for report in reports:
            for name, told in getattr(report, "user_properties", ()):
                if name == "soak" and report.when == "call":
                    terminalreporter.write_line(told)
    if terminalreporter.stats.get("failed"):
        terminalreporter.write_line(pytest_report_header())


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all workers of this test run share, but no other run."""
    folder = tmp_path_factory.getbasetemp()
    return folder.parent if os.environ.get("PYTEST_XDIST_WORKER") else folder


@pytest.fixture(scope="session")
def kafka_broker(run_folder: Path) -> Iterator[peers.KafkaBroker]:
    """Apache Kafka 4.2 on a free port, shared by all tests of the run: give topics and groups names that no other test
    uses, and change neither the brokers' settings nor the group with the empty name."""
    with peers.shared_kafka(run_folder / "kafka") as broker:
        yield broker


@pytest.fixture(scope="session")
def transactional_kafka(run_folder: Path) -> Iterator[peers.KafkaBroker]:
    """Like `kafka_broker`, for tests that commit offsets in transactions: while one of these is open, readers of stable
    records see nothing of other tests' groups in that partition of `__consumer_offsets`."""
    with peers.shared_kafka(run_folder / "transactional-kafka") as broker:
        yield broker


@pytest.fixture(scope="session")
def kafka_cluster(run_folder: Path) -> Iterator[peers.KafkaCluster]:
    """Three brokers of Apache Kafka 4.2 as one cluster, shared by all tests of the run, which must not stop a node."""
    with peers.shared_kafka_cluster(run_folder / "kafka-cluster") as cluster:
        yield cluster


@pytest.fixture(scope="session")
def secure_kafka(run_folder: Path) -> Iterator[SecureKafka]:
    """Apache Kafka 4.2 whose ports require TLS, SASL or both, shared by all tests of the run."""
    from tests.support.secure_kafka import shared_secure_kafka

    with shared_secure_kafka(run_folder / "secure-kafka") as kafka:
        yield kafka


@pytest.fixture(scope="session")
def zookeeper(run_folder: Path) -> Iterator[zookeepers.ZooKeeperServer]:
    """Apache ZooKeeper on a free port, shared by all tests of the run: `chroot` is a folder for only this test."""
    with zookeepers.shared_zookeeper(run_folder / "zookeeper") as server:
        yield server


@pytest.fixture
def own_zookeeper(tmp_path: Path) -> Iterator[zookeepers.ZooKeeperServer]:
    """Apache ZooKeeper for a test that freezes or kills it."""
    with zookeepers.ZooKeeperServer(tmp_path / "zookeeper") as server:
        yield server


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    """PostgreSQL on a free port, shared by the tests of this worker: `database` is a database for only this test."""
    from tests.support.postgres import PostgresServer

    with PostgresServer(tmp_path_factory.mktemp("postgres")) as server:
        yield server


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


@pytest.fixture
async def muster_broker(tmp_path: Path) -> AsyncIterator[Broker]:
    """muster's broker on the test's event loop, with a folder of its own."""
    async with brokers.running(tmp_path / "data") as broker:
        yield broker


@pytest.fixture
def muster_process(tmp_path: Path) -> Iterator[brokers.BrokerProcess]:
    """`muster serve` in a process of its own, started; it can be killed and started again."""
    with brokers.BrokerProcess(tmp_path / "data") as process:
        yield process


@pytest.fixture(scope="session")
def shared_muster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[brokers.BrokerProcess]:
    """`muster serve` shared by the tests of this worker: give topics and groups names that no other test uses."""
    with brokers.BrokerProcess(tmp_path_factory.mktemp("muster") / "data") as process:
        yield process
