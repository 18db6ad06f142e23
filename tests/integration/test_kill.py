"""kill -9 of the broker under load: acknowledged records are there afterwards, exactly once, and commits never go
back."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from muster.clock import wall_clock_ms
from muster.errors import ErrorCode
from muster.protocol import messages as m
from muster.protocol.primitives import ZERO_UUID, Request
from muster.protocol.records.record_batch import iter_headers, read_tuples
from tests.support import scale
from tests.support.brokers import BrokerProcess, RawClient
from tests.support.written import build_batch

pytestmark = [pytest.mark.slow, pytest.mark.soak]

TOPIC = "killed"
GROUP = "committers"
PARTITIONS = 2
RETRIABLE = {ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE}


class Worker(threading.Thread):
    """Sends one request after the other, repeating each on a new connection if the broker is killed meanwhile."""

    def __init__(self, broker: BrokerProcess, partition: int) -> None:
        super().__init__(daemon=True)
        self.partition = partition
        self.acknowledged = 0
        self.stopping = threading.Event()
        self.failure: BaseException | None = None
        self._broker = broker
        self._client: RawClient | None = None

    def run(self) -> None:
        try:
            while not self.stopping.is_set():
                self.step()
        except BaseException as error:
            self.failure = error
        finally:
            if self._client is not None:
                self._client.close()

    def step(self) -> None:
        raise NotImplementedError

    def ask(self, request: Request[Any], version: int) -> Any:
        """The answer, from whichever run of the broker."""
        while True:
            try:
                if self._client is None:
                    self._client = RawClient(self._broker.bootstrap)
                return self._client.ask(request, version)
            except (OSError, EOFError):
                if self._client is not None:
                    self._client.close()
                self._client = None
                time.sleep(0.01)

    def stop(self) -> None:
        self.stopping.set()
        self.join(300)
        assert not self.is_alive()
        if self.failure is not None:
            raise self.failure


class Producer(Worker):
    """An idempotent producer of the numbers 0, 1, 2 … of its partition."""

    def __init__(self, broker: BrokerProcess, partition: int) -> None:
        super().__init__(broker, partition)
        self._producer_id = -1
        self._random = random.Random(partition)

    def step(self) -> None:
        if self._producer_id < 0:
            self._producer_id = self.ask(m.InitProducerIdRequest(None, 60_000), 4).producer_id
        numbers = range(self.acknowledged, self.acknowledged + self._random.randint(1, 20))
        now = wall_clock_ms()
        records = build_batch(
            [(now, None, b"%d" % number, []) for number in numbers],
            producer_id=self._producer_id,
            producer_epoch=0,
            base_sequence=numbers[0],
        )
        data = m.TopicProduceData(TOPIC, ZERO_UUID, [m.PartitionProduceData(self.partition, bytes(records))])
        answer = self.ask(m.ProduceRequest(None, -1, 30_000, [data]), 9)
        result = answer.responses[0].partition_responses[0]
        assert result.error_code == 0, result
        assert result.base_offset == numbers[0], "records are lost, or written twice"
        self.acknowledged = numbers[-1] + 1


class Committer(Worker):
    """Commits the offsets 1, 2, 3 … of its partition."""

    def step(self) -> None:
        offset = self.acknowledged + 1
        partition = m.OffsetCommitRequestPartition(self.partition, offset, -1, "")
        topic = m.OffsetCommitRequestTopic(TOPIC, partitions=[partition])
        answer = self.ask(m.OffsetCommitRequest(GROUP, topics=[topic]), 8)
        code = answer.topics[0].partitions[0].error_code
        if code in RETRIABLE:
            time.sleep(0.01)
            return
        assert code == 0, answer
        self.acknowledged = offset


def committed(client: RawClient, partition: int) -> int:
    topic = m.OffsetFetchRequestTopic(TOPIC, [partition])
    answer = client.ask(m.OffsetFetchRequest(GROUP, [topic]), 7)
    found: int = answer.topics[0].partitions[0].committed_offset
    return found


def stored(client: RawClient, partition: int) -> list[int]:
    """All numbers in a partition."""
    numbers: list[int] = []
    while True:
        asked = m.FetchPartition(partition, -1, len(numbers), partition_max_bytes=8 << 20)
        request = m.FetchRequest(
            max_wait_ms=0, min_bytes=0, max_bytes=8 << 20, topics=[m.FetchTopic(TOPIC, partitions=[asked])]
        )
        data = client.ask(request, 11).responses[0].partitions[0]
        assert data.error_code == 0
        if not data.records or isinstance(data.records, list):
            return numbers
        for position, header in iter_headers(data.records):
            for offset, _, _, value, _ in read_tuples(data.records, position, header):
                if offset >= len(numbers):
                    assert value is not None
                    assert offset == len(numbers)
                    numbers.append(int(value))


def check(
    broker: BrokerProcess, producers: list[Producer], committers: list[Committer], promised: dict[Worker, int]
) -> None:
    with RawClient(broker.bootstrap) as client:
        for producer in producers:
            numbers = stored(client, producer.partition)
            assert numbers == list(range(len(numbers))), "records are out of order, missing or double"
            assert len(numbers) >= promised[producer], "acknowledged records are lost"
        for committer in committers:
            assert committed(client, committer.partition) >= promised[committer], "an acknowledged commit is lost"


@pytest.mark.parametrize("fsync", ["interval", "always", "never"])
@pytest.mark.timeout(1800)
def test_nothing_acknowledged_is_lost(tmp_path: Path, fsync: str) -> None:
    settings = {"num.partitions": PARTITIONS, "log.segment.bytes": 1 << 20, "offsets.topic.num.partitions": 3}
    seconds = random.Random(7)
    with BrokerProcess(tmp_path / "data", settings, fsync) as broker:
        with RawClient(broker.bootstrap) as client:
            client.ask(m.MetadataRequest([m.MetadataRequestTopic(name=TOPIC)]), 9)
            cluster_id = broker.cluster_id
        producers = [Producer(broker, partition) for partition in range(PARTITIONS)]
        committers = [Committer(broker, partition) for partition in range(PARTITIONS)]
        workers: list[Worker] = [*producers, *committers]
        for worker in workers:
            worker.start()
        for _ in range(scale.kills(3 if fsync == "interval" else 1)):
            time.sleep(seconds.uniform(0.5, 1.5))
            broker.kill()
            promised: dict[Worker, int] = {worker: worker.acknowledged for worker in workers}
            broker.start()
            assert broker.cluster_id == cluster_id
            check(broker, producers, committers, promised)
        before = {worker: worker.acknowledged for worker in workers}
        wait_until(lambda: all(worker.acknowledged > before[worker] for worker in workers))
        for worker in workers:
            worker.stop()
        promised = {worker: worker.acknowledged for worker in workers}
        check(broker, producers, committers, promised)
        assert broker.stop() == 0
        broker.start()
        check(broker, producers, committers, promised)
    assert "Traceback" not in broker.log()


def wait_until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 300
    while not true():
        assert time.monotonic() < deadline, "the workers did not continue after the last kill"
        time.sleep(0.02)
