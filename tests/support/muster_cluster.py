"""A cluster of muster's brokers on a real ZooKeeper, each in a process of its own; load on it, and what it stores."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from muster.client.consumer import Consumer
from muster.client.producer import Producer
from muster.model import TopicPartition
from muster.protocol import messages as m
from tests.support.brokers import BrokerProcess, RawClient

PATIENCE_S = 120
PARTITIONS = 6


def eventually(what: Callable[[], Any]) -> Any:
    """The first answer that is true."""
    deadline = time.monotonic() + PATIENCE_S
    while not (found := what()):
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.05)
    return found


class Cluster:
    """Three brokers; `running` starts and ends them."""

    def __init__(self, folder: Path, address: str) -> None:
        self.address = address
        self.folder = folder
        settings: dict[str, object] = {
            "zookeeper.connect": address,
            "zookeeper.session.timeout.ms": 2_000,
            "offsets.topic.num.partitions": 6,
            "num.partitions": 3,
        }
        self.settings = settings
        self.brokers = {
            number: BrokerProcess(folder / f"broker{number}", {**settings, "node.id": number}) for number in (1, 2, 3)
        }

    @property
    def bootstrap(self) -> str:
        """The addresses of all."""
        return ",".join(broker.bootstrap for broker in self.brokers.values())

    @contextlib.contextmanager
    def running(self) -> Iterator[Cluster]:
        """All are there, and know each other."""
        with contextlib.ExitStack() as held:
            for broker in self.brokers.values():
                held.callback(broker.stop)
                broker.start()
            eventually(lambda: all(self.nodes(number) == [1, 2, 3] for number in self.brokers))
            yield self

    def ask(self, number: int, request: Any, version: int) -> Any:
        """What one broker answers."""
        with RawClient(self.brokers[number].bootstrap) as client:
            return client.ask(request, version)

    def leaders(self, topic: str, asked: int) -> dict[int, tuple[int, int, int]]:
        """Error, leader and epoch of each partition, as one broker tells them."""
        answer = self.ask(asked, m.MetadataRequest([m.MetadataRequestTopic(name=topic)], False), 9)
        return {
            part.partition_index: (part.error_code, part.leader_id, part.leader_epoch)
            for part in answer.topics[0].partitions
        }

    def nodes(self, asked: int) -> list[int]:
        """The brokers, as one of them tells them."""
        return sorted(node.node_id for node in self.ask(asked, m.MetadataRequest([]), 9).brokers)

    def controller(self, asked: int) -> int:
        """The controller, as one broker tells it."""
        found: int = self.ask(asked, m.MetadataRequest([]), 9).controller_id
        return found


class Load(threading.Thread):
    """Produces numbers to all partitions until it is stopped; knows which were acknowledged."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        super().__init__(daemon=True)
        self._settings: dict[str, Any] = {"bootstrap_servers": cluster.bootstrap, "delivery_timeout_ms": 240_000}
        self._topic = topic
        self.acknowledged: list[tuple[int, int]] = []
        self.failures: list[BaseException] = []
        self._ending = threading.Event()

    def run(self) -> None:
        """Produce until the end."""
        try:
            with Producer(**self._settings) as producer:
                number = 0
                while not self._ending.is_set():
                    partition = number % PARTITIONS
                    future = producer.send(self._topic, value=b"%d" % number, partition=partition)
                    future.add_done_callback(partial(self._done, partition, number))
                    number += 1
                    time.sleep(0.002)
                producer.flush()
        except BaseException as error:
            self.failures.append(error)

    def _done(self, partition: int, number: int, future: Any) -> None:
        if future.exception() is None:
            self.acknowledged.append((partition, number))
        else:
            self.failures.append(future.exception())

    def more(self) -> None:
        """Wait until every partition takes records."""
        before = len(self.acknowledged)
        eventually(lambda: {partition for partition, _ in self.acknowledged[before:]} == set(range(PARTITIONS)))

    def stop(self) -> None:
        """End; everything that was sent is acknowledged."""
        self._ending.set()
        self.join(PATIENCE_S * 2)
        assert not self.is_alive()
        assert self.failures == []


def stored(cluster: Cluster, topic: str, partitions: int = PARTITIONS) -> dict[int, list[int]]:
    """All numbers in each partition."""
    found: dict[int, list[int]] = {number: [] for number in range(partitions)}
    with Consumer(bootstrap_servers=cluster.bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition(topic, number) for number in found])
        ends = consumer.end_offsets(consumer.assignment())
        while any(consumer.position(partition) < end for partition, end in ends.items()):
            for partition, records in consumer.poll(500).items():
                found[partition.partition] += [int(record.value or b"") for record in records]
    return found
