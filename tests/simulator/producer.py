"""Simulated producers: the real `ProducerCore` on nodes with changing leaders, and a life with faults for it.

The invariants of each:

1. An accepted record is settled once: it is acknowledged, or its failure is reported, within `delivery.timeout.ms`
   (`max.block.ms` while its topic is not known) and the time of one poll.
2. An acknowledged record is in the log, at the reported offset.
3. With idempotence no record is there twice, not even a failed one; and the records of a partition are in the order in
   which they were sent.
4. A flush is over when all records sent before it are settled, and not before.
5. At the end, when everything works, every record can be sent.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from muster.client.config import ProducerConfig
from muster.client.core.metadata import ClusterMetadata
from muster.client.core.produce.accumulator import Completion, OutgoingRecord
from muster.client.core.produce.producer import ProducerCore
from muster.errors import MusterError
from muster.model import TopicPartition
from muster.protocol.records.record_batch import iter_headers, read_tuples, record_size
from tests.simulator.checks import InvariantError
from tests.simulator.clock import Timer
from tests.simulator.cluster import SimCluster
from tests.simulator.driver import SimDriver
from tests.simulator.network import BOTH_WAYS, TO_BROKER, TO_CLIENT

_LATE_MS = 1_000
_TOPICS = {"t0": 2, "t1": 3}


class SimProducer:
    """One producer process of a `SimCluster`."""

    def __init__(self, cluster: SimCluster, name: str, config: ProducerConfig, rng: Random) -> None:
        self.name = name
        self.config = config
        self.is_frozen = False
        self.sent: dict[int, tuple[str, int]] = {}
        """The topic of each record by its number, and when it must be settled."""
        self.settled: dict[int, MusterError | None] = {}
        self.places: dict[int, tuple[TopicPartition, int]] = {}
        self._cluster = cluster
        self._clock = cluster.clock
        self._metadata = ClusterMetadata(config, on_demand=True, seed=rng.getrandbits(31))
        self._core = ProducerCore(config, self._metadata, seed=rng.getrandbits(31))
        self._driver = SimDriver(
            name, name, config, self._metadata, cluster.network, cluster.brokers, rng, self._wakeup
        )
        self._rng = rng
        self._scheduled = False
        self._timer: Timer | None = None
        self._flushes: list[tuple[Callable[[], bool], set[int]]] = []
        self._frozen_since = 0
        self._stood_still_ms = 0

    # --- operations -------------------------------------------------------------------------------------

    def send(self, topic: str, partition: int | None, key: bytes | None, size: int) -> None:
        """Send a record, numbered in the order of sending."""
        number = len(self.sent)
        value = b"%s:%d:" % (self.name.encode(), number) + b"x" * size
        record = OutgoingRecord(topic, partition, key, value, (), self._clock.now, number, record_size(key, value, ()))
        if self._core.fatal is None and self._core.has_room(record.size):
            known = self._metadata.partition_count(topic) is not None
            block_ms = 0 if known else self.config.max_block_ms
            self.sent[number] = topic, self._clock.now + self.config.delivery_timeout_ms + block_ms + _LATE_MS
            self._core.append(record, self._clock.now)
            self._wakeup()

    def flush(self) -> None:
        """Flush everything that was sent before."""
        self._flushes.append((self._core.begin_flush(), set(self.sent) - set(self.settled)))
        self._wakeup()

    @property
    def is_flushing(self) -> bool:
        """Whether a flush is under way."""
        return bool(self._flushes)

    def close(self) -> None:
        """Close: give up what is not acknowledged."""
        self._cluster.trace(self.name, "is closed")
        self._core.close()
        self._turn()

    def freeze(self) -> None:
        """The process is suspended."""
        if not self.is_frozen:
            self._frozen_since = self._clock.now
        self.is_frozen = True
        self._driver.freeze()
        self._cluster.trace(self.name, "freezes")

    def thaw(self) -> None:
        """The process resumes."""
        if self.is_frozen:
            self._cluster.trace(self.name, "thaws")
            self.is_frozen = False
            self._stood_still_ms += self._clock.now - self._frozen_since
            self._driver.thaw()
            self._wakeup()

    # --- turns -----------------------------------------------------------------------------------------------------

    def _wakeup(self) -> None:
        if not self._scheduled and not self.is_frozen:
            self._scheduled = True
            self._clock.call_later(0, self._turn)

    def _turn(self) -> None:
        self._scheduled = False
        if self.is_frozen:
            return
        now = self._clock.now
        self._driver.dispatch(self._metadata.poll(now))
        self._driver.dispatch(self._core.poll(now))
        for completion in self._core.take_events():
            self._settle(completion)
        self._end_flushes()
        times = [self._metadata.next_deadline(now), self._core.next_deadline(now)]
        due = min((time for time in times if time is not None), default=None)
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if due is None else self._clock.call_at(max(due, now + 1), self._wakeup)

    def _settle(self, completion: Completion) -> None:
        where, error = completion.partition, completion.error
        numbers = completion.receipts
        said = f"was not acknowledged: {error}" if error else f"is at {completion.base_offset} of {where}"
        self._cluster.trace(self.name, f"{numbers[0]}-{numbers[-1]} {said}")
        for at, number in enumerate(numbers):
            if number in self.settled:
                raise InvariantError(f"record {number} of {self.name} was settled twice")
            topic, until = self.sent[number]
            self.settled[number] = error
            late_ms = self._clock.now - until - self._stood_still_ms
            if late_ms > 0:
                raise InvariantError(f"record {number} of {self.name} was settled {late_ms} ms too late")
            if error is None:
                if where.topic != topic:
                    raise InvariantError(f"record {number} of {self.name} for {topic} went to {where}")
                offset = completion.base_offset
                self.places[number] = (where, offset + at if offset >= 0 else -1)

    def _end_flushes(self) -> None:
        for flush in list(self._flushes):
            is_done, waiting = flush
            left = waiting - set(self.settled)
            if is_done():
                if left:
                    raise InvariantError(f"a flush of {self.name} is over, and these are not settled: {sorted(left)}")
                self._flushes.remove(flush)
                self._core.end_flush()
            elif not left:
                raise InvariantError(
                    f"a flush of {self.name} continues, though everything that it waits for is settled"
                )

    # --- invariants ----------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Compare what was reported with what exists."""
        open_ = set(self.sent) - set(self.settled)
        if open_:
            raise InvariantError(f"{self.name} never settled {sorted(open_)}")
        found = self._written()
        for number, (partition, offset) in self.places.items():
            places = found.get(number, [])
            if not places:
                raise InvariantError(f"record {number} of {self.name} was acknowledged, and is not in {partition}")
            if offset >= 0 and (partition, offset) not in places:
                raise InvariantError(f"record {number} of {self.name} is not at {offset} of {partition}: {places}")
        if self.config.idempotent:
            twice = {number: places for number, places in found.items() if len(places) > 1}
            if twice:
                raise InvariantError(f"{self.name} wrote records twice: {twice}")
            self._check_order(found)

    def _check_order(self, found: dict[int, list[tuple[TopicPartition, int]]]) -> None:
        last: dict[TopicPartition, int] = {}
        for number in sorted(found):
            [(partition, offset)] = found[number]
            if offset < last.get(partition, -1):
                raise InvariantError(f"record {number} of {self.name} comes before an earlier one in {partition}")
            last[partition] = offset

    def _written(self) -> dict[int, list[tuple[TopicPartition, int]]]:
        found: dict[int, list[tuple[TopicPartition, int]]] = {}
        mine = self.name.encode() + b":"
        for partition, log in sorted(self._cluster.brokers.topics.logs.items()):
            data = log.read(0, 1 << 30).data
            for at, header in iter_headers(data):
                for offset, _, _, value, _ in read_tuples(data, at, header):
                    if value is not None and value.startswith(mine):
                        found.setdefault(int(value.split(b":")[1]), []).append((partition, offset))
        return found


class _Life:
    def __init__(self, seed: int, cluster: SimCluster) -> None:
        self.rng = rng = Random(f"producers {seed}")
        self.cluster = cluster
        self.is_over = False
        idempotent = rng.randrange(4) > 0
        settings: dict[str, Any] = {
            "enable_idempotence": idempotent,
            "request_timeout_ms": rng.choice((2_000, 5_000)),
            "delivery_timeout_ms": rng.choice((6_000, 20_000, 60_000)),
            "max_block_ms": 10_000,
            "linger_ms": rng.choice((0, 5, 300)),
            "batch_size": rng.choice((100, 1_000, 16_384)),
            "max_in_flight_requests_per_connection": rng.choice((1, 5)),
            "metadata_max_age_ms": 8_000,
        }
        self.settings = settings
        self.producers = [
            SimProducer(cluster, f"p{n}", ProducerConfig(client_id=f"p{n}", **settings), Random(rng.getrandbits(64)))
            for n in range(rng.randint(1, 2))
        ]

    def run(self) -> None:
        self._produce()
        self._later(2_000, self._strike)
        self.cluster.run(self.rng.randrange(10_000, 40_000))
        self.is_over = True
        self._mend()
        self._send_all()
        for producer in self.producers:
            self._end(producer)
            producer.check()

    def _later(self, about_ms: int, callback: Callable[..., None], *arguments: Any) -> None:
        self.cluster.clock.call_later(self.rng.randint(0, 2 * about_ms), callback, *arguments)

    def _produce(self) -> None:
        if not self.is_over:
            rng = self.rng
            for _ in range(rng.choice((1, 3, 20))):
                self._send(rng.choice(self.producers))
            if rng.randrange(5) == 0:
                rng.choice(self.producers).flush()
            self._later(rng.choice((5, 100, 1_000)), self._produce)

    def _send(self, producer: SimProducer) -> None:
        rng = self.rng
        topic = rng.choice(sorted(_TOPICS))
        partition = rng.randrange(_TOPICS[topic]) if rng.randrange(2) else None
        key = b"k%d" % rng.randrange(9) if rng.randrange(3) == 0 else None
        producer.send(topic, partition, key, rng.choice((0, 10, 200)))

    def _strike(self) -> None:
        if not self.is_over:
            self.rng.choice((self._cut, self._reset, self._reset, self._kill, self._freeze_node, self._freeze))()
            self._later(self.rng.choice((5, 300, 3_000)), self._strike)

    def _cut(self) -> None:
        name, nodes = self.rng.choice(self.producers).name, self.cluster.brokers.node_ids
        ways = self.rng.choice((BOTH_WAYS, (TO_BROKER,), (TO_CLIENT,)))
        for node in nodes if self.rng.randrange(2) else [self.rng.choice(nodes)]:
            self.cluster.trace("network", f"cuts {name} off from {node} {ways}")
            self.cluster.network.cut(name, node, ways)
        self._later(3_000, self.cluster.network.heal, name)

    def _reset(self) -> None:
        links = [link for link in self.cluster.network.links if link.is_open]
        if links:
            self.cluster.network.reset(self.rng.choice(links))

    def _kill(self) -> None:
        brokers = self.cluster.brokers
        up = [node for node in brokers.node_ids if brokers.is_up(node)]
        if up:
            node = self.rng.choice(up)
            brokers.kill(node)
            self._later(2_000, brokers.start, node)

    def _freeze_node(self) -> None:
        brokers = self.cluster.brokers
        node = self.rng.choice(brokers.node_ids)
        if brokers.is_up(node):
            brokers.freeze(node)
            self._later(2_000, brokers.thaw, node)

    def _freeze(self) -> None:
        producer = self.rng.choice(self.producers)
        producer.freeze()
        self._later(2_000, producer.thaw)

    def _mend(self) -> None:
        cluster = self.cluster
        cluster.trace("life", "everything is mended")
        cluster.network.slow = 0
        cluster.heal()
        for node in cluster.brokers.node_ids:
            cluster.brokers.thaw(node)
            cluster.brokers.start(node)
        for producer in self.producers:
            producer.thaw()

    def _send_all(self) -> None:
        """Everything works: what is sent now is acknowledged."""
        cluster = self.cluster
        cluster.run(self.settings["delivery_timeout_ms"] + self.settings["max_block_ms"])
        for producer in self.producers:
            first = len(producer.sent)
            for _ in range(20):
                self._send(producer)
            producer.flush()
            if not cluster.clock.run_until(lambda: not producer.is_flushing, 10_000):  # noqa: B023
                raise InvariantError(f"everything works, but a flush of {producer.name} does not end")
            lost = [n for n in range(first, len(producer.sent)) if producer.settled[n] is not None]
            if lost or len(producer.sent) == first:
                raise InvariantError(
                    f"everything works, but {producer.name} could not send: {producer.settled[lost[0]]}"
                )

    def _end(self, producer: SimProducer) -> None:
        """Close in the middle of the life."""
        for _ in range(self.rng.randrange(5)):
            self._send(producer)
        self.cluster.run(self.rng.choice((0, 1, 4)))
        producer.close()
        self.cluster.run(5_000)


def simulate_producers(seed: int) -> SimCluster:
    """Lead producers through the life that follows from a seed; returns the cluster at the end.

    Raises:
        InvariantError: something happened that must never happen; the message ends with what led to it.
    """
    rng = Random(f"producers' cluster {seed}")
    cluster = SimCluster(
        seed,
        topics=dict(_TOPICS),
        groups=[],
        nodes=rng.randint(1, 3),
        wire=rng.randrange(4) == 0,
        slow=rng.choice((0, 5, 20)),
    )
    life = _Life(seed, cluster)
    try:
        life.run()
    except Exception as error:
        text = f"{life.settings}\n{cluster.story}\nproducers' seed {seed}: {error!r}"
        raise InvariantError(f"producers' seed {seed}: {error}\n{text}") from error
    return cluster
