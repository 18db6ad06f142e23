"""Many records handled at a time, on muster and on Apache Kafka: order, dead letters, rebalances, kills, the end."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from muster import Admin, Consumer, Producer
from muster.client.concurrent import AsyncConcurrentConsumer, ConcurrentConsumer, HandlerFailedError, Retry
from muster.client.core.concurrent.encoding import decode
from muster.errors import IllegalStateError, KafkaError, RecordDeserializationError
from muster.model import ConsumerRecord, TopicPartition
from tests.support import concurrent_app
from tests.support.faces import PATIENCE_S, Cluster, read

pytestmark = pytest.mark.slow

APP = Path(concurrent_app.__file__)
PARTITIONS = 3
STUCK_S = 600.0

Place = tuple[int, int]
"""Partition and offset."""


@pytest.fixture
def muster(shared_muster):
    """For tests of our own processes, which behave the same with every broker."""
    return Cluster(shared_muster.bootstrap)


def produce(cluster: Cluster, topic: str, keys: list[str | None]) -> None:
    """Records with these keys; their values count up."""
    with Producer(bootstrap_servers=cluster.bootstrap) as producer:
        for number, key in enumerate(keys):
            producer.send(topic, b"%d" % number, None if key is None else key.encode())


def some_keys(count: int, keys: int = 40) -> list[str | None]:
    return [f"k{number % keys}" for number in range(count)]


def wait_until(condition: Any) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


class Book:
    """The records that handlers of this process have done, by key."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.done: dict[bytes | None, list[int]] = defaultdict(list)
        self.at_work: set[bytes | None] = set()
        self.overlaps = 0
        self.most = 0
        self.count = 0

    def begin(self, record: ConsumerRecord) -> None:
        with self.lock:
            self.overlaps += record.key is not None and record.key in self.at_work
            self.at_work.add(record.key)
            self.most = max(self.most, len(self.at_work))

    def end(self, record: ConsumerRecord) -> None:
        with self.lock:
            self.at_work.discard(record.key)
            self.done[record.key].append(int(record.value or b"-1"))
            self.count += 1

    def check(self, count: int) -> None:
        assert not self.overlaps
        assert all(numbers == sorted(set(numbers)) for numbers in self.done.values()), self.done
        assert sum(map(len, self.done.values())) == count


def running(consumer: ConcurrentConsumer) -> threading.Thread:
    thread = threading.Thread(target=consumer.run)
    thread.start()
    return thread


def lag(cluster: Cluster, topic: str, count: int = PARTITIONS) -> int:
    """The records that the group has not committed; metadata must have disappeared as well."""
    partitions = [TopicPartition(topic, number) for number in range(count)]
    with Consumer(cluster.settings()) as consumer:
        ends = consumer.end_offsets(partitions)
        committed = consumer.committed(partitions)
    assert all(found is None or not found.metadata for found in committed.values()), committed
    return sum(ends[p] - (0 if found is None else found.offset) for p, found in committed.items())


# --- one process -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("face", ["threads", "async"])
def test_each_key_in_order_and_many_at_a_time(cluster, face):
    topic, book = cluster.topic(PARTITIONS), Book()
    produce(cluster, topic, some_keys(600))
    settings = cluster.settings()
    consumer: Any

    def ended(record: ConsumerRecord) -> None:
        book.end(record)
        if book.count == 600:
            consumer.stop()

    def handle(record: ConsumerRecord) -> None:
        book.begin(record)
        wait_until(lambda: book.most > 4)  # however slowly the machine hands out the first ones
        time.sleep(0.005)
        ended(record)

    async def handle_async(record: ConsumerRecord) -> None:
        book.begin(record)
        async with asyncio.timeout(PATIENCE_S):
            while book.most <= 4:
                await asyncio.sleep(0.005)
        await asyncio.sleep(0.005)
        ended(record)

    if face == "threads":
        consumer = ConcurrentConsumer(settings, handle, topics=topic, concurrency=16)
        consumer.run()
    else:
        consumer = AsyncConcurrentConsumer(settings, handle_async, topics=[topic], concurrency=16)
        asyncio.run(consumer.run())
    book.check(600)
    assert 4 < book.most <= 16
    assert consumer.metrics()["handled"] == 600
    assert lag(cluster, topic) == 0


def test_a_record_that_fails_waits_for_another_try_and_others_go_on(muster):
    topic, book, failures = muster.topic(PARTITIONS), Book(), Counter[bytes | None]()
    produce(muster, topic, ["bad", *some_keys(30), "bad"])

    def handle(record: ConsumerRecord) -> None:
        if record.key == b"bad" and failures[record.key] < 3:
            failures[record.key] += 1
            assert record.value == b"0"
            raise ValueError("not yet")
        book.begin(record)
        book.end(record)
        if book.count == 32:
            consumer.stop()

    consumer = ConcurrentConsumer(muster.settings(), handle, topics=topic, retry=Retry(delay_ms=100))
    consumer.run()
    book.check(32)
    assert consumer.metrics()["failed_attempts"] == 3
    assert lag(muster, topic) == 0


def test_what_fails_for_good_goes_to_the_dead_letters(cluster):
    topic, dead = cluster.topic(PARTITIONS), cluster.topic(1)
    produce(cluster, topic, ["good", "bad", "good", None])

    def handle(record: ConsumerRecord) -> None:
        if record.key == b"bad":
            raise ValueError("never")

    settings = cluster.settings()
    retry = Retry(max_attempts=3, delay_ms=10)
    consumer = ConcurrentConsumer(settings, handle, topics=topic, retry=retry, dead_letter_topic=dead)
    thread = running(consumer)
    wait_until(lambda: consumer.metrics()["handled"] == 3 and consumer.metrics()["dead_lettered"] == 1)
    consumer.stop()
    thread.join()
    with cluster.consumer("sync", group_id=f"{cluster.group}-dead") as reader:
        reader.subscribe([dead])
        [letter] = read(reader, 1)
    headers = dict(letter.headers)
    assert (letter.key, letter.value) == (b"bad", b"1")
    assert headers["__muster.errors.topic"] == topic.encode()
    assert headers["__muster.errors.attempts"] == b"3"
    assert headers["__muster.errors.group"] == cluster.group.encode()
    assert headers["__muster.errors.exception"] == b"ValueError"
    assert headers["__muster.errors.message"] == b"never"
    assert b'raise ValueError("never")' in (headers["__muster.errors.stacktrace"] or b"")
    assert lag(cluster, topic) == 0


@pytest.mark.parametrize("face", ["threads", "async"])
def test_what_cannot_be_deserialized_goes_to_the_dead_letters_as_it_came(muster, face):
    """Two keys that are deserialized to the same value are still two keys: the order is by bytes."""
    topic, dead, seen = muster.topic(1), muster.topic(1), list[Any]()
    produce(muster, topic, ["a", "A", "bad", "a"])
    gate = threading.Event()
    consumer: Any

    def key(data: bytes) -> str:
        return {b"a": "a", b"A": "a"}[data]

    def handle(record: ConsumerRecord) -> None:
        if record.value == 0:
            assert gate.wait(PATIENCE_S)
        seen.append((record.key, record.value))
        gate.set()

    async def handle_async(record: ConsumerRecord) -> None:
        await asyncio.to_thread(handle, record)

    settings: Any = {"topics": topic, "dead_letter_topic": dead, "key_deserializer": key, "value_deserializer": int}
    if face == "threads":
        consumer = ConcurrentConsumer(muster.settings(), handle, **settings)
        thread = running(consumer)
    else:
        consumer = AsyncConcurrentConsumer(muster.settings(), handle_async, **settings)
        thread = threading.Thread(target=lambda: asyncio.run(consumer.run()))
        thread.start()
    wait_until(lambda: consumer.metrics()["handled"] == 3 and consumer.metrics()["dead_lettered"] == 1)
    consumer.stop()
    thread.join()
    assert seen == [("a", 1), ("a", 0), ("a", 3)]
    assert consumer.metrics()["failed_attempts"] == 1
    with muster.consumer("sync", group_id=f"{muster.group}-dead") as reader:
        reader.subscribe([dead])
        [letter] = read(reader, 1)
    headers = dict(letter.headers)
    assert (letter.key, letter.value) == (b"bad", b"2")
    assert headers["__muster.errors.exception"] == b"muster.errors.RecordDeserializationError"
    assert headers["__muster.errors.message"] == b"the key cannot be deserialized: KeyError: b'bad'"
    assert headers["__muster.errors.attempts"] == b"1"
    assert lag(muster, topic, 1) == 0


def test_without_dead_letters_the_run_ends_with_what_cannot_be_deserialized(muster):
    topic = muster.topic(1)
    produce(muster, topic, ["a", "a"])

    async def handle(_record: ConsumerRecord) -> None: ...

    def only_naught(data: bytes) -> int:
        return {b"0": 0}[data]

    consumer = AsyncConcurrentConsumer(muster.settings(), handle, topics=topic, value_deserializer=only_naught)
    with pytest.raises(
        HandlerFailedError, match=r"offset 1 of .* the value cannot be deserialized: KeyError"
    ) as caught:
        asyncio.run(consumer.run())
    assert caught.value.record.value == b"1"
    assert isinstance(caught.value.__cause__, RecordDeserializationError)
    assert lag(muster, topic, 1) == 1


def test_a_second_stop_does_not_keep_the_last_commit_back(muster, caplog):
    """It wakes up the consumer, which must not stop the commit."""
    topic = muster.topic(PARTITIONS)
    produce(muster, topic, ["stuck", *some_keys(20)])
    metrics: dict[str, int] = {}

    async def handle(record: ConsumerRecord) -> None:
        if record.key == b"stuck":
            await asyncio.sleep(STUCK_S)

    async def scene() -> None:
        consumer = AsyncConcurrentConsumer(muster.settings(), handle, topics=topic, commit_interval_ms=600_000)
        run = asyncio.ensure_future(consumer.run())
        while consumer.metrics()["handled"] < 20:
            await asyncio.sleep(0.02)
        consumer.stop()
        await asyncio.sleep(0.1)
        consumer.stop(drain=False)
        await run
        metrics.update(consumer.metrics())

    asyncio.run(scene())
    assert (metrics["handled"], metrics["dropped"]) == (20, 1)
    assert len(reported(muster, topic)) == 20
    assert "were not committed" not in caplog.text


def test_without_dead_letters_the_run_ends_with_the_error(muster):
    topic, book = muster.topic(1), Book()
    produce(muster, topic, ["a", "bad", "a", "bad"])

    def handle(record: ConsumerRecord) -> None:
        if record.key == b"bad":
            raise ValueError("never")
        book.end(record)

    settings = muster.settings()
    consumer = ConcurrentConsumer(settings, handle, topics=topic, order="partition", retry=Retry(max_attempts=1))
    with pytest.raises(
        HandlerFailedError, match=rf"offset 1 of {topic}-0 could not be handled: ValueError: never"
    ) as e:
        consumer.run()
    assert e.value.record.value == b"1"
    assert isinstance(e.value.__cause__, ValueError)
    assert lag(muster, topic, 1) == 3
    with pytest.raises(IllegalStateError, match="create a new one"):
        consumer.run()


def test_dead_letters_that_cannot_be_written_end_the_run_and_lose_nothing(muster):
    topic = muster.topic(1)
    produce(muster, topic, ["bad"])

    def handle(_record: ConsumerRecord) -> None:
        raise ValueError("never")

    retry = Retry(max_attempts=1)
    consumer = ConcurrentConsumer(muster.settings(), handle, topics=topic, retry=retry, dead_letter_topic="no good!")
    with pytest.raises(HandlerFailedError) as caught:
        consumer.run()
    assert isinstance(caught.value.__cause__, KafkaError)
    assert lag(muster, topic, 1) == 1


# --- several members -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("assignor", ["range", "cooperative-sticky"])
def test_members_come_and_go_under_load_and_nothing_is_handled_twice(cluster, assignor):
    topic, book = cluster.topic(PARTITIONS), Book()
    produce(cluster, topic, some_keys(900))

    def handle(record: ConsumerRecord) -> None:
        book.begin(record)
        time.sleep(0.01)
        book.end(record)

    settings = cluster.settings(partition_assignment_strategy=assignor)
    members = [ConcurrentConsumer(settings, handle, topics=topic, concurrency=4) for _ in range(3)]
    threads = [running(members[0])]
    wait_until(lambda: book.count > 100)
    threads += [running(members[1]), running(members[2])]
    wait_until(lambda: all(member.metrics()["handled"] > 20 for member in members) or book.count == 900)
    members[0].stop()
    wait_until(lambda: book.count >= 900)
    for member in members:
        member.stop()
    for thread in threads:
        thread.join()
    book.check(900)
    assert lag(cluster, topic) == 0


# --- processes that end ----------------------------------------------------------------------------------------------


def expel(cluster: Cluster) -> None:
    """Remove a killed member from its group, which would otherwise wait for its session to expire."""
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        admin.remove_consumer_group_members(cluster.group)


def children(pid: int) -> list[str]:
    """The running child processes of a process."""
    found: list[str] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # a thread that has ended
            found += (task / "children").read_text().split()
    return found


def is_pending(pid: int, number: signal.Signals) -> bool:
    """Whether a signal sent to a process is still pending."""
    status = Path(f"/proc/{pid}/status").read_text()
    masks = [int(line.split()[1], 16) for line in status.splitlines() if line.startswith(("SigPnd:", "ShdPnd:"))]
    return any(mask >> (number - 1) & 1 for mask in masks)


@contextmanager
def app(cluster: Cluster, topic: str, mode: str, book: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, str(APP), cluster.bootstrap, cluster.group, topic, mode, str(book)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with (book.parent / "output").open("a") as output:
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=output, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def lines(book: Path, word: str) -> list[tuple[Place, str]]:
    found = [line.split() for line in book.read_text().splitlines()] if book.exists() else []
    return [((int(part), int(offset)), key) for kind, part, offset, key in found if kind == word]


def reported(cluster: Cluster, topic: str) -> set[Place]:
    """The records that the group's commits report as done."""
    partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    done: set[Place] = set()
    with Consumer(cluster.settings()) as consumer:
        for partition, found in consumer.committed(partitions).items():
            if found is not None:
                left = decode(partition, found.offset, found.metadata)
                done |= {(partition.partition, offset) for offset in range(found.offset)}
                if left is not None:
                    done |= {(partition.partition, o) for o in range(found.offset, left.end) if o not in left.holes}
    return done


@pytest.mark.parametrize(("cluster", "mode"), [("muster", "async"), ("kafka", "threads")], indirect=["cluster"])
def test_a_kill_repeats_only_what_the_last_commit_could_not_say(cluster, mode, tmp_path):
    """One record of each partition is stuck at the front, so the committed offsets alone show nothing."""
    topic, book = cluster.topic(PARTITIONS), tmp_path / "book"
    with Producer(bootstrap_servers=cluster.bootstrap) as producer:
        for partition in range(PARTITIONS):
            producer.send(topic, b"", b"stuck", partition=partition)
    produce(cluster, topic, some_keys(1_500))
    with app(cluster, topic, mode, book) as process:
        wait_until(lambda: len(lines(book, "end")) >= 250 and reported(cluster, topic))
        process.send_signal(signal.SIGKILL)
        process.wait()
    expel(cluster)
    first = [place for place, _ in lines(book, "end")]
    done = reported(cluster, topic)
    assert done, "nothing was committed"
    assert done <= set(first)
    assert all((partition, 0) not in done for partition in range(PARTITIONS))
    book.rename(tmp_path / "first")
    with app(cluster, topic, mode, book):
        wait_until(lambda: len({*first, *(place for place, _ in lines(book, "end"))}) == 1_500)
        begun = Counter(place for place, _ in lines(book, "begin"))
    assert not done & set(begun), "what was committed as done was handled again"
    repeated = set(first) & set(begun)
    assert repeated <= set(first) - done
    for key in {key for _, key in lines(book, "end")}:
        in_order = [place for place, other in lines(book, "end") if other == key]
        assert in_order == sorted(in_order)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_and_sigterm_end_it_properly(muster, how, tmp_path):
    topic, book = muster.topic(PARTITIONS), tmp_path / "book"
    produce(muster, topic, some_keys(2_000))
    with app(muster, topic, "threads", book) as process:
        wait_until(lambda: len(lines(book, "end")) >= 50)
        process.send_signal(how)
        assert process.wait(PATIENCE_S) == 0, (tmp_path / "output").read_text()
    ended = [place for place, _ in lines(book, "end")]
    assert len(ended) < 2_000
    assert set(ended) == reported(muster, topic)
    assert Counter(lines(book, "begin")) == Counter(lines(book, "end"))


def test_a_second_ctrl_c_does_not_wait(muster, tmp_path):
    topic, book = muster.topic(PARTITIONS), tmp_path / "book"
    produce(muster, topic, ["stuck", *some_keys(20)])
    with app(muster, topic, "async", book) as process:
        wait_until(lambda: len(lines(book, "end")) == 20)
        process.send_signal(signal.SIGINT)
        wait_until(lambda: not is_pending(process.pid, signal.SIGINT))  # otherwise the system creates one of the two
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 0, (tmp_path / "output").read_text()
    assert len(reported(muster, topic)) == 20


def test_a_process_that_dies_takes_its_record_along_and_no_other(muster, tmp_path):
    topic, book = muster.topic(PARTITIONS), tmp_path / "book"
    dead = muster.topic(1, f"{topic}-dead")
    produce(muster, topic, [*some_keys(20), "die", *some_keys(20), "boom"])
    with app(muster, topic, "processes", book) as process:
        with muster.consumer("sync", group_id=f"{muster.group}-dead") as reader:
            reader.subscribe([dead])
            letters = {letter.key: dict(letter.headers) for letter in read(reader, 2)}
        wait_until(lambda: len(lines(book, "end")) == 40)
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 0, (tmp_path / "output").read_text()
    assert letters[b"die"]["__muster.errors.exception"] == b"muster.client.concurrent.outcomes.WorkerDiedError"
    assert letters[b"die"]["__muster.errors.attempts"] == b"2"
    assert letters[b"boom"]["__muster.errors.message"] == b"it never works"
    assert Counter(key for _, key in lines(book, "begin"))["die"] == 2
    assert len(set(lines(book, "end"))) == len(lines(book, "end")) == 40
    assert lag(muster, topic) == 0


def test_processes_end_with_the_one_that_started_them(muster, tmp_path):
    topic, book = muster.topic(PARTITIONS), tmp_path / "book"
    produce(muster, topic, ["stuck", "k", "k"])
    with app(muster, topic, "processes", book) as process:
        wait_until(lambda: len(lines(book, "end")) == 2)
        started = children(process.pid)
        assert started
        process.kill()
        process.wait()
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in started))


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_all_processes_ends_it_properly_also_while_they_start(muster, how, tmp_path):
    """A terminal sends Ctrl-C to all processes, and a service manager SIGTERM."""
    topic, book = muster.topic(PARTITIONS), tmp_path / "book"
    produce(muster, topic, some_keys(2_000))

    def workers(pid: int) -> list[str]:
        return [child for child in children(pid) if b"spawn_main" in command_of(child)]

    def command_of(pid: str) -> bytes:
        with suppress(FileNotFoundError, ProcessLookupError):
            return Path(f"/proc/{pid}/cmdline").read_bytes()
        return b""

    def end(process: subprocess.Popen[str]) -> None:
        for pid in (*map(int, workers(process.pid)), process.pid):
            os.kill(pid, how)
        assert process.wait(PATIENCE_S) == 0, (tmp_path / "output").read_text()
        assert set(lines(book, "begin")) == set(lines(book, "end"))
        assert {place for place, _ in lines(book, "end")} == reported(muster, topic)

    with app(muster, topic, "processes", book) as process:
        wait_until(lambda: workers(process.pid))
        end(process)
    begun = len(lines(book, "end"))
    with app(muster, topic, "processes", book) as process:
        wait_until(lambda: len(lines(book, "end")) > begun + 50)
        end(process)


def test_stop_waits_for_what_is_under_way(muster):
    topic = muster.topic(1)
    ended: list[int] = []
    produce(muster, topic, ["a", "a"])

    async def handle(record: ConsumerRecord) -> None:
        consumer.stop()
        await asyncio.sleep(0.3)
        ended.append(record.offset)

    consumer = AsyncConcurrentConsumer(muster.settings(), handle, topics=topic)
    asyncio.run(consumer.run())
    assert ended == [0]
    assert lag(muster, topic, 1) == 1


def test_the_group_is_gone_from_when_it_ends(muster):
    """`run` leaves the group: nobody has to wait for a session to expire."""
    topic = muster.topic(1)
    produce(muster, topic, ["a"])
    consumer = ConcurrentConsumer(muster.settings(), lambda _record: consumer.stop(), topics=topic)
    consumer.run()
    with Admin(bootstrap_servers=muster.bootstrap) as admin:
        [group] = admin.describe_consumer_groups([muster.group]).values()
    assert not group.members
