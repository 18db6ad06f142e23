"""The Spark source's member in virtual time: the real one, with its event loop, against simulated brokers.

Only sockets, threads and time are replaced: `Member`, `QueryCore` and the coordinator are the ones that users run, so a
test of minutes takes milliseconds and runs identically each time. The invariants of groups (`tests.simulator.checks`)
are checked as well: a commit of an offset that no finished batch has read is an error at once.
"""

from __future__ import annotations

import asyncio
import math
import selectors
from collections.abc import Callable, Coroutine, Iterable, Mapping
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import pytest

from muster.client.core.sends import AnySend, Channel
from muster.client.net.driver import CoreLoop
from muster.client.plain.fetch import data_loss
from muster.coordinator.groups.config import GroupConfig
from muster.coordinator.runtime import Client
from muster.model import TopicPartition
from muster.protocol.api import EARLIEST_TIMESTAMP
from muster.protocol.messages import DeleteGroupsRequest, OffsetCommitRequest
from muster.protocol.messages import OffsetCommitRequestPartition as CommitPartition
from muster.protocol.messages import OffsetCommitRequestTopic as CommitTopic
from muster.protocol.primitives import ZERO_UUID
from muster.spark.offsets import Claim, from_json
from tests.simulator import Habits, SimCluster, SimMember
from tests.simulator.checks import Limits
from tests.simulator.clock import VirtualClock
from tests.simulator.driver import SimDriver
from tests.support.queries import Query, reported

__all__ = ["PATIENCE_MS", "SimQuery", "SparkWorld", "begin_batch", "drive", "read_all", "reported"]

T = TypeVar("T")

PATIENCE_MS = 150_000
"""In virtual time: in case a call never ends."""


class _Selector(selectors.DefaultSelector):
    """When an event loop would sleep, virtual time passes, up to the next event."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__()
        self._clock = clock
        self.until = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        found = super().select(0)
        if not found and (timeout is None or timeout > 0):
            assert self._clock.now <= self.until, "the call never ends"
            first = iter([False])
            wait_ms = PATIENCE_MS if timeout is None else max(1, math.ceil(timeout * 1000 - 1e-3))
            self._clock.run_until(lambda: next(first, True), wait_ms)
        return found


class _EventLoop(asyncio.SelectorEventLoop):
    def __init__(self, clock: VirtualClock) -> None:
        self._virtual = clock
        self.selector = _Selector(clock)
        super().__init__(self.selector)

    def time(self) -> float:
        return self._virtual.now / 1000

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        self.selector.until = self._virtual.now + PATIENCE_MS
        return self.run_until_complete(work)


class _Thread:
    """Replaces the member's thread: the caller runs the loop while it waits."""

    def __init__(self, loop: _EventLoop) -> None:
        self._loop = loop

    def run(self, work: Coroutine[Any, Any, T], timeout_ms: float | None = None) -> T:
        return self._loop.run(work)

    def close(self, timeout_ms: float = 0) -> None:
        pass


class _Driver:
    """The simulated driver with the names of the real one."""

    wakeup: Callable[[], None]
    on_error: Callable[[Exception], None]

    def __init__(self, sim: SimDriver, clock: VirtualClock) -> None:
        self._sim = sim
        self._clock = clock

    def now(self) -> int:
        return self._clock.now

    async def start(self) -> None:
        pass

    async def close(self) -> None:
        self._sim.kill()

    def dispatch(self, sends: Iterable[AnySend]) -> None:
        self._sim.dispatch(sends)

    def disconnect(self, node_id: int, channel: Channel) -> None:
        self._sim.disconnect(node_id, channel)


class _Operator:
    is_closed = False
    identity = client_name = "operator"


class SimQuery(Query):
    """A query in a `SparkWorld`."""

    def __init__(self, world: SparkWorld, topic: str, folder: Path, **options: Any) -> None:
        super().__init__(world, topic, folder, **{"kafka_metadata_max_age_ms": 1_000, **options})
        self.world = world
        member = self.member
        core, config, brokers = member._core, member._config, world.cluster.brokers
        identity = config.group_instance_id or folder.name
        self.sent: list[Any] = []
        """The requests of this run."""
        sim = SimDriver(
            folder.name,
            identity,
            config,
            core.consumer.metadata,
            world.cluster.network,
            brokers,
            Random(1),
            lambda: driver.wakeup(),
        )
        driver = _Driver(sim, world.clock)
        sim.on_sent = self.sent.append
        replaced: dict[str, Any] = {
            "_driver": driver,
            "_loop": CoreLoop(driver, [core.consumer.metadata, core], member._on_turn),  # type: ignore[arg-type]
            "_thread": _Thread(world.loop),
        }
        vars(member).update(replaced)

    def read(self, partition: TopicPartition, claim: Claim, topic_id: bytes) -> list[int]:
        """Like `RangeReader`: reads the whole range, from the topic with this id."""
        topics = self.world.cluster.brokers.topics
        log = topics.logs[partition]
        there = range(max(claim.start, log.log_start_offset), min(claim.end, log.log_end_offset))
        same = ZERO_UUID in (topic_id or ZERO_UUID, topics.topic_id(partition.topic)) or topic_id == topics.topic_id(
            partition.topic
        )
        if (len(there) < claim.size or not same) and self.options.fail_on_data_loss:
            raise data_loss(f"{partition} does not have what the batch reads")
        return list(there) if same else []

    def trigger(self) -> bool:
        """Does what Spark does, which asks for the next batch when the current one is done."""
        assert self.running is None
        return super().trigger()

    def finish(self) -> None:
        """The sink is done, and the group's checks know what was handled."""
        assert self.running is not None
        for partition, claim in from_json(self.offset(self.running)).claims.items():
            self.world.offsets.handled(partition, range(*claim))
        super().finish()

    def count(self, request: type[Any]) -> int:
        """How many requests of a kind were sent."""
        return sum(1 for each in self.sent if isinstance(each, request))

    @property
    def ended(self) -> bool:
        return self.member._closed

    @property
    def settled(self) -> bool:
        return self.member._core.settled

    @property
    def draining(self) -> bool:
        return self.member._claims.draining


class SparkWorld:
    """Simulated brokers with topics, queries of one group, and the events that affect them.

    `versions` are the newest that older brokers support; `leaderless` are partitions without a leader, `silent` those
    whose leader does not report where they begin and end.
    """

    bootstrap = "node1:9092"
    group = "group"
    session_timeout_ms = 6_000
    server_assigned_groups: str | None = None

    def __init__(
        self,
        folder: Path,
        monkeypatch: pytest.MonkeyPatch,
        topics: dict[str, int],
        nodes: int,
        versions: dict[type[Any], int],
    ) -> None:
        self.cluster = SimCluster(
            1,
            topics=topics,
            groups=[self.group],
            nodes=nodes,
            group_config=GroupConfig(
                group_initial_rebalance_delay_ms=0, server_assigned_groups=self.server_assigned_groups
            ),
            limits=Limits(session_timeout_ms=self.session_timeout_ms, latest=True),
            wire=bool(versions),
            versions=versions,
        )
        self.clock = self.cluster.clock
        self.loop = _EventLoop(self.clock)
        self.leaderless: set[TopicPartition] = set()
        self._folder = folder
        self._queries: list[SimQuery] = []
        led = self.cluster.brokers.leader
        monkeypatch.setattr(
            self.cluster.brokers, "leader", lambda p: (-1, led(p)[1]) if p in self.leaderless else led(p)
        )
        monkeypatch.setattr("muster.spark.source.member.connect", lambda *_: self)

    # --- queries -----------------------------------------------------------------------------------------------------

    def query(self, topic: str = "t", name: str = "q", **options: Any) -> SimQuery:
        """Start a query. In the folder of a query that was stopped or has crashed, it is the next run of that query."""
        self._queries.append(SimQuery(self, topic, self._folder / name, **options))
        return self._queries[-1]

    def consumer(self, name: str = "other", **settings: Any) -> SimMember:
        """Another member of the group: reads, handles, commits."""
        habits = Habits(commit="sync", poll_ms=200)
        return self.cluster.add_member(
            name, habits=habits, topics=["t"], partition_assignment_strategy="cooperative-sticky", **settings
        )

    def close(self) -> None:
        for query in self._queries:
            query.stop()
        self.loop.close()

    # --- time --------------------------------------------------------------------------------------------------------

    def run(self, milliseconds: int) -> None:
        """Spark does not call; the members' loops continue."""
        self.loop.run(asyncio.sleep(milliseconds / 1000))

    def until(self, condition: Callable[[], bool], *steps: Callable[[], object], every_ms: int = 100) -> int:
        """Let time pass until a condition holds, with `steps` (of queries) in between; returns how long it took."""
        begun = self.clock.now
        while not condition():
            assert self.clock.now < begun + PATIENCE_MS, "it never happened"
            for step in steps:
                step()
            self.run(every_ms)
        return self.clock.now - begun

    # --- the cluster for operators and planners -----------------------------------------------------------------

    @property
    def offsets(self) -> Any:
        """The checks of the group."""
        return self.cluster.invariants.group(self.group).offsets

    def produce(self, count: int, topic: str = "t", partitions: Iterable[int] = (0,)) -> None:
        for partition in partitions:
            self.cluster.produce(topic, partition, count)

    def committed(self, topic: str = "t") -> dict[int, int]:
        """The group's acknowledged offsets, -1 if there is none."""
        count = self.cluster.brokers.topics.partition_count(topic)
        return {number: self.offsets.committed(TopicPartition(topic, number)) for number in range(count)}

    def set_group(self, offsets: Mapping[TopicPartition, int], note: str = "") -> None:
        """An operator sets the offsets of a group without members. The checks no longer apply to these partitions."""
        brokers = self.cluster.brokers
        brokers.asked.unsure.update(offsets)
        topics = [
            CommitTopic(p.topic, ZERO_UUID, [CommitPartition(p.partition, o, -1, note)]) for p, o in offsets.items()
        ]
        answer = self._ask_coordinator(OffsetCommitRequest(group_id=self.group, topics=topics))
        assert {each.error_code for topic in answer.topics for each in topic.partitions} == {0}

    def delete_group(self) -> None:
        """An operator deletes the group, which has no members, with its offsets."""
        self.cluster.brokers.asked.unsure.update(
            TopicPartition(name, number) for name, numbers in self.topics().items() for number in numbers
        )
        self.cluster.invariants.durable.group_may_vanish(self.group)
        answer = self._ask_coordinator(DeleteGroupsRequest(groups_names=[self.group]))
        assert [each.error_code for each in answer.results] == [0]

    def _ask_coordinator(self, request: Any) -> Any:
        answers: list[Any] = []
        self.cluster.brokers.coordinators.submit(1, request, Client("operator", "", 9), _Operator(), answers.append)
        self.until(lambda: bool(answers), every_ms=1)
        return answers[0]

    def remake(self, topic: str, partitions: int = 1, gone_ms: int = 0) -> None:
        """Delete a topic and create it again."""
        self.cluster.brokers.delete_topic(topic)
        self.run(gone_ms)
        self.cluster.brokers.topics.grow(topic, partitions)

    # The result of `connect`.

    def topics(self, names: Iterable[str] | None = None) -> dict[str, list[int]]:
        counts = self.cluster.brokers.topics.counts
        return {name: list(range(counts[name])) for name in (counts if names is None else names)}

    def list_offsets(self, times: Mapping[TopicPartition, int], isolation_level: int = 0) -> dict[TopicPartition, int]:
        logs = self.cluster.brokers.topics.logs
        return {
            p: logs[p].log_start_offset if when == EARLIEST_TIMESTAMP else logs[p].log_end_offset
            for p, when in times.items()
        }


def begin_batch(world, *queries):
    """Trigger until each of these has a batch in progress."""
    world.until(
        lambda: all(query.running is not None for query in queries),
        lambda: [query.trigger() for query in queries if query.running is None],
    )


def read_all(world, count, *queries):
    """Trigger those that have not ended until this many records are in the sinks."""
    running = [query.run for query in queries if not query.ended]
    world.until(lambda: sum(len(query.sink()) for query in queries) >= count, *running)


def drive(world, *queries):
    """Let one second pass, with batches as they become due."""
    for query in queries:
        query.run()
    world.run(1_000)
