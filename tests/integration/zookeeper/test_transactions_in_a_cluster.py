"""Transactions in a cluster of three brokers, with others' producers: complete wherever their parts are, even if
coordinators and leaders are killed and frozen meanwhile."""

from __future__ import annotations

import os
import signal
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest
from confluent_kafka import Consumer as ConfluentConsumer
from confluent_kafka import Producer as ConfluentProducer
from confluent_kafka import TopicPartition

from muster import Admin, NewTopic
from muster.protocol import messages as m
from muster.protocol import transaction_messages as t
from tests.integration.test_transactions import EXPECTED, reported_by_java
from tests.support.cluster_chaos import Facts
from tests.support.cluster_transactions import QUICK, Reported, Transactions, judge_transactions
from tests.support.muster_cluster import LONG, PATIENCE_S, Cluster, eventually
from tests.support.zookeepers import ZooKeeperServer

pytestmark = pytest.mark.slow(70)

STORES = ("zookeeper", "log")


@pytest.fixture
def running(tmp_path: Path, zookeeper: ZooKeeperServer) -> Iterator[Callable[..., Cluster]]:
    """Starts a cluster."""
    import contextlib

    with contextlib.ExitStack() as held:

        def start(store: str, **more: object) -> Cluster:
            settings = {**QUICK, "group.coordinator.store": store, "transaction.state.log.num.partitions": 6, **more}
            address = f"{zookeeper.address}/{uuid.uuid4().hex[:8]}"
            return held.enter_context(Cluster(tmp_path, address, settings).running())

        yield start


@pytest.mark.parametrize("store", STORES)
def test_javas_producer_sees_what_it_sees_with_one_broker(
    running: Callable[..., Cluster], java: str, store: str
) -> None:
    reported = reported_by_java(running(store, **LONG).bootstrap, java)
    assert reported == [*EXPECTED, "the slow one commits: InvalidTxnStateException"]


@pytest.mark.parametrize("store", STORES)
def test_a_transaction_is_over_brokers_and_groups(running: Callable[..., Cluster], store: str) -> None:
    cluster = running(store, **LONG)
    name = f"t-{uuid.uuid4().hex[:6]}"
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        admin.create_topics([NewTopic(name, 6)])
    eventually(lambda: all(led(cluster, name, number) == 6 for number in cluster.brokers))
    assert {leader for _, leader, _ in cluster.leaders(name, 1).values()} == {1, 2, 3}
    for k in range(4):
        group = ConfluentConsumer(
            {
                "bootstrap.servers": cluster.bootstrap,
                "group.id": f"{name}-{k}",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
            }
        )
        producer = ConfluentProducer({"bootstrap.servers": cluster.bootstrap, "transactional.id": f"{name}-{k}"})
        producer.init_transactions(PATIENCE_S)
        for number in range(4):
            producer.begin_transaction()
            for partition in range(6):
                producer.produce(name, value=f"{k}-{number}", partition=partition)
            offsets = [TopicPartition(name, partition, number) for partition in range(6)]
            producer.send_offsets_to_transaction(offsets, group.consumer_group_metadata(), PATIENCE_S)
            (producer.commit_transaction if number % 2 == 0 else producer.abort_transaction)(PATIENCE_S)
        places = [TopicPartition(name, partition) for partition in range(6)]
        assert [found.offset for found in group.committed(places, PATIENCE_S)] == [2] * 6
        group.assign([TopicPartition(name, partition, 0) for partition in range(6)])
        read: list[tuple[int, str]] = []
        deadline = time.monotonic() + PATIENCE_S
        while len(read) < 12 * (k + 1) and time.monotonic() < deadline:
            message = group.poll(0.2)
            if message is not None and message.error() is None:
                read.append((message.partition(), message.value().decode()))
        assert sorted(read) == sorted((p, f"{i}-{n}") for p in range(6) for i in range(k + 1) for n in (0, 2))
        group.close()
    listed = {}
    for number in cluster.brokers:
        answer = cluster.ask(number, t.ListTransactionsRequest([], [], -1, None), 2)
        assert answer.error_code == 0
        for each in answer.transaction_states:
            assert each.transactional_id not in listed, "two coordinators"
            listed[each.transactional_id] = number
            find = m.FindCoordinatorRequest(key_type=1, coordinator_keys=[each.transactional_id])
            for asked in cluster.brokers:
                assert cluster.ask(asked, find, 4).coordinators[0].node_id == number
    assert set(listed) == {f"{name}-{k}" for k in range(4)}


def led(cluster: Cluster, topic: str, asked: int) -> int:
    """How many partitions have a leader, according to a broker."""
    return sum(not error for error, _, _ in cluster.leaders(topic, asked).values())


def coordinator(cluster: Cluster, transactional_id: str) -> int:
    find = m.FindCoordinatorRequest(key_type=1, coordinator_keys=[transactional_id])
    found = eventually(lambda: next((c for c in cluster.ask(1, find, 4).coordinators if not c.error_code), None))
    return int(found.node_id)


@pytest.mark.parametrize("store", STORES)
def test_coordinators_and_leaders_that_die_or_freeze_leave_transactions_whole(
    running: Callable[..., Cluster], store: str
) -> None:
    cluster, facts, random = running(store), Facts({}), Random(store)
    transactions = Transactions(facts, cluster, 1)
    transactions.more()
    first = coordinator(cluster, transactions.transactional_id)
    both, (second, third) = random.sample(("kill", "freeze"), 2), (each for each in (1, 2, 3) if each != first)
    for number, deeds in ((first, both), (second, both[:1]), (third, both[1:])):
        for do in deeds:
            broker = cluster.brokers[number]
            if do == "kill":
                broker.kill()
                time.sleep(0.5)
                broker.start()
            else:
                assert broker.pid
                os.kill(broker.pid, signal.SIGSTOP)
                time.sleep(4)  # twice its session timeout
                os.kill(broker.pid, signal.SIGCONT)
            transactions.more()
    transactions.stop()
    assert transactions.wrong() == [], transactions.troubles
    assert facts.errors == []
    assert len(transactions.reported.aborted) > 2


@pytest.mark.parametrize(
    ("reported", "wrong"),
    [
        (Reported([1], [2], [3], {0: [1, 3], 1: [1, 3]}, 3), ""),
        (Reported([1], [2], [3], {0: [1], 1: [1]}, 1), ""),
        (Reported([1], [2], [], {0: [1], 1: []}, 1), "only in"),
        (Reported([1], [2], [], {0: [], 1: []}, -1), "lost"),
        (Reported([1], [2], [], {0: [1, 2], 1: [1, 2]}, 2), "was aborted"),
        (Reported([1], [], [], {0: [1, 1], 1: [1]}, 1), "twice"),
        (Reported([1], [2], [3], {0: [1, 3], 1: [1, 3]}, 1), "offset"),
    ],
)
def test_the_judge(reported: Reported, wrong: str) -> None:
    found = list(judge_transactions(reported))
    assert bool(found) is bool(wrong)
    assert wrong in "".join(found)
