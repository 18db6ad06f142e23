"""What a query knows of its topics over restarts: which one it has read, and which partitions came later.

A topic that is deleted and created again under its name is another one: its id tells (KIP-516), its offsets do not. So
everything that is remembered of a topic's partitions is good for one id only.

A partition that the query did not see when it first started began empty after that: it is read from its start, as
Spark's own source does. `startingOffsets` is for those that were there.
"""

from __future__ import annotations

from collections.abc import Mapping

from muster.model import TopicPartition
from muster.spark.offsets import Topic, Topics


class KnownTopics:
    """The topics of one query. `seen` and `restore` may come in either order."""

    def __init__(self) -> None:
        self._known: Topics = {}
        self._view: Topics | None = None
        self._began = False

    @property
    def decided(self) -> bool:
        """Whether it is known which partitions were there at first."""
        return self._began and self._view is not None

    @property
    def known(self) -> Topics:
        """For the checkpoint."""
        return dict(self._known)

    def topic_id(self, topic: str) -> str:
        """The id under which what is remembered of a topic is good; empty where none was told."""
        found = self._known.get(topic)
        return found.id if found else ""

    def is_new(self, partition: TopicPartition) -> bool:
        """Whether a partition came after the query's first look."""
        found = self._known.get(partition.topic)
        return found is None or partition.partition >= found.partitions

    def seen(self, view: Mapping[str, Topic]) -> list[str]:
        """The cluster's topics as they are now, those of this query; which of them are others than before."""
        first = self._view is None
        self._view = dict(view)
        return self._compare(first and not self._known) if self._began else []

    def restore(self, known: Mapping[str, Topic]) -> list[str]:
        """The query begins, with what its checkpoint says; which topics are others than before."""
        self._began = True
        self._known = dict(known)
        return self._compare(not known) if self._view is not None else []

    def _compare(self, first: bool) -> list[str]:
        assert self._view is not None
        if first:
            self._known = dict(self._view)
            return []
        again: list[str] = []
        for name, now in self._view.items():
            before = self._known.get(name)
            if before is None:
                self._known[name] = Topic(now.id, 0)
            elif not before.id:
                self._known[name] = before._replace(id=now.id)
            elif now.id and now.id != before.id:
                again.append(name)
                self._known[name] = Topic(now.id, 0)
        return sorted(again)
