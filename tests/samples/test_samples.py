"""The samples of the README and the docs, run unchanged: each does what the page says about it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import sqlite3
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urlparse

import pytest
from pyarrow import parquet

from tests.support.fake_registry import fake_registry
from tests.support.peers import KafkaBroker, free_ports, require
from tests.support.secure_kafka import PASSWORDS, SecureKafka
from tests.support.token_endpoint import token_endpoint
from tests.support.zookeepers import ZooKeeperServer

pytestmark = pytest.mark.slow(300)

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
EXAMPLES = ROOT / "examples"
REDIRECT = Path(__file__).parent / "redirect"
PATIENCE_S = 300.0
"""Only in case of a hang."""


class Sample(NamedTuple):
    """A block of a page: Python, or the commands after its dollar signs."""

    page: str
    language: str
    text: str

    @property
    def commands(self) -> list[str]:
        return re.findall(r"^\$ (.+)$", self.text, re.MULTILINE)


def samples() -> list[Sample]:
    found = []
    for page in PAGES:
        for language, text in re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL):
            sample = Sample(page.name, language, text)
            if language == "python" or sample.commands:
                found.append(sample)
    return found


def sample(page: str, *words: str) -> Sample:
    """The only sample of a page that contains these words."""
    [found] = [one for one in samples() if one.page == page and all(word in one.text for word in words)]
    return found


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with contextlib.closing(Place(tmp_path)) as place:
        yield place


class Place:
    """A folder in which to run samples, like a newcomer's: `muster` and `python` are those of this environment."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ports = dict(zip((9092, 9093), free_ports(2), strict=True))
        here = os.environ.get("PYTHONPATH")
        self.environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(REDIRECT), *([here] if here else [])]),
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
            "PYTHONUNBUFFERED": "1",
        }
        self._running: list[subprocess.Popen[bytes]] = []
        self._redirect()

    def redirect(self, written: int, real: int) -> None:
        """Redirect programs that are started from now on to a port other than the written one."""
        self._ports[written] = real
        self._redirect()

    def _redirect(self) -> None:
        pairs = ",".join(f"{written}:{real}" for written, real in self._ports.items())
        self.environment["MUSTER_SAMPLE_PORTS"] = pairs

    def for_c(self, program: str) -> str:
        """A program whose client is not Python's: there too, the written port leads to the real one."""
        return re.sub(r"localhost:(\d+)", lambda found: f"localhost:{self._ports[int(found[1])]}", program)

    def start(self, *command: str) -> Callable[[], str]:
        """Start a program in the background; returns a function that returns the output of the program."""
        path = self.folder / f"output-{len(self._running)}"
        with path.open("wb") as output:
            process = subprocess.Popen(
                command,
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._running.append(process)
        return path.read_text

    def wait_for(self, reported: Callable[[], str], pattern: str) -> str:
        """Wait until a program of `start` has printed something."""
        deadline = time.monotonic() + PATIENCE_S
        while not re.search(pattern, reported()):
            ended = [process for process in self._running if process.poll() is not None]
            assert not ended, f"it ended without {pattern!r}:\n{reported()}"
            assert time.monotonic() < deadline, f"no {pattern!r} in:\n{reported()}"
            time.sleep(0.1)
        return reported()

    def run(self, command: str) -> str:
        """Run a line of a shell to its end; returns its output."""
        done = subprocess.run(
            command,
            shell=True,
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def python(self, one: Sample) -> Callable[[], str]:
        """Start a sample as a script."""
        path = self.folder / f"sample_{len(self._running)}.py"
        path.write_text(one.text)
        return self.start(sys.executable, str(path))

    def end_last(self) -> None:
        """Send Ctrl-C to the program that was started last."""
        process = self._running.pop()
        os.killpg(process.pid, signal.SIGINT)
        process.wait(PATIENCE_S)

    def close(self) -> None:
        for process in reversed(self._running):
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def serve(place: Place, *more: str) -> list[str]:
    """The broker as the README starts it; returns the next commands that it shows."""
    first, *others = sample("README.md", "$ muster serve").commands
    place.wait_for(place.start(*first.split(), *more), r"(?m)^muster \S+ ready on ")
    return others


AT_ONCE = ("-o", "group.initial.rebalance.delay.ms=0")
"""For `serve`: a new group waits three seconds for more members, and most samples have none."""


def test_the_readmes_broker_clients_and_commands(place: Place) -> None:
    create, describe = serve(place)
    assert place.run(create) == "Created topic flights.\n"
    place.wait_for(
        place.python(sample("README.md", "Producer(", "for record in consumer")), r"""\d 0 b'\{"carrier": "UA"\}'"""
    )
    reported = place.run(describe)
    assert re.search(r"delays +flights +\d +", reported), reported
    for command in (
        *sample("README.md", "$ muster doctor").commands,
        *sample("history.md", "$ muster doctor").commands,
    ):
        reported = place.run(command)
        assert "started" in reported or reported.startswith("wrote "), reported
    [command] = sample("metrics.md", "$ muster lag").commands
    # The consumer commits every five seconds.
    place.wait_for(lambda: place.run(command), r"delays +\w+ +flights +\d +1 +1 +0 +0\.0")
    place.end_last()


TESTS = [
    sample("testing.md", "def test_billing_reads_each_order("),
    sample("testing.md", "def test_a_commit_whose_answer_is_lost("),
    sample("testing.md", "def test_a_coordinator_that_moves("),
    sample("testing.md", "def test_a_member_that_dies("),
    sample("testing.md", "def test_a_group_on_an_event_loop("),
    sample("testing.md", "class BillingTest("),
    sample("testing.md", "def test_every_order_is_read("),
    sample("testing.md", "def test_a_bad_quarter_of_an_hour("),
    sample("testing.md", "def test_an_incident_is_taken_home("),
]


def test_the_tests_of_the_page_about_tests(place: Place) -> None:
    for number, shown in enumerate(TESTS):
        (place.folder / f"test_{number}.py").write_text(shown.text)
    command = f"{sys.executable} -m pytest -q -p no:cacheprovider -o asyncio_default_fixture_loop_scope=function"
    assert f"{len(TESTS)} passed" in place.run(command)
    assert re.fullmatch(r"127\.0\.0\.1:\d+ orders\n", place.run(f"{sys.executable} test_5.py"))
    assert (place.folder / "data").exists()


def test_the_clusters_test_of_the_page_about_tests(place: Place, java: str) -> None:
    (place.folder / "test_cluster.py").write_text(sample("testing.md", "def test_a_broker_of_three_is_killed(").text)
    assert "1 passed" in place.run(f"{sys.executable} -m pytest -q -p no:cacheprovider")


def test_a_broker_for_tests_in_another_language(place: Place) -> None:
    require("curl", shutil.which("curl"), "Debian: apt-get install curl")
    place.redirect(8474, free_ports(1)[0])
    shown = sample("test-broker.md", "$ muster test-broker")
    start, export, *asks = shown.commands
    reported = place.wait_for(place.start(*shlex.split(start)), r"(?m)^control on ")
    place.environment["TOKEN"] = reported.split()[-1]
    answers = re.findall(r"^(\{.*)$", shown.text, re.MULTILINE)
    for ask, answer in zip(asks, answers, strict=True):
        pattern = ".*".join(map(re.escape, answer.split("…")))
        assert re.fullmatch(pattern, place.run(f"{export}; {place.for_c(ask)}"))
    place.end_last()


@pytest.mark.parametrize(
    "shown",
    [sample("README.md", "muster.testing"), sample("getting-started.md", "muster.testing")],
    ids=lambda shown: shown.page,
)
def test_a_test_with_a_broker_of_its_own(place: Place, shown: Sample) -> None:
    (place.folder / "test_orders.py").write_text(shown.text)
    assert "1 passed" in place.run(f"{sys.executable} -m pytest -q -p no:cacheprovider test_orders.py")


def test_the_first_commands(place: Place) -> None:
    first, *others = sample("getting-started.md", "$ muster serve").commands
    place.wait_for(place.start(*first.removesuffix(" &").split()), r"(?m)^muster \S+ ready on ")
    produce, consume, _groups = others
    place.run(produce)
    assert sorted(place.run(consume).split()) == ["1", "2", "3", "4", "5"]


def test_the_guides_transaction(place: Place) -> None:
    serve(place, *AT_ONCE)
    place.run("muster topics create flights")
    produce = sample("clients.md", "with producer.transaction")
    assert place.run(f"{sys.executable} -c {shlex.quote(produce.text)}") == ""
    assert place.run("muster consume flights --from-beginning --until-end").split() == ["booked", "paid"]


def test_the_guides_clients(place: Place) -> None:
    serve(place, *AT_ONCE)
    place.run("muster topics create flights --partitions 2")
    printed = place.python(sample("clients.md", "RebalanceListener"))
    place.wait_for(printed, r"(?m)^assigned: \[0, 1\]")
    produce, read = sample("clients.md", "future.result"), sample("clients.md", "AsyncConsumer(")
    assert place.run(f"{sys.executable} -c {shlex.quote(produce.text)}") == "0\n"
    place.wait_for(printed, r"""(?m)^\d 0 b'\{"carrier": "UA"\}'""")
    (place.folder / "read.py").write_text(f"{read.text}\nimport asyncio\n\nasyncio.run(read())\n")
    place.wait_for(place.start(sys.executable, "read.py"), r"""(?m)^b'\{"carrier": "UA"\}'""")
    for command in sample("rebalances.md", "$ muster doctor").commands:
        place.run(command.replace("--group delays", "--group reports"))


def test_the_readmes_spark_query(place: Place, java: str) -> None:
    serve(place, *AT_ONCE)
    place.run("muster topics create flights --partitions 8")
    place.run("""echo 'N14228={"carrier": "UA"}' | muster produce flights --key-separator =""")
    reported = place.python(sample("README.md", "muster.spark"))
    done = place.folder / "out" / "_spark_metadata"  # Spark lists a batch's files there once all of them are complete
    deadline = time.monotonic() + PATIENCE_S
    values: list[object] = []
    while not values:
        assert time.monotonic() < deadline, reported()
        time.sleep(0.2)
        for batch in done.glob("[0-9]"):
            files = [unquote(urlparse(json.loads(line)["path"]).path) for line in batch.read_text().splitlines()[1:]]
            values += [value for file in files for value in parquet.read_table(file).column("value").to_pylist()]
    assert values == [b'{"carrier": "UA"}']


def test_a_session_of_spark(place: Place, java: str) -> None:
    serve(place, *AT_ONCE)
    place.run("muster topics create flights --partitions 8")
    place.run("""echo '{"carrier": "UA"}' | muster produce flights""")
    place.run("for topic in carriers carriers-copied carriers-once; do muster topics create $topic; done")
    begin, read = sample("spark.md", "from muster.spark import session"), sample("spark.md", "from_json")
    write, once = sample("spark.md", "rows.write.format"), sample("spark.md", "exactlyOnce")
    end = "query.processAllAvailable()\nquery.stop()\n"
    (place.folder / "sample.py").write_text(
        begin.text + read.text + write.text + end + once.text + end + "spark.stop()\n"
    )
    reported = place.run(f"{sys.executable} sample.py")
    assert re.search(r"\| +UA\|", reported), reported
    assert re.search(r"(?m)^Progress\(query='flights', batch=\d+, .*group='delays-", reported), reported
    for topic in ("carriers-copied", "carriers-once"):
        reported = place.run(f"muster consume {topic} --from-beginning --until-end --format '%k %s\n'")
        assert sorted(reported.split("\n")) == ["", "N14228 UA", "N804JB B6"], topic


def test_a_member_that_speaks_as_the_drafts_did(place: Place) -> None:
    [command] = sample("server-assigned.md", "$ muster serve").commands
    place.wait_for(place.start(*shlex.split(command)), r"(?m)^muster \S+ ready on ")
    place.run("muster topics create flights --partitions 2")
    reported = place.python(sample("server-assigned.md", "ServerAssignedConsumer("))
    await_words(place, reported, "muster groups describe reports-daily --members 2>&1 || true", r"reports-daily .* 2\b")
    place.end_last()


def test_a_consumer_that_zookeeper_coordinates(place: Place, own_zookeeper: ZooKeeperServer) -> None:
    place.redirect(2181, own_zookeeper.port)
    command = "muster serve --zookeeper localhost:2181/kafka --broker-id 1"
    place.wait_for(place.start(*command.split()), r"(?m)^muster \S+ ready on ")
    place.run("muster topics create flights --partitions 2")
    reported = place.python(sample("watchers.md", "WatcherConsumer("))
    owner = "get('/kafka/consumers/delays/owners/flights/1')[0]"
    look = f"from kazoo.client import KazooClient as K; k = K('localhost:2181'); k.start(); print(k.{owner}); k.stop()"
    await_words(place, reported, f'{sys.executable} -c "{look}" 2>&1 || true', r"(?m)^b'delays_")
    place.end_last()


def flights(place: Place) -> None:
    """A broker with four flights in a topic."""
    serve(place, *AT_ONCE)
    place.run("muster topics create flights --partitions 2")
    lines = [json.dumps({"carrier": carrier, "delay": delay}) for carrier, delay in [("UA", 5), ("B6", 7), ("UA", -2)]]
    place.run(f"printf '%s\\n' {shlex.join(lines)} | muster produce flights --partition 0")
    place.run("""echo '{"carrier": "B6", "delay": 1}' | muster produce flights --partition 1""")


@pytest.mark.parametrize(
    ("name", "sums"),
    [
        ("arrow_polars.py", "[('B6', 2, 8), ('UA', 2, 3)]"),
        ("arrow_duckdb.py", "[('B6', 2, 8), ('UA', 2, 3)]"),
        ("arrow_pandas.py", "[('B6', 8), ('UA', 3)]"),
    ],
)
def test_arrow_for_data_frames(place: Place, name: str, sums: str) -> None:
    flights(place)
    place.wait_for(place.start(sys.executable, str(EXAMPLES / name)), re.escape(sums))


def test_many_records_at_a_time(place: Place) -> None:
    flights(place)
    reported = place.python(sample("concurrent.md", "ConcurrentConsumer("))
    # Four threads print at once: a line's key and value may be separated.
    text = place.wait_for(reported, r"(?s)(?:\{.+?\}.*?){4}")
    assert sorted(re.findall(r"\{.+?\}", text))[0].startswith("{'carrier': 'B6',")
    assert text.count("None") == 4
    place.end_last()
    reported = place.start(sys.executable, str(EXAMPLES / "concurrent_async.py"))
    lines = place.wait_for(reported, r"(?:.+\n){4}").splitlines()
    assert sorted(lines) == ["B6 late", "B6 late", "UA late", "UA on time"]
    place.end_last()
    assert "'handled': 4," in reported()
    reported = place.start(sys.executable, str(EXAMPLES / "concurrent_processes.py"))
    lines = place.wait_for(reported, r"(?:.+\n){4}").splitlines()
    assert sorted(line.split()[0] for line in lines) == ["B6", "B6", "UA", "UA"]
    place.end_last()
    assert reported().splitlines() == lines


def test_each_late_flight_is_written_once(place: Place) -> None:
    flights(place)
    place.run("muster topics create late-flights --partitions 1")
    reported = place.start(sys.executable, str(EXAMPLES / "exactly_once.py"))
    place.wait_for(reported, r"flights done")
    place.end_last()
    place.start(sys.executable, str(EXAMPLES / "exactly_once.py"))
    place.run("""echo '{"carrier": "AA", "delay": 3}' | muster produce flights --partition 1""")
    command = "muster consume late-flights --from-beginning -o isolation.level=read_committed"
    reported = place.start(*command.split())
    lines = place.wait_for(reported, r"(?:.+\n){4}").splitlines()
    assert sorted(json.loads(line)["carrier"] for line in lines) == ["AA", "B6", "B6", "UA"]


def test_a_trace_goes_through_kafka(place: Place) -> None:
    serve(place, *AT_ONCE)
    reported = place.run(f"{sys.executable} {EXAMPLES / 'opentelemetry_trace.py'}")
    decoder, spans = json.JSONDecoder(), []
    while (start := reported.find("{")) >= 0:
        span, end = decoder.raw_decode(reported, start)
        spans.append(span)
        reported = reported[end:]
    sent, received = spans
    assert (sent["name"], received["name"]) == ("send traced", "receive traced")
    assert received["parent_id"] == sent["context"]["span_id"]
    assert received["context"]["trace_id"] == sent["context"]["trace_id"]
    assert sent["attributes"] == received["attributes"] == {"messaging.kafka.offset": 0}
    assert reported.strip() == "b'hello'"


TWICE = """
import pathlib, runpy, time

for turn in 1, 2:
    for script in {scripts}:
        runpy.run_path(script, run_name="__main__")
    print("written", turn)
    while not pathlib.Path("again").exists():
        time.sleep(0.1)
"""


def test_each_record_once_where_a_batch_is_run_twice(place: Place, java: str) -> None:
    flights(place)
    scripts = [str(EXAMPLES / name) for name in ("spark_once_parquet.py", "spark_once_sqlite.py")]
    (place.folder / "both.py").write_text(TWICE.format(scripts=scripts))
    reported = place.start(sys.executable, "both.py")
    place.wait_for(reported, "written 1")
    assert rows_written(place) == ([0, 0, 1, 2], [0, 0, 1, 2])
    for name in ("parquet", "sqlite"):
        # As after a crash between the sink's write and Spark's own commit.
        commits = place.folder / "checkpoints" / name / "commits"
        last = max((path for path in commits.iterdir() if path.name.isdecimal()), key=lambda path: int(path.name))
        for path in (last, commits / f".{last.name}.crc"):
            path.unlink(missing_ok=True)
    place.run("""echo '{"carrier": "AA", "delay": 0}' | muster produce flights --partition 1""")
    (place.folder / "again").touch()
    place.wait_for(reported, "written 2")
    assert rows_written(place) == ([0, 0, 1, 1, 2], [0, 0, 1, 1, 2])


def rows_written(place: Place) -> tuple[list[int], list[int]]:
    """The offsets in Parquet and in the database."""
    found: list[Any] = parquet.read_table(place.folder / "flights", partitioning=None).column("offset").to_pylist()
    with contextlib.closing(sqlite3.connect(place.folder / "flights.sqlite")) as database:
        return sorted(found), sorted(row[0] for row in database.execute("select position from flights"))


def test_a_cluster_that_wants_tls_and_a_password(place: Place, secure_kafka: SecureKafka) -> None:
    place.redirect(9093, secure_kafka.ports["BOTH"])
    (place.folder / "ca.pem").write_bytes(secure_kafka.certificates.path("ca").read_bytes())
    page = (ROOT / "docs" / "reference" / "security.md").read_text()
    [properties] = [text for text in re.findall(r"^```properties\n(.*?)^```$", page, re.M | re.S) if "carol" in text]
    (place.folder / "client.properties").write_text(properties)
    place.environment["KAFKA_PASSWORD"] = PASSWORDS["carol"]
    place.run("muster topics create flights --command-config client.properties")
    place.wait_for(place.python(sample("security.md", "Producer(")), r"flights 0")
    [command] = sample("security.md", "$ muster topics list").commands
    assert "flights" in place.run(command)


def test_errors_by_their_root(place: Place) -> None:
    serve(place, *AT_ONCE)
    reported = place.python(sample("errors.md", "except KafkaError"))
    read = "muster consume flights --from-beginning --max-messages 1 --timeout-ms 500 2>&1 || true"
    await_words(place, reported, read, "late")


CLIENTS = ("kafka-python", "aiokafka", "confluent-kafka", "muster", "muster for asyncio")


def every_sample(page: str) -> list[Sample]:
    return [one for one in samples() if one.page == page]


def printed(place: Place, client: str, more: str = "") -> str:
    """The output of those blocks of docs/reference/migrating.md that form one client's program."""
    blocks = every_sample("migrating.md")
    program = "".join(one.text for one in blocks if one.text.startswith(f"# {client}{more}\n"))
    if "await " in program:
        program = "import asyncio\n\nasync def main():\n" + textwrap.indent(program, "    ") + "\nasyncio.run(main())\n"
    (place.folder / "program.py").write_text(place.for_c(program) if client == "confluent-kafka" else program)
    return place.run(f"{sys.executable} -W ignore program.py")


def promised(begin: str) -> str:
    """The output of each program according to docs/reference/migrating.md."""
    page = (ROOT / "docs" / "reference" / "migrating.md").read_text()
    [found] = re.findall(rf"^```\n({begin}: .*?)^```$", page, re.MULTILINE | re.DOTALL)
    return str(found)


def test_the_same_program_in_each_client_prints_the_same(place: Place) -> None:
    serve(place)  # a kafka-python member joins before it knows the topic
    for client in CLIENTS:
        assert printed(place, client) == promised("partitions"), client
        place.run("muster groups delete delays")
    of_clients = tuple(f"# {client}{more}\n" for client in CLIENTS for more in ("", ", secured"))
    assert [one for one in every_sample("migrating.md") if not one.text.startswith(of_clients)] == [
        sample("migrating.md", "class Confluents"),
        sample("migrating.md", "consumer.store_offsets"),
    ]


def test_the_same_settings_of_security_in_each_client(place: Place, secure_kafka: SecureKafka) -> None:
    place.redirect(9093, secure_kafka.ports["BOTH"])
    place.redirect(9094, secure_kafka.ports["MUTUAL"])
    for name in "ca", "client":
        shutil.copy(secure_kafka.certificates.path(name), place.folder)
    place.environment |= {"KAFKA_PASSWORD": PASSWORDS["carol"], "CLIENT_SECRET": "hush"}
    with token_endpoint(secure_kafka.certificates.path("broker")) as endpoint:
        place.redirect(8443, endpoint.port)
        for client in CLIENTS:
            endpoint.asked.clear()
            assert printed(place, client, ", secured") == promised("SCRAM-SHA-512"), client
            assert set(endpoint.asked) == {("muster", "hush")}
            if client.startswith("muster"):
                assert len(endpoint.asked) == 1  # its connections share the token


def test_a_serializer_of_confluents_and_offsets_that_the_program_stores(place: Place) -> None:
    serve(place, *AT_ONCE)
    text = "from confluent's serializer"
    for one, printed in (
        (sample("migrating.md", "class Confluents"), f"{text}\n"),
        (sample("migrating.md", "consumer.store_offsets"), f'b"{text}"\n'),
    ):
        (place.folder / "program.py").write_text(one.text)
        assert place.run(f"{sys.executable} program.py") == printed
    assert re.search(r"stored +notes +0 +1\b", place.run("muster groups describe stored"))


def test_values_with_a_schema_from_a_registry(place: Place) -> None:
    serve(place, *AT_ONCE)
    place.run("muster topics create flights")
    with fake_registry() as registry:
        place.redirect(8081, registry.port)
        reported = place.run(f"{sys.executable} {EXAMPLES / 'schema_registry.py'}")
        # Each schema is requested once.
        assert registry.asked == ["POST /subjects/flights-value/versions", "GET /schemas/ids/1"]
    first, second, third = reported.splitlines()
    assert (first, second) == ("0 Flight {'carrier': 'UA'}", "1 Flight {'carrier': 'B6'}")
    assert third.startswith("set aside: the value of the record at offset 2 of flights-0 cannot be deserialized")
    aside = place.run("muster consume flights-unreadable --from-beginning --max-messages 1")
    assert aside == "written by hand\n"


def test_an_admins_day(place: Place, kafka_broker: KafkaBroker) -> None:
    """On Apache Kafka, which all tests of the run share: the topic and the group have the page's names."""
    place.redirect(9092, kafka_broker.port)
    for one in (
        sample("admin.md", "muster topics alter"),
        sample("admin.md", "muster groups reset-offsets"),
        sample("admin.md", "muster records delete"),
        sample("admin.md", "muster health"),
    ):
        for command, expected in zip(one.commands, re.split(r"(?m)^\$ .+\n", one.text)[1:], strict=True):
            pattern = ".*".join(map(re.escape, expected.split("…")))
            if "describe" in command or "produce" in command or "consume" in command:
                await_words(place, lambda: "", command, rf"\A{pattern}\Z")  # a broker learns of changes a moment later
            else:
                reported = place.run(command)
                assert re.fullmatch(pattern, reported), f"$ {command}\n{reported}"
    place.run("muster topics delete departures && muster groups delete reports")
    reported = place.wait_for(place.python(sample("admin.md", "Admin(")), r"\n\{\}\n")
    assert re.search(r"\{'arrivals': None\}\n\{.*\): 0\}\n\{.*\): None\}\n", reported), reported


def await_words(place: Place, reported: Callable[[], str], command: str, pattern: str) -> None:
    """Repeat a command until its output matches the pattern."""
    deadline = time.monotonic() + PATIENCE_S
    while not re.search(pattern, said := place.run(command)):
        assert time.monotonic() < deadline, f"{said}\n{reported()}"
        time.sleep(0.5)


NOT_RUN: dict[str, str] = {}
"""Samples that no test runs, by their first line, and why."""


def test_no_sample_is_left_out() -> None:
    text = Path(__file__).read_text()
    taken = re.findall(r"sample\(([^)]*)\)", text)
    words = [re.findall(r'"([^"]*)"', arguments) for arguments in taken]
    for one in samples():
        is_run = any(found and found[0] == one.page and all(w in one.text for w in found[1:]) for found in words)
        assert is_run or one.text.splitlines()[0] in NOT_RUN, f"{one.page}: no test runs\n{one.text}"
