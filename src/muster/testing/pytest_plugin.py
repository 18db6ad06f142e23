"""The pytest plugin: brokers and clients as fixtures, faults that end with their test, the story of groups in reports.

pytest imports this file in every run, so it does not import the kit until a test uses one of its fixtures.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator

    from muster.testing import async_kit, clients, kit

T = TypeVar("T")

_SECTION = "muster: groups, faults and requests of this test"


def pytest_addoption(parser: pytest.Parser) -> None:
    """The settings in pytest's configuration, and the options."""
    parser.addini("muster_settings", "settings of the test brokers, NAME=VALUE by Kafka's names", type="linelist")
    parser.addini("muster_in_process", "run muster_broker in a thread of the test process", type="bool", default=False)
    parser.addini("muster_brokers", "number of brokers of muster_cluster", type="int", default=3)
    parser.addini("muster_seed", "seed for faults that have a probability", type="int", default=0)
    parser.addini("muster_strict_faults", "fail a test whose fault never struck", type="bool", default=False)
    group = parser.getgroup("muster", "muster, brokers for tests")
    group.addoption(
        "--muster-in-process",
        action="store_true",
        default=None,
        help="run muster_broker in a thread of the test process: it starts sooner, but cannot be killed or frozen",
    )
    group.addoption("--muster-seed", type=int, metavar="N", help="seed for faults that have a probability")
    group.addoption(
        "--muster-strict-faults", action="store_true", default=None, help="fail a test whose fault never struck"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the plugin that manages kits, and exempt muster from assertion rewriting."""
    # pytest rewrites the assertions in all modules of a plugin's distribution. muster's assertions need no explanation
    # in tests, and rewriting would make its first import several times slower.
    rewritten: set[str] = getattr(config.pluginmanager.rewrite_hook, "_must_rewrite", set())
    rewritten.discard("muster")
    config.pluginmanager.register(_Keeper(), "muster-keeper")


class _Keeper:
    """Manages the kits of fixtures between tests.

    A test's own part begins with its first fixture of function scope: what fixtures of wider scopes start before it
    (say, a service that is a member of a group) outlives the test.
    """

    def __init__(self) -> None:
        self._kits: dict[str, kit.Kafka] = {}
        """By the name of the fixture."""
        self._item: pytest.Item | None = None
        self._staying: dict[int, list[tuple[str, str]]] | None = None
        """The members of groups before the test's own part, by the `id` of their kit; None: not known yet."""

    def _used(self, item: pytest.Item) -> list[kit.Kafka]:
        """The kits of a test's fixtures."""
        request = getattr(item, "_request", None)  # it includes fixtures that the test requested with getfixturevalue
        names = getattr(request or item, "fixturenames", ())
        return list({id(one): one for name, one in self._kits.items() if name in names}.values())

    def _begin_own_part(self) -> None:
        if self._item is not None and self._staying is None:
            self._staying = {id(one): one.members() for one in self._used(self._item)}

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, T, T]:
        """A test begins."""
        self._item = item
        self._staying = None
        for one in self._used(item):
            one.begin()
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
    ) -> Generator[None, T, T]:
        """Note the kit that a fixture yields, and whether the test's own part begins."""
        if fixturedef.scope == "function":
            self._begin_own_part()
        value = yield
        if fixturedef.scope != "function":
            self._staying = None  # the test's own part begins after this fixture
        module = sys.modules.get("muster.testing.kit")
        if module is not None and isinstance(value, module.Kafka):
            self._kits[fixturedef.argname] = value
        return value

    @pytest.hookimpl
    def pytest_fixture_post_finalizer(self, fixturedef: pytest.FixtureDef[Any]) -> None:
        """The fixture has ended its kit."""
        self._kits.pop(fixturedef.argname, None)

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, T, T]:
        """Remove the faults of a test that has passed. With strict faults, it fails if one of them never struck."""
        __tracebackhide__ = True  # a report shows the test's own lines
        self._begin_own_part()
        result = yield
        errors: list[str] = []
        for one in self._used(item):
            one.revive()  # a broker that does not answer would keep its faults
            try:
                one.clean_up()
            except AssertionError as error:
                errors.append(str(error))
        if errors:
            pytest.fail("\n".join(errors), pytrace=False)
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Add the story to the report of a test that has failed."""
        report = yield
        if report.failed:
            for one in self._used(item):
                report.sections.append((_SECTION, one.account()))
        return report

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, T, T]:
        """Remove faults before the test's fixtures end, and afterwards the group members that have not left."""
        used, staying = self._used(item), self._staying or {}
        self._item = None
        try:
            for one in used:
                one.heal()
        finally:  # fixtures end even if a broker does not answer
            try:
                result = yield
            finally:
                for one in used:
                    if one in self._kits.values():
                        one.reset(staying.get(id(one), []))
        return result


# ------------------------------------------------------------------------------------------------------------- brokers


def _kit(config: pytest.Config, brokers: int = 1) -> kit.Kafka:
    from muster.testing.kit import Kafka

    def chosen(name: str) -> Any:
        option = config.getoption(name)
        return config.getini(name) if option is None else option

    settings = {}
    for line in config.getini("muster_settings"):
        name, equals, value = line.partition("=")
        if not equals:
            raise pytest.UsageError(f"muster_settings: {line!r} must be NAME=VALUE")
        settings[name.strip()] = value.strip()
    in_process = chosen("muster_in_process") and brokers == 1
    return Kafka(
        settings,
        brokers=brokers,
        in_process=in_process,
        seed=chosen("muster_seed"),
        strict=chosen("muster_strict_faults"),
    )


@pytest.fixture(scope="session")
def muster_broker(pytestconfig: pytest.Config) -> Iterator[kit.Kafka]:
    """A broker that the tests of this process share: a `muster.testing.Kafka`.

    Any client connects to `muster_broker.bootstrap`. Faults end with their test, and members of groups are removed.
    """
    with _kit(pytestconfig) as kafka:
        yield kafka


@pytest.fixture(scope="session")
def muster_cluster(pytestconfig: pytest.Config) -> Iterator[kit.Kafka]:
    """Three brokers on ZooKeeper that the tests of this process share: a `muster.testing.Kafka`. It needs Java."""
    from muster import ConfigError

    with ExitStack() as block:
        try:
            cluster = block.enter_context(_kit(pytestconfig, pytestconfig.getini("muster_brokers")))
        except ConfigError as error:
            pytest.skip(f"muster_cluster cannot run here: {error}")
        yield cluster


@pytest.fixture
def muster_async_broker(request: pytest.FixtureRequest) -> async_kit.AsyncKafka:
    """`muster_broker` for `async def` tests, a `muster.testing.AsyncKafka`: the same methods, awaited."""
    from muster.testing.async_kit import AsyncKafka

    return AsyncKafka.of(_kit_of(request))


def _kit_of(request: pytest.FixtureRequest) -> kit.Kafka:
    """The brokers for a test's topics and clients: those of `muster_cluster` if the test uses that but not
    `muster_broker`."""
    names = request.node.fixturenames
    is_cluster = "muster_cluster" in names and "muster_broker" not in names
    kafka: kit.Kafka = request.getfixturevalue("muster_cluster" if is_cluster else "muster_broker")
    return kafka


# -------------------------------------------------------------------------------------------------- topics and clients


@pytest.fixture
def muster_topic(request: pytest.FixtureRequest) -> clients.TopicFactory:
    """Creates topics with unique names: `muster_topic(partitions=2, records=[b"a"])` returns the name."""
    factory: clients.TopicFactory = _factory(request, "TopicFactory")
    return factory


@pytest.fixture
def muster_admin(request: pytest.FixtureRequest) -> Iterator[clients.AdminFactory]:
    """Makes admin clients, which are closed at the test's end: `muster_admin()`."""
    yield from _closed_at_the_end(request, "AdminFactory")


@pytest.fixture
def muster_producer(request: pytest.FixtureRequest) -> Iterator[clients.ProducerFactory]:
    """Makes producers, which are closed at the test's end: `muster_producer(linger_ms=0)`."""
    yield from _closed_at_the_end(request, "ProducerFactory")


@pytest.fixture
def muster_consumer(request: pytest.FixtureRequest) -> Iterator[clients.ConsumerFactory]:
    """Makes consumers, which are closed at the test's end: `muster_consumer("orders", group_id="billing")`."""
    yield from _closed_at_the_end(request, "ConsumerFactory")


@pytest.fixture
def muster_async_admin(request: pytest.FixtureRequest) -> clients.AsyncAdminFactory:
    """`muster_admin` for `async def` tests."""
    factory: clients.AsyncAdminFactory = _closed_by_test(request, "AsyncAdminFactory")
    return factory


@pytest.fixture
def muster_async_producer(request: pytest.FixtureRequest) -> clients.AsyncProducerFactory:
    """`muster_producer` for `async def` tests."""
    factory: clients.AsyncProducerFactory = _closed_by_test(request, "AsyncProducerFactory")
    return factory


@pytest.fixture
def muster_async_consumer(request: pytest.FixtureRequest) -> clients.AsyncConsumerFactory:
    """`muster_consumer` for `async def` tests."""
    factory: clients.AsyncConsumerFactory = _closed_by_test(request, "AsyncConsumerFactory")
    return factory


def _factory(request: pytest.FixtureRequest, kind: str) -> Any:
    from muster.testing import clients

    return getattr(clients, kind)(_kit_of(request), request.node.name)


def _closed_at_the_end(request: pytest.FixtureRequest, kind: str) -> Iterator[Any]:
    with closing(_factory(request, kind)) as factory:
        yield factory


def _closed_by_test(request: pytest.FixtureRequest, kind: str) -> Any:
    """A factory of asyncio clients. The test function is wrapped to close them, on the event loop that it runs on.

    When the fixture ends, it is too late: anyio has closed the loop by then, and pytest-asyncio in strict mode runs
    only those asynchronous fixtures that are marked as its own.
    """
    test = request.node.obj
    if not inspect.iscoroutinefunction(test):
        raise pytest.UsageError(f"{request.fixturename} is for `async def` tests")
    factory = _factory(request, kind)

    @wraps(test)
    async def closing(*arguments: Any, **more: Any) -> None:
        try:
            await test(*arguments, **more)
        finally:
            await factory.close()

    request.node.obj = closing
    return factory
