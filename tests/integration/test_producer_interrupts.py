"""An interrupt at any line of send, flush and close: each accepted record has one outcome, and the producer continues.

A trace function raises KeyboardInterrupt in the calling thread at one line after the other of muster's own code, where
Python could deliver a Ctrl-C.
"""

from __future__ import annotations

import itertools
import json
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from typing import Any

import pytest
from confluent_kafka import Consumer as Confluent
from confluent_kafka import TopicPartition as Place

from muster.client.admin.admin import Admin
from muster.client.core.admin.admin import NewTopic
from muster.client.producer.producer import Producer
from muster.errors import ClosedError, KafkaTimeoutError, MusterError
from muster.model import RecordMetadata
from tests.support.interrupts import interrupted
from tests.support.rooms import taken

pytestmark = pytest.mark.slow

PATIENCE_S = 180


class Ledger:
    """The records given to producers of one topic, and the outcomes that they reported."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.topic = f"interrupts-{uuid.uuid4().hex[:8]}"
        self.given = 0
        self.accepted: set[int] = set()
        """Records whose `send` returned. Whether the others were accepted is unknown until their outcome is
        reported."""
        self.reported: Counter[int] = Counter()
        self.acknowledged: set[int] = set()
        with Admin(bootstrap_servers=bootstrap) as admin:
            admin.create_topics([NewTopic(self.topic, 1)])

    def producer(self, **settings: Any) -> Producer:
        return Producer(bootstrap_servers=self.bootstrap, **settings)

    def send(self, producer: Producer, then: Callable[[], None] = lambda: None) -> None:
        number = self.given
        self.given += 1

        def on_delivery(metadata: RecordMetadata | None, error: MusterError | None) -> None:
            self.reported[number] += 1
            if metadata is not None:
                self.acknowledged.add(number)
            then()

        producer.send(self.topic, json.dumps(number).encode(), partition=0, on_delivery=on_delivery)
        self.accepted.add(number)

    def check(self) -> None:
        """After all producers are closed: each record was reported once, and the log has every acknowledged one,
        once."""
        deadline = time.monotonic() + PATIENCE_S
        while not self.accepted <= self.reported.keys():
            assert time.monotonic() < deadline, f"not reported: {sorted(self.accepted - self.reported.keys())}"
            time.sleep(0.01)
        assert set(self.reported.values()) <= {1}
        written = Counter(self.log())
        assert set(written.values()) <= {1}
        assert self.acknowledged <= written.keys()

    def log(self) -> list[int]:
        settings = {"bootstrap.servers": self.bootstrap, "group.id": self.topic, "enable.auto.commit": False}
        consumer = Confluent(settings | {"enable.partition.eof": True})
        consumer.assign([Place(self.topic, 0, 0)])
        found: list[int] = []
        while True:
            for message in consumer.consume(1000, 0.1):
                if message.error() is not None:
                    consumer.close()
                    return found
                found.append(json.loads(message.value()))


@pytest.fixture
def ledger(shared_muster: Any) -> Iterator[Ledger]:
    made = Ledger(shared_muster.bootstrap)
    yield made
    made.check()


@pytest.mark.parametrize("linger_ms", [0, 5])
def test_interrupts_in_send(ledger, linger_ms):
    with ledger.producer(linger_ms=linger_ms) as producer:
        for at in itertools.count():
            got_there = interrupted(at, lambda: ledger.send(producer))
            ledger.send(producer)
            if not got_there:
                break
        assert at > 20
        producer.flush()
        assert ledger.accepted <= ledger.acknowledged


def test_interrupts_in_the_first_send(ledger):
    """The send that starts the thread."""
    for at in itertools.count():
        producer = ledger.producer()
        got_there = interrupted(at, partial(ledger.send, producer))
        ledger.send(producer)
        producer.close()
        if not got_there:
            break
    assert ledger.accepted <= ledger.acknowledged


def test_interrupts_while_send_waits_for_room(ledger):
    with ledger.producer(buffer_memory=300, max_request_size=300, linger_ms=100) as producer:
        for at in itertools.count():
            for _ in range(3):
                ledger.send(producer)
            if not interrupted(at, lambda: [ledger.send(producer) for _ in range(3)]):
                break
            producer.flush()
            assert taken(producer) == 0
    assert ledger.accepted <= ledger.acknowledged


def test_interrupts_in_flush(ledger):
    with ledger.producer(linger_ms=50) as producer:
        for at in itertools.count():
            ledger.send(producer)
            got_there = interrupted(at, producer.flush)
            ledger.send(producer)
            producer.flush(PATIENCE_S * 1_000)
            assert ledger.accepted <= ledger.acknowledged
            if not got_there:
                break


def producers_threads() -> int:
    """The number of threads. A broker in this process may start a thread at any time."""
    return sum(thread.name == "muster-producer" for thread in threading.enumerate())


def test_interrupts_in_close(ledger):
    threads = producers_threads()
    for at in itertools.count():
        producer = ledger.producer(linger_ms=20)
        for _ in range(2):
            ledger.send(producer)
        got_there = interrupted(at, producer.close)
        producer.close(PATIENCE_S * 1_000)
        with pytest.raises(ClosedError):
            producer.send(ledger.topic, b"")
        if not got_there:
            break
    deadline = time.monotonic() + PATIENCE_S
    while producers_threads() > threads:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_threads_that_send_flush_and_close_at_the_same_moment(ledger):
    """Each accepted record has its outcome, and everything that was accepted before a completed flush is
    acknowledged."""
    lock = threading.Lock()
    refused: list[MusterError] = []

    def send(producer: Producer) -> None:
        with lock:  # the ledger's own numbers
            ledger.send(producer)

    def flush(producer: Producer) -> None:
        before = set(ledger.accepted)
        producer.flush()
        assert before <= ledger.acknowledged

    def work(producer: Producer, begin: threading.Barrier, action: Callable[[Producer], None]) -> None:
        begin.wait()
        try:
            while True:
                action(producer)
        except ClosedError as error:
            refused.append(error)

    def close(producer: Producer, begin: threading.Barrier) -> None:
        begin.wait()
        time.sleep(0.01)
        producer.close()

    for _ in range(15):
        once = (ledger.producer(linger_ms=1, buffer_memory=2_000, max_request_size=2_000), threading.Barrier(6))
        works = [partial(work, *once, action) for action in (send, send, flush, flush)]
        threads = [threading.Thread(target=target) for target in (*works, partial(close, *once), partial(close, *once))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive()
    assert len(refused) == 4 * 15
    assert ledger.accepted <= ledger.acknowledged


def test_closing_ends_the_wait_for_room(ledger):
    producer = Producer(bootstrap_servers="127.0.0.1:1", buffer_memory=300, max_request_size=300)
    waits = threading.Event()
    outcome: list[BaseException] = []
    futures: list[Future[RecordMetadata]] = []

    def send() -> None:
        try:
            for _ in range(5):
                waits.set()
                futures.append(producer.send("t", bytes(100)))
        except MusterError as error:
            outcome.append(error)

    thread = threading.Thread(target=send)
    thread.start()
    assert waits.wait(PATIENCE_S)
    while not producer._outbox._waiters:
        time.sleep(0.001)
    producer.close(10)
    thread.join(PATIENCE_S)
    assert [type(error) for error in outcome] == [ClosedError]
    assert all(future.done() for future in futures), "what was accepted was reported"


def test_sending_from_callbacks_while_the_producer_is_closed(ledger):
    outcomes: Counter[str] = Counter()
    producer = ledger.producer(linger_ms=0, buffer_memory=1_000, max_request_size=1_000)

    def again() -> None:
        try:
            ledger.send(producer)
            ledger.send(producer, again)
        except (ClosedError, KafkaTimeoutError) as refused:
            outcomes[type(refused).__name__] += 1

    ledger.send(producer, again)
    time.sleep(0.05)
    producer.close()
    assert outcomes["ClosedError"] == 1
