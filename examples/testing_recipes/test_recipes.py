"""What can go wrong with a Kafka consumer or producer, each case as a test: copy the one that you need.

They need only `pip install 'muster-kafka[testing]' confluent-kafka`: no server has to be running. `muster_broker` is a
fixture of muster's pytest plugin. The consumers here are muster's or confluent-kafka's; the broker treats all clients
alike.
"""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import confluent_kafka
import pytest

from muster import CommitFailedError, Consumer, ConsumerRecord, KafkaError, Producer, TopicPartition, exactly_once
from muster.testing import Kafka, assert_handled_once

Handle = Callable[[ConsumerRecord], None]


@contextmanager
def worker(kafka: Kafka, topic: str, group: str, handle: Handle, **settings: object) -> Iterator[Consumer]:
    """The consumer under test: a program that handles each record and then commits it."""
    ending = threading.Event()
    config = {"bootstrap_servers": kafka.bootstrap, "group_id": group, "auto_offset_reset": "earliest"}
    consumer = Consumer({**config, "enable_auto_commit": False, "heartbeat_interval_ms": 100, **settings})

    def work() -> None:
        with consumer:
            consumer.subscribe([topic])
            while not ending.is_set():
                for partition, records in consumer.poll(50, max_records=1).items():
                    for record in records:
                        handle(record)
                        try:
                            consumer.commit({partition: record.offset + 1})
                        except CommitFailedError:  # the partition has moved: its new owner handles the record again
                            continue

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield consumer
    finally:
        ending.set()
        thread.join()


# ------------------------------------------------------------------------------------------------ 1. lost commits


def test_a_record_whose_commit_was_lost_is_billed_once(muster_broker: Kafka, tmp_path: Path) -> None:
    """Exactly once into a database: the row and the record's offset are written in one transaction."""
    kafka = muster_broker
    topic = kafka.topic(records=[b"10", b"20"])
    path = tmp_path / "bills.db"
    with sqlite3.connect(path) as database:
        database.execute(
            "create table bills (topic, partition, offset, amount, primary key (topic, partition, offset))"
        )

    def bill(record: ConsumerRecord) -> None:
        with sqlite3.connect(path) as database:
            row = (record.topic, record.partition, record.offset, int(record.value or 0))
            database.execute("insert or ignore into bills values (?, ?, ?, ?)", row)

    with worker(kafka, topic, "billing", bill), kafka.hold("OffsetCommit", group="billing") as held:
        kafka.until(lambda: held.held, "a commit")
        kafka.group("billing").expire()  # the commit is now refused, and the record is delivered again
        held.release()
        kafka.until_lag_zero("billing", topic)
    with sqlite3.connect(path) as database:
        assert database.execute("select sum(amount), count(*) from bills").fetchone() == (30, 2)


# ------------------------------------------------------------------------------------------------ 2. dead letters


def test_a_record_that_fails_three_times_becomes_a_dead_letter(muster_broker: Kafka) -> None:
    kafka = muster_broker
    topic, dead = kafka.topic(records=[(b"k", b"bad"), (b"k", b"good")]), kafka.topic()
    tries: list[bytes | None] = []

    with Producer(bootstrap_servers=kafka.bootstrap) as producer:

        def handle(record: ConsumerRecord) -> None:
            for _ in range(3):
                tries.append(record.value)
                if record.value != b"bad":
                    return
            origin = f"{record.topic}/{record.partition}/{record.offset}".encode()
            producer.send(dead, record.value, key=record.key, headers=[("origin", origin)]).result()

        with worker(kafka, topic, "dead-letters", handle):
            kafka.until_lag_zero("dead-letters", topic)
    assert tries == [b"bad"] * 3 + [b"good"]
    (letter,) = kafka.records(dead)
    assert (letter.key, letter.value, letter.headers) == (b"k", b"bad", [("origin", f"{topic}/0/0".encode())])


# ------------------------------------------------------------------------------------------------ 3. rebalances


def test_a_rebalance_while_a_record_is_handled_loses_nothing(muster_broker: Kafka) -> None:
    kafka = muster_broker
    topic = kafka.topic(partitions=2, records=[b"%d" % number for number in range(10)])
    handling, proceed = threading.Event(), threading.Event()
    handled: list[bytes | None] = []

    def slow(record: ConsumerRecord) -> None:
        handling.set()
        proceed.wait()
        handled.append(record.value)

    with worker(kafka, topic, "moves", slow):
        kafka.until(handling.is_set, "a record to be in progress")
        with worker(kafka, topic, "moves", lambda record: handled.append(record.value)):
            kafka.group("moves").rebalance()
            proceed.set()
            kafka.until_assigned("moves", members=2)
            kafka.until_lag_zero("moves", topic)
    assert set(handled) == {b"%d" % number for number in range(10)}  # at least once


# ------------------------------------------------------------------------------------------------ 4. poison records


def test_a_record_that_is_not_json_does_not_stop_the_partition(muster_broker: Kafka) -> None:
    kafka = muster_broker
    topic = kafka.topic(records=[b'{"n": 1}', b"{broken", b'{"n": 2}'])
    numbers: list[int] = []
    broken: list[int] = []

    def handle(record: ConsumerRecord) -> None:
        try:
            numbers.append(json.loads(record.value or b"null")["n"])
        except (ValueError, TypeError, KeyError):
            broken.append(record.offset)

    with worker(kafka, topic, "poison", handle):
        kafka.until_lag_zero("poison", topic)
    assert (numbers, broken) == ([1, 2], [1])


# ------------------------------------------------------------------------------------------------ 5. slow handlers


def test_a_handler_that_takes_too_long_loses_its_partitions_to_another_member(muster_broker: Kafka) -> None:
    """A member that does not poll within max.poll.interval.ms leaves the group; its records are handled elsewhere."""
    kafka = muster_broker
    topic = kafka.topic(records=[b"x"])
    stuck, by_another = threading.Event(), threading.Event()

    def hang(record: ConsumerRecord) -> None:
        stuck.wait(10)

    with worker(kafka, topic, "slow", hang, max_poll_interval_ms=300, client_id="slow-one"):
        kafka.until_assigned("slow", members=1)
        with worker(kafka, topic, "slow", lambda record: by_another.set(), client_id="quick-one"):
            kafka.until_lag_zero("slow", topic)
            assert by_another.is_set()
            stuck.set()


# ------------------------------------------------------------------------------------------------ 6. deploys


def test_a_deploy_of_static_members_causes_no_rebalance(muster_broker: Kafka) -> None:
    kafka = muster_broker
    topic = kafka.topic(partitions=2)

    def instance(name: str) -> confluent_kafka.Consumer:
        settings = {"bootstrap.servers": kafka.bootstrap, "group.id": "deploy", "group.instance.id": name}
        consumer = confluent_kafka.Consumer(settings)
        consumer.subscribe([topic])
        return consumer

    pods = {name: instance(name) for name in ("pod-0", "pod-1")}
    try:
        kafka.until(
            lambda: [pod.poll(0.05) for pod in pods.values()] and all_assigned(pods), "both pods to have a partition"
        )
        before = kafka.until_assigned("deploy", members=2)["generation"]
        pods["pod-0"].close()  # the new version starts before the session of the old one ends
        pods["pod-0"] = instance("pod-0")
        kafka.until(lambda: [pod.poll(0.05) for pod in pods.values()] and all_assigned(pods), "the new pod's partition")
        assert kafka.view("deploy")["generation"] == before
    finally:
        for pod in pods.values():
            pod.close()
        kafka.group("deploy").expire()


def all_assigned(pods: dict[str, confluent_kafka.Consumer]) -> bool:
    return all(pod.assignment() for pod in pods.values())


# ------------------------------------------------------------------------------------------------ 7. schema changes


def test_an_old_consumer_reads_what_a_new_producer_writes(muster_broker: Kafka) -> None:
    kafka = muster_broker
    old = [{"id": 1, "amount": 5}]
    new = [{"id": 2, "amount": 6, "currency": "EUR"}]
    topic = kafka.topic(records=[json.dumps(order).encode() for order in old + new])
    amounts: list[int] = []
    with worker(kafka, topic, "schema", lambda record: amounts.append(json.loads(record.value or b"{}")["amount"])):
        kafka.until_lag_zero("schema", topic)
    assert amounts == [5, 6]


# ------------------------------------------------------------------------------------------------ 8. time-outs


def test_a_broker_that_does_not_answer_becomes_an_error_in_time(muster_broker: Kafka) -> None:
    kafka = muster_broker
    topic = kafka.topic()
    settings = {"bootstrap_servers": kafka.bootstrap, "request_timeout_ms": 200, "delivery_timeout_ms": 500}
    hang = kafka.fault("hang", "Produce", topic=topic, times=None)
    with hang, Producer(settings, linger_ms=0) as producer, pytest.raises(KafkaError):
        producer.send(topic, b"x").result()
    assert kafka.records(topic) == []


# ------------------------------------------------------------------------------------------------ 9. lost answers


def test_a_producer_whose_answer_was_lost_writes_once(muster_broker: Kafka) -> None:
    kafka = muster_broker
    topic = kafka.topic()
    producer = confluent_kafka.Producer({"bootstrap.servers": kafka.bootstrap, "enable.idempotence": True})
    with kafka.lose_answer("Produce", topic=topic) as lost:
        producer.produce(topic, b"once")
        assert producer.flush(30) == 0
        assert lost.struck == 1
    assert [record.value for record in kafka.records(topic)] == [b"once"]


# ------------------------------------------------------------------------------------------------ 10. broker restarts


def test_a_consumer_outlives_its_broker(tmp_path: Path) -> None:
    """A broker for one test, which can be killed without affecting other tests."""
    handled: list[bytes | None] = []
    with Kafka(folder=tmp_path) as kafka:
        topic = kafka.topic(records=[b"before"])
        with worker(kafka, topic, "restart", lambda record: handled.append(record.value)):
            kafka.until_lag_zero("restart", topic)
            kafka.kill()
            kafka.start()
            kafka.produce(topic, [b"after"])
            kafka.until_lag_zero("restart", topic)
    assert_handled_once(handled, [b"before", b"after"])


# ------------------------------------------------------------------------------------------------ 11. retention


def test_a_reader_that_retention_has_passed_starts_at_the_oldest_record(muster_broker: Kafka) -> None:
    kafka = muster_broker
    topic = kafka.topic(records=[b"0", b"1", b"2"])
    handled: list[bytes | None] = []
    with worker(kafka, topic, "late", lambda record: handled.append(record.value)):
        kafka.until_lag_zero("late", topic)
    kafka.produce(topic, [b"3", b"4"])
    kafka.delete_records(topic, before=4)
    with worker(kafka, topic, "late", lambda record: handled.append(record.value)):
        kafka.until_lag_zero("late", topic)
    assert handled == [b"0", b"1", b"2", b"4"]


# ------------------------------------------------------------------------------------------------ 12. dead members


def test_a_dead_member_s_partitions_move_when_its_session_ends(muster_broker: Kafka) -> None:
    """45 seconds in no time: the test advances the groups' clock."""
    kafka = muster_broker
    topic = kafka.topic(partitions=2)
    dead = Consumer(
        bootstrap_servers=kafka.bootstrap,
        group_id="dead",
        client_id="dead-one",
        heartbeat_interval_ms=60_000,
        session_timeout_ms=180_000,
    )
    dead.subscribe([topic])
    while not dead.assignment():
        dead.poll(50)
    began = time.monotonic()
    kafka.clock.advance(seconds=181)
    with worker(kafka, topic, "dead", lambda record: None):
        view = kafka.until_assigned("dead", members=1)
    assert view["members"][0]["client_id"] != "dead-one"
    assert time.monotonic() - began < 60
    dead.close()


# ------------------------------------------------------------------------------------------------ 13. incidents


def test_what_went_wrong_on_tuesday_goes_right_now(tmp_path: Path) -> None:
    """A recording of production (`muster.testing.record_past`): an order was billed twice, because the member's session
    had ended before its commit. The same happens here, at the same record, but the bill is written once."""
    bills: dict[tuple[str, int, int], int] = {}
    seen: list[int] = []

    def bill(record: ConsumerRecord) -> None:
        seen.append(record.offset)
        bills[record.topic, record.partition, record.offset] = int(record.value or 0)

    path = Path(__file__).with_name("billed_twice.recording")
    with Kafka() as kafka, kafka.replay(path, pace=0) as replay:
        with worker(kafka, "orders", "billing", bill):
            replay.until_over()
        assert replay.differences == []
    assert seen == [0, 1, 1]
    assert sum(bills.values()) == 30


# ------------------------------------------------------------------------------------------------ 14. transactions


def transactional(kafka: Kafka, transactional_id: str) -> confluent_kafka.Producer:
    """A transactional producer, ready to begin a transaction."""
    producer = confluent_kafka.Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": transactional_id})
    producer.init_transactions(30)
    return producer


def committed_values(kafka: Kafka, topic: str) -> list[bytes | None]:
    """What a `read_committed` consumer sees."""
    config = {"bootstrap_servers": kafka.bootstrap, "isolation_level": "read_committed", "fetch_max_wait_ms": 20}
    with Consumer(config) as reader:
        partition = TopicPartition(topic, 0)
        reader.assign([partition])
        (end,) = reader.end_offsets([partition]).values()
        reader.seek_to_beginning()
        found: list[bytes | None] = []
        while reader.position(partition) < end:
            found += [record.value for batch in reader.poll(100).values() for record in batch]
        return found


def test_an_aborted_transaction_is_not_seen(muster_broker: Kafka) -> None:
    kafka = muster_broker
    topic = kafka.topic()
    producer = transactional(kafka, topic)
    producer.begin_transaction()
    producer.produce(topic, b"half a bill")
    producer.flush(30)
    producer.abort_transaction(30)
    producer.begin_transaction()
    producer.produce(topic, b"a bill")
    producer.commit_transaction(30)
    assert committed_values(kafka, topic) == [b"a bill"]


def test_a_producer_that_comes_back_too_late_is_fenced(muster_broker: Kafka) -> None:
    """A program that was paused while another one took over its transactional.id."""
    kafka = muster_broker
    topic = kafka.topic()
    zombie = transactional(kafka, topic)
    zombie.begin_transaction()
    zombie.produce(topic, b"too late")
    zombie.flush(30)
    kafka.fence_producer(topic)
    with pytest.raises(confluent_kafka.KafkaException) as fenced:
        zombie.commit_transaction(30)
    assert fenced.value.args[0].fatal()
    assert committed_values(kafka, topic) == []


# ------------------------------------------------------------------------------------------------ 15. exactly once


def bill_orders(kafka: Kafka, orders: str, bills: str, meanwhile: Callable[[], None] = lambda: None) -> None:
    """The job under test: two orders become bills; bills and offsets are committed in one transaction (KIP-447)."""
    consumer = Consumer(
        bootstrap_servers=kafka.bootstrap,
        group_id=orders,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        isolation_level="read_committed",
    )
    producer = Producer(bootstrap_servers=kafka.bootstrap, transactional_id=f"bills-of-{orders}")
    billed = 0

    def bill(batch: dict[TopicPartition, list[ConsumerRecord]]) -> None:
        for records in batch.values():
            for record in records:
                producer.send(bills, b"bill of " + (record.value or b""))
        meanwhile()

    def are_all_billed(count: int) -> bool:
        nonlocal billed
        billed += count
        return billed == 2

    with consumer, producer:
        producer.init_transactions()
        consumer.subscribe([orders])
        exactly_once(consumer, producer, bill, until=are_all_billed)


def test_each_order_is_billed_once_whatever_answers_are_lost(muster_broker: Kafka) -> None:
    kafka = muster_broker
    orders, bills = kafka.topic(records=[b"1", b"2"]), kafka.topic()
    lost = [kafka.lose_answer(api, transactional_id="bills-*") for api in ("Produce", "TxnOffsetCommit", "EndTxn")]
    bill_orders(kafka, orders, bills)
    assert [fault.struck for fault in lost] == [1, 1, 1]
    assert committed_values(kafka, bills) == [b"bill of 1", b"bill of 2"]
    kafka.until_lag_zero(orders, orders)


def test_a_job_that_another_has_replaced_bills_nothing(muster_broker: Kafka) -> None:
    """A program that was paused; meanwhile the platform has started another one."""
    kafka = muster_broker
    orders, bills = kafka.topic(records=[b"1", b"2"]), kafka.topic()
    with pytest.raises(KafkaError) as replaced:
        bill_orders(kafka, orders, bills, meanwhile=lambda: kafka.fence_producer(f"bills-of-{orders}"))
    assert replaced.value.fatal
    assert committed_values(kafka, bills) == []
    bill_orders(kafka, orders, bills)
    assert committed_values(kafka, bills) == [b"bill of 1", b"bill of 2"]
