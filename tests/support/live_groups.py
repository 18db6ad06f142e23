"""Groups that live during a test: members join, leave, crash, commit, subscribe to something else, fall behind.

All are muster's own consumers, as tasks of one event loop in its own thread, and cost next to nothing. A crash is a
connection that is cut without leaving: the session expires. A group of KIP-848, which muster's clients do not speak, is
librdkafka's, and its members only come and go.

A seed determines what a group does; when it does so depends on the machine's speed.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

from confluent_kafka import Consumer as NextConsumer
from confluent_kafka import KafkaException

from muster.client.admin.async_admin import AsyncAdmin
from muster.client.consumer.async_consumer import AsyncConsumer
from muster.client.producer.async_producer import AsyncProducer
from muster.errors import KafkaError, MusterError
from muster.model import TopicPartition

SESSION_MS = 6_000
"""The shortest session timeout that a broker allows by default."""
MOST_MEMBERS = 4
LIFE_S = 8.0
"""How long a returning group is active at first."""
AGAIN_S = 3.0
"""And after its return."""
_CLOSE_MS = 3_000
_PATIENCE_S = 300.0
_GONE = ("Empty", "Dead")


class _Member:
    """One consumer: polls and commits until it leaves or crashes."""

    def __init__(self, consumer: AsyncConsumer) -> None:
        self.consumer = consumer
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while True:
            try:
                if await self.consumer.poll(200):
                    await self.consumer.commit(timeout_ms=2_000)
            except MusterError:  # a rebalance happened meanwhile, or the broker is down
                await asyncio.sleep(0.1)

    async def _end(self) -> None:
        self.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.task

    async def leave(self) -> None:
        """Leave normally."""
        await self._end()
        with contextlib.suppress(MusterError):
            await self.consumer.close(timeout_ms=_CLOSE_MS)

    async def crash(self) -> None:
        """Stop without leaving."""
        await self._end()
        await self.consumer._loop.close()
        self.consumer._closed = True


class _Group:
    """A group of the classic protocol, or of a consumer with manual assignment."""

    def __init__(self, name: str, way: str, random: Random, world: LiveGroups) -> None:
        self.name, self.way = name, way
        self._random, self._world = random, world
        self._members: dict[int, _Member] = {}

    async def live(self, stopping: asyncio.Event) -> None:
        """Runs until it is stopped; after that it has no members."""
        if self.way == "returning":
            await self._live_for(LIFE_S, stopping)
            await self._leave_all()
            await self._delete()
            await stopping.wait()
            await self._live_for(AGAIN_S, asyncio.Event())
        else:
            await self._act_until(stopping)
        await self._leave_all()

    async def _live_for(self, seconds: float, stopping: asyncio.Event) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._act_until(stopping), seconds)

    async def _act_until(self, stopping: asyncio.Event) -> None:
        while not stopping.is_set():
            await self._act()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stopping.wait(), self._random.uniform(0.5, 2.5))

    async def _act(self) -> None:
        """One random action that is possible for this group now."""
        there = sorted(self._members)
        free = [slot for slot in range(MOST_MEMBERS) if slot not in self._members]
        acts: list[Callable[[], Awaitable[None]]] = []
        if free:
            acts += [lambda: self._join(self._random.choice(free))] * (3 if len(there) < 2 else 1)
        if there:
            slot = self._random.choice(there)
            acts += [lambda: self._go(slot, leaves=True), lambda: self._go(slot, leaves=False)]
            acts += [lambda: self._rewind(slot), lambda: self._resubscribe(slot), lambda: asyncio.sleep(1)]
        if len(there) == MOST_MEMBERS and self._random.random() < 0.3:
            acts = [self._vanish]
        await self._random.choice(acts)()

    async def _join(self, slot: int) -> None:
        settings: dict[str, Any] = {
            "client_id": f"{self.name}-{slot}",
            "partition_assignment_strategy": "cooperative-sticky" if self.way == "cooperative" else "range",
            "enable_auto_commit": self._random.random() < 0.3,
            "auto_commit_interval_ms": 500,
        }
        if self.way == "static":
            settings["group_instance_id"] = f"i{slot}"
        consumer = self._world.consumer(self.name, **settings)
        if self.way == "assigned":
            topic, partitions = self._random.choice(sorted(self._world.topics.items()))
            consumer.assign([TopicPartition(topic, index) for index in range(partitions)])
        else:
            consumer.subscribe(self._some_topics())
        self._members[slot] = _Member(consumer)

    def _some_topics(self) -> list[str]:
        topics = sorted(self._world.topics)
        return topics if self._random.random() < 0.3 else topics[:1]

    async def _go(self, slot: int, *, leaves: bool) -> None:
        member = self._members.pop(slot)
        await (member.leave() if leaves else member.crash())

    async def _rewind(self, slot: int) -> None:
        consumer = self._members[slot].consumer
        for partition in sorted(consumer.assignment())[:1]:
            with contextlib.suppress(MusterError):
                position = await consumer.position(partition, 500)
                await consumer.commit({partition: max(0, position - 3)}, timeout_ms=500)

    async def _resubscribe(self, slot: int) -> None:
        if self.way != "assigned":
            self._members[slot].consumer.subscribe(self._some_topics())

    async def _vanish(self) -> None:
        """All leave, and perhaps the group is deleted; the next members start from the beginning."""
        await self._leave_all()
        if self._random.random() < 0.5:
            await self._delete()

    async def _leave_all(self) -> None:
        members, self._members = list(self._members.values()), {}
        await asyncio.gather(*(member.leave() for member in members))

    async def _delete(self) -> None:
        with contextlib.suppress(MusterError):
            await self._world.admin.delete_consumer_groups([self.name], raise_errors=False)


class _Next:
    """A group of KIP-848: librdkafka's consumers, each in a thread."""

    def __init__(self, name: str, random: Random, world: LiveGroups) -> None:
        self.name = name
        self._random, self._world = random, world
        self._members: list[tuple[threading.Event, asyncio.Task[None]]] = []

    async def live(self, stopping: asyncio.Event) -> None:
        """Runs until it is stopped; after that it has no members."""
        while not stopping.is_set():
            if len(self._members) < 2 or (len(self._members) < MOST_MEMBERS and self._random.random() < 0.5):
                left = threading.Event()
                topics = sorted(self._world.topics)[: self._random.randint(1, 2)]
                self._members.append((left, asyncio.create_task(asyncio.to_thread(self._run, left, topics))))
            else:
                await self._leave(self._members.pop(0))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stopping.wait(), self._random.uniform(1, 3))
        await asyncio.gather(*map(self._leave, self._members))

    async def _leave(self, member: tuple[threading.Event, asyncio.Task[None]]) -> None:
        left, task = member
        left.set()
        await task

    def _run(self, left: threading.Event, topics: list[str]) -> None:
        settings = {
            "bootstrap.servers": self._world.bootstrap,
            "group.id": self.name,
            "client.id": self.name,
            "group.protocol": "consumer",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "log_level": 0,
        }
        consumer = NextConsumer(settings)
        consumer.subscribe(topics)
        while not left.is_set():
            with contextlib.suppress(KafkaException, RuntimeError):
                messages = consumer.consume(100, timeout=0.2)
                if any(message.error() is None for message in messages):
                    consumer.commit(asynchronous=True)
        consumer.close()


class LiveGroups(threading.Thread):
    """Groups on a cluster, and a producer for them. At the end all members leave, and it waits until the coordinator
    knows."""

    def __init__(self, bootstrap: str, topics: dict[str, int], groups: dict[str, str], seed: int) -> None:
        """`topics`: how many partitions each has; `groups`: the kind of each."""
        super().__init__(name="live-groups", daemon=True)
        self.bootstrap, self.topics, self.groups = bootstrap, topics, groups
        self.admin: AsyncAdmin
        self._seed = seed
        self._loop = asyncio.new_event_loop()
        self._stopping = asyncio.Event()
        self._failed: BaseException | None = None

    def consumer(self, group: str, **settings: Any) -> AsyncConsumer:
        """A consumer with short timeouts."""
        return AsyncConsumer(
            bootstrap_servers=self.bootstrap,
            group_id=group,
            auto_offset_reset="earliest",
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=500,
            max_poll_interval_ms=60_000,
            fetch_max_wait_ms=300,
            request_timeout_ms=8_000,
            **settings,
        )

    def run(self) -> None:
        """The thread."""
        try:
            self._loop.run_until_complete(self._run())
        except BaseException as error:
            self._failed = error
        finally:
            self._loop.close()

    async def _run(self) -> None:
        async with AsyncAdmin(bootstrap_servers=self.bootstrap, default_api_timeout_ms=5_000) as self.admin:
            producing = asyncio.create_task(self._produce())
            seeds = {name: Random(f"{self._seed} {way}") for name, way in self.groups.items()}
            await asyncio.gather(
                *(
                    (_Next(name, seeds[name], self) if way == "next" else _Group(name, way, seeds[name], self)).live(
                        self._stopping
                    )
                    for name, way in self.groups.items()
                )
            )
            await producing
            await self._wait_until_empty()

    async def _produce(self) -> None:
        """About twenty records a second."""
        random = Random(self._seed)
        async with AsyncProducer(bootstrap_servers=self.bootstrap, linger_ms=5) as producer:
            while not self._stopping.is_set():
                topic, partitions = random.choice(sorted(self.topics.items()))
                with contextlib.suppress(MusterError):
                    await producer.send(topic, b"v", partition=random.randrange(partitions))
                await asyncio.sleep(0.05)

    async def _wait_until_empty(self) -> None:
        """Crashed members stay in their groups until their sessions have expired."""
        async with asyncio.timeout(_PATIENCE_S):
            while not await self._are_empty():
                await asyncio.sleep(0.3)

    async def _are_empty(self) -> bool:
        try:
            found = await self.admin.describe_consumer_groups(self.groups, raise_errors=False)
        except MusterError:
            return False
        return all(isinstance(said, KafkaError) or said.state in _GONE for said in found.values())

    def end(self) -> None:
        """Make all members leave, and wait until their groups are empty.

        Raises:
            AssertionError: something went wrong with the groups themselves.
        """
        if self.is_alive():
            self._loop.call_soon_threadsafe(self._stopping.set)
        self.join(2 * _PATIENCE_S)
        assert not self.is_alive(), "the groups do not come to rest"
        assert self._failed is None, repr(self._failed)
