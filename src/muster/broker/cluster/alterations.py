"""Changes existing topics, for all brokers of a cluster: writes to ZooKeeper, and waits until this broker has followed.
The rules are `muster.zookeeper.cluster.alterations`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial

from muster.broker.cluster.follower import Session
from muster.broker.topics.catalogue import TopicCatalogue
from muster.broker.topics.changes import PartitionIncrease, check_count
from muster.errors import ConfigError, ErrorCode, KafkaError
from muster.zookeeper.base.image import ClusterImage
from muster.zookeeper.base.operations import NoNodeError, ZooKeeperError
from muster.zookeeper.cluster.alterations import add_partitions, alter_settings
from muster.zookeeper.cluster.scheme import load_of, spread

ALTER_TIMEOUT_MS = 30_000
"""How long a change of settings may take; the request has no timeout."""

Rule = Callable[[Mapping[str, str]], dict[str, str]]
Done = Callable[[Mapping[str, KafkaError]], None]


class Alterations:
    """`brokers` returns the live brokers; `until` waits until nothing is left, or for a timeout."""

    def __init__(
        self,
        session: Session,
        image: ClusterImage,
        topics: TopicCatalogue,
        brokers: Callable[[], Awaitable[Collection[int]]],
        until: Callable[[int, Callable[[], list[str]]], Awaitable[list[str]]],
    ) -> None:
        self._session = session
        self._image = image
        self._topics = topics
        self._brokers = brokers
        self._until = until

    async def grow(self, wanted: Sequence[PartitionIncrease], timeout_ms: int, done: Done) -> None:
        """Add partitions, and wait until they have leaders."""
        failed: dict[str, KafkaError] = {}
        load, brokers = load_of(self._image.topics.values()), await self._brokers()
        for growth in wanted:
            name = growth.topic.name
            try:
                await self._session.run(add_partitions(name, partial(_added, growth, brokers, load)))
            except KafkaError as error:
                failed[name] = error
            except ZooKeeperError as error:
                failed[name] = _refusal(name, error)
        left = [growth for growth in wanted if growth.topic.name not in failed]
        late = await self._until(timeout_ms, lambda: [one.topic.name for one in left if not self._has_grown(one)])
        for name in late:
            failed[name] = KafkaError(ErrorCode.REQUEST_TIMED_OUT, "The new partitions have no leaders yet.")
        done(failed)

    def _has_grown(self, growth: PartitionIncrease) -> bool:
        image = self._image.topics.get(growth.topic.name)
        if image is None or self._topics.get(growth.topic.name) is not growth.topic:
            return True  # deleted meanwhile
        new = [image.states.get(index) for index in range(growth.first, growth.partitions)]
        led = all(known is not None and known.state.leader >= 0 for known in new)
        return led and growth.topic.partitions >= growth.partitions

    async def alter(self, wanted: Mapping[str, Rule], done: Done) -> None:
        """Change settings, and wait until this broker has followed."""
        failed: dict[str, KafkaError] = {}
        before = {topic.name: (topic, topic.settings) for topic in self._topics if topic.name in wanted}
        changed = []
        for name, rule in wanted.items():
            try:
                settings = await self._session.run(alter_settings(name, rule))
            except KafkaError as error:
                failed[name] = error
            except ConfigError as error:
                failed[name] = KafkaError(ErrorCode.INVALID_CONFIG, str(error))
            except ZooKeeperError as error:
                failed[name] = _refusal(name, error)
            else:
                if name in before and settings != before[name][1]:
                    changed.append(before[name])
        late = await self._until(
            ALTER_TIMEOUT_MS,
            lambda: [t.name for t, former in changed if t.settings == former and self._topics.get(t.name) is t],
        )
        for name in late:
            failed[name] = KafkaError(ErrorCode.REQUEST_TIMED_OUT, "This broker does not know of the new settings yet.")
        done(failed)


def _added(growth: PartitionIncrease, brokers: Collection[int], load: Mapping[int, int], had: int) -> list[list[int]]:
    """The brokers of each new partition of a topic. Raises KafkaError."""
    check_count(growth.topic.name, had, growth.partitions)
    if growth.assigned is None:
        return list(spread(growth.partitions - had, brokers, load).values())
    if len(growth.assigned) != growth.partitions - had:
        raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"The topic now has {had} partitions.")
    return growth.assigned


def _refusal(name: str, error: ZooKeeperError) -> KafkaError:
    if isinstance(error, NoNodeError):
        return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")
    return KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"ZooKeeper refused the change: {error}")
