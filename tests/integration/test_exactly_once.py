"""Read, process and write in transactions, with Kafka's own programs, while they and the broker are killed: each input
record has its effect exactly once in what a read_committed consumer sees."""

from __future__ import annotations

import contextlib
import random
import subprocess
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from muster import Admin, Consumer, Producer
from muster.client.core.admin.admin import NewTopic
from muster.model import TopicPartition
from tests.support.brokers import BrokerProcess
from tests.support.mirror_maker import MirrorMaker
from tests.support.peers import PEERS, fetched_jars, java_command, kafka_classpath

pytestmark = pytest.mark.slow(60)

STREAMS_VERSION = "4.2.0"
LATEST_S = 600.0
QUICK = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": 200}
WORDS = [f"word-{number}" for number in range(12)]


class Programs:
    """Kafka's own programs, each of which is killed at the end."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, classpath: str, program: str, *arguments: str) -> None:
        options = [f"-Dlog4j2.configurationFile={PEERS / 'kafka' / 'log4j2.xml'}", "-cp", classpath]
        with (self._folder / f"{name}.out").open("ab") as out:
            self.running[name] = subprocess.Popen(
                [*java_command(options), program, *arguments], stdin=subprocess.PIPE, stdout=out, stderr=out
            )

    def kill(self, name: str) -> None:
        with self.running.pop(name) as process:
            process.kill()

    def said(self) -> str:
        return "\n".join(f"{path.name}: {path.read_text()[-2_000:]}" for path in self._folder.glob("*.out"))


@pytest.fixture
def programs(tmp_path: Path) -> Iterator[Programs]:
    found = Programs(tmp_path)
    yield found
    for name in list(found.running):
        found.kill(name)


def create(bootstrap: str, partitions: int, *topics: str) -> None:
    with Admin(bootstrap_servers=bootstrap) as admin:
        admin.create_topics([NewTopic(topic, partitions) for topic in topics])


def produce(bootstrap: str, topic: str, values: Sequence[str], partitions: int) -> None:
    with Producer(bootstrap_servers=bootstrap) as producer:
        for number, value in enumerate(values):
            producer.send(topic, value.encode(), partition=number % partitions)


class Reader:
    """What a read_committed consumer has seen of a topic, by partition."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        self.seen: dict[int, list[tuple[str | None, str]]] = defaultdict(list)
        self._consumer = Consumer(
            bootstrap_servers=bootstrap,
            isolation_level="read_committed",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
        self._consumer.assign([TopicPartition(topic, number) for number in range(partitions)])

    def read(self) -> int:
        for place, records in self._consumer.poll(500).items():
            self.seen[place.partition] += [
                (None if r.key is None else r.key.decode(), (r.value or b"").decode()) for r in records
            ]
        return sum(map(len, self.seen.values()))

    def until(self, count: int, said: Callable[[], str]) -> None:
        """Read until there are this many records."""
        latest = time.monotonic() + LATEST_S
        while (read := self.read()) < count:
            assert time.monotonic() < latest, f"{read} of {count} records:\n{said()}"

    def close(self) -> None:
        self._consumer.close()


@contextlib.contextmanager
def reading(bootstrap: str, topic: str, partitions: int) -> Iterator[Reader]:
    reader = Reader(bootstrap, topic, partitions)
    try:
        yield reader
    finally:
        reader.close()


def test_streams_counts_each_word_once_while_instances_and_the_broker_are_killed(
    tmp_path: Path, java: str, programs: Programs
) -> None:
    """Every count of a word comes once, in order: 1, 2, 3 … A word counted twice, an aborted count that is read, or
    state that does not match the committed offsets would show as a gap or a repetition."""
    broker = BrokerProcess(tmp_path / "data", QUICK)
    choose = random.Random(1)
    words = [choose.choice(WORDS) for _ in range(6_000)]
    part = len(words) // 4

    def start(name: str) -> None:
        settings = {
            "application.id": "count",
            "bootstrap.servers": broker.bootstrap,
            "processing.guarantee": "exactly_once_v2",
            "commit.interval.ms": "100",
            "num.stream.threads": "1",
            "state.dir": str(tmp_path / name),
            "main.consumer.session.timeout.ms": "6000",
            "consumer.auto.offset.reset": "earliest",
            "producer.transaction.timeout.ms": "10000",
        }
        given = [f"{key}={value}" for key, value in settings.items()]
        program = str(PEERS / "streams" / "WordCount.java")
        programs.start(name, f"{fetched_jars('streams', STREAMS_VERSION)}/*", program, "words", "counts", *given)

    with broker:
        create(broker.bootstrap, 3, "words", "counts")
        start("a")
        start("b")
        with reading(broker.bootstrap, "counts", 3) as reader:
            produce(broker.bootstrap, "words", words[:part], 3)
            reader.until(part // 2, programs.said)
            programs.kill("a")
            produce(broker.bootstrap, "words", words[part : 2 * part], 3)
            start("c")
            reader.until(part + part // 2, programs.said)
            broker.kill()
            broker.start()
            produce(broker.bootstrap, "words", words[2 * part : 3 * part], 3)
            reader.until(2 * part + part // 2, programs.said)
            programs.kill("b")
            broker.kill()
            broker.start()
            produce(broker.bootstrap, "words", words[3 * part :], 3)
            reader.until(len(words), programs.said)
            reader.read()
    counts: dict[str | None, list[int]] = defaultdict(list)
    for records in reader.seen.values():
        for word, count in records:
            counts[word].append(int(count))
    assert counts == {word: list(range(1, count + 1)) for word, count in Counter(words).items()}


def test_copiers_copy_each_record_once_while_they_and_the_broker_are_killed(
    tmp_path: Path, java: str, programs: Programs
) -> None:
    """Like Kafka's system test of transactions: two TransactionalMessageCopiers in one group, which abort at random."""
    broker = BrokerProcess(tmp_path / "data", QUICK)
    numbers = [str(number) for number in range(20_000)]
    partitions = 4

    def start(name: str, transactional_id: str) -> None:
        programs.start(
            name,
            kafka_classpath(),
            "org.apache.kafka.tools.TransactionalMessageCopier",
            *("--broker-list", broker.bootstrap, "--input-topic", "input", "--input-partition", "0"),
            *("--output-topic", "output", "--consumer-group", "copiers", "--transactional-id", transactional_id),
            *("--transaction-size", "200", "--transaction-timeout", "60000", "--enable-random-aborts"),
            *("--group-mode", "--use-group-metadata"),
        )

    def again(old: str, new: str, transactional_id: str) -> Callable[[], None]:
        def act() -> None:
            programs.kill(old)
            start(new, transactional_id)

        return act

    def restart() -> None:
        broker.kill()
        broker.start()

    with broker:
        create(broker.bootstrap, partitions, "input", "output")
        produce(broker.bootstrap, "input", numbers, partitions)
        start("a", "copier-1")
        start("b", "copier-2")
        with reading(broker.bootstrap, "output", partitions) as reader:
            acts = [again("a", "c", "copier-1"), restart, again("b", "d", "copier-2"), restart]
            for number, act in enumerate(acts, 1):
                reader.until(number * len(numbers) // 6, programs.said)
                act()
            reader.until(len(numbers), programs.said)
            reader.read()
    copied = Counter(value for records in reader.seen.values() for _, value in records)
    assert copied == Counter(numbers)


def test_mirror_maker_copies_each_record_once_while_it_and_both_brokers_are_killed(tmp_path: Path, java: str) -> None:
    """Its `exactly.once.source.support` writes copies and the offsets up to which it has read in one transaction."""
    numbers = [str(number) for number in range(9_000)]
    part = len(numbers) // 3
    settings = {
        "dedicated.mode.enable.internal.rest": "true",
        "listeners": "http://127.0.0.1:0",
        "left.exactly.once.source.support": "enabled",
        "right.exactly.once.source.support": "enabled",
        "right.producer.transaction.timeout.ms": "60000",
    }
    with BrokerProcess(tmp_path / "left", QUICK) as left, BrokerProcess(tmp_path / "right", QUICK) as right:
        sides = {"left": left.bootstrap, "right": right.bootstrap}

        def mirror() -> MirrorMaker:
            return MirrorMaker(tmp_path, sides, [("left", "right")], topics="input", groups="none", more=settings)

        create(left.bootstrap, 2, "input")
        create(right.bootstrap, 2, "left.input")
        produce(left.bootstrap, "input", numbers[:part], 2)
        with reading(right.bootstrap, "left.input", 2) as reader:
            with mirror() as running:
                reader.until(part // 2, running.log)
            with mirror() as running:
                produce(left.bootstrap, "input", numbers[part : 2 * part], 2)
                reader.until(part + part // 2, running.log)
                right.kill()
                right.start()
                produce(left.bootstrap, "input", numbers[2 * part :], 2)
                reader.until(2 * part + part // 2, running.log)
                left.kill()
                left.start()
            with mirror() as running:
                reader.until(len(numbers), running.log)
                reader.read()
    copied = Counter(value for records in reader.seen.values() for _, value in records)
    assert copied == Counter(numbers)
