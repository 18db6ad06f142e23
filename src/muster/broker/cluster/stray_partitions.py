"""What happens to records of a broker whose topic is not in ZooKeeper.

    the topic was deleted       its id is among the notes for this broker (zookeeper/cluster/deletions.py): removed
    it is merely missing        set aside, like Kafka's stray partitions (since 3.7): an older backup of ZooKeeper
                                was put back, or znodes were removed by hand
    it exists again             with its id: what was set aside is restored before the partition is led

A partition that a topic no longer has is treated in the same way: Kafka never removes one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from muster.broker.identity import uuid_bytes, uuid_text
from muster.broker.topics.catalogue import Topic, TopicCatalogue
from muster.broker.topics.changes import TopicChanges
from muster.broker.topics.fetches import ParkedFetches
from muster.broker.topics.partitions import Partitions

log = logging.getLogger("muster.broker")


class FormerTopics:
    """Removes, sets aside and restores the partitions of topics that ZooKeeper no longer has."""

    def __init__(
        self, topics: TopicCatalogue, changes: TopicChanges, partitions: Partitions, fetches: ParkedFetches
    ) -> None:
        self._topics = topics
        self._changes = changes
        self._partitions = partitions
        self._fetches = fetches

    async def part_with(self, gone: Iterable[Topic], noted: Iterable[str]) -> None:
        """Remove topics whose ids are noted as deleted, and set the others aside; when this returns, that is durable.
        Raises OSError: a second call continues where this one ended."""
        noted, gone = set(noted), list(gone)
        deleted = [topic for topic in gone if uuid_text(topic.topic_id) in noted]
        if deleted:
            for _ in self._changes.deleting(deleted):
                await asyncio.sleep(0)
        missing = [topic for topic in gone if topic not in deleted]
        for topic in missing:
            self._changes.groups.topic_deleted(topic.name)
            self.set_aside(topic, range(topic.partitions))
        if missing:
            self._topics.forget(missing)

    def set_aside(self, topic: Topic, indices: range) -> None:
        """Keep partitions that ZooKeeper does not know about, without leading them any longer. Raises OSError."""
        asides = self._partitions.set_aside(topic, indices)
        for _ in self._fetches.topics_deleted([topic.name]):
            pass
        if asides:
            log.error(
                "ZooKeeper lacks %s (id %s%s), and no request deleted it: %d partition(s) set aside, the first as %s. "
                "They will be served again once ZooKeeper has them with that id; otherwise remove the folders by hand",
                topic.name,
                uuid_text(topic.topic_id),
                f", from partition {indices.start} on" if indices.start else "",
                len(asides),
                asides[0],
            )

    def forget_asides(self, noted: Iterable[str]) -> None:
        """Delete what was set aside of topics that no longer exist. Raises OSError."""
        ids = []
        for text in noted:
            try:
                ids.append(uuid_bytes(text))
            except ValueError:
                continue  # written by hand
        if ids:
            self._partitions.delete_aside(ids)

    async def take_back(self, topic: Topic, index: int) -> None:
        """Open a partition's log if it was set aside. Raises OSError."""
        if not self._partitions.has_aside(topic, index):
            return
        log.warning("%s-%d was set aside and is restored: ZooKeeper has it again", topic.name, index)
        opening = asyncio.get_running_loop().run_in_executor(None, self._partitions.open_aside, topic, index)
        try:
            await asyncio.wait([opening])
        except asyncio.CancelledError:
            await asyncio.wait([opening])  # the thread ends before the folder is closed
            raise
        finally:
            self._partitions.put_back(opening.result())
