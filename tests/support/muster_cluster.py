"""A cluster of muster's brokers on a real ZooKeeper, each in its own process; load on it, and what it stores."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from muster.client.consumer.consumer import Consumer
from muster.client.producer.producer import Producer
from muster.errors import ErrorCode
from muster.local.ports import free_ports
from muster.local.relay import Relay
from muster.model import TopicPartition
from muster.protocol import messages as m
from tests.support.brokers import BrokerProcess, RawClient

PATIENCE_S = 240
PARTITIONS = 6
LONG: dict[str, object] = {"zookeeper.session.timeout.ms": 8_000}
"""For a test of leaders and their epochs, or of coordinators: on a busy machine the sessions of live brokers would
otherwise expire, and these would change. A killed broker is only missed after that time."""


def eventually(what: Callable[[], Any]) -> Any:
    """The first result that is true."""
    deadline = time.monotonic() + PATIENCE_S
    while not (found := what()):
        assert time.monotonic() < deadline, "it never became true"
        time.sleep(0.05)
    return found


class Cluster:
    """Three brokers; `running` starts and ends them. With `gated`, clients reach each through a relay in `gates`, which
    can lose its answers."""

    def __init__(
        self,
        folder: Path,
        address: str,
        more: Mapping[str, object] | None = None,
        *,
        fsync: str = "interval",
        gated: bool = False,
    ) -> None:
        self.address = address
        self.folder = folder
        settings: dict[str, object] = {
            "zookeeper.connect": address,
            "zookeeper.session.timeout.ms": 2_000,
            "offsets.topic.num.partitions": 6,
            "num.partitions": 3,
            **(more or {}),
        }
        self.settings = settings
        self.gates: dict[int, Relay] = {}
        self.brokers: dict[int, BrokerProcess] = {}
        for number in (1, 2, 3):
            own = {**settings, "node.id": number}
            [port] = free_ports(1) if gated else [0]
            if gated:
                self.gates[number] = Relay(port, patience_s=0)
                own["advertised.listeners"] = f"PLAINTEXT://127.0.0.1:{self.gates[number].port}"
            self.brokers[number] = BrokerProcess(folder / f"broker{number}", own, fsync)
            self.brokers[number].port = port

    @property
    def bootstrap(self) -> str:
        """The addresses of all brokers."""
        if self.gates:
            return ",".join(f"127.0.0.1:{gate.port}" for gate in self.gates.values())
        return ",".join(broker.bootstrap for broker in self.brokers.values())

    @contextlib.contextmanager
    def running(self) -> Iterator[Cluster]:
        """All brokers run, and know each other."""
        with contextlib.ExitStack() as held:
            for gate in self.gates.values():
                held.enter_context(gate)
            for broker in self.brokers.values():
                held.callback(broker.stop)
                broker.start()
            eventually(lambda: all(self.nodes(number) == [1, 2, 3] for number in self.brokers))
            yield self

    def ask(self, number: int, request: Any, version: int) -> Any:
        """The answer of one broker."""
        with RawClient(self.brokers[number].bootstrap) as client:
            return client.ask(request, version)

    def leaders(self, topic: str, asked: int) -> dict[int, tuple[int, int, int]]:
        """Error, leader and epoch of each partition, as one broker reports them."""
        answer = self.ask(asked, m.MetadataRequest([m.MetadataRequestTopic(name=topic)], False), 9)
        return {
            part.partition_index: (part.error_code, part.leader_id, part.leader_epoch)
            for part in answer.topics[0].partitions
        }

    def nodes(self, asked: int) -> list[int]:
        """The brokers, as one of them reports them."""
        return sorted(node.node_id for node in self.ask(asked, m.MetadataRequest([]), 9).brokers)

    def controller(self, asked: int) -> int:
        """The controller, as one broker reports it."""
        found: int = self.ask(asked, m.MetadataRequest([]), 9).controller_id
        return found


class Load(threading.Thread):
    """Produces numbers to all partitions until stopped; knows which were acknowledged."""

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
        """Wait until every partition accepts records."""
        before = len(self.acknowledged)
        eventually(lambda: {partition for partition, _ in self.acknowledged[before:]} == set(range(PARTITIONS)))

    def stop(self) -> None:
        """Stop; everything that was sent must be acknowledged."""
        self._ending.set()
        self.join(PATIENCE_S * 2)
        assert not self.is_alive()
        assert self.failures == []


GROUPS = [f"simple-{number}" for number in range(8)]
TRY_AGAIN = (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)


class Commits(threading.Thread):
    """Commits ever greater offsets, for groups in several slots, until stopped; knows which were acknowledged.

    A commit may be refused with a retriable error. The offset that a coordinator returns is never lower than one that
    was acknowledged before.
    """

    def __init__(self, cluster: Cluster, topic: str) -> None:
        super().__init__(daemon=True)
        self._cluster = cluster
        self._topic = topic
        self.acknowledged = dict.fromkeys(GROUPS, 0)
        self._sent = dict.fromkeys(GROUPS, 0)
        self.failures: list[BaseException] = []
        self._ending = threading.Event()

    def run(self) -> None:
        """Commit until the end."""
        try:
            while not self._ending.wait(0.02):
                for group_id in GROUPS:
                    with contextlib.suppress(OSError, EOFError):  # from a killed broker
                        self._commit(group_id)
        except BaseException as error:
            self.failures.append(error)

    def _commit(self, group_id: str) -> None:
        self._look(group_id)  # another coordinator may have taken the group since
        self._sent[group_id] += 1
        offset = self._sent[group_id]
        topic = m.OffsetCommitRequestTopic(self._topic, partitions=[m.OffsetCommitRequestPartition(0, offset)])
        answer = self._ask(group_id, m.OffsetCommitRequest(group_id, topics=[topic]))
        if answer is None:
            return
        error = ErrorCode(answer.topics[0].partitions[0].error_code)
        assert error is ErrorCode.NONE or error in TRY_AGAIN, error
        if error is ErrorCode.NONE:
            self.acknowledged[group_id] = offset
            self._look(group_id)

    def _look(self, group_id: str) -> None:
        reported, offset = self.reported(group_id), self.acknowledged[group_id]
        assert reported is None or not offset or reported >= offset, (
            f"{group_id}: {reported} was returned, {offset} was acknowledged"
        )

    def _ask(self, group_id: str, request: Any) -> Any:
        """The answer of the group's coordinator, None if there is none."""
        for number in self._cluster.brokers:
            with contextlib.suppress(OSError, EOFError):
                find = m.FindCoordinatorRequest(key_type=0, coordinator_keys=[group_id])
                [found] = self._cluster.ask(number, find, 4).coordinators
                return None if found.error_code else self._cluster.ask(found.node_id, request, 8)
        return None

    def reported(self, group_id: str) -> int | None:
        """The offset that the group's coordinator returns, None if it cannot."""
        answer = self._ask(group_id, m.OffsetFetchRequest(groups=[m.OffsetFetchRequestGroup(group_id, topics=None)]))
        if answer is None or answer.groups[0].error_code:
            return None
        return next((int(each.committed_offset) for t in answer.groups[0].topics for each in t.partitions), -1)

    def more(self) -> None:
        """Wait until commits of every group are accepted."""
        before = dict(self.acknowledged)
        eventually(lambda: self.failures or all(self.acknowledged[name] > before[name] for name in GROUPS))

    def stop(self) -> None:
        """Stop; the last acknowledged offset must be there, or one that was sent after it."""
        self._ending.set()
        self.join(PATIENCE_S * 2)
        assert not self.is_alive()
        assert not self.failures, self.failures
        for name in GROUPS:
            reported = eventually(partial(self.reported, name))
            assert self.acknowledged[name] <= reported <= self._sent[name], name


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
